#!/usr/bin/env python3
"""Benchmark: Django's empty tasks in jobqueue, beside other queues on SQLite in the same run.

    python3 tests/tools/django_bench.py --venv DIR                  5,000 tasks, three runs of each
    python3 tests/tools/django_bench.py --venv DIR --only jobqueue,django-q2 --tasks 1000 --runs 1

The virtual environment in DIR is made with the Python that --python names (3.12 or newer, for Django
6), or reused. Each run of each queue has a new project on the same disk, and the queues take turns. All
tasks are added one by one in one process while no worker runs. Then the workers start, two of each, and
the time is taken until all is recorded as done.

    adds    tasks added a second
    drain   tasks done a second, from the first start to the last recorded end
    wall    seconds from the start of the workers' processes to the last recorded end

A task does nothing but write the time into a file, which is how the first start is known. The last end is
known from the rows of the queue. huey has none: there it is the last line of the file. So huey need not
have recorded the last result.

The settings are those of each documentation. The same for all: DEBUG is off; the site's database is SQLite
with its journal in WAL mode, synchronous=NORMAL, transactions that begin IMMEDIATE, a timeout of 20 s, and
connections that stay open. Messages of the workers below a warning are turned off where a switch does it.

    jobqueue            `worker.py --service` twice; nice 0 instead of 10, as the others have it. Its
                        database is its own. Each add is synced to the disk; what a worker writes is not.
    django-tasks-db     `manage.py db_worker --no-startup-delay` twice, on the site's database. Nothing is
                        synced but at checkpoints, by synchronous=NORMAL.
    huey                SqliteHuey, `manage.py run_huey` with 2 workers, threads or processes. Its own
                        file is in WAL mode, and its default is SQLite's, which mostly syncs each commit.
                        The tasks are those of huey.contrib.djhuey, and in the rows "as a backend" those
                        of django.tasks. huey forgets a task when it begins, so that a task whose worker
                        is killed is lost, and it keeps no result that is None.
    huey, fsync=False   the same without any sync: a power cut may damage the file
    django-q2           `manage.py qcluster` with 2 workers: the ORM broker on the site's database, with the
                        documentation's example (timeout 90, retry 120, queue_limit 50, bulk 10), and
                        save_limit 0, which keeps all results, as ours does, and spares it the pruning

The adds and what syncs depend on how fast the disk syncs, so much that only figures of one run compare.
"""
import argparse
import collections
import contextlib
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.helpers import django_sites

PACKAGES = {"django": "django.tasks", "django-tasks-db": "django_tasks_db", "huey": "huey",
            "django-q2": "django_q"}    # and a module of each
WORKERS = 2
PATIENCE_SECONDS = 600.0
STAMP_BYTES = len("1234567890.123456\n")

LEDGER_TEXT = '''\
import os
import time
from pathlib import Path

ledger = os.open(Path(__file__).resolve().parent.parent / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note():
    os.write(ledger, b"%.6f\\n" % time.time())


'''
DJANGO_TEXT = LEDGER_TEXT + '''\
from django.tasks import task


@task
def nothing():
    note()


add = nothing.enqueue
'''
DJHUEY_TEXT = LEDGER_TEXT + '''\
from huey.contrib.djhuey import task


@task()
def nothing():
    note()


add = nothing
'''
DJANGO_Q_TEXT = LEDGER_TEXT + '''\
from django_q.tasks import async_task


def nothing():
    note()


def add():
    async_task("blog.tasks.nothing")
'''

TASKS_DB_SETTINGS = '''\
INSTALLED_APPS += ["django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
'''
HUEY_SETTINGS = '''\
INSTALLED_APPS += ["huey.contrib.djhuey"]
HUEY = {"huey_class": "huey.SqliteHuey", "name": "bench", "filename": str(BASE_DIR / "huey.db"),
        "immediate": False, %s"consumer": {"workers": %d, "worker_type": "%s"}}
'''
HUEY_BACKEND_SETTINGS = '''\
TASKS = {"default": {"BACKEND": "huey.contrib.djhuey.tasks_backend.HueyBackend"}}
'''
DJANGO_Q_SETTINGS = '''\
INSTALLED_APPS += ["django.contrib.contenttypes", "django_q"]
Q_CLUSTER = {"name": "bench", "workers": %d, "timeout": 90, "retry": 120, "queue_limit": 50, "bulk": 10,
             "orm": "default", "save_limit": 0, "log_level": "WARNING"}
''' % WORKERS

ADD_TEXT = '''\
import sys
import time

import django

django.setup()
from blog.tasks import add

began = time.perf_counter()
for _ in range(int(sys.argv[1])):
    add()
print(time.perf_counter() - began)
'''


