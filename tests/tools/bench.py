#!/usr/bin/env python3
"""Benchmark: what jobqueue does, beside raw SQLite and its nearest relatives in the same run.

    python3 tests/tools/bench.py                everything, about six minutes
    python3 tests/tools/bench.py --quick        smaller numbers, about two minutes
    python3 tests/tools/bench.py --only drain   one part, or several with commas: see PARTS at the end
    python3 tests/tools/bench.py --against DIR  beside another checkout instead of the anchors

Absolute figures depend on the machine and on what else it does; the ratios are what counts, so
each of ours stands beside an anchor measured in turn with it. huey and litequeue are anchors
where they are installed (litequeue needs Python 3.12). What a function does is the same for all:
where tasks are drained, each writes a line. Where psycopg and PostgreSQL are installed, a server
of its own that is as durable as usual is measured too, beside Procrastinate on the same one.

Contents
    Constants   sizes, and what is wanted
    Figures     rows of the table, and measuring in turns
    Sites       fresh installations, workers, processes
    Raw         the same work in bare sqlite3
    Relatives   the same work in huey, litequeue and Procrastinate
    Hammer      many keep-alive connections
    Parts       what is measured
    Entry       the command line
"""
import argparse
import collections
import contextlib
import importlib.util
import io
import json
import os
import random
import re
import resource
import secrets
import selectors
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from load_test import COPIED, LIST_PATH, ROOT, Client, SiteCopy, end_process, percentile
from tests.helpers import machines, postgres


# Constants -------------------------------------------------------------------

Sizes = collections.namedtuple(
    "Sizes", "adds bulk drain pickups colds finished few many claims hammer_seconds rounds lines "
             "flood_seconds requests asleep_seconds schedules")
FULL = Sizes(adds=600, bulk=10_000, drain=5_000, pickups=30, colds=7, finished=20_000,
             few=1_000, many=1_000_000, claims=300, hammer_seconds=3.0, rounds=5, lines=100_000,
             flood_seconds=60, requests=60, asleep_seconds=30, schedules=1_000)
QUICK = Sizes(adds=200, bulk=10_000, drain=2_000, pickups=10, colds=3, finished=4_000,
              few=1_000, many=100_000, claims=100, hammer_seconds=1.0, rounds=3, lines=20_000,
              flood_seconds=10, requests=30, asleep_seconds=20, schedules=1_000)

CONNECTIONS = (1, 10, 50)
SLOW_CLIENTS = 500
FLOOD_PER_SECOND = 1000
ASLEEP_AFTER_SECONDS = 32               # without work a worker wakes up more seldom
COMMITS_PER_SECOND = 20             # while the list changes
MACHINES, MACHINE_WORKERS = 3, 4
SLOWER = 5                          # whose rate is so much lower drains so many times fewer tasks
DURABLE = {"fsync": "on", "full_page_writes": "on", "max_connections": "200"}   # as PostgreSQL is by itself
PATIENCE_SECONDS = 300.0

TASKS_TEXT = '''\
import os
import time

from jobqueue import task

FOLDER = os.path.dirname(os.path.abspath(__file__))
ledger = os.open(os.path.join(FOLDER, "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@task
def nothing(value: int = 0):
    """Do nothing."""


@task
def noted(value: int = 0):
    """Write a line, as the tasks of the relatives do."""
    os.write(ledger, b"%.6f\\n" % time.time())


@task
def nap():
    """Take a while that no processor is needed for."""
    time.sleep(0.02)
    noted()


@task
def moment() -> float:
    """Say when it began."""
    return time.time()
'''

HUEY_TEXT = '''\
import os
import time

from huey import SqliteHuey

FOLDER = os.path.dirname(os.path.abspath(__file__))
huey = SqliteHuey("bench", filename=os.path.join(FOLDER, "huey.db"))
ledger = os.open(os.path.join(FOLDER, "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@huey.task()
def nothing(value=0):
    os.write(ledger, b"%.6f\\n" % time.time())


@huey.task()
def moment():
    return time.time()
'''

PROCRASTINATE_TEXT = '''\
import asyncio
import os
import sys
import time

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

FOLDER = os.path.dirname(os.path.abspath(__file__))
ledger = os.open(os.path.join(FOLDER, "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with open(os.path.join(FOLDER, "address")) as file:
    address = file.read()
app = App(connector=(PsycopgConnector if __name__ == "__main__" else SyncPsycopgConnector)(conninfo=address))


@app.task(name="nothing")
async def nothing(value=0):
    os.write(ledger, b"%.6f\\n" % time.time())


async def work(concurrency):
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1])))
'''

LITEQUEUE_TEXT = '''\
import os
import time

from litequeue import LiteQueue

queue = LiteQueue("litequeue.db")
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    message = queue.pop()
    if message is None:
        time.sleep(0.05)
        continue
    os.write(ledger, b"%.6f\\n" % time.time())
    claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}
    queue.done(message.message_id, **claim)
'''

RAW_WORKER_TEXT = '''\
import os
import secrets
import sqlite3
import sys
import time

link = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=300)
link.execute("PRAGMA synchronous=NORMAL")
print("ready", flush=True)
sys.stdin.readline()
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
row = None
while True:
    link.execute("BEGIN IMMEDIATE")
    if row:
        link.execute("UPDATE task SET status=2, result='null', finished_at=? "
                     "WHERE id=? AND status=1 AND claim=?", (time.time(), row[0], claim))
    row = link.execute("SELECT id, function, arguments FROM task INDEXED BY task_claim "
                       "WHERE status=0 AND queue='default' "
                       "ORDER BY priority DESC, turn, id LIMIT 1").fetchone()
    if row:
        claim = secrets.token_hex(16)
        link.execute("UPDATE task SET status=1, claim=?, attempts=attempts+1, started_at=? "
                     "WHERE id=? AND status=0", (claim, time.time(), row[0]))
    link.execute("COMMIT")
    if not row:
        break
    os.write(ledger, b"%.6f\\n" % time.time())
'''

# The end of both: a class Handler, served.
SERVE_TEXT = '''\
    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_):
        pass


server = Server(("127.0.0.1", 0), Handler)
print("http://127.0.0.1:%d/" % server.server_address[1], flush=True)
server.serve_forever()
'''

BARE_SERVER_TEXT = '''\
import http.server
import json
import sqlite3
import sys
import threading

connection = sqlite3.connect("file:%s?mode=ro" % sys.argv[1], uri=True, check_same_thread=False)
connection.row_factory = sqlite3.Row
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20
    disable_nagle_algorithm = True

    def do_GET(self):
        with lock:
            rows = connection.execute(
                "SELECT id, owner_id, queue, function, arguments, status, reason, priority, "
                "run_at, max_retries, attempts, progress, message, created_at, started_at, "
                "finished_at FROM task ORDER BY id DESC LIMIT 50").fetchall()
        body = json.dumps([dict(row) for row in rows]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

''' + SERVE_TEXT

# The same application behind Python's http.server, tuned, without any care for clients.
BARE_APPLICATION_TEXT = '''\
import http.server
import io
import sys
from urllib.parse import unquote

from jobqueue import Application, JobQueue

application = Application(JobQueue(sys.argv[1]), "server")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20
    disable_nagle_algorithm = True

    def do_GET(self):
        path, _, query = self.path.partition("?")
        environ = {
            "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query, "REQUEST_URI": self.path, "REMOTE_ADDR": self.client_address[0],
            "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
            "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr,
            "wsgi.version": (1, 0), "wsgi.multithread": True, "wsgi.multiprocess": False,
            "wsgi.run_once": False}
        for name, value in self.headers.items():
            environ["HTTP_" + name.upper().replace("-", "_")] = value
        body = b"".join(application(environ, self.start))
        self.end_headers()
        self.wfile.write(body)

    def start(self, status, headers):
        self.send_response(int(status[:3]))
        for name, value in headers:
            self.send_header(name, value)

''' + SERVE_TEXT

COMMITTER_TEXT = '''\
import sqlite3
import sys
import time

connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("PRAGMA wal_autocheckpoint=0")
connection.execute("PRAGMA synchronous=NORMAL")
while True:
    connection.execute("UPDATE task SET message=? WHERE id=1", (str(time.time()),))
    time.sleep(1 / float(sys.argv[2]))
'''


# Figures ---------------------------------------------------------------------

