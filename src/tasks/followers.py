"""The turns of pending tasks, and the release or failure of tasks that wait for other tasks.

A pending task has a turn: a number that gives its place among the tasks of its queue and priority. A task
may come after other tasks, its predecessors. It is their follower. It waits until all of them have
succeeded, or only ended if its after_failure is "run":

1. A follower is added with the status WAITING. It has a row of task_after, an edge, for each predecessor.
2. When a task with waiting followers ends or is removed, a trigger adds its id to the table `unsettled`.
   tie() does that for predecessors that had failed or been cancelled before.
3. Followers.settle() reads `unsettled` and releases or fails the followers. A failed follower has also
   ended, so step 2 applies to its own followers. A process calls settle() when it ends tasks, claims
   tasks or does a tick.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CANCELLED, FAILED, PENDING, SCHEDULED, SUCCEEDED
from ..store.connection import BY_CLAIM, BY_FOLLOWER, BY_TURN, Connection, Reader
from ..store.log_and_activity import record_activity

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row, TaskRow

SETTLE_AT_ONCE = 500            # rows of task_after that one settle() handles, roughly
ENDED = (SUCCEEDED, FAILED, CANCELLED)
LANES = "SELECT queue, priority FROM task %s WHERE status=? " % BY_CLAIM
FIRST_LANE = LANES + "ORDER BY queue, priority DESC LIMIT 1"
# One ended task, and one of its waiting followers. The follower is NULL if the task has none.
UNSETTLED = (
    "SELECT unsettled.task_id AS ended, status, task_after.task_id AS follower "
    "FROM unsettled LEFT JOIN task_after %s "
    "ON settled=0 AND after_id=unsettled.task_id LIMIT 1" % BY_FOLLOWER)
# The first turn of a lane, and an owner's last turn in it. The values are queue, priority, owner id, queue,
# priority.
TURNS = """(SELECT turn FROM task %s WHERE status=PENDING AND queue=? AND priority=?
            ORDER BY turn LIMIT 1) AS lowest,
    (SELECT turn FROM task %s WHERE owner_id=? AND status=PENDING AND queue=? AND priority=?
            ORDER BY turn DESC LIMIT 1) AS highest""" % (BY_CLAIM, BY_TURN)
HOW_IT_ENDED = {FAILED: "failed", CANCELLED: "was cancelled", None: "was deleted"}


class Lane(NamedTuple):
    """A part of a queue: its tasks of one priority."""

    queue: str
    priority: int


def next_turn(db: Reader, task: TaskRow) -> int:
    """Return the turn of a task that becomes pending now. So many tasks of one owner delay no other owner."""
    lane = task["queue"], task["priority"]
    return turn_after(db.row("SELECT " + TURNS, (*lane, task["owner_id"], *lane)))


def turn_after(turns: Row) -> int:
    """Return an owner's next turn in a lane, from a row with the columns of TURNS."""
    last: int = max(turns["lowest"] or 0, turns["highest"] or 0)
    return last + 1


def scheduled_turn(run_at: float) -> int:
    """Return the turn of a scheduled task: when it is due, in ms. So an index finds due tasks."""
    return math.ceil(run_at * 1000)


def lanes(db: Reader, status: int) -> list[Lane]:
    """Return the lanes with tasks of a status. There are few lanes, so one query for each is quick."""
    lanes_found: list[Lane] = []
    lane = db.one(FIRST_LANE, (status,))
    while lane:
        lanes_found.append(Lane(*lane))
        lane = db.one(LANES + "AND queue=? AND priority<? ORDER BY priority DESC LIMIT 1",
                      (status, *lane)) or db.one(
            LANES + "AND queue>? ORDER BY queue, priority DESC LIMIT 1", (status, lane["queue"]))
    return lanes_found


