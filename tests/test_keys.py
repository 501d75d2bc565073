"""Unique keys, Idempotency-Key, and how many tasks one owner may have waiting."""

import jobqueue
from tests.support import TestCase
from tests.web import WebTestCase

ADD = {"function": "add", "arguments": {"a": 1}}
KEYED = {**ADD, "unique_key": "nightly"}


class TestUniqueKeys(TestCase):
    def keyed(self, key="nightly", owner="bob", **options):
        """Add a task with this key; its id."""
        return self.add(owner, options={"unique_key": key, **options})

    def test_while_a_task_is_unfinished_its_key_leads_to_it(self):
        first = self.keyed()
        self.assertEqual([self.keyed(), self.keyed()], [first, first])
        self.assertNotEqual(self.keyed("other"), first)
        self.assertNotEqual(self.keyed(owner="eve"), first)
        row = self.claim()
        self.assertEqual((row["id"], self.keyed()), (first, first))
        self.end(row)
        self.assertNotEqual(self.keyed(), first)
        self.assertIsNone(self.row(first)["unique_key"])

    def test_a_key_is_free_however_its_task_ended(self):
        for end in ("fail", "cancel", "delete"):
            with self.subTest(end):
                first = self.keyed()
                self.run_one("fail") if end == "fail" else getattr(self.queue.tasks, end)(first)
                second = self.keyed()
                self.assertNotEqual(first, second)
                self.queue.tasks.delete(second)

    def test_a_retry_to_come_keeps_the_key(self):
        first = self.add("bob", "greet", {"unique_key": "nightly"}, name="x")
        self.assertEqual(self.run_one("error")["unique_key"], "nightly")
        self.assertEqual(self.keyed(), first)

    def test_a_key_named_twice_in_one_request_is_one_task(self):
        ids = self.queue.add([KEYED, ADD, KEYED], self.owner_id("bob"))
        self.assertEqual(ids, [1, 2, 1])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 2)

    def test_two_processes_add_one_task(self):
        other = self.another_queue()
        orders = [queue.check_requests([KEYED]) for queue in (self.queue, other)]
        added = [
            queue.add_orders(order, self.owner_id("bob")) for queue, order in zip((self.queue, other), orders)
        ]
        self.assertEqual(added, [([1], 1), ([1], 0)])

    def test_a_worker_of_others_need_not_know_of_keys(self):
        first = self.keyed()
        self.write("UPDATE task SET status=2, unique_key=NULL, finished_at=1 WHERE id=?", (first,))
        second = self.keyed()
        self.assertNotEqual(first, second)
        self.write("DELETE FROM task WHERE id=?", (second,))
        self.assertEqual(self.keyed(), second + 1)

    def test_a_running_task_that_is_to_be_cancelled_keeps_its_key_until_it_is_dead(self):
        first = self.keyed()
        row = self.claim()
        self.queue.tasks.cancel(first)
        self.assertEqual(self.keyed(), first)
        self.queue.tasks.delete(first)
        with self.refused(jobqueue.Conflict, "is being deleted; try again"):
            self.keyed()
        self.end(row, "cancelled")
        self.assertEqual(self.keyed(), first + 1)


class TestUniqueKeysOverHttp(WebTestCase):
    def test_the_unfinished_task_is_the_answer(self):
        first = self.check(self.bob.post("/api/tasks", KEYED), 201)
        reply = self.bob.post("/api/tasks", KEYED)
        self.assertEqual(self.check(reply, 200), first)
        many = self.check(self.bob.post("/api/tasks", [KEYED, ADD]), 201)
        self.assertEqual(many, {"ids": [first["id"], first["id"] + 1], "created": 1})
