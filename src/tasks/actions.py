"""Cancel, retry, delete: one task, or all that match a filter.

A running task is only marked: its worker ends it and records that. Many tasks are changed in short
transactions, so that other writers need not wait long. Each transaction reads its rows again.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import (CANCELLED, FAILED, PENDING, RUNNING, SCHEDULED, STATUS_WORDS,
                           SUCCEEDED, WAITING)
from ..base.errors import Conflict, Denied
from ..base.time_and_text import dump_json
from ..base.values import OPTION_SCHEMAS, object_of, titled
from ..store.connection import BY_ID, Connection
from ..store.database import Database
from ..store.log_and_activity import activity_row, record_activity
from .followers import ENDED, Followers, next_turn
from .files import remove_task_folder
from .adding import Adding
from .task_list import OLDEST, SORTED_ROW, Filter, TaskList

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, TaskRow

if TYPE_CHECKING:
    Rows = list[TaskRow]

CHANGED_TASK = titled("TaskChange", object_of(notify=OPTION_SCHEMAS["notify"]))
PORTION_ROWS = 200              # tasks that a bulk action changes in one short transaction
ACTION_ROWS = 1000              # tasks that a bulk action reads at once

# The bulk actions, and the statuses in which each is possible.
ACTIONS: dict[str, tuple[int, ...]] = {
    "cancel": (PENDING, RUNNING, SCHEDULED, WAITING), "retry": (FAILED, CANCELLED),
    "delete": tuple(range(7))}
OPEN_TO_USERS = "NOT EXISTS (SELECT 1 FROM function WHERE name=task.function AND who<>'user')"


class Acted(NamedTuple):
    """How many tasks an action changed, and the id up to which it is done."""

    changed: int
    reached: int


class Actions:
    """The actions of people on tasks. Only Adding, Followers and Claims change statuses, too."""

    def __init__(self, database: Database, tasks: TaskList, adding: Adding) -> None:
        self._database, self._tasks, self._adding = database, tasks, adding
        self._clock = database.clock

    def cancel(self, task_id: int, owner_id: int | None = None, by: str | None = None) -> TaskRow:
        """Cancel a task at once, or ask its worker to; return its row. Conflict if it has ended."""
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] in (SUCCEEDED, FAILED):
                raise Conflict("Task %d has ended already (%s)."
                               % (task_id, STATUS_WORDS[row["status"]]))
            if row["status"] != CANCELLED:
                self._cancel(transaction, [row], self._clock.now(), by)
            return self._tasks.get(task_id, owner_id, transaction)

    def retry(self, task_id: int, owner_id: int | None = None, by: str | None = None) -> TaskRow:
        """Make a failed or cancelled task pending again with all its retries; return its row.

        Conflict if it has another status, or would only fail again. With an owner it counts as a new task.
        TooMany if the owner has too many, Denied if users may not add tasks of its function.
        """
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] not in (FAILED, CANCELLED):
                raise Conflict("Task %d is %s; only failed and cancelled tasks can be retried."
                               % (task_id, STATUS_WORDS[row["status"]]))
            why = Followers.why_not_again(transaction, row)
            if why:
                raise Conflict(why)
            if owner_id is not None:
                if not transaction.value("SELECT 1 FROM task WHERE id=? AND " + OPEN_TO_USERS,
                                         (task_id,)):
                    raise Denied("Only an admin can have %s run again." % row["function"])
                self._adding.check_quota(transaction, owner_id, 1, "It was not retried")
            self._retry(transaction, [row], self._clock.now(), by)
            return self._tasks.get(task_id, owner_id, transaction)

    def change(self, task_id: int, changes: JsonObject, owner_id: int | None = None) -> TaskRow:
        """Change options in CHANGED_TASK of a task; return its row. Conflict if it has ended.

        A running task may be changed, too: only its end reads these options.
        """
        with self._database.transaction() as transaction:
            row = self._tasks.get(task_id, owner_id, transaction)
            if row["status"] in ENDED:
                raise Conflict("Task %d has ended already (%s)."
                               % (task_id, STATUS_WORDS[row["status"]]))
            if changes:
                transaction.update("task", changes, "id=? AND status=?", (task_id, row["status"]))
            return self._tasks.get(task_id, owner_id, transaction)

    def delete(self, task_id: int, owner_id: int | None = None, by: str | None = None) -> None:
        """Remove a task and its logs. A running task is hidden, and removed once its runner is dead."""
        self._tasks.get(task_id, owner_id)
        self.act_on("delete", [task_id], owner_id, by)

    def record_bulk(self, action: str, count: int, task_filter: JsonObject | None,
                  owner_id: int | None = None, by: str | None = None) -> None:
        """Record in the activity how many tasks a bulk action changed."""
        with self._database.transaction(durable=False) as transaction:
            record_activity(transaction, self._clock.now(), "bulk_" + action, owner_id=owner_id, actor=by,
                 message="%d tasks%s" % (count, " of " + dump_json(task_filter) if task_filter else ""))

    def act(self, action: str, task_filter: Filter, low: int, top: int, seconds: float,
            owner_id: int | None = None, by: str | None = None) -> Acted:
        """Do an action to the tasks of a filter with ids above `low` up to `top`, see act_on().

        It reads ACTION_ROWS tasks at a time, and stops once `seconds` are over.
        """
        deadline, done = self._clock.monotonic() + seconds, 0
        while low < top and not (done and self._clock.monotonic() > deadline):
            rows, cursor = self._tasks.find(
                task_filter.within(ACTIONS[action]), ACTION_ROWS, low, OLDEST, SORTED_ROW)
            done += self.act_on(action, [row["id"] for row in rows if row["id"] <= top], owner_id, by)
            low = top if cursor is None else min(cursor, top)
        return Acted(done, low)

    def act_on(self, action: str, ids: list[int], owner_id: int | None = None,
               by: str | None = None) -> int:
        """Do an action to the given tasks that allow it; return their number.

        With an owner, only the owner's tasks are changed. TooMany if a retry exceeds the owner's limit of
        pending tasks.
        """
        limited = owner_id if action == "retry" else None
        condition, values = Filter(owner_id, ACTIONS[action]).where()
        if limited is not None:
            condition += " AND " + OPEN_TO_USERS
        change = {"cancel": self._cancel, "retry": self._retry, "delete": self._delete}[action]
        return self._change(sorted(set(ids)), condition, values, functools.partial(change, by=by),
                            action == "delete", limited=limited)

    def prune(self, ids: list[int], before: float) -> None:
        """Remove the given tasks that ended before a time, unless unsettled followers need them."""
        self._change(ids, "status IN ENDED AND finished_at<? AND NOT EXISTS "
                     "(SELECT 1 FROM task_after WHERE after_id=task.id AND settled=0)",
                     (before,), self._remove, True, durable=False)

    def _change(self, ids: list[int], condition: str, values: Sequence[Any],
                change: Callable[[Connection, Rows, float], Rows], removes: bool,
                durable: bool = True, limited: int | None = None) -> int:
        """Call `change` with rows that still fulfil the condition, in portions; return how many changed.

        `limited` is the id of an owner whose limit of pending tasks counts: TooMany beyond it. If `change`
        `removes` tasks, their folders are removed, too.
        """
        done = 0
        while ids:
            most = PORTION_ROWS
            with self._database.transaction(durable) as transaction:
                if limited is not None:
                    most = min(most, self._adding.check_quota(
                        transaction, limited, 1, "Not all were retried"))
                rows = change(transaction, list(transaction.all_of(
                    "SELECT id, owner_id, queue, function, priority, attempts, status, "
                    "cancel_requested, after_failure FROM task %s WHERE cancel_requested<2 AND %s "
                    "AND id IN (%%s) ORDER BY id" % (BY_ID, condition), values, ids[:most])),
                    self._clock.now())
            for row in rows if removes else ():
                if row["status"] != RUNNING:
                    remove_task_folder(self._database.folder, row["id"])
            done, ids = done + len(rows), ids[most:]
        return done

    @staticmethod
    def _cancel(transaction: Connection, rows: Rows, now: float, by: str | None) -> Rows:
        """Cancel unfinished tasks at once, or ask their workers to; return the rows. `by` is recorded."""
        notes: list[JsonObject] = []
        for row in rows:
            event = "cancel_requested"
            changes: JsonObject = {"cancel_requested": 1}
            if row["status"] != RUNNING:
                event = "cancelled"
                changes = {"status": CANCELLED, "reason": None, "finished_at": now}
            transaction.update("task", changes, "id=? AND status=?", (row["id"], row["status"]))
            if row["status"] != RUNNING or not row["cancel_requested"]:
                notes.append(activity_row(now, event, row, actor=by))
        transaction.insert_all("activity", notes)
        Followers.settle(transaction, now)
        return rows

    @staticmethod
    def _retry(transaction: Connection, rows: Rows, now: float, by: str | None) -> Rows:
        """Make failed and cancelled tasks pending again, as if new; return their rows."""
        done: Rows = []
        for row in rows:
            if Followers.why_not_again(transaction, row):
                continue
            status, turn = WAITING, 0
            if not Followers.reopen_edges(transaction, row):
                status, turn = PENDING, next_turn(transaction, row)
            transaction.run(
                "UPDATE task SET status=?, reason=NULL, turn=?, run_at=?, "
                "retries_left=max_retries, crashes=0, interruptions=0, cancel_requested=0, "
                "progress=NULL, message=NULL, result=NULL, error_type=NULL, error_message=NULL, "
                "started_at=NULL, finished_at=NULL WHERE id=? AND status IN (FAILED, CANCELLED)",
                (status, turn, now, row["id"]))
            transaction.run("DELETE FROM unsettled WHERE task_id=?", (row["id"],))
            done.append(row)
        transaction.insert_all("activity", [
            activity_row(now, "retried", row, actor=by) for row in done])
        return done

    @staticmethod
    def _delete(transaction: Connection, rows: Rows, now: float, by: str | None) -> Rows:
        """Remove tasks; hide running ones until their workers have ended them; return the rows."""
        transaction.run_many_later("UPDATE task SET cancel_requested=2 WHERE id=? AND status=RUNNING",
                         [(row["id"],) for row in rows if row["status"] == RUNNING])
        Actions._remove(transaction, rows, now)
        transaction.insert_all("activity", [
            activity_row(now, "deleted", row, actor=by) for row in rows])
        Followers.settle(transaction, now)
        return rows

    @staticmethod
    def _remove(transaction: Connection, rows: Rows, _now: float) -> Rows:
        """Remove the rows of tasks that do not run; return them."""
        transaction.run_many_later("DELETE FROM task WHERE id=? AND status<>RUNNING",
                         [(row["id"],) for row in rows])
        return rows
