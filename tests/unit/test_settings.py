"""What an admin can change while everything runs."""

import itertools
import re
from unittest import mock

import jobqueue
from jobqueue import SETTINGS, Settings
from tests.helpers.support import ROOT, TestCase


class TestSettings(TestCase):
    def setUp(self):
        super().setUp()
        self.settings = self.queue.settings

    def described(self, name, settings=None):
        return next(row for row in (settings or self.settings).describe() if row["name"] == name)

    def test_a_setting_has_a_default(self):
        self.assertEqual(self.settings.get("NbMaxWorker"), 2)
        self.assertEqual(self.described("NbMaxWorker")["from"], "default")

    def test_a_change_counts_at_once_and_for_others_too(self):
        other = self.another_queue()
        self.change_settings(NbMaxWorker=6)
        self.assertEqual((self.settings.get("NbMaxWorker"), other.settings.get("NbMaxWorker")), (6, 6))
        self.assertEqual(self.described("NbMaxWorker")["from"], "table")

    def test_null_means_back_to_the_default(self):
        self.change_settings(linger=60)
        self.change_settings(linger=None)
        self.assertEqual(self.settings.get("linger"), SETTINGS["linger"].default)

    def test_all_or_none_are_changed_and_every_wrong_one_is_named(self):
        with self.refused(jobqueue.Invalid, "Nothing was changed") as caught:
            self.change_settings(linger=60, NbMaxWorker=257, nonsense=1)
        self.assertEqual({error["field"] for error in caught.exception.errors}, {"NbMaxWorker", "nonsense"})
        self.assertEqual(self.settings.get("linger"), 15)

    def test_numbers_have_bounds_and_kinds(self):
        for value in (-1, 257, 2.5, "3", True, None, [], 10**30):
            with self.subTest(value), self.assertRaises(jobqueue.Invalid):
                jobqueue.tidy_setting("NbMaxWorker", value)
        self.assertEqual(jobqueue.tidy_setting("NbMaxWorker", 3.0), 3)

    def test_texts_have_a_length(self):
        self.assertEqual(jobqueue.tidy_setting("default_owner", "bob"), "bob")
        for value in ("x" * 101, 5, None):
            with self.assertRaises(jobqueue.Invalid):
                jobqueue.tidy_setting("default_owner", value)

    def test_choices_are_told_and_nothing_else_is_one(self):
        row = self.described("worker_mode")
        self.assertEqual((row["type"], row["default"]), ("choice", "auto"))
        self.assertIn("slice", row["choices"])
        for value in ("nonsense", "", 5, None, ["auto"], "Auto"):
            with self.refused(jobqueue.Invalid, "must be one of auto, detached"):
                jobqueue.tidy_setting("worker_mode", value)
        with self.refused(jobqueue.Invalid, "must be one of"):
            Settings(self.database, environment={"JOBQUEUE_WORKER_MODE": "fork"})

    def test_the_environment_wins_over_the_table(self):
        self.change_settings(NbMaxWorker=6)
        settings = Settings(self.database, environment={"JOBQUEUE_NBMAXWORKER": "3"})
        self.assertEqual(settings.get("NbMaxWorker"), 3)
        self.assertEqual(self.described("NbMaxWorker", settings)["from"], "environment")

    def test_what_the_environment_fixes_cannot_be_changed_here(self):
        settings = Settings(self.database, environment={"JOBQUEUE_NBMAXWORKER": "3"})
        with self.refused(jobqueue.Invalid, "is set by environment"):
            settings.change({"NbMaxWorker": 5})

    def test_nonsense_in_the_environment_is_refused_by_its_name(self):
        for text in ("many", "", "999", "nan", "1e400"):
            with self.subTest(text), self.refused(jobqueue.Invalid, "NbMaxWorker"):
                Settings(self.database, environment={"JOBQUEUE_NBMAXWORKER": text})

    def test_a_queue_that_is_refused_for_it_leaves_its_database_closed(self):
        close = jobqueue.Database.close
        with mock.patch.object(jobqueue.Database, "close", autospec=True, side_effect=close) as closed:
            with self.refused(jobqueue.Invalid, "NbMaxWorker"):
                self.another_queue(environment={"JOBQUEUE_NBMAXWORKER": "many"})
        closed.assert_called_once()

    def test_a_value_is_read_within_the_transaction_that_asks(self):
        with self.database.transaction() as transaction:
            jobqueue.store_setting(transaction, "NbMaxWorker", 9)
            self.assertEqual(self.settings.get("NbMaxWorker", transaction), 9)
            with self.assertRaises(RuntimeError):
                self.settings.get("NbMaxWorker")

    def test_every_setting_says_what_it_is_for(self):
        for row in self.settings.describe():
            self.assertTrue(row["help"].endswith((".", ")")), row["name"])
            self.assertEqual(jobqueue.tidy_setting(row["name"], row["default"]), row["default"])

    def test_every_setting_has_a_name_for_people_in_a_group_that_stands_together(self):
        rows = self.settings.describe()
        self.assertEqual(len({row["label"] for row in rows}), len(rows))
        groups = [group for group, _ in itertools.groupby(row["group"] for row in rows)]
        self.assertEqual(len(groups), len(set(groups)), groups)
        self.assertEqual((self.described("linger")["group"], self.described("linger")["unit"]),
                         ("Workers", "seconds"))

    def test_our_own_notes_are_no_settings(self):
        with self.assertRaises(jobqueue.Invalid):
            self.settings.change({"start_failure": None})

    def test_each_row_that_the_program_keeps_is_documented(self):
        names = set()
        for name in ("jobqueue.py", "worker.py"):
            text = (ROOT / name).read_text("utf-8")
            names |= set(re.findall(r"""\b(?:recall|remember)\(\s*[\w.]+(?: or [\w.]+)?,\s*"(\w+)\"""", text))
        self.assertEqual(names, set(jobqueue.STATE))

    def test_what_is_remembered_is_recalled_and_can_be_forgotten(self):
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", {"a": [1]})
            jobqueue.remember(transaction, ".x", {"a": [2]})
        self.assertEqual(jobqueue.recall(self.database, ".x"), {"a": [2]})
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", None)
        self.assertIsNone(jobqueue.recall(self.database, ".x"))
