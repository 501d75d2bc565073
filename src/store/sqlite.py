"""SQLite: one file, its journal, its log.

"Log" means SQLite's write-ahead log (WAL) here. Journal holds the journal mode and the machine that uses
the log. DataFile looks after the file and its log. SqliteDatabase reads and writes.
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
MACHINE_SIGN_SECONDS = 60.0     # pause between two signs of life of a machine that uses the log
MACHINE_SILENT_SECONDS = 150.0  # silence after which another machine may use the log
RUN_ALONE = Exception()         # answer to all actions of a group commit if one of several failed
LOCAL_FILE_SYSTEMS = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay simfs ufs".split())


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, or "unknown"."""
    best, kind, real_path = "", "unknown", os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return kind
    for line in lines:
        mount_part, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_part.split(" ", 5)[4])
        if len(mount) >= len(best) and (real_path + "/").startswith(mount.rstrip("/") + "/"):
            best, kind = mount, right.split(" ")[0]
    return kind


def up_seconds() -> float:
    """Return for how many seconds this system has been running. Linux leaves out the time that it slept."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def safe_journal(folder: Path) -> str:
    """Return the journal mode for a folder. WAL needs a local disk."""
    return "wal" if file_system(folder) in LOCAL_FILE_SYSTEMS else "truncate"


class Journal:
    """The journal mode of a database, "wal" or "truncate", and the machine that uses its log.

    Both stand in a small file. It is read before SQLite opens the database, because a log that two machines
    share becomes corrupt. One kernel is one machine: its containers have names of their own, but can share
    a log. The file's time is the last sign of life of the machine.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = private_path(database, "journal.json")
        self.identity = file_identity(self.path)    # changes with each write
        try:
            stored = json.loads(self.path.read_text("utf-8"))
            self.mode, self.machine, self._boot = stored["mode"], stored["machine"], stored.get("boot")
            if self.mode not in ("wal", "truncate"):
                raise ValueError(self.mode)
        except (OSError, ValueError, KeyError, TypeError):
            raise SetupError(
                "%s is missing or unreadable; it says how the database is written. With everything "
                "stopped, make it anew: python3 jobqueue.py check --repair" % self.path) from None

    @staticmethod
    def decide(database: Path, mode: str, now: float) -> None:
        """Write the file: this machine uses the database in this mode."""
        path = private_path(database, "journal.json")
        write_private(path, dump_json({"mode": mode, "machine": machine_name(), "boot": boot_id()}))
        os.utime(path, (now, now))

    def admit(self, now: float) -> Journal:
        """Return the journal, renewed for this machine; SetupError if this machine may not use the log."""
        kind = file_system(self.path.parent)
        if self.mode == "wal" and kind not in LOCAL_FILE_SYSTEMS:
            self._refuse("which is not safe on this file system (%s)" % kind)
        self.refuse_another(now)
        if self.mode == "wal" and self._boot != boot_id():
            self.decide(self._database, "wal", now)
        self.sign(now)
        return Journal(self._database)

    def refuse_another(self, now: float) -> None:
        """Raise SetupError if another machine uses the log and gave a sign of life lately."""
        seen_at = self.path.stat().st_mtime
        started_again = self.machine == machine_name() and now - seen_at > up_seconds()
        if (self.mode == "wal" and not self._is_ours() and not started_again
                and abs(now - seen_at) < MACHINE_SILENT_SECONDS):
            until = iso(seen_at + MACHINE_SILENT_SECONDS)[11:19]
            self._refuse("which lets no other machine use it before %s UTC" % until)

    def _refuse(self, why: str) -> None:
        raise SetupError(
            "The data folder %s is used in WAL mode by the machine %s, %s. If several machines are to "
            "use it, stop jobqueue on all of them and run on that machine: "
            "python3 jobqueue.py check --repair shared"
            % (self.path.parent, self.machine, why))

    def sign(self, now: float) -> None:
        """Renew the sign of life of this machine if it is due."""
        with contextlib.suppress(OSError):
            if self.mode == "wal" and abs(now - self.path.stat().st_mtime) >= MACHINE_SIGN_SECONDS:
                os.utime(self.path, (now, now))

    def check(self) -> None:
        """Read the file again; StorageBroken if it has another mode, or another machine that uses the log."""
        current = Journal(self._database)
        if current.mode != self.mode or current.mode == "wal" and not current._is_ours():
            raise StorageBroken("The database is written in %s mode now, by the machine %s. Stop "
                                "and start everything." % (current.mode.upper(), current.machine))
        self.identity = current.identity

    def _is_ours(self) -> bool:
        stored, boot = self._boot, boot_id()
        return bool(stored == boot if stored and boot else self.machine == machine_name())


