"""Adding, finding, cancelling, retrying, deleting."""

import contextlib
import os
from unittest import mock

import jobqueue
from jobqueue import Filter, STATUS_WORDS, task_json
from tests.helpers.support import TestCase

# A task of each status; running is made by claiming.
STATES = STATUS_WORDS[:6]


class TaskCase(TestCase):
    def make(self, status, owner="bob"):
        """A task in this status; its id."""
        options = {"delay": 3600} if status == "scheduled" else None
        task_id = self.add(owner, "greet", options, name="x")
        if status in ("running", "succeeded", "failed"):
            row = self.claim()
            self.assertEqual(row["id"], task_id)
            if status != "running":
                self.end(row, status if status == "succeeded" else "fail")
        elif status == "cancelled":
            self.cancel(task_id)
        self.assertEqual(self.status(task_id), status)
        return task_id

    def order(self, count=None):
        """Ids in the order in which they are claimed and ended."""
        found = []
        while count is None or len(found) < count:
            row = self.claim()
            if row is None:
                return found
            self.end(row)
            found.append(row["id"])
        return found


class TestAdding(TaskCase):
    def test_a_task_is_pending_with_the_options_of_its_function(self):
        row = self.row(self.add("bob", "greet", name="Oslo"))
        self.assertEqual(
            (row["status"], row["owner_id"], row["max_retries"], row["retries_left"], row["queue"]),
            (0, self.owner_id("bob"), 2, 2, "default"),
        )
        self.assertEqual(row["created_at"], self.clock.now())

    def test_what_is_asked_for_wins_over_the_functions_options(self):
        row = self.row(self.add("bob", "greet", {"max_retries": 7, "queue": "slow", "timeout": 5}, name="x"))
        self.assertEqual(
            (row["max_retries"], row["retries_left"], row["queue"], row["timeout"]), (7, 7, "slow", 5)
        )

    def test_ids_come_in_the_order_of_the_requests(self):
        ids = self.add_many("bob", 50)
        self.assertEqual(ids, sorted(ids))
        self.assertEqual(
            [self.row(task_id)["arguments"] for task_id in (ids[0], ids[-1])], ['{"a":0}', '{"a":49}']
        )

    def test_all_are_added_or_none(self):
        requests = [{"function": "add", "arguments": {"a": number}} for number in range(10)]
        requests[7]["arguments"]["a"] = "seven"
        with self.refused(jobqueue.Invalid, "Nothing was added") as caught:
            self.queue.add(requests, self.owner_id("bob"))
        self.assertEqual(
            caught.exception.errors,
            [{"field": "arguments.a", "message": "must be a whole number", "index": 7}],
        )
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_every_wrong_field_is_named(self):
        with self.refused(jobqueue.Invalid) as caught:
            self.add("bob", "add", {"priority": 101, "delay": -1, "nonsense": 1}, a="x", c=1)
        self.assertEqual(
            {error["field"] for error in caught.exception.errors},
            {"priority", "delay", "nonsense", "arguments.a", "arguments.c"},
        )

    def test_an_unknown_function_is_refused_with_the_known_ones(self):
        with self.refused(jobqueue.Invalid, "known are add, greet") as caught:
            self.add("bob", "nonsense")
        self.assertEqual(caught.exception.errors[0]["field"], "function")

    def test_a_request_that_is_no_object_is_refused(self):
        for request in (None, [], "add", 5, {}, {"function": None}, {"function": "add", "arguments": [1]}):
            with self.subTest(request), self.assertRaises(jobqueue.Invalid):
                self.queue.add([request], self.owner_id("bob"))

    def test_later_means_scheduled(self):
        for options in ({"delay": 60}, {"run_at": jobqueue.iso(self.clock.now() + 60)}):
            row = self.row(self.add("bob", "add", options))
            self.assertEqual((row["status"], row["run_at"]), (5, self.clock.now() + 60))

    def test_a_time_that_is_over_means_now(self):
        self.assertEqual(self.status(self.add("bob", "add", {"delay": 0})), "pending")
        self.assertEqual(self.status(self.add("bob", "add", {"run_at": "2020-01-01T00:00:00Z"})), "pending")

    def test_time_and_delay_together_are_refused(self):
        with self.refused(jobqueue.Invalid, "together with run_at"):
            self.add("bob", "add", {"delay": 5, "run_at": "2030-01-01T00:00:00Z"})

    def test_who_may_add_what(self):
        for function, allowed in (("restart", ("ana",)), ("cleanup", ()), ("add", ("ana", "bob"))):
            for name in ("ana", "bob"):
                request = {"function": function, "arguments": {"a": 1} if function == "add" else {}}
                with self.subTest(function=function, name=name):
                    if name in allowed:
                        self.queue.requests.check([request], self.people[name])
                    else:
                        with self.refused(jobqueue.Invalid, "is not known"):
                            self.queue.requests.check([request], self.people[name])
        self.add("bob", "cleanup")

    def test_a_high_priority_is_for_admins_and_code(self):
        request = {"function": "add", "arguments": {"a": 1}, "priority": 1}
        with self.refused(jobqueue.Invalid, "higher ones are for admins"):
            self.queue.requests.check([request], self.people["bob"])
        self.queue.requests.check([request], self.people["ana"])
        self.queue.requests.check([{**request, "priority": 0}], self.people["bob"])

    def test_a_functions_own_high_priority_is_for_everyone(self):
        from tests.helpers.support import function_json

        self.declare(function_json("urgent", priority=50))
        orders = self.queue.requests.check([{"function": "urgent"}], self.people["bob"])
        self.assertEqual(orders[0].options["priority"], 50)

    def test_arguments_are_kept_in_the_order_of_the_signature(self):
        self.assertEqual(self.row(self.add("bob", "add", b=2, a=1))["arguments"], '{"a":1,"b":2}')

    def test_any_text_is_kept_as_it_is(self):
        for text in ("Åse", "日本", "'; DROP TABLE task; --", "<script>", "a\r\nb\t", "\u2028", "😀" * 100):
            task_id = self.add("bob", "greet", name=text)
            self.assertEqual(self.queue.get_json(task_id)["arguments"]["name"], text)

    def test_adding_starts_a_worker(self):
        self.add()
        self.assertEqual(len(self.started), 1)

    def test_an_added_task_counts_even_if_no_worker_can_be_started(self):
        self.start_error = BlockingIOError(11, "no more processes")
        self.assertEqual(self.status(self.add()), "pending")

    def test_an_added_task_counts_even_if_the_database_is_busy_afterwards(self):
        with mock.patch.object(self.queue.starter, "start_needed", side_effect=jobqueue.Busy("busy")):
            self.assertEqual(self.status(self.add()), "pending")

    def test_nothing_can_be_added_without_a_function(self):
        self.declare()
        with self.refused(jobqueue.Invalid, "known are none"):
            self.add()


