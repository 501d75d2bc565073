"""GET /api/overview: what runs, waits, failed lately and comes next, each for who may see it."""
import unittest
from urllib.parse import quote

import jobqueue
from tests.helpers.web import WebTestCase


class Overview(WebTestCase):

    def look(self, visitor=None):
        return self.check((visitor or self.bob).get("/api/overview"), 200)

    def add_failure(self, owner="bob", kind="ValueError", message="no such city", function="add"):
        task_id = self.add(owner, function)
        self.end(self.claim(), "fail", None, kind, message)
        return task_id

    def groups(self, visitor=None):
        return [(group["function"], group["error"], group["count"], group["newest"])
                for group in self.look(visitor)["failed"]["groups"]]

    def test_an_empty_queue_has_nothing_to_say(self):
        found = self.look()
        self.assertEqual((found["running"], found["oldest"], found["held"], found["next_at"]),
                         ([], None, [], None))
        self.assertEqual((found["failed"]["groups"], found["failed"]["more"], found["failed"]["count"],
                          found["schedules"]), ([], False, 0, []))
        self.assertEqual(found["workers"], {"alive": 0, "busy": 0, "maximum": 2})

    def test_what_runs_is_told_with_its_progress(self):
        task_id = self.add("bob")
        self.claim()
        self.write("UPDATE task SET progress=0.25 WHERE id=?", (task_id,))
        [shown] = self.look()["running"]
        self.assertEqual((shown["id"], shown["progress"], shown["status"]), (task_id, 0.25, "running"))

    def test_ten_of_what_runs_are_told_and_all_are_counted(self):
        self.add_many("bob", 12)
        for worker_id in range(1, 13):
            self.claim(worker_id)
        found = self.look()
        self.assertEqual((len(found["running"]), found["counts"]["running"]), (10, 12))

    def test_who_waits_longest_is_found_behind_what_is_more_urgent(self):
        first = self.add("bob", options={"priority": -5})
        self.clock.advance(60)
        self.add("bob")
        oldest = self.look()["oldest"]
        self.assertEqual(oldest["id"], first)
        self.assertEqual(oldest["since"], jobqueue.iso(self.clock.now() - 60))

    def test_what_was_due_later_waits_since_then(self):
        task_id = self.add("bob", options={"delay": 100})
        self.assertEqual(self.look()["next_at"], jobqueue.iso(self.clock.now() + 100))
        self.assertIsNone(self.look()["oldest"])
        self.tick(130)
        oldest = self.look()["oldest"]
        self.assertEqual((oldest["id"], oldest["since"]),
                         (task_id, jobqueue.iso(self.clock.now() - 30)))

    def test_why_a_queue_starts_nothing_is_told_to_who_waits_there(self):
        self.check(self.ana.patch("/api/queues/mail", {
            "paused": True, "paused_why": "no provider"}), 200)
        self.add("bob", options={"queue": "mail"})
        [held] = self.look()["held"]
        self.assertEqual((held["queue"], held["code"], held["text"]),
                         ("mail", "paused", "The queue mail is paused by ana: no provider."))
        self.assertEqual(self.look(self.eve)["held"], [])

    def test_who_has_as_many_running_as_they_may_is_told_and_nobody_else(self):
        self.queue.users.change("bob", max_running=1)
        self.add_many("bob", 2)
        self.claim()
        self.add("eve")
        self.assertEqual(self.look()["held"], [{
            "queue": "default", "code": "owner", "text": "The user bob runs at most 1 at once."}])
        for visitor in (self.eve, self.ana):
            self.assertEqual(self.look(visitor)["held"], [])

    def test_failures_are_grouped_by_function_and_kind_of_error(self):
        self.add_failure(message="no such city: Oslo")
        newest = self.add_failure(message="no such city: Bergen")
        other = self.add_failure(kind="OSError")
        self.assertEqual(self.groups(), [("add", "ValueError", 2, newest), ("add", "OSError", 1, other)])
        self.assertEqual(self.look()["failed"]["groups"][0]["message"], "no such city: Bergen")

    def test_what_failed_before_yesterday_is_left_out(self):
        self.add_failure()
        self.clock.advance(86401)
        self.bob = self.program("bob")      # no session lasts that long
        self.assertEqual(self.groups(), [])

    def test_the_largest_groups_come_first_and_those_left_out_are_counted(self):
        few = [self.add_failure(kind="Error%d" % place) for place in range(12)]
        for _ in range(3):
            self.add_failure(kind="OSError")
        self.add_failure(kind="Error0")
        failed = self.look()["failed"]
        self.assertEqual([(group["error"], group["count"]) for group in failed["groups"]],
                         [("OSError", 3), ("Error0", 2)]
                         + [("Error%d" % place, 1) for place in range(11, 3, -1)])
        self.assertEqual(failed["groups"][2]["newest"], few[11])
        self.assertEqual((failed["count"], failed["other_kinds"], failed["other_count"], failed["more"]),
                         (16, 3, 3, False))

    def test_where_counting_takes_too_long_it_says_that_there_may_be_more(self):
        self.add_many("bob", 200)
        self.claim_many(200)
        self.write("UPDATE task SET status=3, error_type='OSError', finished_at=?", (self.clock.now(),))
        self.patch(jobqueue, "SEARCH_SECONDS", -1)
        self.patch(jobqueue, "LOOK_SECONDS", -1)
        failed = self.look()["failed"]
        self.assertTrue(failed["more"])
        self.assertLess(failed["count"], 200)
        self.patch(jobqueue, "SEARCH_SECONDS", 60)
        failed = self.look(self.ana)["failed"]
        self.assertEqual((failed["count"], failed["more"]), (200, False))
        self.assertEqual(self.look(self.eve)["failed"]["count"], 0)

    def test_a_failure_without_an_error_is_grouped_by_its_reason_and_found_by_it(self):
        task_id = self.add("bob")
        self.end(self.claim(), "timeout")
        self.assertEqual(self.groups(), [("add", "timeout", 1, task_id)])
        found = self.check(self.bob.get("/api/tasks?status=failed&error=timeout&counts=1"), 200)
        self.assertEqual([task["id"] for task in found["tasks"]], [task_id])
        self.assertEqual(found["counts"]["failed"], 1)

    def test_a_group_can_be_retried_as_it_is_shown(self):
        old = self.add_failure()
        self.clock.advance(86401)
        self.bob = self.program("bob")      # no session lasts that long
        wanted, other = self.add_failure(), self.add_failure(kind="OSError")
        failed = self.look()["failed"]
        group = {"status": "failed", "function": "add", "error": "ValueError",
                 "ended_since": failed["since"]}
        found = self.check(self.bob.get("/api/tasks?error=ValueError&ended_since=%s"
                                        % quote(failed["since"], safe="")), 200)
        self.assertEqual([task["id"] for task in found["tasks"]], [wanted])
        done = self.check(self.bob.post("/api/tasks/actions", {
            "action": "retry", "filter": group, "expected_count": 1}), 200)
        self.assertEqual(done["done"], 1)
        self.assertEqual([self.status(one) for one in (old, wanted, other)],
                         ["failed", "pending", "failed"])

    def test_a_time_without_an_offset_is_refused(self):
        self.check(self.bob.get("/api/tasks?ended_since=yesterday"), 400, "malformed")

    def test_the_next_days_times_are_told_the_next_one_first(self):
        hourly = self.schedule("every 6h")
        daily = self.schedule("every 2h")
        self.schedule("every 3d")
        paused = self.schedule("every 1h")
        self.bob.patch("/api/schedules/%d" % paused, {"paused": True})
        found = self.look()["schedules"]
        self.assertEqual([one["id"] for one in found], [daily, hourly])
        self.assertEqual([len(one["times"]) for one in found], [11, 3])
        self.assertEqual(found[1]["times"][0], jobqueue.iso(self.clock.now() + 6 * 3600))

    def test_a_schedule_that_this_host_cannot_read_is_told_with_its_next_time(self):
        schedule_id = self.schedule("every 6h")
        self.write("UPDATE schedule SET rule='every so often' WHERE id=?", (schedule_id,))
        self.assertEqual(len(self.look()["schedules"][0]["times"]), 1)

    def test_another_persons_tasks_and_schedules_are_invisible(self):
        self.add_failure("eve")
        self.add("eve")
        self.add("eve", options={"delay": 60})
        self.add("eve", options={"priority": -1})
        self.schedule(owner="eve")
        self.claim()
        mine, theirs = self.look(), self.look(self.eve)
        self.assertEqual((mine["running"], mine["oldest"], mine["next_at"], mine["schedules"]),
                         ([], None, None, []))
        self.assertEqual((mine["failed"]["groups"], mine["counts"]["all"]), ([], 0))
        self.assertEqual((len(theirs["running"]), theirs["counts"]["all"], len(theirs["schedules"])),
                         (1, 4, 1))
        self.assertEqual(len(self.look(self.ana)["running"]), 1)

    def test_an_admin_may_choose_one_owner(self):
        self.add_failure("eve")
        self.add("bob")
        whole = self.check(self.ana.get("/api/overview?owner=eve"), 200)
        self.assertEqual((whole["counts"]["all"], whole["failed"]["count"]), (1, 1))
        self.check(self.bob.get("/api/overview?owner=eve"), 403, "denied")


if __name__ == "__main__":
    unittest.main()
