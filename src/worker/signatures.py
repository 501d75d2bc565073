"""Signatures as JSON Schemas, and calls with JSON arguments.

The schema of a function's arguments and its description come from its signature, type hints and
docstring. JSON arguments become Python values, which a call binds to the signature. read_functions()
imports tasks.py and returns an announcement: the functions and schedules, or the error and its place.

Rules: only a runner and worker.py --catalogue import tasks.py. Any exception in tasks.py becomes part of
the announcement. typing and inspect are imported where they are used: the worker itself needs neither.
"""
from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, DjangoFunction, Function, argument_value, declared, storable

from .python_types import ANY, NOTHING, ValueType, is_unclear, resolve

if TYPE_CHECKING:
    import inspect
    from typing import Any

    from jobqueue import AnnouncedFunction, Announcement, JsonObject, ScheduleLine, Schema

    from .python_types import TypeHint


def type_hints(target: Callable[..., Any]) -> dict[str, TypeHint]:
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


def parameter_help(text: str) -> dict[str, str]:
    """Return {parameter: help} from a docstring in the style of Google, NumPy or Sphinx."""
    helps = dict(re.findall(r"^\s*:param (?:\w+ )?(\w+):\s*(.*\S)", text, re.MULTILINE))
    section = re.search(r"^(?:Args|Arguments|Parameters):?\n(?:-+\n)?"
                        r"((?:[ \t]*\S.*\n?|\n(?=[ \t]))+)", text, re.MULTILINE)
    if section:
        for line in (r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s+(.*\S)",
                     r"^(\w+)(?:\s*:.*)?\n[ \t]+(\S.*\S)"):
            helps.update(re.findall(line, section[1], re.MULTILINE))
    return helps


def documentation(function: Function) -> str:
    """Return a function's docstring or description without its indentation."""
    from inspect import cleandoc, getdoc
    text = getdoc(function.target) if callable(function.target) else cleandoc(function.__doc__ or "")
    return (text or "").strip()


def refused(declaration: Function | ScheduleLine, words: str) -> ValueError:
    """Return the error for a declaration that cannot be used, with its file and line."""
    error: Any = ValueError("%s: %s" % (declaration.name, words))
    error.filename, error.lineno = declaration.place
    return error


def holds_file(schema: Any, besides: Collection[str] = ()) -> bool:
    """Return whether a schema or a part of it is a file. Skip parts directly under the keys `besides`."""
    if isinstance(schema, list):
        return any(map(holds_file, schema))
    if not isinstance(schema, dict):
        return False
    return schema.get("format") == "file" or any(
        holds_file({**part, "format": None} if name in besides and isinstance(part, dict) else part)
        for name, part in schema.items() if name not in ("enum", "default"))


def _list_of(hint: TypeHint) -> TypeHint:
    return list if hint is NOTHING else list.__class_getitem__(hint)


class Parameters:
    """A function's parameters: their types, defaults and documentation."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.others: ValueType | None = None    # type of **kwargs; None if there are none
        self._signature: inspect.Signature | None = None    # set if the call needs positional arguments
        self.defaults: dict[str, Any] = {}
        kinds: dict[str, TypeHint] = {}
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

    def _read_signature(self, target: Callable[..., Any]) -> dict[str, TypeHint]:
        """Return the hint of each parameter; NOTHING if it has none. Set `others` and `_signature`, too."""
        import inspect
        kinds: dict[str, TypeHint] = {}
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

    def _resolve(self, name: str, kind: TypeHint) -> ValueType:
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

    def schema(self) -> Schema:
        """Return the JSON Schema (2020-12) of the arguments."""
        helps = {**parameter_help(documentation(self.function)), **self.function.help_texts}
        properties = {name: self._property(name, helps.get(name)) for name in self.kinds}
        required = [name for name in self.kinds if name not in self.defaults]
        extra = self.others and (self.others.schema or True)
        return {"type": "object", "properties": properties, "required": required,
                "additionalProperties": extra or False}

    @functools.cached_property
    def checked(self) -> Schema:
        """Return the schema of the arguments, which is made only once."""
        return self.schema()

    @functools.cached_property
    def files(self) -> list[str]:
        """Return the names of parameters that are files."""
        return jobqueue.file_parameters(self.checked)

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """Return JSON arguments as Python values."""
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            kind = self.kinds.get(name) or self.others
            values[name] = value if value is None or not kind or kind.convert is None else (
                kind.convert(value))
        return values

    def call(self, values: dict[str, Any]) -> Any:
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

    def _property(self, name: str, text: str | None) -> Schema:
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


    def _check_default(self, name: str, schema: Schema) -> None:
        """Raise ValueError for a default that does not fit the parameter's schema."""
        for error in jobqueue.check_value(schema, schema["default"], name):
            raise refused(self.function, "the default of %s %s: change the default or the type"
                          % (error["field"], error["message"]))


def make_nullable(schema: Schema) -> Schema:
    """Return a schema changed so that it also allows null."""
    if "null" in schema.get("type", ()) or None in schema.get("enum", ()):
        return schema
    if not schema.keys() & {"enum", "type"}:
        return schema
    return jobqueue.or_null(schema)


def check_runnable(function: Function) -> None:
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


def describe(function: Function) -> AnnouncedFunction:
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


def describe_any(function: Function) -> AnnouncedFunction:
    """Return a function as the catalogue stores it. A Django task without a usable signature has no form."""
    try:
        return describe(function)
    except Exception:                   # a default or a hint may raise anything when it is inspected
        if function.kind != "django":
            raise
        return {"name": function.name, "title": function.name, "description": "", "who": "nobody",
                "schema": {"type": "object", "properties": {}, "required": [], "additionalProperties": True},
                "options": function.options, "external": False}


def describe_schedules() -> list[JsonObject]:
    """Return the @schedule declarations as the catalogue stores them.

    ValueError if one does not fit its function, or if two have the same name.
    """
    described: list[JsonObject] = []
    names: set[str] = set()
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


def is_owners(file: str) -> bool:
    """Return whether a file is the owner's: in a folder of the owner or ours, but not installed there."""
    folders = tuple("%s/" % folder for folder in (
        jobqueue.TASKS_FILE.parent, jobqueue.HOME, *jobqueue.project_folders))
    return (file.startswith(folders) and file not in map(str, jobqueue.CODE_FILES)
            and not re.search(r"/(site|dist)-packages/|/lib/python3[.0-9]*/", file))


def explain_import(error: BaseException) -> JsonObject:
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


def working_folder() -> str:
    """Return the folder of tasks.py, or that of jobqueue.py if there is none."""
    folder = jobqueue.TASKS_FILE.parent
    return str(folder if folder.is_dir() else jobqueue.HOME)


def declare_samples() -> None:
    """Declare functions for trying the page, while there is no tasks.py."""
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
        for remaining in range(start, 0, -1):
            print(remaining, flush=True)
            jobqueue.current_task().progress(start - remaining, start, "%d to go" % remaining)
            time.sleep(1)
        return "lift-off"


def import_file(path: Path) -> None:
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
def folder_first(folder: str) -> Iterator[None]:
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


def read_functions() -> Announcement:
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
        announcement: Announcement = {
            "functions": functions, "schedules": describe_schedules(), "error": None,
            "project": jobqueue.project_summary()}
    except BaseException as error:      # SystemExit in tasks.py must be reported, too
        announcement = {"error": explain_import(error)}
    # If one of these files changes, the functions may have changed, too.
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return {**announcement, "samples": samples, "files": sorted(filter(is_owners, files))}
