"""Tasks that come after others: released, failed, retried, whoever ends what they wait for."""

import contextlib
import random
from unittest import mock

import jobqueue
from tests.helpers.support import TestCase

ADD = {"function": "add", "arguments": {"a": 1}}


class OrderCase(TestCase):
    def after(self, *before, owner="bob", **options):
        """Add a task that comes after others; its id."""
        return self.add(owner, options={"after": list(before), **options})

    def states(self, *ids):
        """Their status words."""
        return [self.status(task_id) for task_id in ids]


class TestWaiting(OrderCase):
    def test_a_task_waits_until_what_it_comes_after_has_succeeded(self):
        first = self.add()
        second = self.after(first)
        self.assertEqual(self.status(second), "waiting")
        self.assertEqual(self.run_one()["id"], first)
        self.assertEqual(self.status(second), "pending")
        self.assertEqual(self.run_one()["id"], second)
        self.assertEqual(self.events(second), ["added", "released", "started", "succeeded"])

    def test_it_waits_for_all_of_many(self):
        before = self.add_many("bob", 5)
        last = self.after(*before)
        for _ in before:
            self.assertEqual(self.status(last), "waiting")
            self.run_one()
        self.assertEqual(self.status(last), "pending")

    def test_what_has_succeeded_already_is_not_waited_for(self):
        first = self.run_one()["id"] if self.add() else None
        self.assertEqual(self.status(self.after(first)), "pending")
        second = self.add()
        third = self.after(first, second)
        self.assertEqual(self.status(third), "waiting")
        self.run_one()
        self.assertEqual(self.status(third), "waiting")

    def test_a_failure_fails_it_and_says_by_which(self):
        first, other = self.add_many("bob", 2)
        second = self.after(first, other)
        third = self.after(second)
        self.run_one("fail")
        row = self.row(second)
        self.assertEqual(self.states(other, second, third), ["pending", "failed", "failed"])
        self.assertEqual((row["reason"], row["finished_at"]), ("dependency", self.clock.now()))
        self.assertEqual(
            row["error_message"], "Task %d, which this one comes after, failed." % first
        )
        self.run_one()
        self.assertEqual(self.status(second), "failed")

    def test_it_runs_after_a_failure_if_that_is_wanted(self):
        first, other = self.add_many("bob", 2)
        second = self.after(first, other, after_failure="run")
        self.run_one("fail")
        self.assertEqual(self.status(second), "waiting")
        self.run_one("fail")
        self.assertEqual(self.status(second), "pending")

    def test_a_retry_to_come_is_no_end(self):
        first = self.add("bob", "greet", name="x")
        second = self.after(first)
        self.run_one("error")
        self.assertEqual(self.states(first, second), ["scheduled", "waiting"])
        self.clock.advance(100)
        self.run_one()
        self.assertEqual(self.status(second), "pending")

    def test_a_time_that_is_still_to_come_is_kept(self):
        first = self.add()
        late, past = self.after(first, delay=60), self.after(first, delay=5)
        self.clock.advance(10)
        self.run_one()
        self.assertEqual(self.states(late, past), ["scheduled", "pending"])

    def test_what_is_released_takes_its_turn(self):
        first = self.add("bob")
        released = [self.after(first) for _ in range(3)]
        theirs = self.add_many("eve", 3)
        self.run_one()
        order = [self.run_one()["id"] for _ in range(6)]
        self.assertEqual([task_id in theirs for task_id in order].count(True), 3)
        self.assertEqual(order[:2], [theirs[0], released[0]])

    def test_what_had_ended_badly_before_fails_it_at_once(self):
        first = self.add()
        self.cancel(first)
        second, third = self.after(first), self.after(first, after_failure="run")
        self.assertEqual(self.states(second, third), ["failed", "pending"])
        self.assertEqual(
            self.row(second)["error_message"], "Task %d, which this one comes after, was cancelled." % first
        )

    def test_a_key_is_free_when_its_task_fails_so(self):
        first = self.add()
        second = self.after(first, unique_key="k")
        self.delete(first)
        self.assertEqual(self.status(second), "failed")
        self.assertNotEqual(self.add("bob", options={"unique_key": "k"}), second)


