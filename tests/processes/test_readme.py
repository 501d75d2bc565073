"""The code and commands of README.md and the handbook, done by a newcomer in an empty folder."""
import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jobqueue
from tests.helpers import postgres
from tests.helpers.support import ROOT, Site, need, wait_until
from tests.helpers.web import Visitor

README = ROOT / "README.md"
DOCS = ROOT / "static" / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md")), ROOT / "static" / "hosts" / "README.md"]
ELSEWHERE = "/home/me/jobqueue"
# Every block of code of these pages, by words of it: the test that runs it, or why none does.
BLOCKS = {
    "&& cd jobqueue": "test_cloning_gives_all_that_is_needed",
    "^python3 jobqueue.py$": "start",
    "def hello(name: str)": "test_the_pages_own_sample_runs_and_is_the_readmes",
    "@task(max_retries=3": "test_five_minutes_to_ones_own_function",
    "id=$(": "test_five_minutes_to_ones_own_function",
    "from tasks import report": "test_five_minutes_to_ones_own_function",
    "def order_report": "test_five_minutes_to_ones_own_function",
    "-H \"Content-Type: application/json\"": "test_five_minutes_to_ones_own_function",
    "function order_report($city)": "test_adding_from_php",
    "function add_report($city)": "test_adding_from_php",
    "JobQueueException $error": "test_a_form_of_php",
    "def send_message": "test_a_form_of_php",
    "django-admin startproject": "test_a_django_project",
    "INSTALLED_APPS +=": "test_a_django_project",
    "def add(a: int, b: int)": "test_a_django_project",
    "manage.py shell -c": "test_a_django_project",
    "def ask(result_id)": "test_a_django_project",
    "django_project(\"mysite.settings\"": "test_a_django_project",
    "def order():": "test_a_django_project",
    "@schedule(\"daily 07:00\", zone": "test_a_django_project",
    "def save(number)": "test_a_django_project",
    "application = mount(": "test_a_django_project",
    "from flask import Flask": "test_a_django_project",
    "@override_settings(TASKS": "test_a_django_project",
    "command(\"newsletter\"": "test_functions_of_all_kinds_are_announced",
    "node:fs": "test_adding_from_javascript",
    "python3 -m unittest": "it runs this test, too",
    "kind: Literal": "test_functions_of_all_kinds_are_announced",
    "\"detect.py\"": "test_functions_of_all_kinds_are_announced",
    "external(\"render\"": "test_functions_of_all_kinds_are_announced",
    "--each recipients.csv": "test_many_at_once_and_in_order",
    "retry --status failed": "test_many_at_once_and_in_order",
    "extract.enqueue(": "test_many_at_once_and_in_order",
    "@schedule(\"every 15m\")": "test_at_times",
    "schedule preview": "test_at_times",
    "queue set mail": "test_settings_and_queues",
    "settings trusted_proxies": "test_settings_and_queues",
    "git clone -q": "test_cloning_gives_all_that_is_needed",
    "jobqueue.py backup FILE": "test_a_backup_and_what_is_restored_from_it",
    "jobqueue.py restore FILE": "test_a_backup_and_what_is_restored_from_it",
    "def tell(subject": "test_telling_of_alerts",
    "settings alert_function tell": "test_telling_of_alerts",
    "settings alert_mail": "test_telling_of_alerts",
    "hooks.slack.com": "test_telling_of_alerts",
    "page_address https://example.org": "test_telling_of_alerts",
    "token add office": "test_a_worker_over_https",
    "worker.py --server": "test_a_worker_over_https",
    "def histogram(photo": "test_a_photo_in_and_a_picture_out",
    "add histogram": "test_a_photo_in_and_a_picture_out",
    "--data-binary @holiday.jpg": "test_a_photo_in_and_a_picture_out",
    "http://page.internal:8000": "test_a_photo_in_and_a_picture_out",
    "psycopg[binary]": "it fetches a package",
    "> data)": "test_postgresql",
    "jobqueue.py export FILE": "test_moving",
    "jobqueue.py import FILE": "test_moving",
    "JobQueueError": "test_names_and_calls_of_python",
    "queue.enqueue_many(": "test_names_and_calls_of_python",
    "(cat token.txt)\" http": "test_a_token_for_a_program",
    "drill.py --minutes 5": "it takes minutes; the tests of the drill run shorter ones",
    "load_test.py --rate 5": "it takes minutes; the tests of the load test run shorter ones",
}
# sql is compared with the worker that uses it; text is none
RUNNABLE = ("sh", "python", "php", "js")
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
REPORT = """
from jobqueue import task

@task
def report(city: str, month: str):
    return {"city": city, "month": month}
"""


