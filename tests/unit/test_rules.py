"""When rules are due: every form of them, clocks that change, and what is refused."""

import contextlib
import io
import json
import os
import unittest
from datetime import datetime, timedelta, timezone
from unittest import mock

import jobqueue
from jobqueue import Invalid, parse_moment, parse_rule, preview


def at(text):
    """A moment as seconds since 1970."""
    return parse_moment(text).timestamp()


def runs(text, start, count=3, zone="UTC"):
    """The next moments of a rule after a moment, as clocks of its zone show them."""
    rule = parse_rule(text, zone)
    return [rule.local(moment) for moment in rule.upcoming(at(start), count)]


class RuleTestCase(unittest.TestCase):
    def check(self, table, start, zone="UTC"):
        """Each row: a rule, and how its next moments begin."""
        for text, expected in table:
            with self.subTest(text):
                found = runs(text, start, len(expected.split()), zone)
                self.assertEqual([one[:len(part)] for one, part in zip(found, expected.split())],
                                 expected.split(), found)


class TestForms(RuleTestCase):
    def test_a_pace_or_a_time_of_day(self):
        self.check((
            ("every 90", "2026-01-01T00:01:30 2026-01-01T00:03:00"),
            ("every 5m", "2026-01-01T00:05:00 2026-01-01T00:10:00"),
            ("Every  2 Hours", "2026-01-01T02:00:00 2026-01-01T04:00:00"),
            ("every 1 day", "2026-01-02T00:00:00 2026-01-03T00:00:00"),
            ("daily 01:30", "2026-01-01T01:30:00 2026-01-02T01:30:00"),
            ("weekly mon 01:00", "2026-01-05T01:00:00 2026-01-12T01:00:00"),
            ("weekly Monday,thu 1:00", "2026-01-01T01:00:00 2026-01-05T01:00:00"),
            ("monthly 31 01:00", "2026-01-31T01:00:00 2026-03-31T01:00:00"),
            ("monthly last 01:00", "2026-01-31T01:00:00 2026-02-28T01:00:00"),
            ("yearly 02-29 01:00", "2028-02-29T01:00:00 2032-02-29T01:00:00"),
        ), "2026-01-01T00:00:00Z")

    def test_names_for_cron_expressions(self):
        self.check((
            ("@hourly", "2026-01-01T01:00 2026-01-01T02:00"),
            ("@daily", "2026-01-02T00:00 2026-01-03T00:00"),
            ("@midnight", "2026-01-02T00:00 2026-01-03T00:00"),
            ("@weekly", "2026-01-04T00:00 2026-01-11T00:00"),
            ("@monthly", "2026-02-01T00:00 2026-03-01T00:00"),
            ("@Yearly", "2027-01-01T00:00 2028-01-01T00:00"),
            ("@annually", "2027-01-01T00:00 2028-01-01T00:00"),
        ), "2026-01-01T00:00:00Z")

    def test_times_of_cron(self):
        self.check((
            ("* * * * *", "2026-01-01T00:01 2026-01-01T00:02"),
            ("*/20 9-10 * * *", "2026-01-01T09:00 2026-01-01T09:20 2026-01-01T09:40 2026-01-01T10:00"),
            ("5,1-2 0 * * *", "2026-01-01T00:01 2026-01-01T00:02 2026-01-01T00:05 2026-01-02"),
            ("50/4 23 * * *", "2026-01-01T23:50 2026-01-01T23:54 2026-01-01T23:58 2026-01-02T23:50"),
            ("0 8-18/5 * * *", "2026-01-01T08 2026-01-01T13 2026-01-01T18 2026-01-02T08"),
            ("*/25 * * * * *", "2026-01-01T00:00:25 2026-01-01T00:00:50 2026-01-01T00:01:00"),
            ("7 6 5 4 3 *", "2026-03-04T05:06:07 2027-03-04T05:06:07"),
        ), "2026-01-01T00:00:00Z")

    def test_days_of_cron(self):
        self.check((
            ("0 0 * * mon-FRI", "2026-01-02 2026-01-05 2026-01-06"),
            ("0 0 * * 7", "2026-01-04 2026-01-11"),
            ("0 0 * * Sunday,3", "2026-01-04 2026-01-07"),
            ("0 0 * * 5-7", "2026-01-02 2026-01-03 2026-01-04 2026-01-09"),
            ("0 0 1 jan,JUL *", "2026-07-01 2027-01-01"),
            ("0 0 L * *", "2026-01-31 2026-02-28 2026-03-31"),
            ("0 0 LW * *", "2026-01-30 2026-02-27 2026-03-31 2026-04-30 2026-05-29"),
            ("0 0 l,15 2 *", "2026-02-15 2026-02-28 2027-02-15"),
            ("0 0 * * 5L", "2026-01-30 2026-02-27 2026-03-27"),
            ("0 0 * * fril", "2026-01-30 2026-02-27 2026-03-27"),
            ("0 0 * * 5#2", "2026-01-09 2026-02-13"),
            ("0 0 * * Fri#5", "2026-01-30 2026-05-29 2026-07-31"),
            ("0 0 * * mon#1,7L", "2026-01-05 2026-01-25 2026-02-02"),
        ), "2026-01-01T00:00:00Z")

    def test_day_and_weekday_add_up_unless_one_begins_with_a_star(self):
        self.check((
            ("0 0 13 * 5", "2026-01-02 2026-01-09 2026-01-13 2026-01-16"),
            ("0 0 */12 * 5", "2026-02-13 2026-03-13 2026-05-01"),
            ("0 0 13 * */5", "2026-02-13 2026-03-13 2026-09-13"),
            ("0 0 1-31 * mon", "2026-01-02 2026-01-03"),
            ("0 0 30 2 mon", "2026-02-02 2026-02-09"),
        ), "2026-01-01T00:00:00Z")

    def test_leap_years_and_centuries(self):
        self.check((
            ("0 0 29 2 *", "2096-02-29 2104-02-29"),
            ("0 0 */28 2 1#5", "2112-02-29 2140-02-29"),
            ("0 0 L 2 *", "2096-02-29 2097-02-28 2098-02-28 2099-02-28 2100-02-28 2101-02-28"),
            ("0 0 31 12 fri", "2095-12-02 2095-12-09"),
        ), "2095-12-01T00:00:00Z")

    def test_every_counts_from_its_start_before_and_after_it(self):
        rule = parse_rule("every 1h", start=1_000_000_000.25)
        self.assertEqual(rule.next_after(1_000_000_000.25), 1_000_003_600.25)
        self.assertEqual(rule.next_after(1_000_003_600.0), 1_000_003_600.25)
        self.assertEqual(rule.next_after(999_999_999), 1_000_000_000.25)
        self.assertEqual(rule.next_after(999_990_000), 999_992_800.25)

    def test_a_rule_keeps_its_text_with_single_spaces(self):
        rule = parse_rule(" 0\t1  * * Mon\n", "Europe/Oslo")
        self.assertEqual((rule.text, rule.zone), ("0 1 * * Mon", "Europe/Oslo"))
        self.assertEqual(parse_rule(rule.text, rule.zone).next_after(0), rule.next_after(0))


