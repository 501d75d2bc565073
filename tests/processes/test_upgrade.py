"""A database of each older version, with rows in every table, is upgraded and goes on."""

import contextlib
import hashlib
import json
import re
import sqlite3
import time
import unittest
import urllib.request

import jobqueue
from tests.helpers.support import Site, quick_hash, wait_until

NEWEST = len(jobqueue.MIGRATIONS)
RELEASED = 4  # entries of MIGRATIONS that databases of others were made with
RELEASED_DIGEST = "8a26bb47480ab7f1b0b6e3b67b46f3a6f90ed2bbae71a01639ab1b15760182d6"
TASKS = """
from jobqueue import task

@task
def work(n: int = 0):
    return 2 * n
"""
TOKEN = "jq_0123456789abcdef0123456789abcdef"


def task_row(number, status, now, **more):
    """A task as every version stores it."""
    return {"id": number, "owner_id": 2, "queue": "default", "function": "work",
            "arguments": '{"n":%d}' % number, "status": status, "priority": 0, "turn": number,
            "max_retries": 1, "retries_left": 1, "retry_delay": 0, "retry_backoff": 2,
            "timeout": 60, "on_crash": "retry", "created_at": now - 5000, **more}


def row(since, table, **values):
    """A row of a table, and the version from which on databases may have it."""
    return since, table, values


def old_rows(now):
    """[(first version that has it, table, row)]: all that may have been stored."""
    ended = {"finished_at": now - 4000, "started_at": now - 4001, "attempts": 1, "claim": "c0"}
    running = {"attempts": 1, "claim": "c1", "worker_id": 1, "started_at": now - 900,
               "lease_boot": "an earlier one", "lease_monotonic": 5, "lease_wall": now - 840}
    late = {"run_at": now - 60, "turn": int((now - 60) * 1000)}
    later = {"run_at": now + 90000, "turn": int((now + 90000) * 1000)}
    schedule = {"owner_id": 2, "source": "person", "function": "work", "options": "{}",
                "zone": "UTC", "start": now - 7300, "catch_up": "once", "overlap": "allow",
                "created_at": now - 7300, "rule": "every 1h", "next_from": now - 3700}
    return [
        row(1, "user", id=1, name="ana", password=quick_hash("x"), role="admin", created_at=5),
        row(1, "user", id=2, name="bob", password=quick_hash("x"), role="user", created_at=5),
        row(1, "user", id=3, name="zoe", password=quick_hash("x"), role="user", created_at=5,
            disabled=1),
        row(1, "session", digest="d1", user_id=2, created_at=now, seen_at=now,
            expires_at=now + 9000),
        row(1, "token", digest=jobqueue.digest(TOKEN), user_id=2, name="laptop", scope="user",
            created_at=now),
        row(1, "throttle", subject="user:eve", failures=7, failed_at=now, until=now + 60),
        row(1, "setting", name="NbMaxWorker", value="1"),
        row(1, "setting", name="linger", value="1"),
        row(1, "function", name="work", title="work", description="", schema="{}", options="{}",
            who="user"),
        row(1, "queue", name="held", paused=1, paused_by="ana", paused_at=now, paused_why="why not",
            max_running=2, created_at=now),
        row(1, "queue", name="default", rate_count=1000, rate_seconds=1, created_at=now),
        row(1, "worker", id=1, machine=jobqueue.machine_name(), boot=jobqueue.boot_id() or "",
            pid=2**22 + 5, lock="left.lock", lock_proven=1, mode="detached", state="busy",
            version="0.9", started_at=now - 999, seen_at=now - 900, lease_monotonic=5,
            lease_wall=now - 840),
        row(1, "task", **task_row(1, 0, now)),
        row(1, "task", **task_row(2, 1, now, **running)),
        row(1, "task", **task_row(3, 1, now, **running, cancel_requested=2)),
        row(1, "task", **task_row(4, 2, now, **ended, result="8")),
        row(1, "task", **task_row(5, 3, now, **ended, reason="error", error_type="E",
            error_message="oh")),
        row(1, "task", **task_row(6, 4, now, **ended)),
        row(1, "task", **task_row(7, 5, now, **late)),
        row(1, "task", **task_row(8, 5, now, **later)),
        row(1, "task", **task_row(9, 0, now, queue="held")),
        row(3, "task", **task_row(10, 6, now, after_failure="fail")),  # waits for 1
        row(3, "task", **task_row(11, 6, now, after_failure="run")),  # for 5, which just failed
        row(3, "task", **task_row(12, 0, now, queue="held", unique_key="k")),
        row(3, "task", **task_row(13, 3, now, **ended, reason="dependency", after_failure="fail")),
        row(3, "task", **task_row(14, 0, now, remove_on_success=1)),
        row(1, "activity", at=now, event="added", task_id=1, owner_id=2, function="work",
            queue="default"),
        row(1, "log", task_id=5, attempt=1, start=0, length=3, text="oh\n"),
        row(3, "task_key", owner_id=2, unique_key="k", task_id=12),
        row(3, "task_after", task_id=10, after_id=1),
        row(3, "task_after", task_id=11, after_id=5),
        row(3, "task_after", task_id=13, after_id=5, settled=2),
        row(3, "unsettled", task_id=5, status=3),
        row(3, "request", owner_id=2, key="once", digest="d", created_at=now,
            answer='{"ids":[1],"created":1}'),
        row(3, "schedule", **schedule, id=1, arguments='{"n":50}', next_at=now - 100),
        row(3, "schedule", **schedule, id=2, arguments='{"n":51}', paused=1, paused_by="bob"),
        row(3, "slot", schedule_id=1, at=now - 3700, task_id=4),
        row(3, "slot", schedule_id=1, at=now - 7300, message="not then"),
        row(4, "machine", name="another", boot="b", first_seen=now - 4e5, seen_at=now - 3e5),
    ]


