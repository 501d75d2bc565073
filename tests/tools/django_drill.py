#!/usr/bin/env python3
"""Drill: run Django's tasks while workers and runners are killed, prove that nothing is lost.

    python3 tests/tools/django_drill.py --python DIR/bin/python         2,000 tasks, 30 kills
    python3 tests/tools/django_drill.py --python DIR/bin/python --seed 4711

The Python needs Django 6.0 or newer, or Django with the package django-tasks. A new project has jobqueue
beside its manage.py. A process of the site adds tasks of six kinds, a few or many of a kind in a row:
quick ones, some that sleep a few milliseconds, some that create a row of the site's database in a
transaction and write to the ledger on its commit, some that raise at their first attempt and are tried
again, async ones that sleep, and async ones that create a row. Meanwhile a worker or a runner is killed by
SIGKILL, each time after a random number of starts and a random pause. Each second a tick looks after the
workers, as cron does on a host.

Each attempt appends a line to the ledger at its start and at its end. At the end the ledger is compared
with what enqueue() returned, what get_result() says in another process, the site's rows, and jobqueue's
activity:

    lost            tasks that have no result, or none of whose attempts came to its end
    not successful  tasks that are not SUCCESSFUL by get_result(). The third crash fails a task: such tasks
                    are counted apart, as given up
    unexplained     attempts after which the task began again, although they neither raised nor were killed.
                    A kill explains an attempt that had ended if it came within 5 seconds of the end, before
                    the outcome was on record. The activity has a crash for each of them
    overlaps        attempts that began before the last one had ended or was killed
    ended twice     tasks with two ends in the activity, or more ends in the ledger than kills explain
    wrong           results, numbers of attempts, lists of errors or rows of the site that do not fit
"""
import argparse
import bisect
import collections
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.helpers import django_sites  # noqa: E402
from tests.helpers.processes import is_runner, processes_of, workers_among  # noqa: E402
from tests.tools.load_test import LoadTestError, positive, thousands  # noqa: E402

KINDS = ("quick", "nap", "row", "flaky", "wait", "async_row")
SERIES_MAX = 30                         # tasks of one kind in a row
PAUSE_SECONDS = 0.05                    # longest pause before a kill, once enough tasks have begun
TICK_SECONDS = 1.0
RECORD_SECONDS = 5.0                    # outcomes are on record so soon after an end
PATIENCE_SECONDS = 300.0
CRASH_LIMIT = 3                         # the third crash fails a task
LINE = r"(START|END|COMMIT|RAISE) (\S+) (\d+) (\d+) (\d+) (\d+\.\d{6})\n"     # of the ledger

MODELS_TEXT = '''\
from django.db import models


class Note(models.Model):
    result = models.CharField(max_length=100)
    attempt = models.IntegerField()
'''

TASKS_TEXT = '''\
import asyncio
import os
import time
from functools import partial
from pathlib import Path

from django.db import transaction

from .models import Note

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

ledger = os.open(Path(__file__).resolve().parent.parent / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
worker = os.getppid()


def note(word, context):
    line = "%s %s %d %d %d %.6f\\n" % (
        word, context.task_result.id, context.attempt, os.getpid(), worker, time.time())
    os.write(ledger, line.encode("ascii"))


def done(context, number):
    note("END", context)
    return [number, context.attempt]


@task(takes_context=True)
def quick(context, number):
    note("START", context)
    return done(context, number)


@task(takes_context=True)
def nap(context, number):
    note("START", context)
    time.sleep(number % 8 / 1000)
    return done(context, number)


@task(takes_context=True)
def row(context, number):
    note("START", context)
    with transaction.atomic():
        Note.objects.create(result=context.task_result.id, attempt=context.attempt)
        transaction.on_commit(partial(note, "COMMIT", context))
    return done(context, number)


@task(takes_context=True)
def flaky(context, number):
    note("START", context)
    if context.attempt == 1:
        note("RAISE", context)
        raise ValueError("the first attempt of %d" % number)
    return done(context, number)


@task(takes_context=True)
async def wait(context, number):
    note("START", context)
    await asyncio.sleep(number % 5 / 1000)
    return done(context, number)


@task(takes_context=True)
async def async_row(context, number):
    note("START", context)
    await Note.objects.acreate(result=context.task_result.id, attempt=context.attempt)
    note("COMMIT", context)
    return done(context, number)
'''

