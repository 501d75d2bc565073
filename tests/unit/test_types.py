"""What a type checker says of people's own code beside jobqueue.py, and what annotations are at run time."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import jobqueue
import worker
from tests.helpers.support import ROOT, TestCase, need, need_part

# Right code, beside README's tasks.py, which it imports.
RIGHT = """
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, Optional
from jobqueue import (Fail, Function, JobQueue, RetryAfter, Task, command, current_task, external,
                      http_request, schedule, task)
from tasks import report

@task
@schedule("daily 03:00", arguments={"n": 1}, priority=-5)
def below(n: int) -> int:
    if n > 5:
        raise Fail("too many")
    if n < 0:
        raise RetryAfter(60, "too few")
    folder: Path = current_task().folder
    return n + len(folder.name)

@schedule("daily 04:00", zone="UTC", catch_up="none", overlap="allow")
@schedule("daily 05:00")
@task()
def above(n: int, *more: str, word: str = "") -> None:
    if current_task() is None:
        return
    current_task().progress(0.5)
    current_task().progress(1, 2, message=word)

resize = command("resize", ["convert", Path("{photo}"), "-"], photo=Path, who="admin", timeout=60)
call = http_request("call", "GET", "https://example.org/{id}", headers={"X-Key": "1"}, id=int)
render = external("render", queue="render", scene=str, max_retries=2)

def chain(first: Function[[int], int], last: Function) -> Task:
    return first.enqueue(1).then(first, 2).then(first.using(delay=5), 3).then(last)

chain(below, resize)
number: int = below(2)
answer: dict[str, object] = report("Oslo", date(2026, 1, 1))
added: Task = report.enqueue("Oslo", date(2026, 1, 1))
report.enqueue(city="Oslo", month=date(2026, 1, 1), detailed=True)
above.enqueue(1, "a", "b", word="c")
resize.enqueue(photo="x.jpg").wait().cancel().retry().delete()
call.enqueue(id=5)
render.enqueue(scene="x")
ids: list[int] = below.enqueue_many({"n": n} for n in range(5))
below.using(after=ids).enqueue(1)
below.using(after=added, after_failure="run", unique_key="x").using(owner="ana").enqueue(1)
below.using(after=[added, *ids], run_at=datetime.now(timezone.utc)).enqueue(1)
anything: str = added.wait(timeout=60).result
when: Optional[str] = added.refresh().finished_at
names: list[str] = [file.name for file in added.files if file.path.exists() and file.size]

queue = JobQueue(Path("data"), environment={})
queue.get(queue.enqueue("report", {"city": "Oslo"}, priority=3, after=added).id).then(below, 3)
queue.enqueue_many("report", [{"city": "Oslo"}], owner="ana", delay=60)
"""
# Wrong code: behind each line, what mypy calls the error.
WRONG = """
from datetime import date
from jobqueue import JobQueue, Task, current_task, external, schedule, task
from right import above, below, resize
from tasks import report

report.enqueue("Oslo", mont=date(2026, 1, 1))                   # call-arg
report.enqueue("Oslo", date(2026, 1, 1), details=True)          # call-arg
report.enqueue("Oslo")                                          # call-arg
report.enqueue()                                                # call-arg
report.enqueue("Oslo", "2026-01-01")                            # arg-type
report.enqueue("Oslo", month=5)                                 # arg-type
report.enqueue(5, date(2026, 1, 1))                             # arg-type
report.using(priority=1).enqueue(5, date(2026, 1, 1))           # arg-type
report("Oslo")                                                  # call-arg
below("x")                                                      # arg-type
below.enqueue("x")                                              # arg-type
above.enqueue("x")                                              # arg-type
above.enqueue(1, 2)                                             # arg-type
above.using(delay=5).enqueue(1, wrd="x")                        # call-arg
below.enqueue(1).then(below)                                    # call-arg
below.enqueue(1).then(below, "x")                               # arg-type
below.enqueue(1).then(report, city="x", month="y")              # arg-type
below.enqueue_many([1])                                         # list-item

@task(retries=3)                                                # call-overload
def often() -> None: ...

@task(who="everyone", max_retries=3)                            # call-overload
def never() -> None: ...

task(retry_delay="60")                                          # call-overload
schedule("daily 03:00", retries=3)                              # call-arg
schedule("daily 03:00", overlap="never")                        # arg-type
schedule("daily 03:00", catch_up=True)                          # arg-type
schedule(5)                                                     # arg-type
external("render")                                              # call-arg
below.using(retries=3)                                          # call-arg
below.using(delay="x")                                          # arg-type
below.using(after="x")                                          # arg-type
JobQueue().enqueue("below", {"n": 1}, retries=3)                # call-arg
JobQueue().enqueue(below, {"n": 1})                             # arg-type

