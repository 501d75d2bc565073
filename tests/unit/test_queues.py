"""Queues: what pauses, limits, rates and machines let start, and who may change them."""
import random
import unittest
from unittest import mock

import jobqueue
from jobqueue import Queues
from tests.helpers import postgres
from tests.helpers.support import TestCase
from tests.helpers.web import WebTestCase


class QueueCase(TestCase):
    def make(self, name="post", **limits):
        """A queue with these limits."""
        self.queue.queues.change(name, {"name": name, **limits}, "ana", new=True)

    def change(self, name="post", **changes):
        self.queue.queues.change(name, changes, "ana")

    def fill(self, count, name="post", **options):
        """Add so many tasks to a queue; their ids."""
        return self.add_many("ana", count, options={"queue": name, **options})

    def shown(self, name="post"):
        return self.queue.queues.get(name, self.queue.claims.machine)

    def claimable(self, limit=100):
        return self.queue.claims.claimable(limit)

    def starts(self, seconds, step=0.01, wanted=1, **options):
        """When tasks started that were claimed as soon as possible for so long, from 0."""
        began, found = self.clock.now(), []
        while self.clock.now() < began + seconds:
            for row in self.claim_many(wanted, **options):
                found.append(self.clock.now() - began)
                self.end(row)
            self.clock.advance(step)
        return found


def most_within(seconds, moments):
    """The largest number of moments in any closed stretch of so many seconds."""
    return max(sum(1 for moment in moments if first <= moment <= first + seconds) for first in moments)


class Pausing(QueueCase):
    def test_a_paused_queue_starts_nothing_and_says_who_and_why(self):
        self.make()
        self.fill(2)
        self.change(paused=True, paused_why="the provider is down")
        self.assertIsNone(self.claim())
        self.assertEqual(self.claimable(), 0)
        shown = self.shown()
        self.assertEqual((shown["paused"], shown["paused_by"], shown["paused_why"], shown["blocked"]),
                         (True, "ana", "the provider is down", "paused"))
        self.assertEqual(shown["paused_at"], jobqueue.iso(self.clock.now()))

    def test_a_pending_task_tells_what_holds_it(self):
        self.make()
        running, held = self.fill(2)
        for limits, why, words in (
                ({"paused": True, "paused_why": "provider down"}, "paused",
                 "The queue post is paused by ana: provider down."),
                ({"paused": False, "machines": ["web1", "web2"]}, "machines",
                 "The queue post waits for a worker on web1 or web2."),
                ({"machines": None}, None, None)):
            self.change(**limits)
            shown = self.queue.get_json(held)
            self.assertEqual((shown["blocked"], shown["blocked_text"]), (why, words))
        self.change(max_running=1, rate={"count": 1, "seconds": 60})
        self.claim()
        self.assertEqual(self.queue.get_json(held)["blocked_text"], "The queue post runs at most 1 at once.")
        self.change(max_running=None)
        self.assertEqual(self.queue.get_json(held)["blocked_text"],
                         "The queue post starts at most 1 in 1 min.")
        self.assertIsNone(self.queue.get_json(running)["blocked"], "it runs")
        self.write("UPDATE queue SET external=1 WHERE name='post'")
        self.assertEqual(self.queue.get_json(held)["blocked"], "external")

    def test_what_runs_in_a_paused_queue_ends_as_usual(self):
        self.make()
        self.fill(1)
        row = self.claim()
        self.change(paused=True)
        self.assertEqual(self.end(row).status, jobqueue.SUCCEEDED)

    def test_a_resumed_queue_forgets_that_it_was_paused(self):
        self.make(paused=True, paused_why="x")
        self.fill(1)
        self.change(paused=False)
        shown = self.shown()
        forgotten = ("paused_by", "paused_at", "paused_why", "blocked")
        self.assertEqual([shown[key] for key in ("paused", *forgotten)], [False, None, None, None, None])
        self.assertIsNotNone(self.claim())

    def test_a_second_pause_keeps_who_was_first(self):
        self.make(paused=True)
        before = self.shown()
        self.clock.advance(60)
        self.queue.queues.change("post", {"paused": True, "paused_why": "moving"}, "bob")
        self.assertEqual(self.shown(), {**before, "paused_why": "moving"})
        self.change(paused_why=None)
        self.assertEqual(self.shown(), before)

    def test_who_changed_what_stays_in_the_activity(self):
        self.make(max_running=2)
        self.change(paused=True, paused_why="moving")
        self.change(paused=False)
        rows = jobqueue.find_activity(self.database)[0]
        self.assertEqual([(row["event"], row["queue"], row["actor"], row["message"]) for row in rows], [
            ("queue_changed", "post", "ana", '{"paused":false}'),
            ("queue_changed", "post", "ana", '{"paused":true,"paused_why":"moving"}'),
            ("queue_changed", "post", "ana", '{"name":"post","max_running":2}')])


