"""Backups: every day by the clock, and what is put back from one."""

import contextlib
import os
import shutil
import sqlite3
import stat
from unittest import mock

import jobqueue
import worker
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase

DAY, HOUR = 86400.0, 3600.0


class TestDailyBackup(TestCase):
    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "DISK_LOW_BYTES", 0)       # whatever disk the tests have
        self.clock.wall -= self.clock.wall % DAY        # midnight
        self.backups = self.database.folder / "backups"

    def begun(self):
        """How many processes were started that make a backup."""
        return sum("--backup" in command for command in self.started)

    def make(self):
        worker.make_daily_backup(self.queue)

    def names(self):
        return sorted(path.name for path in self.backups.iterdir())

    def told(self):
        """What `check` says of backups."""
        return [(check.verdict, check.text) for check in jobqueue.check_host(self.queue).checks
                if check.name == "Backup"]

    def test_none_is_made_unless_an_hour_is_set(self):
        self.tick(DAY)
        self.assertEqual(self.begun(), 0)

    def test_it_begins_once_a_day_whoever_ticks(self):
        self.change_settings(backup_hour="3")
        other = self.another_queue()
        self.tick()
        self.make()                     # that of the day before, at once: so one sees that it works
        for hour in range(1, 27):
            self.clock.advance(HOUR)
            for queue in (self.queue, other):
                self.tick(queue=queue)
            self.assertEqual(self.begun(), 1 + (hour >= 3), hour)
            if hour == 3:
                self.make()

    def test_one_is_made_later_if_nobody_came_in_time(self):
        self.change_settings(backup_hour="3")
        self.tick()
        self.make()
        self.tick(3.5 * DAY)
        self.make()
        self.tick()
        self.assertEqual((self.begun(), len(self.names())), (2, 2))

    def test_it_is_a_copy_that_only_the_owner_can_read_under_a_name_nobody_guesses(self):
        self.change_settings(backup_hour="0")
        self.add_many("bob", 3)
        self.tick()
        self.make()
        [name] = self.names()
        word = self.database.path.stem.partition("-")[2]
        self.assertRegex(name, r"^backup-2027-01-15-%s\.(db|jsonl)$" % word)
        self.assertEqual(stat.S_IMODE((self.backups / name).stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.backups.stat().st_mode), 0o700)
        self.assertIn(str(self.backups / name), self.told()[0][1])

    def test_the_newest_are_kept_and_what_others_put_there(self):
        self.change_settings(backup_hour="0", backup_keep=2)
        for _ in range(4):
            self.tick(DAY)
            self.make()
            (self.backups / "mine.db").write_text("")
            left = self.names()[0].replace("2027", "2020") + ".0123456789abcdef.part"
            (self.backups / left).write_text("of one that was killed")
        self.tick(DAY)
        self.make()
        self.assertEqual([name[:17] for name in self.names()],
                         ["backup-2027-01-19", "backup-2027-01-20", "mine.db"])

    def test_what_another_process_is_writing_for_the_same_day_stays(self):
        self.change_settings(backup_hour="0")
        self.tick()
        self.make()
        [name] = self.names()
        part = self.backups / (name + ".0123456789abcdef.part")
        part.write_text("half of it")
        worker.remove_older_backups(self.backups, 1)
        self.assertEqual(self.names(), [name, part.name])

    def test_one_that_fails_is_told_and_tried_again_after_an_hour(self):
        self.change_settings(backup_hour="0")
        self.tick()
        full = mock.patch.object(self.database, "copy_to", side_effect=jobqueue.StorageFull("It is full."))
        with full, mock.patch.object(jobqueue, "_rows_of", side_effect=jobqueue.StorageFull("It is full.")):
            self.make()
        self.assertEqual(self.names(), [])
        self.assertEqual(self.told()[-1][0], "bad")
        self.assertIn("It is full.", self.told()[-1][1])
        self.assertIn("It is full.", str(*self.queue.conditions.backup_failed()))
        self.tick(HOUR - 1)
        self.assertEqual(self.begun(), 1)
        self.tick(1)
        self.assertEqual(self.begun(), 2)
        self.make()
        self.assertEqual((list(self.queue.conditions.backup_failed()), len(self.names())), ([], 1))
        self.tick(HOUR)
        self.assertEqual(self.begun(), 2)

    def test_none_is_begun_that_would_leave_no_room_for_tasks(self):
        self.change_settings(backup_hour="0")
        self.tick()
        with mock.patch.object(jobqueue, "free_bytes", lambda _: self.database.size() - 1):
            self.make()
        self.assertEqual(self.names(), [])
        self.assertRegex(self.told()[-1][1], "no room for a backup")

    def test_of_processes_that_tick_at_once_one_begins_it(self):
        self.change_settings(backup_hour="0")
        self.clock.advance(HOUR)
        other, recall = self.another_queue(), jobqueue.recall

        def recall_then_begin(db, name):
            found = recall(db, name)
            with mock.patch.object(jobqueue, "recall", recall):
                if name == "daily_backup" and not self.begun():
                    other.tick.run()
            return found

        with mock.patch.object(self.queue.alerts, "tick"), \
                mock.patch.object(jobqueue, "recall", recall_then_begin):
            self.tick()
        self.assertEqual(self.begun(), 1)

    def test_one_that_was_killed_is_told_when_it_is_begun_again(self):
        self.change_settings(backup_hour="0")
        self.tick()
        self.assertEqual(list(self.queue.conditions.backup_failed()), [])
        self.tick(HOUR)
        self.assertEqual(self.begun(), 2)
        self.assertIn("It was not finished.", str(*self.queue.conditions.backup_failed()))

    def test_a_process_that_cannot_be_started_is_told_and_tried_again(self):
        self.change_settings(backup_hour="0")
        self.start_error = OSError("no room")
        with mock.patch.object(jobqueue, "complain") as complain:
            self.tick()
        self.assertIn("no room", complain.call_args[0][0])
        self.start_error = None
        self.tick(HOUR)
        self.assertEqual(self.begun(), 1)

    def test_a_clock_that_was_wrong_for_a_while_does_not_end_it(self):
        self.change_settings(backup_hour="0")
        for seconds in (0, 400 * DAY, -400 * DAY):
            self.tick(seconds)
            self.make()
        self.assertEqual(self.begun(), 3)

    def test_the_hour_is_one_or_nothing(self):
        for text in ("24", "-1", "3:00", "noon", "٣", "7 8"):
            with self.subTest(text), self.refused(jobqueue.Invalid, "must be one of"):
                self.change_settings(backup_hour=text)
        for text in ("7", "0", "23", ""):
            self.change_settings(backup_hour=text)


