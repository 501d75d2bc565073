"""Rows, lock files, starting processes; no test here starts one."""

import errno
import os
from unittest import mock

import jobqueue
from jobqueue import (
    STARTING_LOCKED_SECONDS,
    STARTING_SECONDS,
    grab_if_free,
    recall,
    create_lock,
)
from tests.helpers.support import FakeProcess, TestCase


class WorkerCase(TestCase):
    def setUp(self):
        super().setUp()
        self.workers = self.queue.workers
        kill = mock.patch("os.kill", side_effect=AssertionError("a process was signalled"))
        killpg = mock.patch("os.killpg", side_effect=AssertionError("a group was signalled"))
        for patch in (kill, killpg):
            patch.start()
            self.addCleanup(patch.stop)

    def dead(self):
        """{id: why} of what counts as dead; locks that were grabbed are let go."""
        found = {}
        for row, handle, why in self.queue.reaper.find_dead():
            found[row["id"]] = why
            if handle is not None:
                os.close(handle)
        return found

    def count(self):
        return self.database.value("SELECT count(*) FROM worker")


class TestReserving(WorkerCase):
    def test_never_more_than_nbmaxworker(self):
        self.change_settings(NbMaxWorker=3)
        self.assertEqual(len(self.reserve(wanted=10)), 3)
        self.assertEqual(self.reserve(wanted=10), [])
        self.assertEqual(self.count(), 3)

    def test_none_at_all_if_it_is_0(self):
        self.change_settings(NbMaxWorker=0)
        self.assertEqual(self.reserve(), [])

    def test_a_lowered_limit_counts_for_new_ones(self):
        self.reserve(wanted=2)
        self.change_settings(NbMaxWorker=1)
        self.assertEqual(self.reserve(), [])

    def test_each_gets_a_lock_file_name_of_its_own(self):
        made = self.reserve(wanted=2)
        self.assertEqual(len({lock for _, lock in made}), 2)

    def test_rooms_are_reserved_in_one_transaction_so_that_two_starters_share_them(self):
        self.change_settings(NbMaxWorker=4)
        other = self.another_queue()
        self.add_many("bob", 10)
        other.starter.start_needed()
        self.queue.starter.start_needed()
        self.assertEqual((self.count(), len(self.started)), (4, 4))


class TestArriving(WorkerCase):
    def test_a_reserved_row_becomes_live(self):
        worker_id, _ = self.live(pid=4711)
        row = self.workers.rows()[0]
        self.assertEqual(
            (row["id"], row["state"], row["pid"], row["lock_proven"]), (worker_id, "idle", 4711, 1)
        )

    def test_a_row_that_was_given_up_stays_gone(self):
        [(worker_id, lock)] = self.reserve()
        self.write("DELETE FROM worker")
        self.assertFalse(self.workers.arrive(worker_id, lock, True, 1))

    def test_nobody_arrives_twice_or_with_another_lock(self):
        [(worker_id, lock)] = self.reserve()
        self.assertFalse(self.workers.arrive(worker_id, "other", True, 1))
        self.assertTrue(self.workers.arrive(worker_id, lock, True, 1))
        self.assertFalse(self.workers.arrive(worker_id, lock, True, 1))

    def test_an_arrival_ends_the_back_off(self):
        with self.database.transaction() as transaction:
            self.workers.start_failed(transaction, "process limit")
        self.live()
        self.assertIsNone(recall(self.database, "start_failure"))

    def test_who_says_something_has_a_lease_again(self):
        worker_id, _ = self.live()
        self.clock.advance(50)
        with self.database.transaction() as transaction:
            self.workers.heartbeat(transaction, worker_id, "busy", 3)
        row = self.workers.rows()[0]
        self.assertEqual(
            (row["state"], row["tasks"], row["lease_monotonic"]),
            ("busy", 3, self.clock.monotonic() + self.database.lease_seconds),
        )

    def test_who_has_no_row_any_more_is_told(self):
        first, second = self.live()[0], self.live()[0]
        self.write("DELETE FROM worker WHERE id=?", (second,))
        self.assertEqual([self.workers.rank(one) for one in (first, second)], [1, None])

    def test_the_oldest_has_the_first_place_and_who_is_leaving_has_none(self):
        self.change_settings(NbMaxWorker=3)
        first, second, third = [self.live()[0] for _ in range(3)]
        self.assertEqual(
            [self.workers.rank(one) for one in (first, second, third)], [1, 2, 3]
        )
        self.write("UPDATE worker SET state='stopping' WHERE id=?", (first,))
        self.assertEqual([self.workers.rank(one) for one in (second, third)], [1, 2])

    def test_leaving_is_noted_once(self):
        worker_id, _ = self.live()
        for _ in range(2):
            with self.database.transaction() as transaction:
                self.workers.leave(transaction, worker_id, "idle", 5)
        rows = self.database.all("SELECT message FROM activity WHERE event='worker_ended'")
        self.assertEqual([row[0] for row in rows], ["idle after 5 tasks"])

    def test_the_list_shows_what_each_worker_runs(self):
        worker_id, _ = self.live()
        self.add("bob", "greet", name="x")
        row = self.claim(worker_id)
        shown = self.workers.rows()[0]
        self.assertEqual(
            (shown["task_id"], shown["owner_id"], shown["function"]),
            (row["id"], self.owner_id("bob"), "greet"),
        )


