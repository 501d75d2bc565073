"""What `check` says of the host, and backups."""

import ast
import errno
import io
import os
import shutil
import sqlite3
import stat
import time
import unittest
from contextlib import closing, redirect_stdout
from pathlib import Path
from string import Formatter
from unittest import mock

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import ROOT, TestCase
from tests.helpers.web import WebTestCase


class HostTestCase(TestCase):
    reached = None                      # how the page is, see visit()

    def look(self, name):
        """The Check of that name."""
        found = jobqueue.check_host(self.queue, self.reached).checks
        return next(check for check in found if check.name == name)

    def verdict(self, name, words=""):
        check = self.look(name)
        self.assertIn(words, check.text)
        return check.verdict

    def visit(self, **more):
        """From now on, the page is reached so."""
        self.reached = {"door": "cgi", "https": True, "host": "jobs.example", "base": "/my/queue/",
                        "client": "192.0.2.7", "trusted": False, "forwarded": False, **more}


class TestChecks(HostTestCase):
    def test_a_healthy_queue_has_nothing_bad(self):
        bad = [check.text for check in jobqueue.check_host(self.queue).checks if check.verdict == "bad"]
        self.assertEqual(bad, [])

    @about_sqlite("a damaged file")
    def test_a_damaged_database_is_bad(self):
        self.add_many("bob", 200)
        self.write("CREATE TABLE last (x)")
        self.queue.close()
        with open(self.database.path, "r+b") as file:
            file.seek(-3000, os.SEEK_END)
            file.write(b"\xff" * 1500)
        self.queue = self.another_queue()
        self.database = self.queue.database
        self.assertEqual(self.verdict("Database", "restore FILE with a backup"), "bad")

    @about_sqlite("its file is read through")
    def test_a_large_database_is_not_read_through_while_a_browser_waits(self):
        with mock.patch.object(jobqueue, "READ_ALL_BYTES", 1000), \
                mock.patch.object(self.database, "damage", side_effect=AssertionError):
            self.visit()
            self.verdict("Database", "too large to check")

    @about_sqlite("its file is read through")
    def test_looking_at_a_busy_database_is_not_damage(self):
        error = sqlite3.OperationalError("database is locked")
        with mock.patch.object(jobqueue.FileConnection, "value", side_effect=error), \
                self.assertRaises(jobqueue.Busy):
            self.database.damage()

    @about_sqlite("a copy of its file")
    def test_the_last_backup_is_told_and_its_age(self):
        self.assertEqual(self.verdict("Backup", "none yet"), "note")
        jobqueue.back_up(self.queue, self.folder / "copy.db")
        self.assertEqual(self.verdict("Backup", "copy.db"), "ok")
        self.clock.advance(8 * 86400)
        self.assertEqual(self.verdict("Backup", "copy.db"), "note")

    def test_a_full_disk_is_bad(self):
        room = mock.Mock(f_bavail=10, f_frsize=4096)
        with mock.patch.object(os, "statvfs", return_value=room):
            self.assertEqual(self.verdict("Disk", "0.0 GB"), "bad")

    @about_sqlite("rights of its file")
    def test_a_database_that_cannot_be_written_is_bad(self):
        with mock.patch.object(os, "access", return_value=False):
            self.assertEqual(self.verdict("Disk", "chmod u+w"), "bad")

    def test_a_quota_that_is_used_up_is_bad_although_the_disk_has_room(self):
        error = OSError(errno.EDQUOT, "Disk quota exceeded")
        with mock.patch.object(jobqueue, "create_lock", side_effect=error):
            self.assertEqual(self.verdict("Disk", "your quota is full"), "bad")

    def test_a_host_without_flock_is_a_note(self):
        with mock.patch.object(jobqueue.fcntl, "flock", side_effect=OSError(errno.ENOLCK, "No locks")):
            self.assertEqual(self.verdict("Disk", "this disk has no file locks"), "note")
        self.assertEqual(list((self.database.folder / "locks").iterdir()), [])

    def test_a_code_that_still_lies_there_is_told(self):
        self.assertEqual(self.verdict("Admin", "users"), "ok")
        (self.folder / "data" / "setup-code.txt").write_text("a code that is long enough")
        self.assertEqual(self.verdict("Admin", "setup-code.txt"), "note")

    def test_a_python_without_scrypt_and_passwords_kept_without_it_are_bad(self):
        self.write("UPDATE user SET password='pbkdf2$600000$00$00' WHERE name='bob'")
        self.assertEqual(self.verdict("Admin", "the password of bob "), "bad")
        with mock.patch.object(jobqueue, "knows_scrypt", lambda: False):
            self.assertEqual(self.verdict("Program", "use another Python"), "bad")

    def test_how_many_tasks_run_is_told(self):
        self.assertEqual(self.verdict("Tasks", "0 running"), "ok")
        self.add("bob")
        self.claim()
        self.assertEqual(self.verdict("Tasks", "1 running"), "ok")

    def test_a_running_task_is_told_with_its_lease(self):
        self.assertEqual(self.verdict("Tasks", "0 running"), "ok")
        self.add("bob")
        self.claim()
        self.assertEqual(self.verdict("Tasks", "1 running"), "ok")
        self.clock.advance(2 * self.database.lease_seconds + 10)
        self.assertEqual(self.verdict("Tasks", "no other worker takes the task over"), "bad")

    def test_machines_and_other_versions_on_them_are_told(self):
        self.assertEqual(self.verdict("Machines", "no worker runs"), "ok")
        self.live("service")
        self.assertEqual(self.verdict("Machines", "workers on machine-1: 1"), "ok")
        self.write("UPDATE worker SET machine='b2', version='0.9.0'")
        self.assertEqual(self.verdict("Machines", "but b2 has 0.9.0: copy the same files"), "note")

    def test_a_clock_that_is_not_the_databases_is_told(self):
        for seconds, words in ((61.0, "61 s ahead of the"), (-3600.0, "3600 s behind the")):
            with mock.patch.object(type(self.database), "clock_offset", seconds):
                self.assertEqual(self.verdict("Machines", words), "note")

    def test_a_server_that_does_not_wait_for_its_copy_or_keeps_old_rows_is_told(self):
        for lags, holder, verdict in ((0, None, "ok"), (1, None, "note"), (0, "process 7", "note")):
            said = {"version": "15.1", "lags": lags, "holder": holder}
            with mock.patch.object(self.database, "journal", None), \
                    mock.patch.object(self.database, "server_facts", lambda said=said: said, create=True):
                self.assertEqual(self.verdict("Journal", "PostgreSQL 15.1"), verdict)
                self.assertEqual(self.verdict("Backup", "jobqueue.py export FILE"), "note")

    def test_a_clock_that_was_put_back_is_bad(self):
        self.add("bob")
        self.assertEqual(self.verdict("Tasks"), "ok")
        with mock.patch.object(self.clock, "now", return_value=self.clock.now() - 7200):
            self.assertEqual(self.verdict("Tasks", "7200 s behind"), "bad")

    def test_data_inside_a_web_folder_is_a_note_and_bad_without_its_lock(self):
        self.assertEqual(self.verdict("Exposure", "not inside"), "note")
        inside = self.folder / "public_html" / "data"
        inside.mkdir(parents=True)
        with mock.patch.object(self.database, "folder", inside):
            self.assertEqual(self.verdict("Exposure", "has no .htaccess"), "bad")
            (inside / ".htaccess").write_text("Require all denied")
            self.assertEqual(self.verdict("Exposure", "inside a web folder"), "note")

    def test_what_a_browser_could_fetch_is_bad_and_nothing_is_ok(self):
        jobqueue.store_exposure(self.queue, ["data/canary.txt"])
        self.assertEqual(self.verdict("Exposure", "data/canary.txt"), "bad")
        jobqueue.store_exposure(self.queue, [])
        self.assertEqual(self.verdict("Exposure", "no private file"), "ok")

    def test_tasks_py_that_somebody_else_is_just_reading_is_waited_for(self):
        waits = []
        self.queue.catalogue.refresh = lambda wait=False: waits.append(wait)
        jobqueue.check_host(self.queue)
        self.assertEqual(waits, [True])

    def test_an_old_task_that_waits_is_a_note(self):
        self.add("bob")
        self.assertEqual(self.verdict("Tasks", "has waited 0 min"), "ok")
        self.clock.advance(7200)
        self.assertEqual(self.verdict("Tasks", "has waited 120 min"), "note")

    @about_sqlite("its log")
    def test_a_log_that_nothing_writes_back_is_bad(self):
        self.assertEqual(self.verdict("Journal", "WAL"), "ok")
        with mock.patch.object(self.database, "wal_bytes", return_value=20 << 20):
            self.assertEqual(self.verdict("Journal", "20 MB"), "bad")


