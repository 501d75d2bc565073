"""Processes that die, stand still or are told a wrong time: nothing is lost, nothing runs twice.

The faults are those that people's hosts have: kill -9 at the worst moment, a machine that stops
for longer than a lease, a clock that jumps, process ids that are used again.
"""

import contextlib
import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections import Counter
from unittest import mock

import jobqueue
from tests.helpers.faults import MANY, PlantedCase, has_begun, outsider
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase, wait_until
from tests.helpers.web import WebTestCase
from tests.helpers.working import TASKS, ProcessCase


# Added to a copy of jobqueue.py: a process that comes past a point for which there is a file in
# "kill at" removes the file and kills itself (or the process `pid`) there and then.
KILL_POINTS = '''
TICK_SECONDS, RENEW_SECONDS = 0.3, 0.2


def plant_kill_points():
    import functools
    program = os.path.basename(sys.argv[0])
    is_server, is_worker = "serve" in sys.argv, program == "worker.py" and "--catalogue" not in sys.argv
    reached = threading.local()

    def pass_by(point, pid=None):
        try:
            os.unlink(HOME / "kill at" / point)
        except OSError:
            return
        os.kill(pid or os.getpid(), signal.SIGKILL)

    def mark(owner, name, point=None, matters=lambda *_: True):
        real, point = getattr(owner, name), point or name

        @functools.wraps(real)
        def method(self, *values, **named):
            if not matters(*values):
                return real(self, *values, **named)
            pass_by("before " + point)
            answer = real(self, *values, **named)
            if answer or answer is None:
                reached.names.append(point)
                pass_by("in " + point)
            return answer
        setattr(owner, name, method)

    real_transaction = Database.transaction

    @contextlib.contextmanager
    def transaction(self, *values, **named):
        reached.names = []
        with real_transaction(self, *values, **named) as link:
            yield link
        for name in reached.names:
            pass_by("after " + name)

    if is_worker:
        for owner, name in ((Claims, "claim"), (Claims, "renew"),
                            (Workers, "leave"), (Reaper, "bury")):
            mark(owner, name)
        mark(Claims, "end_all", "end", lambda _, ended, *rest: ended)
    if is_server:
        mark(Adding, "add")
    if is_worker or is_server:
        Database.transaction = transaction
    if is_worker:                       # or its runner, which may be a fork of it
        real_begin = TaskContext.__init__

        def begin(self, *values, **named):
            pass_by("handed over", os.getppid())
            real_begin(self, *values, **named)
        TaskContext.__init__ = begin


plant_kill_points()
'''

# A lease of seconds, and a host whose locks prove nothing: only the lease tells who is dead.
SHORT_LEASE = '''
LEASE_SECONDS, RENEW_SECONDS, SELF_FENCE_SECONDS, TICK_SECONDS = 8.0, 0.5, 6.0, 0.3
take_real_lock, open_real_database = create_lock, open_database


def create_lock(path):
    return take_real_lock(path)[0], False


def open_database(folder, clock=Clock, patience=WEB_PATIENCE_SECONDS, address=""):
    return open_real_database(folder, clock, min(patience, 2.5), address)
'''

# The wall clock is wrong by as many seconds as the file "clock" says.
WRONG_CLOCK = '''
TICK_SECONDS = 0.3
right_now = Clock.now


def wrong_now():
    try:
        return right_now() + float((HOME / "clock").read_text())
    except (OSError, ValueError):
        return right_now()


Clock.now = staticmethod(wrong_now)
'''