# Prints a line for each task that was added. The names of the kinds come as lines of the input.
ADD_TEXT = '''\
import sys

import django

django.setup()
from blog import tasks

for number, name in enumerate(sys.stdin.read().split()):
    task = getattr(tasks, name)
    if name == "flaky":
        task = task.using(max_retries=2, retry_delay=0)
    print(task.enqueue(number).id, name, number, flush=True)
'''

# Prints what get_result() says of each id in the input, and then the rows of the site.
READ_TEXT = '''\
import json
import sys

import django

django.setup()
from blog import tasks
from blog.models import Note

for line in sys.stdin.read().split():
    try:
        result = tasks.quick.get_backend().get_result(line)
    except Exception as error:
        print(json.dumps([line, repr(error), None, 0, []]))
        continue
    is_good = result.is_finished and not result.status.name.startswith("FAIL")
    print(json.dumps([line, result.status.name, result.return_value if is_good else None, result.attempts,
                      [error.exception_class_path for error in result.errors]]))
print(json.dumps(list(Note.objects.values_list("result", "attempt"))))
'''
FILES = {"ledger_add.py": ADD_TEXT, "ledger_read.py": READ_TEXT}


# Records ---------------------------------------------------------------------

Added = collections.namedtuple("Added", "id kind number")       # as enqueue() said
Result = collections.namedtuple("Result", "status value attempts errors")      # as get_result() says
Kill = collections.namedtuple("Kill", "pid what at")            # `at`: before the signal was sent
Event = collections.namedtuple("Event", "word attempt at")      # of a task's activity
# All that is known at the end: {id: Added}, the lines of the ledger, {id: Result}, [(id, attempt)] of the
# site's rows, [Kill], {id: [Event]}.
Records = collections.namedtuple("Records", "added runs results rows kills events")


class Run:
    """One attempt as the ledger tells it."""

    def __init__(self, attempt, pid, worker, start):
        self.attempt, self.pid, self.worker = attempt, pid, worker
        self.start = self.seen = start          # `seen`: when it wrote last
        self.words = ["START"]

    @property
    def has_ended(self):
        """True if it came to its end."""
        return self.words[-1] == "END"


def read_runs(text):
    """Return {id: its Runs in the order they began} of a ledger. LoadTestError if a line cannot be.

    A kill may cut a line where a page of the file ends; the next one follows at once.
    """
    runs = collections.defaultdict(list)
    for line in re.findall(LINE, text):
        word, task_id, attempt, pid, worker, at = line
        run = next((run for run in runs[task_id]
                    if (run.attempt, run.pid) == (int(attempt), int(pid))), None)
        if word == "START":
            runs[task_id].append(Run(int(attempt), int(pid), int(worker), float(at)))
        elif run is None:
            raise LoadTestError("the ledger has no start for: %s" % " ".join(line))
        else:
            run.words.append(word)
            run.seen = float(at)
    return runs


# Checks ----------------------------------------------------------------------

class Findings:
    """What does not fit: {kind: [words]}, and the tasks that crashed too often."""

    KINDS = ("lost", "not successful", "unexplained", "overlaps", "ended twice", "wrong")

    def __init__(self):
        self.problems = {kind: [] for kind in self.KINDS}
        self.given_up = []
        self.counts = collections.Counter()     # of attempts that were repeated, by the reason
        self.longest = 0.0              # seconds from the end of an attempt to the kill that had it repeated

    @property
    def is_clean(self):
        """True if there is nothing to complain about."""
        return not any(self.problems.values())

    def add(self, kind, task_id, words):
        """Note a problem of a task."""
        self.problems[kind].append("%s: %s: %s" % (kind, task_id, words))

    def __str__(self):
        return ", ".join("%s %d" % (kind, len(found)) for kind, found in self.problems.items())


def kill_of(run, records, until):
    """Return the first Kill that hit a run: of its runner or worker, after its start; None if none did."""
    times = [kill.at for kill in records.kills]
    hits = records.kills[bisect.bisect(times, run.start - 0.05):]
    return next((kill for kill in hits if kill.pid in (run.pid, run.worker) and kill.at <= until), None)


