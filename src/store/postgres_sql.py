"""PostgreSQL's dialect: a statement is translated as a whole.

`to_postgres` knows what PostgreSQL says otherwise. psycopg is the driver; only this room imports it.
"""
from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.errors import Busy, Conflict, SetupError, StorageBroken, StorageFull
from ..base.time_and_text import storable
from .connection import BUSY, FULL, OWNER_GONE, UNUSABLE

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Query

CALL_SECONDS = 12.0             # a server that does not answer within this is given up
STATEMENT_MS = 10_000           # ... and what takes longer is ended there
IDLE_MS = 4_000                 # ... as is who has the lock and stands still: all others wait
LOOK_SECONDS_MAX = 60.0         # of a reading that nobody limits
SERVER_SLACK_SECONDS = 5.0      # all machines go by the server's clock
CONNECT_SECONDS = 5
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

# SQLite joins by a look into an index for each row, and so do we here: where the server's
# statistics are missing or old, other plans would read all rows. What is looked at is in memory.
SERVER_PLANS = "SET enable_hashjoin=off; SET enable_mergejoin=off; SET random_page_cost=1"

# One round trip. All is durable: a worker outlives a server that falls, and would run what nobody
# knows that it claimed, or wait for a lease with an outcome that was forgotten. READ COMMITTED: a
# snapshot from before the wait would not see what was waited for. The time is asked for last, when
# the lock is held.
SERVER_BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT set_config('lock_timeout', '%d', true), set_config('statement_timeout', '%d', true),
    set_config('idle_in_transaction_session_timeout', '%d', true);
SELECT version, epoch FROM jobqueue FOR UPDATE;
SELECT extract(epoch FROM clock_timestamp())::float8, %s"""
# The last word of a transaction, by which its writer learns whether it was committed. The server's
# own number does not tell: after a crash it gives those that it lost to other transactions.
SERVER_MARK = """
    INSERT INTO mark VALUES (?, ?, extract(epoch FROM clock_timestamp()))
    ON CONFLICT (writer) DO UPDATE SET number=excluded.number, at=excluded.at"""
# In the transaction itself it would take a lock of the whole server; not to be waited for.
SERVER_NOTIFY = "; BEGIN; SET LOCAL synchronous_commit=off; NOTIFY jobqueue; COMMIT"

TOLD_MAX = 200_000              # characters that wait for the next question

# The server takes longer to plan a statement than to execute it, so what is asked often is planned
# once. Tables grow: a plan that is right for ten rows is wrong for a million, so none stays long,
# and who writes has all forgotten once the tasks take four times as much room as before.
# Numbers are given as these types: where a function wants others, the statement must CAST.
PLANNED_AFTER = 2               # a statement that was asked so often gets a plan
PLANS_SECONDS = 10.0            # how long all plans are kept
ROOM_SECONDS = 1.0              # from one look at the tasks' room to the next
ROOM = "pg_relation_size('task')"
ASKED_MAX = 1000                # statements, of which it is known how often each was asked
PLANNED = r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b"
SERVER_TYPES = {float: "double precision", int: "bigint", bool: "bigint"}
# How a statement for one row becomes one for all rows of `given`. Its last WHERE is that of the
# row, which is found by its id: where nothing waited, statistics say that no row has the status 0.
GIVEN = (
    (r"VALUES \((.*)\)", r"SELECT \1 FROM given"),
    (r"(UPDATE (?s:.*))(WHERE)", r"\1FROM given \2"),
    (r"(DELETE .*)(WHERE)", r"\1USING given \2"),
    (r"\bAND status=", "AND status+0="))

SAID_OTHERWISE = (
    (r"\b(NOT INDEXED|INDEXED BY \w+)", ""),
    (r"\bCROSS JOIN\b", "JOIN"),
    (r"\binstr\(", "strpos("),
    (r"\bINSERT OR IGNORE (INTO [^;]*)", r"INSERT \1 ON CONFLICT DO NOTHING"),
    (r"\bIN \(\)", "IN (NULL)"),
    (r"\bFROM user WHERE name=\?", "FROM user WHERE lower(name)=lower(?)"),     # NOCASE
    (r"\blower\(\?\)", 'lower(? COLLATE "C")'),      # of A to Z, as that of a column is
)
SCHEMA_OTHERWISE = (
    (r"--.*|\bIF NOT EXISTS ", ""),
    # A condition that asks tables stands in the function of its trigger.
    (r"\nWHEN (new\.(?s:.*?))\nBEGIN", r"\nBEGIN\n    IF NOT (\1) THEN RETURN NULL; END IF;"),
    (r"CREATE TRIGGER (\w+) (AFTER .*)\n(BEGIN(?s:.*?))END;\n",
     r"CREATE FUNCTION jobqueue_\1() RETURNS trigger LANGUAGE plpgsql AS $$ \3 RETURN NULL; END $$;"
     r"CREATE TRIGGER \1 \2 FOR EACH ROW EXECUTE FUNCTION jobqueue_\1();"),
    (r"CREATE INDEX task_owner .*\n", ""),      # task_turn and the ids do, and each one costs
    (r"\bid INTEGER PRIMARY KEY( AUTOINCREMENT)?",
     "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bREAL\b", "DOUBLE PRECISION"),
    (r"\bname TEXT NOT NULL COLLATE NOCASE UNIQUE", "name TEXT NOT NULL"),
    (r"\bTEXT\b", 'TEXT COLLATE "C"'),
    (r"strftime\('%s', 'now'\)", "extract(epoch FROM clock_timestamp())"),
)
# What only this database has. Much is changed in `task`, little of it in columns with an index.
SERVER_SCHEMA = """
CREATE UNIQUE INDEX user_name ON user (lower(name));
CREATE TABLE jobqueue (version BIGINT NOT NULL, epoch TEXT NOT NULL);
CREATE TABLE mark (         -- the number of each process' last transaction that changed something
    writer TEXT PRIMARY KEY, number BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL);
