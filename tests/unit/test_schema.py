"""The tables, and how a database of an older version becomes one of a newer."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from unittest import mock

import jobqueue
from tests.helpers.support import ROOT, TestCase, wait_until

# A program whose schema has one more table; argv: data folder, seconds to pause inside.
NEWER = """
import sys, time
sys.path.insert(0, %r)
import jobqueue
jobqueue.SCHEMA_VERSION += 1
jobqueue.SCHEMA += "CREATE TABLE extra (n INTEGER);\\nINSERT INTO extra VALUES (1);"
old_run = jobqueue.Connection.run
def run(self, statement, values=()):
    result = old_run(self, statement, values)
    if "CREATE TABLE extra" in statement and float(sys.argv[2]):
        print("inside", flush=True)
        time.sleep(float(sys.argv[2]))
    return result
jobqueue.Connection.run = run
database = jobqueue.Database(sys.argv[1], patience=30)
print(database.value("PRAGMA user_version"), database.value("SELECT count(*) FROM extra"))
""" % str(ROOT)


NOW = jobqueue.SCHEMA_VERSION


class TestSchema(TestCase):
    def setUp(self):
        super().setUp()
        self.path = self.database.path

    def start(self, pause=0):
        child = subprocess.Popen(
            [sys.executable, "-c", NEWER, str(self.folder / "data"), str(pause)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def tables(self):
        return {row[0] for row in self.database.all("SELECT name FROM sqlite_master WHERE type='table'")}

    def test_a_new_database_has_the_newest_version(self):
        self.assertEqual(self.database.value("PRAGMA user_version"), NOW)

    def test_the_tables_of_the_design_are_there(self):
        self.assertLessEqual(
            set("task activity log worker queue function setting user session token".split()), self.tables()
        )

    def test_the_columns_of_the_public_schema_are_there(self):
        columns = {row[1] for row in self.database.all("PRAGMA table_info(task)")}
        self.assertLessEqual(
            set(
                "id owner_id queue function arguments status reason priority turn run_at "
                "unique_key max_retries retries_left claim worker_id lease_boot "
                "lease_monotonic lease_wall cancel_requested attempts crashes".split()
            ),
            columns,
        )

    def test_a_migration_is_applied_exactly_once_by_processes_that_race(self):
        children = [self.start() for _ in range(8)]
        said = [child.communicate(timeout=60)[0].strip() for child in children]
        self.assertEqual(said, ["%d 1" % (NOW + 1)] * 8)
        self.assertEqual(self.database.value("SELECT count(*) FROM extra"), 1)

    def test_a_newer_schema_is_refused_in_one_line_and_left_alone(self):
        with self.database.transaction() as transaction:
            transaction.run("PRAGMA user_version=99")
        self.queue.close()
        before = self.path.read_bytes()
        with self.refused(jobqueue.SetupError, "schema version 99") as caught:
            jobqueue.Database(self.folder / "data", self.clock)
        self.assertNotIn("\n", caught.exception.detail)
        self.assertEqual(self.path.read_bytes(), before)

    def test_a_process_killed_inside_a_migration_leaves_the_old_schema(self):
        child = self.start(pause=60)
        self.assertEqual(child.stdout.readline().strip(), "inside")
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        self.assertEqual(self.database.value("PRAGMA user_version"), NOW)
        self.assertNotIn("extra", self.tables())
        self.assertEqual(self.start().communicate(timeout=30)[0].strip(), "%d 1" % (NOW + 1))

    def test_a_process_killed_at_any_moment_leaves_old_or_new(self):
        started = time.monotonic()
        self.start().wait(60)
        usual = time.monotonic() - started
        for part in range(10):
            self.write("DROP TABLE IF EXISTS extra")
            self.write("PRAGMA user_version=%d" % NOW)
            child = self.start()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(usual * (0.55 + 0.05 * part))
            child.kill()
            child.wait(10)
            version = self.database.value("PRAGMA user_version")
            self.assertEqual(version == NOW + 1, "extra" in self.tables())

    def test_a_failing_migration_changes_nothing(self):
        broken = {"SCHEMA": "CREATE TABLE half (n INTEGER);\nCREATE TABLE nonsense (;",
                  "SCHEMA_VERSION": NOW + 1}
        with mock.patch.multiple(jobqueue, **broken), self.assertRaises(sqlite3.OperationalError):
            jobqueue.Database(self.folder / "data", self.clock)
        self.assertEqual(self.database.value("PRAGMA user_version"), NOW)
        self.assertNotIn("half", self.tables())

    def test_the_database_is_intact_and_its_keys_are_enforced(self):
        self.assertEqual(self.database.value("PRAGMA integrity_check"), "ok")
        self.assertEqual(self.database.all("PRAGMA foreign_key_check"), [])
        with self.refused(jobqueue.Conflict), self.database.transaction() as transaction:
            transaction.run(
                "INSERT INTO session (digest, user_id, created_at, seen_at, expires_at) "
                "VALUES ('x', 999, 0, 0, 0)"
            )

    def test_an_id_is_never_used_again(self):
        first = self.add()
        self.delete(first)
        self.assertGreater(self.add(), first)


class TestFolder(TestCase):
    def test_the_folder_is_private_and_says_so_to_web_servers(self):
        data = self.folder / "data"
        self.assertEqual(os.stat(data).st_mode & 0o777, 0o700)
        for name in os.listdir(data):
            mode = os.stat(data / name).st_mode & 0o777
            self.assertIn(mode, (0o600, 0o700) if os.path.isdir(data / name) else (0o600,), name)
        self.assertIn("Require all denied", (data / ".htaccess").read_text())
        self.assertEqual((data / "index.html").read_text(), "")

    def test_the_databases_name_cannot_be_guessed(self):
        self.assertTrue(re.fullmatch(r"jobqueue-[0-9a-f]{16}\.db", self.database.path.name))

    def test_nothing_half_made_is_left_beside_it(self):
        self.assertEqual(os.listdir(self.folder), ["data"])

    def test_a_folder_that_cannot_be_finished_is_not_made_at_all(self):
        with mock.patch.object(jobqueue, "migrate", side_effect=sqlite3.OperationalError("disk I/O error")):
            with self.refused(jobqueue.StorageBroken, "disk I/O error"):
                jobqueue.open_database(self.folder / "other")
        self.assertEqual(os.listdir(self.folder), ["data"])

    def test_twenty_processes_at_once_make_one_complete_folder(self):
        text = (
            "import sys; sys.path.insert(0, %r); import jobqueue\n"
            "sys.stdin.readline()\n"
            "print(jobqueue.JobQueue(sys.argv[1], environment={}).database.path)" % str(ROOT)
        )
        children = [
            subprocess.Popen(
                [sys.executable, "-c", text, str(self.folder / "raced")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            )
            for _ in range(20)
        ]
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        said = {child.communicate(timeout=60)[0].strip() for child in children}
        self.assertEqual(len(said), 1, said)
        self.assertTrue(os.path.isfile(said.pop()))
        self.assertEqual(sorted(os.listdir(self.folder)), ["data", "raced"])

    def test_a_process_killed_while_it_makes_the_folder_leaves_none(self):
        text = (
            "import sys, os; sys.path.insert(0, %r); import jobqueue\n"
            "def stop(*_):\n    print('here', flush=True)\n    sys.stdin.readline()\n"
            "jobqueue.os.rename = stop\njobqueue.JobQueue(sys.argv[1], environment={})" % str(ROOT)
        )
        child = subprocess.Popen(
            [sys.executable, "-c", text, str(self.folder / "killed")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.assertEqual(child.stdout.readline().strip(), "here")
        child.kill()
        child.communicate()
        self.assertFalse((self.folder / "killed").exists())
        with contextlib.closing(jobqueue.JobQueue(self.folder / "killed", environment={})) as queue:
            self.assertTrue(queue.settings.get("NbMaxWorker"))

    def test_the_wait_helper_gives_up(self):
        with self.assertRaisesRegex(AssertionError, "the moon"):
            wait_until(lambda: False, 0.01, "the moon")
