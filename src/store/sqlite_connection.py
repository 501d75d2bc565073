"""A connection to the SQLite file; SQLite's errors as ours."""
from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.errors import Busy, Conflict, StorageBroken, StorageFull
from .connection import (BUSY, FULL, OWNER_GONE, UNUSABLE, Connection, free_bytes, insert_statement,
                         with_statuses)

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import AnyTuple, JsonObject, Row
    from ..base.time_and_text import AnyClock

WAL_ALARM_BYTES = 16 << 20
LOOK_STEPS = 1000               # SQLite's steps between two tests of a time limit; they read about 30 tasks

# A pattern for SQLite's message about the database or the disk, our error, and its sentence. (sqlite3 tells
# the error's code since Python 3.11 only.) All other messages show a mistake of ours.
STORAGE_ERRORS = (
    ("locked|locking protocol|busy", Busy, BUSY),
    ("foreign key", Conflict, OWNER_GONE),
    ("is full", StorageFull, FULL),
    ("readonly", StorageBroken, "The database %(path)s cannot be written by this user."),
    ("malformed|not a database", StorageBroken,
     "The database %(path)s is damaged (%(said)s). It is left as it is: put a backup in its "
     "place."),
    ("disk i/o error|unable to open|unsupported file format|could not decode|no such table"
     "|permission denied|closed database", StorageBroken, UNUSABLE),
)


def storage_error(error: Exception, path: Path) -> Exception:
    """Return our error for an error of SQLite's, or the same error if it is our mistake."""
    message = str(error)
    rows = [row for row in STORAGE_ERRORS if re.search(row[0], message.lower())]
    if not rows:
        return error
    _, kind, sentence = rows[0]
    with contextlib.suppress(OSError):      # SQLite also says this if the log's index finds the disk full
        if sentence == UNUSABLE and free_bytes(path) < 32768:
            return StorageFull(FULL)
    return kind(sentence % {"path": path, "said": message})


class FileConnection(Connection):
    """A connection to an SQLite file."""

    is_broken = False

    def __init__(self, path: Path) -> None:
        self._link = sqlite3.connect("file:%s?mode=rw" % quote(str(path)), uri=True, timeout=0,
                                     isolation_level=None, check_same_thread=False)
        self._link.row_factory = sqlite3.Row
        self._link.execute("PRAGMA wal_autocheckpoint=0")   # only DataFile makes checkpoints
        self._link.execute("PRAGMA temp_store=MEMORY")      # no temporary files: other users might read them

    def close(self) -> None:
        """Close. SQLite then makes a checkpoint, under an exclusive lock, if no other connection is open."""
        self._link.close()

    @property
    def changes(self) -> int:
        """Return how many rows were added, changed or removed so far."""
        return self._link.total_changes

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; return the number of rows changed."""
        return self._link.execute(with_statuses(statement), values).rowcount

    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement once for each of `rows`; return the number of rows changed."""
        return self._link.executemany(with_statuses(statement), rows).rowcount

    def insert(self, table: str, row: JsonObject) -> int:
        """Add a row, given as a dictionary; return its id."""
        return self._link.execute(insert_statement("INSERT", table, tuple(row)),
                                  tuple(row.values())).lastrowid or 0

    def _insert_some(self, table: str, columns: tuple[str, ...], rows: list[AnyTuple],
                     are_full: bool) -> None:
        if are_full:
            self.run(insert_statement("INSERT", table, columns, len(rows)),
                     list(itertools.chain.from_iterable(rows)))
        else:                           # a statement for this number of rows would have to be prepared
            super()._insert_some(table, columns, rows, are_full)

    def set_last_id(self, table: str, last: int) -> None:
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        self.upsert("sqlite_sequence", {"name": table}, {"seq": last})

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return all rows."""
        return self._link.execute(with_statuses(statement), values).fetchall()

    def all_within(self, seconds: float, clock: AnyClock, statement: str,
                   values: Sequence[Any] = ()) -> list[Row] | None:
        """Return all rows, or None if that takes longer than `seconds`."""
        end = clock.monotonic() + seconds
        self._link.set_progress_handler(lambda: clock.monotonic() > end, LOOK_STEPS)
        try:
            return self.all(statement, values)
        except sqlite3.OperationalError as error:
            if str(error) != "interrupted":
                raise
            return None
        finally:
            self._link.set_progress_handler(None, 0)

    def roll_back(self) -> None:
        """Undo an open transaction, if there is one."""
        if self._link.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.run("ROLLBACK")

    def copy_to(self, path: Path) -> None:
        """Copy the database into the file `path` and check the copy."""
        with contextlib.closing(sqlite3.connect(str(path))) as copy:
            self._link.backup(copy)
            verdict = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StorageBroken("The copy is damaged, and so may be the database: %s." % verdict)
