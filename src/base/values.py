"""One validator for arguments, bodies and settings; options of tasks.

A schema (a part of JSON Schema 2020-12) is the one description of a value. check_value() checks
arguments, bodies, queries, settings and outcomes with it. parse_text() reads typed texts with it.
/openapi.json, --help and the forms of the page are made from it.
"""
from __future__ import annotations

import contextlib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
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
# The name under which a task of Django keeps how many of its arguments are positional.
POSITIONAL_COUNT = "*"


def text_like(pattern: str, message: str) -> Schema:
    """Return the schema of a text that matches a pattern; `message` describes a right text."""
    return {"type": "string", "pattern": pattern, "patternMessage": message}


def number_within(low: float, high: float, kind: str | list[str] = "number") -> Schema:
    """Return the schema of a number between two bounds."""
    return {"type": kind, "minimum": low, "maximum": high}


def integer_within(low: int, high: int) -> Schema:
    """Return the schema of an integer between two bounds."""
    return number_within(low, high, "integer")


def text_up_to(longest: int) -> Schema:
    """Return the schema of a text of at most `longest` characters."""
    return {"type": "string", "maxLength": longest}


def object_of(__required: Iterable[str] = (), **properties: Any) -> Schema:
    """Return the schema of an object that has no other keys than these."""
    return {"type": "object", "additionalProperties": False, "required": list(__required),
            "properties": properties}


def titled(title: str, schema: Schema) -> Schema:
    """Return the schema with a name of its own in /openapi.json."""
    return {"title": title, **schema}


TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def about(schema: Schema, text: str) -> Schema:
    """Return the schema with a description, for --help and /openapi.json."""
    return {**schema, "description": text}


