"""The load test's comparison must catch what it is for; and its short form must pass."""
import contextlib
import io
import subprocess
import sys
import types
import unittest
import xml.etree.ElementTree
from unittest import mock

from tests.tools import load_test
from tests.tools.load_test import Entry, Row, Sample, compare
from tests.helpers.support import PASSWORD, Site

COUNT = 5


def rows(count=COUNT):
    """Database rows of tasks that all succeeded at the first attempt."""
    return [Row(number, "succeeded", 1, 0.01) for number in range(1, count + 1)]


def attempt(task_id, start, end=None, number=1, claim=None):
    """The ledger's lines of one attempt; without `end` it was cut off."""
    claim = claim or "c%d-%d" % (task_id, number)
    entries = [Entry("START", task_id, number, claim, 100, start)]
    return entries + ([Entry("END", task_id, number, claim, 100, end)] if end else [])


def ledger(count=COUNT):
    """The ledger of tasks that ran one after another."""
    return [entry for number in range(1, count + 1)
            for entry in attempt(number, number, number + 0.5)]


class ComparisonTests(unittest.TestCase):
    def setUp(self):
        self.acknowledged = list(range(1, COUNT + 1))
        self.rows = rows()
        self.ledger = ledger()

    def compare(self):
        return compare(self.acknowledged, self.rows, self.ledger)

    def replace_row(self, task_id, **values):
        self.rows[task_id - 1] = self.rows[task_id - 1]._replace(**values)

    def test_three_records_that_agree_are_clean(self):
        found = self.compare()
        self.assertTrue(found.is_clean)
        self.assertEqual(str(found), "acknowledged 5, in the database 5, run 5: "
                                     "lost 0, run twice 0, stuck 0")

    def test_an_acknowledged_task_without_a_row_is_lost(self):
        del self.rows[2]
        found = self.compare()
        self.assertEqual(found.lost, {3})
        self.assertFalse(found.is_clean)

    def test_a_task_recorded_as_done_that_never_ran_is_lost(self):
        self.ledger = [entry for entry in self.ledger if entry.id != 4]
        self.assertEqual(self.compare().lost, {4})

    def test_a_task_that_ran_twice_is_caught(self):
        self.ledger += attempt(2, 8, 9, number=2)
        self.replace_row(2, attempts=2)
        found = self.compare()
        self.assertEqual(found.twice, {2})
        self.assertFalse(found.is_clean)

    def test_two_runs_under_one_claim_are_caught(self):
        self.ledger += attempt(2, 8, claim="c2-1")
        self.replace_row(2, attempts=2)
        self.assertEqual(self.compare().twice, {2})

    def test_overlapping_attempts_are_caught(self):
        self.ledger += attempt(3, 3.2, 3.4, number=2)
        self.replace_row(3, attempts=2)
        self.assertEqual(self.compare().twice, {3})

    def test_an_attempt_that_goes_on_after_the_next_began_is_caught(self):
        self.ledger += attempt(3, 3.2, number=2)
        self.replace_row(3, attempts=2)
        self.assertEqual(self.compare().twice, {3})

    def test_a_start_that_the_database_did_not_count_is_caught(self):
        self.ledger += attempt(5, 4.5, number=0)
        self.assertEqual(self.compare().twice, {5})

    def test_a_task_cut_off_by_a_crash_and_run_again_is_told_apart(self):
        self.ledger = [entry for entry in self.ledger if entry.id != 5]
        self.ledger += attempt(5, 5) + attempt(5, 7, 8, number=2)
        self.replace_row(5, attempts=2)
        found = self.compare()
        self.assertEqual((found.again, found.twice), ({5}, set()))
        self.assertTrue(found.is_clean)

    def test_an_unfinished_task_is_stuck(self):
        self.replace_row(1, status="running")
        self.replace_row(2, status="scheduled")
        found = self.compare()
        self.assertEqual(found.stuck, {1, 2})
        self.assertFalse(found.is_clean)

    def test_a_failed_task_is_not_clean(self):
        self.replace_row(1, status="failed")
        found = self.compare()
        self.assertEqual(found.failed, {1})
        self.assertFalse(found.is_clean)

    def test_a_list_that_differs_from_the_file_is_caught(self):
        in_file = rows()
        in_file[0] = in_file[0]._replace(status="failed")
        found = compare(self.acknowledged, self.rows, self.ledger, in_file)
        self.assertEqual(found.unequal, {1})
        self.assertFalse(found.is_clean)

    def test_a_row_whose_answer_got_lost_does_no_harm(self):
        self.acknowledged.remove(5)
        self.assertTrue(self.compare().is_clean)

    def test_without_a_ledger_attempts_are_counted(self):
        self.replace_row(2, attempts=2)
        found = compare(self.acknowledged, self.rows)
        self.assertEqual((found.run, found.twice), ({1, 2, 3, 4, 5}, {2}))

    def test_without_a_ledger_it_says_that_there_were_two_records_only(self):
        self.assertIn("two records only", str(compare(self.acknowledged, self.rows)))
        self.assertNotIn("two records", str(self.compare()))


