"""Schedules: rows that add tasks at times, each slot at most once."""

import os
import unittest
from types import SimpleNamespace
from unittest import mock

import jobqueue
import worker
from jobqueue import CATCH_UP_MAX, Conflict, Fail, Invalid, NotFound
from tests.helpers.command import CommandTestCase
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase, function_json
from tests.helpers.web import WebTestCase

HOUR, DAY = 3600, 86400


class ScheduleCase(TestCase):
    """The clock begins at 2027-01-15 08:00 UTC, a Friday."""

    def schedule(self, rule="every 10m", owner="bob", person=None, **more):
        """Make a schedule as its owner, or as `person`; its id."""
        return super().schedule(rule, owner, person or self.people[owner], **more)

    def tasks(self):
        """The ids of all tasks."""
        return [row[0] for row in self.database.all("SELECT id FROM task ORDER BY id")]

    def statuses(self):
        return [self.status(task_id) for task_id in self.tasks()]

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

    def test_a_fine_rule_makes_ticks_come_sooner(self):
        self.schedule("every 1s", overlap="allow")
        for _ in range(10):
            self.clock.advance(1)
            self.look_in("worker")
        self.assertEqual(len(self.tasks()), 10)

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
        self.tick(40)
        self.assertEqual(other.database.version_seen(), version)

    @about_sqlite("how it plans a statement")
    def test_the_next_one_due_is_known_cheaply(self):
        self.assertIsNone(self.queue.schedule_runner.next_due())
        self.schedule("daily 12:00")
        self.schedule("daily 10:00")
        paused = self.schedule("daily 09:00")
        self.queue.schedules.change(paused, {"paused": True})
        self.assertEqual(self.queue.schedule_runner.next_due(), self.clock.now() + 2 * HOUR)
        plan = self.database.all("EXPLAIN QUERY PLAN SELECT min(next_at) FROM schedule WHERE paused=0")
        self.assertIn("schedule_next", plan[0]["detail"])

    def test_a_worker_can_be_kept_ready_for_what_comes_soon(self):
        self.queue.starter.start_needed(least=1)
        self.queue.starter.start_needed(least=1)
        self.assertEqual(len(self.started), 1)

    def test_one_tick_fires_all_that_are_due(self):
        for number in range(350):
            self.schedule("daily 09:00" if number % 3 else "every 1h")
        self.tick(HOUR)
        self.assertEqual(len(self.tasks()), 350)

    def test_others_add_tasks_between_two_that_are_due(self):
        for _ in range(3):
            self.schedule("daily 09:00")
        order, other = self.queue.schedule_runner.order, self.another_queue()
        other.start_workers = other.catalogue.refresh = lambda **_: None

        def order_after_another(row):
            other.enqueue("add", {"a": 2}, "eve")
            return order(row)

        with mock.patch.object(self.queue.schedule_runner, "order", order_after_another):
            self.tick(HOUR)
        self.assertEqual([self.queue.get_json(task_id)["owner"] for task_id in self.tasks()],
                         ["eve", "bob"] * 3)

    def test_a_tick_whose_time_is_over_leaves_the_rest_to_the_next(self):
        for _ in range(9):
            self.schedule("daily 09:00")
        with mock.patch.object(jobqueue, "FIRE_SECONDS", -1.0):
            self.clock.advance(HOUR)
            for count in (0, 1, 2, 3):
                self.assertEqual(len(self.tasks()), count)
                self.queue.schedule_runner.fire(self.clock.now())

    def test_what_cannot_be_added_yet_is_tried_once_a_tick(self):
        for _ in range(3):
            self.schedule("daily 09:00")
        self.clock.advance(HOUR)
        busy = mock.Mock(side_effect=jobqueue.Busy("tasks.py cannot be read"))
        with mock.patch.object(self.queue.schedule_runner, "order", busy):
            self.queue.schedule_runner.fire(self.clock.now())
        self.assertEqual(busy.call_count, 3)


class TestRecent(ScheduleCase):
    def test_the_list_has_the_newest_20_slots_of_each_schedule(self):
        often, seldom, other = (self.schedule(), self.schedule("every 4h"),
                                self.schedule(owner="eve", overlap="allow"))
        for _ in range(25):
            self.tick(600)
        bob = self.people["bob"].id
        shown = {one["id"]: one["recent"] for one in self.queue.schedules.find_with_recent(bob, 50, 0)}
        self.assertEqual({key: len(recent) for key, recent in shown.items()}, {often: 20, seldom: 1})
        history = self.shown(often)["history"]
        self.assertEqual(shown[often], history[19::-1])
        self.assertEqual([one["task"] for one in self.queue.schedules.find_with_recent(None, 1, seldom)[0][
            "recent"]], [one["task"] for one in self.shown(other)["history"][19::-1]])

    @about_sqlite("its plan of a statement")
    def test_the_index_finds_them(self):
        plan = [row["detail"] for row in self.database.all(
            "EXPLAIN QUERY PLAN " + jobqueue.RECENT, (1, 9, None))]
        self.assertFalse([line for line in plan if line.startswith("SCAN")], plan)


