"""Schedules: rows that add tasks at times, each slot at most once."""

import jobqueue
from jobqueue import CATCH_UP_MAX, Invalid, NotFound
from tests.support import TestCase, function_json

HOUR, DAY = 3600, 86400


class ScheduleCase(TestCase):
    """The clock begins at 2027-01-15 08:00 UTC, a Friday."""

    def schedule(self, rule="every 10m", owner="bob", person=None, **more):
        """Make a schedule; its id."""
        given = {"function": "add", "arguments": {"a": 1}, "rule": rule, **more}
        return self.queue.schedules.add(given, self.owner_id(owner), person or self.people[owner])

    def tick(self, seconds=0, queue=None):
        """Time passes, then somebody ticks."""
        self.clock.advance(seconds)
        (queue or self.queue).tick.run()

    def tasks(self):
        """The ids of all tasks."""
        return [row[0] for row in self.database.all("SELECT id FROM task ORDER BY id")]

    def end_all(self):
        """Run whatever is there."""
        while self.claim():
            pass
        self.write("UPDATE task SET status=2")

    def history(self, schedule_id):
        """(time of day, has a task, message) of the slots, oldest first."""
        return [(slot["at"][11:16], slot["task"] is not None, slot["message"])
                for slot in reversed(self.queue.schedules.get(schedule_id)["history"])]

    def shown(self, schedule_id):
        return self.queue.schedules.get(schedule_id)


class TestFiring(ScheduleCase):
    def test_a_slot_adds_its_task_when_it_comes_and_not_before(self):
        schedule_id = self.schedule()
        self.tick(599)
        self.assertEqual(self.tasks(), [])
        self.tick(1)
        task = self.queue.get_json(self.tasks()[0])
        self.assertEqual((task["owner"], task["function"], task["arguments"], task["schedule"]),
                         ("bob", "add", {"a": 1}, schedule_id))
        shown = self.shown(schedule_id)
        self.assertEqual(shown["last_task"], {"id": task["id"], "status": "pending"})
        self.assertEqual((shown["last_at"][11:16], shown["next_at"][11:16]), ("08:10", "08:20"))

    def test_a_worker_is_started_for_it(self):
        self.schedule()
        self.tick(600)
        self.assertEqual(len(self.started), 1)

    def test_ticking_again_adds_nothing(self):
        self.schedule()
        self.clock.advance(600)
        for queue in [self.queue] + [self.another_queue() for _ in range(3)]:
            self.tick(queue=queue)
        self.assertEqual(len(self.tasks()), 1)

    def test_chosen_options_are_those_of_its_tasks(self):
        self.schedule(options={"priority": -5, "timeout": 60})
        self.tick(600)
        task = self.queue.get_json(self.tasks()[0])
        self.assertEqual((task["priority"], task["timeout"]), (-5, 60))

    def test_a_quiet_tick_writes_nothing(self):
        self.schedule()
        self.tick()
        other = self.another_queue()
        version = other.database.version_seen()
        self.tick(300)
        self.assertEqual(other.database.version_seen(), version)

    def test_many_schedules_fire_in_one_tick(self):
        for _ in range(30):
            self.schedule("daily 09:00")
        self.tick(HOUR)
        self.assertEqual(len(self.tasks()), 30)


class TestCatchUp(ScheduleCase):
    def test_once_runs_the_newest_of_what_was_missed(self):
        schedule_id = self.schedule("every 10m", catch_up="once", overlap="allow")
        self.tick(65 * 60)
        self.assertEqual(self.history(schedule_id), [
            ("08:10", False, "missed, as all until 2027-01-15T09:00:00.000Z: nothing was at work here"),
            ("09:00", True, None)])
        self.tick(5 * 60)
        self.assertEqual(len(self.tasks()), 2)

    def test_none_runs_only_what_is_not_late(self):
        schedule_id = self.schedule("every 1h", catch_up="none", overlap="allow")
        self.tick(HOUR + jobqueue.LATE_SECONDS + 1)
        self.assertEqual([task for _, task, _ in self.history(schedule_id)], [False])
        self.tick(HOUR)
        self.assertEqual([task for _, task, _ in self.history(schedule_id)], [False, False])
        self.tick(HOUR - jobqueue.LATE_SECONDS)
        self.assertEqual([task for _, task, _ in self.history(schedule_id)], [False, False, True])

    def test_all_runs_everything_that_was_missed_in_order(self):
        schedule_id = self.schedule("every 1m", catch_up="all", overlap="allow")
        self.tick(250 * 60)
        self.assertEqual(len(self.tasks()), 250)
        self.assertEqual(self.shown(schedule_id)["next_at"], jobqueue.iso(self.clock.now() + 60))

    def test_all_is_bounded_to_the_newest(self):
        schedule_id = self.schedule("every 1m", catch_up="all", overlap="allow")
        self.tick(30 * DAY)
        self.assertEqual(len(self.tasks()), CATCH_UP_MAX)
        times = [row[0] for row in self.database.all(
            "SELECT at FROM slot WHERE schedule_id=? AND task_id IS NOT NULL ORDER BY at", (schedule_id,))]
        now = self.clock.now()
        self.assertEqual((times[0], times[-1]), (now - (CATCH_UP_MAX - 1) * 60, now))

    def test_all_and_skip_contradict_each_other(self):
        with self.refused(Invalid, "overlap must be queue or allow"):
            self.schedule(catch_up="all", overlap="skip")


