"""A Django project with jobqueue beside its manage.py, for one virtual environment that has Django.

    folder()            the folder of virtual environments that JOBQUEUE_TEST_DJANGO names, or None
    DjangoSite          a Site whose folder is such a project: `mysite` with the app `blog`. Processes of it
                        run with the Python of the environment, and its database has been migrated.

In a DjangoSite

    site.manage("check")                CompletedProcess of manage.py; AssertionError unless exit code 0
    site.script("print(1)")             what Python text printed after django.setup(); blog's tasks,
                                        wait(result) and TaskResultStatus are names of it
    site.signals()                      what the receivers of Django's signals wrote, oldest first: dicts
    site.read("name"), site.touch("name")       a file of the project; None if there is none

The user ana is an admin, and no tasks.py exists until the first enqueue.
"""
import json
import os
from pathlib import Path

from tests.helpers.support import PASSWORD, Site

SETTINGS = '''

import os

INSTALLED_APPS += ["blog"]
try:
    import django.tasks
except ImportError:
    INSTALLED_APPS += ["django_tasks"]
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "blog.urls"
DATABASES["default"]["CONN_MAX_AGE"] = 600
TASKS = {
    "default": {"BACKEND": "jobqueue.DjangoBackend", "QUEUES": ["default", "mail"]},
    "second": {"BACKEND": "jobqueue.DjangoBackend", "QUEUES": []},
}
if "OPTIONS_OF_TASKS" in os.environ:
    import json
    TASKS["default"].update(json.loads(os.environ["OPTIONS_OF_TASKS"]))
'''
APPS = '''
import json
import os
from pathlib import Path

from django.apps import AppConfig

FILE = Path(__file__).resolve().parents[1] / "signals"


def append(path, text):
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, (text + "\\n").encode())
    os.close(handle)


def receiver(name):
    def receive(sender, task_result, **_):
        if name == "task_finished" and task_result.args == ["quits"]:
            raise SystemExit("a receiver that ends the process")
        line = {"signal": name, "sender": sender.__name__, "pid": os.getpid(), "id": task_result.id,
                "task": task_result.task.module_path, "status": str(task_result.status.value),
                "attempts": task_result.attempts, "finished": task_result.finished_at is not None,
                "errors": [error.exception_class_path for error in task_result.errors]}
        if task_result.is_finished and not task_result.errors:
            line["value"] = task_result.return_value
        append(FILE, json.dumps(line))
    return receive


class BlogConfig(AppConfig):
    name = "blog"
    default_auto_field = "django.db.models.AutoField"

    def ready(self):
        try:
            from django.tasks import signals
        except ImportError:
            from django_tasks import signals
        for name in ("task_enqueued", "task_started", "task_finished"):
            getattr(signals, name).connect(receiver(name), weak=False, dispatch_uid=name)
'''
TASKS = '''
import asyncio
import datetime
import inspect
import os
import time
from pathlib import Path

from django.db import connection, transaction
from django.utils import timezone, translation

try:
    from django.tasks import default_task_backend, task
except ImportError:
    from django_tasks import default_task_backend, task

from jobqueue import Fail, RetryAfter

from .apps import append

HERE = Path(__file__).resolve().parents[1]
TAKES_OPTIONS = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(task).parameters.values())


class Odd(Exception):
    pass


class Outer:
    class Inner(Exception):
        pass


@task
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first one
    """
    return a + b


@task
def echo(*args, **kwargs):
    return {"args": args, "kwargs": kwargs}


@task
def shape(first: int, second=2, /, third=3, *rest, named, other=5, **more):
    return [first, second, third, list(rest), named, other, more]


@task
def plain(first: int, second=2, *rest):
    return [first, second, list(rest)]


@task
def give(value=None):
    return value


@task
def nothing():
    pass


@task
def thing():
    return object()


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


LONG = "Odd" * 50
globals()[LONG] = type(LONG, (Exception,), {})


@task
def fail(kind, words="it failed"):
    if kind == "nested":
        raise Outer.Inner(words)
    if kind == "quoting":
        raise Odd(words + "\\nTraceback (most recent call last):\\n  File x\\nOther: y")
    if kind == "unprintable":
        raise Unprintable
    if kind == "long":
        raise globals()[LONG](words)
    if kind == "chained":
        try:
            {}["no such key"]
        except KeyError as error:
            raise Odd(words) from error
    if kind == "group":
        raise ExceptionGroup(words, [ValueError("one"), Odd("two")])
    if kind == "exit":
        raise SystemExit(3)
    if kind == "fatal":
        raise Fail(words)
    raise {"odd": Odd, "value": ValueError, "django": transaction.TransactionManagementError}[kind](words)


@task(takes_context=True)
def flaky(context, good: int, kind="odd"):
    """Fail until the attempt `good`; return what the context said in it."""
    result = context.task_result
    if context.attempt < good:
        print("attempt", context.attempt, "fails")
        fail.func(kind, "attempt %d\\nof %d" % (context.attempt, good))
    return {
        "attempt": context.attempt, "id": result.id, "status": result.status.value,
        "args": result.args, "kwargs": result.kwargs, "workers": result.worker_ids,
        "path": result.task.module_path, "priority": result.task.priority,
        "queue": result.task.queue_name, "backend": result.backend,
        "run_after": result.task.run_after and result.task.run_after.isoformat(),
        "errors": [[error.exception_class.__name__, error.traceback] for error in result.errors],
        "times": [at and at.isoformat() for at in (
            result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)],
        "is_finished": result.is_finished}


@task
def later():
    """Ask once for another attempt, although the task has no retries."""
    if not (HERE / "later").exists():
        (HERE / "later").touch()
        raise RetryAfter(0)
    return "done"


@task
def choose(language):
    """Choose a language and a zone for this task; return what was chosen before."""
    before = [translation.get_language(), timezone.get_current_timezone_name()]
    translation.activate(language)
    timezone.activate(datetime.timezone(datetime.timedelta(hours=9)))
    return before


@task
def never():
    """Ask for another attempt, but not when."""
    raise RetryAfter(float("nan"))


@task
def order(name):
    append(HERE / "order", name)


@task
def process():
    """Use the database; return the process, and whether its connection was open before."""
    was_open = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return [os.getpid(), was_open]


@task(takes_context=True)
def wait_for(context, name):
    """Run until there is a file of this name."""
    append(HERE / (name + ".began"), str(context.attempt))
    while not (HERE / name).exists():
        time.sleep(0.02)
    return [context.attempt, [error.exception_class_path for error in context.task_result.errors]]


@task(queue_name="mail", priority=10)
async def mail(to):
    await asyncio.sleep(0.001)
    return "to " + to


@task
def count():
    from django.contrib.auth.models import User
    return User.objects.count()


@task
async def count_later():
    from django.contrib.auth.models import User
    names = [user.username async for user in User.objects.order_by("username")]
    return [await User.objects.acount(), names]


@task
async def fail_later():
    await asyncio.sleep(0)
    raise Odd("later")


@task
def register(name, fails=False):
    """Add a user, and a task once that is committed."""
    from django.contrib.auth.models import User
    ids = []
    try:
        with transaction.atomic():
            User.objects.create_user(name)
            transaction.on_commit(lambda: ids.append(greet.enqueue(name).id))
            assert not ids
            if fails:
                raise Odd("rolled back")
    except Odd:
        pass
    return ids


@task
def greet(name):
    from django.contrib.auth.models import User
    return "hello " + User.objects.get(username=name).username


@task
def large(size):
    return "x" * size


@task
def leave_open():
    """Leave a transaction of the site's database open."""
    transaction.atomic().__enter__()
    return connection.in_atomic_block


@task
def parent_elsewhere():
    add.using(backend="b").enqueue(1)


@task
def parent(earlier_id):
    """Read an earlier result, and add a task; return what both are."""
    earlier = default_task_backend.get_result(earlier_id)
    child = add.using(priority=3).enqueue(earlier.return_value, b=10)
    again = add.get_result(child.id)
    missing = []
    for wrong in ("1-0000", earlier_id + "x"):
        try:
            add.get_result(wrong)
        except Exception as error:
            missing.append(type(error).__name__)
    try:
        fail.get_result(child.id)
    except Exception as error:
        missing.append(type(error).__name__)
    return {"earlier": [earlier.status.value, earlier.return_value], "child": child.id,
            "status": child.status.value, "same": [again.id, again.status.value, again.args, again.kwargs,
            again.task == child.task], "missing": missing}


@task
async def parent_later(value):
    child = await add.aenqueue(value)
    return [child.id, (await add.aget_result(child.id)).args]


def hidden():
    """The function of a task with another name."""
    return "found"


renamed = task(hidden)

if TAKES_OPTIONS:
    @task(max_retries=2, retry_delay=0, timeout=30, priority=1)
    def stubborn(x):
        with open(HERE / "stubborn", "a") as file:
            file.write(".")
        if (HERE / "stubborn").stat().st_size < 3:
            raise Odd(x)
        return x
'''
LETTERS = '''
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class Unwritten(Exception):
    pass


@task
def write(to, text=""):
    """A task that only views.py imports."""
    if not text:
        raise Unwritten(to)
    return "%s: %s" % (to, text)
'''
VIEWS = '''
from django.http import HttpResponse, JsonResponse

from .letters import write


def ask(request):
    result = write.enqueue(request.POST["to"], text=request.POST.get("text", ""))
    return JsonResponse({"id": result.id, "status": result.status.value})


def look(request, key):
    result = write.get_result(key)
    return HttpResponse(result.return_value if result.is_finished else "wait", content_type="text/plain")
'''
URLS = '''
from django.urls import path

from . import views

urlpatterns = [path("ask", views.ask), path("look/<str:key>", views.look)]
'''
START = '''
import json, os, sys, time
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
import django
django.setup()
from blog.tasks import *
try:
    from django.tasks import TaskResultStatus
except ImportError:
    import django_tasks
    TaskResultStatus = getattr(django_tasks, "TaskResultStatus", None) or django_tasks.ResultStatus

def wait(result, seconds=60):
    until = time.monotonic() + seconds
    while not result.is_finished:
        if time.monotonic() > until:
            raise SystemExit("no end of %r" % (result,))
        time.sleep(0.02)
        result.refresh()
    return result

'''