def statements(script):
    """The statements of a script, as migrate() takes it apart."""
    return [statement for statement in script.split(";\n") if statement.strip()]


def make_old(path, version, rows):
    """A database as the jobqueue.py of that version made and filled it."""
    with contextlib.closing(sqlite3.connect(str(path), isolation_level=None)) as link:
        link.execute("PRAGMA page_size=1024")
        link.execute("PRAGMA journal_mode=WAL")
        for script in jobqueue.MIGRATIONS[:version]:
            for statement in statements(script):
                link.execute(statement)
        link.execute("PRAGMA user_version=%d" % version)
        for since, table, row in rows:
            if since <= version:
                link.execute(
                    "INSERT OR REPLACE INTO %s (%s) VALUES (%s)"
                    % (table, ", ".join(row), ", ".join("?" * len(row))),
                    tuple(row.values()),
                )
        tables = {
            name for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        return {name for name in tables - {"sqlite_sequence"}
                if not link.execute("SELECT 1 FROM %s LIMIT 1" % name).fetchone()}


class Upgrade(unittest.TestCase):
    def old_site(self, version):
        """A site whose data is of an older version, with what was stored."""
        site = Site(TASKS, users=False)
        self.addCleanup(site.close)
        jobqueue.JobQueue(site.data, environment={}).close()
        path = next(site.data.glob("jobqueue-*.db"))
        for old in site.data.glob("jobqueue-*.db*"):
            old.unlink()
        rows = [row for row in old_rows(time.time()) if row[0] <= version]
        self.assertEqual(
            make_old(path, version, rows), set(), "tables without rows: add some above"
        )
        path.chmod(0o600)
        (site.data / "locks" / "left.lock").touch()
        return site, rows

    def test_every_older_version_is_kept_whole_and_goes_on(self):
        for version in range(1, NEWEST):
            with self.subTest(version=version):
                site, rows = self.old_site(version)
                site.python("from jobqueue import JobQueue; JobQueue().close()")
                self.check_schema(site)
                self.check_rows(site, rows)
                self.check_work(site, version)
                self.check_people(site, version)

    def check_schema(self, site):
        """The same tables and indexes as in a new database, and nothing that is damaged."""
        new = Site(users=False)
        self.addCleanup(new.close)
        jobqueue.JobQueue(new.data, environment={}).close()
        asked = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
        self.assertEqual(*([tuple(row) for row in one.rows(asked)] for one in (site, new)))
        self.assertEqual(site.value("PRAGMA user_version"), NEWEST)
        self.assertEqual(site.value("PRAGMA integrity_check"), "ok")
        self.assertEqual(site.rows("PRAGMA foreign_key_check"), [])

    def check_rows(self, site, rows):
        """Each row is there as it was; task_key is not used any more."""
        for table, row in [one[1:] for one in rows if one[1] != "task_key"]:
            where = " AND ".join("%s IS ?" % name for name in row)
            found = site.value(
                "SELECT count(*) FROM %s WHERE %s" % (table, where), tuple(row.values())
            )
            self.assertEqual(found, 1, (table, row))

    def check_work(self, site, version):
        """What was to run runs, also what a dead worker held; what had ended or is held stays."""
        site.run("tick")
        done = [1, 2, 7] + ([10, 11] if version >= 3 else [])
        for number in done:
            task = site.wait(number)
            self.assertEqual((task["status"], task["result"]), ("succeeded", 2 * number), task)
        words = {
            row["id"]: jobqueue.STATUS_WORDS[row["status"]]
            for row in site.rows("SELECT * FROM task")
        }
        kept = {4: "succeeded", 5: "failed", 6: "cancelled", 8: "scheduled", 9: "pending"}
        kept.update({12: "pending", 13: "failed"} if version >= 3 else {})
        self.assertEqual({number: words.get(number) for number in kept}, kept)
        self.assertNotIn(3, words)  # it was being deleted
        self.assertEqual(site.json("show", 2)["crashes"], 1)
        if version >= 3:
            wait_until(
                lambda: not site.rows("SELECT 1 FROM task WHERE id=14"), what="the end of 14"
            )
            fired = site.rows("SELECT id FROM task WHERE schedule_id=1")
            self.assertEqual([site.wait(row["id"])["result"] for row in fired], [100])
            paused = {
                one["id"]: one["paused"] for one in site.json("schedule", "list")["schedules"]
            }
            self.assertEqual(paused, {1: False, 2: True})

    def check_people(self, site, version):
        """A token works; what failed can be retried, a key is in use, the numbers go on."""
        request = urllib.request.Request(
            site.start_server() + "api/tasks?limit=200", headers={"X-Api-Key": TOKEN}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            listed = {task["id"] for task in json.load(answer)["tasks"]}
        self.assertLessEqual({1, 2, 4, 5, 6, 7, 8, 9}, listed)
        self.assertEqual(site.run("log", 5).stdout, "oh\n")
        site.run("retry", 5)
        self.assertEqual(site.wait(5)["result"], 10)
        if version >= 3:
            self.assertEqual(
                site.add("work", "--unique-key", "k", "--owner", "bob", "--queue", "held"), 12
            )
        self.assertGreater(site.add("work", "--owner", "bob"), max(listed))
        self.assertEqual(int(site.run("settings", "NbMaxWorker").stdout), 1)
        site.stop_server()


class Migrations(unittest.TestCase):
    def test_a_migration_that_databases_were_made_with_is_never_changed(self):
        text = "".join(
            re.sub(r"--[^\n]*|\s+", "", script) for script in jobqueue.MIGRATIONS[:RELEASED]
        )
        self.assertEqual(hashlib.sha256(text.encode()).hexdigest(), RELEASED_DIGEST)

    def test_each_piece_of_a_migration_is_one_statement(self):
        for script in jobqueue.MIGRATIONS:
            for statement in statements(script):
                self.assertTrue(sqlite3.complete_statement(statement + "\n;"), statement)
                self.assertNotRegex(re.sub(r"--[^\n]*", "", statement), ";\\s*\\S", statement)


if __name__ == "__main__":
    unittest.main()