def amount(value, unit):
    """A figure with its unit, in as many digits as make sense."""
    if value is None:
        return "-"
    if unit == "/s":
        return format(value, ",.0f") + unit
    return ("%.0f %s" if value >= 100 else "%.3g %s") % (value, unit)


class Goal:
    """What a figure should be: `ours` or the `ratio` to the anchor, at least or at most."""

    def __init__(self, what, sign, value, unit=""):
        self._what = what
        self._sign = sign
        self._value = value
        self._unit = unit

    def is_met(self, ours, ratio):
        """True if the figure is good enough."""
        value = ours if self._what == "ours" else ratio
        return value >= self._value if self._sign == ">=" else value <= self._value

    def __str__(self):
        if self._what == "ours":
            return "%s %s" % (self._sign, amount(self._value, self._unit))
        return "%s %gx" % (self._sign, self._value)


Figure = collections.namedtuple("Figure", "what ours unit anchor_name anchor goal",
                                defaults=("", None, None))


def cells(figure):
    """A Figure as the texts of its row."""
    ratio = figure.ours / figure.anchor if figure.anchor else None
    verdict = ""
    if figure.goal:
        met = figure.goal.is_met(figure.ours, ratio)
        verdict = "%s: %s" % (figure.goal, "yes" if met else "NO")
    anchor = "%s: %s" % (figure.anchor_name, amount(figure.anchor, figure.unit))
    return [figure.what, amount(figure.ours, figure.unit), anchor if figure.anchor else "-",
            "%.2f" % ratio if ratio else "-", verdict]


def table(figures):
    """All figures in columns."""
    rows = [["what", "ours", "anchor", "ratio", "wanted"]] + [cells(one) for one in figures]
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows)


def beside(what, unit, values, goals=None):
    """Figures of ours beside each anchor, or alone."""
    for name in [name for name in values if name != "ours"] or [""]:
        yield Figure(what, values["ours"], unit, name, values.get(name), (goals or {}).get(name))


def median(values):
    """The middle of numbers, or of each place of tuples."""
    if isinstance(values[0], tuple):
        return tuple(map(statistics.median, zip(*values)))
    return statistics.median(values)


def in_turns(rounds, actions):
    """The median of what each action returns; they take turns, so that noise meets all alike."""
    results = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            results[name].append(action())
    return {name: median(values) for name, values in results.items()}


def rate(count, action):
    """How many a second, if `action` does `count` of them."""
    began = time.perf_counter()
    action()
    return count / (time.perf_counter() - began)


def wait_until(condition, what, pause=0.02):
    """Wait for something that must come true."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("bench: %s took longer than %d s" % (what, PATIENCE_SECONDS))
        time.sleep(pause)


# Sites -----------------------------------------------------------------------

def users_of(queue):
    """Its users; another checkout may have them, with tokens and sessions, in one class."""
    return getattr(queue, "users", None) or queue.accounts


def add_user(queue, name, role):
    """Add a user with a password that nobody knows."""
    users = users_of(queue)
    add = getattr(users, "add", None) or users.add_user
    add(name, secrets.token_urlsafe(12), role)


class BenchSite(SiteCopy):
    """An installation that is used from Python, with workers at the same niceness as all else."""

    def __init__(self, source=ROOT, address=None):
        super().__init__(TASKS_TEXT, source=source)
        self.queue = self._link = None
        self._services = []
        self._address = address         # of a database on PostgreSQL, else it is a file
        if address:
            self.environment["JOBQUEUE_DATABASE"] = address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_services()
        self.close()
        self.stop()
        self.remove()

    def open(self, workers, journal="wal"):
        """Make the data folder with an admin; returns the JobQueue."""
        spec = importlib.util.spec_from_file_location("jobqueue", self.folder / "jobqueue.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if journal == "truncate":
            module.file_system = lambda path: "nfs4"
        ours = {name: value for name, value in self.environment.items() if name.startswith("JOBQUEUE_")}
        self.queue = module.JobQueue(self.data, environment=ours)
        add_user(self.queue, "admin", "admin")
        self.queue.settings.change({"NbMaxWorker": workers, "nice": 0})
        return self.queue

    def close(self):
        """Close the JobQueue."""
        for one in filter(None, (self.queue, self._link)):
            one.close()
        self.queue = self._link = None

    def start_services(self, count, places=()):
        """Start workers that stay, here or on machines, and wait until all have run something."""
        words = [[sys.executable, "worker.py", "--service", "--data", str(self.data)]] * count
        if places:
            words = [place.command([*words[0], "--data", self.folder / place.name], self.folder)
                     for place in (places * count)[:count]]
        self._services = [subprocess.Popen(one, cwd=self.folder, stdin=subprocess.DEVNULL,
                                           env=self.environment) for one in words]
        wait_until(lambda: self.number("SELECT count(*) FROM worker WHERE state='idle'") == count,
                   "starting workers")
        time.sleep(1 + 0.15 * count)    # for their runners
        self.queue.enqueue_many("nothing", [{}] * count * 5)
        self.wait_for_tasks()

    def end_services(self):
        """End those workers."""
        for process in self._services:
            process.terminate()
        for process in self._services:
            end_process(process)
        self._services = []

    def pause(self, paused):
        """Pause or resume the queue."""
        self.execute("UPDATE queue SET paused=%d" % paused)

    def wait_for_tasks(self):
        """Wait until nothing is pending or running."""
        wait_until(lambda: not self.number("SELECT count(*) FROM task WHERE status IN (0, 1)"),
                   "running all tasks", 0.1)

    def number(self, statement):
        """One number from the database."""
        return self.execute(statement)[0][0]

    def execute(self, *statement):
        """Rows of one statement on a connection of its own."""
        if self._address:
            self._link = self._link or postgres.Link(self._address)
            return self._link.execute(*statement)
        connection = sqlite3.connect(self.database, isolation_level=None, timeout=30)
        try:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            return connection.execute(*statement).fetchall()
        finally:
            connection.close()

    def bytes_at_rest(self):
        """`bytes_used` once all tasks are done and no worker is left."""
        self.wait_for_tasks()
        limit = self.queue.settings.get("NbMaxWorker")
        self.queue.settings.change({"NbMaxWorker": 0})
        wait_until(lambda: not self.number("SELECT count(*) FROM worker"), "ending workers")
        self.queue.settings.change({"NbMaxWorker": limit})
        return self.bytes_used()

    def bytes_used(self):
        """The size of the database file once its log is copied back."""
        busy = self.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        if busy:
            raise SystemExit("bench: somebody still holds the database")
        return self.database.stat().st_size


def finished_rows(count):
    """What differs between finished tasks."""
    start = time.time() - count
    for number in range(1, count + 1):
        status = {0: 3, 1: 4}.get(number % 50, 2)
        at = start + number
        yield ('{"value":%d}' % number, status, number, "%032x" % number, at, at + 0.1, at + 0.2)


def fill(database, count):
    """Insert finished tasks by SQL, in one transaction."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM task")
    connection.executemany(
        "INSERT INTO task (owner_id, queue, function, arguments, status, priority, turn, "
        "max_retries, retries_left, retry_delay, retry_backoff, timeout, on_crash, attempts, "
        "claim, worker_id, result, created_at, started_at, finished_at) VALUES "
        "(1, 'default', 'nothing', ?, ?, 0, ?, 0, 0, 60, 2, 3600, 'retry', 1, ?, 1, 'null', "
        "?, ?, ?)", finished_rows(count))
    connection.execute("COMMIT")
    connection.close()


def add_others(site, count):
    """Add beside finished tasks `count` each: scheduled, waiting, of a paused queue, of another owner."""
    add_user(site.queue, "other", "user")
    site.execute("INSERT INTO queue (name, paused, created_at) VALUES ('held', 1, 0)")
    tomorrow = time.time() + 86400
    for owner, queue, status, run_at in ((1, "default", 5, tomorrow), (1, "default", 6, None),
                                         (1, "held", 0, None), (2, "default", 0, None)):
        site.execute(
            "INSERT INTO task (owner_id, queue, function, arguments, status, priority, turn, run_at, "
            "max_retries, retries_left, retry_delay, retry_backoff, timeout, on_crash, created_at) "
            "SELECT ?, ?, function, arguments, ?, priority, coalesce(1000*?, 0)+id, ?+id/1000.0, "
            "0, 0, 60, 2, 3600, 'retry', created_at FROM task WHERE status IN (2, 3, 4) LIMIT ?",
            (owner, queue, status, run_at, run_at, count))
    site.execute("INSERT INTO task_after (task_id, after_id) SELECT id, id-? FROM task WHERE status=6",
                 (count,))
    site.bytes_used()


