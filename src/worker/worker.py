"""The worker's loop: claim, hand over, wait, record.

A worker is one thread with one runner. Place is its row and its lock. Runners are the processes that run
tasks for it. Recorder writes how attempts ended. Loop handles signals and hands tasks to the runner. Worker
is the rest of the loop: claim, wait, record. One transaction records finished tasks and claims the next.

Rules: a worker leaves in a transaction that finds nothing to claim. So a process that adds a task after
that starts another worker. No wait is so long that a claim could be lost. While the database cannot be
written, the worker keeps the outcomes, tries again, and still handles signals.
"""
from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence

import jobqueue
from jobqueue import TYPE_CHECKING, Every, Generic, JobQueue, Outcome

from .child import Child
from .attempt import GRACE_SECONDS, TEMPORARY_ERRORS, AnyAttempt, Attempt, Batch, Pace
from .place import CHECK_SECONDS, Place
from .runners import Runners
from .recorder import Recorder

if TYPE_CHECKING:
    from jobqueue import AnyClock, ClaimedTask, Connection, JsonObject

WORKER_SETTINGS = ("NbMaxWorker", "linger", "linger_due", "stay_asleep", "worker_seconds",
                   "runner_tasks", "runner_memory", "runner_per_owner")


class Loop(Generic[AnyAttempt]):
    """The part of the loop that all workers share: signals, and the batch of their runner."""

    _runners: Runners                   # set by each kind of worker

    def __init__(self, clock: AnyClock, verbose: bool) -> None:
        self._clock, self._verbose = clock, verbose
        self._settings: JsonObject = {}     # not read between a claim and the task's start
        self._signals = 0               # number of stop signals received
        self._stopped_at: float | None = None
        self._batch: Batch[AnyAttempt] | None = None    # attempts that the runner has
        self._pace = Pace()
        self._checks = Every(CHECK_SECONDS, self._clock)
        self._code = jobqueue.file_stamps(jobqueue.CODE_FILES)

    def _attempt(self, child: Child, row: ClaimedTask) -> AnyAttempt:
        """Return the attempt of a claimed task, of this worker's kind of attempt."""
        raise NotImplementedError

    def _waited(self) -> float:
        """Return the seconds of the last wait for the write lock."""
        return 0.0

    def _count_signal(self, *_: object) -> None:
        self._signals += 1

    def _wind_up(self) -> None:
        """Take back unbegun tasks. End the running task at the second signal, or after GRACE_SECONDS."""
        self._stopped_at = self._stopped_at or self._clock.monotonic()
        if self._batch:
            self._batch.withdraw()
            if self._signals > 1 or self._clock.monotonic() - self._stopped_at > GRACE_SECONDS:
                for attempt in self._batch.running:
                    attempt.end("interrupted", "the worker was stopped")

    def _hand_over(self, rows: Sequence[ClaimedTask]) -> None:
        child = self._runners.child
        batch = self._batch = Batch(
            self._clock, child, [self._attempt(child, row) for row in rows], self._handle_end)
        self._say("begins %s: %s", rows[0]["function"], [row["id"] for row in rows])
        if self._settings["runner_per_owner"] == "yes":
            child.owner = rows[0]["owner_id"]
        batch.begin()

    def _handle_end(self, attempt: AnyAttempt, outcome: Outcome) -> None:
        self._pace.learn(attempt.row["function"], outcome, self._waited())
        leftovers = ", left behind: %s" % attempt.leftovers if attempt.leftovers else ""
        self._say("task %d: %s%s", attempt.row["id"], outcome.kind, leftovers)

    def _say(self, text: str, *values: object) -> None:
        if self._verbose:
            print(jobqueue.iso(self._clock.now()), text % values, file=sys.stderr, flush=True)


