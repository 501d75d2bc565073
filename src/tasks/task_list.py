"""Tasks as people see them: find, count, show.

A single task comes with all that belongs to it. Lists have the tasks that a Filter wants. By owner
and status an index answers; what else is asked for is looked through, one short range of ids after
the other (Database.walk), so that nobody waits for it.
"""
from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import (CANCELLED, COUNT_MAX, FAILED, INTEGER_MAX, PAGE_ROWS, RUNNING,
                           STATUS_WORDS, SUCCEEDED)
from ..base.errors import Malformed, NotFound
from ..base.time_and_text import iso, storable
from ..base.values import FILE_KEY, SECRET_TEXTS, mask, summarize
from ..store.connection import (BY_CLAIM, BY_ID, BY_OWNER, BY_TURN, CONTAINS, LOOK_SECONDS, SEARCH_SECONDS,
                                THEN_JOIN, Reader)
from ..store.database import Database, Page
from .queues import plain
from .followers import lanes

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Query, TaskRow

AFTER_MAX = 1000                # tasks that one comes after
RELATED_MAX = 100               # shown of them, and of those that come after one
SORT_ROWS = 5_000               # more of a status are looked through, not sorted
FAILURES_MAX, GROUPS_MAX, RUNNING_MAX = 200, 10, 10     # of what failed are looked at; are shown

TASK_ROW = ("SELECT task.*, user.name AS owner FROM task "
            "%s user ON user.id=task.owner_id WHERE cancel_requested<2 AND " % THEN_JOIN)
# Rows of a list leave out what may be large: arguments are for the summary, a long result is …
SHORT_ARGUMENTS = "CASE WHEN length(task.arguments)<=4000 THEN task.arguments END AS arguments"
SHORT_RESULT = """, CASE WHEN length(task.result)<=%d THEN task.result
WHEN task.result<>'' THEN '"…"' END AS result"""
LIST_ROW = "SELECT %s, %s%%s, user.name AS owner FROM task %%%%s %s user " \
    "ON user.id=task.owner_id WHERE cancel_requested<2 AND " % (", ".join(
        "task." + name for name in (
            "id queue function status reason priority run_at unique_key max_retries retries_left "
            "retry_delay retry_backoff timeout on_crash remove_on_success notify attempts crashes "
            "cancel_requested progress message error_type error_message worker_id schedule_id "
            "created_at started_at finished_at after_failure").split()), SHORT_ARGUMENTS, THEN_JOIN)
FIELDS_ROW, EXPORT_ROW = (LIST_ROW % (SHORT_RESULT % most) for most in (1000, 32_000))
LIST_ROW, EXPORT_ROW = LIST_ROW % "", EXPORT_ROW.replace("4000", "32000")   # cells hold 32,767
SORTED_ROW = ("SELECT id, status, function, started_at, finished_at FROM task %s "
              "WHERE cancel_requested<2 AND ")
# What a search looks at, besides a task's number, its arguments and its owner's name: 500 characters of each.
SEARCHED = ("function", "message", "error_type || ': ' || error_message")


# What the newest SORT_ROWS can be sorted by, without an index, by times those that have begun, too;
# by their number all can.
SORTS: dict[str, Callable[[TaskRow, float], Any]] = {
    "function": lambda row, _: row["function"], "started_at": lambda row, _: row["started_at"] or 0,
    "duration": lambda row, now: bool(row["started_at"]) and -row["started_at"] + (
        (now if row["status"] == RUNNING else row["finished_at"]) or row["started_at"])}
BEGUN = RUNNING, SUCCEEDED, FAILED, CANCELLED
NEWEST, OLDEST = "-id", "id"
FIELDS = ("arguments", "result")


