"""Forecasts: when tasks begin and end, when a queue is empty.

When a task will begin and end, and when a queue will be empty: a range that mostly holds, or
nothing and the reason.

1. Metrics know how long the latest attempts of each function took.
2. An Outlook is what runs, what waits, and the crews that work at one moment. It plays COURSES
   ways on from there, each a Course: in the order of claims, within the queues' limits, with
   retries. The middle of them is told, from the 20th percentile to the 80th.
3. Chance is bound to the ids of tasks, so that asking again changes nothing.
4. What lies behind the FAR tasks that are played begins when their pace leads there.
5. How many stand before a task in its queue is counted, whatever is known of them.
"""
from __future__ import annotations

import collections
import json
import math
import threading

from ..base.head import TYPE_CHECKING
from ..base.limits import (CACHE_SECONDS, COUNT_MAX, INTEGER_MAX, PENDING, RUNNING, SCHEDULED,
                           WAITING)
from ..base.time_and_text import iso
from ..store.database import Database
from ..store.settings import Settings, recall
from ..tasks.queues import Queues
from ..tasks.followers import ENDED, next_turn
from ..tasks.claims import Claims
from .tick_history import Rhythm
from .worker_modes import Modes
from .metrics import Metrics
from .outlook import COUNT_BEFORE, Crew, Crews, Outlook, Waiting, place_of

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .outlook import CrewKey, Moments

SHARE, SHARE_FOR_NEW = 0.03, 0.1    # of a process's time goes into them at most; for new tasks
SLOW_TIMES, SLOW_SECONDS, SLOW_ATTEMPTS = 3, 60.0, 20


def forecast_json(before: int | None = None, start: Moments | None = None,
                  end: Moments | None = None, reason: str | None = None,
                  slow: bool = False) -> JsonObject:
    """A forecast as the API tells it."""
    return {"before": before, "expected_start": start, "expected_end": end,
            "reason": reason, "slow": slow}


