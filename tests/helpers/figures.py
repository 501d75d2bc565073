"""The figures that static/docs/metrics.md defines, counted from all rows at once by what it says there,
with no code of jobqueue's.

    count = Count(rows, workers, running)   rows of the activity, or of a ledger that looks like it, in
                                            their order; the workers that live and what they run
    count.told(start, end, step, now, ...)  what GET /api/metrics must answer
    count.counters()                        what GET /metrics must say of tasks: {(name, labels): value}
    differences(told, expected)             [(place, what was told, what should be)]

Percentiles are those of the sorted values. `differences` forgives them the 9 % that are promised, a
quotient its last digit, and nothing else.
"""
import functools
import math
from collections import defaultdict
from datetime import datetime, timedelta, timezone

HOUR = timedelta(hours=1)
STEPS = {"hour": HOUR, "6h": 6 * HOUR, "12h": 12 * HOUR, "day": 24 * HOUR, "week": 168 * HOUR}
# The figure that an event counts for.
COUNTED = {"added": "added", "started": "started", "succeeded": "succeeded", "failed": "failed",
           "cancelled": "cancelled", "retry": "retried", "crashed": "crashed"}
ENDS = {"succeeded", "failed", "cancelled", "retry", "crashed", "interrupted"}     # of attempts
TIMES = ("waited", "ran", "service")
TOPS = [0.25 * 4 ** number for number in range(9)]
QUOTIENTS = {"mean": 1e-6, "mean_throughput": 1e-3, "maximum_throughput": 1e-3, "utilization": 1e-4}


def moment_of(seconds):
    """A moment in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def beginning(moment, step):
    """When the step begins in which a moment is."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    if step in ("6h", "12h"):
        return hour.replace(hour=hour.hour - hour.hour % int(step[:-1]))
    if step == "hour":
        return hour
    day = hour.replace(hour=0)
    return day if step == "day" else day - timedelta(days=day.weekday())


@functools.lru_cache(maxsize=None)
def point_of(hour, step):
    """When the step begins in which an hour is, counted from 1970."""
    return beginning(moment_of(3600 * hour), step)


