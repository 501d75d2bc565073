"""Place: the worker's row and its lock."""
from __future__ import annotations

import os
import signal

import jobqueue
from jobqueue import Connection, JobQueue

CHECK_SECONDS = 1.0                     # seconds between two tests for a reason to leave
STOP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


class Place:
    """The worker's row and lock file, which show other processes that the worker lives.

    1. The starting process or the worker itself reserves a row, if there are fewer than NbMaxWorker. The
       row has the name of a lock file.
    2. The worker takes the lock, then sets the row to live. If the row was removed meanwhile, the worker
       removes the lock file.
    3. Each heartbeat renews the row's lease and stores state, tasks and runner. If the row is gone, the
       worker leaves.
    4. A worker that leaves removes the row, then the lock file. If a worker dies, its lock is free. Then
       other processes end its runner and remove row and lock file.
    """

    def __init__(self, queue: JobQueue, mode: str) -> None:
        self._queue, self._workers, self._database = queue, queue.workers, queue.database
        self._mode = mode
        self.id, self._lock_name, self.lock = 0, "", -1     # set by _arrive(); `lock` is a descriptor
        self.state, self.tasks = "idle", 0
        self.runner: tuple[int | None, str | None] = (None, None)   # its pid and start time
        self.stopping = ""              # the reason why the worker will leave

    def acquire(self, row: int | None, lock: str | None) -> bool:
        """Take a row and its lock; return True once they are ours. A service waits until there is room."""
        if row is not None and lock is not None and self._arrive(row, lock):
            return True
        while True:
            with self._database.transaction(durable=False) as transaction:
                reserved = self._workers.reserve(transaction, self._mode)
            if reserved or self._mode != "service":
                return bool(reserved) and self._arrive(*reserved[0])
            self._queue.tick.maybe("worker")
            self._database.clock.sleep(2.0)

    def _arrive(self, row: int, lock: str) -> bool:
        handle, proven = jobqueue.create_lock(self._workers.locks / lock)
        if self._workers.arrive(row, lock, proven, os.getpid()):
            self.id, self._lock_name, self.lock = row, lock, handle
            return True
        self._workers.remove_lock(lock, handle)
        return False

    def heartbeat(self, transaction: Connection, state: str | None = None) -> None:
        """Renew the row, with the worker's state."""
        self.state = state or self.state
        self._workers.heartbeat(transaction, self.id, self.state, self.tasks, self.runner)

    def stop(self, reason: str) -> None:
        """Make the worker leave. Only the first reason is kept."""
        self.stopping = self.stopping or reason

    def set_runner(self, pid: int, born: str | None) -> None:
        """Store the runner's pid and start time with the next heartbeat."""
        self.runner = pid, born

    def report_no_runner(self, error: OSError) -> None:
        """Store why there is no runner, and make the worker leave."""
        self.stop("no runner could be started")
        with self._database.transaction(durable=False) as transaction:
            self._workers.start_failed(transaction, jobqueue.explain_start_error(error))

    def leave(self) -> None:
        """Remove the row, if it is still there, then the lock file."""
        with self._database.deadline(), self._database.transaction(durable=False) as transaction:
            self._workers.leave(transaction, self.id, self.stopping, self.tasks)
        self._workers.remove_lock(self._lock_name, self.lock)

    def start_successor(self, least: int) -> None:
        """Start needed workers, at least `least`. If none is there after that, try again, up to 3 times."""
        for pause in (0, 2, 5, 15):
            self._database.clock.sleep(pause)
            self._queue.starter.start_needed(least)
            if not least or self._workers.are_there():
                return