def read(page):
    """The text of a page."""
    return page.read_text("utf-8")


def blocks():
    """Every piece of code of the pages that could be run."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", "".join(map(read, PAGES)), re.S | re.M)
    return [text for language, text in found if language in RUNNABLE]


def block(words):
    """The one piece of code that holds these words, which BLOCKS must know."""
    [text] = [text for text in blocks() if holds(text, words)]
    if words not in BLOCKS:
        raise KeyError(words)
    return text


def holds(text, words):
    """Whether these words are there; between ^ and $ they are all of it."""
    return text.strip() == words[1:-1] if words.startswith("^") else words in text


class Newcomer(unittest.TestCase):
    """A folder with nothing but what has to be copied there."""

    def setUp(self):
        self.site = Site(users=False)
        self.addCleanup(self.site.close)
        shutil.rmtree(self.site.home / "__pycache__")
        self.assertEqual(sorted(os.listdir(self.site.home)), ["jobqueue.py", "static", "worker.py"])
        programs = self.site.home.parent / "programs"
        programs.mkdir()
        (programs / "python3").write_text('#!/bin/sh\nexec "%s" "$@"\n' % sys.executable)
        (programs / "python3").chmod(0o755)         # a link would not find the packages of a venv
        path = "%s:%s" % (programs, os.environ["PATH"])
        self.environment = {**self.site.environment, "PATH": path}

    def first_admin(self):
        """Somebody to whom tasks belong."""
        self.site.run("user", "add", "ann", "--admin", given="correct horse\n")

    def shell(self, text, code=0, program=("sh", "-ec")):
        """What commands print, as they stand on the page."""
        done = subprocess.run([*program, self.here(text)], cwd=self.site.home, capture_output=True,
                              env=self.environment, encoding="utf-8", timeout=120)
        self.assertEqual(done.returncode, code, (text, done.stdout, done.stderr))
        return done.stdout

    def here(self, text):
        """A page's text for our port, folder and repository."""
        text = text.replace("ADDRESS_OF_THIS_REPOSITORY", str(ROOT))
        text = text.replace(ELSEWHERE, str(self.site.home))
        return text.replace("127.0.0.1:8000", re.sub(r"^\w+://|/$", "", self.site.address or ""))

    def start(self):
        """Start as README says, but on a free port; the code of the link."""
        command = block("^python3 jobqueue.py$").strip()
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
        body = {"code": code, "name": "ann", "password": "correct horse"}
        self.assertEqual(Visitor(self.site.address).post("/api/setup", body).status, 201)

    def test_five_minutes_to_ones_own_function(self):
        self.become_admin(self.start())
        self.site.write_tasks(self.here(block("@task(max_retries=3")))
        ids = [self.site.add("detect", latitude=59.9, longitude=-10.7),
               self.site.add("refresh_cache", section="a")]
        elsewhere = self.here(block("def order_report")) + "\nprint(order_report('Bergen'))"
        need(shutil.which("curl"), "curl")
        with ThreadPoolExecutor() as pool:
            said = pool.submit(self.shell, block("id=$("))
            result = pool.submit(self.site.python, block("from tasks import report"))
            ids.append(int(subprocess.check_output([sys.executable, "-c", elsewhere], cwd="/",
                                                   env=self.site.environment)))
            added = self.shell(block("-H \"Content-Type: application/json\""))
            ids.append(json.loads(added)["id"])
        self.assertEqual((self.site.home / "token.txt").stat().st_mode & 0o077, 0)
        self.assertIn("Write the monthly report of a city.", said.result())
        self.assertRegex(said.result(), r'result +\{"city":"Oslo","pages":5\}')
        self.assertEqual(ast.literal_eval(result.result()), {"city": "Oslo", "pages": 5})
        tasks = [self.site.wait(task_id) for task_id in ids]
        self.assertEqual([task["status"] for task in tasks], ["succeeded"] * 4, tasks)
        self.assertIn("['-c', '59.9', '-10.7']", self.site.run("log", ids[0]).stdout)
        [weekly] = self.site.json("schedule", "list")["schedules"]
        self.assertEqual(weekly["function"], "report")

    def test_cloning_gives_all_that_is_needed(self):
        need(shutil.which("git") and (ROOT / ".git").exists(), "git and the repository")
        self.environment["HOME"] = str(self.site.home)
        (self.site.home / "public_html").mkdir()
        self.shell(block("&& cd jobqueue") + block("git clone -q"))
        for folder in ("jobqueue", "public_html/jq"):
            for name in ("jobqueue.py", "worker.py", "static/index.html", ".htaccess"):
                self.assertTrue((self.site.home / folder / name).is_file(), name)
        self.assertTrue(os.access(self.site.home / "public_html/jq/jobqueue.cgi", os.X_OK))

    def test_adding_from_php(self):
        need(shutil.which("php"), "php")
        self.first_admin()
        self.site.write_tasks(REPORT)
        code = block("function order_report($city)").replace("<?php", "")
        code = code.replace(ELSEWHERE, shlex.quote(str(self.site.home)))
        said = self.shell(code + "echo order_report(\"L'Aquila\");", program=("php", "-r"))
        task = self.site.wait(int(said))
        self.assertEqual(task["arguments"], {"city": "L'Aquila", "month": "2026-01-31"})
        self.assertEqual(self.by_class("function add_report($city)", "echo add_report(\"L'Aquila\");"),
                         str(task["id"] + 1))

    def by_class(self, words, call):
        """Run a block that uses the class for PHP, and then `call`; what it prints."""
        self.site.run("token", "add", "site", "--file", "token.txt")
        code = block(words).replace("<?php", "").replace(ELSEWHERE, str(self.site.home))
        address = self.site.start_server()
        for example in ("http://127.0.0.1:8000/", "https://example.org/jq/"):
            code = code.replace(example, address)
        return self.shell(call[:-1] + code if call.endswith("+") else code + call, program=("php", "-r"))

    def test_a_form_of_php(self):
        need(shutil.which("php"), "php")
        self.first_admin()
        self.site.write_tasks(block("def send_message"))
        said = self.by_class("JobQueueException $error", "$_POST = ['sender' => 'eve@example.org',"
                             " 'message' => 'Hello'];+")
        self.assertEqual(said, "Thank you. Your message has the number 1.")
        self.assertEqual(self.site.json("show", 1)["arguments"]["sender"], "eve@example.org")

    def test_a_django_project(self):
        django = os.environ.get("JOBQUEUE_TEST_DJANGO")
        need(django, "JOBQUEUE_TEST_DJANGO, see tests/README.md")
        place = tempfile.TemporaryDirectory()       # its name has no space
        self.addCleanup(place.cleanup)
        folder = Path(place.name)
        ours, project = folder / "jobqueue", folder / "mysite"
        ours.symlink_to(self.site.home)
        self.environment["PATH"] = "%s/newest/bin:%s" % (django, self.environment["PATH"])

        def code(words):
            return block(words).replace("/home/me", str(folder))

        def run(text, **how):
            done = subprocess.run(["sh", "-ec", text], capture_output=True, encoding="utf-8", timeout=120,
                                  **{"cwd": project, "env": self.environment, **how})
            self.assertEqual(done.returncode, 0, (text, done.stdout, done.stderr))
            return done.stdout

        def append(name, text):
            with open(project / name, "a") as file:
                file.write(text)
        start, admin = code("django-admin startproject").splitlines()
        run(start, cwd=folder)
        run(admin, input="correct horse\n")
        append("mysite/settings.py", code("INSTALLED_APPS +="))
        append("blog/tasks.py", code("def add(a: int, b: int)"))
        self.assertIn("succeeded", run(code("manage.py shell -c")))
        written = (self.site.home / "tasks.py").read_text().replace("'", '"')
        self.assertEqual(written, code("django_project(\"mysite.settings\""))
        append("blog/tasks.py", code("@schedule(\"daily 07:00\", zone"))
        (project / "try.py").write_text("\n".join(map(code, (
            "def ask(result_id)", "def order():", "def save(number)", "from flask import Flask",
            "@override_settings(TASKS"))) + """
test_something()
import time
result = order()
save(7)
while not result.is_finished:
    time.sleep(0.1)
    result.refresh()
print(result.status, ask(add.enqueue(3, 4).id), app.wsgi_app)
""")
        (project / "flask.py").write_text("class Flask:\n    def __init__(self, name):\n"
                                          "        self.wsgi_app = None\n")
        said = run("python manage.py shell -c 'exec(open(\"try.py\").read())'")
        self.assertRegex(said, "SUCCESSFUL (None|7) <function mount")
        [row] = self.site.json("schedule", "list")["schedules"]
        self.assertEqual((row["function"], row["rule"]), ("blog.tasks.load", "daily 07:00"))
        append("mysite/wsgi.py", code("application = mount("))
        self.assertIn("<title>", run("""python -c '
from mysite.wsgi import application
from wsgiref.util import setup_testing_defaults
environ = {"PATH_INFO": "/jobs/"}
setup_testing_defaults(environ)
print(b"".join(application(environ, print)).decode())'"""))

    def test_adding_from_javascript(self):
        need(shutil.which("node"), "node")
        self.first_admin()
        self.site.write_tasks(REPORT)
        self.site.start_server("--port", 0)
        self.site.run("token", "add", "laptop", "--file", "token.txt")
        said = self.shell(block("node:fs"), program=("node", "--input-type=module", "--eval"))
        self.assertEqual(self.site.wait(int(said))["status"], "succeeded")

    def test_a_token_for_a_program(self):
        need(shutil.which("curl"), "curl")
        self.first_admin()
        self.site.start_server("--port", 0)
        said = self.shell(block("(cat token.txt)\" http"))
        self.assertEqual(json.loads(said[said.index("{"):])["tasks"], [])

    def test_functions_of_all_kinds_are_announced(self):
        self.first_admin()
        self.site.write_tasks(block("kind: Literal") + block("external(\"render\"")
                              + block("\"detect.py\"") + block("command(\"newsletter\""))
        said = self.site.run("functions").stdout
        for name in ("convert", "Convert a picture.", "detect", "refresh_cache", "render", "newsletter"):
            self.assertIn(name, said)

    def test_the_pages_own_sample_runs_and_is_the_readmes(self):
        script = (ROOT / "static" / "forms.js").read_text("utf-8")
        lines = re.search(r"const EXAMPLE = \[\n(.*?)\]\.join", script, re.S)[1]
        sample = "\n".join(re.findall(r"^  '(.*)',$", lines, re.M))
        self.assertEqual(sample, block("def hello(name: str)"))
        self.first_admin()
        self.site.write_tasks(sample)
        self.assertEqual(self.site.wait(self.site.add("hello", name="Zoë"))["result"], "Hello Zoë")

    def test_many_at_once_and_in_order(self):
        self.first_admin()
        self.site.write_tasks(MAILS)
        (self.site.home / "recipients.csv").write_text("to\nbob\nnobody\nkim\n")
        self.assertEqual(self.shell(block("--each recipients.csv")), "3 tasks\n")
        self.site.python("from tasks import *\n" + block("extract.enqueue("))
        wait_until(lambda: not self.site.value(
            "SELECT count(*) FROM task WHERE status NOT IN (2, 3)"))
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
        self.site.write_tasks(block("@schedule(\"every 15m\")"))
        self.site.run("tick")
        self.assertEqual(len(self.site.json("schedule", "list")["schedules"]), 2)
        text = read(DOCS / "schedules.md")
        [line] = re.findall(r"`python3 jobqueue\.py (schedule add [^`]+)`", text)
        self.site.run(*shlex.split(line))
        [answer] = re.findall(r"^```text\n(.*?)^```", text, re.S | re.M)
        self.assertEqual(self.shell(block("schedule preview")), answer)

    def test_settings_and_queues(self):
        self.first_admin()
        self.shell(block("settings trusted_proxies"))
        self.shell(block("queue set mail"))
        [mail] = [one for one in self.site.json("queue", "list")["queues"] if one["name"] == "mail"]
        self.assertEqual((mail["max_running"], mail["rate"], mail["machines"], mail["paused"]),
                         (2, {"count": 500, "seconds": 3600}, ["web1", "web2"], True))

    @postgres.about_sqlite("a copy of its file")
    def test_a_backup_and_what_is_restored_from_it(self):
        self.first_admin()
        self.shell(block("jobqueue.py backup FILE"))
        self.site.run("user", "add", "eve", given="correct horse\n")
        self.site.stop_all(signal.SIGTERM)
        self.shell(block("jobqueue.py restore FILE"))
        self.assertEqual([user["name"] for user in self.site.json("user", "list")["users"]], ["ann"])

    def elsewhere(self, *names):
        """A folder on another machine with these files of the site."""
        folder = self.site.home.parent / "elsewhere"
        folder.mkdir()
        for name in ("jobqueue.py", "worker.py", *names):
            shutil.copy2(self.site.home / name, folder / name)
        return folder

    def keep_working(self, folder, command):
        """Start a worker there, which ends with the test."""
        process = subprocess.Popen(["sh", "-c", "exec " + command], cwd=folder, env=self.environment,
                                   stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.terminate)

    def test_a_worker_over_https(self):
        self.first_admin()
        self.site.start_server("--port", 0)
        self.shell(block("token add office"))
        folder = self.elsewhere("worker-token.txt")
        (folder / "tasks.py").write_text(REPORT)
        self.keep_working(folder, block("worker.py --server").replace(
            "https://example.org/jobs", self.site.address.rstrip("/")))
        wait_until(lambda: "report" in self.site.run("functions").stdout)
        task = self.site.wait(self.site.add("report", city="Oslo", month="2026-01"))
        self.assertEqual((task["status"], task["queue"]), ("succeeded", "remote"))
        self.assertTrue((folder / "data-remote").is_dir())

    @unittest.skipUnless(postgres.ADDRESS, "there is no PostgreSQL: JOBQUEUE_TEST_DATABASE")
    def test_postgresql(self):
        del self.environment["JOBQUEUE_DATABASE"]
        address = self.site.place.pop("JOBQUEUE_DATABASE")
        self.site.write_tasks(REPORT)
        self.shell(re.sub(r'"postgresql://[^"]+"', '"%s"' % address, block("> data)")))
        self.assertEqual((self.site.home / "data").stat().st_mode & 0o077, 0)
        self.first_admin()
        self.assertTrue((self.site.home / "data-local" / "locks").is_dir())
        self.site.run("settings", "NbMaxWorker", 1)
        self.keep_working(self.elsewhere("data", "tasks.py"), "python3 worker.py --service")
        wait_until(lambda: self.site.json("workers")["workers"])
        task = self.site.wait(self.site.add("report", city="Oslo", month="2026-01"))
        self.assertEqual(task["status"], "succeeded")

    def test_moving(self):
        self.first_admin()
        self.site.write_tasks(REPORT)
        self.site.run("queue", "pause", "default")
        task_id = self.site.add("report", city="Oslo", month="2026-01")
        self.shell(block("jobqueue.py export FILE"))
        (self.site.home / "data").rename(self.site.home.parent / "left behind")
        self.environment.pop("JOBQUEUE_DATABASE", None)     # from PostgreSQL, where the tests run on it
        self.site.place.clear()
        self.assertIn("1 users, 1 tasks", self.shell(block("jobqueue.py import FILE")))
        self.site.run("queue", "resume", "default")
        self.assertEqual(self.site.wait(task_id)["status"], "succeeded")

    def test_telling_of_alerts(self):
        self.first_admin()
        self.site.write_tasks(block("def tell(subject"))
        (self.site.home / "mail-password.txt").write_text("word")
        for words in ("settings alert_mail", "hooks.slack.com", "page_address https://example.org"):
            self.shell(block(words).replace("/home/me/mail-", "'%s'/mail-" % self.site.home))
        self.assertNotIn("word", self.site.run("settings", "alert_webhook").stdout)
        self.site.settings(alert_mail="", alert_webhook="")
        self.shell(block("settings alert_function tell"))
        self.site.run("alert", "test")
        [task] = self.site.json("list", "--function", "tell")["tasks"]
        self.assertEqual(self.site.wait(task["id"])["status"], "succeeded")

    def test_a_photo_in_and_a_picture_out(self):
        need(shutil.which("curl"), "curl")
        self.first_admin()
        self.site.write_tasks(block("def histogram(photo"))
        (self.site.home / "holiday.jpg").write_bytes(bytes(range(256)) + b"x" * 99)
        self.shell(block("add histogram"))
        self.assertEqual((self.site.home / "pictures" / "holiday.png").read_bytes()[:4], b"\x89PNG")
        (self.site.home / "token.txt").write_text(self.site.token("ann"))
        self.site.start_server("--port", 0)
        told = self.shell(block("--data-binary @holiday.jpg").replace(
            "http://127.0.0.1:8000/", self.site.address))
        self.assertEqual(json.loads(told)["size"], 355)
        self.shell(block("http://page.internal:8000"))

    def test_names_and_calls_of_python(self):
        self.first_admin()
        self.site.write_tasks(REPORT)
        said = self.site.python(self.here(block("JobQueueError") + block("queue.enqueue_many(")))
        self.assertEqual(ast.literal_eval(said), {"city": "Oslo", "month": "2026-01-31"})


