#!/usr/bin/env python3
"""Drill: flood a fresh queue, kill, stop and starve its processes, prove that nothing is lost.

    python3 tests/drill.py                      about a minute
    python3 tests/drill.py --minutes 30 --workers 20 --tasks 50000
    python3 tests/drill.py --seed 4711          the same decisions again

A server is started in a new folder and several users add tasks over HTTP: single ones and
thousands at once; quick, slow, talkative, failing ones, some that add others, and a few that
kill the process they run in. Some come after others or share a unique key, some wait in a queue
with a limit or a rate. One user has a quota, the others have schedules that are due every second;
all of them cancel, delete and retry, one task or many. Meanwhile workers, runners and the server
are killed, stopped and resumed, the processors are kept busy, and an outsider holds the
database's write lock.

Three records that share no code are compared at the end: what the server acknowledged, the
ledger to which the functions themselves append, and the database. The exit code is 0 only if
they agree on everything listed in the report.

A worker in another language takes part: tests/foreign_worker.sh where there is a sqlite3 command,
or any --foreign COMMAND, in which {database} and {ledger} are replaced. It works on the queue
"foreign", its result is its arguments, and it appends to the ledger, with one write each,
"START|END id attempt claim pid monotonic-seconds". It is killed only in drills of two minutes or
more, since the death of a foreign worker is noticed by its lease of one minute.

Contents
    Constants   limits, and what the queue is given to do
    Faults      what is broken on purpose to test the checker
    Records     what is known at the end, and reading it
    Runs        what the ledger tells, and what ended a run early
    Checks      the invariants, one function each
    Processes   those of one folder, by what the kernel says
    Drill site  a fresh installation that can be broken, killed and started again
    Adding      users that flood it over HTTP
    Trouble     what is done to the processes
    Sampling    how many workers live
    Report      the words and figures at the end
    Entry       the command line
"""
import argparse
import collections
import contextlib
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
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.load_test import (  # noqa: E402
    FINISHED,
    LEDGER_TEXT,
    STATUS_WORDS,
    Browser,
    LoadTestError,
    Progress,
    Site,
    add_users,
    duration,
    end_process,
    percentile,
    positive,
    read_ledger,
    read_only,
    thousands,
)


# Constants -------------------------------------------------------------------

FOREIGN_COMMAND = "sh %s {database} foreign {ledger}" % shlex.quote(
    str(ROOT / "tests" / "foreign_worker.sh"))
FOREIGN_PER_SECOND = 0.7                # tasks for a foreign worker, which is slow
USERS = 4
MINUTES_MAX = 600.0                     # a session ends after twelve hours
ADDING_SHARE = 0.9                      # of the storm, in which the tasks are added
PATIENCE = 1.5                          # the storm lasts at most so many times its time
KILL_SECONDS = 1.0                      # between two kills, on average
DISTURB_SECONDS = 2.0                   # between two other disturbances
PAUSE_SECONDS = (0.1, 3.0)              # a process stands still so long
HOLD_SECONDS = (0.5, 4.0)               # an outsider holds the write lock so long
HOG_SECONDS = (0.5, 2.0)                # ... and keeps the processors busy so long
HOGS_MAX = 4
LEASE_SECONDS = 60.0                    # the product's, unless --lease shortens it
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
DESCRIPTORS_MORE = 40                   # than after its start the server may hold at the end
REMOVE_SHARE = 0.05                     # of all requests: cancel or delete something as well
REMOVE_AMONG = 200                      # of the newest tasks

# What explains that a run was cut off or repeated.
DYING_SECONDS = 1.0                     # a runner outlives its worker at most so long
RECORD_SECONDS = 15.0                   # outcomes are on record so soon, held locks included
LONGEST_SECONDS = 10.0                  # no function runs longer, pauses included
CRASH_LIMIT = 3

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
NARROW_MAX = 2                          # tasks of "narrow" at once
NARROW_PER_SECOND = 4.0                 # of which so many are asked for
NARROW_SECONDS = (0.05, 0.3)
RATE = 5, 1.0                           # tasks of "paced" are started in so many seconds
PACED_PER_SECOND = 2.5
QUOTA = 60                              # the first user may have so many waiting
PLAIN = ("foreign", "turns", "narrow", "paced")     # functions that are asked for without options
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
import signal


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
        for added in child.enqueue_many(many):
            note("ADDED", added)
    return run(number, work)


