"""Attempts that the runner has in hand: watched, kept alive, ended.

A batch is one attempt, or several quick ones that the runner runs in a row. The first of them runs. It is
watched until it has an outcome; then the clock of the next starts. WatchedAttempt watches, its subclasses
store, Batch keeps the order, and Pace decides how many tasks make a batch.

An outcome takes this path: the runner's message, receive(), check(), Batch.ended, Recorder, end_all().

Rules: the owner's code can write into the runner's channel, so each message of the runner is checked like
a request. Every write about an attempt names its claim, or follows a test of the claim in the same
transaction. If the disk is full or the database busy for a while, the attempt goes on, and its state is
written later. It is ended if the claim cannot even be read for so long that another worker may have it.
"""
from __future__ import annotations

import contextlib
import math
import resource
import signal
import time
from collections.abc import Callable

import jobqueue
from jobqueue import (TYPE_CHECKING, Connection, Generic, JobQueue, JobQueueError, Outcome,
                      append_log)

from .runner import BATCH_MAX, Refusal
from .log import LogPipe
from .samples import Sample, Samples, measure_family
from .child import Child, Death

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from jobqueue import AnyClock, ClaimedTask, FileSite, JsonObject

    from .outcomes import Report
    from .runner import RunOrder, ToRunner

GRACE_SECONDS = 5.0                     # from TERM to KILL
DYING_SECONDS = 0.5                     # from the end of the channel to the end of the process
STORE_SECONDS = 1.0                     # between two writes of log and progress
LOOK_SECONDS = 1.0                      # between two tests of the cancel flag
BATCH_AFTER = 8                         # quick ends of a function in a row, after which it runs in batches
BATCH_SECONDS = 0.05                    # an outcome in a batch may wait so long to be recorded
TEMPORARY_ERRORS = jobqueue.StorageFull, jobqueue.Busy

# Columns that a task of Django sees in its context.
ORDER_COLUMNS = ("queue", "priority", "run_at", "created_at", "max_retries", "retries_left", "worker_id")
KINDS_FROM_RUNNER = "succeeded", "error", "fail", "unknown_function"
REPORT_SCHEMA = {"type": "object", "required": ["progress", "message"], "properties": {
    "progress": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "message": {"type": ["string", "null"]}}, "additionalProperties": False}
# Keys of message["outcome"] that are not fields of Outcome.
REST_SCHEMA = {"type": "object", "properties": {
    "traceback": {"type": "string"}, "report": REPORT_SCHEMA, "left": {"type": "string"}}}


