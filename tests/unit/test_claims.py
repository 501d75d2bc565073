"""Every way into and out of "running"."""

import itertools
import unittest
from unittest import mock

import jobqueue
from jobqueue import (
    CRASH_LIMIT,
    INTERRUPTION_LIMIT,
    Outcome,
    judge,
)
from tests.helpers.support import TestCase

KINDS = (
    "succeeded",
    "error",
    "fail",
    "timeout",
    "crashed",
    "interrupted",
    "cancelled",
    "unknown_function",
    "put_back",
)


class TestClaim(TestCase):
    def test_a_claim_sets_everything_in_one_statement(self):
        task_id = self.add()
        self.clock.advance(3)
        self.assertEqual(self.claim(7)["id"], task_id)
        row = self.row(task_id)
        self.assertEqual(
            (
                row["status"],
                row["attempts"],
                row["worker_id"],
                row["started_at"],
                row["lease_boot"],
                row["lease_monotonic"],
                row["lease_wall"],
            ),
            (
                1,
                1,
                7,
                self.clock.now(),
                "boot-1",
                self.clock.monotonic() + self.database.lease_seconds,
                self.clock.now() + self.database.lease_seconds,
            ),
        )
        self.assertRegex(row["claim"], "^[0-9a-f]{32}$")

    def test_nothing_to_do_is_none(self):
        self.assertIsNone(self.claim())

    def test_no_task_is_claimed_twice(self):
        ids = self.add_many("bob", 10)
        found = [self.claim(worker, self.another_queue())["id"] for worker in range(10)]
        self.assertEqual(found, ids)
        self.assertIsNone(self.claim())

    def test_every_claim_has_a_token_of_its_own(self):
        self.add_many("bob", 10)
        self.assertEqual(len({self.claim()["claim"] for _ in range(10)}), 10)

    def test_only_pending_tasks_are_claimed(self):
        for status in range(1, 7):
            task_id = self.add()
            self.write("UPDATE task SET status=?, turn=9999999999999 WHERE id=?", (status, task_id))
        self.assertIsNone(self.claim())

    def test_a_paused_queue_is_left_alone(self):
        self.add(options={"queue": "slow"})
        other = self.add()
        self.write("UPDATE queue SET paused=1 WHERE name='slow'")
        self.assertEqual(self.claim()["id"], other)
        self.assertIsNone(self.claim())
        self.assertEqual(self.queue.claims.claimable(10), 0)

    def test_the_only_queue_may_be_paused(self):
        self.add()
        self.write("UPDATE queue SET paused=1")
        self.assertIsNone(self.claim())

    def test_queues_of_equal_priority_take_turns(self):
        for name in ("a", "b", "c"):
            self.add_many("bob", 3, options={"queue": name})
        self.assertEqual([self.claim()["queue"] for _ in range(9)], ["a", "b", "c"] * 3)

    def test_a_queue_with_a_higher_priority_goes_first(self):
        self.add_many("bob", 2, options={"queue": "a"})
        self.add_many("bob", 2, options={"queue": "b", "priority": 1})
        self.assertEqual([self.claim()["queue"] for _ in range(4)], ["b", "b", "a", "a"])

    def test_an_empty_queue_does_not_stop_the_rotation(self):
        self.add(options={"queue": "a"})
        self.add_many("bob", 2, options={"queue": "c"})
        self.write("INSERT INTO queue (name, created_at) VALUES ('b', 0)")
        self.assertEqual([self.claim()["queue"] for _ in range(3)], ["a", "c", "c"])

    def test_how_many_could_be_claimed_is_counted_up_to_a_limit(self):
        self.add_many("bob", 5)
        self.add_many("eve", 5, options={"delay": 60})
        self.assertEqual(self.queue.claims.claimable(100), 5)
        self.assertEqual(self.queue.claims.claimable(3), 3)

    def test_no_more_queues_are_counted_than_are_needed(self):
        for number in range(5):
            self.add(options={"queue": "q%d" % number})
        with mock.patch.object(self.queue.queues, "count", wraps=self.queue.queues.count) as count:
            self.assertEqual(self.queue.claims.claimable(2), 2)
        self.assertLessEqual(count.call_count, 2)

    def test_the_row_tells_the_worker_all_that_it_hands_over(self):
        self.add("eve", "send", to="x")
        row = self.claim()
        self.assertEqual(
            (
                row["owner"],
                row["function"],
                row["arguments"],
                row["attempts"],
                row["crashes"],
                row["on_crash"],
                row["timeout"],
            ),
            ("eve", "send", '{"to":"x"}', 1, 0, "fail", 3600),
        )

    def test_a_new_attempt_starts_without_the_traces_of_the_last_one(self):
        self.add(function="greet", name="x")
        row = self.claim()
        with self.database.transaction() as transaction:
            self.queue.claims.report(transaction, row["id"], row["claim"], 0.9, "nearly")
        self.end(row, "crashed", error_type="Crashed", error_message="signal 9")
        row = self.row(self.claim()["id"])
        self.assertEqual((row["progress"], row["message"], row["error_type"], row["reason"]), (None,) * 4)


