"""Attempts that the runner has in hand: watched, kept alive, ended.

A batch is what the runner has in hand: one attempt, or several quick ones that it runs in a row.
The first of them runs: it is watched until it has an outcome, then the clock of the next starts.
Attempt watches and stores, Batch keeps the order, Pace decides how many tasks make a batch.
Rules: the owner's code can write into the runner's channel, so what the runner says is checked
like a request. Everything that is written about an attempt names its claim. And a full disk or
a busy database ends no attempt: it is written later.
"""
import contextlib
import math
import resource
import signal
import time

import jobqueue
from jobqueue import RESULT_MAX_DEPTH, JobQueueError, Outcome, append_log, is_deep

from .runner import BATCH_MAX
from .log import LogPipe

GRACE_SECONDS = 5.0                     # from TERM to KILL
DYING_SECONDS = 0.5                     # from the end of the channel to that of the process
STORE_SECONDS = 1.0                     # how often log and progress reach the database
LOOK_SECONDS = 1.0                      # how often a running task's cancel flag is looked at
BATCH_AFTER = 8                         # so many quick ends of a function make batches of it
BATCH_SECONDS = 0.05                    # how late an outcome of a batch may be recorded
WRITE_LATER = jobqueue.StorageFull, jobqueue.Busy

_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
REPORT_SCHEMA = {"type": "object", "required": ["progress", "message"], "properties": {
    "progress": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "message": {"type": ["string", "null"]}}, "additionalProperties": False}
# OUTCOME_FIELDS are those of Outcome; what a runner of newer code says besides is left out.
OUTCOME_SCHEMA = {"type": "object", "required": ["kind"], "properties": {
    "kind": {"enum": ["succeeded", "error", "fail", "unknown_function"]}, "result": _TEXT,
    "error_type": _TEXT, "error_message": _TEXT, "retry_after": _NUMBER, "seconds": _NUMBER,
    "cpu_seconds": _NUMBER, "peak_memory": {"type": "integer"}, "traceback": _TEXT,
    "report": REPORT_SCHEMA, "left": _TEXT}}
OUTCOME_FIELDS = set(OUTCOME_SCHEMA["properties"]) - {"traceback", "report", "left"}


def is_outcome(said):
    """True for an outcome as a runner tells it; its result is JSON that all readers take."""
    if jobqueue.check_value(OUTCOME_SCHEMA, said, "outcome"):
        return False
    result = said.get("result", "null")
    try:
        return result == "null" or not is_deep(jobqueue.read_json(result), RESULT_MAX_DEPTH)
    except (ValueError, RecursionError):
        return False


