"""Forecasts: what is told of when tasks begin and end, and what is not told, and why."""
import unittest

import jobqueue
from tests.helpers.support import TestCase, function_json
from tests.helpers.web import WebTestCase


class ForecastCase(TestCase):
    """One worker; `add` takes a minute, as it always did."""

    def setUp(self):
        super().setUp()
        self.change_settings(NbMaxWorker=1, worker_mode="detached")
        self.worker_id, _ = self.live()
        self.know("add", *[60.0] * 30)

    def know(self, function, *times, event="succeeded"):
        """Attempts of a function took so long."""
        with self.database.transaction() as transaction:
            for seconds in times:
                jobqueue.record_activity(transaction, self.clock.now(), event, None, function=function,
                              queue="default", seconds=seconds)

    def told(self, task_id):
        """What is told of a task, by somebody who has not asked before."""
        queue = self.another_queue()
        return queue.forecast.of_task(queue.tasks.get(task_id))

    def check_range(self, told, low, high):
        """A range is about from `low` to `high`, in seconds from now."""
        self.assertIsNotNone(told)
        found = [jobqueue.parse_time(text, "") - self.clock.now() for text in told]
        self.assertLessEqual(found[0], low)
        self.assertGreaterEqual(found[1], high)
        self.assertLessEqual(found[1] - found[0], max(180, 0.3 * high), found)

    def run_now(self, **more):
        """Claim the next task for the worker; its row."""
        row = self.claim(self.worker_id)
        if more:
            self.write("UPDATE task SET progress=? WHERE id=?", (more["progress"], row["id"]))
        return row