@about_sqlite("what can be wrong with its file")
class TestBrokenInstallations(HostTestCase):
    """Each is a line that says what to do, and never a traceback."""

    def broken(self, name, words):
        self.queue.close()
        with mock.patch.object(jobqueue, "HOME", self.home):
            report, queue = jobqueue.check_installation()
        self.assertIsNone(queue)
        found = {check.name: check for check in report.checks}
        self.assertEqual(found[name].verdict, "bad", found[name].text)
        self.assertIn(words, found[name].text)
        self.assertLessEqual({"Program", "Disk"}, set(found))

    def setUp(self):
        super().setUp()
        self.home = self.folder
        for name in ("jobqueue.py", "worker.py"):
            shutil.copy(ROOT / name, self.home)
        (self.home / "static").mkdir()
        for name in ("index.html", "api.json"):
            shutil.copy(ROOT / "static" / name, self.home / "static")

    def test_no_data_folder_yet_is_a_note_and_none_is_made(self):
        shutil.rmtree(self.database.folder)
        with mock.patch.object(jobqueue, "HOME", self.home):
            report, queue = jobqueue.check_installation()
        self.assertIsNone(queue)
        [said] = [check.text for check in report.checks if check.name == "Data"]
        self.assertIn("there is none yet", said)
        self.assertFalse(self.database.folder.exists())

    def test_a_password_of_the_database_that_others_can_read(self):
        address = self.home / "address"
        address.mkdir()
        (address / "data").write_text("postgresql://me:secret@db.example.org/jobqueue\n")
        for mode, verdict in ((0o600, "ok"), (0o644, "bad")):
            (address / "data").chmod(mode)
            with mock.patch.object(jobqueue, "HOME", address):
                self.assertEqual(self.look("Data").verdict, verdict)

    def test_an_empty_file_called_data(self):
        shutil.rmtree(self.database.folder)
        (self.home / "data").write_text("")
        self.broken("Data", "must have the data folder's path")

    def test_a_file_called_data_that_holds_no_text(self):
        shutil.rmtree(self.database.folder)
        (self.home / "data").write_bytes(b"\xff\xfe\0")
        self.broken("Data", "cannot be read as a folder's path")

    def test_a_data_folder_that_may_not_be_looked_at(self):
        with mock.patch.object(Path, "is_file", side_effect=PermissionError(13, "Permission denied")):
            found = {check.name: check for check in jobqueue.check_installation()[0].checks}
        self.assertEqual(found["Data"].verdict, "bad")
        self.assertIn("cannot be read as a folder's path", found["Data"].text)

    def test_a_link_that_leads_nowhere(self):
        shutil.rmtree(self.database.folder)
        (self.home / "data").symlink_to(self.home / "nowhere")
        self.broken("Database", "cannot be read")

    def test_a_setting_of_the_environment_that_is_none(self):
        with mock.patch.dict(os.environ, {"JOBQUEUE_NBMAXWORKER": "many"}):
            self.broken("Settings", "NbMaxWorker must be")

    def test_data_of_another_user(self):
        with mock.patch.object(os, "getuid", return_value=os.getuid() + 1):
            self.broken("Database", "belongs to the user")

    def test_a_table_that_is_damaged_hides_no_other_line(self):
        page = self.database.value("SELECT rootpage FROM sqlite_master WHERE name='worker'")
        self.queue.close()
        with self.database.path.open("r+b") as file:
            file.seek((page - 1) * 1024)
            file.write(b"Z" * 1024)
        queue = self.another_queue()
        with mock.patch.object(jobqueue, "HOME", self.home), redirect_stdout(io.StringIO()) as out, \
                mock.patch.object(jobqueue, "JobQueue", lambda *_: queue):
            self.assertEqual(jobqueue.main(["check", "--quick"]), 1)
        self.assertRegex(out.getvalue(), "bad +Database .*is damaged")
        self.assertRegex(out.getvalue(), "ok +Program")

    def test_a_database_that_is_none(self):
        self.queue.close()
        self.database.path.write_bytes(b"not a database" * 1000)
        self.broken("Database", "put a backup in its place")

    def test_a_newer_schema(self):
        self.write("PRAGMA user_version=999")
        self.broken("Database", "Copy the newer jobqueue.py")

    def test_a_journal_file_that_is_gone(self):
        next(self.database.folder.glob("journal*.json")).unlink()
        self.broken("Database", "missing or unreadable")

    def test_files_that_are_missing_or_of_another_version(self):
        self.write("PRAGMA user_version=999")
        (self.home / "worker.py").unlink()
        self.broken("Program", "missing, or of another version: worker.py")
        (self.home / "worker.py").write_text('VERSION = "0.9.0"\n')
        self.broken("Program", "missing, or of another version: worker.py")
        shutil.rmtree(self.home / "static")
        self.broken("Program", "worker.py, static/index.html")

    def test_what_cannot_be_looked_at_is_said_and_the_rest_is_looked_at(self):
        with mock.patch.object(jobqueue, "read_text", side_effect=RuntimeError("no file")):
            self.assertEqual(self.verdict("Program", "RuntimeError: no file"), "bad")
            self.assertEqual(self.verdict("Journal"), "ok")


