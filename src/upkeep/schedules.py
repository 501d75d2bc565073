"""Schedules add tasks at times, each slot once.

A schedule is due at `next_at`. A process that ticks then adds its task, moves `next_at` on and stores a row
of `slot`, in one transaction. There is only one row for each slot. So a slot adds its task at most once, even
if several processes tick or the clock jumps. ScheduleRunner does this. Schedules makes and changes schedules,
and keeps them in step with tasks.py and the folders.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CLOCK_SLACK_SECONDS, INTEGER_MAX, SCHEDULED
from ..base.errors import (Busy, Conflict, Denied, Invalid, NotFound, SetupError, TooMany,
                           field_error, refusal)
from ..base.time_and_text import dump_json, iso
from ..base.schedule_rules import is_same_rule, preview
from ..base.values import TASK_DEFAULTS, summarize, unmask
from ..store.connection import THEN_JOIN, Connection, Reader
from ..store.database import Database
from ..tasks.adding import Adding, Order
from ..tasks.task_list import SHORT_ARGUMENTS, TaskList
from .schedule_rows import (HELD_UP, PLAN, SCRIPT_FOLDERS, SCRIPT_FUNCTION, SHOWN_AS_THEY_ARE,
                            SHOWN_AS_TIMES, UPCOMING, DueSlots, Slot, actor_name, as_given,
                            due_slots, find_scripts, record_schedule_event, of_rule, plan_errors, rule_of,
                            schedule_json, slot_json)

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Row, ScheduleRow, TaskRow
    from .schedule_rows import Planner

SCHEDULES_MAX = 1000            # schedules of one owner
FIRE_SECONDS = 1.0              # a tick begins no further schedule after this time
UNFINISHED_MAX = 1000           # unfinished tasks of a schedule; with so many its slots are skipped
GONE_SECONDS = 60.0             # a schedule whose source was missing for less catches up: the source was
                                # probably being copied
KEPT_SECONDS = 30 * 86400.0     # how long a schedule without a source is kept, with its pause and history
RECENT_MAX = 20                 # newest slots that the list shows of each schedule
COMING_MAX, COMING_TIMES_MAX = 20, 24   # maximum of schedules that coming() lists, and of times of each
SCHEDULE_DEFAULTS: JsonObject = {"name": None, "arguments": {}, "zone": "UTC", "catch_up": "once",
                                 "overlap": "skip", "options": {}}
SOURCES = {"code": "tasks.py", "folder": "a file in the folder schedules"}
SCHEDULE_ROW = ("SELECT schedule.*, user.name AS owner, user.disabled FROM schedule "
                "%s user ON user.id=schedule.owner_id WHERE " % THEN_JOIN)
SCHEDULE_SHOWN = (
    "SELECT %s, %s, %s, user.name AS owner, task.status AS last_status "
    "FROM schedule %s user ON user.id=schedule.owner_id LEFT JOIN task "
    "ON task.id=schedule.last_task_id AND task.cancel_requested<2 WHERE " % (
        ", ".join("schedule." + name for name in (
            *SHOWN_AS_THEY_ARE, *SHOWN_AS_TIMES, "owner_id", "options", "start", "paused",
            "problem", "gone_at", "last_task_id", "late_at")),
        SHORT_ARGUMENTS.replace("task", "schedule"), HELD_UP, THEN_JOIN))
# The newest slots of each schedule. The primary key of `slot` finds the oldest of them.
RECENT = """SELECT slot.*, task.status FROM schedule %s slot ON slot.schedule_id=schedule.id
    AND slot.at>=coalesce((SELECT at FROM slot AS one WHERE one.schedule_id=schedule.id
        ORDER BY at DESC LIMIT 1 OFFSET %d), 0)
    LEFT JOIN task ON task.id=slot.task_id AND task.cancel_requested<2
    WHERE schedule.id BETWEEN ? AND ? AND schedule.owner_id=coalesce(?, schedule.owner_id)
    ORDER BY slot.schedule_id, slot.at
    """ % (THEN_JOIN, RECENT_MAX - 1)
SHOWN_STILL = "(gone_at IS NULL OR gone_at>?)"      # older rows without a source are kept, but not listed
# The steps that match rows with the schedules of tasks.py and the folders. Each has the columns that must be
# equal. It also says whether a row that lost its source may match. Only the first step is for scripts.
MATCHES = (
    (("source", "name"), True), (("source", "function", "rule", "arguments"), True),
    (("source", "function", "arguments"), False), (("source", "function"), False),
    (("source", "rule", "arguments"), False))


if TYPE_CHECKING:
    # A function that turns requests into Orders, for a Person (from a later room) or None.
    CheckRequests = Callable[[list[JsonObject], Any], list[Order]]


class _Differences(NamedTuple):
    """The differences between the rows of schedules and their sources.

    `wanted` has each row (None: a new one) with the columns that it should have. `gone` has the rows that
    no source names any more.
    """

    wanted: list[tuple[ScheduleRow | None, JsonObject]]
    gone: list[ScheduleRow]


class ScheduleRunner:
    """The runner of due schedules: each slot adds its task, or records the reason why not.

    1. fire() finds the due schedules. Outside of a transaction, due_slots() returns the slots of each, and
       order() its Order.
    2. In one transaction, if the row is unchanged, the slots get their tasks or reasons, and next_at
       moves on. If another process was faster, this one finds a changed row and does nothing.
    """

    def __init__(self, database: Database, adding: Adding, check_requests: CheckRequests,
                 person: Callable[[int], Planner | None]) -> None:
        self._database, self._clock, self._adding = database, database.clock, adding
        self._check_requests = check_requests
        self._person = person           # the Person of a user's id, or None

    def fire(self, now: float) -> None:
        """Add the due tasks. Each schedule has a transaction of its own, so other writers need not wait."""
        deadline = self._clock.monotonic() + FIRE_SECONDS
        for (schedule_id,) in self._database.all(
                "SELECT id FROM schedule WHERE gone_at IS NULL AND id IN ("
                "SELECT id FROM schedule WHERE paused=0 AND next_at<=? UNION ALL "
                "SELECT id FROM schedule WHERE next_from>?) ORDER BY next_at, id",
                (now, now + CLOCK_SLACK_SECONDS)):
            self.settle(schedule_id, now)
            if self._clock.monotonic() > deadline:
                break

    def settle(self, schedule_id: int, now: float) -> None:
        """Fill all due slots of a schedule, by its stored rule."""
        while self._fire_one(schedule_id, now):
            pass

    def next_due(self, db: Reader | None = None) -> float | None:
        """Return when the next schedule is due, or None."""
        return (db or self._database).value(
            "SELECT min(next_at) FROM schedule WHERE paused=0 AND gone_at IS NULL")

    def _fire_one(self, schedule_id: int, now: float) -> bool:
        """Fill some due slots of a schedule in one transaction; return True if there may be more."""
        row = self._database.one(SCHEDULE_ROW + "schedule.id=?", (schedule_id,))
        if row is None or row["next_at"] is None:
            return False
        # If the clock was set back, next_at was computed from a time in the future: compute it again.
        due = row["next_at"] if row["next_from"] <= now + CLOCK_SLACK_SECONDS else now
        if due > now:
            return False
        due_runs = DueSlots([], now + 3600, False)
        order: Order | None = None
        problem: str | None = None
        try:
            due_runs = due_slots(row, due, now)
        except Exception as error:      # such as missing time zones: the other schedules must go on
            problem = getattr(error, "detail", "%s: %s" % (type(error).__name__, error))
        try:
            order = self.order(row)
        except Invalid as error:
            problem = problem or error.detail
        except Busy:
            return False                # tasks.py could never be read: the next tick tries again
        with self._database.transaction(durable=False) as transaction:
            current = transaction.one(SCHEDULE_ROW + "schedule.id=?", (schedule_id,))
            if current is None or tuple(current) != tuple(row):
                return False            # another process was faster or changed it
            changes = self._fill(transaction, row, due_runs.slots, order, problem, now)
            transaction.update("schedule", {
                **changes, "next_at": due_runs.next_at, "next_from": now,
                "late_at": now if due_runs.is_late else row["late_at"]}, "id=?", (row["id"],))
        return bool(due_runs.slots)

    def order(self, row: ScheduleRow) -> Order:
        """Return the Order for a task of this schedule; Invalid if it can have no task."""
        if row["disabled"]:
            raise Invalid("Its owner %s is disabled." % row["owner"])
        if row["source"] == "folder":
            return Order(SCRIPT_FUNCTION, row["arguments"], TASK_DEFAULTS)
        person = row["set_by"] and (self._person(row["set_by"]) or self._person(row["owner_id"]))
        return self.check_task(as_given(row), person)

    def check_task(self, request: JsonObject, person: Planner | None) -> Order:
        """Return the Order for a task of a schedule; Invalid names every wrong field."""
        [order] = self._check_requests([{"function": request["function"], **request["options"],
                                         "arguments": request["arguments"]}], person)
        if order.given:                 # the file would be removed with its first task
            raise field_error("arguments", "cannot name a file: a schedule keeps none")
        return order

    def _fill(self, transaction: Connection, row: ScheduleRow, slots: list[Slot],
              order: Order | None, problem: str | None, now: float) -> JsonObject:
        """Add a task for each slot that has none; return the changes of the schedule's row."""
        last_at, last_task = row["last_at"], row["last_task_id"]
        for at, why in slots:
            if transaction.value("SELECT task_id FROM slot WHERE schedule_id=? AND at=?",
                                 (row["id"], at)) is not None:
                continue                # it has a task: only a slot without one is filled again
            task_id: int | None = None
            last_at, unfinished = at, self.unfinished(transaction, row["id"])
            why = why or problem or self._why_skipped(row, unfinished)
            if order is not None and why is None:
                try:
                    last_task = task_id = self.add_task(transaction, row, order, unfinished, now)
                except TooMany as error:
                    why = problem = error.detail
            transaction.upsert("slot", {"schedule_id": row["id"], "at": at},
                               {"task_id": task_id, "message": why})
        return {"last_at": last_at, "last_task_id": last_task, "problem": problem}

    def _why_skipped(self, row: ScheduleRow, unfinished: Sequence[TaskRow]) -> str | None:
        """Return why a slot adds no task while tasks of its schedule are unfinished; None if it adds one."""
        if len(unfinished) == UNFINISHED_MAX:
            return "skipped: %d of its tasks had not ended" % UNFINISHED_MAX
        if not unfinished or row["overlap"] != "skip":
            return None
        task = unfinished[0]
        if task["status"] == SCHEDULED and task["attempts"]:
            return "skipped: task %d waits for its retry until %s" % (task["id"], iso(task["run_at"]))
        return "skipped: task %d had not ended" % task["id"]

    @staticmethod
    def unfinished(db: Reader, schedule_id: int) -> Sequence[TaskRow]:
        """Return the unfinished tasks of a schedule, at most UNFINISHED_MAX, oldest first."""
        return db.all(
            "SELECT id, owner_id, status, attempts, run_at FROM task "
            "WHERE schedule_id=? AND status NOT IN ENDED ORDER BY id LIMIT ?",
            (schedule_id, UNFINISHED_MAX))

    def add_task(self, transaction: Connection, row: ScheduleRow, order: Order,
                 unfinished: Sequence[TaskRow], now: float) -> int:
        """Add a task of a schedule; return its id.

        With overlap=queue it runs after the schedule's unfinished tasks of the same owner.
        """
        order.schedule_id = row["id"]
        if row["overlap"] == "queue":
            order.after = tuple(task["id"] for task in unfinished if task["owner_id"] == row["owner_id"])
            order.after_failure = "run"
        return self._adding.add(transaction, row["owner_id"], [order], now).ids[0]


