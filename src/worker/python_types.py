"""Types of parameters: the JSON of each, and the Python value of that.

ROWS has a row for each type without parts. LISTS and OBJECTS have a row for each kind of container.
resolve() looks a type hint up in them. It combines types that have parts: unions, containers, Annotated,
dataclasses. The rest follows from the schema of a type: static/functions.js chooses the control of the
form, parse_text() reads texts of a shell or a table, check_value() refuses values. A hint without a row has
the schema {"unclear": its name}, and its value stays as it was given. typing is imported where it is used.
Other modules of types are not imported, because a type is known by its name.
"""
from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, time as clock_time, timedelta
from enum import Enum
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, NamedTuple, check_value, dump_json

if TYPE_CHECKING:
    from typing import Any, Optional

    from jobqueue import Schema

if TYPE_CHECKING:
    TypeHint = Any                      # a type or an object of typing
    Convert = Optional[Callable[[Any], Any]]    # None: the JSON value is the Python value

NOTHING = object()                      # in place of a missing type hint


class ValueType(NamedTuple):
    """A type of a parameter: its JSON Schema, and the function that makes its Python value."""

    schema: Schema
    convert: Convert = None


def _text(form: str) -> Schema:
    return {"type": "string", "format": form}


def _bytes(value: str) -> bytes:
    """Return the bytes of a copied file, or of a Base64 text."""
    import base64
    return Path(value).read_bytes() if re.search(jobqueue.FILE_KEY, value) else base64.b64decode(value)


def _decimal(value: str | float) -> Any:
    from decimal import Decimal
    return Decimal(str(value))


def _uuid(value: str) -> Any:
    from uuid import UUID
    return UUID(value)


ANY: Schema = {}
ROWS: dict[str, ValueType] = {
    "builtins.bool": ValueType({"type": "boolean"}),
    "builtins.int": ValueType({"type": "integer"}, int),
    "builtins.float": ValueType({"type": "number"}, float),
    "builtins.str": ValueType({"type": "string"}),
    "builtins.bytes": ValueType(_text("bytes"), _bytes),
    "builtins.NoneType": ValueType({"type": "null"}),
    "builtins.object": ValueType(ANY),
    "typing.Any": ValueType(ANY),
    "decimal.Decimal": ValueType({"type": ["string", "number"], "format": "decimal"}, _decimal),
    "datetime.date": ValueType(_text("date"), date.fromisoformat),
    "datetime.time": ValueType(_text("time"), clock_time.fromisoformat),
    "datetime.datetime": ValueType(_text("date-time"), jobqueue.parse_moment),
    "datetime.timedelta": ValueType({"type": "number", "format": "seconds"},
                                    lambda seconds: timedelta(seconds=seconds)),
    "uuid.UUID": ValueType(_text("uuid"), _uuid),
    "pathlib.Path": ValueType(_text("file"), Path),
}
LISTS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "builtins.list": list, "builtins.set": set, "builtins.frozenset": frozenset, "builtins.tuple": tuple,
    "collections.deque": deque, "collections.abc.Iterable": list, "collections.abc.Collection": list,
    "collections.abc.Sequence": list, "collections.abc.MutableSequence": list,
    "collections.abc.Set": frozenset, "collections.abc.MutableSet": set}
OBJECTS = ("builtins.dict", "collections.abc.Mapping", "collections.abc.MutableMapping")
# Wrappers of typing: only the type inside counts.
SEEN_THROUGH = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
# Attributes of Annotated's metadata, and the keywords of JSON Schema that they become.
CONSTRAINTS = {
    "ge": ("minimum",), "gt": ("exclusiveMinimum",), "le": ("maximum",), "lt": ("exclusiveMaximum",),
    "min_length": ("minLength", "minItems"), "max_length": ("maxLength", "maxItems"), "pattern": ("pattern",)}
# The JSON type for which each of these keywords is set. All other keywords are set for each type.
ABOUT = {"minLength": "string", "maxLength": "string", "pattern": "string",
         "minItems": "array", "maxItems": "array"}


def is_union(origin: TypeHint) -> bool:
    """Return whether a hint's origin is that of Optional[X], Union[X, Y] or X | Y."""
    import typing
    return origin is typing.Union or getattr(origin, "__name__", "") == "UnionType"


def full_name(kind: TypeHint) -> str:
    """Return module and name of a type, or str() of it if it has no name."""
    name = getattr(kind, "__qualname__", None) or getattr(kind, "_name", None)
    module = getattr(kind, "__module__", "").replace("pathlib._local", "pathlib")   # Python 3.13
    return "%s.%s" % (module, name) if name else str(kind)


