"""The activity is folded into hours, each row once; figures are right in every case."""
import math
import random
import unittest

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.command import CommandTestCase
from tests.helpers.recount import assert_counted, bucket, history, write_history
from tests.helpers.support import TestCase, place_for
from tests.unit.test_export import ExportTestCase

HOUR, DAY = 3600, 86400


class TestTimes(unittest.TestCase):
    """The histogram."""

    def of(self, *values):
        return jobqueue.Times.of(list(values))

    def test_the_buckets_are_those_that_a_logarithm_gives(self):
        chance = random.Random(5)
        values = [chance.lognormvariate(0, 8) for _ in range(5000)]
        values += [0.0, 0.25, 0.5, 1.0, 2.0, 1024.0, 3.0, 2 ** 0.25, math.nextafter(1.0, 2.0)
                   if hasattr(math, "nextafter") else 1.5]
        for value in values:
            self.assertEqual(jobqueue.bucket_of(value), bucket(value), value)

    def test_a_percentile_is_right_within_nine_percent(self):
        chance = random.Random(6)
        values = sorted(chance.lognormvariate(2, 1.5) for _ in range(999))
        times = self.of(*values)
        for share in (0.05, 0.5, 0.95, 0.99):
            true = values[math.ceil(share * 999) - 1]
            self.assertLess(abs(times.percentile(share) / true - 1), 0.09)

    def test_constant_times_are_told_exactly(self):
        told = self.of(*[65.0] * 40).json()
        self.assertEqual((told["min"], told["p50"], told["p95"], told["max"]), (65.0,) * 4)
        self.assertEqual(self.of(*[0.0] * 40).json()["p95"], 0.0)

    def test_the_95th_is_told_from_20_values_on_and_nothing_of_none(self):
        self.assertEqual(jobqueue.Times().json(), {
            "count": 0, "sum": 0.0, **dict.fromkeys(("min", "max", "mean", "p50", "p95"))})
        self.assertEqual(self.of(3.0).json()["p50"], 3.0)
        self.assertIsNone(self.of(*map(float, range(19))).json()["p95"])
        self.assertIsNotNone(self.of(*map(float, range(20))).json()["p95"])

    def test_one_outlier_moves_no_median(self):
        told = self.of(*[1.0] * 99, 1e6).json()
        self.assertLess(told["p50"], 1.1)
        self.assertTrue(told["p50"] <= told["p95"] <= told["max"] == 1e6)

    def test_merged_times_are_those_of_all_values(self):
        parts = [self.of(0.0, 1.0, 5.0), self.of(0.3), self.of(7.0, 1e9)]
        whole = jobqueue.Times()
        for part in parts:
            whole.add(jobqueue.Times(part.text()))
        self.assertEqual(whole.json(), self.of(0.0, 1.0, 5.0, 0.3, 7.0, 1e9).json())


class Folding(TestCase):

    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "FOLD_LEAST_ROWS", 1)

    def fold(self, queue=None):
        """Fold all that is there."""
        while (queue or self.queue).rollup.fold():
            pass

    def note(self, event="added", **row):
        """A row of the activity."""
        row = {"at": self.clock.now(), "function": "add", "queue": "default", **row, "event": event}
        with self.database.transaction() as transaction:
            return transaction.insert("activity", row)

    def figures(self, start=-DAY, end=1, step="hour", **named):
        now = self.clock.now()
        return self.queue.metrics.read(*jobqueue.whole_steps(now + start, now + end, step), step,
                                       lambda *_: True, **named)


