"""@task, command, http_request, enqueue, using, and what a running function is told."""

import sys
from datetime import date, datetime, timedelta, timezone
from unittest import mock

import jobqueue
from jobqueue import Fail, JobQueue, RetryAfter, TaskContext, command, current_task, http_request, task
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase, function_json


class InterfaceCase(TestCase):
    def setUp(self):
        super().setUp()
        jobqueue.declared.clear()
        self.addCleanup(jobqueue.declared.clear)
        self.patch(jobqueue, "default_queue", lambda: self.queue)


class TestDeclaring(InterfaceCase):
    def test_a_bare_decorator_gives_the_defaults(self):
        @task
        def report(city):
            """Write it."""
            return city

        self.assertEqual(
            (report.name, report.kind, report.who, report.__doc__), ("report", "python", "user", "Write it.")
        )
        self.assertEqual(report.options, jobqueue.TASK_DEFAULTS)
        self.assertIs(jobqueue.declared["report"], report)

    def test_options_are_taken_and_checked(self):
        @task(max_retries=3, retry_delay=1, queue="slow", who="admin")
        def report():
            pass

        self.assertEqual(
            (report.options["max_retries"], report.options["queue"], report.who), (3, "slow", "admin")
        )
        for wrong, kind in (
            ({"retries": 3}, ValueError),
            ({"max_retries": -1}, ValueError),
            ({"timeout": "long"}, ValueError),
            ({"who": "everyone"}, ValueError),
            ({"queue": "a b"}, ValueError),
            ({"on_crash": "ignore"}, ValueError),
        ):
            with self.subTest(wrong), self.assertRaises(kind):
                task(**wrong)(print)

    def test_a_declared_function_still_runs_here(self):
        @task
        def add(a, b=2):
            return a + b

        self.assertEqual((add(1), add(1, b=5)), (3, 6))

    def test_two_functions_of_one_name_are_refused(self):
        def make():
            @task
            def twice():
                pass

        make()
        with self.assertRaisesRegex(ValueError, "its name is missing"):
            jobqueue.command("", ["ls"])
        with self.assertRaisesRegex(ValueError, "two functions are called twice"):
            make()

    def test_a_command_names_every_place_and_no_other(self):
        function = command(
            "detect",
            [sys.executable, "slow.py", "{latitude}", "--to={to}"],
            latitude=float,
            to="x",
            timeout=5,
        )
        self.assertEqual((function.kind, function.options["timeout"]), ("command", 5))
        self.assertEqual(function.parameters, {"latitude": float, "to": "x"})
        with self.assertRaisesRegex(ValueError, r"\{b\} is no parameter"):
            command("one", ["x", "{b}"], a=int)
        with self.assertRaisesRegex(ValueError, r"\{a\} has no"):
            command("two", ["x"], a=int)

    def test_a_command_is_a_list_and_never_a_line(self):
        with self.assertRaisesRegex(TypeError, "list of texts"):
            command("one", "rm -rf {a}", a=str)
        with self.assertRaises(TypeError):
            command("two", ["x", 5])

    def test_a_command_is_not_run_here(self):
        function = command("detect", ["true"])
        with self.assertRaisesRegex(TypeError, "use .enqueue"):
            function()

    def test_an_http_request_says_where_and_how(self):
        function = http_request(
            "refresh", "post", "https://example.org/{section}", section=str, max_retries=3
        )
        self.assertEqual(function.target["method"], "POST")
        self.assertEqual(function.options["max_retries"], 3)

    def test_only_http_and_a_fixed_host_are_taken(self):
        for address in (
            "file:///srv/secret",
            "ftp://example.org/",
            "example.org",
            "https://{host}/",
            "https://a{b}/",
            "javascript:alert(1)",
            "",
        ):
            with self.subTest(address), self.assertRaises(ValueError):
                http_request("x", "GET", address, host=str, b=str)
        with self.assertRaisesRegex(ValueError, "is no parameter"):
            http_request("x", "GET", "https://example.org/{id}")


