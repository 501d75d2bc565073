"""Starting workers: how, with which Python, and when `auto` leaves it to others; no test here starts one."""

import errno
import os
import sys
import unittest
from unittest import mock

import jobqueue
from jobqueue import DETACHED_AGAIN_SECONDS, STARTING_SECONDS, recall
from tests.helpers.support import FakeProcess, TestCase


class ModeCase(TestCase):
    def setUp(self):
        super().setUp()
        self.workers, self.starter = self.queue.workers, self.queue.starter

    def decide(self):
        return self.queue.modes.decide()

    def mode(self):
        return self.decide()[0]

    def start(self):
        """Have a worker started; its row."""
        if not self.database.value("SELECT count(*) FROM task WHERE status=0"):
            with mock.patch.object(self.queue, "start_workers"):
                self.add()
        self.clock.advance(60)          # whatever pause a failure made
        self.assertEqual(self.starter.start_needed(), 1)
        return self.database.one("SELECT * FROM worker ORDER BY id DESC")

    def never_report(self):
        self.start()
        self.clock.advance(STARTING_SECONDS + 1)
        self.clean()

    def is_killed(self, after=1.0, row=None):
        """A worker reports, is killed a little later, and somebody sees that."""
        row = row or self.start()
        handle = self.arrive(row["id"], row["lock"])
        for _ in range(int(after // 10)):
            self.clock.advance(10)
            self.say(row)
        self.clock.advance(after % 10)
        self.die(handle)
        self.clean()

    def say(self, row):
        with self.database.transaction() as transaction:
            self.workers.heartbeat(transaction, row["id"], "busy", 0)

    def leave(self, why="idle", tasks=0, after=15):
        row = self.start()
        handle = self.arrive(row["id"], row["lock"])
        self.clock.advance(after)
        with self.database.transaction() as transaction:
            self.workers.leave(transaction, row["id"], why, tasks)
        self.locks.remove(handle)
        self.workers.remove_lock(row["lock"], handle)

    def cron_came(self, *ago):
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, "rhythm", {
                "visits": {"cron": [self.clock.now() - seconds for seconds in ago]}})

    def said(self):
        self.clock.advance(2)
        return jobqueue.describe_service(self.queue)


class TestAuto(ModeCase):
    def test_workers_are_started_as_long_as_nothing_speaks_against_it(self):
        self.assertEqual(self.decide(), ("detached", "Workers are started whenever there is work."))

    def test_two_starts_in_a_row_that_never_reported_change_it_and_it_says_why(self):
        self.never_report()
        self.assertEqual(self.mode(), "detached")
        self.never_report()
        mode, why = self.decide()
        self.assertEqual(mode, "slice")
        self.assertRegex(why, r"because the host ended workers soon after they had started \(\d\d:\d\d UTC\)")
        self.add()
        self.assertEqual(self.starter.start_needed(), 0)

    def test_cron_does_the_work_where_one_comes(self):
        for _ in range(2):
            self.never_report()
        self.cron_came(1800, 900, 0)
        self.assertEqual(self.mode(), "cron")
        self.assertEqual(self.said()["code"], "cron_wait")
        self.assertIn("cron, which comes about every 15 minutes; it came last at", self.said()["text"])
        for ago in ((4000, 3100, 2200), (jobqueue.ONE_VISIT_SECONDS + 1,)):
            self.cron_came(*ago)
            self.assertEqual(self.mode(), "slice", "it has not come for too long")

    def test_a_cron_every_two_hours_is_known_for_four(self):
        self.cron_came(3 * 3600, 3600)
        self.assertTrue(self.queue.tick_history.visitor("cron")["comes"])
        self.cron_came(7 * 3600, 5 * 3600)
        self.assertFalse(self.queue.tick_history.visitor("cron")["comes"])

    def test_workers_that_were_killed_soon_change_it(self):
        self.is_killed(after=5)
        self.assertEqual(self.mode(), "detached")
        self.is_killed(after=5)
        self.assertEqual(self.mode(), "slice")

    def test_so_do_those_that_were_told_to_stop_soon(self):
        for _ in range(2):
            self.leave(jobqueue.STOPPED)
        self.assertEqual(self.mode(), "slice")

    def test_those_that_ran_the_same_task_are_one_for_it_may_be_the_reason(self):
        for _ in range(2):
            row = self.start()
            self.assertEqual(self.claim(row["id"])["id"], 1)
            self.is_killed(row=row)
            self.write("UPDATE task SET status=0")
        self.assertEqual(self.mode(), "detached")
        self.write("DELETE FROM task")
        row = self.start()
        self.claim(row["id"])
        self.is_killed(row=row)
        self.assertEqual(self.mode(), "slice", "another task")

    def test_one_that_lived_for_a_while_breaks_the_row(self):
        self.is_killed()
        self.is_killed(after=70)
        self.is_killed()
        self.assertEqual(self.mode(), "detached")

    def test_one_that_left_in_order_breaks_the_row(self):
        self.is_killed()
        self.leave()
        self.is_killed()
        self.assertEqual(self.mode(), "detached")

    def test_workers_of_other_modes_teach_nothing(self):
        for mode in ("cron", "service", "slice") * 2:
            self.die(self.live(mode)[1])
            self.clean()
        self.assertEqual(self.mode(), "detached")
        for _ in range(2):
            self.never_report()
        self.die(self.live("cron")[1])
        self.assertEqual(self.mode(), "slice", "a cron that works does not show that detached ones do")

    def test_those_that_were_started_together_are_one_occasion(self):
        self.change_settings(NbMaxWorker=4)
        self.add_many("bob", 9)
        self.assertEqual(len(self.started), 4)
        self.clock.advance(STARTING_SECONDS + 1)
        self.clean()
        self.assertEqual(self.database.value("SELECT count(*) FROM worker"), 0)
        self.assertEqual(self.mode(), "detached")

    def test_a_reboot_is_not_the_hosts_policy(self):
        for _ in range(2):
            self.start()
            self.write("UPDATE worker SET boot='boot-0'")
            for _ in range(2):
                self.clock.advance(1000)
                self.clean()
        self.assertEqual(self.mode(), "detached")

    def test_what_failed_by_itself_is_told_and_tried_again_soon(self):
        for _ in range(3):
            self.start()
            self.workers.log.write_text("Traceback\nSyntaxError: half an upload\n")
            self.clock.advance(STARTING_SECONDS + 1)
            os.utime(self.workers.log, (self.clock.now(), self.clock.now()))
            self.clean()
        self.assertEqual(self.mode(), "detached")
        self.assertIn("did not report: SyntaxError: half an upload", self.said()["text"])

    def test_a_shortage_is_no_reason_to_change(self):
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        for _ in range(5):
            self.add()
            self.clock.advance(100)
        self.assertEqual(self.mode(), "detached")
        self.assertIn("process limit", self.said()["text"])

    def test_it_is_tried_again_after_an_hour_and_one_loss_more_is_enough(self):
        for _ in range(2):
            self.never_report()
        self.clock.advance(DETACHED_AGAIN_SECONDS - 1)
        self.assertEqual(self.mode(), "slice")
        self.clock.advance(2)
        self.assertEqual(self.mode(), "detached")
        self.never_report()
        self.assertEqual(self.mode(), "slice")

    def test_it_is_kept_if_it_works_then(self):
        for _ in range(2):
            self.never_report()
        self.clock.advance(DETACHED_AGAIN_SECONDS + 1)
        self.leave()
        self.assertEqual(self.decide(), ("detached", "Workers are started whenever there is work."))

    def test_a_clock_that_is_put_back_does_not_keep_it_for_years(self):
        for _ in range(2):
            self.never_report()
        self.clock.wall -= 10 * 365 * 86400
        self.assertEqual(self.mode(), "detached")

    def test_each_machine_has_its_own_experience(self):
        for _ in range(2):
            self.never_report()
        other = self.another_queue()
        other.claims.machine = "machine-2"
        self.assertEqual(other.modes.decide()[0], "detached")
        self.assertEqual(self.mode(), "slice")

    def test_what_an_admin_says_counts(self):
        for _ in range(2):
            self.never_report()
        for mode in ("detached", "cron", "slice", "service"):
            self.change_settings(worker_mode=mode)
            self.assertEqual(self.decide(), (mode, "The setting worker_mode names this mode."))


class TestOtherModes(ModeCase):
    def choose(self, mode):
        self.change_settings(worker_mode=mode)

    def test_nobody_is_started_by_adding_ticking_or_looking(self):
        for mode in ("cron", "slice", "service"):
            self.choose(mode)
            self.add()
            self.clock.advance(10)
            self.tick()
            self.queue.start_workers()
        self.assertEqual(self.started, [])

    def test_what_has_to_come_first_is_said(self):
        self.add()
        for mode, code, words in (
                ("cron", "cron_wait", "Waiting for cron, which has not come lately"),
                ("slice", "cron_wait", "while this page is open or the tick address is called."),
                ("service", "no_worker", "worker.py --service")):
            self.choose(mode)
            self.write("DELETE FROM worker")
            said = self.said()
            self.assertEqual(said["code"], code)
            self.assertIn(words, said["text"])

    def test_it_is_not_said_while_a_worker_is_there_or_nothing_to_do(self):
        self.choose("cron")
        self.assertEqual(self.said()["code"], "ok")
        self.add()
        self.reserve("cron")
        self.assertEqual(self.said()["code"], "starting")


    def test_a_slice_is_asked_for_while_there_is_a_place_for_it(self):
        self.choose("slice")
        self.add_many("bob", 5)
        for code in ("cron_wait", "busy"):
            self.die(self.live("slice")[1])
            self.write("UPDATE worker SET state='busy'")
            self.assertEqual(self.said()["code"], code)


class TestSlice(ModeCase):
    def setUp(self):
        super().setUp()
        self.change_settings(worker_mode="slice")
        self.children = []

    def _start(self, arguments, **named):
        super()._start(arguments, **named)
        self.children.append(FakeProcess())
        return self.children[-1]

    def test_it_waits_for_its_workers_and_counts_what_they_did(self):
        self.add_many("bob", 5)
        looks = []

        def poll(child):
            looks.append(self.clock.now())
            if len(looks) < 4:
                return None
            worker_id = int(self.started[self.children.index(child)][4])
            self.end(self.claim(worker_id))
            self.write("DELETE FROM worker WHERE id=?", (worker_id,))
            child.returncode = 0
            return 0

        with mock.patch.object(FakeProcess, "poll", poll):
            self.assertEqual(self.starter.work_slice(20), 2)
        self.assertEqual(len(self.started), 2)

    def test_it_waits_no_longer_than_it_may(self):
        self.add()
        before = self.clock.monotonic()
        self.assertEqual(self.starter.work_slice(20), 0)
        self.assertAlmostEqual(self.clock.monotonic() - before, 20, delta=0.1)

    def test_a_slice_is_told_to_claim_nothing_at_the_end_of_its_request(self):
        self.add()
        self.starter.work_slice(20)
        row = self.workers.rows()[0]
        wanted = ["-m", "worker", "--slice", str(row["id"]), row["lock"], str(self.database.folder), "19.0"]
        self.assertEqual(self.started[0][-len(wanted):], wanted)
        self.assertEqual(row["mode"], "slice")

    def test_whoever_waits_for_a_task_works_on_it(self):
        with self.assertRaises(TimeoutError):
            self.queue.enqueue("add", {"a": 1}).wait(timeout=5)
        self.assertEqual(self.started[0][-1], "4.0", "no longer than it is waited")

    def test_never_more_of_them_than_may_run(self):
        self.add_many("bob", 50)
        for _ in range(3):
            self.starter.work_slice(1)
        self.assertEqual(len(self.started), 2)

    def test_nothing_to_do_starts_and_waits_for_nobody(self):
        before = self.clock.monotonic()
        self.assertEqual(self.starter.work_slice(20), 0)
        self.assertEqual((self.started, self.clock.monotonic()), ([], before))

    def test_where_auto_leaves_it_to_cron_whoever_waits_works_too(self):
        self.change_settings(worker_mode="auto")
        for _ in range(2):
            self.never_report()
        self.add()
        for ago in ((1800, 900, 0), (10,), (120, 60, 0)):
            self.cron_came(*ago)
            self.assertEqual(self.mode(), "cron")
            self.assertTrue(self.queue.modes.works_in_slices())
        self.starter.work_slice(1)
        self.assertIn("--slice", str(self.started))

    def test_in_other_modes_it_does_nothing(self):
        for mode in ("detached", "cron", "service"):
            self.change_settings(worker_mode=mode)
            self.add()
            before = self.clock.monotonic()
            self.assertEqual(self.starter.work_slice(20), 0)
            self.assertEqual(self.clock.monotonic(), before)
            self.assertNotIn("--slice", str(self.started))

    def test_a_start_that_fails_is_told_and_holds_nobody(self):
        self.start_error = RuntimeError("can't start new thread")
        self.add()
        before = self.clock.monotonic()
        self.assertEqual(self.starter.work_slice(20), 0)
        self.assertEqual(self.clock.monotonic(), before)
        said = jobqueue.describe_service(self.queue)
        self.assertEqual(said["code"], "no_worker")
        self.assertIn("can't start new thread", said["text"])
        self.assertEqual(self.said()["code"], "cron_wait", "then the page asks for a slice again")

    def test_what_its_request_left_behind_is_found_by_the_next(self):
        self.add()
        self.starter.work_slice(1)
        row = self.workers.rows()[0]
        self.die(self.arrive(row["id"], row["lock"]))      # its request is over, and the host has killed it
        self.clean()
        self.assertEqual(self.workers.rows(), [])
        self.assertEqual(self.mode(), "slice")


class TestInterpreter(TestCase):
    def file(self, name="python3", mode=0o700):
        path = self.folder / name
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
        return str(path)

    def test_it_is_the_one_that_runs_us(self):
        self.assertEqual(self.queue.interpreter.path(), sys.executable)

    def test_one_is_found_where_the_server_is_none(self):
        for executable in ("/usr/sbin/apache2", "/usr/bin/uwsgi", "", None):
            with self.subTest(executable), mock.patch("sys.executable", executable):
                self.assertIn("python", os.path.basename(self.queue.interpreter.path()))

    def test_the_chosen_one_wins(self):
        self.change_settings(python=self.file())
        self.add()
        self.assertEqual(self.started[0][0], str(self.folder / "python3"))

    def test_what_cannot_be_run_cannot_be_chosen(self):
        for path in ("/nonsense/python", "nopython", str(self.folder), self.file("text", 0o600)):
            with self.subTest(path), self.refused(jobqueue.Invalid, "python must be the path"):
                self.change_settings(python=path)
        self.assertEqual(self.queue.settings.get("python"), "")

    def test_a_chosen_one_that_is_gone_is_told_and_no_other_taken_for_it(self):
        path = self.file()
        self.change_settings(python=path)
        os.unlink(path)
        self.add()
        self.assertIn(path + " cannot be run", recall(self.database, "start_failure")["message"])

    def test_if_there_is_none_that_is_told(self):
        with mock.patch("sys.executable", ""), mock.patch("sys.prefix", "/nonsense"), \
                mock.patch("shutil.which", return_value=None):
            with self.refused(jobqueue.SetupError, "the setting python"):
                self.queue.interpreter.path()


if __name__ == "__main__":
    unittest.main()