def text_of(moment):
    """As the API writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def stretch(machine, name, start, end):
    """Facts: the seconds of each hour that a stretch of time touches."""
    while start < end:
        border = min(end, (start // 3600 + 1) * 3600)
        yield start, None, machine, name, border - start
        start = border


class Count:
    """Facts are (moment, function or None, queue or machine, figure, value); `cells` has the values of the
    same hour and place."""

    def __init__(self, rows, workers=(), running=()):
        self.rows, self.cells = rows, defaultdict(list)
        for facts in self._of_tasks(), self._of_machines(workers, running):
            for at, *place, value in facts:
                self.cells[(at // 3600, *place)].append(value)

    @staticmethod
    def is_run(row):
        """Whether an attempt ended that ran something."""
        return row["event"] in ENDS and row["seconds"] is not None

    def _of_tasks(self):
        begun, taken_back = {}, set()
        for place, row in enumerate(self.rows):
            if row["event"] == "started":
                begun[row["task_id"]] = place
            elif row["event"] == "put_back":
                taken_back.add(begun[row["task_id"]])
        for place, row in enumerate(self.rows):
            found = {}
            if row["event"] in COUNTED and place not in taken_back:
                found[COUNTED[row["event"]]] = 1
            if row["event"] == "started":
                found["waited"] = max(0.0, row["waited"])
            if row["event"] in ("succeeded", "failed") and row["service"] is not None:
                found["service"] = max(0.0, row["service"])
            if self.is_run(row):
                found.update({name: row[name] for name in ("cpu_seconds", "peak_memory") if row[name]})
                if row["event"] == "succeeded":
                    found["ran"] = max(0.0, row["seconds"])
            for name, value in found.items():
                yield row["at"], row["function"], row["queue"], name, value

    def _of_machines(self, workers, running):
        machines, born, died = {}, {}, {}
        for row in self.rows:
            worker_id, at = row["worker_id"], row["at"]
            if row["event"] == "worker_started":
                machines[worker_id], born[worker_id] = row["machine"], at
            elif row["event"] in ("worker_ended", "worker_lost") and worker_id in born:
                died[worker_id] = at - (row["waited"] or 0.0)
                yield from stretch(machines[worker_id], "alive_seconds", born[worker_id], died[worker_id])
            elif self.is_run(row) and worker_id is not None:
                machine, seconds = machines[worker_id], max(0.0, row["seconds"])
                end = min(at, died.get(worker_id, at))      # a death may be noticed late
                yield at, None, machine, "tasks", 1
                yield at, None, machine, "executed", seconds
                yield from stretch(machine, "busy_seconds", end - seconds, end)
        for worker_id, seen in workers:             # they live, and did so when last heard of
            since = min((at for one, at in running if one == worker_id), default=seen)
            yield from stretch(machines[worker_id], "alive_seconds", born[worker_id], seen)
            yield from stretch(machines[worker_id], "busy_seconds", since, seen)

    def told(self, start, end, step, now, function=None, queue=None, base=0):
        """The answer for these moments, of one function or queue."""
        first, points = beginning(moment_of(start), step), []
        while not points or points[-1] < moment_of(end):
            points.append(first + len(points) * STEPS[step])
        if points[-1] >= moment_of(end):
            end = points.pop()
        by_point, by_function, by_machine, whole = (defaultdict(lambda: defaultdict(list)) for _ in range(4))
        for (hour, name, place, figure), values in self.cells.items():
            point = point_of(hour, step)
            if not points[0] <= point < end:
                continue
            if name is not None and (function not in (None, name) or queue not in (None, place)):
                continue
            for cell in (by_point[point], whole[0],
                         by_machine[place] if name is None else by_function[name]):
                cell[figure] += values
        return {
            "step": step, "from": text_of(points[0]), "to": text_of(end),
            "points": [{"at": text_of(point),
                        "complete": point + STEPS[step] <= moment_of(now),
                        **of_tasks(by_point[point]), **of_workers(by_point[point], base, "executed")}
                       for point in points],
            "totals": {**of_tasks(whole[0]), **of_workers(whole[0], base, "executed")},
            "workers": [{"machine": name, **of_workers(cell, base, "ran")}
                        for name, cell in sorted(by_machine.items())],
            "functions": [{"name": name, **of_tasks(cell), "recent": self._recent(name)}
                          for name, cell in sorted(by_function.items())]}

    def _recent(self, name):
        runs = [row for row in self.rows if row["function"] == name and self.is_run(row)][-20:]
        return [{"id": row["task_id"], "seconds": round(max(0.0, row["seconds"]), 6),
                 "status": COUNTED.get(row["event"], row["event"])} for row in runs]

    def counters(self):
        """Those of all time, and the histogram."""
        found, ran = defaultdict(int), defaultdict(list)
        for (_, name, queue, figure), values in self.cells.items():
            if name is not None:
                ran[name] += values if figure == "ran" else []
                for status in COUNTED.values():
                    if status != "started":
                        found["jobqueue_tasks_total", (("status", status), ("function", name),
                              ("queue", queue))] += sum(values) if figure == status else 0
        for name, values in ran.items():
            about = (("function", name),)
            for top in (*TOPS, math.inf):
                label = (*about, ("le", "+Inf" if top == math.inf else "%g" % top))
                found["jobqueue_task_run_seconds_bucket", label] = sum(one <= top for one in values)
            found["jobqueue_task_run_seconds_sum", about] = math.fsum(values)
            found["jobqueue_task_run_seconds_count", about] = len(values)
        return dict(found)


def times(values):
    """Count, sum, least, greatest, mean, median, 95th percentile."""
    ranked, told = sorted(values), dict.fromkeys(("min", "max", "mean", "p50", "p95"))
    if ranked:
        told.update(min=round(ranked[0], 6), max=round(ranked[-1], 6), mean=math.fsum(ranked) / len(ranked),
                    p50=ranked[math.ceil(0.5 * len(ranked)) - 1])
    if len(ranked) >= 20:
        told["p95"] = ranked[math.ceil(0.95 * len(ranked)) - 1]
    return {"count": len(ranked), "sum": round(math.fsum(ranked), 6), **told}


def of_tasks(cell):
    """The figures of tasks."""
    return {**{name: sum(cell[name]) for name in COUNTED.values()},
            **{name: times(cell[name]) for name in TIMES},
            "cpu_seconds": round(math.fsum(cell["cpu_seconds"]), 6),
            "peak_memory": max(cell["peak_memory"], default=None)}


def of_workers(cell, base, executed):
    """The load of workers."""
    alive, busy = (math.fsum(cell[name]) for name in ("alive_seconds", "busy_seconds"))
    tasks, mean = len(cell["tasks"]), None
    most = base or (tasks / (busy / 3600) if tasks and busy else None)
    if alive:
        mean = tasks / (alive / 3600)
    return {"alive_seconds": round(alive, 3), "busy_seconds": round(busy, 3), "tasks": tasks,
            executed: times(cell["executed"]), "mean_throughput": mean, "maximum_throughput": most,
            "utilization": None if mean is None else mean / base if base else busy / alive}


def differences(told, expected, place=""):
    """[(place, what was told, what should be)]"""
    name = place.rpartition(".")[2]
    if isinstance(told, dict) and isinstance(expected, dict) and set(told) == set(expected):
        return [one for key in told for one in differences(told[key], expected[key], place + "." + key)]
    if isinstance(told, list) and isinstance(expected, list) and len(told) == len(expected):
        return [one for number, pair in enumerate(zip(told, expected))
                for one in differences(*pair, "%s[%d]" % (place, number))]
    slack = 0
    if None not in (told, expected):
        slack = 0.09 * expected + 1e-6 if name in ("p50", "p95") else QUOTIENTS.get(name, 0)
    if told == expected or slack and abs(told - expected) <= slack:
        return []
    return [(place, told, expected)]
