"""What a worker decides by itself: how many tasks at once, and when its runner is replaced."""
import io
import json
import os
import socket
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from pathlib import Path
from unittest.mock import Mock, patch

import jobqueue
from jobqueue import Outcome, SetupError, TooMany
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import FUNCTIONS, TestCase
from worker import (BATCH_AFTER, BATCH_MAX, BATCH_SECONDS, LINE_MAX_BYTES, Attempt, Batch,
                    Pace, RemoteWorker, Runner, Runners, Spool, Worker, work,
                    outcome_of_result, write_result)


class TestPace(unittest.TestCase):
    """How many tasks are claimed at once."""

    def setUp(self):
        self.pace = Pace()

    def note(self, times=1, function="f", seconds=0.0, kind="succeeded"):
        """Learn from attempts that ended so; the size that follows."""
        for _ in range(times):
            self.pace.learn(function, Outcome(kind, seconds=seconds))
        return self.pace.size

    def test_only_a_function_that_keeps_ending_quickly_gets_batches(self):
        self.assertEqual(self.note(BATCH_AFTER), 1)
        self.assertEqual(self.note(), 2)
        self.assertEqual(self.note(2), 4)
        self.assertEqual(self.note(1000), BATCH_MAX)
        self.assertEqual(self.pace.function, "f")

    def test_another_function_begins_anew(self):
        self.note(100)
        self.assertEqual(self.note(function="g"), 1)

    def test_so_does_an_error_or_one_that_takes_as_long_as_a_batch_may(self):
        for other in ({"kind": "error"}, {"seconds": 2 * BATCH_SECONDS}):
            with self.subTest(other):
                self.note(100)
                self.assertEqual(self.note(**other), 1)
                self.assertEqual(self.note(BATCH_AFTER), 1)

    def test_a_batch_takes_half_the_time_that_an_outcome_may_wait(self):
        self.assertEqual(self.note(100, seconds=BATCH_SECONDS / 10), 5)

    def test_batches_grow_faster_while_the_write_lock_is_waited_for_longer_than_they_take(self):
        quick = Outcome("succeeded", seconds=0.001)
        sizes = []
        for waited in (0.01,) * 5 + (0.001,):
            self.pace.learn("f", quick, waited)
            sizes.append(self.pace.size)
        self.assertEqual(sizes, [1, 1, 4, 7, 10, 11])

    def test_a_late_batch_halves_the_next(self):
        self.note(1000)
        self.pace.slow_down()
        self.assertEqual(self.pace.size, BATCH_MAX // 2)
        self.assertEqual(self.note(), BATCH_MAX // 2 + 1)


class TestRefusals(TestCase):
    def test_what_is_refused_inside_a_function_is_the_error_that_it_is_elsewhere(self):
        self.change_settings(max_pending=1)
        self.add()
        runner, child = Runner(None, None, None), Mock()
        attempt = Attempt(self.queue, child, self.claim())
        runner._claim, runner._send = attempt.row["claim"], attempt.receive
        runner._receive = lambda: child.reply.call_args[0][0]
        request = {"function": "add", "arguments": {"a": 1}}
        with self.refused(TooMany, "at most 1 of bob's tasks may be pending") as caught:
            runner._enqueue([request] * 2)
        self.assertEqual(caught.exception.retry_after, 60)
        self.assertEqual(runner._enqueue([request]).new, 1)


class TestThreads(unittest.TestCase):
    """What threads of a function say while it runs."""

    def setUp(self):
        ours, self.theirs = socket.socketpair()
        self.runner, self.sent = Runner(ours, None, None), []
        self.runner._claim = "x"
        for end in (ours, self.theirs):
            self.addCleanup(end.close)

    def answer(self, count):
        """As a worker answers so many calls."""
        with self.theirs.makefile("r") as lines:
            for _ in range(count):
                self.sent.append(json.loads(lines.readline()))
                time.sleep(0.001)       # for others to ask meanwhile
                ids = [one["n"] for one in self.sent[-1]["enqueue"]]
                self.theirs.sendall(json.dumps({"ids": ids, "created": 1}).encode() + b"\n")

    def enqueue(self, *numbers):
        return self.runner._enqueue([{"n": number} for number in numbers]).ids

    def test_each_gets_the_ids_of_its_own_tasks(self):
        worker = threading.Thread(target=self.answer, args=(100,))
        worker.start()
        with ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(self.enqueue, range(100))), [[number] for number in range(100)])
        worker.join()

    def test_nothing_is_said_of_many_if_one_cannot_be_written(self):
        for wrong, error in ((object(), TypeError), ("x" * LINE_MAX_BYTES, ValueError)):
            with self.assertRaises(error):
                self.enqueue("a" * 200_000, "b" * 200_000, wrong)
        worker = threading.Thread(target=self.answer, args=(1,))
        worker.start()
        self.assertEqual(self.enqueue(1), [1])
        worker.join()
        self.assertEqual(self.sent, [{"claim": "x", "enqueue": [{"n": 1}], "more": False}])

    def test_nothing_is_said_after_the_end(self):
        self.runner._claim = None
        for say in (lambda: self.enqueue(1), lambda: self.runner._report(0.5, "half")):
            with self.assertRaisesRegex(RuntimeError, "the task has ended"):
                say()


