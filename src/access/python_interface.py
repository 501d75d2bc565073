"""JobQueue, Function, @task, @schedule, command, http_request, external.

What people's own code uses: JobQueue is the whole queue of a data folder, Task a row of it,
Function what @task and its kin make in tasks.py, and current_task() what a running function knows
of its task. Code that runs inside a task adds through its worker, since a runner never opens the
database. Importing this declares nothing and opens nothing.
"""
import json
import os
import re
from pathlib import Path

from ..base.limits import WEB_PATIENCE_SECONDS
from ..base.errors import in_passing, join_errors, wrong
from ..base.time_and_text import Clock, dump_json
from ..base.values import (OPTION_SCHEMAS, TASK_DEFAULTS, TASK_OPTIONS, WHO_MAY_ADD, check_value,
                           object_of)
from ..base.options import data_folder, database_address
from ..store.data_folder import open_database
from ..store.settings import Settings
from ..tasks.queues import Queues
from ..tasks.files import Files
from ..tasks.adding import FEW_ORDERS, Adding
from ..tasks.task_list import TaskList
from ..tasks.actions import Actions
from ..tasks.claims import Claims
from ..upkeep.tick_history import Rhythm
from ..upkeep.schedule_rows import SCHEDULE_SCHEMA, SCRIPT_FUNCTION, plan_errors
from ..upkeep.schedules import Firing, Schedules
from ..upkeep.worker_modes import Interpreter, Modes
from ..upkeep.workers import Workers
from ..upkeep.reaper import Reaper
from ..upkeep.starter import Starter
from ..upkeep.catalogue import Catalogue
from ..upkeep.metrics import Fold, Metrics
from ..upkeep.retention import Keeping
from ..upkeep.alerts import Alerts, Conditions
from ..upkeep.forecast import Forecast
from ..upkeep.tick import Tick
from .people import Users
from .accounts import Sessions, SetUp, Tokens
from .requests import Requests, file_parameters
from .remote_workers import RemoteWorkers
from .python_task import Task, current_task, enqueue_all


