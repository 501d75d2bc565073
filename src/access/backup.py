"""A checked copy, while everything goes on; restore, export, import.

A backup is a copy of the database's file; restore() puts it back. An export is text, to move from SQLite
to PostgreSQL or back. Each line is a JSON object with one name. The first name is "jobqueue", with the
version of the schema and the highest id ever of each table in COUNTED. Then each row of a table in EXPORTED
follows under the table's name. The last name is "end", with the number of rows of each table, so an
incomplete export is recognised. An export lacks workers and their shifts, sessions, guessed passwords,
messages to be sent, state about the host, and files.
"""
from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import DISK_LOW_BYTES, VERSION
from ..base.errors import (Busy, Conflict, JobQueueError, Malformed, SetupError, StorageBroken,
                           StorageFull)
from ..base.time_and_text import Clock, iso, random_token, read_json, shorten, storable
from ..store.connection import (Connection, Reader, file_identity, free_bytes, private_path,
                                write_private)
from ..store.schema import SCHEMA_VERSION
from ..store.sqlite import Journal, migrate_file, open_exclusively, safe_journal, copy_backup
from ..store.data_folder import create_data_folder, own_database
from ..store.state import EXPORTED_STATE, recall, remember
from ..tasks.leases import UNCONFIRMED, Outcome
from ..upkeep.tick_history import NOTE_SECONDS
from ..upkeep.rollup import HOUR_KEYS
from .import_checks import check_row
from .python_interface import JobQueue

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject

if TYPE_CHECKING:
    Item = tuple[str, Any]              # the name of the JSON object in a line, and its value

EXPORT_ROWS = 100               # rows that are read at a time
EXPORTED = {                    # {table: the columns of its key}
    **dict.fromkeys("user token saved setting function queue schedule task log activity alert".split(),
                    "id"),
    **{table: ", ".join(keys) for table, keys in HOUR_KEYS.items()}, "recent": "function",
    "slot": "schedule_id, at", "state": "name", "unsettled": "task_id", "request": "owner_id, key",
    "task_after": "task_id, settled, after_id"}
COUNTED = "user token schedule task worker alert".split()     # tables whose ids must not be used again
BEGINNINGS = {"backup": b"SQLite format 3\0", "export": b'{"jobqueue":'}
IMPORTER = "the import"         # the actor who paused the queues; no user's name has a space
_as_line = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _refuse_target(queue: JobQueue, target: Path, kind: str) -> None:
    """Raise SetupError if writing a backup or export to `target` would destroy something else."""
    if file_identity(target) == file_identity(queue.database.path):
        raise SetupError("%s is the database itself." % target)
    if target.match("jobqueue-*.db") and target.parent.resolve() == queue.database.folder.resolve():
        raise SetupError("%s would be a second database: choose another name." % target)
    if target.exists():
        with open(target, "rb") as file:        # raises for a folder
            if file.read(len(BEGINNINGS[kind])) not in (b"", BEGINNINGS[kind]):
                raise SetupError("%s exists and is no %s; it was not touched." % (target, kind))


def _remove_older_parts(target: Path, part: Path) -> None:
    """Remove the incomplete copies that killed processes left over a day before `part` was made."""
    is_part = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.part").match
    with contextlib.suppress(OSError):
        limit = part.stat().st_mtime - 86400
        for path in target.parent.iterdir():
            if is_part(path.name) and path.lstat().st_mtime < limit:
                path.unlink()


@contextlib.contextmanager
def _replacing(queue: JobQueue, target: Path | str, kind: str) -> Iterator[Path]:
    """Yield a private file that replaces `target` once it is complete.

    An existing file is replaced only if it is empty or of the same `kind`. SetupError if it is not, or
    `target` cannot be written.
    """
    target = Path(target).absolute()
    part = Path("%s.%s.part" % (target, random_token(8)))       # another process may write to the same target
    try:
        _refuse_target(queue, target, kind)
        write_private(part, "")
        try:
            _remove_older_parts(target, part)
            yield part
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SetupError("The %s cannot be written to %s: %s."
                         % (kind, target, error.strerror)) from None
    with queue.database.transaction() as transaction:
        remember(transaction, "backup", {"at": queue.database.clock.now(), "path": str(target)})


def back_up(queue: JobQueue, target: Path | str) -> None:
    """Write a checked copy of the database, as of one moment, to `target`. Other processes go on."""
    with _replacing(queue, target, "backup") as part:
        queue.database.copy_to(part)