class WatchedAttempt:
    """An attempt in the runner's hands. Subclasses keep its claim: in the database, or at a site.

    1. make_run_order() returns the order for the runner. The claim of a task with on_crash=fail is first
       committed durably.
    2. `started` is set when it begins.
    3. check() is called again and again. It tests the time limit, a requested cancel, and whether the claim
       is in doubt. A claim in the database is in doubt once the Reaper marked it as suspect. Such a claim is
       also renewed here, and the output is stored. For a remote worker's attempts its calls do that.
    4. end() records why it must end; only the first reason counts. Then _hold_or_signal() sends TERM, and
       KILL after GRACE_SECONDS. After a lost claim it sends KILL at once: another worker may run the task.
    5. The outcome that the runner sent counts if the function returned, or if no signal had been sent. After
       a lost claim it never counts. Otherwise the outcome follows from `ending`, or from the runner's death.
    """

    def __init__(self, clock: AnyClock, child: Child, row: ClaimedTask) -> None:
        self.row, self._clock, self._child = row, clock, child
        self.key = row["id"], row["claim"]
        self.log = LogPipe()            # empty until the task is handed over
        self.report: Report | None = None       # progress that is not stored yet
        self.traceback: str | None = None       # the last piece of the log
        self.samples: list[Sample] | None = None    # samples that are not stored yet
        self._all_samples: Samples | None = None
        # When it began; when the claim was last tested; when the last sample was due.
        self.started = self._looked_at = self._sampled_at = self._clock.monotonic()
        # The last time at which the claim was safe. For a remote attempt: when the confirming call was sent.
        self._safe_at: float = row.get("claimed", self.started)
        self._is_doubted = False        # the last test did not prove that the claim is safe
        self._requests: list[JsonObject] = []   # tasks that the function adds, until the whole request has
                                                # arrived
        self.answered_adds = 0               # number of answered requests to add tasks
        self.reported: Outcome | None = None    # the outcome that the runner sent
        self._has_returned = False      # the function returned, and did not call sys.exit()
        self.leftovers: str | None = None   # the state that the task left in the runner
        self.ending: str | None = None  # kind of outcome if this worker ends it
        self._why: str | None = None
        self._signalled_at: float | None = None

    # Each subclass implements these; only given_names() has a default.

    def lease_seconds(self) -> float:
        """Return how long a claim holds without being renewed."""
        raise NotImplementedError

    def site(self) -> FileSite | None:
        """Return where its files are; None if they are here."""
        raise NotImplementedError

    def given_names(self) -> dict[str, str]:
        """Return the names of the files here that the task was given, by their keys."""
        return {}

    def _prepare_start(self) -> bool:
        """Store everything that must be stored before the start; return False if the claim was lost."""
        raise NotImplementedError

    def _test_claim(self) -> None:
        """Test for a cancel, a lost claim, and a mark as suspect."""
        raise NotImplementedError

    def _store(self, now: float) -> None:
        """Store the output and the progress if that is due."""
        raise NotImplementedError

    def _enqueue(self, requests: list[JsonObject]) -> None:
        """Request the tasks that the function adds, all or none, for the same owner."""
        raise NotImplementedError

    def _answer_results(self) -> bool:
        """Answer with the results of the predecessors; return False if that is not allowed here."""
        raise NotImplementedError

    def _answer_task(self, task_id: int) -> None:
        """Answer with a task of the same owner, for get_result() of Django."""
        raise NotImplementedError

    # Common to all subclasses.

    def make_run_order(self) -> RunOrder | None:
        """Prepare the start; return the order for the runner, or None if the claim was lost."""
        if not self._prepare_start():
            return None
        row = self.row
        return {"attempt": row["attempts"] - row["put_backs"], "site": self.site(),
                "given": self.given_names(), "id": row["id"], "owner": row["owner"],
                "crashes": row["crashes"], "claim": row["claim"],
                "function": row["function"], "arguments": row["arguments"],
                "more": {name: row.get(name) for name in ORDER_COLUMNS}}

    def end(self, kind: str, why: str | None = None) -> None:
        """Record why the attempt must end; only the first reason counts."""
        if self.ending is None:
            self.ending, self._why = kind, why

    def receive(self, message: JsonObject) -> bool:
        """Handle a message of the runner; False if it is against the rules."""
        if message.get("claim") != self.row["claim"] or self.reported is not None:
            return False
        if "outcome" in message:
            return self._receive_outcome(message["outcome"])
        if "report" in message and not jobqueue.check_value(
                REPORT_SCHEMA, message["report"], "report"):
            self.report = message["report"]
        elif isinstance(message.get("enqueue"), list):
            self._requests += message["enqueue"]
            if not message.get("more"):
                requests, self._requests = self._requests, []
                self._enqueue(requests)
        elif isinstance(message.get("task"), int):
            self._answer_task(message["task"])
        else:
            return message.get("results") is True and self._answer_results()
        return True

    def _receive_outcome(self, sent: Any) -> bool:
        """Keep the outcome that the runner sent; return False if it is invalid."""
        if jobqueue.check_value(REST_SCHEMA, sent, "outcome"):
            return False
        try:
            outcome = Outcome.parse(sent, KINDS_FROM_RUNNER)
        except jobqueue.Invalid:
            return False
        self.report = sent.get("report", self.report)
        self.traceback, self.leftovers = sent.get("traceback"), sent.get("left")
        if outcome.kind == "succeeded":     # with an error_type the function called sys.exit(0)
            self._has_returned, outcome.error_type = outcome.error_type is None, None
        self.reported = outcome
        return True

    def check(self) -> Outcome | None:
        """Read the output; return the Outcome if the attempt has ended.

        Otherwise keep the claim, or signal the runner if the attempt must end.
        """
        self.log.read()
        outcome = self._outcome() if self.reported or self._child.ended or self.ending else None
        if outcome is None:
            self._hold_or_signal(self._clock.monotonic())
        return outcome

    def reply(self, message: ToRunner) -> None:
        """Answer the function, which waits for added tasks or for results."""
        self._child.reply(message)

    def patience(self) -> float:
        """Return for how many seconds the attempt needs no check."""
        if self.ending:
            return 0.05
        limit: float = self.started + self.row["timeout"] - self._clock.monotonic()
        return max(0.0, min(LOOK_SECONDS, limit))

    def drop(self) -> None:
        """Drop output, progress and samples after they were stored, or because they cannot be stored."""
        self.log.pieces = []
        self.report = self.traceback = self.samples = None

    def _hold_or_signal(self, now: float) -> None:
        """Test the claim, store the output, and signal the runner if the attempt must end."""
        if now - self.started > self.row["timeout"]:
            self.end("timeout", "ran longer than %g s" % self.row["timeout"])
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            with contextlib.suppress(*TEMPORARY_ERRORS):
                self._test_claim()
                self._safe_at = self._safe_at if self._is_doubted else now
        if not self.is_claim_safe(now):
            self.end("lost")
        self._store(now)
        if not self.ending:
            return
        if self._signalled_at is None:
            self._signalled_at = now
            self._child.signal(signal.SIGKILL if self.ending == "lost" else signal.SIGTERM)
        elif now - self._signalled_at > GRACE_SECONDS:
            self._child.signal(signal.SIGKILL)

    def _take_sample(self, now: float) -> None:
        """Measure the runner if that is due. Samples are stored only when the claim is renewed."""
        if now - self._sampled_at <= jobqueue.RENEW_SECONDS:
            return
        self._sampled_at = now
        used = measure_family(self._child.process.pid)
        if used:
            self._all_samples = self._all_samples or Samples()
            cpu_seconds = max(0.0, used.cpu_seconds - self._child.cpu_seconds)
            self._all_samples.add(Sample(round(now - self.started, 1), round(cpu_seconds, 2), used.memory))
            self.samples = self._all_samples.all()

    def is_claim_safe(self, now: float) -> bool:
        """Return True if, as far as this worker knows, no other worker can claim the task soon."""
        fence = self.lease_seconds() - jobqueue.LEASE_SECONDS + jobqueue.SELF_FENCE_SECONDS
        return now - self._safe_at <= fence - 2 * jobqueue.RENEW_SECONDS

    def _outcome(self) -> Outcome | None:
        """Return the outcome if the attempt has ended: the sent one, or one from the runner's death."""
        reported = self.reported
        if reported is not None and self.ending != "lost":
            self._child.memory = reported.peak_memory or 0
            self._child.cpu_seconds += reported.cpu_seconds or 0.0
            if self._signalled_at is None or self._has_returned:
                return reported
            return self._make_outcome(Death(0, reported.cpu_seconds or 0.0, reported.peak_memory or 0))
        if self._child.ended and self.ending is None:
            until = time.monotonic() + DYING_SECONDS
            while not self._child.is_dead() and time.monotonic() < until:
                time.sleep(0.01)
            if self._child.death is None:
                self.end("crashed", "the process that ran it stopped its messages to the worker")
        if self._child.death is None:
            return None
        self.log.read()
        return self._make_outcome(self._child.death)

    def _make_outcome(self, death: Death) -> Outcome:
        """Return the outcome of an attempt that this worker ended, or whose runner died."""
        code, cpu, memory = death
        kind = self.ending or "crashed"
        died = jobqueue.name_signal(-code) if code < 0 else "exit code %d" % code
        message = self._why or "the process that ran it ended with %s" % died
        types = {"timeout": "Timeout", "crashed": "Crashed", "interrupted": "Interrupted"}
        return Outcome(kind, None, types.get(kind), message if kind in types else None, None,
                       self._clock.monotonic() - self.started, cpu, memory)


