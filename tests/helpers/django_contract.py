"""What Django documents of its tasks, tried on jobqueue.DjangoBackend in one process of a Django project.

test_django.py copies this file into a DjangoSite and runs it there, with the Python of each Django. It needs
nothing but Django and that project. A worker of the site, at most one, runs the tasks.
"""
import asyncio
import contextlib
import datetime
import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")

import django

django.setup()

from blog import letters, tasks  # noqa: E402
from django.core.checks import run_checks  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

import jobqueue  # noqa: E402

try:
    import django.tasks as interface
except ImportError:
    import django_tasks as interface
exceptions = importlib.import_module(interface.__name__ + ".exceptions")
signals = importlib.import_module(interface.__name__ + ".signals")


def named(place, *names):
    """The first attribute of these names that there is: versions differ."""
    return next(getattr(place, name) for name in names if hasattr(place, name))


Status = named(interface, "TaskResultStatus", "ResultStatus")
READY, RUNNING, FAILED = Status.READY, Status.RUNNING, Status.FAILED
SUCCESSFUL = named(Status, "SUCCESSFUL", "SUCCEEDED")
InvalidTask = named(exceptions, "InvalidTask", "InvalidTaskError")
DoesNotExist = named(exceptions, "TaskResultDoesNotExist", "ResultDoesNotExist")
Mismatch = named(exceptions, "TaskResultMismatch", "ResultDoesNotExist")
backends = named(interface, "task_backends", "tasks")
IS_OLD = not hasattr(exceptions, "TaskResultMismatch")      # django-tasks before 0.9
HERE = Path(__file__).resolve().parent
ONCE = ["task_enqueued", "task_started", "task_finished"]
VALUE_ERROR = "builtins.ValueError"
READ = '''
import json, sys
from blog import tasks
shown = []
for key in json.load(sys.stdin):
    result = tasks.default_task_backend.get_result(key)
    shown.append([result.id, result.status.value, result.args, result.kwargs, str(result.enqueued_at),
                  result.task.module_path, result.task.priority, result.task.queue_name,
                  result._return_value])
print(json.dumps(shown))
'''


def queue():
    """Our queue in this process."""
    return jobqueue.default_queue()


@contextlib.contextmanager
def paused():
    """In this block no task of the queue `default` begins."""
    queue().queues.change("default", {"paused": True}, "test")
    try:
        yield
    finally:
        queue().queues.change("default", {"paused": False}, "test")
        queue().start_workers()


