"""tasks.py is read until that succeeds, by its path, and what it starts does not last."""

import json
import shutil
import unittest
import urllib.request

from tests.helpers.support import processes_of, wait_until
from tests.helpers.working import Site

LOOK = "from jobqueue import task\n@task\ndef look():\n    return 'seen'\n"
STARTS = {
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n",
    "timer": "import threading\nthreading.Timer(60, print).start()\n",
    "pool": "import time\nfrom concurrent.futures import ThreadPoolExecutor\n"
    "ThreadPoolExecutor(2).submit(time.sleep, 60)\n",
    "atexit": "import atexit, time\natexit.register(time.sleep, 60)\n",
    "process": "import multiprocessing, time\n"
    "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()\n",
    "program": "import subprocess\nsubprocess.Popen(['sleep', '60'])\n",
    "fork": "import os, time\nif not os.fork():\n    time.sleep(60)\n    os._exit(0)\n",
}


class Reading(unittest.TestCase):
    def site(self, tasks):
        site = Site(tasks, linger=1, NbMaxWorker=1, nice=0)
        self.addCleanup(site.close)
        return site

    def error(self, site):
        return site.json("functions")["error"]

    def names(self, site):
        return [function["name"] for function in site.json("functions")["functions"]]

    def test_two_files_that_are_read_as_tasks_py_are_named(self):
        site = self.site(LOOK)
        site.run("functions")
        self.assertNotIn("different files", site.run("check", "--quick", code=None).stdout)
        (site.home / "other.py").write_text(LOOK.replace("look", "other"))
        site.run("functions", environment={"JOBQUEUE_TASKS": "other.py"})
        said = site.run("check", "--quick", code=None).stdout
        self.assertRegex(said, "different files as their tasks.py.*/other.py on .*/tasks.py on ")

    def test_files_of_the_owner_hide_no_module_of_python(self):
        site = self.site("import helper, inspect, traceback\n" + LOOK.replace("'seen'", "helper.seen()") +
                         "@task\ndef fails():\n    raise ValueError('the reason')\n")
        (site.home / "helper.py").write_text("def seen(): return 'helped'\n")
        for name in ("csv", "traceback", "email", "calendar", "datetime", "select", "string", "token",
                     "inspect", "runner", "shutil", "subprocess", "zoneinfo", "sqlite3", "html", "uuid"):
            (site.home / (name + ".py")).write_text("raise RuntimeError('the file of the owner')\n")
        for name in ("http", "json", "urllib"):
            (site.home / name).mkdir()
            (site.home / name / "__init__.py").write_text("raise RuntimeError('the folder of the owner')\n")
        self.assertEqual(self.error(site), None)
        ids = [site.add("look"), site.add("fails")]
        site.wait_for_all(ids)
        rows = site.rows("SELECT attempts, crashes, result, error_message FROM task ORDER BY id")
        self.assertEqual([tuple(row) for row in rows], [(1, 0, '"helped"', None), (1, 0, None, "the reason")])
        self.assertIn("the reason", site.run("log", ids[1]).stdout)
        self.assertIn("look", site.run("list", "--csv").stdout)
        site.run("schedule", "preview", "daily 01:00", "--tz", "Europe/Oslo")
        site.run("add", "look", "--each", "-", given="\n", code=None)
        address = site.start_server()
        with urllib.request.urlopen(address + "healthz") as answer:
            self.assertEqual(json.load(answer)["status"], "ok")

    def test_what_a_failed_reading_lacked_may_come_later(self):
        site = self.site("import helpermod\n" + LOOK)
        self.assertIn("helpermod", self.error(site)["message"])
        (site.home / "helpermod.py").write_text("def work(:\n")
        wait_until(lambda: "SyntaxError" in self.error(site)["message"], 60, "the next error")
        (site.home / "helpermod.py").write_text("def work(): pass\n")
        wait_until(lambda: self.error(site) is None, 60, "a reading that succeeds")
        self.assertEqual(self.names(site), ["look"])

    def test_what_was_known_stays_while_the_file_is_broken(self):
        site = self.site(LOOK)
        self.assertEqual(self.names(site), ["look"])
        (site.home / "tasks.py").write_text("import nothing_of_this_name\n")
        self.assertIn("nothing_of_this_name", self.error(site)["message"])
        self.assertEqual(self.names(site), ["look"])

    def test_what_it_starts_neither_delays_the_reading_nor_survives_it(self):
        for kind, text in STARTS.items():
            with self.subTest(kind):
                site = self.site(text + LOOK)
                self.assertIsNone(self.error(site))
                self.assertEqual(self.names(site), ["look"])
                home = site.home
                wait_until(lambda home=home: not processes_of(home), 20, "the end of what it started")

    def test_the_end_of_a_reading_has_a_reason(self):
        for text, words in (
            ("import os\nos._exit(3)\n", "ended with exit code 3"),
            ("import os\nos.kill(os.getpid(), 9)\n", "signal 9 (SIGKILL); the usual cause"),
            ("import os\nos.abort()\n", "signal 6 (SIGABRT)"),
        ):
            with self.subTest(words):
                self.assertIn(words, self.error(self.site(text))["message"])

    def test_it_is_read_by_its_path_whatever_has_its_name(self):
        site = self.site(LOOK)
        (site.home / "tasks").mkdir()
        (site.home / "tasks" / "__init__.py").write_text("")
        self.assertEqual(self.names(site), ["look"])
        self.assertEqual(site.run("wait", site.add("look")).returncode, 0)

    def test_a_file_that_has_the_name_of_a_module(self):
        site = self.site(LOOK)
        for name in ("json.py", "jobqueue.py", "tasks.v2.py", "my-tasks", "worker.py", "site.py"):
            path = site.home / "elsewhere" / name
            path.parent.mkdir(exist_ok=True)
            shutil.copy(site.home / "tasks.py", path)
            with self.subTest(name):
                answer = site.json("functions", environment={"JOBQUEUE_TASKS": str(path)})
                names = [function["name"] for function in answer["functions"]]
                self.assertEqual((names, answer["error"]), (["look"], None))

    def test_a_file_that_is_named_and_not_there_is_an_error(self):
        site = self.site(LOOK)
        answer = site.json("functions", environment={"JOBQUEUE_TASKS": "site/nope.py"})
        self.assertIn("nope.py", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
