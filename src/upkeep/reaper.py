"""The Reaper: workers that died or are lost, and their tasks.

A worker has died if its lock is free. It is lost if its lease is over. Both count as dead here.
"""
from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import LEASE_SECONDS, TICK_SECONDS
from ..base.time_and_text import Every, end_group
from ..store.connection import Connection
from ..store.database import Database
from ..store.log_and_activity import record_activity
from ..tasks.leases import lease_name
from ..tasks.claims import Claims
from .worker_modes import Modes, grab_if_free
from .workers import Workers

if TYPE_CHECKING:
    from ..base.types import WorkerRow

STARTING_SECONDS = 10.0         # how long a started process may take to lock its lock file
STARTING_LOCKED_SECONDS = 60.0  # how long a process with its lock may take to report


class DeadWorker(NamedTuple):
    """A dead worker: its row, the descriptor of its lock file (None: not held), and why it is dead."""

    row: WorkerRow
    handle: int | None
    why: str


class Reaper:
    """The Reaper: finds dead workers, removes their rows and ends their tasks.

    1. Check each row. A worker is dead if its proven lock is free. It is also dead if its lease is over
       and its mark as suspect has expired. A reserved worker is dead if it did not report in time.
    2. Kill processes that a dead worker may have left. One is a runner with the start time in the row. The
       other is a silent worker that still holds its lock. No other pid is ever signalled.
    3. In one transaction remove the rows, unless they have changed, and end the tasks as crashed.
    4. Remove lock files last, and only those that this process holds.
    """

    def __init__(self, database: Database, claims: Claims, workers: Workers, modes: Modes) -> None:
        self._database, self._claims, self._workers, self._modes = database, claims, workers, modes
        self._leases, self._clock = claims.leases, database.clock
        self.burials = Every(TICK_SECONDS, self._clock)

    def bury_dead(self) -> None:
        """Remove dead workers, and end their tasks and the tasks whose leases are over."""
        self.burials.put_off(TICK_SECONDS)
        dead = self.find_dead()
        buried: set[int] = set()
        try:
            if dead or self._leases.lost((), self._clock.now()):
                buried = self._record(dead)
        finally:
            for row, handle, _ in dead:
                if handle is not None and row["id"] in buried:
                    self._workers.remove_lock(row["lock"], handle)
                elif handle is not None:    # the row has changed: the next check tests the lock again
                    os.close(handle)
        self._leases.mark_suspects(self._clock.now())

    def _record(self, dead: list[DeadWorker]) -> set[int]:
        with self._database.transaction(durable=False) as transaction:
            now = self._clock.now()
            buried = {row["id"] for row, _, why in dead if self.bury(transaction, row, why)}
            for task in self._leases.lost(buried, now, transaction):
                self._claims.end_lost(transaction, task, now)
        return buried

    def bury(self, transaction: Connection, row: WorkerRow, why: str) -> bool:
        """Remove a dead worker's row; return False if it has changed meanwhile."""
        if not transaction.run("DELETE FROM worker WHERE id=? AND state=? AND lease_monotonic=?",
                               (row["id"], row["state"], row["lease_monotonic"])):
            return False
        words = ""
        if row["state"] == "starting":
            words = self._workers.last_words(row["started_at"])
            self._workers.start_failed(transaction, "a started worker %s%s" % (why, words))
        record_activity(transaction, self._clock.now(), "worker_lost", worker_id=row["id"],
             machine=row["machine"], waited=max(0.0, self._clock.now() - row["seen_at"]),
             message=why + words)
        if not words and why != "silent":       # else it failed by itself, or its machine stood still
            self._modes.learn_end(transaction, row, True)
        return True

    def find_dead(self) -> list[DeadWorker]:
        """Return the dead workers, after killing their processes."""
        dead: list[DeadWorker] = []
        silent = self._leases.silent(self._clock.now())
        for row in self._database.all("SELECT * FROM worker"):
            is_silent = lease_name(row["lock"], row) in silent
            handle, why = self._examine(row, is_silent)
            if why and (self._end_runner(row) or is_silent):
                dead.append(DeadWorker(row, handle, why))
            elif handle is not None:
                os.close(handle)
        return dead

    def _examine(self, row: WorkerRow, is_silent: bool) -> tuple[int | None, str | None]:
        """Return the descriptor of a worker's lock if it was free, and why the worker is dead, or None."""
        path, boot = self._workers.locks / row["lock"], self._leases.boot
        if row["state"] == "starting" and (row["machine"], row["boot"]) == (
                self._claims.machine, boot):
            return self._look_at_starting(row, path)
        is_here = boot and row["boot"] == boot
        if row["lock_proven"] and (is_here or self._database.has_own_disk):
            handle = grab_if_free(path)         # locks of other machines cannot be tested
            if handle is not None:
                return handle, "died"
        # A stopped worker (SIGSTOP) may have a living runner. Both must end before the tasks run again.
        if not is_silent or (is_here and row["lock_proven"] and self._end_silent(row["pid"], path)):
            return None, None
        return None, "silent"

    def _look_at_starting(self, row: WorkerRow, path: Path) -> tuple[int | None, str | None]:
        age = self._database.lease_seconds + self._clock.monotonic() - row["lease_monotonic"]
        if not self._leases.boot:               # the monotonic clock may have begun again
            age = self._clock.now() - row["started_at"]
        handle = grab_if_free(path)
        held = handle is None and path.exists()
        late = age > (STARTING_LOCKED_SECONDS if held else STARTING_SECONDS)
        return handle, "did not report" if late else None

    def _end_runner(self, row: WorkerRow) -> bool:
        """Kill the runner of a dead worker; return False while it lives.

        A runner usually ends with its worker. A function may have closed the descriptors for that. Another
        user's runner cannot be killed: then the lease protects its task.
        """
        born = row["runner_birth"] if row["boot"] == self._leases.boot else None
        return end_group(row["runner_pid"], born, self._clock.sleep)

    @staticmethod
    def _end_silent(pid: int, path: Path) -> bool:
        """Kill a silent worker; return False if the process with this pid does not hold its lock."""
        with contextlib.suppress(OSError, TypeError):
            held = {os.readlink(entry.path) for entry in os.scandir("/proc/%d/fd" % pid)}
            if str(path.resolve()) in held:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def sweep_locks(self) -> None:
        """Remove old lock files without a row. They are left by crashes."""
        in_use = {row[0] for row in self._database.all("SELECT lock FROM worker")}
        for path in self._workers.locks.iterdir():
            with contextlib.suppress(OSError):
                age = self._clock.now() - path.stat().st_mtime
                if path.name not in in_use and age >= LEASE_SECONDS:
                    path.unlink()