# Queues ----------------------------------------------------------------------

# One of the queues: its settings and tasks, the commands of its workers, how many are recorded as done.
Contestant = collections.namedtuple("Contestant", "settings tasks workers done")


def count_rows(statement):
    """Return a function that counts the tasks in the site's database that are done."""
    return lambda folder: ask(Path(folder, "db.sqlite3"), statement)


def count_ours(folder):
    """Count the tasks in jobqueue's database that have succeeded."""
    return ask(django_sites.queue_file(folder), "SELECT count(*) FROM task WHERE status=2")


def count_lines(folder):
    """Count the lines that the tasks have written."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.getsize(Path(folder, "ledger")) // STAMP_BYTES
    return 0


def huey(kind, tasks=DJHUEY_TEXT, more="", options=""):
    """Make a contestant of huey, with its workers as threads or processes."""
    return Contestant(HUEY_SETTINGS % (options, WORKERS, kind) + more, tasks,
                      [["manage.py", "run_huey", "-q"]], count_lines)


CONTESTANTS = {
    "jobqueue": Contestant(
        django_sites.OURS_TEXT, DJANGO_TEXT, [["worker.py", "--service"]] * WORKERS, count_ours),
    "django-tasks-db": Contestant(
        TASKS_DB_SETTINGS, DJANGO_TEXT,
        [["manage.py", "db_worker", "--no-startup-delay", "--verbosity", "0"]] * WORKERS,
        count_rows("SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status='SUCCESSFUL'")),
    "huey, threads": huey("thread"),
    "huey, processes": huey("process"),
    "huey as a backend, threads": huey("thread", DJANGO_TEXT, HUEY_BACKEND_SETTINGS),
    "huey as a backend, processes": huey("process", DJANGO_TEXT, HUEY_BACKEND_SETTINGS),
    "huey, threads, fsync=False": huey("thread", options='"fsync": False, '),
    "huey, processes, fsync=False": huey("process", options='"fsync": False, '),
    "django-q2": Contestant(
        DJANGO_Q_SETTINGS, DJANGO_Q_TEXT, [["manage.py", "qcluster"]],
        count_rows("SELECT count(*) FROM django_q_task WHERE success=1 "
                   "AND NOT EXISTS (SELECT 1 FROM django_q_ormq)")),
}

# Beside which others ours stands in the last lines.
GROUPS = {
    "the backends of django.tasks": lambda name: CONTESTANTS[name].tasks is DJANGO_TEXT,
    "all but those with fsync=False": lambda name: "fsync=False" not in name,
    "all": lambda name: True,
}


# Measuring -------------------------------------------------------------------

def ask(path, statement):
    """Return one number from a database."""
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as link:
        return link.execute(statement).fetchone()[0]


def prepare(folder, contestant, python):
    """Make a project with its database; jobqueue's tasks wait until its queue is resumed."""
    django_sites.make_project(folder, contestant.tasks, contestant.settings)
    if contestant.done is count_ours:
        django_sites.add_jobqueue(folder, python, NbMaxWorker=WORKERS, nice=0)
        django_sites.run(folder, python, "jobqueue.py", "queue", "pause", "default")
    django_sites.run(folder, python, "manage.py", "migrate", "--verbosity", "0")


def resume(folder, contestant):
    """Let jobqueue's tasks run, without starting the workers that its commands would start."""
    if contestant.done is count_ours:
        with contextlib.closing(sqlite3.connect(django_sites.queue_file(folder), timeout=30)) as link, link:
            link.execute("UPDATE queue SET paused=0")


@contextlib.contextmanager
def running(folder, commands, python):
    """Run the workers, and end them and all that they started afterwards."""
    with Path(folder, "workers.log").open("ab") as log:
        workers = [subprocess.Popen([python, *command], cwd=folder, env=django_sites.environment(),
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
                   for command in commands]
    try:
        yield workers
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, number)
            for worker in workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(10)


def drain(folder, contestant, python, count):
    """Run all tasks; return the moments when the workers were started and the last end was recorded."""
    began = time.time()
    with running(folder, contestant.workers, python) as workers:
        while count_lines(folder) < count or contestant.done(folder) < count:
            time.sleep(0.01)
            if time.time() - began > PATIENCE_SECONDS or any(worker.poll() is not None for worker in workers):
                raise SystemExit("django_bench: %d of %d tasks were done: %s" % (
                    contestant.done(folder), count, Path(folder, "workers.log").read_text("utf-8")[-2000:]))
        ended = time.time()
    if count_lines(folder) != count:
        raise SystemExit("django_bench: %d tasks ran %d times" % (count, count_lines(folder)))
    return began, ended


