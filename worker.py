#!/usr/bin/env python3
# Built from src/ by src/build.py: edit there.
# mypy: ignore-errors
"""The worker of jobqueue: claims tasks, has its runner run them, records how they ended.

    python3 worker.py                 for cron: work on pending and due tasks for at most 50 s
    python3 worker.py --service       for hosts with always-on processes: never ends by itself
    python3 worker.py --verbose       print each step
    python3 worker.py --server https://site/jobs --token-file F     for a site elsewhere

Adding a task starts workers, so they need not be started by hand. A worker never runs the owner's
code. Its child, the runner, does that, and never touches the database. When the worker dies the
kernel ends the runner. Then their lock file is free, which shows the next tick of any process that both
are dead.

Contents (each room uses only the rooms above it)
    worker/python_types.py   Types of parameters: the JSON of each, and the Python value of that.
    worker/signatures.py     Signatures as JSON Schemas, and calls with JSON arguments.
    worker/commands.py       Programs as functions.
    worker/requests.py       HTTP requests as functions.
    worker/task_files.py     Files that a task is given and leaves.
    worker/outcomes.py       Outcomes: how an attempt ended, as JSON that can always be sent.
    worker/leftovers.py      Leftovers: changes of the process by a task, which would affect the next task.
    worker/django_tasks.py   Running Django's tasks.
    worker/runner.py         The child's side: runs one attempt after another.
    worker/log.py            The log pipe: an attempt's output on its way to the database.
    worker/samples.py        Samples: CPU time and memory of a running attempt, read from /proc.
    worker/child.py          A runner as its worker sees it: pipes, life line, signals.
    worker/attempt.py        Attempts that the runner has in hand: watched, kept alive, ended.
    worker/place.py          Place: the worker's row and its lock.
    worker/runners.py        Runners: the processes that run tasks for a worker.
    worker/recorder.py       Recorder: writes how attempts ended.
    worker/worker.py         The worker's loop: claim, hand over, wait, record.
    worker/remote_site.py    A site elsewhere: its calls, and the unsent outcomes.
    worker/remote.py         RemoteWorker: a worker without the database, over HTTPS.
    worker/entry.py          python3 worker.py
"""
import os
import sys


def put_behind_python(folder: str) -> None:
    """Have Python look for modules in this folder after its own, and before installed packages."""
    library = os.path.dirname(os.__file__)
    others = [one for one in sys.path if os.path.realpath(one or ".") != folder]
    end = max([place for place, one in enumerate(others, 1)
               if one.startswith(library) and "-packages" not in one] or [0])
    if len(others) < len(sys.path):
        sys.path[:] = others[:end] + [folder] + others[end:]


put_behind_python(os.path.dirname(os.path.realpath(__file__)))

import _locale
import _signal
import _thread
import builtins
import codecs
import contextlib
import errno
import functools
import gc
import importlib
import json
import math
import os
import re
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime, time as clock_time, timedelta
from enum import Enum
from itertools import chain
from pathlib import Path
from types import CoroutineType
from urllib.parse import quote, unquote, urlencode, urlsplit

import jobqueue
from jobqueue import (RESULT_MAX_DEPTH, TYPE_CHECKING, Added, DjangoFunction, Every, Fail,
                      FileSite, Function, Generic, JobQueue, JobQueueError, NamedTuple, Outcome,
                      RetryAfter, TaskContext, append_log, argument_value, check_value, declared,
                      dump_json, host_umask, integer_within, is_deep, number_within, plain_value,
                      read_retry_after, storable, text_like)

# A copy that broke off lacks the last lines of worker.py. refuse_half() looks for them in the last 1,000
# bytes of the file:
#     if __name__ == "__main__":
#         sys.exit(main())
jobqueue.refuse_half(__file__)

VERSION = "1.0.0"                       # version of the jobqueue.py that this file needs

if TYPE_CHECKING:
    import inspect
    from typing import Any, TypeVar

    from jobqueue import AnnouncedFunction, Announcement, JsonObject, ScheduleLine, Schema


# worker/python_types.py ------------------------------------------------------
#
# Types of parameters: the JSON of each, and the Python value of that.
#
# ROWS has a row for each type without parts. LISTS and OBJECTS have a row for each kind of container.
# resolve() looks a type hint up in them. It combines types that have parts: unions, containers, Annotated,
# dataclasses. The rest follows from the schema of a type: static/functions.js chooses the control of the
# form, parse_text() reads texts of a shell or a table, check_value() refuses values. A hint without a row has
# the schema {"unclear": its name}, and its value stays as it was given. typing is imported where it is used.
# Other modules of types are not imported, because a type is known by its name.

    # None: the JSON value is the Python value



NOTHING = object()                      # in place of a missing type hint


class ValueType(NamedTuple):
    """A type of a parameter: its JSON Schema, and the function that makes its Python value."""

    schema: "Schema"
    convert: "Convert" = None


def _text(form):
    return {"type": "string", "format": form}


def _bytes(value):
    """Return the bytes of a copied file, or of a Base64 text."""
    import base64
    return Path(value).read_bytes() if re.search(jobqueue.FILE_KEY, value) else base64.b64decode(value)


def _decimal(value):
    from decimal import Decimal
    return Decimal(str(value))


def _uuid(value):
    from uuid import UUID
    return UUID(value)


ANY = {}
ROWS = {
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
LISTS = {
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


def is_union(origin):
    """Return whether a hint's origin is that of Optional[X], Union[X, Y] or X | Y."""
    import typing
    return origin is typing.Union or getattr(origin, "__name__", "") == "UnionType"


def full_name(kind):
    """Return module and name of a type, or str() of it if it has no name."""
    name = getattr(kind, "__qualname__", None) or getattr(kind, "_name", None)
    module = getattr(kind, "__module__", "").replace("pathlib._local", "pathlib")   # Python 3.13
    return "%s.%s" % (module, name) if name else str(kind)


def unclear(kind):
    """Return the type of a hint without a row."""
    words = kind if isinstance(kind, str) else full_name(kind).replace("builtins.", "")
    return ValueType({"unclear": jobqueue.shorten(words, 100)})


def is_unclear(schema):
    """Return whether a schema, or a part of it, comes from a hint without a row."""
    if isinstance(schema, dict):
        return "unclear" in schema or any(map(is_unclear, schema.values()))
    return isinstance(schema, list) and any(map(is_unclear, schema))


def resolve(kind):
    """Return the ValueType of a hint."""
    import typing
    origin = typing.get_origin(kind)
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


def _choice(members, names, values):
    """Return the type of a Literal or an Enum. `values` are the members as JSON values."""
    allowed = [*values, *names]

    def convert(value):
        return members[allowed.index(value) % len(members)] if value in allowed else value
    return ValueType({"enum": values, **({"enumNames": names} if names else {})},
                     convert if members != values or names else None)


def _list(make, inner):
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


def _places(items):
    """Return the type of a tuple of fixed length, with a type for each value."""
    def convert(values):
        if len(values) != len(items):
            raise ValueError("must have %d values, not %d" % (len(items), len(values)))
        return tuple(map(_converted, items, values))
    return ValueType({"type": "array", "prefixItems": [item.schema for item in items],
                      "minItems": len(items), "maxItems": len(items)}, convert)


def _converted(kind, value):
    return value if kind.convert is None else kind.convert(value)


def _object(key, item):
    """Return the type of a dictionary. In JSON its keys are texts."""
    keys = ValueType({"type": "string"}) if key is NOTHING else resolve(key)
    items = ValueType(ANY) if item is NOTHING else resolve(item)
    schema = {"type": "object"}
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


def _record(kind):
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


def _json_types(schema):
    """Return the JSON types that a schema allows. A schema without "type" allows all of them."""
    kinds = schema.get("type", list(jobqueue.TYPES))
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _union(inner):
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


def _merged(members):
    """Return several types as one; None if a JSON value could belong to two of them."""
    if all("enum" in member.schema for member in members):
        merged = {"enum": [value for member in members for value in member.schema["enum"]]}
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

    def convert(value):
        fits = [member for member in chosen if not check_value(member.schema, value, "")]
        return fits[0].convert(value) if fits and fits[0].convert else value
    return ValueType(merged, convert if chosen else None)


def _as_typed(schema):
    """Return the schema of a Literal of texts as that of a text with a pattern, which a union can hold.

    Return any other schema unchanged.
    """
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        return jobqueue.text_like("|".join(map(re.escape, schema["enum"])),
                                  "must be one of %s" % ", ".join(schema["enum"]))
    return schema


def _constrained(whole, metadata):
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


def _limit(value):
    """Return a limit as a JSON value; None if it is no number, timedelta or pattern."""
    if isinstance(value, str):
        return search_pattern(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if type(value).__name__ == "Decimal":
        return float(value)
    return value if type(value) in (int, float) else None


def search_pattern(pattern):
    """Return a pattern that matches a whole text if this one matches anywhere in it."""
    return pattern if pattern[:1] == "^" and pattern[-1:] == "$" else "(?s:.*?)(?:%s)(?s:.*)" % pattern


# worker/signatures.py --------------------------------------------------------
#
# Signatures as JSON Schemas, and calls with JSON arguments.
#
# The schema of a function's arguments and its description come from its signature, type hints and
# docstring. JSON arguments become Python values, which a call binds to the signature. read_functions()
# imports tasks.py and returns an announcement: the functions and schedules, or the error and its place.
#
# Rules: only a runner and worker.py --catalogue import tasks.py. Any exception in tasks.py becomes part of
# the announcement. typing and inspect are imported where they are used: the worker itself needs neither.

def type_hints(target: "Callable[..., Any]") -> "dict[str, TypeHint]":
    """Return {name: type} of a function's parameters. For a class they are those of its __init__().

    A hint that cannot be evaluated remains a text.
    """
    import typing
    while hasattr(target, "func"):          # a functools.partial
        target = target.func
    target = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    with contextlib.suppress(Exception):    # the owner's code may raise anything
        return typing.get_type_hints(target, include_extras=True)
    hints = dict(getattr(target, "__annotations__", {}))
    for name in [name for name, hint in hints.items() if isinstance(hint, str)]:
        # Types support | since Python 3.10.
        plain, optional = re.subn(r"\s*\|\s*None\s*$|^\s*None\s*\|\s*", "", hints[name])
        with contextlib.suppress(Exception):
            kind = eval(plain, dict(getattr(target, "__globals__", {})))
            hints[name] = typing.Optional[kind] if optional else kind
    return hints


def parameter_help(text: "str") -> "dict[str, str]":
    """Return {parameter: help} from a docstring in the style of Google, NumPy or Sphinx."""
    helps = dict(re.findall(r"^\s*:param (?:\w+ )?(\w+):\s*(.*\S)", text, re.MULTILINE))
    section = re.search(r"^(?:Args|Arguments|Parameters):?\n(?:-+\n)?"
                        r"((?:[ \t]*\S.*\n?|\n(?=[ \t]))+)", text, re.MULTILINE)
    if section:
        for line in (r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s+(.*\S)",
                     r"^(\w+)(?:\s*:.*)?\n[ \t]+(\S.*\S)"):
            helps.update(re.findall(line, section[1], re.MULTILINE))
    return helps


def documentation(function: "Function") -> "str":
    """Return a function's docstring or description without its indentation."""
    from inspect import cleandoc, getdoc
    text = getdoc(function.target) if callable(function.target) else cleandoc(function.__doc__ or "")
    return (text or "").strip()


def refused(declaration: "Function | ScheduleLine", words: "str") -> "ValueError":
    """Return the error for a declaration that cannot be used, with its file and line."""
    error: "Any" = ValueError("%s: %s" % (declaration.name, words))
    error.filename, error.lineno = declaration.place
    return error


def holds_file(schema: "Any", besides: "Collection[str]" = ()) -> "bool":
    """Return whether a schema or a part of it is a file. Skip parts directly under the keys `besides`."""
    if isinstance(schema, list):
        return any(map(holds_file, schema))
    if not isinstance(schema, dict):
        return False
    return schema.get("format") == "file" or any(
        holds_file({**part, "format": None} if name in besides and isinstance(part, dict) else part)
        for name, part in schema.items() if name not in ("enum", "default"))


def _list_of(hint: "TypeHint") -> "TypeHint":
    return list if hint is NOTHING else list.__class_getitem__(hint)


class Parameters:
    """A function's parameters: their types, defaults and documentation."""

    def __init__(self, function: "Function") -> None:
        self.function = function
        self.others: "ValueType | None" = None    # type of **kwargs; None if there are none
        self._signature: "inspect.Signature | None" = None    # set if the call needs positional arguments
        self.defaults: "dict[str, Any]" = {}
        kinds: "dict[str, TypeHint]" = {}
        if function.parameters is None:
            kinds = self._read_signature(function.target)
        else:
            from typing import get_origin
            for name, hint in function.parameters.items():
                if isinstance(hint, type) or get_origin(hint):
                    kinds[name] = hint
                else:
                    self.defaults[name], kinds[name] = hint, NOTHING
        self.kinds = {name: self._resolve(name, kind) for name, kind in kinds.items()}

    def _read_signature(self, target: "Callable[..., Any]") -> "dict[str, TypeHint]":
        """Return the hint of each parameter; NOTHING if it has none. Set `others` and `_signature`, too."""
        import inspect
        kinds: "dict[str, TypeHint]" = {}
        hints = type_hints(target)
        signature = jobqueue.signature_of(self.function.task) if isinstance(
            self.function, DjangoFunction) else inspect.signature(target)
        for parameter in signature.parameters.values():
            hint = hints.get(parameter.name, NOTHING)
            if parameter.kind is parameter.VAR_KEYWORD:
                self.others = ValueType(ANY) if hint is NOTHING else resolve(hint)
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                self._signature = signature
            if parameter.kind is parameter.VAR_POSITIONAL:
                hint, self.defaults[parameter.name] = _list_of(hint), []
            elif parameter.default is not parameter.empty:
                self.defaults[parameter.name] = parameter.default
            kinds[parameter.name] = hint
        return kinds

    def _resolve(self, name: "str", kind: "TypeHint") -> "ValueType":
        """Return the type of a parameter, from its hint, else from its default."""
        default = self.defaults.get(name)
        if kind is NOTHING:
            value_type = ValueType(ANY) if default is None else resolve(type(default))
            return ValueType(ANY) if is_unclear(value_type.schema) else value_type
        if isinstance(kind, (list, tuple, dict, set, int, float, bytes)):
            raise refused(self.function, "the hint %r of %s is no type: write a type such as int"
                          % (kind, name))
        value_type = resolve(kind)
        if holds_file({**value_type.schema, "format": None}, {"items"}):
            raise refused(self.function, "%s holds files inside of something else: a file is a parameter "
                                         "of its own, or an item of a list" % name)
        return value_type

    def schema(self) -> "Schema":
        """Return the JSON Schema (2020-12) of the arguments."""
        helps = {**parameter_help(documentation(self.function)), **self.function.help_texts}
        properties = {name: self._property(name, helps.get(name)) for name in self.kinds}
        required = [name for name in self.kinds if name not in self.defaults]
        extra = self.others and (self.others.schema or True)
        return {"type": "object", "properties": properties, "required": required,
                "additionalProperties": extra or False}

    @functools.cached_property
    def checked(self) -> "Schema":
        """Return the schema of the arguments, which is made only once."""
        return self.schema()

    @functools.cached_property
    def files(self) -> "list[str]":
        """Return the names of parameters that are files."""
        return jobqueue.file_parameters(self.checked)

    def convert(self, arguments: "JsonObject") -> "dict[str, Any]":
        """Return JSON arguments as Python values."""
        values: "dict[str, Any]" = {}
        for name, value in arguments.items():
            kind = self.kinds.get(name) or self.others
            values[name] = value if value is None or not kind or kind.convert is None else (
                kind.convert(value))
        return values

    def call(self, values: "dict[str, Any]") -> "Any":
        """Call the Python function with values by name."""
        if self._signature is None:
            return self.function.target(**values)
        bound, rest = self._signature.bind_partial(), dict(values)
        for parameter in self._signature.parameters.values():
            if parameter.name in rest and parameter.kind is not parameter.VAR_KEYWORD:
                bound.arguments[parameter.name] = rest.pop(parameter.name)
            elif parameter.kind is parameter.VAR_KEYWORD:
                bound.arguments[parameter.name] = rest
        bound.apply_defaults()
        return self.function.target(*bound.args, **bound.kwargs)

    def _property(self, name: "str", text: "str | None") -> "Schema":
        schema = dict(self.kinds[name].schema)
        if name in self.defaults:
            with contextlib.suppress(TypeError, ValueError):
                schema["default"] = argument_value(self.defaults[name])
            if schema.get("default", 0) is None:
                schema = make_nullable(schema)
            elif schema.get("format") in jobqueue.FILE_FORMATS:  # the default is no uploaded file
                schema.pop("default", None)
            elif "default" in schema:
                self._check_default(name, schema)
        if jobqueue.SECRET_NAME.search(name) and "string" in schema.get("type", ()):
            schema["format"] = "password"
        parts = [*self.function.target, "--"] if self.function.kind == "command" else ["--"]
        if "{%s}" % name in parts[:parts.index("--")]:  # the program could read it as an option
            rule = jobqueue.text_like("(?s)(?!-).*", 'must not begin with "-"')
            schema = {**rule, **schema}
            if "items" in schema:
                schema["items"] = {**rule, **schema["items"]}
        if text:
            schema["description"] = text
        return schema


    def _check_default(self, name: "str", schema: "Schema") -> None:
        """Raise ValueError for a default that does not fit the parameter's schema."""
        for error in jobqueue.check_value(schema, schema["default"], name):
            raise refused(self.function, "the default of %s %s: change the default or the type"
                          % (error["field"], error["message"]))


def make_nullable(schema: "Schema") -> "Schema":
    """Return a schema changed so that it also allows null."""
    if "null" in schema.get("type", ()) or None in schema.get("enum", ()):
        return schema
    if not schema.keys() & {"enum", "type"}:
        return schema
    return jobqueue.or_null(schema)


def check_runnable(function: "Function") -> None:
    """Refuse a function that would not run to its end, or would run without decorators above @task."""
    import inspect
    target = function.target
    try:
        inspect.signature(target)
    except ValueError:
        raise refused(function, "its parameters cannot be read: declare a function that calls it") from None
    above = getattr(sys.modules.get(function.__module__), getattr(target, "__name__", ""), None)
    if callable(above) and getattr(above, "__wrapped__", None) is function:
        raise refused(function, "a decorator above @task does not count: put @task on top")
    made_by = getattr(target, "__globals__", {}).get("__name__")
    whole = inspect.unwrap(target) if made_by == "contextlib" else target
    if inspect.isgeneratorfunction(whole) or inspect.isasyncgenfunction(whole):
        raise refused(function, "a function with yield does not run as a task: return a list instead")


def describe(function: "Function") -> "AnnouncedFunction":
    """Return a function as the catalogue stores it."""
    if function.kind == "python":
        check_runnable(function)
    title, _, rest = documentation(function).partition("\n")
    section = r"^\s*(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):?\s*$|^\s*:\w+"
    description = re.split(section, rest.strip(), flags=re.MULTILINE)[0].strip()
    name = function.name.rpartition(".")[2] if function.kind == "django" else function.name
    return {"name": function.name, "title": title or name.replace("_", " "),
            "description": description, "schema": Parameters(function).schema(),
            "options": function.options, "who": function.who,
            "external": function.kind == "external"}


def describe_any(function: "Function") -> "AnnouncedFunction":
    """Return a function as the catalogue stores it. A Django task without a usable signature has no form."""
    try:
        return describe(function)
    except Exception:                   # a default or a hint may raise anything when it is inspected
        if function.kind != "django":
            raise
        return {"name": function.name, "title": function.name, "description": "", "who": "nobody",
                "schema": {"type": "object", "properties": {}, "required": [], "additionalProperties": True},
                "options": function.options, "external": False}


def describe_schedules() -> "list[JsonObject]":
    """Return the @schedule declarations as the catalogue stores them.

    ValueError if one does not fit its function, or if two have the same name.
    """
    described: "list[JsonObject]" = []
    names: "set[str]" = set()
    for line in jobqueue.scheduled:
        name, fields = line.name, line.given
        if name not in declared:
            raise refused(line, "@schedule needs @task beside it")
        schema = Parameters(declared[name]).schema()
        for wrong in jobqueue.check_value(schema, fields["arguments"], "arguments"):
            raise refused(line, "its schedule: %s %s" % (wrong["field"], wrong["message"]))
        if fields["name"] in names:
            raise refused(line, "two schedules are called %s: rename one" % fields["name"])
        names.update(filter(None, [fields["name"]]))
        described.append({"function": name, **fields})
    return described


def is_owners(file: "str") -> "bool":
    """Return whether a file is the owner's: in a folder of the owner or ours, but not installed there."""
    folders = tuple("%s/" % folder for folder in (
        jobqueue.TASKS_FILE.parent, jobqueue.HOME, *jobqueue.project_folders))
    return (file.startswith(folders) and file not in map(str, jobqueue.CODE_FILES)
            and not re.search(r"/(site|dist)-packages/|/lib/python3[.0-9]*/", file))


def explain_import(error: "BaseException") -> "JsonObject":
    """Return the error of tasks.py and its place: {"message", "file", "line"}."""
    import traceback
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    if not file or not line:
        frames = [at for at in traceback.extract_tb(error.__traceback__) if is_owners(at.filename)]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    file = os.path.relpath(file, jobqueue.TASKS_FILE.parent) if file else None
    return {"message": storable("%s: %s" % (type(error).__name__, message))[:500],
            "file": file, "line": line}


def working_folder() -> "str":
    """Return the folder of tasks.py, or that of jobqueue.py if there is none."""
    folder = jobqueue.TASKS_FILE.parent
    return str(folder if folder.is_dir() else jobqueue.HOME)


def declare_samples() -> None:
    """Declare functions for trying the page, while there is no tasks.py."""
    @jobqueue.task
    def add(a: "int", b: "int", seconds: "float" = 0) -> "int":
        """Add two numbers, slowly if you like.

        :param seconds: how long to think about it
        """
        print("adding %d and %d" % (a, b))
        time.sleep(seconds)
        return a + b

    @jobqueue.task
    def count_down(start: "int" = 10) -> "str":
        """Count down once a second, and say how far it is."""
        for remaining in range(start, 0, -1):
            print(remaining, flush=True)
            jobqueue.current_task().progress(start - remaining, start, "%d to go" % remaining)
            time.sleep(1)
        return "lift-off"


def import_file(path: "Path") -> None:
    """Import a file under its own name, even if sys.path leads to another module of that name.

    If a loaded module or one of the standard library has that name, import the file as `tasks`.
    """
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader
    taken = {*sys.modules, *getattr(sys, "stdlib_module_names", ())}
    name = path.stem if path.stem not in taken else "tasks"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)     # set before it runs, because pickle looks it up
    loader.exec_module(module)


@contextlib.contextmanager
def folder_first(folder: "str") -> "Iterator[None]":
    """Let Python look for modules in the owner's folder first while the block runs, as in any script.

    After the block the folder stands behind Python's own ones. So the owner's files hide no module that
    jobqueue imports later.
    """
    import inspect      # noqa: F401 imported before the block, because jobqueue needs Python's own
    import traceback    # noqa: F401
    import typing       # noqa: F401
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        home = str(jobqueue.HOME)       # the folder of jobqueue.py; Python's own ones come before it
        if folder in sys.path:
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.insert(sys.path.index(home) + 1 if home in sys.path else len(sys.path), folder)


def read_functions() -> "Announcement":
    """Import tasks.py and return its announcement. After an error that has only the error and the files."""
    os.chdir(working_folder())
    samples = not (jobqueue.TASKS_FILE.exists() or os.environ.get("JOBQUEUE_TASKS"))
    try:
        if samples:
            declare_samples()
        else:
            sys.dont_write_bytecode = True      # cached bytecode would hide a change within the same second
            with folder_first(str(jobqueue.TASKS_FILE.parent)):
                import_file(jobqueue.TASKS_FILE)
        external = {function.options["queue"] for function in declared.values()
                    if function.kind == "external"}
        for function in declared.values():
            queue = function.options["queue"]
            if function.kind != "external" and queue in external:
                raise ValueError("%s: the queue %s is for external functions" % (function.name, queue))
        functions = [describe_any(function) for function in declared.values()]
        announcement: "Announcement" = {
            "functions": functions, "schedules": describe_schedules(), "error": None,
            "project": jobqueue.project_summary()}
    except BaseException as error:      # SystemExit in tasks.py must be reported, too
        announcement = {"error": explain_import(error)}
    # If one of these files changes, the functions may have changed, too.
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return {**announcement, "samples": samples, "files": sorted(filter(is_owners, files))}


# worker/commands.py ----------------------------------------------------------
#
# Programs as functions.
#
# The arguments fill their places in the parts of a command, which runs without a shell. Its output is the
# task's log. An exit code other than 0 is an error.
#
# Rules: an argument never becomes an option of the program, unless the owner wrote the minus sign or the
# argument is a number. A script of the folder schedules never runs twice at once.

START_AGAIN_SECONDS = 60                # pause if the host refuses to start a task's process


class CommandFailed(Exception):
    """The error of a program that ended with an exit code other than 0."""


def as_word(value):
    """Return a value as programs read it."""
    if value is None or isinstance(value, (str, Path)):
        return str(value or "")
    text = dump_json(value)
    return text[1:-1] if text.startswith('"') else text


def fill_parts(target, arguments):
    """Return the words of a command: its parts with the arguments in their places.

    If a part is one place and nothing else, a list becomes a word for each item, and null none. Fail if
    the program could read an argument as an option.
    """
    parts = []
    guarded = True
    for part in target:
        names = re.findall(jobqueue.PLACE, part)
        values = [item for value in map(arguments.get, names)
                  for item in (value if isinstance(value, (list, tuple, set)) else [value])]
        if names and part == "{%s}" % names[0] and names[0] in arguments:
            pieces = [as_word(item) for item in values if item is not None]
        else:
            pieces = [re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)]
        guarded = guarded and part != "--"
        harmless = part.startswith("-") or all(map(jobqueue.is_number, values))
        for piece in pieces:
            if guarded and piece.startswith("-") and not harmless:
                raise Fail('an argument must not begin with "-": %s' % piece[:100])
        parts += pieces
    return parts


def explain_program(program, error):
    """Return the reason why a program could not be started, and the remedy if it is known."""
    import shutil
    path = program if "/" in program else shutil.which(program)
    if path is None:
        return "%s was not found; PATH is %s" % (program, os.environ.get("PATH", ""))
    if not os.path.exists(path):
        return "%s was not found in %s" % (os.path.basename(path), os.path.dirname(os.path.abspath(path)))
    if not os.access(path, os.X_OK):
        return "%s may not be run: give it the rights 755" % program
    with contextlib.suppress(OSError), open(path, "rb") as file:
        line = file.readline(200)
        if line.startswith(b"#!") and line.rstrip(b"\n").endswith(b"\r"):
            return "the line ends of %s are those of Windows: save it with those of Unix" % program
        interpreter = os.fsdecode(line[2:].strip().partition(b" ")[0])
        if line.startswith(b"#!") and not os.path.exists(interpreter):
            return "the first line of %s names a program that is not there: %s" % (program, interpreter)
        if error.errno == errno.ENOEXEC:
            return "%s is no program for this machine; a script begins with #! and its interpreter" % program
    return "%s could not be started: %s" % (program, error.strerror)


def run_program(parts, context):
    """Run a program to its end; CommandFailed if its exit code is not 0."""
    import subprocess
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, "JOBQUEUE_TASK_ID": str(context.id),
                   "JOBQUEUE_ATTEMPT": str(context.attempt), "JOBQUEUE_CLAIM": context.claim,
                   "JOBQUEUE_FOLDER": str(context.folder)}
    try:
        ended = subprocess.run(parts, stdin=subprocess.DEVNULL, env=environment, check=False)
    except OSError as error:
        if error.errno in jobqueue.SHORTAGES:   # such as a host that allows no more processes
            raise RetryAfter(START_AGAIN_SECONDS,
                             jobqueue.explain_start_error(error, parts[0])) from None
        raise CommandFailed(explain_program(parts[0], error)) from None
    if ended.returncode < 0:
        raise CommandFailed("%s was ended by %s" % (parts[0], jobqueue.name_signal(-ended.returncode)))
    if ended.returncode:
        raise CommandFailed("%s ended with exit code %d" % (parts[0], ended.returncode))
    return {"exit_code": 0}