class TestFindings(HostTestCase):
    """The table of what can be wrong."""

    def found(self):
        """{code: the names of what was seen} of all that the program finds."""
        tree = ast.parse((ROOT / "jobqueue.py").read_text("utf-8"))
        found = {}
        for call in ast.walk(tree):
            name = getattr(call, "func", None) and getattr(call.func, "id", "")
            if name in ("Finding", "_schedule_finding") and (
                    isinstance(call.args[0], (ast.Constant, ast.IfExp))):
                seen = {one.arg for one in call.keywords} | ({"name"} if name != "Finding" else set())
                codes = [one.value for one in ast.walk(call.args[0])
                         if isinstance(one, ast.Constant) and one.value in jobqueue.FINDINGS]
                self.assertTrue(codes, ast.dump(call))
                found.update(dict.fromkeys(codes, seen))
        return found

    def test_each_row_is_found_somewhere_with_what_it_is_filled_with(self):
        found = self.found()
        self.assertEqual(set(found), set(jobqueue.FINDINGS))
        for code, row in jobqueue.FINDINGS.items():
            topic, verdict, texts = row.topic, row.verdict, row[2:6]
            places = {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}
            self.assertLessEqual(places, found[code], code)
            self.assertIn(topic, {"", *jobqueue.HOST_TOPICS, *jobqueue.VISIT_TOPICS, *jobqueue.TOPICS})
            self.assertIn(verdict, ("bad", "note", "ok"))
            self.assertEqual(bool(row.service_code), bool(row.service_text), code)
            self.assertNotRegex("".join(texts[1:2]), r"^\w+ (it|something)\b", "the advice tells it alone")

    def test_what_is_bad_is_what_comes_next(self):
        def next_of(*codes):
            seen = dict.fromkeys("addresses file why name home names".split(), "x")
            findings = [jobqueue.Finding(code, **seen) for code in codes]
            return jobqueue.next_step(jobqueue.Report([], findings))

        self.assertEqual(next_of("no_admin", "files_mixed"), "Next: copy all files of one version")
        self.assertIn("make the first admin", next_of("locks_missing", "no_admin", "samples"))
        self.assertEqual(next_of("scrypt_missing", "no_admin"), "Next: fix the bad findings")
        self.assertEqual(next_of("locks_missing"), "No action is needed.")


