"""Queues and their limits: which queues may start a task now.

A queue has a name and limits: paused, max_running, rate, machines. A claim reads the queues that are
served_by() its machine, and claims no more tasks than a queue has room() for. To keep the rate, each start
moves the time in the column rate_next_at. Owners at their own max_running are skipped.
"""
from __future__ import annotations

import json
from collections.abc import Collection

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import COUNT_MAX, INTEGER_MAX, RUNNING, STATUS_WORDS
from ..base.errors import Conflict, NotFound, field_error
from ..base.time_and_text import dump_json, iso, shorten, span_text, storable
from ..base.values import (OPTION_SCHEMAS, TASK_OPTIONS, about, integer_within, number_within,
                           object_of, or_null, text_like, titled)
from ..store.connection import BY_CLAIM, BY_TURN, Connection, Reader
from ..store.database import Database
from ..store.log_and_activity import record_activity

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row, Schema

RATE_SLACK_SECONDS = 0.05       # a start that is late by at most this does not delay the next

QUEUE_LIMITS: dict[str, Schema] = {
    "paused": {"type": "boolean"},
    "paused_why": about(
        or_null(text_like("[^\\x00-\\x1f]{0,200}", "must be one line of at most 200 characters")),
        "shown to everyone while it is paused"),
    "max_running": about(or_null(integer_within(1, 10_000)), "maximum of its running tasks"),
    "rate": about(or_null(object_of(("count", "seconds"), count=integer_within(1, 1_000_000),
                                  seconds=number_within(1, 31 * 86400))),
                  "maximum of starts in so many seconds, spread evenly"),
    "machines": about({"type": ["array", "null"], "minItems": 1, "maxItems": 50,
                       "items": text_like("[!-~]{1,64}", "must be the name of a machine")},
                      "machines that run its tasks; null: all")}
CHANGED_QUEUE = titled("QueueChange", object_of(**QUEUE_LIMITS))
NEW_QUEUE = titled("NewQueue", object_of(("name",), name=OPTION_SCHEMAS["queue"], **QUEUE_LIMITS))
QUEUE_COUNTS = ("pending", "running", "scheduled", "waiting")
# The number of tasks that a user may still start (NULL: any), and the users at their limit.
SPARE = ("CASE WHEN user.max_running IS NOT NULL THEN user.max_running-(SELECT count(*) "
         "FROM task %s WHERE owner_id=user.id AND status=RUNNING) END" % BY_TURN)
AT_LIMIT = "(SELECT id FROM user WHERE %s<=0)" % SPARE
# The priority of a queue's first pending task, and of its first one whose owner is not at a limit.
HEAD = ("(SELECT priority FROM task %s WHERE status=PENDING AND task.queue=queue.name "
        "ORDER BY priority DESC LIMIT 1)" % BY_CLAIM)
HEAD_BESIDE = ("(SELECT max((SELECT max(priority) FROM task %s WHERE owner_id=user.id AND status=PENDING "
               "AND task.queue=queue.name)) FROM user WHERE id NOT IN %s)" % (BY_TURN, AT_LIMIT))
OPEN_QUEUES, OPEN_BESIDE = (
    "SELECT name, max_running, rate_count, rate_seconds, rate_next_at, machines, %s AS head, %d AS "
    "beside, (SELECT min(%s) FROM user) AS spare FROM queue WHERE paused=0 AND external<=?"
    % (head, beside, SPARE) for beside, head in enumerate((HEAD, HEAD_BESIDE)))
TURN_BESIDE = ("SELECT min((SELECT min(turn) FROM task %s WHERE owner_id=user.id AND status=PENDING "
               "AND queue=? AND priority=?)) FROM user WHERE id NOT IN %s" % (BY_TURN, AT_LIMIT))


class NextStart(NamedTuple):
    """The time of a queue's next start, and the seconds between two starts."""

    at: float
    interval: float


class Blocked(NamedTuple):
    """The reason why pending tasks do not start: a word for programs, a sentence for people."""

    code: str | None = None
    words: str | None = None