class TestWhoEndsIt(OrderCase):
    """However a task ends, what comes after it hears of it in the same transaction."""

    def check(self, end, status="failed"):
        first = self.add()
        follower, cleaner = self.after(first), self.after(first, after_failure="run")
        end(first)
        self.assertEqual(self.states(follower, cleaner), [status, "pending"])
        self.cancel(cleaner)

    def test_a_person(self):
        self.check(self.cancel)
        self.check(self.delete)
        for action in ("cancel", "delete"):
            self.check(lambda first, action=action: self.queue.actions.act_on(action, [first]))

    def test_a_person_while_it_runs(self):
        for action in (self.cancel, self.delete):
            def end(first, action=action):
                row = self.claim()
                action(first)
                self.assertEqual(self.status(first + 1), "waiting")
                self.end(row, "cancelled")
            self.check(end)

    def test_a_worker_that_finds_it_cancelled_when_it_puts_it_back(self):
        def end(first):
            row = self.claim()
            self.cancel(first)
            self.end(row, "unknown_function")
        self.check(end)

    def test_the_death_of_a_worker(self):
        def end(first):
            self.write("UPDATE task SET crashes=2 WHERE id=?", (first,))
            self.claim()
            self.clock.advance(3600)
            self.clean()
        self.check(end)

    def test_a_worker_of_others_or_a_deletion_by_hand_is_seen_by_the_tick(self):
        for statement, status in (
            ("UPDATE task SET status=2, finished_at=1 WHERE id=?", "pending"),
            ("UPDATE task SET status=3, finished_at=1 WHERE id=?", "failed"),
            ("DELETE FROM task WHERE id=?", "failed"),
        ):
            def end(first, statement=statement):
                self.write(statement, (first,))
                self.clean()
            self.check(end, status)


class TestTriggers(OrderCase):
    """What follows an end follows it whoever wrote it, in whatever language."""

    def test_the_next_look_for_work_finds_what_was_released_by_the_end_of_others(self):
        first = self.add(options={"queue": "mail"})
        second = self.after(first)
        self.write("UPDATE queue SET external=1 WHERE name='mail'")
        self.assertIsNone(self.claim())
        self.write("UPDATE task SET status=2, finished_at=1 WHERE id=?", (first,))
        self.assertEqual(self.queue.claims.next_due(), 0.0)
        self.clock.advance(1)
        self.assertEqual(self.claim()["id"], second)

    def test_a_key_is_free_and_nothing_is_waited_for_any_more(self):
        first = self.add()
        second = self.after(first, unique_key="k")
        self.write("UPDATE task SET status=4, finished_at=1 WHERE id=?", (second,))
        self.assertIsNone(self.row(second)["unique_key"])
        self.assertIsNone(self.database.value("SELECT 1 FROM task_after WHERE settled=0"))
        self.assertNotEqual(self.after(first, unique_key="k"), second)

    def test_a_task_that_is_to_be_removed_is_gone_and_its_followers_know_how_it_ended(self):
        first = self.add(options={"remove_on_success": True})
        second = self.after(first)
        self.write("UPDATE task SET status=2, finished_at=1 WHERE id=?", (first,))
        self.clean()
        self.assertEqual(self.states(first, second), [None, "pending"])

    def test_one_that_was_deleted_while_it_ran_is_gone_however_it_ended(self):
        for status in (jobqueue.SUCCEEDED, jobqueue.FAILED, jobqueue.CANCELLED):
            first = self.claim()["id"] if self.add() else None
            second = self.after(first)
            self.queue.actions.delete(first)
            self.write("UPDATE task SET status=?, cancel_requested=0, finished_at=1 WHERE id=?",
                       (status, first))
            self.clean()
            self.assertEqual(self.states(first, second), [None, "failed"])
            self.assertIn("was deleted", self.row(second)["error_message"])

    def test_logs_go_with_their_task(self):
        first = self.add()
        self.write("INSERT INTO log (task_id, attempt, start, length, text) VALUES (?, 1, 0, 1, 'x')",
                   (first,))
        self.write("DELETE FROM task WHERE id=?", (first,))
        self.assertIsNone(self.database.value("SELECT 1 FROM log"))


