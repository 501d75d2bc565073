"""Unique keys, Idempotency-Key, and how many tasks one owner may have waiting."""

import contextlib
import json
from unittest import mock

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase
from tests.helpers.web import WebTestCase

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
                self.run_one("fail") if end == "fail" else getattr(self.queue.actions, end)(first)
                second = self.keyed()
                self.assertNotEqual(first, second)
                self.delete(second)

    def test_a_retry_to_come_keeps_the_key(self):
        first = self.keyed(max_retries=1)
        self.assertEqual(self.run_one("error")["unique_key"], "nightly")
        self.assertEqual(self.keyed(), first)

    def test_a_key_of_another_function_is_a_conflict_that_names_it(self):
        first = self.add("bob", "greet", {"unique_key": "nightly"}, name="x")
        with self.refused(jobqueue.Conflict, "belongs to task %d of greet" % first):
            self.keyed()

    def test_a_key_named_twice_in_one_request_is_one_task(self):
        ids = self.queue.add([KEYED, ADD, KEYED], self.owner_id("bob"))
        self.assertEqual(ids, [1, 2, 1])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 2)

    def test_very_many_keys_and_predecessors_are_found_by_few_questions(self):
        keyed = [{**ADD, "unique_key": "k%d" % number} for number in range(1201)]
        owner, questions = self.owner_id("bob"), []
        with mock.patch.object(type(self.database), "transaction", self.counting(questions)):
            ids = self.queue.add(keyed[::2], owner)
            every = self.queue.add(keyed, owner)
            after = self.queue.add([{**ADD, "after": [one]} for one in every], owner)
        self.assertEqual((every[::2], len(set(every + after))), (ids, 2402))
        self.assertEqual([self.row(one)["status"] for one in (after[0], after[-1])], [6, 6])
        self.assertLess(len(questions), 100)

    def counting(self, questions):
        """A transaction whose readings go to `questions`, too."""
        real = type(self.database).transaction

        @contextlib.contextmanager
        def transaction(database, *how, **named):
            with real(database, *how, **named) as link:
                with mock.patch.object(type(link), "all", autospec=True, side_effect=type(link).all) as read:
                    yield link
                questions.extend(read.call_args_list)
        return transaction

    def test_two_processes_add_one_task(self):
        queues = self.queue, self.another_queue()
        orders = [queue.requests.check([KEYED]) for queue in queues]
        added = [queue.add_orders(order, self.owner_id("bob")) for queue, order in zip(queues, orders)]
        self.assertEqual(added, [{"ids": [1], "created": 1}, {"ids": [1], "created": 0}])

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
        self.cancel(first)
        with self.refused(jobqueue.Conflict, "is being cancelled; try again"):
            self.keyed()
        self.delete(first)
        with self.refused(jobqueue.Conflict, "is being deleted; try again"):
            self.keyed()
        self.end(row, "cancelled")
        self.assertEqual(self.keyed(), first + 1)


    def test_a_running_task_hands_its_key_on(self):
        first = self.keyed()
        row = self.claim()
        added = self.queue.add_all([KEYED, KEYED], self.owner_id("bob"), adding_task_id=first)
        self.assertEqual((added.ids, added.new), ([2, 2], 1))
        self.assertEqual((self.row(first)["unique_key"], self.row(2)["unique_key"]), (None, "nightly"))
        self.end(row)
        self.assertEqual(self.keyed(), 2)

    def test_another_running_task_does_not_hand_it_on(self):
        first, other = self.keyed(), self.add("bob")
        self.claim()
        self.assertEqual(self.queue.add_all([KEYED], self.owner_id("bob"), adding_task_id=other).ids, [first])


