#!/usr/bin/env python3
"""A day on which everything happens, and every figure of it beside two other counts.

    python3 tests/tools/figures_bench.py            100,000 tasks in 24 hours, some minutes
    python3 tests/tools/figures_bench.py --quick    3,000
    python3 tests/tools/figures_bench.py --autumn   the day on which summer time ends, not the one
                                                    on which it begins

Time is a fake clock; adds, claims, ends, actions, ticks, HTTP are real. The driver keeps a ledger of what
it did and saw, with its own words and clocks. What GET /api/metrics and GET /metrics answer must be what
tests/helpers/figures.py counts in the rows of the activity, and the same again in the ledger.

Every time is a multiple of 1/1024 s, so that sums are exact in whatever order they are made.
"""
import argparse
import collections
import contextlib
import json
import math
import os
import random
import re
import sqlite3
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jobqueue
from tests.helpers import postgres
from tests.helpers.faults import outsider
from tests.helpers.figures import STEPS, Count, differences
from tests.helpers.support import PASSWORD, ROOT, function_json
from tests.helpers.web import Visitor
from tests.http.test_metrics import parsed
from tests.http.test_worker_routes import RENDER, RemoteTestCase, nonce

DAY, BEGINS = 86400, {"spring": 1806148800, "autumn": 1824897600}       # 27 March, 30 October 2027, noon UTC
ZONE = "Europe/Berlin"
JUMPS = ((7.3, 3600), (11.7, -3600), (15.1, -3600), (20.4, 3600))       # after so many hours
LOOKS = (3.02, 7.32, 15.13, 22.5)                                       # while workers live
MACHINES = ("machine-1", 'Maschine "2"')
TEXT = {"text": {"type": "string", "default": ""}}
# name: (share of the tasks, median of the seconds, options)
FUNCTIONS = {
    "add": (0, 0.0004, {}),             # see Day.tiny
    "Add": (4, 3.0, {"max_retries": 2, "retry_delay": 30, "retry_backoff": 2}),
    "Größe 日本 🐍": (4, 2.0, {"queue": "mail"}),
    'a"b\\c\nd': (3, 4.0, {"max_retries": 1, "retry_delay": 8, "queue": "mail"}),
    "' OR 1=1 --": (3, 1.0, {"on_crash": "fail"}),
    "%s {0} <b>": (3, 2.0, {"timeout": 7200}),
    "NULL": (1, 20.0, {}),
    " 1e5 ": (1, 0.0, {"queue": "B-1.x"}),
}
KINDS = [kind for kind, share in {      # how attempts end, of a hundred
    "succeeded": 77, "error": 9, "fail": 3, "put_back": 3, "crashed": 2, "interrupted": 2, "cancelled": 1,
    "timeout": 1, "unknown_function": 1, "killed": 1}.items() for _ in range(share)]
QUICK = {"count": 3000, "step": 20.0, "hands": 4, "pause": 60, "tiny": 10, "batch": 3}
WORDS = {2: "succeeded", 3: "failed", 4: "cancelled"}


def exact(seconds):
    """The multiple of 1/1024 below."""
    return math.floor(seconds * 1024) / 1024


class Hand:
    """A worker of this driver's: what it holds, until when it stays, when it was last heard of."""

    def __init__(self, worker_id, machine, until, now, handle=None):
        self.id, self.machine, self.until, self.handle = worker_id, machine, until, handle
        self.held, self.seen, self.tasks = [], now, 0


class Attempt:
    """A task that a Hand holds; `renewed` by the clock on the wall."""

    def __init__(self, row, kind, seconds, now):
        self.row, self.kind, self.seconds = row, kind, seconds
        self.begun = self.renewed = now
        self.ends = None                # by the monotonic clock, once it runs