def next_start(queue: Row, now: float) -> NextStart:
    """Return when the next task of a queue with a rate may start, and the interval.

    The interval counts from start to start. A start that came a little late does not delay the next one.
    """
    interval: float = queue["rate_seconds"] / queue["rate_count"]
    due: float = queue["rate_next_at"] or 0
    if due > now + interval + 5.0:          # a clock was set back, or the rate was raised
        due = now
    return NextStart(max(due, now - RATE_SLACK_SECONDS), interval)


def is_limited(queue: Row) -> bool:
    """Return True if a queue has limits. Then only admins may choose another queue for its functions."""
    return queue["paused"] > 0 or any(
        queue[name] is not None for name in ("max_running", "rate_count", "machines"))


def plain(number: float) -> float:
    """Return a number, as an int if it is whole."""
    return int(number) if number == int(number) else number


class Queues:
    """The table of queues: open queues and their room, their description, their changes."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    @staticmethod
    def served_by(db: Reader, machine: str, remote: bool = False) -> list[Row]:
        """Return the queues that workers of a machine serve, also queues that are full now.

        `remote` workers also serve external queues. `head` is the priority of the first pending
        task whose owner is not at the limit, NULL if there is none.
        """
        rows = db.all(OPEN_QUEUES, (2 * remote,))
        if rows and rows[0]["spare"] is not None and rows[0]["spare"] <= 0:
            rows = db.all(OPEN_BESIDE, (2 * remote,))
        return [row for row in rows
                if row["machines"] is None or machine in json.loads(row["machines"])]

    def room(self, db: Reader, queue: Row, now: float) -> int:
        """Return how many tasks of an open queue may start now."""
        room: int = INTEGER_MAX
        if queue["max_running"] is not None:
            room = queue["max_running"] - self.count(db, RUNNING, queue["name"], queue["max_running"])
        if queue["rate_count"] is not None:
            due, interval = next_start(queue, now)
            room = min(room, 1 + int((now - due) / interval) if due <= now else 0)
        return room

    @staticmethod
    def started(transaction: Connection, queue: Row, count: int, now: float) -> None:
        """Count started tasks against the rate of a queue."""
        if queue["rate_count"] is not None:
            due, interval = next_start(queue, now)
            transaction.update("queue", {"rate_next_at": due + count * interval},
                               "name=?", (queue["name"],))

    @staticmethod
    def count(db: Reader, status: int, name: str, limit: int) -> int:
        """Return how many tasks of a queue have a status, counted up to `limit`."""
        return db.value(
            "SELECT count(*) FROM (SELECT 1 FROM task %s WHERE status=? AND queue=? LIMIT ?) "
            "AS found" % BY_CLAIM, (status, name, limit))

    def all(self, machine: str) -> list[JsonObject]:
        """Return all queues as JSON. `machine` is where this process can start workers."""
        return [self._json(row, machine)
                for row in self._database.all("SELECT * FROM queue ORDER BY name")]

    def get(self, name: str, machine: str) -> JsonObject:
        """Return one queue as JSON; NotFound if there is none."""
        return self._json(self._row(self._database, name), machine)

    def blocked(self, name: str, machine: str, owner_id: int | None = None) -> Blocked:
        """Return why pending tasks of a queue do not start; Blocked() if they may.

        With `owner_id`: why this owner's tasks do not start.
        """
        row = self._database.one("SELECT * FROM queue WHERE name=?", (name,))
        if row is None:
            return Blocked()
        if row["paused"]:
            return Blocked("paused", "The queue %s is paused%s%s." % (
                name, row["paused_by"] and " by " + row["paused_by"] or "",
                row["paused_why"] and ": " + row["paused_why"].rstrip(".") or ""))
        if row["external"]:
            return Blocked("external", "Only %s work on the queue %s." % (
                "your own programs" if row["external"] == 1 else "remote workers", name))
        machines = json.loads(row["machines"] or "[]")
        if machines and not {machine, *self.machines()} & set(machines):
            return Blocked("machines", "The queue %s waits for a worker on %s." % (
                name, " or ".join(machines)))
        full = owner_id is not None and self._database.one(
            "SELECT name, max_running FROM user WHERE id=? AND id IN %s" % AT_LIMIT, (owner_id,))
        if full:
            return Blocked("owner", "The user %s runs at most %d at once." % tuple(full))
        limit = row["max_running"]
        if limit is not None and self.count(self._database, RUNNING, name, limit) >= limit:
            return Blocked("max_running", "The queue %s runs at most %d at once." % (name, limit))
        now = self._clock.now()
        if row["rate_count"] is not None and next_start(row, now).at > now:
            return Blocked("rate", "The queue %s starts at most %d in %s." % (
                name, row["rate_count"], span_text(row["rate_seconds"])))
        return Blocked()

    def machines(self) -> list[str]:
        """Return the names of the machines that have workers, without those that stop."""
        return [row[0] for row in self._database.all(
            "SELECT DISTINCT machine FROM worker WHERE state<>'stopping' ORDER BY machine")]

    def change(self, name: str, changes: JsonObject, who: str, new: bool = False) -> None:
        """Change a queue, or make it if it is `new`. `who` is recorded."""
        with self._database.transaction() as transaction:
            now = self._clock.now()
            if new:
                if transaction.value("SELECT 1 FROM queue WHERE name=?", (name,)):
                    raise Conflict("There is a queue %s already." % name)
                transaction.insert("queue", {"name": name, "created_at": now})
            row = self._row(transaction, name)
            for limit in ("max_running", "rate", "machines"):
                if row["external"] == 1 and changes.get(limit) is not None:
                    raise field_error(limit, "is set by the programs that run the tasks of %s" % name)
            values = self._pause(row, changes, who, now)
            if "max_running" in changes:
                values["max_running"] = changes["max_running"]
            if "rate" in changes:
                rate = changes["rate"] or {"count": None, "seconds": None}
                values.update(rate_count=rate["count"], rate_seconds=rate["seconds"])
            if "machines" in changes:
                values["machines"] = changes["machines"] and dump_json(sorted(set(changes["machines"])))
            if values:
                transaction.update("queue", values, "name=?", (name,))
            record_activity(transaction, now, "queue_changed", queue=name, actor=who,
                            message=dump_json(changes))

    def delete(self, name: str, who: str, in_use: Collection[str] = ()) -> None:
        """Remove a queue without tasks; Conflict if a function uses it (`in_use`)."""
        with self._database.transaction() as transaction:
            self._row(transaction, name)
            if name == TASK_OPTIONS["queue"][1]:
                raise Conflict("The queue %s is always there." % name)
            if name in in_use:
                raise Conflict("The queue %s belongs to a function in tasks.py." % name)
            if any(self.count(transaction, status, name, 1) for status in range(7)):
                raise Conflict("The queue %s still holds tasks; those that have ended count too."
                               % name)
            transaction.run("DELETE FROM queue WHERE name=?", (name,))
            record_activity(transaction, self._clock.now(), "queue_deleted", queue=name, actor=who)

    @staticmethod
    def _row(db: Reader, name: str) -> Row:
        row = db.one("SELECT * FROM queue WHERE name=?", (storable(name),))
        if row is None:
            raise NotFound("There is no queue %s." % shorten(name, 60))
        return row

    @staticmethod
    def _pause(row: Row, changes: JsonObject, who: str, now: float) -> JsonObject:
        """Return the columns to change. Pausing a paused queue again changes only the reason."""
        if not changes.get("paused", row["paused"]):
            return {"paused": 0, "paused_by": None, "paused_at": None, "paused_why": None}
        values: JsonObject = {} if row["paused"] else {"paused": 1, "paused_by": who, "paused_at": now}
        if "paused_why" in changes:
            values["paused_why"] = storable(changes["paused_why"] or "") or None
        return values

    def _json(self, row: Row, machine: str) -> JsonObject:
        name = row["name"]
        counts = {word: self.count(self._database, STATUS_WORDS.index(word), name, COUNT_MAX)
                  for word in QUEUE_COUNTS}
        rate = row["rate_count"] and {
            "count": row["rate_count"], "seconds": plain(row["rate_seconds"])}
        blocked = self.blocked(name, machine).code if counts["pending"] else None
        next_at = next_start(row, self._clock.now()).at if blocked == "rate" else None
        return {"name": name, "paused": row["paused"] > 0, "paused_by": row["paused_by"],
                "paused_at": iso(row["paused_at"]), "paused_why": row["paused_why"],
                "max_running": row["max_running"], "rate": rate,
                "machines": json.loads(row["machines"] or "null"), "external": row["external"] > 0,
                **counts, "blocked": blocked, "next_at": iso(next_at)}