def run_command(function, arguments, context):
    """Run a program with the arguments in their places; no shell."""
    return run_program(fill_parts(function.target, arguments), context)


def run_script(function, arguments, context):
    """Run a script of the schedule folders, never twice at once."""
    import fcntl
    name = arguments["script"]
    if name not in jobqueue.find_scripts():
        raise Fail("schedules/%s is not there any more, or cannot be run any more" % name)
    path = str(jobqueue.SCRIPTS_FOLDER / name)
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fail("schedules/%s is running already" % name) from None
        except OSError:
            pass                        # without flock only the schedule's overlap prevents that
        return run_program([sys.executable, path] if path.endswith(".py") else [path], context)


def run_sample():
    """Run the sample task of the page This host."""
    print("The worker process %d runs this for %d s." % (os.getpid(), jobqueue.SAMPLE_SECONDS))
    time.sleep(jobqueue.SAMPLE_SECONDS)
    return "A worker lived for %d s." % jobqueue.SAMPLE_SECONDS


BUILT_IN = {
    jobqueue.SCRIPT_FUNCTION: jobqueue.Function(
        jobqueue.SCRIPT_FUNCTION, "script", None, {}, "nobody", {"script": str}),
    jobqueue.SAMPLE_FUNCTION: jobqueue.Function(
        jobqueue.SAMPLE_FUNCTION, "python", run_sample, {}, "nobody", {})}


# worker/requests.py ----------------------------------------------------------
#
# HTTP requests as functions.
#
# Arguments fill the places of the address. The other arguments become the query or the JSON body. The answer
# is the result. A status of 4xx fails for good, except for 408, 425 and 429. 5xx may be retried.
#
# Rules: a request goes only to the server that the owner wrote, without proxy and redirect. No argument can
# add ".." to the path. Answers are read up to a limit.

ANSWER_MAX_BYTES = 1 << 19              # largest answer to an HTTP request
REQUEST_SECONDS = 30.0                  # to connect, and for each read of an answer


def refuse_climbing(template, arguments):
    """Fail if a value would lead out of its place in the path, however often a server decodes it.

    nginx reads "..%2Fx" as "../x". Other servers read a backslash as a slash and skip text after ";".
    """
    for part in re.split("[?#]", template)[0].split("/"):
        names = re.findall(jobqueue.PLACE, part)
        text = re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)
        for _ in range(10):
            text = unquote(text, "latin-1")
        steps = {re.sub(r"[\x00-\x20\x7f]", "", step) for step in re.split(r"[/\\?#;]", text)}
        if names and (steps & {".", ".."} or unquote(text) != text):
            raise Fail("%s must not hold . or .. between slashes, however they are encoded: that "
                       "would lead out of its place in the address" % " and ".join(names))


def build_request(target, arguments, context):
    """Return the urllib Request, with the arguments in the places, the query or the JSON body."""
    from urllib.request import Request
    refuse_climbing(target["address"], arguments)
    address = re.sub(jobqueue.PLACE, lambda match: quote(as_word(arguments.get(match[1])), safe=""),
                     target["address"])
    rest = {name: arguments[name] for name in arguments if "{%s}" % name not in target["address"]}
    headers = {"User-Agent": "jobqueue/" + jobqueue.VERSION,
               "Idempotency-Key": "task-%d" % context.id, **target["headers"]}
    body = None
    if target["method"] in ("GET", "HEAD", "DELETE"):
        words = urlencode({name: as_word(value) for name, value in rest.items()})
        address += ("&" if "?" in address else "?") + words if words else ""
    else:
        body = dump_json(rest).encode("utf-8")
        headers["Content-Type"] = "application/json"
    return Request(address, body, headers, method=target["method"])


@functools.lru_cache(maxsize=None)
def http_opener(authorities=None, by_proxy=False):
    """Return an opener that checks certificates, follows no redirect, and returns every answer.

    With `by_proxy` it uses the proxies that the environment names, else none.
    """
    import ssl
    from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler
    opener, trusted = OpenerDirector(), ssl.create_default_context(cafile=authorities)
    for handler in (ProxyHandler(None if by_proxy else {}), HTTPHandler(),
                    HTTPSHandler(context=trusted)):
        opener.add_handler(handler)
    return opener


def run_request(function, arguments, context):
    """Send an HTTP request; return its answer as result. Fail for an error that a retry cannot mend."""
    request = build_request(function.target, arguments, context)
    with http_opener().open(request, timeout=REQUEST_SECONDS) as answer:
        data, code, headers = answer.read(ANSWER_MAX_BYTES + 1), answer.status, answer.headers
        whole = len(data) + (answer.length or 0)    # expected bytes, by Content-Length
    if code >= 300:
        print(data[:4096].decode("utf-8", "replace"))
        message = "the server answered %d %s" % (code, answer.reason)
        if code < 400:
            raise Fail("the server named another address: no redirect is followed")
        pause = read_retry_after(headers.get("Retry-After"), time.time())
        if code in (429, 503) and pause is not None:
            raise RetryAfter(pause, message)
        raise (CommandFailed if code >= 500 or code in (408, 425, 429) else Fail)(message)
    if len(data) > ANSWER_MAX_BYTES:
        raise Fail("the answer is larger than %d bytes" % ANSWER_MAX_BYTES)
    if len(data) < whole:
        raise CommandFailed("the answer broke off after %d of %d bytes" % (len(data), whole))
    with contextlib.suppress(ValueError):
        if "json" in headers.get("Content-Type", ""):
            return json.loads(data)
    return data.decode("utf-8", "replace") or None


# worker/task_files.py --------------------------------------------------------
#
# Files that a task is given and leaves.
#
# The given files are copied into the task's folder. So a retry gets the same files, even if the function
# changes them. If the files are kept at a site on another machine, they are fetched from there over HTTP. The
# files that the task leaves are sent there before its outcome. The task's claim authorizes these requests.
#
# Rules: a request goes only to the site's address. The certificate is checked, and no redirect is followed.

FILE_SECONDS = 60.0                     # timeout of each network step of a request
FILE_PAUSES = 1.0, 5.0, *[15.0] * 10    # after failed requests; a remote worker's claim is lost by then
TRY_AGAIN = (408, 429, 502, 503, 504)
RUN_ENDINGS = r"ph|shtm|f?cgi|as[pmch]|jsp|cfm"    # some servers test every ending in a name
GIVEN = ".given"                        # subfolder of the task's folder; the task does not leave its files


def inert_name(name):
    """Return a given file's name on the disk, without endings that make a web server run the file."""
    plain = re.sub(r"\.(?=%s)" % RUN_ENDINGS, "_", jobqueue.file_name(name), flags=re.IGNORECASE)
    return jobqueue.disk_name(plain)


def error_in(answer):
    """Return the error in an unsuccessful answer. Fail if it is jobqueue's and no retry can help."""
    with answer:
        is_ours = answer.headers.get_content_type() == "application/problem+json"
        if is_ours and answer.status not in TRY_AGAIN:
            raise Fail("the site refuses: %s" % json.load(answer)["detail"])
        return "the server answered %d %s" % (answer.status, answer.reason)


class TaskSite:
    """The site that has the files of a task, and the results of its predecessors."""

    def __init__(self, place, context):
        self._address, self._authorities = place
        self._context = context

    def ask(self, path, file=None):
        """Send a request, with the file if there is one; return the site's answer.

        Fail if the site refuses the request; ConnectionError if it does not answer.
        """
        from http.client import HTTPException
        from urllib.request import Request
        task = self._context
        if not self._address:
            raise Fail("its files are on another machine, and the setting page_address is empty")
        place = "%s/api/worker/tasks/%d/%s" % (self._address.rstrip("/"), task.id, path)
        size = os.fstat(file.fileno()).st_size if file else 0
        opener = http_opener(self._authorities, by_proxy=place.startswith("https:"))
        kind, head, tail = jobqueue.BYTES_TYPE, b"", b""
        for pause in FILE_PAUSES:
            request = Request(place, file and chain([head], jobqueue.FileSlice(file, size), [tail]), {
                "Content-Type": kind, "Content-Length": str(len(head) + size + len(tail)),
                "X-Api-Key": task.claim})
            try:
                answer = opener.open(request, timeout=FILE_SECONDS)
                if answer.status < 300:
                    return answer
                problem = error_in(answer)
                if file and 400 <= answer.status < 500:     # a firewall in front of the site refuses it
                    kind, head, tail = jobqueue.envelope(jobqueue.BYTES_TYPE)
            except (HTTPException, OSError) as error:
                problem = error
            time.sleep(pause)
            if file:
                file.seek(0)
        raise ConnectionError("the site does not answer: %s" % problem)


class TaskFiles:
    """The files of the running task. `site` has them if they are not here."""

    def __init__(self, site, names, context,
                 data):
        self.site = TaskSite(site, context) if site else None
        self._names = names             # names of the given files, by key
        self._context, self._data = context, data

    def bring(self, value, schema):
        """Copy the files of an argument; return the argument with paths in place of the files' ids.

        Fail if the schema asks for a file and the value is no id. A value for `bytes` may also be Base64.
        """
        if isinstance(value, list):
            return [self.bring(item, schema.get("items", {})) for item in value]
        if not (isinstance(value, str) and re.fullmatch(jobqueue.FILE_KEY, value)):
            if value is not None and schema.get("format") == "file":
                raise Fail("a file must be the id of an upload")
            return value
        folder = self._context.folder / GIVEN / value
        folder.mkdir(parents=True, exist_ok=True)
        if self.site:
            return self._fetch(self.site, value, folder)
        source = jobqueue.given_path(jobqueue.given_folder(self._data), value)
        try:
            with open(source, "rb") as file:
                return self._copy(file, folder / inert_name(self._names[value]))
        except (FileNotFoundError, KeyError):
            raise Fail("the file that it was given, %s, is not there any more" % value) from None

    def _fetch(self, site, key, folder):
        """Copy a file from the site. If the transfer breaks off, try again."""
        from http.client import HTTPException
        for pause in FILE_PAUSES:
            with site.ask("files/" + key) as answer:
                name = answer.headers["Content-Disposition"].rpartition("''")[2]
                try:
                    path = self._copy(answer, folder / inert_name(unquote(name)))
                    if not answer.length:       # length: the bytes that have not arrived
                        return path
                except HTTPException:
                    pass
            time.sleep(pause)
        raise ConnectionError("the file %s breaks off on its way from the site" % name)

    @staticmethod
    def _copy(file, path):
        import shutil
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, jobqueue.PIECE_BYTES)
        return str(path)

    def keep(self, result):
        """Make the files of a result the task's; return the result with file names in place of paths.

        Lists and dictionaries are searched, too, if they have at most FILES_MAX items.
        """
        if isinstance(result, Path):
            return self.leave(result)
        if type(result) in (list, tuple) and len(result) <= jobqueue.FILES_MAX:
            return [self.leave(item) if isinstance(item, Path) else item for item in result]
        if type(result) is dict and len(result) <= jobqueue.FILES_MAX:
            return {key: self.leave(item) if isinstance(item, Path) else item
                    for key, item in result.items()}
        return result

    def leave(self, path):
        """Make a file whose path the function returned the task's; return its name.

        A file in another folder, a link, and a file with a hidden name are copied. A path that is no file
        is returned as text.
        """
        if not path.is_file():
            return str(path)
        folder, name = self._context.folder, jobqueue.file_name(path.name)
        is_there = path.parent.resolve() == folder.resolve()
        if not is_there or jobqueue.plain_size(folder, path.name) is None:
            copy = folder / (".copy-" + jobqueue.random_token(8))
            with open(path, "rb") as file:
                self._copy(file, copy)
            copy.replace(folder / jobqueue.disk_name(name))
        return name

    def close(self):
        """Remove the copies of the given files. Send the files that the task left to the site, if any."""
        if not self._context.has_folder:
            return
        import shutil
        folder = self._context.folder
        shutil.rmtree(folder / GIVEN, ignore_errors=True)
        if not self.site:
            return
        names = jobqueue.names_left(folder) or []
        for name in names[:jobqueue.FILES_MAX]:
            try:
                with jobqueue.open_plain(folder, name) as file:
                    quoted = quote(name, safe="", errors="replace")
                    self.site.ask("files?name=" + quoted, file).close()
            except ConnectionError:
                raise
            except (Fail, OSError) as error:
                print("Not kept: %s (%s)" % (name, error))
        if names[jobqueue.FILES_MAX:]:
            print("Not kept: the %d after these" % len(names[jobqueue.FILES_MAX:]))


