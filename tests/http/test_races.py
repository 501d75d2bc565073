"""What somebody else does between two steps of ours: an answer, a change and a sentence stay right."""
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD
from tests.helpers.web import WebTestCase

ADD = {"function": "add", "arguments": {"a": 1}}
ANOTHER = "quite another secret"


def meanwhile(where, name, deed, first=False):
    """In this block `deed` is done once, right after (or before) the `name` of an object is called."""
    real, left = getattr(where, name), [deed]

    def call(*arguments, **named):
        if first and left:
            left.pop()()
        answer = real(*arguments, **named)
        if left:
            left.pop()()
        return answer

    return mock.patch.object(where, name, call)


class RaceCase(WebTestCase):
    def setUp(self):
        super().setUp()
        self.other = self.another_queue()       # somebody else's process
        self.users = self.queue.users

    def starting(self, deed):
        """In this block a worker does this as soon as it is started."""
        return meanwhile(self.queue, "start_workers", deed)

    def schedule(self, **more):
        given = {**ADD, "rule": "@daily", **more}
        return self.check(self.bob.post("/api/schedules", given), 201)["id"]


class TestGoneAtOnce(RaceCase):
    """A task that has been run and removed before the answer is sent was added, or changed, all the same."""

    OPTIONS = {"remove_on_success": True}

    def test_one_that_is_added(self):
        with self.starting(self.run_one):
            task = self.check(self.bob.post("/api/tasks", {**ADD, **self.OPTIONS}), 201)
        self.assertEqual((task["status"], self.status(task["id"])), ("pending", None))

    def test_one_that_a_schedule_adds_now(self):
        schedule_id = self.schedule(options=self.OPTIONS)
        with self.starting(self.run_one):
            task = self.check(self.bob.post("/api/schedules/%d/run" % schedule_id), 201)
        self.assertEqual((task["status"], self.status(task["id"])), ("pending", None))

    def failed(self):
        task_id = self.add("bob", options=self.OPTIONS)
        self.run_one("fail")
        return task_id

    def test_one_that_is_retried(self):
        task_id = self.failed()
        with self.starting(self.run_one):
            task = self.check(self.bob.post("/api/tasks/%d/retry" % task_id), 200)
        self.assertEqual((task["status"], self.status(task_id)), ("pending", None))
        task_id = self.failed()
        with self.starting(self.run_one):
            self.assertEqual(self.queue.get(task_id).retry().status, "pending")
        self.assertIsNone(self.status(task_id))

    def test_one_that_is_cancelled(self):
        def by_http(number):
            return self.check(self.bob.post("/api/tasks/%d/cancel" % number), 200)["status"]

        for cancel in (by_http, lambda number: self.queue.get(number).cancel().status):
            task_id = self.add("bob")
            with self.starting(lambda task_id=task_id: self.other.actions.delete(task_id)):
                self.assertEqual(cancel(task_id), "cancelled")
            self.assertIsNone(self.status(task_id))