def answer(status, value=None, **headers):
    """A Reply without a network."""
    reply = load_test.Reply.__new__(load_test.Reply)
    reply.status, reply.value, reply.headers = status, value, headers
    return reply


class FakeBrowser:
    """Gives the answers it was given, the last one for ever."""

    server, cookie = "http://localhost/", None

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def send(self, *request):
        self.asked.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


class LoadTests(unittest.TestCase):
    def add_one(self, *answers):
        load = load_test.Load([], 1, 1000.0, (0, 0))
        load.began = 0.0
        with mock.patch.object(load._stop, "wait") as wait:
            load._add_tasks(FakeBrowser(*answers))
        return load, [call.args[0] for call in wait.call_args_list]

    def test_an_add_that_is_told_to_come_back_later_counts_when_its_201_arrives(self):
        busy = answer(503, **{"Retry-After": "7"})
        load, waits = self.add_one(busy, busy, answer(201, {"id": 5}))
        self.assertEqual(load.acknowledged, [5])
        self.assertEqual(load.counts["busy"], 2)
        self.assertEqual(waits[1:], [7.0, 7.0])

    def test_an_add_without_an_answer_is_tried_again(self):
        load, _ = self.add_one(ConnectionResetError(), answer(201, {"id": 5}))
        self.assertEqual((load.acknowledged, load.counts["broken"]), ([5], 1))

    def test_a_refused_add_ends_the_test_with_the_servers_words(self):
        with self.assertRaisesRegex(load_test.LoadTestError, "422: no such function"):
            self.add_one(answer(422, {"detail": "no such function"}))


class WatcherTests(unittest.TestCase):
    def watch(self, acknowledged, *unfinished, patience=0.05):
        """Watch a load of two tasks while so many are unfinished in turn."""
        looks = [answer(200, {"counts": {**dict.fromkeys(load_test.UNFINISHED, 0), "pending": one},
                              "maximum": 2, "workers": []}) for one in (0, *unfinished)
                 for _ in range(2)]
        load = types.SimpleNamespace(acknowledged=acknowledged, tasks=2, broken=None, began=None)
        self.shown = []
        watcher = load_test.Watcher(load, FakeBrowser(*looks), lambda *one: self.shown.append(one))
        watcher.prepare()
        with mock.patch.multiple(load_test, SAMPLE_SECONDS=0, STALL_SECONDS=patience):
            return watcher.watch()

    def test_it_ends_when_all_are_added_and_finished(self):
        self.assertTrue(self.watch([1, 2], 2, 1, 0, patience=600))
        self.assertEqual([done for _, done, _, _ in self.shown], [0, 1, 2])

    def test_it_gives_up_when_nothing_moves(self):
        self.assertFalse(self.watch([1, 2], 1))

    def test_it_waits_for_tasks_that_are_not_added_yet(self):
        self.assertFalse(self.watch([1], 0))


