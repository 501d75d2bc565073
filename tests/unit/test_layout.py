"""No object holds one of a later room, all is documented, and importing has no side effect.

test_build has the rooms themselves."""

import ast
import bisect
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import jobqueue
from tests.helpers.support import ROOT, TestCase, need_part

FILES = ("jobqueue.py", "worker.py")
parse = functools.lru_cache(maxsize=None)(ast.parse)        # nobody changes a tree


def setUpModule():
    need_part("source")


def source(name):
    return (ROOT / name).read_text("utf-8")


def places_of_classes():
    """{name of a class of jobqueue.py: place of its room in the file}"""
    text = source("jobqueue.py")
    starts = [number for number, line in enumerate(text.splitlines(), 1)
              if re.fullmatch(r"# [\w/]+\.py -+", line)]
    return {statement.name: bisect.bisect(starts, statement.lineno) for statement in parse(text).body
            if isinstance(statement, ast.ClassDef)}


def holds_pointing_down(root, place):
    """(class, attribute, class) for every object that holds one of a later room, from `root` on."""
    found, seen, left = set(), set(), [root]
    while left:
        holder = left.pop()
        seen.add(id(holder))
        for name, held in getattr(holder, "__dict__", {}).items():
            if type(held).__name__ in place and type(held).__module__ == type(root).__module__:
                ours, theirs = type(holder).__name__, type(held).__name__
                if place[theirs] > place[ours]:
                    found.add((ours, name, theirs))
                if id(held) not in seen:
                    left.append(held)
    return found


class TestHolding(TestCase):
    def test_no_object_holds_one_of_a_later_room(self):
        self.queue.users.has_admin()
        application = jobqueue.Application(self.queue, "server")
        self.assertEqual(holds_pointing_down(application, places_of_classes()), set())

    def test_the_check_sees_one_that_does(self):
        place = places_of_classes()
        self.queue.users.whole = self.queue
        self.assertEqual(holds_pointing_down(self.queue, place), {("Users", "whole", "JobQueue")})