class TestHostFiles(HostTestCase):
    def files(self, **visit):
        if visit:
            self.visit(**visit)
        return {file["name"]: file["text"] for file in jobqueue.host_files(self.queue, self.reached)}

    def test_every_start_up_file_is_there_with_our_paths_and_no_example_left(self):
        found = self.files(door="cgi")
        there = {path.name for path in (ROOT / "static" / "hosts").iterdir()}
        self.assertEqual(set(found), there - {"README.md"})
        titles = [file["title"] for file in jobqueue.host_files(self.queue, self.reached)]
        self.assertEqual(len(set(titles) - set(found)), len(found))   # as no other
        self.assertIn("Start file for Passenger", titles)
        for name, text in found.items():
            for example in ("/home/me", "example.org", "/jq", "ser=me", 'FOLDER = ""', "usr/bin/env"):
                self.assertNotIn(example, text, name)
        self.assertIn("%s/worker.py" % jobqueue.HOME, found["crontab"])
        self.assertIn("https://jobs.example/my/queue/tick?token=TOKEN", found["crontab"])
        self.assertTrue(found["jobqueue.cgi"].startswith("#!/"))

    def test_the_files_are_still_programs(self):
        for name, text in self.files(door="cgi").items():
            if name.endswith((".py", ".cgi")):
                compile(text, name, "exec")

    def test_a_folder_with_a_space_in_its_name_is_quoted_where_a_shell_reads_it(self):
        with mock.patch.object(jobqueue, "HOME", Path("/home/ana/my jobs")):
            found = self.files(door="server")
        self.assertIn("'/home/ana/my jobs/worker.py' >/dev/null", found["crontab"])
        self.assertIn("\nWorkingDirectory=/home/ana/my jobs\n", found["jobqueue.service"])

    def test_crons_lines_come_first(self):
        for door in jobqueue.DOORS:
            self.assertEqual(list(self.files(door=door))[:2], ["crontab", "apache.conf"])

    def test_how_the_page_was_reached_is_said(self):
        self.visit(door="mod_wsgi embedded")
        self.assertEqual(self.verdict("Web server", "WSGIDaemonProcess"), "note")
        self.visit(https=False)
        self.assertEqual(self.verdict("Web server", "open the page by https"), "note")
        self.visit(https=False, client="127.0.0.1")
        self.assertEqual(self.verdict("Web server", "from this machine"), "ok")
        self.visit(https=False, client="127.0.0.1", trusted=True, forwarded=True)
        self.assertEqual(self.verdict("Web server", "open the page by https"), "note")
        self.visit(https=False, forwarded=True)
        self.assertEqual(self.verdict("Web server", "https to always"), "note")
        self.assertEqual(self.verdict("Web server", "trusted_proxies"), "note")
        self.visit(forwarded=True, trusted=True)
        self.assertEqual(self.verdict("Web server"), "ok")


