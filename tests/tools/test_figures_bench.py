"""The bench of figures, made short: a day on which everything happens, counted three times."""
import unittest

from tests.helpers.figures import Count, differences
from tests.tools import figures_bench

# What must have happened, or the day proves too little.
HAPPENED = """
    added started succeeded failed retry crashed interrupted cancelled put_back follower worker_started
    worker_ended worker_lost timeout unknown_function by_schedules silent cancel_pending cancel_running
    delete_pending delete_running retry_failed retry_cancelled after_failed""".split()


class Days(unittest.TestCase):
    def test_every_figure_is_the_same_in_three_counts(self):
        with figures_bench.passing(**figures_bench.QUICK) as day:
            said = []
            day.live_through(said.append)
            self.assertEqual(day.compare(), [])
            self.assertEqual(sum(day.checked, []), [], said)
            self.assertEqual(day.clock.wall * 1024 % 1, 0, "sums may not be exact")
        words = [word.replace(" ", "_") for word in day.done]
        self.assertEqual([word for word in HAPPENED if not any(word in one for one in words)], [])


class Counts(unittest.TestCase):
    """The count beside which it is held sees what is wrong."""

    ROWS = [{"at": at, "event": event, "task_id": 1, "worker_id": None, "function": "f", "queue": "q",
             "waited": 1.0, "seconds": seconds, "service": 9.0, "cpu_seconds": None, "peak_memory": None}
            for at, event, seconds in ((3000.0, "added", None), (3599.5, "started", None),
                                       (7200.0, "succeeded", 8.0))]

    def told(self, rows, **more):
        return Count(rows).told(0, 10800, "hour", 10000, **more)

    def test_a_row_that_is_counted_twice_or_elsewhere_is_seen(self):
        right = self.told(self.ROWS)
        self.assertEqual([point["succeeded"] for point in right["points"]], [0, 0, 1])
        self.assertEqual(differences(right, self.told(self.ROWS)), [])
        late = [*self.ROWS[:2], {**self.ROWS[2], "at": 7199.0}]
        for wrong in (self.ROWS + self.ROWS[:1], late, self.ROWS[:2]):
            self.assertNotEqual(differences(right, self.told(wrong)), [])

    def test_percentiles_are_forgiven_nine_percent_and_nothing_else_is(self):
        for name, slack in (("p50", 0.08), ("p95", 0.08)):
            self.assertEqual(differences({name: 100 * (1 + slack)}, {name: 100.0}), [])
            self.assertNotEqual(differences({name: 110.0}, {name: 100.0}), [])
        self.assertNotEqual(differences({"sum": 100.000001}, {"sum": 100.0}), [])
        self.assertNotEqual(differences({"p95": None}, {"p95": 1.0}), [])
        self.assertNotEqual(differences([1], [1, 2]), [])


if __name__ == "__main__":
    unittest.main()
