"""A runner as its worker sees it: pipes, life line, signals.

The runner has a socket for orders and messages, and a pipe for each log. Several orders that are handed
over at once are a batch. While a batch runs, the runner wakes the worker by another pipe, the bell. The life
line is a pipe without data. When the worker dies, the kernel closes the worker's end of the life line. Then
the runner's process group is killed, as arm_lifeline() has arranged.

Several orders are handed over with a pipe that holds a byte for each. The runner reads one byte before it
begins an order. To take orders back, the worker reads the remaining bytes. If it reads n bytes, the last n
orders have not begun.

Rules: end() kills every process of the group, and closes all pipes but those of logs. A malformed or
unexpected message ends the runner. The group gets signals only until the exit status of its first process
was read: later another process may have the pid.
"""
from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, NamedTuple, dump_json

from .outcomes import LINE_MAX_BYTES
from .runner import BATCH_MAX, MAXRSS_BYTES
from .samples import measure_family

if TYPE_CHECKING:
    from typing import Protocol

    from jobqueue import JsonObject, Stamps

    from .runner import RunOrder, ToRunner

if TYPE_CHECKING:
    class Process(Protocol):
        """The part of Popen that is used here. `returncode` is set once the process was collected."""

        pid: int
        returncode: int | None


class Fork:
    """A forked process, with the attributes of Popen that are used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


class Started(NamedTuple):
    """A runner that has not received bell, life line and lock: its process, and our end of its channel."""

    process: Process
    channel: socket.socket


class Death(NamedTuple):
    """The way a runner ended, and the resources that it used."""

    code: int                           # the exit code, or minus the number of the signal
    cpu_seconds: float
    peak_memory: int                    # bytes


spares: list[Started] = []              # runners that fork_runner() has made for start_runner()


def start_runner(data: Path) -> Started:
    """Start a runner, or use a spare one."""
    while spares:
        spare = spares.pop()
        if os.waitpid(spare.process.pid, os.WNOHANG) == (0, 0):
            return spare
    import subprocess
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "--runner", str(theirs.fileno()), str(data)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True, cwd=str(jobqueue.HOME),
            env=jobqueue.code_environment())
    return Started(process, ours)


class Child:
    """A runner as its worker sees it: its pipes, life line, signals and death."""

    def __init__(self, data: Path, lock: int, files: Stamps, wake: int | None) -> None:
        self.process, self._channel = start_runner(data)
        self._bell, bell = os.pipe()
        self._lifeline: int | None
        lifeline, self._lifeline = os.pipe()
        with contextlib.suppress(OSError):      # is_dead() will notice that the runner has ended
            socket.send_fds(self._channel, [b"."], (bell, lifeline, lock))
        os.close(bell)
        os.close(lifeline)
        self._channel.setblocking(False)
        self._arrived = b""
        self.unsent = b""               # bytes not sent yet; while there are any, callers hand over no order
        self._go: int | None = None     # a batch's pipe, with a byte for each order not begun
        self._wake = wake               # descriptor that is readable after a signal
        self.started, self.ready = time.monotonic(), False
        self.ended = False              # the channel is closed, or a message was malformed
        self.has_leftovers = False      # a task has left changes in the runner
        self.tasks = self.memory = 0    # tasks handed over; peak memory in bytes
        self.cpu_seconds = 0.0          # used before the attempt that runs
        self.files = files              # stamps of the files that the runner imports
        self.owner: int | None = None   # the owner whose tasks it runs, if each owner has a runner
        self.identity = self.process.pid, jobqueue.birth(self.process.pid)
        self.death: Death | None = None

    def set_ready(self) -> None:
        """Let the runner get orders. Its CPU time so far is that of its start."""
        used, self.ready = measure_family(self.process.pid), True
        self.cpu_seconds = used.cpu_seconds if used else 0.0

    def hand_over(self, orders: Sequence[RunOrder]) -> list[int]:
        """Send orders to be run one after another; return the worker's ends of their log pipes."""
        pipes = [os.pipe() for _ in orders]
        passed = [theirs for _, theirs in pipes]
        if len(orders) > 1:
            self._go, filling = os.pipe()
            os.write(filling, b"." * len(orders))
            os.close(filling)
            passed.insert(0, self._go)
        line = dump_json({"orders": orders}).encode("utf-8") + b"\n"
        try:
            self.unsent = line[socket.send_fds(self._channel, [line], passed):]
        except OSError:
            self.ended = True           # is_dead() will notice that the runner has ended
        for _, theirs in pipes:
            os.close(theirs)
        self.tasks += len(orders)
        return [ours for ours, _ in pipes]

    def withdraw(self) -> int:
        """Take back the orders that have not begun; return their number."""
        if self._go is None:
            return 0
        unbegun = len(os.read(self._go, BATCH_MAX))
        os.close(self._go)
        self._go = None
        return unbegun

    def reply(self, message: ToRunner) -> None:
        """Answer the runner."""
        self.unsent += dump_json(message).encode("utf-8") + b"\n"
        self._flush()

    def wait(self, seconds: float, log_end: int | None = None) -> None:
        """Wait for a message, a signal, or output at `log_end`, for `seconds` at most.

        While a batch runs, it waits for at most 0.01 s. A message alone does not end the wait, but the bell
        does. The runner rings the bell for all messages except some outcomes: those without leftovers that
        are not the last of the batch.
        """
        poll, events = select.poll(), select.POLLOUT if self.unsent else 0
        if self._go is None:
            events |= select.POLLIN
        else:
            seconds, log_end = min(seconds, 0.01), None
        poll.register(self._channel, events | (select.POLLIN if self._arrived else 0))
        for end in (self._bell, self._wake, log_end):
            if end is not None:
                poll.register(end, select.POLLIN)
        for descriptor, _ in poll.poll(max(0, seconds) * 1000):
            if descriptor == self._bell:
                os.read(self._bell, 1 << 10)
            elif descriptor == self._channel.fileno() and self.unsent:
                self._flush()

    def messages(self) -> Iterator[JsonObject]:
        """Yield the runner's messages.

        Set `ended` if the channel is closed, or after a message that is too long or no JSON object.
        """
        while not self.ended:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._arrived += data
            self.ended = not data or (len(self._arrived) > LINE_MAX_BYTES
                                      and self._arrived.find(b"\n", 0, LINE_MAX_BYTES) < 0)
            if len(data) < 1 << 16:
                break
        *lines, self._arrived = self._arrived.split(b"\n")
        for line in lines:
            try:
                message = jobqueue.read_json(line.decode("utf-8"))
                if not isinstance(message, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                self.ended = True
                return
            yield message

    def is_dead(self) -> bool:
        """Return True if the runner has ended. The first such call kills its group and sets `death`."""
        if self.death is None:
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            self.signal(signal.SIGKILL)
            _, status, used = os.wait4(self.process.pid, 0)
            code = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.death = Death(code, used.ru_utime + used.ru_stime, used.ru_maxrss * MAXRSS_BYTES)
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the runner's whole group, unless its leader was already collected."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill the group, wait for the runner, and close everything but the log pipes."""
        if self.death is None:
            self.signal(signal.SIGKILL)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            self.is_dead()
        self.withdraw()
        self._channel.close()
        if self._lifeline is not None:
            os.close(self._bell)
            os.close(self._lifeline)
            self._lifeline = None

    def _flush(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self._channel.send(self.unsent):]
        except BlockingIOError:
            pass
        except OSError:
            self.ended, self.unsent = True, b""
