"""A database that an older jobqueue.py made and filled is opened, and its work goes on."""

import contextlib
import sqlite3
import unittest

import jobqueue
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import ROOT, Site, TestCase, wait_until
from tests.helpers.web import Visitor

setUpModule = needs_sqlite("its older files")

TASKS = """
from jobqueue import external, task

@task
def work(n: int):
    return 2 * n

@task(who="admin")
def admins_only(n: int):
    return 2 * n

external("render", queue="renderers", n=int)
"""
OLD = ROOT / "tests" / "processes" / "schema_4.sql"
TOKEN = "jq_0123456789abcdef0123456789abcdef"
PASSWORD = "correct horse bob"
DROPPED = {"task_key", "machine"}


def rows_of(link, table):
    """All rows of a table, as dictionaries."""
    link.row_factory = sqlite3.Row
    return [dict(row) for row in link.execute("SELECT * FROM %s" % table)]


def everything(path):
    """{table: its rows} of a database."""
    with contextlib.closing(sqlite3.connect(str(path))) as link:
        names = [name for name, in link.execute(
            "SELECT name FROM sqlite_master WHERE type='table' AND name<>'sqlite_sequence'")]
        return {name: rows_of(link, name) for name in names}


def shape(path):
    """What the schema of a database says, in whatever order its columns came to be."""
    with contextlib.closing(sqlite3.connect(str(path))) as link:
        tables = {name: sorted(column[1:] for column in link.execute("PRAGMA table_info(%s)" % name))
                  for name, in link.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        others = link.execute("SELECT name, sql FROM sqlite_master WHERE type<>'table'").fetchall()
        return tables, sorted(others, key=str)


def make_old(path, more=""):
    """Write the old database, changed by further statements, to a file."""
    with contextlib.closing(sqlite3.connect(str(path), isolation_level=None)) as link:
        link.execute("PRAGMA page_size=1024")
        link.execute("PRAGMA journal_mode=WAL")
        link.executescript(OLD.read_text("utf-8") + more)
    path.chmod(0o600)


class TestUpgrade(unittest.TestCase):
    def setUp(self):
        self.site = Site(TASKS, users=False)
        self.addCleanup(self.site.close)
        jobqueue.JobQueue(self.site.data, environment={}).close()
        self.path = next(self.site.data.glob("jobqueue-*.db"))
        self.new_shape = shape(self.path)
        for old in self.site.data.glob("jobqueue-*.db*"):
            old.unlink()
        (self.site.data / "locks" / "left.lock").touch()

    def open(self):
        self.site.python("from jobqueue import JobQueue; JobQueue().close()")

    def test_every_row_is_there_as_it_was_and_the_schema_is_that_of_a_new_one(self):
        make_old(self.path)
        before = everything(self.path)
        self.assertEqual([name for name, rows in before.items() if not rows], [])
        self.open()
        after = everything(self.path)
        for table, rows in before.items():
            if table in DROPPED:
                self.assertNotIn(table, after)
                continue
            for old in rows:
                if table == "setting" and old["name"].startswith("."):
                    continue            # they are state, or were learnt by rules of their own
                self.assertTrue(any(old.items() <= new.items() for new in after[table]), (table, old))
        self.assertIn("catalogue", [row["name"] for row in after["state"]])
        self.assertEqual(shape(self.path), self.new_shape)
        self.assertEqual(self.site.value("PRAGMA user_version"), jobqueue.SCHEMA_VERSION)
        self.assertEqual(self.site.value("PRAGMA integrity_check"), "ok")
        self.assertEqual(self.site.rows("PRAGMA foreign_key_check"), [])

    def test_what_only_admins_may_was_asked_for_by_its_owner_if_that_is_one(self):
        make_old(self.path)
        self.open()
        found = self.site.rows("SELECT id, admin_id FROM task WHERE admin_id IS NOT NULL")
        self.assertEqual([tuple(row) for row in found], [(13, 1)])

    def test_attempts_that_ran_no_function_are_known(self):
        make_old(self.path)
        self.open()
        found = self.site.rows("SELECT id, put_backs FROM task WHERE put_backs>0")
        self.assertEqual([tuple(row) for row in found], [(4, 2)])

    def test_what_others_ended_and_nobody_noticed_is_made_up_for(self):
        make_old(self.path, "UPDATE task SET status=4 WHERE id=10;")
        self.open()
        found = self.site.rows("SELECT task_id, status FROM unsettled ORDER BY task_id")
        self.assertEqual([tuple(row) for row in found], [(18, 2), (20, 2)])
        self.assertEqual(self.site.rows("SELECT 1 FROM task WHERE unique_key IS NOT NULL"), [])

    def test_work_goes_on(self):
        make_old(self.path)
        self.site.run("tick")
        for number in (4, 5, 7, 8, 9, 13, 15, 16, 19, 21):
            task = self.site.wait(number)
            self.assertEqual((task["status"], task["result"]),
                             ("succeeded", 2 * task["arguments"]["n"]), task)
        wait_until(lambda: not self.site.rows("SELECT 1 FROM task WHERE id IN (11, 17)"),
                   what="the end of what was to be removed")
        kept = {1: "succeeded", 2: "failed", 3: "cancelled", 6: "failed", 10: "pending",
                12: "scheduled", 14: "pending", 18: "succeeded", 20: "succeeded"}
        self.assertEqual({number: self.site.json("show", number)["status"] for number in kept}, kept)
        self.assertEqual([self.site.json("show", number)["crashes"] for number in (16, 15)], [1, 0])
        self.assertEqual({self.site.wait(number)["status"] for number in (22, 23)}, {"succeeded"})
        fired = self.site.rows("SELECT id FROM task WHERE schedule_id=1")
        self.assertEqual({self.site.wait(row["id"])["result"] for row in fired}, {100})
        self.assertGreater(len(fired), 1)
        paused = {one["id"]: one["paused"] for one in self.site.json("schedule", "list")["schedules"]
                  if one["source"] == "person"}
        self.assertEqual(paused, {1: False, 2: True})

    def test_people_and_programs_find_what_is_theirs(self):
        make_old(self.path)
        address = self.site.start_server()
        listed = Visitor(address).get("/api/tasks?limit=200", X_Api_Key=TOKEN).json
        self.assertLessEqual({1, 2, 3, 6, 12, 14, 18}, {task["id"] for task in listed["tasks"]})
        person = Visitor(address).log_in("bob", PASSWORD).get("/api/session").json
        self.assertEqual(person["user"], {"name": "bob", "role": "user", "email": None, "summary": None})
        self.assertEqual(self.site.run("log", 2).stdout, "oh\n")
        self.site.run("retry", 2)
        self.assertEqual(self.site.wait(2)["result"], 4)
        self.assertEqual(self.site.add("work", "--unique-key", "nightly", "--owner", "ana",
                                       "--queue", "held", n=1), 10)
        self.assertGreater(self.site.add("work", "--owner", "bob", n=1), 24)
        self.assertEqual(int(self.site.run("settings", "NbMaxWorker").stdout), 1)


class TestStatements(TestCase):
    def test_a_script_is_taken_apart_where_its_statements_end(self):
        script = """
            -- one; two
            INSERT INTO t VALUES (';
            ');
            CREATE TRIGGER a AFTER DELETE ON t BEGIN
                DELETE FROM u;
                DELETE FROM v;
            END;
            DROP TABLE t;"""
        self.assertEqual([part.split()[0] for part in jobqueue.statements(script)],
                         ["--", "CREATE", "DROP"])

    def test_a_schema_that_cannot_be_brought_over_is_refused_in_one_line(self):
        for version in (3, 5):
            self.write("PRAGMA user_version=%d" % version)
            with self.refused(jobqueue.SetupError, "schema version %d" % version) as caught:
                self.another_queue()
            self.assertNotIn("\n", caught.exception.detail)


if __name__ == "__main__":
    unittest.main()
