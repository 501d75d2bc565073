"""Worker locks; which Python; how this host starts processes.

create_lock() and grab_if_free() handle the lock files that show that a worker lives. Modes decides how
workers are started on this host, Interpreter with which Python. file_stamps() shows changes of the
program's files and of tasks.py.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.errors import SetupError, field_error
from ..base.time_and_text import seconds_since, time_of_day
from ..store.connection import Connection, Reader
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from ..tasks.claims import Claims
from .tick_history import TickHistory

if TYPE_CHECKING:
    from typing import TypedDict, Union

    from ..base.types import WorkerRow

if TYPE_CHECKING:
    Stamps = dict[str, Union[list[int], None]]  # path: [mtime, size], or None where there is no file

    class _Losses(TypedDict):
        """The latest series of workers that were lost young: their number, the last loss and its tasks."""

        count: int
        at: float
        tasks: list[int]

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

    handle: int
    proven: bool


class ChosenMode(NamedTuple):
    """The way workers are started (a value of the setting worker_mode, but auto), and the reason."""

    mode: str
    why: str


def grab_if_free(path: Path) -> int | None:
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


def create_lock(path: Path) -> HeldLock:
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


def explain_start_error(error: Exception, name: str = "a worker") -> str:
    """Return a sentence for the site's owner: why a process could not be started."""
    return "%s could not be started (%s)" % (
        name, SHORTAGES.get(getattr(error, "errno", 0), error))


def file_stamps(files: Iterable[Path | str]) -> Stamps:
    """Return the stamps of files. They differ after a file has changed."""
    stamps: Stamps = dict.fromkeys(map(str, files))
    for name in stamps:
        try:                            # quicker than suppress(), and each add calls this
            status = os.stat(name)
            stamps[name] = [status.st_mtime_ns, status.st_size]
        except OSError:
            pass
    return stamps


class Interpreter:
    """The Python for workers and tasks.py. A Python that is too old reports that when it starts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        settings.validators["python"] = self._test

    def path(self) -> str:
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

    def environment(self, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of workers: only allowed names, since a web process may hold secrets."""
        more = self._settings.get("pass_environment").replace(",", " ").split()
        # Under CGI a client's headers become variables with this prefix: Proxy becomes HTTP_PROXY.
        strange = "HTTP_" if "GATEWAY_INTERFACE" in ours else "\0"
        return {name: value for name, value in ours.items() if not name.startswith(strange)
                and (name in (*ENVIRONMENT_NAMES, *more) or name.startswith(("LC_", "JOBQUEUE_")))}

    @staticmethod
    def _test(path: str) -> None:
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

    def __init__(self, database: Database, settings: Settings, claims: Claims,
                 tick_history: TickHistory) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._clock = tick_history, database.clock

    def decide(self) -> ChosenMode:
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

    def works_in_slices(self) -> bool:
        """Return True if child processes may work while a caller waits: in slice, or if `auto` chose cron."""
        mode = self.decide().mode
        return mode == "slice" or (mode == "cron" and self._settings.get("worker_mode") == "auto")

    def learn_end(self, transaction: Connection, row: WorkerRow, is_loss: bool) -> None:
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

    def _lost(self, db: Reader) -> _Losses:
        """Return the latest losses in a row on this machine. If the clock was set back, they do not count."""
        lost: _Losses | None = (recall(db, "workers_lost") or {}).get(self._claims.machine)
        if lost and seconds_since(lost["at"], self._clock.now()) < math.inf:
            return lost
        return {"count": 0, "at": 0.0, "tasks": []}

    def _store_losses(self, transaction: Connection, losses: _Losses | None) -> None:
        by_machine: dict[str, _Losses] = recall(transaction, "workers_lost") or {}
        before = by_machine.pop(self._claims.machine, None)
        if losses:
            by_machine[self._claims.machine] = losses
        if losses or before:
            remember(transaction, "workers_lost", by_machine or None)
