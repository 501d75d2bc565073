"""An Outlook at one moment, and the courses that it plays from there.

upkeep/forecast.py has the steps.
"""
from __future__ import annotations

import bisect
import collections
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import INTEGER_MAX, PENDING, SCHEDULED
from ..base.time_and_text import iso
from ..store.connection import BY_CLAIM
from ..store.database import Database
from ..tasks.queues import next_start
from ..tasks.followers import lanes

if TYPE_CHECKING:
    from typing import Any, Optional

    from ..base.types import Row
    from .rollup import LatestRun

if TYPE_CHECKING:
    Attempt = tuple[float, str]         # seconds, event
    CrewKey = tuple[str, Optional[str], Optional[str]]  # machine, JSON of its functions, of limits
    Moments = list[str]                 # from, to
    LanePlace = tuple[str, int, str, int, int, int]     # what BEFORE binds
    WaitingLane = list[tuple[int, int, int, "Waiting"]]     # priority, -turn, -id; the last is next
    Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]     # when, serial, what

COURSES, COURSES_LEAST = 200, 20
STARTS_MAX = 10_000             # in all courses: where much waits, fewer are played,
HEADS_FREE = 10                 # and where so many heads of queues are looked at, half of that
STARTS_EACH = 4                 # of a task in a course, on average; some are retried for ever
FAR = 500
COMING_ROWS = 100               # scheduled tasks of a queue and priority that are played
MIX_ROWS = 10_000               # tasks before one are looked at, to know which functions they run
BEFORE_MAX = 200_000            # ... and counted
PROGRESS_LEAST, PROGRESS_SECONDS = 0.05, 10.0   # from when on progress tells how long it takes
TRIED = ("succeeded", "failed", "retried")      # such runs tell how long others will take
UNKNOWN: Sequence[Attempt] = ((math.inf, ""),)
# (a time less than so many seconds ahead, is rounded to so many)
ROUNDED = ((60, 10), (900, 60), (3600, 300), (21600, 900), (86400, 3600), (math.inf, 21600))


class Waiting(NamedTuple):
    """A task that waits: columns of its row."""

    id: int
    owner_id: int
    queue: str
    function: str
    priority: int
    turn: int
    run_at: float | None
    retries_left: int
    max_retries: int
    retry_delay: float
    retry_backoff: float


class Crew(NamedTuple):
    """Workers that may take the same tasks."""

    places: int
    queues: dict[str, Row]
    functions: set[str] | None          # None for any


class Crews(NamedTuple):
    """Who works at one moment, and who will."""

    crews: dict[CrewKey, Crew]
    homes: dict[int, CrewKey]           # the crews of the workers that live
    late: list[tuple[float, CrewKey]]   # workers to come: in how many seconds, of which crew


class Ranges(NamedTuple):
    """When a task begins and ends; None for what is not known."""

    start: Moments | None
    end: Moments | None


WAITING_ROWS = ("SELECT %s FROM task %s WHERE status=? AND queue=? AND priority=? "
                "ORDER BY turn, id LIMIT ?" % (", ".join(Waiting._fields), BY_CLAIM))
BEFORE = ("count(*) FROM (SELECT {1} FROM task {0} WHERE status=0 AND queue=? AND priority>? "
          "UNION ALL SELECT {1} FROM task {0} WHERE status=0 AND queue=? AND priority=? "
          "AND (turn, id)<(?, ?) LIMIT ?) AS found")
COUNT_BEFORE = "SELECT " + BEFORE.format(BY_CLAIM, "1")
MIX_BEFORE = "SELECT function, %s GROUP BY function" % BEFORE.format(BY_CLAIM, "function")


def place_of(task: Waiting) -> LanePlace:
    """Where a task stands in its queue, for BEFORE."""
    return task.queue, task.priority, task.queue, task.priority, task.turn, task.id


def told(values: Iterable[float], now: float) -> Moments | None:
    """[from, to] of moments that are given in seconds from now, rounded if they differ; None if
    they are not known."""
    ordered = sorted(values)
    low, high = (ordered[int(len(ordered) * part)] for part in (0.2, 0.8))
    if high == math.inf:
        return None
    if low == high:
        return [iso(now + low)] * 2
    (_, small), (_, large) = (next(row for row in ROUNDED if ahead < row[0])
                              for ahead in (low, high))
    return [iso(math.floor((now + low) / small) * small),
            iso(math.ceil((now + high) / large) * large)]


