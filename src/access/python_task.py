"""Task and current_task(): a task as users' own code sees it.

Code inside a task adds tasks through its worker, since a runner never opens the database.
"""
from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import SLICE_SECONDS
from ..base.errors import JobQueueError, NotFound, field_error
from ..base.time_and_text import iso
from ..base.plain_values import argument_value
from ..base.values import PLAIN_WORDS
from ..tasks.followers import ENDED
from ..tasks.files import task_folder

if TYPE_CHECKING:
    from typing import Any, Literal, Protocol, TypedDict, Union
    from typing_extensions import Unpack

    from ..base.types import P, JsonObject, TaskRow
    from ..store.database import Database
    from ..tasks.files import Files
    from ..tasks.adding import Added
    from ..tasks.task_list import TaskList
    from ..tasks.actions import Actions
    from ..upkeep.starter import Starter
    from ..upkeep.catalogue import Catalogue
    from ..upkeep.tick import Tick
    from .people import Users

if TYPE_CHECKING:
    class TaskOptions(TypedDict, total=False):
        """The options of the tasks of a function. TASK_OPTIONS has their schemas."""

        queue: str
        priority: int
        max_retries: int
        retry_delay: float
        retry_backoff: float
        timeout: float
        on_crash: Literal["retry", "fail"]
        remove_on_success: bool
        notify: Literal["end", "failure"] | None

    class AddOptions(TaskOptions, total=False):
        """The options of added tasks. REQUEST_SCHEMA has their schemas."""

        delay: float | None
        run_at: datetime | str | None
        unique_key: str | None
        after: After | None
        after_failure: Literal["fail", "run"] | None

    class UsingOptions(AddOptions, total=False):
        """The options of added tasks, and the name of their owner."""

        owner: str | None

    class TaskQueue(Protocol):
        """The part of a JobQueue that a Task uses."""

        database: Database
        files: Files
        tasks: TaskList
        actions: Actions
        starter: Starter
        catalogue: Catalogue
        tick: Tick
        users: Users

        def add_all(self, requests: Iterable[JsonObject], owner_id: int) -> Added: ...
        def store_files(self, function: str, owner_id: int, arguments: JsonObject) -> JsonObject: ...
        def get_json(self, task_id: int) -> JsonObject: ...
        def row_json(self, row: TaskRow) -> JsonObject: ...
        def start_workers(self) -> None: ...

    class Enqueued(Protocol[P]):
        """The part of a Function that Task.then() uses."""

        chosen: UsingOptions

        def using(self, **options: Unpack[UsingOptions]) -> Enqueued[P]: ...
        def enqueue(self, *positional: P.args, **named: P.kwargs) -> Task: ...

    After = Union["Task", int, Collection[Union["Task", int]]]      # tasks or their ids


def _share(n: Any, total: Any) -> float | None:
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


def _text(value: object) -> str:
    """Return a value as text; the name of its class if str() fails."""
    try:
        return str(value)
    except Exception:
        return "<%s>" % type(value).__name__


class TaskContext:
    """The running task, as its function sees it. The runner makes a TaskContext for each attempt."""

    running: TaskContext | None = None  # the task that this process runs, if it is a runner

    def __init__(self, task_id: int, owner: str, attempt: int, crashes: int, claim: str, data: Path,
                 report: Callable[[float | None, str | None], None],
                 enqueue: Callable[[list[JsonObject]], Added]) -> None:
        self.id, self.owner, self.claim = task_id, owner, claim
        self.attempt, self.crashes = attempt, crashes
        self.data, self._report = data, report
        self.enqueue = enqueue          # adds tasks of the same owner through the worker
        self.has_folder = False         # True once the folder was used
        # The runner sets functions that ask the worker.
        self.ask_results: Callable[[], list[Any]] = list
        self.ask_task: Callable[[int], Any] | None = None   # None: a worker of another machine

    def progress(self, n: float, total: float = 1, message: str | None = None) -> None:
        """Report that `n` of `total` is done. The `message` may name the current step.

        Numbers of any kind are allowed. Other values show no progress, and an error is written to the log.
        """
        self._report(_share(n, total), None if message is None else _text(message))

    @property
    def folder(self) -> Path:
        """Return the task's own folder, made at first use and removed with the task.

        The files that are in it when the task ends can be seen and downloaded.
        """
        path = task_folder(self.data, self.id)
        for folder in (path.parent, path):
            folder.mkdir(exist_ok=True, mode=0o700)
        self.has_folder = True
        return path

    @property
    def results(self) -> list[Any]:
        """Return the results of the tasks in this task's `after`, in that order."""
        return self.ask_results()


