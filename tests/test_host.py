"""What `check` says of the host, and backups."""

import errno
import os
import shutil
import sqlite3
import stat
import unittest
from contextlib import closing
from pathlib import Path
from unittest import mock

import jobqueue
from tests.support import TestCase
from tests.web import WebTestCase


class HostTestCase(TestCase):
    def look(self, name):
        """The Check of that name."""
        return next(check for check in jobqueue.check_host(self.queue) if check.name == name)

    def verdict(self, name, words=""):
        check = self.look(name)
        self.assertIn(words, check.text)
        return check.verdict


class TestChecks(HostTestCase):
    def test_a_healthy_queue_has_nothing_bad(self):
        bad = [check.text for check in jobqueue.check_host(self.queue) if check.verdict == "bad"]
        self.assertEqual(bad, [])

    def test_a_damaged_database_is_bad(self):
        self.add_many("bob", 200)
        self.write("CREATE TABLE last (x)")
        self.queue.close()
        with open(self.database.path, "r+b") as file:
            file.seek(-3000, os.SEEK_END)
            file.write(b"\xff" * 1500)
        self.queue = self.another_queue()
        self.database = self.queue.database
        self.assertEqual(self.verdict("Database", "put a backup"), "bad")

    def test_a_large_database_is_not_read_through_while_a_browser_waits(self):
        with mock.patch.object(jobqueue, "READ_ALL_BYTES", 1000), \
                mock.patch.object(self.database, "damage", side_effect=AssertionError):
            found = {check.name: check for check in jobqueue.check_host(self.queue, False)}
        self.assertIn("too large", found["Database"].text)

    def test_looking_at_a_busy_database_is_not_damage(self):
        error = sqlite3.OperationalError("database is locked")
        with mock.patch.object(jobqueue.Connection, "value", side_effect=error), \
                self.assertRaises(jobqueue.Busy):
            self.database.damage()

    def test_the_last_backup_is_told_and_its_age(self):
        self.assertEqual(self.verdict("Backup", "none yet"), "note")
        jobqueue.back_up(self.queue, self.folder / "copy.db")
        self.assertEqual(self.verdict("Backup", "copy.db"), "ok")
        self.clock.advance(8 * 86400)
        self.assertEqual(self.verdict("Backup", "copy.db"), "note")

    def test_a_full_disk_is_bad(self):
        room = mock.Mock(f_bavail=10, f_frsize=4096, f_files=0)
        with mock.patch.object(os, "statvfs", return_value=room):
            self.assertEqual(self.verdict("Disk", "0.0 GB"), "bad")

    def test_a_disk_without_room_for_another_file_is_bad(self):
        room = mock.Mock(f_bavail=1 << 30, f_frsize=4096, f_files=1 << 20, f_favail=12)
        with mock.patch.object(os, "statvfs", return_value=room):
            self.assertEqual(self.verdict("Disk", "12 more files"), "bad")

    def test_a_quota_that_is_used_up_is_bad_although_the_disk_has_room(self):
        error = OSError(errno.EDQUOT, "Disk quota exceeded")
        with mock.patch.object(jobqueue, "take_lock", side_effect=error):
            self.assertEqual(self.verdict("Writing", "your quota is full"), "bad")

    def test_a_host_without_flock_is_a_note(self):
        with mock.patch.object(jobqueue.fcntl, "flock", side_effect=OSError(errno.ENOLCK, "No locks")):
            self.assertEqual(self.verdict("Writing", "cannot be locked"), "note")
        self.assertEqual(list((self.database.folder / "locks").iterdir()), [])

    def test_a_running_task_is_told_with_its_lease(self):
        self.assertEqual(self.verdict("Running", "no task runs"), "ok")
        self.add("bob")
        self.claim()
        self.assertEqual(self.verdict("Running", "ends in 60 s"), "ok")
        self.clock.advance(130)
        self.assertEqual(self.verdict("Running", "nobody takes it over"), "bad")

    def test_a_clock_that_was_put_back_is_bad(self):
        self.add("bob")
        self.assertEqual(self.verdict("Clock"), "ok")
        with mock.patch.object(self.clock, "now", return_value=self.clock.now() - 7200):
            self.assertEqual(self.verdict("Clock", "7200 s behind"), "bad")

    def test_data_inside_a_web_folder_is_a_note_and_bad_without_its_lock(self):
        self.assertEqual(self.verdict("Exposure", "not inside"), "note")
        inside = self.folder / "public_html" / "data"
        inside.mkdir(parents=True)
        with mock.patch.object(self.database, "folder", inside):
            self.assertEqual(self.verdict("Exposure", ".htaccess is missing"), "bad")
            (inside / ".htaccess").write_text("Require all denied")
            self.assertEqual(self.verdict("Exposure", "inside a web folder"), "note")

    def test_what_a_browser_could_fetch_is_bad_and_nothing_is_ok(self):
        jobqueue.note_exposure(self.queue, ["data/canary.txt"])
        self.assertEqual(self.verdict("Exposure", "data/canary.txt"), "bad")
        jobqueue.note_exposure(self.queue, [])
        self.assertEqual(self.verdict("Exposure", "nothing private"), "ok")

    def test_an_old_task_that_waits_is_a_note(self):
        self.add("bob")
        self.assertEqual(self.verdict("Waiting", "has waited 0 s"), "ok")
        self.clock.advance(7200)
        self.assertEqual(self.verdict("Waiting", "has waited 7200 s"), "note")

    def test_a_log_that_nothing_writes_back_is_bad(self):
        self.assertEqual(self.verdict("Journal", "WAL"), "ok")
        with mock.patch.object(self.database, "wal_bytes", return_value=20 << 20):
            self.assertEqual(self.verdict("Journal", "20 MB"), "bad")


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
        self.assertFalse((self.folder / "copy.db.part").exists())

    def test_an_older_backup_is_replaced(self):
        for wanted in (1, 2):
            self.add("bob")
            jobqueue.back_up(self.queue, self.target)
            self.assertEqual(self.count(self.target), wanted)

    def test_nothing_else_is_overwritten(self):
        self.target.write_text("my only poem")
        self.refuse(self.target, "is no backup")
        self.assertEqual(self.target.read_text(), "my only poem")
        self.refuse(self.folder, "is a folder")
        self.refuse(self.database.path, "the database itself")
        (self.folder / "link").symlink_to(self.database.path)
        self.refuse(self.folder / "link", "the database itself")
        self.refuse(self.folder / "nowhere" / "copy.db", "No such file")

    def test_a_copy_that_is_damaged_is_not_kept(self):
        jobqueue.back_up(self.queue, self.target)
        before = self.target.read_bytes()
        broken = mock.patch.object(
            jobqueue.Connection, "copy_to", side_effect=jobqueue.StorageBroken("damaged"))
        with broken, self.refused(jobqueue.StorageBroken, "damaged"):
            jobqueue.back_up(self.queue, self.target)
        self.assertEqual(self.target.read_bytes(), before)

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
        queue.tick.run()
        self.assertEqual(queue.get_json(ids[0])["status"], "pending")


class TestHostOverHttp(WebTestCase):
    def test_an_admin_reads_what_check_says(self):
        reply = self.browser("ana").get("/api/host")
        self.check(reply, 200)
        names = [check["name"] for check in reply.json["checks"]]
        self.assertEqual(names, [check.name for check in jobqueue.check_host(self.queue)])

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
