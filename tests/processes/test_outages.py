"""While nobody can write nobody loses a task: a disk that stays full for longer than a lease.

The rules with a clock of our own, then real workers on a small disk; all in both journal modes.
"""
import contextlib
import os
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import jobqueue
import worker
from jobqueue import LEASE_SECONDS, RENEW_SECONDS, SELF_FENCE_SECONDS
from tests.helpers.faults import QUICK_LEASE, SmallDiskCase, WatchedSite, mock_truncate, plant
from tests.helpers.support import TestCase, wait_until
from tests.helpers.working import TASKS


class Rules:
    """Who is given up, when; and when a worker gives up itself."""

    def setUp(self):
        super().setUp()
        self.is_full = False
        begin = type(self.database)._begin

        def begin_unless_full(database, *values):
            if self.is_full:
                raise jobqueue.StorageFull(jobqueue.FULL)
            begin(database, *values)
        self.patch(type(self.database), "_begin", begin_unless_full)
        self.task_id = self.add(options={"on_crash": "fail"})
        self.worker_id, _ = self.live(pid=0)         # which is nobody's
        self.claimed = self.claim(self.worker_id)
        self.killed = []
        self.child = SimpleNamespace(ended=False, death=None, signal=self.killed.append, cpu_seconds=0.0,
                                     process=SimpleNamespace(pid=os.getpid()))

    def attempt(self):
        """The attempt as its worker watches it."""
        attempt = worker.Attempt(self.queue, self.child, self.claimed)
        attempt.log = worker.LogPipe(os.open(os.devnull, os.O_RDONLY))
        self.addCleanup(attempt.log.close)
        return attempt

    def look_after(self, seconds, attempt=None, renews=False):
        """Time in which somebody ticks; the worker watches its attempt, or renews everything, or neither."""
        for _ in range(round(seconds)):
            self.clock.advance(1)
            with contextlib.suppress(jobqueue.StorageFull):
                self.clean()
            if attempt:
                attempt.check()
            if attempt and not self.is_full:
                self.say()
            if renews:
                self.renew(self.claimed, self.worker_id)

    def say(self):
        with self.database.transaction() as transaction:
            self.queue.workers.heartbeat(transaction, self.worker_id, "busy", 0)

    def fill(self, seconds, attempt=None):
        self.is_full = True
        self.look_after(seconds, attempt)
        self.is_full = False

    def test_the_first_to_look_after_an_outage_takes_nothing(self):
        self.fill(3 * LEASE_SECONDS)
        self.look_after(SELF_FENCE_SECONDS - 2 * RENEW_SECONDS)
        self.assertEqual(self.status(self.task_id), "running")
        self.assertEqual(len(self.queue.workers.rows()), 1)
        self.look_after(1, renews=True)
        self.look_after(LEASE_SECONDS - 1)
        self.assertEqual(self.status(self.task_id), "running")

    def test_who_does_not_renew_then_either_is_given_up(self):
        self.fill(3 * LEASE_SECONDS)
        self.look_after(LEASE_SECONDS)
        self.assertEqual(self.status(self.task_id), "failed")

    def test_it_may_be_nobody_who_looks_for_long(self):
        self.clock.advance(10 * LEASE_SECONDS)
        self.clean()
        self.assertEqual(self.status(self.task_id), "running")
        self.clock.advance(10 * LEASE_SECONDS)
        self.clean()
        self.assertEqual(self.status(self.task_id), "failed")

    def test_one_that_was_doubted_before_and_renewed_is_doubted_anew(self):
        self.look_after(3 * RENEW_SECONDS)
        self.renew(self.claimed, self.worker_id)
        self.fill(3 * LEASE_SECONDS)
        self.look_after(1)
        self.assertEqual(self.status(self.task_id), "running")

    def test_another_that_is_doubted_does_not_matter(self):
        self.add()
        other = self.claim()
        self.look_after(3 * RENEW_SECONDS, renews=True)
        self.fill(3 * LEASE_SECONDS)
        self.look_after(1)
        self.assertEqual((self.status(self.task_id), self.status(other["id"])), ("running", "pending"))

    def test_a_worker_that_stands_still_while_others_write_loses_its_claim_after_a_lease(self):
        self.look_after(LEASE_SECONDS - 1)
        self.assertEqual(self.status(self.task_id), "running")
        self.look_after(3)
        self.assertEqual(self.status(self.task_id), "failed")

    def test_a_worker_keeps_its_runner_while_nobody_can_write(self):
        attempt = self.attempt()
        self.fill(5 * LEASE_SECONDS, attempt)
        self.look_after(5, attempt)
        self.assertEqual((attempt.ending, self.killed), (None, []))
        self.look_after(5 * LEASE_SECONDS, attempt)
        self.assertEqual(self.status(self.task_id), "running")

    def test_a_worker_that_alone_cannot_write_ends_its_runner_before_its_claim_is_taken(self):
        attempt, others = self.attempt(), self.another_queue()
        with mock.patch.object(attempt, "_store"):
            while not attempt.ending:
                self.clock.advance(1)
                others.tick.run(start=False)
                attempt.check()
        self.assertEqual((attempt.ending, bool(self.killed)), ("lost", True))
        self.assertEqual(self.status(self.task_id), "running")
        self.assertLess(self.clock.now() - self.claimed["created_at"], LEASE_SECONDS - 5)

    def test_after_standing_still_it_first_looks_whether_the_claim_is_still_its_own(self):
        attempt = self.attempt()
        self.clock.advance(10 * LEASE_SECONDS)
        attempt.check()
        self.assertIsNone(attempt.ending)

    def test_a_busy_database_is_no_reason_to_end_either(self):
        attempt = self.attempt()
        self.clock.advance(2 * RENEW_SECONDS)
        with mock.patch.object(type(self.database), "_begin", side_effect=jobqueue.Busy(jobqueue.BUSY)):
            attempt.check()
        self.assertIsNone(attempt.ending)


