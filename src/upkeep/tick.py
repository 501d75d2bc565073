"""The tick: maintenance that any process does in passing."""
from __future__ import annotations

import math

from ..base.limits import TICK_SECONDS
from ..base.errors import Busy, complain, print_errors
from ..base.time_and_text import Every, iso, seconds_since
from ..store.connection import Reader
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from ..tasks.files import Files
from ..tasks.claims import Claims
from .tick_history import PASSING, TickHistory, renew_mark
from .schedules import ScheduleRunner, Schedules
from .workers import Workers
from .reaper import Reaper
from .starter import Starter
from .metrics import Rollup
from .retention import Retention
from .alerts import Alerts
from .summary import Summaries

TICK_PASSING_SECONDS = 5.0      # between ticks by callers in PASSING, such as requests
TICK_SOON_SECONDS = 1.0         # between ticks while work is left or a schedule is due
SWEEP_SECONDS = 3600.0
LOOK_FOR_SCHEDULES_SECONDS = 30.0
BACKUP_AGAIN_SECONDS = 3600.0   # pause after a backup that failed or was not finished


class Tick:
    """The maintenance that any process does in passing: reap, fire, promote, fold, prune, start.

    Every part reads first, and writes only if there is something to do. Every write checks again inside
    its transaction. So any number of processes may tick at the same time. A tick folds and prunes only one
    portion, so that tasks need not wait for that.
    """

    def __init__(self, database: Database, settings: Settings, claims: Claims, tick_history: TickHistory,
                 workers: Workers, reaper: Reaper, starter: Starter, schedule_runner: ScheduleRunner,
                 schedules: Schedules, rollup: Rollup, retention: Retention, alerts: Alerts,
                 summaries: Summaries, files: Files) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._workers = tick_history, workers
        self._reaper, self._starter = reaper, starter
        self._schedule_runner, self._schedules, self._alerts = schedule_runner, schedules, alerts
        self._summaries = summaries
        self._rollup, self._retention, self._files = rollup, retention, files
        self._clock = database.clock
        self._mark = database.folder / "tick.mark"
        self._ticks = Every(TICK_SOON_SECONDS, self._clock)
        self._looks = Every(LOOK_FOR_SCHEDULES_SECONDS, self._clock)
        self._has_more = False          # the last tick left rows to rollup or prune

    def maybe(self, caller: str) -> bool:
        """Tick unless another process has just done so; return True if this one did.

        `caller` is "server", "worker", "code" (adds by Python and shell), "cron", or one of PASSING. Errors
        are printed, not raised: a tick must not end its caller. The next tick tries again.
        """
        if not self._ticks.begin_if_due():
            return False
        try:
            if caller == "server":      # is_resident() needs this, even if another process ticks
                self._tick_history.record(caller)
            if not self._is_our_turn(caller):
                return False
            self.run(caller)
            return True
        except Busy:                    # the next tick tries again
            return False
        except Exception as error:
            self._ticks.put_off(15.0)
            complain("maintenance failed: %s: %s" % (type(error).__name__, error))
            return False

    def run(self, caller: str = "worker", start: bool = True) -> None:
        """Do all that is due, even if another process has just ticked. Without `start`, start no worker."""
        renew_mark(self._mark, self._clock.now(), 0.0)
        self._tick_history.record(caller)
        self._ticks.put_off(TICK_SECONDS)
        self._database.sign()
        self._reaper.bury_dead()
        self._promote()
        self._fire_schedules()
        self._files.clear(self._clock.now())
        self._sweep()
        is_behind = self._rollup.fold()
        self._has_more = caller not in PASSING and (self._retention.prune() or is_behind)
        if self._has_more:
            self._ticks.hasten(TICK_SOON_SECONDS)
        if start:
            self._starter.start_needed(self.sleepers_missing())
        self._summaries.post_due()
        with print_errors("looking what is wrong"):
            self._alerts.tick()
        with print_errors("making the daily backup"):
            self._back_up()

    def sleepers_missing(self) -> int:
        """Return 1 if stay_asleep asks for a worker to wait for the next work and there is none, else 0."""
        return int(self._settings.get("stay_asleep") == "yes" and not self._workers.are_there()
                   and self.next_work() is not None)

    def next_work(self, alone: bool = True, db: Reader | None = None) -> float | None:
        """Return when the next scheduled task is due, or None. With `alone`, rates and schedules count, too.

        `alone` is True for the oldest idle worker: only this one waits for a rate or a schedule.
        """
        dues = [self._claims.next_due(db=db)]
        if alone:
            dues += [self._claims.rate_opens(db), self._schedule_runner.next_due(db)]
        return min((due for due in dues if due is not None), default=None)

    def _is_our_turn(self, caller: str) -> bool:
        """Return True if the last tick is long enough ago. If something is due, a shorter time is enough."""
        now, due = self._clock.now(), self._schedule_runner.next_due()
        usual, soon = ((TICK_PASSING_SECONDS, TICK_SECONDS) if caller in PASSING else
                       (TICK_SECONDS, TICK_SOON_SECONDS))
        least = soon if self._has_more or due is not None and due <= now else usual
        return renew_mark(self._mark, now, least)

    def _promote(self) -> None:
        """Make due tasks pending, and settle the followers of ended tasks."""
        due = self._claims.next_due(of_all=True)
        if due is not None and due <= self._clock.now():
            with self._database.transaction(durable=False) as transaction:
                self._claims.promote(transaction, self._clock.now())

    def _fire_schedules(self) -> None:
        """Add the tasks of due schedules. Now and then compare them with tasks.py and the script folders."""
        now = self._clock.now()
        if self._looks.begin_if_due():
            self._schedules.synchronise()
        self._schedule_runner.fire(now)
        due = self._schedule_runner.next_due() or math.inf
        self._ticks.hasten(max(TICK_SOON_SECONDS, due - now))

    def _back_up(self) -> None:
        """Start the process that makes the daily backup after backup_hour. After a failure start it again."""
        now, hour = self._clock.now(), self._settings.get("backup_hour")
        if not hour:
            return
        last, began = recall(self._database, "daily_backup"), now - 3600 * int(hour)
        state = last or {"at": -math.inf, "done": True}
        age = seconds_since(state["at"], now)
        if age <= began % 86400 and (state["done"] or age < BACKUP_AGAIN_SECONDS):
            return
        error = None if state["done"] else state["error"] or "It was not finished."
        with self._database.transaction() as transaction:
            if recall(transaction, "daily_backup") != last:
                return                  # another process starts it
            remember(transaction, "daily_backup", {
                "at": now, "day": iso(began)[:10], "done": False, "error": error})
        self._starter.start_helper("--backup")

    def _sweep(self) -> None:
        """Remove leftovers of crashes, and expired sessions and login limits, once an hour in one process."""
        now = self._clock.now()
        if not renew_mark(self._database.folder / "sweep.mark", now, SWEEP_SECONDS):
            return
        self._reaper.sweep_locks()
        self._files.clear(now, wholly=True)
        with self._database.transaction(durable=False) as transaction:
            for rows in ("session WHERE expires_at<?", "throttle WHERE until<?",
                         "known_address WHERE until<?"):
                transaction.run("DELETE FROM " + rows, (now - 3600,))
