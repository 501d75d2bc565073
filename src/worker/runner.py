"""The child's side: runs one attempt after another.

The child's side: a process that imports tasks.py, announces its functions, and runs one attempt
after another as the worker hands them over. It is a fresh interpreter, or a fork of the worker
from before anything was open. It ends with its channel or its life line. It speaks to the worker
in lines of JSON: {"announce"} once, then of each attempt {"report"}, {"enqueue"} (which is
answered) and at last {"outcome"}.
Rules: it never touches the database. What a task changed in this process must not reach the next
one: some of it is undone, the rest is found, told as what the task left behind, and the worker
replaces the runner. A fork of it never speaks for it.
"""
from __future__ import annotations

import _signal
import _thread
import contextlib
import functools
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jobqueue
from jobqueue import (RESULT_MAX_DEPTH, TYPE_CHECKING, Fail, Function, NamedTuple, RetryAfter,
                      TaskContext, declared, dump_json, is_deep, storable)

from .signatures import Parameters, read_functions, working_folder
from .commands import BUILT_IN, run_command, run_script
from .requests import run_request
from .task_files import TaskFiles

if TYPE_CHECKING:
    from typing import Any, TextIO, TypedDict

    from jobqueue import Announcement, AnyTuple, FieldError, FileSite, JsonObject

if TYPE_CHECKING:
    # What a process has used: seconds of the processor with ended children, and the peak of memory in
    # bytes. It is made for each attempt, so it is a plain pair.
    Usage = tuple[float, int]

    class Report(TypedDict):
        """What a function says of its progress."""

        progress: float | None          # from 0 to 1
        message: str | None

    class _Ended(TypedDict):
        kind: str                       # succeeded, error, fail or unknown_function

    class ToldOutcome(_Ended, total=False):
        """How an attempt ended, in the runner's words."""

        result: str                     # JSON text
        error_type: str
        error_message: str
        retry_after: float
        seconds: float
        cpu_seconds: float
        peak_memory: int
        traceback: str
        report: Report                  # the last, if it was not told yet
        left: str                       # what the task left behind in the runner

    class ToWorker(TypedDict, total=False):
        """A line from the runner: its functions, or the claim of an attempt and what is said of it."""

        announce: Announcement
        claim: str
        report: Report
        enqueue: list[JsonObject]       # requests for tasks
        more: bool                      # more of them follow
        results: bool                   # asks for the results of the tasks that this one comes after
        outcome: ToldOutcome

    class RunOrder(TypedDict):
        """What the runner is told of an attempt that it is to run."""

        id: int
        owner: str
        attempt: int
        crashes: int
        claim: str
        function: str
        arguments: str                  # JSON text
        site: FileSite | None           # where its files are, if they are not here

    class ToRunner(TypedDict, total=False):
        """A line from the worker: orders, or one of the answers to what was asked last."""

        orders: list[RunOrder]
        ids: list[int]                  # of the tasks that were added
        results: list[Any]
        refused: Refusal

LINE_MAX_BYTES = 1 << 20                # one message between worker and runner
PROGRESS_SECONDS = 0.2
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024      # the unit of ru_maxrss
BATCH_MAX = 128                         # tasks in a batch
RUN_KINDS: dict[str, Callable[[Function, JsonObject, TaskContext], Any]] = {
    "command": run_command, "http_request": run_request, "script": run_script}
parameters_of = functools.lru_cache(maxsize=None)(Parameters)


class Refusal(NamedTuple):
    """An error of jobqueue, as the worker answers it: the name of its class, and what that is made of."""

    kind: str
    detail: str
    errors: list[FieldError]
    retry_after: float | None


def arm_lifeline(end: int) -> None:
    """Have the kernel kill this whole process group once the worker's end is closed."""
    import fcntl
    os.set_inheritable(end, False)
    try:
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(end, 10, signal.SIGKILL)    # F_SETSIG of Linux
        flags = fcntl.fcntl(end, fcntl.F_GETFL)
        fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    except OSError:                     # no such kernel: a thread waits for the end of the file
        def wait() -> None:
            os.set_blocking(end, True)
            os.read(end, 1)
            os.killpg(os.getpgrp(), signal.SIGKILL)
        threading.Thread(target=wait, daemon=True).start()
    if select.select([end], [], [], 0)[0]:
        os._exit(0)                     # it was closed before we were armed


