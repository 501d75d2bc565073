"""The functions of tasks.py, as a child process announced them."""

import io
import json
import subprocess
from unittest import mock

import jobqueue
from jobqueue import Catalogue
from tests.helpers.support import TestCase, function_json


class TestCatalogue(TestCase):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "home"
        self.home.mkdir()
        for name in ("TASKS_FILE", "WORKER_FILE"):
            path = self.home / ("tasks.py" if name == "TASKS_FILE" else "worker.py")
            path.write_text("# %s" % name)
            self.patch(jobqueue, name, path)
        self.write("DELETE FROM state")
        self.write("DELETE FROM function")
        self.catalogue = Catalogue(self.database, self.queue.interpreter)
        self.answers, self.asked = [], 0
        self.patch(subprocess, "run", self.answer)

    def answer(self, arguments, stdout, stderr=io.BytesIO(), **_):
        """Stands for the child that imports tasks.py."""
        self.assertIn("--catalogue", arguments)
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        stderr.write(b"x" * 5000 + b"\njobqueue needs Python 3.9 or newer\n")
        stdout.write(text.encode())
        return subprocess.CompletedProcess(arguments, 0)

    def announce(self, *names, **more):
        self.answers.append({"functions": [function_json(name) for name in names], "error": None, **more})

    def touch(self, text="# changed"):
        with open(jobqueue.TASKS_FILE, "a") as file:
            file.write(text)
        self.clock.advance(2)

    def refresh(self):
        self.clock.advance(2)
        self.catalogue.refresh()

    def names(self):
        self.clock.advance(2)
        return [function["name"] for function in self.catalogue.functions()]

    def test_it_is_read_by_a_child_once(self):
        self.announce("b", "a")
        for _ in range(3):
            self.refresh()
        self.assertEqual((self.names(), self.asked), (["b", "a"], 1))

    def test_a_changed_file_is_read_again(self):
        self.announce("a")
        self.refresh()
        self.touch()
        self.announce("a", "b")
        self.refresh()
        self.assertEqual(self.names(), ["a", "b"])

    def import_helper(self):
        """A file that tasks.py imports, and that was read with it."""
        helper = self.home / "helper.py"
        helper.write_text("x = 1")
        self.announce("a", files=[str(helper)])
        self.refresh()
        return helper

    def test_what_tasks_py_imports_counts_as_well(self):
        helper = self.import_helper()
        helper.write_text("x = 22")
        self.announce("b", files=[str(helper)])
        self.refresh()
        self.assertEqual(self.names(), ["b"])

    def test_a_tasks_py_that_appears_or_goes_is_noticed(self):
        jobqueue.TASKS_FILE.unlink()
        self.announce("sample", samples=True)
        self.refresh()
        self.assertTrue(self.catalogue.state()["samples"])
        jobqueue.TASKS_FILE.write_text("# mine")
        self.announce("mine")
        self.refresh()
        self.assertEqual((self.names(), self.catalogue.state()["samples"]), (["mine"], False))

    def test_a_broken_tasks_py_keeps_the_last_good_functions_and_tells_what_is_wrong(self):
        self.announce("a")
        self.refresh()
        self.touch("def (")
        self.answers.append({"error": {"message": "SyntaxError: invalid", "file": "tasks.py", "line": 3}})
        self.refresh()
        self.assertEqual(self.names(), ["a"])
        self.assertEqual(self.catalogue.state()["error"]["line"], 3)

    def test_a_mended_one_ends_the_error(self):
        self.answers.append({"error": {"message": "SyntaxError: invalid", "file": "tasks.py", "line": 3}})
        self.refresh()
        self.touch()
        self.announce("a")
        self.refresh()
        self.assertIsNone(self.catalogue.state()["error"])

    def test_after_an_error_it_is_read_again_less_and_less_often(self):
        error = {"error": {"message": "ImportError: no helper", "file": "tasks.py", "line": 3}}
        self.answers = [error] * 300
        moments, began = [], self.clock.now()
        while self.clock.now() < began + 300:
            asked = self.asked
            self.catalogue.refresh()
            if self.asked > asked:
                moments.append(self.clock.now() - began)
            self.clock.advance(0.5)
        pauses = [after - before for before, after in zip(moments, moments[1:])]
        self.assertEqual(pauses[:6], [2, 4, 8, 16, 32, 60])
        self.answers = []
        self.announce("a")
        self.clock.advance(60)
        self.refresh()
        self.assertIsNone(self.catalogue.state()["error"])

    def test_an_import_that_takes_too_long_is_told(self):
        self.answers.append(subprocess.TimeoutExpired("python", 10))
        self.refresh()
        self.assertIn("longer than 10 s", self.catalogue.state()["error"]["message"])

    def test_a_process_that_cannot_be_started_is_tried_again_at_the_next_look(self):
        self.answers.append(BlockingIOError(11, "Resource temporarily unavailable"))
        self.refresh()
        self.assertIn("process limit", self.catalogue.state()["error"]["message"])
        self.announce("a")
        self.refresh()
        self.assertIsNone(self.catalogue.state()["error"])
        self.touch()
        self.answers.append(MemoryError())
        self.refresh()
        self.assertIsNone(self.catalogue.state()["error"], "what was read before is still good")
        self.assertTrue(self.catalogue.find("a"))

    def test_a_child_that_says_nonsense_is_told(self):
        for answer in ("", "no json"):
            with self.subTest(answer):
                self.touch()
                self.answers.append(answer)
                self.refresh()
                self.assertIn("ended with exit code 0: jobqueue needs Python 3.9",
                              self.catalogue.state()["error"]["message"])

    def read_while(self, change):
        """Something happens while the child imports; then the next visitor comes."""
        real = self.answer

        def slow(arguments, **named):
            change()
            return real(arguments, **named)

        with mock.patch.object(subprocess, "run", slow):
            self.refresh()
        self.announce("new")
        self.refresh()

    def test_what_changed_while_it_was_read_is_read_again(self):
        self.announce("a")
        self.read_while(lambda: self.touch("# during"))
        self.assertEqual(self.names(), ["new"])

    def test_so_is_what_tasks_py_imports(self):
        helper = self.home / "helper.py"
        helper.write_text("x = 1")
        for _ in range(2):
            self.announce("a", files=[str(helper)])
        self.refresh()
        self.touch()
        self.read_while(lambda: helper.write_text("x = 22"))
        self.assertEqual(self.names(), ["new"])

    def test_what_is_not_imported_any_more_does_not_count(self):
        helper = self.import_helper()
        self.touch()
        self.announce("b", files=[])
        self.refresh()
        self.assertNotIn(str(helper), self.catalogue.state()["files"])

    def test_what_could_not_be_read_to_its_end_may_be_made_of_all_that_was_known(self):
        helper = self.import_helper()
        self.touch()
        self.answers.append(subprocess.TimeoutExpired("python", 10))
        self.refresh()
        helper.write_text("x = 22")
        self.announce("b")
        self.refresh()
        self.assertEqual(self.names(), ["b"])

    def test_another_process_finds_what_was_read(self):
        self.announce("a")
        self.refresh()
        other = Catalogue(self.another_queue().database, self.queue.interpreter)
        other.refresh()
        self.assertEqual([function["name"] for function in other.functions()], ["a"])
        self.assertEqual(self.asked, 1)

    def test_a_function_is_found_by_name(self):
        self.announce("a")
        self.refresh()
        self.assertEqual(self.catalogue.find("a")["options"]["timeout"], 3600)
        self.assertIsNone(self.catalogue.find("b"))

    def test_a_function_is_stored_as_it_was_announced(self):
        function = function_json("a", {"city": {"type": "string", "default": "Oslo"}}, [], "admin", timeout=5)
        self.catalogue.store({"functions": [function], "error": None})
        self.assertEqual(self.catalogue.functions(), [function])

    def test_storing_the_same_again_writes_nothing(self):
        self.catalogue.store({"functions": [function_json("a")], "error": None})
        before = self.another_queue().database.version_seen()
        other = self.another_queue()
        version = other.database.version_seen()
        self.catalogue.store({"functions": [function_json("a")], "error": None})
        self.assertEqual(other.database.version_seen(), version, before)

    def test_the_child_gets_the_allow_list_of_the_environment(self):
        seen = []
        real = self.answer

        def look(arguments, **named):
            seen.append(named["env"])
            return real(arguments, **named)

        self.announce("a")
        with (
            mock.patch.object(subprocess, "run", look),
            mock.patch.dict("os.environ", {"SECRET_OF_WEB": "x"}),
        ):
            self.refresh()
        self.assertNotIn("SECRET_OF_WEB", seen[0])
