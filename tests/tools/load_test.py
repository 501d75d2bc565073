#!/usr/bin/env python3
"""Load test: add tasks at a set pace as browsers do, then prove that each ran exactly once.

    python3 tests/tools/load_test.py                        on a fresh site of its own
    python3 tests/tools/load_test.py --workers 20 --users 8 --rate 10 --tasks 10000 \\
                                     --seconds 1.5-2.5 --svg load-test.svg
    python3 tests/tools/load_test.py --server https://example.org/jobs \\
                                     --name ana --password-file F   on a site that runs already

Three records that share no code are compared at the end: the ids the server acknowledged with
a 201, the rows in its database, and the ledger to which the function itself appends a line when
it starts and when it ends. With --server the ledger is a third record only where it can be read:
it lies beside tasks.py, or where --ledger says. Without it "run" and "run twice" are what the rows
say of themselves, and the report says so. The exit code is 0 only if nothing was lost, run twice
or left over.

Contents
    Constants   limits, and the tasks.py that a load test needs
    Client      HTTP as a logged-in browser speaks it
    Records     the three records, read
    Runs        what the ledger tells
    Comparison  what they say about each other
    SiteCopy    a fresh installation in a folder of its own, and its end
    Load        adding, watching, sampling
    Report      the words and figures at the end
    Drawing     the graph
    Entry       the command line
"""
import argparse
import collections
import contextlib
import datetime
import getpass
import html
import http.client
import itertools
import json
import os
import random
import re
import secrets
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit


# Constants -------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("jobqueue.py", "worker.py", "static")
FUNCTION = "load_test"
LEDGER_NAME = "load-test-ledger.txt"

ANSWER_SECONDS = 60.0               # how long a browser waits for an answer
IDLE_SECONDS = 3.0                  # web servers close idle connections; be first
POLL_SECONDS = 2.0                  # how often the page looks at its list
SAMPLE_SECONDS = 1.0
SHOW_SECONDS = 5.0                  # between two progress lines when not on a terminal
STALL_SECONDS = 120.0               # nothing moved for so long: give up
START_SECONDS = 30.0
LEAVE_SECONDS = 15.0                # for workers that are asked to go
RETRY_MAX_SECONDS = 60.0
ADDERS_PER_RATE = 0.5               # threads for each task a second
ADDERS = (4, 32)                    # fewest and most

LIST_PATH = "api/tasks?limit=50&counts=1"
COUNT_PATH = "api/tasks?limit=1&counts=1"
PAGE_PATH = "api/tasks?limit=200"
UNFINISHED = ("pending", "running", "scheduled", "waiting")
FINISHED = ("succeeded", "failed", "cancelled")
NO_LEDGER = ("\n         no ledger was read: what ran, and how often, is judged from two records only, "
             "the answers and the rows")
STATUS_WORDS = ("pending", "running", "succeeded", "failed", "cancelled", "scheduled", "waiting")

LEDGER_TEXT = '''\
import os
import time

from jobqueue import current_task, task

LEDGER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "%s")
WORKER = os.getppid()


def note(kind, id=None):
    """Append one line to the ledger with one write."""
    now = current_task()
    line = "%%s %%d %%d %%s %%d %%.6f %%d\\n" %% (
        kind, id or now.id, now.attempt, now.claim, os.getpid(), time.monotonic(), WORKER)
    ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, line.encode("ascii"))
    os.close(ledger)
''' % LEDGER_NAME

TASKS_TEXT = LEDGER_TEXT + '''

@task
def %s(seconds: float):
    """Sleep, for the load test."""
    note("START")
    time.sleep(seconds)
    note("END")
''' % FUNCTION

Row = collections.namedtuple("Row", "id status attempts waited")
Entry = collections.namedtuple("Entry", "kind id attempt claim pid at worker", defaults=(0,))
Sample = collections.namedtuple("Sample", "at pending running workers unfinished")


class LoadTestError(Exception):
    """The test cannot go on; the words say why."""


# Client ----------------------------------------------------------------------

class Reply:
    """Status, headers and JSON of an answer."""

    def __init__(self, answer):
        self.status = answer.status
        self.headers = answer.headers
        body = answer.read()
        is_json = "json" in (answer.headers.get("Content-Type") or "")
        self.value = json.loads(body) if body and is_json else None

    @property
    def retry_seconds(self):
        """How long the server asks to be left alone, or None."""
        if self.status not in (429, 503):
            return None
        text = self.headers.get("Retry-After") or "1"
        return min(RETRY_MAX_SECONDS, float(text)) if text.isdigit() else 1.0

    def expect(self, *statuses):
        """Its JSON, if the status is one of these."""
        if self.status not in statuses:
            detail = (self.value or {}).get("detail", "no explanation")
            raise LoadTestError("The server answered %d: %s" % (self.status, detail))
        return self.value