class TestFairTurns(TaskCase):
    def test_one_owners_tasks_run_in_their_order(self):
        ids = self.add_many("bob", 20)
        self.assertEqual(self.order(), ids)

    def test_ten_thousand_of_one_and_then_one_of_another(self):
        self.add_many("bob", 10_000)
        self.order(100)
        eve = self.add("eve")
        self.assertIn(eve, self.order(3))

    def test_two_owners_interleave(self):
        bob, eve = self.add_many("bob", 10), self.add_many("eve", 10)
        first = self.order(10)
        self.assertAlmostEqual(len(set(first) & set(bob)), 5, delta=1)
        self.assertAlmostEqual(len(set(first) & set(eve)), 5, delta=1)

    def test_who_comes_late_is_not_behind_nor_before_everything(self):
        self.add_many("bob", 30)
        self.order(10)
        eve = self.add_many("eve", 5)
        self.assertIn(len(set(self.order(10)) & set(eve)), (4, 5))

    def test_a_higher_priority_goes_first(self):
        low = self.add("bob", "add", {"priority": -5})
        middle = self.add("eve")
        high = self.add("bob", "add", {"priority": 5})
        self.assertEqual(self.order(), [high, middle, low])

    def test_turns_count_apart_for_each_priority_and_queue(self):
        self.add_many("bob", 10)
        self.assertEqual(self.row(self.add("bob", "add", {"priority": -1}))["turn"], 1)
        self.assertEqual(self.row(self.add("bob", "add", {"queue": "other"}))["turn"], 1)

    def test_what_becomes_due_lines_up_like_what_is_added(self):
        self.add_many("bob", 10, options={"delay": 60})
        self.clock.advance(61)
        eve = self.add("eve")
        with self.database.transaction() as transaction:
            self.queue.claims.promote(transaction, self.clock.now())
        self.assertIn(eve, self.order(2))

    def test_many_that_become_due_do_not_starve_another(self):
        for number in range(60):
            self.add("bob", "add", {"delay": 100 - number})
        self.clock.advance(200)
        with self.database.transaction() as transaction:
            self.queue.claims.promote(transaction, self.clock.now())
        eve = self.add("eve")
        self.assertIn(eve, self.order(4))

    def retry_all(self, ids):
        for task_id in ids:
            self.cancel(task_id)
        for task_id in ids:
            self.retry(task_id)

    def test_many_that_are_retried_newest_first_do_not_starve_another(self):
        ids = self.add_many("bob", 60)
        self.retry_all(ids[::-1])
        eve = self.add("eve")
        self.assertIn(eve, self.order(4))

    def test_many_that_are_retried_oldest_first_do_not_starve_another(self):
        self.retry_all(self.add_many("bob", 60))
        eve = self.add("eve")
        self.assertIn(eve, self.order(4))

    def test_many_at_once_get_turns_one_after_the_other(self):
        ids = self.add_many("bob", 5) + self.add_many("bob", 5)
        self.assertEqual([self.row(task_id)["turn"] for task_id in ids], list(range(1, 11)))