class TestBatch(TestCase):
    """Several short tasks claimed at once: only where it can do no harm."""

    def batch(self, wanted=10, function="greet"):
        return self.claim_many(wanted, function=function)

    def add_greetings(self, count, **options):
        return [self.add("bob", "greet", options, name=str(number)) for number in range(count)]

    def test_a_batch_takes_the_next_tasks_in_their_order(self):
        ids = self.add_greetings(5)
        self.assertEqual([row["id"] for row in self.batch(3)], ids[:3])
        self.assertEqual([row["id"] for row in self.batch()], ids[3:])

    def test_each_has_a_claim_and_an_attempt_of_its_own(self):
        self.add_greetings(5)
        rows = self.batch()
        self.assertEqual(len({row["claim"] for row in rows}), 5)
        self.assertEqual({row["attempts"] for row in rows}, {1})

    def test_it_ends_before_another_function_and_passes_nobody(self):
        first = self.add_greetings(2)
        other = self.add("bob", "add")
        self.add_greetings(2)
        self.assertEqual([row["id"] for row in self.batch()], first)
        self.assertEqual([row["id"] for row in self.batch()], [other])

    def test_what_ran_before_or_must_not_run_twice_comes_alone(self):
        self.add_greetings(2)
        for row in self.batch():
            self.end(row, "crashed")
        self.assertEqual(len(self.batch()), 1)
        self.add("bob", "send", {"queue": "default", "priority": 5}, to="x")
        self.add("bob", "send", {"queue": "default", "priority": 5}, to="y")
        self.assertEqual(len(self.batch(function="send")), 1)

    def test_long_arguments_come_alone(self):
        ids = [self.add("bob", "greet", name=name) for name in ("a", "b", "c" * 5000, "d")]
        self.assertEqual([[row["id"] for row in self.batch()] for _ in range(3)],
                         [ids[:2], ids[2:3], ids[3:]])

    def test_what_is_put_back_keeps_its_place_and_spends_nothing(self):
        ids = self.add_greetings(4)
        for row in self.batch()[1:]:
            self.end(row, "put_back")
        self.add_greetings(1)
        self.assertEqual([self.claim()["id"] for _ in range(3)], ids[1:])
        self.assertEqual({self.row(task_id)["retries_left"] for task_id in ids}, {2})


