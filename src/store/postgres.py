"""PostgreSQL: the lock row, the server's time, notifications.

Several machines may share a server. PostgresDatabase locks the only row of the table `jobqueue` while it
writes. So one transaction runs at a time, as in a file.
"""
from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import LEASE_SECONDS, WEB_PATIENCE_SECONDS
from ..base.errors import Busy, Conflict, JobQueueError, SetupError, StorageBroken, StorageFull
from ..base.time_and_text import Clock, random_token, shorten
from .connection import (BUSY, FULL, OWNER_GONE, UNUSABLE, OneThread, emptied, find_database,
                         write_private)
from .schema import MIGRATIONS, SCHEMA, SCHEMA_VERSION, another_version
from .database import Database
from .sqlite import safe_journal
from .postgres_sql import (NO_EPOCH, SCHEMA_OTHERWISE, SERVER_SCHEMA, replace_patterns,
                           to_postgres)
from .postgres_connection import SERVER_PROCESS, ServerConnection, driver

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Row
    from ..base.time_and_text import AnyClock

SERVER_SLACK_SECONDS = 5.0      # tolerated difference; all machines use the server's clock
# One round trip locks the row. READ COMMITTED lets the transaction see the commits made during its wait.
# `at` is the time at which the row was locked. Every commit is durable: after a crash of the server a worker
# must not run a task whose claim was lost.
SERVER_BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout=%d;
    WITH held AS MATERIALIZED (SELECT version, epoch FROM jobqueue FOR UPDATE)
    SELECT version, epoch, extract(epoch FROM clock_timestamp())::float8 AS at FROM held"""
# The last statement of a transaction. Its row shows the writer whether a COMMIT without an answer succeeded.
# The server's transaction id is no proof: a crashed server gives lost ids to other transactions.
SERVER_MARK = """
    INSERT INTO mark VALUES (?, ?, extract(epoch FROM clock_timestamp()))
    ON CONFLICT (writer) DO UPDATE SET number=excluded.number, at=excluded.at"""
# Sent after COMMIT: a transaction that notifies would need a lock of the whole server.
SERVER_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('jobqueue', '')"
PING_SECONDS = 2                # the shortest connect_timeout of libpq
# Patterns of errors without an SQLSTATE: the connection is refused, or a later attempt may succeed. The
# driver's messages are in English, the server's in any language.
REFUSALS = "translate host|not known|certificate|pg_hba"
LATER = "too many|slots are reserved|read-only|timeout|timed out|oute to host|unreachable|on refused"
SERVER_STATE = """SELECT version, epoch,
    CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) AS at FROM jobqueue"""
# `holder` has kept a snapshot for long. Removed rows stay in the tables until no snapshot can see them.
SERVER_FACTS = """SELECT current_setting('server_version') AS version,
    current_setting('synchronous_standby_names')=''
        AND EXISTS (SELECT 1 FROM pg_stat_replication) AS lags,
    (SELECT holder FROM (
        SELECT 'process ' || pid AS holder, xact_start AS since FROM pg_stat_activity
            WHERE backend_xmin IS NOT NULL AND datname=current_database() AND pid<>pg_backend_pid()
        UNION ALL SELECT 'prepared transaction ' || gid, prepared FROM pg_prepared_xacts
            WHERE database=current_database()
        UNION ALL SELECT 'replication slot ' || slot_name, 'epoch' FROM pg_replication_slots
            WHERE xmin IS NOT NULL AND NOT active) AS holders
    WHERE since < clock_timestamp() - INTERVAL '10 minutes'
    ORDER BY since LIMIT 1) AS holder"""
OLD_MARKS = "DELETE FROM mark WHERE at<extract(epoch FROM clock_timestamp())-86400"
GENUINE = r"PostgreSQL (1[3-9]|[2-9]\d)(?!.*-YB-)"     # products derived from PostgreSQL may lock differently
SERVER_TABLES = "SELECT CAST(to_regclass('jobqueue') AS TEXT)"
SERVER_SCHEMAS = """SELECT count(DISTINCT relnamespace) FROM pg_class
WHERE oid IN (to_regclass('jobqueue'), to_regclass('task'), to_regclass('queue'))"""
UNSURE = ("The connection to the database broke at the last moment, and this may have been stored. Please "
          "look before you try again.")
POOLED = ("The database %(path)s is reached through a pooler, which shares the sessions of a server "
          "among programs (%(said)s). Give the server's own address instead.")
# A pattern for the beginning of an SQLSTATE, our error, and its sentence.
SERVER_ERRORS = (
    ("08|0A000|25006|25P0[34]|26|40|533|55P03|57", Busy, BUSY),     # 0A000, 26: a prepared statement is gone
    ("23503", Conflict, OWNER_GONE),
    ("53100", StorageFull, FULL),
    ("42P07|42710|42723|42703", SetupError,
     "The database %(path)s has other tables already (%(said)s): the queue needs "
     "one of its own."),
    ("42501", StorageBroken, UNUSABLE + " As the owner of the database, GRANT USAGE, CREATE ON SCHEMA "
     "public to this role, or give it the database."),
    ("28|3D|3F|42P01|53|58|XX", StorageBroken, UNUSABLE),
)


class ServerClock(Clock):
    """A clock with the server's time, which all machines share. Between two answers our own clock goes on."""

    @staticmethod
    def _ticks() -> float:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def __init__(self) -> None:
        self._base = time.time() - self._ticks()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._base + self._ticks()

    def set(self, now: float) -> None:
        """Set the server's time. Ignore small differences, which come from the network."""
        if abs(now - self.now()) > 0.005:
            self._base = now - self._ticks()