def attempts_of(events):
    """Return {number of an attempt as Django counts it: the word of its end} of a task's Events."""
    put_back = {event.attempt for event in events if event.word == "put_back"}
    started = [event.attempt for event in events if event.word == "started" and event.attempt not in put_back]
    ends = {event.attempt: event.word for event in events if event.word != "started"}
    return {number: ends.get(attempt) for number, attempt in enumerate(started, 1)}


def check(records):
    """Return the Findings of Records."""
    found = Findings()
    for task_id, task in records.added.items():
        runs, result = records.runs.get(task_id, []), records.results.get(task_id)
        events = records.events.get(task_id, [])
        if result is None or not events or not any(run.has_ended for run in runs):
            found.add("lost", task_id, "%s, %d attempts in the ledger" % (result, len(runs)))
            continue
        ends = attempts_of(events)
        if result.status not in ("SUCCESSFUL", "SUCCEEDED"):
            crashes = [word for word in ends.values() if word in ("crashed", "failed")]
            if len(crashes) >= CRASH_LIMIT:
                found.given_up.append(task_id)
            else:
                found.add("not successful", task_id, "%s after %s" % (result.status, ends))
            continue
        check_runs(found, records, task_id, runs, ends)
        check_result(found, task_id, task, runs, result, ends)
    check_rows(found, records)
    for task_id in records.runs.keys() - records.added.keys():
        found.add("wrong", task_id, "it ran, but enqueue() never returned it")
    return found


def check_runs(found, records, task_id, runs, ends):
    """Compare the attempts of a task that succeeded with the kills and its activity."""
    numbers = [run.attempt for run in runs]
    if numbers != sorted(set(numbers)) or not set(numbers) <= ends.keys():
        found.add("unexplained", task_id, "attempts %s, by the activity %s" % (numbers, ends))
    for run, after in zip(runs, runs[1:]):
        kill = kill_of(run, records, after.start)
        if run.words[-1] == "RAISE" and ends.get(run.attempt) == "retry":
            found.counts["raised"] += 1
        elif kill is None or ends.get(run.attempt) != "crashed":
            found.add("unexplained", task_id, "attempt %d (%s), %s" % (
                run.attempt, ends.get(run.attempt), " ".join(run.words)))
        elif not run.has_ended and run.words[-1] != "RAISE":
            found.counts["cut off"] += 1
        elif kill.at - run.seen > RECORD_SECONDS:
            found.add("ended twice", task_id, "attempt %d had ended %.1f s before the kill" % (
                run.attempt, kill.at - run.seen))
        else:
            found.counts["had ended"] += 1
            found.longest = max(found.longest, kill.at - run.seen)
        if after.start < max(run.seen, kill.at if kill else 0):
            found.add("overlaps", task_id, "attempts %d and %d" % (run.attempt, after.attempt))
    if runs[-1].words.count("END") != 1 or any(run.words.count("END") > 1 for run in runs):
        found.add("ended twice", task_id, "; ".join(" ".join(run.words) for run in runs))
    if list(ends.values()).count("succeeded") != 1:
        found.add("ended twice", task_id, "the activity has %s" % ends)


def check_result(found, task_id, task, runs, result, ends):
    """Compare what get_result() says with the ledger and the activity."""
    if result.value != [task.number, runs[-1].attempt] or list(ends.values())[-1] != "succeeded":
        found.add("wrong", task_id, "the result %s of attempt %d" % (result.value, runs[-1].attempt))
    if result.attempts != len(ends):
        found.add("wrong", task_id, "attempts is %d, the activity has %s" % (result.attempts, ends))
    paths = ["builtins.ValueError" if word == "retry" else "builtins.ChildProcessError"
             for word in list(ends.values())[:-1]]
    if result.errors != paths:
        found.add("wrong", task_id, "its errors are %s instead of %s" % (result.errors, paths))


def check_rows(found, records):
    """Compare the rows of the site with the lines that were written when they were committed."""
    rows = collections.Counter(records.rows)
    for task_id, task in records.added.items():
        for run in records.runs.get(task_id, []) if task.kind in ("row", "async_row") else ():
            committed, count = "COMMIT" in run.words, rows[task_id, run.attempt]
            if count > 1 or count < committed or (count and not committed and run.has_ended):
                found.add("wrong", task_id, "%d rows of attempt %d, %s" % (
                    count, run.attempt, " ".join(run.words)))


# Drill -----------------------------------------------------------------------