class TestPromote(TestCase):
    def promote(self):
        with self.database.transaction() as transaction:
            self.queue.claims.promote(transaction, self.clock.now())

    def test_a_task_becomes_pending_when_it_is_due_and_not_before(self):
        task_id = self.add(options={"delay": 10})
        self.clock.advance(9.9)
        self.promote()
        self.assertEqual(self.status(task_id), "scheduled")
        self.clock.advance(0.2)
        self.promote()
        self.assertEqual(self.status(task_id), "pending")

    def test_a_look_for_work_promotes_in_passing(self):
        task_id = self.add(options={"delay": 10})
        self.assertIsNone(self.claim())
        self.clock.advance(11)
        self.assertEqual(self.claim()["id"], task_id)

    def test_a_busy_worker_sees_now_and_then_what_is_due_and_an_idle_one_at_once(self):
        plain = self.add_many("bob", 3)
        self.claim()
        late = self.add_many("ana", 2, options={"delay": 0.01, "priority": 5})
        self.clock.advance(0.02)
        self.assertEqual(self.claim()["id"], plain[1])
        self.clock.advance(jobqueue.PROMOTE_SECONDS)
        self.assertEqual([self.claim()["id"] for _ in range(3)], late + plain[2:])
        last = self.add(options={"delay": 0.01})
        self.clock.advance(0.02)
        self.assertEqual(self.claim()["id"], last)

    def test_all_queues_and_priorities_are_looked_at(self):
        ids = [
            self.add(options={"delay": 10, "queue": queue, "priority": priority})
            for queue in ("a", "b", "z")
            for priority in (-5, 0, 7)
        ]
        self.clock.advance(11)
        self.promote()
        self.assertEqual({self.status(task_id) for task_id in ids}, {"pending"})

    def test_not_more_than_some_hundreds_at_once(self):
        for queue in ("a", "b"):
            self.add_many("bob", jobqueue.PROMOTE_AT_ONCE, options={"delay": 10, "queue": queue})
        self.clock.advance(11)
        self.promote()
        self.assertEqual(
            self.database.value("SELECT count(*) FROM task WHERE status=0"), jobqueue.PROMOTE_AT_ONCE
        )

    def test_the_rest_follows_and_the_oldest_come_first(self):
        ids = self.add_many("bob", 3, options={"delay": 10})
        late = self.add(options={"delay": 20})
        self.clock.advance(30)
        with mock.patch.object(jobqueue, "PROMOTE_AT_ONCE", 3):
            self.promote()
            self.assertEqual(
                [self.status(task_id) for task_id in ids + [late]], ["pending"] * 3 + ["scheduled"]
            )
            self.promote()
        self.assertEqual(self.status(late), "pending")

    def test_a_clock_that_is_put_back_does_not_hurt_what_is_pending(self):
        task_id = self.add(options={"delay": 10})
        self.clock.advance(11)
        self.promote()
        self.clock.wall -= 3600
        self.assertEqual(self.claim()["id"], task_id)

    def test_the_wait_counts_from_when_it_was_due(self):
        self.add(options={"delay": 100})
        self.clock.advance(130)
        self.claim()
        self.assertAlmostEqual(self.database.value("SELECT waited FROM activity WHERE event='started'"), 30)

    def test_a_promotion_is_noted(self):
        task_id = self.add(options={"delay": 10})
        self.clock.advance(11)
        self.promote()
        self.assertEqual(self.events(task_id), ["added", "promoted"])


class TestFence(TestCase):
    """Who has lost the claim changes nothing any more."""

    def setUp(self):
        super().setUp()
        self.add(function="greet", name="x")
        self.stale = self.claim(1)
        self.end(self.stale, "crashed")
        self.fresh = self.claim(2)
        self.before = tuple(self.row(self.fresh["id"]))

    def test_every_later_write_of_a_stale_claim_changes_nothing(self):
        claims, now = self.queue.claims, self.clock.now()
        task_id, claim = self.stale["id"], self.stale["claim"]
        with self.database.transaction() as transaction:
            self.assertFalse(claims.renew(transaction, task_id, claim, now))
            self.assertFalse(claims.report(transaction, task_id, claim, 1, "late"))
            self.assertIsNone(claims.cancel_asked(task_id, claim, transaction))
            for kind in KINDS:
                self.assertIsNone(claims.end(transaction, task_id, claim, Outcome(kind, result="1"), now))
        self.assertEqual(tuple(self.row(task_id)), self.before)
        self.assertEqual(self.events(task_id), ["added", "started", "crashed", "started"])

    def test_the_fresh_claim_still_works(self):
        with self.database.transaction() as transaction:
            self.assertTrue(
                self.queue.claims.renew(transaction, self.fresh["id"], self.fresh["claim"], self.clock.now())
            )
        self.assertEqual(self.end(self.fresh, result='"hi"').status, jobqueue.SUCCEEDED)

    def test_an_ended_task_is_ended_once(self):
        self.end(self.fresh, result="1")
        self.assertIsNone(self.end(self.fresh, "error"))
        self.assertEqual(self.status(self.fresh["id"]), "succeeded")

    def test_the_token_stays_on_the_row_after_the_end(self):
        self.end(self.fresh)
        self.assertEqual(self.row(self.fresh["id"])["claim"], self.fresh["claim"])

    def test_the_reaper_is_fenced_as_well(self):
        lost = self.queue.claims.leases.lost({2}, self.clock.now())
        self.assertEqual([row["claim"] for row in lost], [self.fresh["claim"]])
        self.end(self.fresh, result="1")
        for row in lost:
            self.assertIsNone(self.end(row, "crashed"))
        self.assertEqual(self.status(self.fresh["id"]), "succeeded")

    def test_a_right_claim_for_another_task_is_wrong(self):
        other = self.add()
        self.assertIsNone(self.end({"id": other, "claim": self.fresh["claim"]}))