class TestEnqueue(InterfaceCase):
    def setUp(self):
        super().setUp()

        @task
        def report(city, month="2026-01", *, detailed=False):
            return city

        self.report = report
        self.declare(
            function_json(
                "report",
                {"city": {"type": "string"}, "month": {"type": "string"}, "detailed": {"type": "boolean"}},
                ["city"],
            ),
            *self.queue.catalogue.functions(),
        )
        self.clock.advance(2)

    def test_arguments_are_given_as_in_a_call(self):
        added = self.report.enqueue("Oslo", detailed=True)
        self.assertEqual(added.arguments, {"city": "Oslo", "detailed": True})
        self.assertEqual((added.status, added.owner, added.function), ("pending", "ana", "report"))

    def test_a_call_that_would_fail_fails_here_and_adds_nothing(self):
        for positional, named in (
            ((), {}),
            (("a", "b", "c"), {}),
            (("a",), {"nonsense": 1}),
            (("a",), {"city": "b"}),
        ):
            with self.assertRaises(TypeError):
                self.report.enqueue(*positional, **named)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_values_become_json(self):
        self.assertEqual(self.report.enqueue("Oslo", month=date(2026, 1, 1)).arguments["month"], "2026-01-01")

    def test_wrong_values_are_refused_by_name(self):
        with self.refused(jobqueue.Invalid, "arguments.city must be a text"):
            self.report.enqueue(5)

    def test_using_changes_options_for_what_is_added_through_it(self):
        slow = self.report.using(priority=5, delay=60).using(queue="slow", owner="bob")
        added = slow.enqueue("Oslo")
        self.assertEqual(
            (added.priority, added.queue, added.status, added.owner), (5, "slow", "scheduled", "bob")
        )
        self.assertEqual(self.report.enqueue("Oslo").priority, 0)

    def test_when_it_is_to_start_may_be_a_datetime_with_its_zone(self):
        at = datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
        self.assertEqual(self.report.using(run_at=at).enqueue("Oslo").run_at, "2030-01-31T10:00:00.000Z")
        with self.refused(jobqueue.Invalid, "run_at"):
            self.report.using(run_at=at.replace(tzinfo=None)).enqueue("Oslo")

    def test_an_unknown_option_or_owner_is_refused(self):
        with self.refused(jobqueue.Invalid, "nonsense"):
            self.report.using(nonsense=1).enqueue("Oslo")
        with self.refused(jobqueue.NotFound, "nobody"):
            self.report.using(owner="nobody").enqueue("Oslo")

    def test_a_chain_is_written_with_then(self):
        first = self.report.enqueue("Oslo")
        second = first.then(self.report, "Bergen", detailed=True)
        third = second.then(self.report.using(after=first, after_failure="run", priority=-3), "Bod\u00f8")
        self.assertEqual((second.after, second.arguments["city"]), ([first.id], "Bergen"))
        self.assertEqual((third.after, third.after_failure), ([first.id, second.id], "run"))
        self.assertEqual((second.status, third.priority), ("waiting", -3))

    def test_what_follows_belongs_to_the_same_owner(self):
        first = self.report.using(owner="bob").enqueue("Oslo")
        self.assertEqual(first.then(self.report, "Bergen").owner, "bob")
        with self.refused(jobqueue.Invalid, "of the same owner"):
            first.then(self.report.using(owner="ana"), "Bergen")

    def test_one_comes_after_a_group(self):
        ids = self.report.enqueue_many([{"city": "Oslo"}, {"city": "Bergen"}])
        more = self.report.enqueue("Troms\u00f8")
        last = self.report.using(after=[*ids, more]).enqueue("all")
        self.assertEqual(last.after, [*ids, more.id])
        self.assertEqual(self.queue.enqueue("add", {"a": 1}, after=more).after, [more.id])
        with self.assertRaises(jobqueue.Invalid):
            self.report.using(after=["Oslo"]).enqueue("x")

    def test_a_unique_key_leads_to_the_task_that_has_it(self):
        nightly = self.report.using(unique_key="nightly")
        self.assertEqual(nightly.enqueue("Oslo").id, nightly.enqueue("Oslo").id)

    def test_many_are_added_at_once_or_not_at_all(self):
        ids = self.report.enqueue_many([{"city": "Oslo"}, {"city": "Bergen"}])
        self.assertEqual(len(ids), 2)
        with self.assertRaises(jobqueue.Invalid):
            self.report.enqueue_many([{"city": "Oslo"}, {"city": 5}])
        with self.refused(jobqueue.Invalid, r"row 2 (index 1): arguments.town"):
            self.report.enqueue_many([{"city": "Oslo"}, {"city": "Oslo", "town": "x"}])
        with self.refused(jobqueue.Invalid, "arguments must be an object"):
            self.report.enqueue_many(["Oslo"])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 2)

    def test_what_was_added_is_told_though_no_worker_can_be_started(self):
        for error, said in ((OSError(24, "Too many open files"), 1), (jobqueue.Busy("busy"), 0)):
            with mock.patch.object(jobqueue.Tick, "maybe", return_value=False), \
                    mock.patch.object(jobqueue.Reaper, "bury_dead", side_effect=error), \
                    mock.patch.object(jobqueue, "complain") as complain:
                self.assertEqual(self.report.enqueue("Oslo").status, "pending")
            self.assertEqual(complain.call_count, said)

    def test_no_tasks_at_all_are_no_error(self):
        self.assertEqual(self.report.enqueue_many([]), [])

    def test_code_may_add_what_nobody_else_may(self):
        self.assertEqual(self.queue.enqueue("cleanup").function, "cleanup")

    def test_the_setting_names_the_owner_of_what_code_adds(self):
        self.change_settings(default_owner="eve")
        self.assertEqual(self.report.enqueue("Oslo").owner, "eve")

    def test_without_an_admin_there_is_no_owner_and_it_says_so(self):
        self.write("UPDATE user SET role='user'")
        with self.refused(jobqueue.SetupError, "There is no admin yet"):
            self.report.enqueue("Oslo")

    def test_the_queue_itself_takes_a_name_and_arguments(self):
        added = self.queue.enqueue("add", {"a": 1}, owner="bob", priority=3)
        self.assertEqual((added.owner, added.priority), ("bob", 3))
        self.assertEqual(len(self.queue.enqueue_many("add", [{"a": 1}, {"a": 2}])), 2)


