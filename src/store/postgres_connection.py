"""A connection to a PostgreSQL server, with a deadline for each call."""
from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import AnyTuple, NamedTuple
from ..base.errors import SetupError
from ..base.time_and_text import random_token, shorten
from .connection import Connection, insert_statement
from .postgres_sql import CALL_SECONDS, CONNECT_SECONDS, bound, for_all, literal, prepare_statement

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Query, Row
    from ..base.time_and_text import AnyClock

LOOK_SECONDS_MAX = 60.0         # of a reading that nobody limits
LINK_OPTIONS = {
    "application_name": "jobqueue", "client_encoding": "utf8", "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 15000, "target_session_attrs": "read-write"}
# The server looks after its clients: one that vanished, or takes no answer, may have the lock, and
# no other limit ends that. Some servers do not know all of these.
SERVER_LOOKS = """SELECT set_config(name, value, false) FROM (VALUES ('tcp_user_timeout', '5000'),
    ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '1'),
    ('client_connection_check_interval', '1000')) AS wanted (name, value)
WHERE version() LIKE '%linux%' AND current_setting(name, true) <> ''"""
# A role may have this off; then a crash of the server takes back commits that were answered.
SERVER_KEEPS = """SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit')='off'"""
# SQLite joins by a look into an index for each row, and so do we here: where the server's
# statistics are missing or old, other plans would read all rows. What is looked at is in memory.
# They are sent when a connection starts: a pooler would pass SET on to another application.
SERVER_PLANS = " -c enable_hashjoin=off -c enable_mergejoin=off -c random_page_cost=1"
SERVER_PROCESS = "SELECT pg_backend_pid()"
TOLD_MAX = 200_000              # characters that wait for the next question
# The server takes longer to plan a statement than to execute it, so what is asked often is planned
# once. Tables grow: a plan that is right for ten rows is wrong for a million, so none stays long,
# and who writes has all forgotten once the tasks take four times as much room as before.
PLANNED_AFTER = 2               # a statement that was asked so often gets a plan
PLANS_SECONDS = 10.0            # how long all plans are kept
ASKED_MAX = 1000                # statements, of which it is known how often each was asked
PLANNED = r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b"

if TYPE_CHECKING:
    Question = tuple[str, AnyTuple]


class ServerRow(AnyTuple):
    """A row of PostgreSQL's, to be read by number and by name as SQLite's are."""

    __slots__ = ()
    names: tuple[str, ...] = ()
    places: dict[str, int] = {}

    def keys(self) -> Sequence[str]:
        """The names of the columns."""
        return self.names

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.places[key] if key.__class__ is str else key)


@functools.lru_cache(maxsize=500)
def _row_class(encoded_names: tuple[bytes, ...]) -> type[ServerRow]:
    names = tuple(name.decode() for name in encoded_names)
    places = {name: names.index(name) for name in names}
    return type("ServerRow", (ServerRow,), {"__slots__": (), "names": names, "places": places})


class Driver(NamedTuple):
    """psycopg, and its rules for reading what a server says."""

    psycopg: Any
    adapters: Any


@functools.lru_cache(maxsize=None)
def driver() -> Driver:
    """Return psycopg, imported; SetupError if it is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise SetupError('A queue on PostgreSQL needs psycopg 3 (%s): %s -m pip install '
                         '"psycopg[binary]"' % (shorten(str(error), 200), sys.executable)) from None

    class Number(psycopg.adapt.Loader):  # type: ignore[misc]   # psycopg is skipped: it is optional
        """A sum is a plain number, and so is a truth."""

        def load(self, data: bytes) -> float | bool:
            text = bytes(data)
            return int(text) if text.isdigit() else text == b"t" if text in b"tf" else float(text)

    known = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in ("numeric", "bool"):
        known.register_loader(name, Number)
    return Driver(psycopg, known)


class Reply(NamedTuple):
    """The server's word about a statement ("UPDATE 3"), and the rows."""

    word: str
    rows: Sequence[ServerRow]