def expected(kind, retries_left, crashes, interruptions, on_crash, cancel_requested):
    """(status word, reason, event, spent, crash, interruption), in the words of the design."""
    if kind == "succeeded":
        return "succeeded", None, "succeeded", 0, 0, 0  # a success that came first is recorded
    if cancel_requested or kind == "cancelled":
        return "cancelled", None, "cancelled", 0, 0, 0  # no retry, no put back
    if kind == "put_back":
        return "pending", None, "put_back", 0, 0, 0  # never handed over: unspent
    if kind == "unknown_function":
        return "scheduled", kind, "put_back", 0, 0, 0  # somebody may be copying a new tasks.py
    if kind == "crashed":
        if crashes == CRASH_LIMIT - 1 or on_crash == "fail":
            return "failed", "crashed", "failed", int(retries_left > 0), 1, 0
        return "pending", "crashed", "crashed", int(retries_left > 0), 1, 0
    if kind == "interrupted":
        spend = int(interruptions == INTERRUPTION_LIMIT - 1 and retries_left > 0)
        if interruptions == INTERRUPTION_LIMIT - 1 and not retries_left or on_crash == "fail":
            return "failed", "interrupted", "failed", spend, 0, 1
        return "pending", "interrupted", "interrupted", spend, 0, 1
    if kind in ("error", "timeout") and retries_left:
        return "scheduled", kind, "retry", 1, 0, 0
    return "failed", {"fail": "error"}.get(kind, kind), "failed", 0, 0, 0