class Library:
    """Sites of one checkout, those with many finished tasks made when first asked for.

    `alone` leaves the anchors out and makes one round of each part.
    """

    def __init__(self, stack, source=ROOT, alone=False):
        self._stack = stack
        self._source = source
        self._sites = {}
        self._server = None
        self.alone = alone
        self.network = None             # with machines, which can reach the server

    def fresh(self, address=None):
        """A site without tasks."""
        return BenchSite(self._source, address)

    def server(self):
        """A PostgreSQL server that is as durable as usual; None where there can be none."""
        if not self._server and is_installed("psycopg") and postgres.programs():
            where = {}
            if not machines.missing():
                self.network = self._stack.enter_context(machines.Network(MACHINES))
                where["listen_addresses"] = self.network.address
            room = self._stack.enter_context(temporary_folder())
            room.chmod(0o755)
            self._server = postgres.Server(room / "pg", **DURABLE, **where).make()
            self._stack.callback(self._server.remove)
            with open(self._server.data / "pg_hba.conf", "a") as file:
                file.write("host all all 10.0.0.0/8 trust\n")
            self._server.start()
        return self._server

    @contextlib.contextmanager
    def base(self, over_network=False):
        """The address of a new database there."""
        name = "bench%s" % secrets.token_hex(4)
        self.server().ask("CREATE DATABASE %s TEMPLATE template0" % name)
        if over_network:
            yield "postgresql://%s@%s:5432/%s" % (postgres.NAME, self.network.address, name)
        else:
            yield postgres.with_path(self.server().address, name)
        self.server().ask("DROP DATABASE %s WITH (FORCE)" % name)

    def in_turns(self, rounds, ours, anchors=()):
        """The median of what each action returns, the anchors' among them unless ours are alone."""
        return in_turns(1, ours) if self.alone else in_turns(rounds, {**ours, **dict(anchors)})

    def site(self, count, others=0):
        """A stopped site with `count` finished tasks and so many others of each kind."""
        if (count, others) not in self._sites:
            site = self._stack.enter_context(self.fresh())
            site.open(workers=0).enqueue("nothing")
            fill(site.database, count)
            if others:
                add_others(site, others)
            site.bytes_used()
            self._sites[count, others] = site
        return self._sites[count, others]


@contextlib.contextmanager
def temporary_folder():
    """A folder that is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(command, **details):
    """A process that is ended in the end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **details)
    try:
        yield process
    finally:
        end_process(process)


def pss_megabytes(pid):
    """The memory of a process, shared pages divided among those who share them."""
    for line in Path("/proc/%d/smaps_rollup" % pid).read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return None


def children(pid):
    """The processes that a process started."""
    return [int(word) for path in Path("/proc/%d/task" % pid).glob("*/children")
            for word in path.read_text().split()]


# Raw -------------------------------------------------------------------------

class RawQueue:
    """The least that a durable queue in SQLite does."""

    def __init__(self, folder):
        self._connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, status INTEGER, "
                                 "priority INTEGER, data TEXT, created_at REAL, claim TEXT)")
        self._connection.execute("CREATE INDEX job_claim ON job (status, priority, id)")

    def add(self, count):
        """Add jobs, a transaction each."""
        for number in range(count):
            self._insert([number])

    def add_many(self, count):
        """Add jobs in one transaction."""
        self._insert(range(count))

    def _insert(self, numbers):
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            "INSERT INTO job (status, priority, data, created_at) VALUES (0, 0, ?, ?)",
            [('{"value":%d}' % number, time.time()) for number in numbers])
        self._connection.execute("COMMIT")


# Relatives -------------------------------------------------------------------

def is_installed(name):
    """True if a relative can be measured here."""
    return importlib.util.find_spec(name) is not None


def load_huey(folder):
    """The module with huey's functions, in its own folder."""
    path = folder / "huey_bench.py"
    path.write_text(HUEY_TEXT, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("huey_bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def huey_consumer(folder, workers):
    """huey's workers, as a process that is ended in the end."""
    return running([sys.executable, "-m", "huey.bin.huey_consumer", "huey_bench.huey",
                    "-w", str(workers), "-k", "process", "-q"], cwd=folder,
                   stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(folder)})


def rate_of_ledger(path, count):
    """Lines a second, once there are `count`."""
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count,
               "a relative's tasks", 0.2)
    times = sorted(map(float, path.read_text().split()))
    return (count - 1) / (times[-1] - times[0])


def drain_huey(count, workers):
    """Tasks a second from the first start to the last."""
    with temporary_folder() as folder:
        module = load_huey(folder)
        for number in range(count):
            module.nothing(number)
        with huey_consumer(folder, workers):
            return rate_of_ledger(folder / "ledger", count)


def drain_litequeue(count, workers):
    """Tasks a second from the first start to the last."""
    from litequeue import LiteQueue
    with temporary_folder() as folder, contextlib.ExitStack() as stack:
        queue = LiteQueue(folder / "litequeue.db")
        for number in range(count):
            queue.put('{"value":%d}' % number)
        queue.close()
        for _ in range(workers):
            stack.enter_context(running([sys.executable, "-c", LITEQUEUE_TEXT], cwd=folder))
        return rate_of_ledger(folder / "ledger", count)


@contextlib.contextmanager
def procrastinate(library):
    """(its folder, its module with an open app) on a new database."""
    with library.base() as address, temporary_folder() as folder:
        (folder / "address").write_text(address)
        path = folder / "procrastinate_bench.py"
        path.write_text(PROCRASTINATE_TEXT, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("procrastinate_bench", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with module.app.open():
            module.app.schema_manager.apply_schema()
            yield folder, module


@contextlib.contextmanager
def procrastinate_workers(folder, workers, concurrency=1):
    """Its workers, as processes that are ended in the end."""
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(running([sys.executable, "procrastinate_bench.py", str(concurrency)],
                                        cwd=folder, stderr=subprocess.DEVNULL))
        yield


def drain_procrastinate(library, count, workers, concurrency=1):
    """Tasks a second from the first start to the last."""
    with procrastinate(library) as (folder, module):
        module.nothing.batch_defer(*({"value": number} for number in range(count)))
        with procrastinate_workers(folder, workers, concurrency):
            return rate_of_ledger(folder / "ledger", count)


def add_to_procrastinate(library, count, is_bulk):
    """Adds a second, one by one or at once."""
    with procrastinate(library) as (_, module):
        module.nothing.defer(value=0)
        many = [{"value": number} for number in range(count)]
        if is_bulk:
            return rate(count, lambda: module.nothing.batch_defer(*many))
        return rate(count, lambda: [module.nothing.defer(**one) for one in many])


def pick_up_by_procrastinate(library, count):
    """Milliseconds until one idle worker of it began a task."""
    with procrastinate(library) as (folder, module), procrastinate_workers(folder, 1):
        ledger, asked = folder / "ledger", iter(range(1, count + 2))

        def ask():
            number = next(asked)
            module.nothing.defer(value=number)
            wait_until(lambda: ledger.read_bytes().count(b"\n") >= number, "its pick-up", 0.0005)
            return float(ledger.read_text().split()[-1])

        ask()
        return pickups(count, ask)


def relatives_draining(count, workers):
    """What draining means to those that are installed."""
    drains = {"huey": drain_huey, "litequeue": drain_litequeue}
    return {name: lambda drain=drain: drain(count, workers)
            for name, drain in drains.items() if is_installed(name)}


# Hammer ----------------------------------------------------------------------

def content_length(head):
    """The length of the body that follows."""
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])


