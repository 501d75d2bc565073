"""Schedules as rows: their columns, when they are due, how they look.

plan_errors() checks the rule that a person gives. due_slots() returns the runs that are due or were
missed. find_scripts() finds the scripts in SCRIPTS_FOLDER. upkeep/schedules.py fires the schedules.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import SCRIPTS_FOLDER, STATUS_WORDS
from ..base.errors import Invalid, wrong
from ..base.time_and_text import iso, seconds_since, storable, time_of_day
from ..base.schedule_rules import RULE_HINT, Rule, parse_rule, preview
from ..base.values import (OPTION_SCHEMAS, TEXT, TEXT_OR_NULL, about, object_of, or_null,
                           summarize, text_up_to, titled)
from ..store.connection import Connection
from ..store.log_and_activity import record_activity

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from ..base.types import FieldError, JsonObject, Row, ScheduleRow

if TYPE_CHECKING:
    _Found = TypeVar("_Found")
    _Otherwise = TypeVar("_Otherwise")

    class Planner(Protocol):
        """A Person, as far as schedules use it."""

        id: int
        name: str
        is_admin: bool

SLOTS_AT_ONCE = 100             # slots that are filled in one transaction
CATCH_UP_MAX = 1000             # catch_up="all" makes up for this many missed runs at most, the newest
LATE_SHOWN_SECONDS = 86400.0     # how long a schedule shows that a run was late
LATE_SECONDS = 900.0            # a later run is late; catch_up="none" skips it
GONE_WORDS = ("It is no longer in tasks.py or the folder schedules. If it comes back within 30 days, it "
              "goes on as before.")
# A schedule is held up if a task has not ended for HELD_UP_SECONDS and holds up HELD_UP_RUNS runs.
HELD_UP_SECONDS, HELD_UP_RUNS = 3600.0, 3
UPCOMING = 10                   # upcoming times that are shown

# The rule for the executable files in each folder of SCRIPTS_FOLDER. SCRIPT_LEFT_OUT matches hidden files and
# leftovers of editors and package managers, which do not run.
SCRIPT_FOLDERS = {"15min": "*/15 * * * *", "hourly": "@hourly", "daily": "@daily",
                  "weekly": "@weekly", "monthly": "@monthly"}
SCRIPT_LEFT_OUT = r"\..*|.*(~|\.(bak|old|orig|rej|sw[a-p]|tmp|pyc|dpkg-\w+|rpm\w+))"
SCRIPT_FUNCTION = "folder-script"       # the function that runs scripts; people cannot add its tasks

PLAN = ("name", "function", "rule", "zone", "catch_up", "overlap")     # columns that requests have, too
SCHEDULE_FIELDS = {
    "name": about(or_null(text_up_to(100)), "a name for people; shown first"),
    "function": TEXT,
    "arguments": {"type": "object"},
    "rule": about(TEXT, RULE_HINT),
    "zone": about(TEXT, "such as Europe/Oslo (UTC)"),
    "catch_up": about({"enum": ["none", "once", "all"]}, "which missed runs to make up for (once)"),
    "overlap": about({"enum": ["skip", "queue", "allow"]}, "if the last run has not ended (skip)"),
    "options": titled("ChosenOptions", about(object_of(**OPTION_SCHEMAS),
                                             "instead of the function's own values")),
    "owner": about(TEXT_OR_NULL, "the owner of its tasks; for admins"),
    "paused": {"type": "boolean"}, "paused_why": about(or_null(text_up_to(500)), "shown to everybody")}
SCHEDULE_SCHEMA = titled("NewSchedule", object_of(("function", "rule"), **SCHEDULE_FIELDS))
CHANGED_SCHEDULE = titled("ScheduleChange", object_of(**SCHEDULE_FIELDS))

SHOWN_AS_THEY_ARE = ("id", "source", *PLAN, "paused_by", "paused_why")
SHOWN_AS_TIMES = ("paused_at", "next_at", "last_at", "created_at")


# The oldest unfinished task of a schedule: its id, when it was added, and the number of runs due since.
_OLDEST = "FROM task WHERE schedule_id=schedule.id AND status NOT IN ENDED"
HELD_UP = """(SELECT min(id) {0}) AS held_by, (SELECT min(created_at) {0}) AS held_since,
    (SELECT count(*) FROM slot WHERE slot.schedule_id=schedule.id
     AND at>(SELECT min(created_at) {0})) AS held""".format(_OLDEST)


class Slot(NamedTuple):
    """A due time of a schedule, and why it adds no task (None: it adds one)."""

    at: float
    why: str | None = None


class DueSlots(NamedTuple):
    """The due slots of a schedule, its next due time, and whether the slots are late."""

    slots: list[Slot]
    next_at: float | None
    is_late: bool


def plan_errors(request: JsonObject, now: float) -> list[FieldError]:
    """Return the errors in the rule, catch_up and overlap of a request that fulfils SCHEDULE_SCHEMA."""
    errors: list[FieldError] = []
    if (request["catch_up"], request["overlap"]) == ("all", "skip"):
        errors = wrong("overlap", "must be queue or allow if all that was missed is to be caught "
                                  "up: else all but the first would be skipped")
    try:
        preview(parse_rule(request["rule"], request["zone"], now), now, 1)
    except Invalid as error:
        errors += error.errors
    return errors


def find_scripts() -> list[str]:
    """Return the scripts in SCRIPTS_FOLDER, as FOLDER/NAME; OSError if they cannot be listed.

    Scripts are executable files and all Python files, because FTP loses the mode.
    """
    scripts: list[str] = []
    for folder in SCRIPT_FOLDERS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), \
                os.scandir(SCRIPTS_FOLDER / folder) as entries:
            scripts += sorted(
                "%s/%s" % (folder, entry.name) for entry in entries
                if storable(entry.name) == entry.name and os.path.isfile(entry.path)
                and not re.fullmatch(SCRIPT_LEFT_OUT, entry.name)
                and (entry.name.endswith(".py") or os.access(entry.path, os.X_OK)))
    return scripts


def actor_name(person: Planner | None) -> str:
    """Return the name of the actor in the activity; None stands for the command line."""
    return person.name if person else "the command line"


def record_schedule_event(transaction: Connection, at: float, event: str, row: ScheduleRow | JsonObject,
                  by: str | None) -> None:
    """Record an event of a schedule in the activity."""
    record_activity(transaction, at, "schedule_" + event, owner_id=row["owner_id"],
         function=row["function"], actor=by,
         message="%d: %s" % (row["id"], row["name"] or row["rule"]))


def _task_reference(task_id: int | None, status: int | None) -> JsonObject | None:
    return None if status is None else {"id": task_id, "status": STATUS_WORDS[status]}


def slot_json(slot: Row) -> JsonObject:
    """Return a slot of a schedule as the API shows it."""
    task, message = _task_reference(slot["task_id"], slot["status"]), slot["message"]
    if message is None and task is None and slot["task_id"]:
        message = "task %d is not kept any more" % slot["task_id"]
    return {"at": iso(slot["at"]), "message": message, "task": task}


def as_given(row: ScheduleRow) -> JsonObject:
    """Return the request that would make this schedule."""
    return {**{name: row[name] for name in PLAN}, "arguments": json.loads(row["arguments"]),
            "options": json.loads(row["options"])}


def rule_of(row: ScheduleRow | JsonObject) -> Rule:
    """Return the Rule of a schedule; Invalid if this host cannot read it."""
    return parse_rule(row["rule"], row["zone"], row["start"])


def of_rule(row: ScheduleRow | JsonObject, look: Callable[[Rule], _Found],
            otherwise: _Otherwise) -> _Found | _Otherwise:
    """Return look(rule) for the Rule of a schedule, or `otherwise` if this host cannot read it."""
    try:
        return look(rule_of(row))
    except Invalid:
        return otherwise


def why_held_up(row: ScheduleRow, now: float) -> str | None:
    """Return why the runs of a schedule (a row with HELD_UP) have not begun for long, or None."""
    if (row["overlap"] == "allow" or row["held_by"] is None or row["held"] < HELD_UP_RUNS
            or now - row["held_since"] < HELD_UP_SECONDS):
        return None
    return "%d runs wait or were skipped since %s: task %d has not ended." % (
        row["held"], time_of_day(row["held_since"]), row["held_by"])


def _warning(row: ScheduleRow, now: float) -> str | None:
    was_late = (row["late_at"] is not None
                and seconds_since(row["late_at"], now) < LATE_SHOWN_SECONDS)
    if row["paused"] or row["gone_at"] is not None:
        return None
    return why_held_up(row, now) or (
        "The run added at %s was late, or replaced several missed runs."
        % time_of_day(row["late_at"]) if was_late else None)


def schedule_json(row: ScheduleRow, now: float) -> JsonObject:
    """Return a schedule (a row of SCHEDULE_SHOWN) as the API lists it."""
    return {
        **{name: row[name] for name in ("owner", *SHOWN_AS_THEY_ARE)},
        **{name: iso(row[name]) for name in SHOWN_AS_TIMES},
        "summary": summarize(row["arguments"]), "options": json.loads(row["options"]),
        "words": of_rule(row, lambda rule: rule.words(), row["rule"]),
        "paused": bool(row["paused"]),
        "problem": row["problem"] if row["gone_at"] is None else GONE_WORDS,
        "warning": _warning(row, now),
        "last_task": _task_reference(row["last_task_id"], row["last_status"])}


def before_newest(rule: Rule, first: float, now: float, most: int) -> float:
    """Return a moment after which `rule` has its newest `most` runs until `now`; the oldest is at `first`."""
    low, high = first - 0.75, now       # runs are at least a second apart
    middle = low                        # usually the result: no run was missed
    while high - low > 0.5:
        moments = rule.upcoming(middle, most + 1)
        are_few = len(moments) <= most or moments[-1] > now
        low, high = (low, middle) if are_few else (middle, high)
        middle = (low + high) / 2
    return high


def due_slots(row: ScheduleRow, due: float, now: float) -> DueSlots:
    """Return the slots of a schedule from `due` until `now` that catch_up allows, at most SLOTS_AT_ONCE.

    If earlier runs are left out, a slot at the time of the first one records that.
    """
    rule = rule_of(row)
    first = rule.next_after(due - 0.001)
    if first is None or first > now:
        return DueSlots([], first, False)
    most = CATCH_UP_MAX if row["catch_up"] == "all" else 1
    moments = rule.upcoming(before_newest(rule, first, now, most), min(most, SLOTS_AT_ONCE))
    slots = [Slot(moment) for moment in moments if moment <= now]
    last = slots[-1].at
    if row["catch_up"] == "none" and now - last > LATE_SECONDS:
        slots = []
    if slots[:1] != [Slot(first)]:
        slots.insert(0, Slot(first, "missed, as all until %s: nobody looked meanwhile"
                             % iso(slots[0].at if slots else now)))
    return DueSlots(slots, rule.next_after(last), last != first or now - first > LATE_SECONDS)