class TestFinding(TaskCase):
    def find(self, limit=50, before=None, **wanted):
        rows, after = self.queue.tasks.find(Filter(**wanted), limit, before)
        return [row["id"] for row in rows], after

    def everything(self, limit, **wanted):
        """All pages joined."""
        ids, before = [], None
        while True:
            page, before = self.find(limit, before, **wanted)
            ids += page
            if before is None:
                return ids

    def setUp(self):
        super().setUp()
        self.bob = self.add_many("bob", 12)
        self.eve = self.add_many("eve", 8)
        for task_id in self.bob[:3]:
            self.cancel(task_id)
        self.other = self.add("bob", "greet", {"queue": "slow", "priority": -3}, name="100%_done")
        self.late = self.add("eve", "greet", {"delay": 99}, name="Bergen")
        self.all = self.bob + self.eve + [self.other, self.late]

    def test_newest_first(self):
        self.assertEqual(self.find(), (self.all[::-1], None))

    def test_pages_go_on_where_the_last_one_ended(self):
        for limit in (1, 3, 7, 22, 21):
            self.assertEqual(self.everything(limit), self.all[::-1], limit)

    def test_a_new_task_does_not_shift_the_next_page(self):
        first, before = self.find(5)
        self.add()
        self.assertEqual(self.find(5, before)[0], self.all[::-1][5:10])

    def test_an_owner_sees_only_their_own(self):
        for limit in (3, 50):
            self.assertEqual(
                self.everything(limit, owner_id=self.owner_id("bob")), [self.other] + self.bob[::-1]
            )

    def test_by_status_over_all_owners(self):
        self.assertEqual(self.everything(2, statuses=[4]), self.bob[2::-1])
        self.assertEqual(self.everything(4, statuses=[4, 5]), [self.late] + self.bob[2::-1])

    def test_by_status_of_one_owner(self):
        self.assertEqual(self.everything(2, statuses=[5], owner_id=self.owner_id("bob")), [])
        self.assertEqual(self.everything(2, statuses=[0], owner_id=self.owner_id("eve")), self.eve[::-1])

    def meanwhile_promoted(self, look, *wanted, **more):
        """(id of a scheduled task, what look() finds while that is made pending after the first reading)"""
        task_id = self.add("eve", "greet", {"delay": 9}, name="x")
        other, read = self.another_queue(), self.database.all
        self.clock.advance(10)

        def all_then_promote(*statement):
            rows = read(*statement)
            with other.database.transaction() as transaction:
                other.claims.promote(transaction, self.clock.now())
            return rows

        with mock.patch.object(self.database, "all", all_then_promote):
            return task_id, look(*wanted, **more)

    def test_one_whose_status_changes_meanwhile_is_not_missed(self):
        for wanted in ({}, {"owner_id": self.owner_id("eve")}):
            task_id, found = self.meanwhile_promoted(self.find, statuses=[0, 5], **wanted)
            self.assertIn(task_id, found[0])

    def test_nor_by_counts(self):
        for owner_id in (None, self.owner_id("eve")):
            before = self.queue.tasks.count(Filter(owner_id))["all"]
            _, counts = self.meanwhile_promoted(self.queue.tasks.count, Filter(owner_id))
            self.assertEqual(counts["all"], before + 1)

    def test_by_function_and_by_queue(self):
        self.assertEqual(self.find(function="greet")[0], [self.late, self.other])
        self.assertEqual(self.find(queue="slow")[0], [self.other])
        self.assertEqual(self.find(function="greet", owner_id=self.owner_id("eve"))[0], [self.late])

    def test_a_text_is_looked_for_in_function_arguments_and_message(self):
        self.assertEqual(self.find(text="bergen")[0], [self.late])
        self.assertEqual(self.find(text="gree")[0], [self.late, self.other])
        row = self.claim()
        with self.database.transaction() as transaction:
            self.queue.claims.report(transaction, row["id"], row["claim"], 0.5, "tile 4 of 9")
        self.assertEqual(self.find(text="tile 4")[0], [row["id"]])

    def test_signs_that_mean_something_to_sql_mean_themselves(self):
        self.assertEqual(self.find(text="100%_d")[0], [self.other])
        for text in ("%", "_"):
            self.assertEqual(self.find(text=text)[0], [self.other])
        for text in ("'", "\\", '"; DROP'):
            self.assertNotIn(self.late, self.find(text=text)[0])

    def test_a_search_comes_in_pages_too(self):
        self.assertEqual(self.everything(3, function="add"), (self.bob + self.eve)[::-1])

    def test_a_search_goes_through_ranges_of_ids(self):
        with mock.patch.object(jobqueue, "SEARCH_IDS", 4):
            for limit in (1, 3, 50):
                self.assertEqual(self.everything(limit, function="add"), (self.bob + self.eve)[::-1])
            self.assertEqual(self.find(text="Bergen")[0], [self.late])

    def test_a_search_that_takes_too_long_stops_and_can_be_continued(self):
        self.clock.step = 1
        with mock.patch.object(jobqueue, "SEARCH_IDS", 4):
            first, before = self.find(text="Bergen" * 1)
            self.assertIsNotNone(before)
            self.assertEqual(self.everything(50, function="add"), (self.bob + self.eve)[::-1])

    def test_counts_follow_everything_but_the_status(self):
        self.assertEqual(
            self.queue.tasks.count(Filter()),
            {
                "all": 22,
                "pending": 18,
                "running": 0,
                "succeeded": 0,
                "failed": 0,
                "cancelled": 3,
                "scheduled": 1,
                "waiting": 0,
            },
        )
        counts = self.queue.tasks.count(Filter(owner_id=self.owner_id("bob"), statuses=[5]))
        self.assertEqual((counts["all"], counts["pending"], counts["cancelled"]), (13, 10, 3))
        counts = self.queue.tasks.count(Filter(function="greet"))
        self.assertEqual((counts["all"], counts["pending"], counts["scheduled"]), (2, 1, 1))

    def test_counts_of_a_search_that_takes_too_long_are_left_out(self):
        self.clock.step = 1
        with mock.patch.object(jobqueue, "SEARCH_IDS", 4):
            self.assertIsNone(self.queue.tasks.count(Filter(function="add")))

    def test_counts_are_capped(self):
        with mock.patch.object(jobqueue, "COUNT_MAX", 5):
            counts = self.queue.tasks.count(Filter())
        self.assertEqual((counts["pending"], counts["cancelled"], counts["all"]), (5, 3, 5))

    def test_a_deleted_running_task_is_neither_listed_nor_found(self):
        row = self.claim()
        self.delete(row["id"])
        for wanted in ({}, {"owner_id": row["owner_id"]}, {"statuses": [1]}, {"function": "add"}):
            self.assertNotIn(row["id"], self.find(**wanted)[0])
        with self.assertRaises(jobqueue.NotFound):
            self.queue.tasks.get(row["id"])

    def test_a_deleted_running_task_is_not_counted(self):
        row = self.claim()
        self.delete(row["id"])
        self.assertEqual(self.queue.tasks.count(Filter())["running"], 0)
        self.assertEqual(self.queue.tasks.count(Filter(function="add"))["running"], 0)

    def test_a_list_leaves_out_what_may_be_large(self):
        row = self.queue.tasks.find(Filter(), 1)[0][0]
        shown = task_json(row, fields=())
        self.assertFalse({"arguments", "result"} & set(shown))
        self.assertEqual(shown["summary"], "Bergen")

    def test_a_task_has_always_all_its_keys(self):
        keys = (
            "id owner function arguments queue status reason priority run_at unique_key after after_failure "
            "attempts crashes max_retries retries_left retry_delay retry_backoff timeout on_crash "
            "cancel_requested progress message result error worker schedule created_at started_at finished_at"
        ).split()
        for task_id in (self.bob[0], self.late, self.claim()["id"]):
            self.assertLessEqual(set(keys), set(self.queue.get_json(task_id)))


