"""The schema and the data folder while processes race for them, or are killed in between."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import jobqueue
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import ROOT, TestCase

setUpModule = needs_sqlite("how its file is made")

# A program whose schema has one more table; argv: data folder, seconds to pause inside.
NEWER = """
import sys, time
sys.path.insert(0, %r)
import jobqueue
jobqueue.SCHEMA_VERSION += 1
jobqueue.SCHEMA += "CREATE TABLE extra (n INTEGER);\\nINSERT INTO extra VALUES (1);"
old_run = jobqueue.FileConnection.run
def run(self, statement, values=()):
    result = old_run(self, statement, values)
    if "CREATE TABLE extra" in statement and float(sys.argv[2]):
        print("inside", flush=True)
        time.sleep(float(sys.argv[2]))
    return result
jobqueue.FileConnection.run = run
database = jobqueue.SqliteDatabase(sys.argv[1], patience=30)
print(database.value("PRAGMA user_version"), database.value("SELECT count(*) FROM extra"))
""" % str(ROOT)
NOW = jobqueue.SCHEMA_VERSION


class TestMigration(TestCase):
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

    def test_a_migration_is_applied_exactly_once_by_processes_that_race(self):
        children = [self.start() for _ in range(8)]
        said = [child.communicate(timeout=60)[0].strip() for child in children]
        self.assertEqual(said, ["%d 1" % (NOW + 1)] * 8)
        self.assertEqual(self.database.value("SELECT count(*) FROM extra"), 1)

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


class TestFolder(TestCase):
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
