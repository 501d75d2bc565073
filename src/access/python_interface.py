"""JobQueue, Function, @task, @schedule, command, http_request, external.

These are for users' own code. JobQueue is the queue of a data folder; a Task is one of its rows. @task,
command(), http_request() and external() make a Function. current_task() returns the TaskContext of a running
function.
Code inside a task adds tasks through its worker, since a runner never opens the database. Importing this
room declares nothing and opens nothing.
"""
from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import P, R, Generic, NamedTuple
from ..base.limits import SAMPLE_FUNCTION, WEB_PATIENCE_SECONDS
from ..base.errors import print_errors, join_errors, wrong
from ..base.time_and_text import Clock, dump_json
from ..base.values import (OPTION_SCHEMAS, TASK_DEFAULTS, TASK_OPTIONS, WHO_MAY_ADD, check_value,
                           object_of)
from ..base.options import data_folder, database_address
from ..store.connection import Connection
from ..store.data_folder import open_database
from ..store.settings import Settings
from ..tasks.queues import Queues
from ..tasks.files import Files
from ..tasks.adding import FEW_ORDERS, Added, Adding, Order
from ..tasks.task_list import TaskList
from ..tasks.actions import Actions
from ..tasks.claims import Claims
from ..upkeep.tick_history import TickHistory
from ..upkeep.schedule_rows import SCHEDULE_SCHEMA, SCRIPT_FUNCTION, plan_errors
from ..upkeep.schedules import ScheduleRunner, Schedules
from ..upkeep.worker_modes import Interpreter, Modes
from ..upkeep.workers import Workers
from ..upkeep.reaper import Reaper
from ..upkeep.starter import Starter
from ..upkeep.catalogue import Catalogue
from ..upkeep.metrics import Rollup, Metrics
from ..upkeep.retention import Retention
from ..upkeep.conditions import Conditions
from ..upkeep.alerts import Alerts
from ..upkeep.summary import Summaries
from ..upkeep.forecast import Forecast
from ..upkeep.tick import Tick
from .people import Users
from .accounts import Invitations, Sessions, SetUp, Tokens
from .saved import Saved
from .requests import Requests, file_parameters
from .remote_workers import RemoteWorkers
from .python_task import Task, TaskContext, enqueue_all

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Literal, NoReturn, Protocol, TypeVar, overload
    from typing_extensions import Unpack

    from ..base.types import JsonObject, TaskRow
    from ..base.time_and_text import AnyClock
    from ..tasks.adding import IdempotencyRecord
    from .python_task import AddOptions, TaskOptions, UsingOptions

if TYPE_CHECKING:
    Who = Literal["user", "admin", "nobody"]
    Declared = TypeVar("Declared", bound=Callable[..., Any])    # a Python function or a Function

    class Declaring(Protocol):
        """The decorator that @task(...) returns. It makes a Function of a Python function."""

        def __call__(self, __target: Callable[P, R]) -> Function[P, R]: ...