class TestLocks(WorkerCase):
    def test_a_lock_is_held_and_proven(self):
        path = self.workers.locks / "one"
        handle, proven = create_lock(path)
        self.assertTrue(proven)
        self.assertIsNone(grab_if_free(path))
        os.close(handle)
        second = grab_if_free(path)
        self.assertIsNotNone(second)
        os.close(second)

    def test_the_file_has_its_name_only_once_it_is_locked(self):
        path = self.workers.locks / "one"
        seen = []
        real = os.rename

        def rename(old, new):
            seen.append((path.exists(), grab_if_free(old) is None))
            real(old, new)

        with mock.patch("os.rename", rename):
            handle, _ = create_lock(path)
        self.assertEqual(seen, [(False, True)])
        os.close(handle)

    def test_a_file_that_exists_already_is_not_taken_over(self):
        path = self.workers.locks / "one"
        path.with_name("one.new").write_text("")
        with self.assertRaises(FileExistsError):
            create_lock(path)

    def test_a_host_without_flock_proves_nothing(self):
        with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "not implemented")):
            handle, proven = create_lock(self.workers.locks / "one")
        self.assertFalse(proven)
        os.close(handle)

    def test_a_lock_that_keeps_nobody_out_proves_nothing(self):
        with mock.patch("fcntl.flock", return_value=None):
            handle, proven = create_lock(self.workers.locks / "one")
        self.assertFalse(proven)
        os.close(handle)

    def test_looking_for_a_missing_file_does_not_create_it(self):
        path = self.workers.locks / "missing"
        self.assertIsNone(grab_if_free(path))
        self.assertFalse(path.exists())


