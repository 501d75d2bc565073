"""SQLite: one file, its journal, its log.

One file in the data folder. WriteLock lets one write at a time. Bell wakes idle workers. Journal says how
and on which machine the file is written. DataFile takes care of the file and its log. SqliteDatabase reads
and writes.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import WEB_PATIENCE_SECONDS
from ..base.errors import Busy, SetupError, StorageBroken
from ..base.time_and_text import Clock, Every, boot_id, dump_json, iso, machine_name
from .connection import (BUSY, Connection, cannot_write, emptied, file_identity, find_database,
                         private_path, write_private)
from .schema import MIGRATIONS, SCHEMA_VERSION, another_version, migrate
from .database import Database
from .sqlite_connection import WAL_ALARM_BYTES, FileConnection, storage_error
from .write_lock import Bell, WriteLock

if TYPE_CHECKING:
    from typing import Any

    from ..base.time_and_text import AnyClock
    from .database import Result

WAL_CHECKPOINT_BYTES = 4 << 20
CHECKPOINT_PAUSE_SECONDS = 1.0
MACHINE_SIGN_SECONDS = 60.0     # who uses the log shows so often that this machine lives
MACHINE_SILENT_SECONDS = 150.0  # another one may use it after so long without a sign
AMONG_OTHERS = Exception()      # where something was refused in a transaction of several threads
LOCAL_FILE_SYSTEMS = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay simfs ufs".split())


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, or "unknown"."""
    best, kind, real_path = "", "unknown", os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return kind
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), left.split(" ", 5)[4])
        if len(mount) >= len(best) and (real_path + "/").startswith(mount.rstrip("/") + "/"):
            best, kind = mount, right.split(" ")[0]
    return kind


def up_seconds() -> float:
    """How long this system has been running."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def safe_journal(folder: Path) -> str:
    """How a database in this folder is written: a log needs a local disk."""
    return "wal" if file_system(folder) in LOCAL_FILE_SYSTEMS else "truncate"


class Journal:
    """How the database is written, "wal" or "truncate", and on which machine.
    It stands in a small file that is read before SQLite opens the database, since a log that two
    machines share corrupts. A machine is a kernel: containers have names of their own, but share
    what a log needs. The file's time is the last sign of life of the machine that uses the log."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = private_path(database, "journal.json")
        self.file = file_identity(self.path)   # another one after each write
        try:
            said = json.loads(self.path.read_text("utf-8"))
            self.mode, self.machine, self._boot = said["mode"], said["machine"], said.get("boot")
            if self.mode not in ("wal", "truncate"):
                raise ValueError(self.mode)
        except (OSError, ValueError, KeyError, TypeError):
            raise SetupError(
                "%s is missing or unreadable; it says how the database is written. With everything "
                "stopped, make it anew: python3 jobqueue.py check --repair" % self.path) from None

    @staticmethod
    def decide(database: Path, mode: str, now: float) -> None:
        """From now on this machine uses the database, in this way."""
        path = private_path(database, "journal.json")
        write_private(path, dump_json({"mode": mode, "machine": machine_name(), "boot": boot_id()}))
        os.utime(path, (now, now))

    def admit(self, now: float) -> Journal:
        """The journal as it is once this machine may use the log; SetupError if it may not."""
        kind = file_system(self.path.parent)
        if self.mode == "wal" and kind not in LOCAL_FILE_SYSTEMS:
            self._refuse("which is not safe on this file system (%s)" % kind)
        self.refuse_another(now)
        if self.mode == "wal" and self._boot != boot_id():
            self.decide(self._database, "wal", now)
        self.sign(now)
        return Journal(self._database)

    def refuse_another(self, now: float) -> None:
        """SetupError if another machine uses the log and lives."""
        seen_at = self.path.stat().st_mtime
        started_again = self.machine == machine_name() and now - seen_at > up_seconds()
        if (self.mode == "wal" and not self._is_ours() and not started_again
                and abs(now - seen_at) < MACHINE_SILENT_SECONDS):
            until = iso(seen_at + MACHINE_SILENT_SECONDS)[11:19]
            self._refuse("which allows no second one before %s UTC" % until)

    def _refuse(self, why: str) -> None:
        raise SetupError(
            "The data folder %s is written in WAL mode on the machine %s, %s. If several are to "
            "use it, stop everything on all and run there: "
            "python3 jobqueue.py check --repair shared"
            % (self.path.parent, self.machine, why))

    def sign(self, now: float) -> None:
        """Show other machines that this one lives."""
        with contextlib.suppress(OSError):
            if self.mode == "wal" and abs(now - self.path.stat().st_mtime) >= MACHINE_SIGN_SECONDS:
                os.utime(self.path, (now, now))

    def check(self) -> None:
        """StorageBroken if it was decided anew, or another machine took over while we slept."""
        found = Journal(self._database)
        if found.mode != self.mode or found.mode == "wal" and not found._is_ours():
            raise StorageBroken("The database is written in %s mode now, by the machine %s. Stop "
                                "and start everything." % (found.mode.upper(), found.machine))
        self.file = found.file

    def _is_ours(self) -> bool:
        known, boot = self._boot, boot_id()
        return bool(known == boot if known and boot else self.machine == machine_name())