class Client:
    """One keep-alive connection of a browser that may be logged in."""

    def __init__(self, server, cookie=None):
        self._address = urlsplit(server if server.endswith("/") else server + "/")
        self._connection = None
        self._used = 0.0
        self.content_type = "application/json"
        self.server = server
        self.cookie = cookie

    def send(self, method, path, value=None, tag=None):
        """Send a request and return the Reply; OSError or HTTPException if none came."""
        try:
            connection = self._connect()
            connection.request(method, self._address.path + path, self._body(method, value),
                               self._headers(method, tag))
            reply = Reply(connection.getresponse())
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()
        if reply.headers.get("Connection", "").lower() == "close":
            self.close()
        return reply

    def log_in(self, name, password):
        """Start a session; returns itself."""
        self._start_session("api/session", {"name": name, "password": password})
        return self

    def set_up(self, code, name, password):
        """Make the first admin and be logged in as that; returns itself."""
        self._start_session("api/setup", {"code": code, "name": name, "password": password})
        return self

    def twin(self):
        """Another connection of the same session."""
        return Client(self.server, self.cookie)

    def close(self):
        """Close the connection; the next request opens another."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _connect(self):
        if self._connection and self._is_over():
            self.close()
        if self._connection is None:
            kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            kind = kinds[self._address.scheme]
            self._connection = kind(self._address.netloc, timeout=ANSWER_SECONDS)
        return self._connection

    def _is_over(self):
        """True if the server may have closed the connection, as browsers look before they use one."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            return True
        ready = select.poll()
        ready.register(self._connection.sock, select.POLLIN)
        return bool(ready.poll(0))      # nothing is to be read but the end

    def _headers(self, method, tag):
        headers = {"Cookie": self.cookie} if self.cookie else {}
        if method != "GET":
            headers["Content-Type"] = self.content_type
            headers["Origin"] = "%s://%s" % (self._address.scheme, self._address.netloc)
        if tag:
            headers["If-None-Match"] = tag
        return headers

    @staticmethod
    def _body(method, value):
        if value is not None:
            return value if isinstance(value, str) else json.dumps(value)
        return None if method == "GET" else ""

    def _start_session(self, path, value):
        reply = self.send("POST", path, value)
        reply.expect(200, 201)
        self.cookie = reply.headers["Set-Cookie"].partition(";")[0]


# Records ---------------------------------------------------------------------

def read_only(path, statement):
    """The rows of a query on a database file, without being able to change it."""
    connection = sqlite3.connect("file:%s?mode=ro" % path, uri=True, timeout=30)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def rows_in_file(path):
    """All tasks of the load test, from the database itself."""
    return [Row(id_, STATUS_WORDS[status], attempts, started and started - created)
            for id_, status, attempts, created, started in read_only(
                path, "SELECT id, status, attempts, created_at, started_at FROM task")]