class TestClockChanges(RuleTestCase):
    SPRING, AUTUMN = "2026-03-28T23:00:00Z", "2026-10-24T23:00:00Z"     # Oslo: 02:00 to 03:00 and back

    def test_what_is_skipped_runs_right_after(self):
        self.check((
            ("30 2 * * *", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"),
            ("daily 02:30", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"),
            ("0,30 2 * * *", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"),
            ("30 2,3 * * *", "2026-03-29T03:00:00+02:00 2026-03-29T03:30:00+02:00 2026-03-30T02:30"),
            ("0 2,3 * * *", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"),
        ), self.SPRING, "Europe/Oslo")

    def test_what_is_repeated_runs_the_first_time(self):
        self.check((
            ("30 2 * * *", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"),
            ("weekly sun 02:30", "2026-10-25T02:30:00+02:00 2026-11-01T02:30:00+01:00"),
            ("0 2,3 * * *", "2026-10-25T02:00:00+02:00 2026-10-25T03:00:00+01:00"),
        ), self.AUTUMN, "Europe/Oslo")

    def test_what_has_a_star_or_seconds_follows_the_clocks(self):
        table = (
            ("*/30 * * * *", "2026-03-29T01:30:00+01:00 2026-03-29T03:00:00+02:00"),
            ("*/30 2 * * *", "2026-03-30T02:00:00+02:00"),
            ("30 */2 * * *", "2026-03-29T04:30:00+02:00"),
            ("0 30 2 * * *", "2026-03-30T02:30:00+02:00"),
        )
        self.check(table, "2026-03-29T00:15:00Z", "Europe/Oslo")
        table = (
            ("30 * * * *", "2026-10-25T01:30:00+02:00 2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00 "
                           "2026-10-25T03:30:00+01:00"),
            ("*/40 2 * * *", "2026-10-25T02:00:00+02:00 2026-10-25T02:40:00+02:00 2026-10-25T02:00:00+01:00 "
                             "2026-10-25T02:40:00+01:00 2026-10-26T02:00:00+01:00"),
            ("0 30 2 * * *", "2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00 2026-10-26T02:30:00+01:00"),
        )
        self.check(table, self.AUTUMN, "Europe/Oslo")

    def test_every_goes_by_the_seconds(self):
        self.assertEqual(runs("every 1h", self.SPRING, 3, "Europe/Oslo"), [
            "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"])

    def test_the_next_is_later_even_in_a_repeated_hour(self):
        self.assertEqual(runs("30 1 * * *", "2026-11-01T01:20:00-05:00", 1, "America/New_York"),
                         ["2026-11-02T01:30:00-05:00"])

    def test_from_the_first_of_two_hours_to_the_second(self):
        for start, expected in (("2026-11-01T01:40:00-04:00", "2026-11-01T01:30:00-05:00"),
                                ("2026-11-01T01:30:00-05:00", "2027-11-07T01:30:00-04:00"),
                                ("2026-11-01T01:29:59-04:00", "2026-11-01T01:30:00-04:00")):
            self.assertEqual(runs("0 30 1 * 11 sun#1", start, 1, "America/New_York"), [expected])

    def test_a_change_of_half_an_hour(self):
        zone = "Australia/Lord_Howe"
        self.assertEqual(runs("15 2 * * *", "2026-10-03T00:00:00Z", 2, zone),
                         ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"])
        self.assertEqual(runs("*/15 1-2 * * *", "2026-04-04T14:29:00Z", 5, zone), [
            "2026-04-05T01:30:00+11:00", "2026-04-05T01:45:00+11:00", "2026-04-05T01:30:00+10:30",
            "2026-04-05T01:45:00+10:30", "2026-04-05T02:00:00+10:30"])

    def test_a_change_at_midnight(self):
        self.assertEqual(runs("@daily", "2017-10-14T12:00:00Z", 2, "America/Sao_Paulo"),
                         ["2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00"])
        self.assertEqual(runs("30 23 * * *", "2018-02-17T12:00:00Z", 2, "America/Sao_Paulo"),
                         ["2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"])
        self.assertEqual(runs("0 0 * * *", "2026-03-28T12:00:00Z", 2, "Asia/Beirut"),
                         ["2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"])

    def test_a_day_that_never_was(self):
        self.assertEqual(runs("daily 01:30", "2011-12-29T12:00:00Z", 2, "Pacific/Apia"),
                         ["2011-12-31T00:00:00+14:00", "2011-12-31T01:30:00+14:00"])
        self.assertEqual(runs("30 */12 * * *", "2011-12-30T00:00:00Z", 2, "Pacific/Apia"),
                         ["2011-12-31T00:30:00+14:00", "2011-12-31T12:30:00+14:00"])

    # Zones, and the first of three days in which their clocks change.
    WINDOWS = (("Europe/Oslo", "2026-03-28"), ("Europe/Oslo", "2026-10-24"), ("America/Havana", "2026-10-31"),
               ("Australia/Lord_Howe", "2026-04-03"), ("Australia/Lord_Howe", "2026-10-02"),
               ("America/St_Johns", "2005-10-29"), ("America/St_Johns", "2005-04-02"),
               ("Africa/Cairo", "2026-04-22"), ("Pacific/Chatham", "2026-09-25"))
    # What follows the clocks, and what it means.
    FOLLOWING = (("* * * * *", lambda wall: True),
                 ("*/20 0-3 * * *", lambda wall: wall.minute % 20 == 0 and wall.hour < 4),
                 ("* 1 * * *", lambda wall: wall.hour == 1),
                 ("17 */2 * * *", lambda wall: wall.minute == 17 and wall.hour % 2 == 0))

    def test_against_a_look_at_every_minute(self):
        for zone, day in self.WINDOWS:
            start = at(day + "T00:00:00Z")
            rules = [(parse_rule(text, zone), means) for text, means in self.FOLLOWING]
            shown = [(moment, datetime.fromtimestamp(moment, rules[0][0].tzinfo))
                     for moment in range(int(start) + 60, int(start) + 3 * 86400, 60)]
            for rule, means in rules:
                with self.subTest(zone=zone, rule=rule.text):
                    expected = [moment for moment, wall in shown if means(wall)]
                    self.assertEqual(rule.upcoming(start, len(expected)), expected)


class TestSearch(unittest.TestCase):
    def test_it_starts_after_the_moment_and_not_at_it(self):
        rule = parse_rule("*/5 * * * * *")
        for moment, expected in ((99.999, 100), (100, 105), (100.5, 105), (0, 5)):
            self.assertEqual(rule.next_after(moment), expected)

    def test_nothing_is_due_after_the_last_year(self):
        last = at("9000-01-01T00:00:00Z")
        for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
            for text in ("@daily", "* * * * *", "every 1h", "0 0 29 2 *"):
                rule = parse_rule(text, zone)
                self.assertIsNone(rule.next_after(1e300))
                self.assertIsNone(rule.next_after(last))
                self.assertEqual(len(preview(rule, last - 1, 2)), 1)

    def test_the_rarest_days_are_found(self):
        rule = parse_rule("0 0 */28 2 1#5", "Europe/Oslo")
        self.assertEqual(len(rule.upcoming(at("2026-01-01T00:00:00Z"), 250)), 250)


class TestRefusals(unittest.TestCase):
    def refused(self, text, words, zone="UTC", field="rule"):
        with self.subTest(text), self.assertRaises(Invalid) as caught:
            parse_rule(text, zone)
        self.assertEqual([error["field"] for error in caught.exception.errors], [field])
        self.assertIn(words, caught.exception.detail)
        self.assertLess(len(caught.exception.detail), 400)

    def test_what_is_wrong_is_named_and_what_would_be_right(self):
        for text, words in (
            ("60 * * * *", '"60" as minute: write 0 to 59'),
            ("* 24 * * *", "hour: write 0 to 23"),
            ("* * 0 * *", "day of the month: write 1 to 31"),
            ("* * * 13 *", "month: write 1 to 12, jan to dec"),
            ("* * * mon *", "month: write 1 to 12, jan to dec"),
            ("* * * * 8", "weekday: write 0 to 7, sun to sat"),
            ("60 * * * * *", "second: write 0 to 59"),
            ("0 22-2 * * *", "hour: write 0 to 23; a range runs forwards"),
            ("0 0 * * fri-mon", "a range runs forwards"),
            ("*/0 * * * *", "a step stays within it"),
            ("*/90 * * * *", "a step stays within it"),
            ("* * * * L5", "5L (the last Friday)"),
            ("* * * * 5#6", "5#2 (the second)"),
            ("* * L-3 * *", "L (the last)"),
            ("* * * *", "five fields of cron"),
            ("0 0 0 * * * 2026", "six with the seconds first"),
            ("soon", "weekly mon 01:00"),
            ("", "weekly mon 01:00"),
            ("every 0", "every 1 second"),
            ("every 0.5", "every 5m"),
            ("every 3651d", "3650 days"),
            ("every 5 fortnights", "every 2 hours"),
            ("daily", "daily 01:30"),
            ("daily 25:00", "write 0 to 23"),
            ("weekly 01:00", "weekly mon 01:00"),
            ("monthly 32 01:00", "write 1 to 31"),
            ("yearly 24.12. 01:00", "yearly 12-24 01:00"),
            ("@reboot", "@daily"),
        ):
            self.refused(text, words)

    def test_what_is_not_quite_cron(self):
        for text in ("1,,2 * * * *", ", * * * *", "1- * * * *", "-1 * * * *", "*-5 * * * *", "1/ * * * *",
                     "1//2 * * * *", "* * L/2 * *", "* * 15W * *", "* * ? * *", "H * * * *", "~ * * * *",
                     "0x1 * * * *", "1e1 * * * *", "1_0 * * * *", "+1 * * * *", "mon * * * *"):
            self.refused(text, "cannot have")

    def test_what_never_comes(self):
        for text in ("0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "yearly 02-30 01:00", "0 0 LW * */6"):
            with self.subTest(text), self.assertRaisesRegex(Invalid, "rule never comes"):
                preview(parse_rule(text), 2e9, 1)

    def test_what_the_clocks_always_skip(self):
        rule = parse_rule("0 30 2 * 3 0#2", "America/New_York")
        with self.assertRaisesRegex(Invalid, "never comes: .* the clocks of America/New_York always skip"):
            preview(rule, 2e9, 1)
        self.assertEqual(rule.local(rule.next_after(0))[:19], "1970-03-08T02:30:00")

    def test_hostile_texts(self):
        for text in ("٣ * * * *", "0 0 * * ſun", "0\0 * * * *", "\x1b[31m", "1" * 501,
                     "1," * 300 + "1 * * * *"):
            self.refused(text, "at most 500 plain characters")
        for text in (None, 5, ["daily"],
                     "9" * 400 + " * * * *", "*/" + "9" * 400 + " * * * *", "* * * * 1#" + "1" * 400,
                     "a" * 490, "every " + "9" * 400, "daily " + "0" * 400 + "1:00", "(" * 490, "{day} " * 5):
            self.refused(text, "")

    def test_the_longest_lists(self):
        rule = parse_rule("%s %s * * * *" % ((",".join(map(str, range(60))),) * 2))
        self.assertEqual(rule.next_after(100), 101)

    def test_time_zones(self):
        for zone in ("Europe/Atlantis", "oslo", "../../etc/passwd", "/etc/localtime", "America",
                     "Europe/Oslo\0", "x" * 99, "", None, 5):
            self.refused("daily 01:00", "must be the name of a time zone, such as Europe/Oslo", zone, "zone")

    def test_without_zone_data_there_is_utc(self):
        with mock.patch("zoneinfo.ZoneInfo", side_effect=KeyError), \
                mock.patch("zoneinfo.ZoneInfoNotFoundError", KeyError), \
                mock.patch("zoneinfo.available_timezones", return_value=set()):
            self.refused("daily 01:00", "this machine has no time zone data", "Europe/Oslo", "zone")
            self.assertEqual(parse_rule("daily 01:00").next_after(0), 3600)


class TestWords(unittest.TestCase):
    WORDS = (
        ("every 90", "Every 90 seconds"),
        ("every 60m", "Every hour"),
        ("every 2 days", "Every 2 days"),
        ("weekly mon 01:00", "Every Monday at 01:00"),
        ("daily 01:30", "Every day at 01:30"),
        ("0 1,13 * * 1-5,7", "Every Monday to Friday and Sunday at 01:00 and 13:00"),
        ("monthly 15 01:00", "Every 15th of the month at 01:00"),
        ("monthly 31 01:00", "Every 31st of the month at 01:00"),
        ("monthly last 01:00", "Every last day of the month at 01:00"),
        ("0 1 LW * *", "Every last working day of the month at 01:00"),
        ("yearly 02-29 01:00", "Every 29th of February at 01:00"),
        ("0 1 * jan,jul mon", "Every Monday in January and July at 01:00"),
        ("0 1 * * 5#2,5L", "Every 2nd Friday of the month and last Friday of the month at 01:00"),
        ("0 1 1,2,3,22 * 5", "Every 1st to 3rd and 22nd of the month and every Friday at 01:00"),
        ("0 1 */15 * 5", "Every 1st, 16th and 31st of the month that is a Friday at 01:00"),
        ("@hourly", "At minute 0 of every hour"),
        ("*/15 * * * *", "Every 15 minutes of every hour"),
        ("*/15 9-17 * * mon-fri", "Every 15 minutes of hours 9 to 17, every Monday to Friday"),
        ("0 9-17 * * *", "At minute 0 of hours 9 to 17"),
        ("5 */2 1 * *", "At minute 5 of every 2 hours, every 1st of the month"),
        ("*/7 * * * *", "At minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("* * * * * *", "Every second of every minute of every hour"),
        ("*/10 5 * * * *", "Every 10 seconds of minute 5 of every hour"),
        ("30 0 1 * * *", "Every day at 01:00:30"),
    )

    def test_rules_in_plain_english(self):
        for text, words in self.WORDS:
            with self.subTest(text):
                zone = "" if text.startswith("every") else " (Europe/Oslo)"
                self.assertEqual(parse_rule(text, "Europe/Oslo").words(), words + zone)


class TestPreview(unittest.TestCase):
    def notes(self, text, start, zone, count=3):
        return [row["note"] for row in preview(parse_rule(text, zone), at(start), count)]

    def test_what_people_see_of_a_rule(self):
        self.assertEqual(preview(parse_rule("daily 02:30", "Europe/Oslo"), at("2026-03-28T12:00:00Z"), 2), [
            {"at": "2026-03-29T01:00:00.000Z", "local": "2026-03-29T03:00:00+02:00",
             "note": "the clocks go forward on this day"},
            {"at": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00+02:00", "note": None}])

    def test_a_note_tells_on_which_day_the_clocks_change(self):
        for zone, start, way in (
            ("Europe/Oslo", "2026-10-24T20:00:00Z", "back"),
            ("Australia/Lord_Howe", "2026-04-04T12:00:00Z", "back"),
            ("America/Sao_Paulo", "2017-10-14T20:00:00Z", "forward"),
            ("America/Havana", "2026-10-31T20:00:00Z", "back"),
            ("Pacific/Apia", "2011-12-30T10:30:00Z", "forward"),
        ):
            with self.subTest(zone):
                self.assertEqual(self.notes("0 12 * * *", start, zone, 2), [
                    "the clocks go %s on this day" % way, None])

    def test_no_clocks_change_in_utc(self):
        self.assertEqual(set(self.notes("0 */6 * * *", "2026-03-28T12:00:00Z", "UTC", 999)), {None})

    def test_the_same_moment_in_every_zone(self):
        for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
            shown = parse_rule("@daily", zone).local(1_800_000_000)
            self.assertEqual(parse_moment(shown), datetime(1970, 1, 1, tzinfo=timezone.utc)
                             + timedelta(seconds=1_800_000_000))


class TestCommand(unittest.TestCase):
    def run_command(self, *arguments):
        """Run `schedule preview` where nothing is set up; its exit code, what it printed and complained."""
        out, err = io.StringIO(), io.StringIO()
        mask = os.umask(0o077)
        self.addCleanup(os.umask, mask)
        with mock.patch.object(jobqueue, "JobQueue", side_effect=AssertionError), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = jobqueue.main(["schedule", "preview", *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_it_prints_times_of_the_zone_one_a_line(self):
        start = ("--tz", "Europe/Oslo", "--from", "2026-03-28T12:00:00Z", "--count", "2")
        for rule in (["30 2 * * *"], ["30", "2", "*", "*", "*"], ["daily", "02:30"]):
            self.assertEqual(self.run_command(*rule, *start),
                             (0, "2026-03-29T03:00:00+02:00\n2026-03-30T02:30:00+02:00\n", ""))

    def test_it_prints_ten_from_now_in_utc_unless_told_otherwise(self):
        code, out, err = self.run_command("every 5m")
        self.assertEqual((code, len(out.splitlines()), err), (0, 10, ""))
        self.assertLessEqual(at(out.splitlines()[0]) - jobqueue.Clock.now(), 300)
        self.assertTrue(out.endswith("+00:00\n"))
        out = self.run_command("every 2h", "--from", "2026-03-28T12:05:00Z", "--count", "1")[1]
        self.assertEqual(out, "2026-03-28T14:05:00+00:00\n")

    def test_as_json_it_is_what_the_api_answers(self):
        code, out, _ = self.run_command("@daily", "--from", "2026-03-28T12:00:00Z", "--json", "--count", "2")
        self.assertEqual((code, [moment["local"] for moment in json.loads(out)["times"]]), (0, [
            "2026-03-29T00:00:00+00:00", "2026-03-30T00:00:00+00:00"]))

    def test_it_says_what_is_wrong_in_one_line(self):
        for arguments in (["0 0 30 2 *"], ["daily 01:00", "--tz", "Atlantis"], []):
            code, out, err = self.run_command(*arguments)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1))
            self.assertTrue(err.startswith("jobqueue: "))


if __name__ == "__main__":
    unittest.main()