class Drill:
    """A project whose workers and runners are killed."""

    def __init__(self, options):
        self._options, self._random = options, random.Random(options.seed)
        self._python = os.path.abspath(options.python)
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue-django-drill-", dir=options.folder)).resolve()
        self.kills = []
        self._names = []                # of the kinds of all tasks, in their order
        while len(self._names) < options.tasks:
            self._names += [self._random.choice(KINDS)] * self._random.randint(1, SERIES_MAX)
        del self._names[options.tasks:]
        self._starts, self._read = 0, 0         # what of the ledger was counted
        self._done = threading.Event()

    def open(self, plant=""):
        """Make the project, with a text appended to its copy of jobqueue.py."""
        has_own = self._ask("import django; print(django.VERSION >= (6,))") == "True"
        package = "" if has_own else 'INSTALLED_APPS += ["django_tasks"]\n'
        django_sites.make_project(self.folder, TASKS_TEXT, django_sites.OURS_TEXT + package, MODELS_TEXT)
        for name, text in FILES.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        django_sites.add_jobqueue(self.folder, self._python, NbMaxWorker=self._options.workers,
                                  worker_mode="detached")       # auto would leave the work to slices
        with (self.folder / "jobqueue.py").open("a", encoding="utf-8") as file:
            file.write(plant)
        for words in (["makemigrations", "blog"], ["migrate"]):
            self._run("manage.py", *words, "--verbosity", "0")

    def storm(self):
        """Add all tasks and kill; wait until all have ended."""
        ticker = threading.Thread(target=self._tick)
        ticker.start()
        try:
            with (self.folder / "added").open("wb") as out:
                adder = subprocess.Popen(
                    [self._python, "ledger_add.py"], cwd=self.folder, env=django_sites.environment(),
                    stdin=subprocess.PIPE, stdout=out)
            adder.stdin.write(" ".join(self._names).encode("ascii"))
            adder.stdin.close()
            most = max(1, len(self._names) - 10)        # the last few tasks may be done at once
            for count in sorted(self._random.sample(range(most), min(self._options.kills, most))):
                self._wait(lambda count=count: self._count_starts() > count, "task %d to begin" % count)
                time.sleep(self._random.uniform(0, PAUSE_SECONDS))
                self._wait(self._kill, "a process to kill")
            self._wait(lambda: adder.poll() is not None, "the adds")
            if adder.returncode:
                raise LoadTestError("adding failed with code %d" % adder.returncode)
            left = "SELECT count(*) FROM task WHERE status NOT IN (2, 3, 4)"
            self._wait(lambda: self._query(left) == [(0,)], "the end of all tasks", 0.2)
        finally:
            self._done.set()
            ticker.join()

    def records(self):
        """Return the Records. The order of the events is that of their rows."""
        added = {task.id: task for task in (
            Added(task_id, kind, int(number)) for task_id, kind, number in
            map(str.split, (self.folder / "added").read_text("ascii").splitlines()))}
        *results, rows = map(json.loads, self._run(
            "ledger_read.py", given="\n".join(added)).splitlines())
        by_number = {int(task_id.partition("-")[0]): task_id for task_id in added}
        events = collections.defaultdict(list)
        for number, word, attempt, at in self._query(
                "SELECT task_id, event, attempt, at FROM activity WHERE event IN ('started', 'put_back', "
                "'crashed', 'interrupted', 'retry', 'failed', 'succeeded', 'cancelled') ORDER BY id"):
            if number in by_number:
                events[by_number[number]].append(Event(word, attempt, at))
        known = {row[0] for row in self._query("SELECT id FROM task")}
        return Records(
            added, read_runs((self.folder / "ledger").read_text("ascii")),
            {task_id: Result(*rest) for task_id, *rest in results if int(task_id.partition("-")[0]) in known},
            [tuple(row) for row in rows], self.kills, events)

    def damage(self):
        """Return words on databases that are not whole."""
        found = []
        for path in (django_sites.queue_file(self.folder), self.folder / "db.sqlite3"):
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as link:
                found += [row[0] for row in link.execute("PRAGMA integrity_check") if row[0] != "ok"]
        return found

    def close(self):
        """End all processes of the project."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            left = [pid for pid, process in processes_of(self.folder).items() if process.state != "Z"]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _ask(self, text):
        done = subprocess.run([self._python, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8")
        if done.returncode:
            raise LoadTestError("%s has no Django: %s" % (self._python, done.stderr.strip()[-300:]))
        return done.stdout.strip()

    def _run(self, *words, given=None):
        return django_sites.run(self.folder, self._python, *words, given=given)

    def _query(self, statement):
        path = django_sites.queue_file(self.folder)
        with contextlib.closing(sqlite3.connect("file:%s?mode=ro" % path, uri=True, timeout=30)) as link:
            return link.execute(statement).fetchall()

    def _tick(self):
        """Look after the workers, as cron does."""
        while not self._done.wait(TICK_SECONDS):
            self._run("jobqueue.py", "tick")

    def _count_starts(self):
        with contextlib.suppress(FileNotFoundError), (self.folder / "ledger").open("rb") as file:
            file.seek(self._read)
            text = file.read()
            self._read += len(text)
            self._starts += text.count(b"START ")
        return self._starts

    def _kill(self):
        """Kill a worker or a runner; return False if there is none."""
        living = processes_of(self.folder)
        choices = [("worker", sorted(workers_among(living))),
                   ("runner", sorted(pid for pid, process in living.items() if is_runner(process)))]
        what, pids = self._random.choice(choices)
        if not pids:
            return False
        pid, at = self._random.choice(pids), time.time()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills.append(Kill(pid, what, at))
        return True

    def _wait(self, condition, what, pause=0.002):
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > until:
                raise LoadTestError("waited too long for %s" % what)
            time.sleep(pause)


# Entry -----------------------------------------------------------------------

def summary(records, found):
    """Return what was done, in figures, as one line."""
    kills = collections.Counter(kill.what for kill in records.kills)
    words = [word for events in records.events.values() for word, _, _ in events]
    return ("added %s, in the ledger %s runs; killed %d workers, %d runners; crashed %d, put back %d; "
            "again: %d raised, %d cut off, %d had ended (at most %.0f ms before); given up %d; %s" % (
                thousands(len(records.added)), thousands(sum(map(len, records.runs.values()))),
                kills["worker"], kills["runner"], words.count("crashed"), words.count("put_back"),
                found.counts["raised"], found.counts["cut off"], found.counts["had ended"],
                found.longest * 1000, len(found.given_up), found))


def run(options, plant=""):
    """Run a drill, with a text appended to its copy of jobqueue.py; (Findings, the report's text)."""
    drill = Drill(options)
    is_clean = is_made = False
    try:
        drill.open(plant)
        is_made = True
        drill.storm()
        records = drill.records()
        found = check(records)
        for words in drill.damage():
            found.add("wrong", "a database", words)
        is_clean = found.is_clean
    finally:
        drill.close()
        if options.keep or is_made and not (is_clean or plant):
            print("kept: %s" % drill.folder, file=sys.stderr)
        else:
            shutil.rmtree(drill.folder, ignore_errors=True)
    lines = [summary(records, found)]
    lines += [words for problems in found.problems.values() for words in problems[:5]]
    lines.append("again: python3 tests/tools/django_drill.py --python %s --seed %s --tasks %d --kills %d "
                 "--workers %d" % (options.python, options.seed, options.tasks, options.kills,
                                   options.workers))
    return found, "\n".join(lines)


def parse(arguments=None):
    """Return the options, with a seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog="The folder is kept if something was found. Needs Linux.")
    parser.add_argument("--python", required=True, help="a Python with Django")
    parser.add_argument("--tasks", type=positive(int), default=2000, metavar="N", help="(2000)")
    parser.add_argument("--kills", type=positive(int), default=30, metavar="N", help="(30)")
    parser.add_argument("--workers", type=positive(int), default=3, metavar="N", help="NbMaxWorker (3)")
    parser.add_argument("--seed", metavar="S", help="of all decisions (a new one)")
    parser.add_argument("--folder", metavar="DIR", help="work in a new folder of this one, on its disk")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = str(secrets.randbelow(10 ** 6))
    return options


def main(arguments=None):
    """Run one drill; return its exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("%s tasks of Django, %d kills, %d workers, seed %s" % (
        thousands(options.tasks), options.kills, options.workers, options.seed), flush=True)
    try:
        found, report = run(options)
    except (LoadTestError, RuntimeError, OSError, sqlite3.Error) as error:
        print("django_drill: %s" % error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(report)
    return 0 if found.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
