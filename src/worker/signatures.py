"""Signatures as JSON Schemas, and JSON as Python values.

From signature, type hints and docstring of a function come the schema of its arguments and its
description, and from JSON arguments the Python values that it is called with. read_functions()
imports tasks.py and announces all of it, or what is wrong with it, where.
Rules: only a runner and worker.py --catalogue import tasks.py. Whatever it does, an answer comes.
typing and inspect are imported where they are used: the worker itself needs neither.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import date, datetime, time as clock_time
from enum import Enum
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, Function, declared, dump_json, storable

if TYPE_CHECKING:
    from typing import Any

    from jobqueue import AnnouncedFunction, Announcement, JsonObject, Schema

if TYPE_CHECKING:
    TypeHint = Any                      # a type, or what typing makes of types; NOTHING for none

NOTHING = object()                      # no default, no type hint

SIMPLE_TYPES: dict[TypeHint, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"},
    bool: {"type": "boolean"}, list: {"type": "array"}, tuple: {"type": "array"},
    set: {"type": "array"}, dict: {"type": "object"}, Path: {"type": "string", "format": "file"},
    date: {"type": "string", "format": "date"}, clock_time: {"type": "string", "format": "time"},
    datetime: {"type": "string", "format": "date-time"}}
CONVERSIONS: dict[TypeHint, Callable[[Any], Any]] = {
    datetime: jobqueue.parse_moment, date: date.fromisoformat, clock_time: clock_time.fromisoformat,
    int: int, float: float, Path: Path, set: set, tuple: tuple}


def is_union(origin: TypeHint) -> bool:
    """True for Optional[X], Union[X, Y] and X | Y."""
    import typing
    return origin is typing.Union or getattr(origin, "__name__", "") == "UnionType"


def are_alike(inner: tuple[TypeHint, ...]) -> bool:
    """True if all items have one type; those of Tuple[str, int] have one for each place."""
    return bool(inner) and all(kind in (inner[0], ...) for kind in inner)


def type_schema(kind: TypeHint) -> Schema:
    """The schema of a type hint; {} (a text field) for what is not understood."""
    import typing
    with contextlib.suppress(TypeError):
        if kind in SIMPLE_TYPES:
            return dict(SIMPLE_TYPES[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": json.loads(dump_json(list(kind))), "enumNames": [one.name for one in kind]}
    origin: TypeHint = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if is_union(origin):                # of several types only a text field can hold all
        others = [member for member in inner if member is not type(None)]
        schema = type_schema(others[0]) if len(others) == 1 else {}
        return make_nullable(schema) if schema else {}
    if origin in (list, set, tuple) and are_alike(inner):
        return {"type": "array", "items": type_schema(inner[0])}
    return dict(SIMPLE_TYPES.get(origin, {}))


def make_nullable(schema: Schema) -> Schema:
    """The schema that also allows null."""
    if "enum" in schema:
        return schema if None in schema["enum"] else jobqueue.or_null(schema)
    kind = schema.get("type", "string")
    return jobqueue.or_null({**schema, "type": kind}) if isinstance(kind, str) else schema


def to_python(kind: TypeHint, value: Any) -> Any:
    """A JSON value as the type hint wants it."""
    if value is None or kind is type(value) or kind in (None, NOTHING):
        return value
    import typing
    origin: TypeHint = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if is_union(origin):
        others = [member for member in inner if member is not type(None)]
        return to_python(others[0], value) if len(others) == 1 else value
    if origin in (list, set, tuple) and are_alike(inner):
        return origin(to_python(inner[0], item) for item in value)
    if origin is tuple and inner:
        if len(value) != len(inner):
            raise ValueError("a list of %d values is wanted, not of %d" % (len(inner), len(value)))
        return tuple(map(to_python, inner, value))
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = list(kind)
        known = [*json.loads(dump_json(members)), *(one.name for one in members)]
        return members[known.index(value) % len(members)] if value in known else value
    return CONVERSIONS[kind](value) if kind in CONVERSIONS else value


def type_hints(target: Callable[..., Any]) -> dict[str, TypeHint]:
    """{name: type} of a function; hints that cannot be evaluated are left out."""
    import typing
    with contextlib.suppress(Exception):    # the owner's code: anything can happen in it
        return typing.get_type_hints(target)
    hints = dict(getattr(target, "__annotations__", {}))
    for name in [name for name, hint in hints.items() if isinstance(hint, str)]:
        # Before Python 3.10 types have no |.
        plain, optional = re.subn(r"\s*\|\s*None\s*$|^\s*None\s*\|\s*", "", hints.pop(name))
        with contextlib.suppress(Exception):
            kind = eval(plain, dict(getattr(target, "__globals__", {})))
            hints[name] = typing.Optional[kind] if optional else kind
    return hints


def parameter_help(text: str) -> dict[str, str]:
    """{parameter: help} from a docstring in the style of Google, NumPy or Sphinx."""
    found = dict(re.findall(r"^\s*:param (?:\w+ )?(\w+):\s*(.*\S)", text, re.MULTILINE))
    section = re.search(r"^(?:Args|Arguments|Parameters):?\n(?:-+\n)?"
                        r"((?:[ \t]*\S.*\n?|\n(?=[ \t]))+)", text, re.MULTILINE)
    if section:
        for line in (r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s+(.*\S)",
                     r"^(\w+)(?:\s*:.*)?\n[ \t]+(\S.*\S)"):
            found.update(re.findall(line, section[1], re.MULTILINE))
    return found


def documentation(function: Function) -> str:
    """A Python function's docstring without its indentation; empty for all others."""
    from inspect import getdoc
    return (getdoc(function.target) or "").strip() if function.kind == "python" else ""