class TestJudge(unittest.TestCase):
    def task(self, **values):
        return {
            "cancel_requested": 0,
            "crashes": 0,
            "interruptions": 0,
            "unknown_since": None,
            "on_crash": "retry",
            "retries_left": 1,
            "max_retries": 1,
            "retry_delay": 60.0,
            "retry_backoff": 2.0,
            **values,
        }

    def judge(self, kind, retry_after=None, uniform=lambda low, high: low, **values):
        return judge(self.task(**values), Outcome(kind, retry_after=retry_after), 1000.0, uniform)

    def test_every_case(self):
        for case in itertools.product(
            KINDS, (0, 1, 5), range(CRASH_LIMIT), (0, INTERRUPTION_LIMIT - 1), ("retry", "fail"), (0, 1, 2)
        ):
            with self.subTest(case):
                kind, retries_left, crashes, interruptions, on_crash, cancel_requested = case
                verdict = self.judge(
                    kind,
                    retries_left=retries_left,
                    max_retries=5,
                    crashes=crashes,
                    interruptions=interruptions,
                    on_crash=on_crash,
                    cancel_requested=cancel_requested,
                )
                self.assertEqual(
                    (
                        jobqueue.STATUS_WORDS[verdict.status],
                        verdict.reason,
                        verdict.event,
                        verdict.spend,
                        verdict.crash,
                        verdict.interruption,
                    ),
                    expected(*case),
                )

    def test_the_first_retry_comes_after_the_delay_and_each_next_one_later(self):
        for left, delay in ((5, 60), (4, 120), (3, 240), (1, 960)):
            verdict = self.judge("error", retries_left=left, max_retries=5)
            self.assertEqual(verdict.run_at, 1000 + delay)

    def test_a_retry_never_comes_earlier_than_asked_and_is_spread(self):
        latest = self.judge("error", uniform=lambda low, high: high)
        self.assertEqual(latest.run_at, 1000 + 60 * 1.2)

    def test_a_delay_has_a_limit_however_many_retries_there_were(self):
        verdict = self.judge("error", retries_left=1, max_retries=1000, retry_backoff=10.0)
        self.assertEqual(verdict.run_at, 1000 + 30 * 86400)

    def test_the_function_may_say_when(self):
        self.assertEqual(self.judge("error", retry_after=5).run_at, 1005)
        self.assertEqual(self.judge("error", retry_after=0).run_at, 1000)

    def test_asking_for_a_retry_does_not_give_more_retries(self):
        self.assertEqual(self.judge("error", retry_after=5, retries_left=0).status, jobqueue.FAILED)

    def test_where_there_are_none_asking_gives_one(self):
        for left, status in ((0, jobqueue.SCHEDULED), (-1, jobqueue.FAILED)):
            verdict = self.judge("error", retry_after=5, max_retries=0, retries_left=left)
            self.assertEqual(verdict.status, status)
        for kind in ("error", "timeout"):
            self.assertEqual(self.judge(kind, max_retries=0, retries_left=0).status, jobqueue.FAILED)


class TestCounting(TestCase):
    def test_attempts_only_grow(self):
        self.add(function="greet", name="x")
        seen = []
        for kind in ("crashed", "interrupted", "put_back", "error"):
            self.clock.advance(1000)
            seen.append(self.run_one(kind)["attempts"])
        self.assertEqual(seen, [1, 2, 3, 4])

    def test_an_error_and_a_timeout_spend_a_retry(self):
        task_id = self.add(function="greet", name="x")
        self.assertEqual(self.run_one("error")["retries_left"], 1)
        self.clock.advance(1000)
        self.assertEqual(self.run_one("timeout")["retries_left"], 0)
        self.clock.advance(1000)
        row = self.run_one("error", error_type="ValueError", error_message="no")
        self.assertEqual(
            (self.status(task_id), row["reason"], row["error_message"]), ("failed", "error", "no")
        )

    def test_a_put_back_costs_nothing_and_keeps_its_place(self):
        first, second = self.add_many("bob", 2)
        row = self.run_one("put_back")
        self.assertEqual((row["id"], row["status"], row["retries_left"], row["crashes"]), (first, 0, 0, 0))
        self.assertEqual(self.claim()["id"], first)

    def test_a_crashed_task_lines_up_again_at_the_end(self):
        first, second = self.add_many("bob", 2)
        self.run_one("crashed")
        self.assertEqual([self.claim()["id"], self.claim()["id"]], [second, first])

    def test_the_third_crash_fails_a_task(self):
        task_id = self.add()
        self.assertEqual(
            [jobqueue.STATUS_WORDS[self.run_one("crashed")["status"]] for _ in range(3)],
            ["pending", "pending", "failed"],
        )
        self.assertEqual((self.row(task_id)["reason"], self.row(task_id)["crashes"]), ("crashed", 3))

    def test_a_crash_spends_a_retry_but_never_below_none(self):
        self.add(function="greet", name="x")
        self.assertEqual([self.run_one("crashed")["retries_left"] for _ in range(3)], [1, 0, 0])

    def test_a_task_that_must_not_run_twice_fails_at_its_first_crash(self):
        task_id = self.add(function="send", to="x")
        self.run_one("crashed")
        self.assertEqual(self.status(task_id), "failed")

    def test_our_own_shutdowns_have_a_limit_of_their_own(self):
        self.add()
        words = [
            jobqueue.STATUS_WORDS[self.run_one("interrupted")["status"]] for _ in range(INTERRUPTION_LIMIT)
        ]
        self.assertEqual(words, ["pending"] * (INTERRUPTION_LIMIT - 1) + ["failed"])

    def test_a_retry_by_hand_resets_all_counters_but_attempts(self):
        task_id = self.add()
        for _ in range(3):
            self.run_one("crashed")
        self.retry(task_id)
        self.assertEqual(
            [jobqueue.STATUS_WORDS[self.run_one("crashed")["status"]] for _ in range(3)],
            ["pending", "pending", "failed"],
        )
        self.assertEqual(self.row(task_id)["attempts"], 6)


