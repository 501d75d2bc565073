"""Values arrive as the signature says, by whichever way a task is added."""
import json
import subprocess
import unittest
import urllib.request

from tests.helpers.support import Site, wait_until
from tests.helpers.values import CASES, TASKS
from tests.helpers.working import ProcessCase

SIGNATURES = '''
import functools, threading
from typing import *
from jobqueue import command, current_task, task

@task
def only(a: int, b: int, /): return a + b

@task
def more(x: int = 3, /, **rest: int): return [x, rest]

@task
def star(a: int, b: str = "b", *numbers: int, last: bool = False): return [a, b, numbers, last]

@task
async def later(n: int):
    import asyncio
    await asyncio.sleep(0.01)
    current_task().progress(1, 2)
    return n + 1

@task
async def breaks(): raise KeyError("inside")

def plainly(function):
    def wrapper(*values, **named): return function(*values, **named)
    return functools.wraps(function)(wrapper)

@task
@plainly
async def wrapped(n: int): return n

@task
class Maker:
    def __init__(self, n: int): self.n = n
    def __repr__(self): return "made"
    def item(self): return self.n

@task
def pools(method: str):
    import multiprocessing
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(twice, [1, 2])

@task
def twice(n: int): return 2 * n

command("greet", ["echo", "{name}", "{method}", "{address}", "{arguments}"], name=str, method="m",
        address=str, arguments=int)
'''
REFUSED = (
    ("def f(a: [int]): return a", "the hint [<class 'int'>] of a is no type"),
    ("def f(a: 5): return a", "is no type"),
    ("def f():\n    yield 1", "a function with yield"),
    ("async def f():\n    yield 1", "a function with yield"),
    ("@contextlib.contextmanager\ndef f():\n    yield 1", "a function with yield"),
    ('def f(kind: Literal["a"] = "b"): pass', "the default of kind must be one of a"),
    ("def f(at: datetime = datetime(2026, 1, 1)): pass", "the default of at must be a time with an offset"),
    ('def f(n: int = "many"): pass', "the default of n must be a whole number"),
    ("def f(pair: Tuple[Path, int]): pass", "pair holds files inside of something else"),
    ("def f(files: Dict[str, Path]): pass", "files holds files inside of something else"),
    ("def f(files: List[List[Path]]): pass", "files holds files inside of something else"),
)
# Declarations of their own, and what they are refused with.
DECLARED = (
    ("task(lambda n: n)", "it has no name"), ("task(functools.partial(print, 1))", "it has no name"),
    ('task("x")', "it is no function"), ("@task\n@task\ndef f(): pass", "it is declared already"),
    ("class A:\n    @task\n    def f(self): pass", "it is a method"),
    ("class A:\n    @task\n    @classmethod\n    def f(cls): pass", "it is no function"),
    ("@twice\n@task\ndef f(): pass", "put @task on top"), ("task(max)", "its parameters cannot be read"),
    ("@task\n@bare\ndef f(): pass\n@task\n@bare\ndef g(): pass", "@functools.wraps"),
    ('@task(queue="a b")\ndef f(): pass', "queue must be"), ("@task(surprise=1)\ndef f(): pass", "surprise"),
    ('@schedule("sometimes")\n@task\ndef f(): pass', "rule"),
    ('@schedule("daily 03:00", arguments={"m": 1})\n@task\ndef f(n: int = 1): pass', "arguments.m"),
    ('@schedule("daily 03:00")\ndef f(): pass', "@schedule needs @task"),
)