class DataFile(Database):
    """The care of the file that SQLite keeps the database in, and of its log.
    SQLite 3.7.0 to 3.51.2 can corrupt a WAL database when a checkpoint meets a write
    (sqlite.org/wal.html#walresetbug). Nearly every host has such a version, so automatic
    checkpoints are off on every connection and ours run only while we hold the write lock."""

    def __init__(self, folder: Path | str, clock: AnyClock, patience: float) -> None:
        super().__init__(folder, clock, patience)
        self.path = find_database(self.folder)
        self._wal = Path(str(self.path) + "-wal")
        self._journal = Journal(self.path).admit(clock.now())
        self.journal = self._journal.mode
        self.has_own_disk = self.journal == "wal"
        self._checkpoints = Every(CHECKPOINT_PAUSE_SECONDS, clock)
        self._opened: tuple[object, object] = (None, None)      # identities of file and log
        if self.journal == "wal":
            self._refuse_missing_log()

    def sign(self) -> None:
        """Show other machines that this one lives."""
        self._journal.sign(self.clock.now())

    def check_file(self) -> None:
        """StorageBroken if file or log was removed or replaced: what we write would be lost."""
        if (file_identity(self.path), file_identity(self._wal)) != self._opened:
            raise StorageBroken("The database %s or its log was removed or replaced while it was "
                                "in use. Stop and start everything." % self.path)
        if file_identity(self._journal.path) != self._journal.file:
            self._journal.check()

    def wal_bytes(self) -> int:
        """Size of the log's file; at most WAL_CHECKPOINT_BYTES while copying back keeps up."""
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _refuse_missing_log(self) -> None:
        """StorageBroken if the log was deleted: without it the database is an older one.
        SQLite makes the log before the index that goes with it, and removes it after that."""
        index = Path(str(self.path) + "-shm")
        looks = [path.exists() for path in (index, self._wal, index, self._wal)]
        if looks == [True, False, True, False]:     # not while others close and open it
            raise StorageBroken(
                "The log of the database, %s, was deleted: the newest tasks are missing. Put it "
                "back; if it is lost, delete %s to go on with what is left."
                % (self._wal, index.name))

    def _connect(self) -> FileConnection:
        link = FileConnection(self.path)
        try:
            link.run("PRAGMA foreign_keys=ON")
            link.run("PRAGMA cache_size=-250")      # others' commits empty it anyway
            if self.journal == "wal":
                # The log's file keeps this size, so that commits need not make it longer, and a
                # longer one tells that there is something to copy back.
                link.run("PRAGMA journal_size_limit=%d" % WAL_CHECKPOINT_BYTES)
                link.value("SELECT count(*) FROM sqlite_master")
                if link.value("PRAGMA journal_mode") != "wal":
                    self.journal = "truncate"       # somebody else's program has turned it off
            else:
                link.value("PRAGMA journal_mode=TRUNCATE")
        except BaseException:
            link.close()
            raise
        return link

    def _checkpoint(self, writer: Connection, reader: Connection) -> None:
        """Copy the log back for a moment at most, while `writer` keeps everybody from writing."""
        deadline, before, pages, copied = self.clock.monotonic() + 0.05, -1, 1, 0
        with contextlib.suppress(sqlite3.Error):
            writer.run("BEGIN IMMEDIATE")
            while copied not in (pages, before) and self.clock.monotonic() < deadline:
                before = copied         # as long as that gets further
                _, pages, copied = reader.row("PRAGMA wal_checkpoint(PASSIVE)")
            writer.run("ROLLBACK")
            if copied == pages:
                self._checkpoints.hasten(0.0)
                if self.wal_bytes() > WAL_ALARM_BYTES:
                    writer.run("PRAGMA application_id=0")   # it gets short with the next write
        writer.roll_back()


