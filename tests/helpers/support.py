"""What the tests share.

    TestCase       a temporary folder, and a JobQueue in this process on its own data folder, with a
                   clock that only the test moves; no process is ever started by it
    FakeClock      now, monotonic, sleep (moves both), uniform (always the lower bound)
    Site           a copy of the project in a folder with a space in its name, for tests with real
                   processes: writes tasks.py, runs the command line, the server, the workers
    need           skips a test for which something is missing; fails it under JOBQUEUE_TEST_ALL=1
    has_part, need_part
                   whether this run tries a part ("page", "abuse", "drill"; README has all of them): .ci/run
                   has one Python try them by JOBQUEUE_TEST_PARTS, all others try all
    wait_until     for tests with real processes only
    at_once        calls a function in many threads

In a TestCase

    self.folder    the temporary folder (a Path); the data folder is self.folder / "data"
    self.clock     a FakeClock; self.clock.advance(seconds)
    self.queue     a JobQueue with the functions of FUNCTIONS and the users ana (admin), bob and eve,
                   each with the password PASSWORD; self.people[name] is a jobqueue.Person
    self.started   the command lines of the workers that would have been started;
                   self.start_error = OSError(...) makes starting fail
    self.add("bob", a=1, b=2)           -> id; also function=..., and options={"priority": 5, ...}
    self.add_many("bob", 10)            -> ids
    self.claim()                        -> the claimed row, or None; self.claim_many(5) -> rows
    self.end(row, "error", ...)         -> the Verdict; further arguments are those of Outcome
    self.run_one("succeeded", ...)      -> claims, ends and returns the row as it is afterwards
    self.renew(row)                     the attempt's worker tells that it goes on
    self.cancel(id), self.retry(id), self.delete(id)        as people do; a second name: whose task it is
    self.tick(60), self.clean(60)       time passes, then somebody ticks; the latter starts no workers
    self.look_in("request")             somebody asks whether it is time to tick, in passing
    self.schedule("every 10m")          -> id; also owner=, person=, and what else a schedule has
    self.change_settings(linger=60)
    self.live(), self.die(lock)         a worker that reports: (id, lock that it holds); it is killed
    self.row(id), self.status(id)       the raw row, the status word; None if there is none
    self.pass_in_silence(61)            lets time pass in which nobody renews, while somebody looks
    self.events(id)                     event words of a task, oldest first
    self.write(statement, values)       one statement in a transaction of its own
    self.place                          the environment that leads to the test's database
    self.another_queue()                a second JobQueue on the same data, as another process has it
    self.patch(jobqueue, "NAME", value)             for this test
    self.refused(Error, "words in its detail")      assertRaises that also looks at the sentence
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pwd
import py_compile
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import jobqueue  # noqa: E402
from tests.helpers import postgres, processes  # noqa: E402
from tests.helpers.processes import is_runner, processes_of, workers_among  # noqa: E402

if postgres.ADDRESS:
    jobqueue.PLANNED_AFTER = 0          # each statement is one that is asked often

PASSWORD = "correct horse"
USERS = (("ana", "admin"), ("bob", "user"), ("eve", "user"))


def need(condition, what):
    """Skip the test unless `condition`, saying `what` is missing; .ci/run turns that into a failure."""
    if condition:
        return
    if os.environ.get("JOBQUEUE_TEST_ALL"):
        raise AssertionError("JOBQUEUE_TEST_ALL is set, but this is missing: %s" % what)
    raise unittest.SkipTest("needs %s" % what)


def has_part(name):
    """True if this run tries that part of the suite, for which one Python is enough."""
    return name in os.environ.get("JOBQUEUE_TEST_PARTS", name).split()


def need_part(name):
    """Skip the test unless this run tries that part."""
    if not has_part(name):
        raise unittest.SkipTest("another run tries this: JOBQUEUE_TEST_PARTS names no " + name)


def as_user(name):
    """The arguments of Popen that make a process run as that user; None: as ourselves."""
    if name is None:
        return {}
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def quick_hash(password, salt=b"0123456789abcdef"):
    """A password as it is stored, at a cost that only tests can afford."""
    key = hashlib.scrypt(password.encode(), salt=salt, n=2, r=1, p=1)
    return "scrypt$2,1,1$%s$%s" % (salt.hex(), key.hex())


def function_json(name, properties=None, required=None, who="user", title=None, additional=False, **options):
    """A function as a runner announces it; `options` are those of @task."""
    properties = properties or {}
    return {
        "name": name,
        "title": title or name,
        "description": "",
        "who": who,
        "schema": {
            "type": "object",
            "properties": properties,
            "additionalProperties": additional,
            "required": list(properties) if required is None else list(required),
        },
        "options": {**jobqueue.TASK_DEFAULTS, **options},
    }


INTEGER = {"type": "integer"}
FUNCTIONS = (
    function_json("add", {"a": INTEGER, "b": {**INTEGER, "default": 0}}, ["a"]),
    function_json("greet", {"name": {"type": "string"}}, max_retries=2, retry_delay=60, retry_backoff=2),
    function_json("send", {"to": {"type": "string"}}, on_crash="fail", queue="mail"),
    function_json("restart", who="admin"),
    function_json("cleanup", who="nobody"),
)


class FakeClock:
    """Time that moves when the test says so, or when somebody sleeps; chance that always falls low."""

    def __init__(self, now=1_800_000_000.0, monotonic=1000.0):
        self.wall = now
        self.ticks = monotonic
        self.step = 0.0  # passes whenever somebody looks at the clock

    def now(self):
        """UTC seconds since 1970."""
        return self.wall

    def monotonic(self):
        """Seconds since some moment."""
        self.advance(self.step)
        return self.ticks

    def sleep(self, seconds):
        """Time passes, and nobody waits."""
        self.advance(seconds)

    def uniform(self, low, high):
        """The lower bound."""
        return low

    def advance(self, seconds):
        """Let time pass for both clocks."""
        self.wall += seconds
        self.ticks += seconds


class FakeProcess:
    """A started worker that neither runs nor ends."""

    returncode = None

    def poll(self):
        """As subprocess.Popen.poll."""
        return self.returncode


class FakeContext:
    """What a function is told of its attempt."""

    id, attempt, claim, folder = 7, 2, "token", "/nowhere"


def close_quietly(queue):
    """Close a queue that the test may have closed already."""
    with contextlib.suppress(OSError, sqlite3.ProgrammingError):
        queue.close()


def place_for(case, empty=False):
    """The environment that leads to a database of the case's own; on SQLite the data folder has one."""
    if postgres.ADDRESS is None:
        return {}
    address, remove = postgres.fresh_database(empty)
    case.addCleanup(remove)
    return {"JOBQUEUE_DATABASE": address}