class JobQueue:
    """The whole queue of one data folder; every door, worker and test has one."""

    def __init__(self, data=None, clock=Clock, environment=os.environ,
                 patience=WEB_PATIENCE_SECONDS):
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
        self.rhythm = Rhythm(self.database)
        self.interpreter = Interpreter(self.settings)
        self.modes = Modes(self.database, self.settings, self.claims, self.rhythm)
        self.workers = Workers(self.database, self.settings, self.claims, self.modes)
        self.reaper = Reaper(self.database, self.claims, self.workers, self.modes)
        self.starter = Starter(self.database, self.settings, self.claims, self.interpreter,
                               self.modes, self.workers, self.reaper)
        self.catalogue = Catalogue(self.database, self.interpreter)
        self.requests = Requests(self.database, self.catalogue)
        self.remote = RemoteWorkers(self.database, self.settings, self.claims, self.workers,
                                    self.queues, self.files)
        self.fold = Fold(self.database)
        self.metrics = Metrics(self.database, self.settings, self.fold)
        self.forecast = Forecast(self.database, self.settings, self.claims, self.queues,
                                 self.modes, self.rhythm, self.metrics)
        self.conditions = Conditions(self.database, self.settings, self.claims, self.rhythm,
                                     self.modes, self.catalogue)
        self.alerts = Alerts(self.database, self.settings, self.conditions, self.starter)
        self.users = Users(self.database, self.settings)
        self.setup = SetUp(self.database, self.users)
        self.sessions = Sessions(self.database)
        self.tokens = Tokens(self.database)
        self.firing = Firing(self.database, self.adding, self.requests.check, self.users.person)
        self.schedules = Schedules(self.database, self.tasks, self.firing,
                                   self.catalogue.schedules, self.users.owner)
        self.keeping = Keeping(self.database, self.settings, self.actions, self.fold)
        self.tick = Tick(self.database, self.settings, self.claims, self.rhythm, self.workers,
                         self.reaper, self.starter, self.firing, self.schedules, self.fold,
                         self.keeping, self.alerts, self.files)

    def enqueue(self, function, arguments=None, owner=None, **options):
        """Add one task; returns it. Invalid names every field that is wrong."""
        [task_id] = self.enqueue_many(function, [arguments or {}], owner, **options)
        return Task(self, {"id": task_id})

    def enqueue_many(self, function, many, owner=None, **options):
        """Add a task for each of `many` argument objects (any iterable), all or none; their ids."""
        return enqueue_all(self, function, many, {**options, "owner": owner})

    def get(self, task_id):
        """A task by its id; NotFound if there is none."""
        return Task(self, self.get_json(task_id))

    def get_json(self, task_id, owner_id=None):
        """A task with all its keys; NotFound if it is not `owner_id`'s (None: anybody's)."""
        return self.row_json(self.tasks.get(task_id, owner_id))

    def row_json(self, row):
        """A task as get_json() gives it, of its row: for one that may be gone already."""
        shown, why = self.tasks.full_json(row), (None, None)
        if shown["status"] == "pending":
            why = self.queues.blocked(shown["queue"], self.claims.machine, row["owner_id"])
        return {**shown, "blocked": why[0], "blocked_text": why[1]}

    def take_files(self, function, owner_id, arguments):
        """Arguments with ids in the place of paths, of whose files copies are kept for the task."""
        def take(value):
            return ([take(one) for one in value] if isinstance(value, (list, tuple)) else
                    self.files.take(value, owner_id) if isinstance(value, Path) else value)
        self.catalogue.refresh()
        known = self.requests.function(function)
        return {**arguments, **{name: take(arguments[name]) for name in file_parameters(
            known["schema"]) if name in arguments}}

    def add(self, requests, owner_id):
        """Add tasks for `requests` (as in POST /api/tasks), all or none; returns their ids."""
        self.catalogue.refresh()
        added = self.add_orders(self.requests.check(requests), owner_id)
        self.start_workers()
        return added["ids"]

    def add_orders(self, orders, owner_id, once=None, show=False):
        """Add Orders, all or none: {"ids", "created": how many new; if `show` "task", the first}.
        A request that is answered but `once` gets the ids of the first answer again."""
        def action(transaction):
            now = self.database.clock.now()
            known = once and once.find(transaction, now)
            if known:
                return known
            ids, created = self.adding.add(transaction, owner_id, orders, now)
            added = {"ids": ids, "created": created}
            if once:
                once.keep(transaction, added, now)
            if show:
                added["task"] = self.row_json(self.tasks.get(ids[0]))
            return added
        write = self.database.together if len(orders) <= FEW_ORDERS else self.database.alone
        return write(action, self.adding.foreseen(owner_id, orders))

    def delete_queue(self, name, who):
        """Remove a queue that holds no tasks and that no function names."""
        self.queues.delete(name, who, {function["options"]["queue"]
                                       for function in self.catalogue.functions()})

    def start_workers(self):
        """Start workers for what was just added; if that cannot be done now, a tick will."""
        with in_passing("starting workers"):    # a killed one must not hold the place of a new one
            if not self.tick.maybe("code") and self.reaper.burials.is_due():
                self.reaper.bury_dead()
            self.starter.start_needed(self.tick.sleepers_missing())

    def close(self):
        """Close the database."""
        self.database.close()


_opened = {}                            # process id -> its JobQueue: none may cross a fork


def default_queue():
    """The JobQueue of this process for code that only imported a function."""
    return _opened.get(os.getpid()) or _opened.setdefault(os.getpid(), JobQueue())


class Function:
    """What @task and its kin make: call it to run it here, enqueue it for later."""

    def __init__(self, name, kind, target, options, who, parameters):
        self.name, self.who, self.options = name, who, options
        self.kind = kind                # python, command, http_request or external
        self.target = target
        self.parameters = parameters    # name -> annotation or default; None: from the signature
        self._chosen = {}
        self.__doc__ = getattr(target, "__doc__", None)

    def __call__(self, *positional, **named):
        """Run it here and now."""
        if self.kind != "python":
            raise TypeError("%s is run by workers: use .enqueue()" % self.name)
        return self.target(*positional, **named)

    def using(self, **options):
        """The same function with other options for the tasks that are added through it."""
        other = Function(self.name, self.kind, self.target, self.options, self.who, self.parameters)
        other._chosen = {**self._chosen, **options}
        return other

    def enqueue(self, *positional, **named):
        """Add a task with these arguments; returns the Task."""
        queue = None if current_task() else default_queue()
        arguments = self.arguments(positional, named)
        return Task(queue, {"id": enqueue_all(queue, self.name, [arguments], self._chosen)[0]})

    def enqueue_many(self, many):
        """Add a task for each argument object in `many` (any iterable), all or none; their ids."""
        queue = None if current_task() else default_queue()
        return enqueue_all(queue, self.name, many, self._chosen)

    def arguments(self, positional, named):
        """The arguments by name; TypeError as a call would raise it."""
        if self.parameters is None:
            import inspect
            signature = inspect.signature(self.target)
            given = signature.bind(*positional, **named).arguments
            for parameter in signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    given.update(given.pop(parameter.name, {}))
        elif len(positional) > len(self.parameters):
            raise TypeError("%s takes at most %d arguments" % (self.name, len(self.parameters)))
        else:
            given = {**dict(zip(self.parameters, positional)), **named}
        return dict(given)