class Pages(unittest.TestCase):

    def test_every_block_of_code_is_run_or_has_a_reason_why_not(self):
        known = {text: [words for words in BLOCKS if holds(text, words)] for text in blocks()}
        self.assertEqual({text: words for text, words in known.items() if len(words) != 1}, {})
        self.assertEqual(set(BLOCKS) - {words for [words] in known.values()}, set())
        for name in filter(str.isidentifier, BLOCKS.values()):
            self.assertTrue(hasattr(Newcomer, name), name)

    def test_readme_is_an_entrance_of_at_most_12_kilobytes(self):
        self.assertLessEqual(README.stat().st_size, 12000)

    def test_files_that_are_named_or_linked_exist_and_so_do_sections(self):
        for page in PAGES:
            text = read(page)
            named = [ROOT / path for path in re.findall(r"`((?:static|tests)/[\w./]+\.\w+)`", text)]
            for path, _, section in re.findall(r"\]\(([^)#\s]*)(#([\w-]+))?\)", text):
                target = (page.parent / path).resolve() if path else page
                named.append(target)
                if section:
                    self.assertIn(section, sections(target), page)
            for target in named:
                self.assertTrue(target.is_file(), (page, target))

    def test_pictures_are_small_and_are_shown(self):
        shown = {(page.parent / path).resolve() for page in PAGES
                 for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))}
        there = set((ROOT / "tests" / "images").iterdir())
        self.assertEqual(shown, there)
        for picture in there:
            self.assertLess(picture.stat().st_size, 100000, picture)

    def test_the_tests_behind_the_promises_exist(self):
        named = set(re.findall(r"`(test_\w+)`", read(DOCS / "promises.md")))
        self.assertGreater(len(named), 8)
        there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
        self.assertEqual(named - there, set())

    def test_the_table_of_files_to_copy_is_complete(self):
        named = re.findall(r"^\| `([\w.-]+)`", PAGES[-1].read_text("utf-8"), re.M)
        there = {path.name for path in (ROOT / "static" / "hosts").iterdir()}
        self.assertEqual(set(named), there - {"README.md"})


