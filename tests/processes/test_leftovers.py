"""What a function leaves behind in the process that ran it reaches no other task; in both journal modes.

Also what it hides from its worker: a runner that has closed or covered all that it would die by
is ended before its task starts again.
"""
import json
import os
import signal
import unittest

import jobqueue
from tests.helpers.faults import mock_truncate
from tests.helpers.support import Site, wait_until

TASKS = '''
import builtins, ctypes, json, os, resource, signal, socket, subprocess, sys, threading, time
from pathlib import Path
from jobqueue import current_task, task

HERE = Path(__file__).parent
KEPT = []
REAL_WRITE = os.write

def limit(name, value):
    kind = getattr(resource, "RLIMIT_" + name)
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

def later(action, *values):
    thread = threading.Thread(target=lambda: (time.sleep(0.3), action(*values)), daemon=True)
    thread.start()

def raise_in_main():
    main = ctypes.c_ulong(threading.main_thread().ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyError))

def memory():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

LEAVE = {
    "nothing": lambda: None,
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.05),
    "timer of its own time": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 0.005),
    "ignored signals": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "handler": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    "no files to write": lambda: limit("FSIZE", 0),
    "no descriptors": lambda: limit("NOFILE", 3),
    "no descriptor at all": lambda: limit("NOFILE", 0),
    "no memory": lambda: limit("AS", memory() + (1 << 20)),
    "no path": lambda: os.environ.pop("PATH"),
    "another environment": lambda: setattr(os, "environ", os.environ.copy()),
    "another variable": lambda: os.environ.update(STRANGE="yes"),
    "no sys.path": lambda: sys.path.clear(),
    "no recursion": lambda: sys.setrecursionlimit(60),
    "timeouts": lambda: socket.setdefaulttimeout(0.001),
    "exception in the main thread": lambda: later(raise_in_main),
    "late end": lambda: later(os._exit, 3),
    "a timer's end": lambda: threading.Timer(0.3, os._exit, (0,)).start(),
    "child": lambda: KEPT.append(subprocess.Popen(["sleep", "60"], stdout=-3, stderr=-3)),
    "open file": lambda: KEPT.append(open(__file__)),
    "patched write": lambda: setattr(os, "write", lambda *_: 0),
    "patched sleep": lambda: setattr(time, "sleep", lambda *_: None),
    "folder and umask": lambda: (os.chdir("/"), os.umask(0)),
}

@task
def run(kind: str):
    """Feel what could have been left here, then leave something."""
    assert os.environ.get("PATH") and "STRANGE" not in os.environ
    assert os.getcwd() == str(HERE) and sys.path
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and os.write is REAL_WRITE
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    (HERE / "written").write_text("x" * 10)
    bytearray(8 << 20)
    json.loads("[" * 40 + "]" * 40)
    end = time.monotonic() + 0.002
    while time.monotonic() < end:
        pass
    with open(HERE / "ran", "a") as file:
        file.write("%d %d\\\\n" % (current_task().id, os.getpid()))
    LEAVE[kind]()

@task
def cover(how: str):
    """Hide from the worker, and go on for ever."""
    with open(HERE / ("attempts " + how), "a") as file:
        file.write("%d\\\\n" % os.getpid())
    if how == "closerange":
        os.closerange(3, 256)
    elif how == "dup2":
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3, 64):
            if descriptor != null:
                os.dup2(null, descriptor)
    elif how == "execv":
        os.execv("/bin/sleep", ["sleep", "60"])
    time.sleep(60)
'''.replace("\\\\n", "\\n")
KINDS = [line.split('"')[1] for line in TASKS.partition("LEAVE = {")[2].partition("}\n")[0].splitlines()
         if '": ' in line]
AFTER = 6                       # tasks after each that leaves something


def site_with(case, journal, **settings):
    """A site whose database is written in this way."""
    site = Site(TASKS, nice=0, **settings)
    case.addClassCleanup(site.close)
    if journal == "truncate":
        with mock_truncate():
            jobqueue.repair_journal(site.data)
    return site


ENQUEUE = """
import json, sys
from jobqueue import JobQueue
print(json.dumps(JobQueue().enqueue_many("run", [{"kind": kind} for kind in json.load(sys.stdin)])))
"""