class Schedules:
    """The schedules of people, tasks.py and folders."""

    def __init__(self, database: Database, tasks: TaskList, schedule_runner: ScheduleRunner,
                 announced: Callable[[], list[JsonObject]],
                 default_owner: Callable[[], Row]) -> None:
        self._database, self._clock, self._tasks = database, database.clock, tasks
        self._schedule_runner, self._announced = schedule_runner, announced
        self._default_owner = default_owner

    def find(self, owner_id: int | None = None, limit: int = INTEGER_MAX,
             after: int = 0) -> list[JsonObject]:
        """Return the schedules of an owner (None: of all owners), oldest first."""
        where, values = ("1=1", ()) if owner_id is None else ("schedule.owner_id=?", (owner_id,))
        now = self._clock.now()
        return [schedule_json(row, now) for row in self._database.all(
            "%s%s AND %s AND schedule.id>? ORDER BY schedule.id LIMIT ?" % (
                SCHEDULE_SHOWN, where, SHOWN_STILL),
            (*values, now - GONE_SECONDS, after, limit))]

    def find_with_recent(self, owner_id: int | None, limit: int, after: int) -> list[JsonObject]:
        """Return the schedules as find() does, each with its `recent` slots, the oldest of them first."""
        schedules = self.find(owner_id, limit, after)
        recent: dict[int, list[JsonObject]] = {schedule["id"]: [] for schedule in schedules}
        for slot in self._database.all(
                RECENT, (min(recent, default=0), max(recent, default=0), owner_id)):
            recent.get(slot["schedule_id"], []).append(slot_json(slot))
        return [{**schedule, "recent": recent[schedule["id"]]} for schedule in schedules]

    def get(self, schedule_id: int, owner_id: int | None = None) -> JsonObject:
        """Return one schedule with its history and next runs; NotFound if it is another owner's."""
        row, now = self._row(self._database, schedule_id, owner_id, SCHEDULE_SHOWN), self._clock.now()
        slots = self._database.all(
            "SELECT slot.*, task.status FROM slot LEFT JOIN task ON task.id=slot.task_id "
            "AND task.cancel_requested<2 WHERE slot.schedule_id=? ORDER BY at DESC LIMIT 50",
            (schedule_id,))
        return {**schedule_json(row, now),
                "arguments": json.loads(self._row(self._database, schedule_id)["arguments"]),
                "upcoming": of_rule(row, lambda rule: preview(rule, now, UPCOMING), []),
                "history": [slot_json(slot) for slot in slots]}

    def coming(self, owner_id: int | None, until: float) -> list[JsonObject]:
        """Return the schedules that are due before `until`, the next one first, each with its `times`."""
        where, values = ("", ()) if owner_id is None else (" AND schedule.owner_id=?", (owner_id,))

        def times(row: ScheduleRow) -> list[float]:
            later = of_rule(row, lambda rule: rule.upcoming(row["next_at"], COMING_TIMES_MAX), [])
            return [row["next_at"], *(at for at in later if at < until)][:COMING_TIMES_MAX]
        return [{"id": row["id"], "name": row["name"], "function": row["function"],
                 "summary": summarize(row["arguments"]), "times": list(map(iso, times(row)))}
                for row in self._database.all(
                    SCHEDULE_SHOWN + "schedule.paused=0 AND gone_at IS NULL AND next_at<?" + where
                    + " ORDER BY next_at LIMIT ?", (until, *values, COMING_MAX))]

    @staticmethod
    def _row(db: Reader, schedule_id: int, owner_id: int | None = None,
             statement: str = SCHEDULE_ROW) -> ScheduleRow:
        row = db.one(statement + "schedule.id=?", (schedule_id,))
        if row is None or owner_id not in (None, row["owner_id"]):
            raise NotFound("There is no schedule %s." % schedule_id)
        return row

    def add(self, request: JsonObject, owner_id: int, person: Planner | None = None) -> int:
        """Make a schedule as in POST /api/schedules; return its id. Invalid names every wrong field."""
        columns = {**self._checked({**SCHEDULE_DEFAULTS, **request}, person), "owner_id": owner_id}
        with self._database.transaction() as transaction:
            self._check_room(transaction, owner_id)
            schedule_id = self.store(
                transaction, None, {**columns, "source": "person"}, actor_name(person))
            self._set_paused(transaction, schedule_id, request, person)
        return schedule_id

    def change(self, schedule_id: int, changes: JsonObject, scope: int | None = None,
               person: Planner | None = None, owner_id: int | None = None) -> None:
        """Change the given fields; Conflict for fields that tasks.py or a folder sets."""
        row = self._row(self._database, schedule_id, scope)
        columns: JsonObject = {}
        if set(changes) - {"paused", "paused_why"}:
            self._refuse_foreign(row, "is changed there")
            before = as_given(row)
            columns = self._checked({**before, **unmask(changes, before)}, person)
            self._schedule_runner.settle(schedule_id, self._clock.now())
        with self._database.transaction() as transaction:
            current = self._row(transaction, schedule_id, scope)
            if columns:
                if as_given(current) != as_given(row):
                    raise Conflict("Another user has changed it meanwhile. Reload it, then try again.")
                owner_id = owner_id or current["owner_id"]
                self._check_room(transaction, owner_id, schedule_id)
                self.store(transaction, current, {**columns, "owner_id": owner_id}, actor_name(person))
            self._set_paused(transaction, schedule_id, changes, person)

    def delete(self, schedule_id: int, scope: int | None = None,
               person: Planner | None = None) -> None:
        """Remove a schedule and its history; its tasks stay."""
        with self._database.transaction() as transaction:
            row = self._row(transaction, schedule_id, scope)
            self._refuse_foreign(row, "is removed there; here it can be paused")
            self.remove(transaction, row, actor_name(person))

    def run(self, schedule_id: int, scope: int | None = None,
            person: Planner | None = None) -> TaskRow:
        """Add a task of a schedule now, besides its slots; return the task's row."""
        order = self._schedule_runner.order(self._row(self._database, schedule_id, scope))
        if scope is not None and not self._database.value(
                "SELECT 1 FROM function WHERE name=? AND who='user'", (order.function,)):
            raise Denied("Only an admin can have %s run now." % order.function)
        with self._database.transaction() as transaction:
            row, at = self._row(transaction, schedule_id, scope), self._clock.now()
            unfinished = self._schedule_runner.unfinished(transaction, schedule_id)
            if unfinished and row["overlap"] == "skip":
                raise Conflict("Its task %d has not ended yet, and its tasks must not overlap."
                               % unfinished[0]["id"])
            task_id = self._schedule_runner.add_task(transaction, row, order, unfinished, at)
            transaction.upsert("slot", {"schedule_id": schedule_id, "at": at}, {
                "task_id": task_id, "message": "run by %s" % actor_name(person)})
            transaction.update("schedule", {"problem": None, "last_task_id": task_id},
                               "id=?", (schedule_id,))
            return self._tasks.get(task_id, db=transaction)

    @staticmethod
    def _check_room(transaction: Connection, owner_id: int, besides: int = 0) -> None:
        count = transaction.value("SELECT count(*) FROM schedule "
                                  "WHERE owner_id=? AND id<>? AND gone_at IS NULL", (owner_id, besides))
        if count >= SCHEDULES_MAX:
            raise Conflict("There can be at most %d schedules of one owner." % SCHEDULES_MAX)

    def _checked(self, request: JsonObject, person: Planner | None) -> JsonObject:
        """Return the columns of a request; Invalid names every wrong field."""
        errors = plan_errors(request, self._clock.now())
        try:
            order = self._schedule_runner.check_task(request, person)
        except Invalid as error:
            errors += error.errors
        if errors:
            raise refusal("The schedule is not right", errors)
        return {**{name: request[name] for name in PLAN}, "rule": " ".join(request["rule"].split()),
                "arguments": order.arguments, "options": dump_json(request["options"]),
                "set_by": person and person.id}

    @staticmethod
    def _refuse_foreign(row: ScheduleRow, message: str) -> None:
        if row["source"] != "person" and row["gone_at"] is None:
            raise Conflict("The schedule %s comes from %s and %s."
                           % (row["name"], SOURCES[row["source"]], message))

    def store(self, transaction: Connection, row: ScheduleRow | None, columns: JsonObject,
              by: str | None = None) -> int:
        """Make a schedule (`row` is None) or change it; return its id. Call settle() before a change.

        A rule "every N seconds" counts from when the schedule was made, even after a change of its rule.
        """
        now = self._clock.now()
        if row is None or not self._goes_on(row, columns, now):
            columns = {**columns, "start": row["start"] if row else now, "next_from": now,
                       "late_at": None}
            # A rule that this host cannot read is due now: the run reports it. Other hosts may know its zone.
            columns["next_at"] = None if row and row["paused"] else of_rule(
                columns, lambda rule: rule.next_after(now), now)
        if row is None:
            schedule_id = transaction.insert("schedule", {**columns, "created_at": now})
        else:
            schedule_id = row["id"]
            transaction.update("schedule", {"problem": None, "gone_at": None, **columns},
                               "id=?", (schedule_id,))
        record_schedule_event(transaction, now, "changed" if row else "added",
                      {"name": None, **columns, "id": schedule_id}, by)
        return schedule_id

    @staticmethod
    def _goes_on(row: ScheduleRow, columns: JsonObject, now: float) -> bool:
        """Return True if a schedule keeps its next run: its rule means the same, and its source was there."""
        was_away = row["gone_at"] is not None and abs(now - row["gone_at"]) >= GONE_SECONDS
        return not was_away and is_same_rule(row["rule"], row["zone"], columns["rule"], columns["zone"])

    def _set_paused(self, transaction: Connection, schedule_id: int, changed: JsonObject,
                    person: Planner | None) -> None:
        """Pause or resume a schedule, or change the reason, if the request says so. No run is caught up."""
        row, now = self._row(transaction, schedule_id), self._clock.now()
        paused = changed.get("paused", row["paused"])
        if not changed.keys() & {"paused", "paused_why"} or not (paused or row["paused"]):
            return
        if row["paused"] and person and not person.is_admin and row["paused_by"] != person.name:
            raise Denied("%s paused it; only an admin can resume it." % row["paused_by"])
        changes: JsonObject
        if not paused:
            changes = {"paused_at": None, "paused_by": None, "paused_why": None,
                       "next_at": rule_of(row).next_after(now)}
        elif row["paused"]:
            changes = {"paused_why": changed.get("paused_why", row["paused_why"])}
        else:
            changes = {"paused_at": now, "paused_by": actor_name(person), "next_at": None,
                       "paused_why": changed.get("paused_why")}
        transaction.update("schedule", {**changes, "paused": paused, "next_from": now},
                           "id=?", (schedule_id,))
        record_schedule_event(transaction, now, "paused" if paused else "resumed", row, actor_name(person))

    def remove(self, transaction: Connection, row: ScheduleRow, by: str | None = None) -> None:
        """Remove a schedule with its history."""
        transaction.run("DELETE FROM slot WHERE schedule_id=?", (row["id"],))
        transaction.run("DELETE FROM schedule WHERE id=?", (row["id"],))
        record_schedule_event(transaction, self._clock.now(), "deleted", row, by)

    def synchronise(self) -> None:
        """Bring the default owner's schedules in step with tasks.py and the folders."""
        try:
            columns_wanted = self._wanted(self._default_owner()["id"], find_scripts())
        except (SetupError, NotFound, OSError):
            return                      # there is no owner yet, or a folder cannot be read
        now = self._clock.now()
        before = self._differences(self._database, columns_wanted, now)
        if not any(before):
            return
        for row, columns in before.wanted:
            if row is not None and row["gone_at"] is None and not self._goes_on(row, columns, now):
                self._schedule_runner.settle(row["id"], now)
        with self._database.transaction(durable=False) as transaction:
            to_store, gone = self._differences(transaction, columns_wanted, now)
            for current, columns in to_store:
                self.store(transaction, current, columns)
            for row in gone:
                if row["gone_at"] is None:
                    transaction.update("schedule", {"gone_at": now}, "id=?", (row["id"],))
                else:
                    self.remove(transaction, row)

    def _differences(self, db: Reader, columns_wanted: list[JsonObject], now: float) -> _Differences:
        rows = list(db.all(
            SCHEDULE_ROW + "source<>'person' ORDER BY gone_at IS NOT NULL, schedule.id"))
        pairs = match_rows(rows, [dict(columns) for columns in columns_wanted])
        used = {row["id"] for row, _ in pairs if row is not None}
        return _Differences(
            [(row, columns) for row, columns in pairs if not self._is_right(row, columns)],
            [row for row in rows if row["id"] not in used and (
                row["gone_at"] is None or abs(now - row["gone_at"]) >= KEPT_SECONDS)])

    def _wanted(self, owner_id: int, scripts: list[str]) -> list[JsonObject]:
        """Return the columns of the schedules in the folders and in tasks.py. The name may be None."""
        folders: list[JsonObject] = [
            {"name": script, "function": SCRIPT_FUNCTION, "arguments": {"script": script},
             "rule": SCRIPT_FOLDERS[script.split("/")[0]]} for script in scripts]
        all_columns = [{**SCHEDULE_DEFAULTS, **fields, "owner_id": owner_id, "source": source}
                  for source, entries in (("folder", folders), ("code", self._announced()))
                  for fields in entries]
        for columns in all_columns:
            for name in ("arguments", "options"):
                columns[name] = dump_json(columns[name])
        return all_columns

    @staticmethod
    def _is_right(row: ScheduleRow | None, columns: JsonObject) -> bool:
        """Return True if a row exists and equals the columns of its source."""
        return row is not None and row["gone_at"] is None and all(
            row[name] == value for name, value in columns.items())


