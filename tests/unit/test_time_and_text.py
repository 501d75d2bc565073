"""Times, texts and JSON at the borders."""

import json
import time
import unittest
from datetime import date, datetime, time as clock_time, timezone
from enum import Enum
from pathlib import Path

import jobqueue
from jobqueue import dump_json, iso, load_json, parse_time, shorten, storable


class Colour(Enum):
    RED = "red"
    BLUE = (0, 0, 255)


class TestTime(unittest.TestCase):
    def test_a_time_is_written_in_utc_with_milliseconds(self):
        self.assertEqual(iso(0), "1970-01-01T00:00:00.000Z")
        self.assertEqual(iso(1_800_000_000.0456), "2027-01-15T08:00:00.046Z")

    def test_no_time_stays_none(self):
        self.assertIsNone(iso(None))

    def test_almost_a_second_is_rounded_up_into_the_next_one(self):
        self.assertEqual(iso(59.9999), "1970-01-01T00:01:00.000Z")

    def test_what_is_written_is_read_back(self):
        for seconds in (0.0, 1_800_000_000.123, 4_102_444_799.999):
            self.assertAlmostEqual(parse_time(iso(seconds), "run_at"), seconds, places=3)

    def test_an_offset_counts(self):
        self.assertEqual(parse_time("1970-01-01T02:00:00+02:00", "run_at"), 0)
        self.assertEqual(parse_time("1970-01-01t00:00:01z".upper(), "run_at"), 1)

    def test_a_time_without_offset_is_refused_by_the_name_of_its_field(self):
        with self.assertRaises(jobqueue.Invalid) as caught:
            parse_time("2026-01-31T12:00:00", "run_at")
        self.assertEqual(caught.exception.errors[0]["field"], "run_at")
        self.assertIn("offset", caught.exception.errors[0]["message"])

    def test_what_is_no_time_is_refused(self):
        for text in ("", "soon", "2026-13-01T00:00:00Z", None, 5, "2026-01-31", "9999-12-31T23:59:59-23:59x"):
            with self.subTest(text), self.assertRaises(jobqueue.Invalid):
                parse_time(text, "run_at")

    def test_milliseconds_as_browsers_write_them_are_read_on_every_python(self):
        for text in ("2026-11-21T01:10:00.000Z", "2026-11-21T01:10:00.5Z", "2026-11-21T01:10:00.123456Z"):
            with self.subTest(text):
                self.assertEqual(int(parse_time(text, "run_at")), 1795223400)

    def test_the_same_time_is_refused_on_every_python(self):
        for text in (
            "20261121T011000Z",
            "2026-W47-6T01:10:00Z",
            "2026-11-21T01:10:00,5Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T01Z",
        ):
            with self.subTest(text), self.assertRaises(jobqueue.Invalid):
                parse_time(text, "run_at")

    def test_the_clock_is_the_real_one_unless_told_otherwise(self):
        self.assertAlmostEqual(jobqueue.Clock.now(), time.time(), delta=5)
        self.assertTrue(1 <= jobqueue.Clock.uniform(1, 2) <= 2)


class TestText(unittest.TestCase):
    def test_what_sqlite_cannot_keep_is_shown_as_an_escape(self):
        self.assertEqual(storable("a\0b\ud800c"), "a\\x00b\\ud800c")

    def test_ordinary_text_stays_as_it_is(self):
        self.assertEqual(storable("Åse & 日本 \n"), "Åse & 日本 \n")

    def test_a_long_text_is_shortened_to_one_line(self):
        self.assertEqual(shorten("a  b\n c", 10), "a b c")
        self.assertEqual(shorten("abcdefghij", 5), "abcd…")
        self.assertEqual(len(shorten("x" * 500, 60)), 60)

    def test_a_digest_tells_tokens_apart_and_nothing_else(self):
        self.assertNotEqual(jobqueue.digest("jq_a"), jobqueue.digest("jq_b"))
        self.assertEqual(len(jobqueue.digest("\ud800")), 64)

    def test_the_machine_and_the_boot_have_names(self):
        self.assertTrue(jobqueue.machine_name())
        self.assertEqual(jobqueue.boot_id(), jobqueue.boot_id())


class TestJson(unittest.TestCase):
    def test_values_of_python_become_what_json_has(self):
        value = {
            "day": date(2026, 1, 31),
            "at": datetime(2026, 1, 31, 12, tzinfo=timezone.utc),
            "time": clock_time(14, 30),
            "path": Path("a/b"),
            "pair": (1, 2),
            "one": {3},
            "red": Colour.RED,
            "blue": Colour.BLUE,
        }
        self.assertEqual(
            json.loads(dump_json(value)),
            {
                "day": "2026-01-31",
                "at": "2026-01-31T12:00:00+00:00",
                "time": "14:30:00",
                "path": "a/b",
                "pair": [1, 2],
                "one": [3],
                "red": "red",
                "blue": "BLUE",
            },
        )

    def test_nan_and_infinity_are_refused(self):
        for value in (float("nan"), [float("inf")]):
            with self.assertRaises(ValueError):
                dump_json(value)

    def test_what_has_no_json_is_refused_by_its_type(self):
        with self.assertRaisesRegex(TypeError, "object cannot be written as JSON"):
            dump_json({"x": object()})

    def test_half_a_character_is_written_as_an_escape(self):
        text = dump_json(["\ud800", "é"])
        text.encode("utf-8")
        self.assertEqual(json.loads(text), ["\ud800", "é"])

    def test_json_from_outside_is_read(self):
        self.assertEqual(load_json('{"a": [1, 2.5, null, true, "x"]}'), {"a": [1, 2.5, None, True, "x"]})

    def test_what_others_would_read_differently_is_refused(self):
        for text in (
            "NaN",
            "[Infinity]",
            "-Infinity",
            '{"a":1,"a":2}',
            "9007199254740993",
            "1e999",
            '"\\u0000"',
            '"\\ud800"',
            '{"\\udc00":1}',
            "",
            "{",
            "[1,]",
            "nul",
            "1" * 400,
        ):
            with self.subTest(text[:20]), self.assertRaises(jobqueue.Malformed):
                load_json(text)

    def test_the_deepest_json_that_is_read(self):
        deep = jobqueue.JSON_MAX_DEPTH
        self.assertTrue(load_json("[" * deep + "]" * deep))
        for levels in (deep + 2, 100_000):
            with self.assertRaises(jobqueue.Malformed):
                load_json("[" * levels + "]" * levels)

    def test_a_number_of_many_digits_is_refused_without_working_on_it(self):
        with self.assertRaises(jobqueue.Malformed):
            load_json("1" * 100_000)

    def test_both_halves_of_a_character_are_one_character(self):
        self.assertEqual(load_json('"\\ud83d\\ude00"'), "😀")
