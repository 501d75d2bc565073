"""Leases and outcomes: how long a claim holds, how a task ends.

The steps of a claim stand in tasks/claims.py.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import (CANCELLED, FAILED, INTEGER_MAX, PENDING, RENEW_SECONDS, RESULT_MAX_DEPTH,
                           SCHEDULED, STATUS_WORDS, SUCCEEDED)
from ..base.errors import StorageFull, refusal, wrong
from ..base.time_and_text import boot_id, is_deep, read_json, shorten, storable
from ..base.values import (TEXT, TEXT_OR_NULL, check_value, integer_within, number_within, object_of,
                           or_null)
from ..store.connection import BY_CLAIM, THEN_JOIN, Reader
from ..store.database import Database
from ..store.state import recall, remember
from .queues import SPARE

if TYPE_CHECKING:
    from typing import Any, TypedDict

    from ..base.types import JsonObject, Row, TaskRow

if TYPE_CHECKING:
    Ending = tuple[int, str, "Outcome"]     # a task's id, the claim, how its attempt ended

    class ClaimedTask(TypedDict):
        """A claimed task as a worker has it: the columns of HEADS, and the claim."""

        id: int
        owner_id: int
        owner: str                      # the owner's name
        queue: str
        function: str
        arguments: str                  # JSON text
        attempts: int                   # claims so far, this one included
        put_backs: int                  # attempts that ran no function
        crashes: int
        priority: int
        max_retries: int
        retries_left: int
        timeout: float
        on_crash: str                   # "retry" or "fail"
        created_at: float
        run_at: float | None
        barred: int                     # 1 if it is for admins, and its user is no active admin
        spare: int | None               # how many more tasks its owner may start; None: any
        worker_id: int                  # the worker that claimed it
        claim: str                      # the token that each write about this attempt names
        claimed: float                  # when it was claimed, by this machine's monotonic clock

CRASH_LIMIT = 3                 # the third crash fails a task: it may be the task that kills workers
INTERRUPTION_LIMIT = 5
ERROR_MAX_CHARACTERS = 2000
UNCONFIRMED = "?"               # first character of a remote worker's claim until it is confirmed
REMOTE_LEASE_SECONDS = 180.0    # lease of a remote worker's claim: networks fail for longer than disks
REACH_ROWS = 1000               # tasks of a queue that are searched for functions of a remote worker

# The first pending tasks of a queue, with the columns that a claim reads.
HEADS = """
    SELECT task.id, owner_id, queue, function, arguments, attempts, put_backs, crashes, timeout,
        priority, max_retries, retries_left, on_crash, task.created_at, run_at, user.name AS owner,
        CASE WHEN admin_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM user WHERE id=admin_id AND role='admin' AND disabled=0)
        THEN 1 ELSE 0 END AS barred, %s AS spare
    FROM task %s %s user ON user.id=task.owner_id
    WHERE status=PENDING AND queue=? %%s
    ORDER BY priority DESC, turn, task.id LIMIT ?""" % (SPARE, BY_CLAIM, THEN_JOIN)


class Reach(NamedTuple):
    """The tasks that a remote worker may claim, and the tokens for its claims."""

    machine: str
    functions: Sequence[str]
    queues: Collection[str] | None      # None: any
    claims: Sequence[str]


_SECONDS = or_null(number_within(0, 1e9))
OUTCOME_KINDS = ("succeeded", "error", "fail", "timeout", "crashed", "interrupted", "cancelled",
                 "unknown_function", "put_back")
OUTCOME = object_of(
    ("kind",), kind=TEXT, result=TEXT_OR_NULL, error_type=TEXT_OR_NULL, error_message=TEXT_OR_NULL,
    retry_after=_SECONDS, seconds=_SECONDS, cpu_seconds=_SECONDS,
    peak_memory=or_null(integer_within(0, INTEGER_MAX)))


class Outcome:
    """The end of an attempt.

    Its kind is one of: succeeded, error (may be retried), fail (may not), timeout, crashed, interrupted,
    cancelled, unknown_function (tried again for a while), put_back (never begun).
    """

    def __init__(self, kind: str, result: str | None = None, error_type: str | None = None,
                 error_message: str | None = None, retry_after: float | None = None,
                 seconds: float | None = None, cpu_seconds: float | None = None,
                 peak_memory: int | None = None) -> None:
        self.kind, self.result = kind, result       # result: JSON text
        self.error_type = error_type and shorten(storable(error_type), 100)
        words = error_message and storable(error_message)
        if words and len(words) > ERROR_MAX_CHARACTERS:
            words = words[:ERROR_MAX_CHARACTERS - 1] + "…"
        self.error_message = words      # a traceback in the log has more of the message
        self.retry_after = retry_after  # seconds, instead of the task's own delay
        self.seconds, self.cpu_seconds, self.peak_memory = seconds, cpu_seconds, peak_memory

    @classmethod
    def parse(cls, sent: Any, kinds: Collection[str]) -> Outcome:
        """Return the outcome that a runner or a remote worker sent, of one of these kinds.

        Raise Invalid if it is wrong. Its result must be JSON that every reader understands. Unknown
        fields are dropped.
        """
        fields = sent
        if isinstance(sent, dict):
            fields = {name: sent[name] for name in OUTCOME["properties"] if name in sent}
        errors = check_value(OUTCOME, fields, "outcome")
        if not errors and fields["kind"] not in kinds:
            errors = wrong("kind", "must be one of %s" % ", ".join(kinds))
        if not errors and fields.get("result") not in (None, "", "null"):
            try:
                if is_deep(read_json(fields["result"]), RESULT_MAX_DEPTH):
                    raise ValueError("nested deeper than %d levels" % RESULT_MAX_DEPTH)
            except (ValueError, RecursionError) as error:
                errors = wrong("result", "is not JSON that can be kept (%s)" % error)
        if errors:
            raise refusal("Its outcome cannot be kept", errors)
        return cls(**{**fields, "result": fields.get("result") and storable(fields["result"])})


class Verdict:
    """The next state of a task whose attempt ended, and its cost in retries."""

    removed = False                     # True if the task's row is gone: its folder must go, too
    kept: list[str] | None = None       # the names of its files, if it had a folder here

    def __init__(self, status: int, reason: str | None = None, event: str | None = None,
                 run_at: float = 0.0, unknown_since: float | None = None, spend: int = 0,
                 crash: int = 0, interruption: int = 0) -> None:
        self.status, self.reason = status, reason
        self.event = event or STATUS_WORDS[status]      # event of the activity
        self.run_at = run_at            # when a scheduled task is due
        self.unknown_since = unknown_since      # when a worker first did not know its function
        # Numbers of retries to take from the row, and of crashes and interruptions to add to it.
        self.spend, self.crash, self.interruption = spend, crash, interruption


def judge(task: TaskRow, outcome: Outcome, now: float,
          uniform: Callable[[float, float], float]) -> Verdict:
    """Return the Verdict on a task (its row) whose attempt ended with this outcome.

    1. A cancel wins over every outcome but success.
    2. An error or a timeout needs a retry. If max_retries is 0, the first RetryAfter needs none.
    3. After a crash or an interruption the task begins again, unless its on_crash is "fail".
    4. The CRASH_LIMITth crash fails the task. Earlier crashes cost a retry if one is left.
    5. From the INTERRUPTION_LIMITth on, each interruption needs a retry.
    """
    kind, retries_left = outcome.kind, task["retries_left"]
    if kind == "succeeded":
        return Verdict(SUCCEEDED)
    if task["cancel_requested"] or kind == "cancelled":
        return Verdict(CANCELLED)
    if kind == "put_back":
        return Verdict(PENDING, event="put_back")
    since = task["unknown_since"] or now
    if kind == "unknown_function" and now - since <= 600:
        return Verdict(SCHEDULED, kind, "put_back", run_at=now + 30, unknown_since=since)
    if kind in ("crashed", "interrupted"):
        crash = kind == "crashed"
        is_many = not crash and task["interruptions"] + 1 >= INTERRUPTION_LIMIT
        last = task["on_crash"] == "fail" or (
            task["crashes"] + 1 >= CRASH_LIMIT if crash else is_many and retries_left <= 0)
        return Verdict(FAILED if last else PENDING, kind, "failed" if last else kind,
                       spend=int((crash or is_many) and retries_left > 0), crash=int(crash),
                       interruption=int(not crash))
    reason = kind if kind in ("timeout", "unknown_function") else "error"
    asks_first = outcome.retry_after is not None and retries_left == task["max_retries"]
    if kind in ("error", "timeout") and (retries_left > 0 or asks_first):
        delay, spread = outcome.retry_after, 1.0
        if delay is None:
            tried = min(task["max_retries"] - retries_left, 100)
            delay, spread = task["retry_delay"] * task["retry_backoff"] ** tried, uniform(1.0, 1.2)
        return Verdict(SCHEDULED, reason, "retry", spend=1,
                       run_at=now + min(delay, 30 * 86400) * spread)
    return Verdict(FAILED, reason)


def lease_name(holder: str, lease: Row) -> str:
    """Return a name for one lease of a holder: a lock file or a claim. It changes with each renewal."""
    return "%s %r" % (holder, lease["lease_wall"])


class Leases:
    """The leases of workers and claims: their length, the late ones, the lost tasks."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock
        self.boot = boot_id()

    def new(self, now: float, seconds: float | None = None) -> JsonObject:
        """Return the columns of a lease: its end by this boot's clock, and by wall time."""
        seconds = seconds or self._database.lease_seconds
        return {"lease_boot": self.boot, "lease_monotonic": self._clock.monotonic() + seconds,
                "lease_wall": now + seconds}

    def lost(self, dead_workers: Collection[int], now: float, db: Reader | None = None) -> list[TaskRow]:
        """Return the rows of running tasks whose worker is dead, or whose lease is in silent()."""
        db = db or self._database
        silent = self.silent(now, db)
        return [row for row in self._running(db) if row["worker_id"] in dead_workers
                or lease_name(row["holder"], row) in silent]

    def seconds_left(self, now: float) -> dict[int, float]:
        """Return {id: seconds until its lease is over} of the running tasks."""
        return {row["id"]: self._seconds_left(row, now) for row in self._running(self._database)}

    def mark_suspects(self, now: float) -> None:
        """Mark the leases that are late now as suspect, and clear the marks of all other leases.

        A mark expires after lease_seconds - 2 * RENEW_SECONDS: the rest of a lease after two missed
        renewals.
        """
        late = self._late(self._database, now)
        marks: dict[str, Row] = recall(self._database, "doubts") or {}
        if late.keys() != marks.keys():
            with contextlib.suppress(StorageFull), \
                    self._database.transaction(durable=False) as transaction:
                marks = recall(transaction, "doubts") or {}
                fresh = self.new(now, self._database.lease_seconds - 2 * RENEW_SECONDS)
                remember(transaction, "doubts", {name: marks.get(name, fresh) for name in late})

    def silent(self, now: float, db: Reader | None = None) -> set[str]:
        """Return the names of the leases that are over, and whose marks have expired."""
        db = db or self._database
        doubts = recall(db, "doubts") or {}
        late = self._late(db, now) if doubts else {}
        return {name for name in doubts.keys() & late.keys()
                if max(late[name], self._seconds_left(doubts[name], now)) < 0}

    def is_suspect(self, task_id: int, claim: str) -> bool | None:
        """Return True if a claim is marked as suspect, None if it was lost."""
        row = self._database.one(
            "SELECT lease_wall FROM task WHERE id=? AND status=RUNNING AND claim=?", (task_id, claim))
        if row is None:
            return None
        return lease_name(claim, row) in (recall(self._database, "doubts") or ())

    def _late(self, db: Reader, now: float) -> dict[str, float]:
        """Return {name: seconds left} of the leases of workers and tasks that missed two renewals."""
        workers = db.all("SELECT lock AS holder, boot AS lease_boot, lease_monotonic, "
                         "lease_wall FROM worker")
        remaining = ((lease_name(row["holder"], row), self._seconds_left(row, now))
                for row in [*workers, *self._running(db)])
        return {name: seconds for name, seconds in remaining
                if seconds < self._database.lease_seconds - 2 * RENEW_SECONDS}

    @staticmethod
    def _running(db: Reader) -> Sequence[TaskRow]:
        return db.all(
            "SELECT id, claim, claim AS holder, worker_id, started_at, lease_boot, "
            "lease_monotonic, lease_wall FROM task %s WHERE status=RUNNING" % BY_CLAIM)

    def _seconds_left(self, row: Row, now: float) -> float:
        if self.boot and row["lease_boot"] == self.boot:
            seconds: float = row["lease_monotonic"] - self._clock.monotonic()
        else:
            seconds = row["lease_wall"] + self._database.slack_seconds - now
        return seconds