class TestMany(OrderCase):
    def settle_all(self):
        """Tick as long as something comes after tasks that have ended."""
        while self.database.value("SELECT 1 FROM unsettled"):
            self.clean()

    def test_very_many_followers_go_in_portions(self):
        first = self.add()
        followers = self.add_many("bob", 1500, options={"after": [first]})
        row = self.claim()
        with self.database.transaction() as transaction:
            self.queue.claims.end(transaction, first, row["claim"], jobqueue.Outcome("succeeded"), 1)
        released = self.states(*followers).count("pending")
        self.assertTrue(0 < released <= jobqueue.SETTLE_AT_ONCE, released)
        self.settle_all()
        self.assertEqual(set(self.states(*followers)), {"pending"})

    def test_a_long_chain_falls_without_recursion(self):
        chain = [self.add()]
        with self.database.transaction() as transaction:
            for _ in range(1500):
                order = jobqueue.Order("add", "{}", jobqueue.TASK_DEFAULTS, after=(chain[-1],))
                chain += self.queue.adding.add(transaction, self.owner_id("bob"), [order], 1)[0]
        self.run_one("fail")
        self.settle_all()
        self.assertEqual(set(self.states(*chain)), {"failed"})

    def test_the_tasks_of_one_request_name_a_bounded_number_of_others(self):
        first, second = self.add_many("bob", 2)
        with mock.patch.object(jobqueue, "AFTER_SUM_MAX", 5), \
                self.refused(jobqueue.TooLarge, "name 5 others"):
            self.add_many("bob", 4, options={"after": [first, second]})


class TestRefusals(OrderCase):
    def test_unknown_and_foreign_tasks_are_refused_in_the_same_words(self):
        foreign = self.add("eve")
        for wrong in (foreign, 4711):
            with self.refused(jobqueue.Invalid, "tasks of the same owner; %d is not one" % wrong) as caught:
                self.after(wrong)
            self.assertEqual([error["field"] for error in caught.exception.errors], ["after"])
        with self.assertRaises(jobqueue.Invalid) as caught:
            self.queue.add([ADD, {**ADD, "after": [foreign]}], self.owner_id("bob"))
        self.assertEqual([error["index"] for error in caught.exception.errors], [1])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 1)

    def test_a_task_cannot_come_after_one_that_is_yet_to_be_added(self):
        with self.refused(jobqueue.Invalid):
            self.after(1)