class Forecast:
    """Tells when tasks begin and end and queues are empty, as far as that can be known."""

    def __init__(self, database: Database, settings: Settings, claims: Claims, queues: Queues,
                 modes: Modes, rhythm: Rhythm, metrics: Metrics) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._queues, self._modes, self._rhythm, self._metrics = queues, modes, rhythm, metrics
        self._clock, self._lock = database.clock, threading.Lock()
        self._outlook: Outlook | None = None
        self._lists_before = False
        self._until = self._soon = self._guests_from = -math.inf

    def of_task(self, row: Row) -> JsonObject | None:
        """What is told of a task (its row); None once it has ended."""
        if row["status"] in ENDED:
            return None
        if row["status"] == WAITING:
            return forecast_json(reason="It waits for other tasks.")
        if row["status"] == RUNNING:
            return self._of_running(row, self._look(row))
        return self._of_waiting(Waiting(*(row[name] for name in Waiting._fields)), row["status"],
                                self._look(row))

    def of_new(self, owner_id: int, function: str, options: JsonObject) -> JsonObject:
        """What would be told of a task if it were added now."""
        turn = next_turn(self._database, {"owner_id": owner_id, **options})
        guest = Waiting(id=INTEGER_MAX, owner_id=owner_id, function=function, turn=turn,
                        run_at=None, retries_left=options["max_retries"],
                        **{name: options[name] for name in Waiting._fields if name in options})
        return self._of_waiting(guest, PENDING, self._look_for_guest(guest) or self._look())

    def of_list(self, shown: list[JsonObject]) -> list[JsonObject]:
        """Tasks (their JSON) with the ranges in which pending ones begin, if they were played: the
        list is asked for often. A process that is new may be CGI's, and plays nothing for it."""
        pending = [one for one in shown if one["status"] == "pending"]
        if pending and self._lists_before:
            outlook = self._look()
            for one in pending:
                one["expected_start"] = outlook.of(one["id"]).start
        self._lists_before = True
        return shown

    def of_queue(self, shown: JsonObject) -> JsonObject:
        """A queue (its JSON) with the range in which all that is in it now will have ended."""
        name, empty_at = shown["name"], None
        if shown["pending"] or shown["running"]:
            outlook = self._look()
            empty_at = outlook.empty_at(name) if outlook.places(name) else None
        return {**shown, "empty_at": empty_at}

    def _of_running(self, row: Row, outlook: Outlook) -> JsonObject:
        name, elapsed = row["function"], max(0.0, self._clock.now() - row["started_at"])
        end = outlook.of(row["id"]).end
        known = sorted(seconds for seconds, event in outlook.attempts.get(name, ())
                       if event == "succeeded")
        slow = len(known) >= SLOW_ATTEMPTS and elapsed > max(
            SLOW_SECONDS, SLOW_TIMES * known[int(len(known) * 0.95)])
        if known and elapsed > known[-1] and not row["progress"]:
            return forecast_json(reason="It runs longer than the latest ones did.", slow=slow)
        return forecast_json(None, None, end, None if end else self._unknown(name, outlook), slow)

    def _of_waiting(self, task: Waiting, status: int, outlook: Outlook) -> JsonObject:
        before = None if status == SCHEDULED else self._database.value(
            COUNT_BEFORE, (*place_of(task), COUNT_MAX))
        if not outlook.places(task.queue):
            code, words = self._queues.blocked(task.queue, self._claims.machine)
            is_said = code in ("paused", "external", "machines")
            return forecast_json(before, reason=words if is_said else "Nobody works at the moment.")
        start, end = outlook.of(task.id)
        if status == SCHEDULED:         # one that is far away is not played
            return forecast_json(None, start or [iso(task.run_at or 0.0)] * 2, end)
        if not end and not (outlook.is_whole and task.id in outlook.known):
            start, end = outlook.of_far(task)
        return forecast_json(before, start, end,
                             None if end else self._unknown(task.function, outlook))

    @staticmethod
    def _unknown(function: str, outlook: Outlook) -> str:
        """Why something is not known; functions of others may be secret."""
        return "It is not known yet how long %s." % (
            "tasks before it take" if function in outlook.attempts else function + " takes")

    def _look(self, row: Row | None = None) -> Outlook:
        """The Outlook of lately; a new one, mostly, if a task was added since."""
        with self._lock:
            began, known = self._clock.monotonic(), self._outlook
            if known is None or began > self._until or (
                    row and began > self._soon and known.is_whole and row["id"] not in known.known
                    and (row["status"] == RUNNING or known.places(row["queue"]))):
                known, ended = self._read(), self._clock.monotonic()
                self._outlook = known
                self._soon = ended + (ended - began) / SHARE_FOR_NEW
                self._until = ended + max(CACHE_SECONDS, (ended - began) / SHARE)
            return known

    def _look_for_guest(self, guest: Waiting) -> Outlook | None:
        """An Outlook with a task that is not added yet; None while others took their share of time."""
        with self._lock:
            began = self._clock.monotonic()
            if began < self._guests_from:
                return None
            outlook = self._read(guest)
            ended = self._clock.monotonic()
            self._guests_from = ended + (ended - began) / SHARE_FOR_NEW
            return outlook

    def _read(self, guest: Waiting | None = None) -> Outlook:
        return Outlook(self._database, self._metrics.runs(), self._crews(), guest)

    def _crews(self) -> Crews:
        homes: dict[int, CrewKey] = {
            worker_id: (machine, functions, limits)
            for worker_id, machine, functions, limits in self._database.all(
                "SELECT worker.id, machine, CASE mode WHEN 'remote' THEN functions END, limits "
                "FROM worker LEFT JOIN token ON token.id=token_id")}
        late: list[tuple[float, CrewKey]] = []
        here: CrewKey = (self._claims.machine, None, None)
        sizes = collections.Counter(homes.values())
        mode, cron = self._modes.decide().mode, self._rhythm.visitor("cron")
        lives = sum(size for (_, functions, _), size in sizes.items() if functions is None)
        room = self._settings.get("NbMaxWorker") - lives
        if room < 0 or (mode == "detached" and (lives or not recall(
                self._database, ".start_failure"))):
            sizes[here] += room
        elif mode == "cron" and room and not lives and cron and cron["comes"]:
            sizes[here], comes = 1, cron["last_at"] + (cron["period"] or 60.0)
            late.append((max(0.0, comes - self._clock.now()), here))
        return Crews({key: self._crew(max(0, size), *key) for key, size in sizes.items()}, homes, late)

    def _crew(self, places: int, machine: str, functions: str | None, limits: str | None) -> Crew:
        allowed = json.loads(limits or "{}").get("queues")
        return Crew(places, {queue["name"]: queue for queue in self._queues.open(
            machine, functions is not None) if allowed is None or queue["name"] in allowed},
            {one["name"] for one in json.loads(functions)} if functions else None)