class DataFile(Database):
    """A database in a file, with the care of the file and its log.

    SQLite 3.7.0 to 3.51.2 can corrupt a WAL database when a checkpoint runs during a write
    (sqlite.org/wal.html#walresetbug). Nearly every host has such a version. So automatic checkpoints are
    off on every connection. Our checkpoints run only under the write lock.
    """

    def __init__(self, folder: Path | str, clock: AnyClock, patience: float) -> None:
        super().__init__(folder, clock, patience)
        self.path = find_database(self.folder)
        self._wal = Path(str(self.path) + "-wal")
        self._journal = Journal(self.path).admit(clock.now())
        self.journal = self._journal.mode
        self.has_own_disk = self.journal == "wal"
        self._checkpoint_timer = Every(CHECKPOINT_PAUSE_SECONDS, clock)
        self._identities: tuple[object, object] = (None, None)      # identities of the file and its log
        if self.journal == "wal":
            self._refuse_missing_log()

    def sign(self) -> None:
        """Show other machines that this one uses the database."""
        self._journal.sign(self.clock.now())

    def check_file(self) -> None:
        """Raise StorageBroken if the file or its log was removed or replaced: a write would be lost."""
        if (file_identity(self.path), file_identity(self._wal)) != self._identities:
            raise StorageBroken("The database %s or its log was removed or replaced while it was "
                                "in use. Stop and start everything." % self.path)
        if file_identity(self._journal.path) != self._journal.identity:
            self._journal.check()

    def wal_bytes(self) -> int:
        """Return the size of the log. A checkpoint is due once it exceeds WAL_CHECKPOINT_BYTES."""
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _refuse_missing_log(self) -> None:
        """Raise StorageBroken if the log was deleted, because the newest tasks were in it.

        SQLite makes the log before the log's index, and removes it after the index. So an index without a
        log shows that another program deleted the log.
        """
        index = Path(str(self.path) + "-shm")
        looks = [path.exists() for path in (index, self._wal, index, self._wal)]
        if looks == [True, False, True, False]:     # looked twice: another connection may open or close it
            raise StorageBroken(
                "The log of the database, %s, was deleted: the newest tasks are missing. Put it "
                "back; if it is lost, delete %s to go on with what is left."
                % (self._wal, index.name))

    def _connect(self) -> FileConnection:
        link = FileConnection(self.path)
        try:
            link.run("PRAGMA foreign_keys=ON")
            link.run("PRAGMA cache_size=-250")      # small: commits of other connections empty it
            if self.journal == "wal":
                # SQLite keeps a log file of this size, so that commits need not extend it. A longer log shows
                # that a checkpoint is due.
                link.run("PRAGMA journal_size_limit=%d" % WAL_CHECKPOINT_BYTES)
                link.value("SELECT count(*) FROM sqlite_master")
                if link.value("PRAGMA journal_mode") != "wal":
                    self.journal = "truncate"       # another program has turned WAL off
            else:
                link.value("PRAGMA journal_mode=TRUNCATE")
        except BaseException:
            link.close()
            raise
        return link

    def _checkpoint(self, writer: Connection, reader: Connection) -> None:
        """Make a checkpoint while `writer` locks out all other writers. After 50 ms no new pass begins."""
        deadline, before, pages, copied = self.clock.monotonic() + 0.05, -1, 1, 0
        with contextlib.suppress(sqlite3.Error):
            writer.run("BEGIN IMMEDIATE")
            while copied not in (pages, before) and self.clock.monotonic() < deadline:
                before = copied         # go on while more pages are copied
                _, pages, copied = reader.row("PRAGMA wal_checkpoint(PASSIVE)")
            writer.run("ROLLBACK")
            if copied == pages:
                self._checkpoint_timer.hasten(0.0)
                if self.wal_bytes() > WAL_ALARM_BYTES:
                    # The first write after a complete checkpoint starts the log anew, and SQLite cuts the
                    # file to journal_size_limit. Any write will do.
                    writer.run("PRAGMA application_id=0")
        writer.roll_back()


class _Waiting:
    """An action that a thread wants to run in a group commit. Afterwards `answer` has its result or error."""

    def __init__(self, action: Callable[[Connection], Any]) -> None:
        self.action = action
        self.answer: tuple[Any, Exception | None] | None = None