class WordsTests(unittest.TestCase):
    def test_a_range_of_seconds_is_one_number_or_two(self):
        self.assertEqual(load_test.seconds_range("1.5-2.5"), (1.5, 2.5))
        self.assertEqual(load_test.seconds_range("2"), (2.0, 2.0))
        for text in ("2-1", "-1", "x"):
            with self.assertRaises(ValueError):
                load_test.seconds_range(text)

    def test_percentiles_name_the_middle_and_the_worst(self):
        values = [number / 1000 for number in range(100)]
        self.assertEqual(load_test.percentile(values, 0.5), 0.05)
        self.assertIn("max   99.0 ms", load_test.percentiles(values))
        self.assertEqual(load_test.percentiles([]), "none")

    def test_the_text_to_paste_is_a_program(self):
        compile(load_test.TASKS_TEXT, "tasks.py", "exec")

    def test_the_graph_is_well_formed_and_escapes_its_words(self):
        samples = [Sample(second, second * 3, 5, 6, 8) for second in range(400)]
        for part in (samples, samples[:20], samples[:1], []):
            text = load_test.draw(part, 6, "1 < 2 & 3", "none lost")
            drawing = xml.etree.ElementTree.fromstring(text)
            self.assertEqual(len(drawing.findall("{*}polyline")), 3)
        self.assertIn("1 &lt; 2 &amp; 3", text)

    def test_progress_prints_few_lines_where_there_is_no_terminal(self):
        stream = io.StringIO()
        progress = load_test.Progress(stream, 10)
        for added in range(10):
            progress(added, 0, 0, 0)
        progress.end()
        self.assertEqual(stream.getvalue().count("\n"), 1)

    def test_a_server_needs_a_name(self):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            load_test.parse(["--server", "http://localhost:8000"])


class ShortLoadTest(unittest.TestCase):
    def test_some_hundred_tasks_by_twenty_workers_are_neither_lost_nor_run_twice(self):
        options = load_test.parse(["--workers", "20", "--tasks", "600", "--rate", "100",
                                   "--seconds", "0.02-0.05"])
        found, report, ended = load_test.run(options, io.StringIO())
        self.assertTrue(ended and found.is_clean, report)
        self.assertEqual(len(found.acknowledged), 600, report)
        self.assertEqual(found.run, found.acknowledged, report)
        self.assertEqual((found.lost, found.twice, found.again), (set(), set(), set()), report)

    def test_a_site_of_ones_own_is_tried_as_its_people_do(self):
        site = Site(load_test.TASKS_TEXT, NbMaxWorker=3, nice=0)
        self.addCleanup(site.close)
        address, word = site.start_server(), site.home / "word.txt"
        word.write_text(PASSWORD + "\n")
        given = ["--server", address, "--name", "ana", "--password-file", word, "--users", "2",
                 "--tasks", "40", "--rate", "40", "--seconds", "0.01-0.02"]
        for more in ([], ["--ledger", site.home / load_test.LEDGER_NAME]):
            done = subprocess.run([sys.executable, load_test.__file__, *map(str, given + more)],
                                  env=site.environment, capture_output=True, encoding="utf-8", timeout=300)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            self.assertRegex(done.stdout, r"lost 0\b.*\btwice 0\b")
            self.assertEqual("two records only" in done.stdout, not more, done.stdout)
        self.assertEqual(site.value("SELECT count(*) FROM task WHERE status=2"), 80)

    def test_a_site_without_its_function_is_told_what_to_paste(self):
        site = Site(NbMaxWorker=0)
        self.addCleanup(site.close)
        (site.home / "word.txt").write_text(PASSWORD + "\n")
        options = load_test.parse(["--server", site.start_server(), "--name", "ana",
                                   "--password-file", str(site.home / "word.txt")])
        with self.assertRaisesRegex(load_test.LoadTestError, "def " + load_test.FUNCTION):
            load_test.run(options, io.StringIO())


if __name__ == "__main__":
    unittest.main()
