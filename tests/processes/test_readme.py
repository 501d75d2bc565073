"""README.md's own code and commands, done by a newcomer in an empty folder."""
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jobqueue
from tests.helpers.support import ROOT, Site, need, wait_until

README = (ROOT / "README.md").read_text("utf-8")
ELSEWHERE = "/home/me/jobqueue"
MAILS = """
from jobqueue import task

@task
def send(to: str, subject: str):
    if to == "nobody":
        raise ValueError(to)

@task
def extract(month: str):
    pass

@task
def load(month: str):
    raise ValueError(month)

@task
def cleanup():
    pass
"""


def block(words, language=""):
    """The one piece of code of the README that holds these words."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", README, re.S | re.M)
    [text] = [text for kind, text in found if kind == language and words in text]
    return text


class Newcomer(unittest.TestCase):
    """A folder with nothing but what has to be copied there."""

    def setUp(self):
        self.site = Site(users=False)
        self.addCleanup(self.site.close)
        shutil.rmtree(self.site.home / "__pycache__")
        self.assertEqual(sorted(os.listdir(self.site.home)), ["jobqueue.py", "static", "worker.py"])
        programs = self.site.home.parent / "programs"
        programs.mkdir()
        (programs / "python3").symlink_to(sys.executable)
        self.environment = {**self.site.environment, "PATH": "%s:%s" % (programs, os.environ["PATH"])}

    def first_admin(self):
        """Somebody to whom tasks belong."""
        self.site.run("user", "add", "ann", "--admin", given="correct horse\n")

    def shell(self, text, code=0):
        """What commands print, as they stand in the README."""
        done = subprocess.run(["sh", "-ec", self.here(text)], cwd=self.site.home, capture_output=True,
                              env=self.environment, encoding="utf-8", timeout=120)
        self.assertEqual(done.returncode, code, (text, done.stdout, done.stderr))
        return done.stdout

    def here(self, text):
        """The README's text for our port and folder."""
        text = text.replace(ELSEWHERE, str(self.site.home))
        return text.replace("127.0.0.1:8000", re.sub(r"^\w+://|/$", "", self.site.address or ""))

    def start(self):
        """Start as "Try it" says, but on a free port; the code of the link."""
        command = re.search(r"```\n(python3 jobqueue\.py)\n```", README)[1]
        self.site.server = subprocess.Popen(
            ["sh", "-c", "exec %s --port 0" % command], cwd=self.site.home, env=self.environment,
            encoding="utf-8", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.site._children.append(self.site.server)
        self.site.address = re.search(r"http://\S+", self.site.server.stdout.readline())[0]
        for line in self.site.server.stdout:
            if "#setup=" in line:
                return line.strip().rpartition("#setup=")[2]

    def become_admin(self, code):
        """As the page does it."""
        body = json.dumps({"code": code, "name": "ann", "password": "correct horse"}).encode()
        headers = {"Content-Type": "application/json", "Origin": self.site.address.rstrip("/")}
        request = urllib.request.Request(self.site.address + "api/setup", body, headers)
        urllib.request.urlopen(request).close()

    def test_five_minutes_to_ones_own_function(self):
        self.become_admin(self.start())
        self.site.write_tasks(self.here(block("@task(max_retries=3", "python")))
        ids = [self.site.add("detect", latitude=59.9, longitude=-10.7),
               self.site.add("refresh_cache", section="a")]
        elsewhere = self.here(block("sys.path.append", "python")) + "\nprint(order_report('Bergen'))"
        need(shutil.which("curl"), "curl")
        with ThreadPoolExecutor() as pool:
            said = pool.submit(self.shell, block("id=$("))
            result = pool.submit(self.site.python, block("report.enqueue(", "python"))
            ids.append(int(subprocess.check_output([sys.executable, "-c", elsewhere], cwd="/",
                                                   env=self.site.environment)))
            ids.append(json.loads(self.shell(block("curl -H")))["id"])
        self.assertEqual((self.site.home / "token.txt").stat().st_mode & 0o077, 0)
        self.assertIn("Write the monthly report of a city.", said.result())
        self.assertRegex(said.result(), r'result +\{"city":"Oslo","pages":5\}')
        self.assertEqual(ast.literal_eval(result.result()), {"city": "Oslo", "pages": 5})
        tasks = [self.site.wait(task_id) for task_id in ids]
        self.assertEqual([task["status"] for task in tasks], ["succeeded"] * 4, tasks)
        self.assertIn("['-c', '59.9', '-10.7']", self.site.run("log", ids[0]).stdout)

    def test_the_pages_own_sample_runs_and_is_the_readmes(self):
        script = (ROOT / "static" / "forms.js").read_text("utf-8")
        sample = re.search(r"const EXAMPLE = `(.*?)`;", script, re.S)[1]
        self.assertIn(sample.partition("\n\n")[2], block("@task(max_retries=3", "python"))
        self.first_admin()
        self.site.write_tasks(sample)
        task = self.site.wait(self.site.add("detect", latitude=1, longitude=2))
        self.assertEqual(task["status"], "succeeded", task)

    def test_many_at_once_and_in_order(self):
        self.first_admin()
        self.site.write_tasks(MAILS)
        (self.site.home / "recipients.csv").write_text("to\nbob\nnobody\nkim\n")
        self.assertEqual(self.shell(block("--each recipients.csv")), "3 tasks\n")
        self.site.python("from tasks import *\n" + block("extract.enqueue(", "python"))
        wait_until(lambda: not self.site.value("SELECT count(*) FROM task WHERE status NOT IN (2, 3)"))
        rows = self.site.rows("SELECT function, status FROM task "
                              "WHERE status<>2 OR function='cleanup' ORDER BY id")
        self.assertEqual([tuple(row) for row in rows], [("send", 3), ("load", 3), ("cleanup", 2)])
        asked, done = block("retry --status failed").splitlines()
        self.shell(asked, code=5)
        self.shell(done)
        wait_until(lambda: self.site.value(
            "SELECT attempts FROM task WHERE status=3 AND function='send'") == 2)

    def test_at_times(self):
        self.first_admin()
        self.site.write_tasks(block("@schedule(", "python"))
        self.site.run("tick")
        self.assertEqual(len(self.site.json("schedule", "list")["schedules"]), 2)
        [line] = re.findall(r"`python3 jobqueue\.py (schedule add [^`]+)`", README)
        self.site.run(*shlex.split(line))
        command, *answer = block("schedule preview \"30").splitlines()
        self.assertEqual(self.shell(command).splitlines(), answer)

    def test_settings_queues_and_the_backup(self):
        self.first_admin()
        self.shell(block("settings trusted_proxies"))
        self.shell(block("queue set mail"))
        [mail] = [one for one in self.site.json("queue", "list")["queues"] if one["name"] == "mail"]
        self.assertEqual((mail["max_running"], mail["rate"], mail["machines"], mail["paused"]),
                         (2, {"count": 500, "seconds": 3600}, ["web1", "web2"], True))
        self.shell(block("jobqueue.py backup FILE\n"))
        self.assertTrue((self.site.home / "FILE").is_file())


class Commands(unittest.TestCase):

    def test_the_list_of_commands_is_complete(self):
        listed = set(re.findall(r"^python3 jobqueue\.py +(.*)", block("serve --host H --port P"), re.M))
        named = {word for line in listed for part in line.split(" | ")
                 for word in part.split()[0].split("|")}
        self.assertLessEqual(set(jobqueue.COMMANDS), named)

    def test_options_that_it_names_are_options(self):
        known = {option for _, arguments in jobqueue.COMMANDS.values() for option, _ in arguments}
        named = set(re.findall(r"--[a-z-]+", block("serve --host H --port P")))
        self.assertLessEqual(named, known)


if __name__ == "__main__":
    unittest.main()
