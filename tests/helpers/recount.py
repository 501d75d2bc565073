"""The figures of hours, counted anew from the activity, with no code of jobqueue's.

    recount(rows)                   what the tables `hour` and `worker_hour` must hold for these rows
    assert_counted(case, database)  the two tables hold that, for every span
    history(...)                    rows of many days, to be written into `activity`
"""
import bisect
import json
import random

SPANS = (3600, 21600, 86400, 0)
EDGES = sorted(2 ** (number / 4 - 1) for number in range(-200, 200))
ENDS = {"succeeded", "failed", "cancelled", "retry", "crashed", "interrupted"}
COUNTED = {"added": "added", "started": "started", "succeeded": "succeeded", "failed": "failed",
           "cancelled": "cancelled", "retry": "retried", "crashed": "crashed"}
TIMES = ("waited", "ran", "service", "executed")


def beginning(at, span):
    """When the span began in which a moment is."""
    return at - at % span if span else 0


def bucket(seconds):
    """The number of the bucket whose upper edge is the first that is not below a time."""
    return bisect.bisect_left(EDGES, seconds) - 200 if seconds > 0 else -5000


def pieces(start, end):
    """(hour, seconds in it) of a stretch of time."""
    while start < end:
        hour = int(start // 3600) * 3600
        yield hour, min(end, hour + 3600) - start
        start = hour + 3600


def note(found, key, name, value):
    """Keep a value of a column of an hour, for each span."""
    at, *rest = key
    for span in SPANS:
        found.setdefault((span, beginning(at, span), *rest), {}).setdefault(name, []).append(value)


def recount(rows):
    """({(span, at, function, queue): {column: values}}, {(span, at, machine): the same})"""
    hours, machines, workers = {}, {}, {}
    for row in sorted(rows, key=lambda row: row["id"]):
        hour, event, seconds = int(row["at"] // 3600) * 3600, row["event"], row["seconds"]
        place = (row["function"], row["queue"])
        if event == "worker_started":
            workers[row["worker_id"]] = [row["machine"], row["at"], None]
        elif event in ("worker_ended", "worker_lost") and row["worker_id"] in workers:
            machine, start, end = workers[row["worker_id"]]
            if end is None:
                workers[row["worker_id"]][2] = end = row["at"] - (row["waited"] or 0)
                for at, part in pieces(start, end):
                    note(machines, (at, machine), "alive_seconds", part)
        elif event == "put_back":
            note(hours, (int((row["at"] - seconds) // 3600) * 3600, *place), "started", -1)
        elif event in COUNTED or event in ENDS:
            if event in COUNTED:
                note(hours, (hour, *place), COUNTED[event], 1)
            if event == "started":
                note(hours, (hour, *place), "waited", max(0, row["waited"]))
            if row["service"] is not None and event in ("succeeded", "failed"):
                note(hours, (hour, *place), "service", row["service"])
            if event in ENDS and seconds is not None:
                count_run(hours, machines, workers, row, hour, place)
    return hours, machines


def count_run(hours, machines, workers, row, hour, place):
    """An attempt that ran."""
    if row["event"] == "succeeded":
        note(hours, (hour, *place), "ran", row["seconds"])
    for name in ("cpu_seconds", "peak_memory"):
        if row[name]:
            note(hours, (hour, *place), name, row[name])
    if row["worker_id"] is not None:
        machine, _, end = workers.get(row["worker_id"], ("", 0, None))
        end = row["at"] if end is None else min(end, row["at"])
        note(machines, (hour, machine), "tasks", 1)
        note(machines, (hour, machine), "executed", row["seconds"])
        for at, part in pieces(end - row["seconds"], end):
            note(machines, (at, machine), "busy_seconds", part)


def assert_times(case, text, values, about):
    """A stored histogram is of these values."""
    count, total, least, most, buckets = json.loads(text)
    case.assertEqual((count, least, most), (len(values), min(values), max(values)), about)
    case.assertAlmostEqual(total, sum(values), 3, about)
    expected = {}
    for value in values:
        expected[str(bucket(value))] = expected.get(str(bucket(value)), 0) + 1
    case.assertEqual(buckets, expected, about)


def assert_table(case, rows, keys, expected):
    """The rows of a table are those that were expected, column by column."""
    found = {tuple(row[name] for name in keys): row for row in rows}
    case.assertEqual(set(found), set(expected))
    for key, row in found.items():
        for name in set(row.keys()) - set(keys):
            values, about = expected[key].get(name, []), (key, name)
            if name in TIMES:
                if values or row[name]:
                    assert_times(case, row[name], values, about)
            elif name == "peak_memory":
                case.assertEqual(row[name], max(values, default=None), about)
            else:
                case.assertAlmostEqual(row[name], sum(values), 3, about)


def assert_counted(case, database):
    """Every hour equals a count of the activity that is there."""
    hours, machines = recount(database.all("SELECT * FROM activity"))
    assert_table(case, database.all("SELECT * FROM hour"), ("span", "at", "function", "queue"), hours)
    assert_table(case, database.all("SELECT * FROM worker_hour"), ("span", "at", "machine"), machines)


def history(days, end, per_day=100, seed=1, functions=("add", "greet")):
    """Rows of the activity of so many days: workers that come and go, tasks that wait, run and end."""
    chance, rows, worker, at = random.Random(seed), [], 0, end - days * 86400
    while at < end:
        if worker % 50 == 0 or chance.random() < 0.01:
            if worker:
                lost = chance.random() < 0.3
                rows.append({"at": at, "event": "worker_lost" if lost else "worker_ended",
                             "worker_id": worker, "machine": "m%d" % (worker % 2),
                             "waited": 9.5 if lost else None})
            worker += 1
            rows.append({"at": at, "event": "worker_started", "worker_id": worker,
                         "machine": "m%d" % (worker % 2)})
        task = {"task_id": len(rows), "owner_id": 1 + len(rows) % 3, "function": chance.choice(functions),
                "queue": chance.choice(("default", "mail"))}
        waited, seconds = chance.expovariate(0.01), chance.lognormvariate(2, 1.5)
        kind = chance.choice(("succeeded",) * 6 + ("failed", "cancelled", "retry", "crashed", "put_back"))
        rows.append({"at": at, "event": "added", **task})
        rows.append({"at": at + waited, "event": "started", "worker_id": worker, "waited": waited, **task})
        rows.append({"at": at + waited + seconds, "event": kind, "worker_id": worker, "seconds": seconds,
                     "service": waited + seconds if kind in ("succeeded", "failed", "cancelled") else None,
                     "cpu_seconds": chance.choice((None, seconds / 3)),
                     "peak_memory": chance.choice((None, chance.randrange(10 ** 8))), **task})
        at += chance.expovariate(per_day / 86400)
    return rows


def write_history(database, rows):
    """Store rows of the activity, in this order."""
    names = ("at", "event", "task_id", "owner_id", "worker_id", "function", "queue", "waited", "seconds",
             "service", "cpu_seconds", "peak_memory", "machine")
    with database.transaction() as transaction:
        transaction.insert_all("activity", ({name: row.get(name) for name in names} for row in rows))