class _Waiting:
    """An action that a thread wants to be done, and its result or error once it is."""

    def __init__(self, action: Callable[[Connection], Any]) -> None:
        self.action = action
        self.answer: tuple[Any, Exception | None] | None = None


class SqliteDatabase(DataFile):
    """Reads and writes the file in the data folder."""

    errors = sqlite3.Error
    _write_lock: WriteLock

    def __init__(self, folder: Path | str, clock: AnyClock = Clock,
                 patience: float = WEB_PATIENCE_SECONDS) -> None:
        super().__init__(folder, clock, patience)
        self._synchronous, self._rung_at = "", 0
        self._gathering, self._is_led = threading.Condition(), False
        self._wanted: list[_Waiting] = []
        try:
            self._write_lock = WriteLock(self.folder / "turn.lock", clock)
            self._bell = Bell(self.folder / "bell")
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        try:
            with self.deadline(patience):
                self._reader = self._patiently(self._connect)
                self._writer = self._patiently(self._connect)
                self._opened = file_identity(self.path), file_identity(self._wal)
                self._check_schema()
        except BaseException:
            self.close()
            raise

    def _check_schema(self) -> None:
        version = self.value(self.version_words)
        if version == 0:
            raise emptied(self.path)
        if version != SCHEMA_VERSION:
            with self.transaction() as transaction:
                migrate(transaction)

    def close(self) -> None:
        """Close all connections, the lock and the bell."""
        super().close()
        self._write_lock.close()
        self._bell.close()

    @property
    def alarm(self) -> int | None:
        """The bell's pipe: it is readable when there may be tasks."""
        return self._bell.pipe

    def ring(self) -> None:
        """Wake other workers that wait: there may be tasks for them, too."""
        self._bell.ring()

    def calm(self) -> None:
        """Forget that the alarm rang: who does looks once more before it waits."""
        self._bell.calm()

    def version_seen(self) -> object:
        """A number that changes when anybody commits, ourselves included."""
        return self.value("PRAGMA data_version")

    def __str__(self) -> str:
        return self.path.name

    def size(self) -> int:
        """How many bytes it takes."""
        return self.path.stat().st_size

    def damage(self) -> str | None:
        """What SQLite finds wrong with the file, None if nothing; all of it is read."""
        try:
            with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
                found: str = self._patiently(lambda: link.value("PRAGMA quick_check(1)"))
        except StorageBroken as error:
            found = error.detail
        return None if found == "ok" else found

    def copy_to(self, path: Path) -> None:
        """Copy everything, as it is at one moment, into the empty file `path`, and check it."""
        with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
            self._patiently(lambda: link.copy_to(path))

    def together(self, action: Callable[[Connection], Result]) -> Result:
        """What action(transaction) returns. Of the threads that want something at the same time one
        does it for all, in one durable commit; what fails, fails alone."""
        if threading.active_count() == 1:
            return self.alone(action)
        mine = _Waiting(action)
        with self.deadline(self.patience), self._gathering:
            self._wanted.append(mine)
            while not mine.answer:
                if self._is_led:
                    self._gathering.wait()
                else:
                    self._lead(mine)
        error = mine.answer[1]
        if error is AMONG_OTHERS:
            return self.alone(action)
        if error:
            raise error
        return mine.answer[0]

    def _lead(self, mine: _Waiting) -> None:
        """Do all that is wanted by now; if anything of it is refused, each does its own alone."""
        some, self._is_led = [mine], True
        results: list[tuple[Any, None]] = []
        failure: Exception | None = None
        self._gathering.release()
        try:
            with self.transaction() as transaction:
                some = self._wanted[:]
                results = [(one.action(transaction), None) for one in some]
            for one, answer in zip(some, results):
                one.answer = answer
        except Exception as error:
            failure = error if results or len(some) == 1 else AMONG_OTHERS
        finally:
            self._gathering.acquire()
            for one in some:
                self._wanted.remove(one)
                one.answer = one.answer or (None, failure or Busy(BUSY))
            self._is_led = False
            self._gathering.notify_all()

    def _begin(self, durable: bool) -> None:
        wanted = "FULL" if durable or self.journal != "wal" else "NORMAL"
        self.check_file()
        if wanted != self._synchronous:
            self._writer.run("PRAGMA synchronous=" + wanted)
            self._synchronous = wanted
        self._writer.run("BEGIN IMMEDIATE")

    def _commit(self, durable: bool) -> None:
        self._patiently(lambda: self._writer.run("COMMIT"))
        if durable and self._writer.changes > self._rung_at:    # others wait for that
            self._bell.ring()
        self._rung_at = self._writer.changes
        if self.wal_bytes() > WAL_CHECKPOINT_BYTES and self._checkpoints.is_due():
            with self._looking, self._reading:      # which may take long to get
                self._checkpoint(self._writer, self._reader)

    def _problem(self, error: Exception) -> Exception:
        return storage_error(error, self.path)