class TestCatchUp(ScheduleCase):
    def test_once_runs_the_newest_of_what_was_missed(self):
        schedule_id = self.schedule("every 10m", catch_up="once", overlap="allow")
        self.tick(65 * 60)
        self.assertEqual(self.history(schedule_id), [
            ("08:10", False, "missed, as all until 2027-01-15T09:00:00.000Z: nobody looked meanwhile"),
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

    def test_no_schedule_fills_the_queue_without_end(self):
        with mock.patch.object(jobqueue, "UNFINISHED_MAX", 3):
            for overlap in ("allow", "queue"):
                schedule_id = self.schedule(overlap=overlap)
                for _ in range(5):
                    self.tick(600)
                self.assertEqual([message for _, _, message in self.history(schedule_id)], [
                    None, None, None, *["skipped: 3 of its tasks had not ended"] * 2])
                self.assertIsNone(self.shown(schedule_id)["problem"])
                self.end_all()
                self.tick(600)
                self.assertTrue(self.history(schedule_id)[-1][1])
                self.queue.schedules.delete(schedule_id)
                self.end_all()

    @about_sqlite("how it plans a statement")
    def test_the_unfinished_tasks_of_a_schedule_are_found_by_an_index(self):
        plan = self.database.all("EXPLAIN QUERY PLAN SELECT 1 FROM task WHERE schedule_id=? "
                                 "AND status NOT IN (2, 3, 4)", (1,))
        self.assertIn("task_schedule", plan[0]["detail"])

    def test_queue_lets_them_run_one_after_the_other(self):
        self.schedule(overlap="queue")
        for _ in range(3):
            self.tick(600)
        self.assertEqual(self.statuses(), ["pending", "waiting", "waiting"])
        self.run_one("fail")
        self.assertEqual(self.statuses(), ["failed", "pending", "waiting"])

    def test_queue_catches_up_in_order(self):
        self.schedule(overlap="queue", catch_up="all")
        self.tick(HOUR)
        order = []
        while True:
            row = self.claim()
            if row is None:
                break
            order.append(row["id"])
            self.assertIsNone(self.claim())
            self.end(row)
        self.assertEqual((order, len(order)), (self.tasks(), 6))

    def test_queue_waits_for_all_that_have_not_ended(self):
        for act in (self.cancel, self.delete):
            with self.subTest(act.__name__):
                self.write("DELETE FROM task")
                self.write("DELETE FROM schedule")
                self.schedule(overlap="queue")
                for _ in range(4):
                    self.tick(600)
                running = self.claim()
                first, second, *rest = self.tasks()
                act(second)
                self.tick()
                self.assertEqual([self.status(one) for one in rest], ["waiting"] * 2)
                self.assertIsNone(self.claim())
                self.delete(first)          # it runs on until its worker has ended it
                self.tick()
                self.assertIsNone(self.claim())
                self.end(running, "cancelled")
                self.assertEqual(self.claim()["id"], rest[0])
                self.assertIsNone(self.claim())

    def test_a_schedule_that_waits_for_long_is_marked_and_alerts(self):
        schedule_id = self.schedule("every 10m", overlap="skip")
        self.tick(600)
        row = self.claim()
        self.end(row, "error", retry_after=7200)
        for _ in range(5):
            self.tick(600)
        self.assertIsNone(self.shown(schedule_id)["warning"])
        self.tick(600)
        self.tick(600)
        shown = self.shown(schedule_id)
        self.assertRegex(shown["warning"], r"^7 runs wait or were skipped since .*: task %d has not ended\.$"
                         % row["id"])
        self.assertRegex(shown["history"][0]["message"], "skipped: task %d waits for its retry until 20"
                         % row["id"])
        self.queue.alerts.check(self.clock.now())
        self.assertIn("held_up", [row["code"] for row in self.database.all("SELECT code FROM alert")])
        self.write("UPDATE schedule SET overlap='allow'")
        self.assertIsNone(self.shown(schedule_id)["warning"])

    def test_queue_does_not_wait_for_what_is_being_deleted(self):
        self.schedule(overlap="queue")
        self.tick(600)
        self.claim()
        self.delete(self.tasks()[0])
        self.tick(600)
        self.assertEqual(self.status(self.tasks()[-1]), "pending")


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
                self.assertEqual(added, 11 if seconds == HOUR else 12)      # 09:10 had been filled

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

    def test_if_who_set_it_is_gone_the_owners_rights_count(self):
        schedule_id = self.schedule(function="restart", arguments={}, person=self.people["ana"])
        self.write("UPDATE schedule SET set_by=77")
        self.tick(600)
        self.assertIn("function restart is not known", self.shown(schedule_id)["problem"])

    def test_what_one_may_not_add_any_more_is_told(self):
        schedule_id = self.schedule(function="restart", arguments={}, owner="ana")
        self.write("UPDATE user SET role='user' WHERE name='ana'")
        self.tick(600)
        self.assertIn("function restart is not known", self.shown(schedule_id)["problem"])

    def test_a_full_quota_is_told_and_a_slot_that_it_refused_is_not_caught_up(self):
        schedule_id = self.schedule(overlap="allow")
        self.write("UPDATE user SET max_pending=2 WHERE name='bob'")
        for _ in range(3):
            self.tick(600)
        self.assertEqual(len(self.tasks()), 2)
        self.assertIn("may be pending", self.shown(schedule_id)["problem"])
        self.assertEqual(self.history(schedule_id)[-1][:2], ("08:30", False))
        self.end_all()
        self.tick(600)
        self.assertEqual((len(self.tasks()), self.shown(schedule_id)["problem"]), (3, None))

    def test_a_rule_that_cannot_be_read_on_this_host_is_told(self):
        schedule_id = self.schedule()
        self.write("UPDATE schedule SET zone='Mars/Olympus'")
        self.tick(600)
        self.assertIn("not Mars/Olympus", self.shown(schedule_id)["problem"])
        self.write("UPDATE schedule SET zone='UTC'")
        self.tick(2 * HOUR)
        self.assertIsNone(self.shown(schedule_id)["problem"])

    def test_a_rule_that_breaks_down_is_told_and_stops_nobody(self):
        schedule_id = self.schedule("every 9m")
        self.schedule("every 10m", owner="eve")

        def break_down(at):
            raise ZeroDivisionError("nobody foresaw this")
        parse = jobqueue.parse_rule
        broken = SimpleNamespace(next_after=break_down)
        with mock.patch.object(jobqueue, "parse_rule", lambda text, *rest: broken if text == "every 9m"
                               else parse(text, *rest)):
            self.tick(600)
        self.assertEqual(len(self.tasks()), 1)
        self.assertEqual(self.shown(schedule_id)["problem"], "ZeroDivisionError: nobody foresaw this")

    def test_a_database_that_fails_loses_no_slot(self):
        schedule_id = self.schedule()
        self.clock.advance(600)
        fails = mock.Mock(side_effect=jobqueue.StorageBroken("disk I/O error"))
        with mock.patch.object(self.queue.schedule_runner, "order", fails):
            with self.refused(jobqueue.StorageBroken):
                self.queue.schedule_runner.fire(self.clock.now())
        self.assertEqual(self.history(schedule_id), [])
        self.tick()
        self.assertEqual(len(self.tasks()), 1)

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
        task_id = self.queue.schedules.run(schedule_id, person=self.people["ana"])["id"]
        self.assertEqual(self.tasks(), [task_id])
        self.assertEqual(self.shown(schedule_id)["next_at"], before)
        self.assertEqual(self.history(schedule_id), [("08:00", True, "run by ana")])

    def test_run_now_does_not_overlap_if_it_must_not(self):
        schedule_id = self.schedule(overlap="skip")
        self.queue.schedules.run(schedule_id)
        with self.refused(Conflict, "has not ended"):
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

    def test_one_owner_has_so_many_and_no_more(self):
        with mock.patch.object(jobqueue, "SCHEDULES_MAX", 2):
            self.schedule()
            self.schedule()
            with self.refused(Conflict, "at most 2 schedules"):
                self.schedule()
            self.schedule(owner="eve")

    def test_who_owns_a_schedule_is_not_deleted(self):
        self.schedule()
        with self.refused(Conflict, "bob owns schedules"):
            self.queue.users.delete("bob")


class TestCode(ScheduleCase):
    """@schedule beside @task, through the catalogue into rows."""

    def setUp(self):
        super().setUp()
        for kept in (jobqueue.declared, jobqueue.scheduled):
            kept.clear()
            self.addCleanup(kept.clear)

    def announce(self):
        """As a runner announces what this process has declared."""
        functions = [worker.describe(function) for function in jobqueue.declared.values()]
        self.queue.catalogue.store({"functions": functions, "schedules": worker.describe_schedules()})
        self.queue.schedules.synchronise()

    def declare_report(self, *rules, **more):
        """A function with these schedules; some above @task, some below."""
        jobqueue.declared.clear()

        def report(city: str = "Oslo"):
            pass

        for place, rule in enumerate(rules):
            if place == len(rules) // 2:
                report = jobqueue.task(who="nobody")(report)
            report = jobqueue.schedule(rule, **more)(report)
        if "report" not in jobqueue.declared:
            jobqueue.task(who="nobody")(report)

    def rules(self):
        return {one["name"]: one["rule"] for one in self.queue.schedules.find()}

    def test_several_above_and_below_task_become_rows_of_the_default_owner(self):
        self.declare_report("daily 01:00", "daily 02:00", arguments={"city": "Rome"}, priority=5)
        self.announce()
        self.assertEqual(self.rules(), {"report-1": "daily 01:00", "report-2": "daily 02:00"})
        one = self.shown(self.queue.schedules.find()[0]["id"])
        self.assertEqual((one["owner"], one["source"], one["arguments"], one["options"]),
                         ("ana", "code", {"city": "Rome"}, {"priority": 5}))

    def test_its_tasks_may_be_what_nobody_can_add(self):
        self.declare_report("every 10m")
        self.announce()
        self.tick(600)
        self.assertEqual(self.queue.get_json(self.tasks()[0])["function"], "report")

    def test_another_rule_changes_the_row_and_a_pause_survives(self):
        self.declare_report("daily 01:00")
        self.announce()
        schedule_id = self.queue.schedules.find()[0]["id"]
        self.queue.schedules.change(schedule_id, {"paused": True, "paused_why": "not now"})
        jobqueue.scheduled.clear()
        self.declare_report("daily 05:00")
        self.announce()
        shown = self.shown(schedule_id)
        self.assertEqual((shown["rule"], shown["paused_why"], shown["next_at"]),
                         ("daily 05:00", "not now", None))
        self.queue.schedules.change(schedule_id, {"paused": False})
        self.assertEqual(self.shown(schedule_id)["next_at"][11:16], "05:00")

    def test_what_has_vanished_is_removed_but_not_while_tasks_py_is_broken(self):
        self.declare_report("daily 01:00")
        self.announce()
        self.queue.catalogue.store({"error": {"message": "oops", "file": "tasks.py", "line": 1}})
        self.queue.schedules.synchronise()
        self.assertEqual(len(self.rules()), 1)
        self.take_away()
        self.assertEqual(self.queue.schedules.find()[0]["problem"], jobqueue.GONE_WORDS)
        self.tick(jobqueue.GONE_SECONDS)
        self.assertEqual(self.rules(), {})

    def cities(self, *pairs):
        """Announce a function with a schedule for each (rule, city), the first at the top."""
        jobqueue.scheduled.clear()
        jobqueue.declared.clear()

        @jobqueue.task
        def report(city: str = "Oslo", n: int = 1):
            pass

        for rule, city, *more in reversed(pairs):
            jobqueue.schedule(rule, arguments={"city": city}, **dict(*more))(report)
        self.announce()

    def paused_cities(self):
        """{city: why it is paused} of the schedules that are listed."""
        found = [self.shown(one["id"]) for one in self.queue.schedules.find()]
        return {one["arguments"]["city"]: one["paused_why"] for one in found if not one["problem"]}

    def pause_city(self, city, why):
        found = [self.shown(one["id"]) for one in self.queue.schedules.find()]
        [schedule_id] = [one["id"] for one in found if one["arguments"]["city"] == city]
        self.queue.schedules.change(schedule_id, {"paused": True, "paused_why": why})

    def test_a_pause_stays_with_its_schedule_whatever_changes_beside_it(self):
        bergen, oslo, rome = ("*/2 * * * *", "Bergen"), ("*/3 * * * *", "Oslo"), ("*/4 * * * *", "Rome")
        for edit, wanted in (
            ((bergen,), {"Bergen": None}), ((oslo, bergen), {"Oslo": "shut", "Bergen": None}),
            ((bergen, oslo, rome), {"Bergen": None, "Oslo": "shut", "Rome": None}),
            ((rome, bergen, oslo), {"Bergen": None, "Oslo": "shut", "Rome": None}),
            ((("0-59/2 * * * *", "Bergen"), ("*/3  *  * * *", "Oslo")), {"Bergen": None, "Oslo": "shut"}),
            ((bergen, ("0 4 * * *", "Oslo")), {"Bergen": None, "Oslo": "shut"}),
        ):
            with self.subTest(edit):
                self.write("DELETE FROM schedule")
                self.cities(bergen, oslo)
                self.pause_city("Oslo", "shut")
                self.cities(*edit)
                self.assertEqual(self.paused_cities(), wanted)

    def test_what_is_gone_is_what_it_was_if_it_comes_back_within_30_days(self):
        bergen, oslo = ("*/2 * * * *", "Bergen"), ("*/3 * * * *", "Oslo")
        self.cities(bergen, oslo)
        self.tick(180)
        self.pause_city("Oslo", "shut")
        before = {one["id"]: len(self.shown(one["id"])["history"]) for one in self.queue.schedules.find()}
        self.cities(bergen)
        self.assertEqual(len(self.queue.schedules.find()), 2, "it is told for a minute")
        self.tick(jobqueue.GONE_SECONDS + 1)
        self.assertEqual(self.paused_cities(), {"Bergen": None})
        self.assertEqual(len(self.queue.schedules.find()), 1)
        self.tick(29 * 86400)
        count = len(self.tasks())
        self.cities(bergen, oslo)
        self.assertEqual(self.paused_cities(), {"Bergen": None, "Oslo": "shut"})
        self.assertLessEqual(before.keys(), {one["id"] for one in self.queue.schedules.find()})
        self.cities(oslo)
        self.tick(86400)
        self.cities(bergen, oslo)
        self.tick()
        self.assertEqual(len(self.tasks()), count, "nothing is caught up of when it was not declared")
        self.cities(bergen)
        self.tick(1)
        self.tick(jobqueue.KEPT_SECONDS)
        self.cities(bergen, oslo)
        self.assertEqual(self.paused_cities(), {"Bergen": None, "Oslo": None})

    def test_a_renamed_function_keeps_the_pause(self):
        self.declare_report("daily 01:00")
        self.announce()
        self.queue.schedules.change(1, {"paused": True, "paused_why": "not now"})
        jobqueue.scheduled.clear()
        jobqueue.declared.clear()

        @jobqueue.schedule("daily 01:00")
        @jobqueue.task
        def reports():
            pass

        self.announce()
        shown = self.shown(1)
        self.assertEqual((shown["function"], shown["paused_why"]), ("reports", "not now"))

    def test_a_name_is_the_identity(self):
        self.cities(("daily 01:00", "Oslo", {"name": "north"}), ("daily 01:00", "Rome"))
        self.pause_city("Oslo", "shut")
        self.cities(("daily 02:00", "Rome"), ("every 5m", "Bergen", {"name": "north", "priority": -1}))
        self.assertEqual(self.paused_cities(), {"Bergen": "shut", "Rome": None})
        self.assertIn("north", [one["name"] for one in self.queue.schedules.find()])
        jobqueue.schedule("daily 03:00", name="north")(jobqueue.declared["report"])
        with self.assertRaisesRegex(ValueError, "two schedules are called north"):
            worker.describe_schedules()

    def test_what_was_due_runs_before_its_rule_changes(self):
        for rule in ("30  3 * * *", "daily 03:30", "daily 05:00"):
            with self.subTest(rule):
                self.write("DELETE FROM schedule")
                self.write("DELETE FROM task")
                self.cities(("30 3 * * *", "Oslo"))
                due = self.queue.database.value("SELECT next_at FROM schedule")
                self.clock.advance(due - self.clock.now() + 60)
                self.cities((rule, "Oslo"))
                self.tick()
                self.assertEqual(len(self.tasks()), 1)
                [slot] = self.shown(self.queue.schedules.find()[0]["id"])["history"]
                self.assertEqual(slot["at"], jobqueue.iso(due))
                self.tick(60)
                self.assertEqual(len(self.tasks()), 1)

    def test_its_rhythm_survives_a_change_back(self):
        self.cities(("every 60", "Oslo"))
        first = self.queue.database.value("SELECT next_at FROM schedule")
        for rule in ("every 90", "every 1m", "every 90s", "every 60"):
            self.clock.advance(7)
            self.cities((rule, "Oslo"))
        self.assertEqual(self.queue.database.value("SELECT next_at FROM schedule"), first)

    def test_the_newest_of_two_files_counts_and_both_are_named(self):
        self.patch(jobqueue, "TASKS_FILE", self.folder / "a.py")
        (self.folder / "a.py").write_text("new")
        (self.folder / "b.py").write_text("old")
        os.utime(self.folder / "b.py", (1, 1))
        self.cities(("every 60", "Oslo", {"overlap": "allow"}))
        for _ in range(6):
            for name, rule in (("b.py", "every 90"), ("a.py", "every 60")):
                self.patch(jobqueue, "TASKS_FILE", self.folder / name)
                self.cities((rule, "Oslo", {"overlap": "allow"}))
                self.tick(30)
        self.assertEqual(len(self.tasks()), 6)
        self.assertGreaterEqual(len(self.queue.catalogue.readers()), 2)
        self.clock.advance(jobqueue.READER_SECONDS + 1)
        self.assertEqual(self.queue.catalogue.readers(), {})
        self.patch(jobqueue, "TASKS_FILE", self.folder / "b.py")
        self.cities(("every 90", "Oslo"))
        self.assertEqual([one["rule"] for one in self.queue.schedules.find()], ["every 90"])

    def take_away(self):
        declared = list(jobqueue.scheduled)
        jobqueue.scheduled.clear()
        self.announce()
        return declared

    def test_what_comes_back_at_once_is_what_it_was(self):
        """Uploaded in place, tasks.py is empty for a moment, which is good Python."""
        self.declare_report("every 10s", "daily 01:00")
        self.announce()
        paused = self.queue.schedules.find()[1]["id"]
        self.queue.schedules.change(paused, {"paused": True, "paused_why": "not now"})
        before = self.rules()
        declared = self.take_away()
        self.tick(20)
        self.assertEqual(self.tasks(), [])
        jobqueue.scheduled[:] = declared
        self.announce()
        self.tick()
        self.assertEqual((self.rules(), len(self.tasks()), self.shown(paused)["paused_why"]),
                         (before, 1, "not now"))
        self.tick(jobqueue.GONE_SECONDS)
        self.assertEqual(self.rules(), before)

    def test_it_is_changed_in_tasks_py_only(self):
        self.declare_report("daily 01:00")
        self.announce()
        schedule_id = self.queue.schedules.find()[0]["id"]
        with self.refused(Conflict, "comes from tasks.py and is changed there"):
            self.queue.schedules.change(schedule_id, {"rule": "daily 02:00"})
        with self.refused(Conflict, "here it can be paused"):
            self.queue.schedules.delete(schedule_id)

    def test_a_zone_that_only_tasks_py_knows_is_told(self):
        self.declare_report("daily 01:00", zone="Europe/Oslo")
        missing = jobqueue.field_error("zone", "is not here")
        with mock.patch.object(jobqueue, "_time_zone", side_effect=missing):
            self.announce()
            self.tick()
            self.assertEqual(self.queue.schedules.find()[0]["problem"], "zone is not here")

    def test_they_wait_for_the_first_admin(self):
        self.write("UPDATE user SET role='user'")
        self.declare_report("daily 01:00")
        self.announce()
        self.assertEqual(self.rules(), {})
        self.write("UPDATE user SET role='admin' WHERE name='ana'")
        self.queue.schedules.synchronise()
        self.assertEqual(len(self.rules()), 1)

    def test_nothing_is_written_while_nothing_changes(self):
        self.declare_report("daily 01:00")
        self.announce()
        other = self.another_queue()
        version = other.database.version_seen()
        self.queue.schedules.synchronise()
        other.schedules.synchronise()
        self.assertEqual(other.database.version_seen(), version)

    def test_what_is_wrong_is_an_error_at_the_import(self):
        for wrong, words in ((("at noon",), "rule"), (("daily 01:00", "Mars"), "zone"),
                             (("daily 01:00", None, None, "twice"), "catch_up must be"),
                             (("daily 01:00", None, None, "all"), "overlap must be queue")):
            with self.assertRaisesRegex(ValueError, words):
                jobqueue.schedule(*wrong)
        with self.assertRaisesRegex(ValueError, "options.prio is not known"):
            jobqueue.schedule("daily 01:00", prio=1)

    def test_arguments_that_do_not_fit_are_an_error_of_tasks_py(self):
        self.declare_report("daily 01:00", arguments={"town": "Rome"})
        with self.assertRaisesRegex(ValueError, "report: its schedule: arguments.town is not known"):
            worker.describe_schedules()

    def test_a_function_without_task_is_an_error(self):
        jobqueue.schedule("daily 01:00")(print)
        with self.assertRaisesRegex(ValueError, "needs @task"):
            worker.describe_schedules()


class TestFolders(ScheduleCase):
    """Scripts in schedules/daily and its like."""

    def setUp(self):
        super().setUp()
        self.scripts = self.folder / "schedules"
        self.patch(jobqueue, "SCRIPTS_FOLDER", self.scripts)

    def put(self, name, mode=0o755, text="#!/bin/sh\n"):
        path = self.scripts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def names(self):
        self.queue.schedules.synchronise()
        return [one["name"] for one in self.queue.schedules.find()]

    def run_script(self, name):
        """Run it as a runner does."""
        context = SimpleNamespace(id=1, attempt=1, claim="x", folder=self.folder)
        return worker.run_script(None, {"script": name}, context)

    def test_another_script_does_not_get_the_pause_of_one_that_went(self):
        path = self.put("daily/first")
        self.names()
        self.queue.schedules.change(1, {"paused": True, "paused_why": "not now"})
        path.unlink()
        self.put("daily/second")
        self.names()
        paused = {one["name"]: one["paused_why"] for one in self.queue.schedules.find()}
        self.assertEqual(paused, {"daily/first": "not now", "daily/second": None})

    def test_each_executable_file_and_each_python_file_is_a_schedule(self):
        self.put("daily/backup.sh")
        self.put("hourly/feeds.py", 0o644)
        self.put("weekly/notes.txt", 0o644)
        (self.scripts / "daily" / "folder").mkdir()
        self.assertEqual(self.names(), ["hourly/feeds.py", "daily/backup.sh"])
        shown = self.queue.schedules.find()[1]
        self.assertEqual([shown[key] for key in ("owner", "source", "rule", "overlap", "function")],
                         ["ana", "folder", "@daily", "skip", "folder-script"])

    def test_a_folder_that_cannot_be_read_now_removes_nothing(self):
        self.put("daily/backup.sh")
        self.assertEqual(len(self.names()), 1)
        with mock.patch("os.scandir", side_effect=OSError(24, "Too many open files")):
            self.assertEqual(len(self.names()), 1)

    def test_what_editors_leave_behind_is_no_script(self):
        for name in (".hidden", "a.sh~", "a.bak", ".a.swp", "a.swp", "a.dpkg-old", "a.dpkg-dist", "a.tmp"):
            self.put("daily/" + name)
        self.assertEqual(self.names(), [])

    def test_a_new_file_is_found_by_the_tick_and_a_vanished_one_forgotten(self):
        self.tick()
        path = self.put("15min/new.sh")
        self.tick(60)
        self.assertEqual(len(self.queue.schedules.find()), 1)
        path.unlink()
        self.tick(60)
        self.assertEqual(self.queue.schedules.find()[0]["problem"], jobqueue.GONE_WORDS)
        self.tick(60)
        self.assertEqual(self.queue.schedules.find(), [])

    def test_it_runs_as_a_task_at_its_pace(self):
        self.put("15min/new.sh")
        self.tick()
        self.tick(900)
        task = self.queue.get_json(self.tasks()[0])
        self.assertEqual((task["owner"], task["function"], task["arguments"]),
                         ("ana", "folder-script", {"script": "15min/new.sh"}))

    def test_nobody_can_add_it(self):
        for person in (self.people["ana"], None):
            with self.refused(Invalid, "folder-script is not known"):
                self.queue.requests.check(
                    [{"function": "folder-script", "arguments": {"script": "daily/x"}}], person)
        with self.assertRaisesRegex(ValueError, "jobqueue's own"):
            jobqueue.command("folder-script", ["true"])

    def test_only_what_lies_in_the_folders_is_run(self):
        self.put("outside.sh")
        self.put("daily/there.sh")
        for name in ("outside.sh", "daily/../outside.sh", "/bin/true", "daily/gone.sh", "", "daily/"):
            with self.assertRaisesRegex(Fail, "is not there any more"):
                self.run_script(name)
        self.assertEqual(self.run_script("daily/there.sh"), {"exit_code": 0})

    def test_python_needs_no_mode_and_a_failure_is_one(self):
        self.put("daily/fine.py", 0o644, "pass")
        self.put("daily/bad.py", 0o644, "raise SystemExit(3)")
        self.assertEqual(self.run_script("daily/fine.py"), {"exit_code": 0})
        with self.assertRaisesRegex(worker.CommandFailed, "exit code 3"):
            self.run_script("daily/bad.py")

    def test_one_script_never_runs_twice_at_once_whoever_retries_it(self):
        path = self.put("daily/long.sh", text="#!/bin/sh\nread line\n")
        import fcntl
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with self.assertRaisesRegex(Fail, "is running already"):
                self.run_script("daily/long.sh")


GIVEN = {"function": "add", "arguments": {"a": 1}, "rule": "weekly mon 01:00", "zone": "Europe/Oslo"}


class TestRoutes(WebTestCase):
    def post(self, visitor, status=201, **more):
        return self.check(visitor.post("/api/schedules", {**GIVEN, **more}), status)

    def test_a_schedule_has_all_keys_and_its_address(self):
        reply = self.bob.post("/api/schedules", GIVEN)
        shown = self.check(reply, 201)
        self.assertEqual(reply.headers["location"], "/api/schedules/%d" % shown["id"])
        self.assertEqual((shown["owner"], shown["words"], shown["next_at"], shown["history"]),
                         ("bob", "Every Monday at 01:00 (Europe/Oslo)", "2027-01-18T00:00:00.000Z", []))

    def test_what_is_to_come_is_counted_from_its_own_start(self):
        path = "/api/schedules/%d" % self.post(self.bob, rule="every 7h")["id"]
        self.clock.advance(60)
        shown = self.check(self.bob.get(path), 200)
        self.assertEqual(len(shown["upcoming"]), 10)
        self.assertEqual(shown["upcoming"][0]["at"], shown["next_at"])

    def test_a_rule_is_shown_in_words_with_its_next_times_before_it_is_kept(self):
        asked = {"rule": "daily  02:30", "zone": "Europe/Oslo", "from": "2027-03-27T12:00:00Z", "count": 2}
        shown = self.check(self.bob.post("/api/schedules/preview", asked), 200)
        self.assertEqual(shown, {
            "rule": "daily 02:30", "zone": "Europe/Oslo", "words": "Every day at 02:30 (Europe/Oslo)",
            "times": [
                {"at": "2027-03-28T01:00:00.000Z", "local": "2027-03-28T03:00:00+02:00",
                 "note": "the clocks go forward on this day"},
                {"at": "2027-03-29T00:30:00.000Z", "local": "2027-03-29T02:30:00+02:00", "note": None}]})
        again = self.bob.post("/api/schedules/preview", {**asked, "count": 2.0})
        self.assertEqual(self.check(again, 200), shown)
        for wrong, field in (({"rule": "at noon"}, "rule"), ({"zone": "Mars"}, "zone"),
                             ({"count": 51}, "count"), ({"from": "noon"}, "from"), ({"rule": 5}, "rule")):
            self.check_wrong(self.bob.post("/api/schedules/preview", {**asked, **wrong}), field)
        self.assertEqual(self.queue.schedules.find(), [])

    def test_users_see_their_own_and_admins_all(self):
        for visitor in (self.bob, self.eve):
            self.post(visitor)
        for visitor, owners in ((self.bob, ["bob"]), (self.ana, ["bob", "eve"])):
            shown = self.check(visitor.get("/api/schedules"), 200)
            self.assertEqual([one["owner"] for one in shown["schedules"]], owners)
            self.assertEqual(shown["service"]["code"], "ok")

    def test_the_list_is_paged_and_leaves_out_arguments(self):
        ids = [self.post(self.bob, arguments={"a": number})["id"] for number in range(5)]
        self.post(self.eve)
        seen, path = [], "/api/schedules?limit=2"
        for length in (2, 2, 1):
            page = self.check(self.bob.get(path), 200)
            self.assertEqual(len(page["schedules"]), length)
            seen += page["schedules"]
            path = "/api/schedules?limit=2&cursor=%s" % page["next"]
        self.assertIsNone(page["next"])
        self.assertEqual([one["id"] for one in seen], ids)
        self.assertEqual([one["summary"] for one in seen], ["0", "1", "2", "3", "4"])
        self.assertFalse(any("arguments" in one for one in seen))
        self.assertEqual(self.bob.get("/api/schedules/%d" % ids[3]).json["arguments"], {"a": 3})
        self.check(self.bob.get("/api/schedules?limit=x"), 400)
        self.check(self.bob.get("/api/schedules?q=x"), 400)

    def test_what_is_long_is_not_read_for_the_list(self):
        self.declare(function_json("say", {"text": {"type": "string"}}, ["text"]))
        self.post(self.bob, function="say", arguments={"text": "x" * 5000})
        self.assertEqual([one["summary"] for one in self.bob.get("/api/schedules").json["schedules"]], ["…"])

    def test_only_admins_name_another_owner(self):
        self.check_wrong(self.bob.post("/api/schedules", {**GIVEN, "owner": "eve"}), "owner")
        self.check_wrong(self.ana.post("/api/schedules", {**GIVEN, "owner": "nobody"}), "owner")
        self.assertEqual(self.post(self.ana, owner="bob")["owner"], "bob")

    def test_what_an_admin_set_for_a_user_runs_but_the_user_cannot_change_it_to_more(self):
        given = {"function": "restart", "arguments": {}, "rule": "every 10m", "owner": "bob"}
        path = "/api/schedules/%d" % self.post(self.ana, **given)["id"]
        self.clock.advance(600)
        self.tick()
        self.assertEqual(self.queue.get_json(1)["owner"], "bob")
        self.check_wrong(self.bob.patch(path, {"rule": "every 1m"}), "function")
        self.assertTrue(self.check(self.bob.patch(path, {"paused": True}), 200)["paused"])

    def test_every_wrong_field_is_named(self):
        for wrong, fields in (({"rule": "at noon", "arguments": {"a": "x"}}, ("rule", "arguments.a")),
                              ({"zone": "Mars"}, ("zone",)), ({"function": "missing"}, ("function",)),
                              ({"rule": 1, "arguments": []}, ("rule", "arguments")),
                              ({"options": {"priority": 500, "x": 1}}, ("options.priority", "options.x")),
                              ({"options": {"priority": 5}}, ("priority",)), ({"paused": 1}, ("paused",)),
                              ({"catch_up": "all"}, ("overlap",)), ({"owner": 5}, ("owner",)),
                              ({"paused_why": "x" * 501}, ("paused_why",))):
            with self.subTest(wrong):
                self.check_wrong(self.bob.post("/api/schedules", {**GIVEN, **wrong}), *fields)
        self.check_wrong(self.bob.post("/api/schedules", {}), "function", "rule")
        self.assertEqual(self.queue.schedules.find(), [])

    def test_every_wrong_field_of_a_change_is_named(self):
        path = "/api/schedules/%d" % self.post(self.bob, **GIVEN)["id"]
        before = self.bob.get(path).json
        self.check_wrong(self.bob.patch(path, {"paused": 1, "zone": 5}), "paused", "zone")
        self.check_wrong(self.bob.patch(path, {"rule": "at noon", "paused": True}), "rule")
        self.assertEqual(self.bob.get(path).json, before)

    def test_it_is_paused_and_resumed_by_name(self):
        path = "/api/schedules/%d" % self.post(self.bob, paused=True, paused_why="later")["id"]
        shown = self.check(self.bob.get(path), 200)
        self.assertEqual((shown["paused_by"], shown["paused_why"], shown["next_at"]), ("bob", "later", None))
        shown = self.check(self.bob.patch(path, {"paused_why": "in May"}), 200)
        self.assertEqual((shown["paused"], shown["paused_why"]), (True, "in May"))
        shown = self.check(self.bob.patch(path, {"paused": False}), 200)
        self.assertEqual((shown["paused_by"], shown["paused_why"]), (None, None))
        self.assertIsNotNone(shown["next_at"])

    def test_what_an_admin_paused_its_owner_cannot_resume(self):
        path = "/api/schedules/%d" % self.post(self.bob)["id"]
        self.check(self.ana.patch(path, {"paused": True, "paused_why": "too much"}), 200)
        for paused in (False, True):    # nor become who paused it
            answer = self.check(self.bob.patch(path, {"paused": paused}), 403, "denied")
            self.assertEqual(answer["detail"], "ana paused it; only an admin can resume it.")
        self.assertEqual(self.bob.get(path).json["paused_by"], "ana")
        self.assertFalse(self.check(self.ana.patch(path, {"paused": False}), 200)["paused"])

    def test_users_choose_no_queue_that_the_function_does_not_leave_to_them(self):
        wanted = {**GIVEN, "function": "send", "arguments": {"to": "x"}, "options": {"queue": "default"}}
        self.check_wrong(self.bob.post("/api/schedules", wanted), "queue")
        self.check(self.ana.post("/api/schedules", wanted), 201)

    def test_run_now_answers_with_the_task(self):
        path = "/api/schedules/%d/run" % self.post(self.bob)["id"]
        reply = self.bob.post(path)
        self.assertEqual(self.check(reply, 201)["schedule"], 1)
        self.assertEqual(reply.headers["location"], "/api/tasks/1")
        self.check(self.bob.post(path), 409)

    def test_who_changes_it_meanwhile_is_not_overwritten(self):
        path = "/api/schedules/%d" % self.post(self.bob)["id"]
        checked = self.queue.schedules._checked

        def meanwhile(*values):
            self.write("UPDATE schedule SET rule='daily 03:00'")
            return checked(*values)
        with mock.patch.object(self.queue.schedules, "_checked", meanwhile):
            self.check(self.bob.patch(path, {"catch_up": "none"}), 409)

    def test_a_task_that_is_not_kept_leaves_its_place_in_the_history(self):
        schedule_id = self.post(self.bob)["id"]
        self.clock.advance(4 * DAY)
        self.tick()
        self.delete(1)
        shown = self.queue.schedules.get(schedule_id)
        self.assertEqual((shown["last_task"], shown["history"][0]["task"], shown["history"][0]["message"]),
                         (None, None, "task 1 is not kept any more"))


class TestCommands(CommandTestCase):
    def test_a_schedule_from_its_adding_to_its_end(self):
        self.assertEqual(self.ok(
            "schedule", "add", "add", "weekly mon 01:00", "a=1", "b=2", "--tz", "Europe/Oslo", "--overlap",
            "queue", "--catch-up", "all", "--priority", "5", "--owner", "bob"), "1")
        self.assertIn("Every Monday at 01:00 (Europe/Oslo)", self.ok("schedule", "list"))
        shown = self.json("schedule", "show", "1")
        self.assertEqual([shown[key] for key in ("owner", "arguments", "options", "overlap", "catch_up")],
                         ["bob", {"a": 1, "b": 2}, {"priority": 5}, "queue", "all"])
        self.ok("schedule", "pause", "1", "--why", "holidays")
        self.assertIn("holidays", self.ok("schedule", "show", "1"))
        self.ok("schedule", "resume", "1")
        self.assertEqual(self.ok("schedule", "show", "1").count("  due"), 10)
        self.assertEqual(self.ok("schedule", "run", "1"), "1")
        self.assertIn("run by the command line", self.ok("schedule", "show", "1"))
        self.ok("schedule", "delete", "1")
        self.assertEqual(self.json("schedule", "list")["schedules"], [])

    def test_a_rule_needs_no_quotes(self):
        self.ok("schedule", "add", "add", "daily", "01:30", "a=1")
        self.assertEqual(self.queue.schedules.get(1)["rule"], "daily 01:30")

    def test_what_is_wrong_is_said(self):
        for code, words, *arguments in ((2, "rule is not understood", "add", "add", "at noon", "a=1"),
                                        (2, "function", "add"), (2, "required: ID", "show"),
                                        (2, "ID: must be", "pause", "one"), (4, "no schedule 7", "run", "7")):
            self.fails(code, "schedule", *arguments, words=words)

    def test_check_tells_a_problem(self):
        self.ok("schedule", "add", "add", "every 10m", "a=1", "--owner", "bob")
        self.assertRegex(self.run_command("check", "--quick").out,
                         r"1 schedules")
        self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.clock.advance(600)
        self.ok("tick")
        done = self.run_command("check", "--quick")
        self.assertEqual((done.code, "Its owner bob is disabled." in done.out), (1, True))


if __name__ == "__main__":
    unittest.main()
