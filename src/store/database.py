"""Database: reads, writes in transactions, waits until a deadline.

A kind of database is a subclass: SqliteDatabase, PostgresDatabase.
"""
from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import LEASE_SECONDS, WEB_PATIENCE_SECONDS
from ..base.errors import Busy
from .connection import LOOK_SECONDS, Connection, Deadline, OneThread, Reader

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ..base.types import Row
    from ..base.time_and_text import AnyClock

SEARCH_ROWS = 64                # looked through at first; then as many as LOOK_SECONDS allow
OTHER_MACHINE_SLACK_SECONDS = 300.0     # clocks of machines differ


if TYPE_CHECKING:
    Result = TypeVar("Result")


class Page(NamedTuple):
    """Rows, and the id from which to go on; None if there are no more."""

    rows: list[Row]
    cursor: int | None


class Database(Reader):
    """What is read and written, by any number of threads.

    Reading and writing have a connection each; threads take turns at both, because `sqlite3`
    gives up the interpreter at every row and is slower when they do not. A transaction

    1. waits for the write lock, until the thread's deadline at most;
    2. begins, if this process may still write this database;
    3. runs its block and commits; a stranger who keeps it busy is waited for;
    4. does what is to follow a commit before it gives up the write lock.

    Its kinds know how to _connect(), _begin() and _commit(), and what the _problem() is when the
    driver raises an error: one that a person should see, or the error itself if it is our mistake.
    """

    errors: type[Exception] | tuple[type[Exception], ...] = ()      # what its driver raises
    waited = 0.0                        # seconds, for the write lock, the last time
    clock_offset = 0.0                  # seconds that the clock here is ahead of the database's
    journal: str | None = None          # how a file is written
    pauses = 0.0005, 0.005              # seconds, from one try to the next while it is busy
    hears_all = True                    # version_seen() tells of every commit
    is_shared = False                   # machines have it that do not have this folder
    has_own_disk = False                # True if no other machine has this folder
    last_id_words = "SELECT seq FROM sqlite_sequence WHERE name='%s'"
    version_words = "PRAGMA user_version"
    snapshot_words: tuple[str, ...] = ("BEGIN", "SELECT count(*) FROM sqlite_master")
    path: Path                          # the file in the folder, or the name of the server's
    _write_lock: OneThread

    def __init__(self, folder: Path | str, clock: AnyClock, patience: float) -> None:
        self.folder = Path(folder)
        self.clock = clock
        self.patience = patience        # seconds until Busy, where no deadline() is sooner
        self.lease_seconds, self.slack_seconds = LEASE_SECONDS, OTHER_MACHINE_SLACK_SECONDS
        self._deadline = Deadline()
        self._reading, self._looking = threading.Lock(), threading.Lock()
        self._writer_thread: int | None = None
        self._reader = self._writer = self._looker = Connection()

    def close(self) -> None:
        """Close all connections."""
        with self._looking, self._reading:
            for link in (self._reader, self._writer, self._looker):
                link.close()

    @property
    def alarm(self) -> int | None:
        """A descriptor that is readable when there may be tasks."""
        return None

    def ring(self) -> None:
        """Wake other workers that wait: there may be tasks for them, too."""

    def calm(self) -> None:
        """Forget that the alarm rang: who does looks once more before it waits."""

    def sign(self) -> None:
        """Show other machines that this one lives, if they ask."""

    def check_file(self) -> None:
        """StorageBroken if what we write would be lost."""

    def _open(self, name: str) -> Connection:
        """The connection of this name; another one if there is none or it broke."""
        link: Connection = getattr(self, name)
        if link.is_broken:
            link = self._connect()
            setattr(self, name, link)
        return link

    def _connect(self) -> Connection:
        raise NotImplementedError

    def _begin(self, durable: bool) -> None:
        raise NotImplementedError

    def _commit(self, durable: bool) -> None:
        raise NotImplementedError

    def _problem(self, error: Exception) -> Exception:
        raise NotImplementedError

    def version_seen(self) -> object:
        """A value that changes when anybody commits, ourselves included."""
        raise NotImplementedError

    def size(self) -> int:
        """How many bytes it takes."""
        raise NotImplementedError

    def wal_bytes(self) -> int:
        """Size of the log's file, where there is one."""
        return 0

    def promises(self) -> Row:
        """The version of the server that has it, and if a copy may lag behind: no file has one."""
        raise NotImplementedError

    def damage(self) -> str | None:
        """What is wrong with the file, None if nothing; all of it is read."""
        raise NotImplementedError

    def copy_to(self, path: Path) -> None:
        """Copy everything, as it is at one moment, into the empty file `path`, and check it."""
        raise NotImplementedError

    # Reading

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """All rows; Busy at the deadline. RuntimeError inside a transaction of this thread, which is
        read through its own connection."""
        self.refuse_inside()
        return self._patiently(lambda: self._read(statement, values))

    def refuse_inside(self) -> None:
        """Raise RuntimeError inside a transaction of this thread."""
        if self._writer_thread == threading.get_ident():
            raise RuntimeError("a transaction reads through the connection that it was given")

    def _read(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        with self._reading:
            return self._reader.all(statement, values)

    def look(self, statement: str, values: Sequence[Any] = (),
             seconds: float = math.inf) -> tuple[Sequence[Row] | None, float]:
        """(rows, seconds that took) of what may read much; None for rows if that takes too long.
        Who reads little does not wait for it, since it has a connection of its own."""
        with self._looking:
            started = self.clock.monotonic()
            rows = self._patiently(lambda: self._open("_looker").all_within(
                seconds, self.clock, statement, values))
            return rows, self.clock.monotonic() - started

    def last_id(self, table: str) -> int:
        """The highest id that any row of a table ever had."""
        return self.value(self.last_id_words % table) or 0

    def walk(self, statement: str, values: Sequence[Any], low: int, high: int, seconds: float,
             newest: bool = False) -> Iterator[tuple[Sequence[Row], int]]:
        """Look through ids above `low` up to `high`: yield (rows found, where to go on). These are
        the first two values of `statement`. One range of ids after the other is read in a moment:
        a smaller one after one that took too long, a larger one after one that was quick. At least
        one is read, whatever the time."""
        deadline, size, moved = self.clock.monotonic() + seconds, SEARCH_ROWS, False
        while low < high and not (moved and self.clock.monotonic() > deadline):
            some = (max(low, high - size), high) if newest else (low, min(low + size, high))
            rows, took = self.look(
                statement, (*some, *values), LOOK_SECONDS if size > 1 else math.inf)
            if rows is None:
                size = max(1, size // 4)
            else:
                moved, (low, high) = True, (low, some[0]) if newest else (some[1], high)
                yield rows, high if newest else low
                size *= 2 if took < LOOK_SECONDS / 3 else 1
            self.clock.sleep(0.001)         # now it is the turn of others

    def search(self, statement: str, values: Sequence[Any], low: int, high: int, limit: int,
               seconds: float, newest: bool = True) -> Page:
        """Return at most `limit` rows, as walk() finds them with ids above `low` up to `high`.
        A long search stops with fewer rows."""
        rows: list[Row] = []
        place, end = None, low if newest else high
        for found, reached in self.walk(statement, values, low, high, seconds, newest):
            rows += found
            place = None if reached == end else reached + newest
            if len(rows) > limit:
                return Page(rows[:limit], rows[limit - 1]["id"])
        return Page(rows, place)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A Reader in this block, which sees everything as it is at one moment."""
        try:
            with contextlib.closing(self._patiently(self._connect)) as link:
                for words in self.snapshot_words:
                    self._patiently(functools.partial(link.run, words))
                yield link
        except self.errors as error:
            raise self._problem(error)

    # Waiting

    @contextlib.contextmanager
    def deadline(self, seconds: float = WEB_PATIENCE_SECONDS) -> Iterator[None]:
        """In this block this thread waits until so many seconds from now at most, in all."""
        before = self._deadline.at
        self._deadline.at = min(before, self.clock.monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline.at = before

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """What this block takes (a body that is read) puts this thread's deadline off."""
        started = self.clock.monotonic()
        try:
            yield
        finally:
            self._deadline.at += self.clock.monotonic() - started

    def seconds_left(self) -> float:
        """How long this thread may wait now."""
        return max(0.0, min(self.patience, self._deadline.at - self.clock.monotonic()))

    def _patiently(self, action: Callable[[], Result]) -> Result:
        """Do `action`, again while the database is busy and the deadline has not passed."""
        until = 0.0
        while True:
            try:
                return action()
            except self.errors as error:
                problem, now = self._problem(error), self.clock.monotonic()
                until = until or now + self.seconds_left()
                if not isinstance(problem, Busy) or now >= until:
                    raise problem
            self.clock.sleep(self.clock.uniform(*self.pauses))

    # Writing

    @property
    def in_transaction(self) -> bool:
        """True inside a transaction of this thread."""
        return self._writer_thread == threading.get_ident()

    @contextlib.contextmanager
    def transaction(self, durable: bool = True) -> Iterator[Connection]:
        """BEGIN ... COMMIT around the block, which gets the connection.

        `durable` commits survive a power cut; others survive only the death of processes. Raises
        Busy, StorageFull or StorageBroken; then nothing was changed.
        """
        if self.in_transaction:
            raise RuntimeError("a transaction within a transaction")
        with self.deadline(self.patience):
            asked = self.clock.monotonic()
            self._write_lock.take(self._deadline.at)
            try:
                self._patiently(lambda: self._begin(durable))
                self.waited = self.clock.monotonic() - asked    # a server's lock is part of that
                self._writer_thread = threading.get_ident()
                yield self._writer
                self._commit(durable)
            except self.errors as error:
                self._writer.roll_back()
                raise self._problem(error)
            except BaseException:
                self._writer.roll_back()
                raise
            finally:
                self._writer_thread = None
                self._write_lock.give()

    def alone(self, action: Callable[[Connection], Result]) -> Result:
        """What action(transaction) returns."""
        with self.transaction() as transaction:
            return action(transaction)

    def together(self, action: Callable[[Connection], Result]) -> Result:
        """As alone(); a short one may share a commit with those of others."""
        return self.alone(action)