def unclear(kind: TypeHint) -> ValueType:
    """Return the type of a hint without a row."""
    words = kind if isinstance(kind, str) else full_name(kind).replace("builtins.", "")
    return ValueType({"unclear": jobqueue.shorten(words, 100)})


def is_unclear(schema: Any) -> bool:
    """Return whether a schema, or a part of it, comes from a hint without a row."""
    if isinstance(schema, dict):
        return "unclear" in schema or any(map(is_unclear, schema.values()))
    return isinstance(schema, list) and any(map(is_unclear, schema))


def resolve(kind: TypeHint) -> ValueType:
    """Return the ValueType of a hint."""
    import typing
    origin: TypeHint = typing.get_origin(kind)
    inner = typing.get_args(kind)
    name = full_name(origin if origin is not None else kind)
    if origin is typing.Literal:
        return _choice(list(inner), [], json.loads(dump_json(list(inner))))
    if is_union(origin):
        return _union(inner)
    if name == "typing.Annotated":
        return _constrained(resolve(inner[0]), kind.__metadata__)
    if name.rpartition(".")[2] in SEEN_THROUGH:
        return resolve(inner[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(list(kind), [member.name for member in kind], json.loads(dump_json(list(kind))))
    for alias in "__supertype__", "__value__":      # NewType; `type X = ...`
        if hasattr(kind, alias):
            return resolve(getattr(kind, alias))
    if name in LISTS:
        return _list(LISTS[name], inner)
    if name in OBJECTS:
        return _object(*inner or (NOTHING, NOTHING))
    if hasattr(kind, "__annotations__") and (
            hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__total__") or hasattr(kind, "_fields")):
        return _record(kind)
    return ROWS.get(name) or unclear(kind)


def _choice(members: list[Any], names: list[str], values: list[Any]) -> ValueType:
    """Return the type of a Literal or an Enum. `values` are the members as JSON values."""
    allowed = [*values, *names]

    def convert(value: Any) -> Any:
        return members[allowed.index(value) % len(members)] if value in allowed else value
    return ValueType({"enum": values, **({"enumNames": names} if names else {})},
                     convert if members != values or names else None)


def _list(make: Callable[[Iterable[Any]], Any], inner: tuple[TypeHint, ...]) -> ValueType:
    items = [resolve(hint) for hint in inner if hint is not ...]
    if make is tuple and items and ... not in inner:
        return _places(items)
    if not items or items[0].schema == ANY:
        return ValueType({"type": "array"}, None if make is list else make)
    schema = {"type": "array", "items": items[0].schema}
    convert = items[0].convert
    if convert is None:
        return ValueType(schema, None if make is list else make)
    return ValueType(schema, lambda values: make(map(functools.partial(_converted, items[0]), values)))


def _places(items: list[ValueType]) -> ValueType:
    """Return the type of a tuple of fixed length, with a type for each value."""
    def convert(values: list[Any]) -> tuple[Any, ...]:
        if len(values) != len(items):
            raise ValueError("must have %d values, not %d" % (len(items), len(values)))
        return tuple(map(_converted, items, values))
    return ValueType({"type": "array", "prefixItems": [item.schema for item in items],
                      "minItems": len(items), "maxItems": len(items)}, convert)


def _converted(kind: ValueType, value: Any) -> Any:
    return value if kind.convert is None else kind.convert(value)


def _object(key: TypeHint, item: TypeHint) -> ValueType:
    """Return the type of a dictionary. In JSON its keys are texts."""
    keys = ValueType({"type": "string"}) if key is NOTHING else resolve(key)
    items = ValueType(ANY) if item is NOTHING else resolve(item)
    schema: Schema = {"type": "object"}
    if items.schema:
        schema["additionalProperties"] = items.schema
    if keys.schema == {"type": "integer"}:
        schema["propertyNames"] = jobqueue.text_like("-?[0-9]{1,15}", "must be a whole number")
    elif keys.schema.get("type") == "string" or "enum" in keys.schema:
        if keys.schema != {"type": "string"}:
            schema["propertyNames"] = keys.schema
    elif keys.schema:
        return unclear("dict[%s, ...]" % full_name(key))
    if keys.convert is None and items.convert is None:
        return ValueType(schema)
    return ValueType(schema, lambda values: {
        _converted(keys, name): _converted(items, value) for name, value in values.items()})


def _record(kind: TypeHint) -> ValueType:
    """Return the type of a dataclass, TypedDict or NamedTuple: a JSON object with its fields."""
    import typing
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        names = [field.name for field in fields.values() if field.init and field.name in hints]
        required = [name for name in names if type(fields[name].default).__name__ == "_MISSING_TYPE"
                    and type(fields[name].default_factory).__name__ == "_MISSING_TYPE"]
    elif hasattr(kind, "_fields"):
        names, required = kind._fields, [name for name in kind._fields if name not in kind._field_defaults]
    else:
        names, required = list(hints), sorted(kind.__required_keys__)
    types = {name: resolve(hints[name]) for name in names}
    make = dict if hasattr(kind, "__total__") else kind
    return ValueType(
        jobqueue.object_of(required, **{name: each.schema for name, each in types.items()}),
        lambda values: make(**{name: _converted(types[name], value) for name, value in values.items()}))


def _json_types(schema: Schema) -> set[str]:
    """Return the JSON types that a schema allows. A schema without "type" allows all of them."""
    kinds = schema.get("type", list(jobqueue.TYPES))
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _union(inner: tuple[TypeHint, ...]) -> ValueType:
    """Return the type of a union; an unclear type if a JSON value could belong to two members."""
    members = [resolve(hint) for hint in inner if hint is not type(None)]
    whole = members[0] if len(members) == 1 else _merged(members)
    if whole is None:
        return unclear(" | ".join(full_name(hint).replace("builtins.", "") for hint in inner))
    if len(members) == len(inner) or not whole.schema.keys() & {"type", "enum"}:
        return whole
    convert = whole.convert
    return ValueType(jobqueue.or_null(whole.schema), convert and (
        lambda value: None if value is None else convert(value)))


def _merged(members: list[ValueType]) -> ValueType | None:
    """Return several types as one; None if a JSON value could belong to two of them."""
    if all("enum" in member.schema for member in members):
        merged: Schema = {"enum": [value for member in members for value in member.schema["enum"]]}
        if any("enumNames" in member.schema for member in members):
            return None
    else:
        schemas = [_as_typed(member.schema) for member in members]
        kinds = [kind for schema in schemas for kind in _json_types(schema)]
        if any(map(is_unclear, schemas)) or len(kinds) > len(set(kinds)):
            return None
        if {"integer", "number"} <= set(kinds):     # numbers stay as they were given
            kinds.remove("integer")
        merged = {key: value for schema in schemas for key, value in schema.items()}
        ordered = [kind for kind in jobqueue.TYPES_BY_WIDTH if kind in kinds]
        merged["type"] = ordered if len(ordered) > 1 else ordered[0]
    chosen = [member for member in members
              if member.convert is not None and "number" not in _json_types(member.schema)]

    def convert(value: Any) -> Any:
        fits = [member for member in chosen if not check_value(member.schema, value, "")]
        return fits[0].convert(value) if fits and fits[0].convert else value
    return ValueType(merged, convert if chosen else None)


def _as_typed(schema: Schema) -> Schema:
    """Return the schema of a Literal of texts as that of a text with a pattern, which a union can hold.

    Return any other schema unchanged.
    """
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        return jobqueue.text_like("|".join(map(re.escape, schema["enum"])),
                                  "must be one of %s" % ", ".join(schema["enum"]))
    return schema


def _constrained(whole: ValueType, metadata: Iterable[Any]) -> ValueType:
    """Return a type with the description, limits and pattern in the metadata of Annotated."""
    schema = dict(whole.schema)
    kinds = _json_types(schema)
    for item in metadata:
        for text in item, getattr(item, "description", None), getattr(item, "documentation", None):
            if isinstance(text, str):
                schema["description"] = text
        for name, keywords in CONSTRAINTS.items():
            value = _limit(getattr(item, name, None))
            for keyword in keywords if value is not None else ():
                if ABOUT.get(keyword) in (None, *kinds):
                    schema[keyword] = value
        inner = getattr(item, "metadata", None)
        if isinstance(inner, (list, tuple)):
            schema = _constrained(ValueType(schema), inner).schema
    return ValueType(schema, whole.convert)


def _limit(value: Any) -> float | str | None:
    """Return a limit as a JSON value; None if it is no number, timedelta or pattern."""
    if isinstance(value, str):
        return search_pattern(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if type(value).__name__ == "Decimal":
        return float(value)
    return value if type(value) in (int, float) else None


def search_pattern(pattern: str) -> str:
    """Return a pattern that matches a whole text if this one matches anywhere in it."""
    return pattern if pattern[:1] == "^" and pattern[-1:] == "$" else "(?s:.*?)(?:%s)(?s:.*)" % pattern