class Day(RemoteTestCase):
    """See the module's docstring."""

    count, season, step, hands, looks, seed = 100_000, "spring", 10.0, 8, LOOKS, 7
    pause = 30                          # of the worker that asks over HTTP
    tiny, batch = 170, 60               # the share of tasks that take no time, how many are claimed at once

    def setUp(self):
        super().setUp()
        self.patch(jobqueue.Tick, "maybe", lambda *_: False)        # keep_house() alone ticks, and looks
        self.turn(leave="the day has not begun")
        self.clock.advance(BEGINS[self.season] - self.clock.now())
        self.ana = self.program("ana")
        self.worker = self.remote()
        self.scraper = Visitor(self.app, token=self.check(self.browser("ana").post("/api/tokens", {
            "name": "scraper", "scope": "metrics", "password": PASSWORD}), 201)["token"])
        self.change_settings(NbMaxWorker=2 * self.hands + 4, worker_mode="service")
        self.declare(*(function_json(name, TEXT, [], **options) for name, (_, _, options)
                       in FUNCTIONS.items()),
                     {**function_json("draw", TEXT, [], queue="c", max_retries=1, retry_delay=4),
                      "external": True})
        self.queues = {name: self.queue if name == MACHINES[0] else self.another_queue() for name in MACHINES}
        for name, queue in self.queues.items():
            queue.claims.machine = name
        self.reserve()                  # one that never reports
        self.write("DELETE FROM activity")
        self.write("DELETE FROM state WHERE name='folded'")
        self.random, self.ledger, self.known = random.Random(self.seed), [], {}
        self.living, self.dead, self.recent = [], [], collections.deque(maxlen=300)
        self.followers, self.slots, self.claims = set(), set(), 0
        self.distant, self.drawn, self.beats = None, [], collections.Counter()
        self.done, self.checked = collections.Counter(), []
        self.foreign = None
        if not postgres.ADDRESS:
            [path] = (self.folder / "data").glob("jobqueue-*.db")
            self.foreign = outsider(path)
            self.foreign.row_factory = sqlite3.Row
            self.addCleanup(self.foreign.close)

    # What the ledger says

    def note(self, event, task_id=None, worker_id=None, **more):
        """A line of the ledger."""
        function, queue, created_at = self.known[task_id][:3] if task_id else (None, None, None)
        at = more.pop("at", self.clock.now())
        row = {"at": at, "event": event, "task_id": task_id, "worker_id": worker_id, "function": function,
               "queue": queue, "service": at - created_at if task_id else None,
               **dict.fromkeys(("waited", "seconds", "cpu_seconds", "peak_memory", "machine")), **more}
        self.ledger.append(row)
        self.done[event] += 1

    def know(self, ids):
        """Tasks that were added."""
        for task_id, row in self.rows_of(ids).items():
            self.known[task_id] = row["function"], row["queue"], row["created_at"]
            self.note("added", task_id)
            self.recent.append(task_id)

    def rows_of(self, ids):
        """{id: row} of those that are there."""
        return {row["id"]: row for row in self.database.all(
            "SELECT * FROM task WHERE id IN (%s) ORDER BY id" % ", ".join(map(str, ids)))}

    def note_end(self, hand, attempt, kind, seconds, **more):
        """An attempt has ended: the row of the task tells what became of it."""
        task_id = attempt.row["id"]
        self.note_end_of(self.row(task_id), hand, task_id, kind, seconds, **more)

    def note_end_of(self, row, hand, task_id, kind, seconds, **more):
        """The same for a row that is known."""
        word = WORDS.get(row["status"]) if row else ("succeeded" if kind == "succeeded" else "cancelled")
        if word is None:
            word = {"error": "retry", "timeout": "retry", "unknown_function": "put_back"}.get(kind, kind)
        self.note(word, task_id, hand and hand.id, seconds=seconds, **more)

    def note_failed_followers(self):
        """Tasks that failed because one that they come after did."""
        if self.followers:
            for row in self.database.all(
                    "SELECT id, status, reason, finished_at FROM task WHERE id IN (%s) AND status<>6"
                    % ", ".join(map(str, self.followers))):
                self.followers.discard(row["id"])
                if row["reason"] == "dependency":
                    self.note("failed", row["id"], at=row["finished_at"])
                    self.done["follower"] += 1

    # What people do

    def add_some(self, count):
        """Several people add so many tasks."""
        for owner in ("ana", "bob", "eve"):
            part = count if owner == "eve" else self.random.randint(0, count)
            count -= part
            requests = [self._order() for _ in range(part)]
            if requests:
                ids = self.queue.add(requests, self.owner_id(owner))
                self.know(ids)
                self.followers.update(task_id for task_id, one in zip(ids, requests) if "after" in one)
        self.note_failed_followers()

    def _order(self):
        chance, names = self.random.random(), [*FUNCTIONS]
        [function] = self.random.choices(names, [self.tiny, *(share for share, _, _ in [
            *FUNCTIONS.values()][1:])])
        order = {"function": function, "arguments": {}}
        if chance < 0.05:
            order["delay"] = self.random.randint(1, 1200)
        elif chance < 0.10:
            order["remove_on_success"] = True
        elif chance < 0.15:
            order["priority"] = self.random.choice((-5, 5))
        elif chance < 0.18 and self.distant:        # it is offered while a worker has it
            order["function"] = "render"
        elif chance < 0.21 and self.foreign:
            order["function"] = "draw"
        return order

    def meddle(self):
        """Somebody cancels, retries, deletes a task, or adds one that comes after it."""
        held = [attempt.row["id"] for hand in self.living for attempt in hand.held]
        newest = [*self.recent][-5:]
        task_id = self.random.choice(self.random.choice((held or newest, newest, self.recent)))
        row, action = self.row(task_id), self.random.choice(("cancel", "retry", "delete", "after"))
        if row is None or row["cancel_requested"] == 2:
            return
        status = jobqueue.STATUS_WORDS[row["status"]]
        if action == "after":
            ids = self.queue.add([{"function": "Add", "after": [task_id], "arguments": {}}], row["owner_id"])
            self.know(ids)
            self.followers.update(ids)
        elif action == "delete":
            self.delete(task_id)
        elif action == "cancel" and status not in ("succeeded", "failed", "cancelled"):
            self.cancel(task_id)
            if status != "running":
                self.note("cancelled", task_id)
        elif action == "retry" and status in ("failed", "cancelled"):
            with contextlib.suppress(jobqueue.Conflict):
                if self.retry(task_id)["status"] == 6:
                    self.followers.add(task_id)
        else:
            return
        self.done[action + " " + status] += 1
        self.note_failed_followers()

    # Our workers

    def work(self):
        """Workers come, claim, end what has run long enough, and go."""
        while len(self.living) < self.hands:
            self._arrive()
        if self.clock.monotonic() >= self.beats["renew"]:
            self.beats["renew"] = self.clock.monotonic() + 12
            for machine, queue in self.queues.items():
                with queue.database.transaction(durable=False) as transaction:
                    for hand in self.living:
                        if hand.machine == machine and self.clock.now() != hand.seen:
                            self._renew(transaction, queue, hand)
        self.is_empty = False           # what this step's workers found
        for hand in list(self.living):
            self._work(hand)
        self.note_failed_followers()

    def _arrive(self):
        machine = self.random.choice(MACHINES)
        queue = self.queues[machine]
        with queue.database.transaction() as transaction:
            [(worker_id, lock)] = queue.workers.reserve(transaction, "detached", 1)
        handle, _ = jobqueue.create_lock(queue.workers.locks / lock)
        self.locks.add(handle)
        self.assertTrue(queue.workers.arrive(worker_id, lock, True, os.getpid()))
        hand = Hand(worker_id, machine, self.clock.monotonic() + self.random.randint(300, 3000),
                    self.clock.now(), handle)
        hand.lock = lock
        self.living.append(hand)
        self.note("worker_started", None, worker_id, machine=machine)

    def _renew(self, transaction, queue, hand):
        queue.workers.heartbeat(transaction, hand.id, "busy" if hand.held else "idle", hand.tasks)
        hand.seen = self.clock.now()
        for attempt in hand.held:
            row = attempt.row
            self.assertTrue(queue.claims.renew(transaction, row["id"], row["claim"], hand.seen))
            attempt.renewed = hand.seen

    def _work(self, hand):
        now, queue, ended = self.clock.monotonic(), self.queues[hand.machine], []
        while hand.held and hand.held[0].ends <= now and hand.held[0].kind != "killed":
            ended.append(hand.held.pop(0))
            if hand.held:
                hand.held[0].ends = max(ended[-1].ends, now - 1) + hand.held[0].seconds
        if ended:
            self._end(hand, ended)
        if hand.held and hand.held[0].ends <= now:
            return self._die(hand)
        if not hand.held and hand.until <= now:
            with queue.database.transaction() as transaction:
                queue.workers.leave(transaction, hand.id, "its time is over", hand.tasks)
            self.locks.discard(hand.handle)
            queue.workers.remove_lock(hand.lock, hand.handle)
            self.living.remove(hand)
            return self.note("worker_ended", None, hand.id)
        if not hand.held and not self.is_empty:
            for row in self.claim_many(self.random.choice((1, self.batch)), hand.id, queue):
                self._take(hand, row)
            self.is_empty = not hand.held
        return None

    def _take(self, hand, row):
        now = self.clock.now()
        median = FUNCTIONS[row["function"]][1]
        kind = self.random.choice(KINDS)
        if hand.held and kind == "killed":
            kind = "succeeded"          # one of a batch is enough
        seconds = exact(min(2000, self.random.lognormvariate(0, 1.2) * median))
        if self.random.random() < 2 / self.count:
            kind, seconds = "succeeded", 4.25 * 3600        # over many hours
        attempt = Attempt(row, kind, seconds, now)
        hand.held.append(attempt)
        if len(hand.held) == 1:
            attempt.ends = self.clock.monotonic() + seconds
        self.note("started", row["id"], hand.id, waited=now - max(row["created_at"], row["run_at"] or 0))

    def _end(self, hand, attempts):
        ids = [attempt.row["id"] for attempt in attempts]
        before, outcomes = self.rows_of(ids), []
        for attempt in attempts:
            kind, seconds, more = attempt.kind, attempt.seconds, {}
            if kind == "cancelled" and not before[attempt.row["id"]]["cancel_requested"]:
                kind = "succeeded"
            if kind != "put_back" and self.random.random() < 0.7:
                more = {"cpu_seconds": exact(seconds / 3), "peak_memory": self.random.randrange(10 ** 8)}
            outcomes.append((kind, {**more, "seconds": seconds}))
        with self.queue.database.transaction(durable=False) as transaction:
            verdicts = self.queue.claims.end_all(transaction, [
                (attempt.row["id"], attempt.row["claim"], jobqueue.Outcome(kind, **more))
                for attempt, (kind, more) in zip(attempts, outcomes)], self.clock.now())
        self.assertTrue(all(verdicts))
        after = self.rows_of(ids)
        for attempt, (kind, more) in zip(attempts, outcomes):
            hand.tasks += kind != "put_back"
            self.note_end_of(after.get(attempt.row["id"]), hand, attempt.row["id"], kind, **more)
            self.done["kind " + kind] += 1

    def _die(self, hand):
        self.living.remove(hand)
        self.die(hand.handle)
        self.dead.append(hand)

    def see_burials(self):
        """Show the files out just now about workers that were killed or fell silent."""
        if not self.dead:
            return
        there = {row[0] for row in self.database.all("SELECT id FROM worker")}
        for hand in [hand for hand in self.dead if hand.id not in there]:
            self.dead.remove(hand)
            now = self.clock.now()
            self.note("worker_lost", None, hand.id, waited=max(0.0, now - hand.seen))
            for attempt in hand.held:
                self._note_lost(hand, attempt, now)

    def _note_lost(self, hand, attempt, now):
        """It counts until its worker should have been heard of again."""
        ended = min(now, attempt.renewed + (130 if hand.machine == "strong" else 10))
        if attempt.kind == "unconfirmed":
            return self.note_end(hand, attempt, "put_back", now - attempt.begun)
        return self.note_end(hand, attempt, "crashed", max(0.0, ended - attempt.begun))

    # Remote workers

    def work_far_away(self):
        """A worker that asks over HTTP: it comes, takes tasks one after the other, goes or falls silent."""
        hand, now = self.distant, self.clock.monotonic()
        if hand is None:
            self.claims += 1
            self.session = nonce(1000 + self.claims)
            self.hello(session=self.session, functions=[{**RENDER, "schema": function_json(
                "render", TEXT, [])["schema"]}])
            worker_id = self.database.value("SELECT max(id) FROM worker")
            self.distant = Hand(worker_id, "strong", now + self.random.randint(300, 2000), self.clock.now())
            return self.note("worker_started", None, worker_id, machine="strong")
        if hand.until <= now and self.random.random() < 0.5:    # nobody hears of it any more
            self.distant = None
            self.done["silent with %d" % len(hand.held)] += 1
            return self.dead.append(hand)
        if hand.until <= now:
            self.turn(leave="its time is over", session=self.session)
            self.distant = None
            self.note("worker_ended", None, hand.id)
            for attempt in hand.held:
                self._note_lost(hand, attempt, self.clock.now())
            return None
        return self._turn(hand, now)

    def _turn(self, hand, now):
        given, ending = {}, None
        for attempt in hand.held:
            name = {"id": attempt.row["id"], "claim": attempt.row["claim"]}
            if attempt.kind == "unconfirmed":
                given["start"], attempt.kind = [name], "succeeded"
            elif attempt.ends <= now:
                ending = attempt
                attempt.kind = self.random.choice(("succeeded", "succeeded", "error", "crashed"))
                given["end"] = [{**name, "outcome": {"kind": attempt.kind, "seconds": attempt.seconds}}]
            else:
                given["hold"] = [name]
            attempt.renewed = self.clock.now()
        if not hand.held or ending:
            self.claims += 1
            given["claim"] = {"claims": [nonce(10 ** 9 + self.claims)]}
        told = self.turn(session=self.session, **given)
        hand.seen = self.clock.now()
        if ending:
            hand.held.remove(ending)
            self.note_end(hand, ending, ending.kind, ending.seconds)
        for task in told["tasks"]:
            row = self.row(task["id"])
            seconds = exact(self.random.lognormvariate(3, 1))
            attempt = Attempt({"id": task["id"], "claim": task["claim"]}, "unconfirmed", seconds, hand.seen)
            attempt.ends = now + seconds
            hand.held.append(attempt)
            self.note("started", task["id"], hand.id,
                      waited=hand.seen - max(row["created_at"], row["run_at"] or 0))

    # Workers in other languages

    def work_in_sql(self, goes_on=True):
        """One with nothing but the statements of the handbook."""
        now = self.clock.monotonic()
        for attempt in list(self.drawn):
            over = attempt.ends <= now or not goes_on
            word = "renew" if not over else self.random.choice(("succeed", "succeed", "fail"))
            asked = bool(self.row(attempt.row["id"])["cancel_requested"])
            self._say(word, attempt.row["id"], attempt.row["claim"])
            attempt.renewed = self.clock.now()
            if over:
                self.drawn.remove(attempt)
                kind = {"succeed": "succeeded", "fail": "cancelled" if asked else "error"}[word]
                self.note_end(None, attempt, kind, self.clock.now() - attempt.begun)
        if goes_on and not self.drawn:
            self.claims += 1
            claim = nonce(self.claims)
            for row in self._say("claim_next", 0, claim):
                attempt = Attempt({"id": row["id"], "claim": claim}, None,
                                  self.random.randint(1, 90), self.clock.now())
                attempt.ends = now + attempt.seconds
                self.drawn.append(attempt)
                row = self.row(row["id"])
                self.note("started", row["id"], waited=max(0.0, attempt.begun - max(
                    row["created_at"], row["run_at"] or 0)))
        self.note_failed_followers()

    def _say(self, function, task_id, claim):
        text = (ROOT / "tests" / "tools" / "foreign_worker.sh").read_text("utf-8")
        part = re.search(r"^%s\(\) .*?<<'SQL'\n(.*?)^SQL$" % function, text, re.S | re.M)[1]
        found = []
        for statement in filter(str.strip, part.split(";")):
            found = self.foreign.execute(statement, {
                "queue": "c", "claim": claim, "id": task_id, "boot": "boot-1", "now": self.clock.now(),
                "monotonic": self.clock.monotonic(), "result": "1", "error_type": "Failed",
                "error_message": "it said so", "progress": None, "message": None}).fetchall() or found
        return found

    # The day

    def live_through(self, says=lambda words: None):
        """24 hours, with four looks at the figures meanwhile."""
        for rule in ("every 10m", "daily 02:30", "*/7 * * * *"):
            self.schedule(rule, function="Add", arguments={}, zone=ZONE)
        passed, added, jumps, looks = 0.0, 0, list(JUMPS), list(self.looks)
        acts = {"tick": (60, self.keep_house), "far": (self.pause, self.work_far_away),
                "sql": (40, self.work_in_sql if self.foreign else lambda: None)}
        while passed < DAY:
            self.clock.advance(self.step)
            passed += self.step
            if jumps and passed >= jumps[0][0] * 3600:
                self.clock.wall += jumps.pop(0)[1]
            part = int(self.count * passed / DAY) - added
            added += part
            if part:
                self.add_some(part)
                self.see_burials()
            if self.random.random() < self.count / DAY * self.step / 10:
                self.meddle()
            self.work()
            for name, (seconds, act) in acts.items():
                if passed >= self.beats[name]:
                    self.beats[name] = passed + seconds
                    act()
                    self.see_burials()
            if looks and passed >= looks[0] * 3600:
                looks.pop(0)
                says("after %.1f hours: %d differ" % (passed / 3600, len(self.compare(is_short=True))))
        self.go_home()

    def keep_house(self):
        """A tick, and what the ledger must know of it."""
        self.clean()
        found = [row[0] for row in self.database.all(
            "SELECT task_id FROM slot WHERE task_id IS NOT NULL") if row[0] not in self.known]
        self.know(sorted(found))
        self.done["by schedules"] += len(found)
        self.see_burials()
        self.note_failed_followers()

    def go_home(self):
        """Whoever has nothing to do leaves; the others are killed, or fall silent."""
        self.work_in_sql(goes_on=False)
        self.dead += [self.distant] if self.distant else []
        for hand in list(self.living):
            hand.until = 0
            self._work(hand)
        for hand in list(self.living):
            self._die(hand)
        while self.dead:
            self.clock.advance(5)
            self.keep_house()
        self.clock.advance(61)
        self.keep_house()

    # What is compared

    def compare(self, is_short=False):
        """Ask for every figure; what differs from either count, with a few words about where."""
        workers = [tuple(row) for row in self.database.all("SELECT id, seen_at FROM worker")]
        running = [tuple(row) for row in self.database.all(
            "SELECT worker_id, started_at FROM task WHERE status=1 AND worker_id IS NOT NULL")]
        rows = [dict(zip(row.keys(), row)) for row in self.database.all("SELECT * FROM activity ORDER BY id")]
        counts = {name: Count(one, workers, running)
                  for name, one in (("activity", rows), ("ledger", self.ledger))}
        found = []
        for query in self._queries(is_short):
            found += self._ask(query, counts)
        for base in () if is_short else (60, 0):
            self.change_settings(throughput_base=base)
            found += self._ask({"step": "6h"}, counts, base)
        found += self._scrape(counts)
        self.checked.append(found)
        return found

    def _queries(self, is_short):
        begins = BEGINS[self.season]
        wide = {"from": begins - 7000, "to": begins + DAY + 7000}
        yield {"step": "hour", **wide}
        if is_short:
            return
        for step in STEPS:
            for function in (None, "render", "draw", *FUNCTIONS):
                yield {"step": step, "function": function, **wide}
            for queue in ("default", "mail", "B-1.x", "remote", "c"):
                yield {"step": step, "queue": queue, **wide}
            yield {"step": step, "queue": "mail", "function": "Größe 日本 🐍", **wide}
            yield {"step": step, "queue": "mail", "function": "add", **wide}
        yield {"step": "hour", "from": begins + 7777.7, "to": begins + 8000.1}      # within an hour
        yield {"step": "week", "from": begins - 30 * DAY, "to": begins + 10 * DAY}

    def _ask(self, query, counts, base=0):
        given = {name: value for name, value in query.items() if value is not None}
        start, end = given.get("from", self.clock.now() - DAY), given.get("to", self.clock.now())
        for name in {"from", "to"} & set(given):
            given[name] = jobqueue.iso(given[name])
        told = self.check(self.ana.get("/api/metrics?" + urlencode(given)), 200)
        del told["counted_from"]        # of figures of one person only
        return [("%s %s%s" % (name, json.dumps(given, ensure_ascii=False), place), ours, right)
                for name, count in counts.items() for place, ours, right in differences(told, count.told(
                    start, end, query["step"], self.clock.now(), query.get("function"), query.get("queue"),
                    base))]

    def _scrape(self, counts):
        reply = self.scraper.get("/metrics")
        self.exposition = reply.body.decode()
        told = {key: value for key, value in parsed(self.exposition).items() if "function" in dict(key[1])}
        return [("%s /metrics" % name, *one) for name, count in counts.items()
                for one in set(told.items()) ^ set(count.counters().items())]