def task_json(row: TaskRow, after: Sequence[int] | None = None, fields: Iterable[str] = FIELDS,
              files: Iterable[tuple[str, str]] = ()) -> JsonObject:
    """A task as everybody is shown it, with these of FIELDS; `files`: (id, name) of those given."""
    error = None
    if row["error_type"]:
        error = {"type": row["error_type"], "message": row["error_message"]}
    shown = {
        "id": row["id"], "owner": row["owner"], "function": row["function"],
        "summary": summarize(row["arguments"], files), "queue": row["queue"],
        "status": STATUS_WORDS[row["status"]], "reason": row["reason"], "priority": row["priority"],
        "run_at": iso(row["run_at"]), "unique_key": row["unique_key"], "after": after or [],
        "after_failure": row["after_failure"], "attempts": row["attempts"],
        "crashes": row["crashes"], "max_retries": row["max_retries"],
        "retries_left": max(0, row["retries_left"]), "retry_delay": plain(row["retry_delay"]),
        "retry_backoff": plain(row["retry_backoff"]), "timeout": plain(row["timeout"]),
        "on_crash": row["on_crash"], "remove_on_success": row["remove_on_success"] == 1,
        "notify": row["notify"], "cancel_requested": row["cancel_requested"] > 0,
        "progress": row["progress"], "message": row["message"], "error": error,
        "worker": row["worker_id"], "schedule": row["schedule_id"],
        "created_at": iso(row["created_at"]), "started_at": iso(row["started_at"]),
        "finished_at": iso(row["finished_at"])}
    return {**shown, **{name: json.loads(row[name] or "null") for name in fields}}


class Filter(NamedTuple):
    """Which tasks are wanted; None: any. `text` is a number or part of a name or of SEARCHED,
    `error` the kind of error; `since` and `until` are about when they were added. Arguments that hold
    a secret are searched for their owner only, the user `sees` (0: nobody; None: for the host)."""

    owner_id: int | None = None
    statuses: Sequence[int] | None = None
    function: str | None = None
    queue: str | None = None
    text: str | None = None
    error: str | None = None
    ended_since: float | None = None
    since: float | None = None
    until: float | None = None
    ids: Sequence[int] | None = None
    sees: int | None = None

    def within(self, statuses: Sequence[int]) -> Filter:
        """The same, but only tasks with one of these statuses."""
        return self._replace(statuses=[      # SQLite 3.15 finds no way to look for none
            status for status in statuses if status in (self.statuses or statuses)] or [-1])

    @property
    def searches(self) -> bool:
        """True if no index answers it, so that rows must be looked through."""
        return any(asked is not None for asked in self[2:-1])

    def where(self) -> tuple[str, list[Any]]:
        """Return a condition in SQL, and the values of its question marks."""
        asked = {"owner_id=?": self.owner_id, "function=?": self.function, "queue=?": self.queue,
                 "error_type=?": self.error, "finished_at>=?": self.ended_since,
                 "task.created_at>=?": self.since, "task.created_at<?": self.until}
        parts: dict[str, Sequence[Any]] = {
            words: [value] for words, value in asked.items() if value is not None}
        for name, some in (("status", self.statuses), ("task.id", self.ids)):
            if some is not None:
                parts["%s IN (%s)" % (name, ", ".join("?" * len(some)))] = some
        if self.text:
            number = re.fullmatch("#?([0-9]{1,15})", self.text, re.ASCII)
            begins = [CONTAINS % ("substr(%s, 1, 500)" % text) for text in (*SEARCHED, "arguments")]
            secret = " OR ".join([begins[-1]] * len(SECRET_TEXTS))
            parts["(task.id=? OR owner_id IN (SELECT id FROM user WHERE %s) OR %s AND (%s))" % (
                CONTAINS % "name", " OR ".join(begins),
                "?=0" if self.sees is None else "owner_id=? OR NOT (%s)" % secret)] = [
                    int(number[1]) if number else 0, *[storable(self.text)] * (1 + len(begins)),
                    self.sees or 0, *(() if self.sees is None else SECRET_TEXTS)]
        return " AND ".join(parts) or "1=1", list(itertools.chain(*parts.values()))