class TestOverlap(ScheduleCase):
    def test_skip_leaves_out_a_slot_while_the_last_task_has_not_ended(self):
        schedule_id = self.schedule(overlap="skip")
        self.tick(600)
        self.tick(600)
        self.end_all()
        self.tick(600)
        self.assertEqual(self.history(schedule_id), [
            ("08:10", True, None), ("08:20", False, "skipped: task 1 had not ended"), ("08:30", True, None)])

    def test_allow_adds_whatever_still_runs(self):
        self.schedule(overlap="allow")
        self.tick(600)
        self.tick(600)
        self.assertEqual(len(self.tasks()), 2)


class TestClock(ScheduleCase):
    """No slot twice, catch-up as set, and right times afterwards, however the clock jumps."""

    def jump(self, seconds, catch_up="once"):
        schedule_id = self.schedule("every 10m", catch_up=catch_up, overlap="allow")
        self.tick(600)
        self.clock.wall += seconds
        self.tick()
        self.clock.wall -= seconds
        self.tick()
        return schedule_id

    def test_it_goes_on_at_the_right_times_after_a_jump_there_and_back(self):
        for seconds in (HOUR, DAY, 10 * 365 * DAY, -HOUR, -DAY, -10 * 365 * DAY):
            with self.subTest(seconds):
                schedule_id = self.jump(seconds)
                self.assertEqual(self.shown(schedule_id)["next_at"], jobqueue.iso(self.clock.now() + 600))
                before = len(self.tasks())
                for _ in range(12):
                    self.tick(600)
                added = len(self.tasks()) - before
                self.queue.schedules.delete(schedule_id)
                self.assertIn(added, (11, 12))      # an hour ahead one slot had been filled

    def test_no_slot_adds_two_tasks(self):
        for seconds in (HOUR, -HOUR, DAY, -DAY):
            schedule_id = self.jump(seconds, catch_up="all")
            for _ in range(20):
                self.tick(600)
            tasks = self.database.value("SELECT count(*) FROM task WHERE schedule_id=?", (schedule_id,))
            slots = self.database.value(
                "SELECT count(*) FROM slot WHERE schedule_id=? AND task_id IS NOT NULL", (schedule_id,))
            self.assertEqual(tasks, slots)
            self.queue.schedules.delete(schedule_id)


class TestProblems(ScheduleCase):
    def test_a_function_that_is_gone_is_told_and_tried_again(self):
        schedule_id = self.schedule(overlap="allow")
        self.declare(function_json("other"))
        self.tick(600)
        self.assertIn("add is not known", self.shown(schedule_id)["problem"])
        self.assertEqual(self.tasks(), [])
        self.declare(function_json("add", {"a": {"type": "integer"}}))
        self.tick(600)
        self.assertEqual((self.shown(schedule_id)["problem"], len(self.tasks())), (None, 1))

    def test_a_disabled_owner_adds_nothing(self):
        schedule_id = self.schedule()
        self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.tick(600)
        self.assertEqual(self.shown(schedule_id)["problem"], "Its owner bob is disabled.")

    def test_arguments_that_are_not_right_any_more_are_told(self):
        schedule_id = self.schedule()
        self.declare(function_json("add", {"a": {"type": "string"}}))
        self.tick(600)
        self.assertIn("arguments.a must be a text", self.shown(schedule_id)["problem"])

    def test_what_one_may_not_add_any_more_is_told(self):
        schedule_id = self.schedule(function="restart", arguments={}, owner="ana")
        self.write("UPDATE user SET role='user' WHERE name='ana'")
        self.tick(600)
        self.assertIn("restart is not known", self.shown(schedule_id)["problem"])

    def test_a_rule_that_cannot_be_read_on_this_host_is_told(self):
        schedule_id = self.schedule()
        self.write("UPDATE schedule SET zone='Mars/Olympus'")
        self.tick(600)
        self.assertIn("Mars/Olympus is not known", self.shown(schedule_id)["problem"])
        self.write("UPDATE schedule SET zone='UTC'")
        self.tick(2 * HOUR)
        self.assertIsNone(self.shown(schedule_id)["problem"])

    def test_one_problem_does_not_stop_the_others(self):
        self.schedule()
        self.schedule(owner="eve")
        self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.tick(600)
        self.assertEqual(len(self.tasks()), 1)