def seconds_of(text):
    """An API time as seconds since 1970."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def row_of_json(task):
    """A Row from a task as the list shows it."""
    waited = task["started_at"] and seconds_of(task["started_at"]) - seconds_of(task["created_at"])
    return Row(task["id"], task["status"], task["attempts"], waited)


def patiently(browser, method, path):
    """A Reply, asked for again while the server is busy."""
    while True:
        reply = browser.send(method, path)
        if reply.retry_seconds is None:
            return reply
        time.sleep(reply.retry_seconds)


def rows_over_http(browser, lowest):
    """The tasks with at least this id, from the list."""
    rows, cursor = [], ""
    while True:
        page = patiently(browser, "GET", PAGE_PATH + cursor).expect(200)
        rows += [row_of_json(task) for task in page["tasks"] if task["function"] == FUNCTION]
        reached = not page["tasks"] or page["tasks"][-1]["id"] <= lowest
        if reached or not page["next"]:
            return [row for row in rows if row.id >= lowest]
        cursor = "&cursor=" + page["next"]


def read_ledger(path):
    """What the functions themselves wrote: a list of Entry.

    A kill may cut a line where a page of the file ends; the next one follows at once.
    """
    entries = []
    text = re.sub("(?<=[0-9a-f.])(?=[A-Z]{3,} [0-9])", "\n", Path(path).read_text("ascii"))
    for line in text.splitlines():
        kind, id_, attempt, claim, pid, at, *worker = line.split()
        entries.append(Entry(kind, int(id_), int(attempt), claim, int(pid), float(at),
                             *map(int, worker)))
    return entries


# Runs ------------------------------------------------------------------------

class Run:
    """One attempt as the ledger tells it; `how` is END, FAIL or None if it was cut off."""

    def __init__(self, entry):
        self.id = entry.id
        self.attempt = entry.attempt
        self.claim = entry.claim
        self.pid = entry.pid
        self.worker = entry.worker
        self.start = entry.at
        self.seen = entry.at            # when it wrote last
        self.end = None
        self.how = None


def read_runs(entries):
    """({task id: its Runs in the order they began}, [(task id, words)] on what cannot be)."""
    runs, claims, oddities = collections.defaultdict(list), {}, []
    for entry in sorted(entries, key=lambda entry: entry.at):
        run = claims.get(entry.claim)
        if entry.kind == "START":
            if run is not None:
                oddities.append((entry.id, "two runs under one claim"))
            run = claims[entry.claim] = Run(entry)
            runs[entry.id].append(run)
        elif run is None or run.id != entry.id or run.pid != entry.pid or run.how:
            oddities.append((entry.id, "a %s without its START" % entry.kind))
        else:
            run.seen = entry.at
            if entry.kind in ("END", "FAIL"):
                run.end, run.how = entry.at, entry.kind
    return runs, oddities


# Comparison ------------------------------------------------------------------

class Findings:
    """What the records say about each other: sets of task ids."""

    def __init__(self):
        self.acknowledged = set()
        self.known = set()              # in the database
        self.run = set()                # from start to end
        self.lost = set()               # acknowledged and missing, or recorded but never run
        self.twice = set()              # started more than once, or overlapping
        self.stuck = set()              # not finished
        self.failed = set()             # finished, but not well
        self.again = set()              # cut off by a crash and run again, as promised
        self.unequal = set()            # list and database file differ
        self.has_ledger = True

    @property
    def is_clean(self):
        """True if every acknowledged task ran once and is recorded so."""
        return not (self.lost or self.twice or self.stuck or self.failed or self.unequal)

    def __str__(self):
        text = ("acknowledged %d, in the database %d, run %d: lost %d, run twice %d, stuck %d"
                % tuple(map(len, (self.acknowledged, self.known, self.run, self.lost,
                                  self.twice, self.stuck))))
        others = (("failed", self.failed), ("cut off by a crash and run again", self.again),
                  ("different in list and file", self.unequal))
        text += "".join(", %s %d" % (words, len(ids)) for words, ids in others if ids)
        return text if self.has_ledger else text + NO_LEDGER


def essence(row):
    """A Row without what is rounded differently over HTTP."""
    return row._replace(waited=None)


def judge_runs(found, succeeded, rows, entries):
    """Fill in what the ledger tells."""
    attempts = {row.id: row.attempts for row in rows}
    runs, oddities = read_runs(entries)
    found.run = {entry.id for entry in entries if entry.kind == "END"}
    found.lost |= succeeded - found.run
    found.twice |= {task_id for task_id, _ in oddities}
    for task_id, own in runs.items():
        if len(own) > 1:
            numbers = [0] + [run.attempt for run in own]
            was_cut_off = (not any(run.how for run in own[:-1]) and len(own) <= attempts.get(task_id, 0)
                           and all(one < two for one, two in zip(numbers, numbers[1:])))
            (found.again if was_cut_off else found.twice).add(task_id)


def compare(acknowledged, rows, entries=None, file_rows=None):
    """Findings from acknowledged ids, database rows, ledger entries and rows of the file itself.

    Without a ledger (None) a task counts as run if its row says so.
    """
    found = Findings()
    found.acknowledged = set(acknowledged)
    found.known = {row.id for row in rows}
    succeeded = {row.id for row in rows if row.status == "succeeded"}
    found.stuck = {row.id for row in rows if row.status not in FINISHED}
    found.failed = found.known - succeeded - found.stuck
    found.lost = found.acknowledged - found.known
    if file_rows is not None:
        found.unequal = {row.id for row in set(map(essence, rows)) ^ set(map(essence, file_rows))}
    if entries is None:
        found.has_ledger = False
        found.run = succeeded
        found.twice = {row.id for row in rows if row.attempts > 1}
    else:
        judge_runs(found, succeeded, rows, entries)
    return found


# SiteCopy --------------------------------------------------------------------

def end_process(process):
    """Ask a process of ours to end, then insist."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()