class MaxRunning(QueueCase):
    def test_never_more_run_than_allowed(self):
        self.make(max_running=2)
        self.fill(5)
        rows = [self.claim(), self.claim()]
        self.assertIsNone(self.claim())
        self.assertEqual(self.shown()["blocked"], "max_running")
        self.end(rows[0])
        self.assertEqual(self.claimable(), 1)
        self.assertIsNotNone(self.claim())
        self.assertIsNone(self.claim())

    def test_what_holds_a_task_is_told_though_another_ends_meanwhile(self):
        self.make(max_running=1)
        held, count = self.fill(2)[1], Queues.count
        running = [self.claim()]

        def count_and_end(*arguments):
            found = count(*arguments)
            while running:
                self.end(running.pop())
            return found

        with mock.patch.object(Queues, "count", staticmethod(count_and_end)):
            self.assertEqual(self.queue.get_json(held)["blocked_text"],
                             "The queue post runs at most 1 at once.")
        self.assertIsNone(self.queue.get_json(held)["blocked_text"])

    def test_a_batch_keeps_to_it(self):
        self.make(max_running=3)
        self.fill(10)
        self.assertEqual(len(self.claim_many(10, function="add")), 3)
        self.assertEqual(self.claim_many(10, function="add"), [])

    def test_a_running_task_that_is_to_be_cancelled_or_deleted_keeps_its_place(self):
        self.make(max_running=2)
        ids = self.fill(3)
        rows = [self.claim(), self.claim()]
        self.cancel(ids[0])
        self.delete(ids[1])
        self.assertIsNone(self.claim())
        for row in rows:
            self.end(row, "cancelled")
        self.assertEqual(self.claim()["id"], ids[2])

    def test_one_that_is_full_does_not_hide_another(self):
        self.make(max_running=1)
        self.fill(2, priority=5)
        other = self.add()
        self.assertEqual(self.claim()["queue"], "post")
        self.assertEqual(self.claim()["id"], other)
        self.assertIsNone(self.claim())


