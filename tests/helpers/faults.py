"""What goes wrong on people's hosts, made on purpose.

    plant                program text at the end of a site's jobqueue.py: other constants, points to die at
    PlantedCase          a ProcessCase with such a site; SiteCase: with a new one for each test
    SmallDiskCase        a SiteCase whose disk can be filled
    WriterCase           processes that write into a data folder as fast as they can
    somebody_elses_site  a site whose processes run without rights
    copy_data            a copy of a data folder
    mount, mock_truncate a file system of the test's own; one that is not local
    outsider             somebody else's connection to the database, which may hold locks
"""
import ast
import contextlib
import http.client
import importlib.util
import json
import os
import py_compile
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import jobqueue
from tests.helpers.support import PASSWORD, ROOT, Site, TestCase, need, wait_until
from tests.helpers.working import TASKS, ProcessCase
from tests.tools.load_test import Client

MANY = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))
MAIN = '\n\nif __name__ == "__main__":'
SOMEBODY = 54321
_compiled = {}                          # text of a planted jobqueue.py: what Python keeps of it
QUICK = "\nTICK_SECONDS, STARTING_SECONDS, START_RETRY_SECONDS = 0.3, 1.5, (0.3, 1.0)\n"

# A process that writes as fast as it can: adds (told once they are committed), or a worker's
# bookkeeping, each commit with the next number. argv: kind, data folder, journal mode, log limit,
# how often it closes the database and opens it again, program text for jobqueue.
WRITER = """
import os, random, sys
sys.path.insert(0, %r)
import jobqueue
kind, folder, journal, limit, closes, planted = sys.argv[1:]
exec(planted, vars(jobqueue))
jobqueue.WAL_CHECKPOINT_BYTES = int(limit)
if journal == "truncate":
    jobqueue.LOCAL_FILE_SYSTEMS = frozenset()

def begin():
    queue = jobqueue.JobQueue(folder, environment={"JOBQUEUE_NBMAXWORKER": "0"}, patience=60)
    queue.catalogue.refresh = lambda **_: None
    return queue

def add(queue, number):
    requests = [{"function": "add", "arguments": {"a": number, "b": b}} for b in range(3)]
    ids = queue.add(requests, 1)
    os.write(1, ("%%d %%s\\n" %% (number, " ".join(map(str, ids)))).encode())

def count(queue, number):
    with queue.database.transaction(durable=False) as transaction:
        number = jobqueue.recall(transaction, ".commits") + 1
        jobqueue.remember(transaction, ".commits", number)
        jobqueue.record_activity(transaction, 0, "commit", message=str(number))

queue, number, parent = begin(), 0, os.getppid()
while os.getppid() == parent:       # nobody is left to stop it otherwise
    number += 1
    {"add": add, "count": count}[kind](queue, number)
    if random.random() < float(closes):
        queue.close()               # whoever is the last to close copies the log back
        queue = begin()
""" % str(ROOT)


def plant(site, text):
    """Put program text at the end of the site's jobqueue.py, before it runs as a program."""
    for line in ast.parse(text).body:
        for place in ast.walk(line) if isinstance(line, ast.Assign) else ():
            if isinstance(place, ast.Name) and place.id.isupper() and not hasattr(jobqueue, place.id):
                raise AssertionError("jobqueue.py knows no %s, which is planted" % place.id)
    path = site.home / "jobqueue.py"
    head, found, tail = path.read_text("utf-8").rpartition(MAIN)
    if not found:
        raise AssertionError("jobqueue.py does not end as it used to")
    whole = head + "\n\n" + text + found + tail
    path.write_text(whole, "utf-8")
    shutil.copystat(ROOT / "jobqueue.py", path)     # what was compiled for one site is right for all
    kept = site.home / "__pycache__" / os.path.basename(importlib.util.cache_from_source("jobqueue.py"))
    if whole not in _compiled:
        py_compile.compile(str(path), str(kept), doraise=True)
        _compiled[whole] = kept.read_bytes()
    kept.write_bytes(_compiled[whole])


# For plant(): everything as it is, but eight times as fast.
QUICK_LEASE = """
LEASE_SECONDS, RENEW_SECONDS, SELF_FENCE_SECONDS, TICK_SECONDS = 7.5, 1.25, 6.25, 0.5
"""


def copy_data(source, target, *left_out):
    """Copy a data folder without these files and the bell, a pipe that is made anew; the new folder."""
    return shutil.copytree(source, target, ignore=shutil.ignore_patterns("bell", *left_out))


def outsider(path):
    """A connection of somebody else's program, such as DB Browser, with autocheckpoint off."""
    link = sqlite3.connect(str(path), isolation_level=None, timeout=0, check_same_thread=False)
    link.execute("PRAGMA wal_autocheckpoint=0")
    return link


