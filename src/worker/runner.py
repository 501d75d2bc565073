"""The child's side: runs one attempt after another.

The runner imports tasks.py, announces its functions, and runs one attempt after another. It is a fresh
interpreter, or a fork of the worker made before anything was open. It ends when its channel or its life
line is closed. It sends the worker lines of JSON: {"announce"} first, then for each attempt {"report"},
{"enqueue"} and {"results"}, and at last {"outcome"}. The worker answers {"enqueue"} and {"results"}.

Rules: the runner never touches the database. If a task changes this process, the next task must not see
that. Some changes are undone. The rest is reported, and the worker replaces the runner. A fork of the
runner never sends messages to the worker.
"""
from __future__ import annotations

import contextlib
import functools
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
from types import CoroutineType

import jobqueue
from jobqueue import (TYPE_CHECKING, Added, DjangoFunction, Fail, Function, NamedTuple, TaskContext, declared,
                      dump_json, host_umask, storable)

from .signatures import Parameters, read_functions, working_folder
from .commands import BUILT_IN, run_command, run_script
from .requests import run_request
from .task_files import TaskFiles
from .outcomes import LINE_MAX_BYTES, outcome_of_exception, outcome_of_result, too_large
from .leftovers import Leftovers, text_streams
from .django_tasks import run_django

if TYPE_CHECKING:
    from typing import Any, TextIO, TypedDict

    from jobqueue import Announcement, FieldError, FileSite, JsonObject, ResultView

    from .outcomes import Report, OutcomeMessage

if TYPE_CHECKING:
    # Processor seconds of this process and its ended children, and peak memory in bytes. It is a plain
    # tuple because it is made for each attempt.
    Usage = tuple[float, int]

    class ToWorker(TypedDict, total=False):
        """A line from the runner: its functions, or the claim of an attempt and a message about it."""

        announce: Announcement
        claim: str
        report: Report
        enqueue: list[JsonObject]       # requests for tasks
        more: bool                      # True if the next line has more of these requests
        results: bool                   # True asks for the results of the predecessors
        task: int                       # asks for the task with this id
        outcome: OutcomeMessage

    class RunOrder(TypedDict):
        """An order for the runner: an attempt that it must run."""

        id: int
        owner: str
        attempt: int
        crashes: int
        claim: str
        function: str
        arguments: str                  # JSON text
        more: JsonObject                # columns of the task; None where a site did not send them
        site: FileSite | None           # the site that has its files, if they are not here
        given: dict[str, str]           # names of its given files that are here, by their keys

    class ToRunner(TypedDict, total=False):
        """A line from the worker: orders, or the answer to the runner's last request."""

        orders: list[RunOrder]
        created: int                    # how many of the ids are new
        ids: list[int]                  # ids of the requested tasks, of new and of existing ones
        results: list[Any]
        task: ResultView
        refused: Refusal

PROGRESS_SECONDS = 0.2
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024      # the unit of ru_maxrss
BATCH_MAX = 128                         # most tasks in a batch
RUN_KINDS: dict[str, Callable[[Function, JsonObject, TaskContext], Any]] = {
    "command": run_command, "http_request": run_request, "script": run_script}
parameters_of = functools.lru_cache(maxsize=None)(Parameters)


