"""Database: reads, writes in transactions, waits until a deadline.

SqliteDatabase and PostgresDatabase derive from it.
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

SEARCH_IDS = 64                # ids in the first range of a search; its time decides the size of the next
OTHER_MACHINE_SLACK_SECONDS = 300.0     # tolerated difference between the clocks of two machines


if TYPE_CHECKING:
    Result = TypeVar("Result")


class Page(NamedTuple):
    """Rows, and the id at which the next page begins; None if there are no more rows."""

    rows: list[Row]
    cursor: int | None


class Database(Reader):
    """A database, for any number of threads.

    All reads share one connection, all writes another, all long reads a third. Threads take turns at each:
    `sqlite3` releases the interpreter lock at every row, which slows down concurrent threads. A transaction
    has these steps:

    1. Wait for the write lock, until the thread's deadline at most.
    2. Begin, if this process may still write this database.
    3. Run the block and commit. If another program keeps the file busy, wait.
    4. Ring the bell and checkpoint, then release the write lock.

    A derived class implements _connect(), _begin() and _commit(). Its _problem() turns an error of the
    driver into an error of ours; a mistake of ours stays as it is.
    """

    errors: type[Exception] | tuple[type[Exception], ...] = ()      # exceptions of the driver
    waited = 0.0                        # seconds that the last wait for the write lock took
    clock_offset = 0.0                  # seconds by which this machine's clock is ahead of the server's
    journal: str | None = None          # journal mode of a file; None for a server
    pauses = 0.0005, 0.005              # shortest and longest pause while the database is busy, in seconds
    hears_all = True                    # True if version_seen() changes with every commit
    is_shared = False                   # True if machines without this data folder may use the database
    has_own_disk = False                # True if no other machine has this data folder
    last_id_words = "SELECT seq FROM sqlite_sequence WHERE name='%s'"
    version_words = "PRAGMA user_version"
    snapshot_words: tuple[str, ...] = ("BEGIN", "SELECT count(*) FROM sqlite_master")
    path: Path                          # the database file, or the file with the epoch of the server
    _write_lock: OneThread

    def __init__(self, folder: Path | str, clock: AnyClock, patience: float) -> None:
        self.folder = Path(folder)
        self.clock = clock
        self.patience = patience        # seconds until Busy, unless a deadline comes first
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
        """Return a descriptor that becomes readable when there may be tasks, or None."""
        return None

    def ring(self) -> None:
        """Wake other idle workers: there may be tasks for them, too."""

    def calm(self) -> None:
        """Clear the wake-up. The caller must look for work again before it waits."""

    def sign(self) -> None:
        """Show other machines that this one uses the database."""

    def check_file(self) -> None:
        """Raise StorageBroken if a write would be lost."""

    def _open(self, name: str) -> Connection:
        """Return the connection in the attribute `name`. Open it first if it is closed or broken."""
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
        """Return a value that changes after commits, our own included; after every one if `hears_all`."""
        raise NotImplementedError

    def size(self) -> int:
        """Return the size in bytes."""
        raise NotImplementedError

    def wal_bytes(self) -> int:
        """Return the size of the write-ahead log in bytes."""
        return 0

    def server_facts(self) -> Row:
        """Return a row about a server: its version, `lags` and `holder`. A file has no such row."""
        raise NotImplementedError

    def damage(self) -> str | None:
        """Return the first damage in the file, or None. The whole file is read."""
        raise NotImplementedError

    def copy_to(self, path: Path) -> None:
        """Copy everything, as of one moment, into the empty file `path`, and check the copy."""
        raise NotImplementedError

    # Reading

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """Return all rows; Busy at the deadline.

        RuntimeError inside a transaction of this thread: read through the connection of the transaction.
        """
        self.refuse_inside()
        return self._patiently(lambda: self._read(statement, values))

    def refuse_inside(self) -> None:
        """Raise RuntimeError inside a transaction of this thread."""
        if self._writer_thread == threading.get_ident():
            raise RuntimeError("a transaction reads through the connection that it was given")

    def _read(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        with self._reading:
            return self._reader.all(statement, values)

    def read_within(self, statement: str, values: Sequence[Any] = (),
             seconds: float = math.inf) -> tuple[Sequence[Row] | None, float]:
        """Return the rows of a long read, or None at its time limit, and the seconds that it took.

        Long reads have a connection of their own, so short reads do not wait for them.
        """
        with self._looking:
            started = self.clock.monotonic()
            rows = self._patiently(lambda: self._open("_looker").all_within(
                seconds, self.clock, statement, values))
            return rows, self.clock.monotonic() - started

    def last_id(self, table: str) -> int:
        """Return the highest id that any row of a table ever had."""
        return self.value(self.last_id_words % table) or 0

    def walk(self, statement: str, values: Sequence[Any], low: int, high: int, seconds: float,
             newest: bool = False) -> Iterator[tuple[Sequence[Row], int]]:
        """Yield the rows in each range of ids above `low` up to `high`, and the id that was reached.

        The bounds of the range are the first two values of `statement`. A range that takes longer than
        LOOK_SECONDS is read again as a smaller one. After a quick read the next range is larger. The walk
        stops after `seconds`, but reads at least one range.
        """
        deadline, size, moved = self.clock.monotonic() + seconds, SEARCH_IDS, False
        while low < high and not (moved and self.clock.monotonic() > deadline):
            bounds = (max(low, high - size), high) if newest else (low, min(low + size, high))
            rows, took = self.read_within(
                statement, (*bounds, *values), LOOK_SECONDS if size > 1 else math.inf)
            if rows is None:
                size = max(1, size // 4)
            else:
                moved, (low, high) = True, (low, bounds[0]) if newest else (bounds[1], high)
                yield rows, high if newest else low
                size *= 2 if took < LOOK_SECONDS / 3 else 1
            self.clock.sleep(0.001)         # lets other threads read

    def search(self, statement: str, values: Sequence[Any], low: int, high: int, limit: int,
               seconds: float, newest: bool = True) -> Page:
        """Return at most `limit` rows with ids above `low` up to `high`, see walk().

        A search that takes longer than `seconds` stops with fewer rows.
        """
        rows: list[Row] = []
        place, end = None, low if newest else high
        for found_rows, reached in self.walk(statement, values, low, high, seconds, newest):
            rows += found_rows
            place = None if reached == end else reached + newest
            if len(rows) > limit:
                return Page(rows[:limit], rows[limit - 1]["id"])
        return Page(rows, place)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection that sees the database as of one moment."""
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
        """Set a deadline for all waits of this thread in the block, unless it has an earlier one."""
        before = self._deadline.at
        self._deadline.at = min(before, self.clock.monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline.at = before

    @contextlib.contextmanager
    def deadline_paused(self) -> Iterator[None]:
        """Put off the thread's deadline by the time that the block takes, such as to read a body."""
        started = self.clock.monotonic()
        try:
            yield
        finally:
            self._deadline.at += self.clock.monotonic() - started

    def seconds_left(self) -> float:
        """Return how many seconds this thread may still wait."""
        return max(0.0, min(self.patience, self._deadline.at - self.clock.monotonic()))

    def _patiently(self, action: Callable[[], Result]) -> Result:
        """Do an action; try again while the database is busy and the deadline has not passed."""
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
        """Return True inside a transaction of this thread."""
        return self._writer_thread == threading.get_ident()

    @contextlib.contextmanager
    def transaction(self, durable: bool = True) -> Iterator[Connection]:
        """Run the block in a transaction; yield its connection.

        A commit that is not `durable` survives the death of processes, but no power cut. Raises Busy,
        StorageFull or StorageBroken if nothing was changed. If a server's connection breaks in COMMIT,
        Busy may say instead that the result is unknown.
        """
        if self.in_transaction:
            raise RuntimeError("a transaction within a transaction")
        with self.deadline(self.patience):
            started = self.clock.monotonic()
            self._write_lock.acquire(self._deadline.at)
            try:
                self._patiently(lambda: self._begin(durable))
                self.waited = self.clock.monotonic() - started    # including the wait for a server's lock
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
                self._write_lock.release()

    def alone(self, action: Callable[[Connection], Result]) -> Result:
        """Run an action in a transaction of its own; return its result."""
        with self.transaction() as transaction:
            return action(transaction)

    def together(self, action: Callable[[Connection], Result]) -> Result:
        """Run an action in a transaction that other threads may share (group commit); return its result."""
        return self.alone(action)
