"""The housekeeping in passing, and the one sentence on what the queue is doing."""

import errno
from unittest import mock

import jobqueue
from jobqueue import TICK_SECONDS
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase


class TestTick(TestCase):
    def test_what_is_due_becomes_pending_and_a_worker_is_started(self):
        task_id = self.add(options={"delay": 10})
        self.clock.advance(11)
        self.tick()
        self.assertEqual(self.status(task_id), "pending")
        self.assertEqual(len(self.started), 1)

    def test_a_task_whose_lease_ran_out_is_run_again(self):
        task_id = self.add()
        self.claim(99)
        self.pass_in_silence(self.database.lease_seconds + 1)
        self.tick()
        row = self.row(task_id)
        self.assertEqual((self.status(task_id), row["reason"], row["crashes"]), ("pending", "crashed", 1))
        self.assertEqual(row["error_message"], "The process that ran this task died after at most %d s."
                         % jobqueue.RENEW_SECONDS)

    def test_a_poison_task_ends_and_says_why(self):
        task_id = self.add()
        for _ in range(3):
            self.claim(99)
            self.pass_in_silence(self.database.lease_seconds + 1)
            self.tick()
        row = self.row(task_id)
        self.assertEqual(
            (self.status(task_id), row["reason"], row["error_type"]), ("failed", "crashed", "WorkerLost")
        )

    def test_a_running_task_of_a_dead_worker_that_is_to_be_deleted_is_deleted(self):
        task_id = self.add()
        self.claim(99)
        self.delete(task_id)
        self.pass_in_silence(self.database.lease_seconds + 1)
        self.tick()
        self.assertIsNone(self.row(task_id))

    def test_many_at_once_do_everything_once(self):
        ids = self.add_many("bob", 5)
        for _ in ids:
            self.claim(99)
        self.pass_in_silence(self.database.lease_seconds + 1)
        for queue in [self.queue] + [self.another_queue() for _ in range(4)]:
            self.tick(queue=queue)
        self.assertEqual({self.row(task_id)["crashes"] for task_id in ids}, {1})
        self.assertEqual(self.database.value("SELECT count(*) FROM activity WHERE event='crashed'"), 5)
        self.assertEqual(len(self.started), 2)

    def test_a_quiet_tick_writes_nothing(self):
        self.tick()
        other = self.another_queue()
        version = other.database.version_seen()
        for _ in range(3):
            self.clock.advance(TICK_SECONDS + 1)
            self.tick()
        self.assertEqual(other.database.version_seen(), version)

    def test_it_is_done_now_and_then_only(self):
        done = 0
        for _ in range(10):
            done += self.look_in("worker")
            self.clock.advance(TICK_SECONDS / 5)
        self.assertIn(done, (2, 3))

    def test_old_sessions_and_old_failures_are_swept_once_an_hour(self):
        now = self.clock.now()
        self.write(
            "INSERT INTO session (digest, user_id, created_at, seen_at, expires_at) VALUES ('x', 1, ?, ?, ?)",
            (now, now, now + 10),
        )
        self.write(
            "INSERT INTO throttle (subject, failures, failed_at, until) VALUES ('user:x', 3, ?, ?)",
            (now, now),
        )
        self.tick()
        self.assertEqual(self.database.value("SELECT count(*) FROM session"), 1)
        self.clock.advance(2 * 3600)
        self.tick()
        self.assertEqual(
            self.database.value("SELECT (SELECT count(*) FROM session) + (SELECT count(*) FROM throttle)"), 0
        )

    def test_a_busy_database_is_told_and_hurts_nothing(self):
        self.add(options={"delay": 1})
        self.clock.advance(2)
        with mock.patch.object(self.database, "transaction", side_effect=jobqueue.Busy("busy")):
            with self.assertRaises(jobqueue.Busy):
                self.tick()
        self.tick()
        self.assertEqual(self.database.value("SELECT count(*) FROM task WHERE status=0"), 1)