def match_rows(rows: list[ScheduleRow],
               sources: list[JsonObject]) -> list[tuple[ScheduleRow | None, JsonObject]]:
    """Pair the columns of each source with the row of the same schedule, by MATCHES; None for a new one.

    Columns without a name get the name of their row, or FUNCTION-NUMBER for a new one.
    """
    free = list(rows)
    matches: list[ScheduleRow | None] = [None] * len(sources)
    for names, with_gone in MATCHES:
        for place, columns in enumerate(sources):
            if matches[place] is None and (
                    columns["name"] if "name" in names else columns["source"] == "code"):
                matches[place] = next((row for row in free if is_match(row, columns, names) and (
                    with_gone or row["gone_at"] is None)), None)
                free = [row for row in free if row is not matches[place]]
    taken = {(row["source"], row["name"]) for row in rows}
    for row, columns in zip(matches, sources):
        if columns["name"] is None:
            numbered = ("%s-%d" % (columns["function"], number) for number in range(1, len(taken) + 2))
            columns["name"] = row["name"] if row is not None else next(
                name for name in numbered if (columns["source"], name) not in taken)
        taken.add((columns["source"], columns["name"]))
    return list(zip(matches, sources))


def is_match(row: ScheduleRow, columns: JsonObject, names: Sequence[str]) -> bool:
    """Return True if these columns are equal: rules by their meaning, arguments in any order."""
    return all(
        is_same_rule(row["rule"], row["zone"], columns["rule"], columns["zone"]) if name == "rule" else
        row[name] == columns[name] or name == "arguments" and (
            json.loads(row[name]) == json.loads(columns[name]))
        for name in names)
