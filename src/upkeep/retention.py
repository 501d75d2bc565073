"""Retention: removes old rows and files, a little at a time."""
from __future__ import annotations

import math
from collections.abc import Iterator

from ..base.limits import INVITATION, INVITATION_SECONDS
from ..base.time_and_text import Every
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from ..tasks.adding import REQUEST_SECONDS
from ..tasks.actions import Actions
from .rollup import HOUR_KEYS
from .metrics import Rollup

KEEP_ROWS = 500                 # maximum of rows that are read or removed at once
KEEP_ROUND_SECONDS = 3600.0
# Columns for _oldest(): the id of a row, when it was made, and when it ended (NULL: it has not).
TASK_AGES = "id, created_at, CASE WHEN status IN ENDED THEN finished_at END FROM task"
ACTIVITY_AGES = "id, at, at FROM activity"
NEWER_SLOT = "at<(SELECT max(at) FROM slot AS one WHERE one.schedule_id=slot.schedule_id)"
KEEP_SETTINGS = ("keep_days", "keep_activity_days", "keep_hours_days")


class Retention:
    """The retention of tasks, activity and figures, by the settings of an admin.

    Every hour old rows are removed, the oldest first. A wrong clock must not empty the tables. So nothing is
    removed for a while if the last run seems to be more than a day ago, or in the future. This lasts for
    keep_days, but at least one day and at most 30.
    """

    def __init__(self, database: Database, settings: Settings, actions: Actions,
                 rollup: Rollup) -> None:
        self._database, self._settings, self._actions = database, settings, actions
        self._rollup, self._clock = rollup, database.clock
        self._round: Iterator[bool] | None = None       # a running _portions(), or None
        self._rounds = Every(KEEP_ROUND_SECONDS, self._clock)

    def prune(self) -> bool:
        """Remove one portion; return True if rows were removed, so that there may be more."""
        if self._round is None:
            now = self._clock.now()
            if not self._rounds.begin_if_due() or not self._trusts_clock(now):
                return False
            self._round = self._portions(now)
        removed = next(self._round, None)
        if removed is None:
            self._round = None
        return bool(removed)

    def _trusts_clock(self, now: float) -> bool:
        """Return False for some days after the clock jumped, and store the time of this run."""
        state = recall(self._database, "keeping") or {"seen": 0.0, "from": 0.0}
        seen: float = state["seen"]
        start: float = state["from"]
        doubt = 86400 * min(30, max(1, seen and self._settings.get("keep_days")))
        patience = doubt if start > seen else 86400     # in doubt, longer pauses between runs are no jump
        if not seen - KEEP_ROUND_SECONDS <= now <= seen + patience:
            start = now + doubt
        if start != state["from"] or abs(now - seen) >= KEEP_ROUND_SECONDS:
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, "keeping", {"seen": now, "from": start})
        return now >= start

    def _portions(self, now: float) -> Iterator[bool]:
        """Remove old rows in portions. After each portion yield True if it had rows to remove."""
        tasks, activity, hours = [
            now - days * 86400 if days else -math.inf
            for days in map(self._settings.get, KEEP_SETTINGS)]
        for ids in self._oldest(TASK_AGES, tasks, now):
            self._actions.prune(ids, tasks)
            yield bool(ids)
        for ids in self._oldest(ACTIVITY_AGES, activity, now):
            folded = self._rollup.mark()  # the last folded row stays, so that SQLite assigns higher ids
            gone = [(row_id,) for row_id in ids if row_id < folded]
            if gone:
                with self._database.transaction(durable=False) as transaction:
                    transaction.run_many_later("DELETE FROM activity WHERE id=?", gone)
            yield bool(gone)
        for table, key, is_old, values in (
                *((table, key, "span>0 AND at<?", (hours,)) for table, key in HOUR_KEYS.items()),
                ("slot", ("schedule_id", "at"), NEWER_SLOT + " AND at<?", (activity,)),
                ("alert", ("id",), "ended_at<?", (activity,)),
                ("delivery", ("id",), "next_at IS NULL AND created_at<?", (activity,)),
                ("token", ("id",), "scope=? AND created_at<?", (INVITATION, now - INVITATION_SECONDS)),
                ("request", ("owner_id", "key"), "created_at NOT BETWEEN ? AND ?",
                 (now - REQUEST_SECONDS, now + REQUEST_SECONDS))):      # the clock may have been set back
            keys = ", ".join(key)
            while self._database.value(
                    "SELECT 1 FROM %s WHERE %s LIMIT 1" % (table, is_old), values):
                with self._database.transaction(durable=False) as transaction:
                    transaction.run(
                        "DELETE FROM %s WHERE (%s) IN (SELECT %s FROM %s WHERE %s LIMIT ?)" % (
                            table, keys, keys, table, is_old), (*values, KEEP_ROWS))
                yield True

    def _oldest(self, ages: str, before: float, now: float) -> Iterator[list[int]]:
        """Yield the ids of rows that ended before a time, in portions, until rows were made after it."""
        low, created = 0, -math.inf
        while not before <= created <= now:
            rows = self._database.all(
                "SELECT %s WHERE id>? ORDER BY id LIMIT ?" % ages, (low, KEEP_ROWS))
            if not rows:
                return
            low, created, _ = rows[-1]
            yield [row[0] for row in rows if row[2] is not None and row[2] < before]