class Parameters:
    """A function's parameters: their type hints, defaults and documentation."""

    def __init__(self, function: Function) -> None:
        self.function, self.open, given = function, False, function.parameters
        if given is None:
            from inspect import signature
            hints, found = type_hints(function.target), signature(function.target).parameters
            self.open = any(one.kind is one.VAR_KEYWORD for one in found.values())
            named = [one for one in found.values()
                     if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
            self.kinds = {one.name: hints.get(one.name, NOTHING) for one in named}
            self.defaults = {one.name: one.default for one in named if one.default is not one.empty}
        else:
            from typing import get_origin
            self.kinds = {name: one if isinstance(one, type) or get_origin(one) else NOTHING
                          for name, one in given.items()}
            self.defaults = {name: given[name] for name in given if self.kinds[name] is NOTHING}
        for name, default in self.defaults.items():
            if self.kinds[name] is NOTHING and default is not None:
                self.kinds[name] = type(default)

    def schema(self) -> Schema:
        """JSON Schema 2020-12 of the arguments."""
        helps = parameter_help(documentation(self.function))
        properties = {name: self._property(name, helps.get(name)) for name in self.kinds}
        required = [name for name in self.kinds if name not in self.defaults]
        return {"type": "object", "properties": properties, "required": required,
                "additionalProperties": self.open}

    @functools.cached_property
    def files(self) -> list[str]:
        """The names of those that are files."""
        return jobqueue.file_parameters(self.schema())

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """JSON arguments as Python values."""
        return {name: to_python(self.kinds.get(name), value) for name, value in arguments.items()}

    def _property(self, name: str, text: str | None) -> Schema:
        schema = {} if self.kinds[name] is NOTHING else type_schema(self.kinds[name])
        if name in self.defaults:
            with contextlib.suppress(TypeError, ValueError):
                schema["default"] = json.loads(dump_json(self.defaults[name]))
            if schema.get("default", 0) is None:
                schema = make_nullable(schema)
            elif schema.get("format") == "file":    # whose path stays the function's own
                del schema["default"]
        if jobqueue.SECRET_NAME.search(name) and "string" in schema.get("type", ()):
            schema["format"] = "password"
        parts = [*self.function.target, "--"] if self.function.kind == "command" else ["--"]
        if "{%s}" % name in parts[:parts.index("--")]:  # the program could take it for an option
            for one in (schema, schema.get("items", {})):
                one.update(pattern="(?s)(?!-).*", patternMessage='must not begin with "-"')
        if text:
            schema["description"] = text
        return schema


def describe(function: Function) -> AnnouncedFunction:
    """A function as the catalogue keeps it."""
    title, _, rest = documentation(function).partition("\n")
    section = r"^\s*(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):?\s*$|^\s*:\w+"
    description = re.split(section, rest.strip(), flags=re.MULTILINE)[0].strip()
    return {"name": function.name, "title": title or function.name.replace("_", " "),
            "description": description, "schema": Parameters(function).schema(),
            "options": function.options, "who": function.who,
            "external": function.kind == "external"}


def describe_schedules() -> list[JsonObject]:
    """What @schedule said, as the catalogue keeps it; ValueError if it fits no function."""
    described: list[JsonObject] = []
    numbers: dict[str, int] = {}
    for target, given in jobqueue.scheduled:
        name = getattr(target, "name", None) or target.__name__
        if name not in declared:
            raise ValueError("@schedule needs @task beside it, for %s" % name)
        schema = Parameters(declared[name]).schema()
        for wrong in jobqueue.check_value(schema, given["arguments"], "arguments"):
            raise ValueError("the schedule of %s: %s %s" % (name, wrong["field"], wrong["message"]))
        numbers[name] = numbers.get(name, 0) + 1
        described.append({"name": "%s-%d" % (name, numbers[name]), "function": name, **given})
    return described


def is_owners(file: str) -> bool:
    """True for the owner's files: beside tasks.py, or beside ours."""
    folders = tuple("%s/" % folder for folder in (jobqueue.TASKS_FILE.parent, jobqueue.HOME))
    return file.startswith(folders) and file not in map(str, jobqueue.CODE_FILES)


def explain_import(error: BaseException) -> JsonObject:
    """What is wrong with tasks.py, where: {"message", "file", "line"}."""
    import traceback
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    if not isinstance(error, SyntaxError) or not file:
        frames = [at for at in traceback.extract_tb(error.__traceback__) if is_owners(at.filename)]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    file = os.path.relpath(file, jobqueue.TASKS_FILE.parent) if file else None
    return {"message": storable("%s: %s" % (type(error).__name__, message))[:500],
            "file": file, "line": line}


def working_folder() -> str:
    """The folder of tasks.py; for the samples there may be none."""
    folder = jobqueue.TASKS_FILE.parent
    return str(folder if folder.is_dir() else jobqueue.HOME)


def declare_samples() -> None:
    """Functions to try the page with; gone once there is a tasks.py."""
    @jobqueue.task
    def add(a: int, b: int, seconds: float = 0) -> int:
        """Add two numbers, slowly if you like.

        :param seconds: how long to think about it
        """
        print("adding %d and %d" % (a, b))
        time.sleep(seconds)
        return a + b

    @jobqueue.task
    def count_down(start: int = 10) -> str:
        """Count down once a second, and say how far it is."""
        for left in range(start, 0, -1):
            print(left, flush=True)
            jobqueue.current_task().progress(start - left, start, "%d to go" % left)
            time.sleep(1)
        return "lift-off"


def read_functions() -> Announcement:
    """Import tasks.py and announce what it declares, or what is wrong with it."""
    os.chdir(working_folder())
    samples = not jobqueue.TASKS_FILE.exists()
    try:
        if samples:
            declare_samples()
        else:
            sys.path.insert(0, str(jobqueue.TASKS_FILE.parent))
            sys.dont_write_bytecode = True      # it would hide a change within the same second
            importlib.import_module(jobqueue.TASKS_FILE.stem)
        external = {one.options["queue"] for one in declared.values() if one.kind == "external"}
        for one in declared.values():
            queue = one.options["queue"]
            if one.kind != "external" and queue in external:
                raise ValueError("%s: the queue %s is for external functions" % (one.name, queue))
        functions = [describe(function) for function in declared.values()]
        found: Announcement = {
            "functions": functions, "schedules": describe_schedules(), "error": None}
    except BaseException as error:      # SystemExit in tasks.py must be told as well
        found = {"error": explain_import(error)}
    # When one of these changes, so may the functions.
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return {**found, "samples": samples, "files": sorted(filter(is_owners, files))}
