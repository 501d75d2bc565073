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

LOG_MAX_BYTES = 1 << 20         # per attempt; beyond it the middle is cut out
LOG_PAGE_BYTES = 256 << 10


class LogPart(NamedTuple):
    """A part of a log. `times` has a pair for each piece: the line ends before it, when it came."""

    text: str
    next_offset: int
    is_cut: bool                    # something was cut out of it
    times: list[list[int | str | None]]


def activity_row(at: float, event: str, task: TaskRow, **details: Any) -> JsonObject:
    """What happened to a task (its row), as a row of the activity."""
    return {"at": at, "event": event, "task_id": task["id"], "attempt": task["attempts"] or None,
            "owner_id": task["owner_id"], "function": task["function"], "queue": task["queue"],
            **details}


def note(transaction: Connection, at: float, event: str, task: TaskRow | None = None,
         **details: Any) -> None:
    """Append a row about a task or, without one, about anything else to the activity."""
    row = activity_row(at, event, task) if task else {"at": at, "event": event}
    transaction.insert("activity", {**row, **details})


def find_activity(database: Database, limit: int = PAGE_ROWS, before: int | None = None,
                  since: float | None = None, until: float | None = None,
                  viewer_id: int | None = None, **columns: Any) -> Page:
    """Return rows, newest first; filters that are None are ignored. A viewer sees what became of
    tasks, and what concerns themselves. No index but the ids and the tasks' finds them; a long
    search stops with fewer rows."""
    asked = {"at>=?": since, "at<?": until, "(task_id IS NOT NULL OR owner_id=?)": viewer_id,
             **{name + "=?": value for name, value in columns.items()}}
    asked = {words: value for words, value in asked.items() if value is not None}
    statement = ("SELECT activity.*, (SELECT name FROM user WHERE user.id=owner_id) AS owner FROM "
                 "activity WHERE id>? AND id<=? AND %s ORDER BY id DESC LIMIT %d"
                 % (" AND ".join(["1=1", *asked]), limit + 1))
    high: int = before - 1 if before is not None else (
        database.value("SELECT max(id) FROM activity") or 0)
    if columns.get("task_id") is None:
        return database.search(statement, [*asked.values()], 0, high, limit, SEARCH_SECONDS)
    rows = database.all(statement, (0, high, *asked.values()))
    return Page(list(rows[:limit]), rows[limit - 1]["id"] if len(rows) > limit else None)


def append_log(transaction: Connection, at: float, task_id: int, attempt: int, start: int,
               text: str) -> None:
    """Keep a piece of what an attempt printed that begins at byte `start`. Of a long log the
    middle pieces are dropped."""
    length = len(text.encode("utf-8"))
    transaction.insert("log", {"task_id": task_id, "attempt": attempt, "start": start,
                               "length": length, "text": text, "at": at})
    if start + length > LOG_MAX_BYTES:
        transaction.run(
            "DELETE FROM log WHERE task_id=? AND attempt=? AND start>=? AND start<?",
            (task_id, attempt, LOG_MAX_BYTES // 2, start + length - LOG_MAX_BYTES // 2))


def log_length(transaction: Connection, task_id: int, attempt: int) -> int:
    """How many bytes an attempt has printed."""
    return transaction.value(
        "SELECT start+length FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT 1",
        (task_id, attempt)) or 0


def logged_attempts(db: Reader, task_id: int) -> list[int]:
    """The attempts that printed something."""
    return [row[0] for row in db.all(
        "SELECT DISTINCT attempt FROM log WHERE task_id=? ORDER BY attempt", (task_id,))]


def read_log(db: Reader, task_id: int, attempt: int, offset: int = 0,
             limit: int = LOG_PAGE_BYTES) -> LogPart:
    """Return a part of a log that begins at `offset`, of at most `limit` bytes."""
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
        while data and data[0] & 0xC0 == 0x80:      # an offset inside a character
            data, at = data[1:], at + 1
        text = data[:limit].decode("utf-8", "ignore")
        taken = len(text.encode("utf-8"))
        parts.append(text)
        times.append([ends, iso(row["at"])])
        at, limit, ends = at + taken, limit - taken, ends + text.count("\n")
        if taken < len(data):
            break
    return LogPart("".join(parts), at, cut, times)
