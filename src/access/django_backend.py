"""DjangoBackend: jobqueue as the backend of a Django site's tasks.

    TASKS = {"default": {"BACKEND": "jobqueue.DjangoBackend"}}

The class is made when Django asks for it. Its base is that of django.tasks (Django 6.0 and newer) or of the
package django-tasks (Django 4.2 to 5.2). enqueue() adds a task to the queue, get_result() reads it. Inside
a running task both ask the worker, since a runner never opens the database.

Rules: the id of a result has a signature, so that visitors of a site cannot guess further ids. A
task is enqueued although the catalogue does not know its function: the worker imports it.
"""
from __future__ import annotations

import builtins
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone

from ..base.head import TYPE_CHECKING
from ..base.limits import HOME, STATUS_WORDS, TASKS_FILE
from ..base.errors import JobQueueError, NotFound, SetupError, join_errors
from ..base.time_and_text import dump_json
from ..base.values import OPTION_SCHEMAS, TASK_OPTIONS, check_value
from ..base.options import data_folder, database_address
from ..tasks.adding import Added
from .requests import DJANGO_MARK, REQUEST_SCHEMA
from .python_task import TaskContext
from .python_interface import JobQueue, default_queue
from .django_project import (DjangoNames, django_module, django_names, find_task, join_arguments, seen_tasks,
                             settings_digest, split_arguments)

if TYPE_CHECKING:
    from typing import Any, TypedDict

    from ..base.types import JsonObject, TaskRow
    from ..store.connection import Reader
    from .django_project import DjangoTask

if TYPE_CHECKING:
    class AttemptError(TypedDict):
        """The end of an attempt without success."""

        path: str                       # of the class of the exception
        traceback: str

    class ResultView(TypedDict):
        """A task as get_result() needs it. Times are seconds since 1970."""

        id: int
        function: str
        queue: str
        priority: int
        run_at: float | None
        status: str                     # one of STATUS_WORDS
        arguments: JsonObject
        result: Any
        created_at: float | None
        started_at: float | None        # of the first attempt
        attempted_at: float | None      # of the last one
        finished_at: float | None
        errors: list[AttemptError]
        workers: list[str]              # one for each attempt

    DjangoResult = Any                  # a TaskResult of Django

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


def result_view(queue: JobQueue, task_id: int, owner_id: int | None = None) -> ResultView:
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


def _error_of(db: Reader, row: TaskRow, end: Any, is_last: bool) -> AttemptError:
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


def _class_in(trace: str, message: str | None) -> str | None:
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


def sign_id(task_id: int, created_at: float | None, key: Any = None) -> str:
    """Return the id of a result: the task's number, and a signature of it and of the time of adding.

    The key is the site's SECRET_KEY. With the time, a task of another database has another id.
    """
    crypto = django_module("utils.crypto")
    signature = crypto.salted_hmac(ID_SALT, "%d %r" % (task_id, created_at), key, algorithm="sha256")
    return "%d-%s" % (task_id, signature.hexdigest()[:ID_CHARACTERS])


def read_id(result_id: Any) -> int | None:
    """Return the task's number in the id of a result; None if it has none. The signature is not tested."""
    match = re.fullmatch(ID_PATTERN, result_id, re.ASCII) if isinstance(result_id, str) else None
    return int(match[1]) if match else None


