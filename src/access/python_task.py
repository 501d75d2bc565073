"""Task and current_task(): a task as people's own code sees it.

Code that runs inside a task adds through its worker, since a runner never opens the database.
"""
import collections
import contextlib
import functools
import json
import math
from datetime import datetime
from pathlib import Path

from ..base.limits import SLICE_SECONDS
from ..base.errors import JobQueueError, field_error
from ..base.time_and_text import dump_json
from ..base.values import PLAIN_WORDS
from ..tasks.followers import ENDED
from ..tasks.files import task_folder


class TaskContext:
    """What a running function knows of its task; the runner makes one for each attempt."""

    running = None                      # the TaskContext of this process, if it runs a task

    def __init__(self, task_id, owner, attempt, crashes, claim, data, report, enqueue):
        self.id, self.owner, self.claim = task_id, owner, claim
        self.attempt, self.crashes = attempt, crashes
        self._data, self._report = data, report
        self.enqueue = enqueue          # adds tasks of the same owner through the worker
        self.has_folder = False         # True once it was asked for
        self.ask_results = None         # asks the worker for `results`

    def progress(self, n, total=1, message=None):
        """Say that `n` of `total` is done, and what is being done now."""
        self._report(max(0.0, min(1.0, n / total)) if total else None, message)

    @property
    def folder(self):
        """A folder of this task's own, made when first asked for; removed with the task. The files
        that are there at its end are the task's, for people to see and save."""
        path = task_folder(self._data, self.id)
        for folder in (path.parent, path):
            folder.mkdir(exist_ok=True, mode=0o700)
        self.has_folder = True
        return path

    @property
    def results(self):
        """The results of the tasks that this one comes after, as `after` named them."""
        return self.ask_results()


def current_task():
    """The TaskContext of the task that runs this code, or None outside a task."""
    return TaskContext.running


def _ids(after):
    """What `after` may hold, ids and Tasks or a single one, as a list of ids."""
    after = after if isinstance(after, (list, tuple, set, frozenset)) else [after]
    return [getattr(one, "id", one) for one in after]


def enqueue_all(queue, function, many, options):
    """Add a task for each of `many` argument objects, in a task through its worker; their ids."""
    options, running = dict(options), current_task()
    owner = options.pop("owner", None)
    if options.get("after") is not None:
        options["after"] = _ids(options["after"])
    if isinstance(options.get("run_at"), datetime):
        options["run_at"] = options["run_at"].isoformat()
    owner_id, take = None, None
    if running is None:
        owner_id = queue.users.owner(owner)["id"]
        take = functools.partial(queue.take_files, function, owner_id)
    requests = ({"function": function, **options, "arguments": _plain(one, take)} for one in many)
    if running is None:
        return queue.add(requests, owner_id)
    if owner not in (None, running.owner):
        raise field_error("owner", "cannot be chosen inside a task: what it adds is its owner's, %s"
                          % running.owner)
    return running.enqueue(list(requests))


def _plain(arguments, take_files):
    """Arguments as JSON has them. Paths become texts; those of files, ids of copies."""
    if type(arguments) is dict and {*map(type, arguments)} <= {str} and (
            {*map(type, arguments.values())} <= PLAIN_WORDS.keys()):
        return dict(arguments)
    if take_files and isinstance(arguments, dict) and any(
            isinstance(one, Path) for value in arguments.values()
            for one in (value if isinstance(value, (list, tuple)) else [value])):
        arguments = take_files(arguments)
    return json.loads(dump_json(arguments))


TaskFile = collections.namedtuple("TaskFile", "name size path")     # left by a task, or given to it


class Task:
    """A task as Python sees it: attributes named like the JSON keys, and what one can do to it."""

    def __init__(self, queue, values):
        self._queue = queue             # None in a runner, which has no database
        self.id = values["id"]
        self._values = values

    def __getattr__(self, name):
        values = self.__dict__.get("_values", {})
        if set(values) == {"id"}:
            values = self.refresh()._values
        try:
            return values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self):
        return "<Task %s %s>" % (self.id, self._values.get("status", ""))

    @property
    def files(self):
        """A TaskFile for each that it left, then for each that it was given."""
        files = self.refresh()._queue.files
        return [TaskFile(row["name"], row["size"], files.path(row, self.id))
                for row in files.of_task(self.id)]

    @property
    def is_finished(self):
        """True once nothing more will happen to it by itself."""
        return self.status in ("succeeded", "failed", "cancelled")

    def refresh(self):
        """Read it again; returns itself. NotFound if it was deleted."""
        if self._queue is None:
            raise RuntimeError("inside a task, other tasks are known by their id only")
        self._values = self._queue.get_json(self.id)
        return self

    def wait(self, timeout=None):
        """Wait until it is finished; returns itself. TimeoutError after `timeout` seconds."""
        if current_task():
            raise RuntimeError("a task must not wait for another task: two workers that wait for "
                               "each other never end")
        clock, pause = self._queue.database.clock, 0.02
        deadline = math.inf if timeout is None else clock.monotonic() + timeout
        while self._queue.tasks.get(self.id)["status"] not in ENDED:
            left = deadline - clock.monotonic()
            if left < 0:
                raise TimeoutError("task %d is still %s" % (self.id, self.refresh().status))
            self._queue.tick.maybe("code")
            with contextlib.suppress(JobQueueError):
                self._queue.starter.work_slice(min(left, SLICE_SECONDS))
            clock.sleep(pause)
            pause = min(1.0, pause * 1.3)
        return self.refresh()

    def then(self, function, *positional, **named):
        """Add a task of another function, of the same owner, that runs once this has succeeded.
        For more than that: other.using(after=[a, b], after_failure="run").enqueue(...)."""
        owner = {} if current_task() else {"owner": self.owner}     # there it is the running task's
        chosen = {**owner, **function._chosen}
        chosen["after"] = [*_ids(chosen.get("after") or []), self.id]
        return function.using(**chosen).enqueue(*positional, **named)

    def cancel(self):
        """Cancel it; Conflict if it has ended."""
        return self._act("cancel")

    def retry(self):
        """Make it pending again; Conflict unless it failed or was cancelled."""
        return self._act("retry")

    def delete(self):
        """Remove it."""
        self._act("delete")

    def _act(self, action):
        if action == "retry":
            self._queue.catalogue.refresh()     # who may run it can have changed
        row = getattr(self._queue.actions, action)(self.id)
        self._queue.start_workers()
        if row:
            self._values = self._queue.row_json(row)
        return self
