"""Real workers and what their functions wrote down.

    TASKS          a tasks.py whose functions append to a ledger, print, fail, wait, misbehave
    ProcessCase    one Site with that for all tests of a class: adds tasks, waits, kills, compares records
"""
import contextlib
import json
import math
import os
import signal
import unittest

from tests.helpers.support import Site, wait_until
from tests.tools.load_test import read_ledger, read_runs

TASKS = '''
import contextlib, fcntl, os, signal, stat, subprocess, sys, time
from datetime import date
from pathlib import Path
from jobqueue import JobQueue, Fail, RetryAfter, command, current_task, task

HERE = Path(__file__).parent

def say(word):
    context = current_task()
    line = "%s %d %d %s %d %.6f\\n" % (
        word, context.id, context.attempt, context.claim, os.getpid(), time.monotonic())
    handle = os.open(HERE / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)

@task
def ledger(seconds: float = 0, until: str = ""):
    """Write down that it runs; OVERLAP if another attempt of the same task still does.

    `until`: it ends only once there is a file of that name.
    """
    (HERE / "running").mkdir(exist_ok=True)
    handle = os.open(HERE / "running" / str(current_task().id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("OVERLAP")
    say("START")
    end = time.monotonic() + seconds
    while time.monotonic() < end or until and not (HERE / until).exists():
        time.sleep(0.01)
    say("END")
    os.close(handle)
    return os.getpid()

@task
def double(n: int) -> int:
    print("doubling", n)
    return 2 * n

@task
def prints(kind: str):
    if kind == "unicode":
        print("Åse 日本", "half \\ud800", "zero \\0 end")
    elif kind == "bytes":
        os.write(1, b"bad \\xff byte\\n")
    elif kind == "both":
        print("out", flush=True)
        print("err", file=sys.stderr)
    elif kind == "no newline":
        sys.stdout.write("left over")
    elif kind == "flood":
        for number in range(5 * 1024):
            print("%08d" % number + "x" * 1015)
        print("THE END")
    elif kind == "flood and fail":
        prints.target("flood")
        raise ValueError("after the flood")
    elif kind == "closed":
        os.close(1)
        os.close(2)

@task
def shows_progress(seconds: float = 0):
    current_task().progress(1, 4, "reading é")
    time.sleep(seconds)
    current_task().progress(3, 4, "nearly")

@task
def uses_folder():
    (current_task().folder / "file").write_text("x")
    return str(current_task().folder)

@task
def typed(day: date, ratio: float = 1):
    return [type(day).__name__, type(ratio).__name__, day]

@task
def returns(kind: str):
    return {"nan": float("nan"), "half": "a\\ud800\\0b", "object": object(), "large": "x" * (2 << 20),
            "set": {1}, "none": None}[kind]

@task(max_retries=2, retry_delay=0)
def fails(kind: str):
    if kind == "fail":
        raise Fail("for good")
    marker = current_task().folder / "ran"
    first = not marker.exists()
    marker.touch()
    if kind == "later" and first:
        raise RetryAfter(0.1, "not yet")
    if kind == "always":
        raise ValueError("attempt %d" % current_task().attempt)
    if kind == "once" and first:
        raise ValueError("stumbled")
    if kind == "half":
        raise ValueError("a\\ud800\\0b")
    return "in the end"

@task
def ends(kind: str):
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "_exit":
        os._exit(3)
    if kind == "_exit 0":
        os._exit(0)
    if kind == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "group":
        os.killpg(os.getpgrp(), signal.SIGKILL)

@task(on_crash="fail")
def once():
    os._exit(3)

@task(timeout=1)
def sleeps(seconds: float):
    time.sleep(seconds)

@task(timeout=1)
def ignores(seconds: float):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ignoring", flush=True)
    time.sleep(seconds)
    print("to the end", flush=True)

@task
def leaves_a_child():
    if os.fork() == 0:
        (HERE / "child").write_text(str(os.getpid()))
        while True:
            with contextlib.suppress(OSError):
                os.write(1, b"LATE\\n")
            time.sleep(0.005)
    while not (HERE / "child").exists() or not (HERE / "child").read_text():
        time.sleep(0.005)
    print("parent is done")

@task
def leaves_a_daemon():
    text = "import time\\nfor _ in range(2000): print('LATE', flush=True); time.sleep(.005)"
    subprocess.Popen([sys.executable, "-c", text], start_new_session=True)

@task
def child_reports():
    child = os.fork()
    if child == 0:
        try:
            current_task().progress(1, 2)
        except RuntimeError as error:
            print("refused:", error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

@task
def speaks(kind: str):
    """Write into the runner's own channel, which no function should."""
    line = {"malformed": b"nonsense\\n", "foreign": b'{"claim": "x", "outcome": {"kind": "succeeded"}}\\n',
            "no object": b"[1]\\n", "too long": b"x" * (3 << 20)}[kind]
    for handle in range(3, 40):
        try:
            if stat.S_ISSOCK(os.fstat(handle).st_mode):
                os.set_blocking(handle, True)
                os.write(handle, line)
        except OSError:
            pass
    time.sleep(30)

@task
def reads():
    return sys.stdin.read()

@task
def adds_many(count: int, wrong: bool = False):
    many = [{"n": number} for number in range(count)]
    if wrong:
        many[-1] = {"n": "wrong"}
    try:
        ids = double.using(queue="many", delay=3600).enqueue_many(many)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
    return [len(ids), ids == sorted(ids)]

@task
def waits():
    double.using(queue="other", delay=3600).enqueue(1).wait()

@task
def environment():
    import sqlite3
    return {"names": sorted(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o077),
            "group": os.getpgrp() == os.getpid(), "sqlite": sqlite3.sqlite_version}

command("echo", [sys.executable, "-c", "import sys; print(sys.argv[1:])", "say", "{text}"], text=str)
command("exits", [sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))", "{code}"], code=int)
'''