class SiteCopy:
    """A fresh installation: the project's files, a tasks.py, and a running server."""

    def __init__(self, tasks_text=TASKS_TEXT, data=None, parent=None, source=ROOT):
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue-load-test-", dir=parent)).resolve()
        self.data = Path(os.path.abspath(data)) if data else self.folder / "data"
        self.ledger = self.folder / LEDGER_NAME
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("JOBQUEUE_")}
        self.process = None
        self.server = None
        self.password = secrets.token_urlsafe(12)       # of the first admin
        for name in COPIED:
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, self.folder / name)
        (self.folder / "tasks.py").write_text(tasks_text, encoding="utf-8")
        self.ledger.touch()

    def start(self):
        """Start the server on a free port."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "jobqueue.py", "serve", "--port", "0", "--data", str(self.data)],
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        self.server = self._read_address()

    def set_up(self):
        """Make the first admin over HTTP; returns the Client of its session."""
        until = time.monotonic() + START_SECONDS
        while not any(self.data.glob("setup-code-*.txt")) and time.monotonic() < until:
            time.sleep(0.1)
        code = next(self.data.glob("setup-code-*.txt")).read_text("ascii").strip()
        return Client(self.server).set_up(code, "admin", self.password)

    @property
    def database(self):
        """The path of the database file."""
        return next(self.data.glob("jobqueue-*.db"))

    def stop(self, admin=None):
        """End workers and server; workers first, while the server can still tell them."""
        if admin:
            with contextlib.suppress(OSError, http.client.HTTPException, LoadTestError):
                admin.send("PATCH", "api/settings", {"NbMaxWorker": 0}).expect(200)
            admin.close()
        if self.data.is_dir():
            self._end_workers()
        if self.process:
            end_process(self.process)

    def remove(self):
        """Remove all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)

    def worker_pids(self):
        """The process ids of the workers that have reported."""
        with contextlib.suppress(sqlite3.Error, StopIteration):
            return [row[0] for row in read_only(self.database, "SELECT pid FROM worker") if row[0]]
        return []

    def _read_address(self):
        killer = threading.Timer(START_SECONDS, self.process.kill)
        killer.start()
        line = self.process.stdout.readline().decode("utf-8", "replace")
        killer.cancel()
        if " is at " not in line:
            log = (self.folder / "server.log").read_text("utf-8", "replace")
            raise LoadTestError("The server did not start: %s" % log.strip())
        return line.split(" is at ")[1].strip()

    def _end_workers(self):
        """Wait for workers to leave by themselves, then ask, then insist."""
        for number in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            for pid in self.worker_pids() if number else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if self._wait_for_workers():
                return

    def _wait_for_workers(self):
        until = time.monotonic() + LEAVE_SECONDS / 3
        while self.worker_pids() and time.monotonic() < until:
            time.sleep(0.1)
        return not self.worker_pids()


def add_users(admin, count):
    """Make users with passwords of their own over HTTP; returns a logged-in Client of each."""
    browsers = []
    for number in range(1, count + 1):
        name, password = "user%d" % number, secrets.token_urlsafe(12)
        admin.send("POST", "api/users", {"name": name, "password": password,
                                         "role": "user"}).expect(201)
        browsers.append(Client(admin.server).log_in(name, password))
    return browsers


# Load ------------------------------------------------------------------------

