"""The tables, and how a database of an older version becomes one of a newer."""

import os
import re
import sqlite3
from unittest import mock

import jobqueue
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import TestCase, wait_until

setUpModule = needs_sqlite("what it keeps of its tables")

NOW = jobqueue.SCHEMA_VERSION


class TestSchema(TestCase):
    def setUp(self):
        super().setUp()
        self.path = self.database.path

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

    def test_a_newer_schema_is_refused_in_one_line_and_left_alone(self):
        with self.database.transaction() as transaction:
            transaction.run("PRAGMA user_version=99")
        self.queue.close()
        before = self.path.read_bytes()
        with self.refused(jobqueue.SetupError, "schema version 99") as caught:
            jobqueue.SqliteDatabase(self.folder / "data", self.clock)
        self.assertNotIn("\n", caught.exception.detail)
        self.assertEqual(self.path.read_bytes(), before)

    def test_a_failing_migration_changes_nothing(self):
        broken = {"SCHEMA": "CREATE TABLE half (n INTEGER);\nCREATE TABLE nonsense (;",
                  "SCHEMA_VERSION": NOW + 1}
        with mock.patch.multiple(jobqueue, **broken), self.assertRaises(sqlite3.OperationalError):
            jobqueue.SqliteDatabase(self.folder / "data", self.clock)
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

    def test_the_wait_helper_gives_up(self):
        with self.assertRaisesRegex(AssertionError, "the moon"):
            wait_until(lambda: False, 0.01, "the moon")
