"""Metrics: how much was done, and how long it waited and ran.

The activity is the only source. Fold adds its rows, each once, to sums: of the hour in which it
happened, as the row says, and of the six hours, the day and the whole time around that. Metrics
tells these sums together with what the newest rows, not folded yet, add to them. So a late row
finds its hour, sums are made up after a standstill, and removing tasks or old hours changes no
other hour and no total.
"""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.time_and_text import dump_json, iso
from ..base.values import is_number
from ..store.connection import BY_CLAIM, Connection
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import Settings
from .rollup import (ALL_TIME, COUNTS, DAY, ESCAPED, HOUR, HOUR_KEYS, NO_TIMES, RUNS_TOLD,
                     SIX_HOURS, STEPS, LatestRun, Shift, Sums, Tally, Times, bucket_top,
                     latest_runs)

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .rollup import SumsKey

SPANS = (HOUR, SIX_HOURS, DAY, ALL_TIME)    # what sums are of; the last one begins at 0
FOLD_ROWS = 5000                # at once, and read of those that are not folded yet
FOLD_LEAST_ROWS = 1000          # fewer wait, for so many seconds
FOLD_SECONDS = 60.0
SHIFT_SECONDS = 3600.0          # how long an ended worker's machine is known
FOLDED_COLUMNS = ("id, at, event, function, queue, waited, seconds, service, cpu_seconds, "
                  "peak_memory, task_id, owner_id, worker_id, machine")
PROMETHEUS_BUCKETS = range(-4, 61, 8)   # their tops: 0.25 s, then four times as much each


if TYPE_CHECKING:
    # One value of a Family: the end of its name, its labels.
    Sample = tuple[str, dict[str, str], float]
    # What Prometheus reads under one name: name, kind, help, values.
    Family = tuple[str, str, str, Iterable[Sample]]

SHIFTS = "SELECT worker_id, machine, counted_to, ended_at FROM shift"


class Counted(NamedTuple):
    """What is counted, as of one mark."""

    stored: list[tuple[str, Row]]       # what is folded: table, row
    runs: dict[str, list[LatestRun]]    # of each function the latest, oldest first
    until: float                        # all is counted up to this moment
    tally: Tally                        # of what is not folded


class PlaceSums(NamedTuple):
    """Sums of an hour or a longer span, and what they are of."""

    at: int                             # its beginning
    place: tuple[str, ...]              # function and queue, or machine
    sums: Sums


