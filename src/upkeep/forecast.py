"""Forecasts: when tasks begin and end, when a queue is empty, or why that is unknown.

A Plan (upkeep/plan.py) is used for CACHE_SECONDS, or longer if planning would take more than SHARE of the
process's time. The tasks before a task in its queue are counted anew for each forecast.
"""
from __future__ import annotations

import collections
import json
import math
import threading

from ..base.head import TYPE_CHECKING
from ..base.limits import CACHE_SECONDS, COUNT_MAX, INTEGER_MAX, PENDING, RUNNING, SCHEDULED, WAITING
from ..store.database import Database
from ..store.state import recall
from ..store.settings import Settings
from ..tasks.queues import Queues
from ..tasks.followers import ENDED, next_turn
from ..tasks.claims import Claims
from .tick_history import TickHistory
from .worker_modes import Modes
from .metrics import Metrics
from .plan import COUNT_BEFORE, Moment, Plan, QueuedTask, WorkerSlot, before_values

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .plan import CrewKey, Range

SHARE = 0.03                    # largest share of a process's time for plans
# A task is slow if it runs for more than SLOW_SECONDS and SLOW_TIMES the 95th percentile of its function. The
# percentile needs SLOW_ATTEMPTS successful attempts.
SLOW_TIMES, SLOW_SECONDS, SLOW_ATTEMPTS = 3, 60.0, 20
LONGER_SECONDS = 5.0            # added to the longest known time, before a task counts as longer


def forecast_json(before: int | None = None, start: Range | None = None, end: Range | None = None,
                  reason: str | None = None, slow: bool = False) -> JsonObject:
    """Return a forecast as the API gives it."""
    return {"before": before, "expected_start": start, "expected_end": end,
            "reason": reason, "slow": slow}