def populate(queue, now):
    """Add USERS and FUNCTIONS."""
    with queue.database.transaction(durable=False) as transaction:
        for name, role in USERS:
            transaction.run("INSERT INTO user (name, password, role, created_at) VALUES (?, ?, ?, ?)",
                            (name, quick_hash(PASSWORD), role, now))
    queue.catalogue.store({"functions": list(FUNCTIONS), "error": None})


@functools.lru_cache(maxsize=None)
def made_folder(_local):
    """The data folder that each test has a copy of: a copy costs a third of making one. It is written
    as local file systems are, or others."""
    folder, clock = Path(tempfile.mkdtemp(prefix="jobqueue made ")), FakeClock()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with contextlib.closing(jobqueue.JobQueue(folder / "data", clock=clock, environment={})) as queue:
        populate(queue, clock.now())
    return folder / "data"


class TestCase(unittest.TestCase):
    """See the module's docstring."""

    maxDiff = None

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue test "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.clock = FakeClock()
        self.started = []
        self.start_error = None
        self.place = place_for(self)
        self.locks = set()              # descriptors of the locks that living workers hold
        self.addCleanup(lambda: [os.close(handle) for handle in self.locks])
        if not self.place:
            shutil.copytree(made_folder(jobqueue.LOCAL_FILE_SYSTEMS), self.folder / "data",
                            ignore=shutil.ignore_patterns("bell"))
        self.queue = self.another_queue()
        self.database = self.queue.database
        if self.place:
            populate(self.queue, self.clock.now())
        self.people = {row["name"]: jobqueue.Person(row) for row in self.database.all("SELECT * FROM user")}

    def patch(self, place, name, value):
        """For this test, the attribute has this value."""
        patch = mock.patch.object(place, name, value)
        patch.start()
        self.addCleanup(patch.stop)

    def another_queue(self, **options):
        """One more JobQueue on the same data folder."""
        options = {"data": self.folder / "data", "clock": self.clock, **options}
        options["environment"] = {**self.place, **options.get("environment", {})}
        queue = jobqueue.JobQueue(**options)
        self.addCleanup(close_quietly, queue)
        queue.claims.machine, queue.claims.leases.boot = "machine-1", "boot-1"
        queue.starter._start = self._start
        queue.catalogue.refresh = lambda **_: None
        return queue

    def _start(self, arguments, **_):
        if self.start_error:
            raise self.start_error
        self.started.append(arguments)
        return FakeProcess()

    def declare(self, *functions):
        """Make these functions (see function_json) the catalogue."""
        self.queue.catalogue.store({"functions": list(functions), "error": None})

    def owner_id(self, name):
        """A user's id."""
        return self.people[name].id

    def add(self, owner="bob", function="add", options=None, **arguments):
        """Add one task; its id."""
        if function == "add":
            arguments = {"a": 1, **arguments}
        request = {"function": function, "arguments": arguments, **(options or {})}
        return self.queue.add([request], self.owner_id(owner))[0]

    def add_many(self, owner, count, function="add", options=None):
        """Add tasks in one go; their ids."""
        requests = [
            {"function": function, "arguments": {"a": number}, **(options or {})} for number in range(count)
        ]
        return self.queue.add(requests, self.owner_id(owner))

    def claim(self, worker_id=1, queue=None):
        """Claim the next task."""
        rows = self.claim_many(1, worker_id, queue)
        return rows[0] if rows else None

    def claim_many(self, wanted, worker_id=1, queue=None, **options):
        """Claim up to `wanted` tasks at once; their rows."""
        queue = queue or self.queue
        with queue.database.transaction() as transaction:
            return queue.claims.claim(transaction, worker_id, self.clock.now(), wanted, **options)

    def end(self, row, kind="succeeded", *values, **named):
        """Record how an attempt ended."""
        with self.database.transaction() as transaction:
            return self.queue.claims.end(
                transaction,
                row["id"],
                row["claim"],
                jobqueue.Outcome(kind, *values, **named),
                self.clock.now(),
            )

    def run_one(self, kind="succeeded", *values, **named):
        """Claim a task and end it; its row afterwards."""
        row = self.claim()
        self.end(row, kind, *values, **named)
        return self.row(row["id"])

    def renew(self, row, worker_id=None):
        """The worker of an attempt tells that it goes on; without an id only the lease is renewed."""
        with self.database.transaction() as transaction:
            if worker_id is not None:
                self.queue.workers.heartbeat(transaction, worker_id, "busy", 0)
            self.queue.claims.renew(transaction, row["id"], row["claim"], self.clock.now())

    def cancel(self, task_id, name=None):
        """Cancel a task; only one of the user of that name, if given."""
        return self.queue.actions.cancel(task_id, name and self.owner_id(name))

    def retry(self, task_id, name=None):
        """Let a task run again; its row."""
        return self.queue.actions.retry(task_id, name and self.owner_id(name))

    def delete(self, task_id, name=None):
        """Delete a task."""
        return self.queue.actions.delete(task_id, name and self.owner_id(name))

    def tick(self, seconds=0, queue=None):
        """Time passes, then somebody does all the housekeeping."""
        self.clock.advance(seconds)
        (queue or self.queue).tick.run()

    def clean(self, seconds=0, queue=None):
        """The same, but that no workers are started."""
        self.clock.advance(seconds)
        (queue or self.queue).tick.run(start=False)

    def look_in(self, caller, queue=None):
        """Somebody who came for something else asks for the housekeeping; True if it was done."""
        return (queue or self.queue).tick.maybe(caller)

    def schedule(self, rule="every 10m", owner="bob", person=None, **more):
        """Make a schedule; its id."""
        given = {"function": "add", "arguments": {"a": 1}, "rule": rule, **more}
        return self.queue.schedules.add(given, self.owner_id(owner), person)

    def change_settings(self, **values):
        """Change settings as an admin does."""
        self.queue.settings.change(values)

    def write_log(self, task_id, text, attempt=1, start=0):
        """Keep a piece of a log, as a worker does."""
        with self.database.transaction() as transaction:
            jobqueue.append_log(transaction, self.clock.now(), task_id, attempt, start, text)

    def reserve(self, mode="detached", wanted=1):
        """Reserve places for workers that are about to be started: [(id, name of the lock file)]."""
        with self.database.transaction() as transaction:
            return self.queue.workers.reserve(transaction, mode, wanted)

    def arrive(self, worker_id, lock, proven=True, pid=None):
        """A worker that was started reports; the descriptor of the lock that it holds."""
        handle, _ = jobqueue.create_lock(self.queue.workers.locks / lock)
        self.locks.add(handle)
        pid = os.getpid() if pid is None else pid
        self.assertTrue(self.queue.workers.arrive(worker_id, lock, proven, pid))
        return handle

    def live(self, mode="detached", **known):
        """A worker is started and reports: (id, descriptor of the lock that it holds)."""
        [(worker_id, lock)] = self.reserve(mode)
        return worker_id, self.arrive(worker_id, lock, **known)

    def die(self, handle):
        """The worker that holds this lock is killed."""
        self.locks.remove(handle)
        os.close(handle)

    def pass_in_silence(self, seconds):
        """Time passes, and nobody renews a lease; somebody looks all the time who is late."""
        for _ in range(round(2 * seconds)):
            self.clock.advance(0.5)
            self.queue.claims.leases.mark_suspects(self.clock.now())

    def row(self, task_id):
        """The raw row of a task, hidden or not."""
        return self.database.one("SELECT * FROM task WHERE id=?", (task_id,))

    def status(self, task_id):
        """The status word of a task."""
        row = self.row(task_id)
        return row and jobqueue.STATUS_WORDS[row["status"]]

    def events(self, task_id):
        """What happened to a task, oldest first."""
        return [
            row[0]
            for row in self.database.all("SELECT event FROM activity WHERE task_id=? ORDER BY id", (task_id,))
        ]

    def write(self, statement, values=()):
        """Change the database behind everybody's back."""
        with self.database.transaction() as transaction:
            return transaction.run(statement, values)

    @contextlib.contextmanager
    def refused(self, kind, words=""):
        """The block raises `kind`, and says these words."""
        with self.assertRaises(kind) as caught:
            yield caught
        self.assertIn(words, caught.exception.detail)