class Waits(ForecastCase):
    def test_the_first_begins_now_and_the_others_one_after_the_other(self):
        ids = self.add_many("bob", 4)
        for place, task_id in enumerate(ids):
            told = self.told(task_id)
            self.assertEqual((told["before"], told["reason"], told["slow"]), (place, None, False))
            self.check_range(told["expected_start"], 60 * place, 60 * place)
            self.check_range(told["expected_end"], 60 * place + 60, 60 * place + 60)

    def test_two_workers_halve_it_and_a_running_task_holds_one(self):
        self.change_settings(NbMaxWorker=2)
        ids = self.add_many("bob", 9)
        self.check_range(self.told(ids[-1])["expected_start"], 240, 240)
        self.run_now()
        self.clock.advance(30)
        self.check_range(self.told(ids[1])["expected_start"], 0, 0)
        self.check_range(self.told(ids[2])["expected_start"], 30, 30)

    def test_priorities_and_the_turns_of_owners_count(self):
        ids = self.add_many("bob", 10)
        self.assertEqual(self.told(self.add("eve"))["before"], 2)
        self.assertEqual(self.told(self.add("ana", options={"priority": 5}))["before"], 0)
        self.assertEqual(self.told(self.add("eve", options={"priority": -5}))["before"], 12)
        self.assertEqual(self.told(ids[-1])["before"], 11)

    def test_a_rate_spreads_starts(self):
        self.queue.queues.change("post", {"rate": {"count": 1, "seconds": 600}}, "ana", new=True)
        ids = self.add_many("bob", 4, options={"queue": "post"})
        self.check_range(self.told(ids[3])["expected_start"], 1800, 1800)

    def test_a_user_holds_no_more_workers_than_they_may_and_leaves_the_others(self):
        self.change_settings(NbMaxWorker=4)
        self.queue.users.change("bob", max_running=1)
        ids = self.add_many("bob", 4)
        self.check_range(self.told(ids[3])["expected_start"], 180, 180)
        self.check_range(self.told(self.add("eve", options={"priority": -1}))["expected_start"], 0, 0)
        self.run_now()
        self.clock.advance(30)
        self.check_range(self.told(ids[1])["expected_start"], 30, 30)

    def test_a_queue_runs_no_more_than_it_may_and_leaves_workers_to_others(self):
        self.change_settings(NbMaxWorker=4)
        self.queue.queues.change("post", {"max_running": 1}, "ana", new=True)
        ids = self.add_many("bob", 4, options={"queue": "post"})
        self.check_range(self.told(ids[3])["expected_start"], 180, 180)
        self.check_range(self.told(self.add("eve"))["expected_start"], 0, 0)

    def test_what_fails_is_tried_again_and_ends_later(self):
        self.know("greet", *[10.0] * 50, event="retry")
        told = self.told(self.add("bob", "greet", name="x"))
        self.check_range(told["expected_start"], 0, 0)      # three attempts, 60 s and 120 s between
        self.check_range(told["expected_end"], 210, 210)

    def test_a_scheduled_task_begins_at_its_time(self):
        told = self.told(self.add("bob", options={"delay": 5000}))
        self.check_range(told["expected_start"], 5000, 5000)
        self.check_range(told["expected_end"], 5060, 5060)
        self.assertIsNone(told["before"])

    def test_far_ones_are_reckoned(self):
        ids = self.add_many("bob", jobqueue.PLANNED_ROWS + 100)
        ids += self.add_many("eve", jobqueue.PLANNED_ROWS, options={"priority": -1})
        for before in (jobqueue.PLANNED_ROWS + 50, len(ids) - 1):
            told = self.told(ids[before])
            self.assertEqual(told["before"], before)
            self.check_range(told["expected_start"], 60 * before, 60 * before)
            self.check_range(told["expected_end"], 60 * before + 60, 60 * before + 60)

    def test_far_ones_keep_within_the_limits_of_their_queue(self):
        self.change_settings(NbMaxWorker=50)
        self.queue.queues.change("few", {"max_running": 2}, "ana", new=True)
        self.queue.queues.change("slow", {"rate": {"count": 1, "seconds": 100}}, "ana", new=True)
        for name, seconds in (("few", 30), ("slow", 100)):
            ids = self.add_many("bob", jobqueue.PLANNED_ROWS + 100, options={"queue": name})
            self.check_range(self.told(ids[-1])["expected_start"], seconds * 599, seconds * 599)

    def test_other_queues_take_turns(self):
        self.queue.queues.change("post", {}, "ana", new=True)
        self.add_many("bob", 700)
        ids = self.add_many("bob", 600, options={"queue": "post"})
        told, before = self.told(ids[-1]), 2 * 599 + 1
        self.assertEqual(told["before"], 599, "in its queue")
        self.check_range(told["expected_start"], 60 * before, 60 * before)

    def test_far_ones_take_as_long_as_their_functions_do(self):
        self.know("greet", *[600.0] * 50)
        ids = self.add_many("bob", 900)
        self.write("UPDATE task SET function='greet' WHERE id>600")
        self.check_range(self.told(ids[-1])["expected_start"], 600 * 60 + 299 * 600, 600 * 60 + 299 * 600)

    def test_behind_much_that_is_more_urgent_elsewhere_no_time_is_told(self):
        self.queue.queues.change("post", {}, "ana", new=True)
        self.add_many("bob", 700, options={"queue": "post", "priority": 5})
        told = self.told(self.add("eve"))
        self.assertEqual((told["before"], told["expected_start"]), (0, None))
        self.assertIn("tasks before it", told["reason"])

    def test_pauses_beyond_all_measure_are_no_error(self):
        self.know("greet", *[1.0] * 20, event="retry")
        task_id = self.add("bob", "greet", {"max_retries": 1000, "retry_delay": 1e6, "retry_backoff": 10},
                           name="x")
        self.write("UPDATE task SET retries_left=1 WHERE id=?", (task_id,))
        self.assertIsNotNone(self.told(task_id)["expected_end"])

    def test_a_far_one_before_which_all_was_claimed_since_begins_now(self):
        ids = self.add_many("bob", jobqueue.PLANNED_ROWS + 1)
        forecast = self.queue.forecast
        forecast.of_task(self.queue.tasks.get(ids[0]))
        self.write("DELETE FROM task WHERE id<?", (ids[-1],))
        told = forecast.of_task(self.queue.tasks.get(ids[-1]))
        self.assertEqual(told["before"], 0)
        self.check_range(told["expected_start"], 0, 0)

    def test_asking_again_tells_the_same(self):
        self.know("greet", *range(1, 50))
        ids = [self.add("bob", "greet", name="x") for _ in range(20)]
        self.assertEqual(self.told(ids[-1]), self.told(ids[-1]))

    def test_it_is_worked_out_anew_after_a_while_and_for_new_tasks(self):
        ids = self.add_many("bob", 2)
        ask = self.queue.forecast.of_task
        self.check_range(ask(self.queue.tasks.get(ids[1]))["expected_start"], 60, 60)
        ids += self.add_many("bob", 1)
        told = ask(self.queue.tasks.get(ids[2]))
        self.assertEqual(told["before"], 2)
        self.check_range(told["expected_start"], 120, 120)
        self.end(self.run_now())
        told = ask(self.queue.tasks.get(ids[1]))
        self.assertEqual(told["before"], 0)
        self.check_range(told["expected_start"], 60, 60)
        self.clock.advance(2)
        self.check_range(ask(self.queue.tasks.get(ids[1]))["expected_start"], 0, 0)