class JobQueue:
    """The queue of one data folder. Each web server, command, worker and test opens one."""

    def __init__(self, data: Path | str | None = None, clock: AnyClock = Clock,
                 environment: Mapping[str, str] = os.environ,
                 patience: float = WEB_PATIENCE_SECONDS) -> None:
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

    def enqueue(self, function: str, arguments: Mapping[str, Any] | None = None,
                owner: str | None = None, **options: Unpack[AddOptions]) -> Task:
        """Add one task; return it. Invalid names every wrong field."""
        place = TaskContext.running or self
        added = enqueue_all(place, function, [arguments or {}], {**options, "owner": owner})
        return Task(self, {"id": added.ids[0]}, bool(added.new))

    def enqueue_many(self, function: str, many: Iterable[Mapping[str, Any]],
                     owner: str | None = None, **options: Unpack[AddOptions]) -> list[int]:
        """Add a task for each of `many` argument objects (any iterable), all or none; return the ids."""
        return enqueue_all(TaskContext.running or self, function, many, {**options, "owner": owner}).ids

    def get(self, task_id: int) -> Task:
        """Return a task by its id; NotFound if there is none."""
        return Task(self, self.get_json(task_id))

    def get_json(self, task_id: int, owner_id: int | None = None) -> JsonObject:
        """Return a task with all its keys; NotFound if it is not this owner's (None: any owner's)."""
        return self.row_json(self.tasks.get(task_id, owner_id))

    def row_json(self, row: TaskRow) -> JsonObject:
        """Return a task as get_json() does, from its row. The task may have been deleted since."""
        shown, code, words = self.tasks.full_json(row), None, None
        if shown["status"] == "pending":
            code, words = self.queues.blocked(shown["queue"], self.claims.machine, row["owner_id"])
        return {**shown, "blocked": code, "blocked_text": words}

    def store_files(self, function: str, owner_id: int, arguments: JsonObject) -> JsonObject:
        """Copy the files that arguments name by path; return the arguments with the ids of the copies."""
        def take(value: Any) -> Any:
            return ([take(item) for item in value] if isinstance(value, (list, tuple)) else
                    self.files.store_copy(value, owner_id) if isinstance(value, Path) else value)
        self.catalogue.refresh()
        declared_function = self.requests.function(function)
        return {**arguments, **{name: take(arguments[name]) for name in file_parameters(
            declared_function["schema"]) if name in arguments}}

    def add(self, requests: Iterable[Any], owner_id: int) -> list[int]:
        """Add tasks for `requests` (as in POST /api/tasks), all or none; return the ids."""
        return self.add_all(requests, owner_id).ids

    def add_all(self, requests: Iterable[Any], owner_id: int, adding_task_id: int | None = None) -> Added:
        """Add tasks as add() does, also for a running task; return the ids and how many are new."""
        self.catalogue.refresh()
        orders = self.requests.check(requests, is_local=True)
        added = self.add_orders(orders, owner_id, adding_task_id=adding_task_id)
        self.start_workers()
        return Added(added["ids"], added["created"])

    def add_orders(self, orders: list[Order], owner_id: int, idempotency: IdempotencyRecord | None = None,
                   adding_task_id: int | None = None) -> JsonObject:
        """Add Orders, all or none; return {"ids", "created": how many are new}.

        A repeated request with the same `idempotency` gets the ids of the first answer. `adding_task_id`
        is the id of the running task that adds them, if there is one.
        """
        def action(transaction: Connection) -> JsonObject:
            now = self.database.clock.now()
            answer = idempotency.find(transaction, now) if idempotency else None
            if answer:
                return answer
            ids, created = self.adding.add(transaction, owner_id, orders, now, adding_task_id)
            added: JsonObject = {"ids": ids, "created": created}
            if idempotency:
                idempotency.keep(transaction, added, now)
            return added
        write = self.database.together if len(orders) <= FEW_ORDERS else self.database.alone
        return write(action)

    def delete_queue(self, name: str, who: str) -> None:
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


_opened: dict[int, JobQueue] = {}       # {process id: its queue}: a connection must not cross a fork


def default_queue() -> JobQueue:
    """Return the JobQueue of this process, for code that opened none itself."""
    return _opened.get(os.getpid()) or _opened.setdefault(os.getpid(), JobQueue())


class CodePlace(NamedTuple):
    """A line of users' code."""

    file: str
    line: int


def calling_place() -> CodePlace:
    """Return the line of users' code that called this program."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_back and frame.f_globals is globals():
        frame = frame.f_back
    return CodePlace(frame.f_code.co_filename, frame.f_lineno) if frame else CodePlace("", 0)


class Function(Generic[P, R]):
    """A function of tasks.py, as @task or command() made it. A call runs it here; enqueue() adds a task."""

    def __init__(self, name: str, kind: str, target: Callable[P, R] | JsonObject | list[str] | None,
                 options: JsonObject, who: str, parameters: JsonObject | None,
                 description: str | None = None, help_texts: Mapping[str, str] = {}) -> None:
        self.name, self.who, self.options = name, who, options
        self.kind = kind                # python, command, http_request, external or script
        self.target: Any = target       # a callable, list or dictionary, by its kind
        self.parameters = parameters    # {name: annotation or default}; None: as in the signature
        self.chosen: UsingOptions = {}  # options of using(), for the tasks that it adds
        self.place = calling_place()
        self.help_texts = help_texts    # {parameter: text below its field}, beside those of the docstring
        self.__doc__ = description or (target.__doc__ if callable(target) else None)
        self.__module__ = getattr(target, "__module__", __name__)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return its name to pickle, as Python does for functions. Process pools need that."""
        name = getattr(self.target, "__qualname__", self.name)
        value: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            value = getattr(value, part, None)
        return name if value is self else super().__reduce__()

    def __call__(self, *positional: P.args, **named: P.kwargs) -> R:
        """Run the function here."""
        if self.kind != "python":
            raise TypeError("%s is run by workers: use .enqueue()" % self.name)
        return self.target(*positional, **named)

    def using(self, **options: Unpack[UsingOptions]) -> Function[P, R]:
        """Return a Function that adds its tasks with these options, too."""
        variant: Function[P, R] = Function(
            self.name, self.kind, self.target, self.options, self.who, self.parameters,
            self.__doc__, self.help_texts)
        variant.chosen = {**self.chosen, **options}
        return variant

    def enqueue(self, *positional: P.args, **named: P.kwargs) -> Task:
        """Add a task with these arguments; return the Task."""
        place = TaskContext.running or default_queue()
        arguments = self.arguments(positional, named)
        added = enqueue_all(place, self.name, [arguments], self.chosen)
        return Task(place, {"id": added.ids[0]}, bool(added.new))

    def enqueue_many(self, many: Iterable[Mapping[str, Any]]) -> list[int]:
        """Add a task for each argument object in `many` (any iterable), all or none; return the ids."""
        return enqueue_all(TaskContext.running or default_queue(), self.name, many, self.chosen).ids

    def arguments(self, positional: tuple[Any, ...], named: JsonObject) -> JsonObject:
        """Return the arguments by name; TypeError if they do not fit the parameters."""
        by_name: JsonObject
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
declared: dict[str, Function[..., Any]] = {}    # {name: Function}, filled while tasks.py is imported