class TestTask(InterfaceCase):
    def test_it_can_be_refreshed_cancelled_retried_and_deleted(self):
        added = self.queue.enqueue("add", {"a": 1})
        self.assertEqual(added.cancel().status, "cancelled")
        self.assertEqual(added.retry().status, "pending")
        self.run_one(result="3")
        self.assertEqual((added.status, added.refresh().status, added.result), ("pending", "succeeded", 3))
        self.assertTrue(added.is_finished)
        added.delete()
        with self.assertRaises(jobqueue.NotFound):
            added.refresh()

    def test_waiting_ends_with_the_task(self):
        added = self.queue.enqueue("add", {"a": 1})
        sleeps = []

        def sleep(seconds):
            self.clock.advance(seconds)
            sleeps.append(seconds)
            if len(sleeps) == 5:
                self.run_one(result="3")

        with mock.patch.object(self.clock, "sleep", sleep):
            self.assertEqual(added.wait().result, 3)

    def test_waiting_has_an_end(self):
        added = self.queue.enqueue("add", {"a": 1})
        with self.assertRaisesRegex(TimeoutError, "is still pending"):
            added.wait(timeout=5)

    def test_waiting_ticks_in_passing(self):
        added = self.queue.enqueue("add", {"a": 1}, delay=3)
        with self.assertRaises(TimeoutError):
            added.wait(timeout=10)
        self.assertEqual(added.refresh().status, "pending")

    def test_an_unknown_attribute_is_an_attribute_error(self):
        with self.assertRaises(AttributeError):
            getattr(self.queue.enqueue("add", {"a": 1}), "nonsense")

    def test_it_says_what_it_is(self):
        added = self.queue.enqueue("add", {"a": 1}).refresh()
        self.assertEqual(repr(added), "<Task %d pending>" % added.id)

    def test_a_task_that_is_missing_is_not_found(self):
        with self.assertRaises(jobqueue.NotFound):
            self.queue.get(99)