class Load:
    """Browsers that add tasks at a set pace and look at their lists; what came of it."""

    def __init__(self, browsers, tasks, rate, seconds):
        self._browsers = browsers
        self._rate = rate
        self._seconds = seconds
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = []
        self.tasks = tasks
        self.began = None
        self.acknowledged = []
        self.add_seconds = []           # from the moment it was due to the 201
        self.list_seconds = []
        self.counts = collections.Counter()
        self.broken = None              # why it cannot go on

    def start(self):
        """Begin adding and looking."""
        self.began = time.monotonic()
        adders = int(max(ADDERS[0], min(ADDERS[1], self._rate * ADDERS_PER_RATE)))
        for place in range(adders):
            self._run(self._add_tasks, self._browsers[place % len(self._browsers)].twin())
        for browser in self._browsers:
            self._run(self._look_at_list, browser.twin())

    def stop(self):
        """Stop adding and looking."""
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS)

    def _run(self, work, browser):
        thread = threading.Thread(target=self._guard, args=(work, browser), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, work, browser):
        try:
            work(browser)
        except Exception as error:
            self.broken = "%s: %s" % (type(error).__name__, error)
        finally:
            browser.close()

    def _add_tasks(self, browser):
        """Take the next number, wait until it is due, add a task."""
        while not self._stop.is_set():
            number = next(self._numbers)
            if number >= self.tasks:
                return
            due = self.began + number / self._rate
            self._stop.wait(max(0.0, due - time.monotonic()))
            self._add(browser, due)

    def _add(self, browser, due):
        """Add one task, as often as it takes."""
        asked = {"function": FUNCTION,
                 "arguments": {"seconds": round(random.uniform(*self._seconds), 3)}}
        while not self._stop.is_set():
            reply = self._send(browser, "POST", "api/tasks", asked)
            if reply is not None:
                self.acknowledged.append(reply.expect(201)["id"])
                self.add_seconds.append(time.monotonic() - due)
                return

    def _look_at_list(self, browser):
        """Ask for the list as the page does."""
        tag = None
        self._stop.wait(random.uniform(0, POLL_SECONDS))
        while not self._stop.is_set():
            sent = time.monotonic()
            reply = self._send(browser, "GET", LIST_PATH, None, tag)
            if reply is not None:
                reply.expect(200, 304)
                tag = reply.headers.get("ETag")
                self.list_seconds.append(time.monotonic() - sent)
                self.counts["unchanged"] += reply.status == 304
            self._stop.wait(max(0.0, sent + POLL_SECONDS - time.monotonic()))

    def _send(self, browser, *request):
        """A Reply; None, after the pause that was asked for, if it must be tried again."""
        try:
            reply = browser.send(*request)
        except (OSError, http.client.HTTPException):
            self.counts["broken"] += 1
            self._stop.wait(1.0)
            return None
        if reply.retry_seconds is None:
            return reply
        self.counts["busy"] += 1
        self._stop.wait(reply.retry_seconds)
        return None


class Watcher:
    """Samples the queue once a second until all is done or nothing moves."""

    def __init__(self, load, browser, show):
        self._load = load
        self._browser = browser
        self._show = show
        self._before = None             # unfinished tasks that are not ours
        self._last = None               # the newest Sample
        self.samples = []
        self.most_workers = 0
        self.limit = None

    def prepare(self):
        """See what is there before the load begins."""
        self._last = self._look()
        self._before = self._last.unfinished

    def watch(self):
        """True once every acknowledged task is finished, False if it came to a standstill."""
        last, moved = None, time.monotonic()
        while True:
            added, done = state = self._step()
            if state != last:
                last, moved = state, time.monotonic()
            if self._load.broken:
                raise LoadTestError(self._load.broken)
            if added == done == self._load.tasks:
                return True
            if time.monotonic() - moved > STALL_SECONDS:
                return False
            time.sleep(SAMPLE_SECONDS)

    def watch_leaving(self):
        """See the workers end themselves, since nothing is left to do."""
        until = time.monotonic() + STALL_SECONDS
        while self._last.workers and time.monotonic() < until:
            time.sleep(SAMPLE_SECONDS)
            self._step()

    def _step(self):
        """Take a sample and show it; (added, done), where done is never too many."""
        added = len(self._load.acknowledged)    # before the look, which then sees them all
        try:
            self._last = self._look()
        except (OSError, http.client.HTTPException, LoadTestError):
            return added, 0             # busy: the next one will do
        self.samples.append(self._last)
        self.most_workers = max(self.most_workers, self._last.workers)
        done = max(0, min(added, added + self._before - self._last.unfinished))
        self._show(added, done, self._last.running, self._last.workers)
        return added, done

    def _look(self):
        counts = self._browser.send("GET", COUNT_PATH).expect(200)["counts"]
        workers = self._browser.send("GET", "api/workers").expect(200)
        self.limit = workers["maximum"]
        began = self._load.began or time.monotonic()
        return Sample(time.monotonic() - began, counts["pending"], counts["running"],
                      len(workers["workers"]), sum(counts[word] for word in UNFINISHED))


# Report ----------------------------------------------------------------------

def percentile(values, share):
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def percentiles(values):
    """p50, p90, p99 and the largest as text."""
    if not values:
        return "none"
    figures = [percentile(values, share) for share in (0.5, 0.9, 0.99)] + [max(values)]
    return "  ".join("%s %9s" % (name, duration(value))
                     for name, value in zip(("p50", "p90", "p99", "max"), figures))


def duration(seconds):
    """Seconds in words of a handy size."""
    return "%.1f ms" % (seconds * 1000) if seconds < 1 else "%.2f s" % seconds


