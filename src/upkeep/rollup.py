"""Sums of the activity by hour and place: how many events there were, and how long they took.

A place is a function and queue, or a machine. Tally gathers the values for each row of the tables `hour` and
`worker_hour`, which is one hour at one place, and makes Sums of them. Sums can be added, and so can their
Times: these are histograms, which give percentiles.
"""
from __future__ import annotations

import bisect
import collections
import json
import math
from collections.abc import Iterable, Mapping, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.time_and_text import dump_json

if TYPE_CHECKING:
    from typing import Any, Optional

    from ..base.types import JsonObject, Row

HOUR, SIX_HOURS, DAY, ALL_TIME = 3600, 21600, 86400, 0
STEPS = {"hour": HOUR, "6h": SIX_HOURS, "12h": 43200, "day": DAY, "week": 7 * DAY}
FIRST_MONDAY = 4 * DAY          # steps are counted from this moment, so that weeks begin on Mondays
SPREAD_MAX_SECONDS = 400 * DAY  # a longer life of a worker comes from a wrong clock
LARGEST = 2.0 ** 53             # larger numbers of seconds or bytes count as this one
RUNS_KEPT, RUNS_SHOWN = 50, 20     # maximum of latest runs of a function: stored, shown
HOUR_KEYS = {"hour": ("span", "at", "function", "queue"),
             "worker_hour": ("span", "at", "machine")}
COUNTS = ("added", "started", "succeeded", "failed", "cancelled", "retried", "crashed")
TIMES = ("waited", "ran", "service")
HISTOGRAMS = frozenset((*TIMES, "executed"))     # columns that hold Times
# The column that counts an event of a task; None: no column.
EVENTS = {"added": "added", "started": "started", "succeeded": "succeeded", "failed": "failed",
          "cancelled": "cancelled", "retry": "retried", "crashed": "crashed",
          "interrupted": None, "put_back": None}
WORKER_EVENTS = ("worker_started", "worker_ended", "worker_lost")
BUCKET_TOPS = (0.5, 2 ** -0.75, 2 ** -0.5, 2 ** -0.25)     # of the fractions that frexp() returns
ZERO_BUCKET = -5000             # its top is 0.0
ESCAPED = str.maketrans({"\\": r"\\", '"': r'\"', "\n": r"\n"})

if TYPE_CHECKING:
    # Table, beginning of an hour, place.
    SumsKey = tuple[str, int, tuple[str, ...]]
    AnyRun = tuple[Optional[int], Optional[int], str, float]    # a LatestRun whose seconds are not rounded
    AnySums = dict[str, Any]
else:
    AnySums = dict


class LatestRun(NamedTuple):
    """An ended attempt, as `recent` stores it."""

    task_id: int | None
    owner_id: int | None
    status: str                         # a name in COUNTS, or an event
    seconds: float


class Shift(NamedTuple):
    """A row of `shift`: a worker's machine, and the moment up to which its life is counted.

    `ended_at` is when its end was recorded. A lost worker's life is counted to its last heartbeat.
    """

    worker_id: int
    machine: str
    counted_to: float = 0.0
    ended_at: float | None = None


def sane(number: float) -> float:
    """Return a number limited to 0..LARGEST. Clocks are set back, and other programs store any number."""
    return number if 0.0 <= number <= LARGEST else min(max(0.0, number), LARGEST)


def hour_of(at: float) -> int:
    """Return the beginning of the hour of a moment."""
    return int(sane(at)) // HOUR * HOUR