class TestTheDead(WorkerCase):
    def test_a_living_worker_is_not_dead(self):
        self.live()
        self.assertEqual(self.dead(), {})

    def test_a_worker_whose_lock_is_free_died(self):
        worker_id, handle = self.live()
        self.die(handle)
        self.assertEqual(self.dead(), {worker_id: "died"})

    def test_a_living_process_with_that_number_does_not_matter(self):
        worker_id, handle = self.live(pid=1)
        self.die(handle)
        self.assertEqual(self.dead(), {worker_id: "died"})

    def test_a_missing_lock_file_proves_nothing(self):
        worker_id, handle = self.live()
        os.unlink(next(self.workers.locks.iterdir()))
        self.die(handle)
        self.assertEqual(self.dead(), {})
        self.pass_in_silence(self.database.lease_seconds + 1)
        self.assertEqual(self.dead(), {worker_id: "silent"})

    def test_a_lock_that_is_not_proven_proves_nothing(self):
        worker_id, handle = self.live(proven=False)
        self.die(handle)
        self.assertEqual(self.dead(), {})
        self.pass_in_silence(self.database.lease_seconds + 1)
        self.assertEqual(self.dead(), {worker_id: "silent"})

    def test_another_machine_is_judged_by_its_lease_and_slack_alone(self):
        vars(self.database).update(journal="truncate", has_own_disk=False)
        worker_id, handle = self.live()
        self.write("UPDATE worker SET boot='another'")
        self.die(handle)
        self.pass_in_silence(self.database.lease_seconds + self.database.slack_seconds - 1)
        self.assertEqual(self.dead(), {})
        self.clock.advance(2)
        self.assertEqual(self.dead(), {worker_id: "silent"})

    def test_after_a_restart_of_the_machine_all_locks_are_free(self):
        worker_id, handle = self.live()
        self.write("UPDATE worker SET boot='another'")
        self.assertEqual(self.dead(), {})
        self.die(handle)
        self.assertEqual(self.dead(), {worker_id: "died"})

    def test_a_container_that_got_a_new_name_is_on_the_same_machine(self):
        worker_id, handle = self.live()
        self.write("UPDATE worker SET machine='another'")
        self.assertEqual(self.dead(), {})
        self.die(handle)
        self.assertEqual(self.dead(), {worker_id: "died"})

    def test_a_clock_that_jumps_kills_nobody_here(self):
        self.live()
        for jump in (10**8, -2 * 10**8):
            self.clock.wall += jump
            self.assertEqual(self.dead(), {})

    def test_a_worker_that_never_arrived_is_given_up(self):
        [(worker_id, _)] = self.reserve()
        self.clock.advance(STARTING_SECONDS - 1)
        self.assertEqual(self.dead(), {})
        self.clock.advance(2)
        self.assertEqual(self.dead(), {worker_id: "did not report"})

    def test_where_boots_have_no_id_one_that_does_not_report_is_given_up_as_soon(self):
        with mock.patch.object(self.queue.claims.leases, "boot", ""):
            [(worker_id, _)] = self.reserve()
            self.clock.advance(STARTING_SECONDS - 1)
            self.assertEqual(self.dead(), {})
            self.clock.advance(2)
            self.assertEqual(self.dead(), {worker_id: "did not report"})

    def test_one_that_holds_its_lock_has_more_time(self):
        [(worker_id, lock)] = self.reserve()
        handle, _ = create_lock(self.workers.locks / lock)
        self.clock.advance(STARTING_SECONDS + 1)
        self.assertEqual(self.dead(), {})
        self.clock.advance(STARTING_LOCKED_SECONDS)
        self.assertEqual(self.dead(), {worker_id: "did not report"})
        os.close(handle)

    def test_looking_at_a_starting_worker_does_not_keep_its_lock(self):
        [(_, lock)] = self.reserve()
        handle, _ = create_lock(self.workers.locks / lock)
        os.close(handle)
        self.dead()
        second = grab_if_free(self.workers.locks / lock)
        self.assertIsNotNone(second)
        os.close(second)

    def test_a_tick_buries_the_dead_and_removes_their_lock(self):
        worker_id, handle = self.live()
        task_id = self.add()
        self.claim(worker_id)
        self.die(handle)
        self.started.clear()
        self.tick()
        self.assertEqual(self.status(task_id), "pending")
        self.assertEqual(self.events(task_id)[-1], "crashed")
        self.assertEqual(list(self.workers.locks.iterdir()), [])
        self.assertEqual(len(self.started), 1)

    def test_a_worker_that_is_buried_by_two_is_noted_once(self):
        worker_id, handle = self.live()
        task_id = self.add()
        self.claim(worker_id)
        self.die(handle)
        other = self.another_queue()
        first = self.queue.reaper.find_dead()
        second = other.reaper.find_dead()
        for queue, found in ((self.queue, first), (other, second)):
            with mock.patch.object(queue.reaper, "find_dead", return_value=found):
                self.tick(queue=queue)
        self.assertEqual(self.events(task_id).count("crashed"), 1)
        self.assertEqual(self.database.value("SELECT count(*) FROM activity WHERE event='worker_lost'"), 1)

    def test_a_worker_that_spoke_up_since_it_was_looked_at_is_left_alone(self):
        """Its lease had run out, say after a sleep; then it renewed before the reaper wrote."""
        worker_id, _ = self.live(proven=False)
        task_id = self.add()
        row = self.claim(worker_id)
        self.pass_in_silence(self.database.lease_seconds + 1)
        found = self.queue.reaper.find_dead()
        self.assertEqual([why for _, _, why in found], ["silent"])
        with self.database.transaction() as transaction:
            self.workers.heartbeat(transaction, worker_id, "busy", 0)
            self.queue.claims.renew(transaction, row["id"], row["claim"], self.clock.now())
        with mock.patch.object(self.queue.reaper, "find_dead", return_value=found):
            self.tick()
        self.assertIn(worker_id, [one["id"] for one in self.workers.rows()])
        self.assertEqual(self.status(task_id), "running")

    def test_one_that_died_right_after_it_spoke_up_is_buried_at_the_next_look(self):
        """Its row was read before its last words, its lock tried after its death."""
        worker_id, handle = self.live()
        look = self.database.all

        def late(*question):
            rows = look(*question)
            if question == ("SELECT * FROM worker",) and handle in self.locks:
                with self.database.transaction() as transaction:
                    self.workers.heartbeat(transaction, worker_id, "busy", 0)
                self.die(handle)
            return rows
        with mock.patch.object(self.database, "all", side_effect=late):
            self.queue.reaper.bury_dead()
        self.assertEqual(self.count(), 1)
        self.queue.reaper.bury_dead()
        self.assertEqual(self.count(), 0)
        self.assertEqual(list(self.workers.locks.iterdir()), [])

    def test_left_over_lock_files_are_swept_once_they_are_old(self):
        for name, age in (("old", 7200), ("young", 10)):
            path = self.workers.locks / name
            path.touch()
            os.utime(path, (self.clock.now() - age,) * 2)
        self.queue.reaper.sweep_locks()
        self.assertEqual([path.name for path in self.workers.locks.iterdir()], ["young"])

    def test_a_living_workers_lock_file_is_never_swept(self):
        self.live()
        path = next(self.workers.locks.iterdir())
        os.utime(path, (0, 0))
        self.queue.reaper.sweep_locks()
        self.assertTrue(path.exists())


