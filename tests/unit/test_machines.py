"""Which machines use a data folder, how its database is written because of that, and who may read it."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import jobqueue
from jobqueue import MACHINE_SILENT_SECONDS, Journal, find_database, repair_journal
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import FakeClock, Site, TestCase, need

setUpModule = needs_sqlite("which machine may use its file")


class Machine:
    """What a process sees that runs on a machine: its name, its boot, its disk, since when it is up."""

    def __init__(self, name="a", boot="boot-a", kind="ext4", up=1e6):
        self.values = {"machine_name": name, "boot_id": boot, "file_system": kind, "up_seconds": up}

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for name, value in self.values.items():
            self.stack.enter_context(mock.patch.object(jobqueue, name, return_value=value))

    def __exit__(self, *_):
        self.stack.close()


class FolderCase(unittest.TestCase):
    """A data folder that machines use in turn, by one clock."""

    def setUp(self):
        room = Path(tempfile.mkdtemp(prefix="jobqueue test "))
        self.addCleanup(shutil.rmtree, room, ignore_errors=True)
        self.data = room / "data"
        self.clock = FakeClock()
        self.a, self.b = Machine(), Machine("b", "boot-b")

    def use(self, machine):
        """Open it as a process on that machine does, and sign; the Database."""
        with machine:
            database = jobqueue.open_database(self.data, self.clock, 1.0)
        self.addCleanup(database.close)
        return database

    def visit(self, machine):
        """Open and close it; how it is written."""
        with contextlib.closing(self.use(machine)) as database:
            return database.journal

    def refused(self, machine, words):
        with self.assertRaises(jobqueue.SetupError) as caught:
            self.use(machine)
        self.assertIn(words, caught.exception.detail)
        self.assertNotIn("\n", caught.exception.detail)
        return caught.exception.detail

    def journal(self):
        return Journal(find_database(self.data))

    def write(self, machine, database):
        with machine, database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", 1)

    def repair(self, machine, shared=False):
        with machine, mock.patch.object(jobqueue.Clock, "now", self.clock.now):
            return repair_journal(self.data, shared)


class TestTwoMachines(FolderCase):
    def test_one_machine_comes_and_goes(self):
        for _ in range(3):
            self.assertEqual(self.visit(self.a), "wal")
            self.clock.advance(1000)

    def test_a_second_living_one_is_refused_before_sqlite_opens_anything(self):
        self.visit(self.a)
        with mock.patch.object(jobqueue, "FileConnection", side_effect=AssertionError("it was opened")):
            said = self.refused(self.b, "in WAL mode by the machine a, which lets no other machine use it")
        self.assertIn("stop jobqueue on all of them and run on that machine: python3 jobqueue.py "
                      "check --repair shared",
                      said)

    def test_what_the_first_does_shows_that_it_lives(self):
        database = self.use(self.a)
        for _ in range(10):
            self.clock.advance(jobqueue.MACHINE_SIGN_SECONDS)
            with self.a:
                database.sign()
            self.refused(self.b, "no other machine use it")

    def test_being_refused_again_and_again_is_no_sign_of_life_of_the_first(self):
        self.visit(self.a)
        self.clock.advance(MACHINE_SILENT_SECONDS - 1)
        self.refused(self.b, "no other machine use it")
        self.clock.advance(2)
        self.assertEqual(self.visit(self.b), "wal")
        self.assertEqual(self.journal().machine, "b")

    def test_one_that_stood_still_while_another_took_over_writes_nothing_more(self):
        database = self.use(self.a)
        self.clock.advance(MACHINE_SILENT_SECONDS + 1)
        self.use(self.b)
        for _ in range(2):
            with self.assertRaises(jobqueue.StorageBroken) as caught:
                self.write(self.a, database)
            self.assertIn("in WAL mode now, by the machine b", caught.exception.detail)
        self.refused(self.a, "in WAL mode by the machine b")

    def test_a_process_goes_on_after_another_machine_was_refused(self):
        database = self.use(self.a)
        self.refused(self.b, "no other machine use it")
        self.write(self.a, database)

    def test_a_server_that_hears_of_a_repair_stops(self):
        database = self.use(self.a)
        Journal.decide(database.path, "truncate", self.clock.now())
        with self.assertRaises(jobqueue.StorageBroken) as caught:
            self.write(self.a, database)
        self.assertIn("in TRUNCATE mode now", caught.exception.detail)


class TestOneMachineUnderOtherNames(FolderCase):
    """Who comes back under another name or boot must get at its own queue, soon."""

    def test_a_container_that_starts_under_a_new_name_is_not_held_up(self):
        self.visit(self.a)
        self.assertEqual(self.visit(Machine("new-name", "boot-a")), "wal")

    def test_two_containers_of_one_machine_may_both_use_it(self):
        one, two = Machine("one", "boot-a"), Machine("two", "boot-a")
        first, second = self.use(one), self.use(two)
        for _ in range(2):
            self.write(one, first)
            self.write(two, second)

    def test_a_machine_that_was_restarted_is_not_held_up(self):
        self.visit(self.a)
        self.clock.advance(20)
        self.assertEqual(self.visit(Machine("a", "boot-2", up=12)), "wal")
        self.assertEqual(self.visit(Machine("new-name", "boot-2")), "wal")

    def test_two_machines_of_one_name_are_two(self):
        self.visit(self.a)
        self.clock.advance(20)
        self.refused(Machine("a", "boot-2", up=5000), "in WAL mode by the machine a")

    def test_a_restarted_machine_with_a_new_name_waits_until_the_old_one_is_surely_gone(self):
        self.visit(self.a)
        self.clock.advance(20)
        until = jobqueue.iso(self.clock.now() - 20 + MACHINE_SILENT_SECONDS)[11:19]
        self.refused(Machine("new-name", "boot-2"), "no other machine use it before %s UTC" % until)
        self.clock.advance(MACHINE_SILENT_SECONDS - 19)
        self.assertEqual(self.visit(Machine("new-name", "boot-2")), "wal")

    def test_a_clock_that_was_far_ahead_does_not_lock_anybody_out(self):
        self.visit(self.a)
        self.clock.wall -= 86400
        self.assertEqual(self.visit(self.b), "wal")

    def test_a_system_that_tells_no_boot_goes_by_its_name(self):
        self.visit(self.a)
        self.assertEqual(self.visit(Machine("a", "")), "wal")
        self.refused(Machine("b", ""), "no other machine use it")

    def test_a_journal_that_a_former_version_wrote_is_read(self):
        self.visit(self.a)
        path = self.journal().path
        path.write_text(json.dumps({"mode": "wal", "machine": "a", "refused": {"b": 1}}))
        os.utime(path, (self.clock.now(),) * 2)
        self.refused(self.b, "in WAL mode by the machine a, which lets no other machine use it")
        self.assertEqual(self.visit(self.a), "wal")
        self.assertEqual(self.visit(Machine("new-name", "boot-a")), "wal")


class TestBoxes(unittest.TestCase):
    """Real processes in boxes with a name and a boot of their own."""

    BOX = ('hostname "$1" && mount --bind "$2/boot" /proc/sys/kernel/random/boot_id '
           '&& shift 2 && exec "$@"')

    def setUp(self):
        need(os.getuid() == 0 and subprocess.call(["unshare", "-u", "-m", "true"]) == 0,
             "root and the right to make namespaces")
        self.site = Site(linger=1)
        self.addCleanup(self.site.close)

    def run_there(self, name, boot, *arguments):
        """(exit code, what it says on standard error) of one of our programs on such a machine."""
        (self.site.home.parent / "boot").write_text(boot + "\n")
        done = subprocess.run(
            ["unshare", "-u", "-m", "sh", "-c", self.BOX, "sh", name, str(self.site.home.parent),
             sys.executable, *arguments],
            cwd=self.site.home, env=self.site.environment, capture_output=True, text=True)
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stderr

    def look(self, name, boot):
        """What `list` says there."""
        return self.run_there(name, boot, "jobqueue.py", "list")

    def test_containers_come_in_and_other_machines_stay_out(self):
        boot = jobqueue.boot_id()
        self.assertEqual(self.look("container-1", boot), (0, ""))
        self.assertEqual(self.look("container-2", boot), (0, ""))
        code, said = self.look("elsewhere", "another-boot")
        self.assertEqual((code, said.count("\n")), (1, 1), said)
        self.assertIn("in WAL mode by the machine %s" % jobqueue.machine_name(), said)
        self.assertIn("check --repair", self.look("elsewhere", "another-boot")[1])

    def test_after_a_repair_two_machines_share_it_and_one_works_for_the_other(self):
        self.assertEqual(self.look("elsewhere", "another-boot")[0], 1)
        self.site.settings(NbMaxWorker=0)
        self.site.run("check", "--repair", "shared", "--quick", code=None)
        ids = [self.site.add("add", a=1, b=number) for number in range(3)]
        self.site.settings(NbMaxWorker=1, worker_mode="cron")
        self.assertEqual(self.run_there("elsewhere", "another-boot", "worker.py"), (0, ""))
        self.assertEqual([self.site.wait(task_id)["status"] for task_id in ids], ["succeeded"] * 3)
        self.assertEqual(self.site.value("SELECT count(*) FROM activity WHERE event='worker_started'"), 1)
        self.assertEqual(list(self.site.data.glob("*-wal")), [])


class TestRepair(FolderCase):
    def test_several_machines_share_it_once_that_is_said(self):
        self.visit(self.a)
        there = Machine("b", "boot-b", "nfs4")
        self.refused(there, "by the machine a, which is not safe on this file system (nfs4). If several")
        self.assertEqual(self.repair(self.a, shared=True), "truncate")
        for machine in (self.a, there, self.b, self.a):
            self.assertEqual(self.visit(machine), "truncate")
        self.assertEqual(self.repair(self.a), "wal")
        self.refused(there, "not safe on this file system")

    def test_where_no_file_systems_are_listed_it_is_refused_on_the_same_machine_too(self):
        self.visit(self.a)
        self.refused(Machine("a", "", "unknown"), "unknown")

    def test_it_is_refused_beside_a_machine_that_lives(self):
        self.visit(self.a)
        with self.assertRaises(jobqueue.SetupError):
            self.repair(self.b, shared=True)
        self.assertEqual(self.journal().mode, "wal")
        self.clock.advance(MACHINE_SILENT_SECONDS + 1)
        self.assertEqual(self.repair(self.b), "wal")

    def test_a_log_that_another_program_turned_off_is_done_without(self):
        self.visit(self.a)
        with contextlib.closing(sqlite3.connect(find_database(self.data))) as link:
            link.execute("PRAGMA journal_mode=DELETE")
        with contextlib.closing(self.use(self.a)) as database:
            self.assertEqual(database.journal, "truncate")
            with self.a, database.transaction(durable=False) as transaction:
                self.assertEqual(transaction.value("PRAGMA synchronous"), 2)
        self.repair(self.a)
        self.assertEqual(self.visit(self.a), "wal")

    def test_a_lost_journal_file_is_made_anew(self):
        self.visit(self.a)
        path = self.journal().path
        for spoil in (path.unlink, lambda: path.write_text("{")):
            spoil()
            self.refused(self.a, "check --repair")
            self.repair(self.a)
            self.assertEqual(self.visit(self.a), "wal")

    def test_a_database_restored_under_another_name_needs_a_new_journal(self):
        self.visit(self.a)
        find_database(self.data).rename(self.data / "jobqueue-restored.db")
        self.refused(self.a, "journal-restored.json is missing or unreadable")
        self.repair(self.a)
        self.assertEqual(self.visit(self.a), "wal")


class TestCreation(FolderCase):
    def make(self, kind="ext4"):
        with Machine(kind=kind):
            jobqueue.create_data_folder(self.data)
        return self.journal()

    def break_wal(self, what):
        real = jobqueue.FileConnection.value

        def value(link, statement, values=()):
            if statement == "PRAGMA journal_mode=WAL":
                if isinstance(what, Exception):
                    raise what
                return what
            return real(link, statement, values)
        return mock.patch.object(jobqueue.FileConnection, "value", value)

    def test_a_log_that_sqlite_silently_does_not_give_is_done_without(self):
        with self.break_wal("delete"):
            journal = self.make()
        self.assertEqual(journal.mode, "truncate")
        with contextlib.closing(self.use(self.a)) as database:
            self.assertEqual(database.value("PRAGMA journal_mode"), "truncate")

    def test_so_is_one_that_cannot_be_used(self):
        for text in ("disk I/O error", "locking protocol", "unable to open database file"):
            with self.subTest(text), self.break_wal(sqlite3.OperationalError(text)):
                self.assertEqual(self.make().mode, "truncate")
            self.assertEqual(list(self.data.glob("jobqueue-*-[ws]*")), [])
            shutil.rmtree(self.data)

    def test_a_full_disk_is_no_reason(self):
        with self.break_wal(sqlite3.OperationalError("database or disk is full")), \
                self.assertRaises(jobqueue.StorageFull):
            self.make()
        self.assertEqual(list(self.data.parent.iterdir()), [])


class TestRollbackMode(FolderCase):
    def test_no_log_is_ever_made_and_nothing_is_copied_back(self):
        machine = Machine(kind="nfs4")
        database = self.use(machine)
        for size in (10, 6 << 20):
            with machine, database.transaction(durable=False) as transaction:
                jobqueue.remember(transaction, ".x", "x" * size)
                self.assertEqual([path.name for path in self.data.glob("*-wal")], [])
        self.assertEqual(database.wal_bytes(), 0)
        self.assertEqual([path.name for path in self.data.glob("*-[ws][ah][lm]")], [])

    def test_nothing_of_sqlite_goes_to_the_folder_for_temporary_files(self):
        database = self.use(self.a)
        for link in (database._reader, database._writer):
            self.assertEqual(link.value("PRAGMA temp_store"), 2)

    def test_two_machines_see_what_the_other_wrote(self):
        one, two = Machine(kind="nfs4"), Machine("b", "boot-b", "nfs4")
        first, second = self.use(one), self.use(two)
        before = second.version_seen()
        self.write(one, first)
        self.assertNotEqual(second.version_seen(), before)
        self.assertEqual(jobqueue.recall(second, ".x"), 1)


class TestWhoMayRead(TestCase):
    """Nobody else on this machine reads anything, and an address of what matters cannot be guessed."""

    def everything(self):
        data = self.folder / "data"
        return [data, *data.rglob("*")]

    def open_to_others(self):
        return [path for path in self.everything() if path.stat().st_mode & 0o077]

    def look(self, name):
        return next(check for check in jobqueue.check_host(self.queue).checks if check.name == name)

    def use_all(self):
        """Make every file that the data folder ever holds."""
        data = self.folder / "data"
        self.queue.setup.code()
        jobqueue.canary_token(data)
        (jobqueue.TaskContext(7, "bob", 1, 0, "t", data, None, None).folder / "x").touch()
        os.close(jobqueue.create_lock(self.queue.workers.locks / "one")[0])
        self.queue.starter.start_helper("--send")
        self.queue.workers.log.write_text("x")
        with mock.patch.object(jobqueue, "WORKER_LOG_MAX_BYTES", 0):
            self.queue.starter.start_helper("--send")
        jobqueue.back_up(self.queue, data / "copy.db")

    def test_whatever_the_umask_all_is_for_the_owner_only(self):
        self.addCleanup(os.umask, os.umask(0))
        data = self.folder / "other"
        for kind in ("ext4", "nfs"):
            with mock.patch.object(jobqueue, "file_system", return_value=kind):
                self.queue = self.another_queue(data=data)
                self.database = self.queue.database
                self.folder = data.parent / kind
                self.folder.mkdir()
            self.queue.close()
            data.rename(self.folder / "data")
            with mock.patch.object(jobqueue, "file_system", return_value=kind):
                self.queue = self.another_queue()
            self.use_all()
            with self.queue.database.transaction() as transaction:
                jobqueue.remember(transaction, ".x", "x" * 100_000)
                inside = self.open_to_others()
            work = next((self.folder / "data").glob("work-*/7/x"))      # what a task wrote is the task's
            self.assertEqual([path for path in inside + self.open_to_others() if path != work], [])
            data = data.with_name("another")

    def test_a_folder_that_was_copied_with_open_modes_is_closed_again(self):
        self.use_all()
        self.queue.close()
        for path in self.everything():
            path.chmod(0o755 if path.is_dir() else 0o644)
        queue = self.another_queue()
        data = self.folder / "data"
        self.assertEqual([path for path in (data, *data.iterdir()) if path.stat().st_mode & 0o077], [])
        checks = {check.name: check for check in jobqueue.check_host(queue).checks}
        self.assertEqual(checks["Data"].verdict, "ok")

    def test_a_file_system_that_keeps_it_open_is_told(self):
        (self.folder / "data").chmod(0o755)
        checks = {check.name: check for check in jobqueue.check_host(self.queue).checks}
        self.assertEqual(checks["Data"].verdict, "bad")
        self.assertIn("chmod 700 '%s'" % (self.folder / "data"), checks["Data"].text)

    def test_a_program_that_is_just_replaced_is_nothing_bad(self):
        gone = self.folder / "tasks.py"
        with mock.patch.multiple(jobqueue, TASKS_FILE=gone, WORKER_FILE=gone), \
                mock.patch.object(Path, "exists", lambda path: True):
            self.assertNotEqual(self.look("Program").verdict, "bad")

    def test_a_parent_that_others_may_write_is_told(self):
        self.folder.chmod(0o777)
        check = self.look("Program")
        self.assertEqual(check.verdict, "bad")
        self.assertIn("chmod o-w '%s'" % self.folder, check.text)
        self.folder.chmod(stat.S_ISVTX | 0o777)
        self.assertNotEqual(self.look("Program").verdict, "bad")

    def test_a_web_server_that_runs_as_somebody_else_is_told(self):
        names = {33: "www-data", jobqueue.HOME.stat().st_uid: "ana"}
        with mock.patch("os.getuid", return_value=33), mock.patch.object(jobqueue, "user_name", names.get):
            check = self.look("Program")
        self.assertEqual(check.verdict, "note")
        self.assertIn("belong to ana, but it runs as www-data: run cron jobs and commands as www-data",
                      check.text)

    def test_what_is_not_empty_has_a_name_that_nobody_can_guess(self):
        self.use_all()
        word = re.search("[0-9a-f]{16}", self.database.path.name)[0]
        harmless = {"canary.txt", ".htaccess", "index.html", "copy.db"}
        data = self.folder / "data"
        self.assertEqual([path for path in data.rglob("*") if path.is_file() and path.stat().st_size
                          and word not in str(path.relative_to(data)) and path.name not in harmless], [])

    def test_the_canary_is_made_later_if_it_is_missing(self):
        data = self.folder / "data"
        (data / "canary.txt").unlink()
        token = jobqueue.canary_token(data)
        self.assertRegex(token, "^[0-9a-f]{32}$")
        self.assertEqual(jobqueue.canary_token(data), token)

    def test_the_canary_tells_nothing_of_the_names_of_others(self):
        token = jobqueue.canary_token(self.folder / "data")
        self.assertNotIn(token[:8], json.dumps([path.name for path in (self.folder / "data").iterdir()]))


if __name__ == "__main__":
    unittest.main()