class TestService(TestCase):
    def said(self):
        self.clock.advance(2)
        return jobqueue.describe_service(self.queue)

    def worker(self, state):
        [(worker_id, _)] = self.reserve()
        self.write("UPDATE worker SET state=? WHERE id=?", (state, worker_id))

    def test_nothing_to_say(self):
        self.assertEqual(self.said(), {"code": "ok", "text": "", "since": None})

    def test_a_full_disk_is_said_whatever_else_there_is_to_say(self):
        full = mock.Mock(f_bavail=0, f_frsize=4096)
        with mock.patch("os.statvfs", return_value=full):
            said = self.said()
        self.assertEqual(said["code"], "storage")
        self.assertIn("disk is full", said["text"])

    def test_an_idle_worker_with_work_is_nothing_to_say(self):
        self.worker("idle")
        self.add()
        self.assertEqual(self.said()["code"], "ok")

    def test_a_worker_is_being_started(self):
        self.add()
        self.assertEqual(self.said()["code"], "starting")

    def test_all_workers_are_busy(self):
        self.change_settings(NbMaxWorker=1)
        self.worker("busy")
        self.add_many("bob", 3)
        said = self.said()
        self.assertEqual((said["code"], said["text"]), ("busy", "All workers are busy."))

    def test_a_queue_is_paused(self):
        self.add()
        self.write("UPDATE queue SET paused=1")
        self.assertEqual(self.said()["code"], "paused")

    def test_a_pause_is_told_whatever_others_have_to_run(self):
        for name in ("default", "theirs", "far"):
            self.add(options={"queue": name})
        self.write("UPDATE queue SET external=1 WHERE name='theirs'")
        self.write("""UPDATE queue SET machines='["elsewhere"]' WHERE name='far'""")
        self.assertNotEqual(self.said()["code"], "paused")
        self.queue.queues.change("default", {"paused": True, "paused_why": "moving"}, "ana")
        self.assertEqual(self.said()["text"], "The queue default is paused by ana: moving.")
        self.queue.queues.change("far", {"paused": True}, "ana")
        self.assertIn("The queue default is paused", self.said()["text"])
        self.write("UPDATE queue SET paused=0 WHERE name<>'theirs'")
        self.write("UPDATE queue SET paused=1 WHERE name='theirs'")
        self.assertNotEqual(self.said()["code"], "paused")

    def test_no_workers_are_wanted(self):
        self.change_settings(NbMaxWorker=0)
        self.assertEqual(self.said()["code"], "off")

    def test_tasks_py_cannot_be_read(self):
        self.queue.catalogue.store({"error": {"message": "SyntaxError", "file": "tasks.py", "line": 3}})
        said = self.said()
        self.assertEqual(said["code"], "code_error")
        self.assertEqual(said["text"], "Nothing new starts: tasks.py cannot be read: SyntaxError "
                                       "(tasks.py, line 3).")     # http/test_strangers: only admins see why

    def test_no_worker_could_be_started(self):
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        self.add()
        said = self.said()
        self.assertEqual(said["code"], "no_worker")
        self.assertRegex(said["text"], r"process limit\)\. Next try \d\d:\d\d UTC")
        self.assertIsNotNone(said["since"])

    def test_some_workers_run_but_the_host_allows_no_more(self):
        self.change_settings(NbMaxWorker=2)
        with self.database.transaction() as transaction:
            (worker_id, _), = self.queue.workers.reserve(transaction, "detached")
            transaction.run("UPDATE worker SET state='busy'")
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        self.add_many("bob", 3)
        self.claim(worker_id)
        self.assertEqual(self.said()["text"], "All workers are busy, and a worker could not be "
                                              "started (process limit).")

    @about_sqlite("its log")
    def test_the_log_of_the_database_has_grown(self):
        with mock.patch.object(self.database, "wal_bytes", return_value=jobqueue.WAL_ALARM_BYTES + 1):
            self.assertEqual(self.said()["code"], "storage")

    def test_every_code_is_one_of_the_design(self):
        known = "ok starting busy paused off code_error no_worker cron_wait storage".split()
        for state in ("starting", "idle", "busy"):
            self.write("DELETE FROM worker")
            self.worker(state)
            self.add()
            self.assertIn(self.said()["code"], known)