class TestRemovedOnSuccess(TestCase):
    """A task that was removed when it had succeeded counts as one that succeeded."""

    def setUp(self):
        super().setUp()
        self.gone = self.add("bob", options={"remove_on_success": True})
        self.task = self.queue.get(self.gone)
        self.run_one()
        self.assertIsNone(self.row(self.gone))

    def test_others_come_after_it(self):
        row = self.row(self.add("bob", options={"after": [self.gone]}))
        self.assertEqual(row["status"], jobqueue.PENDING)
        with self.refused(jobqueue.Invalid, "after must name tasks of the same owner; 1 is not one of them"):
            self.add("eve", options={"after": [self.gone]})
        failed = self.add("bob")
        self.run_one()
        self.run_one("fail") if self.status(failed) != "failed" else None
        self.delete(failed)
        with self.refused(jobqueue.Invalid, "%d is not one" % failed):
            self.add("bob", options={"after": [failed]})

    def test_one_can_wait_for_it_in_python(self):
        self.patch(jobqueue, "default_queue", lambda: self.queue)
        self.assertEqual(self.task.wait(5).status, "succeeded")
        self.assertIsNone(self.task.result)
        follower = self.task.then(jobqueue.Function("add", "python", None, {}, "user", {"a": int}), a=1)
        self.assertEqual((follower.owner, follower.status, follower.created), ("bob", "pending", True))
        with self.refused(jobqueue.NotFound):
            self.queue.get(self.gone)

    def test_python_tells_whether_a_task_is_new(self):
        for created in (True, False):
            task = self.queue.enqueue("add", {"a": 1}, owner="bob", unique_key="k")
            self.assertIs(task.created, created)


class TestUniqueKeysOverHttp(WebTestCase):
    def test_the_unfinished_task_is_the_answer(self):
        first = self.check(self.bob.post("/api/tasks", KEYED), 201)
        reply = self.bob.post("/api/tasks", KEYED)
        self.assertEqual(self.check(reply, 200), first)
        many = self.check(self.bob.post("/api/tasks", [KEYED, ADD]), 201)
        self.assertEqual(many, {"ids": [first["id"], first["id"] + 1], "created": 1})


class TestIdempotencyKey(WebTestCase):
    def post(self, body, key="order-17", visitor=None):
        """Add with an Idempotency-Key."""
        return (visitor or self.bob).post("/api/tasks", body, Idempotency_Key=key)

    def count(self):
        return self.database.value("SELECT count(*) FROM task")

    def test_a_repeat_gets_the_same_answer_and_adds_nothing(self):
        first = self.post(ADD)
        self.check(first, 201)
        again = self.post(ADD)
        self.assertEqual((again.status, again.body, again.headers["location"]),
                         (201, first.body, first.headers["location"]))
        self.run_one()
        alone = {"forecast": None, "previous": None, "next": None}
        self.assertEqual({**self.check(self.post(ADD), 201), **alone},
                         self.bob.get("/api/tasks/1").json)
        self.assertEqual(self.count(), 1)

    def test_of_a_task_that_is_gone_the_id_is_told(self):
        first = self.post({**ADD, "remove_on_success": True})
        self.run_one()
        second = self.post({**ADD, "remove_on_success": True})
        self.assertEqual(self.check(second, 201), {"ids": [first.json["id"]], "created": 1})
        self.assertEqual(second.headers["location"], first.headers["location"])

    def test_only_ids_are_kept_of_an_answer(self):
        self.post({**ADD, "unique_key": "k" * 200})
        self.assertEqual(self.database.value("SELECT answer FROM request"), '{"ids":[1],"created":1}')

    def test_an_answer_that_an_older_version_kept_whole_still_holds(self):
        first = self.post(ADD)
        self.write("UPDATE request SET answer=?", (json.dumps(
            {"ids": [1], "created": 1, "task": {**first.json, "message": "of an older version"}}),))
        self.assertEqual(self.post(ADD).body, first.body)
        self.check_wrong(self.post({**ADD, "priority": -1}), "Idempotency-Key")

    def test_so_does_a_repeat_of_many(self):
        first = self.post([ADD, ADD])
        self.assertEqual(self.check(first, 201), {"ids": [1, 2], "created": 2})
        self.assertEqual(self.post([ADD, ADD]).body, first.body)
        self.assertEqual(self.count(), 2)

    def test_even_if_it_could_not_be_added_any_more(self):
        first = self.post(ADD)
        self.declare()
        self.assertEqual(self.post(ADD).body, first.body)

    def test_another_body_is_refused(self):
        self.post(ADD)
        self.check_wrong(self.post({**ADD, "priority": -1}), "Idempotency-Key")
        self.check_wrong(self.post([ADD]), "Idempotency-Key")
        self.assertEqual(self.count(), 1)

    def test_keys_are_each_persons_own(self):
        self.post(ADD)
        self.check(self.post(ADD, visitor=self.eve), 201)
        self.check(self.post(ADD, "order-18"), 201)
        self.assertEqual(self.count(), 3)

    def test_what_was_refused_can_be_corrected(self):
        self.check(self.post({"function": "add"}), 422)
        self.check(self.post(ADD), 201)

    def test_a_repeat_of_what_a_unique_key_answered(self):
        self.check(self.post(KEYED, "a"), 201)
        first = self.post(KEYED, "b")
        self.run_one()
        second = self.post(KEYED, "b")
        self.assertEqual((first.status, second.status, second.json["id"]), (200, 200, first.json["id"]))

    def test_a_key_that_cannot_be_kept_is_refused(self):
        for key in ("", "x" * 201, "\u00e9"):
            self.check(self.post(ADD, key), 400)
        self.check(self.post(ADD, "x" * 200), 201)

    def test_other_requests_ignore_it(self):
        task_id = self.check(self.post(ADD), 201)["id"]
        for _ in range(2):
            reply = self.bob.post("/api/tasks/%d/cancel" % task_id, {}, Idempotency_Key="")
            self.check(reply, 200)

    def test_it_counts_for_a_day(self):
        program = self.program("bob")
        first = self.post(ADD, visitor=program)
        self.clock.advance(86400)
        self.assertEqual(self.post(ADD, visitor=program).body, first.body)
        self.clock.advance(1)
        second = self.post({**ADD, "priority": -1}, visitor=program)
        self.assertEqual(self.check(second, 201)["id"], 2)
        self.assertEqual(self.post({**ADD, "priority": -1}, visitor=program).body, second.body)

    def test_lines_can_be_repeated_too(self):
        body = b'{"function":"add","arguments":{"a":1}}\n' * 3
        headers = {"Idempotency_Key": "k", "Content_Type": "application/x-ndjson"}
        replies = [self.bob.post("/api/tasks", body, **headers) for _ in range(2)]
        self.assertEqual([reply.json for reply in replies], [{"ids": [1, 2, 3], "created": 3}] * 2)

    def test_the_same_bytes_as_lines_and_as_json_are_two_requests(self):
        body = b'{"function":"add","arguments":{"a":1}}'
        lines = {"Idempotency_Key": "k", "Content_Type": "application/x-ndjson"}
        self.check(self.bob.post("/api/tasks", body, **lines), 201)
        self.check_wrong(self.bob.post("/api/tasks", body, Idempotency_Key="k"), "Idempotency-Key")