def whole_steps(start: float, end: float, step: str) -> tuple[int, int]:
    """Return a range that is extended to whole steps."""
    seconds = STEPS[step]
    return (int((start - FIRST_MONDAY) // seconds) * seconds + FIRST_MONDAY,
            math.ceil((end - FIRST_MONDAY) / seconds) * seconds + FIRST_MONDAY)


def latest_runs(stored: str | None, more: Iterable[AnyRun]) -> list[LatestRun]:
    """Return the newest RUNS_KEPT runs, oldest first: those in the JSON of a row of `recent`, then `more`."""
    runs = [LatestRun(*run) for run in json.loads(stored or "[]")]
    runs += [LatestRun(task_id, owner_id, status, round(seconds, 6))
             for task_id, owner_id, status, seconds in more]
    return runs[-RUNS_KEPT:]


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket of a time. Four buckets further, times are twice as long.

    No logarithms are used, because their results differ between machines.
    """
    fraction, exponent = math.frexp(seconds)
    within = bisect.bisect_left(BUCKET_TOPS, fraction)
    return 4 * exponent + within if seconds else ZERO_BUCKET


def bucket_top(number: int) -> float:
    """Return the longest time in a bucket."""
    return math.ldexp(BUCKET_TOPS[number % 4], number // 4)


class Times:
    """Times in seconds: their count, sum, minimum, maximum, and the count in each bucket."""

    __slots__ = ("count", "sum", "least", "most", "buckets")
    count: int
    sum: float
    least: float
    most: float
    buckets: dict[str, int]             # by bucket number, which is a text in JSON

    def __init__(self, text: str | None = None) -> None:
        self.count, self.sum, self.least, self.most, self.buckets = (
            json.loads(text) if text else (0, 0.0, math.inf, 0.0, {}))

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        """Return the Times of these values. There must be a value."""
        times = cls()
        times.count, times.sum = len(values), math.fsum(values)
        times.least, times.most = min(values), max(values)
        times.buckets = {str(number): count for number, count in
                        collections.Counter(map(bucket_of, values)).items()}
        return times

    def add(self, times: Times) -> None:
        """Add other times."""
        self.count += times.count
        self.sum += times.sum
        self.least, self.most = min(self.least, times.least), max(self.most, times.most)
        buckets = self.buckets
        for number, count in times.buckets.items():
            buckets[number] = buckets.get(number, 0) + count

    def text(self) -> str:
        """Return the text that __init__() reads."""
        return dump_json([self.count, self.sum, self.least, self.most, self.buckets])

    def up_to(self, number: int) -> int:
        """Return the number of times in this bucket and those below it."""
        return sum(count for name, count in self.buckets.items() if int(name) <= number)

    def percentile(self, share: float) -> float:
        """Return the `share` quantile, such as 0.95, within 9 %. It is exact if all times are equal."""
        rank = math.ceil(share * self.count)
        for number in sorted(map(int, self.buckets)):
            rank -= self.buckets[str(number)]
            if rank <= 0:
                break
        low, high = bucket_top(number - 1), bucket_top(number)
        return min(max(2 * low * high / (low + high or 1.0), self.least), self.most)

    def json(self) -> JsonObject:
        """Return the figures as the API has them. The 95th percentile is given from 20 times on."""
        figures: list[float | None] = [self.sum]
        if self.count:
            figures += [self.least, self.most, self.sum / self.count, self.percentile(0.5),
                     self.percentile(0.95) if self.count >= 20 else None]
        rounded = (value and round(value, 6) for value in (*figures, *[None] * 5))
        return {"count": self.count,
                **dict(zip(("sum", "min", "max", "mean", "p50", "p95"), rounded))}


NO_TIMES, NO_SHIFT = Times(), Shift(0, "")


class Sums(AnySums):
    """A dictionary of sums by column: numbers, Times, and the maximum of peak_memory."""

    @classmethod
    def of(cls, cell: Mapping[str, Sequence[float]]) -> Sums:
        """Return the sums of {column: values}."""
        return cls((name, Times.of(values) if name in HISTOGRAMS else
                    max(values) if name == "peak_memory" else sum(values))
                   for name, values in cell.items())

    @classmethod
    def from_row(cls, row: Row, keys: Iterable[str]) -> Sums:
        """Return the sums in a row of `hour` or `worker_hour`, without its keys."""
        return cls({name: Times(value) if name in HISTOGRAMS else value
                    for name, value in zip(row.keys(), row) if value and name not in keys})

    def add(self, sums: Sums) -> None:
        """Add other sums."""
        for name, value in sums.items():
            if name in HISTOGRAMS:
                self.setdefault(name, Times()).add(value)
            elif name == "peak_memory":
                self[name] = max(self.get(name, 0), value)
            else:
                self[name] = self.get(name, 0) + value

    def row(self) -> JsonObject:
        """Return the columns to store."""
        return {name: value.text() if name in HISTOGRAMS else value for name, value in self.items()}

    def json(self) -> JsonObject:
        """Return the figures of tasks as the API has them."""
        return {**{name: self.get(name, 0) for name in COUNTS},
                **{name: self.get(name, NO_TIMES).json() for name in TIMES},
                "cpu_seconds": round(self.get("cpu_seconds", 0.0), 6),
                "peak_memory": self.get("peak_memory")}

    def worker_json(self, expected: int, times_key: str) -> JsonObject:
        """Return the figures of workers as the API has them.

        `expected` is the number of tasks that a worker should do in an hour, or 0 if none is set.
        `times_key` is the name in the answer for the times of all attempts.
        """
        alive, busy, tasks = (self.get(name, 0) for name in (
            "alive_seconds", "busy_seconds", "tasks"))
        mean = tasks / alive * HOUR if alive else None
        most = expected or (tasks / busy * HOUR if busy and tasks else None)
        share = mean / expected if expected and mean is not None else busy / alive if alive else None
        return {"alive_seconds": round(alive, 3), "busy_seconds": round(busy, 3), "tasks": tasks,
                times_key: self.get("executed", NO_TIMES).json(),
                "mean_throughput": mean and round(mean, 3),
                "maximum_throughput": most and round(most, 3),
                "utilization": share and round(share, 4)}


class Tally:
    """The tally of rows of the activity: sums of functions and machines by hour, and the latest runs.

    `shifts` has the Shift of each worker by its id. `changed` has the shifts to store.
    """

    def __init__(self, shifts: Iterable[Shift] = ()) -> None:
        self.shifts = {shift.worker_id: shift for shift in shifts}
        self.changed: dict[int, Shift] = {}
        self.runs: dict[str, collections.deque[AnyRun]] = collections.defaultdict(
            lambda: collections.deque(maxlen=RUNS_KEPT))
        self._cells: dict[SumsKey, dict[str, list[float]]] = collections.defaultdict(
            lambda: collections.defaultdict(list))
        self._hour = 0

    def sums(self) -> dict[SumsKey, Sums]:
        """Return the sums by table, hour and place."""
        return {key: Sums.of(cell) for key, cell in self._cells.items() if cell}

    def count(self, rows: Iterable[Row]) -> None:
        """Count rows, which must come in the order of their ids. Skip rows with values of a wrong type."""
        for row in rows:
            try:
                self._count(*row)
            except (TypeError, ValueError, OverflowError):
                continue

    def _count(self, _: int, at: float, event: str, function: str | None, queue: str | None,
               waited: float | None, seconds: float | None, service: float | None,
               cpu_seconds: float | None, peak_memory: float | None, task_id: int | None,
               owner_id: int | None, worker_id: int | None, machine: str | None) -> None:
        if event in EVENTS and type(function) is type(queue) is str:
            is_put_back, column = event == "put_back", EVENTS[event]
            # The start of a put_back attempt; its seconds are negative if the clock was set back.
            counts_at = at - (seconds or 0) if is_put_back else at
            # A value of a wrong type raises an error here, before anything of its row is counted.
            waited, seconds, service, cpu_seconds, peak_memory = (
                None if value is None else sane(value)
                for value in (waited, seconds, service, cpu_seconds, peak_memory))
            run_of = task_id and int(task_id), owner_id and int(owner_id)
            hour = self._hour
            if not hour <= counts_at < hour + HOUR:
                hour = self._hour = hour_of(counts_at)
            cell = self._cells["hour", hour, (function, queue)]
            if is_put_back:             # the attempt ran no function
                cell["started"].append(-1)
            elif column:
                cell[column].append(1)
            if waited is not None:
                cell["waited"].append(waited)
            if service is not None and event in ("succeeded", "failed"):
                cell["service"].append(service)
            if seconds is not None and not is_put_back:     # an attempt ran
                if event == "succeeded":
                    cell["ran"].append(seconds)
                if cpu_seconds:
                    cell["cpu_seconds"].append(cpu_seconds)
                if peak_memory:
                    cell["peak_memory"].append(int(peak_memory))
                if worker_id is not None:
                    self._count_work(self.shifts.get(worker_id, NO_SHIFT), hour, at, seconds)
                self.runs[function].append((*run_of, column or event, seconds))
        elif event in WORKER_EVENTS and worker_id is not None:
            self._count_life(event, at, sane(waited or 0), int(worker_id), str(machine or ""))

    def _count_work(self, shift: Shift, hour: int, at: float, seconds: float) -> None:
        _, machine, counted_to, ended_at = shift
        cell = self._cells["worker_hour", hour, (machine,)]
        cell["tasks"].append(1)
        cell["executed"].append(seconds)
        if ended_at is not None:        # the end of the worker was recorded before that of the attempt
            at = min(at, counted_to)
        if at - seconds >= hour:        # the usual case: the attempt began in the same hour
            cell["busy_seconds"].append(seconds)
        else:
            self.spread(machine, "busy_seconds", at - seconds, at)

    def _count_life(self, event: str, at: float, silent_seconds: float, worker_id: int,
                    machine: str) -> None:
        shift = self.shifts.get(worker_id)
        if event == "worker_started":
            shift = Shift(worker_id, machine, at + 0.0)
        elif shift and shift.ended_at is None:
            end = at - silent_seconds
            self.spread(shift.machine, "alive_seconds", shift.counted_to, end)
            shift = shift._replace(counted_to=end, ended_at=at)
        else:
            return
        self.shifts[worker_id] = self.changed[worker_id] = shift

    def spread(self, machine: str, name: str, start: float, end: float) -> None:
        """Distribute the seconds from `start` to `end` among their hours."""
        if max(0.0, end - SPREAD_MAX_SECONDS) <= start < end <= LARGEST:
            for hour in range(hour_of(start), math.ceil(end), HOUR):
                self._cells["worker_hour", hour, (machine,)][name].append(
                    min(end, hour + HOUR) - max(start, hour))