class Hammer:
    """Asks for the same again and again over many connections, from a process of its own."""

    def __init__(self, host, port, connections, seconds, request):
        self._request = request
        self._until = time.perf_counter() + seconds
        self._selector = selectors.DefaultSelector()
        self._waits = []
        for _ in range(connections):
            link = socket.create_connection((host, port))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(link, selectors.EVENT_READ, [0.0, b""])

    def run(self):
        """Requests a second, p50, p95 and p99 in seconds."""
        began = time.perf_counter()
        for key in list(self._selector.get_map().values()):
            self._ask(key.fileobj, key.data)
        while time.perf_counter() < self._until:
            for key, _ in self._selector.select(1.0):
                self._hear(key.fileobj, key.data)
        seconds = time.perf_counter() - began
        return [len(self._waits) / seconds,
                *(percentile(self._waits, share) for share in (0.5, 0.95, 0.99))]

    def _ask(self, link, state):
        state[:] = [time.perf_counter(), b""]
        link.sendall(self._request)

    def _hear(self, link, state):
        state[1] += link.recv(262144)
        head, found, body = state[1].partition(b"\r\n\r\n")
        if not found or len(body) < content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit("bench: the server answered %r" % head[:200])
        self._waits.append(time.perf_counter() - state[0])
        self._ask(link, state)


def hammer(server, path, cookie, connections, seconds):
    """(requests a second, p50, p95, p99) of a server."""
    address = urlsplit(server)
    request = "GET /%s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (
        path, address.netloc, "Cookie: %s\r\n" % cookie if cookie else "")
    answer = subprocess.run(
        [sys.executable, __file__, "--hammer", address.hostname, str(address.port),
         str(connections), str(seconds)], input=request.encode("ascii"), stdout=subprocess.PIPE,
        check=True)
    return json.loads(answer.stdout)


def run_hammer(words):
    """The other side of `hammer`, in its own process."""
    host, port, connections, seconds = words
    request = sys.stdin.buffer.read()
    print(json.dumps(Hammer(host, int(port), int(connections), float(seconds), request).run()))


# Parts -----------------------------------------------------------------------
#
# Each takes (sizes, library) and yields Figures.

def relatives_adding(folder, count):
    """What adding means to those that are installed."""
    actions = {}
    if is_installed("huey"):
        nothing = load_huey(folder).nothing
        actions["huey"] = lambda: [nothing(number) for number in range(count)]
    if is_installed("litequeue"):
        from litequeue import LiteQueue
        queue = LiteQueue(folder / "litequeue.db")
        actions["litequeue (not durable)"] = lambda: [
            queue.put('{"value":%d}' % number) for number in range(count)]
    return actions


def add_bare_rows(queue, count):
    """What our tables and indexes cost by themselves: nothing is checked, nobody takes turns."""
    link = sqlite3.connect(queue.database.path, isolation_level=None)
    link.execute("PRAGMA wal_autocheckpoint=0")
    link.execute("PRAGMA synchronous=FULL")
    names = [row[1] for row in link.execute("PRAGMA table_info(task)") if row[1] != "id"]
    values = link.execute("SELECT %s FROM task LIMIT 1" % ", ".join(names)).fetchone()
    insert = "INSERT INTO task (%s) VALUES (%s)" % (", ".join(names), ", ".join("?" * len(names)))
    for _ in range(count):
        link.execute("BEGIN IMMEDIATE")
        task_id = link.execute(insert, values).lastrowid
        link.execute("INSERT INTO activity (at, event, task_id, owner_id, function, queue) "
                     "VALUES (?, 'added', ?, 1, 'nothing', 'default')", (time.time(), task_id))
        link.execute("COMMIT")
    link.close()


def measure_adds(sizes, library):
    """Adding, one by one and in bulk, through the Python interface."""
    with library.fresh() as site, temporary_folder() as folder:
        queue, raw = site.open(workers=0), RawQueue(folder)
        queue.enqueue("nothing")
        anchors = {"raw": lambda: raw.add(sizes.adds),
                   "raw, the same rows": lambda: add_bare_rows(queue, sizes.adds),
                   **relatives_adding(folder, sizes.adds)}
        rates = library.in_turns(
            sizes.rounds,
            {"ours": lambda: rate(sizes.adds, lambda: [queue.enqueue("nothing", {"value": number})
                                                       for number in range(sizes.adds)])},
            {name: lambda action=action: rate(sizes.adds, action) for name, action in anchors.items()})
        yield from beside("add one by one, durable", "/s", rates, {"huey": Goal("ratio", ">=", 1)})
        many = [{"value": number} for number in range(sizes.bulk)]
        rates = library.in_turns(
            sizes.rounds,
            {"ours": lambda: rate(sizes.bulk, lambda: queue.enqueue_many("nothing", many))},
            {"raw": lambda: rate(sizes.bulk, lambda: raw.add_many(sizes.bulk))})
        goal = Goal("ours", ">=", 50_000, "/s")
        yield from beside("add in bulk, 10,000 at once", "/s", rates, {"raw": goal})


def drain_ours(library, count, workers, journal="wal", address=None, function="noted", places=()):
    """Tasks a second from the first start to the last, as their ledger has it."""
    with library.fresh(address) as site:
        queue = site.open(workers, journal)
        site.start_services(workers, places)
        site.pause(True)
        first = queue.enqueue_many(function, [{}] * count)[0]
        site.pause(False)
        site.wait_for_tasks()
        ran = site.number("SELECT count(*) FROM task WHERE status=2 AND id>=%d" % first)
        if ran != count:
            raise SystemExit("bench: %d of %d tasks succeeded" % (ran, count))
        return rate_of_ledger(site.folder / "ledger", count)