class Attempt:
    """An attempt in the runner's hands: watched, kept alive, and ended when it must be.

    1. make_order() says what the runner is told; on_crash=fail is first noted for good.
    2. `started` is set when it begins.
    3. check(), again and again: renew the claim, store what it prints, look whether it is to be
       cancelled, whether its time is over, or whether others doubt that this worker lives.
    4. end() for the first reason that comes: TERM, after GRACE_SECONDS KILL. A lost claim is KILL
       at once, since another worker may run the task from then on.
    5. Its Outcome is what the runner said in time, else how the runner died.
    """

    def __init__(self, queue, child, row):
        self.row, self._queue, self._child = row, queue, child
        self._claims, self._database = queue.claims, queue.database
        self._clock = queue.database.clock
        self.key = row["id"], row["claim"]
        self.log = None                 # the LogPipe, once it was handed over
        self.report = self.traceback = None     # progress not stored yet; the log's last piece
        # When it began; when storing and looking were last tried, and when the claim was renewed.
        self.started = self._stored = self._looked = self._renewed = self._clock.monotonic()
        self._seen_version = None
        # When nobody was about to take the claim; of a remote one the site says that.
        self._unclaimed = row.get("claimed", self.started)
        self._is_doubted = False
        self._requests, self.enqueued = [], 0   # what it adds, until all of it came; how often
        self.said = None                # the Outcome in the runner's words
        self.left = None                # what it left in the runner
        self.ending = None              # kind of outcome if we end it
        self._why = self._killed_at = None

    def make_order(self):
        """What the runner is told, None if the claim was lost; what must be stored before is."""
        row = self.row
        if row["on_crash"] == "fail":   # it must be known to have begun even after a power cut
            with self._database.transaction(durable=True) as transaction:
                if not self.renew(transaction):
                    return None
        names = "id", "owner", "crashes", "claim", "function", "arguments"
        return {"attempt": row["attempts"] - row["put_backs"], "site": self.site(),
                **{one: row[one] for one in names}}

    def end(self, kind, why=None):
        """Have it ended, for the first reason that comes."""
        if self.ending is None:
            self.ending, self._why = kind, why

    def take(self, message):
        """Take what the runner says of it; False if that is against the rules."""
        if message.get("claim") != self.row["claim"] or self.said is not None:
            return False
        if "outcome" in message and is_outcome(message["outcome"]):
            said = message["outcome"]
            self.report = said.get("report", self.report)
            self.traceback, self.left = said.get("traceback"), said.get("left")
            self.said = Outcome(**{name: value for name, value in said.items()
                                   if name in OUTCOME_FIELDS})
        elif "report" in message and not jobqueue.check_value(
                REPORT_SCHEMA, message["report"], "report"):
            self.report = message["report"]
        elif isinstance(message.get("enqueue"), list):
            self._requests += message["enqueue"]
            if not message.get("more"):
                requests, self._requests = self._requests, []
                self._enqueue(requests)
        elif message.get("results") is True:
            self._answer(lambda: {"results": self._queue.tasks.results_before(self.row["id"])})
        else:
            return False
        return True

    def check(self):
        """The Outcome if it has ended; else what it printed is read and it is kept alive."""
        self.log.read()
        outcome = self._outcome() if self.said or self._child.ended or self.ending else None
        if outcome is None:
            self._keep(self._clock.monotonic())
        return outcome

    def reply(self, message):
        """Answer the function, which waits for what became of the tasks that it adds."""
        self._child.reply(message)

    def patience(self):
        """How many seconds it can be left alone."""
        if self.ending:
            return 0.05
        limit = self.started + self.row["timeout"] - self._clock.monotonic()
        return max(0.0, min(LOOK_SECONDS, limit))

    def site(self):
        """Where its files are, see Files.site()."""
        return self._queue.files.site()

    def renew(self, transaction):
        """Hold the claim for another lease; False if it was lost."""
        return self._claims.renew(transaction, *self.key, self._clock.now())

    def write_ending(self, transaction):
        """Store what is left, in the transaction that records the outcome."""
        if ((self.log or self.report or self.traceback)
                and self._claims.cancel_asked(*self.key) is not None):
            if self.traceback:
                self.log.take_pieces(final=True)
                self.log.put(self.traceback)
                self.traceback = None
            self._write(transaction, final=True)

    def drop(self):
        """Forget what was stored, or cannot be."""
        self.log.pieces = []
        self.report = self.traceback = None

    def _enqueue(self, requests):
        """Add what the function asks for, at once and for the same owner."""
        self._answer(lambda: {"ids": self._queue.add(requests, self.row["owner_id"])})

    def _answer(self, find):
        try:
            self.reply(find())
        except JobQueueError as error:
            kind = type(error).__name__
            self.reply({"refused": [kind, error.detail, error.errors, error.retry_after]})

    def _keep(self, now):
        """Renew, store what was printed, see whether it is to be ended."""
        if now - self.started > self.row["timeout"]:
            self.end("timeout", "ran longer than %g s" % self.row["timeout"])
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            with contextlib.suppress(*WRITE_LATER):
                self._look_at_claim()
                self._unclaimed = self._unclaimed if self._is_doubted else now
        if not self.is_sure(now):
            self.end("lost")
        self._store(now)
        if self.ending and self._killed_at is None:
            self._killed_at = now
            self._child.signal(signal.SIGKILL if self.ending == "lost" else signal.SIGTERM)
        elif self.ending and now - self._killed_at > GRACE_SECONDS:
            self._child.signal(signal.SIGKILL)

    def is_sure(self, now):
        """False once others could soon take the claim, as far as this worker knows."""
        fence = self._database.lease_seconds - jobqueue.LEASE_SECONDS + jobqueue.SELF_FENCE_SECONDS
        return now - self._unclaimed <= fence - 2 * jobqueue.RENEW_SECONDS

    def _look_at_claim(self):
        version = self._database.version_seen()
        if version == self._seen_version and self._database.hears_all:
            return
        self._seen_version = version
        asked = self._claims.cancel_asked(*self.key)
        if asked is None:
            self.end("lost")
        elif asked:
            self.end("cancelled", "cancelled while it ran")
        self._is_doubted = self._claims.leases.is_doubted(*self.key)

    def _store(self, now):
        """Renew the claim and store log and progress, if it is time; tried once a second."""
        due = self.log or self.report or now - self._renewed > jobqueue.RENEW_SECONDS
        if not (due and now - self._stored > STORE_SECONDS or self.log.is_full):
            return
        self._stored = now
        with contextlib.suppress(*WRITE_LATER):
            with self._database.transaction(durable=False) as transaction:
                if self.renew(transaction):
                    self._write(transaction, final=False)
                else:
                    self.end("lost")
            self._renewed = now
            self.drop()

    def _write(self, transaction, final):
        now = self._database.clock.now()
        for start, text in self.log.take_pieces(final):
            append_log(transaction, now, self.row["id"], self.row["attempts"], start, text)
        if self.report:
            self._claims.report(transaction, *self.key, self.report["progress"],
                                self.report["message"])

    def _outcome(self):
        """The Outcome if it has ended: what the runner said, else how the runner died."""
        if self.said is not None and self.ending != "lost":
            self._child.memory = self.said.peak_memory or 0
            return self.said
        if self._child.ended and self.ending is None:
            until = time.monotonic() + DYING_SECONDS    # how it ends is then known
            while not self._child.is_dead() and time.monotonic() < until:
                time.sleep(0.01)
            if self._child.death is None:
                self.end("crashed", "the process that ran it broke off")
        if self._child.death is None:
            return None
        self.log.read()
        code, cpu, memory = self._child.death
        kind = self.ending or "crashed"
        died = "signal %d" % -code if code < 0 else "exit code %d" % code
        message = self._why or "the process that ran it ended with %s" % died
        types = {"timeout": "Timeout", "crashed": "Crashed", "interrupted": "Interrupted"}
        return Outcome(kind, None, types.get(kind), message if kind in types else None, None,
                       self._clock.monotonic() - self.started, cpu, memory)