class TestEnds(TestCase):
    def test_success_stores_the_result(self):
        task_id = self.add()
        self.run_one(result='{"pages":12}')
        task = self.queue.get_json(task_id)
        self.assertEqual((task["status"], task["result"], task["error"]), ("succeeded", {"pages": 12}, None))

    def test_a_retry_by_hand_forgets_the_last_error(self):
        task_id = self.add()
        self.run_one("error", error_type="ValueError", error_message="no")
        self.retry(task_id)
        self.run_one(result="1")
        self.assertIsNone(self.queue.get_json(task_id)["error"])

    def test_the_error_of_the_last_attempt_is_shown_while_a_retry_waits(self):
        task_id = self.add(function="greet", name="x")
        self.run_one("error", error_type="ValueError", error_message="no")
        task = self.queue.get_json(task_id)
        self.assertEqual(
            (task["status"], task["reason"], task["error"]["message"]), ("scheduled", "error", "no")
        )
        self.assertEqual(task["run_at"], jobqueue.iso(self.clock.now() + 60))

    def test_a_success_that_came_before_the_cancel_was_heard_is_recorded(self):
        task_id = self.add()
        row = self.claim()
        self.cancel(task_id)
        self.end(row, result="1")
        row = self.row(task_id)
        self.assertEqual((self.status(task_id), row["cancel_requested"]), ("succeeded", 0))

    def test_a_cancelled_task_is_not_retried(self):
        for kind in KINDS[1:]:
            task_id = self.add(function="greet", name="x")
            row = self.claim()
            self.cancel(task_id)
            self.end(row, kind)
            self.assertEqual(self.status(task_id), "cancelled", kind)

    def test_a_cancelled_task_that_is_retried_later_is_not_cancelled_again(self):
        task_id = self.add()
        row = self.claim()
        self.cancel(task_id)
        self.end(row, "cancelled")
        self.retry(task_id)
        self.run_one(result="1")
        self.assertEqual(self.status(task_id), "succeeded")

    def test_a_long_error_is_shortened_and_can_be_stored(self):
        task_id = self.add()
        self.run_one("error", error_type="E", error_message="x\0\ud800" * 5000)
        self.assertLessEqual(len(self.row(task_id)["error_message"]), jobqueue.ERROR_MAX_CHARACTERS)

    def test_an_error_whose_type_has_no_name_is_shown_as_none(self):
        task_id = self.add(function="greet", options={"max_retries": 0}, name="x")
        self.run_one("error", error_type="", error_message="no")
        self.assertIsNone(jobqueue.task_json(self.queue.tasks.get(task_id))["error"])

    def test_a_missing_function_waits_and_costs_nothing(self):
        task_id = self.add(function="greet", name="x")
        row = self.run_one("unknown_function")
        self.assertEqual(
            (self.status(task_id), row["reason"], row["retries_left"], row["crashes"]),
            ("scheduled", "unknown_function", 2, 0),
        )
        self.assertIsNone(self.claim())
        self.clock.advance(31)
        self.assertEqual(self.claim()["id"], task_id)

    def miss(self, minutes):
        """Its function is missing for so long."""
        for _ in range(2 * minutes):
            self.run_one("unknown_function")
            self.clock.advance(30)

    def test_a_function_that_is_missing_for_ten_minutes_fails_its_task(self):
        task_id = self.add(function="greet", name="x")
        self.miss(10)
        self.assertEqual(self.run_one("unknown_function")["status"], jobqueue.SCHEDULED)
        self.clock.advance(30)
        row = self.run_one("unknown_function")
        self.assertEqual((row["status"], row["reason"]), (jobqueue.FAILED, "unknown_function"))
        self.retry(task_id)
        self.miss(10)
        self.assertEqual(self.status(task_id), "scheduled")

    def test_the_minutes_count_anew_once_it_was_there(self):
        self.add(function="greet", name="x")
        self.miss(9)
        self.run_one("error")
        self.clock.advance(600)
        self.assertEqual(self.run_one("unknown_function")["status"], jobqueue.SCHEDULED)

    def test_attempts_that_ran_no_function_are_told_apart(self):
        self.add(function="greet", name="x")
        for kind in ("put_back", "unknown_function", "error", "put_back"):
            self.run_one(kind)
            self.write("DELETE FROM activity")
            self.clock.advance(100)
        row = self.claim()
        self.assertEqual((row["attempts"], row["put_backs"]), (5, 3))

    def test_a_missing_function_does_not_undo_a_cancel_or_a_deletion(self):
        for action, status in ((self.cancel, "cancelled"), (self.delete, None)):
            task_id = self.add(function="greet", name="x")
            row = self.claim()
            action(task_id)
            self.end(row, "unknown_function")
            self.assertEqual(self.status(task_id), status)


