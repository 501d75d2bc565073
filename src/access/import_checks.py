"""Import checks: every value of an export is checked before it is stored, as the API would."""
from __future__ import annotations

import functools
import re
from collections.abc import Callable

from ..base.head import TYPE_CHECKING
from ..base.limits import INTEGER_MAX, INVITATION, JSON_MAX_DEPTH, RESULT_MAX_DEPTH, STATUS_WORDS
from ..base.errors import join_errors
from ..base.time_and_text import is_deep, read_json
from ..base.values import OPTION_SCHEMAS, WHO_MAY_ADD, check_value, integer_within, text_like
from ..store.schema import SCHEMA
from ..store.state import EXPORTED_STATE
from ..store.settings import SETTINGS, tidy_setting
from ..upkeep.summary import SUMMARY
from .people import NAME_PATTERN, ROLES, SCRYPT_COST, TOKEN_SCOPES
from .saved import NEW_SAVED

if TYPE_CHECKING:
    from ..base.types import JsonObject, Schema

COLUMN_KINDS: dict[str, Schema] = {
    "INTEGER": {"type": "integer", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX},
    "REAL": {"type": "number", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX},
    "TEXT": {"type": "string", "pattern": r"[^\x00]*", "patternMessage": "must have no NUL"}}
ROW_ID = integer_within(1, INTEGER_MAX)
TASK_COLUMNS = {name: schema for name, schema in OPTION_SCHEMAS.items() if name != "remove_on_success"}
CHOSEN: dict[str, dict[str, Schema]] = {    # schemas of columns that replace the one in COLUMN_KINDS
    "user": {"id": ROW_ID, "role": {"enum": list(ROLES)}, "name": text_like(NAME_PATTERN, "is no name")},
    "saved": {"id": ROW_ID, **{name: NEW_SAVED["properties"][name] for name in ("page", "name")}},
    "token": {"id": ROW_ID, "scope": {"enum": [*TOKEN_SCOPES, INVITATION]}},
    "setting": {"name": {"enum": list(SETTINGS)}}, "state": {"name": {"enum": list(EXPORTED_STATE)}},
    "function": {"who": {"enum": list(WHO_MAY_ADD)}},
    "queue": {"name": OPTION_SCHEMAS["queue"], "external": integer_within(0, 2)},
    "schedule": {"id": ROW_ID, "source": {"enum": ["person", "code", "folder"]},
                 "catch_up": {"enum": ["none", "once", "all"]},
                 "overlap": {"enum": ["skip", "queue", "allow"]}},
    "task": {**TASK_COLUMNS, "id": ROW_ID, "status": integer_within(0, len(STATUS_WORDS) - 1),
             "cancel_requested": integer_within(0, 2)},
    "log": {"attempt": integer_within(0, INTEGER_MAX)}}


def _columns(text: str) -> dict[str, Schema]:
    """Return the schemas of the columns that the SQL of a table declares."""
    schemas: dict[str, Schema] = {}
    for name, kind, must in re.findall(r"\b(\w+) (INTEGER|REAL|TEXT)\b( NOT NULL| PRIMARY KEY)?", text):
        schema = COLUMN_KINDS[kind]
        schemas[name] = schema if must else {**schema, "type": [schema["type"], "null"]}
    return schemas


def _json_of(levels: int, kinds: tuple[type, ...] = (dict,)) -> Callable[[str], None]:
    """Return a check of a text that must be JSON of these Python types, nested no deeper than `levels`."""
    def check(text: str) -> None:
        try:
            value = read_json(text)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        if is_deep(value, levels) or not isinstance(value, kinds):
            raise ValueError("is not as it would be stored")
    return check


def _check_password(text: str) -> None:
    match = re.fullmatch(r"scrypt\$(\d+),(\d+),(\d+)\$(?:[0-9a-f]{2})+\$(?:[0-9a-f]{2})+", text)
    if text.startswith("scrypt$"):
        n, r, p = map(int, match.groups()) if match else (0, 0, 0)
        usual = SCRYPT_COST[0] * SCRYPT_COST[1] * SCRYPT_COST[2]
        if not (0 < n * r * p <= 4 * usual and 128 * n * r <= 32 << 20):
            raise ValueError("costs more than a password may")


def _check_summary(text: str) -> None:
    if check_value(SUMMARY, read_json(text), "summary"):
        raise ValueError("is no hour in a time zone")


_ANY_JSON = (dict, list, str, int, float, bool, type(None))
TEXT_CHECKS: dict[tuple[str, str], Callable[[str], None]] = {
    ("user", "password"): _check_password, ("user", "summary"): _check_summary,
    ("saved", "value"): _json_of(JSON_MAX_DEPTH), ("task", "samples"): _json_of(2, (list,)),
    ("token", "limits"): _json_of(2), ("setting", "value"): _json_of(2, (str, int)),
    ("state", "value"): _json_of(RESULT_MAX_DEPTH, _ANY_JSON),
    ("function", "schema"): _json_of(RESULT_MAX_DEPTH), ("function", "options"): _json_of(2),
    ("queue", "machines"): _json_of(2, (list,)),
    ("schedule", "arguments"): _json_of(JSON_MAX_DEPTH), ("schedule", "options"): _json_of(2),
    ("task", "arguments"): _json_of(JSON_MAX_DEPTH),
    ("task", "result"): _json_of(RESULT_MAX_DEPTH, _ANY_JSON),
    ("request", "answer"): _json_of(JSON_MAX_DEPTH, _ANY_JSON)}


@functools.lru_cache(maxsize=None)
def table_schema(table: str) -> Schema:
    """Return the schema of a table's rows."""
    text = re.search(r"CREATE TABLE IF NOT EXISTS %s \((.*?)\n\);" % table, SCHEMA, re.DOTALL)
    return {"type": "object", "properties": {**_columns(text[1] if text else ""), **CHOSEN.get(table, {})}}


def check_row(table: str, row: JsonObject) -> None:
    """Raise ValueError with the table and the column if a row has a value that jobqueue would not store."""
    errors = check_value(table_schema(table), row, table)
    if errors:
        raise ValueError(join_errors(errors[:1]).rstrip("."))
    for (place, column), check in TEXT_CHECKS.items():
        if place == table and row[column] is not None:
            try:
                check(row[column])
            except ValueError as error:
                raise ValueError("%s.%s %s" % (table, column, error)) from None
    if table == "setting":
        tidy_setting(row["name"], read_json(row["value"]))
