"""Metrics: how much was done, and how long it waited and ran.

The activity is the only source. Rollup folds it: each row is added once to the sums of its hour, of its six
hours, of its day and of all time. Metrics adds the newest rows, which are not folded yet, to these sums. So a
late row counts in its own hour, and no row is lost if no process folds for a while. Removing tasks or old
hours changes no other hour and no total.
"""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.time_and_text import dump_json, iso
from ..base.values import is_number
from ..store.connection import BY_CLAIM, SEARCH_SECONDS, Connection
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from .rollup import (ALL_TIME, COUNTS, DAY, ESCAPED, HOUR, HOUR_KEYS, NO_TIMES, RUNS_SHOWN,
                     SIX_HOURS, STEPS, LatestRun, Shift, Sums, Tally, Times, bucket_top,
                     latest_runs)

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .rollup import SumsKey

SPANS = (HOUR, SIX_HOURS, DAY, ALL_TIME)    # lengths of sums in seconds; ALL_TIME begins at 0
FOLD_ROWS = 5000                # most rows of the activity that are folded, or counted for figures, at once
FOLD_LEAST_ROWS = 1000          # fewer rows are folded only when the oldest is FOLD_SECONDS old
FOLD_SECONDS = 60.0
SHIFT_SECONDS = 3600.0          # how long an ended worker's row of `shift` is kept
FOLDED_COLUMNS = ("id, at, event, function, queue, waited, seconds, service, cpu_seconds, "
                  "peak_memory, task_id, owner_id, worker_id, machine")
PROMETHEUS_BUCKETS = range(-4, 61, 8)   # bucket numbers: up to 0.25 s, then four times as much each


if TYPE_CHECKING:
    # A value of a Family: the suffix of its name, its labels, the number.
    Sample = tuple[str, dict[str, str], float]
    # A metric of Prometheus: name, kind, help, values.
    Family = tuple[str, str, str, Iterable[Sample]]

OWN_EVENTS = ("SELECT %s FROM activity WHERE id>? AND id<=? AND owner_id=? ORDER BY id DESC LIMIT %d"
              % (FOLDED_COLUMNS, FOLD_ROWS + 1))
SHIFTS = "SELECT worker_id, machine, counted_to, ended_at FROM shift"


class Counted(NamedTuple):
    """The sums up to the mark, and the tally of the rows after it."""

    stored: list[tuple[str, Row]]       # folded sums: table, row
    runs: dict[str, list[LatestRun]]    # latest runs of each function, oldest first
    until: float                        # all rows up to this moment are counted
    tally: Tally                        # of the rows that are not folded
    since: float | None = None          # older rows are missing; None: no row is missing


class PlaceSums(NamedTuple):
    """The sums of a function and queue, or of a machine, in an hour or a longer span."""

    at: int                             # beginning of the span
    place: tuple[str, ...]              # function and queue, or machine
    sums: Sums