class TestWhose(TaskCase):
    def test_somebody_elses_task_looks_missing(self):
        for status in STATES:
            task_id = self.make(status)
            actions = self.queue.actions
            for action in (self.queue.tasks.get, actions.cancel, actions.retry, actions.delete):
                with self.subTest(status=status, action=action), self.assertRaises(jobqueue.NotFound):
                    action(task_id, self.owner_id("eve"))
            self.assertEqual(self.status(task_id), status)
            self.write("DELETE FROM task WHERE id=?", (task_id,))

    def test_a_missing_task_is_told_in_the_same_words(self):
        task_id = self.add("bob")
        with self.assertRaises(jobqueue.NotFound) as theirs:
            self.queue.tasks.get(task_id, self.owner_id("eve"))
        with self.assertRaises(jobqueue.NotFound) as missing:
            self.queue.tasks.get(9999, self.owner_id("eve"))
        self.assertEqual(
            theirs.exception.detail.replace(str(task_id), "N"), missing.exception.detail.replace("9999", "N")
        )

    def test_the_owner_and_without_limit_an_admin_may(self):
        task_id = self.add("bob")
        self.cancel(task_id, "bob")
        self.retry(task_id)
        self.assertEqual(self.status(task_id), "pending")


class TestCancel(TaskCase):
    def test_a_task_that_does_not_run_is_cancelled_at_once(self):
        for status in ("pending", "scheduled"):
            task_id = self.make(status)
            self.cancel(task_id)
            self.assertEqual(self.status(task_id), "cancelled")
            self.assertEqual(self.row(task_id)["finished_at"], self.clock.now())

    def test_a_running_task_is_only_asked_to_end(self):
        task_id = self.make("running")
        self.cancel(task_id)
        self.assertEqual((self.status(task_id), self.row(task_id)["cancel_requested"]), ("running", 1))

    def test_asking_again_changes_nothing_and_is_noted_once(self):
        task_id = self.make("running")
        self.cancel(task_id)
        self.cancel(task_id)
        self.assertEqual(self.events(task_id).count("cancel_requested"), 1)

    def test_a_finished_task_cannot_be_cancelled(self):
        for status in ("succeeded", "failed"):
            with self.refused(jobqueue.Conflict, "has ended already"):
                self.cancel(self.make(status))

    def test_cancelling_twice_changes_nothing_more(self):
        task_id = self.make("cancelled")
        self.cancel(task_id)
        self.assertEqual(self.queue.get(task_id).status, "cancelled")

    def test_who_cancels_is_shown_the_task_as_it_was_then(self):
        task_id = self.add(function="greet", options={"remove_on_success": True}, name="x")
        row, database = self.claim(), self.queue.database
        transaction = database.transaction

        @contextlib.contextmanager
        def and_then_it_ends(*words, **named):
            with transaction(*words, **named) as inside:
                yield inside
            with transaction() as inside:
                self.queue.claims.end(inside, task_id, row["claim"],
                                      jobqueue.Outcome("succeeded"), self.clock.now())

        with mock.patch.object(database, "transaction", and_then_it_ends):
            self.assertEqual(self.cancel(task_id)["cancel_requested"], 1)
        self.assertIsNone(database.one("SELECT 1 FROM task WHERE id=?", (task_id,)))

    def test_a_cancelled_task_is_not_claimed(self):
        self.make("cancelled")
        self.assertIsNone(self.claim())


