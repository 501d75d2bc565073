"""jobqueue.DjangoBackend as the backend of Django's tasks, with each Django that is supported.

JOBQUEUE_TEST_DJANGO names a folder of virtual environments, 4.2, 5.2, 6.0 and newest. In each there is that
Django, up to 5.2 with the package django-tasks, and for PostgreSQL psycopg. helpers/django_contract.py has
what Django documents, tried inside the project. Here are the ways through several processes.
"""
import json
import os
import shutil
import signal
import subprocess
import unittest

from tests.helpers import django_site, postgres
from tests.helpers.django_site import DjangoSite
from tests.helpers.support import ROOT, need, need_part, wait_until

ASK = '''
from django.test import Client
answer = Client().post("/ask", {"to": "Zoë", "text": "hello"})
assert answer.status_code == 200, answer.content
print(answer.content.decode())
'''
LOOK = '''
from django.test import Client
from blog import letters
wait(letters.write.get_result(%r))
print(Client().get("/look/%s").content.decode())
'''
CONFIGURED = '''
import django
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "jobqueue.DjangoBackend"}}, SECRET_KEY="x",
                   INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "blog"])
django.setup()
from blog.letters import write
try:
    write.enqueue("me")
except Exception as error:
    print(repr(error))
'''
TASKS_FILE = "from jobqueue import django_project\n\ndjango_project('mysite.settings')\n"
BROKEN = '''
import os
from blog.tasks import task

if "AT_THE_SITE" not in os.environ:
    raise KeyError("a module that only the worker cannot import")


@task
def job():
    pass
'''
TASKS_APP = '''
from blog.tasks import task


@task
def hello():
    return "hello"
'''
OWN_TASKS_FILE = '''from jobqueue import django_project, task

@task
def hello(name: str):
    return "hello " + name

django_project("mysite.settings", who="user")
'''


def python_of(name):
    """The Python of the virtual environment with that Django."""
    need_part("django")
    folder = django_site.folder()
    need(folder, "JOBQUEUE_TEST_DJANGO, a folder of virtual environments with Django")
    path = folder / name / "bin" / "python"
    need(path.exists(), "a virtual environment %s with Django" % path.parents[1])
    return path


