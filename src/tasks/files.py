"""Files that tasks are given and leave: kept, served, removed.

An uploaded file lies in files-WORD/KEY, and arguments hold that key. Only its row of `file` has its
name. Files that a task leaves stay in its folder, work-WORD/ID. Each row of `file` names an owner. A queue
on PostgreSQL has its files on the web server's machine; other machines fetch them from it.

1. receive() reserves room with a row, and adds the name once the whole file is there. give() makes it a
   file of each new task that names its key, in the transaction that adds the task.
2. collect() records the files that a task has left, in the transaction that ends it.
3. A trigger expires the rows of a removed task's uploads. An unused upload expires after a day. clear()
   removes expired rows, then files and folders without a row. Crashes leave such files, too.
"""
from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import DISK_LOW_BYTES, PIECE_BYTES, SUCCEEDED
from ..base.errors import Conflict, SetupError, StorageBroken, StorageFull, print_errors
from ..base.time_and_text import Every, machine_name, random_token, shorten, storable
from ..store.connection import (FULL, Connection, Reader, cannot_write, find_database, free_bytes,
                                open_folder, private_folder, private_path, write_part)
from ..store.database import Database
from ..store.log_and_activity import append_log, log_length
from ..store.state import recall, remember
from ..store.settings import Settings

if TYPE_CHECKING:
    from typing import BinaryIO, Protocol

    from ..base.types import JsonObject, Row, TaskRow

if TYPE_CHECKING:
    class TaskEnd(Protocol):
        """A Verdict, as far as tidy() uses it."""

        status: int
        removed: bool
        kept: list[str] | None

UNUSED_SECONDS = 86400.0        # an upload without a task expires after this time
CLAIM_LOST = "Another worker has this task, or it has ended."
FORMER_SECONDS = 86400.0        # links with folder names of earlier editions are removed after this time
FILES_MAX = 100                 # files of a task that are kept
UNUSED_MAX, OWNED_MAX = 1000, 10_000    # files of a user: unused uploads, and all files
FILE_NAME_BYTES = 200
# Control characters, marks that change the direction of text, and lone surrogates.
NAMELESS = r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
SITE_SECONDS = 10.0             # how long the stored place of the files is cached
# The bytes of a user's files. Each file counts at least 8 kB, as on the disk.
USED_BYTES = """
    SELECT sum(CASE WHEN size<8192 THEN 8192 ELSE size END) FROM file
    WHERE owner_id=? AND (until IS NULL OR until>0) AND NOT EXISTS (
        SELECT 1 FROM file AS other WHERE other.key=file.key AND other.id<file.id)"""
BYTES_TYPE, PLAIN_TYPE = "application/octet-stream", "text/plain; charset=utf-8"
SHOWN_TYPES = {                 # found by a file's first bytes; browsers save all other files
    rb"\x89PNG\r\n\x1a\n": "image/png", rb"\xff\xd8\xff": "image/jpeg", rb"GIF8[79]a": "image/gif",
    rb"RIFF....WEBP": "image/webp", rb"(?!%PDF)[^\0-\x08\x0e-\x1a\x1c-\x1f]*\Z": PLAIN_TYPE}
TYPE_BYTES = 4096


class FileSite(NamedTuple):
    """The address where workers of other machines fetch files."""

    address: str                # empty if page_address is not set
    authorities: str | None     # the file of the certificates to trust


class OpenFile(NamedTuple):
    """An open file of a task, and its media type, found from its own bytes."""

    file: BinaryIO
    kind: str


def task_folder(data: Path, task_id: int) -> Path:
    """Return the folder of a task: it may write files there and leave them."""
    return private_folder(find_database(data), "work") / str(task_id)


def remove_whole(path: Path) -> None:
    """Remove a file, or a folder with its content, as far as possible."""
    import shutil
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def remove_task_folder(data: Path, task_id: int) -> None:
    """Remove the folder of a task, if there is one."""
    with contextlib.suppress(SetupError, StorageBroken):
        remove_whole(task_folder(data, task_id))


def given_path(folder: Path, key: str) -> Path:
    """Return the path of an uploaded file. Earlier editions made a folder for each file."""
    path = folder / key
    return next(path.iterdir(), path) if path.is_dir() else path


def given_folder(data: Path) -> Path:
    """Return the folder of the uploaded files."""
    return private_folder(find_database(data), "files")