class TestStarting(WorkerCase):
    def test_one_task_starts_one_worker_and_many_start_as_many_as_may_run(self):
        self.add()
        self.assertEqual(len(self.started), 1)
        self.add_many("bob", 50)
        self.assertEqual(len(self.started), 2)

    def test_no_work_starts_nobody(self):
        self.assertEqual(self.queue.starter.start_needed(), 0)
        self.add(options={"delay": 60})
        self.assertEqual(self.started, [])

    def test_an_idle_worker_is_counted_on(self):
        self.live()
        self.add()
        self.assertEqual(self.started, [])

    def test_busy_workers_are_not(self):
        worker_id, _ = self.live()
        self.write("UPDATE worker SET state='busy'")
        self.add()
        self.assertEqual(len(self.started), 1)

    def test_a_worker_is_started_as_a_module_with_its_row_lock_and_data(self):
        self.add()
        row = self.workers.rows()[0]
        wanted = ["-m", "worker", "--detached", str(row["id"]), row["lock"],
                  str(self.database.folder)]
        self.assertEqual(self.started[0][-len(wanted):], wanted)

    def test_a_failure_is_remembered_explained_and_leaves_no_row(self):
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        task_id = self.add()
        failure = recall(self.database, "start_failure")
        self.assertIn("process limit", failure["message"])
        self.assertEqual((failure["tries"], failure["at"], self.count()), (1, self.clock.now(), 0))
        self.assertEqual(self.status(task_id), "pending")

    def test_after_a_failure_one_is_started_and_the_others_once_it_has_arrived(self):
        """Where all places for processes go to workers none gets a runner, again and again."""
        self.change_settings(NbMaxWorker=3)
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        self.add_many("bob", 9)
        self.start_error = None
        self.clock.advance(5)
        self.assertEqual(self.queue.starter.start_needed(), 1)
        row = self.workers.rows()[0]
        self.workers.arrive(row["id"], row["lock"], True, os.getpid())
        self.assertEqual(self.queue.starter.start_needed(), 2)

    def test_it_is_tried_again_later_and_later(self):
        self.start_error = MemoryError()
        self.add()
        pauses = []
        for _ in range(9):
            failure = recall(self.database, "start_failure")
            pauses.append(failure["next"] - self.clock.now())
            self.clock.advance(pauses[-1] - 0.01)
            self.assertEqual(self.queue.starter.start_needed(), 0)
            self.clock.advance(0.02)
            self.queue.starter.start_needed()
        self.assertEqual([round(pause) for pause in pauses[:7]], [1, 2, 4, 8, 16, 32, 60])
        self.assertLessEqual(max(pauses), 60)

    def test_the_pauses_are_spread(self):
        self.start_error = OSError(errno.ENOMEM, "no memory")
        with mock.patch.object(self.clock, "uniform", lambda low, high: high):
            self.add()
        self.assertEqual(recall(self.database, "start_failure")["next"] - self.clock.now(), 1.5)

    def test_a_clock_that_is_put_back_does_not_stop_starting_for_years(self):
        self.start_error = OSError(errno.ENOMEM, "no memory")
        self.add()
        self.start_error = None
        self.clock.wall -= 10 * 365 * 86400
        self.clock.ticks += 120
        self.assertEqual(self.queue.starter.start_needed(), 1)

    def test_each_error_is_told_in_an_owners_words(self):
        for number, words in (
            (errno.EAGAIN, "process limit"),
            (errno.ENOMEM, "out of memory"),
            (errno.EMFILE, "too many open files"),
            (errno.ENOENT, "No such file"),
        ):
            self.assertIn(words, jobqueue.explain_start_error(OSError(number, os.strerror(number))))
        self.assertIn("started", jobqueue.explain_start_error(RuntimeError("can't start new thread")))

    def test_a_python_that_does_not_exist_is_told(self):
        with mock.patch.object(
            self.queue.interpreter, "path", side_effect=jobqueue.SetupError("No Python interpreter was found")
        ):
            self.add()
        self.assertIn("No Python interpreter", recall(self.database, "start_failure")["message"])

    def test_a_child_that_ended_early_is_buried_with_its_last_words(self):
        children = []

        def start(arguments, **named):
            named["stdout"].write(b"Traceback ...\nImportError: no module named nonsense\n")
            named["stdout"].flush()
            os.utime(self.workers.log, (self.clock.now(), self.clock.now()))
            children.append(FakeProcess())
            return children[-1]

        self.queue.starter._start = start
        self.add()
        children[0].returncode = 1
        self.assertEqual(self.queue.starter.start_needed(), 0)
        self.assertEqual(self.count(), 0)
        message = recall(self.database, "start_failure")["message"]
        self.assertIn("exit code 1", message)
        self.assertIn("no module named nonsense", message)

    def test_a_child_that_ended_in_order_is_only_collected(self):
        self.add()
        self.write("DELETE FROM worker")
        with mock.patch.object(FakeProcess, "returncode", 0):
            self.tick()
        self.assertIsNone(recall(self.database, "start_failure"))

    def test_a_child_whose_end_the_server_did_not_see_is_missed_as_well(self):
        with mock.patch.object(FakeProcess, "returncode", 0):   # as with SIGCHLD ignored
            self.add()
            self.tick()
        self.assertIn("exit code 0", recall(self.database, "start_failure")["message"])

    def test_the_log_of_workers_does_not_grow_for_ever(self):
        self.workers.log.write_bytes(b"x" * (jobqueue.WORKER_LOG_MAX_BYTES + 1))
        self.add()
        self.assertEqual(self.workers.log.stat().st_size, 0)
        self.assertTrue(self.workers.log.with_name(self.workers.log.name + ".old").exists())


