#!/usr/bin/env python3
"""Drill: flood a fresh queue, kill, stop and starve its processes, prove that nothing is lost.

    python3 tests/tools/drill.py                about a minute
    python3 tests/tools/drill.py --minutes 30 --workers 20 --tasks 50000
    python3 tests/tools/drill.py --seed 4711    the same decisions again
    python3 tests/tools/drill.py --folder ~/tmp on the disk of that folder
    python3 tests/tools/drill.py --postgres     on PostgreSQL, with workers on three machines (root)
    python3 tests/tools/drill.py --remote       with workers that ask over HTTP

A server is started in a new folder and several users add tasks over HTTP: single ones and
thousands at once; quick, slow, talkative, failing ones, some that add others, and a few that
kill the process they run in, leave it in a bad state, or close its descriptors and go on. Some
come after others or share a unique key, some wait in a queue with a limit or a rate. One user has
a quota, the others have schedules that are due every second; all of them cancel, delete and retry,
one task or many. Meanwhile workers, runners and the server are killed, stopped and resumed, the
processors are kept busy, an outsider holds the database's write lock, and the disk is full: in
drills of four minutes or more for longer than a lease.

Three records that share no code are compared at the end: what the server acknowledged, the
ledger to which the functions themselves append, and the database. The exit code is 0 only if
they agree on everything listed in the report. A run is repeated rightly only if its worker or
runner was killed before its outcome could be on record: within 5 seconds of its end, not counting
the time in which nobody could write. The report says how many there were.

Full disks need a disk that can be filled. The data is put on a small one where one may be mounted;
with --folder or without that right only --fill-disk fills the folder's own disk or quota (the
ledger lies in the temporary folder then).

A worker in another language takes part: tests/tools/foreign_worker.sh where there is a sqlite3 command,
or any --foreign COMMAND, in which {database} and {ledger} are replaced. It works on the queue
"foreign", its result is its arguments, and it appends to the ledger, with one write each,
"START|END id attempt claim pid monotonic-seconds". It is killed only in drills of two minutes or
more, since the death of a foreign worker is noticed by its lease of one minute.

With --postgres a server is started, and its workers are services on machines of their own: namespaces
with a host name, a network, a boot id and a local folder each. Whole machines fall, unheard, and come
back; their network is cut, loudly or silently; the server is stopped at once or killed, and every
connection to it is cut: mostly for less than a lease, in drills that have time for it for longer.

With --remote most workers ask the site over HTTP, every third one by CGI. Some of their connections
are cut at any byte, and now and then the way to the site is silent.

Contents
    Constants   limits, and what the queue is given to do
    Records     what is known at the end, and reading it
    Runs        what the ledger tells, and what ended a run early
    Checks      the invariants, one function each
    Stores      the database, as somebody else sees it
    Small disk  one that can be filled
    Drill site  a fresh installation that can be killed and started again
    Adding      users that flood it over HTTP
    Trouble     what is done to processes, machines, network and server
    Sampling    how many workers live
    Report      the words and figures at the end
    Entry       the command line
"""
import argparse
import bisect
import collections
import contextlib
import errno
import http.client
import itertools
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

try:
    import psycopg
    STORE_ERRORS = sqlite3.Error, psycopg.Error
except ImportError:                     # only --postgres needs it
    STORE_ERRORS = sqlite3.Error,

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.helpers import between, machines, postgres  # noqa: E402
from tests.helpers.processes import (  # noqa: E402
    holds_lock, is_runner, is_worker, look_at, processes_of, workers_among)
from tests.tools.load_test import (  # noqa: E402
    FINISHED,
    LEDGER_TEXT,
    STATUS_WORDS,
    Client,
    LoadTestError,
    Progress,
    SiteCopy,
    add_users,
    duration,
    end_process,
    percentile,
    positive,
    read_ledger,
    read_only,
    read_runs,
    thousands,
)


# Constants -------------------------------------------------------------------

FOREIGN_COMMAND = "sh %s {database} foreign {ledger}" % shlex.quote(
    str(ROOT / "tests" / "tools" / "foreign_worker.sh"))
FOREIGN_PER_SECOND = 0.7                # tasks for a foreign worker, which is slow
TROUBLES = ("disk", "leftovers", "descriptors")     # may be left out
USERS = 4
MINUTES_MAX = 600.0                     # a session ends after twelve hours
ADDING_SHARE = 0.9                      # of the storm, in which the tasks are added
PATIENCE = 1.5                          # the storm lasts at most so many times its time
KILL_SECONDS = 1.0                      # between two kills, on average
SERVICE_SLOWER = 2                      # ... where a worker that was killed takes longer to be there again
DISTURB_SECONDS = 2.0                   # between two other disturbances
PAUSE_SECONDS = (0.1, 3.0)              # a process stands still so long
HOLD_SECONDS = (0.5, 4.0)               # an outsider holds the write lock so long
HOG_SECONDS = (0.5, 2.0)                # ... and keeps the processors busy so long
HOGS_MAX = 4
LEASE_SECONDS = 60.0                    # the product's, unless --lease shortens it
POSTGRES_LEASE_SECONDS = 120.0          # ... on PostgreSQL
REMOTE_LEASE_SECONDS = 180.0            # ... of workers that ask over HTTP
LEASE_OVER = (1.2, 3.5)                 # stand still this many leases and seconds
STILL_SHARE = 4                         # ... one of so many workers
SAMPLE_SECONDS = 0.05
LOOK_SECONDS = 1.0
GHOST_SECONDS = 5.0                     # a worker without a row has so long to end
ORPHAN_SECONDS = 30.0                   # a task of a dead worker is taken from it so soon
STALL_SECONDS = 1.0                     # we ourselves were kept waiting: start watching anew
FAULT_SECONDS = 1.0                     # a drill goes on for so long after its seeded fault
CALM_SECONDS = (15.0, 150.0)            # at least without a change, at most in all
START_SECONDS = 60.0                    # for the server to come back
END_SECONDS = 10.0                      # for processes to end, zombies to be collected
WAIT_SECONDS = 0.2
FULL_WAIT_SECONDS = 1.0                 # a user tries again so much later
DESCRIPTORS_MORE = 40                   # than after its start the server may hold at the end
REMOVE_SHARE = 0.05                     # of all requests: cancel or delete something as well
REMOVE_AMONG = 200                      # of the newest tasks

# What explains that a run was cut off or repeated.
DYING_SECONDS = 1.0                     # a runner outlives its worker at most so long
RECORD_SECONDS = 5.0                    # outcomes are on record so soon if anybody can write
LONGEST_SECONDS = 10.0                  # no function runs longer, pauses included
CRASH_LIMIT = 3
DEATH_SECONDS = 5.0                     # what was killed may start again so soon, it is promised,
LATE_SHARE = 0.05                       # ... but for so many of them, on a busy machine
LATE_MAX = 3                            # and for so many in a short drill

# When machines fall, are cut off, or have no server.
MACHINES = 3
FALL_SHARE, FALL_SECONDS = 1 / 30, 4.0  # between two of these: such a part of the storm, at least
AWAY_LEASES = 0.4                       # what is away for less lets no lease end
AGAIN_SECONDS = 15.0                    # a dead connection is given up so soon,
REMOTE_AGAIN_SECONDS = 45.0             # ... a call over HTTP
REMOTE_DEATH_SECONDS = 20.0             # a killed remote worker is started, and heard, so soon
LOCAL_SHARE = 4                         # beside remote workers one of so many is the site's own
IDLE_SECONDS = 0.5                      # who has the lock and does nothing for so long keeps others waiting,
IDLE_MAX = 6.0                          # ... which the server ends by then
FALLEN_SECONDS = 20.0                   # after its lease a fallen machine's task may start so soon

# When the disk is full.
DISK_BYTES = 512 << 20, 8192            # of the small one: in all, and for each task
FULL_LEASES = (1.2, 2.0)                # so many leases, in drills that have time for it,
FULL_SHARE = (0.05, 0.1)                # ... else such a part of the storm
FULL_AFTER = 0.5, 2.0                   # times that long passes before and between
REFILL_SECONDS = 0.1
REFILL_BYTES = 64 << 20, 4096           # the first portion, the last

FUNCTION_WEIGHTS = {"quick": 0.68, "turns": 0.1, "chatty": 0.06, "shaky": 0.05, "aside": 0.04, "once": 0.03,
                    "parent": 0.02, "poison": 0.02}
SLEEPY_SHARE = (0.05, 0.3)              # of all tasks, so that half of the workers are busy
SLEEPY_SECONDS = (0.05, 1.2)
POISON_MAX = 40                         # by chance, beside one of each user
POISON_CALL = 3
BEYOND_CALL = 4                         # this one is refused to who has a quota
ALIKE_SHARE = 0.6                       # of bulk adds; quick ones only if there are many
ALIKE_MAX = 50
BULK_SIZES = ((2, 20), (20, 200), (200, 800))
BULK_WEIGHTS = (75, 20, 5)
SINGLE_SHARE = 0.9                      # of all requests
RETRIES = 3                             # of shaky
MESSES = ("alarm", "timer", "file size", "open files", "memory", "environment", "thread", "exception",
          "patch", "signals")           # what a task leaves behind
MESSY_PER_SECOND, NEAT_PER_SECOND = 0.6, 1.5
CUTS = ("close", "dup2", "exec")        # how a task loses its descriptors
CUT_PER_SECOND = 0.15
CUT_SECONDS = (3.0, 6.0)
SELF_HARM = ("poison", "messy", "cut")  # may end their own runner, and are given up in the end
NARROW_MAX = 2                          # tasks of "narrow" at once
NARROW_PER_SECOND = 4.0                 # of which so many are asked for
NARROW_SECONDS = (0.05, 0.3)
RATE = 5, 1.0                           # tasks of "paced" are started in so many seconds
PACED_PER_SECOND = 5.0
QUOTA = 60                              # the first user may have so many waiting
PLAIN = ("foreign", "turns", "narrow", "paced", "messy", "neat", "cut")    # without options
KEYS = 6                                # of each user
KEY_SHARE, AFTER_SHARE = 0.05, 0.08     # of all requests
AFTER_MAX = 3
ACT_SHARE = 0.02                        # of all requests: an action on many as well
ACT_IDS = 5
ACT_STEPS = 20
ACTIONS = (("cancel", None), ("delete", None), ("retry", "shaky"), ("cancel", "aside"))
# Of the other users: (catch_up, overlap) of a schedule that is due every second.
PLANS = (("all", "allow"), ("once", "skip"), ("all", "queue"))
FAIR_SLACK = 3                          # turns that are no overtaking