def file_name(text: str) -> str:
    """Return the last part of a path as a plain name that every file system takes."""
    name = re.sub(NAMELESS, "_", re.split(r"[/\\]", text)[-1]).strip(". ")
    return name.encode("utf-8")[-FILE_NAME_BYTES:].decode("utf-8", "ignore") or "file"


def disk_name(name: str) -> str:
    """Return the name of a file on the disk, in UTF-8 with every locale."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def shown_name(name: str) -> str:
    """Return the name that people see for a file on the disk."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def names_left(folder: Path | str) -> list[str] | None:
    """Return the names in a task's folder without hidden ones; None if there is no folder."""
    try:
        with open_folder(folder) as room:
            return sorted(shown_name(name) for name in os.listdir(room) if name[0] != ".")
    except FileNotFoundError:
        return None
    except OSError:                     # the folder cannot be read
        return []


def open_plain(folder: Path | str, name: str) -> BinaryIO:
    """Open a file of a folder. OSError for links, devices, and files with a second hard link."""
    with open_folder(folder) as room:
        file = open(disk_name(name), "rb", buffering=0, opener=lambda path, flags: os.open(
            path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=room))
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return file
    file.close()
    raise OSError(errno.EINVAL, "It is no plain file")


def plain_size(folder: Path | str, name: str) -> int | None:
    """Return the size of a file that a task left; None if it is no plain file with a plain name."""
    with contextlib.suppress(OSError, ValueError):
        if file_name(name) == name:
            with open_plain(folder, name) as file:
                return os.fstat(file.fileno()).st_size
    return None


def open_given(path: Path | str) -> BinaryIO:
    """Open a file for an upload. SetupError for a pipe and the like, which may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise SetupError("%s is not a plain file: copy its content into one." % path)
    return open(path, "rb")


class FileSlice:
    """An iterator over the next `size` bytes of an open file, in pieces."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self.close = file, size, file.close

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[bytes]:
        while self._left:
            piece = self._file.read(min(PIECE_BYTES, self._left))
            if not piece:
                raise OSError(errno.EIO, "The file has become shorter")
            self._left -= len(piece)
            yield piece