class Attempt(WatchedAttempt):
    """An attempt whose claim is in the database."""

    def __init__(self, queue: JobQueue, child: Child, row: ClaimedTask) -> None:
        super().__init__(queue.database.clock, child, row)
        self._queue, self._claims, self._database = queue, queue.claims, queue.database
        # When storing was last tried, and when the claim was renewed.
        self._tried_store_at = self._renewed_at = self.started
        self._seen_version: object = None

    def lease_seconds(self) -> float:
        """Return how long a claim holds without being renewed."""
        return self._database.lease_seconds

    def site(self) -> FileSite | None:
        """Return where its files are; None if they are here."""
        return self._queue.files.site()

    def given_names(self) -> dict[str, str]:
        """Return the names of the files that the task was given, by their keys."""
        return self._queue.files.given_names(self.row)

    def _prepare_start(self) -> bool:
        if self.row["on_crash"] != "fail":
            return True
        with self._database.transaction(durable=True) as transaction:   # a power cut must not lose it
            return self.renew(transaction)

    def renew(self, transaction: Connection) -> bool:
        """Hold the claim for another lease; False if it was lost."""
        return self._claims.renew(transaction, *self.key, self._clock.now(), samples=self.samples)

    def _enqueue(self, requests: list[JsonObject]) -> None:
        def add() -> ToRunner:
            added = self._queue.add_all(requests, self.row["owner_id"], self.row["id"])
            return {"ids": added.ids, "created": added.new}
        self._answer(add)

    def _answer_results(self) -> bool:
        self._answer(lambda: {"results": self._queue.tasks.results_before(self.row["id"])})
        return True

    def _answer_task(self, task_id: int) -> None:
        self._answer(lambda: {"task": jobqueue.result_view(self._queue, task_id, self.row["owner_id"])})

    def _answer(self, make_reply: Callable[[], ToRunner]) -> None:
        try:
            self.reply(make_reply())
        except JobQueueError as error:
            kind = type(error).__name__
            self.reply({"refused": Refusal(kind, error.detail, error.errors, error.retry_after)})

    def _test_claim(self) -> None:
        version = self._database.version_seen()
        if version == self._seen_version and self._database.hears_all:
            return
        self._seen_version = version
        cancel_requested = self._claims.cancel_asked(*self.key)
        if cancel_requested is None:
            self.end("lost")
        elif cancel_requested:
            self.end("cancelled", "cancelled while it ran")
        self._is_doubted = bool(self._claims.leases.is_suspect(*self.key))

    def _store(self, now: float) -> None:
        has_news = self.log or self.report or now - self._renewed_at > jobqueue.RENEW_SECONDS
        if not (has_news and now - self._tried_store_at > STORE_SECONDS or self.log.is_full):
            return
        self._tried_store_at = now
        self._take_sample(now)          # before the database is locked
        with contextlib.suppress(*TEMPORARY_ERRORS):
            with self._database.transaction(durable=False) as transaction:
                if self.renew(transaction):
                    self._write(transaction, final=False)
                else:
                    self.end("lost")
            self._renewed_at = now
            self.drop()

    def write_ending(self, transaction: Connection) -> None:
        """Store the rest of its output, in the transaction that records its outcome."""
        if (not (self.log or self.log.has_rest or self.report or self.traceback)
                or self._claims.cancel_asked(*self.key, transaction) is None):
            return
        if self.traceback:
            self.log.decode_pieces(final=True)
            self.log.put(self.traceback)
            self.traceback = None
        self._write(transaction, final=True)

    def _write(self, transaction: Connection, final: bool) -> None:
        now = self._clock.now()
        for start, text in self.log.decode_pieces(final):
            append_log(transaction, now, self.row["id"], self.row["attempts"], start, text)
        if self.report:
            self._claims.report(transaction, *self.key, self.report["progress"],
                                self.report["message"])