class SqliteDatabase(DataFile):
    """A database in the SQLite file of the data folder: reads, writes and group commits."""

    errors = sqlite3.Error
    _write_lock: WriteLock

    def __init__(self, folder: Path | str, clock: AnyClock = Clock,
                 patience: float = WEB_PATIENCE_SECONDS) -> None:
        super().__init__(folder, clock, patience)
        self._synchronous, self._changes_before = "", 0
        self._group_condition, self._is_led = threading.Condition(), False
        self._waiting: list[_Waiting] = []
        try:
            self._write_lock = WriteLock(self.folder / "turn.lock", clock)
            self._bell = Bell(self.folder / "bell")
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        try:
            with self.deadline(patience):
                self._reader = self._patiently(self._connect)
                self._writer = self._patiently(self._connect)
                self._identities = file_identity(self.path), file_identity(self._wal)
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
        """Return the descriptor of the bell's pipe, or None. It is readable when there may be tasks."""
        return self._bell.pipe

    def ring(self) -> None:
        """Wake other idle workers: there may be tasks for them, too."""
        self._bell.ring()

    def calm(self) -> None:
        """Clear the wake-up. The caller must look for work again before it waits."""
        self._bell.calm()

    def version_seen(self) -> object:
        """Return a number that changes with every commit, our own included."""
        return self.value("PRAGMA data_version")

    def __str__(self) -> str:
        return self.path.name

    def size(self) -> int:
        """Return the size in bytes."""
        return self.path.stat().st_size

    def damage(self) -> str | None:
        """Return the first damage that SQLite finds in the file, or None. The whole file is read."""
        try:
            with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
                verdict: str = self._patiently(lambda: link.value("PRAGMA quick_check(1)"))
        except StorageBroken as error:
            verdict = error.detail
        return None if verdict == "ok" else verdict

    def copy_to(self, path: Path) -> None:
        """Copy everything, as of one moment, into the empty file `path`, and check the copy."""
        with contextlib.closing(self._patiently(lambda: FileConnection(self.path))) as link:
            self._patiently(lambda: link.copy_to(path))

    def together(self, action: Callable[[Connection], Result]) -> Result:
        """Run an action and those of other threads in one durable transaction (group commit).

        Return the result of the action. If an action of the group fails, each thread runs its own alone. If
        the commit fails, each thread raises its error.
        """
        if threading.active_count() == 1:
            return self.alone(action)
        mine = _Waiting(action)
        with self.deadline(self.patience), self._group_condition:
            self._waiting.append(mine)
            while not mine.answer:
                if self._is_led:
                    self._group_condition.wait()
                else:
                    self._lead(mine)
        error = mine.answer[1]
        if error is RUN_ALONE:
            return self.alone(action)
        if error:
            raise error
        return mine.answer[0]

    def _lead(self, mine: _Waiting) -> None:
        """Run all waiting actions in one transaction; set the answer of each."""
        group, self._is_led = [mine], True
        results: list[tuple[Any, None]] = []
        failure: Exception | None = None
        self._group_condition.release()
        try:
            with self.transaction() as transaction:
                group = self._waiting[:]
                results = [(waiting.action(transaction), None) for waiting in group]
            for waiting, answer in zip(group, results):
                waiting.answer = answer
        except Exception as error:
            failure = error if results or len(group) == 1 else RUN_ALONE
        finally:
            self._group_condition.acquire()
            for waiting in group:
                self._waiting.remove(waiting)
                waiting.answer = waiting.answer or (None, failure or Busy(BUSY))
            self._is_led = False
            self._group_condition.notify_all()

    def _begin(self, durable: bool) -> None:
        mode = "FULL" if durable or self.journal != "wal" else "NORMAL"
        self.check_file()
        if mode != self._synchronous:
            self._writer.run("PRAGMA synchronous=" + mode)
            self._synchronous = mode
        self._writer.run("BEGIN IMMEDIATE")

    def _commit(self, durable: bool) -> None:
        self._patiently(lambda: self._writer.run("COMMIT"))
        # The bell rings after durable commits that changed rows, such as an add. Tasks that other commits
        # make pending are found when a worker's wait ends, at most a second later.
        if durable and self._writer.changes > self._changes_before:
            self._bell.ring()
        self._changes_before = self._writer.changes
        if self.wal_bytes() > WAL_CHECKPOINT_BYTES and self._checkpoint_timer.begin_if_due():
            with self._looking, self._reading:      # this may wait for a long read
                self._checkpoint(self._writer, self._reader)

    def _problem(self, error: Exception) -> Exception:
        return storage_error(error, self.path)


@contextlib.contextmanager
def open_exclusively(path: Path, mode: str) -> Iterator[FileConnection]:
    """Set the journal mode of a database that no other program uses; yield a connection to it."""
    try:
        with contextlib.closing(FileConnection(path)) as link:
            link.run("PRAGMA page_size=1024")   # commits write whole pages, so small pages cost less
            actual = link.value("PRAGMA journal_mode=" + mode.upper())
            if actual != mode:
                raise StorageBroken("SQLite keeps its journal here as %s only" % actual)
            yield link
    except sqlite3.Error as error:
        raise storage_error(error, path)


def migrate_file(link: FileConnection) -> None:
    """Bring an empty or older file to the newest schema version, in one transaction."""
    link.run("BEGIN IMMEDIATE")
    migrate(link)
    link.run("COMMIT")


def create_database(path: Path, mode: str) -> None:
    """Make an empty database in this journal mode."""
    write_private(path, "")
    with open_exclusively(path, mode) as link:
        link.run("PRAGMA synchronous=FULL")
        migrate_file(link)
    Journal.decide(path, mode, Clock.now())


def copy_backup(file: Path, part: Path) -> None:
    """Copy a backup to `part`; SetupError if it is damaged, is no backup, or has an unknown version."""
    import shutil
    write_private(part, "")
    shutil.copyfile(file, part)
    try:
        with contextlib.closing(FileConnection(part)) as link:
            version: int = link.value("PRAGMA user_version")
            verdict = link.value("PRAGMA quick_check(1)")
    except sqlite3.Error:
        version, verdict = 0, None
    if not version or verdict != "ok":
        raise SetupError("%s is not a backup, or is damaged; nothing was changed. (An export is read "
                         "by python3 jobqueue.py import.)" % file)
    if version not in MIGRATIONS:
        raise another_version(version)