class Fold:
    """Adds the activity to the sums, a portion at a time, whoever ticks:

    1. The rows after the mark are read and counted, while others may write.
    2. In one transaction, unless the mark has moved since, what they add is stored and the mark
       becomes the id of the last one. So each counts once, whoever is killed and wherever.

    Ids are drawn by who holds the write lock: none turns up below the mark later."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def mark(self) -> int:
        """The id of the last row that is folded."""
        return recall(self._database, "folded") or 0

    def fold(self) -> bool:
        """Fold a portion, if enough is there or it has waited for long; True if there is more."""
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
        """The next rows after the mark, and what they add."""
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
                sums.add(Sums.stored(row, key))
            transaction.upsert(table, key, sums.row())
        for function, runs in tally.runs.items():
            known = transaction.value("SELECT runs FROM recent WHERE function=?", (function,))
            transaction.upsert("recent", {"function": function},
                               {"runs": dump_json(latest_runs(known, runs))})
        for worker_id, shift in tally.changed.items():
            transaction.upsert("shift", {"worker_id": worker_id}, shift._asdict())
        transaction.run("DELETE FROM shift WHERE ended_at<?", (self._clock.now() - SHIFT_SECONDS,))


class Metrics:
    """Tells how much was done and how long it took: what is folded, and what is not yet."""

    def __init__(self, database: Database, settings: Settings, fold: Fold) -> None:
        self._database, self._settings, self._fold = database, settings, fold

    def read(self, start: int, end: int, step: str, wants: Callable[[str, str], bool],
             viewer: int | None = None) -> JsonObject:
        """The figures from `start` to `end`, which are beginnings of steps (a word of STEPS), of
        the functions and queues that `wants` says; `viewer` learns the numbers of their tasks."""
        seconds, base = STEPS[step], self._settings.get("throughput_base")
        span = max(one for one in SPANS if one and seconds % one == 0)
        known = self._look(span, start, end)
        self._add_living(known.tally)
        points: dict[int, Sums] = collections.defaultdict(Sums)
        functions: dict[str, Sums] = collections.defaultdict(Sums)
        machines: dict[str, Sums] = collections.defaultdict(Sums)
        totals = Sums()
        for at, (name, *queue), sums in self._parts(known, wants):
            if start <= at < end:
                for whole in (points[at - (at - start) % seconds], totals,
                              (functions if queue else machines)[name]):
                    whole.add(sums)
        return {
            "step": step, "from": iso(start), "to": iso(end),
            "points": [{"at": iso(at), "complete": at + seconds <= known.until, **points[at].json(),
                        **points[at].worker_json(base, "executed")}
                       for at in range(start, end, seconds)],
            "totals": {**totals.json(), **totals.worker_json(base, "executed")},
            "workers": [{"machine": machine, **sums.worker_json(base, "ran")}
                        for machine, sums in sorted(machines.items())],
            "functions": [{"name": name, **sums.json(), "recent": [
                {"id": task_id if owner_id == viewer or viewer is None else None, "status": status,
                 "seconds": seconds}
                for task_id, owner_id, status, seconds in known.runs.get(name, [])[-RUNS_TOLD:]]}
                for name, sums in sorted(functions.items())]}

    def runs(self) -> dict[str, list[LatestRun]]:
        """Return the latest runs of each function, oldest first."""
        return self._look(HOUR, 0, 0).runs

    def all_time(self) -> dict[tuple[str, str], Sums]:
        """{(function, queue): Sums} of all that was ever counted: they never fall."""
        whole: dict[tuple[str, str], Sums] = collections.defaultdict(Sums)
        for _, place, sums in self._parts(self._look(ALL_TIME, 0, 1), lambda *_: True):
            if len(place) == 2:         # no machine
                whole[place].add(sums)
        return whole

    def _look(self, span: int, start: int, end: int) -> Counted:
        """Read the sums of a span that begin from `start` up to `end`, and what is not folded."""
        for _ in range(5):
            mark = self._fold.mark()
            stored = [(table, row) for table in HOUR_KEYS for row in self._database.all(
                "SELECT * FROM %s WHERE span=? AND at>=? AND at<?" % table, (span, start, end))]
            recent = dict(map(tuple, self._database.all("SELECT function, runs FROM recent")))
            rows, tally = self._fold.tally(mark)
            if self._fold.mark() == mark:
                break
        runs = {name: latest_runs(recent.get(name), tally.runs.get(name, ()))
                for name in {**recent, **tally.runs}}
        until = rows[-1]["at"] if len(rows) == FOLD_ROWS else self._database.clock.now()
        return Counted(stored, runs, until, tally)

    def _add_living(self, tally: Tally) -> None:
        """Count what workers did that live, until they were last heard of. They claim several
        tasks at once, and run them one after the other."""
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
    def _parts(known: Counted, wants: Callable[[str, str], bool]) -> Iterator[PlaceSums]:
        """Yield what is stored and what is not folded, of functions and queues as `wants` says."""
        for table, row in known.stored:
            keys = HOUR_KEYS[table]
            _, at, *place = tuple(row)[:len(keys)]
            if table == "worker_hour" or wants(*place):
                yield PlaceSums(at, tuple(place), Sums.stored(row, keys))
        for (table, at, names), sums in known.tally.sums().items():
            if table == "worker_hour" or wants(*names):
                yield PlaceSums(at, names, sums)


def exposition(families: Iterable[Family]) -> str:
    """Write families in Prometheus' text format."""
    lines = []
    for name, kind, words, samples in families:
        lines += ["# HELP jobqueue_%s %s" % (name, words), "# TYPE jobqueue_%s %s" % (name, kind)]
        for ending, labels, value in samples:
            told = ",".join('%s="%s"' % (label, str(text).translate(ESCAPED))
                            for label, text in labels.items())
            lines.append("jobqueue_%s%s{%s} %r" % (name, ending, told, value))
    return "\n".join(lines).replace("{}", "") + "\n"


def counter_families(whole: dict[tuple[str, str], Sums]) -> list[Family]:
    """What Metrics.all_time() found, for exposition()."""
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
        ("tasks_total", "counter", "What became of tasks; retried, crashed: of attempts.", [
            ("", {"status": status, "function": function, "queue": queue}, sums.get(status, 0))
            for (function, queue), sums in sorted(whole.items())
            for status in COUNTS if status != "started"]),      # that falls when one is put back
        ("task_run_seconds", "histogram", "How long successful attempts ran.", histogram)]