def thousands(number):
    """A number with commas, without needless zeros."""
    return format(number, ",.10g")


def describe(options, limit):
    """The settings of a run in one line."""
    low, high = options.seconds
    span = "%g s" % low if low == high else "%g-%g s" % (low, high)
    return "%s tasks of %s, %s added a second, NbMaxWorker %s, %d users" % (
        thousands(options.tasks), span, thousands(options.rate), limit, options.users)


def summary(load, watcher, rows, found):
    """Everything at the end but the settings."""
    waited = [row.waited for row in rows if row.waited is not None]
    counts = load.counts
    return "\n".join((
        str(found),
        "add      " + percentiles(load.add_seconds),
        "list     " + percentiles(load.list_seconds),
        "pick-up  " + percentiles(waited),
        "workers  at most %d, NbMaxWorker %s" % (watcher.most_workers, watcher.limit),
        "answers  %d lists (%d unchanged), %d times asked to come back later, %d without an answer"
        % (len(load.list_seconds), counts["unchanged"], counts["busy"], counts["broken"])))


class Progress:
    """One line that is written over on a terminal, else a line now and then."""

    def __init__(self, stream, total):
        self._stream = stream
        self._total = total
        self._next = 0.0
        self._width = 0

    def __call__(self, added, done, running, workers):
        self.show("added %d of %d, running %d, done %d, workers %d" % (
            added, self._total, running, done, workers))

    def show(self, text):
        """Show how things stand."""
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + SHOW_SECONDS
            self._stream.write(text + "\n")
        self._stream.flush()

    def end(self):
        """Leave the line that was written over."""
        if self._width:
            self._stream.write("\n")


# Drawing ---------------------------------------------------------------------

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT = 62, 836
UPPER = (86, 236)                   # top and bottom of the panel of pending tasks
LOWER = (280, 406)                  # ... of running tasks and worker processes
STYLE = """
svg { font: 13px system-ui, sans-serif; }
.card { fill: #ffffff; stroke: #d0d7de; } .title { font-size: 16px; font-weight: 600; }
text { fill: #1f2328; } .faint { fill: #59636e; font-size: 12px; } .grid { stroke: #d8dee4; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.pending { stroke: #bc4c00; } .running { stroke: #0969da; } .workers { stroke: #1a7f37; }
.limit { stroke: #1a7f37; stroke-dasharray: 5 4; fill: none; }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117; stroke: #3d444d; } text { fill: #f0f6fc; } .faint { fill: #9198a1; }
.grid { stroke: #2a313c; } .pending { stroke: #f0883e; } .running { stroke: #4493f8; }
.workers, .limit { stroke: #3fb950; } }
"""


def nice_step(top, parts):
    """A round distance between grid lines."""
    rough = max(top, 1) / parts
    size = 10 ** (len(str(int(rough))) - 1) if rough >= 1 else 1
    return next(step * size for step in (1, 2, 5, 10) if step * size >= rough)


def label(x, y, text, kind="", anchor="start"):
    """A text element."""
    return '<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>' % (
        x, y, kind, anchor, html.escape(text))


