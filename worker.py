#!/usr/bin/env python3
"""The worker of jobqueue: claims tasks, has its runner run them, records how they ended.

    python3 worker.py                 for cron: work on what is there or due for at most 50 s
    python3 worker.py --service       for hosts with always-on processes: never ends by itself
    python3 worker.py --verbose       say what happens

Workers are started by adding a task; nobody needs to start one by hand. A worker never runs
the owner's code: its child, the runner, does, and the runner never touches the database. When
the worker dies the kernel ends the runner, and whoever ticks next sees both dead by their lock.

Contents (each section uses only the sections above it)
    Catalogue           from a signature to a JSON Schema and back to Python values
    Commands            programs as functions
    Requests            HTTP requests as functions
    Runner              the child's side: runs one attempt after another
    Log                 what an attempt prints, on its way to the database
    Child               the worker's side of its runner: pipes, life line, signals
    Attempt and Batch   what the runner has in hand: watched, kept alive, ended
    Worker              the loop: claim, hand over, wait, record
    Entry               python3 worker.py
"""
import _signal
import _thread
import codecs
import contextlib
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
import sqlite3
import sys
import threading
import time
from datetime import date, datetime, time as clock_time
from enum import Enum
from pathlib import Path

import jobqueue
from jobqueue import (Every, Fail, Followers, JobQueue, JobQueueError, Logs, Outcome, RetryAfter,
                      TaskContext, declared, dump_json, storable)

jobqueue.refuse_half(__file__)


VERSION = "1.0.0"                       # of the jobqueue.py that this belongs to


# Catalogue -------------------------------------------------------------------
#
# typing and inspect are imported where they are used: the worker itself needs neither.

NOTHING = object()                      # no default, no type hint
# What texts that are an argument of a program by themselves must be like.
NO_OPTION = {"pattern": "(?s)(?!-).*", "patternMessage": 'must not begin with "-"'}

SIMPLE_TYPES = {str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"},
                bool: {"type": "boolean"}, list: {"type": "array"}, tuple: {"type": "array"},
                set: {"type": "array"}, dict: {"type": "object"}, Path: {"type": "string"},
                date: {"type": "string", "format": "date"},
                datetime: {"type": "string", "format": "date-time"},
                clock_time: {"type": "string", "format": "time"}}


def is_union(origin):
    """True for Optional[X], Union[X, Y] and X | Y."""
    import typing
    return origin is typing.Union or getattr(origin, "__name__", "") == "UnionType"


def are_alike(inner):
    """True if all items of a list or tuple have one type; Tuple[str, int] has one for each place."""
    return bool(inner) and all(kind in (inner[0], ...) for kind in inner)


