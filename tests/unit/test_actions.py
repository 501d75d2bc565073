"""Cancel, retry and delete of many tasks: named ones, or all that match a filter."""
import io
import json
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import TestCase
from tests.helpers.web import WebTestCase


class Actions(WebTestCase):
    """With portions of 50 tasks."""

    def setUp(self):
        self.patch(jobqueue, "PORTION_ROWS", 50)
        super().setUp()

    def act(self, visitor, action, status=200, **rest):
        return self.check(visitor.post("/api/tasks/actions", {"action": action, **rest}), status)

    def act_on_all(self, visitor, action, wanted, count):
        """Confirm and go on until nothing remains; the answers."""
        answers = [self.act(visitor, action, filter=wanted, expected_count=count)]
        while answers[-1]["continue"]:
            answers.append(self.act(visitor, action, filter=wanted, **{
                "continue": answers[-1]["continue"]}))
        return answers

    def failed(self, count):
        """The ids of bob's tasks that have failed."""
        ids = self.add_many("bob", count)
        for _ in ids:
            self.run_one("fail")
        return ids


class TestNamed(Actions):

    def test_named_tasks_are_cancelled_and_the_others_are_left(self):
        ids = self.add_many("bob", 4)
        answer = self.act(self.bob, "cancel", ids=ids[:3])
        self.assertEqual(answer, {"action": "cancel", "done": 3, "remaining": 0, "continue": None})
        self.assertEqual([self.status(one) for one in ids], ["cancelled"] * 3 + ["pending"])
        self.assertEqual(self.events(ids[0]), ["added", "cancelled"])

    def test_what_the_action_does_not_fit_is_passed_over(self):
        ids = self.failed(1) + self.add_many("bob", 1)
        self.assertEqual(self.act(self.bob, "retry", ids=ids)["done"], 1)
        self.assertEqual(self.act(self.bob, "cancel", ids=ids + [98765])["done"], 2)
        self.assertEqual(self.act(self.bob, "cancel", ids=ids)["done"], 0)

    def test_running_ones_are_asked_to_end_as_single_ones_are(self):
        ids = self.add_many("bob", 2)
        rows = self.claim_many(1) + self.claim_many(1)
        self.act(self.bob, "cancel", ids=ids[:1])
        self.act(self.bob, "delete", ids=ids[1:])
        self.assertEqual([self.row(one)["cancel_requested"] for one in ids], [1, 2])
        self.assertEqual(self.events(ids[0]), ["added", "started", "cancel_requested"])
        for row in rows:
            self.end(row, "cancelled")
        self.assertEqual([self.status(one) for one in ids], ["cancelled", None])

    def test_foreign_tasks_are_passed_over_like_missing_ones(self):
        theirs = self.add_many("eve", 2)
        self.assertEqual(self.act(self.bob, "delete", ids=theirs)["done"], 0)
        self.assertEqual(self.status(theirs[0]), "pending")
        self.assertEqual(self.act(self.ana, "delete", ids=theirs)["done"], 2)

    def test_deleted_tasks_leave_no_log_and_no_folder(self):
        task_id = self.add("bob")
        self.write_log(task_id, "words")
        folder = jobqueue.task_folder(self.folder / "data", task_id)
        folder.mkdir(parents=True)
        self.act(self.bob, "delete", ids=[task_id])
        self.assertEqual((self.status(task_id), folder.exists()), (None, False))
        self.assertEqual(self.database.value("SELECT count(*) FROM log"), 0)
        self.assertEqual(self.events(task_id), ["added", "deleted"])

    def test_nobody_retries_what_they_may_not_add_any_more(self):
        ids = [self.add("bob", function=name) for name in ("restart", "cleanup")]
        self.act(self.bob, "cancel", ids=ids)
        for task_id in ids:
            self.check(self.bob.post("/api/tasks/%d/retry" % task_id), 403)
        self.assertEqual(self.act(self.bob, "retry", ids=ids)["done"], 0)
        self.assertEqual(self.act_on_all(self.bob, "retry", {}, 2)[-1]["done"], 0)
        self.assertEqual({self.status(one) for one in ids}, {"cancelled"})
        self.assertEqual(self.act_on_all(self.ana, "retry", {"owner": "bob"}, 2)[-1]["done"], 2)

    def test_the_same_id_twice_is_one_task(self):
        task_id = self.add("bob")
        self.assertEqual(self.act(self.bob, "cancel", ids=[task_id, task_id])["done"], 1)


    def test_what_came_after_them_and_their_keys_follow_as_with_single_ones(self):
        firsts = [self.add("bob", options={"unique_key": key}) for key in "xyz"]
        lasts = [self.add("bob", options={"after": [one], "after_failure": how})
                 for one, how in zip(firsts, ("fail", "run", "fail"))]
        self.act(self.bob, "cancel", ids=firsts[:2])
        self.act(self.bob, "delete", ids=firsts[2:])
        self.assertEqual([self.status(one) for one in lasts], ["failed", "pending", "failed"])
        self.assertNotIn(self.add("bob", options={"unique_key": "x"}), firsts)
        self.act(self.bob, "retry", ids=[firsts[1], lasts[0]])
        self.assertEqual([self.status(one) for one in (firsts[1], lasts[0])], ["pending", "failed"])