class TestResults(unittest.TestCase):
    def test_what_cannot_be_kept_is_said_to_be_the_result(self):
        self.assertEqual([write_result(None), write_result({"a": [1]})], ["null", '{"a":[1]}'])
        outcome = outcome_of_result({"a": object()}, lambda result: result)
        self.assertEqual(outcome["kind"], "fail")
        self.assertIn("has run, but its result", outcome["error_message"])


class TestClaim(TestCase):
    """What a worker hands over is committed."""

    @about_sqlite("a full disk")
    def test_nothing_begins_whose_claim_could_not_be_committed(self):
        worker, task_id = Worker(self.queue, "service"), self.add()
        worker._place.id, worker._runners.current = 1, Mock(owner=None)
        worker._runners.is_stale = Mock(return_value=False)
        run = jobqueue.FileConnection.run

        def run_unless_full(connection, statement, *values):
            if statement == "COMMIT":
                raise jobqueue.StorageFull(jobqueue.FULL)
            return run(connection, statement, *values)
        for refuses in (True, False):
            with self.subTest(refuses), patch.object(jobqueue.FileConnection, "run",
                                                     run_unless_full if refuses else run):
                rows = []
                with suppress(jobqueue.StorageFull):
                    rows = worker._claim_next()
                self.assertEqual(len(rows), not refuses)
        self.assertEqual(self.status(task_id), "running")