def save(queue: JobQueue, folder: Path, name: str) -> Path:
    """Write a backup, or on PostgreSQL an export, into `folder`; return its path.

    StorageFull if too little room for tasks would remain.
    """
    database = queue.database
    size = database.size()
    if free_bytes(folder) < size + DISK_LOW_BYTES:
        raise StorageFull("There is no room for a backup, %d MB." % math.ceil(size / 1e6))
    write, ending = (back_up, ".db") if database.journal else (export_to, ".jsonl")
    target = folder / private_path(database.path, name + ending).name
    write(queue, target)
    return target


def restore(folder: Path, file: Path, force: bool = False) -> Path:
    """Put a backup in the place of the database; return the new path of the old one.

    1. Check a copy of the backup, and bring it to the newest schema.
    2. Unless `force` is given, refuse while another process uses the database.
    3. Rename the old log. Give the old database its new path, then put the copy at the former path. If the
       file system has hard links, the old database has both paths in between. So a crash leaves a database.
    """
    os.stat(file)                       # a missing backup raises before anything is made
    if not os.path.lexists(folder):
        create_data_folder(folder)
    path, mode = own_database(folder)
    mode, now = mode or safe_journal(folder), Clock.now()
    old_path = private_path(path, "replaced-%s.db" % re.sub("[-:.]", "", iso(now)))
    part = Path("%s.%s.part" % (path, random_token(8)))
    try:
        copy_backup(file, part)
        with open_exclusively(part, mode) as link:
            migrate_file(link)
            remember(link, "daily_backup", None)
        if not force:
            _refuse_living(path, mode, now)
        for ending in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.rename("%s%s" % (path, ending), "%s%s" % (old_path, ending))
        try:
            os.link(path, old_path)
        except OSError:
            os.rename(path, old_path)
        os.rename(part, path)
        (path.parent / "sweep.mark").unlink(missing_ok=True)  # the next tick removes folders of unknown tasks
    finally:
        for leftover in path.parent.glob(part.name + "*"):
            leftover.unlink()
    Journal.decide(path, mode, now)
    return old_path


def _refuse_living(path: Path, mode: str, now: float) -> None:
    """Raise Conflict if another process has the database open.

    The journal mode truncate does not show this. There a tick in the last 100 seconds counts as a process.
    """
    try:
        with open_exclusively(path, "truncate") as link:  # Busy while another process has the log open
            rhythm = mode == "truncate" and recall(link, "rhythm")
        moments = rhythm["seen"].values() if rhythm else ()
    except Busy:
        moments = [now]
    except (StorageBroken, sqlite3.Error):
        moments = []                       # no process can use so damaged a database
    if any(abs(now - at) < 2 * NOTE_SECONDS for at in moments):
        raise Conflict("Something uses the database, or did two minutes ago. Stop the server, cron "
                       "and, by NbMaxWorker 0, the workers; or say --force.")


def _rows_of(db: Reader, table: str) -> Iterator[JsonObject]:
    """Yield the rows of a table as dictionaries, in the order of its key. Read EXPORT_ROWS at a time."""
    key = EXPORTED[table]
    rows: list[JsonObject] | None = None
    last: list[Any] = []
    after = ""
    while rows != []:
        rows = [dict(zip(row.keys(), row)) for row in db.all(
            "SELECT * FROM %s %s ORDER BY %s LIMIT %d" % (table, after, key, EXPORT_ROWS), last)]
        yield from rows
        last = [rows[-1][name] for name in key.split(", ")] if rows else []
        after = "WHERE (%s) > (%s)" % (key, ", ".join("?" * len(last)))


def _exported(db: Reader) -> Iterator[Item]:
    """Yield the table and the row for each row of an export. Rows of `state` about this host are left out."""
    for table in EXPORTED:
        for row in _rows_of(db, table):
            if table != "state" or row["name"] in EXPORTED_STATE:
                yield table, row


def export_lines(queue: JobQueue) -> Iterator[str]:
    """Yield the lines of an export: the whole database, as of one moment."""
    database, counts = queue.database, dict.fromkeys(EXPORTED, 0)
    with database.snapshot() as db:
        yield _as_line({"jobqueue": {
            "version": VERSION, "schema": SCHEMA_VERSION, "exported_at": iso(database.clock.now()),
            "counters": {table: database.last_id(table) for table in COUNTED}}})
        for table, row in _exported(db):
            if row.get("paused_by") == IMPORTER:
                row.update(paused=0, paused_by=None, paused_at=None, paused_why=None)
            counts[table] += 1
            yield _as_line({table: row})
    yield _as_line({"end": counts})


