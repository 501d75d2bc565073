"""Connection: its verbs, hints and errors, files of the data folder.

SQLite and PostgreSQL share this room. Other rooms use the verbs of Connection. Only the schema and the
rooms of store/ about connections and databases know a dialect.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import math
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import CANCELLED, FAILED, STATUS_WORDS, SUCCEEDED
from ..base.errors import Busy, SetupError, StorageBroken, StorageFull
from ..base.time_and_text import random_token

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import AnyTuple, JsonObject, Row
    from ..base.time_and_text import AnyClock

VARIABLES_MAX = 999             # bound values of one statement, before SQLite 3.32
MANY_AT_ONCE = 500              # values in one IN list
SEARCH_SECONDS = 0.2            # limit of one search in a table, and of one count
LOOK_SECONDS = 0.02             # limit of one read within a search: other threads wait meanwhile

# SQL for SQLite. to_postgres() removes it or writes it differently.
BY_CLAIM, BY_TURN, BY_OWNER, BY_UNIQUE, BY_FOLLOWER = (
    "INDEXED BY " + index
    for index in ("task_claim", "task_turn", "task_owner", "task_unique", "task_after_follower"))
BY_ID = "NOT INDEXED"
THEN_JOIN = "CROSS JOIN"        # the table on its left is read first
CONTAINS = "instr(lower(%s), lower(?))>0"

# Statements contain names of statuses; with_statuses() replaces them. ENDED stands for all final statuses.
STATUS_NUMBERS = {**{word.upper(): str(number) for number, word in enumerate(STATUS_WORDS)},
                  "ENDED": "(%d, %d, %d)" % (SUCCEEDED, FAILED, CANCELLED)}
STATUS_NAMES = r"\b(%s)\b" % "|".join(STATUS_NUMBERS)

BUSY = "The queue is busy; nothing was changed. Please try again."
FULL = "The disk or the quota is full; nothing was changed."
OWNER_GONE = "This user was deleted meanwhile; nothing was changed."
UNUSABLE = "The database %(path)s cannot be used: %(said)s."


def cannot_write(folder: Path, error: OSError) -> StorageBroken | StorageFull:
    """Return the error for an OSError in the data folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(FULL)
    return StorageBroken("Nothing can be written in %s: %s." % (folder, error.strerror))


def free_bytes(path: Path) -> int:
    """Return how many bytes this user may still write beside `path`; OSError if `path` does not exist."""
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def emptied(path: object) -> StorageBroken:
    """Return the error for an empty database file. No new database is ever made in its place."""
    return StorageBroken("The database %s is empty: it was overwritten or emptied. "
                         "Put a backup in its place." % path)


def find_database(folder: Path, allow_empty: bool = False) -> Path:
    """Return the path of the one file jobqueue-*.db, .server or .remote; SetupError if there is not just one.

    An empty file raises StorageBroken, unless `allow_empty`.
    """
    try:
        names = [name for name in os.listdir(folder)
                 if re.fullmatch(r"jobqueue-.*\.(db|server|remote)", name)]
    except OSError as error:
        raise SetupError("The data folder %s cannot be read: %s."
                         % (folder, error.strerror)) from None
    if len(names) != 1:
        raise SetupError("The data folder %s holds %s: exactly one is expected. %s" % (
            folder, ", ".join(sorted(names)) or "no jobqueue-*.db",
            "Move the unused ones away." if names else
            "(A folder that is new and empty can be deleted: it is made when there is none.)"))
    path = Path(folder) / names[0]
    status = path.stat()
    if not allow_empty and (not stat.S_ISREG(status.st_mode) or status.st_size == 0):
        raise emptied(path)
    return path


def private_path(database: Path, name: str) -> Path:
    """Return the path of a file beside the database, with the database's random word in its name.

    Some web servers deliver files of this folder in spite of .htaccess. The word makes their addresses
    impossible to guess.
    """
    stem, dot, ending = name.partition(".")
    word = database.stem.partition("-")[2]
    return database.with_name("%s-%s%s%s" % (stem, word, dot, ending))


def private_folder(database: Path, name: str) -> Path:
    """Return the path of a folder beside the database, with a digest in its name.

    Tasks see and print the paths of their files. The 64 random bits in the database's name cannot be
    computed from the digest.
    """
    import hashlib
    word = hashlib.sha256(("%s %s" % (name, database.stem)).encode("utf-8", "surrogateescape")).hexdigest()
    return database.with_name("%s-%s" % (name, word[:16]))


@contextlib.contextmanager
def open_folder(folder: Path | str) -> Iterator[int]:
    """Open a folder and yield its descriptor.

    OSError for a symbolic link: another user may have put it in the folder's place.
    """
    room = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield room
    finally:
        os.close(room)


@contextlib.contextmanager
def write_part(room: int, pieces: Iterable[bytes], name: str | None = None) -> Iterator[str]:
    """Write a hidden file into an open folder, and yield its name. Only this user can read it.

    The caller renames it in the block, or it is removed.
    """
    part = "." + (name or random_token(8))
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=room), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=room)


def write_private(path: Path, text: str) -> None:
    """Write a text to a file that only this user can read: all of the text, or nothing."""
    # resolve(): the data folder itself may be a symbolic link.
    with open_folder(path.parent.resolve()) as room, \
            write_part(room, [text.encode("utf-8")]) as part:
        os.replace(part, path.name, src_dir_fd=room, dst_dir_fd=room)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path, or None. A file that replaces it has another identity."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except OSError:
        return None


