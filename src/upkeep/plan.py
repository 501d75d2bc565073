"""The plan of running and pending tasks: when each will begin and end.

1. Metrics keep the times of the latest attempts of each function. RunTimes has their mean, their variance
   and the standard error of the mean.
2. A Plan goes through the first PLANNED_ROWS tasks of each queue, in the order of claims. The limits of
   queue and owner say when a task may start. Of the workers that are free by then, it gets the one that
   became free last. If none is free by then, it gets the first that becomes free. A task takes the mean time
   of its function's attempts, multiplied by the expected number of attempts.
3. The variances of the tasks of a worker are added. The variance of a start is divided by the number of
   workers that may share the tasks before it. The time until a start or an end is assumed to be lognormal
   (the method of Fenton and Wilkinson). A forecast is the range from its 20th to its 80th percentile.
4. The start of a task behind the planned ones is extrapolated from the queue's pace.
"""
from __future__ import annotations

import bisect
import collections
import math
from collections.abc import Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import INTEGER_MAX
from ..base.time_and_text import iso
from ..store.connection import BY_CLAIM
from ..store.database import Database
from ..tasks.queues import next_start

if TYPE_CHECKING:
    from typing import Optional

    from ..base.types import Row
    from .rollup import LatestRun

if TYPE_CHECKING:
    # Workers with the same machine, functions (JSON) and limits (JSON) are a crew.
    CrewKey = tuple[str, Optional[str], Optional[str]]
    Range = list[str]                   # [from, to], as RFC 3339

PLANNED_ROWS = 500                 # tasks of each queue that are planned
MIX_ROWS = 10_000               # maximum of tasks ahead of a task that are counted by function
BEFORE_MAX = 200_000            # maximum of tasks ahead of a task that are counted
# After this progress and running time (seconds), the end of a task is predicted from its progress.
PROGRESS_LEAST, PROGRESS_SECONDS = 0.05, 10.0
PROGRESS_DEVIATION = 0.2            # standard deviation of that prediction, as a share of the remaining time
TRIED = ("succeeded", "failed", "retried")      # statuses of the attempts whose times are used
PERCENTILE = 0.8416             # standard deviations from the median to the 20th or 80th percentile
PAUSE_MAX = 30 * 86400          # longest predicted pause before a retry, in seconds
# Pairs (limit, step). An end of a range that is less than `limit` seconds ahead is rounded to `step`
# seconds: the earlier end down, the later end up.
ROUNDED = ((60, 10), (900, 60), (3600, 300), (21600, 900), (86400, 3600), (math.inf, 21600))


class QueuedTask(NamedTuple):
    """A pending or scheduled task: columns of its row."""

    id: int
    owner_id: int
    queue: str
    function: str
    priority: int
    turn: int
    retries_left: int
    max_retries: int
    retry_delay: float
    retry_backoff: float


PENDING_ROWS = ("SELECT %s FROM task %s WHERE status=PENDING AND queue=? ORDER BY priority DESC, turn, id "
                "LIMIT ?" % (", ".join(QueuedTask._fields), BY_CLAIM))
RUNNING_ROWS = ("SELECT id, owner_id, queue, function, worker_id, started_at, progress FROM task %s "
                "WHERE status=RUNNING" % BY_CLAIM)
BEFORE = ("count(*) FROM (SELECT {1} FROM task {0} WHERE status=PENDING AND queue=? AND priority>? "
          "UNION ALL SELECT {1} FROM task {0} WHERE status=PENDING AND queue=? AND priority=? "
          "AND (turn, id)<(?, ?) LIMIT ?) AS found")
COUNT_BEFORE = "SELECT " + BEFORE.format(BY_CLAIM, "1")
MIX_BEFORE = "SELECT function, %s GROUP BY function" % BEFORE.format(BY_CLAIM, "function")


class RunTimes(NamedTuple):
    """The times of a function's attempts in seconds, and the share that did not succeed."""

    mean: float
    variance: float
    standard_error: float                        # standard error of the mean
    unsuccessful: float


