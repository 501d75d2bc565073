"""Retention: removes old rows and files, a little at a time."""
from __future__ import annotations

import math
from collections.abc import Iterator

from ..base.time_and_text import Every
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from ..tasks.adding import REQUEST_SECONDS
from ..tasks.actions import Actions
from .rollup import HOUR_KEYS
from .metrics import Rollup

KEEP_ROWS = 500                 # rows that are read, and removed in one transaction
KEEP_ROUND_SECONDS = 3600.0
# The id of a row, when it was made, and when it ended.
TASK_AGES = "id, created_at, CASE WHEN status IN ENDED THEN finished_at END FROM task"
ACTIVITY_AGES = "id, at, at FROM activity"
NEWER_SLOT = "at<(SELECT max(at) FROM slot AS one WHERE one.schedule_id=slot.schedule_id)"
KEEP_SETTINGS = ("keep_days", "keep_activity_days", "keep_hours_days")


class Retention:
    """The retention of tasks, activity and figures, by the settings of an admin.

    Once an hour the oldest rows are removed, up to one that is young enough. A wrong clock must not empty
    the tables. So if the clock is more than a day off since the last run, nothing is removed for
    keep_days, at most 30 days.
    """

    def __init__(self, database: Database, settings: Settings, actions: Actions,
                 fold: Rollup) -> None:
        self._database, self._settings, self._actions = database, settings, actions
        self._fold, self._clock = fold, database.clock
        self._round: Iterator[bool] | None = None       # of _portions(), while it lasts
        self._rounds = Every(KEEP_ROUND_SECONDS, self._clock)

    def prune(self) -> bool:
        """Remove one portion; return True if there is more to remove."""
        if self._round is None:
            now = self._clock.now()
            if not self._rounds.is_due() or not self._trusts_clock(now):
                return False
            self._round = self._portions(now)
        removed = next(self._round, None)
        if removed is None:
            self._round = None
        return bool(removed)

    def _trusts_clock(self, now: float) -> bool:
        """Return False for some days after the clock has jumped."""
        state = recall(self._database, "keeping") or {"seen": 0.0, "from": 0.0}
        seen: float = state["seen"]
        start: float = state["from"]
        doubt = 86400 * min(30, max(1, seen and self._settings.get("keep_days")))
        patience = doubt if start > seen else 86400     # a process that seldom ticks ends a doubt, too
        if not seen - KEEP_ROUND_SECONDS <= now <= seen + patience:
            start = now + doubt
        if start != state["from"] or abs(now - seen) >= KEEP_ROUND_SECONDS:
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, "keeping", {"seen": now, "from": start})
        return now >= start

    def _portions(self, now: float) -> Iterator[bool]:
        """Remove a portion before each value, which is False if there was nothing to remove."""
        tasks, activity, hours = [
            now - days * 86400 if days else -math.inf
            for days in map(self._settings.get, KEEP_SETTINGS)]
        for ids in self._oldest(TASK_AGES, tasks, now):
            self._actions.prune(ids, tasks)
            yield bool(ids)
        for ids in self._oldest(ACTIVITY_AGES, activity, now):
            folded = self._fold.mark()  # the last folded row stays: SQLite draws ids after the highest one
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
        """Yield the ids of rows that ended before a time, in portions, until a row is younger."""
        low, created = 0, -math.inf
        while not before <= created <= now:
            rows = self._database.all(
                "SELECT %s WHERE id>? ORDER BY id LIMIT ?" % ages, (low, KEEP_ROWS))
            if not rows:
                return
            low, created, _ = rows[-1]
            yield [row[0] for row in rows if row[2] is not None and row[2] < before]