def is_signed(view: ResultView, result_id: str) -> bool:
    """Return whether a result has this id, by the site's SECRET_KEY or an earlier one."""
    import hmac
    settings = django_module("conf").settings
    return any(hmac.compare_digest(sign_id(view["id"], view["created_at"], key), result_id)
               for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


def moment(at: float | None) -> datetime | None:
    """Return seconds since 1970 as Django has times: aware with USE_TZ, else in the local zone."""
    if at is None:
        return None
    zone = timezone.utc if django_module("conf").settings.USE_TZ else None
    return datetime.fromtimestamp(at, zone)


def make_result(view: ResultView, task: DjangoTask, alias: str) -> DjangoResult:
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


def task_with(view: ResultView, task: DjangoTask, alias: str) -> DjangoTask:
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


def write_tasks_file(settings: str, folder: str) -> None:
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
    alias: str
    task_class: Any
    _queues: dict[tuple[int, str], JobQueue] = {}   # by process id and folder

    def __init__(self, alias: str, params: JsonObject) -> None:
        base: Any = super()
        base.__init__(alias, {"ENQUEUE_ON_COMMIT": False, **params})    # of django-tasks before 0.9
        self.options: JsonObject = params.get("OPTIONS", {})
        self._is_declared = False

    def validate_task(self, task: DjangoTask) -> None:
        """Raise InvalidTask if this backend cannot run a task."""
        base: Any = super()
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

    def enqueue(self, task: DjangoTask, args: Any, kwargs: Any) -> DjangoResult:
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

    def get_result(self, result_id: str) -> DjangoResult:
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

    def _running_task(self) -> TaskContext | None:
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

    def _view(self, task_id: int) -> ResultView:
        """Return a task for get_result(); NotFound if there is none."""
        place = self._running_task()
        if place and place.ask_task:
            view: ResultView = place.ask_task(task_id)
            return view
        return result_view(self.queue(), task_id)

    def check(self, **kwargs: Any) -> Iterator[Any]:
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

    def _check_queue(self, checks: Any) -> Iterator[Any]:
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

    def queue(self) -> JobQueue:
        """Return the JobQueue of this process."""
        folder = self.options.get("data")
        if folder is None:
            return default_queue()
        key = os.getpid(), str(folder)
        return self._queues.get(key) or self._queues.setdefault(key, JobQueue(folder))

    def _request(self, task: DjangoTask, args: Any, kwargs: Any) -> JsonObject:
        """Return the request that adds a task; TypeError for arguments that JSON cannot have."""
        normalize = django_names().normalize
        arguments = join_arguments(task, normalize(list(args)), normalize(dict(kwargs)))
        extra = {name: getattr(task, name, None) for name in EXTRA_FIELDS}
        request: JsonObject = {
            "function": task.module_path, "queue": task.queue_name, "priority": task.priority,
            "arguments": json.loads(dump_json(arguments)), DJANGO_MARK: True,
            **{name: value for name, value in extra.items() if value is not None}}
        if "after" in request:
            request["after"] = self._predecessors(request["after"])
        if task.run_after is not None:
            request["run_at"] = task.run_after.astimezone(timezone.utc).isoformat()
        return request

    def _predecessors(self, after: Any) -> list[Any]:
        """Return the tasks of `after` as ids. They are results of Django, their ids, or our own tasks."""
        ids = []
        for item in after if isinstance(after, (list, tuple, set, frozenset)) else [after]:
            item_id = getattr(self.get_result(item) if isinstance(item, str) else item, "id", item)
            ids.append(read_id(item_id) if isinstance(item_id, str) else item_id)
        return ids

    def _project(self) -> tuple[str, str]:
        """Return the module of the site's settings, and the folder that holds its package."""
        module: str = (self.options.get("settings")
                       or getattr(django_module("conf").settings, "SETTINGS_MODULE", None)
                       or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
        folder = self.options.get("project")
        if folder is None and module:
            top: Any = sys.modules.get(module.partition(".")[0])
            places = [*getattr(top, "__path__", ()), getattr(top, "__file__", None)]
            folder = next((os.path.dirname(os.path.abspath(path)) for path in places if path), "")
        return module, str(folder or "")

    def _declare_project(self) -> None:
        """Write a tasks.py for the worker at the first use, unless there is one."""
        if not self._is_declared:
            write_tasks_file(*self._project())
            self._is_declared = True


def _make_task_class(names: DjangoNames) -> type:
    """Return Django's Task with the options of our tasks as further fields."""
    import dataclasses

    def using(self: Any, **options: Any) -> Any:
        """Return a variant of the task with these options. Those of jobqueue may be among them."""
        extra = {name: options.pop(name) for name in EXTRA_FIELDS if name in options}
        base: Any = names.task
        changed = base.using(self, **options)
        return dataclasses.replace(changed, **extra) if extra else changed
    # They count for no comparison: a result that was read has not all of them.
    fields = [(name, "object", dataclasses.field(default=None, compare=False)) for name in EXTRA_FIELDS]
    return dataclasses.make_dataclass(
        "DjangoTask", fields, bases=(names.task,), frozen=True,
        namespace={"using": using, "__module__": __name__, "__doc__": names.task.__doc__})


def __getattr__(name: str) -> Any:
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