class DjangoTests:
    """The tests of one Django. Most share a project; those that change its settings or tasks.py make one."""

    django = ""                         # the name of the virtual environment
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.site = DjangoSite(python_of(cls.django))
        cls.addClassCleanup(cls.site.close)

    def make(self, lines=""):
        """A project of the test's own, with these lines in its settings."""
        site = DjangoSite(python_of(self.django), lines)
        self.addCleanup(site.close)
        return site

    def test_what_django_documents(self):
        shutil.copy(ROOT / "tests" / "helpers" / "django_contract.py", self.site.home / "contract.py")
        done = self.site._complete(["contract.py"], None, None, None, 600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"Ran [1-9]\d+ tests")

    def test_a_view_adds_a_task_and_another_process_reads_it(self):
        answer = json.loads(self.site.script(ASK))
        self.assertEqual(answer["status"], "READY")
        self.assertEqual(self.site.script(LOOK % (answer["id"], answer["id"])), "Zoë: hello")
        names = [line["signal"] for line in self.site.signals(answer["id"])]
        self.assertEqual(sorted(names), ["task_enqueued", "task_finished", "task_started"])

    def test_after_the_death_of_its_worker_a_task_begins_again(self):
        key = self.site.script("print(wait_for.enqueue('slow').id)")
        wait_until(lambda: self.site.read("slow.began"), what="its beginning")
        for pid in self.site.workers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.site.runners(), what="the end of the worker and its runner")
        self.site.run("tick")
        wait_until(lambda: self.site.read("slow.began") == "1\n2\n", what="the second beginning")
        said = self.site.script(
            "result = wait_for.get_result(%r); print(result.status.value, result.attempts)" % key)
        self.assertEqual(said, "RUNNING 2")
        self.site.touch("slow")
        value, attempts, workers, errors, times = json.loads(self.site.script('''
result = wait(wait_for.get_result(%r))
print(json.dumps([result.return_value, result.attempts, result.worker_ids, [
    error.exception_class.__name__ for error in result.errors], [str(at) for at in (
    result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)]]))
''' % key))
        self.assertEqual(value, [2, ["builtins.ChildProcessError"]])
        self.assertEqual((attempts, len(set(workers)), errors), (2, 2, ["ChildProcessError"]))
        self.assertEqual(times, sorted(set(times)))
        self.assertEqual([line["signal"] for line in self.site.signals(key)
                          if line["signal"] != "task_enqueued"],
                         ["task_started", "task_started", "task_finished"])

    def test_the_command_line_knows_the_tasks(self):
        self.site.script("wait(add.enqueue(1))")
        functions = {function["name"]: function for function in self.site.json("functions")["functions"]}
        add = functions["blog.tasks.add"]
        self.assertEqual((add["title"], add["who"]), ("Add two numbers.", "admin"))
        self.assertEqual(add["schema"]["required"], ["a"])
        first, second = add["schema"]["properties"]["a"], add["schema"]["properties"]["b"]
        self.assertEqual((first["type"], first["description"]), ("integer", "the first one"))
        self.assertEqual((second["type"], second["default"]), ("integer", 2))
        self.assertNotIn("context", functions["blog.tasks.flaky"]["schema"]["properties"])
        self.assertEqual(functions["blog.tasks.mail"]["options"]["queue"], "mail")
        self.assertEqual(functions["blog.tasks.mail"]["options"]["priority"], 10)
        self.assertIs(functions["blog.tasks.shape"]["schema"]["additionalProperties"], True)
        self.assertIn("blog.tasks.fail_later", functions)

    def test_the_command_line_adds_tasks(self):
        self.site.script("wait(add.enqueue(1))")
        task_id = self.site.add("blog.tasks.add", a=1, b=2)
        self.assertEqual(self.site.wait(task_id)["result"], 3)
        self.assertEqual(self.site.wait(self.site.add("blog.tasks.mail", to="me"))["result"], "to me")
        self.assertEqual(self.site.wait(self.site.add("blog.tasks.flaky", good=1))["result"]["args"], [])
        for function, arguments, result in (
                ("shape", {"first": 1, "named": "n", "more": "m"}, [1, 2, 3, [], "n", 5, {"more": "m"}]),
                ("shape", {"first": 1, "third": 0, "named": ""}, [1, 2, 0, [], "", 5, {}]),
                ("plain", {"first": 1, "rest": "[3]"}, [1, 2, [3]]),
                ("plain", {"second": 3, "first": 2}, [2, 3, []])):
            with self.subTest(function, **arguments):
                task_id = self.site.add("blog.tasks." + function, **arguments)
                self.assertEqual(self.site.wait(task_id)["result"], result)
        refused = self.site.run("add", "blog.tasks.add", "a=many", code=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("a", refused.stderr)

    def test_a_task_of_the_command_line_has_a_result(self):
        self.site.script("wait(add.enqueue(1))")
        task_id = self.site.add("blog.tasks.add", a=5)
        self.site.wait(task_id)
        self.assertEqual(json.loads(self.site.script('''
from jobqueue import default_queue, result_view, sign_id
view = result_view(default_queue(), %d)
result = add.get_result(sign_id(view["id"], view["created_at"]))
print(json.dumps([result.return_value, result.args, result.kwargs]))
''' % task_id)), [7, [], {"a": 5}])

    def test_people_see_the_arguments_as_they_were_given(self):
        task_id = int(self.site.script("print(wait(add.enqueue(1, b=5)).id)").partition("-")[0])
        shown = self.site.json("show", task_id)
        self.assertEqual((shown["function"], shown["arguments"], shown["result"]),
                         ("blog.tasks.add", {"a": 1, "b": 5}, 6))

    def test_nothing_is_left_behind_and_the_runner_is_kept(self):
        self.site.stop_all()
        self.site.settings(worker_mode="cron", linger=0)
        self.addCleanup(self.site.settings, worker_mode="detached", linger=60)
        keys = json.loads(self.site.script('''
results = []
for number in range(3):
    results += [process.enqueue(), count_later.enqueue(), register.enqueue("w%d" % number),
                mail.enqueue("me"), fail_later.enqueue(), parent_later.enqueue(1), fail.enqueue("odd")]
print(json.dumps([result.id for result in results]))
'''))
        worker = self.site.start_worker("--verbose", "--seconds", "30", stderr=subprocess.PIPE,
                                        encoding="utf-8")
        said = worker.communicate(timeout=120)[1]
        self.assertEqual(worker.returncode, 0, said)
        self.assertNotIn("left behind", said)
        self.assertRegex(said, "task [0-9]+: succeeded")
        pids = json.loads(self.site.script('''
results = [default_task_backend.get_result(key) for key in %r]
assert all(result.is_finished for result in results), results
print(json.dumps([result.return_value for result in results if result.task == process]))
''' % keys))
        self.assertEqual([was_open for _, was_open in pids], [False] * 3)
        self.assertEqual(len({pid for pid, _ in pids}), 1, said)

    def test_wrong_settings_are_found_by_manage(self):
        self.assertIn("no issues", self.site.manage("check").stdout)
        for change, key in (({"OPTIONS": {"ovner": "ana"}}, "jobqueue.E001"),
                            ({"QUEUES": ["default", "mail", "two words"]}, "jobqueue.E002")):
            done = self.site.manage("check", code=1, environment={"OPTIONS_OF_TASKS": json.dumps(change)})
            self.assertIn(key, done.stderr)

    def test_the_first_enqueue_writes_tasks_py_and_no_other_does(self):
        site = self.make()
        self.assertIn("no issues", site.manage("check").stdout)
        self.assertIsNone(site.read("tasks.py"))
        said = site.python(CONFIGURED)
        self.assertIn("SetupError", said)
        self.assertIsNone(site.read("tasks.py"))
        site.script("from django.test import override_settings\n"
                    "with override_settings(DEBUG=False): wait(add.enqueue(1))")
        self.assertEqual(site.read("tasks.py"), TASKS_FILE)
        self.assertEqual((site.home / "tasks.py").stat().st_mode & 0o777, 0o644)
        site.write_tasks(OWN_TASKS_FILE)
        site.script("assert wait(add.enqueue(2)).return_value == 4")
        self.assertEqual(site.read("tasks.py"), OWN_TASKS_FILE)
        self.assertEqual(site.wait(site.add("hello", name="Zoë"))["result"], "hello Zoë")
        functions = {function["name"]: function["who"] for function in site.json("functions")["functions"]}
        self.assertEqual((functions["hello"], functions["blog.tasks.add"]), ("user", "user"))
        self.assertIn("no issues", site.manage("check").stdout)
        site.write_tasks("from jobqueue import task\n\n@task\ndef hello(name: str):\n    return name\n")
        warned = site.manage("check")
        self.assertIn("jobqueue.W001", warned.stderr)
        self.assertIn("django_project('mysite.settings'", warned.stderr)
        self.assertEqual([path.name for path in site.home.glob("*.new")], [])

    def test_a_task_that_leaves_a_transaction_open_harms_no_other(self):
        self.assertEqual(self.site.script('''
left = wait(leave_open.enqueue())
print(left.status.value, [wait(count.enqueue()).return_value for _ in range(3)])
''').partition(" ")[2], "[0, 0, 0]")

    def test_an_error_around_the_function_is_the_attempts_error_and_it_never_runs_twice(self):
        (self.site.home / "blog" / "broken.py").write_text(BROKEN)
        broken, large, quits = json.loads(self.site.script('''
os.environ["AT_THE_SITE"] = "1"
from blog import broken
results = [broken.job.enqueue(), large.enqueue(1_100_000), register.enqueue("quits")]
print(json.dumps([[result.status.name, result.attempts, [
    error.exception_class_path for error in result.errors]] for result in map(wait, results)]))
'''))
        self.assertEqual(broken, ["FAILED", 1, ["builtins.KeyError"]])
        self.assertEqual(large, ["FAILED", 1, ["builtins.ValueError"]])
        self.assertEqual((quits[0][:4], quits[1:]), ("SUCC", [1, []]))
        finished = [line for line in self.site.signals() if line["signal"] == "task_finished"
                    and line["task"] == "blog.tasks.large"]
        self.assertEqual([line["status"] for line in finished], ["FAILED"])

    def test_an_app_may_be_called_tasks_but_none_worker(self):
        site = self.make()
        (site.home / "tasks").mkdir()
        for path, text in (("tasks/__init__.py", ""), ("tasks/tasks.py", TASKS_APP),
                           ("mysite/settings.py", 'INSTALLED_APPS += ["tasks"]\n')):
            with open(site.home / path, "a") as file:
                file.write(text)
        site.script("from tasks.tasks import hello\nassert wait(hello.enqueue()).return_value == 'hello'")
        (site.home / "worker").mkdir()
        self.assertIn("jobqueue.E005", site.manage("check", code=1).stderr)

    def test_manage_compares_the_workers_project_with_the_sites(self):
        site = self.make('SECRET_KEY = os.environ.get("SECRET", "other")\n')
        site.script("wait(add.enqueue(1))", environment={"SECRET": "of the site"})
        self.assertIn("no issues", site.manage("check").stdout)
        self.assertIn("The digest of SECRET_KEY and DATABASES differs",
                      site.manage("check", environment={"SECRET": "of the site"}).stderr)
        site.settings(pass_environment="SECRET")
        site.write_tasks(TASKS_FILE + "import nothing_there\n")
        site.run("functions", code=None)
        self.assertIn("nothing_there", site.manage("check").stderr)

    @postgres.about_sqlite("a folder that is removed")
    def test_ids_hold_for_one_database_only(self):
        site = self.make()
        old = site.script("print(add.enqueue(1).id)")
        site.stop_all()
        shutil.rmtree(site.home / "data")
        site.run("user", "add", "ana", "--admin", given="correct horse\n")
        new = site.script("print(add.enqueue(1).id)")
        self.assertEqual((old.partition("-")[0], new.partition("-")[0]), ("1", "1"))
        self.assertNotEqual(old, new)
        self.assertIn("is no id of a result of this site", site._complete(
            ["-c", django_site.START + "add.get_result(%r)" % old], 1, None, None, 60).stderr)

    def test_inside_a_task_another_data_folder_is_refused(self):
        site = self.make('TASKS["b"] = {**TASKS["default"], "OPTIONS": {"data": str(BASE_DIR / "b")}}\n')
        result = json.loads(site.script('''
result = wait(parent_elsewhere.enqueue())
print(json.dumps([result.status.name, [error.traceback for error in result.errors]]))
'''))
        self.assertEqual(result[0], "FAILED")
        self.assertIn("another data folder", result[1][0])

    def test_the_project_may_have_another_folder(self):
        site = self.make()
        web = site.home.parent / "web"
        (web / "mysite" / "conf").mkdir(parents=True)
        for name in ("manage.py", "blog", "db.sqlite3"):
            shutil.move(site.home / name, web / name)
        settings = (site.home / "mysite" / "settings.py").read_text("utf-8").replace(
            ".parent.parent", ".parent.parent.parent")
        settings += "\nimport sys\nsys.path.append(%r)\n" % str(site.home)
        shutil.rmtree(site.home / "mysite")
        for name, text in (("__init__", ""), ("conf/__init__", ""), ("conf/production", settings)):
            (web / "mysite" / (name + ".py")).write_text(text, "utf-8")
        text = django_site.START + (
            "result = wait(flaky.using(max_retries=1, retry_delay=0).enqueue(2)); print(result.attempts)")
        done = subprocess.run(
            [site.interpreter, "-c", text], cwd=web, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**site.environment, "DJANGO_SETTINGS_MODULE": "mysite.conf.production"}, encoding="utf-8")
        self.assertEqual((done.returncode, done.stdout), (0, "2\n"))
        self.assertEqual(site.read("tasks.py"), "from jobqueue import django_project\n\n"
                         "django_project('mysite.conf.production', path=%r)\n" % str(web))
        self.assertEqual(site.wait(site.add("blog.tasks.add", a=1))["result"], 3)

    def test_without_zones_times_are_naive_and_local(self):
        site = self.make('\nUSE_TZ = False\nTIME_ZONE = "Asia/Tokyo"\n')
        said = json.loads(site.script('''
import datetime
wait(add.enqueue(1))                    # the worker stays for a task that is due soon
before = datetime.datetime.now()
moment = before + datetime.timedelta(seconds=1)
result = flaky.using(run_after=moment).enqueue(1)
assert result == flaky.get_result(result.id), (result, flaky.get_result(result.id))
assert result.task.run_after == moment
wait(result)
times = [before, result.enqueued_at, moment, result.started_at, result.last_attempted_at, result.finished_at]
assert times == sorted(times), times
assert flaky.get_result(result.id) == result
seen = result.return_value
print(json.dumps([[str(at.tzinfo) for at in times], seen["times"], seen["run_after"],
                  moment.isoformat(), result.enqueued_at.isoformat()]))
'''))
        zones, times, run_after, moment, enqueued = said
        self.assertEqual(zones, ["None"] * 6)
        self.assertEqual((run_after, times[0]), (moment, enqueued))
        self.assertTrue(all("+" not in (text or "") for text in times))


class Django42(DjangoTests, unittest.TestCase):
    django = "4.2"


class Django52(DjangoTests, unittest.TestCase):
    django = "5.2"


class Django60(DjangoTests, unittest.TestCase):
    django = "6.0"


class DjangoNewest(DjangoTests, unittest.TestCase):
    django = "newest"
