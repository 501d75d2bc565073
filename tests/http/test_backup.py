"""A backup over HTTP: for admins, whole, and nothing of it stays on the host."""
import contextlib
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jobqueue
from tests.helpers.web import WebTestCase


class TestDownload(WebTestCase):
    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "DISK_LOW_BYTES", 0)       # whatever disk the tests have
        self.add_many("bob", 30)

    def entries(self):
        return sorted(path.name for path in self.database.folder.rglob("*"))

    def count(self, body):
        """The tasks in it; it is checked as far as its kind allows."""
        if not self.database.journal:
            lines = [json.loads(line) for line in body.splitlines()]
            self.assertIn("end", lines[-1])
            return sum("task" in line for line in lines)
        path = self.folder / ("got " + jobqueue.random_token(4))
        path.write_bytes(body)
        with contextlib.closing(sqlite3.connect(path)) as link:
            self.assertEqual(link.execute("PRAGMA integrity_check").fetchone()[0], "ok")
            return link.execute("SELECT count(*) FROM task").fetchone()[0]

    def test_it_is_whole_and_saved_under_its_day_and_nothing_of_it_stays_here(self):
        before = self.entries()
        reply = self.ana.get("/api/backup")
        self.check(reply, 200)
        self.assertEqual(self.count(reply.body), 30)
        self.assertEqual(int(reply.headers["content-length"]), len(reply.body))
        self.assertRegex(reply.headers["content-disposition"],
                         r"^attachment; filename=backup-2027-01-15\.(db|jsonl)$")
        self.assertEqual(reply.headers["cache-control"], "no-store")
        self.assertEqual(self.entries(), before)

    def test_it_counts_as_a_backup_that_was_taken_from_here(self):
        self.ana.get("/api/backup")
        [text] = [one["text"] for one in self.ana.get("/api/host").json["checks"] if one["name"] == "Backup"]
        self.assertIn("(no longer there)", text)

    def test_it_is_for_admins_only(self):
        before = self.entries()
        self.assertEqual(self.bob.get("/api/backup").status, 403)
        self.assertEqual(self.nobody.get("/api/backup").status, 401)
        self.assertEqual(self.entries(), before)

    def test_without_room_it_is_507_and_nothing_is_left(self):
        before = self.entries()
        with mock.patch.object(jobqueue, "free_bytes", lambda _: 1000):
            reply = self.ana.get("/api/backup")
        self.check(reply, 507)
        self.assertIn("no room for a backup", reply.json["detail"])
        self.assertEqual(self.entries(), before)

    def test_of_many_at_once_each_gets_a_whole_one_or_is_told_to_come_again(self):
        before = self.entries()
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: self.ana.get("/api/backup"), range(8)))
        self.assertLessEqual({reply.status for reply in replies}, {200, 503})
        for reply in replies:
            if reply.status == 200:
                self.assertEqual(self.count(reply.body), 30)
        self.assertEqual(self.ana.get("/api/backup").status, 200)
        self.assertEqual(self.entries(), before)

    def test_a_head_makes_none_stay(self):
        before = self.entries()
        self.assertEqual(self.ana.ask("HEAD", "/api/backup").status, 200)
        self.assertEqual(self.entries(), before)