class TestInsideATask(InterfaceCase):
    def setUp(self):
        super().setUp()
        self.reports, self.requests = [], []
        self.context = TaskContext(
            7, "bob", 2, 1, "token", self.folder / "data", lambda *values: self.reports.append(values),
            self.enqueue
        )
        TaskContext.running = self.context
        self.addCleanup(setattr, TaskContext, "running", None)

    def enqueue(self, requests):
        self.requests += requests
        return jobqueue.Added(list(range(100, 100 + len(requests))), len(requests))

    def test_a_function_is_told_its_task(self):
        context = current_task()
        self.assertEqual(
            (context.id, context.owner, context.attempt, context.crashes, context.claim),
            (7, "bob", 2, 1, "token"),
        )

    def test_outside_there_is_none(self):
        TaskContext.running = None
        self.assertIsNone(current_task())

    def test_progress_is_a_part_of_the_whole(self):
        current_task().progress(1, 4, "reading")
        current_task().progress(9, 3)
        current_task().progress(0.5)
        current_task().progress(1, 0)
        self.assertEqual(self.reports, [(0.25, "reading"), (1.0, None), (0.5, None), (None, None)])

    def test_its_folder_is_made_when_asked_for(self):
        self.assertFalse(list((self.folder / "data").glob("work*")))
        self.assertTrue(current_task().folder.is_dir())
        self.assertEqual(current_task().folder.stat().st_mode & 0o777, 0o700)

    def test_what_it_adds_belongs_to_its_owner(self):
        self.queue.enqueue("add", {"a": 1}, owner="bob")
        with self.refused(jobqueue.Invalid, "cannot be chosen inside a task"):
            self.queue.enqueue("add", {"a": 1}, owner="eve")
        self.assertEqual(len(self.requests), 1)

    def test_adding_goes_through_the_worker(self):
        @task
        def other(n):
            pass

        added = other.using(priority=-5).enqueue(3)
        self.assertEqual(added.id, 100)
        self.assertEqual(self.requests, [{"function": "other", "arguments": {"n": 3}, "priority": -5}])
        self.assertEqual(other.enqueue_many([{"n": 1}, {"n": 2}]), [100, 101])

    def test_a_chain_inside_a_task_names_ids(self):
        @task
        def other(n):
            pass

        first = other.enqueue(1)
        other.using(after=[first, 5], unique_key="k").enqueue(2)
        self.queue.enqueue("add", {"a": 1}, after=first)
        first.then(other, 3)
        self.assertEqual([request.get("after") for request in self.requests], [None, [100, 5], [100], [100]])

    def test_a_queue_object_inside_a_task_does_the_same(self):
        self.queue.enqueue("add", {"a": 1})
        self.assertEqual(self.requests, [{"function": "add", "arguments": {"a": 1}}])

    def test_waiting_for_a_task_inside_a_task_raises(self):
        @task
        def other():
            pass

        with self.assertRaisesRegex(RuntimeError, "must not wait"):
            other.enqueue().wait()

    def test_its_status_cannot_be_asked_for_inside_a_task(self):
        @task
        def other():
            pass

        added = other.enqueue()
        with self.assertRaisesRegex(AttributeError, "known by their id only"):
            self.assertEqual(added.status, "pending")
        self.assertEqual((hasattr(added, "x"), repr(added)), (False, "<Task %d>" % added.id))

    def test_how_to_fail_for_good_and_when_to_try_again(self):
        self.assertTrue(issubclass(Fail, Exception))
        self.assertEqual(RetryAfter(5).seconds, 5.0)
        self.assertEqual(str(RetryAfter(5, "later")), "later")


class TestDefaultQueue(TestCase):
    def test_every_process_opens_its_own(self):
        with mock.patch.object(jobqueue, "JobQueue") as made, mock.patch.dict(jobqueue._opened, clear=True):
            first = jobqueue.default_queue()
            self.assertIs(jobqueue.default_queue(), first)
            with mock.patch("os.getpid", return_value=-1):
                jobqueue.default_queue()
        self.assertEqual(made.call_count, 2)

    @about_sqlite("a folder is all that is needed")
    def test_a_queue_object_is_made_for_a_folder(self):
        queue = JobQueue(self.folder / "data", self.clock, environment={})
        self.addCleanup(queue.close)
        self.assertEqual(queue.database.path, self.database.path)