TASKS_TEXT = LEDGER_TEXT + '''
import ctypes
import resource
import signal
import sys
import threading

from jobqueue import Busy, StorageFull

PATH = os.environ.get("PATH")
LATE = 0.5


def run(number, work=None):
    """Run between two lines of the ledger; say whose result it is."""
    note("START")
    if work:
        work()
    note("END")
    return "%%d %%s" %% (number, current_task().claim)


@task
def quick(number: int):
    """Do nothing."""
    return run(number)


@task(queue="side")
def aside(number: int):
    """Do nothing in another queue."""
    return run(number)


@task(queue="turns")
def turns(number: int):
    """Do nothing where all owners take turns."""
    return run(number)


@task(queue="narrow")
def narrow(number: int, seconds: float):
    """Take a while where few may."""
    return run(number, lambda: time.sleep(seconds))


@task(queue="paced")
def paced(number: int):
    """Do nothing, and that not too often."""
    return run(number)


@task
def slotted(number: int):
    """Added by a schedule."""
    return run(number)


@task
def sleepy(number: int, seconds: float):
    """Take a while."""
    return run(number, lambda: time.sleep(seconds))


@task
def chatty(number: int, lines: int):
    """Print."""
    def work():
        for line in range(lines):
            print("line %%d of %%d" %% (line, number))
    return run(number, work)


@task(max_retries=%d, retry_delay=0.2, retry_backoff=1)
def shaky(number: int, failures: int):
    """Fail a few times."""
    if current_task().attempt > failures:
        return run(number)
    note("START")
    note("FAIL")
    raise RuntimeError("attempt %%d" %% current_task().attempt)


@task(on_crash="fail")
def once(number: int, seconds: float):
    """Must never begin twice."""
    return run(number, lambda: time.sleep(seconds))


@task
def child(number: int, place: int):
    """Added by a parent."""
    return run(number)


@task
def parent(number: int, children: int):
    """Add others."""
    def work():
        many = [{"number": number, "place": place} for place in range(children)]
        try:
            ids = child.enqueue_many(many)
        except (Busy, StorageFull):     # told to a function like to anybody else
            note("FAIL")
            raise
        for added in ids:
            note("ADDED", added)
    return run(number, work)


@task
def poison(number: int):
    """Kill the process it runs in."""
    run(number, lambda: os.kill(os.getpid(), signal.SIGKILL))


def lower(name, most):
    """Lower a limit of this process."""
    resource.setrlimit(name, (most, resource.getrlimit(name)[1]))


def later(work, *arguments):
    """Do something from another thread, when this task is over."""
    thread = threading.Timer(LATE, work, arguments)
    thread.daemon = True
    thread.start()


def own_bytes():
    """What this process has of memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def raise_late():
    """Have an exception rise in this thread."""
    later(ctypes.pythonapi.PyThreadState_SetAsyncExc,
          ctypes.c_ulong(threading.get_ident()), ctypes.py_object(ValueError))


def raise_at_alarm(*_):
    raise ValueError("an alarm of another task")


def set_timer():
    """Have an exception rise by an alarm."""
    signal.signal(signal.SIGALRM, raise_at_alarm)
    signal.setitimer(signal.ITIMER_REAL, LATE)


MESSES = {
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, LATE),
    "timer": set_timer,
    "file size": lambda: lower(resource.RLIMIT_FSIZE, 0),
    "open files": lambda: lower(resource.RLIMIT_NOFILE, 8),
    "memory": lambda: lower(resource.RLIMIT_AS, own_bytes() + (8 << 20)),
    "environment": lambda: os.environ.update(PATH="/nowhere"),
    "thread": lambda: later(os._exit, 1),
    "exception": raise_late,
    "patch": lambda: setattr(os, "write", lambda _, data: len(data)),
    "signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
}


@task(queue="shared")
def messy(number: int, mess: str):
    """Leave something behind in the process it runs in."""
    result = run(number)
    MESSES[mess]()
    return result


def look_around(seconds):
    """Take a while, and need what a fresh process has."""
    time.sleep(seconds)
    bytearray(32 << 20)
    with open(os.devnull) as one, open(os.devnull) as two:
        assert max(one.fileno(), two.fileno()) < 100
    assert os.environ.get("PATH") == PATH, os.environ.get("PATH")
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@task(queue="shared")
def neat(number: int, seconds: float):
    """Have no part in what others leave behind."""
    return run(number, lambda: look_around(seconds))


def point_elsewhere():
    """Put nothing in the place of all descriptors."""
    null = os.open(os.devnull, os.O_RDWR)
    for other in range(3, 64):
        os.dup2(null, other)


GOES_ON = """
import os, sys, time
ledger, line, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
while True:
    now = time.monotonic()
    kind = "LIVES" if now < until else "END"
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    os.write(file, (line.replace("KIND", kind).replace("NOW", "%%.6f" %% now)).encode("ascii"))
    os.close(file)
    if kind == "END":
        break
    time.sleep(0.1)
"""


def become_another(seconds):
    """Be another program, which goes on with the ledger."""
    now = current_task()
    line = "KIND %%d %%d %%s %%d NOW %%d\\n" %% (now.id, now.attempt, now.claim, os.getpid(), WORKER)
    os.execv(sys.executable, [sys.executable, "-c", GOES_ON, LEDGER, line, str(seconds)])


CUTS = {"close": lambda _: os.closerange(3, 256), "dup2": lambda _: point_elsewhere(),
        "exec": become_another}


@task(queue="cut")
def cut(number: int, how: str, seconds: float):
    """Lose all descriptors and go on."""
    def work():
        CUTS[how](seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            note("LIVES")
            time.sleep(0.1)
    return run(number, work)
''' % RETRIES

FOREIGN_TEXT = '''

external("foreign", queue="foreign", number=int)
'''

TASK_QUERY = ("SELECT id, function, arguments, status, reason, attempts, claim, result "
              "FROM task ORDER BY id")
EVENT_QUERY = ("SELECT task_id, event, attempt, worker_id, at, owner_id, queue "
               "FROM activity ORDER BY id")
SLOT_QUERY = "SELECT schedule_id, at, task_id FROM slot ORDER BY schedule_id, at"
QUOTA_QUERY = "SELECT id, max_pending FROM \"user\" WHERE max_pending IS NOT NULL"
LOG_QUERY = "SELECT task_id, attempt, text FROM log ORDER BY task_id, attempt, start"
COUNT_QUERY = "SELECT status, count(*) FROM task GROUP BY status"
CUT_QUERY = ("SELECT pid FROM worker WHERE id IN "
             "(SELECT worker_id FROM task WHERE status=1 AND function='cut')")
IDLE_QUERY = (
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8 "
    "FROM pg_stat_activity WHERE state LIKE 'idle in%' "
    "AND pid IN (SELECT pid FROM pg_locks WHERE relation=to_regclass('jobqueue'))")
ORPHAN_QUERY = ("SELECT id, claim FROM task WHERE status=1 "
                "AND worker_id NOT IN (SELECT id FROM worker)")

Order = collections.namedtuple("Order", "number function arguments batch id user key after run",
                               defaults=(None, None, (), False))
Removal = collections.namedtuple("Removal", "id kind status user function", defaults=(None, None))
Plan = collections.namedtuple("Plan", "id catch_up overlap")
Slot = collections.namedtuple("Slot", "plan at task")
Task = collections.namedtuple("Task", "id function arguments status reason attempts claim result")
Event = collections.namedtuple("Event", "task event attempt worker at owner queue",
                               defaults=(None, None))
Move = collections.namedtuple("Move", "event before after")
Hit = collections.namedtuple("Hit", "kind pid since until")
Pause = collections.namedtuple("Pause", "since until pid", defaults=(None,))
Blow = collections.namedtuple("Blow", "words weight whom signals", defaults=((),))
Fall = collections.namedtuple("Fall", "words weight whom how seconds leases", defaults=(None,))
Problem = collections.namedtuple("Problem", "id words kind", defaults=("wrong",))


# Appended to the drill's own copy of jobqueue.py, which workers import as well.
SHORT_LEASE_TEXT = '''
assert LEASE_SECONDS and RENEW_SECONDS and SELF_FENCE_SECONDS
LEASE_SECONDS, RENEW_SECONDS, SELF_FENCE_SECONDS = %r, %r, %r
REMOTE_LEASE_SECONDS *= LEASE_SECONDS / 60
'''

# The verdict that is simulated for --journal truncate.
NETWORK_TEXT = '''
def file_system(path):
    """Every folder is on a network."""
    return "nfs4"
'''

# What the writers of a database on PostgreSQL wait for.
LOCK_STATEMENT = "SELECT version FROM jobqueue FOR UPDATE"

FAULT_MARK = "fault-is-met"             # a file in the site's folder: what was planted had effect


class DrillError(Exception):
    """The drill cannot go on; the words say why."""


# Records ---------------------------------------------------------------------

class Records:
    """All that is known at the end."""

    def __init__(self, orders=(), removals=(), entries=(), tasks=(), events=(), logs=(), hits=(),
                 orphans=(), crowds=(), traces=(), surprises=(), plans=(), slots=(), quotas=(),
                 pauses=(), wall=0.0, lease=LEASE_SECONDS, death=DEATH_SECONDS):
        self.orders = orders            # Order: what was asked for, with the id if acknowledged
        self.removals = removals        # Removal: what was to be cancelled or deleted
        self.entries = entries          # Entry: the ledger
        self.tasks = tasks              # Task: the database
        self.events = events            # Event: its activity
        self.logs = logs                # (task id, attempt, text): pieces in order
        self.hits = hits                # Hit: what was done to which process
        self.orphans = orphans          # task ids seen running long after their worker's death
        self.crowds = crowds            # (workers alive, limit) when they were too many
        self.traces = traces            # words on what was left behind or damaged
        self.surprises = surprises      # words on answers and errors that must not be
        self.plans = plans              # Plan: schedules that are due every second
        self.slots = slots              # Slot: when they were due
        self.quotas = quotas            # (owner id, most tasks that may wait)
        self.pauses = pauses            # Pause: when a process, or everybody, could not go on
        self.wall = wall                # the time of events when the ledger's clock was at 0
        self.lease = lease              # of claims and workers
        self.death = death              # what was killed may start again so soon


def read_tasks(store):
    """All tasks of a database as Task."""
    return [Task(id_, function, json.loads(arguments), STATUS_WORDS[status], *rest)
            for id_, function, arguments, status, *rest in store.rows(TASK_QUERY)]


def read_events(store):
    """All activity of a database as Event."""
    return [Event(*row) for row in store.rows(EVENT_QUERY)]


def complaints(folder, data):
    """The last words of tracebacks that workers and server left in their logs."""
    found = []
    for path in (folder / "server.log", *data.glob("worker*.log*")):
        with contextlib.suppress(FileNotFoundError):
            pieces = path.read_text("utf-8", "replace").split("Traceback (most recent call last)")
            found += ["%s: %s" % (path.name, last_words(piece)) for piece in pieces[1:]]
    return found


def last_words(trace):
    """The line of a traceback that names the error."""
    lines = itertools.dropwhile(lambda line: line.startswith((":", " ")), trace.splitlines())
    return next(lines, "a traceback without an end")


# Runs ------------------------------------------------------------------------

def by_time(pauses):
    """Pauses in the order they began."""
    return sorted(pauses, key=lambda pause: pause[:2])


def after_pauses(at, seconds, pauses):
    """When so many seconds have passed in which none of these pauses, sorted, held."""
    for pause in pauses:
        if pause.since >= at + seconds:
            break
        if pause.until > at:
            seconds -= max(0.0, pause.since - at)
            at = pause.until
    return at + seconds


def without_pauses(since, until, pauses):
    """How many of these seconds none of the pauses, sorted, held."""
    seconds = 0.0
    for pause in pauses:
        seconds += max(0.0, min(until, pause.since) - since)
        since = max(since, pause.until)
    return seconds + max(0.0, until - since)


DEATHS = ("kill", "fall")               # kinds of hits by which a process is gone at once


def explains(hit, run, pauses=()):
    """True if this hit may have ended the run, or kept its outcome from being recorded.

    A kill explains that an outcome was not recorded only if it came soon after the run's end;
    a worker that is asked to leave records what has ended, and ends what goes on too long.
    """
    if run.end is None:
        latest = after_pauses(run.start, LONGEST_SECONDS, pauses)
    else:
        latest = after_pauses(run.end, 0.0 if hit.kind == "term" else RECORD_SECONDS, pauses)
    earliest = run.start - RECORD_SECONDS
    if hit.kind in DEATHS:
        earliest = (run.start if run.end is None else run.end) - DYING_SECONDS
    return hit.until >= earliest and hit.since <= latest


WAITS, RUNS = "waits", "runs"
STATES = {"added": WAITS, "crashed": WAITS, "interrupted": WAITS, "retry": WAITS,
          "put_back": WAITS, "retried": WAITS, "started": RUNS, **{word: word for word in FINISHED}}


def moves_of(events):
    """The Moves of all tasks from state to state: None, WAITS, RUNS, or how they ended."""
    states = {}
    for event in events:
        before = states.get(event.task)
        after = STATES.get(event.event, before)
        if event.event == "deleted" and before == WAITS:
            after = "deleted"           # what runs goes on until its worker ends it
        if event.task is not None and after != before:
            states[event.task] = after
            yield Move(event, before, after)


class Evidence:
    """The records by task, by process and by claim, each looked through once."""

    def __init__(self, records):
        self.records = records
        self.tasks = {task.id: task for task in records.tasks}
        self.orders = {order.number: order for order in records.orders}
        self.functions = {order.id: order.function for order in records.orders}
        self.functions.update((task.id, task.function) for task in records.tasks)
        self.sources = {}               # task id: the Order that it was added for
        for order in records.orders:
            self.sources.setdefault(order.id, order)
        for task in records.tasks:
            order = self.orders.get(task.arguments.get("number"))
            if order and order.function == task.function:
                self.sources[task.id] = order
        self.removals = collections.defaultdict(list)
        for removal in records.removals:
            self.removals[removal.id].append(removal)
        self.actions = {(removal.kind, removal.user, removal.function)
                        for removal in records.removals if removal.id is None}
        self.moves = list(moves_of(records.events))
        self.ended = collections.defaultdict(set)       # by task: all ways in which it has ended
        for move in self.moves:
            if move.after not in (WAITS, RUNS):
                self.ended[move.event.task].add(move.after)
        for event in records.events:
            if event.event == "deleted":                # even if it ran on to its end
                self.ended[event.task].add("deleted")
        self.events = collections.defaultdict(list)
        for event in records.events:
            if event.task is not None:
                self.events[event.task].append(event)
        self.hits = collections.defaultdict(list)
        for hit in records.hits:
            self.hits[hit.pid].append(hit)
        self.pauses = {pid: by_time(pause for pause in records.pauses if pause.pid in (None, pid))
                       for pid in {None, *(pause.pid for pause in records.pauses)}}
        self.children = [entry.id for entry in records.entries if entry.kind == "ADDED"]
        self.runs, self.oddities = read_runs(
            entry for entry in records.entries if entry.kind != "ADDED")

    def cause(self, run):
        """The first hit that explains how a run ended; None if there is none."""
        hits = [hit for pid in (None, run.pid, run.worker) for hit in self.hits.get(pid, ())]
        pauses = self.pauses_of(run) if hits else ()
        return min((hit for hit in hits if explains(hit, run, pauses)), default=None,
                   key=lambda hit: hit.since)

    def pauses_of(self, run):
        """When its runner, its worker or everybody could not go on; sorted."""
        return by_time({pause for pid in (None, run.pid, run.worker)
                        for pause in self.pauses.get(pid, ())})

    def repeated(self):
        """[(Run, what explains that it was repeated)] of all that were."""
        return [(run, cause) for runs in self.runs.values() for run in runs[:-1]
                for cause in [self.cause(run)] if cause and run.how != "FAIL"]

    def excused(self):
        """Of those that had ended: seconds from the end to the kill, without pauses and in all."""
        return [(without_pauses(run.end, cause.since, self.pauses_of(run)),
                 max(0.0, cause.since - run.end))
                for run, cause in self.repeated() if run.how and cause.kind in DEATHS]

    def deaths(self, kind="kill"):
        """[(task id, seconds)] from each kill until its task might start again, pauses not counted."""
        runs = {(run.id, run.attempt): run for runs in self.runs.values() for run in runs}
        found = []
        for event in self.records.events:
            run = runs.get((event.task, event.attempt)) if event.event == "crashed" else None
            cause = run and self.functions.get(run.id) not in ("foreign", *SELF_HARM) and self.cause(run)
            if cause and cause.kind == kind:
                at = event.at - self.records.wall
                found.append((run.id, without_pauses(cause.until, at, self.pauses.get(None, ()))))
        return found

    def wanted(self, task_id, *kinds):
        """True if its owner asked for this task to be cancelled, deleted or retried."""
        source = self.sources.get(task_id)
        return (any(removal.kind in kinds for removal in self.removals.get(task_id, ()))
                or source is not None and any((kind, source.user, source.function) in self.actions
                                              for kind in kinds))

    def key(self, task_id):
        """The key of a task and whose it is; None if it has none."""
        source = self.sources.get(task_id)
        return source and source.key and (source.user, source.key)

    def retried(self, task_id):
        """How often somebody had it tried again."""
        return [event.event for event in self.events.get(task_id, ())].count("retried")