def wait_until(condition, seconds=60.0, what="the condition", pause=0.02):
    """The first true value of `condition()`; AssertionError after `seconds`.

    Most of the time is left to those who are waited for, however long a look takes.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s did not come true within %g s" % (what, seconds))
        time.sleep(max(pause, min(3 * (time.monotonic() - began), 0.25)))


def at_once(function, values):
    """Call it with each value, in as many threads; waits for all, and raises what one raised."""
    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(function, values))


def free_port():
    """A port that nobody listens on, and that no connection gets by chance before we do."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as link, contextlib.suppress(OSError):
            link.bind(("127.0.0.1", port))
            return port


@functools.lru_cache(maxsize=None)
def compiled():
    """What Python keeps of our two files in __pycache__: {name: content}."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("jobqueue", "worker"):
            source = str(ROOT / (name + ".py"))
            kept = importlib.util.cache_from_source(source)
            if sys.dont_write_bytecode:
                kept = py_compile.compile(source, os.path.join(folder, os.path.basename(kept)), doraise=True)
            else:                       # who imported it has compiled it
                importlib.machinery.SourceFileLoader(name, source).get_code(name)
            found[os.path.basename(kept)] = Path(kept).read_bytes()
    return found


CHANGE_SETTINGS = """
import json, sys
from jobqueue import SETTINGS, JobQueue, parse_text
queue = JobQueue()
values = json.load(sys.stdin)
queue.settings.change({name: parse_text(SETTINGS[name].schema, text) for name, text in values.items()})
queue.start_workers()
"""


class Site:
    """The project as somebody copied it to a host, in a folder with a space in its name.

        site = Site(tasks="from jobqueue import task ...")
        self.addCleanup(site.close)                 # kills whatever was started from this folder

        site.home, site.data                        # Paths
        site.write_tasks(text)
        site.settings(NbMaxWorker=3, linger=1)
        site.run("add", "add", "a=1", "b=2")        # CompletedProcess; AssertionError unless exit code 0
        site.run("show", "99", code=4)
        site.json("show", 7)                        # with --json, parsed
        site.add("double", n=4)                     # id
        site.wait(7)                                # the finished task as JSON
        site.wait_for_all(ids)                      # ... which starts no process; nothing is returned
        site.empty("task", "activity")              # remove all rows of these tables
        site.python("from jobqueue import JobQueue; print(JobQueue().enqueue('double', {'n': 1}).id)")
        site.rows("SELECT * FROM task")             # list of sqlite3.Row, read only
        site.damage()                               # what is wrong with its database
        site.start_server() -> "http://127.0.0.1:PORT/"; site.stop_server()
        site.start_worker("--seconds", "5")         # a Popen of worker.py
        site.workers(), site.runners()              # process ids that run now
        site.processes()                            # {pid: command line} of all started from here

    Users ana (admin), bob and eve exist, with PASSWORD; site.token("bob") is a new API token.
    With `users=False` nobody exists and there is no data folder yet. With `user` (we are root then) the
    files belong to that user and processes run as that user; `folder` is the name of the site's folder;
    `database` is the address of one on PostgreSQL.
    """

    def __init__(self, tasks=None, users=True, python=sys.executable, folder="my jobs", user=None,
                 database=None, **settings):
        need(os.path.isdir(processes.PROC + "/self"), "/proc, which tells what runs")
        self.home = Path(os.path.realpath(tempfile.mkdtemp(prefix="jobqueue site "))) / folder
        self.home.mkdir()
        self.user = user
        self.data = self.home / "data"
        self.interpreter = python
        self.server = self.address = None
        self._children = []
        self._remove_database = None
        if postgres.ADDRESS and not database:
            database, self._remove_database = postgres.fresh_database(empty=not users)
        # The environment that leads to its database.
        self.place = {"JOBQUEUE_DATABASE": database} if database else {}
        for name in ("jobqueue.py", "worker.py"):
            shutil.copy2(ROOT / name, self.home / name)
        (self.home / "__pycache__").mkdir()
        for name, code in compiled().items():
            (self.home / "__pycache__" / name).write_bytes(code)
        if (ROOT / "static").is_dir():
            shutil.copytree(ROOT / "static", self.home / "static")
        if tasks is not None:
            self.write_tasks(tasks)
        if users:
            with contextlib.closing(jobqueue.JobQueue(self.data, environment=self.place)) as queue:
                queue.settings.change(settings)
            self._insert(
                "user",
                *(
                    {"name": name, "password": quick_hash(PASSWORD), "role": role, "created_at": time.time()}
                    for name, role in USERS
                ),
            )
        if user:
            self.home.parent.chmod(0o755)
            for path in (self.home.parent, *self.home.parent.rglob("*")):
                self.give(path)

    def give(self, path):
        """Let a file belong to the site's user."""
        if self.user:
            shutil.chown(path, self.user, pwd.getpwnam(self.user).pw_gid)

    @property
    def environment(self):
        """What processes of the site get: nothing that would point them elsewhere.

        The SQLite that our Python was given (by LD_LIBRARY_PATH) is none for another Python.
        """
        ours = ("JOBQUEUE_", "PYTHON") if self.interpreter == sys.executable else (
            "JOBQUEUE_", "PYTHON", "LD_LIBRARY_PATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, **self.place}

    def write_tasks(self, text):
        """Write tasks.py as one step, as a careful person would."""
        part = self.home / "tasks.py.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.home / "tasks.py")

    def settings(self, **values):
        """Change settings as an admin would, all at once."""
        texts = {name: str(value) for name, value in values.items()}
        self.python(CHANGE_SETTINGS, given=json.dumps(texts))

    def run(self, *arguments, code=0, given=None, environment=None, seconds=120):
        """Run jobqueue.py; the CompletedProcess, after a look at its exit code (None: any)."""
        return self._complete(
            ["-m", "jobqueue", *map(str, arguments)], code, given, environment, seconds
        )

    def python(self, text, code=0, given=None, environment=None, seconds=120):
        """Run Python text in the site's folder; what it printed."""
        return self._complete(["-c", text], code, given, environment, seconds).stdout.strip()

    def _complete(self, arguments, code, given, environment, seconds):
        done = subprocess.run(
            [self.interpreter, *arguments],
            cwd=self.home,
            env={**self.environment, **(environment or {})},
            input=given,
            stdin=None if given is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=seconds,
            **as_user(self.user),
        )
        if code is not None and done.returncode != code:
            raise AssertionError(
                "%s ended with %s instead of %s:\n%s%s"
                % (arguments, done.returncode, code, done.stdout, done.stderr)
            )
        return done

    def json(self, *arguments, **options):
        """Run jobqueue.py with --json; what it printed."""
        return json.loads(self.run(*arguments, "--json", **options).stdout)

    def add(self, function, *options, **arguments):
        """Add a task by the command line; its id."""
        texts = ["%s=%s" % pair for pair in arguments.items()]
        return int(self.run("add", function, *texts, *options).stdout)

    def wait(self, task_id, seconds=60):
        """Wait for the end of a task; the task as JSON."""
        said = self.run("wait", task_id, "--timeout", seconds, "--json", code=None, seconds=seconds + 60)
        if not said.stdout:
            raise AssertionError(said.stderr)
        return json.loads(said.stdout)

    def wait_for_all(self, ids, seconds=180):
        """Wait for the end of tasks."""
        left = "SELECT count(*) FROM task WHERE status NOT IN (2, 3, 4) AND id IN (%s)" % (
            ", ".join(map(str, ids)))
        wait_until(lambda: self.value(left) == 0, seconds, "the end of %d tasks" % len(ids))

    def empty(self, *tables):
        """Remove all rows."""
        for table in tables:
            self.rows("DELETE FROM " + table)

    @contextlib.contextmanager
    def connection(self):
        """A connection of our own that never writes the log back."""
        if self.place:
            with contextlib.closing(postgres.Link(self.place["JOBQUEUE_DATABASE"])) as link:
                yield link
            return
        path = next(self.data.glob("jobqueue-*.db"))
        link = sqlite3.connect(
            "file:%s?mode=rw" % quote(str(path)), uri=True, timeout=60, isolation_level=None
        )
        try:
            link.execute("PRAGMA wal_autocheckpoint=0")
            link.row_factory = sqlite3.Row
            yield link
        finally:
            link.close()

    def rows(self, statement, values=()):
        """All rows."""
        with self.connection() as link:
            return link.execute(statement, values).fetchall()

    def value(self, statement, values=()):
        """The first column of the first row, or None."""
        rows = self.rows(statement, values)
        return rows[0][0] if rows else None

    def damage(self):
        """What is wrong with its database, [] if nothing; PostgreSQL looks whenever it reads."""
        if self.place:
            return []
        found = [row[0] for row in self.rows("PRAGMA integrity_check") if row[0] != "ok"]
        return found + self.rows("PRAGMA foreign_key_check")

    def _insert(self, table, *items):
        for item in items:
            self.rows(
                "INSERT INTO %s (%s) VALUES (%s)" % (table, ", ".join(item), ", ".join("?" * len(item))),
                tuple(item.values()),
            )

    def token(self, name, scope="user"):
        """A new API token of a user."""
        token = "jq_" + os.urandom(16).hex()
        user_id = self.value("SELECT id FROM user WHERE name=?", (name,))
        self._insert(
            "token",
            {
                "digest": jobqueue.digest(token),
                "user_id": user_id,
                "name": "test",
                "scope": scope,
                "created_at": time.time(),
            },
        )
        return token

    # Processes

    def start_server(self, *options, **more):
        """Start the web server on a free port; its address, ending in a slash."""
        self.server = self._start(
            ["-m", "jobqueue", "serve", "--port", "0", *map(str, options)],
            stdout=subprocess.PIPE, encoding="utf-8", **more,
        )
        said = self.server.stdout.readline()
        found = re.search(r"http://\S+", said)
        if not found:
            raise AssertionError("the server said %r instead of its address" % said)
        self.address = found[0]
        return self.address

    def stop_server(self, number=signal.SIGTERM):
        """Stop the server; its exit code."""
        self.server.send_signal(number)
        code = self.server.wait(60)
        self.server.stdout.close()
        self.server = None
        return code

    def start_worker(self, *options, **more):
        """Start worker.py as somebody would by hand; the Popen."""
        return self._start(["worker.py", *options], **more)

    def _start(self, arguments, **more):
        child = subprocess.Popen(
            [self.interpreter, *arguments],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            **as_user(self.user),
            **more,
        )
        self._children.append(child)
        return child

    def processes(self):
        """{pid: command line} of every living process that came from this folder."""
        return {pid: process.line for pid, process in processes_of(self.home).items()
                if process.state != "Z"}

    def workers(self):
        """Process ids of the living workers."""
        return list(workers_among(processes_of(self.home)))

    def runners(self):
        """Process ids of the living runners."""
        return [pid for pid, process in processes_of(self.home).items() if is_runner(process)]

    def stop_all(self, number=signal.SIGKILL, seconds=60):
        """Signal everything that came from this folder until nothing is left."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for child in self._children:
                child.poll()
            left = self.processes()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(0.02)
        raise AssertionError("still there: %s" % self.processes())

    def close(self):
        """Kill what is left and remove the folder."""
        try:
            self.stop_all()
        finally:
            for child in self._children:
                child.wait(60)
                if child.stdout:
                    child.stdout.close()
                if child.stderr:
                    child.stderr.close()
            shutil.rmtree(self.home.parent, ignore_errors=True)
            if self._remove_database:
                self._remove_database()