class TestLeases(TestCase):
    def setUp(self):
        super().setUp()
        self.add()
        self.row_claimed = self.claim()

    def is_lost(self, dead=()):
        return bool(self.queue.claims.leases.lost(set(dead), self.clock.now()))

    def test_a_lease_holds_for_its_time(self):
        self.pass_in_silence(self.database.lease_seconds - 1)
        self.assertFalse(self.is_lost())
        self.clock.advance(2)
        self.assertTrue(self.is_lost())

    def test_renewing_holds_it_longer(self):
        self.pass_in_silence(self.database.lease_seconds - 1)
        with self.database.transaction() as transaction:
            self.assertTrue(
                self.queue.claims.renew(
                    transaction, self.row_claimed["id"], self.row_claimed["claim"], self.clock.now()
                )
            )
        self.pass_in_silence(self.database.lease_seconds - 1)
        self.assertFalse(self.is_lost())

    def test_a_wall_clock_that_jumps_changes_nothing_on_this_machine(self):
        for jump in (3600, -3600, 10 * 365 * 86400, -86400):
            self.clock.wall += jump
            self.assertFalse(self.is_lost(), jump)
        self.pass_in_silence(self.database.lease_seconds + 1)
        self.assertTrue(self.is_lost())

    def test_a_laptop_that_slept_keeps_its_lease(self):
        self.clock.wall += 8 * 3600  # the monotonic clock stands still meanwhile
        self.assertFalse(self.is_lost())

    def test_another_boot_is_judged_by_wall_time_with_slack(self):
        self.queue.claims.leases.boot = "boot-2"
        self.clock.ticks = 5.0  # starts over after a boot
        self.pass_in_silence(self.database.lease_seconds + self.database.slack_seconds - 1)
        self.assertFalse(self.is_lost())
        self.clock.advance(2)
        self.assertTrue(self.is_lost())

    def test_a_machine_that_does_not_know_its_boot_uses_wall_time(self):
        self.write("UPDATE task SET lease_boot=''")
        self.queue.claims.leases.boot = ""
        self.clock.ticks += 10 * self.database.lease_seconds
        self.assertFalse(self.is_lost())
        self.pass_in_silence(2 * (self.database.lease_seconds + self.database.slack_seconds))
        self.assertTrue(self.is_lost())

    def test_a_dead_worker_loses_its_task_at_once(self):
        self.assertTrue(self.is_lost(dead=[1]))
        self.assertFalse(self.is_lost(dead=[2]))

    def test_only_running_tasks_can_be_lost(self):
        self.end(self.row_claimed, result="1")
        self.clock.advance(1000)
        self.assertFalse(self.is_lost(dead=[1]))