def measure(parent, contestant, python, count):
    """Measure one queue once; return tasks added a second, tasks done a second, and wall seconds."""
    folder = tempfile.mkdtemp(prefix="jobqueue-django-bench-", dir=parent)
    try:
        prepare(folder, contestant, python)
        added = float(django_sites.run(folder, python, "-c", ADD_TEXT, count))
        resume(folder, contestant)
        os.sync()                       # what is written back later is nobody else's burden
        began, ended = drain(folder, contestant, python, count)
        first = min(map(float, Path(folder, "ledger").read_text("ascii").split()))
        return count / added, count / (ended - first), ended - began
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Table -----------------------------------------------------------------------

def table(results, count):
    """Return all results in columns: the medians, and each run's drain and wall."""
    rows = [["queue", "adds", "drain", "wall", "each run: drain, wall"]]
    for name, runs in results.items():
        added, drained, wall = map(statistics.median, zip(*runs))
        rows.append([name, "%.0f/s" % added, "%.0f/s" % drained, "%.2f s" % wall,
                     "  ".join("%.0f/s %.2f s" % run[1:] for run in runs)])
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *ratios(results, count)])


def ratios(results, count):
    """Yield how ours stands beside the best of some of the others, by each of the three figures."""
    if "jobqueue" not in results:
        return
    for words, is_meant in GROUPS.items():
        others = [name for name in results if name != "jobqueue" and is_meant(name)]
        for place, what in enumerate(("adds", "drain", "wall")) if others else ():
            middle = {name: statistics.median(run[place] for run in results[name])
                      for name in ("jobqueue", *others)}
            if what == "wall":
                middle = {name: count / seconds for name, seconds in middle.items()}
            best = max(others, key=middle.get)
            yield "%-5s  ours is %.2f times the best of %s: %s" % (
                what, middle["jobqueue"] / middle[best], words, best)


# Entry -----------------------------------------------------------------------

def packages_of(contestants):
    """Return the packages that these need, from their names."""
    return [package for package in PACKAGES
            if package == "django" or any(name.split(",")[0].split()[0] == package for name in contestants)]


def venv_python(venv, base, packages):
    """Return the Python of a virtual environment with these packages, which is made where it is none."""
    python = Path(venv, "bin", "python").absolute()
    if not python.exists():
        subprocess.run([base, "-m", "venv", venv], check=True)
    have = subprocess.run([python, "-c", "import " + ", ".join(map(PACKAGES.get, packages))],
                          stderr=subprocess.DEVNULL)
    if have.returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def versions(python, packages):
    """Return the versions of what is compared, as one line."""
    text = ("import sqlite3, sys; from importlib.metadata import version; print('Python', "
            "sys.version.split()[0] + ', SQLite', sqlite3.sqlite_version, "
            "*(', %s %s' % (name, version(name)) for name in sys.argv[1:]))")
    done = subprocess.run([python, "-c", text, *packages], check=True, stdout=subprocess.PIPE,
                          encoding="utf-8")
    return done.stdout.strip().replace(" ,", ",")


def names(text):
    """Return names of CONTESTANTS that begin so, from a list with commas."""
    chosen = [name for name in CONTESTANTS if any(name.startswith(word) for word in text.split(","))]
    if not chosen:
        raise argparse.ArgumentTypeError("queues are %s" % "; ".join(CONTESTANTS))
    return chosen


def main(arguments=None):
    """Measure and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", required=True, metavar="DIR",
                        help="the virtual environment, made if missing")
    parser.add_argument("--python", default=sys.executable, help="the Python to make it with")
    parser.add_argument("--tasks", type=int, default=5000, metavar="N", help="tasks of each run (5000)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each queue (3)")
    parser.add_argument("--only", type=names, default=list(CONTESTANTS), metavar="NAME,...",
                        help="these queues, by the beginnings of their names")
    parser.add_argument("--folder", metavar="DIR", help="make the projects in this folder, on its disk")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)      # what was started is ended
    packages = packages_of(options.only)
    python = venv_python(options.venv, options.python, packages)
    results = {name: [] for name in options.only}
    for number in range(options.runs):
        for name in options.only[::-1] if number % 2 else options.only:
            found = measure(options.folder, CONTESTANTS[name], python, options.tasks)
            results[name].append(found)
            print("%s: adds %.0f/s, drain %.0f/s, wall %.2f s" % (name, *found), file=sys.stderr, flush=True)
    print("%s; %d processors, %d tasks, %d runs\n" % (
        versions(python, packages), os.cpu_count(), options.tasks, options.runs))
    print(table(results, options.tasks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