class Files:
    """The store of uploaded files and of the files that tasks left."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings, self._clock = database, settings, database.clock
        self._given, self._work = map(self._settled_folder, ("files", "work"))
        self._looks = Every(SITE_SECONDS, database.clock)
        self._machine: str | None = None            # the machine that has the files

    def _settled_folder(self, name: str) -> Path:
        """Return the path of a folder; rename it if its name has the word of the database (earlier editions).

        Running processes of such an edition find it by a link, which clear() removes after a day.
        """
        folder, former = private_folder(self._database.path, name), private_path(self._database.path, name)
        if former.is_dir() and not former.is_symlink():
            with contextlib.suppress(OSError):  # another process was first
                os.rename(former, folder)
                former.symlink_to(folder.name)
        return folder

    def settle(self) -> None:
        """Store that the files are on this machine; its web server calls this."""
        if self._database.is_shared and recall(self._database, "files") != machine_name():
            with self._database.transaction() as transaction:
                remember(transaction, "files", machine_name())
        self._looks.hasten(0.0)

    def site(self, transaction: Reader | None = None) -> FileSite | None:
        """Return where the files are; None if they are here."""
        if not self._database.is_shared:
            return None
        if self._looks.begin_if_due():        # else each attempt would read it
            self._machine = recall(transaction or self._database, "files")
        is_here = self._machine in (None, machine_name())
        return None if is_here else FileSite(
            self._settings.get("page_address", transaction), None)

    def path(self, row: Row, task_id: int | None = None) -> Path:
        """Return the path of a file by its row."""
        if row["key"]:
            return given_path(self._given, row["key"])
        return self._work / str(task_id) / disk_name(row["name"])

    def receive(self, owner_id: int, name: str, size: int, pieces: Iterable[bytes],
                task_id: int | None = None,
                is_held: Callable[[Connection], bool] = lambda _: True) -> JsonObject:
        """Store a file of `size` bytes: an upload, or a file that a task leaves.

        `is_held` tests the claim of a task again once all bytes are here. Conflict if the claim was lost;
        then the task's files stay as they were.
        """
        row: JsonObject = {"key": None, "name": file_name(name)}
        if not task_id:         # macOS sends names in NFD
            import unicodedata
            row = {"key": "f_" + random_token(), "name": unicodedata.normalize("NFC", row["name"])}
        path, row_id = self.path(row, task_id), self._reserve(owner_id, size, row["key"], task_id)
        try:
            if path.parent.is_symlink():
                path.parent.unlink()    # the task put a link in its folder's place
            for folder in (self._work, path.parent) if task_id else (path.parent,):
                folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.ExitStack() as opened:
                room = opened.enter_context(open_folder(path.parent))
                with self._database.deadline_paused():
                    part = opened.enter_context(write_part(room, pieces, row["key"]))
                transaction = opened.enter_context(self._database.transaction())
                if not is_held(transaction):
                    raise Conflict(CLAIM_LOST, gone=True)
                transaction.run("DELETE FROM file WHERE key IS NULL AND task_id=? AND name=?",
                                (task_id, row["name"]))
                if transaction.value("SELECT 1 FROM task WHERE id=?", (task_id,)):
                    row.update(task_id=task_id, until=None)
                transaction.update("file", row, "id=?", (row_id,))
                os.replace(part, path.name, src_dir_fd=room, dst_dir_fd=room)
        except BaseException as error:
            with print_errors("giving up a file"):
                with self._database.transaction() as transaction:
                    transaction.update("file", {"until": 0}, "id=?", (row_id,))
                self.clear(self._clock.now())
            raise cannot_write(self._database.folder, error) if isinstance(error, OSError) else error
        return {"id": row["key"], "name": row["name"], "size": size}

    def store_copy(self, path: Path | str, owner_id: int) -> str:
        """Store a copy of a file for a later task; return its key."""
        with open_given(path) as file:
            size = os.fstat(file.fileno()).st_size
            return self.receive(owner_id, shown_name(Path(path).name), size, FileSlice(file, size))["id"]

    def _reserve(self, owner_id: int, size: int, key: str | None, task_id: int | None) -> int:
        """Reserve room for a file; return the id of its row."""
        if self.site():
            raise SetupError("The files of this queue are on another machine: add this task there, "
                             "or by --server.")
        if free_bytes(self._database.folder) < DISK_LOW_BYTES + size:
            raise StorageFull(FULL)
        with self._database.transaction() as transaction:
            if size > self._room(transaction, owner_id):
                raise StorageFull("With this one the files of the user would have more than %d MB "
                                  "(max_files_mb)." % self._settings.get("max_files_mb", transaction))
            for most, which in ((UNUSED_MAX, "task_id IS NULL AND until>0"), (OWNED_MAX, "1=1")):
                if transaction.value("SELECT count(*) FROM (SELECT 1 FROM file WHERE owner_id=? AND %s "
                                     "LIMIT ?) AS found" % which, (owner_id, most)) >= most:
                    raise StorageFull("The user has %d files already; add the tasks that they are "
                                      "for, or remove tasks." % most)
            if task_id and len(self.of_task(task_id, transaction)) >= FILES_MAX:
                raise Conflict("A task keeps at most %d files." % FILES_MAX)
            return transaction.insert("file", {"owner_id": owner_id, "key": key, "size": size,
                                               "until": self._clock.now() + UNUSED_SECONDS})

    def _room(self, transaction: Reader, owner_id: int) -> float:
        """Return how many more bytes the files of a user may have."""
        limit: int = self._settings.get("max_files_mb", transaction) << 20
        return limit - (transaction.value(USED_BYTES, (owner_id,)) or 0) if limit else math.inf

    @staticmethod
    def give(transaction: Connection, task_id: int, owner_id: int, keys: Sequence[str],
             scope: int | None, now: float) -> list[str]:
        """Give a new task these files; return the keys of missing files.

        The files must belong to the owner `scope`; None: to any owner.
        """
        found_rows = {row["key"]: row for row in transaction.all_of(
            "SELECT key, name, size FROM file WHERE name IS NOT NULL AND (until IS NULL OR until>?)"
            " AND owner_id=coalesce(?, owner_id) AND key IN (%s)", (now, scope), keys)}
        for key, row in found_rows.items():
            transaction.insert("file", {**dict(zip(row.keys(), row)), "owner_id": owner_id,
                                        "task_id": task_id})
            transaction.run("DELETE FROM file WHERE key=? AND task_id IS NULL", (key,))
        return [key for key in keys if key not in found_rows]

    def given_names(self, task: TaskRow) -> dict[str, str]:
        """Return the names of the files that a claimed task was given, by their keys."""
        if "f_" not in task["arguments"]:
            return {}
        rows = self._database.all("SELECT key, name FROM file WHERE task_id=? AND key IS NOT NULL",
                                  (task["id"],))
        return {row["key"]: row["name"] for row in rows}

    def collect(self, transaction: Connection, task: TaskRow, now: float) -> list[str] | None:
        """Record the files that an ended task (its row) left in its folder; return their names.

        None if it has no folder here. Nothing is recorded if another machine has the files: the worker has
        sent them there. Files that are not plain, or too many or too large, are only named in the log.
        """
        folder = "%s/%d" % (self._work, task["id"])
        kept: dict[str, int] = {}
        refused: list[str] = []
        names = names_left(folder)
        if names is None or self.site(transaction):
            return names
        transaction.run("DELETE FROM file WHERE key IS NULL AND task_id=?", (task["id"],))
        room = self._room(transaction, task["owner_id"]) if names else 0
        for name in names:
            size = plain_size(folder, name) if len(kept) < FILES_MAX else None
            if size is not None and size <= room:
                kept[name], room = size, room - size
            else:
                refused.append(storable(name))
        transaction.insert_all("file", ({"owner_id": task["owner_id"], "task_id": task["id"],
                                         "name": name, "size": kept[name]} for name in kept))
        if refused:
            place = task["id"], task["attempts"]
            append_log(transaction, now, *place, log_length(transaction, *place),
                       "Not kept (not plain files, too many, or too large): %s\n"
                       % shorten(", ".join(refused), 2000))
        return list(kept)

    def tidy(self, task_id: int, verdict: TaskEnd) -> None:
        """Remove the useless files of a task's folder after its end was recorded."""
        if verdict.kept is None and not verdict.removed:
            return
        folder, kept = self._work / str(task_id), verdict.kept or []
        if verdict.removed or self.site():
            remove_whole(folder)
        elif verdict.status == SUCCEEDED:
            with contextlib.suppress(OSError):
                paths = folder.iterdir() if kept else [folder]
                for path in (path for path in paths if shown_name(path.name) not in kept):
                    remove_whole(path)

    def of_task(self, task_id: int, db: Reader | None = None) -> Sequence[Row]:
        """Return the rows of a task's files: first those that it left, then those that it was given."""
        return (db or self._database).all(
            "SELECT key, name, size FROM file WHERE task_id=? AND name IS NOT NULL "
            "ORDER BY CASE WHEN key IS NULL THEN 0 ELSE 1 END, name, id", (task_id,))

    def open_file(self, task_id: int, row: Row) -> OpenFile:
        """Open a file of a task by its row."""
        path = self.path(row, task_id)
        file = open_plain(path.parent, shown_name(path.name))
        head = os.pread(file.fileno(), TYPE_BYTES, 0)
        return OpenFile(file, next((kind for pattern, kind in SHOWN_TYPES.items()
                                    if re.match(pattern, head, re.DOTALL)), BYTES_TYPE))

    def describe(self, task_id: int) -> Iterator[JsonObject]:
        """Yield the files of a task as people see them."""
        for row in self.of_task(task_id):
            kind = BYTES_TYPE
            with contextlib.suppress(OSError):
                file, kind = self.open_file(task_id, row)
                file.close()
            yield {"name": row["name"], "size": row["size"], "id": row["key"],
                   "type": kind.partition(";")[0]}

    def clear(self, now: float, wholly: bool = False) -> None:
        """Remove expired rows. If there are some, or `wholly`, remove files and folders without a row."""
        if not wholly and not self._database.value("SELECT 1 FROM file WHERE until<?", (now,)):
            return
        with self._database.transaction(durable=False) as transaction:
            transaction.run("DELETE FROM file WHERE until<?", (now,))
        for former in (private_path(self._database.path, name) for name in ("files", "work")):
            with contextlib.suppress(OSError):
                if former.is_symlink() and former.lstat().st_mtime < now - FORMER_SECONDS:
                    former.unlink()
        for folder, question in ((self._given, "SELECT key FROM file WHERE key IN (%s)"),
                                 (self._work, "SELECT id FROM task WHERE id IN (%s)")):
            entries = os.listdir(folder) if folder.is_dir() else []
            # The names of unfinished uploads begin with a dot.
            names = {name.lstrip("."): name for name in entries
                     if folder == self._given or name.isdecimal()}
            for name in names.keys() - {str(row[0]) for row in self._database.all_of(
                    question, (), names.keys())}:
                remove_whole(folder / names[name])