def write_result(result: object) -> str:
    """What a function returned, as JSON; ValueError that says what would be right."""
    try:
        return "null" if result is None else dump_json(result)
    except (TypeError, ValueError) as error:
        raise ValueError("it has run, but its result cannot be kept (%s): return texts, numbers, "
                         "lists or dictionaries" % error) from None


def outcome_of_exception(error: BaseException, kind: str) -> ToldOutcome:
    """An exception as an outcome: type, message, and the traceback below our own frames."""
    import traceback
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    said = traceback.TracebackException(type(error), error, frames)
    text = "".join(said.format())
    if not text.startswith("Traceback "):
        text = "Traceback (most recent call last):\n" + text
    return {"kind": kind, "error_type": type(error).__name__,
            "error_message": storable(str(said))[:4000], "traceback": storable(text)[-100_000:]}


def usage() -> Usage:
    """Return what this process has used so far."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss) * MAXRSS_BYTES


# What a task changes in its process the next would feel. Some of it is looked at after each task,
# all of it after the last of a batch and after each that did one of CHANGES (Python's audit
# events): a look at all takes 10 us, and quick functions run 15,000 times a second.
LIMITS: list[int] = [getattr(resource, "RLIMIT_" + name)
                     for name in "FSIZE NOFILE AS CPU DATA NPROC STACK".split()
                     if hasattr(resource, "RLIMIT_" + name)]
CHANGES = frozenset("resource.setrlimit resource.prlimit os.fork os.forkpty os.posix_spawn "
                    "os.system subprocess.Popen".split())
ENVIRONMENT = os.environ                # the owner's code may put another in its place
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
HANDLED: list[int] = [getattr(signal, "SIG" + name) for name in
                      "HUP INT QUIT ABRT ALRM TERM PIPE CHLD USR1 USR2 XCPU XFSZ VTALRM PROF".split()]
SOME_TRACES = ("a timer", "signal handlers", "blocked signals", "environment variables", "sys.path",
               "threads", "other functions of Python", "other settings of Python")
ALL_TRACES = "limits", "a child", "another priority"


def some_traces() -> AnyTuple:
    """What SOME_TRACES says, by the modules of C, which are quicker."""
    return (list(map(_signal.getitimer, TIMERS)), list(map(_signal.getsignal, HANDLED)),
            _signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            (os.environ is ENVIRONMENT, dict(getattr(ENVIRONMENT, "_data"))), list(sys.path),
            _thread._count(),
            (os.write, os.read, os.open, os.close, os.dup, os.dup2, os.getpid, os._exit, print,
             open, time.sleep, time.time, time.monotonic, json.loads, json.dumps, signal.signal),
            (sys.getrecursionlimit(), sys.gettrace(), socket.getdefaulttimeout()))


def all_traces() -> AnyTuple:
    """What ALL_TRACES says."""
    has_child = False                   # that runs, or has ended and was not waited for
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        has_child = True
    return list(map(resource.getrlimit, LIMITS)), has_child, os.getpriority(os.PRIO_PROCESS, 0)


def lowest_free() -> int | None:
    """The lowest number that no descriptor has; None if there may be no more."""
    with contextlib.suppress(OSError):
        descriptor = os.dup(0)
        os.close(descriptor)
        return descriptor
    return None


class Runner:
    """Runs one attempt after another as the worker hands them over; knows no database."""

    def __init__(self, channel: socket.socket, bell: int, data: Path, lock: int | None = None) -> None:
        self._channel, self._data, self._pid = channel, data, os.getpid()
        self._bell = bell               # rung when the worker should look at the channel
        self._worker_lock = lock        # it is free once both are dead
        self._lock = threading.RLock()  # of who speaks to the worker: the function may have threads
        self._claim: str | None = None  # of the attempt that is going on
        self._arrived = b""
        self._descriptors: list[int] = []       # that came with what arrived
        self._go: int | None = None     # of a batch: a byte in it for each order not begun
        self._null = os.open(os.devnull, os.O_RDWR)
        self._streams: dict[str, TextIO] = {}   # our stdout and stderr
        self._some: AnyTuple = ()       # the traces that there were before the first task
        self._all: AnyTuple = ()
        self._free: int | None = None   # the lowest descriptor before the first task of a batch
        self._folder = ""
        self._used: Usage = (0.0, 0)    # from run() on that at the end of the last attempt
        self._changed = False           # the task did one of CHANGES
        self._unsent: Report | None = None
        self._next_report = 0.0

    def run(self) -> int:
        """Announce the functions, then run what comes until the channel ends."""
        self._send({"announce": read_functions()})
        sys.addaudithook(self._heed)
        self._some, self._all, self._folder = some_traces(), all_traces(), working_folder()
        self._used = usage()
        for message in iter(self._receive, None):
            self._run_in_a_row(message["orders"])
        return 0

    def _heed(self, event: str, _: object) -> None:
        if event in CHANGES:
            self._changed = True

    def forget(self) -> None:
        """Close what a fork of us must not have: it may outlive us, and must not look like us."""
        self._lock = threading.RLock()  # a thread that is not there may hold the other
        self._channel.close()
        for descriptor in {self._bell, self._go, self._worker_lock, *self._descriptors}:
            if descriptor is not None:
                os.close(descriptor)

    def _run_in_a_row(self, orders: list[RunOrder]) -> None:
        """Run these, but not those that the worker takes back before they begin."""
        if self._go is not None:
            os.close(self._go)
        self._go = self._descriptors.pop(0) if len(orders) > 1 else None
        for order in orders:
            log = self._descriptors.pop(0)
            if self._go is not None and not os.read(self._go, 1):
                os.close(log)           # the worker took it back
            elif self._attempt(order, log, order is orders[0], order is orders[-1]):
                return                  # the next need a runner in which nothing was left

    def _attempt(self, order: RunOrder, log: int, is_first: bool, is_last: bool) -> str | None:
        """Run it and say how it ended; what it left in this process, or None."""
        self._print_to(log)
        self._tidy()
        if is_first:
            self._free = lowest_free()
        context = TaskContext(order["id"], order["owner"], order["attempt"], order["crashes"],
                              order["claim"], self._data, self._report, self._enqueue)
        files = TaskFiles(order.get("site"), context, self._data)
        context.ask_results = functools.partial(self._results, files)
        TaskContext.running = context
        self._claim, self._unsent = order["claim"], None
        before, began = self._used, time.monotonic()
        outcome = self._outcome(order, context, files)
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
        outcome["seconds"], outcome["peak_memory"] = round(seconds, 6), self._used[1]
        outcome["cpu_seconds"] = round(self._used[0] - before[0], 6)
        if self._unsent:
            outcome["report"] = self._unsent
        if left:
            outcome["left"] = left
        rings = is_last or left is not None
        try:
            self._send({"claim": order["claim"], "outcome": outcome}, ring=rings)
        except ValueError:
            outcome["kind"], outcome["result"], outcome["error_type"] = "fail", "null", "ValueError"
            outcome["error_message"] = "the result is larger than %d bytes" % LINE_MAX_BYTES
            self._send({"claim": order["claim"], "outcome": outcome}, ring=rings)
        return left

    def _left(self, is_last: bool) -> str | None:
        """What a task left behind, in words; None if nothing is seen. Limits are set back."""
        some = some_traces()
        if some == self._some and not (is_last or self._changed):
            return None
        self._changed, now = False, all_traces()
        found = [name for name, one, other in zip(
            SOME_TRACES + ALL_TRACES, self._some + self._all, some + now) if one != other]
        for kind, limits in zip(LIMITS, self._all[0] if found else ()):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, limits)    # or even its outcome could not be told
        if not found and self._free != lowest_free():
            gc.collect()                # nobody may have it any more
            found = ["an open file"] if self._free != lowest_free() else []
        return ", ".join(found) or None

    def _tidy(self) -> None:
        """Undo what the last task may have done without a trace."""
        os.chdir(self._folder)
        os.umask(0o077)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            known = self._streams.get(name)
            if known is None or known.closed:
                known = self._streams[name] = open(
                    descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)
            setattr(sys, name, known)

    def _outcome(self, order: RunOrder, context: TaskContext, files: TaskFiles) -> ToldOutcome:
        function = BUILT_IN.get(order["function"]) or declared.get(order["function"])
        if function is None or function.kind == "external":
            return {"kind": "unknown_function", "error_type": "UnknownFunction",
                    "error_message": "tasks.py does not declare %s" % order["function"]}
        try:
            result = self._call(function, json.loads(order["arguments"]), context, files)
            if isinstance(result, Path):
                result = files.leave(result)
            if is_deep(result, RESULT_MAX_DEPTH):
                raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
            text = write_result(result)
            files.close()
            return {"kind": "succeeded", "result": text}
        except BaseException as error:  # whatever the owner's code raises is that attempt's error
            outcome = outcome_of_exception(error, "fail" if isinstance(error, Fail) else "error")
            if isinstance(error, RetryAfter):
                outcome["retry_after"] = min(max(0.0, error.seconds), 1e9)
            with contextlib.suppress(Exception):
                files.close()
            return outcome

    def _call(self, function: Function, arguments: JsonObject, context: TaskContext,
              files: TaskFiles) -> Any:
        parameters = parameters_of(function)
        for name in parameters.files:
            if name in arguments:
                arguments[name] = files.bring(arguments[name])
        values = parameters.convert(arguments)
        if function.kind == "python":
            return function.target(**values)
        return RUN_KINDS[function.kind](function, {**parameters.defaults, **values}, context)

    def _print_to(self, descriptor: int) -> None:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if descriptor != self._null:
            os.close(descriptor)

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[str]:
        """The claim that this thread, and no other meanwhile, may speak of."""
        with self._lock:
            if self._claim is None:
                raise RuntimeError("the task has ended")
            yield self._claim

    def _report(self, progress: float | None, message: str | None) -> None:
        """Pass progress on, but not more often than anybody could see."""
        report: Report = {
            "progress": progress, "message": message and storable(str(message))[:500]}
        with self._speaking() as claim:
            if time.monotonic() < self._next_report:
                self._unsent = report
                return
            self._next_report = time.monotonic() + PROGRESS_SECONDS
            self._unsent = None
            self._send({"claim": claim, "report": report})

    def _enqueue(self, requests: list[JsonObject]) -> list[int]:
        """Add tasks through the worker, in lines that are short enough, all or none."""
        parts: list[list[JsonObject]] = [[]]
        size = 0
        for request in requests:
            length = len(dump_json(request))
            if parts[-1] and size + length > LINE_MAX_BYTES // 4:
                parts.append([])
                size = 0
            parts[-1].append(request)
            size += length
        lines: list[ToWorker] = [
            {"enqueue": part, "more": part is not parts[-1]} for part in parts]
        return self._ask(*lines)["ids"]

    def _results(self, files: TaskFiles) -> list[Any]:
        """The results of the tasks that this one comes after."""
        if files.site:
            with files.site.ask("results") as answer:
                results: list[Any] = json.load(answer)["results"]
            return results
        return self._ask({"results": True})["results"]

    def _ask(self, *messages: ToWorker) -> ToRunner:
        """What the worker answers; what it refuses is raised."""
        with self._speaking() as claim:
            lines: list[ToWorker] = [{"claim": claim, **message} for message in messages]
            self._send(*lines)
            answer = self._receive()
        if answer is None:
            os._exit(1)
        if "refused" in answer:
            kind, *why = answer["refused"]
            raise getattr(jobqueue, kind)(*why)
        return answer

    def _send(self, *messages: ToWorker, ring: bool = True) -> None:
        """Tell the worker, in a line each; ValueError and nothing is told if one is too long."""
        if os.getpid() != self._pid:
            raise RuntimeError("this process is a fork of the runner; only that itself can report")
        lines = [dump_json(message).encode("utf-8") + b"\n" for message in messages]
        if max(map(len, lines)) > LINE_MAX_BYTES:
            raise ValueError("a message of %d bytes is too long" % max(map(len, lines)))
        self._channel.sendall(b"".join(lines))
        if ring and self._go is not None:
            os.write(self._bell, b".")

    def _receive(self) -> ToRunner | None:
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