@task
def poison(number: int):
    """Kill the process it runs in."""
    run(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
''' % RETRIES

FOREIGN_TEXT = '''

external("foreign", queue="foreign", number=int)
'''

TASK_QUERY = ("SELECT id, function, arguments, status, reason, attempts, claim, result "
              "FROM task ORDER BY id")
EVENT_QUERY = ("SELECT task_id, event, attempt, worker_id, at, owner_id, queue "
               "FROM activity ORDER BY id")
SLOT_QUERY = "SELECT schedule_id, at, task_id FROM slot ORDER BY schedule_id, at"
QUOTA_QUERY = "SELECT id, max_pending FROM user WHERE max_pending IS NOT NULL"
LOG_QUERY = "SELECT task_id, attempt, text FROM log ORDER BY task_id, attempt, start"
COUNT_QUERY = "SELECT status, count(*) FROM task GROUP BY status"
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
Process = collections.namedtuple("Process", "pid parent state started line")
Problem = collections.namedtuple("Problem", "id words kind", defaults=("wrong",))


class DrillError(Exception):
    """The drill cannot go on; the words say why."""


# Faults ----------------------------------------------------------------------
#
# Appended to the drill's own copy of jobqueue.py, which workers import as well. They lean on
# the text of the statements; a fault that is never met is an error, not a success.

SHORT_LEASE_TEXT = '''
assert LEASE_SECONDS and RENEW_SECONDS and SELF_FENCE_SECONDS
LEASE_SECONDS, RENEW_SECONDS, SELF_FENCE_SECONDS = %r, %r, %r
'''

# The verdict that is simulated for --journal truncate.
NETWORK_TEXT = '''
def file_system(path):
    """Every folder is on a network."""
    return "nfs4"
'''

FAULT_TEXT = '''
_true_all, _true_many, _true_transaction = Connection.all, Connection.many, Database.transaction


def _fault_is_met():
    os.close(os.open(str(HOME / "fault-is-met"), os.O_WRONLY | os.O_CREAT, 0o600))


def _changed(statement, old, new):
    assert old in statement, statement
    return statement.replace(old, new)
'''

CLAIM_FAULT_TEXT = FAULT_TEXT + '''
_queries, _early = set(), {}


def _all(self, statement, values=()):
    if "status=0" not in statement or "priority DESC, turn" not in statement:
        return _true_all(self, statement, values)
    key = statement, tuple(values[:-1])
    if key not in _early:
        _queries.add(key)
        return _true_all(self, statement, values)
    return _early.pop(key)[:values[-1]]


def _many(self, statement, rows):
    if "SET status=1" in statement:
        statement = _changed(statement, "AND status=0", "")
        if any(self.value("SELECT status FROM task WHERE id=?", row[-1:]) for row in rows):
            _fault_is_met()
    return _true_many(self, statement, rows)


@contextlib.contextmanager
def _transaction(self, *arguments, **options):
    for statement, values in list(_queries):
        rows = self.all(statement, (*values, 64))
        _early[statement, values] = rows
    with _true_transaction(self, *arguments, **options) as transaction:
        yield transaction


Connection.many, Database.transaction = _many, _transaction
Connection.all = _all
'''

# Nobody kills a worker that stands still, as where its process id cannot be vouched for.
SILENT_TEXT = '''
assert Workers._end_silent
Workers._end_silent = staticmethod(lambda *_: False)
'''

FENCE_FAULT_TEXT = FAULT_TEXT + SILENT_TEXT + '''

def _all(self, statement, values=()):
    if "interruptions" in statement and "AND status=1" in statement:
        statement = _changed(statement, "AND status=1", "")
    return _true_all(self, statement, values)


def _many(self, statement, rows):
    if "SET status=?" in statement:
        statement = _changed(statement, "AND status=1 AND claim=?", "AND (1 OR claim=?)")
    return _true_many(self, statement, rows)


_true_end_all = Claims.end_all


def _end_all(self, transaction, ended, now):
    by_id = [(task_id, transaction.value("SELECT claim FROM task WHERE id=?", (task_id,)), outcome)
             for task_id, _, outcome in ended]
    if [claim for _, claim, _ in by_id] != [claim for _, claim, _ in ended]:
        _fault_is_met()
    return _true_end_all(self, transaction, by_id, now)


Connection.all, Connection.many, Claims.end_all = _all, _many, _end_all
'''

COUNT_FAULT_TEXT = FAULT_TEXT + '''

def _many(self, statement, rows):
    rows = list(rows)
    if "SET status=1" in statement:
        statement = _changed(statement, "attempts=attempts+1", "attempts=attempts")
    changed = _true_many(self, statement, rows)
    if "SET status=?" in statement and "AND status=1 AND claim=?" in statement:
        _true_many(self, "UPDATE task SET attempts=attempts+1 WHERE id=? AND status<>0",
                   [(row[-2],) for row in rows])
        _fault_is_met()
    return changed


Connection.many = _many
'''

# No limit, rate, quota, key, order or turn holds, and schedules do not look back.
LIMITS_FAULT_TEXT = """
assert Queues.room and Tasks._check_quota and Tasks._holder and Schedules._unfinished
assert _waits and next_turn
Queues.room = staticmethod(lambda *_: INTEGER_MAX)
Tasks._check_quota = Tasks._holder = lambda *_: None
Schedules._unfinished = staticmethod(lambda *_: None)
_waits = lambda *_: SATISFIED


def next_turn(transaction, owner_id, queue, priority):
    return 1 + (transaction.value("SELECT max(turn) FROM task WHERE status=0 AND queue=? "
                                  "AND priority=?", (queue, priority)) or 0)
"""

# name: (text, seconds of the lease); "silent" breaks nothing that is promised.
FAULTS = {"claim": (CLAIM_FAULT_TEXT, 6.0), "fence": (FENCE_FAULT_TEXT, 1.5),
          "count": (COUNT_FAULT_TEXT, 6.0), "limits": (LIMITS_FAULT_TEXT, 6.0),
          "silent": (FAULT_TEXT + SILENT_TEXT, 3.0)}
UNMARKED_FAULTS = ("limits", "silent")  # nothing tells that they were met


# Records ---------------------------------------------------------------------

class Records:
    """All that is known at the end."""

    def __init__(self, orders=(), removals=(), entries=(), tasks=(), events=(), logs=(), hits=(),
                 orphans=(), crowds=(), traces=(), surprises=(), plans=(), slots=(), quotas=()):
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


def read_tasks(path):
    """All tasks of a database as Task."""
    return [Task(id_, function, json.loads(arguments), STATUS_WORDS[status], *rest)
            for id_, function, arguments, status, *rest in read_only(path, TASK_QUERY)]


def read_events(path):
    """All activity of a database as Event."""
    return [Event(*row) for row in read_only(path, EVENT_QUERY)]


def complaints(folder, data):
    """The last words of tracebacks that workers and server left in their logs."""
    found = []
    for path in (folder / "server.log", *data.glob("worker-*.log*")):
        with contextlib.suppress(FileNotFoundError):
            pieces = path.read_text("utf-8", "replace").split("Traceback (most recent call last)")
            found += ["%s: %s" % (path.name, last_words(piece)) for piece in pieces[1:]]
    return found


def last_words(trace):
    """The line of a traceback that names the error."""
    lines = itertools.dropwhile(lambda line: line.startswith((":", " ")), trace.splitlines())
    return next(lines, "a traceback without an end")


def look_into(path):
    """Words on a database that is not whole."""
    verdict = [row[0] for row in read_only(path, "PRAGMA integrity_check")]
    found = [] if verdict == ["ok"] else ["integrity_check: %s" % word for word in verdict]
    return found + ["foreign_key_check: %s" % (row,)
                    for row in read_only(path, "PRAGMA foreign_key_check")]


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
        self.end = None
        self.how = None


def explains(hit, run):
    """True if this hit may have ended the run, or kept its outcome from being recorded.

    A kill explains that an outcome was not recorded only if it came soon after the run's end;
    a worker that is asked to leave records what has ended, and ends what goes on too long.
    """
    if run.end is None:
        latest = run.start + LONGEST_SECONDS + RECORD_SECONDS
    else:
        latest = run.end + (0 if hit.kind == "term" else RECORD_SECONDS)
    earliest = run.start - RECORD_SECONDS
    if hit.kind == "kill":
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
        self.events = collections.defaultdict(list)
        for event in records.events:
            if event.task is not None:
                self.events[event.task].append(event)
        self.hits = collections.defaultdict(list)
        for hit in records.hits:
            self.hits[hit.pid].append(hit)
        self.runs = collections.defaultdict(list)   # by task, in the order they began
        self.claims = {}
        self.children = []              # ids that functions were given for what they added
        self.oddities = []              # Problems of the ledger itself
        for entry in sorted(records.entries, key=lambda entry: entry.at):
            self._enter(entry)

    def _enter(self, entry):
        run = self.claims.get(entry.claim)
        if entry.kind == "ADDED":
            self.children.append(entry.id)
        elif entry.kind == "START":
            if run is not None:
                self.oddities.append(Problem(entry.id, "two runs under one claim", "twice"))
            run = self.claims[entry.claim] = Run(entry)
            self.runs[entry.id].append(run)
        elif run is None or run.id != entry.id or run.pid != entry.pid or run.how:
            self.oddities.append(Problem(entry.id, "a %s without its START" % entry.kind))
        else:
            run.end, run.how = entry.at, entry.kind

    def cause(self, run):
        """The first hit that explains how a run ended; None if there is none."""
        hits = itertools.chain(self.hits.get(run.pid, ()), self.hits.get(run.worker, ()))
        return min((hit for hit in hits if explains(hit, run)), default=None,
                   key=lambda hit: hit.since)

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
                yield Problem(task_id, "began again while it ran", "twice")
            cause = evidence.cause(run)
            if cause and cause.kind == "stop":
                continue                # a lease ran out: allowed, if its outcome is refused
            end = run.end
            if end is None and cause and evidence.functions.get(task_id) != "poison":
                end = cause.since
            until = max(filter(None, (until, end)), default=None)


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
    elif task.status == "failed" and task.reason == "dependency":
        source = evidence.sources.get(task.id)
        if not source or source.run or all(evidence.ended[before] <= {"succeeded"}
                                           for before in source.after):
            yield Problem(task.id, "failed by what it comes after, which did not")
    elif task.status == "failed" and task.reason not in ("crashed", "interrupted"):
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
        if function == "poison":
            if len(runs) > CRASH_LIMIT:
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
    yield from evidence.oddities
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
          ("I8", check_crowds), ("I9", check_traces), ("logs", check_logs),
          ("words", check_manners), ("keys", check_keys), ("order", check_order),
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
        return "lost %d, run twice %d, stuck %d" % tuple(
            len(self.ids(kind)) for kind in ("lost", "twice", "stuck"))


def check(records):
    """Findings from Records."""
    evidence = Evidence(records)
    return Findings({name: list(function(evidence)) for name, function in CHECKS})


# Processes -------------------------------------------------------------------

def look_at(pid):
    """A Process as the kernel shows it; None if there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            line = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None
    return Process(pid, int(fields[1]), fields[0].decode("ascii"), int(fields[19]), line)


def is_from(folder, process):
    """True if a process was started in a folder, or with a file of it."""
    if folder in process.line:
        return True
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/cwd" % process.pid).startswith(folder)
    return False


def processes_of(folder):
    """{pid: Process} of all that came from a folder, and of their zombies."""
    everything = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            process = look_at(int(name))
            if process:
                everything[process.pid] = process
    ours = {pid: process for pid, process in everything.items() if is_from(str(folder), process)}
    zombies = {pid: process for pid, process in everything.items()
               if process.state == "Z" and process.parent in ours}
    return {**ours, **zombies}


def is_worker(process):
    """True for a worker."""
    return "worker --detached" in process.line.replace(".py", "") and process.state != "Z"


def is_runner(process):
    """True for the process that runs a worker's functions."""
    return "worker --runner" in process.line.replace(".py", "") and process.state != "Z"


def holds_lock(pid, paths):
    """True if a process keeps others out of one of these files, or we cannot know."""
    with contextlib.suppress(OSError):
        files = {str(os.stat(path).st_ino) for path in paths if os.path.exists(path)}
        lines = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
        return any(fields[3:5] == ["WRITE", str(pid)] and fields[5].rpartition(":")[2] in files
                   for fields in lines if len(fields) > 5)
    return True


# Drill site ------------------------------------------------------------------

class DrillSite(Site):
    """A fresh installation whose server may be killed and started again."""

    def __init__(self, foreign=(), fault=None, lease=None, journal="wal"):
        super().__init__(self.tasks_text(foreign))
        self.journal = journal
        self._restarting = threading.Lock()
        self.fault = fault
        self.lease = lease or FAULTS.get(fault, (None, None))[1] or LEASE_SECONDS
        self.restart_seconds = []
        self.descriptors = None         # of the server after its start
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
        if self.lease != LEASE_SECONDS:
            text += SHORT_LEASE_TEXT % (self.lease, self.lease / 6, self.lease * 5 / 6)
        if self.fault:
            text += FAULTS[self.fault][0]
        path = self.folder / "jobqueue.py"
        before, entry, after = path.read_text("utf-8").rpartition('\nif __name__ == "__main__":')
        if not entry:
            raise DrillError("jobqueue.py does not end as expected")
        path.write_text(before + text + "\n" + entry + after, encoding="utf-8")

    @property
    def needs_fault(self):
        """True if a fault was seeded that tells when it is met."""
        return bool(self.fault) and self.fault not in UNMARKED_FAULTS

    @property
    def fault_is_met(self):
        """True once it was met."""
        return self.needs_fault and (self.folder / "fault-is-met").exists()

    def start(self):
        """Start the server; note how many files it opens."""
        super().start()
        self.descriptors = self.count_descriptors()

    def count_descriptors(self):
        """How many files the server has open."""
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

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
        return [(process, runners.get(pid)) for pid, process in sorted(found.items())
                if is_worker(process)
                and found.get(process.parent, process._replace(line="")).line != process.line]

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
        browser = Browser(self._site.server, self._cookie)
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
                self._browser = Browser(self._site.server, self._cookie)
            try:
                reply = self._browser.send(*request)
            except ConnectionRefusedError:
                self._stop.wait(WAIT_SECONDS)
                continue
            except (OSError, http.client.HTTPException):
                self.counts["unanswered"] += 1
                self._stop.wait(WAIT_SECONDS)
                return None
            if reply.retry_seconds is None or reply.status == 429:
                return reply
            self.counts["busy"] += 1
            self._stop.wait(reply.retry_seconds)
        return None

    def _be_surprised(self, request, reply):
        detail = (reply.value or {}).get("detail", "")
        self.surprises.append("%s was answered with %d %s" % (request, reply.status, detail))


def weights_of(tasks, seconds, workers, foreign):
    """{function: weight}, with as many sleepy ones as keep half of the workers busy."""
    mean = sum(SLEEPY_SECONDS) / 2
    share = min(SLEEPY_SHARE[1], max(SLEEPY_SHARE[0], workers / 2 / (tasks / seconds * mean)))
    weights = {**FUNCTION_WEIGHTS, "sleepy": share,
               "narrow": min(0.05, NARROW_PER_SECOND * seconds / tasks),
               "paced": min(0.05, PACED_PER_SECOND * seconds / tasks)}
    weights["poison"] = min(POISON_MAX, max(4, tasks / 400)) / tasks
    if foreign:
        weights["foreign"] = FOREIGN_PER_SECOND * seconds / tasks
    return weights


# Trouble ---------------------------------------------------------------------

class Trouble:
    """Kills, stops and starves the processes of a site, as chance decides."""

    KILLS = (("worker KILL", 24, "_kill_worker"), ("worker TERM", 14, "_term_worker"),
             ("worker TERM twice", 6, "_term_twice"), ("runner KILL", 18, "_kill_runner"),
             ("runner TERM", 6, "_term_runner"), ("worker and runner KILL", 12, "_kill_both"),
             ("server KILL", 8, "_kill_server"), ("server TERM", 4, "_term_server"),
             ("everything KILL", 4, "_kill_everything"))
    DISTURBANCES = (("worker stopped", 20, "_stop_worker"), ("runner stopped", 10, "_stop_runner"),
                    ("worker and runner stopped", 6, "_stop_both"),
                    ("server stopped", 6, "_stop_server"),
                    ("processors kept busy", 5, "_hog"), ("write lock held", 10, "_hold_lock"))
    STAND_STILL = "stopped beyond its lease"
    FOREIGN_KILL = ("foreign worker KILL", 10, "_kill_foreigner")

    def __init__(self, site, chances, stop, foreigners, may_kill_foreigners):
        self._site = site
        self._kill_chance, self._disturb_chance, self._still_chance = chances
        self._stop = stop
        self._foreigners = foreigners
        self._stopped = set()           # processes that must be resumed
        self.still_seconds = site.lease * LEASE_OVER[0] + LEASE_OVER[1]
        self.hits = []
        self.counts = collections.Counter()
        self.kills = list(self.KILLS)
        if may_kill_foreigners:
            self.kills.append(self.FOREIGN_KILL)

    def kill(self):
        """Kill something now and then until told to stop."""
        self._act(self._kill_chance, KILL_SECONDS, self.kills)

    def disturb(self):
        """Disturb something now and then until told to stop."""
        self._act(self._disturb_chance, DISTURB_SECONDS, self.DISTURBANCES)

    def stand_still(self):
        """Let one worker after another stand still beyond its lease until told to stop."""
        while not self._stop.wait(self._still_chance.uniform(0, WAIT_SECONDS)):
            worker = self._stop_while_it_runs_something()
            if worker:
                self.counts[self.STAND_STILL] += 1
                self._stop.wait(self.still_seconds)
                self._resume(worker)
                self._stop.wait(self._still_chance.uniform(0, self.still_seconds / 4))

    @property
    def killed(self):
        """How many kills there were."""
        return sum(self.counts[words] for words, _, _ in self.kills)

    def settle(self):
        """Let everything go on that was stopped."""
        for process in list(self._stopped):
            self._signal(process, signal.SIGCONT)

    def _act(self, chance, mean, actions):
        weights = [weight for _, weight, _ in actions]
        while not self._stop.wait(min(5 * mean, chance.expovariate(1 / mean))):
            words, _, name = chance.choices(actions, weights)[0]
            if getattr(self, name)():
                self.counts[words] += 1

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

    def _busy(self):
        return self._pids("SELECT pid FROM worker WHERE state='busy'")

    def _claimants(self):
        return self._pids("SELECT pid FROM worker WHERE id IN "
                          "(SELECT worker_id FROM task WHERE status=1)")

    def _pids(self, query):
        with contextlib.suppress(sqlite3.Error):
            return {row[0] for row in read_only(self._site.database, query)}
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

    def _kill_worker(self):
        pair = self._choose(self._kill_chance)
        return pair and self._signal(pair[0], signal.SIGKILL, "kill")

    def _term_worker(self):
        pair = self._choose(self._kill_chance)
        return pair and self._signal(pair[0], signal.SIGTERM, "term")

    def _term_twice(self):
        pair, pause = self._choose(self._kill_chance), self._kill_chance.uniform(0, 0.3)
        if not pair or not self._signal(pair[0], signal.SIGTERM, "term"):
            return False
        self._stop.wait(pause)
        self._signal(pair[0], signal.SIGTERM, "term")
        return True

    def _kill_runner(self, number=signal.SIGKILL):
        pair = self._choose(self._kill_chance)
        return pair and pair[1] and self._signal(pair[1], number, "kill")

    def _term_runner(self):
        return self._kill_runner(signal.SIGTERM)

    def _kill_both(self):
        pair, order = self._choose(self._kill_chance), self._kill_chance.choice((1, -1))
        return pair and any([process and self._signal(process, signal.SIGKILL, "kill")
                             for process in pair[::order]])

    def _kill_server(self):
        self._site.restart(signal.SIGKILL)
        return True

    def _term_server(self):
        self._site.restart(signal.SIGTERM)
        return True

    def _kill_everything(self):
        spared = {self._site.process.pid}
        if self._site.fault:            # it needs one that wakes up late
            spared |= {process.pid for process in list(self._stopped)}
        foreign_too = self.FOREIGN_KILL in self.kills
        for process in self._site.processes().values():
            known = foreign_too or is_worker(process) or is_runner(process)
            if known and process.pid not in spared:
                self._signal(process, signal.SIGKILL, "kill")
        return self._kill_server()

    def _kill_foreigner(self):
        found = look_at(self._kill_chance.choice(self._foreigners).pid)
        return found and self._signal(found, signal.SIGKILL, "kill")

    # Stopping

    def _pause(self, *processes):
        """Let processes stand still for a moment."""
        pause = self._moment(PAUSE_SECONDS)
        stopped = [process for process in processes if process and self._halt(process)]
        if stopped:
            self._stop.wait(pause)
        for process in stopped:
            self._resume(process)
        return bool(stopped)

    def _moment(self, span):
        """So many seconds by chance, always much less than a lease."""
        return min(self._disturb_chance.uniform(*span), self._site.lease / 4)

    def _halt(self, process):
        self._stopped.add(process)
        return self._signal(process, signal.SIGSTOP)

    def _resume(self, process):
        self._signal(process, signal.SIGCONT)
        self._stopped.discard(process)

    def _stop_worker(self):
        pair = self._choose(self._disturb_chance)
        return pair and self._pause(pair[0])

    def _stop_runner(self):
        pair = self._choose(self._disturb_chance)
        return pair and self._pause(pair[1])

    def _stop_both(self):
        pair = self._choose(self._disturb_chance)
        return pair and self._pause(*pair)

    def _stop_server(self):
        return self._pause(look_at(self._site.process.pid))

    def _stop_while_it_runs_something(self):
        """A worker, but not its runner, that holds a claim and no lock others wait for; or None."""
        pair = self._choose(self._still_chance)
        if not pair or not self._halt(pair[0]):
            return None
        worker, since, database = pair[0], time.monotonic(), self._site.database
        held = (database, "%s-shm" % database, database.parent / "turn.lock")
        if holds_lock(worker.pid, held) or worker.pid not in self._claimants():
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
        """Be somebody else's program that takes its time within a transaction."""
        pause = self._moment(HOLD_SECONDS)
        link = sqlite3.connect(str(self._site.database), timeout=5, isolation_level=None)
        try:
            link.execute("PRAGMA wal_autocheckpoint=0")
            link.execute("BEGIN IMMEDIATE")
            self._stop.wait(pause)
            link.execute("ROLLBACK")
            return True
        except sqlite3.OperationalError:
            return False                # busy: the product was there first
        finally:
            link.close()


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
        self.orphans = set()
        self.counts = {}                # status: tasks

    def work(self):
        """Sample until told to stop."""
        link = sqlite3.connect("file:%s?mode=ro" % self._site.database, uri=True, timeout=5,
                               isolation_level=None)
        look_next = 0.0
        try:
            while not self._stop.wait(SAMPLE_SECONDS):
                with contextlib.suppress(sqlite3.OperationalError):
                    self._sample(link)
                    if time.monotonic() > look_next:
                        look_next = time.monotonic() + LOOK_SECONDS
                        self._look(link)
        finally:
            link.close()

    def _sample(self, link):
        now = time.monotonic()
        if self._last and now - self._last > STALL_SECONDS:
            self._seen = {key: now for key in self._seen}
            self._waiting.clear()
        self._last = now
        rows = link.execute("SELECT id, pid FROM worker WHERE pid IS NOT NULL").fetchall()
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

    def _look(self, link):
        now = time.monotonic()
        self.counts = {STATUS_WORDS[status]: count
                       for status, count in link.execute(COUNT_QUERY).fetchall()}
        waiting = set(link.execute(ORPHAN_QUERY).fetchall())
        self._waiting = {key: self._waiting.get(key, now) for key in waiting}
        self.orphans |= {key[0] for key, since in self._waiting.items()
                         if now - since > ORPHAN_SECONDS}
        with contextlib.suppress(OSError):
            size = os.stat("%s-wal" % self._site.database).st_size
            self.log_bytes = max(self.log_bytes, size)

    @property
    def unfinished(self):
        """How many tasks had not ended at the last look; None before the first."""
        if not self.counts:
            return None
        return sum(count for status, count in self.counts.items() if status not in FINISHED)


# Drill -----------------------------------------------------------------------

class Drill:
    """A site, those who use it, and those who trouble it."""

    def __init__(self, options, stream):
        self._options = options
        self._threads = []
        self._broken = None             # why a thread of ours ended
        self._adding, self._troubling, self._sampling = (threading.Event() for _ in range(3))
        self._progress = Progress(stream, options.tasks)
        self._admin = None
        self._server_ends = []          # words on servers that ended by themselves
        self._names = set()             # files in the data folder before the storm
        self.site = DrillSite(options.foreign, options.seed_fault, options.lease, options.journal)
        self.foreigners = Foreigners(self.site, options.foreign)
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
        self.site.start()
        self._admin = self.site.set_up()
        found = read_only(self.site.database, "PRAGMA journal_mode")[0][0]
        if (found == "wal") != (self.site.journal == "wal"):
            raise DrillError("the database is written with the journal mode %s" % found)
        for name, limits in (("narrow", {"max_running": NARROW_MAX}),
                             ("paced", {"rate": dict(zip(("count", "seconds"), RATE))})):
            self._admin.send("POST", "api/queues", {"name": name}).expect(201, 409)
            self._admin.send("PATCH", "api/queues/%s" % name, limits).expect(200)
        self._admin.send("PATCH", "api/settings", {
            "NbMaxWorker": options.workers, "linger": 2, "runner_tasks": 1000,
            "worker_mode": "detached",      # auto would pause to find out who ends its workers
            "worker_seconds": int(max(10, self.seconds / 5))}).expect(200)
        browsers = add_users(self._admin, USERS)
        self._admin.send("PATCH", "api/users/user1", {"max_pending": QUOTA}).expect(200)
        self._admin.close()
        numbers = itertools.count(1)
        weights = weights_of(options.tasks, self.seconds, options.workers, options.foreign)
        for place, browser in enumerate(browsers):
            share = (options.tasks + place) // USERS
            demand = Demand(self.chance("demand %d" % place), numbers, share, POISON_MAX // USERS,
                            {**weights, "parent": 0} if place == 0 else weights,
                            QUOTA // 2 if place == 0 else None)
            self.adders.append(Adder(self.site, place, browser, demand, self.chance("adder %d" % place),
                                     self.seconds * ADDING_SHARE, self._adding))
        chances = self.chance("kill"), self.chance("disturb"), self.chance("still")
        self.trouble = Trouble(self.site, chances, self._troubling, self.foreigners,
                               self.foreigners and self.seconds >= 2 * self.site.lease)
        self.sampler = Sampler(self.site, options.workers, self._sampling)
        for adder, (catch_up, overlap) in zip(self.adders[1:], PLANS):
            plan_id = adder.plan(next(numbers), catch_up, overlap)
            self.plans[Plan(plan_id, catch_up, overlap)] = adder
        self._names = set(os.listdir(self.site.data))

    def storm(self):
        """Add and trouble until the time is over and all is added, or a seeded fault was met."""
        self.foreigners.start()
        self._start(self.sampler.work)
        adding = [self._start(adder.work) for adder in self.adders]
        troubling = [self._start(self.trouble.kill), self._start(self.trouble.disturb)]
        if self.seconds > 1.2 * self.trouble.still_seconds:
            troubling += [self._start(self.trouble.stand_still)
                          for _ in range(max(1, self._options.workers // STILL_SHARE))]
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

    def calm(self):
        """Wait until every task has ended or nothing moves any more; not after a seeded fault."""
        began = moved = time.monotonic()
        last, patience = None, max(2 * self.site.lease, CALM_SECONDS[0])
        while (self._elapsed(moved) < patience and not self.site.fault_is_met
               and self._elapsed(began) < max(self.seconds, CALM_SECONDS[1])):
            self._watch()
            state = dict(self.sampler.counts)
            if state != last:
                last, moved = state, time.monotonic()
            if self.sampler.unfinished == 0 and self._elapsed(moved) > 2 * LOOK_SECONDS:
                return

    def records(self):
        """All that is known, once the processes have ended."""
        database = self.site.database
        traces = self._zombies() + self._descriptors()
        tasks, events = read_tasks(database), read_events(database)
        slots = [Slot(*row) for row in read_only(database, SLOT_QUERY)]
        logs = read_only(database, LOG_QUERY)
        self.foreigners.end()
        self._sampling.set()
        self._join(self._threads)
        self.site.stop(self._fresh_admin())
        traces += self.site.left_behind() + look_into(database) + self._litter()
        return Records(
            [order for adder in self.adders for order in adder.orders],
            [removal for adder in self.adders for removal in adder.removals],
            read_ledger(self.site.ledger), tasks, events, logs, self.trouble.hits,
            sorted(self.sampler.orphans), self.sampler.crowds, traces,
            [words for adder in self.adders for words in adder.surprises] + self._server_ends
            + complaints(self.site.folder, self.site.data),
            list(self.plans), slots, read_only(database, QUOTA_QUERY))

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
        with contextlib.suppress(OSError, sqlite3.Error):
            self.site.stop()
        self.site.left_behind()

    def _fresh_admin(self):
        return Browser(self.site.server, self._admin.cookie)

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
        base = self.site.database.name
        word = base[len("jobqueue-"):-len(".db")]
        known = {"worker-%s.log" % word, "worker-%s.log.old" % word, "work-" + word, "locks",
                 "turn.lock.wait", base} | self._names
        known |= {base + "-wal", base + "-shm"} if self.site.journal == "wal" else {base + "-journal"}
        found = ["%s was left in the data folder" % name
                 for name in sorted(set(os.listdir(self.site.data)) - known)]
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


def summary(drill, records):
    """What was done, in figures."""
    asked = sum((adder.counts for adder in drill.adders), collections.Counter())
    acknowledged = sum(adder.acknowledged for adder in drill.adders)
    ends = collections.Counter(
        task.status if task.status != "failed" else "failed (%s)" % task.reason
        for task in records.tasks)
    started = collections.Counter(entry.kind for entry in records.entries)
    trouble, sampler = drill.trouble, drill.sampler
    kills = {words: trouble.counts[words] for words, _, _ in trouble.kills}
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
        "deaths    of workers were on record after %s" % spread(notice_seconds(drill, records)),
        "server    was back after %s; the database's log had at most %.1f MB"
        % (spread(drill.site.restart_seconds), sampler.log_bytes / 1e6)))


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
    words = ["python3 tests/drill.py --seed %s --minutes %g --workers %d --tasks %d" % (
        options.seed, options.minutes, options.workers, options.tasks)]
    if options.foreign != default_foreign():
        words += ["--foreign %s" % shlex.quote(command) for command in options.foreign or [""]]
    words += ["--journal truncate"] if options.journal == "truncate" else []
    words += ["--lease %g" % options.lease] if options.lease else []
    words += ["--seed-fault %s" % options.seed_fault] if options.seed_fault else []
    return " ".join(words)


# Entry -----------------------------------------------------------------------

def run(options, stream=sys.stdout):
    """Run a drill; returns (Findings, the report's text)."""
    drill = Drill(options, stream)
    keep = True
    try:
        drill.open()
        drill.storm()
        drill.calm()
        records = drill.records()
        if drill.site.needs_fault and not drill.site.fault_is_met:
            raise DrillError("The seeded fault %s was never met." % options.seed_fault)
        findings = check(records)
        keep = options.keep or not (findings.is_clean or options.seed_fault)
    except KeyboardInterrupt:
        keep = options.keep
        raise
    finally:
        drill.close()
        if keep:
            print("kept: %s" % drill.site.folder, file=sys.stderr)
        else:
            drill.site.remove()
    report = (summary(drill, records), verdict(findings), str(findings),
              "again: %s" % command_line(options))
    return findings, "\n".join(report)


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
    parser.add_argument("--journal", choices=("wal", "truncate"), default="wal",
                        help="truncate: as on a network file system")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder")
    parser.add_argument("--foreign", action="append", metavar="COMMAND",
                        help="a foreign worker that takes part instead of foreign_worker.sh; "
                        "may be given more than once, and as '' for none")
    parser.add_argument("--lease", type=positive(float), help=argparse.SUPPRESS)
    parser.add_argument("--seed-fault", choices=sorted(FAULTS), help=argparse.SUPPRESS)
    return parser


def parse(arguments=None):
    """Options, with a seed."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if options.minutes > MINUTES_MAX:
        parser.error("--minutes is at most %d" % MINUTES_MAX)
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
