"""What is older than an admin wants is removed, a little at a time, and never because a clock was wrong."""
import unittest

import jobqueue
from tests.helpers.support import TestCase, function_json

DAY = 86400.0


class Keep(TestCase):

    def setUp(self):
        super().setUp()
        self.prune()                    # the first look at the clock: from a day later on it is trusted

    def days(self, count):
        """Let days pass; somebody looks every now and then."""
        for _ in range(count):
            self.clock.advance(DAY)
            self.round_begins().prune()

    def round_begins(self):
        self.queue.rollup.fold()          # as the tick does before
        self.queue.retention._round = None
        self.queue.retention._rounds.hasten(0)
        return self.queue.retention

    def prune(self):
        """A whole round, as ticks would do it; how many of its portions removed something."""
        self.round_begins()
        worked = 0
        while True:
            worked += self.queue.retention.prune()
            if self.queue.retention._round is None:
                return worked

    def finish(self, count=1, kind="succeeded", **options):
        """Ids of tasks that have ended so."""
        ids = self.add_many("bob", count, options=options)
        for _ in ids:
            self.run_one(kind)
        return ids

    def count(self, table="task"):
        return self.database.value("SELECT count(*) FROM %s" % table)


class TestTasks(Keep):

    def test_finished_tasks_go_after_the_days_that_the_setting_says(self):
        ids = self.finish(2) + self.finish(1, "fail")
        self.days(29)
        self.assertEqual(self.prune(), 0)
        self.days(2)
        self.prune()
        self.assertEqual([self.status(one) for one in ids], [None] * 3)

    def test_their_logs_and_folders_go_too(self):
        task_id = self.finish()[0]
        self.write_log(task_id, "words")
        folder = jobqueue.task_folder(self.folder / "data", task_id)
        folder.mkdir(parents=True)
        self.days(31)
        self.prune()
        self.assertEqual((self.count("log"), folder.exists()), (0, False))

    def test_what_has_not_ended_stays_however_old_it_is(self):
        old = [self.add("bob"), self.add("bob", options={"delay": 400 * DAY})]
        running = self.claim()["id"]
        later = self.finish(1)
        self.days(60)
        self.prune()
        self.assertEqual([self.status(one) for one in [*old, running, *later]],
                         ["running", "scheduled", "running", None])

    def test_a_task_that_ended_lately_stays_even_if_it_is_old(self):
        task_id = self.add("bob")
        self.days(60)
        self.run_one()
        self.days(5)
        self.prune()
        self.assertEqual(self.status(task_id), "succeeded")

    def test_a_task_that_another_waits_for_stays(self):
        first = self.finish(1, "fail")[0]
        self.write("INSERT INTO task_after (task_id, after_id) VALUES (?, ?)", (first + 1000, first))
        self.days(40)
        self.prune()
        self.assertEqual(self.status(first), "failed")
        self.write("UPDATE task_after SET settled=1")
        self.prune()
        self.assertEqual(self.status(first), None)

    def test_none_of_it_is_removed_if_the_setting_is_0(self):
        self.change_settings(keep_days=0, keep_activity_days=0)
        self.finish(2)
        before = self.count("activity")
        self.days(400)
        self.prune()
        self.assertEqual((self.count(), self.count("activity")), (2, before))

    def test_many_go_in_small_portions_and_the_tick_comes_back_soon(self):
        ids = self.add_many("bob", 1200)
        self.queue.actions.act_on("cancel", ids)
        self.days(30)
        self.clock.advance(DAY)
        self.round_begins()
        left = [self.count()]
        while left[-1]:
            self.look_in("worker")
            self.clock.advance(jobqueue.TICK_SOON_SECONDS)
            left.append(self.count())
        self.assertEqual(left, [1200, 700, 200, 0])


class TestRemoveOnSuccess(Keep):

    def add_one(self, **more):
        return self.add("bob", options={"remove_on_success": True, **more})

    def test_a_success_removes_the_task_and_its_logs_at_once(self):
        task_id = self.add_one()
        row = self.claim()
        self.write_log(task_id, "words")
        self.end(row)
        self.assertEqual((self.status(task_id), self.count("log")), (None, 0))
        self.assertEqual(self.events(task_id), ["added", "started", "succeeded"])

    def test_any_other_end_leaves_it(self):
        for kind, status in (("fail", "failed"), ("error", "failed"), ("cancelled", "cancelled")):
            task_id = self.add_one()
            self.run_one(kind)
            self.assertEqual(self.status(task_id), status)

    def test_what_comes_after_it_runs(self):
        first = self.add_one(unique_key="x")
        second = self.add("bob", options={"after": [first]})
        self.assertEqual(self.status(second), "waiting")
        self.run_one()
        self.assertEqual(self.status(second), "pending")
        self.assertNotEqual(self.add_one(unique_key="x"), first)

    def test_a_function_says_it_for_its_tasks(self):
        self.declare(function_json("quiet", remove_on_success=True))
        task_id = self.add("bob", function="quiet")
        self.assertIs(self.queue.get(task_id).remove_on_success, True)
        self.run_one()
        self.assertIsNone(self.status(task_id))