class Panel:
    """A box with axes into which lines are drawn."""

    def __init__(self, box, seconds, top):
        self._top_y, self._bottom_y = box
        self._seconds = max(seconds, 1)
        self._step = nice_step(top, 4)
        self._top = -(-max(top, 1) // self._step) * self._step

    def x(self, seconds):
        """Where a moment lies."""
        return LEFT + (RIGHT - LEFT) * seconds / self._seconds

    def y(self, value):
        """Where a value lies."""
        return self._bottom_y - (self._bottom_y - self._top_y) * value / self._top

    def axes(self):
        """Grid lines with numbers."""
        parts = []
        for value in range(0, int(self._top) + 1, int(self._step)):
            y = self.y(value)
            parts.append('<path class="grid" d="M%d %.1fH%d"/>' % (LEFT, y, RIGHT))
            parts.append(label(LEFT - 8, y + 4, thousands(value), "faint", "end"))
        return parts

    def times(self):
        """Numbers along the time axis, in minutes for long runs."""
        unit, name = (60, "min") if self._seconds >= 300 else (1, "s")
        step = nice_step(self._seconds / unit, 8)
        marks = range(0, int(self._seconds / unit) + 1, int(step))
        parts = [label(self.x(mark * unit), self._bottom_y + 18, "%d" % mark, "faint", "middle")
                 for mark in marks]
        parts.append(label(RIGHT, self._bottom_y + 36, name, "faint", "end"))
        return parts

    def line(self, kind, points):
        """A line through (seconds, value) points."""
        path = " ".join("%.1f,%.1f" % (self.x(at), self.y(value)) for at, value in points)
        return '<polyline class="line %s" points="%s"/>' % (kind, path)

    def level(self, kind, value):
        """A line at one value over the whole width."""
        return '<path class="%s" d="M%d %.1fH%d"/>' % (kind, LEFT, self.y(value), RIGHT)


def legend(y, *entries):
    """Short strokes with their names, from the left."""
    parts, x = [], LEFT
    for kind, name in entries:
        parts.append('<path class="line %s" d="M%d %dh22"/>' % (kind, x, y - 4))
        parts.append(label(x + 28, y, name))
        x += 48 + 8 * len(name)
    return parts


def draw(samples, limit, title, subtitle):
    """The graph of pending, running and workers over time as SVG text."""
    seconds = samples[-1].at if samples else 1
    upper = Panel(UPPER, seconds, max((one.pending for one in samples), default=1))
    lower = Panel(LOWER, seconds, max([limit or 1] + [max(one.running, one.workers)
                                                      for one in samples]))
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">'
             % (WIDTH, HEIGHT), "<title>%s</title>" % html.escape(title + ": " + subtitle),
             "<style>%s</style>" % STYLE,
             '<rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>'
             % (WIDTH - 1, HEIGHT - 1),
             label(20, 28, title, "title"), label(20, 49, subtitle, "faint")]
    parts += legend(UPPER[0] - 12, ("pending", "pending tasks")) + upper.axes()
    parts += legend(LOWER[0] - 12, ("running", "running tasks"), ("workers", "worker processes"),
                    ("limit", "NbMaxWorker")) + lower.axes() + lower.times()
    parts.append(upper.line("pending", [(one.at, one.pending) for one in samples]))
    parts.append(lower.level("limit", limit or 0))
    parts.append(lower.line("workers", [(one.at, one.workers) for one in samples]))
    parts.append(lower.line("running", [(one.at, one.running) for one in samples]))
    return "\n".join(parts) + "\n</svg>\n"


# Entry -----------------------------------------------------------------------

class FreshSite:
    """A site of our own to test, removed in the end."""

    def __init__(self, options):
        self._options = options
        self._site = None
        self.admin = None               # the Client that samples
        self.browsers = []              # those that add tasks

    def open(self):
        """Make it, with an admin and users."""
        self._site = SiteCopy(data=self._options.data)
        self._site.start()
        self.admin = self._site.set_up()
        self.browsers = add_users(self.admin, self._options.users)

    def close(self):
        """End its processes and remove its files."""
        if self._site is None:
            return
        self._site.stop(self.admin)
        if self._options.keep:
            print("kept: %s" % self._site.folder, file=sys.stderr)
        else:
            self._site.remove()

    def ledger(self):
        """The path of the ledger."""
        return self._site.ledger

    def database(self):
        """The path of the database."""
        return self._site.database


class RunningServer:
    """Somebody's site to test; its limit of workers is set back in the end."""

    def __init__(self, options):
        self._options = options
        self._limit = None
        self.admin = None
        self.browsers = []

    def open(self):
        """Log in as often as there are to be users."""
        options = self._options
        password = (Path(options.password_file).read_text("utf-8").rstrip("\n")
                    if options.password_file else getpass.getpass("Password: "))
        self.browsers = [Client(options.server).log_in(options.name, password)
                         for _ in range(options.users)]
        self.admin = self.browsers[0].twin()
        self._limit = self.admin.send("GET", "api/workers").expect(200)["maximum"]

    def close(self):
        """Leave the settings as they were."""
        if self._limit is not None and self._options.workers is not None:
            self.admin.send("PATCH", "api/settings", {"NbMaxWorker": self._limit}).expect(200)

    def ledger(self):
        """The path of the ledger, if it can be read here."""
        path = Path(self._options.ledger or ROOT / LEDGER_NAME)
        return path if path.is_file() else None

    def database(self):
        """The path of the database, if it can be read here."""
        folder = self._options.data
        return next(Path(folder).glob("jobqueue-*.db"), None) if folder else None


def prepare(target, workers):
    """See that the site has the function, and set its limit of workers if one is given."""
    catalogue = target.admin.send("GET", "api/functions").expect(200)
    if FUNCTION not in {function["name"] for function in catalogue["functions"]}:
        raise LoadTestError("The site needs the function %s. Add this to its tasks.py:\n\n%s"
                            % (FUNCTION, TASKS_TEXT))
    if workers is not None:
        target.admin.send("PATCH", "api/settings", {"NbMaxWorker": workers}).expect(200)