text: str = below(1)                                            # assignment
number: int = below.enqueue(1)                                  # assignment
below.enqueue(1) + 1                                            # operator
below.enqueue(1).upper()                                        # attr-defined
below.enqueue(1).stat                                           # attr-defined
number = below.enqueue(1).status                                # assignment
number = below.enqueue(1).wait()                                # assignment
below.enqueue(1).wait("x")                                      # arg-type
below.enqueue(1).delete().id                                    # func-returns-value
below.enqueue(1)["result"]                                      # index
for _ in below.enqueue(1): ...                                  # attr-defined
added: Task = below(1)                                          # assignment
current_task().progres(1)                                       # union-attr
current_task().progress("x")                                    # arg-type
JobQueue().databas                                              # attr-defined
"""


def options_right():
    """Lines that give each option of tasks its default, and each of those that are added None."""
    options = ", ".join("%s=%r" % option for option in jobqueue.TASK_DEFAULTS.items())
    added = set(jobqueue.REQUEST_SCHEMA["properties"]) - {"function", "arguments", *jobqueue.TASK_DEFAULTS}
    given = "%s, %s" % (options, ", ".join("%s=None" % name for name in sorted(added)))
    return ["task(%s)" % options, 'schedule("daily 03:00", %s)' % options, "below.using(%s)" % given,
            'JobQueue().enqueue("below", %s)' % given]


def options_wrong():
    """Lines that give one of these options something of a wrong type."""
    found = ["%s=object())" % name for name in jobqueue.REQUEST_SCHEMA["properties"]
             if name not in ("function", "arguments")]
    of_tasks = ["%s=object())" % name for name in jobqueue.TASK_OPTIONS]
    return ["task(%s # call-overload" % one for one in of_tasks] + [
        'schedule("daily 03:00", %s # arg-type' % one for one in of_tasks] + [
        "below.using(%s # arg-type" % one for one in found] + [
        'JobQueue().enqueue("below", {}, %s # arg-type' % one for one in found]


def example():
    """The tasks.py of README."""
    text = (ROOT / "README.md").read_text("utf-8")
    [found] = [block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def report(" in block
               and "@task" in block]
    return found


def checker():
    """The command of mypy."""
    if importlib.util.find_spec("mypy"):
        return [sys.executable, "-m", "mypy"]
    found = shutil.which("mypy")
    need(found, "mypy (pip install mypy)")
    return [found]


class TestChecker(unittest.TestCase):
    """All that is checked lies in a folder with the built jobqueue.py, and is checked at once."""

    @classmethod
    def setUpClass(cls):
        need_part("source")
        command = checker()
        cls.folder = Path(tempfile.mkdtemp(prefix="jobqueue test "))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        shutil.copy(ROOT / "jobqueue.py", cls.folder)
        cls.files = {"tasks.py": example(), "right.py": RIGHT + "\n".join(options_right()) + "\n",
                     "wrong.py": WRONG + "\n".join(options_wrong()) + "\n"}
        for name, text in cls.files.items():
            (cls.folder / name).write_text(text, "utf-8")
        done = subprocess.run(
            [*command, "--strict", "--allow-any-generics", "--show-error-codes", "--no-error-summary",
             "--hide-error-context", "--no-color-output", "--cache-dir", ".cache", *cls.files],
            cwd=cls.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        cls.said = done.stdout.splitlines()

    def errors(self, name):
        """What was said of a file; notes tell more about an error."""
        return [line for line in self.said if line.startswith(name + ":") and ": note: " not in line]

    def test_the_example_of_the_readme_is_right(self):
        self.assertEqual(self.errors("tasks.py"), [])

    def test_right_calls_are_right(self):
        self.assertEqual(self.errors("right.py"), [])

    def test_of_jobqueue_itself_nothing_is_said(self):
        self.assertEqual(self.errors("jobqueue.py"), [])
        others = [line for line in self.said if not re.match(r"(wrong|jobqueue)\.py:[0-9]+: ", line)]
        self.assertEqual(others, [])

    maxDiff = None

    def test_each_wrong_line_is_an_error_and_no_other(self):
        lines = self.files["wrong.py"].splitlines()
        found = [line.partition(" # ")[0].rstrip() for line in lines]
        for line in self.errors("wrong.py"):
            _, number, told = line.split(":", 2)
            if "Untyped decorator" not in told:     # which follows from a wrong one
                found[int(number) - 1] += " # " + re.findall(r"\[([a-z-]+)\]$", told)[0]
        self.assertEqual(found, [re.sub(" +# ", " # ", line) for line in lines])


class TestAtRunTime(TestCase):
    """Annotations are texts there, and some of their names exist for a checker only."""

    def setUp(self):
        super().setUp()
        self.addCleanup(jobqueue.declared.clear)
        jobqueue.declared.clear()

    def test_our_own_functions_are_announced_with_their_types(self):
        worker.declare_samples()
        described = {name: worker.describe(one)["schema"] for name, one in jobqueue.declared.items()}
        self.assertEqual(
            {name: {key: one["type"] for key, one in schema["properties"].items()}
             for name, schema in described.items()},
            {"add": {"a": "integer", "b": "integer", "seconds": "number"},
             "count_down": {"start": "integer"}})
        self.assertEqual([schema["required"] for schema in described.values()], [["a", "b"], []])

    def test_a_functions_own_signature_counts_and_not_that_of_its_wrapper(self):
        def report(city: str, month: int = 1, **more: float) -> str:
            return city

        function = jobqueue.task(report)
        self.assertEqual(inspect.signature(function.target), inspect.signature(report))
        self.assertEqual(function.arguments(("Oslo",), {"month": 2, "x": 1.5}),
                         {"city": "Oslo", "month": 2, "x": 1.5})
        self.assertEqual(list(worker.Parameters(function).schema()["properties"]), ["city", "month"])
        with self.assertRaises(TypeError):
            function.arguments((), {})

    def test_types_of_ours_can_stand_in_the_annotations_of_functions(self):
        def chain(first: jobqueue.Function[[int], str], number: int) -> jobqueue.Task:
            return first.enqueue(number)

        self.assertIs(jobqueue.Function[[int], str], jobqueue.Function)
        schema = worker.Parameters(jobqueue.task(chain)).schema()
        self.assertEqual(schema["properties"], {
            "first": {"unclear": "jobqueue.Function"}, "number": {"type": "integer"}})

    def test_a_task_has_the_attributes_that_its_class_names(self):
        added = self.queue.enqueue("add", {"a": 1})
        self.assertEqual(set(jobqueue.Task.__annotations__), set(self.queue.get_json(added.id)))

    def test_typing_is_not_imported(self):
        code = "import sys, jobqueue; print({'typing', 'typing_extensions'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.stdout, b"set()\n")