class TestWhoComes(HostTestCase):
    def said(self):
        return "\n".join(check.text for check in jobqueue.check_host(self.queue).checks)

    def test_a_queue_without_anything_waits_for_visitors(self):
        self.assertEqual(self.verdict("Cron", "no cron has come"), "note")
        self.assertIn("wait until a page is opened", self.said())

    def test_where_no_worker_may_start_that_is_said(self):
        self.change_settings(NbMaxWorker=0)
        self.assertEqual(self.verdict("Workers", "no task is run"), "note")

    def test_a_cron_counts_as_long_as_it_comes(self):
        for _ in range(4):
            self.clock.advance(900)
            self.queue.tick.run("cron")
        self.assertIn("due tasks and schedules are checked every 15 minutes", self.said())
        self.assertEqual(self.verdict("Cron", "cron came last at"), "ok")
        self.clock.advance(2 * 3600)
        self.assertIn("wait until a page is opened", self.said())
        self.assertEqual(self.verdict("Cron", "cron came last at"), "note")

    def test_a_service_that_is_not_there_is_bad(self):
        self.change_settings(worker_mode="service")
        self.assertEqual(self.verdict("Workers", "No service runs"), "bad")
        self.live("service", proven=False, pid=1)
        self.assertEqual(self.verdict("Workers", "service"), "ok")
        self.assertIn("checked every 2 seconds", self.said())


