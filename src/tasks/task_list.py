"""Tasks as people see them: find, count, show.

A single task comes with everything that belongs to it. Lists have the tasks of a Filter. An index finds
owners and statuses. Other conditions are tested row by row, in one short range of ids after the other
(Database.walk), so that other readers need not wait.
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
from ..base.values import FILE_KEY, SECRET_TEXTS, mask, shown_arguments, summarize
from ..store.connection import (BY_CLAIM, BY_ID, BY_OWNER, BY_TURN, CONTAINS, LOOK_SECONDS, SEARCH_SECONDS,
                                THEN_JOIN, Reader)
from ..store.database import Database, Page
from .queues import plain
from .followers import lanes

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Query, TaskRow

AFTER_MAX = 1000                # predecessors of one task
RELATED_MAX = 100               # predecessors or followers shown of a task
SORT_ROWS = 5_000               # most tasks that are sorted; with more, ranges of ids are searched
GROUPS_MAX, RUNNING_MAX = 10, 10    # groups of failures that are shown, running tasks that are shown
# The kind of an error, and the groups of the tasks that have it.
KIND = "coalesce(error_type, reason)"
GROUPS = ("SELECT function, %s AS error, count(*) AS count, max(task.id) AS newest FROM task %%s "
          "WHERE cancel_requested<2 AND %%s GROUP BY function, %s" % (KIND, KIND))

TASK_ROW = ("SELECT task.*, user.name AS owner FROM task "
            "%s user ON user.id=task.owner_id WHERE cancel_requested<2 AND " % THEN_JOIN)
# Lists leave out large values: long arguments are NULL, a long result is "…".
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
# A cell of a spreadsheet has at most 32,767 characters.
LIST_ROW, EXPORT_ROW = LIST_ROW % "", EXPORT_ROW.replace("4000", "32000")
SORTED_ROW = ("SELECT id, status, function, started_at, finished_at FROM task %s "
              "WHERE cancel_requested<2 AND ")
# The expressions in which a text is searched, 500 characters of each. Ids, arguments and owners' names are
# searched, too.
SEARCHED = ("function", "message", "error_type || ': ' || error_message")


# Sort keys without an index: they sort the newest SORT_ROWS tasks. Keys of times also sort the newest
# SORT_ROWS tasks that have begun. Ids sort all tasks.
SORTS: dict[str, Callable[[TaskRow, float], Any]] = {
    "function": lambda row, _: row["function"], "started_at": lambda row, _: row["started_at"] or 0,
    "duration": lambda row, now: bool(row["started_at"]) and -row["started_at"] + (
        (now if row["status"] == RUNNING else row["finished_at"]) or row["started_at"])}
BEGUN = RUNNING, SUCCEEDED, FAILED, CANCELLED
NEWEST, OLDEST = "-id", "id"
FIELDS: dict[str, Callable[[str | None], Any]] = {     # the larger values of a task, and how they are read
    "arguments": shown_arguments, "result": lambda text: json.loads(text or "null")}


def task_json(row: TaskRow, after: Sequence[int] | None = None, fields: Iterable[str] = FIELDS,
              files: Iterable[tuple[str, str]] = ()) -> JsonObject:
    """Return a task as people see it, with the given FIELDS. `files` are its uploads as (id, name)."""
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
    return {**shown, **{name: FIELDS[name](row[name]) for name in fields}}


def samples_json(row: TaskRow) -> list[JsonObject] | None:
    """Return the samples of a running task; None if it has none."""
    if row["status"] != RUNNING or not row["samples"]:
        return None
    names = "seconds", "cpu_seconds", "memory"
    return [dict(zip(names, sample)) for sample in json.loads(row["samples"])]


class Filter(NamedTuple):
    """A filter for tasks; None stands for any.

    `text` is an id, or part of an owner's name, of SEARCHED or of the arguments. `error` is the type of the
    error, or the reason of a failure without one. `since` and `until` limit the time of adding. Arguments
    with a secret are searched only for their owner. `sees` is the id of the user who searches (0: no user;
    None: the host, which searches all).
    """

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
        """Return the same filter, but only for tasks with one of these statuses."""
        return self._replace(statuses=[      # SQLite 3.15 has no empty IN list
            status for status in statuses if status in (self.statuses or statuses)] or [-1])

    @property
    def searches(self) -> bool:
        """Return True if no index finds the tasks, so that rows must be searched."""
        return any(value is not None for value in self[2:-1])

    def where(self) -> tuple[str, list[Any]]:
        """Return a condition in SQL, and the values of its question marks."""
        conditions = {"owner_id=?": self.owner_id, "function=?": self.function, "queue=?": self.queue,
                 KIND + "=?": self.error, "finished_at>=?": self.ended_since,
                 "task.created_at>=?": self.since, "task.created_at<?": self.until}
        parts: dict[str, Sequence[Any]] = {
            words: [value] for words, value in conditions.items() if value is not None}
        for name, allowed in (("status", self.statuses), ("task.id", self.ids)):
            if allowed is not None:
                parts["%s IN (%s)" % (name, ", ".join("?" * len(allowed)))] = allowed
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
    """The list of tasks: finds, counts and shows them."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def get(self, task_id: int, owner_id: int | None = None, db: Reader | None = None) -> TaskRow:
        """Return the row of a task; NotFound if it is missing or another owner's."""
        is_number = re.fullmatch("[0-9]{1,18}", str(task_id))
        db = db or self._database
        row = db.one(TASK_ROW + "task.id=?", (task_id,)) if is_number else None
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def removed(self, task_id: int, owner_id: int | None = None) -> TaskRow:
        """Return function, owner and end of a task that was removed on success; NotFound if none was."""
        row = self._database.one(
            "SELECT at, function, owner_id, user.name AS owner FROM activity "
            "JOIN user ON user.id=activity.owner_id WHERE task_id=? AND event='succeeded' "
            "AND NOT EXISTS (SELECT 1 FROM activity WHERE task_id=? AND event='deleted')",
            (task_id, task_id))
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no task %s." % task_id)
        return row

    def full_json(self, row: TaskRow) -> JsonObject:
        """Return a task with the last traceback, its samples, its predecessors and its followers."""
        shown = task_json(row, row["after_failure"] and self._after(row, AFTER_MAX),
                          files=self._given(row))
        shown["samples"] = samples_json(row)
        shown["predecessors"] = self._related(row, "after_id", "task_id=? AND settled IN (0, 1, 2)")
        shown["followers"] = self._related(row, "task_id", "settled IN (0, 1, 2) AND after_id=?")
        if shown["error"]:
            last = self._database.value(
                "SELECT text FROM log WHERE task_id=? ORDER BY attempt DESC, start DESC LIMIT 1",
                (row["id"],)) or ""
            shown["error"]["traceback"] = last if last.startswith("Traceback ") else None
        return shown

    def neighbours(self, row: TaskRow, owner_id: int | None = None) -> list[int | None]:
        """Return the ids of the tasks before and after this one, of an owner or of all; None at the end."""
        scan = "task %s WHERE owner_id=?" % BY_OWNER if owner_id else "task WHERE ?=0"
        return [self._database.value(
            "SELECT id FROM %s AND cancel_requested<2 AND id%s? ORDER BY id %s LIMIT 1"
            % (scan, *side), (owner_id or 0, row["id"])) for side in (("<", "DESC"), (">", "ASC"))]

    def last_success(self, row: TaskRow) -> JsonObject | None:
        """Return the newest success of the same function, owner and arguments; None if a search finds none.

        An index finds the owner's tasks. The search stops after SEARCH_SECONDS.
        """
        for rows, _ in self._database.walk(
                "SELECT id, finished_at FROM task %s WHERE id>? AND id<=? AND owner_id=? AND function=? "
                "AND status=SUCCEEDED AND cancel_requested<2 AND arguments=? ORDER BY id DESC LIMIT 1"
                % BY_OWNER, (row["owner_id"], row["function"], row["arguments"]), 0,
                self._database.last_id("task"), SEARCH_SECONDS, newest=True):
            for success in rows:
                measured = self._database.one(
                    "SELECT seconds, peak_memory FROM activity WHERE task_id=? AND event='succeeded' "
                    "ORDER BY id DESC LIMIT 1", (success["id"],))
                return {"id": success["id"], "finished_at": iso(success["finished_at"]),
                        "seconds": measured and measured["seconds"],
                        "peak_memory": measured and measured["peak_memory"]}
        return None

    def list_json(self, rows: Iterable[TaskRow], fields: Iterable[str] = ()) -> list[JsonObject]:
        """Return tasks as lists show them, with the given FIELDS."""
        return [task_json(row, row["after_failure"] and self._after(row, RELATED_MAX), fields,
                          self._given(row)) for row in rows]

    def _given(self, row: TaskRow) -> list[tuple[str, str]]:
        """Return (id, name) of each file that a task was given, for its summary."""
        if not re.search(FILE_KEY, row["arguments"] or ""):
            return []
        return [(key, name) for key, name in self._database.all(
            "SELECT key, name FROM file WHERE task_id=? AND key IS NOT NULL AND name IS NOT NULL",
            (row["id"],))]

    def _after(self, row: TaskRow, limit: int) -> list[int]:
        """Return the ids of the tasks that this one comes after."""
        return [after for after, in self._database.all(
            "SELECT after_id FROM task_after WHERE task_id=? ORDER BY after_id LIMIT ?",
            (row["id"], limit))]

    def results_before(self, task_id: int) -> list[Any]:
        """Return the results of the predecessors, in the order of `after`; None for removed tasks."""
        return [json.loads(text or "null") for text, in self._database.all(
            "SELECT result FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE task_after.task_id=? ORDER BY place, after_id", (task_id,))]

    def _related(self, row: TaskRow, side: str, condition: str) -> list[JsonObject]:
        """Return the remaining predecessors or followers of a task."""
        rows = self._database.all(
            "SELECT task.id, function, status FROM task_after %s task ON task.id=%s "
            "WHERE %s AND cancel_requested<2 LIMIT ?" % (THEN_JOIN, side, condition),
            (row["id"], RELATED_MAX))
        return [{"id": task_id, "function": function, "status": STATUS_WORDS[status]}
                for task_id, function, status in sorted(map(tuple, rows))]

    def find(self, task_filter: Filter, limit: int, cursor: int | None = None, sort: str = NEWEST,
             select: str = LIST_ROW, seconds: float = SEARCH_SECONDS) -> Page:
        """Return a page of the tasks of a filter. A search stops after `seconds`."""
        newest = sort == NEWEST
        ids: list[int] | None = None
        place = cursor if cursor is not None else INTEGER_MAX if newest else 0
        low, high = (0, place - 1) if newest else (place, INTEGER_MAX)
        if sort not in (NEWEST, OLDEST):
            ids = self._sorted(task_filter, sort, cursor)
        elif not task_filter.searches:
            ids = self._ids(task_filter, limit + 1, low, high, newest)
        if ids is None:
            select += "%%s ORDER BY task.id %s LIMIT %d" % ("DESC" if newest else "", limit + 1)
            return self._database.search(
                *self._ranged(select, task_filter), low, min(high, self._database.last_id("task")),
                limit, seconds, newest)
        return Page(self._rows(select, ids[:limit]), ids[limit - 1] if len(ids) > limit else None)

    def _sorted(self, task_filter: Filter, sort: str, cursor: int | None) -> list[int]:
        """Return the ids of a filter's tasks in the order `sort`, after `cursor`."""
        rows, more = self.find(task_filter, SORT_ROWS, select=SORTED_ROW)
        if more is not None and not sort.endswith("function"):      # tasks that have not begun have no times
            rows += self.find(task_filter.within(BEGUN), SORT_ROWS, select=SORTED_ROW).rows
        rows, now = list({row["id"]: row for row in rows}.values()), self._clock.now()
        rows.sort(key=lambda row: SORTS[sort.lstrip("-")](row, now), reverse=sort.startswith("-"))
        ids: list[int] = [row["id"] for row in rows]
        if cursor is None:
            return ids
        if cursor not in ids:
            raise Malformed("The last task of the page before was removed. Begin at the first page.")
        return ids[ids.index(cursor) + 1:]

    def _rows(self, select: str, ids: list[int]) -> list[TaskRow]:
        """Return the rows of these tasks in this order, without removed tasks."""
        by_id = {row["id"]: row for row in self._database.all_of(
            select % "" + "task.id IN (%s)", (), ids)}
        return [by_id[task_id] for task_id in ids if task_id in by_id]

    def pages(self, task_filter: Filter, sort: str) -> Iterator[list[JsonObject]]:
        """Yield all tasks of a filter with arguments and results, a portion at a time."""
        cursor: int | None = None
        more = True
        while more:
            rows, cursor = self.find(task_filter, PAGE_ROWS, cursor, sort, EXPORT_ROW)
            more = cursor is not None
            yield [{**shown, "arguments": mask(shown["arguments"])}  # people share exported files
                   for shown in self.list_json(rows, FIELDS)]

    def failures(self, task_filter: Filter) -> JsonObject:
        """Return the failures of a filter in groups by function and kind of error, the largest first.

        At most GROUPS_MAX groups are shown; `other_kinds` and `other_count` are those left out. First all
        failed tasks are read, found by their status. If that takes longer than LOOK_SECONDS, ranges of ids
        are read, newest first, for SEARCH_SECONDS. If the time is over, `more` is true.
        """
        failed = task_filter.within([FAILED])
        condition, values = failed.where()
        index = BY_CLAIM if failed.owner_id is None else BY_TURN
        whole, _ = self._database.read_within(GROUPS % (index, condition), values, LOOK_SECONDS)
        portions = [(whole or [], 0)]
        if whole is None:
            portions = list(self._database.walk(
                *self._ranged(GROUPS, failed), 0, self._database.last_id("task"), SEARCH_SECONDS, True))
        groups: dict[tuple[str, str], JsonObject] = {}
        for row in itertools.chain(*(rows for rows, _ in portions)):
            group = groups.setdefault((row["function"], row["error"]), {
                "function": row["function"], "error": row["error"], "count": 0, "newest": 0})
            group["count"] += row["count"]
            group["newest"] = max(group["newest"], row["newest"])
        ordered = sorted(groups.values(), key=lambda group: (-group["count"], -group["newest"]))
        shown, more_kinds = ordered[:GROUPS_MAX], ordered[GROUPS_MAX:]
        messages = dict(map(tuple, self._database.all_of(
            "SELECT id, error_message FROM task WHERE id IN (%s)", (), [
                group["newest"] for group in shown])))
        return {"groups": [{**group, "message": messages.get(group["newest"])} for group in shown],
                "count": sum(group["count"] for group in ordered), "other_kinds": len(more_kinds),
                "other_count": sum(group["count"] for group in more_kinds), "more": portions[-1][1] > 0}

    def firsts(self, status: int, owner_id: int | None = None,
               db: Reader | None = None) -> list[TaskRow]:
        """Return the first pending or scheduled task of each queue and priority that has some."""
        scan, values = self._by_status(owner_id, [status])
        db = db or self._database
        first_rows = [db.one(
            "SELECT id, function, queue, turn, created_at, run_at %s AND queue=? AND priority=? "
            "ORDER BY turn LIMIT 1" % scan, (*values, *lane))
            for lane in lanes(db, status)]
        return [row for row in first_rows if row]

    def count(self, task_filter: Filter) -> dict[str, int] | None:
        """Return {"all": n, "pending": n, ...}, at most COUNT_MAX each; None if a search takes too long."""
        if task_filter.searches:
            top = self._database.last_id("task")
            counts, low = self.tally(task_filter._replace(statuses=None), 0, top, SEARCH_SECONDS)
            if low < top:
                return None
        else:
            scan, values = self._by_status(task_filter.owner_id, range(7))
            counts = list(self._database.row("SELECT " + ", ".join(
                "(SELECT count(*) FROM (SELECT 1 %s%s LIMIT %d) AS found)"
                % (scan, " AND cancel_requested<2" if status == RUNNING else "", COUNT_MAX)
                for status in range(7)), values))
        return {word: min(count, COUNT_MAX)
                for word, count in zip(("all", *STATUS_WORDS), (sum(counts), *counts))}

    @staticmethod
    def _by_status(owner_id: int | None, statuses: Iterable[int]) -> Query:
        """Return the SQL for tasks of one status, of an owner or of all, and the values for all `statuses`.

        One statement must read all statuses: between two statements a task may change to a status that
        was read.
        """
        if owner_id is None:
            return "FROM task %s WHERE status=?" % BY_CLAIM, list(statuses)
        return ("FROM task %s WHERE status=? AND owner_id=?" % BY_TURN,
                [value for status in statuses for value in (status, owner_id)])

    def _ids(self, task_filter: Filter, limit: int, low: int, high: int,
             newest: bool) -> list[int] | None:
        """Return the ids above `low` up to `high`, or None if there are too many to sort."""
        if task_filter.statuses is None:
            owner = () if task_filter.owner_id is None else (task_filter.owner_id,)
            scan = "%s WHERE owner_id=? AND" % BY_OWNER if owner else "WHERE"
            return [row[0] for row in self._database.all(
                "SELECT id FROM task %s id>? AND id<=? ORDER BY id %s LIMIT ?"
                % (scan, "DESC" if newest else ""), (*owner, low, high, limit))]
        scan, values = self._by_status(task_filter.owner_id, task_filter.statuses)
        each = " UNION ALL ".join(["SELECT id " + scan] * len(task_filter.statuses))
        ids = [row[0] for row in self._database.all(each + " LIMIT ?", (*values, SORT_ROWS + 1))]
        if len(ids) > SORT_ROWS:
            return None
        return sorted((task_id for task_id in ids if low < task_id <= high), reverse=newest)[:limit]

    @staticmethod
    def _ranged(select: str, task_filter: Filter) -> Query:
        """Return the query for tasks of a filter in a range of ids, without the values of the range."""
        condition, values = task_filter.where()
        return select % (BY_ID if task_filter.owner_id is None else BY_OWNER,
                         "task.id>? AND task.id<=? AND " + condition), values

    def tally(self, task_filter: Filter, low: int, top: int,
              seconds: float = SEARCH_SECONDS) -> StatusCounts:
        """Count the tasks of a filter with ids above `low` up to `top`, as far as the time allows."""
        counts, select = [0] * 7, ("SELECT status, count(*) FROM task %s "
                                   "WHERE cancel_requested<2 AND %s GROUP BY status")
        for rows, reached in self._database.walk(
                *self._ranged(select, task_filter), low, top, seconds):
            low = reached
            for status, count in rows:
                counts[status] += count
        return StatusCounts(counts, low)