class LeftBehind:
    journal = None

    @classmethod
    def setUpClass(cls):
        cls.site = site_with(cls, cls.journal, NbMaxWorker=1, linger=1)

    def enqueue(self, kinds):
        return json.loads(self.site.python(ENQUEUE, given=json.dumps(kinds)))

    def wait(self, ids):
        wait_until(lambda: self.site.value("SELECT count(*) FROM task WHERE status NOT IN (2, 3)") == 0,
                   what="the end of all tasks", seconds=120)
        return {row["id"]: row for row in self.site.rows("SELECT * FROM task")}

    def test_what_one_task_leaves_no_other_feels(self):
        """They run in batches, so that what was left must also cut one short."""
        kinds = ["nothing"] * 40
        for kind in KINDS:
            kinds += [kind] + ["nothing"] * AFTER
        kinds += ["nothing"] * 20
        ids = self.enqueue(kinds)
        rows = self.wait(ids)
        wrong = {kinds[place]: (rows[number]["reason"], rows[number]["error_message"])
                 for place, number in enumerate(ids) if rows[number]["status"] != 2}
        self.assertEqual(wrong, {})
        crashed = [kinds[place] for place, number in enumerate(ids) if rows[number]["crashes"]]
        self.assertEqual(crashed, [])
        ran = [tuple(map(int, line.split())) for line in (self.site.home / "ran").read_text().splitlines()]
        self.assertEqual([number for number, _ in ran], ids, "each once, in order")
        runner = dict(ran)
        for place, kind in enumerate(kinds[:-1]):
            if kind == "open file":     # no harm to the next: it is seen at the end of the batch
                self.assertNotEqual(runner[ids[place]], runner[ids[-1]])
            elif kind not in ("nothing", "folder and umask"):
                self.assertNotEqual(runner[ids[place]], runner[ids[place + 1]], kind)
        clean = [runner[ids[place]] for place, kind in enumerate(kinds[:40])]
        self.assertEqual(len(set(clean)), 1, "who leaves nothing is followed in the same process")


class TestLeftBehindWithLog(LeftBehind, unittest.TestCase):
    journal = "wal"


class TestLeftBehindWithoutLog(LeftBehind, unittest.TestCase):
    journal = "truncate"


class TestOwners(unittest.TestCase):
    """The setting for what no look can find: each owner's tasks get a process of their own."""

    def test_no_two_owners_share_a_process(self):
        site = site_with(self, "wal", NbMaxWorker=1, linger=1, runner_per_owner="yes")
        owners = ["ana", "bob", "bob", "ana"]
        ids = [site.add("run", "--owner", owner, kind="nothing") for owner in owners]
        for task_id in ids:
            site.wait(task_id)
        runner = dict(map(str.split, (site.home / "ran").read_text().splitlines()))
        for one, first in zip(ids, owners):
            for other, second in zip(ids, owners):
                if first != second:
                    self.assertNotEqual(runner[str(one)], runner[str(other)])


class Covered:
    journal = None

    @classmethod
    def setUpClass(cls):
        cls.site = site_with(cls, cls.journal, NbMaxWorker=1, linger=0,
                             worker_mode="detached")    # auto would leave the work to slices

    def begun(self, how):
        path = self.site.home / ("attempts " + how)
        return path.read_text().split() if path.exists() else []

    def test_a_runner_that_cannot_see_its_worker_die_is_ended_before_the_next_attempt(self):
        for how in ("nothing", "closerange", "dup2", "execv"):
            with self.subTest(how):
                self.lose(how)

    def lose(self, how):
        task_id = self.site.add("cover", how=how)
        first = wait_until(lambda: self.begun(how), what="the first attempt")[0]
        worker = wait_until(lambda: self.site.value("SELECT pid FROM worker WHERE state='busy'"),
                            what="its worker")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: self.site.run("tick") and len(self.begun(how)) > 1,
                   what="the second attempt")
        self.assertIsNone(jobqueue.birth(int(first)), "the first still runs")
        self.site.run("cancel", task_id, code=None)     # a third attempt may be its last
        for pid in self.site.workers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.site.run("tick") and not self.site.value(
            "SELECT count(*) FROM task WHERE status NOT IN (3, 4)"), what="its end")


class TestCoveredWithLog(Covered, unittest.TestCase):
    journal = "wal"


class TestCoveredWithoutLog(Covered, unittest.TestCase):
    journal = "truncate"


if __name__ == "__main__":
    unittest.main()