# Checks ----------------------------------------------------------------------
#
# Each takes Evidence and yields Problems; each looks at every record once.

def check_adds(evidence):
    """Every acknowledged add is there, and nothing else"""
    for order in evidence.records.orders:
        task = evidence.tasks.get(order.id)
        if order.id is not None and task is None and not evidence.wanted(order.id, "delete"):
            yield Problem(order.id, "acknowledged and not in the database", "lost")
        elif task and (task.function, task.arguments) != (order.function, order.arguments) and not (
                order.key and (order.user, order.key) == evidence.key(order.id)):
            yield Problem(order.id, "is another task than the one acknowledged")
    for removal in evidence.records.removals:
        if removal.kind == "delete" and removal.status == 204 and removal.id in evidence.tasks:
            yield Problem(removal.id, "was deleted and is still there")
    for task_id in evidence.children:
        if task_id not in evidence.tasks:
            yield Problem(task_id, "told to a function and not in the database", "lost")
    yield from check_strangers(evidence)
    yield from check_batches(evidence)
    yield from check_children(evidence)


def check_strangers(evidence):
    """Rows that nobody asked for, or that were added twice"""
    seen = set()
    for task in evidence.tasks.values():
        number = task.arguments.get("number")
        order = evidence.orders.get(number)
        if task.function in ("child", "slotted"):
            continue
        if order is None or order.function != task.function:
            yield Problem(task.id, "was added by nobody")
        elif number in seen or order.id not in (None, task.id):
            yield Problem(task.id, "was added twice")
        seen.add(number)


def check_batches(evidence):
    """Bulk adds without an answer are there as a whole or not at all"""
    numbers = {task.arguments.get("number") for task in evidence.tasks.values()
               if task.function not in ("child", "slotted")}
    silent = collections.defaultdict(list)
    for order in evidence.records.orders:
        if order.id is None and order.key is None:
            silent[order.batch].append(order.number in numbers)
    for batch, there in silent.items():
        if any(there) and not all(there):
            yield Problem(None, "bulk add %s is there in part" % batch)


def check_children(evidence):
    """What a function added is there once for each of its runs at most, and all or none"""
    families = collections.Counter(task.arguments["number"] for task in evidence.tasks.values()
                                   if task.function == "child")
    runs = collections.Counter(
        task.arguments["number"] for task in evidence.tasks.values()
        if task.function == "parent" for _ in evidence.runs.get(task.id, ()))
    for number, count in families.items():
        order = evidence.orders.get(number)
        size = order.arguments["children"] if order and order.function == "parent" else 0
        removed = order and order.id is not None and order.id not in evidence.tasks
        if not size or count % size or (count > size * runs[number] and not removed):
            yield Problem(order and order.id, "%d tasks were added by its function" % count)


def check_ends(evidence):
    """Every task has ended"""
    for task in evidence.tasks.values():
        if task.status not in FINISHED:
            yield Problem(task.id, "is still %s" % task.status, "stuck")


def check_overlaps(evidence):
    """No two runs of a task overlap"""
    for task_id, runs in evidence.runs.items():
        until = None
        for run in runs:
            if until is not None and run.start < until:
                yield Problem(task_id, "began again while it ran", "overlap")
            cause = evidence.cause(run)
            if cause and cause.kind == "stop":
                continue                # a lease ran out: allowed, if its outcome is refused
            end = run.end or run.seen
            if run.end is None and cause and evidence.functions.get(task_id) not in SELF_HARM:
                end = max(end, cause.since)
            until = max(filter(None, (until, end)))


def check_outcomes(evidence):
    """Each task has one outcome on record, that of its last claim"""
    for task in evidence.tasks.values():
        told = [event for event in evidence.events.get(task.id, ()) if event.event in FINISHED]
        if task.status not in FINISHED:
            continue
        again = evidence.retried(task.id)
        if again and not evidence.wanted(task.id, "retry"):
            yield Problem(task.id, "was retried by nobody")
        if len(told) != 1 + again:
            yield Problem(task.id, "%d outcomes are on record" % len(told))
        elif told[-1].event != task.status or (told[-1].attempt or 0) != task.attempts:
            yield Problem(task.id, "another outcome than its own is on record")
        yield from check_outcome(evidence, task)
    for task_id in set(evidence.events) - set(evidence.tasks):
        told = [event for event in evidence.events[task_id] if event.event in FINISHED]
        if len(told) > 1 + evidence.retried(task_id):
            yield Problem(task_id, "%d outcomes are on record" % len(told))


def check_outcome(evidence, task):
    """What the row says is what the ledger says"""
    runs = evidence.runs.get(task.id, [])
    last = runs[-1] if runs else None
    if task.status == "cancelled":
        if not evidence.wanted(task.id, "cancel"):
            yield Problem(task.id, "was cancelled by nobody")
    elif task.status == "failed" and task.reason == "error":
        if not last or (last.how, last.claim) != ("FAIL", task.claim):
            yield Problem(task.id, "failed on record, not in the ledger")
    elif task.status == "failed" and task.reason == "crashed":
        if (last and last.how == "END" and last.claim == task.claim
                and task.function not in SELF_HARM and not evidence.cause(last)):
            yield Problem(task.id, "crashed on record, ended well in the ledger")
    elif task.status == "failed" and task.reason == "dependency":
        source = evidence.sources.get(task.id)
        if not source or source.run or all(evidence.ended[before] <= {"succeeded"}
                                           for before in source.after):
            yield Problem(task.id, "failed by what it comes after, which did not")
    elif task.status == "failed" and task.reason != "interrupted":
        yield Problem(task.id, "failed for the reason %s" % task.reason)
    elif task.status == "succeeded":
        if not any(run.how == "END" and run.claim == task.claim for run in runs):
            yield Problem(task.id, "succeeded on record, not in the ledger", "lost")
        elif last.claim != task.claim:
            yield Problem(task.id, "ran again after its outcome was on record", "twice")
        elif json.loads(task.result or "null") != result_of(task):
            yield Problem(task.id, "has the result of another claim")


def result_of(task):
    """What a succeeded task must have as its result."""
    if task.function == "foreign":
        return task.arguments
    return "%d %s" % (task.arguments["number"], task.claim)


def check_runs(evidence):
    """No run that is not explained by what hit the one before"""
    for task_id, runs in evidence.runs.items():
        function = evidence.functions.get(task_id)
        if function == "once" and len(runs) > 1:
            yield Problem(task_id, "must not begin twice, and did", "twice")
        if function in SELF_HARM:
            ended = [evidence.cause(run) for run in runs]
            others = sum(1 for cause in ended if cause and cause.kind not in DEATHS)
            if len(runs) > CRASH_LIMIT + others:
                yield Problem(task_id, "went on killing its runner", "twice")
            continue
        for run, following in zip(runs, runs[1:] + [None]):
            if run.how == "FAIL" or (following is None and run.how) or evidence.cause(run):
                continue
            if following is not None:
                yield Problem(task_id, "ran again though nothing hit it", "twice")
            elif not evidence.wanted(task_id, "cancel", "delete"):
                yield Problem(task_id, "was cut off though nothing hit it")
        failed = [run for run in runs if run.how == "FAIL"]
        allowed = (RETRIES + 1) * (1 + evidence.retried(task_id))
        if len(failed) > allowed + sum(1 for run in failed if evidence.cause(run)):
            yield Problem(task_id, "was retried too often", "twice")


def check_attempts(evidence):
    """Attempts count up without a gap, and no claim is used twice"""
    for task_id, words in evidence.oddities:
        yield Problem(task_id, words, "twice" if "two runs" in words else "wrong")
    for task in evidence.tasks.values():
        started = [event.attempt for event in evidence.events.get(task.id, ())
                   if event.event == "started"]
        if started != list(range(1, task.attempts + 1)):
            yield Problem(task.id, "%d attempts, on record as %s" % (task.attempts, started[:9]))
    for task_id, runs in evidence.runs.items():
        numbers = [0] + [run.attempt for run in runs]
        if any(one >= two for one, two in zip(numbers, numbers[1:])):
            yield Problem(task_id, "ran as attempts %s" % numbers[1:10])
        elif task_id in evidence.tasks and numbers[-1] > evidence.tasks[task_id].attempts:
            yield Problem(task_id, "ran as attempt %d, which is not on record" % numbers[-1])


def check_claimants(evidence):
    """No task is left running by a dead worker"""
    for task_id in evidence.records.orphans:
        yield Problem(task_id, "stayed with its dead worker", "stuck")
    for task in evidence.tasks.values():
        if task.status == "running":
            yield Problem(task.id, "is running and nobody runs it", "stuck")


def check_deaths(evidence):
    """What was killed may start again within 5 seconds, but for a few on a busy machine"""
    deaths = evidence.deaths()
    late = [(task_id, seconds) for task_id, seconds in deaths if seconds > evidence.records.death]
    if len(late) > max(LATE_MAX, LATE_SHARE * len(deaths)):
        for task_id, seconds in late:
            yield Problem(task_id, "might start again only after %.1f s" % seconds)


def check_falls(evidence):
    """What ran on a machine that fell may start again soon after its lease"""
    for task_id, seconds in evidence.deaths("fall"):
        if seconds > evidence.records.lease + FALLEN_SECONDS:
            yield Problem(task_id, "might start again only after %.1f s" % seconds)


def check_crowds(evidence):
    """Never more workers than NbMaxWorker"""
    for alive, limit in evidence.records.crowds:
        yield Problem(None, "%d workers, NbMaxWorker is %d" % (alive, limit))


def check_traces(evidence):
    """The database is whole, and nothing is left behind"""
    for words in evidence.records.traces:
        yield Problem(None, words)


def check_logs(evidence):
    """Each log holds all that its own task printed, and nothing else"""
    texts = collections.defaultdict(list)
    for task_id, attempt, text in evidence.records.logs:
        texts[task_id, attempt].append(text)
    for (task_id, _), pieces in texts.items():
        task = evidence.tasks.get(task_id)
        own = task and " of %s" % task.arguments.get("number")
        lines = [line for line in "".join(pieces).splitlines() if line.startswith("line ")]
        if task is None:
            yield Problem(task_id, "is gone, its log is not")
        elif not all(line.endswith(own) for line in lines):
            yield Problem(task_id, "has another task's words in its log")
    for task in evidence.tasks.values():
        if task.function == "chatty" and task.status == "succeeded":
            number, count = task.arguments["number"], task.arguments["lines"]
            wanted = "".join("line %d of %d\n" % (line, number) for line in range(count))
            if "".join(texts.get((task.id, task.attempts), ())) != wanted:
                yield Problem(task.id, "its log is not complete")


def check_manners(evidence):
    """No process broke down by itself, no answer was one that must not be given"""
    for words in evidence.records.surprises:
        yield Problem(None, words)


def check_keys(evidence):
    """Never two unfinished tasks with one key"""
    holders = {}
    for event, before, after in evidence.moves:
        key = evidence.key(event.task)
        if key and before is None:
            if key in holders:
                yield Problem(event.task, "was added beside task %d" % holders[key], "twice")
            holders[key] = event.task
        elif key and after not in (WAITS, RUNS) and holders.get(key) == event.task:
            del holders[key]


def check_order(evidence):
    """No task begins before what it comes after has ended as it should"""
    ended = collections.defaultdict(set)
    for event, _, after in evidence.moves:
        if after not in (WAITS, RUNS):
            ended[event.task].add(after)
        elif after == RUNS:
            source = evidence.sources.get(event.task)
            for before in source.after if source else ():
                if not ended[before] or not (source.run or "succeeded" in ended[before]):
                    yield Problem(event.task, "began too early, it comes after %d" % before)


