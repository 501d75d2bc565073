"""One validator for arguments, bodies and settings; options of tasks.

What a value must be is said once, by a schema (a part of JSON Schema 2020-12): check_value()
judges arguments, bodies, queries, settings and outcomes by it, parse_text() reads what was typed,
and /openapi.json, --help and the forms of the page tell it.
"""
from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, time as clock_time

from .head import TYPE_CHECKING
from .types import NamedTuple
from .limits import ERRORS_MAX, INTEGER_MAX
from .errors import Invalid, join_errors, wrong
from .time_and_text import RFC3339, dump_json, parse_moment, shorten

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from .types import FieldError, JsonObject, Schema

if TYPE_CHECKING:
    _Value = TypeVar("_Value")

SUMMARY_MAX_CHARACTERS = 120


def text_like(pattern: str, message: str) -> Schema:
    """Return the schema of a text that matches a pattern; `message` says what would be right."""
    return {"type": "string", "pattern": pattern, "patternMessage": message}


def number_within(low: float, high: float, kind: str | list[str] = "number") -> Schema:
    """Return the schema of a number between two bounds."""
    return {"type": kind, "minimum": low, "maximum": high}


def integer_within(low: int, high: int) -> Schema:
    """Return the schema of an integer between two bounds."""
    return number_within(low, high, "integer")


def text_up_to(longest: int) -> Schema:
    """Return the schema of a text of at most so many characters."""
    return {"type": "string", "maxLength": longest}


def object_of(required: Iterable[str] = (), **properties: Any) -> Schema:
    """The schema of an object that has no other keys than these."""
    return {"type": "object", "additionalProperties": False, "required": list(required),
            "properties": properties}


def titled(title: str, schema: Schema) -> Schema:
    """The same schema under a name of its own in /openapi.json."""
    return {"title": title, **schema}


TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def about(schema: Schema, text: str) -> Schema:
    """The same schema with a sentence for people; --help and /openapi.json tell it."""
    return {**schema, "description": text}


def or_null(schema: Schema) -> Schema:
    """The same schema for what may be left empty, too."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def is_number(value: Any) -> bool:
    """True for numbers that every reader of JSON reads alike."""
    return type(value) in (int, float) and (
        -INTEGER_MAX <= value <= INTEGER_MAX or type(value) is float and math.isfinite(value))


# What can be said about each task of a function: schema and default.
TASK_OPTIONS: dict[str, tuple[Schema, Any]] = {
    "queue": (about(text_like("[A-Za-z0-9_.-]{1,50}", "must be 1 to 50 letters, digits, _ . or -"),
                    "in which queue it stands"), "default"),
    "priority": (about(integer_within(-100, 100), "-100..100, larger first; above 0 for admins only"), 0),
    "max_retries": (about(integer_within(0, 1000), "how often it is tried again after an error"), 0),
    "retry_delay": (about(number_within(0, 30 * 86400), "seconds until it is tried again"), 60),
    "retry_backoff": (about(number_within(1, 10), "how much longer each next delay is"), 2),
    "timeout": (about(number_within(1, 30 * 86400), "seconds after which it is stopped"), 3600),
    "on_crash": (about({"enum": ["retry", "fail"]}, "what to do if its worker dies"), "retry"),
    "remove_on_success": (about({"type": "boolean"}, "do not keep it if it succeeds"), False),
    "notify": (about({"enum": ["end", "failure", None]}, "tell its owner by mail"), None),
}
OPTION_SCHEMAS = {name: schema for name, (schema, _) in TASK_OPTIONS.items()}
TASK_DEFAULTS = {name: default for name, (_, default) in TASK_OPTIONS.items()}
WHO_MAY_ADD = ("user", "admin", "nobody")

FILE_KEY = "f_[0-9a-f]{32}"


class TextForm(NamedTuple):
    """A `format` of texts: the pattern, the function that reads it, and its name for people."""

    pattern: str
    parse: Callable[[str], Any]
    words: str


TEXT_FORMS = {
    "date": TextForm(r"\d{4}-\d\d-\d\d", date.fromisoformat, "a date such as 2026-01-31"),
    "time": TextForm(r"\d\d:\d\d(:\d\d(\.\d{3,6})?)?", clock_time.fromisoformat, "a time such as 14:30"),
    "date-time": TextForm(RFC3339, parse_moment,
                          "a time with an offset, such as 2026-01-31T12:00:00Z"),
    "file": TextForm(FILE_KEY, str, "the id of an uploaded file")}
SECRET_NAME = re.compile("(^|_)(password|passwd|token|secret|apikey|api_key)$", re.IGNORECASE)
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
BOOLEANS = {**dict.fromkeys(TRUE_WORDS, True), **dict.fromkeys(FALSE_WORDS, False)}


class JsonType(NamedTuple):
    """A type of JSON: its name for people, the test of a value, the function that reads a text."""

    words: str
    holds: Callable[[Any], bool]
    parse: Callable[[str], Any]


TYPES = {
    "string": JsonType("a text", lambda value: isinstance(value, str), str),
    "integer": JsonType(
        "a whole number",
        lambda value: is_number(value) and abs(value) <= INTEGER_MAX and value == int(value),
        lambda text: int(text) if re.fullmatch("[+-]?[0-9]{1,18}", text) else text),
    "number": JsonType("a number", is_number,
                       lambda text: float(text) if abs(float(text)) < math.inf else text),
    "boolean": JsonType("true or false", lambda value: isinstance(value, bool),
                        lambda text: BOOLEANS[text.lower()]),
    "array": JsonType("a list", lambda value: isinstance(value, list), json.loads),
    "object": JsonType("an object", lambda value: isinstance(value, dict), json.loads),
    "null": JsonType("empty", lambda value: value is None, str)}
PLAIN_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}
WORDS_ABOUT = {"default", "description", "type"}


def _check_text(schema: Schema, value: str, field: str) -> list[FieldError]:
    if len(value) > schema.get("maxLength", math.inf):
        return wrong(field, "must have at most %d characters" % schema["maxLength"])
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return wrong(field, schema.get("patternMessage", "does not have the right form"))
    if schema.get("format") not in TEXT_FORMS:
        return []
    form = TEXT_FORMS[schema["format"]]
    with contextlib.suppress(ValueError, OverflowError):
        if re.fullmatch(form.pattern, value, re.ASCII) and form.parse(value):
            return []
    return wrong(field, "must be " + form.words)


def _check_bounds(schema: Schema, value: float | None, field: str) -> list[FieldError]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if value is None or isinstance(value, bool) or low <= value <= high:
        return []
    words = {"minimum": "at least %s", "maximum": "at most %s"}
    return wrong(field, "must be " + " and ".join(
        form % schema[limit] for limit, form in words.items() if limit in schema))


def is_plain(schema: Schema, value: Any) -> bool:
    """True if the type alone decides and is right: the common case, quickly."""
    kind = PLAIN_WORDS.get(type(value), "")
    return (schema.get("type") == kind and (len(schema) == 1 or schema.keys() <= WORDS_ABOUT)
            and (kind in ("string", "boolean") or -INTEGER_MAX <= value <= INTEGER_MAX))


def _check_object(schema: Schema, value: JsonObject, field: str) -> list[FieldError]:
    properties = schema.get("properties")
    if properties is None:
        return []
    prefix = field + "." if field else ""
    errors: list[FieldError] = []
    for name, item in value.items():
        if len(errors) > ERRORS_MAX:
            break
        if name in properties:
            if not is_plain(properties[name], item):
                errors += check_value(properties[name], item, prefix + name)
        elif not schema.get("additionalProperties", True):
            errors += wrong(prefix + shorten(name, 60), "is not known here; known are %s"
                            % shorten(", ".join(properties) or "none", 300))
    return errors + [{"field": prefix + name, "message": "is missing"}
                     for name in schema.get("required", ()) if name not in value]


def choice_names(schema: Schema) -> list[str]:
    """What people call the values of an enum: an Enum's are known by their names, too."""
    values, names = schema["enum"], schema.get("enumNames", [])
    return [*names, *("null" if value is None else str(value) for value in values[len(names):])]