@contextlib.contextmanager
def open_exclusively(path: Path, mode: str) -> Iterator[FileConnection]:
    """A connection to a database that nobody else uses; from now on it is written in this mode."""
    try:
        with contextlib.closing(FileConnection(path)) as link:
            link.run("PRAGMA page_size=1024")   # a commit writes whole pages: small ones cost less
            found = link.value("PRAGMA journal_mode=" + mode.upper())
            if found != mode:
                raise StorageBroken("SQLite keeps its journal here as %s only" % found)
            yield link
    except sqlite3.Error as error:
        raise storage_error(error, path)


def create_database(path: Path, mode: str) -> None:
    """Make an empty database in this journal mode."""
    write_private(path, "")
    with open_exclusively(path, mode) as link:
        link.run("PRAGMA synchronous=FULL")
        link.run("BEGIN IMMEDIATE")
        migrate(link)
        link.run("COMMIT")
    Journal.decide(path, mode, Clock.now())


def take_backup(file: Path, part: Path) -> None:
    """Copy a backup; SetupError if it is none, is not whole, or has a version that is unknown."""
    import shutil
    write_private(part, "")
    shutil.copyfile(file, part)
    try:
        with contextlib.closing(FileConnection(part)) as link:
            version: int = link.value("PRAGMA user_version")
            found = link.value("PRAGMA quick_check(1)")
    except sqlite3.Error:
        version, found = 0, None
    if not version or found != "ok":
        raise SetupError("%s is no backup, or is damaged; nothing was changed. (An export is read "
                         "by python3 jobqueue.py import.)" % file)
    if version not in MIGRATIONS:
        raise another_version(version)
