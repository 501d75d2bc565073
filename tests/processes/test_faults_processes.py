"""Hosts that refuse processes, memory and files, and functions that take all they can get.

An add is accepted whatever the host refuses; what is missing is said on the page, and work begins
by itself once the host gives again. A function harms its own attempt only.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

from tests.helpers.faults import MANY, QUICK, SiteCase, plant, somebody_elses_site
from tests.helpers.server import HEALTH, Link
from tests.helpers.support import need, wait_until

HOSTILE = '''
import itertools, os, resource, signal, sys, time
from jobqueue import current_task, task

def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

@task
def ledger(seconds: float = 0):
    time.sleep(seconds)

@task(timeout=1)
def bomb():
    deaf()
    for _ in range(5):
        os.fork()
    print("one of 32", flush=True)
    time.sleep(60)

@task(timeout=1)
def spin():
    deaf()
    sum(itertools.repeat(1))

@task(timeout=1)
def escape():
    """Its child is in a session of its own, and keeps what the function printed into."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deaf()
            (current_task().folder / "escaped").write_text(str(os.getpid()))
            for _ in range(600):
                print("still here", flush=True)
                time.sleep(0.1)
        os._exit(0)
    time.sleep(60)

@task(timeout=60)
def flood(megabytes: int):
    piece = b"x" * 1023 + b"\\n"
    for _ in range(megabytes << 10):
        os.write(1, piece)
    return megabytes

@task
def eat(megabytes: int, allowed: int = 0):
    if allowed:
        resource.setrlimit(resource.RLIMIT_AS, (allowed << 20, resource.RLIM_INFINITY))
    eaten = []
    while len(eaten) < megabytes // 16:
        eaten.append(b"x" * (16 << 20))
    return len(eaten)