@functools.lru_cache(maxsize=1000)
def with_statuses(statement: str) -> str:
    """Return a statement with each name of a status replaced by its number."""
    return re.sub(STATUS_NAMES, lambda match: STATUS_NUMBERS[match[0]], statement)


class Reader:
    """A base class with the queries of connections and databases, all built on all()."""

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """Return all rows."""
        raise NotImplementedError

    def one(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row, or None."""
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row, or None."""
        row = self.one(statement, values)
        return row[0] if row else None

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row:
        """Return the first row of a statement that always has one."""
        return self.all(statement, values)[0]

    def all_of(self, statement: str, values: Sequence[Any], many: Iterable[Any]) -> Iterator[Row]:
        """Yield all rows of a statement whose `%s` stands for the values in `many`, after all `values`.

        The statement runs once for each MANY_AT_ONCE of them.
        """
        all_values = list(many)
        for at in range(0, len(all_values), MANY_AT_ONCE):
            portion = all_values[at:at + MANY_AT_ONCE]
            yield from self.all(statement % ", ".join("?" * len(portion)), (*values, *portion))


@functools.lru_cache(maxsize=100)
def insert_statement(words: str, table: str, columns: tuple[str, ...], rows: int = 1) -> str:
    """Return an INSERT (or INSERT OR IGNORE) of `rows` rows into a table."""
    marks = "(%s)" % ", ".join("?" * len(columns))
    return "%s INTO %s (%s) VALUES %s" % (
        words, table, ", ".join(columns), ", ".join([marks] * rows))


class Connection(Reader):
    """A connection to a database. Callers handle the errors of its driver.

    This base class is a connection that is not open yet. FileConnection and ServerConnection derive from
    it.
    """

    @property
    def is_broken(self) -> bool:
        """Return True if the connection cannot be used any more."""
        return True

    @property
    def changes(self) -> int:
        """Return how many rows were added, changed or removed so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection, unless it is closed."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; return the number of rows changed."""
        raise NotImplementedError

    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement once for each of `rows`; return the number of rows changed."""
        raise NotImplementedError

    def insert(self, table: str, row: JsonObject) -> int:
        """Add a row, given as a dictionary; return its id."""
        raise NotImplementedError

    def set_last_id(self, table: str, last: int) -> None:
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        raise NotImplementedError

    def all_within(self, seconds: float, clock: AnyClock, statement: str,
                   values: Sequence[Any] = ()) -> Sequence[Row] | None:
        """Return all rows, or None if that takes longer than `seconds`."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Undo an open transaction, if there is one."""

    def advance_ids(self, table: str, last: int) -> None:
        """Tell the database that rows with ids up to `last` were added. SQLite advances its sequence
        itself."""

    # The next four methods return nothing, so ServerConnection sends their statements with the next query.

    def run_later(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement, at the latest with the next query."""
        self.run(statement, values)

    def run_many_later(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once for each of `rows`, at the latest with the next query."""
        self.many(statement, rows)

    def ensure(self, table: str, row: JsonObject) -> None:
        """Add a row, unless there is a row with its key."""
        self.run_later(insert_statement("INSERT OR IGNORE", table, tuple(row)), tuple(row.values()))

    def insert_all(self, table: str, rows: Iterable[JsonObject],
                   most: int = VARIABLES_MAX) -> None:
        """Add rows with the same columns, with at most `most` values in one statement.

        That takes half the time of single rows. It also holds the write lock for less time, because
        sqlite3 gives other threads a chance to run after each statement.
        """
        coming = iter(rows)
        first = next(coming, None)
        if first is None:
            return
        coming, size = itertools.chain([first], coming), max(1, most // len(first))
        for portion in iter(lambda: list(itertools.islice(coming, size)), []):
            self._insert_some(table, tuple(first), [tuple(row.values()) for row in portion],
                              len(portion) == size)

    def _insert_some(self, table: str, columns: tuple[str, ...], rows: list[AnyTuple],
                     are_full: bool) -> None:
        self.run_many_later(insert_statement("INSERT", table, columns), rows)

    def upsert(self, table: str, key: JsonObject, row: JsonObject) -> None:
        """Update the row with this key, or add it."""
        if not self.update(table, row, " AND ".join(name + "=?" for name in key), key.values()):
            row = {**key, **row}
            self.run(insert_statement("INSERT", table, tuple(row)), tuple(row.values()))

    def update(self, table: str, changes: JsonObject, where: str,
               values: Iterable[Any] = ()) -> int:
        """Change columns of the rows that fulfil `where`; return their number."""
        return self.run("UPDATE %s SET %s WHERE %s" % (
            table, ", ".join(name + "=?" for name in changes), where), (*changes.values(), *values))


class OneThread:
    """A lock for the threads of this process. A database server needs no other lock on this machine."""

    def __init__(self, clock: AnyClock) -> None:
        self._clock, self._threads = clock, threading.Lock()

    def acquire(self, deadline: float) -> None:
        """Wait for the lock; Busy at the deadline (monotonic)."""
        if not self._threads.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
            raise Busy(BUSY)

    def release(self) -> None:
        """Release the lock."""
        self._threads.release()


class Deadline(threading.local):
    """The moment (monotonic) until which this thread may wait for a busy database."""

    at = math.inf