class Reasons(ForecastCase):
    def check_reason(self, task_id, words):
        told = self.told(task_id)
        self.assertIn(words, told["reason"])
        self.assertIsNone(told["expected_end"])
        return told

    def test_a_paused_queue(self):
        self.queue.queues.change("default", {"paused": True, "paused_why": "moving"}, "ana")
        self.assertIsNone(self.check_reason(self.add(), "paused by ana: moving")["expected_start"])

    def test_no_worker(self):
        task_id = self.add()
        self.change_settings(NbMaxWorker=0)
        self.assertIsNone(self.check_reason(task_id, "No worker runs")["expected_start"])
        self.change_settings(NbMaxWorker=1, worker_mode="service")
        self.write("DELETE FROM worker")
        self.check_reason(task_id, "No worker runs")

    def test_another_machine(self):
        self.queue.queues.change("default", {"machines": ["far"]}, "ana")
        self.check_reason(self.add(), "waits for a worker on far")

    def test_others_come_first(self):
        first = self.add()
        self.check_reason(self.add(options={"after": [first]}), "waits for other tasks")

    def test_nothing_is_known_of_a_function(self):
        told = self.check_reason(self.add("bob", "greet", name="x"), "The running time of greet")
        self.check_range(told["expected_start"], 0, 0)
        self.check_reason(self.add(), "running time of tasks before it")

    def test_what_has_ended_has_none(self):
        task_id = self.add()
        self.run_one()
        self.assertIsNone(self.told(task_id))


class Place(ForecastCase):
    """How many come before a task of which nothing else is known."""

    def add_unknown(self, count, owner="bob", **options):
        """Tasks of a function that has never run."""
        ids = self.add_many(owner, count, options=options)
        self.write("UPDATE task SET function='greet' WHERE id>=?", (ids[0],))
        return ids

    def test_it_is_the_order_in_which_workers_claim(self):
        ids = self.add_unknown(6)
        ids += [*self.add_unknown(2, "eve"), *self.add_unknown(1, "ana", priority=5),
                *self.add_unknown(2, "eve", priority=-5)]
        told = {task_id: self.told(task_id)["before"] for task_id in ids}
        self.assertEqual(sorted(told.values()), list(range(len(ids))))
        claimed = []
        while len(claimed) < len(ids):
            self.assertEqual(self.told(next(one for one in ids if told[one] == len(claimed)))["before"], 0)
            claimed.append(self.run_now()["id"])
        self.assertEqual([told[one] for one in claimed], list(range(len(ids))))

    def test_one_waits_behind_ten_thousand(self):
        self.add_unknown(10_000)
        last = self.add("bob")
        told = self.told(last)
        self.assertEqual((told["before"], told["expected_start"]), (10_000, None))
        self.assertIn("running time of tasks before it", told["reason"])
        other = self.told(self.add("bob"))
        self.assertEqual(other["before"], jobqueue.COUNT_MAX)
        self.assertIn("more than 10000 before it", jobqueue._forecast_text(other))
        self.assertEqual(self.told(self.add("bob"))["before"], jobqueue.COUNT_MAX)

    def test_what_runs_is_not_before_it(self):
        ids = self.add_unknown(4)
        self.run_now()
        self.assertEqual([self.told(task_id)["before"] for task_id in ids[1:]], [0, 1, 2])

    def test_it_is_told_while_nobody_works_and_while_the_queue_is_paused(self):
        ids = self.add_unknown(4)
        self.queue.queues.change("default", {"paused": True}, "ana")
        self.assertEqual(self.told(ids[3])["before"], 3)
        self.queue.queues.change("default", {"paused": False}, "ana")
        self.change_settings(NbMaxWorker=0)
        self.assertEqual(self.told(ids[3])["before"], 3)

    def test_it_is_told_before_one_adds(self):
        self.add_unknown(4)
        options = {"queue": "default", "priority": 0, "max_retries": 0, "retry_delay": 1, "retry_backoff": 1}
        bob, eve = (self.queue.users.find(name)["id"] for name in ("bob", "eve"))
        self.assertEqual(self.queue.forecast.of_new(bob, "greet", options)["before"], 4)
        self.assertEqual(self.queue.forecast.of_new(eve, "greet", options)["before"], 2)

    def test_it_is_the_place_in_its_queue_whatever_keeps_others_back(self):
        ids = self.add_unknown(4)
        self.queue.users.change("eve", max_running=1)       # whose tasks are passed by
        self.queue.queues.change("post", {}, "ana", new=True)
        [other] = self.add_unknown(1, "eve", queue="post")  # which takes turns with it
        self.assertEqual((self.told(ids[3])["before"], self.told(other)["before"]), (3, 0))
        self.queue.queues.change("post", {"machines": ["far"]}, "ana")
        self.assertEqual((self.told(ids[3])["before"], self.told(other)["before"]), (3, 0))
        self.assertIsNone(self.told(self.add_unknown(1, "eve", delay=60)[0])["before"])

    def test_what_came_since_behind_something_unknown_has_a_place_and_no_time(self):
        self.change_settings(NbMaxWorker=2)
        ask, ids = self.queue.forecast.of_task, self.add_many("bob", 2)
        self.assertIsNotNone(ask(self.queue.tasks.get(ids[1]))["expected_end"])     # both begin at once
        self.add_unknown(2)
        self.clock.advance(jobqueue.CACHE_SECONDS + 1)
        told = ask(self.queue.tasks.get(self.add("bob")))
        self.assertEqual((told["before"], told["expected_start"]), (4, None))