class TestQuota(TestCase):
    def limit(self, number, user=None):
        """Set the limit of all, or of one user."""
        if user is None:
            self.change_settings(max_pending=number)
        else:
            self.queue.users.change(user, max_pending=number)

    def test_more_than_allowed_is_refused_in_words(self):
        self.limit(3)
        first = self.add("bob")
        self.add("bob", options={"delay": 60})
        with self.refused(jobqueue.TooMany, "3 of bob's tasks may be pending, and 2 more would make"):
            self.add_many("bob", 2)
        self.add("bob", options={"after": [first]})
        with self.refused(jobqueue.TooMany, "and that many already are"):
            self.add("bob")
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 3)
        self.add("eve")
        self.claim()
        self.add("bob")

    def test_a_users_own_limit_wins_and_admins_have_none(self):
        self.limit(1)
        self.limit(2, "bob")
        self.limit(0, "eve")
        for owner, count in (("bob", 2), ("eve", 5), ("ana", 5)):
            self.add_many(owner, count)
        with self.refused(jobqueue.TooMany):
            self.add("bob")
        self.limit(None, "bob")
        with self.refused(jobqueue.TooMany, "at most 1 of bob's"):
            self.add("bob")

    @about_sqlite("how many is the same number elsewhere")
    def test_two_uploads_of_100_000_may_wait_by_default_and_no_more(self):
        many = self.add_many("bob", 5)
        self.write("INSERT INTO task (owner_id, queue, function, arguments, status, priority, turn, "
                   "max_retries, retries_left, retry_delay, retry_backoff, timeout, on_crash, created_at) "
                   "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i<199990) "
                   "SELECT owner_id, queue, function, arguments, 0, 0, 10 + i, 0, 0, 0, 1, 60, 'retry', 0 "
                   "FROM task, n WHERE id=%d" % many[0])
        self.add_many("bob", 5)
        with self.refused(jobqueue.TooMany, "at most 200000 of bob's"):
            self.add("bob")
        self.add("ana")

    def test_what_very_many_wait_is_not_counted_for_each_add(self):
        counted = []
        with mock.patch.object(jobqueue, "COUNT_MAX", 10):
            self.limit(100)
            self.add_many("bob", 20)
            connection = self.database._writer
            value = connection.value
            with mock.patch.object(connection, "value", lambda text, values=(): (
                    counted.append(text.startswith("SELECT count(*)")), value(text, values))[1]):
                for _ in range(80):
                    self.add("bob")
            self.assertLess(sum(counted), 80)
            with self.refused(jobqueue.TooMany, "and that many already are"):
                self.add("bob")
            self.limit(90)
            with self.refused(jobqueue.TooMany, "at most 90"):
                self.add("bob")

    def test_retries_between_adds_exceed_the_limit_by_little(self):
        with mock.patch.multiple(jobqueue, COUNT_MAX=10, UNCOUNTED_MAX=5):
            failed = self.add_many("bob", 20)
            for _ in failed:
                self.run_one("fail")
            self.limit(60)
            self.add_many("bob", 30)
            self.another_queue().actions.act_on("retry", failed, self.owner_id("bob"))
            with self.assertRaises(jobqueue.TooMany):
                for _ in range(60):
                    self.add("bob")
        self.assertLessEqual(
            self.database.value("SELECT count(*) FROM task WHERE status=0 AND owner_id=?",
                                (self.owner_id("bob"),)), 60 + 5)

    def test_what_is_there_already_counts_once(self):
        self.limit(1)
        options = {"unique_key": "k"}
        self.assertEqual(self.add("bob", options=options), self.add("bob", options=options))

    def test_one_owner_with_very_many_does_not_keep_another_waiting(self):
        self.add_many("bob", 10_000)
        for _ in range(5):
            self.run_one()
        theirs = self.add("eve")
        self.assertIn(theirs, [self.run_one()["id"] for _ in range(3)])


