"""The drill of Django's tasks must find nothing, and its checks must catch what they are for."""
import contextlib
import io
import os
import unittest
from pathlib import Path

from tests.tools import django_drill
from tests.tools.django_drill import Added, Event, Kill, Records, Result, check, read_runs
from tests.helpers.support import need, need_part

LONG = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))
WORKER, RUNNER = 50, 100
ENVIRONMENTS = os.environ.get("JOBQUEUE_TEST_DJANGO", "")

# A task that has succeeded at its first attempt begins again, now and then, although nothing was killed.
AGAIN_TEXT = '''
_true_judge = judge


def judge(task, outcome, now, uniform):
    verdict = _true_judge(task, outcome, now, uniform)
    if verdict.status == SUCCEEDED and task["attempts"] == 1 and task["id"] % 20 == 0:
        return Verdict(PENDING, "crashed", "crashed", crash=1)
    return verdict
'''


class DrillTests(unittest.TestCase):
    def drill(self, *words, plant=""):
        need_part("drill")
        need(ENVIRONMENTS, "JOBQUEUE_TEST_DJANGO: a folder with a virtual environment with Django")
        python = Path(ENVIRONMENTS, "newest", "bin", "python")
        need(python.exists(), "%s" % python)
        return django_drill.run(django_drill.parse(["--python", str(python), *words]), plant)

    def test_killed_workers_and_runners_lose_nothing(self):
        size = () if LONG else ("--tasks", "400", "--kills", "8")
        found, report = self.drill(*size)
        self.assertTrue(found.is_clean, report)
        self.assertIn("lost 0, not successful 0, unexplained 0, overlaps 0, ended twice 0, wrong 0", report)
        self.assertRegex(report, "crashed [1-9]")

    def test_tasks_that_begin_again_without_a_kill_are_caught(self):
        found, report = self.drill("--tasks", "100", "--kills", "1", plant=AGAIN_TEXT)
        self.assertGreater(len(found.problems["unexplained"]), 0, report)


