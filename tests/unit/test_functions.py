"""Checking values against a schema, reading what was typed, telling arguments in words."""

import json
import unittest

import jobqueue
from jobqueue import check_value, dump_json, parse_text, summarize


def message(schema, value):
    """What is wrong, or None."""
    errors = check_value(schema, value, "x")
    return errors[0]["message"] if errors else None


class TestCheckValue(unittest.TestCase):
    def right(self, schema, *values):
        for value in values:
            self.assertIsNone(message(schema, value), value)

    def wrong(self, schema, words, *values):
        for value in values:
            self.assertIn(words, message(schema, value) or "nothing", value)

    def test_texts(self):
        self.right({"type": "string"}, "", "Oslo", "é")
        self.wrong({"type": "string"}, "must be a text", 1, None, True, ["a"])

    def test_whole_numbers(self):
        self.right({"type": "integer"}, 0, -5, 3.0)
        self.wrong({"type": "integer"}, "must be a whole number", 2.5, "3", True, None)
        self.wrong({"type": "integer"}, "must be from -9007199254740992 to", 1e16, -1e300, 10 ** 30)

    def test_numbers(self):
        self.right({"type": "number"}, 0, 2.5)
        self.wrong({"type": "number"}, "must be a number", "2", False, None)

    def test_true_and_false_are_no_numbers_and_the_reverse(self):
        self.right({"type": "boolean"}, True, False)
        self.wrong({"type": "boolean"}, "must be true or false", 1, 0, "true")

    def test_several_types(self):
        schema = {"type": ["integer", "null"]}
        self.right(schema, 5, None)
        self.wrong(schema, "must be a whole number or empty", "5")

    def test_choices_tell_1_from_true_and_from_1_0(self):
        schema = {"enum": [1, "a", None]}
        self.right(schema, 1, "a", None)
        self.wrong(schema, "must be one of 1, a, null", True, 1.0, "b", 2)

    def test_an_enums_names_are_known_and_shown_beside_its_values(self):
        schema = {"enum": [1, 2, None], "enumNames": ["LOW", "HIGH"]}
        self.right(schema, 1, 2, None, "LOW", "HIGH")
        self.wrong(schema, "must be one of LOW, HIGH, null", 3, "low", "1", True, ["LOW"])
        for text, value in (("1", 1), ("HIGH", "HIGH"), ("", None), ("low", "low")):
            self.assertEqual(parse_text(schema, text), value)
        crossed = {"enum": ["b", "a"], "enumNames": ["a", "b"]}
        self.assertEqual(parse_text(crossed, "b"), "b", "a value goes before a name")

    def test_lists_name_the_place_of_what_is_wrong(self):
        schema = {"type": "array", "items": {"type": "integer"}}
        self.right(schema, [], [1, 2])
        self.assertEqual(
            check_value(schema, [1, "b", 3, None], "x"),
            [
                {"field": "x[1]", "message": "must be a whole number"},
                {"field": "x[3]", "message": "must be a whole number"},
            ],
        )

    def test_objects_name_what_is_missing_and_what_is_unknown(self):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        self.assertEqual(
            check_value(schema, {"b": 1}, "arguments"),
            [
                {"field": "arguments.b", "message": "is not known here; known are a"},
                {"field": "arguments.a", "message": "is missing"},
            ],
        )
        self.assertEqual(check_value(schema, {"a": 1}, "arguments"), [])

    def test_other_names_may_be_allowed(self):
        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        self.assertEqual(check_value(schema, {"anything": [1]}, ""), [])

    def test_bounds(self):
        self.wrong({"type": "number", "minimum": 1, "maximum": 5}, "must be at least 1 and at most 5", 0, 6)
        self.wrong({"type": "number", "minimum": 1}, "must be at least 1", 0)
        self.wrong({"type": "number", "maximum": 5}, "must be at most 5", 6)
        self.right({"type": "number", "minimum": 1, "maximum": 5}, 1, 5)

    def test_patterns_must_match_the_whole_text(self):
        schema = {"type": "string", "pattern": "[a-z]+", "patternMessage": "must be small letters"}
        self.right(schema, "abc")
        self.wrong(schema, "must be small letters", "abc1", "abc\n", "")

    def test_dates(self):
        schema = {"type": "string", "format": "date"}
        self.right(schema, "2026-01-31", "2024-02-29")
        self.wrong(
            schema,
            "must be a date such as",
            "2026-02-30",
            "31.1.2026",
            "20260131",
            "2026-01-31T00:00",
            "２０２６-01-31",
            "",
        )

    def test_times_of_day(self):
        schema = {"type": "string", "format": "time"}
        self.right(schema, "14:30", "14:30:59")
        self.wrong(schema, "must be a time such as", "25:00", "2 pm", "")

    def test_times_of_day_are_the_same_on_every_python(self):
        self.wrong({"type": "string", "format": "time"}, "must be a time such as", "1430", "T14:30", "14")

    def test_moments_need_an_offset(self):
        schema = {"type": "string", "format": "date-time"}
        self.right(schema, "2026-01-31T12:00:00Z", "2026-01-31T12:00:00+02:00")
        self.wrong(schema, "with an offset", "2026-01-31T12:00:00", "2026-01-31", "")

    def test_a_schema_without_a_type_takes_anything(self):
        self.right({}, 1, "a", None, [1], {"a": 1})

    def test_an_empty_value_is_no_date(self):
        self.right({"type": ["string", "null"], "format": "date"}, None)

    def test_the_options_of_tasks_are_checked_like_everything_else(self):
        for name, value in (
            ("queue", "no spaces here"),
            ("queue", ""),
            ("queue", "x" * 51),
            ("priority", 101),
            ("priority", 1.5),
            ("timeout", 0),
            ("retry_backoff", 0.5),
            ("on_crash", "ignore"),
            ("max_retries", -1),
            ("retry_delay", 30 * 86400 + 1),
        ):
            self.assertTrue(check_value(jobqueue.TASK_OPTIONS[name][0], value, name), (name, value))
        for name, (schema, default) in jobqueue.TASK_OPTIONS.items():
            self.assertEqual(check_value(schema, default, name), [])

    def test_large_and_small_floats(self):
        self.right({"type": "integer"}, 1e15)
        self.wrong({"type": "integer", "maximum": 10}, "must be at most 10", 1e15)

    def test_infinity_is_no_number(self):
        for value in (float("nan"), float("inf")):
            self.assertIsNotNone(message({"type": "integer"}, value))