# worker/outcomes.py ----------------------------------------------------------
#
# Outcomes: how an attempt ended, as JSON that can always be sent.
#
# After the end of a function the owner's objects may still raise exceptions: the text of an exception, its
# attributes, the result and its parts.
#
# Rules: outcome_of_result() and outcome_of_exception() raise nothing. A function that ran to its end is never
# run again because of its result. A value that JSON cannot write is converted if possible. Any other fault of
# the result fails the task for good.

                       # the state that the task left in the runner, in words























MESSAGE_MAX_CHARACTERS = 4000           # most characters of a message, or of a line of a traceback
TRACEBACK_MAX_CHARACTERS = 100_000
LINE_MAX_BYTES = 1 << 20                # longest message between worker and runner


def write_result(result):
    """Return a result as JSON text; raise TypeError, ValueError or any other error if that fails."""
    if result is None:
        return "null"
    if is_deep(result, RESULT_MAX_DEPTH):
        raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
    try:
        return dump_json(result)
    except (TypeError, ValueError):
        return dump_json(plain_value(result))


def outcome_of_result(result, keep):
    """Return the outcome of a function that ran to its end. `keep` stores a file whose path it returned."""
    try:
        return {"kind": "succeeded", "result": write_result(keep(result))}
    except BaseException as error:
        outcome = outcome_of_exception(error)
        outcome["kind"] = "fail"
        outcome["error_message"] = (
            "it has run, but its result cannot be kept (%s): return texts, numbers, lists or dictionaries"
            % outcome["error_message"])
        return outcome


def too_large(outcome):
    """Return the outcome of a function whose result is too large to be sent."""
    failed = {**outcome, "kind": "fail", "result": "null", "error_type": "ValueError"}
    failed["error_message"] = "the result is larger than %d bytes" % LINE_MAX_BYTES
    return failed


def outcome_of_exception(error):
    """Return an exception as an outcome: class, message, and the traceback below our own frames."""
    if isinstance(error, SystemExit) and (
            error.code is None or isinstance(error.code, int) and not error.code):
        return {"kind": "succeeded", "result": "null", "error_type": "SystemExit"}
    name = str(type.__getattribute__(type(error), "__name__"))
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        message, lines = show_exception(error, frames)
    except BaseException:               # the owner's class raises when it is inspected
        message, lines = "its message could not be shown", show_frames(name, frames)
    outcome = {
        "kind": "fail" if isinstance(error, Fail) else "error", "error_type": name,
        "error_message": message[:MESSAGE_MAX_CHARACTERS],
        "traceback": storable("".join(map(cut, lines)))[-TRACEBACK_MAX_CHARACTERS:]}
    if isinstance(error, RetryAfter):
        seconds = seconds_of(error)
        if seconds is not None:
            outcome["retry_after"] = seconds
    return outcome


def show_exception(error, frames):
    """Return an exception's message, and the lines of its traceback."""
    import traceback
    formatted = traceback.TracebackException(type(error), error, frames)
    lines = list(formatted.format())
    if not lines[0].startswith("Traceback "):
        lines.insert(0, "Traceback (most recent call last):\n")
    return storable(str(formatted)), lines


def show_frames(name, frames):
    """Return the last 50 frames of a traceback, without calling any code of the exception."""
    lines = ["Traceback (most recent call last):\n"]
    while frames:
        code = frames.tb_frame.f_code
        lines.append('  File "%s", line %d, in %s\n' % (code.co_filename, frames.tb_lineno, code.co_name))
        frames = frames.tb_next
    return [*lines[:1], *lines[1:][-50:], "%s: its message could not be shown\n" % name]


def cut(line):
    """Return a line of a traceback, cut if it is long, so that there is room for the frames."""
    left_out = len(line) - MESSAGE_MAX_CHARACTERS
    return line if left_out <= 0 else "%s… (%d more characters)\n" % (
        line[:MESSAGE_MAX_CHARACTERS], left_out)


def seconds_of(error):
    """Return the seconds of a RetryAfter, within limits; None if it has no number."""
    try:
        seconds = float(error.seconds)
    except BaseException:               # a subclass that did not call our __init__()
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), 1e9)


# worker/leftovers.py ---------------------------------------------------------
#
# Leftovers: changes of the process by a task, which would affect the next task.
#
# PROBES and SLOW_PROBES have a row for each kind of state in the process: its name, how it is read, and how
# it is restored. If a state cannot be restored, the worker replaces the runner. Quick functions run 15,000
# times a second. So the rows of PROBES, which are read after each task, use modules in C where these are
# quicker. SLOW_PROBES are read after the last task of a batch, and after a task that caused an audit event in
# SLOW_EVENTS. They are also read if a change could not be restored.
#
# Rules: no probe imports a module. If a module is not imported, a probe returns the state just after the
# module's import. No row sees the hidden state of an extension in C, or changed variables of the
# owner's modules, such as tasks.py.

LIMITS = [getattr(resource, "RLIMIT_" + name)
                     for name in "FSIZE NOFILE AS CPU DATA NPROC STACK".split()
                     if hasattr(resource, "RLIMIT_" + name)]
SLOW_EVENTS = frozenset("resource.setrlimit resource.prlimit os.fork os.forkpty os.posix_spawn "
                    "os.system subprocess.Popen".split())
VARIABLE_EVENTS = frozenset(("os.putenv", "os.unsetenv"))
ENVIRONMENT = os.environ                # the owner's code may replace os.environ
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
SIGNALS = [getattr(signal, "SIG" + name) for name in
                      "HUP INT QUIT ABRT ALRM TERM PIPE CHLD USR1 USR2 XCPU XFSZ VTALRM PROF".split()]
_MODULES = sys.modules
_DECIMAL = 28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0     # the values of a fresh context


class Probe(NamedTuple):
    """A kind of state in the process."""

    name: "str"
    read: "Callable[[], Any]"
    put_back: "Callable[[Any], None] | None" = None   # restores the value that was read before


def text_streams():
    """Make the streams that functions print to, and set them as sys.stdout and sys.stderr.

    The streams are opened on a pipe, because logs are pipes. A stream that is opened on a file would say
    that it is seekable.
    """
    streams = {}
    pipe = os.pipe()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(pipe[1], descriptor)
        streams[name] = open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, streams[name])
        setattr(sys, "__%s__" % name, streams[name])
    for end in pipe:
        os.close(end)
    return streams


def _read_streams():
    out = sys.stdout
    err = sys.stderr
    return (out, err, sys.__stdout__, sys.__stderr__, sys.stdin,
            out.closed, out.encoding, out.errors, out.newlines, out.line_buffering, out.write_through,
            err.closed, err.encoding, err.errors, err.newlines, err.line_buffering, err.write_through)


def _read_hooks():
    return (sys.getprofile(), sys.gettrace(), sys.excepthook, sys.displayhook, sys.unraisablehook,
            sys.breakpointhook, threading.excepthook, getattr(threading, "_trace_hook", None),
            getattr(threading, "_profile_hook", None))


def _read_settings():
    digits = getattr(sys, "get_int_max_str_digits", int)()
    return (sys.getrecursionlimit(), sys.getswitchinterval(), digits, socket.getdefaulttimeout(),
            gc.isenabled(), gc.get_threshold(), gc.get_debug(), sys.dont_write_bytecode,
            _thread.stack_size(), "faulthandler" in _MODULES and _MODULES["faulthandler"].is_enabled())


def _read_locale():
    return time.tzname, _locale.setlocale(_locale.LC_ALL)


def _read_warnings():
    warnings = _MODULES["warnings"]
    return list(warnings.filters), warnings.showwarning


def _put_warnings_back(before):
    warnings = _MODULES["warnings"]
    warnings.resetwarnings()
    warnings.filters.extend(before[0])
    warnings.showwarning = before[1]


def _read_logging():
    logging = _MODULES.get("logging")
    if logging is None:
        return 0, 30, [], False, None, None
    root = logging.root
    return (root.manager.disable, root.level, list(root.handlers), root.disabled, logging.getLoggerClass()
            if logging.getLoggerClass() is not logging.Logger else None, logging.getLogRecordFactory()
            if logging.getLogRecordFactory() is not logging.LogRecord else None)


def _put_logging_back(before):
    logging = _MODULES["logging"]
    root = logging.root
    logging.disable(before[0])
    root.setLevel(before[1])
    for handler in root.handlers:
        if handler not in before[2]:
            handler.close()
    root.handlers[:], root.disabled = before[2], before[3]
    logging.setLoggerClass(before[4] or logging.Logger)
    logging.setLogRecordFactory(before[5] or logging.LogRecord)


def _read_decimal():
    decimal = _MODULES.get("decimal")
    if decimal is None:
        return (*_DECIMAL, (True, True, True))
    context = decimal.getcontext()
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp,
            tuple(context.traps[each] for each in (decimal.InvalidOperation, decimal.DivisionByZero,
                                                   decimal.Overflow)))


def _put_decimal_back(before):
    decimal = _MODULES["decimal"]
    *values, traps = before
    context = decimal.Context(*values[:6])
    for each, is_set in zip((decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow), traps):
        context.traps[each] = is_set
    decimal.setcontext(context)


def _read_start_method():
    context = _MODULES.get("multiprocessing.context")
    method = getattr(getattr(context, "_default_context", None), "_actual_context", None)
    return method and method.get_start_method()


def _put_start_method_back(before):
    _MODULES["multiprocessing"].set_start_method(before, force=True)


def _read_python_functions():
    return (os.write, os.read, os.open, os.close, os.dup, os.dup2, os.getpid, os._exit, print, open,
            time.sleep, time.time, time.monotonic, json.loads, json.dumps, signal.signal,
            len(builtins.__dict__), builtins.__import__)


def _read_children():
    """Return whether a child process runs, or has ended without being collected."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


PROBES = (
    Probe("a timer", lambda: list(map(_signal.getitimer, TIMERS))),
    Probe("signal handlers", lambda: list(map(_signal.getsignal, SIGNALS))),
    Probe("blocked signals", lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    Probe("environment variables",
          lambda: (os.environ is ENVIRONMENT, dict(getattr(ENVIRONMENT, "_data")))),
    Probe("sys.path", lambda: (list(sys.path), list(sys.meta_path), list(sys.path_hooks))),
    Probe("threads", _thread._count),
    Probe("other functions of Python", _read_python_functions),
    Probe("other settings of Python", _read_settings),
    Probe("text streams", _read_streams),
    Probe("hooks of Python", _read_hooks),
    Probe("another locale or zone", _read_locale),
    Probe("sys.argv", lambda: list(sys.argv)),
    Probe("warnings", _read_warnings, _put_warnings_back),
    Probe("logging", _read_logging, _put_logging_back),
    Probe("decimal", _read_decimal, _put_decimal_back),
    Probe("a start method", _read_start_method, _put_start_method_back))
SLOW_PROBES = (
    Probe("limits", lambda: list(map(resource.getrlimit, LIMITS))),
    Probe("a child", _read_children),
    Probe("another priority", lambda: os.getpriority(os.PRIO_PROCESS, 0)))


def lowest_free():
    """Return the lowest free descriptor number; None if the process may open no more descriptors."""
    with contextlib.suppress(OSError):
        descriptor = os.dup(0)
        os.close(descriptor)
        return descriptor
    return None


class Leftovers:
    """The changes that tasks leave in this process, compared with its state before the first task."""

    def __init__(self):
        self._saw_slow_event = False           # the task caused an audit event in SLOW_EVENTS
        self._variables = set()     # names that the task set or unset
        sys.addaudithook(self._audit)
        self._before = [probe.read() for probe in PROBES]
        self._slow_before = [probe.read() for probe in SLOW_PROBES]
        self._lowest_before = None   # the lowest free descriptor before the batch
        self._owner = None  # owner of the last task
        self._flush_c = None
        self._module_count = 0          # number of loaded modules when flush() last looked for C extensions

    def begin(self, owner, is_first):
        """Begin a task of an owner. Before the first task of a batch, note the lowest free descriptor."""
        if is_first:
            self._lowest_before = lowest_free()
        if owner != self._owner:        # a task must not foresee the random numbers of another owner
            self._owner = owner
            if "random" in _MODULES:
                _MODULES["random"].seed()

    def flush(self):
        """Write out the buffers that the task printed into: Python's, and C's if loaded code may use it."""
        for stream in (sys.stdout, sys.stderr):
            try:                        # suppress() would take longer than both calls
                stream.flush()
            except Exception:
                pass
        if len(_MODULES) != self._module_count:
            self._module_count = len(_MODULES)
            if self._flush_c is None and is_c_loaded():
                import ctypes
                self._flush_c = ctypes.CDLL(None).fflush
        if self._flush_c:
            self._flush_c(None)

    def restore(self, is_last):
        """Restore the state; return the names of states that remain changed, or None."""
        if self._variables:
            self._put_variables_back()
        states = [probe.read() for probe in PROBES]
        changed = [] if states == self._before else self._put_back(states)
        if not (changed or is_last or self._saw_slow_event):
            return None
        self._saw_slow_event = False
        for probe, before in zip(SLOW_PROBES, self._slow_before):
            if probe.read() != before:
                changed.append(probe.name)
        for kind, limits in zip(LIMITS, self._slow_before[0] if changed else ()):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, limits)    # with low limits even the outcome could not be sent
        if not changed and self._lowest_before != lowest_free():
            gc.collect()                # an unreachable object may hold a file open
            changed = ["an open file"] if self._lowest_before != lowest_free() else []
        return ", ".join(changed) or None

    def _put_back(self, states):
        """Restore changed states; return the names of those that cannot be restored."""
        remaining = []
        for probe, before, value in zip(PROBES, self._before, states):
            if value != before:
                if probe.put_back:
                    probe.put_back(before)
                if probe.put_back is None or probe.read() != before:
                    remaining.append(probe.name)
        return remaining

    def _put_variables_back(self):
        """Make C's environment equal to ENVIRONMENT again, where the task set or unset a variable."""
        variables, self._variables = self._variables, set()
        for name in variables:
            value = getattr(ENVIRONMENT, "_data").get(name)
            if value is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)
        self._variables.clear()

    def _audit(self, event, details):
        if event in SLOW_EVENTS:
            self._saw_slow_event = True
        elif event in VARIABLE_EVENTS:
            self._variables.add(os.fsencode(details[0]))


def is_c_loaded():
    """Return whether ctypes or a C extension of a package is loaded, which may print through C's buffer."""
    library = os.path.dirname(os.__file__)
    return "ctypes" in _MODULES or any(
        path.endswith(".so") and (not path.startswith(library) or "-packages" in path)
        for path in [str(getattr(module, "__file__", "")) for module in list(_MODULES.values())])


# worker/django_tasks.py ------------------------------------------------------
#
# Running Django's tasks.
#
# A task runs as a request of Django does, but each begins without connections to the databases. So a
# waiting worker holds none, however long CONN_MAX_AGE is. The signals task_started
# and task_finished are sent here. A process that is killed sends no task_finished.

THREADS_SECONDS = 0.1                   # the thread of async_to_sync() ends a moment after its call
COLLECT_SECONDS = 0.003


def run_django(function, order, context):
    """Run a task of Django; return its outcome."""
    names, task, threads = jobqueue.django_names(), function.task, threading.active_count()
    result = None
    try:
        result = running_result(function, order, context)
        names.signals.task_started.send(sender=type(task.get_backend()), task_result=result)
        first = [names.context(task_result=result)] if task.takes_context else []
        value = task.call(*first, *result.args, **result.kwargs)
    except BaseException as error:      # any exception of the owner's code is the attempt's error
        outcome = outcome_of_exception(error)
        name_class(outcome, error)
        guard(finish, result, outcome, error, order["more"])
    else:
        outcome = outcome_of_value(value)
        guard(finish, result, outcome, None, order["more"])
    guard(end_request, threads)
    return outcome


def guard(step, *values):
    """Take a step after the end of the task. Its error only appears in the log: the task has run."""
    try:
        step(*values)
    except BaseException as error:
        print(outcome_of_exception(error).get("traceback", ""), file=sys.stderr)


def outcome_of_value(value):
    """Return the outcome of a task that ran to its end. Django refuses a value that is not JSON."""
    outcome = outcome_of_result(value, jobqueue.django_names().normalize)
    if len(jobqueue.dump_json(outcome)) > LINE_MAX_BYTES - 4096:        # the worker would refuse it
        return too_large(outcome)
    return outcome


def name_class(outcome, error):
    """Name the module of the exception's class, too, as Django does. Ours and Python's need none."""
    kind = type(error)
    if kind.__module__ != "builtins" and outcome["kind"] != "succeeded":
        outcome["error_type"] = "%s.%s" % (kind.__module__, kind.__qualname__)


def running_result(function, order, context):
    """Return Django's TaskResult of the attempt that begins now."""
    more, now, task = order["more"], datetime.now().timestamp(), function.task
    view = {
        "id": order["id"], "function": function.name, "queue": more["queue"] or task.queue_name,
        "priority": task.priority if more["priority"] is None else more["priority"],
        "run_at": more["run_at"], "status": "running", "arguments": json.loads(order["arguments"]),
        "result": None, "created_at": more["created_at"], "started_at": now, "attempted_at": now,
        "finished_at": None, "errors": [], "workers": [str(more["worker_id"] or "")] * order["attempt"]}
    if context.ask_task is None:
        view["run_at"] = None           # it may be the time of a retry
    elif order["attempt"] > 1 or more["run_at"] is not None:
        view = context.ask_task(order["id"])
    return jobqueue.make_result(view, jobqueue.task_with(view, task, task.backend), task.backend)


def finish(result, outcome, error,
           more):
    """Write the outcome into Django's TaskResult, and send task_finished unless the task is tried again."""
    names = jobqueue.django_names()
    if result is None:                  # the task did not begin
        return
    status = "succeeded" if outcome["kind"] == "succeeded" else "failed"
    changes = {"status": names.statuses[status],
                               "finished_at": jobqueue.moment(datetime.now().timestamp())}
    if status == "succeeded":
        changes["_return_value"] = json.loads(outcome["result"])
    else:
        path = outcome["error_type"]
        result.errors.append(names.error(
            exception_class_path=path if "." in path else "builtins." + path,
            traceback=outcome.get("traceback", "")))
        is_first = more["retries_left"] == more["max_retries"]
        if outcome["kind"] == "error" and (
                (more["retries_left"] or 0) > 0 or "retry_after" in outcome and is_first):
            return                      # leases.judge() lets it be tried again
    for name, value in changes.items():
        object.__setattr__(result, name, value)
    names.signals.task_finished.send_robust(sender=type(result.task.get_backend()), task_result=result)