def until(condition, what, seconds=60):
    """Wait until `condition()` is true, and return what it returned."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("%s did not come true within %d s" % (what, seconds))


def ended(result, seconds=60):
    """Wait for the end of a task; its result."""
    def look():
        result.refresh()
        return result.is_finished
    until(look, "the end of %r" % (result,), seconds)
    return result


def number_of(result):
    """The number that the task has in our queue."""
    return int(result.id.partition("-")[0])


def soon(**duration):
    """A moment that follows in so much time."""
    return timezone.now() + datetime.timedelta(**duration)


def once_more(**options):
    """The options of a task that is tried again at once."""
    return {"max_retries": 3, "retry_delay": 0, **options}


def sent(result):
    """What the receivers of signals wrote about a task; the process that adds it may be the slower one."""
    lines = map(json.loads, (HERE / "signals").read_text().splitlines())
    return sorted((line for line in lines if line["id"] == result.id),
                  key=lambda line: line["signal"] != "task_enqueued")


class Contract(unittest.TestCase):
    maxDiff = None

    def equal(self, first, second):
        """Two results are equal, field by field."""
        self.assertEqual(first.task, second.task)
        self.assertEqual(first, second)

    def invalid(self, words, make, *args, **kwargs):
        """Making a task is refused."""
        with self.assertRaises(InvalidTask) as caught:
            make(*args, **kwargs)
        self.assertIn(words, str(caught.exception))


class Backend(Contract):
    def test_it_supports_everything(self):
        backend = backends["default"]
        for name in ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority"):
            self.assertIs(getattr(backend, name), True, name)
        self.assertEqual(backend.alias, "default")
        self.assertEqual(backend.queues, {"default", "mail"})
        self.assertIsInstance(backend, jobqueue.DjangoBackend)
        self.assertEqual(type(backend).__name__, "DjangoBackend")

    def test_a_task_is_still_a_function_and_has_djangos_fields(self):
        self.assertEqual(tasks.add.call(1, b=5), 6)
        self.assertEqual(tasks.add.func(1, 5), 6)
        self.assertEqual(asyncio.run(tasks.mail.acall("me")), "to me")
        self.assertEqual((tasks.mail.priority, tasks.mail.queue_name, tasks.mail.backend),
                         (10, "mail", "default"))
        self.assertEqual((tasks.add.name, tasks.add.module_path), ("add", "blog.tasks.add"))
        self.assertIs(tasks.flaky.takes_context, True)
        self.assertIs(tasks.add.get_backend(), backends["default"])

    def test_another_alias_is_another_backend(self):
        task = tasks.add.using(backend="second", queue_name="anything")
        with paused():
            result = task.enqueue(1)
            self.assertEqual((result.backend, result.task.queue_name), ("second", "anything"))
            self.assertEqual(ended(result).return_value, 3)
        self.equal(result, task.get_result(result.id))
        self.assertEqual(tasks.add.get_result(result.id).task.queue_name, "anything")
        seen = ended(tasks.flaky.using(backend="second", queue_name="anything", priority=5).enqueue(1))
        self.assertEqual((seen.return_value["queue"], seen.return_value["priority"]), ("anything", 5))

    def test_the_owner_is_an_option(self):
        options = {"default": {"BACKEND": "jobqueue.DjangoBackend", "OPTIONS": {"owner": "ana"}}}
        with override_settings(TASKS=options):
            result = tasks.add.enqueue(1)
        self.assertEqual(ended(result).return_value, 3)
        options["default"]["OPTIONS"]["owner"] = "nobody else"
        with override_settings(TASKS=options), self.assertRaises(jobqueue.JobQueueError):
            tasks.add.enqueue(1)


class Enqueue(Contract):
    def test_a_new_result_is_ready_and_has_the_arguments(self):
        before = timezone.now()
        with paused():
            result = tasks.add.enqueue(1, b=5)
            after = timezone.now()
            self.assertEqual((result.status, result.args, result.kwargs), (READY, [1], {"b": 5}))
            self.assertTrue(timezone.is_aware(result.enqueued_at))
            slack = datetime.timedelta(seconds=1)       # times of PostgreSQL are those of its server
            self.assertTrue(before - slack <= result.enqueued_at <= after + slack)
            self.assertEqual((result.started_at, result.last_attempted_at, result.finished_at),
                             (None, None, None))
            self.assertEqual((result.errors, result.worker_ids, result.attempts), ([], [], 0))
            self.assertEqual((result.backend, result.is_finished), ("default", False))
            self.assertEqual(result.task, tasks.add)
            self.assertIsInstance(result.id, str)
            self.assertLessEqual(len(result.id), 64)
            with self.assertRaisesRegex(ValueError, "not finished"):
                result.return_value     # noqa: B018

    def test_what_is_read_equals_what_was_enqueued(self):
        with paused():
            variants = [
                tasks.add.enqueue(1, b=5),
                tasks.add.using(priority=-7).enqueue(a=1),
                tasks.mail.using(run_after=soon(hours=2)).enqueue("me"),
                tasks.mail.using(run_after=timezone.now() - datetime.timedelta(days=1)).enqueue("me"),
                tasks.add.using(queue_name="mail", priority=100, run_after=datetime.datetime(
                    2090, 1, 1, 12, 30, 15, 123456, datetime.timezone(datetime.timedelta(hours=5)))
                    ).enqueue(1),
                tasks.add.using(max_retries=3, unique_key=os.urandom(4).hex()).enqueue(1),
                tasks.flaky.enqueue(1),
                letters.write.enqueue("me", text="hello"),
            ]
            for result in variants:
                with self.subTest(result.task):
                    if result.task.queue_name == "default":
                        self.equal(result, result.task.get_result(result.id))
                        self.equal(result, backends["default"].get_result(result.id))
                    else:               # that queue is not paused
                        self.assertEqual(result.task, result.task.get_result(result.id).task)
        for result in variants:
            queue().actions.act_on("cancel", [number_of(result)])

    def test_ids_are_unequal_and_tell_nothing_of_others(self):
        with paused():
            results = [tasks.nothing.enqueue() for _ in range(20)]
        ids = [result.id for result in results]
        self.assertEqual(len(set(ids)), 20)
        endings = [key.partition("-")[2] for key in ids]
        self.assertEqual(len(set(endings)), 20)
        for one, other in zip(ids, ids[1:]):
            guess = "%d-%s" % (int(other.partition("-")[0]), one.partition("-")[2])
            with self.assertRaises(DoesNotExist):
                backends["default"].get_result(guess)
        self.assertTrue(all(len(ending) >= 20 for ending in endings))

    def test_coroutines_add_and_read(self):
        async def work():
            result = await tasks.add.aenqueue(4, b=1)
            same = await tasks.add.aget_result(result.id)
            again = await backends["default"].aget_result(result.id)
            late = await backends["default"].aenqueue(tasks.add, [5], {"b": 2})
            with self.assertRaises(DoesNotExist):
                await tasks.add.aget_result("1-nothing")
            with self.assertRaises(Mismatch):
                await tasks.echo.aget_result(result.id)
            for one in (result, late):
                while not one.is_finished:
                    await asyncio.sleep(0.01)
                    await one.arefresh()
            return result, same, again, late
        result, same, again, late = asyncio.run(work())
        self.assertEqual((same.id, again.id), (result.id, result.id))
        self.assertEqual((result.return_value, late.return_value), (5, 7))
        many = asyncio.run(self.at_once())
        self.assertEqual(len({result.id for result in many}), 10)

    async def at_once(self):
        return await asyncio.gather(*(tasks.add.aenqueue(number) for number in range(10)))

    def test_threads_add_and_read(self):
        def work(number):
            result = tasks.add.enqueue(number, b=0)
            return tasks.add.get_result(result.id) and result
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(40)))
        self.assertEqual([ended(result).return_value for result in results], list(range(40)))

    def test_a_fork_adds_and_reads(self):
        first = tasks.add.enqueue(1)
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                second = tasks.add.enqueue(first.args[0] + 1)
                os.write(writer, (second.id + " " + tasks.add.get_result(first.id).id).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as file:
            second, same = file.read().split()
        os.wait()
        self.assertEqual(same, first.id)
        self.assertEqual(ended(tasks.add.get_result(second)).return_value, 4)

    def test_the_backend_itself_adds_and_reads(self):
        result = backends["default"].enqueue(tasks.add, (2,), {"b": 3})
        self.assertEqual((result.args, result.kwargs), ([2], {"b": 3}))
        self.assertEqual(ended(result).return_value, 5)

    def test_another_process_reads_it(self):
        with paused():
            results = [tasks.add.enqueue(1, b=5),
                       tasks.add.using(priority=9).enqueue(a=2), tasks.echo.enqueue("é\u2028", x=[None])]
        results.append(ended(tasks.add.enqueue(3)))
        for result in results:
            ended(result)
        done = subprocess.run([sys.executable, "-c", "import django; django.setup()\n" + READ],
                              cwd=HERE, input=json.dumps([result.id for result in results]),
                              stdout=subprocess.PIPE, encoding="utf-8", check=True)
        self.assertEqual(json.loads(done.stdout), [
            [one.id, one.status.value, one.args, one.kwargs, str(one.enqueued_at), one.task.module_path,
             one.task.priority, one.task.queue_name, one.return_value] for one in results])

    def test_a_unique_key_leads_to_the_unfinished_task(self):
        key = os.urandom(8).hex()
        with paused():
            first = tasks.add.using(unique_key=key).enqueue(1)
            second = tasks.add.using(unique_key=key).enqueue(2)
            self.equal(first, second)
        ended(first)
        third = tasks.add.using(unique_key=key).enqueue(3)
        self.assertNotEqual(first.id, third.id)
        self.assertEqual(len([line for line in sent(first) if line["signal"] == "task_enqueued"]), 1)

    def test_a_task_of_another_module_is_added_and_runs(self):
        done = ended(letters.write.enqueue("ana", text="hi"))
        self.assertEqual(done.return_value, "ana: hi")
        failed = ended(letters.write.enqueue("ana"))
        self.assertIs(failed.errors[0].exception_class, letters.Unwritten)

    def test_a_task_whose_name_is_not_its_functions_name(self):
        result = ended(tasks.renamed.enqueue())
        self.assertEqual(result.return_value, "found")
        self.assertEqual(tasks.renamed.get_result(result.id).task, tasks.renamed)


class Arguments(Contract):
    def run_as(self, task, /, *args, **kwargs):
        result = task.enqueue(*args, **kwargs)
        self.assertEqual((result.args, result.kwargs), (list(args), kwargs))
        ended(result)
        self.assertEqual(result.status, SUCCESSFUL, result.errors)
        read = task.get_result(result.id)
        self.assertEqual((read.args, read.kwargs), (list(args), kwargs))
        return result.return_value

    def test_every_kind_of_parameter(self):
        shape = tasks.shape
        self.assertEqual(self.run_as(shape, 1, named="n"), [1, 2, 3, [], "n", 5, {}])
        self.assertEqual(self.run_as(shape, 1, 7, named="n", third=8), [1, 7, 8, [], "n", 5, {}])
        self.assertEqual(self.run_as(shape, 1, 7, 8, 9, 10, named="n", other=0, more=1, x={"y": [2]}),
                         [1, 7, 8, [9, 10], "n", 0, {"more": 1, "x": {"y": [2]}}])
        self.assertEqual(self.run_as(shape, 1, 7, 8, named=None, task=1, function=2, args=3, context=4),
                         [1, 7, 8, [], None, 5, {"task": 1, "function": 2, "args": 3, "context": 4}])
        self.assertEqual(self.run_as(tasks.plain, first=1), [1, 2, []])
        self.assertEqual(self.run_as(tasks.plain, 1, second=4), [1, 4, []])
        self.assertEqual(self.run_as(tasks.plain, second=4, first=1), [1, 4, []])
        self.assertEqual(self.run_as(tasks.plain, 1, 2, 3, 4), [1, 2, [3, 4]])
        self.assertEqual(self.run_as(tasks.plain, [1, 2], {"a": None}), [[1, 2], {"a": None}, []])
        self.assertEqual(self.run_as(tasks.echo), {"args": [], "kwargs": {}})
        self.assertEqual(self.run_as(tasks.echo, 1, 2, a=3), {"args": [1, 2], "kwargs": {"a": 3}})
        self.assertEqual(self.run_as(tasks.echo, a=3, b=4), {"args": [], "kwargs": {"a": 3, "b": 4}})
        self.assertEqual(self.run_as(tasks.echo, kwargs={"a": 1}), {"args": [], "kwargs": {
            "kwargs": {"a": 1}}})
        self.assertEqual(self.run_as(tasks.add, True, b=-0.5), 0.5)

    def test_names_that_are_those_of_positional_parameters(self):
        """Such a call runs exactly as it was made, or it is refused when it is made."""
        for task, args, kwargs in ((tasks.echo, [], {"args": [1, 2]}), (tasks.echo, [1], {"args": 2}),
                                   (tasks.echo, [], {"args": 2}),
                                   (tasks.shape, [1], {"named": 0, "first": 2}),
                                   (tasks.shape, [1], {"named": 0, "second": 2}),
                                   (tasks.shape, [1], {"named": 0, "rest": [2]}),
                                   (tasks.shape, [1], {"named": 0, "*": 5})):
            with self.subTest(task.name, args=args, kwargs=kwargs):
                try:
                    result = task.enqueue(*args, **kwargs)
                except TypeError:
                    continue
                self.assertEqual((result.args, result.kwargs), (args, kwargs))
                self.assertEqual(ended(result).status, SUCCESSFUL, result.errors)
                self.assertEqual(result.return_value, task.call(*args, **kwargs))

    def test_a_call_that_does_not_fit_is_refused(self):
        before = queue().database.value("SELECT max(id) FROM task")
        for task, args, kwargs in ((tasks.add, [], {}), (tasks.add, [1, 2, 3], {}),
                                   (tasks.add, [1], {"c": 2}), (tasks.add, [1], {"a": 1}),
                                   (tasks.shape, [1], {}),
                                   (tasks.shape, [], {"first": 1, "named": 2}),
                                   (tasks.flaky, [], {}), (tasks.flaky, [2], {"context": 1}),
                                   (tasks.nothing, [1], {}), (tasks.mail, [], {"from": "me"})):
            with self.subTest(task.name, args=args, kwargs=kwargs):
                with self.assertRaises(TypeError):
                    task.enqueue(*args, **kwargs)
                with self.assertRaises(TypeError):
                    asyncio.run(task.aenqueue(*args, **kwargs))
        self.assertEqual(queue().database.value("SELECT max(id) FROM task"), before)

    def test_values_are_json(self):
        for given, kept in (((1, (2, 3)), [1, [2, 3]]), ("", ""), ({}, {}),
                            ({1: "a", 2: {3: None}}, {"1": "a", "2": {"3": None}}),
                            ("é\u2028\x00\U0001f600", "é\u2028\x00\U0001f600"), (2 ** 53, 2 ** 53),
                            (-1.5e300, -1.5e300), ([[[[[]]]]], [[[[[]]]]]),
                            ({"*": 1, "$": [True]}, {"*": 1, "$": [True]}), ("f_" + "0" * 32,) * 2):
            with self.subTest(given):
                result = tasks.give.enqueue(given)
                self.assertEqual(result.args, [kept])
                self.assertEqual(ended(result).return_value, kept)
                self.assertEqual(tasks.give.get_result(result.id).args, [kept])
                named = tasks.give.enqueue(value=given)
                self.assertEqual(named.kwargs, {"value": kept})
                self.assertEqual(ended(named).return_value, kept)

    def test_bytes_are_as_this_django_has_them(self):
        if IS_OLD:                      # its interface knows no bytes
            for value in (b"text", b"\xff"):
                with self.assertRaises(TypeError):
                    tasks.give.enqueue(value)
        else:
            self.assertEqual(ended(tasks.give.enqueue(b"t\xc3\xa9xt")).return_value, "téxt")
            with self.assertRaises(ValueError):
                tasks.give.enqueue(b"\xff")

    def test_what_json_cannot_hold_is_refused(self):
        for value in (object(), {1, 2}, timezone.now(), datetime.timedelta(1), 1j, tasks.add, Path("x"),
                      [object()], {"a": object()}):
            with self.subTest(repr(value)):
                with self.assertRaises(TypeError):
                    tasks.give.enqueue(value)
                with self.assertRaises(TypeError):
                    tasks.give.enqueue(value=value)

    def test_numbers_that_are_no_json_are_refused_or_kept(self):
        for value in (float("nan"), float("inf")):
            with self.subTest(value), self.assertRaises((TypeError, ValueError)):
                tasks.give.enqueue(value)

    def test_arguments_that_change_after_the_call_stay_as_they_were(self):
        value = [1]
        with paused():
            result = tasks.give.enqueue(value)
            value.append(2)
            self.assertEqual(result.args, [[1]])
        self.assertEqual(ended(result).return_value, [1])


class Running(Contract):
    def test_a_value_comes_back(self):
        result = ended(tasks.add.enqueue(1, b=5))
        self.assertEqual((result.status, result.return_value, result.errors), (SUCCESSFUL, 6, []))
        self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
        self.assertTrue(all(isinstance(name, str) and name for name in result.worker_ids))
        self.assertTrue(result.is_finished)
        none = ended(tasks.nothing.enqueue())
        self.assertEqual((none.status, none.return_value), (SUCCESSFUL, None))
        self.equal(result, tasks.add.get_result(result.id))

    def test_times_are_in_order(self):
        for result in (tasks.add.enqueue(1), tasks.fail.enqueue("odd"),
                       tasks.flaky.using(**once_more()).enqueue(3)):
            ended(result)
            times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
            self.assertTrue(all(map(timezone.is_aware, times)))
            self.assertEqual(times, sorted(times))
            self.assertEqual(result.started_at < result.last_attempted_at, result.attempts > 1)

    def test_the_context_knows_the_attempt_and_the_result(self):
        result = tasks.flaky.using(priority=4).enqueue(1)
        seen = ended(result).return_value
        self.assertEqual((seen["attempt"], seen["id"], seen["status"]), (1, result.id, "RUNNING"))
        self.assertEqual((seen["args"], seen["kwargs"], seen["workers"]), ([1], {}, result.worker_ids))
        self.assertEqual((seen["path"], seen["priority"], seen["queue"], seen["backend"]),
                         ("blog.tasks.flaky", 4, "default", "default"))
        self.assertEqual((seen["errors"], seen["is_finished"]), ([], False))
        enqueued, started, attempted, finished = seen["times"]
        self.assertEqual(enqueued, result.enqueued_at.isoformat())
        self.assertTrue(enqueued <= started <= attempted)
        self.assertIsNone(finished)

    def test_the_second_attempt_knows_the_error_of_the_first(self):
        for kind, name in (("odd", "Odd"), ("value", "ValueError"), ("chained", "Odd"), ("quoting", "Odd"),
                           ("django", "TransactionManagementError"), ("long", tasks.LONG)):
            with self.subTest(kind):
                result = ended(tasks.flaky.using(**once_more()).enqueue(3, kind=kind))
                self.assertEqual(result.status, SUCCESSFUL, result.errors)
                seen = result.return_value
                self.assertEqual((seen["attempt"], result.attempts, len(seen["workers"])), (3, 3, 3))
                self.assertEqual([error[0] for error in seen["errors"]], [name, name])
                for number, (_, trace) in enumerate(seen["errors"], 1):
                    self.assertIn("Traceback (most recent call last)", trace)
                    self.assertIn("attempt %d\nof 3" % number, trace)
                    self.assertNotIn("attempt %d fails" % number, trace)
                self.assertTrue(seen["times"][1] < seen["times"][2])
                self.assertEqual(len(result.errors), 2)
                self.assertEqual(result.errors[0].exception_class.__name__, name)

    @unittest.skipIf(sys.version_info < (3, 11), "no exception groups")
    def test_an_exception_group_in_an_earlier_attempt(self):
        result = ended(tasks.flaky.using(**once_more()).enqueue(2, kind="group"))
        self.assertEqual(result.status, SUCCESSFUL, result.errors)
        self.assertEqual([error[0] for error in result.return_value["errors"]], ["ExceptionGroup"])

    def test_between_two_attempts_it_is_ready_and_the_same_task(self):
        task = tasks.flaky.using(max_retries=1, retry_delay=3600)
        first = task.enqueue(2)
        result = task.get_result(first.id)

        def look():
            result.refresh()
            return result.errors
        until(look, "the first error")
        read = task.get_result(first.id)
        self.assertEqual((read.status, read.attempts, read.finished_at), (READY, 1, None))
        self.assertEqual(read.errors[0].exception_class, tasks.Odd)
        self.assertEqual(read.task, first.task)
        self.assertIsNone(read.task.run_after)
        queue().actions.cancel(number_of(first))

    def test_it_is_running_while_it_runs(self):
        name = "held-" + os.urandom(4).hex()
        result = tasks.wait_for.enqueue(name)
        until((HERE / (name + ".began")).exists, "its beginning")
        result.refresh()
        self.assertEqual((result.status, result.is_finished, result.finished_at), (RUNNING, False, None))
        self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
        self.assertLessEqual(result.started_at, timezone.now())
        with self.assertRaisesRegex(ValueError, "not finished"):
            result.return_value         # noqa: B018
        (HERE / name).touch()
        self.assertEqual(ended(result).return_value, [1, []])

    def test_a_failed_task_has_class_and_traceback(self):
        for kind, path, words in (("odd", "blog.tasks.Odd", "it failed"),
                                  ("value", "builtins.ValueError", "it failed"),
                                  ("django", "django.db.transaction.TransactionManagementError", "it failed"),
                                  ("fatal", "jobqueue.Fail", "it failed"),
                                  ("exit", "builtins.SystemExit", "SystemExit: 3"),
                                  ("quoting", "blog.tasks.Odd", "it failed"),
                                  ("unprintable", "blog.tasks.Unprintable", "Unprintable"),
                                  ("long", "blog.tasks." + tasks.LONG, "it failed"),
                                  ("chained", "blog.tasks.Odd", "direct cause")):
            with self.subTest(kind):
                result = ended(tasks.fail.enqueue(kind))
                self.assertEqual((result.status, result.attempts), (FAILED, 1))
                [error] = result.errors
                self.assertEqual(error.exception_class_path, path)
                self.assertEqual(error.exception_class.__name__, path.rpartition(".")[2])
                self.assertTrue(error.traceback.startswith("Traceback (most recent call last)"))
                self.assertIn(words, error.traceback)
                self.assertIn("tasks.py", error.traceback)
                with self.assertRaisesRegex(ValueError, "failed"):
                    result.return_value     # noqa: B018
                self.assertLessEqual(result.started_at, result.finished_at)

    def test_a_nested_class_has_its_whole_path(self):
        result = ended(tasks.fail.enqueue("nested"))
        self.assertEqual(result.errors[0].exception_class_path, "blog.tasks.Outer.Inner")
        twice = ended(tasks.flaky.using(**once_more(max_retries=1)).enqueue(9, kind="nested"))
        self.assertEqual([error.exception_class_path for error in twice.errors],
                         ["blog.tasks.Outer.Inner"] * 2)

    def test_each_attempt_has_its_error(self):
        result = ended(tasks.flaky.using(**once_more(max_retries=2)).enqueue(9))
        self.assertEqual((result.status, result.attempts, len(result.errors)), (FAILED, 3, 3))
        for number, error in enumerate(result.errors, 1):
            self.assertIs(error.exception_class, tasks.Odd)
            self.assertIn("attempt %d\n" % number, error.traceback)

    def test_an_error_that_asks_for_another_attempt_gets_one(self):
        result = ended(tasks.later.enqueue())
        self.assertEqual((result.status, result.return_value, result.attempts), (SUCCESSFUL, "done", 2))
        self.assertIs(result.errors[0].exception_class, jobqueue.RetryAfter)
        self.assertEqual([line["signal"] for line in sent(result)],
                         ["task_enqueued", "task_started", "task_started", "task_finished"])

    def test_a_cancelled_task_has_failed(self):
        with paused():
            result = tasks.add.enqueue(1)
            queue().actions.cancel(number_of(result))
        result.refresh()
        self.assertEqual((result.status, result.attempts, result.started_at), (FAILED, 0, None))
        self.assertTrue(result.is_finished)
        self.assertIs(result.errors[-1].exception_class, asyncio.CancelledError)
        self.assertLessEqual(result.enqueued_at, result.finished_at)
        with self.assertRaisesRegex(ValueError, "failed"):
            result.return_value         # noqa: B018

    def test_a_running_task_is_cancelled(self):
        name = "stopped-" + os.urandom(4).hex()
        result = tasks.wait_for.enqueue(name)
        until((HERE / (name + ".began")).exists, "its beginning")
        queue().actions.cancel(number_of(result))
        self.assertEqual((ended(result).status, result.attempts), (FAILED, 1))
        self.assertIs(result.errors[-1].exception_class, asyncio.CancelledError)

    def test_a_language_and_a_zone_last_for_one_task(self):
        first, second = tasks.choose.enqueue("de"), tasks.choose.enqueue("fr")
        self.assertEqual(ended(first).return_value, ended(second).return_value)
        self.assertEqual(first.return_value[0], "en-us")

    def test_a_timeout_is_an_error(self):
        result = ended(tasks.wait_for.using(timeout=1).enqueue("never"))
        self.assertEqual(result.status, FAILED)
        self.assertIs(result.errors[0].exception_class, TimeoutError)

    def test_a_value_that_is_no_json_fails_for_good(self):
        result = ended(tasks.thing.using(**once_more()).enqueue())
        self.assertEqual((result.status, result.attempts), (FAILED, 1))
        self.assertIs(result.errors[0].exception_class, TypeError)
        self.assertEqual(len([line for line in sent(result) if line["signal"] == "task_started"]), 1)

    def test_retrying_by_hand_makes_it_ready_again(self):
        result = ended(tasks.fail.enqueue("odd"))
        with paused():
            queue().actions.retry(number_of(result))
            result.refresh()
            self.assertEqual((result.status, result.finished_at, result.is_finished), (READY, None, False))
            self.assertEqual((result.attempts, len(result.errors)), (1, 1))
            self.assertEqual(tasks.fail.get_result(result.id).task, tasks.fail)
        ended(result)
        self.assertEqual((result.status, result.attempts, len(result.errors)), (FAILED, 2, 2))

    def test_async_tasks_run(self):
        self.assertEqual(ended(tasks.mail.enqueue(to="me")).return_value, "to me")
        failed = ended(tasks.fail_later.enqueue())
        self.assertIs(failed.errors[0].exception_class, tasks.Odd)

    def test_async_tasks_use_the_database(self):
        count, names = ended(tasks.count_later.enqueue()).return_value
        self.assertEqual(count, len(names))
        self.assertLessEqual(ended(tasks.count.enqueue()).return_value - count, 2)


class Options(Contract):
    def test_using_changes_a_copy(self):
        moment = soon(hours=1)
        task = tasks.add.using(priority=5, queue_name="mail", run_after=moment, backend="second")
        self.assertEqual((task.priority, task.queue_name, task.run_after, task.backend),
                         (5, "mail", moment, "second"))
        self.assertEqual((tasks.add.priority, tasks.add.queue_name, tasks.add.run_after, tasks.add.backend),
                         (0, "default", None, "default"))
        self.assertEqual(task.func, tasks.add.func)
        self.assertNotEqual(task, tasks.add)
        self.assertEqual(tasks.add.using(), tasks.add)
        again = task.using(priority=6, max_retries=2).using(priority=7)
        self.assertEqual((again.priority, again.max_retries, again.queue_name), (7, 2, "mail"))

    def test_larger_priorities_run_first(self):
        (HERE / "order").unlink(missing_ok=True)
        with paused():
            results = [tasks.order.using(priority=priority).enqueue("%d" % priority)
                       for priority in (0, -100, 50, 100, -1, 7, 0, 50)]
        for result in results:
            ended(result)
        self.assertEqual((HERE / "order").read_text().split(),
                         ["100", "50", "50", "7", "0", "0", "-1", "-100"])

    def test_many_quick_tasks_run_once_each(self):
        name = os.urandom(4).hex()
        with paused():
            results = [tasks.order.enqueue("%s-%d" % (name, number)) for number in range(100)]
        self.assertEqual({ended(result).status for result in results}, {SUCCESSFUL})
        ran = [line for line in (HERE / "order").read_text().split() if line.startswith(name)]
        self.assertEqual(ran, ["%s-%d" % (name, number) for number in range(100)])
        self.assertEqual([[line["signal"] for line in sent(result)] for result in results], [ONCE] * 100)

    def test_a_deferred_task_runs_later(self):
        moment = soon(seconds=1.5)
        result = tasks.flaky.using(run_after=moment).enqueue(1)
        far = tasks.add.using(run_after=soon(days=400)).enqueue(1)
        self.assertEqual((result.status, result.task.run_after), (READY, moment))
        self.assertEqual(tasks.flaky.get_result(result.id).task.run_after, moment)
        self.assertGreaterEqual(ended(result).started_at, moment)
        self.assertEqual(result.return_value["run_after"],
                         moment.astimezone(datetime.timezone.utc).isoformat())
        far.refresh()
        self.assertEqual((far.status, far.attempts), (READY, 0))
        self.equal(far, tasks.add.get_result(far.id))
        queue().actions.cancel(number_of(far))

    def test_a_predecessor_is_waited_for(self):
        with paused():
            first = tasks.add.enqueue(1)
            second = tasks.add.using(after=first).enqueue(2)
            third = tasks.add.using(after=[first.id, second], after_failure="run").enqueue(3)
            self.assertEqual([first.status, second.status, third.status], [READY] * 3)
            self.equal(second, tasks.add.get_result(second.id))
        self.assertEqual([ended(one).return_value for one in (first, second, third)], [3, 4, 5])
        self.equal(second, tasks.add.get_result(second.id))
        self.assertLessEqual(first.finished_at, second.started_at)
        self.assertLessEqual(second.finished_at, third.started_at)
        failed = tasks.fail.enqueue("odd")
        lost = ended(tasks.add.using(after=failed).enqueue(2))
        self.assertEqual((lost.status, lost.attempts), (FAILED, 0))
        self.assertTrue(lost.errors)
        for wrong in ("1-forged", object()):
            with self.subTest(repr(wrong)), self.assertRaises((DoesNotExist, TypeError, jobqueue.Invalid)):
                tasks.add.using(after=wrong).enqueue(2)

    @unittest.skipUnless(tasks.TAKES_OPTIONS, "this @task takes no options of backends")
    def test_the_decorator_takes_our_options(self):
        self.assertEqual((tasks.stubborn.max_retries, tasks.stubborn.timeout), (2, 30))
        result = ended(tasks.stubborn.enqueue(5))
        self.assertEqual((result.return_value, result.attempts, len(result.errors)), (5, 3, 2))
        with self.assertRaises(TypeError):
            interface.task(shoe_size=44)(tasks.hidden)

    @unittest.skipIf(tasks.TAKES_OPTIONS, "this @task takes options of backends")
    def test_the_decorator_takes_only_djangos_options(self):
        with self.assertRaises(TypeError):
            interface.task(max_retries=3)(tasks.hidden)

    def test_using_knows_only_options(self):
        with self.assertRaises(TypeError):
            tasks.add.using(shoe_size=44)

    def test_invalid_tasks_are_refused(self):
        def inner():
            pass
        for function, words in ((inner, "module level"), (lambda: None, "module level"),
                                (len, "module level"), (Contract, "module level")):
            with self.subTest(function):
                self.invalid(words, interface.task, function)
        self.invalid("context", interface.task(takes_context=True), tasks.hidden)
        for change, words in (
                ({"priority": 101}, "priority"), ({"priority": -101}, "priority"),
                ({"priority": 1.5}, "priority"), ({"queue_name": "unknown"}, "unknown"),
                ({"run_after": datetime.datetime(2090, 1, 1)}, "aware"), ({"max_retries": -1}, "max_retries"),
                ({"max_retries": 1.5}, "max_retries"), ({"max_retries": "3"}, "max_retries"),
                ({"retry_delay": -1}, "retry_delay"), ({"timeout": 0}, "timeout"),
                ({"on_crash": "explode"}, "on_crash"), ({"unique_key": "two\nlines"}, "unique_key"),
                ({"unique_key": 5}, "unique_key"), ({"notify": "always"}, "notify"),
                ({"after_failure": "maybe"}, "after_failure"),
                ({"remove_on_success": 1}, "remove_on_success"),
                ({"backend": "second", "queue_name": "a queue"}, "queue"),
                ({"backend": "second", "queue_name": ""}, "queue")):
            with self.subTest(change):
                self.invalid(words, tasks.add.using, **change)
        with self.assertRaises(exceptions.InvalidTaskBackend if hasattr(exceptions, "InvalidTaskBackend")
                               else exceptions.InvalidTaskBackendError):
            backends["nowhere"]

    def test_the_whole_priority_that_is_no_integer(self):
        """Django allows 1.0, which is a whole number."""
        result = tasks.add.using(priority=1.0).enqueue(1)
        self.assertEqual(ended(result).return_value, 3)
        self.assertEqual(result.task.priority, 1)

    def test_a_naive_moment_is_allowed_without_zones(self):
        with override_settings(USE_TZ=False):
            moment = datetime.datetime.now() + datetime.timedelta(hours=1)
            result = tasks.add.using(run_after=moment).enqueue(1)
            self.assertTrue(timezone.is_naive(result.enqueued_at))
            self.equal(result, tasks.add.get_result(result.id))
            self.assertEqual(tasks.add.get_result(result.id).task.run_after, moment)
        queue().actions.cancel(number_of(result))

    @unittest.skipUnless(IS_OLD, "about django-tasks before 0.9")
    def test_enqueue_on_commit_is_refused(self):
        self.invalid("on_commit", interface.task(enqueue_on_commit=True), tasks.hidden)


class Results(Contract):
    def test_unknown_forged_and_deleted_ids(self):
        result = ended(tasks.add.enqueue(1))
        number, _, signature = result.id.partition("-")
        for wrong in ("", "1", "x", number, number + "-", number + "-" + signature[:-1], result.id + "0",
                      " " + result.id, result.id + "\n", "0" + result.id, "-" + result.id,
                      "99999-" + signature, signature, "1-" + "é" * 20, "9" * 30 + "-" + signature,
                      result.id.upper() + " ", "00000000-0000-0000-0000-000000000000"):
            with self.subTest(wrong), self.assertRaises(DoesNotExist):
                tasks.add.get_result(wrong)
        for strange in (None, 5, 1.5, b"1-x", [], object()):
            with self.subTest(strange), self.assertRaises(DoesNotExist):
                backends["default"].get_result(strange)
        queue().actions.delete(int(number))
        for read in (tasks.add.get_result, backends["default"].get_result):
            with self.assertRaises(DoesNotExist):
                read(result.id)
        with self.assertRaises(DoesNotExist):
            result.refresh()
        with self.assertRaises(DoesNotExist):
            asyncio.run(result.arefresh())
        gone = tasks.add.using(remove_on_success=True).enqueue(1)
        until(lambda: not queue().database.value("SELECT 1 FROM task WHERE id=?", (number_of(gone),)),
              "its removal")
        with self.assertRaises(DoesNotExist):
            gone.refresh()

    def test_the_result_of_another_task_is_a_mismatch(self):
        result = tasks.add.enqueue(1)
        with self.assertRaises(Mismatch):
            tasks.echo.get_result(result.id)
        self.assertEqual(tasks.add.using(priority=3).get_result(result.id).id, result.id)

    def test_refresh_keeps_what_does_not_change(self):
        result = tasks.add.using(priority=2).enqueue(1)
        key, task, args, enqueued = result.id, result.task, result.args, result.enqueued_at
        ended(result)
        self.assertEqual((result.id, result.args, result.enqueued_at), (key, args, enqueued))
        self.assertIs(result.task, task)
        asyncio.run(result.arefresh())
        self.assertEqual(result.return_value, 3)

    @unittest.skipUnless(hasattr(type(tasks.add), "__reduce__")
                         and "__reduce__" in vars(type(tasks.add).__mro__[1]), "this Django pickles no tasks")
    def test_tasks_and_results_can_be_pickled(self):
        for task in (tasks.add, tasks.mail, tasks.flaky, letters.write, tasks.add.using(
                priority=3, run_after=soon(hours=1), max_retries=4, unique_key="k", retry_delay=5)):
            with self.subTest(task.name):
                copy = pickle.loads(pickle.dumps(task))     # noqa: S301
                self.assertEqual(copy, task)
                self.assertIs(copy.func, task.func)
                self.assertEqual((copy.max_retries, copy.unique_key), (task.max_retries, task.unique_key))
        result = tasks.add.using(priority=3).enqueue(1)
        for one in (result, ended(result), ended(tasks.fail.enqueue("odd"))):
            copy = pickle.loads(pickle.dumps(one))          # noqa: S301
            self.equal(copy, one)
            copy.refresh()
            self.equal(copy, ended(one))

    def test_the_secret_key_may_change(self):
        from django.conf import settings
        old = settings.SECRET_KEY
        result = ended(tasks.add.enqueue(1))
        with override_settings(SECRET_KEY="another key", SECRET_KEY_FALLBACKS=["a third one", old]):
            same = tasks.add.get_result(result.id)
            self.assertEqual(same.return_value, 3)
            self.assertEqual(tasks.add.get_result(same.id).return_value, 3)
            result.refresh()
            self.equal(tasks.add.get_result(result.id), result)
        with override_settings(SECRET_KEY="another key", SECRET_KEY_FALLBACKS=[]):
            with self.assertRaises(DoesNotExist):
                tasks.add.get_result(result.id)


class Signals(Contract):
    def test_each_is_sent_once_where_it_happens(self):
        result = ended(tasks.add.using(priority=1).enqueue(1))
        lines = sent(result)
        self.assertEqual([line["signal"] for line in lines], ONCE)
        here, there, also_there = [line["pid"] for line in lines]
        self.assertEqual(here, os.getpid())
        self.assertNotEqual(here, there)
        self.assertEqual(there, also_there)
        self.assertEqual([line["status"] for line in lines], ["READY", "RUNNING", SUCCESSFUL.value])
        self.assertEqual([line["attempts"] for line in lines], [0, 1, 1])
        self.assertEqual([line["finished"] for line in lines], [False, False, True])
        self.assertEqual(lines[2]["value"], 3)
        self.assertEqual({line["sender"] for line in lines}, {"DjangoBackend"})

    def test_none_is_finished_while_a_retry_follows(self):
        result = ended(tasks.flaky.using(**once_more(max_retries=2)).enqueue(3))
        good = sent(result)
        self.assertEqual([line["signal"] for line in good],
                         ["task_enqueued"] + ["task_started"] * 3 + ["task_finished"])
        self.assertEqual(good[-1]["errors"], ["blog.tasks.Odd"] * 2)
        self.assertEqual([line["attempts"] for line in good], [0, 1, 2, 3, 3])
        result = ended(tasks.flaky.using(**once_more(max_retries=1)).enqueue(9))
        bad = sent(result)
        self.assertEqual([line["signal"] for line in bad],
                         ["task_enqueued", "task_started", "task_started", "task_finished"])
        self.assertEqual((bad[-1]["status"], bad[-1]["finished"]), ("FAILED", True))
        self.assertEqual(bad[-1]["errors"], ["blog.tasks.Odd"] * 2)

    def test_a_failure_is_finished_too(self):
        for task, kind, path in ((tasks.fail, "odd", "blog.tasks.Odd"), (tasks.fail, "value", VALUE_ERROR),
                                 (tasks.give, {"1": [2]}, None), (tasks.fail_later, None, "blog.tasks.Odd")):
            lines = sent(ended(task.enqueue(*([kind] if kind else []))))
            self.assertEqual([line["signal"] for line in lines], ONCE)
            self.assertEqual((lines[-1]["status"], lines[-1]["errors"]), (
                "FAILED" if path else SUCCESSFUL.value, [path] if path else []))
        lines = sent(ended(tasks.never.enqueue()))
        self.assertEqual((lines[-1]["signal"], lines[-1]["status"]), ("task_finished", "FAILED"))
        lines = sent(ended(tasks.thing.using(max_retries=3).enqueue()))
        self.assertEqual(lines[-1]["errors"], ["builtins.TypeError"])
        self.assertEqual([line["signal"] for line in lines], ONCE)

    def test_a_receiver_hears_the_sender(self):
        heard = []

        def hear(sender, task_result, **more):
            heard.append((sender, task_result, more["signal"]))
        signals.task_enqueued.connect(hear, sender=type(backends["default"]))
        try:
            result = tasks.add.enqueue(1)
        finally:
            signals.task_enqueued.disconnect(hear, sender=type(backends["default"]))
        [(sender, heard_result, signal)] = heard
        self.assertIs(sender, type(backends["default"]))
        self.assertEqual((heard_result.id, heard_result.status), (result.id, READY))
        self.assertIs(signal, signals.task_enqueued)


class Inside(Contract):
    def test_a_task_reads_results_and_adds_tasks(self):
        earlier = ended(tasks.add.enqueue(1, b=4))
        seen = ended(tasks.parent.enqueue(earlier.id)).return_value
        self.assertEqual(seen["earlier"], [SUCCESSFUL.value, 5])
        self.assertEqual(seen["status"], "READY")
        self.assertEqual(seen["same"], [seen["child"], "READY", [5], {"b": 10}, True])
        self.assertEqual(seen["missing"], [DoesNotExist.__name__] * 2 + [Mismatch.__name__])
        child = tasks.add.get_result(seen["child"])
        self.assertEqual((ended(child).return_value, child.task.priority), (15, 3))
        added = [line for line in sent(child) if line["signal"] == "task_enqueued"]
        self.assertEqual(len(added), 1)
        self.assertNotEqual(added[0]["pid"], os.getpid())

    def test_an_async_task_adds_tasks(self):
        key, args = ended(tasks.parent_later.enqueue(8)).return_value
        self.assertEqual(args, [8])
        self.assertEqual(ended(tasks.add.get_result(key)).return_value, 10)

    def test_tasks_are_added_when_a_transaction_commits(self):
        name = "u" + os.urandom(4).hex()
        [key] = ended(tasks.register.enqueue(name)).return_value
        self.assertEqual(ended(tasks.greet.get_result(key)).return_value, "hello " + name)
        self.assertEqual(ended(tasks.register.enqueue("v" + name, fails=True)).return_value, [])
        lost = ended(tasks.greet.enqueue("v" + name))
        self.assertEqual(lost.errors[0].exception_class_path.rpartition(".")[2], "DoesNotExist")

    def test_connections_are_closed_and_the_process_stays(self):
        pids = set()
        for _ in range(3):
            pid, was_open = ended(tasks.process.enqueue()).return_value
            self.assertFalse(was_open)
            pids.add(pid)
            ended(tasks.count_later.enqueue())
            ended(tasks.count.enqueue())
        self.assertEqual(len(pids), 1)
        held = [os.readlink("/proc/%d/fd/%s" % (pid, name)) for name in os.listdir("/proc/%d/fd" % pid)]
        self.assertFalse([path for path in held if path.endswith("db.sqlite3")])


class Checks(Contract):
    def found(self, **default):
        with override_settings(TASKS={"default": {"BACKEND": "jobqueue.DjangoBackend", **default}}):
            return [message for message in run_checks() if message.id and message.id.startswith("jobqueue")]

    def test_right_settings_have_no_findings(self):
        self.assertEqual(self.found(), [])
        self.assertEqual(self.found(QUEUES=[]), [])
        self.assertEqual(self.found(QUEUES=["default", "mail.a-b_c"], OPTIONS={"owner": "ana"}), [])

    def test_wrong_settings_are_found(self):
        for default, key, word in (({"OPTIONS": {"ovner": "ana"}}, "jobqueue.E001", "ovner"),
                                   ({"QUEUES": ["default", "two words"]}, "jobqueue.E002", "two words"),
                                   ({"QUEUES": [""]}, "jobqueue.E002", ""),
                                   ):
            with self.subTest(default):
                [message] = self.found(**default)
                self.assertEqual(message.id, key)
                self.assertIn(word, message.msg)
        with mock.patch.dict(os.environ, {"JOBQUEUE_DATABASE": "mysql://localhost/"}):
            self.assertEqual([message.id for message in self.found()], ["jobqueue.E004"])

    @unittest.skipUnless(IS_OLD, "about django-tasks before 0.9")
    def test_enqueue_on_commit_is_found(self):
        self.assertEqual([one.id for one in self.found(ENQUEUE_ON_COMMIT=True)], ["jobqueue.E003"])

    def test_names_of_the_interface_are_those_of_this_django(self):
        self.assertEqual(jobqueue.django_names().package, interface.__name__)
        self.assertTrue(inspect.isclass(jobqueue.DjangoBackend))


if __name__ == "__main__":
    unittest.main()