class TestWhileNobodyCanWrite(TestCase):
    """An idle worker on a full disk still hears what it is told."""

    def setUp(self):
        super().setUp()
        self.worker = Worker(self.queue, "service")
        with self.database.transaction() as transaction:
            [(self.worker._place.id, _)] = self.queue.workers.reserve(transaction, "service")
        child = Mock(ready=True, ended=False, tasks=0)
        child.messages.return_value, child.is_dead.return_value = (), False
        self.worker._runners.current = child

    def rounds_until_it_leaves(self):
        full = patch.object(type(self.database), "_begin", side_effect=jobqueue.StorageFull(jobqueue.FULL))
        with full, redirect_stderr(io.StringIO()):      # a tick tells that it failed
            return next(count for count in range(10) if self.worker._is_over())

    def test_a_lowered_limit(self):
        self.queue.settings.change({"NbMaxWorker": 0})
        self.rounds_until_it_leaves()
        self.assertEqual(self.worker._place.stopping, "too many workers")

    def test_that_it_is_to_stop(self):
        self.worker._signals = 1
        self.worker._runners.wake, other = os.pipe()
        os.set_blocking(self.worker._runners.wake, False)
        for end in (self.worker._runners.wake, other):
            self.addCleanup(os.close, end)
        self.assertEqual(self.rounds_until_it_leaves(), 0)
        self.assertEqual(self.worker._place.stopping, jobqueue.STOPPED)

    def test_a_runner_that_could_not_be_replaced_is_started_later(self):
        runners = self.worker._runners
        with patch.object(self.queue.catalogue, "files", side_effect=jobqueue.Busy(jobqueue.BUSY)):
            self.assertRaises(jobqueue.Busy, runners.start)
        with patch.object(runners, "start") as start, redirect_stderr(io.StringIO()):
            self.assertFalse(self.worker._is_over())
        self.assertEqual(start.call_count, 1)

    def test_a_claim_comes_before_what_is_looked_at_now_and_then(self):
        self.add()
        runners, begin = self.worker._runners, Mock()
        runners.is_stale, runners.current.owner = Mock(return_value=False), None
        self.clock.advance(jobqueue.RENEW_SECONDS)
        with patch.object(self.worker, "_begin", begin), \
                patch.object(self.queue.tick, "maybe") as tick:
            self.worker._is_over()
            self.assertTrue(begin.called)
            self.assertFalse(tick.called)
            self.worker._is_over()
        self.assertTrue(tick.called)

    def test_what_runs_is_watched_though_nobody_answers(self):
        batch = self.worker._batch = Mock(running=[Mock()], record_by=float("inf"))
        with patch.object(self.queue.tick, "maybe", side_effect=jobqueue.Busy(jobqueue.BUSY)):
            for _ in range(2):
                self.clock.advance(jobqueue.RENEW_SECONDS)
                self.assertFalse(self.worker._is_over())
        self.assertEqual(batch.watch.call_count, 2)

    def test_what_could_not_be_recorded_goes_before_what_shares_the_wait_of_its_round(self):
        task_id, runners = self.add(), self.worker._runners
        runners.is_stale, runners.current.death = Mock(return_value=False), None
        batch = self.worker._batch = Batch(self.clock, runners.current, [], Mock())
        attempt = Attempt(self.queue, runners.current, self.claim(self.worker._place.id))
        batch.ended = [(attempt, Outcome("succeeded"))]
        self.clock.advance(2 * jobqueue.RENEW_SECONDS)      # a tick and a heartbeat are due
        kind, turns = type(self.database), ["the only one of this round"]
        begin = kind._begin

        def begin_once(database, *values):
            if not turns:
                raise jobqueue.Busy(jobqueue.BUSY)
            turns.pop()
            begin(database, *values)
        with patch.object(kind, "_begin", begin_once), redirect_stderr(io.StringIO()):
            self.worker._is_over()
        self.assertEqual(self.status(task_id), "succeeded")


    def test_what_is_claimed_with_a_record_is_told_though_nobody_answers_after_it(self):
        first, second = self.add(), self.add()
        batch = Batch(self.clock, Mock(owner=None), [], Mock())
        batch.ended = [(Attempt(self.queue, Mock(), self.claim()), Outcome("succeeded"))]
        with patch.object(self.queue.files, "tidy", side_effect=jobqueue.Busy("busy")):
            rows = self.worker._recorder.record(batch, Pace(), 10)
        self.assertEqual((self.status(first), [row["id"] for row in rows]), ("succeeded", [second]))


class TestOrder(TestCase):
    """What is told the runner just before it begins."""

    def test_what_others_took_meanwhile_does_not_begin(self):
        self.add(options={"on_crash": "fail"})
        row, child = self.claim(), Mock()
        self.end(row, "crashed")
        batch = Batch(self.clock, child, [Attempt(self.queue, child, row)], Mock())
        batch.begin()
        self.assertEqual((batch.running, batch.ended, batch.unbegun), ([], [], []))
        self.assertFalse(child.hand_over.called)


    def test_what_was_claimed_a_lease_ago_does_not_begin(self):
        """The worker stood still before it could begin: what others have not taken goes back."""
        self.add(), self.add()
        rows, child = [self.claim(), self.claim()], Mock()
        self.clock.advance(self.database.lease_seconds + 1)
        self.end(rows[0], "crashed")
        batch = Batch(self.clock, child, [Attempt(self.queue, child, row) for row in rows], Mock())
        batch.begin()
        self.assertEqual((batch.running, [attempt.row for attempt in batch.unbegun]), ([], rows))
        self.assertFalse(child.hand_over.called)