@about_sqlite("a file in place of another")
class TestRestore(TestCase):
    def setUp(self):
        super().setUp()
        self.data, self.file = self.folder / "data", self.folder / "copy"
        self.ids = self.add_many("bob", 3)
        jobqueue.back_up(self.queue, self.file)

    def close(self):
        self.queue.close()

    def tasks(self, path=None):
        path = path or jobqueue.find_database(self.data)
        with contextlib.closing(sqlite3.connect(path)) as link:
            self.assertEqual(link.execute("PRAGMA integrity_check").fetchone()[0], "ok")
            return link.execute("SELECT count(*) FROM task").fetchone()[0]

    def entries(self):
        return sorted(path.name for path in self.data.iterdir())

    def refuse(self, kind, words, **more):
        before = self.entries(), hash(jobqueue.find_database(self.data, True).read_bytes())
        with self.refused(kind, words):
            jobqueue.restore(self.data, self.file, **more)
        self.assertEqual((self.entries(), hash(jobqueue.find_database(self.data, True).read_bytes())), before)

    def change_copy(self, statement):
        with contextlib.closing(sqlite3.connect(self.file, isolation_level=None)) as link:
            link.execute(statement)

    def test_what_was_there_gets_another_name_and_the_backup_its_place(self):
        self.add("bob")
        self.close()
        kept = jobqueue.restore(self.data, self.file)
        self.assertEqual((self.tasks(), self.tasks(kept)), (3, 4))
        self.assertNotRegex(kept.name, "^jobqueue-")
        self.assertEqual(stat.S_IMODE(jobqueue.find_database(self.data).stat().st_mode), 0o600)
        queue = self.another_queue()
        self.assertEqual([task["status"] for task in map(queue.get_json, self.ids)], ["pending"] * 3)
        self.assertEqual(queue.database.journal, self.database.journal)
        self.assertFalse([name for name in self.entries() if ".part" in name])

    def test_it_is_refused_while_anybody_has_it_open(self):
        self.refuse(jobqueue.Conflict, "Something uses the database")

    def test_without_a_log_whoever_is_there_is_known_by_what_was_noted(self):
        self.close()
        jobqueue.repair_journal(self.data, shared=True)
        self.queue = self.another_queue()
        self.queue.tick_history.record("server")
        self.close()
        with mock.patch.object(jobqueue, "Clock", self.clock):
            self.refuse(jobqueue.Conflict, "did two minutes ago")
            self.clock.advance(200)
            jobqueue.restore(self.data, self.file)

    def test_force_does_it_all_the_same_and_who_lives_writes_nothing_into_the_wrong_file(self):
        jobqueue.restore(self.data, self.file, force=True)
        with self.refused(jobqueue.StorageBroken, "replaced"):
            self.add("bob")
        self.assertEqual(self.tasks(), 3)

    def test_a_damaged_and_an_emptied_database_are_replaced(self):
        self.close()
        for damage in (b"<html>" * 5000, b""):
            self.database.path.write_bytes(damage)
            kept = jobqueue.restore(self.data, self.file)
            self.assertEqual((self.tasks(), kept.read_bytes()), (3, damage))
            kept.unlink()

    def test_who_is_killed_before_the_backup_is_in_its_place_leaves_a_database(self):
        self.add("bob")
        self.close()
        rename = os.rename

        def die(source, target):
            if str(source).endswith(".part"):
                raise KeyboardInterrupt
            rename(source, target)

        with mock.patch.object(os, "rename", die), self.assertRaises(KeyboardInterrupt):
            jobqueue.restore(self.data, self.file)
        self.assertEqual(self.tasks(), 4)
        kept = jobqueue.restore(self.data, self.file)
        self.assertEqual((self.tasks(), self.tasks(kept)), (3, 4))

    def test_a_file_system_without_links_keeps_what_was_there_too(self):
        self.add("bob")
        self.close()
        with mock.patch.object(os, "link", side_effect=PermissionError):
            kept = jobqueue.restore(self.data, self.file)
        self.assertEqual((self.tasks(), self.tasks(kept)), (3, 4))

    def test_what_is_no_backup_is_refused_and_nothing_is_touched(self):
        self.close()
        for name, text in (("poem", b"my only poem"), ("nothing", b""), ("export", b'{"jobqueue":1}\n'),
                           ("half", self.file.read_bytes()[:5000])):
            self.file = self.folder / name
            self.file.write_bytes(text)
            with self.subTest(name):
                self.refuse(jobqueue.SetupError, "is not a backup")

    def test_a_database_of_another_program_is_refused(self):
        self.close()
        self.file.unlink()
        self.change_copy("CREATE TABLE poem (line TEXT)")
        self.refuse(jobqueue.SetupError, "is not a backup")

    def test_a_newer_schema_is_refused_by_its_number(self):
        self.close()
        self.change_copy("PRAGMA user_version=%d" % (jobqueue.SCHEMA_VERSION + 1))
        self.refuse(jobqueue.SetupError, "schema version %d" % (jobqueue.SCHEMA_VERSION + 1))

    def test_a_damaged_backup_is_refused(self):
        self.close()
        content = bytearray(self.file.read_bytes())
        content[4096:60000] = os.urandom(55904)
        self.file.write_bytes(content)
        self.refuse(jobqueue.SetupError, "is not a backup, or is damaged")

    def test_a_wrong_name_makes_nothing(self):
        with self.assertRaises(FileNotFoundError):
            jobqueue.restore(self.folder / "elsewhere", self.folder / "nothing")
        self.assertFalse((self.folder / "elsewhere").exists())

    def test_a_folder_that_is_gone_is_made(self):
        self.close()
        shutil.rmtree(self.data)
        jobqueue.restore(self.data, self.file)
        self.assertEqual(self.tasks(), 3)