class TestKindsOfHosts(HostTestCase):
    """The kinds of the handbook's table, made up by what is found on them."""

    def be(self, door, worker=None, mode="auto", cron=None, address=None, **more):
        """What is looked at is as on such a host; what it then says."""
        self.visit(door=door)
        jobqueue.store_exposure(self.queue, [])
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, "backup", {"at": self.clock.now(), "path": "x"})
        self.change_settings(worker_mode=mode)
        if self.database.journal:
            self.database.journal = "truncate" if more.get("network") else "wal"
        if more.get("service"):
            self.live("service", proven=False, pid=1)
        if more.get("resident"):
            self.queue.tick.run("server")
        for source, period in (("cron", cron), ("address", address)):
            for _ in range(4 if period else 0):
                self.clock.advance(period)
                self.queue.tick.run(source)
        for _ in range(2 if worker == "dies" else 0):
            with self.database.transaction() as transaction:
                self.queue.workers.reserve(transaction, "detached")
            self.clock.advance(jobqueue.STARTING_SECONDS + 1)
            self.clean()
            self.clock.advance(1)
        report = jobqueue.check_host(self.queue, self.reached)
        return "\n".join([check.text for check in report.checks] + [jobqueue.next_step(report)])

    def says(self, kind, *words):
        said = self.be(**kind)
        for word in words:
            self.assertIn(word, said)

    def test_a_panel_with_passenger(self):
        self.says({"door": "passenger", "worker": "lives", "cron": 900}, "Passenger, which stops it",
                  "whenever there is work", "every 15 minutes", "No action is needed")

    def test_cgi_where_workers_live(self):
        self.says({"door": "cgi", "worker": "lives"}, "CGI, a new process", "whenever there is work",
                  "wait until a page is opened", "a line for cron")

    def test_cgi_where_persistent_processes_are_ended_and_cron_works(self):
        self.says({"door": "cgi", "worker": "dies", "cron": 600}, "Cron works on the tasks",
                  "every 10 minutes", "No action is needed")

    def test_an_hourly_cron_and_a_network_folder(self):
        self.says({"door": "cgi", "worker": "dies", "cron": 3600, "network": True},
                  "checked every hour")

    def test_a_cron_that_only_calls_addresses(self):
        self.says({"door": "cgi", "worker": "dies", "address": 300},
                  "the tick address is called", "every 5 minutes", "No action is needed")

    def test_an_always_on_task_on_a_shared_file_server(self):
        kind = {"door": "uwsgi", "mode": "service", "network": True}
        self.says({**kind, "service": True}, "uWSGI", "service. ", "checked every 2 seconds",
                  "No action is needed")

    def test_an_always_on_task_that_is_not_there(self):
        self.says({"door": "uwsgi", "mode": "service"}, "keep worker.py --service running")

    def test_a_free_account_with_neither_cron_nor_processes(self):
        self.says({"door": "uwsgi", "worker": "dies", "network": True}, "while this page is open",
                  "wait until a page is opened", "or the tick address")

    def test_a_cron_that_was_chosen_and_does_not_come(self):
        self.says({"door": "cgi", "mode": "cron"}, "cron. ", "a line for cron")

    def test_a_shell_and_a_server(self):
        self.says({"door": "server", "worker": "lives", "resident": True}, "built-in server",
                  "whenever there is work", "checked every 2 seconds", "No action is needed")

    def test_apache_with_mod_wsgi_and_a_cron_every_minute(self):
        self.says({"door": "mod_wsgi daemon", "worker": "lives", "cron": 60}, "mod_wsgi",
                  "checked every minute")


class TestSampleTask(HostTestCase):
    def test_its_state_is_told_and_a_failure_is_a_finding(self):
        self.assertEqual(self.verdict("Worker"), "ok")
        task = jobqueue.add_sample(self.queue, self.owner_id("ana"))
        self.assertEqual((task["function"], task["status"], len(self.started)),
                         (jobqueue.SAMPLE_FUNCTION, "pending", 1))
        self.assertEqual(self.verdict("Worker", "the sample task 1: pending"), "ok")
        self.run_one("fail", None, "ValueError", "x")
        self.assertEqual(self.verdict("Worker", "the sample task 1 failed"), "note")
        self.queue.actions.delete(1)
        self.assertEqual(self.verdict("Worker"), "ok")