class LimitsOfUsers(QueueCase):
    """A person's tasks hold no more workers than they may, and hide nobody else's."""

    def limit(self, name="bob", most=2):
        self.queue.users.change(name, max_running=most)

    def running(self, name="bob"):
        return self.database.value("SELECT count(*) FROM task WHERE status=1 AND owner_id=?",
                                   (self.owner_id(name),))

    def longest_wait(self):
        return self.queue.claims.longest_wait()

    def test_never_more_run_than_allowed_in_all_queues_together(self):
        self.make("a")
        self.make("b")
        self.limit()
        for queue in ("a", "b", "default", "a", "b"):
            self.add("bob", options={"queue": queue})
        rows = [self.claim(), self.claim()]
        self.assertEqual((self.claim(), self.claimable()), (None, 0))
        self.end(rows[0])
        self.assertEqual(self.claimable(1), 1)
        self.assertIsNotNone(self.claim())
        self.assertIsNone(self.claim())

    def test_a_change_counts_at_once(self):
        self.limit(most=1)
        self.add_many("bob", 5)
        self.claim()
        for most, claimed in ((1, 0), (3, 2), (2, 0), (None, 2)):
            self.limit(most=most)
            self.assertEqual(len(list(filter(None, (self.claim() for _ in range(3))))), claimed, most)

    def test_a_batch_keeps_to_it(self):
        self.limit(most=3)
        self.add_many("bob", 10)
        self.assertEqual(len(self.claim_many(10, function="add")), 3)
        self.assertEqual(self.claim_many(10, function="add"), [])
        self.add_many("eve", 10)
        self.assertEqual({row["owner"] for row in self.claim_many(5, function="add")}, {"eve"})

    def test_of_a_mixed_batch_too(self):
        self.limit(most=1)
        for owner in ("eve", "bob", "eve", "bob"):
            self.add(owner)
        while self.claim_many(10, function="add"):
            self.assertLessEqual(self.running(), 1)
        self.assertEqual((self.running(), self.running("eve")), (1, 2))

    def test_others_start_at_once_behind_many_of_who_is_full(self):
        self.limit()
        self.add_many("bob", 2500)
        self.claim_many(2, function="add")
        ids = [self.add("eve", options={"priority": priority}) for priority in (0, -5, -50)]
        self.assertEqual([self.claim()["id"] for _ in ids], ids)
        self.assertIsNone(self.claim())
        self.assertEqual(self.claimable(), 0)

    def test_remote_workers_keep_to_it_and_find_what_is_others(self):
        reach = jobqueue.Reach("far", ["add"], None, ["c" * 32])
        self.limit()
        self.add_many("bob", 2500)
        self.claim_many(2, function="add")
        self.assertEqual(self.claim_many(1, reach=reach), [])
        theirs = self.add("eve", options={"priority": -5})
        self.assertEqual([row["id"] for row in self.claim_many(1, reach=reach)], [theirs])

    def test_a_queue_counts_by_the_priority_of_what_may_start(self):
        self.make("a")
        self.limit(most=1)
        for _ in range(2):
            self.add("bob", options={"queue": "a", "priority": 9})
        self.add("eve", options={"queue": "a", "priority": 1})
        first = self.add("eve", options={"priority": 5})
        self.assertEqual(self.claim()["owner"], "bob")
        self.assertEqual(self.claim()["id"], first)

    def test_no_worker_starts_for_one_who_is_full(self):
        self.change_settings(NbMaxWorker=9)
        self.limit()
        self.add_many("bob", 7)
        while self.running() < 2:
            self.claim()
        self.assertEqual(self.claimable(), 0)

    def test_what_waits_for_its_owners_other_tasks_is_no_reason_to_worry(self):
        self.change_settings(NbMaxWorker=3)
        self.limit(most=1)
        self.add_many("bob", 2)
        self.claim(self.live()[0])
        self.clock.advance(30)
        self.assertIsNone(self.longest_wait())
        self.add("eve")
        self.clock.advance(10)
        self.assertEqual(self.longest_wait(), 10)

    def test_a_pending_task_says_so_and_others_do_not(self):
        self.limit()
        ids = self.add_many("bob", 3)
        other = self.add("eve")
        self.assertIsNone(self.queue.get_json(ids[2])["blocked"])
        for task_id in ids[:2]:
            self.write("UPDATE task SET status=1, claim='x' WHERE id=%d" % task_id)
        shown = self.queue.get_json(ids[2])
        self.assertEqual((shown["blocked"], shown["blocked_text"]),
                         ("owner", "The user bob runs at most 2 at once."))
        self.assertIsNone(self.queue.get_json(other)["blocked"])
        self.assertIsNone(self.shown("default")["blocked"])

    def test_nobody_looks_further_where_nobody_has_a_limit(self):
        self.add_many("bob", 5)
        self.claim()
        asked = self.asked_by_a_claim()
        self.limit("eve", 1)
        self.assertEqual(self.asked_by_a_claim(), asked)
        self.limit("bob", 1)
        self.assertGreater(self.asked_by_a_claim(), asked)

    def asked_by_a_claim(self):
        """How many statements a claim asks."""
        link = type(self.database._writer)
        with mock.patch.object(link, "all", autospec=True, side_effect=link.all) as asked:
            self.claim()
        return asked.call_count

    @unittest.skipIf(postgres.ADDRESS, "about SQLite: the steps of its statements")
    def test_where_somebody_is_full_a_claim_takes_as_long_before_many_as_before_few(self):
        self.limit(most=1)
        self.add("bob")
        self.claim()
        steps = []
        for count in (1200, 6000):
            self.add_many("bob", count)
            for priority in (0, -5):
                self.add_many("eve", 2, options={"priority": priority})
            taken = []
            link = self.database._writer._link
            link.set_progress_handler(lambda taken=taken: taken.append(1), 10)
            self.assertEqual(self.claim()["owner"], "eve")
            claimed = [len(self.claim_many(10, function="add")) for _ in range(3)]
            link.set_progress_handler(None, 10)
            self.assertEqual(claimed, [1, 2, 0])
            steps.append(len(taken))
        self.assertLess(steps[1], 2 * steps[0])


