"""The tests' own helpers: a test that cannot run here says so, and .ci/run takes that for a failure."""
import os
import unittest
from unittest import mock

from tests.helpers import support


class Missing(unittest.TestCase):
    def asked_for_everything(self, value):
        """The environment as .ci/run sets it, or as people have it."""
        return mock.patch.dict(os.environ, JOBQUEUE_TEST_ALL=value)

    def test_what_is_missing_skips_a_test_and_fails_it_where_nothing_may_be(self):
        support.need(True, "nothing")
        with self.asked_for_everything(""), self.assertRaisesRegex(unittest.SkipTest, "needs a moon"):
            support.need(False, "a moon")
        with self.asked_for_everything("1"), self.assertRaisesRegex(AssertionError, "missing: a moon"):
            support.need(False, "a moon")

    def test_systems_without_proc_skip_what_looks_at_processes(self):
        with mock.patch.object(support.processes, "PROC", "/nowhere"), self.asked_for_everything(""), \
                self.assertRaisesRegex(unittest.SkipTest, "/proc"):
            support.Site()

    def test_no_test_skips_itself_in_another_way(self):
        """But for what no machine can be given: those that skip on a Python of another age."""
        found = {path.name: path.read_text("utf-8").count(".skip" "Test(")
                 for path in (support.ROOT / "tests").rglob("test_*.py")}
        self.assertEqual({name: count for name, count in found.items() if count},
                         {"test_cronsim.py": 2, "test_layout.py": 1})


if __name__ == "__main__":
    unittest.main()
