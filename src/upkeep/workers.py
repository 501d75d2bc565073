"""Rows of workers: reserved, live, renewed, removed.

A worker has a row and a lock file. The row counts towards NbMaxWorker, unless the worker is remote. The
worker and its runner hold the lock while they live. A Starter reserves the row and starts the process. The
process takes the lock and sets the row's state to idle. Heartbeats renew the row's lease. When the worker
leaves, it removes the row. The Reaper removes the rows of workers whose lock is free or whose lease is over.
"""
from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import VERSION
from ..base.time_and_text import random_token, shorten, storable
from ..store.connection import BY_CLAIM, Connection, Reader, private_path
from ..store.database import Database
from ..store.log_and_activity import record_activity
from ..store.state import recall, remember
from ..store.settings import Settings
from ..tasks.claims import Claims
from .worker_modes import START_RETRY_SECONDS, STOPPED, Modes

if TYPE_CHECKING:
    from ..base.types import WorkerRow


class Reserved(NamedTuple):
    """A reserved row of a worker: its id, and the name of its lock file."""

    id: int
    lock: str


class Workers:
    """The rows of worker processes, their lock files, and failed starts."""

    def __init__(self, database: Database, settings: Settings, claims: Claims,
                 modes: Modes) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._modes, self._clock = modes, database.clock
        self.locks = database.folder / "locks"
        self.log = private_path(database.path, "worker.log")

    def rows(self) -> Sequence[WorkerRow]:
        """Return all worker rows, each with the id, owner and function of the task it runs."""
        return self._database.all(
            "SELECT worker.*, task.id AS task_id, task.owner_id AS owner_id, "
            "task.function AS function FROM worker LEFT JOIN task ON task.id=(SELECT min(id) "
            "FROM task %s WHERE status=RUNNING AND worker_id=worker.id AND cancel_requested<2) "
            "ORDER BY worker.id" % BY_CLAIM)

    def reserve(self, transaction: Connection, mode: str, count: int = 1) -> list[Reserved]:
        """Add rows for up to `count` new workers, within NbMaxWorker."""
        room: int = (self._settings.get("NbMaxWorker", transaction)
                     - transaction.value("SELECT count(*) FROM worker WHERE mode<>'remote'"))
        now = self._clock.now()
        reserved: list[Reserved] = []
        for _ in range(min(count, room)):
            lock = random_token(12)
            worker_id = transaction.insert("worker", {
                "machine": self._claims.machine, "boot": self._claims.leases.boot, "lock": lock,
                "mode": mode, "state": "starting", "version": VERSION, "started_at": now,
                **self._lease(now)})
            reserved.append(Reserved(worker_id, lock))
        return reserved

    def arrive(self, worker_id: int, lock: str, proven: bool, pid: int) -> bool:
        """Mark a reserved row as live; return False if it was removed meanwhile."""
        with self._database.transaction(durable=False) as transaction:
            changed = transaction.update(
                "worker", {"state": "idle", "pid": pid, "lock_proven": proven},
                "id=? AND lock=? AND state='starting'", (worker_id, lock))
            if changed:
                remember(transaction, "start_failure", None)
                record_activity(transaction, self._clock.now(), "worker_started", worker_id=worker_id,
                     machine=self._claims.machine)
            return changed == 1

    def heartbeat(self, transaction: Connection, worker_id: int, state: str, tasks: int,
                  runner: tuple[int | None, str | None] = (None, None)) -> None:
        """Store a worker's heartbeat, with its runner's pid and start time, if the worker still has a row."""
        lease = self._lease(self._clock.now())
        transaction.run_later(
            "UPDATE worker SET state=?, tasks=?, runner_pid=?, runner_birth=?, %s WHERE id=?"
            % ", ".join(name + "=?" for name in lease),
            (state, tasks, *runner, *lease.values(), worker_id))

    def _lease(self, now: float) -> dict[str, float]:
        seconds = self._database.lease_seconds
        return {"seen_at": now, "lease_wall": now + seconds,
                "lease_monotonic": self._clock.monotonic() + seconds}

    def leave(self, transaction: Connection, worker_id: int, why: str,
              tasks: int | None = None) -> None:
        """Remove a worker's row. The process that holds the lock removes the lock file."""
        row = transaction.one("SELECT * FROM worker WHERE id=?", (worker_id,))
        if row:
            self._modes.learn_end(transaction, row, why == STOPPED)
            transaction.run("DELETE FROM worker WHERE id=?", (worker_id,))
            record_activity(transaction, self._clock.now(), "worker_ended", worker_id=worker_id,
                 machine=row["machine"],
                 message="%s after %d tasks" % (why, tasks) if tasks is not None else why)

    def remove_lock(self, lock: str, handle: int) -> None:
        """Remove a lock file that we hold."""
        with contextlib.suppress(OSError):
            (self.locks / lock).unlink()
        os.close(handle)

    def are_there(self) -> bool:
        """Return True if there is any worker, except remote ones."""
        return bool(self._database.value("SELECT 1 FROM worker WHERE mode<>'remote' LIMIT 1"))

    def rank(self, worker_id: int) -> int | None:
        """Return a worker's rank by age, 1 for the oldest; None for a worker that is stopping or has no row.

        Workers that are stopping and remote workers do not count.
        """
        count, last = self._database.row(
            "SELECT count(*), max(id) FROM worker "
            "WHERE id<=? AND state<>'stopping' AND mode<>'remote'", (worker_id,))
        return count if last == worker_id else None

    def idles_alone(self, worker_id: int, db: Reader | None = None) -> bool:
        """Return True if no older worker on this machine is idle."""
        return not (db or self._database).value(
            "SELECT 1 FROM worker WHERE id<? AND state='idle' AND machine=? AND mode<>'remote'",
            (worker_id, self._claims.machine))

    def start_failed(self, transaction: Connection, message: str) -> None:
        """Store why no worker could be started, and when to try again."""
        now, (least, most) = self._clock.now(), START_RETRY_SECONDS
        before = recall(transaction, "start_failure") or {"tries": 0, "next": 0}
        tries = before["tries"] + (now >= before["next"])   # a failure during the pause adds none
        pause = min(most, least * 2 ** min(tries - 1, 10)) * self._clock.uniform(1.0, 1.5)
        failure = {"at": now, "message": shorten(message, 300), "tries": tries, "next": now + pause}
        remember(transaction, "start_failure", failure)
        record_activity(transaction, now, "worker_start_failed", message=failure["message"])

    def last_words(self, since: float, until: float = math.inf) -> str:
        """Return the last line of the workers' log, after a colon and a space.

        Return an empty text if the log was not last written between these times.
        """
        with contextlib.suppress(OSError, IndexError):
            if since <= self.log.stat().st_mtime <= until:
                lines = self.log.read_text("utf-8", "replace").strip().splitlines()
                return ": " + storable(lines[-1])
        return ""
