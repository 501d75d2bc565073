"""The drill with workers elsewhere: on PostgreSQL where the tests are, else those that ask over HTTP."""
import os
import unittest
from unittest import mock

from tests.helpers import machines, postgres
from tests.helpers.support import need
from tests.tools import drill
from tests.tools.test_drill import DrillTestCase

LONG = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))

# Transactions on PostgreSQL are not one after the other; what was committed goes with the server.
LOCK_FAULT_TEXT = """
assert "FOR UPDATE" in SERVER_BEGIN
SERVER_BEGIN = SERVER_BEGIN.replace("FOR UPDATE", "")
"""
FORGET_FAULT_TEXT = """
assert "SELECT set_config(" in SERVER_BEGIN
SERVER_BEGIN = SERVER_BEGIN.replace(
    "SELECT set_config(", "SELECT set_config('synchronous_commit', 'off', true), set_config(")
"""


class FarDrillTestCase(DrillTestCase):
    def far(self, *words, plant=""):
        return self.drill("--minutes", "0.6", "--workers", "9", "--seed", "6", "--tasks", "1000", *words,
                          plant=plant)

    def check(self, findings, report, fallen):
        self.assertTrue(findings.is_clean, report)
        self.assertRegex(report, "others    .*(%s)" % fallen)
        self.assertIn("lost 0, run twice 0, overlaps 0, stuck 0", report)


@unittest.skipIf(postgres.ADDRESS, "another run tries this: it is about SQLite")
class RemoteDrillTests(FarDrillTestCase):
    def test_workers_that_are_cut_off_at_any_byte_lose_nothing(self):
        findings, report = self.far("--remote", "--lease", "30")
        self.check(findings, report, "way to the site is silent")
        self.assertRegex(report, "cut [1-9][0-9]* times at any byte")


@unittest.skipUnless(postgres.ADDRESS, "another run tries this: JOBQUEUE_TEST_DATABASE is not set")
class PostgresDrillTests(FarDrillTestCase):
    def far_on_postgres(self, plant="", falls=None):
        need(not machines.missing(), "machines (%s)" % machines.missing())
        chosen = tuple(fall for fall in drill.Trouble.FALLS if falls is None or fall.how in falls)
        with mock.patch.object(drill.Trouble, "FALLS", chosen):
            return self.far("--postgres", "--lease", "12", plant=plant)

    def test_machines_and_a_server_that_fall_lose_nothing(self):
        self.check(*self.far_on_postgres(), "machine falls|network|PostgreSQL")

    @unittest.skipUnless(LONG, "only where JOBQUEUE_TEST_LOAD is set")
    def test_transactions_that_are_not_one_after_the_other_are_caught(self):
        findings, report = self.far_on_postgres(LOCK_FAULT_TEXT, ("down",))
        self.assertFalse(findings.is_clean, report)

    @unittest.skipUnless(LONG, "only where JOBQUEUE_TEST_LOAD is set")
    def test_a_server_that_forgets_what_it_said_is_caught(self):
        findings, report = self.far_on_postgres(FORGET_FAULT_TEXT, ("immediate", "kill"))
        self.assertFalse(findings.is_clean, report)


if __name__ == "__main__":
    unittest.main()