class TestFilters(Actions):

    def test_all_that_match_are_changed_once_the_count_is_confirmed(self):
        ids = self.failed(3)
        other = self.add("bob", function="greet", name="x")
        answer = self.act_on_all(self.bob, "retry", {"status": "failed"}, 3)[-1]
        self.assertEqual((answer["done"], answer["remaining"], answer["continue"]), (3, 0, None))
        self.assertEqual({self.status(one) for one in [*ids, other]}, {"pending"})

    def test_another_count_changes_nothing_and_says_the_right_one(self):
        self.add_many("bob", 3)
        for count in (None, 0, 2):
            answer = self.act(self.bob, "delete", 409, filter={}, expected_count=count)
            self.assertEqual((answer["count"], answer["errors"][0]["field"]), (3, "expected_count"))
        self.act(self.bob, "delete", 409, filter={})
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 3)

    def test_fewer_tasks_than_were_confirmed_are_changed(self):
        self.add_many("bob", 3)
        self.run_one()
        self.assertEqual(self.act_on_all(self.bob, "cancel", {}, 3)[-1]["done"], 2)

    def test_only_tasks_that_the_action_can_change_are_counted(self):
        self.failed(2)
        self.add_many("bob", 3)
        for action, count in (("retry", 2), ("cancel", 3), ("delete", 5)):
            answer = self.act(self.bob, action, 409, filter={}, expected_count=None)
            self.assertEqual(answer["count"], count, action)

    def test_users_reach_only_their_own_tasks(self):
        self.add_many("bob", 2)
        self.add_many("eve", 3)
        self.act_on_all(self.bob, "delete", {}, 2)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 3)
        self.act(self.bob, "delete", 403, filter={"owner": "eve"}, expected_count=3)
        self.act_on_all(self.ana, "delete", {"owner": "eve"}, 3)

    def test_filters_are_those_of_the_list(self):
        for wanted, count in (({"function": "greet"}, 1), ({"queue": "mail"}, 1), ({"q": "zebra"}, 1),
                              ({"status": "pending,failed"}, 3), ({"status": "succeeded"}, 0)):
            with self.subTest(wanted):
                self.write("DELETE FROM task WHERE status>=0")
                self.add("bob")
                self.add("bob", function="greet", name="zebra")
                self.add("bob", function="send", to="x")
                self.assertEqual(sum(one["done"] for one in
                                     self.act_on_all(self.bob, "cancel", wanted, count)), count)

    def test_a_large_deletion_goes_in_portions_and_ends(self):
        self.add_many("bob", 120)
        self.patch(jobqueue, "ACTION_ROWS", 50)
        self.patch(jobqueue, "ACTION_SECONDS", -1.0)
        answers = self.act_on_all(self.bob, "delete", {}, 120)
        self.assertGreater(len(answers), 2)
        self.assertEqual(sum(one["done"] for one in answers), 120)
        left = [one["remaining"] for one in answers]
        self.assertEqual((left, left[-1]), (sorted(left, reverse=True), 0))
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_others_write_between_the_portions(self):
        self.add_many("bob", 70)
        left, other = set(), self.another_queue()

        def between(*_):
            left.add(self.database.value("SELECT count(*) FROM task WHERE owner_id=?",
                                         (self.owner_id("bob"),)))
            other.add([{"function": "add", "arguments": {"a": 1}}], self.owner_id("eve"))
            self.assertIsNotNone(self.claim(queue=other))

        self.patch(jobqueue, "remove_task_folder", between)
        self.act_on_all(self.ana, "delete", {"owner": "bob"}, 70)
        self.assertIn(20, left)

    def test_tasks_added_later_are_not_swept_in(self):
        self.add_many("bob", 60)
        self.patch(jobqueue, "ACTION_ROWS", 50)
        self.patch(jobqueue, "ACTION_SECONDS", -1.0)
        answer = self.act(self.bob, "delete", filter={}, expected_count=60)
        later = self.add_many("bob", 5)
        while answer["continue"]:
            answer = self.act(self.bob, "delete", filter={}, **{"continue": answer["continue"]})
        self.assertEqual([row[0] for row in self.database.all("SELECT id FROM task")], later)

    def test_retried_tasks_take_turns_with_those_of_others(self):
        ids = self.failed(4)
        theirs = self.add_many("eve", 2)
        self.act_on_all(self.bob, "retry", {}, 4)
        order = [self.claim()["id"] for _ in range(6)]
        self.assertEqual([one for one in order if one in ids], ids)
        self.assertLess(max(map(order.index, theirs)), 4)