def await_result(coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """Run the coroutine of an async function to its end, in an event loop of its own."""
    import asyncio
    return asyncio.run(coroutine)


class Refusal(NamedTuple):
    """An error of jobqueue in the worker's answer: the name of its class, and its arguments."""

    kind: str
    detail: str
    errors: list[FieldError]
    retry_after: float | None


def arm_lifeline(end: int) -> None:
    """Let the kernel kill this process group once the worker's end of the life line is closed."""
    import fcntl
    os.set_inheritable(end, False)
    try:
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(end, 10, signal.SIGKILL)    # F_SETSIG of Linux
        flags = fcntl.fcntl(end, fcntl.F_GETFL)
        fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    except OSError:                     # other systems: a thread waits until the pipe is closed
        def wait() -> None:
            os.set_blocking(end, True)
            os.read(end, 1)
            os.killpg(os.getpgrp(), signal.SIGKILL)
        threading.Thread(target=wait, daemon=True).start()
    if select.select([end], [], [], 0)[0]:
        os._exit(0)                     # the worker's end was closed before this was armed


def usage() -> Usage:
    """Return the resources that this process and its ended children have used."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss) * MAXRSS_BYTES


class Runner:
    """The runner: runs attempts as the worker hands them over. It has no database."""

    def __init__(self, channel: socket.socket, bell: int, data: Path, lock: int | None = None) -> None:
        self._channel, self._data, self._pid = channel, data, os.getpid()
        self._bell = bell               # a byte in it makes the worker read the channel
        self._worker_lock = lock        # held here, too: the lock is free once worker and runner are dead
        self._lock = threading.RLock()  # the function may have threads that speak to the worker
        self._claim: str | None = None  # claim of the current attempt
        self._arrived = b""
        self._descriptors: list[int] = []       # received with messages
        self._go: int | None = None     # a batch's pipe, with a byte for each order not begun
        self._null = os.open(os.devnull, os.O_RDWR)
        self._streams: dict[str, TextIO] = {}   # the stdout and stderr that tasks start with
        self._leftovers: Leftovers      # set in run()
        self._folder, self._umask = "", host_umask()
        self._used: Usage = (0.0, 0)    # usage() after the last attempt; set in run()
        self._unsent: Report | None = None
        self._next_report = 0.0

    def run(self) -> int:
        """Announce the functions, then run orders until the channel ends."""
        self._streams = {**text_streams()}      # made before tasks.py, which may keep them
        self._print_to(self._null)
        self._send({"announce": read_functions()})
        self._folder = working_folder()
        self._tidy()
        self._leftovers = Leftovers()
        self._used = usage()
        for message in iter(self._receive, None):
            self._run_in_a_row(message["orders"])
        return 0

    def forget(self) -> None:
        """Close the descriptors that a fork of this process must not keep: the fork may live longer."""
        self._lock = threading.RLock()  # a thread that the fork lacks may hold the former lock
        self._channel.close()
        for descriptor in {self._bell, self._go, self._worker_lock, *self._descriptors}:
            if descriptor is not None:
                os.close(descriptor)

    def _run_in_a_row(self, orders: list[RunOrder]) -> None:
        """Run orders, except those that the worker takes back before they begin. Stop at leftovers."""
        if self._go is not None:
            os.close(self._go)
        self._go = self._descriptors.pop(0) if len(orders) > 1 else None
        for order in orders:
            log = self._descriptors.pop(0)
            if self._go is not None and not os.read(self._go, 1):
                os.close(log)           # the worker took the order back
            elif self._attempt(order, log, order is orders[0], order is orders[-1]):
                return                  # the next orders need a runner without leftovers

    def _attempt(self, order: RunOrder, log: int, is_first: bool, is_last: bool) -> str | None:
        """Run an order and send its outcome; return the state that it left in this process, or None."""
        self._print_to(log)
        self._tidy()
        self._leftovers.begin(order["owner"], is_first)
        context = TaskContext(order["id"], order["owner"], order["attempt"], order["crashes"],
                              order["claim"], self._data, self._report, self._enqueue)
        files = TaskFiles(order.get("site"), order["given"], context, self._data)
        context.ask_results = functools.partial(self._results, files)
        if order["more"]["worker_id"] is not None:
            context.ask_task = self._task
        TaskContext.running = context
        self._claim, self._unsent = order["claim"], None
        before, began = self._used, time.monotonic()
        outcome = self._outcome(order, context, files)
        seconds, self._used = time.monotonic() - began, usage()
        TaskContext.running = None
        with self._lock:                # a thread may be adding a task
            self._claim = None
        try:
            self._leftovers.flush()
            leftovers = self._leftovers.restore(is_last)
        except Exception as error:      # the task may have broken Python: its outcome must still be sent
            leftovers = "values that cannot be inspected: %s" % type(error).__name__
        self._print_to(self._null)
        outcome["seconds"], outcome["peak_memory"] = round(seconds, 6), self._used[1]
        outcome["cpu_seconds"] = round(self._used[0] - before[0], 6)
        if self._unsent:
            outcome["report"] = self._unsent
        if leftovers:
            outcome["left"] = leftovers
        rings = is_last or leftovers is not None
        try:
            self._send({"claim": order["claim"], "outcome": outcome}, ring=rings)
        except ValueError:
            self._send({"claim": order["claim"], "outcome": too_large(outcome)}, ring=rings)
        return leftovers

    def _tidy(self) -> None:
        """Restore folder, umask and text streams, for whose changes the runner is not replaced."""
        os.chdir(self._folder)
        os.umask(self._umask)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)

    def _outcome(self, order: RunOrder, context: TaskContext, files: TaskFiles) -> OutcomeMessage:
        name = order["function"]
        try:
            function = BUILT_IN.get(name) or declared.get(name) or jobqueue.find_django(name)
        except BaseException as error:  # importing its module failed
            return outcome_of_exception(error)
        if function is None or function.kind == "external":
            return {"kind": "unknown_function", "error_type": "UnknownFunction",
                    "error_message": "tasks.py does not declare %s" % name}
        if isinstance(function, DjangoFunction):
            return run_django(function, {**order}, context)
        try:
            result = self._call(function, json.loads(order["arguments"]), context, files)
        except BaseException as error:  # any exception of the owner's code is the attempt's error
            outcome = outcome_of_exception(error)
        else:
            outcome = outcome_of_result(result, files.keep)
        try:
            files.close()
        except Exception as error:      # the files that it left could not be sent
            if outcome["kind"] == "succeeded":
                outcome = outcome_of_exception(error)
        return outcome

    def _call(self, function: Function, arguments: JsonObject, context: TaskContext,
              files: TaskFiles) -> Any:
        parameters = parameters_of(function)
        if files.site:                  # the arguments come from a site: check them again here
            for wrong in jobqueue.check_value(parameters.checked, arguments, ""):
                raise Fail("the site sent wrong arguments: %(field)s %(message)s" % wrong)
        for name in parameters.files:
            if name in arguments:
                schema = parameters.checked["properties"][name]
                arguments[name] = files.bring(arguments[name], schema)
        values = parameters.convert(arguments)
        if function.kind == "python":
            result = parameters.call(values)
            return await_result(result) if type(result) is CoroutineType else result
        return RUN_KINDS[function.kind](function, {**parameters.defaults, **values}, context)

    def _print_to(self, descriptor: int) -> None:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if descriptor != self._null:
            os.close(descriptor)

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[str]:
        """Yield the current claim. In the block no other thread sends messages."""
        with self._lock:
            if self._claim is None:
                raise RuntimeError("the task has ended")
            yield self._claim

    def _report(self, progress: float | None, message: str | None) -> None:
        """Send the progress, at most once in PROGRESS_SECONDS. Otherwise keep it for the outcome."""
        report: Report = {
            "progress": progress, "message": None if message is None else storable(message)[:500]}
        with self._speaking() as claim:
            if time.monotonic() < self._next_report:
                self._unsent = report
                return
            self._next_report = time.monotonic() + PROGRESS_SECONDS
            self._unsent = None
            self._send({"claim": claim, "report": report})

    def _enqueue(self, requests: list[JsonObject]) -> Added:
        """Add all of these tasks through the worker, or none. Each message has a limited length."""
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
        answer = self._ask(*lines)
        return Added(answer["ids"], answer["created"])

    def _results(self, files: TaskFiles) -> list[Any]:
        """Return the results of the task's predecessors."""
        if files.site:
            with files.site.ask("results") as answer:
                results: list[Any] = json.load(answer)["results"]
            return results
        return self._ask({"results": True})["results"]

    def _task(self, task_id: int) -> ResultView:
        """Return a task of the same owner, for get_result() of Django."""
        return self._ask({"task": task_id})["task"]

    def _ask(self, *messages: ToWorker) -> ToRunner:
        """Send messages; return the worker's answer, or raise its refusal."""
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
        """Send messages to the worker, a line each. If one is too long, raise ValueError and send none."""
        if os.getpid() != self._pid:
            raise RuntimeError("this process is a fork of the runner; only the runner itself can report")
        lines = [dump_json(message).encode("utf-8") + b"\n" for message in messages]
        if max(map(len, lines)) > LINE_MAX_BYTES:
            raise ValueError("a message of %d bytes is too long" % max(map(len, lines)))
        self._channel.sendall(b"".join(lines))
        if ring and self._go is not None:
            os.write(self._bell, b".")

    def _receive(self) -> ToRunner | None:
        """Return the next message, or None once the worker is gone. Keep descriptors sent with it."""
        while b"\n" not in self._arrived:
            data, descriptors, _, _ = socket.recv_fds(
                self._channel, 1 << 16, BATCH_MAX + 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            self._descriptors += descriptors
            if not data:
                return None
            self._arrived += data
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json.loads(line)