class StatusCounts(NamedTuple):
    """How many tasks with ids up to `reached` have each status."""

    counts: list[int]
    reached: int


class TaskList:
    """Finds, counts and shows tasks."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def get(self, task_id: int, owner_id: int | None = None, db: Reader | None = None) -> TaskRow:
        """The row of a task; NotFound if it is missing or not `owner_id`'s."""
        is_number = re.fullmatch("[0-9]{1,18}", str(task_id))
        db = db or self._database
        row = db.one(TASK_ROW + "task.id=?", (task_id,)) if is_number else None
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def removed(self, task_id: int, owner_id: int | None = None) -> TaskRow:
        """Return when a task succeeded that was removed then, and whose it was; NotFound if there was
        none, or it was not `owner_id`'s."""
        row = self._database.one(
            "SELECT at, function, owner_id, user.name AS owner FROM activity "
            "JOIN user ON user.id=activity.owner_id WHERE task_id=? AND event='succeeded' "
            "AND NOT EXISTS (SELECT 1 FROM activity WHERE task_id=? AND event='deleted')",
            (task_id, task_id))
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def full_json(self, row: TaskRow) -> JsonObject:
        """A task with the traceback of its last attempt, and what it comes after and before."""
        shown = task_json(row, row["after_failure"] and self._after(row, AFTER_MAX),
                          files=self._given(row))
        shown["predecessors"] = self._related(row, "after_id", "task_id=? AND settled IN (0, 1, 2)")
        shown["followers"] = self._related(row, "task_id", "settled IN (0, 1, 2) AND after_id=?")
        if shown["error"]:
            last = self._database.value(
                "SELECT text FROM log WHERE task_id=? ORDER BY attempt DESC, start DESC LIMIT 1",
                (row["id"],)) or ""
            shown["error"]["traceback"] = last if last.startswith("Traceback ") else None
        return shown

    def neighbours(self, row: TaskRow, owner_id: int | None = None) -> list[int | None]:
        """The numbers of the tasks, of all or of an owner, before and behind this one, or None."""
        scan = "task %s WHERE owner_id=?" % BY_OWNER if owner_id else "task WHERE ?=0"
        return [self._database.value(
            "SELECT id FROM %s AND cancel_requested<2 AND id%s? ORDER BY id %s LIMIT 1"
            % (scan, *side), (owner_id or 0, row["id"])) for side in (("<", "DESC"), (">", "ASC"))]

    def list_json(self, rows: Iterable[TaskRow], fields: Iterable[str] = ()) -> list[JsonObject]:
        """Tasks as lists show them, with these of FIELDS."""
        return [task_json(row, row["after_failure"] and self._after(row, RELATED_MAX), fields,
                          self._given(row)) for row in rows]

    def _given(self, row: TaskRow) -> list[tuple[str, str]]:
        """(id, name) of each file that a task was given, for its summary."""
        if not re.search(FILE_KEY, row["arguments"] or ""):
            return []
        return [(key, name) for key, name in self._database.all(
            "SELECT key, name FROM file WHERE task_id=? AND key IS NOT NULL AND name IS NOT NULL",
            (row["id"],))]

    def _after(self, row: TaskRow, limit: int) -> list[int]:
        """Ids of the tasks that this one comes after."""
        return [after for after, in self._database.all(
            "SELECT after_id FROM task_after WHERE task_id=? ORDER BY after_id LIMIT ?",
            (row["id"], limit))]

    def results_before(self, task_id: int) -> list[Any]:
        """The results of the tasks that this one comes after, as named; None for what is gone."""
        return [json.loads(text or "null") for text, in self._database.all(
            "SELECT result FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE task_after.task_id=? ORDER BY place, after_id", (task_id,))]

    def _related(self, row: TaskRow, side: str, condition: str) -> list[JsonObject]:
        """Tasks on the other side of this one, those that are still there."""
        found = self._database.all(
            "SELECT task.id, function, status FROM task_after %s task ON task.id=%s "
            "WHERE %s AND cancel_requested<2 LIMIT ?" % (THEN_JOIN, side, condition),
            (row["id"], RELATED_MAX))
        return [{"id": task_id, "function": function, "status": STATUS_WORDS[status]}
                for task_id, function, status in sorted(map(tuple, found))]

    def find(self, wanted: Filter, limit: int, cursor: int | None = None, sort: str = NEWEST,
             select: str = LIST_ROW, seconds: float = SEARCH_SECONDS) -> Page:
        """Return a page of the wanted tasks; a search stops after these seconds."""
        newest = sort == NEWEST
        ids: list[int] | None = None
        place = cursor if cursor is not None else INTEGER_MAX if newest else 0
        low, high = (0, place - 1) if newest else (place, INTEGER_MAX)
        if sort not in (NEWEST, OLDEST):
            ids = self._sorted(wanted, sort, cursor)
        elif not wanted.searches:
            ids = self._ids(wanted, limit + 1, low, high, newest)
        if ids is None:
            select += "%%s ORDER BY task.id %s LIMIT %d" % ("DESC" if newest else "", limit + 1)
            return self._database.search(
                *self._ranged(select, wanted), low, min(high, self._database.last_id("task")),
                limit, seconds, newest)
        return Page(self._rows(select, ids[:limit]), ids[limit - 1] if len(ids) > limit else None)

    def _sorted(self, wanted: Filter, sort: str, cursor: int | None) -> list[int]:
        """Ids in this order, those behind `cursor`."""
        rows, more = self.find(wanted, SORT_ROWS, select=SORTED_ROW)
        if more is not None and not sort.endswith("function"):      # what waits has no times yet
            rows += self.find(wanted.within(BEGUN), SORT_ROWS, select=SORTED_ROW).rows
        rows, now = list({row["id"]: row for row in rows}.values()), self._clock.now()
        rows.sort(key=lambda row: SORTS[sort.lstrip("-")](row, now), reverse=sort.startswith("-"))
        ids: list[int] = [row["id"] for row in rows]
        if cursor is None:
            return ids
        if cursor not in ids:
            raise Malformed("The task with which the page before ended has gone. Begin anew.")
        return ids[ids.index(cursor) + 1:]

    def _rows(self, select: str, ids: list[int]) -> list[TaskRow]:
        """The rows of these tasks in this order, but of those that are gone."""
        found = {row["id"]: row for row in self._database.all_of(
            select % "" + "task.id IN (%s)", (), ids)}
        return [found[task_id] for task_id in ids if task_id in found]

    def pages(self, wanted: Filter, sort: str) -> Iterator[list[JsonObject]]:
        """All wanted tasks with arguments and results, a few at a time."""
        cursor: int | None = None
        more = True
        while more:
            rows, cursor = self.find(wanted, PAGE_ROWS, cursor, sort, EXPORT_ROW)
            more = cursor is not None
            yield [{**shown, "arguments": mask(shown["arguments"])}     # files are passed on
                   for shown in self.list_json(rows, FIELDS)]

    def failures(self, wanted: Filter, since: float = 0.0) -> JsonObject:
        """{"groups": what failed since then, by function and kind of error, newest first, of
        FAILURES_MAX tasks or as many as are found in a moment; "more": if there may be more}"""
        rows, going_on = self.find(wanted.within([FAILED]), FAILURES_MAX, seconds=LOOK_SECONDS)
        groups: dict[tuple[str, str], JsonObject] = {}
        for row in rows:
            if row["finished_at"] >= since:
                group = groups.setdefault((row["function"], row["error_type"]), {
                    "function": row["function"], "error": row["error_type"], "count": 0,
                    "message": row["error_message"], "newest": row["id"]})
                group["count"] += 1
        more = going_on is not None and not (rows and rows[-1]["finished_at"] < since)
        return {"groups": list(groups.values())[:GROUPS_MAX],
                "more": more or len(groups) > GROUPS_MAX}

    def firsts(self, status: int, owner_id: int | None = None,
               db: Reader | None = None) -> list[TaskRow]:
        """The first pending or scheduled task of each queue and priority that has some."""
        scan, values = self._by_status(owner_id, [status])
        db = db or self._database
        found = [db.one(
            "SELECT id, function, queue, turn, created_at, run_at %s AND queue=? AND priority=? "
            "ORDER BY turn LIMIT 1" % scan, (*values, *lane))
            for lane in lanes(db, status)]
        return [row for row in found if row]

    def count(self, wanted: Filter) -> dict[str, int] | None:
        """{"all": n, "pending": n, ...}, capped at COUNT_MAX; None if a search takes too long."""
        if wanted.searches:
            top = self._database.last_id("task")
            counts, low = self.tally(wanted._replace(statuses=None), 0, top, SEARCH_SECONDS)
            if low < top:
                return None
        else:
            scan, values = self._by_status(wanted.owner_id, range(7))
            counts = list(self._database.row("SELECT " + ", ".join(
                "(SELECT count(*) FROM (SELECT 1 %s%s LIMIT %d) AS found)"
                % (scan, " AND cancel_requested<2" if status == RUNNING else "", COUNT_MAX)
                for status in range(7)), values))
        return {word: min(count, COUNT_MAX)
                for word, count in zip(("all", *STATUS_WORDS), (sum(counts), *counts))}

    @staticmethod
    def _by_status(owner_id: int | None, statuses: Iterable[int]) -> Query:
        """Return the SQL of the tasks of one status, of an owner or of all, by an index; and the
        values for all these statuses. One statement must read them all: between two a task may go
        to a status that was read."""
        if owner_id is None:
            return "FROM task %s WHERE status=?" % BY_CLAIM, list(statuses)
        return ("FROM task %s WHERE status=? AND owner_id=?" % BY_TURN,
                [value for status in statuses for value in (status, owner_id)])

    def _ids(self, wanted: Filter, limit: int, low: int, high: int,
             newest: bool) -> list[int] | None:
        """Ids above `low` up to `high`, or None if looking through all is quicker than sorting."""
        if wanted.statuses is None:
            owner = () if wanted.owner_id is None else (wanted.owner_id,)
            scan = "%s WHERE owner_id=? AND" % BY_OWNER if owner else "WHERE"
            return [row[0] for row in self._database.all(
                "SELECT id FROM task %s id>? AND id<=? ORDER BY id %s LIMIT ?"
                % (scan, "DESC" if newest else ""), (*owner, low, high, limit))]
        scan, values = self._by_status(wanted.owner_id, wanted.statuses)
        each = " UNION ALL ".join(["SELECT id " + scan] * len(wanted.statuses))
        ids = [row[0] for row in self._database.all(each + " LIMIT ?", (*values, SORT_ROWS + 1))]
        if len(ids) > SORT_ROWS:
            return None
        return sorted((found for found in ids if low < found <= high), reverse=newest)[:limit]

    @staticmethod
    def _ranged(select: str, wanted: Filter) -> Query:
        """Return the query of wanted tasks in a range of ids, without the values of that range."""
        condition, values = wanted.where()
        return select % (BY_ID if wanted.owner_id is None else BY_OWNER,
                         "task.id>? AND task.id<=? AND " + condition), values

    def tally(self, wanted: Filter, low: int, top: int,
              seconds: float = SEARCH_SECONDS) -> StatusCounts:
        """Count the wanted tasks with ids above `low` up to `top`, as far as the time allows."""
        counts, select = [0] * 7, ("SELECT status, count(*) FROM task %s "
                                   "WHERE cancel_requested<2 AND %s GROUP BY status")
        for rows, reached in self._database.walk(
                *self._ranged(select, wanted), low, top, seconds):
            low = reached
            for status, count in rows:
                counts[status] += count
        return StatusCounts(counts, low)