class ProcessCase(unittest.TestCase):
    """Shares one site among the tests of a class."""

    settings = {"linger": 1, "NbMaxWorker": 2, "nice": 0}
    server = False

    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, **cls.settings)
        cls.addClassCleanup(cls.site.close)
        if cls.server:
            cls.site.start_server()

    def setUp(self):
        self.site = type(self).site

    @classmethod
    def enqueue(cls, function, many, idle=False, **options):
        """Add tasks in one process; their ids. `idle`: start no worker for them."""
        text = (
            "import json, sys\nfrom jobqueue import JobQueue\n"
            "function, many, options = json.load(sys.stdin)\n"
            "print(json.dumps(JobQueue().enqueue_many(function, many, **options)))"
        )
        environment = {"JOBQUEUE_NBMAXWORKER": "0"} if idle else None
        return json.loads(
            cls.site.python(text, given=json.dumps([function, many, options]), environment=environment)
        )

    @classmethod
    def add(cls, function, idle=False, **arguments):
        return cls.enqueue(function, [arguments], idle)[0]

    def row(self, task_id):
        rows = self.site.rows("SELECT * FROM task WHERE id=?", (task_id,))
        return rows[0] if rows else None

    def wait_for(self, task_id, status=2, seconds=60):
        """The row once it has this status (a number)."""

        def look():
            row = self.row(task_id)
            return row if row and row["status"] == status else None

        return wait_until(look, seconds, "status %d of task %d" % (status, task_id))

    @classmethod
    def wait_for_all(cls, ids, seconds=180):
        cls.site.wait_for_all(ids, seconds)

    def log(self, task_id, attempt=None):
        options = [] if attempt is None else ["--attempt", attempt]
        return self.site.run("log", task_id, *options).stdout

    def events(self, task_id):
        return [
            row[0]
            for row in self.site.rows("SELECT event FROM activity WHERE task_id=? ORDER BY id", (task_id,))
        ]

    def ledger(self):
        """What the functions wrote, a list of Entry in the order in which it was written."""
        path = self.site.home / "ledger"
        return read_ledger(path) if path.exists() else []

    def starts(self, ids):
        """Which of these tasks began, each as often as it did."""
        return [entry[1] for entry in self.ledger() if entry[0] == "START" and entry[1] in ids]

    def running(self, task_id):
        """Wait until the ledger says that it runs; the process id of its runner."""

        def look():
            found = [entry for entry in self.ledger() if entry[:2] == ("START", task_id)]
            return found and found[-1][4]

        return wait_until(look, 60, "the start of task %d" % task_id)

    def most_at_once(self, since=0.0, until=math.inf):
        """How many ran at the same time at most, by the ledger: at the starts of that time."""
        running = most = 0
        for entry in sorted(self.ledger(), key=lambda entry: entry.at):
            running += {"START": 1, "END": -1}.get(entry.kind, 0)
            if entry.kind == "START" and since <= entry.at < until:
                most = max(most, running)
        return most

    def alive(self, pid):
        return pid in self.site.processes()

    def kill(self, *pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_records(self, ids):
        """The invariants over what was added, the ledger and the database."""
        runs = self.check_ledger(self.ledger(), ids)
        marks = ", ".join(map(str, ids))
        rows = self.site.rows("SELECT id, attempts, crashes, claim FROM task WHERE id IN (%s)" % marks)
        self.assertEqual(len(rows), len(ids))
        for row in rows:
            own, events = runs[row["id"]], self.events(row["id"])
            self.assertEqual(
                sum(event in ("succeeded", "failed", "cancelled") for event in events), 1, events
            )
            self.assertEqual(events.count("started"), row["attempts"])
            self.assertLessEqual(len(own), 1 + row["crashes"] + events.count("interrupted"))
            self.assertEqual(own[-1].claim, row["claim"], "the last claim is the one that counts")
        self.assertEqual(self.site.damage(), [])

    def check_ledger(self, entries, ids):
        """Attempts of one task never overlap, count upwards and have claims of their own: {id: runs}."""
        self.assertNotIn("OVERLAP", {entry.kind for entry in entries})
        runs, oddities = read_runs(entry for entry in entries if entry.id in ids)
        self.assertEqual(oddities, [])
        for own in runs.values():
            for before, after in zip(own, own[1:]):
                self.assertLess(before.attempt, after.attempt, (vars(before), vars(after)))
                self.assertLessEqual(before.end or after.start, after.start, (vars(before), vars(after)))
        return runs