def drain_raw(library, count, workers):
    """Tasks a second that bare loops reach on our tables, from the first start to the last.

    Each finishes a task, claims the next in the same transaction and writes its line: no history,
    no lease, no runner.
    """
    with library.fresh() as site, contextlib.ExitStack() as stack:
        site.open(workers=0).enqueue_many("noted", [{"value": n} for n in range(count)])
        ledger = site.folder / "raw-ledger"
        loops = [stack.enter_context(subprocess.Popen(
            [sys.executable, "-c", RAW_WORKER_TEXT, str(site.database), str(ledger)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)) for _ in range(workers)]
        for loop in loops:
            loop.stdout.readline()
        for loop in loops:
            loop.stdin.write("go\n")
            loop.stdin.flush()
        for loop in loops:
            loop.wait()
        ran = site.number("SELECT count(*) FROM task WHERE status=2")
        if ran != count:
            raise SystemExit("bench: bare loops ran %d of %d tasks" % (ran, count))
        return rate_of_ledger(ledger, count)


def measure_drain(sizes, library):
    """Running tasks that write a line, with workers that are up."""
    goals = {2: {"huey": Goal("ratio", ">=", 3), "litequeue": Goal("ratio", ">=", 2),
                 "raw, the same tables": Goal("ratio", ">=", 0.8)},
             20: {"raw, the same tables": Goal("ratio", ">=", 0.4)}}
    for workers in (2, 20):
        rates = library.in_turns(
            3, {"ours": lambda workers=workers: drain_ours(library, sizes.drain, workers)},
            {"raw, the same tables": lambda workers=workers: drain_raw(library, sizes.drain, workers),
             **relatives_draining(sizes.drain, workers)})
        yield from beside("drain with %d workers" % workers, "/s", rates, goals[workers])


def add_ours(library, count, journal):
    """Adds a second, one by one."""
    with library.fresh() as site:
        queue = site.open(0, journal)
        queue.enqueue("nothing")
        return rate(count, lambda: [queue.enqueue("nothing", {"value": n}) for n in range(count)])


def measure_journal(sizes, library):
    """A rollback journal, as on a network file system, beside a log, both on this disk."""
    actions = {"add one by one": lambda journal: add_ours(library, sizes.adds, journal)}
    for workers in (2, 8):
        actions["drain with %d workers" % workers] = (
            lambda journal, workers=workers: drain_ours(library, sizes.drain // 2, workers, journal))
    for what, action in actions.items():
        rates = library.in_turns(3, {journal: lambda action=action, journal=journal: action(journal)
                             for journal in ("truncate", "wal")})
        yield Figure(what + ", no log", rates["truncate"], "/s", "with one", rates["wal"])


def pickups(count, ask):
    """Milliseconds until a function began that says when it did."""
    waits = []
    for _ in range(count):
        time.sleep(random.uniform(0.2, 0.8))
        began = time.time()
        waits.append((ask() - began) * 1000)
    return waits


def measure_pickup(sizes, library):
    """From the call that adds a task to its first line, after a pause."""
    with library.fresh() as site:
        queue = site.open(workers=1)
        site.start_services(1)
        ours = pickups(sizes.pickups, lambda: queue.enqueue("moment").wait().result)
    anchors = []
    if is_installed("huey") and not library.alone:
        with temporary_folder() as folder:
            module = load_huey(folder)
            with huey_consumer(folder, 1):
                module.moment()(blocking=True, timeout=PATIENCE_SECONDS)
                anchors = pickups(sizes.pickups, lambda: module.moment()(blocking=True))
    for share, goal in ((0.5, Goal("ours", "<=", 5, "ms")), (0.95, None)):
        yield Figure("pick-up when idle, p%d" % (share * 100), percentile(ours, share), "ms",
                     "huey", percentile(anchors, share) if anchors else None, goal)


def python_start():
    """Milliseconds that a bare interpreter takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - began) * 1000


def processor_seconds():
    """What all our ended processes took so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_times(arguments, words=None, **options):
    """Milliseconds of a whole process: (passed, of processor); its output must begin with `words`."""
    began, used = time.perf_counter(), processor_seconds()
    done = subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)
    seconds = time.perf_counter() - began, processor_seconds() - used
    if words and not done.stdout.startswith(words):
        raise SystemExit("bench: the answer is %.200r" % done.stdout)
    return tuple(one * 1000 for one in seconds)


def measure_cgi(sizes, library):
    """The page's list as a CGI request: a whole process each, without a web server."""
    with library.fresh() as site:
        queue = site.open(workers=0)
        queue.enqueue_many("nothing", [{"value": number} for number in range(50)])
        with list_server(site) as admin:
            cookie = admin.cookie
        shutil.copy(site.folder / "static" / "hosts" / "jobqueue.cgi", site.folder)
        environment = {
            "PATH": os.defpath, "GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "/jq/jobqueue.cgi", "PATH_INFO": "/api/tasks", "QUERY_STRING": "",
            "REQUEST_URI": "/jq/api/tasks", "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1",
            "HTTP_COOKIE": cookie, "JOBQUEUE_DATA": str(site.data)}
        ask = dict(words=b"Status: 200", env=environment, cwd=site.folder)
        code = "import sqlite3, json"

        def some(*words, **options):
            return lambda: median([run_times([sys.executable, *words], **options) for _ in range(5)])

        medians = library.in_turns(
            sizes.requests // 5, {"ours": some("jobqueue.cgi", **ask), "script": some("jobqueue.py", **ask)},
            {"python": some("-c", code, env=environment)})
        for place, (more, worst) in enumerate((("", 2.5), (", processor", None))):
            anchor = "python3 -c '%s'" % code, medians["python"][place] if "python" in medians else None
            goal = Goal("ratio", "<=", worst) if worst and anchor[1] else None
            yield Figure("list by jobqueue.cgi" + more, medians["ours"][place], "ms", *anchor, goal)
            yield Figure("list by jobqueue.py as CGI script" + more, medians["script"][place], "ms", *anchor)


def huey_cold_start():
    """Milliseconds from starting huey's consumer to the start of the first task."""
    with temporary_folder() as folder:
        load_huey(folder).nothing()
        began = time.time()
        with huey_consumer(folder, 1):
            ledger = folder / "ledger"
            wait_until(lambda: ledger.read_bytes().endswith(b"\n"), "huey's start", 0.005)
            return (float(ledger.read_text()) - began) * 1000


def cold_start(site, admin):
    """Milliseconds from the request to the result with no worker up."""
    admin.send("PATCH", "api/settings", {"NbMaxWorker": 0, "nice": 0}).expect(200)
    wait_until(lambda: not site.number("SELECT count(*) FROM worker"), "ending workers")
    admin.send("PATCH", "api/settings", {"NbMaxWorker": 2}).expect(200)
    began = time.perf_counter()
    path = "api/tasks/%d" % admin.send(
        "POST", "api/tasks", {"function": "noted"}).expect(201)["id"]
    wait_until(lambda: admin.send("GET", path).expect(200)["status"] == "succeeded",
               "a cold start", 0.005)
    return (time.perf_counter() - began) * 1000


def measure_cold(sizes, library):
    """From adding over HTTP to the result while no worker runs."""
    with library.fresh() as site:
        site.start()
        admin = site.set_up()
        admin.send("GET", "api/functions").expect(200)
        anchors = {"python3 -c pass": python_start}
        if is_installed("huey"):
            anchors["huey consumer"] = huey_cold_start
        medians = library.in_turns(sizes.colds, {"ours": lambda: cold_start(site, admin)}, anchors)
        site.stop(admin)
        yield from beside("cold start to result", "ms", medians)


def bare_python():
    """(name, memory) of an interpreter that only imported what everything here needs."""
    code = "import json, sqlite3, time; print(flush=True); time.sleep(60)"
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        return "python3 with json, sqlite3", pss_megabytes(process.pid)


def measure_memory(_, library):
    """Memory of server, worker and runner after some use."""
    with library.fresh() as site:
        site.start()
        admin = site.set_up()
        for _ in range(20):
            admin.send("POST", "api/tasks", {"function": "nothing"}).expect(201)
            admin.send("GET", LIST_PATH).expect(200)
        site.wait_for_tasks()
        admin.send("PATCH", "api/settings", {"NbMaxWorker": 1}).expect(200)
        wait_until(lambda: len(site.worker_pids()) == 1, "ending all workers but one")
        worker = site.worker_pids()[0]
        parts = [pss_megabytes(worker), sum(map(pss_megabytes, children(worker)))]
        yield Figure("memory of the server", pss_megabytes(site.process.pid), "MB", *bare_python(),
                     Goal("ours", "<=", 25, "MB"))
        yield Figure("memory of a worker", parts[0], "MB")
        yield Figure("memory of a runner", parts[1], "MB")
        yield Figure("memory of worker and runner", sum(parts), "MB", *bare_python(),
                     Goal("ours", "<=", 25, "MB"))
        site.stop(admin)


def spent(pid):
    """(milliseconds of processor, bytes written) of a process so far (Linux)."""
    times = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[11:13]
    written = re.search(r"wchar: (\d+)", Path("/proc/%d/io" % pid).read_text())
    return sum(map(int, times)) * 1000 / os.sysconf("SC_CLK_TCK"), int(written[1])


def measure_asleep(sizes, library):
    """What a minute of a worker costs that sleeps until a schedule is due, its runner included."""
    with library.fresh() as site:
        queue = site.open(workers=1)
        queue.settings.change({"stay_asleep": "yes", "linger": 0})
        owner = users_of(queue).owner()["id"]
        queue.schedules.add({"function": "nothing", "rule": "@yearly"}, owner)
        queue.start_workers()           # as every door does
        wait_until(lambda: queue.database.value("SELECT pid FROM worker WHERE state='idle'"), "a worker")
        time.sleep(ASLEEP_AFTER_SECONDS)
        worker = queue.database.value("SELECT pid FROM worker")
        pids = [worker, *children(worker)]
        before = [sum(part) for part in zip(*map(spent, pids))]
        time.sleep(sizes.asleep_seconds)
        after = [sum(part) for part in zip(*map(spent, pids))]
        cpu, written = ((late - early) * 60 / sizes.asleep_seconds for early, late in zip(before, after))
        yield Figure("asleep for a minute, processor", cpu, "ms", goal=Goal("ours", "<=", 300, "ms"))
        yield Figure("asleep for a minute, written", written / 1000, "kB", goal=Goal("ours", "<=", 100, "kB"))


def measure_disk(sizes, library):
    """Bytes that a finished small task takes in the database, its history included."""
    with library.fresh() as site:
        queue = site.open(workers=2)
        queue.enqueue("nothing")
        before = site.bytes_at_rest()
        for _ in range(sizes.finished // 2000):
            queue.enqueue_many("nothing", [{"value": number} for number in range(2000)])
        used = site.bytes_at_rest() - before
        yield Figure("a finished task on disk", used / sizes.finished, "bytes",
                     goal=Goal("ours", "<=", 800, "bytes"))


def claim_cost(site, count):
    """Median microseconds of one claim, its transaction begun already."""
    queue, costs = site.queue, []
    now = time.time()
    for _ in range(count):
        with queue.database.transaction(durable=False) as transaction:
            began = time.perf_counter()
            row = queue.claims.claim(transaction, 1, now)[0]
            costs.append(time.perf_counter() - began)
            transaction.run("UPDATE task SET status=2 WHERE id=?", (row["id"],))
    return statistics.median(costs) * 1e6


def measure_claim(sizes, library):
    """Claiming a task while few or many finished ones are in the table."""
    sites = {count: library.site(count) for count in (sizes.few, sizes.many)}
    for site in sites.values():
        site.queue.enqueue_many("nothing", [{}] * sizes.claims * sizes.rounds)
    costs = library.in_turns(sizes.rounds, {
        count: lambda site=site: claim_cost(site, sizes.claims) for count, site in sites.items()})
    yield Figure("claim with %s finished" % format(sizes.many, ","), costs[sizes.many], "us",
                 "with %s" % format(sizes.few, ","), costs[sizes.few], Goal("ratio", "<=", 1.3))


def functions_on_the_way(application, environ):
    """(calls, distinct) of the program's named functions while a request is answered."""
    program, called = application.__call__.__func__.__code__.co_filename, []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename == program and not code.co_name.startswith("<"):
            called.append((code.co_name, code.co_firstlineno))

    sys.setprofile(note)
    try:
        application(environ, lambda *_: None)
    finally:
        sys.setprofile(None)
    return len(called), len(set(called))


def statements_under_the_lock(queue, application, environ):
    """What the writing connection is asked while a request is answered, without BEGIN and COMMIT."""
    link, seen = queue.database._writer._link, []
    link.set_trace_callback(seen.append)
    try:
        application(environ, lambda *_: None)
    finally:
        link.set_trace_callback(None)
    return [words for words in seen if not words.startswith(("BEGIN", "COMMIT", "PRAGMA", "--"))]


def measure_path(_, library):
    """How many functions one added task passes (POST /api/tasks), and a look at it (GET), nothing being
    due or started."""
    with library.fresh() as site:
        queue = site.open(workers=0)
        make = queue.add.__func__.__globals__["Application"]
        users = users_of(queue)
        make_token = getattr(users, "add_token", None) or queue.tokens.add
        token = make_token(users.find("admin")["id"], "bench")["token"]
        body = b'{"function": "nothing", "arguments": {"value": 1}}'
        application = make(queue)

        def add():
            return {"REQUEST_METHOD": "POST", "PATH_INFO": "/api/tasks", "HTTP_X_API_KEY": token,
                    "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)),
                    "wsgi.input": io.BytesIO(body)}

        look = {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/tasks/1", "HTTP_X_API_KEY": token}
        for _ in range(3):              # the first ones read tasks.py and tick
            calls, distinct = functions_on_the_way(application, add())
        statements = statements_under_the_lock(queue, application, add())
        for _ in range(3):              # the first one makes a plan
            looks, _ = functions_on_the_way(application, look)
    yield Figure("functions that one added task calls", calls, "", goal=Goal("ours", "<=", 160))
    yield Figure("... distinct ones", distinct, "", goal=Goal("ours", "<=", 90))
    yield Figure("... statements under the write lock", len(statements), "", goal=Goal("ours", "<=", 5))
    yield Figure("functions that a pending task's GET calls", looks, "", goal=Goal("ours", "<=", 250))


def measure_blocked(sizes, library):
    """Claiming a task beside all kinds of others, and in a table that holds nothing else."""
    full = library.site(sizes.many, sizes.many // 4)
    with library.fresh() as empty:
        empty.open(workers=0)
        for site in (empty, full):
            site.queue.enqueue_many("nothing", [{}] * sizes.claims * sizes.rounds)
        costs = library.in_turns(sizes.rounds, {
            site: lambda site=site: claim_cost(site, sizes.claims) for site in (empty, full)})
        yield Figure("claim with %s finished and as many others" % format(sizes.many, ","),
                     costs[full], "us", "empty table", costs[empty], Goal("ratio", "<=", 1.5))


@contextlib.contextmanager
def list_server(site):
    """A server on a site from the library; a logged-in Client of it."""
    password = secrets.token_urlsafe(12)
    users = users_of(site.queue)
    change = getattr(users, "change", None) or users.change_user
    change("admin", password=password)
    site.start()
    browser = Client(site.server)
    try:
        yield browser.log_in("admin", password)
    finally:
        browser.close()
        end_process(site.process)


@contextlib.contextmanager
def bare_server(database):
    """The address of a bare server on a database."""
    with running([sys.executable, "-c", BARE_SERVER_TEXT, str(database)],
                 stdout=subprocess.PIPE) as process:
        yield process.stdout.readline().decode("ascii").strip()


def compare_lists(sizes, count, admin, bare, connections, how=""):
    """Rate and waits of both servers, or of ours alone, at one number of connections."""
    requests = [(admin.server, LIST_PATH, admin.cookie)] + [(bare, "", None)] * bool(bare)
    runs = [[hammer(*request, connections, sizes.hammer_seconds) for request in requests]
            for _ in range(2)]
    ours, theirs = [*map(max, zip(*runs)), [None] * 3][:2]
    what = "list, %s tasks, %d connections%s" % (format(count, ","), connections, how)
    goal = Goal("ratio", ">=", 0.7) if bare and connections == 50 and not how else None
    yield Figure(what, ours[0], "/s", "bare server", theirs[0], goal)
    yield Figure(what + ", p50", ours[1] * 1000, "ms", "bare server", bare and theirs[1] * 1000)
    goal = Goal("ours", "<=", 100, "ms") if count == sizes.many else None
    yield Figure(what + ", p95", ours[2] * 1000, "ms", "bare server", bare and theirs[2] * 1000,
                 goal)


def measure_list(sizes, library):
    """The page's list over HTTP, beside a bare server that does one query."""
    for count in (sizes.few, sizes.many):
        site = library.site(count)
        without = contextlib.nullcontext()
        with list_server(site) as admin, without if library.alone else bare_server(site.database) as bare:
            for connections in CONNECTIONS:
                yield from compare_lists(sizes, count, admin, bare, connections)
            with running([sys.executable, "-c", COMMITTER_TEXT, str(site.database),
                          str(COMMITS_PER_SECOND)]):
                yield from compare_lists(sizes, count, admin, bare, 50, ", changing")


@contextlib.contextmanager
def slow_clients(server, count):
    """So many connections, each of which sends a byte of its head every second."""
    address, over = urlsplit(server), threading.Event()
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection((address.hostname, address.port)))
                 for _ in range(count)]

        def drip(text=b"x"):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(text)

        def go_on():
            while not over.wait(1):
                drip()

        drip(b"GET / HTTP/1.1\r\nX: ")
        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def measure_server(sizes, library):
    """The built-in server beside a bare one with the same application, and beside slow clients."""
    site = library.site(sizes.few)
    command = [sys.executable, "-c", BARE_APPLICATION_TEXT, str(site.data)]
    with list_server(site) as admin:
        site_pid = site.process.pid
        yield Figure("server, memory idle", pss_megabytes(site_pid), "MB",
                     goal=Goal("ours", "<=", 25, "MB"))
        with running(command, cwd=site.folder, stdout=subprocess.PIPE) as process:
            bare = process.stdout.readline().decode("ascii").strip()
            for connections in CONNECTIONS:
                rates = [max(hammer(server, LIST_PATH, admin.cookie, connections,
                                    sizes.hammer_seconds)[0] for _ in range(2))
                         for server in (admin.server, bare)]
                what = "server, list, %d connections" % connections
                yield Figure(what, rates[0], "/s", "bare", rates[1], Goal("ratio", ">=", 0.9))
                yield Figure(what + ", bare", rates[1], "/s")
        with slow_clients(admin.server, SLOW_CLIENTS):
            waits = hammer(admin.server, LIST_PATH, admin.cookie, 1, sizes.hammer_seconds)
            yield Figure("server, p99 beside %d slow clients" % SLOW_CLIENTS, waits[3] * 1000, "ms",
                         goal=Goal("ours", "<=", 100, "ms"))
            yield Figure("server, memory beside them", pss_megabytes(site_pid), "MB")


def peak_megabytes(pid):
    """The most memory that a process has held so far."""
    text = Path("/proc/%d/status" % pid).read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024


def send_lines(admin, body):
    """Add a task for each line of the body; how many there were."""
    browser = admin.twin()
    browser.content_type = "application/x-ndjson"
    try:
        return browser.send("POST", "api/tasks", body).expect(201)["created"]
    finally:
        browser.close()


def delete_all(admin, count):
    """Delete all tasks, portion by portion, as the page does; how many there were."""
    browser, asked, done = admin.twin(), {"expected_count": count}, 0
    while asked:
        answer = browser.send("POST", "api/tasks/actions", {
            "action": "delete", "filter": {}, **asked}).expect(200)
        done += answer["done"]
        asked = answer["continue"] and {"continue": answer["continue"]}
    browser.close()
    return done


def claim_one(queue):
    """Claim a task as a worker does."""
    with queue.database.transaction(durable=False) as transaction:
        queue.claims.claim(transaction, 1, time.time())


def meanwhile(admin, queue, action):
    """(seconds of `action`, what it returned, the longest wait of another's add, claim and list)."""
    waits, answers = [], []
    thread = threading.Thread(target=lambda: answers.append(action()))
    began = time.perf_counter()
    thread.start()
    while thread.is_alive():
        asked = time.perf_counter()
        admin.send("POST", "api/tasks", {"function": "nothing"}).expect(201)
        claim_one(queue)
        admin.send("GET", LIST_PATH).expect(200)
        waits.append(time.perf_counter() - asked)
        time.sleep(0.01)
    return time.perf_counter() - began, answers[0], max(waits)


def measure_many(sizes, library):
    """Very many tasks in one request, and deleted again, while somebody else adds and looks."""
    body = "".join('{"function":"nothing","arguments":{"value":%d}}\n' % number
                   for number in range(sizes.lines))
    what = "%s lines over HTTP" % format(sizes.lines, ",")
    with library.fresh() as site:
        queue = site.open(workers=0)
        with list_server(site) as admin:
            admin.send("POST", "api/tasks", {"function": "nothing"}).expect(201)
            before = peak_megabytes(site.process.pid)
            seconds, count, worst = meanwhile(admin, queue, lambda: send_lines(admin, body))
            yield Figure(what, count / seconds, "/s", goal=Goal("ours", ">=", 10_000, "/s"))
            yield Figure(what + ", another's longest add, claim and list", worst, "s",
                         goal=Goal("ours", "<=", 5, "s"))
            yield Figure(what + ", memory of the server above the usual",
                         peak_megabytes(site.process.pid) - before, "MB", goal=Goal("ours", "<=", 100, "MB"))
            there = site.number("SELECT count(*) FROM task")
            seconds, count, worst = meanwhile(admin, queue, lambda: delete_all(admin, there))
            yield Figure("delete %s" % format(there, ","), count / seconds, "/s")
            yield Figure("delete them, another's longest add, claim and list", worst, "s",
                         goal=Goal("ours", "<=", 1, "s"))


def measure_search(sizes, library):
    """The worst search of a large table, again and again, and what others wait meanwhile."""
    text, waits, seconds = "a" * 199 + "b", [], []
    with library.fresh() as site:
        site.open(workers=0).enqueue("nothing")
        fill(site.database, sizes.lines)
        with contextlib.closing(sqlite3.connect(site.database)) as link, link:
            link.execute("UPDATE task SET arguments=? WHERE id>(SELECT max(id) FROM task)-1000",
                         (json.dumps({"text": "a" * 199_000}),))
        with list_server(site) as admin:
            other = admin.twin()

            def search():
                for number in range(20):
                    began = time.perf_counter()
                    other.send("GET", "api/tasks?counts=1&q=" + text[number:]).expect(200)
                    seconds.append(time.perf_counter() - began)

            thread = threading.Thread(target=search)
            thread.start()
            while thread.is_alive():
                began = time.perf_counter()
                admin.send("POST", "api/tasks", {"function": "nothing", "delay": 9999}).expect(201)
                waits.append(time.perf_counter() - began)
                time.sleep(0.01)
            other.close()
    what = "worst search of %s" % format(sizes.lines, ",")
    yield Figure(what, max(seconds), "s", goal=Goal("ours", "<=", 0.5, "s"))
    yield Figure(what + ", p99 of others' adds", percentile(waits, 0.99) * 1000, "ms",
                 goal=Goal("ours", "<=", 100, "ms"))


def measure_overview(sizes, library):
    """What the page shows first; something is committed before each look, so that none is kept."""
    site, waits = library.site(sizes.many), []
    with list_server(site) as admin:
        for _ in range(sizes.requests):
            admin.send("POST", "api/tasks", {"function": "nothing", "delay": 9999}).expect(201)
            began = time.perf_counter()
            admin.send("GET", "api/overview").expect(200)
            waits.append(time.perf_counter() - began)
    what = "overview, %s tasks" % format(sizes.many, ",")
    yield Figure(what + ", p50", percentile(waits, 0.5) * 1000, "ms")
    yield Figure(what + ", p95", percentile(waits, 0.95) * 1000, "ms",
                 goal=Goal("ours", "<=", 50, "ms"))


# Folds a history and prints, as JSON, its seconds of processor time, and those of the slowest of
# several answers over a month and a year. argv: the data folder, how many tasks in how many days.
FOLDING_TEXT = """
import json, sys, time
import jobqueue
queue = jobqueue.JobQueue(sys.argv[1])
count, days, end = int(sys.argv[2]), float(sys.argv[3]), time.time()
blank = dict.fromkeys("worker_id waited seconds service cpu_seconds peak_memory".split())
def rows():
    for n in range(count):
        at = end - days * 86400 * (1 - n / count)
        task = {**blank, "task_id": n, "owner_id": 1, "function": "f%d" % (n % 5), "queue": "default"}
        yield {**task, "at": at, "event": "added"}
        yield {**task, "at": at + 1, "event": "started", "worker_id": 1, "waited": n % 7 / 10}
        yield {**task, "at": at + 2, "event": "succeeded", "worker_id": 1, "seconds": n % 13 / 10,
               "service": 1.5, "cpu_seconds": 0.1, "peak_memory": 10 ** 7}
with queue.database.transaction() as transaction:
    transaction.insert_all("activity", rows())
def spent(action, times=1):
    most = 0
    for _ in range(times):
        began = time.process_time()
        action()
        most = max(most, time.process_time() - began)
    return most
def fold():
    while queue.rollup.fold():
        pass
def read(days, step):
    return lambda: queue.metrics.read(
        *jobqueue.whole_steps(end - days * 86400, end, step), step, lambda *_: True)
print(json.dumps([spent(fold), spent(read(30, "6h"), 20), spent(read(400, "day"), 20)]))
"""


def fold_ours(library, count, days):
    """Seconds of processor time: to fold so many tasks, and to tell a month and a year of them."""
    with library.fresh() as site:
        site.open(workers=0)
        return json.loads(subprocess.run(
            [sys.executable, "-c", FOLDING_TEXT, str(site.data), str(count), str(days)],
            cwd=site.folder, stdout=subprocess.PIPE, check=True).stdout)


def measure_fold(sizes, library):
    """What the figures cost: the tick that folds the activity, and whoever asks for them."""
    rows = sizes.many // 3 * 3
    folded, month, year = fold_ours(library, rows // 3, 90)
    yield Figure("folding %s rows of 90 days" % format(rows, ","), folded, "s")
    yield Figure("figures of 30 days, slowest", month * 1000, "ms", goal=Goal("ours", "<=", 50, "ms"))
    yield Figure("figures of 400 days, slowest", year * 1000, "ms", goal=Goal("ours", "<=", 50, "ms"))
    count, before = sizes.drain, resource.getrusage(resource.RUSAGE_CHILDREN)
    drain_ours(library, count, 2)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    drained = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    folded, _, _ = fold_ours(library, count, 0.01)
    yield Figure("folding what a drain leaves, of its processor time", folded, "s", "drain", drained,
                 Goal("ratio", "<=", 0.03))


def measure_flood(sizes, library):
    """How long tasks wait of which a thousand a second are added, while two workers run them."""
    for together in (1, 10):
        yield from flood(library, sizes.flood_seconds, together)


def flood(library, seconds, together):
    """The same with so many tasks in each call."""
    with library.fresh() as site:
        queue = site.open(workers=2)
        site.start_services(2)
        before = site.number("SELECT max(id) FROM task")
        count, began = FLOOD_PER_SECOND * seconds, time.monotonic()
        for number in range(0, count, together):
            time.sleep(max(0, began + number / FLOOD_PER_SECOND - time.monotonic()))
            queue.enqueue_many("nothing", [{"value": number}] * together)
        rate = count / (time.monotonic() - began)
        site.wait_for_tasks()
        (ran, mean, worst), = site.execute(
            "SELECT sum(event='succeeded'), avg(waited), max(waited) FROM activity WHERE task_id>?",
            (before,))
        if ran != count:
            raise SystemExit("bench: %d of %d tasks succeeded" % (ran, count))
        what = "flood for %d s, %s" % (seconds, "one by one" if together == 1 else "%d at once" % together)
        yield Figure(what + ", added", rate, "/s", goal=Goal("ours", ">=", 0.98 * FLOOD_PER_SECOND, "/s"))
        yield Figure(what + ", mean wait", mean * 1000, "ms", goal=Goal("ours", "<=", 1000, "ms"))
        yield Figure(what + ", longest wait", worst * 1000, "ms")


def measure_schedules(sizes, library):
    """How late the last task is of many schedules that are due at the same moment."""
    with library.fresh() as site:
        queue = site.open(workers=2)
        site.start_services(2)
        owner = users_of(queue).owner()["id"]
        for _ in range(sizes.schedules):
            queue.schedules.add({"function": "nothing", "rule": "every 1h"}, owner)
        due = time.time() + 5
        site.execute("UPDATE schedule SET start=?, next_at=?, next_from=?", (due - 3600, due, due - 1))
        added = "FROM activity WHERE event='added' AND at>=%r" % due
        wait_until(lambda: site.number("SELECT count(*) " + added) >= sizes.schedules, "schedules", 0.2)
        yield Figure("%s schedules at once, the last is late" % format(sizes.schedules, ","),
                     site.number("SELECT max(at) " + added) - due, "s", goal=Goal("ours", "<=", 2, "s"))


def adds_on_postgres(library, count, is_bulk):
    """Adds a second, one by one or at once."""
    with library.base() as address, library.fresh(address) as site:
        queue = site.open(workers=0)
        queue.enqueue("nothing")
        many = [{"value": number} for number in range(count)]
        if is_bulk:
            return rate(count, lambda: queue.enqueue_many("nothing", many))
        return rate(count, lambda: [queue.enqueue("nothing", one) for one in many])


def drain_on_postgres(library, *sizes):
    """Tasks a second from the first start to the last."""
    with library.base() as address:
        return drain_ours(library, *sizes, address=address)


def compare_adds(sizes, library, count, is_bulk):
    """Adding to both, one by one or at once."""
    rates = library.in_turns(
        sizes.rounds, {"ours": lambda: adds_on_postgres(library, count, is_bulk)},
        {"Procrastinate": lambda: add_to_procrastinate(library, count, is_bulk)})
    yield from beside("PostgreSQL, add %s" % ("in bulk, 10,000 at once" if is_bulk else "one by one"),
                      "/s", rates, {"Procrastinate": Goal("ratio", ">=", 0.9)})


def compare_drains(sizes, library, workers):
    """Draining by so many of our workers, and of theirs in each shape that they may have."""
    shapes = {"a process each": (workers, 1), "one process": (1, workers), "two": (2, workers // 2)}
    anchors = {"Procrastinate, " + name: lambda shape=shape: drain_procrastinate(
        library, sizes.drain // SLOWER, *shape) for name, shape in shapes.items()}
    rates = library.in_turns(
        3, {"ours": lambda: drain_on_postgres(library, sizes.drain, workers)}, anchors)
    yield from beside("PostgreSQL, drain with %d workers" % workers, "/s", rates,
                      {name: Goal("ratio", ">=", 5) for name in anchors} if workers == 2 else {})


def measure_postgres(sizes, library):
    """The queue on PostgreSQL, beside Procrastinate on the same server."""
    if not library.server() or not is_installed("procrastinate"):
        return
    yield from compare_adds(sizes, library, sizes.adds, False)
    yield from compare_adds(sizes, library, sizes.bulk, True)
    for workers in (2, 20):
        yield from compare_drains(sizes, library, workers)
    with library.base() as address, library.fresh(address) as site:
        queue = site.open(workers=1)
        site.start_services(1)
        ours = pickups(sizes.pickups, lambda: queue.enqueue("moment").wait().result)
    theirs = None if library.alone else pick_up_by_procrastinate(library, sizes.pickups)
    for share, goal in ((0.5, Goal("ratio", "<=", 1.5)), (0.95, None)):
        yield Figure("PostgreSQL, pick-up when idle, p%d" % (share * 100), percentile(ours, share), "ms",
                     "Procrastinate", theirs and percentile(theirs, share), theirs and goal)


def measure_machines(sizes, library):
    """What each further machine adds: 4 workers with tasks that take 20 ms."""
    if not library.server() or not library.network:
        return
    rates = []
    for count in range(1, MACHINES + 1):
        with library.base(over_network=True) as address:
            rates.append(drain_ours(
                library, sizes.drain // 4 * count, count * MACHINE_WORKERS, address=address,
                function="nap", places=library.network.machines[:count]))
        yield Figure("PostgreSQL, %d machines of %d workers, 20 ms" % (count, MACHINE_WORKERS),
                     rates[-1], "/s", "as many times one", count * rates[0], Goal("ratio", ">=", 0.9))


PARTS = {
    "adds": measure_adds,
    "drain": measure_drain,
    "journal": measure_journal,
    "pickup": measure_pickup,
    "cold": measure_cold,
    "cgi": measure_cgi,
    "memory": measure_memory,
    "asleep": measure_asleep,
    "disk": measure_disk,
    "claim": measure_claim,
    "path": measure_path,
    "blocked": measure_blocked,
    "list": measure_list,
    "server": measure_server,
    "many": measure_many,
    "search": measure_search,
    "overview": measure_overview,
    "fold": measure_fold,
    "flood": measure_flood,
    "schedules": measure_schedules,
    "postgres": measure_postgres,
    "machines": measure_machines,
}


# Entry -----------------------------------------------------------------------

def run(names, sizes):
    """Measure these parts; yields all Figures."""
    with contextlib.ExitStack() as stack:
        library = Library(stack)
        for name in names:
            yield from PARTS[name](sizes, library)


def run_against(other, names, sizes):
    """Measure these parts here and of another checkout in turns; yields Figures of both."""
    with contextlib.ExitStack() as stack:
        pair = [Library(stack, source, alone=True) for source in (ROOT, other)]
        for name in names:
            values = collections.defaultdict(lambda: ([], []))
            for number in range(sizes.rounds):
                for place in (0, 1) if number % 2 else (1, 0):
                    for figure in PARTS[name](sizes, pair[place]):
                        values[figure.what, figure.unit][place].append(figure.ours)
            for (what, unit), both in values.items():
                ours, theirs = [statistics.median(side) if side else None for side in both]
                if ours is not None:    # else there is no such figure here
                    goal = Goal("ratio", ">=", 0.95) if unit == "/s" else Goal("ratio", "<=", 1.05)
                    yield Figure(what, ours, unit, other.name, theirs, goal if theirs else None)


def parts(text):
    """Names of PARTS from a list with commas."""
    names = text.split(",")
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError("parts are %s" % ", ".join(PARTS))
    return names


def checkout(text):
    """The folder of another checkout."""
    folder = Path(text).resolve()
    if not all((folder / name).exists() for name in COPIED):
        raise argparse.ArgumentTypeError("%s is no checkout: it needs %s" % (folder, ", ".join(COPIED)))
    return folder


def main(arguments=None):
    """Measure and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", type=parts, metavar="PART,...",
                        help="these parts; may be repeated: " + ", ".join(PARTS))
    parser.add_argument("--against", type=checkout, metavar="DIR",
                        help="measure in turn with the checkout in this folder")
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--hammer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hammer:
        run_hammer(options.hammer)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)      # what was started is ended
    names = [name for chosen in options.only or [PARTS] for name in chosen]
    sizes = QUICK if options.quick else FULL
    figures = []
    for figure in run_against(options.against, names, sizes) if options.against else run(names, sizes):
        print("  ".join(cells(figure)), file=sys.stderr, flush=True)
        figures.append(figure)
    print("Python %s, SQLite %s, %d processors\n" % (
        sys.version.split()[0], sqlite3.sqlite_version, os.cpu_count()))
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