class TestQuotaOverHttp(WebTestCase):
    def test_an_admin_sets_it_for_a_user_and_the_answer_is_429(self):
        user = self.check(self.ana.patch("/api/users/bob", {"max_pending": 1}), 200)
        self.assertEqual(user["max_pending"], 1)
        self.check(self.bob.post("/api/tasks", ADD), 201)
        reply = self.bob.post("/api/tasks", ADD)
        self.check(reply, 429, "too_many")
        self.assertEqual(reply.headers["retry-after"], "60")
        self.check(self.ana.patch("/api/users/bob", {"max_pending": None}), 200)
        self.check(self.bob.post("/api/tasks", ADD), 201)

    def failed(self, count):
        """Ids of bob's tasks that have failed; then as many of his may wait as `count` less 3."""
        ids = [self.add("bob") for _ in range(count)]
        for _ in ids:
            self.run_one("fail")
        self.queue.users.change("bob", max_pending=count - 3)
        return ids

    def test_a_retry_counts_as_a_new_task_unless_an_admin_wants_it(self):
        ids = self.failed(4)
        self.check(self.bob.post("/api/tasks/%d/retry" % ids[0], {}), 200)
        answer = self.check(self.bob.post("/api/tasks/%d/retry" % ids[1], {}), 429, "too_many")
        self.assertIn("It was not retried: at most 1 of bob's tasks", answer["detail"])
        self.assertEqual(self.status(ids[1]), "failed")
        self.check(self.ana.post("/api/tasks/%d/retry" % ids[1], {}), 200)

    def test_of_many_so_many_are_retried_as_may_wait_and_that_is_told(self):
        for target in ("ids", "filter"):
            with self.subTest(target=target):
                ids = self.failed(5)
                what = {"ids": ids} if target == "ids" else {"filter": {}, "expected_count": 5}
                answer = self.bob.post("/api/tasks/actions", {"action": "retry", **what})
                answer = self.check(answer, 429, "too_many")
                self.assertIn("Not all were retried: at most 2 of bob's", answer["detail"])
                self.assertEqual([self.status(one) for one in ids], ["pending"] * 2 + ["failed"] * 3)
                what = {"ids": ids} if target == "ids" else {"filter": {}, "expected_count": 3}
                answer = self.check(self.ana.post("/api/tasks/actions", {"action": "retry", **what}), 200)
                self.assertEqual(answer["done"], 3)
                self.queue.users.change("bob", max_pending=0)
                self.check(self.bob.post("/api/tasks/actions", {"action": "delete", "ids": ids}), 200)

    def test_wrong_ones_are_refused_and_users_cannot_change_their_own(self):
        for wrong in (-1, "many", 1.5, True, 10**7):
            self.check_wrong(self.ana.patch("/api/users/bob", {"max_pending": wrong}), "max_pending")
        self.check(self.bob.patch("/api/users/bob", {"max_pending": 9}), 403)
