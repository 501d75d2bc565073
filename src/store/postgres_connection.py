"""A connection to a PostgreSQL server, with a deadline for each call."""
from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import AnyTuple, NamedTuple
from ..base.errors import SetupError
from ..base.time_and_text import shorten, storable
from .connection import Connection, insert_statement
from .postgres_sql import CALL_SECONDS, CONNECT_SECONDS, to_postgres

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Row
    from ..base.time_and_text import AnyClock

LOOK_SECONDS_MAX = 60.0         # limit of a long read, even if its caller sets none
LINK_OPTIONS = {
    "application_name": "jobqueue", "client_encoding": "utf8", "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 15000, "target_session_attrs": "read-write"}
# The server must end sessions of clients that vanish or accept no answer. Such a session may hold the lock
# row, and nothing else would release that. Some servers do not know all of these settings.
SERVER_KEEPALIVES = """SELECT set_config(name, value, false) FROM (VALUES ('tcp_user_timeout', '5000'),
    ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '1'),
    ('client_connection_check_interval', '1000')) AS wanted (name, value)
WHERE version() LIKE '%linux%' AND current_setting(name, true) <> ''"""
# A role may have synchronous_commit off. Then a crash of the server loses commits that it has confirmed.
SERVER_SYNCHRONOUS = """SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit')='off'"""
# The server keeps the plans of prepared statements while tables grow from ten rows to a million. So it must
# prefer indexes, as SQLite does. These options are sent when a connection starts: a SET through
# a pooler would also affect other applications.
SERVER_PLANS = (" -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
                " -c random_page_cost=1 -c jit=off")
STATEMENT_MS = 10_000           # limit of a statement on the server
IDLE_MS = 4_000                 # limit of an idle transaction, which may hold the lock row
SERVER_PROCESS = "SELECT pg_backend_pid()"
PREPARED_AFTER, PREPARED_MAX = 1, 300   # executions before a statement is prepared; prepared ones kept
LATER_MAX = 500                 # rows of values that may wait for the next query

if TYPE_CHECKING:
    Statement = tuple[str, Sequence[AnyTuple]]      # SQL in SQLite's dialect, and rows of values


class ServerRow(AnyTuple):
    """A row of PostgreSQL's. As in SQLite's rows, a column has a number and a name."""

    __slots__ = ()
    names: tuple[str, ...] = ()
    places: dict[str, int] = {}

    def keys(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self.names

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.places[key] if key.__class__ is str else key)


@functools.lru_cache(maxsize=500)
def _row_class(encoded_names: tuple[bytes, ...]) -> type[ServerRow]:
    names = tuple(name.decode() for name in encoded_names)
    places = {name: names.index(name) for name in names}
    return type("ServerRow", (ServerRow,), {"__slots__": (), "names": names, "places": places})


def _make_rows(cursor: Any) -> type[ServerRow]:
    """Return the class of a cursor's rows, for psycopg's row_factory."""
    result = cursor.pgresult
    return _row_class(tuple(map(result.fname, range(result.nfields))) if result else ())


class Driver(NamedTuple):
    """psycopg, our connection class with a deadline for each call, and the adapters of values."""

    psycopg: Any
    connection: Any
    adapters: Any


@functools.lru_cache(maxsize=None)
def driver() -> Driver:
    """Import psycopg and return it; SetupError if it is missing or too old."""
    import logging
    try:
        import psycopg
        if not hasattr(psycopg.waiting, "READY_NONE"):      # an older version never gives up a silent server
            raise ImportError("this is %s" % psycopg.__version__)
    except ImportError as error:
        raise SetupError('A queue on PostgreSQL needs psycopg 3.2 or newer (%s): %s -m pip install -U '
                         '"psycopg[binary]"' % (shorten(str(error), 200), sys.executable)) from None
    logging.getLogger("psycopg").setLevel(logging.ERROR)    # psycopg's warnings repeat its errors
    int_dumper, text_dumper = psycopg.types.numeric.Int8Dumper, psycopg.types.string.StrDumperUnknown

    class Number(psycopg.adapt.Loader):  # type: ignore[misc]   # psycopg is skipped: it is optional
        """A loader that reads numeric values, such as sums, as int or float; it also reads booleans."""

        def load(self, data: bytes) -> float | bool:
            text = bytes(data)
            return int(text) if text.isdigit() else text == b"t" if text in b"tf" else float(text)

    class Truth(int_dumper):  # type: ignore[misc, valid-type]
        """A dumper that stores booleans as numbers."""

        def dump(self, obj: Any) -> Any:
            return b"%d" % obj

    class Text(text_dumper):  # type: ignore[misc, valid-type]
        """A dumper that lets a text stand for any type, and escapes NUL."""

        def dump(self, obj: str) -> Any:
            return super().dump(storable(obj) if "\0" in obj else obj)

    class LimitedConnection(psycopg.Connection):  # type: ignore[misc]
        """A connection whose calls end at `deadline` (monotonic)."""

        deadline = math.inf

        def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
            """Run a call of psycopg; OperationalError at the deadline."""
            return super().wait(self._limited(gen), *arguments, **named)

        def _limited(self, gen: Any) -> Any:
            ready = None
            try:
                while True:
                    event = gen.send(ready)
                    if time.monotonic() > self.deadline:
                        self.pgconn.finish()    # late answers would be taken for those of the next query
                        raise psycopg.OperationalError("the server does not answer")
                    ready = yield event
            except StopIteration as end:
                return end.value

    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in ("numeric", "bool"):
        adapters.register_loader(name, Number)
    for kind, dumper in ((int, int_dumper), (bool, Truth), (str, Text)):
        adapters.register_dumper(kind, dumper)
    return Driver(psycopg, LimitedConnection, adapters)


class Reply(NamedTuple):
    """The server's status message for a statement, such as "UPDATE 3", and the statement's rows."""

    word: str
    rows: Sequence[ServerRow]


class ServerConnection(Connection):
    """A connection to PostgreSQL.

    Statements of run_later() and run_many_later() are sent with the next query, in one pipeline.
    """

    def __init__(self, address: str) -> None:
        self._psycopg, connection, adapters = driver()
        self.limit = math.inf           # most seconds of a call, besides the call's own limit
        self.change_count = 0           # rows changed in this transaction; a waiting statement counts as one
        self._later: list[Statement] = []
        self._rows_later = 0
        self._listens, self._heard = False, 0   # if LISTEN was sent; number of notifications
        options = {**LINK_OPTIONS, **self._psycopg.conninfo.conninfo_to_dict(address)}
        options["options"] = "%s%s -c statement_timeout=%d -c idle_in_transaction_session_timeout=%d" % (
            options.get("options", ""), SERVER_PLANS, STATEMENT_MS, IDLE_MS)
        self._link = connection.connect(
            **options, autocommit=True, context=adapters, row_factory=_make_rows,
            prepare_threshold=PREPARED_AFTER)
        self._link.prepared_max = PREPARED_MAX
        self._link.add_notify_handler(self._hear)
        *_, process = self.ask("%s; %s; %s" % (SERVER_KEEPALIVES, SERVER_SYNCHRONOUS, SERVER_PROCESS),
                               CONNECT_SECONDS)
        # A pooler gives a new connection an invented process number.
        self.is_pooled: bool = process.rows[0][0] != self._link.info.backend_pid

    @property
    def is_broken(self) -> bool:
        """Return True if the connection cannot be used any more."""
        return bool(self._link.closed)

    @property
    def changes(self) -> int:
        """Return a number above 0 if rows were added, changed or removed in this transaction, or may be."""
        return self.change_count

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def fileno(self) -> int:
        """Return the descriptor of the connection's socket."""
        return self._link.fileno()

    @contextlib.contextmanager
    def _limited(self, seconds: float = CALL_SECONDS) -> Iterator[None]:
        """Let the calls of the block end within `seconds`, and within `limit`.

        Close a connection whose server refuses writes: it became a replica, and another server takes its
        place.
        """
        self._link.deadline = time.monotonic() + min(seconds, self.limit)
        try:
            yield
        except self._psycopg.Error as error:
            if error.sqlstate == "25006":
                self.close()
            raise
        finally:
            self._link.deadline = math.inf

    def ask(self, text: str, seconds: float = CALL_SECONDS) -> list[Reply]:
        """Execute the statements of a text, which have no values; return a Reply for each."""
        with self._limited(seconds):
            cursor = self._link.execute(text, prepare=False)
            replies = [self._reply(cursor)]
            while cursor.nextset():
                replies.append(self._reply(cursor))
        return replies

    def send(self, *statements: Statement) -> list[Any]:
        """Execute the statements that wait, then `statements`; return a cursor for each of `statements`."""
        waiting, self._later, self._rows_later = self._later, [], 0
        with self._limited(), self._pipeline(sum(len(rows) for _, rows in (*waiting, *statements))):
            for statement, rows in waiting:
                self._execute(statement, rows)
            return [self._execute(statement, rows) for statement, rows in statements]

    @contextlib.contextmanager
    def _pipeline(self, count: int) -> Iterator[None]:
        """Send the `count` statements of the block in one pipeline.

        After an error the connection is closed. Else psycopg would use a statement as prepared that the
        server skipped.
        """
        if count < 2 or not self._psycopg.Pipeline.is_supported():
            yield
            return
        try:
            with self._link.pipeline():
                yield
        except self._psycopg.Error:
            self.close()
            raise

    def _execute(self, statement: str, rows: Sequence[AnyTuple]) -> Any:
        words = to_postgres(statement)
        if len(rows) == 1:
            return self._link.execute(words, rows[0])
        cursor = self._link.cursor()
        cursor.executemany(words, rows)
        return cursor

    @staticmethod
    def _reply(cursor: Any) -> Reply:
        return Reply(cursor.statusmessage or "", cursor.fetchall() if cursor.pgresult.nfields else ())

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; return the number of rows changed."""
        return self.many(statement, [values])

    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement once for each of `rows`, in one pipeline; return the number of rows changed."""
        batch = [tuple(values) for values in rows]
        count: int = max(0, self.send((statement, batch))[0].rowcount) if batch else 0
        self.change_count += count
        return count

    def run_later(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement with the next query."""
        self.run_many_later(statement, [values])

    def run_many_later(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each of `rows` with the next query."""
        batch = [tuple(values) for values in rows]
        if batch:
            self._later.append((statement, batch))
            self._rows_later += len(batch)
            self.change_count += 1      # the number of rows is not known yet
        if self._rows_later > LATER_MAX:
            self.send()

    def insert(self, table: str, row: JsonObject) -> int:
        """Add a row, given as a dictionary; return its id."""
        self.change_count += 1
        return self.value(insert_statement("INSERT", table, tuple(row)) + " RETURNING id",
                          tuple(row.values()))

    def set_last_id(self, table: str, last: int) -> None:
        """Let new rows of a table have ids above `last`, even if the table is empty."""
        self.run_later("SELECT setval('%s_id_seq', ?, CAST(? AS BOOLEAN))" % table,
                       (max(last, 1), "true" if last else "false"))

    advance_ids = set_last_id

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """Return all rows."""
        rows: Sequence[Row] = self._reply(self.send((statement, [tuple(values)]))[0]).rows
        return rows

    def all_within(self, seconds: float, clock: AnyClock, statement: str,
                   values: Sequence[Any] = ()) -> Sequence[Row] | None:
        """Return all rows, or None if that takes longer than `seconds`."""
        most = min(max(seconds, 0.001), LOOK_SECONDS_MAX)
        try:
            with self._limited(most + CALL_SECONDS):
                self._link.execute("BEGIN; SET LOCAL statement_timeout=%d" % (most * 1000), prepare=False)
                cursor = self._link.execute(to_postgres(statement), tuple(values), prepare=False)
                self._link.execute("COMMIT", prepare=False)
            return self._reply(cursor).rows
        except self._psycopg.Error as error:
            if error.sqlstate != "57014" or seconds > most:
                raise
            return None
        finally:
            self.roll_back()

    def heard(self) -> tuple[int, int]:
        """Return a value that changes with each notification. The first call begins to listen."""
        if not self._listens:
            self._listens = True
            self.run("LISTEN jobqueue")
        self._link.pgconn.consume_input()
        for notification in iter(self._link.pgconn.notifies, None):
            self._hear(notification)
        return id(self), self._heard

    def _hear(self, notification: object) -> None:
        self._heard += 1

    def roll_back(self) -> None:
        """Undo an open transaction, if there is one, and drop the statements that wait."""
        self._later, self._rows_later = [], 0
        if not self.is_broken and self._link.info.transaction_status:
            try:
                self.ask("ROLLBACK")
            except self._psycopg.Error:
                self.close()