ALTER TABLE task SET (fillfactor=80, autovacuum_vacuum_scale_factor=0.02,
    autovacuum_analyze_scale_factor=0.05);
"""

REFUSALS = "authentication|password|translate host|not known|does not exist|pg_hba|certificate"
SERVER_STATE = """SELECT version, epoch,
    CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) AS at FROM jobqueue"""
OLD_MARKS = "DELETE FROM mark WHERE at<extract(epoch FROM clock_timestamp())-86400"
GENUINE = r"PostgreSQL (1[3-9]|[2-9]\d)(?!.*-YB-)"     # relatives may lock otherwise
SERVER_TABLES = "SELECT CAST(to_regclass('jobqueue') AS TEXT)"
SERVER_FILE, NO_EPOCH = ".server", "new"    # ending and first text of what says whose a folder is

# What a server says (how its SQLSTATE begins), the error and its sentence.
UNSURE = ("The database went away at the last moment: nobody knows whether this was stored. "
          "Please look before you try again.")
SERVER_ERRORS = (
    ("08|0A000|25006|25P0[34]|26|40|533|55P03|57", Busy, BUSY),     # 0A, 26: a plan that is gone
    ("23503", Conflict, OWNER_GONE),
    ("53100", StorageFull, FULL),
    ("42P07|42710|42723|42703", SetupError,
     "The database %(path)s has other tables already (%(said)s): the queue needs "
     "one of its own."),
    ("28|3D|42501|42P01|53|58|XX", StorageBroken, UNUSABLE),
)


def replace_patterns(text: str, otherwise: Iterable[tuple[str, str]]) -> str:
    """Return the text with each pattern replaced, in the order of `otherwise`."""
    for pattern, other in otherwise:
        text = re.sub(pattern, other, text)
    return text


@functools.lru_cache(maxsize=500)
def to_postgres(statement: str) -> str:
    """A statement as PostgreSQL and its driver want it."""
    statement = replace_patterns(statement, SAID_OTHERWISE)
    words = {"?": "%s", "%": "%%", "user": '"user"'}
    return re.sub(r"'[^']*'|\?|%|\buser\b", lambda match: words.get(
        match[0], match[0].replace("%", "%%")), statement)


def _written(text: str) -> str:
    return storable(text) if "\0" in text else text


def literal(value: object) -> str:
    """A value as it stands in a statement, however the server is set up."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return " E'%s'" % _written(value).replace("\\", "\\\\").replace("'", "''")
    if isinstance(value, int):
        return " %d" % value
    if isinstance(value, float):
        return " %r" % value if math.isfinite(value) else "CAST('%r' AS DOUBLE PRECISION)" % value
    raise TypeError("a value of the type %s cannot be stored" % type(value).__name__)


def bound(statement: str, values: Iterable[Any]) -> str:
    """A statement with its values in it: so several go in one message."""
    return to_postgres(statement) % tuple(map(literal, values))


def for_all(statement: str, rows: Sequence[Sequence[Any]]) -> Query:
    """Return a query that does for all `rows` at once what a statement does for each: an INSERT
    of VALUES, or an UPDATE or DELETE of the one row that it finds."""
    if len(rows) == 1:
        return statement, rows[0]
    marks: list[str] = []
    types: list[str] = []
    arrays: list[str] = []
    constants: list[Any] = []
    for column in (range(len(rows)), *zip(*rows)):      # the numbers tell how many rows there are
        if len(set(column)) > 1:
            kinds = set(map(type, column))
            marks.append("given.c%d" % len(types))
            types.append("text" if str in kinds else next(
                SERVER_TYPES[kind] for kind in SERVER_TYPES if kind in kinds))
            arrays.append("{%s}" % ",".join(map(_element, column)))
        elif column[0] is None:
            marks.append("NULL")
        else:
            marks.append("?")
            constants.append(column[0])
    given = "WITH given (%s) AS (SELECT * FROM unnest(%s)) " % (
        ", ".join("c%d" % at for at in range(len(types))),
        ", ".join("CAST(? AS %s[])" % kind for kind in types))
    coming = iter(marks[1:])
    statement = re.sub(r"\?", lambda _: next(coming), statement)
    for words, otherwise in GIVEN:
        statement = re.sub(words, otherwise, statement, count=1)
    return given + statement, arrays + constants


def _element(value: Any) -> str:
    """A value as it stands in an array."""
    if value.__class__ is str:
        return '"%s"' % _written(value).replace("\\", "\\\\").replace('"', '\\"')
    return "NULL" if value is None else repr(value + 0)     # a truth is a number


def prepare_statement(name: str, statement: str, types: Sequence[type]) -> str:
    """The text by which the server plans a statement under a name, for values of these types. A
    text's is unknown: it may stand for anything, as where it is a part of the statement."""
    marks = tuple("$%d" % number for number in range(1, len(types) + 1))
    names = ", ".join(SERVER_TYPES.get(kind, "unknown") for kind in types)
    return "PREPARE %s%s AS %s" % (
        name, "(%s)" % names if names else "", to_postgres(statement) % marks)