def gather(target, acknowledged):
    """(rows, Findings) from every record that can be read."""
    lowest = min(acknowledged, default=1)
    rows = rows_over_http(target.admin, lowest)
    known = {row.id for row in rows} | set(acknowledged)
    entries = file_rows = None
    if target.ledger():
        entries = [entry for entry in read_ledger(target.ledger()) if entry.id in known]
    if target.database():
        file_rows = [row for row in rows_in_file(target.database()) if row.id in known]
    return file_rows or rows, compare(acknowledged, rows, entries, file_rows)


def drive(target, options, stream):
    """Load a site until all is done; returns (Load, Watcher, whether it came to its end)."""
    load = Load(target.browsers, options.tasks, options.rate, options.seconds)
    progress = Progress(stream, options.tasks)
    watcher = Watcher(load, target.admin, progress)
    watcher.prepare()
    load.start()
    try:
        ended = watcher.watch()
        if ended and options.to_the_end:
            watcher.watch_leaving()
        return load, watcher, ended
    finally:
        progress.end()
        load.stop()


def run(options, stream=sys.stdout):
    """Run a load test; returns (Findings, the report's text, whether it came to its end)."""
    target = RunningServer(options) if options.server else FreshSite(options)
    try:
        target.open()
        prepare(target, options.workers)
        load, watcher, ended = drive(target, options, stream)
        rows, found = gather(target, load.acknowledged)
    finally:
        target.close()
        for browser in [target.admin, *target.browsers]:
            if browser:
                browser.close()
    title = describe(options, watcher.limit)
    if options.svg:
        Path(options.svg).write_text(draw(watcher.samples, watcher.limit, title, str(found)),
                                     encoding="utf-8")
    return found, "%s\n%s" % (title, summary(load, watcher, rows, found)), ended


def seconds_range(text):
    """MIN-MAX or one number of seconds as a pair."""
    low, _, high = text.partition("-")
    pair = float(low), float(high or low)
    if not 0 <= pair[0] <= pair[1]:
        raise ValueError(text)
    return pair


def positive(kind):
    """A parser of numbers above zero."""
    def number(text):
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value
    return number


def command_parser():
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Without --server a fresh site is made, tested and removed.")
    parser.add_argument("--server", metavar="URL", help="test this site, which runs already")
    parser.add_argument("--name", metavar="USER", help="with --server: who logs in")
    parser.add_argument("--password-file", metavar="FILE", help="with --server: their password")
    parser.add_argument("--ledger", metavar="FILE",
                        help="with --server: its ledger, if it can be read here")
    parser.add_argument("--data", metavar="DIR", help="data folder: a new one without --server, "
                        "with it the one to look into, if it can be read here")
    parser.add_argument("--users", type=positive(int), default=4, metavar="N",
                        help="browser sessions (4)")
    parser.add_argument("--rate", type=positive(float), default=8.0, metavar="R",
                        help="tasks added a second (8)")
    parser.add_argument("--tasks", type=positive(int), default=400, metavar="N",
                        help="tasks in all (400)")
    parser.add_argument("--seconds", type=seconds_range, default=(0.5, 1.5), metavar="MIN-MAX",
                        help="how long each sleeps (0.5-1.5)")
    parser.add_argument("--workers", type=positive(int), metavar="N",
                        help="NbMaxWorker meanwhile (10; with --server as it is)")
    parser.add_argument("--svg", metavar="FILE", help="write a graph")
    parser.add_argument("--to-the-end", action="store_true",
                        help="go on until the workers have ended themselves")
    parser.add_argument("--keep", action="store_true", help="do not remove the fresh site")
    return parser


def parse(arguments=None):
    """Options, checked together."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if options.server and not options.name:
        parser.error("--server needs --name")
    if options.server and urlsplit(options.server).scheme not in ("http", "https"):
        parser.error("--server must begin with http:// or https://")
    if not options.server and options.workers is None:
        options.workers = 10
    if not options.server and options.data and os.path.exists(options.data):
        parser.error("--data must not exist yet")
    return options


def main(arguments=None):
    """Run one load test; returns its exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found, report, ended = run(options)
    except (LoadTestError, OSError) as error:
        print("load test: %s" % error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(report)
    if not ended:
        print("nothing moved for %d s" % STALL_SECONDS)
    return 0 if ended and found.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
