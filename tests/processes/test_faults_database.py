"""Strangers at the database, damaged files, backups and migrations, and the safety of the log.

SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection copies the log back while
another writes; so nobody may copy it back who does not hold the write lock.
"""

import ast
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import jobqueue
from tests.helpers.faults import (
    MANY, SiteCase, WriterCase, copy_data, has_begun, outsider, plant)
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import ROOT, TestCase, need, wait_until

setUpModule = needs_sqlite("its file and its locks")

# For the site's processes no file system is local, so that they write without a log.
TRUNCATE = "\nLOCAL_FILE_SYSTEMS = frozenset()\n"
QUICK = "\nTICK_SECONDS, RENEW_SECONDS = 0.3, 1.0\n"
NO_LOG = "\nWAL_CHECKPOINT_BYTES = 0\n"     # every commit is copied back at once


class TestStranger(SiteCase):
    """F11. Somebody else's program holds the lock for longer than anybody waits."""

    settings = {**SiteCase.settings, "linger": 300}
    SECONDS, FLICKER = (30, 60) if MANY else (6, 1.5)

    def test_with_a_log_people_can_still_read(self):
        plant(self.site, QUICK)
        self.weather("BEGIN IMMEDIATE", {200})

    def test_without_a_log_reading_has_to_wait_too(self):
        plant(self.site, QUICK + TRUNCATE)
        self.site.run("check", "--repair", "--quick", code=None)
        self.weather("BEGIN EXCLUSIVE", {200, 503})
        self.assertEqual(list(self.site.data.glob("*-wal")), [])

    def weather(self, statement, statuses):
        self.site.start_server()
        visitor = self.browser()
        ids = [self.post(visitor, until=until).value["id"] for until in (self.hold(), "", "")]
        self.wait_for_all(ids[1:])
        self.running(ids[0])
        workers = set(self.site.workers())
        seen = self.storm(statement, visitor)
        self.assertLessEqual({status for status, _ in seen}, statuses)
        if statuses == {200}:
            self.assertIn((200, False), seen, "who writes is given time, and nobody waits for that")
        self.assertLessEqual(workers, set(self.site.workers()), "a worker has died of it")
        wait_until(lambda: self.post(visitor).status == 201, what="an add after the storm")
        added = self.flicker(statement, visitor)
        self.assertGreater(len(added), 3)
        ids += added
        self.wait_for_all(ids)
        self.check_records(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE crashes>0"), 0)
        self.check_quiet()

    def storm(self, statement, visitor):
        """Hold the lock until whoever writes is answered; the statuses of those who read meanwhile."""
        link, answers, seen = outsider(self.site.database), [], []
        self.addCleanup(link.close)
        wait_until(lambda: has_begun(link, statement), what="the outsider's turn")
        answered, over = threading.Event(), threading.Event()

        def write(writer):
            answers.append(self.post(writer))
            answered.set()

        def read(reader):
            while not over.wait(0.3):
                seen.append((self.send(reader).status, answered.is_set()))
        threads = [threading.Thread(target=target, args=(self.twin(visitor),))
                   for target in (write, read)]
        for thread in threads:
            thread.start()
        self.release()                  # a task ends, which cannot be recorded
        time.sleep(self.SECONDS)
        answered.wait(60)
        over.set()
        for thread in threads:
            thread.join(60)
        link.execute("ROLLBACK")
        [reply] = answers
        self.assertEqual(reply.status, 503)
        self.assertIsNotNone(reply.headers.get("Retry-After"))
        return seen

    def twin(self, visitor):
        """Another connection of the same session: logging in would have to write."""
        twin = visitor.twin()
        self.addCleanup(twin.close)
        return twin

    def flicker(self, statement, visitor):
        """The lock comes and goes; ids of what was acknowledged."""
        stop, ids = threading.Event(), []

        def disturb():
            link = outsider(self.site.database)
            while not stop.wait(0.05):
                if has_begun(link, statement):
                    time.sleep(0.05)
                    link.execute("ROLLBACK")
            link.close()
        thread = threading.Thread(target=disturb)
        thread.start()
        until = time.monotonic() + self.FLICKER
        while time.monotonic() < until or len(ids) < 4 and time.monotonic() < until + 60:
            reply = self.post(visitor)
            self.assertIn(reply.status, (201, 503))
            if reply.status == 201:
                ids.append(reply.value["id"])
        stop.set()
        thread.join(60)
        return ids


def overwrite(path, place, data):
    """As somebody does who writes into a file: it stays the same file."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def harm_pages(path):
    """Four pages of nothing but chance, the first left alone."""
    chance, count = random.Random(12), path.stat().st_size // 1024
    for page in chance.sample(range(1, count), 4):
        overwrite(path, page * 1024, bytes(chance.getrandbits(8) for _ in range(1024)))


def harm_header(path):
    overwrite(path, 0, b"x" * 100)


def harm_all(path):
    with path.open("wb") as file:
        file.write(b"<!doctype html><title>Account suspended</title>" + b" " * 40_000)


def harm_by_emptying(path):
    path.open("wb").close()


HARMS = (harm_pages, harm_header, harm_all, harm_by_emptying)


class TestDamaged(SiteCase):
    """F12. Whatever is done to the file: it is said, it is kept, and nothing begins afresh."""

    settings = {"linger": 300, "NbMaxWorker": 1, "nice": 0}

    def begin(self, tasks=60):
        """A server, a worker that waits for more, and what is there by then."""
        self.site.start_server()
        self.visitor = self.browser()
        ids = self.enqueue("ledger", [{}] * tasks)
        self.wait_for_all(ids)
        return ids

    def stop(self):
        """Stop everything as a careful person does."""
        self.site.stop_server()
        for pid in self.site.workers():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not self.site.processes(), what="everybody's end")
        self.site.run("list")           # the last to close copies the log back
        self.assertEqual(list(self.site.data.glob("*-wal")), [])

    def check_refused(self, words):
        """Every door says the same in one line, and leaves everything as it is."""
        before = self.site.database.read_bytes()
        for words_typed in ("add ledger", "serve --port 0"):
            arguments = words_typed.split()
            done = self.site.run(*arguments, code=None)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), (arguments, done))
            self.assertRegex(done.stderr, words)
        done = self.site.run("check", "--quick", code=1)
        self.assertEqual(done.stderr, "")
        self.assertRegex(done.stdout, "(?m)^bad +Database .*(%s)" % words)
        worker = self.site.start_worker("--seconds", "3", stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, encoding="utf-8")
        out, said = worker.communicate(timeout=60)
        self.assertEqual((worker.returncode, out, said.count("\n")), (1, "", 1), said)
        self.assertEqual(self.site.database.read_bytes(), before)
        self.assertEqual(len(list(self.site.data.glob("*.db"))), 1)

    def starts(self):
        return len([entry for entry in self.ledger() if entry[0] == "START"])

    def test_while_nothing_runs(self):
        self.begin()
        self.stop()
        whole = self.site.database.read_bytes()
        for harm, words in zip(HARMS[1:], ("damaged", "damaged", "empty")):
            with self.subTest(harm.__name__):
                harm(self.site.database)
                self.check_refused(words)
                self.site.database.write_bytes(whole)
        self.assertEqual(len(self.site.json("list")["tasks"]), 50)

    def test_pages_that_are_harmed_while_nothing_runs(self):
        """Who meets one of them says so, who does not works on; `check` reads them all."""
        self.begin()
        self.enqueue("ledger", [{}] * 20, idle=True)
        self.stop()
        harm_pages(self.site.database)
        done = self.site.run("check", "--quick", code=1)
        self.assertRegex(done.stdout + done.stderr, "malformed|damaged|put a backup")
        for _ in range(2):
            self.assertIn(self.site.start_worker("--seconds", "1").wait(60), (0, 1))
            done = self.site.run("list", code=None)
            lines = done.stderr.splitlines()
            self.assertTrue(all(line.startswith("jobqueue: ") for line in lines), lines)
            self.assertIn((done.returncode, len(lines)), ((0, 0), (0, 1), (1, 1), (1, 2)))
        self.assertNotIn("Traceback", self.site.said())
        self.assertEqual(len(list(self.site.data.glob("*.db"))), 1)
        self.site.run("check", "--quick", code=1)

    def test_while_it_runs(self):
        """What SQLite still has in memory may be used; nothing told is missing without a word."""
        plant(self.site, NO_LOG)
        whole = copy_data(self.site.data, self.site.home / "whole")
        for harm in HARMS:
            with self.subTest(harm.__name__):
                self.run_into(harm)
                self.site.stop_all()
                shutil.rmtree(self.site.data)
                copy_data(whole, self.site.data)

    def run_into(self, harm):
        ids = self.begin()
        harm(self.site.database)
        for _ in range(5):
            reply = self.post(self.visitor)
            self.assertIn(reply.status, (201, 503))
            if reply.status == 201:
                ids.append(reply.value["id"])
            self.assertIn(self.send(self.visitor).status, (200, 503))
        time.sleep(0.5)
        self.check_quiet()
        self.site.stop_all()
        self.assertEqual(len(list(self.site.data.glob("*.db"))), 1)
        if self.site.run("check", "--quick", code=None).returncode == 0:
            self.assertEqual({row[0] for row in self.site.rows("SELECT id FROM task")}, set(ids))

    def log(self):
        return Path(str(self.site.database) + "-wal")

    def test_the_log_is_removed_while_nothing_runs(self):
        ids = self.begin()
        self.site.stop_all()
        self.site.server.stdout.close()
        self.assertLess(self.count_in_copy(), len(ids), "the log does not matter here")
        self.log().unlink()
        self.check_refused("log")

    def count_in_copy(self):
        """How many tasks the database has without its log."""
        copy = shutil.copy(self.site.database, self.site.home / "copy")
        with contextlib.closing(sqlite3.connect(str(copy))) as link:
            return link.execute("SELECT count(*) FROM task").fetchone()[0]

    def test_the_log_is_removed_while_it_runs(self):
        self.begin()
        self.log().unlink()
        starts = self.starts()
        for _ in range(3):
            reply = self.post(self.visitor)
            self.assertEqual(reply.status, 503, "what is told now would be lost")
        self.check_refused("log")
        self.assertEqual(self.starts(), starts)
        self.check_quiet()


class TestBackup(WriterCase):
    """F13. A backup while everybody writes is a moment of the database, and can be restored."""

    ROUNDS = 20 if MANY else 2

    def backup(self, data, target, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "jobqueue", "backup", str(target), "--data", str(data)], cwd=ROOT,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def restore(self, data, file):
        """The data folder as it is with the backup in its place; as the handbook says."""
        room = self.folder / ("restored " + file.name)
        copy_data(data, room, "*.db*", "*.lock*")
        shutil.copy(file, room / next(data.glob("*.db")).name)
        return room

    def test_it_has_everything_that_was_told_before_it_began(self):
        for journal in ("wal", "truncate"):
            with self.subTest(journal):
                data = self.new_folder(self.folder / journal, journal)
                children = [self.start(kind, data, journal, jobqueue.WAL_CHECKPOINT_BYTES, 0)
                            for kind in ("add", "add", "count", "count")]
                self.working(children)
                self.check_backups(data, children, journal)
                for child in children:
                    child.kill()
                    child.wait(60)
                self.check_folder(data, self.acknowledged(children), journal)

    def check_backups(self, data, children, journal):
        for number in range(self.ROUNDS):
            told, file = self.acknowledged(children), self.folder / ("%s %d" % (journal, number))
            self.backup(data, file)
            self.assertEqual(file.stat().st_mode & 0o077, 0, "others may read it")
            self.assertEqual(self.value(file, "PRAGMA quick_check"), "ok")
            self.check_folder(self.restore(data, file), told, "wal")

    def value(self, file, statement):
        with contextlib.closing(sqlite3.connect("file:%s?mode=ro" % file, uri=True)) as link:
            return link.execute(statement).fetchone()[0]

    def test_one_that_cannot_be_made_leaves_nothing_and_says_why(self):
        data = self.new_folder(self.folder / "room", "wal")
        (self.folder / "taken").mkdir()
        for target in (self.folder / "missing" / "file", self.folder / "taken"):
            done = self.backup(data, target, code=1)
            self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1), done.stderr)
        self.assertEqual(list((self.folder / "taken").iterdir()), [])
        self.assertFalse((self.folder / "missing").exists())


# A schema with one more table; who comes to its middle while "kill at" says so, dies.
MIGRATION = r'''
SCHEMA_VERSION += 1
SCHEMA += "CREATE TABLE extra (n INTEGER);\nINSERT INTO extra VALUES (1);"
run_really = FileConnection.run


def run_or_die(self, statement, values=()):
    answer = run_really(self, statement, values)
    if "CREATE TABLE extra" in statement:
        with contextlib.suppress(OSError):
            os.unlink(HOME / "kill at" / "migrate")
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


FileConnection.run = run_or_die
'''


class TestMigration(SiteCase):
    """F14. Everybody starts at once on a database that the new files find too old."""

    def test_whoever_dies_in_it_another_one_does_it_once(self):
        plant(self.site, MIGRATION)
        for _ in range(20 if MANY else 2):
            self.arm("migrate")
            programs = ("jobqueue list", "jobqueue tick", "jobqueue user list", "jobqueue settings",
                        "worker --seconds 1")
            children = [self.site._start(["-m", *arguments.split()], stdout=subprocess.DEVNULL)
                        for arguments in programs * 2]
            self.killed("migrate")
            newest = jobqueue.SCHEMA_VERSION + 1
            wait_until(lambda newest=newest: self.site.value("PRAGMA user_version") == newest,
                       what="the migration by another one")
            codes = sorted(child.wait(60) for child in children)
            self.assertEqual(codes, [-signal.SIGKILL] + [0] * 9)
            self.assertEqual(self.site.value("SELECT count(*) FROM extra"), 1)
            self.check_sound()
            self.assertNotIn("Traceback", self.site.said())
            self.site.rows("DROP TABLE extra")
            self.site.rows("PRAGMA user_version=%d" % jobqueue.SCHEMA_VERSION)


class TestLongReader(TestCase):
    """F21. A reader that stays keeps the log from being copied back."""

    def setUp(self):
        super().setUp()
        need(self.database.journal == "wal", "a temporary folder on a local file system")

    def work(self, count):
        for _ in range(count):
            self.clock.advance(1)
            request = {"function": "greet", "arguments": {"name": "x" * 150_000}}
            self.ids += self.queue.add([request] * 2, self.owner_id("bob"))
            self.run_one()

    def verdicts(self):
        return {check.name: (check.verdict, check.text)
                for check in jobqueue.check_host(self.queue).checks}

    def test_it_is_said_and_nothing_is_lost_and_the_log_gets_small_again(self):
        self.ids, self.clock.step = [], 0.0005
        reader = outsider(self.database.path)
        self.addCleanup(reader.close)
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM task").fetchone()[0]
        self.work(70)
        self.assertGreater(self.database.wal_bytes(), jobqueue.WAL_ALARM_BYTES)
        self.assertEqual(jobqueue.describe_service(self.queue)["code"], "storage")
        verdict, text = self.verdicts()["Journal"]
        self.assertEqual(verdict, "bad")
        self.assertRegex(text, r"grown to \d\d MB")
        self.assertEqual(reader.execute("SELECT count(*) FROM task").fetchone()[0], seen)
        reader.execute("ROLLBACK")
        self.work(2)
        self.assertLessEqual(self.database.wal_bytes(), jobqueue.WAL_CHECKPOINT_BYTES)
        self.assertNotEqual(jobqueue.describe_service(self.queue)["code"], "storage")
        self.assertEqual(self.verdicts()["Journal"][0], "ok")
        known = {row[0] for row in self.database.all("SELECT id FROM task")}
        self.assertEqual(known, set(self.ids))
        self.assertEqual(self.database.value("PRAGMA integrity_check"), "ok")


# Tells, in the file "watched" beside the data folder, at every copying back whether the write lock
# was held, by trying to take it; and whether a connection that begins to write would copy back by
# itself.
WATCH = r"""
WAL_CHECKPOINT_BYTES, CHECKPOINT_PAUSE_SECONDS = 60_000, 0.5
connect_really = sqlite3.connect


def is_locked(path):
    stranger = connect_really(path, timeout=0, isolation_level=None)
    try:
        stranger.execute("PRAGMA wal_autocheckpoint=0")
        stranger.execute("BEGIN IMMEDIATE")
        stranger.execute("ROLLBACK")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        stranger.close()


def look(link, statement):
    if "wal_checkpoint" in statement.lower():
        found = "held" if is_locked(link.path) else "free"
    elif statement.startswith("BEGIN") and link.execute(
            "PRAGMA wal_autocheckpoint").fetchone()[0]:
        found = "automatic"
    else:
        return
    with open(os.path.join(os.path.dirname(link.path), "..", "watched"), "a") as file:
        file.write(found + "\n")


class WatchedCursor(sqlite3.Cursor):
    def execute(self, statement, *values):
        look(self.connection, statement)
        return super().execute(statement, *values)

    def executescript(self, statement):
        look(self.connection, statement)
        return super().executescript(statement)


class Watched(sqlite3.Connection):
    def __init__(self, path, *values, **named):
        from urllib.parse import unquote
        super().__init__(path, *values, **named)
        self.path = unquote(path[5:].partition("?")[0] if path.startswith("file:") else path)

    def cursor(self, *_):
        return super().cursor(WatchedCursor)

    def execute(self, statement, *values):
        return self.cursor().execute(statement, *values)

    def executemany(self, statement, *values):
        return self.cursor().executemany(statement, *values)

    def executescript(self, statement):
        return self.cursor().executescript(statement)


def connect(*values, **named):
    return connect_really(*values, **named, factory=Watched)


sqlite3.connect = connect
"""


def unguarded(source):
    """Functions that open a database without turning SQLite's own copying back off in it."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        text = ast.unparse(function)
        if "sqlite3.connect(" in text and "PRAGMA wal_autocheckpoint=0" not in text:
            found.append(function.name)
    return sorted(set(found))


class TestLogSafety(WriterCase):
    """Nobody copies the log back without the write lock, whatever else is going on."""

    SECONDS, WRITERS = (600, 20) if MANY else (2, 10)

    def seen(self, room):
        path = room / "watched"
        return path.read_text().split() if path.exists() else []

    def is_too_early(self, room, children, until):
        """True on a slow machine until enough has happened."""
        return time.monotonic() < until + 120 and (
            len(self.seen(room)) < 10 or len(self.acknowledged(children)) <= 20)

    def test_many_processes_write_while_the_log_is_copied_back(self):
        chance, room = random.Random(20), self.folder / "room"
        data = self.new_folder(room, "wal")
        kinds = ["add"] * (self.WRITERS - 5) + ["count"] * 5
        children = [self.start(kind, data, limit=60_000, planted=WATCH) for kind in kinds]
        gone, readers = [], [outsider(next(data.glob("*.db"))) for _ in range(2)]
        until = time.monotonic() + self.SECONDS
        while time.monotonic() < until or self.is_too_early(room, gone + children, until):
            for reader in readers:      # each keeps what it saw for a moment
                reader.execute("BEGIN")
                wait_until(lambda reader=reader: has_begun(reader, "SELECT count(*) FROM task"))
                time.sleep(0.1)
            for reader in readers:
                reader.execute("ROLLBACK")
            time.sleep(0.4)
            number = chance.randrange(len(children))
            children[number].kill()
            gone.append(children[number])
            children[number] = self.start(kinds[number], data, limit=60_000, planted=WATCH)
        for reader in readers:
            reader.close()
        for child in children:
            child.kill()
            child.wait(60)
        told, seen = self.acknowledged(gone + children), self.seen(room)
        self.assertEqual(set(seen), {"held"})
        self.assertGreater(len(told), 20)
        self.check_folder(data, told, "wal")

    def stamps(self, data):
        """Reading the files would break the locks that this process has on them."""
        return {path.name: (path.stat().st_size, path.stat().st_mtime_ns)
                for path in data.glob("*.db*") if not path.name.endswith("-shm")}

    def test_who_closes_while_others_go_on_leaves_the_log_alone(self):
        data = self.new_folder(self.folder / "room", "wal")
        queue = jobqueue.JobQueue(data, environment={})
        self.addCleanup(queue.close)
        with queue.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", "x" * 10_000)
        before = self.stamps(data)
        text = ("import sys; sys.path.insert(0, %r); import jobqueue; "
                "jobqueue.SqliteDatabase(sys.argv[1]).close()" % str(ROOT))
        subprocess.run([sys.executable, "-c", text, str(data)], check=True)
        self.assertEqual(self.stamps(data), before)

    def test_every_connection_turns_automatic_copying_off(self):
        """All but that of a backup to its target, which nobody else has open."""
        self.assertEqual(unguarded((ROOT / "jobqueue.py").read_text("utf-8")), ["copy_to"])
        self.assertEqual(unguarded((ROOT / "worker.py").read_text("utf-8")), [])

    def test_that_look_sees_one_that_does_not(self):
        self.assertEqual(unguarded("def f(path):\n    return sqlite3.connect(path)\n"), ["f"])
        self.assertEqual(unguarded("def f(path):\n    link = sqlite3.connect(path)\n"
                                   "    link.execute('PRAGMA wal_autocheckpoint=0')\n"), [])


class TestWatchedSite(SiteCase):
    """The same watch over server, workers and command line."""

    settings = {"linger": 1, "NbMaxWorker": 3, "nice": 0}

    def test_no_process_copies_the_log_back_without_the_lock(self):
        plant(self.site, WATCH)
        self.site.start_server()
        visitor = self.browser()
        ids = []
        for number in range(120):
            ids.append(self.post(visitor).value["id"])
            if number % 40 == 0:
                self.site.run("check", "--quick", code=None)
                self.site.run("tick")
                self.site.run("backup", self.site.home / "backup")
        self.wait_for_all(ids)
        wait_until(lambda: not self.site.workers(), what="the end of the workers")
        self.site.start_worker("--seconds", "2").wait(60)
        self.site.stop_server()
        seen = (self.site.home / "watched").read_text().split()
        self.assertEqual(set(seen), {"held"})
        self.assertGreater(len(seen), 5)
        self.check_records(ids)


if __name__ == "__main__":
    unittest.main()