class TestImports(unittest.TestCase):
    def test_jobqueue_never_imports_the_worker(self):
        names = {
            alias.name
            for node in ast.walk(parse(source("jobqueue.py")))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        self.assertFalse({"worker", "tasks"} & names)

    def test_only_the_standard_library_is_imported(self):
        known = getattr(sys, "stdlib_module_names", None)
        if known is None:
            self.skipTest("this Python has no list of its standard modules")
        for name in FILES:
            nodes = list(ast.walk(parse(source(name))))
            names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
            # Type checkers have typing_extensions of their own, and only they import it.
            names = {one.split(".")[0] for one in names} - {"jobqueue", "psycopg", "typing_extensions"}
            self.assertEqual(names - set(known), set(), name)


# What is imported where it is used, by commands, by what starts a server, and by processes of their own.
NOT_BY_REQUESTS = set(
    "argparse base64 csv dataclasses email email.header email.message email.utils getpass html http.client "
    "http.server importlib importlib.machinery inspect logging psycopg smtplib socket socketserver "
    "ssl urllib.error urllib.request".split())


class TestLate(unittest.TestCase):
    def test_a_server_has_all_that_requests_import(self):
        """It may have no descriptor left when they come."""
        late = set()
        functions = (node for node in ast.walk(parse(source("jobqueue.py")))
                     if isinstance(node, ast.FunctionDef))
        for node in {inner for function in functions for inner in ast.walk(function)}:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                late.update([node.module] if isinstance(node, ast.ImportFrom) else
                            [name.name for name in node.names])
        self.assertEqual(late - NOT_BY_REQUESTS - set(jobqueue.NEEDED_LATER), set())


class TestDocumentation(unittest.TestCase):
    def test_every_public_definition_has_a_docstring(self):
        for name in FILES:
            with self.subTest(name):
                self.assertEqual(list(self.undocumented(parse(source(name)))), [])

    def undocumented(self, tree):
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    yield node.name
                if isinstance(node, ast.ClassDef):
                    yield from ("%s.%s" % (node.name, inner) for inner in self.undocumented(node))


class TestImport(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue test "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        for name in FILES:
            shutil.copy(ROOT / name, self.folder / name)

    def import_it(self, prelude, name="jobqueue"):
        done = subprocess.run(
            [sys.executable, "-B", "-c", "%s\nimport %s" % (prelude, name)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    # Told of every file that is opened, every process and thread that is started, every connection.
    WATCH = """
import os, sys
here = os.getcwd()
def watch(event, values):
    told = event.split(".")[0] in ("subprocess", "sqlite3", "socket") or event in (
        "os.system", "os.fork", "os.exec", "os.posix_spawn", "_thread.start_new_thread", "os.mkdir")
    if event == "open" and isinstance(values[0], str):
        path = os.path.abspath(values[0])
        told = path.startswith(here) and not path.endswith((".py", ".pyc"))
    if told:
        os.write(1, ("%s %r\\n" % (event, values)).encode())
sys.addaudithook(watch)
"""

    def test_importing_prints_nothing_and_opens_and_starts_nothing(self):
        self.assertEqual(self.import_it(self.WATCH), "")

    def test_importing_the_worker_does_nothing_either(self):
        self.assertEqual(self.import_it(self.WATCH, "worker"), "")

    def test_the_watch_sees_what_it_should(self):
        said = self.import_it(
            self.WATCH + "open('here.txt', 'w')\nimport subprocess\nsubprocess.run(['true'])\n"
        )
        self.assertIn("here.txt", said)
        self.assertIn("subprocess.Popen", said)

    def test_importing_leaves_the_folder_as_it_was(self):
        self.import_it("")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(FILES))

    def test_importing_does_not_load_what_only_some_doors_need(self):
        said = self.import_it("", "jobqueue, sys; print(*sys.modules)")
        self.assertFalse({"http.server", "asyncio", "urllib.request", "ssl", "getpass"} & set(said.split()))

    def test_an_older_python_gets_one_clear_line(self):
        text = "import sys; sys.version_info = (3, 8, 1)\nimport jobqueue"
        done = subprocess.run(
            [sys.executable, "-B", "-c", text],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Ajobqueue needs Python 3\.9 or newer; this is Python 3\.8\n\Z")


    def test_half_a_file_that_is_still_python_gets_one_clear_line(self):
        commands = (["jobqueue.py", "list"], ["worker.py"], ["-c", "import jobqueue"])
        for name, runs in (("jobqueue.py", commands), ("worker.py", commands[1:2])):
            text = (self.folder / name).read_text("utf-8")
            (self.folder / name).write_text(text[:text.rindex("\ndef ")], "utf-8")
            for arguments in runs:
                done = subprocess.run([sys.executable, "-B", *arguments], cwd=self.folder, encoding="utf-8",
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((done.returncode, done.stdout),
                                 (1, "%s is not complete: copy it again\n" % name))
            (self.folder / name).write_text(text, "utf-8")


class TestMap(unittest.TestCase):
    """tests/README.md names what is there."""

    def setUp(self):
        self.tests = ROOT / "tests"
        self.text = (self.tests / "README.md").read_text("utf-8")

    def test_every_folder_has_a_row_and_every_file_that_is_named_exists(self):
        packages = {path.parent.name for path in self.tests.glob("*/__init__.py")}
        self.assertEqual(set(re.findall(r"(?m)^\| `(\w+)/` \|", self.text)), packages)
        there = {path.stem for path in self.tests.rglob("*.py")}
        self.assertEqual(set(re.findall(r"\btest_\w+", self.text)) - there, set())

    def test_tables_that_are_named_are_in_the_program_or_the_helpers(self):
        files = [ROOT / name for name in FILES] + list(self.tests.rglob("*.py"))
        texts = "".join(path.read_text("utf-8") for path in files)
        known = set(re.findall(r"(?m)^([A-Z_]+)(?:: .+)? = ", texts))
        adding = self.text.partition("## What to add for")[2]
        named = set(re.findall(r"`([A-Z][A-Z_]+[A-Z])`", adding)) - {"JOBQUEUE_NAME"}
        self.assertEqual(named - known, set())