class Rate(QueueCase):
    def test_starts_are_spread_evenly(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(100)
        moments = self.starts(3)
        self.assertIn(len(moments), (29, 30, 31))
        self.assertLessEqual(most_within(1, moments), 11)
        self.assertGreater(min(after - before for before, after in zip(moments, moments[1:])), 0.045)

    def test_a_batch_keeps_to_it(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(100)
        moments = self.starts(3, wanted=50, function="add")
        self.assertIn(len(moments), (29, 30, 31))
        self.assertLessEqual(most_within(1, moments), 11)

    def test_looking_a_little_late_each_time_loses_no_starts(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(200)
        moments = self.starts(10, step=0.037)
        self.assertIn(len(moments), range(99, 102))
        self.assertLessEqual(most_within(1, moments), 11)

    def test_a_quiet_time_saves_nothing_up(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(100)
        self.clock.advance(3600)
        self.assertLessEqual(most_within(1, self.starts(2)), 11)

    def test_all_processes_share_it(self):
        self.make(rate={"count": 1, "seconds": 60})
        self.fill(3)
        self.assertIsNotNone(self.claim())
        other = self.another_queue()
        self.assertIsNone(self.claim(2, other))
        self.clock.advance(60)
        self.assertIsNotNone(self.claim(2, other))
        self.assertIsNone(self.claim())

    def test_it_says_when_the_next_may_start(self):
        self.make(rate={"count": 1, "seconds": 60})
        self.fill(2)
        self.claim()
        shown, opens = self.shown(), self.queue.claims.rate_opens()
        self.assertEqual((shown["blocked"], shown["next_at"]), ("rate", jobqueue.iso(opens)))
        self.assertAlmostEqual(opens - self.clock.now(), 60, delta=jobqueue.RATE_SLACK_SECONDS)
        self.clock.advance(60)
        self.assertIsNone(self.queue.claims.rate_opens())
        self.assertEqual((self.claimable(), self.shown()["blocked"]), (1, None))

    def test_a_retry_counts_as_a_start(self):
        self.make(rate={"count": 1, "seconds": 60})
        self.fill(1, max_retries=3, retry_delay=0)
        self.assertEqual(self.run_one("error")["status"], jobqueue.SCHEDULED)
        self.clock.advance(1)
        self.assertIsNone(self.claim())
        self.clock.advance(60)
        self.assertIsNotNone(self.claim())

    def test_a_clock_that_is_put_back_does_not_stop_it(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(100)
        self.starts(1)
        self.clock.wall -= 86400
        moments = self.starts(2)
        self.assertIn(len(moments), (19, 20, 21))
        self.assertLessEqual(most_within(1, moments), 11)

    def test_a_clock_that_jumps_forward_brings_no_burst(self):
        self.make(rate={"count": 10, "seconds": 1})
        self.fill(100)
        self.starts(1)
        self.clock.advance(86400)
        self.assertLessEqual(most_within(1, self.starts(2)), 11)


class Machines(QueueCase):
    def test_only_named_machines_serve_it(self):
        self.make(machines=["machine-2"])
        self.fill(1)
        self.assertEqual((self.claim(), self.claimable()), (None, 0))
        other = self.another_queue()
        other.claims.machine = "machine-2"
        self.assertIsNotNone(self.claim(2, other))

    def test_it_waits_visibly_while_none_of_them_is_there(self):
        self.make(machines=["machine-2", "machine-3"])
        self.fill(1)
        self.assertEqual(self.shown()["blocked"], "machines")
        self.assertEqual(self.started, [])


    def test_a_dead_machine_strands_nothing(self):
        self.make(machines=["machine-1", "machine-2"])
        task_id, = self.fill(1)
        other = self.another_queue()
        other.claims.machine, other.claims.leases.boot = "machine-2", "boot-2"
        with other.database.transaction() as transaction:
            (worker_id, _), = other.workers.reserve(transaction, "service")
        self.assertEqual(self.claim(worker_id, other)["id"], task_id)
        self.pass_in_silence(self.database.lease_seconds + self.database.slack_seconds + 1)
        self.clean()
        self.assertEqual(self.claim()["id"], task_id)

    def test_workers_are_started_on_a_named_machine_though_others_idle_elsewhere(self):
        self.change_settings(NbMaxWorker=4)
        self.make(machines=["machine-1"])
        self.idle_workers("machine-2", 2)
        self.fill(5)
        self.assertEqual(len(self.started), 2, "as many as there is room for")

    def idle_workers(self, machine, count):
        """Rows of workers that wait on a machine."""
        other = self.another_queue()
        other.claims.machine, other.claims.leases.boot = machine, "boot-9"
        with other.database.transaction() as transaction:
            other.workers.reserve(transaction, "service", count)
        self.write("UPDATE worker SET state='idle'")


class Starting(QueueCase):
    """No more workers are started than can run something."""

    def setUp(self):
        super().setUp()
        self.change_settings(NbMaxWorker=10)

    def test_as_many_as_may_run(self):
        self.make(max_running=2)
        self.fill(20)
        self.assertEqual(len(self.started), 2)

    def test_one_for_a_rate_and_again_when_it_opens(self):
        self.make(rate={"count": 1, "seconds": 60})
        self.fill(20)
        self.assertEqual(len(self.started), 1)
        self.end(self.claim())
        self.write("DELETE FROM worker")
        self.clock.advance(3)
        self.tick()
        self.assertEqual(len(self.started), 1, "its rate is closed")
        self.clock.advance(60)
        self.tick()
        self.assertEqual(len(self.started), 2)

    def test_one_more_when_a_place_gets_free(self):
        self.make(max_running=1)
        self.fill(2)
        row = self.claim()
        self.write("DELETE FROM worker")
        self.tick()
        self.assertEqual(len(self.started), 1)
        self.end(row)
        self.clock.advance(3)
        self.tick()
        self.assertEqual(len(self.started), 2)

    def test_what_is_scheduled_in_a_queue_that_is_not_served_keeps_nobody_waiting(self):
        self.make(machines=["machine-2"])
        self.make("held", paused=True)
        for name in ("post", "held"):
            self.fill(1, name, delay=60)
        self.assertIsNone(self.queue.claims.next_due())
        self.assertAlmostEqual(self.queue.claims.next_due(of_all=True), self.clock.now() + 60, 2)


class Interleavings(QueueCase):
    """Several processes, in any order."""

    LIMITS = {"a": {"max_running": 3}, "b": {"rate": {"count": 10, "seconds": 1}},
              "c": {"max_running": 2, "rate": {"count": 20, "seconds": 2}}, "d": {}}

    def test_limits_hold_whatever_the_processes_do(self):
        chance = random.Random(4)
        for name, limits in self.LIMITS.items():
            self.make(name, **limits)
            self.fill(300, name, max_retries=5, retry_delay=0)
            self.add_many("eve", 100, options={"queue": name})
        self.queue.users.change("eve", max_running=2)
        queues = [self.queue] + [self.another_queue() for _ in range(4)]
        running, starts = [], {name: [] for name in self.LIMITS}
        for _ in range(800):
            what = chance.choice(("claim", "claim", "end", "end", "end", "end", "cancel", "wait"))
            if what == "claim":
                rows = self.claim_many(chance.randint(1, 5), queue=chance.choice(queues), function="add")
                running += rows
                for row in rows:
                    starts[row["queue"]].append(self.clock.now())
            elif what == "wait":
                self.clock.advance(chance.choice((0.001, 0.03, 0.2)))
            elif running:
                row = running[chance.randrange(len(running))]
                if what == "cancel":
                    self.cancel(row["id"])
                else:
                    running.remove(row)
                    self.end(row, chance.choice(("succeeded", "error", "crashed", "put_back")))
            count = self.database.value("SELECT count(*) FROM task WHERE status=1 AND owner_id=?",
                                        (self.owner_id("eve"),))
            self.assertLessEqual(count, 2)
            for name in ("a", "c"):
                count = self.queue.queues.count(self.database, jobqueue.RUNNING, name, 100)
                self.assertLessEqual(count, self.LIMITS[name]["max_running"])
        self.assertGreater(min(map(len, starts.values())), 15)
        self.assertLessEqual(most_within(1, starts["b"]), 11)
        self.assertLessEqual(most_within(2, starts["c"]), 21)


class Choosing(QueueCase):
    def test_limited_queues_take_turns_with_others(self):
        self.make("a", max_running=1)
        self.make("b", paused=True)
        self.make("c")
        for name in ("a", "b", "c", "d"):
            self.fill(4, name)
        self.assertEqual([self.claim()["queue"] for _ in range(6)], ["a", "c", "d", "c", "d", "c"])


class Changing(QueueCase):
    def test_a_queue_that_holds_tasks_or_is_needed_is_not_deleted(self):
        self.make("parcel")
        task_id, = self.fill(1, "parcel")
        for name, words in (("parcel", "still holds"), ("default", "always there"), ("mail", "tasks.py")):
            with self.refused(jobqueue.Conflict, words):
                self.queue.delete_queue(name, "ana")
        self.delete(task_id)
        self.queue.delete_queue("parcel", "ana")
        with self.refused(jobqueue.NotFound):
            self.queue.queues.get("parcel", "machine-1")

    def test_limits_of_a_queue_of_other_peoples_workers_are_theirs(self):
        self.make()
        self.write("UPDATE queue SET external=1 WHERE name='post'")
        with self.refused(jobqueue.Invalid, "max_running"):
            self.change(max_running=1)
        self.change(paused=True)
        self.assertTrue(self.shown()["paused"])


class Sentence(QueueCase):
    """What everybody is told when nothing can start."""

    def said(self):
        said = jobqueue.describe_service(self.queue)
        return said["code"], said["text"]

    def test_all_is_paused(self):
        self.make(paused=True, paused_why="the provider is down")
        self.fill(1)
        self.assertEqual(self.said(),
                         ("paused", "The queue post is paused by ana: the provider is down."))
        self.make("room", paused=True)
        self.fill(1, "room")
        self.assertIn("The queue post is paused", self.said()[1])

    def test_limits_are_nothing_to_worry_about(self):
        self.make(max_running=1)
        self.make("slow", rate={"count": 1, "seconds": 60})
        self.make("held", paused=True)
        for name in ("post", "slow", "held"):
            self.fill(2, name)
        self.claim(), self.claim()
        self.write("DELETE FROM worker")
        self.assertEqual(self.said(), ("ok", ""))


class Routes(WebTestCase):
    def test_wrong_limits_are_refused(self):
        self.queue.queues.change("post", {}, "ana", new=True)
        for field, values in (("max_running", (0, -1, 10 ** 9, "2", 1.5, True)),
                              ("rate", (10, {}, {"count": 0, "seconds": 1}, {"count": 1, "seconds": 0},
                                        {"count": 1, "seconds": 1, "more": 1})),
                              ("machines", ("a", [], [""], [1], ["a b"], ["x"] * 51)),
                              ("paused", (1, None, "yes")), ("paused_why", (1, "x" * 201, "a\nb"))):
            for value in values:
                with self.subTest(field=field, value=value):
                    reply = self.ana.patch("/api/queues/post", {field: value})
                    self.check(reply, 422, "invalid")
                    self.assertTrue(all(wrong.startswith(field) for wrong in reply.fields))

    def test_a_queue_is_made_changed_shown_and_removed(self):
        reply = self.ana.post("/api/queues", {"name": "parcel", "rate": {"count": 500, "seconds": 3600}})
        self.check(reply, 201)
        self.assertEqual(reply.headers["location"], "/api/queues/parcel")
        changes = {"max_running": 2, "machines": ["b", "a", "b"], "paused": True}
        changed = self.check(self.ana.patch("/api/queues/parcel", changes), 200)
        self.assertEqual({key: changed[key] for key in ("max_running", "machines", "paused_by", "rate")},
                         {"max_running": 2, "machines": ["a", "b"], "paused_by": "ana",
                          "rate": {"count": 500, "seconds": 3600}})
        listed = self.check(self.bob.get("/api/queues"), 200)
        self.assertEqual([one["name"] for one in listed["queues"]], ["default", "mail", "parcel"])
        self.assertEqual(listed["machines"], ["machine-1"])
        self.assertEqual(self.ana.delete("/api/queues/parcel").status, 204)
        self.check(self.ana.get("/api/queues/parcel"), 404)

    def test_null_takes_a_limit_away(self):
        self.ana.post("/api/queues", {"name": "parcel", "max_running": 1, "rate": {"count": 1, "seconds": 1},
                                      "machines": ["a"]})
        limits = ("max_running", "rate", "machines")
        shown = self.check(self.ana.patch("/api/queues/parcel", dict.fromkeys(limits)), 200)
        self.assertEqual([shown[key] for key in limits], [None] * 3)

    def test_a_second_one_of_the_same_name_is_refused(self):
        self.check(self.ana.post("/api/queues", {"name": "default"}), 409)
        self.check_wrong(self.ana.post("/api/queues", {}), "name")
        self.check_wrong(self.ana.post("/api/queues", {"name": "a b"}), "name")


if __name__ == "__main__":
    unittest.main()