class TestChanging(ScheduleCase):
    def test_another_rule_counts_from_now(self):
        schedule_id = self.schedule()
        self.clock.advance(500)
        self.queue.schedules.change(schedule_id, {"rule": "daily 10:00"})
        shown = self.shown(schedule_id)
        self.assertEqual((shown["rule"], shown["next_at"][11:16]), ("daily 10:00", "10:00"))

    def test_other_arguments_leave_its_times_alone(self):
        schedule_id = self.schedule()
        self.clock.advance(500)
        self.queue.schedules.change(schedule_id, {"arguments": {"a": 2}})
        self.tick(100)
        self.assertEqual(self.queue.get_json(self.tasks()[0])["arguments"], {"a": 2})

    def test_a_paused_one_rests_and_what_it_missed_is_not_caught_up(self):
        schedule_id = self.schedule()
        self.queue.schedules.change(schedule_id, {"paused": True, "paused_why": "holidays"},
                                    person=self.people["ana"])
        shown = self.shown(schedule_id)
        self.assertEqual((shown["paused"], shown["paused_by"], shown["paused_why"], shown["next_at"]),
                         (True, "ana", "holidays", None))
        self.tick(3 * HOUR)
        self.queue.schedules.change(schedule_id, {"paused": False})
        self.tick()
        self.assertEqual(self.tasks(), [])
        self.tick(600)
        self.assertEqual(len(self.tasks()), 1)

    def test_run_now_adds_its_task_and_leaves_its_times_alone(self):
        schedule_id = self.schedule()
        before = self.shown(schedule_id)["next_at"]
        task_id = self.queue.schedules.run(schedule_id, person=self.people["ana"])
        self.assertEqual(self.tasks(), [task_id])
        self.assertEqual(self.shown(schedule_id)["next_at"], before)
        self.assertEqual(self.history(schedule_id), [("08:00", True, "run by ana")])

    def test_run_now_does_not_overlap_if_it_must_not(self):
        schedule_id = self.schedule(overlap="skip")
        self.queue.schedules.run(schedule_id)
        with self.refused(jobqueue.Conflict, "has not ended"):
            self.queue.schedules.run(schedule_id)

    def test_a_deleted_one_leaves_its_tasks(self):
        schedule_id = self.schedule()
        self.tick(600)
        self.queue.schedules.delete(schedule_id)
        with self.refused(NotFound):
            self.shown(schedule_id)
        self.assertEqual(len(self.tasks()), 1)

    def test_everything_wrong_is_named_at_once(self):
        with self.assertRaises(Invalid) as caught:
            self.schedule("at noon", arguments={"a": "x"})
        self.assertEqual([error["field"] for error in caught.exception.errors], ["rule", "arguments.a"])

    def test_users_need_the_rights_that_tasks_need(self):
        for wrong in ({"options": {"priority": 1}}, {"function": "restart", "arguments": {}},
                      {"function": "cleanup", "arguments": {}}, {"options": {"queue": "new"}}):
            with self.subTest(wrong), self.refused(Invalid):
                self.schedule(**wrong)

    def test_somebody_elses_is_missing(self):
        schedule_id, eve = self.schedule(), self.owner_id("eve")
        for action in (lambda: self.queue.schedules.get(schedule_id, eve),
                       lambda: self.queue.schedules.change(schedule_id, {"paused": True}, eve),
                       lambda: self.queue.schedules.run(schedule_id, eve),
                       lambda: self.queue.schedules.delete(schedule_id, eve)):
            with self.refused(NotFound, "There is no schedule"):
                action()
        self.assertEqual(self.queue.schedules.find(eve), [])

    def test_who_owns_a_schedule_is_not_deleted(self):
        self.schedule()
        with self.refused(jobqueue.Conflict, "bob owns schedules"):
            self.queue.accounts.delete_user("bob")