class TestRefusals(Actions):

    def test_what_is_not_an_action_is_refused(self):
        right = {"action": "cancel", "ids": [1]}
        for wrong, field in (({"action": "explode"}, "action"), ({"ids": "1"}, "ids"),
                             ({"ids": [0]}, "ids[0]"), ({"ids": [True]}, "ids[0]"),
                             ({"filter": {}}, "filter"),
                             ({"ids": list(range(1, 1002))}, "ids"), ({"surprise": 1}, "surprise")):
            self.check_wrong(self.bob.post("/api/tasks/actions", {**right, **wrong}), field)
        self.check_wrong(self.bob.post("/api/tasks/actions", {"action": "cancel"}), "filter")

    def test_a_filter_with_an_unknown_name_deletes_nothing(self):
        task_id = self.add("bob")
        for wanted, status in (({"state": "failed"}, 422), ({"status": "broken"}, 422), ({"q": 1}, 422)):
            self.act(self.bob, "delete", status, filter=wanted, expected_count=1)
        self.assertEqual(self.status(task_id), "pending")

    def test_made_up_continuations_reach_no_further(self):
        theirs = self.add("eve")
        for text in ("0-999999999", "0-1"):
            self.act(self.bob, "delete", filter={}, **{"continue": text})
        self.check_wrong(self.bob.post("/api/tasks/actions", {
            "action": "delete", "filter": {}, "continue": "x"}), "continue")
        self.assertEqual(self.status(theirs), "pending")


class TestCommands(TestCase):
    """cancel, retry and delete on the command line."""

    def act(self, *words):
        """(exit code, what was printed, what was complained about)"""
        options, run = jobqueue.parse_command(list(words))
        with mock.patch("sys.stdout", io.StringIO()) as out, mock.patch("sys.stderr", io.StringIO()) as err:
            code = run(jobqueue.LocalClient(self.queue), options)
        return code, out.getvalue().strip(), err.getvalue().strip()

    def test_several_ids_are_done_one_after_the_other(self):
        ids = self.add_many("bob", 3)
        self.assertEqual(self.act("cancel", *map(str, ids)), (0, "", ""))
        self.assertEqual({self.status(one) for one in ids}, {"cancelled"})
        code, _, said = self.act("delete", "98765", str(ids[0]))
        self.assertEqual((code, self.status(ids[0])), (4, None))
        self.assertIn("98765", said)

    def test_a_filter_says_how_many_and_changes_them_only_with_yes(self):
        ids = self.add_many("bob", 3)
        self.add("eve", function="greet", name="x")
        with self.refused(jobqueue.Conflict, "3 tasks match that cancel can change"):
            self.act("cancel", "--function", "add")
        self.assertEqual(self.act("cancel", "--function", "add", "--yes")[1], "3 of 3 tasks")
        self.assertEqual({self.status(one) for one in ids}, {"cancelled"})
        words = ("retry", "--status", "cancelled", "--owner", "bob", "--yes")
        self.assertEqual(self.act(*words)[1], "3 of 3 tasks")
        answer = json.loads(self.act("delete", "--all", "--yes", "--json")[1])
        self.assertEqual((answer["action"], answer["done"]), ("delete", 4))

    def test_without_id_and_filter_or_with_both_it_is_not_done(self):
        for words in (["--yes"], ["1", "--all", "--yes"]):
            with self.refused(jobqueue.Invalid, "a filter such as"):
                self.act("delete", *words)


if __name__ == "__main__":
    unittest.main()
