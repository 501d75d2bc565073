"""Samples: CPU time and memory of a running attempt, read from /proc.

A task often runs a program, so the descendants of the runner count, too. A process that ended has no file.
Its CPU time then counts for the parent that waited for it.

Rules: a sample never raises an error. Without /proc there are no samples, for example on macOS. Hidden
processes do not count. A sample reads about FILES_MAX files at most.
"""
from __future__ import annotations

import contextlib
import os

import jobqueue
from jobqueue import NamedTuple

FILES_MAX = 1000                        # about 10 ms


class ProcessUse(NamedTuple):
    """The resources that a process and its ended children have used, as /proc/PID/stat shows them."""

    parent: int
    ticks: int                          # CPU time
    pages: int                          # resident memory


class FamilyUse(NamedTuple):
    """The resources that a process and its descendants have used."""

    cpu_seconds: float
    memory: int                         # resident bytes; shared ones count for each process


class Sample(NamedTuple):
    """The resources that an attempt has used, so many seconds after its start."""

    seconds: float
    cpu_seconds: float
    memory: int


def read_process(pid: int) -> ProcessUse:
    """Return the resources of a process; OSError if it is gone or hidden."""
    with open("/proc/%d/stat" % pid, "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return ProcessUse(int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))


def scan_children() -> dict[int, list[int]]:
    """Return the children of each process; none if there are more than FILES_MAX processes."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    children: dict[int, list[int]] = {}
    for pid in pids if len(pids) <= FILES_MAX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(read_process(pid).parent, []).append(pid)
    return children


def read_family(root: int) -> list[ProcessUse]:
    """Return the resources of a process and of each descendant that can be read."""
    uses: list[ProcessUse] = []
    pids, room = [root], FILES_MAX
    is_listed = os.path.exists("/proc/%d/task/%d/children" % (root, root))  # not by all kernels
    scanned = {} if is_listed else scan_children()
    while pids and room > 0:
        pid = pids.pop(0)
        room -= 1
        with contextlib.suppress(OSError, ValueError, IndexError):
            uses.append(read_process(pid))
            pids += scanned.get(pid, ())
            for thread in os.listdir("/proc/%d/task" % pid)[:room] if is_listed else ():
                room -= 1
                with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                    pids += map(int, file.read().split())
    return uses


def measure_family(root: int) -> FamilyUse | None:
    """Return the resources of a process and its descendants; None if /proc does not show the process."""
    uses = read_family(root) if os.path.exists("/proc/%d/stat" % root) else []
    if not uses:
        return None
    return FamilyUse(sum(use.ticks for use in uses) / os.sysconf("SC_CLK_TCK"),
                     sum(use.pages for use in uses) * os.sysconf("SC_PAGE_SIZE"))


class Samples:
    """The samples of an attempt: at most SAMPLES_MAX over its whole life, and always the last two."""

    def __init__(self) -> None:
        self._early: list[Sample] = []
        self._last: list[Sample] = []
        self._distance = jobqueue.RENEW_SECONDS     # least seconds between two early ones

    def add(self, sample: Sample) -> None:
        """Add a sample. CPU time never decreases, also if a process was not waited for."""
        if self._last:
            sample = sample._replace(cpu_seconds=max(sample.cpu_seconds, self._last[-1].cpu_seconds))
        self._last.append(sample)
        if len(self._last) > 2:
            self._keep(self._last.pop(0))

    def _keep(self, sample: Sample) -> None:
        if self._early and sample.seconds - self._early[-1].seconds < self._distance:
            return
        self._early.append(sample)
        if len(self._early) > jobqueue.SAMPLES_MAX - 2:
            self._early, self._distance = self._early[::2], 2 * self._distance

    def all(self) -> list[Sample]:
        """Return the samples, the oldest first."""
        return self._early + self._last