class TestRetry(OrderCase):
    def test_a_follower_is_judged_anew(self):
        first = self.add()
        second = self.after(first)
        self.run_one("fail")
        with self.refused(jobqueue.Conflict, "comes after task %d, which failed; retry that" % first):
            self.retry(second)
        self.retry(first)
        self.retry(second)
        self.assertEqual(self.states(first, second), ["pending", "waiting"])
        self.run_one()
        self.assertEqual(self.status(second), "pending")

    def test_it_runs_if_all_have_succeeded_meanwhile(self):
        first, second = self.add_many("bob", 2)
        last = self.after(first, second)
        self.run_one("fail")
        self.run_one()
        self.retry(first)
        self.run_one()
        self.retry(last)
        self.assertEqual(self.status(last), "pending")

    def test_what_was_deleted_cannot_be_waited_for(self):
        first = self.add()
        second = self.after(first)
        self.delete(first)
        with self.refused(jobqueue.Conflict, "which was deleted; add it anew"):
            self.retry(second)

    def test_a_task_that_failed_by_itself_does_not_care_any_more(self):
        first = self.add()
        second = self.after(first)
        self.run_one()
        self.run_one("fail")
        self.delete(first)
        self.retry(second)
        self.assertEqual(self.status(second), "pending")

    def test_a_cancelled_one_waits_again(self):
        first = self.add()
        second = self.after(first)
        self.cancel(second)
        self.run_one("put_back")
        self.retry(second)
        self.assertEqual(self.status(second), "waiting")
        self.run_one()
        self.assertEqual(self.status(second), "pending")

    def test_many_are_retried_in_the_order_in_which_they_were_added(self):
        first, other = self.add_many("bob", 2)
        second, third = self.after(first), self.after(other)
        self.run_one("fail")
        self.cancel(other)
        self.assertEqual(self.queue.actions.act_on("retry", [third, second, first]), 2)
        self.assertEqual(self.states(first, second, third), ["pending", "waiting", "failed"])


class TestShown(OrderCase):
    def test_a_task_names_what_it_waits_for_and_what_waits_for_it(self):
        first = self.add("bob", "greet", name="x")
        second = self.after(first, after_failure="run")
        shown = self.queue.get_json(second)
        self.assertEqual((shown["after"], shown["after_failure"], shown["followers"]), ([first], "run", []))
        self.assertEqual(shown["predecessors"], [{"id": first, "function": "greet", "status": "pending"}])
        self.assertEqual(
            self.queue.get_json(first)["followers"], [{"id": second, "function": "add", "status": "waiting"}]
        )

    def test_a_deleted_one_is_named_by_its_id_only(self):
        first = self.add()
        second = self.after(first)
        self.delete(first)
        shown = self.queue.get_json(second)
        self.assertEqual((shown["after"], shown["predecessors"]), ([first], []))
        self.assertEqual(shown["error"]["type"], "Dependency")

    def test_of_very_many_the_first_hundred_are_shown(self):
        firsts = self.add_many("bob", 150)
        last = self.after(*firsts)
        self.add_many("bob", 150, options={"after": [firsts[0]]})
        self.assertEqual(self.queue.get_json(last)["after"], firsts)
        self.assertEqual(len(self.queue.get_json(last)["predecessors"]), 100)
        self.assertEqual(len(self.queue.get_json(firsts[0])["followers"]), 100)
        rows, _ = self.queue.tasks.find(jobqueue.Filter(statuses=[jobqueue.WAITING]), 200)
        listed = {task["id"]: task["after"] for task in self.queue.tasks.list_json(rows)}
        self.assertEqual(listed[last], firsts[:100])

    def test_nothing_is_left_of_a_deleted_task(self):
        first = self.add()
        second = self.after(first)
        self.delete(second)
        self.assertEqual(self.database.value("SELECT count(*) FROM task_after"), 0)
        self.delete(first)


class TestRetriedPredecessors(OrderCase):
    """What runs whatever became of another (after_failure="run") waits for it again if that is retried."""

    def test_a_task_that_is_retried_after_what_it_comes_after_waits_for_that(self):
        first = self.add()
        second = self.after(first, after_failure="run")
        for action in ("cancel", "retry"):
            for task_id in (first, second):
                getattr(self.queue.actions, action)(task_id)
        self.assertEqual(self.states(first, second), ["pending", "waiting"])
        self.run_one("fail")
        self.assertEqual(self.states(first, second), ["failed", "pending"])

    def test_a_task_that_still_waits_is_not_released_while_one_was_retried(self):
        first, other = self.add_many("bob", 2)
        last = self.after(first, other, after_failure="run")
        self.cancel(first)
        self.retry(first)
        rows = self.claim_many(2, function="add")
        self.assertEqual({row["id"] for row in rows}, {first, other})
        self.end(next(row for row in rows if row["id"] == other))
        self.assertEqual(self.states(first, other, last), ["running", "succeeded", "waiting"])
        self.end(next(row for row in rows if row["id"] == first))
        self.assertEqual(self.status(last), "pending")

    def test_one_that_was_released_already_goes_on(self):
        first = self.add()
        second = self.after(first, after_failure="run")
        self.cancel(first)
        self.retry(first)
        self.assertEqual(self.states(first, second), ["pending", "pending"])

    def test_what_succeeded_and_was_deleted_is_not_asked_for_again(self):
        first, other = self.add_many("bob", 2)
        last = self.after(first, other)
        self.run_one()
        self.delete(first)
        self.cancel(last)
        self.assertEqual(self.retry(last)["status"], jobqueue.WAITING)