class Running(ForecastCase):
    def test_one_that_began_since_the_plan_was_made_has_an_end(self):
        task_id, ask = self.add(), self.queue.forecast.of_task
        ask(self.queue.tasks.get(task_id))
        self.run_now()
        told = ask(self.queue.tasks.get(task_id))
        self.assertIsNone(told["reason"])
        self.check_range(told["expected_end"], 60, 60)

    def test_it_goes_on_as_long_as_the_others(self):
        self.know("greet", *[100.0] * 30)
        row = self.add("bob", "greet", name="x") and self.run_now()
        self.clock.advance(40)
        told = self.told(row["id"])
        self.check_range(told["expected_end"], 60, 60)
        self.assertIsNone(told["expected_start"])

    def test_its_progress_says_more(self):
        row = self.add() and self.run_now(progress=0.1)
        self.clock.advance(30)
        self.check_range(self.told(row["id"])["expected_end"], 270, 270)

    def test_a_moment_more_than_all_others_is_no_reason_to_say_so(self):
        self.know("greet", *[0.2] * 30)
        row = self.add("bob", "greet", name="x") and self.run_now()
        self.clock.advance(0.6)
        self.assertIsNone(self.told(row["id"])["reason"])
        self.clock.advance(5)
        self.assertIn("longer than the newest", self.told(row["id"])["reason"])

    def test_one_that_is_older_than_all_is_not_guessed_at(self):
        row = self.add() and self.run_now()
        self.clock.advance(80)
        told = self.told(row["id"])
        self.assertEqual((told["expected_end"], told["slow"]), (None, False))
        self.assertIn("longer than the newest", told["reason"])
        self.clock.advance(101)
        self.assertTrue(self.told(row["id"])["slow"])

    def test_little_is_never_slow(self):
        self.know("greet", *[1.0] * 30)
        row = self.add("bob", "greet", name="x") and self.run_now()
        self.clock.advance(59)
        self.assertFalse(self.told(row["id"])["slow"])
        self.clock.advance(2)
        self.assertTrue(self.told(row["id"])["slow"])

    def test_few_attempts_make_nothing_slow(self):
        self.know("greet", *[1.0] * 19)
        row = self.add("bob", "greet", name="x") and self.run_now()
        self.clock.advance(1000)
        self.assertFalse(self.told(row["id"])["slow"])


class Queues(ForecastCase):
    def empty_at(self, name="default"):
        queue = self.another_queue()
        return queue.forecast.of_queue(queue.queues.get(name, queue.claims.machine))["empty_at"]

    def test_a_queue_is_empty_when_the_last_has_ended(self):
        self.assertIsNone(self.empty_at())
        self.add_many("bob", 5)
        self.run_now()
        self.check_range(self.empty_at(), 300, 300)
        self.add_many("bob", 1000)
        self.check_range(self.empty_at(), 60 * 1005, 60 * 1005)

    def test_a_long_one_leaves_every_second_turn_to_another(self):
        self.queue.queues.change("post", {}, "ana", new=True)
        self.add_many("bob", 700)
        self.add_many("bob", 700, options={"queue": "post"})
        self.check_range(self.empty_at("post"), 60 * 1400, 60 * 1400)

    def test_a_paused_one_never(self):
        self.add_many("bob", 5)
        self.queue.queues.change("default", {"paused": True}, "ana")
        self.assertIsNone(self.empty_at())