def check_limit(evidence):
    """Never more tasks of a limited queue at once than it allows"""
    marks = []
    for task_id, runs in evidence.runs.items():
        for run in runs if evidence.functions.get(task_id) == "narrow" else ():
            cause = evidence.cause(run)
            if cause and cause.kind == "stop":
                continue                # a lease ran out: its place was free
            unknown = cause is None or evidence.wanted(task_id, "cancel", "delete")
            end = run.end or (run.start if unknown else cause.since)
            marks += [(run.start, 1, task_id), (max(run.start, end), -1, task_id)]
    running = 0
    for _, step, task_id in sorted(marks):
        running += step
        if step > 0 and running > NARROW_MAX:
            yield Problem(task_id, "began while %d others ran" % (running - 1))


def check_rate(evidence):
    """Never more starts in a queue with a rate than it allows, and one"""
    count, seconds = RATE
    starts = sorted((event.at, event.task) for event in evidence.records.events
                    if (event.event, event.queue) == ("started", "paced"))
    for (first, _), (last, task_id) in zip(starts, starts[count + 1:]):
        if last - first < seconds:
            yield Problem(task_id, "is start %d within %.3f s" % (count + 2, last - first))


def check_quotas(evidence):
    """Never more tasks that wait than their owner may have, when one is added"""
    quotas = dict(evidence.records.quotas)
    waiting = collections.Counter()
    for event, before, after in evidence.moves:
        waiting[event.owner] += (after == WAITS) - (before == WAITS)
        if before is None and waiting[event.owner] > quotas.get(event.owner, float("inf")):
            yield Problem(event.task, "was added as number %d" % waiting[event.owner])


def check_slots(evidence):
    """Each second of a schedule adds one task at most, and none is passed over that must not be"""
    plans = {plan.id: plan for plan in evidence.records.plans}
    filled = collections.Counter(slot.task for slot in evidence.records.slots if slot.task)
    for task_id, count in filled.items():
        if count > 1:
            yield Problem(task_id, "is the task of %d slots" % count, "twice")
    for task in evidence.tasks.values():
        if task.function == "slotted" and not filled[task.id]:
            yield Problem(task.id, "is the task of no slot", "twice")
    for one, two in zip(evidence.records.slots, evidence.records.slots[1:]):
        gap = two.at - one.at
        if one.plan != two.plan:
            continue
        if abs(gap - round(gap)) > 0.001 or round(gap) < 1:
            yield Problem(two.task, "is due %.3f s after the one before" % gap)
        elif round(gap) > 1 and plans[one.plan].catch_up == "all":
            yield Problem(two.task, "is due %.0f s after the one before" % gap, "lost")
    yield from check_overlapping_slots(evidence, plans)


def check_overlapping_slots(evidence, plans):
    """Tasks of a schedule overlap only if it allows that"""
    owners = {slot.task: plans[slot.plan] for slot in evidence.records.slots if slot.task}
    busy = collections.defaultdict(set)
    for event, _, after in evidence.moves:
        plan = owners.get(event.task)
        if plan is None or plan.overlap == "allow":
            continue
        if after == RUNS or (after == WAITS and plan.overlap == "skip"):
            if busy[plan.id] - {event.task}:
                yield Problem(event.task, "overlaps others of its schedule", "twice")
            busy[plan.id].add(event.task)
        else:
            busy[plan.id].discard(event.task)


def check_turns(evidence):
    """Owners take turns: nobody overtakes another by more tasks than that one has before it"""
    waiting = {}                        # task: its owner's that are before it, its place in `began`
    came = collections.defaultdict(list)        # by owner: tasks in the order they came
    began = collections.defaultdict(int)        # by owner: first starts so far
    open_ = set()
    for event, before, after in evidence.moves:
        if event.queue != "turns":
            continue
        if before is None:
            own = came[event.owner]
            first = next((place for place, task in enumerate(own) if task in open_), len(own))
            del own[:first]
            open_.add(event.task)
            waiting[event.task] = len(own), dict(began)
            own.append(event.task)
        elif event.task in open_:
            open_.discard(event.task)
            own, earlier = waiting.pop(event.task)
            if after != RUNS:
                continue
            for owner, count in began.items():
                if owner != event.owner and count - earlier.get(owner, 0) > own + FAIR_SLACK:
                    yield Problem(event.task, "waited for %d of owner %s and %d of its own" % (
                        count - earlier.get(owner, 0), owner, own))
            began[event.owner] += 1


CHECKS = (("I1", check_adds), ("I2", check_ends), ("I3", check_overlaps), ("I4", check_outcomes),
          ("I5", check_runs), ("I6", check_attempts), ("I7", check_claimants),
          ("I8", check_crowds), ("death", check_deaths), ("falls", check_falls), ("I9", check_traces),
          ("logs", check_logs), ("words", check_manners), ("keys", check_keys), ("order", check_order),
          ("limit", check_limit), ("rate", check_rate), ("quota", check_quotas),
          ("slots", check_slots), ("turns", check_turns))


class Findings:
    """What the checks found: Problems by the name of the check."""

    def __init__(self, problems):
        self.problems = problems

    @property
    def is_clean(self):
        """True if there is nothing to complain about."""
        return not any(self.problems.values())

    def ids(self, kind):
        """The tasks that were lost, run twice or stuck."""
        return {problem.id for found in self.problems.values() for problem in found
                if problem.kind == kind}

    def __str__(self):
        return "lost %d, run twice %d, overlaps %d, stuck %d" % tuple(
            len(self.ids(kind)) for kind in ("lost", "twice", "overlap", "stuck"))


def check(evidence):
    """Findings from Evidence."""
    return Findings({name: list(function(evidence)) for name, function in CHECKS})


# Stores ----------------------------------------------------------------------

class FileStore:
    """The database as a file of SQLite."""

    def __init__(self, site):
        self._site = site

    def rows(self, query):
        """The rows of a query, without being able to change anything."""
        return read_only(self._site.database, query)

    def damage(self):
        """Words on a database that is not whole."""
        verdict = [row[0] for row in self.rows("PRAGMA integrity_check")]
        found = [] if verdict == ["ok"] else ["integrity_check: %s" % word for word in verdict]
        return found + ["foreign_key_check: %s" % (row,)
                        for row in self.rows("PRAGMA foreign_key_check")]

    def idle_seconds(self):
        """Who stands still is never given a file's lock."""
        return 0.0

    def is_held_by(self, pid):
        """True if a process may keep others from writing."""
        path = self._site.database
        return holds_lock(pid, (path, "%s-shm" % path, path.parent / "turn.lock"))

    @contextlib.contextmanager
    def held(self):
        """Be somebody else's program that takes its time within a transaction."""
        link = sqlite3.connect(str(self._site.database), timeout=5, isolation_level=None)
        try:
            link.execute("PRAGMA wal_autocheckpoint=0")
            link.execute("BEGIN IMMEDIATE")
            yield
            link.execute("ROLLBACK")
        finally:
            link.close()

    def log_bytes(self):
        """How large its log is."""
        with contextlib.suppress(OSError):
            return os.stat("%s-wal" % self._site.database).st_size
        return 0


class PostgresStore:
    """The database on a server of PostgreSQL that is ours, and the machines that reach it."""

    def __init__(self, count):
        why = machines.missing() or ("" if postgres.programs() else "PostgreSQL is not installed")
        if why or len(STORE_ERRORS) < 2:
            raise DrillError("--postgres cannot be: %s" % (why or "no module psycopg"))
        self._room = tempfile.mkdtemp(prefix="jobqueue-drill-")
        os.chmod(self._room, 0o755)     # the server is another user's
        self.network = machines.Network(count)
        self._server = postgres.Server(Path(self._room) / "pg", listen_addresses=self.network.address)
        self._server.make()
        with open(self._server.data / "pg_hba.conf", "a") as file:
            file.write("host all all %s/24 trust\n" % self.network.address)
        self._server.start()
        self.address = "postgresql://%s@%s:5432/postgres" % (postgres.NAME, self.network.address)
        self._link, self._turn = None, threading.Lock()

    def close(self):
        """End machines and server."""
        if self._link:
            self._link.close()
        self.network.close()
        self._server.remove()
        shutil.rmtree(self._room, ignore_errors=True)

    def rows(self, query):
        """The rows of a query, of the last if it is several."""
        with self._turn:
            try:
                self._link = self._link or postgres.connect(self._server.address)
                done = self._link.execute(query)
                while done.nextset():
                    pass
                return done.fetchall()
            except psycopg.Error:
                self._link = None
                raise

    def damage(self):
        """Words on indexes that do not agree with their tables."""
        self.rows("CREATE EXTENSION IF NOT EXISTS amcheck; SELECT 1")
        with contextlib.suppress(psycopg.Error):
            self.rows("SELECT bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class ON "
                      "oid=indexrelid WHERE relnamespace='public'::regnamespace AND relam="
                      "(SELECT oid FROM pg_am WHERE amname='btree')")
            return []
        return ["an index does not agree with its table"]

    def idle_seconds(self):
        """How long who has the lock has done nothing; 0 if nobody is like that."""
        return self.rows(IDLE_QUERY)[0][0]

    def is_held_by(self, _):
        """True if anybody who does nothing keeps others from writing."""
        with contextlib.suppress(psycopg.Error):
            return bool(self.rows(
                "SELECT pg_sleep(0.1); SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%' "
                "AND state_change < clock_timestamp() - interval '0.1 s'"))
        return True

    @contextlib.contextmanager
    def held(self):
        """Be somebody else's program that takes its time within a transaction."""
        with postgres.connect(self._server.address, options="-c lock_timeout=5s") as link:
            with link.transaction():
                link.execute(LOCK_STATEMENT)
                yield

    def log_bytes(self):
        """Its log is its own matter."""
        return 0

    def stop(self, how):
        """Let the server be gone: stopped "immediate", or killed."""
        if how == "kill":
            for pid in self._server.processes()[:1]:
                os.kill(pid, signal.SIGKILL)
        else:
            self._server.stop(how)

    def start(self):
        """Start the server again, once what it left is gone."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._server.start()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(WAIT_SECONDS)

    def cut_all(self):
        """Cut every connection but our own."""
        self.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                  "WHERE backend_type='client backend' AND pid<>pg_backend_pid()")


class Place:
    """Where remote workers are started: here, but they know only the way to the site."""

    is_up = True

    def __init__(self, way):
        self.way = way

    @staticmethod
    def command(words, folder):
        """What runs these words there."""
        return ["env", "--chdir", str(folder), *map(str, words)]


class Services:
    """Workers that each place starts, and again when they end, as systemd does."""

    def __init__(self, site, workers):
        self._site = site
        places = site.machines or site.places
        self._running = [(places[number % len(places)], None) for number in range(workers if places else 0)]

    def revive(self):
        """Start those that do not run where they can."""
        for number, (place, process) in enumerate(self._running):
            if place.is_up and (process is None or process.poll() is not None):
                self._running[number] = place, self._start(place, number)

    def end(self):
        """End all of them."""
        running = [process for _, process in self._running if process]
        for process in running:
            process.terminate()
        for process in running:
            end_process(process)
        self._running = []

    def _start(self, place, number):
        site = self._site
        words = ["--service", "--data", site.folder / place.name] if site.machines else [
            "--server", place.way.address, "--token-file", site.token, "--data",
            site.folder / ("remote-%d" % number)]
        with (site.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                place.command([sys.executable, "worker.py", *words], site.folder), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env=site.environment)


# Small disk ------------------------------------------------------------------

class SmallDisk:
    """A disk that can be filled: a mounted one, or what a folder lies on, up to `most` bytes."""

    def __init__(self, folder, most=None, may_mount=True):
        self.folder = folder            # where the data is to be
        self._most = most
        self._may_mount = may_mount
        self._ballast = folder / "ballast"
        self._is_mounted = False
        self.why_not = None             # words, if it cannot be filled

    def open(self, size):
        """Mount one of so many bytes, unless the folder's own disk is to be filled."""
        self.folder.mkdir()
        if self._most:
            return
        image = str(self.folder) + ".image"
        ways = ((["truncate", "-s", str(size), image], ["mkfs.ext4", "-q", "-F", "-m", "0", image],
                 ["mount", "-o", "loop", image, str(self.folder)]),
                (["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", str(self.folder)],))
        self._is_mounted = self._may_mount and any(all(map(self._is_done, way)) for way in ways)
        if not self._is_mounted:
            self.why_not = "no small disk may be mounted" if self._may_mount else "it is your own"

    def close(self):
        """Take it away."""
        if self._is_mounted:
            self._is_done(["umount", "-l", str(self.folder)])

    def fill(self):
        """Leave no room; what was freed since the last time is taken as well."""
        portion, last = REFILL_BYTES
        with open(self._ballast, "ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while portion >= last:
                if self._most and size + portion > self._most:
                    raise DrillError("The disk is not full after %d bytes: more than --fill-disk" % size)
                try:
                    os.posix_fallocate(file.fileno(), size, portion)
                    size += portion
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    portion //= 4

    def empty(self):
        """Give the room back."""
        with contextlib.suppress(FileNotFoundError):
            self._ballast.unlink()

    @staticmethod
    def _is_done(command):
        try:
            return not subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL).returncode
        except OSError:
            return False


# Drill site ------------------------------------------------------------------