def end_request(threads):
    """Close connections and caches, and forget the language and the zone that the task has chosen.

    Wait a moment until no more than `threads` run: a thread that is left costs a new runner. After an
    error, or in old versions, only the garbage collector ends the thread of async_to_sync().
    """
    jobqueue.drop_connections()
    jobqueue.django_module("core.cache").close_caches()
    jobqueue.django_module("utils.translation").deactivate()
    jobqueue.django_module("utils.timezone").deactivate()
    began, is_collected = time.monotonic(), False
    while threading.active_count() > threads and time.monotonic() < began + THREADS_SECONDS:
        time.sleep(0.0005)
        if not is_collected and time.monotonic() > began + COLLECT_SECONDS:
            gc.collect(1)
            is_collected = True


# worker/runner.py ------------------------------------------------------------
#
# The child's side: runs one attempt after another.
#
# The runner imports tasks.py, announces its functions, and runs one attempt after another. It is a fresh
# interpreter, or a fork of the worker made before anything was open. It ends when its channel or its life
# line is closed. It sends the worker lines of JSON: {"announce"} first, then for each attempt {"report"},
# {"enqueue"} and {"results"}, and at last {"outcome"}. The worker answers {"enqueue"} and {"results"}.
#
# Rules: the runner never touches the database. If a task changes this process, the next task must not see
# that. Some changes are undone. The rest is reported, and the worker replaces the runner. A fork of the
# runner never sends messages to the worker.










































PROGRESS_SECONDS = 0.2
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024      # the unit of ru_maxrss
BATCH_MAX = 128                         # most tasks in a batch
RUN_KINDS = {
    "command": run_command, "http_request": run_request, "script": run_script}
parameters_of = functools.lru_cache(maxsize=None)(Parameters)


def await_result(coroutine):
    """Run the coroutine of an async function to its end, in an event loop of its own."""
    import asyncio
    return asyncio.run(coroutine)


class Refusal(NamedTuple):
    """An error of jobqueue in the worker's answer: the name of its class, and its arguments."""

    kind: "str"
    detail: "str"
    errors: "list[FieldError]"
    retry_after: "float | None"


def arm_lifeline(end):
    """Let the kernel kill this process group once the worker's end of the life line is closed."""
    import fcntl
    os.set_inheritable(end, False)
    try:
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(end, 10, signal.SIGKILL)    # F_SETSIG of Linux
        flags = fcntl.fcntl(end, fcntl.F_GETFL)
        fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    except OSError:                     # other systems: a thread waits until the pipe is closed
        def wait():
            os.set_blocking(end, True)
            os.read(end, 1)
            os.killpg(os.getpgrp(), signal.SIGKILL)
        threading.Thread(target=wait, daemon=True).start()
    if select.select([end], [], [], 0)[0]:
        os._exit(0)                     # the worker's end was closed before this was armed