class ServerConnection(Connection):
    """A connection to PostgreSQL."""

    def __init__(self, address: str) -> None:
        self._psycopg, known = driver()
        self.limit = math.inf           # no question may take longer
        self.change_count = 0           # rows that were added, changed or removed, or may be
        self._told: list[str] = []      # texts of one statement each, to go along with the next
        self._foreseen: Iterable[Question] = ()     # ... questions that follow it
        self._known: dict[Question, Sequence[Row]] = {}     # their answers, until a change
        # By statement and types: how often it was asked, and the name of its plan.
        self._asked: collections.Counter[AnyTuple] = collections.Counter()
        self._plans: dict[AnyTuple, str] = {}
        self.plans_until = 0.0
        self._planned_after: float = PLANNED_AFTER
        self._plan_number = itertools.count()
        self._plan_prefix = "plan_" + random_token(8)   # a pooler's connections may have others'
        self._listens, self._heard = False, 0   # notifications that came
        options = {**LINK_OPTIONS, **self._psycopg.conninfo.conninfo_to_dict(address)}
        options["options"] = options.get("options", "") + SERVER_PLANS
        self._link = self._psycopg.Connection.connect(**options, autocommit=True, context=known)
        self._loaders = self._psycopg.adapt.Transformer(self._link)
        *_, process = self.ask("%s; %s; %s" % (SERVER_LOOKS, SERVER_KEEPS, SERVER_PROCESS),
                               CONNECT_SECONDS)
        # A pooler makes up the number that a client gets when it connects.
        self.is_pooled: bool = process.rows[0][0] != self._link.info.backend_pid

    @property
    def is_broken(self) -> bool:
        """True if nothing can be asked any more."""
        return bool(self._link.closed)

    @property
    def changes(self) -> int:
        """How many rows were added, changed or removed in this transaction, or may be."""
        return self.change_count

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def fileno(self) -> int:
        """Return the descriptor of the connection's socket."""
        return self._link.fileno()

    def ask(self, text: str, seconds: float = CALL_SECONDS) -> list[Reply]:
        """Return a reply to each statement of a text, or raise the error of the one that
        failed. What was told goes before them, and what is foreseen after them, in one message.
        A cursor of the driver's would take as long for each statement as the server."""
        questions = [(question, self._texts(*question)) for question in self._foreseen]
        later = [text for _, texts in questions for text in texts]
        told, self._told, self._foreseen = self._told, [], ()
        until = time.monotonic() + min(seconds, self.limit)
        try:
            results = list(self._results(";".join([*told, text, *later]), until))
        except BaseException:
            self._link.pgconn.finish()  # what is still to come would answer another question
            raise
        self._hear()
        self._refuse_failed(results[-1])
        answers = [Reply(result.command_status.decode(), self._rows(result))
                   for result in results[len(told):]]
        end = at = len(answers) - len(later)
        for question, texts in questions:
            at += len(texts)
            self._known[question] = answers[at - 1].rows
        return answers[:end]

    def _results(self, text: str, until: float) -> Iterator[Any]:
        """Ask the server, and yield what it answers until this moment."""
        link, events = self._link.pgconn, select.poll()
        link.send_query(text.encode("utf-8"))
        unsent = True
        while True:
            unsent = unsent and link.flush()
            if not unsent and not link.is_busy():
                result = link.get_result()
                if result is None:
                    return
                yield result
                continue
            events.register(link.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            if not events.poll(max(0.0, until - time.monotonic()) * 1000):
                raise self._psycopg.OperationalError("the server does not answer")
            link.consume_input()

    def _refuse_failed(self, result: Any) -> None:
        if result.status == self._psycopg.pq.ExecStatus.FATAL_ERROR:
            error = self._psycopg.errors.error_from_result(result)
            self._plans.clear()         # some may not be there
            if error.sqlstate == "26000":
                self._planned_after = math.inf      # a pooler may take another connection each time
            if error.sqlstate == "25006":
                self.close()            # its server may not write any more: another one does
            raise error if error.sqlstate else self._psycopg.OperationalError(str(error))

    def _rows(self, result: Any) -> Sequence[ServerRow]:
        if not result.nfields:
            return ()
        self._loaders.set_pgresult(result)
        names = tuple(map(result.fname, range(result.nfields)))
        return self._loaders.load_rows(0, result.ntuples, _row_class(names))

    def foresee(self, questions: Iterable[Query]) -> None:
        """Ask these with what comes next: each is answered then, unless a change comes between."""
        self._known = {}
        self._foreseen = dict.fromkeys(
            (statement, tuple(values)) for statement, values in questions)

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute; return the number of rows changed."""
        self._known = {}
        word = self.ask(";".join(self._texts(statement, values)))[-1].word.split()[-1]
        count = int(word) if word.isdigit() else 0
        self.change_count += count
        return count

    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute once for each of `rows`, all at once; return the number of rows changed."""
        batch = list(rows)
        return self.run(*for_all(statement, batch)) if batch else 0

    def _texts(self, statement: str, values: Iterable[Any]) -> list[str]:
        """A statement with its values as texts, the last of which is the question. They must be
        sent in the order in which they are made: the plan of one may be made by another."""
        values = tuple(values)
        key: AnyTuple = (statement, *map(type, values))
        texts: list[str] = []
        if key not in self._plans and not re.match(PLANNED, statement):
            return [bound(statement, values)]
        if time.monotonic() > self.plans_until:
            texts = self._forget_plans()
        name = self._plans.get(key)
        if not name:
            self._asked[key] += 1
            if self._asked[key] <= self._planned_after:
                return [*texts, bound(statement, values)]
            name = "%s_%d" % (self._plan_prefix, next(self._plan_number))
            texts.append(prepare_statement(name, statement, key[1:]))
        given = "(%s)" % ",".join(map(literal, values)) if values else ""
        self._plans[key] = name
        return [*texts, "EXECUTE %s%s" % (name, given)]

    def _forget_plans(self) -> list[str]:
        """Let all be planned anew; the texts by which the server forgets the old plans."""
        if len(self._asked) > ASKED_MAX:
            self._asked.clear()
        self._plans.clear()
        self.plans_until = time.monotonic() + PLANS_SECONDS
        return ["DEALLOCATE ALL"] if self._planned_after < math.inf else []

    def tell_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute once for each of `rows` with the next question."""
        batch = list(rows)
        if batch:
            self.tell(*for_all(statement, batch))

    def tell(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute with the next question."""
        self._told += self._texts(statement, values)
        self._known = {}
        self.change_count += 1          # as it may be
        if sum(map(len, self._told)) > TOLD_MAX:
            self.ask("SELECT")

    def insert(self, table: str, row: JsonObject) -> int:
        """Add a row, a dictionary; return its id."""
        self.change_count, self._known = self.change_count + 1, {}
        return self.value(insert_statement("INSERT", table, tuple(row)) + " RETURNING id",
                          tuple(row.values()))

    def set_last_id(self, table: str, last: int) -> None:
        """Let the ids of new rows of a table be above `last`, whatever rows it has."""
        self.tell("SELECT setval('%s_id_seq', ?, CAST(? AS BOOLEAN))" % table,
                   (max(last, 1), "true" if last else "false"))

    note_ids = set_last_id

    def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """All rows."""
        values = tuple(values)
        rows = self._known.pop((statement, values), None)
        if rows is None:
            rows = self.ask(";".join(self._texts(statement, values)))[-1].rows
        return rows

    def all_within(self, seconds: float, clock: AnyClock, statement: str,
                   values: Sequence[Any] = ()) -> Sequence[Row] | None:
        """All rows, or None if that takes longer."""
        most = min(max(seconds, 0.001), LOOK_SECONDS_MAX)
        try:
            return self.ask("BEGIN; SET LOCAL statement_timeout=%d; %s; COMMIT" % (
                most * 1000, bound(statement, values)), most + CALL_SECONDS)[2].rows
        except self._psycopg.Error as error:
            if error.sqlstate != "57014" or seconds > most:
                raise
            return None
        finally:
            self.roll_back()

    def heard(self) -> tuple[int, int]:
        """What changes with each notification; the first call begins to listen."""
        if not self._listens:
            self._listens = True
            self.run("LISTEN jobqueue")
        self._link.pgconn.consume_input()
        self._hear()
        return id(self), self._heard

    def _hear(self) -> None:
        self._heard += sum(1 for _ in iter(self._link.pgconn.notifies, None))

    def roll_back(self) -> None:
        """Undo an open transaction, if there is one."""
        if self._told:
            self._plans.clear()         # some are made by what is not sent now
        self._told, self._foreseen = [], ()
        if not self.is_broken and self._link.info.transaction_status:
            with contextlib.suppress(self._psycopg.Error):
                self.ask("ROLLBACK")