class PostgresDatabase(Database):
    """A database on a PostgreSQL server.

    A transaction has these steps:

    1. Take the lock of this process's threads, then lock the only row of `jobqueue`. That row has the
       schema's version and the database's epoch. A program of another version stops here.
    2. Read the server's time after the row is locked.
    3. Run the block, then COMMIT. If there is no answer, lock the row on a new connection. That waits until
       the old transaction has ended. Then look for the mark of the old transaction.
    4. Notify the workers after a durable commit.
    """

    hears_all, is_shared = False, True
    pauses = 0.02, 0.2                  # long: each attempt to connect costs the server a process
    last_id_words = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %s_id_seq"
    version_words = "SELECT version FROM jobqueue"
    snapshot_words = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                      "SET LOCAL idle_in_transaction_session_timeout=0", "SELECT 1")
    errors: type[Exception]
    _reader: ServerConnection           # after the first _open()
    _writer: ServerConnection

    def __init__(self, address: str, folder: Path, clock: AnyClock = Clock,
                 patience: float = WEB_PATIENCE_SECONDS) -> None:
        super().__init__(folder, ServerClock() if clock is Clock else clock, patience)
        self.has_own_disk = safe_journal(folder) == "wal"
        # A failover to a replica may take long, so leases are longer.
        self.lease_seconds, self.slack_seconds = 2 * LEASE_SECONDS, SERVER_SLACK_SECONDS
        self.errors = driver().psycopg.Error
        self._address, self.path = address, find_database(folder)
        self._write_lock = OneThread(clock)
        self._epoch: str | None = None
        self._reason = ""               # why the server could not be reached
        self._name, self._number, self._commits = random_token(8), 0, 0
        try:
            name = str(self)
            with self.deadline(patience):
                self._patiently(self._prepare)
        except Busy:
            self.close()
            silent = Busy("The database %s does not answer%s. Please try again." % (
                name, self._reason and ": " + self._reason))
            silent.public = BUSY
            raise silent from None
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Make or migrate the tables, then compare the epoch. One process makes them while the rest wait."""
        link, expected = self._open("_reader"), self.path.read_text("utf-8").strip()
        try:
            if link.is_pooled:
                self._refuse_shared_sessions(link)
            if not link.value(SERVER_TABLES):
                if expected != NO_EPOCH:
                    raise emptied(self)
                if not re.match(GENUINE, link.value("SELECT version()")):
                    raise SetupError("The database %s is not on PostgreSQL 13 or newer." % self)
                if link.value("SHOW server_encoding") != "UTF8":
                    raise SetupError("The database %s is not in UTF8: make another one." % self)
                link.ask("BEGIN; SELECT pg_advisory_xact_lock(7061)")
                if not link.value(SERVER_TABLES):
                    link.ask(to_postgres(replace_patterns(SCHEMA, SCHEMA_OTHERWISE) + SERVER_SCHEMA))
                    link.run("INSERT INTO jobqueue VALUES (?, ?)",
                             (SCHEMA_VERSION, random_token(8)))
                link.run("COMMIT")
            self._migrate(link)
            if link.value(SERVER_SCHEMAS) > 1:
                raise SetupError("The tables of the database %s lie in several schemas: set the "
                                 "search_path of its role to one of them." % self)
            replies = link.ask("BEGIN; %s; %s; COMMIT" % (SERVER_STATE, OLD_MARKS))
            row = self._checked(replies[1].rows)
            epoch: str = row["epoch"]
            self._epoch = epoch
            self._set_clock(row["at"])
        finally:
            link.roll_back()
        if expected == NO_EPOCH:
            write_private(self.path, epoch)
        elif expected != epoch:
            raise SetupError("The data folder %s belongs to another database than %s: delete %s "
                             "if it is to belong to this one." % (self.folder, self, self.path))

    @staticmethod
    def _migrate(link: ServerConnection) -> None:
        """Migrate tables of an older schema version, in one transaction that holds the lock row."""
        version = link.value("SELECT version FROM jobqueue")
        if version == SCHEMA_VERSION or not MIGRATIONS.get(version):
            return                      # _checked() refuses other versions
        link.ask("BEGIN; SELECT version FROM jobqueue FOR UPDATE")
        version = link.value("SELECT version FROM jobqueue")
        if MIGRATIONS.get(version):     # else another process was faster
            link.ask(to_postgres(replace_patterns(MIGRATIONS[version], SCHEMA_OTHERWISE)))
            link.run("UPDATE jobqueue SET version=?", (SCHEMA_VERSION,))
        link.run("COMMIT")

    def _refuse_shared_sessions(self, link: ServerConnection) -> None:
        """Raise SetupError if two connections share a session of the server."""
        before = link.value(SERVER_PROCESS)
        second = self._open("_writer")
        second.ask("BEGIN")
        while_open = second.value(SERVER_PROCESS)
        if while_open == before or link.value(SERVER_PROCESS) != before:
            raise SetupError(POOLED % {"path": self, "said": "two connections had one session"})
        second.roll_back()

    def _checked(self, rows: Sequence[Row]) -> Row:
        """Return the lock row; raise if it is gone, has another epoch, or has another schema version."""
        if len(rows) != 1 or self._epoch not in (None, rows[0]["epoch"]):
            raise StorageBroken("The database %s was replaced while it was in use. Stop and start "
                                "everything." % self)
        if rows[0]["version"] != SCHEMA_VERSION:
            raise another_version(rows[0]["version"])
        return rows[0]

    def __str__(self) -> str:
        """Return the name of the database for messages, without the password."""
        parts = {"host": "this machine", "dbname": ""}
        try:
            parts.update(driver().psycopg.conninfo.conninfo_to_dict(self._address))
        except self.errors:             # the error's text may contain parts of the password
            parts["host"] = "@"
        if "@" in parts["host"] + parts["dbname"]:      # so may these parts
            raise SetupError("The address of the database cannot be understood. In the password, "
                             "% is written as %25, / as %2F, @ as %40 and ? as %3F. Behind a ? "
                             "stand only options of libpq (sslmode, options, ...).")
        return "%s (PostgreSQL on %s)" % (parts["dbname"] or parts.get("user"), parts["host"])

    def _open(self, name: str) -> ServerConnection:
        super()._open(name)
        return getattr(self, name)

    def _connect(self) -> ServerConnection:
        return ServerConnection(self._address)

    def _problem(self, error: Exception) -> Exception:
        psycopg, message = driver().psycopg, shorten(str(error), 200)
        is_lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        state = getattr(error, "sqlstate", None) or ("08" if is_lost else "")
        for states, kind, sentence in SERVER_ERRORS:
            if re.match(states, state) and (kind is not SetupError or self._epoch is None):
                if kind is Busy and self._epoch is None:
                    self._reason = message.rstrip(".?")
                    if "unsupported startup parameter" in message:
                        kind, sentence = SetupError, POOLED
                    elif state == "08" and self._refuses(message):
                        kind, sentence = StorageBroken, UNUSABLE
                return kind(sentence % {"path": self, "said": message.rstrip(".?")})
        return error

    def _refuses(self, message: str) -> bool:
        """Return True if the server takes connections, but not this one.

        The driver keeps no SQLSTATE of a failed connection, and the server's message may be in any
        language. So a ping tells whether the server takes connections at all. A silent server gets no ping,
        because all other threads would wait.
        """
        if re.search(LATER, message):
            return False
        if re.search(REFUSALS, message):
            return True
        pq = driver().psycopg.pq
        address = driver().psycopg.conninfo.make_conninfo(self._address, connect_timeout=PING_SECONDS)
        return pq.PGconn.ping(address.encode()) in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)

    def _read(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        if not self._reading.acquire(timeout=max(0.1, self.seconds_left())):
            raise Busy(BUSY)            # do not ask a silent server again
        try:
            link = self._open("_reader")
            link.limit = max(1.0, self.seconds_left())
            return link.all(statement, values)
        finally:
            self._reading.release()

    def _begin(self, durable: bool) -> None:
        wait = 100 + int(1000 * self.seconds_left())
        self._open("_writer").roll_back()       # an earlier try may have left a transaction open
        lock = self._checked(self._writer.ask(SERVER_BEGIN % wait, 1 + wait / 1000)[-1].rows)
        self._writer.change_count = 0
        self._set_clock(lock["at"])

    def _set_clock(self, now: float) -> None:
        if isinstance(self.clock, ServerClock):
            self.clock.set(now)
            self.clock_offset = time.time() - now

    def _commit(self, durable: bool) -> None:
        is_new = self._writer.changes > 0
        if is_new:
            self._number += 1
            self._writer.run_later(SERVER_MARK, (self._name, self._number))
        try:
            words = ("COMMIT", SERVER_NOTIFY) if durable and is_new else ("COMMIT",)
            commit, *_ = self._writer.send(*((word, [()]) for word in words))
            is_kept = commit.statusmessage == "COMMIT"
        except self.errors:
            is_kept = self._became_true()
            if not is_kept:
                raise
        if not is_kept:
            raise Busy(BUSY)
        self._commits += is_new

    def _became_true(self) -> bool:
        """Return True if a transaction was committed whose COMMIT had no answer; Busy if that is unknown."""
        number = None
        self._deadline.at = self.clock.monotonic() + self.patience
        try:
            self._writer.roll_back()
            self._patiently(lambda: self._begin(False))     # waits until the old transaction has ended
            number = self._writer.value("SELECT number FROM mark WHERE writer=?", (self._name,))
        except (self.errors, JobQueueError):
            raise Busy(UNSURE) from None
        finally:
            self._writer.roll_back()
        return bool(number == self._number)

    @property
    def alarm(self) -> int | None:
        """Return the descriptor on which notifications arrive, or None."""
        return None if self._reader.is_broken else self._reader.fileno()

    def version_seen(self) -> object:
        """Return a value that changes after a durable commit, unless its notification is lost."""
        return (*self._patiently(self._heard), self._commits)

    def _heard(self) -> tuple[int, int]:
        with self._reading:
            return self._open("_reader").heard()

    def size(self) -> int:
        """Return the size in bytes."""
        return self.value("SELECT pg_database_size(current_database())")

    def server_facts(self) -> Row:
        """Return a row about the server: its version, `lags` and `holder`.

        `lags` is true if a replica may lack the newest commits. `holder` names a session or slot that has
        kept an old snapshot for long.
        """
        return self.row(SERVER_FACTS)

    def damage(self) -> None:
        """Return None: the server checks its own files."""

    def copy_to(self, path: Path) -> None:
        """Raise SetupError: a server has backups of its own."""
        raise SetupError("A queue on PostgreSQL is saved with its own programs (pg_dump), or with "
                         "python3 jobqueue.py export FILE.")