def current_task() -> TaskContext | Any:
    """Return the TaskContext of the task that runs this code, or None outside a task."""
    # The annotation leaves out None, so the function of a task need not test for it.
    return TaskContext.running


def _ids(after: After) -> list[int]:
    """Return the ids of the tasks in `after`: a task or an id, or several."""
    items: Iterable[Any] = after if isinstance(after, (list, tuple, set, frozenset)) else [after]
    return [getattr(item, "id", item) for item in items]


def enqueue_all(place: TaskQueue | TaskContext, function: str, many: Iterable[Any],
                options: UsingOptions) -> Added:
    """Add a task for each of `many` argument objects. Inside a task its worker adds them."""
    chosen: JsonObject = {**options}
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


def _plain(arguments: Any, take_files: Callable[[JsonObject], JsonObject] | None = None) -> Any:
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

    name: str
    size: int
    path: Path


class Task:
    """A task for Python code: attributes named like the JSON keys, and the actions on the task."""

    id: int
    owner: str
    function: str
    summary: str
    queue: str
    status: str
    reason: str | None
    priority: int
    run_at: str | None
    unique_key: str | None
    after: list[int]
    after_failure: str | None
    attempts: int
    crashes: int
    max_retries: int
    retries_left: int
    retry_delay: float
    retry_backoff: float
    timeout: float
    on_crash: str
    remove_on_success: bool
    notify: str | None
    cancel_requested: bool
    progress: float | None
    message: str | None
    error: JsonObject | None
    worker: int | None
    schedule: int | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    arguments: JsonObject
    result: Any
    samples: list[JsonObject] | None
    predecessors: list[JsonObject]
    followers: list[JsonObject]
    blocked: str | None
    blocked_text: str | None

    def __init__(self, place: TaskQueue | TaskContext, values: JsonObject,
                 created: bool = False) -> None:
        self._place = place             # the queue; in a runner, which has none, the running task
        self.id = values["id"]
        self.created = created          # False if another task had its unique_key already
        self._values = values

    if not TYPE_CHECKING:               # a type checker must know no other names than those above
        def __getattr__(self, name: str) -> Any:
            values = self.__dict__.get("_values", {})
            if isinstance(self.__dict__.get("_place"), TaskContext):
                raise AttributeError("inside a task, other tasks are known by their id only")
            if set(values) == {"id"}:
                values = self.refresh()._values
            try:
                return values[name]
            except KeyError:
                raise AttributeError(name) from None

    def __repr__(self) -> str:
        return "<Task %s>" % " ".join(filter(None, [str(self.id), self._values.get("status")]))

    @property
    def _queue(self) -> TaskQueue:
        """Return the JobQueue of the task; RuntimeError in a runner."""
        if isinstance(self._place, TaskContext):
            raise RuntimeError("inside a task, other tasks are known by their id only")
        return self._place

    @property
    def files(self) -> list[TaskFile]:
        """Return a TaskFile for each file that the task left, then for each that it was given."""
        files = self.refresh()._queue.files
        return [TaskFile(row["name"], row["size"], files.path(row, self.id))
                for row in files.of_task(self.id)]

    @property
    def is_finished(self) -> bool:
        """Return True once the task cannot change by itself any more."""
        return self.status in ("succeeded", "failed", "cancelled")

    def refresh(self) -> Task:
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

    def wait(self, timeout: float | None = None) -> Task:
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

    def _has_ended(self) -> bool:
        try:
            return self._queue.tasks.get(self.id)["status"] in ENDED
        except NotFound:
            return self.refresh().is_finished

    def then(self, function: Enqueued[P], *positional: P.args, **named: P.kwargs) -> Task:
        """Add a task of another function, for the same owner. It runs after this task has succeeded.

        For several predecessors: other.using(after=[a, b], after_failure="run").enqueue(...).
        """
        chosen: UsingOptions = {**function.chosen}
        if not current_task():          # inside a task the running task's owner is used
            chosen.setdefault("owner", self.owner)
        chosen["after"] = [*_ids(chosen.get("after") or []), self.id]
        return function.using(**chosen).enqueue(*positional, **named)

    def cancel(self) -> Task:
        """Cancel the task; Conflict if it has ended."""
        return self._changed(self._queue.actions.cancel(self.id))

    def retry(self) -> Task:
        """Make the task pending again; Conflict unless it failed or was cancelled."""
        self._queue.catalogue.refresh()     # the file tasks.py may have changed
        return self._changed(self._queue.actions.retry(self.id))

    def delete(self) -> None:
        """Remove the task."""
        self._queue.actions.delete(self.id)
        self._queue.start_workers()

    def _changed(self, row: TaskRow) -> Task:
        """Start workers, and store the task's new row in this object; return itself."""
        self._queue.start_workers()
        self._values = self._queue.row_json(row)
        return self
