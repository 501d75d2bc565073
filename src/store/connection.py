"""Connection: its verbs, hints and errors, files of the data folder.

SQLite and PostgreSQL share these. Other rooms use the verbs of Connection. Only the rooms of store/ about
connections and databases, and the schema, know a dialect.
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

VARIABLES_MAX = 999             # of one statement, before SQLite 3.32
MANY_AT_ONCE = 500              # values that are looked for
SEARCH_SECONDS = 0.2            # of looking through a table in one request, and as long to count
LOOK_SECONDS = 0.02             # of one reading that others may wait for

# What another database may leave out, or says otherwise.
BY_CLAIM, BY_TURN, BY_OWNER, BY_UNIQUE, BY_FOLLOWER = (
    "INDEXED BY " + index
    for index in ("task_claim", "task_turn", "task_owner", "task_unique", "task_after_follower"))
BY_ID = "NOT INDEXED"
THEN_JOIN = "CROSS JOIN"        # the table on its left is read first
CONTAINS = "instr(lower(%s), lower(?))>0"

# Statements name statuses; ENDED is all that have ended.
STATUS_NUMBERS = {**{word.upper(): str(number) for number, word in enumerate(STATUS_WORDS)},
                  "ENDED": "(%d, %d, %d)" % (SUCCEEDED, FAILED, CANCELLED)}
STATUS_NAMES = r"\b(%s)\b" % "|".join(STATUS_NUMBERS)

BUSY = "The queue is busy; nothing was changed. Please try again."
FULL = "The disk or the quota is full; nothing was changed."
OWNER_GONE = "The user whom this is for was deleted meanwhile; nothing was changed."
UNUSABLE = "The database %(path)s cannot be used: %(said)s."


def cannot_write(folder: Path, error: OSError) -> StorageBroken | StorageFull:
    """The error for this OSError in a folder of ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(FULL)
    return StorageBroken("Nothing can be written in %s: %s." % (folder, error.strerror))


def free_bytes(path: Path) -> int:
    """How much we may still write to the file system that holds `path`; OSError if none does."""
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def emptied(path: object) -> StorageBroken:
    """The error for a database without anything in it: a new one is never begun over it."""
    return StorageBroken("The database %s is empty: it was overwritten or emptied. "
                         "Put a backup in its place." % path)


def find_database(folder: Path, anyhow: bool = False) -> Path:
    """The one jobqueue-*.db in `folder`, never empty but `anyhow`; else it is an error."""
    try:
        found = [name for name in os.listdir(folder)
                 if re.fullmatch(r"jobqueue-.*\.(db|server|remote)", name)]
    except OSError as error:
        raise SetupError("The data folder %s cannot be read: %s."
                         % (folder, error.strerror)) from None
    if len(found) != 1:
        raise SetupError("The data folder %s holds %s: exactly one is expected. %s" % (
            folder, ", ".join(sorted(found)) or "no jobqueue-*.db",
            "Move away what is not in use." if found else
            "(A folder that is new and empty can be deleted: it is made when there is none.)"))
    path = Path(folder) / found[0]
    status = path.stat()
    if not anyhow and (not stat.S_ISREG(status.st_mode) or status.st_size == 0):
        raise emptied(path)
    return path


def private_path(database: Path, name: str) -> Path:
    """`name` with the database's random word in it, beside it: an address nobody can guess.
    Some web servers give away what is in this folder, whatever is done against that."""
    stem, dot, ending = name.partition(".")
    word = database.stem.partition("-")[2]
    return database.with_name("%s-%s%s%s" % (stem, word, dot, ending))


def private_folder(database: Path, name: str) -> Path:
    """Return a folder beside the database whose name has a word of its own.

    Tasks see and print the paths of their files. So the word is a digest: it does not lead back to the
    64 random bits in the name of the database."""
    import hashlib
    word = hashlib.sha256(("%s %s" % (name, database.stem)).encode("utf-8", "surrogateescape")).hexdigest()
    return database.with_name("%s-%s" % (name, word[:16]))


@contextlib.contextmanager
def open_folder(folder: Path | str) -> Iterator[int]:
    """Open a folder, which others may have replaced by a link: then OSError."""
    room = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield room
    finally:
        os.close(room)


@contextlib.contextmanager
def write_part(room: int, pieces: Iterable[bytes], name: str | None = None) -> Iterator[str]:
    """Write a hidden file that only we may read into an open folder; the caller gives it its name."""
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
    """Write a text that only we may read, whole or not at all."""
    with open_folder(path.parent.resolve()) as room, \
            write_part(room, [text.encode("utf-8")]) as part:   # the data folder itself may be a link
        os.replace(part, path.name, src_dir_fd=room, dst_dir_fd=room)


