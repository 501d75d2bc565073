"""The Starter: reserves a worker's row and starts the process."""
from __future__ import annotations

import contextlib
import os

from ..base.head import TYPE_CHECKING
from ..base.limits import HOME, SLICE_SECONDS
from ..store.connection import Reader
from ..store.database import Database
from ..store.state import recall
from ..store.settings import Settings
from ..tasks.claims import Claims
from .worker_modes import START_ERRORS, START_RETRY_SECONDS, Interpreter, Modes, explain_start_error
from .workers import Workers
from .reaper import Reaper

if TYPE_CHECKING:
    from subprocess import Popen
    from typing import Any

WORKER_LOG_MAX_BYTES = 256 << 10


class Starter:
    """The starter of worker processes: as many as the work needs and NbMaxWorker allows."""

    def __init__(self, database: Database, settings: Settings, claims: Claims,
                 interpreter: Interpreter, modes: Modes, workers: Workers, reaper: Reaper) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._interpreter, self._modes, self._workers = interpreter, modes, workers
        self._reaper, self._clock = reaper, database.clock
        self._children: dict[Popen[bytes], int | None] = {}     # process -> id of its row; None: a helper

    def start_needed(self, least: int = 0) -> int:
        """Start the needed workers if the mode is detached; return the number of reserved rows."""
        self._poll_children()
        if not self.needed(least) or self._modes.decide().mode != "detached":
            return 0
        return len(self._start_all("detached", least))

    def work_slice(self, seconds: float = SLICE_SECONDS) -> int:
        """Start workers and wait for them for up to `seconds`; return how many attempts at tasks ended.

        This is for hosts that end a worker with the process that started it. If the workers are killed with
        this process, their locks are free, and other processes notice that at once.
        """
        self._poll_children()
        if not self._modes.works_in_slices() or not self.needed():
            return 0
        until = self._clock.monotonic() + seconds
        before = self._database.value("SELECT max(id) FROM activity") or 0
        started = self._start_all("slice", 0, max(0.1, seconds - 1.0))
        while started.intersection(self._children.values()) and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
            self._poll_children()
        return sum(row[0] in started for row in self._database.all(
            "SELECT worker_id FROM activity WHERE id>? "
            "AND event IN ('succeeded', 'failed', 'retry', 'cancelled')", (before,)))

    def needed(self, least: int = 0, db: Reader | None = None) -> int:
        """Return how many more workers to start: one for each claimable task, and at least `least` in all.

        Idle workers of other machines count towards NbMaxWorker. But they do not count as ready, since a
        queue may be for this machine only.
        """
        room: int = self._settings.get("NbMaxWorker", db)
        if not room:                    # 0 stops all work
            return 0
        db = db or self._database
        workers = db.all("SELECT state, machine FROM worker WHERE mode<>'remote'")
        room -= len(workers)
        if room <= 0:
            return 0
        ready = sum(row["state"] in ("idle", "starting") and row["machine"] == self._claims.machine
                    for row in workers)
        missing = max(self._claims.claimable(room + ready, db), least) - ready
        if missing <= 0:
            return 0
        failure = recall(db, "start_failure")
        # A longer pause than possible comes from a clock that was set back, and does not count.
        if failure and 0 < failure["next"] - self._clock.now() < 2 * START_RETRY_SECONDS[1]:
            return 0
        # After a failure try one: several may use up the host's processes, and leave none for a runner.
        return 1 if failure else min(room, missing)

    def start_helper(self, *arguments: str) -> None:
        """Start a process that does one thing: --send sends due messages, --backup makes the daily backup."""
        self._poll_children()
        self._launch(None, *arguments, str(self._database.folder))

    def _start_all(self, mode: str, least: int, *more: float) -> set[int]:
        """Reserve rows and start the needed workers; return the ids of all reserved rows."""
        with self._database.transaction(durable=False) as transaction:
            reserved = self._workers.reserve(transaction, mode, self.needed(least, transaction))
        for worker_id, lock in reserved:
            try:
                self._launch(worker_id, "--" + mode, str(worker_id), lock,
                             str(self._database.folder), *map(str, more))
            except START_ERRORS as error:
                with self._database.transaction(durable=False) as transaction:
                    transaction.run("DELETE FROM worker WHERE id=? AND state='starting'",
                                    (worker_id,))
                    self._workers.start_failed(transaction, explain_start_error(error))
        return {worker_id for worker_id, _ in reserved}

    def _launch(self, worker_id: int | None, *arguments: str) -> None:
        python, log = self._interpreter.path(), self._workers.log
        with contextlib.suppress(OSError):
            if log.stat().st_size > WORKER_LOG_MAX_BYTES:
                os.replace(log, "%s.old" % log)
        with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as out:
            child = self._start(
                [python, "-m", "worker", *arguments], stdout=out, stderr=out,
                start_new_session=True, cwd=str(HOME), env=self._interpreter.environment())
        self._children[child] = worker_id

    @staticmethod
    def _start(command: list[str], **how: Any) -> Popen[bytes]:
        import subprocess
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)

    def _poll_children(self) -> None:
        """Collect ended child processes. A worker that ended before it reported is a failed start."""
        for child, worker_id in list(self._children.items()):
            if child.poll() is None or self._children.pop(child, None) is None:
                continue                # it still runs, or another thread has collected it
            row = self._database.one("SELECT * FROM worker WHERE id=? AND state='starting'",
                                     (worker_id,))
            if row:
                why = "ended with exit code %d" % child.returncode
                with self._database.transaction(durable=False) as transaction:
                    self._reaper.bury(transaction, row, why)
