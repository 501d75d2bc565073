"""The log of attempts, and the activity: each event and its actor."""
from __future__ import annotations

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import PAGE_ROWS
from ..base.time_and_text import iso
from .connection import SEARCH_SECONDS, Connection, Reader
from .database import Database, Page

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, TaskRow

LOG_MAX_BYTES = 1 << 20         # limit of an attempt's log; a longer log loses its middle
LOG_PAGE_BYTES = 256 << 10


class LogPart(NamedTuple):
    """A part of a log.

    `times` has a pair for each piece: the number of line ends before it, and the time when it arrived.
    """

    text: str
    next_offset: int
    is_cut: bool                    # bytes within the part were dropped
    times: list[list[int | str | None]]


def activity_row(at: float, event: str, task: TaskRow, **details: Any) -> JsonObject:
    """Return a row of the activity about a task, which is given by its own row."""
    return {"at": at, "event": event, "task_id": task["id"], "attempt": task["attempts"] or None,
            "owner_id": task["owner_id"], "function": task["function"], "queue": task["queue"],
            **details}


def record_activity(transaction: Connection, at: float, event: str, task: TaskRow | None = None,
         **details: Any) -> None:
    """Add a row to the activity, about a task if there is one."""
    row = activity_row(at, event, task) if task else {"at": at, "event": event}
    transaction.insert("activity", {**row, **details})


def find_activity(database: Database, limit: int = PAGE_ROWS, before: int | None = None,
                  since: float | None = None, until: float | None = None,
                  viewer_id: int | None = None, **columns: Any) -> Page:
    """Return rows of the activity, newest first. Filters that are None are ignored.

    A viewer sees the events of all tasks and of their own account. Only `id` and `task_id` have an index: a
    search without `task_id` stops after SEARCH_SECONDS with fewer rows.
    """
    filters = {"at>=?": since, "at<?": until, "(task_id IS NOT NULL OR owner_id=?)": viewer_id,
             **{name + "=?": value for name, value in columns.items()}}
    filters = {words: value for words, value in filters.items() if value is not None}
    statement = ("SELECT activity.*, (SELECT name FROM user WHERE user.id=owner_id) AS owner FROM "
                 "activity WHERE id>? AND id<=? AND %s ORDER BY id DESC LIMIT %d"
                 % (" AND ".join(["1=1", *filters]), limit + 1))
    high: int = before - 1 if before is not None else (
        database.value("SELECT max(id) FROM activity") or 0)
    if columns.get("task_id") is None:
        return database.search(statement, [*filters.values()], 0, high, limit, SEARCH_SECONDS)
    rows = database.all(statement, (0, high, *filters.values()))
    return Page(list(rows[:limit]), rows[limit - 1]["id"] if len(rows) > limit else None)


def append_log(transaction: Connection, at: float, task_id: int, attempt: int, start: int,
               text: str) -> None:
    """Store a piece of an attempt's output that begins at byte `start`. A long log loses its middle."""
    length = len(text.encode("utf-8"))
    transaction.insert("log", {"task_id": task_id, "attempt": attempt, "start": start,
                               "length": length, "text": text, "at": at})
    if start + length > LOG_MAX_BYTES:
        transaction.run(
            "DELETE FROM log WHERE task_id=? AND attempt=? AND start>=? AND start<?",
            (task_id, attempt, LOG_MAX_BYTES // 2, start + length - LOG_MAX_BYTES // 2))


def log_length(transaction: Connection, task_id: int, attempt: int) -> int:
    """Return how many bytes an attempt has printed."""
    return transaction.value(
        "SELECT start+length FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT 1",
        (task_id, attempt)) or 0


def logged_attempts(db: Reader, task_id: int) -> list[int]:
    """Return the numbers of the attempts that printed something."""
    return [row[0] for row in db.all(
        "SELECT DISTINCT attempt FROM log WHERE task_id=? ORDER BY attempt", (task_id,))]


def read_log(db: Reader, task_id: int, attempt: int, offset: int = 0,
             limit: int = LOG_PAGE_BYTES) -> LogPart:
    """Return the part of a log that begins at byte `offset`, of at most `limit` bytes."""
    parts: list[str] = []
    times: list[list[int | str | None]] = []
    at, cut, ends = offset, False, 0
    for row in db.all(
            "SELECT start, length, text, at FROM log WHERE task_id=? AND attempt=? "
            "AND start+length>? ORDER BY start", (task_id, attempt, offset)):
        if row["start"] > at:
            parts.append("\n[... %d bytes cut out ...]\n" % (row["start"] - at))
            at, cut, ends = row["start"], True, ends + 2
        data = row["text"].encode("utf-8")[at - row["start"]:]
        while data and data[0] & 0xC0 == 0x80:      # the offset lies inside a character
            data, at = data[1:], at + 1
        text = data[:limit].decode("utf-8", "ignore")
        taken = len(text.encode("utf-8"))
        parts.append(text)
        times.append([ends, iso(row["at"])])
        at, limit, ends = at + taken, limit - taken, ends + text.count("\n")
        if taken < len(data):
            break
    return LogPart("".join(parts), at, cut, times)