class TestTheRest(Keep):

    def test_old_activity_goes_and_young_stays(self):
        self.change_settings(keep_activity_days=10)
        self.finish(150)
        self.days(8)
        self.add("bob")
        self.days(4)
        self.prune()
        found = self.database.all("SELECT event FROM activity WHERE task_id IS NOT NULL")
        self.assertEqual([row[0] for row in found], ["added"])

    def test_rows_that_a_wrong_clock_wrote_do_not_keep_others(self):
        self.finish(1)
        self.write("UPDATE activity SET at=at+1e9 WHERE id=1")
        self.write("UPDATE task SET created_at=created_at+1e9")
        self.days(91)
        self.prune()
        found = [row[0] for row in self.database.all("SELECT id FROM activity ORDER BY id")]
        self.assertEqual((self.count(), found), (0, [1, 3]))    # the newest stays: ids go on from it

    def history(self, *days):
        """Runs of a schedule so many days ago; which of them a round of pruning leaves, tomorrow."""
        now = self.clock.now()
        self.write("INSERT INTO schedule (id, owner_id, source, function, arguments, options, rule, zone, "
                   "start, catch_up, overlap, created_at) "
                   "VALUES (1, 2, 'person', 'add', '{}', '{}', 'x', 'UTC', 0, 'once', 'skip', 0)")
        for ago in days:
            self.write("INSERT INTO slot (schedule_id, at) VALUES (1, ?)", (now - ago * DAY,))
        self.days(1)
        self.prune()
        return [(now - row[0]) / DAY for row in self.database.all("SELECT at FROM slot ORDER BY at")]

    def test_of_each_schedule_the_newest_run_stays(self):
        self.assertEqual(self.history(100, 95, 94), [94])

    def test_answers_to_repeated_requests_are_kept_for_a_day(self):
        for hours in (1, 30):
            self.write("INSERT INTO request (owner_id, key, digest, answer, created_at) "
                       "VALUES (1, ?, '', '{}', ?)", (str(hours), self.clock.now() + DAY - hours * 3600))
        self.days(1)
        self.prune()
        self.assertEqual([row[0] for row in self.database.all("SELECT key FROM request")], ["1"])

    def test_a_round_with_nothing_to_do_writes_nothing(self):
        self.finish(3)
        self.days(1)
        other = self.another_queue()
        version = other.database.version_seen()
        self.assertEqual(self.prune(), 0)
        self.assertEqual(other.database.version_seen(), version)


class TestClocks(Keep):

    def test_a_clock_that_jumps_far_ahead_removes_nothing_for_as_long_as_tasks_are_kept(self):
        self.finish(3)
        self.days(2)
        self.clock.wall += 3650 * DAY
        self.days(29)
        self.assertEqual(self.count(), 3)
        self.clock.wall -= 3650 * DAY
        self.clock.wall -= 29 * DAY
        self.days(20)
        self.assertEqual(self.count(), 3)

    def test_if_it_was_right_it_goes_on_after_that(self):
        for keep, doubt in ((30, 30), (1, 1), (365, 30)):
            with self.subTest(keep):
                self.change_settings(keep_days=keep)
                self.finish(3)
                self.clock.advance(400 * DAY)
                self.days(doubt)
                self.assertEqual(self.count(), 3)
                self.days(1)
                self.prune()
                self.assertEqual(self.count(), 0)

    def test_a_clock_that_jumps_while_it_is_doubted_is_doubted_anew(self):
        self.finish(3)
        self.clock.advance(2 * DAY)
        self.days(3)
        self.clock.wall += 3650 * DAY
        self.days(29)
        self.assertEqual(self.count(), 3)

    def test_who_comes_once_a_week_is_served_too(self):
        self.finish(3)
        for _ in range(8):
            self.clock.advance(7 * DAY)
            self.prune()
        self.assertEqual(self.count(), 0)

    def test_a_second_jump_is_doubted_like_the_first(self):
        self.finish(3)
        for _ in range(3):
            self.days(2)
            self.clock.wall += 3650 * DAY
            self.prune()
            self.clock.wall -= 3650 * DAY
        self.assertEqual(self.count(), 3)


if __name__ == "__main__":
    unittest.main()