class TestRetry(TaskCase):
    def test_a_failed_or_cancelled_task_starts_over_with_all_its_retries(self):
        for status in ("failed", "cancelled"):
            task_id = self.make(status)
            self.write("UPDATE task SET retries_left=0, crashes=2, interruptions=3 WHERE id=?", (task_id,))
            self.retry(task_id)
            row = self.row(task_id)
            self.assertEqual(
                (
                    row["status"],
                    row["retries_left"],
                    row["crashes"],
                    row["interruptions"],
                    row["error_type"],
                    row["finished_at"],
                ),
                (0, 2, 0, 0, None, None),
            )
            self.delete(task_id)

    def test_attempts_go_on_counting(self):
        task_id = self.make("failed")
        self.retry(task_id)
        self.assertEqual(self.claim()["attempts"], 2)

    def test_any_other_task_cannot_be_retried(self):
        for status in ("pending", "scheduled", "succeeded", "running"):
            task_id = self.make(status)
            with self.refused(jobqueue.Conflict, "only failed and cancelled"):
                self.retry(task_id)
            self.assertEqual(self.status(task_id), status)
            self.delete(task_id)

    def test_a_retried_task_waits_from_now(self):
        task_id = self.make("failed")
        self.clock.advance(5000)
        self.retry(task_id)
        self.clock.advance(3)
        self.claim()
        waited = self.database.value(
            "SELECT waited FROM activity WHERE task_id=? AND event='started' ORDER BY id DESC LIMIT 1",
            (task_id,),
        )
        self.assertEqual(waited, 3)