class TestKilledAtAMarkedPoint(PlantedCase):
    """F1. One task alone, so that what each kill may cost is known exactly."""

    settings = {"linger": 1, "NbMaxWorker": 1, "nice": 0,
                "worker_mode": "detached"}      # auto would leave the work to slices
    server = True
    PLANTED = KILL_POINTS
    ROUNDS = 50 if MANY else 1
    POINTS = {              # starts that are right, attempts, crashes
        "before claim": ((1,), 1, 0),
        "in claim": ((1,), 1, 0),
        "after claim": ((1, 2), 2, 1),
        "handed over": ((1, 2), 2, 1),
        "mid-run": ((2,), 2, 1),
        "in renew": ((2,), 2, 1),
        "before end": ((2,), 2, 1),
        "in end": ((2,), 2, 1),
        "after end": ((1,), 1, 0),
        "before leave": ((1,), 1, 0),
        "in leave": ((1,), 1, 0),
        "after leave": ((1,), 1, 0),
    }

    def kill_later(self, point, task_id):
        """Once it runs, and before it ends."""
        runner = self.running(task_id)
        if point == "mid-run":
            os.kill(self.worker_of(task_id), signal.SIGKILL)
        else:
            self.arm(point)
        wait_until(lambda: not self.alive(runner), what="the end of the runner")
        self.release()

    def check_cost(self, task_id, point, starts, attempts, crashes):
        row = self.wait_for(task_id)
        self.assertEqual((row["attempts"], row["crashes"]), (attempts, crashes), point)
        self.assertIn(self.count(task_id), starts, point)
        self.check_records([task_id])

    def test_each_costs_what_it_must_and_no_more(self):
        visitor = self.browser()
        for point, cost in list(self.POINTS.items()) * self.ROUNDS:
            with self.subTest(point):
                until = self.hold() if point in ("mid-run", "in renew") else ""
                if not until:
                    self.arm(point)
                body = {"function": "ledger", "arguments": {"until": until}}
                task_id = visitor.send("POST", "api/tasks", body).expect(201)["id"]
                if until:
                    self.kill_later(point, task_id)
                self.killed(point)
                self.check_cost(task_id, point, *cost)
        self.check_sound()

    def test_whoever_buries_the_dead_may_die_too(self):
        self.site.stop_server()
        self.addCleanup(self.site.start_server)
        for point in ("before bury", "in bury", "after bury"):
            with self.subTest(point):
                task_id = self.enqueue("ledger", [{"until": self.hold()}], idle=True)[0]
                first = self.site.start_worker()
                runner = self.running(task_id)
                first.kill()
                first.wait(60)
                wait_until(lambda runner=runner: not self.alive(runner), what="the end of the runner")
                self.release()
                self.arm(point)
                self.assertEqual(self.site.start_worker().wait(60), -signal.SIGKILL)
                self.killed(point)
                self.assertEqual(self.site.start_worker().wait(60), 0)
                self.check_cost(task_id, point, (2,), 2, 1)
        self.check_sound()

    def test_a_stream_of_quick_tasks_survives_a_kill_at_every_point(self):
        """Batches: what was claimed and had not begun is part of what a kill hits."""
        self.site.settings(NbMaxWorker=2)
        ids = []
        for point in ("in claim", "after claim", "handed over",
                      "before end", "in end", "after end"):
            self.arm(point)
            ids += self.enqueue("ledger", [{"seconds": 0.004}] * (3000 if MANY else 80))
            self.killed(point)
        self.wait_for_all(ids, 600)
        self.check_records(ids)
        self.assertEqual(self.site.value(
            "SELECT count(*) FROM task WHERE id>=? AND status<>2 "
            "AND NOT (status=3 AND reason='crashed' AND crashes=3)", (ids[0],)), 0)
        self.check_sound()