def file_identity(path: Path) -> tuple[int, int] | None:
    """What stays the same as long as a path leads to the same file; None if it leads nowhere."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except OSError:
        return None


@functools.lru_cache(maxsize=1000)
def with_statuses(statement: str) -> str:
    """Return a statement with numbers in the place of the names of statuses."""
    return re.sub(STATUS_NAMES, lambda match: STATUS_NUMBERS[match[0]], statement)


class Reader:
    """What can be read, in terms of all()."""

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """All rows."""
        raise NotImplementedError

    def one(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row, or None."""
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None."""
        row = self.one(statement, values)
        return row[0] if row else None

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row:
        """The first row of a statement that always has one."""
        return self.all(statement, values)[0]

    def all_of(self, statement: str, values: Sequence[Any], many: Iterable[Any]) -> Iterator[Row]:
        """All rows where `%s`, after all other values, stands for any number of them."""
        wanted = list(many)
        for at in range(0, len(wanted), MANY_AT_ONCE):
            some = wanted[at:at + MANY_AT_ONCE]
            yield from self.all(statement % ", ".join("?" * len(some)), (*values, *some))


@functools.lru_cache(maxsize=100)
def insert_statement(words: str, table: str, columns: tuple[str, ...], rows: int = 1) -> str:
    """Return an INSERT (or INSERT OR IGNORE) of `rows` rows into a table."""
    marks = "(%s)" % ", ".join("?" * len(columns))
    return "%s INTO %s (%s) VALUES %s" % (
        words, table, ", ".join(columns), ", ".join([marks] * rows))


class Connection(Reader):
    """One connection in a few verbs; what to do about errors is its user's business. By itself
    it is one that is not open yet; its kinds are FileConnection and ServerConnection."""

    @property
    def is_broken(self) -> bool:
        """True if nothing can be asked any more."""
        return True

    @property
    def changes(self) -> int:
        """How many rows were added, changed or removed so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Close; harmless twice."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute; return the number of rows changed."""
        raise NotImplementedError

    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute once for each of `rows`; return the number of rows changed."""
        raise NotImplementedError

    def insert(self, table: str, row: JsonObject) -> int:
        """Add a row, a dictionary; return its id."""
        raise NotImplementedError

    def set_last_id(self, table: str, last: int) -> None:
        """Let the ids of new rows of a table be above `last`, whatever rows it has."""
        raise NotImplementedError

    def all_within(self, seconds: float, clock: AnyClock, statement: str,
                   values: Sequence[Any] = ()) -> Sequence[Row] | None:
        """All rows, or None if that takes longer."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Undo an open transaction, if there is one."""

    def note_ids(self, table: str, last: int) -> None:
        """New rows were given ids up to `last`: a file sees by itself that no other gets them."""

    # Nobody asks these how many rows they change: they may go along with the next question.

    def tell(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute."""
        self.run(statement, values)

    def tell_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute once for each of `rows`."""
        self.many(statement, rows)

    def ensure(self, table: str, row: JsonObject) -> None:
        """Add a row unless there is one with its key."""
        self.tell(insert_statement("INSERT OR IGNORE", table, tuple(row)), tuple(row.values()))

    def insert_all(self, table: str, rows: Iterable[JsonObject],
                   most: int = VARIABLES_MAX) -> None:
        """Add rows with the same columns, several by one statement, of at most `most` values.

        Half the time of one by one, and the interpreter is given up less often: other threads
        would each time keep it for a while, and the write lock is held.
        """
        coming = iter(rows)
        first = next(coming, None)
        if first is None:
            return
        coming, size = itertools.chain([first], coming), max(1, most // len(first))
        for some in iter(lambda: list(itertools.islice(coming, size)), []):
            self._insert_some(table, tuple(first), [tuple(row.values()) for row in some],
                              len(some) == size)

    def _insert_some(self, table: str, columns: tuple[str, ...], rows: list[AnyTuple],
                     are_full: bool) -> None:
        self.tell_many(insert_statement("INSERT", table, columns), rows)

    def upsert(self, table: str, key: JsonObject, row: JsonObject) -> None:
        """Give the row with this key (a dictionary, too) these values, adding it if it is new."""
        if not self.update(table, row, " AND ".join(name + "=?" for name in key), key.values()):
            row = {**key, **row}
            self.run(insert_statement("INSERT", table, tuple(row)), tuple(row.values()))

    def update(self, table: str, changes: JsonObject, where: str,
               values: Iterable[Any] = ()) -> int:
        """Change columns of the rows for which `where` holds; return their number."""
        return self.run("UPDATE %s SET %s WHERE %s" % (
            table, ", ".join(name + "=?" for name in changes), where), (*changes.values(), *values))


class OneThread:
    """Lets one thread of this process write at a time: that is all where a server does the rest."""

    def __init__(self, clock: AnyClock) -> None:
        self._clock, self._threads = clock, threading.Lock()

    def take(self, deadline: float) -> None:
        """Wait for it, until this moment (monotonic) at most; then Busy."""
        if not self._threads.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
            raise Busy(BUSY)

    def give(self) -> None:
        """Let the next one write."""
        self._threads.release()


class Deadline(threading.local):
    """The moment (monotonic) until which this thread may wait for a busy database."""

    at = math.inf