class ScheduleLine(NamedTuple):
    """A use of @schedule: the name of its function, its fields, and its line in the code."""

    name: str
    given: JsonObject
    place: CodePlace


scheduled: list[ScheduleLine] = []      # filled while tasks.py is imported


def _declare(name: str, kind: str, target: Callable[P, R] | JsonObject | list[str] | None,
             who: str, keywords: JsonObject, text: str = "") -> Function[P, R]:
    """Declare a Function and return it.

    Keywords named like options are options; other keywords are parameters. `description` and `help` describe
    the function and its parameters, unless they have a {place}. Each {place} in `text` needs a parameter.
    Each parameter of a command needs a {place}.
    """
    options: JsonObject = keywords
    parameters: JsonObject | None = None
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
    function: Function[P, R] = Function(
        name, kind, target, {**TASK_DEFAULTS, **options}, who, parameters, description, help_texts)
    declared[name] = function
    return function


if TYPE_CHECKING:
    @overload
    def task(target: Callable[P, R], *, who: Who = "user",
             **options: Unpack[TaskOptions]) -> Function[P, R]: ...
    @overload
    def task(*, who: Who = "user", **options: Unpack[TaskOptions]) -> Declaring: ...


def task(target: Callable[P, R] | None = None, *, who: Who = "user",
         **options: Unpack[TaskOptions]) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """Declare a Python function that tasks can run: @task or @task(max_retries=3, ...)."""
    def declare(function: Callable[P, R]) -> Function[P, R]:
        return _declare(_name_of(function), "python", function, who, {**options})
    return declare(target) if target is not None else declare


def _name_of(target: Any) -> str:
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


def schedule(rule: str, zone: str | None = None, arguments: Mapping[str, Any] | None = None,
             catch_up: Literal["none", "once", "all"] = "once",
             overlap: Literal["skip", "queue", "allow"] = "skip", *, name: str | None = None,
             **options: Unpack[TaskOptions]) -> Callable[[Declared], Declared]:
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

    def declare(function: Declared) -> Declared:
        of = str(getattr(function, "module_path", None)         # a task of Django
                 or getattr(function, "name", None) or getattr(function, "__name__", function))
        scheduled.append(ScheduleLine(of, fields, calling_place()))
        return function
    return declare


# Parameters with two underscores are positional only, so `rest` may have parameters of these names.
def command(__name: str, __arguments: Sequence[str | Path], *, who: Who = "user",
            **rest: Any) -> Function[..., NoReturn]:
    """Declare a program and its arguments, with {places} for the parameters. No shell is used.

    Keywords that are options of tasks are options. description="..." and help={"parameter": "..."} are
    shown in the form. Other keywords are parameters, with a type or a default value.
    """
    if isinstance(__arguments, str) or not all(isinstance(part, (str, Path)) for part in __arguments):
        raise TypeError("command(%r): the program and its arguments must be a list of texts" % __name)
    parts = [str(part) for part in __arguments]
    return _declare(__name, "command", parts, who, rest, " ".join(parts))


def http_request(__name: str, __method: str, __address: str, *, who: Who = "user",
                 headers: Mapping[str, str] | None = None, **rest: Any) -> Function[..., NoReturn]:
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


def external(__name: str, *, queue: str, who: Who = "user", **rest: Any) -> Function[..., NoReturn]:
    """Declare a function that workers in any language run: see static/docs/workers.md.

    Our own workers do not serve its queue, so no other function may use that queue. The keywords are as in
    command().
    """
    if queue == TASK_DEFAULTS["queue"]:
        raise ValueError("external(%r): the queue must be one of its own, not %s" % (__name, queue))
    return _declare(__name, "external", None, who, {**rest, "queue": queue})