class TestWhatever(OrderCase):
    """What holds whatever happens, in an order that chance decides."""

    def step(self, chance, ids):
        """Something happens."""
        ids[:] = [task_id for task_id in ids[-12:] if self.row(task_id)]
        task_id = chance.choice(ids) if ids else 0
        what = chance.choice(["add", "end", "retry"] * 3 + ["cancel", "delete", "foreign"])
        if what == "add":
            options = {"unique_key": chance.choice([None, None, "a", "b"])}
            options["after"] = chance.sample(ids, min(len(ids), chance.choice((0, 1, 1, 2))))
            options["after_failure"] = chance.choice([None, "run"])
            with contextlib.suppress(jobqueue.Conflict):
                added = self.add("bob", options=options)
                ids += [added] if added not in ids else []
        elif what == "end":
            row = self.claim()
            if row:
                if chance.random() < 0.3:
                    getattr(self.queue.actions, chance.choice(("cancel", "delete")))(row["id"])
                self.end(row, chance.choice(("succeeded", "succeeded", "fail", "put_back")))
        elif what == "foreign":
            self.write("UPDATE task SET status=?, unique_key=NULL, finished_at=1 WHERE status=0 AND id="
                       "(SELECT min(after_id) FROM task_after WHERE settled=0)", (chance.choice((2, 3)),))
        else:
            with contextlib.suppress(jobqueue.Conflict, jobqueue.NotFound):
                getattr(self.queue.actions, what)(task_id)

    def check(self):
        """Nobody waits in vain, nobody runs too early, no key is in use twice."""
        for statement in (
            # waits for nothing
            "SELECT id FROM task WHERE status=6 AND NOT EXISTS "
            "(SELECT 1 FROM task_after WHERE task_id=task.id AND settled=0)",
            # has not waited
            "SELECT id FROM task JOIN task_after ON task_id=id WHERE status<>6 AND settled=0",
            "SELECT task.id FROM task JOIN task_after ON task_id=task.id WHERE task.after_failure='fail' "
            "AND settled<>1 AND status IN (0, 1, 2, 5)",
            # waits for what has ended
            "SELECT after_id FROM task_after LEFT JOIN task ON task.id=after_id "
            "WHERE settled=0 AND (status IS NULL OR status IN (2, 3, 4))",
            "SELECT unique_key FROM task WHERE unique_key IS NOT NULL GROUP BY owner_id, unique_key "
            "HAVING count(*)>1",
            "SELECT id FROM task WHERE unique_key IS NOT NULL AND status IN (2, 3, 4)",
            "SELECT task_id FROM unsettled",
        ):
            self.assertEqual([tuple(row) for row in self.database.all(statement)], [], statement)

    def test_nobody_waits_in_vain_or_runs_too_early(self):
        for seed in range(3):
            chance, ids = random.Random(seed), []
            with self.subTest(seed=seed), mock.patch.object(jobqueue, "SETTLE_AT_ONCE", 3):
                for _ in range(200):
                    self.step(chance, ids)
                    if chance.random() < 0.1:
                        for _ in range(2):
                            self.clean()
                        self.check()