@contextlib.contextmanager
def passing(**settings):
    """A Day, begun, and tidied up in the end."""
    zone, day = os.environ.get("TZ"), type("Day", (Day,), settings)()
    os.environ["TZ"] = ZONE             # figures are in UTC wherever a host is
    time.tzset()
    try:
        day.setUp()
        yield day
    finally:
        day.doCleanups()
        os.environ.pop("TZ")
        os.environ.update({"TZ": zone} if zone else {})
        time.tzset()


def main():
    """Live through a day and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--autumn", action="store_true")
    options = parser.parse_args()
    size = QUICK if options.quick else {}
    with passing(season="autumn" if options.autumn else "spring", **size) as day:
        began = time.monotonic()
        day.live_through(print)
        print("%.0f s for the day: %d tasks, %d rows of the activity" % (
            time.monotonic() - began, len(day.known), day.database.value("SELECT count(*) FROM activity")))
        print("\n".join("%7d %s" % (number, word) for word, number in sorted(day.done.items())))
        found = day.compare()
        print("%d figures differ" % len(found))
        for one in found[:60]:
            print(*one, sep="\n    ")
        told = day.ana.get("/api/metrics?" + urlencode({"step": "day", "from": jobqueue.iso(
            BEGINS[day.season] - DAY)})).json
        print(json.dumps({name: told[name] for name in ("totals", "workers")}, indent=1))
        return 1 if any(day.checked) else 0


if __name__ == "__main__":
    sys.exit(main())