def usage():
    """Return the resources that this process and its ended children have used."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss) * MAXRSS_BYTES


class Runner:
    """The runner: runs attempts as the worker hands them over. It has no database."""

    def __init__(self, channel, bell, data, lock=None):
        self._channel, self._data, self._pid = channel, data, os.getpid()
        self._bell = bell               # a byte in it makes the worker read the channel
        self._worker_lock = lock        # held here, too: the lock is free once worker and runner are dead
        self._lock = threading.RLock()  # the function may have threads that speak to the worker
        self._claim = None  # claim of the current attempt
        self._arrived = b""
        self._descriptors = []       # received with messages
        self._go = None     # a batch's pipe, with a byte for each order not begun
        self._null = os.open(os.devnull, os.O_RDWR)
        self._streams = {}   # the stdout and stderr that tasks start with
        self._leftovers: "Leftovers"      # set in run()
        self._folder, self._umask = "", host_umask()
        self._used = (0.0, 0)    # usage() after the last attempt; set in run()
        self._unsent = None
        self._next_report = 0.0

    def run(self):
        """Announce the functions, then run orders until the channel ends."""
        self._streams = {**text_streams()}      # made before tasks.py, which may keep them
        self._print_to(self._null)
        self._send({"announce": read_functions()})
        self._folder = working_folder()
        self._tidy()
        self._leftovers = Leftovers()
        self._used = usage()
        for message in iter(self._receive, None):
            self._run_in_a_row(message["orders"])
        return 0

    def forget(self):
        """Close the descriptors that a fork of this process must not keep: the fork may live longer."""
        self._lock = threading.RLock()  # a thread that the fork lacks may hold the former lock
        self._channel.close()
        for descriptor in {self._bell, self._go, self._worker_lock, *self._descriptors}:
            if descriptor is not None:
                os.close(descriptor)

    def _run_in_a_row(self, orders):
        """Run orders, except those that the worker takes back before they begin. Stop at leftovers."""
        if self._go is not None:
            os.close(self._go)
        self._go = self._descriptors.pop(0) if len(orders) > 1 else None
        for order in orders:
            log = self._descriptors.pop(0)
            if self._go is not None and not os.read(self._go, 1):
                os.close(log)           # the worker took the order back
            elif self._attempt(order, log, order is orders[0], order is orders[-1]):
                return                  # the next orders need a runner without leftovers

    def _attempt(self, order, log, is_first, is_last):
        """Run an order and send its outcome; return the state that it left in this process, or None."""
        self._print_to(log)
        self._tidy()
        self._leftovers.begin(order["owner"], is_first)
        context = TaskContext(order["id"], order["owner"], order["attempt"], order["crashes"],
                              order["claim"], self._data, self._report, self._enqueue)
        files = TaskFiles(order.get("site"), order["given"], context, self._data)
        context.ask_results = functools.partial(self._results, files)
        if order["more"]["worker_id"] is not None:
            context.ask_task = self._task
        TaskContext.running = context
        self._claim, self._unsent = order["claim"], None
        before, began = self._used, time.monotonic()
        outcome = self._outcome(order, context, files)
        seconds, self._used = time.monotonic() - began, usage()
        TaskContext.running = None
        with self._lock:                # a thread may be adding a task
            self._claim = None
        try:
            self._leftovers.flush()
            leftovers = self._leftovers.restore(is_last)
        except Exception as error:      # the task may have broken Python: its outcome must still be sent
            leftovers = "values that cannot be inspected: %s" % type(error).__name__
        self._print_to(self._null)
        outcome["seconds"], outcome["peak_memory"] = round(seconds, 6), self._used[1]
        outcome["cpu_seconds"] = round(self._used[0] - before[0], 6)
        if self._unsent:
            outcome["report"] = self._unsent
        if leftovers:
            outcome["left"] = leftovers
        rings = is_last or leftovers is not None
        try:
            self._send({"claim": order["claim"], "outcome": outcome}, ring=rings)
        except ValueError:
            self._send({"claim": order["claim"], "outcome": too_large(outcome)}, ring=rings)
        return leftovers

    def _tidy(self):
        """Restore folder, umask and text streams, for whose changes the runner is not replaced."""
        os.chdir(self._folder)
        os.umask(self._umask)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)

    def _outcome(self, order, context, files):
        name = order["function"]
        try:
            function = BUILT_IN.get(name) or declared.get(name) or jobqueue.find_django(name)
        except BaseException as error:  # importing its module failed
            return outcome_of_exception(error)
        if function is None or function.kind == "external":
            return {"kind": "unknown_function", "error_type": "UnknownFunction",
                    "error_message": "tasks.py does not declare %s" % name}
        if isinstance(function, DjangoFunction):
            return run_django(function, {**order}, context)
        try:
            result = self._call(function, json.loads(order["arguments"]), context, files)
        except BaseException as error:  # any exception of the owner's code is the attempt's error
            outcome = outcome_of_exception(error)
        else:
            outcome = outcome_of_result(result, files.keep)
        try:
            files.close()
        except Exception as error:      # the files that it left could not be sent
            if outcome["kind"] == "succeeded":
                outcome = outcome_of_exception(error)
        return outcome

    def _call(self, function, arguments, context,
              files):
        parameters = parameters_of(function)
        if files.site:                  # the arguments come from a site: check them again here
            for wrong in jobqueue.check_value(parameters.checked, arguments, ""):
                raise Fail("the site sent wrong arguments: %(field)s %(message)s" % wrong)
        for name in parameters.files:
            if name in arguments:
                schema = parameters.checked["properties"][name]
                arguments[name] = files.bring(arguments[name], schema)
        values = parameters.convert(arguments)
        if function.kind == "python":
            result = parameters.call(values)
            return await_result(result) if type(result) is CoroutineType else result
        return RUN_KINDS[function.kind](function, {**parameters.defaults, **values}, context)

    def _print_to(self, descriptor):
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if descriptor != self._null:
            os.close(descriptor)

    @contextlib.contextmanager
    def _speaking(self):
        """Yield the current claim. In the block no other thread sends messages."""
        with self._lock:
            if self._claim is None:
                raise RuntimeError("the task has ended")
            yield self._claim

    def _report(self, progress, message):
        """Send the progress, at most once in PROGRESS_SECONDS. Otherwise keep it for the outcome."""
        report = {
            "progress": progress, "message": None if message is None else storable(message)[:500]}
        with self._speaking() as claim:
            if time.monotonic() < self._next_report:
                self._unsent = report
                return
            self._next_report = time.monotonic() + PROGRESS_SECONDS
            self._unsent = None
            self._send({"claim": claim, "report": report})

    def _enqueue(self, requests):
        """Add all of these tasks through the worker, or none. Each message has a limited length."""
        parts = [[]]
        size = 0
        for request in requests:
            length = len(dump_json(request))
            if parts[-1] and size + length > LINE_MAX_BYTES // 4:
                parts.append([])
                size = 0
            parts[-1].append(request)
            size += length
        lines = [
            {"enqueue": part, "more": part is not parts[-1]} for part in parts]
        answer = self._ask(*lines)
        return Added(answer["ids"], answer["created"])

    def _results(self, files):
        """Return the results of the task's predecessors."""
        if files.site:
            with files.site.ask("results") as answer:
                results = json.load(answer)["results"]
            return results
        return self._ask({"results": True})["results"]

    def _task(self, task_id):
        """Return a task of the same owner, for get_result() of Django."""
        return self._ask({"task": task_id})["task"]

    def _ask(self, *messages):
        """Send messages; return the worker's answer, or raise its refusal."""
        with self._speaking() as claim:
            lines = [{"claim": claim, **message} for message in messages]
            self._send(*lines)
            answer = self._receive()
        if answer is None:
            os._exit(1)
        if "refused" in answer:
            kind, *why = answer["refused"]
            raise getattr(jobqueue, kind)(*why)
        return answer

    def _send(self, *messages, ring=True):
        """Send messages to the worker, a line each. If one is too long, raise ValueError and send none."""
        if os.getpid() != self._pid:
            raise RuntimeError("this process is a fork of the runner; only the runner itself can report")
        lines = [dump_json(message).encode("utf-8") + b"\n" for message in messages]
        if max(map(len, lines)) > LINE_MAX_BYTES:
            raise ValueError("a message of %d bytes is too long" % max(map(len, lines)))
        self._channel.sendall(b"".join(lines))
        if ring and self._go is not None:
            os.write(self._bell, b".")

    def _receive(self):
        """Return the next message, or None once the worker is gone. Keep descriptors sent with it."""
        while b"\n" not in self._arrived:
            data, descriptors, _, _ = socket.recv_fds(
                self._channel, 1 << 16, BATCH_MAX + 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            self._descriptors += descriptors
            if not data:
                return None
            self._arrived += data
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json.loads(line)


# worker/log.py ---------------------------------------------------------------
#
# The log pipe: an attempt's output on its way to the database.
#
# An attempt prints into a pipe. The worker reads it and stores the text in pieces, each with its offset in
# bytes.
#
# Rules: no task waits long for the worker to read its output, and no output fills the worker's memory. The
# beginning of a log is always stored. If output then arrives faster than it can be stored, only its latest
# part is kept.

PIECE_BYTES = 64 << 10


class LogPiece(NamedTuple):
    """A part of a log that begins at byte `start`."""

    start: "int"
    text: "str"


class LogPipe:
    """The worker's end of an attempt's pipe, and the output that is not stored yet."""

    def __init__(self, end=None):
        self.end = end                  # None before the hand-over, and after the end of the output
        self._decoder = None  # made at the first output
        self._waiting = bytearray()     # bytes not yet decoded; never more than LOG_MAX_BYTES
        self.pieces = []        # decoded, and not known to be stored
        self.start = 0                  # offset of the next piece, in bytes
        if end is not None:
            self.attach(end)

    def attach(self, end):
        """Set the end of the pipe that read() reads."""
        os.set_blocking(end, False)
        self.end = end

    def read(self):
        """Read the output since the last call, at most LOG_MAX_BYTES. Close the pipe at its end."""
        for _ in range(jobqueue.LOG_MAX_BYTES // PIECE_BYTES):
            if self.end is None:
                return
            try:
                data = os.read(self.end, PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.close()
            self._waiting += data
            excess = len(self._waiting) - jobqueue.LOG_MAX_BYTES
            if excess > 0 and self.start > 0:       # only the latest part is kept
                excess += jobqueue.LOG_MAX_BYTES // 2
                del self._waiting[:excess]
                self.start += excess

    def close(self):
        """Close the pipe; return True if that was before the end of the output."""
        if self.end is None:
            return False
        os.close(self.end)
        self.end = None
        return True

    @property
    def is_full(self):
        """Return True if the beginning of the log must be stored before more output is read."""
        return len(self._waiting) >= jobqueue.LOG_MAX_BYTES and self.start == 0

    def __bool__(self):
        return bool(self._waiting or self.pieces)

    @property
    def has_rest(self):
        """Return True if the decoder holds the first bytes of an incomplete character."""
        return self._decoder is not None and bool(self._decoder.getstate()[0])

    def decode_pieces(self, final):
        """Return the pieces to store. Unless `final`, they stay the same until `pieces` is emptied."""
        if final or not self.pieces:
            if self._decoder is None:
                self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
            text = self._decoder.decode(bytes(self._waiting), final)
            self._waiting.clear()
            self.put(storable(text))
        return self.pieces

    def put(self, text):
        """Append a text to the output."""
        for place in range(0, len(text), PIECE_BYTES):
            piece = text[place:place + PIECE_BYTES]
            self.pieces.append(LogPiece(self.start, piece))
            self.start += len(piece.encode("utf-8"))


# worker/samples.py -----------------------------------------------------------
#
# Samples: CPU time and memory of a running attempt, read from /proc.
#
# A task often runs a program, so the descendants of the runner count, too. A process that ended has no file.
# Its CPU time then counts for the parent that waited for it.
#
# Rules: a sample never raises an error. Without /proc there are no samples, for example on macOS. Hidden
# processes do not count. A sample reads about FILES_MAX files at most.

FILES_MAX = 1000                        # about 10 ms


class ProcessUse(NamedTuple):
    """The resources that a process and its ended children have used, as /proc/PID/stat shows them."""

    parent: "int"
    ticks: "int"                          # CPU time
    pages: "int"                          # resident memory


class FamilyUse(NamedTuple):
    """The resources that a process and its descendants have used."""

    cpu_seconds: "float"
    memory: "int"                         # resident bytes; shared ones count for each process


class Sample(NamedTuple):
    """The resources that an attempt has used, so many seconds after its start."""

    seconds: "float"
    cpu_seconds: "float"
    memory: "int"


def read_process(pid):
    """Return the resources of a process; OSError if it is gone or hidden."""
    with open("/proc/%d/stat" % pid, "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return ProcessUse(int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))


def scan_children():
    """Return the children of each process; none if there are more than FILES_MAX processes."""
    pids = []
    with contextlib.suppress(OSError):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    children = {}
    for pid in pids if len(pids) <= FILES_MAX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(read_process(pid).parent, []).append(pid)
    return children


def read_family(root):
    """Return the resources of a process and of each descendant that can be read."""
    uses = []
    pids, room = [root], FILES_MAX
    is_listed = os.path.exists("/proc/%d/task/%d/children" % (root, root))  # not by all kernels
    scanned = {} if is_listed else scan_children()
    while pids and room > 0:
        pid = pids.pop(0)
        room -= 1
        with contextlib.suppress(OSError, ValueError, IndexError):
            uses.append(read_process(pid))
            pids += scanned.get(pid, ())
            for thread in os.listdir("/proc/%d/task" % pid)[:room] if is_listed else ():
                room -= 1
                with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                    pids += map(int, file.read().split())
    return uses


def measure_family(root):
    """Return the resources of a process and its descendants; None if /proc does not show the process."""
    uses = read_family(root) if os.path.exists("/proc/%d/stat" % root) else []
    if not uses:
        return None
    return FamilyUse(sum(use.ticks for use in uses) / os.sysconf("SC_CLK_TCK"),
                     sum(use.pages for use in uses) * os.sysconf("SC_PAGE_SIZE"))


class Samples:
    """The samples of an attempt: at most SAMPLES_MAX over its whole life, and always the last two."""

    def __init__(self):
        self._early = []
        self._last = []
        self._distance = jobqueue.RENEW_SECONDS     # least seconds between two early ones

    def add(self, sample):
        """Add a sample. CPU time never decreases, also if a process was not waited for."""
        if self._last:
            sample = sample._replace(cpu_seconds=max(sample.cpu_seconds, self._last[-1].cpu_seconds))
        self._last.append(sample)
        if len(self._last) > 2:
            self._keep(self._last.pop(0))

    def _keep(self, sample):
        if self._early and sample.seconds - self._early[-1].seconds < self._distance:
            return
        self._early.append(sample)
        if len(self._early) > jobqueue.SAMPLES_MAX - 2:
            self._early, self._distance = self._early[::2], 2 * self._distance

    def all(self):
        """Return the samples, the oldest first."""
        return self._early + self._last


# worker/child.py -------------------------------------------------------------
#
# A runner as its worker sees it: pipes, life line, signals.
#
# The runner has a socket for orders and messages, and a pipe for each log. Several orders that are handed
# over at once are a batch. While a batch runs, the runner wakes the worker by another pipe, the bell. The life
# line is a pipe without data. When the worker dies, the kernel closes the worker's end of the life line. Then
# the runner's process group is killed, as arm_lifeline() has arranged.
#
# Several orders are handed over with a pipe that holds a byte for each. The runner reads one byte before it
# begins an order. To take orders back, the worker reads the remaining bytes. If it reads n bytes, the last n
# orders have not begun.
#
# Rules: end() kills every process of the group, and closes all pipes but those of logs. A malformed or
# unexpected message ends the runner. The group gets signals only until the exit status of its first process
# was read: later another process may have the pid.









class Fork:
    """A forked process, with the attributes of Popen that are used here."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None


class Started(NamedTuple):
    """A runner that has not received bell, life line and lock: its process, and our end of its channel."""

    process: "Process"
    channel: "socket.socket"


class Death(NamedTuple):
    """The way a runner ended, and the resources that it used."""

    code: "int"                           # the exit code, or minus the number of the signal
    cpu_seconds: "float"
    peak_memory: "int"                    # bytes


spares = []              # runners that fork_runner() has made for start_runner()


def start_runner(data):
    """Start a runner, or use a spare one."""
    while spares:
        spare = spares.pop()
        if os.waitpid(spare.process.pid, os.WNOHANG) == (0, 0):
            return spare
    import subprocess
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "--runner", str(theirs.fileno()), str(data)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True, cwd=str(jobqueue.HOME),
            env=jobqueue.code_environment())
    return Started(process, ours)


class Child:
    """A runner as its worker sees it: its pipes, life line, signals and death."""

    def __init__(self, data, lock, files, wake):
        self.process, self._channel = start_runner(data)
        self._bell, bell = os.pipe()
        self._lifeline: "int | None"
        lifeline, self._lifeline = os.pipe()
        with contextlib.suppress(OSError):      # is_dead() will notice that the runner has ended
            socket.send_fds(self._channel, [b"."], (bell, lifeline, lock))
        os.close(bell)
        os.close(lifeline)
        self._channel.setblocking(False)
        self._arrived = b""
        self.unsent = b""               # bytes not sent yet; while there are any, callers hand over no order
        self._go = None     # a batch's pipe, with a byte for each order not begun
        self._wake = wake               # descriptor that is readable after a signal
        self.started, self.ready = time.monotonic(), False
        self.ended = False              # the channel is closed, or a message was malformed
        self.has_leftovers = False      # a task has left changes in the runner
        self.tasks = self.memory = 0    # tasks handed over; peak memory in bytes
        self.cpu_seconds = 0.0          # used before the attempt that runs
        self.files = files              # stamps of the files that the runner imports
        self.owner = None   # the owner whose tasks it runs, if each owner has a runner
        self.identity = self.process.pid, jobqueue.birth(self.process.pid)
        self.death = None

    def set_ready(self):
        """Let the runner get orders. Its CPU time so far is that of its start."""
        used, self.ready = measure_family(self.process.pid), True
        self.cpu_seconds = used.cpu_seconds if used else 0.0

    def hand_over(self, orders):
        """Send orders to be run one after another; return the worker's ends of their log pipes."""
        pipes = [os.pipe() for _ in orders]
        passed = [theirs for _, theirs in pipes]
        if len(orders) > 1:
            self._go, filling = os.pipe()
            os.write(filling, b"." * len(orders))
            os.close(filling)
            passed.insert(0, self._go)
        line = dump_json({"orders": orders}).encode("utf-8") + b"\n"
        try:
            self.unsent = line[socket.send_fds(self._channel, [line], passed):]
        except OSError:
            self.ended = True           # is_dead() will notice that the runner has ended
        for _, theirs in pipes:
            os.close(theirs)
        self.tasks += len(orders)
        return [ours for ours, _ in pipes]

    def withdraw(self):
        """Take back the orders that have not begun; return their number."""
        if self._go is None:
            return 0
        unbegun = len(os.read(self._go, BATCH_MAX))
        os.close(self._go)
        self._go = None
        return unbegun

    def reply(self, message):
        """Answer the runner."""
        self.unsent += dump_json(message).encode("utf-8") + b"\n"
        self._flush()

    def wait(self, seconds, log_end=None):
        """Wait for a message, a signal, or output at `log_end`, for `seconds` at most.

        While a batch runs, it waits for at most 0.01 s. A message alone does not end the wait, but the bell
        does. The runner rings the bell for all messages except some outcomes: those without leftovers that
        are not the last of the batch.
        """
        poll, events = select.poll(), select.POLLOUT if self.unsent else 0
        if self._go is None:
            events |= select.POLLIN
        else:
            seconds, log_end = min(seconds, 0.01), None
        poll.register(self._channel, events | (select.POLLIN if self._arrived else 0))
        for end in (self._bell, self._wake, log_end):
            if end is not None:
                poll.register(end, select.POLLIN)
        for descriptor, _ in poll.poll(max(0, seconds) * 1000):
            if descriptor == self._bell:
                os.read(self._bell, 1 << 10)
            elif descriptor == self._channel.fileno() and self.unsent:
                self._flush()

    def messages(self):
        """Yield the runner's messages.

        Set `ended` if the channel is closed, or after a message that is too long or no JSON object.
        """
        while not self.ended:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._arrived += data
            self.ended = not data or (len(self._arrived) > LINE_MAX_BYTES
                                      and self._arrived.find(b"\n", 0, LINE_MAX_BYTES) < 0)
            if len(data) < 1 << 16:
                break
        *lines, self._arrived = self._arrived.split(b"\n")
        for line in lines:
            try:
                message = jobqueue.read_json(line.decode("utf-8"))
                if not isinstance(message, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                self.ended = True
                return
            yield message

    def is_dead(self):
        """Return True if the runner has ended. The first such call kills its group and sets `death`."""
        if self.death is None:
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            self.signal(signal.SIGKILL)
            _, status, used = os.wait4(self.process.pid, 0)
            code = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.death = Death(code, used.ru_utime + used.ru_stime, used.ru_maxrss * MAXRSS_BYTES)
        return True

    def signal(self, number):
        """Send a signal to the runner's whole group, unless its leader was already collected."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def end(self):
        """Kill the group, wait for the runner, and close everything but the log pipes."""
        if self.death is None:
            self.signal(signal.SIGKILL)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            self.is_dead()
        self.withdraw()
        self._channel.close()
        if self._lifeline is not None:
            os.close(self._bell)
            os.close(self._lifeline)
            self._lifeline = None

    def _flush(self):
        try:
            while self.unsent:
                self.unsent = self.unsent[self._channel.send(self.unsent):]
        except BlockingIOError:
            pass
        except OSError:
            self.ended, self.unsent = True, b""


# worker/attempt.py -----------------------------------------------------------
#
# Attempts that the runner has in hand: watched, kept alive, ended.
#
# A batch is one attempt, or several quick ones that the runner runs in a row. The first of them runs. It is
# watched until it has an outcome; then the clock of the next starts. WatchedAttempt watches, its subclasses
# store, Batch keeps the order, and Pace decides how many tasks make a batch.
#
# An outcome takes this path: the runner's message, receive(), check(), Batch.ended, Recorder, end_all().
#
# Rules: the owner's code can write into the runner's channel, so each message of the runner is checked like
# a request. Every write about an attempt names its claim, or follows a test of the claim in the same
# transaction. If the disk is full or the database busy for a while, the attempt goes on, and its state is
# written later. It is ended if the claim cannot even be read for so long that another worker may have it.

GRACE_SECONDS = 5.0                     # from TERM to KILL
DYING_SECONDS = 0.5                     # from the end of the channel to the end of the process
STORE_SECONDS = 1.0                     # between two writes of log and progress
LOOK_SECONDS = 1.0                      # between two tests of the cancel flag
BATCH_AFTER = 8                         # quick ends of a function in a row, after which it runs in batches
BATCH_SECONDS = 0.05                    # an outcome in a batch may wait so long to be recorded
TEMPORARY_ERRORS = jobqueue.StorageFull, jobqueue.Busy

# Columns that a task of Django sees in its context.
ORDER_COLUMNS = ("queue", "priority", "run_at", "created_at", "max_retries", "retries_left", "worker_id")
KINDS_FROM_RUNNER = "succeeded", "error", "fail", "unknown_function"
REPORT_SCHEMA = {"type": "object", "required": ["progress", "message"], "properties": {
    "progress": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "message": {"type": ["string", "null"]}}, "additionalProperties": False}
# Keys of message["outcome"] that are not fields of Outcome.
REST_SCHEMA = {"type": "object", "properties": {
    "traceback": {"type": "string"}, "report": REPORT_SCHEMA, "left": {"type": "string"}}}


class WatchedAttempt:
    """An attempt in the runner's hands. Subclasses keep its claim: in the database, or at a site.

    1. make_run_order() returns the order for the runner. The claim of a task with on_crash=fail is first
       committed durably.
    2. `started` is set when it begins.
    3. check() is called again and again. It tests the time limit, a requested cancel, and whether the claim
       is in doubt. A claim in the database is in doubt once the Reaper marked it as suspect. Such a claim is
       also renewed here, and the output is stored. For a remote worker's attempts its calls do that.
    4. end() records why it must end; only the first reason counts. Then _hold_or_signal() sends TERM, and
       KILL after GRACE_SECONDS. After a lost claim it sends KILL at once: another worker may run the task.
    5. The outcome that the runner sent counts if the function returned, or if no signal had been sent. After
       a lost claim it never counts. Otherwise the outcome follows from `ending`, or from the runner's death.
    """

    def __init__(self, clock, child, row):
        self.row, self._clock, self._child = row, clock, child
        self.key = row["id"], row["claim"]
        self.log = LogPipe()            # empty until the task is handed over
        self.report = None       # progress that is not stored yet
        self.traceback = None       # the last piece of the log
        self.samples = None    # samples that are not stored yet
        self._all_samples = None
        # When it began; when the claim was last tested; when the last sample was due.
        self.started = self._looked_at = self._sampled_at = self._clock.monotonic()
        # The last time at which the claim was safe. For a remote attempt: when the confirming call was sent.
        self._safe_at = row.get("claimed", self.started)
        self._is_doubted = False        # the last test did not prove that the claim is safe
        self._requests = []   # tasks that the function adds, until the whole request has
                                                # arrived
        self.answered_adds = 0               # number of answered requests to add tasks
        self.reported = None    # the outcome that the runner sent
        self._has_returned = False      # the function returned, and did not call sys.exit()
        self.leftovers = None   # the state that the task left in the runner
        self.ending = None  # kind of outcome if this worker ends it
        self._why = None
        self._signalled_at = None

    # Each subclass implements these; only given_names() has a default.

    def lease_seconds(self):
        """Return how long a claim holds without being renewed."""
        raise NotImplementedError

    def site(self):
        """Return where its files are; None if they are here."""
        raise NotImplementedError

    def given_names(self):
        """Return the names of the files here that the task was given, by their keys."""
        return {}

    def _prepare_start(self):
        """Store everything that must be stored before the start; return False if the claim was lost."""
        raise NotImplementedError

    def _test_claim(self):
        """Test for a cancel, a lost claim, and a mark as suspect."""
        raise NotImplementedError

    def _store(self, now):
        """Store the output and the progress if that is due."""
        raise NotImplementedError

    def _enqueue(self, requests):
        """Request the tasks that the function adds, all or none, for the same owner."""
        raise NotImplementedError

    def _answer_results(self):
        """Answer with the results of the predecessors; return False if that is not allowed here."""
        raise NotImplementedError

    def _answer_task(self, task_id):
        """Answer with a task of the same owner, for get_result() of Django."""
        raise NotImplementedError

    # Common to all subclasses.

    def make_run_order(self):
        """Prepare the start; return the order for the runner, or None if the claim was lost."""
        if not self._prepare_start():
            return None
        row = self.row
        return {"attempt": row["attempts"] - row["put_backs"], "site": self.site(),
                "given": self.given_names(), "id": row["id"], "owner": row["owner"],
                "crashes": row["crashes"], "claim": row["claim"],
                "function": row["function"], "arguments": row["arguments"],
                "more": {name: row.get(name) for name in ORDER_COLUMNS}}

    def end(self, kind, why=None):
        """Record why the attempt must end; only the first reason counts."""
        if self.ending is None:
            self.ending, self._why = kind, why

    def receive(self, message):
        """Handle a message of the runner; False if it is against the rules."""
        if message.get("claim") != self.row["claim"] or self.reported is not None:
            return False
        if "outcome" in message:
            return self._receive_outcome(message["outcome"])
        if "report" in message and not jobqueue.check_value(
                REPORT_SCHEMA, message["report"], "report"):
            self.report = message["report"]
        elif isinstance(message.get("enqueue"), list):
            self._requests += message["enqueue"]
            if not message.get("more"):
                requests, self._requests = self._requests, []
                self._enqueue(requests)
        elif isinstance(message.get("task"), int):
            self._answer_task(message["task"])
        else:
            return message.get("results") is True and self._answer_results()
        return True

    def _receive_outcome(self, sent):
        """Keep the outcome that the runner sent; return False if it is invalid."""
        if jobqueue.check_value(REST_SCHEMA, sent, "outcome"):
            return False
        try:
            outcome = Outcome.parse(sent, KINDS_FROM_RUNNER)
        except jobqueue.Invalid:
            return False
        self.report = sent.get("report", self.report)
        self.traceback, self.leftovers = sent.get("traceback"), sent.get("left")
        if outcome.kind == "succeeded":     # with an error_type the function called sys.exit(0)
            self._has_returned, outcome.error_type = outcome.error_type is None, None
        self.reported = outcome
        return True

    def check(self):
        """Read the output; return the Outcome if the attempt has ended.

        Otherwise keep the claim, or signal the runner if the attempt must end.
        """
        self.log.read()
        outcome = self._outcome() if self.reported or self._child.ended or self.ending else None
        if outcome is None:
            self._hold_or_signal(self._clock.monotonic())
        return outcome

    def reply(self, message):
        """Answer the function, which waits for added tasks or for results."""
        self._child.reply(message)

    def patience(self):
        """Return for how many seconds the attempt needs no check."""
        if self.ending:
            return 0.05
        limit = self.started + self.row["timeout"] - self._clock.monotonic()
        return max(0.0, min(LOOK_SECONDS, limit))

    def drop(self):
        """Drop output, progress and samples after they were stored, or because they cannot be stored."""
        self.log.pieces = []
        self.report = self.traceback = self.samples = None

    def _hold_or_signal(self, now):
        """Test the claim, store the output, and signal the runner if the attempt must end."""
        if now - self.started > self.row["timeout"]:
            self.end("timeout", "ran longer than %g s" % self.row["timeout"])
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            with contextlib.suppress(*TEMPORARY_ERRORS):
                self._test_claim()
                self._safe_at = self._safe_at if self._is_doubted else now
        if not self.is_claim_safe(now):
            self.end("lost")
        self._store(now)
        if not self.ending:
            return
        if self._signalled_at is None:
            self._signalled_at = now
            self._child.signal(signal.SIGKILL if self.ending == "lost" else signal.SIGTERM)
        elif now - self._signalled_at > GRACE_SECONDS:
            self._child.signal(signal.SIGKILL)

    def _take_sample(self, now):
        """Measure the runner if that is due. Samples are stored only when the claim is renewed."""
        if now - self._sampled_at <= jobqueue.RENEW_SECONDS:
            return
        self._sampled_at = now
        used = measure_family(self._child.process.pid)
        if used:
            self._all_samples = self._all_samples or Samples()
            cpu_seconds = max(0.0, used.cpu_seconds - self._child.cpu_seconds)
            self._all_samples.add(Sample(round(now - self.started, 1), round(cpu_seconds, 2), used.memory))
            self.samples = self._all_samples.all()

    def is_claim_safe(self, now):
        """Return True if, as far as this worker knows, no other worker can claim the task soon."""
        fence = self.lease_seconds() - jobqueue.LEASE_SECONDS + jobqueue.SELF_FENCE_SECONDS
        return now - self._safe_at <= fence - 2 * jobqueue.RENEW_SECONDS

    def _outcome(self):
        """Return the outcome if the attempt has ended: the sent one, or one from the runner's death."""
        reported = self.reported
        if reported is not None and self.ending != "lost":
            self._child.memory = reported.peak_memory or 0
            self._child.cpu_seconds += reported.cpu_seconds or 0.0
            if self._signalled_at is None or self._has_returned:
                return reported
            return self._make_outcome(Death(0, reported.cpu_seconds or 0.0, reported.peak_memory or 0))
        if self._child.ended and self.ending is None:
            until = time.monotonic() + DYING_SECONDS
            while not self._child.is_dead() and time.monotonic() < until:
                time.sleep(0.01)
            if self._child.death is None:
                self.end("crashed", "the process that ran it stopped its messages to the worker")
        if self._child.death is None:
            return None
        self.log.read()
        return self._make_outcome(self._child.death)

    def _make_outcome(self, death):
        """Return the outcome of an attempt that this worker ended, or whose runner died."""
        code, cpu, memory = death
        kind = self.ending or "crashed"
        died = jobqueue.name_signal(-code) if code < 0 else "exit code %d" % code
        message = self._why or "the process that ran it ended with %s" % died
        types = {"timeout": "Timeout", "crashed": "Crashed", "interrupted": "Interrupted"}
        return Outcome(kind, None, types.get(kind), message if kind in types else None, None,
                       self._clock.monotonic() - self.started, cpu, memory)


class Attempt(WatchedAttempt):
    """An attempt whose claim is in the database."""

    def __init__(self, queue, child, row):
        super().__init__(queue.database.clock, child, row)
        self._queue, self._claims, self._database = queue, queue.claims, queue.database
        # When storing was last tried, and when the claim was renewed.
        self._tried_store_at = self._renewed_at = self.started
        self._seen_version = None

    def lease_seconds(self):
        """Return how long a claim holds without being renewed."""
        return self._database.lease_seconds

    def site(self):
        """Return where its files are; None if they are here."""
        return self._queue.files.site()

    def given_names(self):
        """Return the names of the files that the task was given, by their keys."""
        return self._queue.files.given_names(self.row)

    def _prepare_start(self):
        if self.row["on_crash"] != "fail":
            return True
        with self._database.transaction(durable=True) as transaction:   # a power cut must not lose it
            return self.renew(transaction)

    def renew(self, transaction):
        """Hold the claim for another lease; False if it was lost."""
        return self._claims.renew(transaction, *self.key, self._clock.now(), samples=self.samples)

    def _enqueue(self, requests):
        def add():
            added = self._queue.add_all(requests, self.row["owner_id"], self.row["id"])
            return {"ids": added.ids, "created": added.new}
        self._answer(add)

    def _answer_results(self):
        self._answer(lambda: {"results": self._queue.tasks.results_before(self.row["id"])})
        return True

    def _answer_task(self, task_id):
        self._answer(lambda: {"task": jobqueue.result_view(self._queue, task_id, self.row["owner_id"])})

    def _answer(self, make_reply):
        try:
            self.reply(make_reply())
        except JobQueueError as error:
            kind = type(error).__name__
            self.reply({"refused": Refusal(kind, error.detail, error.errors, error.retry_after)})

    def _test_claim(self):
        version = self._database.version_seen()
        if version == self._seen_version and self._database.hears_all:
            return
        self._seen_version = version
        cancel_requested = self._claims.cancel_asked(*self.key)
        if cancel_requested is None:
            self.end("lost")
        elif cancel_requested:
            self.end("cancelled", "cancelled while it ran")
        self._is_doubted = bool(self._claims.leases.is_suspect(*self.key))

    def _store(self, now):
        has_news = self.log or self.report or now - self._renewed_at > jobqueue.RENEW_SECONDS
        if not (has_news and now - self._tried_store_at > STORE_SECONDS or self.log.is_full):
            return
        self._tried_store_at = now
        self._take_sample(now)          # before the database is locked
        with contextlib.suppress(*TEMPORARY_ERRORS):
            with self._database.transaction(durable=False) as transaction:
                if self.renew(transaction):
                    self._write(transaction, final=False)
                else:
                    self.end("lost")
            self._renewed_at = now
            self.drop()

    def write_ending(self, transaction):
        """Store the rest of its output, in the transaction that records its outcome."""
        if (not (self.log or self.log.has_rest or self.report or self.traceback)
                or self._claims.cancel_asked(*self.key, transaction) is None):
            return
        if self.traceback:
            self.log.decode_pieces(final=True)
            self.log.put(self.traceback)
            self.traceback = None
        self._write(transaction, final=True)

    def _write(self, transaction, final):
        now = self._clock.now()
        for start, text in self.log.decode_pieces(final):
            append_log(transaction, now, self.row["id"], self.row["attempts"], start, text)
        if self.report:
            self._claims.report(transaction, *self.key, self.report["progress"],
                                self.report["message"])


if TYPE_CHECKING:
    AnyAttempt = TypeVar("AnyAttempt", bound=WatchedAttempt)
else:
    AnyAttempt = None


class Batch(Generic[AnyAttempt]):
    """The attempts that the runner has in hand. Ended and unbegun ones stay until they are recorded."""

    def __init__(self, clock, child, attempts,
                 note_end):
        self._clock = clock
        self._handle_end = note_end       # called with each attempt that has ended
        self.child = child
        self.running = attempts         # the first has begun
        self.unbegun = []     # taken back from the runner, or never sent
        self.ended = []
        self.record_by = math.inf       # the latest time for recording the ended attempts

    def begin(self):
        """Hand the batch over to the runner.

        Its attempts become unbegun instead if their start cannot be stored. They do so, too, if the worker
        stood still so long that another worker may have claimed the tasks. A lost claim's task is dropped.
        """
        is_claim_safe = self.running[0].is_claim_safe(self._clock.monotonic())
        try:
            orders_made = [attempt.make_run_order() for attempt in self.running if is_claim_safe]
        except TEMPORARY_ERRORS:
            orders_made = []
        if not orders_made:
            self.running, self.unbegun = [], self.running
            return
        orders = [order for order in orders_made if order is not None]
        # Only the start of a task with on_crash=fail tests the claim. Such a task is a batch of its own.
        if len(orders) < len(orders_made):
            self.running = []
            return
        for attempt, end in zip(self.running, self.child.hand_over(orders)):
            attempt.log.attach(end)
        now = self._clock.monotonic()
        self.running[0].started = now
        self.record_by = now + BATCH_SECONDS if len(orders) > 1 else math.inf

    def watch(self):
        """Wait for the runner, handle its messages, and keep the running attempt alive."""
        first = self.running[0]
        seconds_left = self.record_by - self._clock.monotonic()
        self.child.wait(min(seconds_left, first.patience()), first.log.end)
        if self.child.ended or first.ending:
            self.child.is_dead()        # called first: an outcome sent before its death is still read
        for message in self.child.messages():
            if not self.running or not self.running[0].receive(message):
                self.child.ended = True
                break
            if self.running[0].reported:
                self._check()
        if self.running and (self.child.ended or self.running[0].ending):
            self.withdraw()
        self._check()

    def _check(self):
        outcome = self.running[0].check() if self.running else None
        if outcome is None:
            return
        attempt = self.running.pop(0)
        self.child.has_leftovers |= attempt.log.close() or attempt.leftovers is not None
        self.ended.append((attempt, outcome))
        self._handle_end(attempt, outcome)
        if self.child.has_leftovers:
            self.withdraw()
        now = self._clock.monotonic()
        self.record_by = min(self.record_by, now + BATCH_SECONDS)
        if self.running:
            self.running[0].started = now

    def withdraw(self):
        """Take back the orders that the runner has not begun."""
        begun = len(self.running) - self.child.withdraw()
        for attempt in self.running[begun:]:
            attempt.log.close()
        self.unbegun += self.running[begun:]
        del self.running[begun:]


class Pace:
    """The number of tasks that may be claimed at once. It exceeds 1 while one function keeps ending quickly.

    A batch should run for at most half of BATCH_SECONDS. Each task needs two descriptors while it is
    handed over, so the limit of open files limits the batch, too. If a wait for the write lock is longer
    than the batch runs, many workers compete. Then batches grow faster, so that all workers wait less
    often.
    """

    def __init__(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_unlimited = limit == resource.RLIM_INFINITY
        self._most = BATCH_MAX if is_unlimited else max(1, min(BATCH_MAX, limit // 4 - 16))
        self.function = None    # the function that keeps ending quickly
        # Quick ends in a row, each counted as 3 after a long wait for the lock; the moving mean of their
        # seconds.
        self._count, self._seconds = 0, 0.0
        self.size = 1                       # tasks that may be claimed

    def learn(self, function, outcome, waited=0.0):
        """Learn from an ended attempt and the last wait for the write lock."""
        seconds = outcome.seconds or 0
        if outcome.kind != "succeeded" or seconds > BATCH_SECONDS:
            self._begin_again(None)
        elif function != self.function:
            self._begin_again(function)
        step = 3 if waited > self.size * self._seconds else 1
        self._count += step
        self._seconds += (seconds - self._seconds) / 8
        if self._count > BATCH_AFTER:
            room = int(BATCH_SECONDS / 2 / max(self._seconds, 1e-4))
            self.size = max(1, min(self.size + step, self._most, room))

    def slow_down(self):
        """Halve the next batch, because one was late."""
        self.size = max(1, self.size // 2)

    def _begin_again(self, function):
        self.function, self._count, self._seconds, self.size = function, 0, 0.0, 1


# worker/place.py -------------------------------------------------------------
#
# Place: the worker's row and its lock.

CHECK_SECONDS = 1.0                     # seconds between two tests for a reason to leave
STOP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


class Place:
    """The worker's row and lock file, which show other processes that the worker lives.

    1. The starting process or the worker itself reserves a row, if there are fewer than NbMaxWorker. The
       row has the name of a lock file.
    2. The worker takes the lock, then sets the row to live. If the row was removed meanwhile, the worker
       removes the lock file.
    3. Each heartbeat renews the row's lease and stores state, tasks and runner. If the row is gone, the
       worker leaves.
    4. A worker that leaves removes the row, then the lock file. If a worker dies, its lock is free. Then
       other processes end its runner and remove row and lock file.
    """

    def __init__(self, queue, mode):
        self._queue, self._workers, self._database = queue, queue.workers, queue.database
        self._mode = mode
        self.id, self._lock_name, self.lock = 0, "", -1     # set by _arrive(); `lock` is a descriptor
        self.state, self.tasks = "idle", 0
        self.runner = (None, None)   # its pid and start time
        self.stopping = ""              # the reason why the worker will leave

    def acquire(self, row, lock):
        """Take a row and its lock; return True once they are ours. A service waits until there is room."""
        if row is not None and lock is not None and self._arrive(row, lock):
            return True
        while True:
            with self._database.transaction(durable=False) as transaction:
                reserved = self._workers.reserve(transaction, self._mode)
            if reserved or self._mode != "service":
                return bool(reserved) and self._arrive(*reserved[0])
            self._queue.tick.maybe("worker")
            self._database.clock.sleep(2.0)

    def _arrive(self, row, lock):
        handle, proven = jobqueue.create_lock(self._workers.locks / lock)
        if self._workers.arrive(row, lock, proven, os.getpid()):
            self.id, self._lock_name, self.lock = row, lock, handle
            return True
        self._workers.remove_lock(lock, handle)
        return False

    def heartbeat(self, transaction, state=None):
        """Renew the row, with the worker's state."""
        self.state = state or self.state
        self._workers.heartbeat(transaction, self.id, self.state, self.tasks, self.runner)

    def stop(self, reason):
        """Make the worker leave. Only the first reason is kept."""
        self.stopping = self.stopping or reason

    def set_runner(self, pid, born):
        """Store the runner's pid and start time with the next heartbeat."""
        self.runner = pid, born

    def report_no_runner(self, error):
        """Store why there is no runner, and make the worker leave."""
        self.stop("no runner could be started")
        with self._database.transaction(durable=False) as transaction:
            self._workers.start_failed(transaction, jobqueue.explain_start_error(error))

    def leave(self):
        """Remove the row, if it is still there, then the lock file."""
        with self._database.deadline(), self._database.transaction(durable=False) as transaction:
            self._workers.leave(transaction, self.id, self.stopping, self.tasks)
        self._workers.remove_lock(self._lock_name, self.lock)

    def start_successor(self, least):
        """Start needed workers, at least `least`. If none is there after that, try again, up to 3 times."""
        for pause in (0, 2, 5, 15):
            self._database.clock.sleep(pause)
            self._queue.starter.start_needed(least)
            if not least or self._workers.are_there():
                return


# worker/runners.py -----------------------------------------------------------
#
# Runners: the processes that run tasks for a worker.

RUNNER_START_SECONDS = 120.0            # until a runner has announced its functions: imports may take long
BROKEN_RETRY_SECONDS = 60.0             # pause before a broken tasks.py is imported again


















class Runners:
    """The worker's runners, one after another.

    1. start() ends the current runner and starts a fresh one.
    2. hear() waits for the runner's announcement. No task is claimed before the announcement is stored.
    3. If tasks.py cannot be imported, the runner is ended. A fresh runner tries again when a file changes,
       or after BROKEN_RETRY_SECONDS.
    4. is_stale() is tested before each claim. A stale runner gets no more tasks. It has run many, needs
       much memory, has leftovers of a task, or has imported files that have changed.
    """

    def __init__(self, clock, data, functions, place,
                 settings):
        self._clock, self._data, self._functions = clock, data, functions
        self._place, self._settings = place, settings
        self.wake = None    # a descriptor that becomes readable after a signal
        self._announcement = None  # received, but perhaps not stored yet
        self._broken_until = None     # when a broken tasks.py is imported again
        self._stamps = Every(CHECK_SECONDS, self._clock)
        self.current = None

    @property
    def child(self):
        """Return the current runner; there must be one."""
        if self.current is None:
            raise RuntimeError("there is no runner")
        return self.current

    def start(self):
        """Replace the runner. If the host refuses to start one, report that and make the worker leave."""
        self.end()
        self._announcement = self._broken_until = None
        stamps = jobqueue.file_stamps(self._functions.files())      # before the runner reads the files
        try:
            self.current = Child(self._data, self._place.lock, stamps, self.wake)
            self._place.set_runner(*self.current.identity)
        except OSError as error:
            self._place.report_no_runner(error)

    def catch_signals(self, note):
        """Call `note` for each stop signal; return a descriptor.

        A signal wakes the waiting worker, and so does a byte written to the descriptor.
        """
        self.wake, waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, note)
        return waker

    def calm(self):
        """Empty the wake-up pipe. Before the next wait the caller must handle signals and answers."""
        if self.wake is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 100)

    def rest(self, seconds, alarm):
        """Wait while there is no task. Replace a runner that sends a message or dies meanwhile."""
        child = self.child
        child.wait(seconds, alarm)
        if list(child.messages()) or child.ended or child.is_dead():
            self.start()

    def hear(self):
        """Wait a moment for the runner's announcement; return True once the runner may get tasks."""
        child = self.child
        if self._broken_until is not None:
            self._clock.sleep(0.5)
            if (self._clock.monotonic() > self._broken_until
                    or jobqueue.file_stamps(child.files) != child.files):
                self.start()
            return False
        self._announcement = self._announcement or self._listen(child)
        if self._announcement is None:
            return False
        child.files = self._functions.store(self._announcement, child.files)
        if self._announcement.get("error"):
            child.end()
            self._broken_until = self._clock.monotonic() + BROKEN_RETRY_SECONDS
        else:
            child.set_ready()
        return child.ready

    def _listen(self, child):
        """Return the runner's announcement, or one with the runner's failure; None if it may still come."""
        child.wait(0.2)
        for message in child.messages():
            if "announce" in message:
                return message["announce"]
        if child.ended or child.is_dead():
            problem = "the process that runs the functions ended at its start"
        elif self._clock.monotonic() - child.started > RUNNER_START_SECONDS:
            problem = "importing tasks.py took longer than %d s" % RUNNER_START_SECONDS
        else:
            return None
        return {"error": {"message": problem, "file": "tasks.py", "line": None}}

    def is_stale(self):
        """Return True if the next task should get a fresh runner."""
        child, settings = self.child, self._settings
        if (child.tasks >= settings["runner_tasks"] or child.ended or child.has_leftovers
                or child.unsent or child.memory > settings["runner_memory"] << 20):
            return True
        # tasks.py is tested each time, the other files once in CHECK_SECONDS: they may be many, on a slow
        # file system.
        files = child.files if self._stamps.begin_if_due() else [jobqueue.TASKS_FILE]
        return any(child.files.get(name) != stamp
                   for name, stamp in jobqueue.file_stamps(files).items())

    def end(self):
        """End the current runner, if there is one."""
        if self.current:
            self.current.end()
            self.current = None


# worker/recorder.py ----------------------------------------------------------
#
# Recorder: writes how attempts ended.

class Recorder:
    """The writer of outcomes.

    1. One transaction stores the rest of the output, records each outcome under its claim, puts back
       unbegun tasks, and claims the next ones.
    2. While the disk is full or the database is busy, the batch keeps everything. The worker's next round
       tries again. Meanwhile hold() renews the claims as soon as that is possible.
    3. After any other error each outcome is recorded alone. An outcome that cannot be stored fails its
       task with a StorageError. So no task harms another task of its batch.
    """

    def __init__(self, queue, place, say):
        self._claims, self._database, self._files = queue.claims, queue.database, queue.files
        self._place, self._say = place, say

    def record(self, batch, pace=None, most=0):
        """Record the ended attempts of a batch. With a pace, claim up to `most` tasks; return their rows."""
        try:
            rows = self._write(batch, batch.ended, batch.unbegun, pace, most)
        except TEMPORARY_ERRORS:
            raise
        except Exception as error:      # after any error each outcome is recorded alone
            self._say("recording: %s", error)
            for attempt, outcome in batch.ended:
                self._record_alone(batch, attempt, outcome)
            rows = self._write(batch, [], batch.unbegun)
        batch.ended, batch.unbegun, batch.record_by = [], [], math.inf
        return rows

    def hold(self, batch):
        """Renew the worker's row, and the claims of ended or unbegun attempts that are not recorded yet."""
        pending = [*batch.unbegun, *(attempt for attempt, _ in batch.ended)] if batch else []
        with contextlib.suppress(*TEMPORARY_ERRORS), \
                self._database.transaction(durable=False) as transaction:
            for attempt in pending:
                attempt.renew(transaction)
            self._place.heartbeat(transaction)

    def _record_alone(self, batch, attempt, outcome):
        try:
            self._write(batch, [(attempt, outcome)], [])
        except TEMPORARY_ERRORS:
            raise
        except Exception as error:
            attempt.drop()
            outcome = Outcome("fail", error_type="StorageError",
                              error_message="its outcome could not be stored: %s" % error)
            self._write(batch, [(attempt, outcome)], [])

    def _write(self, batch, ended, unbegun,
               pace=None, most=0):
        rows = []
        size = min(pace.size, most) if pace else 0
        endings = [(attempt, Outcome("put_back")) for attempt in unbegun]
        endings += [(attempt, outcome) for attempt, outcome in ended if outcome.kind != "lost"]
        with self._database.transaction(durable=False) as transaction:
            now = self._database.clock.now()
            for attempt, _ in endings:
                attempt.write_ending(transaction)
            verdicts = self._claims.end_all(
                transaction, [(*attempt.key, outcome) for attempt, outcome in endings], now)
            if pace:
                rows = self._claims.claim(transaction, self._place.id, now, size, pace.function,
                                          batch.child.owner)
            if not rows and not batch.running:
                self._place.heartbeat(transaction, "stopping" if self._place.stopping else "idle")
        for (attempt, _), verdict in zip(endings, verdicts):
            if verdict:                 # the claimed tasks must begin even if these files cannot be removed
                with contextlib.suppress(*TEMPORARY_ERRORS):
                    self._files.tidy(attempt.row["id"], verdict)
        return rows


# worker/worker.py ------------------------------------------------------------
#
# The worker's loop: claim, hand over, wait, record.
#
# A worker is one thread with one runner. Place is its row and its lock. Runners are the processes that run
# tasks for it. Recorder writes how attempts ended. Loop handles signals and hands tasks to the runner. Worker
# is the rest of the loop: claim, wait, record. One transaction records finished tasks and claims the next.
#
# Rules: a worker leaves in a transaction that finds nothing to claim. So a process that adds a task after
# that starts another worker. No wait is so long that a claim could be lost. While the database cannot be
# written, the worker keeps the outcomes, tries again, and still handles signals.

WORKER_SETTINGS = ("NbMaxWorker", "linger", "linger_due", "stay_asleep", "worker_seconds",
                   "runner_tasks", "runner_memory", "runner_per_owner")


class Loop(Generic[AnyAttempt]):
    """The part of the loop that all workers share: signals, and the batch of their runner."""

    _runners: "Runners"                   # set by each kind of worker

    def __init__(self, clock, verbose):
        self._clock, self._verbose = clock, verbose
        self._settings = {}     # not read between a claim and the task's start
        self._signals = 0               # number of stop signals received
        self._stopped_at = None
        self._batch = None    # attempts that the runner has
        self._pace = Pace()
        self._checks = Every(CHECK_SECONDS, self._clock)
        self._code = jobqueue.file_stamps(jobqueue.CODE_FILES)

    def _attempt(self, child, row):
        """Return the attempt of a claimed task, of this worker's kind of attempt."""
        raise NotImplementedError

    def _waited(self):
        """Return the seconds of the last wait for the write lock."""
        return 0.0

    def _count_signal(self, *_):
        self._signals += 1

    def _wind_up(self):
        """Take back unbegun tasks. End the running task at the second signal, or after GRACE_SECONDS."""
        self._stopped_at = self._stopped_at or self._clock.monotonic()
        if self._batch:
            self._batch.withdraw()
            if self._signals > 1 or self._clock.monotonic() - self._stopped_at > GRACE_SECONDS:
                for attempt in self._batch.running:
                    attempt.end("interrupted", "the worker was stopped")

    def _hand_over(self, rows):
        child = self._runners.child
        batch = self._batch = Batch(
            self._clock, child, [self._attempt(child, row) for row in rows], self._handle_end)
        self._say("begins %s: %s", rows[0]["function"], [row["id"] for row in rows])
        if self._settings["runner_per_owner"] == "yes":
            child.owner = rows[0]["owner_id"]
        batch.begin()

    def _handle_end(self, attempt, outcome):
        self._pace.learn(attempt.row["function"], outcome, self._waited())
        leftovers = ", left behind: %s" % attempt.leftovers if attempt.leftovers else ""
        self._say("task %d: %s%s", attempt.row["id"], outcome.kind, leftovers)

    def _say(self, text, *values):
        if self._verbose:
            print(jobqueue.iso(self._clock.now()), text % values, file=sys.stderr, flush=True)


class Worker(Loop[Attempt]):
    """The loop of a worker; one thread, one runner.

    Each round:

    1. Handle signals. After the first signal the running task has GRACE_SECONDS to end. The second signal
       ends it at once.
    2. Leave if there is a reason and nothing is running.
    3. Claim tasks if there is no batch.
    4. Once in CHECK_SECONDS: test for a reason to leave, tick, and renew the row if that is due.
    5. If there is a batch: watch it, record its ended attempts, and claim the next tasks.
    6. If there is none: hear the runner's announcement, or rest.
    """

    def __init__(self, queue, mode, verbose=False,
                 seconds=None):
        super().__init__(queue.database.clock, verbose)
        self._queue, self._mode = queue, mode
        self._claims, self._database = queue.claims, queue.database
        self._born = self._last_work = self._clock.monotonic()
        self._until = None if seconds is None else self._born + seconds
        self._read_settings()
        self._place = Place(queue, mode)
        self._runners = Runners(
            self._clock, self._database.folder, queue.catalogue, self._place, self._settings)
        self._recorder = Recorder(queue, self._place, self._say)
        self._seen_version = None   # the database's version at the last search for tasks
        self._next_due = -math.inf      # when the next task can be claimed, unless the database changes
        self._heartbeats = Every(jobqueue.RENEW_SECONDS, self._clock)

    def run(self, row=None, lock=None):
        """Work until there is a reason to leave; return True if a stop signal came."""
        if not self._place.acquire(row, lock):
            return False
        self._say("worker %d is here", self._place.id)
        try:
            self._runners.catch_signals(self._count_signal)
            self._runners.start()
            while not self._is_over():
                pass
        finally:
            self._say("leaves: %s", self._place.stopping)
            self._runners.end()
        self._place.leave()
        if self._mode == "detached" and self._place.stopping == "limit":
            self._place.start_successor(int(self._has_work_soon()))
        return self._signals > 0

    def _is_over(self):
        """Run one round; return True if it was the last. If the database cannot be written, try again
        later."""
        try:
            with self._database.deadline():
                self._heed_signals()
                if not self._batch and not self._place.stopping and self._is_idle_for_good():
                    self._leave_unless_needed()
                if not self._batch and self._place.stopping:
                    return True
                self._step()
        except TEMPORARY_ERRORS:
            if self._signals > 1:
                raise
            self._clock.sleep(0.2)
        return False

    def _heed_signals(self):
        if self._signals:
            self._runners.calm()
            self._place.stop(jobqueue.STOPPED)
            self._wind_up()

    def _attempt(self, child, row):
        return Attempt(self._queue, child, row)

    def _waited(self):
        return self._database.waited

    def _step(self):
        batch = self._batch
        if batch and not batch.running:
            return self._record_late(batch)
        if batch:                       # the batch is watched even if the database does not answer
            with contextlib.suppress(*TEMPORARY_ERRORS):
                self._check_self()
            batch.watch()
            return self._go_on(batch)
        child = self._runners.current
        rows = self._claim_next() if child and child.ready else []
        if rows:
            return self._begin(rows)
        self._check_self()
        if not self._runners.current:   # the last runner could not be replaced
            self._runners.start()
        elif not self._runners.current.ready:
            if self._runners.hear():
                self._seen_version, self._next_due = None, self._clock.now()
        else:
            self._rest()

    def _record_late(self, batch):
        """Record the outcomes of a batch that could not be recorded before, and put back its unbegun tasks.

        This comes before all other database calls, which could use up the round's deadline.
        """
        try:
            self._go_on(batch)
        except TEMPORARY_ERRORS:
            if self._checks.begin_if_due():
                self._recorder.hold(self._batch)
            raise

    def _check_self(self):
        """Test for a reason to leave, tick, and renew the row, if that is due."""
        if not self._checks.begin_if_due():
            return
        self._read_settings()
        now, rank = self._clock.monotonic(), self._queue.workers.rank(self._place.id)
        is_old = now - self._born > self._settings["worker_seconds"] and self._mode != "service"
        if (is_old or self._until is not None and now > self._until
                or jobqueue.file_stamps(self._code) != self._code):
            self._place.stop("limit")
        elif not rank:
            self._place.stop("its row is gone")
        elif rank > self._settings["NbMaxWorker"]:
            self._place.stop("too many workers")
        self._queue.tick.maybe("worker")
        if self._heartbeats.begin_if_due():
            self._recorder.hold(self._batch)

    def _read_settings(self):
        self._settings.update((name, self._queue.settings.get(name)) for name in WORKER_SETTINGS)

    def _is_idle_for_good(self):
        if self._mode == "service":
            return False
        has_waited = self._clock.monotonic() - self._last_work >= self._settings["linger"]
        if self._until is not None:
            child = self._runners.current
            has_waited = child is not None and child.ready and self._next_due > -math.inf
        return has_waited and not self._has_work_soon()

    def _has_work_soon(self, transaction=None):
        """Return True if a task becomes claimable while this worker may still wait."""
        alone = self._queue.workers.idles_alone(self._place.id, transaction)
        due = self._queue.tick.next_work(alone, transaction)
        if self._mode == "slice":       # a web request waits for this worker: only a queue's rate counts
            due = self._claims.rate_opens(transaction)
        patience = self._settings["linger_due"]
        if self._until is not None:
            patience = self._until - self._clock.monotonic()
        elif alone and self._settings["stay_asleep"] == "yes":
            patience = math.inf
        return due is not None and due <= self._clock.now() + patience

    def _leave_unless_needed(self):
        """Leave in a transaction that finds nothing to claim. So no process that adds a task counts on it."""
        with self._database.transaction(durable=False) as transaction:
            self._claims.promote(transaction, self._clock.now())
            if self._claims.claimable(1, transaction) or self._has_work_soon(transaction):
                self._seen_version = None
                return
            self._queue.workers.leave(transaction, self._place.id, "idle", self._place.tasks)
        self._place.stop("idle")

    def _claim_next(self):
        """Claim tasks if there may be some; return their rows. Replace a stale runner instead."""
        version = self._database.version_seen()
        if version == self._seen_version and self._clock.now() < self._next_due:
            return []
        rows = []
        self._next_due = now = self._clock.now()
        if not self._claims.claimable(1):
            moments = (self._claims.next_due(), self._claims.rate_opens(),
                       None if self._database.hears_all else now + 1.0)
            self._next_due = min((at for at in moments if at is not None), default=math.inf)
        if self._next_due <= now:
            if self._runners.is_stale():
                self._runners.start()
                return []
            with self._database.transaction(durable=False) as transaction:
                owner = self._runners.child.owner
                rows = self._claims.claim(transaction, self._place.id, now, owner_id=owner)
                if rows:
                    self._place.heartbeat(transaction, "busy")
            if not rows and owner is not None:      # a fresh runner can run another owner's task
                self._runners.start()
        self._seen_version = version
        return rows

    def _rest(self):
        """Wait before the next search for tasks. The longer the worker is idle, the longer it waits."""
        idle, alarm = self._clock.monotonic() - self._last_work, self._database.alarm
        pause = 0.5 if idle > 30 else min(0.1, 0.003 * max(1, idle) ** 2)
        if self._database.journal != "wal" or (idle > 1 and alarm is not None):
            pause = 1.0                 # the database's alarm ends the wait
        self._database.calm()
        if alarm is not None and self._database.version_seen() != self._seen_version:
            return                      # the database has changed meanwhile
        due = self._next_due - self._clock.now()
        self._runners.rest(min(pause, due) if due > 0 else pause, alarm)

    def _begin(self, rows):
        self._database.ring()
        self._hand_over(rows)

    def _handle_end(self, attempt, outcome):
        super()._handle_end(attempt, outcome)
        self._place.tasks += 1
        self._last_work = self._clock.monotonic()

    def _go_on(self, batch):
        """Record the ended attempts if that is due. If the batch is done, begin the next one."""
        if not batch.running:
            batch.child.withdraw()
            fresh = batch.child.death is not None or self._runners.is_stale()
            pace = None if fresh or self._place.stopping else self._pace
            remaining = self._settings["runner_tasks"] - batch.child.tasks
            rows = self._recorder.record(batch, pace, remaining)
            self._batch = self._seen_version = None
            if fresh and not self._place.stopping:
                self._runners.start()
            if rows:
                self._begin(rows)
        elif self._clock.monotonic() > batch.record_by:     # the ended attempts can wait no longer
            batch.withdraw()
            self._recorder.record(batch)
            self._pace.slow_down()


# worker/remote_site.py -------------------------------------------------------
#
# A site elsewhere: its calls, and the unsent outcomes.
#
# RemoteSite sends calls over HTTP. A Call is a request that a thread makes. The Spool keeps outcomes on the
# disk until the site has them.












































def object_like(**properties):
    """Return the schema of an object with these keys. A newer version may send further keys."""
    return {**jobqueue.object_of(properties, **properties), "additionalProperties": True}


CALL_SECONDS = 30.0                     # for a whole call, in addition to the site's waiting time
CALL_BYTES = 900_000                    # most bytes of a call's body; the site accepts a megabyte
ANSWER_BYTES = 16 << 20                 # most bytes that are read of an answer
PAUSE_MAX_SECONDS = 3600.0              # longest pause, even if the site asks for a longer one
# The schema of each answer, by the call's `answer_key`; that of a refusal has the key "".
_WHOLE = integer_within(0, jobqueue.INTEGER_MAX)
_ID, _CLAIM = integer_within(1, jobqueue.INTEGER_MAX), text_like("[0-9a-f]{32}", "must be a claim")
ANSWERS = {
    "lease_seconds": object_like(
        lease_seconds=number_within(1, 86400), protocol=_WHOLE, settings=object_like(
            runner_tasks=_WHOLE, runner_memory=_WHOLE, runner_per_owner={"enum": ["yes", "no"]})),
    "attempts": object_like(
        attempts={"type": "object", "propertyNames": _CLAIM, "additionalProperties": {"type": "string"}},
        wait=number_within(0, PAUSE_MAX_SECONDS), tasks={"type": "array", "items": object_like(
            id=_ID, claim=_CLAIM, function={"type": "string"}, arguments={"type": "string"},
            owner={"type": "string"}, attempt=_ID, crashes=_WHOLE,
            timeout=number_within(1, 30 * 86400))}),
    "ids": object_like(ids={"type": "array", "items": _ID}, created=_WHOLE),
    "": object_like(code={"type": "string"}, detail={"type": "string"}, errors={
        "type": "array", "items": {"type": "object"}})}


class NotHeard(Exception):
    """The error of a call that must be repeated: it has no valid answer, or the site is busy."""

    def __init__(self, why, pause=None):
        super().__init__(why)
        self.why = why
        self.pause = pause              # seconds, if the site asked for a pause


class RemoteSite:
    """The site that a remote worker works for."""

    def __init__(self, address, token_file, authorities=None):
        parts, token = urlsplit(address), Path(token_file)
        is_near = parts.scheme == "http" and parts.hostname in (*jobqueue.LOOPBACK, "localhost")
        if not parts.hostname or parts.username or not (is_near or parts.scheme == "https"):
            raise jobqueue.SetupError("--server must be an address such as "
                                      "https://example.org/jobs; http: is for this machine only.")
        if token.stat().st_mode & 0o077:
            raise jobqueue.SetupError("Others can read %s: run chmod 600 on it." % token)
        self._token = token.read_text("ascii", "replace").strip()
        if not re.fullmatch("[!-~]+", self._token):
            raise jobqueue.SetupError("%s must hold a token and nothing else." % token)
        self.place = FileSite(address.rstrip("/"), authorities)
        self._opener = http_opener(authorities, by_proxy=not is_near)
        self._wraps = False             # send bodies as forms: a firewall in front of the site refuses JSON

    def ask(self, call):
        """Return jobqueue's answer to a Call. A refusal is an answer, too.

        NotHeard if the answer is not jobqueue's, or if the site is busy. Other errors if there is none.
        """
        from urllib.request import Request
        answer_json = None
        body, headers = call.body, dict(call.headers)
        if self._wraps:
            headers["Content-Type"], head, tail = jobqueue.envelope(headers["Content-Type"])
            body = head + body + tail
        request = Request(self.place.address + call.path, body, {
            "X-Api-Key": self._token, "User-Agent": "jobqueue-worker/" + jobqueue.VERSION, **headers})
        with self._opener.open(request, timeout=call.seconds) as answer:
            status, pause = answer.status, answer.headers.get("Retry-After")
            data = answer.read(ANSWER_BYTES)
        with contextlib.suppress(ValueError, RecursionError):
            answer_json = jobqueue.read_json(data.decode("utf-8"))
        is_refusal = isinstance(answer_json, dict) and answer_json.get("status") == status
        errors = jobqueue.check_value(ANSWERS["" if is_refusal else call.answer_key], answer_json, "it")
        self._wraps = self._wraps or (400 <= status < 500 and not is_refusal)
        if answer_json is None or errors or not (is_refusal or status in (200, 201)):
            raise NotHeard("an answer (%d) that is not jobqueue's%s" % (status, "".join(
                ": %(field)s %(message)s" % error for error in errors[:1])))
        if status >= 500 or status == 408:      # 408: the network was too slow
            seconds = jobqueue.read_retry_after(pause, time.time())
            raise NotHeard(answer_json["detail"], seconds and min(seconds, PAUSE_MAX_SECONDS))
        return answer_json


class Call:
    """A request that a thread makes while the worker watches running tasks.

    The answer has the key `answer_key`, unless it is a refusal.
    """

    def __init__(self, path, answer_key, body, seconds=0.0,
                 headers=None):
        self.path, self.answer_key, self.body = "/api/worker/" + path, answer_key, body.encode("utf-8")
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self.sent, self.seconds = time.monotonic(), CALL_SECONDS + seconds
        self.answer = {}     # the answer; empty until it has arrived
        self.error = None
        # Only in a turn: its outcomes, its reports on running attempts, its further keys, its session.
        self.ends = []
        self.news = []
        self.extra_keys = {}
        self.session = ""

    def start(self, site, waker):
        """Start the call in a thread. At its end the thread writes to `waker`."""
        def run():
            try:
                self.answer = site.ask(self)
            except NotHeard as error:
                self.error = error
            except Exception as error:  # the worker must see every error
                self.error = NotHeard("%s: %s" % (type(error).__name__, error))
            with contextlib.suppress(OSError):
                os.write(waker, b".")
        threading.Thread(target=run, daemon=True).start()

    def is_over(self):
        """Return True once there is an answer or an error. No answer in time is an error."""
        if time.monotonic() > self.sent + self.seconds:
            self.error = self.error or NotHeard("no answer within %d s" % self.seconds)
        return bool(self.answer) or self.error is not None


class Spool:
    """The folder of a remote worker: its session, and the outcomes (`ends`) that are not reported yet.

    Only one worker at a time has the folder: it holds the lock file, and so does its runner. A process that
    gets the lock knows that both are dead, unless a task has closed the runner's descriptors. So the lock
    file also names the runner, which is ended before another worker begins.
    """

    def __init__(self, base):
        import fcntl
        for number in range(1, 1000):
            self.folder = base / str(number)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:     # another worker has the folder
                os.close(self.lock)
        self.ends = {}  # outcomes by claim
        for path in self.folder.glob("*.outcome"):
            with contextlib.suppress(ValueError):       # a power cut can leave empty files
                self.ends[path.stem] = jobqueue.read_json(path.read_text("utf-8"))
        self._session = self.folder / "jobqueue-worker.remote"  # find_database() accepts this name
        self._place = " %d %s" % (os.fstat(self.lock).st_ino, jobqueue.machine_name())

    def set_runner(self, pid, born):
        """Overwrite the runner's pid and start time in the lock file. This works on a full disk, too."""
        with contextlib.suppress(OSError):
            words = "%s %d %s" % (jobqueue.boot_id(), pid, born)
            os.pwrite(self.lock, words.ljust(200).encode("ascii"), 0)

    def former(self):
        """End the runner of the folder's former worker; return that worker's session.

        None if the folder was copied, since the original worker may live. None if the runner does not end.
        """
        with contextlib.suppress(OSError, ValueError):
            session, space, place = self._session.read_text("utf-8").partition(" ")
            return session if space + place == self._place and self._end_runner() else None
        return None

    def _end_runner(self):
        named = os.pread(self.lock, 200, 0).decode("ascii").split()
        if len(named) < 3 or named[0] != jobqueue.boot_id():
            return True
        return jobqueue.end_group(int(named[1]), named[2], time.sleep)

    def begin(self, session):
        """Store the session of the present worker."""
        jobqueue.write_private(self._session, session + self._place)

    def keep(self, item):
        """Keep an outcome until it is reported, also on the disk if there is room."""
        self.ends[item["claim"]] = item
        with contextlib.suppress(JobQueueError, OSError):
            jobqueue.write_private(self.folder / (item["claim"] + ".outcome"), dump_json(item))

    def forget(self, item):
        """Remove an outcome that the site has, and the task's folder here."""
        self.ends.pop(item["claim"], None)
        with contextlib.suppress(OSError):
            (self.folder / (item["claim"] + ".outcome")).unlink()
        jobqueue.remove_task_folder(self.folder, item["id"])


def claim_reference(row):
    """Return id and claim of an attempt, which identify it at the site."""
    return {"id": row["id"], "claim": row["claim"]}


def json_bytes(value):
    """Return the size of a value as JSON in UTF-8."""
    return len(dump_json(value).encode("utf-8"))


class RemoteAttempt(WatchedAttempt):
    """An attempt of a remote worker, whose calls renew its claim and report its output."""

    row: "RemoteTask"

    def __init__(self, worker, child, row):
        super().__init__(worker.clock, child, row)
        self._worker = worker

    def item(self):
        """Return the report on the running attempt."""
        item = self._reported()
        log = []
        for start, text in self.log.decode_pieces(final=False) if self.log else ():
            log.append({"start": start, "text": text})
            if json_bytes(log) > CALL_BYTES // 4:       # one larger piece still fits into a call
                break
        item["log"] = log
        if self._worker.protocol > 1:
            self._take_sample(self._clock.monotonic())
        if self.samples:
            item["samples"] = self.samples
        return item

    def forget(self, item):
        """Drop the output, the progress and the samples in a report that the site has."""
        del self.log.pieces[:len(item["log"])]
        if item.get("samples") is self.samples:
            self.samples = None
        if self.report and {**item, **self.report} == item:
            self.report = None

    def last_item(self, outcome):
        """Return the report on the ended attempt. If it is too large, drop the middle of the log."""
        outcome_json = {name: value for name, value in vars(outcome).items() if value is not None}
        if json_bytes(outcome_json) > CALL_BYTES:
            outcome_json = {"kind": "fail", "error_type": "ValueError",
                    "error_message": "the result is larger than %d bytes" % CALL_BYTES}
        self.log.decode_pieces(final=True)
        self.log.put(self.traceback or "")
        pieces = [{"start": start, "text": text} for start, text in self.log.pieces]
        item = {**self._reported(), "log": pieces, "outcome": outcome_json}
        while pieces and json_bytes(item) > CALL_BYTES:
            del pieces[len(pieces) // 2]
        return item

    def _reported(self):
        item = claim_reference(self.row)
        if self.report:
            item["progress"], item["message"] = self.report["progress"], self.report["message"]
        return item

    def lease_seconds(self):
        """Return how long a claim holds without being renewed."""
        return self._worker.lease_seconds

    def site(self):
        """Return the site that has the task's files."""
        return self._worker.site.place

    def _prepare_start(self):
        return True                     # the site has confirmed the task

    def _test_claim(self):
        self._is_doubted, self._safe_at = True, self.row["claimed"]
        if self.row["state"] == "cancel":
            self.end("cancelled", "cancelled while it ran")
        elif self.row["state"] != "running":
            self.end("lost")

    def _store(self, now):
        if self.log.is_full:
            self.log.decode_pieces(final=False)

    def _enqueue(self, requests):
        for request in requests:        # the site checks the tasks of Django, too
            if request.pop(jobqueue.DJANGO_MARK, None):
                request.get("arguments", {}).pop(jobqueue.POSITIONAL_COUNT, None)
        self._worker.adds.append(Addition(self, requests))

    def _answer_results(self):
        return False                    # the runner asks the site for results

    def _answer_task(self, task_id):
        self.reply({"refused": Refusal("Denied", "A worker of another machine cannot read task %d."
                                       % task_id, [], None)})


class Addition(NamedTuple):
    """An attempt's request to add tasks."""

    attempt: "RemoteAttempt"
    requests: "list[JsonObject]"


class News(NamedTuple):
    """A running attempt and the report on it in a turn."""

    attempt: "RemoteAttempt"
    item: "AttemptItem"


# worker/remote.py ------------------------------------------------------------
#
# RemoteWorker: a worker without the database, over HTTPS.
#
# It asks a site over HTTPS for tasks that its own tasks.py can run, and reports on them. RemoteSite sends
# calls over HTTP. A Call is a request that a thread makes. The Spool keeps unsent outcomes on the disk.
# RemoteWorker is the loop.
#
# Rules: only an answer of jobqueue counts. After any other answer the call is repeated, and the site handles
# it only once. The lease of a claim counts from the time at which the call that renewed it was sent. So the
# runner is killed before another worker may have its task.

WAIT_SECONDS = 20.0                     # how long a call may wait at the site for a task
HOLD_SECONDS, TELL_SECONDS = 5.0, 2.0   # between reports on running tasks: without output, and with output
AGAIN_SECONDS = 0.5, 15.0               # least and longest pause before a call is repeated
LEAVE_SECONDS = 20.0                    # after a stop: when the worker ends even if the site is silent
CLAIMS_MAX = 64                         # most tasks claimed in one call; the site allows no more


class RemoteWorker(Loop[RemoteAttempt]):
    """The loop of a remote worker. Its Runners use it as their catalogue and as their Place.

    One call is under way at a time:

    1. Once the runner has announced its functions, hello is sent.
    2. The outcomes of the former worker in this folder are sent, which ends that worker's session.
    3. A turn reports everything that the site does not know. An idle worker's turn also asks for tasks and
       proposes a claim for each. These claims stay the same until the site answers.
    4. The next turn confirms a claimed task. Then the task begins.
    5. Running tasks are reported every HOLD_SECONDS.
    6. After a signal nothing is claimed. The last turn says that the worker leaves.
    """

    def __init__(self, site, spool, verbose):
        self.clock = jobqueue.Clock
        super().__init__(self.clock, verbose)
        self.site, self.lease_seconds, self._spool = site, 0.0, spool
        self.protocol = 1               # that of the site
        self.lock, self.stopping = spool.lock, ""
        self._settings.update(runner_tasks=10_000, runner_memory=512, runner_per_owner="no")
        self._runners = Runners(self.clock, spool.folder, self, self, self._settings)
        self._session = jobqueue.random_token()     # "" once the worker has left
        self._sequence, self._is_known = 0, False
        self._before = spool.former()
        self._taken = {}     # claimed tasks that have not ended, by claim
        self._claims = []    # proposed in the current request for tasks
        self.adds = []
        self._functions = None
        self._offered = set()         # names of all functions that were ever announced
        self._files = []
        self._call = None
        self._trouble = None
        self._doubts_token = False      # the last answer refused the token
        self._next = self._sent_at = 0.0
        self._pause, self._wait = AGAIN_SECONDS[0], WAIT_SECONDS
        self.exit_code = 0

    def run(self):
        """Work until there is a reason to leave; return True if the program was updated."""
        waker = self._runners.catch_signals(self._count_signal)
        self._runners.start()
        try:
            while not self._is_over():
                self._heed()
                self._step()
                self._ask(waker)
        finally:
            self._runners.end()
        return self.stopping == "limit"

    def _attempt(self, child, row):
        return RemoteAttempt(self, child, self._taken[row["claim"]])

    def _ask(self, waker):
        """Handle an answer that has arrived, and start the next due call."""
        if self._call and self._call.is_over():
            call, self._call = self._call, None
            self._handle_answer(call)
        if not self._call and time.monotonic() >= self._next:
            self._call = self._next_call()
            if self._call:
                self._call.start(self.site, waker)

    def stop(self, reason):
        """Make the worker leave. Only the first reason is kept."""
        self.stopping = self.stopping or reason

    def set_runner(self, pid, born):
        """Store the runner's pid and start time in the spool."""
        self._spool.set_runner(pid, born)

    def report_no_runner(self, error):
        """Print why there is no runner, and make the worker leave."""
        jobqueue.complain(jobqueue.explain_start_error(error))
        self.exit_code = 1
        self.stop("no runner could be started")

    def files(self):
        """Return the files that the functions are made of, as far as they are known."""
        return [jobqueue.TASKS_FILE, jobqueue.WORKER_FILE, *self._files]

    def store(self, announcement, stamps):
        """Keep the runner's announcement; return the stamps of its files."""
        self._files = announcement.get("files", self._files)
        error = announcement.get("error")
        if error:
            jobqueue.complain("tasks.py cannot be read: %(message)s" % error)
            self._give_back(list(self._taken.values()))     # other workers may be able to run these tasks
        elif announcement["functions"] != self._functions:
            self._functions, self._is_known = announcement["functions"], False
        return {name: stamps.get(name, stamp)
                for name, stamp in jobqueue.file_stamps(self.files()).items()}

    def _is_over(self):
        if self._batch or not self.stopping:
            return False
        until = (self._stopped_at or math.inf) + LEAVE_SECONDS
        return not self._session or time.monotonic() > until

    def _heed(self):
        """Handle signals, and newer files of the program."""
        self._runners.calm()
        if self._signals:
            self.stop(jobqueue.STOPPED)
            self._wind_up()
        elif self._checks.begin_if_due() and jobqueue.file_stamps(self._code) != self._code:
            self.stop("limit")
        if not self.stopping:
            return
        if self._call and self._claims:     # the call may claim a task that this worker would not run
            self._call.error, self._claims = NotHeard("the worker is stopping"), []
        if not self._batch:
            self._stopped_at = self._stopped_at or time.monotonic()
            self._give_back(list(self._taken.values()))

    def _step(self):
        """Watch the running tasks, begin confirmed tasks, hear the runner's announcement, or wait."""
        runners, rows = self._runners, list(self._taken.values())
        if self._batch:
            if self._batch.running:     # if none runs, the confirmation came too late
                self._batch.watch()
            self._put_aside(self._batch)
        elif self.stopping:
            self.clock.sleep(0.05)
        elif not runners.child.ready:
            runners.hear()
        elif not rows or not all("claimed" in row for row in rows):
            runners.rest(0.5 if self._call else 0.05, None)
        elif runners.is_stale() or runners.child.owner not in (None, rows[0]["owner_id"]):
            runners.start()
        else:
            self._hand_over(rows)

    def _put_aside(self, batch):
        """Put the outcomes of ended attempts into the spool, and give unbegun tasks back, if that is due."""
        if batch.running:
            if time.monotonic() < batch.record_by:
                return
            batch.withdraw()           # the ended attempts can wait no longer
            self._pace.slow_down()
        for attempt, outcome in batch.ended:
            del self._taken[attempt.row["claim"]]
            if outcome.kind != "lost":
                self._spool.keep(attempt.last_item(outcome))
        self._give_back([attempt.row for attempt in batch.unbegun])
        batch.unbegun, batch.ended, batch.record_by = [], [], math.inf
        if not batch.running:
            batch.child.withdraw()
            self._batch = None
            if batch.child.death is not None and not self.stopping:
                self._runners.start()

    def _give_back(self, rows):
        """Give back claimed tasks that have not begun. This does not count as an attempt."""
        for row in rows:
            del self._taken[row["claim"]]
            self._spool.keep({**claim_reference(row), "outcome": {"kind": "put_back"}})

    def _next_call(self):
        """Return the Call that is due, or None."""
        if not self._is_known and self.stopping:
            self._session = ""
        if not self._session or not self._is_known and self._functions is None:
            return None
        if not self._is_known:
            self._offered.update(function["name"] for function in self._functions or ())
            return Call("hello", "lease_seconds", dump_json({
                "session": self._session, "protocol": 1, "pid": os.getpid(),
                "machine": jobqueue.machine_name()[:64], "version": jobqueue.VERSION,
                "functions": self._functions}))
        if self._before:                # the site still has the former session
            return self._turn(self._before, {"leave": "was started anew"})
        if self.adds and time.monotonic() < self._sent_at + 2 * HOLD_SECONDS:
            attempt, requests = self.adds[0]
            lines = "\n".join(map(dump_json, requests))
            return Call("tasks/%d" % attempt.row["id"], "ids", lines, headers={
                "Content-Type": jobqueue.LINES_TYPE,
                "Idempotency-Key": "%s-%d" % (attempt.row["claim"], attempt.answered_adds)})
        extra = {}
        running = self._batch.running[:1] if self._batch else []
        has_news = any(attempt.log or attempt.report for attempt in running)
        if self.stopping and not self._batch:
            if self.stopping == "limit" and not self._spool.ends:
                self._session = ""      # the process that follows ends this session
                return None
            extra = {} if self.stopping == "limit" else {"leave": self.stopping}
        elif not (self._batch or self._taken or self.stopping) and self._runners.child.ready:
            is_alone = self._settings["runner_per_owner"] == "yes"
            size = 1 if is_alone else min(CLAIMS_MAX, self._pace.size)
            self._claims = self._claims or [jobqueue.random_token() for _ in range(size)]
            extra["claim"] = {"claims": self._claims, "function": self._pace.function,
                              "wait": 0 if self._spool.ends else self._wait}
        begin_if_due = time.monotonic() >= self._sent_at + (TELL_SECONDS if has_news else HOLD_SECONDS)
        is_new = any("claimed" not in row for row in self._taken.values())
        if extra or self._spool.ends or is_new or self._taken and begin_if_due:
            return self._turn(self._session, extra)
        return None

    def _turn(self, session, extra):
        """Return a turn with as many outcomes as fit. Only a turn that has all of them leaves or claims."""
        ends = []
        room, ours = CALL_BYTES, session == self._session
        for item in self._spool.ends.values():
            room -= json_bytes(item)
            if ends and room < 0:
                extra = {}
                break
            ends.append(item)
        running = []
        if self._batch and room > CALL_BYTES * 3 // 4:
            running = self._batch.running[:1]
        news = {attempt.row["claim"]: attempt.item() for attempt in running}
        rows = list(self._taken.values()) if ours else []
        self._sent_at, self._sequence = time.monotonic(), self._sequence + 1
        call = Call("turn", "attempts", dump_json({
            "session": session, "sequence": self._sequence if ours else jobqueue.INTEGER_MAX,
            "start": [claim_reference(row) for row in rows if "claimed" not in row],
            "hold": [news.get(row["claim"], claim_reference(row)) for row in rows if "claimed" in row],
            "end": ends, **extra}), extra.get("claim", {}).get("wait", 0.0))
        call.ends, call.extra_keys, call.session = ends, extra, session
        call.news = [News(attempt, news[attempt.row["claim"]]) for attempt in running]
        return call

    def _handle_answer(self, call):
        """Handle the answer or the error of a call."""
        error = call.error or self._judge(call)
        if error is None:
            if self._trouble:
                jobqueue.complain("the site answers again")
            self._pause, self._trouble = AGAIN_SECONDS[0], None
            take = {"lease_seconds": self._handle_welcome, "attempts": self._handle_turn,
                    "ids": self._handle_added}[call.answer_key]
            return (take if call.answer_key in call.answer else self._handle_refusal)(call, call.answer)
        if error.why != self._trouble and not self.stopping:
            jobqueue.complain("the site does not answer: %s" % error.why)
        if time.monotonic() - call.sent > 1.0:
            self._wait /= 2             # a proxy may cut off calls that wait for long
        self._trouble = error.why
        pause = error.pause or self.clock.uniform(self._pause, 2 * self._pause)
        self._next, self._pause = time.monotonic() + pause, min(AGAIN_SECONDS[1], 2 * self._pause)

    def _judge(self, call):
        """Return the fault of an answer, or None. Each task needs a proposed claim and an announced function.

        A refused token counts only the second time in a row. A request that a proxy has garbled must not
        end running tasks.
        """
        before, self._doubts_token = self._doubts_token, call.answer.get("code") == "unauthorized"
        if self._doubts_token and not before:
            return NotHeard(call.answer["detail"])
        unanswered = list(call.extra_keys.get("claim", {}).get("claims", ()))
        for task in call.answer.get("tasks", ()) if call.answer_key == "attempts" else ():
            if task["claim"] not in unanswered or task["function"] not in self._offered:
                return NotHeard("an answer with a task that was not asked for")
            unanswered.remove(task["claim"])
        return None

    def _handle_welcome(self, _, answer):
        self._is_known, self.lease_seconds = True, answer["lease_seconds"]
        self.protocol = answer["protocol"]
        self._settings.update(answer["settings"])
        if not self._before:
            self._forget_former()

    def _forget_former(self):
        self._before = None
        self._spool.begin(self._session)

    def _handle_turn(self, call, answer):
        for item in call.ends:
            self._spool.forget(item)
        for attempt, item in call.news:
            attempt.forget(item)
        if "leave" in call.extra_keys:
            if call.session == self._session:
                self._session = ""
            if self._before:
                self._forget_former()
            return
        for claim in self._taken.keys() & answer["attempts"].keys():
            row, state = self._taken[claim], answer["attempts"][claim]
            if self._batch or state == "running":
                row["state"], row["claimed"] = state, call.sent
            else:                       # the task has not begun, and must not begin
                del self._taken[claim]
                if state == "cancel":
                    self._spool.keep({**claim_reference(row), "outcome": {"kind": "cancelled"}})
        if "claim" in call.extra_keys:
            self._claims, idle = [], not (answer["tasks"] or call.ends)
            self._next = time.monotonic() + (answer["wait"] if idle else 0)
            self._wait = min(WAIT_SECONDS, self._wait + 1)
        for task in answer["tasks"]:      # the next turn confirms each task before it begins
            task.update(attempts=task["attempt"], put_backs=0, on_crash="retry",
                        owner_id=task["owner"])
            self._taken[task["claim"]] = task

    def _handle_added(self, _, answer):
        self._answer_added({"ids": answer["ids"], "created": answer["created"]})

    def _answer_added(self, answer):
        attempt = self.adds.pop(0).attempt
        attempt.answered_adds += 1
        attempt.reply(answer)

    def _handle_refusal(self, call, answer):
        """Handle a refusal: the session is gone, an add is wrong, or this worker is not allowed."""
        code, gone = answer["code"], answer.get("gone")
        if call.answer_key == "ids" and gone:
            self.adds.pop(0).attempt.end("lost")
        elif call.answer_key == "ids" and code not in ("unauthorized", "denied"):
            kinds = {kind.code: kind.__name__ for kind in JobQueueError.__subclasses__()}
            self._answer_added({"refused": Refusal(
                kinds.get(code, "JobQueueError"), answer["detail"], answer["errors"], None)})
        elif call.answer_key == "attempts" and code == "conflict":
            if call.session != self._session:
                self._forget_former()   # it has ended: the present session sends its outcomes
            self._is_known = self._is_known and not gone
        else:
            jobqueue.complain("the site refuses this worker: " + answer["detail"])
            self.exit_code, self._session = 5, ""
            self.stop("refused")
            for row in self._taken.values():
                row["state"] = "lost"


# worker/entry.py -------------------------------------------------------------
#
# python3 worker.py
#
# Each process has one job. It is a worker: for cron, as a service, detached, or for a slice of a request. Or
# it is a worker's runner, announces the functions, sends messages, or makes the daily backup.

CRON_SECONDS = 50.0
WORKER_PATIENCE_SECONDS = 45.0          # longest wait for the database; less than SELF_FENCE_SECONDS


def run_runner(channel, data):
    """Run a runner. The life line is armed before anything else. `channel` is a descriptor's number."""
    link = socket.socket(fileno=int(channel))
    bell, lifeline, lock = socket.recv_fds(link, 1, 3)[1]
    arm_lifeline(lifeline)
    for descriptor in (link.fileno(), bell, lock):
        os.set_inheritable(descriptor, False)
    for name in os.environ.keys() - jobqueue.code_environment().keys():
        del os.environ[name]
    runner = Runner(link, bell, Path(data), lock)
    os.register_at_fork(after_in_child=runner.forget)
    return runner.run()


def fork_runner(data):
    """Fork the first runner. A fork needs half the time and memory of a new process.

    Nothing may be open yet. If no worker uses the fork, it ends with this process.
    """
    ours, theirs = socket.socketpair()
    gc.freeze()                         # the garbage collector would write into shared memory pages
    pid = os.fork()
    if pid:
        theirs.close()
        os.setpgid(pid, pid)
        spares.append(Started(Fork(pid), ours))
        return
    try:
        ours.close()
        with open(os.devnull, "r+b", 0) as null:
            for stream in range(3):
                os.dup2(null.fileno(), stream)
        importlib.import_module("inspect")
        os._exit(run_runner(str(theirs.detach()), data))
    finally:                            # a fork must never become a second worker
        os._exit(1)


def print_catalogue():
    """Print the announcement of the functions as JSON, and nothing that tasks.py prints."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open(out, "wb") as file:
        file.write(dump_json(read_functions()).encode("utf-8"))
    if os.getpgrp() == os.getpid():     # end the processes that tasks.py has started
        os.killpg(0, signal.SIGKILL)
    os._exit(0)                         # do not wait for threads and exit handlers of tasks.py


def open_queue(data, is_new=False):
    """Open the queue, and lower the priority of this process and its spare runners to the setting `nice`.

    Make no new database unless `is_new`.
    """
    if not is_new:
        jobqueue.find_database(jobqueue.data_folder(data))
    queue = JobQueue(data, patience=WORKER_PATIENCE_SECONDS)
    with contextlib.suppress(OSError):
        nice = max(queue.settings.get("nice"), os.getpriority(os.PRIO_PROCESS, 0))
        for pid in (0, *(process.pid for process, _ in spares)):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
    return queue


def work(mode, data=None, seconds=None,
         verbose=False, row=None, lock=None):
    """Run a worker: detached, for cron, within a web request (slice), or as a service."""
    queue = open_queue(data, is_new=row is None)
    if mode == "cron" and seconds is not None:
        queue.catalogue.refresh()
        queue.tick.run("cron", start=False)   # dead workers must not count against NbMaxWorker
        due = queue.tick.next_work() or math.inf
        if not queue.claims.claimable(1) and due > queue.database.clock.now() + seconds:
            queue.starter.start_needed(queue.tick.sleepers_missing())
            return 0
    was_stopped = Worker(queue, mode, verbose, seconds).run(row, lock)
    if mode == "service":
        for number in STOP_SIGNALS:     # a later signal ends the process at once
            signal.signal(number, signal.SIG_DFL)
        if not was_stopped:             # exec, because the host might start no other process
            time.sleep(CHECK_SECONDS)
            os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    return 0


def work_remotely(options):
    """Work for another site until a stop signal comes. If the program's files change, exec the new ones."""
    if not jobqueue.TASKS_FILE.exists():
        raise jobqueue.SetupError("There is no %s, whose functions this worker could run."
                                  % jobqueue.TASKS_FILE)
    site = RemoteSite(options.server, options.token_file, options.ca)
    spool = Spool(Path(options.data or jobqueue.HOME / "data-remote"))
    worker = RemoteWorker(site, spool, options.verbose)
    if worker.run():
        time.sleep(CHECK_SECONDS)
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    return worker.exit_code


def send_messages(data):
    """Send due messages. If a server hangs, only this process ends, after SENDING_SECONDS."""
    signal.alarm(int(jobqueue.SENDING_SECONDS))
    queue = open_queue(data)
    jobqueue.DeliverySender(queue.database, queue.settings, queue.enqueue, queue.catalogue.find).run()
    return 0


def make_daily_backup(queue):
    """Make the daily backup that a tick has ordered, remove old backups, and store the outcome."""
    database = queue.database
    error = None
    begun = jobqueue.recall(database, "daily_backup")
    folder = database.folder / jobqueue.BACKUPS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        jobqueue.save(queue, folder, "backup-" + begun["day"])
        remove_older_backups(folder, queue.settings.get("backup_keep"))
    except (JobQueueError, OSError) as problem:
        error = str(problem)
    with database.transaction() as transaction:
        jobqueue.remember(transaction, "daily_backup",
                          {**begun, "done": not error, "error": error})


def remove_older_backups(folder, count):
    """Keep the newest `count` complete daily backups.

    Remove older ones, and incomplete ones that are older than the newest complete one.
    """
    paths = sorted(folder.glob("backup-????-??-??-*"))
    whole = [path for path in paths if path.suffix != ".part"]
    for path in paths:
        if path < whole[-1] and path not in whole[-count:]:
            path.unlink()


def back_up(data):
    """Open the queue and make its daily backup."""
    make_daily_backup(open_queue(data))
    return 0


def dispatch(arguments):
    """Run the process that the arguments ask for; return its exit code."""
    mode, *rest = arguments or [""]
    if mode in ("--detached", "--slice"):
        row, lock, data, *seconds = rest
        if sys.platform == "linux":     # on macOS a fork must not use many system libraries
            with contextlib.suppress(OSError):
                fork_runner(data)
        limit = float(seconds[0]) if seconds else None
        return work(mode[2:], data, limit, row=int(row), lock=lock)
    inside = {
        "--runner": run_runner, "--catalogue": print_catalogue,
        "--send": send_messages, "--backup": back_up}
    if mode in inside:
        return inside[mode](*rest)
    import argparse
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Run tasks of jobqueue.", allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="data folder (data beside jobqueue.py)")
    parser.add_argument("--service", action="store_true", help="never end by itself")
    parser.add_argument("--server", metavar="URL", help="work for that site, without its database")
    parser.add_argument("--token-file", metavar="F", help="with a token of the scope worker of it")
    parser.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("--seconds", type=float, default=CRON_SECONDS, metavar="S",
                        help="without --service: work for at most S seconds (50)")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    if options.server:
        if not options.token_file:
            parser.error("--server needs --token-file")
        return work_remotely(options)
    if options.service:
        return work("service", options.data, verbose=options.verbose)
    return work("cron", options.data, options.seconds, options.verbose)


def main():
    """Prepare this process and run it; return its exit code. A web server is refused."""
    if "GATEWAY_INTERFACE" in os.environ:   # a web server runs this file, and the query is its arguments
        print("Status: 403 Forbidden\nContent-Type: text/plain\n\nThis is not a page.")
        return 2
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    jobqueue.become_private()
    try:
        return dispatch(sys.argv[1:])
    except JobQueueError as error:
        jobqueue.complain(error.detail)
        return error.exit_code
    except (OSError, MemoryError) as error:
        jobqueue.complain("%s: %s" % (type(error).__name__, error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