class Moment(NamedTuple):
    """A predicted moment in seconds from now, with its uncertainty."""

    at: float = 0.0
    variance: float = 0.0
    standard_error: float = 0.0                  # standard error of `at`

    def after(self, times: RunTimes, attempts: float = 1.0, pause: float = 0.0) -> Moment:
        """Return the end of attempts that begin at this moment; `pause` is the sum of their pauses."""
        return Moment(self.at + attempts * times.mean + pause,
                      self.variance + attempts * times.variance,
                      self.standard_error + attempts * times.standard_error)

    def range(self, now: float) -> Range | None:
        """Return [from, to], rounded outwards if they differ; None if the moment is not known."""
        if self.at == math.inf:
            return None
        sigma = math.sqrt(math.log(1 + (self.variance + self.standard_error ** 2) / max(self.at, 0.01) ** 2))
        low, high = (self.at * math.exp(way * PERCENTILE * sigma - sigma ** 2 / 2) for way in (-1, 1))
        if low == high:
            return [iso(now + low)] * 2
        small, large = (next(to for less, to in ROUNDED if ahead < less) for ahead in (low, high))
        return [iso(math.floor((now + low) / small) * small),
                iso(math.ceil((now + high) / large) * large)]


NOW, NEVER = Moment(), Moment(math.inf)
UNKNOWN = RunTimes(math.inf, 0.0, 0.0, 0.0)


class WorkerSlot:
    """A present or future worker: its queues, its functions (None: all), and when it is free."""

    def __init__(self, queues: dict[str, Row], functions: set[str] | None, free: Moment = NOW) -> None:
        self.queues, self.functions, self.free = queues, functions, free

    def serves(self, task: QueuedTask) -> bool:
        """Return True if the worker may claim a task."""
        return task.queue in self.queues and (
            self.functions is None or task.function in self.functions)


class Choice(NamedTuple):
    """The start of a task, its worker, and how many workers may work on the tasks before it."""

    start: Moment
    slot: WorkerSlot | None
    sharing: int = 1


class Expected(NamedTuple):
    """The predicted start and end of a task."""

    start: Moment
    end: Moment


def order_of(task: QueuedTask) -> tuple[int, int, int]:
    """Return the sort key of a task: claims take the tasks of a queue in this order."""
    return -task.priority, task.turn, task.id


def before_values(task: QueuedTask) -> tuple[str, int, str, int, int, int]:
    """Return the values that BEFORE binds for a task, except the limit."""
    return task.queue, task.priority, task.queue, task.priority, task.turn, task.id


def times_of(seconds: Sequence[float], unsuccessful: int = 0) -> RunTimes:
    """Return the RunTimes of attempts.

    Equal times, too, have a variance: one deviation of half the mean is added to those of the attempts. The
    divisor stays the number of attempts.
    """
    count, mean = len(seconds), sum(seconds) / len(seconds)
    variance = (sum((each - mean) ** 2 for each in seconds) + (mean / 2) ** 2) / count
    return RunTimes(mean, variance, math.sqrt(variance / count), unsuccessful / count)


