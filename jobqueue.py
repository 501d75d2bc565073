#!/usr/bin/env python3
# Built from src/ by src/build.py: edit there.
# mypy: ignore-errors
"""jobqueue: background jobs for a web site on a cheap shared host.

Copy jobqueue.py, worker.py and static/ to the host, then

    python3 jobqueue.py                       serve the page and print a link for the first admin
    python3 jobqueue.py add FUNCTION a=1      add a task from a shell or from cron
    python3 jobqueue.py --help                everything else

The functions that tasks run are declared in tasks.py beside this file, or at the path in JOBQUEUE_TASKS.
Adding a task starts a detached worker.py process if fewer than NbMaxWorker run. Workers end when they are
idle.

Contents (each room uses only the rooms above it)
    base/types.py                  NamedTuple and Generic without typing; types that travel between rooms.
    base/limits.py                 Paths, statuses, limits and times that several rooms share.
    base/errors.py                 Errors: one base class; each knows its HTTP status and exit code.
    base/time_and_text.py          The clock, RFC 3339, JSON, tokens, processes.
    base/plain_values.py           Values of users' code as JSON: numbers, texts, lists and dictionaries.
    base/schedule_rules.py         Rules of schedules: every N seconds, daily, weekly, cron.
    base/values.py                 One validator for arguments, bodies and settings; options of tasks.
    base/options.py                The place of the data: flag, environment, the file beside the program.
    store/connection.py            Connection: its verbs, hints and errors, files of the data folder.
    store/schema.py                The tables, and how an older database becomes a newer one.
    store/database.py              Database: reads, writes in transactions, waits until a deadline.
    store/sqlite_connection.py     A connection to the SQLite file; SQLite's errors as ours.
    store/write_lock.py            One write at a time, and the bell that wakes idle workers.
    store/sqlite.py                SQLite: one file, its journal, its log.
    store/postgres_sql.py          PostgreSQL's dialect: a statement is translated as a whole.
    store/postgres_connection.py   A connection to a PostgreSQL server, with a deadline for each call.
    store/postgres.py              PostgreSQL: the lock row, the server's time, notifications.
    store/data_folder.py           The data folder: create, open, repair.
    store/log_and_activity.py      The log of attempts, and the activity: each event and its actor.
    store/state.py                 State: values that the program itself keeps in the database, a row each.
    store/settings.py              Settings: an admin changes them while everything runs.
    tasks/queues.py                Queues and their limits: which queues may start a task now.
    tasks/followers.py             The turns of pending tasks, and the release or failure of tasks that wait for other tasks.
    tasks/files.py                 Files that tasks are given and leave: kept, served, removed.
    tasks/adding.py                Adding: each order becomes a task only once, within its owner's limit.
    tasks/task_list.py             Tasks as people see them: find, count, show.
    tasks/actions.py               Cancel, retry, delete: one task, or all that match a filter.
    tasks/leases.py                Leases and outcomes: how long a claim holds, how a task ends.
    tasks/claims.py                Every way into and out of "running": claim, renew, end.
    upkeep/tick_history.py         The history of ticks: their callers, their times, their gaps.
    upkeep/schedule_rows.py        Schedules as rows: their columns, when they are due, how they look.
    upkeep/schedules.py            Schedules add tasks at times, each slot once.
    upkeep/worker_modes.py         Worker locks; which Python; how this host starts processes.
    upkeep/workers.py              Rows of workers: reserved, live, renewed, removed.
    upkeep/reaper.py               The Reaper: workers that died or are lost, and their tasks.
    upkeep/starter.py              The Starter: reserves a worker's row and starts the process.
    upkeep/catalogue.py            The functions of tasks.py, as a child process announced them.
    upkeep/rollup.py               Sums of the activity by hour and place: how many events there were, and how long they took.
    upkeep/metrics.py              Metrics: how much was done, and how long it waited and ran.
    upkeep/retention.py            Retention: removes old rows and files, a little at a time.
    upkeep/finding_table.py        FINDINGS: each thing that can be wrong here, or is worth knowing.
    upkeep/conditions.py           Conditions: the findings that also open alerts.
    upkeep/alerts.py               Alerts: conditions, their recipients, when they open and end.
    upkeep/summary.py              Summaries: a sentence each about yesterday and last week, on the page and by mail.
    upkeep/notifications.py        Mail, webhooks, a function of tasks.py: a process of its own sends.
    upkeep/plan.py                 The plan of running and pending tasks: when each will begin and end.
    upkeep/forecast.py             Forecasts: when tasks begin and end, when a queue is empty, or why that is unknown.
    upkeep/tick.py                 The tick: maintenance that any process does in passing.
    access/people.py               People: passwords, roles, users, and guessed passwords.
    access/accounts.py             The first admin, a lost password, sessions, tokens, invitations.
    access/saved.py                Saved filters and form values, by name, each user's own.
    access/requests.py             Requests to add tasks, checked against function and person.
    access/remote_workers.py       Workers that ask over HTTP, from machines without the database.
    access/python_task.py          Task and current_task(): a task as users' own code sees it.
    access/python_interface.py     JobQueue, Function, @task, @schedule, command, http_request, external.
    access/django_project.py       Django's tasks as functions: the names of Django's interface, and django_project() for tasks.py.
    access/django_backend.py       DjangoBackend: jobqueue as the backend of a Django site's tasks.
    access/host.py                 This host: doors, a browser's reach, a sample task, lines to copy.
    access/findings.py             The findings of `check` and of the page This host.
    access/import_checks.py        Import checks: every value of an export is checked before it is stored, as the API would.
    access/backup.py               A checked copy, while everything goes on; restore, export, import.
    web/http_answer.py             An answer as WSGI wants it; problems as JSON.
    web/http_request.py            A request as handlers see it; proxies; static files.
    web/handlers_tasks.py          Handlers of pages, tasks, files and logs: one function per route.
    web/handlers_site.py           Handlers of schedules, figures, queues, people, remote workers.
    web/routes.py                  ROUTES: each request, its users, its input and its answer.
    web/openapi.py                 /openapi.json, made of ROUTES.
    web/application.py             The WSGI callable: finds the route, checks, answers errors.
    web/connections.py             A client's connection to the built-in web server.
    web/servers.py                 The built-in web server; CGI.
    web/printing.py                Printing for people and pipes.
    web/serve.py                   The command `serve`.
    web/clients.py                 Clients of commands: this host's queue, or another site over HTTP.
    web/command_rows.py            Rows of COMMANDS that ask one route, and answers in words.
    web/commands_tasks.py          Commands about functions and tasks.
    web/commands_site.py           Commands about settings, people, schedules, the host, its data.
    web/command_line.py            COMMANDS and python3 jobqueue.py COMMAND.
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

import bisect
import builtins
import codecs
import collections
import contextlib
import errno
import fcntl
import functools
import importlib
import io
import itertools
import json
import math
import operator
import os
import re
import select
import signal
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time as clock_time, timedelta, timezone
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

TYPE_CHECKING = False           # type checkers take it as true: see base/types.py


def refuse_old(name, found, oldest):
    """Exit with a message if Python or SQLite is too old. Start files of web servers show the message."""
    if found < oldest:
        words = "jobqueue needs %s %d.%d or newer; this is %s %d.%d" % (name, *oldest, name, *found)
        if __name__ == "__main__" and "GATEWAY_INTERFACE" in os.environ:
            print("Status: 500 Internal Server Error\nContent-Type: text/plain\n\n%s" % words)
        sys.exit(words)


refuse_old("Python", sys.version_info[:2], (3, 9))
refuse_old("SQLite", sqlite3.sqlite_version_info[:2], (3, 15))
if os.name != "posix":
    sys.exit("jobqueue needs Linux, macOS or another POSIX system; Windows is not supported.")


def refuse_half(path):
    """Exit if the end of a program file is missing. The start of a broken upload may be valid Python."""
    with open(path, "rb") as file:
        file.seek(-1000, os.SEEK_END)
        if b'"__main__":' not in file.read():
            sys.exit("%s is not complete: copy it again" % os.path.basename(path))


refuse_half(__file__)

if TYPE_CHECKING:
    import typing_extensions
    from types import FrameType
    from typing import (Any, Generic, Literal, NamedTuple, NoReturn, Optional, Protocol, TypeVar,
                        TypedDict, Union, overload)
    from typing_extensions import Unpack


# base/types.py ---------------------------------------------------------------
#
# NamedTuple and Generic without typing; types that travel between rooms.
#
# Importing typing takes a tenth of the time of importing this program. So only type checkers import it:
# they take TYPE_CHECKING as true. Names defined under it are used only in annotations, which are texts
# at run time.

if TYPE_CHECKING:
    P = typing_extensions.ParamSpec("P", default=...)           # the parameters of a function
    R = typing_extensions.TypeVar("R", default=Any)             # the type that it returns
    JsonObject = dict[str, Any]         # a JSON object, of ours or from outside
    Schema = dict[str, Any]             # JSON Schema: see base/values.py
    AnyTuple = tuple[Any, ...]
    Query = tuple[str, Sequence[Any]]   # a statement and its values

    class FieldError(TypedDict, total=False):
        """One fault of a request: the place of its task there, or its row in a file."""

        index: "int"
        row: "int"
        field: "str"
        message: "str"

    class Row(Protocol):
        """A row of the database: its columns by name and by place."""

        def __getitem__(self, __column: "Any") -> "Any": ...
        def __iter__(self) -> "Iterator[Any]": ...
        def keys(self) -> "Iterable[str]": ...

    TaskRow = Row                       # a row of `task`, with the owner's name if people see it
    WorkerRow = Row                     # a row of `worker`
    ScheduleRow = Row                   # a row of `schedule`
else:
    AnyTuple = tuple
    P = R = None
    # The fastest way to read a field: a C function of the standard library, or a property.
    _getter = getattr(collections, "_tuplegetter", lambda place, _: property(operator.itemgetter(place)))

    class Generic:
        """A base class for typing.Generic's syntax. Type checkers read the brackets; nothing else does."""

        def __class_getitem__(cls, _: "Any") -> "type":
            return cls

    class _NamedTupleType(type):
        """The metaclass of NamedTuple."""

        def __new__(kind, name: "str", bases: "tuple[type, ...]", body: "dict[str, Any]") -> "type":
            new_class = super().__new__(kind, name, bases, {**body, "__slots__": ()})
            fields = tuple(getattr(new_class, "__annotations__", ()))
            if fields:
                new_class._fields = new_class.__match_args__ = fields
                new_class._defaults = {field: body[field] for field in fields if field in body}
            for place, field in enumerate(fields):
                setattr(new_class, field, _getter(place, ""))
            return new_class

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """A tuple with named fields, as typing.NamedTuple."""

        def __new__(cls, *values: "Any", **named: "Any") -> "NamedTuple":
            if named or len(values) != len(cls._fields):
                rest = {**cls._defaults, **named}
                values += tuple(rest.pop(field) for field in cls._fields[len(values):] if field in rest)
                if len(values) != len(cls._fields) or not cls._defaults.keys() >= rest.keys():
                    raise TypeError(cls.__name__, cls._fields, values, named)
            return tuple.__new__(cls, values)

        def __getnewargs__(self) -> "tuple[Any, ...]":
            return tuple(self)

        def __repr__(self) -> "str":
            parts = ("%s=%r" % pair for pair in zip(self._fields, self))
            return "%s(%s)" % (type(self).__name__, ", ".join(parts))

        def _asdict(self) -> "dict[str, Any]":
            return dict(zip(self._fields, self))

        def _replace(self, **changes: "Any") -> "NamedTuple":
            return type(self)(**{**self._asdict(), **changes})


# base/limits.py --------------------------------------------------------------
#
# Paths, statuses, limits and times that several rooms share.
#
# A constant that only one room uses stands in that room. Units are in the names.

VERSION = "1.0.0"
HOME = Path(__file__).resolve().parent
TASKS_FILE = Path(os.path.abspath(HOME / (os.environ.get("JOBQUEUE_TASKS") or "tasks.py")))
WORKER_FILE = HOME / "worker.py"
CODE_FILES = (WORKER_FILE, HOME / "jobqueue.py")
SCRIPTS_FOLDER = TASKS_FILE.parent / "schedules"
STATIC_FOLDER = HOME / "static"

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED, SCHEDULED, WAITING = range(7)
STATUS_WORDS = ("pending", "running", "succeeded", "failed", "cancelled", "scheduled", "waiting")
DELETE = 2                      # task.cancel_requested: 1 asks for a cancel, 2 for a cancel and the removal

LEASE_SECONDS = 60.0            # how long a claim holds without being renewed
RENEW_SECONDS = 10.0
SAMPLES_MAX = 60                # samples of the CPU time and memory of an attempt
SELF_FENCE_SECONDS = 50.0       # time without a renewal after which a worker kills its runner
TICK_SECONDS = 2.0              # time between ticks: a killed worker's task starts again within 5 s
SLICE_SECONDS = 20.0            # longest work in one request of a program: hosts end longer requests

WEB_PATIENCE_SECONDS = 5.0      # longest wait of one request for a busy database, in all
DISK_LOW_BYTES = 100 << 20

BODY_MAX_BYTES = 1 << 20
JSON_MAX_DEPTH, RESULT_MAX_DEPTH = 32, 64
INTEGER_MAX = 2 ** 53

ERRORS_MAX = 20                 # errors that one answer reports at most
PAGE_ROWS = 50
COUNT_MAX = 10_001
PIECE_BYTES = 64 << 10          # most bytes that are read or written at once
CACHE_SECONDS = 1.0

INVITATION, INVITATION_SECONDS = "invitation", 86400.0      # a scope of tokens; how long one can be accepted
CLOCK_SLACK_SECONDS = 60.0
SAMPLE_FUNCTION, SAMPLE_SECONDS = "sample-task", 10.0    # the task that the page This host adds
LOOPBACK = ("127.0.0.1", "::1")


# base/errors.py --------------------------------------------------------------
#
# Errors: one base class; each knows its HTTP status and exit code.

class JobQueueError(Exception):
    """The base of all errors that a person can cause or should see.

    `detail` is a sentence for that person. `errors` names the wrong fields. `retry_after` is the number
    of seconds after which the same request may succeed.
    """

    status, code, exit_code = 500, "error", 1
    public: "str | None" = None           # shown to web clients instead of `detail`, which may name paths
    retry_after: "float | None" = None    # default for errors of this class

    def __init__(self, detail: "str", errors: "Iterable[FieldError]" = (), retry_after: "float | None" = None,
                 headers: "Sequence[tuple[str, str]]" = (), **extra: "Any") -> None:
        super().__init__(detail)
        self.detail, self.errors = detail, list(errors)
        self.extra = extra              # further members of the JSON answer
        self.retry_after, self.headers = retry_after or self.retry_after, headers   # headers of the answer


_CANNOT_BE_USED = ("The queue cannot be used at the moment. The web server's error log says why, "
                   "and so does python3 jobqueue.py check on the host.")


class Malformed(JobQueueError):
    """The request cannot be read at all."""

    status, code, exit_code = 400, "malformed", 2


class Unauthorized(JobQueueError):
    """No user is logged in."""

    status, code, exit_code = 401, "unauthorized", 5


class Denied(JobQueueError):
    """The user who is logged in may not do this."""

    status, code, exit_code = 403, "denied", 5


class NotFound(JobQueueError):
    """The thing does not exist, or belongs to another user: both look the same."""

    status, code, exit_code = 404, "not_found", 4


class NotAllowed(JobQueueError):
    """The path has no such method."""

    status, code = 405, "method_not_allowed"


class Conflict(JobQueueError):
    """The state of the object does not allow this."""

    status, code, exit_code = 409, "conflict", 5


class LengthRequired(JobQueueError):
    """The body has no length, and this web server does not add it."""

    status, code = 411, "length_required"


class TooLarge(JobQueueError):
    """The body exceeds its limit."""

    status, code = 413, "too_large"


class UnsupportedType(JobQueueError):
    """The body is no JSON, or its compression is unknown."""

    status, code = 415, "unsupported_type"


class Invalid(JobQueueError):
    """A well-formed request with wrong fields: see `errors`."""

    status, code, exit_code = 422, "invalid", 2


class TooMany(JobQueueError):
    """Too many attempts or tasks; see `retry_after`."""

    status, code, exit_code = 429, "too_many", 5


class Busy(JobQueueError):
    """The database stayed busy; nothing was changed."""

    status, code, exit_code = 503, "busy", 75
    retry_after = 2


class StorageBroken(JobQueueError):
    """The database cannot be used; it is left exactly as it is."""

    status, code = 503, "storage"
    public = _CANNOT_BE_USED


class StorageFull(JobQueueError):
    """Disk or quota is full; nothing was changed."""

    status, code = 507, "disk_full"


class SetupError(JobQueueError):
    """This host, folder or configuration cannot be used as it is."""

    status, code = 503, "setup"
    public = _CANNOT_BE_USED


class Fail(Exception):
    """The exception with which a function fails its task for good, without a retry."""


RETRY_MESSAGE = "asked to be retried"   # of a RetryAfter without a message of its own


class RetryAfter(Exception):
    """The exception with which a function asks for a retry after some seconds (a number or a timedelta).

    It uses up one of the task's retries. A task with max_retries=0 gets one retry.
    """

    def __init__(self, seconds: "float | timedelta", message: "str" = RETRY_MESSAGE) -> None:
        super().__init__(message)
        number: "Any" = seconds
        self.seconds = float(number.total_seconds() if hasattr(number, "total_seconds") else number)


def wrong(field: "str", message: "str") -> "list[FieldError]":
    """Return a list with one error about a field."""
    return [{"field": field, "message": message}]


def field_error(field: "str", message: "str") -> "Invalid":
    """Return an Invalid about one field."""
    return Invalid("%s %s" % (field, message), wrong(field, message))


def join_errors(errors: "list[FieldError]") -> "str":
    """Return the first errors in one sentence.

    A task of many is named by its row of a file, or by its place: counted from 1 (row) and from 0 (index).
    """
    texts = []
    for error in errors[:5]:
        index, row = error.get("index"), error.get("row")
        place = (["row %d:" % row] if row else [] if index is None
                 else ["row %d (index %d):" % (index + 1, index)])
        texts.append(" ".join(filter(None, [*place, error["field"], error["message"]])))
    return "; ".join(texts) + "."


def refusal(words: "str", errors: "list[FieldError]") -> "Invalid":
    """Return an Invalid: `words` say which action failed, the first errors say why."""
    return Invalid("%s: %s" % (words, join_errors(errors)), errors[:ERRORS_MAX])


def tasks_refused(errors: "list[FieldError]", alone: "bool") -> "Invalid":
    """Return an Invalid for errors of tasks. The index is left out if the task is `alone`."""
    if alone:
        errors = [{"field": error["field"], "message": error["message"]} for error in errors]
    return refusal("Nothing was added", errors)


def escape_controls(text: "str") -> "str":
    """Return a text without control characters, which could steer a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: r"\x%02x" % ord(match[0]), text)


def complain(text: "str") -> None:
    """Print a message for a person to standard error, if there is one."""
    if sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            print("jobqueue: " + escape_controls(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def print_errors(action: "str") -> "Iterator[None]":
    """Print an error of the block instead of raising it. A JobQueueError is not printed."""
    try:
        yield
    except JobQueueError:               # a busy or broken queue is reported elsewhere
        pass
    except Exception as error:
        complain("%s failed: %s: %s" % (action, type(error).__name__, error))


# base/time_and_text.py -------------------------------------------------------
#
# The clock, RFC 3339, JSON, tokens, processes.

class Clock:
    """The sources of time and chance. Tests use their own."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)    # one clock for all processes of a boot; it stops while the
                                                # system sleeps
    sleep = staticmethod(time.sleep)

    @staticmethod
    def uniform(low, high):
        """Return a random number from `low` to `high`."""
        import random
        return random.uniform(low, high)






def seconds_since(moment, now):
    """Return the seconds from a recorded moment until now, infinite if the moment is in the future.

    A moment is in the future if the clock was set back since. Nothing may wait for that moment: a clock
    that was a year ahead would stop alerts, starts and backups for a year. For the same reason the program
    does not make its wall clock monotonic.
    """
    return now - moment if moment <= now + CLOCK_SLACK_SECONDS else math.inf


class Every:
    """A timer that is due at once, then again after each period."""

    def __init__(self, seconds, clock):
        self._seconds, self._clock, self._at = seconds, clock, -math.inf

    def begin_if_due(self):
        """Return True if the timer is due, and begin its next period."""
        if self._clock.monotonic() < self._at:
            return False
        self.put_off(self._seconds)
        return True

    def put_off(self, seconds):
        """Make the timer due in `seconds`."""
        self._at = self._clock.monotonic() + seconds

    def hasten(self, seconds):
        """Make the timer due in `seconds` at the latest."""
        self._at = min(self._at, self._clock.monotonic() + seconds)











def iso(seconds):
    """Return UTC seconds since 1970 as RFC 3339 with milliseconds; None stays None."""
    if seconds is None:
        return None
    whole, fraction = divmod(round(seconds * 1000), 1000)
    return "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ" % (*time.gmtime(whole)[:6], fraction)


def time_of_day(seconds):
    """Return the time of day of a moment, such as "12:05 UTC"."""
    return iso(seconds)[11:16] + " UTC"


# Patterns are compiled at first use. Else each CGI request would compile all of them.
RFC3339 = (r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?"
           r"([Zz]|[+-]\d\d:\d\d)")


def parse_moment(text):
    """Return the datetime of an RFC 3339 text with an offset; ValueError for any other text."""
    match = re.fullmatch(RFC3339, text, re.ASCII)
    if not match:
        raise ValueError("not a time with an offset: %s" % text)
    day, clock, fraction, offset = match.groups()
    return datetime.fromisoformat("%sT%s.%s%s" % (
        day, (clock + ":00")[:8], (fraction or "").ljust(6, "0")[:6],
        offset.upper().replace("Z", "+00:00")))


YEAR_10000 = 253402300800       # RFC 3339 has no year with five digits


def parse_time(text, field):
    """Return the UTC seconds since 1970 of an RFC 3339 text with an offset; Invalid names `field`."""
    try:
        seconds = parse_moment(text).timestamp()
        if not 0 <= seconds < YEAR_10000:
            raise ValueError(text)
        return seconds
    except (ValueError, TypeError, OverflowError):
        raise field_error(field, "must be a time with an offset, such as 2026-01-31T12:00:00Z") \
            from None


UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def how_often(seconds, exactly=False):
    """Return a period in words ("every 15 minutes"), rounded unless `exactly`."""
    unit, size = next((unit, size) for unit, size in UNITS if size == 1 or (
        seconds % size == 0 if exactly else seconds >= 2 * size or abs(seconds - size) < size / 10))
    number = round(seconds / size)
    return "every %s" % unit if number == 1 else "every %d %ss" % (number, unit)


def span_text(seconds):
    """Return a time span as the page writes it ("1 h 30 min")."""
    words = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        number, seconds = divmod(seconds, size)
        if number:
            words.append("%d %s" % (number, unit))
    return " ".join([*words, "%g s" % seconds] if seconds else words)


def storable(text):
    """Return a text that SQLite can store: lone surrogates and NUL become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def shorten(text, limit):
    """Return at most `limit` characters on one line. A shortened text ends with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit - 1] + "…"


def jsonable(value):
    """Return a JSON value for a value of a type that json.dumps does not know.

    The types are dates, times, time spans, enums, paths, sets, Decimal and UUID; TypeError for another one.
    """
    if isinstance(value, (date, clock_time)):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, (str, int, float)) else value.name
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Path) or type(value).__name__ in ("Decimal", "UUID"):  # not imported here
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError("a value of the type %s cannot be written as JSON" % type(value).__name__)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"),
                           default=jsonable).encode


def dump_json(value):
    """Return compact JSON that SQLite can store; ValueError or TypeError if there is none."""
    text = _encode(value)
    return text if text.isascii() else storable(text)


def _refuse_constant(name):
    raise ValueError("%s is not a JSON number" % name)


def _unique_keys(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object names a key twice")
    return result


class _NumberTooLarge(Exception):
    """A number that some JSON readers would read differently."""


def _check_json(value, depth):
    if depth < 0:
        raise ValueError("nested deeper than %d levels" % JSON_MAX_DEPTH)
    if isinstance(value, (dict, list)):
        for item in itertools.chain(value, value.values() if isinstance(value, dict) else ()):
            _check_json(item, depth - 1)
    elif isinstance(value, str):
        if "\0" in value or not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise ValueError("a text holds NUL or an incomplete character")
    elif isinstance(value, int) and abs(value) > INTEGER_MAX or value in (math.inf, -math.inf):
        raise _NumberTooLarge


def _finite(text):
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


_NESTED = dict, list, tuple, set, frozenset


def is_deep(value, levels):
    """Return True if lists and dicts are nested deeper than `levels`. Some JSON readers cannot read that."""
    if not isinstance(value, _NESTED):
        return False
    if levels == 0:
        return True
    for item in list(value.values()) if isinstance(value, dict) else value:
        if isinstance(item, _NESTED) and is_deep(item, levels - 1):     # a generator would take twice as long
            return True
    return False


# Reads JSON text as json.loads() does, but refuses NaN and Infinity with ValueError.
read_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def _place_of_large(value, place=""):
    """Return the place of a number that some readers would read differently; None if there is none."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (_place_of_large(item, "%s.%s" % (place, key)) for key, item in pairs)),
                    None)
    is_large = isinstance(value, int) and abs(value) > INTEGER_MAX or value in (math.inf, -math.inf)
    return place.strip(".") or "it" if is_large else None


def load_json(text):
    """Return the value of a JSON text from outside.

    Malformed for a text that other JSON readers would understand differently.
    """
    try:
        # Editors on Windows begin files with a byte order mark.
        text = text.lstrip("\ufeff") if isinstance(text, str) else text
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        _check_json(value, JSON_MAX_DEPTH)
        return value
    except _NumberTooLarge:
        raise Malformed("The number of %s is too large: give it as a text." % _place_of_large(value)) \
            from None
    except (ValueError, RecursionError) as error:
        raise Malformed("This is not JSON that can be read: %s." % error) from None


def random_token(size=16):
    """Return `size` random bytes as text, for secrets."""
    return os.urandom(size).hex()


def digest(token):
    """Return the SHA-256 of a token. The database stores this, never the token."""
    import hashlib
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


def machine_name():
    """Return the name of this machine, as in rows of workers."""
    return os.uname().nodename


@functools.lru_cache(maxsize=None)
def boot_id():
    """Return a text that changes at every boot; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def birth(pid):
    """Return the process start time and pid namespace of a living process; None if unknown.

    Together with the pid they identify a process, even if the pid is used again.
    """
    try:
        status = Path("/proc/%d/stat" % pid).read_text("ascii", "replace")
        fields = status.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19] + os.readlink("/proc/self/ns/pid")
    except (OSError, TypeError, IndexError):
        return None


def end_group(pid, born, sleep):
    """Kill a process and its group; return False if it still lives.

    `born` is its birth(): another process that has this pid by now is not killed. A process of another
    user cannot be killed.
    """
    for _ in range(20):
        if born is None or birth(pid) != born:
            return True
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        sleep(0.01)
    return False


def read_retry_after(text, now):
    """Return the seconds of a header Retry-After: digits or a date (RFC 9110).

    None if the header has no usable value: then the usual delay counts.
    """
    if not text or len(text) > 100:
        return None
    try:
        seconds = float(math.ceil(float(text)))
    except (ValueError, OverflowError):
        from email.utils import parsedate_to_datetime
        try:
            moment = parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError):
            return None
        if moment.tzinfo is None:       # the offset -0000: times in HTTP are UTC
            moment = moment.replace(tzinfo=timezone.utc)
        seconds = moment.timestamp() - now
    return seconds if 0 < seconds < math.inf else None


def name_signal(number):
    """Return a signal's number and name, and for SIGKILL its usual cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
    if number == signal.SIGKILL:
        return "signal %d (%s); the usual cause is too little memory" % (number, name)
    return "signal %d (%s)" % (number, name)


# base/plain_values.py --------------------------------------------------------
#
# Values of users' code as JSON: numbers, texts, lists and dictionaries.
#
# WRITTEN has rows for types that json cannot write. The modules of these types are not imported here: there
# are no values of a module that was never imported.

PLAIN_KEYS = str, int, float, type(None)     # types of a dictionary's keys that json can write

# Module and name of a class, and the function that converts its values. The first matching row counts.
WRITTEN = (
    ("decimal", "Decimal", str), ("uuid", "UUID", str), ("fractions", "Fraction", str),
    ("builtins", "complex", str), ("pathlib", "PurePath", str), ("ipaddress", "_IPAddressBase", str),
    ("datetime", "tzinfo", str), ("builtins", "range", list),
    ("collections", "deque", list), ("collections.abc", "Mapping", dict), ("collections.abc", "Set", list),
    ("builtins", "memoryview", bytes), ("builtins", "bytearray", bytes))


def count_bytes(value):
    """Return the number of bytes as text: JSON cannot write bytes."""
    return "<%d bytes>" % len(value)


def plain_value(value, levels=RESULT_MAX_DEPTH,
                write_bytes=count_bytes):
    """Return a value, converted so that JSON can write it.

    TypeError if its type is not known here, ValueError if it is nested too deeply.
    """
    write_part = functools.partial(plain_value, levels=levels - 1, write_bytes=write_bytes)
    if isinstance(value, Enum):
        value = jsonable(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return write_bytes(value)
    if levels < 0:
        raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
    if isinstance(value, dict):
        return {key if isinstance(key, PLAIN_KEYS) and not isinstance(key, Enum) else
                str(write_part(key)): write_part(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(map(write_part, value))
    for module, name, write in WRITTEN:
        if is_of(module, name, value):
            return plain_value(write(value), levels, write_bytes)
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: write_part(getattr(value, name)) for name in value.__dataclass_fields__}
    for name in "tolist", "item":       # arrays and numbers of numpy
        if hasattr(type(value), name) and hasattr(value, "dtype"):
            return plain_value(getattr(value, name)(), levels - 1)
    for name in "model_dump", "to_dict":    # methods of pydantic and pandas
        if hasattr(type(value), name):
            return plain_value(getattr(value, name)(), levels, write_bytes)
    return jsonable(value)


def is_of(module, name, value):
    """Return whether a value is an instance of this module's class; False if it was never imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def argument_value(value):
    """Return an argument as a JSON value, with bytes as Base64.

    TypeError or ValueError for a value that JSON cannot write.
    """
    try:
        return json.loads(dump_json(value))
    except TypeError:
        import base64
        return plain_value(value, write_bytes=lambda data: base64.b64encode(data).decode("ascii"))


# base/schedule_rules.py ------------------------------------------------------
#
# Rules of schedules: every N seconds, daily, weekly, cron.
#
# This room computes due times and needs no database. Each rule but `every` becomes a cron expression.
# The next matching day is found first, then the wall-clock time on that day, then its moment in the time
# zone. Times that the clocks skip or repeat are handled as in Debian's cron.

     # a number, or (weekday, its number in the month)


RULE_MAX_CHARACTERS = 500
EVERY_MAX_SECONDS = 3650 * 86400
LAST_MOMENT = 221845392000                  # the year 9000: nothing is due after it
CALENDAR_YEARS = 400                        # after this time dates and weekdays repeat
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November "
          "December").split()
LAST_DAY, LAST_WORKDAY = 32, 33             # the values of L and LW as a day of the month
LAST = 6                                    # 1 to 5: a month's first to fifth Friday; 6: its last one

EVERY = r"every (\d{1,9}) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
EVERY_UNITS = {unit[0]: size for unit, size in UNITS}
CLOCK = r" (?P<hour>\d{1,2}):(?P<minute>\d\d)"
WORDED_RULES = {                            # pattern of a rule: its cron expression
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@(yearly|annually)": "0 0 1 1 *",
    "daily" + CLOCK: "{minute} {hour} * * *",
    r"weekly (?P<day>[a-z]+(?:[,-][a-z]+)*)" + CLOCK: "{minute} {hour} * * {day}",
    r"monthly (?P<day>\d{1,2}|last)" + CLOCK: "{minute} {hour} {day} * *",
    r"yearly (?P<month>\d\d)-(?P<day>\d\d)" + CLOCK: "{minute} {hour} {day} {month} *"}
RULE_HINT = ('as "every 5m", "every 2 hours", "daily 01:30", "weekly mon 01:00", '
             '"monthly last 01:00", "yearly 12-24 01:00", "@daily" or five fields of cron as in '
             '"*/15 9-17 * * mon-fri", six with the seconds first')


class CronField:
    """A field of a cron expression: its name, its bounds, and names for its values.

    `special` maps further terms to their values. `hint` describes them to people.
    """

    TERM = r"(?:\*|([a-z]+|\d{1,4})(?:-([a-z]+|\d{1,4}))?)(?:/(\d{1,4}))?"

    def __init__(self, name, low, high, names=(),
                 special=None, hint=""):
        self.name, self.low, self.high = name, low, high
        self.names = {text.lower(): low + place for place, name in enumerate(names)
                      for text in (name, name[:3])}
        self.special = dict(special or {})
        self.right = "write %d to %d%s%s" % (low, high, names and ", %s to %s" % (
            names[0][:3].lower(), names[-1][:3].lower()) or "", hint)

    def parse(self, text):
        """Return the values of a list of terms; Invalid names a term that is wrong."""
        return {value for term in text.split(",")
                for value in ([self.special[term]] if term in self.special else self._range(term))}

    def _range(self, term):
        match = re.fullmatch(self.TERM, term, re.ASCII)
        first, last, step = match.groups() if match else ("", "", "")
        low = self._number(first or str(self.low))
        high = self._number(last) if last else low if first and not step else self.high
        step = int(step or 1)
        if not (match and self.low <= low <= high <= self.high
                and 1 <= step <= self.high - self.low + 1):
            raise field_error(
                "rule", 'cannot have "%s" as %s: %s; a range runs forwards, a step stays within it'
                % (shorten(term, 20), self.name, self.right))
        return range(low, high + 1, step)

    def _number(self, text):
        return self.names.get(text, int(text) if text.isdigit() else -1)


_DAY_NAMES = WEEKDAYS[6:] + WEEKDAYS[:6]        # cron counts from Sunday, which is 0 and 7
CRON_FIELDS = (
    CronField("second", 0, 59), CronField("minute", 0, 59), CronField("hour", 0, 23),
    CronField("day of the month", 1, 31, (), {"l": LAST_DAY, "lw": LAST_WORKDAY},
              ", L (the last) or LW (the last from Monday to Friday)"),
    CronField("month", 1, 12, MONTHS),
    CronField("weekday", 0, 7, _DAY_NAMES, {
        text + ending: ((number - 1) % 7, which)
        for number, name in enumerate([*_DAY_NAMES, "7"])
        for text in ("%d" % number, "%02d" % number, name.lower(), name[:3].lower())
        for which, ending in enumerate("#1 #2 #3 #4 #5 l".split(), 1)},
        ", 5L (the last Friday) or 5#2 (the second)"))


def _and(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _listing(values, name=str):
    """Return values in words, three or more in a row as a range: "Monday to Friday and Sunday"."""
    words = []
    for _, pairs in itertools.groupby(enumerate(sorted(values)), lambda pair: pair[1] - pair[0]):
        run = [name(value) for _, value in pairs]
        words += ["%s to %s" % (run[0], run[-1])] if len(run) > 2 else run
    return _and(words)


def _pace(values, unit, size):
    """Return seconds, minutes or hours in words: "every 15 minutes", "minutes 0 to 10"."""
    step = values[1] - values[0] if len(values) > 1 else size
    if step < size and size % step == 0 and values == list(range(0, size, step)):
        return "every " + unit if step == 1 else "every %d %ss" % (step, unit)
    return "%s%s %s" % (unit, "s"[:len(values) - 1], _listing(values))


def _ordinal(number):
    if number > 31:
        return "last day" if number == LAST_DAY else "last working day"
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return "%d%s" % (number, ending)


class Rule:
    """A rule for due times. `text` is the rule, `zone` the name of its time zone.

    Moments are seconds since 1970.
    """

    def __init__(self, text, zone, tzinfo):
        self.text, self.zone, self.tzinfo = text, zone, tzinfo

    def meaning(self):
        """Return a value that is equal for two spellings of one rule."""
        raise NotImplementedError

    def next_after(self, at):
        """Return the first moment later than `at`, or None."""
        try:
            return float(self._next(at)) if at < LAST_MOMENT else None
        except OverflowError:
            return None

    def upcoming(self, at, count):
        """Return the next `count` moments after `at`; fewer only if the years end."""
        moments = []
        while len(moments) < count:
            moment = self.next_after(moments[-1] if moments else at)
            if moment is None:
                break
            moments.append(moment)
        return moments

    def local(self, at):
        """Return a moment as RFC 3339 with the offset of the rule's zone."""
        return self._aware(at).isoformat(timespec="seconds")

    def clock_change(self, at):
        """Return how the clocks change on the day of this moment, or None."""
        day = self._wall(at).replace(hour=0, minute=0, second=0)
        before, after = [self._offset(min(self._moments(midnight)) - 1)
                         for midnight in (day, day + timedelta(days=1))]
        words = "the clocks go %s on this day" % ("forward" if before < after else "back")
        return None if before == after else words

    def words(self):
        """Return the rule in plain English."""
        raise NotImplementedError

    def _next(self, at):
        """Return the first moment later than `at`; OverflowError if there is none."""
        raise NotImplementedError

    def _aware(self, at):
        return (EPOCH + timedelta(seconds=math.floor(at))).astimezone(self.tzinfo)

    def _wall(self, at):
        return self._aware(at).replace(tzinfo=None)

    def _offset(self, at):
        return self._aware(at).utcoffset() or timedelta()

    def _moments(self, wall):
        """Return the two moments (fold 0 and 1) at which clocks show this time.

        The moments are equal as a rule. The second one is later if clocks repeat the time, earlier if they
        skip it.
        """
        return [(wall.replace(tzinfo=self.tzinfo, fold=fold) - EPOCH) // SECOND for fold in (0, 1)]

    def _change(self, low, high):
        """Return the moment above `low` up to `high` at which the clocks change."""
        offset = self._offset(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high


class Interval(Rule):
    """The rule of a period of seconds, counted from a start."""

    def __init__(self, text, zone, tzinfo, seconds, start):
        super().__init__(text, zone, tzinfo)
        self.seconds, self.start = seconds, start

    def meaning(self):
        """Return a value that is equal for two spellings of one rule."""
        return (self.seconds,)

    def words(self):
        """Return the rule in plain English."""
        return how_often(self.seconds, exactly=True).capitalize()

    def _next(self, at):
        turn = math.floor((at - self.start) / self.seconds)
        return next(moment for moment in (self.start + (turn + more) * self.seconds
                                          for more in range(3)) if moment > at)


class Calendar(Rule):
    """A rule that is a cron expression: times of day on certain days.

    A rule is `fixed` if it has five fields that name hours and minutes. It is due once, even if the clocks
    skip its time (right after the change) or repeat it (the first time). Other rules follow the clocks.
    With `both` the date and the weekday must match, otherwise one of them is enough.
    """

    def __init__(self, text, zone, tzinfo, fields):
        super().__init__(text, zone, tzinfo)
        self.fixed = len(fields) == 5 and "*" not in (fields[0][0], fields[1][0])
        self.both = "*" in (fields[-3][0], fields[-1][0])
        fields = fields if len(fields) == 6 else ["0", *fields]
        values = [field.parse(text) for field, text in zip(CRON_FIELDS, fields)]
        numbers = [sorted(value for value in numbers if isinstance(value, int)) for numbers in values]
        self.clock = numbers[2], numbers[1], numbers[0]
        self.dates, self.months = set(numbers[3]), numbers[4]
        self.weekdays = {(day - 1) % 7 for day in numbers[5]}
        self.weekdays_of = {day for day in values[5] if not isinstance(day, int)}
        self._days = functools.lru_cache(maxsize=None)(self._find_days)

    def meaning(self):
        """Return a value that is equal for two spellings of one rule."""
        return (self.fixed, self.both, self.clock, self.dates, self.months, self.weekdays,
                self.weekdays_of)

    def _find_days(self, first, length):
        """Return the matching days of a month of this length that begins on weekday `first`."""
        last = (first + length - 1) % 7
        special = {LAST_DAY: length, LAST_WORKDAY: length - max(0, last - 4)}
        dates = {special.get(day, day) for day in self.dates}
        days = [range(1 + (weekday - first) % 7, length + 1, 7) for weekday in range(7)]
        weekdays = {day for weekday in self.weekdays for day in days[weekday]}
        for weekday, which in self.weekdays_of:
            weekdays.update(days[weekday][-1:] if which == LAST else days[weekday][which - 1:which])
        days_of_month = dates & weekdays if self.both else dates | weekdays
        return sorted(day for day in days_of_month if day <= length)

    def _days_from(self, start):
        """Yield the matching days from `start` on, for CALENDAR_YEARS."""
        from calendar import monthrange
        for year in range(start.year, start.year + CALENDAR_YEARS + 1):
            for month in self.months:
                if (year, month) >= (start.year, start.month):
                    days = (date(year, month, day) for day in self._days(*monthrange(year, month)))
                    yield from (day for day in days if day >= start)

    def _next_wall(self, wall):
        """Return the next matching wall-clock time after `wall`; OverflowError if there is none."""
        wall += SECOND
        hours, minutes, seconds = self.clock
        for day in self._days_from(wall.date()):
            first = (wall.hour, wall.minute, wall.second) if day == wall.date() else (0, 0, 0)
            for clock in ((hour, minute, second) for hour in hours if hour >= first[0]
                          for minute in minutes if (hour, minute) >= first[:2]
                          for second in seconds if (hour, minute, second) >= first):
                return datetime.combine(day, clock_time(*clock))
        raise OverflowError             # no month has such a day

    def _next(self, at):
        wall = self._wall(at)
        again = self._moments(wall)[1]
        if again > at and not self.fixed:           # the clocks will show this time again
            change = self._change(math.floor(at), again)
            candidate = self._moments(self._next_wall(wall))[0]
            if candidate < change:
                return candidate
            wall = self._wall(change) - SECOND
        end = wall.year + CALENDAR_YEARS
        while wall.year <= end:
            wall = self._next_wall(wall)
            first, second = self._moments(wall)
            if first > second:
                change = self._change(second, first)
                if self.fixed and change > at:
                    return change
                wall = max(wall, self._wall(change) - SECOND)
            elif first > at:
                return first
            elif not self.fixed:
                return second
        raise OverflowError             # the clocks always skip this time

    def words(self):
        """Return the rule in plain English."""
        hours, minutes, seconds = self.clock
        times = list(itertools.islice(itertools.product(*self.clock), 5))
        days = "every " + self._days_in_words()
        if len(times) < 5:
            precision = "minutes" if seconds == [0] else "seconds"
            clocks = [clock_time(hour, minute, second).isoformat(precision)
                      for hour, minute, second in times]
            text = "%s at %s" % (days, _and(clocks))
        else:
            parts = [(seconds, "second", 60), (minutes, "minute", 60), (hours, "hour", 24)]
            pace = " of ".join(_pace(*part) for part in parts[seconds == [0]:])
            text = ("" if pace.startswith("every") else "at ") + pace
            text += ", " + days if days != "every day" else ""
        return "%s%s (%s)" % (text[0].upper(), text[1:], self.zone)

    def _days_in_words(self):
        """Return the days in words, to follow "every"."""
        names = _listing(self.months, lambda month: MONTHS[month - 1])
        month, inside = ("the month", "") if len(self.months) == 12 else (names, " in " + names)
        dates, weekdays = "", []
        if not self.dates >= set(range(1, 32)):
            dates = "%s of %s" % (_listing(self.dates, _ordinal), month)
        if self.weekdays and len(self.weekdays) < 7:
            weekdays = [_listing(self.weekdays, WEEKDAYS.__getitem__) + inside]
        if len(self.weekdays) < 7:
            weekdays += ["%s %s of %s" % ("last" if which == LAST else _ordinal(which),
                                          WEEKDAYS[weekday], month)
                         for weekday, which in sorted(self.weekdays_of)]
        if dates and weekdays:
            return dates + (" that is a " if self.both else " and every ") + _and(weekdays)
        return self.both and (dates or _and(weekdays)) or "day" + inside


def _time_zone(name):
    """Return the time zone of this name; Invalid if it is unknown."""
    if name == "UTC":
        return timezone.utc
    import zoneinfo
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name, re.ASCII):
        with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return zoneinfo.ZoneInfo(name)
    if not zoneinfo.available_timezones():
        raise field_error("zone", "can only be UTC: this machine has no time zone data (the "
                                  "system's package tzdata, or pip install tzdata, brings it)")
    raise field_error("zone", "must be the name of a time zone, such as Europe/Oslo, not %s"
                      % shorten(str(name), 64))


def parse_rule(text, zone="UTC", start=0.0):
    """Return the Rule of a text; Invalid if it cannot be read. `every` counts from `start`."""
    text = " ".join(text.split()) if isinstance(text, str) else ""
    tzinfo = _time_zone(zone)
    if not (text.isascii() and text.isprintable() and len(text) <= RULE_MAX_CHARACTERS):
        raise field_error("rule", "must have at most %d plain characters" % RULE_MAX_CHARACTERS)
    lower = text.lower()
    every = re.fullmatch(EVERY, lower, re.ASCII)
    if every:
        seconds = int(every[1]) * EVERY_UNITS[(every[2] or "s")[0]]
        if not 1 <= seconds <= EVERY_MAX_SECONDS:
            raise field_error("rule", "must be every 1 second to every 3650 days")
        return Interval(text, zone, tzinfo, seconds, start)
    matches = ((re.fullmatch(pattern, lower, re.ASCII), cron)
               for pattern, cron in WORDED_RULES.items())
    fields = next((cron.format(**match.groupdict()).replace("last", "l")
                   for match, cron in matches if match), lower).split(" ")
    if len(fields) not in (5, 6):
        raise field_error("rule", "is not understood: write it " + RULE_HINT)
    return Calendar(text, zone, tzinfo, fields)


def is_same_rule(text, zone, other_text, other_zone):
    """Return whether two rules have the same meaning, even if their texts differ."""
    if (text, zone) == (other_text, other_zone) or zone != other_zone:
        return zone == other_zone
    try:
        return parse_rule(text, zone).meaning() == parse_rule(other_text, zone).meaning()
    except Invalid:
        return False


def preview(rule, at, count):
    """Return the next `count` moments of a rule after `at`, for people; Invalid if there is none."""
    moments = rule.upcoming(at, count)
    if not moments:
        raise field_error("rule", "never comes: no month has such a day, or the clocks of %s "
                                  "always skip its time" % rule.zone)
    return [{"at": iso(moment), "local": rule.local(moment), "note": rule.clock_change(moment)}
            for moment in moments]


# base/values.py --------------------------------------------------------------
#
# One validator for arguments, bodies and settings; options of tasks.
#
# A schema (a part of JSON Schema 2020-12) is the one description of a value. check_value() checks
# arguments, bodies, queries, settings and outcomes with it. parse_text() reads typed texts with it.
# /openapi.json, --help and the forms of the page are made from it.




SUMMARY_MAX_CHARACTERS = 120
# The name under which a task of Django keeps how many of its arguments are positional.
POSITIONAL_COUNT = "*"


def text_like(pattern, message):
    """Return the schema of a text that matches a pattern; `message` describes a right text."""
    return {"type": "string", "pattern": pattern, "patternMessage": message}


def number_within(low, high, kind="number"):
    """Return the schema of a number between two bounds."""
    return {"type": kind, "minimum": low, "maximum": high}


def integer_within(low, high):
    """Return the schema of an integer between two bounds."""
    return number_within(low, high, "integer")


def text_up_to(longest):
    """Return the schema of a text of at most `longest` characters."""
    return {"type": "string", "maxLength": longest}


def object_of(__required=(), **properties):
    """Return the schema of an object that has no other keys than these."""
    return {"type": "object", "additionalProperties": False, "required": list(__required),
            "properties": properties}


def titled(title, schema):
    """Return the schema with a name of its own in /openapi.json."""
    return {"title": title, **schema}


TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}


def about(schema, text):
    """Return the schema with a description, for --help and /openapi.json."""
    return {**schema, "description": text}


def or_null(schema):
    """Return a schema that takes null, too."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    kinds = schema["type"]
    return {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def is_number(value):
    """Return True for a number that every JSON reader reads alike."""
    return type(value) in (int, float) and (
        -INTEGER_MAX <= value <= INTEGER_MAX or type(value) is float and math.isfinite(value))


# The options of each task of a function: schema and default.
TASK_OPTIONS = {
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

    pattern: "str"
    parse: "Callable[[str], Any]"
    words: "str"


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

    words: "str"
    holds: "Callable[[Any], bool]"
    parse: "Callable[[str], Any]"


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


def _check_text(schema, value, field):
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
BOUNDS = {
    "minimum": ("at least %s", operator.ge), "exclusiveMinimum": ("more than %s", operator.gt),
    "maximum": ("at most %s", operator.le), "exclusiveMaximum": ("less than %s", operator.lt)}


def _check_bounds(schema, value, field):
    limits = [(schema[name], *row) for name, row in BOUNDS.items() if name in schema]
    if value is None or isinstance(value, bool) or all(
            keeps(value, limit) for limit, _, keeps in limits):
        return []
    return wrong(field, "must be " + " and ".join(words % limit for limit, words, _ in limits))


def _check_list(schema, value, field):
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


def is_plain(schema, value):
    """Return True if the schema tests nothing but the type, and the value fits. This test is quick."""
    kind = PLAIN_WORDS.get(type(value), "")
    return (schema.get("type") == kind and (len(schema) == 1 or schema.keys() <= WORDS_ABOUT)
            and (kind in ("string", "boolean") or -INTEGER_MAX <= value <= INTEGER_MAX))


def _check_object(schema, value, field):
    names, extra = schema.get("propertyNames"), schema.get("additionalProperties", True)
    properties = schema.get("properties", {})
    if extra is True and not names and "properties" not in schema:
        return []
    prefix = field + "." if field else ""
    errors = []
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


def choice_names(schema):
    """Return the values of an enum as people see them. Members of a Python Enum are shown by name."""
    values, names = schema["enum"], schema.get("enumNames", [])
    return [*names, *("null" if value is None else str(value) for value in values[len(names):])]


def check_value(schema, value, field):
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


def checked(schema, value):
    """Return the value; Invalid names every field that the schema refuses."""
    errors = check_value(schema, value, "")
    if errors:
        raise Invalid(join_errors(errors), errors[:ERRORS_MAX])
    return value


def parse_text(schema, text):
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


def _items(schema, text):
    """Yield the schema and the text of each item of a list that is written with commas."""
    places = schema.get("prefixItems", ())
    for place, part in enumerate(text.split(",") if text.strip() else ()):
        yield places[place] if place < len(places) else schema.get("items", {}), part


def mask(value):
    """Return the value with the secrets in it masked."""
    if isinstance(value, dict):
        return {name: MASKED if SECRET_NAME.search(name) else mask(item)
                for name, item in value.items()}
    return [mask(item) for item in value] if isinstance(value, list) else value


def secret_texts(value, is_secret=False):
    """Yield the secrets that mask() masks in a value, as texts of more than 3 characters, longest first."""
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else [("", item) for item in value]
        texts = {text for name, item in parts
                 for text in secret_texts(item, is_secret or SECRET_NAME.search(name) is not None)}
        yield from sorted(texts, key=len, reverse=True)
    elif is_secret and len(str(value)) > 3:
        yield str(value)


def unmask(value, stored):
    """Return the value with masked secrets replaced by those of `stored`, because they were not changed."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return {name: stored[name] if item == MASKED and SECRET_NAME.search(name) and name in stored
                else unmask(item, stored.get(name)) for name, item in value.items()}
    if isinstance(value, list) and isinstance(stored, list) and len(value) == len(stored):
        return list(map(unmask, value, stored))
    return value


def shown_arguments(arguments_text):
    """Return the arguments of a task from their JSON text, as people see them."""
    arguments = json.loads(arguments_text or "null")
    if arguments:
        arguments.pop(POSITIONAL_COUNT, None)
    return arguments


def summarize(arguments_text, files=()):
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


# base/options.py -------------------------------------------------------------
#
# The place of the data: flag, environment, the file beside the program.

FOR_CODE = ("JOBQUEUE_TASKS", "JOBQUEUE_DATA", "JOBQUEUE_UMASK")
SERVER_SCHEMES = ("postgresql://", "postgres://")


def data_folder(flag=None, environment=os.environ):
    """Return the data folder: --data, else JOBQUEUE_DATA, else `data` beside this file.

    `data` may also be a text file, so that the folder can be outside the web root with FTP alone. Its
    first line is the folder's path. If that line is a server's address, the folder is `data-local`.
    """
    chosen = flag or environment.get("JOBQUEUE_DATA")
    if chosen:
        return Path(os.path.abspath(chosen))
    line = _data_line()
    return Path(os.path.abspath(HOME / ("data-local" if line.startswith(SERVER_SCHEMES) else line)))


def database_address(folder, environment=os.environ):
    """Return the address of the server that has the database of this folder, "" for SQLite.

    It is JOBQUEUE_DATABASE, else the first line of the text file `data`.
    """
    address = environment.get("JOBQUEUE_DATABASE", "")
    if not address and folder == HOME / "data-local":
        address = _data_line()
    if address and not address.startswith(SERVER_SCHEMES):
        raise SetupError("JOBQUEUE_DATABASE must begin with %s." % SERVER_SCHEMES[0])
    return address


def _data_line():
    """Return the first line of the text file `data`, or "data" if there is no such file."""
    beside = HOME / "data"
    try:
        if not beside.is_file():
            return "data"
        line = beside.read_text("utf-8-sig").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        raise SetupError("%s cannot be read as a folder's path: %s." % (beside, error)) from None
    if not line or line[0] == "~":      # ~ depends on the user of the process
        raise SetupError("%s must have the data folder's path, without ~." % beside)
    return line


def code_environment(environment=os.environ):
    """Return an environment for users' code, without the variables of this program.

    These variables may be secrets, such as the password in JOBQUEUE_DATABASE.
    """
    return {name: value for name, value in environment.items()
            if name in FOR_CODE or not name.startswith("JOBQUEUE_")}


def become_private():
    """Make new files readable by this account alone. Keep the host's umask for users' code."""
    os.environ.setdefault("JOBQUEUE_UMASK", "%o" % os.umask(0o077))


def host_umask():
    """Return the host's umask, as become_private() found it."""
    try:
        return int(os.environ.get("JOBQUEUE_UMASK", ""), 8) & 0o777
    except ValueError:
        return 0o077


# store/connection.py ---------------------------------------------------------
#
# Connection: its verbs, hints and errors, files of the data folder.
#
# SQLite and PostgreSQL share this room. Other rooms use the verbs of Connection. Only the schema and the
# rooms of store/ about connections and databases know a dialect.

VARIABLES_MAX = 999             # bound values of one statement, before SQLite 3.32
MANY_AT_ONCE = 500              # values in one IN list
SEARCH_SECONDS = 0.2            # limit of one search in a table, and of one count
LOOK_SECONDS = 0.02             # limit of one read within a search: other threads wait meanwhile

# SQL for SQLite. to_postgres() removes it or writes it differently.
BY_CLAIM, BY_TURN, BY_OWNER, BY_UNIQUE, BY_FOLLOWER = (
    "INDEXED BY " + index
    for index in ("task_claim", "task_turn", "task_owner", "task_unique", "task_after_follower"))
BY_ID = "NOT INDEXED"
THEN_JOIN = "CROSS JOIN"        # the table on its left is read first
CONTAINS = "instr(lower(%s), lower(?))>0"

# Statements contain names of statuses; with_statuses() replaces them. ENDED stands for all final statuses.
STATUS_NUMBERS = {**{word.upper(): str(number) for number, word in enumerate(STATUS_WORDS)},
                  "ENDED": "(%d, %d, %d)" % (SUCCEEDED, FAILED, CANCELLED)}
STATUS_NAMES = r"\b(%s)\b" % "|".join(STATUS_NUMBERS)

BUSY = "The queue is busy; nothing was changed. Please try again."
FULL = "The disk or the quota is full; nothing was changed."
OWNER_GONE = "This user was deleted meanwhile; nothing was changed."
UNUSABLE = "The database %(path)s cannot be used: %(said)s."


def cannot_write(folder, error):
    """Return the error for an OSError in the data folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(FULL)
    return StorageBroken("Nothing can be written in %s: %s." % (folder, error.strerror))


def free_bytes(path):
    """Return how many bytes this user may still write beside `path`; OSError if `path` does not exist."""
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def emptied(path):
    """Return the error for an empty database file. No new database is ever made in its place."""
    return StorageBroken("The database %s is empty: it was overwritten or emptied. "
                         "Put a backup in its place." % path)


def find_database(folder, allow_empty=False):
    """Return the path of the one file jobqueue-*.db, .server or .remote; SetupError if there is not just one.

    An empty file raises StorageBroken, unless `allow_empty`.
    """
    try:
        names = [name for name in os.listdir(folder)
                 if re.fullmatch(r"jobqueue-.*\.(db|server|remote)", name)]
    except OSError as error:
        raise SetupError("The data folder %s cannot be read: %s."
                         % (folder, error.strerror)) from None
    if len(names) != 1:
        raise SetupError("The data folder %s holds %s: exactly one is expected. %s" % (
            folder, ", ".join(sorted(names)) or "no jobqueue-*.db",
            "Move the unused ones away." if names else
            "(A folder that is new and empty can be deleted: it is made when there is none.)"))
    path = Path(folder) / names[0]
    status = path.stat()
    if not allow_empty and (not stat.S_ISREG(status.st_mode) or status.st_size == 0):
        raise emptied(path)
    return path


def private_path(database, name):
    """Return the path of a file beside the database, with the database's random word in its name.

    Some web servers deliver files of this folder in spite of .htaccess. The word makes their addresses
    impossible to guess.
    """
    stem, dot, ending = name.partition(".")
    word = database.stem.partition("-")[2]
    return database.with_name("%s-%s%s%s" % (stem, word, dot, ending))


def private_folder(database, name):
    """Return the path of a folder beside the database, with a digest in its name.

    Tasks see and print the paths of their files. The 64 random bits in the database's name cannot be
    computed from the digest.
    """
    import hashlib
    word = hashlib.sha256(("%s %s" % (name, database.stem)).encode("utf-8", "surrogateescape")).hexdigest()
    return database.with_name("%s-%s" % (name, word[:16]))


@contextlib.contextmanager
def open_folder(folder):
    """Open a folder and yield its descriptor.

    OSError for a symbolic link: another user may have put it in the folder's place.
    """
    room = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield room
    finally:
        os.close(room)


@contextlib.contextmanager
def write_part(room, pieces, name=None):
    """Write a hidden file into an open folder, and yield its name. Only this user can read it.

    The caller renames it in the block, or it is removed.
    """
    part = "." + (name or random_token(8))
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=room), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=room)


def write_private(path, text):
    """Write a text to a file that only this user can read: all of the text, or nothing."""
    # resolve(): the data folder itself may be a symbolic link.
    with open_folder(path.parent.resolve()) as room, \
            write_part(room, [text.encode("utf-8")]) as part:
        os.replace(part, path.name, src_dir_fd=room, dst_dir_fd=room)


def file_identity(path):
    """Return the identity of the file at a path, or None. A file that replaces it has another identity."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except OSError:
        return None


@functools.lru_cache(maxsize=1000)
def with_statuses(statement):
    """Return a statement with each name of a status replaced by its number."""
    return re.sub(STATUS_NAMES, lambda match: STATUS_NUMBERS[match[0]], statement)


class Reader:
    """A base class with the queries of connections and databases, all built on all()."""

    def all(self, statement, values=()):
        """Return all rows."""
        raise NotImplementedError

    def one(self, statement, values=()):
        """Return the first row, or None."""
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def value(self, statement, values=()):
        """Return the first column of the first row, or None."""
        row = self.one(statement, values)
        return row[0] if row else None

    def row(self, statement, values=()):
        """Return the first row of a statement that always has one."""
        return self.all(statement, values)[0]

    def all_of(self, statement, values, many):
        """Yield all rows of a statement whose `%s` stands for the values in `many`, after all `values`.

        The statement runs once for each MANY_AT_ONCE of them.
        """
        all_values = list(many)
        for at in range(0, len(all_values), MANY_AT_ONCE):
            portion = all_values[at:at + MANY_AT_ONCE]
            yield from self.all(statement % ", ".join("?" * len(portion)), (*values, *portion))


@functools.lru_cache(maxsize=100)
def insert_statement(words, table, columns, rows=1):
    """Return an INSERT (or INSERT OR IGNORE) of `rows` rows into a table."""
    marks = "(%s)" % ", ".join("?" * len(columns))
    return "%s INTO %s (%s) VALUES %s" % (
        words, table, ", ".join(columns), ", ".join([marks] * rows))


class Connection(Reader):
    """A connection to a database. Callers handle the errors of its driver.

    This base class is a connection that is not open yet. FileConnection and ServerConnection derive from
    it.
    """

    @property
    def is_broken(self):
        """Return True if the connection cannot be used any more."""
        return True

    @property
    def changes(self):
        """Return how many rows were added, changed or removed so far."""
        raise NotImplementedError

    def close(self):
        """Close the connection, unless it is closed."""

    def run(self, statement, values=()):
        """Execute a statement; return the number of rows changed."""
        raise NotImplementedError

    def many(self, statement, rows):
        """Execute a statement once for each of `rows`; return the number of rows changed."""
        raise NotImplementedError

    def insert(self, table, row):
        """Add a row, given as a dictionary; return its id."""
        raise NotImplementedError

    def set_last_id(self, table, last):
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        raise NotImplementedError

    def all_within(self, seconds, clock, statement,
                   values=()):
        """Return all rows, or None if that takes longer than `seconds`."""
        raise NotImplementedError

    def roll_back(self):
        """Undo an open transaction, if there is one."""

    def advance_ids(self, table, last):
        """Tell the database that rows with ids up to `last` were added. SQLite advances its sequence
        itself."""

    # The next four methods return nothing, so ServerConnection sends their statements with the next query.

    def run_later(self, statement, values=()):
        """Execute a statement, at the latest with the next query."""
        self.run(statement, values)

    def run_many_later(self, statement, rows):
        """Execute a statement once for each of `rows`, at the latest with the next query."""
        self.many(statement, rows)

    def ensure(self, table, row):
        """Add a row, unless there is a row with its key."""
        self.run_later(insert_statement("INSERT OR IGNORE", table, tuple(row)), tuple(row.values()))

    def insert_all(self, table, rows,
                   most=VARIABLES_MAX):
        """Add rows with the same columns, with at most `most` values in one statement.

        That takes half the time of single rows. It also holds the write lock for less time, because
        sqlite3 gives other threads a chance to run after each statement.
        """
        coming = iter(rows)
        first = next(coming, None)
        if first is None:
            return
        coming, size = itertools.chain([first], coming), max(1, most // len(first))
        for portion in iter(lambda: list(itertools.islice(coming, size)), []):
            self._insert_some(table, tuple(first), [tuple(row.values()) for row in portion],
                              len(portion) == size)

    def _insert_some(self, table, columns, rows,
                     are_full):
        self.run_many_later(insert_statement("INSERT", table, columns), rows)

    def upsert(self, table, key, row):
        """Update the row with this key, or add it."""
        if not self.update(table, row, " AND ".join(name + "=?" for name in key), key.values()):
            row = {**key, **row}
            self.run(insert_statement("INSERT", table, tuple(row)), tuple(row.values()))

    def update(self, table, changes, where,
               values=()):
        """Change columns of the rows that fulfil `where`; return their number."""
        return self.run("UPDATE %s SET %s WHERE %s" % (
            table, ", ".join(name + "=?" for name in changes), where), (*changes.values(), *values))


class OneThread:
    """A lock for the threads of this process. A database server needs no other lock on this machine."""

    def __init__(self, clock):
        self._clock, self._threads = clock, threading.Lock()

    def acquire(self, deadline):
        """Wait for the lock; Busy at the deadline (monotonic)."""
        if not self._threads.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
            raise Busy(BUSY)

    def release(self):
        """Release the lock."""
        self._threads.release()


class Deadline(threading.local):
    """The moment (monotonic) until which this thread may wait for a busy database."""

    at = math.inf


# store/schema.py -------------------------------------------------------------
#
# The tables, and how an older database becomes a newer one.
#
# Times are UTC seconds since 1970. SQL is the subset of SQLite 3.15. Ids are never used again
# (AUTOINCREMENT), so an old id never names another row. `activity` and `log` do without AUTOINCREMENT, because
# it costs a page in every commit. An index with the status of a task costs as much, because each change of
# status moves an entry. So only two indexes have the status.

SCHEMA_VERSION = 9              # version of SCHEMA; SQLite stores it in PRAGMA user_version

SCHEMA = """
CREATE TABLE IF NOT EXISTS user (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE UNIQUE,
    password TEXT NOT NULL,             -- method$parameters$salt$hash
    role TEXT NOT NULL,                 -- one of ROLES
    disabled INTEGER NOT NULL DEFAULT 0,
    max_pending INTEGER,                -- NULL: the setting of this name
    max_running INTEGER,                -- NULL: no limit
    email TEXT,                         -- confirmed, or given by an admin
    created_at REAL NOT NULL, last_seen_at REAL,
    summary TEXT,                       -- JSON {"hour", "zone"}; NULL: no summary by mail
    summary_at REAL                     -- when the next summary is due
);
CREATE TABLE IF NOT EXISTS saved (          -- filters and values of forms that a user saved by name
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES user(id),
    page TEXT NOT NULL,                 -- tasks, or new/FUNCTION
    name TEXT NOT NULL,
    value TEXT NOT NULL,                -- JSON object
    UNIQUE (user_id, page, name)
);
CREATE TABLE IF NOT EXISTS session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the cookie
    user_id INTEGER NOT NULL REFERENCES user(id),
    address TEXT,                       -- where it began
    created_at REAL NOT NULL, seen_at REAL NOT NULL, expires_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS token (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the token
    user_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT NOT NULL,
    scope TEXT NOT NULL,                -- one of TOKEN_SCOPES
    created_at REAL NOT NULL, last_used_at REAL,
    limits TEXT                         -- of scope worker: JSON {"queues", "functions"}
);
CREATE TABLE IF NOT EXISTS throttle (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL UNIQUE,       -- user:NAME, address:IP, known:ID address:IP or password:ID
    failures INTEGER NOT NULL, failed_at REAL NOT NULL, until REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS known_address (  -- where a user logged in from lately
    user_id INTEGER NOT NULL REFERENCES user(id),
    address TEXT NOT NULL,              -- as in throttle
    until REAL NOT NULL,
    PRIMARY KEY (user_id, address)
);
CREATE TABLE IF NOT EXISTS setting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,          -- of SETTINGS
    value TEXT NOT NULL                 -- JSON
);
CREATE TABLE IF NOT EXISTS state (      -- values that the program itself keeps
    name TEXT PRIMARY KEY NOT NULL,     -- of STATE
    value TEXT NOT NULL                 -- JSON
);
CREATE TABLE IF NOT EXISTS function (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE, title TEXT NOT NULL, description TEXT NOT NULL,
    schema TEXT NOT NULL,               -- JSON Schema 2020-12 of the arguments
    options TEXT NOT NULL,              -- JSON, see TASK_OPTIONS
    who TEXT NOT NULL                   -- user, admin or nobody
);
CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0, paused_by TEXT, paused_at REAL, paused_why TEXT,
    max_running INTEGER,                -- NULL: no limit
    rate_count INTEGER,                 -- at most rate_count starts in rate_seconds
    rate_seconds REAL, rate_next_at REAL,
    machines TEXT,                      -- JSON list of names; NULL: any
    external INTEGER NOT NULL DEFAULT 0,    -- 1: only other people's workers serve it; 2: remote
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER,
    lock TEXT NOT NULL,                 -- name of its file in locks/; what a remote one chose
    lock_proven INTEGER NOT NULL DEFAULT 0,
    mode TEXT NOT NULL,                 -- detached, cron, slice, service or remote
    state TEXT NOT NULL,                -- starting, idle, busy or stopping
    version TEXT NOT NULL,
    tasks INTEGER NOT NULL DEFAULT 0,   -- ended by it so far
    runner_pid INTEGER,
    runner_birth TEXT,                  -- see birth(); NULL where that cannot be known
    started_at REAL NOT NULL, seen_at REAL NOT NULL,
    lease_monotonic REAL NOT NULL, lease_wall REAL NOT NULL,
    token_id INTEGER,                   -- of remote workers: whose they are,
    functions TEXT,                     -- what they announced (JSON)
    sequence INTEGER                    -- and the number of the last call
);
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    queue TEXT NOT NULL, function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    status INTEGER NOT NULL,            -- index into STATUS_WORDS
    reason TEXT,                        -- why failed, or why it waits for a retry
    priority INTEGER NOT NULL,          -- -100..100, larger first
    turn INTEGER NOT NULL,              -- pending: place among equals; scheduled: run_at in ms
    run_at REAL,                        -- not before; NULL: at once
    unique_key TEXT,                    -- NULL when finished, see task_ended
    max_retries INTEGER NOT NULL,
    retries_left INTEGER NOT NULL,      -- -1: max_retries is 0, and RetryAfter was granted
    retry_delay REAL NOT NULL, retry_backoff REAL NOT NULL, timeout REAL NOT NULL,
    on_crash TEXT NOT NULL,             -- retry or fail
    after_failure TEXT,                 -- fail or run, for tasks that come after others
    remove_on_success INTEGER NOT NULL DEFAULT 0,
    notify TEXT,                        -- end or failure: tell the owner by mail
    admin_id INTEGER,                   -- who asked for what only admins may; NULL: the site's code
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0, interruptions INTEGER NOT NULL DEFAULT 0,
    put_backs INTEGER NOT NULL DEFAULT 0,   -- attempts that ran no function, and cost nothing
    unknown_since REAL,                 -- since when no tasks.py that we saw has its function
    claim TEXT,                         -- random, proves an attempt; stays after the end. One of a
                                        -- remote worker begins with ? until it says that it has it
    worker_id INTEGER,
    lease_boot TEXT,
    lease_monotonic REAL,               -- counts while lease_boot is this boot
    lease_wall REAL,                    -- counts everywhere else, with slack
    cancel_requested INTEGER NOT NULL DEFAULT 0,    -- 1 cancel, 2 delete
    progress REAL,                      -- 0..1
    message TEXT,
    samples TEXT,                       -- while it runs: JSON [[seconds, CPU seconds, bytes of memory]]
    result TEXT,                        -- JSON
    error_type TEXT, error_message TEXT,
    schedule_id INTEGER,
    created_at REAL NOT NULL, started_at REAL, finished_at REAL
);
CREATE INDEX IF NOT EXISTS task_claim ON task (status, queue, priority DESC, turn, id);
CREATE INDEX IF NOT EXISTS task_turn ON task (owner_id, status, queue, priority, turn);
CREATE INDEX IF NOT EXISTS task_owner ON task (owner_id);
CREATE INDEX IF NOT EXISTS task_unique ON task (owner_id, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_schedule ON task (schedule_id)
WHERE schedule_id IS NOT NULL AND status NOT IN ENDED;
CREATE TABLE IF NOT EXISTS task_after (
    task_id INTEGER NOT NULL,           -- this one comes after ...
    after_id INTEGER NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0, -- 0 is waited for, 1 is over as it should, 2 given up
    place INTEGER,                      -- among those that it comes after, as they were named
    PRIMARY KEY (task_id, settled, after_id)
);
CREATE INDEX IF NOT EXISTS task_after_follower ON task_after (settled, after_id);
CREATE TABLE IF NOT EXISTS unsettled (      -- tasks that ended, while others wait for them still
    task_id INTEGER PRIMARY KEY,
    status INTEGER                      -- NULL: deleted
);
-- What follows when a task ends or goes, whoever ends or removes it, in whatever language.
-- An end sets status and finished_at in one statement.
CREATE TRIGGER IF NOT EXISTS task_ended AFTER UPDATE OF finished_at ON task
WHEN new.status BETWEEN SUCCEEDED AND CANCELLED     -- IN is slow here
    AND old.status NOT BETWEEN SUCCEEDED AND CANCELLED AND (
    old.status=WAITING OR new.unique_key IS NOT NULL OR old.cancel_requested=2 OR new.remove_on_success=1
    OR EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=new.id))
BEGIN
    INSERT OR IGNORE INTO unsettled (task_id, status)
    SELECT new.id, CASE WHEN old.cancel_requested<2 THEN new.status END
    WHERE EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=new.id);
    UPDATE task_after SET settled=2 WHERE settled=0 AND task_id=new.id;
    UPDATE task SET unique_key=NULL WHERE id=new.id AND unique_key IS NOT NULL;
    DELETE FROM task WHERE id=new.id
        AND (old.cancel_requested=2 OR new.status=SUCCEEDED AND new.remove_on_success=1);
END;
CREATE TRIGGER IF NOT EXISTS task_removed AFTER DELETE ON task
BEGIN
    INSERT OR IGNORE INTO unsettled (task_id, status)
    SELECT old.id, CASE WHEN old.status IN ENDED THEN old.status END
    WHERE EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=old.id);
    DELETE FROM task_after WHERE task_id=old.id;
    DELETE FROM log WHERE task_id=old.id;
    UPDATE file SET task_id=NULL, until=0 WHERE task_id=old.id AND key IS NOT NULL;
    DELETE FROM file WHERE task_id=old.id;
END;
CREATE TABLE IF NOT EXISTS file (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL,
    task_id INTEGER,                    -- NULL: no task has it, and it goes at `until`
    key TEXT,                           -- of what was handed in, for one task or several;
                                        -- NULL: the task left it in its folder
    name TEXT,                          -- NULL: it is still being written
    size INTEGER NOT NULL,
    until REAL
);
CREATE INDEX IF NOT EXISTS file_task ON file (task_id);
CREATE INDEX IF NOT EXISTS file_key ON file (key);
CREATE INDEX IF NOT EXISTS file_owner ON file (owner_id);
CREATE INDEX IF NOT EXISTS file_until ON file (until) WHERE until IS NOT NULL;
CREATE TABLE IF NOT EXISTS activity (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL,
    task_id INTEGER, attempt INTEGER, worker_id INTEGER, owner_id INTEGER,
    function TEXT, queue TEXT,
    waited REAL,                        -- seconds from due to started; of a lost worker those
                                        -- since it was last heard of
    seconds REAL,                       -- seconds from started to ended
    cpu_seconds REAL,
    peak_memory INTEGER,                -- bytes
    service REAL,                       -- seconds from added to ended, when it ended for good
    machine TEXT,                       -- of the worker that began or ended
    actor TEXT,                         -- who did it, if it was a person
    message TEXT
);
CREATE INDEX IF NOT EXISTS activity_task ON activity (task_id);
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL, attempt INTEGER NOT NULL,
    start INTEGER NOT NULL,             -- offset of this piece in bytes of UTF-8
    length INTEGER NOT NULL,
    text TEXT NOT NULL,
    at REAL,                            -- when it came; NULL: before version 7
    UNIQUE (task_id, attempt, start)
);
CREATE TABLE IF NOT EXISTS request (        -- answers to requests with an Idempotency-Key
    owner_id INTEGER NOT NULL, key TEXT NOT NULL,
    digest TEXT NOT NULL,               -- SHA-256 of what was asked
    created_at REAL NOT NULL,
    answer TEXT NOT NULL,               -- JSON
    PRIMARY KEY (owner_id, key)
);
CREATE TABLE IF NOT EXISTS schedule (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT,                          -- unique among those from tasks.py, and from folders
    source TEXT NOT NULL,               -- person, code or folder
    function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    options TEXT NOT NULL,              -- JSON, those of TASK_OPTIONS that were chosen
    rule TEXT NOT NULL, zone TEXT NOT NULL,
    start REAL NOT NULL,                -- where "every N seconds" begins to count
    catch_up TEXT NOT NULL,             -- none, once or all
    overlap TEXT NOT NULL,              -- skip, queue or allow
    paused INTEGER NOT NULL DEFAULT 0, paused_by TEXT, paused_at REAL, paused_why TEXT,
    problem TEXT,                       -- why it could not add its task the last time
    gone_at REAL,                       -- since when its source does not name it; NULL: it does
    next_at REAL,                       -- NULL: never again, or paused
    next_from REAL,                     -- the time from which next_at was counted
    last_at REAL,                       -- the slot that was looked at last
    last_task_id INTEGER,
    late_at REAL,                       -- when a run was last late, or several fell together
    set_by INTEGER,                     -- who made or changed it last; NULL: the site's own code
    created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS schedule_next ON schedule (paused, next_at);
CREATE INDEX IF NOT EXISTS schedule_next_from ON schedule (next_from);
CREATE TABLE IF NOT EXISTS slot (           -- each time a schedule was due, once
    schedule_id INTEGER NOT NULL, at REAL NOT NULL,
    task_id INTEGER,                    -- NULL: skipped, and why
    message TEXT,
    PRIMARY KEY (schedule_id, at)
);
CREATE TABLE IF NOT EXISTS hour (           -- the activity of an hour or so, as far as folded
    span INTEGER NOT NULL,              -- one of SPANS: its seconds; 0: of all time
    at INTEGER NOT NULL,                -- its beginning
    function TEXT NOT NULL, queue TEXT NOT NULL,
    added INTEGER NOT NULL DEFAULT 0, started INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, retried INTEGER NOT NULL DEFAULT 0,
    crashed INTEGER NOT NULL DEFAULT 0,
    waited TEXT, ran TEXT, service TEXT,    -- JSON: count, sum, minimum, maximum, {bucket: count}
    cpu_seconds REAL NOT NULL DEFAULT 0, peak_memory INTEGER,
    PRIMARY KEY (span, at, function, queue)
);
CREATE TABLE IF NOT EXISTS worker_hour (
    span INTEGER NOT NULL, at INTEGER NOT NULL, machine TEXT NOT NULL,
    alive_seconds REAL NOT NULL DEFAULT 0, busy_seconds REAL NOT NULL DEFAULT 0,
    tasks INTEGER NOT NULL DEFAULT 0,
    executed TEXT,                      -- as in hour; how long all attempts ran
    PRIMARY KEY (span, at, machine)
);
CREATE TABLE IF NOT EXISTS recent (         -- the latest runs of a function, as far as folded
    function TEXT PRIMARY KEY NOT NULL,
    runs TEXT NOT NULL                  -- JSON: [[task id, owner id, status, seconds]]
);
CREATE TABLE IF NOT EXISTS shift (          -- a worker's life, as far as worker_hour has it
    worker_id INTEGER PRIMARY KEY, machine TEXT NOT NULL,
    counted_to REAL NOT NULL,
    ended_at REAL                       -- NULL: it lives
);
CREATE TABLE IF NOT EXISTS alert (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    code TEXT NOT NULL,                 -- of FINDINGS
    subject TEXT NOT NULL,              -- what it is about: a function and its error, a schedule
    text TEXT NOT NULL,                 -- the latest sentence
    count INTEGER NOT NULL DEFAULT 1,
    opened_at REAL NOT NULL, seen_at REAL NOT NULL,     -- first, last; open if they differ
    told INTEGER NOT NULL DEFAULT 0, told_at REAL,      -- how often, and when last
    muted_until REAL, ended_at REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS alert_open ON alert (code, subject) WHERE ended_at IS NULL;
CREATE TABLE IF NOT EXISTS delivery (       -- what is told to one place, and how that goes
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,              -- mail, webhook or function
    recipient TEXT NOT NULL,
    content TEXT NOT NULL,              -- JSON
    tries INTEGER NOT NULL DEFAULT 0,
    next_at REAL,                       -- when to try it; NULL: it is sent, or given up
    sent_at REAL, error TEXT, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS delivery_next ON delivery (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS delivery_recipient ON delivery (recipient, id);
INSERT OR IGNORE INTO queue (name, created_at) VALUES ('default', strftime('%s', 'now'));
"""

# Statements that migrate databases of older versions. SQLite runs SCHEMA before them, PostgreSQL does not.
FROM_6 = """
ALTER TABLE token ADD COLUMN limits TEXT;
ALTER TABLE worker ADD COLUMN token_id INTEGER;
ALTER TABLE worker ADD COLUMN functions TEXT;
ALTER TABLE worker ADD COLUMN sequence INTEGER;
ALTER TABLE user ADD COLUMN email TEXT;
ALTER TABLE user ADD COLUMN max_running INTEGER;
ALTER TABLE session ADD COLUMN address TEXT;
ALTER TABLE task ADD COLUMN notify TEXT;
ALTER TABLE task_after ADD COLUMN place INTEGER;
ALTER TABLE activity ADD COLUMN service REAL;
ALTER TABLE activity ADD COLUMN machine TEXT;
ALTER TABLE activity ADD COLUMN actor TEXT;
ALTER TABLE log ADD COLUMN at REAL;
DELETE FROM setting WHERE name='.rhythm';
"""
FROM_7 = """
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);
INSERT OR IGNORE INTO state (name, value) SELECT substr(name, 2), value FROM setting
WHERE name IN ('.alerts', '.backup', '.catalogue', '.daily_backup', '.doubts', '.exposure', '.files',
    '.folded', '.keeping', '.rhythm', '.start_failure', '.tasks_files', '.used_code');
DELETE FROM setting WHERE substr(name, 1, 1)='.';
"""
FROM_8 = """
ALTER TABLE user ADD COLUMN summary TEXT;
ALTER TABLE user ADD COLUMN summary_at REAL;
ALTER TABLE task ADD COLUMN samples TEXT;
CREATE TABLE IF NOT EXISTS saved (id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES user(id), page TEXT NOT NULL, name TEXT NOT NULL,
    value TEXT NOT NULL, UNIQUE (user_id, page, name));
"""
MIGRATIONS = {0: "", SCHEMA_VERSION: "", 8: FROM_8, 7: FROM_7 + FROM_8, 6: FROM_6 + FROM_7 + FROM_8,
              4: FROM_6 + """
ALTER TABLE worker ADD COLUMN runner_pid INTEGER;
ALTER TABLE worker ADD COLUMN runner_birth TEXT;
ALTER TABLE schedule ADD COLUMN late_at REAL;
ALTER TABLE schedule ADD COLUMN gone_at REAL;
ALTER TABLE task ADD COLUMN unknown_since REAL;
ALTER TABLE task ADD COLUMN put_backs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN admin_id INTEGER;
UPDATE task SET put_backs=(
    SELECT count(*) FROM activity WHERE task_id=task.id AND event='put_back')
WHERE attempts>0 AND status<>SUCCEEDED;
UPDATE task SET admin_id=owner_id
WHERE status NOT IN ENDED AND function IN (SELECT name FROM function WHERE who='admin')
    AND owner_id IN (SELECT id FROM user WHERE role='admin');
UPDATE task SET unique_key=NULL WHERE unique_key IS NOT NULL AND status IN ENDED;
INSERT OR IGNORE INTO unsettled (task_id, status)
SELECT DISTINCT after_id, status FROM task_after LEFT JOIN task ON task.id=after_id
WHERE settled=0 AND (status IS NULL OR status IN ENDED);
DROP TABLE IF EXISTS task_key;
DROP TABLE IF EXISTS machine;
""" + FROM_7 + FROM_8}


def statements(script):
    """Yield the SQL statements of a script. Each ends at the end of a line."""
    lines = []
    for line in script.splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines)
            lines = []


def another_version(version):
    """Return the error for a database whose schema version this code cannot use."""
    return SetupError("The database has schema version %d, this jobqueue.py has %d. Copy the "
                      "newer jobqueue.py and worker.py here, and restart the web server."
                      % (version, SCHEMA_VERSION))


def migrate(transaction):
    """Bring an empty or older SQLite file to the newest schema version, in a given transaction.

    SetupError if its version is newer or too old.
    """
    version = transaction.value("PRAGMA user_version")
    if version == SCHEMA_VERSION:
        return
    if version not in MIGRATIONS:
        raise another_version(version)
    for statement in statements(SCHEMA + MIGRATIONS[version]):
        transaction.run(statement)
    transaction.run("PRAGMA user_version=%d" % SCHEMA_VERSION)


# store/database.py -----------------------------------------------------------
#
# Database: reads, writes in transactions, waits until a deadline.
#
# SqliteDatabase and PostgresDatabase derive from it.

SEARCH_IDS = 64                # ids in the first range of a search; its time decides the size of the next
OTHER_MACHINE_SLACK_SECONDS = 300.0     # tolerated difference between the clocks of two machines






class Page(NamedTuple):
    """Rows, and the id at which the next page begins; None if there are no more rows."""

    rows: "list[Row]"
    cursor: "int | None"


class Database(Reader):
    """A database, for any number of threads.

    All reads share one connection, all writes another, all long reads a third. Threads take turns at each:
    `sqlite3` releases the interpreter lock at every row, which slows down concurrent threads. A transaction
    has these steps:

    1. Wait for the write lock, until the thread's deadline at most.
    2. Begin, if this process may still write this database.
    3. Run the block and commit. If another program keeps the file busy, wait.
    4. Ring the bell and checkpoint, then release the write lock.

    A derived class implements _connect(), _begin() and _commit(). Its _problem() turns an error of the
    driver into an error of ours; a mistake of ours stays as it is.
    """

    errors: "type[Exception] | tuple[type[Exception], ...]" = ()      # exceptions of the driver
    waited = 0.0                        # seconds that the last wait for the write lock took
    clock_offset = 0.0                  # seconds by which this machine's clock is ahead of the server's
    journal: "str | None" = None          # journal mode of a file; None for a server
    pauses = 0.0005, 0.005              # shortest and longest pause while the database is busy, in seconds
    hears_all = True                    # True if version_seen() changes with every commit
    is_shared = False                   # True if machines without this data folder may use the database
    has_own_disk = False                # True if no other machine has this data folder
    last_id_words = "SELECT seq FROM sqlite_sequence WHERE name='%s'"
    version_words = "PRAGMA user_version"
    snapshot_words: "tuple[str, ...]" = ("BEGIN", "SELECT count(*) FROM sqlite_master")
    path: "Path"                          # the database file, or the file with the epoch of the server
    _write_lock: "OneThread"

    def __init__(self, folder, clock, patience):
        self.folder = Path(folder)
        self.clock = clock
        self.patience = patience        # seconds until Busy, unless a deadline comes first
        self.lease_seconds, self.slack_seconds = LEASE_SECONDS, OTHER_MACHINE_SLACK_SECONDS
        self._deadline = Deadline()
        self._reading, self._looking = threading.Lock(), threading.Lock()
        self._writer_thread = None
        self._reader = self._writer = self._looker = Connection()

    def close(self):
        """Close all connections."""
        with self._looking, self._reading:
            for link in (self._reader, self._writer, self._looker):
                link.close()

    @property
    def alarm(self):
        """Return a descriptor that becomes readable when there may be tasks, or None."""
        return None

    def ring(self):
        """Wake other idle workers: there may be tasks for them, too."""

    def calm(self):
        """Clear the wake-up. The caller must look for work again before it waits."""

    def sign(self):
        """Show other machines that this one uses the database."""

    def check_file(self):
        """Raise StorageBroken if a write would be lost."""

    def _open(self, name):
        """Return the connection in the attribute `name`. Open it first if it is closed or broken."""
        link = getattr(self, name)
        if link.is_broken:
            link = self._connect()
            setattr(self, name, link)
        return link

    def _connect(self):
        raise NotImplementedError

    def _begin(self, durable):
        raise NotImplementedError

    def _commit(self, durable):
        raise NotImplementedError

    def _problem(self, error):
        raise NotImplementedError

    def version_seen(self):
        """Return a value that changes after commits, our own included; after every one if `hears_all`."""
        raise NotImplementedError

    def size(self):
        """Return the size in bytes."""
        raise NotImplementedError

    def wal_bytes(self):
        """Return the size of the write-ahead log in bytes."""
        return 0

    def server_facts(self):
        """Return a row about a server: its version, `lags` and `holder`. A file has no such row."""
        raise NotImplementedError

    def damage(self):
        """Return the first damage in the file, or None. The whole file is read."""
        raise NotImplementedError

    def copy_to(self, path):
        """Copy everything, as of one moment, into the empty file `path`, and check the copy."""
        raise NotImplementedError

    # Reading

    def all(self, statement, values=()):
        """Return all rows; Busy at the deadline.

        RuntimeError inside a transaction of this thread: read through the connection of the transaction.
        """
        self.refuse_inside()
        return self._patiently(lambda: self._read(statement, values))

    def refuse_inside(self):
        """Raise RuntimeError inside a transaction of this thread."""
        if self._writer_thread == threading.get_ident():
            raise RuntimeError("a transaction reads through the connection that it was given")

    def _read(self, statement, values):
        with self._reading:
            return self._reader.all(statement, values)

    def read_within(self, statement, values=(),
             seconds=math.inf):
        """Return the rows of a long read, or None at its time limit, and the seconds that it took.

        Long reads have a connection of their own, so short reads do not wait for them.
        """
        with self._looking:
            started = self.clock.monotonic()
            rows = self._patiently(lambda: self._open("_looker").all_within(
                seconds, self.clock, statement, values))
            return rows, self.clock.monotonic() - started

    def last_id(self, table):
        """Return the highest id that any row of a table ever had."""
        return self.value(self.last_id_words % table) or 0

    def walk(self, statement, values, low, high, seconds,
             newest=False):
        """Yield the rows in each range of ids above `low` up to `high`, and the id that was reached.

        The bounds of the range are the first two values of `statement`. A range that takes longer than
        LOOK_SECONDS is read again as a smaller one. After a quick read the next range is larger. The walk
        stops after `seconds`, but reads at least one range.
        """
        deadline, size, moved = self.clock.monotonic() + seconds, SEARCH_IDS, False
        while low < high and not (moved and self.clock.monotonic() > deadline):
            bounds = (max(low, high - size), high) if newest else (low, min(low + size, high))
            rows, took = self.read_within(
                statement, (*bounds, *values), LOOK_SECONDS if size > 1 else math.inf)
            if rows is None:
                size = max(1, size // 4)
            else:
                moved, (low, high) = True, (low, bounds[0]) if newest else (bounds[1], high)
                yield rows, high if newest else low
                size *= 2 if took < LOOK_SECONDS / 3 else 1
            self.clock.sleep(0.001)         # lets other threads read

    def search(self, statement, values, low, high, limit,
               seconds, newest=True):
        """Return at most `limit` rows with ids above `low` up to `high`, see walk().

        A search that takes longer than `seconds` stops with fewer rows.
        """
        rows = []
        place, end = None, low if newest else high
        for found_rows, reached in self.walk(statement, values, low, high, seconds, newest):
            rows += found_rows
            place = None if reached == end else reached + newest
            if len(rows) > limit:
                return Page(rows[:limit], rows[limit - 1]["id"])
        return Page(rows, place)

    @contextlib.contextmanager
    def snapshot(self):
        """Yield a connection that sees the database as of one moment."""
        try:
            with contextlib.closing(self._patiently(self._connect)) as link:
                for words in self.snapshot_words:
                    self._patiently(functools.partial(link.run, words))
                yield link
        except self.errors as error:
            raise self._problem(error)

    # Waiting

    @contextlib.contextmanager
    def deadline(self, seconds=WEB_PATIENCE_SECONDS):
        """Set a deadline for all waits of this thread in the block, unless it has an earlier one."""
        before = self._deadline.at
        self._deadline.at = min(before, self.clock.monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline.at = before

    @contextlib.contextmanager
    def deadline_paused(self):
        """Put off the thread's deadline by the time that the block takes, such as to read a body."""
        started = self.clock.monotonic()
        try:
            yield
        finally:
            self._deadline.at += self.clock.monotonic() - started

    def seconds_left(self):
        """Return how many seconds this thread may still wait."""
        return max(0.0, min(self.patience, self._deadline.at - self.clock.monotonic()))

    def _patiently(self, action):
        """Do an action; try again while the database is busy and the deadline has not passed."""
        until = 0.0
        while True:
            try:
                return action()
            except self.errors as error:
                problem, now = self._problem(error), self.clock.monotonic()
                until = until or now + self.seconds_left()
                if not isinstance(problem, Busy) or now >= until:
                    raise problem
            self.clock.sleep(self.clock.uniform(*self.pauses))

    # Writing

    @property
    def in_transaction(self):
        """Return True inside a transaction of this thread."""
        return self._writer_thread == threading.get_ident()

    @contextlib.contextmanager
    def transaction(self, durable=True):
        """Run the block in a transaction; yield its connection.

        A commit that is not `durable` survives the death of processes, but no power cut. Raises Busy,
        StorageFull or StorageBroken if nothing was changed. If a server's connection breaks in COMMIT,
        Busy may say instead that the result is unknown.
        """
        if self.in_transaction:
            raise RuntimeError("a transaction within a transaction")
        with self.deadline(self.patience):
            started = self.clock.monotonic()
            self._write_lock.acquire(self._deadline.at)
            try:
                self._patiently(lambda: self._begin(durable))
                self.waited = self.clock.monotonic() - started    # including the wait for a server's lock
                self._writer_thread = threading.get_ident()
                yield self._writer
                self._commit(durable)
            except self.errors as error:
                self._writer.roll_back()
                raise self._problem(error)
            except BaseException:
                self._writer.roll_back()
                raise
            finally:
                self._writer_thread = None
                self._write_lock.release()

    def alone(self, action):
        """Run an action in a transaction of its own; return its result."""
        with self.transaction() as transaction:
            return action(transaction)

    def together(self, action):
        """Run an action in a transaction that other threads may share (group commit); return its result."""
        return self.alone(action)


# store/sqlite_connection.py --------------------------------------------------
#
# A connection to the SQLite file; SQLite's errors as ours.

WAL_ALARM_BYTES = 16 << 20
LOOK_STEPS = 1000               # SQLite's steps between two tests of a time limit; they read about 30 tasks

# A pattern for SQLite's message about the database or the disk, our error, and its sentence. (sqlite3 tells
# the error's code since Python 3.11 only.) All other messages show a mistake of ours.
STORAGE_ERRORS = (
    ("locked|locking protocol|busy", Busy, BUSY),
    ("foreign key", Conflict, OWNER_GONE),
    ("is full", StorageFull, FULL),
    ("readonly", StorageBroken, "The database %(path)s cannot be written by this user."),
    ("malformed|not a database", StorageBroken,
     "The database %(path)s is damaged (%(said)s). It is left as it is: put a backup in its "
     "place."),
    ("disk i/o error|unable to open|unsupported file format|could not decode|no such table"
     "|permission denied|closed database", StorageBroken, UNUSABLE),
)


def storage_error(error, path):
    """Return our error for an error of SQLite's, or the same error if it is our mistake."""
    message = str(error)
    rows = [row for row in STORAGE_ERRORS if re.search(row[0], message.lower())]
    if not rows:
        return error
    _, kind, sentence = rows[0]
    with contextlib.suppress(OSError):      # SQLite also says this if the log's index finds the disk full
        if sentence == UNUSABLE and free_bytes(path) < 32768:
            return StorageFull(FULL)
    return kind(sentence % {"path": path, "said": message})


class FileConnection(Connection):
    """A connection to an SQLite file."""

    is_broken = False

    def __init__(self, path):
        self._link = sqlite3.connect("file:%s?mode=rw" % quote(str(path)), uri=True, timeout=0,
                                     isolation_level=None, check_same_thread=False)
        self._link.row_factory = sqlite3.Row
        self._link.execute("PRAGMA wal_autocheckpoint=0")   # only DataFile makes checkpoints
        self._link.execute("PRAGMA temp_store=MEMORY")      # no temporary files: other users might read them

    def close(self):
        """Close. SQLite then makes a checkpoint, under an exclusive lock, if no other connection is open."""
        self._link.close()

    @property
    def changes(self):
        """Return how many rows were added, changed or removed so far."""
        return self._link.total_changes

    def run(self, statement, values=()):
        """Execute a statement; return the number of rows changed."""
        return self._link.execute(with_statuses(statement), values).rowcount

    def many(self, statement, rows):
        """Execute a statement once for each of `rows`; return the number of rows changed."""
        return self._link.executemany(with_statuses(statement), rows).rowcount

    def insert(self, table, row):
        """Add a row, given as a dictionary; return its id."""
        return self._link.execute(insert_statement("INSERT", table, tuple(row)),
                                  tuple(row.values())).lastrowid or 0

    def _insert_some(self, table, columns, rows,
                     are_full):
        if are_full:
            self.run(insert_statement("INSERT", table, columns, len(rows)),
                     list(itertools.chain.from_iterable(rows)))
        else:                           # a statement for this number of rows would have to be prepared
            super()._insert_some(table, columns, rows, are_full)

    def set_last_id(self, table, last):
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        self.upsert("sqlite_sequence", {"name": table}, {"seq": last})

    def all(self, statement, values=()):
        """Return all rows."""
        return self._link.execute(with_statuses(statement), values).fetchall()

    def all_within(self, seconds, clock, statement,
                   values=()):
        """Return all rows, or None if that takes longer than `seconds`."""
        end = clock.monotonic() + seconds
        self._link.set_progress_handler(lambda: clock.monotonic() > end, LOOK_STEPS)
        try:
            return self.all(statement, values)
        except sqlite3.OperationalError as error:
            if str(error) != "interrupted":
                raise
            return None
        finally:
            self._link.set_progress_handler(None, 0)

    def roll_back(self):
        """Undo an open transaction, if there is one."""
        if self._link.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.run("ROLLBACK")

    def copy_to(self, path):
        """Copy the database into the file `path` and check the copy."""
        with contextlib.closing(sqlite3.connect(str(path))) as copy:
            self._link.backup(copy)
            verdict = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StorageBroken("The copy is damaged, and so may be the database: %s." % verdict)


# store/write_lock.py ---------------------------------------------------------
#
# One write at a time, and the bell that wakes idle workers.

WRITE_POLL_SECONDS = (0.0001, 0.01)     # the shortest and the longest pause between two polls
WRITE_POLLS = 8                 # polls during a wait of the usual length
WRITE_GAP_SECONDS = 0.00005     # two writes with a shorter gap are back-to-back
WRITE_STREAK_SECONDS = 0.005
WRITE_REST_SECONDS = 0.0015


class WriteLock(OneThread):
    """A lock that allows one write at a time: a lock of threads, and `flock` on a file among processes.

    SQLite's own waiting starves older waiters, because they sleep longer. Here the pause between two polls
    has a small upper limit. It begins longer after long waits, because many pollers slow the writer down. A
    process that has written back-to-back for WRITE_STREAK_SECONDS pauses if another process waits. Waiting
    processes show that by a shared lock on a second file.
    """

    def __init__(self, path, clock):
        super().__init__(clock)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._waiting = os.open("%s.wait" % path, os.O_RDWR | os.O_CREAT, 0o600)
        self._released = self._streak = 0.0
        self._usual = 0.0               # moving average of the latest waits, in seconds

    def acquire(self, deadline):
        """Wait for the lock; Busy at the deadline (monotonic)."""
        super().acquire(deadline)
        try:
            now = self._clock.monotonic()
            if now - self._released > WRITE_GAP_SECONDS:
                self._streak = now
            elif now - self._streak > WRITE_STREAK_SECONDS:
                self._rest()
            if not self._flock(self._file, fcntl.LOCK_EX):
                self._wait(deadline)
            self._usual += (self._clock.monotonic() - now - self._usual) / 4
        except BaseException:
            super().release()
            raise

    def release(self):
        """Release the lock."""
        self._flock(self._file, fcntl.LOCK_UN)
        self._released = self._clock.monotonic()
        super().release()

    def close(self):
        """Close the files, unless they are closed."""
        for file in {self._file, self._waiting} - {-1}:
            os.close(file)
        self._file = self._waiting = -1

    def _rest(self):
        """Pause if another process waits."""
        if not self._flock(self._waiting, fcntl.LOCK_EX):
            self._clock.sleep(WRITE_REST_SECONDS)
        self._flock(self._waiting, fcntl.LOCK_UN)
        self._streak = self._clock.monotonic()

    def _wait(self, deadline):
        """Poll for the lock; Busy at the deadline."""
        self._flock(self._waiting, fcntl.LOCK_SH)
        pause, longest = WRITE_POLL_SECONDS
        pause = max(pause, min(longest, self._usual / WRITE_POLLS))
        try:
            while not self._flock(self._file, fcntl.LOCK_EX):
                if self._clock.monotonic() > deadline:
                    raise Busy(BUSY)
                self._clock.sleep(self._clock.uniform(pause / 2, pause))
                pause = min(longest, pause * 1.2)
        finally:
            self._flock(self._waiting, fcntl.LOCK_UN)

    @staticmethod
    def _flock(file, kind):
        """Lock or unlock a file; return False if another process has the lock.

        On a host without flock, SQLite's own lock must do.
        """
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass
        return True


class Bell:
    """A named pipe that wakes idle workers.

    1. After a durable commit a process writes one byte into the pipe, without blocking. So does a worker
       that begins tasks, because there may be more than it takes.
    2. A worker without work empties the pipe, looks for work again, and waits.

    If no byte arrives (a file system without pipes, an add on another machine), a worker looks by itself,
    at least once a second.
    """

    def __init__(self, path):
        self.pipe = None
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):      # another process may create it at the same time
                os.mkfifo(path, 0o600)
            if stat.S_ISFIFO(os.stat(path).st_mode):
                # Open for reading and writing: so it never ends, and open() does not wait for a reader.
                self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def ring(self):
        """Wake all idle workers."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # a full pipe is readable anyway
                os.write(self.pipe, b".")

    def calm(self):
        """Clear the wake-up."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # another worker has emptied it
                os.read(self.pipe, 1 << 16)

    def close(self):
        """Close the pipe, unless it is closed."""
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            os.close(pipe)


# store/sqlite.py -------------------------------------------------------------
#
# SQLite: one file, its journal, its log.
#
# "Log" means SQLite's write-ahead log (WAL) here. Journal holds the journal mode and the machine that uses
# the log. DataFile looks after the file and its log. SqliteDatabase reads and writes.

WAL_CHECKPOINT_BYTES = 4 << 20
CHECKPOINT_PAUSE_SECONDS = 1.0
MACHINE_SIGN_SECONDS = 60.0     # pause between two signs of life of a machine that uses the log
MACHINE_SILENT_SECONDS = 150.0  # silence after which another machine may use the log
RUN_ALONE = Exception()         # answer to all actions of a group commit if one of several failed
LOCAL_FILE_SYSTEMS = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay simfs ufs".split())


def file_system(path):
    """Return the type of the file system that holds `path`, or "unknown"."""
    best, kind, real_path = "", "unknown", os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return kind
    for line in lines:
        mount_part, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_part.split(" ", 5)[4])
        if len(mount) >= len(best) and (real_path + "/").startswith(mount.rstrip("/") + "/"):
            best, kind = mount, right.split(" ")[0]
    return kind


def up_seconds():
    """Return for how many seconds this system has been running. Linux leaves out the time that it slept."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def safe_journal(folder):
    """Return the journal mode for a folder. WAL needs a local disk."""
    return "wal" if file_system(folder) in LOCAL_FILE_SYSTEMS else "truncate"


class Journal:
    """The journal mode of a database, "wal" or "truncate", and the machine that uses its log.

    Both stand in a small file. It is read before SQLite opens the database, because a log that two machines
    share becomes corrupt. One kernel is one machine: its containers have names of their own, but can share
    a log. The file's time is the last sign of life of the machine.
    """

    def __init__(self, database):
        self._database = database
        self.path = private_path(database, "journal.json")
        self.identity = file_identity(self.path)    # changes with each write
        try:
            stored = json.loads(self.path.read_text("utf-8"))
            self.mode, self.machine, self._boot = stored["mode"], stored["machine"], stored.get("boot")
            if self.mode not in ("wal", "truncate"):
                raise ValueError(self.mode)
        except (OSError, ValueError, KeyError, TypeError):
            raise SetupError(
                "%s is missing or unreadable; it says how the database is written. With everything "
                "stopped, make it anew: python3 jobqueue.py check --repair" % self.path) from None

    @staticmethod
    def decide(database, mode, now):
        """Write the file: this machine uses the database in this mode."""
        path = private_path(database, "journal.json")
        write_private(path, dump_json({"mode": mode, "machine": machine_name(), "boot": boot_id()}))
        os.utime(path, (now, now))

    def admit(self, now):
        """Return the journal, renewed for this machine; SetupError if this machine may not use the log."""
        kind = file_system(self.path.parent)
        if self.mode == "wal" and kind not in LOCAL_FILE_SYSTEMS:
            self._refuse("which is not safe on this file system (%s)" % kind)
        self.refuse_another(now)
        if self.mode == "wal" and self._boot != boot_id():
            self.decide(self._database, "wal", now)
        self.sign(now)
        return Journal(self._database)

    def refuse_another(self, now):
        """Raise SetupError if another machine uses the log and gave a sign of life lately."""
        seen_at = self.path.stat().st_mtime
        started_again = self.machine == machine_name() and now - seen_at > up_seconds()
        if (self.mode == "wal" and not self._is_ours() and not started_again
                and abs(now - seen_at) < MACHINE_SILENT_SECONDS):
            until = iso(seen_at + MACHINE_SILENT_SECONDS)[11:19]
            self._refuse("which lets no other machine use it before %s UTC" % until)

    def _refuse(self, why):
        raise SetupError(
            "The data folder %s is used in WAL mode by the machine %s, %s. If several machines are to "
            "use it, stop jobqueue on all of them and run on that machine: "
            "python3 jobqueue.py check --repair shared"
            % (self.path.parent, self.machine, why))

    def sign(self, now):
        """Renew the sign of life of this machine if it is due."""
        with contextlib.suppress(OSError):
            if self.mode == "wal" and abs(now - self.path.stat().st_mtime) >= MACHINE_SIGN_SECONDS:
                os.utime(self.path, (now, now))

    def check(self):
        """Read the file again; StorageBroken if it has another mode, or another machine that uses the log."""
        current = Journal(self._database)
        if current.mode != self.mode or current.mode == "wal" and not current._is_ours():
            raise StorageBroken("The database is written in %s mode now, by the machine %s. Stop "
                                "and start everything." % (current.mode.upper(), current.machine))
        self.identity = current.identity

    def _is_ours(self):
        stored, boot = self._boot, boot_id()
        return bool(stored == boot if stored and boot else self.machine == machine_name())


class DataFile(Database):
    """A database in a file, with the care of the file and its log.

    SQLite 3.7.0 to 3.51.2 can corrupt a WAL database when a checkpoint runs during a write
    (sqlite.org/wal.html#walresetbug). Nearly every host has such a version. So automatic checkpoints are
    off on every connection. Our checkpoints run only under the write lock.
    """

    def __init__(self, folder, clock, patience):
        super().__init__(folder, clock, patience)
        self.path = find_database(self.folder)
        self._wal = Path(str(self.path) + "-wal")
        self._journal = Journal(self.path).admit(clock.now())
        self.journal = self._journal.mode
        self.has_own_disk = self.journal == "wal"
        self._checkpoint_timer = Every(CHECKPOINT_PAUSE_SECONDS, clock)
        self._identities = (None, None)      # identities of the file and its log
        if self.journal == "wal":
            self._refuse_missing_log()

    def sign(self):
        """Show other machines that this one uses the database."""
        self._journal.sign(self.clock.now())

    def check_file(self):
        """Raise StorageBroken if the file or its log was removed or replaced: a write would be lost."""
        if (file_identity(self.path), file_identity(self._wal)) != self._identities:
            raise StorageBroken("The database %s or its log was removed or replaced while it was "
                                "in use. Stop and start everything." % self.path)
        if file_identity(self._journal.path) != self._journal.identity:
            self._journal.check()

    def wal_bytes(self):
        """Return the size of the log. A checkpoint is due once it exceeds WAL_CHECKPOINT_BYTES."""
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _refuse_missing_log(self):
        """Raise StorageBroken if the log was deleted, because the newest tasks were in it.

        SQLite makes the log before the log's index, and removes it after the index. So an index without a
        log shows that another program deleted the log.
        """
        index = Path(str(self.path) + "-shm")
        looks = [path.exists() for path in (index, self._wal, index, self._wal)]
        if looks == [True, False, True, False]:     # looked twice: another connection may open or close it
            raise StorageBroken(
                "The log of the database, %s, was deleted: the newest tasks are missing. Put it "
                "back; if it is lost, delete %s to go on with what is left."
                % (self._wal, index.name))

    def _connect(self):
        link = FileConnection(self.path)
        try:
            link.run("PRAGMA foreign_keys=ON")
            link.run("PRAGMA cache_size=-250")      # small: commits of other connections empty it
            if self.journal == "wal":
                # SQLite keeps a log file of this size, so that commits need not extend it. A longer log shows
                # that a checkpoint is due.
                link.run("PRAGMA journal_size_limit=%d" % WAL_CHECKPOINT_BYTES)
                link.value("SELECT count(*) FROM sqlite_master")
                if link.value("PRAGMA journal_mode") != "wal":
                    self.journal = "truncate"       # another program has turned WAL off
            else:
                link.value("PRAGMA journal_mode=TRUNCATE")
        except BaseException:
            link.close()
            raise
        return link

    def _checkpoint(self, writer, reader):
        """Make a checkpoint while `writer` locks out all other writers. After 50 ms no new pass begins."""
        deadline, before, pages, copied = self.clock.monotonic() + 0.05, -1, 1, 0
        with contextlib.suppress(sqlite3.Error):
            writer.run("BEGIN IMMEDIATE")
            while copied not in (pages, before) and self.clock.monotonic() < deadline:
                before = copied         # go on while more pages are copied
                _, pages, copied = reader.row("PRAGMA wal_checkpoint(PASSIVE)")
            writer.run("ROLLBACK")
            if copied == pages:
                self._checkpoint_timer.hasten(0.0)
                if self.wal_bytes() > WAL_ALARM_BYTES:
                    # The first write after a complete checkpoint starts the log anew, and SQLite cuts the
                    # file to journal_size_limit. Any write will do.
                    writer.run("PRAGMA application_id=0")
        writer.roll_back()


class _Waiting:
    """An action that a thread wants to run in a group commit. Afterwards `answer` has its result or error."""

    def __init__(self, action):
        self.action = action
        self.answer = None


class SqliteDatabase(DataFile):
    """A database in the SQLite file of the data folder: reads, writes and group commits."""

    errors = sqlite3.Error
    _write_lock: "WriteLock"

    def __init__(self, folder, clock=Clock,
                 patience=WEB_PATIENCE_SECONDS):
        super().__init__(folder, clock, patience)
        self._synchronous, self._changes_before = "", 0
        self._group_condition, self._is_led = threading.Condition(), False
        self._waiting = []
        try:
            self._write_lock = WriteLock(self.folder / "turn.lock", clock)
            self._bell = Bell(self.folder / "bell")
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        try:
            with self.deadline(patience):
                self._reader = self._patiently(self._connect)
                self._writer = self._patiently(self._connect)
                self._identities = file_identity(self.path), file_identity(self._wal)
                self._check_schema()
        except BaseException:
            self.close()
            raise

    def _check_schema(self):
        version = self.value(self.version_words)
        if version == 0:
            raise emptied(self.path)
        if version != SCHEMA_VERSION:
            with self.transaction() as transaction:
                migrate(transaction)

    def close(self):
        """Close all connections, the lock and the bell."""
        super().close()
        self._write_lock.close()
        self._bell.close()

    @property
    def alarm(self):
        """Return the descriptor of the bell's pipe, or None. It is readable when there may be tasks."""
        return self._bell.pipe

    def ring(self):
        """Wake other idle workers: there may be tasks for them, too."""
        self._bell.ring()

    def calm(self):
        """Clear the wake-up. The caller must look for work again before it waits."""
        self._bell.calm()

    def version_seen(self):
        """Return a number that changes with every commit, our own included."""
        return self.value("PRAGMA data_version")

    def __str__(self):
        return self.path.name

    def size(self):
        """Return the size in bytes."""
        return self.path.stat().st_size

    def damage(self):
        """Return the first damage that SQLite finds in the file, or None. The whole file is read."""
        try:
            with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
                verdict = self._patiently(lambda: link.value("PRAGMA quick_check(1)"))
        except StorageBroken as error:
            verdict = error.detail
        return None if verdict == "ok" else verdict

    def copy_to(self, path):
        """Copy everything, as of one moment, into the empty file `path`, and check the copy."""
        with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
            self._patiently(lambda: link.copy_to(path))

    def together(self, action):
        """Run an action and those of other threads in one durable transaction (group commit).

        Return the result of the action. If an action of the group fails, each thread runs its own alone. If
        the commit fails, each thread raises its error.
        """
        if threading.active_count() == 1:
            return self.alone(action)
        mine = _Waiting(action)
        with self.deadline(self.patience), self._group_condition:
            self._waiting.append(mine)
            while not mine.answer:
                if self._is_led:
                    self._group_condition.wait()
                else:
                    self._lead(mine)
        error = mine.answer[1]
        if error is RUN_ALONE:
            return self.alone(action)
        if error:
            raise error
        return mine.answer[0]

    def _lead(self, mine):
        """Run all waiting actions in one transaction; set the answer of each."""
        group, self._is_led = [mine], True
        results = []
        failure = None
        self._group_condition.release()
        try:
            with self.transaction() as transaction:
                group = self._waiting[:]
                results = [(waiting.action(transaction), None) for waiting in group]
            for waiting, answer in zip(group, results):
                waiting.answer = answer
        except Exception as error:
            failure = error if results or len(group) == 1 else RUN_ALONE
        finally:
            self._group_condition.acquire()
            for waiting in group:
                self._waiting.remove(waiting)
                waiting.answer = waiting.answer or (None, failure or Busy(BUSY))
            self._is_led = False
            self._group_condition.notify_all()

    def _begin(self, durable):
        mode = "FULL" if durable or self.journal != "wal" else "NORMAL"
        self.check_file()
        if mode != self._synchronous:
            self._writer.run("PRAGMA synchronous=" + mode)
            self._synchronous = mode
        self._writer.run("BEGIN IMMEDIATE")

    def _commit(self, durable):
        self._patiently(lambda: self._writer.run("COMMIT"))
        # The bell rings after durable commits that changed rows, such as an add. Tasks that other commits
        # make pending are found when a worker's wait ends, at most a second later.
        if durable and self._writer.changes > self._changes_before:
            self._bell.ring()
        self._changes_before = self._writer.changes
        if self.wal_bytes() > WAL_CHECKPOINT_BYTES and self._checkpoint_timer.begin_if_due():
            with self._looking, self._reading:      # this may wait for a long read
                self._checkpoint(self._writer, self._reader)

    def _problem(self, error):
        return storage_error(error, self.path)


@contextlib.contextmanager
def open_exclusively(path, mode):
    """Set the journal mode of a database that no other program uses; yield a connection to it."""
    try:
        with contextlib.closing(FileConnection(path)) as link:
            link.run("PRAGMA page_size=1024")   # commits write whole pages, so small pages cost less
            actual = link.value("PRAGMA journal_mode=" + mode.upper())
            if actual != mode:
                raise StorageBroken("SQLite keeps its journal here as %s only" % actual)
            yield link
    except sqlite3.Error as error:
        raise storage_error(error, path)


def migrate_file(link):
    """Bring an empty or older file to the newest schema version, in one transaction."""
    link.run("BEGIN IMMEDIATE")
    migrate(link)
    link.run("COMMIT")


def create_database(path, mode):
    """Make an empty database in this journal mode."""
    write_private(path, "")
    with open_exclusively(path, mode) as link:
        link.run("PRAGMA synchronous=FULL")
        migrate_file(link)
    Journal.decide(path, mode, Clock.now())


def copy_backup(file, part):
    """Copy a backup to `part`; SetupError if it is damaged, is no backup, or has an unknown version."""
    import shutil
    write_private(part, "")
    shutil.copyfile(file, part)
    try:
        with contextlib.closing(FileConnection(part)) as link:
            version = link.value("PRAGMA user_version")
            verdict = link.value("PRAGMA quick_check(1)")
    except sqlite3.Error:
        version, verdict = 0, None
    if not version or verdict != "ok":
        raise SetupError("%s is not a backup, or is damaged; nothing was changed. (An export is read "
                         "by python3 jobqueue.py import.)" % file)
    if version not in MIGRATIONS:
        raise another_version(version)


# store/postgres_sql.py -------------------------------------------------------
#
# PostgreSQL's dialect: a statement is translated as a whole.
#
# SAID_OTHERWISE has the differences in statements, SCHEMA_OTHERWISE those in the schema.

CALL_SECONDS = 12.0             # how long a call waits for a silent server
CONNECT_SECONDS = 5

SAID_OTHERWISE = (
    (r"\b(NOT INDEXED|INDEXED BY \w+)", ""),
    (r"\bCROSS JOIN\b", "JOIN"),
    (r"\binstr\(", "strpos("),
    (r"\bINSERT OR IGNORE (INTO [^;]*)", r"INSERT \1 ON CONFLICT DO NOTHING"),
    (r"\bIN \(\)", "IN (NULL)"),
    # Statistics of a table without pending tasks say that no row has the status 0. The addition keeps the
    # planner from an index on the status: the row must be found by its id.
    (r"(\bWHERE id=\? AND )status=", r"\1status+0="),
    (r"\bFROM user WHERE name=\?", "FROM user WHERE lower(name)=lower(?)"),     # as COLLATE NOCASE does
    (r"\blower\(\?\)", 'lower(? COLLATE "C")'),      # letters A to Z only, as in the column
)
SCHEMA_OTHERWISE = (
    (r"--.*|\bIF NOT EXISTS ", ""),
    # PostgreSQL has no subqueries in the condition of a trigger, so the trigger's function tests it.
    (r"\nWHEN (new\.(?s:.*?))\nBEGIN", r"\nBEGIN\n    IF NOT (\1) THEN RETURN NULL; END IF;"),
    (r"CREATE TRIGGER (\w+) (AFTER .*)\n(BEGIN(?s:.*?))END;\n",
     r"CREATE FUNCTION jobqueue_\1() RETURNS trigger LANGUAGE plpgsql AS $$ \3 RETURN NULL; END $$;"
     r"CREATE TRIGGER \1 \2 FOR EACH ROW EXECUTE FUNCTION jobqueue_\1();"),
    (r"CREATE INDEX task_owner .*\n", ""),      # task_turn does its work; each index costs time
    (r"\bid INTEGER PRIMARY KEY( AUTOINCREMENT)?",
     "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bREAL\b", "DOUBLE PRECISION"),
    (r"\bname TEXT NOT NULL COLLATE NOCASE UNIQUE", "name TEXT NOT NULL"),
    (r"\bTEXT\b", 'TEXT COLLATE "C"'),
    (r"strftime\('%s', 'now'\)", "extract(epoch FROM clock_timestamp())"),
)
# Tables and settings that SQLite does not need. Rows of `task` change often, but seldom in indexed columns:
# free space in its pages lets such changes spare the indexes (HOT updates).
SERVER_SCHEMA = """
CREATE UNIQUE INDEX user_name ON user (lower(name));
CREATE TABLE jobqueue (version BIGINT NOT NULL, epoch TEXT NOT NULL);
CREATE TABLE mark (         -- the number of each process' last transaction that changed something
    writer TEXT PRIMARY KEY, number BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL);
ALTER TABLE task SET (fillfactor=80, autovacuum_vacuum_scale_factor=0.02,
    autovacuum_analyze_scale_factor=0.05);
"""

SERVER_FILE, NO_EPOCH = ".server", "new"    # ending and first content of the file that holds the epoch


def replace_patterns(text, otherwise):
    """Return a text in which each pattern of `otherwise` is replaced, in their order."""
    for pattern, replacement in otherwise:
        text = re.sub(pattern, replacement, text)
    return text


@functools.lru_cache(maxsize=500)
def to_postgres(statement):
    """Return a statement in PostgreSQL's dialect, as psycopg takes it."""
    statement = replace_patterns(with_statuses(statement), SAID_OTHERWISE)
    words = {"?": "%s", "%": "%%", "user": '"user"'}
    return re.sub(r"'[^']*'|\?|%|\buser\b", lambda match: words.get(
        match[0], match[0].replace("%", "%%")), statement)


# store/postgres_connection.py ------------------------------------------------
#
# A connection to a PostgreSQL server, with a deadline for each call.

LOOK_SECONDS_MAX = 60.0         # limit of a long read, even if its caller sets none
LINK_OPTIONS = {
    "application_name": "jobqueue", "client_encoding": "utf8", "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 15000, "target_session_attrs": "read-write"}
# The server must end sessions of clients that vanish or accept no answer. Such a session may hold the lock
# row, and nothing else would release that. Some servers do not know all of these settings.
SERVER_KEEPALIVES = """SELECT set_config(name, value, false) FROM (VALUES ('tcp_user_timeout', '5000'),
    ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '1'),
    ('client_connection_check_interval', '1000')) AS wanted (name, value)
WHERE version() LIKE '%linux%' AND current_setting(name, true) <> ''"""
# A role may have synchronous_commit off. Then a crash of the server loses commits that it has confirmed.
SERVER_SYNCHRONOUS = """SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit')='off'"""
# The server keeps the plans of prepared statements while tables grow from ten rows to a million. So it must
# prefer indexes, as SQLite does. These options are sent when a connection starts: a SET through
# a pooler would also affect other applications.
SERVER_PLANS = (" -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
                " -c random_page_cost=1 -c jit=off")
STATEMENT_MS = 10_000           # limit of a statement on the server
IDLE_MS = 4_000                 # limit of an idle transaction, which may hold the lock row
SERVER_PROCESS = "SELECT pg_backend_pid()"
PREPARED_AFTER, PREPARED_MAX = 1, 300   # executions before a statement is prepared; prepared ones kept
LATER_MAX = 500                 # rows of values that may wait for the next query

      # SQL in SQLite's dialect, and rows of values



class ServerRow(AnyTuple):
    """A row of PostgreSQL's. As in SQLite's rows, a column has a number and a name."""

    __slots__ = ()
    names: "tuple[str, ...]" = ()
    places: "dict[str, int]" = {}

    def keys(self):
        """Return the names of the columns."""
        return self.names

    def __getitem__(self, key):
        return tuple.__getitem__(self, self.places[key] if key.__class__ is str else key)


@functools.lru_cache(maxsize=500)
def _row_class(encoded_names):
    names = tuple(name.decode() for name in encoded_names)
    places = {name: names.index(name) for name in names}
    return type("ServerRow", (ServerRow,), {"__slots__": (), "names": names, "places": places})


def _make_rows(cursor):
    """Return the class of a cursor's rows, for psycopg's row_factory."""
    result = cursor.pgresult
    return _row_class(tuple(map(result.fname, range(result.nfields))) if result else ())


class Driver(NamedTuple):
    """psycopg, our connection class with a deadline for each call, and the adapters of values."""

    psycopg: "Any"
    connection: "Any"
    adapters: "Any"


@functools.lru_cache(maxsize=None)
def driver():
    """Import psycopg and return it; SetupError if it is missing or too old."""
    import logging
    try:
        import psycopg
        if not hasattr(psycopg.waiting, "READY_NONE"):      # an older version never gives up a silent server
            raise ImportError("this is %s" % psycopg.__version__)
    except ImportError as error:
        raise SetupError('A queue on PostgreSQL needs psycopg 3.2 or newer (%s): %s -m pip install -U '
                         '"psycopg[binary]"' % (shorten(str(error), 200), sys.executable)) from None
    logging.getLogger("psycopg").setLevel(logging.ERROR)    # psycopg's warnings repeat its errors
    int_dumper, text_dumper = psycopg.types.numeric.Int8Dumper, psycopg.types.string.StrDumperUnknown

    class Number(psycopg.adapt.Loader):  # type: ignore[misc]   # psycopg is skipped: it is optional
        """A loader that reads numeric values, such as sums, as int or float; it also reads booleans."""

        def load(self, data):
            text = bytes(data)
            return int(text) if text.isdigit() else text == b"t" if text in b"tf" else float(text)

    class Truth(int_dumper):  # type: ignore[misc, valid-type]
        """A dumper that stores booleans as numbers."""

        def dump(self, obj):
            return b"%d" % obj

    class Text(text_dumper):  # type: ignore[misc, valid-type]
        """A dumper that lets a text stand for any type, and escapes NUL."""

        def dump(self, obj):
            return super().dump(storable(obj) if "\0" in obj else obj)

    class LimitedConnection(psycopg.Connection):  # type: ignore[misc]
        """A connection whose calls end at `deadline` (monotonic)."""

        deadline = math.inf

        def wait(self, gen, *arguments, **named):
            """Run a call of psycopg; OperationalError at the deadline."""
            return super().wait(self._limited(gen), *arguments, **named)

        def _limited(self, gen):
            ready = None
            try:
                while True:
                    event = gen.send(ready)
                    if time.monotonic() > self.deadline:
                        self.pgconn.finish()    # late answers would be taken for those of the next query
                        raise psycopg.OperationalError("the server does not answer")
                    ready = yield event
            except StopIteration as end:
                return end.value

    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in ("numeric", "bool"):
        adapters.register_loader(name, Number)
    for kind, dumper in ((int, int_dumper), (bool, Truth), (str, Text)):
        adapters.register_dumper(kind, dumper)
    return Driver(psycopg, LimitedConnection, adapters)


class Reply(NamedTuple):
    """The server's status message for a statement, such as "UPDATE 3", and the statement's rows."""

    word: "str"
    rows: "Sequence[ServerRow]"


class ServerConnection(Connection):
    """A connection to PostgreSQL.

    Statements of run_later() and run_many_later() are sent with the next query, in one pipeline.
    """

    def __init__(self, address):
        self._psycopg, connection, adapters = driver()
        self.limit = math.inf           # most seconds of a call, besides the call's own limit
        self.change_count = 0           # rows changed in this transaction; a waiting statement counts as one
        self._later = []
        self._rows_later = 0
        self._listens, self._heard = False, 0   # if LISTEN was sent; number of notifications
        options = {**LINK_OPTIONS, **self._psycopg.conninfo.conninfo_to_dict(address)}
        options["options"] = "%s%s -c statement_timeout=%d -c idle_in_transaction_session_timeout=%d" % (
            options.get("options", ""), SERVER_PLANS, STATEMENT_MS, IDLE_MS)
        self._link = connection.connect(
            **options, autocommit=True, context=adapters, row_factory=_make_rows,
            prepare_threshold=PREPARED_AFTER)
        self._link.prepared_max = PREPARED_MAX
        self._link.add_notify_handler(self._hear)
        *_, process = self.ask("%s; %s; %s" % (SERVER_KEEPALIVES, SERVER_SYNCHRONOUS, SERVER_PROCESS),
                               CONNECT_SECONDS)
        # A pooler gives a new connection an invented process number.
        self.is_pooled = process.rows[0][0] != self._link.info.backend_pid

    @property
    def is_broken(self):
        """Return True if the connection cannot be used any more."""
        return bool(self._link.closed)

    @property
    def changes(self):
        """Return a number above 0 if rows were added, changed or removed in this transaction, or may be."""
        return self.change_count

    def close(self):
        """Close the connection."""
        self._link.close()

    def fileno(self):
        """Return the descriptor of the connection's socket."""
        return self._link.fileno()

    @contextlib.contextmanager
    def _limited(self, seconds=CALL_SECONDS):
        """Let the calls of the block end within `seconds`, and within `limit`.

        Close a connection whose server refuses writes: it became a replica, and another server takes its
        place.
        """
        self._link.deadline = time.monotonic() + min(seconds, self.limit)
        try:
            yield
        except self._psycopg.Error as error:
            if error.sqlstate == "25006":
                self.close()
            raise
        finally:
            self._link.deadline = math.inf

    def ask(self, text, seconds=CALL_SECONDS):
        """Execute the statements of a text, which have no values; return a Reply for each."""
        with self._limited(seconds):
            cursor = self._link.execute(text, prepare=False)
            replies = [self._reply(cursor)]
            while cursor.nextset():
                replies.append(self._reply(cursor))
        return replies

    def send(self, *statements):
        """Execute the statements that wait, then `statements`; return a cursor for each of `statements`."""
        waiting, self._later, self._rows_later = self._later, [], 0
        with self._limited(), self._pipeline(sum(len(rows) for _, rows in (*waiting, *statements))):
            for statement, rows in waiting:
                self._execute(statement, rows)
            return [self._execute(statement, rows) for statement, rows in statements]

    @contextlib.contextmanager
    def _pipeline(self, count):
        """Send the `count` statements of the block in one pipeline.

        After an error the connection is closed. Else psycopg would use a statement as prepared that the
        server skipped.
        """
        if count < 2 or not self._psycopg.Pipeline.is_supported():
            yield
            return
        try:
            with self._link.pipeline():
                yield
        except self._psycopg.Error:
            self.close()
            raise

    def _execute(self, statement, rows):
        words = to_postgres(statement)
        if len(rows) == 1:
            return self._link.execute(words, rows[0])
        cursor = self._link.cursor()
        cursor.executemany(words, rows)
        return cursor

    @staticmethod
    def _reply(cursor):
        return Reply(cursor.statusmessage or "", cursor.fetchall() if cursor.pgresult.nfields else ())

    def run(self, statement, values=()):
        """Execute a statement; return the number of rows changed."""
        return self.many(statement, [values])

    def many(self, statement, rows):
        """Execute a statement once for each of `rows`, in one pipeline; return the number of rows changed."""
        batch = [tuple(values) for values in rows]
        count = max(0, self.send((statement, batch))[0].rowcount) if batch else 0
        self.change_count += count
        return count

    def run_later(self, statement, values=()):
        """Execute a statement with the next query."""
        self.run_many_later(statement, [values])

    def run_many_later(self, statement, rows):
        """Execute a statement for each of `rows` with the next query."""
        batch = [tuple(values) for values in rows]
        if batch:
            self._later.append((statement, batch))
            self._rows_later += len(batch)
            self.change_count += 1      # the number of rows is not known yet
        if self._rows_later > LATER_MAX:
            self.send()

    def insert(self, table, row):
        """Add a row, given as a dictionary; return its id."""
        self.change_count += 1
        return self.value(insert_statement("INSERT", table, tuple(row)) + " RETURNING id",
                          tuple(row.values()))

    def set_last_id(self, table, last):
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        self.run_later("SELECT setval('%s_id_seq', ?, CAST(? AS BOOLEAN))" % table,
                       (max(last, 1), "true" if last else "false"))

    advance_ids = set_last_id

    def all(self, statement, values=()):
        """Return all rows."""
        rows = self._reply(self.send((statement, [tuple(values)]))[0]).rows
        return rows

    def all_within(self, seconds, clock, statement,
                   values=()):
        """Return all rows, or None if that takes longer than `seconds`."""
        most = min(max(seconds, 0.001), LOOK_SECONDS_MAX)
        try:
            with self._limited(most + CALL_SECONDS):
                self._link.execute("BEGIN; SET LOCAL statement_timeout=%d" % (most * 1000), prepare=False)
                cursor = self._link.execute(to_postgres(statement), tuple(values), prepare=False)
                self._link.execute("COMMIT", prepare=False)
            return self._reply(cursor).rows
        except self._psycopg.Error as error:
            if error.sqlstate != "57014" or seconds > most:
                raise
            return None
        finally:
            self.roll_back()

    def heard(self):
        """Return a value that changes with each notification. The first call begins to listen."""
        if not self._listens:
            self._listens = True
            self.run("LISTEN jobqueue")
        self._link.pgconn.consume_input()
        for notification in iter(self._link.pgconn.notifies, None):
            self._hear(notification)
        return id(self), self._heard

    def _hear(self, notification):
        self._heard += 1

    def roll_back(self):
        """Undo an open transaction, if there is one, and drop the statements that wait."""
        self._later, self._rows_later = [], 0
        if not self.is_broken and self._link.info.transaction_status:
            try:
                self.ask("ROLLBACK")
            except self._psycopg.Error:
                self.close()


# store/postgres.py -----------------------------------------------------------
#
# PostgreSQL: the lock row, the server's time, notifications.
#
# Several machines may share a server. PostgresDatabase locks the only row of the table `jobqueue` while it
# writes. So one transaction runs at a time, as in a file.

SERVER_SLACK_SECONDS = 5.0      # tolerated difference; all machines use the server's clock
# One round trip locks the row. READ COMMITTED lets the transaction see the commits made during its wait.
# `at` is the time at which the row was locked. Every commit is durable: after a crash of the server a worker
# must not run a task whose claim was lost.
SERVER_BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout=%d;
    WITH held AS MATERIALIZED (SELECT version, epoch FROM jobqueue FOR UPDATE)
    SELECT version, epoch, extract(epoch FROM clock_timestamp())::float8 AS at FROM held"""
# The last statement of a transaction. Its row shows the writer whether a COMMIT without an answer succeeded.
# The server's transaction id is no proof: a crashed server gives lost ids to other transactions.
SERVER_MARK = """
    INSERT INTO mark VALUES (?, ?, extract(epoch FROM clock_timestamp()))
    ON CONFLICT (writer) DO UPDATE SET number=excluded.number, at=excluded.at"""
# Sent after COMMIT: a transaction that notifies would need a lock of the whole server.
SERVER_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('jobqueue', '')"
PING_SECONDS = 2                # the shortest connect_timeout of libpq
# Patterns of errors without an SQLSTATE: the connection is refused, or a later attempt may succeed. The
# driver's messages are in English, the server's in any language.
REFUSALS = "translate host|not known|certificate|pg_hba"
LATER = "too many|slots are reserved|read-only|timeout|timed out|oute to host|unreachable|on refused"
SERVER_STATE = """SELECT version, epoch,
    CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) AS at FROM jobqueue"""
# `holder` has kept a snapshot for long. Removed rows stay in the tables until no snapshot can see them.
SERVER_FACTS = """SELECT current_setting('server_version') AS version,
    current_setting('synchronous_standby_names')=''
        AND EXISTS (SELECT 1 FROM pg_stat_replication) AS lags,
    (SELECT holder FROM (
        SELECT 'process ' || pid AS holder, xact_start AS since FROM pg_stat_activity
            WHERE backend_xmin IS NOT NULL AND datname=current_database() AND pid<>pg_backend_pid()
        UNION ALL SELECT 'prepared transaction ' || gid, prepared FROM pg_prepared_xacts
            WHERE database=current_database()
        UNION ALL SELECT 'replication slot ' || slot_name, 'epoch' FROM pg_replication_slots
            WHERE xmin IS NOT NULL AND NOT active) AS holders
    WHERE since < clock_timestamp() - INTERVAL '10 minutes'
    ORDER BY since LIMIT 1) AS holder"""
OLD_MARKS = "DELETE FROM mark WHERE at<extract(epoch FROM clock_timestamp())-86400"
GENUINE = r"PostgreSQL (1[3-9]|[2-9]\d)(?!.*-YB-)"     # products derived from PostgreSQL may lock differently
SERVER_TABLES = "SELECT CAST(to_regclass('jobqueue') AS TEXT)"
SERVER_SCHEMAS = """SELECT count(DISTINCT relnamespace) FROM pg_class
WHERE oid IN (to_regclass('jobqueue'), to_regclass('task'), to_regclass('queue'))"""
UNSURE = ("The connection to the database broke at the last moment, and this may have been stored. Please "
          "look before you try again.")
POOLED = ("The database %(path)s is reached through a pooler, which shares the sessions of a server "
          "among programs (%(said)s). Give the server's own address instead.")
# A pattern for the beginning of an SQLSTATE, our error, and its sentence.
SERVER_ERRORS = (
    ("08|0A000|25006|25P0[34]|26|40|533|55P03|57", Busy, BUSY),     # 0A000, 26: a prepared statement is gone
    ("23503", Conflict, OWNER_GONE),
    ("53100", StorageFull, FULL),
    ("42P07|42710|42723|42703", SetupError,
     "The database %(path)s has other tables already (%(said)s): the queue needs "
     "one of its own."),
    ("42501", StorageBroken, UNUSABLE + " As the owner of the database, GRANT USAGE, CREATE ON SCHEMA "
     "public to this role, or give it the database."),
    ("28|3D|3F|42P01|53|58|XX", StorageBroken, UNUSABLE),
)


class ServerClock(Clock):
    """A clock with the server's time, which all machines share. Between two answers our own clock goes on."""

    @staticmethod
    def _ticks():
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def __init__(self):
        self._base = time.time() - self._ticks()

    def now(self):
        """Return the seconds since 1970."""
        return self._base + self._ticks()

    def set(self, now):
        """Set the server's time. Ignore small differences, which come from the network."""
        if abs(now - self.now()) > 0.005:
            self._base = now - self._ticks()


class PostgresDatabase(Database):
    """A database on a PostgreSQL server.

    A transaction has these steps:

    1. Take the lock of this process's threads, then lock the only row of `jobqueue`. That row has the
       schema's version and the database's epoch. A program of another version stops here.
    2. Read the server's time after the row is locked.
    3. Run the block, then COMMIT. If there is no answer, lock the row on a new connection. That waits until
       the old transaction has ended. Then look for the mark of the old transaction.
    4. Notify the workers after a durable commit.
    """

    hears_all, is_shared = False, True
    pauses = 0.02, 0.2                  # long: each attempt to connect costs the server a process
    last_id_words = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %s_id_seq"
    version_words = "SELECT version FROM jobqueue"
    snapshot_words = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                      "SET LOCAL idle_in_transaction_session_timeout=0", "SELECT 1")
    errors: "type[Exception]"
    _reader: "ServerConnection"           # after the first _open()
    _writer: "ServerConnection"

    def __init__(self, address, folder, clock=Clock,
                 patience=WEB_PATIENCE_SECONDS):
        super().__init__(folder, ServerClock() if clock is Clock else clock, patience)
        self.has_own_disk = safe_journal(folder) == "wal"
        # A failover to a replica may take long, so leases are longer.
        self.lease_seconds, self.slack_seconds = 2 * LEASE_SECONDS, SERVER_SLACK_SECONDS
        self.errors = driver().psycopg.Error
        self._address, self.path = address, find_database(folder)
        self._write_lock = OneThread(clock)
        self._epoch = None
        self._reason = ""               # why the server could not be reached
        self._name, self._number, self._commits = random_token(8), 0, 0
        try:
            name = str(self)
            with self.deadline(patience):
                self._patiently(self._prepare)
        except Busy:
            self.close()
            silent = Busy("The database %s does not answer%s. Please try again." % (
                name, self._reason and ": " + self._reason))
            silent.public = BUSY
            raise silent from None
        except BaseException:
            self.close()
            raise

    def _prepare(self):
        """Make or migrate the tables, then compare the epoch. One process makes them while the rest wait."""
        link, expected = self._open("_reader"), self.path.read_text("utf-8").strip()
        try:
            if link.is_pooled:
                self._refuse_shared_sessions(link)
            if not link.value(SERVER_TABLES):
                if expected != NO_EPOCH:
                    raise emptied(self)
                if not re.match(GENUINE, link.value("SELECT version()")):
                    raise SetupError("The database %s is not on PostgreSQL 13 or newer." % self)
                if link.value("SHOW server_encoding") != "UTF8":
                    raise SetupError("The database %s is not in UTF8: make another one." % self)
                link.ask("BEGIN; SELECT pg_advisory_xact_lock(7061)")
                if not link.value(SERVER_TABLES):
                    link.ask(to_postgres(replace_patterns(SCHEMA, SCHEMA_OTHERWISE) + SERVER_SCHEMA))
                    link.run("INSERT INTO jobqueue VALUES (?, ?)",
                             (SCHEMA_VERSION, random_token(8)))
                link.run("COMMIT")
            self._migrate(link)
            if link.value(SERVER_SCHEMAS) > 1:
                raise SetupError("The tables of the database %s lie in several schemas: set the "
                                 "search_path of its role to one of them." % self)
            replies = link.ask("BEGIN; %s; %s; COMMIT" % (SERVER_STATE, OLD_MARKS))
            row = self._checked(replies[1].rows)
            epoch = row["epoch"]
            self._epoch = epoch
            self._set_clock(row["at"])
        finally:
            link.roll_back()
        if expected == NO_EPOCH:
            write_private(self.path, epoch)
        elif expected != epoch:
            raise SetupError("The data folder %s belongs to another database than %s: delete %s "
                             "if it is to belong to this one." % (self.folder, self, self.path))

    @staticmethod
    def _migrate(link):
        """Migrate tables of an older schema version, in one transaction that holds the lock row."""
        version = link.value("SELECT version FROM jobqueue")
        if version == SCHEMA_VERSION or not MIGRATIONS.get(version):
            return                      # _checked() refuses other versions
        link.ask("BEGIN; SELECT version FROM jobqueue FOR UPDATE")
        version = link.value("SELECT version FROM jobqueue")
        if MIGRATIONS.get(version):     # else another process was faster
            link.ask(to_postgres(replace_patterns(MIGRATIONS[version], SCHEMA_OTHERWISE)))
            link.run("UPDATE jobqueue SET version=?", (SCHEMA_VERSION,))
        link.run("COMMIT")

    def _refuse_shared_sessions(self, link):
        """Raise SetupError if two connections share a session of the server."""
        before = link.value(SERVER_PROCESS)
        second = self._open("_writer")
        second.ask("BEGIN")
        while_open = second.value(SERVER_PROCESS)
        if while_open == before or link.value(SERVER_PROCESS) != before:
            raise SetupError(POOLED % {"path": self, "said": "two connections had one session"})
        second.roll_back()

    def _checked(self, rows):
        """Return the lock row; raise if it is gone, has another epoch, or has another schema version."""
        if len(rows) != 1 or self._epoch not in (None, rows[0]["epoch"]):
            raise StorageBroken("The database %s was replaced while it was in use. Stop and start "
                                "everything." % self)
        if rows[0]["version"] != SCHEMA_VERSION:
            raise another_version(rows[0]["version"])
        return rows[0]

    def __str__(self):
        """Return the name of the database for messages, without the password."""
        parts = {"host": "this machine", "dbname": ""}
        try:
            parts.update(driver().psycopg.conninfo.conninfo_to_dict(self._address))
        except self.errors:             # the error's text may contain parts of the password
            parts["host"] = "@"
        if "@" in parts["host"] + parts["dbname"]:      # so may these parts
            raise SetupError("The address of the database cannot be understood. In the password, "
                             "% is written as %25, / as %2F, @ as %40 and ? as %3F. Behind a ? "
                             "stand only options of libpq (sslmode, options, ...).")
        return "%s (PostgreSQL on %s)" % (parts["dbname"] or parts.get("user"), parts["host"])

    def _open(self, name):
        super()._open(name)
        return getattr(self, name)

    def _connect(self):
        return ServerConnection(self._address)

    def _problem(self, error):
        psycopg, message = driver().psycopg, shorten(str(error), 200)
        is_lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        state = getattr(error, "sqlstate", None) or ("08" if is_lost else "")
        for states, kind, sentence in SERVER_ERRORS:
            if re.match(states, state) and (kind is not SetupError or self._epoch is None):
                if kind is Busy and self._epoch is None:
                    self._reason = message.rstrip(".?")
                    if "unsupported startup parameter" in message:
                        kind, sentence = SetupError, POOLED
                    elif state == "08" and self._refuses(message):
                        kind, sentence = StorageBroken, UNUSABLE
                return kind(sentence % {"path": self, "said": message.rstrip(".?")})
        return error

    def _refuses(self, message):
        """Return True if the server takes connections, but not this one.

        The driver keeps no SQLSTATE of a failed connection, and the server's message may be in any
        language. So a ping tells whether the server takes connections at all. A silent server gets no ping,
        because all other threads would wait.
        """
        if re.search(LATER, message):
            return False
        if re.search(REFUSALS, message):
            return True
        pq = driver().psycopg.pq
        address = driver().psycopg.conninfo.make_conninfo(self._address, connect_timeout=PING_SECONDS)
        return pq.PGconn.ping(address.encode()) in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)

    def _read(self, statement, values):
        if not self._reading.acquire(timeout=max(0.1, self.seconds_left())):
            raise Busy(BUSY)            # do not ask a silent server again
        try:
            link = self._open("_reader")
            link.limit = max(1.0, self.seconds_left())
            return link.all(statement, values)
        finally:
            self._reading.release()

    def _begin(self, durable):
        wait = 100 + int(1000 * self.seconds_left())
        self._open("_writer").roll_back()       # an earlier try may have left a transaction open
        lock = self._checked(self._writer.ask(SERVER_BEGIN % wait, 1 + wait / 1000)[-1].rows)
        self._writer.change_count = 0
        self._set_clock(lock["at"])

    def _set_clock(self, now):
        if isinstance(self.clock, ServerClock):
            self.clock.set(now)
            self.clock_offset = time.time() - now

    def _commit(self, durable):
        is_new = self._writer.changes > 0
        if is_new:
            self._number += 1
            self._writer.run_later(SERVER_MARK, (self._name, self._number))
        try:
            words = ("COMMIT", SERVER_NOTIFY) if durable and is_new else ("COMMIT",)
            commit, *_ = self._writer.send(*((word, [()]) for word in words))
            is_kept = commit.statusmessage == "COMMIT"
        except self.errors:
            is_kept = self._became_true()
            if not is_kept:
                raise
        if not is_kept:
            raise Busy(BUSY)
        self._commits += is_new

    def _became_true(self):
        """Return True if a transaction was committed whose COMMIT had no answer; Busy if that is unknown."""
        number = None
        self._deadline.at = self.clock.monotonic() + self.patience
        try:
            self._writer.roll_back()
            self._patiently(lambda: self._begin(False))     # waits until the old transaction has ended
            number = self._writer.value("SELECT number FROM mark WHERE writer=?", (self._name,))
        except (self.errors, JobQueueError):
            raise Busy(UNSURE) from None
        finally:
            self._writer.roll_back()
        return bool(number == self._number)

    @property
    def alarm(self):
        """Return the descriptor on which notifications arrive, or None."""
        return None if self._reader.is_broken else self._reader.fileno()

    def version_seen(self):
        """Return a value that changes after a durable commit, unless its notification is lost."""
        return (*self._patiently(self._heard), self._commits)

    def _heard(self):
        with self._reading:
            return self._open("_reader").heard()

    def size(self):
        """Return the size in bytes."""
        return self.value("SELECT pg_database_size(current_database())")

    def server_facts(self):
        """Return a row about the server: its version, `lags` and `holder`.

        `lags` is true if a replica may lack the newest commits. `holder` names a session or slot that has
        kept an old snapshot for long.
        """
        return self.row(SERVER_FACTS)

    def damage(self):
        """Return None: the server checks its own files."""

    def copy_to(self, path):
        """Raise SetupError: a server has backups of its own."""
        raise SetupError("A queue on PostgreSQL is saved with its own programs (pg_dump), or with "
                         "python3 jobqueue.py export FILE.")


# store/data_folder.py --------------------------------------------------------
#
# The data folder: create, open, repair.

DENY = ("<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>\n"
        "<IfModule !mod_authz_core.c>\nOrder deny,allow\nDeny from all\n</IfModule>\n"
        "<IfModule mod_rewrite.c>\nRewriteEngine On\nRewriteRule ^ - [F,L]\n</IfModule>\n")


def _fill_data_folder(room, on_server):
    (room / "locks").mkdir(mode=0o700)
    for name, text in ((".htaccess", DENY), ("index.html", ""), ("canary.txt", random_token())):
        write_private(room / name, text)
    if on_server:
        write_private(room / ("jobqueue-%s%s" % (random_token(8), SERVER_FILE)), NO_EPOCH)
        return
    path, mode = room / ("jobqueue-%s.db" % random_token(8)), safe_journal(room)
    try:
        create_database(path, mode)
    except (StorageBroken, Busy):       # some local file systems have no shared memory, which WAL needs
        if mode == "truncate":
            raise
        for part in room.glob(path.name + "*"):
            part.unlink()
        create_database(path, "truncate")


def create_data_folder(folder, on_server=False):
    """Make a complete data folder under another name, then rename it. So none is ever incomplete."""
    import shutil
    room = folder.with_name("%s.new-%s" % (folder.name, random_token(6)))
    try:
        room.mkdir(mode=0o700)
        _fill_data_folder(room, on_server)
        os.rename(room, folder)
    except OSError as error:
        if not folder.is_dir():         # else another process was first
            raise SetupError("The data folder %s cannot be made: %s."
                             % (folder, error.strerror)) from None
    finally:
        shutil.rmtree(room, ignore_errors=True)


def user_name(number):
    """Return a user's name for `sudo -u`, or #1000 if the number has no name."""
    import pwd
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return "#%d" % number


def refuse_other_user(folder):
    """Raise SetupError if the folder belongs to another user. The message has the right command.

    Files of two users would lock one of them out. A copy by FTP may let all users of the machine read the
    folder, so their permissions are removed.
    """
    try:
        status = os.stat(folder)
    except OSError as error:
        raise SetupError("The data folder %s cannot be read: %s."
                         % (folder, error.strerror)) from None
    if status.st_uid != os.getuid():
        owner = user_name(status.st_uid)
        raise SetupError(
            "The data folder %s belongs to the user %s, and this runs as %s. Run it as that user "
            "(sudo -u '%s' python3 '%s' ...), or use the page and its tick address."
            % (folder, owner, user_name(os.getuid()), owner, HOME / "jobqueue.py"))
    for path in (folder, *Path(folder).iterdir()) if status.st_mode & 0o077 else ():
        with contextlib.suppress(OSError):
            if not path.is_symlink():
                path.chmod(0o700 if path.is_dir() else 0o600)


def open_database(folder, clock=Clock, patience=WEB_PATIENCE_SECONDS,
                  address=""):
    """Open the database of a data folder, on a server if `address` is given. Make a missing folder."""
    if not os.path.lexists(folder):
        create_data_folder(folder, bool(address))
    refuse_other_user(folder)
    path = find_database(folder)
    if (path.suffix == SERVER_FILE) != bool(address):
        raise SetupError((
            "The data folder %s has a database of its own, %s. A queue on PostgreSQL needs another "
            "data folder." if address else "The data folder %s belongs to a queue on PostgreSQL (%s), "
            "whose address is missing: set JOBQUEUE_DATABASE.") % (folder, path.name))
    return (PostgresDatabase(address, folder, clock, patience) if address
            else SqliteDatabase(folder, clock, patience))


class OwnedFile(NamedTuple):
    """The file of a database, and its journal mode, or None if the mode is unknown."""

    path: "Path"
    mode: "str | None"


def own_database(folder):
    """Return the file of a database, even if it is damaged.

    SetupError if it belongs to another user, if another machine uses its log, or if it is on a server.
    """
    refuse_other_user(folder)
    path = find_database(folder, allow_empty=True)
    if path.suffix == SERVER_FILE:
        raise SetupError("The queue of %s is on PostgreSQL and has no file here." % folder)
    try:
        journal = Journal(path)
    except SetupError:
        return OwnedFile(path, None)    # the journal's file is missing or unreadable: callers write it
    journal.refuse_another(Clock.now())
    return OwnedFile(path, journal.mode)


def repair_journal(folder, shared=False):
    """Choose the journal mode and write it; return the mode.

    The mode is safe for this file system or, if `shared`, for several machines. Everything must be
    stopped. A change of the mode proves that, because it needs the exclusive lock.
    """
    path, _ = own_database(folder)
    mode = "truncate" if shared else safe_journal(folder)
    with open_exclusively(path, mode):
        Journal.decide(path, mode, Clock.now())
    return mode


# store/log_and_activity.py ---------------------------------------------------
#
# The log of attempts, and the activity: each event and its actor.

LOG_MAX_BYTES = 1 << 20         # limit of an attempt's log; a longer log loses its middle
LOG_PAGE_BYTES = 256 << 10


class LogPart(NamedTuple):
    """A part of a log.

    `times` has a pair for each piece: the number of line ends before it, and the time when it arrived.
    """

    text: "str"
    next_offset: "int"
    is_cut: "bool"                    # bytes within the part were dropped
    times: "list[list[int | str | None]]"


def activity_row(at, event, task, **details):
    """Return a row of the activity about a task, which is given by its own row."""
    return {"at": at, "event": event, "task_id": task["id"], "attempt": task["attempts"] or None,
            "owner_id": task["owner_id"], "function": task["function"], "queue": task["queue"],
            **details}


def record_activity(transaction, at, event, task=None,
         **details):
    """Add a row to the activity, about a task if there is one."""
    row = activity_row(at, event, task) if task else {"at": at, "event": event}
    transaction.insert("activity", {**row, **details})


def find_activity(database, limit=PAGE_ROWS, before=None,
                  since=None, until=None,
                  viewer_id=None, **columns):
    """Return rows of the activity, newest first. Filters that are None are ignored.

    A viewer sees the events of all tasks and of their own account. Only `id` and `task_id` have an index: a
    search without `task_id` stops after SEARCH_SECONDS with fewer rows.
    """
    filters = {"at>=?": since, "at<?": until, "(task_id IS NOT NULL OR owner_id=?)": viewer_id,
             **{name + "=?": value for name, value in columns.items()}}
    filters = {words: value for words, value in filters.items() if value is not None}
    statement = ("SELECT activity.*, (SELECT name FROM user WHERE user.id=owner_id) AS owner FROM "
                 "activity WHERE id>? AND id<=? AND %s ORDER BY id DESC LIMIT %d"
                 % (" AND ".join(["1=1", *filters]), limit + 1))
    high = before - 1 if before is not None else (
        database.value("SELECT max(id) FROM activity") or 0)
    if columns.get("task_id") is None:
        return database.search(statement, [*filters.values()], 0, high, limit, SEARCH_SECONDS)
    rows = database.all(statement, (0, high, *filters.values()))
    return Page(list(rows[:limit]), rows[limit - 1]["id"] if len(rows) > limit else None)


def append_log(transaction, at, task_id, attempt, start,
               text):
    """Store a piece of an attempt's output that begins at byte `start`. A long log loses its middle."""
    length = len(text.encode("utf-8"))
    transaction.insert("log", {"task_id": task_id, "attempt": attempt, "start": start,
                               "length": length, "text": text, "at": at})
    if start + length > LOG_MAX_BYTES:
        transaction.run(
            "DELETE FROM log WHERE task_id=? AND attempt=? AND start>=? AND start<?",
            (task_id, attempt, LOG_MAX_BYTES // 2, start + length - LOG_MAX_BYTES // 2))


def log_length(transaction, task_id, attempt):
    """Return how many bytes an attempt has printed."""
    return transaction.value(
        "SELECT start+length FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT 1",
        (task_id, attempt)) or 0


def logged_attempts(db, task_id):
    """Return the numbers of the attempts that printed something."""
    return [row[0] for row in db.all(
        "SELECT DISTINCT attempt FROM log WHERE task_id=? ORDER BY attempt", (task_id,))]


def read_log(db, task_id, attempt, offset=0,
             limit=LOG_PAGE_BYTES):
    """Return the part of a log that begins at byte `offset`, of at most `limit` bytes."""
    parts = []
    times = []
    at, cut, ends = offset, False, 0
    for row in db.all(
            "SELECT start, length, text, at FROM log WHERE task_id=? AND attempt=? "
            "AND start+length>? ORDER BY start", (task_id, attempt, offset)):
        if row["start"] > at:
            parts.append("\n[... %d bytes cut out ...]\n" % (row["start"] - at))
            at, cut, ends = row["start"], True, ends + 2
        data = row["text"].encode("utf-8")[at - row["start"]:]
        while data and data[0] & 0xC0 == 0x80:      # the offset lies inside a character
            data, at = data[1:], at + 1
        text = data[:limit].decode("utf-8", "ignore")
        taken = len(text.encode("utf-8"))
        parts.append(text)
        times.append([ends, iso(row["at"])])
        at, limit, ends = at + taken, limit - taken, ends + text.count("\n")
        if taken < len(data):
            break
    return LogPart("".join(parts), at, cut, times)


# store/state.py --------------------------------------------------------------
#
# State: values that the program itself keeps in the database, a row each.
#
# People choose settings; the program sets these values. STATE documents each row. An export has the rows of
# EXPORTED_STATE. All other rows are about this host.

STATE = {                       # {name: content of the row's JSON}
    "alerts": "the newest row of activity that alerts have seen, and when a message was last sent",
    "backup": "when and where the last backup or export was written",
    "catalogue": "the functions' file, its error or that they are samples, as last announced",
    "daily_backup": "when the last daily backup began, whether it is done, its error",
    "doubts": "leases that missed two renewals, by name: from when on others may take them over",
    "exposure": "which private addresses the web server gives away, and when that was tried",
    "files": "the machine whose data folder holds the files of tasks",
    "folded": "the id of the last row of activity that is counted in the rollup",
    "keeping": "when retention last ran, and from when on it trusts the clock",
    "rhythm": "the process that did the last maintenance; the last visits of cron and others",
    "sample_task": "the id of the last sample task that the page added",
    "start_failure": "why a worker could not start, how often, and when it is tried again",
    "tasks_files": "the files that programs read as tasks.py lately",
    "used_code": "digest of the last setup code that was used",
    "workers_lost": "by machine: workers that were lost young, the last time, their tasks"}
EXPORTED_STATE = ("catalogue", "folded")


def remember(transaction, name, value):
    """Store a value of STATE; None removes it."""
    if value is None:
        transaction.run("DELETE FROM state WHERE name=?", (name,))
    else:
        transaction.upsert("state", {"name": name}, {"value": dump_json(value)})


def recall(db, name):
    """Return a value of STATE, None if there is none."""
    text = db.value("SELECT value FROM state WHERE name=?", (name,))
    return None if text is None else json.loads(text)


# store/settings.py -----------------------------------------------------------
#
# Settings: an admin changes them while everything runs.
#
# Each setting is a row of SETTING_GROUPS. The table `setting` has the changed values only. A room that uses
# a setting may add a validator of its new values to Settings.validators.

def tidy_path(text):
    """Return a path as a prefix: "/jq", or "" for none."""
    path = re.sub("/+", "/", "/%s/" % text)[:-1]
    if (not re.fullmatch(r"(/(?!\.+(/|$))[A-Za-z0-9._~-]+)*", path)
            or re.match(r"/(api|static|tick|healthz|metrics|openapi\.json)(/|$)", path)):
        raise ValueError("must be the path of an address, such as /jq, and not one of our own")
    return path


@functools.lru_cache(maxsize=4)
def read_networks(text):
    """Return the addresses and networks in a text; ValueError names a wrong word."""
    from ipaddress import ip_network
    networks = []
    for word in text.replace(",", " ").split():
        with contextlib.suppress(ValueError):
            networks.append(ip_network(word, strict=False))
            if networks[-1].prefixlen:
                continue
        raise ValueError("must list addresses or networks, such as 127.0.0.1 or 10.0.0.0/8; %s is not "
                         "allowed" % shorten(word, 60))
    return networks


MAIL_ADDRESS = (r"[A-Za-z0-9][A-Za-z0-9._%+~'-]{0,62}"
                r"@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,200}[A-Za-z0-9])?")
EMAIL = text_like(MAIL_ADDRESS, "must be an address such as ana@example.org")


def tidy_server(text):
    """Return HOST:PORT of a mail server. The default port is 587."""
    match = re.fullmatch(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?", text)
    if text and not (match and 0 < int(match[2] or 587) < 65536):
        raise ValueError("must be a host and a port, such as mail.example.org:587")
    return match and "%s:%s" % (match[1], match[2] or 587) or ""


def tidy_webhooks(text):
    """Return web addresses with a space between them."""
    for word in text.split():
        parts = urlsplit(word)
        if (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc
                or not re.fullmatch(r"[!-~]+", word) or parts.port == 0):
            raise ValueError("must be an address such as https://example.org/hook")
    return " ".join(dict.fromkeys(text.split()))


def check_password_file(text):
    """Refuse a text that is no path of a file. The error does not repeat the text: it may be a password."""
    if not (os.path.isabs(text) and os.path.isfile(text)):
        raise field_error("mail_password_file", "must be the whole path of a file that exists: write the "
                          "password into a file such as /home/me/mail-password.txt, and give its path here")


def web_label(address):
    """Return a label for a webhook that does not show its secret address: host and digest."""
    return "%s (%s)" % (urlsplit(address).hostname, digest(address)[:6])


# Settings that name a program, its environment or a password's file. They are changed on the host only, so
# that a stolen admin session gives no access to the host.
HOST_SETTINGS = frozenset(("python", "pass_environment", "mail_password_file"))
NO_OR_YES = {"enum": ["no", "yes"]}
SECRETLY = "as it is"                   # shown in place of a secret
TIDY = {
    "alert_webhook": tidy_webhooks, "page_address": tidy_webhooks, "base_path": tidy_path,
    "mail_server": tidy_server,
    "trusted_proxies": lambda text: text if read_networks(text) else ""}


class Setting(NamedTuple):
    """A row of SETTINGS."""

    group: "str"
    label: "str"
    unit: "str"
    schema: "Schema"
    default: "int | str"
    help: "str"


SETTING_GROUPS = {"Workers": {
    "NbMaxWorker": ("Maximum workers", "", integer_within(0, 256), 2,
        "Processes at once; 0 stops all work. Cheap hosts allow 25 to 100 processes in all."),
    "worker_mode": ("How workers are started", "", {"enum": "auto detached cron slice service".split()},
        "auto", "detached: the program that adds a task starts one; cron: a cron job calls worker.py; "
        "slice: this page while it is open, and the tick address, run tasks; service: the host keeps "
        "worker.py --service alive. auto finds out what works here."),
    "linger": ("Wait for more work", "seconds", integer_within(0, 3600), 15,
        "An idle worker ends after this time."),
    "linger_due": ("Keep workers for upcoming runs", "seconds", integer_within(0, 86400), 300,
        "A worker stays while a task or a schedule is due within this time."),
    "stay_asleep": ("Keep one idle worker", "", NO_OR_YES, "no",
        "While a schedule exists. For hosts with neither cron nor a resident server."),
    "worker_seconds": ("New worker after", "seconds", integer_within(10, 86400), 3000,
        "Some hosts kill older processes."),
    "runner_tasks": ("New process after", "tasks", integer_within(1, 1000000), 10000,
        "One process runs the functions of so many tasks."),
    "runner_memory": ("New process above", "MB", integer_within(16, 1000000), 512,
        "Memory of the process that runs the functions."),
    "runner_per_owner": ("New process for each owner", "", NO_OR_YES, "no",
        "No state reaches another owner's task. Each change of owner starts Python and tasks.py again."),
    "nice": ("CPU priority (nice)", "", integer_within(0, 19), 10,
        "0: as other programs. 19: other programs go first."),
    "pass_environment": ("Environment", "", text_up_to(2000), "",
        "Names of environment variables that workers get besides the usual ones."),
    "python": ("Python", "", text_up_to(1000), "", "Interpreter for workers; empty: found automatically."),
}, "Tasks": {
    "max_pending": ("Maximum pending tasks", "tasks", integer_within(0, 1000000), 200000,
        "Per user; 0: no limit. Admins have no limit."),
    "default_owner": ("Default owner", "", text_up_to(100), "",
        "The owner of tasks added by code and command line; empty: the first admin."),
    "keep_days": ("Keep finished tasks", "days", integer_within(0, 36500), 30, "0: keep them for ever."),
    "keep_activity_days": ("Keep the activity", "days", integer_within(0, 36500), 90,
        "0: keep them for ever."),
    "keep_hours_days": ("Keep hourly figures", "days", integer_within(0, 36500), 400,
        "0: keep them for ever."),
    "max_file_mb": ("Largest file", "MB", integer_within(1, 100_000), 64,
        "The size of an uploaded file. The web server may allow less."),
    "max_files_mb": ("Files of one user", "MB", integer_within(0, 10_000_000), 1000,
        "The files of all tasks of a user; 0: no limit."),
    "throughput_base": ("Maximum throughput", "tasks per hour", integer_within(0, 10000000), 0,
        "Utilization is measured against this; 0: against a worker that never waits."),
}, "Backup": {
    "backup_hour": ("Back up every day at", "o'clock UTC", {"enum": ["", *map(str, range(24))]}, "",
        "The backup is written to the folder backups of the data folder; empty: never."),
    "backup_keep": ("Keep the newest", "backups", integer_within(1, 1000), 7,
        "The number of daily backups that are kept."),
    "alert_backup_days": ("Warn when older than", "days", integer_within(0, 3650), 7, "0: never."),
}, "Web address": {
    "host_names": ("Host names", "", text_up_to(2000), "",
        "Names of this site for the built-in server, besides localhost."),
    "base_path": ("Base path", "", text_up_to(200), "",
        "Path below which browsers find this page, such as /jq; empty: found automatically. Only if your "
        "proxy does not send the prefix. A wrong path locks all users out until an admin's password is set "
        "anew with a file setup-code-WORD.txt."),
    "page_address": ("Address of this page", "", text_up_to(2000), "",
        "Such as https://example.org/jq. Messages link to it. Workers of other machines fetch and send files "
        "there, if several machines share a queue on PostgreSQL."),
    "https": ("HTTPS", "", {"enum": ["auto", "always"]}, "auto",
        "always: browsers reach this page by HTTPS only, although this server cannot see it. "
        "If that is wrong, no user can log in: see base_path."),
    "trusted_proxies": ("Trusted proxies", "", text_up_to(2000), "",
        "Addresses and networks of your proxies. Their X-Forwarded-For, -Proto and -Host headers are "
        "trusted, so only your proxies may be there. Empty: none."),
}, "Alerts": {
    "alert_mail": ("Mail to", "", {
        **EMAIL, **text_up_to(2000), "pattern": r"[\s,]*(%s([\s,]+|$))*" % MAIL_ADDRESS}, "",
        "Addresses that get a mail when something goes wrong."),
    "mail_server": ("Mail server", "", text_up_to(300), "", "HOST:PORT; empty: the host's sendmail."),
    "mail_user": ("Mail user", "", text_up_to(300), "", "User name on that server; empty: no log-in."),
    "mail_password_file": ("Password file", "", text_up_to(1000), "",
        "Path of a file that holds the password, never the password itself; empty: mail-password-WORD.txt in "
        "the data folder, if there is one. With a password, mail_server is changed on the host only, too."),
    "mail_from": ("Mail from", "", {
        **EMAIL, **text_up_to(300), "pattern": r"\s*(%s)?\s*" % MAIL_ADDRESS}, "",
        "Sender; an address of a domain of yours."),
    "alert_webhook": ("Webhooks", "", {**text_up_to(2000), "writeOnly": True}, "",
        "Slack, Discord, ntfy, Telegram, or a program of yours; secrets, and not shown again."),
    "alert_webhook_inside": ("Webhooks may lead inside", "", NO_OR_YES, "no",
        "Webhooks may lead to this host and its network."),
    "alert_function": ("Function to run", "", text_up_to(200), "", "It gets subject and text."),
    "alert_wait": ("Alert after waiting", "seconds", integer_within(0, 30 * 86400), 900,
        "A task that could start and has waited longer is an alert; 0: never."),
}}
SETTINGS = {name: Setting(group, *row) for group, rows in SETTING_GROUPS.items()
            for name, row in rows.items()}
CHANGED_SETTINGS = titled("NewSettings", object_of(**{  # null restores the default
    name: {**about(or_null(one.schema), "%s. %s" % (one.label, one.help)),
           **({"readOnly": True} if name in HOST_SETTINGS else {})}     # read-only over HTTP
    for name, one in SETTINGS.items()}))


def tidy_setting(name, value):
    """Return `value` as this setting stores it; Invalid says which values are right."""
    setting, value = SETTINGS[name], value.strip() if isinstance(value, str) else value
    checked({"properties": {name: setting.schema}}, {name: value})
    try:
        return TIDY[name](value) if name in TIDY else type(setting.default)(value)
    except ValueError as error:
        raise field_error(name, str(error)) from None


def store_setting(transaction, name, value):
    """Store the value of a setting; None restores the default."""
    if value is None:
        transaction.run("DELETE FROM setting WHERE name=?", (name,))
    else:
        transaction.upsert("setting", {"name": name}, {"value": dump_json(value)})


class Settings:
    """Values of settings, from the environment (JOBQUEUE_NAME), the table, or the default, in this order."""

    def __init__(self, database, environment=os.environ):
        self._database = database
        self.validators = {      # of new values, besides the schema
            "mail_password_file": check_password_file}
        self._known = (-math.inf, {})     # when the cache ends, {name: value}
        self._fixed = {}
        for name, setting in SETTINGS.items():
            text = environment.get("JOBQUEUE_" + name.upper())
            if text is not None:
                self._fixed[name] = tidy_setting(name, parse_text(setting.schema, text))

    def get(self, name, transaction=None):
        """Return the value of a setting: as `transaction` sees it, else at most CACHE_SECONDS old."""
        if name in self._fixed:
            return self._fixed[name]
        if transaction is None:
            self._database.refuse_inside()
            until, table = self._known
            table = table if self._database.clock.monotonic() <= until else self._read()
            return table.get(name, SETTINGS[name].default)
        text = transaction.value("SELECT value FROM setting WHERE name=?", (name,))
        return SETTINGS[name].default if text is None else json.loads(text)

    def describe(self):
        """Return all settings as the page shows them."""
        table, rows = self._read(), []
        for name, setting in SETTINGS.items():
            schema = setting.schema
            origin, value = (("environment", self._fixed[name]) if name in self._fixed else
                             ("table", table[name]) if name in table else ("default", setting.default))
            kind = "choice" if "enum" in schema else schema["type"].replace("string", "text")
            rows.append({
                "fixed": origin == "environment" or self._is_of_host(name), "name": name,
                "group": setting.group, "label": setting.label, "unit": setting.unit,
                "value": SECRETLY if value and (
                    # An earlier version stored a password that was given in place of a path.
                    schema.get("writeOnly") or name == "mail_password_file" and not os.path.isabs(str(value))
                ) else value,
                "default": setting.default, "from": origin, "type": kind, "choices": schema.get("enum"),
                "minimum": schema.get("minimum"), "help": setting.help,
                "maximum": schema.get("maximum", schema.get("maxLength"))})
        return rows

    def password_file(self):
        """Return the path of the file with the mail server's password, or None."""
        path = self.get("mail_password_file")
        return Path(path) if path else min(self._database.folder.glob("mail-password*.txt"), default=None)

    def change(self, values, by=None, on_host=True):
        """Store the given values, all or none; None restores the default.

        Invalid for a setting that is changed on the host only, unless `on_host`.
        """
        errors, checked = [], {}
        for name, value in values.items():
            try:
                checked[name] = self._check(name, value, on_host)
            except Invalid as error:
                errors += error.errors
        if errors:
            raise refusal("Nothing was changed", errors)
        with self._database.transaction() as transaction:
            for name, value in checked.items():
                store_setting(transaction, name, value)
            record_activity(transaction, self._database.clock.now(), "settings_changed", actor=by,
                 message=", ".join(checked))
        self._known = (-math.inf, {})

    def _read(self):
        until = self._database.clock.monotonic() + CACHE_SECONDS
        table = {row["name"]: json.loads(row["value"]) for row in self._database.all(
            "SELECT name, value FROM setting")}
        self._known = (until, table)
        return table

    def _is_of_host(self, name):
        # If the mail server is changed, the new server is sent the password.
        return name in HOST_SETTINGS or name == "mail_server" and self.password_file() is not None

    def _check(self, name, value, on_host):
        if name not in SETTINGS:
            raise field_error(name, "is not a setting")
        if name in self._fixed:
            raise field_error(name, "is set by environment, not here")
        if not on_host and self._is_of_host(name):
            raise field_error(name, "is changed on the host only: python3 jobqueue.py settings %s VALUE"
                              % name)
        if value == SECRETLY and SETTINGS[name].schema.get("writeOnly"):
            return self._read().get(name)
        value = None if value is None else tidy_setting(name, value)
        if value and name in self.validators:
            self.validators[name](value)
        return value


# tasks/queues.py -------------------------------------------------------------
#
# Queues and their limits: which queues may start a task now.
#
# A queue has a name and limits: paused, max_running, rate, machines. A claim reads the queues that are
# served_by() its machine, and claims no more tasks than a queue has room() for. To keep the rate, each start
# moves the time in the column rate_next_at. Owners at their own max_running are skipped.

RATE_SLACK_SECONDS = 0.05       # a start that is late by at most this does not delay the next

QUEUE_LIMITS = {
    "paused": {"type": "boolean"},
    "paused_why": about(
        or_null(text_like("[^\\x00-\\x1f]{0,200}", "must be one line of at most 200 characters")),
        "shown to everyone while it is paused"),
    "max_running": about(or_null(integer_within(1, 10_000)), "maximum of its running tasks"),
    "rate": about(or_null(object_of(("count", "seconds"), count=integer_within(1, 1_000_000),
                                  seconds=number_within(1, 31 * 86400))),
                  "maximum of starts in so many seconds, spread evenly"),
    "machines": about({"type": ["array", "null"], "minItems": 1, "maxItems": 50,
                       "items": text_like("[!-~]{1,64}", "must be the name of a machine")},
                      "machines that run its tasks; null: all")}
CHANGED_QUEUE = titled("QueueChange", object_of(**QUEUE_LIMITS))
NEW_QUEUE = titled("NewQueue", object_of(("name",), name=OPTION_SCHEMAS["queue"], **QUEUE_LIMITS))
QUEUE_COUNTS = ("pending", "running", "scheduled", "waiting")
# The number of tasks that a user may still start (NULL: any), and the users at their limit.
SPARE = ("CASE WHEN user.max_running IS NOT NULL THEN user.max_running-(SELECT count(*) "
         "FROM task %s WHERE owner_id=user.id AND status=RUNNING) END" % BY_TURN)
AT_LIMIT = "(SELECT id FROM user WHERE %s<=0)" % SPARE
# The priority of a queue's first pending task, and of its first one whose owner is not at a limit.
HEAD = ("(SELECT priority FROM task %s WHERE status=PENDING AND task.queue=queue.name "
        "ORDER BY priority DESC LIMIT 1)" % BY_CLAIM)
HEAD_BESIDE = ("(SELECT max((SELECT max(priority) FROM task %s WHERE owner_id=user.id AND status=PENDING "
               "AND task.queue=queue.name)) FROM user WHERE id NOT IN %s)" % (BY_TURN, AT_LIMIT))
OPEN_QUEUES, OPEN_BESIDE = (
    "SELECT name, max_running, rate_count, rate_seconds, rate_next_at, machines, %s AS head, %d AS "
    "beside, (SELECT min(%s) FROM user) AS spare FROM queue WHERE paused=0 AND external<=?"
    % (head, beside, SPARE) for beside, head in enumerate((HEAD, HEAD_BESIDE)))
TURN_BESIDE = ("SELECT min((SELECT min(turn) FROM task %s WHERE owner_id=user.id AND status=PENDING "
               "AND queue=? AND priority=?)) FROM user WHERE id NOT IN %s" % (BY_TURN, AT_LIMIT))


class NextStart(NamedTuple):
    """The time of a queue's next start, and the seconds between two starts."""

    at: "float"
    interval: "float"


class Blocked(NamedTuple):
    """The reason why pending tasks do not start: a word for programs, a sentence for people."""

    code: "str | None" = None
    words: "str | None" = None


def next_start(queue, now):
    """Return when the next task of a queue with a rate may start, and the interval.

    The interval counts from start to start. A start that came a little late does not delay the next one.
    """
    interval = queue["rate_seconds"] / queue["rate_count"]
    due = queue["rate_next_at"] or 0
    if due > now + interval + 5.0:          # a clock was set back, or the rate was raised
        due = now
    return NextStart(max(due, now - RATE_SLACK_SECONDS), interval)


def is_limited(queue):
    """Return True if a queue has limits. Then only admins may choose another queue for its functions."""
    return queue["paused"] > 0 or any(
        queue[name] is not None for name in ("max_running", "rate_count", "machines"))


def plain(number):
    """Return a number, as an int if it is whole."""
    return int(number) if number == int(number) else number


class Queues:
    """The table of queues: open queues and their room, their description, their changes."""

    def __init__(self, database):
        self._database, self._clock = database, database.clock

    @staticmethod
    def served_by(db, machine, remote=False):
        """Return the queues that workers of a machine serve, also queues that are full now.

        `remote` workers also serve external queues. `head` is the priority of the first pending
        task whose owner is not at the limit, NULL if there is none.
        """
        rows = db.all(OPEN_QUEUES, (2 * remote,))
        if rows and rows[0]["spare"] is not None and rows[0]["spare"] <= 0:
            rows = db.all(OPEN_BESIDE, (2 * remote,))
        return [row for row in rows
                if row["machines"] is None or machine in json.loads(row["machines"])]

    def room(self, db, queue, now):
        """Return how many tasks of an open queue may start now."""
        room = INTEGER_MAX
        if queue["max_running"] is not None:
            room = queue["max_running"] - self.count(db, RUNNING, queue["name"], queue["max_running"])
        if queue["rate_count"] is not None:
            due, interval = next_start(queue, now)
            room = min(room, 1 + int((now - due) / interval) if due <= now else 0)
        return room

    @staticmethod
    def started(transaction, queue, count, now):
        """Count started tasks against the rate of a queue."""
        if queue["rate_count"] is not None:
            due, interval = next_start(queue, now)
            transaction.update("queue", {"rate_next_at": due + count * interval},
                               "name=?", (queue["name"],))

    @staticmethod
    def count(db, status, name, limit):
        """Return how many tasks of a queue have a status, counted up to `limit`."""
        return db.value(
            "SELECT count(*) FROM (SELECT 1 FROM task %s WHERE status=? AND queue=? LIMIT ?) "
            "AS found" % BY_CLAIM, (status, name, limit))

    def all(self, machine):
        """Return all queues as JSON. `machine` is where this process can start workers."""
        return [self._json(row, machine)
                for row in self._database.all("SELECT * FROM queue ORDER BY name")]

    def get(self, name, machine):
        """Return one queue as JSON; NotFound if there is none."""
        return self._json(self._row(self._database, name), machine)

    def blocked(self, name, machine, owner_id=None):
        """Return why pending tasks of a queue do not start; Blocked() if they may.

        With `owner_id`: why this owner's tasks do not start.
        """
        row = self._database.one("SELECT * FROM queue WHERE name=?", (name,))
        if row is None:
            return Blocked()
        if row["paused"]:
            return Blocked("paused", "The queue %s is paused%s%s." % (
                name, row["paused_by"] and " by " + row["paused_by"] or "",
                row["paused_why"] and ": " + row["paused_why"].rstrip(".") or ""))
        if row["external"]:
            return Blocked("external", "Only %s work on the queue %s." % (
                "your own programs" if row["external"] == 1 else "remote workers", name))
        machines = json.loads(row["machines"] or "[]")
        if machines and not {machine, *self.machines()} & set(machines):
            return Blocked("machines", "The queue %s waits for a worker on %s." % (
                name, " or ".join(machines)))
        full = owner_id is not None and self._database.one(
            "SELECT name, max_running FROM user WHERE id=? AND id IN %s" % AT_LIMIT, (owner_id,))
        if full:
            return Blocked("owner", "The user %s runs at most %d at once." % tuple(full))
        limit = row["max_running"]
        if limit is not None and self.count(self._database, RUNNING, name, limit) >= limit:
            return Blocked("max_running", "The queue %s runs at most %d at once." % (name, limit))
        now = self._clock.now()
        if row["rate_count"] is not None and next_start(row, now).at > now:
            return Blocked("rate", "The queue %s starts at most %d in %s." % (
                name, row["rate_count"], span_text(row["rate_seconds"])))
        return Blocked()

    def machines(self):
        """Return the names of the machines that have workers, without those that stop."""
        return [row[0] for row in self._database.all(
            "SELECT DISTINCT machine FROM worker WHERE state<>'stopping' ORDER BY machine")]

    def change(self, name, changes, who, new=False):
        """Change a queue, or make it if it is `new`. `who` is recorded."""
        with self._database.transaction() as transaction:
            now = self._clock.now()
            if new:
                if transaction.value("SELECT 1 FROM queue WHERE name=?", (name,)):
                    raise Conflict("There is a queue %s already." % name)
                transaction.insert("queue", {"name": name, "created_at": now})
            row = self._row(transaction, name)
            for limit in ("max_running", "rate", "machines"):
                if row["external"] == 1 and changes.get(limit) is not None:
                    raise field_error(limit, "is set by the programs that run the tasks of %s" % name)
            values = self._pause(row, changes, who, now)
            if "max_running" in changes:
                values["max_running"] = changes["max_running"]
            if "rate" in changes:
                rate = changes["rate"] or {"count": None, "seconds": None}
                values.update(rate_count=rate["count"], rate_seconds=rate["seconds"])
            if "machines" in changes:
                values["machines"] = changes["machines"] and dump_json(sorted(set(changes["machines"])))
            if values:
                transaction.update("queue", values, "name=?", (name,))
            record_activity(transaction, now, "queue_changed", queue=name, actor=who,
                            message=dump_json(changes))

    def delete(self, name, who, in_use=()):
        """Remove a queue without tasks; Conflict if a function uses it (`in_use`)."""
        with self._database.transaction() as transaction:
            self._row(transaction, name)
            if name == TASK_OPTIONS["queue"][1]:
                raise Conflict("The queue %s is always there." % name)
            if name in in_use:
                raise Conflict("The queue %s belongs to a function in tasks.py." % name)
            if any(self.count(transaction, status, name, 1) for status in range(7)):
                raise Conflict("The queue %s still holds tasks; those that have ended count too."
                               % name)
            transaction.run("DELETE FROM queue WHERE name=?", (name,))
            record_activity(transaction, self._clock.now(), "queue_deleted", queue=name, actor=who)

    @staticmethod
    def _row(db, name):
        row = db.one("SELECT * FROM queue WHERE name=?", (storable(name),))
        if row is None:
            raise NotFound("There is no queue %s." % shorten(name, 60))
        return row

    @staticmethod
    def _pause(row, changes, who, now):
        """Return the columns to change. Pausing a paused queue again changes only the reason."""
        if not changes.get("paused", row["paused"]):
            return {"paused": 0, "paused_by": None, "paused_at": None, "paused_why": None}
        values = {} if row["paused"] else {"paused": 1, "paused_by": who, "paused_at": now}
        if "paused_why" in changes:
            values["paused_why"] = storable(changes["paused_why"] or "") or None
        return values

    def _json(self, row, machine):
        name = row["name"]
        counts = {word: self.count(self._database, STATUS_WORDS.index(word), name, COUNT_MAX)
                  for word in QUEUE_COUNTS}
        rate = row["rate_count"] and {
            "count": row["rate_count"], "seconds": plain(row["rate_seconds"])}
        blocked = self.blocked(name, machine).code if counts["pending"] else None
        next_at = next_start(row, self._clock.now()).at if blocked == "rate" else None
        return {"name": name, "paused": row["paused"] > 0, "paused_by": row["paused_by"],
                "paused_at": iso(row["paused_at"]), "paused_why": row["paused_why"],
                "max_running": row["max_running"], "rate": rate,
                "machines": json.loads(row["machines"] or "null"), "external": row["external"] > 0,
                **counts, "blocked": blocked, "next_at": iso(next_at)}


# tasks/followers.py ----------------------------------------------------------
#
# The turns of pending tasks, and the release or failure of tasks that wait for other tasks.
#
# A pending task has a turn: a number that gives its place among the tasks of its queue and priority. A task
# may come after other tasks, its predecessors. It is their follower. It waits until all of them have
# succeeded, or only ended if its after_failure is "run":
#
# 1. A follower is added with the status WAITING. It has a row of task_after, an edge, for each predecessor.
# 2. When a task with waiting followers ends or is removed, a trigger adds its id to the table `unsettled`.
#    tie() does that for predecessors that had failed or been cancelled before.
# 3. Followers.settle() reads `unsettled` and releases or fails the followers. A failed follower has also
#    ended, so step 2 applies to its own followers. A process calls settle() when it ends tasks, claims
#    tasks or does a tick.

SETTLE_AT_ONCE = 500            # rows of task_after that one settle() handles, roughly
ENDED = (SUCCEEDED, FAILED, CANCELLED)
LANES = "SELECT queue, priority FROM task %s WHERE status=? " % BY_CLAIM
FIRST_LANE = LANES + "ORDER BY queue, priority DESC LIMIT 1"
# One ended task, and one of its waiting followers. The follower is NULL if the task has none.
UNSETTLED = (
    "SELECT unsettled.task_id AS ended, status, task_after.task_id AS follower "
    "FROM unsettled LEFT JOIN task_after %s "
    "ON settled=0 AND after_id=unsettled.task_id LIMIT 1" % BY_FOLLOWER)
# The first turn of a lane, and an owner's last turn in it. The values are queue, priority, owner id, queue,
# priority.
TURNS = """(SELECT turn FROM task %s WHERE status=PENDING AND queue=? AND priority=?
            ORDER BY turn LIMIT 1) AS lowest,
    (SELECT turn FROM task %s WHERE owner_id=? AND status=PENDING AND queue=? AND priority=?
            ORDER BY turn DESC LIMIT 1) AS highest""" % (BY_CLAIM, BY_TURN)
HOW_IT_ENDED = {FAILED: "failed", CANCELLED: "was cancelled", None: "was deleted"}


class Lane(NamedTuple):
    """A part of a queue: its tasks of one priority."""

    queue: "str"
    priority: "int"


def next_turn(db, task):
    """Return the turn of a task that becomes pending now. So many tasks of one owner delay no other owner."""
    lane = task["queue"], task["priority"]
    return turn_after(db.row("SELECT " + TURNS, (*lane, task["owner_id"], *lane)))


def turn_after(turns):
    """Return an owner's next turn in a lane, from a row with the columns of TURNS."""
    last = max(turns["lowest"] or 0, turns["highest"] or 0)
    return last + 1


def scheduled_turn(run_at):
    """Return the turn of a scheduled task: when it is due, in ms. So an index finds due tasks."""
    return math.ceil(run_at * 1000)


def lanes(db, status):
    """Return the lanes with tasks of a status. There are few lanes, so one query for each is quick."""
    lanes_found = []
    lane = db.one(FIRST_LANE, (status,))
    while lane:
        lanes_found.append(Lane(*lane))
        lane = db.one(LANES + "AND queue=? AND priority<? ORDER BY priority DESC LIMIT 1",
                      (status, *lane)) or db.one(
            LANES + "AND queue>? ORDER BY queue, priority DESC LIMIT 1", (status, lane["queue"]))
    return lanes_found


class Followers:
    """The rules for tasks that come after other tasks: released, failed, waiting again."""

    @staticmethod
    def settle(transaction, now):
        """Release or fail a portion of the followers of ended tasks.

        A follower that fails here gets a row of `unsettled`, too. In this way a long chain fails one task
        after another.
        """
        room = SETTLE_AT_ONCE
        while room > 0:
            pair = transaction.one(UNSETTLED)
            if pair is None:
                return
            room -= 1
            if pair["follower"] is None:
                transaction.run("DELETE FROM unsettled WHERE task_id=?", (pair["ended"],))
            else:
                room -= Followers._settle_follower(
                    transaction, pair["ended"], pair["status"], pair["follower"], now)

    @staticmethod
    def _settle_follower(transaction, ended, how, follower,
                         now):
        """Settle one edge of a follower, or all its open edges if it no longer waits; return their number."""
        task = transaction.one(
            "SELECT id, owner_id, queue, function, priority, attempts, run_at, created_at, "
            "after_failure FROM task WHERE id=? AND status=WAITING", (follower,))
        if task and (how == SUCCEEDED or task["after_failure"] == "run"):
            transaction.run("UPDATE task_after SET settled=1 WHERE task_id=? AND settled=0 "
                            "AND after_id=?", (follower, ended))
            waits = transaction.value(
                "SELECT 1 FROM task_after WHERE task_id=? AND settled=0 LIMIT 1", (follower,))
            if not waits and not Followers.reopen_edges(transaction, task):
                run_at = max(now, task["run_at"] or 0)
                status, turn = SCHEDULED, scheduled_turn(run_at)
                if run_at == now:
                    status, turn = PENDING, next_turn(transaction, task)
                transaction.update("task", {"status": status, "turn": turn, "run_at": run_at},
                                   "id=? AND status=WAITING", (follower,))
                record_activity(transaction, now, "released", task)
            return 1
        given_up = transaction.run("UPDATE task_after SET settled=2 WHERE task_id=? AND settled=0",
                                   (follower,))
        if task:
            why = "Task %d, which this one comes after, %s." % (ended, HOW_IT_ENDED[how])
            transaction.update("task", {
                "status": FAILED, "reason": "dependency", "error_type": "Dependency",
                "error_message": why, "finished_at": now}, "id=? AND status=WAITING", (follower,))
            record_activity(transaction, now, "failed", task, message=why, service=now - task["created_at"])
        return given_up

    @staticmethod
    def why_not_again(transaction, task):
        """Return a sentence if a retried task would only fail again because of a predecessor, else None."""
        if task["after_failure"] != "fail":
            return None
        given_up = transaction.one(
            "SELECT after_id, status FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE task_id=? AND settled=2 AND (status IS NULL OR status IN (FAILED, CANCELLED)) LIMIT 1",
            (task["id"],))
        if given_up is None:
            return None
        return "Task %d comes after task %d, which %s; %s." % (
            task["id"], given_up["after_id"], HOW_IT_ENDED[given_up["status"]],
            "add it anew" if given_up["status"] is None else "retry that one first")

    @staticmethod
    def reopen_edges(transaction, task):
        """Mark the edges to predecessors that have not ended as open again; return their number."""
        if task["after_failure"] is None:
            return 0
        transaction.run("UPDATE task_after SET settled=1 WHERE task_id=? AND settled=2",
                        (task["id"],))
        return transaction.run(
            "UPDATE task_after SET settled=0 WHERE task_id=? AND settled=1 AND EXISTS "
            "(SELECT 1 FROM task WHERE id=after_id AND status NOT IN ENDED)", (task["id"],))

    @staticmethod
    def tie(transaction, edges, statuses,
            now):
        """Store the edges of new tasks. `statuses` are the statuses of their predecessors, by id.

        If a predecessor has failed or was cancelled, settle() is called here.
        """
        transaction.insert_all("task_after", edges)
        ended = {before: status for before, status in statuses.items()
                 if status in (FAILED, CANCELLED)}
        for before, status in ended.items():
            transaction.ensure("unsettled", {"task_id": before, "status": status})
        if ended:
            Followers.settle(transaction, now)


# tasks/files.py --------------------------------------------------------------
#
# Files that tasks are given and leave: kept, served, removed.
#
# An uploaded file lies in files-WORD/KEY, and arguments hold that key. Only its row of `file` has its
# name. Files that a task leaves stay in its folder, work-WORD/ID. Each row of `file` names an owner. A queue
# on PostgreSQL has its files on the web server's machine; other machines fetch them from it.
#
# 1. receive() reserves room with a row, and adds the name once the whole file is there. give() makes it a
#    file of each new task that names its key, in the transaction that adds the task.
# 2. collect() records the files that a task has left, in the transaction that ends it.
# 3. A trigger expires the rows of a removed task's uploads. An unused upload expires after a day. clear()
#    removes expired rows, then files and folders without a row. Crashes leave such files, too.









UNUSED_SECONDS = 86400.0        # an upload without a task expires after this time
CLAIM_LOST = "Another worker has this task, or it has ended."
FORMER_SECONDS = 86400.0        # links with folder names of earlier editions are removed after this time
FILES_MAX = 100                 # files of a task that are kept
UNUSED_MAX, OWNED_MAX = 1000, 10_000    # files of a user: unused uploads, and all files
FILE_NAME_BYTES = 200
# Control characters, marks that change the direction of text, and lone surrogates.
NAMELESS = r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
SITE_SECONDS = 10.0             # how long the stored place of the files is cached
# The bytes of a user's files. Each file counts at least 8 kB, as on the disk.
USED_BYTES = """
    SELECT sum(CASE WHEN size<8192 THEN 8192 ELSE size END) FROM file
    WHERE owner_id=? AND (until IS NULL OR until>0) AND NOT EXISTS (
        SELECT 1 FROM file AS other WHERE other.key=file.key AND other.id<file.id)"""
BYTES_TYPE, PLAIN_TYPE = "application/octet-stream", "text/plain; charset=utf-8"
SHOWN_TYPES = {                 # found by a file's first bytes; browsers save all other files
    rb"\x89PNG\r\n\x1a\n": "image/png", rb"\xff\xd8\xff": "image/jpeg", rb"GIF8[79]a": "image/gif",
    rb"RIFF....WEBP": "image/webp", rb"(?!%PDF)[^\0-\x08\x0e-\x1a\x1c-\x1f]*\Z": PLAIN_TYPE}
TYPE_BYTES = 4096


class FileSite(NamedTuple):
    """The address where workers of other machines fetch files."""

    address: "str"                # empty if page_address is not set
    authorities: "str | None"     # the file of the certificates to trust


class OpenFile(NamedTuple):
    """An open file of a task, and its media type, found from its own bytes."""

    file: "BinaryIO"
    kind: "str"


def task_folder(data, task_id):
    """Return the folder of a task: it may write files there and leave them."""
    return private_folder(find_database(data), "work") / str(task_id)


def remove_whole(path):
    """Remove a file, or a folder with its content, as far as possible."""
    import shutil
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def remove_task_folder(data, task_id):
    """Remove the folder of a task, if there is one."""
    with contextlib.suppress(SetupError, StorageBroken):
        remove_whole(task_folder(data, task_id))


def given_path(folder, key):
    """Return the path of an uploaded file. Earlier editions made a folder for each file."""
    path = folder / key
    return next(path.iterdir(), path) if path.is_dir() else path


def given_folder(data):
    """Return the folder of the uploaded files."""
    return private_folder(find_database(data), "files")


def file_name(text):
    """Return the last part of a path as a plain name that every file system takes."""
    name = re.sub(NAMELESS, "_", re.split(r"[/\\]", text)[-1]).strip(". ")
    return name.encode("utf-8")[-FILE_NAME_BYTES:].decode("utf-8", "ignore") or "file"


def disk_name(name):
    """Return the name of a file on the disk, in UTF-8 with every locale."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def shown_name(name):
    """Return the name that people see for a file on the disk."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def names_left(folder):
    """Return the names in a task's folder without hidden ones; None if there is no folder."""
    try:
        with open_folder(folder) as room:
            return sorted(shown_name(name) for name in os.listdir(room) if name[0] != ".")
    except FileNotFoundError:
        return None
    except OSError:                     # the folder cannot be read
        return []


def open_plain(folder, name):
    """Open a file of a folder. OSError for links, devices, and files with a second hard link."""
    with open_folder(folder) as room:
        file = open(disk_name(name), "rb", buffering=0, opener=lambda path, flags: os.open(
            path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=room))
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return file
    file.close()
    raise OSError(errno.EINVAL, "It is no plain file")


def plain_size(folder, name):
    """Return the size of a file that a task left; None if it is no plain file with a plain name."""
    with contextlib.suppress(OSError, ValueError):
        if file_name(name) == name:
            with open_plain(folder, name) as file:
                return os.fstat(file.fileno()).st_size
    return None


def open_given(path):
    """Open a file for an upload. SetupError for a pipe and the like, which may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise SetupError("%s is not a plain file: copy its content into one." % path)
    return open(path, "rb")


class FileSlice:
    """An iterator over the next `size` bytes of an open file, in pieces."""

    def __init__(self, file, size):
        self._file, self._left, self.close = file, size, file.close

    def __len__(self):
        return self._left

    def __iter__(self):
        while self._left:
            piece = self._file.read(min(PIECE_BYTES, self._left))
            if not piece:
                raise OSError(errno.EIO, "The file has become shorter")
            self._left -= len(piece)
            yield piece


class Files:
    """The store of uploaded files and of the files that tasks left."""

    def __init__(self, database, settings):
        self._database, self._settings, self._clock = database, settings, database.clock
        self._given, self._work = map(self._settled_folder, ("files", "work"))
        self._looks = Every(SITE_SECONDS, database.clock)
        self._machine = None            # the machine that has the files

    def _settled_folder(self, name):
        """Return the path of a folder; rename it if its name has the word of the database (earlier editions).

        Running processes of such an edition find it by a link, which clear() removes after a day.
        """
        folder, former = private_folder(self._database.path, name), private_path(self._database.path, name)
        if former.is_dir() and not former.is_symlink():
            with contextlib.suppress(OSError):  # another process was first
                os.rename(former, folder)
                former.symlink_to(folder.name)
        return folder

    def settle(self):
        """Store that the files are on this machine; its web server calls this."""
        if self._database.is_shared and recall(self._database, "files") != machine_name():
            with self._database.transaction() as transaction:
                remember(transaction, "files", machine_name())
        self._looks.hasten(0.0)

    def site(self, transaction=None):
        """Return where the files are; None if they are here."""
        if not self._database.is_shared:
            return None
        if self._looks.begin_if_due():        # else each attempt would read it
            self._machine = recall(transaction or self._database, "files")
        is_here = self._machine in (None, machine_name())
        return None if is_here else FileSite(
            self._settings.get("page_address", transaction), None)

    def path(self, row, task_id=None):
        """Return the path of a file by its row."""
        if row["key"]:
            return given_path(self._given, row["key"])
        return self._work / str(task_id) / disk_name(row["name"])

    def receive(self, owner_id, name, size, pieces,
                task_id=None,
                is_held=lambda _: True):
        """Store a file of `size` bytes: an upload, or a file that a task leaves.

        `is_held` tests the claim of a task again once all bytes are here. Conflict if the claim was lost;
        then the task's files stay as they were.
        """
        row = {"key": None, "name": file_name(name)}
        if not task_id:         # macOS sends names in NFD
            import unicodedata
            row = {"key": "f_" + random_token(), "name": unicodedata.normalize("NFC", row["name"])}
        path, row_id = self.path(row, task_id), self._reserve(owner_id, size, row["key"], task_id)
        try:
            if path.parent.is_symlink():
                path.parent.unlink()    # the task put a link in its folder's place
            for folder in (self._work, path.parent) if task_id else (path.parent,):
                folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.ExitStack() as opened:
                room = opened.enter_context(open_folder(path.parent))
                with self._database.deadline_paused():
                    part = opened.enter_context(write_part(room, pieces, row["key"]))
                transaction = opened.enter_context(self._database.transaction())
                if not is_held(transaction):
                    raise Conflict(CLAIM_LOST, gone=True)
                transaction.run("DELETE FROM file WHERE key IS NULL AND task_id=? AND name=?",
                                (task_id, row["name"]))
                if transaction.value("SELECT 1 FROM task WHERE id=?", (task_id,)):
                    row.update(task_id=task_id, until=None)
                transaction.update("file", row, "id=?", (row_id,))
                os.replace(part, path.name, src_dir_fd=room, dst_dir_fd=room)
        except BaseException as error:
            with print_errors("giving up a file"):
                with self._database.transaction() as transaction:
                    transaction.update("file", {"until": 0}, "id=?", (row_id,))
                self.clear(self._clock.now())
            raise cannot_write(self._database.folder, error) if isinstance(error, OSError) else error
        return {"id": row["key"], "name": row["name"], "size": size}

    def store_copy(self, path, owner_id):
        """Store a copy of a file for a later task; return its key."""
        with open_given(path) as file:
            size = os.fstat(file.fileno()).st_size
            return self.receive(owner_id, shown_name(Path(path).name), size, FileSlice(file, size))["id"]

    def _reserve(self, owner_id, size, key, task_id):
        """Reserve room for a file; return the id of its row."""
        if self.site():
            raise SetupError("The files of this queue are on another machine: add this task there, "
                             "or by --server.")
        if free_bytes(self._database.folder) < DISK_LOW_BYTES + size:
            raise StorageFull(FULL)
        with self._database.transaction() as transaction:
            if size > self._room(transaction, owner_id):
                raise StorageFull("With this one the files of the user would have more than %d MB "
                                  "(max_files_mb)." % self._settings.get("max_files_mb", transaction))
            for most, which in ((UNUSED_MAX, "task_id IS NULL AND until>0"), (OWNED_MAX, "1=1")):
                if transaction.value("SELECT count(*) FROM (SELECT 1 FROM file WHERE owner_id=? AND %s "
                                     "LIMIT ?) AS found" % which, (owner_id, most)) >= most:
                    raise StorageFull("The user has %d files already; add the tasks that they are "
                                      "for, or remove tasks." % most)
            if task_id and len(self.of_task(task_id, transaction)) >= FILES_MAX:
                raise Conflict("A task keeps at most %d files." % FILES_MAX)
            return transaction.insert("file", {"owner_id": owner_id, "key": key, "size": size,
                                               "until": self._clock.now() + UNUSED_SECONDS})

    def _room(self, transaction, owner_id):
        """Return how many more bytes the files of a user may have."""
        limit = self._settings.get("max_files_mb", transaction) << 20
        return limit - (transaction.value(USED_BYTES, (owner_id,)) or 0) if limit else math.inf

    @staticmethod
    def give(transaction, task_id, owner_id, keys,
             scope, now):
        """Give a new task these files; return the keys of missing files.

        The files must belong to the owner `scope`; None: to any owner.
        """
        found_rows = {row["key"]: row for row in transaction.all_of(
            "SELECT key, name, size FROM file WHERE name IS NOT NULL AND (until IS NULL OR until>?)"
            " AND owner_id=coalesce(?, owner_id) AND key IN (%s)", (now, scope), keys)}
        for key, row in found_rows.items():
            transaction.insert("file", {**dict(zip(row.keys(), row)), "owner_id": owner_id,
                                        "task_id": task_id})
            transaction.run("DELETE FROM file WHERE key=? AND task_id IS NULL", (key,))
        return [key for key in keys if key not in found_rows]

    def given_names(self, task):
        """Return the names of the files that a claimed task was given, by their keys."""
        if "f_" not in task["arguments"]:
            return {}
        rows = self._database.all("SELECT key, name FROM file WHERE task_id=? AND key IS NOT NULL",
                                  (task["id"],))
        return {row["key"]: row["name"] for row in rows}

    def collect(self, transaction, task, now):
        """Record the files that an ended task (its row) left in its folder; return their names.

        None if it has no folder here. Nothing is recorded if another machine has the files: the worker has
        sent them there. Files that are not plain, or too many or too large, are only named in the log.
        """
        folder = "%s/%d" % (self._work, task["id"])
        kept = {}
        refused = []
        names = names_left(folder)
        if names is None or self.site(transaction):
            return names
        transaction.run("DELETE FROM file WHERE key IS NULL AND task_id=?", (task["id"],))
        room = self._room(transaction, task["owner_id"]) if names else 0
        for name in names:
            size = plain_size(folder, name) if len(kept) < FILES_MAX else None
            if size is not None and size <= room:
                kept[name], room = size, room - size
            else:
                refused.append(storable(name))
        transaction.insert_all("file", ({"owner_id": task["owner_id"], "task_id": task["id"],
                                         "name": name, "size": kept[name]} for name in kept))
        if refused:
            place = task["id"], task["attempts"]
            append_log(transaction, now, *place, log_length(transaction, *place),
                       "Not kept (not plain files, too many, or too large): %s\n"
                       % shorten(", ".join(refused), 2000))
        return list(kept)

    def tidy(self, task_id, verdict):
        """Remove the useless files of a task's folder after its end was recorded."""
        if verdict.kept is None and not verdict.removed:
            return
        folder, kept = self._work / str(task_id), verdict.kept or []
        if verdict.removed or self.site():
            remove_whole(folder)
        elif verdict.status == SUCCEEDED:
            with contextlib.suppress(OSError):
                paths = folder.iterdir() if kept else [folder]
                for path in (path for path in paths if shown_name(path.name) not in kept):
                    remove_whole(path)

    def of_task(self, task_id, db=None):
        """Return the rows of a task's files: first those that it left, then those that it was given."""
        return (db or self._database).all(
            "SELECT key, name, size FROM file WHERE task_id=? AND name IS NOT NULL "
            "ORDER BY CASE WHEN key IS NULL THEN 0 ELSE 1 END, name, id", (task_id,))

    def open_file(self, task_id, row):
        """Open a file of a task by its row."""
        path = self.path(row, task_id)
        file = open_plain(path.parent, shown_name(path.name))
        head = os.pread(file.fileno(), TYPE_BYTES, 0)
        return OpenFile(file, next((kind for pattern, kind in SHOWN_TYPES.items()
                                    if re.match(pattern, head, re.DOTALL)), BYTES_TYPE))

    def describe(self, task_id):
        """Yield the files of a task as people see them."""
        for row in self.of_task(task_id):
            kind = BYTES_TYPE
            with contextlib.suppress(OSError):
                file, kind = self.open_file(task_id, row)
                file.close()
            yield {"name": row["name"], "size": row["size"], "id": row["key"],
                   "type": kind.partition(";")[0]}

    def clear(self, now, wholly=False):
        """Remove expired rows. If there are some, or `wholly`, remove files and folders without a row."""
        if not wholly and not self._database.value("SELECT 1 FROM file WHERE until<?", (now,)):
            return
        with self._database.transaction(durable=False) as transaction:
            transaction.run("DELETE FROM file WHERE until<?", (now,))
        for former in (private_path(self._database.path, name) for name in ("files", "work")):
            with contextlib.suppress(OSError):
                if former.is_symlink() and former.lstat().st_mtime < now - FORMER_SECONDS:
                    former.unlink()
        for folder, question in ((self._given, "SELECT key FROM file WHERE key IN (%s)"),
                                 (self._work, "SELECT id FROM task WHERE id IN (%s)")):
            entries = os.listdir(folder) if folder.is_dir() else []
            # The names of unfinished uploads begin with a dot.
            names = {name.lstrip("."): name for name in entries
                     if folder == self._given or name.isdecimal()}
            for name in names.keys() - {str(row[0]) for row in self._database.all_of(
                    question, (), names.keys())}:
                remove_whole(folder / names[name])


# tasks/adding.py -------------------------------------------------------------
#
# Adding: each order becomes a task only once, within its owner's limit.
#
# All orders of a request become tasks, or none. Adding.add() numbers them and checks their owner's limit.
# It gives each a status and a turn, and stores it with a row of the activity. Until then the arguments of a
# large request may be in a file. A request with an Idempotency-Key is carried out once.

      # an order, its task's id, status and turn


FEW_ORDERS = 10                 # requests with more orders get a commit of their own (no group commit)
UNCOUNTED_MAX = 1000            # tasks that are added until pending tasks are counted again
REQUEST_SECONDS = 86400.0       # how long an Idempotency-Key is known
OWNER_STATE = "SELECT name, role, max_pending, (%%s) AS last, %s FROM user WHERE id=?" % TURNS


class Order:
    """A task to be added: checked, complete, not yet a row."""

    __slots__ = ("function", "arguments", "size", "options", "run_at", "after", "after_failure",
                 "unique_key", "owner", "admin_id", "schedule_id", "file", "start", "given",
                 "scope")

    def __init__(self, function, arguments, options,
                 run_at=None, after=(),
                 after_failure=None, unique_key=None,
                 owner=None, admin_id=None,
                 scope=None):
        self.function, self.options = function, options     # options: every name of TASK_OPTIONS
        self.arguments = arguments      # JSON text; empty while it is in a file
        self.size = sys.getsizeof(arguments)
        self.file = None
        self.start = 0                  # where its arguments begin in the file
        self.run_at, self.unique_key = run_at, unique_key
        self.schedule_id = None
        self.after, self.after_failure = after, after_failure or "fail"     # after: ids without duplicates
        self.owner = owner              # the requested owner's name, or None
        self.admin_id = admin_id        # the user who must still be an admin when it starts
        self.given = ()  # keys of the files in its arguments
        self.scope = scope              # the owner that given files must have; None: any

    def text(self):
        """Return the arguments, from wherever they are."""
        return self.file.read(self) if self.file else self.arguments


class ArgumentsFile:
    """A file with the arguments of many orders, to save memory. It is deleted with the last order."""

    def __init__(self, folder):
        import tempfile
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        except OSError as error:
            raise cannot_write(folder, error) from None

    def __del__(self):
        self._file.close()

    def move(self, order):
        """Move the arguments of an order into this file."""
        utf8, order.file, order.start = order.arguments.encode("utf-8"), self, self._file.tell()
        order.arguments, order.size = "", len(utf8)
        try:
            if self._file.write(utf8) < len(utf8):
                raise OSError(errno.ENOSPC, "")
        except OSError as error:
            raise cannot_write(self._folder, error) from None

    def read(self, order):
        """Return the arguments of an order."""
        return os.pread(self._file.fileno(), order.size, order.start).decode("utf-8")


class Added(NamedTuple):
    """The ids of the tasks for the orders, in the same order, and how many of them are new."""

    ids: "list[int]"
    new: "int"


class Holder(NamedTuple):
    """The unfinished task that has a unique key."""

    id: "int"
    function: "str"


class Adding:
    """The adding of orders: ids, the owner's limit, and the turns."""

    def __init__(self, database, settings, files):
        self._database, self._settings, self._files = database, settings, files
        # (owner id, limit) -> the last task id that is surely within the limit
        self._sure = {}

    def add(self, transaction, owner_id, orders, now,
            adding_task_id=None):
        """Add all orders; return their ids.

        An order adds nothing if an unfinished task of the owner has its unique_key: it gets the id of
        that task. If the running task `adding_task_id` has the key, and so adds the order itself, the new
        task takes the key.
        """
        options = orders[0].options if orders else TASK_DEFAULTS
        lane = options["queue"], options["priority"]
        owner = self._owner(transaction, owner_id, lane)
        first = (owner["last"] or 0) + 1
        ids, new = self._number(transaction, owner_id, orders, first, adding_task_id)
        self._check_quota(transaction, owner_id, owner, len(new))
        statuses = self._predecessors(transaction, owner_id, orders, new)
        turns = {lane: turn_after(owner)}
        placed = []
        edges = []
        for task_id, order in enumerate(new, first):
            lane = order.options["queue"], order.options["priority"]
            edges += [{"task_id": task_id, "after_id": before, "place": at,
                       "settled": int(statuses[before] == SUCCEEDED)}
                      for at, before in enumerate(order.after)]
            if any(statuses[before] != SUCCEEDED for before in order.after):
                status, turn = WAITING, 0
            elif order.run_at is not None and order.run_at > now:
                status, turn = SCHEDULED, scheduled_turn(order.run_at)
            else:
                turn = turns.get(lane) or next_turn(
                    transaction, {"owner_id": owner_id, **order.options})
                status, turns[lane] = PENDING, turn + 1
            placed.append((order, task_id, status, turn))
        self._insert(transaction, owner_id, placed, now)
        self._give(transaction, owner_id, orders, placed, now)
        Followers.tie(transaction, edges, statuses, now)
        return Added(ids, len(new))

    def _number(self, transaction, owner_id, orders,
                first, adding_task_id):
        """Return the ids for all orders, and the orders to be added, which get ids from `first` on."""
        ids = []
        new = []
        holders = self._holders(transaction, owner_id, {
            order.unique_key for order in orders if order.unique_key is not None}, adding_task_id)
        for order in orders:
            next_id = first + len(new)
            holder = Holder(next_id, order.function)
            if order.unique_key is not None:
                holder = holders.setdefault(order.unique_key, holder)
            if holder.function != order.function:
                raise Conflict("The unique_key %s belongs to task %d of %s; choose another key." % (
                    shorten(order.unique_key or "", 60), holder.id, holder.function),
                    wrong("unique_key", "belongs to a task of another function"))
            if holder.id == next_id:
                new.append(order)
            ids.append(holder.id)
        return ids, new

    @staticmethod
    def _holders(transaction, owner_id, keys,
                 adding_task_id):
        """Return the unfinished task that has each key; Conflict if one of them is being ended.

        The running task `adding_task_id`, which adds the orders, loses its key.
        """
        holders = {}
        for task_id, key, function, cancel_requested in transaction.all_of(
                "SELECT id, unique_key, function, cancel_requested FROM task %s WHERE owner_id=? "
                "AND status NOT IN ENDED AND unique_key IN (%%s)" % BY_UNIQUE,
                (owner_id,), keys):
            if cancel_requested:                   # that task will not do the work
                raise Conflict("The task with the unique_key %s is being %s; try again in a few seconds."
                               % (shorten(key, 60), "deleted" if cancel_requested == DELETE else "cancelled"),
                               wrong("unique_key", "is still in use"))
            if task_id == adding_task_id:
                transaction.update("task", {"unique_key": None}, "id=? AND status=RUNNING", (adding_task_id,))
            else:
                holders[key] = Holder(task_id, function)
        return holders

    def _owner(self, transaction, owner_id, lane):
        """Return an owner's row with the last task id and the turns of a lane; Conflict if the owner is
        gone."""
        owner = transaction.one(OWNER_STATE % (self._database.last_id_words % "task"),
                                (*lane, owner_id, *lane, owner_id))
        if owner is None:
            raise Conflict(OWNER_GONE)
        return owner

    def check_quota(self, transaction, owner_id, count, refusal):
        """Return how many more tasks the owner may have pending; TooMany if fewer than `count`."""
        owner = self._owner(transaction, owner_id, ("", 0))
        return self._check_quota(transaction, owner_id, owner, count, refusal)

    def _check_quota(self, transaction, owner_id, owner, count,
                     refusal=None):
        """Return how many tasks the owner may add, as check_quota() does; TooMany if fewer than `count`.

        If an owner has more than COUNT_MAX tasks, not every add counts them. So retries and adds together
        may exceed the limit by up to UNCOUNTED_MAX. A call with a `refusal` always counts.
        """
        if owner["role"] == "admin":
            return INTEGER_MAX
        limit = owner["max_pending"]
        if limit is None:
            limit = self._settings.get("max_pending", transaction)
        if not limit:
            return INTEGER_MAX
        last = owner["last"] or 0
        sure = self._sure.get((owner_id, limit), 0)
        if refusal is None and last + count <= sure:
            return sure - last
        waiting = transaction.value(
            "SELECT count(*) FROM (SELECT 1 FROM task %s "
            "WHERE owner_id=? AND status IN (PENDING, SCHEDULED, WAITING) "
            "LIMIT ?) AS found" % BY_TURN, (owner_id, limit))
        if waiting + count > limit:
            raise TooMany(
                "%s: at most %d of %s's tasks may be pending, and %s. Try again "
                "when some of them have run." % (
                    refusal or "Nothing was added", limit, owner["name"],
                    "that many already are" if waiting == limit else
                    "%d more would make %d" % (count, waiting + count)), retry_after=60)
        if waiting > COUNT_MAX:
            self._sure[owner_id, limit] = last + min((limit - waiting) // 2, UNCOUNTED_MAX)
        return limit - waiting

    @staticmethod
    def _predecessors(transaction, owner_id, orders,
                      new):
        """Return {id: status} of the tasks that new tasks come after; Invalid for tasks of other owners."""
        wanted_ids = dict.fromkeys(before for order in new for before in order.after)    # keeps the order
        statuses = {before: status for before, status in transaction.all_of(
            "SELECT id, status FROM task %s WHERE owner_id=? AND id IN (%%s)" % BY_ID,
            (owner_id,), wanted_ids)}
        missing = wanted_ids.keys() - statuses.keys()
        if missing:                     # it may have been removed on success
            statuses.update((task_id, SUCCEEDED) for task_id, in transaction.all_of(
                "SELECT task_id FROM activity WHERE event='succeeded' AND owner_id=? "
                "AND task_id IN (%s)", (owner_id,), missing))
            missing -= statuses.keys()
        if missing:
            raise tasks_refused([
                {"field": "after", "index": index,
                 "message": "must name tasks of the same owner; %d is not one of them" % before}
                for index, order in enumerate(orders)
                for before in order.after if before in missing], len(orders) == 1)
        return {before: statuses[before] for before in wanted_ids}

    def _give(self, transaction, owner_id, orders,
              placed, now):
        """Give new tasks the files that their arguments name; Invalid for files of other owners."""
        for order, task_id, *_ in placed:
            missing = order.given and self._files.give(
                transaction, task_id, owner_id, order.given, order.scope, now)
            if missing:
                raise tasks_refused([
                    {"field": "arguments", "index": orders.index(order), "message":
                     "name the file %s, which does not exist or is not yours" % key}
                    for key in missing], len(orders) == 1)

    @staticmethod
    def _insert(transaction, owner_id, placed, now):
        """Store orders as rows, a few at a time: all of them would need as much memory as the upload."""
        for queue in {order.options["queue"] for order, *_ in placed} - {TASK_DEFAULTS["queue"]}:
            transaction.ensure("queue", {"name": queue, "created_at": now})
        longest = max((order.size for order, *_ in placed), default=0)
        transaction.insert_all(
            "task", (dict(
                order.options, id=task_id, owner_id=owner_id, function=order.function,
                arguments=order.text(), status=status, turn=turn,
                run_at=order.run_at, unique_key=order.unique_key,
                retries_left=order.options["max_retries"],
                after_failure=order.after_failure if order.after else None,
                schedule_id=order.schedule_id, admin_id=order.admin_id, created_at=now)
                for order, task_id, status, turn in placed),
            VARIABLES_MAX // (1 + longest // 20_000))
        if placed:
            transaction.advance_ids("task", placed[-1][1])
            transaction.run_later(
                "INSERT INTO activity (at, event, task_id, owner_id, function, queue) "
                "SELECT created_at, 'added', id, owner_id, function, queue FROM task WHERE id>=?",
                (placed[0][1],))


class IdempotencyRecord:
    """A request with an Idempotency-Key, which its client can repeat safely."""

    def __init__(self, person_id, key, digest):
        self._key = {"owner_id": person_id, "key": key}
        self._digest = digest           # digest of the request

    def find(self, db, now):
        """Return the stored answer to this request, or None; Invalid if another request used the key."""
        row = db.one(
            "SELECT digest, answer FROM request WHERE owner_id=? AND key=? "
            "AND created_at BETWEEN ? AND ?",
            (*self._key.values(), now - REQUEST_SECONDS, now + REQUEST_SECONDS))
        if row is None:
            return None
        if row["digest"] != self._digest:
            raise field_error("Idempotency-Key", "was used for another request")
        answer = json.loads(row["answer"])       # older versions stored more keys
        return {"ids": answer["ids"], "created": answer["created"]}

    def keep(self, transaction, answer, now):
        """Store the answer {"ids", "created"} in the transaction that carries out the request."""
        transaction.upsert("request", self._key, {
            "digest": self._digest, "created_at": now, "answer": dump_json(answer)})


# tasks/task_list.py ----------------------------------------------------------
#
# Tasks as people see them: find, count, show.
#
# A single task comes with everything that belongs to it. Lists have the tasks of a Filter. An index finds
# owners and statuses. Other conditions are tested row by row, in one short range of ids after the other
# (Database.walk), so that other readers need not wait.

AFTER_MAX = 1000                # predecessors of one task
RELATED_MAX = 100               # predecessors or followers shown of a task
SORT_ROWS = 5_000               # most tasks that are sorted; with more, ranges of ids are searched
GROUPS_MAX, RUNNING_MAX = 10, 10    # groups of failures that are shown, running tasks that are shown
# The kind of an error, and the groups of the tasks that have it.
KIND = "coalesce(error_type, reason)"
GROUPS = ("SELECT function, %s AS error, count(*) AS count, max(task.id) AS newest FROM task %%s "
          "WHERE cancel_requested<2 AND %%s GROUP BY function, %s" % (KIND, KIND))

TASK_ROW = ("SELECT task.*, user.name AS owner FROM task "
            "%s user ON user.id=task.owner_id WHERE cancel_requested<2 AND " % THEN_JOIN)
# Lists leave out large values: long arguments are NULL, a long result is "…".
SHORT_ARGUMENTS = "CASE WHEN length(task.arguments)<=4000 THEN task.arguments END AS arguments"
SHORT_RESULT = """, CASE WHEN length(task.result)<=%d THEN task.result
WHEN task.result<>'' THEN '"…"' END AS result"""
LIST_ROW = "SELECT %s, %s%%s, user.name AS owner FROM task %%%%s %s user " \
    "ON user.id=task.owner_id WHERE cancel_requested<2 AND " % (", ".join(
        "task." + name for name in (
            "id queue function status reason priority run_at unique_key max_retries retries_left "
            "retry_delay retry_backoff timeout on_crash remove_on_success notify attempts crashes "
            "cancel_requested progress message error_type error_message worker_id schedule_id "
            "created_at started_at finished_at after_failure").split()), SHORT_ARGUMENTS, THEN_JOIN)
FIELDS_ROW, EXPORT_ROW = (LIST_ROW % (SHORT_RESULT % most) for most in (1000, 32_000))
# A cell of a spreadsheet has at most 32,767 characters.
LIST_ROW, EXPORT_ROW = LIST_ROW % "", EXPORT_ROW.replace("4000", "32000")
SORTED_ROW = ("SELECT id, status, function, started_at, finished_at FROM task %s "
              "WHERE cancel_requested<2 AND ")
# The expressions in which a text is searched, 500 characters of each. Ids, arguments and owners' names are
# searched, too.
SEARCHED = ("function", "message", "error_type || ': ' || error_message")


# Sort keys without an index: they sort the newest SORT_ROWS tasks. Keys of times also sort the newest
# SORT_ROWS tasks that have begun. Ids sort all tasks.
SORTS = {
    "function": lambda row, _: row["function"], "started_at": lambda row, _: row["started_at"] or 0,
    "duration": lambda row, now: bool(row["started_at"]) and -row["started_at"] + (
        (now if row["status"] == RUNNING else row["finished_at"]) or row["started_at"])}
BEGUN = RUNNING, SUCCEEDED, FAILED, CANCELLED
NEWEST, OLDEST = "-id", "id"
FIELDS = {     # the larger values of a task, and how they are read
    "arguments": shown_arguments, "result": lambda text: json.loads(text or "null")}


def task_json(row, after=None, fields=FIELDS,
              files=()):
    """Return a task as people see it, with the given FIELDS. `files` are its uploads as (id, name)."""
    error = None
    if row["error_type"]:
        error = {"type": row["error_type"], "message": row["error_message"]}
    shown = {
        "id": row["id"], "owner": row["owner"], "function": row["function"],
        "summary": summarize(row["arguments"], files), "queue": row["queue"],
        "status": STATUS_WORDS[row["status"]], "reason": row["reason"], "priority": row["priority"],
        "run_at": iso(row["run_at"]), "unique_key": row["unique_key"], "after": after or [],
        "after_failure": row["after_failure"], "attempts": row["attempts"],
        "crashes": row["crashes"], "max_retries": row["max_retries"],
        "retries_left": max(0, row["retries_left"]), "retry_delay": plain(row["retry_delay"]),
        "retry_backoff": plain(row["retry_backoff"]), "timeout": plain(row["timeout"]),
        "on_crash": row["on_crash"], "remove_on_success": row["remove_on_success"] == 1,
        "notify": row["notify"], "cancel_requested": row["cancel_requested"] > 0,
        "progress": row["progress"], "message": row["message"], "error": error,
        "worker": row["worker_id"], "schedule": row["schedule_id"],
        "created_at": iso(row["created_at"]), "started_at": iso(row["started_at"]),
        "finished_at": iso(row["finished_at"])}
    return {**shown, **{name: FIELDS[name](row[name]) for name in fields}}


def samples_json(row):
    """Return the samples of a running task; None if it has none."""
    if row["status"] != RUNNING or not row["samples"]:
        return None
    names = "seconds", "cpu_seconds", "memory"
    return [dict(zip(names, sample)) for sample in json.loads(row["samples"])]


class Filter(NamedTuple):
    """A filter for tasks; None stands for any.

    `text` is an id, or part of an owner's name, of SEARCHED or of the arguments. `error` is the type of the
    error, or the reason of a failure without one. `since` and `until` limit the time of adding. Arguments
    with a secret are searched only for their owner. `sees` is the id of the user who searches (0: no user;
    None: the host, which searches all).
    """

    owner_id: "int | None" = None
    statuses: "Sequence[int] | None" = None
    function: "str | None" = None
    queue: "str | None" = None
    text: "str | None" = None
    error: "str | None" = None
    ended_since: "float | None" = None
    since: "float | None" = None
    until: "float | None" = None
    ids: "Sequence[int] | None" = None
    sees: "int | None" = None

    def within(self, statuses):
        """Return the same filter, but only for tasks with one of these statuses."""
        return self._replace(statuses=[      # SQLite 3.15 has no empty IN list
            status for status in statuses if status in (self.statuses or statuses)] or [-1])

    @property
    def searches(self):
        """Return True if no index finds the tasks, so that rows must be searched."""
        return any(value is not None for value in self[2:-1])

    def where(self):
        """Return a condition in SQL, and the values of its question marks."""
        conditions = {"owner_id=?": self.owner_id, "function=?": self.function, "queue=?": self.queue,
                 KIND + "=?": self.error, "finished_at>=?": self.ended_since,
                 "task.created_at>=?": self.since, "task.created_at<?": self.until}
        parts = {
            words: [value] for words, value in conditions.items() if value is not None}
        for name, allowed in (("status", self.statuses), ("task.id", self.ids)):
            if allowed is not None:
                parts["%s IN (%s)" % (name, ", ".join("?" * len(allowed)))] = allowed
        if self.text:
            number = re.fullmatch("#?([0-9]{1,15})", self.text, re.ASCII)
            begins = [CONTAINS % ("substr(%s, 1, 500)" % text) for text in (*SEARCHED, "arguments")]
            secret = " OR ".join([begins[-1]] * len(SECRET_TEXTS))
            parts["(task.id=? OR owner_id IN (SELECT id FROM user WHERE %s) OR %s AND (%s))" % (
                CONTAINS % "name", " OR ".join(begins),
                "?=0" if self.sees is None else "owner_id=? OR NOT (%s)" % secret)] = [
                    int(number[1]) if number else 0, *[storable(self.text)] * (1 + len(begins)),
                    self.sees or 0, *(() if self.sees is None else SECRET_TEXTS)]
        return " AND ".join(parts) or "1=1", list(itertools.chain(*parts.values()))


class StatusCounts(NamedTuple):
    """How many tasks with ids up to `reached` have each status."""

    counts: "list[int]"
    reached: "int"


class TaskList:
    """The list of tasks: finds, counts and shows them."""

    def __init__(self, database):
        self._database, self._clock = database, database.clock

    def get(self, task_id, owner_id=None, db=None):
        """Return the row of a task; NotFound if it is missing or another owner's."""
        is_number = re.fullmatch("[0-9]{1,18}", str(task_id))
        db = db or self._database
        row = db.one(TASK_ROW + "task.id=?", (task_id,)) if is_number else None
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def removed(self, task_id, owner_id=None):
        """Return function, owner and end of a task that was removed on success; NotFound if none was."""
        row = self._database.one(
            "SELECT at, function, owner_id, user.name AS owner FROM activity "
            "JOIN user ON user.id=activity.owner_id WHERE task_id=? AND event='succeeded' "
            "AND NOT EXISTS (SELECT 1 FROM activity WHERE task_id=? AND event='deleted')",
            (task_id, task_id))
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def full_json(self, row):
        """Return a task with the last traceback, its samples, its predecessors and its followers."""
        shown = task_json(row, row["after_failure"] and self._after(row, AFTER_MAX),
                          files=self._given(row))
        shown["samples"] = samples_json(row)
        shown["predecessors"] = self._related(row, "after_id", "task_id=? AND settled IN (0, 1, 2)")
        shown["followers"] = self._related(row, "task_id", "settled IN (0, 1, 2) AND after_id=?")
        if shown["error"]:
            last = self._database.value(
                "SELECT text FROM log WHERE task_id=? ORDER BY attempt DESC, start DESC LIMIT 1",
                (row["id"],)) or ""
            shown["error"]["traceback"] = last if last.startswith("Traceback ") else None
        return shown

    def neighbours(self, row, owner_id=None):
        """Return the ids of the tasks before and after this one, of an owner or of all; None at the end."""
        scan = "task %s WHERE owner_id=?" % BY_OWNER if owner_id else "task WHERE ?=0"
        return [self._database.value(
            "SELECT id FROM %s AND cancel_requested<2 AND id%s? ORDER BY id %s LIMIT 1"
            % (scan, *side), (owner_id or 0, row["id"])) for side in (("<", "DESC"), (">", "ASC"))]

    def last_success(self, row):
        """Return the newest success of the same function, owner and arguments; None if a search finds none.

        An index finds the owner's tasks. The search stops after SEARCH_SECONDS.
        """
        for rows, _ in self._database.walk(
                "SELECT id, finished_at FROM task %s WHERE id>? AND id<=? AND owner_id=? AND function=? "
                "AND status=SUCCEEDED AND cancel_requested<2 AND arguments=? ORDER BY id DESC LIMIT 1"
                % BY_OWNER, (row["owner_id"], row["function"], row["arguments"]), 0,
                self._database.last_id("task"), SEARCH_SECONDS, newest=True):
            for success in rows:
                measured = self._database.one(
                    "SELECT seconds, peak_memory FROM activity WHERE task_id=? AND event='succeeded' "
                    "ORDER BY id DESC LIMIT 1", (success["id"],))
                return {"id": success["id"], "finished_at": iso(success["finished_at"]),
                        "seconds": measured and measured["seconds"],
                        "peak_memory": measured and measured["peak_memory"]}
        return None

    def list_json(self, rows, fields=()):
        """Return tasks as lists show them, with the given FIELDS."""
        return [task_json(row, row["after_failure"] and self._after(row, RELATED_MAX), fields,
                          self._given(row)) for row in rows]

    def _given(self, row):
        """Return (id, name) of each file that a task was given, for its summary."""
        if not re.search(FILE_KEY, row["arguments"] or ""):
            return []
        return [(key, name) for key, name in self._database.all(
            "SELECT key, name FROM file WHERE task_id=? AND key IS NOT NULL AND name IS NOT NULL",
            (row["id"],))]

    def _after(self, row, limit):
        """Return the ids of the tasks that this one comes after."""
        return [after for after, in self._database.all(
            "SELECT after_id FROM task_after WHERE task_id=? ORDER BY after_id LIMIT ?",
            (row["id"], limit))]

    def results_before(self, task_id):
        """Return the results of the predecessors, in the order of `after`; None for removed tasks."""
        return [json.loads(text or "null") for text, in self._database.all(
            "SELECT result FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE task_after.task_id=? ORDER BY place, after_id", (task_id,))]

    def _related(self, row, side, condition):
        """Return the remaining predecessors or followers of a task."""
        rows = self._database.all(
            "SELECT task.id, function, status FROM task_after %s task ON task.id=%s "
            "WHERE %s AND cancel_requested<2 LIMIT ?" % (THEN_JOIN, side, condition),
            (row["id"], RELATED_MAX))
        return [{"id": task_id, "function": function, "status": STATUS_WORDS[status]}
                for task_id, function, status in sorted(map(tuple, rows))]

    def find(self, task_filter, limit, cursor=None, sort=NEWEST,
             select=LIST_ROW, seconds=SEARCH_SECONDS):
        """Return a page of the tasks of a filter. A search stops after `seconds`."""
        newest = sort == NEWEST
        ids = None
        place = cursor if cursor is not None else INTEGER_MAX if newest else 0
        low, high = (0, place - 1) if newest else (place, INTEGER_MAX)
        if sort not in (NEWEST, OLDEST):
            ids = self._sorted(task_filter, sort, cursor)
        elif not task_filter.searches:
            ids = self._ids(task_filter, limit + 1, low, high, newest)
        if ids is None:
            select += "%%s ORDER BY task.id %s LIMIT %d" % ("DESC" if newest else "", limit + 1)
            return self._database.search(
                *self._ranged(select, task_filter), low, min(high, self._database.last_id("task")),
                limit, seconds, newest)
        return Page(self._rows(select, ids[:limit]), ids[limit - 1] if len(ids) > limit else None)

    def _sorted(self, task_filter, sort, cursor):
        """Return the ids of a filter's tasks in the order `sort`, after `cursor`."""
        rows, more = self.find(task_filter, SORT_ROWS, select=SORTED_ROW)
        if more is not None and not sort.endswith("function"):      # tasks that have not begun have no times
            rows += self.find(task_filter.within(BEGUN), SORT_ROWS, select=SORTED_ROW).rows
        rows, now = list({row["id"]: row for row in rows}.values()), self._clock.now()
        rows.sort(key=lambda row: SORTS[sort.lstrip("-")](row, now), reverse=sort.startswith("-"))
        ids = [row["id"] for row in rows]
        if cursor is None:
            return ids
        if cursor not in ids:
            raise Malformed("The last task of the page before was removed. Begin at the first page.")
        return ids[ids.index(cursor) + 1:]

    def _rows(self, select, ids):
        """Return the rows of these tasks in this order, without removed tasks."""
        by_id = {row["id"]: row for row in self._database.all_of(
            select % "" + "task.id IN (%s)", (), ids)}
        return [by_id[task_id] for task_id in ids if task_id in by_id]

    def pages(self, task_filter, sort):
        """Yield all tasks of a filter with arguments and results, a portion at a time."""
        cursor = None
        more = True
        while more:
            rows, cursor = self.find(task_filter, PAGE_ROWS, cursor, sort, EXPORT_ROW)
            more = cursor is not None
            yield [{**shown, "arguments": mask(shown["arguments"])}  # people share exported files
                   for shown in self.list_json(rows, FIELDS)]

    def failures(self, task_filter):
        """Return the failures of a filter in groups by function and kind of error, the largest first.

        At most GROUPS_MAX groups are shown; `other_kinds` and `other_count` are those left out. First all
        failed tasks are read, found by their status. If that takes longer than LOOK_SECONDS, ranges of ids
        are read, newest first, for SEARCH_SECONDS. If the time is over, `more` is true.
        """
        failed = task_filter.within([FAILED])
        condition, values = failed.where()
        index = BY_CLAIM if failed.owner_id is None else BY_TURN
        whole, _ = self._database.read_within(GROUPS % (index, condition), values, LOOK_SECONDS)
        portions = [(whole or [], 0)]
        if whole is None:
            portions = list(self._database.walk(
                *self._ranged(GROUPS, failed), 0, self._database.last_id("task"), SEARCH_SECONDS, True))
        groups = {}
        for row in itertools.chain(*(rows for rows, _ in portions)):
            group = groups.setdefault((row["function"], row["error"]), {
                "function": row["function"], "error": row["error"], "count": 0, "newest": 0})
            group["count"] += row["count"]
            group["newest"] = max(group["newest"], row["newest"])
        ordered = sorted(groups.values(), key=lambda group: (-group["count"], -group["newest"]))
        shown, more_kinds = ordered[:GROUPS_MAX], ordered[GROUPS_MAX:]
        messages = dict(map(tuple, self._database.all_of(
            "SELECT id, error_message FROM task WHERE id IN (%s)", (), [
                group["newest"] for group in shown])))
        return {"groups": [{**group, "message": messages.get(group["newest"])} for group in shown],
                "count": sum(group["count"] for group in ordered), "other_kinds": len(more_kinds),
                "other_count": sum(group["count"] for group in more_kinds), "more": portions[-1][1] > 0}

    def firsts(self, status, owner_id=None,
               db=None):
        """Return the first pending or scheduled task of each queue and priority that has some."""
        scan, values = self._by_status(owner_id, [status])
        db = db or self._database
        first_rows = [db.one(
            "SELECT id, function, queue, turn, created_at, run_at %s AND queue=? AND priority=? "
            "ORDER BY turn LIMIT 1" % scan, (*values, *lane))
            for lane in lanes(db, status)]
        return [row for row in first_rows if row]

    def count(self, task_filter):
        """Return {"all": n, "pending": n, ...}, at most COUNT_MAX each; None if a search takes too long."""
        if task_filter.searches:
            top = self._database.last_id("task")
            counts, low = self.tally(task_filter._replace(statuses=None), 0, top, SEARCH_SECONDS)
            if low < top:
                return None
        else:
            scan, values = self._by_status(task_filter.owner_id, range(7))
            counts = list(self._database.row("SELECT " + ", ".join(
                "(SELECT count(*) FROM (SELECT 1 %s%s LIMIT %d) AS found)"
                % (scan, " AND cancel_requested<2" if status == RUNNING else "", COUNT_MAX)
                for status in range(7)), values))
        return {word: min(count, COUNT_MAX)
                for word, count in zip(("all", *STATUS_WORDS), (sum(counts), *counts))}

    @staticmethod
    def _by_status(owner_id, statuses):
        """Return the SQL for tasks of one status, of an owner or of all, and the values for all `statuses`.

        One statement must read all statuses: between two statements a task may change to a status that
        was read.
        """
        if owner_id is None:
            return "FROM task %s WHERE status=?" % BY_CLAIM, list(statuses)
        return ("FROM task %s WHERE status=? AND owner_id=?" % BY_TURN,
                [value for status in statuses for value in (status, owner_id)])

    def _ids(self, task_filter, limit, low, high,
             newest):
        """Return the ids above `low` up to `high`, or None if there are too many to sort."""
        if task_filter.statuses is None:
            owner = () if task_filter.owner_id is None else (task_filter.owner_id,)
            scan = "%s WHERE owner_id=? AND" % BY_OWNER if owner else "WHERE"
            return [row[0] for row in self._database.all(
                "SELECT id FROM task %s id>? AND id<=? ORDER BY id %s LIMIT ?"
                % (scan, "DESC" if newest else ""), (*owner, low, high, limit))]
        scan, values = self._by_status(task_filter.owner_id, task_filter.statuses)
        each = " UNION ALL ".join(["SELECT id " + scan] * len(task_filter.statuses))
        ids = [row[0] for row in self._database.all(each + " LIMIT ?", (*values, SORT_ROWS + 1))]
        if len(ids) > SORT_ROWS:
            return None
        return sorted((task_id for task_id in ids if low < task_id <= high), reverse=newest)[:limit]

    @staticmethod
    def _ranged(select, task_filter):
        """Return the query for tasks of a filter in a range of ids, without the values of the range."""
        condition, values = task_filter.where()
        return select % (BY_ID if task_filter.owner_id is None else BY_OWNER,
                         "task.id>? AND task.id<=? AND " + condition), values

    def tally(self, task_filter, low, top,
              seconds=SEARCH_SECONDS):
        """Count the tasks of a filter with ids above `low` up to `top`, as far as the time allows."""
        counts, select = [0] * 7, ("SELECT status, count(*) FROM task %s "
                                   "WHERE cancel_requested<2 AND %s GROUP BY status")
        for rows, reached in self._database.walk(
                *self._ranged(select, task_filter), low, top, seconds):
            low = reached
            for status, count in rows:
                counts[status] += count
        return StatusCounts(counts, low)


# tasks/actions.py ------------------------------------------------------------
#
# Cancel, retry, delete: one task, or all that match a filter.
#
# A running task is only marked: its worker ends it and records that. Many tasks are changed in short
# transactions, so that other writers need not wait long. Each transaction reads its rows again.




CHANGED_TASK = titled("TaskChange", object_of(notify=OPTION_SCHEMAS["notify"]))
PORTION_ROWS = 200              # tasks that a bulk action changes in one short transaction
ACTION_ROWS = 1000              # tasks that a bulk action reads at once

# The bulk actions, and the statuses in which each is possible.
ACTIONS = {
    "cancel": (PENDING, RUNNING, SCHEDULED, WAITING), "retry": (FAILED, CANCELLED),
    "delete": tuple(range(7))}
OPEN_TO_USERS = "NOT EXISTS (SELECT 1 FROM function WHERE name=task.function AND who<>'user')"


class Acted(NamedTuple):
    """How many tasks an action changed, and the id up to which it is done."""

    changed: "int"
    reached: "int"


class Actions:
    """The actions of people on tasks. Only Adding, Followers and Claims change statuses, too."""

    def __init__(self, database, tasks, adding):
        self._database, self._tasks, self._adding = database, tasks, adding
        self._clock = database.clock

    def cancel(self, task_id, owner_id=None, by=None):
        """Cancel a task at once, or ask its worker to; return its row. Conflict if it has ended."""
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] in (SUCCEEDED, FAILED):
                raise Conflict("Task %d has ended already (%s)."
                               % (task_id, STATUS_WORDS[row["status"]]))
            if row["status"] != CANCELLED:
                self._cancel(transaction, [row], self._clock.now(), by)
            return self._tasks.get(task_id, owner_id, transaction)

    def retry(self, task_id, owner_id=None, by=None):
        """Make a failed or cancelled task pending again with all its retries; return its row.

        Conflict if it has another status, or would only fail again. With an owner it counts as a new task.
        TooMany if the owner has too many, Denied if users may not add tasks of its function.
        """
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] not in (FAILED, CANCELLED):
                raise Conflict("Task %d is %s; only failed and cancelled tasks can be retried."
                               % (task_id, STATUS_WORDS[row["status"]]))
            why = Followers.why_not_again(transaction, row)
            if why:
                raise Conflict(why)
            if owner_id is not None:
                if not transaction.value("SELECT 1 FROM task WHERE id=? AND " + OPEN_TO_USERS,
                                         (task_id,)):
                    raise Denied("Only an admin can have %s run again." % row["function"])
                self._adding.check_quota(transaction, owner_id, 1, "It was not retried")
            self._retry(transaction, [row], self._clock.now(), by)
            return self._tasks.get(task_id, owner_id, transaction)

    def change(self, task_id, changes, owner_id=None):
        """Change options in CHANGED_TASK of a task; return its row. Conflict if it has ended.

        A running task may be changed, too: only its end reads these options.
        """
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] in ENDED:
                raise Conflict("Task %d has ended already (%s)."
                               % (task_id, STATUS_WORDS[row["status"]]))
            if changes:
                transaction.update("task", changes, "id=? AND status=?", (task_id, row["status"]))
            return self._tasks.get(task_id, owner_id, transaction)

    def delete(self, task_id, owner_id=None, by=None):
        """Remove a task and its logs. A running task is hidden, and removed once its runner is dead."""
        self._tasks.get(task_id, owner_id)
        self.act_on("delete", [task_id], owner_id, by)

    def record_bulk(self, action, count, task_filter,
                  owner_id=None, by=None):
        """Record in the activity how many tasks a bulk action changed."""
        with self._database.transaction(durable=False) as transaction:
            record_activity(transaction, self._clock.now(), "bulk_" + action, owner_id=owner_id, actor=by,
                 message="%d tasks%s" % (count, " of " + dump_json(task_filter) if task_filter else ""))

    def act(self, action, task_filter, low, top, seconds,
            owner_id=None, by=None):
        """Do an action to the tasks of a filter with ids above `low` up to `top`, see act_on().

        It reads ACTION_ROWS tasks at a time, and stops once `seconds` are over.
        """
        deadline, done = self._clock.monotonic() + seconds, 0
        while low < top and not (done and self._clock.monotonic() > deadline):
            rows, cursor = self._tasks.find(
                task_filter.within(ACTIONS[action]), ACTION_ROWS, low, OLDEST, SORTED_ROW)
            done += self.act_on(action, [row["id"] for row in rows if row["id"] <= top], owner_id, by)
            low = top if cursor is None else min(cursor, top)
        return Acted(done, low)

    def act_on(self, action, ids, owner_id=None,
               by=None):
        """Do an action to the given tasks that allow it; return their number.

        With an owner, only the owner's tasks are changed. TooMany if a retry exceeds the owner's limit of
        pending tasks.
        """
        limited = owner_id if action == "retry" else None
        condition, values = Filter(owner_id, ACTIONS[action]).where()
        if limited is not None:
            condition += " AND " + OPEN_TO_USERS
        change = {"cancel": self._cancel, "retry": self._retry, "delete": self._delete}[action]
        return self._change(sorted(set(ids)), condition, values, functools.partial(change, by=by),
                            action == "delete", limited=limited)

    def prune(self, ids, before):
        """Remove the given tasks that ended before a time, unless unsettled followers need them."""
        self._change(ids, "status IN ENDED AND finished_at<? AND NOT EXISTS "
                     "(SELECT 1 FROM task_after WHERE after_id=task.id AND settled=0)",
                     (before,), self._remove, True, durable=False)

    def _change(self, ids, condition, values,
                change, removes,
                durable=True, limited=None):
        """Call `change` with rows that still fulfil the condition, in portions; return how many changed.

        `limited` is the id of an owner whose limit of pending tasks counts: TooMany beyond it. If `change`
        `removes` tasks, their folders are removed, too.
        """
        done = 0
        while ids:
            most = PORTION_ROWS
            with self._database.transaction(durable) as transaction:
                if limited is not None:
                    most = min(most, self._adding.check_quota(
                        transaction, limited, 1, "Not all were retried"))
                rows = change(transaction, list(transaction.all_of(
                    "SELECT id, owner_id, queue, function, priority, attempts, status, "
                    "cancel_requested, after_failure FROM task %s WHERE cancel_requested<2 AND %s "
                    "AND id IN (%%s) ORDER BY id" % (BY_ID, condition), values, ids[:most])),
                    self._clock.now())
            for row in rows if removes else ():
                if row["status"] != RUNNING:
                    remove_task_folder(self._database.folder, row["id"])
            done, ids = done + len(rows), ids[most:]
        return done

    @staticmethod
    def _cancel(transaction, rows, now, by):
        """Cancel unfinished tasks at once, or ask their workers to; return the rows. `by` is recorded."""
        notes = []
        for row in rows:
            event = "cancel_requested"
            changes = {"cancel_requested": 1}
            if row["status"] != RUNNING:
                event = "cancelled"
                changes = {"status": CANCELLED, "reason": None, "finished_at": now}
            transaction.update("task", changes, "id=? AND status=?", (row["id"], row["status"]))
            if row["status"] != RUNNING or not row["cancel_requested"]:
                notes.append(activity_row(now, event, row, actor=by))
        transaction.insert_all("activity", notes)
        Followers.settle(transaction, now)
        return rows

    @staticmethod
    def _retry(transaction, rows, now, by):
        """Make failed and cancelled tasks pending again, as if new; return their rows."""
        done = []
        for row in rows:
            if Followers.why_not_again(transaction, row):
                continue
            status, turn = WAITING, 0
            if not Followers.reopen_edges(transaction, row):
                status, turn = PENDING, next_turn(transaction, row)
            transaction.run(
                "UPDATE task SET status=?, reason=NULL, turn=?, run_at=?, "
                "retries_left=max_retries, crashes=0, interruptions=0, cancel_requested=0, "
                "progress=NULL, message=NULL, result=NULL, error_type=NULL, error_message=NULL, "
                "started_at=NULL, finished_at=NULL WHERE id=? AND status IN (FAILED, CANCELLED)",
                (status, turn, now, row["id"]))
            transaction.run("DELETE FROM unsettled WHERE task_id=?", (row["id"],))
            done.append(row)
        transaction.insert_all("activity", [
            activity_row(now, "retried", row, actor=by) for row in done])
        return done

    @staticmethod
    def _delete(transaction, rows, now, by):
        """Remove tasks; hide running ones until their workers have ended them; return the rows."""
        transaction.run_many_later("UPDATE task SET cancel_requested=2 WHERE id=? AND status=RUNNING",
                         [(row["id"],) for row in rows if row["status"] == RUNNING])
        Actions._remove(transaction, rows, now)
        transaction.insert_all("activity", [
            activity_row(now, "deleted", row, actor=by) for row in rows])
        Followers.settle(transaction, now)
        return rows

    @staticmethod
    def _remove(transaction, rows, _now):
        """Remove the rows of tasks that do not run; return them."""
        transaction.run_many_later("DELETE FROM task WHERE id=? AND status<>RUNNING",
                         [(row["id"],) for row in rows])
        return rows


# tasks/leases.py -------------------------------------------------------------
#
# Leases and outcomes: how long a claim holds, how a task ends.
#
# The steps of a claim stand in tasks/claims.py.

                  # when it was claimed, by this machine's monotonic clock



























CRASH_LIMIT = 3                 # the third crash fails a task: it may be the task that kills workers
INTERRUPTION_LIMIT = 5
ERROR_MAX_CHARACTERS = 2000
UNCONFIRMED = "?"               # first character of a remote worker's claim until it is confirmed
REMOTE_LEASE_SECONDS = 180.0    # lease of a remote worker's claim: networks fail for longer than disks
REACH_ROWS = 1000               # tasks of a queue that are searched for functions of a remote worker

# The first pending tasks of a queue, with the columns that a claim reads.
HEADS = """
    SELECT task.id, owner_id, queue, function, arguments, attempts, put_backs, crashes, timeout,
        priority, max_retries, retries_left, on_crash, task.created_at, run_at, user.name AS owner,
        CASE WHEN admin_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM user WHERE id=admin_id AND role='admin' AND disabled=0)
        THEN 1 ELSE 0 END AS barred, %s AS spare
    FROM task %s %s user ON user.id=task.owner_id
    WHERE status=PENDING AND queue=? %%s
    ORDER BY priority DESC, turn, task.id LIMIT ?""" % (SPARE, BY_CLAIM, THEN_JOIN)


class Reach(NamedTuple):
    """The tasks that a remote worker may claim, and the tokens for its claims."""

    machine: "str"
    functions: "Sequence[str]"
    queues: "Collection[str] | None"      # None: any
    claims: "Sequence[str]"


_SECONDS = or_null(number_within(0, 1e9))
OUTCOME_KINDS = ("succeeded", "error", "fail", "timeout", "crashed", "interrupted", "cancelled",
                 "unknown_function", "put_back")
OUTCOME = object_of(
    ("kind",), kind=TEXT, result=TEXT_OR_NULL, error_type=TEXT_OR_NULL, error_message=TEXT_OR_NULL,
    retry_after=_SECONDS, seconds=_SECONDS, cpu_seconds=_SECONDS,
    peak_memory=or_null(integer_within(0, INTEGER_MAX)))


class Outcome:
    """The end of an attempt.

    Its kind is one of: succeeded, error (may be retried), fail (may not), timeout, crashed, interrupted,
    cancelled, unknown_function (tried again for a while), put_back (never begun).
    """

    def __init__(self, kind, result=None, error_type=None,
                 error_message=None, retry_after=None,
                 seconds=None, cpu_seconds=None,
                 peak_memory=None):
        self.kind, self.result = kind, result       # result: JSON text
        self.error_type = error_type and shorten(storable(error_type), 100)
        words = error_message and storable(error_message)
        if words and len(words) > ERROR_MAX_CHARACTERS:
            words = words[:ERROR_MAX_CHARACTERS - 1] + "…"
        self.error_message = words      # a traceback in the log has more of the message
        self.retry_after = retry_after  # seconds, instead of the task's own delay
        self.seconds, self.cpu_seconds, self.peak_memory = seconds, cpu_seconds, peak_memory

    @classmethod
    def parse(cls, sent, kinds):
        """Return the outcome that a runner or a remote worker sent, of one of these kinds.

        Raise Invalid if it is wrong. Its result must be JSON that every reader understands. Unknown
        fields are dropped.
        """
        fields = sent
        if isinstance(sent, dict):
            fields = {name: sent[name] for name in OUTCOME["properties"] if name in sent}
        errors = check_value(OUTCOME, fields, "outcome")
        if not errors and fields["kind"] not in kinds:
            errors = wrong("kind", "must be one of %s" % ", ".join(kinds))
        if not errors and fields.get("result") not in (None, "", "null"):
            try:
                if is_deep(read_json(fields["result"]), RESULT_MAX_DEPTH):
                    raise ValueError("nested deeper than %d levels" % RESULT_MAX_DEPTH)
            except (ValueError, RecursionError) as error:
                errors = wrong("result", "is not JSON that can be kept (%s)" % error)
        if errors:
            raise refusal("Its outcome cannot be kept", errors)
        return cls(**{**fields, "result": fields.get("result") and storable(fields["result"])})


class Verdict:
    """The next state of a task whose attempt ended, and its cost in retries."""

    removed = False                     # True if the task's row is gone: its folder must go, too
    kept: "list[str] | None" = None       # the names of its files, if it had a folder here

    def __init__(self, status, reason=None, event=None,
                 run_at=0.0, unknown_since=None, spend=0,
                 crash=0, interruption=0):
        self.status, self.reason = status, reason
        self.event = event or STATUS_WORDS[status]      # event of the activity
        self.run_at = run_at            # when a scheduled task is due
        self.unknown_since = unknown_since      # when a worker first did not know its function
        # Numbers of retries to take from the row, and of crashes and interruptions to add to it.
        self.spend, self.crash, self.interruption = spend, crash, interruption


def judge(task, outcome, now,
          uniform):
    """Return the Verdict on a task (its row) whose attempt ended with this outcome.

    1. A cancel wins over every outcome but success.
    2. An error or a timeout needs a retry. If max_retries is 0, the first RetryAfter needs none.
    3. After a crash or an interruption the task begins again, unless its on_crash is "fail".
    4. The CRASH_LIMITth crash fails the task. Earlier crashes cost a retry if one is left.
    5. From the INTERRUPTION_LIMITth on, each interruption needs a retry.
    """
    kind, retries_left = outcome.kind, task["retries_left"]
    if kind == "succeeded":
        return Verdict(SUCCEEDED)
    if task["cancel_requested"] or kind == "cancelled":
        return Verdict(CANCELLED)
    if kind == "put_back":
        return Verdict(PENDING, event="put_back")
    since = task["unknown_since"] or now
    if kind == "unknown_function" and now - since <= 600:
        return Verdict(SCHEDULED, kind, "put_back", run_at=now + 30, unknown_since=since)
    if kind in ("crashed", "interrupted"):
        crash = kind == "crashed"
        is_many = not crash and task["interruptions"] + 1 >= INTERRUPTION_LIMIT
        last = task["on_crash"] == "fail" or (
            task["crashes"] + 1 >= CRASH_LIMIT if crash else is_many and retries_left <= 0)
        return Verdict(FAILED if last else PENDING, kind, "failed" if last else kind,
                       spend=int((crash or is_many) and retries_left > 0), crash=int(crash),
                       interruption=int(not crash))
    reason = kind if kind in ("timeout", "unknown_function") else "error"
    asks_first = outcome.retry_after is not None and retries_left == task["max_retries"]
    if kind in ("error", "timeout") and (retries_left > 0 or asks_first):
        delay, spread = outcome.retry_after, 1.0
        if delay is None:
            tried = min(task["max_retries"] - retries_left, 100)
            delay, spread = task["retry_delay"] * task["retry_backoff"] ** tried, uniform(1.0, 1.2)
        return Verdict(SCHEDULED, reason, "retry", spend=1,
                       run_at=now + min(delay, 30 * 86400) * spread)
    return Verdict(FAILED, reason)


def lease_name(holder, lease):
    """Return a name for one lease of a holder: a lock file or a claim. It changes with each renewal."""
    return "%s %r" % (holder, lease["lease_wall"])


class Leases:
    """The leases of workers and claims: their length, the late ones, the lost tasks."""

    def __init__(self, database):
        self._database, self._clock = database, database.clock
        self.boot = boot_id()

    def new(self, now, seconds=None):
        """Return the columns of a lease: its end by this boot's clock, and by wall time."""
        seconds = seconds or self._database.lease_seconds
        return {"lease_boot": self.boot, "lease_monotonic": self._clock.monotonic() + seconds,
                "lease_wall": now + seconds}

    def lost(self, dead_workers, now, db=None):
        """Return the rows of running tasks whose worker is dead, or whose lease is in silent()."""
        db = db or self._database
        silent = self.silent(now, db)
        return [row for row in self._running(db) if row["worker_id"] in dead_workers
                or lease_name(row["holder"], row) in silent]

    def seconds_left(self, now):
        """Return {id: seconds until its lease is over} of the running tasks."""
        return {row["id"]: self._seconds_left(row, now) for row in self._running(self._database)}

    def mark_suspects(self, now):
        """Mark the leases that are late now as suspect, and clear the marks of all other leases.

        A mark expires after lease_seconds - 2 * RENEW_SECONDS: the rest of a lease after two missed
        renewals.
        """
        late = self._late(self._database, now)
        marks = recall(self._database, "doubts") or {}
        if late.keys() != marks.keys():
            with contextlib.suppress(StorageFull), \
                    self._database.transaction(durable=False) as transaction:
                marks = recall(transaction, "doubts") or {}
                fresh = self.new(now, self._database.lease_seconds - 2 * RENEW_SECONDS)
                remember(transaction, "doubts", {name: marks.get(name, fresh) for name in late})

    def silent(self, now, db=None):
        """Return the names of the leases that are over, and whose marks have expired."""
        db = db or self._database
        doubts = recall(db, "doubts") or {}
        late = self._late(db, now) if doubts else {}
        return {name for name in doubts.keys() & late.keys()
                if max(late[name], self._seconds_left(doubts[name], now)) < 0}

    def is_suspect(self, task_id, claim):
        """Return True if a claim is marked as suspect, None if it was lost."""
        row = self._database.one(
            "SELECT lease_wall FROM task WHERE id=? AND status=RUNNING AND claim=?", (task_id, claim))
        if row is None:
            return None
        return lease_name(claim, row) in (recall(self._database, "doubts") or ())

    def _late(self, db, now):
        """Return {name: seconds left} of the leases of workers and tasks that missed two renewals."""
        workers = db.all("SELECT lock AS holder, boot AS lease_boot, lease_monotonic, "
                         "lease_wall FROM worker")
        remaining = ((lease_name(row["holder"], row), self._seconds_left(row, now))
                for row in [*workers, *self._running(db)])
        return {name: seconds for name, seconds in remaining
                if seconds < self._database.lease_seconds - 2 * RENEW_SECONDS}

    @staticmethod
    def _running(db):
        return db.all(
            "SELECT id, claim, claim AS holder, worker_id, started_at, lease_boot, "
            "lease_monotonic, lease_wall FROM task %s WHERE status=RUNNING" % BY_CLAIM)

    def _seconds_left(self, row, now):
        if self.boot and row["lease_boot"] == self.boot:
            seconds = row["lease_monotonic"] - self._clock.monotonic()
        else:
            seconds = row["lease_wall"] + self._database.slack_seconds - now
        return seconds


# tasks/claims.py -------------------------------------------------------------
#
# Every way into and out of "running": claim, renew, end.
#
# The Reaper (upkeep/reaper.py) ends the tasks of dead workers in these ways, too.
#
# 1. claim() claims the first pending tasks of a queue, each under a random token, with a lease.
# 2. The worker renews the lease. Each of its writes names the token. If a write changes no row, the claim
#    was lost, and this worker's outcome does not count.
# 3. end_all() asks judge() for the next state of a task and stores it.
# 4. A claim that missed two renewals is marked as suspect. It is lost once its lease is over and the mark
#    has expired (Leases.silent()). The mark proves that the database was writable, so the worker could have
#    renewed. While the database cannot be written there are no marks, and workers keep their tasks.

PROMOTE_AT_ONCE = 500
PROMOTE_SECONDS = 0.05          # how late a busy worker may notice a due task
CLAIM_TRIES_MAX = 100           # tries of one claim while it finds only tasks of former admins
ALL_HEADS = HEADS % ""
WITHIN_REACH = """AND task.id IN (
    SELECT id FROM task %s WHERE status=PENDING AND queue=? ORDER BY priority DESC, turn, id LIMIT %d
    )""" % (BY_CLAIM, REACH_ROWS)
# Tasks of owners below their limits are searched among these turns first. Few tasks share a turn.
BESIDE_FULL = "AND priority=? AND turn>=? AND turn<?+%d" % REACH_ROWS
ENDING_COLUMNS = (
    "id", "owner_id", "queue", "function", "priority", "turn", "run_at", "attempts", "crashes",
    "claim", "interruptions", "max_retries", "retries_left", "retry_delay", "retry_backoff",
    "on_crash", "cancel_requested", "worker_id", "started_at", "created_at", "remove_on_success",
    "unknown_since")


class Heads(NamedTuple):
    """A queue to claim from, if there is one, and its first tasks."""

    queue: "Row | None"
    tasks: "list[ClaimedTask]"


class Claims:
    """The ways into and out of "running". Each write names its claim."""

    def __init__(self, database, queues, files, tasks):
        self._database, self._queues, self._clock = database, queues, database.clock
        self._files, self._tasks = files, tasks
        self.leases, self.machine = Leases(database), machine_name()
        self._last_queue = ""
        self._promotions = Every(PROMOTE_SECONDS, self._clock)

    def promote(self, transaction, now):
        """Make due scheduled tasks pending, at most PROMOTE_AT_ONCE, and settle followers."""
        Followers.settle(transaction, now)
        room = PROMOTE_AT_ONCE
        for lane in lanes(transaction, SCHEDULED):
            due = transaction.all(
                "SELECT id, owner_id, queue, function, priority, attempts FROM task %s "
                "WHERE status=SCHEDULED AND queue=? AND priority=? AND turn<=? ORDER BY turn LIMIT ?"
                % BY_CLAIM, (*lane, int(now * 1000), room))
            room -= len(due)
            for row in due:
                transaction.update(
                    "task", {"status": PENDING, "turn": next_turn(transaction, row)},
                    "id=? AND status=SCHEDULED", (row["id"],))
                record_activity(transaction, now, "promoted", row)

    def next_due(self, of_all=False, db=None):
        """Return when the next scheduled task becomes due, or None.

        Only queues that this machine serves count, unless `of_all`. Return 0 if an ended task still has
        unsettled followers.
        """
        db = db or self._database
        if db.value("SELECT 1 FROM unsettled LIMIT 1"):
            return 0.0
        served = set() if of_all else {
            queue["name"] for queue in self._queues.served_by(db, self.machine)}
        return min((row["turn"] / 1000 for row in self._tasks.firsts(SCHEDULED, db=db)
                    if of_all or row["queue"] in served), default=None)

    def rate_opens(self, db=None):
        """Return when the rate of a queue next lets a task start; None if no rate holds back tasks."""
        now = self._clock.now()
        moments = [next_start(queue, now).at for queue in self._filled(db or self._database)
                   if queue["rate_count"] is not None]
        return min((moment for moment in moments if moment > now), default=None)

    def claimable(self, limit, db=None):
        """Return how many tasks a worker here could claim now, counted up to `limit`.

        Owners near their own limit may make the number too high. A surplus worker ends by itself.
        """
        count, now, db = 0, self._clock.now(), db or self._database
        for queue in self._filled(db):
            if count < limit:
                room = min(limit - count, self._queues.room(db, queue, now))
                count += self._queues.count(db, PENDING, queue["name"], room) if room > 1 else room
        return count

    def longest_wait(self):
        """Return the seconds that the oldest task which could start has waited; None if there is none.

        Only the first tasks of each queue are compared.
        """
        now = self._clock.now()
        waiting = [self._database.value("""
            SELECT min(CASE WHEN run_at>created_at THEN run_at ELSE created_at END)
            FROM (SELECT owner_id, created_at, run_at FROM task %s WHERE status=PENDING AND queue=?
                  LIMIT 10000) AS found WHERE owner_id NOT IN %s""" % (BY_CLAIM, AT_LIMIT),
            (queue["name"],))
            for queue in self._filled(self._database) if self._queues.room(self._database, queue, now)]
        return max((now - since for since in waiting if since is not None), default=None)

    def _filled(self, db, reach=None):
        """Return the queues with tasks that a worker here, or a remote one within its Reach, may start."""
        queues = self._queues.served_by(db, reach.machine if reach else self.machine, reach is not None)
        return [queue for queue in queues if queue["head"] is not None and not (
            reach and reach.queues is not None and queue["name"] not in reach.queues)]

    def claim(self, transaction, worker_id, now, most=1,
              function=None, owner_id=None,
              reach=None):
        """Claim the next task, or a batch of up to `most` that all run `function`; return their rows.

        With an owner: nothing if the next task is another owner's. With a Reach (remote workers): only
        tasks within it, and the worker must confirm each claim by renew().

        A batch has first attempts only, and no tasks with on_crash=fail: if its worker dies, tasks that
        did not begin count as crashed, too. Tasks with long arguments are claimed alone, because a batch
        is handed to the runner in one piece.
        """
        request = transaction, worker_id, now, most, function, owner_id, reach
        rows = [] if self._promotions.begin_if_due() else self._claim_pending(*request)
        if not rows:
            self._promotions.put_off(PROMOTE_SECONDS)
            self.promote(transaction, now)
            rows = self._claim_pending(*request)
        return rows

    def _claim_pending(self, transaction, worker_id, now, most,
                       function, owner_id,
                       reach):
        """Claim as claim() does. After CLAIM_TRIES_MAX tries return nothing, even if more tasks wait."""
        for _ in range(CLAIM_TRIES_MAX):
            queue, heads = self.next_heads(transaction, now, most, function, owner_id, reach)
            if queue is None:
                break
            self._claim_rows(transaction, heads, worker_id, now, reach)
            self._queues.started(transaction, queue, len(heads), now)
            self._refuse(transaction, [row for row in heads if row["barred"]], now)
            rows = [row for row in heads if not row["barred"]]
            if rows or not heads:
                return rows
        return []

    def next_heads(self, db, now, most=1, function=None,
                   owner_id=None, reach=None):
        """Return the tasks that claim() would claim.

        The queue with the highest priority comes first; queues of equal priority take turns. Full queues,
        and those without a task within reach, are skipped.
        """
        for queue in sorted(self._filled(db, reach), key=lambda queue: (
                -queue["head"], queue["name"] <= self._last_queue, queue["name"])):
            room = self._queues.room(db, queue, now)
            if room:
                heads = self._heads(db, queue, min(most, room), function, owner_id, reach)
                if heads or not reach:
                    self._last_queue = queue["name"]
                    return Heads(queue, heads)
        return Heads(None, [])

    @staticmethod
    def _firsts(db, queue, most, reach):
        """Return the first rows of a queue within a reach, of owners who are not at their limit."""
        name = queue["name"]
        if not reach and not queue["beside"]:
            return db.all(ALL_HEADS, (name, most))
        limits = ""
        values = (name,)
        ways = [(WITHIN_REACH, (name,))]
        if reach:
            limits = "AND function IN (%s) " % ", ".join("?" * len(reach.functions))
            values = (name, *reach.functions)
        if queue["beside"]:
            limits += "AND owner_id NOT IN %s " % AT_LIMIT
            turn = db.value(TURN_BESIDE, (name, queue["head"]))
            ways.insert(0, (BESIDE_FULL, (queue["head"], turn, turn)))
        pages = (db.all(HEADS % (limits + way), (*values, *more, most))
                 for way, more in ways)
        return next(filter(None, pages), [])

    def _heads(self, db, queue, most, function, owner_id,
               reach):
        """Return the first tasks of a queue that may be claimed at once."""
        heads = []
        for row in self._firsts(db, queue, most, reach):
            columns = dict(zip(row.keys(), row))
            task = columns     # _claim_rows() adds the claim
            fits = (task["function"] == function and task["attempts"] == 0
                    and task["on_crash"] == "retry" and len(task["arguments"]) <= 4000)
            is_full = task["spare"] is not None and task["spare"] <= sum(
                head["owner_id"] == task["owner_id"] for head in heads)
            if owner_id not in (None, task["owner_id"]) or (heads and not fits) or is_full:
                break
            heads.append(task)
            if not fits:
                break
        return heads

    def _claim_rows(self, transaction, rows, worker_id, now,
              reach):
        """Claim pending tasks for a worker; their rows get the claim and the attempt's number."""
        lease = self.leases.new(now, REMOTE_LEASE_SECONDS if reach else None).values()
        for place, row in enumerate(rows):
            row["claim"] = UNCONFIRMED + reach.claims[place] if reach else random_token()
            row["attempts"] += 1
            row["worker_id"] = worker_id
            row["claimed"] = self._clock.monotonic()
        taken = transaction.many("""
            UPDATE task SET status=RUNNING, claim=?, attempts=?, worker_id=?, lease_boot=?,
                lease_monotonic=?, lease_wall=?, started_at=?, reason=NULL, progress=NULL,
                message=NULL, samples=NULL, error_type=NULL, error_message=NULL
            WHERE id=? AND status=PENDING""", [
                (row["claim"], row["attempts"], worker_id, *lease, now, row["id"])
                for row in rows])
        if taken != len(rows) > 0:
            raise Busy("A task was claimed by two at once; nothing was changed.")
        transaction.insert_all("activity", [
            activity_row(now, "started", row, worker_id=worker_id,
                         waited=max(0.0, now - max(row["created_at"], row["run_at"] or 0)))
            for row in rows])

    def _refuse(self, transaction, rows, now):
        """Fail claimed tasks of functions for admins if the admin who added them is no admin any more."""
        words = "%s is for admins only, and the user who added this task is no longer an admin"
        if rows:
            self.end_all(transaction, [
                (row["id"], row["claim"], Outcome("fail", None, "Denied", words % row["function"]))
                for row in rows], now)

    def renew(self, transaction, task_id, claim, now,
              seconds=None, samples=None):
        """Renew a claim for another lease; return False if it was lost. None keeps the stored samples.

        The first renewal by a remote worker also confirms its claim.
        """
        new = {"samples": dump_json(samples)} if samples else {}
        return transaction.update(
            "task", {"claim": claim, **self.leases.new(now, seconds), **new},
            "id=? AND status=RUNNING AND claim IN (?, ?)", (task_id, claim, UNCONFIRMED + claim)) == 1

    def report(self, transaction, task_id, claim, progress,
               message):
        """Store the progress that a function reports; return False if the claim was lost."""
        return transaction.update("task", {"progress": progress, "message": message},
                                  "id=? AND status=RUNNING AND claim=?", (task_id, claim)) == 1

    def cancel_asked(self, task_id, claim, db=None):
        """Return the row's cancel_requested while the claim holds; None if it was lost."""
        return (db or self._database).value(
            "SELECT cancel_requested FROM task WHERE id=? AND status=RUNNING AND claim=?",
            (task_id, claim))

    @staticmethod
    def asked_with(db, task_id, claim):
        """Return the cancel_requested of a running task, for a client that sends its claim.

        None if the claim was lost, or the token of its remote worker is not valid any more.
        """
        return db.value("""
            SELECT task.cancel_requested FROM task LEFT JOIN worker ON worker.id=task.worker_id
            WHERE task.id=? AND task.status=RUNNING AND task.claim=? AND (worker.token_id IS NULL
                OR EXISTS (SELECT 1 FROM token JOIN user ON user.id=token.user_id
                           WHERE token.id=worker.token_id AND user.disabled=0 AND user.role='admin'))""",
                        (task_id, claim))

    def end(self, transaction, task_id, claim, outcome,
            now):
        """Record how an attempt ended; return the Verdict, or None if the claim was lost."""
        return self.end_all(transaction, [(task_id, claim, outcome)], now)[0]

    def end_lost(self, transaction, task, now):
        """Record that the worker of a running task (its row) is lost."""
        # The time of death is unknown, but a living worker would have renewed its lease.
        ended = min(now, task["lease_wall"] - self._database.lease_seconds + RENEW_SECONDS)
        seconds = max(0.0, ended - task["started_at"])
        words = "The process that ran this task died after at most %d s." % math.ceil(seconds)
        outcome = Outcome("crashed", None, "WorkerLost", words, seconds=seconds)
        if task["claim"].startswith(UNCONFIRMED):   # the remote worker never confirmed it
            outcome = Outcome("put_back")
        self.end(transaction, task["id"], task["claim"], outcome, now)

    def end_all(self, transaction, ended,
                now):
        """Record how attempts ended; return a Verdict for each, see end()."""
        rows = transaction.all("SELECT %s FROM task %s WHERE id IN (%s) AND status=RUNNING" % (
            ", ".join(ENDING_COLUMNS), BY_ID, ", ".join("?" * len(ended))), [key for key, _, _ in ended])
        held = {row["id"]: dict(zip(ENDING_COLUMNS, row)) for row in rows}
        verdicts = []
        changes = []
        notes = []
        for task_id, claim, outcome in ended:
            task, verdict = held.get(task_id), None
            if task and task["claim"] == claim:
                verdict = judge(task, outcome, now, self._clock.uniform)
                verdict.removed = task["cancel_requested"] == DELETE or (
                    verdict.status == SUCCEEDED and task["remove_on_success"] == 1)
                if verdict.event == "put_back":     # may be negative, so that the rollup finds the start
                    outcome.seconds = now - task["started_at"]
                elif outcome.seconds is None:
                    outcome.seconds = max(0.0, now - task["started_at"])
                text = outcome.error_message or verdict.reason
                if verdict.event == "retry" and outcome.retry_after is not None:
                    text = "asked for a retry in %d s%s" % (
                        verdict.run_at - now, "" if text == RETRY_MESSAGE else ": %s" % text)
                notes.append(activity_row(
                    now, verdict.event, task, worker_id=task["worker_id"],
                    message=text and shorten(text, 500), seconds=outcome.seconds,
                    service=now - task["created_at"] if verdict.status in ENDED else None,
                    cpu_seconds=outcome.cpu_seconds, peak_memory=outcome.peak_memory))
                if verdict.status in ENDED and not verdict.removed:
                    verdict.kept = self._files.collect(transaction, task, now)
                changes.append(self._ending_values(transaction, task, verdict, outcome, now))
            verdicts.append(verdict)
        transaction.run_many_later("""
            UPDATE task SET status=?, reason=?, turn=?, run_at=?, retries_left=retries_left-?,
                crashes=crashes+?, interruptions=interruptions+?, put_backs=put_backs+?,
                unknown_since=?, result=?, error_type=?, error_message=?, finished_at=?,
                lease_boot=NULL, lease_monotonic=NULL, lease_wall=NULL, samples=NULL,
                cancel_requested=0
            WHERE id=? AND status=RUNNING AND claim=?""", changes)
        transaction.insert_all("activity", notes)
        Followers.settle(transaction, now)
        return verdicts

    @staticmethod
    def _ending_values(transaction, task, verdict, outcome,
                       now):
        """Return the values that end_all() binds for a task."""
        status, turn, run_at = verdict.status, task["turn"], task["run_at"]
        if status == SCHEDULED:
            turn, run_at = scheduled_turn(verdict.run_at), verdict.run_at
        elif status == PENDING and outcome.kind != "put_back":
            turn = next_turn(transaction, task)
            run_at = now
        return (status, verdict.reason, turn, run_at, verdict.spend, verdict.crash,
                verdict.interruption, verdict.event == "put_back", verdict.unknown_since,
                outcome.result, outcome.error_type, outcome.error_message,
                now if status in ENDED else None, task["id"], task["claim"])


# upkeep/tick_history.py ------------------------------------------------------
#
# The history of ticks: their callers, their times, their gaps.
#
# A tick must be cheap where every request is a process of its own. So the last tick is recorded as the
# modification time of an empty file, which needs no transaction. The callers are stored about once a minute.















PASSING = ("request", "address")        # callers that tick seldom and leave long work to other processes
VISITORS = ("cron", "address")          # programs that tick at regular times, then end
NOTE_SECONDS = 50.0                     # least time between two records of a caller
ONE_VISIT_SECONDS = 65 * 60.0           # after its first visit, how long the next one is awaited


def renew_mark(path, now, least):
    """Return True, and set the mark to now, if the mark is at least `least` seconds old.

    The mark is the modification time of an empty file. A mark in the future or a missing file counts as old.
    True may be returned to several processes at the same moment, or where the mark cannot be set. They only
    do the same work twice.
    """
    with contextlib.suppress(OSError):
        if round(seconds_since(os.stat(path).st_mtime, now), 3) < least:
            return False
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(path, (now, now))
    return True


class TickHistory:
    """The history of ticks in the table `state`. Tick.maybe() lists the callers."""

    def __init__(self, database):
        self._database, self._clock = database, database.clock

    def record(self, caller):
        """Store that a caller ticks, if it was not stored lately. A jump of the clock clears the history."""
        now = self._clock.now()
        if seconds_since(self._known(self._database)["seen"].get(caller, 0.0), now) < NOTE_SECONDS:
            return
        with contextlib.suppress(JobQueueError), self._database.deadline(0.2), \
                self._database.transaction(durable=False) as transaction:   # a failure here is no error
            history = self._known(transaction)
            if seconds_since(max(history["seen"].values(), default=now), now) >= 30 * 86400:
                history = {"seen": {}, "visits": {}}
            history["seen"][caller] = now
            if caller in VISITORS:
                history["visits"][caller] = [*history["visits"].get(caller, ()), now][-10:]
            remember(transaction, "rhythm", history)

    def state(self):
        """Return the last tick, its caller and the period, as the API has them."""
        at, caller = max(((at, caller) for caller, at in self._known(self._database)["seen"].items()),
                         default=(None, None))
        visits, period = self.visitor("cron"), self.period()
        cron = visits and {"last_at": iso(visits["last_at"]),
                           "period": visits["period"] and round(visits["period"])}
        return {"last_at": iso(at), "last_source": caller, "period": period and round(period),
                "cron": cron, "resident": self.is_resident()}

    def visitor(self, caller):
        """Return the Visits of one of VISITORS; None if it never came."""
        visits = self._known(self._database)["visits"].get(caller)
        if not visits:
            return None
        gaps = sorted(later - at for at, later in zip(visits, visits[1:]))
        period = gaps[len(gaps) // 2] if gaps else None
        patience = 2 * period + 300 if period is not None else ONE_VISIT_SECONDS
        return {"last_at": visits[-1], "period": period,
                "comes": seconds_since(visits[-1], self._clock.now()) < patience}

    def is_resident(self):
        """Return True while the built-in server runs, or a worker in the mode service."""
        last = self._known(self._database)["seen"].get("server", -math.inf)
        return seconds_since(last, self._clock.now()) < 2 * NOTE_SECONDS or self.has_service()

    def has_service(self):
        """Return True while there is a worker in the mode service, which never ends by itself."""
        return bool(self._database.value(
            "SELECT 1 FROM worker WHERE mode='service' AND state<>'starting' LIMIT 1"))

    def period(self):
        """Return the seconds between ticks that do not depend on people; None if there are no such ticks."""
        periods = [visits["period"] for visits in map(self.visitor, VISITORS)
                 if visits and visits["comes"] and visits["period"]]
        return min(periods + [TICK_SECONDS] * self.is_resident(), default=None)

    @staticmethod
    def _known(db):
        history = recall(db, "rhythm")
        return history or {"seen": {}, "visits": {}}


# upkeep/schedule_rows.py -----------------------------------------------------
#
# Schedules as rows: their columns, when they are due, how they look.
#
# plan_errors() checks the rule that a person gives. due_slots() returns the runs that are due or were
# missed. find_scripts() finds the scripts in SCRIPTS_FOLDER. upkeep/schedules.py fires the schedules.












SLOTS_AT_ONCE = 100             # slots that are filled in one transaction
CATCH_UP_MAX = 1000             # catch_up="all" makes up for this many missed runs at most, the newest
LATE_SHOWN_SECONDS = 86400.0     # how long a schedule shows that a run was late
LATE_SECONDS = 900.0            # a later run is late; catch_up="none" skips it
GONE_WORDS = ("It is no longer in tasks.py or the folder schedules. If it comes back within 30 days, it "
              "goes on as before.")
# A schedule is held up if a task has not ended for HELD_UP_SECONDS and holds up HELD_UP_RUNS runs.
HELD_UP_SECONDS, HELD_UP_RUNS = 3600.0, 3
UPCOMING = 10                   # upcoming times that are shown

# The rule for the executable files in each folder of SCRIPTS_FOLDER. SCRIPT_LEFT_OUT matches hidden files and
# leftovers of editors and package managers, which do not run.
SCRIPT_FOLDERS = {"15min": "*/15 * * * *", "hourly": "@hourly", "daily": "@daily",
                  "weekly": "@weekly", "monthly": "@monthly"}
SCRIPT_LEFT_OUT = r"\..*|.*(~|\.(bak|old|orig|rej|sw[a-p]|tmp|pyc|dpkg-\w+|rpm\w+))"
SCRIPT_FUNCTION = "folder-script"       # the function that runs scripts; people cannot add its tasks

PLAN = ("name", "function", "rule", "zone", "catch_up", "overlap")     # columns that requests have, too
SCHEDULE_FIELDS = {
    "name": about(or_null(text_up_to(100)), "a name for people; shown first"),
    "function": TEXT,
    "arguments": {"type": "object"},
    "rule": about(TEXT, RULE_HINT),
    "zone": about(TEXT, "such as Europe/Oslo (UTC)"),
    "catch_up": about({"enum": ["none", "once", "all"]}, "which missed runs to make up for (once)"),
    "overlap": about({"enum": ["skip", "queue", "allow"]}, "if the last run has not ended (skip)"),
    "options": titled("ChosenOptions", about(object_of(**OPTION_SCHEMAS),
                                             "instead of the function's own values")),
    "owner": about(TEXT_OR_NULL, "the owner of its tasks; for admins"),
    "paused": {"type": "boolean"}, "paused_why": about(or_null(text_up_to(500)), "shown to everybody")}
SCHEDULE_SCHEMA = titled("NewSchedule", object_of(("function", "rule"), **SCHEDULE_FIELDS))
CHANGED_SCHEDULE = titled("ScheduleChange", object_of(**SCHEDULE_FIELDS))

SHOWN_AS_THEY_ARE = ("id", "source", *PLAN, "paused_by", "paused_why")
SHOWN_AS_TIMES = ("paused_at", "next_at", "last_at", "created_at")


# The oldest unfinished task of a schedule: its id, when it was added, and the number of runs due since.
_OLDEST = "FROM task WHERE schedule_id=schedule.id AND status NOT IN ENDED"
HELD_UP = """(SELECT min(id) {0}) AS held_by, (SELECT min(created_at) {0}) AS held_since,
    (SELECT count(*) FROM slot WHERE slot.schedule_id=schedule.id
     AND at>(SELECT min(created_at) {0})) AS held""".format(_OLDEST)


class Slot(NamedTuple):
    """A due time of a schedule, and why it adds no task (None: it adds one)."""

    at: "float"
    why: "str | None" = None


class DueSlots(NamedTuple):
    """The due slots of a schedule, its next due time, and whether the slots are late."""

    slots: "list[Slot]"
    next_at: "float | None"
    is_late: "bool"


def plan_errors(request, now):
    """Return the errors in the rule, catch_up and overlap of a request that fulfils SCHEDULE_SCHEMA."""
    errors = []
    if (request["catch_up"], request["overlap"]) == ("all", "skip"):
        errors = wrong("overlap", "must be queue or allow if all that was missed is to be caught "
                                  "up: else all but the first would be skipped")
    try:
        preview(parse_rule(request["rule"], request["zone"], now), now, 1)
    except Invalid as error:
        errors += error.errors
    return errors


def find_scripts():
    """Return the scripts in SCRIPTS_FOLDER, as FOLDER/NAME; OSError if they cannot be listed.

    Scripts are executable files and all Python files, because FTP loses the mode.
    """
    scripts = []
    for folder in SCRIPT_FOLDERS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), \
                os.scandir(SCRIPTS_FOLDER / folder) as entries:
            scripts += sorted(
                "%s/%s" % (folder, entry.name) for entry in entries
                if storable(entry.name) == entry.name and os.path.isfile(entry.path)
                and not re.fullmatch(SCRIPT_LEFT_OUT, entry.name)
                and (entry.name.endswith(".py") or os.access(entry.path, os.X_OK)))
    return scripts


def actor_name(person):
    """Return the name of the actor in the activity; None stands for the command line."""
    return person.name if person else "the command line"


def record_schedule_event(transaction, at, event, row,
                  by):
    """Record an event of a schedule in the activity."""
    record_activity(transaction, at, "schedule_" + event, owner_id=row["owner_id"],
         function=row["function"], actor=by,
         message="%d: %s" % (row["id"], row["name"] or row["rule"]))


def _task_reference(task_id, status):
    return None if status is None else {"id": task_id, "status": STATUS_WORDS[status]}


def slot_json(slot):
    """Return a slot of a schedule as the API shows it."""
    task, message = _task_reference(slot["task_id"], slot["status"]), slot["message"]
    if message is None and task is None and slot["task_id"]:
        message = "task %d is not kept any more" % slot["task_id"]
    return {"at": iso(slot["at"]), "message": message, "task": task}


def as_given(row):
    """Return the request that would make this schedule."""
    return {**{name: row[name] for name in PLAN}, "arguments": json.loads(row["arguments"]),
            "options": json.loads(row["options"])}


def rule_of(row):
    """Return the Rule of a schedule; Invalid if this host cannot read it."""
    return parse_rule(row["rule"], row["zone"], row["start"])


def of_rule(row, look,
            otherwise):
    """Return look(rule) for the Rule of a schedule, or `otherwise` if this host cannot read it."""
    try:
        return look(rule_of(row))
    except Invalid:
        return otherwise


def why_held_up(row, now):
    """Return why the runs of a schedule (a row with HELD_UP) have not begun for long, or None."""
    if (row["overlap"] == "allow" or row["held_by"] is None or row["held"] < HELD_UP_RUNS
            or now - row["held_since"] < HELD_UP_SECONDS):
        return None
    return "%d runs wait or were skipped since %s: task %d has not ended." % (
        row["held"], time_of_day(row["held_since"]), row["held_by"])


def _warning(row, now):
    was_late = (row["late_at"] is not None
                and seconds_since(row["late_at"], now) < LATE_SHOWN_SECONDS)
    if row["paused"] or row["gone_at"] is not None:
        return None
    return why_held_up(row, now) or (
        "The run added at %s was late, or replaced several missed runs."
        % time_of_day(row["late_at"]) if was_late else None)


def schedule_json(row, now):
    """Return a schedule (a row of SCHEDULE_SHOWN) as the API lists it."""
    return {
        **{name: row[name] for name in ("owner", *SHOWN_AS_THEY_ARE)},
        **{name: iso(row[name]) for name in SHOWN_AS_TIMES},
        "summary": summarize(row["arguments"]), "options": json.loads(row["options"]),
        "words": of_rule(row, lambda rule: rule.words(), row["rule"]),
        "paused": bool(row["paused"]),
        "problem": row["problem"] if row["gone_at"] is None else GONE_WORDS,
        "warning": _warning(row, now),
        "last_task": _task_reference(row["last_task_id"], row["last_status"])}


def before_newest(rule, first, now, most):
    """Return a moment after which `rule` has its newest `most` runs until `now`; the oldest is at `first`."""
    low, high = first - 0.75, now       # runs are at least a second apart
    middle = low                        # usually the result: no run was missed
    while high - low > 0.5:
        moments = rule.upcoming(middle, most + 1)
        are_few = len(moments) <= most or moments[-1] > now
        low, high = (low, middle) if are_few else (middle, high)
        middle = (low + high) / 2
    return high


def due_slots(row, due, now):
    """Return the slots of a schedule from `due` until `now` that catch_up allows, at most SLOTS_AT_ONCE.

    If earlier runs are left out, a slot at the time of the first one records that.
    """
    rule = rule_of(row)
    first = rule.next_after(due - 0.001)
    if first is None or first > now:
        return DueSlots([], first, False)
    most = CATCH_UP_MAX if row["catch_up"] == "all" else 1
    moments = rule.upcoming(before_newest(rule, first, now, most), min(most, SLOTS_AT_ONCE))
    slots = [Slot(moment) for moment in moments if moment <= now]
    last = slots[-1].at
    if row["catch_up"] == "none" and now - last > LATE_SECONDS:
        slots = []
    if slots[:1] != [Slot(first)]:
        slots.insert(0, Slot(first, "missed, as all until %s: nobody looked meanwhile"
                             % iso(slots[0].at if slots else now)))
    return DueSlots(slots, rule.next_after(last), last != first or now - first > LATE_SECONDS)


# upkeep/schedules.py ---------------------------------------------------------
#
# Schedules add tasks at times, each slot once.
#
# A schedule is due at `next_at`. A process that ticks then adds its task, moves `next_at` on and stores a row
# of `slot`, in one transaction. There is only one row for each slot. So a slot adds its task at most once, even
# if several processes tick or the clock jumps. ScheduleRunner does this. Schedules makes and changes schedules,
# and keeps them in step with tasks.py and the folders.

SCHEDULES_MAX = 1000            # schedules of one owner
FIRE_SECONDS = 1.0              # a tick begins no further schedule after this time
UNFINISHED_MAX = 1000           # unfinished tasks of a schedule; with so many its slots are skipped
GONE_SECONDS = 60.0             # a schedule whose source was missing for less catches up: the source was
                                # probably being copied
KEPT_SECONDS = 30 * 86400.0     # how long a schedule without a source is kept, with its pause and history
RECENT_MAX = 20                 # newest slots that the list shows of each schedule
COMING_MAX, COMING_TIMES_MAX = 20, 24   # maximum of schedules that coming() lists, and of times of each
SCHEDULE_DEFAULTS = {"name": None, "arguments": {}, "zone": "UTC", "catch_up": "once",
                                 "overlap": "skip", "options": {}}
SOURCES = {"code": "tasks.py", "folder": "a file in the folder schedules"}
SCHEDULE_ROW = ("SELECT schedule.*, user.name AS owner, user.disabled FROM schedule "
                "%s user ON user.id=schedule.owner_id WHERE " % THEN_JOIN)
SCHEDULE_SHOWN = (
    "SELECT %s, %s, %s, user.name AS owner, task.status AS last_status "
    "FROM schedule %s user ON user.id=schedule.owner_id LEFT JOIN task "
    "ON task.id=schedule.last_task_id AND task.cancel_requested<2 WHERE " % (
        ", ".join("schedule." + name for name in (
            *SHOWN_AS_THEY_ARE, *SHOWN_AS_TIMES, "owner_id", "options", "start", "paused",
            "problem", "gone_at", "last_task_id", "late_at")),
        SHORT_ARGUMENTS.replace("task", "schedule"), HELD_UP, THEN_JOIN))
# The newest slots of each schedule. The primary key of `slot` finds the oldest of them.
RECENT = """SELECT slot.*, task.status FROM schedule %s slot ON slot.schedule_id=schedule.id
    AND slot.at>=coalesce((SELECT at FROM slot AS one WHERE one.schedule_id=schedule.id
        ORDER BY at DESC LIMIT 1 OFFSET %d), 0)
    LEFT JOIN task ON task.id=slot.task_id AND task.cancel_requested<2
    WHERE schedule.id BETWEEN ? AND ? AND schedule.owner_id=coalesce(?, schedule.owner_id)
    ORDER BY slot.schedule_id, slot.at
    """ % (THEN_JOIN, RECENT_MAX - 1)
SHOWN_STILL = "(gone_at IS NULL OR gone_at>?)"      # older rows without a source are kept, but not listed
# The steps that match rows with the schedules of tasks.py and the folders. Each has the columns that must be
# equal. It also says whether a row that lost its source may match. Only the first step is for scripts.
MATCHES = (
    (("source", "name"), True), (("source", "function", "rule", "arguments"), True),
    (("source", "function", "arguments"), False), (("source", "function"), False),
    (("source", "rule", "arguments"), False))







class _Differences(NamedTuple):
    """The differences between the rows of schedules and their sources.

    `wanted` has each row (None: a new one) with the columns that it should have. `gone` has the rows that
    no source names any more.
    """

    wanted: "list[tuple[ScheduleRow | None, JsonObject]]"
    gone: "list[ScheduleRow]"


class ScheduleRunner:
    """The runner of due schedules: each slot adds its task, or records the reason why not.

    1. fire() finds the due schedules. Outside of a transaction, due_slots() returns the slots of each, and
       order() its Order.
    2. In one transaction, if the row is unchanged, the slots get their tasks or reasons, and next_at
       moves on. If another process was faster, this one finds a changed row and does nothing.
    """

    def __init__(self, database, adding, check_requests,
                 person):
        self._database, self._clock, self._adding = database, database.clock, adding
        self._check_requests = check_requests
        self._person = person           # the Person of a user's id, or None

    def fire(self, now):
        """Add the due tasks. Each schedule has a transaction of its own, so other writers need not wait."""
        deadline = self._clock.monotonic() + FIRE_SECONDS
        for (schedule_id,) in self._database.all(
                "SELECT id FROM schedule WHERE gone_at IS NULL AND id IN ("
                "SELECT id FROM schedule WHERE paused=0 AND next_at<=? UNION ALL "
                "SELECT id FROM schedule WHERE next_from>?) ORDER BY next_at, id",
                (now, now + CLOCK_SLACK_SECONDS)):
            self.settle(schedule_id, now)
            if self._clock.monotonic() > deadline:
                break

    def settle(self, schedule_id, now):
        """Fill all due slots of a schedule, by its stored rule."""
        while self._fire_one(schedule_id, now):
            pass

    def next_due(self, db=None):
        """Return when the next schedule is due, or None."""
        return (db or self._database).value(
            "SELECT min(next_at) FROM schedule WHERE paused=0 AND gone_at IS NULL")

    def _fire_one(self, schedule_id, now):
        """Fill some due slots of a schedule in one transaction; return True if there may be more."""
        row = self._database.one(SCHEDULE_ROW + "schedule.id=?", (schedule_id,))
        if row is None or row["next_at"] is None:
            return False
        # If the clock was set back, next_at was computed from a time in the future: compute it again.
        due = row["next_at"] if row["next_from"] <= now + CLOCK_SLACK_SECONDS else now
        if due > now:
            return False
        due_runs = DueSlots([], now + 3600, False)
        order = None
        problem = None
        try:
            due_runs = due_slots(row, due, now)
        except Exception as error:      # such as missing time zones: the other schedules must go on
            problem = getattr(error, "detail", "%s: %s" % (type(error).__name__, error))
        try:
            order = self.order(row)
        except Invalid as error:
            problem = problem or error.detail
        except Busy:
            return False                # tasks.py could never be read: the next tick tries again
        with self._database.transaction(durable=False) as transaction:
            current = transaction.one(SCHEDULE_ROW + "schedule.id=?", (schedule_id,))
            if current is None or tuple(current) != tuple(row):
                return False            # another process was faster or changed it
            changes = self._fill(transaction, row, due_runs.slots, order, problem, now)
            transaction.update("schedule", {
                **changes, "next_at": due_runs.next_at, "next_from": now,
                "late_at": now if due_runs.is_late else row["late_at"]}, "id=?", (row["id"],))
        return bool(due_runs.slots)

    def order(self, row):
        """Return the Order for a task of this schedule; Invalid if it can have no task."""
        if row["disabled"]:
            raise Invalid("Its owner %s is disabled." % row["owner"])
        if row["source"] == "folder":
            return Order(SCRIPT_FUNCTION, row["arguments"], TASK_DEFAULTS)
        person = row["set_by"] and (self._person(row["set_by"]) or self._person(row["owner_id"]))
        return self.check_task(as_given(row), person)

    def check_task(self, request, person):
        """Return the Order for a task of a schedule; Invalid names every wrong field."""
        [order] = self._check_requests([{"function": request["function"], **request["options"],
                                         "arguments": request["arguments"]}], person)
        if order.given:                 # the file would be removed with its first task
            raise field_error("arguments", "cannot name a file: a schedule keeps none")
        return order

    def _fill(self, transaction, row, slots,
              order, problem, now):
        """Add a task for each slot that has none; return the changes of the schedule's row."""
        last_at, last_task = row["last_at"], row["last_task_id"]
        for at, why in slots:
            if transaction.value("SELECT task_id FROM slot WHERE schedule_id=? AND at=?",
                                 (row["id"], at)) is not None:
                continue                # it has a task: only a slot without one is filled again
            task_id = None
            last_at, unfinished = at, self.unfinished(transaction, row["id"])
            why = why or problem or self._why_skipped(row, unfinished)
            if order is not None and why is None:
                try:
                    last_task = task_id = self.add_task(transaction, row, order, unfinished, now)
                except TooMany as error:
                    why = problem = error.detail
            transaction.upsert("slot", {"schedule_id": row["id"], "at": at},
                               {"task_id": task_id, "message": why})
        return {"last_at": last_at, "last_task_id": last_task, "problem": problem}

    def _why_skipped(self, row, unfinished):
        """Return why a slot adds no task while tasks of its schedule are unfinished; None if it adds one."""
        if len(unfinished) == UNFINISHED_MAX:
            return "skipped: %d of its tasks had not ended" % UNFINISHED_MAX
        if not unfinished or row["overlap"] != "skip":
            return None
        task = unfinished[0]
        if task["status"] == SCHEDULED and task["attempts"]:
            return "skipped: task %d waits for its retry until %s" % (task["id"], iso(task["run_at"]))
        return "skipped: task %d had not ended" % task["id"]

    @staticmethod
    def unfinished(db, schedule_id):
        """Return the unfinished tasks of a schedule, at most UNFINISHED_MAX, oldest first."""
        return db.all(
            "SELECT id, owner_id, status, attempts, run_at FROM task "
            "WHERE schedule_id=? AND status NOT IN ENDED ORDER BY id LIMIT ?",
            (schedule_id, UNFINISHED_MAX))

    def add_task(self, transaction, row, order,
                 unfinished, now):
        """Add a task of a schedule; return its id.

        With overlap=queue it runs after the schedule's unfinished tasks of the same owner.
        """
        order.schedule_id = row["id"]
        if row["overlap"] == "queue":
            order.after = tuple(task["id"] for task in unfinished if task["owner_id"] == row["owner_id"])
            order.after_failure = "run"
        return self._adding.add(transaction, row["owner_id"], [order], now).ids[0]


class Schedules:
    """The schedules of people, tasks.py and folders."""

    def __init__(self, database, tasks, schedule_runner,
                 announced,
                 default_owner):
        self._database, self._clock, self._tasks = database, database.clock, tasks
        self._schedule_runner, self._announced = schedule_runner, announced
        self._default_owner = default_owner

    def find(self, owner_id=None, limit=INTEGER_MAX,
             after=0):
        """Return the schedules of an owner (None: of all owners), oldest first."""
        where, values = ("1=1", ()) if owner_id is None else ("schedule.owner_id=?", (owner_id,))
        now = self._clock.now()
        return [schedule_json(row, now) for row in self._database.all(
            "%s%s AND %s AND schedule.id>? ORDER BY schedule.id LIMIT ?" % (
                SCHEDULE_SHOWN, where, SHOWN_STILL),
            (*values, now - GONE_SECONDS, after, limit))]

    def find_with_recent(self, owner_id, limit, after):
        """Return the schedules as find() does, each with its `recent` slots, the oldest of them first."""
        schedules = self.find(owner_id, limit, after)
        recent = {schedule["id"]: [] for schedule in schedules}
        for slot in self._database.all(
                RECENT, (min(recent, default=0), max(recent, default=0), owner_id)):
            recent.get(slot["schedule_id"], []).append(slot_json(slot))
        return [{**schedule, "recent": recent[schedule["id"]]} for schedule in schedules]

    def get(self, schedule_id, owner_id=None):
        """Return one schedule with its history and next runs; NotFound if it is another owner's."""
        row, now = self._row(self._database, schedule_id, owner_id, SCHEDULE_SHOWN), self._clock.now()
        slots = self._database.all(
            "SELECT slot.*, task.status FROM slot LEFT JOIN task ON task.id=slot.task_id "
            "AND task.cancel_requested<2 WHERE slot.schedule_id=? ORDER BY at DESC LIMIT 50",
            (schedule_id,))
        return {**schedule_json(row, now),
                "arguments": json.loads(self._row(self._database, schedule_id)["arguments"]),
                "upcoming": of_rule(row, lambda rule: preview(rule, now, UPCOMING), []),
                "history": [slot_json(slot) for slot in slots]}

    def coming(self, owner_id, until):
        """Return the schedules that are due before `until`, the next one first, each with its `times`."""
        where, values = ("", ()) if owner_id is None else (" AND schedule.owner_id=?", (owner_id,))

        def times(row):
            later = of_rule(row, lambda rule: rule.upcoming(row["next_at"], COMING_TIMES_MAX), [])
            return [row["next_at"], *(at for at in later if at < until)][:COMING_TIMES_MAX]
        return [{"id": row["id"], "name": row["name"], "function": row["function"],
                 "summary": summarize(row["arguments"]), "times": list(map(iso, times(row)))}
                for row in self._database.all(
                    SCHEDULE_SHOWN + "schedule.paused=0 AND gone_at IS NULL AND next_at<?" + where
                    + " ORDER BY next_at LIMIT ?", (until, *values, COMING_MAX))]

    @staticmethod
    def _row(db, schedule_id, owner_id=None,
             statement=SCHEDULE_ROW):
        row = db.one(statement + "schedule.id=?", (schedule_id,))
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no schedule %s." % schedule_id)
        return row

    def add(self, request, owner_id, person=None):
        """Make a schedule as in POST /api/schedules; return its id. Invalid names every wrong field."""
        columns = {**self._checked({**SCHEDULE_DEFAULTS, **request}, person), "owner_id": owner_id}
        with self._database.transaction() as transaction:
            self._check_room(transaction, owner_id)
            schedule_id = self.store(
                transaction, None, {**columns, "source": "person"}, actor_name(person))
            self._set_paused(transaction, schedule_id, request, person)
        return schedule_id

    def change(self, schedule_id, changes, scope=None,
               person=None, owner_id=None):
        """Change the given fields; Conflict for fields that tasks.py or a folder sets."""
        row = self._row(self._database, schedule_id, scope)
        columns = {}
        if set(changes) - {"paused", "paused_why"}:
            self._refuse_foreign(row, "is changed there")
            before = as_given(row)
            columns = self._checked({**before, **unmask(changes, before)}, person)
            self._schedule_runner.settle(schedule_id, self._clock.now())
        with self._database.transaction() as transaction:
            current = self._row(transaction, schedule_id, scope)
            if columns:
                if as_given(current) != as_given(row):
                    raise Conflict("Another user has changed it meanwhile. Reload it, then try again.")
                owner_id = owner_id or current["owner_id"]
                self._check_room(transaction, owner_id, schedule_id)
                self.store(transaction, current, {**columns, "owner_id": owner_id}, actor_name(person))
            self._set_paused(transaction, schedule_id, changes, person)

    def delete(self, schedule_id, scope=None,
               person=None):
        """Remove a schedule and its history; its tasks stay."""
        with self._database.transaction() as transaction:
            row = self._row(transaction, schedule_id, scope)
            self._refuse_foreign(row, "is removed there; here it can be paused")
            self.remove(transaction, row, actor_name(person))

    def run(self, schedule_id, scope=None,
            person=None):
        """Add a task of a schedule now, besides its slots; return the task's row."""
        order = self._schedule_runner.order(self._row(self._database, schedule_id, scope))
        if scope is not None and not self._database.value(
                "SELECT 1 FROM function WHERE name=? AND who='user'", (order.function,)):
            raise Denied("Only an admin can have %s run now." % order.function)
        with self._database.transaction() as transaction:
            row, at = self._row(transaction, schedule_id, scope), self._clock.now()
            unfinished = self._schedule_runner.unfinished(transaction, schedule_id)
            if unfinished and row["overlap"] == "skip":
                raise Conflict("Its task %d has not ended yet, and its tasks must not overlap."
                               % unfinished[0]["id"])
            task_id = self._schedule_runner.add_task(transaction, row, order, unfinished, at)
            transaction.upsert("slot", {"schedule_id": schedule_id, "at": at}, {
                "task_id": task_id, "message": "run by %s" % actor_name(person)})
            transaction.update("schedule", {"problem": None, "last_task_id": task_id},
                               "id=?", (schedule_id,))
            return self._tasks.get(task_id, db=transaction)

    @staticmethod
    def _check_room(transaction, owner_id, besides=0):
        count = transaction.value("SELECT count(*) FROM schedule "
                                  "WHERE owner_id=? AND id<>? AND gone_at IS NULL", (owner_id, besides))
        if count >= SCHEDULES_MAX:
            raise Conflict("There can be at most %d schedules of one owner." % SCHEDULES_MAX)

    def _checked(self, request, person):
        """Return the columns of a request; Invalid names every wrong field."""
        errors = plan_errors(request, self._clock.now())
        try:
            order = self._schedule_runner.check_task(request, person)
        except Invalid as error:
            errors += error.errors
        if errors:
            raise refusal("The schedule is not right", errors)
        return {**{name: request[name] for name in PLAN}, "rule": " ".join(request["rule"].split()),
                "arguments": order.arguments, "options": dump_json(request["options"]),
                "set_by": person and person.id}

    @staticmethod
    def _refuse_foreign(row, message):
        if row["source"] != "person" and row["gone_at"] is None:
            raise Conflict("The schedule %s comes from %s and %s."
                           % (row["name"], SOURCES[row["source"]], message))

    def store(self, transaction, row, columns,
              by=None):
        """Make a schedule (`row` is None) or change it; return its id. Call settle() before a change.

        A rule "every N seconds" counts from when the schedule was made, even after a change of its rule.
        """
        now = self._clock.now()
        if row is None or not self._goes_on(row, columns, now):
            columns = {**columns, "start": row["start"] if row else now, "next_from": now,
                       "late_at": None}
            # A rule that this host cannot read is due now: the run reports it. Other hosts may know its zone.
            columns["next_at"] = None if row and row["paused"] else of_rule(
                columns, lambda rule: rule.next_after(now), now)
        if row is None:
            schedule_id = transaction.insert("schedule", {**columns, "created_at": now})
        else:
            schedule_id = row["id"]
            transaction.update("schedule", {"problem": None, "gone_at": None, **columns},
                               "id=?", (schedule_id,))
        record_schedule_event(transaction, now, "changed" if row else "added",
                      {"name": None, **columns, "id": schedule_id}, by)
        return schedule_id

    @staticmethod
    def _goes_on(row, columns, now):
        """Return True if a schedule keeps its next run: its rule means the same, and its source was there."""
        was_away = row["gone_at"] is not None and abs(now - row["gone_at"]) >= GONE_SECONDS
        return not was_away and is_same_rule(row["rule"], row["zone"], columns["rule"], columns["zone"])

    def _set_paused(self, transaction, schedule_id, changed,
                    person):
        """Pause or resume a schedule, or change the reason, if the request says so. No run is caught up."""
        row, now = self._row(transaction, schedule_id), self._clock.now()
        paused = changed.get("paused", row["paused"])
        if not changed.keys() & {"paused", "paused_why"} or not (paused or row["paused"]):
            return
        if row["paused"] and person and not person.is_admin and row["paused_by"] != person.name:
            raise Denied("%s paused it; only an admin can resume it." % row["paused_by"])
        changes: "JsonObject"
        if not paused:
            changes = {"paused_at": None, "paused_by": None, "paused_why": None,
                       "next_at": rule_of(row).next_after(now)}
        elif row["paused"]:
            changes = {"paused_why": changed.get("paused_why", row["paused_why"])}
        else:
            changes = {"paused_at": now, "paused_by": actor_name(person), "next_at": None,
                       "paused_why": changed.get("paused_why")}
        transaction.update("schedule", {**changes, "paused": paused, "next_from": now},
                           "id=?", (schedule_id,))
        record_schedule_event(transaction, now, "paused" if paused else "resumed", row, actor_name(person))

    def remove(self, transaction, row, by=None):
        """Remove a schedule with its history."""
        transaction.run("DELETE FROM slot WHERE schedule_id=?", (row["id"],))
        transaction.run("DELETE FROM schedule WHERE id=?", (row["id"],))
        record_schedule_event(transaction, self._clock.now(), "deleted", row, by)

    def synchronise(self):
        """Bring the default owner's schedules in step with tasks.py and the folders."""
        try:
            columns_wanted = self._wanted(self._default_owner()["id"], find_scripts())
        except (SetupError, NotFound, OSError):
            return                      # there is no owner yet, or a folder cannot be read
        now = self._clock.now()
        before = self._differences(self._database, columns_wanted, now)
        if not any(before):
            return
        for row, columns in before.wanted:
            if row is not None and row["gone_at"] is None and not self._goes_on(row, columns, now):
                self._schedule_runner.settle(row["id"], now)
        with self._database.transaction(durable=False) as transaction:
            to_store, gone = self._differences(transaction, columns_wanted, now)
            for current, columns in to_store:
                self.store(transaction, current, columns)
            for row in gone:
                if row["gone_at"] is None:
                    transaction.update("schedule", {"gone_at": now}, "id=?", (row["id"],))
                else:
                    self.remove(transaction, row)

    def _differences(self, db, columns_wanted, now):
        rows = list(db.all(
            SCHEDULE_ROW + "source<>'person' ORDER BY gone_at IS NOT NULL, schedule.id"))
        pairs = match_rows(rows, [dict(columns) for columns in columns_wanted])
        used = {row["id"] for row, _ in pairs if row is not None}
        return _Differences(
            [(row, columns) for row, columns in pairs if not self._is_right(row, columns)],
            [row for row in rows if row["id"] not in used and (
                row["gone_at"] is None or abs(now - row["gone_at"]) >= KEPT_SECONDS)])

    def _wanted(self, owner_id, scripts):
        """Return the columns of the schedules in the folders and in tasks.py. The name may be None."""
        folders = [
            {"name": script, "function": SCRIPT_FUNCTION, "arguments": {"script": script},
             "rule": SCRIPT_FOLDERS[script.split("/")[0]]} for script in scripts]
        all_columns = [{**SCHEDULE_DEFAULTS, **fields, "owner_id": owner_id, "source": source}
                  for source, entries in (("folder", folders), ("code", self._announced()))
                  for fields in entries]
        for columns in all_columns:
            for name in ("arguments", "options"):
                columns[name] = dump_json(columns[name])
        return all_columns

    @staticmethod
    def _is_right(row, columns):
        """Return True if a row exists and equals the columns of its source."""
        return row is not None and row["gone_at"] is None and all(
            row[name] == value for name, value in columns.items())


def match_rows(rows,
               sources):
    """Pair the columns of each source with the row of the same schedule, by MATCHES; None for a new one.

    Columns without a name get the name of their row, or FUNCTION-NUMBER for a new one.
    """
    free = list(rows)
    matches = [None] * len(sources)
    for names, with_gone in MATCHES:
        for place, columns in enumerate(sources):
            if matches[place] is None and (
                    columns["name"] if "name" in names else columns["source"] == "code"):
                matches[place] = next((row for row in free if is_match(row, columns, names) and (
                    with_gone or row["gone_at"] is None)), None)
                free = [row for row in free if row is not matches[place]]
    taken = {(row["source"], row["name"]) for row in rows}
    for row, columns in zip(matches, sources):
        if columns["name"] is None:
            numbered = ("%s-%d" % (columns["function"], number) for number in range(1, len(taken) + 2))
            columns["name"] = row["name"] if row is not None else next(
                name for name in numbered if (columns["source"], name) not in taken)
        taken.add((columns["source"], columns["name"]))
    return list(zip(matches, sources))


def is_match(row, columns, names):
    """Return True if these columns are equal: rules by their meaning, arguments in any order."""
    return all(
        is_same_rule(row["rule"], row["zone"], columns["rule"], columns["zone"]) if name == "rule" else
        row[name] == columns[name] or name == "arguments" and (
            json.loads(row[name]) == json.loads(columns[name]))
        for name in names)


# upkeep/worker_modes.py ------------------------------------------------------
#
# Worker locks; which Python; how this host starts processes.
#
# create_lock() and grab_if_free() handle the lock files that show that a worker lives. Modes decides how
# workers are started on this host, Interpreter with which Python. file_stamps() shows changes of the
# program's files and of tasks.py.











START_RETRY_SECONDS = (1.0, 60.0)       # shortest and longest pause after a failed start
LOST_MAX = 2                    # losses in a row after which the host is assumed to kill workers
YOUNG_SECONDS = 60.0            # a worker that lived longer was not lost young
DETACHED_AGAIN_SECONDS = 3600.0 # how long `auto` does without detached workers
ENVIRONMENT_NAMES = ("PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR VIRTUAL_ENV "
                     "PYTHON_VERSION PYTHONPATH PYTHONHOME LD_LIBRARY_PATH").split()
SHORTAGES = {errno.EAGAIN: "process limit", errno.ENOMEM: "out of memory",
             errno.EMFILE: "too many open files", errno.ENFILE: "too many open files"}
START_ERRORS = (OSError, SetupError, RuntimeError, MemoryError)
STOPPED = "stopped by a signal"
MODE_WORDS = {"cron": "Cron works on the tasks",
              "slice": "Tasks run while this page is open or the tick address is called"}


class HeldLock(NamedTuple):
    """A lock file that we hold: its descriptor, and True if a test showed that other opens cannot lock it."""

    handle: "int"
    proven: "bool"


class ChosenMode(NamedTuple):
    """The way workers are started (a value of the setting worker_mode, but auto), and the reason."""

    mode: "str"
    why: "str"


def grab_if_free(path):
    """Lock the lock file of a dead worker; return its descriptor.

    Return None if the worker lives or the file is missing.
    """
    handle = None
    try:
        handle = os.open(path, os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:                     # a missing file proves nothing
        if handle is not None:
            os.close(handle)
        return None


def create_lock(path):
    """Make a lock file and hold its lock until this process ends.

    The file gets its name after it is locked. So a process that finds it free knows that its owner is dead.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_name(path.name + ".new")
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    proven = False
    with contextlib.suppress(OSError):  # where flock fails, only leases show that a worker is dead
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second = grab_if_free(part)
        proven = second is None
        if second is not None:
            os.close(second)
    os.rename(part, path)
    return HeldLock(handle, proven)


def explain_start_error(error, name="a worker"):
    """Return a sentence for the site's owner: why a process could not be started."""
    return "%s could not be started (%s)" % (
        name, SHORTAGES.get(getattr(error, "errno", 0), error))


def file_stamps(files):
    """Return the stamps of files. They differ after a file has changed."""
    stamps = dict.fromkeys(map(str, files))
    for name in stamps:
        try:                            # quicker than suppress(), and each add calls this
            status = os.stat(name)
            stamps[name] = [status.st_mtime_ns, status.st_size]
        except OSError:
            pass
    return stamps


class Interpreter:
    """The Python for workers and tasks.py. A Python that is too old reports that when it starts."""

    def __init__(self, settings):
        self._settings = settings
        settings.validators["python"] = self._test

    def path(self):
        """Return the path of Python; SetupError if there is none."""
        import shutil
        chosen, name = self._settings.get("python"), "python%d.%d" % sys.version_info[:2]
        candidates = [chosen] if chosen else [
            sys.executable or "", os.path.join(sys.prefix, "bin", name), name, "python3"]
        for path in filter(None, map(shutil.which, candidates)):
            if chosen or "python" in os.path.basename(path):    # the first candidate may be a web server
                return path
        raise SetupError("%s cannot be run: the setting python must be the path of a Python"
                         % (chosen or "the Python found here"))

    def environment(self, ours=os.environ):
        """Return the environment of workers: only allowed names, since a web process may hold secrets."""
        more = self._settings.get("pass_environment").replace(",", " ").split()
        # Under CGI a client's headers become variables with this prefix: Proxy becomes HTTP_PROXY.
        strange = "HTTP_" if "GATEWAY_INTERFACE" in ours else "\0"
        return {name: value for name, value in ours.items() if not name.startswith(strange)
                and (name in (*ENVIRONMENT_NAMES, *more) or name.startswith(("LC_", "JOBQUEUE_")))}

    @staticmethod
    def _test(path):
        import shutil
        if not shutil.which(path):
            raise field_error("python", "must be the path of a Python that can be run")


class Modes:
    """The way workers are started here. `auto` may do without detached workers for a while.

    A detached worker is lost young if it never reported, or was killed or told to stop within YOUNG_SECONDS.
    After LOST_MAX losses in a row `auto` leaves "detached" for DETACHED_AGAIN_SECONDS. Then one more loss is
    enough. A worker that left in order or lived longer resets the count. A loss is not counted if the worker
    was started before the last loss, or ran one of the same tasks.
    """

    def __init__(self, database, settings, claims,
                 tick_history):
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._clock = tick_history, database.clock

    def decide(self):
        """Return the mode in which workers start now. It is never "auto"."""
        mode, lost = self._settings.get("worker_mode"), self._lost(self._database)
        if mode != "auto":
            return ChosenMode(mode, "The setting worker_mode names this mode.")
        again = lost["at"] + DETACHED_AGAIN_SECONDS
        if lost["count"] < LOST_MAX or self._clock.now() >= again:
            return ChosenMode("detached", "Workers are started whenever there is work.")
        cron = self._tick_history.visitor("cron")
        mode = "cron" if cron and cron["comes"] else "slice"
        return ChosenMode(mode, (
            "%s, because the host ended workers soon after they had started (%s). Starting them is tried "
            "again at %s."
            % (MODE_WORDS[mode], time_of_day(lost["at"]), time_of_day(again))))

    def works_in_slices(self):
        """Return True if child processes may work while a caller waits: in slice, or if `auto` chose cron."""
        mode = self.decide().mode
        return mode == "slice" or (mode == "cron" and self._settings.get("worker_mode") == "auto")

    def learn_end(self, transaction, row, is_loss):
        """Learn from the end of a worker. `is_loss`: it was killed or told to stop, or never reported."""
        lost, here = self._lost(transaction), (self._claims.machine, self._claims.leases.boot)
        if row["mode"] != "detached" or (row["machine"], row["boot"]) != here:
            return
        if not is_loss or (row["state"] != "starting"
                           and row["seen_at"] - row["started_at"] >= YOUNG_SECONDS):
            self._store_losses(transaction, None)
            return
        tasks = [task["id"] for task in transaction.all(
            "SELECT id FROM task WHERE status=RUNNING AND worker_id=?", (row["id"],))]
        if row["started_at"] <= lost["at"] or set(tasks) & set(lost["tasks"]):
            return
        self._store_losses(transaction, {
            "count": lost["count"] + 1, "at": self._clock.now(), "tasks": tasks})
        if lost["count"] + 1 >= LOST_MAX:
            remember(transaction, "start_failure", None)   # it is about the mode detached

    def _lost(self, db):
        """Return the latest losses in a row on this machine. If the clock was set back, they do not count."""
        lost = (recall(db, "workers_lost") or {}).get(self._claims.machine)
        if lost and seconds_since(lost["at"], self._clock.now()) < math.inf:
            return lost
        return {"count": 0, "at": 0.0, "tasks": []}

    def _store_losses(self, transaction, losses):
        by_machine = recall(transaction, "workers_lost") or {}
        before = by_machine.pop(self._claims.machine, None)
        if losses:
            by_machine[self._claims.machine] = losses
        if losses or before:
            remember(transaction, "workers_lost", by_machine or None)


# upkeep/workers.py -----------------------------------------------------------
#
# Rows of workers: reserved, live, renewed, removed.
#
# A worker has a row and a lock file. The row counts towards NbMaxWorker, unless the worker is remote. The
# worker and its runner hold the lock while they live. A Starter reserves the row and starts the process. The
# process takes the lock and sets the row's state to idle. Heartbeats renew the row's lease. When the worker
# leaves, it removes the row. The Reaper removes the rows of workers whose lock is free or whose lease is over.

class Reserved(NamedTuple):
    """A reserved row of a worker: its id, and the name of its lock file."""

    id: "int"
    lock: "str"


class Workers:
    """The rows of worker processes, their lock files, and failed starts."""

    def __init__(self, database, settings, claims,
                 modes):
        self._database, self._settings, self._claims = database, settings, claims
        self._modes, self._clock = modes, database.clock
        self.locks = database.folder / "locks"
        self.log = private_path(database.path, "worker.log")

    def rows(self):
        """Return all worker rows, each with the id, owner and function of the task it runs."""
        return self._database.all(
            "SELECT worker.*, task.id AS task_id, task.owner_id AS owner_id, "
            "task.function AS function FROM worker LEFT JOIN task ON task.id=(SELECT min(id) "
            "FROM task %s WHERE status=RUNNING AND worker_id=worker.id AND cancel_requested<2) "
            "ORDER BY worker.id" % BY_CLAIM)

    def reserve(self, transaction, mode, count=1):
        """Add rows for up to `count` new workers, within NbMaxWorker."""
        room = (self._settings.get("NbMaxWorker", transaction)
                     - transaction.value("SELECT count(*) FROM worker WHERE mode<>'remote'"))
        now = self._clock.now()
        reserved = []
        for _ in range(min(count, room)):
            lock = random_token(12)
            worker_id = transaction.insert("worker", {
                "machine": self._claims.machine, "boot": self._claims.leases.boot, "lock": lock,
                "mode": mode, "state": "starting", "version": VERSION, "started_at": now,
                **self._lease(now)})
            reserved.append(Reserved(worker_id, lock))
        return reserved

    def arrive(self, worker_id, lock, proven, pid):
        """Mark a reserved row as live; return False if it was removed meanwhile."""
        with self._database.transaction(durable=False) as transaction:
            changed = transaction.update(
                "worker", {"state": "idle", "pid": pid, "lock_proven": proven},
                "id=? AND lock=? AND state='starting'", (worker_id, lock))
            if changed:
                remember(transaction, "start_failure", None)
                record_activity(transaction, self._clock.now(), "worker_started", worker_id=worker_id,
                     machine=self._claims.machine)
            return changed == 1

    def heartbeat(self, transaction, worker_id, state, tasks,
                  runner=(None, None)):
        """Store a worker's heartbeat, with its runner's pid and start time, if the worker still has a row."""
        lease = self._lease(self._clock.now())
        transaction.run_later(
            "UPDATE worker SET state=?, tasks=?, runner_pid=?, runner_birth=?, %s WHERE id=?"
            % ", ".join(name + "=?" for name in lease),
            (state, tasks, *runner, *lease.values(), worker_id))

    def _lease(self, now):
        seconds = self._database.lease_seconds
        return {"seen_at": now, "lease_wall": now + seconds,
                "lease_monotonic": self._clock.monotonic() + seconds}

    def leave(self, transaction, worker_id, why,
              tasks=None):
        """Remove a worker's row. The process that holds the lock removes the lock file."""
        row = transaction.one("SELECT * FROM worker WHERE id=?", (worker_id,))
        if row:
            self._modes.learn_end(transaction, row, why == STOPPED)
            transaction.run("DELETE FROM worker WHERE id=?", (worker_id,))
            record_activity(transaction, self._clock.now(), "worker_ended", worker_id=worker_id,
                 machine=row["machine"],
                 message="%s after %d tasks" % (why, tasks) if tasks is not None else why)

    def remove_lock(self, lock, handle):
        """Remove a lock file that we hold."""
        with contextlib.suppress(OSError):
            (self.locks / lock).unlink()
        os.close(handle)

    def are_there(self):
        """Return True if there is any worker, except remote ones."""
        return bool(self._database.value("SELECT 1 FROM worker WHERE mode<>'remote' LIMIT 1"))

    def rank(self, worker_id):
        """Return a worker's rank by age, 1 for the oldest; None for a worker that is stopping or has no row.

        Workers that are stopping and remote workers do not count.
        """
        count, last = self._database.row(
            "SELECT count(*), max(id) FROM worker "
            "WHERE id<=? AND state<>'stopping' AND mode<>'remote'", (worker_id,))
        return count if last == worker_id else None

    def idles_alone(self, worker_id, db=None):
        """Return True if no older worker on this machine is idle."""
        return not (db or self._database).value(
            "SELECT 1 FROM worker WHERE id<? AND state='idle' AND machine=? AND mode<>'remote'",
            (worker_id, self._claims.machine))

    def start_failed(self, transaction, message):
        """Store why no worker could be started, and when to try again."""
        now, (least, most) = self._clock.now(), START_RETRY_SECONDS
        before = recall(transaction, "start_failure") or {"tries": 0, "next": 0}
        tries = before["tries"] + (now >= before["next"])   # a failure during the pause adds none
        pause = min(most, least * 2 ** min(tries - 1, 10)) * self._clock.uniform(1.0, 1.5)
        failure = {"at": now, "message": shorten(message, 300), "tries": tries, "next": now + pause}
        remember(transaction, "start_failure", failure)
        record_activity(transaction, now, "worker_start_failed", message=failure["message"])

    def last_words(self, since, until=math.inf):
        """Return the last line of the workers' log, after a colon and a space.

        Return an empty text if the log was not last written between these times.
        """
        with contextlib.suppress(OSError, IndexError):
            if since <= self.log.stat().st_mtime <= until:
                lines = self.log.read_text("utf-8", "replace").strip().splitlines()
                return ": " + storable(lines[-1])
        return ""


# upkeep/reaper.py ------------------------------------------------------------
#
# The Reaper: workers that died or are lost, and their tasks.
#
# A worker has died if its lock is free. It is lost if its lease is over. Both count as dead here.

STARTING_SECONDS = 10.0         # how long a started process may take to lock its lock file
STARTING_LOCKED_SECONDS = 60.0  # how long a process with its lock may take to report


class DeadWorker(NamedTuple):
    """A dead worker: its row, the descriptor of its lock file (None: not held), and why it is dead."""

    row: "WorkerRow"
    handle: "int | None"
    why: "str"


class Reaper:
    """The Reaper: finds dead workers, removes their rows and ends their tasks.

    1. Check each row. A worker is dead if its proven lock is free. It is also dead if its lease is over
       and its mark as suspect has expired. A reserved worker is dead if it did not report in time.
    2. Kill processes that a dead worker may have left. One is a runner with the start time in the row. The
       other is a silent worker that still holds its lock. No other pid is ever signalled.
    3. In one transaction remove the rows, unless they have changed, and end the tasks as crashed.
    4. Remove lock files last, and only those that this process holds.
    """

    def __init__(self, database, claims, workers, modes):
        self._database, self._claims, self._workers, self._modes = database, claims, workers, modes
        self._leases, self._clock = claims.leases, database.clock
        self.burials = Every(TICK_SECONDS, self._clock)

    def bury_dead(self):
        """Remove dead workers, and end their tasks and the tasks whose leases are over."""
        self.burials.put_off(TICK_SECONDS)
        dead = self.find_dead()
        buried = set()
        try:
            if dead or self._leases.lost((), self._clock.now()):
                buried = self._record(dead)
        finally:
            for row, handle, _ in dead:
                if handle is not None and row["id"] in buried:
                    self._workers.remove_lock(row["lock"], handle)
                elif handle is not None:    # the row has changed: the next check tests the lock again
                    os.close(handle)
        self._leases.mark_suspects(self._clock.now())

    def _record(self, dead):
        with self._database.transaction(durable=False) as transaction:
            now = self._clock.now()
            buried = {row["id"] for row, _, why in dead if self.bury(transaction, row, why)}
            for task in self._leases.lost(buried, now, transaction):
                self._claims.end_lost(transaction, task, now)
        return buried

    def bury(self, transaction, row, why):
        """Remove a dead worker's row; return False if it has changed meanwhile."""
        if not transaction.run("DELETE FROM worker WHERE id=? AND state=? AND lease_monotonic=?",
                               (row["id"], row["state"], row["lease_monotonic"])):
            return False
        words = ""
        if row["state"] == "starting":
            words = self._workers.last_words(row["started_at"])
            self._workers.start_failed(transaction, "a started worker %s%s" % (why, words))
        record_activity(transaction, self._clock.now(), "worker_lost", worker_id=row["id"],
             machine=row["machine"], waited=max(0.0, self._clock.now() - row["seen_at"]),
             message=why + words)
        if not words and why != "silent":       # else it failed by itself, or its machine stood still
            self._modes.learn_end(transaction, row, True)
        return True

    def find_dead(self):
        """Return the dead workers, after killing their processes."""
        dead = []
        silent = self._leases.silent(self._clock.now())
        for row in self._database.all("SELECT * FROM worker"):
            is_silent = lease_name(row["lock"], row) in silent
            handle, why = self._examine(row, is_silent)
            if why and (self._end_runner(row) or is_silent):
                dead.append(DeadWorker(row, handle, why))
            elif handle is not None:
                os.close(handle)
        return dead

    def _examine(self, row, is_silent):
        """Return the descriptor of a worker's lock if it was free, and why the worker is dead, or None."""
        path, boot = self._workers.locks / row["lock"], self._leases.boot
        if row["state"] == "starting" and (row["machine"], row["boot"]) == (
                self._claims.machine, boot):
            return self._look_at_starting(row, path)
        is_here = boot and row["boot"] == boot
        if row["lock_proven"] and (is_here or self._database.has_own_disk):
            handle = grab_if_free(path)         # locks of other machines cannot be tested
            if handle is not None:
                return handle, "died"
        # A stopped worker (SIGSTOP) may have a living runner. Both must end before the tasks run again.
        if not is_silent or (is_here and row["lock_proven"] and self._end_silent(row["pid"], path)):
            return None, None
        return None, "silent"

    def _look_at_starting(self, row, path):
        age = self._database.lease_seconds + self._clock.monotonic() - row["lease_monotonic"]
        if not self._leases.boot:               # the monotonic clock may have begun again
            age = self._clock.now() - row["started_at"]
        handle = grab_if_free(path)
        held = handle is None and path.exists()
        late = age > (STARTING_LOCKED_SECONDS if held else STARTING_SECONDS)
        return handle, "did not report" if late else None

    def _end_runner(self, row):
        """Kill the runner of a dead worker; return False while it lives.

        A runner usually ends with its worker. A function may have closed the descriptors for that. Another
        user's runner cannot be killed: then the lease protects its task.
        """
        born = row["runner_birth"] if row["boot"] == self._leases.boot else None
        return end_group(row["runner_pid"], born, self._clock.sleep)

    @staticmethod
    def _end_silent(pid, path):
        """Kill a silent worker; return False if the process with this pid does not hold its lock."""
        with contextlib.suppress(OSError, TypeError):
            held = {os.readlink(entry.path) for entry in os.scandir("/proc/%d/fd" % pid)}
            if str(path.resolve()) in held:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def sweep_locks(self):
        """Remove old lock files without a row. They are left by crashes."""
        in_use = {row[0] for row in self._database.all("SELECT lock FROM worker")}
        for path in self._workers.locks.iterdir():
            with contextlib.suppress(OSError):
                age = self._clock.now() - path.stat().st_mtime
                if path.name not in in_use and age >= LEASE_SECONDS:
                    path.unlink()


# upkeep/starter.py -----------------------------------------------------------
#
# The Starter: reserves a worker's row and starts the process.

WORKER_LOG_MAX_BYTES = 256 << 10


class Starter:
    """The starter of worker processes: as many as the work needs and NbMaxWorker allows."""

    def __init__(self, database, settings, claims,
                 interpreter, modes, workers, reaper):
        self._database, self._settings, self._claims = database, settings, claims
        self._interpreter, self._modes, self._workers = interpreter, modes, workers
        self._reaper, self._clock = reaper, database.clock
        self._children = {}     # process -> id of its row; None: a helper

    def start_needed(self, least=0):
        """Start the needed workers if the mode is detached; return the number of reserved rows."""
        self._poll_children()
        if not self.needed(least) or self._modes.decide().mode != "detached":
            return 0
        return len(self._start_all("detached", least))

    def work_slice(self, seconds=SLICE_SECONDS):
        """Start workers and wait for them for up to `seconds`; return how many attempts at tasks ended.

        This is for hosts that end a worker with the process that started it. If the workers are killed with
        this process, their locks are free, and other processes notice that at once.
        """
        self._poll_children()
        if not self._modes.works_in_slices() or not self.needed():
            return 0
        until = self._clock.monotonic() + seconds
        before = self._database.value("SELECT max(id) FROM activity") or 0
        started = self._start_all("slice", 0, max(0.1, seconds - 1.0))
        while started.intersection(self._children.values()) and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
            self._poll_children()
        return sum(row[0] in started for row in self._database.all(
            "SELECT worker_id FROM activity WHERE id>? "
            "AND event IN ('succeeded', 'failed', 'retry', 'cancelled')", (before,)))

    def needed(self, least=0, db=None):
        """Return how many more workers to start: one for each claimable task, and at least `least` in all.

        Idle workers of other machines count towards NbMaxWorker. But they do not count as ready, since a
        queue may be for this machine only.
        """
        room = self._settings.get("NbMaxWorker", db)
        if not room:                    # 0 stops all work
            return 0
        db = db or self._database
        workers = db.all("SELECT state, machine FROM worker WHERE mode<>'remote'")
        room -= len(workers)
        if room <= 0:
            return 0
        ready = sum(row["state"] in ("idle", "starting") and row["machine"] == self._claims.machine
                    for row in workers)
        missing = max(self._claims.claimable(room + ready, db), least) - ready
        if missing <= 0:
            return 0
        failure = recall(db, "start_failure")
        # A longer pause than possible comes from a clock that was set back, and does not count.
        if failure and 0 < failure["next"] - self._clock.now() < 2 * START_RETRY_SECONDS[1]:
            return 0
        # After a failure try one: several may use up the host's processes, and leave none for a runner.
        return 1 if failure else min(room, missing)

    def start_helper(self, *arguments):
        """Start a process that does one thing: --send sends due messages, --backup makes the daily backup."""
        self._poll_children()
        self._launch(None, *arguments, str(self._database.folder))

    def _start_all(self, mode, least, *more):
        """Reserve rows and start the needed workers; return the ids of all reserved rows."""
        with self._database.transaction(durable=False) as transaction:
            reserved = self._workers.reserve(transaction, mode, self.needed(least, transaction))
        for worker_id, lock in reserved:
            try:
                self._launch(worker_id, "--" + mode, str(worker_id), lock,
                             str(self._database.folder), *map(str, more))
            except START_ERRORS as error:
                with self._database.transaction(durable=False) as transaction:
                    transaction.run("DELETE FROM worker WHERE id=? AND state='starting'",
                                    (worker_id,))
                    self._workers.start_failed(transaction, explain_start_error(error))
        return {worker_id for worker_id, _ in reserved}

    def _launch(self, worker_id, *arguments):
        python, log = self._interpreter.path(), self._workers.log
        with contextlib.suppress(OSError):
            if log.stat().st_size > WORKER_LOG_MAX_BYTES:
                os.replace(log, "%s.old" % log)
        with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as out:
            child = self._start(
                [python, "-m", "worker", *arguments], stdout=out, stderr=out,
                start_new_session=True, cwd=str(HOME), env=self._interpreter.environment())
        self._children[child] = worker_id

    @staticmethod
    def _start(command, **how):
        import subprocess
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)

    def _poll_children(self):
        """Collect ended child processes. A worker that ended before it reported is a failed start."""
        for child, worker_id in list(self._children.items()):
            if child.poll() is None or self._children.pop(child, None) is None:
                continue                # it still runs, or another thread has collected it
            row = self._database.one("SELECT * FROM worker WHERE id=? AND state='starting'",
                                     (worker_id,))
            if row:
                why = "ended with exit code %d" % child.returncode
                with self._database.transaction(durable=False) as transaction:
                    self._reaper.bury(transaction, row, why)


# upkeep/catalogue.py ---------------------------------------------------------
#
# The functions of tasks.py, as a child process announced them.

                       # when tasks.py was last read










































CATALOGUE_SECONDS = 10.0                # how long the child process may take to announce
AGAIN_SECONDS = 2.0                     # pause before the next reading after an error; doubled each time
AGAIN_MAX_SECONDS = 60.0
READER_SECONDS = 3600.0         # how long a reader of tasks.py is remembered


class _Known(NamedTuple):
    """A copy of the catalogue in this process, and the monotonic time until which it is used."""

    until: "float"
    state: "CatalogueState"
    functions: "dict[str, AnnouncedFunction]"


_NOTHING = _Known(-math.inf, {
    "files": {}, "error": None, "samples": False, "read_at": None, "schedules": [], "project": None,
    "pause": 0, "theirs_until": None}, {})


class Catalogue:
    """The functions that tasks.py declares.

    This process never imports tasks.py. A child process announces its functions, as the runners of
    workers do. tasks.py is read again when it or one of its imports changes. After an error it is read
    again and again, since a missing module may be installed meanwhile. The last good functions stay.
    """

    def __init__(self, database, interpreter):
        self._database, self._interpreter = database, interpreter
        self._reading = threading.Lock()
        self._known = _NOTHING
        self._misses = Every(0.05, database.clock)

    def functions(self):
        """Return all functions in the order of their declaration, then those of remote workers only."""
        return list(self._load().functions.values())

    def find(self, name):
        """Return a function, or None. An unknown name is looked up again: a worker may have announced it."""
        if name not in self._load().functions and self._misses.begin_if_due():
            self._known = _NOTHING
        return self._load().functions.get(name)

    def state(self):
        """Return the state of the last reading."""
        return self._load().state

    def describe(self, is_admin=True):
        """Return the functions as the API has them. Admins see all, and the error of tasks.py."""
        state = self.state()
        functions = [function for function in self.functions() if is_admin or function["who"] == "user"]
        error = state["error"] if is_admin else state["error"] and {
            "message": "tasks.py cannot be read; an admin sees why.", "file": None, "line": None}
        return {"functions": functions, "error": error, "samples": state["samples"],
                "file": str(TASKS_FILE) if is_admin else None, "read_at": iso(state["read_at"])}

    def files(self):
        """Return tasks.py, worker.py and the known imports, to be stamped before tasks.py is read."""
        return [TASKS_FILE, WORKER_FILE, *self.state()["files"]]

    def schedules(self):
        """Return the schedules of tasks.py when it was last read without an error."""
        state = recall(self._database, "catalogue") or self.state()
        return state.get("schedules", [])

    def refresh(self, wait=False):
        """Read tasks.py again if it or one of its imports changed.

        While another thread reads it, callers use the known functions. They wait with `wait`, or if
        tasks.py was never read.
        """
        if (not self._has_changed()
                or not self._reading.acquire(blocking=wait or not self.state()["files"])):
            return
        try:
            if self._has_changed():
                stamps = file_stamps(self.files())
                self.store(self._announcement(), stamps)
        except START_ERRORS as error:   # the next call tries again
            if not self.functions():
                problem = explain_start_error(error, "the process that reads it")
                self.store(self._failure(problem), {str(WORKER_FILE): None})
        finally:
            self._reading.release()

    def store(self, announcement, stamps=None):
        """Store an announcement; return the stamps of its files.

        After an error the last good functions stay. `stamps` were taken before the reading began.
        """
        self._known = _NOTHING          # another process may just have stored an announcement
        before, stamps = self.state(), stamps or {}
        files = file_stamps([TASKS_FILE, WORKER_FILE, *announcement.get("files", stamps)])
        functions = announcement.get("functions")
        source = before if functions is None else announcement
        state = {
            "files": {name: stamps.get(name, stamp) for name, stamp in files.items()},
            "error": announcement.get("error"), "samples": announcement.get("samples", False),
            "read_at": before["read_at"], "schedules": source.get("schedules", []), "pause": 0,
            "project": source.get("project"),
            "theirs_until": None}
        readers = None if functions is None or state["samples"] else (
            self._readers(announcement, state, before))
        if state["error"]:
            state["pause"] = min(AGAIN_MAX_SECONDS, 2 * before.get("pause", 0) or AGAIN_SECONDS)
        ours = [function for function in self.functions() if "remote" not in function]
        if state != before or state["error"] or functions not in (None, ours):
            state["read_at"] = self._database.clock.now()
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, "catalogue", state)
                if functions is not None:
                    self._replace(transaction, functions)
                if readers is not None:
                    remember(transaction, "tasks_files", readers)
            self._known = _NOTHING
        return state["files"]

    def _readers(self, announcement, state,
                 before):
        """Return the readers of tasks.py, this one included.

        If another reader's tasks.py is newer, `state` keeps its schedules. So two readers do not change
        them by turns.
        """
        now, place = self._database.clock.now(), "%s on %s" % (TASKS_FILE, machine_name())
        stamp = state["files"].get(str(TASKS_FILE))
        mine = {"at": now, "changed": stamp[0] if stamp else 0, "digest": digest(
            dump_json([announcement["functions"], announcement.get("schedules", [])]))}
        other_readers = {name: reader for name, reader in self.readers().items() if name != place}
        newer = [reader["at"] for reader in other_readers.values()
                 if reader["digest"] != mine["digest"] and reader["changed"] > mine["changed"]]
        if newer:
            state["schedules"], state["theirs_until"] = before["schedules"], max(newer) + READER_SECONDS
        return {**other_readers, place: mine}

    def readers(self):
        """Return the readers of tasks.py within the last hour."""
        now, readers = self._database.clock.now(), recall(self._database, "tasks_files") or {}
        return {place: reader for place, reader in readers.items()
                if abs(now - reader["at"]) < READER_SECONDS}

    def _replace(self, transaction, functions):
        """Store functions and their queues. Queues of external functions are only for their own workers."""
        transaction.update("queue", {"external": 0}, "external=1")
        for function in functions:
            queue = function["options"]["queue"]
            transaction.ensure("queue", {"name": queue, "created_at": self._database.clock.now()})
            transaction.update("queue", {"external": int(function.get("external", False))},
                               "name=?", (queue,))
        transaction.run("DELETE FROM function")
        transaction.insert_all("function", (
            {"name": row["name"], "title": row["title"], "description": row["description"],
             "who": row["who"], "schema": dump_json(row["schema"]),
             "options": dump_json(row["options"])}
            for row in functions))

    def _load(self):
        """Return this process's copy of the catalogue, at most CACHE_SECONDS old."""
        now, copy = self._database.clock.monotonic(), self._known
        if copy.until < now:
            state = recall(self._database, "catalogue") or _NOTHING.state
            functions = {row["name"]: self._function(row) for row in self._database.all(
                "SELECT * FROM function ORDER BY id")}
            self._add_remote(functions)
            copy = self._known = _Known(now + CACHE_SECONDS, state, functions)
        return copy

    @staticmethod
    def _function(row):
        return {"name": row["name"], "title": row["title"], "description": row["description"],
                "who": row["who"], "schema": json.loads(row["schema"]),
                "options": {**TASK_DEFAULTS, **json.loads(row["options"])}}

    def _add_remote(self, functions):
        announced = {}      # by JSON: most workers announce the same
        for worker in self._database.all(
                "SELECT machine, functions FROM worker WHERE mode='remote' ORDER BY id"):
            text = worker["functions"]
            announced[text] = announced.get(text) or json.loads(text)
            for function in announced[text]:
                entry = functions.setdefault(function["name"], {**function, "remote": []})
                if worker["machine"] not in entry.get("remote", (worker["machine"],)):
                    entry["remote"].append(worker["machine"])

    def _has_changed(self):
        state = self._load().state
        stamps, pause = state["files"], state.get("pause", 0)
        if str(TASKS_FILE) not in stamps or file_stamps(stamps) != stamps:
            return True
        now = self._database.clock.now()
        if now > (state.get("theirs_until") or now):
            return True
        waited = now - (state["read_at"] or 0)
        return state["error"] is not None and not 0 <= waited < pause

    def _announcement(self):
        """Return the announcement of a child process."""
        import subprocess
        import tempfile
        # Files, not pipes: a process that tasks.py starts may keep a pipe open for long.
        folder = self._database.folder
        with tempfile.TemporaryFile(dir=folder) as answer, tempfile.TemporaryFile(dir=folder) as words:
            try:
                ended = subprocess.run(
                    [self._interpreter.path(), "-m", "worker", "--catalogue"],
                    stdin=subprocess.DEVNULL, stdout=answer, stderr=words, timeout=CATALOGUE_SECONDS,
                    start_new_session=True, cwd=str(HOME), env=self._interpreter.environment())
            except subprocess.TimeoutExpired:
                return self._failure("it took longer than %d s to import" % CATALOGUE_SECONDS)
            answer.seek(0)
            with contextlib.suppress(ValueError):
                return json.loads(answer.read())
            words.seek(max(0, words.seek(0, os.SEEK_END) - 2000))
            last_line = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            code = ended.returncode
            how = "exit code %d" % code if code >= 0 else name_signal(-code)
            why = ": ".join(filter(None, [how, shorten(storable(last_line), 300)]))
            return self._failure("the process that reads it ended with %s" % why)

    @staticmethod
    def _failure(problem):
        return {"error": {"message": problem, "file": TASKS_FILE.name, "line": None}}


# upkeep/rollup.py ------------------------------------------------------------
#
# Sums of the activity by hour and place: how many events there were, and how long they took.
#
# A place is a function and queue, or a machine. Tally gathers the values for each row of the tables `hour` and
# `worker_hour`, which is one hour at one place, and makes Sums of them. Sums can be added, and so can their
# Times: these are histograms, which give percentiles.

HOUR, SIX_HOURS, DAY, ALL_TIME = 3600, 21600, 86400, 0
STEPS = {"hour": HOUR, "6h": SIX_HOURS, "12h": 43200, "day": DAY, "week": 7 * DAY}
FIRST_MONDAY = 4 * DAY          # steps are counted from this moment, so that weeks begin on Mondays
SPREAD_MAX_SECONDS = 400 * DAY  # a longer life of a worker comes from a wrong clock
LARGEST = 2.0 ** 53             # larger numbers of seconds or bytes count as this one
RUNS_KEPT, RUNS_SHOWN = 50, 20     # maximum of latest runs of a function: stored, shown
HOUR_KEYS = {"hour": ("span", "at", "function", "queue"),
             "worker_hour": ("span", "at", "machine")}
COUNTS = ("added", "started", "succeeded", "failed", "cancelled", "retried", "crashed")
TIMES = ("waited", "ran", "service")
HISTOGRAMS = frozenset((*TIMES, "executed"))     # columns that hold Times
# The column that counts an event of a task; None: no column.
EVENTS = {"added": "added", "started": "started", "succeeded": "succeeded", "failed": "failed",
          "cancelled": "cancelled", "retry": "retried", "crashed": "crashed",
          "interrupted": None, "put_back": None}
WORKER_EVENTS = ("worker_started", "worker_ended", "worker_lost")
BUCKET_TOPS = (0.5, 2 ** -0.75, 2 ** -0.5, 2 ** -0.25)     # of the fractions that frexp() returns
ZERO_BUCKET = -5000             # its top is 0.0
ESCAPED = str.maketrans({"\\": r"\\", '"': r'\"', "\n": r"\n"})

if TYPE_CHECKING:
    # Table, beginning of an hour, place.
    SumsKey = tuple[str, int, tuple[str, ...]]
    AnyRun = tuple[Optional[int], Optional[int], str, float]    # a LatestRun whose seconds are not rounded
    AnySums = dict[str, Any]
else:
    AnySums = dict


class LatestRun(NamedTuple):
    """An ended attempt, as `recent` stores it."""

    task_id: "int | None"
    owner_id: "int | None"
    status: "str"                         # a name in COUNTS, or an event
    seconds: "float"


class Shift(NamedTuple):
    """A row of `shift`: a worker's machine, and the moment up to which its life is counted.

    `ended_at` is when its end was recorded. A lost worker's life is counted to its last heartbeat.
    """

    worker_id: "int"
    machine: "str"
    counted_to: "float" = 0.0
    ended_at: "float | None" = None


def sane(number):
    """Return a number limited to 0..LARGEST. Clocks are set back, and other programs store any number."""
    return number if 0.0 <= number <= LARGEST else min(max(0.0, number), LARGEST)


def hour_of(at):
    """Return the beginning of the hour of a moment."""
    return int(sane(at)) // HOUR * HOUR


def whole_steps(start, end, step):
    """Return a range that is extended to whole steps."""
    seconds = STEPS[step]
    return (int((start - FIRST_MONDAY) // seconds) * seconds + FIRST_MONDAY,
            math.ceil((end - FIRST_MONDAY) / seconds) * seconds + FIRST_MONDAY)


def latest_runs(stored, more):
    """Return the newest RUNS_KEPT runs, oldest first: those in the JSON of a row of `recent`, then `more`."""
    runs = [LatestRun(*run) for run in json.loads(stored or "[]")]
    runs += [LatestRun(task_id, owner_id, status, round(seconds, 6))
             for task_id, owner_id, status, seconds in more]
    return runs[-RUNS_KEPT:]


def bucket_of(seconds):
    """Return the number of the bucket of a time. Four buckets further, times are twice as long.

    No logarithms are used, because their results differ between machines.
    """
    fraction, exponent = math.frexp(seconds)
    within = bisect.bisect_left(BUCKET_TOPS, fraction)
    return 4 * exponent + within if seconds else ZERO_BUCKET


def bucket_top(number):
    """Return the longest time in a bucket."""
    return math.ldexp(BUCKET_TOPS[number % 4], number // 4)


class Times:
    """Times in seconds: their count, sum, minimum, maximum, and the count in each bucket."""

    __slots__ = ("count", "sum", "least", "most", "buckets")
    count: "int"
    sum: "float"
    least: "float"
    most: "float"
    buckets: "dict[str, int]"             # by bucket number, which is a text in JSON

    def __init__(self, text=None):
        self.count, self.sum, self.least, self.most, self.buckets = (
            json.loads(text) if text else (0, 0.0, math.inf, 0.0, {}))

    @classmethod
    def of(cls, values):
        """Return the Times of these values. There must be a value."""
        times = cls()
        times.count, times.sum = len(values), math.fsum(values)
        times.least, times.most = min(values), max(values)
        times.buckets = {str(number): count for number, count in
                        collections.Counter(map(bucket_of, values)).items()}
        return times

    def add(self, times):
        """Add other times."""
        self.count += times.count
        self.sum += times.sum
        self.least, self.most = min(self.least, times.least), max(self.most, times.most)
        buckets = self.buckets
        for number, count in times.buckets.items():
            buckets[number] = buckets.get(number, 0) + count

    def text(self):
        """Return the text that __init__() reads."""
        return dump_json([self.count, self.sum, self.least, self.most, self.buckets])

    def up_to(self, number):
        """Return the number of times in this bucket and those below it."""
        return sum(count for name, count in self.buckets.items() if int(name) <= number)

    def percentile(self, share):
        """Return the `share` quantile, such as 0.95, within 9 %. It is exact if all times are equal."""
        rank = math.ceil(share * self.count)
        for number in sorted(map(int, self.buckets)):
            rank -= self.buckets[str(number)]
            if rank <= 0:
                break
        low, high = bucket_top(number - 1), bucket_top(number)
        return min(max(2 * low * high / (low + high or 1.0), self.least), self.most)

    def json(self):
        """Return the figures as the API has them. The 95th percentile is given from 20 times on."""
        figures = [self.sum]
        if self.count:
            figures += [self.least, self.most, self.sum / self.count, self.percentile(0.5),
                     self.percentile(0.95) if self.count >= 20 else None]
        rounded = (value and round(value, 6) for value in (*figures, *[None] * 5))
        return {"count": self.count,
                **dict(zip(("sum", "min", "max", "mean", "p50", "p95"), rounded))}


NO_TIMES, NO_SHIFT = Times(), Shift(0, "")


class Sums(AnySums):
    """A dictionary of sums by column: numbers, Times, and the maximum of peak_memory."""

    @classmethod
    def of(cls, cell):
        """Return the sums of {column: values}."""
        return cls((name, Times.of(values) if name in HISTOGRAMS else
                    max(values) if name == "peak_memory" else sum(values))
                   for name, values in cell.items())

    @classmethod
    def from_row(cls, row, keys):
        """Return the sums in a row of `hour` or `worker_hour`, without its keys."""
        return cls({name: Times(value) if name in HISTOGRAMS else value
                    for name, value in zip(row.keys(), row) if value and name not in keys})

    def add(self, sums):
        """Add other sums."""
        for name, value in sums.items():
            if name in HISTOGRAMS:
                self.setdefault(name, Times()).add(value)
            elif name == "peak_memory":
                self[name] = max(self.get(name, 0), value)
            else:
                self[name] = self.get(name, 0) + value

    def row(self):
        """Return the columns to store."""
        return {name: value.text() if name in HISTOGRAMS else value for name, value in self.items()}

    def json(self):
        """Return the figures of tasks as the API has them."""
        return {**{name: self.get(name, 0) for name in COUNTS},
                **{name: self.get(name, NO_TIMES).json() for name in TIMES},
                "cpu_seconds": round(self.get("cpu_seconds", 0.0), 6),
                "peak_memory": self.get("peak_memory")}

    def worker_json(self, expected, times_key):
        """Return the figures of workers as the API has them.

        `expected` is the number of tasks that a worker should do in an hour, or 0 if none is set.
        `times_key` is the name in the answer for the times of all attempts.
        """
        alive, busy, tasks = (self.get(name, 0) for name in (
            "alive_seconds", "busy_seconds", "tasks"))
        mean = tasks / alive * HOUR if alive else None
        most = expected or (tasks / busy * HOUR if busy and tasks else None)
        share = mean / expected if expected and mean is not None else busy / alive if alive else None
        return {"alive_seconds": round(alive, 3), "busy_seconds": round(busy, 3), "tasks": tasks,
                times_key: self.get("executed", NO_TIMES).json(),
                "mean_throughput": mean and round(mean, 3),
                "maximum_throughput": most and round(most, 3),
                "utilization": share and round(share, 4)}


class Tally:
    """The tally of rows of the activity: sums of functions and machines by hour, and the latest runs.

    `shifts` has the Shift of each worker by its id. `changed` has the shifts to store.
    """

    def __init__(self, shifts=()):
        self.shifts = {shift.worker_id: shift for shift in shifts}
        self.changed = {}
        self.runs = collections.defaultdict(
            lambda: collections.deque(maxlen=RUNS_KEPT))
        self._cells = collections.defaultdict(
            lambda: collections.defaultdict(list))
        self._hour = 0

    def sums(self):
        """Return the sums by table, hour and place."""
        return {key: Sums.of(cell) for key, cell in self._cells.items() if cell}

    def count(self, rows):
        """Count rows, which must come in the order of their ids. Skip rows with values of a wrong type."""
        for row in rows:
            try:
                self._count(*row)
            except (TypeError, ValueError, OverflowError):
                continue

    def _count(self, _, at, event, function, queue,
               waited, seconds, service,
               cpu_seconds, peak_memory, task_id,
               owner_id, worker_id, machine):
        if event in EVENTS and type(function) is type(queue) is str:
            is_put_back, column = event == "put_back", EVENTS[event]
            # The start of a put_back attempt; its seconds are negative if the clock was set back.
            counts_at = at - (seconds or 0) if is_put_back else at
            # A value of a wrong type raises an error here, before anything of its row is counted.
            waited, seconds, service, cpu_seconds, peak_memory = (
                None if value is None else sane(value)
                for value in (waited, seconds, service, cpu_seconds, peak_memory))
            run_of = task_id and int(task_id), owner_id and int(owner_id)
            hour = self._hour
            if not hour <= counts_at < hour + HOUR:
                hour = self._hour = hour_of(counts_at)
            cell = self._cells["hour", hour, (function, queue)]
            if is_put_back:             # the attempt ran no function
                cell["started"].append(-1)
            elif column:
                cell[column].append(1)
            if waited is not None:
                cell["waited"].append(waited)
            if service is not None and event in ("succeeded", "failed"):
                cell["service"].append(service)
            if seconds is not None and not is_put_back:     # an attempt ran
                if event == "succeeded":
                    cell["ran"].append(seconds)
                if cpu_seconds:
                    cell["cpu_seconds"].append(cpu_seconds)
                if peak_memory:
                    cell["peak_memory"].append(int(peak_memory))
                if worker_id is not None:
                    self._count_work(self.shifts.get(worker_id, NO_SHIFT), hour, at, seconds)
                self.runs[function].append((*run_of, column or event, seconds))
        elif event in WORKER_EVENTS and worker_id is not None:
            self._count_life(event, at, sane(waited or 0), int(worker_id), str(machine or ""))

    def _count_work(self, shift, hour, at, seconds):
        _, machine, counted_to, ended_at = shift
        cell = self._cells["worker_hour", hour, (machine,)]
        cell["tasks"].append(1)
        cell["executed"].append(seconds)
        if ended_at is not None:        # the end of the worker was recorded before that of the attempt
            at = min(at, counted_to)
        if at - seconds >= hour:        # the usual case: the attempt began in the same hour
            cell["busy_seconds"].append(seconds)
        else:
            self.spread(machine, "busy_seconds", at - seconds, at)

    def _count_life(self, event, at, silent_seconds, worker_id,
                    machine):
        shift = self.shifts.get(worker_id)
        if event == "worker_started":
            shift = Shift(worker_id, machine, at + 0.0)
        elif shift and shift.ended_at is None:
            end = at - silent_seconds
            self.spread(shift.machine, "alive_seconds", shift.counted_to, end)
            shift = shift._replace(counted_to=end, ended_at=at)
        else:
            return
        self.shifts[worker_id] = self.changed[worker_id] = shift

    def spread(self, machine, name, start, end):
        """Distribute the seconds from `start` to `end` among their hours."""
        if max(0.0, end - SPREAD_MAX_SECONDS) <= start < end <= LARGEST:
            for hour in range(hour_of(start), math.ceil(end), HOUR):
                self._cells["worker_hour", hour, (machine,)][name].append(
                    min(end, hour + HOUR) - max(start, hour))


# upkeep/metrics.py -----------------------------------------------------------
#
# Metrics: how much was done, and how long it waited and ran.
#
# The activity is the only source. Rollup folds it: each row is added once to the sums of its hour, of its six
# hours, of its day and of all time. Metrics adds the newest rows, which are not folded yet, to these sums. So a
# late row counts in its own hour, and no row is lost if no process folds for a while. Removing tasks or old
# hours changes no other hour and no total.

SPANS = (HOUR, SIX_HOURS, DAY, ALL_TIME)    # lengths of sums in seconds; ALL_TIME begins at 0
FOLD_ROWS = 5000                # most rows of the activity that are folded, or counted for figures, at once
FOLD_LEAST_ROWS = 1000          # fewer rows are folded only when the oldest is FOLD_SECONDS old
FOLD_SECONDS = 60.0
SHIFT_SECONDS = 3600.0          # how long an ended worker's row of `shift` is kept
FOLDED_COLUMNS = ("id, at, event, function, queue, waited, seconds, service, cpu_seconds, "
                  "peak_memory, task_id, owner_id, worker_id, machine")
PROMETHEUS_BUCKETS = range(-4, 61, 8)   # bucket numbers: up to 0.25 s, then four times as much each








OWN_EVENTS = ("SELECT %s FROM activity WHERE id>? AND id<=? AND owner_id=? ORDER BY id DESC LIMIT %d"
              % (FOLDED_COLUMNS, FOLD_ROWS + 1))
SHIFTS = "SELECT worker_id, machine, counted_to, ended_at FROM shift"


class Counted(NamedTuple):
    """The sums up to the mark, and the tally of the rows after it."""

    stored: "list[tuple[str, Row]]"       # folded sums: table, row
    runs: "dict[str, list[LatestRun]]"    # latest runs of each function, oldest first
    until: "float"                        # all rows up to this moment are counted
    tally: "Tally"                        # of the rows that are not folded
    since: "float | None" = None          # older rows are missing; None: no row is missing


class PlaceSums(NamedTuple):
    """The sums of a function and queue, or of a machine, in an hour or a longer span."""

    at: "int"                             # beginning of the span
    place: "tuple[str, ...]"              # function and queue, or machine
    sums: "Sums"


class Rollup:
    """The rollup: adds the activity to the sums, a portion at a time.

    1. Read and count the rows after the mark. Other processes may write meanwhile.
    2. In one transaction store the sums and move the mark to the last row. If another process has moved
       the mark, store nothing.

    So each row counts once, even if a process is killed. Ids are assigned under the write lock. So no row
    appears below the mark later.
    """

    def __init__(self, database):
        self._database, self._clock = database, database.clock

    def mark(self):
        """Return the id of the last folded row."""
        return recall(self._database, "folded") or 0

    def fold(self):
        """Fold a portion if it is large or old enough; return True if there may be more."""
        mark = self.mark()
        if not self._is_due(mark):
            return False
        rows, tally = self.tally(mark)
        with self._database.transaction(durable=False) as transaction:
            if rows and (recall(transaction, "folded") or 0) == mark:
                self._store(transaction, tally)
                remember(transaction, "folded", rows[-1]["id"])
        return len(rows) == FOLD_ROWS

    def tally(self, mark):
        """Return the next FOLD_ROWS rows after the mark, and their Tally."""
        tally = Tally(Shift(*row) for row in self._database.all(SHIFTS))
        rows = self._database.all("SELECT %s FROM activity WHERE id>? ORDER BY id LIMIT %d" % (
            FOLDED_COLUMNS, FOLD_ROWS), (mark,))
        tally.count(rows)
        return rows, tally

    def _is_due(self, mark):
        newest = self._database.value("SELECT max(id) FROM activity") or 0
        if newest - mark >= FOLD_LEAST_ROWS or newest <= mark:
            return newest > mark
        at = self._database.value("SELECT at FROM activity WHERE id>? ORDER BY id LIMIT 1", (mark,))
        return not (is_number(at) and abs(self._clock.now() - at) < FOLD_SECONDS)

    def _store(self, transaction, tally):
        whole = collections.defaultdict(Sums)
        for (table, at, place), sums in tally.sums().items():
            for span in SPANS:
                whole[span, (table, at // span * span if span else 0, place)].add(sums)
        for (span, (table, at, place)), sums in whole.items():
            values = (span, at, *place)
            key = dict(zip(HOUR_KEYS[table], values))
            row = transaction.one("SELECT * FROM %s WHERE %s" % (
                table, " AND ".join(name + "=?" for name in key)), values)
            if row:
                sums.add(Sums.from_row(row, key))
            transaction.upsert(table, key, sums.row())
        for function, runs in tally.runs.items():
            runs_text = transaction.value("SELECT runs FROM recent WHERE function=?", (function,))
            transaction.upsert("recent", {"function": function},
                               {"runs": dump_json(latest_runs(runs_text, runs))})
        for worker_id, shift in tally.changed.items():
            transaction.upsert("shift", {"worker_id": worker_id}, shift._asdict())
        transaction.run("DELETE FROM shift WHERE ended_at<?", (self._clock.now() - SHIFT_SECONDS,))


class Metrics:
    """The figures of tasks and workers: folded sums and newer rows."""

    def __init__(self, database, settings, rollup):
        self._database, self._settings, self._rollup = database, settings, rollup

    def read(self, start, end, step, wants,
             viewer=None, owner_id=None):
        """Return the figures from `start` to `end`. Both are beginnings of steps; `step` is a word of STEPS.

        `wants` selects functions and queues. `viewer` is the user who sees only the ids of their own tasks.
        With `owner_id` only the events of this user's tasks are counted, see _read_own().
        """
        seconds, base = STEPS[step], self._settings.get("throughput_base")
        span = max(length for length in SPANS if length and seconds % length == 0)
        if owner_id is None:
            counted = self._read_sums(span, start, end)
            self._add_living(counted.tally)
        else:
            counted = self._read_own(owner_id, start)
        points = collections.defaultdict(Sums)
        functions = collections.defaultdict(Sums)
        machines = collections.defaultdict(Sums)
        totals = Sums()
        for at, (name, *queue), sums in self._parts(counted, wants):
            if start <= at < end:
                for whole in (points[at - (at - start) % seconds], totals,
                              (functions if queue else machines)[name]):
                    whole.add(sums)
        return {
            "step": step, "from": iso(start), "to": iso(end), "counted_from": iso(counted.since),
            "points": [{"at": iso(at), "complete": at + seconds <= counted.until, **points[at].json(),
                        **points[at].worker_json(base, "executed")}
                       for at in range(start, end, seconds)],
            "totals": {**totals.json(), **totals.worker_json(base, "executed")},
            "workers": [{"machine": machine, **sums.worker_json(base, "ran")}
                        for machine, sums in sorted(machines.items()) if owner_id is None],
            "functions": [{"name": name, **sums.json(), "recent": [
                {"id": task_id if owner_id == viewer or viewer is None else None, "status": status,
                 "seconds": seconds}
                for task_id, owner_id, status, seconds in counted.runs.get(name, [])[-RUNS_SHOWN:]]}
                for name, sums in sorted(functions.items())]}

    def runs(self):
        """Return the latest runs of each function, oldest first."""
        return self._read_sums(HOUR, 0, 0).runs

    def all_time(self):
        """Return {(function, queue): Sums} of all time. Only `started` may decrease."""
        whole = collections.defaultdict(Sums)
        for _, place, sums in self._parts(self._read_sums(ALL_TIME, 0, 1), lambda *_: True):
            if len(place) == 2:         # no machine
                whole[place].add(sums)
        return whole

    def _read_sums(self, span, start, end):
        """Return the sums of a span that begin from `start` up to `end`, and the tally of rows not folded."""
        for _ in range(5):
            mark = self._rollup.mark()
            stored = [(table, row) for table in HOUR_KEYS for row in self._database.all(
                "SELECT * FROM %s WHERE span=? AND at>=? AND at<?" % table, (span, start, end))]
            recent = dict(map(tuple, self._database.all("SELECT function, runs FROM recent")))
            rows, tally = self._rollup.tally(mark)
            if self._rollup.mark() == mark:
                break
        runs = {name: latest_runs(recent.get(name), tally.runs.get(name, ()))
                for name in {**recent, **tally.runs}}
        until = rows[-1]["at"] if len(rows) == FOLD_ROWS else self._database.clock.now()
        return Counted(stored, runs, until, tally)

    def _read_own(self, owner_id, start):
        """Count the events of one user's tasks from `start` on. Sums are not kept for each user.

        Only the newest FOLD_ROWS events are counted, and those that are found within SEARCH_SECONDS.
        """
        database = self._database
        top = database.value("SELECT max(id) FROM activity") or 0
        low = self._last_before(start, top)
        rows, cursor = database.search(OWN_EVENTS, (owner_id,), low, top, FOLD_ROWS, SEARCH_SECONDS)
        first = database.one("SELECT id, at FROM activity WHERE id>=? ORDER BY id LIMIT 1",
                             (cursor or low + 1,))
        is_cut = cursor is not None or low == 0
        since = first["at"] if first and is_cut and first["id"] > 1 else None
        tally = Tally()
        tally.count(reversed(rows))
        return Counted([], {name: latest_runs(None, runs) for name, runs in tally.runs.items()},
                       self._database.clock.now(), tally, since)

    def _last_before(self, at, high):
        """Return the id of the last event before `at`, up to `high`, or 0. Ids rise with time."""
        low = 0
        while low < high:
            middle = (low + high) // 2
            row = self._database.one("SELECT id, at FROM activity WHERE id>? ORDER BY id LIMIT 1", (middle,))
            if row and is_number(row["at"]) and row["at"] < at:
                low = row["id"]
            else:
                high = middle
        return low

    def _add_living(self, tally):
        """Add the time that living workers lived and were busy, up to their last heartbeat.

        A worker claims several tasks at once and runs them one after the other. So the earliest start counts.
        """
        begun = dict(map(tuple, self._database.all(
            "SELECT worker_id, min(started_at) FROM task %s WHERE status=RUNNING GROUP BY worker_id"
            % BY_CLAIM)))
        for worker_id, seen_at in self._database.all("SELECT id, seen_at FROM worker"):
            shift = tally.shifts.get(worker_id)
            if shift and shift.ended_at is None:
                for name, since in (("alive_seconds", shift.counted_to),
                                    ("busy_seconds", begun.get(worker_id, seen_at))):
                    tally.spread(shift.machine, name, since, seen_at)

    @staticmethod
    def _parts(counted, wants):
        """Yield the folded and newer sums of the functions and queues that `wants` selects."""
        for table, row in counted.stored:
            keys = HOUR_KEYS[table]
            _, at, *place = tuple(row)[:len(keys)]
            if table == "worker_hour" or wants(*place):
                yield PlaceSums(at, tuple(place), Sums.from_row(row, keys))
        for (table, at, names), sums in counted.tally.sums().items():
            if table == "worker_hour" or wants(*names):
                yield PlaceSums(at, names, sums)


def exposition(families):
    """Return families in Prometheus' text format."""
    lines = []
    for name, kind, words, samples in families:
        lines += ["# HELP jobqueue_%s %s" % (name, words), "# TYPE jobqueue_%s %s" % (name, kind)]
        for ending, labels, value in samples:
            labels_text = ",".join('%s="%s"' % (label, str(text).translate(ESCAPED))
                            for label, text in labels.items())
            lines.append("jobqueue_%s%s{%s} %r" % (name, ending, labels_text, value))
    return "\n".join(lines).replace("{}", "") + "\n"


def counter_families(whole):
    """Return the families for exposition(), from the sums of Metrics.all_time()."""
    ran = collections.defaultdict(Times)
    for (function, _), sums in whole.items():
        ran[function].add(sums.get("ran", NO_TIMES))
    histogram = []
    for function, times in sorted(ran.items()):
        tops = [("%g" % bucket_top(number), times.up_to(number)) for number in PROMETHEUS_BUCKETS]
        histogram += [("_bucket", {"function": function, "le": top}, count)
                      for top, count in [*tops, ("+Inf", times.count)]]
        histogram += [("_sum", {"function": function}, times.sum),
                      ("_count", {"function": function}, times.count)]
    return [
        ("tasks_total", "counter", "Ended tasks by outcome; retried and crashed count attempts.", [
            ("", {"status": status, "function": function, "queue": queue}, sums.get(status, 0))
            for (function, queue), sums in sorted(whole.items())
            for status in COUNTS if status != "started"]),      # an attempt that is put back decreases it
        ("task_run_seconds", "histogram", "Running time of successful attempts.", histogram)]


# upkeep/retention.py ---------------------------------------------------------
#
# Retention: removes old rows and files, a little at a time.

KEEP_ROWS = 500                 # maximum of rows that are read or removed at once
KEEP_ROUND_SECONDS = 3600.0
# Columns for _oldest(): the id of a row, when it was made, and when it ended (NULL: it has not).
TASK_AGES = "id, created_at, CASE WHEN status IN ENDED THEN finished_at END FROM task"
ACTIVITY_AGES = "id, at, at FROM activity"
NEWER_SLOT = "at<(SELECT max(at) FROM slot AS one WHERE one.schedule_id=slot.schedule_id)"
KEEP_SETTINGS = ("keep_days", "keep_activity_days", "keep_hours_days")


class Retention:
    """The retention of tasks, activity and figures, by the settings of an admin.

    Every hour old rows are removed, the oldest first. A wrong clock must not empty the tables. So nothing is
    removed for a while if the last run seems to be more than a day ago, or in the future. This lasts for
    keep_days, but at least one day and at most 30.
    """

    def __init__(self, database, settings, actions,
                 rollup):
        self._database, self._settings, self._actions = database, settings, actions
        self._rollup, self._clock = rollup, database.clock
        self._round = None       # a running _portions(), or None
        self._rounds = Every(KEEP_ROUND_SECONDS, self._clock)

    def prune(self):
        """Remove one portion; return True if rows were removed, so that there may be more."""
        if self._round is None:
            now = self._clock.now()
            if not self._rounds.begin_if_due() or not self._trusts_clock(now):
                return False
            self._round = self._portions(now)
        removed = next(self._round, None)
        if removed is None:
            self._round = None
        return bool(removed)

    def _trusts_clock(self, now):
        """Return False for some days after the clock jumped, and store the time of this run."""
        state = recall(self._database, "keeping") or {"seen": 0.0, "from": 0.0}
        seen = state["seen"]
        start = state["from"]
        doubt = 86400 * min(30, max(1, seen and self._settings.get("keep_days")))
        patience = doubt if start > seen else 86400     # in doubt, longer pauses between runs are no jump
        if not seen - KEEP_ROUND_SECONDS <= now <= seen + patience:
            start = now + doubt
        if start != state["from"] or abs(now - seen) >= KEEP_ROUND_SECONDS:
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, "keeping", {"seen": now, "from": start})
        return now >= start

    def _portions(self, now):
        """Remove old rows in portions. After each portion yield True if it had rows to remove."""
        tasks, activity, hours = [
            now - days * 86400 if days else -math.inf
            for days in map(self._settings.get, KEEP_SETTINGS)]
        for ids in self._oldest(TASK_AGES, tasks, now):
            self._actions.prune(ids, tasks)
            yield bool(ids)
        for ids in self._oldest(ACTIVITY_AGES, activity, now):
            folded = self._rollup.mark()  # the last folded row stays, so that SQLite assigns higher ids
            gone = [(row_id,) for row_id in ids if row_id < folded]
            if gone:
                with self._database.transaction(durable=False) as transaction:
                    transaction.run_many_later("DELETE FROM activity WHERE id=?", gone)
            yield bool(gone)
        for table, key, is_old, values in (
                *((table, key, "span>0 AND at<?", (hours,)) for table, key in HOUR_KEYS.items()),
                ("slot", ("schedule_id", "at"), NEWER_SLOT + " AND at<?", (activity,)),
                ("alert", ("id",), "ended_at<?", (activity,)),
                ("delivery", ("id",), "next_at IS NULL AND created_at<?", (activity,)),
                ("token", ("id",), "scope=? AND created_at<?", (INVITATION, now - INVITATION_SECONDS)),
                ("request", ("owner_id", "key"), "created_at NOT BETWEEN ? AND ?",
                 (now - REQUEST_SECONDS, now + REQUEST_SECONDS))):      # the clock may have been set back
            keys = ", ".join(key)
            while self._database.value(
                    "SELECT 1 FROM %s WHERE %s LIMIT 1" % (table, is_old), values):
                with self._database.transaction(durable=False) as transaction:
                    transaction.run(
                        "DELETE FROM %s WHERE (%s) IN (SELECT %s FROM %s WHERE %s LIMIT ?)" % (
                            table, keys, keys, table, is_old), (*values, KEEP_ROWS))
                yield True

    def _oldest(self, ages, before, now):
        """Yield the ids of rows that ended before a time, in portions, until rows were made after it."""
        low, created = 0, -math.inf
        while not before <= created <= now:
            rows = self._database.all(
                "SELECT %s WHERE id>? ORDER BY id LIMIT ?" % ages, (low, KEEP_ROWS))
            if not rows:
                return
            low, created, _ = rows[-1]
            yield [row[0] for row in rows if row[2] is not None and row[2] < before]


# upkeep/finding_table.py -----------------------------------------------------
#
# FINDINGS: each thing that can be wrong here, or is worth knowing.
#
# A row has the texts of a finding for all places that report it. These are `check`, the page This host, the
# sentence above task lists, and alerts. A row with an alert title can open an alert, under the same code.





READ_ALL_BYTES = 16 << 20       # size of the largest database that is checked while a browser waits
BACKUPS = "backups"             # folder of the daily backups, in the data folder
BAD, NOTE, FINE = "bad", "note", "ok"         # in alphabetical order the worst comes first


class FindingRow(NamedTuple):
    """A row of FINDINGS. The texts are templates, filled with the values of a Finding."""

    topic: "str"                          # heading in `check`; empty: `check` does not show it
    verdict: "str"
    text: "str" = ""                      # the fault
    remedy: "str" = ""                    # the advice
    service_code: "str" = ""              # code of the service's state, for every user
    service_text: "str" = ""              # sentence above task lists
    alert: "str" = ""                     # title of the alert; empty: it opens none
    causes: "str" = ""                    # codes of the alerts that explain this one and silence it
    page: "str" = "#/settings/host"       # place of the page that shows more of the alert; a template


_ROWS = {
    "unknown": ("", BAD, "{why}"),
    "files_mixed": ("Program", BAD, "missing, or of another version: {names}",
                    "copy all files of one version"),
    "scrypt_missing": ("Program", BAD, "{why}"),
    "program_open": ("Program", BAD, "every user of this machine can change the program",
                     "let only the owner write (755 for folders, 644 for files): chmod o-w {paths}"),
    "program_of_other": ("Program", NOTE, "the program's files belong to {owner}, but it runs as {user}: "
                         "run cron jobs and commands as {user}, too; other sites that run as {user} can "
                         "change jobqueue's data"),
    "data_none": ("Data", NOTE, "there is none yet; it is made when the page is opened first"),
    "data_open": ("Data", BAD, "other users can read it", "chmod 700 '{folder}'; if that changes "
                  "nothing, move the folder to another disk"),
    "address_open": ("Data", BAD, "other users can read the database's password",
                     "chmod 600 {path}"),
    "data_gone": ("Data", BAD, "it is gone or cannot be read", "",
                  "storage", "The data folder is gone or cannot be read."),
    "data_closed": ("Disk", BAD, "nothing can be written to {folder} ({why})", "if the disk or your quota "
                    "is full, remove files; else check its owner and rights"),
    "database_closed": ("Disk", BAD, "the database cannot be written",
                        "give the owner the right to write (600): chmod u+w {paths}"),
    "locks_missing": ("Disk", NOTE, "this disk has no file locks (flock): tasks of a killed worker "
                      "begin again only some minutes later"),
    "disk": ("Disk", BAD, "only {free} MB are left", "remove files: otherwise it will soon be impossible "
             "to add tasks",
             "", "", "the disk is nearly full"),
    "disk_full": ("Disk", BAD, "", "remove files: the disk is full",
                  "storage", "The disk is full: nothing can be added or recorded."),
    "old_password": ("Admin", BAD, "the password of {name} was kept without scrypt: set it anew"),
    "no_admin": ("Admin", NOTE, "none yet",
                 "open the page and make the first admin, with the code in {file}"),
    "code_left": ("Admin", NOTE, "a setup-code file is left: its code can give an admin a new password",
                  "delete {files}"),
    "exposed": ("Exposure", BAD, "the web server delivers private files: {addresses}", "put .htaccess "
                "there, or move all files out of the web site: the handbook (Hosts) shows how"),
    "htaccess_missing": ("Exposure", BAD, "the data folder has no .htaccess: a browser that guesses the "
                         "name of a file can fetch it", "move the folder data out of the web site; in its "
                         "place make a text file named data with the folder's new path"),
    "unlooked": ("Exposure", NOTE, "", "log in as an admin and open the page This host: it tests whether a "
                 "browser can fetch private files"),
    "door_shared": ("Web server", NOTE, "other sites of this machine can read the data",
                    "copy the line WSGIDaemonProcess of static/hosts/apache.conf, with your account "
                    "after user="),
    "http_open": ("Web server", NOTE, "by HTTP, passwords can be read on the way",
                  "open the page by https://: nearly every host offers it"),
    "proxy_unknown": ("Web server", NOTE, "visitors come through a proxy, {client}; its headers about them "
                      "and about HTTPS are ignored: if it belongs to your host, write {client} into the "
                      "setting trusted_proxies; if only HTTPS is not noticed, set https to always"),
    "slices_awaited": ("", NOTE, "", "", "cron_wait", MODE_WORDS["slice"] + "."),
    "no_worker": ("", BAD, "tasks wait, and {why}", "", "", "", "no worker starts", "disk"),
    "service_missing": ("Workers", BAD, "No service runs",
                        "let the host keep worker.py --service running", "no_worker",
                        "No task starts: worker.py --service is not running."),
    "cron_missing": ("Workers", BAD, "No cron comes", "add a line for cron in your host's panel: the page "
                     "This host shows it",
                     "cron_wait", "Waiting for cron, which has not come lately."),
    "cron_awaited": ("", NOTE, "", "",
                     "cron_wait", "Waiting for cron{often}; it came last at {at}."),
    "off": ("Workers", NOTE, "no task is run", "set NbMaxWorker to 1 or more: it is 0",
            "off", "No task starts: the number of workers is set to 0."),
    "start_failed": ("Workers", BAD, "{why} at {at}", "",
                     "no_worker", "No task starts: {why}. Next try {next}."),
    "busy": ("", NOTE, "", "", "busy", "All workers are busy{more}."),
    "starting": ("", NOTE, "", "", "starting", "A worker is being started."),
    "paused": ("", NOTE, "", "", "paused", "{words}"),
    "sample_failed": ("Worker", NOTE, "the sample task {id} failed",
                      "open its page for the reason"),
    "versions_differ": ("Machines", NOTE, "here is jobqueue {version}, but {names}",
                        "copy the same files to all machines"),
    "clock_differs": ("Machines", NOTE, "the clock here is {seconds:.0f} s {way} the database's clock, "
                      "which jobqueue uses", "set the time of this machine by NTP"),
    "nobody_comes": ("Cron", NOTE, "due tasks and schedules wait until a page is opened",
                     "add a line for cron in your host's panel, or let cron call the tick address: the "
                     "page This host shows both"),
    "log": ("Journal", BAD, "the database's log has grown to {size} MB, because a program keeps reading "
            "the database: end that program (the command fuser '{path}' prints its number)", "", "storage",
            "The database's log has grown to {size} MB, because a program keeps reading the database.",
            "the database's log is long", "disk"),
    "damaged": ("Database", BAD, "{name} is damaged: {why}",
                "stop everything, then run python3 jobqueue.py restore FILE with a backup"),
    "backup_none": ("Backup", NOTE, "", "download one from the page This host, set backup_hour for "
                    "one every day, or run python3 jobqueue.py {command} FILE"),
    "backup": ("Backup", NOTE, "the last one was made {days} days ago", "download one from the page "
               "This host, set backup_hour for one every day, or run python3 jobqueue.py {command} FILE",
               "", "", "the backup is old"),
    "backup_failed": ("Backup", BAD, "the daily one failed: {why}", "make room on the disk",
                      "", "", "the daily backup failed", "disk"),
    "copy_lags": (
        "Journal", NOTE, "the server does not wait until its replica has a change: if the replica must take "
        "over, the newest changes may be lost",
        "let the admin of PostgreSQL name the replica in synchronous_standby_names"),
    "snapshot_old": (
        "Journal", NOTE, "{holder} of the server has kept old rows from being removed for more than "
        "10 minutes: tasks start more slowly",
        "let the admin of PostgreSQL end that session or drop that slot"),
    "no_function": ("Functions", NOTE, "{file} declares no function yet: README shows how"),
    "tasks_differ": ("Functions", NOTE,
                     "programs used different files as their tasks.py within the last hour: {places}",
                     "set the environment variable JOBQUEUE_TASKS to the same path for the web server, for "
                     "cron and in shells"),
    "hint_unclear": ("Functions", NOTE, "unknown types: {names}; their values are not converted, and the "
                     "form sends texts",
                     "use a type that the handbook lists (Functions), or leave out the type hint"),
    "samples": ("Functions", FINE, "", "write the functions of your tasks into tasks.py"),
    "code": ("Functions", BAD, "{file} cannot be read: {why}", "", "code_error",
             "Nothing new starts: tasks.py cannot be read: {why}.", "tasks.py is broken"),
    "problem": ("Schedules", BAD, "{name}: {why}", "", "", "",
                "a schedule cannot add its task", "code", "#/schedules/{subject}"),
    "schedule_warning": ("Schedules", NOTE, "{name}: {why}"),
    "missed": ("", NOTE, "{name}: the run added at {at} was late, or replaced several missed runs",
               "", "", "",
               "a schedule was missed", "disk,no_worker", "#/schedules/{subject}"),
    "held_up": ("", NOTE, "{name}: {why}", "", "", "",
                "a schedule waits long", "disk,code,no_worker", "#/schedules/{subject}"),
    "task_lost": ("Tasks", BAD, "the worker of task {id} has given no sign of life for {seconds:.0f} s, "
                  "and no other worker takes the task over", "open the page or run python3 jobqueue.py tick"),
    "waiting": ("Tasks", NOTE, "the oldest task that could start has waited {minutes} min", "", "", "",
                "tasks wait long", "disk,code,no_worker", "#/tasks?status=pending"),
    "failed": ("", NOTE, "{why} (task {id})", "", "", "", "failed"),
    "clock_back": ("Tasks", BAD, "the clock is {seconds:.0f} s behind the newest event that jobqueue "
                   "recorded: it was set back, or was wrong before",
                   "correct the clock; if it shows the right time already, this ends at {at}"),
    "channel_fails": ("Alerts", BAD, "{channel} to {recipient} failed: {error}",
                      "fix this, then send a test alert: python3 jobqueue.py alert test"),
    "links_missing": ("Alerts", NOTE, "messages have no links, because page_address is not set",
                      "set page_address to the address of this page, such as https://example.org/jq"),
    "outbox_waits": ("Alerts", BAD, "messages have waited for over {minutes} min: the process that sends "
                     "them does not start")}
FINDINGS = {code: FindingRow(*row) for code, row in _ROWS.items()}
HIDDEN = {"why": "an admin sees why", "more": ""}


class Finding:
    """A row of FINDINGS that is true here, with its texts filled in.

    `subject` tells findings of the same code apart, such as two schedules. `since` is when the finding
    began. If `is_for_everyone` is False, the finding is no part of the service's state.
    """

    def __init__(self, code, since=None, is_for_everyone=True,
                 subject="", **values):
        row = FINDINGS[code]
        self.code, self.subject, self.since = code, subject, since
        self.topic, self.verdict = row.topic, row.verdict
        self.text, self.remedy = row.text.format(**values), row.remedy.format(**values)
        # The last words of a worker may contain paths, servers and passwords.
        self.service_code = row.service_code if is_for_everyone else ""
        self.service_text = row.service_text.format(**values)
        self.service_text_for_users = row.service_text.format(**{**values, **HIDDEN})

    def __str__(self):
        """Return the text and the remedy in one line."""
        return ": ".join(filter(None, (self.text, self.remedy)))


def readable_time(moment):
    """Return a moment for people, without fractions of a second."""
    return iso(moment)[:19].replace("T", " ") + " UTC"


# upkeep/conditions.py --------------------------------------------------------
#
# Conditions: the findings that also open alerts.
#
# `check`, the sentence above task lists (describe_service()) and the alerts use this class. So each condition
# is defined once. Its texts stand in FINDINGS.

MISSED_SECONDS = 600.0
LOW_DISK_BYTES = 256 << 20


def disk_findings(folder, is_open=False):
    """Yield a finding while the file system of a folder is nearly full."""
    free = free_bytes(folder)
    if free < LOW_DISK_BYTES * (1.2 if is_open else 1):
        yield Finding("disk", free=free >> 20)


class Conditions:
    """The conditions of this queue that open alerts.

    Each method has the name of its row of FINDINGS. It yields a finding for each subject for which the
    condition holds. `is_open` says that its alert is open: some conditions have hysteresis.
    """

    def __init__(self, database, settings, claims, tick_history,
                 modes, catalogue):
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._modes, self._catalogue = tick_history, modes, catalogue

    def disk(self, is_open=False):
        """Yield a finding while the file system of the data is nearly full."""
        return disk_findings(self._database.folder, is_open)

    def log(self, _=False):
        """Yield a finding while the database's log is too long, because a program keeps reading it."""
        size = self._database.wal_bytes() if self._database.journal == "wal" else 0
        if size > WAL_ALARM_BYTES:
            yield Finding("log", size=size >> 20, path=self._database.path)

    def code(self, _=False):
        """Yield a finding while tasks.py cannot be read."""
        error = self._catalogue.state()["error"]
        if error:
            place = ", line ".join(str(error[key]) for key in ("file", "line") if error[key])
            why = error["message"] + (" (%s)" % place if place else "")
            yield Finding("code", file=TASKS_FILE, why=why)

    def no_worker(self, _=False):
        """Yield a finding while tasks could start, no worker is there, and none can be expected."""
        if not self._settings.get("NbMaxWorker") or not self._claims.claimable(1):
            return
        if self._database.value("SELECT 1 FROM worker WHERE mode<>'remote' AND state<>'starting'"):
            return
        mode, failure = self._modes.decide().mode, recall(self._database, "start_failure")
        why = self.absent_starter(mode) or failure and failure["message"]
        if why:
            yield Finding("no_worker", why=why)

    def absent_starter(self, mode):
        """Return a clause about the absent program that should start or be a worker in this mode, or None."""
        if mode == "service" and not self._tick_history.has_service():
            return "worker.py --service is not there"
        if mode != "cron":
            return None
        cron = self._tick_history.visitor("cron")
        return None if cron and cron["comes"] else "cron has not come lately"

    def waiting(self, is_open=False):
        """Yield a finding while the oldest task that could start has waited longer than alert_wait."""
        limit, waited = self._settings.get("alert_wait"), self._claims.longest_wait()
        if not limit or not waited or not self._settings.get("NbMaxWorker"):
            return
        if waited > max(limit, 2 * (self._tick_history.period() or 0)) / (2 if is_open else 1):
            yield Finding("waiting", minutes=int(waited // 60))

    def missed(self, _=False):
        """Yield a finding for each schedule whose newest run was late, or stood for several missed runs."""
        least = MISSED_SECONDS + (self._tick_history.period() or 0)
        for row in self._database.all("""
                SELECT id, name, function, late_at, coalesce((
                    SELECT max(at) FROM slot WHERE schedule_id=schedule.id AND task_id IS NULL
                    AND message LIKE 'missed, %' AND at BETWEEN last_at-86400*31 AND last_at
                ), last_at) AS first_at
                FROM schedule WHERE paused=0 AND gone_at IS NULL AND late_at>=last_at"""):
            if row["late_at"] - row["first_at"] > least:
                yield _schedule_finding("missed", row, at=time_of_day(row["late_at"]))

    def held_up(self, _=False):
        """Yield a finding for each schedule whose runs wait for a task that does not end."""
        now = self._database.clock.now()
        for row in self._database.all("SELECT id, name, function, overlap, %s FROM schedule "
                                      "WHERE paused=0 AND gone_at IS NULL" % HELD_UP):
            why = why_held_up(row, now)
            if why:
                yield _schedule_finding("held_up", row, why=why)

    def problem(self, _=False):
        """Yield a finding for each schedule that could not add its task the last time."""
        for row in self._database.all("SELECT id, name, function, problem FROM schedule "
                                      "WHERE paused=0 AND gone_at IS NULL AND problem IS NOT NULL"):
            yield _schedule_finding("problem", row, why=row["problem"])

    def backup(self, _=False):
        """Yield a finding while the newest backup is older than alert_backup_days."""
        last, days = recall(self._database, "backup"), self._settings.get("alert_backup_days")
        if not last or not days:
            return
        age = self._database.clock.now() - last["at"]
        if age >= 86400 * days:
            yield Finding("backup", days=int(age // 86400),
                          command="backup" if self._database.journal else "export")

    def backup_failed(self, _=False):
        """Yield a finding from a failed daily backup until the next one that succeeds."""
        state = self._settings.get("backup_hour") and recall(self._database, "daily_backup")
        if state and state["error"]:
            yield Finding("backup_failed", why=state["error"])


def schedule_name(row):
    """Return the name of a schedule in a finding."""
    return "the schedule %d (%s)" % (row["id"], row["name"] or row["function"])


def _schedule_finding(code, row, **values):
    return Finding(code, subject=str(row["id"]), name=schedule_name(row), **values)


# upkeep/alerts.py ------------------------------------------------------------
#
# Alerts: conditions, their recipients, when they open and end.
#
# All decisions come from rows. Any process that ticks may make them, at most once in WATCH_SECONDS:
#
# 1. Conditions returns the findings that hold now. The activity since the last check shows the tasks that
#    failed for good.
# 2. A finding makes a row of `alert`, unless another alert explains it. There is one row for each code and
#    subject. An alert opens when two checks in a row have its finding, and ends at a check without it. The
#    alert of a failed task opens at once. It ends a day after the last such failure, or three hours
#    after it if the failed tasks of its function were retried or deleted.
# 3. Recipients get a message when an alert opens, then daily while it is open. They also get one when an
#    alert ends, if they were told that it opened.
# 4. Messages are rows of `delivery`. A child process sends them (upkeep/notifications.py), so no request,
#    claim or tick waits for a server. After a message there is no check for PACE_SECONDS. The next message
#    covers that time.















WATCH_SECONDS = 30.0
PACE_SECONDS = 180.0            # between two messages: a recipient gets at most 20 an hour
REPEAT_SECONDS = 86400.0        # between two messages about an open alert
QUIET_SECONDS = 86400.0         # a failure's alert ends after this time without such a failure
SETTLED_SECONDS = 3 * 3600.0    # or after this time, if all that failed was retried or deleted
# Functions with failed tasks, or with tasks that were retried and have not ended.
STILL_FAILED = """SELECT DISTINCT function FROM task WHERE status=FAILED AND finished_at>=?
    OR status IN (PENDING, SCHEDULED, WAITING) AND attempts>0 OR status=RUNNING AND attempts>1"""
IS_OPEN = "(seen_at>opened_at OR code='failed')"
ALERT_GROUPS_MAX = 50           # open alerts and new groups of failures; then one group for each function
UNTIL_IT_ENDS = 253402300799.0  # the year 9999
MUTES = {"1h": 3600.0, "8h": 8 * 3600.0, "end": UNTIL_IT_ENDS, "no": None}
MESSAGE_LINES = 30              # each of at most 500 characters: some receivers take only 20 kB
LOG_LINES, LOG_LINE_CHARACTERS = 10, 200        # of a task's output in a message
CONTROLS = r"\x1b\[[0-9;?]*[ -/]*[@-~]|[^\t -~\xa0-\U0010ffff]"        # colours, bells
LOG_PIECES = 50                 # stored pieces of output that are read for these lines
SENDING_MARK, SENDING_SECONDS = "sending.mark", 60.0    # mark and longest life of a sending process
CUT_OFF = "There was no answer in time."        # the error of a message until its try has ended
SEND_PAUSES = (0.0, 60.0, 300.0, 1800.0, 7200.0)        # seconds before each try
UNSENT_SECONDS = 900            # age at which `check` reports unsent messages


class Trouble(NamedTuple):
    """The sentence of a finding. For failures also their number since the last check, and when they began."""

    text: "str"
    number: "int" = 0
    since: "float | None" = None


class Recipient(NamedTuple):
    """A receiver of messages: its channel, and its name in `delivery`."""

    channel: "str"                        # mail, webhook or function
    name: "str"


def failure_group(function, kind, message):
    """Return the group of a failure: its function, error, and message without quoted words and numbers."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", message or "")
    return shorten("%s: %s %s" % (function, kind or "", re.sub(r"\S*\d\S*", "0", words)), 200)


def why_failed(row):
    """Return the error of a failed task in one line, from its row of activity and its columns."""
    if row["error_type"] and row["message"] == row["reason"]:    # the function gave no text
        return "%s without a message" % row["error_type"]
    return shorten(": ".join(filter(None, (row["error_type"], row["message"]))), 300)


def last_lines(db, task_id):
    """Return the last lines that a task printed, as plain text, with the secrets of its arguments masked."""
    row = db.one("SELECT attempts, arguments FROM task WHERE id=?", (task_id,))
    if row is None:
        return []
    pieces = db.all("SELECT text FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT %d"
                    % LOG_PIECES, (task_id, row["attempts"]))
    text = "".join([piece["text"] for piece in pieces][::-1])
    for secret in secret_texts(shown_arguments(row["arguments"])):
        text = text.replace(secret, MASKED)
    lines = [re.sub(CONTROLS, "", line.rstrip("\r").rpartition("\r")[2])
             for line in text.rstrip().split("\n")]
    return [line if len(line) <= LOG_LINE_CHARACTERS else line[:LOG_LINE_CHARACTERS - 1] + "…"
            for line in lines[-LOG_LINES:] if text]


def page_link(settings, place, transaction=None):
    """Return the address of a place of the page, such as #/tasks/7; "" if page_address is not set."""
    addresses = settings.get("page_address", transaction).split()
    return "%s/%s" % (addresses[0].rstrip("/"), place) if addresses else ""


def recipients_of_alerts(settings, transaction=None):
    """Return the recipients of alerts. A webhook's address is a secret, so its label is its name."""
    mail, webhook, function = (settings.get(setting, transaction) for setting in (
        "alert_mail", "alert_webhook", "alert_function"))
    return [*(Recipient("mail", name) for name in re.findall(MAIL_ADDRESS, mail)),
            *(Recipient("webhook", web_label(name)) for name in webhook.split()),
            *(Recipient("function", name) for name in function.split())]


def post_message(transaction, recipient, content,
                 now, tries=0):
    """Add a message to `delivery`; return its id."""
    channel, name = recipient
    lines, surplus = content["lines"][:MESSAGE_LINES], len(content["lines"]) - MESSAGE_LINES
    shown = {**content, "lines": lines + ["... and %d more." % surplus] * (surplus > 0)}
    return transaction.insert("delivery", {
        "channel": channel, "recipient": name, "content": dump_json(shown),
        "tries": tries, "next_at": now, "created_at": now})


def is_message_due(database, now):
    """Return True if a message waits to be sent at this time."""
    return bool(database.value("SELECT 1 FROM delivery WHERE next_at<=? LIMIT 1", (now,)))


class Alerts:
    """The alerts: opens, reports and ends them, and informs owners of their tasks; see check()."""

    def __init__(self, database, settings, conditions,
                 starter):
        self._database, self._settings, self._clock = database, settings, database.clock
        self._conditions, self._starter = conditions, starter

    def tick(self):
        """Check the conditions unless another process has just done so, and send due messages."""
        now = self._clock.now()
        if renew_mark(self._database.folder / "alerts.mark", now, WATCH_SECONDS):
            self.check(now)
            self.send(now)

    def send(self, now):
        """Start the process that sends messages, if one is due and no such process runs."""
        if is_message_due(self._database, now) and renew_mark(
                self._database.folder / SENDING_MARK, now, SENDING_SECONDS + 5):
            with contextlib.suppress(*START_ERRORS):    # the next tick tries again
                self._starter.start_helper("--send")

    def check(self, now):
        """Compare the findings with the rows of `alert`, and store the changes in one transaction.

        If another process was faster, this one finds a changed state and stores nothing.
        """
        before = recall(self._database, "alerts") or {}
        told_at = before.get("told_at", 0)
        if seconds_since(told_at, now) < PACE_SECONDS:
            return
        newest = self._database.value("SELECT max(id) FROM activity") or 0
        span = before.get("seen", newest), newest
        rows = {(row["code"], row["subject"]): row for row in self._database.all(
            "SELECT * FROM alert WHERE ended_at IS NULL ORDER BY id")}
        troubles = {**self._held({code for code, _ in rows}), **self._failures(rows, span)}
        ended, unsettled = self._asked_for(span), self._unsettled(rows, now)
        if before.get("seen") == newest and not (troubles or rows):
            return
        with self._database.transaction(durable=False) as transaction:
            if (recall(transaction, "alerts") or {}) != before:
                return
            self._open(transaction, rows, troubles, now)
            over = [row for key, row in rows.items()
                    if key not in troubles and self._end(transaction, row, now, unsettled)]
            if self._post_messages(transaction, troubles, over, now) or ended:
                told_at = now
            for email, content in ended.items():
                post_message(transaction, ("mail", email), content, now)
            state = {"seen": newest, "told_at": told_at}
            if state != before:
                remember(transaction, "alerts", state)

    def _held(self, open_codes):
        """Return all findings with alerts that hold now, except failed tasks."""
        return {(code, finding.subject): Trouble(shorten(str(finding), 500))
                for code, row in FINDINGS.items() if row.alert and code != "failed"
                for finding in getattr(self._conditions, code)(code in open_codes)}

    def _failures(self, rows,
                  span):
        """Return the tasks that failed for good, by group. Failures because of a predecessor are left out."""
        groups = {}
        for row in self._database.all("""
                SELECT activity.task_id, activity.function, activity.message, activity.at,
                    task.error_type, task.reason
                FROM activity LEFT JOIN task ON task.id=activity.task_id
                WHERE activity.id>? AND activity.id<=? AND activity.event='failed'
                    AND (task.reason IS NULL OR task.reason<>'dependency')
                ORDER BY activity.id""", span):
            key = "failed", failure_group(row["function"], row["error_type"], row["message"])
            if key not in rows and key not in groups and len(groups) + len(rows) >= ALERT_GROUPS_MAX:
                key = "failed", "%s: and others" % row["function"]
            finding = Finding("failed", id=row["task_id"], why=why_failed(row))
            number, since = groups[key][1:] if key in groups else (0, row["at"])
            groups[key] = Trouble(str(finding), number + 1, since)
        return groups

    def _asked_for(self, span):
        """Return {mail address: message} about ended tasks whose owners asked for a mail."""
        ended = collections.defaultdict(list)
        for row in self._database.all("""
                SELECT activity.event, activity.message, task.id, task.function, task.error_type,
                    task.reason, user.email
                FROM activity JOIN task ON task.id=activity.task_id
                JOIN user ON user.id=task.owner_id AND user.disabled=0 AND user.email IS NOT NULL
                WHERE activity.id>? AND activity.id<=? AND task.notify IS NOT NULL AND (
                    activity.event='failed'
                    OR activity.event IN ('succeeded', 'cancelled') AND task.notify='end')
                ORDER BY activity.id""", span):
            ended[row["email"]].append(row)
        return {email: self._ended_message(rows) for email, rows in ended.items()}

    def _ended_message(self, rows):
        """Return the message about ended tasks, with the log of the first that failed, or of the first."""
        lines, links = [], [page_link(self._settings, "#/tasks/%d" % row["id"]) for row in rows]
        for row, link in zip(rows, links):
            verb, why = "was cancelled" if row["event"] == "cancelled" else row["event"], why_failed(row)
            line = "Task %d (%s) %s%s" % (row["id"], row["function"], verb, why and ": " + why)
            lines.append("%s. %s" % (line.rstrip("."), link) if link else line)
        main = next((place for place, row in enumerate(rows) if row["event"] == "failed"), 0)
        task_id = rows[main]["id"]
        return {"kind": "task", "lines": lines, "link": links[main],
                "task": task_id, "log": last_lines(self._database, task_id),
                "subject": "%d of your tasks ended" % len(rows) if len(rows) > 1
                else lines[0].partition(":")[0].partition(".")[0]}

    @staticmethod
    def _open(transaction, rows,
              troubles, now):
        """Add or update the rows of findings. Remove a row that never opened if its finding is gone."""
        causes = {code for code, _ in (*troubles, *rows)}
        for (code, subject), (text, count, since) in troubles.items():
            row = rows.get((code, subject))
            if row:
                opened_at = min(now - 1, row["opened_at"])      # the clock may have been set back
                transaction.run(
                    "UPDATE alert SET text=?, count=count+?, opened_at=?, seen_at=? WHERE id=?",
                    (text, count, opened_at, now, row["id"]))
            elif not causes.intersection(FINDINGS[code].causes.split(",")):
                transaction.ensure("alert", {        # another process may have added it
                    "code": code, "subject": subject, "text": text, "count": max(1, count),
                    "opened_at": now if since is None else min(now, since), "seen_at": now})
        transaction.run("DELETE FROM alert WHERE seen_at<>? AND NOT %s" % IS_OPEN, (now,))

    def _unsettled(self, rows, now):
        """Return the subjects of functions with tasks that are failed still or tried again.

        Alerts with a failure within SETTLED_SECONDS are left out: they do not end yet.
        """
        opened = {row["subject"]: row["opened_at"] for row in rows.values()
                  if row["code"] == "failed" and now - row["seen_at"] >= SETTLED_SECONDS}
        if not opened:
            return set()
        names, _ = self._database.read_within(STILL_FAILED, (min(opened.values()),), LOOK_SECONDS)
        return {subject for subject in opened if names is None or subject.endswith("…")
                or any(subject.startswith("%s:" % name) for name, in names)}

    @staticmethod
    def _end(transaction, row, now, unsettled):
        """End an alert whose finding is gone; return True if it ended.

        Failures end after QUIET_SECONDS, or after SETTLED_SECONDS if their subject is not in `unsettled`.
        """
        least = (0.0 if row["code"] != "failed" else
                 QUIET_SECONDS if row["subject"] in unsettled else SETTLED_SECONDS)
        return now - row["seen_at"] >= least and transaction.update(
            "alert", {"ended_at": now}, "id=? AND ended_at IS NULL", (row["id"],)) == 1

    def _post_messages(self, transaction, troubles, over,
              now):
        """Add the due message to `delivery` for each recipient; return False if none was added."""
        rows = transaction.all(
            "SELECT * FROM alert WHERE ended_at IS NULL AND %s "
            "AND (muted_until IS NULL OR muted_until<=?) ORDER BY id" % IS_OPEN, (now,))
        news = [row for row in rows if self._is_due(row, now)]
        over = [row for row in over if row["told"] and (row["muted_until"] or 0) <= now]
        recipients = recipients_of_alerts(self._settings, transaction) if news or over else []
        if not recipients:
            return False
        lines = [line for row in news for line in self._lines(row, troubles, self._link(row, transaction))]
        lines += [" ".join(filter(None, (
            "Resolved: %s, from %s to %s. The last report was: %s." % (
                _title(row), readable_time(row["opened_at"]), readable_time(now), row["text"].rstrip(".")),
            self._link(row, transaction)))) for row in over]
        first, more = (news + over)[0], len(news + over) - 1
        subject = "%s%s%s" % (
            "" if news else "Resolved: ", _title(first), ", and %d more" % more if more else "")
        content = {
            "kind": "alert", "thread": first["id"], "lines": lines, "subject": subject,
            "link": self._link(first, transaction)}
        task_id = next(filter(None, (about_alert(row)["task"] for row in news)), None)
        if task_id:
            content["task"], content["log"] = task_id, last_lines(transaction, task_id)
        for recipient in recipients:
            post_message(transaction, recipient, content, now)
        transaction.run_many_later("UPDATE alert SET told=told+1, told_at=? WHERE id=?",
                              [(now, row["id"]) for row in news])
        return True

    def _link(self, row, transaction):
        return page_link(self._settings, about_alert(row)["link"], transaction)

    @staticmethod
    def _is_due(row, now):
        told_at = row["told_at"] or -math.inf
        return row["seen_at"] > told_at and now - told_at >= REPEAT_SECONDS

    @staticmethod
    def _lines(row, troubles, link):
        """Yield the lines of a message: the alert with its link, then the findings that it explains."""
        since = "" if not row["told"] else " It began at %s." % iso(row["opened_at"])
        count = "" if row["count"] == 1 else " %d times." % row["count"]
        yield "%s: %s.%s%s%s" % (_title(row), row["text"].rstrip("."), count, since, link and " " + link)
        for (code, _), (text, *_) in troubles.items():
            if row["code"] in FINDINGS[code].causes.split(","):
                yield "  Therefore: " + text

    def all(self):
        """Return all open alerts, the latest ended ones, and the state of each recipient."""
        rows = self._database.all("SELECT * FROM alert WHERE ended_at IS NULL AND %s "
                                  "ORDER BY id DESC" % IS_OPEN)
        ended = self._database.all("SELECT * FROM alert WHERE ended_at IS NOT NULL "
                                   "ORDER BY ended_at DESC, id DESC LIMIT %d" % PAGE_ROWS)
        return {"alerts": [alert_json(row) for row in (*rows, *ended)],
                "channels": list(self.channels()),
                "page_address": page_link(self._settings, "") or None}

    def channels(self):
        """Yield the state of each recipient: its newest tried message, and when one was last sent.

        `sending` is True while a message of the last minute is being sent.
        """
        now = self._clock.now()
        for channel, recipient in recipients_of_alerts(self._settings):
            last, sent = (self._database.one(
                "SELECT * FROM delivery WHERE channel=? AND recipient=? AND (sent_at IS NOT NULL "
                "%s) ORDER BY id DESC LIMIT 1" % more, (channel, recipient))
                for more in ("OR error IS NOT NULL", ""))
            sending = self._database.value(
                "SELECT 1 FROM delivery WHERE channel=? AND recipient=? AND sent_at IS NULL AND created_at>? "
                "AND (next_at<=? OR error=?) LIMIT 1",
                (channel, recipient, now - SENDING_SECONDS, now, CUT_OFF))
            yield {"channel": channel, "recipient": recipient, "last": last["id"] if last else None,
                   "sending": sending is not None,
                   "sent_at": iso(sent["sent_at"] if sent else None),
                   "error": last["error"] if last else None,
                   "next_at": iso(last["next_at"] if last else None)}

    def mute(self, alert_id, how):
        """Send no message about an alert for a while; NotFound if it is not open."""
        seconds = MUTES[how]
        until = seconds and min(self._clock.now() + seconds, UNTIL_IT_ENDS)
        with self._database.transaction() as transaction:
            if not transaction.update("alert", {"muted_until": until},
                                      "id=? AND ended_at IS NULL", (alert_id,)):
                raise NotFound("There is no open alert %d." % alert_id)
            return alert_json(transaction.row("SELECT * FROM alert WHERE id=?", (alert_id,)))

    def test(self):
        """Send each recipient a test message, which is tried only once."""
        now, recipients = self._clock.now(), recipients_of_alerts(self._settings)
        if not recipients:
            raise Conflict("There are no recipients: enter an address, a webhook or a function, and save it.")
        content = {"kind": "test", "subject": "a test", "lines": [
            "This is a test of the alerts of jobqueue. Nothing is wrong."]}
        with self._database.transaction() as transaction:
            deliveries = [{"id": post_message(transaction, recipient, content, now, len(SEND_PAUSES) - 1),
                     "channel": recipient.channel, "recipient": recipient.name} for recipient in recipients]
        self.send(now)
        return {"deliveries": deliveries}


def _title(row):
    """Return the title of an alert. The title of a failure names the function."""
    title = FINDINGS[row["code"]].alert
    return "%s %s" % (row["subject"].partition(":")[0], title) if row["code"] == "failed" else title


def about_alert(row):
    """Return the place of the page for an alert; for failures also the function, error and newest task.

    These are read from the row's subject and text: failure_group() and why_failed() begin with them.
    """
    code, subject, text = row["code"], row["subject"], row["text"]
    if code != "failed":
        return {"function": None, "error": None, "task": None,
                "link": FINDINGS[code].page.format(subject=quote(subject, safe=""))}
    function = subject.partition(":")[0]
    kind = re.match(r"(?:%s: )?(\w[\w.]*)(?:: | without )" % re.escape(function), text)
    error = kind[1] if kind and subject != "%s: and others" % function else None
    task = re.search(r"\(task (\d+)\)", text)
    group = {"status": "failed", "function": function, **({"error": error} if error else {}),
             "ended_since": iso(row["opened_at"])}
    return {"function": function, "error": error, "task": int(task[1]) if task else None,
            "link": "#/tasks/" + task[1] if task and row["count"] == 1 else "#/tasks?" + urlencode(group)}


def alert_json(row):
    """Return an alert as the API has it."""
    times = ("opened_at", "seen_at", "told_at", "muted_until", "ended_at")
    return {**row, **{name: iso(row[name]) for name in times}, "title": _title(row), **about_alert(row)}


# upkeep/summary.py -----------------------------------------------------------
#
# Summaries: a sentence each about yesterday and last week, on the page and by mail.
#
# A user who wants the mail has a row with `summary`, JSON {"hour", "zone"}, and `summary_at`, the next time.
# Any process that ticks may post it: the statement that moves `summary_at` changes a row only once.
#
# The figures are those of Metrics. The sums of all users' tasks are kept for whole hours of UTC. So in a zone
# with an offset of a half hour, a day begins at the full hour before.

SUMMARY = or_null(about(object_of(("hour", "zone"), hour=integer_within(0, 23), zone=TEXT),
                        "when the user gets a summary by mail: an hour, in a time zone; null: never"))
NAMES_SHOWN = 3                 # functions that failed most, in a sentence
WEEKLY_BACK_SECONDS = 15 * DAY  # contains two Mondays
POST_SECONDS = 1.0              # of one tick; the next tick goes on
TOO_FAR_SECONDS = 2.0 * DAY
# The sentences of a span without such tasks, without failures, with failures, with missing figures.
SENTENCES = {
    "yesterday": ("Yesterday no task succeeded or failed.",
                  "Yesterday: %d succeeded in %s of work, none failed.",
                  "Yesterday: %d succeeded in %s of work, %d failed (%s).",
                  "Yesterday: not all tasks of this user could be counted."),
    "last_week": ("Last week no task succeeded or failed.",
                  "Last week (Monday to Sunday): %d succeeded in %s of work, none failed.",
                  "Last week (Monday to Sunday): %d succeeded in %s of work, %d failed (%s).",
                  "Last week (Monday to Sunday): not all tasks of this user could be counted.")}


class Span(NamedTuple):
    """A day or a week that is over: its name in SENTENCES, and its first and last moment."""

    name: "str"
    start: "float"
    end: "float"


def known_zone(zone):
    """Return the zone, or UTC if this machine does not know it: a browser may know more zones."""
    try:
        parse_rule("@daily", zone)
    except Invalid:
        return "UTC"
    return zone


def past_spans(zone, now):
    """Return yesterday and the last whole week, from Monday on, in a time zone; in UTC if it is unknown."""
    spans = []
    for name, rule in (("yesterday", "0 0 * * *"), ("last_week", "0 0 * * 1")):
        moments = parse_rule(rule, known_zone(zone)).upcoming(now - WEEKLY_BACK_SECONDS, 20)
        start, end = [at for at in moments if at <= now][-2:]
        spans.append(Span(name, start, end))
    return spans


def next_summary(hour, zone, now):
    """Return when the next summary is due; Invalid if the zone is unknown."""
    return parse_rule("0 %d * * *" % hour, zone).next_after(now)


def summary_columns(summary, now):
    """Return the columns of a user for a summary by mail, or for none; Invalid for a wrong zone."""
    return {"summary": summary and dump_json(summary),
            "summary_at": summary and next_summary(**summary, now=now)}


class Part(NamedTuple):
    """A part of a span whose figures are read in the same steps, a word of STEPS."""

    start: "int"
    end: "int"
    step: "str"


def _parts(span, has_sums):
    """Return the parts of a span. Stored sums of whole six hours are fewer to read than those of hours."""
    start, end = (int(at) // HOUR * HOUR for at in span[1:])
    first, last = -(-start // SIX_HOURS) * SIX_HOURS, end // SIX_HOURS * SIX_HOURS
    parts = Part(start, first, "hour"), Part(first, last, "6h"), Part(last, end, "hour")
    return [part for part in parts if part.start < part.end] if has_sums else [Part(start, end, "hour")]


class Summaries:
    """The summaries of all tasks or of one owner's, and the mails with them."""

    def __init__(self, database, settings, metrics):
        self._database, self._settings, self._metrics = database, settings, metrics

    def sentences(self, zone, now, owner_id=None):
        """Return {name of a span: its sentence}. With `owner_id` only this user's tasks count."""
        return {span.name: self.sentence(span, owner_id) for span in past_spans(zone, now)}

    def sentence(self, span, owner_id):
        """Return the sentence of a span."""
        none_ended, succeeded, failed, incomplete = SENTENCES[span.name]
        seconds, counts, failures = 0.0, 0, collections.Counter[str]()
        for start, end, step in _parts(span, owner_id is None):
            figures = self._metrics.read(start, end, step, lambda *_: True, owner_id, owner_id)
            if figures["counted_from"] and figures["counted_from"] > iso(start):
                return incomplete
            seconds += figures["totals"]["ran"]["sum"]
            counts += figures["totals"]["succeeded"]
            failures.update({row["name"]: row["failed"] for row in figures["functions"] if row["failed"]})
        if not counts and not failures:
            return none_ended
        whole = max(1, round(seconds))
        shown = counts, span_text(whole if whole < HOUR else whole // 60 * 60)
        names = ["%s %d" % pair for pair in failures.most_common(NAMES_SHOWN)]
        return failed % (*shown, sum(failures.values()), ", ".join(
            names + ["…"] * (len(failures) > NAMES_SHOWN))) if failures else succeeded % shown

    def post_due(self):
        """Add the mail of each user whose summary is due to `delivery`, for POST_SECONDS at most.

        A time that is more than TOO_FAR_SECONDS away comes from a wrong clock or a long standstill. Then no
        mail is added, and only the next time is stored.
        """
        now, until = self._database.clock.now(), self._database.clock.monotonic() + POST_SECONDS
        for user in self._database.all("""
                SELECT * FROM user WHERE (summary_at<=? OR summary_at>?) AND summary IS NOT NULL
                AND disabled=0 AND email IS NOT NULL""", (now, now + TOO_FAR_SECONDS)):
            if self._database.clock.monotonic() < until:
                with print_errors("making the summary of %s" % user["name"]):
                    self._post(user, now)

    def _post(self, user, now):
        """Add the mail of a user and store the next time, unless another process has just done so."""
        wish, due = json.loads(user["summary"]), user["summary_at"]
        zone = known_zone(wish["zone"])
        content = self._content(user, zone, due, now) if abs(now - due) < TOO_FAR_SECONDS else None
        with self._database.transaction(durable=False) as transaction:
            if transaction.update("user", {"summary_at": next_summary(wish["hour"], zone, now)},
                                  "id=? AND summary_at=?", (user["id"], due)) and content:
                post_message(transaction, ("mail", user["email"]), content, now)

    def _content(self, user, zone, due, now):
        """Return the mail of a user, with the week if it is over since the mail before.

        Admins and viewers get the figures of all users' tasks. None if another process was faster.
        """
        if self._database.value("SELECT summary_at FROM user WHERE id=?", (user["id"],)) != due:
            return None
        yesterday, week = past_spans(zone, now)
        spans = [yesterday, week] if week.end > due - DAY else [yesterday]
        lines = [self.sentence(span, user["id"] if user["role"] == "user" else None) for span in spans]
        link = page_link(self._settings, "#/overview")
        return {"kind": "summary", "subject": lines[0].rstrip("."), "link": link,
                "lines": [*lines, *filter(None, [link])]}


# upkeep/notifications.py -----------------------------------------------------
#
# Mail, webhooks, a function of tasks.py: a process of its own sends.
#
# The process is started like a worker. It sends the due rows of `delivery`, records the results, and ends
# after SENDING_SECONDS at the latest. Before each try it stores the number of tries and the time of the next
# one. So a try counts even if the process is killed, and a server that hangs holds up no other row. A
# permanent refusal (Refused) ends the tries. Errors are stored without passwords and webhook addresses.

STEP_SECONDS = 10.0             # timeout of each step of a conversation with a server
SENDMAIL_SECONDS = 30.0
MAIL_WORD_CHARACTERS = 75       # maximum of an encoded word (RFC 2047, section 2)
PASSWORD_FILE_BYTES = 200
SENDMAIL_PLACES = "/usr/sbin:/usr/lib:/usr/local/sbin"
REFUSED_FOR_GOOD = (400, 404, 410, 413, 422)    # HTTP statuses of permanent refusals


class Refused(Exception):
    """A permanent refusal: another try would be refused, too."""


class WebhookPost(NamedTuple):
    """The path and body for a host of SHAPES. The body is None for other hosts: they get a signed one."""

    path: "str"
    body: "JsonObject | None"


def log_heading(content):
    """Return the lines above the last lines of a task's log: none without a log."""
    return ["", "The last lines of task %d:" % content["task"]] if content.get("log") else []


def message_text(content):
    """Return the text of a message without its subject."""
    return "\n".join([*content["lines"], *log_heading(content), *content.get("log", [])])


def header_text(text):
    """Return a text that is safe in a mail header: no line ends, nothing that looks like an encoded word."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+", " ", text)
    return shorten(text.replace("=?", "= ?"), 150)


def mail_message(content, sender, recipient, row):
    """Return the mail of a row of `delivery`. Each try sends the same mail.

    Header encodes text that is not ASCII by RFC 2047. EmailMessage would write encoded words that are too
    long or empty, or lose spaces between them (python/cpython issues 136052 and 144156).
    """
    from email import charset, policy
    from email.header import Header
    from email.message import Message
    from email.utils import format_datetime
    message = Message(policy.compat32.clone(
        linesep="\r\n", max_line_length=MAIL_WORD_CHARACTERS + 1))
    domain, moment = sender.rpartition("@")[2], int(row["created_at"] * 1000)
    subject = "[jobqueue] " + header_text(content["subject"])
    is_plain = subject.isascii() and max(map(len, subject.split())) <= MAIL_WORD_CHARACTERS
    message["From"], message["To"] = sender, recipient
    message["Subject"] = Header(subject, "us-ascii" if is_plain else "utf-8", header_name="Subject")
    message["Date"] = format_datetime(datetime.fromtimestamp(row["created_at"], timezone.utc))
    message["Message-ID"] = "<jobqueue.%d.%d@%s>" % (row["id"], moment, domain)
    if "thread" in content:
        message["References"] = "<jobqueue.alert.%d@%s>" % (content["thread"], domain)
    message["Auto-Submitted"], message["X-Auto-Response-Suppress"] = "auto-generated", "All"
    quoted = charset.Charset("utf-8")
    quoted.body_encoding = charset.QP
    message.set_payload(storable(message_text(content)) + "\n", quoted)
    return message


def send_mail(settings, recipient, content, row):
    """Send a row by the mail server in the settings, or by the host's sendmail if none is set."""
    import socket
    user = settings.get("mail_user")
    sender = settings.get("mail_from") or (user if "@" in user else "%s@%s" % (
        user_name(os.getuid()), socket.getfqdn()))
    message = mail_message(content, sender, recipient, row)
    if settings.get("mail_server"):
        _send_by_server(settings, user, sender, recipient, message)
    else:
        _send_by_sendmail(sender, recipient, message)


def _send_by_server(settings, user, sender, recipient,
                    message):
    import smtplib
    import ssl
    host, _, port = settings.get("mail_server").rpartition(":")
    context, is_safe = ssl.create_default_context(), port == "465"
    connect = functools.partial(smtplib.SMTP_SSL, context=context) if is_safe else smtplib.SMTP
    place = host.strip("[]"), int(port)
    try:
        with contextlib.closing(connect(*place, timeout=STEP_SECONDS)) as server:
            server.ehlo()
            if not is_safe and server.has_extn("starttls"):
                server.starttls(context=context)
                is_safe = True
            if user and not is_safe:
                raise Refused("The mail server offers no TLS; the password is not sent without.")
            if user:
                _log_in(server, user, _password(settings))
            server.send_message(message, sender, [recipient])
            with contextlib.suppress(OSError, smtplib.SMTPException):       # the message is sent already
                if server.sock:
                    server.sock.settimeout(1)
                server.quit()
    except smtplib.SMTPRecipientsRefused as error:
        raise _as_refused(*error.recipients[recipient]) from None
    except smtplib.SMTPResponseException as error:
        raise _as_refused(error.smtp_code, error.smtp_error) from None


def _log_in(server, user, password):
    """Log in, with UTF-8 (RFC 4616) for characters outside ASCII, which smtplib refuses."""
    import base64
    server.ehlo_or_helo_if_needed()
    if (user + password).isascii():
        server.login(user, password)
    elif "PLAIN" in server.esmtp_features.get("auth", "").upper().split():
        credentials = base64.b64encode(("\0%s\0%s" % (user, password)).encode("utf-8")).decode("ascii")
        code, words = server.docmd("AUTH", "PLAIN " + credentials)
        if code != 235:
            raise _as_refused(code, words)
    else:
        raise Refused("This mail server takes only ASCII in the mail user and the password: choose others.")


def _as_refused(code, words):
    text = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
    return (Refused if code >= 500 else OSError)("%d %s" % (code, text))


def _password(settings):
    path = settings.password_file()
    if path is None:
        raise Refused("The mail server wants a password: set mail_password_file on the host.")
    try:
        with open(path, "rb") as file:
            password = file.read(PASSWORD_FILE_BYTES + 1).decode("utf-8-sig").strip()
    except (OSError, ValueError):
        raise Refused("mail_password_file cannot be read: it must be the path of a file") from None
    if not password.isprintable() or len(password) > PASSWORD_FILE_BYTES:
        raise Refused("mail_password_file must hold one line of at most %d characters: %s"
                      % (PASSWORD_FILE_BYTES, path))
    return password


def _sendmail_path():
    import shutil
    return shutil.which("sendmail", path="%s:%s" % (os.environ.get("PATH", ""), SENDMAIL_PLACES))


def can_send_mail(settings):
    """Return True if a mail server is set, or the host has a sendmail."""
    return bool(settings.get("mail_server") or _sendmail_path())


def _send_by_sendmail(sender, recipient, message):
    import subprocess
    path = _sendmail_path()
    if path is None:
        raise Refused("There is no sendmail here: set mail_server.")
    text = message.as_bytes().replace(b"\r\n", b"\n")
    try:
        done = subprocess.run([path, "-i", "-f", sender, "--", recipient], input=text,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SENDMAIL_SECONDS)
    except subprocess.TimeoutExpired:
        raise OSError("sendmail did not end within %d s" % SENDMAIL_SECONDS) from None
    if done.returncode:
        raise OSError("sendmail ended with exit code %d: %s" % (
            done.returncode, shorten(done.stdout.decode("utf-8", "replace"), 300)))


def is_inside(address):
    """Return True for an address inside this host or its network. Webhooks need a setting to use one."""
    from ipaddress import IPv6Address, ip_address
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and (parsed.sixtofour or parsed.teredo or int(parsed) >> 125 != 1):
        return True                     # leads to IPv4, or is no address of one host (RFC 4291)
    return parsed.is_multicast or not parsed.is_global


def _cut(text, most, encoding="utf-8", unit=1):
    """Return a text of at most `most` code units, each of `unit` bytes. A cut text ends with an ellipsis."""
    data = text.encode(encoding, "replace")
    if len(data) <= most * unit:
        return text
    return data[:most * unit - len("…".encode(encoding))].decode(encoding, "ignore") + "…"


def shaped(parts, content):
    """Return the WebhookPost of a message, in the shape that the host expects."""
    query = "?" + parts.query if parts.query else ""
    for hosts, shape in SHAPES:
        if re.fullmatch(hosts, parts.hostname or ""):
            return shape(parts.path or "/", query, content)
    return WebhookPost((parts.path or "/") + query, None)


def _with_block(content, most, escape=str):
    """Return a message of at most `most` characters before `escape`, its log as a block between ```."""
    text = "\n".join([content["subject"], *content["lines"], *log_heading(content)])
    log = "\n".join(content.get("log", [])).replace("```", "\'\'\'")[-most // 2:]
    block = "\n```\n%s\n```" % log if log else ""
    return escape(text[:most - len(block)] + block)


def _for_slack(path, query, content):
    from html import escape
    return WebhookPost(path + query, {"text": _with_block(
        content, 3000, functools.partial(escape, quote=False))})


def _for_discord(path, query, content):
    return WebhookPost(path + query, {"content": _with_block(content, 2000),
                                      "allowed_mentions": {"parse": []}})


def _for_telegram(path, query, content):
    # Drop parse_mode: error messages contain characters that Telegram's markup does not accept.
    more = {name: value for name, value in parse_qsl(query[1:]) if name != "parse_mode"}
    text = "\n".join((content["subject"], message_text(content)))
    return WebhookPost(path, {**more, "text": _cut(text, 4096, "utf-16-le", 2)})


def _for_ntfy(path, query, content):
    # ntfy shows the title above the message.
    click = {"click": content["link"]} if content.get("link") else {}
    return WebhookPost("/" + query, {"topic": path.strip("/"), "title": content["subject"],
                                     "message": _cut(message_text(content), 4000), **click})


SHAPES = ((r"hooks\.slack\.com", _for_slack), (r"(.+\.)?discord(app)?\.com", _for_discord),
          (r"api\.telegram\.org", _for_telegram), (r"ntfy\..+|.+\.ntfy\..+", _for_ntfy))


def webhook_key(folder):
    """Return the secret that signs webhooks. It is made at first use; the site's owner may replace it."""
    import base64
    path = private_path(find_database(folder), "webhook-secret.txt")
    former = folder / "webhook-secret.txt"      # the name in earlier versions, which can be guessed
    if former.exists() and not path.exists():
        former.rename(path)
    if not path.exists():
        write_private(path, "whsec_%s\n" % base64.b64encode(os.urandom(32)).decode("ascii"))
    try:
        text = path.read_text("ascii").strip()
        return base64.b64decode(text[6:] if text.startswith("whsec_") else text, validate=True)
    except ValueError:
        raise Refused("webhook-secret-WORD.txt in the data folder must be whsec_ and base64.") from None


def _signed(folder, content, row,
            now):
    """Return the (headers, body) of a signed request by the rules of Standard Webhooks."""
    import base64
    import hmac
    name, moment = "msg_%d_%d" % (row["id"], int(row["created_at"] * 1000)), "%d" % now
    body = dump_json({"type": "jobqueue." + content["kind"], "timestamp": iso(row["created_at"]),
                      "data": {name: content.get(name) for name in ("subject", "lines", "link", "log")}})
    signed_text = ("%s.%s.%s" % (name, moment, body)).encode("utf-8")
    sign = base64.b64encode(hmac.digest(webhook_key(folder), signed_text, "sha256")).decode("ascii")
    return {"webhook-id": name, "webhook-timestamp": moment,
            "webhook-signature": "v1," + sign}, body


def open_outside(host, port, inside):
    """Return a socket to a host; Refused if an address is inside, unless `inside` allows it.

    The name is resolved only once: all addresses are checked, and the first that answers is used. So a
    second look-up cannot lead elsewhere.
    """
    import socket
    places = [(str(place[0]), int(place[1])) for *_, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM)]
    if not inside and any(is_inside(address) for address, _ in places):
        raise Refused("The webhook leads into this host or its network; the setting "
                      "alert_webhook_inside allows that.")
    for place in places[:-1]:
        with contextlib.suppress(OSError):      # such as an IPv6 address on a host without IPv6
            return socket.create_connection(place, STEP_SECONDS / 2)
    return socket.create_connection(places[-1], STEP_SECONDS)


def send_webhook(settings, url, content, row, folder,
                 now):
    """Send a row of `delivery` to a webhook, in the shape that its host expects."""
    import http.client
    import ssl
    parts = urlsplit(url)
    host, is_safe = parts.hostname or "", parts.scheme == "https"
    path, shaped_body = shaped(parts, content)
    headers, body = ({}, dump_json(shaped_body)) if shaped_body else _signed(folder, content, row, now)
    sock = open_outside(host, parts.port or (443 if is_safe else 80),
                        settings.get("alert_webhook_inside") == "yes")
    with contextlib.closing(sock):
        if is_safe:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection = http.client.HTTPConnection(host, parts.port or 80)
        connection.sock = sock          # the port above is only for the header Host
        with contextlib.closing(connection):
            connection.request("POST", path, body.encode("utf-8"), {
                "Content-Type": "application/json", "User-Agent": "jobqueue/" + VERSION, **headers})
            _judge_answer(connection.getresponse())


def _judge_answer(answer):
    if 200 <= answer.status < 300:
        return
    words = "%d %s" % (answer.status, shorten(storable(answer.reason), 100))
    if answer.status in REFUSED_FOR_GOOD:
        raise Refused(words)
    raise OSError(words + (", and is not followed" if answer.status < 400 else ""))


class DeliverySender:
    """The sender of the rows of `delivery`. `add` adds a task, `find` returns a function of tasks.py."""

    def __init__(self, database, settings, add,
                 find):
        self._database, self._settings, self._clock = database, settings, database.clock
        self._add, self._find = add, find

    def run(self):
        """Send all due messages."""
        with print_errors("telling"):
            for row in iter(self._next_due, None):
                self._send(row)
        with contextlib.suppress(OSError):
            os.unlink(self._database.folder / SENDING_MARK)     # so the next process may start at once

    def _next_due(self):
        """Count a try of the next due row; return the row, or None if no row is due."""
        now = self._clock.now()
        with self._database.transaction(durable=False) as transaction:
            row = transaction.one(
                "SELECT * FROM delivery WHERE next_at<=? ORDER BY next_at, id LIMIT 1", (now,))
            if row is None:
                return None
            tries = row["tries"] + 1
            next_at = now + SEND_PAUSES[tries] if tries < len(SEND_PAUSES) else None
            taken = {"tries": tries, "next_at": next_at, "error": CUT_OFF}
            transaction.update("delivery", taken, "id=?", (row["id"],))
        return {**row, **taken}

    def _send(self, row):
        """Send a row whose try was counted, and record the result."""
        changes = {"next_at": None, "error": None}
        content = json.loads(row["content"])
        try:
            self._by_channel(row, content)
            changes["sent_at"] = self._clock.now()
        except Exception as error:      # an answer of a server may cause any error
            changes["error"] = self._words(error)
            if not isinstance(error, Refused):
                changes["next_at"] = row["next_at"]
        with self._database.transaction(durable=False) as transaction:
            transaction.update("delivery", changes, "id=? AND tries=?", (row["id"], row["tries"]))

    def _by_channel(self, row, content):
        channel, recipient = row["channel"], row["recipient"]
        if not self._may_be_told(content["kind"], Recipient(channel, recipient)):
            raise Refused("This recipient was removed meanwhile.")
        if channel == "mail":
            send_mail(self._settings, recipient, content, row)
        elif channel == "webhook":
            url = next(address for address in self._settings.get("alert_webhook").split()
                       if web_label(address) == recipient)
            send_webhook(self._settings, url, content, row, self._database.folder,
                         self._clock.now())
        else:
            self._add_task(recipient, content, row)

    def _may_be_told(self, kind, recipient):
        if kind in ("task", "summary"):
            return bool(self._database.value(
                "SELECT 1 FROM user WHERE email=? AND disabled=0 LIMIT 1", (recipient.name,)))
        return recipient in recipients_of_alerts(self._settings)

    def _add_task(self, name, content, row):
        arguments = {"subject": content["subject"], "text": message_text(content)}
        function = self._find(name)
        names = function["schema"]["properties"] if function else arguments
        try:
            self._add(name, {key: value for key, value in arguments.items() if key in names},
                      unique_key="alert %d" % row["id"])
        except (Invalid, Conflict) as error:
            raise Refused(error.detail) from None

    def _words(self, error):
        """Return the text of an error on one line, with secrets replaced."""
        words, hooks = str(error) or type(error).__name__, self._settings.get("alert_webhook")
        secrets = [part for address in hooks.split() for part in (address, *address.split("/", 3)[3:])]
        with contextlib.suppress(Refused):
            secrets += [_password(self._settings)] if self._settings.get("mail_user") else []
        for secret in secrets:
            words = words.replace(secret, "•••") if len(secret) > 3 else words
        return shorten(storable(words), 300)


# upkeep/plan.py --------------------------------------------------------------
#
# The plan of running and pending tasks: when each will begin and end.
#
# 1. Metrics keep the times of the latest attempts of each function. RunTimes has their mean, their variance
#    and the standard error of the mean.
# 2. A Plan goes through the first PLANNED_ROWS tasks of each queue, in the order of claims. The limits of
#    queue and owner say when a task may start. Of the workers that are free by then, it gets the one that
#    became free last. If none is free by then, it gets the first that becomes free. A task takes the mean time
#    of its function's attempts, multiplied by the expected number of attempts.
# 3. The variances of the tasks of a worker are added. The variance of a start is divided by the number of
#    workers that may share the tasks before it. The time until a start or an end is assumed to be lognormal
#    (the method of Fenton and Wilkinson). A forecast is the range from its 20th to its 80th percentile.
# 4. The start of a task behind the planned ones is extrapolated from the queue's pace.

                   # [from, to], as RFC 3339




PLANNED_ROWS = 500                 # tasks of each queue that are planned
MIX_ROWS = 10_000               # maximum of tasks ahead of a task that are counted by function
BEFORE_MAX = 200_000            # maximum of tasks ahead of a task that are counted
# After this progress and running time (seconds), the end of a task is predicted from its progress.
PROGRESS_LEAST, PROGRESS_SECONDS = 0.05, 10.0
PROGRESS_DEVIATION = 0.2            # standard deviation of that prediction, as a share of the remaining time
TRIED = ("succeeded", "failed", "retried")      # statuses of the attempts whose times are used
PERCENTILE = 0.8416             # standard deviations from the median to the 20th or 80th percentile
PAUSE_MAX = 30 * 86400          # longest predicted pause before a retry, in seconds
# Pairs (limit, step). An end of a range that is less than `limit` seconds ahead is rounded to `step`
# seconds: the earlier end down, the later end up.
ROUNDED = ((60, 10), (900, 60), (3600, 300), (21600, 900), (86400, 3600), (math.inf, 21600))


class QueuedTask(NamedTuple):
    """A pending or scheduled task: columns of its row."""

    id: "int"
    owner_id: "int"
    queue: "str"
    function: "str"
    priority: "int"
    turn: "int"
    retries_left: "int"
    max_retries: "int"
    retry_delay: "float"
    retry_backoff: "float"


PENDING_ROWS = ("SELECT %s FROM task %s WHERE status=PENDING AND queue=? ORDER BY priority DESC, turn, id "
                "LIMIT ?" % (", ".join(QueuedTask._fields), BY_CLAIM))
RUNNING_ROWS = ("SELECT id, owner_id, queue, function, worker_id, started_at, progress FROM task %s "
                "WHERE status=RUNNING" % BY_CLAIM)
BEFORE = ("count(*) FROM (SELECT {1} FROM task {0} WHERE status=PENDING AND queue=? AND priority>? "
          "UNION ALL SELECT {1} FROM task {0} WHERE status=PENDING AND queue=? AND priority=? "
          "AND (turn, id)<(?, ?) LIMIT ?) AS found")
COUNT_BEFORE = "SELECT " + BEFORE.format(BY_CLAIM, "1")
MIX_BEFORE = "SELECT function, %s GROUP BY function" % BEFORE.format(BY_CLAIM, "function")


class RunTimes(NamedTuple):
    """The times of a function's attempts in seconds, and the share that did not succeed."""

    mean: "float"
    variance: "float"
    standard_error: "float"                        # standard error of the mean
    unsuccessful: "float"


class Moment(NamedTuple):
    """A predicted moment in seconds from now, with its uncertainty."""

    at: "float" = 0.0
    variance: "float" = 0.0
    standard_error: "float" = 0.0                  # standard error of `at`

    def after(self, times, attempts=1.0, pause=0.0):
        """Return the end of attempts that begin at this moment; `pause` is the sum of their pauses."""
        return Moment(self.at + attempts * times.mean + pause,
                      self.variance + attempts * times.variance,
                      self.standard_error + attempts * times.standard_error)

    def range(self, now):
        """Return [from, to], rounded outwards if they differ; None if the moment is not known."""
        if self.at == math.inf:
            return None
        sigma = math.sqrt(math.log(1 + (self.variance + self.standard_error ** 2) / max(self.at, 0.01) ** 2))
        low, high = (self.at * math.exp(way * PERCENTILE * sigma - sigma ** 2 / 2) for way in (-1, 1))
        if low == high:
            return [iso(now + low)] * 2
        small, large = (next(to for less, to in ROUNDED if ahead < less) for ahead in (low, high))
        return [iso(math.floor((now + low) / small) * small),
                iso(math.ceil((now + high) / large) * large)]


NOW, NEVER = Moment(), Moment(math.inf)
UNKNOWN = RunTimes(math.inf, 0.0, 0.0, 0.0)


class WorkerSlot:
    """A present or future worker: its queues, its functions (None: all), and when it is free."""

    def __init__(self, queues, functions, free=NOW):
        self.queues, self.functions, self.free = queues, functions, free

    def serves(self, task):
        """Return True if the worker may claim a task."""
        return task.queue in self.queues and (
            self.functions is None or task.function in self.functions)


class Choice(NamedTuple):
    """The start of a task, its worker, and how many workers may work on the tasks before it."""

    start: "Moment"
    slot: "WorkerSlot | None"
    sharing: "int" = 1


class Expected(NamedTuple):
    """The predicted start and end of a task."""

    start: "Moment"
    end: "Moment"


def order_of(task):
    """Return the sort key of a task: claims take the tasks of a queue in this order."""
    return -task.priority, task.turn, task.id


def before_values(task):
    """Return the values that BEFORE binds for a task, except the limit."""
    return task.queue, task.priority, task.queue, task.priority, task.turn, task.id


def times_of(seconds, unsuccessful=0):
    """Return the RunTimes of attempts.

    Equal times, too, have a variance: one deviation of half the mean is added to those of the attempts. The
    divisor stays the number of attempts.
    """
    count, mean = len(seconds), sum(seconds) / len(seconds)
    variance = (sum((each - mean) ** 2 for each in seconds) + (mean / 2) ** 2) / count
    return RunTimes(mean, variance, math.sqrt(variance / count), unsuccessful / count)


class Plan:
    """A plan of the running and pending tasks at one moment: when they will start and end."""

    def __init__(self, database, runs,
                 crews, crew_of_worker):
        self._database, self.now = database, database.clock.now()
        tried = {name: [run for run in latest if run.status in TRIED] for name, latest in runs.items()}
        self.runs = {name: latest for name, latest in tried.items() if latest}
        self._times = {name: times_of([run.seconds for run in latest],
                                      sum(run.status != "succeeded" for run in latest))
                       for name, latest in self.runs.items()}
        self.slots = [slot for crew in crews.values() for slot in crew]
        self.queues = {name: row for slot in self.slots for name, row in slot.queues.items()}
        max_running = {
            name: row["max_running"] for name, row in self.queues.items()}
        max_running.update(map(tuple, database.all("SELECT id, max_running FROM user")))
        # For each limited queue (name) and owner (id): when each of its max_running slots becomes free.
        self._limits = {key: [NOW] * count for key, count in max_running.items()
                        if count is not None and count < len(self.slots)}
        self._rates = {name: next_start(row, self.now) for name, row in self.queues.items()
                       if row["rate_count"] is not None}
        self._rate_allows_at = {name: Moment(max(0.0, rate.at - self.now))
                                for name, rate in self._rates.items()}
        self._ends = collections.defaultdict(list)     # of running tasks, by queue
        for row in database.all(RUNNING_ROWS):
            self._add_running(row, crews.get(crew_of_worker.get(row["worker_id"], ("", None, None)), []))
        self._plan({name: [QueuedTask(*row) for row in database.all(PENDING_ROWS, (name, PLANNED_ROWS))]
                    for name in sorted(self.queues)})

    def _add_running(self, row, crew):
        """Store when a running task ends. One free slot of its worker's crew counts as taken until then."""
        end = self.end_of_running(row)
        self._ends[row["queue"]].append(end)
        self._hold(row["queue"], row["owner_id"], end)
        for slot in [slot for slot in crew if slot.free == NOW][:1]:
            slot.free = end

    def end_of_running(self, row):
        """Return when a running task, given by its row, will end. It may be newer than the plan."""
        elapsed = max(0.0, self.now - row["started_at"])
        progress = row["progress"] or 0
        remaining_times = [run.seconds - elapsed for run in self.runs.get(row["function"], ())
                  if run.seconds > elapsed]
        if progress >= PROGRESS_LEAST and elapsed >= PROGRESS_SECONDS:
            remaining = elapsed * (1 - progress) / progress
            return Moment(remaining, (PROGRESS_DEVIATION * remaining) ** 2)
        if row["function"] not in self.runs:
            return NEVER
        # A task that ran longer than all known attempts is assumed to need as long again.
        return NOW.after(times_of(remaining_times or [elapsed]))

    def _plan(self, lanes):
        """Give tasks to workers, by priority. Queues take turns at the same priority."""
        self.lanes, self.planned = lanes, {}
        self.partly_read = {name for name, lane in lanes.items() if len(lane) == PLANNED_ROWS}
        lowest_planned = max((lanes[name][-1].priority for name in self.partly_read), default=-math.inf)
        ranks = collections.Counter()
        order = []
        for task in (task for lane in lanes.values() for task in lane):
            ranks[task.queue, task.priority] += 1
            order.append((-task.priority, ranks[task.queue, task.priority], task.queue, task))
        for *_, task in sorted(order):
            if task.priority < lowest_planned:   # unread tasks of another queue may come first
                self.planned[task.id] = Expected(NEVER, NEVER)
                continue
            start, slot, sharing = self._choose(task)
            self.planned[task.id] = self._expect(task, start, sharing)
            if slot:
                slot.free = start.after(self._times.get(task.function, UNKNOWN),
                                        self._expected_attempts(task)[0])
                self._hold(task.queue, task.owner_id, slot.free)
            if task.queue in self._rate_allows_at:
                interval = self._rates[task.queue].interval
                self._rate_allows_at[task.queue] = start._replace(at=start.at + interval)

    def _choose(self, task):
        """Choose the worker of a task that is claimed after all tasks planned so far."""
        limits = [self._limits[key] for key in (task.queue, task.owner_id) if key in self._limits]
        ready = max([NOW, self._rate_allows_at.get(task.queue, NOW), *map(min, limits)])
        serving = sorted((slot for slot in self.slots if slot.serves(task)),
                         key=lambda slot: slot.free)
        if not serving:
            return Choice(NEVER, None)
        slot = ([slot for slot in serving if slot.free <= ready] or serving[:1])[-1]
        return Choice(max(ready, slot.free), slot, min([len(serving), *map(len, limits)]))

    def _hold(self, queue, owner_id, end):
        """Count a task against the limits of its queue and its owner until it ends."""
        for ends in [self._limits[key] for key in (queue, owner_id) if key in self._limits]:
            ends[ends.index(min(ends))] = end

    def _expected_attempts(self, task):
        """Return how many attempts a task takes on average, and the sum of the pauses between them."""
        chance, attempts, pauses = 1.0, 1.0, 0.0
        unsuccessful = self._times.get(task.function, UNKNOWN).unsuccessful
        tried = task.max_retries - task.retries_left
        for number in range(tried, min(task.max_retries, tried + 100)) if unsuccessful else ():
            chance *= unsuccessful
            attempts += chance
            pause = task.retry_delay * task.retry_backoff ** min(number, 100)
            pauses += chance * min(1.1 * pause, PAUSE_MAX)
        return attempts, pauses

    def _expect(self, task, start, sharing):
        start = start._replace(variance=start.variance / sharing)
        times = self._times.get(task.function, UNKNOWN)
        return Expected(start, start.after(times, *self._expected_attempts(task)))

    def of_pending(self, task):
        """Return the start and end of a pending task.

        If a task is not in the plan, it begins when the planned task behind it was to begin. Without such a
        task it comes after the planned ones.
        """
        if task.id in self.planned:
            return self.planned[task.id]
        lane = self.lanes[task.queue]
        index = bisect.bisect([order_of(each) for each in lane], order_of(task))
        if index < len(lane):
            return self._expect(task, self.planned[lane[index].id].start, 1)
        if task.queue in self.partly_read:
            return self._expect(task, self._start_behind(task), 1)
        start, _, sharing = self._choose(task)
        return self._expect(task, start, sharing)

    def of_scheduled(self, task, seconds):
        """Return the start and end of a task that is due in `seconds`."""
        return self._expect(task, Moment(seconds), 1)

    def empty_at(self, name):
        """Return when the running and pending tasks of a queue will have ended; None if there are none.

        If not all of them are planned, the start of a task behind them stands for the rest.
        """
        last = QueuedTask(INTEGER_MAX, 0, name, "", -INTEGER_MAX, 0, 0, 0, 0.0, 0.0)
        ends = [self._start_behind(last)] if name in self.partly_read else []
        ends += self._ends.get(name, ())
        ends += [self.planned[task.id].end for task in self.lanes.get(name, ())]
        return max(ends, default=None)

    def _start_behind(self, task):
        """Return the start of a task behind the planned ones, extrapolated from the queue's pace."""
        means = {name: times.mean for name, times in self._times.items()}
        values = before_values(task)
        count = self._database.value(COUNT_BEFORE, (*values, BEFORE_MAX))
        mix = dict(map(tuple, self._database.all(MIX_BEFORE, (*values, MIX_ROWS))))
        work = sum(number * means.get(name, math.inf) for name, number in mix.items())
        lane = self.lanes[task.queue]
        planned_work = sum(means.get(each.function, 0.0) for each in lane[1:])
        first, last = (self.planned[each.id].start for each in (lane[0], lane[-1]))
        if not mix:                     # no pending task is left before it
            return NOW
        if not planned_work or last.at == math.inf or work == math.inf:
            return NEVER
        scale = work / sum(mix.values()) * count / planned_work
        return Moment(first.at + (last.at - first.at) * scale, last.variance * scale,
                      last.standard_error * scale)


# upkeep/forecast.py ----------------------------------------------------------
#
# Forecasts: when tasks begin and end, when a queue is empty, or why that is unknown.
#
# A Plan (upkeep/plan.py) is used for CACHE_SECONDS, or longer if planning would take more than SHARE of the
# process's time. The tasks before a task in its queue are counted anew for each forecast.

SHARE = 0.03                    # largest share of a process's time for plans
# A task is slow if it runs for more than SLOW_SECONDS and SLOW_TIMES the 95th percentile of its function. The
# percentile needs SLOW_ATTEMPTS successful attempts.
SLOW_TIMES, SLOW_SECONDS, SLOW_ATTEMPTS = 3, 60.0, 20
LONGER_SECONDS = 5.0            # added to the longest known time, before a task counts as longer


def forecast_json(before=None, start=None, end=None,
                  reason=None, slow=False):
    """Return a forecast as the API gives it."""
    return {"before": before, "expected_start": start, "expected_end": end,
            "reason": reason, "slow": slow}


class Forecast:
    """The forecasts of tasks and queues, as far as they are known."""

    def __init__(self, database, settings, claims, queues,
                 modes, tick_history, metrics):
        self._database, self._settings, self._claims = database, settings, claims
        self._queues, self._modes, self._tick_history, self._metrics = queues, modes, tick_history, metrics
        self._clock, self._lock = database.clock, threading.Lock()
        self._plan = None
        self._until = -math.inf
        self._lists_before = False

    def of_task(self, row):
        """Return the forecast of a task (its row); None once it has ended."""
        if row["status"] in ENDED:
            return None
        if row["status"] == WAITING:
            return forecast_json(reason="It waits for other tasks.")
        if row["status"] == RUNNING:
            return self._of_running(row, self._current())
        return self._of_queued(QueuedTask(*(row[name] for name in QueuedTask._fields)), row["status"],
                                row["run_at"])

    def of_new(self, owner_id, function, options):
        """Return the forecast that a task would have if it were added now."""
        turn = next_turn(self._database, {"owner_id": owner_id, **options})
        new = QueuedTask(id=INTEGER_MAX, owner_id=owner_id, function=function, turn=turn,
                      retries_left=options["max_retries"],
                      **{name: options[name] for name in QueuedTask._fields if name in options})
        return self._of_queued(new, PENDING, None)

    def of_list(self, shown):
        """Add the expected start to the planned tasks of a list (their JSON).

        A process makes no plan for its first list: under CGI it answers only one request.
        """
        pending = [task for task in shown if task["status"] == "pending"]
        if pending and self._lists_before:
            plan = self._current()
            for task in pending:
                expected = plan.planned.get(task["id"])
                task["expected_start"] = expected and expected.start.range(plan.now)
        self._lists_before = True
        return shown

    def of_queue(self, shown):
        """Return a queue (its JSON) with the time at which all its present tasks will have ended."""
        empty_at = None
        plan = self._current() if shown["pending"] or shown["running"] else None
        if plan and shown["name"] in plan.queues:
            empty_at = plan.empty_at(shown["name"])
        return {**shown, "empty_at": plan and empty_at and empty_at.range(plan.now)}

    def _of_running(self, row, plan):
        elapsed = max(0.0, self._clock.now() - row["started_at"])
        times = sorted(run.seconds for run in plan.runs.get(row["function"], ())
                       if run.status == "succeeded")
        slow = len(times) >= SLOW_ATTEMPTS and elapsed > max(
            SLOW_SECONDS, SLOW_TIMES * times[int(len(times) * 0.95)])
        if times and elapsed > times[-1] + LONGER_SECONDS and not row["progress"]:
            return forecast_json(
                reason="It runs longer than the newest tasks of this function did.", slow=slow)
        shown = plan.end_of_running(row).range(plan.now)
        return forecast_json(None, None, shown, None if shown else self._unknown(row["function"], plan),
                             slow)

    def _of_queued(self, task, status, run_at):
        plan = self._current()
        before = None if status == SCHEDULED else self._database.value(
            COUNT_BEFORE, (*before_values(task), COUNT_MAX))
        if task.queue not in plan.queues:
            code, words = self._queues.blocked(task.queue, self._claims.machine)
            is_said = code in ("paused", "external", "machines")
            return forecast_json(before, reason=words if is_said else "No worker runs at the moment.")
        if status == SCHEDULED:
            start, end = plan.of_scheduled(task, max(0.0, (run_at or 0.0) - plan.now))
        else:
            start, end = plan.of_pending(task)
        shown = end.range(plan.now)
        return forecast_json(before, start.range(plan.now), shown,
                             None if shown else self._unknown(task.function, plan))

    @staticmethod
    def _unknown(function, plan):
        """Return why a time is unknown. Other users' functions may be secret."""
        return "The running time of %s is not known yet." % (
            "tasks before it" if function in plan.runs else function)

    def _current(self):
        """Return the plan; make a new one if it is too old."""
        with self._lock:
            began = self._clock.monotonic()
            if self._plan is None or began > self._until:
                self._plan = self._read()
                ended = self._clock.monotonic()
                self._until = ended + max(CACHE_SECONDS, (ended - began) / SHARE)
            return self._plan

    def _read(self):
        """Make a plan for the living workers and for those that will be started."""
        crew_of_worker = {
            worker_id: (machine, functions, limits)
            for worker_id, machine, functions, limits in self._database.all(
                "SELECT worker.id, machine, CASE mode WHEN 'remote' THEN functions END, limits "
                "FROM worker LEFT JOIN token ON token.id=token_id")}
        here = (self._claims.machine, None, None)
        sizes, come = collections.Counter(crew_of_worker.values()), 0.0
        mode, cron = self._modes.decide().mode, self._tick_history.visitor("cron")
        lives = sum(size for (_, functions, _), size in sizes.items() if functions is None)
        room = self._settings.get("NbMaxWorker") - lives
        if room < 0 or (mode == "detached" and (lives or not recall(
                self._database, "start_failure"))):
            sizes[here] += room
        elif mode == "cron" and room and not lives and cron and cron["comes"]:
            sizes[here] = 1
            come = max(0.0, cron["last_at"] + (cron["period"] or 60.0) - self._clock.now())
        crews = {key: self._crew(size, *key) for key, size in sizes.items()}
        for place in crews[here] if come else ():
            place.free = Moment(come)
        return Plan(self._database, self._metrics.runs(), crews, crew_of_worker)

    def _crew(self, size, machine, functions, limits):
        allowed = json.loads(limits or "{}").get("queues")
        queues = {queue["name"]: queue for queue in self._queues.served_by(
            self._database, machine, functions is not None)
                  if allowed is None or queue["name"] in allowed}
        names = {each["name"] for each in json.loads(functions)} if functions else None
        return [WorkerSlot(queues, names) for _ in range(size)]


# upkeep/tick.py --------------------------------------------------------------
#
# The tick: maintenance that any process does in passing.

TICK_PASSING_SECONDS = 5.0      # between ticks by callers in PASSING, such as requests
TICK_SOON_SECONDS = 1.0         # between ticks while work is left or a schedule is due
SWEEP_SECONDS = 3600.0
LOOK_FOR_SCHEDULES_SECONDS = 30.0
BACKUP_AGAIN_SECONDS = 3600.0   # pause after a backup that failed or was not finished


class Tick:
    """The maintenance that any process does in passing: reap, fire, promote, fold, prune, start.

    Every part reads first, and writes only if there is something to do. Every write checks again inside
    its transaction. So any number of processes may tick at the same time. A tick folds and prunes only one
    portion, so that tasks need not wait for that.
    """

    def __init__(self, database, settings, claims, tick_history,
                 workers, reaper, starter, schedule_runner,
                 schedules, rollup, retention, alerts,
                 summaries, files):
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._workers = tick_history, workers
        self._reaper, self._starter = reaper, starter
        self._schedule_runner, self._schedules, self._alerts = schedule_runner, schedules, alerts
        self._summaries = summaries
        self._rollup, self._retention, self._files = rollup, retention, files
        self._clock = database.clock
        self._mark = database.folder / "tick.mark"
        self._ticks = Every(TICK_SOON_SECONDS, self._clock)
        self._looks = Every(LOOK_FOR_SCHEDULES_SECONDS, self._clock)
        self._has_more = False          # the last tick left rows to rollup or prune

    def maybe(self, caller):
        """Tick unless another process has just done so; return True if this one did.

        `caller` is "server", "worker", "code" (adds by Python and shell), "cron", or one of PASSING. Errors
        are printed, not raised: a tick must not end its caller. The next tick tries again.
        """
        if not self._ticks.begin_if_due():
            return False
        try:
            if caller == "server":      # is_resident() needs this, even if another process ticks
                self._tick_history.record(caller)
            if not self._is_our_turn(caller):
                return False
            self.run(caller)
            return True
        except Busy:                    # the next tick tries again
            return False
        except Exception as error:
            self._ticks.put_off(15.0)
            complain("maintenance failed: %s: %s" % (type(error).__name__, error))
            return False

    def run(self, caller="worker", start=True):
        """Do all that is due, even if another process has just ticked. Without `start`, start no worker."""
        renew_mark(self._mark, self._clock.now(), 0.0)
        self._tick_history.record(caller)
        self._ticks.put_off(TICK_SECONDS)
        self._database.sign()
        self._reaper.bury_dead()
        self._promote()
        self._fire_schedules()
        self._files.clear(self._clock.now())
        self._sweep()
        is_behind = self._rollup.fold()
        self._has_more = caller not in PASSING and (self._retention.prune() or is_behind)
        if self._has_more:
            self._ticks.hasten(TICK_SOON_SECONDS)
        if start:
            self._starter.start_needed(self.sleepers_missing())
        self._summaries.post_due()
        with print_errors("looking what is wrong"):
            self._alerts.tick()
        with print_errors("making the daily backup"):
            self._back_up()

    def sleepers_missing(self):
        """Return 1 if stay_asleep asks for a worker to wait for the next work and there is none, else 0."""
        return int(self._settings.get("stay_asleep") == "yes" and not self._workers.are_there()
                   and self.next_work() is not None)

    def next_work(self, alone=True, db=None):
        """Return when the next scheduled task is due, or None. With `alone`, rates and schedules count, too.

        `alone` is True for the oldest idle worker: only this one waits for a rate or a schedule.
        """
        dues = [self._claims.next_due(db=db)]
        if alone:
            dues += [self._claims.rate_opens(db), self._schedule_runner.next_due(db)]
        return min((due for due in dues if due is not None), default=None)

    def _is_our_turn(self, caller):
        """Return True if the last tick is long enough ago. If something is due, a shorter time is enough."""
        now, due = self._clock.now(), self._schedule_runner.next_due()
        usual, soon = ((TICK_PASSING_SECONDS, TICK_SECONDS) if caller in PASSING else
                       (TICK_SECONDS, TICK_SOON_SECONDS))
        least = soon if self._has_more or due is not None and due <= now else usual
        return renew_mark(self._mark, now, least)

    def _promote(self):
        """Make due tasks pending, and settle the followers of ended tasks."""
        due = self._claims.next_due(of_all=True)
        if due is not None and due <= self._clock.now():
            with self._database.transaction(durable=False) as transaction:
                self._claims.promote(transaction, self._clock.now())

    def _fire_schedules(self):
        """Add the tasks of due schedules. Now and then compare them with tasks.py and the script folders."""
        now = self._clock.now()
        if self._looks.begin_if_due():
            self._schedules.synchronise()
        self._schedule_runner.fire(now)
        due = self._schedule_runner.next_due() or math.inf
        self._ticks.hasten(max(TICK_SOON_SECONDS, due - now))

    def _back_up(self):
        """Start the process that makes the daily backup after backup_hour. After a failure start it again."""
        now, hour = self._clock.now(), self._settings.get("backup_hour")
        if not hour:
            return
        last, began = recall(self._database, "daily_backup"), now - 3600 * int(hour)
        state = last or {"at": -math.inf, "done": True}
        age = seconds_since(state["at"], now)
        if age <= began % 86400 and (state["done"] or age < BACKUP_AGAIN_SECONDS):
            return
        error = None if state["done"] else state["error"] or "It was not finished."
        with self._database.transaction() as transaction:
            if recall(transaction, "daily_backup") != last:
                return                  # another process starts it
            remember(transaction, "daily_backup", {
                "at": now, "day": iso(began)[:10], "done": False, "error": error})
        self._starter.start_helper("--backup")

    def _sweep(self):
        """Remove leftovers of crashes, and expired sessions and login limits, once an hour in one process."""
        now = self._clock.now()
        if not renew_mark(self._database.folder / "sweep.mark", now, SWEEP_SECONDS):
            return
        self._reaper.sweep_locks()
        self._files.clear(now, wholly=True)
        with self._database.transaction(durable=False) as transaction:
            for rows in ("session WHERE expires_at<?", "throttle WHERE until<?",
                         "known_address WHERE until<?"):
                transaction.run("DELETE FROM " + rows, (now - 3600,))


# access/people.py ------------------------------------------------------------
#
# People: passwords, roles, users, and guessed passwords.














SESSION_SECONDS = 12 * 3600.0
PASSWORD_MIN, PASSWORD_MAX = 8, 256
SCRYPT_COST = (2 ** 14, 8, 5)   # OWASP's 16 MiB row
STORED_PASSWORD = "scrypt$%d,%d,%d$%s$%s"
SCRYPT_MISSING = "this Python lacks scrypt, which passwords need: use another Python"
hashing = threading.Semaphore(2)    # threads that hash at a time: each needs 16 MiB of a small host
guessing = threading.BoundedSemaphore(6)    # threads that hash or wait to hash; a further one gets Busy
# The number of guesses before the first wait; in seconds how long guesses count, the shortest and the longest
# wait.
GUESSES, GUESSES_BY_ADDRESS = (5, 3600.0, 1.0, 900.0), (20, 60.0, 60.0, 60.0)
# Passwords that are long enough, but that guessers try first.
COMMON_PASSWORDS = frozenset(
    "password password1 password12 password123 passw0rd 12345678 123456789 1234567890 qwertyuiop "
    "qwerty123 1q2w3e4r 1qaz2wsx iloveyou sunshine princess football baseball superman trustno1 "
    "welcome1 letmein1 adminadmin admin123 administrator changeme jobqueue abcd1234 abc12345 "
    "11111111 00000000 88888888 87654321 987654321 123123123 asdfghjkl zxcvbnm1 starwars whatever "
    "computer michelle jennifer internet corvette mercedes maverick".split())
NAME_PATTERN = r"\w[\w.@+-]{0,49}"
ROLES = ("viewer", "user", "admin")     # viewers see all tasks, and change nothing
# {scope of a token: the roles that may make one}. The scope user allows everything that the user may do, read
# allows only reading. Each of the last three allows only the calls of its name.
TOKEN_SCOPES = {"user": ROLES, "read": ROLES, "tick": ROLES[1:], "worker": ("admin",),
                "metrics": ("admin",)}
LOG_IN = titled("Login", object_of(("name", "password"), name=TEXT, password=TEXT))
SET_UP = titled("Setup", object_of(("code", "name", "password"), name=TEXT, password=TEXT,
                                 code=about(TEXT, "from the printed link, or a file "
                                            "setup-code*.txt in data or beside jobqueue.py")))
NEW_USER = titled("NewUser", object_of(
    ("name", "password"), name=TEXT, password=TEXT, role={"enum": list(ROLES)},
    current_password=about(or_null(TEXT), "your own password, if a session creates an admin")))
NEW_INVITATION = titled("NewInvitation", object_of(
    role={"enum": list(ROLES)},
    current_password=about(or_null(TEXT), "your own password, if a session invites an admin")))
ACCEPTED = titled("Acceptance", object_of(("code", "name", "password"), name=TEXT, password=TEXT,
                                          code=about(TEXT, "from the link of the invitation")))
CHANGED_USER = titled("UserChange", object_of(
    role=or_null({"enum": list(ROLES)}), password=or_null(TEXT), disabled={"type": "boolean"},
    max_pending=about(or_null(SETTINGS["max_pending"].schema),
                      "maximum of pending tasks; 0: no limit, null: as the setting says"),
    max_running=about(QUEUE_LIMITS["max_running"], "maximum of running tasks; null: no limit"),
    email=about(or_null(EMAIL), "where mail about the user's tasks is sent; an admin enters it"),
    summary=SUMMARY,
    current_password=about(or_null(TEXT), "your own password: to change it, or to create an admin or set "
                                          "an admin's password in a session")))
NEW_TOKEN = titled("NewToken", object_of(
    ("name",), scope={"enum": list(TOKEN_SCOPES)},
    queues=about({"type": ["array", "null"], "items": OPTION_SCHEMAS["queue"], "minItems": 1,
                  "maxItems": 50},
                 "with the scope worker: tasks of these queues only"),
    functions=about({"type": ["array", "null"], "items": text_up_to(200), "minItems": 1,
                     "maxItems": 200},
                    "with the scope worker: tasks of these functions only"),
    name={"type": "string", "maxLength": 100, "pattern": r"[^\x00]*[^\s\x00][^\x00]*",
          "patternMessage": "must have 1 to 100 characters"},
    password=about(TEXT, "your own password; not needed with an API token")))


class Person:
    """The user of a request: id, name and role, and the end of their session if there is one."""

    def __init__(self, row, expires_at=None):
        self.id = row["id"]
        self.name = row["name"]
        self.role = row["role"]
        self.is_admin = self.role == "admin"
        # The owner of the visible tasks; None: all.
        self.visible_owner_id = self.id if self.role == "user" else None
        # The owner of the visible tokens, and of the events of accounts that a viewer sees; None: all.
        self.visible_account_id = None if self.is_admin else self.id
        self.scope_and_actor = self.visible_owner_id, self.name
        self.expires_at = expires_at
        self.token = None     # the token of the request, if a program sent it

    def sees_secrets_of(self, owner):
        """Return True if the arguments of this owner's tasks are shown with their secrets."""
        return owner == self.name and not (self.token and self.token["scope"] == "read")

    @property
    def searches_as(self):
        """Return the id of the user whose secrets a search reads; 0: no user's, None: all users'."""
        return self.id if self.sees_secrets_of(self.name) else 0

    @property
    def answerable(self):
        """Return the Person whose rights count for a request; None for the site's own code."""
        return self


class KnownOwner(NamedTuple):
    """The cached row of the user who owns tasks of code and shell, and the monotonic time when it expires."""

    until: "float"
    name: "str"
    row: "Row"


def knows_scrypt():
    """Return True if this Python has scrypt for passwords."""
    import hashlib
    return hasattr(hashlib, "scrypt")


def _scrypt(password, salt, cost):
    """Return the scrypt key of a password at this cost; SetupError if scrypt is missing."""
    import hashlib
    if not knows_scrypt():
        raise SetupError(SCRYPT_MISSING)
    n, r, p = cost
    with hashing:
        return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p,
                              maxmem=64 << 20)


def hash_password(password):
    """Return the stored form of a password: method$parameters$salt$key.

    The parameters are in it, so a later version can raise the cost.
    """
    salt = os.urandom(16)
    key = _scrypt(password, salt, SCRYPT_COST)
    return STORED_PASSWORD % (*SCRYPT_COST, salt.hex(), key.hex())


def verify_password(password, stored):
    """Return True if `password` is the stored one; False if the stored method is unknown."""
    import hmac
    if password is None or len(password) > PASSWORD_MAX:
        return False
    try:
        method, parameters, salt, key = stored.split("$")
        computed = _scrypt(password, bytes.fromhex(salt), map(int, parameters.split(",")))
        return method == "scrypt" and hmac.compare_digest(computed, bytes.fromhex(key))
    except (ValueError, AttributeError):
        return False


@contextlib.contextmanager
def may_guess(database, *subjects):
    """Count a guess under each subject, then run the block. Busy, and no count, if many threads hash."""
    if not guessing.acquire(blocking=False):
        raise Busy("Many people log in at the moment. Please try again.", retry_after=1)
    try:
        count_guess(database, *subjects)
        yield
    finally:
        guessing.release()


def check_password(password, name):
    """Raise Invalid unless a password is long enough and not one that guessers try first."""
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise field_error("password", "must have %d to %d characters"
                          % (PASSWORD_MIN, PASSWORD_MAX))
    if password.lower() in COMMON_PASSWORDS or password.lower() == name.lower():
        raise field_error("password", "is one that guessers try first; please choose another")


def wrong_password(field):
    """Return the error for a wrong current password, which this field asks for."""
    return Denied("The current password is not right.", wrong(field, "is not right"))


def wrong_log_in():
    """Return the error of a refused log-in. It does not tell whether the name or the password is wrong."""
    return Unauthorized("The name or the password is not right.")


def end_sessions(transaction, user_id, programs):
    """End all sessions of a user. With `programs` remove the user's API tokens, too."""
    for table in ("session", "token") if programs else ("session",):
        transaction.run("DELETE FROM %s WHERE user_id=?" % table, (user_id,))


def record_user_event(transaction, at, event, row, by,
              details=None):
    """Record an event of a user (their row) or of their account in the activity."""
    record_activity(transaction, at, event, owner_id=row["id"], actor=by,
         message=": ".join(filter(None, (row["name"], details))))


def record_use(database, row, table, column):
    """Record that a session or token was used. A busy database is no error here."""
    now = database.clock.now()
    if now - (row[column] or 0) > 60:
        with contextlib.suppress(JobQueueError), database.deadline(0.2), \
                database.transaction(durable=False) as transaction:
            transaction.update(table, {column: now}, "id=?", (row["used_id"],))
            transaction.update("user", {"last_seen_at": now}, "id=?", (row["id"],))


def address_subject(address):
    """Return the subject of guesses from an address. An IPv6 /64 network has one subject."""
    if ":" in address:
        from ipaddress import IPv6Address, IPv6Network
        with contextlib.suppress(ValueError):
            mapped = IPv6Address(address).ipv4_mapped
            address = str(mapped or IPv6Network(address + "/64", strict=False))
    return "address:%s" % address


def user_subject(name):
    """Return the subject of guesses at a user's password.

    Only A to Z become lower case, as in the database.
    """
    return "user:" + storable(re.sub("[A-Z]+", lambda match: match[0].lower(), name[:100]))


def fold_name(name):
    """Return the form of a name for comparison. Names that look alike have the same form."""
    import unicodedata
    return unicodedata.normalize("NFKC", name).casefold()


def count_guess(database, *subjects):
    """Count a guess under each subject before it is checked, so parallel guesses count, too.

    TooMany while any subject must wait.
    """
    now = database.clock.now()
    with database.transaction(durable=False) as transaction:
        for subject in subjects:
            row = transaction.one("SELECT * FROM throttle WHERE subject=?", (subject,))
            if row and now < row["until"] < now + 2 * GUESSES[3]:
                raise TooMany("Too many attempts. Please wait.",
                              retry_after=math.ceil(row["until"] - now))
            free, memory, least, most = (
                GUESSES_BY_ADDRESS if subject.startswith("address:") else GUESSES)
            failures = row["failures"] + 1 if row and now - row["failed_at"] < memory else 1
            pause = min(most, least * 2 ** min(failures - free, 20)) if failures >= free else 0
            transaction.upsert("throttle", {"subject": subject},
                               {"failures": failures, "failed_at": now, "until": now + pause})


def forgive(transaction, *subjects):
    """Remove the guesses counted under these subjects."""
    for subject in subjects:
        transaction.run("DELETE FROM throttle WHERE subject=?", (subject,))


class Users:
    """The users and their passwords. After the set-up there is always an admin who is not disabled."""

    def __init__(self, database, settings):
        self._database, self._settings = database, settings
        settings.validators["default_owner"] = functools.partial(self._test_owner, database)
        self._owner = KnownOwner(-math.inf, "", {})

    def has_admin(self, db=None):
        """Return True if there is an admin, disabled or not."""
        return bool((db or self._database).value("SELECT 1 FROM user WHERE role='admin' LIMIT 1"))

    def all(self):
        """Return all users as admins see them."""
        return [self._json(row) for row in self._database.all("SELECT * FROM user ORDER BY id")]

    def describe(self, name):
        """Return a user as admins see them; NotFound if there is none."""
        return self._json(self.find(name))

    def find(self, name, db=None):
        """Return the row of a user; NotFound if there is none."""
        row = (db or self._database).one("SELECT * FROM user WHERE name=?", (name,))
        if row is None:
            raise NotFound("There is no user %s." % shorten(str(name), 60))
        return row

    def person(self, user_id):
        """Return the Person with this user id; None if there is no such user, or the user is disabled."""
        row = self._database.one("SELECT * FROM user WHERE id=? AND disabled=0", (user_id,))
        return Person(row) if row else None

    def owner(self, name=None):
        """Return the row of this user; without a name that of the user who owns tasks of code and shell.

        Without a name the row may be CACHE_SECONDS old. If the user was deleted since then, adding the
        task fails.
        """
        if name:
            return self.find(name)
        name, now = self._settings.get("default_owner"), self._database.clock.monotonic()
        until, known_name, known_row = self._owner
        if known_name == name and now <= until:
            return known_row
        row = self._database.one("""
            SELECT * FROM user WHERE name=? OR (?='' AND role='admin' AND disabled=0)
            ORDER BY id LIMIT 1""", (name, name))
        if row is None:
            raise SetupError("There is no user %s, whom the setting default_owner names." % name
                             if name else "There is no admin yet who could own the task. Open the "
                             "page and make one, or run: python3 jobqueue.py user add NAME --admin")
        self._owner = KnownOwner(now + CACHE_SECONDS, name, row)
        return row

    @staticmethod
    def _test_owner(database, name):
        # Static: a bound method would keep a dropped JobQueue, and its connections, alive.
        if not database.one("SELECT id FROM user WHERE name=?", (name,)):
            raise field_error("default_owner", "must be the name of a user")

    def add(self, name, password, role="user",
            by=None):
        """Make a user; Conflict if the name is taken."""
        columns = self.prepare(name, password, role)
        with self._database.transaction() as transaction:
            self.insert(transaction, columns, by)
        return self.describe(name)

    def insert(self, transaction, columns,
               by=None):
        """Store a user with the columns from prepare(); Conflict if a name that looks alike is taken."""
        for other_name, in transaction.all("SELECT name FROM user"):
            if fold_name(other_name) == fold_name(columns["name"]):
                raise Conflict("There is a user %s already." % other_name, wrong("name", "is taken"))
        record_activity(transaction, self._database.clock.now(), "user_added", actor=by,
             owner_id=transaction.insert("user", columns),
             message="%(name)s: %(role)s" % columns)

    def prepare(self, name, password, role):
        """Return the columns of a new user; Invalid if the name or the password is not allowed."""
        errors = []
        if not re.fullmatch(NAME_PATTERN, name):
            errors += wrong("name", "must be 1 to 50 letters, digits, _ . @ + or -, and begin "
                            "with a letter or digit")
        try:
            check_password(password, name)
        except Invalid as error:
            errors += error.errors
        if errors:
            raise Invalid(join_errors(errors), errors)
        return {"name": name, "password": hash_password(password), "role": role,
                "created_at": self._database.clock.now()}

    def change(self, name, password_seen=None, by=None,
               **changes):
        """Change columns of a user. A new password or disabling ends their sessions and tokens.

        None clears max_pending (the setting holds then), max_running, email or summary, and leaves any
        other column as it is. With `password_seen`, which confirm() returned, tokens stay. Denied if the
        password was changed since then.
        """
        changes = {column: value for column, value in changes.items()
                   if value is not None or column in ("max_pending", "max_running", "email", "summary")}
        if "email" in changes and changes["email"] is None:
            changes["summary"] = None
        if "summary" in changes:
            changes.update(summary_columns(changes["summary"], self._database.clock.now()))
        if "password" in changes:
            check_password(changes["password"], self.find(name)["name"])
            changes["password"] = hash_password(changes["password"])
        with self._database.transaction() as transaction:
            row = self.find(name, transaction)
            if password_seen not in (None, row["password"]):
                raise wrong_password("current_password")
            if changes:
                transaction.update("user", changes, "id=?", (row["id"],))
                record_user_event(transaction, self._database.clock.now(), "user_changed", row, by,
                          ", ".join(sorted(changes.keys() - {"summary_at"})))
                self._check_summary(transaction, row["id"])
            if "password" in changes or changes.get("disabled"):
                end_sessions(transaction, row["id"], password_seen is None)
            self._keep_an_admin(transaction)
            return self._json(self.find(name, transaction))

    @staticmethod
    def _check_summary(transaction, user_id):
        if transaction.value("SELECT 1 FROM user WHERE id=? AND summary IS NOT NULL AND email IS NULL",
                             (user_id,)):
            raise field_error("summary", "needs a mail address: an admin enters it")

    def confirm(self, person, password, field="password"):
        """Return the stored form of a person's password; Denied, naming `field`, if `password` is wrong."""
        subject = "password:%d" % person.id     # only a logged-in user can guess here
        stored = self.find(person.name)["password"]
        with may_guess(self._database, subject):
            if not verify_password(password, stored):
                raise wrong_password(field)
        with self._database.transaction(durable=False) as transaction:
            forgive(transaction, subject)
        return stored

    def delete(self, name, by=None):
        """Remove a user who owns no task and no schedule; Conflict otherwise."""
        with self._database.transaction() as transaction:
            row = self.find(name, transaction)
            owner = self._settings.get("default_owner", transaction)
            if owner and transaction.value("SELECT id FROM user WHERE name=?", (owner,)) == row["id"]:
                raise Conflict("%s cannot be deleted: the setting default_owner names %s."
                               % (name, name))
            self._remove_gone_schedules(transaction, row["id"])
            for table in ("task", "schedule"):
                if transaction.value("SELECT 1 FROM %s WHERE owner_id=? LIMIT 1" % table,
                                     (row["id"],)):
                    raise Conflict("%s owns %ss; disable the user instead." % (row["name"], table))
            end_sessions(transaction, row["id"], True)
            for table in ("known_address", "saved"):
                transaction.run("DELETE FROM %s WHERE user_id=?" % table, (row["id"],))
            transaction.run("DELETE FROM user WHERE id=?", (row["id"],))
            record_user_event(transaction, self._database.clock.now(), "user_deleted", row, by)
            self._keep_an_admin(transaction)

    @staticmethod
    def _remove_gone_schedules(transaction, owner_id):
        """Remove the rows of a user's schedules that tasks.py does not declare any more."""
        gone = "owner_id=? AND gone_at IS NOT NULL"
        transaction.run("DELETE FROM slot WHERE schedule_id IN (SELECT id FROM schedule WHERE %s)" % gone,
                        (owner_id,))
        transaction.run("DELETE FROM schedule WHERE " + gone, (owner_id,))

    @staticmethod
    def _keep_an_admin(transaction):
        if not transaction.value("SELECT 1 FROM user WHERE role='admin' AND disabled=0 LIMIT 1"):
            raise Conflict("This is the last admin; make another one first.")

    @staticmethod
    def _json(row):
        same = {name: row[name] for name in ("name", "role", "max_pending", "max_running", "email")}
        return {**same, "summary": row["summary"] and json.loads(row["summary"]),
                "disabled": bool(row["disabled"]), "created_at": iso(row["created_at"]),
                "last_seen_at": iso(row["last_seen_at"])}


def changed_at(file):
    """Return the time of a file's last change (ctime). An upload can set only the modification time."""
    return os.fstat(file.fileno()).st_ctime


def plain_code(text):
    """Return the form of a code for comparison, without line ends and spaces around words."""
    return " ".join(text.split())


# access/accounts.py ----------------------------------------------------------
#
# The first admin, a lost password, sessions, tokens, invitations.

SESSION_IDLE_SECONDS = 30 * 60.0
TOKENS_MAX = 100                # tokens of one user
SETUP_CODE_SECONDS = 3600.0
SETUP_CODE_MIN_CHARACTERS = 16
# The stored password for unknown names. Verifying it takes as long as verifying a user's.
NOBODYS_PASSWORD = STORED_PASSWORD % (*SCRYPT_COST, "00" * 16, "00" * 64)
TOKEN_ROW = ("SELECT token.*, user.name AS owner, user.password FROM token "
             "JOIN user ON user.id=user_id WHERE ")


def read_code(path, now):
    """Return the code in a text file; None if the code is short, or the file unreadable or too old."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            code = plain_code(file.read(4096).decode("utf-8-sig", "replace"))
            is_young = now - changed_at(file) <= SETUP_CODE_SECONDS
    except OSError:
        return None
    return code if is_young and len(code) >= SETUP_CODE_MIN_CHARACTERS else None


class SetUp:
    """The set-up of the first admin, and the reset of an admin's lost password.

    A code proves that a person can read or write files here.

    1. While there is no admin, our own file holds a code, which is replaced every hour. The site's owner
       may upload another file, with a code of their own, at any time.
    2. A code in a request is counted as a guess, then compared with the codes in all these files.
    3. In one transaction the code is marked as used, and the admin is made or gets the password.
    4. All these files are deleted.
    """

    def __init__(self, database, users):
        self._database, self._users, self._clock = database, users, database.clock
        self._home = HOME
        self.file = private_path(database.path, "setup-code.txt")

    def code(self):
        """Return the one-time code for the first admin. A code older than SETUP_CODE_SECONDS is replaced."""
        with self._database.transaction(durable=False):     # two processes must not make two codes
            code = read_code(self.file, self._clock.now())
            if not code:
                code = random_token(16)
                write_private(self.file, code + "\n")
        return code

    def files(self):
        """Return all files setup-code*.txt: our own, and those that the site's owner uploaded."""
        return sorted(path for folder in (self._database.folder, self._home)
                      for path in folder.glob("setup-code*.txt"))

    def redeem(self, code, name, password, address="",
               doubtful=()):
        """Make the first admin, or give an admin a new password; return the user's row.

        A reset of the password also resets the `doubtful` settings: a wrong setting may have locked out
        all users. NotFound if there is an admin and no file; Denied if no file holds the code.
        """
        is_first = not self._users.has_admin()
        if is_first:
            self.code()
        files = self.files()
        code = self._check(code, files, address)
        columns = self._users.prepare(name, password, "admin")
        with self._database.transaction() as transaction:
            if recall(transaction, "used_code") == digest(code):   # its file could not be deleted
                raise Denied("This code has been used: delete its file, or write another code into "
                             "it.", wrong("code", "has been used"))
            remember(transaction, "used_code", digest(code))
            if not is_first:
                self._reset(transaction, columns, doubtful)
            elif self._users.has_admin(transaction):
                raise NotFound("This is set up already.")
            else:
                self._users.insert(transaction, columns, name)
            forgive(transaction, address_subject(address))
        for path in files:
            with contextlib.suppress(OSError):
                path.unlink()
        return self._users.find(name)

    def _check(self, code, files, address):
        """Return the code in the form that is compared; Denied unless a file holds it."""
        if not files:
            raise NotFound("This is set up already. If an admin's password is lost: upload a text "
                           "file with %d or more characters of your own beside jobqueue.py, named "
                           "setup-code-WORD.txt with a word that nobody can guess, and enter them "
                           "here within an hour." % SETUP_CODE_MIN_CHARACTERS)
        count_guess(self._database, address_subject(address))
        code = plain_code(code)
        for path in files:
            file_code = read_code(path, self._clock.now())
            # The time that a comparison of digests takes reveals nothing about the code.
            if file_code and digest(file_code) == digest(code):
                return code
        words = ("is in no file setup-code*.txt here. Such a file must be readable (rights 644), at most "
                 "an hour old, and hold %d or more characters"
                 % SETUP_CODE_MIN_CHARACTERS)
        raise Denied("This code %s." % words, wrong("code", words))

    def _reset(self, transaction, columns, doubtful):
        name, is_admin = columns["name"], "role='admin' AND disabled=0"
        ids = [row["id"] for row in transaction.all(
            "SELECT id FROM user WHERE name=? AND " + is_admin, (name,))]
        if not ids:
            raise field_error("name", "must be that of an admin: " + ", ".join(
                row["name"] for row in transaction.all(
                    "SELECT name FROM user WHERE %s ORDER BY id" % is_admin)))
        transaction.update("user", {"password": columns["password"]}, "id=?", ids[:1])
        record_user_event(transaction, self._clock.now(), "user_changed", {"id": ids[0], "name": name},
                  None, "password, with a code from a file")
        end_sessions(transaction, ids[0], True)
        for setting in doubtful:
            store_setting(transaction, setting, None)
        forgive(transaction, user_subject(name))


class Sessions:
    """The sessions of browsers. The database stores only the digest of a session's token."""

    def __init__(self, database):
        self._database, self._clock = database, database.clock

    def log_in(self, name, password, address):
        """Return the token of a new session; Unauthorized if the name or the password is wrong."""
        place = address_subject(address)
        subjects = [user_subject(name), place]
        row = self._database.one(
            "SELECT *, (SELECT until FROM known_address WHERE user_id=user.id AND address=?) "
            "AS known FROM user WHERE name=?", (place, storable(name)))
        # Guesses from other addresses must not lock out a known address.
        if row and (row["known"] or 0) > self._clock.now():
            subjects = ["known:%d %s" % (row["id"], place)]     # no name in a request gives this subject
        with may_guess(self._database, *subjects):
            right = verify_password(password, row["password"] if row else NOBODYS_PASSWORD)
        if not right or row is None or row["disabled"]:
            with self._database.transaction(durable=False) as transaction:
                if row:                 # the throttle limits how many events this writes
                    record_user_event(transaction, self._clock.now(), "log_in_refused", row, None)
            raise wrong_log_in()
        return self.open(row, address, subjects[0], counted="".join(subjects[1:]))

    def open(self, row, address, *subjects, counted=""):
        """Return the token of a new session for a user's row.

        Guesses under `subjects` are forgiven. So is one guess under `counted`, the subject that all users
        of an address share. Unauthorized if the password has changed since the row was read, or the user
        is disabled.
        """
        token, now = random_token(32), self._clock.now()
        with self._database.transaction() as transaction:
            if not transaction.one("SELECT 1 FROM user WHERE id=? AND password=? AND disabled=0",
                                   (row["id"], row["password"])):
                raise wrong_log_in()
            transaction.insert("session", {
                "digest": digest(token), "user_id": row["id"], "created_at": now, "seen_at": now,
                "expires_at": now + SESSION_SECONDS, "address": address})
            forgive(transaction, *subjects)
            transaction.run("UPDATE throttle SET failures=failures-1 WHERE subject=?", (counted,))
            transaction.update("user", {"last_seen_at": now}, "id=?", (row["id"],))
            record_user_event(transaction, now, "logged_in", row, row["name"])
            place = {"user_id": row["id"], "address": address_subject(address)}
            transaction.upsert("known_address", place, {"until": now + 30 * 86400})
        return token

    def person(self, token):
        """Return the Person whose session has this token; None if no session has it, or it has expired."""
        now = self._clock.now()
        row = self._database.one(
            "SELECT user.*, session.id AS used_id, session.seen_at, session.expires_at "
            "FROM session JOIN user ON user.id=session.user_id "
            "WHERE session.digest=? AND user.disabled=0", (digest(token),))
        if row is None or row["expires_at"] < now or row["seen_at"] + SESSION_IDLE_SECONDS < now:
            return None
        record_use(self._database, row, "session", "seen_at")
        return Person(row, row["expires_at"])

    def close(self, token):
        """Log out."""
        with self._database.transaction() as transaction:
            row = transaction.one("SELECT user.id, user.name FROM session "
                                  "JOIN user ON user.id=user_id WHERE digest=?", (digest(token),))
            if row:
                transaction.run("DELETE FROM session WHERE digest=?", (digest(token),))
                record_user_event(transaction, self._clock.now(), "logged_out", row, row["name"])

    def all(self, user_id, tokens=()):
        """Return a user's sessions, the last used first. Sessions with the given tokens are `current`."""
        now, ours = self._clock.now(), set(map(digest, tokens))
        rows = self._database.all(
            "SELECT * FROM session WHERE user_id=? AND expires_at>=? AND seen_at>=? "
            "ORDER BY seen_at DESC, id DESC", (user_id, now, now - SESSION_IDLE_SECONDS))
        return [{"id": row["id"], "address": row["address"], "current": row["digest"] in ours,
                 "created_at": iso(row["created_at"]), "seen_at": iso(row["seen_at"])}
                for row in rows]

    def close_all(self, row, by, but=()):
        """End all sessions of a user (their row), except those with the tokens in `but`."""
        with self._database.transaction() as transaction:
            transaction.run("DELETE FROM session WHERE user_id=? AND digest NOT IN ('', %s)"
                            % ", ".join("?" * len(but) or ["''"]), (row["id"], *map(digest, but)))
            record_user_event(transaction, self._clock.now(), "logged_out", row, by,
                      "elsewhere" if but else "everywhere")


class Tokens:
    """The API tokens of programs. A token may do what its user may, or only what its scope allows."""

    def __init__(self, database):
        self._database = database

    def all(self, user_id=None):
        """Return the tokens of a user, or of all users, without their secrets."""
        return [self._json(row) for row in self._database.all(
            TOKEN_ROW + "coalesce(?, user_id)=user_id ORDER BY token.id", (user_id,))]

    def add(self, user_id, name, scope="user", password_seen=None,
            limits=None, by=None):
        """Make a token; return it with its text, which is stored nowhere else.

        Denied if the user's stored password is not `password_seen` any more. `limits` are the queues and
        functions of a token for workers.
        """
        token = "jq_" + random_token(32)
        with self._database.transaction() as transaction:
            if transaction.value("SELECT count(*) FROM token WHERE user_id=?", (user_id,)) >= TOKENS_MAX:
                raise Conflict("A user can have at most %d tokens: delete some." % TOKENS_MAX)
            token_id = transaction.insert("token", {
                "digest": digest(token), "user_id": user_id, "name": name.strip(), "scope": scope,
                "limits": dump_json(limits or {}), "created_at": self._database.clock.now()})
            row = transaction.row(TOKEN_ROW + "token.id=?", (token_id,))
            if password_seen not in (None, row["password"]):
                raise wrong_password("password")
            self._record_event(transaction, "token_added", row, by)
        return {**self._json(row), "token": token}

    def delete(self, user_id, token_id, by=None):
        """Revoke a token; NotFound if it is not this user's (None: any user's)."""
        with self._database.transaction() as transaction:
            row = transaction.one(TOKEN_ROW + "token.id=? AND user_id=coalesce(?, user_id)",
                                  (token_id, user_id))
            if not row:
                raise NotFound("There is no token %s." % token_id)
            transaction.run("DELETE FROM token WHERE id=?", (token_id,))
            self._record_event(transaction, "token_revoked", row, by)

    def _record_event(self, transaction, event, row, by):
        record_activity(transaction, self._database.clock.now(), event, owner_id=row["user_id"], actor=by,
             message="%s (%s)" % (row["name"], row["scope"]))

    def person(self, token):
        """Return the Person of an API token; None if it is unknown, or the user is disabled."""
        row = self._database.one(
            "SELECT user.*, token.id AS used_id, token.last_used_at, token.limits, token.scope "
            "FROM token JOIN user ON user.id=token.user_id WHERE token.digest=? "
            "AND user.disabled=0 AND scope<>?", (digest(token), INVITATION))
        if row is None:
            return None
        record_use(self._database, row, "token", "last_used_at")
        limits = json.loads(row["limits"] or "{}")
        person = Person(row)
        person.token = {"id": row["used_id"], "scope": row["scope"], **limits}
        return person

    @staticmethod
    def _json(row):
        return {"id": row["id"], "owner": row["owner"], "name": row["name"],
                "scope": row["scope"], **json.loads(row["limits"] or "{}"),
                "created_at": iso(row["created_at"]), "last_used_at": iso(row["last_used_at"])}


class Invitations:
    """The invitations of new users: links that work once, for a day.

    An invitation is a row of `token` with the scope INVITATION and the role as its name. So an admin can
    revoke it like a token, and it goes with the tokens of an admin who is disabled or deleted. Its code
    gives no other right.

    1. A code in a request is counted as a guess, then looked for.
    2. In one transaction the row is removed, and the user is made.
    """

    def __init__(self, database, users, tokens):
        self._database, self._users, self._tokens = database, users, tokens

    def add(self, admin_id, role, by):
        """Make an invitation; return it with its code, which is stored nowhere else.

        `admin_id` is the inviting admin. None stands for the command line: the first admin invites.
        """
        admin_id = admin_id or self._database.value(
            "SELECT min(id) FROM user WHERE role='admin' AND disabled=0")
        if admin_id is None:
            raise Conflict("This is not set up yet: there is no admin.")
        token = self._tokens.add(admin_id, role, INVITATION, by=by)
        return {"id": token["id"], "role": role, "code": token["token"],
                "expires_at": iso(self._database.clock.now() + INVITATION_SECONDS)}

    def accept(self, code, name, password, address):
        """Make the invited user; return their row. Denied if the code does not work (any more)."""
        count_guess(self._database, address_subject(address))
        columns = self._users.prepare(name, password, self._find(self._database, code)["name"])
        with self._database.transaction() as transaction:
            row = self._find(transaction, code)
            transaction.run("DELETE FROM token WHERE id=?", (row["id"],))
            self._users.insert(transaction, columns, row["owner"])
            forgive(transaction, address_subject(address))
        return self._users.find(name)

    def _find(self, db, code):
        """Return the row of an invitation whose admin may still invite."""
        row = db.one(TOKEN_ROW + "digest=? AND scope=? AND token.created_at>=? AND role='admin' "
                     "AND disabled=0", (digest(code), INVITATION,
                                        self._database.clock.now() - INVITATION_SECONDS))
        if row is None:
            raise Denied("This invitation does not work: it was used or revoked, or is older than a day. "
                         "Ask an admin for a new one.")
        return row


# access/saved.py -------------------------------------------------------------
#
# Saved filters and form values, by name, each user's own.
#
# The list of tasks saves its filters, the form of a new task saves its values. The server does not read the
# saved value.

SAVED_MAX = 100                 # saved values of one user
SAVED_CHARACTERS = 10000        # maximum of a saved value as JSON
NEW_SAVED = titled("NewSaved", object_of(
    ("page", "name", "value"),
    page=about(text_like(r"tasks|new/[^/\x00-\x1f]{1,300}", "must be tasks, or new/ and a function"),
               "the page that uses it"),
    name={**text_like(r"[^\x00-\x1f]*[^\s\x00-\x1f][^\x00-\x1f]*", "must have 1 to 60 characters"),
          "maxLength": 60},
    value=about({"type": "object"}, "anything that the page can read")))


class Saved:
    """The saved filters and form values of users."""

    def __init__(self, database):
        self._database = database

    def all(self, user_id):
        """Return the saved values of a user, by page and name."""
        return [self._json(row) for row in self._database.all(
            "SELECT * FROM saved WHERE user_id=? ORDER BY page, name", (user_id,))]

    def add(self, user_id, page, name, value):
        """Save a value, with its secrets masked, in the place of one with the same name; return its row."""
        key, text = {"user_id": user_id, "page": page, "name": name.strip()}, dump_json(mask(value))
        if len(text) > SAVED_CHARACTERS:
            raise Conflict("These values are too long to be saved: %d characters are the maximum."
                           % SAVED_CHARACTERS)
        with self._database.transaction() as transaction:
            transaction.upsert("saved", key, {"value": text})
            self._check_count(transaction, user_id)
            return self._json(transaction.row(
                "SELECT * FROM saved WHERE user_id=? AND page=? AND name=?", tuple(key.values())))

    def delete(self, user_id, saved_id):
        """Remove a saved value; NotFound if it is not this user's."""
        with self._database.transaction() as transaction:
            if not transaction.run("DELETE FROM saved WHERE id=? AND user_id=?", (saved_id, user_id)):
                raise NotFound("There is no saved value %s." % saved_id)

    @staticmethod
    def _check_count(transaction, user_id):
        if transaction.value("SELECT count(*) FROM saved WHERE user_id=?", (user_id,)) > SAVED_MAX:
            raise Conflict("A user can save at most %d values: delete some." % SAVED_MAX)

    @staticmethod
    def _json(row):
        return {"id": row["id"], "page": row["page"], "name": row["name"],
                "value": json.loads(row["value"])}


# access/requests.py ----------------------------------------------------------
#
# Requests to add tasks, checked against function and person.
#
# A request, as POST /api/tasks has it, becomes an Order. HTTP, commands, Python and schedules use this room. A
# request is checked against REQUEST_SCHEMA, the function's own schema and the rights of the person. Requests in
# a row usually differ in their arguments only. So the rest of a request (a Frame) is checked once for all of
# them.

ARGUMENTS_HELD_BYTES = 8 << 20  # bytes of arguments in memory for one upload; further ones wait in a file
ARGUMENTS_MAX_CHARACTERS = 200_000
ADD_MAX = 100_000               # tasks in one transaction
AFTER_SUM_MAX = 200_000         # predecessors of all tasks in one request
REQUEST_SCHEMA = titled("NewTask", object_of(
    ("function",),
    function=TEXT,
    arguments=about({"type": "object"}, "as the function's schema says, see /api/functions"),
    run_at=about({"type": ["string", "null"], "format": "date-time"},
                 "such as 2026-01-31T12:00:00Z"),
    delay=about(number_within(0, 10 * 365 * 86400, ["number", "null"]),
                "seconds until it may start; not together with run_at"),
    owner=about(TEXT_OR_NULL, "the owner of the task; for admins"),
    after=about({"type": ["array", "null"], "items": integer_within(1, INTEGER_MAX),
                 "maxItems": AFTER_MAX}, "wait until these tasks of the same owner have succeeded"),
    after_failure=about({"enum": ["fail", "run", None]}, "if one of them does not succeed (fail)"),
    unique_key=about({**text_like(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}",
                              "must be 1 to 200 characters on one line"),
                      "type": ["string", "null"]}, "add nothing while an unfinished task has it"),
    **OPTION_SCHEMAS))


# A request of our DjangoBackend has this key. Django checks neither the arguments nor whether the function
# is known: the worker imports it.
DJANGO_MARK = "django"
DJANGO_FUNCTION = {"options": TASK_DEFAULTS, "who": "nobody", "schema": {
    "type": "object", "properties": {}}}


class Frame(NamedTuple):
    """A request without its arguments. `make` makes an Order of their JSON text, if there are no errors."""

    rest: "JsonObject"
    schema: "Schema"
    files: "list[str]"                # names of parameters
    errors: "list[FieldError]"
    make: "Callable[[str], Order]"


def file_parameters(schema):
    """Return the names of the parameters that are files, or lists of them."""
    return [name for name, parameter in schema["properties"].items()
            if any(part.get("format") in FILE_FORMATS for part in (parameter, parameter.get("items", {})))]


class Requests:
    """The maker of Orders from requests. The `person` None stands for the site's own code."""

    def __init__(self, database, catalogue):
        self._database = database
        self._catalogue = catalogue

    def check(self, requests, person=None,
              is_local=False):
        """Return the Orders for `requests`; Invalid names every error.

        An Invalid among `requests` stands for a line that could not be read. Only requests of this site's
        own processes (`is_local`) may have the DJANGO_MARK.
        """
        orders = []
        errors = []
        frame = None
        file = None
        index = named = held = 0
        for index, request in enumerate(requests):
            try:
                if index == ADD_MAX or named > AFTER_SUM_MAX:
                    raise TooLarge("At most %d tasks can be added at once, and name %d others." % (
                        ADD_MAX, AFTER_SUM_MAX))
                if isinstance(request, Invalid):
                    raise request
                frame = self._frame(request, person, frame, is_local)
                order = self._order(frame, request.get("arguments", {}))
                orders.append(order)
                named, held = named + len(order.after), held + order.size
                if held > ARGUMENTS_HELD_BYTES:
                    file = file or ArgumentsFile(self._database.folder)
                    file.move(order)
            except Invalid as error:
                errors += [{**field_fault, "index": index} for field_fault in error.errors]
                if len(errors) >= ERRORS_MAX:
                    break
        if errors:
            raise tasks_refused(errors, index == 0 and not isinstance(request, Invalid))
        return orders

    def function(self, name, person=None):
        """Return the function of this name; Invalid if there is none, or `person` may not add its tasks."""
        catalogue = self._catalogue
        if catalogue.find(name) is None:
            catalogue.refresh(wait=True)
        open_to = WHO_MAY_ADD if person is None else ROLES if person.is_admin else ("user",)
        function = catalogue.find(name)
        if function and function["who"] in open_to:
            return function
        functions, error = catalogue.functions(), catalogue.state()["error"]
        if error and not functions:
            raise Busy("The functions cannot be read at the moment: %s." % error["message"],
                       retry_after=10)
        names = [each["name"] for each in functions if each["who"] in open_to]
        raise field_error("function", "%s is not known; known are %s"
                          % (shorten(name, 60), ", ".join(names) or "none"))

    @staticmethod
    def _order(frame, arguments):
        rest, schema, files, frame_errors, make = frame     # unpacking is quicker than attributes
        errors = frame_errors + check_value(schema, arguments, "arguments")
        if not errors and POSITIONAL_COUNT in arguments and DJANGO_MARK not in rest:
            errors += wrong("arguments." + POSITIONAL_COUNT, "is a reserved name")
        if is_deep(arguments, JSON_MAX_DEPTH):
            errors += wrong("arguments", "must be nested at most %d levels deep" % JSON_MAX_DEPTH)
        if errors:
            raise Invalid("", errors)
        ordered = {key: arguments[key] for key in schema["properties"] if key in arguments}
        try:
            text = dump_json({**ordered, **arguments})        # in the order of the parameters
        except (ValueError, TypeError) as error:
            raise field_error("arguments", "cannot be written as JSON: %s" % error) from None
        if len(text) > ARGUMENTS_MAX_CHARACTERS:
            raise field_error("arguments", "are longer than %d characters"
                              % ARGUMENTS_MAX_CHARACTERS)
        order = make(text)
        if files:
            order.given = tuple(dict.fromkeys(re.findall(FILE_KEY, dump_json(
                [arguments.get(name) for name in files]))))
        return order

    def _frame(self, request, person, last, is_local):
        """Return the Frame of a request, or the `last` one if they are equal."""
        if not isinstance(request, dict):
            raise Invalid("", wrong("", "must be an object"))
        rest = {key: value for key, value in request.items() if key != "arguments"}
        if last and rest == last.rest:
            return last
        is_django = is_local and DJANGO_MARK in rest
        fields = {key: value for key, value in rest.items() if key != DJANGO_MARK} if is_django else rest
        errors = check_value(REQUEST_SCHEMA, fields, "")
        if any(error["field"] == "function" for error in errors):
            raise Invalid("", errors)
        function = ({"name": rest["function"], **DJANGO_FUNCTION} if is_django else
                    self.function(rest["function"], person))
        errors = errors or self._check_choices(rest, function["options"], person)
        make = functools.partial(Order, function["name"], options=function["options"])
        if errors:
            return Frame(rest, function["schema"], [], errors, make)
        run_at = rest.get("run_at") and parse_time(rest["run_at"], "run_at")
        if rest.get("delay") is not None:
            run_at = self._database.clock.now() + rest["delay"]
        chosen = {key: rest[key] for key in TASK_OPTIONS if key in rest}
        options = {**function["options"], **chosen} if chosen else function["options"]
        schema = function["schema"]
        return Frame(rest, schema, file_parameters(schema), [], functools.partial(
            make, options=options, run_at=run_at,
            after=tuple(dict.fromkeys(map(int, rest.get("after") or ()))),
            after_failure=rest.get("after_failure"), unique_key=rest.get("unique_key"),
            owner=rest.get("owner"),
            admin_id=person.id if person and function["who"] == "admin" else None,
            scope=person.visible_owner_id if person else None))

    def _check_choices(self, rest, declared,
                       person):
        """Return the errors of fields that exclude each other, of another queue, of choices for admins."""
        errors = []
        own, queue = declared["queue"], rest.get("queue", declared["queue"])
        is_user = person is not None and not person.is_admin
        if rest.get("run_at") is not None and rest.get("delay") is not None:
            errors += wrong("delay", "cannot be given together with run_at")
        if queue != own:
            chosen_queue, own_queue = (self._database.one("SELECT * FROM queue WHERE name=?", (name,))
                           for name in (queue, own))
            if any(row and row["external"] for row in (chosen_queue, own_queue)):
                errors += wrong("queue", "must be %s: no other queue runs this function" % own)
            elif is_user and (own != TASK_DEFAULTS["queue"] or not chosen_queue
                              or own_queue and is_limited(own_queue)):
                errors += wrong("queue", "must be %s: only an admin can choose another" % own)
        if is_user and rest.get("priority", 0) > 0:
            errors += wrong("priority", "must be 0 or less; higher ones are for admins")
        if is_user and rest.get("timeout", 0) > declared["timeout"]:
            errors += wrong("timeout", "must be at most %s, as the function says; longer ones are "
                                       "for admins" % plain(declared["timeout"]))
        if is_user and declared["on_crash"] == "fail" and rest.get("on_crash") == "retry":
            errors += wrong("on_crash", "must be fail, as the function says; only an admin can "
                                        "choose retry")
        return errors


# access/remote_workers.py ----------------------------------------------------
#
# Workers that ask over HTTP, from machines without the database.
#
# These workers run on machines that the site cannot reach. The site checks everything that they send. Each
# part of a call is answered on its own.
#
# 1. hello() stores a worker's row with its functions, under a random session id that the worker chose. A
#    function that the site does not have gets a queue which only remote workers serve.
# 2. turn() records the reports on the worker's attempts, and claims tasks with tokens that the worker chose.
#    If the answer is lost, the worker repeats the call and gets the same tasks. The call's sequence number
#    shows a late copy of an older call.
# 3. A claimed task begins only after the next turn has confirmed the claim. Without a confirmation the task
#    becomes pending again, at no cost, when the worker leaves or is silent for REMOTE_LEASE_SECONDS. A worker
#    that was killed and started again first delivers the outcomes of its old session, and ends that session.
# 4. A task that a running task adds belongs to the same owner. The Idempotency-Key of the call prevents that a
#    repeated call adds it again.

REMOTE_PROTOCOL = 2             # 2: a report may have samples
WAIT_MAX_SECONDS = 20.0
REMOTE_QUEUE = "remote"         # the queue of functions that declare no other
REMOTE_MAX = 64                 # limit of a token's workers, and of queues that only remote workers serve
PIECES_MAX = 1000               # pieces of logs in one call
ANNOUNCED_MAX = 256 << 10       # characters of the announcements of a token's workers; equal ones count once

_NONCE = text_like("[0-9a-f]{32}", "must be 32 hexadecimal digits")
_AT_MOST = {"type": "array", "maxItems": 200}
_ATTEMPT = {"id": integer_within(1, INTEGER_MAX), "claim": _NONCE}
_HELD = {**_ATTEMPT, "progress": or_null(number_within(0, 1)), "message": or_null(text_up_to(500)),
         "log": {**_AT_MOST, "items": object_of(
             ("start", "text"), start=integer_within(0, INTEGER_MAX // 2), text=text_up_to(PIECE_BYTES))}}
_SAMPLES = about({"type": "array", "maxItems": SAMPLES_MAX, "items": {
    "type": "array", "minItems": 3, "maxItems": 3, "items": number_within(0, INTEGER_MAX)}},
    "all so far, each as [seconds since the start, CPU seconds, bytes of memory]")
HELLO = titled("Hello", object_of(
    ("session", "protocol", "machine", "version", "functions"),
    session=_NONCE, protocol=integer_within(1, 1000), machine=QUEUE_LIMITS["machines"]["items"],
    version=text_up_to(200), pid=integer_within(1, INTEGER_MAX),
    functions={**_AT_MOST, "items": {"type": "object"}}))
TURN = titled("Turn", object_of(
    ("session", "sequence"),
    session=_NONCE, sequence=about(integer_within(1, INTEGER_MAX), "higher with each new call"),
    start={**_AT_MOST, "items": object_of(("id", "claim"), **_ATTEMPT)},
    hold={**_AT_MOST, "items": object_of(("id", "claim"), **_HELD, samples=_SAMPLES)},
    end={**_AT_MOST, "items": object_of(("id", "claim", "outcome"), **_HELD,
                                      outcome={"type": "object"})},
    claim=object_of(("claims",), claims={"type": "array", "maxItems": 64, "items": _NONCE},
                  function=about(TEXT_OR_NULL, "the function of all the claims, if there are several"),
                  wait=about(number_within(0, WAIT_MAX_SECONDS), "seconds to wait for a task")),
    leave=about(TEXT, "why the worker ends")))
# Announcements must match these. The schema in an announcement is shown, and arguments are checked with it.
_KIND = {"type": ["string", "array"], "pattern": "|".join(TYPES), "items": {"enum": list(TYPES)}}
_LENGTH, _NUMBER = integer_within(0, INTEGER_MAX), {"type": "number"}
_PARAMETER = object_of()
for _ in range(4):                      # levels of nested lists and objects
    _PARAMETER = object_of(
        type=_KIND, enum={"type": "array"}, enumNames={"type": "array", "items": TEXT}, default={},
        format={"enum": [*TEXT_FORMS, "password", "seconds"]}, description=text_up_to(2000),
        items=_PARAMETER, prefixItems={"type": "array", "items": _PARAMETER}, propertyNames=_PARAMETER,
        properties={"type": "object", "additionalProperties": _PARAMETER},
        additionalProperties={**_PARAMETER, "type": ["boolean", "object"]},
        required={"type": "array", "items": TEXT}, unclear=text_up_to(200),
        **dict.fromkeys(BOUNDS, _NUMBER), minItems=_LENGTH, maxItems=_LENGTH,
        minLength=_LENGTH, maxLength=_LENGTH, pattern=text_up_to(2000), patternMessage=text_up_to(500))
# Patterns whose matching time is linear in the text's length. Only the remote worker checks other patterns.
_QUICK_PATTERNS = r"\(\?s\)\(\?!-\)\.\*|-\?\[0-9\]\{1,15\}|(?:[^\\.*+?()\[\]{}^$]|\\[^A-Za-z0-9])*"
_ANNOUNCED = object_of(
    ("name", "title", "description", "schema", "options", "who"),
    name=text_like("(?!(%s|%s)$)[^\\x00-\\x1f\\x7f-\\x9f]{1,200}" % (SCRIPT_FUNCTION, SAMPLE_FUNCTION),
               "must be a name that jobqueue does not use itself"),
    title=text_up_to(1000), description=text_up_to(20_000), who={"enum": list(WHO_MAY_ADD)},
    options=object_of(**OPTION_SCHEMAS), schema={
        **object_of(("properties", "required")), "properties": {
            "type": {"enum": ["object"]}, "properties": {"type": "object"},
            "required": {**_AT_MOST, "items": TEXT},
            "additionalProperties": {**_PARAMETER, "type": ["boolean", "object"]}}})


def _without_slow_patterns(schema):
    """Return an announced schema without the patterns that could take long to match."""
    if isinstance(schema, list):
        return list(map(_without_slow_patterns, schema))
    if not isinstance(schema, dict):
        return schema
    return {name: _without_slow_patterns(part) for name, part in schema.items()
            if name != "pattern" or not isinstance(part, str) or re.fullmatch(_QUICK_PATTERNS, part)}


class RemoteWorkers:
    """The site's side of the protocol at the top of this room. `token` is Person.token."""

    def __init__(self, database, settings, claims, workers,
                 queues, files):
        self._database, self._settings, self._clock = database, settings, database.clock
        self._claims, self._workers, self._queues, self._files = claims, workers, queues, files

    def hello(self, token, call):
        """Make or renew a worker's row; return the limits and settings for it."""
        if call["protocol"] > REMOTE_PROTOCOL:
            raise field_error("protocol", "is %d, and this site speaks %d: its jobqueue.py is "
                              "older than this worker" % (call["protocol"], REMOTE_PROTOCOL))
        allowed = token.get("functions")
        errors = []
        functions = [function for function in call["functions"] if not function.pop("external", False)
                     and (allowed is None or function.get("name") in allowed)]
        for function in functions:
            errors += check_value(_ANNOUNCED, function, "functions") or check_value(
                {"type": "array", "items": _PARAMETER}, list(function["schema"]["properties"].values()),
                function["name"])
        if errors:
            raise refusal("This worker cannot be used", errors)
        for function in functions:
            function["schema"] = _without_slow_patterns(function["schema"])
            function["options"] = {**TASK_DEFAULTS, **function["options"]}
        with self._database.transaction() as transaction:
            for function in functions:
                self._place(transaction, token, function)
            now, key, text = self._clock.now(), (call["session"], token["id"]), dump_json(functions)
            self._check_room(transaction, key, text)
            row = {"machine": call["machine"], "version": call["version"],
                   "pid": call.get("pid"), "functions": text, **self._lease(now)}
            if not transaction.update("worker", row, "lock=? AND token_id=?", key):
                if transaction.value("SELECT count(*) FROM worker WHERE token_id=?",
                                     key[1:]) >= REMOTE_MAX:
                    raise Conflict("This token has %d workers already." % REMOTE_MAX)
                worker_id = transaction.insert("worker", {
                    **row, "lock": key[0], "token_id": key[1], "mode": "remote", "state": "idle",
                    "sequence": 0, "started_at": now})
                record_activity(transaction, now, "worker_started", worker_id=worker_id,
                     machine=call["machine"])
        names = "runner_tasks", "runner_memory", "runner_per_owner"
        return {"protocol": REMOTE_PROTOCOL, "version": VERSION, "renew_seconds": RENEW_SECONDS,
                "lease_seconds": REMOTE_LEASE_SECONDS,
                "settings": {name: self._settings.get(name) for name in names}}

    @staticmethod
    def _check_room(transaction, key, text):
        """Raise Invalid if the announcements of a token's workers, with this one, would be too large."""
        other_length = transaction.value(
            "SELECT sum(length(functions)) FROM (SELECT DISTINCT functions FROM worker "
            "WHERE lock<>? AND token_id=? AND functions<>?) AS announced", (*key, text)) or 0
        if len(text) + other_length > ANNOUNCED_MAX:
            raise refusal("This worker cannot be used", wrong(
                "functions", "of one token's workers are longer than %d characters" % ANNOUNCED_MAX))

    def turn(self, token, call):
        """Record a worker's reports; return the state of each reported attempt, and the claimed tasks.

        The reported outcomes are durable when this returns, so the worker may forget them.
        """
        starts, ended = call.get("start", []), {end["claim"]: end for end in call.get("end", ())}
        self._check_size(call)
        with self._database.transaction(bool(starts or ended)) as transaction:
            worker = self._check(transaction, token, call)
            now, held = self._clock.now(), self._held(transaction, token)
            states = {attempt["claim"]: self._hold(transaction, attempt, held.get(attempt["claim"]), now)
                      for attempt in starts + call.get("hold", [])}
            verdicts = self._end(transaction, ended.values(), held, now)
            for end, verdict in zip(ended.values(), verdicts):
                states[end["claim"]] = self._state(transaction, end, verdict)
            tasks = worker["tasks"] + sum(map(bool, verdicts))
            rows = self._claim(transaction, token, worker, call, now)
            busy = rows or "running" in states.values()
            transaction.update("worker", {
                "sequence": call["sequence"], "tasks": tasks, "state": "busy" if busy else "idle",
                **self._lease(now)}, "id=?", (worker["id"],))
            if "leave" in call:
                self._leave(transaction, worker["id"], call["leave"], tasks, now)
        for end, verdict in zip(ended.values(), verdicts):
            if verdict:
                self._files.tidy(end["id"], verdict)
        return {"attempts": states, "tasks": rows, "wait": 0}

    def _leave(self, transaction, worker_id, why, tasks,
               now):
        """Remove a worker's row. Its running tasks have crashed; unconfirmed ones become pending again."""
        self._workers.leave(transaction, worker_id, shorten(why, 99), tasks)
        for task in self._claims.leases.lost({worker_id}, now, transaction):
            if task["worker_id"] == worker_id:
                self._claims.end_lost(transaction, task, now)

    @staticmethod
    def _check_size(call):
        """Raise Invalid if a call names an attempt twice, or has so many pieces that it locks for long."""
        reports = [*call.get("hold", ()), *call.get("end", ())]
        claims = [attempt["claim"] for attempt in (*call.get("start", ()), *reports)]
        if len(claims) > len(set(claims)):
            raise field_error("claim", "is named twice in one call")
        if sum(len(report.get("log", ())) for report in reports) > PIECES_MAX:
            raise field_error("log", "must have at most %d pieces in one call" % PIECES_MAX)

    def claim_late(self, token, call):
        """Claim tasks that have become claimable since turn() found none; return them."""
        worker = self._check(self._database, token, call)
        reach = self._reach(token, worker, call["claim"]["claims"])
        if not self._claims.next_heads(self._database, self._clock.now(), reach=reach)[1]:
            return []
        with self._database.transaction(durable=False) as transaction:
            worker = self._check(transaction, token, call)
            return self._claim(transaction, token, worker, call, self._clock.now())

    def owner_of(self, token, task_id, claim):
        """Return the owner's id of a running task; Conflict if none of the token's workers runs it."""
        row = self._held(self._database, token).get(claim)
        if row is None or row["id"] != task_id:
            raise Conflict(CLAIM_LOST, gone=True)
        return row["owner_id"]

    def announced(self, token):
        """Return the names of the functions that this token's workers announced."""
        return [function["name"] for row in self._database.all(
            "SELECT functions FROM worker WHERE token_id=?", (token["id"],))
            for function in json.loads(row["functions"] or "[]")]

    @staticmethod
    def _check(db, token, call):
        """Return the worker's row; Conflict if it is gone, or a later call was answered before this one."""
        row = db.one("SELECT * FROM worker WHERE lock=? AND token_id=?",
                     (call["session"], token["id"]))
        if row is None:
            raise Conflict("This site no longer knows this worker: send hello again.",
                           gone=True)
        if row["sequence"] > call["sequence"]:
            raise Conflict("A later call of this worker has been answered.", gone=False)
        return row

    def _lease(self, now):
        lease = self._claims.leases.new(now, REMOTE_LEASE_SECONDS)
        return {"boot": lease.pop("lease_boot"), "seen_at": now, **lease}

    def _place(self, transaction, token, function):
        """Choose a queue for a function that the site does not have. Our own workers do not serve it."""
        ours = {row["name"]: json.loads(row["options"])["queue"]
                for row in transaction.all("SELECT name, options FROM function")}
        if function["name"] in ours:
            return
        allowed = token.get("queues") or ()
        for name in (function["options"]["queue"], REMOTE_QUEUE, *allowed):
            row = transaction.one("SELECT external FROM queue WHERE name=?", (name,))
            has_room = row or name == REMOTE_QUEUE or transaction.value(
                "SELECT count(*) FROM queue WHERE external=2") < REMOTE_MAX
            is_free = has_room and (not row or row["external"] or name in allowed and not (
                name in ours.values() or any(self._queues.count(transaction, status, name, 1)
                                             for status in range(len(STATUS_WORDS)))))
            if is_free and name != TASK_DEFAULTS["queue"] and (name in allowed or not allowed):
                break
        else:
            raise Conflict("%s needs a queue that no other function uses: give it one by @task "
                           "(queue=...) and let the token have it." % function["name"])
        function["options"]["queue"] = name
        transaction.ensure("queue", {"name": name, "created_at": self._clock.now()})
        transaction.update("queue", {"external": 2}, "name=? AND external=0", (name,))

    def _reach(self, token, worker, claims):
        names = [function["name"] for function in json.loads(worker["functions"])]
        return Reach(worker["machine"], names, token.get("queues"), claims)

    def _held(self, db, token):
        """Return {claim: row} of the running tasks of this token's workers."""
        return {row["claim"].lstrip(UNCONFIRMED): row for row in db.all(
            "SELECT id, claim, owner_id, attempts, cancel_requested, worker_id FROM task %s "
            "WHERE status=RUNNING AND worker_id IN (SELECT id FROM worker WHERE token_id=?)" % BY_CLAIM,
            (token["id"],))}

    def _hold(self, transaction, attempt, task,
              now):
        """Renew a claim, and store the attempt's log and progress; return its state."""
        if task is None or task["id"] != attempt["id"]:
            return self._state(transaction, attempt, None)
        self._claims.renew(transaction, attempt["id"], attempt["claim"], now, REMOTE_LEASE_SECONDS,
                           attempt.get("samples"))
        self._keep(transaction, attempt, task, now)
        return "cancel" if task["cancel_requested"] else "running"

    def _keep(self, transaction, attempt, task, now):
        """Store the progress and the new pieces of an attempt's log. A repeated call changes nothing."""
        if "progress" in attempt or "message" in attempt:
            self._claims.report(transaction, attempt["id"], attempt["claim"], attempt.get("progress"),
                                storable(attempt.get("message") or "") or None)
        place = attempt["id"], task["attempts"]
        length = log_length(transaction, *place) if attempt.get("log") else 0
        for piece in attempt.get("log", ()):
            if piece["start"] >= length and piece["text"]:
                append_log(transaction, now, *place, piece["start"], storable(piece["text"]))
                length = piece["start"] + len(piece["text"].encode("utf-8", "surrogatepass"))

    def _end(self, transaction, ended, held,
             now):
        """Record the ends of attempts; return a Verdict for each, or None for a lost claim."""
        endings = []
        for attempt in ended:
            task, outcome, claim = held.get(attempt["claim"]), self._outcome(attempt["outcome"]), ""
            if task and task["id"] == attempt["id"]:
                self._keep(transaction, attempt, task, now)
                claim = task["claim"] if outcome.kind == "put_back" else attempt["claim"]
            endings.append((attempt["id"], claim, outcome))
        return self._claims.end_all(transaction, endings, now)

    @staticmethod
    def _outcome(sent):
        """Return the outcome that a worker sent, or a failure if it cannot be stored."""
        try:
            return Outcome.parse(sent, OUTCOME_KINDS)
        except Invalid as error:
            return Outcome("fail", None, "StorageError", error.detail)

    @staticmethod
    def _state(transaction, attempt, verdict):
        """Return the recorded state of an attempt that does not run: a status, or "lost"."""
        if verdict:
            return STATUS_WORDS[verdict.status]
        status = transaction.value("SELECT status FROM task WHERE id=? AND claim=?",
                                   (attempt["id"], attempt["claim"]))
        return STATUS_WORDS[status] if status in ENDED else "lost"

    def _claim(self, transaction, token, worker, call,
               now):
        """Claim the tasks that a call asks for; return them. A repeated call gets the same tasks."""
        claim_request = call.get("claim")
        if not claim_request or not claim_request["claims"] or "leave" in call:
            return []
        rows = self._claimed(transaction, worker, claim_request["claims"])
        reach = self._reach(token, worker, claim_request["claims"])
        if not rows and reach.functions:
            self._claims.claim(transaction, worker["id"], now, len(reach.claims),
                               claim_request.get("function"), reach=reach)
            rows = self._claimed(transaction, worker, reach.claims)
        return rows

    @staticmethod
    def _claimed(transaction, worker, claims):
        """Return a worker's unconfirmed tasks with these claims, as the worker gets them."""
        names = [UNCONFIRMED + claim for claim in claims]
        rows = transaction.all(
            "SELECT task.id, function, arguments, attempts-put_backs AS attempt, crashes, timeout, "
            "on_crash, claim, user.name AS owner FROM task %s JOIN user ON user.id=owner_id "
            "WHERE status=RUNNING AND worker_id=? AND claim IN (%s) ORDER BY turn, task.id" % (
                BY_CLAIM, ", ".join("?" * len(names))), (worker["id"], *names))
        return [{**row, "claim": row["claim"][len(UNCONFIRMED):]} for row in rows]


# access/python_task.py -------------------------------------------------------
#
# Task and current_task(): a task as users' own code sees it.
#
# Code inside a task adds tasks through its worker, since a runner never opens the database.

if TYPE_CHECKING:
    class TaskOptions(TypedDict, total=False):
        """The options of the tasks of a function. TASK_OPTIONS has their schemas."""

        queue: "str"
        priority: "int"
        max_retries: "int"
        retry_delay: "float"
        retry_backoff: "float"
        timeout: "float"
        on_crash: "Literal['retry', 'fail']"
        remove_on_success: "bool"
        notify: "Literal['end', 'failure'] | None"

    class AddOptions(TaskOptions, total=False):
        """The options of added tasks. REQUEST_SCHEMA has their schemas."""

        delay: "float | None"
        run_at: "datetime | str | None"
        unique_key: "str | None"
        after: "After | None"
        after_failure: "Literal['fail', 'run'] | None"

    class UsingOptions(AddOptions, total=False):
        """The options of added tasks, and the name of their owner."""

        owner: "str | None"

    class TaskQueue(Protocol):
        """The part of a JobQueue that a Task uses."""

        database: "Database"
        files: "Files"
        tasks: "TaskList"
        actions: "Actions"
        starter: "Starter"
        catalogue: "Catalogue"
        tick: "Tick"
        users: "Users"

        def add_all(self, requests: "Iterable[JsonObject]", owner_id: "int") -> "Added": ...
        def store_files(self, function: "str", owner_id: "int", arguments: "JsonObject") -> "JsonObject": ...
        def get_json(self, task_id: "int") -> "JsonObject": ...
        def row_json(self, row: "TaskRow") -> "JsonObject": ...
        def start_workers(self) -> None: ...

    class Enqueued(Protocol[P]):
        """The part of a Function that Task.then() uses."""

        chosen: "UsingOptions"

        def using(self, **options: "Unpack[UsingOptions]") -> "Enqueued[P]": ...
        def enqueue(self, *positional: "P.args", **named: "P.kwargs") -> "Task": ...

    After = Union["Task", int, Collection[Union["Task", int]]]      # tasks or their ids


def _share(n: "Any", total: "Any") -> "float | None":
    """Return n / total as a plain float from 0 to 1; None if that is not a number."""
    try:
        are_whole = isinstance(n, int) and isinstance(total, int)
        share = n / total if are_whole else float(n) / float(total)
        return None if share != share else max(0.0, min(1.0, share))
    except ZeroDivisionError:
        return None
    except Exception as error:
        print("progress() takes two numbers: %s" % _text(error), file=sys.stderr)
        return None


def _text(value: "object") -> "str":
    """Return a value as text; the name of its class if str() fails."""
    try:
        return str(value)
    except Exception:
        return "<%s>" % type(value).__name__


class TaskContext:
    """The running task, as its function sees it. The runner makes a TaskContext for each attempt."""

    running: "TaskContext | None" = None  # the task that this process runs, if it is a runner

    def __init__(self, task_id: "int", owner: "str", attempt: "int", crashes: "int", claim: "str", data: "Path",
                 report: "Callable[[float | None, str | None], None]",
                 enqueue: "Callable[[list[JsonObject]], Added]") -> None:
        self.id, self.owner, self.claim = task_id, owner, claim
        self.attempt, self.crashes = attempt, crashes
        self.data, self._report = data, report
        self.enqueue = enqueue          # adds tasks of the same owner through the worker
        self.has_folder = False         # True once the folder was used
        # The runner sets functions that ask the worker.
        self.ask_results: "Callable[[], list[Any]]" = list
        self.ask_task: "Callable[[int], Any] | None" = None   # None: a worker of another machine

    def progress(self, n: "float", total: "float" = 1, message: "str | None" = None) -> None:
        """Report that `n` of `total` is done. The `message` may name the current step.

        Numbers of any kind are allowed. Other values show no progress, and an error is written to the log.
        """
        self._report(_share(n, total), None if message is None else _text(message))

    @property
    def folder(self) -> "Path":
        """Return the task's own folder, made at first use and removed with the task.

        The files that are in it when the task ends can be seen and downloaded.
        """
        path = task_folder(self.data, self.id)
        for folder in (path.parent, path):
            folder.mkdir(exist_ok=True, mode=0o700)
        self.has_folder = True
        return path

    @property
    def results(self) -> "list[Any]":
        """Return the results of the tasks in this task's `after`, in that order."""
        return self.ask_results()


def current_task() -> "TaskContext | Any":
    """Return the TaskContext of the task that runs this code, or None outside a task."""
    # The annotation leaves out None, so the function of a task need not test for it.
    return TaskContext.running


def _ids(after: "After") -> "list[int]":
    """Return the ids of the tasks in `after`: a task or an id, or several."""
    items: "Iterable[Any]" = after if isinstance(after, (list, tuple, set, frozenset)) else [after]
    return [getattr(item, "id", item) for item in items]


def enqueue_all(place: "TaskQueue | TaskContext", function: "str", many: "Iterable[Any]",
                options: "UsingOptions") -> "Added":
    """Add a task for each of `many` argument objects. Inside a task its worker adds them."""
    chosen: "JsonObject" = {**options}
    owner = chosen.pop("owner", None)
    if chosen.get("after") is not None:
        chosen["after"] = _ids(chosen["after"])
    if isinstance(chosen.get("run_at"), datetime):
        chosen["run_at"] = chosen["run_at"].isoformat()
    if not isinstance(place, TaskContext):
        owner_id = place.users.owner(owner)["id"]
        take = functools.partial(place.store_files, function, owner_id)
        return place.add_all(({"function": function, **chosen, "arguments": _plain(arguments, take)}
                              for arguments in many), owner_id)
    if owner not in (None, place.owner):
        raise field_error("owner", "cannot be chosen inside a task: the tasks that it adds belong to its "
                                   "owner, %s"
                          % place.owner)
    return place.enqueue([{"function": function, **chosen, "arguments": _plain(arguments)}
                          for arguments in many])


def _plain(arguments: "Any", take_files: "Callable[[JsonObject], JsonObject] | None" = None) -> "Any":
    """Return arguments as JSON has them: files as ids of copies, other paths as text, bytes as Base64."""
    if type(arguments) is dict and {*map(type, arguments)} <= {str} and (
            {*map(type, arguments.values())} <= PLAIN_WORDS.keys()):
        return dict(arguments)
    if take_files and isinstance(arguments, dict) and any(
            isinstance(item, Path) for value in arguments.values()
            for item in (value if isinstance(value, (list, tuple)) else [value])):
        arguments = take_files(arguments)
    return argument_value(arguments)


class TaskFile(NamedTuple):
    """A file that a task left, or was given."""

    name: "str"
    size: "int"
    path: "Path"


class Task:
    """A task for Python code: attributes named like the JSON keys, and the actions on the task."""

    id: "int"
    owner: "str"
    function: "str"
    summary: "str"
    queue: "str"
    status: "str"
    reason: "str | None"
    priority: "int"
    run_at: "str | None"
    unique_key: "str | None"
    after: "list[int]"
    after_failure: "str | None"
    attempts: "int"
    crashes: "int"
    max_retries: "int"
    retries_left: "int"
    retry_delay: "float"
    retry_backoff: "float"
    timeout: "float"
    on_crash: "str"
    remove_on_success: "bool"
    notify: "str | None"
    cancel_requested: "bool"
    progress: "float | None"
    message: "str | None"
    error: "JsonObject | None"
    worker: "int | None"
    schedule: "int | None"
    created_at: "str"
    started_at: "str | None"
    finished_at: "str | None"
    arguments: "JsonObject"
    result: "Any"
    samples: "list[JsonObject] | None"
    predecessors: "list[JsonObject]"
    followers: "list[JsonObject]"
    blocked: "str | None"
    blocked_text: "str | None"

    def __init__(self, place: "TaskQueue | TaskContext", values: "JsonObject",
                 created: "bool" = False) -> None:
        self._place = place             # the queue; in a runner, which has none, the running task
        self.id = values["id"]
        self.created = created          # False if another task had its unique_key already
        self._values = values

    if not TYPE_CHECKING:               # a type checker must know no other names than those above
        def __getattr__(self, name: "str") -> "Any":
            values = self.__dict__.get("_values", {})
            if isinstance(self.__dict__.get("_place"), TaskContext):
                raise AttributeError("inside a task, other tasks are known by their id only")
            if set(values) == {"id"}:
                values = self.refresh()._values
            try:
                return values[name]
            except KeyError:
                raise AttributeError(name) from None

    def __repr__(self) -> "str":
        return "<Task %s>" % " ".join(filter(None, [str(self.id), self._values.get("status")]))

    @property
    def _queue(self) -> "TaskQueue":
        """Return the JobQueue of the task; RuntimeError in a runner."""
        if isinstance(self._place, TaskContext):
            raise RuntimeError("inside a task, other tasks are known by their id only")
        return self._place

    @property
    def files(self) -> "list[TaskFile]":
        """Return a TaskFile for each file that the task left, then for each that it was given."""
        files = self.refresh()._queue.files
        return [TaskFile(row["name"], row["size"], files.path(row, self.id))
                for row in files.of_task(self.id)]

    @property
    def is_finished(self) -> "bool":
        """Return True once the task cannot change by itself any more."""
        return self.status in ("succeeded", "failed", "cancelled")

    def refresh(self) -> "Task":
        """Read the task again; return itself. NotFound if it was deleted.

        A task that was removed on success keeps its owner, function and status, and has no result.
        """
        queue = self._queue
        try:
            self._values = queue.get_json(self.id)
        except NotFound:
            row = queue.tasks.removed(self.id)
            self._values = {"id": self.id, "status": "succeeded", "result": None, "error": None,
                            "owner": row["owner"], "function": row["function"],
                            "finished_at": iso(row["at"])}
        return self

    def wait(self, timeout: "float | None" = None) -> "Task":
        """Wait until the task has finished; return itself. TimeoutError after `timeout` seconds."""
        if current_task():
            raise RuntimeError("a task must not wait for another task: two workers that wait for "
                               "each other never end")
        clock, pause = self._queue.database.clock, 0.02
        deadline = math.inf if timeout is None else clock.monotonic() + timeout
        while not self._has_ended():
            remaining = deadline - clock.monotonic()
            if remaining < 0:
                raise TimeoutError("task %d is still %s" % (self.id, self.refresh().status))
            self._queue.tick.maybe("code")
            with contextlib.suppress(JobQueueError):
                self._queue.starter.work_slice(min(remaining, SLICE_SECONDS))
            clock.sleep(pause)
            pause = min(1.0, pause * 1.3)
        return self.refresh()

    def _has_ended(self) -> "bool":
        try:
            return self._queue.tasks.get(self.id)["status"] in ENDED
        except NotFound:
            return self.refresh().is_finished

    def then(self, function: "Enqueued[P]", *positional: "P.args", **named: "P.kwargs") -> "Task":
        """Add a task of another function, for the same owner. It runs after this task has succeeded.

        For several predecessors: other.using(after=[a, b], after_failure="run").enqueue(...).
        """
        chosen: "UsingOptions" = {**function.chosen}
        if not current_task():          # inside a task the running task's owner is used
            chosen.setdefault("owner", self.owner)
        chosen["after"] = [*_ids(chosen.get("after") or []), self.id]
        return function.using(**chosen).enqueue(*positional, **named)

    def cancel(self) -> "Task":
        """Cancel the task; Conflict if it has ended."""
        return self._changed(self._queue.actions.cancel(self.id))

    def retry(self) -> "Task":
        """Make the task pending again; Conflict unless it failed or was cancelled."""
        self._queue.catalogue.refresh()     # the file tasks.py may have changed
        return self._changed(self._queue.actions.retry(self.id))

    def delete(self) -> None:
        """Remove the task."""
        self._queue.actions.delete(self.id)
        self._queue.start_workers()

    def _changed(self, row: "TaskRow") -> "Task":
        """Start workers, and store the task's new row in this object; return itself."""
        self._queue.start_workers()
        self._values = self._queue.row_json(row)
        return self


# access/python_interface.py --------------------------------------------------
#
# JobQueue, Function, @task, @schedule, command, http_request, external.
#
# These are for users' own code. JobQueue is the queue of a data folder; a Task is one of its rows. @task,
# command(), http_request() and external() make a Function. current_task() returns the TaskContext of a running
# function.
# Code inside a task adds tasks through its worker, since a runner never opens the database. Importing this
# room declares nothing and opens nothing.

if TYPE_CHECKING:
    Who = Literal["user", "admin", "nobody"]
    Declared = TypeVar("Declared", bound=Callable[..., Any])    # a Python function or a Function

    class Declaring(Protocol):
        """The decorator that @task(...) returns. It makes a Function of a Python function."""

        def __call__(self, __target: "Callable[P, R]") -> "Function[P, R]": ...


class JobQueue:
    """The queue of one data folder. Each web server, command, worker and test opens one."""

    def __init__(self, data: "Path | str | None" = None, clock: "AnyClock" = Clock,
                 environment: "Mapping[str, str]" = os.environ,
                 patience: "float" = WEB_PATIENCE_SECONDS) -> None:
        folder = data_folder(data, environment)
        self.database = open_database(
            folder, clock, patience, database_address(folder, environment))
        try:
            self.settings = Settings(self.database, environment)
        except BaseException:
            self.close()
            raise
        self.files = Files(self.database, self.settings)
        self.adding = Adding(self.database, self.settings, self.files)
        self.tasks = TaskList(self.database)
        self.actions = Actions(self.database, self.tasks, self.adding)
        self.queues = Queues(self.database)
        self.claims = Claims(self.database, self.queues, self.files, self.tasks)
        self.tick_history = TickHistory(self.database)
        self.interpreter = Interpreter(self.settings)
        self.modes = Modes(self.database, self.settings, self.claims, self.tick_history)
        self.workers = Workers(self.database, self.settings, self.claims, self.modes)
        self.reaper = Reaper(self.database, self.claims, self.workers, self.modes)
        self.starter = Starter(self.database, self.settings, self.claims, self.interpreter,
                               self.modes, self.workers, self.reaper)
        self.catalogue = Catalogue(self.database, self.interpreter)
        self.requests = Requests(self.database, self.catalogue)
        self.remote = RemoteWorkers(self.database, self.settings, self.claims, self.workers,
                                    self.queues, self.files)
        self.rollup = Rollup(self.database)
        self.metrics = Metrics(self.database, self.settings, self.rollup)
        self.forecast = Forecast(self.database, self.settings, self.claims, self.queues,
                                 self.modes, self.tick_history, self.metrics)
        self.conditions = Conditions(self.database, self.settings, self.claims, self.tick_history,
                                     self.modes, self.catalogue)
        self.alerts = Alerts(self.database, self.settings, self.conditions, self.starter)
        self.summaries = Summaries(self.database, self.settings, self.metrics)
        self.users = Users(self.database, self.settings)
        self.setup = SetUp(self.database, self.users)
        self.sessions = Sessions(self.database)
        self.tokens = Tokens(self.database)
        self.invitations = Invitations(self.database, self.users, self.tokens)
        self.saved = Saved(self.database)
        self.schedule_runner = ScheduleRunner(self.database, self.adding, self.requests.check,
                                              self.users.person)
        self.schedules = Schedules(self.database, self.tasks, self.schedule_runner,
                                   self.catalogue.schedules, self.users.owner)
        self.retention = Retention(self.database, self.settings, self.actions, self.rollup)
        self.tick = Tick(self.database, self.settings, self.claims, self.tick_history, self.workers,
                         self.reaper, self.starter, self.schedule_runner, self.schedules, self.rollup,
                         self.retention, self.alerts, self.summaries, self.files)

    def enqueue(self, function: "str", arguments: "Mapping[str, Any] | None" = None,
                owner: "str | None" = None, **options: "Unpack[AddOptions]") -> "Task":
        """Add one task; return it. Invalid names every wrong field."""
        place = TaskContext.running or self
        added = enqueue_all(place, function, [arguments or {}], {**options, "owner": owner})
        return Task(self, {"id": added.ids[0]}, bool(added.new))

    def enqueue_many(self, function: "str", many: "Iterable[Mapping[str, Any]]",
                     owner: "str | None" = None, **options: "Unpack[AddOptions]") -> "list[int]":
        """Add a task for each of `many` argument objects (any iterable), all or none; return the ids."""
        return enqueue_all(TaskContext.running or self, function, many, {**options, "owner": owner}).ids

    def get(self, task_id: "int") -> "Task":
        """Return a task by its id; NotFound if there is none."""
        return Task(self, self.get_json(task_id))

    def get_json(self, task_id: "int", owner_id: "int | None" = None) -> "JsonObject":
        """Return a task with all its keys; NotFound if it is not this owner's (None: any owner's)."""
        return self.row_json(self.tasks.get(task_id, owner_id))

    def row_json(self, row: "TaskRow") -> "JsonObject":
        """Return a task as get_json() does, from its row. The task may have been deleted since."""
        shown, code, words = self.tasks.full_json(row), None, None
        if shown["status"] == "pending":
            code, words = self.queues.blocked(shown["queue"], self.claims.machine, row["owner_id"])
        return {**shown, "blocked": code, "blocked_text": words}

    def store_files(self, function: "str", owner_id: "int", arguments: "JsonObject") -> "JsonObject":
        """Copy the files that arguments name by path; return the arguments with the ids of the copies."""
        def take(value: "Any") -> "Any":
            return ([take(item) for item in value] if isinstance(value, (list, tuple)) else
                    self.files.store_copy(value, owner_id) if isinstance(value, Path) else value)
        self.catalogue.refresh()
        declared_function = self.requests.function(function)
        return {**arguments, **{name: take(arguments[name]) for name in file_parameters(
            declared_function["schema"]) if name in arguments}}

    def add(self, requests: "Iterable[Any]", owner_id: "int") -> "list[int]":
        """Add tasks for `requests` (as in POST /api/tasks), all or none; return the ids."""
        return self.add_all(requests, owner_id).ids

    def add_all(self, requests: "Iterable[Any]", owner_id: "int", adding_task_id: "int | None" = None) -> "Added":
        """Add tasks as add() does, also for a running task; return the ids and how many are new."""
        self.catalogue.refresh()
        orders = self.requests.check(requests, is_local=True)
        added = self.add_orders(orders, owner_id, adding_task_id=adding_task_id)
        self.start_workers()
        return Added(added["ids"], added["created"])

    def add_orders(self, orders: "list[Order]", owner_id: "int", idempotency: "IdempotencyRecord | None" = None,
                   adding_task_id: "int | None" = None) -> "JsonObject":
        """Add Orders, all or none; return {"ids", "created": how many are new}.

        A repeated request with the same `idempotency` gets the ids of the first answer. `adding_task_id`
        is the id of the running task that adds them, if there is one.
        """
        def action(transaction: "Connection") -> "JsonObject":
            now = self.database.clock.now()
            answer = idempotency.find(transaction, now) if idempotency else None
            if answer:
                return answer
            ids, created = self.adding.add(transaction, owner_id, orders, now, adding_task_id)
            added: "JsonObject" = {"ids": ids, "created": created}
            if idempotency:
                idempotency.keep(transaction, added, now)
            return added
        write = self.database.together if len(orders) <= FEW_ORDERS else self.database.alone
        return write(action)

    def delete_queue(self, name: "str", who: "str") -> None:
        """Remove a queue that holds no tasks and that no function names."""
        self.queues.delete(name, who, {function["options"]["queue"]
                                       for function in self.catalogue.functions()})

    def start_workers(self) -> None:
        """Start workers for added tasks. If that fails, a later tick tries again."""
        with print_errors("starting workers"):
            if not self.tick.maybe("code") and self.reaper.burials.begin_if_due():
                self.reaper.bury_dead()         # the row of a killed worker would count as a worker
            self.starter.start_needed(self.tick.sleepers_missing())

    def close(self) -> None:
        """Close the database."""
        self.database.close()


_opened: "dict[int, JobQueue]" = {}       # {process id: its queue}: a connection must not cross a fork


def default_queue() -> "JobQueue":
    """Return the JobQueue of this process, for code that opened none itself."""
    return _opened.get(os.getpid()) or _opened.setdefault(os.getpid(), JobQueue())


class CodePlace(NamedTuple):
    """A line of users' code."""

    file: "str"
    line: "int"


def calling_place() -> "CodePlace":
    """Return the line of users' code that called this program."""
    frame: "FrameType | None" = sys._getframe(1)
    while frame and frame.f_back and frame.f_globals is globals():
        frame = frame.f_back
    return CodePlace(frame.f_code.co_filename, frame.f_lineno) if frame else CodePlace("", 0)


class Function(Generic[P, R]):
    """A function of tasks.py, as @task or command() made it. A call runs it here; enqueue() adds a task."""

    def __init__(self, name: "str", kind: "str", target: "Callable[P, R] | JsonObject | list[str] | None",
                 options: "JsonObject", who: "str", parameters: "JsonObject | None",
                 description: "str | None" = None, help_texts: "Mapping[str, str]" = {}) -> None:
        self.name, self.who, self.options = name, who, options
        self.kind = kind                # python, command, http_request, external or script
        self.target: "Any" = target       # a callable, list or dictionary, by its kind
        self.parameters = parameters    # {name: annotation or default}; None: as in the signature
        self.chosen: "UsingOptions" = {}  # options of using(), for the tasks that it adds
        self.place = calling_place()
        self.help_texts = help_texts    # {parameter: text below its field}, beside those of the docstring
        self.__doc__ = description or (target.__doc__ if callable(target) else None)
        self.__module__ = getattr(target, "__module__", __name__)

    def __reduce__(self) -> "str | tuple[Any, ...]":
        """Return its name to pickle, as Python does for functions. Process pools need that."""
        name = getattr(self.target, "__qualname__", self.name)
        value: "Any" = sys.modules.get(self.__module__)
        for part in name.split("."):
            value = getattr(value, part, None)
        return name if value is self else super().__reduce__()

    def __call__(self, *positional: "P.args", **named: "P.kwargs") -> "R":
        """Run the function here."""
        if self.kind != "python":
            raise TypeError("%s is run by workers: use .enqueue()" % self.name)
        return self.target(*positional, **named)

    def using(self, **options: "Unpack[UsingOptions]") -> "Function[P, R]":
        """Return a Function that adds its tasks with these options, too."""
        variant: "Function[P, R]" = Function(
            self.name, self.kind, self.target, self.options, self.who, self.parameters,
            self.__doc__, self.help_texts)
        variant.chosen = {**self.chosen, **options}
        return variant

    def enqueue(self, *positional: "P.args", **named: "P.kwargs") -> "Task":
        """Add a task with these arguments; return the Task."""
        place = TaskContext.running or default_queue()
        arguments = self.arguments(positional, named)
        added = enqueue_all(place, self.name, [arguments], self.chosen)
        return Task(place, {"id": added.ids[0]}, bool(added.new))

    def enqueue_many(self, many: "Iterable[Mapping[str, Any]]") -> "list[int]":
        """Add a task for each argument object in `many` (any iterable), all or none; return the ids."""
        return enqueue_all(TaskContext.running or default_queue(), self.name, many, self.chosen).ids

    def arguments(self, positional: "tuple[Any, ...]", named: "JsonObject") -> "JsonObject":
        """Return the arguments by name; TypeError if they do not fit the parameters."""
        by_name: "JsonObject"
        if self.parameters is None:
            import inspect
            signature = inspect.signature(self.target)
            by_name = signature.bind(*positional, **named).arguments
            for parameter in signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    by_name.update(by_name.pop(parameter.name, {}))
        elif len(positional) > len(self.parameters):
            raise TypeError("%s takes at most %d arguments" % (self.name, len(self.parameters)))
        else:
            by_name = {**dict(zip(self.parameters, positional)), **named}
        return dict(by_name)


PLACE = r"\{([A-Za-z_]\w*)\}"           # where a parameter's value is put
declared: "dict[str, Function[..., Any]]" = {}    # {name: Function}, filled while tasks.py is imported


class ScheduleLine(NamedTuple):
    """A use of @schedule: the name of its function, its fields, and its line in the code."""

    name: "str"
    given: "JsonObject"
    place: "CodePlace"


scheduled: "list[ScheduleLine]" = []      # filled while tasks.py is imported


def _declare(name: "str", kind: "str", target: "Callable[P, R] | JsonObject | list[str] | None",
             who: "str", keywords: "JsonObject", text: "str" = "") -> "Function[P, R]":
    """Declare a Function and return it.

    Keywords named like options are options; other keywords are parameters. `description` and `help` describe
    the function and its parameters, unless they have a {place}. Each {place} in `text` needs a parameter.
    Each parameter of a command needs a {place}.
    """
    options: "JsonObject" = keywords
    parameters: "JsonObject | None" = None
    places, description, help_texts = set(re.findall(PLACE, text)), None, {}
    if kind != "python":
        if isinstance(keywords.get("description"), str) and "description" not in places:
            description = keywords.pop("description")
        if isinstance(keywords.get("help"), Mapping) and "help" not in places:
            help_texts = keywords.pop("help")
        options = {key: value for key, value in keywords.items() if key in TASK_OPTIONS}
        parameters = {key: value for key, value in keywords.items() if key not in TASK_OPTIONS}
    errors = check_value(object_of(**OPTION_SCHEMAS), options, "")
    if who not in WHO_MAY_ADD:
        errors += wrong("who", "must be one of %s" % ", ".join(WHO_MAY_ADD))
    if name in ("", SCRIPT_FUNCTION, SAMPLE_FUNCTION):
        errors += wrong("its name", "is missing or one of jobqueue's own")
    named = set(parameters or ())
    for parameter in sorted(help_texts.keys() - named):
        errors += wrong("help", "names %s, which is no parameter" % parameter)
    for place in sorted(places - named):
        errors += wrong("{%s}" % place, "is no parameter")
    for place in sorted(named - places if kind == "command" else ()):
        errors += wrong("{%s}" % place, "has no place")
    earlier = declared.get(name)
    if earlier is not None and earlier.target is not target and (
            getattr(earlier.target, "__module__", 1) == getattr(target, "__module__", 1)):
        errors += wrong("two functions", "are called %s: rename one, or put @functools.wraps into the "
                                         "decorator that made them" % name)
    if errors:
        raise ValueError("%s: %s" % (name, join_errors(errors)))
    function: "Function[P, R]" = Function(
        name, kind, target, {**TASK_DEFAULTS, **options}, who, parameters, description, help_texts)
    declared[name] = function
    return function


if TYPE_CHECKING:
    @overload
    def task(target: "Callable[P, R]", *, who: "Who" = "user",
             **options: "Unpack[TaskOptions]") -> "Function[P, R]": ...
    @overload
    def task(*, who: "Who" = "user", **options: "Unpack[TaskOptions]") -> "Declaring": ...


def task(target: "Callable[P, R] | None" = None, *, who: "Who" = "user",
         **options: "Unpack[TaskOptions]") -> "Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]":
    """Declare a Python function that tasks can run: @task or @task(max_retries=3, ...)."""
    def declare(function: "Callable[P, R]") -> "Function[P, R]":
        return _declare(_name_of(function), "python", function, who, {**options})
    return declare(target) if target is not None else declare


def _name_of(target: "Any") -> "str":
    """Return the name of the object below @task; TypeError if it can never run as a task."""
    name = getattr(target, "__name__", "")
    outer = getattr(target, "__qualname__", "").rpartition(".")[0]
    code = getattr(target, "__code__", None)
    if isinstance(target, Function):
        raise TypeError("task(%s): it is declared already: remove one of the declarations" % target.name)
    if not callable(target):
        raise TypeError("task(%r): it is no function: write @task above a function, and options as "
                        "@task(timeout=60)" % (target,))
    if name in ("", "<lambda>"):
        raise TypeError("task(%s): it has no name: declare it with def" % (name or target))
    if outer and not outer.endswith("<locals>") and code and code.co_varnames[:1] in (("self",), ("cls",)):
        raise TypeError("task(%s): it is a method, and no task has its object: declare a function that "
                        "calls it" % target.__qualname__)
    return name


def schedule(rule: "str", zone: "str | None" = None, arguments: "Mapping[str, Any] | None" = None,
             catch_up: "Literal['none', 'once', 'all']" = "once",
             overlap: "Literal['skip', 'queue', 'allow']" = "skip", *, name: "str | None" = None,
             **options: "Unpack[TaskOptions]") -> "Callable[[Declared], Declared]":
    """Declare a schedule of a function of tasks.py, above or below @task. A function may have several.

    Its tasks get `arguments`, by name, and `options`, which are those of @task. A schedule with a `name`
    keeps its identity and pause even if everything else changes.
    """
    fields = {"name": name, "rule": rule, "zone": zone or "UTC", "catch_up": catch_up, "overlap": overlap,
             "arguments": json.loads(dump_json(arguments or {})), "options": options}
    errors = (check_value(SCHEDULE_SCHEMA, {"function": "", **fields}, "")
              or plan_errors(fields, Clock.now()))
    if errors:
        raise ValueError("schedule(%r): %s" % (rule, join_errors(errors)))

    def declare(function: "Declared") -> "Declared":
        of = str(getattr(function, "module_path", None)         # a task of Django
                 or getattr(function, "name", None) or getattr(function, "__name__", function))
        scheduled.append(ScheduleLine(of, fields, calling_place()))
        return function
    return declare


# Parameters with two underscores are positional only, so `rest` may have parameters of these names.
def command(__name: "str", __arguments: "Sequence[str | Path]", *, who: "Who" = "user",
            **rest: "Any") -> "Function[..., NoReturn]":
    """Declare a program and its arguments, with {places} for the parameters. No shell is used.

    Keywords that are options of tasks are options. description="..." and help={"parameter": "..."} are
    shown in the form. Other keywords are parameters, with a type or a default value.
    """
    if isinstance(__arguments, str) or not all(isinstance(part, (str, Path)) for part in __arguments):
        raise TypeError("command(%r): the program and its arguments must be a list of texts" % __name)
    parts = [str(part) for part in __arguments]
    return _declare(__name, "command", parts, who, rest, " ".join(parts))


def http_request(__name: "str", __method: "str", __address: "str", *, who: "Who" = "user",
                 headers: "Mapping[str, str] | None" = None, **rest: "Any") -> "Function[..., NoReturn]":
    """Declare an HTTP request, with {places} for parameters in the path and the query.

    Parameters without a place become the JSON body, or with GET, HEAD and DELETE the query. The keywords are
    as in command().
    """
    if not re.match(r"https?://[^/{}@\s]+(/|$)", __address):
        raise ValueError("http_request(%r): the address must begin with http:// or https:// and a "
                         "host, without places, name or password" % __name)
    for header, value in (headers or {}).items():
        if not re.fullmatch(r"[\t -~\xa0-\xff]*", str(value)):     # a later error would show the value
            raise ValueError("http_request(%r): the header %s holds a line break or another "
                             "character that cannot be sent" % (__name, header))
    target = {"method": __method.upper(), "address": __address, "headers": dict(headers or {})}
    return _declare(__name, "http_request", target, who, rest, __address)


def external(__name: "str", *, queue: "str", who: "Who" = "user", **rest: "Any") -> "Function[..., NoReturn]":
    """Declare a function that workers in any language run: see static/docs/workers.md.

    Our own workers do not serve its queue, so no other function may use that queue. The keywords are as in
    command().
    """
    if queue == TASK_DEFAULTS["queue"]:
        raise ValueError("external(%r): the queue must be one of its own, not %s" % (__name, queue))
    return _declare(__name, "external", None, who, {**rest, "queue": queue})


# access/django_project.py ----------------------------------------------------
#
# Django's tasks as functions: the names of Django's interface, and django_project() for tasks.py.
#
# django_project() sets Django up and declares the tasks of the installed apps, each as a DjangoFunction. The
# backend of the site is in access/django_backend.
#
# Rules: importing jobqueue imports no Django. The arguments of Django's tasks are JSON values, as Django
# stores them: they are neither converted nor checked against type hints. Only the form of the page uses the
# hints.

                    # a Task of Django; no Django is installed beside the type checker


project_folders = []         # folders of the projects that tasks.py names
project_settings = []        # the settings of each


class DjangoNames(NamedTuple):
    """The classes and modules of Django's task interface, by one set of names for all its versions."""

    package: "str"                        # django.tasks or django_tasks
    backend: "type"
    task: "type"
    result: "Any"
    error: "Any"
    context: "Any"
    statuses: "Mapping[str, Any]"         # by our words of statuses
    invalid: "type[Exception]"
    missing: "type[Exception]"            # there is no such result
    backends: "Any"                       # the handler of the setting TASKS
    signals: "Any"
    normalize: "Callable[[Any], Any]"     # returns a value as JSON has it, or raises TypeError


@functools.lru_cache(maxsize=None)
def django_module(name):
    """Return a module of Django, such as "conf"."""
    return importlib.import_module("django." + name)


@functools.lru_cache(maxsize=None)
def django_names():
    """Import Django's task interface; ImportError if this Python has none."""
    for package in ("django.tasks", "django_tasks"):
        try:
            importlib.import_module(package)
            break
        except ModuleNotFoundError as error:
            if error.name not in ("django", package):
                raise
    else:
        raise ImportError("jobqueue.DjangoBackend needs Django 6.0 or newer, or the package django-tasks "
                          "(pip install django-tasks). The Python %s has neither." % sys.executable)
    modules = []
    for name in (package, package + ".base", package + ".task", package + ".backends.base",
                 package + ".exceptions", package + ".utils", "django.utils.json"):
        try:
            modules.append(importlib.import_module(name))
        except ModuleNotFoundError:     # each version has some of them
            continue

    def find(*names):
        return next(getattr(module, name) for name in names for module in modules
                    if hasattr(module, name))
    status = find("TaskResultStatus", "ResultStatus")
    ready, successful = status.READY, getattr(status, "SUCCESSFUL", None) or status.SUCCEEDED
    return DjangoNames(
        package, find("BaseTaskBackend"), find("Task"), find("TaskResult"), find("TaskError"),
        find("TaskContext"),
        {"pending": ready, "scheduled": ready, "waiting": ready, "running": status.RUNNING,
         "succeeded": successful, "failed": status.FAILED, "cancelled": status.FAILED},
        find("InvalidTask", "InvalidTaskError"), find("TaskResultDoesNotExist", "ResultDoesNotExist"),
        find("task_backends", "tasks"), importlib.import_module(package + ".signals"),
        find("normalize_json", "json_normalize"))


class DjangoFunction(Function[..., "Any"]):
    """A Function that runs a task of Django. Its name is the path of the task: blog.tasks.send_mail."""

    def __init__(self, task, who):
        options = {name: getattr(task, name, None) for name in TASK_OPTIONS}
        options["queue"] = task.queue_name
        chosen = {name: value for name, value in options.items() if value is not None}
        super().__init__(task.module_path, "django", task.func, {**TASK_DEFAULTS, **chosen}, who, None)
        self.task = task
        code = getattr(task.func, "__code__", None)
        if code:
            self.place = CodePlace(code.co_filename, code.co_firstlineno)


class CallArguments(NamedTuple):
    """The arguments of a call in Python."""

    args: "list[Any]"
    kwargs: "JsonObject"


@functools.lru_cache(maxsize=None)
def _signature(function, takes_context):
    """Return the signature of a task's function, without the context, which Django adds to each call."""
    import inspect
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:] if takes_context else parameters)


def signature_of(task):
    """Return the signature with which a task of Django is enqueued."""
    return _signature(task.func, task.takes_context)


def join_arguments(task, args, kwargs):
    """Return the arguments of a call by name, and how many of them are positional.

    Raise TypeError if the function cannot be called with them.
    """
    by_name = {}
    bound = signature_of(task).bind(*args, **kwargs)
    taken = {parameter.name for parameter in bound.signature.parameters.values()
             if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)}
    clashing = kwargs.keys() & {POSITIONAL_COUNT, *taken}
    if clashing:
        raise TypeError("%s: the argument %s cannot be kept, because a positional one has this name"
                        % (task.module_path, ", ".join(sorted(clashing))))
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name.update(value)
        else:
            by_name[name] = list(value) if parameter.kind is parameter.VAR_POSITIONAL else value
    if args:
        by_name[POSITIONAL_COUNT] = len(args)
    return by_name


def split_arguments(task, by_name):
    """Return stored arguments as the call had them. Those of the page's form are all passed by name.

    A form also has parameters that a call cannot name. Then these and all before them are positional.
    """
    kwargs, count = dict(by_name), by_name.get(POSITIONAL_COUNT, 0)
    kwargs.pop(POSITIONAL_COUNT, None)
    named = []
    args = []
    rest = []
    for place, parameter in enumerate(signature_of(task).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = kwargs.pop(parameter.name, None) or []
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named.append(parameter)
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in kwargs:
                count = max(count, place + 1)
    for parameter in named if rest else named[:count]:
        if parameter.name in kwargs or parameter.default is not parameter.empty:
            args.append(kwargs.pop(parameter.name, parameter.default))
    return CallArguments(args + rest, kwargs)


def django_project(settings, path=None, *, who="admin"):
    """Declare the tasks of a Django project. This is for tasks.py.

    `settings` is the module of its settings, such as "mysite.settings". `path` is the folder of the
    project, which has manage.py; without it that is the folder of tasks.py. Only admins can add these
    tasks on the page, unless `who` is "user". Tasks are found in the module `tasks` of each installed app.
    """
    folder = os.path.abspath(TASKS_FILE.parent / (path or ""))
    if not os.path.isdir(folder):
        raise ValueError("django_project: %s is no folder: path must be the folder that has manage.py"
                         % folder)
    if project_settings and project_settings != [settings]:
        raise ValueError("django_project: one process can run one project only, and %s is set up already"
                         % project_settings[0])
    project_settings[:], project_folders[:] = [settings], [folder]
    if folder not in sys.path:
        sys.path.insert(sys.path.index(str(HOME)) if str(HOME) in sys.path else 0, folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    try:
        django = importlib.import_module("django")
    except ImportError:
        raise ImportError("django_project: %s has no Django: let jobqueue's setting `python` name the "
                          "Python of the site's virtual environment" % sys.executable) from None
    _make_room(folder)
    django.setup()
    django_module("utils.module_loading").autodiscover_modules("tasks")
    for task in seen_tasks.values():
        declare_django(task, who)
    drop_connections()


def drop_connections():
    """Close all connections to the databases of the project. The next query opens a fresh one."""
    connections = django_module("db").connections
    for connection in connections.all(initialized_only=True):
        connection.close()
        del connections[connection.alias]       # it may be inside of atomic() for ever


def _make_room(folder):
    """Give the module of tasks.py another name if the project has a package `tasks`."""
    module = sys.modules.get("tasks")
    if os.path.isfile(os.path.join(folder, "tasks", "__init__.py")) and (
            getattr(module, "__file__", None) == str(TASKS_FILE)):
        sys.modules["jobqueue_tasks"] = sys.modules.pop("tasks")


def settings_digest():
    """Return a digest of the databases that the settings name. Its key is SECRET_KEY."""
    databases = django_module("db").connections.settings
    text = repr([(alias, sorted((name, str(value)) for name, value in databases[alias].items()))
                 for alias in sorted(databases)])
    digest = django_module("utils.crypto").salted_hmac(
        "jobqueue.settings", text, algorithm="sha256").hexdigest()
    return digest


def project_summary():
    """Return the project of this process for the announcement; None if tasks.py names none."""
    if not project_settings:
        return None
    return {"settings": project_settings[0], "folder": os.path.realpath(project_folders[0]),
            "digest": settings_digest()}


seen_tasks = {}  # {path: the first Task of our backend with it}


def declare_django(task, who):
    """Declare a task of Django as a Function; return it."""
    function = DjangoFunction(task, who)
    declared[function.name] = function
    return function


def find_django(name):
    """Return the function of a task's path, also if its module was not imported before; None if none."""
    if not project_settings or "." not in name:
        return None
    task = find_task(name)
    return None if task is None else declare_django(task, "nobody")


def find_task(path):
    """Return the Django task with this path; None if there is none.

    The path is that of the function. A task may have another name, as in `mail = task(send)`.
    """
    module_name, _, name = path.rpartition(".")
    if path not in seen_tasks and module_name:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not (module_name + ".").startswith("%s." % error.name):
                raise                   # the module is there, and imports another one that is missing
    task = getattr(sys.modules.get(module_name), name, None)
    return task if isinstance(task, django_names().task) else seen_tasks.get(path)


# access/django_backend.py ----------------------------------------------------
#
# DjangoBackend: jobqueue as the backend of a Django site's tasks.
#
#     TASKS = {"default": {"BACKEND": "jobqueue.DjangoBackend"}}
#
# The class is made when Django asks for it. Its base is that of django.tasks (Django 6.0 and newer) or of the
# package django-tasks (Django 4.2 to 5.2). enqueue() adds a task to the queue, get_result() reads it. Inside
# a running task both ask the worker, since a runner never opens the database.
#
# Rules: the id of a result has a signature, so that visitors of a site cannot guess further ids. A
# task is enqueued although the catalogue does not know its function: the worker imports it.

                  # a TaskResult of Django


























OWN_OPTIONS = {"data", "owner", "settings", "project"}      # of the setting TASKS, in OPTIONS
# Fields that a Task has beside Django's own: they are keywords of using(), and since Django 6.1 of @task.
EXTRA_FIELDS = (*(name for name in TASK_OPTIONS if name not in ("queue", "priority")),
                "unique_key", "after", "after_failure")
TRACEBACK = "Traceback (most recent call last):"
CLASS = r"^(?:  \| )?((?:[\w.]|<locals>)+)"       # where a line begins; a group of exceptions has a margin
GROUP_PARTS = re.compile(r"^  \+-\+-.*?^    \+-{30,}$", re.MULTILINE | re.DOTALL)
# Exceptions that stand for the ends of attempts without one, by our types of errors.
ERROR_PATHS = {"Timeout": "builtins.TimeoutError", "Crashed": "builtins.ChildProcessError",
               "WorkerLost": "builtins.ChildProcessError", "Interrupted": "builtins.InterruptedError"}
EVENT_PATHS = {"retry": "builtins.TimeoutError", "crashed": "builtins.ChildProcessError",
               "interrupted": "builtins.InterruptedError", "cancelled": "asyncio.CancelledError"}
ID_SALT, ID_CHARACTERS = "jobqueue.DjangoBackend", 20
ID_PATTERN = "([1-9][0-9]{0,15})-[0-9a-f]{%d}" % ID_CHARACTERS


def result_view(queue, task_id, owner_id=None):
    """Return a task for get_result(); NotFound if there is none, or it is not this owner's."""
    row, db = queue.tasks.get(task_id, owner_id), queue.database
    events = db.all("SELECT event, at, attempt, worker_id, message FROM activity WHERE task_id=? ORDER BY id",
                    (task_id,))
    unbegun = {event["attempt"] for event in events if event["event"] == "put_back"}
    starts = [event for event in events if event["event"] == "started" and event["attempt"] not in unbegun]
    ends = [event for event in events if event["event"] in ("failed", *EVENT_PATHS)]
    # A retry, a release or a function that was not found has set another time than run_after.
    was_moved = any(event["at"] == row["run_at"] or event["event"] == "retry"
                    or event["event"] == "put_back" and event["message"] for event in events)
    return {
        "id": task_id, "function": row["function"], "queue": row["queue"], "priority": row["priority"],
        "run_at": None if was_moved else row["run_at"],
        "status": STATUS_WORDS[row["status"]], "arguments": json.loads(row["arguments"]),
        "result": json.loads(row["result"] or "null"),
        "created_at": row["created_at"],
        "started_at": starts[0]["at"] if starts else row["started_at"],
        "attempted_at": starts[-1]["at"] if starts else row["started_at"],
        "finished_at": row["finished_at"],
        "errors": [_error_of(db, row, event, event is ends[-1]) for event in ends],
        "workers": [str(event["worker_id"]) for event in starts]}


def _error_of(db, row, end, is_last):
    """Return the error of an attempt. The log has its traceback, until it is removed."""
    trace = ""
    for piece in db.all("SELECT text FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT 3",
                        (row["id"], end["attempt"])):
        trace = piece["text"] + trace
        if trace.startswith(TRACEBACK):     # the worker stores it as a piece of its own
            break
    else:
        trace = ""
    path = _class_in(trace, end["message"]) or EVENT_PATHS.get(end["event"], "builtins.RuntimeError")
    if is_last and row["error_type"] and not row["error_type"].endswith("…"):   # a long one was cut
        path = ERROR_PATHS.get(row["error_type"], row["error_type"])
    if "." not in path:
        path = ("builtins." if hasattr(builtins, path) else "jobqueue.") + path
    return {"path": path, "traceback": trace or end["message"] or ""}


def _class_in(trace, message):
    """Return the class of the exception that a traceback shows; None if that is unclear.

    The message may be chosen by a visitor and look like a further traceback. So where a text has several
    tracebacks, the class is the word before the message.
    """
    trace = GROUP_PARTS.sub("", trace)
    last = trace.rpartition(TRACEBACK)[2]
    if message is not None and trace.count(TRACEBACK) > 1:
        words = message.rstrip("…").split() if message != "error" else []   # "error": it has no message
        line = (r":\s+" if words else "") + r"[\s|]+".join(map(re.escape, words))     # | is the margin
        end = "" if message.endswith("…") else r"\s*$"
        classes = re.findall(CLASS + line + end, trace, re.MULTILINE)
        return classes[-1 if end else 0] if classes else "builtins.Exception"
    match = re.search(CLASS, last, re.MULTILINE)
    return match[1] if trace and match else None


def sign_id(task_id, created_at, key=None):
    """Return the id of a result: the task's number, and a signature of it and of the time of adding.

    The key is the site's SECRET_KEY. With the time, a task of another database has another id.
    """
    crypto = django_module("utils.crypto")
    signature = crypto.salted_hmac(ID_SALT, "%d %r" % (task_id, created_at), key, algorithm="sha256")
    return "%d-%s" % (task_id, signature.hexdigest()[:ID_CHARACTERS])


def read_id(result_id):
    """Return the task's number in the id of a result; None if it has none. The signature is not tested."""
    match = re.fullmatch(ID_PATTERN, result_id, re.ASCII) if isinstance(result_id, str) else None
    return int(match[1]) if match else None


def is_signed(view, result_id):
    """Return whether a result has this id, by the site's SECRET_KEY or an earlier one."""
    import hmac
    settings = django_module("conf").settings
    return any(hmac.compare_digest(sign_id(view["id"], view["created_at"], key), result_id)
               for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


def moment(at):
    """Return seconds since 1970 as Django has times: aware with USE_TZ, else in the local zone."""
    if at is None:
        return None
    zone = timezone.utc if django_module("conf").settings.USE_TZ else None
    return datetime.fromtimestamp(at, zone)


def make_result(view, task, alias):
    """Return Django's TaskResult of a task."""
    names, (args, kwargs) = django_names(), split_arguments(task, view["arguments"])
    result = names.result(
        task=task, id=sign_id(view["id"], view["created_at"]), status=names.statuses[view["status"]],
        args=args, kwargs=kwargs,
        enqueued_at=moment(view["created_at"]), started_at=moment(view["started_at"]),
        last_attempted_at=moment(view["attempted_at"]), finished_at=moment(view["finished_at"]),
        backend=alias, worker_ids=view["workers"], errors=[
            names.error(exception_class_path=error["path"], traceback=error["traceback"])
            for error in view["errors"]])
    object.__setattr__(result, "_return_value", view["result"])
    return result


def task_with(view, task, alias):
    """Return a Task with the options that a result was enqueued with."""
    import dataclasses
    changes = {"priority": view["priority"], "queue_name": view["queue"], "backend": alias,
               "run_after": moment(view["run_at"])}
    changes = {name: value for name, value in changes.items() if value != getattr(task, name)}
    try:
        return dataclasses.replace(task, **changes) if changes else task
    except django_names().invalid:      # the setting TASKS has changed since, or another alias has this queue
        variant = object.__new__(type(task))
        for field in dataclasses.fields(task):
            object.__setattr__(variant, field.name, changes.get(field.name, getattr(task, field.name)))
        return variant


def write_tasks_file(settings, folder):
    """Write a tasks.py that names the Django project, unless there is one. SetupError if that fails."""
    import tempfile
    place = "" if os.path.abspath(folder) == str(TASKS_FILE.parent) else ", path=%r" % folder
    line = "django_project(%r%s)" % (settings, place)
    if TASKS_FILE.exists():
        return
    if not settings:                    # they were made by settings.configure()
        raise SetupError("%s cannot be written, because the settings of this site are no module. Name one as "
                         "`settings` in the OPTIONS of the task backend." % TASKS_FILE)
    try:
        with tempfile.NamedTemporaryFile("w", dir=TASKS_FILE.parent, suffix=".new", encoding="utf-8") as file:
            file.write("from jobqueue import django_project\n\n%s\n" % line)
            file.flush()
            os.chmod(file.name, 0o644)
            os.link(file.name, TASKS_FILE)
    except FileExistsError:             # another process was quicker
        pass
    except OSError as error:
        raise SetupError("%s cannot be written (%s). Make it with the two lines: from jobqueue import "
                         "django_project; %s" % (TASKS_FILE, error.strerror, line)) from None


class DjangoBackendMethods:
    """The methods of DjangoBackend. A class made of this and of Django's BaseTaskBackend is the backend."""

    supports_defer = supports_async_task = supports_get_result = supports_priority = True
    alias: "str"
    task_class: "Any"
    _queues: "dict[tuple[int, str], JobQueue]" = {}   # by process id and folder

    def __init__(self, alias, params):
        base = super()
        base.__init__(alias, {"ENQUEUE_ON_COMMIT": False, **params})    # of django-tasks before 0.9
        self.options = params.get("OPTIONS", {})
        self._is_declared = False

    def validate_task(self, task):
        """Raise InvalidTask if this backend cannot run a task."""
        base = super()
        base.validate_task(task)
        invalid = django_names().invalid
        chosen = {name: getattr(task, name, None) for name in EXTRA_FIELDS if name != "after"}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        errors = check_value(REQUEST_SCHEMA, {**chosen, "function": "", "queue": task.queue_name}, "")
        if errors:
            raise invalid(join_errors(errors))
        if getattr(task, "enqueue_on_commit", None):
            raise invalid("enqueue_on_commit is not possible, because the queue is a database of its own. "
                          "Use transaction.on_commit(partial(task.enqueue, ...)).")
        seen_tasks.setdefault(task.module_path, task)

    def enqueue(self, task, args, kwargs):
        """Add a task to the queue; return its TaskResult."""
        self.validate_task(task)
        request, place = self._request(task, args, kwargs), self._running_task()
        if place:
            added = place.enqueue([request])
            created_at = self._view(added.ids[0])["created_at"]
        else:
            self._declare_project()
            queue = self.queue()
            owner_id = queue.users.owner(self.options.get("owner"))["id"]
            orders = queue.requests.check([request], is_local=True)
            added = Added(*queue.add_orders(orders, owner_id).values())
            created_at = queue.database.value("SELECT created_at FROM task WHERE id=?", (added.ids[0],))
            queue.start_workers()
        if not added.new:               # an unfinished task has the unique_key
            return make_result(self._view(added.ids[0]), task, self.alias)
        result = make_result({
            "id": added.ids[0], "function": task.module_path, "queue": task.queue_name,
            "priority": task.priority, "run_at": None, "status": "pending",
            "arguments": request["arguments"], "result": None, "created_at": created_at, "started_at": None,
            "attempted_at": None, "finished_at": None, "errors": [], "workers": []}, task, self.alias)
        django_names().signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id):
        """Return the TaskResult with this id; TaskResultDoesNotExist if there is none."""
        task_id, missing = read_id(result_id), django_names().missing
        try:
            view = self._view(task_id) if task_id else None
        except NotFound:
            raise missing("there is no result %s" % result_id) from None
        if view is None or not is_signed(view, result_id):
            raise missing("%r is no id of a result of this site" % (result_id,))
        task = find_task(view["function"])
        if task is None:
            raise missing("%s, the function of result %s, is no task" % (view["function"], result_id))
        result = make_result(view, task_with(view, task, self.alias), self.alias)
        object.__setattr__(result, "id", result_id)     # which a former SECRET_KEY may have signed
        return result

    def _running_task(self):
        """Return the task that runs this code, if there is one. InvalidTask if it cannot be asked."""
        place = TaskContext.running
        if place and place.ask_task is None:
            raise django_names().invalid(
                "a worker of another machine can neither add nor read Django's tasks")
        folder = self.options.get("data")
        if place and folder and os.path.realpath(folder) != os.path.realpath(place.data):
            raise django_names().invalid("the task runs in another data folder than that of the backend %r"
                                         % self.alias)
        return place

    def _view(self, task_id):
        """Return a task for get_result(); NotFound if there is none."""
        place = self._running_task()
        if place and place.ask_task:
            view = place.ask_task(task_id)
            return view
        return result_view(self.queue(), task_id)

    def check(self, **kwargs):
        """Yield the faults of the settings, for `manage.py check`."""
        checks, base = django_module("core.checks"), super()
        yield from getattr(base, "check")(**kwargs) or ()
        for name in sorted(self.options.keys() - OWN_OPTIONS):
            yield checks.Error("OPTIONS of the task backend %r has the unknown key %r." % (self.alias, name),
                               hint="Known are: %s." % ", ".join(sorted(OWN_OPTIONS)), id="jobqueue.E001")
        for name in sorted(getattr(self, "queues")):
            errors = check_value(OPTION_SCHEMAS["queue"], name, "")
            if errors:
                yield checks.Error("The queue %r of the task backend %r %s." % (
                    name, self.alias, errors[0]["message"]), id="jobqueue.E002")
        if getattr(self, "enqueue_on_commit", False):
            yield checks.Error("ENQUEUE_ON_COMMIT is not possible with jobqueue, because the queue is a "
                               "database of its own.", id="jobqueue.E003",
                               hint="Remove it, and use transaction.on_commit().")
        try:
            folder = data_folder(self.options.get("data"))
            database_address(folder)
        except JobQueueError as error:
            yield checks.Error(error.detail, id="jobqueue.E004")
            return
        if (HOME / "worker").is_dir():
            yield checks.Error("The folder %s hides worker.py beside it, so that no worker starts."
                               % (HOME / "worker"), id="jobqueue.E005",
                               hint="Move jobqueue.py, worker.py and static into a folder of their own.")
        if TASKS_FILE.exists() and "django_project" not in TASKS_FILE.read_text("utf-8", "replace"):
            yield checks.Warning("%s does not name this project, so that no worker runs its tasks."
                                 % TASKS_FILE, id="jobqueue.W001",
                                 hint="Add: from jobqueue import django_project; django_project(%r, path=%r)"
                                      % self._project())
        try:
            yield from self._check_queue(checks)
        except JobQueueError as error:
            yield checks.Warning("The queue cannot be opened: %s" % error.detail, id="jobqueue.W002")

    def _check_queue(self, checks):
        """Yield warnings about users and about the worker's settings. A missing queue is not made."""
        folder = data_folder(self.options.get("data"))
        queue = self.queue() if database_address(folder) or [*folder.glob("jobqueue-*.db")] else None
        if queue is None or not queue.users.has_admin():
            yield checks.Warning("There is no user to whom tasks could belong.", id="jobqueue.W003",
                                 hint="Run: python %s user add NAME --admin" % (HOME / "jobqueue.py"))
            return
        state = queue.catalogue.state()
        if state["error"]:
            yield checks.Warning(
                "The worker cannot import the functions: %s" % state["error"]["message"], id="jobqueue.W004",
                hint="If it lacks variables of the environment, name them in jobqueue's setting "
                     "pass_environment.")
        worker, (settings, folder_name) = state.get("project"), self._project()
        ours = {"settings": settings, "folder": os.path.realpath(folder_name), "digest": settings_digest()}
        names = [name for name in ours if worker and worker.get(name) != ours[name]]
        if worker and names:
            yield checks.Warning(
                "The worker had another project when it last began. %s" % " ".join(
                    "The digest of SECRET_KEY and DATABASES differs." if name == "digest" else
                    "Its %s: %s, here %s." % (name, worker[name], ours[name]) for name in names),
                id="jobqueue.W005", hint="See %s, and jobqueue's setting pass_environment." % TASKS_FILE)

    def queue(self):
        """Return the JobQueue of this process."""
        folder = self.options.get("data")
        if folder is None:
            return default_queue()
        key = os.getpid(), str(folder)
        return self._queues.get(key) or self._queues.setdefault(key, JobQueue(folder))

    def _request(self, task, args, kwargs):
        """Return the request that adds a task; TypeError for arguments that JSON cannot have."""
        normalize = django_names().normalize
        arguments = join_arguments(task, normalize(list(args)), normalize(dict(kwargs)))
        extra = {name: getattr(task, name, None) for name in EXTRA_FIELDS}
        request = {
            "function": task.module_path, "queue": task.queue_name, "priority": task.priority,
            "arguments": json.loads(dump_json(arguments)), DJANGO_MARK: True,
            **{name: value for name, value in extra.items() if value is not None}}
        if "after" in request:
            request["after"] = self._predecessors(request["after"])
        if task.run_after is not None:
            request["run_at"] = task.run_after.astimezone(timezone.utc).isoformat()
        return request

    def _predecessors(self, after):
        """Return the tasks of `after` as ids. They are results of Django, their ids, or our own tasks."""
        ids = []
        for item in after if isinstance(after, (list, tuple, set, frozenset)) else [after]:
            item_id = getattr(self.get_result(item) if isinstance(item, str) else item, "id", item)
            ids.append(read_id(item_id) if isinstance(item_id, str) else item_id)
        return ids

    def _project(self):
        """Return the module of the site's settings, and the folder that holds its package."""
        module = (self.options.get("settings")
                       or getattr(django_module("conf").settings, "SETTINGS_MODULE", None)
                       or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
        folder = self.options.get("project")
        if folder is None and module:
            top = sys.modules.get(module.partition(".")[0])
            places = [*getattr(top, "__path__", ()), getattr(top, "__file__", None)]
            folder = next((os.path.dirname(os.path.abspath(path)) for path in places if path), "")
        return module, str(folder or "")

    def _declare_project(self):
        """Write a tasks.py for the worker at the first use, unless there is one."""
        if not self._is_declared:
            write_tasks_file(*self._project())
            self._is_declared = True


def _make_task_class(names):
    """Return Django's Task with the options of our tasks as further fields."""
    import dataclasses

    def using(self, **options):
        """Return a variant of the task with these options. Those of jobqueue may be among them."""
        extra = {name: options.pop(name) for name in EXTRA_FIELDS if name in options}
        base = names.task
        changed = base.using(self, **options)
        return dataclasses.replace(changed, **extra) if extra else changed
    # They count for no comparison: a result that was read has not all of them.
    fields = [(name, "object", dataclasses.field(default=None, compare=False)) for name in EXTRA_FIELDS]
    return dataclasses.make_dataclass(
        "DjangoTask", fields, bases=(names.task,), frozen=True,
        namespace={"using": using, "__module__": __name__, "__doc__": names.task.__doc__})


def __getattr__(name):
    """Make DjangoBackend, or the class of its tasks, when it is first asked for."""
    if name not in ("DjangoBackend", "DjangoTask"):
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    names = django_names()
    task_class = _make_task_class(names)
    backend = type("DjangoBackend", (DjangoBackendMethods, names.backend), {
        "__module__": __name__, "task_class": task_class,
        "__doc__": "The task backend of Django that adds tasks to jobqueue."})
    globals().update(DjangoBackend=backend, DjangoTask=task_class)
    return globals()[name]


# access/host.py --------------------------------------------------------------
#
# This host: doors, a browser's reach, a sample task, lines to copy.
#
# A door is the server or gateway that runs the page; DOORS lists them. An admin's browser tries to fetch
# private files, and the row `exposure` of the table state keeps the result. A sample task shows whether workers
# can run here. host_files() returns the lines to copy into the host's own files.



















WEB_FOLDERS = frozenset("public_html htdocs httpdocs www web wwwroot html public".split())
DOORS = {                       # {server or gateway that runs the page: its name for people}
    "server": "the built-in server",
    "cgi": "CGI, a new process for each request",
    "passenger": "Passenger, which stops it when no page is open",
    "mod_wsgi daemon": "mod_wsgi in processes of its own",
    "mod_wsgi embedded": "mod_wsgi within Apache",
    "uwsgi": "uWSGI",
    "wsgi": "a WSGI server"}
WHAT_FOR = r"(?m)^(?:#|<!--) ([^\n.:(]*[\w>])"  # the title in a file of static/hosts


def read_text(path):
    """Return the text of a small file, or "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def is_world_writable(path):
    """Return True if every user of this machine can write a file, or replace the files in a folder."""
    with contextlib.suppress(OSError):  # the file may not exist
        return path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    return False


def exposure(queue):
    """Return the Exposure that store_exposure() stored."""
    stored = recall(queue.database, "exposure")
    return stored or {"exposed": None, "at": None}


def store_exposure(queue, exposed):
    """Store which private addresses an admin's browser could fetch."""
    with queue.database.transaction() as transaction:
        remember(transaction, "exposure", {"exposed": exposed, "at": queue.database.clock.now()})


def canary_token(folder):
    """Return the content of canary.txt, which is made if it is missing; None if that fails.

    A browser that can fetch this file can also fetch other files of the data folder.
    """
    path = folder / "canary.txt"
    with contextlib.suppress(OSError, ValueError):
        if not path.exists():
            write_private(path, random_token())
        return path.read_text("utf-8").strip() or None
    return None


def private_addresses(folder, script="", root=""):
    """Return the addresses at which a badly configured web server would deliver private files.

    They are relative to the page or to its start-up file `script`, or to a web folder or the server's `root`.
    """
    files = [folder / "canary.txt", WORKER_FILE]
    files += [TASKS_FILE] if TASKS_FILE.exists() else []
    beside, _, name = script.rpartition("/")
    starts = ("", beside + "/") if "." in name else ("",)
    addresses = []
    for path in files:
        if HOME in path.parents:
            addresses += [start + path.relative_to(HOME).as_posix() for start in starts]
        addresses += ["/" + path.relative_to(place).as_posix() for place in path.parents
                  if place.name.lower() in WEB_FOLDERS or str(place) == root]
    return [quote(address) for address in dict.fromkeys(addresses)]


def add_sample(queue, owner_id):
    """Add a task that sleeps for SAMPLE_SECONDS, and store its id. It succeeds if workers can run here."""
    options = {**TASK_DEFAULTS, "priority": 100, "max_retries": 0, "timeout": 6 * SAMPLE_SECONDS}
    [task_id] = queue.add_orders([Order(SAMPLE_FUNCTION, "{}", options)], owner_id)["ids"]
    with queue.database.transaction() as transaction:
        remember(transaction, "sample_task", task_id)
    queue.start_workers()
    return queue.get_json(task_id)


def fill_in(text, python, visit):
    """Return the text of a file of static/hosts with our paths, user and address instead of its examples."""
    import shlex
    home, example = str(HOME), "/home/me/jobqueue"
    text = re.sub("/usr/bin/(env )?python3(?![.0-9])", lambda _: shlex.quote(python), text)
    text = re.sub("(?<= )%s[a-z./_]*" % example,        # arguments of a command: our paths may need quotes
                  lambda match: shlex.quote(home + match[0][len(example):]), text)
    text = text.replace(example, home).replace('FOLDER = ""', "FOLDER = %r" % home)
    text = re.sub(r"(?<=[Uu]ser=)me\b", lambda _: user_name(os.getuid()), text)
    if visit:
        address = "http%s://%s%s" % ("s" if visit["https"] else "", visit["host"], visit["base"])
        text = text.replace("https://example.org/jq/", address)
        text = re.sub("/jq(?=[/ ;$>=])", lambda _: visit["base"].rstrip("/") or "/jq", text)
    return text


def host_files(queue, visit=None):
    """Return {"title", "name", "text"} for each file of static/hosts, with our paths; cron's is the first.

    With a Request.visit() the texts have the page's address, too.
    """
    python = "python3"
    with contextlib.suppress(JobQueueError, OSError):
        python = queue.interpreter.path()
    paths = (STATIC_FOLDER / "hosts").glob("[a-z]*")
    texts = {path.name: read_text(path) for path in sorted(
        paths, key=lambda path: (path.name != "crontab", path.name))}
    return [{"title": (re.search(WHAT_FOR, text) or ("", name))[1], "name": name,
             "text": fill_in(text, python, visit)} for name, text in texts.items() if text]


# access/findings.py ----------------------------------------------------------
#
# The findings of `check` and of the page This host.
#
# FINDINGS has a row for everything that can be wrong here, or is worth knowing. The functions of TOPICS yield
# texts about the state, and a Finding for each row that is true here. describe_work() yields the Findings that
# explain why tasks do not run. `check` and the page This host show both by topic. Every user sees the first
# explanation above the lists of the page. The advice is the first remedy. An error in a check becomes a
# Finding, too.

                    # the object that is checked




def _check_program(folder):
    others_files = [name for name in ("worker.py", "static/index.html")
             if '"%s"' % VERSION not in read_text(HOME / name)]
    yield "jobqueue %s in %s" % (VERSION, HOME)
    yield "%s %s, SQLite %s" % (sys.executable, sys.version.split()[0], sqlite3.sqlite_version)
    if others_files:
        yield Finding("files_mixed", names=", ".join(others_files))
    if not knows_scrypt():
        yield Finding("scrypt_missing", why=SCRYPT_MISSING)
    ours, owner = os.getuid(), HOME.stat().st_uid
    open_ones = ["'%s'" % path for path in (
        HOME, HOME / "jobqueue.py", WORKER_FILE, TASKS_FILE, folder.parent) if is_world_writable(path)]
    yield "runs as %s (uid %d)" % (user_name(ours), ours)
    if open_ones:
        yield Finding("program_open", paths=" ".join(open_ones))
    elif ours not in (0, owner):
        yield Finding("program_of_other", owner=user_name(owner), user=user_name(ours))


def _check_data(folder):
    yield str(folder)
    if not folder.is_dir():
        yield Finding("data_none")
        return
    address = HOME / "data"
    if read_text(address).startswith(SERVER_SCHEMES) and address.stat().st_mode & 0o077:
        yield Finding("address_open", path=address)
    if folder.stat().st_mode & 0o077:   # opening the folder tries to mend this before
        yield Finding("data_open", folder=folder)


def _check_disk(folder):
    """Check the free space on the disk, and make, write and remove a file like a worker's lock."""
    place = folder if folder.is_dir() else HOME
    yield "%.1f GB free" % (free_bytes(place) / 1e9)
    yield from disk_findings(place)
    if not folder.is_dir():
        return
    path = folder / "locks" / ("check-" + random_token(6))
    try:
        handle, locks = create_lock(path)
        os.close(handle)
        path.write_bytes(b"." * 4096)
        path.unlink()
    except OSError as error:
        yield Finding("data_closed", folder=folder, why=error.strerror)
        return
    closed = ["'%s'" % path for path in sorted(folder.glob("jobqueue-*.db*"))
              if not os.access(path, os.W_OK)]
    if closed:
        yield Finding("database_closed", paths=" ".join(closed))
    if not locks:
        yield Finding("locks_missing")


# Checks of how the page was reached. Their argument is a Request.visit().

def _check_visit(visit):
    yield DOORS[visit["door"]]
    if visit["door"] == "mod_wsgi embedded":
        yield Finding("door_shared")
    if visit["forwarded"] and not visit["trusted"]:
        yield Finding("proxy_unknown", client=visit["client"])
    elif visit["https"]:
        yield "HTTPS"
    elif visit["client"] in LOOPBACK and not visit["forwarded"]:    # otherwise the address may be a proxy's
        yield "HTTP, from this machine"
    else:
        yield Finding("http_open")


# Checks of the queue. Their argument is the JobQueue.

def _check_admin(queue):
    old = queue.database.value("SELECT name FROM user WHERE password NOT LIKE 'scrypt$%'")
    files = ", ".join(map(str, queue.setup.files()))
    yield "%d users" % len(queue.users.all())
    if old:
        yield Finding("old_password", name=old)
    if not queue.users.has_admin():
        yield Finding("no_admin", file=queue.setup.file)
    elif files:
        yield Finding("code_left", files=files)


def _check_exposure(queue):
    folder, visible = queue.database.folder, exposure(queue)
    inside = WEB_FOLDERS.intersection(part.lower() for part in folder.parts)
    yield "the data is %s a web folder" % ("inside" if inside else "not inside")
    if visible["exposed"]:
        yield Finding("exposed", addresses=", ".join(visible["exposed"]))
    elif inside and not (folder / ".htaccess").exists():
        yield Finding("htaccess_missing")
    elif visible["at"]:
        yield "an admin's browser found no private file, %s" % readable_time(visible["at"])
    else:
        yield Finding("unlooked")


def _check_workers(queue):
    yield "%d of %d running" % (len(queue.workers.rows()), queue.settings.get("NbMaxWorker"))
    yield ("%s. %s" % queue.modes.decide()).rstrip(".")


def _check_worker(queue):
    yield "tasks run with " + queue.interpreter.path()
    task_id = recall(queue.database, "sample_task")
    status = task_id and queue.database.value("SELECT status FROM task WHERE id=?", (task_id,))
    if status == FAILED:
        yield Finding("sample_failed", id=task_id)
    elif status is not None:
        yield "the sample task %d: %s" % (task_id, STATUS_WORDS[status])


def _check_machines(queue):
    database = queue.database
    rows = database.all("SELECT machine, version, count(*) AS workers FROM worker "
                        "GROUP BY machine, version ORDER BY machine, version")
    yield "; ".join("workers on %s: %d" % (row["machine"], row["workers"]) for row in rows) or (
        "no worker runs")
    other_versions = ["%s has %s" % tuple(row)[:2] for row in rows if row["version"] != VERSION]
    if other_versions:
        yield Finding("versions_differ", version=VERSION, names=", ".join(other_versions))
    ahead = database.clock_offset
    if abs(ahead) > CLOCK_SLACK_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding("clock_differs", seconds=abs(ahead), way=way)


def _check_ticks(queue):
    cron, period = queue.tick_history.visitor("cron"), queue.tick_history.period()
    yield "cron came last at " + readable_time(cron["last_at"]) if cron else "no cron has come"
    if period:
        yield "due tasks and schedules are checked " + how_often(period)
    elif not any(visits and visits["comes"] for visits in map(queue.tick_history.visitor, VISITORS)):
        yield Finding("nobody_comes")


def _check_journal(queue):
    database = queue.database
    if database.journal is None:        # PostgreSQL has no journal file
        server = database.server_facts()
        yield "PostgreSQL " + server["version"]
        if server["lags"]:
            yield Finding("copy_lags")
        if server["holder"]:
            yield Finding("snapshot_old", holder=server["holder"])
        return
    yield "journal mode %s, file system %s" % (database.journal.upper(), file_system(database.folder))


def _check_database(queue, reads_all=True):
    database, size = queue.database, queue.database.size()
    if database.journal and size > READ_ALL_BYTES and not reads_all:
        yield ("%.0f MB, too large to check while a browser waits: run python3 jobqueue.py check"
               % (size / 1e6))
        return
    damage = database.damage()
    if damage:
        yield Finding("damaged", name=database, why=shorten(damage, 200))
    else:
        yield "%s: %s%.1f MB, schema %d" % (
            database, "intact, " if database.journal else "", size / 1e6, SCHEMA_VERSION)


def _check_backup(queue):
    last = recall(queue.database, "backup")
    yield "the last one: %s, %s%s" % (
        readable_time(last["at"]), last["path"], "" if os.path.exists(last["path"]) else
        " (no longer there)") if last else "none yet"
    if queue.settings.get("backup_hour"):
        yield "one every day in %s: now and then copy that folder to another computer" % (
            queue.database.folder / BACKUPS)
    yield from queue.conditions.backup_failed()
    yield from queue.conditions.backup()
    if not last:
        yield Finding("backup_none", command="backup" if queue.database.journal else "export")


def _check_functions(queue):
    queue.catalogue.refresh(wait=True)
    state = queue.catalogue.state()
    functions = queue.catalogue.functions()
    names = ", ".join(function["name"] for function in functions)
    unclear = ["%s(%s: %s)" % (function["name"], name, schema["unclear"]) for function in functions
               for name, schema in function["schema"]["properties"].items() if "unclear" in schema]
    readers = queue.catalogue.readers()
    if len({reader["digest"] for reader in readers.values()}) > 1:
        yield Finding("tasks_differ", places=", ".join(sorted(readers)))
    if unclear:
        yield Finding("hint_unclear", names=shorten(", ".join(unclear), 300))
    if state["samples"]:
        yield "no %s yet; the sample functions are: %s" % (TASKS_FILE, names)
        yield Finding("samples")
    elif names:
        yield "%s: %s" % (TASKS_FILE, names)
    elif not state["error"]:            # the finding `code` reports the error
        yield Finding("no_function", file=TASKS_FILE)


def _check_schedules(queue):
    schedules = queue.schedules.find()
    yield "%d schedules" % len(schedules)
    warnings = (Finding("schedule_warning", name=schedule_name(row), why=row["warning"])
                for row in schedules if row["warning"])
    for findings in map(list, (queue.conditions.problem(), warnings)):
        yield from findings[:1]
        if len(findings) > 1:
            yield "and %d more" % (len(findings) - 1)


def _check_tasks(queue):
    database, now, waited = queue.database, queue.database.clock.now(), queue.claims.longest_wait()
    leases = queue.claims.leases.seconds_left(now)
    failures = database.all(
        "SELECT function, count(*) AS failed FROM activity "
        "WHERE id>(SELECT max(id) FROM activity)-200000 AND event='failed' AND at>? "
        "GROUP BY function ORDER BY failed DESC, function", (now - 86400,))
    newest = database.value("SELECT at FROM activity ORDER BY id DESC LIMIT 1") or 0
    yield "%d running" % len(leases)
    remaining, task_id = min(((seconds, task_id) for task_id, seconds in leases.items()),
                             default=(0, None))
    if remaining < -database.lease_seconds:
        yield Finding("task_lost", id=task_id, seconds=-remaining)
    old = list(queue.conditions.waiting())
    yield from old
    if waited is not None and not old:
        yield "the oldest task that could start has waited %d min" % (waited // 60)
    if failures:
        yield "%d failed in the last day, most often %s (%d)" % (
            sum(row["failed"] for row in failures), *failures[0])
    if newest - now > CLOCK_SLACK_SECONDS:
        yield Finding("clock_back", seconds=newest - now, at=readable_time(newest))


def _check_alerts(queue):
    states = list(queue.alerts.channels())
    open_ones = queue.database.value("SELECT count(*) FROM alert WHERE ended_at IS NULL "
                                     "AND " + IS_OPEN)
    yield "%d open; recipients: %s" % (open_ones, ", ".join(
        state["recipient"] for state in states) or "none")
    if is_message_due(queue.database, queue.database.clock.now() - UNSENT_SECONDS):
        yield Finding("outbox_waits", minutes=UNSENT_SECONDS // 60)
    if states and not page_link(queue.settings, ""):
        yield Finding("links_missing")
    for state in states:
        if state["error"] and state["next_at"] is None:
            yield Finding("channel_fails", channel=state["channel"], recipient=state["recipient"],
                          error=state["error"])


# Findings for every user, the most important first. The first one is shown above the lists of the page.

def _describe_obstacles(queue):
    database = queue.database
    try:
        if free_bytes(database.folder) < 1 << 20:
            yield Finding("disk_full")
    except OSError:
        yield Finding("data_gone")
        return
    yield from queue.conditions.log()
    if queue.settings.get("NbMaxWorker") == 0:
        yield Finding("off")
    yield from queue.conditions.code()


def _describe_starts(queue):
    """Yield findings about the start of workers, and about tasks that could run now."""
    failure, mode = recall(queue.database, "start_failure"), queue.modes.decide().mode
    waits = queue.claims.claimable(1) > 0
    states = {row["state"] for row in queue.database.all(
        "SELECT state FROM worker WHERE mode<>'remote'")} if waits else set()
    nobody_works = waits and not states
    if not waits:
        yield from _describe_pause(queue)
    if failure:
        # In the mode slice, a waiting page runs tasks itself after the pause. Then only `check` shows this.
        is_for_everyone = waits and not states - {"starting"} and not (
            queue.database.clock.now() >= failure["next"] and mode == "slice")
        yield Finding("start_failed", failure["at"], is_for_everyone, why=failure["message"],
                      at=readable_time(failure["at"]), next=time_of_day(failure["next"]))
    if mode == "slice" and waits and queue.starter.needed():
        yield Finding("slices_awaited")
    if queue.conditions.absent_starter(mode):
        yield Finding("cron_missing" if mode == "cron" else "service_missing",
                      is_for_everyone=nobody_works)
    elif mode == "cron" and nobody_works:
        cron = queue.tick_history.visitor("cron")
        if cron:
            often = ", which comes about %s" % how_often(cron["period"]) if cron["period"] else ""
            yield Finding("cron_awaited", cron["last_at"], often=often,
                          at=time_of_day(cron["last_at"]))
    if waits and "idle" not in states:
        yield Finding("busy" if "busy" in states else "starting",
                      more=", and " + failure["message"] if failure else "")


def _describe_pause(queue):
    names = sorted({lane[0] for lane in lanes(queue.database, PENDING)})
    blocks = [queue.queues.blocked(name, queue.claims.machine) for name in names]
    held = [block for block in blocks if block.code not in ("external", "machines")]
    if held and all(code == "paused" for code, _ in held):      # a limit that is reached is no finding
        yield Finding("paused", words=held[0][1])


def describe_work(queue):
    """Yield the findings that explain why tasks do not run, the most important first."""
    yield from _describe_obstacles(queue)
    yield from _describe_starts(queue)


def describe_service(queue, is_admin=True):
    """Return the state of the service for everyone: {"code", "text", "since"}. The code is usually "ok"."""
    finding = next((candidate for candidate in describe_work(queue) if candidate.service_code), None)
    if not finding:
        return {"code": "ok", "text": "", "since": None}
    text = finding.service_text if is_admin else finding.service_text_for_users
    return {"code": finding.service_code, "text": text, "since": iso(finding.since)}


HOST_TOPICS = {"Program": _check_program, "Data": _check_data, "Disk": _check_disk}
VISIT_TOPICS = {"Web server": _check_visit}
TOPICS = {
    "Admin": _check_admin, "Exposure": _check_exposure, "Workers": _check_workers,
    "Worker": _check_worker, "Machines": _check_machines, "Cron": _check_ticks,
    "Journal": _check_journal, "Database": _check_database, "Backup": _check_backup,
    "Functions": _check_functions, "Schedules": _check_schedules, "Tasks": _check_tasks,
    "Alerts": _check_alerts}


class Check(NamedTuple):
    """A line of `check`: the state of a topic."""

    name: "str"
    verdict: "str"
    text: "str"


class Report(NamedTuple):
    """The checks and findings of a host and a queue."""

    checks: "list[Check]"
    findings: "list[Finding]"


def _run_checks(topics, about):
    """Yield the results of each topic's check. An error in one check does not end the others."""
    for topic, check in topics.items():
        try:
            yield from ((topic, result) for result in check(about))
        except Exception as error:      # an error must not hide the other topics
            yield topic, Finding("unknown", why=getattr(error, "detail", None) or (
                "this could not be checked: %s: %s" % (
                    type(error).__name__, storable(shorten(str(error), 300)))))


def _report(results):
    topics = {}
    for topic, result in results:
        topics.setdefault(topic, []).append(result)
    checks = [Check(topic, min(getattr(result, "verdict", FINE) for result in here),
                    "; ".join(filter(None, map(str, here)))) for topic, here in topics.items()]
    return Report(checks, [result for _, result in results if isinstance(result, Finding)])


def check_host(queue, visit=None):
    """Check this host and this queue; return a Report.

    `visit` is a Request.visit(). With it the web server is checked, too, and a large database is not read
    through, since a browser waits.
    """
    looks = {
        **TOPICS, "Database": functools.partial(_check_database, reads_all=not visit)}
    results = [*_run_checks(HOST_TOPICS, queue.database.folder), *_run_checks(looks, queue)]
    if visit:
        results += _run_checks(VISIT_TOPICS, visit)
    with contextlib.suppress(JobQueueError):            # _run_checks() reports the error
        results += ((finding.topic, finding) for finding in describe_work(queue) if finding.topic)
    return _report(results)


class Installation(NamedTuple):
    """The report of an installation, and its JobQueue if it could be opened."""

    report: "Report"
    queue: "JobQueue | None"


def check_installation(data=None):
    """Check an installation that may be broken. It creates nothing and raises nothing."""
    folder, topic = HOME / "data", "Data"
    queue = None
    results = []
    try:
        folder, topic = data_folder(data), "Database"
        queue = JobQueue(data) if os.path.lexists(folder) else None
    except (JobQueueError, OSError, sqlite3.Error) as error:
        topic = "Settings" if isinstance(error, Invalid) else topic
        results = [(topic, Finding("unknown", why=str(error)))]
    if not queue:
        return Installation(_report([*_run_checks(HOST_TOPICS, folder), *results]), None)
    return Installation(check_host(queue), queue)


def next_step(report):
    """Return the advice: the first remedy of the bad findings; if there are none, of all findings.

    It ends without a full stop, because a remedy may end with a command.
    """
    bad = [finding for finding in report.findings if finding.verdict == BAD]
    remedy = next((finding.remedy for finding in bad or report.findings if finding.remedy),
                  "fix the bad findings" if bad else "")
    return "Next: %s" % remedy if remedy else "No action is needed."


# access/import_checks.py -----------------------------------------------------
#
# Import checks: every value of an export is checked before it is stored, as the API would.

COLUMN_KINDS = {
    "INTEGER": {"type": "integer", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX},
    "REAL": {"type": "number", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX},
    "TEXT": {"type": "string", "pattern": r"[^\x00]*", "patternMessage": "must have no NUL"}}
ROW_ID = integer_within(1, INTEGER_MAX)
TASK_COLUMNS = {name: schema for name, schema in OPTION_SCHEMAS.items() if name != "remove_on_success"}
CHOSEN = {    # schemas of columns that replace the one in COLUMN_KINDS
    "user": {"id": ROW_ID, "role": {"enum": list(ROLES)}, "name": text_like(NAME_PATTERN, "is no name")},
    "saved": {"id": ROW_ID, **{name: NEW_SAVED["properties"][name] for name in ("page", "name")}},
    "token": {"id": ROW_ID, "scope": {"enum": [*TOKEN_SCOPES, INVITATION]}},
    "setting": {"name": {"enum": list(SETTINGS)}}, "state": {"name": {"enum": list(EXPORTED_STATE)}},
    "function": {"who": {"enum": list(WHO_MAY_ADD)}},
    "queue": {"name": OPTION_SCHEMAS["queue"], "external": integer_within(0, 2)},
    "schedule": {"id": ROW_ID, "source": {"enum": ["person", "code", "folder"]},
                 "catch_up": {"enum": ["none", "once", "all"]},
                 "overlap": {"enum": ["skip", "queue", "allow"]}},
    "task": {**TASK_COLUMNS, "id": ROW_ID, "status": integer_within(0, len(STATUS_WORDS) - 1),
             "cancel_requested": integer_within(0, 2)},
    "log": {"attempt": integer_within(0, INTEGER_MAX)}}


def _columns(text):
    """Return the schemas of the columns that the SQL of a table declares."""
    schemas = {}
    for name, kind, must in re.findall(r"\b(\w+) (INTEGER|REAL|TEXT)\b( NOT NULL| PRIMARY KEY)?", text):
        schema = COLUMN_KINDS[kind]
        schemas[name] = schema if must else {**schema, "type": [schema["type"], "null"]}
    return schemas


def _json_of(levels, kinds=(dict,)):
    """Return a check of a text that must be JSON of these Python types, nested no deeper than `levels`."""
    def check(text):
        try:
            value = read_json(text)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        if is_deep(value, levels) or not isinstance(value, kinds):
            raise ValueError("is not as it would be stored")
    return check


def _check_password(text):
    match = re.fullmatch(r"scrypt\$(\d+),(\d+),(\d+)\$(?:[0-9a-f]{2})+\$(?:[0-9a-f]{2})+", text)
    if text.startswith("scrypt$"):
        n, r, p = map(int, match.groups()) if match else (0, 0, 0)
        usual = SCRYPT_COST[0] * SCRYPT_COST[1] * SCRYPT_COST[2]
        if not (0 < n * r * p <= 4 * usual and 128 * n * r <= 32 << 20):
            raise ValueError("costs more than a password may")


def _check_summary(text):
    if check_value(SUMMARY, read_json(text), "summary"):
        raise ValueError("is no hour in a time zone")


_ANY_JSON = (dict, list, str, int, float, bool, type(None))
TEXT_CHECKS = {
    ("user", "password"): _check_password, ("user", "summary"): _check_summary,
    ("saved", "value"): _json_of(JSON_MAX_DEPTH), ("task", "samples"): _json_of(2, (list,)),
    ("token", "limits"): _json_of(2), ("setting", "value"): _json_of(2, (str, int)),
    ("state", "value"): _json_of(RESULT_MAX_DEPTH, _ANY_JSON),
    ("function", "schema"): _json_of(RESULT_MAX_DEPTH), ("function", "options"): _json_of(2),
    ("queue", "machines"): _json_of(2, (list,)),
    ("schedule", "arguments"): _json_of(JSON_MAX_DEPTH), ("schedule", "options"): _json_of(2),
    ("task", "arguments"): _json_of(JSON_MAX_DEPTH),
    ("task", "result"): _json_of(RESULT_MAX_DEPTH, _ANY_JSON),
    ("request", "answer"): _json_of(JSON_MAX_DEPTH, _ANY_JSON)}


@functools.lru_cache(maxsize=None)
def table_schema(table):
    """Return the schema of a table's rows."""
    text = re.search(r"CREATE TABLE IF NOT EXISTS %s \((.*?)\n\);" % table, SCHEMA, re.DOTALL)
    return {"type": "object", "properties": {**_columns(text[1] if text else ""), **CHOSEN.get(table, {})}}


def check_row(table, row):
    """Raise ValueError with the table and the column if a row has a value that jobqueue would not store."""
    errors = check_value(table_schema(table), row, table)
    if errors:
        raise ValueError(join_errors(errors[:1]).rstrip("."))
    for (place, column), check in TEXT_CHECKS.items():
        if place == table and row[column] is not None:
            try:
                check(row[column])
            except ValueError as error:
                raise ValueError("%s.%s %s" % (table, column, error)) from None
    if table == "setting":
        tidy_setting(row["name"], read_json(row["value"]))


# access/backup.py ------------------------------------------------------------
#
# A checked copy, while everything goes on; restore, export, import.
#
# A backup is a copy of the database's file; restore() puts it back. An export is text, to move from SQLite
# to PostgreSQL or back. Each line is a JSON object with one name. The first name is "jobqueue", with the
# version of the schema and the highest id ever of each table in COUNTED. Then each row of a table in EXPORTED
# follows under the table's name. The last name is "end", with the number of rows of each table, so an
# incomplete export is recognised. An export lacks workers and their shifts, sessions, guessed passwords,
# messages to be sent, state about the host, and files.

              # the name of the JSON object in a line, and its value


EXPORT_ROWS = 100               # rows that are read at a time
EXPORTED = {                    # {table: the columns of its key}
    **dict.fromkeys("user token saved setting function queue schedule task log activity alert".split(),
                    "id"),
    **{table: ", ".join(keys) for table, keys in HOUR_KEYS.items()}, "recent": "function",
    "slot": "schedule_id, at", "state": "name", "unsettled": "task_id", "request": "owner_id, key",
    "task_after": "task_id, settled, after_id"}
COUNTED = "user token schedule task worker alert".split()     # tables whose ids must not be used again
BEGINNINGS = {"backup": b"SQLite format 3\0", "export": b'{"jobqueue":'}
IMPORTER = "the import"         # the actor who paused the queues; no user's name has a space
_as_line = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _refuse_target(queue, target, kind):
    """Raise SetupError if writing a backup or export to `target` would destroy something else."""
    if file_identity(target) == file_identity(queue.database.path):
        raise SetupError("%s is the database itself." % target)
    if target.match("jobqueue-*.db") and target.parent.resolve() == queue.database.folder.resolve():
        raise SetupError("%s would be a second database: choose another name." % target)
    if target.exists():
        with open(target, "rb") as file:        # raises for a folder
            if file.read(len(BEGINNINGS[kind])) not in (b"", BEGINNINGS[kind]):
                raise SetupError("%s exists and is no %s; it was not touched." % (target, kind))


def _remove_older_parts(target, part):
    """Remove the incomplete copies that killed processes left over a day before `part` was made."""
    is_part = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.part").match
    with contextlib.suppress(OSError):
        limit = part.stat().st_mtime - 86400
        for path in target.parent.iterdir():
            if is_part(path.name) and path.lstat().st_mtime < limit:
                path.unlink()


@contextlib.contextmanager
def _replacing(queue, target, kind):
    """Yield a private file that replaces `target` once it is complete.

    An existing file is replaced only if it is empty or of the same `kind`. SetupError if it is not, or
    `target` cannot be written.
    """
    target = Path(target).absolute()
    part = Path("%s.%s.part" % (target, random_token(8)))       # another process may write to the same target
    try:
        _refuse_target(queue, target, kind)
        write_private(part, "")
        try:
            _remove_older_parts(target, part)
            yield part
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SetupError("The %s cannot be written to %s: %s."
                         % (kind, target, error.strerror)) from None
    with queue.database.transaction() as transaction:
        remember(transaction, "backup", {"at": queue.database.clock.now(), "path": str(target)})


def back_up(queue, target):
    """Write a checked copy of the database, as of one moment, to `target`. Other processes go on."""
    with _replacing(queue, target, "backup") as part:
        queue.database.copy_to(part)


def save(queue, folder, name):
    """Write a backup, or on PostgreSQL an export, into `folder`; return its path.

    StorageFull if too little room for tasks would remain.
    """
    database = queue.database
    size = database.size()
    if free_bytes(folder) < size + DISK_LOW_BYTES:
        raise StorageFull("There is no room for a backup, %d MB." % math.ceil(size / 1e6))
    write, ending = (back_up, ".db") if database.journal else (export_to, ".jsonl")
    target = folder / private_path(database.path, name + ending).name
    write(queue, target)
    return target


def restore(folder, file, force=False):
    """Put a backup in the place of the database; return the new path of the old one.

    1. Check a copy of the backup, and bring it to the newest schema.
    2. Unless `force` is given, refuse while another process uses the database.
    3. Rename the old log. Give the old database its new path, then put the copy at the former path. If the
       file system has hard links, the old database has both paths in between. So a crash leaves a database.
    """
    os.stat(file)                       # a missing backup raises before anything is made
    if not os.path.lexists(folder):
        create_data_folder(folder)
    path, mode = own_database(folder)
    mode, now = mode or safe_journal(folder), Clock.now()
    old_path = private_path(path, "replaced-%s.db" % re.sub("[-:.]", "", iso(now)))
    part = Path("%s.%s.part" % (path, random_token(8)))
    try:
        copy_backup(file, part)
        with open_exclusively(part, mode) as link:
            migrate_file(link)
            remember(link, "daily_backup", None)
        if not force:
            _refuse_living(path, mode, now)
        for ending in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.rename("%s%s" % (path, ending), "%s%s" % (old_path, ending))
        try:
            os.link(path, old_path)
        except OSError:
            os.rename(path, old_path)
        os.rename(part, path)
        (path.parent / "sweep.mark").unlink(missing_ok=True)  # the next tick removes folders of unknown tasks
    finally:
        for leftover in path.parent.glob(part.name + "*"):
            leftover.unlink()
    Journal.decide(path, mode, now)
    return old_path


def _refuse_living(path, mode, now):
    """Raise Conflict if another process has the database open.

    The journal mode truncate does not show this. There a tick in the last 100 seconds counts as a process.
    """
    try:
        with open_exclusively(path, "truncate") as link:  # Busy while another process has the log open
            rhythm = mode == "truncate" and recall(link, "rhythm")
        moments = rhythm["seen"].values() if rhythm else ()
    except Busy:
        moments = [now]
    except (StorageBroken, sqlite3.Error):
        moments = []                       # no process can use so damaged a database
    if any(abs(now - at) < 2 * NOTE_SECONDS for at in moments):
        raise Conflict("Something uses the database, or did two minutes ago. Stop the server, cron "
                       "and, by NbMaxWorker 0, the workers; or say --force.")


def _rows_of(db, table):
    """Yield the rows of a table as dictionaries, in the order of its key. Read EXPORT_ROWS at a time."""
    key = EXPORTED[table]
    rows = None
    last = []
    after = ""
    while rows != []:
        rows = [dict(zip(row.keys(), row)) for row in db.all(
            "SELECT * FROM %s %s ORDER BY %s LIMIT %d" % (table, after, key, EXPORT_ROWS), last)]
        yield from rows
        last = [rows[-1][name] for name in key.split(", ")] if rows else []
        after = "WHERE (%s) > (%s)" % (key, ", ".join("?" * len(last)))


def _exported(db):
    """Yield the table and the row for each row of an export. Rows of `state` about this host are left out."""
    for table in EXPORTED:
        for row in _rows_of(db, table):
            if table != "state" or row["name"] in EXPORTED_STATE:
                yield table, row


def export_lines(queue):
    """Yield the lines of an export: the whole database, as of one moment."""
    database, counts = queue.database, dict.fromkeys(EXPORTED, 0)
    with database.snapshot() as db:
        yield _as_line({"jobqueue": {
            "version": VERSION, "schema": SCHEMA_VERSION, "exported_at": iso(database.clock.now()),
            "counters": {table: database.last_id(table) for table in COUNTED}}})
        for table, row in _exported(db):
            if row.get("paused_by") == IMPORTER:
                row.update(paused=0, paused_by=None, paused_at=None, paused_why=None)
            counts[table] += 1
            yield _as_line({table: row})
    yield _as_line({"end": counts})


def export_to(queue, target):
    """Write an export, as of one moment, to `target`. Other processes go on."""
    with _replacing(queue, target, "export") as part, open(part, "w", encoding="ascii") as file:
        file.writelines(line + "\n" for line in export_lines(queue))
        file.flush()
        os.fsync(file.fileno())


def _read_line(line):
    return read_json(line if isinstance(line, str) else line.decode("utf-8"))


def import_lines(queue, lines):
    """Store an export in a database without users and tasks, all or nothing; return {table: number of rows}.

    Rows keep their ids, and new rows get higher ones. Running tasks become interrupted, since their end
    will not be reported here. Queues are paused: the tasks may still run at the old place.
    """
    counts = dict.fromkeys(EXPORTED, 0)
    try:
        items = itertools.chain.from_iterable(
            _read_line(line).items() for line in lines)
        with queue.database.transaction() as transaction:
            counters = _store(transaction, items, counts)
            _settle_in(queue, transaction, counters)
    except JobQueueError:
        raise
    except Exception as error:          # json and databases raise many errors for wrong values
        raise Malformed("Nothing was imported: something in or before row %d is wrong (%s)." % (
            sum(counts.values()) + 1, shorten(storable(str(error)), 300))) from None
    return counts


def _store(transaction, lines,
           counts):
    """Store the rows in `lines`, and count them in `counts`; return the highest ids from the first line."""
    nothing = ("", {})
    name, header = next(lines, nothing)
    if name != "jobqueue":
        raise Malformed("This file is not an export of jobqueue.")
    if header["schema"] != SCHEMA_VERSION:
        raise SetupError("The export is of jobqueue %s with schema version %s, and this is %s with "
                         "%d: import it with that version, then upgrade." % (
                             header["version"], header["schema"], VERSION, SCHEMA_VERSION))
    if any(transaction.one("SELECT id FROM %s LIMIT 1" % table) for table in ("user", "task")):
        raise Conflict("This database has users or tasks. Import into an empty database.")
    end = []
    for table in reversed(EXPORTED):    # a new database has some rows
        transaction.run("DELETE FROM %s" % table)
    for table, items in itertools.groupby(lines, key=lambda line: line[0]):
        if end or table not in (*EXPORTED, "end"):
            raise ValueError("%s does not belong here" % table)
        if table == "end":
            end = [value for _, value in items]
            continue
        transaction.insert_all(table, _checked(transaction, table, items, counts))
    if end != [counts]:
        raise Malformed("Nothing was imported: the end of the export is missing, or some lines.")
    return header["counters"]


def _checked(transaction, table, lines,
             counts):
    """Check, count and yield the rows in `lines`; Malformed if a row's columns are not those of the table."""
    columns = transaction.row(            # the names of the columns, even of an empty table
        "SELECT %s.* FROM (SELECT 1 AS one) AS one LEFT JOIN %s ON 1=0" % (table, table)).keys()
    for _, row in lines:
        if row.keys() != set(columns):
            raise Malformed("Nothing was imported: columns of %s are missing or unknown here: %s."
                            % (table, shorten(", ".join(sorted(row.keys() ^ set(columns))), 200)))
        check_row(table, row)
        counts[table] += 1
        yield {name: row[name] for name in columns}


def _settle_in(queue, transaction, counters):
    """Adapt the imported rows to this place: set the next ids, end the running tasks, pause the queues."""
    now = queue.database.clock.now()
    for table in {*COUNTED, *(name for name, key in EXPORTED.items() if key == "id")}:
        transaction.set_last_id(table, max(
            counters.get(table, 0), transaction.value(queue.database.last_id_words % table) or 0,
            transaction.value("SELECT max(id) FROM %s" % table) or 0))
    for row in transaction.all("SELECT id, claim FROM task WHERE status=RUNNING"):
        never_ran = row["claim"].startswith(UNCONFIRMED)
        queue.claims.end(transaction, row["id"], row["claim"], Outcome("put_back") if never_ran
                         else Outcome("interrupted", None, "Interrupted",
                                      "it ran where it was exported"), now)
    transaction.update("queue", {
        "paused": 1, "paused_by": IMPORTER, "paused_at": now,
        "paused_why": "resume it once no other site runs these tasks"}, "paused=0")


# web/http_answer.py ----------------------------------------------------------
#
# An answer as WSGI wants it; problems as JSON.

















SECURITY_HEADERS = [
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
     "'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors "
     "'none'; require-trusted-types-for 'script'"), ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin")]
JSON_TYPE, LINES_TYPE = "application/json", "application/x-ndjson"
PACK_BYTES = 1024                       # shorter answers are not compressed
ACCEPTS_GZIP = r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))"
STATIC_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
                ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
                ".json": "application/json", ".md": "text/markdown; charset=utf-8",
                ".png": "image/png", ".ico": "image/x-icon"}
HOST = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"


class Response(NamedTuple):
    """A response as WSGI wants it."""

    status: "str"                     # the number and its words
    headers: "list[Header]"
    content: "Content"


def is_known(header, tag):
    """Return whether If-None-Match names a tag (RFC 9110, 13.1.2), weak or not.

    Web servers that compress append to the tag, such as -gzip.
    """
    opaque = re.search('"([^"]*)"', tag)
    tags = re.findall(r'"([^"]*?)(?:[-;](?:gzip|br|zstd|deflate))?"', header)
    return header.strip() == "*" or opaque is not None and opaque[1] in tags


class Answer:
    """Status, headers and body of a response.

    The compressed body is made only once. A body may also be a FileSlice, or pieces (none empty) that are
    made while they are sent. These are neither cached nor compressed.
    """

    def __init__(self, status, body=b"", kind=JSON_TYPE,
                 headers=(), keep="no-cache, private"):
        self.status, self.body, self.headers, self._kind = status, body, headers, kind
        self.whole = body if isinstance(body, bytes) else b""   # the body, if it is in memory
        self.keep = keep                # its Cache-Control; None: the answer is never cached

    @functools.cached_property
    def tag(self):
        """Return the ETag; a weak one, since the body may be sent compressed or not."""
        import hashlib
        hashed = repr(SECURITY_HEADERS).encode() + self.whole
        return 'W/"%s"' % hashlib.sha256(hashed).hexdigest()[:20]

    @functools.cached_property
    def packed(self):
        """Return the compressed body."""
        import zlib
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)     # 31 selects gzip
        return packer.compress(self.whole) + packer.flush()

    def to(self, request=None):
        """Return the Response to a request, or without one a Response to any request."""
        from http import HTTPStatus
        status, body = self.status, self.body
        headers = [("Cache-Control", "no-store"), *self.headers]
        asks = request.header if request else lambda _: None
        is_long = len(self.whole) > PACK_BYTES
        if request and self.keep and status == 200 and request.method in ("GET", "HEAD"):
            headers[0] = ("Cache-Control", self.keep)
            headers.append(("ETag", self.tag))
            status = 304 if is_known(asks("If-None-Match") or "", self.tag) else status
        if is_long:
            headers.append(("Vary", "Accept-Encoding"))
        if status != 304:               # with 304 the browser has these already
            names = {name for name, _ in self.headers}
            headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
            if request and request.by_https_only:
                headers.append(("Strict-Transport-Security", "max-age=31536000"))
            if is_long and re.search(ACCEPTS_GZIP, asks("Accept-Encoding") or ""):
                body = self.packed
                headers.append(("Content-Encoding", "gzip"))
            if status != 204:
                headers.append(("Content-Type", self._kind))
            if status != 204 and isinstance(body, (bytes, FileSlice)):
                headers.append(("Content-Length", str(len(body))))
        content = [body] if isinstance(body, bytes) else body
        if status == 304 or request and request.method == "HEAD":
            if not isinstance(content, list):
                content.close()
            content = [b""]
        return Response("%d %s" % (status, HTTPStatus(status).phrase), headers, content)


def conceal(shown, person):
    """Return the answer. Mask secrets in tasks and schedules whose secrets this person may not see.

    It masks the answer itself and the items of its lists.
    """
    if "owner" in shown and "arguments" in shown and not person.sees_secrets_of(shown["owner"]):
        return {**shown, "arguments": mask(shown["arguments"])}
    return {name: [conceal(item, person) if isinstance(item, dict) and "arguments" in item else item
                   for item in value] if isinstance(value, list) else value
            for name, value in shown.items()}


def json_answer(value, status=200, headers=()):
    """Return an Answer of JSON."""
    return Answer(status, dump_json(value).encode("utf-8"), headers=headers)


def problem(error, accepts=""):
    """Return an error as application/problem+json (RFC 9457), or as plain text for a browser."""
    from http import HTTPStatus
    if not isinstance(error, JobQueueError):
        sys.__excepthook__(type(error), error, error.__traceback__)     # an unexpected error
        error = JobQueueError("Something went wrong here; see the server's log.")
    if error.public:
        complain(error.detail)
    detail, headers = error.public or error.detail, list(error.headers)
    if error.retry_after is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after)))))
    if error.status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    if "text/html" in accepts:
        return Answer(error.status, ("jobqueue: %s\n" % detail).encode("utf-8"),
                      "text/plain; charset=utf-8", headers)
    value = {"type": "about:blank", "title": HTTPStatus(error.status).phrase, "code": error.code,
             "status": error.status, "detail": detail, "errors": error.errors, **error.extra}
    return Answer(
        error.status, dump_json(value).encode("utf-8"), "application/problem+json", headers)


# web/http_request.py ---------------------------------------------------------
#
# A request as handlers see it; proxies; static files.
#
# A Request is the same under all web servers. Headers of proxies count only if the proxy is trusted. A body
# is read when a handler asks for it, and never beyond its limit.

LINES_MAX_BYTES = 64 << 20      # the largest body with one task per line
ENVELOPE_TYPE, ENVELOPE_BYTES = "multipart/form-data", 8 << 10      # the most bytes of a form's head and tail
NO_ENVELOPE = "A body of the type multipart/form-data must have one part, which names its Content-Type."
COMMENTS = re.compile(rb"^\s*(//[^\n]*|/\*((?!\*/).)*\*/)\n|/\*\* @type ((?!\*/).)*\*/ ?|(?<=;) +// [^\n]*"
                      rb"|^\s+", re.M | re.S)      # also matches indentation and empty lines
# Spaces and last semicolons that styles do without; the group has strings, which keep theirs.
STYLE_SPACES = re.compile(rb"""("[^"]*"|'[^']*')|;\s*(?=})|(?<=[{};:,])\s+|\s+(?=[{}])""")
STATIC_NAME = r"((languages|docs)/)?[A-Za-z0-9_-]+\.[a-z]+"


















def read_address(text):
    """Return an IP address, also from a text with a port or brackets; None for any other text."""
    from ipaddress import ip_address
    match = re.fullmatch(
        r"\[([0-9a-fA-F:.]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+|([0-9a-fA-F:.]+)", text.strip())
    try:
        address = ip_address(match[match.lastindex or 0] if match else "")
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_trusted(text, networks):
    """Return True for an address in one of these networks."""
    address = read_address(text) if networks else None
    return address is not None and any(address in network for network in read_networks(networks))


def nearest_client(environ, trusted):
    """Return the client's address. Each trusted proxy appends its peer to X-Forwarded-For."""
    address = environ.get("REMOTE_ADDR", "")
    for item in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").rsplit(",", 10)):
        peer = read_address(item) if is_trusted(address, trusted) else None
        if peer is None:
            break
        address = str(peer)
    return address


def asked_path(environ):
    """Return the path that the browser asked for, with single slashes; "" if the server does not tell it."""
    path = environ.get("REQUEST_URI", "").partition("?")[0]
    if not path.startswith("/"):        # the URL begins with scheme and host
        path = "/".join(["", *path.split("/")[3:]])
    return re.sub("//+", "/", unquote(path, "latin-1"))


def inner_path(environ):
    """Return PATH_INFO, decoded; Passenger leaves it encoded."""
    path = environ.get("PATH_INFO", "")
    sent = environ.get("REQUEST_URI", "").partition("?")[0]
    return unquote(path, "latin-1") if "%" in path and sent.endswith(path) else path


def find_base(environ, base_path=""):
    """Return the path below which the browser finds this site, with a slash at both ends.

    Behind a rewrite SCRIPT_NAME is the path of the start file, and only REQUEST_URI has the browser's path.
    A client can choose REQUEST_URI freely, so it counts only if it ends with PATH_INFO.
    """
    script, asked_for = environ.get("SCRIPT_NAME", ""), asked_path(environ)
    inside = re.sub("//+", "/", inner_path(environ))
    base = asked_for[:len(asked_for) - len(inside)] if asked_for and asked_for.endswith(inside) else script
    if {".", ".."} & set(base.split("/")):
        base = script
    parts = [part for part in (base_path or base).split("/") if part]
    return quote("/".join(["", *parts, ""]), safe="/!$&'()*+,=:@",      # as browsers do
                 encoding="latin-1", errors="replace")


class Envelope(NamedTuple):
    """A form around a body: its Content-Type, and the bytes before and after the body."""

    kind: "str"
    head: "bytes"
    tail: "bytes"


def envelope(kind):
    """Return an Envelope for a body of this Content-Type, as Request.unwrap() reads it."""
    mark = random_token()
    head = ('--%s\r\nContent-Disposition: form-data; name="body"; filename="body"\r\n'
            "Content-Type: %s\r\n\r\n" % (mark, kind))
    return Envelope("%s; boundary=%s" % (ENVELOPE_TYPE, mark), head.encode("ascii"),
                    b"\r\n--%s--\r\n" % mark.encode("ascii"))


def kept_within(low, high):
    """Return the schema of a whole number in a query. A number out of bounds is set to the nearest bound."""
    return {"type": ["integer", "null"], "keptWithin": [low, high]}


class Upload(NamedTuple):
    """A body that is a file."""

    size: "int"
    pieces: "Iterator[bytes]"


class Request:
    """A request, as handlers use it, made of a WSGI environment."""

    def __init__(self, environ, settings):
        self._environ = environ
        names = ("base_path", "https", "trusted_proxies")
        try:
            base_path, https, trusted = map(settings.get, names)
        except JobQueueError:           # the database cannot be read
            base_path, https, trusted = (SETTINGS[name].default for name in names)
        self._client = environ.get("REMOTE_ADDR", "")
        self._is_proxied = is_trusted(self._client, trusted)
        self.address = nearest_client(environ, trusted)     # the client's, as far as known
        host = self._added("X-Forwarded-Host")  # the host name that the browser used
        self._host = host if re.fullmatch(HOST, host) else environ.get("HTTP_HOST", "").lower()
        self.method = environ["REQUEST_METHOD"]
        self.query_text = environ.get("QUERY_STRING", "")
        meant = re.fullmatch("(.*&|)as=(PATCH|DELETE)", self.query_text)
        if self.method == "POST" and meant:     # many hosts let only GET, HEAD and POST pass
            self.method, self.query_text = meant[2], meant[1].rstrip("&")
        self.base = find_base(environ, base_path)
        path = inner_path(environ)
        self._came_below = (path + "/").startswith(base_path + "/") and base_path != ""
        if self._came_below:            # the proxy has left the base path in front
            path = path[len(base_path):]
        # Without a slash at the end of the address, relative links would lead outside the folder.
        self.lacks_slash = path in ("", "/") and not (asked_path(environ) or path).endswith("/")
        self.path = (path or "/").encode("latin-1", "replace").decode("utf-8", "replace")
        self.content_type = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        self.secure = (https == "always" or environ.get("wsgi.url_scheme") == "https"
                             or environ.get("HTTPS", "").lower() in TRUE_WORDS
                             or self._added("X-Forwarded-Proto") == "https")
        self.app: "App"                   # the Application that answers and sets this
        self.asker = None        # the user, also set by the Application
        self.cancel_requested = None     # that of the task whose claim is sent
        self.given = {}     # query or body, checked with the route's schema
        self._digest = ""               # digest of method, path, type and body, set when the body was read
        # Exchange.pause(), if this server can wait, or None.
        self.pause = environ.get("jobqueue.pause")
        prefix = "__Host-" if self.base == "/" else "__Secure-"     # browsers require these prefixes
        self.cookie_name = prefix * self.secure + "jobqueue"        # the session cookie
        # The address of the start-up file and the folder that the web server serves, if known.
        self.places = (
            environ.get("SCRIPT_NAME", ""), environ.get("DOCUMENT_ROOT", "").rstrip("/"))
        length = environ.get("CONTENT_LENGTH") or "0"
        self._length = int(length) if re.fullmatch("[0-9]{1,12}", length, re.ASCII) else None
        self.left = self._length or 0       # bytes of the body that were not read yet
        self._held = self._tail = b""       # the content read with an envelope's head, and its tail

    @property
    def person(self):
        """Return the user of the request; Unauthorized if there is none."""
        if self.asker is None:
            raise Unauthorized("Please log in. Programs send an API token as X-Api-Key, or as "
                               "Authorization: Bearer, which some web servers drop.")
        return self.asker

    @person.setter
    def person(self, person):
        """Set the user of the request."""
        self.asker = person

    @property
    def by_https_only(self):
        """Return whether browsers may be told to use HTTPS only (ASVS 3.4.1).

        They may not if other sites share the host name, as on localhost or above a path such as /jq/.
        """
        host = (self.header("Host") or "").partition(":")[0].lower()
        return self.secure and host not in ("localhost", "127.0.0.1") and self.base == "/"

    @property
    def is_by_admin(self):
        """Return whether the user is an admin, in person or through a token."""
        return self.asker is not None and self.asker.is_admin

    @property
    def token(self):
        """Return the token of the program that sent the request."""
        if self.person.token is None:
            raise RuntimeError("a person asks")
        return self.person.token

    @functools.cached_property
    def door(self):
        """Return the kind of web server: "server" (ours), "cgi", "passenger", "uwsgi", ..."""
        environ = self._environ
        if "mod_wsgi.version" in environ:
            return "mod_wsgi " + ("daemon" if environ.get("mod_wsgi.process_group") else "embedded")
        if "uwsgi.version" in environ:
            return "uwsgi"
        if "passenger_wsgi" in sys.modules:     # the module name of Passenger's start file
            return "passenger"
        return environ.get("jobqueue.door") or ("cgi" if environ.get("wsgi.run_once") else "wsgi")

    def header(self, name):
        """Return a header's value, or None."""
        return self._environ.get("HTTP_" + name.upper().replace("-", "_"))

    def _added(self, name):
        """Return the value that a trusted proxy added at the end of a header; "" if there is none.

        `Forwarded` and X-Forwarded-Prefix are not read: the usual proxies pass them on from clients.
        """
        sent = self.header(name) if self._is_proxied else None
        return (sent or "").rpartition(",")[2].strip().lower()

    def doubtful_settings(self):
        """Return the settings that seem wrong for this request. Wrong ones make browsers drop the cookie."""
        by_http = (self.header("Origin") or "").startswith("http://")
        return ([] if self._came_below else ["base_path"]) + (["https"] if by_http else [])

    @property
    def query(self):
        """Return the query as {name: last value}."""
        try:
            return dict(parse_qsl(self.query_text, keep_blank_values=True, max_num_fields=50))
        except ValueError:
            raise Malformed("The query has too many fields.") from None

    def read_query(self, schema):
        """Return the checked query; Malformed if it is wrong: an ignored filter would match all tasks."""
        fields = dict(self.query)
        properties = schema["properties"]
        for name in fields.keys() & properties.keys():
            value = fields[name] = parse_text(properties[name], fields[name])
            if isinstance(value, int) and "keptWithin" in properties[name]:
                low, high = properties[name]["keptWithin"]
                fields[name] = max(low, min(high, value))
        errors = check_value(schema, fields, "")
        if errors:
            raise Malformed(join_errors(errors), errors)
        return {name: value for name, value in fields.items() if value is not None}

    def read_object(self, schema):
        """Return the checked JSON object of the body; Invalid names every wrong field."""
        value = self.json()
        if not isinstance(value, dict):
            raise Malformed("The body must be a JSON object.")
        return checked(schema, value)

    def json(self):
        """Return the body as JSON."""
        if self.content_type != JSON_TYPE:
            raise UnsupportedType("Send the body as application/json.")
        try:
            return load_json(b"".join(self._pieces(BODY_MAX_BYTES)).decode("utf-8"))
        except UnicodeDecodeError:
            raise Malformed("The body is not UTF-8.") from None

    def lines(self):
        """Yield the objects of a body with one JSON object a line, and an Invalid for each bad line."""
        for line in filter(bytes.strip, self._body_lines()):
            try:
                yield load_json(line.decode("utf-8"))
            except UnicodeDecodeError:
                yield Invalid("", wrong("", "is not UTF-8"))
            except Malformed as error:
                yield Invalid("", wrong("", error.detail.replace("This is", "is", 1).rstrip(".")))

    def _body_lines(self):
        rest = b""
        for piece in self._pieces(LINES_MAX_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            if any(len(line) > BODY_MAX_BYTES for line in (*whole, rest)):
                raise TooLarge("A line is longer than %d bytes." % BODY_MAX_BYTES)
            yield from whole
        yield rest

    def upload(self, limit):
        """Return the body as a file; TooLarge if it has more than `limit` bytes."""
        if self.content_type != BYTES_TYPE or not self._environ.get("CONTENT_LENGTH"):
            raise UnsupportedType("Send the file as %s, with its Content-Length." % BYTES_TYPE)
        size = self._size()
        if size > limit:
            raise TooLarge("A file may have %d MB here (max_file_mb)." % (limit >> 20))
        return Upload(size, self._pieces(limit))

    def _size(self):
        if self._length is None:
            raise Malformed("Content-Length must be a number.")
        if self.header("Transfer-Encoding") and not self._environ.get("CONTENT_LENGTH"):
            raise LengthRequired("Send the body with a Content-Length.")
        return self._length

    def _pieces(self, limit):
        """Yield the body in pieces of PIECE_BYTES or less; TooLarge if it has more than `limit` bytes."""
        if self.header("Content-Encoding") not in (None, "identity"):
            raise UnsupportedType("Send the body without compression.")
        if self._size() > limit:
            raise TooLarge("The body is larger than %d bytes." % limit)
        import hashlib
        about = "%s %s %s\n" % (self.method, self.path, self.content_type)
        hashed, end = hashlib.sha256(about.encode("utf-8", "backslashreplace")), b""
        while self.left or self._held:
            piece, self._held = self._held or self._read(), b""
            if not piece:
                raise Malformed("The body is shorter than its Content-Length.")
            size = max(0, len(piece) - max(0, len(self._tail) - self.left))
            piece, end = piece[:size], end + piece[size:]
            if piece:
                hashed.update(piece)
                yield piece
        if end != self._tail:
            raise Malformed(NO_ENVELOPE)
        self._digest = hashed.hexdigest()

    def unwrap(self, limit):
        """Read the head of a multipart/form-data body with one part of at most `limit` bytes.

        Some hosts let files and JSON lines pass only in such a form. Afterwards the part is the body of the
        request.
        """
        boundary = self._environ.get("CONTENT_TYPE", "").partition("boundary=")[2].partition(";")[0]
        if self._size() > limit + ENVELOPE_BYTES:
            raise TooLarge("The body is larger than %d bytes." % limit)
        mark, head = b"--" + boundary.strip('" ').encode("latin-1", "replace"), b""
        while b"\r\n\r\n" not in head and len(head) < ENVELOPE_BYTES and self.left:
            head += self._read() or b"\r\n\r\n"
        head, _, self._held = head.partition(b"\r\n\r\n")
        self._tail = b"\r\n%s--\r\n" % mark
        size = len(self._held) + self.left - len(self._tail)
        part = re.search(rb"(?im)^content-type: *([a-z0-9/+.-]+)", head)
        if len(mark) < 3 or not head.startswith(mark + b"\r\n") or not part or size < 0:
            raise Malformed(NO_ENVELOPE)
        self._length, self.content_type = size, part[1].decode("ascii").lower()

    def _read(self):
        piece = b""
        with contextlib.suppress(OSError):      # some servers raise this for a client that is gone
            piece = self._environ["wsgi.input"].read(min(self.left, PIECE_BYTES))
        self.left -= len(piece)
        return piece

    def read_rest(self):
        """Read the rest of the body. Without this CGI and uWSGI may lose the answer."""
        if self.door != "server" and self.left <= LINES_MAX_BYTES:
            while self.left and self._read():
                pass

    def idempotency_record(self):
        """Return the IdempotencyRecord of a request whose body was read; None without an Idempotency-Key."""
        key = self.header("Idempotency-Key")
        if key is None:
            return None
        if not re.fullmatch("[ -~]{1,200}", key):
            raise Malformed("An Idempotency-Key has 1 to 200 printable characters.")
        return IdempotencyRecord(self.person.id, key, self._digest)

    def cookies(self):
        """Return all values of the session cookie: one of an older base path must not hide the right one."""
        sent = self._environ.get("HTTP_COOKIE", "").split(";")
        pairs = [part.strip().partition("=") for part in sent]
        return [value for name, _, value in pairs if name == self.cookie_name and value][:20]

    def set_cookie(self, token, seconds=SESSION_SECONDS):
        """Return the header that sets the session cookie."""
        return "Set-Cookie", "%s=%s; Path=%s; Max-Age=%d; HttpOnly; SameSite=Strict%s" % (
            self.cookie_name, token, self.base, seconds, "; Secure" if self.secure else "")

    def bearer(self):
        """Return the API token of Authorization: Bearer or X-Api-Key, or None."""
        sent = self.header("Authorization") or self._environ.get("REDIRECT_HTTP_AUTHORIZATION", "")
        kind, _, token = sent.partition(" ")        # Apache renames headers after a rewrite
        return token.strip() if kind.lower() == "bearer" else self.header("X-Api-Key")

    def check_origin(self, strict):
        """Raise Denied unless our own page sent this request (CSRF). `strict` demands a header as proof."""
        site, origin = self.header("Sec-Fetch-Site"), self.header("Origin")
        if site is not None:
            right = site == "same-origin"
        elif origin is not None:
            scheme, port = ("https", ":443") if self.secure else ("http", ":80")
            right = origin == "%s://%s" % (scheme, re.sub(port + "$", "", self._host))
        else:
            right = not strict
        if not right:
            raise Denied("This request does not come from this site's own page. If it does, a "
                         "proxy hides the address: see the settings trusted_proxies and https.")

    def visit(self):
        """Return how the page was reached, as the web server shows it."""
        return {"door": self.door, "https": self.secure, "base": self.base,
                "host": self._host if re.fullmatch(HOST, self._host) else "localhost",
                "client": self._client, "trusted": self._is_proxied,
                "forwarded": self.header("X-Forwarded-For") is not None}


class _StaticFile(NamedTuple):
    stamp: "tuple[int, int]"          # time of the last change, and size
    answer: "Answer"


def lighter(suffix, body):
    """Return a file as it is sent: scripts and styles lose comments, indents and needless spaces."""
    if suffix in (".js", ".css"):
        body = COMMENTS.sub(b"", body)
    return STYLE_SPACES.sub(rb"\1", body) if suffix == ".css" else body


class StaticFiles:
    """The files of static/ with plain names and known suffixes, without comments."""

    def __init__(self, folder):
        self._folder = folder
        self._known = {}

    def page(self, name):
        """Return the Answer with a page of the handbook. Other files in its folder are not served."""
        contents = self.answer("docs/README.md")
        if name != "README.md" and b"](%s)" % name.encode("utf-8", "replace") not in contents.body:
            raise NotFound("There is no file %s." % shorten(name, 60))
        return self.answer("docs/" + name)

    def answer(self, name):
        """Return the Answer with a file; NotFound if static/ has no such file."""
        path = self._folder / name
        if not re.fullmatch(STATIC_NAME, name) or path.suffix not in STATIC_TYPES:
            raise NotFound("There is no file %s." % shorten(name, 60))
        try:
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            cached = self._known.get(name)
            if cached is None or cached.stamp != stamp:
                body = lighter(path.suffix, path.read_bytes())
                answer = Answer(200, body, STATIC_TYPES[path.suffix], keep="no-cache")
                cached = self._known[name] = _StaticFile(stamp, answer)
        except OSError:
            raise NotFound("There is no file %s." % name) from None
        return cached.answer


# web/handlers_tasks.py -------------------------------------------------------
#
# Handlers of pages, tasks, files and logs: one function per route.
#
# A handler does the part of a request that a row of ROUTES cannot describe. It gets (queue, request, *parts
# of the path). It returns an Answer, a JSON object, or None for an empty body. An object or None is sent with
# the status of the row. The docstring of a handler is its description in /openapi.json.

SLICE_PAGE_SECONDS = 5.0        # how long one request of the page works: other requests may wait
PAGE_ROWS_MAX = 200


def get_page(queue, request):
    """Send the page, always at an address that ends with a slash."""
    if request.lacks_slash:
        return Answer(308, headers=[("Location", request.base)])
    return request.app.static.answer("index.html")


def tick(queue, request):
    """Do the maintenance, and run some tasks where no worker can stay: for cron and open pages."""
    ticked = queue.tick.maybe(request.app.source if request.asker else "address")
    worked = queue.starter.work_slice(SLICE_PAGE_SECONDS if request.asker else SLICE_SECONDS)
    answer = {"ticked": ticked, "worked": worked, "service": describe_service(queue, request.is_by_admin)}
    return Answer(200, dump_json(answer).encode("utf-8"), keep=None)


def get_health(queue, _):
    """Check that the process answers, its program is in place, and the database can be read."""
    database = queue.database
    database.check_file()
    if not WORKER_FILE.exists():
        raise SetupError("The folder of the program, %s, is gone: restart it from where it is now." % HOME)
    return {"status": "ok", "version": VERSION, "schema": database.value(database.version_words)}


def session_json(queue, person):
    """Return a session as the API shows it."""
    visible = exposure(queue) if person.is_admin else {"exposed": None, "at": None}
    user = queue.users.describe(person.name)
    return {"user": {name: user[name] for name in ("name", "role", "email", "summary")},
            "mail": can_send_mail(queue.settings), "version": VERSION,
            "data": str(queue.database.folder) if person.is_admin else None,
            "expires_at": iso(person.expires_at), "exposed": visible["exposed"] or [],
            "looked_at": iso(visible["at"]), "max_file_mb": queue.settings.get("max_file_mb")}


def session_answer(queue, request, token, status):
    """Return the Answer with the session of a token, and its cookie."""
    person = queue.sessions.person(token)
    if person is None:                  # the user was disabled a moment ago
        raise wrong_log_in()
    return json_answer(session_json(queue, person), status, [request.set_cookie(token)])


def post_setup(queue, request):
    """Make the first admin, or give an admin a new password, and log in.

    Needs the code of a setup-code file. 404 if there is an admin and no such file.
    """
    row = queue.setup.redeem(**request.given, address=request.address, doubtful=request.doubtful_settings())
    return session_answer(queue, request, queue.sessions.open(row, request.address), 201)


def delete_session(queue, request):
    """Log out."""
    for token in request.cookies():
        queue.sessions.close(token)
    # An answer that a browser keeps for a conditional request must not outlive the session: ASVS 14.3.1.
    return Answer(204, headers=[request.set_cookie("", 0), ("Clear-Site-Data", '"cache"')])


def owner_for(queue, request, names):
    """Return the id of the owner of added tasks: the caller, or the owner that an admin names."""
    if names <= {request.person.name}:
        return request.person.id
    if not request.person.is_admin:
        raise field_error("owner", "can be chosen by admins only")
    if len(names) > 1:
        raise field_error("owner", "must be the same for all tasks of one request")
    try:
        owner_id = queue.users.find(names.pop())["id"]
    except NotFound:
        raise field_error("owner", "is no user") from None
    return owner_id


# One task, an array of tasks, or JSON lines, each a task. Tasks are checked while the body is read, also
# against the schemas of their functions.
NEW_TASKS = {"anyOf": [REQUEST_SCHEMA, {"type": "array", "minItems": 1, "items": REQUEST_SCHEMA}]}


def _add_once(queue, request,
              requests):
    """Add these tasks, unless a request with the same Idempotency-Key added them before."""
    person = request.person
    try:
        with queue.database.deadline_paused():    # reading the body may take long
            orders = queue.requests.check(requests, person.answerable)
        if not orders:
            raise Malformed("There is no task in the body.")
        owner_id = owner_for(queue, request, {order.owner or person.name for order in orders})
        return queue.add_orders(orders, owner_id, request.idempotency_record())
    except Invalid:                     # a repeated request may be invalid now
        for _ in requests:                 # only the whole body shows whether it is repeated
            pass
        record = request.idempotency_record()
        answer = record and record.find(queue.database, queue.database.clock.now())
        if not answer:
            raise
        return answer


def post_tasks(queue, request):
    """Add one task, an array of tasks, or a task for each line."""
    if request.content_type == LINES_TYPE:
        return _add_once(queue, request, request.lines())
    body = request.json()
    many = body if isinstance(body, list) else [body]
    if not all(isinstance(item, dict) for item in many):
        raise Malformed("The body must be a task or a list of tasks, each a JSON object.")
    added = _add_once(queue, request, iter(many))
    if many is body:
        return added
    task_id, shown = added["ids"][0], added
    with contextlib.suppress(NotFound):     # the task has ended and was removed: send its id only
        shown = conceal(queue.get_json(task_id, owner_id=request.person.visible_owner_id), request.person)
    return json_answer(shown, 201 if added["created"] else 200,
                       [("Location", "%sapi/tasks/%d" % (request.base, task_id))])


def wanted_owner(queue, request, fields,
                 scope):
    """Return the id of the owner in a query, or `scope`; Denied for another person's tasks."""
    name = fields.get("owner")
    if not name:
        return scope
    if scope is not None and name != request.person.name:
        raise Denied("Only admins see other people's tasks.")
    return queue.users.find(name)["id"]


# The columns of a task in a CSV file.
CSV_COLUMNS = ("id owner function queue status reason priority attempts created_at run_at "
               "started_at finished_at error arguments result").split()


# The places where a ' is inserted, since a spreadsheet would read a formula there. They are at the beginning
# of a cell, and after the cell separators of other countries.
FORMULA = re.compile(r"\A(?=[\t\r\n])|(\A|[;\t])(?=[-=+@\uff0d\uff1d\uff0b\uff20])")


def _csv(rows):
    import csv
    text = io.StringIO()
    for row in rows:
        row["error"] = row["error"] and ": ".join(filter(None, row["error"].values()))
        cells = [dump_json(cell) if isinstance(cell, (bool, dict, list)) else cell
                 for cell in map(row.get, CSV_COLUMNS)]
        csv.writer(text).writerow(
            FORMULA.sub(lambda match: match[0] + "'", cell) if isinstance(cell, str) else cell
            for cell in cells)
    return text.getvalue()


EXPORTING = threading.Lock()


def in_turns(pieces):
    """Yield the pieces of an exported file, in turns with other exports.

    So several exports slow down other requests no more than one does.
    """
    while True:
        with EXPORTING:
            piece = next(pieces, None)
        if piece is None:
            return
        if piece:
            yield piece.encode("utf-8")


class Export(NamedTuple):
    """A format of exported tasks: its media type, its first text, and the function that writes tasks."""

    kind: "str"
    first: "str"
    text: "Callable[[Iterable[JsonObject]], str]"


EXPORTS = {                             # \ufeff tells spreadsheets that the file is UTF-8
    "csv": Export("text/csv; charset=utf-8", "\ufeff%s\r\n" % ",".join(CSV_COLUMNS), _csv),
    "ndjson": Export(LINES_TYPE, "", lambda rows: "".join(dump_json(row) + "\n" for row in rows))}
PAGE_FIELDS = {"limit": about(kept_within(1, PAGE_ROWS_MAX), "kept within 1 and %d" % PAGE_ROWS_MAX),
         "cursor": about(kept_within(0, INTEGER_MAX), "the value next of the page before")}
OWNER_FILTER = about(TEXT_OR_NULL, "a name; for users only their own")
MOMENT = {"type": "string", "format": "date-time"}
WHICH_TASKS = {
    "status": about(
        {"type": ["string", "null"], "pattern": "(({0})(,({0}))*)?".format("|".join(STATUS_WORDS)),
         "patternMessage": "must be one of %s" % ", ".join(STATUS_WORDS)},
        "any of these, such as failed,cancelled"),
    "function": TEXT_OR_NULL, "queue": TEXT_OR_NULL,
    "q": about({"type": ["string", "null"], "maxLength": 200},
               "number, or part of function, message, error, owner, arguments"),
    "error": about(TEXT_OR_NULL, "the kind of error, such as ValueError, or the reason, such as timeout"),
    "ended_since": about(MOMENT, "ended then or later"),
    "since": about(MOMENT, "added then or later"), "until": about(MOMENT, "added before"),
    "ids": about({"type": ["string", "null"], "pattern": "([0-9]{1,15}(,[0-9]{1,15}){0,199})?",
                  "patternMessage": "must be numbers with commas"}, "any of these"),
    "owner": OWNER_FILTER}
# Further parts of the answer with a list, each if the query has its name with the value 1.
ALSO = {
    "counts": lambda tasks, task_filter: tasks.count(task_filter),
    "failed": lambda tasks, task_filter: tasks.failures(task_filter),
    "running": lambda tasks, task_filter: tasks.list_json(
        tasks.find(task_filter.within([RUNNING]), RUNNING_MAX)[0])}
LISTED_TASKS = object_of(
    **WHICH_TASKS, **PAGE_FIELDS, **{name: about(TEXT, "1: told as well") for name in (*ALSO, "held")},
    sort=about(or_null({"enum": [sign + name for name in (OLDEST, *SORTS) for sign in ("-", "")]}),
               "-: descending. Except by id, only the newest %d are sorted; by times, the newest %d that "
               "have started" % (SORT_ROWS, SORT_ROWS)),
    fields=about(or_null({"enum": [*FIELDS, ",".join(FIELDS)]}), "further fields of each task, if short"),
    format=about(or_null({"enum": list(EXPORTS)}), "all matching tasks, as a file"))


def _wanted(queue, request, fields):
    """Return the Filter of a query, or of the object of an action."""
    def text(name):
        return fields.get(name) or None

    def moment(name):
        return parse_time(fields[name], name) if fields.get(name) else None
    words, ids = fields.get("status"), fields.get("ids")
    return Filter(wanted_owner(queue, request, fields, request.person.visible_owner_id),
                  sorted(set(map(STATUS_WORDS.index, words.split(",")))) if words else None,
                  text("function"), text("queue"), text("q"), text("error"),
                  moment("ended_since"), moment("since"), moment("until"),
                  list(map(int, ids.split(","))) if ids else None, request.person.searches_as)


def get_tasks(queue, request):
    """List a page of tasks, newest first; or send a file of all that match."""
    query, tasks = request.given, queue.tasks
    task_filter, sort = _wanted(queue, request, query), query.get("sort") or NEWEST
    if query.get("format"):
        if sort not in (NEWEST, OLDEST):
            raise field_error("sort", "must be %s or %s in a file" % (NEWEST, OLDEST))
        export = EXPORTS[query["format"]]
        pieces = itertools.chain([export.first], map(export.text, tasks.pages(task_filter, sort)))
        return Answer(200, in_turns(pieces), export.kind, [(
            "Content-Disposition", 'attachment; filename="tasks.%(format)s"' % query)], keep=None)
    fields = query["fields"].split(",") if query.get("fields") else ()
    rows, going_on = tasks.find(task_filter, query.get("limit", PAGE_ROWS), query.get("cursor"), sort,
                                FIELDS_ROW if fields else LIST_ROW)
    return {"tasks": queue.forecast.of_list(tasks.list_json(rows, fields)),
            "next": going_on and str(going_on), "service": describe_service(queue, request.is_by_admin),
            **({"held": held_queues(queue, request, {
                *(row["queue"] for row in rows if row["status"] == PENDING),
                *([task_filter.queue] if task_filter.queue else ())})} if query.get("held") == "1" else {}),
            **{name: tell(tasks, task_filter) for name, tell in ALSO.items() if query.get(name) == "1"}}


def due_at(row):
    """Return the time from which on a pending task may start."""
    return max(row["created_at"], row["run_at"] or 0)


def held_queues(queue, request, names):
    """Return {"queue", "code", "text"} for each of these queues that starts nothing now for this person."""
    blocked = {name: queue.queues.blocked(name, queue.claims.machine, request.person.visible_owner_id)
               for name in sorted(names)}
    return [{"queue": name, "code": why.code, "text": why.words}
            for name, why in blocked.items() if why.words]


WHOSE = object_of(owner=OWNER_FILTER)
SUMMARIZED = object_of(owner=OWNER_FILTER, zone=about(TEXT, "the time zone of the days; UTC if left out"))


def get_summary(queue, request):
    """Sum up yesterday and last week in a sentence each: the user's own tasks, or all for an admin."""
    fields = request.given
    return queue.summaries.sentences(
        fields.get("zone") or "UTC", queue.database.clock.now(),
        wanted_owner(queue, request, fields, request.person.visible_owner_id))


def get_overview(queue, request):
    """Show running, pending, recently failed and next tasks: the user's own, or all for an admin."""
    scope = wanted_owner(queue, request, request.given, request.person.visible_owner_id)
    now = queue.database.clock.now()
    firsts = queue.tasks.firsts(PENDING, scope)
    oldest = min(firsts, key=due_at, default=None)
    states = [row["state"] for row in queue.workers.rows() if row["mode"] != "remote"]
    return {
        **{name: ALSO[name](queue.tasks, Filter(scope)) for name in ("running", "counts")},
        "oldest": oldest and {"id": oldest["id"], "function": oldest["function"],
                              "queue": oldest["queue"], "since": iso(due_at(oldest))},
        "held": held_queues(queue, request, {row["queue"] for row in firsts}),
        "next_at": iso(min((row["run_at"] for row in queue.tasks.firsts(SCHEDULED, scope)),
                           default=None)),
        "failed": {"since": iso(now - DAY), **queue.tasks.failures(Filter(scope, ended_since=now - DAY))},
        "schedules": queue.schedules.coming(scope, now + DAY),
        "workers": {"alive": len(states), "busy": states.count("busy"),
                    "maximum": queue.settings.get("NbMaxWorker")},
        "service": describe_service(queue, request.is_by_admin)}


def get_task(queue, request, task_id):
    """Send one task."""
    with request.app.one_by_one:        # a large result needs much memory
        row = queue.tasks.get(task_id, request.person.visible_owner_id)
        before, behind = queue.tasks.neighbours(row, request.person.visible_owner_id)
        shown = conceal(queue.row_json(row), request.person)
        return json_answer({**shown, "forecast": queue.forecast.of_task(row),
                            "previous": before, "next": behind})


WOULD_BE = object_of(("function",), function=TEXT, queue=about(TEXT_OR_NULL, "else the function's"),
                   priority=about(kept_within(-100, 100), "else the function's"))


def get_forecast(queue, request):
    """Predict when a task would begin and end if it were added now."""
    fields, person = request.given, request.person
    function = queue.requests.function(fields["function"], person)
    options = {**function["options"], **{name: fields[name] for name in fields if name != "function"}}
    queue.queues.get(options["queue"], queue.claims.machine)
    return queue.forecast.of_new(person.id, function["name"], options)


ACTION = titled("Action", object_of(
    ("action",),
    action={"enum": list(ACTIONS)},
    ids={"type": "array", "items": integer_within(1, INTEGER_MAX), "maxItems": 1000},
    filter=about(object_of(**WHICH_TASKS), "as in the query of a list; instead of ids"),
    expected_count=about(number_within(0, INTEGER_MAX, ["integer", "null"]),
                         "with a filter, in the first request: the confirmed maximum; null: 409 returns "
                         "the count"),
    **{"continue": {"type": "string", "pattern": "[0-9]{1,15}-[0-9]{1,15}",
                    "patternMessage": "must be the value of the answer before"}}))
COUNT_SECONDS = 5.0             # how long the tasks that match a filter are counted
ACTION_SECONDS = 3.0            # how long one request changes tasks; the next continues


def _act_on_filter(queue, request, body):
    """Do an action to the tasks that match a filter, as far as the time allows.

    1. The first request counts the tasks. It is refused without expected_count, or if more tasks match.
    2. Tasks are changed in the order of their ids. The newest id of the first request is the bound.
    3. `continue` has the last id that was reached, and the bound. The next request begins after that id.
    """
    action, task_filter = body["action"], _wanted(queue, request, body["filter"])
    low, top = map(int, (body.get("continue") or "0-%d" % queue.database.last_id("task")).split("-"))
    counts, reached = queue.tasks.tally(task_filter.within(ACTIONS[action]), low, top, COUNT_SECONDS)
    count, expected = sum(counts), body.get("expected_count")
    if "continue" not in body:
        if reached < top:
            raise field_error("filter", "matches tasks that take too long to count: narrow it, such as "
                                        "by a function or a time")
        if expected is None or count > expected:
            raise Conflict("Nothing was changed: %d tasks match and can be changed now. Please "
                           "confirm this number." % count,
                           wrong("expected_count", "must be %d now" % count), count=count)
    done, low = queue.actions.act(action, task_filter, low, top, ACTION_SECONDS,
                                  *request.person.scope_and_actor)
    if low >= top:
        return {"done": done, "remaining": 0, "continue": None}
    return {"done": done, "remaining": max(0, count - done), "continue": "%d-%d" % (low, top)}


def post_actions(queue, request):
    """Cancel, retry or delete many tasks: the given ones, or all that match a filter.

    With a filter, repeat the request with the `continue` of the answer, until that is null.
    """
    body = request.given
    if ("ids" in body) == ("filter" in body):
        raise field_error("filter", "or ids must be given, and not both")
    if "ids" in body:
        done = queue.actions.act_on(body["action"], body["ids"], *request.person.scope_and_actor)
        acted = {"done": done, "remaining": 0, "continue": None}
    else:
        acted = _act_on_filter(queue, request, body)
    if acted["done"]:
        queue.actions.record_bulk(body["action"], acted["done"], body.get("filter"),
                                *request.person.scope_and_actor)
    return {"action": body["action"], **acted}


UPLOAD = object_of(("name",), name={"type": "string", "maxLength": 300})
FILE_HEADERS = [("Content-Security-Policy", "default-src 'none'; sandbox")]


def post_file(queue, request):
    """Upload a file. The body is its bytes; arguments of tasks refer to it by its id."""
    sent = request.upload(queue.settings.get("max_file_mb") << 20)
    return queue.files.receive(request.person.id, request.given["name"], *sent)


def get_files(queue, request, task_id):
    """List the files that a task left, then the uploads that it was given, which have an id."""
    queue.tasks.get(task_id, request.person.visible_owner_id)
    return {"files": list(queue.files.describe(task_id))}


def get_file(queue, request, task_id, name):
    """Send a file of a task, by its name or id. Images and text are shown, other files are saved.

    No browser runs its content: the type is detected from the bytes, and headers demand a sandbox.
    """
    if request.cancel_requested is None:
        queue.tasks.get(task_id, request.person.visible_owner_id)
    row = next((row for row in queue.files.of_task(task_id) if name in tuple(row)[:2]), None)
    with contextlib.suppress(OSError):
        if row is not None:
            file, kind = queue.files.open_file(task_id, row)
            where = "%s; filename*=UTF-8''%s" % (
                "attachment" if kind == BYTES_TYPE else "inline", quote(row["name"], safe=""))
            return Answer(200, FileSlice(file, row["size"]), kind,
                          [*FILE_HEADERS, ("Content-Disposition", where)], None)
    raise NotFound("There is no file %s." % shorten(name, 60))


LOG_PART = object_of(attempt=about(kept_within(0, INTEGER_MAX), "the last one if left out"),
                   offset=about(kept_within(0, INTEGER_MAX), "in bytes"),
                   download=about(TEXT, "1: all of it, as a file"))


def get_log(queue, request, task_id):
    """Send the output of an attempt, from a byte offset on."""
    db, row = queue.database, queue.tasks.get(task_id, request.person.visible_owner_id)
    query = request.given
    attempt, offset = query.get("attempt", row["attempts"]), query.get("offset", 0)
    if query.get("download") == "1":
        with request.app.one_by_one:
            whole = read_log(db, task_id, attempt, 0, 2 * LOG_MAX_BYTES).text.encode("utf-8")
        name = "task-%d-attempt-%d.txt" % (task_id, attempt)
        return Answer(200, whole, "text/plain; charset=utf-8",
                      [("Content-Disposition", 'attachment; filename="%s"' % name)])
    part = read_log(db, task_id, attempt, offset)
    return {"attempt": attempt, "attempts": logged_attempts(db, task_id), "offset": offset,
            "next": part.next_offset, "text": part.text, "cut": part.is_cut, "times": part.times,
            "complete": row["status"] != RUNNING or attempt < row["attempts"]}


# web/handlers_site.py --------------------------------------------------------
#
# Handlers of schedules, figures, queues, people, remote workers.
#
# The docstring of web/handlers_tasks.py describes a handler.

ASK_AGAIN_SECONDS = 3.0         # before the next call, if the server cannot wait for a task
WAIT_LOOK_SECONDS = 0.3
POINTS_MAX = 480


def get_schedules(queue, request):
    """List the schedules that the user may see, oldest first."""
    queue.schedules.synchronise()
    limit, after = request.given.get("limit", PAGE_ROWS), request.given.get("cursor") or 0
    schedules = queue.schedules.find_with_recent(request.person.visible_owner_id, limit + 1, after)
    return {"schedules": schedules[:limit],
            "next": str(schedules[limit - 1]["id"]) if len(schedules) > limit else None,
            "ticks": queue.tick_history.state(), "service": describe_service(queue, request.is_by_admin)}


def post_schedules(queue, request):
    """Make a schedule."""
    owner_id = owner_for(queue, request, {request.given.get("owner") or request.person.name})
    schedule_id = queue.schedules.add(request.given, owner_id, request.person.answerable)
    return queue.schedules.get(schedule_id, request.person.visible_owner_id)


PREVIEW = titled("PreviewRequest", object_of(("rule",), **{
    "rule": SCHEDULE_FIELDS["rule"], "zone": SCHEDULE_FIELDS["zone"], "count": integer_within(1, 50),
    "from": about({"type": ["string", "null"], "format": "date-time"}, "instead of now")}))


def preview_rule(fields, now):
    """Describe a rule in English, with its next times from `now` on."""
    at = parse_time(fields["from"], "from") if fields.get("from") else now
    rule = parse_rule(fields["rule"], fields.get("zone", "UTC"), at)
    return {"rule": rule.text, "zone": rule.zone, "words": rule.words(),
            "times": preview(rule, at, int(fields.get("count", UPCOMING)))}


def patch_schedule(queue, request, schedule_id):
    """Change, pause or resume a schedule."""
    name = request.given.get("owner")
    queue.schedules.change(schedule_id, request.given, request.person.visible_owner_id,
                           request.person.answerable, name and owner_for(queue, request, {name}))
    return queue.schedules.get(schedule_id, request.person.visible_owner_id)


WHICH_FIGURES = object_of(**{
    "from": about(MOMENT, "a day before `to` if left out"),
    "to": about(MOMENT, "now if left out"),
    "step": about(or_null({"enum": list(STEPS)}), "what one point is of"),
    "function": TEXT_OR_NULL, "queue": TEXT_OR_NULL,
    "owner": about(TEXT_OR_NULL, "counts only this user's tasks; for users only their own name")})


def get_exposition(queue, _):
    """Send counters and gauges for Prometheus, to a token of the scope metrics."""
    now, states = queue.database.clock.now(), [row["state"] for row in queue.workers.rows()]
    due = map(due_at, queue.tasks.firsts(PENDING))
    text = exposition([
        *counter_families(queue.metrics.all_time()),
        ("queue_pending", "gauge", "Tasks that may start now.", [
            ("", {"queue": row["name"]},
             queue.queues.count(queue.database, PENDING, row["name"], INTEGER_MAX))
            for row in queue.queues.all(queue.claims.machine)]),
        ("oldest_pending_seconds", "gauge", "Waiting time of the oldest of them.", [
            ("", {}, max(0.0, now - min(due, default=now)))]),
        ("workers", "gauge", "Worker processes.", [
            ("", {"state": state}, states.count(state))
            for state in ("starting", "idle", "busy", "stopping")])])
    return Answer(200, text.encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")


def get_metrics(queue, request):
    """Count tasks and measure their times, in steps from an hour to a week.

    Without an owner, users see the figures of the functions that they may add, including other users' tasks.
    """
    fields, person = request.given, request.person
    end = parse_time(fields["to"], "to") if fields.get("to") else queue.database.clock.now()
    start = parse_time(fields["from"], "from") if fields.get("from") else end - DAY
    step = fields.get("step") or "hour"
    start, end = whole_steps(start, end, step)
    if not 0 < (end - start) / STEPS[step] <= POINTS_MAX or end >= YEAR_10000:
        raise Malformed("There must be 1 to %d steps between from and to." % POINTS_MAX)
    owner_id = wanted_owner(queue, request, fields, person.visible_owner_id) if fields.get("owner") else None
    own = None if person.visible_owner_id is None or owner_id is not None else {
        each["name"] for each in queue.catalogue.functions() if each["who"] == "user"}

    def wants(function, lane):
        return ((own is None or function in own) and fields.get("queue", lane) == lane
                and fields.get("function", function) == function)
    return queue.metrics.read(start, end, step, wants, person.visible_owner_id, owner_id)


LISTED_ACTIVITY = object_of(
    task=about(kept_within(0, INTEGER_MAX), "only what happened to this task"),
    since=MOMENT, until=about(MOMENT, "before this moment"),
    event=about(TEXT_OR_NULL, "such as failed or logged_in"),
    worker=about(kept_within(0, INTEGER_MAX), "a worker's number"), function=TEXT_OR_NULL,
    owner=OWNER_FILTER, **PAGE_FIELDS)


def get_activity(queue, request):
    """List the activity, newest first. A page may be short or empty although older events follow."""
    fields, person = request.given, request.person
    since, until = (fields.get(name) and parse_moment(fields[name]).timestamp()
                    for name in ("since", "until"))
    if fields.get("task") is not None:
        try:
            queue.tasks.get(fields["task"], person.visible_owner_id)
        except NotFound:
            queue.tasks.removed(fields["task"], person.visible_owner_id)
    rows, before = find_activity(
        queue.database, fields.get("limit", PAGE_ROWS), fields.get("cursor"), since, until,
        person.visible_account_id if person.visible_owner_id is None else None, task_id=fields.get("task"),
        worker_id=fields.get("worker"), event=fields.get("event"), function=fields.get("function"),
        owner_id=wanted_owner(queue, request, fields, person.visible_owner_id))
    same = ("id", "event", "attempt", "function", "queue", "waited", "seconds", "cpu_seconds",
            "peak_memory", "actor")

    def message(row):
        # The text after the colon is the last output of a worker, which only admins may see.
        is_open = person.is_admin or row["event"] not in ("worker_lost", "worker_start_failed")
        return row["message"] if is_open else (row["message"] or "").partition(": ")[0]
    return {"next": before and str(before), "activity": [
        {**{name: row[name] for name in same}, "message": message(row), "at": iso(row["at"]),
         "task": row["task_id"], "worker": row["worker_id"], "owner": row["owner"]} for row in rows]}


def get_workers(queue, request):
    """List the worker processes. Their tasks are shown to people who may see them."""
    def shown(row):
        hidden = request.person.visible_owner_id not in (None, row["owner_id"])
        names = ("id", "machine", "pid", "state", "mode", "version", "tasks")
        return {**{name: row[name] for name in names},
                "functions": [each["name"] for each in json.loads(row["functions"] or "[]")
                              if request.person.is_admin or each["who"] == "user"],
                "started_at": iso(row["started_at"]), "seen_at": iso(row["seen_at"]),
                "task": None if hidden else row["task_id"],
                "function": None if hidden else row["function"]}
    return {"workers": [shown(row) for row in queue.workers.rows()],
            "maximum": queue.settings.get("NbMaxWorker"),
            "service": describe_service(queue, request.is_by_admin)}


def get_queue(queue, _, name):
    """Send one queue."""
    return queue.forecast.of_queue(queue.queues.get(name, queue.claims.machine))


def get_queues(queue, request):
    """List all queues with their limits and their tasks."""
    queues, machine = queue.queues, queue.claims.machine
    firsts = sorted(queue.tasks.firsts(PENDING), key=due_at, reverse=True)
    oldest = {row["queue"]: iso(due_at(row)) for row in firsts}    # the last, oldest row of each queue stays
    return {"queues": [{**queue.forecast.of_queue(row), "oldest_at": oldest.get(row["name"])}
                       for row in queues.all(machine)],
            "machines": sorted({machine, *queues.machines()}),
            "service": describe_service(queue, request.is_by_admin)}


def post_queues(queue, request):
    """Make a queue."""
    return patch_queue(queue, request, request.given["name"], new=True)


def patch_queue(queue, request, name, new=False):
    """Change a queue's limits, pause or resume it."""
    queue.queues.change(name, request.given, request.person.name, new)
    return get_queue(queue, request, name)


def get_host(queue, request):
    """Check this host, as `check` does."""
    folder, visit = queue.database.folder, request.visit()
    report, visible = check_host(queue, visit), exposure(queue)
    return {
        "checks": [check._asdict() for check in report.checks], "advice": next_step(report),
        "files": host_files(queue, visit), "mode": dict(zip(("mode", "why"), queue.modes.decide())),
        "ticks": queue.tick_history.state(), "canary": {
            "token": canary_token(folder), "addresses": private_addresses(folder, *request.places)},
        "exposed": visible["exposed"], "looked_at": iso(visible["at"])}


def get_backup(queue, _):
    """Download a checked copy of the database, or on PostgreSQL an export."""
    path = save(queue, queue.database.folder, "download")
    try:
        file = open(path, "rb", buffering=0)
    except FileNotFoundError:           # another request took the file
        raise Busy(BUSY) from None
    path.unlink(missing_ok=True)
    name = "backup-%s%s" % (iso(queue.database.clock.now())[:10], path.suffix)
    return Answer(200, FileSlice(file, os.fstat(file.fileno()).st_size), BYTES_TYPE, [
        *FILE_HEADERS, ("Content-Disposition", "attachment; filename=" + name)], None)


EXPOSURE = titled("Exposure", object_of(("exposed",), exposed={"type": "array", "items": TEXT}))


def post_exposure(queue, request):
    """Store which of the addresses in GET /api/host an admin's browser could fetch."""
    addresses = private_addresses(queue.database.folder, *request.places)
    exposed = request.given["exposed"]
    if not set(exposed) <= set(addresses):
        raise field_error("exposed", "must be some of %s" % ", ".join(addresses))
    store_exposure(queue, list(dict.fromkeys(exposed)))


def get_settings(queue, _):
    """List all settings with their bounds and the source of each value."""
    return {"settings": queue.settings.describe()}


def patch_settings(queue, request):
    """Change settings; null restores the default."""
    if request.given.get("https") == "always" and "https" in request.doubtful_settings():
        raise field_error("https", "would lock you out: open this page by https:// first")
    queue.settings.change(request.given, request.person.name,
                          on_host=request.person.answerable is None)
    return get_settings(queue, request)


def _confirm_admin(queue, request, password):
    """Check the password of an admin in a session: the new rights or password of an admin outlive it."""
    if not request.bearer() and request.person.answerable is not None:
        queue.users.confirm(request.person, password, "current_password")


def post_users(queue, request):
    """Make a user."""
    fields = dict(request.given)
    password = fields.pop("current_password", None)
    if fields.get("role") == "admin":
        _confirm_admin(queue, request, password)
    return queue.users.add(**fields, by=request.person.name)


def post_invitations(queue, request):
    """Make an invitation: a link with which a new user chooses a name and a password, once within a day."""
    fields, person = request.given, request.person
    role = fields.get("role", "user")
    if role == "admin":
        _confirm_admin(queue, request, fields.get("current_password"))
    invitation = queue.invitations.add(person.id if person.answerable else None, role, person.name)
    link = page_link(queue.settings, "#invite=" + invitation["code"])
    return {**invitation, "link": link or None}


def post_acceptance(queue, request):
    """Make the user whom an invitation is for, and log in."""
    row = queue.invitations.accept(**request.given, address=request.address)
    return session_answer(queue, request, queue.sessions.open(row, request.address), 201)


def patch_user(queue, request, name):
    """Change a user: admins change any user, other users their own password.

    Users may also remove their own mail address, and choose when they get a summary. A changed password
    ends all sessions of the user. After a change of their own password the user gets a new session.
    """
    users, person, fields = queue.users, request.person, dict(request.given)
    user, current = users.find(name), fields.pop("current_password", None)
    own = user["name"] == person.name
    if not own and not person.is_admin:
        raise NotFound("There is no user %s." % shorten(name, 60))
    if own and fields and set(fields) <= {"email", "summary"} and fields.get("email") is None:
        return users.change(person.name, by=person.name, **fields)
    if not own or ("password" not in fields and person.is_admin):
        if "password" in fields if user["role"] == "admin" else fields.get("role") == "admin":
            _confirm_admin(queue, request, current)
        return users.change(name, by=person.name, **fields)
    if set(fields) - {"password"}:
        raise Denied("Only admins may change roles, limits and addresses and disable users.")
    check_password(fields.get("password") or "", person.name)
    confirmed = users.confirm(person, current, "current_password")
    headers = []
    changed = users.change(person.name, confirmed, person.name, password=fields["password"])
    if request.cookies():
        token = queue.sessions.open(users.find(person.name), request.address)
        headers = [request.set_cookie(token)]
    return json_answer(changed, headers=headers)


MUTE = titled("Mute", object_of(("how",), how=about({"enum": list(MUTES)}, "for how long")))


def post_tokens(queue, request):
    """Make an API token, which is shown once. A session must send the password: the token outlives it."""
    fields, person, scope = request.given, request.person, request.given.get("scope", "user")
    is_known = request.bearer() or person.answerable is None
    limits = {name: fields[name] for name in ("queues", "functions") if fields.get(name)}
    if person.role not in TOKEN_SCOPES[scope]:
        raise Denied("Such a token may only be made by: %s." % ", ".join(TOKEN_SCOPES[scope]))
    if limits and scope != "worker":
        raise field_error(*limits.popitem()[:1], "is for tokens of the scope worker")
    confirmed = None if is_known else queue.users.confirm(person, fields.get("password"))
    return queue.tokens.add(person.id, fields["name"], scope, confirmed, limits, person.name)


class _Waited(NamedTuple):
    """The claimed tasks, and the seconds after which the worker asks again."""

    tasks: "list[JsonObject]"
    again: "float"


def _wait_for_work(queue, request):
    """Wait for tasks, as long as the worker's call and this server allow."""
    wait, clock = request.given["claim"].get("wait"), queue.database.clock
    tasks = []
    if not (request.pause and wait and request.app.waiting.acquire(blocking=False)):
        return _Waited([], ASK_AGAIN_SECONDS)
    try:
        until = clock.monotonic() + wait
        while not tasks and clock.monotonic() < until:
            with queue.database.deadline_paused():
                is_heard = request.pause(WAIT_LOOK_SECONDS)
            if not is_heard:
                break
            tasks = queue.remote.claim_late(request.token, request.given)
        return _Waited(tasks, 0)
    finally:
        request.app.waiting.release()


def post_worker_turn(queue, request):
    """Report a remote worker's attempts, and claim tasks. Each part is answered on its own."""
    answer = queue.remote.turn(request.token, request.given)
    if request.given.get("claim") and not answer["tasks"] and "leave" not in request.given:
        answer["tasks"], answer["wait"] = _wait_for_work(queue, request)
    return answer


def post_worker_tasks(queue, request, task_id):
    """Add the tasks that a running task sends, one on each line, for the same owner.

    The Idempotency-Key begins with the task's claim and a minus. With a token for certain functions or
    queues, it may add only the functions of that token's workers, and those that any user may add.
    """
    claim = (request.header("Idempotency-Key") or "").partition("-")[0]
    owner_id = queue.remote.owner_of(request.token, task_id, claim)
    bound = request.token.get("functions")
    if bound is None and request.token.get("queues"):
        bound = queue.remote.announced(request.token)
    barred = set() if bound is None else {
        each["name"] for each in queue.catalogue.functions()
        if each["who"] != "user" and each["name"] not in bound}
    words = "is not allowed: this token is bound to %s" % ", ".join(bound or ())
    with queue.database.deadline_paused():
        orders = queue.requests.check(
            field_error("function", words)
            if isinstance(line, dict) and line.get("function") in barred else line
            for line in request.lines())
    return queue.add_orders(orders, owner_id, request.idempotency_record(), adding_task_id=task_id)


def post_worker_file(queue, request, task_id):
    """Store a file that a running task leaves. It replaces a file of the same name."""
    sent = request.upload(queue.settings.get("max_files_mb") << 20 or INTEGER_MAX)
    owner_id = queue.tasks.get(task_id)["owner_id"]
    claim = request.bearer() or ""
    return queue.files.receive(
        owner_id, request.given["name"], *sent, task_id,
        is_held=lambda db: queue.claims.asked_with(db, task_id, claim) is not None)


# web/routes.py ---------------------------------------------------------------
#
# ROUTES: each request, its users, its input and its answer.
#
# A row of ROUTES has a request, the users that may send it, its input, its answer, and the actions before and
# after it. /openapi.json is made from the same rows.

    # its parameters: queue, request, *path parts




ANYONE, USER, ADMIN, WORKER, METRICS = "anyone", "user", "admin", "worker token", "metrics token"
CLAIM = "claim"                         # the claim of a running task, sent instead of a token
TICKER = "tick token"                   # a token of the scope tick; for POST also any user
ID, NAME = "([0-9]{1,15})", "([^/]{1,300})"

# Flags of a route. FRESH: before it, tasks.py is read if it changed. CHANGE: after it, workers are started.
# KEPT: its answer is cached until the next commit, for CACHE_SECONDS at most. OWN: viewers may send it, too,
# such as a change of their own account. WHOLE: its answer contains credentials, so viewers and tokens of the
# scope read may not get it.
FRESH, CHANGE, KEPT, OWN, WHOLE = 1, 2, 4, 8, 16
FILES = " ".join(kind.partition(";")[0] for kind in STATIC_TYPES.values())
_TASK, _SCHEDULE_ID = "/api/tasks/" + ID, "/api/schedules/" + ID
_RUNNING_TASK = "/api/worker/tasks/" + ID
FILE_TYPES = " ".join((*(kind.partition(";")[0] for kind in SHOWN_TYPES.values()), BYTES_TYPE))
_QUEUE, _USER = "/api/queues/" + NAME, "/api/users/" + NAME









def _does(words, handler):
    """Return the handler, a lambda, with `words` as its docstring."""
    handler.__doc__ = words
    return handler


class Route(NamedTuple):
    """A request, its users, its input and its answer."""

    method: "str"
    path: "str"                       # a regular expression
    handler: "Handler"
    who: "str"
    takes: "Schema | None"            # schema of the query for a GET and UPLOAD, else of the body
    status: "int"
    kinds: "str"                      # the answer's schemas of static/api.json, or media types
    needs: "int" = 0


ROUTES = [
    Route("GET", "/", get_page, ANYONE, None, 200, FILES),
    Route("GET", "/static/" + NAME, _does("Send a file of static/.", lambda _, request, name:
             request.app.static.answer(name)), ANYONE, None, 200, FILES),
    Route("GET", "/static/languages/" + NAME, _does("Send the texts of the page in a language.",
             lambda _, request, name: request.app.static.answer("languages/" + name)),
          ANYONE, None, 200, JSON_TYPE),
    Route("GET", "/static/docs/" + NAME, _does("Send a page of the handbook.",
             lambda _, request, name: request.app.static.page(name)),
          ANYONE, None, 200, "text/markdown"),
    Route("GET", "/openapi.json", _does("Send this document.", lambda _, request:
             request.app.document), ANYONE, None, 200, JSON_TYPE),
    Route("GET", "/healthz", get_health, ANYONE, None, 200, "Health"),
    Route("GET", "/metrics", get_exposition, METRICS, None, 200, "text/plain"),
    Route("GET", "/tick", tick, TICKER, None, 200, "Ticked"),
    Route("POST", "/tick", tick, TICKER, None, 200, "Ticked", OWN),
    Route("POST", "/api/setup", post_setup, ANYONE, SET_UP, 201, "Session"),
    Route("POST", "/api/session", _does("Log in.", lambda queue, request: session_answer(
             queue, request, queue.sessions.log_in(**request.given, address=request.address), 200)),
          ANYONE, LOG_IN, 200, "Session"),
    Route("GET", "/api/session", _does("Name the user of the session or token.", lambda queue, request:
             session_json(queue, request.person)), USER, None, 200, "Session"),
    Route("DELETE", "/api/session", delete_session, USER, None, 204, "", OWN),
    Route("GET", "/api/sessions", _does("List the user's sessions.", lambda queue, request: {
             "sessions": queue.sessions.all(request.person.id, request.cookies())}),
          USER, None, 200, "SessionList"),
    Route("DELETE", "/api/sessions", _does("Log out everywhere else.", lambda queue, request:
             queue.sessions.close_all(queue.users.find(request.person.name), request.person.name,
                                      request.cookies())), USER, None, 204, "", OWN),
    Route("GET", "/api/functions", _does("List the functions, with their schemas.",
             lambda queue, request: queue.catalogue.describe(request.person.is_admin)),
          USER, None, 200, "FunctionList", FRESH),
    Route("GET", "/api/overview", get_overview, USER, WHOSE, 200, "Overview", KEPT),
    Route("GET", "/api/summary", get_summary, USER, SUMMARIZED, 200, "Summary", KEPT),
    Route("GET", "/api/tasks", get_tasks, USER, LISTED_TASKS, 200, "TaskList text/csv " + LINES_TYPE,
          KEPT),
    Route("POST", "/api/tasks", post_tasks, USER, NEW_TASKS, 201, "Added", FRESH | CHANGE),
    Route("POST", "/api/tasks/actions", post_actions, USER, ACTION, 200, "ActionDone", FRESH | CHANGE),
    Route("GET", _TASK, get_task, USER, None, 200, "Task"),
    Route("PATCH", _TASK, _does("Change a task that has not ended, such as whether its owner gets mail about "
             "its end.", lambda queue, request, task_id: queue.row_json(queue.actions.change(
                 task_id, request.given, request.person.visible_owner_id))),
          USER, CHANGED_TASK, 200, "Task"),
    Route("DELETE", _TASK, _does("Remove a task.", lambda queue, request, task_id:
             queue.actions.delete(task_id, *request.person.scope_and_actor)), USER, None, 204, "", CHANGE),
    Route("POST", _TASK + "/cancel", _does("Cancel a task, or ask the worker that runs it to stop.",
             lambda queue, request, task_id: queue.row_json(queue.actions.cancel(
                 task_id, *request.person.scope_and_actor))), USER, None, 200, "Task", CHANGE),
    Route("POST", _TASK + "/retry", _does("Make a failed or cancelled task pending again.",
             lambda queue, request, task_id: queue.row_json(queue.actions.retry(
                 task_id, *request.person.scope_and_actor))), USER, None, 200, "Task", FRESH | CHANGE),
    Route("POST", "/api/files", post_file, USER, UPLOAD, 201, "Uploaded"),
    Route("GET", _TASK + "/success", _does("Find the newest success with the same function, owner and "
             "arguments.", lambda queue, request, task_id: {"success": queue.tasks.last_success(
                 queue.tasks.get(task_id, request.person.visible_owner_id))}),
          USER, None, 200, "LastSuccess"),
    Route("GET", _TASK + "/files", get_files, USER, None, 200, "FileList"),
    Route("GET", _TASK + "/files/" + NAME, get_file, USER, None, 200, FILE_TYPES),
    Route("GET", _TASK + "/log", get_log, USER, LOG_PART, 200, "Log text/plain"),
    Route("GET", "/api/forecast", get_forecast, USER, WOULD_BE, 200, "Forecast"),
    Route("GET", "/api/schedules", get_schedules, USER, object_of(**PAGE_FIELDS), 200,
          "ScheduleList", FRESH),
    Route("POST", "/api/schedules", post_schedules, USER, SCHEDULE_SCHEMA, 201, "ScheduleDetail",
          FRESH | CHANGE),
    Route("POST", "/api/schedules/preview", _does("Describe a rule in English, with its next times.",
             lambda queue, request: preview_rule(request.given, queue.database.clock.now())),
          USER, PREVIEW, 200, "Preview"),
    Route("GET", _SCHEDULE_ID, _does("Send a schedule with its history.", lambda queue, request, number:
             queue.schedules.get(number, request.person.visible_owner_id)),
          USER, None, 200, "ScheduleDetail"),
    Route("PATCH", _SCHEDULE_ID, patch_schedule, USER, CHANGED_SCHEDULE, 200, "ScheduleDetail",
          CHANGE),
    Route("DELETE", _SCHEDULE_ID, _does("Remove a schedule.", lambda queue, request, schedule_id:
             queue.schedules.delete(schedule_id, request.person.visible_owner_id, request.person.answerable)),
          USER, None, 204, ""),
    Route("POST", _SCHEDULE_ID + "/run", _does("Add a schedule's task now.", lambda queue, request,
             number: queue.row_json(queue.schedules.run(number, request.person.visible_owner_id,
                                                        request.person.answerable))),
          USER, None, 201, "Task", CHANGE),
    Route("GET", "/api/activity", get_activity, USER, LISTED_ACTIVITY, 200, "ActivityList"),
    Route("GET", "/api/metrics", get_metrics, USER, WHICH_FIGURES, 200, "Metrics", KEPT),
    Route("GET", "/api/workers", get_workers, USER, None, 200, "WorkerList"),
    Route("GET", "/api/queues", get_queues, USER, None, 200, "QueueList", KEPT),
    Route("POST", "/api/queues", post_queues, ADMIN, NEW_QUEUE, 201, "Queue", CHANGE),
    Route("GET", _QUEUE, get_queue, USER, None, 200, "Queue"),
    Route("PATCH", _QUEUE, patch_queue, ADMIN, CHANGED_QUEUE, 200, "Queue", CHANGE),
    Route("DELETE", _QUEUE, _does("Remove a queue that holds no tasks.", lambda queue, request, name:
             queue.delete_queue(name, request.person.name)), ADMIN, None, 204, ""),
    Route("GET", "/api/alerts", _does("List open and recent alerts, and their recipients.", lambda
             queue, _: queue.alerts.all()), ADMIN, None, 200, "AlertList"),
    Route("POST", "/api/alerts/test", _does("Send a test message to all recipients of alerts.",
             lambda queue, _: queue.alerts.test()), ADMIN, None, 202, "AlertTest"),
    Route("POST", "/api/alerts/" + ID + "/mute", _does("Mute an alert for a time or until it is resolved, or "
             "(no) unmute it.", lambda queue, request, alert_id: queue.alerts.mute(
                 alert_id, request.given["how"])), ADMIN, MUTE, 200, "Alert"),
    Route("GET", "/api/host", get_host, ADMIN, None, 200, "HostReport"),
    Route("GET", "/api/backup", get_backup, ADMIN, None, 200, BYTES_TYPE, WHOLE),
    Route("POST", "/api/host/exposure", post_exposure, ADMIN, EXPOSURE, 204, ""),
    Route("POST", "/api/host/test", _does("Add a task that sleeps for 10 s, to see whether workers live.",
             lambda queue, request: add_sample(queue, request.person.id)), ADMIN, None, 201, "Task"),
    Route("GET", "/api/settings", get_settings, ADMIN, None, 200, "SettingList"),
    Route("PATCH", "/api/settings", patch_settings, ADMIN, CHANGED_SETTINGS, 200, "SettingList",
          CHANGE),
    Route("GET", "/api/users", _does("List all users.", lambda queue, request:
             {"users": queue.users.all()}), ADMIN, None, 200, "UserList"),
    Route("POST", "/api/users", post_users, ADMIN, NEW_USER, 201, "User"),
    Route("POST", "/api/invitations", post_invitations, ADMIN, NEW_INVITATION, 201, "Invitation"),
    Route("POST", "/api/invitations/accept", post_acceptance, ANYONE, ACCEPTED, 201, "Session"),
    Route("PATCH", _USER, patch_user, USER, CHANGED_USER, 200, "User", CHANGE | OWN),
    Route("DELETE", _USER + "/sessions", _does("Log a user out everywhere.", lambda queue, request,
             name: queue.sessions.close_all(queue.users.find(name), request.person.name)),
          ADMIN, None, 204, ""),
    Route("DELETE", _USER, _does("Remove a user who owns no tasks.", lambda queue, request, name:
             queue.users.delete(name, request.person.name)), ADMIN, None, 204, ""),
    Route("GET", "/api/tokens", _does("List API tokens: the user's own; for admins all, or those of an "
             "`owner`.", lambda queue, request: {"tokens": queue.tokens.all(wanted_owner(
                 queue, request, request.given, request.person.visible_account_id))}),
          USER, object_of(owner=OWNER_FILTER), 200, "TokenList"),
    Route("POST", "/api/tokens", post_tokens, USER, NEW_TOKEN, 201, "CreatedToken", OWN),
    Route("DELETE", "/api/tokens/" + ID, _does("Revoke an own token; admins revoke any.", lambda
             queue, request, token_id: queue.tokens.delete(request.person.visible_account_id, token_id,
                                                           request.person.name)),
          USER, None, 204, "", OWN),
    Route("GET", "/api/saved", _does("List the user's saved filters and form values.", lambda queue,
             request: {"saved": queue.saved.all(request.person.id)}), USER, None, 200, "SavedList"),
    Route("POST", "/api/saved", _does("Save a filter or the values of a form under a name.", lambda queue,
             request: queue.saved.add(request.person.id, **request.given)),
          USER, NEW_SAVED, 201, "Saved", OWN),
    Route("DELETE", "/api/saved/" + ID, _does("Remove a saved filter or saved values.", lambda queue,
             request, saved_id: queue.saved.delete(request.person.id, saved_id)),
          USER, None, 204, "", OWN),
    Route("POST", "/api/worker/hello", _does("Register a remote worker, or register it again.", lambda
             queue, request: queue.remote.hello(request.token, request.given)),
          WORKER, HELLO, 200, "Welcome"),
    Route("POST", "/api/worker/turn", post_worker_turn, WORKER, TURN, 200, "TurnAnswer"),
    Route("POST", _RUNNING_TASK, post_worker_tasks, WORKER, NEW_TASKS, 201, "Created",
          FRESH | CHANGE),
    Route("POST", _RUNNING_TASK + "/files", post_worker_file, CLAIM, UPLOAD, 201, "Uploaded"),
    Route("GET", _RUNNING_TASK + "/files/" + NAME, get_file, CLAIM, None, 200, FILE_TYPES),
    Route("GET", _RUNNING_TASK + "/results", _does("Return the results of the tasks before a running one.",
             lambda queue, _, task_id: {"results": queue.tasks.results_before(task_id)}),
          CLAIM, None, 200, "ResultList"),
]


def place_of(path):
    """Return the beginning of a path or pattern, which few routes share: /api/tasks, /static."""
    parts = path.split("/", 3)
    return "/".join(parts[:3 if parts[1:2] == ["api"] else 2])


ROUTES_AT = {}
for _route in ROUTES:
    ROUTES_AT.setdefault(place_of(_route.path), []).append(_route)


def match_path(pattern, path):
    """Return the variable parts of `path`, or None if it does not match. An id comes first, as a number."""
    fixed, place, _ = pattern.partition("(")    # most paths differ here: no pattern is compiled
    if not place:
        return () if path == fixed else None
    match = re.fullmatch(pattern, path) if path.startswith(fixed) else None
    if match is None:
        return None
    if ID not in pattern:
        return match.groups()
    return (int(match[1]), *match.groups()[1:])


# The possible errors of a request that changes nothing, for /openapi.json. CHANGING_FAILS has those of the
# other requests.
LOOKING_FAILS = (Malformed, Unauthorized, Denied, NotFound, TooMany, Busy, StorageFull)


def component(kind, name):
    """Return a reference to a component of the OpenAPI document."""
    return {"$ref": "#/components/%s/%s" % (kind, name)}


# web/openapi.py --------------------------------------------------------------
#
# /openapi.json, made of ROUTES.

CHANGING_FAILS = (*LOOKING_FAILS, Conflict, TooLarge, UnsupportedType, Invalid)
OF_OURS = ("title", "patternMessage", "keptWithin")  # keywords of our schemas that other programs do not know


def _documented(part, schemas):
    """Return a part of our schemas for other programs. A part with a title is moved to `schemas`."""
    if isinstance(part, (list, tuple)):
        return [_documented(item, schemas) for item in part]
    if not isinstance(part, dict):
        return part
    documented = {name: _documented(value, schemas) for name, value in part.items() if name not in OF_OURS}
    if "keptWithin" in part:            # nearly any number is accepted, and also an empty text
        del documented["type"]
        documented["anyOf"] = [integer_within(1 - 10 ** 18, 10 ** 18 - 1), {"const": ""}]
    if "pattern" in documented:
        documented["pattern"] = "^(%s)$" % documented["pattern"]
    if "title" not in part:
        return documented
    schemas[part["title"]] = documented
    return component("schemas", part["title"])


def _parameters(route, schemas):
    names = {"Id": ID in route.path, "Name": NAME in route.path,
             "IfNoneMatch": route.method == "GET" and route.who != TICKER,
             "IdempotencyKey": route.takes is NEW_TASKS}
    takes = {}
    if route.takes and (route.takes is UPLOAD or route.method == "GET"):
        takes = route.takes
    return [component("parameters", name) for name in names if names[name]] + [
        {"name": name, "in": "query", "required": name in takes.get("required", ()),
         "schema": _documented(field, schemas)} for name, field in takes.get("properties", {}).items()]


def _responses(route):
    content = {}
    for name in route.kinds.split():
        media = name if "/" in name else JSON_TYPE
        content[media] = {"schema": {} if "/" in name else component("schemas", name)}
    errors = LOOKING_FAILS if route.method == "GET" else CHANGING_FAILS
    responses = {
        str(kind.status): component("responses", kind.__name__) for kind in errors}
    responses[str(route.status)] = {"description": "Done.", "content": content}
    if route.takes is NEW_TASKS:
        responses["200"] = {"description": "Nothing was added: this task has the unique_key.",
                        "content": content}
    if route.method == "GET" and route.who != TICKER:
        responses["304"] = {"description": "Unchanged since If-None-Match."}
    return responses


def _operation(route, schemas):
    summary, _, more = (route.handler.__doc__ or "").partition("\n")
    operation = {"summary": summary.rstrip("."), "x-who": route.who,
                        "responses": _responses(route), "description": " ".join(more.split()),
                        "parameters": _parameters(route, schemas)}
    if route.who == ANYONE:
        operation["security"] = []
    if route.who == TICKER:
        schemes = ("bearer", "key", "cookie") if route.method == "POST" else ()
        operation["security"] = [{name: []} for name in ("tick", *schemes)]
    if route.who == CLAIM:
        operation["security"] = [{"bearer": []}, {"key": []}]
    if route.takes and route.method != "GET":
        content = (
            {BYTES_TYPE: {"schema": {}}} if route.takes is UPLOAD else
            {JSON_TYPE: {"schema": _documented(route.takes, schemas)}})
        if route.takes is NEW_TASKS:
            content[LINES_TYPE] = {"schema": {
                "type": "string", "pattern": "[!-~]",
                "description": "A NewTask on each line; %d at most." % ADD_MAX}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def describe_api(document):
    """Return the OpenAPI document of all ROUTES, which begins as the content of static/api.json."""
    parts = document["components"]
    document["info"]["version"] = VERSION
    document["paths"] = collections.defaultdict(dict)
    for route in ROUTES:
        path = route.path.replace(ID, "{id}").replace(NAME, "{name}")
        document["paths"][path][route.method.lower()] = _operation(route, parts["schemas"])
    _documented({"title": "Options", "type": "object", "required": list(OPTION_SCHEMAS),
                 "properties": OPTION_SCHEMAS}, parts["schemas"])
    content = {"application/problem+json": {"schema": component("schemas", "Problem")}}
    parts["responses"] = {kind.__name__: {"description": (kind.__doc__ or "").partition("\n")[0],
                                          "content": content} for kind in CHANGING_FAILS}
    return document


# web/application.py ----------------------------------------------------------
#
# The WSGI callable: finds the route, checks, answers errors.
#
# An Application finds the route of a request in ROUTES, checks its user and its input, calls the handler, and
# turns errors into answers.




SCOPES = {WORKER: "worker", METRICS: "metrics"}     # the scope that an admin's token needs for such a route
# The address of a new object, by the schema of the answer.
MADE_AT = {"Task": "api/tasks/%(id)d", "ScheduleDetail": "api/schedules/%(id)d",
           "Queue": "api/queues/%(name)s", "User": "api/users/%(name)s"}
WAITERS_MAX = 16


class _Kept:
    """A cached answer, and the version of the database from which it was made."""

    def __init__(self):
        self.answer = None
        self.version = None
        self.until = 0.0
        self.making = threading.Lock()      # one thread makes the answer, the rest waits


class Application:
    """The WSGI callable of one queue. `source` is the caller of its ticks, see Tick.maybe()."""

    def __init__(self, queue, source="request"):
        self.queue = queue
        self.source = source
        self.static = StaticFiles(STATIC_FOLDER)
        # Cached answers by path, query, and the user's scope, role, name and token scope.
        self._cache = {}
        self.one_by_one = threading.Lock()
        self.waiting = threading.BoundedSemaphore(WAITERS_MAX)      # calls that wait for tasks
        if source != "code":
            with print_errors("settling here"):
                queue.files.settle()

    def __call__(self, environ, start_response):
        with self.queue.database.deadline():
            request = Request(environ, self.queue.settings)
            try:
                answer = self.route(request)
            except Unauthorized as error:
                answer = problem(self._invited_to_setup(error))
            except Exception as error:
                answer = problem(error)
            status, headers, content = answer.to(request)
        if request.left:
            request.read_rest()
        start_response(status, headers)
        return content

    @functools.cached_property
    def document(self):
        """Return the answer of /openapi.json."""
        return json_answer(describe_api(load_json(self.static.answer("api.json").whole.decode())))

    def _invited_to_setup(self, error):
        """Return the error 401, with a hint whether there is an admin. If there is none, make the code."""
        try:
            error.extra = {"setup": not self.queue.users.has_admin()}
        except JobQueueError as trouble:
            return trouble
        with print_errors("making the set-up code"):
            if error.extra["setup"]:
                self.queue.setup.code()
        return error

    def route(self, request):
        """Return the answer to a request; errors are raised."""
        request.app = self
        method = "GET" if request.method == "HEAD" else request.method
        methods = []
        for route in ROUTES_AT.get(place_of(request.path), ()):
            parts = match_path(route.path, request.path)
            if parts is not None and route.method == method:
                self._admit(request, route.who, route.needs, parts)
                return self._handle(request, route, parts)
            if parts is not None:
                methods.append(route.method)
        if not methods:
            raise NotFound("There is nothing at this address.")
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        raise NotAllowed("%s is not possible here; possible: %s." % (
            shorten(request.method, 20), allowed), headers=[("Allow", allowed)])

    def _handle(self, request, route, parts):
        if request.asker and route.handler is not tick:
            with self.queue.database.deadline(0.5):     # a user's request also does the maintenance
                self.queue.tick.maybe(self.source)
        if not route.needs & KEPT:
            return self._perform(request, route, parts)
        person, database = request.person, self.queue.database
        key = request.path, request.query_text, person.visible_owner_id, person.role, person.name, \
            person.token and person.token["scope"]
        if len(self._cache) >= 20:
            self._cache.clear()
        entry = self._cache.setdefault(key, _Kept())
        version, now = database.version_seen(), database.clock.monotonic()
        with entry.making:
            if entry.answer and entry.version == version and now <= entry.until:
                return entry.answer
            answer = self._perform(request, route, parts)
            if answer.keep:
                entry.answer, entry.version, entry.until = answer, version, now + CACHE_SECONDS
            return answer

    def _perform(self, request, route, parts):
        if request.content_type == ENVELOPE_TYPE:
            with self.queue.database.deadline_paused():
                most = self.queue.settings.get("max_files_mb") << 20 or INTEGER_MAX
                request.unwrap(most if route.takes is UPLOAD else
                               LINES_MAX_BYTES if route.takes is NEW_TASKS else BODY_MAX_BYTES)
        if route.takes and route.takes is not NEW_TASKS:
            with self.queue.database.deadline_paused():
                is_query = route.method == "GET" or route.takes is UPLOAD
                read = request.read_query if is_query else request.read_object
                request.given = read(route.takes)
        if route.needs & FRESH:
            self.queue.catalogue.refresh()
        try:
            value = route.handler(self.queue, request, *parts)
        except Invalid as error:
            if route.method == "GET":   # the query is the input of a GET
                raise Malformed(error.detail, error.errors) from None
            raise
        finally:                        # a refused action may have changed some tasks
            if route.needs & CHANGE:
                self.queue.start_workers()
        if isinstance(value, Answer):
            return value
        if value is None:
            return Answer(route.status)
        if request.asker:
            value = conceal(value, request.asker)
        place = MADE_AT.get(route.kinds) if route.status == 201 else None
        headers = [("Location", request.base + quote(place % value))] if place else []
        return json_answer(value, route.status, headers)

    def _admit(self, request, who, needs, parts):
        if who == ANYONE and request.method == "POST":
            request.check_origin(strict=False)
        if who == CLAIM:
            request.cancel_requested = self.queue.claims.asked_with(
                self.queue.database, parts[0], request.bearer() or "")
        if (who == ANYONE or request.cancel_requested is not None
                or who == TICKER and self._admit_ticker(request)):
            return
        if request.asker is None and who != CLAIM:
            request.asker = self._identify(request, who)
        if request.asker is None and request.bearer() is not None:
            raise Unauthorized("This API token is not known.")
        person, token = request.person, request.person.token
        if who == ADMIN and not person.is_admin:
            raise Denied("Only admins may do this.")
        if who in SCOPES and not (token and person.is_admin):
            raise Denied("This needs an admin's token of the scope %s." % SCOPES[who])
        reads = token and token["scope"] == "read" or person.role == "viewer" and not needs & OWN
        if reads and (request.method not in ("GET", "HEAD") or needs & WHOLE):
            raise Denied("Viewers, and tokens of the scope read, change nothing and get no backup.")

    def _admit_ticker(self, request):
        """Return True if a tick token is sent, either as ?token= or in a header."""
        token = request.query.get("token")
        sent = request.bearer() if token is None else token
        person = self.queue.tokens.person(sent) if sent else None
        if person and person.token and person.token["scope"] == "tick" and (
                person.role in TOKEN_SCOPES["tick"]):
            return True
        if token is None and request.method == "POST":
            return False                # users may tick, too, without this token
        raise Unauthorized("This address needs ?token= and a token of the scope tick.")

    def _identify(self, request, who):
        """Return the Person of the API token if one is sent, else of the session cookie."""
        token = request.bearer()
        if token is not None:
            scopes = (SCOPES[who],) if who in SCOPES else ("user", "read")
            person = self.queue.tokens.person(token)
            if person and person.token and person.token["scope"] not in scopes:
                raise Denied("The scope of this API token does not allow this request.")
            return person
        tokens = request.cookies()
        people = list(filter(None, map(self.queue.sessions.person, tokens)))
        if len({person.id for person in people}) > 1:
            for token in tokens:        # another site may have set one of these cookies: trust none
                self.queue.sessions.close(token)
            raise Unauthorized("Two people were logged in here at once; both were logged out. "
                               "Please log in again.", headers=[request.set_cookie("", 0)])
        person = next(iter(people), None)
        if person and request.method not in ("GET", "HEAD"):
            request.check_origin(strict=True)
            if request.content_type not in (JSON_TYPE, LINES_TYPE, BYTES_TYPE, ENVELOPE_TYPE):
                raise UnsupportedType("Send requests as application/json.")
        return person


applications = {}   # the keys are process ids
_code = file_stamps(CODE_FILES)         # stamps of the code that this process runs


def _application():
    """Return this process's Application; a new one if the database was replaced by another.

    SetupError if newer code has migrated the database.
    """
    current = applications.get(os.getpid())
    with contextlib.suppress(JobQueueError, OSError):
        if current:
            database = current.queue.database
            database.check_file()
            if (file_stamps(_code) == _code
                    or database.value(database.version_words) == SCHEMA_VERSION):
                return current
    current = applications[os.getpid()] = Application(JobQueue())    # another thread may still use the
                                                                     # former one
    return current


def application(environ, start_response):
    """Answer a request: the WSGI callable for web servers that import this file."""
    try:
        app = _application()
    except Exception as error:          # the queue cannot be opened
        status, headers, content = problem(error, environ.get("HTTP_ACCEPT", "")).to()
        start_response(status, headers)
        return content if environ["REQUEST_METHOD"] != "HEAD" else [b""]
    return app(environ, start_response)


def mount(prefix, site):
    """Return a WSGI callable with the page at `prefix`, such as "/jobs". All else goes to `site`.

    Use it in the start file of Django or Flask: application = mount("/jobs", application).
    """
    prefix = "/" + prefix.strip("/").encode("utf-8").decode("latin-1")     # as WSGI has paths
    if prefix == "/":
        raise ValueError("mount: the prefix must be a path such as /jobs")

    def answer(environ, start_response):
        path = environ.get("PATH_INFO", "")
        if path != prefix and not path.startswith(prefix + "/"):
            return site(environ, start_response)
        return application({**environ, "SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + prefix,
                            "PATH_INFO": path[len(prefix):]}, start_response)
    return answer


# web/connections.py ----------------------------------------------------------
#
# A client's connection to the built-in web server.
#
# The built-in web server is Python's http.server with a thread for each connection. This room adds strict
# checks of the heads of requests, and time limits for clients. A body is read when the application asks for
# it. A thread blocks while it waits for its client. Every second the main thread shuts the connections of
# late clients, which wakes their threads. If there is no room for another connection, it shuts that of the
# slowest client. A body or answer of more than LARGE_BYTES is kept in a temporary file, not in memory.

if TYPE_CHECKING:
    Endpoint = tuple[str, int]          # an address and a port; IPv6 has two more items
    Source = Union[bytes, FileSlice, Pieces]      # a part of a response

    class Listener(Protocol):
        """A Server, as far as an Exchange uses it."""

        app: "Application"
        clock: "AnyClock"
        folder: "Path"
        is_stopping: "bool"
        connections: "dict[Socket, Exchange | None]"
        answer_slots: "threading.BoundedSemaphore"
        large_body_locks: "tuple[threading.Lock, threading.Lock]"

        def answers_to(self, host, address): ...

    class HandlerBase:
        """A BaseHTTPRequestHandler, as far as an Exchange uses it."""

        server: "Listener"
        request: "Socket"
        connection: "Socket"              # the same socket
        client_address: "Endpoint"
        rfile: "io.BufferedReader"
        close_connection: "bool"

        def setup(self): ...
        def finish(self): ...
else:
    HandlerBase = object

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
REQUEST_LINE = (rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (/[!-~]{0,8000}) "
                rb"HTTP/1\.([01])\r\n")
HEADER_LINE = rb"(?:([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([^\x00-\x08\x0a-\x1f\x7f]*))?\r\n"
GIVEN_ONCE = {
    "host": HOST, "content-length": "[0-9]{1,12}", "content-type": ".*", "authorization": ".*"}
HEAD_MAX_BYTES, HEAD_MAX_LINES = 32 << 10, 100
PATIENCE = {                            # seconds for a client in each phase of its connection
    "head": 10.0,                       # to send the first byte; then again to send the rest of the head
    "body": 30.0,                       # to send the body; one second more for each 64 KiB
    "work": math.inf,                   # the client waits for us
    "wait": math.inf,                   # we wait for a task, see pause()
    "answer": 30.0,                     # to receive the answer; one second more for each 64 KiB
    "idle": 15.0,                       # to send the next request
    "farewell": 2.0}                    # to close its side after the last answer
CLIENT_BYTES_PER_SECOND = 64 << 10      # a slower client uses up the seconds of its phase
# Larger bodies and answers are kept in files. At most two requests with such bodies are handled at a time:
# one with up to BODY_MAX_BYTES, and one with more. Parsed JSON can need much memory.
LARGE_BYTES = 64 << 10
SHUT_READ, SHUT_WRITE, SHUT_BOTH = 0, 1, 2      # the constants of the module socket
UNKNOWN_NAME = ("This server is not known by that name. On the host, python3 jobqueue.py settings "
                "host_names NAME adds it; behind a proxy, settings trusted_proxies ADDRESS does.")


class BadRequest(JobQueueError):
    """The error of a refused request. The connection is closed after it."""

    code = "bad_request"

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


def compose(status, headers, body, keep=False):
    """Return a whole response as bytes."""
    from wsgiref.handlers import format_date_time
    lines = ["HTTP/1.1 " + status, "Date: " + format_date_time(time.time()),
             "Connection: " + ("keep-alive" if keep else "close")]
    lines += ["%s: %s" % pair for pair in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body


def compose_refusal(error, accepts=""):
    """Return the whole response to a request that the server refuses."""
    status, headers, content = problem(error, accepts).to()
    return compose(status, headers, b"".join(content))


class Body:
    """A request's body, read whole at first use, so that no holder of a lock waits for a client."""

    def __init__(self, exchange, resources):
        self._exchange, self._resources = exchange, resources   # resources are closed after the answer
        self._size = int(exchange.headers.get("content-length", 0))
        self._file = io.BytesIO()
        self.is_read = not self._size   # True: the next bytes of the connection are the next request

    def read(self, size):
        """Return the next bytes; BadRequest if they come too late, StorageFull without room for them."""
        if not self.is_read:
            answer_slots = self._exchange.server.answer_slots
            answer_slots.release()         # other threads may answer while this one waits
            try:
                self._read_whole()
            finally:
                answer_slots.acquire()
            self.is_read = True
        return self._file.read(size)

    def _read_whole(self):
        exchange, folder = self._exchange, self._exchange.server.folder
        is_large, remaining = self._size > LARGE_BYTES, self._size
        exchange.enter("body")
        try:
            if is_large:
                import tempfile
                self._file = self._resources.enter_context(     # unbuffered: closing it cannot fail
                    tempfile.TemporaryFile(dir=folder, buffering=0))
            while remaining:
                if is_large and free_bytes(folder) < DISK_LOW_BYTES + 2 * remaining:
                    raise OSError(errno.ENOSPC, "too little is free")
                piece = self._next_piece(remaining)
                if self._file.write(piece) < len(piece):
                    raise OSError(errno.ENOSPC, "no room for all of it")
                remaining -= len(piece) or remaining      # an empty piece: the client has left
            self._file.seek(0)
        except OSError:
            raise StorageFull("There is no room on the disk for so much at once; nothing was "
                              "changed.") from None
        exchange.enter("work")
        if is_large:
            self._resources.enter_context(exchange.server.large_body_locks[self._size > BODY_MAX_BYTES])

    def _next_piece(self, remaining):
        exchange, piece = self._exchange, b""
        asks_first = exchange.headers.get("expect", "").lower() == "100-continue"
        with contextlib.suppress(OSError):      # an error counts as the end of the body
            if asks_first and remaining == self._size:
                exchange.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            piece = exchange.rfile.read1(min(remaining, PIECE_BYTES))
        if exchange.is_late:
            raise BadRequest(408, "The request took too long.")
        exchange.advance(len(piece))
        return piece


class _Answered(NamedTuple):
    keep: "bool"                          # whether the connection stays open
    sources: "list[Source]"               # the parts of the whole response


class Exchange(HandlerBase):
    """A connection, its phase and its time limit. open_server() adds BaseHTTPRequestHandler as a base."""

    disable_nagle_algorithm = True
    is_late = False                     # True: the time limit has passed, nothing more is read

    def setup(self):
        """Register the connection with the server."""
        super().setup()
        self.enter("head")
        self.server.connections[self.request] = self

    def enter(self, phase):
        """Begin a phase and its time limit."""
        self.phase = phase
        self.counts_from = self.server.clock.monotonic()
        self.deadline = self.counts_from + PATIENCE[phase]

    def advance(self, size):
        """Extend the time limit for bytes that the client sent or received."""
        later = self.counts_from + size / CLIENT_BYTES_PER_SECOND
        self.counts_from = min(later, self.server.clock.monotonic())
        self.deadline = self.counts_from + PATIENCE[self.phase]

    def end_late(self):
        """End a late connection. A client that has sent a part of its request still gets an answer."""
        self.is_late = True
        self.end(SHUT_READ if self.phase in ("head", "body") else SHUT_BOTH)

    def pause(self, seconds):
        """Wait so long, and let other requests be answered.

        Return False if the client left or sent something, or if the server is stopping.
        """
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        self.enter("wait")
        self.server.answer_slots.release()
        try:                            # readable: the client closed the connection or sent more
            return not poll.poll(seconds * 1000) and not self.server.is_stopping
        finally:
            self.server.answer_slots.acquire()
            self.enter("work")

    def end(self, how=SHUT_BOTH):
        """Shut the connection, which wakes its thread."""
        with contextlib.suppress(OSError):
            self.request.shutdown(how)

    def handle_one_request(self):
        """Wait for the first byte of a request, then read and answer it. Without one, end the connection."""
        self.close_connection = True
        if not self.rfile.peek(1):
            return
        self.enter("head")
        try:
            self.parse_request()
        except BadRequest as error:
            refusal = compose_refusal(error, self.headers.get("accept", ""))
            return self._send(False, refusal)
        self.enter("work")
        with self.server.answer_slots, contextlib.ExitStack() as resources:
            keep, sources = self._answer(Body(self, resources))
        self._send(keep, *sources)

    def parse_request(self):
        """Read the head of a request; BadRequest unless it is well-formed."""
        self._head_left = HEAD_MAX_BYTES
        self.headers = {}
        first = self._read_line(REQUEST_LINE, "The request line is malformed.")
        self.command, self.path = first[1].decode("ascii"), first[2].decode("ascii")
        for _ in range(HEAD_MAX_LINES):
            line = self._read_line(HEADER_LINE, "A header line is malformed.")
            if line[1] is None:
                break
            self._add_header(line[1].decode().lower(), line[2].decode("latin-1").strip(" \t"))
        else:
            raise BadRequest(431, "The header is too large.")
        if "host" not in self.headers and first[3] == b"1":
            raise BadRequest(400, "The header Host is missing.")
        if "transfer-encoding" in self.headers:
            raise BadRequest(411, "Send the body with a Content-Length.")
        if not self.server.answers_to(self.headers.get("host"), self.client_address[0]):
            raise BadRequest(421, UNKNOWN_NAME)
        options = self.headers.get("connection", "").lower().replace(" ", "").split(",")
        self._is_http_1_1 = first[3] == b"1"
        # The body of a POST, PUT or PATCH without Content-Length is not read. The next bytes may be that
        # body, so no further request is read from this connection.
        self._may_follow = (self._is_http_1_1 and "close" not in options and (
            "content-length" in self.headers or self.command not in ("POST", "PUT", "PATCH")))

    def _read_line(self, pattern, detail):
        line = self.rfile.readline(self._head_left + 1)
        self._head_left -= len(line)
        if self._head_left < 0:
            raise BadRequest(431, "The header is too large.")
        match = re.fullmatch(pattern, line)
        if match:
            return match
        if self.is_late:
            raise BadRequest(408, "The request took too long.")
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the client left in the midst of a line")
        raise BadRequest(400, detail)

    def _add_header(self, name, value):
        if "_" in name:
            return                      # WSGI would take it for the header with - instead of _
        if not re.fullmatch(GIVEN_ONCE.get(name, ".*"), value, re.ASCII):
            raise BadRequest(400, "The header %s is malformed." % name)
        if name in self.headers:
            if name in GIVEN_ONCE:
                raise BadRequest(400, "The header %s is given twice." % name)
            value = "%s%s%s" % (self.headers[name], "; " if name == "cookie" else ", ", value)
        self.headers[name] = value

    def _answer(self, body):
        starts = []
        content = self.server.app(
            self._environ(body), lambda status, headers: starts.append((status, headers)))
        [(status, headers)] = starts
        keep = (self._may_follow and body.is_read and status < "4" and not self.server.is_stopping
                and self.connection.gettimeout() is None)
        if isinstance(content, FileSlice):
            return _Answered(keep, [compose(status, headers, b"", keep), content])
        if not isinstance(content, list):
            return _Answered(False, [self._chunks(status, headers, content)])
        whole = compose(status, headers, b"".join(content), keep)
        return _Answered(keep, [self._put_aside(whole)])

    def _chunks(self, status, headers, parts):
        """Yield a response that is made while it is sent. Except in HTTP/1.0, an empty chunk ends it."""
        coding = [("Transfer-Encoding", "chunked")] if self._is_http_1_1 else []
        yield compose(status, [*headers, *coding], b"")
        part = b"all"
        while part:
            with self.server.answer_slots:
                part = next(parts, b"")
            yield b"%x\r\n%s\r\n" % (len(part), part) if coding else part

    def _put_aside(self, data):
        """Return the bytes, or a FileSlice if there are more than LARGE_BYTES and the disk has room."""
        if len(data) > LARGE_BYTES:
            import tempfile
            with contextlib.suppress(OSError):
                file = tempfile.TemporaryFile(dir=self.server.folder, buffering=0)
                if file.write(data) == len(data):
                    file.seek(0)
                    return FileSlice(file, len(data))
        return data

    def _environ(self, body):
        path, _, query = self.path.partition("?")
        unprefixed = "content-type", "content-length", "proxy"
        sent = {"HTTP_" + name.upper().replace("-", "_"): value
                for name, value in self.headers.items() if name not in unprefixed}
        return {**sent, "REQUEST_METHOD": self.command, "REQUEST_URI": self.path, "SCRIPT_NAME": "",
                "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("content-type", ""),
                "CONTENT_LENGTH": self.headers.get("content-length", "0"),
                "REMOTE_ADDR": self.client_address[0], "jobqueue.door": "server",
                "wsgi.input": body, "jobqueue.pause": self.pause}

    def _send(self, keep, *sources):
        """Send the parts of a response. Without `keep` the connection ends after them."""
        self.enter("answer")
        with contextlib.ExitStack() as opened:
            for source in sources:
                if isinstance(source, bytes):
                    source = FileSlice(io.BytesIO(source), len(source))
                opened.callback(source.close)
                for piece in source:
                    self.connection.sendall(piece)
                    self.advance(len(piece))
        self.enter("idle")
        self.close_connection = not keep

    def finish(self):
        """Close our side first and read on for a moment, so that the answer is not lost."""
        self.enter("farewell")
        with contextlib.suppress(OSError):
            self.connection.shutdown(SHUT_WRITE)
            while self.connection.recv(PIECE_BYTES):
                pass
        super().finish()


# web/servers.py --------------------------------------------------------------
#
# The built-in web server; CGI.

CONNECTIONS_MAX = 512
ANSWERS_AT_ONCE = 32                    # answers that are made at the same time
STOP_SECONDS = 5.0                      # how long run() waits for the last answers
# Modules that requests import later. A server without free descriptors could not import them any more.
NEEDED_LATER = (
    "calendar glob hashlib heapq hmac http io ipaddress pwd random resource secrets shlex "
    "shutil subprocess tempfile traceback unicodedata wsgiref.handlers zlib zoneinfo").split()


if TYPE_CHECKING:
    class ServerBase:
        """A ThreadingHTTPServer, as far as a Server uses it."""

        socket: "Socket"
        server_address: "Endpoint"

        def __init__(self, address, handler): ...
        def handle_request(self): ...
        def server_close(self): ...
        def get_request(self):
            raise NotImplementedError
        def process_request(self, request, client_address): ...
        def process_request_thread(self, request, client_address): ...
        def shutdown_request(self, request): ...
else:
    ServerBase = object


class Server(ServerBase):
    """The built-in web server. open_server() adds ThreadingHTTPServer as a base.

    At the limits of connections and descriptors the slowest client is disconnected, so that no other
    waits for it.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_port = False            # two servers must not share a port
    timeout = 0.5                       # seconds that handle_request() waits for a connection

    def __init__(self, app, address, clock,
                 background, handler):
        super().__init__(address, handler)
        self.address = self.server_address[:2]
        self.app, self.clock = app, clock
        self.folder, self.is_stopping = app.queue.database.folder, False
        # Connections, each with its Exchange, or None until its thread runs.
        self.connections = {}
        self.answer_slots = threading.BoundedSemaphore(ANSWERS_AT_ONCE)
        self.large_body_locks = threading.Lock(), threading.Lock()  # large bodies; those over BODY_MAX_BYTES
        self._background = background   # runs in a thread as soon as this host allows another one
        self._names = LOOPBACK_HOSTS
        self._looks = Every(1.0, clock)
        self._changed = threading.Condition()       # guards `connections`

    def run(self):
        """Serve until stop() is called. Then wait until all requests are answered, at most STOP_SECONDS."""
        while not self.is_stopping:
            if self._looks.begin_if_due():
                self._check_connections()
            self.handle_request()
        self.server_close()
        deadline = self.clock.monotonic() + STOP_SECONDS
        with self._changed:
            while self.connections and self.clock.monotonic() < deadline:
                for exchange in self._exchanges("head", "body", "idle", "farewell"):
                    exchange.end()
                self._changed.wait(0.05)

    def stop(self):
        """Make run() return. A signal handler may call this."""
        self.is_stopping = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(SHUT_BOTH)

    def _check_connections(self):
        """End late connections. Start the background thread unless it has been started."""
        now = self.clock.monotonic()
        with self._changed:
            for exchange in self._exchanges(*PATIENCE):
                if exchange.deadline < now:
                    exchange.end_late()
        if self._background:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._background, daemon=True).start()
                self._background = None

    def _exchanges(self, *phases):
        return [each for each in self.connections.values() if each and each.phase in phases]

    def _cut_the_slowest(self):
        """Shut the connection of the slowest client; return False if all clients wait for us."""
        slow = self._exchanges(*PATIENCE.keys() - {"work"})
        if slow:
            min(slow, key=lambda exchange: exchange.counts_from).end()
        return bool(slow)

    def get_request(self):
        """Accept a connection. If no descriptor is free, cut the slowest client and raise the error."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                with self._changed:
                    self._cut_the_slowest()
                    self._changed.wait(0.05)
            raise

    def process_request(self, request, client_address):
        """Start a thread for a connection. At the limit it replaces the slowest one, or gets a 503."""
        with self._changed:
            if len(self.connections) >= CONNECTIONS_MAX:
                self._cut_the_slowest()
            has_room = self._changed.wait_for(
                lambda: len(self.connections) < CONNECTIONS_MAX, 1.0)
            if has_room:
                self.connections[request] = None
        if not has_room:
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.sendall(compose_refusal(Busy("Too many connections.", retry_after=2)))
            return self.shutdown_request(request)
        for _ in range(20):
            with contextlib.suppress(RuntimeError):     # this host allows no more threads
                return super().process_request(request, client_address)
            with self._changed:
                if not self._cut_the_slowest():
                    break
            self.clock.sleep(0.05)      # until the thread of the cut connection has ended
        request.settimeout(1.0)         # no thread can start: serve the client here, the rest waits
        return self.process_request_thread(request, client_address)

    def shutdown_request(self, request):
        """Forget a connection and close it. The lock prevents a cut at the same time."""
        with self._changed:
            self.connections.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def handle_error(self, *_):
        """Ignore a client that went away; report other errors of a connection."""
        error = sys.exc_info()[1]
        if isinstance(error, JobQueueError):    # it came in the middle of an answer
            complain(error.detail)
        elif not isinstance(error, OSError):
            sys.__excepthook__(*sys.exc_info())

    def answers_to(self, host, address):
        """Return True if requests for this host name are answered: a check against DNS rebinding."""
        is_public = self.address[0] not in LOOPBACK
        with contextlib.suppress(JobQueueError):
            settings = self.app.queue.settings
            names = settings.get("host_names").lower().replace(",", " ").split()
            self._names = LOOPBACK_HOSTS + tuple(names)
            is_public |= is_trusted(address, settings.get("trusted_proxies"))
        everything = is_public and self._names == LOOPBACK_HOSTS
        return host is None or everything or re.sub(":[0-9]+$", "", host.lower()) in self._names


def open_server(app, host, port, clock=Clock,
                background=None):
    """Return a Server that listens. Only here http.server is imported: CGI requests do not need it."""
    import importlib
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from socketserver import TCPServer
    for name in NEEDED_LATER:
        importlib.import_module(name)
    handler = type("HttpExchange", (Exchange, BaseHTTPRequestHandler), {})
    kind = type("HttpServer", (Server, ThreadingHTTPServer), {
        "address_family": socket.AF_INET6 if ":" in host else socket.AF_INET,
        "server_bind": TCPServer.server_bind})      # that of HTTPServer looks up a name, which takes long
    return kind(app, (host, port), clock, background, handler)


def run_cgi():
    """Answer the one request for which a web server has started this process, and end."""
    become_private()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # the client has left: the body is dropped
    environment = {os.fsdecode(name): value.decode("latin-1") for name, value in os.environb.items()}
    environ = {"REQUEST_METHOD": "GET", **environment, "wsgi.input": sys.stdin.buffer,
                        "wsgi.run_once": True}
    head = []

    def start_response(status, headers, _=None):
        head[:] = ["Status: " + status, *map("%s: %s".__mod__, headers), "", ""]

    with contextlib.redirect_stdout(sys.stderr):    # printed text is for the web server's log
        content = application(environ, start_response)
    with contextlib.suppress(OSError, sqlite3.Error):
        sys.stdout.buffer.write("\r\n".join(head).encode("latin-1", "replace"))
        sys.stdout.buffer.writelines(content)
        sys.stdout.flush()
        for app in applications.values():
            app.queue.close()
    os._exit(0)                         # a regular exit would take a tenth of the whole time


# web/printing.py -------------------------------------------------------------
#
# Printing for people and pipes.

EXIT_PIPE_CLOSED = 141                  # as a shell reports SIGPIPE


def say(text, end="\n"):
    """Print to standard output at once, whatever its encoding. Exit if the reader has closed the pipe."""
    stream = sys.stdout
    encoding = stream.encoding or "utf-8"
    if stream.isatty():
        text = escape_controls(text)
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream,
              flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())      # for text that is still buffered
        raise SystemExit(EXIT_PIPE_CLOSED) from None


def show(options, value,
         text):
    """Print a result: `value` as JSON with --json, else `text`."""
    if options.json:
        text = "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
    if text:
        say(text)


def table(titles, rows):
    """Return columns of text, each as wide as its widest cell."""
    lines = [titles, *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


# web/serve.py ----------------------------------------------------------------
#
# The command `serve`.

def _tick_for_ever(queue):
    code = file_stamps(CODE_FILES)
    for number in itertools.count():
        if number % LOOK_FOR_SCHEDULES_SECONDS == 0:
            with print_errors("reading tasks.py"):
                queue.catalogue.refresh()       # tasks.py may have new schedules
        queue.tick.maybe("server")
        with print_errors("working here"):
            queue.starter.work_slice()
        if code != file_stamps(code):
            code = file_stamps(code)
            complain("jobqueue was replaced: restart this server, which runs the old one")
        queue.database.clock.sleep(TICK_SOON_SECONDS)


def _use_compiled_module(data):
    """Restart this process with compiled modules: compiling in it would keep 20 MB for good."""
    if (__name__ != "__main__" or not sys.executable or "jobqueue" in sys._xoptions
            or getattr(sys.flags, "safe_path", False)):
        return
    from importlib.machinery import SourceFileLoader
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")      # glibc would keep a heap per thread
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "1048576")  # glibc would keep the 16 MiB of the first
                                                                # log-in
    with contextlib.suppress(OSError, MemoryError, SyntaxError):    # if it fails, the next start compiles
        for path in CODE_FILES:                 # so that the server and workers find both files compiled
            SourceFileLoader(path.stem, str(path)).get_code(path.stem)
        os.chdir(HOME)
        os.execv(sys.executable, [
            sys.executable, "-X", "jobqueue", "-m", "jobqueue", *sys.argv[1:], "--data", str(data)])


def _say_where(queue, address):
    """Print where the page is, and how to open it for the first time."""
    place = ("[%s]:%d" if ":" in address[0] else "%s:%d") % address
    link = "http://%s%s/" % (place, queue.settings.get("base_path"))
    say("jobqueue %s is at %s" % (VERSION, link))
    if not queue.users.has_admin():
        say("Open this link to make the first admin; it works once, for an hour:\n\n"
            "    %s#setup=%s\n" % (link, queue.setup.code()))


def cmd_serve(queue, options):
    """Run the built-in web server until interrupted."""
    host, port = options.given["host"], options.given["port"]
    _use_compiled_module(queue.database.folder.absolute())
    queue.database.read_within("SELECT 1")     # opens the database while descriptors are free
    try:
        server = open_server(Application(queue, "server"), host, port,
                             background=lambda: _tick_for_ever(queue))
    except OSError as error:
        raise SetupError("Port %d on %s cannot be used: %s. Choose another with --port."
                         % (port, host, error.strerror)) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    _say_where(queue, server.address)
    server.run()
    say("stopped; workers go on until their tasks are done")


# web/clients.py --------------------------------------------------------------
#
# Clients of commands: this host's queue, or another site over HTTP.

OTHER_SITE_SECONDS = 60.0







class Shell(Person):
    """The user of the command line on this host: the site's own code, which may do everything."""

    name, role, is_admin = "the command line", "admin", True
    visible_owner_id = visible_account_id = token = expires_at = None
    scope_and_actor = visible_owner_id, name

    def __init__(self, users, owner):
        self._find = functools.partial(users.owner, owner)

    def sees_secrets_of(self, owner):
        """Return True: every user with a shell here can read the database."""
        return True

    @property
    def searches_as(self):
        """Return None: a search reads the secrets of all users."""

    @property
    def answerable(self):
        """Return None: no user's rights limit the request."""

    @property
    def id(self):  # type: ignore[override]   # looked up only if needed: there may be no admin
        """Return the id of the owner of added tasks: the named owner, else the default one."""
        return self._find()["id"]


class _Sent(NamedTuple):
    """The parts of a request."""

    query: "str"
    body: "bytes | FileSlice"
    kind: "str"               # the Content-Type of the body


def _as_sent(method, content):
    """Return the query, the body and its type for a request with this content, such as an open file."""
    if isinstance(content, bytes):
        return _Sent("", content, LINES_TYPE)
    if content is not None and not isinstance(content, dict):
        size = os.fstat(content.fileno()).st_size
        name = urlencode({"name": shown_name(Path(content.name).name)}, errors="replace")
        return _Sent(name, FileSlice(content, size), BYTES_TYPE)
    if method not in ("GET", "DELETE"):
        return _Sent("", json.dumps(content or {}).encode("ascii"), JSON_TYPE)
    query = {name: value for name, value in (content or {}).items() if value is not None}
    return _Sent(urlencode(query, errors="replace"), b"", JSON_TYPE)


class Client:
    """The API that commands use: that of this host's own queue, or of another site."""

    clock: "AnyClock" = Clock
    status = 0                          # the HTTP status of the last answer

    def ask(self, method, path, content=None):
        """Return the API's answer: an object, the pieces of a file, or None if empty. Errors are raised.

        A dictionary is the query of a GET or DELETE, else the JSON body. Other content is the body.
        """
        raise NotImplementedError


class LocalClient(Client):
    """The API of this host's own queue, without a server in between."""

    def __init__(self, queue):
        self._app = Application(queue, "code")
        self.clock = queue.database.clock

    def ask(self, method, path,
               content=None):
        """Return the answer, see Client.ask()."""
        owner = None
        if method == "POST" and isinstance(content, dict):
            content = dict(content)
            owner = content.pop("owner", None)
        query, body, kind = _as_sent(method, content)
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
            "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body) if isinstance(body, bytes) else content,
            "jobqueue.door": "shell"}
        request = Request(environ, self._app.queue.settings)
        request.asker = Shell(self._app.queue.users, owner)
        with self._app.queue.database.deadline():
            reply = self._app.route(request)
        answer, self.status = reply.body, reply.status
        return (json.loads(answer) if answer else None) if isinstance(answer, bytes) else answer


class HttpClient(Client):
    """The API of another site, over HTTP, with a token."""

    def __init__(self, address, token_file):
        if not re.match("https?://", address):
            raise field_error("--server", "must be an address such as https://example.org/jobs")
        if "@" in urlsplit(address).netloc:
            raise field_error("--server", "must have no name or password; this program sends the token")
        self._address = address.rstrip("/")
        self._narrow = 0                # 1: changes are sent as POST; 2: also their bodies in a form
        self._token = Path(token_file).read_text("utf-8-sig", "replace").strip() if token_file else ""
        if not re.fullmatch("[!-~]*", self._token):
            raise field_error("--token-file", "must hold an API token and nothing else")

    def ask(self, method, path,
               content=None):
        """Return the answer, see Client.ask()."""
        with self._errors_translated():
            answer = self._open(method, path, content)
            kind, self.status = answer.headers.get("Content-Type", JSON_TYPE), answer.status
            if kind.startswith("text/html"):    # the page of another program: the API never answers HTML
                answer.close()
                raise ValueError(kind)
            if "json" not in kind:
                return self._pieces(answer)
            with answer:
                text = answer.read()
            return json.loads(text) if text else None

    def _open(self, method, path, content):
        """Send a request. If a firewall before the site refuses a change, send it as POST, then in a form.

        A refusal without JSON comes from such a firewall, not from jobqueue. Nearly every host lets forms
        pass. Later requests are sent in the way that passed.
        """
        import urllib.error
        while True:
            try:
                return self._send(method, path, content)
            except urllib.error.HTTPError as error:
                is_foreign = error.code < 500 and "json" not in error.headers.get("Content-Type", "")
                if method == "GET" or not is_foreign or self._narrow == 2:
                    raise
                self._narrow = 1 if method != "POST" and not self._narrow else 2
                if content is not None and not isinstance(content, (dict, bytes)):
                    content.seek(0)

    def _send(self, method, path, content):
        import urllib.request
        query, body, kind = _as_sent(method, content)
        if self._narrow and method not in ("GET", "POST"):
            query, method = "&".join(filter(None, (query, "as=" + method))), "POST"
        sent = body or None
        size = len(body)
        if self._narrow == 2 and body:
            kind, head, tail = envelope(kind)
            sent = itertools.chain([head], [body] if isinstance(body, bytes) else body, [tail])
            size += len(head) + len(tail)
        request = urllib.request.Request("%s%s?%s" % (self._address, path, query), sent, {
            "Content-Type": kind, "Content-Length": str(size)}, method=method)
        request.add_unredirected_header("X-Api-Key", self._token)
        return urllib.request.urlopen(request, timeout=OTHER_SITE_SECONDS)

    def _pieces(self, answer):
        with answer, self._errors_translated():
            yield from iter(functools.partial(answer.read, PIECE_BYTES), b"")

    @contextlib.contextmanager
    def _errors_translated(self):
        """Raise errors of HTTP and of the connection as errors for people."""
        import http.client
        import urllib.error
        try:
            yield
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, http.client.IncompleteRead) as error:
            raise SetupError("%s cannot be reached: %s." % (
                self._address, getattr(error, "reason", error))) from None
        except (ValueError, http.client.HTTPException):
            raise SetupError("%s is not the address of a jobqueue." % self._address) from None

    @staticmethod
    def _refusal(error):
        """Return the error that a site answered with, as it was raised there."""
        kinds = {kind.code: kind for kind in JobQueueError.__subclasses__()}
        try:
            with error:
                problem_json = json.loads(error.read())
            return kinds.get(problem_json["code"], JobQueueError)(
                problem_json["detail"], problem_json["errors"], count=problem_json.get("count"))
        except Exception:               # not an answer of jobqueue, or an incomplete one
            who = "Something in front of that site refused" if error.code < 500 else "The server answered"
            return SetupError("%s: %d %s." % (who, error.code, error.reason))


# web/command_rows.py ---------------------------------------------------------
#
# Rows of COMMANDS that ask one route, and answers in words.







class Command(NamedTuple):
    """A row of COMMANDS: its function, whose docstring is its help, and its arguments."""

    run: "Run"
    arguments: "Sequence[Argument]"


def argument(flag, schema, null=None,
             parse=parse_text, **details):
    """Return the row of an argument. The text in `null` stands for None. `details` are for argparse."""
    def read(text):
        import argparse
        value = None if text == null else parse(schema, text)
        errors = check_value(schema, value, "")
        if value is None and text != null:
            errors = wrong("", "must not be empty")
        if errors:
            raise argparse.ArgumentTypeError(("%(field)s %(message)s" % errors[0]).strip())
        return value

    row = {"help": schema.get("description", "").replace("%", "%%")}
    if schema.get("type") == "boolean":
        return flag, {**row, "action": "store_const", "const": True}
    if "enum" in schema:
        row["metavar"] = "|".join(filter(None, schema["enum"]))
    return flag, {**row, "type": read, **details}


POSITIVE = integer_within(1, INTEGER_MAX)
SWITCH = {"type": "boolean"}
PLACES = {         # arguments that are parts of a path
    "id": argument("id", POSITIVE, metavar="ID"), "name": ("name", {"metavar": "NAME"})}


def arguments(schemas, *names):
    """Return the rows of the options that have these names in `schemas`."""
    return [argument("--" + name.replace("_", "-"), schemas[name]) for name in names]


IN_ADDRESS = {"safe": "", "errors": "replace"}


def ask_all(client, key, fields):
    """Return a list of the API with the rows of all its pages, or the first `limit` rows."""
    page, limit = client.ask("GET", "/api/" + key, fields), fields.get("limit")
    rows = page[key]
    while page.get("next") and len(rows) != limit:
        page = client.ask("GET", "/api/" + key, {
            **fields, "cursor": page["next"], "limit": limit and limit - len(rows)})
        rows += page[key]
    if page.get("error"):
        complain("tasks.py cannot be read: " + page["error"]["message"])
    return {**page, key: rows}


def _over_route(method, path, run, words,
                rows):
    """Return the row of a command that asks a route.

    Without `words`, the docstring of the route's handler is the help. An argument that is only a
    name takes its schema from the route.
    """
    pattern = path.replace("{id}", ID).replace("{name}", NAME)
    route = next(route for route in ROUTES if (route.method, route.path) == (method, pattern))
    run.__doc__ = words or route.handler.__doc__
    schemas = route.takes["properties"] if route.takes else {}
    return Command(run, [argument(row, schemas[row.strip("-").replace("-", "_")])
                         if isinstance(row, str) else row for row in rows])


def asks(method, path, *rows, words=None,
         text=lambda value: None, **fixed):
    """Return a command that asks the API once and prints the answer as `text` makes it.

    It sends the values of the arguments in `rows`, and the `fixed` values, which may be callables.
    """
    places = [row for name, row in PLACES.items() if "{%s}" % name in path]

    def run(client, options):
        fields = {name: value() if callable(value) else value for name, value in fixed.items()}
        fields.update(options.given)
        address = path.format(**{name: quote(str(fields.pop(name)), **IN_ADDRESS)
                                 for name, _ in places})
        value = client.ask(method, address, fields)
        show(options, value, None if value is None else text(value))
    return _over_route(method, path, run, words, [*places, *rows])


def kind_text(schema):
    """Return the type of a value as --help shows it."""
    if "enum" in schema:
        return "|".join(choice_names(schema))
    if "unclear" in schema:
        return "text (%(unclear)s is not known)" % schema
    kinds = schema.get("format") or schema.get("type", "text")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def parameters_text(schema):
    """Return a function's parameters in the syntax of `add`, in brackets if not required."""
    required = schema.get("required", ())
    parts = [("%s=%s" if name in required else "[%s=%s]") % (name, kind_text(parameter))
             for name, parameter in schema["properties"].items()]
    return " ".join(parts + ["[name=value ...]"] * bool(schema.get("additionalProperties")))


def status_text(task):
    """Return a task's status, with the reason if it has one."""
    return "%s (%s)" % (task["status"], task["reason"]) if task["reason"] else task["status"]


def _lines(value):
    return "\n".join("%-15s %s" % (name, part if isinstance(part, str) else dump_json(part))
                     for name, part in value.items() if part not in (None, [], False))


def _range_text(moments):
    """Return a range of moments for people, such as "in 10 to 15 minutes"."""
    ahead = [max(0, parse_time(text, "") - Clock.now()) for text in moments]
    unit, size = next(row for row in UNITS if ahead[1] >= 2 * row[1] or row[1] == 1)
    low, high = (round(seconds / size) for seconds in ahead)
    if high == 0:
        return "right away"
    unit += "s" * (high > 1)
    return ("within %d %s" % (high, unit) if low == 0 else "in about %d %s" % (high, unit)
            if low == high else "in %d to %d %s" % (low, high, unit))


def _forecast_text(forecast):
    if forecast is None:
        return None
    before = forecast["before"] if forecast["before"] != COUNT_MAX else "more than %d" % (COUNT_MAX - 1)
    parts = [None if before is None else "%s before it" % before, *(
        forecast[key] and word + _range_text(forecast[key])
        for key, word in (("expected_start", "starts "), ("expected_end", "ends ")))]
    return ", ".join(filter(None, [*parts, forecast["reason"], forecast["slow"] and "slower than usual"]))


def task_text(task):
    """Return a task as a command prints it."""
    error = task["error"] or {}
    words = error.get("traceback") or error.get("message") or ""
    return _lines({**task, "error": words.rstrip() or None,
                   "forecast": _forecast_text(task.get("forecast"))})


def _standing(row):
    """Return the reason why a queue or a schedule is idle, or its problem."""
    if not row["paused"]:
        return row.get("blocked") or row.get("problem") or row.get("warning")
    why = ": " + row["paused_why"] if row["paused_why"] else ""
    return "paused by %s%s" % (row["paused_by"], why)


def schedule_text(shown):
    """Return a schedule with its coming and past runs, as a command prints it."""
    coming = ["%s  due%s" % (run["local"], run["note"] and ", " + run["note"] or "")
              for run in reversed(shown["upcoming"]) if not shown["paused"]]
    history = ["%s  %s" % (slot["at"], slot["message"] or "task %(id)d %(status)s" % slot["task"])
               for slot in shown["history"] if slot["message"] or slot["task"]]
    return "\n".join([_lines({**shown, "upcoming": [], "history": []}), *coming, *history])


def _count_text(name):
    return lambda row: row[name] if row[name] < COUNT_MAX else "%d+" % (COUNT_MAX - 1)


# Columns of lists whose cells are not simply the row's value of that name.
CELLS = {
    "parameters": lambda row: parameters_text(row["schema"]), "status": status_text,
    "summary": lambda row: shorten(row["summary"], 60), "problem": _standing,
    "disabled": lambda row: "yes" if row["disabled"] else "",
    "pending": _count_text("pending"), "running": _count_text("running"),
    "rate": lambda row: row["rate"] and "%(count)d/%(seconds)s" % row["rate"],
    "machines": lambda row: ",".join(row["machines"] or [])}


def columns(names, rows):
    """Return a table with these columns of rows of the API."""
    column_names = names.split()
    return table([name.upper() for name in column_names], [
        [CELLS[name](row) if name in CELLS else row[name] for name in column_names] for row in rows])


def lists(key, names, *rows, words=None):
    """Return a command that prints a list of the API as a table of the columns `names`."""
    def run(client, options):
        if "format" in options.given:
            pieces = client.ask("GET", "/api/" + key, options.given)
            for text in codecs.iterdecode(pieces, "utf-8-sig"):
                say(text.replace("\r", ""), end="")
            return
        answer = ask_all(client, key, options.given)
        show(options, answer, columns(names, answer[key]))
    return _over_route("GET", "/api/" + key, run, words, rows)


def parse_rate(_, text):
    """Read a rate: COUNT/SECONDS."""
    count, pause = text.partition("/")[::2]
    return {"count": parse_text(POSITIVE, count), "seconds": parse_text({"type": "number"}, pause)}


# web/commands_tasks.py -------------------------------------------------------
#
# Commands about functions and tasks.

EXIT_AWAITED_FAILED, EXIT_TIMED_OUT = 3, 124


def known_function(client, name):
    """Return the API's entry of one function, or an empty one if it is not known."""
    functions = ask_all(client, "functions", {})["functions"]
    return next((each for each in functions if each["name"] == name), {"schema": {"properties": {}}})


def cmd_help_of(client, options):
    """Print how one function is added: its parameters, and the defaults of its options."""
    function = known_function(client, options.given["function"])
    if "name" not in function:
        raise field_error("function", "%(function)s is not known; see the command functions"
                          % options.given)
    schema, required = function["schema"], function["schema"].get("required", ())
    rows = [(name, kind_text(parameter), dump_json(parameter.get("default")) if name not in required else
             "required", parameter.get("description")) for name, parameter in schema["properties"].items()]
    rows += [("--" + name.replace("_", "-"), kind_text(OPTION_SCHEMAS[name]), dump_json(usual),
              OPTION_SCHEMAS[name]["description"]) for name, usual in function["options"].items()]
    say("usage: jobqueue.py add %s %s\n\n%s\n" % (
        function["name"], parameters_text(schema), function["description"] or function["title"]))
    say(table(("", "TYPE", "DEFAULT", ""), rows))
    say("\nAll options: python3 jobqueue.py add --help")


def typed_arguments(function, texts):
    """Return the values of name=value texts, read by the function's schema."""
    values = {}
    properties, more = function["schema"]["properties"], function["schema"].get("additionalProperties")
    more = more if isinstance(more, dict) else {}         # the schema of **more
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise field_error(text, "must be written as name=value")
        if name in values:
            raise field_error("arguments." + name, "is given twice")
        values[name] = parse_text(properties.get(name, more), storable(value))
    return values


def _hand_in(client, function, values):
    """Upload the files at @paths; return the arguments with the ids of these files instead."""
    def send(value):
        if isinstance(value, list):
            return list(map(send, value))
        if not str(value).startswith("@"):
            return value
        with open_given(value[1:]) as file:
            return client.ask("POST", "/api/files", file)["id"]
    return {**values, **{name: send(values[name]) for name in file_parameters(function["schema"])
                        if name in values}}


class FirstRow(NamedTuple):
    """The text of a CSV file's first row, and its separator."""

    text: "str"
    separator: "str"


def _first_row(file):
    """Read the first row, which may have several lines, and find its separator."""
    first = file.readline()
    hint = re.fullmatch('"?sep=(.)"?\\s*', first)   # Excel writes this line for itself
    if hint:
        first = file.readline()
    while first.count('"') % 2 and len(first) < BODY_MAX_BYTES:
        more = file.readline()
        if not more:
            break
        first += more
    plain = re.sub('"(?:[^"]|"")*"', "", first)
    return FirstRow(first, hint[1] if hint else max(",;\t", key=plain.count))


def read_csv(path):
    """Yield the cells of each row of a CSV file (- is standard input). The first row tells the separator."""
    import csv
    csv.field_size_limit(BODY_MAX_BYTES)
    row = line = 0
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="",
                  closefd=path != "-") as file:
            first, separator = _first_row(file)
            rows = csv.reader(itertools.chain(first.splitlines(keepends=True), file), strict=True,
                              delimiter=separator)
            for cells in rows:
                row, line = row + 1, rows.line_num
                yield cells
    except csv.Error as error:
        raise Malformed("%s cannot be read as CSV: row %d, which begins in line %d (%s). Is a "
                        "quote not closed?" % (path, row + 1, line + 1, error)) from None
    except UnicodeError:
        raise Malformed("%s is not in UTF-8: save it as CSV UTF-8." % path) from None
    except OSError as error:
        raise Malformed("%s cannot be read: %s." % (path, error.strerror)) from None


class TypedRow(NamedTuple):
    """The arguments in a row of a CSV file, and the number of the row. Row 1 has the names."""

    number: "int"
    arguments: "JsonObject"


def _typed_rows(function, words, path):
    """Yield the rows of a CSV file below the first, which names the parameters. Skip blank rows.

    `words` apply to all rows. An empty cell means the default; for a required parameter, null if allowed.
    """
    rows, schema = read_csv(path), function["schema"]
    names = [name.strip() for name in next(rows, [])]
    nullable = [name for name in schema.get("required", ())
                if "null" in schema["properties"][name].get("type", ())]
    for number, cells in enumerate(rows, 2):
        if not any(cells):              # spreadsheets leave blank rows; the numbers count them
            continue
        if len(cells) != len(names):
            raise Malformed("Row %d must have as many cells as row 1, %d; it has %d."
                            % (number, len(names), len(cells)))
        texts = ["%s=%s" % cell for cell in zip(names, cells) if cell[1] or cell[0] in nullable]
        yield TypedRow(number, typed_arguments(function, [*words, *texts]))


def cmd_add(client, options):
    """Add a task and print its id, or one for each row of a CSV file and print how many."""
    request = dict(options.given)
    words, path = request.pop("words"), request.pop("each", None)
    function = known_function(client, request["function"])
    if path is None:
        request["arguments"] = _hand_in(client, function, typed_arguments(function, words))
        added = client.ask("POST", "/api/tasks", request)
        if client.status == 200:
            complain("task %(id)d has this unique_key already; nothing was added" % added)
        show(options, added, str(added["id"] if "id" in added else added["ids"][0]))
        return
    if "unique_key" in request:
        raise field_error("unique_key", "cannot be the same for all rows")
    numbers, lines = [], []
    for number, values in _typed_rows(function, words, path):
        numbers.append(number)
        lines.append(json.dumps({**request, "arguments": _hand_in(client, function, values)}).encode("ascii"))
    if not lines:
        raise Malformed("There is no row below the first one, which names the parameters.")
    try:
        added = client.ask("POST", "/api/tasks", b"\n".join(lines))
    except Invalid as error:            # its errors have indexes of tasks, not of rows
        raise tasks_refused([{**fault, "row": numbers[fault["index"]]} if fault.get("index") is not None
                             else fault for fault in error.errors], alone=False) from None
    show(options, added, "%d task%s" % (added["created"], "s" * (added["created"] != 1)))


def _ended_or_not(client, task_id):
    """Return a task, or a minimal object if it succeeded and was removed."""
    try:
        return client.ask("GET", "/api/tasks/%d" % task_id)
    except NotFound:
        [last] = client.ask("GET", "/api/activity", {"task": task_id, "limit": 1})["activity"] or [{}]
        if last.get("event") != "succeeded":
            raise
        return {"id": task_id, "status": "succeeded", "reason": None, "finished_at": last["at"]}


def cmd_wait(client, options):
    """Wait until a task has finished; exit code 3 if it did not succeed, 124 after --timeout."""
    deadline, pause = client.clock.monotonic() + options.given["timeout"], 0.02
    task = _ended_or_not(client, options.given["id"])
    while not task["finished_at"]:
        if client.clock.monotonic() > deadline:
            complain("task %(id)d is still %(status)s" % task)
            return EXIT_TIMED_OUT
        with contextlib.suppress(Denied):       # a token that only reads may wait, too
            client.ask("POST", "/tick")
        client.clock.sleep(pause)
        pause = min(1.0, pause * 1.3)
        task = _ended_or_not(client, options.given["id"])
    show(options, task, status_text(task))
    return 0 if task["status"] == "succeeded" else EXIT_AWAITED_FAILED


def cmd_log(client, options):
    """Print the output of a task's last attempt, or of --attempt."""
    fields = dict(options.given)
    path = "/api/tasks/%d/log" % fields.pop("id")
    part = whole = client.ask("GET", path, fields)
    while part["text"]:
        part = client.ask("GET", path, {"attempt": whole["attempt"], "offset": part["next"]})
        whole = {**whole, "text": whole["text"] + part["text"], "next": part["next"]}
    show(options, whole, whole["text"].rstrip("\n"))


def _save_file(client, address, path, size):
    """Save a file of the site under a new name, whole or not at all."""
    with open(path, "xb") as file:
        try:
            file.writelines(client.ask("GET", address))
            if file.tell() != size:
                raise SetupError("%s is incomplete." % path.name)
        except BaseException:           # an incomplete file would block the next try
            path.unlink()
            raise


def cmd_files(client, options):
    """Print a task's files. With --save, save those that it left into this folder, which is created."""
    path, folder = "/api/tasks/%(id)d/files" % options.given, options.given.get("save")
    answer = client.ask("GET", path)
    for entry in answer["files"] if folder else ():
        if entry["id"] is None:
            Path(folder).mkdir(exist_ok=True)
            _save_file(client, path + "/" + quote(entry["name"], **IN_ADDRESS),
                       Path(folder) / disk_name(file_name(entry["name"])), entry["size"])
    show(options, answer, columns("name size type id", answer["files"]))


ACTION_ROUTES = {"cancel": ("POST", "/api/tasks/%d/cancel"),
                 "retry": ("POST", "/api/tasks/%d/retry"), "delete": ("DELETE", "/api/tasks/%d")}


def _act_on_each(client, action, ids):
    """Do an action to one task after another; return the exit code of the last failure."""
    code, (method, path) = 0, ACTION_ROUTES[action]
    for task_id in ids:
        try:
            client.ask(method, path % task_id)
        except (NotFound, Conflict) as error:
            complain(error.detail)
            code = error.exit_code
    return code


def cmd_act(client, options):
    """Cancel, delete or retry (if failed or cancelled) the given tasks, or all that match."""
    conditions, action = dict(options.given), options.command
    ids, sure = conditions.pop("ids"), conditions.pop("yes", False)
    if bool(ids) == bool(conditions):
        raise field_error("ID", "or a filter such as --status failed must be given (--all for all "
                                "tasks), and not both")
    if ids:
        return _act_on_each(client, action, ids)
    conditions.pop("all", None)
    done = 0
    place = {"expected_count": None}
    while place:
        try:
            answer = client.ask("POST", "/api/tasks/actions", {
                "action": action, "filter": conditions, **place})
        except Conflict as error:       # the error has the count
            count = error.extra["count"]
            if not sure:
                raise Conflict("%d tasks match that %s can change; nothing was changed. "
                               "Add --yes to change them." % (count, action)) from None
            place = {"expected_count": count}
        else:
            done += answer["done"]
            place = answer["continue"] and {"continue": answer["continue"]}
    show(options, {**answer, "done": done}, "%d of %d tasks" % (done, count))
    return 0


# web/commands_site.py --------------------------------------------------------
#
# Commands about settings, people, schedules, the host, its data.

PERIODS = {"h": HOUR, "d": DAY, "w": 7 * DAY}


def cmd_settings(client, options):
    """Print all settings, print one, or change one."""
    name, value = options.given.get("name"), options.given.get("value")
    if name not in (None, *SETTINGS):
        raise field_error(name, "is not a setting; known are %s" % ", ".join(SETTINGS))
    answer = client.ask("GET", "/api/settings") if value is None else client.ask(
        "PATCH", "/api/settings", {name: parse_text(SETTINGS[name].schema, value)})
    if name is None:
        show(options, answer, columns("name value unit from label help", answer["settings"]))
    else:
        row = next(row for row in answer["settings"] if row["name"] == name)
        show(options, row, str(row["value"]))


def read_password():
    """Return a password from the terminal, asked twice, or the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    import getpass
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise field_error("password", "was typed differently the second time")
    return password


def cmd_add_token(client, options):
    """Make an API token, which is printed once or written to a file."""
    fields = dict(options.given)
    path = fields.pop("file", None)
    token = client.ask("POST", "/api/tokens", fields)
    if path is None:
        show(options, token, token["token"])
        return
    try:
        write_private(Path(path), token["token"] + "\n")
    except OSError:
        client.ask("DELETE", "/api/tokens/%d" % token["id"])
        raise


def cmd_invite(client, options):
    """Print a link with which a new user chooses a name and a password. It works once, for a day."""
    answer = client.ask("POST", "/api/invitations", options.given)
    place, page = "#invite=" + answer["code"], options.server and options.server.rstrip("/") + "/"
    show(options, answer, answer["link"] or (
        page + place if page else "Put this behind the address of your page:\n\n    " + place))


def cmd_preview(_, options):
    """Print when a rule is due."""
    fields = dict(options.given)
    fields["rule"] = " ".join(fields.pop("words"))
    moments = preview_rule(checked(PREVIEW, fields), Clock.now())
    show(options, moments, "\n".join(moment["local"] for moment in moments["times"]))


def cmd_add_schedule(client, options):
    """Add a schedule and print its id."""
    fields = dict(options.given)
    name, *words = fields.pop("words") or [""]
    typed = [word for word in words if "=" in word]
    added = client.ask("POST", "/api/schedules", {
        "function": name, "rule": " ".join(word for word in words if word not in typed),
        "arguments": typed_arguments(known_function(client, name), typed),
        "options": {option: fields.pop(option) for option in OPTION_SCHEMAS if option in fields},
        **fields})
    show(options, added, str(added["id"]))


# The figures in the table ALL by their names, each with its path in the totals of GET /api/metrics.
TOTAL_FIGURES = {
    "minimum executing time": "executed.min", "maximum executing time": "executed.max",
    "mean executing time": "executed.mean", "mean throughput": "mean_throughput",
    "maximum throughput": "maximum_throughput", "utilization": "utilization",
    "added": "added", "started": "started", "failed": "failed", "finished": "succeeded",
    "error": "retried", "minimum service time": "service.min", "mean service time": "service.mean",
    "maximum service time": "service.max"}


def _figure(answer, path):
    """Return a number of an answer as text, by its path; a dash if nothing was measured."""
    value = answer
    for name in path.split("."):
        value = value[name]
    return "-" if value is None else "%.4g" % value if isinstance(value, float) else str(value)


def _figures_table(titles, rows, paths):
    """Return a table of some figures of each row, with a bar for the number of ended tasks."""
    most = max([row["succeeded"] + row["failed"] for row in rows] or [0]) or 1
    return table((*titles, *"ADDED SUCCEEDED FAILED RETRIED WAITED RAN 95TH".split(), ""), [
        [*(row[path] for path in paths), *(_figure(row, path) for path in (
            "added", "succeeded", "failed", "retried", "waited.p50", "ran.p50", "ran.p95")),
         "#" * math.ceil(30 * (row["succeeded"] + row["failed"]) / most)] for row in rows])


def cmd_stats(client, options):
    """Print how much was done and how long it took: by time, by function, and in total."""
    fields, now = dict(options.given), client.clock.now()
    since = fields.pop("since", "1d")
    match = re.fullmatch("([0-9]{1,4})([hdw])", since)
    start = now - int(match[1]) * PERIODS[match[2]] if match else parse_time(since, "--since")
    fitting = [step for step, seconds in STEPS.items() if now - start <= 60 * seconds]
    metrics = client.ask("GET", "/api/metrics", {
        "from": iso(start), "step": [*fitting, "week"][0], **fields})
    show(options, metrics, "\n\n".join([
        _figures_table(["FROM"], metrics["points"], ["at"]),
        _figures_table(["FUNCTION"], metrics["functions"], ["name"]),
        table(("ALL", ""), [(name, _figure(metrics["totals"], path))
                            for name, path in TOTAL_FIGURES.items()])]))


def cmd_set_queue(client, options):
    """Set limits of a queue, and make it if it is new."""
    limits = dict(options.given)
    name = limits.pop("name")
    try:
        changed = client.ask("PATCH", "/api/queues/" + quote(name, **IN_ADDRESS), limits)
    except NotFound:
        changed = client.ask("POST", "/api/queues", {"name": name, **limits})
    show(options, changed, None)


def _channel_text(channel):
    state = channel["error"] or (channel["sent_at"] and "sent at %s" % channel["sent_at"]) or "not sent yet"
    return "%s %s: %s" % (channel["channel"], channel["recipient"], state)


def cmd_test_alerts(client, options):
    """Send a test message to every recipient of alerts, and print how that went."""
    sent = {(delivery["channel"], delivery["recipient"]): delivery["id"] for delivery in
            client.ask("POST", "/api/alerts/test", {})["deliveries"]}
    until = time.monotonic() + SENDING_SECONDS
    channels = []
    while time.monotonic() < until:
        states = client.ask("GET", "/api/alerts")["channels"]
        channels = [state for state in states if state["last"] == sent.get(
            (state["channel"], state["recipient"]))]
        if len(channels) == len(sent) and CUT_OFF not in [channel["error"] for channel in channels]:
            break
        time.sleep(0.2)
    show(options, channels, "\n".join(map(_channel_text, channels)) or "Nothing was sent in time.")
    return 1 if len(channels) < len(sent) or any(channel["error"] for channel in channels) else 0


def cmd_tick(queue, _):
    """Do the maintenance once: reap dead workers, promote due tasks, run schedules, start workers."""
    queue.catalogue.refresh()
    queue.tick.run("cron")


def cmd_backup(queue, options):
    """Copy the database to a file, while everything goes on."""
    path = options.given["file"]
    back_up(queue, path)
    size = os.path.getsize(path)
    show(options, {"file": path, "bytes": size}, "%s: %.1f MB, checked" % (path, size / 1e6))


def cmd_restore(_, options):
    """Replace the database by a backup. The old database stays under another name."""
    old_path = restore(data_folder(options.data), options.given["file"], "force" in options.given)
    show(options, {"kept": str(old_path)}, "The backup is restored. The old database is now %s" % old_path)


def cmd_export(queue, options):
    """Write the whole database as lines of JSON, which import reads."""
    path = options.given["file"]
    if path == "-":
        for line in export_lines(queue):
            say(line)
        return
    export_to(queue, path)
    size = os.path.getsize(path)
    show(options, {"file": path, "bytes": size}, "%s: %.1f MB" % (path, size / 1e6))


def cmd_import(queue, options):
    """Read an export into a database without users and tasks, and pause its queues."""
    import shutil
    import tempfile
    path = options.given["file"]
    if path == "-":                     # copy it first, so that no server waits for standard input
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as lines:
            shutil.copyfileobj(sys.stdin, lines)
            lines.seek(0)
            counts = import_lines(queue, lines)
    else:
        with open(path, "rb") as file:
            counts = import_lines(queue, file)
    show(options, counts, "%(user)d users, %(task)d tasks and %(schedule)d schedules; all queues "
                          "are paused: see python3 jobqueue.py queue resume" % counts)


def cmd_check(_, options):
    """Print the state of this host and this queue; exit code 1 if something is bad."""
    if "repair" in options.given:
        say("journal mode: " + repair_journal(data_folder(options.data),
                                              options.given["repair"] == "shared"))
    report, queue = check_installation(options.data)
    shown = {"checks": [check._asdict() for check in report.checks], "advice": None,
                         "files": None}
    lines = ["%(verdict)-5s %(name)-11s %(text)s" % check for check in shown["checks"]]
    if queue:
        shown["advice"] = next_step(report)
        lines += ["", shown["advice"], "For lines of cron and of web servers, with your paths: "
                  "python3 jobqueue.py check --files"]
    if queue and "files" in options.given:
        shown["files"] = host_files(queue)
        lines = ["# %(title)s: %(name)s\n\n%(text)s" % file for file in shown["files"]]
    show(options, shown, "\n".join(lines))
    return 1 if any(check.verdict == BAD for check in report.checks) else 0




# web/command_line.py ---------------------------------------------------------
#
# COMMANDS and python3 jobqueue.py COMMAND.
#
# A command is a row of COMMANDS: its function and its arguments. Nearly all commands ask the API of this
# host's queue or of another site. They print its answer as JSON with --json, else as text. So they have the
# checks and errors of the handlers, and options and help from the same schemas. The function gets a Client, the
# JobQueue or None, and the options. `options.given` has the command's own arguments. The function returns the
# exit code, if that is not 0.

TASK, SCHEDULE = "/api/tasks/{id}", "/api/schedules/{id}"
QUEUE, ACCOUNT = "/api/queues/{name}", "/api/users/{name}"
OWNER = ("--owner", {"metavar": "USER"})
WHY = argument("--why", SCHEDULE_FIELDS["paused_why"], dest="paused_why", metavar="TEXT")
LIMIT = argument("--limit", integer_within(1, 1000), default=PAGE_ROWS, metavar="N")
ZONE = argument("--tz", SCHEDULE_FIELDS["zone"], dest="zone", metavar="ZONE")
FILTERS = arguments(WHICH_TASKS, "status", "function", "queue", "owner", "since", "until") + [
    argument("--search", WHICH_TASKS["q"], dest="q", metavar="TEXT")]
# COMMON are options of all commands, ABOUT_SITES those of commands that ask the API.
COMMON = [
    ("--data", {"metavar": "DIR", "help": "data folder (default: data beside jobqueue.py)"}),
    ("--json", {"action": "store_true", "help": "print JSON: what the API answers"})]
ABOUT_SITES = [
    ("--server", {"metavar": "URL", "help": "ask another site, such as https://example.org/jobs"}),
    ("--token-file", {"metavar": "FILE", "help": "with --server: a file that holds an API token of it"})]

# Commands of one or two words, each with its row. The functions of commands in LOCAL get this host's queue,
# or None if they are also in WITHOUT_QUEUE. The other functions get a Client.
COMMANDS = {
    "serve": Command(cmd_serve, [
        ("--host", {"default": "127.0.0.1", "help": "address to listen on (127.0.0.1)"}),
        argument("--port", integer_within(0, 65535), default=8000, help="port to listen on (8000)")]),
    "add": Command(cmd_add, [
        ("function", {"metavar": "FUNCTION", "help": "see the command functions"}),
        ("words", {"metavar": "name=value", "nargs": "*", "default": ()}),
        *arguments(REQUEST_SCHEMA["properties"], *list(REQUEST_SCHEMA["properties"])[2:]),
        ("--each", {"metavar": "FILE.csv", "help": "a task for each row; the first row names the "
                                                   "parameters; - is standard input"})]),
    "functions": lists("functions", "name parameters title"),
    "list": lists("tasks", "id status owner function summary", *FILTERS, "--sort", LIMIT,
                  ("--csv", {"dest": "format", "action": "store_const", "const": "csv",
                             "help": "all matching tasks as CSV, without a limit"}),
                  words="List tasks, newest first."),
    "show": asks("GET", TASK, text=task_text),
    "wait": Command(cmd_wait, [PLACES["id"], argument(
        "--timeout", {"type": "number", "minimum": 0}, default=math.inf, metavar="SECONDS")]),
    "log": Command(cmd_log, [PLACES["id"], argument("--attempt", POSITIVE, metavar="N")]),
    "files": Command(cmd_files, [PLACES["id"], ("--save", {"metavar": "DIR", "help": "where to"})]),
    **dict.fromkeys(ACTION_ROUTES, Command(cmd_act, [
        argument("ids", POSITIVE, nargs="*", default=(), metavar="ID"), *FILTERS,
        argument("--all", about(SWITCH, "all tasks")),
        argument("--yes", about(SWITCH, "change them, instead of printing how many match"))])),
    "settings": Command(cmd_settings, [("name", {"nargs": "?", "default": None}),
                                       ("value", {"nargs": "?", "default": None})]),
    "user list": lists("users", "name role disabled max_pending max_running last_seen_at"),
    "user add": asks("POST", "/api/users", PLACES["name"], "--role",
                     ("--admin", {"dest": "role", "action": "store_const", "const": "admin"}),
                     words="Make a user; the password is asked for, or read from standard input.",
                     password=read_password),
    "user invite": Command(cmd_invite, arguments(NEW_INVITATION["properties"], "role")),
    "user set": asks("PATCH", ACCOUNT, "--role", argument(
        "--max-running", CHANGED_USER["properties"]["max_running"], null="none", metavar="N|none"),
                     argument("--email", CHANGED_USER["properties"]["email"], null="none",
                              metavar="ADDRESS|none"),
                     words="Change a user's rights and mail address."),
    "user logout": asks("DELETE", ACCOUNT + "/sessions"),
    "user disable": asks("PATCH", ACCOUNT, disabled=True, words="Lock out a user and all their tokens."),
    "user enable": asks("PATCH", ACCOUNT, disabled=False, words="Let a user in again."),
    "user delete": asks("DELETE", ACCOUNT),
    "user password": asks(
        "PATCH", ACCOUNT, password=read_password,
        words="Change a password, which is asked for, or read from standard input."),
    "user quota": asks("PATCH", ACCOUNT, argument(
        "max_pending", CHANGED_USER["properties"]["max_pending"], null="none", metavar="N|none"),
                       words="Set how many tasks of a user may be pending."),
    "token list": lists("tokens", "id owner name scope last_used_at", OWNER),
    "token add": Command(cmd_add_token, [
        PLACES["name"], OWNER,
        argument("--scope", NEW_TOKEN["properties"]["scope"],
                 help="its scope: all rights of USER, only to read, only to call /tick, only to work, or "
                      "only to read /metrics"),
        *arguments(NEW_TOKEN["properties"], "queues", "functions"),
        ("--file", {"metavar": "FILE", "help": "write it to this file, which only you can read"})]),
    "token delete": asks("DELETE", "/api/tokens/{id}"),
    "schedule list": lists("schedules", "id name owner function summary words next_at problem"),
    "schedule add": Command(cmd_add_schedule, [
        ("words", {"nargs": "*", "default": (), "metavar": "FUNCTION RULE name=value ...",
                   "help": "a rule is " + RULE_HINT.replace("%", "%%")}),
        ZONE, *arguments(SCHEDULE_FIELDS, "name", "catch_up", "overlap"), OWNER,
        *arguments(OPTION_SCHEMAS, *OPTION_SCHEMAS)]),
    "schedule show": asks("GET", SCHEDULE, text=schedule_text),
    "schedule preview": Command(cmd_preview, [
        ("words", {"nargs": "*", "default": (), "metavar": "RULE"}), ZONE,
        *arguments(PREVIEW["properties"], "from", "count")]),
    "schedule pause": asks("PATCH", SCHEDULE, WHY, paused=True,
                           words="Let a schedule add nothing until it is resumed."),
    "schedule resume": asks("PATCH", SCHEDULE, paused=False, words="Let a schedule go on."),
    "schedule run": asks("POST", SCHEDULE + "/run", text=lambda task: str(task["id"])),
    "schedule delete": asks("DELETE", SCHEDULE),
    "queue list": lists("queues", "name pending running max_running rate machines problem"),
    "queue set": Command(cmd_set_queue, [
        PLACES["name"],
        argument("--max-running", QUEUE_LIMITS["max_running"], null="none", metavar="N|none"),
        argument("--rate", QUEUE_LIMITS["rate"], null="none", parse=parse_rate,
                 metavar="N/SECONDS|none"),
        argument("--machines", QUEUE_LIMITS["machines"], null="any", metavar="NAME[,NAME]|any")]),
    "queue pause": asks("PATCH", QUEUE, WHY, paused=True,
                        words="Start none of a queue's tasks until it is resumed."),
    "queue resume": asks("PATCH", QUEUE, paused=False, words="Let a queue go on."),
    "queue delete": asks("DELETE", QUEUE),
    "activity": lists("activity", "at event task function owner actor message", "--since",
                      "--until", "--event", "--task", "--worker", "--function", "--owner", LIMIT),
    "alert list": lists("alerts", "id opened_at ended_at told title text"),
    "alert mute": asks("POST", "/api/alerts/{id}/mute", "how"),
    "alert test": Command(cmd_test_alerts, []),
    "workers": lists("workers", "id machine pid state mode tasks task function"),
    "stats": Command(cmd_stats, [
        argument("--since", about(TEXT, "such as 12h, 7d or 4w ago, or a time"), metavar="TIME"),
        *arguments(WHICH_FIGURES["properties"], "step", "function", "queue")]),
    "tick": Command(cmd_tick, []),
    "backup": Command(cmd_backup, [("file", {"metavar": "FILE"})]),
    "restore": Command(cmd_restore, [("file", {"metavar": "FILE"}), argument(
        "--force", about(SWITCH, "even while a server or workers run here"))]),
    "export": Command(cmd_export, [("file", {"metavar": "FILE", "help": "- is standard output"})]),
    "import": Command(cmd_import, [("file", {"metavar": "FILE", "help": "- is standard input"})]),
    "check": Command(cmd_check, [
        ("--repair", {"nargs": "?", "const": "alone", "choices": ["alone", "shared"],
                      "help": "with everything stopped: choose the journal mode for this file "
                              "system, or for several machines (shared)"}),
        argument("--quick", about(SWITCH, "no effect; older versions tested a worker")),
        argument("--files", about(SWITCH, "print the lines for cron and web servers"))])}
WITHOUT_QUEUE = ("check", "restore", "schedule preview")
LOCAL = ("serve", "tick", "backup", "export", "import", *WITHOUT_QUEUE)
# Commands that do not create the data folder: if it is missing, its path was mistyped.
NEED_DATA_FOLDER = "list show files stats wait log activity cancel retry delete backup export".split()


def terminal_width():
    """Return the terminal's width in characters, or 80 without one. Importing shutil would take long."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size().columns or 80
    return 80


def command_parser(words):
    """Return the parser of all commands. Only the command in `words` gets its arguments.

    Adding the arguments of all commands would take longer than most commands.
    """
    import argparse
    shape = functools.partial(argparse.HelpFormatter, width=terminal_width() - 2)
    parser = argparse.ArgumentParser(
        prog="jobqueue.py", description="Background jobs for a web site on a cheap shared host. "
                                        "Without a command it serves the page.",
        epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 the awaited task failed, 4 not found, "
               "5 refused, 75 busy, 124 wait timed out, 141 the reader closed the pipe early.",
        formatter_class=shape)
    parser.add_argument("--version", action="version", version="jobqueue " + VERSION)
    parser.set_defaults(data=None, json=False, server=None, token_file=None)
    groups = {"": parser.add_subparsers(dest="command", metavar="[COMMAND]")}
    for name, (run, rows) in COMMANDS.items():
        group, _, action = name.rpartition(" ")
        if group not in groups:
            actions = [words.split()[1] for words in COMMANDS if words.startswith(group + " ")]
            line = "%ss: %s." % (group.capitalize(), ", ".join(actions))
            groups[group] = groups[""].add_parser(
                group, help=line, description=line, formatter_class=shape).add_subparsers(
                    dest="action", metavar="ACTION", required=True)
        line = (run.__doc__ or "").partition("\n")[0]
        sub = groups[group].add_parser(action, help=line, description=line, allow_abbrev=False,
                                       argument_default=argparse.SUPPRESS, formatter_class=shape)
        if name.split() != words[:name.count(" ") + 1]:
            continue
        for flag, details in (*COMMON, *(ABOUT_SITES if name not in LOCAL else ())):
            sub.add_argument(flag, **details)
        fields = [sub.add_argument(flag, **details).dest for flag, details in rows]
        sub.set_defaults(name_of_command=name, run=run, fields=fields)
    return parser


class ParsedCommand(NamedTuple):
    """A parsed command line: its options and its function."""

    options: "Namespace"
    run: "Run"


def parse_command(words):
    """Parse a command line. Words such as name=value may also follow --options."""
    parser = command_parser(words)
    helpless = [word for word in words if word not in ("-h", "--help")]
    wants_help = words[:1] == ["add"] and 1 < len(helpless) < len(words)
    options, rest = parser.parse_known_args(helpless if wants_help else words)
    if rest and ("words" not in options or any(word.startswith("-") for word in rest)):
        parser.error("unrecognized arguments: " + " ".join(rest))
    if rest:
        options.words = [*options.words, *rest]
    options.given = {name: vars(options)[name] for name in options.fields if name in options}
    return ParsedCommand(options, cmd_help_of if wants_help else options.run)


def _target(options):
    """Return this host's queue for a command, a Client of its API or of another site's API, or None."""
    name = options.name_of_command
    if name in WITHOUT_QUEUE:
        return None
    if options.server:
        return HttpClient(options.server, options.token_file)
    if name in NEED_DATA_FOLDER and not os.path.lexists(data_folder(options.data)):
        raise SetupError("There is no data folder %s." % data_folder(options.data))
    queue = JobQueue(options.data)
    return queue if name in LOCAL else LocalClient(queue)


def main(words=None):
    """Run one command; return its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:      # the parent process has closed it
            setattr(sys, name, open(os.devnull, mode))
    words = sys.argv[1:] if words is None else words
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words = ["serve", *words]
    options, run = parse_command(words)
    become_private()
    try:
        return run(_target(options), options) or 0
    except JobQueueError as error:
        complain(error.detail)
        return error.exit_code
    except (OSError, ValueError, OverflowError) as error:
        complain("%s: %s" % (type(error).__name__, error))
        return 1
    except KeyboardInterrupt:
        return 130


def _start():
    """Run one command, or answer a CGI request. Its arguments come from the query and are ignored."""
    if "GATEWAY_INTERFACE" not in os.environ:
        return main()
    script = os.environ.get("SCRIPT_FILENAME", "")
    if os.path.isfile(script) and not os.path.basename(script).startswith("jobqueue"):
        # Another CGI script of the site (PHP, Perl) may run this: its query must not be read as ours.
        complain("to run a command from a CGI script of your own, take GATEWAY_INTERFACE out of its "
                 "environment: env -u GATEWAY_INTERFACE python3 jobqueue.py ...")
        print("Status: 500 Internal Server Error\nContent-Type: text/plain\n\n"
              "See the web server's log.")
        return 2
    run_cgi()
    return 0


if __name__ == "__main__":
    sys.exit(_start())