class TestRemote(unittest.TestCase):
    """What a remote worker was given and has not begun."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.spool = Spool(Path(folder.name))
        self.addCleanup(os.close, self.spool.lock)
        self.remote = RemoteWorker(Mock(), self.spool, verbose=False)
        self.child = Mock(ready=True, owner=None, death=None)
        self.remote._runners.current, self.remote.lease_seconds = self.child, 180.0
        self.remote._runners.is_stale = Mock(return_value=False)

    def take(self, ago=0.0):
        """Have it take a task that the site confirmed some seconds ago."""
        self.remote._taken = {"x": {
            "id": 1, "claim": "x", "function": "f", "owner_id": "ana", "on_crash": "retry",
            "timeout": 1.0, "state": "running", "claimed": time.monotonic() - ago}}

    def test_what_was_confirmed_a_lease_ago_does_not_begin(self):
        """Its runner took long to start, and the site was not heard meanwhile."""
        self.take(ago=200.0)
        self.remote._step()
        self.remote._step()
        self.assertFalse(self.child.hand_over.called)
        self.assertEqual((self.remote._taken, self.remote._batch), ({}, None))
        self.assertEqual(self.spool.ends["x"]["outcome"], {"kind": "put_back"})

    def test_nor_does_what_others_have_or_nobody_wants_any_more(self):
        """Its runner took long to start, and the site said so meanwhile."""
        for state, ends in (("lost", {}), ("cancel", {"x": {
                "id": 1, "claim": "x", "outcome": {"kind": "cancelled"}}})):
            with self.subTest(state):
                self.take()
                call = Mock(ends=[], news=[], extra_keys={})
                self.remote._handle_turn(call, {"attempts": {"x": state}, "tasks": []})
                self.assertEqual((self.remote._taken, self.spool.ends), ({}, ends))


class TestBehind(TestCase):
    def test_one_that_has_not_read_what_it_was_told_is_replaced(self):
        settings = {"runner_tasks": 10, "runner_memory": 512}
        runners = Runners(self.clock, self.folder, self.queue.catalogue, Mock(), settings)
        for unsent in (b"more", b""):
            runners.current = Mock(tasks=1, ended=False, has_leftovers=False, memory=0, files={},
                                   unsent=unsent)
            self.assertEqual(runners.is_stale(), bool(unsent))


class TestOldCode(TestCase):
    """A worker sees that its runner is made of files that are others now."""

    def setUp(self):
        super().setUp()
        self.tasks, self.helper = self.folder / "tasks.py", self.folder / "helper.py"
        for path in (self.tasks, self.helper):
            path.write_text("old")
        for replaced in (patch.object(jobqueue, "TASKS_FILE", self.tasks), patch("worker.Child", self.child)):
            replaced.start()
            self.addCleanup(replaced.stop)
        self.announcement = {"functions": list(FUNCTIONS), "error": None,
                             "files": [str(self.tasks), str(self.helper)]}
        self.queue.catalogue.store(self.announcement)
        settings = {"runner_tasks": 10_000, "runner_memory": 512}
        self.runners = Runners(self.clock, self.folder, self.queue.catalogue, Mock(), settings)
        self.runners.start()

    @staticmethod
    def child(data, lock, files, wake):
        """Stands for a runner that reads what it is made of until it announces it."""
        return Mock(files=files, tasks=0, ended=False, has_leftovers=False, unsent=b"", memory=0,
                    identity=(1, None))

    def is_stale(self):
        self.runners.current.messages.return_value = [{"announce": self.announcement}]
        self.assertTrue(self.runners.hear())
        return self.runners.is_stale()

    def test_nothing_changed(self):
        self.assertFalse(self.is_stale())

    def test_what_tasks_py_imports_was_replaced_while_it_was_imported(self):
        self.helper.write_text("newer")
        self.assertTrue(self.is_stale())

    def test_another_process_has_read_the_new_files_before_the_runner_announced_the_old_ones(self):
        self.queue.catalogue.state()
        self.tasks.write_text("newer")
        self.another_queue().catalogue.store(self.announcement)
        self.assertTrue(self.is_stale())


class TestFolder(TestCase):
    def test_a_worker_that_was_started_makes_no_data_folder_in_the_place_of_one_that_is_gone(self):
        gone = str(self.folder / "gone")
        for start in (lambda: work("detached", gone, row=1, lock="x"),):
            with self.refused(SetupError, "cannot be read: No such file or directory"):
                start()
        self.assertFalse((self.folder / "gone").exists())
