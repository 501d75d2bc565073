"""When rules are due: every form of them, clocks that change, and what is refused."""

import unittest

import jobqueue
from jobqueue import parse_rule


def at(text):
    """A moment as seconds since 1970."""
    return jobqueue.parse_moment(text).timestamp()


def runs(text, start, count=3, zone="UTC"):
    """The next moments of a rule as its zone shows them, without seconds that are 0."""
    rule = parse_rule(text, zone)
    return [rule.local(moment) for moment in rule.upcoming(at(start), count)]


class TestForms(unittest.TestCase):
    FORMS = (
        ("every 90", "2026-01-01T00:01:30 2026-01-01T00:03:00"),
        ("every 5m", "2026-01-01T00:05:00 2026-01-01T00:10:00"),
        ("Every 2 Hours", "2026-01-01T02:00:00 2026-01-01T04:00:00"),
        ("daily 01:30", "2026-01-01T01:30:00 2026-01-02T01:30:00"),
        ("weekly mon 01:00", "2026-01-05T01:00:00 2026-01-12T01:00:00"),
        ("weekly Monday,thu 1:00", "2026-01-01T01:00:00 2026-01-05T01:00:00"),
        ("monthly 31 01:00", "2026-01-31T01:00:00 2026-03-31T01:00:00"),
        ("monthly last 01:00", "2026-01-31T01:00:00 2026-02-28T01:00:00"),
        ("yearly 02-29 01:00", "2028-02-29T01:00:00 2032-02-29T01:00:00"),
        ("@hourly", "2026-01-01T01:00:00 2026-01-01T02:00:00"),
        ("@daily", "2026-01-02T00:00:00 2026-01-03T00:00:00"),
        ("@midnight", "2026-01-02T00:00:00 2026-01-03T00:00:00"),
        ("@weekly", "2026-01-04T00:00:00 2026-01-11T00:00:00"),
        ("@monthly", "2026-02-01T00:00:00 2026-03-01T00:00:00"),
        ("@Yearly", "2027-01-01T00:00:00 2028-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00 2028-01-01T00:00:00"),
    )

    def test_every_form(self):
        for text, expected in self.FORMS:
            with self.subTest(text):
                found = runs(text, "2026-01-01T00:00:00Z", 2)
                self.assertEqual([one[:-6] for one in found], expected.split())


if __name__ == "__main__":
    unittest.main()
