"""The history of ticks: their callers, their times, their gaps.

A tick must be cheap where every request is a process of its own. So the last tick is recorded as the
modification time of an empty file, which needs no transaction. The callers are stored about once a minute.
"""
from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import TICK_SECONDS
from ..base.errors import JobQueueError
from ..base.time_and_text import iso, seconds_since
from ..store.connection import Reader
from ..store.database import Database
from ..store.state import recall, remember

if TYPE_CHECKING:
    from typing import TypedDict

    from ..base.types import JsonObject

if TYPE_CHECKING:
    class Visits(TypedDict):
        """The last visit of one of VISITORS, its period (None: unknown), and whether it still comes."""

        last_at: float
        period: float | None
        comes: bool

    class StoredHistory(TypedDict):
        """The stored history: when each caller ticked last, and the last visits of VISITORS."""

        seen: dict[str, float]
        visits: dict[str, list[float]]

PASSING = ("request", "address")        # callers that tick seldom and leave long work to other processes
VISITORS = ("cron", "address")          # programs that tick at regular times, then end
NOTE_SECONDS = 50.0                     # least time between two records of a caller
ONE_VISIT_SECONDS = 65 * 60.0           # after its first visit, how long the next one is awaited


def renew_mark(path: Path, now: float, least: float) -> bool:
    """Return True, and set the mark to now, if the mark is at least `least` seconds old.

    The mark is the modification time of an empty file. A mark in the future or a missing file counts as old.
    True may be returned to several processes at the same moment, or where the mark cannot be set. They only
    do the same work twice.
    """
    with contextlib.suppress(OSError):
        if round(seconds_since(os.stat(path).st_mtime, now), 3) < least:
            return False
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(path, (now, now))
    return True


class TickHistory:
    """The history of ticks in the table `state`. Tick.maybe() lists the callers."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def record(self, caller: str) -> None:
        """Store that a caller ticks, if it was not stored lately. A jump of the clock clears the history."""
        now = self._clock.now()
        if seconds_since(self._known(self._database)["seen"].get(caller, 0.0), now) < NOTE_SECONDS:
            return
        with contextlib.suppress(JobQueueError), self._database.deadline(0.2), \
                self._database.transaction(durable=False) as transaction:   # a failure here is no error
            history = self._known(transaction)
            if seconds_since(max(history["seen"].values(), default=now), now) >= 30 * 86400:
                history = {"seen": {}, "visits": {}}
            history["seen"][caller] = now
            if caller in VISITORS:
                history["visits"][caller] = [*history["visits"].get(caller, ()), now][-10:]
            remember(transaction, "rhythm", history)

    def state(self) -> JsonObject:
        """Return the last tick, its caller and the period, as the API has them."""
        at, caller = max(((at, caller) for caller, at in self._known(self._database)["seen"].items()),
                         default=(None, None))
        visits, period = self.visitor("cron"), self.period()
        cron = visits and {"last_at": iso(visits["last_at"]),
                           "period": visits["period"] and round(visits["period"])}
        return {"last_at": iso(at), "last_source": caller, "period": period and round(period),
                "cron": cron, "resident": self.is_resident()}

    def visitor(self, caller: str) -> Visits | None:
        """Return the Visits of one of VISITORS; None if it never came."""
        visits = self._known(self._database)["visits"].get(caller)
        if not visits:
            return None
        gaps = sorted(later - at for at, later in zip(visits, visits[1:]))
        period = gaps[len(gaps) // 2] if gaps else None
        patience = 2 * period + 300 if period is not None else ONE_VISIT_SECONDS
        return {"last_at": visits[-1], "period": period,
                "comes": seconds_since(visits[-1], self._clock.now()) < patience}

    def is_resident(self) -> bool:
        """Return True while the built-in server runs, or a worker in the mode service."""
        last = self._known(self._database)["seen"].get("server", -math.inf)
        return seconds_since(last, self._clock.now()) < 2 * NOTE_SECONDS or self.has_service()

    def has_service(self) -> bool:
        """Return True while there is a worker in the mode service, which never ends by itself."""
        return bool(self._database.value(
            "SELECT 1 FROM worker WHERE mode='service' AND state<>'starting' LIMIT 1"))

    def period(self) -> float | None:
        """Return the seconds between ticks that do not depend on people; None if there are no such ticks."""
        periods = [visits["period"] for visits in map(self.visitor, VISITORS)
                 if visits and visits["comes"] and visits["period"]]
        return min(periods + [TICK_SECONDS] * self.is_resident(), default=None)

    @staticmethod
    def _known(db: Reader) -> StoredHistory:
        history: StoredHistory | None = recall(db, "rhythm")
        return history or {"seen": {}, "visits": {}}