if TYPE_CHECKING:
    AnyAttempt = TypeVar("AnyAttempt", bound=WatchedAttempt)
else:
    AnyAttempt = None


class Batch(Generic[AnyAttempt]):
    """The attempts that the runner has in hand. Ended and unbegun ones stay until they are recorded."""

    def __init__(self, clock: AnyClock, child: Child, attempts: list[AnyAttempt],
                 note_end: Callable[[AnyAttempt, Outcome], None]) -> None:
        self._clock = clock
        self._handle_end = note_end       # called with each attempt that has ended
        self.child = child
        self.running = attempts         # the first has begun
        self.unbegun: list[AnyAttempt] = []     # taken back from the runner, or never sent
        self.ended: list[tuple[AnyAttempt, Outcome]] = []
        self.record_by = math.inf       # the latest time for recording the ended attempts

    def begin(self) -> None:
        """Hand the batch over to the runner.

        Its attempts become unbegun instead if their start cannot be stored. They do so, too, if the worker
        stood still so long that another worker may have claimed the tasks. A lost claim's task is dropped.
        """
        is_claim_safe = self.running[0].is_claim_safe(self._clock.monotonic())
        try:
            orders_made = [attempt.make_run_order() for attempt in self.running if is_claim_safe]
        except TEMPORARY_ERRORS:
            orders_made = []
        if not orders_made:
            self.running, self.unbegun = [], self.running
            return
        orders = [order for order in orders_made if order is not None]
        # Only the start of a task with on_crash=fail tests the claim. Such a task is a batch of its own.
        if len(orders) < len(orders_made):
            self.running = []
            return
        for attempt, end in zip(self.running, self.child.hand_over(orders)):
            attempt.log.attach(end)
        now = self._clock.monotonic()
        self.running[0].started = now
        self.record_by = now + BATCH_SECONDS if len(orders) > 1 else math.inf

    def watch(self) -> None:
        """Wait for the runner, handle its messages, and keep the running attempt alive."""
        first = self.running[0]
        seconds_left = self.record_by - self._clock.monotonic()
        self.child.wait(min(seconds_left, first.patience()), first.log.end)
        if self.child.ended or first.ending:
            self.child.is_dead()        # called first: an outcome sent before its death is still read
        for message in self.child.messages():
            if not self.running or not self.running[0].receive(message):
                self.child.ended = True
                break
            if self.running[0].reported:
                self._check()
        if self.running and (self.child.ended or self.running[0].ending):
            self.withdraw()
        self._check()

    def _check(self) -> None:
        outcome = self.running[0].check() if self.running else None
        if outcome is None:
            return
        attempt = self.running.pop(0)
        self.child.has_leftovers |= attempt.log.close() or attempt.leftovers is not None
        self.ended.append((attempt, outcome))
        self._handle_end(attempt, outcome)
        if self.child.has_leftovers:
            self.withdraw()
        now = self._clock.monotonic()
        self.record_by = min(self.record_by, now + BATCH_SECONDS)
        if self.running:
            self.running[0].started = now

    def withdraw(self) -> None:
        """Take back the orders that the runner has not begun."""
        begun = len(self.running) - self.child.withdraw()
        for attempt in self.running[begun:]:
            attempt.log.close()
        self.unbegun += self.running[begun:]
        del self.running[begun:]