@about_sqlite("a copy of its file")
class TestBackup(HostTestCase):
    def setUp(self):
        super().setUp()
        self.target = self.folder / "copy.db"

    def count(self, path):
        with closing(sqlite3.connect(path)) as link:
            self.assertEqual(link.execute("PRAGMA integrity_check").fetchone()[0], "ok")
            return link.execute("SELECT count(*) FROM task").fetchone()[0]

    def refuse(self, target, words):
        with self.refused(jobqueue.SetupError, words):
            jobqueue.back_up(self.queue, target)

    def test_it_holds_what_was_there_and_only_the_owner_can_read_it(self):
        self.add_many("bob", 30)
        jobqueue.back_up(self.queue, self.target)
        self.assertEqual(self.count(self.target), 30)
        self.assertEqual(stat.S_IMODE(self.target.stat().st_mode), 0o600)
        self.assertEqual(list(self.folder.glob("copy.db?*")), [])

    def test_a_name_that_would_stop_everything_is_refused(self):
        with self.refused(jobqueue.SetupError, "would be a second database: choose another name"):
            jobqueue.back_up(self.queue, self.database.folder / "jobqueue-copy.db")
        self.assertEqual(jobqueue.find_database(self.database.folder), self.database.path)

    def test_an_older_backup_is_replaced(self):
        for wanted in (1, 2):
            self.add("bob")
            jobqueue.back_up(self.queue, self.target)
            self.assertEqual(self.count(self.target), wanted)

    def test_nothing_else_is_overwritten(self):
        self.target.write_text("my only poem")
        self.refuse(self.target, "is no backup")
        self.assertEqual(self.target.read_text(), "my only poem")
        self.refuse(self.folder, "s a directory")
        self.refuse(self.database.path, "the database itself")
        (self.folder / "link").symlink_to(self.database.path)
        self.refuse(self.folder / "link", "the database itself")
        self.refuse(self.folder / "nowhere" / "copy.db", "No such file")

    def test_a_copy_that_is_damaged_is_not_kept(self):
        jobqueue.back_up(self.queue, self.target)
        before = self.target.read_bytes()
        broken = mock.patch.object(
            jobqueue.FileConnection, "copy_to", side_effect=jobqueue.StorageBroken("damaged"))
        with broken, self.refused(jobqueue.StorageBroken, "damaged"):
            jobqueue.back_up(self.queue, self.target)
        self.assertEqual(self.target.read_bytes(), before)

    def test_another_that_begins_meanwhile_and_fails_spoils_neither_the_first_nor_what_it_wrote(self):
        self.add_many("bob", 30)
        copy, other = self.database.copy_to, self.another_queue()

        def copy_while_another_begins(path):
            copy(path)
            broken = mock.patch.object(
                other.database, "copy_to", side_effect=jobqueue.StorageBroken("damaged"))
            with broken, self.refused(jobqueue.StorageBroken, "damaged"):
                jobqueue.back_up(other, self.target)

        with mock.patch.object(self.database, "copy_to", copy_while_another_begins):
            jobqueue.back_up(self.queue, self.target)
        self.assertEqual(self.count(self.target), 30)
        self.assertEqual(list(self.folder.glob("copy.db?*")), [])

    def test_what_a_killed_one_left_is_removed_by_one_to_the_same_file_a_day_later(self):
        word, now = jobqueue.random_token(8), time.time()
        names = {"copy.db.%s.part" % word, "copy.db.%s.part-journal" % word, "copy.db.my.part",
                 "other.db.%s.part" % word}
        for age, left in ((86000, names), (86500, {"copy.db.my.part", "other.db.%s.part" % word})):
            for name in names:
                (self.folder / name).write_text("half")
                os.utime(self.folder / name, (now - age, now - age))
            jobqueue.back_up(self.queue, self.target)
            self.assertEqual({path.name for path in self.folder.glob("*.part*")}, left)

    def test_a_restored_backup_goes_on_where_it_was(self):
        ids = self.add_many("bob", 3)
        running = self.claim()
        jobqueue.back_up(self.queue, self.target)
        self.end(running)
        self.add("bob")
        self.queue.close()
        for path in self.database.folder.glob("jobqueue-*.db*"):
            path.unlink()
        shutil.copy(self.target, self.database.path)
        queue = self.queue = self.another_queue()
        self.database = queue.database
        self.assertEqual([task["status"] for task in map(queue.get_json, ids)],
                         ["running", "pending", "pending"])
        self.clock.advance(61)
        self.tick(queue=queue)
        self.assertEqual(queue.get_json(ids[0])["status"], "pending")