def chance(*numbers: int) -> float:
    """From 0 to 1, as if by chance, but always the same for the same two numbers."""
    return hash(numbers + numbers) % 10007 / 10007


def doubt(attempts: Sequence[Attempt]) -> float:
    """By how much the mean of all attempts may differ from that of these, as a logarithm: its
    standard error if they are lognormal, with twice the variance for what is not known of it."""
    logs = [math.log(max(seconds, 0.01)) for seconds, _ in attempts]
    mean = sum(logs) / len(logs)
    variance = sum((one - mean) ** 2 for one in logs) / len(logs)
    return max(1 / len(logs), math.sqrt((2 * variance + variance ** 2) / len(logs)))


class Course:
    """One way in which an Outlook goes on: when tasks begin and end, in seconds from then."""

    def __init__(self, outlook: Outlook, number: int) -> None:
        import random
        gauss = random.Random(number).gauss
        self._outlook, self._number = outlook, number
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self._factors = {name: math.exp(gauss(0, one)) for name, one in outlook.doubts.items()}
        self._at, self._last, self._starts, self._serial = 0.0, "", 0, itertools.count()
        self._events: list[Event] = []
        self._running: collections.Counter[str | int] = collections.Counter()  # of queues, owners
        self._opens: dict[str, float] = {}      # of queues with a rate
        self._free: collections.Counter[CrewKey | None] = collections.Counter({
            key: crew.places for key, crew in outlook.crews.items()})
        self._lanes = {name: list(lane) for name, lane in outlook.lanes.items()}
        self._turns = outlook.turns.copy()
        for name, (opens, _) in outlook.rates.items():
            self._open_later(name, max(0.0, opens - outlook.now))
        for row, crew in outlook.running:
            self._run(self._rest(row), row["id"], crew, row["queue"], row["owner_id"])
        for seconds, crew in outlook.late:
            self._run(seconds, None, crew)
        for task in outlook.coming:
            self._later(max(0.0, (task.run_at or 0.0) - outlook.now), self._promote, task)

    def play(self, most: int) -> Course:
        """Go on until so many tasks have ended, or nothing more happens; the course itself."""
        from heapq import heappop
        self._claim()
        while (self._events and self._events[0][0] < math.inf and len(self.ended) < most
               and self._starts < STARTS_EACH * most):
            self._at, _, happens, what = heappop(self._events)
            happens(*what)
            self._claim()
        return self

    def attempt(self, task: Waiting) -> Attempt:
        """(seconds, event) of the next attempt of a task."""
        tried = task.max_retries - task.retries_left
        known = self._outlook.attempts.get(task.function, UNKNOWN)
        seconds, event = known[int(chance(task.id, self._number + COURSES * tried) * len(known))]
        return seconds * self._factors.get(task.function, 1), event

    def _rest(self, running: Row) -> float:
        """How long a running task (its row) goes on."""
        elapsed: float = max(0.0, self._outlook.now - running["started_at"])
        progress: float = running["progress"] or 0
        luck = chance(running["id"], self._number)
        if progress >= PROGRESS_LEAST and elapsed >= PROGRESS_SECONDS:
            return elapsed * (1 - progress) / progress * (0.7 + 0.7 * luck)
        factor = self._factors.get(running["function"], 1)
        longer = [seconds * factor - elapsed for seconds, _ in self._outlook.attempts.get(
            running["function"], UNKNOWN) if seconds * factor > elapsed]
        # One that is older than all others may get twice as old.
        return longer[int(luck * len(longer))] if longer else elapsed * luck / (1 - luck)

    def _later(self, seconds: float, happens: Callable[..., None], *what: Any) -> None:
        from heapq import heappush
        heappush(self._events, (self._at + seconds, next(self._serial), happens, what))

    def _open_later(self, name: str, moment: float) -> None:
        """The rate of a queue lets nothing start before this moment."""
        self._opens[name] = moment
        self._later(moment - self._at, self._end, None, None)

    def _claim(self) -> None:
        """Whoever is free takes the next task, as Claims.next_heads() says."""
        for key, crew in self._outlook.crews.items():
            while self._free[key] > 0:
                heads = [head for head in (self._head(one, crew) for one in self._lanes
                                           if one in crew.queues) if head]
                if not heads:
                    break
                *_, self._last, place = min(heads)
                self._begin(self._lanes[self._last].pop(place)[-1], key)

    def _head(self, name: str, crew: Crew) -> tuple[int, bool, str, int] | None:
        """How urgent the next task of a queue is, and where it is; None if it may not start."""
        lane, most = self._lanes[name], crew.queues[name]["max_running"]
        if (not lane or self._opens.get(name, 0) > self._at
                or (most is not None and self._running[name] >= most)):
            return None
        place = len(lane) - 1
        while place >= 0 and self._may_not_start(lane[place][-1], crew):
            place -= 1
        return (-lane[place][0], name <= self._last, name, place) if place >= 0 else None

    def _may_not_start(self, task: Waiting, crew: Crew) -> bool:
        return (self._running[task.owner_id] >= self._outlook.limits.get(task.owner_id, math.inf)
                or bool(crew.functions and task.function not in crew.functions))

    def _begin(self, task: Waiting, crew: CrewKey) -> None:
        (seconds, event), name = self.attempt(task), task.queue
        ending: int | None = task.id
        self.began.setdefault(task.id, self._at)
        self._starts += 1
        if event in ("failed", "retried") and task.retries_left > 0:
            tried, ending = min(task.max_retries - task.retries_left, 100), None
            pause = min(task.retry_delay * task.retry_backoff ** tried, 30 * 86400)
            self._later(seconds + 1.1 * pause, self._promote,
                        task._replace(retries_left=task.retries_left - 1))
        if name in self._opens:
            pause = self._outlook.rates[name][1]
            self._open_later(name, max(self._opens[name], self._at) + pause)
        self._run(seconds, ending, crew, name, task.owner_id)

    def _run(self, seconds: float, task_id: int | None, crew: CrewKey | None,
             *counted: int | str) -> None:
        for one in counted:
            self._running[one] += 1
        self._free[crew] -= 1
        self._later(seconds, self._end, task_id, crew, *counted)

    def _end(self, task_id: int | None, crew: CrewKey | None, *counted: int | str) -> None:
        for one in counted:
            self._running[one] -= 1
        self._free[crew] += 1
        if task_id is not None:
            self.ended[task_id] = self._at

    def _promote(self, task: Waiting) -> None:
        """A task becomes pending, and gets its turn as next_turn() says."""
        lane, key = self._lanes[task.queue], (task.owner_id, task.queue, task.priority)
        place = bisect.bisect(lane, (task.priority + 1,)) - 1
        lowest = -lane[place][1] if place >= 0 and lane[place][0] == task.priority else 0
        self._turns[key] = max(lowest, self._turns[key]) + 1
        bisect.insort(lane, (task.priority, -self._turns[key], -task.id, task))