def has_begun(link, statement="BEGIN IMMEDIATE"):
    """True once the outsider's statement meets no lock."""
    with contextlib.suppress(sqlite3.OperationalError):
        link.execute(statement)
        return True
    return False


@contextlib.contextmanager
def mounted(folder, *arguments):
    """A folder while something is mounted there."""
    need(os.getuid() == 0 and shutil.which("mount"), "the right to mount a file system")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *map(str, arguments), str(folder)],
                          capture_output=True, text=True)
    need(done.returncode == 0, "the right to mount a file system: " + done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(case, folder, *arguments):
    """Mount something for the time of a test."""
    stack = contextlib.ExitStack()
    case.addCleanup(stack.close)
    return stack.enter_context(mounted(folder, *arguments))


@contextlib.contextmanager
def mock_truncate():
    """For jobqueue in this process no file system is local."""
    known, jobqueue.LOCAL_FILE_SYSTEMS = jobqueue.LOCAL_FILE_SYSTEMS, frozenset()
    try:
        yield
    finally:
        jobqueue.LOCAL_FILE_SYSTEMS = known


class WatchedSite(Site):
    """A site that keeps what its processes say on standard error."""

    def _start(self, arguments, **more):
        with open(self.home.parent / "said", "ab") as said:
            return super()._start(arguments, **{"stderr": said, **more})

    def said(self, log=True):
        """What they said, and what workers left in their log."""
        paths = [self.home.parent / "said", *(self.data.glob("worker-*.log") if log else ())]
        return "".join(path.read_text("utf-8") for path in paths if path.is_file())

    @property
    def database(self):
        return next(self.data.glob("jobqueue-*.db"))


def somebody_elses_site(case, planted, user=SOMEBODY, limits=""):
    """A site whose processes run as somebody without rights; bob exists and the admin ana, and no tasks.py.

    `limits` is a command that limits what it is followed by.
    """
    need(os.getuid() == 0 and shutil.which("setpriv"), "root and setpriv to run as somebody else")
    python = shutil.which("python3", path=os.defpath)
    need(python, "a python3 that everybody may run")
    room = Path(tempfile.mkdtemp(prefix="jobqueue python "))
    case.addCleanup(shutil.rmtree, room)
    room.chmod(0o755)
    (room / "python").write_text(
        "#!/bin/sh\nexec %s setpriv --reuid %d --regid %d --clear-groups env HOME=/ %s \"$@\"\n"
        % (limits, user, user, python))
    (room / "python").chmod(0o755)
    site = WatchedSite(users=False, python=str(room / "python"))
    plant(site, planted)
    for path in (site.home.parent, site.home, *site.home.rglob("*")):
        os.chown(path, user, user)
    site.run("user", "add", "bob", given=PASSWORD + "\n")
    site.run("user", "add", "ana", "--admin", given=PASSWORD + "\n")
    return site


class PlantedCase(ProcessCase):
    """Shares a site whose jobqueue.py has a fault planted in it."""

    PLANTED = ""

    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, **cls.settings)
        cls.addClassCleanup(cls.site.close)
        plant(cls.site, cls.PLANTED)
        if cls.server:
            cls.site.start_server()

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.site.home / "kill at", ignore_errors=True)

    def arm(self, point):
        """The next process that comes past this point is killed there."""
        (self.site.home / "kill at").mkdir(exist_ok=True)
        (self.site.home / "kill at" / point).touch()

    def killed(self, point):
        """Wait until somebody was."""
        path = self.site.home / "kill at" / point
        wait_until(lambda: not path.exists(), what="a process that comes past %r" % point)

    def worker_of(self, task_id):
        worker_id = self.row(task_id)["worker_id"]
        return self.site.value("SELECT pid FROM worker WHERE id=?", (worker_id,))

    def hold(self):
        """The name of a file `until` which tasks run on."""
        (self.site.home / "released").unlink(missing_ok=True)
        return "released"

    def release(self):
        """Let them end."""
        (self.site.home / "released").touch()

    def browser(self, name="bob"):
        """A browser in which somebody is logged in."""
        visitor = Client(self.site.address)
        self.addCleanup(visitor.close)
        return visitor.log_in(name, PASSWORD)

    def count(self, task_id, word="START"):
        return len([entry for entry in self.ledger() if entry[:2] == (word, task_id)])

    def check_sound(self):
        self.assertEqual(self.site.damage(), [])