def check_value(schema: Schema, value: Any, field: str) -> list[FieldError]:
    """What is wrong with `value`: a list of {"field", "message"}, empty if nothing."""
    if "enum" in schema:
        for choice in (*schema["enum"], *schema.get("enumNames", ())):
            if value == choice and type(value) is type(choice):
                return []
        return wrong(field, "must be one of %s" % ", ".join(choice_names(schema)))
    kinds = schema.get("type")
    if kinds is not None:
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        if not any([TYPES[kind].holds(value) for kind in kinds]):
            is_large = type(value) in (int, float) and abs(value) > INTEGER_MAX
            return wrong(field, "must be from %d to %d" % (-INTEGER_MAX, INTEGER_MAX)
                         if "integer" in kinds and is_large else
                         "must be " + " or ".join(TYPES[kind].words for kind in kinds))
    if isinstance(value, str):
        return _check_text(schema, value, field)
    if isinstance(value, list):
        items, least = schema.get("items"), schema.get("minItems", 0)
        if not least <= len(value) <= schema.get("maxItems", math.inf):
            return wrong(field, "must have %d to %d items" % (least, schema["maxItems"]))
        return [error for place, item in enumerate(value)
                for error in check_value(items, item, "%s[%d]" % (field, place))] if items else []
    if isinstance(value, dict):
        return _check_object(schema, value, field)
    return _check_bounds(schema, value, field)


def checked(schema: Schema, value: _Value) -> _Value:
    """`value`; Invalid names every field that is not as `schema` wants it."""
    errors = check_value(schema, value, "")
    if errors:
        raise Invalid(join_errors(errors), errors[:ERRORS_MAX])
    return value


def parse_text(schema: Schema, text: str) -> Any:
    """What was typed, read as `schema` wants it; the text itself if that fails."""
    if "enum" in schema:
        return next((one for one in schema["enum"] if text == ("" if one is None else str(one))),
                    text)               # its name will do
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if text == "" and "null" in kinds:
        return None
    try:
        if kinds[0] == "array" and not text.startswith("["):
            return [parse_text(schema.get("items", {}), part.strip()) for part in text.split(",")]
        return TYPES[kinds[0]].parse(text)
    except (ValueError, KeyError):
        return text


def mask(value: Any) -> Any:
    """The same value with what is named like a secret hidden."""
    if isinstance(value, dict):
        return {name: "•••" if SECRET_NAME.search(name) else mask(item)
                for name, item in value.items()}
    return [mask(item) for item in value] if isinstance(value, list) else value


def summarize(arguments_text: str, files: Iterable[tuple[str, str]] = ()) -> str:
    """A task's arguments in words: the values in order, secrets masked, shortened; each of `files`,
    (id, name), by its name."""
    if arguments_text is None:
        return "…"
    values = mask(json.loads(arguments_text)).values()
    words = ", ".join(value if isinstance(value, str) else dump_json(value) for value in values)
    for key, name in files:
        words = words.replace(key, name)
    return shorten(words, SUMMARY_MAX_CHARACTERS)
