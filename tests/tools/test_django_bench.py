"""The benchmark of Django's tasks must run; its figures are nobody's promise."""
import contextlib
import io
import os
import unittest
from pathlib import Path

from tests.tools import django_bench
from tests.helpers.support import need

ENVIRONMENTS = os.environ.get("JOBQUEUE_TEST_DJANGO", "")


class RunTests(unittest.TestCase):
    def test_ours_is_measured(self):
        need(ENVIRONMENTS, "JOBQUEUE_TEST_DJANGO: a folder with virtual environments with Django")
        folder, said = Path(ENVIRONMENTS, "newest"), io.StringIO()
        need((folder / "bin" / "python").exists(), "%s" % folder)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            code = django_bench.main(
                ["--venv", str(folder), "--only", "jobqueue", "--tasks", "40", "--runs", "2"])
        self.assertEqual(code, 0)
        self.assertRegex(said.getvalue(), r"(?m)^jobqueue +\d+/s +\d+/s +\d+\.\d+ s")


class TableTests(unittest.TestCase):
    RESULTS = {"jobqueue": [(100, 900, 2), (300, 700, 2), (200, 800, 2)],
               "django-tasks-db": [(400, 200, 8)] * 3, "huey, threads": [(100, 400, 4)] * 3,
               "huey, threads, fsync=False": [(500, 1600, 1)] * 3}

    def test_ours_stands_beside_the_best_of_each_group(self):
        lines = django_bench.table(self.RESULTS, 1000).splitlines()
        self.assertRegex(lines[1], "^jobqueue +200/s +800/s +2.00 s")
        for what, ratio, words, best in (
                ("drain", "4.00", "the backends of django.tasks", "django-tasks-db"),
                ("drain", "2.00", "all but those with fsync=False", "huey, threads"),
                ("wall ", "2.00", "all but those with fsync=False", "huey, threads"),
                ("adds ", "0.40", "all", "huey, threads, fsync=False")):
            self.assertIn("%s  ours is %s times the best of %s: %s" % (what, ratio, words, best), lines)

    def test_queues_are_named_by_their_beginnings(self):
        self.assertEqual(django_bench.names("jobqueue,django-q"), ["jobqueue", "django-q2"])
        self.assertEqual(django_bench.packages_of(["jobqueue", "huey, threads"]), ["django", "huey"])
        self.assertEqual(django_bench.packages_of(django_bench.CONTESTANTS), list(django_bench.PACKAGES))


if __name__ == "__main__":
    unittest.main()