class Plan:
    """A plan of the running and pending tasks at one moment: when they will start and end."""

    def __init__(self, database: Database, runs: dict[str, list[LatestRun]],
                 crews: dict[CrewKey, list[WorkerSlot]], crew_of_worker: dict[int, CrewKey]) -> None:
        self._database, self.now = database, database.clock.now()
        tried = {name: [run for run in latest if run.status in TRIED] for name, latest in runs.items()}
        self.runs = {name: latest for name, latest in tried.items() if latest}
        self._times = {name: times_of([run.seconds for run in latest],
                                      sum(run.status != "succeeded" for run in latest))
                       for name, latest in self.runs.items()}
        self.slots = [slot for crew in crews.values() for slot in crew]
        self.queues = {name: row for slot in self.slots for name, row in slot.queues.items()}
        max_running: dict[str | int, int | None] = {
            name: row["max_running"] for name, row in self.queues.items()}
        max_running.update(map(tuple, database.all("SELECT id, max_running FROM user")))
        # For each limited queue (name) and owner (id): when each of its max_running slots becomes free.
        self._limits = {key: [NOW] * count for key, count in max_running.items()
                        if count is not None and count < len(self.slots)}
        self._rates = {name: next_start(row, self.now) for name, row in self.queues.items()
                       if row["rate_count"] is not None}
        self._rate_allows_at = {name: Moment(max(0.0, rate.at - self.now))
                                for name, rate in self._rates.items()}
        self._ends: dict[str, list[Moment]] = collections.defaultdict(list)     # of running tasks, by queue
        for row in database.all(RUNNING_ROWS):
            self._add_running(row, crews.get(crew_of_worker.get(row["worker_id"], ("", None, None)), []))
        self._plan({name: [QueuedTask(*row) for row in database.all(PENDING_ROWS, (name, PLANNED_ROWS))]
                    for name in sorted(self.queues)})

    def _add_running(self, row: Row, crew: list[WorkerSlot]) -> None:
        """Store when a running task ends. One free slot of its worker's crew counts as taken until then."""
        end = self.end_of_running(row)
        self._ends[row["queue"]].append(end)
        self._hold(row["queue"], row["owner_id"], end)
        for slot in [slot for slot in crew if slot.free == NOW][:1]:
            slot.free = end

    def end_of_running(self, row: Row) -> Moment:
        """Return when a running task, given by its row, will end. It may be newer than the plan."""
        elapsed: float = max(0.0, self.now - row["started_at"])
        progress: float = row["progress"] or 0
        remaining_times = [run.seconds - elapsed for run in self.runs.get(row["function"], ())
                  if run.seconds > elapsed]
        if progress >= PROGRESS_LEAST and elapsed >= PROGRESS_SECONDS:
            remaining = elapsed * (1 - progress) / progress
            return Moment(remaining, (PROGRESS_DEVIATION * remaining) ** 2)
        if row["function"] not in self.runs:
            return NEVER
        # A task that ran longer than all known attempts is assumed to need as long again.
        return NOW.after(times_of(remaining_times or [elapsed]))

    def _plan(self, lanes: dict[str, list[QueuedTask]]) -> None:
        """Give tasks to workers, by priority. Queues take turns at the same priority."""
        self.lanes, self.planned = lanes, {}
        self.partly_read = {name for name, lane in lanes.items() if len(lane) == PLANNED_ROWS}
        lowest_planned = max((lanes[name][-1].priority for name in self.partly_read), default=-math.inf)
        ranks: collections.Counter[tuple[str, int]] = collections.Counter()
        order = []
        for task in (task for lane in lanes.values() for task in lane):
            ranks[task.queue, task.priority] += 1
            order.append((-task.priority, ranks[task.queue, task.priority], task.queue, task))
        for *_, task in sorted(order):
            if task.priority < lowest_planned:   # unread tasks of another queue may come first
                self.planned[task.id] = Expected(NEVER, NEVER)
                continue
            start, slot, sharing = self._choose(task)
            self.planned[task.id] = self._expect(task, start, sharing)
            if slot:
                slot.free = start.after(self._times.get(task.function, UNKNOWN),
                                        self._expected_attempts(task)[0])
                self._hold(task.queue, task.owner_id, slot.free)
            if task.queue in self._rate_allows_at:
                interval = self._rates[task.queue].interval
                self._rate_allows_at[task.queue] = start._replace(at=start.at + interval)

    def _choose(self, task: QueuedTask) -> Choice:
        """Choose the worker of a task that is claimed after all tasks planned so far."""
        limits = [self._limits[key] for key in (task.queue, task.owner_id) if key in self._limits]
        ready = max([NOW, self._rate_allows_at.get(task.queue, NOW), *map(min, limits)])
        serving = sorted((slot for slot in self.slots if slot.serves(task)),
                         key=lambda slot: slot.free)
        if not serving:
            return Choice(NEVER, None)
        slot = ([slot for slot in serving if slot.free <= ready] or serving[:1])[-1]
        return Choice(max(ready, slot.free), slot, min([len(serving), *map(len, limits)]))

    def _hold(self, queue: str, owner_id: int, end: Moment) -> None:
        """Count a task against the limits of its queue and its owner until it ends."""
        for ends in [self._limits[key] for key in (queue, owner_id) if key in self._limits]:
            ends[ends.index(min(ends))] = end

    def _expected_attempts(self, task: QueuedTask) -> tuple[float, float]:
        """Return how many attempts a task takes on average, and the sum of the pauses between them."""
        chance, attempts, pauses = 1.0, 1.0, 0.0
        unsuccessful = self._times.get(task.function, UNKNOWN).unsuccessful
        tried = task.max_retries - task.retries_left
        for number in range(tried, min(task.max_retries, tried + 100)) if unsuccessful else ():
            chance *= unsuccessful
            attempts += chance
            pause = task.retry_delay * task.retry_backoff ** min(number, 100)
            pauses += chance * min(1.1 * pause, PAUSE_MAX)
        return attempts, pauses

    def _expect(self, task: QueuedTask, start: Moment, sharing: int) -> Expected:
        start = start._replace(variance=start.variance / sharing)
        times = self._times.get(task.function, UNKNOWN)
        return Expected(start, start.after(times, *self._expected_attempts(task)))

    def of_pending(self, task: QueuedTask) -> Expected:
        """Return the start and end of a pending task.

        If a task is not in the plan, it begins when the planned task behind it was to begin. Without such a
        task it comes after the planned ones.
        """
        if task.id in self.planned:
            return self.planned[task.id]
        lane = self.lanes[task.queue]
        index = bisect.bisect([order_of(each) for each in lane], order_of(task))
        if index < len(lane):
            return self._expect(task, self.planned[lane[index].id].start, 1)
        if task.queue in self.partly_read:
            return self._expect(task, self._start_behind(task), 1)
        start, _, sharing = self._choose(task)
        return self._expect(task, start, sharing)

    def of_scheduled(self, task: QueuedTask, seconds: float) -> Expected:
        """Return the start and end of a task that is due in `seconds`."""
        return self._expect(task, Moment(seconds), 1)

    def empty_at(self, name: str) -> Moment | None:
        """Return when the running and pending tasks of a queue will have ended; None if there are none.

        If not all of them are planned, the start of a task behind them stands for the rest.
        """
        last = QueuedTask(INTEGER_MAX, 0, name, "", -INTEGER_MAX, 0, 0, 0, 0.0, 0.0)
        ends = [self._start_behind(last)] if name in self.partly_read else []
        ends += self._ends.get(name, ())
        ends += [self.planned[task.id].end for task in self.lanes.get(name, ())]
        return max(ends, default=None)

    def _start_behind(self, task: QueuedTask) -> Moment:
        """Return the start of a task behind the planned ones, extrapolated from the queue's pace."""
        means = {name: times.mean for name, times in self._times.items()}
        values = before_values(task)
        count = self._database.value(COUNT_BEFORE, (*values, BEFORE_MAX))
        mix = dict(map(tuple, self._database.all(MIX_BEFORE, (*values, MIX_ROWS))))
        work = sum(number * means.get(name, math.inf) for name, number in mix.items())
        lane = self.lanes[task.queue]
        planned_work = sum(means.get(each.function, 0.0) for each in lane[1:])
        first, last = (self.planned[each.id].start for each in (lane[0], lane[-1]))
        if not mix:                     # no pending task is left before it
            return NOW
        if not planned_work or last.at == math.inf or work == math.inf:
            return NEVER
        scale = work / sum(mix.values()) * count / planned_work
        return Moment(first.at + (last.at - first.at) * scale, last.variance * scale,
                      last.standard_error * scale)