def export_to(queue: JobQueue, target: Path | str) -> None:
    """Write an export, as of one moment, to `target`. Other processes go on."""
    with _replacing(queue, target, "export") as part, open(part, "w", encoding="ascii") as file:
        file.writelines(line + "\n" for line in export_lines(queue))
        file.flush()
        os.fsync(file.fileno())


def _read_line(line: str | bytes) -> JsonObject:
    return read_json(line if isinstance(line, str) else line.decode("utf-8"))


def import_lines(queue: JobQueue, lines: Iterable[str | bytes]) -> dict[str, int]:
    """Store an export in a database without users and tasks, all or nothing; return {table: number of rows}.

    Rows keep their ids, and new rows get higher ones. Running tasks become interrupted, since their end
    will not be reported here. Queues are paused: the tasks may still run at the old place.
    """
    counts = dict.fromkeys(EXPORTED, 0)
    try:
        items = itertools.chain.from_iterable(
            _read_line(line).items() for line in lines)
        with queue.database.transaction() as transaction:
            counters = _store(transaction, items, counts)
            _settle_in(queue, transaction, counters)
    except JobQueueError:
        raise
    except Exception as error:          # json and databases raise many errors for wrong values
        raise Malformed("Nothing was imported: something in or before row %d is wrong (%s)." % (
            sum(counts.values()) + 1, shorten(storable(str(error)), 300))) from None
    return counts


def _store(transaction: Connection, lines: Iterator[Item],
           counts: dict[str, int]) -> dict[str, int]:
    """Store the rows in `lines`, and count them in `counts`; return the highest ids from the first line."""
    nothing: Item = ("", {})
    name, header = next(lines, nothing)
    if name != "jobqueue":
        raise Malformed("This file is not an export of jobqueue.")
    if header["schema"] != SCHEMA_VERSION:
        raise SetupError("The export is of jobqueue %s with schema version %s, and this is %s with "
                         "%d: import it with that version, then upgrade." % (
                             header["version"], header["schema"], VERSION, SCHEMA_VERSION))
    if any(transaction.one("SELECT id FROM %s LIMIT 1" % table) for table in ("user", "task")):
        raise Conflict("This database has users or tasks. Import into an empty database.")
    end: list[JsonObject] = []
    for table in reversed(EXPORTED):    # a new database has some rows
        transaction.run("DELETE FROM %s" % table)
    for table, items in itertools.groupby(lines, key=lambda line: line[0]):
        if end or table not in (*EXPORTED, "end"):
            raise ValueError("%s does not belong here" % table)
        if table == "end":
            end = [value for _, value in items]
            continue
        transaction.insert_all(table, _checked(transaction, table, items, counts))
    if end != [counts]:
        raise Malformed("Nothing was imported: the end of the export is missing, or some lines.")
    return header["counters"]


def _checked(transaction: Connection, table: str, lines: Iterable[Item],
             counts: dict[str, int]) -> Iterator[JsonObject]:
    """Check, count and yield the rows in `lines`; Malformed if a row's columns are not those of the table."""
    columns = transaction.row(            # the names of the columns, even of an empty table
        "SELECT %s.* FROM (SELECT 1 AS one) AS one LEFT JOIN %s ON 1=0" % (table, table)).keys()
    for _, row in lines:
        if row.keys() != set(columns):
            raise Malformed("Nothing was imported: columns of %s are missing or unknown here: %s."
                            % (table, shorten(", ".join(sorted(row.keys() ^ set(columns))), 200)))
        check_row(table, row)
        counts[table] += 1
        yield {name: row[name] for name in columns}


def _settle_in(queue: JobQueue, transaction: Connection, counters: dict[str, int]) -> None:
    """Adapt the imported rows to this place: set the next ids, end the running tasks, pause the queues."""
    now = queue.database.clock.now()
    for table in {*COUNTED, *(name for name, key in EXPORTED.items() if key == "id")}:
        transaction.set_last_id(table, max(
            counters.get(table, 0), transaction.value(queue.database.last_id_words % table) or 0,
            transaction.value("SELECT max(id) FROM %s" % table) or 0))
    for row in transaction.all("SELECT id, claim FROM task WHERE status=RUNNING"):
        never_ran = row["claim"].startswith(UNCONFIRMED)
        queue.claims.end(transaction, row["id"], row["claim"], Outcome("put_back") if never_ran
                         else Outcome("interrupted", None, "Interrupted",
                                      "it ran where it was exported"), now)
    transaction.update("queue", {
        "paused": 1, "paused_by": IMPORTER, "paused_at": now,
        "paused_why": "resume it once no other site runs these tasks"}, "paused=0")