class TestDelete(TaskCase):
    def test_a_task_that_does_not_run_is_gone_with_its_files(self):
        for status in ("pending", "scheduled", "succeeded", "failed", "cancelled"):
            task_id = self.make(status)
            folder = jobqueue.task_folder(self.database.folder, task_id)
            folder.mkdir(parents=True)
            (folder / "file").write_text("x")
            self.delete(task_id)
            self.assertIsNone(self.row(task_id))
            self.assertFalse(folder.exists())
            self.assertEqual(self.events(task_id)[-1], "deleted")

    def test_a_running_task_is_hidden_at_once_and_removed_at_its_end(self):
        for kind in (
            "succeeded",
            "error",
            "crashed",
            "cancelled",
            "timeout",
            "interrupted",
            "put_back",
            "unknown_function",
        ):
            task_id = self.make("running")
            row = self.row(task_id)
            self.delete(task_id)
            with self.assertRaises(jobqueue.NotFound):
                self.queue.tasks.get(task_id)
            self.end(row, kind)
            self.assertIsNone(self.row(task_id), kind)

    def test_the_folder_of_a_task_that_was_deleted_while_it_ran_is_removed_too(self):
        row = self.row(self.make("running"))
        folder = jobqueue.task_folder(self.database.folder, row["id"])
        folder.mkdir(parents=True)
        self.delete(row["id"])
        self.end(row, "cancelled")
        self.clock.advance(3600)        # the sweep is hourly
        self.tick()
        self.assertFalse(folder.exists())

    def test_deleting_twice_is_not_found(self):
        for status in ("pending", "running"):
            task_id = self.make(status)
            self.delete(task_id)
            with self.assertRaises(jobqueue.NotFound):
                self.delete(task_id)
            self.write("DELETE FROM task")

    def test_a_hidden_task_can_neither_be_cancelled_nor_retried(self):
        task_id = self.make("running")
        self.delete(task_id)
        for action in (self.cancel, self.retry):
            with self.assertRaises(jobqueue.NotFound):
                action(task_id)
        self.assertEqual(self.row(task_id)["cancel_requested"], 2)

    def test_deleting_after_cancelling_deletes(self):
        task_id = self.make("running")
        self.cancel(task_id)
        self.delete(task_id)
        self.assertEqual(self.row(task_id)["cancel_requested"], 2)

    def test_a_link_in_a_tasks_folder_is_removed_and_not_followed(self):
        task_id = self.make("failed")
        folder = jobqueue.task_folder(self.database.folder, task_id)
        folder.mkdir(parents=True)
        (self.folder / "precious").mkdir()
        (self.folder / "precious" / "file").write_text("x")
        os.symlink(self.folder / "precious", folder / "link")
        self.delete(task_id)
        self.assertTrue((self.folder / "precious" / "file").exists())