class TestRulesWithLog(Rules, TestCase):
    pass


class TestRulesWithoutLog(Rules, TestCase):
    def setUp(self):
        with mock_truncate():
            super().setUp()
        self.assertEqual(self.database.journal, "truncate")


class Outage:
    """A disk of a few megabytes that is full for two leases in the middle of 120 tasks."""

    journal, SECONDS = None, 15

    def setUp(self):
        site = WatchedSite(TASKS, linger=5, NbMaxWorker=6, nice=0)
        self.use(site)
        plant(site, QUICK_LEASE)
        if self.journal == "truncate":
            with mock_truncate():
                jobqueue.repair_journal(site.data)
        self.move_to_small_disk()
        site.start_server()
        self.visitor = self.browser()

    def keep_full(self, seconds):
        """Nothing can be written for so long: what others give up meanwhile is taken, too."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.fill()
            self.post(self.visitor)
            time.sleep(0.2)

    def test_nothing_runs_twice_and_nothing_fails(self):
        many = [{"seconds": (0, 0.05, 0.1, 0.2, 3)[number % 5]} for number in range(60)]
        ids = self.enqueue("ledger", many)
        ids += self.enqueue("ledger", many, on_crash="fail")
        wait_until(lambda: len(self.ledger()) > 20, what="the first tasks")
        before = len(self.ledger())
        self.keep_full(self.SECONDS)
        during = len(self.ledger())
        self.free()
        self.wait_for_all(ids)
        self.assertLess(before, during)
        rows = self.site.rows("SELECT id, status, reason, attempts, crashes FROM task WHERE id<=?",
                              (max(ids),))
        self.assertEqual([tuple(row) for row in rows if row["status"] != 2 or row["crashes"]], [])
        self.assertEqual(sorted(self.starts(set(ids))), sorted(ids), "each began once")
        self.check_ledger(self.ledger(), ids)
        self.check_sound()
        self.check_quiet()


class TestOutageWithLog(Outage, SmallDiskCase):
    journal = "wal"


class TestOutageWithoutLog(Outage, SmallDiskCase):
    journal = "truncate"


if __name__ == "__main__":
    unittest.main()