class Worker(Loop[Attempt]):
    """The loop of a worker; one thread, one runner.

    Each round:

    1. Handle signals. After the first signal the running task has GRACE_SECONDS to end. The second signal
       ends it at once.
    2. Leave if there is a reason and nothing is running.
    3. Claim tasks if there is no batch.
    4. Once in CHECK_SECONDS: test for a reason to leave, tick, and renew the row if that is due.
    5. If there is a batch: watch it, record its ended attempts, and claim the next tasks.
    6. If there is none: hear the runner's announcement, or rest.
    """

    def __init__(self, queue: JobQueue, mode: str, verbose: bool = False,
                 seconds: float | None = None) -> None:
        super().__init__(queue.database.clock, verbose)
        self._queue, self._mode = queue, mode
        self._claims, self._database = queue.claims, queue.database
        self._born = self._last_work = self._clock.monotonic()
        self._until = None if seconds is None else self._born + seconds
        self._read_settings()
        self._place = Place(queue, mode)
        self._runners = Runners(
            self._clock, self._database.folder, queue.catalogue, self._place, self._settings)
        self._recorder = Recorder(queue, self._place, self._say)
        self._seen_version: object = None   # the database's version at the last search for tasks
        self._next_due = -math.inf      # when the next task can be claimed, unless the database changes
        self._heartbeats = Every(jobqueue.RENEW_SECONDS, self._clock)

    def run(self, row: int | None = None, lock: str | None = None) -> bool:
        """Work until there is a reason to leave; return True if a stop signal came."""
        if not self._place.acquire(row, lock):
            return False
        self._say("worker %d is here", self._place.id)
        try:
            self._runners.catch_signals(self._count_signal)
            self._runners.start()
            while not self._is_over():
                pass
        finally:
            self._say("leaves: %s", self._place.stopping)
            self._runners.end()
        self._place.leave()
        if self._mode == "detached" and self._place.stopping == "limit":
            self._place.start_successor(int(self._has_work_soon()))
        return self._signals > 0

    def _is_over(self) -> bool:
        """Run one round; return True if it was the last. If the database cannot be written, try again
        later."""
        try:
            with self._database.deadline():
                self._heed_signals()
                if not self._batch and not self._place.stopping and self._is_idle_for_good():
                    self._leave_unless_needed()
                if not self._batch and self._place.stopping:
                    return True
                self._step()
        except TEMPORARY_ERRORS:
            if self._signals > 1:
                raise
            self._clock.sleep(0.2)
        return False

    def _heed_signals(self) -> None:
        if self._signals:
            self._runners.calm()
            self._place.stop(jobqueue.STOPPED)
            self._wind_up()

    def _attempt(self, child: Child, row: ClaimedTask) -> Attempt:
        return Attempt(self._queue, child, row)

    def _waited(self) -> float:
        return self._database.waited

    def _step(self) -> None:
        batch = self._batch
        if batch and not batch.running:
            return self._record_late(batch)
        if batch:                       # the batch is watched even if the database does not answer
            with contextlib.suppress(*TEMPORARY_ERRORS):
                self._check_self()
            batch.watch()
            return self._go_on(batch)
        child = self._runners.current
        rows = self._claim_next() if child and child.ready else []
        if rows:
            return self._begin(rows)
        self._check_self()
        if not self._runners.current:   # the last runner could not be replaced
            self._runners.start()
        elif not self._runners.current.ready:
            if self._runners.hear():
                self._seen_version, self._next_due = None, self._clock.now()
        else:
            self._rest()

    def _record_late(self, batch: Batch[Attempt]) -> None:
        """Record the outcomes of a batch that could not be recorded before, and put back its unbegun tasks.

        This comes before all other database calls, which could use up the round's deadline.
        """
        try:
            self._go_on(batch)
        except TEMPORARY_ERRORS:
            if self._checks.begin_if_due():
                self._recorder.hold(self._batch)
            raise

    def _check_self(self) -> None:
        """Test for a reason to leave, tick, and renew the row, if that is due."""
        if not self._checks.begin_if_due():
            return
        self._read_settings()
        now, rank = self._clock.monotonic(), self._queue.workers.rank(self._place.id)
        is_old = now - self._born > self._settings["worker_seconds"] and self._mode != "service"
        if (is_old or self._until is not None and now > self._until
                or jobqueue.file_stamps(self._code) != self._code):
            self._place.stop("limit")
        elif not rank:
            self._place.stop("its row is gone")
        elif rank > self._settings["NbMaxWorker"]:
            self._place.stop("too many workers")
        self._queue.tick.maybe("worker")
        if self._heartbeats.begin_if_due():
            self._recorder.hold(self._batch)

    def _read_settings(self) -> None:
        self._settings.update((name, self._queue.settings.get(name)) for name in WORKER_SETTINGS)

    def _is_idle_for_good(self) -> bool:
        if self._mode == "service":
            return False
        has_waited = self._clock.monotonic() - self._last_work >= self._settings["linger"]
        if self._until is not None:
            child = self._runners.current
            has_waited = child is not None and child.ready and self._next_due > -math.inf
        return has_waited and not self._has_work_soon()

    def _has_work_soon(self, transaction: Connection | None = None) -> bool:
        """Return True if a task becomes claimable while this worker may still wait."""
        alone = self._queue.workers.idles_alone(self._place.id, transaction)
        due: float | None = self._queue.tick.next_work(alone, transaction)
        if self._mode == "slice":       # a web request waits for this worker: only a queue's rate counts
            due = self._claims.rate_opens(transaction)
        patience: float = self._settings["linger_due"]
        if self._until is not None:
            patience = self._until - self._clock.monotonic()
        elif alone and self._settings["stay_asleep"] == "yes":
            patience = math.inf
        return due is not None and due <= self._clock.now() + patience

    def _leave_unless_needed(self) -> None:
        """Leave in a transaction that finds nothing to claim. So no process that adds a task counts on it."""
        with self._database.transaction(durable=False) as transaction:
            self._claims.promote(transaction, self._clock.now())
            if self._claims.claimable(1, transaction) or self._has_work_soon(transaction):
                self._seen_version = None
                return
            self._queue.workers.leave(transaction, self._place.id, "idle", self._place.tasks)
        self._place.stop("idle")

    def _claim_next(self) -> list[ClaimedTask]:
        """Claim tasks if there may be some; return their rows. Replace a stale runner instead."""
        version = self._database.version_seen()
        if version == self._seen_version and self._clock.now() < self._next_due:
            return []
        rows: list[ClaimedTask] = []
        self._next_due = now = self._clock.now()
        if not self._claims.claimable(1):
            moments = (self._claims.next_due(), self._claims.rate_opens(),
                       None if self._database.hears_all else now + 1.0)
            self._next_due = min((at for at in moments if at is not None), default=math.inf)
        if self._next_due <= now:
            if self._runners.is_stale():
                self._runners.start()
                return []
            with self._database.transaction(durable=False) as transaction:
                owner = self._runners.child.owner
                rows = self._claims.claim(transaction, self._place.id, now, owner_id=owner)
                if rows:
                    self._place.heartbeat(transaction, "busy")
            if not rows and owner is not None:      # a fresh runner can run another owner's task
                self._runners.start()
        self._seen_version = version
        return rows

    def _rest(self) -> None:
        """Wait before the next search for tasks. The longer the worker is idle, the longer it waits."""
        idle, alarm = self._clock.monotonic() - self._last_work, self._database.alarm
        pause = 0.5 if idle > 30 else min(0.1, 0.003 * max(1, idle) ** 2)
        if self._database.journal != "wal" or (idle > 1 and alarm is not None):
            pause = 1.0                 # the database's alarm ends the wait
        self._database.calm()
        if alarm is not None and self._database.version_seen() != self._seen_version:
            return                      # the database has changed meanwhile
        due = self._next_due - self._clock.now()
        self._runners.rest(min(pause, due) if due > 0 else pause, alarm)

    def _begin(self, rows: Sequence[ClaimedTask]) -> None:
        self._database.ring()
        self._hand_over(rows)

    def _handle_end(self, attempt: Attempt, outcome: Outcome) -> None:
        super()._handle_end(attempt, outcome)
        self._place.tasks += 1
        self._last_work = self._clock.monotonic()

    def _go_on(self, batch: Batch[Attempt]) -> None:
        """Record the ended attempts if that is due. If the batch is done, begin the next one."""
        if not batch.running:
            batch.child.withdraw()
            fresh = batch.child.death is not None or self._runners.is_stale()
            pace = None if fresh or self._place.stopping else self._pace
            remaining = self._settings["runner_tasks"] - batch.child.tasks
            rows = self._recorder.record(batch, pace, remaining)
            self._batch = self._seen_version = None
            if fresh and not self._place.stopping:
                self._runners.start()
            if rows:
                self._begin(rows)
        elif self._clock.monotonic() > batch.record_by:     # the ended attempts can wait no longer
            batch.withdraw()
            self._recorder.record(batch)
            self._pace.slow_down()