def sections(page):
    """What links can name: the page's headings as addresses."""
    titles = re.findall("(?m)^#+ (.+)$", page.read_text("utf-8"))
    return {re.sub("[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


class Commands(unittest.TestCase):

    def setUp(self):
        text = read(DOCS / "commands.md")
        [self.list] = re.findall(r"^```text\n(.*?)^```", text, re.S | re.M)

    def test_the_list_of_commands_is_complete(self):
        listed = set(re.findall(r"^python3 jobqueue\.py +(.*)", self.list, re.M))
        named = {word for line in listed for part in line.split(" | ")
                 for word in part.split()[0].split("|")}
        self.assertLessEqual({name.split()[0] for name in jobqueue.COMMANDS}, named)

    def test_commands_and_options_that_pages_name_are_there(self):
        known = {"--server", "--token-file", "--json", "--data", "--help"} | {
            option for _, arguments, *_ in jobqueue.COMMANDS.values() for option, _ in arguments}
        commands = {name.split()[0] for name in jobqueue.COMMANDS}
        self.assertLessEqual(set(re.findall(r"--[a-z-]+", self.list)), known)
        for page in PAGES:
            text = page.read_text("utf-8")
            text = text.replace(self.list, "")
            for line in re.findall(r"python3 jobqueue\.py +([a-z][^`\n]*)", text):
                self.assertIn(line.split()[0], commands, page)
                self.assertLessEqual(set(re.findall(r"(?<= )--[a-z-]+", line)), known)


if __name__ == "__main__":
    unittest.main()
