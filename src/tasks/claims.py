"""Every way into and out of "running": claim, renew, end.

The Reaper (upkeep/reaper.py) ends the tasks of dead workers in these ways, too.

1. claim() claims the first pending tasks of a queue, each under a random token, with a lease.
2. The worker renews the lease. Each of its writes names the token. If a write changes no row, the claim
   was lost, and this worker's outcome does not count.
3. end_all() asks judge() for the next state of a task and stores it.
4. A claim that missed two renewals is marked as suspect. It is lost once its lease is over and the mark
   has expired (Leases.silent()). The mark proves that the database was writable, so the worker could have
   renewed. While the database cannot be written there are no marks, and workers keep their tasks.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import DELETE, PENDING, RENEW_SECONDS, SCHEDULED, SUCCEEDED
from ..base.errors import RETRY_MESSAGE, Busy
from ..base.time_and_text import Every, dump_json, machine_name, random_token, shorten
from ..store.connection import BY_CLAIM, BY_ID, Connection, Reader
from ..store.database import Database
from ..store.log_and_activity import activity_row, record_activity
from .queues import AT_LIMIT, TURN_BESIDE, Queues, next_start
from .followers import ENDED, Followers, lanes, next_turn, scheduled_turn
from .files import Files
from .task_list import TaskList
from .leases import (HEADS, REACH_ROWS, REMOTE_LEASE_SECONDS, UNCONFIRMED, Leases, Outcome, Reach,
                     Verdict, judge)

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import AnyTuple, JsonObject, Row, TaskRow
    from .leases import ClaimedTask, Ending

PROMOTE_AT_ONCE = 500
PROMOTE_SECONDS = 0.05          # how late a busy worker may notice a due task
CLAIM_TRIES_MAX = 100           # tries of one claim while it finds only tasks of former admins
ALL_HEADS = HEADS % ""
WITHIN_REACH = """AND task.id IN (
    SELECT id FROM task %s WHERE status=PENDING AND queue=? ORDER BY priority DESC, turn, id LIMIT %d
    )""" % (BY_CLAIM, REACH_ROWS)
# Tasks of owners below their limits are searched among these turns first. Few tasks share a turn.
BESIDE_FULL = "AND priority=? AND turn>=? AND turn<?+%d" % REACH_ROWS
ENDING_COLUMNS = (
    "id", "owner_id", "queue", "function", "priority", "turn", "run_at", "attempts", "crashes",
    "claim", "interruptions", "max_retries", "retries_left", "retry_delay", "retry_backoff",
    "on_crash", "cancel_requested", "worker_id", "started_at", "created_at", "remove_on_success",
    "unknown_since")


class Heads(NamedTuple):
    """A queue to claim from, if there is one, and its first tasks."""

    queue: Row | None
    tasks: list[ClaimedTask]


class Claims:
    """The ways into and out of "running". Each write names its claim."""

    def __init__(self, database: Database, queues: Queues, files: Files, tasks: TaskList) -> None:
        self._database, self._queues, self._clock = database, queues, database.clock
        self._files, self._tasks = files, tasks
        self.leases, self.machine = Leases(database), machine_name()
        self._last_queue = ""
        self._promotions = Every(PROMOTE_SECONDS, self._clock)

    def promote(self, transaction: Connection, now: float) -> None:
        """Make due scheduled tasks pending, at most PROMOTE_AT_ONCE, and settle followers."""
        Followers.settle(transaction, now)
        room = PROMOTE_AT_ONCE
        for lane in lanes(transaction, SCHEDULED):
            due = transaction.all(
                "SELECT id, owner_id, queue, function, priority, attempts FROM task %s "
                "WHERE status=SCHEDULED AND queue=? AND priority=? AND turn<=? ORDER BY turn LIMIT ?"
                % BY_CLAIM, (*lane, int(now * 1000), room))
            room -= len(due)
            for row in due:
                transaction.update(
                    "task", {"status": PENDING, "turn": next_turn(transaction, row)},
                    "id=? AND status=SCHEDULED", (row["id"],))
                record_activity(transaction, now, "promoted", row)

    def next_due(self, of_all: bool = False, db: Reader | None = None) -> float | None:
        """Return when the next scheduled task becomes due, or None.

        Only queues that this machine serves count, unless `of_all`. Return 0 if an ended task still has
        unsettled followers.
        """
        db = db or self._database
        if db.value("SELECT 1 FROM unsettled LIMIT 1"):
            return 0.0
        served: set[str] = set() if of_all else {
            queue["name"] for queue in self._queues.served_by(db, self.machine)}
        return min((row["turn"] / 1000 for row in self._tasks.firsts(SCHEDULED, db=db)
                    if of_all or row["queue"] in served), default=None)

    def rate_opens(self, db: Reader | None = None) -> float | None:
        """Return when the rate of a queue next lets a task start; None if no rate holds back tasks."""
        now = self._clock.now()
        moments = [next_start(queue, now).at for queue in self._filled(db or self._database)
                   if queue["rate_count"] is not None]
        return min((moment for moment in moments if moment > now), default=None)

    def claimable(self, limit: int, db: Reader | None = None) -> int:
        """Return how many tasks a worker here could claim now, counted up to `limit`.

        Owners near their own limit may make the number too high. A surplus worker ends by itself.
        """
        count, now, db = 0, self._clock.now(), db or self._database
        for queue in self._filled(db):
            if count < limit:
                room = min(limit - count, self._queues.room(db, queue, now))
                count += self._queues.count(db, PENDING, queue["name"], room) if room > 1 else room
        return count

    def longest_wait(self) -> float | None:
        """Return the seconds that the oldest task which could start has waited; None if there is none.

        Only the first tasks of each queue are compared.
        """
        now = self._clock.now()
        waiting = [self._database.value("""
            SELECT min(CASE WHEN run_at>created_at THEN run_at ELSE created_at END)
            FROM (SELECT owner_id, created_at, run_at FROM task %s WHERE status=PENDING AND queue=?
                  LIMIT 10000) AS found WHERE owner_id NOT IN %s""" % (BY_CLAIM, AT_LIMIT),
            (queue["name"],))
            for queue in self._filled(self._database) if self._queues.room(self._database, queue, now)]
        return max((now - since for since in waiting if since is not None), default=None)

    def _filled(self, db: Reader, reach: Reach | None = None) -> list[Row]:
        """Return the queues with tasks that a worker here, or a remote one within its Reach, may start."""
        queues = self._queues.served_by(db, reach.machine if reach else self.machine, reach is not None)
        return [queue for queue in queues if queue["head"] is not None and not (
            reach and reach.queues is not None and queue["name"] not in reach.queues)]

    def claim(self, transaction: Connection, worker_id: int, now: float, most: int = 1,
              function: str | None = None, owner_id: int | None = None,
              reach: Reach | None = None) -> list[ClaimedTask]:
        """Claim the next task, or a batch of up to `most` that all run `function`; return their rows.

        With an owner: nothing if the next task is another owner's. With a Reach (remote workers): only
        tasks within it, and the worker must confirm each claim by renew().

        A batch has first attempts only, and no tasks with on_crash=fail: if its worker dies, tasks that
        did not begin count as crashed, too. Tasks with long arguments are claimed alone, because a batch
        is handed to the runner in one piece.
        """
        request = transaction, worker_id, now, most, function, owner_id, reach
        rows = [] if self._promotions.begin_if_due() else self._claim_pending(*request)
        if not rows:
            self._promotions.put_off(PROMOTE_SECONDS)
            self.promote(transaction, now)
            rows = self._claim_pending(*request)
        return rows

    def _claim_pending(self, transaction: Connection, worker_id: int, now: float, most: int,
                       function: str | None, owner_id: int | None,
                       reach: Reach | None) -> list[ClaimedTask]:
        """Claim as claim() does. After CLAIM_TRIES_MAX tries return nothing, even if more tasks wait."""
        for _ in range(CLAIM_TRIES_MAX):
            queue, heads = self.next_heads(transaction, now, most, function, owner_id, reach)
            if queue is None:
                break
            self._claim_rows(transaction, heads, worker_id, now, reach)
            self._queues.started(transaction, queue, len(heads), now)
            self._refuse(transaction, [row for row in heads if row["barred"]], now)
            rows = [row for row in heads if not row["barred"]]
            if rows or not heads:
                return rows
        return []

    def next_heads(self, db: Reader, now: float, most: int = 1, function: str | None = None,
                   owner_id: int | None = None, reach: Reach | None = None) -> Heads:
        """Return the tasks that claim() would claim.

        The queue with the highest priority comes first; queues of equal priority take turns. Full queues,
        and those without a task within reach, are skipped.
        """
        for queue in sorted(self._filled(db, reach), key=lambda queue: (
                -queue["head"], queue["name"] <= self._last_queue, queue["name"])):
            room = self._queues.room(db, queue, now)
            if room:
                heads = self._heads(db, queue, min(most, room), function, owner_id, reach)
                if heads or not reach:
                    self._last_queue = queue["name"]
                    return Heads(queue, heads)
        return Heads(None, [])

    @staticmethod
    def _firsts(db: Reader, queue: Row, most: int, reach: Reach | None) -> Sequence[TaskRow]:
        """Return the first rows of a queue within a reach, of owners who are not at their limit."""
        name = queue["name"]
        if not reach and not queue["beside"]:
            return db.all(ALL_HEADS, (name, most))
        limits = ""
        values: AnyTuple = (name,)
        ways: list[tuple[str, AnyTuple]] = [(WITHIN_REACH, (name,))]
        if reach:
            limits = "AND function IN (%s) " % ", ".join("?" * len(reach.functions))
            values = (name, *reach.functions)
        if queue["beside"]:
            limits += "AND owner_id NOT IN %s " % AT_LIMIT
            turn = db.value(TURN_BESIDE, (name, queue["head"]))
            ways.insert(0, (BESIDE_FULL, (queue["head"], turn, turn)))
        pages = (db.all(HEADS % (limits + way), (*values, *more, most))
                 for way, more in ways)
        return next(filter(None, pages), [])

    def _heads(self, db: Reader, queue: Row, most: int, function: str | None, owner_id: int | None,
               reach: Reach | None) -> list[ClaimedTask]:
        """Return the first tasks of a queue that may be claimed at once."""
        heads: list[ClaimedTask] = []
        for row in self._firsts(db, queue, most, reach):
            columns: Any = dict(zip(row.keys(), row))
            task: ClaimedTask = columns     # _claim_rows() adds the claim
            fits = (task["function"] == function and task["attempts"] == 0
                    and task["on_crash"] == "retry" and len(task["arguments"]) <= 4000)
            is_full = task["spare"] is not None and task["spare"] <= sum(
                head["owner_id"] == task["owner_id"] for head in heads)
            if owner_id not in (None, task["owner_id"]) or (heads and not fits) or is_full:
                break
            heads.append(task)
            if not fits:
                break
        return heads

    def _claim_rows(self, transaction: Connection, rows: list[ClaimedTask], worker_id: int, now: float,
              reach: Reach | None) -> None:
        """Claim pending tasks for a worker; their rows get the claim and the attempt's number."""
        lease = self.leases.new(now, REMOTE_LEASE_SECONDS if reach else None).values()
        for place, row in enumerate(rows):
            row["claim"] = UNCONFIRMED + reach.claims[place] if reach else random_token()
            row["attempts"] += 1
            row["worker_id"] = worker_id
            row["claimed"] = self._clock.monotonic()
        taken = transaction.many("""
            UPDATE task SET status=RUNNING, claim=?, attempts=?, worker_id=?, lease_boot=?,
                lease_monotonic=?, lease_wall=?, started_at=?, reason=NULL, progress=NULL,
                message=NULL, samples=NULL, error_type=NULL, error_message=NULL
            WHERE id=? AND status=PENDING""", [
                (row["claim"], row["attempts"], worker_id, *lease, now, row["id"])
                for row in rows])
        if taken != len(rows) > 0:
            raise Busy("A task was claimed by two at once; nothing was changed.")
        transaction.insert_all("activity", [
            activity_row(now, "started", row, worker_id=worker_id,
                         waited=max(0.0, now - max(row["created_at"], row["run_at"] or 0)))
            for row in rows])

    def _refuse(self, transaction: Connection, rows: list[ClaimedTask], now: float) -> None:
        """Fail claimed tasks of functions for admins if the admin who added them is no admin any more."""
        words = "%s is for admins only, and the user who added this task is no longer an admin"
        if rows:
            self.end_all(transaction, [
                (row["id"], row["claim"], Outcome("fail", None, "Denied", words % row["function"]))
                for row in rows], now)

    def renew(self, transaction: Connection, task_id: int, claim: str, now: float,
              seconds: float | None = None, samples: Sequence[Sequence[float]] | None = None) -> bool:
        """Renew a claim for another lease; return False if it was lost. None keeps the stored samples.

        The first renewal by a remote worker also confirms its claim.
        """
        new = {"samples": dump_json(samples)} if samples else {}
        return transaction.update(
            "task", {"claim": claim, **self.leases.new(now, seconds), **new},
            "id=? AND status=RUNNING AND claim IN (?, ?)", (task_id, claim, UNCONFIRMED + claim)) == 1

    def report(self, transaction: Connection, task_id: int, claim: str, progress: float | None,
               message: str | None) -> bool:
        """Store the progress that a function reports; return False if the claim was lost."""
        return transaction.update("task", {"progress": progress, "message": message},
                                  "id=? AND status=RUNNING AND claim=?", (task_id, claim)) == 1

    def cancel_asked(self, task_id: int, claim: str, db: Reader | None = None) -> int | None:
        """Return the row's cancel_requested while the claim holds; None if it was lost."""
        return (db or self._database).value(
            "SELECT cancel_requested FROM task WHERE id=? AND status=RUNNING AND claim=?",
            (task_id, claim))

    @staticmethod
    def asked_with(db: Reader, task_id: int, claim: str) -> int | None:
        """Return the cancel_requested of a running task, for a client that sends its claim.

        None if the claim was lost, or the token of its remote worker is not valid any more.
        """
        return db.value("""
            SELECT task.cancel_requested FROM task LEFT JOIN worker ON worker.id=task.worker_id
            WHERE task.id=? AND task.status=RUNNING AND task.claim=? AND (worker.token_id IS NULL
                OR EXISTS (SELECT 1 FROM token JOIN user ON user.id=token.user_id
                           WHERE token.id=worker.token_id AND user.disabled=0 AND user.role='admin'))""",
                        (task_id, claim))

    def end(self, transaction: Connection, task_id: int, claim: str, outcome: Outcome,
            now: float) -> Verdict | None:
        """Record how an attempt ended; return the Verdict, or None if the claim was lost."""
        return self.end_all(transaction, [(task_id, claim, outcome)], now)[0]

    def end_lost(self, transaction: Connection, task: TaskRow, now: float) -> None:
        """Record that the worker of a running task (its row) is lost."""
        # The time of death is unknown, but a living worker would have renewed its lease.
        ended = min(now, task["lease_wall"] - self._database.lease_seconds + RENEW_SECONDS)
        seconds = max(0.0, ended - task["started_at"])
        words = "The process that ran this task died after at most %d s." % math.ceil(seconds)
        outcome = Outcome("crashed", None, "WorkerLost", words, seconds=seconds)
        if task["claim"].startswith(UNCONFIRMED):   # the remote worker never confirmed it
            outcome = Outcome("put_back")
        self.end(transaction, task["id"], task["claim"], outcome, now)

    def end_all(self, transaction: Connection, ended: Sequence[Ending],
                now: float) -> list[Verdict | None]:
        """Record how attempts ended; return a Verdict for each, see end()."""
        rows = transaction.all("SELECT %s FROM task %s WHERE id IN (%s) AND status=RUNNING" % (
            ", ".join(ENDING_COLUMNS), BY_ID, ", ".join("?" * len(ended))), [key for key, _, _ in ended])
        held = {row["id"]: dict(zip(ENDING_COLUMNS, row)) for row in rows}
        verdicts: list[Verdict | None] = []
        changes: list[AnyTuple] = []
        notes: list[JsonObject] = []
        for task_id, claim, outcome in ended:
            task, verdict = held.get(task_id), None
            if task and task["claim"] == claim:
                verdict = judge(task, outcome, now, self._clock.uniform)
                verdict.removed = task["cancel_requested"] == DELETE or (
                    verdict.status == SUCCEEDED and task["remove_on_success"] == 1)
                if verdict.event == "put_back":     # may be negative, so that the rollup finds the start
                    outcome.seconds = now - task["started_at"]
                elif outcome.seconds is None:
                    outcome.seconds = max(0.0, now - task["started_at"])
                text = outcome.error_message or verdict.reason
                if verdict.event == "retry" and outcome.retry_after is not None:
                    text = "asked for a retry in %d s%s" % (
                        verdict.run_at - now, "" if text == RETRY_MESSAGE else ": %s" % text)
                notes.append(activity_row(
                    now, verdict.event, task, worker_id=task["worker_id"],
                    message=text and shorten(text, 500), seconds=outcome.seconds,
                    service=now - task["created_at"] if verdict.status in ENDED else None,
                    cpu_seconds=outcome.cpu_seconds, peak_memory=outcome.peak_memory))
                if verdict.status in ENDED and not verdict.removed:
                    verdict.kept = self._files.collect(transaction, task, now)
                changes.append(self._ending_values(transaction, task, verdict, outcome, now))
            verdicts.append(verdict)
        transaction.run_many_later("""
            UPDATE task SET status=?, reason=?, turn=?, run_at=?, retries_left=retries_left-?,
                crashes=crashes+?, interruptions=interruptions+?, put_backs=put_backs+?,
                unknown_since=?, result=?, error_type=?, error_message=?, finished_at=?,
                lease_boot=NULL, lease_monotonic=NULL, lease_wall=NULL, samples=NULL,
                cancel_requested=0
            WHERE id=? AND status=RUNNING AND claim=?""", changes)
        transaction.insert_all("activity", notes)
        Followers.settle(transaction, now)
        return verdicts

    @staticmethod
    def _ending_values(transaction: Connection, task: TaskRow, verdict: Verdict, outcome: Outcome,
                       now: float) -> AnyTuple:
        """Return the values that end_all() binds for a task."""
        status, turn, run_at = verdict.status, task["turn"], task["run_at"]
        if status == SCHEDULED:
            turn, run_at = scheduled_turn(verdict.run_at), verdict.run_at
        elif status == PENDING and outcome.kind != "put_back":
            turn = next_turn(transaction, task)
            run_at = now
        return (status, verdict.reason, turn, run_at, verdict.spend, verdict.crash,
                verdict.interruption, verdict.event == "put_back", verdict.unknown_since,
                outcome.result, outcome.error_type, outcome.error_message,
                now if status in ENDED else None, task["id"], task["claim"])