class TestFold(Folding):

    def test_a_backlog_goes_on_soon_but_lets_tasks_that_wait_go_first(self):
        with self.database.transaction() as transaction:
            transaction.insert_all("activity", [
                {"at": self.clock.now(), "event": "added"}] * 3 * jobqueue.FOLD_ROWS)
        self.queue.tick.run()
        mark = self.queue.rollup.mark()
        self.clock.advance(0.9)
        self.assertFalse(self.queue.tick.maybe("worker"))
        self.clock.advance(0.1)
        self.assertTrue(self.queue.tick.maybe("worker"))
        self.assertEqual(self.queue.rollup.mark(), mark + jobqueue.FOLD_ROWS)

    def test_every_hour_equals_a_recount(self):
        write_history(self.database, history(8, self.clock.now(), 200))
        self.fold()
        assert_counted(self, self.database)

    def test_what_real_tasks_leave_equals_a_recount(self):
        worker_id, handle = self.live()
        for number, kind in enumerate(("succeeded", "fail", "error", "crashed", "put_back", "succeeded")):
            self.add("bob", "greet", name="x", options={"priority": -number})
            row = self.claim(worker_id)
            self.clock.advance(1 + number)
            self.renew(row, worker_id)
            self.end(row, kind)
        self.cancel(self.add())
        self.die(handle)
        self.clean(DAY)
        self.fold()
        assert_counted(self, self.database)
        self.assertGreater(self.database.value("SELECT sum(alive_seconds) FROM worker_hour WHERE span=0"), 20)

    def test_who_folds_at_the_same_time_counts_nothing_twice(self):
        write_history(self.database, history(2, self.clock.now()))
        other = self.another_queue()
        tally = other.rollup.tally

        def late(mark):
            found = tally(mark)
            self.fold()                 # somebody else was faster
            return found

        other.rollup.tally = late
        other.rollup.fold()
        assert_counted(self, self.database)

    def test_sums_and_mark_are_stored_together_or_not_at_all(self):
        write_history(self.database, history(2, self.clock.now()))
        self.patch(jobqueue, "remember", None)      # a death before the commit
        with self.assertRaises(TypeError):
            self.fold()
        self.assertEqual(self.database.value("SELECT count(*) FROM hour"), 0)
        self.assertEqual(self.queue.rollup.mark(), 0)

    def test_few_rows_wait_a_minute_and_many_do_not(self):
        self.patch(jobqueue, "FOLD_LEAST_ROWS", 10)
        self.note()
        self.clean(59)
        self.assertEqual(self.queue.rollup.mark(), 0)
        self.clean(2)
        self.assertEqual(self.queue.rollup.mark(), 1)
        for _ in range(10):
            self.note()
        self.clean()
        self.assertEqual(self.queue.rollup.mark(), 11)

    def test_late_and_early_rows_find_their_own_hour(self):
        now = self.clock.now() // HOUR * HOUR + 1800
        for shift in (0, -3 * HOUR, 600, 0):
            self.note(at=now + shift)
            self.fold()
        found = self.database.all("SELECT at, added FROM hour WHERE span=? ORDER BY at", (HOUR,))
        self.assertEqual([tuple(row) for row in found], [(now - 1800 - 3 * HOUR, 1), (now - 1800, 3)])

    def test_rows_of_clocks_far_off_and_rows_without_sense_stop_nothing(self):
        self.note("worker_started", worker_id=7, machine="m")
        self.note(at=-5.0)
        self.note(at=1e300)
        self.note("succeeded", seconds=1e300, waited=-5.0, worker_id=7)
        self.note("started", waited=-1e9)
        self.note("worker_ended", at=9.9e9, worker_id=7)
        self.note("failed", seconds=1.0, cpu_seconds=-1e300, peak_memory=2 ** 62)
        self.note("interrupted", function="greet")
        self.note("added", function=None)
        self.note()
        self.fold()
        self.assertEqual(self.figures()["totals"]["added"], 1)
        self.assertEqual(self.figures()["totals"]["waited"]["max"], 0.0)
        self.assertLess(self.database.value("SELECT count(*) FROM worker_hour"), 10)

    @about_sqlite("PostgreSQL stores no text there")
    def test_text_where_numbers_should_be_stops_nothing(self):
        for column in ("waited", "seconds", "service", "cpu_seconds", "peak_memory", "task_id", "owner_id"):
            for event in ("succeeded", "started"):
                self.write("INSERT INTO activity (at, event, function, queue, worker_id, %s) "
                           "VALUES (?, '%s', 'add', 'default', 1, 'x')" % (column, event),
                           (self.clock.now(),))
        self.write("INSERT INTO activity (at, event, function, queue) VALUES ('x', 'added', x'ff', 3)")
        self.note()
        self.fold()
        totals = self.figures()["totals"]
        self.assertEqual([totals[name] for name in ("added", "succeeded", "started")], [1, 0, 0])

    def test_after_a_standstill_the_tick_makes_up_for_it(self):
        self.patch(jobqueue, "FOLD_ROWS", 100)
        write_history(self.database, history(3, self.clock.now()))
        newest = self.database.value("SELECT max(id) FROM activity")
        for _ in range(newest // 100 + 1):
            self.clean()
        self.assertEqual(self.queue.rollup.mark(), newest)
        assert_counted(self, self.database)

    def test_a_long_attempt_is_busy_in_each_of_its_hours(self):
        start = self.clock.now() // HOUR * HOUR - 5 * HOUR
        self.note("worker_started", at=start, worker_id=3, machine="m")
        self.note("succeeded", at=start + 5 * HOUR, worker_id=3, seconds=5.0 * HOUR)
        self.note("worker_ended", at=start + 5 * HOUR, worker_id=3, machine="m")
        self.fold()
        told = self.figures(-7 * HOUR)
        self.assertEqual([point["utilization"] for point in told["points"] if point["alive_seconds"]],
                         [1.0] * 5)
        self.assertEqual(told["workers"][0]["utilization"], 1.0)

    def test_a_start_that_is_put_back_leaves_the_hour_in_which_it_was_told(self):
        for jump in (HOUR, -2 * HOUR):
            self.add()
            row = self.claim()
            self.clock.wall += jump
            self.end(row, "unknown_function", seconds=0.5)
            self.fold()
        self.assertEqual({point["started"] for point in self.figures(-DAY, 3 * HOUR)["points"]}, {0})

    def test_service_ends_too_when_a_task_fails_with_what_it_comes_after(self):
        first = self.add()
        self.add(options={"after": [first]})
        self.clock.advance(7)
        self.cancel(first)
        told = self.figures()["totals"]["service"]
        self.assertEqual((told["count"], told["max"]), (1, 7.0))

    def test_the_latest_20_runs_of_a_function_are_kept(self):
        for number in range(25):
            self.note("succeeded", seconds=number, task_id=number, owner_id=2)
            if number % 10 == 0:
                self.fold()
        recent = self.figures()["functions"][0]["recent"]
        self.assertEqual([run["id"] for run in recent], list(range(5, 25)))


class TestKept(Folding):

    def test_activity_that_is_not_folded_is_not_pruned(self):
        self.add()
        self.cancel(1)
        self.patch(self.queue.rollup, "fold", lambda: False)
        for _ in range(100):
            self.clean(DAY)
            self.queue.retention._rounds.hasten(0)
        self.assertEqual(self.database.value("SELECT count(*) FROM activity WHERE event='added'"), 1)

    def test_old_hours_go_and_the_sum_of_all_time_stays(self):
        self.change_settings(keep_hours_days=10)
        self.add()
        for _ in range(30):
            self.clean(DAY)
            self.queue.retention._rounds.hasten(0)
            self.queue.retention.prune()
            while self.queue.retention._round:
                self.queue.retention.prune()
        spans = [row[0] for row in self.database.all("SELECT span FROM hour WHERE added>0")]
        self.assertEqual(spans, [0])
        [sums] = self.queue.metrics.all_time().values()
        self.assertEqual(sums["added"], 1)

    def test_removing_tasks_changes_no_hour(self):
        self.add()
        self.run_one()
        before = self.figures()["totals"]
        self.delete(1)
        self.assertEqual(self.figures()["totals"], before)


class TestFigures(Folding):

    def test_what_is_not_folded_yet_is_told_as_well(self):
        write_history(self.database, history(3, self.clock.now()))
        before = self.figures(-4 * DAY, step="6h")
        self.fold()
        after = self.figures(-4 * DAY, step="6h")
        self.assertEqual([point["added"] for point in before["points"]],
                         [point["added"] for point in after["points"]])
        for name in ("succeeded", "ran", "service", "waited"):
            self.assertEqual(before["totals"][name], after["totals"][name], name)

    def test_steps_of_any_length_add_up_to_the_same(self):
        write_history(self.database, history(15, self.clock.now(), 50))
        self.fold()
        now = self.clock.now()
        start, end = jobqueue.whole_steps(now - 15 * DAY, now, "week")
        for step in jobqueue.STEPS:
            told = self.queue.metrics.read(start, end, step, lambda *_: True)
            self.assertEqual(len(told["points"]), (end - start) / jobqueue.STEPS[step])
            self.assertEqual(sum(point["added"] for point in told["points"]), told["totals"]["added"])
            self.assertEqual(told["totals"]["added"], self.database.value(
                "SELECT count(*) FROM activity WHERE event='added'"), step)

    def test_an_hour_is_complete_when_it_is_over_and_all_of_it_is_known(self):
        self.add()
        self.assertEqual([point["complete"] for point in self.figures(-HOUR)["points"]][-2:], [True, False])
        self.fold()
        self.patch(jobqueue, "FOLD_ROWS", 1)
        for _ in range(2):
            self.note()
            self.clock.advance(3 * HOUR)
        complete = [point["complete"] for point in self.figures(-3 * HOUR)["points"]]
        self.assertIn(False, complete[:-1])

    def test_workers_that_live_and_tasks_that_run_count_until_now(self):
        worker_id, _ = self.live()
        self.add()
        row = self.claim(worker_id)
        for _ in range(20):
            self.clock.advance(10)
            self.renew(row, worker_id)
        [worker] = self.figures()["workers"]
        self.assertEqual((worker["alive_seconds"], worker["busy_seconds"], worker["tasks"]), (200, 200, 0))

    def test_a_service_that_lives_for_most_of_a_year_counts_all_the_time(self):
        start = self.clock.now() // HOUR * HOUR
        self.note("worker_started", at=start - 300 * DAY, worker_id=3, machine="m")
        self.note("worker_ended", at=start, worker_id=3, machine="m")
        self.assertEqual(self.figures(-300 * DAY, step="day")["totals"]["alive_seconds"], 300 * DAY)
        self.fold()
        self.assertEqual(self.figures(-300 * DAY, step="day")["totals"]["alive_seconds"], 300 * DAY)

    def test_of_a_batch_that_is_worked_off_one_task_runs_at_a_time(self):
        worker_id, _ = self.live()
        rows = [self.add() and self.claim(worker_id) for _ in range(3)]
        for _ in range(5):
            self.clock.advance(10)
            for row in rows:
                self.renew(row, worker_id)
        [worker] = self.figures()["workers"]
        self.assertEqual([worker[name] for name in ("alive_seconds", "busy_seconds", "utilization")],
                         [50, 50, 1])

    def test_a_base_of_throughput_measures_utilization(self):
        self.note("worker_started", at=self.clock.now() - HOUR, worker_id=3, machine="m")
        for _ in range(30):
            self.note("succeeded", worker_id=3, seconds=12.0)
        self.note("worker_ended", worker_id=3)
        [worker] = self.figures()["workers"]
        self.assertEqual([worker[name] for name in ("mean_throughput", "maximum_throughput", "utilization")],
                         [30.0, 300.0, 0.1])
        self.change_settings(throughput_base=60)
        [worker] = self.figures()["workers"]
        self.assertEqual((worker["maximum_throughput"], worker["utilization"]), (60, 0.5))

    def test_a_machine_that_was_off_for_days_did_not_live_then(self):
        worker_id, handle = self.live()
        self.clock.advance(10)
        with self.database.transaction() as transaction:
            self.queue.workers.heartbeat(transaction, worker_id, "idle", 0)
        self.die(handle)
        self.clean(3 * DAY)
        self.assertEqual(self.figures(-4 * DAY)["totals"]["alive_seconds"], 10)


class TestShown(CommandTestCase):

    def test_stats_prints_steps_functions_and_the_14_figures(self):
        self.add()
        self.run_one()
        said = self.ok("stats", "--since", "2d", "--step", "day", "--function", "add")
        self.assertRegex(said, r"(?m)^2027-01-15T00:00:00.000Z +1 +1 +0 +0 +0 +0 +- +#{30}$")
        self.assertRegex(said, r"(?m)^add +1 +1 ")
        for words in ("mean throughput +-", "utilization +-", "finished +1", "error +0",
                      "mean service time +0"):
            self.assertRegex(said, r"(?m)^%s$" % words)
        self.assertEqual(said.partition("ALL\n")[2].count("\n") + 1, 14)

    def test_its_json_is_the_apis_answer(self):
        self.add()
        told = self.json("stats", "--since", "2027-01-01T00:00:00Z")
        self.assertEqual((told["step"], told["totals"]["added"]), ("6h", 1))

    def test_a_time_that_is_none_is_refused(self):
        self.fails(2, "stats", "--since", "soon", words="--since must be")


class TestMoved(ExportTestCase):

    def numbers(self, queue):
        """{(function, queue, figure, part): number} of all time."""
        return {(*key, name, part): number for key, sums in queue.metrics.all_time().items()
                for name, told in sums.json().items()
                for part, number in (told.items() if isinstance(told, dict) else [("", told)])}

    def test_an_import_counts_nothing_twice_and_loses_nothing(self):
        write_history(self.database, history(3, self.clock.now()))
        self.queue.rollup.fold()
        write_history(self.database, history(1, self.clock.now(), seed=2))
        before = self.numbers(self.queue)
        lines = list(jobqueue.export_lines(self.queue))
        there = self.another_queue(data=self.folder / "there", environment=place_for(self, empty=True))
        jobqueue.import_lines(there, lines)
        self.clock.advance(61)
        while there.rollup.fold():
            pass
        after = self.numbers(there)
        self.assertEqual(set(after), set(before))
        for key, number in before.items():
            self.assertAlmostEqual(after[key], number, 3, key)


if __name__ == "__main__":
    unittest.main()
