"""A checked copy, while everything goes on; restore, export, import.

A backup is a copy of the database's file; restore() puts it back. An export is text, in which one
moves from SQLite to PostgreSQL or back: each line is a JSON object with one name. First comes
"jobqueue" with the schema and the highest ids ever, then each row of EXPORTED under its table's
name, last "end" with their numbers, so that half of one is known as such. What belongs to one
place stays there: workers and their shifts, sessions, who guesses passwords from where, what is
still to be told, what we remember of a host, and files.
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
from ..store.sqlite import Journal, migrate_file, open_exclusively, safe_journal, take_backup
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
    Item = tuple[str, Any]              # the name and the value of a line

EXPORT_ROWS = 100               # read at once
EXPORTED = {                    # {table: what tells its rows apart}
    **dict.fromkeys("user token setting function queue schedule task log activity alert".split(),
                    "id"),
    **{table: ", ".join(keys) for table, keys in HOUR_KEYS.items()}, "recent": "function",
    "slot": "schedule_id, at", "state": "name", "unsettled": "task_id", "request": "owner_id, key",
    "task_after": "task_id, settled, after_id"}
COUNTED = "user token schedule task worker alert".split()     # rows elsewhere name their ids
BEGINNINGS = {"backup": b"SQLite format 3\0", "export": b'{"jobqueue":'}
IMPORTER = "the import"         # has paused a queue; no user is called so
_as_line = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _refuse_target(queue: JobQueue, target: Path, kind: str) -> None:
    """SetupError if writing a backup or export to `target` would destroy something else."""
    if file_identity(target) == file_identity(queue.database.path):
        raise SetupError("%s is the database itself." % target)
    if target.match("jobqueue-*.db") and target.parent.resolve() == queue.database.folder.resolve():
        raise SetupError("%s would be a second database: choose another name." % target)
    if target.exists():
        with open(target, "rb") as file:        # a folder cannot be opened
            if file.read(len(BEGINNINGS[kind])) not in (b"", BEGINNINGS[kind]):
                raise SetupError("%s exists and is no %s; it was not touched." % (target, kind))


def _remove_older_parts(target: Path, part: Path) -> None:
    """Remove what was left a day before `part` or earlier by those who were killed on the way."""
    is_part = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.part").match
    with contextlib.suppress(OSError):
        limit = part.stat().st_mtime - 86400
        for path in target.parent.iterdir():
            if is_part(path.name) and path.lstat().st_mtime < limit:
                path.unlink()


@contextlib.contextmanager
def _replacing(queue: JobQueue, target: Path | str, kind: str) -> Iterator[Path]:
    """A private file for the block, which takes the place of `target` once it is complete.
    Only another one of this kind is replaced. SetupError says what is wrong with `target`."""
    target = Path(target).absolute()
    part = Path("%s.%s.part" % (target, random_token(8)))       # another may be on its way
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
    """Write a checked copy of the database, as it is at one moment, to `target`; all goes on."""
    with _replacing(queue, target, "backup") as part:
        queue.database.copy_to(part)


def save(queue: JobQueue, folder: Path, name: str) -> Path:
    """Make a backup, or on PostgreSQL an export, if that leaves room for tasks; its path."""
    database = queue.database
    size = database.size()
    if free_bytes(folder) < size + DISK_LOW_BYTES:
        raise StorageFull("There is no room for a backup, %d MB." % math.ceil(size / 1e6))
    write, ending = (back_up, ".db") if database.journal else (export_to, ".jsonl")
    target = folder / private_path(database.path, name + ending).name
    write(queue, target)
    return target


def restore(folder: Path, file: Path, force: bool = False) -> Path:
    """Put a backup in the place of the database; under which name that is kept.
    1. A copy of the backup is checked, and is written as databases are here.
    2. While anything lives it is refused, unless by `force`.
    3. What was there gets another name with its log, and the copy its place. In between it has both
       names, where the file system knows such: a crash leaves a database."""
    os.stat(file)                       # before anything is made
    if not os.path.lexists(folder):
        create_data_folder(folder)
    path, mode = own_database(folder)
    mode, now = mode or safe_journal(folder), Clock.now()
    kept = private_path(path, "replaced-%s.db" % re.sub("[-:.]", "", iso(now)))
    part = Path("%s.%s.part" % (path, random_token(8)))
    try:
        take_backup(file, part)
        with open_exclusively(part, mode) as link:
            migrate_file(link)
            remember(link, "daily_backup", None)
        if not force:
            _refuse_living(path, mode, now)
        for ending in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.rename("%s%s" % (path, ending), "%s%s" % (kept, ending))
        try:
            os.link(path, kept)
        except OSError:
            os.rename(path, kept)
        os.rename(part, path)
        (path.parent / "sweep.mark").unlink(missing_ok=True)    # folders of tasks that it has not
    finally:
        for left in path.parent.glob(part.name + "*"):
            left.unlink()
    Journal.decide(path, mode, now)
    return kept


def _refuse_living(path: Path, mode: str, now: float) -> None:
    """Conflict if anybody has the database open or, where that does not show, was here lately."""
    try:
        with open_exclusively(path, "truncate") as link:  # who leaves the log is alone
            known = mode == "truncate" and recall(link, "rhythm")
        seen = known["seen"].values() if known else ()
    except Busy:
        seen = [now]
    except (StorageBroken, sqlite3.Error):
        seen = []                       # as damaged as it is nobody uses it
    if any(abs(now - at) < 2 * NOTE_SECONDS for at in seen):
        raise Conflict("Something uses the database, or did two minutes ago. Stop the server, cron "
                       "and, by NbMaxWorker 0, the workers; or say --force.")


def _rows_of(db: Reader, table: str) -> Iterator[JsonObject]:
    """All rows of a table as dictionaries, in the order of its key; some are read at a time."""
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
    """Yield the rows of all tables; of `state` those that are not about this host."""
    for table in EXPORTED:
        for row in _rows_of(db, table):
            if table != "state" or row["name"] in EXPORTED_STATE:
                yield table, row


def export_lines(queue: JobQueue) -> Iterator[str]:
    """Yield the lines of an export: all that is kept, as it is at one moment."""
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
    """Write an export to the file `target`, as back_up() does."""
    with _replacing(queue, target, "export") as part, open(part, "w", encoding="ascii") as file:
        file.writelines(line + "\n" for line in export_lines(queue))
        file.flush()
        os.fsync(file.fileno())


def _read_line(line: str | bytes) -> JsonObject:
    return read_json(line if isinstance(line, str) else line.decode("utf-8"))


def import_lines(queue: JobQueue, lines: Iterable[str | bytes]) -> dict[str, int]:
    """Store an export in a database without users and tasks, all or nothing; {table: rows}.
    Ids stay, and new ones will be higher than any was there. What ran there is interrupted, since
    its end will not be told here. Queues are paused: their tasks may still be run there, too."""
    counts = dict.fromkeys(EXPORTED, 0)
    try:
        found = itertools.chain.from_iterable(
            _read_line(line).items() for line in lines)
        with queue.database.transaction() as transaction:
            counters = _store(transaction, found, counts)
            _settle_in(queue, transaction, counters)
    except JobQueueError:
        raise
    except Exception as error:          # json, or any database, does not take what is written there
        raise Malformed("Nothing was imported: something in or before row %d is wrong (%s)." % (
            sum(counts.values()) + 1, shorten(storable(str(error)), 300))) from None
    return counts


def _store(transaction: Connection, lines: Iterator[Item],
           counts: dict[str, int]) -> dict[str, int]:
    """Store what each line says; return what the header says of ids."""
    nothing: Item = ("", {})
    name, header = next(lines, nothing)
    if name != "jobqueue":
        raise Malformed("This is no export of a jobqueue.")
    if header["schema"] != SCHEMA_VERSION:
        raise SetupError("The export is of jobqueue %s with schema version %s, and this is %s with "
                         "%d: import it with that version, then bring in this one." % (
                             header["version"], header["schema"], VERSION, SCHEMA_VERSION))
    if any(transaction.one("SELECT id FROM %s LIMIT 1" % table) for table in ("user", "task")):
        raise Conflict("There are users or tasks here: only an empty database takes an import.")
    end: list[JsonObject] = []
    for table in reversed(EXPORTED):    # what a new one has
        transaction.run("DELETE FROM %s" % table)
    for table, some in itertools.groupby(lines, key=lambda line: line[0]):
        if end or table not in (*EXPORTED, "end"):
            raise ValueError("%s does not belong here" % table)
        if table == "end":
            end = [value for _, value in some]
            continue
        transaction.insert_all(table, _checked(transaction, table, some, counts))
    if end != [counts]:
        raise Malformed("Nothing was imported: the end of the export is missing, or some lines.")
    return header["counters"]


def _checked(transaction: Connection, table: str, lines: Iterable[Item],
             counts: dict[str, int]) -> Iterator[JsonObject]:
    """The rows in `lines`, counted; Malformed for one with other columns than the table has."""
    known = transaction.row(            # their names, whether there is a row or not
        "SELECT %s.* FROM (SELECT 1 AS one) AS one LEFT JOIN %s ON 1=0" % (table, table)).keys()
    for _, row in lines:
        if row.keys() != set(known):
            raise Malformed("Nothing was imported: columns of %s are missing or unknown here: %s."
                            % (table, shorten(", ".join(sorted(row.keys() ^ set(known))), 200)))
        check_row(table, row)
        counts[table] += 1
        yield {name: row[name] for name in known}


def _settle_in(queue: JobQueue, transaction: Connection, counters: dict[str, int]) -> None:
    """What is different here: where ids go on, what became of tasks, and that all waits."""
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
        "paused_why": "resume it once nothing runs these tasks elsewhere"}, "paused=0")