class TestPasswords(RaceCase):
    def log_in(self):
        return self.nobody.post("/api/session", {"name": "eve", "password": PASSWORD})

    def change_own(self):
        return self.eve.patch("/api/users/eve", {"password": ANOTHER, "current_password": PASSWORD})

    def reset(self, **changes):
        self.other.users.change("eve", **(changes or {"password": "set by the admin"}))

    def sessions(self):
        return self.database.value("SELECT count(*) FROM session WHERE user_id=?", (self.owner_id("eve"),))

    def test_the_old_one_opens_nothing_once_it_was_changed(self):
        with meanwhile(jobqueue, "verify_password", self.reset):
            self.check(self.log_in(), 401)
        self.assertEqual(self.sessions(), 0)

    def test_nor_for_who_was_disabled_or_deleted(self):
        for where, name, deed in (
                (jobqueue, "verify_password", lambda: self.reset(disabled=True)),
                (self.queue.sessions, "open", lambda: self.reset(disabled=True)),
                (jobqueue, "verify_password", lambda: self.other.users.delete("eve"))):
            self.write("UPDATE user SET disabled=0")
            with self.subTest(name), meanwhile(where, name, deed):
                self.check(self.log_in(), 401)

    def test_who_knew_the_old_one_does_not_undo_what_an_admin_set(self):
        with meanwhile(jobqueue, "verify_password", self.reset):
            self.check(self.change_own(), 403)
        stored = self.users.find("eve")["password"]
        self.assertTrue(jobqueue.verify_password("set by the admin", stored))

    def test_a_user_who_is_gone_is_told_so(self):
        with meanwhile(self.users, "confirm", lambda: self.other.users.delete("eve")):
            self.check(self.change_own(), 404)

    def test_a_new_one_leaves_the_quota_that_somebody_set(self):
        self.reset(max_pending=5)
        with meanwhile(jobqueue, "hash_password", lambda: self.reset(max_pending=100)):
            user = self.check(self.ana.patch("/api/users/eve", {"password": ANOTHER}), 200)
        self.assertEqual(user["max_pending"], 100)


class TestDeletedUsers(RaceCase):
    def test_what_they_were_about_to_add_is_refused_in_words(self):
        for path, body, where, name in (
                ("/api/tasks", ADD, self.queue, "add_orders"),
                ("/api/tokens", {"name": "n", "password": PASSWORD}, self.queue.tokens, "add"),
                ("/api/schedules", {**ADD, "rule": "@daily"}, self.queue.schedules, "add")):
            visitor = self.browser("eve")
            deed = mock.Mock(side_effect=lambda: self.other.users.delete("eve"))
            with self.subTest(path), meanwhile(where, name, deed, first=True):
                answer = self.check(visitor.post(path, body), 409, "conflict")
            self.assertIn("was deleted meanwhile; nothing was changed", answer["detail"])
            deed.assert_called_once()
            self.users.add("eve", PASSWORD)

    def test_one_whom_default_owner_has_just_begun_to_name_stays(self):
        self.assertEqual(self.other.settings.get("default_owner"), "")
        self.change_settings(default_owner="eve")
        with self.refused(jobqueue.Conflict, "default_owner names eve"):
            self.other.users.delete("eve")


class TestSchedules(RaceCase):
    def change_rule(self, visitor, schedule_id, deed):
        with meanwhile(self.queue.schedules, "_checked", deed):
            return visitor.patch("/api/schedules/%d" % schedule_id, {"rule": "@hourly"})

    def test_one_that_is_resumed_while_its_rule_is_changed_runs_by_the_new_one(self):
        schedule_id = self.schedule(paused=True)
        self.check(self.change_rule(self.bob, schedule_id, lambda: self.other.schedules.change(
            schedule_id, {"paused": False})), 200)
        shown = self.queue.schedules.get(schedule_id)
        self.assertEqual((shown["paused"], shown["next_at"][11:16]), (False, "09:00"))

    def test_one_that_is_paused_meanwhile_stays_so(self):
        schedule_id = self.schedule()
        self.check(self.change_rule(self.bob, schedule_id, lambda: self.other.schedules.change(
            schedule_id, {"paused": True})), 200)
        shown = self.queue.schedules.get(schedule_id)
        self.assertEqual((shown["paused"], shown["next_at"], shown["rule"]), (True, None, "@hourly"))

    def test_one_that_is_given_away_meanwhile_stays_the_new_owners(self):
        def give_to_eve():
            self.other.schedules.change(schedule_id, {"rule": "@daily"}, owner_id=self.owner_id("eve"))

        for visitor, status in ((self.bob, 404), (self.ana, 200)):
            schedule_id = self.schedule()
            self.check(self.change_rule(visitor, schedule_id, give_to_eve), status)
            self.assertEqual(self.queue.schedules.get(schedule_id)["owner"], "eve")


if __name__ == "__main__":
    unittest.main()