class TestParseText(unittest.TestCase):
    def check(self, schema, text, value):
        found = parse_text(schema, text)
        self.assertEqual((found, type(found)), (value, type(value)))

    def test_what_is_typed_becomes_what_the_schema_wants(self):
        self.check({"type": "string"}, "12", "12")
        self.check({}, "12", "12")
        self.check({"type": "integer"}, "12", 12)
        self.check({"type": "integer"}, "-3", -3)
        self.check({"type": "number"}, "2.5", 2.5)
        self.check({"type": "boolean"}, "Yes", True)
        self.check({"type": "boolean"}, "off", False)
        self.check({"type": "array"}, "a, b", ["a", "b"])
        self.check({"type": "array"}, "[1, 2]", [1, 2])
        self.check({"type": "object"}, '{"a": 1}', {"a": 1})

    def test_a_list_of_numbers_typed_with_commas_holds_numbers(self):
        self.check({"type": "array", "items": {"type": "integer"}}, "1, 2", [1, 2])

    def test_an_empty_text_may_mean_nothing(self):
        self.assertIsNone(parse_text({"type": ["integer", "null"]}, ""))
        self.check({"type": "string"}, "", "")

    def test_choices_keep_their_kind(self):
        self.check({"enum": [1, 2]}, "2", 2)
        self.check({"enum": ["a", "b"]}, "c", "c")

    def test_a_choice_of_nothing_can_be_typed(self):
        self.assertIsNone(parse_text({"enum": ["a", None]}, ""))

    def test_what_cannot_be_read_stays_a_text_and_is_refused_with_all_else(self):
        for kind, text in (("integer", "two"), ("integer", "1.5"), ("number", ""), ("boolean", "maybe"),
                           ("object", "{"), ("array", "[1"), ("number", "nan"), ("number", "inf"),
                           ("number", "1e999")):
            with self.subTest(text):
                self.check({"type": kind}, text, text)
                self.assertTrue(check_value({"type": kind}, text, "x"))


class TestSummarize(unittest.TestCase):
    def words(self, **arguments):
        return summarize(dump_json(arguments))

    def test_the_values_in_order(self):
        self.assertEqual(
            self.words(city="Oslo", month="2026-01", n=3, detailed=True, none=None),
            "Oslo, 2026-01, 3, true, null",
        )

    def test_secrets_are_masked_by_their_name(self):
        for name in ("password", "db_password", "token", "API_KEY", "apikey", "smtp_passwd", "client_secret"):
            self.assertEqual(self.words(**{name: "hush", "to": "bob"}), "•••, bob", name)

    def test_what_only_sounds_like_a_secret_is_shown(self):
        self.assertEqual(self.words(tokens=3, secretary="Eve", key="a"), "3, Eve, a")

    def test_it_is_one_short_line(self):
        text = self.words(text="a\n\tb " * 500)
        self.assertLessEqual(len(text), jobqueue.SUMMARY_MAX_CHARACTERS)
        self.assertNotIn("\n", text)

    def test_secrets_inside_an_object_are_masked_too(self):
        self.assertNotIn("hush", self.words(login={"user": "bob", "password": "hush"}))

    def test_large_arguments_are_only_hinted_at(self):
        self.assertEqual(summarize(None), "…")

    def test_no_arguments_are_no_words(self):
        self.assertEqual(summarize(json.dumps({})), "")