class TestEnvironment(TestCase):
    def test_workers_get_what_is_on_the_list_and_nothing_else(self):
        environment = {
            "PATH": "/bin",
            "HOME": "/home/ana",
            "LC_ALL": "C",
            "LANG": "C",
            "TZ": "UTC",
            "VIRTUAL_ENV": "/v",
            "PYTHON_VERSION": "3.12",
            "LD_LIBRARY_PATH": "/opt/sqlite/lib",
            "JOBQUEUE_DATA": "/d",
            "HTTP_PROXY": "http://evil",
            "HTTP_COOKIE": "secret",
            "HTTP_AUTHORIZATION": "secret",
            "QUERY_STRING": "x",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "LD_PRELOAD": "/x.so",
            "GATEWAY_INTERFACE": "CGI/1.1",
        }
        self.assertEqual(
            set(self.queue.interpreter.environment(environment)),
            {"PATH", "HOME", "LC_ALL", "LANG", "TZ", "VIRTUAL_ENV", "PYTHON_VERSION", "LD_LIBRARY_PATH",
             "JOBQUEUE_DATA"},
        )

    def test_an_admin_may_name_more(self):
        environment = {"A": "1", "B": "2", "C": "3"}
        self.change_settings(pass_environment="A, B")
        self.assertEqual(self.queue.interpreter.environment(environment), {"A": "1", "B": "2"})