def or_null(schema: Schema) -> Schema:
    """Return a schema that takes null, too."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    kinds = schema["type"]
    return {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def is_number(value: Any) -> bool:
    """Return True for a number that every JSON reader reads alike."""
    return type(value) in (int, float) and (
        -INTEGER_MAX <= value <= INTEGER_MAX or type(value) is float and math.isfinite(value))


# The options of each task of a function: schema and default.
TASK_OPTIONS: dict[str, tuple[Schema, Any]] = {
    "queue": (about(text_like(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,50}",
                              "must be 1 to 50 letters, digits, _ . or -, and not . or .. alone"),
                    "the queue of the task"), "default"),
    "priority": (about(integer_within(-100, 100), "-100..100, larger first; above 0 for admins only"), 0),
    "max_retries": (about(integer_within(0, 1000), "number of retries after an error"), 0),
    "retry_delay": (about(number_within(0, 30 * 86400), "seconds before a retry"), 60),
    "retry_backoff": (about(number_within(1, 10), "factor of each next delay"), 2),
    "timeout": (about(number_within(1, 30 * 86400), "time limit of an attempt, in seconds"), 3600),
    "on_crash": (about({"enum": ["retry", "fail"]}, "what follows the death of its worker"), "retry"),
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
    "decimal": TextForm(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", str,
                        "a number such as 12.50"),
    "uuid": TextForm("[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}", str,
                     "a UUID such as 123e4567-e89b-12d3-a456-426614174000"),
    "bytes": TextForm("%s|(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?" % FILE_KEY,
                      str, "the id of an uploaded file, or Base64"),
    "file": TextForm(FILE_KEY, str, "the id of an uploaded file")}
FILE_FORMATS = ("file", "bytes")        # formats of parameters that accept an uploaded file
SECRET_WORDS = "password passwd token secret apikey api_key".split()
SECRET_NAME = re.compile("(^|_)(%s)$" % "|".join(SECRET_WORDS), re.IGNORECASE)
SECRET_TEXTS = [word + '":' for word in SECRET_WORDS]   # ends of secret names in the JSON of arguments
MASKED = "•••"
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
# Types from the narrowest to the widest: a text is read as the first type that it fits.
TYPES_BY_WIDTH = ("integer", "number", "boolean", "array", "object", "string")
PLAIN_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}
WORDS_ABOUT = {"default", "description", "type"}


def _check_text(schema: Schema, value: str, field: str) -> list[FieldError]:
    if len(value) > schema.get("maxLength", math.inf):
        return wrong(field, "must have at most %d characters" % schema["maxLength"])
    if len(value) < schema.get("minLength", 0):
        return wrong(field, "must have at least %d characters" % schema["minLength"])
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return wrong(field, schema.get("patternMessage", "does not have the right form"))
    if schema.get("format") not in TEXT_FORMS:
        return []
    form = TEXT_FORMS[schema["format"]]
    with contextlib.suppress(ValueError, OverflowError):
        if re.fullmatch(form.pattern, value, re.ASCII) and form.parse(value) is not None:
            return _check_bounds(schema, float(value), field) if schema["format"] == "decimal" else []
    return wrong(field, "must be " + form.words)


# The bounds of a number: the words for each bound, and its test.
BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least %s", operator.ge), "exclusiveMinimum": ("more than %s", operator.gt),
    "maximum": ("at most %s", operator.le), "exclusiveMaximum": ("less than %s", operator.lt)}


def _check_bounds(schema: Schema, value: float | None, field: str) -> list[FieldError]:
    limits = [(schema[name], *row) for name, row in BOUNDS.items() if name in schema]
    if value is None or isinstance(value, bool) or all(
            keeps(value, limit) for limit, _, keeps in limits):
        return []
    return wrong(field, "must be " + " and ".join(words % limit for limit, words, _ in limits))


def _check_list(schema: Schema, value: list[Any], field: str) -> list[FieldError]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        if least == most:
            return wrong(field, "must have %d items" % least)
        if least and most < math.inf:
            return wrong(field, "must have %d to %d items" % (least, most))
        return wrong(field, "must have at least %d items" % least if len(value) < least else
                     "must have at most %d items" % most)
    items, places = schema.get("items"), schema.get("prefixItems", ())
    return [error for place, item in enumerate(value)
            for error in check_value(places[place] if place < len(places) else items or {}, item,
                                     "%s[%d]" % (field, place))] if items or places else []


def is_plain(schema: Schema, value: Any) -> bool:
    """Return True if the schema tests nothing but the type, and the value fits. This test is quick."""
    kind = PLAIN_WORDS.get(type(value), "")
    return (schema.get("type") == kind and (len(schema) == 1 or schema.keys() <= WORDS_ABOUT)
            and (kind in ("string", "boolean") or -INTEGER_MAX <= value <= INTEGER_MAX))


def _check_object(schema: Schema, value: JsonObject, field: str) -> list[FieldError]:
    names, extra = schema.get("propertyNames"), schema.get("additionalProperties", True)
    properties = schema.get("properties", {})
    if extra is True and not names and "properties" not in schema:
        return []
    prefix = field + "." if field else ""
    errors: list[FieldError] = []
    for name, item in value.items():
        if len(errors) > ERRORS_MAX:
            break
        if name in properties:
            if not is_plain(properties[name], item):
                errors += check_value(properties[name], item, prefix + name)
        elif not extra:
            errors += wrong(prefix + shorten(name, 60), "is not known here; known are %s"
                            % shorten(", ".join(properties) or "none", 300))
        else:
            place = prefix + shorten(name, 60)
            errors += names and check_value(names, name, place) or []
            errors += check_value(extra, item, place) if isinstance(extra, dict) else []
    return errors + [{"field": prefix + name, "message": "is missing"}
                     for name in schema.get("required", ()) if name not in value]


def choice_names(schema: Schema) -> list[str]:
    """Return the values of an enum as people see them. Members of a Python Enum are shown by name."""
    values, names = schema["enum"], schema.get("enumNames", [])
    return [*names, *("null" if value is None else str(value) for value in values[len(names):])]


def check_value(schema: Schema, value: Any, field: str) -> list[FieldError]:
    """Return the errors of a value, an empty list if it is right."""
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
            return wrong(field, "must be from %d to %d: give a larger one as a text (str)"
                         % (-INTEGER_MAX, INTEGER_MAX)
                         if "integer" in kinds and is_large else
                         "must be " + " or ".join(TYPES[kind].words for kind in kinds))
    if isinstance(value, str):
        return _check_text(schema, value, field)
    if isinstance(value, list):
        return _check_list(schema, value, field)
    if isinstance(value, dict):
        return _check_object(schema, value, field)
    return _check_bounds(schema, value, field)


def checked(schema: Schema, value: _Value) -> _Value:
    """Return the value; Invalid names every field that the schema refuses."""
    errors = check_value(schema, value, "")
    if errors:
        raise Invalid(join_errors(errors), errors[:ERRORS_MAX])
    return value


def parse_text(schema: Schema, text: str) -> Any:
    """Return the value of a typed text by its schema, or the text itself if it cannot be read."""
    if "enum" in schema:
        return next((value for value in schema["enum"] if text == ("" if value is None else str(value))),
                    text)               # check_value() accepts names of an enum, too
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if text == "" and "null" in kinds:
        return None
    is_single = len(kinds) - ("null" in kinds) == 1
    for kind in kinds:
        with contextlib.suppress(ValueError, KeyError):
            if kind == "array" and not text.startswith("[") and is_single:
                return [parse_text(item, part.strip()) for item, part in _items(schema, text)]
            value = TYPES[kind].parse(text)
            if is_single or TYPES[kind].holds(value):
                return value
    return text


def _items(schema: Schema, text: str) -> Iterator[tuple[Schema, str]]:
    """Yield the schema and the text of each item of a list that is written with commas."""
    places = schema.get("prefixItems", ())
    for place, part in enumerate(text.split(",") if text.strip() else ()):
        yield places[place] if place < len(places) else schema.get("items", {}), part


def mask(value: Any) -> Any:
    """Return the value with the secrets in it masked."""
    if isinstance(value, dict):
        return {name: MASKED if SECRET_NAME.search(name) else mask(item)
                for name, item in value.items()}
    return [mask(item) for item in value] if isinstance(value, list) else value


def secret_texts(value: Any, is_secret: bool = False) -> Iterator[str]:
    """Yield the secrets that mask() masks in a value, as texts of more than 3 characters, longest first."""
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else [("", item) for item in value]
        texts = {text for name, item in parts
                 for text in secret_texts(item, is_secret or SECRET_NAME.search(name) is not None)}
        yield from sorted(texts, key=len, reverse=True)
    elif is_secret and len(str(value)) > 3:
        yield str(value)


def unmask(value: Any, stored: Any) -> Any:
    """Return the value with masked secrets replaced by those of `stored`, because they were not changed."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return {name: stored[name] if item == MASKED and SECRET_NAME.search(name) and name in stored
                else unmask(item, stored.get(name)) for name, item in value.items()}
    if isinstance(value, list) and isinstance(stored, list) and len(value) == len(stored):
        return list(map(unmask, value, stored))
    return value


def shown_arguments(arguments_text: str | None) -> JsonObject | None:
    """Return the arguments of a task from their JSON text, as people see them."""
    arguments: JsonObject | None = json.loads(arguments_text or "null")
    if arguments:
        arguments.pop(POSITIONAL_COUNT, None)
    return arguments


def summarize(arguments_text: str, files: Iterable[tuple[str, str]] = ()) -> str:
    """Return a task's arguments in words: the values in order, secrets masked, shortened.

    `files` are pairs (id, name); a file is shown by its name.
    """
    if arguments_text is None:
        return "…"
    try:
        values = mask(shown_arguments(arguments_text)).values()
    except RecursionError:              # stored before depth was limited
        return "…"
    texts = (value if isinstance(value, str) else dump_json(value) for value in values)
    words = ", ".join(filter(None, texts))
    for key, name in files:
        words = words.replace(key, name)
    return shorten(words, SUMMARY_MAX_CHARACTERS)