class Pace:
    """The number of tasks that may be claimed at once. It exceeds 1 while one function keeps ending quickly.

    A batch should run for at most half of BATCH_SECONDS. Each task needs two descriptors while it is
    handed over, so the limit of open files limits the batch, too. If a wait for the write lock is longer
    than the batch runs, many workers compete. Then batches grow faster, so that all workers wait less
    often.
    """

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_unlimited = limit == resource.RLIM_INFINITY
        self._most = BATCH_MAX if is_unlimited else max(1, min(BATCH_MAX, limit // 4 - 16))
        self.function: str | None = None    # the function that keeps ending quickly
        # Quick ends in a row, each counted as 3 after a long wait for the lock; the moving mean of their
        # seconds.
        self._count, self._seconds = 0, 0.0
        self.size = 1                       # tasks that may be claimed

    def learn(self, function: str, outcome: Outcome, waited: float = 0.0) -> None:
        """Learn from an ended attempt and the last wait for the write lock."""
        seconds = outcome.seconds or 0
        if outcome.kind != "succeeded" or seconds > BATCH_SECONDS:
            self._begin_again(None)
        elif function != self.function:
            self._begin_again(function)
        step = 3 if waited > self.size * self._seconds else 1
        self._count += step
        self._seconds += (seconds - self._seconds) / 8
        if self._count > BATCH_AFTER:
            room = int(BATCH_SECONDS / 2 / max(self._seconds, 1e-4))
            self.size = max(1, min(self.size + step, self._most, room))

    def slow_down(self) -> None:
        """Halve the next batch, because one was late."""
        self.size = max(1, self.size // 2)

    def _begin_again(self, function: str | None) -> None:
        self.function, self._count, self._seconds, self.size = function, 0, 0.0, 1