def folder():
    """The folder of virtual environments that the tests may use, or None."""
    named = os.environ.get("JOBQUEUE_TEST_DJANGO")
    return Path(named) if named else None


class DjangoSite(Site):
    """See the module's docstring. `lines` are added to the project's settings."""

    def __init__(self, python, lines="", **settings):
        super().__init__(users=False, python=str(python), folder="my site")
        try:
            self._make(lines)
            self.settings(**{"NbMaxWorker": 1, "linger": 60, "worker_mode": "detached", **settings})
        except BaseException:
            self.close()
            raise

    def _make(self, lines):
        self._complete(["-m", "django", "startproject", "mysite", "."], 0, None, None, 120)
        path = self.home / "mysite" / "settings.py"
        path.write_text(path.read_text("utf-8") + SETTINGS + lines, "utf-8")
        (self.home / "blog").mkdir()
        for name, text in (("__init__", ""), ("apps", APPS), ("tasks", TASKS), ("letters", LETTERS),
                           ("views", VIEWS), ("urls", URLS)):
            (self.home / "blog" / (name + ".py")).write_text(text, "utf-8")
        self.manage("migrate", "--verbosity", "0")
        self.run("user", "add", "ana", "--admin", given=PASSWORD + "\n")

    def manage(self, *arguments, code=0, environment=None):
        """Run manage.py; the CompletedProcess, after a look at its exit code (None: any)."""
        return self._complete(["manage.py", *arguments], code, None, environment, 120)

    def script(self, text, environment=None):
        """Run Python text with Django set up; what it printed."""
        return self.python(START + text, environment=environment)

    def signals(self, result_id=None):
        """What the receivers of signals wrote, of one result or of all."""
        lines = map(json.loads, (self.read("signals") or "").splitlines())
        return [line for line in lines if result_id in (None, line["id"])]

    def read(self, name):
        """The text of a file of the project; None if there is none."""
        path = self.home / name
        return path.read_text("utf-8") if path.exists() else None

    def touch(self, name):
        """Make an empty file."""
        (self.home / name).touch()