class Rollup:
    """The rollup: adds the activity to the sums, a portion at a time.

    1. Read and count the rows after the mark. Other processes may write meanwhile.
    2. In one transaction store the sums and move the mark to the last row. If another process has moved
       the mark, store nothing.

    So each row counts once, even if a process is killed. Ids are assigned under the write lock. So no row
    appears below the mark later.
    """

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def mark(self) -> int:
        """Return the id of the last folded row."""
        return recall(self._database, "folded") or 0

    def fold(self) -> bool:
        """Fold a portion if it is large or old enough; return True if there may be more."""
        mark = self.mark()
        if not self._is_due(mark):
            return False
        rows, tally = self.tally(mark)
        with self._database.transaction(durable=False) as transaction:
            if rows and (recall(transaction, "folded") or 0) == mark:
                self._store(transaction, tally)
                remember(transaction, "folded", rows[-1]["id"])
        return len(rows) == FOLD_ROWS

    def tally(self, mark: int) -> tuple[Sequence[Row], Tally]:
        """Return the next FOLD_ROWS rows after the mark, and their Tally."""
        tally = Tally(Shift(*row) for row in self._database.all(SHIFTS))
        rows = self._database.all("SELECT %s FROM activity WHERE id>? ORDER BY id LIMIT %d" % (
            FOLDED_COLUMNS, FOLD_ROWS), (mark,))
        tally.count(rows)
        return rows, tally

    def _is_due(self, mark: int) -> bool:
        newest: int = self._database.value("SELECT max(id) FROM activity") or 0
        if newest - mark >= FOLD_LEAST_ROWS or newest <= mark:
            return newest > mark
        at = self._database.value("SELECT at FROM activity WHERE id>? ORDER BY id LIMIT 1", (mark,))
        return not (is_number(at) and abs(self._clock.now() - at) < FOLD_SECONDS)

    def _store(self, transaction: Connection, tally: Tally) -> None:
        whole: dict[tuple[int, SumsKey], Sums] = collections.defaultdict(Sums)
        for (table, at, place), sums in tally.sums().items():
            for span in SPANS:
                whole[span, (table, at // span * span if span else 0, place)].add(sums)
        for (span, (table, at, place)), sums in whole.items():
            values = (span, at, *place)
            key = dict(zip(HOUR_KEYS[table], values))
            row = transaction.one("SELECT * FROM %s WHERE %s" % (
                table, " AND ".join(name + "=?" for name in key)), values)
            if row:
                sums.add(Sums.from_row(row, key))
            transaction.upsert(table, key, sums.row())
        for function, runs in tally.runs.items():
            runs_text = transaction.value("SELECT runs FROM recent WHERE function=?", (function,))
            transaction.upsert("recent", {"function": function},
                               {"runs": dump_json(latest_runs(runs_text, runs))})
        for worker_id, shift in tally.changed.items():
            transaction.upsert("shift", {"worker_id": worker_id}, shift._asdict())
        transaction.run("DELETE FROM shift WHERE ended_at<?", (self._clock.now() - SHIFT_SECONDS,))


class Metrics:
    """The figures of tasks and workers: folded sums and newer rows."""

    def __init__(self, database: Database, settings: Settings, rollup: Rollup) -> None:
        self._database, self._settings, self._rollup = database, settings, rollup

    def read(self, start: int, end: int, step: str, wants: Callable[[str, str], bool],
             viewer: int | None = None, owner_id: int | None = None) -> JsonObject:
        """Return the figures from `start` to `end`. Both are beginnings of steps; `step` is a word of STEPS.

        `wants` selects functions and queues. `viewer` is the user who sees only the ids of their own tasks.
        With `owner_id` only the events of this user's tasks are counted, see _read_own().
        """
        seconds, base = STEPS[step], self._settings.get("throughput_base")
        span = max(length for length in SPANS if length and seconds % length == 0)
        if owner_id is None:
            counted = self._read_sums(span, start, end)
            self._add_living(counted.tally)
        else:
            counted = self._read_own(owner_id, start)
        points: dict[int, Sums] = collections.defaultdict(Sums)
        functions: dict[str, Sums] = collections.defaultdict(Sums)
        machines: dict[str, Sums] = collections.defaultdict(Sums)
        totals = Sums()
        for at, (name, *queue), sums in self._parts(counted, wants):
            if start <= at < end:
                for whole in (points[at - (at - start) % seconds], totals,
                              (functions if queue else machines)[name]):
                    whole.add(sums)
        return {
            "step": step, "from": iso(start), "to": iso(end), "counted_from": iso(counted.since),
            "points": [{"at": iso(at), "complete": at + seconds <= counted.until, **points[at].json(),
                        **points[at].worker_json(base, "executed")}
                       for at in range(start, end, seconds)],
            "totals": {**totals.json(), **totals.worker_json(base, "executed")},
            "workers": [{"machine": machine, **sums.worker_json(base, "ran")}
                        for machine, sums in sorted(machines.items()) if owner_id is None],
            "functions": [{"name": name, **sums.json(), "recent": [
                {"id": task_id if owner_id == viewer or viewer is None else None, "status": status,
                 "seconds": seconds}
                for task_id, owner_id, status, seconds in counted.runs.get(name, [])[-RUNS_SHOWN:]]}
                for name, sums in sorted(functions.items())]}

    def runs(self) -> dict[str, list[LatestRun]]:
        """Return the latest runs of each function, oldest first."""
        return self._read_sums(HOUR, 0, 0).runs

    def all_time(self) -> dict[tuple[str, str], Sums]:
        """Return {(function, queue): Sums} of all time. Only `started` may decrease."""
        whole: dict[tuple[str, str], Sums] = collections.defaultdict(Sums)
        for _, place, sums in self._parts(self._read_sums(ALL_TIME, 0, 1), lambda *_: True):
            if len(place) == 2:         # no machine
                whole[place].add(sums)
        return whole

    def _read_sums(self, span: int, start: int, end: int) -> Counted:
        """Return the sums of a span that begin from `start` up to `end`, and the tally of rows not folded."""
        for _ in range(5):
            mark = self._rollup.mark()
            stored = [(table, row) for table in HOUR_KEYS for row in self._database.all(
                "SELECT * FROM %s WHERE span=? AND at>=? AND at<?" % table, (span, start, end))]
            recent = dict(map(tuple, self._database.all("SELECT function, runs FROM recent")))
            rows, tally = self._rollup.tally(mark)
            if self._rollup.mark() == mark:
                break
        runs = {name: latest_runs(recent.get(name), tally.runs.get(name, ()))
                for name in {**recent, **tally.runs}}
        until = rows[-1]["at"] if len(rows) == FOLD_ROWS else self._database.clock.now()
        return Counted(stored, runs, until, tally)

    def _read_own(self, owner_id: int, start: int) -> Counted:
        """Count the events of one user's tasks from `start` on. Sums are not kept for each user.

        Only the newest FOLD_ROWS events are counted, and those that are found within SEARCH_SECONDS.
        """
        database = self._database
        top: int = database.value("SELECT max(id) FROM activity") or 0
        low = self._last_before(start, top)
        rows, cursor = database.search(OWN_EVENTS, (owner_id,), low, top, FOLD_ROWS, SEARCH_SECONDS)
        first = database.one("SELECT id, at FROM activity WHERE id>=? ORDER BY id LIMIT 1",
                             (cursor or low + 1,))
        is_cut = cursor is not None or low == 0
        since = first["at"] if first and is_cut and first["id"] > 1 else None
        tally = Tally()
        tally.count(reversed(rows))
        return Counted([], {name: latest_runs(None, runs) for name, runs in tally.runs.items()},
                       self._database.clock.now(), tally, since)

    def _last_before(self, at: float, high: int) -> int:
        """Return the id of the last event before `at`, up to `high`, or 0. Ids rise with time."""
        low = 0
        while low < high:
            middle = (low + high) // 2
            row = self._database.one("SELECT id, at FROM activity WHERE id>? ORDER BY id LIMIT 1", (middle,))
            if row and is_number(row["at"]) and row["at"] < at:
                low = row["id"]
            else:
                high = middle
        return low

    def _add_living(self, tally: Tally) -> None:
        """Add the time that living workers lived and were busy, up to their last heartbeat.

        A worker claims several tasks at once and runs them one after the other. So the earliest start counts.
        """
        begun = dict(map(tuple, self._database.all(
            "SELECT worker_id, min(started_at) FROM task %s WHERE status=RUNNING GROUP BY worker_id"
            % BY_CLAIM)))
        for worker_id, seen_at in self._database.all("SELECT id, seen_at FROM worker"):
            shift = tally.shifts.get(worker_id)
            if shift and shift.ended_at is None:
                for name, since in (("alive_seconds", shift.counted_to),
                                    ("busy_seconds", begun.get(worker_id, seen_at))):
                    tally.spread(shift.machine, name, since, seen_at)

    @staticmethod
    def _parts(counted: Counted, wants: Callable[[str, str], bool]) -> Iterator[PlaceSums]:
        """Yield the folded and newer sums of the functions and queues that `wants` selects."""
        for table, row in counted.stored:
            keys = HOUR_KEYS[table]
            _, at, *place = tuple(row)[:len(keys)]
            if table == "worker_hour" or wants(*place):
                yield PlaceSums(at, tuple(place), Sums.from_row(row, keys))
        for (table, at, names), sums in counted.tally.sums().items():
            if table == "worker_hour" or wants(*names):
                yield PlaceSums(at, names, sums)


def exposition(families: Iterable[Family]) -> str:
    """Return families in Prometheus' text format."""
    lines = []
    for name, kind, words, samples in families:
        lines += ["# HELP jobqueue_%s %s" % (name, words), "# TYPE jobqueue_%s %s" % (name, kind)]
        for ending, labels, value in samples:
            labels_text = ",".join('%s="%s"' % (label, str(text).translate(ESCAPED))
                            for label, text in labels.items())
            lines.append("jobqueue_%s%s{%s} %r" % (name, ending, labels_text, value))
    return "\n".join(lines).replace("{}", "") + "\n"


def counter_families(whole: dict[tuple[str, str], Sums]) -> list[Family]:
    """Return the families for exposition(), from the sums of Metrics.all_time()."""
    ran: dict[str, Times] = collections.defaultdict(Times)
    for (function, _), sums in whole.items():
        ran[function].add(sums.get("ran", NO_TIMES))
    histogram: list[Sample] = []
    for function, times in sorted(ran.items()):
        tops = [("%g" % bucket_top(number), times.up_to(number)) for number in PROMETHEUS_BUCKETS]
        histogram += [("_bucket", {"function": function, "le": top}, count)
                      for top, count in [*tops, ("+Inf", times.count)]]
        histogram += [("_sum", {"function": function}, times.sum),
                      ("_count", {"function": function}, times.count)]
    return [
        ("tasks_total", "counter", "Ended tasks by outcome; retried and crashed count attempts.", [
            ("", {"status": status, "function": function, "queue": queue}, sums.get(status, 0))
            for (function, queue), sums in sorted(whole.items())
            for status in COUNTS if status != "started"]),      # an attempt that is put back decreases it
        ("task_run_seconds", "histogram", "Running time of successful attempts.", histogram)]
