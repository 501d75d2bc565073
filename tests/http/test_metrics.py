"""What was done and how long it took, as the API tells it."""
import unittest

from tests.helpers.web import WebTestCase


class TestFigures(WebTestCase):

    def run_some(self, count=3, **named):
        """Tasks of bob that wait a second and run two."""
        for _ in range(count):
            self.add("bob", **named)
            self.clock.advance(1)
            row = self.claim()
            self.clock.advance(2)
            self.end(row, seconds=2.0)

    def figures(self, query="", who=None):
        return self.check((who or self.ana).get("/api/metrics" + query), 200)

    def test_the_last_day_by_the_hour_is_answered(self):
        self.run_some()
        told = self.figures()
        self.assertEqual((told["step"], len(told["points"])), ("hour", 25))
        self.assertEqual([point["succeeded"] for point in told["points"]][-1], 3)
        self.assertEqual(told["totals"]["waited"], {
            "count": 3, "sum": 3.0, "min": 1.0, "max": 1.0, "mean": 1.0, "p50": 1.0, "p95": None})

    def test_it_is_the_same_before_and_after_it_is_folded(self):
        self.run_some()
        before = self.figures("?step=day")
        self.clean(61)
        self.assertEqual(self.database.value("SELECT count(*) FROM hour WHERE span=3600"), 1)
        self.assertEqual(self.figures("?step=day")["totals"], before["totals"])

    def test_more_points_than_a_chart_has_are_refused(self):
        self.check(self.ana.get("/api/metrics?from=2020-01-01T00:00:00Z"), 400, "malformed")
        self.check(self.ana.get("/api/metrics?from=2099-01-01T00:00:00Z"), 400, "malformed")
        self.check(self.ana.get("/api/metrics?step=month"), 400, "malformed")

    def test_users_see_the_functions_that_they_may_add_and_no_numbers_of_others(self):
        self.run_some(1)
        self.add("ana", "restart")
        told = self.figures(who=self.eve)
        self.assertEqual([(one["name"], one["recent"]) for one in told["functions"]], [
            ("add", [{"id": None, "status": "succeeded", "seconds": 2.0}])])
        self.assertEqual(told["totals"]["added"], 1)
        self.assertIsNotNone(self.figures(who=self.bob)["functions"][0]["recent"][0]["id"])
        self.assertEqual(self.figures(who=self.ana)["totals"]["added"], 2)


if __name__ == "__main__":
    unittest.main()