'''


def limited(command):
    """A script that passes for an interpreter, after it has limited itself."""
    return '#!/bin/sh\n%s\nexec %s "$@"\n' % (command, sys.executable)


RUN = limited("true")


class StarvedCase(SiteCase):
    """Each time: the add is accepted, the reason is on the page, and then it goes on alone."""

    settings = {"linger": 0, "NbMaxWorker": 2, "nice": 0}
    BODY = {"function": "ledger", "arguments": {}}

    def warm_up(self):
        """Have a task done, so that the functions are known from now on."""
        self.wait_for_all([self.ask("POST", "api/tasks", self.BODY).value["id"]])
        wait_until(lambda: not self.site.workers(), what="the end of the worker")

    def ask(self, *request):
        """The reply; a connection that was closed to make room is opened again."""
        return wait_until(lambda: self.send(self.visitor, *request), what="an answer")

    def check_wait(self, words, adds=3):
        """While nothing can be started; the ids of what was added."""
        replies = [self.ask("POST", "api/tasks", self.BODY) for _ in range(adds)]
        self.assertEqual({reply.status for reply in replies}, {201})
        service = wait_until(lambda: self.said("no_worker"), what="the sentence on the page")
        self.assertRegex(service["text"], words)
        self.assertNotIn("Traceback", self.site.said(log=False))
        return [reply.value["id"] for reply in replies]

    def said(self, code):
        service = self.ask("GET", "api/tasks?limit=1").value["service"]
        return service if service["code"] == code else None

    def check_recovery(self, ids):
        self.wait_for_all(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE status<>2"), 0)
        self.assertEqual(self.site.value("SELECT max(attempts) FROM task"), 1)
        wait_until(lambda: self.said("ok"), what="nothing to say")


class TestNothingGiven(StarvedCase):
    """F15, with limits that hold for everybody."""

    def begin(self):
        plant(self.site, QUICK)
        self.interpreter(RUN)
        self.site.settings(python=self.site.home / "python")
        self.site.start_server()
        self.visitor = self.browser("ana")
        self.warm_up()

    def interpreter(self, text):
        """What starts workers from now on."""
        part = self.site.home / "python.part"
        part.write_text(text)
        part.chmod(0o755)
        part.rename(self.site.home / "python")

    def test_an_interpreter_that_cannot_be_used(self):
        self.begin()
        for text, words in (
            ("#!/nonsense/python\n", "No such file"),
            ("#!/bin/sh\nexit 7\n", "exit code 7"),
            (limited("ulimit -v 8000"), "ended with|did not report"),       # no memory
            (limited("ulimit -n 4"), "ended with|did not report"),          # no descriptors
        ):
            with self.subTest(text):
                self.interpreter(text)
                ids = self.check_wait(words)
                self.interpreter(RUN)
                self.check_recovery(ids)
                wait_until(lambda: not self.site.workers(), what="the end of the workers")

    def test_a_worker_that_gets_few_descriptors_and_little_memory_does_its_work(self):
        self.begin()
        self.interpreter(limited("ulimit -n 32; ulimit -v 200000"))
        ids = self.enqueue("ledger", [{}] * 20)
        self.check_recovery(ids)

    def without_gap(self, pid):
        """How many descriptors the server has, once those of connections follow the others."""
        self.visitor.close()
        self.ask("GET", "api/tasks?limit=1")
        used = list(map(int, os.listdir("/proc/%d/fd" % pid)))
        return len(used) if max(used) < len(used) else None

    def test_the_server_has_no_descriptor_left(self):
        self.begin()
        pid = self.site.server.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = wait_until(lambda: self.without_gap(pid), what="no number free below the highest")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
        late = self.visitor.twin()
        self.addCleanup(late.close)
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(self.send(late)))
        waiting.start()
        ids = self.check_wait("too many open files")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        self.check_recovery(ids)
        waiting.join(60)
        self.assertIn(answers[0] and answers[0].status, (None, 200, 503))

    def test_the_command_line_has_few_descriptors(self):
        """Down to where Python itself cannot start: an id, or one line; never half of it."""
        added = []
        for count in (32, 13, 12, 11, 10, 9):
            code = "ulimit -n %d; exec %s jobqueue.py add ledger" % (count, sys.executable)
            done = self.shell(code)
            if done.returncode == 0:
                added.append(int(done.stdout))
            else:
                self.assertNotIn("Traceback", done.stderr, count)
                self.assertEqual(done.stdout, "", count)
        self.assertGreater(len(added), 0)
        wait_until(lambda: self.site.run("tick") and self.site.value(
            "SELECT count(*) FROM task WHERE status<>2") == 0, what="the end of the tasks")
        self.assertEqual([row[0] for row in self.site.rows("SELECT id FROM task")], added)

    def shell(self, text):
        return subprocess.run(["sh", "-c", text], cwd=self.site.home, env=self.site.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


class TestNoProcess(StarvedCase):
    """F15, with the limit on processes, which does not hold for root."""

    BODY = {"function": "add", "arguments": {"a": 1, "b": 2}}

    def setUp(self):
        self.use(somebody_elses_site(self, QUICK))
        self.site.settings(**self.settings)
        self.site.start_server()
        self.visitor = self.browser("ana")
        self.warm_up()

    def test_no_process_can_be_started(self):
        self.limit("1")
        ids = self.check_wait("process limit")
        self.limit("limits[1]")
        self.check_recovery(ids)

    def limit(self, soft):
        """Set the server's limit, as the same user: root may lack the right to."""
        self.site.python("import resource; kind = resource.RLIMIT_NPROC; pid = %d; "
                         "limits = resource.prlimit(pid, kind); "
                         "resource.prlimit(pid, kind, (%s, limits[1]))"
                         % (self.site.server.pid, soft))


class TestFewProcesses(StarvedCase):
    """A cheap host that allows 25 processes and threads in all, for an ordinary user."""

    settings = {"linger": 0, "NbMaxWorker": 12, "nice": 0}
    BODY = TestNoProcess.BODY
    LIMITS = "prlimit --nproc=25:25"

    def setUp(self):
        need(shutil.which("prlimit"), "prlimit")
        self.user = 20_000 + os.getpid() % 30_000       # nobody else's processes count
        self.use(somebody_elses_site(self, QUICK, self.user, self.LIMITS))
        self.site.settings(**self.settings)
        self.sleepers = []
        self.addCleanup(self.free)

    def begin(self):
        self.site.start_server()
        self.visitor = self.browser("ana")

    def fill(self, spare=0):
        """Other programs of this user take all places but some."""
        command = [*self.LIMITS.split(), "setpriv", "--reuid", str(self.user), "--clear-groups",
                   "sleep", "600"]
        while True:
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            self.sleepers.append(child)
            if wait_until(lambda child=child: child.poll() or self.is_asleep(child.pid)) is not True:
                break
        for child in [self.sleepers.pop() for _ in range(spare + 1)]:
            child.kill()
            child.wait(60)

    @staticmethod
    def is_asleep(pid):
        with contextlib.suppress(OSError):
            return Path("/proc/%d/comm" % pid).read_text() == "sleep\n"
        return None

    def free(self):
        for child in self.sleepers:
            child.kill()
            child.wait(60)
        self.sleepers.clear()

    def check_page(self):
        """What people look at is there, though all of them look at once."""
        twins = [self.visitor.twin() for _ in range(6)]
        for path in ("", "api/tasks?counts=1", "api/workers", "api/functions", "static/app.js"):
            for twin in twins:
                self.assertEqual(self.send(twin, "GET", path).status, 200, path)
        for twin in twins:
            twin.close()

    def test_while_others_take_all_places_the_page_says_so_and_then_it_goes_on(self):
        self.begin()
        self.warm_up()
        self.fill()
        ids = self.check_wait("process limit")
        self.check_page()
        self.free()
        self.check_recovery(ids)
        self.check_quiet()

    def test_a_server_that_gets_no_thread_answers_one_after_the_other_until_there_is_one(self):
        self.fill(spare=1)
        self.site.start_server()
        address = urlsplit(self.site.address)
        for _ in range(5):
            with Link((address.hostname, address.port)) as link:
                status, headers, _ = link.send(HEALTH).answer()
            self.assertEqual((status, headers["connection"]), (200, "close"))
        self.assertEqual(len(os.listdir("/proc/%d/task" % self.site.server.pid)), 1)
        self.free()
        wait_until(lambda: len(os.listdir("/proc/%d/task" % self.site.server.pid)) > 1)
        self.visitor = self.browser("ana")
        self.warm_up()
        self.check_quiet()

    def test_more_workers_than_there_is_room_for_lose_nothing(self):
        self.begin()
        self.fill(spare=8)
        body = {"function": "add", "arguments": {"a": 1, "b": 2, "seconds": 0.3}}
        ids = self.ask("POST", "api/tasks", [body] * 40).value["ids"]
        wait_until(lambda: self.site.value("SELECT 1 FROM activity WHERE event='worker_start_failed'"),
                   what="one worker too many")
        self.check_page()
        self.check_recovery(ids)
        self.check_quiet()


class TestStampede(SiteCase):
    """F16. Hundreds of adds at once while no worker runs."""

    settings = {"linger": 300, "NbMaxWorker": 3, "nice": 0}
    CLIENTS, ROUNDS = 25, 20 if MANY else 1

    def test_never_more_workers_than_may_run(self):
        self.site.start_server()
        for _ in range(self.ROUNDS):
            self.run_once()
            for pid in self.site.workers():
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not self.site.workers(), what="the end of the workers")

    def run_once(self):
        visitor, gate, ids = self.browser(), threading.Barrier(self.CLIENTS), []

        def add():
            twin = visitor.twin()
            gate.wait()
            for _ in range(500 // self.CLIENTS):
                reply = self.post(twin)
                while reply.status == 503:
                    reply = self.post(twin)
                ids.append(reply.value["id"])
            twin.close()
        threads = [threading.Thread(target=add) for _ in range(self.CLIENTS)]
        for thread in threads:
            thread.start()
        seen = []
        while any(thread.is_alive() for thread in threads):
            seen.append((len(self.site.workers()), len(self.site.runners()),
                         self.site.value("SELECT count(*) FROM worker")))
            time.sleep(0.05)
        self.assertEqual(len(ids), 500)
        self.wait_for_all(ids)
        self.assertTrue(all(max(one) <= 3 for one in seen), seen)
        self.assertGreater(max(one[0] for one in seen), 0)
        self.check_records(ids)


class TestGreedy(SiteCase):
    """F17. Functions that multiply, hide, shout, eat and do not listen."""

    settings = {"linger": 300, "NbMaxWorker": 2, "nice": 0, "runner_memory": 100}
    MEGABYTES = 1024 if MANY else 64

    def setUp(self):
        super().setUp()
        self.site.write_tasks(HOSTILE)

    def certificate(self, task_id):
        return self.site.rows("SELECT seconds, message FROM activity WHERE task_id=? "
                              "AND event IN ('failed', 'succeeded')", (task_id,))[0]

    def memory_of(self, pid):
        """The most that a process ever had, in MB."""
        text = Path("/proc/%d/status" % pid).read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) >> 10

    def test_who_does_not_listen_is_ended_soon_and_all_others_work_on(self):
        self.site.settings(NbMaxWorker=3)
        bad = {name: self.enqueue(name, [{}])[0] for name in ("bomb", "spin", "escape")}
        self.addCleanup(self.end_the_escaped, bad["escape"])
        good = self.enqueue("ledger", [{"seconds": 0.05}] * 40)
        workers = wait_until(lambda: len(self.site.workers()) == 3 and self.site.workers())
        self.wait_for_all([*bad.values(), *good])
        for name, task_id in bad.items():
            row = self.row(task_id)
            found = row["status"], row["reason"], row["attempts"]
            self.assertEqual(found, (3, "timeout", 1), name)
            self.assertLess(self.certificate(task_id)["seconds"], 60, "%s came to its end" % name)
        self.assertEqual({self.row(task_id)["status"] for task_id in good}, {2})
        self.assertEqual(self.site.workers(), workers, "a worker did not survive it")
        wait_until(lambda: len(self.site.runners()) <= 3, what="the end of what the bomb left")
        last = self.enqueue("ledger", [{}])[0]
        self.wait_for(last)
        self.assertNotIn("still here", self.site.run("log", last).stdout)

    def end_the_escaped(self, task_id):
        with contextlib.suppress(OSError):
            path = next(self.site.data.glob("work-*/%d/escaped" % task_id))
            os.kill(int(path.read_text()), signal.SIGKILL)

    def test_a_flood_is_cut_and_does_not_fill_the_worker(self):
        self.site.settings(NbMaxWorker=1)
        task_id = self.enqueue("flood", [{"megabytes": self.MEGABYTES}])[0]
        row = self.wait_for(task_id)
        self.assertEqual(row["result"], str(self.MEGABYTES))
        self.assertLess(self.site.value(
            "SELECT sum(length(text)) FROM log WHERE task_id=?", (task_id,)), 1_300_000)
        [worker] = self.site.workers()
        self.assertLess(self.memory_of(worker), 60)

    def test_who_eats_memory_gets_a_runner_for_itself(self):
        self.site.settings(NbMaxWorker=1)
        eaten, refused = self.enqueue("eat", [{"megabytes": 320},
                                              {"megabytes": 2048, "allowed": 400}])
        after = self.enqueue("eat", [{"megabytes": 16}] * 3)
        self.wait_for_all([eaten, refused, *after])
        self.assertEqual(self.row(eaten)["result"], "20")
        row = self.row(refused)
        self.assertEqual((row["reason"], row["error_type"]), ("error", "MemoryError"))
        peaks = [self.site.value("SELECT peak_memory FROM activity WHERE task_id=? AND event="
                                 "'succeeded'", (task_id,)) >> 20 for task_id in after]
        self.assertLess(max(peaks), 100, "it ran in what the eater had left")


if __name__ == "__main__":
    unittest.main()