class SiteCase(PlantedCase):
    """A site of its own for each test."""

    settings = {"linger": 5, "NbMaxWorker": 2, "nice": 0}

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.use(WatchedSite(TASKS, **self.settings))

    def use(self, site):
        self.addCleanup(site.close)
        self.site = type(self).site = site

    def send(self, visitor, method="GET", path="api/tasks", value=None):
        """The reply, which is never a 500; None if the connection broke."""
        try:
            reply = visitor.send(method, path, value)
        except (OSError, http.client.HTTPException):
            return None
        self.assertNotEqual(reply.status, 500, reply.value)
        if reply.status == 503:
            self.assertTrue((reply.value or {}).get("detail"), "no explanation")
        return reply

    def post(self, visitor, **arguments):
        return self.send(visitor, "POST", "api/tasks", {"function": "ledger", "arguments": arguments})

    def check_quiet(self):
        self.assertIsNone(self.site.server.poll(), "the server has ended")
        self.assertNotIn("Traceback", self.site.said())


class SmallDiskCase(SiteCase):
    """A site whose data can be moved to a file system of a few megabytes, which can be filled."""

    def move_to_small_disk(self, megabytes=6):
        """Have one for the time of the test; nothing of the site may run yet."""
        disk = mount(self, self.site.home.parent / "disk", "-t", "tmpfs", "-o",
                     "size=%dm,mode=700" % megabytes, "x")
        self.addCleanup(self.site.stop_all)
        (self.site.data / "bell").unlink(missing_ok=True)       # a pipe, which is made anew there
        shutil.move(str(self.site.data), str(disk / "data"))
        self.site.data.write_text("../disk/data\n")
        self.site.data = disk / "data"
        self.ballast = disk / "ballast"

    def fill(self, spare=0):
        """Leave no room but for so many bytes."""
        with contextlib.suppress(OSError), open(self.ballast, "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        os.truncate(self.ballast, self.ballast.stat().st_size - spare)

    def free(self):
        """Give the room back."""
        self.ballast.unlink()


class WriterCase(TestCase):
    """Processes that write into a data folder, and what must be found there afterwards."""

    def setUp(self):
        super().setUp()
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".commits", 0)
        self.queue.close()

    def new_folder(self, room, journal):
        """A data folder as it is before anybody works with it."""
        data = room / "data"
        copy_data(self.folder / "data", data)
        if journal == "truncate":
            with mock_truncate():
                jobqueue.repair_journal(data)
        return data

    def start(self, kind, data, journal="wal", limit=200_000, closes=0.02, planted=""):
        """A writer; what it says goes to a file in the temporary folder."""
        said = tempfile.NamedTemporaryFile(dir=self.folder, prefix="said", delete=False)
        values = map(str, (kind, data, journal, limit, closes, planted))
        child = subprocess.Popen([sys.executable, "-c", WRITER, *values],
                                 stdout=said, stdin=subprocess.DEVNULL)
        said.close()
        child.said = Path(said.name)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def acknowledged(self, children):
        """{(number, ids)} of what the writers were told."""
        found = set()
        for child in children:
            for line in child.said.read_text().splitlines(True):
                if line.endswith("\n"):
                    number, *ids = map(int, line.split())
                    found.add((number, tuple(ids)))
        return found

    def working(self, children):
        """Wait until they have written something."""
        wait_until(lambda: len(self.acknowledged(children)) > 10, what="some adds")

    def stop(self, children):
        """Have them all stand still."""
        for child in children:
            child.send_signal(signal.SIGSTOP)
        for child in children:
            stat = Path("/proc/%d/stat" % child.pid)
            wait_until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T",
                       what="its standstill")

    def check_folder(self, data, acknowledged, journal):
        """Opened as after a restart: intact, all that was told, and a prefix of all commits."""
        with mock_truncate() if journal == "truncate" else contextlib.nullcontext():
            queue = jobqueue.JobQueue(data, environment={})
        try:
            everything = queue.database.all
            self.assertEqual(queue.database.value("PRAGMA integrity_check"), "ok")
            self.assertEqual(everything("PRAGMA foreign_key_check"), [])
            numbers = [int(row[0]) for row in everything(
                "SELECT message FROM activity WHERE event='commit' ORDER BY id")]
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
            self.assertEqual(jobqueue.recall(queue.database, ".commits"), len(numbers))
            tasks = {row[0]: json.loads(row[1])
                     for row in everything("SELECT id, arguments FROM task")}
            added = [row[0] for row in everything(
                "SELECT task_id FROM activity WHERE event='added'")]
            self.assertEqual(sorted(tasks), sorted(added))
            self.assertEqual(len(tasks) % 3, 0, "half an add")
            for number, ids in acknowledged:
                self.assertEqual([tasks.get(task_id) for task_id in ids],
                                 [{"a": number, "b": b} for b in range(3)])
        finally:
            queue.close()