def type_schema(kind):
    """The schema of a type hint; {} (a text field) for what is not understood."""
    import typing
    with contextlib.suppress(TypeError):
        if kind in SIMPLE_TYPES:
            return dict(SIMPLE_TYPES[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        values, names = json.loads(dump_json(list(kind))), [one.name for one in kind]
        if any(value in names and value != name for value, name in zip(values, names)):
            return {"enum": values}     # a name that is another's value would mean two things
        return {"enum": values, "enumNames": names}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if is_union(origin):
        return union_schema(inner)
    if origin in (list, set, tuple) and are_alike(inner):
        return {"type": "array", "items": type_schema(inner[0])}
    return dict(SIMPLE_TYPES.get(origin, {}))


def union_schema(members):
    """X | None may also be null; of several types only a text field can hold all."""
    others = [member for member in members if member is not type(None)]
    if len(others) != 1:
        return {}
    schema = type_schema(others[0])
    if len(others) < len(members) and "enum" in schema:
        schema["enum"] = schema["enum"] + [None]
    elif len(others) < len(members) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


def to_python(kind, value):
    """A JSON value as the type hint wants it."""
    if value is None or kind is type(value) or kind in (None, NOTHING):
        return value
    import typing
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
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
    if kind is datetime:
        return jobqueue.parse_moment(value)
    if kind in (date, clock_time):
        return kind.fromisoformat(value)
    if kind in (int, float, Path, set, tuple):
        return kind(value)
    return value


def make_nullable(schema):
    """The schema that also allows null, because the default is None."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema and None not in schema["enum"]:
        return {**schema, "enum": schema["enum"] + [None]}
    return schema if schema.keys() - {"default"} else {**schema, "type": ["string", "null"]}


def split_parameter(given):
    """(type, default) of a parameter that command and http_request were given."""
    import typing
    if isinstance(given, type) or typing.get_origin(given) is not None:
        return given, NOTHING
    return NOTHING if given is None else type(given), given


def stands_alone(arguments, name):
    """True if a value would be a whole argument that the program could take for an option."""
    return any(part == "{%s}" % name and "--" not in arguments[:place]
               for place, part in enumerate(arguments))


def evaluate_hint(hint, names):
    """A type hint that may be a text, such as "int | None" on a Python that has no |."""
    from typing import Optional
    if not isinstance(hint, str):
        return hint
    plain, optional = re.subn(r"\s*\|\s*None\s*$|^\s*None\s*\|\s*", "", hint)
    try:
        kind = eval(plain, dict(names))  # the owner's own source, as typing evaluates it
    except Exception:
        return NOTHING
    return Optional[kind] if optional else kind


def type_hints(target):
    """{name: type} of a function; hints that cannot be evaluated are left out."""
    import typing
    try:
        return typing.get_type_hints(target)
    except Exception:                   # the owner's code: anything can happen in it
        names = getattr(target, "__globals__", {})
        hints = {name: evaluate_hint(hint, names)
                 for name, hint in getattr(target, "__annotations__", {}).items()}
        return {name: hint for name, hint in hints.items() if hint is not NOTHING}


def parameter_help(text):
    """{parameter: help} from a docstring in the style of Google, NumPy or Sphinx."""
    found = dict(re.findall(r"^\s*:param (?:\w+ )?(\w+):\s*(.+)$", text, re.MULTILINE))
    section = re.search(r"^(?:Args|Arguments|Parameters):?\n(?:-+\n)?((?:[ \t]*\S.*\n?|\n(?=[ \t]))+)",
                        text, re.MULTILINE)
    if section:
        found.update(re.findall(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s+(.+)$", section[1], re.MULTILINE))
        found.update(re.findall(r"^(\w+)(?:\s*:.*)?\n[ \t]+(\S.*)$", section[1], re.MULTILINE))
    return {name: line.strip() for name, line in found.items()}


def documentation(function):
    """A Python function's docstring without its indentation; empty for all others."""
    from inspect import getdoc
    return (getdoc(function.target) or "").strip() if function.kind == "python" else ""


class Parameters:
    """A function's parameters: their type hints, defaults and documentation."""

    def __init__(self, function):
        self.function = function
        self.kinds, self.defaults, self.open = {}, {}, False
        if function.parameters is None:
            self._read_signature(function.target)
        else:
            for name, given in function.parameters.items():
                self._add(name, *split_parameter(given))

    def schema(self):
        """JSON Schema 2020-12 of the arguments."""
        helps = parameter_help(documentation(self.function))
        properties = {name: self._property(name, helps.get(name)) for name in self.kinds}
        return {"type": "object", "properties": properties,
                "required": [name for name in self.kinds if name not in self.defaults],
                "additionalProperties": self.open}

    def convert(self, arguments):
        """JSON arguments as Python values."""
        return {name: to_python(self.kinds.get(name), value) for name, value in arguments.items()}

    def _read_signature(self, target):
        from inspect import Parameter, signature
        hints = type_hints(target)
        for name, parameter in signature(target).parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:
                self.open = True
            elif parameter.kind is not Parameter.VAR_POSITIONAL:
                default = NOTHING if parameter.default is Parameter.empty else parameter.default
                self._add(name, hints.get(name, NOTHING), default)

    def _add(self, name, kind, default):
        if kind is NOTHING and default not in (NOTHING, None):
            kind = type(default)
        self.kinds[name] = kind
        if default is not NOTHING:
            self.defaults[name] = default

    def _property(self, name, text):
        schema = {} if self.kinds[name] is NOTHING else type_schema(self.kinds[name])
        if name in self.defaults:
            with contextlib.suppress(TypeError, ValueError):
                schema["default"] = json.loads(dump_json(self.defaults[name]))
            if schema.get("default", 0) is None and schema.get("type", "") is not None:
                schema = make_nullable(schema)
        if jobqueue.names_secret(name) and "string" in schema.get("type", ()):
            schema["format"] = "password"
        if self.function.kind == "command" and stands_alone(self.function.target, name):
            for part in (schema, schema.get("items", {})):
                part.update(NO_OPTION)
        if text:
            schema["description"] = text
        return schema


def describe(function):
    """A function as the catalogue keeps it."""
    title, _, rest = documentation(function).partition("\n")
    description = re.split(
        r"^\s*(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):?\s*$|^\s*:\w+",
        rest.strip(), flags=re.MULTILINE)[0].strip()
    return {"name": function.name, "title": title or function.name.replace("_", " "),
            "description": description, "schema": Parameters(function).schema(),
            "options": function.options, "who": function.who,
            "external": function.kind == "external"}


def check_queues(functions):
    """ValueError if a function of ours is in a queue that our workers leave alone."""
    left_alone = {function.options["queue"] for function in functions
                  if function.kind == "external"}
    for function in functions:
        if function.kind != "external" and function.options["queue"] in left_alone:
            raise ValueError("%s: the queue %s is for external functions"
                             % (function.name, function.options["queue"]))


def describe_schedules():
    """What @schedule said, as the catalogue keeps it; ValueError if it fits no function."""
    described, numbers = [], {}
    for target, given in jobqueue.scheduled:
        name = getattr(target, "name", None) or target.__name__
        if name not in declared:
            raise ValueError("@schedule needs @task beside it, for %s" % name)
        wrong = jobqueue.check_value(Parameters(declared[name]).schema(), given["arguments"], "arguments")
        if wrong:
            raise ValueError("the schedule of %s: %s %s" % (name, wrong[0]["field"], wrong[0]["message"]))
        numbers[name] = numbers.get(name, 0) + 1
        described.append({"name": "%s-%d" % (name, numbers[name]), "function": name, **given})
    return described


def is_owners(file):
    """True for the owner's files: beside tasks.py, or beside ours."""
    folders = jobqueue.TASKS_FILE.parent, jobqueue.HOME
    return file not in map(str, jobqueue.CODE_FILES) and file.startswith(
        tuple(str(folder) + os.sep for folder in folders))


def loaded_files():
    """The owner's files that were imported: when one changes, so may the functions."""
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return sorted(filter(is_owners, files))


def explain_import(error):
    """What is wrong with tasks.py, where: {"message", "file", "line"}."""
    import traceback
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    if not isinstance(error, SyntaxError) or not file:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                  if is_owners(frame.filename)]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return {"message": storable("%s: %s" % (type(error).__name__, message))[:500],
            "file": os.path.relpath(file, jobqueue.TASKS_FILE.parent) if file else None, "line": line}


def working_folder():
    """The folder of tasks.py; for the samples there may be none."""
    folder = jobqueue.TASKS_FILE.parent
    return str(folder if folder.is_dir() else jobqueue.HOME)


def declare_samples():
    """Functions to try the page with; gone once there is a tasks.py."""
    from typing import Literal

    @jobqueue.task
    def add(a: int, b: int, seconds: float = 0) -> int:
        """Add two numbers, slowly if you like.

        Args:
            a: the first number
            b: the second number
            seconds: how long to think about it
        """
        print("adding %d and %d" % (a, b))
        time.sleep(seconds)
        return a + b

    @jobqueue.task
    def count_down(start: int = 10, style: Literal["numbers", "words"] = "numbers") -> str:
        """Count down once a second, and say how far it is."""
        words = "zero one two three four five six seven eight nine ten".split()
        for left in range(start, 0, -1):
            print(words[left] if style == "words" and left < len(words) else left, flush=True)
            jobqueue.current_task().progress(start - left, start, "%d to go" % left)
            time.sleep(1)
        return "lift-off"

    @jobqueue.task(max_retries=2, retry_delay=5)
    def stumble(times: int = 1) -> str:
        """Fail a few times before it works, to see errors and retries."""
        attempt = jobqueue.current_task().attempt
        if attempt <= times:
            raise ValueError("attempt %d of %d stumbles" % (attempt, times + 1))
        return "up again"


def read_functions():
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
        check_queues(declared.values())
        functions = [describe(function) for function in declared.values()]
        return {"functions": functions, "schedules": describe_schedules(), "error": None,
                "samples": samples, "files": loaded_files()}
    except BaseException as error:      # SystemExit in tasks.py must be told as well
        return {"error": explain_import(error), "samples": samples, "files": loaded_files()}


# Commands --------------------------------------------------------------------

START_PAUSES = (1, 2, 4, 8, 15, 30)     # seconds until a program is started again that could not be


class CommandFailed(Exception):
    """A program ended with an exit code other than 0."""


def as_word(value):
    """A value as programs read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else dump_json(value)
    return text[1:-1] if text.startswith('"') and not isinstance(value, str) else text


def as_list(value):
    """The items of a list, or a list of one."""
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def fill_part(part, arguments):
    """One argument of a command with its values; a list alone becomes several, null none."""
    alone = re.fullmatch(jobqueue.PLACE, part)
    if alone and alone[1] in arguments:
        value = arguments[alone[1]]
        return [] if value is None else [as_word(item) for item in as_list(value)]
    return [re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)]


def has_numbers_only(part, arguments):
    """True if a minus in this argument can only be that of a number."""
    return all(jobqueue.is_number(item) for name in re.findall(jobqueue.PLACE, part)
               for item in as_list(arguments.get(name)))


def fill_parts(target, arguments):
    """All arguments of a command; Fail if a value would turn one into an option of the program."""
    parts, guarded = [], True
    for part in target:
        guarded = guarded and part != "--"
        harmless = part.startswith("-") or has_numbers_only(part, arguments)
        for piece in fill_part(part, arguments):
            if guarded and piece.startswith("-") and not harmless:
                raise Fail('an argument must not begin with "-": %s' % piece[:100])
            parts.append(piece)
    return parts


def complete(parts, environment):
    """Run a program to its end; wait a while for a host that allows no process more just now."""
    import subprocess
    for pause in (*START_PAUSES, None):
        try:
            return subprocess.run(parts, stdin=subprocess.DEVNULL, env=environment, check=False)
        except OSError as error:
            if error.errno not in jobqueue.SHORTAGES:
                raise
            words = jobqueue.explain_start_error(error, parts[0])
            if pause is None:
                raise CommandFailed(words) from None
        print("%s; trying again in %d s" % (words, pause), flush=True)
        time.sleep(pause)


def run_program(parts, context):
    """Run a program to its end; CommandFailed unless that is a good one."""
    environment = {**os.environ, "JOBQUEUE_TASK_ID": str(context.id),
                   "JOBQUEUE_ATTEMPT": str(context.attempt), "JOBQUEUE_CLAIM": context.claim}
    ended = complete(parts, environment)
    if ended.returncode < 0:
        raise CommandFailed("%s was ended by signal %d" % (parts[0], -ended.returncode))
    if ended.returncode:
        raise CommandFailed("%s ended with exit code %d" % (parts[0], ended.returncode))
    return {"exit_code": 0}


def run_command(function, arguments, context):
    """Run a program with the arguments in their places; no shell."""
    return run_program(fill_parts(function.target, arguments), context)


def run_script(function, arguments, context):
    """Run a script of the folders with schedules, never one twice at once."""
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
            pass                        # a file system without flock: the schedule's overlap must do
        return run_program([sys.executable, path] if path.endswith(".py") else [path], context)


BUILT_IN = {jobqueue.SCRIPT_FUNCTION: jobqueue.Function(
    jobqueue.SCRIPT_FUNCTION, "script", None, {}, "nobody", {"script": str})}


# Requests --------------------------------------------------------------------

ANSWER_MAX_BYTES = 1 << 20              # of an HTTP request
REQUEST_SECONDS = 30.0                  # for each read of an HTTP answer
DECODINGS_MAX = 10                      # of a value in a path: servers decode once or twice


def refuse_climbing(template, arguments):
    """Fail if a value would lead out of its place in the path, however often a server decodes it.

    nginx takes "..%2Fx" for "../x", others take a backslash for a slash and leave out what follows ";".
    """
    from urllib.parse import unquote
    for part in re.split("[?#]", template)[0].split("/"):
        names = re.findall(jobqueue.PLACE, part)
        text = re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)
        for _ in range(DECODINGS_MAX):
            text = unquote(text, "latin-1")
        steps = {re.sub(r"[\x00-\x20\x7f]", "", step) for step in re.split(r"[/\\?#;]", text)}
        if names and (steps & {".", ".."} or unquote(text) != text):
            raise Fail("%s must not hold . or .. between slashes, however they are encoded: that would "
                       "lead out of its place in the address" % " and ".join(names))


def build_request(target, arguments, context):
    """The urllib Request: places filled, the other arguments as query or JSON body."""
    from urllib.parse import quote, urlencode
    from urllib.request import Request
    refuse_climbing(target["address"], arguments)
    used = set(re.findall(jobqueue.PLACE, target["address"]))
    address = re.sub(jobqueue.PLACE, lambda match: quote(as_word(arguments.get(match[1])), safe=""),
                     target["address"])
    rest = {name: value for name, value in arguments.items() if name not in used}
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


def read_answer(answer):
    """An HTTP answer's content: JSON if it says so, else text."""
    data = answer.read(ANSWER_MAX_BYTES + 1)
    if len(data) > ANSWER_MAX_BYTES // 2:
        raise Fail("the answer is larger than %d bytes" % (ANSWER_MAX_BYTES // 2))
    if "json" in answer.headers.get("Content-Type", ""):
        with contextlib.suppress(ValueError):
            return json.loads(data)
    return data.decode("utf-8", "replace") or None


def judge_status(error):
    """Raise what an HTTP error status means for the task."""
    print(error.read(4096).decode("utf-8", "replace"))
    message = "the server answered %d %s" % (error.code, error.reason)
    pause = error.headers.get("Retry-After", "")
    if error.code in (429, 503) and pause.isdigit():
        raise RetryAfter(int(pause), message)
    if error.code < 500 and error.code not in (408, 425, 429):
        raise Fail(message)
    raise CommandFailed(message)


@functools.lru_cache(maxsize=None)
def http_opener():
    """What sends requests: no proxies of the environment, no ftp: or file:, no other server."""
    import urllib.request

    class SameServer(urllib.request.HTTPRedirectHandler):
        """Follows redirects, but not to where the owner did not write: secrets go along."""
        max_redirections = 3

        def redirect_request(self, request, answer, *rest):
            following = super().redirect_request(request, answer, *rest)
            if following and (following.type, following.host) != (request.type, request.host):
                answer.close()
                raise Fail("address not allowed: the server redirected to %s://%s"
                           % (following.type, following.host))
            return following

    opener = urllib.request.OpenerDirector()
    for handler in ("HTTPHandler", "HTTPSHandler", "HTTPDefaultErrorHandler", "HTTPErrorProcessor"):
        opener.add_handler(getattr(urllib.request, handler)())
    opener.add_handler(SameServer())
    return opener


def run_request(function, arguments, context):
    """Send an HTTP request; the answer is the result. 4xx fails for good, 5xx may be retried."""
    from urllib.error import HTTPError
    request = build_request(function.target, arguments, context)
    try:
        with http_opener().open(request, timeout=REQUEST_SECONDS) as answer:
            return read_answer(answer)
    except HTTPError as error:
        with error:                     # it is the answer, too
            judge_status(error)


# Runner ----------------------------------------------------------------------

LINE_MAX_BYTES = 1 << 20                # one message between worker and runner
RESULT_MAX_DEPTH = 64
PROGRESS_SECONDS = 0.2
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024      # the unit of ru_maxrss
BATCH_MAX = 64                          # tasks in a batch
RUN_KINDS = {"command": run_command, "http_request": run_request, "script": run_script}


def watch_lifeline(end):
    """Where the kernel cannot kill us: a thread that waits for the end of file."""
    def wait():
        os.set_blocking(end, True)
        os.read(end, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)
    threading.Thread(target=wait, daemon=True).start()


def arm_lifeline(end):
    """Have the kernel kill this whole process group once the worker's end is closed."""
    import fcntl
    os.set_inheritable(end, False)
    try:
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(end, 10, signal.SIGKILL)    # F_SETSIG of Linux
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    except OSError:
        watch_lifeline(end)
    ready = select.poll()
    ready.register(end, select.POLLIN | select.POLLHUP)
    if ready.poll(0):
        os._exit(0)                     # it was closed before we were armed


def words_of(error):
    """An exception's own words, if it has any that can be shown."""
    try:
        return str(error)
    except Exception:
        return "(an error that cannot be shown)"


def is_deep(value, levels):
    """True if lists and dicts are nested deeper than `levels`: not every reader could follow."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple, set, frozenset)):
        return False
    return levels == 0 or any(is_deep(item, levels - 1) for item in value)


def write_result(result):
    """What a function returned, as JSON; ValueError that says what would be right."""
    try:
        return "null" if result is None else dump_json(result)
    except (TypeError, ValueError) as error:
        raise ValueError("it has run, but its result cannot be kept (%s): return texts, numbers, lists "
                         "or dictionaries" % error) from None


def told(error, kind):
    """An exception as an outcome: type, message, and the traceback below our own frames."""
    import traceback
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    if not text.startswith("Traceback "):
        text = "Traceback (most recent call last):\n" + text
    return {"kind": kind, "error_type": type(error).__name__,
            "error_message": storable(words_of(error))[:4000], "traceback": storable(text)[-100_000:]}


def usage():
    """(CPU seconds so far with ended children, peak memory in bytes)"""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss) * MAXRSS_BYTES


def message_line(message):
    """A message to the worker; ValueError if it is too long."""
    line = dump_json(message).encode("utf-8") + b"\n"
    if len(line) > LINE_MAX_BYTES:
        raise ValueError("a message of %d bytes is too long" % len(line))
    return line


# What a task changes in its process the next would feel. Some of it is looked at after each task,
# all of it after the last of a batch and after each that did one of CHANGES (Python's audit
# events): a look at all takes 10 us, and quick functions run 15,000 times a second.
LIMITS = [getattr(resource, "RLIMIT_" + name) for name in "FSIZE NOFILE AS CPU DATA NPROC STACK".split()
          if hasattr(resource, "RLIMIT_" + name)]
CHANGES = frozenset("resource.setrlimit resource.prlimit os.fork os.forkpty os.posix_spawn os.system "
                    "subprocess.Popen".split())
ENVIRONMENT = os.environ                # the owner's code may put another in its place
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
HANDLED = [getattr(signal, "SIG" + name) for name in
           "HUP INT QUIT ABRT ALRM TERM PIPE CHLD USR1 USR2 XCPU XFSZ VTALRM PROF".split()]
SOME_TRACES = ("a timer", "signal handlers", "blocked signals", "environment variables", "sys.path",
               "threads", "other functions of Python", "other settings of Python")
ALL_TRACES = "limits", "a child", "another priority"


def has_child():
    """True if a child of this process runs, or has ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def some_traces():
    """What SOME_TRACES says, by the modules of C, which are quicker."""
    return (list(map(_signal.getitimer, TIMERS)), list(map(_signal.getsignal, HANDLED)),
            _signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            (os.environ is ENVIRONMENT, dict(ENVIRONMENT._data)), list(sys.path), _thread._count(),
            (os.write, os.read, os.open, os.close, os.dup, os.dup2, os.getpid, os._exit, open, print,
             time.sleep, time.time, time.monotonic, json.loads, json.dumps, signal.signal),
            (sys.getrecursionlimit(), sys.gettrace(), socket.getdefaulttimeout()))


def all_traces():
    """What ALL_TRACES says."""
    return (list(map(resource.getrlimit, LIMITS)), has_child(), os.getpriority(os.PRIO_PROCESS, 0))


def lowest_free():
    """The lowest number that no descriptor has; None if there may be no more."""
    try:
        descriptor = os.dup(0)
    except OSError:
        return None
    os.close(descriptor)
    return descriptor


class Runner:
    """Runs one attempt after another as the worker hands them over; knows no database."""

    def __init__(self, channel, bell, data):
        self._channel = channel
        self._bell = bell               # rung when the worker should look at the channel
        self._data = data
        self._pid = os.getpid()
        self._lock = threading.RLock()  # of who speaks to the worker: the function may have threads
        self._claim = None              # of the attempt that is going on
        self._arrived = b""
        self._descriptors = []          # that came with what arrived
        self._go = None                 # of a batch: a byte in it for each order not begun
        self._null = os.open(os.devnull, os.O_RDWR)
        self._streams = {}              # our stdout and stderr
        self._used = None               # usage() at the end of the last attempt
        self._changed = False           # the task did one of CHANGES
        self._parameters = {}
        self._next_report = 0.0

    def run(self):
        """Announce the functions, then run what comes until the channel ends."""
        self._send({"announce": read_functions()})
        sys.addaudithook(self._heed)
        self._some, self._all, self._folder = some_traces(), all_traces(), working_folder()
        self._used = usage()
        while True:
            message = self._receive()
            if message is None:
                return 0
            self._run_in_a_row(message["orders"])

    def _heed(self, event, _):
        """Called by Python for all that it audits."""
        if event in CHANGES:
            self._changed = True

    def forget(self):
        """Close what a fork of us must not have: it may outlive us, and must not speak for us."""
        self._lock = threading.RLock()  # a thread that is not there may hold the other
        self._channel.close()
        for descriptor in (self._bell, self._go, *self._descriptors):
            if descriptor is not None:
                os.close(descriptor)

    def _run_in_a_row(self, orders):
        """Run these, but not those that the worker takes back before they begin."""
        if self._go is not None:
            os.close(self._go)
        self._go = self._descriptors.pop(0) if len(orders) > 1 else None
        for order in orders:
            log = self._descriptors.pop(0)
            if not self._may_begin():
                os.close(log)
            elif self._attempt(order, log, order is orders[0], order is orders[-1]):
                return                  # the next need a runner in which nothing was left

    def _may_begin(self):
        """Take the order's byte, unless the worker took it back."""
        return self._go is None or os.read(self._go, 1) != b""

    def _attempt(self, order, log, is_first, is_last):
        """Run it and say how it ended; what it left in this process, or None."""
        self._print_to(log)
        self._tidy()
        if is_first:
            self._free = lowest_free()
        context = TaskContext(order["id"], order["owner"], order["attempt"], order["crashes"],
                              order["claim"], self._data, self._report, self._enqueue)
        TaskContext.running = context
        self._claim, self._unsent = order["claim"], None
        before, began = self._used, time.monotonic()
        outcome = self._outcome(order, context)
        seconds, self._used = time.monotonic() - began, usage()
        TaskContext.running = None
        with self._lock:                # a thread may be adding a task
            self._claim = None
        try:
            left = self._left(is_last)
        except Exception as error:      # whatever it did to Python: its outcome must be told
            left = "what cannot be looked at: %s" % type(error).__name__
        for stream in self._streams.values():
            try:                        # suppress() takes longer than all of this
                stream.flush()
            except Exception:
                pass
        self._print_to(self._null)
        cpu_seconds, peak_memory = self._used
        outcome.update(seconds=round(seconds, 6), cpu_seconds=round(cpu_seconds - before[0], 6),
                       peak_memory=peak_memory)
        if self._unsent:
            outcome["report"] = self._unsent
        if left:
            outcome["left"] = left
        self._send_outcome(order["claim"], outcome, ring=is_last or left)
        return left

    def _left(self, is_last):
        """What a task left behind, in words; None if nothing is seen. Limits are set back."""
        some = some_traces()
        if some == self._some and not (is_last or self._changed):
            return None
        self._changed, now = False, all_traces()
        if some == self._some and now == self._all and self._free == lowest_free():
            return None
        for kind, limits in zip(LIMITS, self._all[0]):  # or even its outcome could not be told
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, limits)
        found = [name for name, one, other in zip(
            SOME_TRACES + ALL_TRACES, self._some + self._all, some + now) if one != other]
        if not found:
            gc.collect()                # nobody may have it any more
            if self._free == lowest_free():
                return None
        return ", ".join(found or ["an open file"])

    def _tidy(self):
        """Undo what the last task may have done without a trace."""
        os.chdir(self._folder)
        os.umask(0o077)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            known = self._streams.get(name)
            if known is None or known.closed:
                known = open(descriptor, "w", buffering=1, encoding="utf-8",
                             errors="backslashreplace", closefd=False)
                self._streams[name] = known
            setattr(sys, name, known)

    def _outcome(self, order, context):
        function = BUILT_IN.get(order["function"]) or declared.get(order["function"])
        if function is None or function.kind == "external":
            return {"kind": "unknown_function", "error_type": "UnknownFunction",
                    "error_message": "tasks.py does not declare %s" % order["function"]}
        try:
            result = self._call(function, json.loads(order["arguments"]), context)
            if is_deep(result, RESULT_MAX_DEPTH):
                raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
            return {"kind": "succeeded", "result": write_result(result)}
        except RetryAfter as error:
            return {**told(error, "error"), "retry_after": min(max(0.0, error.seconds), 1e9)}
        except Fail as error:
            return told(error, "fail")
        except BaseException as error:  # whatever the owner's code raises is that attempt's error
            return told(error, "error")

    def _call(self, function, arguments, context):
        if function.name not in self._parameters:
            self._parameters[function.name] = Parameters(function)
        values = self._parameters[function.name].convert(arguments)
        if function.kind != "python":
            defaults = self._parameters[function.name].defaults
            return RUN_KINDS[function.kind](function, {**defaults, **values}, context)
        return function.target(**values)

    def _send_outcome(self, claim, outcome, ring):
        try:
            self._send({"claim": claim, "outcome": outcome}, ring)
        except ValueError:
            outcome.update(kind="fail", result="null", error_type="ValueError",
                           error_message="the result is larger than %d bytes" % LINE_MAX_BYTES)
            self._send({"claim": claim, "outcome": outcome}, ring)

    def _print_to(self, descriptor):
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if descriptor != self._null:
            os.close(descriptor)

    @contextlib.contextmanager
    def _speaking(self):
        """The claim that this thread, and no other meanwhile, may speak of."""
        with self._lock:
            if self._claim is None:
                raise RuntimeError("the task has ended")
            yield self._claim

    def _report(self, progress, message):
        """Pass progress on, but not more often than anybody could see."""
        report = {"progress": progress, "message": message and storable(str(message))[:500]}
        with self._speaking() as claim:
            if time.monotonic() < self._next_report:
                self._unsent = report
                return
            self._next_report = time.monotonic() + PROGRESS_SECONDS
            self._unsent = None
            self._send({"claim": claim, "report": report})

    def _enqueue(self, requests):
        """Add tasks through the worker, in lines that are short enough, all or none."""
        parts, size = [[]], 0
        for request in requests:
            length = len(dump_json(request))
            if parts[-1] and size + length > LINE_MAX_BYTES // 4:
                parts.append([])
                size = 0
            parts[-1].append(request)
            size += length
        with self._speaking() as claim:
            lines = [message_line({"claim": claim, "enqueue": part, "more": part is not parts[-1]})
                     for part in parts]
            for line in lines:          # not before all of them can be written
                self._put(line)
            answer = self._receive()
        if answer is None:
            os._exit(1)
        if "refused" in answer:
            kind, *why = answer["refused"]
            raise getattr(jobqueue, kind)(*why)
        return answer["ids"]

    def _send(self, message, ring=True):
        self._put(message_line(message), ring)

    def _put(self, line, ring=True):
        if os.getpid() != self._pid:
            raise RuntimeError("this process is a fork of the runner; only the runner itself can report")
        self._channel.sendall(line)
        if ring and self._go is not None:
            os.write(self._bell, b".")

    def _receive(self):
        """The next message, or None once the worker is gone; descriptors are put aside."""
        while b"\n" not in self._arrived:
            data, descriptors, _, _ = socket.recv_fds(
                self._channel, 1 << 16, BATCH_MAX + 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            self._descriptors += descriptors
            if not data:
                return None
            self._arrived += data
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json.loads(line)


# Log -------------------------------------------------------------------------

PIECE_BYTES = 64 << 10


class LogPipe:
    """Our end of the pipe an attempt prints into, and what came out but is not stored yet."""

    def __init__(self, end):
        os.set_blocking(end, False)
        self.end = end
        self._decoder = None            # made when something is printed
        self._waiting = bytearray()     # not yet decoded; never more than LOG_MAX_BYTES
        self._pieces = []               # (offset, text) that are not known to be stored
        self.start = 0                  # offset of what waits

    def read(self):
        """Take what was printed since, LOG_MAX_BYTES at most; close at the end of the file."""
        for _ in range(jobqueue.LOG_MAX_BYTES // PIECE_BYTES):
            if self.end is None:
                return
            try:
                data = os.read(self.end, PIECE_BYTES)
            except BlockingIOError:
                return
            if data:
                self.add(data)
            else:
                self.close()

    def close(self):
        """Read no more; harmless twice."""
        if self.end is not None:
            os.close(self.end)
            self.end = None

    def add(self, data):
        """Take what was printed; of a flood only the latest is kept."""
        self._waiting += data
        excess = len(self._waiting) - jobqueue.LOG_MAX_BYTES
        if excess > 0 and self.start > 0:
            excess += jobqueue.LOG_MAX_BYTES // 2
            del self._waiting[:excess]
            self.start += excess

    @property
    def is_full(self):
        """True if it should be stored before more is read."""
        return len(self._waiting) >= jobqueue.LOG_MAX_BYTES and self.start == 0

    def __bool__(self):
        return bool(self._waiting or self._pieces)

    def pieces(self, final):
        """[(offset, text)] to be stored; the same again until stored() is called."""
        if final or not self._pieces:
            if self._decoder is None:
                self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
            text = self._decoder.decode(bytes(self._waiting), final)
            self._waiting.clear()
            self.put(storable(text))
        return self._pieces

    def put(self, text):
        """Add a text behind what was decoded so far."""
        for place in range(0, len(text), PIECE_BYTES):
            piece = text[place:place + PIECE_BYTES]
            self._pieces.append((self.start, piece))
            self.start += len(piece.encode("utf-8"))

    def stored(self):
        """Forget the pieces."""
        self._pieces = []


# Child -----------------------------------------------------------------------

BATCH_WAKE_SECONDS = 0.01               # how long its outcomes may lie in the channel


class Child:
    """The worker's side of its runner: pipes, life line, signals, death certificate."""

    def __init__(self, data, lock, files):
        import subprocess
        ours, theirs = socket.socketpair()
        self._bell, bell = os.pipe()
        lifeline, self._lifeline = os.pipe()
        passed = (theirs.fileno(), bell, lifeline, lock)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker", "--runner", *map(str, passed), str(data)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=passed, start_new_session=True, cwd=str(jobqueue.HOME))
        except OSError:
            ours.close()
            os.close(self._bell)
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(bell)
            os.close(lifeline)
        ours.setblocking(False)
        self._channel = ours
        self._arrived = b""
        self._leaving = b""
        self._go = None                 # of a batch: a byte in it for each order not begun
        self._log_end = None            # the one that wakes us
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        self.started = time.monotonic()
        self.ready = False
        self.ended = False              # the channel is closed or broke the rules
        self.has_straggler = False      # a task left something in it
        self.tasks = 0
        self.memory = 0                 # peak, in bytes
        self.files = files              # {path: stamp} of what it was made from
        self.owner = None               # whose tasks it has run, where each owner gets one of their own
        self.identity = self.process.pid, jobqueue.birth(self.process.pid)
        self.death = None               # (exit code or -signal, cpu seconds, peak memory)

    def hand_over(self, orders):
        """Send orders to be run one after another; returns our ends of their log pipes.

        A batch comes with a pipe that holds a byte for each. The runner takes one before it begins,
        recall() takes all that are left: so what has begun is never in doubt.
        """
        pipes = [os.pipe() for _ in orders]
        passed = [theirs for _, theirs in pipes]
        if len(orders) > 1:
            self._go, filling = os.pipe()
            os.write(filling, b"." * len(orders))
            os.close(filling)
            passed.insert(0, self._go)
        line = dump_json({"orders": orders}).encode("utf-8") + b"\n"
        try:
            self._leaving = line[socket.send_fds(self._channel, [line], passed):]
        except OSError:
            self.ended = True           # its death is noticed by whoever waits for it
        for _, theirs in pipes:
            os.close(theirs)
        self.tasks += len(orders)
        return [ours for ours, _ in pipes]

    @property
    def is_behind(self):
        """True while it has not read all that it was told: nothing more can be said then."""
        return bool(self._leaving)

    def recall(self):
        """Take back the orders that have not begun; how many."""
        if self._go is None:
            return 0
        left = len(os.read(self._go, BATCH_MAX))
        os.close(self._go)
        self._go = None
        return left

    def reply(self, message):
        """Answer the runner."""
        self._leaving += dump_json(message).encode("utf-8") + b"\n"
        self._flush()

    def watch(self, descriptor):
        """Wake up for this as well."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds, log_end=None):
        """Wait until something happens, `seconds` at most; printing into a log is something.

        While a batch runs, neither outcomes nor printing wake us: the runner rings when its last
        task has ended, or when it wants something.
        """
        if self._go is not None:
            seconds, log_end = min(seconds, BATCH_WAKE_SECONDS), None
        self._attend(log_end)
        for descriptor, _ in self._poll.poll(max(0, seconds) * 1000):
            if descriptor == self._bell:
                os.read(self._bell, 1 << 10)
            elif descriptor == self._channel.fileno() and self._leaving:
                self._flush()

    def messages(self):
        """What the runner said; anything against the rules ends it."""
        self._fill()
        *lines, self._arrived = self._arrived.split(b"\n")
        for line in lines:
            try:
                message = jobqueue.read_json(line.decode("utf-8"))
                if not isinstance(message, dict):
                    raise ValueError("not an object")
            except ValueError:
                self.ended = True
                return
            yield message

    def is_dead(self):
        """True once the runner has ended; what is left of its group is then killed."""
        if self.death is None:
            found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            self.signal(signal.SIGKILL)
            _, status, used = os.wait4(self.process.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.process.returncode = code
            self.death = (code, used.ru_utime + used.ru_stime, used.ru_maxrss * MAXRSS_BYTES)
        return True

    def is_as_new(self):
        """True while it lives and its files are as they were when it was started."""
        return not self.is_dead() and jobqueue.file_stamps(self.files) == self.files

    def signal(self, number):
        """Send a signal to the runner's whole group; only while its leader is not collected."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def end(self):
        """Kill the group and wait for the runner; everything is closed afterwards."""
        if self.death is None:
            self.signal(signal.SIGKILL)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            self.is_dead()
        self.recall()
        self._channel.close()
        if self._lifeline is not None:
            os.close(self._bell)
            os.close(self._lifeline)
            self._lifeline = None

    def _fill(self):
        """Read the channel until it has no more or a line is too long."""
        while not self.ended:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.ended = not data
            self._arrived += data
            if len(data) < 1 << 16:
                self.ended |= (len(self._arrived) > LINE_MAX_BYTES
                               and b"\n" not in self._arrived[:LINE_MAX_BYTES])
                return

    def _flush(self):
        try:
            while self._leaving:
                self._leaving = self._leaving[self._channel.send(self._leaving):]
        except BlockingIOError:
            pass
        except OSError:
            self.ended, self._leaving = True, b""

    def _attend(self, log_end):
        """Have the poll look at what matters now."""
        quiet = self._go is not None and not self._arrived
        self._poll.modify(self._channel, (0 if quiet else select.POLLIN)
                          | (select.POLLOUT if self._leaving else 0))
        if log_end != self._log_end:
            if self._log_end is not None:
                self._poll.unregister(self._log_end)
            if log_end is not None:
                self._poll.register(log_end, select.POLLIN)
            self._log_end = log_end


# Attempt and Batch -----------------------------------------------------------

GRACE_SECONDS = 5.0                     # from TERM to KILL
DYING_SECONDS = 0.5                     # from the end of the channel to that of the process
STORE_SECONDS = 1.0                     # how often log and progress reach the database
LOOK_SECONDS = 1.0                      # how often a running task's cancel flag is looked at
BATCH_AFTER = 8                         # so many quick ends of a function make batches of it
BATCH_SECONDS = 0.05                    # how late an outcome of a batch may be recorded
SAID_KINDS = ("succeeded", "error", "fail", "unknown_function")


def is_report(report):
    """True for progress as a runner tells it; the owner's code can write to its channel too."""
    if not isinstance(report, dict):
        return report is None
    progress, message = report.get("progress"), report.get("message")
    return ((progress is None or isinstance(progress, (int, float)) and 0 <= progress <= 1)
            and isinstance(message, (str, type(None))) and report.keys() == {"progress", "message"})


def is_text(value):
    """True for texts."""
    return isinstance(value, str)


def is_result(text):
    """True for JSON text that everybody can read."""
    if text == "null":
        return True
    try:
        return not is_deep(jobqueue.read_json(text), RESULT_MAX_DEPTH)
    except (ValueError, TypeError, RecursionError):
        return False


# What an outcome as a runner tells it may hold: Outcome's arguments, and three more.
SAID = {"kind": SAID_KINDS.__contains__, "result": is_result,
        "error_type": is_text, "error_message": is_text, "retry_after": jobqueue.is_number,
        "seconds": jobqueue.is_number, "cpu_seconds": jobqueue.is_number,
        "peak_memory": jobqueue.is_number, "traceback": is_text, "report": is_report,
        "left": is_text}


def is_outcome(said):
    """True for an outcome as a runner tells it."""
    return (isinstance(said, dict) and "kind" in said
            and all(name in SAID and SAID[name](value) for name, value in said.items()))


PUT_OFF = jobqueue.StorageFull, jobqueue.Busy


def put_off():
    """For what can be done later as well: a full disk or a busy database is no reason to end."""
    return contextlib.suppress(*PUT_OFF)


class Attempt:
    """An attempt in the runner's hands: watched, kept alive, and ended when it must be."""

    def __init__(self, queue, child, row):
        self._queue = queue
        self._database = queue.database
        self._clock = queue.database.clock
        self._child = child
        self.row = row
        self._id, self._claim = row["id"], row["claim"]
        self._started = self._renewed = self._stored = self._looked = self._clock.monotonic()
        self._seen_version = None
        self._safe, self._is_doubted = self._renewed, False     # when nobody was about to take it
        self.log = None                 # the LogPipe, once it was handed over
        self._report = None             # progress not stored yet
        self._said = None               # the Outcome in the runner's words
        self.left = None                # what it left in the runner
        self._trace = None
        self._requests = []             # tasks it is adding, until the last part came
        self.ending = None              # kind of outcome if we end it
        self._why = None
        self._killed_at = None
        self._broken = None             # since when its channel is closed

    def order(self):
        """What the runner is told, None if the claim was lost; what must be stored before is."""
        row = self.row
        if row["on_crash"] == "fail":   # it must be known to have begun even after a power cut
            with self._database.transaction(durable=True) as transaction:
                if not self.renew(transaction):
                    return None
        return {"id": self._id, "owner": row["owner"], "attempt": row["attempts"] - row["put_backs"],
                "crashes": row["crashes"], "claim": self._claim, "function": row["function"],
                "arguments": row["arguments"]}

    def is_next(self, now):
        """Its time begins: it was handed over, or the one before it in the batch has ended."""
        self._started = now

    def end(self, kind, why=None):
        """Have it ended, for the first reason that comes."""
        if self.ending is None:
            self.ending, self._why = kind, why

    @property
    def has_spoken(self):
        """True once the runner has said how it ended."""
        return self._said is not None

    def take(self, message):
        """Take what the runner says of it; False if that is against the rules."""
        if message.get("claim") != self._claim or self._said is not None:
            return False
        if is_outcome(message.get("outcome")):
            said = message["outcome"]
            self._report = said.pop("report", self._report)
            self._trace = said.pop("traceback", None)
            self.left = said.pop("left", None)
            self._said = Outcome(**said)
        elif "report" in message and is_report(message["report"]):
            self._report = message["report"]
        elif isinstance(message.get("enqueue"), list):
            self._add_tasks(message)
        else:
            return False
        return True

    def look(self):
        """The Outcome if it has ended; else what it printed is read and it is kept alive."""
        self.log.read()
        outcome = self._outcome() if self._said or self._child.ended or self.ending else None
        if outcome is None:
            self._keep(self._clock.monotonic())
        return outcome

    def close(self):
        """Read no more of what it prints; True if something still could."""
        is_open = self.log.end is not None
        self.log.close()
        return is_open

    def write_ending(self, transaction):
        """Store what is left of log and progress, and the traceback as the log's last piece."""
        if not (self.log or self._report or self._trace):
            return
        if self._queue.claims.cancel_asked(self._id, self._claim) is None:
            return
        if self._trace:
            self.log.pieces(final=True)
            self.log.put(self._trace)
            self._trace = None
        self._write(transaction, final=True)

    def forget_what_it_said(self):
        """Drop what was stored, or cannot be."""
        self.log.stored()
        self._trace = self._report = None

    def patience(self):
        """How many seconds it can be left alone."""
        if self.ending:
            return 0.05
        limit = self._started + self.row["timeout"] - self._clock.monotonic()
        return max(0.0, min(LOOK_SECONDS, limit))

    def _add_tasks(self, message):
        """Add what the function enqueues, at once and for the same owner."""
        self._requests += message["enqueue"]
        if message.get("more"):
            return
        requests, self._requests = self._requests, []
        try:
            self._child.reply({"ids": self._queue.add(requests, self.row["owner_id"])})
        except JobQueueError as error:
            kind = type(error).__name__
            self._child.reply({"refused": [kind, error.detail, error.errors, error.retry_after]})

    def _keep(self, now):
        """Renew, store what was printed, see whether it is to be ended."""
        if now - self._started > self.row["timeout"]:
            self.end("timeout", "ran longer than %g s" % self.row["timeout"])
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            with put_off():
                self._look_for_cancel()
                self._safe = self._safe if self._is_doubted else now
        if now - self._safe > jobqueue.SELF_FENCE_SECONDS - 2 * jobqueue.RENEW_SECONDS:
            self.end("lost")
        due = now - self._stored > STORE_SECONDS and (self.log or self._report)
        if now - self._renewed > jobqueue.RENEW_SECONDS or due or self.log.is_full:
            self._store(now)
        if self.ending:
            self._kill(now)

    def _look_for_cancel(self):
        version = self._database.version_seen()
        if version == self._seen_version:
            return
        self._seen_version = version
        asked = self._queue.claims.cancel_asked(self._id, self._claim)
        if asked is None:
            self.end("lost")
        elif asked:
            self.end("cancelled", "cancelled while it ran")
        self._is_doubted = self._queue.claims.is_doubted(self._id, self._claim)

    def _store(self, now):
        """Renew the claim and store log and progress, all under the fence."""
        self._stored = now
        with put_off():
            if not self._renew_and_write():
                self.end("lost")
                return
            self._renewed = now
            self.log.stored()
            self._report = None

    def renew(self, transaction):
        """Hold the claim for another lease; False if it was lost."""
        return self._queue.claims.renew(transaction, self._id, self._claim, self._clock.now())

    def _renew_and_write(self):
        with self._database.transaction(durable=False) as transaction:
            held = self.renew(transaction)
            if held:
                self._write(transaction)
            return held

    def _write(self, transaction, final=False):
        for start, text in self.log.pieces(final):
            Logs.append(transaction, self._id, self.row["attempts"], start, text)
        if self._report:
            self._queue.claims.report(transaction, self._id, self._claim,
                                      self._report["progress"], self._report["message"])

    def _kill(self, now):
        if self._killed_at is None:
            self._killed_at = now
            self._child.signal(signal.SIGKILL if self.ending == "lost" else signal.SIGTERM)
        elif now - self._killed_at > GRACE_SECONDS:
            self._child.signal(signal.SIGKILL)

    def _outcome(self):
        """The Outcome if it has ended: what the runner said, else how the runner died."""
        if self._said is not None and self.ending != "lost":
            self._child.memory = self._said.peak_memory or 0
            return self._said
        if self._child.death is None:
            if self._child.ended and self.ending is None:
                self._await_death()
            return None
        self.log.read()
        return self._outcome_of_death()

    def _await_death(self):
        """The channel is closed: the runner is dying, or it broke the rules and must be ended."""
        now = self._clock.monotonic()
        self._broken = self._broken or now
        if now - self._broken > DYING_SECONDS:
            self.end("crashed", "the process that ran it broke off")
        self._clock.sleep(0.01)

    def _outcome_of_death(self):
        code, cpu, memory = self._child.death
        kind = self.ending or "crashed"
        died = "signal %d" % -code if code < 0 else "exit code %d" % code
        message = self._why or "the process that ran it ended with %s" % died
        types = {"timeout": "Timeout", "crashed": "Crashed", "interrupted": "Interrupted"}
        return Outcome(kind, None, types.get(kind), message if kind in types else None, None,
                       self._clock.monotonic() - self._started, cpu, memory)


class Batch:
    """What the runner has in hand: one attempt, or several quick ones that it runs in a row."""

    def __init__(self, queue, child, rows):
        self._clock = queue.database.clock
        self._child = child
        self.running = [Attempt(queue, child, row) for row in rows]     # the first has begun
        self.unbegun = []               # attempts that were taken back
        self.ended = []                 # (attempt, outcome) that are not recorded yet
        self.record_by = math.inf

    def begin(self):
        """Hand all of it over; take it back if what must be stored before cannot be."""
        try:
            orders = [attempt.order() for attempt in self.running]
        except PUT_OFF:
            self.running, self.unbegun = [], self.running
            return
        if None in orders:              # it is alone then: others have it
            self.running = []
            return
        for attempt, end in zip(self.running, self._child.hand_over(orders)):
            attempt.log = LogPipe(end)
        now = self._clock.monotonic()
        self.running[0].is_next(now)
        if len(orders) > 1:
            self.record_by = now + BATCH_SECONDS

    def watch(self):
        """Wait for the runner, take what it says, keep alive what it runs."""
        first = self.running[0]
        due = self.record_by - self._clock.monotonic()
        self._child.wait(min(due, first.patience()), first.log.end)
        if self._child.ended or first.ending:
            self._child.is_dead()       # asked before we read: an outcome that came first wins
        self._take_messages()
        if self.running and (self._child.ended or self.running[0].ending):
            self.take_back()
        if self.running:
            self._look_at(self.running[0])

    def take_back(self):
        """Take back what the runner has not begun."""
        kept = len(self.running) - self._child.recall()
        for attempt in self.running[kept:]:
            attempt.close()
        self.unbegun += self.running[kept:]
        del self.running[kept:]

    def interrupt(self):
        """Have the attempt that runs ended, because we must leave."""
        for attempt in self.running[:1]:
            attempt.end("interrupted", "the worker was stopped")

    def hand_in(self):
        """(ended, unbegun), to be recorded by who takes them."""
        taken = self.ended, self.unbegun
        self.ended, self.unbegun, self.record_by = [], [], math.inf
        return taken

    def is_late(self):
        """True if what has ended cannot wait for the rest any more."""
        return self._clock.monotonic() > self.record_by

    def _take_messages(self):
        for message in self._child.messages():
            if not self.running or not self.running[0].take(message):
                self._child.ended = True
                return
            if self.running[0].has_spoken:
                self._look_at(self.running[0])

    def _look_at(self, attempt):
        """Go on to the next once the first has ended."""
        outcome = attempt.look()
        if outcome is None:
            return
        self.running.pop(0)
        self._child.has_straggler |= attempt.close() or attempt.left is not None
        self.ended.append((attempt, outcome))
        if self._child.has_straggler:
            self.take_back()
        now = self._clock.monotonic()
        self.record_by = min(self.record_by, now + BATCH_SECONDS)
        if self.running:
            self.running[0].is_next(now)


def largest_batch():
    """How many tasks a batch may hold here: each needs two descriptors while it is handed over."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return BATCH_MAX if limit == resource.RLIM_INFINITY else max(1, min(BATCH_MAX, limit // 4 - 16))


class Pace:
    """How many tasks may be claimed at once: several of a function that keeps ending quickly."""

    def __init__(self):
        self._most = largest_batch()
        self._begin_again(None)

    def note(self, function, outcome):
        """Learn from an attempt that has ended."""
        seconds = outcome.seconds or 0
        if outcome.kind != "succeeded" or seconds > BATCH_SECONDS:
            self._begin_again(None)
        elif function != self.function:
            self._begin_again(function)
        self._count += 1
        self._seconds += (seconds - self._seconds) / 8
        if self._count > BATCH_AFTER:
            room = int(BATCH_SECONDS / 2 / max(self._seconds, 1e-4))
            self.size = max(1, min(self.size + 1, self._most, room))

    def slow_down(self):
        """A batch was late: half as many the next time."""
        self.size = max(1, self.size // 2)

    def _begin_again(self, function):
        self.function, self._count, self._seconds, self.size = function, 0, 0.0, 1


# Worker ----------------------------------------------------------------------

RUNNER_START_SECONDS = 120.0            # big imports
LAST_BATCHES = 32                       # of a runner: meanwhile the next one starts
BROKEN_RETRY_SECONDS = 60.0
CHECK_SECONDS = 1.0                     # how often a worker asks itself whether to leave
WORKER_SETTINGS = ("NbMaxWorker", "linger", "linger_due", "stay_asleep", "worker_seconds",
                   "runner_tasks", "runner_memory", "runner_per_owner")     # read once in CHECK_SECONDS
PLACE_SECONDS = 2.0                     # how often a service asks for a place
HAND_OVER_SECONDS = (0, 2, 5, 15)       # from try to try to start the next worker
IDLE_POLL_SECONDS = (0.003, 0.1)        # from just now to a while ago
IDLE_POLL_ROLLBACK_SECONDS = 1.0
ASLEEP_AFTER_SECONDS = 30.0             # without work; it wakes up more seldom then
ASLEEP_POLL_SECONDS = 0.5
FULL_DISK_SECONDS = 0.2


class Worker:
    """Claims, hands over, waits, records; one thread, one runner."""

    def __init__(self, queue, mode, verbose=False, seconds=None):
        self._queue = queue
        self._database = queue.database
        self._clock = queue.database.clock
        self._mode = mode
        self._verbose = verbose
        now = self._clock.monotonic()
        self._until = None if seconds is None else now + seconds
        self._born = self._last_work = now
        self._child = None
        self._next_child = None         # started ahead
        self._prepared_for = None       # the one that it will follow
        self._batch = None              # in the runner's hands
        self._pace = Pace()
        self._stopping = None           # why it will leave
        self._signals = 0
        self._stopped_at = None
        self._tasks = 0
        self._state = "idle"
        self._seen_version = None
        self._next_due = None
        self._checks = Every(CHECK_SECONDS, self._clock)
        self._stamps = Every(CHECK_SECONDS, self._clock)
        self._heartbeats = Every(jobqueue.RENEW_SECONDS, self._clock)
        self._read_settings()
        self._code = jobqueue.file_stamps(jobqueue.CODE_FILES)
        self._wake_end, self._waker = socket.socketpair()

    def run(self, row=None, lock=None):
        """Work until there is a reason to leave; returns the exit code."""
        if not self._take_place(row, lock):
            return 0
        try:
            self._catch_signals()
            self._start_runner()
            while not self._goes():
                pass
        finally:
            self._say("leaves: %s" % self._stopping)
            for child in filter(None, (self._child, self._next_child)):
                child.end()
        self._leave_for_good()
        return 0

    # Arriving and leaving

    def _take_place(self, row, lock):
        """True once we are here; a service waits until there is a place, whoever keeps it alive."""
        if row is not None and self._arrive(row, lock):
            return True
        while True:
            with self._database.transaction(durable=False) as transaction:
                made = self._queue.workers.reserve(transaction, self._mode)
            if made or self._mode != "service":
                return bool(made) and self._arrive(*made[0])
            self._queue.tick.maybe("worker")
            self._clock.sleep(PLACE_SECONDS)

    def _arrive(self, row, lock):
        path = self._queue.workers.locks / lock
        handle, proven = jobqueue.take_lock(path)
        if self._queue.workers.arrive(row, lock, proven, os.getpid()):
            self._id, self._lock_name, self._lock = row, lock, handle
            self._say("worker %d is here" % row)
            return True
        self._queue.workers.remove_lock(lock, handle)
        return False

    def _catch_signals(self):
        self._wake_end.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, _):
        self._signals += 1

    def was_told_to_stop(self):
        """True if a signal ended it; from now on one ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        return self._signals > 0

    def _has_left(self):
        """True once the row is gone because there is a reason to go and nothing is running."""
        if self._batch:
            return False
        if self._stopping:
            return True
        return self._is_idle_for_good() and self._left_nothing_behind()

    def _is_idle_for_good(self):
        if self._mode == "service":
            return False
        if self._until is not None:
            looked = self._child.ready and self._next_due is not None
            return looked and not self._has_work_soon()
        if self._clock.monotonic() - self._last_work < self._settings["linger"]:
            return False
        return not self._has_work_soon()

    def _has_work_soon(self):
        """True if what becomes claimable soon is worth waiting for."""
        alone = self._queue.workers.idles_alone(self._id)
        if self._mode == "slice":       # somebody waits for its end: what is there now, but for its rate
            due = self._queue.claims.rate_opens()
        else:
            due = self._queue.tick.next_work(alone)
        if alone and self._until is None and self._settings["stay_asleep"] == "yes":
            return due is not None
        patience = self._settings["linger_due"]
        if self._until is not None:
            patience = self._until - self._clock.monotonic()
        return due is not None and due <= self._clock.now() + patience

    def _left_nothing_behind(self):
        """Leave in one transaction that finds nothing to claim, so that no add counts on us."""
        with self._database.transaction(durable=False) as transaction:
            more = Followers.settle(transaction, self._clock.now())
            self._queue.claims.promote(transaction, self._clock.now())
            if more or self._queue.claims.claimable(1) or self._has_work_soon():
                self._seen_version = None
                return False
            self._queue.workers.leave(transaction, self._id, "idle", self._tasks)
        self._stopping = "idle"
        return True

    def _leave_for_good(self):
        """Remove row and lock; after an error others find the lock free instead."""
        with self._database.transaction(durable=False) as transaction:
            self._queue.workers.leave(transaction, self._id, self._stopping, self._tasks)
        self._queue.workers.remove_lock(self._lock_name, self._lock)
        if self._mode == "detached" and self._stopping == "limit":
            self._hand_over(int(self._has_work_soon()))

    def _hand_over(self, least):
        """Start who goes on; where one must be here until something is due, a host is asked again."""
        for pause in HAND_OVER_SECONDS:
            self._clock.sleep(pause)
            self._queue.workers.start_needed(least)
            if not least or self._queue.workers.are_there():
                return

    # The loop

    def _goes(self):
        """One round, True if it was the last; while nobody can write the next one comes later."""
        try:
            self._heed_signals()
            if self._has_left():
                return True
            self._step()
        except PUT_OFF:
            if self._signals > 1:
                raise
            self._clock.sleep(FULL_DISK_SECONDS)
        return False

    def _step(self):
        """Keep what must be kept alive, then wait for the runner or look for work.

        Nothing waits so long for a busy database that an attempt could lose its claim meanwhile.
        """
        with self._database.deadline():
            self._check_self()
            if self._batch and self._batch.running:
                self._batch.watch()
        if self._batch:
            self._go_on()
        elif not self._child.ready:
            self._await_runner()
        elif not self._claim_next():
            self._rest()

    def _heed_signals(self):
        """Asked to stop: let the running task end for a moment, at the second signal end it."""
        if not self._signals:
            return
        with contextlib.suppress(BlockingIOError):
            self._waker.recv(100)
        now = self._clock.monotonic()
        self._stopping = self._stopping or jobqueue.STOPPED
        self._stopped_at = self._stopped_at or now
        if self._batch:
            self._batch.take_back()
            if now - self._stopped_at > GRACE_SECONDS or self._signals > 1:
                self._batch.interrupt()

    def _check_self(self):
        """Once a second: tick, say that we live, see whether there is a reason to leave."""
        if not self._checks.is_due():
            return
        now = self._clock.monotonic()
        self._queue.tick.maybe("worker")
        if self._heartbeats.is_due():
            self._say_state(self._state)
        if not self._stopping:
            self._stopping = self._reason_to_leave(now)

    def _read_settings(self):
        self._settings = {name: self._queue.settings.get(name) for name in WORKER_SETTINGS}

    def _reason_to_leave(self, now):
        self._read_settings()
        if self._until is not None and now > self._until:
            return "limit"
        if now - self._born > self._settings["worker_seconds"] and self._mode != "service":
            return "limit"
        if jobqueue.file_stamps(self._code) != self._code:
            return "limit"
        if self._queue.workers.place(self._id) > self._settings["NbMaxWorker"]:
            return "too many workers"
        return None

    def _say_state(self, state):
        with put_off(), self._database.transaction(durable=False) as transaction:
            self._set_state(transaction, state)

    def _set_state(self, transaction, state):
        self._state = state
        runner = self._child.identity if self._child else (None, None)
        if not self._queue.workers.say(transaction, self._id, state, self._tasks, runner):
            self._stopping = self._stopping or "its row is gone"

    # Looking for work

    def _claim_next(self):
        """Claim a task if there may be one; True if one is running now."""
        version = self._database.version_seen()
        now = self._clock.now()
        if version == self._seen_version and now < self._next_due:
            return False
        self._seen_version = version
        claims = self._queue.claims
        self._next_due = min(claims.next_due() or math.inf,
                             claims.rate_opens() or math.inf)
        if self._next_due > now and not claims.claimable(1):
            return False
        if self._runner_is_stale():
            self._start_runner()
            return True
        rows = self._claim()
        self._begin(rows)
        if not rows and self._child.owner is not None:      # it may be another owner's turn
            self._start_runner()
        return bool(rows)

    def _claim(self):
        """What is claimed for good: rows of a transaction whose end failed are not ours."""
        with put_off():
            with self._database.transaction(durable=False) as transaction:
                rows = self._queue.claims.claim(transaction, self._id, self._clock.now(),
                                                owner_id=self._child.owner)
                if rows:
                    self._set_state(transaction, "busy")
            return rows
        self._seen_version = None       # look again, though nothing changes
        return []

    def _rest(self):
        """Wait a little before looking again: briefly at first, longer later."""
        idle = self._clock.monotonic() - self._last_work
        least, most = IDLE_POLL_SECONDS
        pause = least if idle < 1 else min(most, least * idle ** 2)
        if idle > ASLEEP_AFTER_SECONDS:
            pause = ASLEEP_POLL_SECONDS
        if self._database.journal != "wal":
            pause = IDLE_POLL_ROLLBACK_SECONDS
        if self._next_child:            # there is time enough to start one when it is needed
            self._next_child.end()
            self._next_child = None
        due = self._next_due - self._clock.now()
        self._child.wait(min(pause, due) if due > 0 else pause)
        for _ in self._child.messages():
            self._child.ended = True    # it has no business to speak now
        if self._child.ended or self._child.is_dead():
            self._start_runner()

    # The runner

    def _start_runner(self):
        """A fresh runner; if the host refuses one, say so and leave."""
        if self._child:
            self._child.end()
        self._child, self._next_child = self._next_child, None
        if self._child and self._child.is_as_new():
            return
        if self._child:
            self._child.end()
        try:
            self._child = self._new_runner(self._queue.catalogue.files())
        except OSError as error:
            self._child = None
            self._stopping = "no runner could be started"
            with self._database.transaction(durable=False) as transaction:
                self._queue.workers.start_failed(transaction, jobqueue.explain_start_error(error))

    def _new_runner(self, files):
        stamps = jobqueue.file_stamps(files)    # as they are before it begins to read them
        child = Child(self._database.folder, self._lock, stamps)
        child.watch(self._waker.fileno())
        return child

    def _prepare_runner(self):
        """Start the next runner while this one is at its last batches, so that none waits for it.

        A host that refuses a process more is not asked again before one is needed.
        """
        child, size = self._child, self._pace.size
        left = self._settings["runner_tasks"] - child.tasks
        if child is self._prepared_for or size == 1 or left > LAST_BATCHES * size:
            return
        self._prepared_for = child
        with contextlib.suppress(OSError):
            self._next_child = self._new_runner(child.files)

    def _await_runner(self):
        """Claim nothing before the runner has said what it can run."""
        self._child.wait(0.2)
        for message in self._child.messages():
            if "announce" in message:
                self._take_announcement(message["announce"])
                return
        if self._child.ended or self._child.is_dead():
            self._runner_failed("the process that runs the functions ended at its start")
        elif self._clock.monotonic() - self._child.started > RUNNER_START_SECONDS:
            self._runner_failed("importing tasks.py took longer than %d s" % RUNNER_START_SECONDS)

    def _take_announcement(self, announcement):
        self._keep_announcement(announcement)
        if announcement.get("error"):
            self._wait_for_better_code()
        else:
            self._child.ready = True
            self._seen_version, self._next_due = None, self._clock.now()

    def _runner_failed(self, message):
        self._keep_announcement({"error": {"message": message, "file": "tasks.py", "line": None}})
        self._wait_for_better_code()

    def _keep_announcement(self, announcement):
        while not self._signals:
            with put_off():
                self._child.files = self._queue.catalogue.store(announcement, self._child.files)
                return
            self._clock.sleep(FULL_DISK_SECONDS)

    def _wait_for_better_code(self):
        """tasks.py cannot be read: try again when it changes, or after a while."""
        files, until = self._child.files, self._clock.monotonic() + BROKEN_RETRY_SECONDS
        self._child.end()
        while (self._clock.monotonic() < until and jobqueue.file_stamps(files) == files
               and not self._stopping and not self._signals):
            with put_off():
                if self._is_idle_for_good() and self._left_nothing_behind():
                    return
                self._check_self()
            self._clock.sleep(0.5)
        self._heed_signals()
        if not self._stopping:
            self._start_runner()

    def _runner_is_stale(self):
        """True if the next task should get a fresh runner."""
        child, settings = self._child, self._settings
        if child.tasks >= settings["runner_tasks"] or child.ended or child.has_straggler:
            return True
        if child.is_behind or child.memory > settings["runner_memory"] << 20:
            return True
        # This one always, all others now and then.
        files = child.files if self._stamps.is_due() else [jobqueue.TASKS_FILE]
        return any(child.files.get(name) != stamp
                   for name, stamp in jobqueue.file_stamps(files).items())

    # Running and recording

    def _begin(self, rows):
        """Hand claimed tasks over to the runner."""
        self._batch = Batch(self._queue, self._child, rows) if rows else None
        if rows:
            self._say("begins %s: %s" % (rows[0]["function"], " ".join(str(row["id"]) for row in rows)))
            if self._settings["runner_per_owner"] == "yes":
                self._child.owner = rows[0]["owner_id"]
            with self._database.deadline():
                self._batch.begin()

    def _go_on(self):
        """Record what has ended, if it is time."""
        if not self._batch.running:
            self._finish()
        elif self._batch.is_late():
            self._batch.take_back()
            self._settle(None)
            self._pace.slow_down()

    def _finish(self):
        """Record what has ended and claim the next if the runner is still good."""
        self._child.recall()
        fresh = self._child.death is not None or self._runner_is_stale()
        rows = self._settle(None if fresh or self._stopping else self._pace)
        self._batch = None
        if fresh and not self._stopping:
            self._start_runner()
        self._begin(rows)
        if rows:
            self._prepare_runner()

    def _settle(self, pace):
        """Record what has ended, put back what has not begun, claim what the pace allows."""
        ended, unbegun = self._batch.hand_in()
        self._count(ended)
        ended = [(attempt, outcome) for attempt, outcome in ended if outcome.kind != "lost"]
        try:
            return self._record_patiently(ended, unbegun, pace)
        except PUT_OFF:
            raise
        except Exception as error:      # whatever it is about: each alone must still be tried
            self._say("recording: %s" % error)
        for attempt, outcome in ended:
            self._record_alone(attempt, outcome)
        return self._record_patiently([], unbegun)

    def _count(self, ended):
        self._tasks += len(ended)
        self._last_work = self._clock.monotonic()
        for attempt, outcome in ended:
            self._pace.note(attempt.row["function"], outcome)
            if self._verbose:
                left = ", left behind: %s" % attempt.left if attempt.left else ""
                self._say("task %d: %s%s" % (attempt.row["id"], outcome.kind, left))

    def _record_alone(self, attempt, outcome):
        """Record one outcome, or that it could not be stored."""
        try:
            self._record_patiently([(attempt, outcome)], [])
        except PUT_OFF:
            raise
        except Exception as error:
            attempt.forget_what_it_said()
            outcome = Outcome("fail", error_type="StorageError",
                              error_message="its outcome could not be stored: %s" % error)
            self._record_patiently([(attempt, outcome)], [])

    def _record_patiently(self, ended, unbegun, pace=None):
        """Record; while nobody can write, or there is no room for it, again and again.

        Meanwhile the claims are renewed as soon as that is possible, and what still runs is watched.
        """
        while True:
            try:
                with self._database.deadline():
                    return self._record(ended, unbegun, pace)
            except PUT_OFF:
                if self._signals > 1:
                    raise
            with self._database.deadline():
                for attempt in self._batch.running:
                    attempt.look()
                self._hold([*unbegun, *(attempt for attempt, _ in ended)])
            self._clock.sleep(FULL_DISK_SECONDS)

    def _hold(self, attempts):
        """Renew their claims, and say that we live."""
        with put_off(), self._database.transaction(durable=False) as transaction:
            for attempt in attempts:
                attempt.renew(transaction)
            self._set_state(transaction, self._state)

    def _record(self, ended, unbegun, pace):
        """One transaction for all of it; returns the rows that were claimed."""
        claims, rows = self._queue.claims, []
        with self._database.transaction(durable=False) as transaction:
            now = self._clock.now()
            endings = [(attempt.row, Outcome("put_back")) for attempt in unbegun]
            for attempt, outcome in ended:
                attempt.write_ending(transaction)
                endings.append((attempt.row, outcome))
            verdicts = claims.end_all(transaction, [
                (row["id"], row["claim"], outcome) for row, outcome in endings], now)
            if pace:
                rows = claims.claim(transaction, self._id, now, pace.size, pace.function,
                                    self._child.owner)
            if not rows and not self._batch.running:
                self._set_state(transaction, "idle" if not self._stopping else "stopping")
        self._seen_version = None
        for (row, _), verdict in zip(endings, verdicts):
            if verdict and verdict.removed:
                jobqueue.remove_task_folder(self._database.folder, row["id"])
        return rows

    def _say(self, text):
        if self._verbose:
            print("%s %s" % (jobqueue.iso(self._clock.now()), text), file=sys.stderr, flush=True)


# Entry -----------------------------------------------------------------------

CRON_SECONDS = 50.0
WORKER_PATIENCE_SECONDS = 45.0          # less than the self-fence


def run_runner(channel, bell, lifeline, lock, data):
    """The child's process: armed, then obedient."""
    arm_lifeline(int(lifeline))
    for descriptor in (channel, bell, lock):
        os.set_inheritable(int(descriptor), False)
    runner = Runner(socket.socket(fileno=int(channel)), int(bell), data)

    def forget():
        """A fork may outlive us: it must not look like us either."""
        runner.forget()
        os.close(int(lock))

    os.register_at_fork(after_in_child=forget)
    return runner.run()


def print_catalogue():
    """Announce the functions on standard output, whatever tasks.py itself prints."""
    out = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    announcement = dump_json(read_functions()).encode("utf-8")
    with open(out, "wb") as file:
        file.write(announcement)
    return 0


def be_nice(queue):
    """Give way to other processes as the setting says."""
    with contextlib.suppress(OSError):
        os.nice(max(0, queue.settings.get("nice") - os.getpriority(os.PRIO_PROCESS, 0)))


def begin_again():
    """Become a fresh process in the place of this one, which a host would perhaps not replace."""
    time.sleep(CHECK_SECONDS)
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])


def work(mode, data=None, seconds=None, verbose=False, row=None, lock=None):
    """A worker process: detached, for cron, within a request (slice), or as a service."""
    if row is not None:
        jobqueue.find_database(jobqueue.data_folder(data))  # no new one is made
    queue = JobQueue(data, patience=WORKER_PATIENCE_SECONDS)
    be_nice(queue)
    if mode == "cron":
        queue.catalogue.refresh()
        queue.tick.force("cron", start=False)   # the dead must not keep us from a place
        due = queue.tick.next_work()
        if not queue.claims.claimable(1) and (
                due is None or due > queue.database.clock.now() + seconds):
            queue.workers.start_needed(queue.tick.sleepers_missing())
            return 0
    worker = Worker(queue, mode, verbose, seconds)
    code = worker.run(row, lock)
    if mode == "service" and not worker.was_told_to_stop():
        begin_again()
    return code


def live(token, data):
    """A test worker: says that it is here, that it still is after the time it has to live, and that it
    outlived who started it as soon as that is so."""
    jobqueue.find_database(data)
    queue = JobQueue(data, patience=WORKER_PATIENCE_SECONDS)
    be_nice(queue)
    began, ended = time.monotonic(), []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU):
        signal.signal(number, lambda number, _: ended.append(signal.Signals(number).name))
    test = jobqueue.note_worker_test(queue, token, arrived={
        "at": queue.database.clock.now(), "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "python": jobqueue.PYTHON_VERSION, "sqlite": sqlite3.sqlite_version})
    if test is None:
        return 1
    lived, orphan_since = False, None
    while not ended:
        age = time.monotonic() - began
        if orphan_since is None and os.getppid() != test["starter"]:
            orphan_since = age
        alone = orphan_since is not None and age >= orphan_since + jobqueue.TEST_ALONE_SECONDS
        if age >= jobqueue.TEST_SECONDS and (alone or not lived):
            lived = jobqueue.note_worker_test(queue, token, alone=alone)
        if lived and alone or age >= 2 * jobqueue.TEST_SECONDS:
            return 0
        time.sleep(0.1)
    jobqueue.note_worker_test(queue, token, signal=ended[0], after=time.monotonic() - began)
    return 1


def worker_parser():
    """The parser of the options that people use."""
    import argparse
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Works on the tasks of jobqueue.", allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="data folder (default: data beside jobqueue.py)")
    parser.add_argument("--service", action="store_true", help="never end by itself")
    parser.add_argument("--seconds", type=float, default=CRON_SECONDS, metavar="S",
                        help="without --service: work for at most S seconds (50)")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    return parser


def be_told(arguments):
    """Be what the arguments say: a runner, a catalogue, a test or one kind of worker; the exit code."""
    if arguments[:1] == ["--runner"]:
        return run_runner(*arguments[1:])
    if arguments[:1] == ["--catalogue"]:
        return print_catalogue()
    if arguments[:1] == ["--test"]:
        return live(*arguments[1:])
    if arguments[:1] in (["--detached"], ["--slice"]):
        mode, row, lock, data, *seconds = arguments
        return work(mode[2:], data, *map(float, seconds), row=int(row), lock=lock)
    options = worker_parser().parse_args(arguments)
    if options.service:
        return work("service", options.data, verbose=options.verbose)
    return work("cron", options.data, options.seconds, options.verbose)


def main():
    """A process of its own; returns its exit code."""
    if "GATEWAY_INTERFACE" in os.environ:   # a web server takes this for a CGI script, a query for arguments
        print("Status: 403 Forbidden\nContent-Type: text/plain\n\nThis is no page.")
        return 2
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o077)
    try:
        return be_told(sys.argv[1:])
    except JobQueueError as error:
        jobqueue.complain(error.detail)
        return error.exit_code
    except (OSError, MemoryError) as error:
        jobqueue.complain("%s: %s" % (type(error).__name__, error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