class Forecast:
    """The forecasts of tasks and queues, as far as they are known."""

    def __init__(self, database: Database, settings: Settings, claims: Claims, queues: Queues,
                 modes: Modes, tick_history: TickHistory, metrics: Metrics) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._queues, self._modes, self._tick_history, self._metrics = queues, modes, tick_history, metrics
        self._clock, self._lock = database.clock, threading.Lock()
        self._plan: Plan | None = None
        self._until = -math.inf
        self._lists_before = False

    def of_task(self, row: Row) -> JsonObject | None:
        """Return the forecast of a task (its row); None once it has ended."""
        if row["status"] in ENDED:
            return None
        if row["status"] == WAITING:
            return forecast_json(reason="It waits for other tasks.")
        if row["status"] == RUNNING:
            return self._of_running(row, self._current())
        return self._of_queued(QueuedTask(*(row[name] for name in QueuedTask._fields)), row["status"],
                                row["run_at"])

    def of_new(self, owner_id: int, function: str, options: JsonObject) -> JsonObject:
        """Return the forecast that a task would have if it were added now."""
        turn = next_turn(self._database, {"owner_id": owner_id, **options})
        new = QueuedTask(id=INTEGER_MAX, owner_id=owner_id, function=function, turn=turn,
                      retries_left=options["max_retries"],
                      **{name: options[name] for name in QueuedTask._fields if name in options})
        return self._of_queued(new, PENDING, None)

    def of_list(self, shown: list[JsonObject]) -> list[JsonObject]:
        """Add the expected start to the planned tasks of a list (their JSON).

        A process makes no plan for its first list: under CGI it answers only one request.
        """
        pending = [task for task in shown if task["status"] == "pending"]
        if pending and self._lists_before:
            plan = self._current()
            for task in pending:
                expected = plan.planned.get(task["id"])
                task["expected_start"] = expected and expected.start.range(plan.now)
        self._lists_before = True
        return shown

    def of_queue(self, shown: JsonObject) -> JsonObject:
        """Return a queue (its JSON) with the time at which all its present tasks will have ended."""
        empty_at: Moment | None = None
        plan = self._current() if shown["pending"] or shown["running"] else None
        if plan and shown["name"] in plan.queues:
            empty_at = plan.empty_at(shown["name"])
        return {**shown, "empty_at": plan and empty_at and empty_at.range(plan.now)}

    def _of_running(self, row: Row, plan: Plan) -> JsonObject:
        elapsed = max(0.0, self._clock.now() - row["started_at"])
        times = sorted(run.seconds for run in plan.runs.get(row["function"], ())
                       if run.status == "succeeded")
        slow = len(times) >= SLOW_ATTEMPTS and elapsed > max(
            SLOW_SECONDS, SLOW_TIMES * times[int(len(times) * 0.95)])
        if times and elapsed > times[-1] + LONGER_SECONDS and not row["progress"]:
            return forecast_json(
                reason="It runs longer than the newest tasks of this function did.", slow=slow)
        shown = plan.end_of_running(row).range(plan.now)
        return forecast_json(None, None, shown, None if shown else self._unknown(row["function"], plan),
                             slow)

    def _of_queued(self, task: QueuedTask, status: int, run_at: float | None) -> JsonObject:
        plan = self._current()
        before = None if status == SCHEDULED else self._database.value(
            COUNT_BEFORE, (*before_values(task), COUNT_MAX))
        if task.queue not in plan.queues:
            code, words = self._queues.blocked(task.queue, self._claims.machine)
            is_said = code in ("paused", "external", "machines")
            return forecast_json(before, reason=words if is_said else "No worker runs at the moment.")
        if status == SCHEDULED:
            start, end = plan.of_scheduled(task, max(0.0, (run_at or 0.0) - plan.now))
        else:
            start, end = plan.of_pending(task)
        shown = end.range(plan.now)
        return forecast_json(before, start.range(plan.now), shown,
                             None if shown else self._unknown(task.function, plan))

    @staticmethod
    def _unknown(function: str, plan: Plan) -> str:
        """Return why a time is unknown. Other users' functions may be secret."""
        return "The running time of %s is not known yet." % (
            "tasks before it" if function in plan.runs else function)

    def _current(self) -> Plan:
        """Return the plan; make a new one if it is too old."""
        with self._lock:
            began = self._clock.monotonic()
            if self._plan is None or began > self._until:
                self._plan = self._read()
                ended = self._clock.monotonic()
                self._until = ended + max(CACHE_SECONDS, (ended - began) / SHARE)
            return self._plan

    def _read(self) -> Plan:
        """Make a plan for the living workers and for those that will be started."""
        crew_of_worker: dict[int, CrewKey] = {
            worker_id: (machine, functions, limits)
            for worker_id, machine, functions, limits in self._database.all(
                "SELECT worker.id, machine, CASE mode WHEN 'remote' THEN functions END, limits "
                "FROM worker LEFT JOIN token ON token.id=token_id")}
        here: CrewKey = (self._claims.machine, None, None)
        sizes, come = collections.Counter(crew_of_worker.values()), 0.0
        mode, cron = self._modes.decide().mode, self._tick_history.visitor("cron")
        lives = sum(size for (_, functions, _), size in sizes.items() if functions is None)
        room = self._settings.get("NbMaxWorker") - lives
        if room < 0 or (mode == "detached" and (lives or not recall(
                self._database, "start_failure"))):
            sizes[here] += room
        elif mode == "cron" and room and not lives and cron and cron["comes"]:
            sizes[here] = 1
            come = max(0.0, cron["last_at"] + (cron["period"] or 60.0) - self._clock.now())
        crews = {key: self._crew(size, *key) for key, size in sizes.items()}
        for place in crews[here] if come else ():
            place.free = Moment(come)
        return Plan(self._database, self._metrics.runs(), crews, crew_of_worker)

    def _crew(self, size: int, machine: str, functions: str | None, limits: str | None) -> list[WorkerSlot]:
        allowed = json.loads(limits or "{}").get("queues")
        queues = {queue["name"]: queue for queue in self._queues.served_by(
            self._database, machine, functions is not None)
                  if allowed is None or queue["name"] in allowed}
        names = {each["name"] for each in json.loads(functions)} if functions else None
        return [WorkerSlot(queues, names) for _ in range(size)]
