"""Runners: the processes that run tasks for a worker."""
from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, Every

from .child import Child
from .place import CHECK_SECONDS, STOP_SIGNALS

if TYPE_CHECKING:
    from typing import Any, Protocol

    from jobqueue import Announcement, AnyClock, Stamps

RUNNER_START_SECONDS = 120.0            # until a runner has announced its functions: imports may take long
BROKEN_RETRY_SECONDS = 60.0             # pause before a broken tasks.py is imported again


if TYPE_CHECKING:
    class Registration(Protocol):
        """A worker's Place, as far as it is used here: the lock that its runner also holds."""

        @property
        def lock(self) -> int: ...
        def set_runner(self, pid: int, born: str | None) -> None: ...
        def report_no_runner(self, error: OSError) -> None: ...

    class Functions(Protocol):
        """The Catalogue, as far as it is used here: it stores the functions that a runner announces."""

        def files(self) -> list[Path | str]: ...
        def store(self, announcement: Announcement, stamps: Stamps) -> Stamps: ...


class Runners:
    """The worker's runners, one after another.

    1. start() ends the current runner and starts a fresh one.
    2. hear() waits for the runner's announcement. No task is claimed before the announcement is stored.
    3. If tasks.py cannot be imported, the runner is ended. A fresh runner tries again when a file changes,
       or after BROKEN_RETRY_SECONDS.
    4. is_stale() is tested before each claim. A stale runner gets no more tasks. It has run many, needs
       much memory, has leftovers of a task, or has imported files that have changed.
    """

    def __init__(self, clock: AnyClock, data: Path, functions: Functions, place: Registration,
                 settings: Mapping[str, Any]) -> None:
        self._clock, self._data, self._functions = clock, data, functions
        self._place, self._settings = place, settings
        self.wake: int | None = None    # a descriptor that becomes readable after a signal
        self._announcement: Announcement | None = None  # received, but perhaps not stored yet
        self._broken_until: float | None = None     # when a broken tasks.py is imported again
        self._stamps = Every(CHECK_SECONDS, self._clock)
        self.current: Child | None = None

    @property
    def child(self) -> Child:
        """Return the current runner; there must be one."""
        if self.current is None:
            raise RuntimeError("there is no runner")
        return self.current

    def start(self) -> None:
        """Replace the runner. If the host refuses to start one, report that and make the worker leave."""
        self.end()
        self._announcement = self._broken_until = None
        stamps = jobqueue.file_stamps(self._functions.files())      # before the runner reads the files
        try:
            self.current = Child(self._data, self._place.lock, stamps, self.wake)
            self._place.set_runner(*self.current.identity)
        except OSError as error:
            self._place.report_no_runner(error)

    def catch_signals(self, note: Callable[..., None]) -> int:
        """Call `note` for each stop signal; return a descriptor.

        A signal wakes the waiting worker, and so does a byte written to the descriptor.
        """
        self.wake, waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, note)
        return waker

    def calm(self) -> None:
        """Empty the wake-up pipe. Before the next wait the caller must handle signals and answers."""
        if self.wake is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 100)

    def rest(self, seconds: float, alarm: int | None) -> None:
        """Wait while there is no task. Replace a runner that sends a message or dies meanwhile."""
        child = self.child
        child.wait(seconds, alarm)
        if list(child.messages()) or child.ended or child.is_dead():
            self.start()

    def hear(self) -> bool:
        """Wait a moment for the runner's announcement; return True once the runner may get tasks."""
        child = self.child
        if self._broken_until is not None:
            self._clock.sleep(0.5)
            if (self._clock.monotonic() > self._broken_until
                    or jobqueue.file_stamps(child.files) != child.files):
                self.start()
            return False
        self._announcement = self._announcement or self._listen(child)
        if self._announcement is None:
            return False
        child.files = self._functions.store(self._announcement, child.files)
        if self._announcement.get("error"):
            child.end()
            self._broken_until = self._clock.monotonic() + BROKEN_RETRY_SECONDS
        else:
            child.set_ready()
        return child.ready

    def _listen(self, child: Child) -> Announcement | None:
        """Return the runner's announcement, or one with the runner's failure; None if it may still come."""
        child.wait(0.2)
        for message in child.messages():
            if "announce" in message:
                return message["announce"]
        if child.ended or child.is_dead():
            problem = "the process that runs the functions ended at its start"
        elif self._clock.monotonic() - child.started > RUNNER_START_SECONDS:
            problem = "importing tasks.py took longer than %d s" % RUNNER_START_SECONDS
        else:
            return None
        return {"error": {"message": problem, "file": "tasks.py", "line": None}}

    def is_stale(self) -> bool:
        """Return True if the next task should get a fresh runner."""
        child, settings = self.child, self._settings
        if (child.tasks >= settings["runner_tasks"] or child.ended or child.has_leftovers
                or child.unsent or child.memory > settings["runner_memory"] << 20):
            return True
        # tasks.py is tested each time, the other files once in CHECK_SECONDS: they may be many, on a slow
        # file system.
        files = child.files if self._stamps.begin_if_due() else [jobqueue.TASKS_FILE]
        return any(child.files.get(name) != stamp
                   for name, stamp in jobqueue.file_stamps(files).items())

    def end(self) -> None:
        """End the current runner, if there is one."""
        if self.current:
            self.current.end()
            self.current = None
