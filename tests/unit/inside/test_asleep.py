"""Hosts where nobody is resident: cron that comes now and then, and a worker that stays asleep.

Time is simulated: cron and the workers run in this process, one after the other.
"""
import errno
from types import SimpleNamespace
from unittest import mock

import jobqueue
import worker
from jobqueue import Outcome
from tests.helpers.support import TestCase

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
QUARTER = 15 * MINUTE


class Child(SimpleNamespace):
    """A runner that is ready at once; whoever waits for it lets time pass."""

    def __init__(self, clock):
        super().__init__(ready=True, ended=False, unsent=b"", has_leftovers=False, tasks=0,
                         memory=0, identity=(None, None), owner=None, files={}, clock=clock,
                         end=lambda: None, messages=list, is_dead=lambda: False)

    def wait(self, seconds, alarm=None):
        """A second passes, for a simulation must get on."""
        self.clock.advance(max(1.0, seconds))


class SimulatedWorker(worker.Worker):
    """Ends every task at once; before that it tells `site` what it begins."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._catch_signals = lambda: None
        self._runners.start = self.start_runner

    def start_runner(self):
        """Nothing is imported: it may be given tasks at once."""
        self._runners.current = Child(self._clock)

    def _begin(self, rows):
        for row in rows:
            outcome = self._queue.outcome(row)
            with self._database.transaction() as transaction:
                self._queue.claims.end(transaction, row["id"], row["claim"], outcome, self._clock.now())
                self._place.heartbeat(transaction, "idle")
        self._last_work = self._clock.monotonic()
        self._seen_version = None


class Host(TestCase):
    def setUp(self):
        super().setUp()
        self.begun = []                 # (seconds since the start, id of the task)
        self.birth = self.clock.now()
        self.outcomes = {}              # id of a task -> kinds of its next outcomes
        for patch in (mock.patch.object(worker, "Worker", SimulatedWorker),
                      mock.patch.object(worker, "JobQueue", self.open), mock.patch("os.setpriority")):
            patch.start()
            self.addCleanup(patch.stop)

    def open(self, *_, **__):
        queue = self.another_queue()
        queue.outcome = self.begin
        queue.catalogue.refresh = lambda **_: None
        return queue

    def begin(self, row):
        self.begun.append((round(self.clock.now() - self.birth), row["id"]))
        kinds = self.outcomes.get(row["id"])
        return Outcome(kinds.pop(0) if kinds else "succeeded")

    def tasks_of(self, schedule_id):
        """(seconds since the start when it was due, when it began) of each task, oldest first."""
        begun = {task_id: at for at, task_id in self.begun}
        return [(round(at - self.birth), begun.get(task_id)) for at, task_id in self.database.all(
            "SELECT at, task_id FROM slot WHERE schedule_id=? AND task_id IS NOT NULL ORDER BY at",
            (schedule_id,))]

    def cron(self, until, every=QUARTER):
        """Let cron start worker.py so often until so many seconds after the start."""
        while self.clock.now() - self.birth < until:
            start = self.clock.now()
            self.assertEqual(worker.work("cron", seconds=worker.CRON_SECONDS), 0)
            self.took = self.clock.now() - start
            self.clock.advance(every - self.took)
        ids = [task_id for _, task_id in self.begun]
        self.attempts = {task_id: ids.count(task_id) for task_id in ids}


class Cron(Host):
    """Cron comes every 15 minutes, and nobody else."""

    def setUp(self):
        super().setUp()
        self.change_settings(worker_mode="cron")

    def test_schedules_catch_up_as_they_are_set_and_nothing_runs_twice(self):
        fine = {word: self.schedule("every 5m", catch_up=word, overlap="allow")
                for word in ("none", "once", "all")}
        hourly = self.schedule("@hourly")
        self.cron(12 * HOUR)
        found = {name: self.tasks_of(schedule_id) for name, schedule_id in {**fine, "h": hourly}.items()}
        self.assertEqual(len(found["all"]), 12 * 12 - 3)
        self.assertEqual([len(found[name]) for name in ("none", "once", "h")], [47, 47, 11])
        self.assertEqual(set(self.attempts.values()), {1})
        late = {name: max(began - due for due, began in rows) for name, rows in found.items()}
        self.assertEqual([round(late[name] / MINUTE) for name in ("none", "once", "all", "h")], [0, 0, 10, 0])
        self.assertEqual(self.started, [])

    def test_after_a_gap_of_a_day_each_is_made_up_for_as_it_is_set(self):
        ids = {word: self.schedule("@hourly", catch_up=word, overlap="allow")
               for word in ("none", "once", "all")}
        self.clock.advance(DAY + 20 * MINUTE)
        self.cron(self.clock.now() - self.birth + 1)
        self.assertEqual([len(self.tasks_of(ids[word])) for word in ("none", "once", "all")], [0, 1, 24])

    def test_what_is_to_be_retried_or_was_put_off_is_taken_up(self):
        later = self.add(options={"delay": 20 * MINUTE})
        again = self.add(options={"max_retries": 2, "retry_delay": 10 * MINUTE, "retry_backoff": 1})
        self.outcomes[again] = ["error", "error"]
        self.cron(HOUR)
        self.assertEqual([at for at, task_id in self.begun if task_id == later], [30 * MINUTE])
        self.assertEqual([at for at, task_id in self.begun if task_id == again], [0, QUARTER, 2 * QUARTER])
        self.assertEqual({self.status(later), self.status(again)}, {"succeeded"})

    def test_a_run_stays_for_what_is_due_before_its_end(self):
        for rule, stays in (("every 30s", True), ("every 40m", False)):
            schedule_id = self.schedule(rule)
            start = self.clock.now() - self.birth
            self.cron(start + 1)
            self.assertEqual(bool(self.tasks_of(schedule_id)), stays, rule)
            self.assertEqual(self.took >= 30, stays)
            self.queue.schedules.delete(schedule_id)

    def test_it_stays_for_a_task_that_was_put_off_or_is_to_be_retried(self):
        self.add(options={"delay": 30})
        self.cron(1)
        self.assertEqual([at for at, _ in self.begun], [30])
        self.assertLess(self.took, 35)

    def test_a_run_with_nothing_to_do_ends_at_once_and_says_nothing(self):
        self.add(options={"delay": HOUR})
        with mock.patch("builtins.print") as said:
            self.cron(1)
        self.assertEqual((self.took, said.called), (0, False))

    def test_its_period_is_known_and_told_to_who_waits(self):
        self.cron(HOUR)
        self.assertEqual(self.queue.tick_history.state()["cron"]["period"], QUARTER)
        self.add()
        self.clock.advance(2)
        said = jobqueue.describe_service(self.queue)
        self.assertEqual((said["code"], said["text"]), (
            "cron_wait", "Waiting for cron, which comes about every 15 minutes; it came last at 08:45 UTC."))

    def test_the_command_tick_counts_as_cron(self):
        for _ in range(3):
            self.clock.advance(QUARTER)
            queue = self.open()
            with mock.patch.object(jobqueue, "JobQueue", lambda *_, queue=queue, **__: queue):
                self.assertEqual(jobqueue.main(["tick"]), 0)
        self.assertEqual(self.queue.tick_history.state()["cron"]["period"], QUARTER)


class Asleep(Host):
    """Neither cron nor a server: a worker sleeps until something is due."""

    def setUp(self):
        super().setUp()
        self.change_settings(stay_asleep="yes", linger_due=10, worker_seconds=150)

    def schedule(self, *rule, **more):
        """Make a schedule, as every door does: it starts workers afterwards."""
        schedule_id = super().schedule(*rule, **more)
        self.queue.start_workers()
        return schedule_id

    def live(self, until):
        """Run the workers that are started until nobody is there, or so many seconds have passed."""
        while self.started and self.clock.now() - self.birth < until:
            row, lock = self.started.pop(0)[4:6]
            worker.work("detached", self.database.folder, row=int(row), lock=lock)

    def asleep(self):
        """How many workers there are."""
        return self.database.value("SELECT count(*) FROM worker")

    def test_schedules_run_in_time_over_many_workers(self):
        schedule_id = self.schedule("every 10m", overlap="allow")
        self.assertEqual(len(self.started), 1, "whoever makes a schedule starts a worker that waits for it")
        self.live(51 * MINUTE)
        late = [began - due for due, began in self.tasks_of(schedule_id)]
        self.assertEqual(len(late), 5)
        self.assertLess(max(late), 3)
        self.assertEqual((len(self.started), self.asleep()), (1, 1), "each had one successor")
        self.assertGreater(self.database.value("SELECT max(id) FROM worker"), 18)

    def test_it_waits_for_tasks_that_were_put_off_as_long_as_that_takes(self):
        task_id = self.add(options={"delay": 20 * MINUTE})
        self.live(HOUR)
        self.assertEqual(self.begun, [(20 * MINUTE, task_id)])
        self.assertEqual((len(self.started), self.asleep()), (0, 0), "then nothing is scheduled any more")

    def test_without_the_setting_nobody_stays(self):
        self.change_settings(stay_asleep="no")
        self.schedule("@hourly")
        self.add()
        self.live(5 * HOUR)
        self.assertLess(self.clock.now() - self.birth, 60)

    def test_of_several_one_stays(self):
        self.schedule("@hourly")
        self.add_many("bob", 4)
        self.assertEqual(len(self.started), 2)
        self.write("UPDATE worker SET state='idle' WHERE id=1")
        row, lock = self.started.pop()[4:6]
        worker.work("detached", self.database.folder, row=int(row), lock=lock)
        self.assertLess(self.clock.now() - self.birth, 60, "the other one is here, and will stay")
        self.assertEqual(self.asleep(), 1)

    def test_after_the_host_killed_it_any_request_starts_another(self):
        self.schedule("@hourly")
        self.started.clear()
        self.write("DELETE FROM worker")
        self.clock.advance(60)
        self.another_queue().tick.maybe("request")
        self.assertEqual(len(self.started), 1)
        for _ in range(5):
            self.clock.advance(10)
            self.write("UPDATE worker SET state='idle', lease_monotonic=lease_monotonic+10")
            self.another_queue().tick.maybe("request")
        self.assertEqual(len(self.started), 1)

    def test_a_host_that_refuses_the_successor_is_asked_again(self):
        self.schedule("@hourly")
        self.start_error = BlockingIOError(errno.EAGAIN, "no more processes")
        row, lock = self.started.pop()[4:6]
        with mock.patch.object(self.clock, "sleep", self.sleep_until_there_is_room):
            worker.work("detached", self.database.folder, row=int(row), lock=lock)
        self.assertEqual((len(self.started), self.asleep()), (1, 1))

    def sleep_until_there_is_room(self, seconds):
        """What FakeClock.sleep does; after a while there is room for another process."""
        self.clock.advance(seconds)
        if seconds >= 5:
            self.start_error = None

    def test_cron_that_finds_nothing_to_do_starts_one_that_is_missing(self):
        self.schedule("@hourly")
        self.started.clear()
        self.write("DELETE FROM worker")
        self.cron(1)
        self.assertEqual(len(self.started), 1)

    def test_nobody_is_woken_where_nothing_is_scheduled(self):
        schedule_id = self.schedule("@hourly")
        self.queue.schedules.change(schedule_id, {"paused": True})
        self.started.clear()
        self.write("DELETE FROM worker")
        self.clock.advance(60)
        self.look_in("request")
        self.assertEqual(self.started, [])