class TestStoodStill(PlantedCase):
    """F3. Stopped beyond its lease, then continued, where no lock tells who is dead."""

    settings = {"linger": 1, "NbMaxWorker": 6, "nice": 0}
    server = True
    PLANTED = SHORT_LEASE

    def freeze(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            self.addCleanup(self.thaw, pid)

    def thaw(self, *pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def said(self):
        return [entry[:3] for entry in self.ledger()]

    def second_start(self, task_id):
        return [entry for entry in self.ledger() if entry[:3] == ("START", task_id, 2)]

    def test_its_stale_result_is_refused_and_its_runner_ended(self):
        ended, running, both = self.enqueue("ledger", [{"until": self.hold()}] + [{"seconds": 600}] * 2)
        runners = {task_id: self.running(task_id) for task_id in (ended, running, both)}
        workers = {task_id: self.worker_of(task_id) for task_id in runners}
        self.freeze(*workers.values(), runners[both])
        self.release()
        wait_until(lambda: ("END", ended, 1) in self.said(), what="its end while its worker stands still")
        self.hold()
        wait_until(lambda: all(map(self.second_start, runners)), what="the second attempts")
        self.thaw(*workers.values(), runners[both])
        wait_until(lambda: not any(map(self.alive, runners.values())), what="the end of the runners")
        self.release()
        row = self.wait_for(ended)
        self.assertEqual(row["result"], str(self.second_start(ended)[0][4]), "the second's")
        for task_id in runners:
            row, events = self.row(task_id), self.events(task_id)
            self.assertEqual((row["attempts"], row["crashes"]), (2, 1))
            self.assertEqual(row["claim"], self.second_start(task_id)[0][3])
            self.assertEqual(events[:4], ["added", "started", "crashed", "started"])
            self.assertEqual(events[4:], ["succeeded"] if task_id == ended else [])
        self.assertEqual([self.count(one, "END") for one in (running, both)], [0, 0])
        self.site.run("delete", running)
        self.site.run("delete", both)
        self.check_sound()


@about_sqlite("a stranger holds its lock")
class TestCannotRenew(PlantedCase):
    """F3. While a stranger writes for two leases nobody finds a turn to say that it lives."""

    settings = TestStoodStill.settings
    server = True
    PLANTED = SHORT_LEASE
    SECONDS = 16.0

    def test_nobody_loses_what_nobody_could_renew(self):
        tasks = [{"until": self.hold()}, {"seconds": self.SECONDS / 2}]
        held, ends = self.enqueue("ledger", tasks, on_crash="fail")
        for task_id in (held, ends):
            self.running(task_id)
        storm = outsider(next(self.site.data.glob("jobqueue-*.db")))
        self.addCleanup(storm.close)
        wait_until(lambda: has_begun(storm), what="the outsider's turn")
        time.sleep(self.SECONDS)
        storm.execute("ROLLBACK")
        self.wait_for(ends)
        time.sleep(1)                   # for whoever would take the other one
        self.release()
        self.wait_for(held)
        self.check_records([held, ends])
        self.assertEqual([tuple(row) for row in self.site.rows("SELECT attempts, crashes FROM task")],
                         [(1, 0)] * 2)


class TestKilledServer(PlantedCase):
    """F4 and F5: the server between insert and answer, and everything at once."""

    settings = {"linger": 1, "NbMaxWorker": 3, "nice": 0, "worker_mode": "detached"}
    server = True
    PLANTED = KILL_POINTS

    def add_and_lose_the_server(self, body):
        with contextlib.suppress(OSError, http.client.HTTPException):
            reply = self.visitor.send("POST", "api/tasks", body)
            self.fail("the server answered %d: %s" % (reply.status, reply.value))
        self.site.server.wait(60)
        self.site.server.stdout.close()
        self.site.start_server()
        self.visitor = self.browser()

    def test_what_was_not_answered_is_there_completely_or_not_at_all(self):
        self.visitor = self.browser()
        many = [{"function": "ledger", "arguments": {}}] * 20
        for point, found in (("in add", 0), ("after add", 20)) * (50 if MANY else 1):
            before = self.site.value("SELECT count(*) FROM task")
            self.arm(point)
            self.add_and_lose_the_server(many)
            self.killed(point)
            ids = [row[0] for row in self.site.rows("SELECT id FROM task ORDER BY id")[before:]]
            self.assertEqual(len(ids), found, point)
            self.wait_for_all(ids or [0])
            if ids:
                self.check_records(ids)
            self.assertEqual(self.site.value(
                "SELECT count(*) FROM activity WHERE event='added'"), before + found)

    @about_sqlite("threads share a commit there")
    def test_nobody_is_answered_before_the_commit_that_several_share(self):
        body, answered = {"function": "ledger", "arguments": {}}, []

        def add(visitor):
            with contextlib.suppress(OSError, http.client.HTTPException):
                answered.append(visitor.send("POST", "api/tasks", body).status)

        for point, fewest, most in (("in add", 0, 0), ("after add", 1, 8)):
            before = self.site.value("SELECT count(*) FROM task")
            browsers = [self.browser() for _ in range(8)]
            self.arm(point)
            path = next(self.site.data.glob("jobqueue-*.db"))
            with contextlib.closing(outsider(path)) as link:
                wait_until(lambda link=link: has_begun(link), what="a moment without a writer")
                clients = [threading.Thread(target=add, args=(browser,)) for browser in browsers]
                for client in clients:
                    client.start()
            self.killed(point)
            for client in clients:
                client.join(60)
            self.assertEqual(answered, [])
            self.site.server.wait(60)
            self.site.server.stdout.close()
            self.site.start_server()
            ids = [row[0] for row in self.site.rows("SELECT id FROM task ORDER BY id")[before:]]
            self.assertTrue(fewest <= len(ids) <= most, (point, ids))
            self.wait_for_all(ids or [0])

    def add_until_it_is_gone(self, visitor, acknowledged):
        body = {"function": "ledger", "arguments": {"seconds": 0.01}}
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                reply = visitor.send("POST", "api/tasks", body)
                if reply.status == 201:
                    acknowledged.append(reply.value["id"])
                time.sleep(0.02)

    def test_everything_is_killed_under_load_and_nothing_that_was_acknowledged_is_lost(self):
        chance, acknowledged = random.Random(5), []
        for _ in range(50 if MANY else 3):
            clients = [threading.Thread(target=self.add_until_it_is_gone,
                                        args=(self.browser(), acknowledged)) for _ in range(4)]
            enough = len(acknowledged) + chance.randint(20, 120)
            for client in clients:
                client.start()
            wait_until(lambda enough=enough: len(acknowledged) >= enough, what="adds")
            self.site.stop_all()
            for client in clients:
                client.join(60)
            self.site.server.stdout.close()
            self.site.start_server()
            self.wait_for_all(acknowledged)     # the third kill of one would be its last
        ids = [row[0] for row in self.site.rows("SELECT id FROM task WHERE status<>5")]
        self.assertLessEqual(set(acknowledged), set(ids))
        self.wait_for_all(ids)
        self.check_records(sorted(set(ids) & {entry[1] for entry in self.ledger()}))
        self.assertEqual({row[0] for row in self.site.rows(
            "SELECT status FROM task WHERE id IN (%s)" % ", ".join(map(str, ids)))}, {2})


HOUR, DAY = 3600.0, 86400.0
JUMPS = (HOUR, -HOUR, 10 * 365 * DAY, -DAY)


class TestWrongClock(PlantedCase):
    """F9, with real processes: the clock jumps while tasks run."""

    settings = {"linger": 2, "NbMaxWorker": 2, "nice": 0,
                "keep_days": 0, "keep_activity_days": 0}
    server = True
    PLANTED = WRONG_CLOCK

    def test_no_jump_ends_an_attempt_or_starts_a_second(self):
        ids = []
        for jump in JUMPS:
            ids += self.enqueue("ledger", [{"seconds": 0.4}] * 4)
            self.running(ids[-4])
            (self.site.home / "clock").write_text(str(jump))
            time.sleep(0.5)
        self.wait_for_all(ids)
        self.check_records(ids)
        self.assertEqual({(row["status"], row["attempts"]) for row in map(self.row, ids)}, {(2, 1)})
        late = self.enqueue("ledger", [{}], delay=0.5)[0]
        self.wait_for(late)


class TestJumps(TestCase):
    """F9, in this process: what stands in the database when the clock jumps."""

    def test_a_living_worker_keeps_its_task(self):
        worker_id, _ = self.live()
        self.add("bob")
        row = self.claim(worker_id)
        killing = mock.patch("os.kill", side_effect=AssertionError("a process was signalled"))
        killing.start()
        self.addCleanup(killing.stop)
        for jump in JUMPS:
            self.clock.wall += jump
            self.tick(queue=self.another_queue())
            self.assertEqual((self.status(row["id"]), self.claim()), ("running", None), jump)
        self.assertIsNotNone(self.end(row))
        self.assertEqual(self.events(row["id"]), ["added", "started", "succeeded"])

    def test_what_is_scheduled_is_promoted_once_and_starting_is_tried_again(self):
        for jump in JUMPS:
            task_id = self.add("bob", options={"delay": 30})
            self.clock.wall += jump
            self.clock.ticks += 30
            self.clock.wall += max(0, 30 - jump)
            for _ in range(3):
                self.tick()
            self.assertEqual(self.events(task_id).count("promoted"), 1, jump)
            self.run_one()

    def test_a_retry_that_waits_is_not_run_twice(self):
        for jump in JUMPS:
            task_id = self.add("bob", "greet", name="x")
            self.run_one("error")
            self.clock.wall += jump
            self.clock.wall += max(0, 61 - jump)
            self.tick()
            self.assertEqual(self.run_one()["attempts"], 2)
            self.assertEqual(self.status(task_id), "succeeded")


class TestSessions(WebTestCase):
    """F9: who is logged in when the clock jumps."""

    def test_sessions_end_in_time_and_nobody_is_locked_out(self):
        for jump, still in ((HOUR, False), (-HOUR, True), (10 * 365 * DAY, False), (-DAY, True)):
            visitor = self.browser("bob")
            self.assertEqual(visitor.get("/api/session").status, 200)
            self.clock.wall += jump
            status = visitor.get("/api/session").status
            self.assertIn(status, (200, 401) if still else (401,), jump)
            self.assertEqual(self.browser("bob").get("/api/session").status, 200, jump)


class TestPoison(ProcessCase):
    """F18. Each kind of death among hundreds of good tasks."""

    settings = {"linger": 1, "NbMaxWorker": 3, "nice": 0}
    server = True
    POISON = TASKS + """
@task
def poison(kind: str):
    if kind == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        os._exit(1)
    if kind == "memory":        # as the kernel ends what takes too much
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise MemoryError("no memory")
"""

    def test_poison_is_put_aside_after_three_crashes_and_all_good_tasks_are_done(self):
        self.site.write_tasks(self.POISON)
        good, bad = [], {}
        for kind in ("segv", "exit", "memory", "raise"):
            bad[kind] = self.enqueue("poison", [{"kind": kind}])[0]
            good += self.enqueue("ledger", [{}] * 75)
        self.wait_for_all(good + list(bad.values()))
        for kind, task_id in bad.items():
            row = self.row(task_id)
            expected = ("error", 0) if kind == "raise" else ("crashed", 3)
            self.assertEqual((row["status"], row["reason"], row["crashes"]), (3, *expected), kind)
        self.assertEqual(Counter(row[0] for row in self.site.rows(
            "SELECT status FROM task WHERE function='ledger'")), {2: 300})
        self.check_ledger(self.ledger(), good)


class TestReusedProcessIds(TestCase):
    """F19. A row that names a process which is not ours any more."""

    def setUp(self):
        super().setUp()
        self.victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.addCleanup(self.victim.wait)
        self.addCleanup(self.victim.kill)

    def stale(self, **columns):
        """A worker with a task, whose row names the victim; its id."""
        worker_id, handle = self.live(pid=self.victim.pid)
        self.add("bob")
        self.claim(worker_id)
        values = {"boot": "boot-1", "machine": "machine-1", **columns}
        self.write("UPDATE worker SET machine=?, boot=? WHERE id=?",
                   (values["machine"], values["boot"], worker_id))
        self.write("UPDATE task SET lease_boot=? WHERE worker_id=?", (values["boot"], worker_id))
        return worker_id, handle

    def check_reaped(self, seconds):
        self.pass_in_silence(seconds)
        for _ in range(3):
            self.clean()
        self.assertEqual(self.database.value("SELECT count(*) FROM task WHERE status=1"), 0)
        self.assertEqual(self.database.value("SELECT max(crashes) FROM task"), 1)
        time.sleep(0.05)
        self.assertIsNone(self.victim.poll(), "a process that is not ours was signalled")

    def test_the_lock_is_free(self):
        self.die(self.stale()[1])
        self.check_reaped(0)

    def test_the_lock_file_is_gone(self):
        self.die(self.stale()[1])
        next(self.queue.workers.locks.iterdir()).unlink()
        self.check_reaped(self.database.lease_seconds + 1)

    def test_somebody_else_holds_the_lock(self):
        self.stale()
        self.check_reaped(self.database.lease_seconds + 1)

    def test_the_row_is_of_another_boot_or_another_machine(self):
        for columns in ({"boot": "boot-0"}, {"machine": "machine-2", "boot": "boot-2"}):
            self.write("DELETE FROM task")
            self.stale(**columns)
            self.check_reaped(self.database.lease_seconds + jobqueue.OTHER_MACHINE_SLACK_SECONDS + 1)


@about_sqlite("thousands of claims in one transaction, which nobody does elsewhere")
class TestRetryStorm(TestCase):
    """F22. Everything fails at once, as when a service is down."""

    TASKS = 2000

    def fail_everything(self):
        """Claim and fail whatever is pending; the seconds at which they are to be tried again."""
        claims, now = self.queue.claims, self.clock.now()
        with self.database.transaction(durable=False) as transaction:
            for _ in range(self.TASKS // jobqueue.PROMOTE_AT_ONCE + 1):
                claims.promote(transaction, now)
            while True:
                rows = claims.claim(transaction, 1, now)
                if not rows:
                    break
                for row in rows:
                    claims.end(transaction, row["id"], row["claim"], jobqueue.Outcome("error"), now)
        return [row[0] - self.clock.now() for row in self.database.all(
            "SELECT run_at FROM task WHERE status=5")]

    def check_spread(self, waits, least, most):
        self.assertEqual(len(waits), self.TASKS)
        self.assertGreaterEqual(min(waits), least)
        self.assertLessEqual(max(waits), most + 0.001)
        mean = self.TASKS / (most - least)
        self.assertLess(max(Counter(map(int, waits)).values()), 3 * mean)

    def test_the_retries_are_spread(self):
        self.clock.uniform = random.Random(22).uniform
        requests = [{"function": "greet", "arguments": {"name": "x"}}] * self.TASKS
        self.queue.add(requests, self.owner_id("bob"))
        self.check_spread(self.fail_everything(), 60, 72)
        self.clock.advance(73)
        self.check_spread(self.fail_everything(), 120, 144)
        self.clock.advance(145)
        self.assertEqual(self.fail_everything(), [])
        counted = self.database.one("SELECT count(*), max(attempts) FROM task WHERE status=3")
        self.assertEqual(tuple(counted), (self.TASKS, 3))


if __name__ == "__main__":
    unittest.main()