class Followers:
    """The rules for tasks that come after other tasks: released, failed, waiting again."""

    @staticmethod
    def settle(transaction: Connection, now: float) -> None:
        """Release or fail a portion of the followers of ended tasks.

        A follower that fails here gets a row of `unsettled`, too. In this way a long chain fails one task
        after another.
        """
        room = SETTLE_AT_ONCE
        while room > 0:
            pair = transaction.one(UNSETTLED)
            if pair is None:
                return
            room -= 1
            if pair["follower"] is None:
                transaction.run("DELETE FROM unsettled WHERE task_id=?", (pair["ended"],))
            else:
                room -= Followers._settle_follower(
                    transaction, pair["ended"], pair["status"], pair["follower"], now)

    @staticmethod
    def _settle_follower(transaction: Connection, ended: int, how: int | None, follower: int,
                         now: float) -> int:
        """Settle one edge of a follower, or all its open edges if it no longer waits; return their number."""
        task = transaction.one(
            "SELECT id, owner_id, queue, function, priority, attempts, run_at, created_at, "
            "after_failure FROM task WHERE id=? AND status=WAITING", (follower,))
        if task and (how == SUCCEEDED or task["after_failure"] == "run"):
            transaction.run("UPDATE task_after SET settled=1 WHERE task_id=? AND settled=0 "
                            "AND after_id=?", (follower, ended))
            waits = transaction.value(
                "SELECT 1 FROM task_after WHERE task_id=? AND settled=0 LIMIT 1", (follower,))
            if not waits and not Followers.reopen_edges(transaction, task):
                run_at = max(now, task["run_at"] or 0)
                status, turn = SCHEDULED, scheduled_turn(run_at)
                if run_at == now:
                    status, turn = PENDING, next_turn(transaction, task)
                transaction.update("task", {"status": status, "turn": turn, "run_at": run_at},
                                   "id=? AND status=WAITING", (follower,))
                record_activity(transaction, now, "released", task)
            return 1
        given_up = transaction.run("UPDATE task_after SET settled=2 WHERE task_id=? AND settled=0",
                                   (follower,))
        if task:
            why = "Task %d, which this one comes after, %s." % (ended, HOW_IT_ENDED[how])
            transaction.update("task", {
                "status": FAILED, "reason": "dependency", "error_type": "Dependency",
                "error_message": why, "finished_at": now}, "id=? AND status=WAITING", (follower,))
            record_activity(transaction, now, "failed", task, message=why, service=now - task["created_at"])
        return given_up

    @staticmethod
    def why_not_again(transaction: Connection, task: TaskRow) -> str | None:
        """Return a sentence if a retried task would only fail again because of a predecessor, else None."""
        if task["after_failure"] != "fail":
            return None
        given_up = transaction.one(
            "SELECT after_id, status FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE task_id=? AND settled=2 AND (status IS NULL OR status IN (FAILED, CANCELLED)) LIMIT 1",
            (task["id"],))
        if given_up is None:
            return None
        return "Task %d comes after task %d, which %s; %s." % (
            task["id"], given_up["after_id"], HOW_IT_ENDED[given_up["status"]],
            "add it anew" if given_up["status"] is None else "retry that one first")

    @staticmethod
    def reopen_edges(transaction: Connection, task: TaskRow) -> int:
        """Mark the edges to predecessors that have not ended as open again; return their number."""
        if task["after_failure"] is None:
            return 0
        transaction.run("UPDATE task_after SET settled=1 WHERE task_id=? AND settled=2",
                        (task["id"],))
        return transaction.run(
            "UPDATE task_after SET settled=0 WHERE task_id=? AND settled=1 AND EXISTS "
            "(SELECT 1 FROM task WHERE id=after_id AND status NOT IN ENDED)", (task["id"],))

    @staticmethod
    def tie(transaction: Connection, edges: Iterable[JsonObject], statuses: Mapping[int, int],
            now: float) -> None:
        """Store the edges of new tasks. `statuses` are the statuses of their predecessors, by id.

        If a predecessor has failed or was cancelled, settle() is called here.
        """
        transaction.insert_all("task_after", edges)
        ended = {before: status for before, status in statuses.items()
                 if status in (FAILED, CANCELLED)}
        for before, status in ended.items():
            transaction.ensure("unsettled", {"task_id": before, "status": status})
        if ended:
            Followers.settle(transaction, now)