class Batch:
    """What the runner has in hand; what has ended or was taken back stays until it is recorded."""

    def __init__(self, queue, child, rows, note_end, kind=Attempt):
        self._clock = queue.database.clock
        self._note_end = note_end       # called with each attempt that has ended, and its outcome
        self.child = child
        self.running = [kind(queue, child, row) for row in rows]    # the first has begun
        self.unbegun = []               # attempts that were taken back
        self.ended = []                 # (attempt, outcome)
        self.record_by = math.inf       # when what has ended is recorded at the latest

    def begin(self):
        """Hand all of it over; take it back if what must be stored before cannot be, or if the
        worker has stood still since the claim, so that others may have it."""
        is_sure = self.running[0].is_sure(self._clock.monotonic())
        try:
            orders = [attempt.make_order() for attempt in self.running if is_sure]
        except WRITE_LATER:
            orders = []
        if not orders:
            self.running, self.unbegun = [], self.running
            return
        if None in orders:              # it is alone then: others have it
            self.running = []
            return
        for attempt, end in zip(self.running, self.child.hand_over(orders)):
            attempt.log = LogPipe(end)
        now = self._clock.monotonic()
        self.running[0].started = now
        self.record_by = now + BATCH_SECONDS if len(orders) > 1 else math.inf

    def watch(self):
        """Wait for the runner, take what it says, keep alive what it runs."""
        first = self.running[0]
        due = self.record_by - self._clock.monotonic()
        self.child.wait(min(due, first.patience()), first.log.end)
        if self.child.ended or first.ending:
            self.child.is_dead()        # asked before we read: an outcome that came first wins
        for message in self.child.messages():
            if not self.running or not self.running[0].take(message):
                self.child.ended = True
                break
            if self.running[0].said:
                self._check()
        if self.running and (self.child.ended or self.running[0].ending):
            self.take_back()
        self._check()

    def _check(self):
        outcome = self.running[0].check() if self.running else None
        if outcome is None:
            return
        attempt = self.running.pop(0)
        self.child.has_leftovers |= attempt.log.close() or attempt.left is not None
        self.ended.append((attempt, outcome))
        self._note_end(attempt, outcome)
        if self.child.has_leftovers:
            self.take_back()
        now = self._clock.monotonic()
        self.record_by = min(self.record_by, now + BATCH_SECONDS)
        if self.running:
            self.running[0].started = now

    def take_back(self):
        """Take back what the runner has not begun."""
        kept = len(self.running) - self.child.take_back()
        for attempt in self.running[kept:]:
            attempt.log.close()
        self.unbegun += self.running[kept:]
        del self.running[kept:]


class Pace:
    """How many tasks may be claimed at once: several of a function that keeps ending quickly.

    A batch is to take half of the time that an outcome may wait, and its tasks need two
    descriptors each while they are handed over. Who waits longer for the write lock than the batch
    takes is one of many workers: its batches grow faster, so that all wait less often.
    """

    def __init__(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = math.inf if limit == resource.RLIM_INFINITY else limit
        self._most = max(1, min(BATCH_MAX, limit // 4 - 16))
        self._begin_again(None)

    def note(self, function, outcome, waited=0.0):
        """Learn from an attempt that has ended; so long was last waited for the write lock."""
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

    def slow_down(self):
        """A batch was late: half as many the next time."""
        self.size = max(1, self.size // 2)

    def _begin_again(self, function):
        self.function, self._count, self._seconds, self.size = function, 0, 0.0, 1