class Outlook:
    """What runs, what waits and who works at one moment, and the courses played from there. `guest`
    is a task that nobody has added yet."""

    def __init__(self, database: Database, runs: dict[str, list[LatestRun]], crews: Crews,
                 guest: Waiting | None = None) -> None:
        self._database, self.now = database, database.clock.now()
        self._told: dict[int, Ranges] = {}              # of tasks
        self._empty: dict[str, Moments | None] = {}     # of queues
        self.crews, self.late = crews.crews, crews.late
        self.attempts: dict[str, list[Attempt]] = {}
        for name in runs:
            tried = [(seconds, event) for _, _, event, seconds in runs[name] if event in TRIED]
            if tried:
                self.attempts[name] = tried
        self.queues = {name: row for crew in self.crews.values()
                       for name, row in crew.queues.items()}
        self.running = [(row, crews.homes.get(row["worker_id"])) for row in database.all(
            "SELECT id, owner_id, queue, function, worker_id, started_at, progress FROM task %s "
            "WHERE status=1" % BY_CLAIM)]
        self.limits: dict[int, int] = dict(map(tuple, database.all(
            "SELECT id, max_running FROM user WHERE max_running IS NOT NULL")))
        self.coming = self._read(SCHEDULED, COMING_ROWS)
        waiting = self._read(PENDING, FAR + 1) + ([guest] if guest else [])
        self.tasks = {task.id: task for task in self.coming + waiting}
        self.known = self.tasks.keys() | {row["id"] for row, _ in self.running}
        self._prepare(waiting)
        self._play()

    def _read(self, status: int, most: int) -> list[Waiting]:
        """The first tasks of a status in each queue that somebody serves, for each priority."""
        return [Waiting(*row) for lane in lanes(self._database, status) if lane[0] in self.queues
                for row in self._database.all(WAITING_ROWS, (status, *lane, most))]

    def _prepare(self, waiting: list[Waiting]) -> None:
        """What each course begins with."""
        self.lanes: dict[str, WaitingLane] = {
            name: sorted((task.priority, -task.turn, -task.id, task)
                         for task in waiting if task.queue == name)
            for name in sorted({task.queue for task in self.tasks.values()})}
        self.turns = collections.Counter({      # the last of each owner's, who come in order
            (task.owner_id, task.queue, task.priority): task.turn for task in waiting})
        self.rates = {name: next_start(row, self.now) for name, row in self.queues.items()
                      if row["rate_count"] is not None}
        self.doubts = {name: doubt(known) for name, known in sorted(self.attempts.items())}

    def _play(self) -> None:
        most = STARTS_MAX / (1 + len(self.crews) * len(self.lanes) / HEADS_FREE)
        count = max(COURSES_LEAST, min(COURSES, int(most / max(1, len(self.known)))))
        most = int(most / count)
        self.is_whole = len(self.known) <= min(FAR, most)   # nothing is left out
        self.courses = [Course(self, number).play(most) for number in range(count)]

    def places(self, name: str) -> int:
        """How many workers serve a queue."""
        return sum(crew.places for crew in self.crews.values() if name in crew.queues)

    def of(self, task_id: int) -> Ranges:
        """Tell when a task begins and ends."""
        if task_id not in self._told:
            self._told[task_id] = Ranges(
                told([one.began.get(task_id, math.inf) for one in self.courses], self.now),
                told([one.ended.get(task_id, math.inf) for one in self.courses], self.now))
        return self._told[task_id]

    def of_far(self, task: Waiting) -> Ranges:
        """The ranges in which a task that was not played begins and ends."""
        starts = list(self._reach(task.queue, self._mix(place_of(task))))
        ends = [start + course.attempt(task)[0] for start, course in zip(starts, self.courses)]
        return Ranges(told(starts, self.now), told(ends, self.now))

    def empty_at(self, name: str) -> Moments | None:
        """The range in which a queue will have ended all that is in it now."""
        if name not in self._empty:
            ids: list[int] = [task.id for *_, task in self.lanes.get(name, ())]
            ids += [row["id"] for row, _ in self.running if row["queue"] == name]
            self._empty[name] = told([
                max(course.ended.get(one, math.inf) for one in ids) for course in self.courses],
                self.now) if ids else None
            if not (self._empty[name] or self.is_whole):
                behind_all = (name, -INTEGER_MAX, name, -INTEGER_MAX, 0, 0)
                self._empty[name] = told(self._reach(name, self._mix(behind_all)), self.now)
        return self._empty[name]

    def _reach(self, name: str, mix: dict[str, int]) -> Iterator[float]:
        """When so many tasks of a queue will have begun, {function: how many}, in each course if it
        goes on at its pace. Infinite if one of them is not known."""
        means = {function: 0.01 + sum(seconds for seconds, _ in known) / len(known)
                 for function, known in self.attempts.items()}
        work = sum(count * means.get(function, math.inf) for function, count in mix.items())
        for course in self.courses:
            own = [(moment, means.get(self.tasks[task_id].function, 0))
                   for task_id, moment in course.began.items()
                   if self.tasks[task_id].queue == name]
            done = sum(mean for _, mean in own[1:])     # 0: what is more urgent keeps it back
            is_known = done and work < math.inf
            yield own[0][0] + (own[-1][0] - own[0][0]) * work / done if is_known else math.inf

    def _mix(self, place: LanePlace) -> dict[str, int]:
        """{function: how many} tasks stand before a place in their queue."""
        count: int = self._database.value(COUNT_BEFORE, (*place, BEFORE_MAX))
        mix: dict[str, int] = dict(map(tuple, self._database.all(MIX_BEFORE, (*place, MIX_ROWS))))
        looked_at = sum(mix.values())
        return {one: round(number * count / looked_at) for one, number in mix.items()}