class Workers(ForecastCase):
    def test_a_remote_worker_runs_only_its_functions(self):
        self.queue.queues.change("far", {}, "ana", new=True)
        self.write("UPDATE queue SET external=2 WHERE name='far'")
        token = {"id": 1}
        far = function_json("add", {"a": {"type": "integer"}}, queue="far")
        row = {"session": "0" * 32, "protocol": 1, "machine": "strong", "version": "1", "functions": [far]}
        self.queue.remote.hello(token, row)
        one, other = self.add_many("bob", 2)
        self.write("UPDATE task SET queue='far'")
        self.assertEqual((self.told(one)["before"], self.told(other)["before"]), (0, 1))
        self.check_range(self.told(other)["expected_start"], 60, 60)
        self.know("greet", *[60.0] * 30)
        self.write("UPDATE task SET function='greet' WHERE id=?", (one,))
        told = self.told(one)               # which that worker passes by
        self.assertEqual((told["before"], told["expected_start"]), (0, None))
        self.check_range(self.told(other)["expected_start"], 0, 0)
        self.write("DELETE FROM worker WHERE mode='remote'")
        self.assertIn("remote workers", self.told(other)["reason"])

    def test_cron_comes_again(self):
        self.write("DELETE FROM worker")
        for _ in range(3):
            self.clock.advance(300)
            self.queue.tick_history.record("cron")
        self.change_settings(worker_mode="cron")
        self.clock.advance(100)
        self.check_range(self.told(self.add())["expected_start"], 200, 200)


class Known(ForecastCase):
    def test_the_latest_attempts_are_found_behind_much_else(self):
        self.know("greet", *[600.0] * 20)
        self.know("other", *[1.0] * (10_000))
        self.check_range(self.told(self.add("bob", "greet", name="x"))["expected_end"], 600, 600)

    def test_newer_ones_replace_older_ones(self):
        ask, task_id = self.queue.forecast.of_task, self.add()
        self.check_range(ask(self.queue.tasks.get(task_id))["expected_end"], 60, 60)
        self.know("add", *[600.0] * jobqueue.RUNS_KEPT)
        self.clock.advance(2)
        self.check_range(ask(self.queue.tasks.get(task_id))["expected_end"], 600, 600)

    def test_what_ended_otherwise_says_nothing(self):
        self.know("greet", *[600.0] * 20, event="cancelled")
        self.assertIn("greet", self.told(self.add("bob", "greet", name="x"))["reason"])


class Asked(WebTestCase):
    def setUp(self):
        super().setUp()
        self.change_settings(NbMaxWorker=1, worker_mode="detached")
        ForecastCase.know(self, "add", *[60.0] * 30)
        self.add_many("bob", 3)

    def test_a_task_tells_its_forecast(self):
        self.assertEqual(self.bob.get("/api/tasks/3").json["forecast"]["before"], 2)

    def test_a_list_tells_when_pending_ones_begin_but_not_in_a_new_process(self):
        told = self.bob.get("/api/tasks/3").json["forecast"]["expected_start"]
        self.assertNotIn("expected_start", self.bob.get("/api/tasks").json["tasks"][0])
        self.assertEqual(self.bob.get("/api/tasks?limit=2").json["tasks"][0]["expected_start"], told)

    def test_the_form_asks_before_one_adds(self):
        told = self.bob.get("/api/forecast?function=add").json
        self.assertEqual((told["before"], told["reason"]), (3, None))
        self.assertEqual(self.eve.get("/api/forecast?function=add").json["before"], 2)
        self.assertEqual(self.eve.get("/api/forecast?function=add&priority=-3").json["before"], 3)
        self.assertEqual(self.queue.tasks.count(jobqueue.Filter())["all"], 3)

    def test_a_task_is_foreseen_at_once_though_all_was_looked_at_before_it(self):
        self.bob.get("/api/queues")
        self.add_many("bob", 1)
        told = self.bob.get("/api/tasks/4").json["forecast"]
        self.assertEqual((told["before"], told["reason"]), (3, None))

    def test_every_admin_is_told_of_their_own_turn(self):
        self.queue.users.change("eve", role="admin")
        self.add_many("eve", 3)
        told = [one.get("/api/forecast?function=add").json["before"]
                for one in (self.ana, self.browser("eve"))]
        self.assertEqual(told, [3, 6])

    def test_what_cannot_be_added_is_refused(self):
        for query, status in (("", 400), ("?function=nothing", 400), ("?function=restart", 400),
                              ("?function=add&queue=nowhere", 404)):
            self.assertEqual(self.bob.get("/api/forecast" + query).status, status, query)

    def test_queues_tell_when_they_are_empty(self):
        found = {one["name"]: one["empty_at"] for one in self.bob.get("/api/queues").json["queues"]}
        self.assertIsNotNone(found["default"])
        self.assertIsNone(found["mail"])


if __name__ == "__main__":
    unittest.main()