class CheckTests(unittest.TestCase):
    """One task, 7-x, whose first attempt ran from second 10 to 11."""

    START, END = "START 7-x 1 100 50 10.000000\n", "END 7-x 1 100 50 11.000000\n"
    START_2, END_2 = "START 7-x 2 101 50 20.000000\n", "END 7-x 2 101 50 21.000000\n"
    ONCE = (("started", 1), ("succeeded", 1))
    CRASHED = (("started", 1), ("crashed", 1), ("started", 2), ("succeeded", 2))
    CRASH = "builtins.ChildProcessError"

    def kinds(self, ledger, events=ONCE, kills=(), result=None, kind="quick", rows=()):
        """The kinds of problems that the checks find."""
        numbers = [attempt for _, attempt in events]
        if result is None:
            crashes = [word for word, _ in events].count("crashed")
            result = Result("SUCCESSFUL", [3, max(numbers)], max(numbers), [self.CRASH] * crashes)
        found = check(Records(
            {"7-x": Added("7-x", kind, 3)}, read_runs(ledger), {"7-x": result} if result else {},
            list(rows), [Kill(pid, "", at) for pid, at in kills],
            {"7-x": [Event(word, attempt, 0.0) for word, attempt in events]}))
        return [name for name, problems in found.problems.items() if problems]

    def test_a_task_that_ran_once_is_right(self):
        self.assertEqual(self.kinds(self.START + self.END), [])

    def test_a_lost_task_is_caught(self):
        self.assertEqual(self.kinds(self.START + self.END, result=False), ["lost"])
        self.assertEqual(self.kinds(self.START), ["lost"])
        self.assertEqual(self.kinds(""), ["lost"])

    def test_a_task_without_success_is_caught_unless_it_crashed_three_times(self):
        failed = Result("FAILED", None, 1, [])
        self.assertEqual(self.kinds(self.START + self.END, (("started", 1), ("failed", 1)), result=failed),
                         ["not successful"])
        crashes = [(word, attempt) for attempt in (1, 2, 3) for word in ("started", "crashed")]
        self.assertEqual(self.kinds(self.START + self.END, crashes, result=failed), [])

    def test_a_second_run_needs_a_kill_of_its_runner_or_worker_and_a_crash(self):
        cut_off = self.START + self.START_2 + self.END_2
        for pid in (WORKER, RUNNER):
            self.assertEqual(self.kinds(cut_off, self.CRASHED, [(pid, 10.5)]), [])
        for kills in ((), [(RUNNER, 9.0)], [(RUNNER, 20.5)], [(RUNNER + 1, 10.5)]):
            self.assertEqual(self.kinds(cut_off, self.CRASHED, kills), ["unexplained"])
        self.assertIn("unexplained", self.kinds(cut_off, self.ONCE, [(RUNNER, 10.5)]))

    def test_a_run_that_had_ended_long_before_the_kill_ended_twice(self):
        both = self.START + self.END + self.START_2 + self.END_2
        self.assertEqual(self.kinds(both, self.CRASHED, [(WORKER, 11.2)]), [])
        self.assertEqual(self.kinds(both, self.CRASHED, [(WORKER, 19.0)]), ["ended twice"])

    def test_two_ends_are_caught(self):
        self.assertEqual(self.kinds(self.START + self.END * 2), ["ended twice"])
        twice = (*self.ONCE, ("started", 2), ("succeeded", 2))
        self.assertIn("ended twice", self.kinds(self.START + self.END + self.START_2 + self.END_2, twice,
                                                [(WORKER, 11.2)]))

    def test_runs_that_overlap_are_caught(self):
        late = self.START + self.START_2 + self.END_2 + "END 7-x 1 100 50 20.500000\n"
        self.assertIn("overlaps", self.kinds(late, self.CRASHED, [(WORKER, 19.0)]))

    def test_a_raise_is_retried_once(self):
        raised = self.START + "RAISE 7-x 1 100 50 11.000000\n" + self.START_2 + self.END_2
        events = (("started", 1), ("retry", 1), ("started", 2), ("succeeded", 2))
        good = Result("SUCCESSFUL", [3, 2], 2, ["builtins.ValueError"])
        self.assertEqual(self.kinds(raised, events, result=good, kind="flaky"), [])
        self.assertEqual(self.kinds(raised, events, result=good._replace(errors=[])), ["wrong"])

    def test_what_get_result_says_must_fit(self):
        good = Result("SUCCESSFUL", [3, 1], 1, [])
        for wrong in (good._replace(value=[4, 1]), good._replace(attempts=2),
                      good._replace(errors=[self.CRASH])):
            self.assertEqual(self.kinds(self.START + self.END, result=wrong), ["wrong"])

    def test_rows_of_the_site_must_fit_their_commits(self):
        committed = self.START + "COMMIT 7-x 1 100 50 10.500000\n" + self.END
        self.assertEqual(self.kinds(committed, kind="row", rows=[("7-x", 1)]), [])
        for rows in ([], [("7-x", 1)] * 2):
            self.assertEqual(self.kinds(committed, kind="row", rows=rows), ["wrong"])
        self.assertEqual(self.kinds(self.START + self.END, kind="row", rows=[("7-x", 1)]), ["wrong"])

    def test_attempts_that_never_began_do_not_count(self):
        events = (("started", 1), ("put_back", 1), ("started", 2), ("succeeded", 2))
        result = Result("SUCCESSFUL", [3, 1], 1, [])
        self.assertEqual(self.kinds(self.START + self.END, events, result=result), [])

    def test_a_line_that_a_kill_has_cut_is_no_start(self):
        runs = read_runs("START 7-x 1 100 5" + self.START_2 + self.END_2 + "END 7-x 2 101 50 2")
        self.assertEqual([run.attempt for run in runs["7-x"]], [2])


class WordsTests(unittest.TestCase):
    def test_a_python_without_django_is_named(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            self.assertEqual(django_drill.main(["--python", "/bin/false"]), 2)
        self.assertIn("/bin/false has no Django", said.getvalue())


if __name__ == "__main__":
    unittest.main()