class TestHostOverHttp(WebTestCase):
    def test_it_answers_where_no_process_can_be_started(self):
        with mock.patch.object(self.queue.interpreter, "path", side_effect=BlockingIOError(11, "no")):
            said = self.browser("ana").get("/api/host").json
        self.assertIn("python3", next(one["text"] for one in said["files"] if one["name"] == "crontab"))
        self.assertIn("no", next(one["text"] for one in said["checks"] if one["name"] == "Worker"))

    def test_an_admin_reads_what_check_says(self):
        reply = self.browser("ana").get("/api/host")
        self.check(reply, 200)
        names = [check["name"] for check in reply.json["checks"]]
        self.assertEqual(names, [*jobqueue.HOST_TOPICS, *jobqueue.TOPICS, *jobqueue.VISIT_TOPICS])

    def test_a_browsers_question_shows_how_the_page_is_reached(self):
        said = self.ana.get("/api/host", X_Forwarded_For="203.0.113.9").json
        checks = {one["name"]: one["text"] for one in said["checks"]}
        self.assertIn("a WSGI server", checks["Web server"])
        self.assertIn("its headers about them and about HTTPS are ignored", checks["Web server"])
        files = {one["name"]: one["text"] for one in said["files"]}
        self.assertIn("://jobs.example.org/", files["crontab"])

    def test_nothing_is_written_when_an_admin_looks_again(self):
        self.ana.get("/api/host")
        before = self.database.version_seen()
        self.ana.get("/api/host")
        self.assertEqual(self.database.version_seen(), before)

    def test_nobody_else_does(self):
        self.check(self.bob.get("/api/host"), 403)

    def test_what_an_admins_browser_could_fetch_is_kept_and_told_to_admins_only(self):
        said = self.ana.get("/api/host").json
        self.assertEqual((said["exposed"], said["looked_at"]), (None, None))
        address = said["canary"]["addresses"][0]
        self.check(self.ana.post("/api/host/exposure", {"exposed": [address, address]}), 204)
        said = self.ana.get("/api/host").json
        self.assertEqual((said["exposed"], said["looked_at"]), ([address], jobqueue.iso(self.clock.now())))
        self.assertEqual(self.ana.get("/api/session").json["exposed"], [address])
        self.assertEqual(self.bob.get("/api/session").json["exposed"], [])

    def test_only_the_addresses_that_were_named_can_be_exposed(self):
        for wrong in ({"exposed": ["data/other.txt"]}, {"exposed": "worker.py"}, {}, {"exposed": [1]}):
            self.check(self.ana.post("/api/host/exposure", wrong), 422)


class TestPrivateAddresses(TestCase):
    def addresses(self, folder, *places):
        return jobqueue.private_addresses(folder, *places)

    def test_they_are_relative_to_the_page_while_all_is_beside_the_program(self):
        self.assertEqual(self.addresses(jobqueue.HOME / "data"),
                         ["data/canary.txt", "worker.py"])

    def test_a_start_up_file_in_the_address_is_left_out(self):
        found = self.addresses(jobqueue.HOME / "data", "/jq/jobqueue.cgi")
        self.assertLessEqual({"data/canary.txt", "/jq/data/canary.txt", "/jq/worker.py"}, set(found))

    def test_a_web_folder_in_the_path_says_where_the_data_would_be(self):
        self.assertIn("/my%20site/data/canary.txt", self.addresses(Path("/home/me/public_html/my site/data")))
        self.assertIn("/data/canary.txt", self.addresses(Path("/srv/site/data"), "", "/srv/site"))
        self.assertEqual(self.addresses(Path("/srv/private")), ["worker.py"])


if __name__ == "__main__":
    unittest.main()
