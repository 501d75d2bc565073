#!/usr/bin/env python3
"""Backtests: how often what a forecast tells of a task at its adding holds what then comes.

    python3 tests/tools/forecast_bench.py           500 backtests and some far ones, two minutes
    python3 tests/tools/forecast_bench.py --quick   60

Each world is a queue of its own, in simulated time: real adds, real claims, real ends. Two people
add mixed functions at several priorities, some of them to a queue with a rate, some that fail and
are retried; three workers run them. How long they take is lognormal with sigma 1.5. What is added
later may come before, as in life.
"""
import argparse
import contextlib
import heapq
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jobqueue
from tests.helpers.support import FakeClock, close_quietly, function_json

SIGMA = 1.5
# name: (median of the seconds, share of attempts that fail, options)
FUNCTIONS = {
    "thumbnail": (3.0, 0.0, {}),
    "report": (40.0, 0.0, {}),
    "fetch": (8.0, 0.2, {"max_retries": 2, "retry_delay": 20}),
    "mail": (1.0, 0.0, {"queue": "mail"}),
}
MAIL_RATE = {"count": 10, "seconds": 60}
WORKERS = 3
KNOWN_RUNS = 60
BATCHES, BATCH_MOST = 5, 40             # of a world; the last task of each batch is a backtest
FAR_TASKS = 1500
PROBABLE = (0.6, 0.9)                   # wanted: what is told holds so often


class World:
    """A queue in simulated time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.folder = tempfile.mkdtemp(prefix="jobqueue forecast ")
        self.queue = jobqueue.JobQueue(self.folder + "/data", self.clock, {})
        self.began, self.ended = {}, {}
        self._busy, self._idle = [], []
        self._prepare()

    def close(self):
        """Remove what is left of it."""
        close_quietly(self.queue)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self):
        queue, now = self.queue, self.clock.now()
        queue.catalogue.store({"error": None, "functions": [
            function_json(name, **options) for name, (_, _, options) in FUNCTIONS.items()]})
        queue.queues.change("mail", {"rate": MAIL_RATE}, "ana")
        queue.settings.change({"NbMaxWorker": WORKERS, "worker_mode": "detached"})
        with queue.database.transaction() as transaction:
            self.owners = [transaction.insert("user", {
                "name": name, "password": "", "role": "user", "created_at": now})
                for name in ("ana", "bob")]
            self._idle = [worker_id for worker_id, _ in queue.workers.reserve(
                transaction, "detached", WORKERS)]
            for name in list(FUNCTIONS) * KNOWN_RUNS:
                seconds, fails = self._draw(name)
                again = fails and FUNCTIONS[name][2].get("max_retries")
                jobqueue.record_activity(transaction, now, "retry" if again else "succeeded", None,
                              function=name, queue="default", seconds=seconds)

    def _draw(self, name):
        """(seconds, whether it fails) of an attempt."""
        median, failing, _ = FUNCTIONS[name]
        return median * self.random.lognormvariate(0, SIGMA), self.random.random() < failing

    def add(self, count, functions=tuple(FUNCTIONS)):
        """Somebody adds so many tasks; the id of the last."""
        priority = self.random.choice((-5, 0, 0, 0))
        owner = self.random.choice(self.owners)
        orders = self.queue.requests.check([
            {"function": self.random.choice(functions), "priority": priority}
            for _ in range(count)])
        return self.queue.add_orders(orders, owner)["ids"][-1]

    def forecast(self, task_id):
        """What is told of a task."""
        return self.queue.forecast.of_task(self.queue.tasks.get(task_id))

    def run(self, seconds=float("inf")):
        """Let workers work for so long, or until nothing is left."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self._claim()
            moments = [self._busy[0][0]] if self._busy else []
            if self._idle:
                moments += filter(None, (self.queue.claims.next_due(of_all=True),
                                         self.queue.claims.rate_opens()))
            if not moments:
                break
            self.clock.advance(max(0.001, min(until, *moments) - self.clock.now()))
            self._end()

    def _claim(self):
        while self._idle:
            with self.queue.database.transaction(durable=False) as transaction:
                rows = self.queue.claims.claim(transaction, self._idle[-1], self.clock.now())
            if not rows:
                break
            row, now = rows[0], self.clock.now()
            seconds, fails = self._draw(row["function"])
            self.began.setdefault(row["id"], now)
            heapq.heappush(self._busy, (now + seconds, row["id"], row, seconds, fails,
                                        self._idle.pop()))

    def _end(self):
        while self._busy and self._busy[0][0] <= self.clock.now():
            _, task_id, row, seconds, fails, worker_id = heapq.heappop(self._busy)
            outcome = jobqueue.Outcome("error" if fails else "succeeded", seconds=seconds)
            with self.queue.database.transaction(durable=False) as transaction:
                verdict = self.queue.claims.end(
                    transaction, task_id, row["claim"], outcome, self.clock.now())
            self._idle.append(worker_id)
            if verdict.status in jobqueue.ENDED:
                self.ended[task_id] = self.clock.now()


def holds(told, moment):
    """Whether a moment lies within what was told of it; None if nothing was."""
    if told is None:
        return None
    low, high = (jobqueue.parse_time(text, "") for text in told)
    return low - 0.5 <= moment <= high + 0.5


def backtest(seed, far=False):
    """[(how many were before, the start was as told, the end was)] of one world."""
    found = {}
    with contextlib.closing(World(seed)) as world:
        if far:
            found_at = world.add(FAR_TASKS, ("thumbnail", "fetch"))
            found[found_at] = world.forecast(found_at)
        for _ in range(0 if far else BATCHES):
            task_id = world.add(world.random.randint(1, BATCH_MOST))
            found[task_id] = world.forecast(task_id)
            world.run(world.random.uniform(0, 300))
        world.run()
        return [(one["before"], holds(one["expected_start"], world.began[task_id]),
                 holds(one["expected_end"], world.ended[task_id])) for task_id, one in found.items()]


def rates(results, place):
    """(share that was as told, of how many)"""
    known = [one[place] for one in results if one[place] is not None]
    return sum(known) / max(1, len(known)), len(known)


def backtests(worlds, first=0, far=False):
    """The results of so many worlds."""
    return [one for seed in range(first, first + worlds) for one in backtest(seed, far)]


def large(pending=10_000):
    """Milliseconds of processor time that the first forecast with so many pending tasks takes."""
    with contextlib.closing(World(0)) as world:
        task_id = world.add(pending)
        began = time.process_time()
        told = world.forecast(task_id)
        assert told["expected_start"], told
        return 1000 * (time.process_time() - began)


def main():
    """Print how often forecasts hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    near = backtests(12 if options.quick else 100)
    far = backtests(2 if options.quick else 20, far=True)
    groups = {"under 10 before": [one for one in near if one[0] < 10],
              "10 to 499": [one for one in near if 10 <= one[0] < 500],
              "500 and more": far, "all": near + far}
    for name, results in groups.items():
        print("%-16s start as told %3.0f %% of %d, end %3.0f %% of %d" % (
            name, *[part for place in (1, 2) for part in (
                100 * rates(results, place)[0], rates(results, place)[1])]))
    print("wanted: 60 to 90 %")
    print("10,000 pending: %.0f ms" % large())


if __name__ == "__main__":
    main()
