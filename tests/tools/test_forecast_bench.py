"""The bench of forecasts, made short: what is told holds about as often as it should."""
import unittest

from tests.tools import forecast_bench


class Backtests(unittest.TestCase):
    def test_starts_and_ends_come_mostly_as_told(self):
        results = forecast_bench.backtests(8) + forecast_bench.backtests(1, far=True)
        for place in (1, 2):
            share, known = forecast_bench.rates(results, place)
            self.assertGreater(known, 35)
            self.assertTrue(0.55 <= share <= 0.95, share)

    def test_a_moment_is_held_against_what_was_told(self):
        told = ["2026-01-01T10:00:00Z", "2026-01-01T10:10:00Z"]
        begin = 1767261600
        for moment, holds in ((begin - 60, False), (begin, True), (begin + 600, True), (begin + 660, False)):
            self.assertIs(forecast_bench.holds(told, moment), holds)
        self.assertIsNone(forecast_bench.holds(None, begin))


if __name__ == "__main__":
    unittest.main()