class DrillSite(SiteCopy):
    """A fresh installation whose server may be killed and started again."""

    def __init__(self, options, plant=""):
        super().__init__(self.tasks_text(options.foreign), parent=options.folder)
        self.journal = options.journal  # None: what the file system asks for
        self._restarting = threading.Lock()
        self._plant = plant
        self._usual_lease = (POSTGRES_LEASE_SECONDS if options.postgres else
                             REMOTE_LEASE_SECONDS if options.remote else LEASE_SECONDS)
        self.lease = options.lease or self._usual_lease
        self.store = PostgresStore(MACHINES) if options.postgres else FileStore(self)
        self.machines = self.store.network.machines if options.postgres else []
        self.places, self.token = [], self.folder / "token"
        if options.postgres:
            self.environment["JOBQUEUE_DATABASE"] = self.store.address
        if options.remote:
            self._open_ways(random.Random("%s ways" % options.seed))
        self.restart_seconds = []
        self.descriptors = None         # of the server after its start
        self.disk_is_full = self.is_away = False    # is_away: the server of the database
        self.disk = None
        self._aside = tempfile.TemporaryDirectory() if options.fill_disk else None
        if "disk" not in options.without:
            self.disk = SmallDisk(self.folder / "disk", options.fill_disk, not options.folder)
            self.data = self.disk.folder / "data"
        self._change_copy()

    @staticmethod
    def tasks_text(foreign):
        """The tasks.py, with a function for foreign workers if there are any."""
        if not foreign:
            return TASKS_TEXT
        return TASKS_TEXT.replace("import current_task,",
                                  "import current_task, external,") + FOREIGN_TEXT

    def _change_copy(self):
        text = NETWORK_TEXT if self.journal == "truncate" else ""
        if self.lease != self._usual_lease:
            own = self.lease * LEASE_SECONDS / self._usual_lease
            text += SHORT_LEASE_TEXT % (own, own / 6, own * 5 / 6)
        text += self._plant
        path = self.folder / "jobqueue.py"
        before, entry, after = path.read_text("utf-8").rpartition('\nif __name__ == "__main__":')
        if not entry:
            raise DrillError("jobqueue.py does not end as expected")
        path.write_text(before + text + "\n" + entry + after, encoding="utf-8")

    @property
    def needs_fault(self):
        """True if a fault was planted that tells when it is met."""
        return FAULT_MARK in self._plant

    @property
    def fault_is_met(self):
        """True once it was met."""
        return self.needs_fault and (self.folder / FAULT_MARK).exists()

    def open(self, tasks):
        """Make room for the data, and start the server."""
        if self._aside:                 # the ledger must not be full too
            if os.stat(self._aside.name).st_dev == os.stat(self.folder).st_dev:
                raise DrillError("--fill-disk needs the temporary folder, for the ledger, on another "
                                 "disk (set TMPDIR)")
            self.ledger.unlink()
            self.ledger.symlink_to(Path(self._aside.name) / self.ledger.name)
            self.ledger.touch()
        if self.disk:
            self.disk.open(DISK_BYTES[0] + tasks * DISK_BYTES[1])
        self.start()
        if self.machines:
            return
        found = self.store.rows("PRAGMA journal_mode")[0][0]
        if self.journal and (found == "wal") != (self.journal == "wal"):
            raise DrillError("the database is written with the journal mode %s" % found)
        self.journal = "wal" if found == "wal" else "truncate"

    def start(self):
        """Start the server; note how many files it opens."""
        super().start()
        self.descriptors = self.count_descriptors()

    def count_descriptors(self):
        """How many files the server has open."""
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def _open_ways(self, chance):
        """Two places ask the server, one asks programs that each answer once."""
        here = argparse.Namespace(home=self.folder, environment={
            **self.environment, "JOBQUEUE_DATA": str(self.data)})
        by_cgi = between.Between(cgi=here)
        for target in (lambda: self.server, lambda: self.server, lambda: by_cgi.address):
            self.places.append(Place(between.Cutter(target, chance)))

    def let_in(self, admin):
        """Give the remote workers a token."""
        given = {"name": "drill", "scope": "worker", "password": self.password}
        with open(os.open(self.token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(admin.send("POST", "api/tokens", given).expect(201)["token"])

    def worker_pids(self):
        """The process ids of the workers that have reported."""
        with contextlib.suppress(*STORE_ERRORS, StopIteration):
            return [row[0] for row in self.store.rows("SELECT pid FROM worker") if row[0]]
        return []

    def remove(self):
        """Remove all its files, and its disk."""
        if self.disk:
            self.disk.close()
        if self._aside:
            self._aside.cleanup()
        super().remove()

    def restart(self, number=None):
        """End the server by a signal, if one is given, and start it again."""
        with self._restarting:
            if number:
                self.process.send_signal(number)
                try:
                    self.process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self.process.stdout.close()
            began = time.monotonic()
            while True:
                try:
                    self.start()
                    self.restart_seconds.append(time.monotonic() - began)
                    return
                except LoadTestError:
                    end_process(self.process)
                    if self.disk_is_full or self.is_away:
                        began = time.monotonic()
                    if time.monotonic() - began > START_SECONDS:
                        raise

    def revive(self):
        """Start the server if it has ended by itself; its exit code, else None."""
        if not self._restarting.acquire(blocking=False):
            return None
        try:
            code = self.process.poll()
        finally:
            self._restarting.release()
        if code is not None:
            self.restart()
        return code

    def processes(self):
        """{pid: Process} of everything that runs from here."""
        return processes_of(self.folder)

    def workers(self):
        """[(worker, its runner or None)], by process id."""
        found = self.processes()
        runners = {process.parent: process for process in found.values() if is_runner(process)}
        return [(process, runners.get(pid)) for pid, process in sorted(workers_among(found).items())]

    def left_behind(self):
        """Words on processes that are still there after the end."""
        until = time.monotonic() + END_SECONDS
        while self.processes() and time.monotonic() < until:
            time.sleep(0.1)
        left = self.processes()
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return ["process %d is still there: %s" % (process.pid, process.line)
                for process in left.values()]


# Adding ----------------------------------------------------------------------

class Demand:
    """What one user asks for, by chance alone."""

    def __init__(self, chance, numbers, share, poison, weights, most=None):
        self._chance = chance
        self._numbers = numbers
        self._poison = poison           # so many at most
        self._weights = weights
        self._has_quota = most is not None
        self._most = most or share      # with one call
        self._calls = 0
        self.left = share

    def next(self):
        """Requests to be added with one call; a list of one for a single add."""
        self._calls += 1
        if self._calls == POISON_CALL:
            return [self._request("poison")]
        if self._calls == BEYOND_CALL and self._has_quota:
            return [self._request("quick") for _ in range(QUOTA + 1)]
        size = 1
        if self._chance.random() > SINGLE_SHARE:
            low, high = self._chance.choices(BULK_SIZES, BULK_WEIGHTS)[0]
            size = self._chance.randint(low, high)
        size = max(1, min(size, self.left, self._most))
        alike = self._function() if self._chance.random() < ALIKE_SHARE else None
        if alike == "poison" or (size > ALIKE_MAX and alike not in ("quick", "turns")):
            alike = None
        return [self._request(alike) for _ in range(size)]

    def _function(self):
        name = self._chance.choices(list(self._weights), self._weights.values())[0]
        if name == "poison":
            self._poison -= 1
            return name if self._poison >= 0 else "quick"
        return name

    def _request(self, function):
        chance = self._chance
        function = function or self._function()
        arguments = {"number": next(self._numbers)}
        if function in ("sleepy", "once"):
            arguments["seconds"] = round(chance.uniform(*SLEEPY_SECONDS), 3)
        elif function == "narrow":
            arguments["seconds"] = round(chance.uniform(*NARROW_SECONDS), 3)
        elif function == "neat":
            arguments["seconds"] = round(chance.uniform(*SLEEPY_SECONDS), 3)
        elif function == "messy":
            arguments["mess"] = chance.choice(MESSES)
        elif function == "cut":
            arguments.update(how=chance.choice(CUTS), seconds=round(chance.uniform(*CUT_SECONDS), 3))
        elif function == "chatty":
            arguments["lines"] = chance.randint(1, 60)
        elif function == "shaky":
            arguments["failures"] = chance.randint(1, RETRIES + 3)
        elif function == "parent":
            arguments["children"] = chance.randint(1, 12)
        request = {"function": function, "arguments": arguments}
        if function not in PLAIN:
            request.update(self._options())
        return request

    def _options(self):
        kind = self._chance.random()
        if kind < 0.04:
            return {"delay": round(self._chance.uniform(0.1, 2.0), 2)}
        if kind < 0.08:
            return {"priority": self._chance.randint(-5, -1)}
        if kind < 0.08 + KEY_SHARE:
            return {"unique_key": "key %d" % self._chance.randrange(KEYS)}
        if kind < 0.08 + KEY_SHARE + AFTER_SHARE:
            return {"after": self._chance.randint(1, AFTER_MAX),    # so many, whoever asks knows which
                    "after_failure": self._chance.choice(("fail", "run"))}
        return {}


class Adder:
    """One user that adds tasks at a set pace, and cancels, deletes or retries a few."""

    def __init__(self, site, place, browser, demand, chance, seconds, stop):
        self._site = site
        self._place = place             # among the users
        self._cookie = browser.cookie
        self._browser = browser
        self._demand = demand
        self._chance = chance
        self._pace = seconds / max(1, demand.left)      # seconds for each task
        self._stop = stop
        self._mine = collections.deque(maxlen=REMOVE_AMONG)
        self._deleted = set()
        self._calls = 0
        self.acknowledged = 0
        self.orders = []
        self.removals = []
        self.surprises = []
        self.counts = collections.Counter()

    def work(self):
        """Add until all is acknowledged or time is up."""
        due = time.monotonic()
        while self._demand.left > 0 and not self._stop.wait(max(0, due - time.monotonic())):
            requests = self._demand.next()
            due = max(due, time.monotonic() - 5) + self._pace * len(requests)
            self._add(requests)
            if self._chance.random() < REMOVE_SHARE and self._mine:
                self._remove()
            if self._chance.random() < ACT_SHARE and self._mine:
                self._act()
        self._browser.close()

    def plan(self, number, catch_up, overlap):
        """Make a schedule that is due every second."""
        return self._browser.send("POST", "api/schedules", {
            "function": "slotted", "arguments": {"number": number}, "rule": "every 1",
            "catch_up": catch_up, "overlap": overlap}).expect(201)["id"]

    def stop_plan(self, plan_id):
        """Pause a schedule; adding is over."""
        browser = Client(self._site.server, self._cookie)
        browser.send("PATCH", "api/schedules/%d" % plan_id, {"paused": True}).expect(200)
        browser.close()

    def _name_predecessors(self, request):
        """Put ids in the place of their number."""
        known = sorted(set(self._mine) - self._deleted)
        count = min(request["after"], len(known))
        request["after"] = self._chance.sample(known[-REMOVE_AMONG // 4:], count)

    def _add(self, requests):
        for request in requests:
            if "after" in request:
                self._name_predecessors(request)
        one = len(requests) == 1
        self._calls += 1
        reply = self._ask("POST", "api/tasks", requests[0] if one else requests)
        ids = [None] * len(requests)
        if reply is not None and reply.status == 429:
            self.counts["beyond the quota"] += 1
            return
        if reply is not None and reply.status == 409:   # a key's task is being ended, or of another function
            self.counts["key in use"] += 1
            return
        if reply is not None and reply.status in (200, 201):
            ids = [reply.value["id"]] if one else reply.value["ids"]
            self._mine.extend(ids)
            self._demand.left -= len(ids)
            self.acknowledged += len(ids)
            self.counts["tasks after others"] += sum("after" in request for request in requests)
            self.counts["answers by key"] += (
                reply.status == 200 if one else len(ids) - reply.value["created"])
            self.counts["single" if one else "bulk"] += 1
        elif reply is not None:
            self._be_surprised("POST api/tasks", reply)
        batch = "%d of %s" % (self._calls, self._cookie[-4:])
        for request, task_id in zip(requests, ids):
            self.orders.append(Order(
                request["arguments"]["number"], request["function"], request["arguments"], batch,
                task_id, self._place, request.get("unique_key"), tuple(request.get("after", ())),
                request.get("after_failure") == "run"))

    def _ask_to(self, kind, task_id):
        """Remember what is to be done to a task, before it can have an effect."""
        self.removals.append(Removal(task_id, kind, None))
        if kind == "delete":
            self._deleted.add(task_id)

    def _act(self):
        """Do something to several tasks at once: to named ones, or to all of a function."""
        kind, function = self._chance.choice(ACTIONS)
        given = {"action": kind}
        if function:
            self.removals.append(Removal(None, kind, None, self._place, function))
            given["filter"] = {"function": function}
        else:
            given["ids"] = self._chance.sample(self._mine, min(ACT_IDS, len(self._mine)))
            for task_id in given["ids"]:
                self._ask_to(kind, task_id)
        for _ in range(ACT_STEPS):
            reply = self._ask("POST", "api/tasks/actions", given)
            if reply is None:
                return
            if reply.status == 409:     # so many match now
                given["expected_count"] = reply.value["count"]
                continue
            if reply.status == 429:     # so many were retried as may wait
                self.counts["beyond the quota"] += 1
                return
            if reply.status != 200:
                self._be_surprised("%s of many" % kind, reply)
            elif reply.value["continue"]:
                given["continue"] = reply.value["continue"]
                continue
            self.counts["actions on many"] += 1
            return

    def _remove(self):
        task_id = self._chance.choice(self._mine)
        kind = self._chance.choice(("cancel", "delete"))
        self._ask_to(kind, task_id)
        if kind == "cancel":
            reply = self._ask("POST", "api/tasks/%d/cancel" % task_id, {})
        else:
            reply = self._ask("DELETE", "api/tasks/%d" % task_id, None)
        if reply is not None:
            self.removals.append(Removal(task_id, kind, reply.status))
            self.counts[kind] += reply.status in (200, 204)
            if reply.status not in (200, 204, 404, 409):
                self._be_surprised("%s of %d" % (kind, task_id), reply)

    def _ask(self, *request):
        """The Reply, asked for again while the server is busy or not there; None if none came."""
        while not self._stop.is_set():
            if self._browser.server != self._site.server:
                self._browser.close()
                self._browser = Client(self._site.server, self._cookie)
            try:
                reply = self._browser.send(*request)
            except ConnectionRefusedError:
                self._stop.wait(WAIT_SECONDS)
                continue
            except (OSError, http.client.HTTPException):
                self.counts["unanswered"] += 1
                self._stop.wait(WAIT_SECONDS)
                return None
            if reply.status == 507:
                self.counts["disk full"] += 1
                self._stop.wait(FULL_WAIT_SECONDS)
                continue
            if reply.retry_seconds is None or reply.status == 429:
                return reply
            self.counts["busy"] += 1
            self._stop.wait(reply.retry_seconds)
        return None

    def _be_surprised(self, request, reply):
        detail = (reply.value or {}).get("detail", "")
        self.surprises.append("%s was answered with %d %s" % (request, reply.status, detail))


def weights_of(tasks, seconds, workers, foreign, without=()):
    """{function: weight}, with as many sleepy ones as keep half of the workers busy."""
    mean = sum(SLEEPY_SECONDS) / 2
    share = min(SLEEPY_SHARE[1], max(SLEEPY_SHARE[0], workers / 2 / (tasks / seconds * mean)))
    weights = {**FUNCTION_WEIGHTS, "sleepy": share}
    paces = {"narrow": NARROW_PER_SECOND, "paced": PACED_PER_SECOND}
    if "leftovers" not in without:
        paces.update(messy=MESSY_PER_SECOND, neat=NEAT_PER_SECOND)
    if "descriptors" not in without:
        paces["cut"] = CUT_PER_SECOND
    weights.update((name, min(0.05, pace * seconds / tasks)) for name, pace in paces.items())
    weights["poison"] = min(POISON_MAX, max(4, tasks / 400)) / tasks
    if foreign:
        weights["foreign"] = FOREIGN_PER_SECOND * seconds / tasks
    return weights


# Trouble ---------------------------------------------------------------------

class Trouble:
    """Kills, stops and starves the processes of a site, as chance decides."""

    KILLS = (Blow("worker KILL", 24, "worker", (signal.SIGKILL,)),
             Blow("worker TERM", 14, "worker", (signal.SIGTERM,)),
             Blow("worker TERM twice", 6, "worker", (signal.SIGTERM, signal.SIGTERM)),
             Blow("runner KILL", 18, "runner", (signal.SIGKILL,)),
             Blow("runner TERM", 6, "runner", (signal.SIGTERM,)),
             Blow("worker and runner KILL", 12, "worker and runner", (signal.SIGKILL,)),
             Blow("worker KILL, its runner cut off", 20, "worker of a cut", (signal.SIGKILL,)),
             Blow("server KILL", 8, "server", (signal.SIGKILL,)),
             Blow("server TERM", 4, "server", (signal.SIGTERM,)),
             Blow("everything KILL", 4, "everything", (signal.SIGKILL,)))
    DISTURBANCES = (Blow("worker stopped", 20, "worker"), Blow("runner stopped", 10, "runner"),
                    Blow("worker and runner stopped", 6, "worker and runner"),
                    Blow("server stopped", 6, "server"),
                    Blow("processors kept busy", 5, "processors"),
                    Blow("write lock held", 10, "write lock"))
    FALLS = (Fall("machine falls", 4, "machine", None, (0.5, 20)),
             Fall("machine falls beyond its lease", 1, "machine", None, (1, 5), 1.1),
             Fall("network is down", 3, "network", "down", (1, 30)),
             Fall("network is silent", 4, "network", "silent", (1, 60)),
             Fall("network is silent beyond a lease", 1, "network", "silent", (1, 10), 1.1),
             Fall("PostgreSQL stopped at once", 3, "server", "immediate", (0.2, 10)),
             Fall("PostgreSQL killed", 3, "server", "kill", (0.2, 10)),
             Fall("PostgreSQL restarted", 2, "server", "fast", (0, 0)),
             Fall("PostgreSQL away beyond a lease", 1, "server", "fast", (1, 10), 1.1),
             Fall("every connection cut", 5, "connections", None, (0, 0)),
             Fall("way to the site is silent", 4, "way", None, (1, 60)),
             Fall("way to the site is silent beyond a lease", 1, "way", None, (1, 10), 1.1))
    STAND_STILL = "stopped beyond its lease"
    FULL_DISK = "disk full"
    FOREIGN_KILL = Blow("foreign worker KILL", 10, "foreigner", (signal.SIGKILL,))

    def __init__(self, site, chances, stop, foreigners, may_kill_foreigners):
        self._site = site
        (self._kill_chance, self._disturb_chance, self._still_chance, self._disk_chance,
         self._fall_chance) = chances
        self._stop = stop
        self._foreigners = foreigners
        self._stopped = set()           # processes that must be resumed
        self.still_seconds = site.lease * LEASE_OVER[0] + LEASE_OVER[1]
        self.hits = []
        self.pauses = []                # Pause: when one or all of them could not go on
        self.full = []                  # Pause: those in which the disk was full
        self.falls = []                 # (Fall, Pause)
        self.counts = collections.Counter()
        self.kills = list(self.KILLS)
        self.may_kill_foreigners = may_kill_foreigners
        if may_kill_foreigners:
            self.kills.append(self.FOREIGN_KILL)

    def kill(self):
        """Kill something now and then until told to stop."""
        self._act(self._kill_chance, KILL_SECONDS * (SERVICE_SLOWER if self._site.machines else 1),
                  self.kills, self._strike)

    def disturb(self):
        """Disturb something now and then until told to stop."""
        self._act(self._disturb_chance, DISTURB_SECONDS, self.DISTURBANCES, self._disturb)

    def stand_still(self):
        """Let one worker after another stand still beyond its lease until told to stop."""
        while not self._stop.wait(self._still_chance.uniform(0, WAIT_SECONDS)):
            worker = self._stop_while_it_runs_something()
            if worker:
                self.counts[self.STAND_STILL] += 1
                self._stop.wait(self.still_seconds)
                self._resume(worker)
                self._stop.wait(self._still_chance.uniform(0, self.still_seconds / 4))

    def fill_disk(self, seconds):
        """Let the disk be full for so long, now and then, until told to stop."""
        while not self._stop.wait(seconds[1] * self._disk_chance.uniform(*FULL_AFTER)):
            since = time.monotonic()
            until = since + self._disk_chance.uniform(*seconds)
            self.counts[self.FULL_DISK] += 1
            self._site.disk_is_full = True
            try:
                while not self._stop.wait(REFILL_SECONDS) and time.monotonic() < until:
                    self._site.disk.fill()
            finally:
                self._site.disk.empty()
                self._site.disk_is_full = False
                self.full.append(Pause(since, time.monotonic()))
                self.pauses.append(self.full[-1])

    def fall(self, seconds):
        """Let machines, network and server be away now and then until told to stop."""
        falls = [fall for fall in self.FALLS if (fall.whom == "way") == bool(self._site.places)
                 and (not fall.leases or seconds >= 3 * self._site.lease)]
        self._act(self._fall_chance, max(FALL_SECONDS, seconds * FALL_SHARE), falls, self._fall)

    def _fall(self, fall):
        """Let one of them be away for a while."""
        chance, store, pids = self._fall_chance, self._site.store, [None]
        lease, machine = self._site.lease, chance.choice(self._site.machines or self._site.places)
        pause = min(chance.uniform(*fall.seconds), AWAY_LEASES * lease) + (fall.leases or 0) * lease
        since = time.monotonic()
        if fall.whom == "machine":
            self.hits += [Hit("fall", pid, since, time.monotonic()) for pid in machine.fall()]
            pids = []
        elif fall.whom == "network":
            pids = machine.processes()
            machine.cut(fall.how)
        elif fall.whom == "server":
            self._site.is_away = True
            store.stop(fall.how)
        elif fall.whom == "way":
            pids = self._pids("SELECT pid FROM worker WHERE mode='remote'")
            machine.way.silent = True
        else:
            store.cut_all()
        self._stop.wait(pause)
        if fall.whom == "server":
            store.start()
            self._site.is_away = False
        elif fall.whom == "way":
            machine.way.silent = False
        elif fall.whom != "connections":
            machine.boot() if fall.whom == "machine" else machine.mend()
        until = time.monotonic()
        again = REMOTE_AGAIN_SECONDS if fall.whom == "way" else AGAIN_SECONDS
        self.falls.append((fall, Pause(since, until)))
        self.pauses += [Pause(since, until + (pid and again or 0), pid) for pid in pids]
        if fall.leases:                 # workers fence themselves
            self.hits += [Hit("fence", pid, since, until) for pid in pids]
        return True

    @property
    def killed(self):
        """How many kills there were."""
        return sum(self.counts[blow.words] for blow in self.kills)

    def settle(self):
        """Let everything go on that was stopped."""
        for process in list(self._stopped):
            self._signal(process, signal.SIGCONT)

    def _act(self, chance, mean, blows, act):
        weights = [blow.weight for blow in blows]
        while not self._stop.wait(min(5 * mean, chance.expovariate(1 / mean))):
            blow = chance.choices(blows, weights)[0]
            if act(blow):
                self.counts[blow.words] += 1

    # Choosing

    def _choose(self, chance):
        """(worker, runner or None), a busy one if chance and the table say so; else None."""
        stopped = {process.pid for process in list(self._stopped)}
        workers = [pair for pair in self._site.workers() if pair[0].pid not in stopped]
        pick, wants_busy = chance.random(), chance.random() < 0.8
        if wants_busy:
            busy = self._busy()
            workers = [pair for pair in workers if pair[0].pid in busy] or workers
        return workers[int(pick * len(workers))] if workers else None

    def _targets(self, whom, chance):
        """The Processes that a blow is meant for."""
        if whom == "server":
            return [look_at(self._site.process.pid)]
        if whom == "everything":
            return self._everything()
        if whom == "foreigner":
            return [look_at(chance.choice(self._foreigners).pid)]
        if whom == "worker of a cut":
            return [look_at(pid) for pid in list(self._pids(CUT_QUERY))[:1]]
        worker, runner = self._choose(chance) or (None, None)
        return {"worker": [worker], "runner": [runner]}.get(whom, [worker, runner])

    def _everything(self):
        spared = {self._site.process.pid}
        if self._site.needs_fault:      # it needs one that wakes up late
            spared |= {process.pid for process in list(self._stopped)}
        return [process for process in self._site.processes().values() if process.pid not in spared
                and (self.may_kill_foreigners or is_worker(process) or is_runner(process))]

    def _busy(self):
        return self._pids("SELECT pid FROM worker WHERE state='busy'")

    def _claimants(self):
        return self._pids("SELECT pid FROM worker WHERE id IN "
                          "(SELECT worker_id FROM task WHERE status=1)")

    def _pids(self, query):
        with contextlib.suppress(*STORE_ERRORS):
            return {row[0] for row in self._site.store.rows(query)}
        return set()

    # Killing

    def _signal(self, process, number, kind=None):
        """Signal a process if it is still the same; remember it as a hit of that kind."""
        now = look_at(process.pid)
        if now is None or now.started != process.started or now.state == "Z":
            return False
        since = time.monotonic()
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return False
        if kind:
            self.hits.append(Hit(kind, process.pid, since, time.monotonic()))
        return True

    def _strike(self, blow):
        """Send the signals of a blow, a moment between two; True if something was hit."""
        chance, since = self._kill_chance, time.monotonic()
        targets = self._targets(blow.whom, chance) if blow.whom != "server" else []
        targets = list(filter(None, targets))[::chance.choice((1, -1))]
        hits = []
        for place, number in enumerate(blow.signals):
            if place:
                self._stop.wait(chance.uniform(0, 0.3))
            for process in targets:
                # Asked twice it ends what runs at once, even if that is about to say how it ended.
                is_asked = number == signal.SIGTERM and is_worker(process) and not place
                hits.append(self._signal(process, number, "term" if is_asked else "kill"))
        if blow.whom in ("server", "everything"):
            self._site.restart(blow.signals[0])
        if blow.whom == "everything":   # nobody was there to see it
            self.pauses.append(Pause(since, time.monotonic()))
        return any(hits) or blow.whom in ("server", "everything")

    # Stopping

    def _disturb(self, blow):
        """Let processes stand still for a moment, or starve all of them."""
        if blow.whom == "processors":
            return self._hog()
        if blow.whom == "write lock":
            return self._hold_lock()
        pause, since = self._moment(PAUSE_SECONDS), time.monotonic()
        stopped = [process for process in self._targets(blow.whom, self._disturb_chance)
                   if process and self._halt(process)]
        if not stopped:
            return False
        who = [None if self._site.store.is_held_by(process.pid) else process.pid for process in stopped]
        self._stop.wait(pause)
        for process in stopped:
            self._resume(process)
        self.pauses += [Pause(since, time.monotonic(), pid) for pid in who]
        return True

    def _moment(self, span):
        """So many seconds by chance, always much less than a lease."""
        return min(self._disturb_chance.uniform(*span), self._site.lease / 4)

    def _halt(self, process):
        self._stopped.add(process)
        return self._signal(process, signal.SIGSTOP)

    def _resume(self, process):
        self._signal(process, signal.SIGCONT)
        self._stopped.discard(process)

    def _stop_while_it_runs_something(self):
        """A worker, but not its runner, that holds a claim and no lock others wait for; or None."""
        pair = self._choose(self._still_chance)
        if not pair or not self._halt(pair[0]):
            return None
        worker, since = pair[0], time.monotonic()
        if self._site.store.is_held_by(worker.pid) or worker.pid not in self._claimants():
            self._resume(worker)
            return None
        self.hits.append(Hit("stop", worker.pid, since, since + self.still_seconds))
        return worker

    # Starving

    def _hog(self):
        pause = self._disturb_chance.uniform(*HOG_SECONDS)
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                for _ in range(min(HOGS_MAX, os.cpu_count() or 1))]
        self._stop.wait(pause)
        for hog in hogs:
            hog.kill()
            hog.wait()
        return True

    def _hold_lock(self):
        pause = self._moment(HOLD_SECONDS)
        with contextlib.suppress(*STORE_ERRORS):        # busy: the product was there first
            with self._site.store.held():
                since = time.monotonic()
                self._stop.wait(pause)
                self.pauses.append(Pause(since, since + pause))
            return True
        return False


class Foreigners:
    """Processes of other people that work on the same database; started again when they end."""

    def __init__(self, site, commands):
        self._site = site
        self._commands = commands
        self._running = []

    def start(self):
        """Start all of them."""
        self._running = [self._start(command) for command in self._commands]

    def revive(self):
        """Start those again that have ended."""
        for place, process in enumerate(self._running):
            if process.poll() is not None:
                self._running[place] = self._start(self._commands[place])

    def end(self):
        """End all of them."""
        for process in self._running:
            end_process(process)

    def __getitem__(self, place):
        return self._running[place]

    def __len__(self):
        return len(self._commands)

    def _start(self, command):
        words = [word.replace("{database}", str(self._site.database))
                 .replace("{ledger}", str(self._site.ledger)) for word in shlex.split(command)]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)


# Sampling --------------------------------------------------------------------

class Sampler:
    """Looks at the table of workers and at their processes all the time."""

    def __init__(self, site, limit, stop):
        self._site = site
        self.limit = limit
        self._stop = stop
        self._seen = {}                 # (pid, start): when its row was last there
        self._waiting = {}              # (task id, claim): since when its worker is gone
        self._last = None
        self.worker_ids = collections.defaultdict(set)  # pid: ids of its rows; pids come again
        self.samples = self.now = 0
        self.most = 0
        self.log_bytes = 0
        self.crowds = []
        self.holds = []                 # Pause: who had the lock did nothing
        self.orphans = set()
        self.counts = {}                # status: tasks

    def work(self):
        """Sample until told to stop."""
        look_next = 0.0
        while not self._stop.wait(SAMPLE_SECONDS):
            with contextlib.suppress(*STORE_ERRORS):
                self.watch_lock()
                self._sample()
                if time.monotonic() > look_next:
                    look_next = time.monotonic() + LOOK_SECONDS
                    self._look()

    def watch_lock(self):
        """Note since when who has the lock does nothing: one that waited for it may stand still."""
        idle, now = self._site.store.idle_seconds(), time.monotonic()
        if idle > IDLE_SECONDS:
            goes_on = self.holds and now - idle < self.holds[-1].until
            since = self.holds.pop().since if goes_on else now - idle
            self.holds.append(Pause(since, now))

    def long_holds(self):
        """Words on those that were not ended in time."""
        return ["who did nothing held the lock for %.1f s" % (hold.until - hold.since)
                for hold in self.holds if hold.until - hold.since > IDLE_MAX]

    def _sample(self):
        rows = self._site.store.rows("SELECT id, pid FROM worker WHERE pid IS NOT NULL AND mode<>'remote'")
        now = time.monotonic()
        if self._last and now - self._last > STALL_SECONDS:
            self._seen = {key: now for key in self._seen}
            self._waiting.clear()
        self._last = now
        alive = set()
        for worker_id, pid in rows:
            process = look_at(pid)
            if process and process.state != "Z":
                self.worker_ids[pid].add(worker_id)
                alive.add((pid, process.started))
        self._seen.update(dict.fromkeys(alive, now))
        self.now = crowd = len(alive) + self._ghosts(alive, now)
        self.samples += 1
        self.most = max(self.most, crowd)
        if crowd > self.limit:
            self.crowds.append((crowd, self.limit))

    def _ghosts(self, alive, now):
        """How many workers go on though their row has been gone for a while."""
        count = 0
        for key in [key for key in self._seen if key not in alive]:
            process = look_at(key[0])
            if process is None or process.started != key[1] or not is_worker(process):
                del self._seen[key]
            elif process.state == "T":
                self._seen[key] = now
            elif now - self._seen[key] > GHOST_SECONDS:
                count += 1
        return count

    def _look(self):
        rows, now = self._site.store.rows, time.monotonic()
        self.counts = {STATUS_WORDS[status]: count for status, count in rows(COUNT_QUERY)}
        waiting = set(rows(ORPHAN_QUERY))
        if self._site.disk_is_full:     # nobody could take a task from a dead worker
            self._waiting.clear()
        self._waiting = {key: self._waiting.get(key, now) for key in waiting}
        self.orphans |= {key[0] for key, since in self._waiting.items()
                         if now - since > ORPHAN_SECONDS}
        self.log_bytes = max(self.log_bytes, self._site.store.log_bytes())

    @property
    def unfinished(self):
        """How many tasks had not ended at the last look; None before the first."""
        if not self.counts:
            return None
        return sum(count for status, count in self.counts.items() if status not in FINISHED)


# Drill -----------------------------------------------------------------------

class Drill:
    """A site, those who use it, and those who trouble it."""

    def __init__(self, options, stream, plant=""):
        self._options = options
        self._threads = []
        self._broken = None             # why a thread of ours ended
        self._adding, self._troubling, self._sampling = (threading.Event() for _ in range(3))
        self._progress = Progress(stream, options.tasks)
        self._admin = None
        self._server_ends = []          # words on servers that ended by themselves
        self._names = set()             # files in the data folder before the storm
        self.site = DrillSite(options, plant)
        self.foreigners = Foreigners(self.site, options.foreign)
        self.local = options.workers // LOCAL_SHARE if options.remote else options.workers  # NbMaxWorker
        self.services = Services(self.site, options.workers - options.remote * self.local)
        self.seconds = options.minutes * 60
        self.adders = []
        self.plans = {}                 # Plan: the Adder of its owner
        self.trouble = self.sampler = None
        self.wall = time.time() - time.monotonic()

    def chance(self, name):
        """The source of all decisions of one kind."""
        return random.Random("%s %s" % (self._options.seed, name))

    def open(self):
        """Start everything."""
        options = self._options
        self.site.open(options.tasks)
        self._admin = self.site.set_up()
        for name, limits in (("narrow", {"max_running": NARROW_MAX}),
                             ("paced", {"rate": dict(zip(("count", "seconds"), RATE))})):
            self._admin.send("POST", "api/queues", {"name": name}).expect(201, 409)
            self._admin.send("PATCH", "api/queues/%s" % name, limits).expect(200)
        self._admin.send("PATCH", "api/settings", {
            "NbMaxWorker": self.local, "linger": 2, "runner_tasks": 1000,
            **({"worker_mode": "service", "nice": 0} if self.site.machines else
               {"worker_mode": "detached"}),    # auto would leave the work to slices
            "worker_seconds": int(max(10, self.seconds / 5))}).expect(200)
        if options.remote:
            self.site.let_in(self._admin)
        browsers = add_users(self._admin, USERS)
        self._admin.send("PATCH", "api/users/user1", {"max_pending": QUOTA}).expect(200)
        self._admin.close()
        numbers = itertools.count(1)
        weights = weights_of(options.tasks, self.seconds, options.workers, options.foreign,
                             options.without)
        for place, browser in enumerate(browsers):
            share = (options.tasks + place) // USERS
            demand = Demand(self.chance("demand %d" % place), numbers, share, POISON_MAX // USERS,
                            {**weights, "parent": 0} if place == 0 else weights,
                            QUOTA // 2 if place == 0 else None)
            self.adders.append(Adder(self.site, place, browser, demand, self.chance("adder %d" % place),
                                     self.seconds * ADDING_SHARE, self._adding))
        chances = [self.chance(name) for name in ("kill", "disturb", "still", "disk", "fall")]
        self.trouble = Trouble(self.site, chances, self._troubling, self.foreigners,
                               self.foreigners and self.seconds >= 2 * LEASE_SECONDS)
        self.sampler = Sampler(self.site, self.local, self._sampling)
        for adder, (catch_up, overlap) in zip(self.adders[1:], PLANS):
            plan_id = adder.plan(next(numbers), catch_up, overlap)
            self.plans[Plan(plan_id, catch_up, overlap)] = adder
        self._names = set(os.listdir(self.site.data))

    def storm(self):
        """Add and trouble until the time is over and all is added, or a seeded fault was met."""
        self.foreigners.start()
        self.services.revive()
        self._start(self.sampler.work)
        adding = [self._start(adder.work) for adder in self.adders]
        troubling = [self._start(self.trouble.kill), self._start(self.trouble.disturb)]
        if self.seconds > 1.2 * self.trouble.still_seconds:
            troubling += [self._start(self.trouble.stand_still)
                          for _ in range(max(1, self._options.workers // STILL_SHARE))]
        if self.site.disk and not self.site.disk.why_not:
            troubling.append(self._start(lambda: self.trouble.fill_disk(self.full_span())))
        if self.site.machines or self.site.places:
            troubling.append(self._start(lambda: self.trouble.fall(self.seconds)))
        began = time.monotonic()
        while self._elapsed(began) < PATIENCE * self.seconds:
            self._watch()
            if self._elapsed(began) > self.seconds and not any(map(threading.Thread.is_alive,
                                                                   adding)):
                break
            if self.site.fault_is_met:
                time.sleep(FAULT_SECONDS)
                break
        self._troubling.set()
        self._join(troubling)
        self.trouble.settle()
        self._adding.set()
        self._join(adding)
        for plan, adder in self.plans.items():
            adder.stop_plan(plan.id)

    def full_span(self):
        """How long the disk is to be full: (at least, at most) seconds."""
        unit, span = self.site.lease, FULL_LEASES
        if self.seconds < 2 * span[1] * unit:
            unit, span = self.seconds, FULL_SHARE
        return [unit * part for part in span]

    def calm(self):
        """Wait until every task has ended or nothing moves any more; not after a seeded fault."""
        began = moved = time.monotonic()
        lease = LEASE_SECONDS if self.trouble.may_kill_foreigners else self.site.lease
        last, patience = None, max(3 * lease, CALM_SECONDS[0])
        while (self._elapsed(moved) < patience and not self.site.fault_is_met
               and self._elapsed(began) < max(self.seconds, CALM_SECONDS[1], 2 * lease)):
            self._watch()
            state = dict(self.sampler.counts)
            if state != last:
                last, moved = state, time.monotonic()
            if self.sampler.unfinished == 0 and self._elapsed(moved) > 2 * LOOK_SECONDS:
                return

    def records(self):
        """All that is known, once the processes have ended."""
        store = self.site.store
        traces = self._zombies() + self._descriptors()
        tasks, events = read_tasks(store), read_events(store)
        slots = [Slot(*row) for row in store.rows(SLOT_QUERY)]
        logs = store.rows(LOG_QUERY)
        self.foreigners.end()
        self.services.end()
        self._sampling.set()
        self._join(self._threads)
        self.site.stop(self._fresh_admin())
        traces += (self.site.left_behind() + store.damage() + self._litter()
                   + self.sampler.long_holds())
        return Records(
            [order for adder in self.adders for order in adder.orders],
            [removal for adder in self.adders for removal in adder.removals],
            read_ledger(self.site.ledger), tasks, events, logs, self.trouble.hits,
            sorted(self.sampler.orphans), self.sampler.crowds, traces,
            [words for adder in self.adders for words in adder.surprises] + self._server_ends
            + complaints(self.site.folder, self.site.data),
            list(self.plans), slots, store.rows(QUOTA_QUERY),
            self.trouble.pauses + self.sampler.holds, self.wall,
            self.site.lease, REMOTE_DEATH_SECONDS if self.site.places else DEATH_SECONDS)

    def close(self):
        """End what is left, however far we came."""
        for event in (self._troubling, self._adding, self._sampling):
            event.set()
        for thread in self._threads:
            thread.join(END_SECONDS)
        if self.trouble:
            self.trouble.settle()
        self._progress.end()
        self.foreigners.end()
        self.services.end()
        with contextlib.suppress(OSError, *STORE_ERRORS):
            self.site.stop()
        self.site.left_behind()

    def _fresh_admin(self):
        return Client(self.site.server, self._admin.cookie)

    @staticmethod
    def _elapsed(since):
        return time.monotonic() - since

    def _start(self, work):
        def guarded():
            try:
                work()
            except Exception as error:
                self._broken = error
        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _join(self, threads):
        for thread in threads:
            thread.join(START_SECONDS)
            if thread.is_alive():
                raise DrillError("a thread of the drill does not end")
        if self._broken:
            raise DrillError("%s: %s" % (type(self._broken).__name__, self._broken))

    def _watch(self):
        """Show how things stand, start what has ended by itself, wait a moment."""
        if self._broken:
            raise DrillError("%s: %s" % (type(self._broken).__name__, self._broken))
        code = self.site.revive()
        if code is not None:
            self._server_ends.append("the server ended by itself with exit code %d" % code)
        self.foreigners.revive()
        self.services.revive()
        counts = self.sampler.counts
        self._progress.show("added %d of %d, running %d, done %d, workers %d, kills %d" % (
            sum(adder.acknowledged for adder in self.adders), self._options.tasks,
            counts.get("running", 0), sum(counts.get(word, 0) for word in FINISHED),
            self.sampler.now, self.trouble.killed))
        time.sleep(LOOK_SECONDS / 2)

    def _zombies(self):
        """Words on ended processes that nobody collects."""
        until = time.monotonic() + END_SECONDS
        while True:
            found = [process for process in self.site.processes().values() if process.state == "Z"]
            if not found or time.monotonic() > until:
                return ["process %d is a zombie of %d" % (one.pid, one.parent) for one in found]
            time.sleep(0.2)

    def _descriptors(self):
        count = self.site.count_descriptors()
        if count <= self.site.descriptors + DESCRIPTORS_MORE:
            return []
        return ["the server has %d files open, %d after its start" % (count,
                                                                      self.site.descriptors)]

    def _litter(self):
        """Words on files that do not belong into the data folder."""
        if self.site.machines:
            return []
        base = self.site.database.name
        word = base[len("jobqueue-"):-len(".db")]
        known = {"worker-%s.log" % word, "worker-%s.log.old" % word, "locks",
                 "turn.lock.wait", base} | self._names
        known |= {base + "-wal", base + "-shm"} if self.site.journal == "wal" else {base + "-journal"}
        found = ["%s was left in the data folder" % name
                 for name in sorted(set(os.listdir(self.site.data)) - known)
                 if not name.startswith("work-")]
        locks = len(os.listdir(self.site.data / "locks"))
        if locks > len(self.trouble.hits):
            found.append("%d lock files were left" % locks)
        return found


# Report ----------------------------------------------------------------------

def counted(counts):
    """{words: number} as text, the most frequent first."""
    pairs = sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))
    return ", ".join("%s %s" % (words, thousands(number)) for words, number in pairs if number)


def spread(values):
    """The middle and the largest of some durations."""
    if not values:
        return "none"
    return "p50 %s, max %s" % (duration(percentile(values, 0.5)), duration(max(values)))


def notice_seconds(drill, records):
    """How long it took until the death of each killed worker was on record."""
    born, lost = (
        {event.worker: event.at - drill.wall for event in records.events if event.event == word}
        for word in ("worker_started", "worker_lost"))
    found = []
    for hit in records.hits:            # a process id may be given to another worker later
        ends = [lost[number] for number in drill.sampler.worker_ids.get(hit.pid, ())
                if number in lost and born.get(number, 0.0) <= hit.since < lost[number] + DYING_SECONDS]
        if hit.kind == "kill" and ends:
            found.append(max(0.0, min(ends) - hit.since))
    return found


def late_share(values):
    """How many of some durations were longer than what was killed may take to start again."""
    late = sum(1 for value in values if value > DEATH_SECONDS)
    return "%d of %d (%.1f%%) after more than %g s" % (
        late, len(values), 100 * late / len(values) if values else 0, DEATH_SECONDS)


WHY_AGAIN = {"kill": "had ended", "term": "asked to leave", "stop": "of a worker that stood still",
             "fall": "had ended on a machine that fell", "fence": "of workers cut off beyond their lease"}


def repetitions(evidence):
    """How many runs were repeated, and what excused them."""
    kinds = collections.Counter(
        WHY_AGAIN[cause.kind] if run.how else "cut off"
        for run, cause in evidence.repeated() if evidence.functions.get(run.id) not in SELF_HARM)
    gap = "no gap"
    if evidence.excused():
        gap = "the longest gap before the kill %s, with pauses %s" % tuple(
            duration(max(gaps)) for gaps in zip(*evidence.excused()))
    return "%s runs: %s; %s, at most %g s are excused" % (
        thousands(sum(kinds.values())), counted(kinds) or "none", gap, RECORD_SECONDS)


def fullness(drill):
    """How often the disk was full, or why it never was."""
    if drill.site.disk is None or drill.site.disk.why_not:
        return "was never full: %s" % (drill.site.disk.why_not if drill.site.disk else "not asked for")
    seconds = [pause.until - pause.since for pause in drill.trouble.full]
    return "was full %d times, for %s in all, %s the longest" % (
        len(seconds), duration(sum(seconds)), duration(max(seconds, default=0)))


def standstills(drill, evidence):
    """How long nothing began after each kind of fall."""
    starts = sorted(run.start for runs in evidence.runs.values() for run in runs)
    found = collections.defaultdict(list)
    for fall, pause in drill.trouble.falls:
        later = starts[bisect.bisect(starts, pause.until):]
        if later and fall.whom in ("server", "connections"):
            found[fall.words].append(later[0] - pause.until)
    return ["still     after \"%s\" nothing began for %s" % (words, spread(values))
            for words, values in found.items()]


def summary(drill, evidence):
    """What was done, in figures."""
    records = evidence.records
    asked = sum((adder.counts for adder in drill.adders), collections.Counter())
    acknowledged = sum(adder.acknowledged for adder in drill.adders)
    ends = collections.Counter(
        task.status if task.status != "failed" else "failed (%s)" % task.reason
        for task in records.tasks)
    started = collections.Counter(entry.kind for entry in records.entries)
    trouble, sampler = drill.trouble, drill.sampler
    kills = {blow.words: trouble.counts[blow.words] for blow in trouble.kills}
    noticed, again = notice_seconds(drill, records), [seconds for _, seconds in evidence.deaths()]
    others = {words: count for words, count in trouble.counts.items() if words not in kills}
    return "\n".join((
        "records   acknowledged %s, in the database %s, in the ledger %s runs"
        % (thousands(acknowledged), thousands(len(records.tasks)), thousands(started["START"])),
        "requests  %s" % counted(asked),
        "schedules %s seconds were due, %s tasks added" % (
            thousands(len(records.slots)), thousands(sum(bool(one.task) for one in records.slots))),
        "ended     %s" % counted(ends),
        "kills     %s: %s" % (thousands(trouble.killed), counted(kills)),
        "others    %s" % counted(others),
        "workers   at most %d, NbMaxWorker %d, %s samples"
        % (sampler.most, sampler.limit, thousands(sampler.samples)),
        "disk      %s" % fullness(drill),
        "harm      runs of %s" % counted({
            name: sum(len(runs) for task_id, runs in evidence.runs.items()
                      if evidence.functions.get(task_id) == name) for name in SELF_HARM}),
        "repeated  %s" % repetitions(evidence),
        "deaths    of workers were on record after %s; %s" % (spread(noticed), late_share(noticed)),
        "killed    tasks might start again after %s; %s, pauses not counted"
        % (spread(again), late_share(again)),
        "server    was back after %s; %s" % (
            spread(drill.site.restart_seconds), late_share(drill.site.restart_seconds)),
        "lock      was held %d times by who did nothing, %s" % (
            len(sampler.holds), spread([hold.until - hold.since for hold in sampler.holds])),
        "log       of the database had at most %.1f MB" % (sampler.log_bytes / 1e6),
        "falls     tasks of fallen machines might start again after %s" % spread(
            [seconds for _, seconds in evidence.deaths("fall")]),
        "ways      to the site were cut %d times at any byte" % sum(
            place.way.cuts for place in drill.site.places), *standstills(drill, evidence)))


def verdict(findings):
    """One line for each check."""
    lines = []
    for name, function in CHECKS:
        found = findings.problems[name]
        words = "VIOLATED %d times" % len(found) if found else "ok"
        lines.append("%-5s %-9s %s" % (name, words, function.__doc__.splitlines()[0]))
        for problem in found[:5]:
            who = "" if problem.id is None else "task %s " % problem.id
            lines.append("      %s%s" % (who, problem.words))
    return "\n".join(lines)


def default_foreign():
    """The foreign workers that take part if nothing else is said."""
    return [FOREIGN_COMMAND] if shutil.which("sqlite3") else []


def command_line(options):
    """How to do the same again."""
    words = ["python3 tests/tools/drill.py --seed %s --minutes %g --workers %d --tasks %d" % (
        options.seed, options.minutes, options.workers, options.tasks)]
    if options.foreign != default_foreign() and not options.postgres:
        words += ["--foreign %s" % shlex.quote(command) for command in options.foreign or [""]]
    words += ["--postgres"] if options.postgres else ["--remote"] if options.remote else []
    words += ["--journal truncate"] if options.journal == "truncate" else []
    words += ["--lease %g" % options.lease] if options.lease else []
    words += ["--folder %s" % shlex.quote(options.folder)] if options.folder else []
    words += ["--fill-disk %d" % (options.fill_disk >> 20)] if options.fill_disk else []
    words += ["--without %s" % name for name in options.without]
    return " ".join(words)


# Entry -----------------------------------------------------------------------

def run(options, stream=sys.stdout, plant=""):
    """Run a drill, with a text appended to its copy of jobqueue.py; (Findings, the report's text)."""
    drill = Drill(options, stream, plant)
    keep = True
    try:
        drill.open()
        drill.storm()
        drill.calm()
        records = drill.records()
        if drill.site.needs_fault and not drill.site.fault_is_met:
            raise DrillError("What was planted had no effect.")
        evidence = Evidence(records)
        findings = check(evidence)
        keep = options.keep or not (findings.is_clean or plant)
    except KeyboardInterrupt:
        keep = options.keep
        raise
    finally:
        drill.close()
        if keep:
            print("kept: %s" % drill.site.folder, file=sys.stderr)
        else:
            drill.site.remove()
        if options.postgres:
            drill.site.store.close()
    report = (summary(drill, evidence), verdict(findings), str(findings),
              "again: %s" % command_line(options))
    return findings, "\n".join(report)


def megabytes(text):
    """A positive number of MB as bytes."""
    return positive(int)(text) << 20


def command_parser():
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="The folder is kept if something was found. Needs Linux.")
    parser.add_argument("--minutes", type=positive(float), default=1.0, metavar="N",
                        help="how long the storm lasts (1)")
    parser.add_argument("--workers", type=positive(int), default=8, metavar="N",
                        help="NbMaxWorker (8)")
    parser.add_argument("--tasks", type=positive(int), default=4000, metavar="N",
                        help="tasks that are added over HTTP (4000)")
    parser.add_argument("--seed", metavar="S", help="of all decisions (a new one)")
    parser.add_argument("--postgres", action="store_true",
                        help="on PostgreSQL, with the workers on %d machines" % MACHINES)
    parser.add_argument("--remote", action="store_true",
                        help="most workers ask over HTTP, some by CGI, and are cut off now and then")
    parser.add_argument("--journal", choices=("wal", "truncate"),
                        help="truncate: as on a network file system (what the folder's asks for)")
    parser.add_argument("--folder", metavar="DIR", help="work in a new folder of this one, on its disk")
    parser.add_argument("--fill-disk", type=megabytes, metavar="MB",
                        help="fill the disk or quota of the folder, if that takes at most so much")
    parser.add_argument("--without", action="append", choices=TROUBLES, default=[],
                        help="leave this out; may be repeated")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder")
    parser.add_argument("--foreign", action="append", metavar="COMMAND",
                        help="a foreign worker that takes part instead of foreign_worker.sh; "
                        "may be given more than once, and as '' for none")
    parser.add_argument("--lease", type=positive(float), help=argparse.SUPPRESS)
    return parser


def parse(arguments=None):
    """Options, with a seed."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if options.minutes > MINUTES_MAX:
        parser.error("--minutes is at most %d" % MINUTES_MAX)
    if options.postgres:
        options.foreign, options.without = [""], sorted({"disk", *options.without})
    if options.foreign is None:
        options.foreign = default_foreign()
    options.foreign = [command for command in options.foreign if command]
    if options.seed is None:
        options.seed = str(secrets.randbelow(10 ** 6))
    return options


def main(arguments=None):
    """Run one drill; returns its exit code."""
    options = parse(arguments)
    if not os.path.exists("/proc/self/stat"):
        print("drill: this needs Linux (its /proc)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("%s tasks of %d users, %d workers, %d foreign, %g minutes, seed %s" % (
        thousands(options.tasks), USERS, options.workers, len(options.foreign), options.minutes,
        options.seed))
    try:
        findings, report = run(options)
    except (DrillError, LoadTestError, OSError, sqlite3.Error) as error:
        print("drill: %s\nagain: %s" % (error, command_line(options)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(report)
    return 0 if findings.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