PLACE = r"\{([A-Za-z_]\w*)\}"           # where the value of a parameter is put
declared = {}                           # name -> Function, filled by importing tasks.py
scheduled = []                          # (function, what @schedule says), in the same way


def _declare(name, kind, target, who, keywords, text=""):
    """Note a Function: keywords named like options are options, others have a {place} in `text`."""
    options, parameters = keywords, None
    if kind != "python":
        options = {key: value for key, value in keywords.items() if key in TASK_OPTIONS}
        parameters = {key: value for key, value in keywords.items() if key not in TASK_OPTIONS}
    errors = check_value(object_of(**OPTION_SCHEMAS), options, "")
    if who not in WHO_MAY_ADD:
        errors += wrong("who", "must be one of %s" % ", ".join(WHO_MAY_ADD))
    if name in ("", SCRIPT_FUNCTION):
        errors += wrong("its name", "is missing or one of jobqueue's own")
    places, named = set(re.findall(PLACE, text)), set(parameters or ())
    for one in sorted(places - named):
        errors += wrong("{%s}" % one, "is no parameter")
    for one in sorted(named - places if kind == "command" else ()):
        errors += wrong("{%s}" % one, "has no place")
    known = declared.get(name)
    if known is not None and known.target is not target and (
            getattr(known.target, "__module__", 1) == getattr(target, "__module__", 1)):
        errors += wrong("two functions", "are called %s" % name)
    if errors:
        raise ValueError("%s: %s" % (name, join_errors(errors)))
    declared[name] = Function(name, kind, target, {**TASK_DEFAULTS, **options}, who, parameters)
    return declared[name]


def task(target=None, *, who="user", **options):
    """Declare a Python function that tasks can run: @task or @task(max_retries=3, ...)."""
    def declare(function):
        return _declare(function.__name__, "python", function, who, options)
    return declare(target) if target is not None else declare


def schedule(rule, zone=None, arguments=None, catch_up="once", overlap="skip", **options):
    """Declare when a function of tasks.py runs: beside @task, as often as one likes.
    `arguments` are those of its tasks by name; `options` are those of @task."""
    given = {"rule": rule, "zone": zone or "UTC", "catch_up": catch_up, "overlap": overlap,
             "arguments": json.loads(dump_json(arguments or {})), "options": options}
    errors = (check_value(SCHEDULE_SCHEMA, {"function": "", **given}, "")
              or plan_errors(given, Clock.now()))
    if errors:
        raise ValueError("schedule(%r): %s" % (rule, join_errors(errors)))

    def declare(function):
        scheduled.append((function, given))
        return function
    return declare


def command(name, arguments, *, who="user", **rest):
    """Declare a program: a list of arguments with {places} for the parameters; no shell, ever.
    Keywords that are options of tasks are options, all others are parameters: a type, or a
    default value."""
    if isinstance(arguments, str) or not all(isinstance(part, (str, Path)) for part in arguments):
        raise TypeError("command(%r): the program and its arguments must be a list of texts" % name)
    arguments = [str(part) for part in arguments]
    return _declare(name, "command", arguments, who, rest, " ".join(arguments))


def http_request(name, method, address, *, who="user", headers=None, **rest):
    """Declare an HTTP request: {places} in path and query, other parameters as JSON body.
    With GET, HEAD and DELETE the other parameters become the query."""
    if not re.match(r"https?://[^/{}@\s]+(/|$)", address):
        raise ValueError("http_request(%r): the address must begin with http:// or https:// and a "
                         "host, without places, name or password" % name)
    for header, value in (headers or {}).items():
        if not re.fullmatch(r"[\t -~\xa0-\xff]*", str(value)):     # else an error would tell it
            raise ValueError("http_request(%r): the header %s holds a line break or another "
                             "character that cannot be sent" % (name, header))
    target = {"method": method.upper(), "address": address, "headers": dict(headers or {})}
    return _declare(name, "http_request", target, who, rest, address)


def external(name, *, queue, who="user", **rest):
    """Declare a function that workers in any language run: see static/docs/workers.md.
    Our own workers leave its queue alone, so it must be one that no other function uses."""
    if queue == TASK_DEFAULTS["queue"]:
        raise ValueError("external(%r): the queue must be one of its own, not %s" % (name, queue))
    return _declare(name, "external", None, who, {**rest, "queue": queue})