class Values(ProcessCase):
    """What each function of CASES returns, on this host."""

    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS + SIGNATURES, linger=5, NbMaxWorker=2, nice=0)
        cls.addClassCleanup(cls.site.close)
        cls.site.start_server()
        cls.token = cls.site.token("ana")

    def post(self, lines):
        """The ids of tasks that are added over HTTP."""
        request = urllib.request.Request(
            self.site.address + "api/tasks", "\n".join(map(json.dumps, lines)).encode(),
            {"X-Api-Key": self.token, "Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["ids"]

    def results(self, ids):
        self.wait_for_all(ids)
        rows = [self.row(number) for number in ids]
        return [json.loads(row["result"]) if row["status"] == 2 else row["error_message"] for row in rows]

    def returned(self, ids):
        """Compare what tasks of all cases returned."""
        for (name, case), result in zip(CASES.items(), self.results(ids)):
            with self.subTest(name):
                self.assertEqual(result, case.repr)

    def test_over_http(self):
        self.returned(self.post([{"function": "t_" + name, "arguments": {"x": case.json}}
                                 for name, case in CASES.items()]))

    def test_from_a_shell(self):
        self.returned([self.site.add("t_" + name, x=case.text) for name, case in CASES.items()])

    def test_of_a_table(self):
        ids = []
        for name, case in CASES.items():
            added = self.site.json("add", "t_" + name, "--each", "-",
                                   given='x\r\n"%s"\r\n' % case.text.replace('"', '""'))
            ids += added["ids"]
        self.returned(ids)

    def test_in_python(self):
        calls = ", ".join("tasks.t_%s.enqueue(%s).id" % (name, case.python) for name, case in CASES.items())
        said = self.site.python("import tasks, json\nfrom tasks import *\nprint(json.dumps([%s]))" % calls)
        self.returned(json.loads(said))

    def test_a_call_is_bound_by_the_signature(self):
        calls = (("only", {"a": 1, "b": 2}, 3), ("more", {"x": 5}, [5, {}]),
                 ("more", {"y": 1}, [3, {"y": 1}]),
                 ("star", {"a": 1}, [1, "b", [], False]), ("later", {"n": 1}, 2), ("wrapped", {"n": 7}, 7),
                 ("star", {"a": 1, "numbers": [4, 5], "last": True}, [1, "b", [4, 5], True]),
                 ("breaks", {}, "'inside'"), ("pools", {"method": "fork"}, [2, 4]),
                 ("pools", {"method": "spawn"}, [2, 4]))
        ids = self.post([{"function": name, "arguments": values} for name, values, _ in calls])
        for (name, values, wanted), result in zip(calls, self.results(ids)):
            with self.subTest(name, values=values):
                self.assertEqual(result, wanted)
        said = self.site.python("import tasks\nprint(tasks.star.enqueue(1, 'x', 2, 3).id,"
                                "tasks.only.enqueue(2, 3).id, tasks.more.enqueue(1, z=2).id)")
        self.assertEqual(self.results(list(map(int, said.split()))),
                         [[1, "x", [2, 3], False], 5, [1, {"z": 2}]])

    def test_parameters_of_a_program_have_any_names(self):
        number = self.site.add("greet", name="n", address="a", arguments=5)
        self.results([number])
        self.assertEqual(self.log(number), "n m a 5\n")

    def test_wrong_values_are_refused_by_name(self):
        for name, value, words in (
            ("decimal", "1,5", "must be a number such as 12.50"), ("uuid", "12", "must be a UUID such as"),
            ("bytes", "é", "must be the id of an uploaded file, or Base64"),
            ("tuple", "1", "must have 2 items"), ("tuple", "a,b", "x[0] must be a whole number"),
            ("dict_int", '{"a": 1}', "x.a must be a whole number"), ("annotated", "10", "less than 10"),
            ("dict_date", '{"a": "x"}', "x.a must be a date"), ("dataclass", '{"y": 1}', "x.x is missing"),
            ("union_list", "a", "must be a whole number or a list"), ("auto", "off", "must be one of auto"),
            ("int", "9" * 17, "arguments.x is too large: give it as a text"),
        ):
            with self.subTest(name, value=value):
                said = self.site.run("add", "t_" + name, "x=" + value, code=2).stderr
                self.assertIn("arguments.x", said)
                self.assertIn(words, said)


class Refused(unittest.TestCase):
    """Declarations that can never run, or whose values can never arrive."""

    def read(self, site, text):
        """What is wrong with a tasks.py."""
        site.write_tasks(text)
        said = subprocess.run([site.interpreter, "worker.py", "--catalogue"], cwd=site.home,
                              capture_output=True, encoding="utf-8", env=site.environment)
        return json.loads(said.stdout.splitlines()[-1])["error"]

    def test_they_are_refused_with_their_line(self):
        site = Site("", NbMaxWorker=0)
        self.addCleanup(site.close)
        for text, words in REFUSED:
            with self.subTest(text):
                error = self.read(site, "import contextlib\nfrom datetime import datetime\n"
                                        "from pathlib import Path; from typing import *\n"
                                        "from jobqueue import task\n\n@task\n" + text)
                self.assertIn(words, error["message"])
                self.assertEqual(error["file"], "tasks.py")
                self.assertIn(error["line"], (6, 7, 8))

    def test_declarations_that_can_never_run_are_refused_with_their_line(self):
        site = Site("", NbMaxWorker=0)
        self.addCleanup(site.close)
        head = ("import functools\nfrom jobqueue import schedule, task\n\ndef bare(function):\n"
                "    def wrapper(): return function()\n    return wrapper\n"
                "def twice(function): return functools.wraps(function)(lambda: function() or function())\n\n")
        for text, words in DECLARED:
            with self.subTest(text):
                error = self.read(site, head + text)
                self.assertIn(words, error["message"])
                self.assertEqual(error["file"], "tasks.py")
                self.assertIn(error["line"], range(9, 9 + len(text.splitlines())))

    def test_types_that_are_not_known_are_named(self):
        site = Site("from jobqueue import task\n\nclass Frame:\n    pass\n\n@task\n"
                    "def f(frame: Frame, n: int):\n    pass\n", NbMaxWorker=0)
        self.addCleanup(site.close)
        self.assertIn("frame=text (tasks.Frame is not known) n=integer", site.run("functions").stdout)
        self.assertIn("f(frame: tasks.Frame)", site.run("check", "--quick", code=None).stdout)


class Elsewhere(unittest.TestCase):
    """The same functions, run by a remote worker."""

    def test_they_get_the_same_values(self):
        site, machine = Site(NbMaxWorker=0), Site(TASKS, users=False, folder="strong machine")
        for one in site, machine:
            self.addCleanup(one.close)
        site.start_server()
        (machine.home / "token").write_text(site.token("ana", "worker"))
        (machine.home / "token").chmod(0o600)
        machine.start_worker("--server", site.address.rstrip("/"), "--token-file", "token")
        wait_until(lambda: site.rows("SELECT 1 FROM worker"))
        text = "".join('{"function": "t_%s", "arguments": {"x": %s}}\n' % (name, json.dumps(case.json))
                       for name, case in CASES.items())
        request = urllib.request.Request(site.address + "api/tasks", text.encode(), {
            "X-Api-Key": site.token("ana"), "Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(request) as answer:
            ids = json.load(answer)["ids"]
        site.wait_for_all(ids)
        for number, (name, case) in zip(ids, CASES.items()):
            with self.subTest(name):
                found = site.rows("SELECT result, error_message FROM task WHERE id=?", (number,))[0]
                self.assertEqual((found["result"] and json.loads(found["result"]), found["error_message"]),
                                 (case.repr, None))
