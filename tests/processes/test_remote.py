"""Workers over HTTPS: a real site, a real worker without a database, and what goes wrong between them."""
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

import jobqueue
import worker
from tests.helpers.between import Between, Tunnel, make_certificate
from tests.helpers.faults import plant
from tests.helpers.support import Site, function_json, need, wait_until

TASKS = '''
import os, socket, sys, time
from pathlib import Path
from jobqueue import current_task, task

HERE = Path(__file__).parent

def say(word):
    context = current_task()
    line = "%s %d %d %s\\n" % (word, context.id, context.attempt, context.claim)
    handle = os.open(HERE / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)

@task(timeout=600)
def work(text: str = "x", until: str = "") -> dict:
    """Write down that it runs; with `until`, it ends once there is a file of that name."""
    say("START")
    print("working on", text, flush=True)
    current_task().progress(1, 4, "begun")
    (current_task().folder / ".scratch").write_text(text)     # no file that it leaves
    while until and not (HERE / until).exists():
        time.sleep(0.01)
    say("END")
    return {"text": text.upper()}

@task(max_retries=0)
def cover():
    """Close all that its end could come by, and go on; but not if it is run again."""
    say("START")
    (HERE / "covered").write_text(str(os.getpid()))
    if current_task().attempt == 1:
        while not (HERE / "uncovered").exists():        # until its worker stands still
            time.sleep(0.01)
        os.closerange(3, 256)
        time.sleep(60)

@task
def nothing(n: int):
    """As quick as can be."""

@task
def fan(n: int):
    return [task.id for task in [work.enqueue(text=str(n)) for n in range(n)]] + work.enqueue_many(
        [{"text": "many %d" % n} for n in range(n)])

@task(max_retries=1, retry_delay=0)
def fails():
    raise ValueError("no luck")

@task
def refused():
    work.enqueue(text="x", surprise=1)

@task
def large(n: int, text: str = "x"):
    return text * n

@task
def flood(n: int):
    for number in range(n):
        print("line %d of very many that are printed at once" % number)

@task
def escapes(n: int):
    for _ in range(n):
        print("\\x1b" * 1000 + "\u65e5" * 1000)
    return "\u65e5" * 200_000

@task(on_crash="fail")
def forge(line: str):
    """Say what the runner would never say."""
    for number in range(3, 256):
        try:
            link = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        link.sendall(line.replace("CLAIM", current_task().claim).encode() + b"\\n")
    time.sleep(3)

@task
def knows():
    parent = os.getppid()
    return {"environment": "".join(map(str, os.environ.items())),
            "lines": [Path("/proc/%s/cmdline" % pid).read_text() for pid in ("self", parent)]}
'''


def seconds_of(pid):
    """The processor time that a process took so far."""
    fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class RemoteCase(unittest.TestCase):
    """A site that runs nothing itself, its server, and a machine elsewhere."""

    harmed = False                      # True: Between stands between

    def setUp(self):
        self.site = Site(NbMaxWorker=0)
        self.addCleanup(self.site.close)
        self.site.start_server()
        self.machine = Site(TASKS, users=False, folder="strong machine")
        self.addCleanup(self.machine.close)
        self.address = self.site.address.rstrip("/")
        if self.harmed:
            self.between = Between(self.address)
            self.addCleanup(self.between.close)
            self.address = self.between.address
        self.token = self.machine.home / "token"
        self.token.write_text(self.site.token("ana", "worker"))
        self.token.chmod(0o600)
        self.said = (self.machine.home / "said").open("a+", encoding="utf-8")
        self.addCleanup(self.said.close)

    def start(self, *more, address=None, **environment):
        """Start the remote worker, and wait until it is known."""
        child = subprocess.Popen(
            [self.machine.interpreter, "worker.py", "--verbose", "--server", address or self.address,
             "--token-file", "token", *more], cwd=self.machine.home, stdin=subprocess.DEVNULL,
            stderr=self.said, env={**self.machine.environment, **environment})
        self.machine._children.append(child)
        return child

    def begin(self, *more, **environment):
        """The same, and wait until the site knows it."""
        child = self.start(*more, **environment)
        wait_until(lambda: self.site.rows("SELECT 1 FROM worker WHERE pid=?", (child.pid,)))
        return child

    def add(self, function="work", **arguments):
        return self.site.add(function, **arguments)

    def wait(self, task_id, status="succeeded", seconds=60):
        """The task once it has ended, with this status."""
        found = self.site.wait(task_id, seconds)
        self.assertEqual(found["status"], status, (found, self.complaints()))
        return found

    def complaints(self):
        self.said.seek(0)
        return self.said.read()

    def ledger(self):
        """[(word, task id, attempt)] as the functions wrote them."""
        path = self.machine.home / "ledger"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(word, int(task), int(attempt)) for word, task, attempt, _ in map(str.split, lines)]

    def runs(self, task_id):
        return [word for word, task, _ in self.ledger() if task == task_id]

    def let_go(self, name="go"):
        (self.machine.home / name).touch()

    def spooled(self):
        return list((self.machine.home / "data-remote").glob("*/*.outcome"))


class Working(RemoteCase):
    def test_a_task_of_the_site_runs_elsewhere_and_what_it_says_is_seen(self):
        self.begin()
        task_id = self.add(text="hello", until="go")
        wait_until(lambda: self.site.json("show", task_id)["message"] == "begun")
        wait_until(lambda: "working on hello" in self.site.run("log", task_id).stdout)
        self.let_go()
        self.assertEqual(self.wait(task_id)["result"], {"text": "HELLO"})
        self.assertEqual(self.runs(task_id), ["START", "END"])
        wait_until(lambda: not self.spooled())
        self.assertEqual(list((self.machine.home / "data-remote").glob("*/work-*/*")), [])
        self.assertFalse(self.machine.data.exists(), "it needs no database")

    def test_its_cpu_time_and_memory_are_seen_while_it_runs(self):
        plant(self.machine, "\nRENEW_SECONDS = 1.0\n")
        self.begin()
        task_id = self.add(until="go")
        [first, *_] = wait_until(lambda: self.site.json("show", task_id)["samples"])
        self.assertGreater(first["memory"], 1 << 20)
        self.let_go()
        self.assertIsNone(self.wait(task_id)["samples"])

    def test_tasks_are_added_from_inside_for_the_same_owner(self):
        self.begin()
        ids = self.wait(self.add("fan", n=5))["result"]
        self.assertEqual(len(set(ids)), 10)
        for task_id in ids:
            self.wait(task_id)
            self.assertEqual(self.runs(task_id), ["START", "END"])
        self.assertEqual({row["owner_id"] for row in self.site.rows("SELECT owner_id FROM task")}, {1})
        failed = self.wait(self.add("refused"), "failed")
        self.assertIn("surprise", failed["error"]["message"])

    def test_an_error_is_retried_and_its_traceback_kept(self):
        self.begin()
        task_id = self.add("fails")
        failed = self.wait(task_id, "failed")
        self.assertEqual((failed["attempts"], failed["error"]["type"]), (2, "ValueError"))
        self.assertIn("no luck", self.site.run("log", task_id).stdout)

    def test_a_cancel_ends_it(self):
        self.begin()
        task_id = self.add(until="never")
        wait_until(lambda: self.runs(task_id))
        self.site.run("cancel", task_id)
        self.wait(task_id, "cancelled")
        self.wait(self.add(text="next"))

    def test_floods_and_large_results_end_within_the_limits(self):
        self.begin()
        task_id = self.add("flood", n=100_000)
        self.wait(task_id)
        log = self.site.run("log", task_id).stdout
        self.assertIn("line 0 of", log)
        self.assertIn("line 99999 of", log)
        self.assertEqual(len(self.wait(self.add("large", n=500_000))["result"]), 500_000)
        self.wait(self.add("escapes", n=1000))      # six bytes each as JSON
        failed = self.wait(self.add("large", n=400_000, text="\u65e5"), "failed")
        self.assertIn("larger than", failed["error"]["message"])
        failed = self.wait(self.add("large", n=1_040_000), "failed")
        self.assertIn("larger than", failed["error"]["message"])

    def test_forged_messages_end_their_task_and_not_the_worker(self):
        child = self.begin()
        for line in '{"claim":"CLAIM","results":true}', '{"claim":"CLAIM","outcome":5}', "no json":
            task = self.wait(self.add("forge", line=line), "failed")
            self.assertEqual(task["reason"], "crashed", line)
        self.wait(self.add(text="next"))
        self.assertIsNone(child.poll())

    def test_the_token_is_told_to_nobody(self):
        child, token = self.begin(), self.token.read_text()
        told = self.wait(self.add("knows"))["result"]
        self.assertNotIn(token, json.dumps(told))
        self.assertNotIn(token, Path("/proc/%d/environ" % child.pid).read_text())
        self.assertNotIn(token, self.complaints())

    def test_many_quick_ones_are_claimed_together_as_many_as_the_site_allows(self):
        child = self.begin()
        self.site.python("from jobqueue import JobQueue\n"
                         "JobQueue().enqueue_many('nothing', [{'n': n} for n in range(600)])")
        wait_until(lambda: self.site.value("SELECT count(*) FROM task WHERE status=2") == 600,
                   seconds=120)
        self.assertIsNone(child.poll())
        self.assertNotIn("refuses", self.complaints())

    def test_what_waits_behind_a_long_one_is_left_to_others(self):
        """Quick ones are claimed together; what has not begun after a moment goes back."""
        child = self.begin()
        quick = [self.add(text=str(number)) for number in range(12)]
        for task_id in quick:
            self.wait(task_id)
        self.site.run("queue", "pause", "remote")
        long, *behind = [self.add(until=until) for until in ("go", "", "", "")]
        self.site.run("queue", "resume", "remote")
        wait_until(lambda: self.runs(long))
        wait_until(lambda: self.site.value("SELECT count(*) FROM task WHERE status=0") == len(behind))
        before = seconds_of(child.pid)
        time.sleep(1.0)
        self.assertLess(seconds_of(child.pid) - before, 0.5, "it waits, and does not turn round")
        self.let_go()
        for task_id in behind:
            self.wait(task_id)
            self.assertEqual(self.runs(task_id), ["START", "END"])

    def test_newer_files_do_not_end_what_runs(self):
        self.begin()
        task_id = self.add(until="go")
        wait_until(lambda: self.runs(task_id))
        os.utime(self.machine.home / "worker.py", (1, 1))
        time.sleep(worker.CHECK_SECONDS + worker.GRACE_SECONDS + 1.0)
        self.let_go()
        self.wait(task_id)
        self.assertEqual(self.runs(task_id), ["START", "END"])
        wait_until(lambda: self.site.rows("SELECT 1 FROM activity WHERE event='worker_ended'"))

    def test_two_workers_of_one_folder_share_the_tasks_and_not_their_places(self):
        self.begin()
        self.begin()
        ids = [self.add(until="go") for _ in range(2)]
        wait_until(lambda: len(self.ledger()) == 2)
        self.let_go()
        for task_id in ids:
            self.wait(task_id)
        self.assertEqual(sorted(path.name for path in (self.machine.home / "data-remote").iterdir()),
                         ["1", "2"])


class Ending(RemoteCase):
    def test_a_signal_ends_it_in_order(self):
        child = self.begin()
        self.wait(self.add())
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(30), 0)
        self.assertEqual(self.site.rows("SELECT * FROM worker"), [])

    def test_what_runs_then_is_interrupted_and_told(self):
        child = self.begin()
        task_id = self.add(until="never")
        wait_until(lambda: self.runs(task_id))
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(30), 0)
        row = self.site.rows("SELECT status, interruptions, crashes FROM task")[0]
        self.assertEqual(tuple(row), (jobqueue.PENDING, 1, 0))

    def test_a_killed_one_is_noticed_when_it_is_there_again(self):
        child = self.begin()
        task_id = self.add(until="go")
        wait_until(lambda: self.runs(task_id))
        child.kill()
        wait_until(lambda: not self.machine.runners())
        self.let_go()
        self.begin()
        self.wait(task_id)
        self.assertEqual(self.site.json("show", task_id)["crashes"], 1)
        self.assertEqual(self.runs(task_id).count("END"), 1)

    def test_a_runner_that_cannot_see_it_die_is_ended_before_the_task_runs_again(self):
        child = self.begin()
        task_id = self.add("cover")
        wait_until(lambda: self.runs(task_id))
        wait_until(lambda: (self.machine.home / "covered").exists())
        first = int((self.machine.home / "covered").read_text())
        self.addCleanup(lambda: jobqueue.birth(first) and os.kill(first, signal.SIGKILL))
        child.send_signal(signal.SIGSTOP)       # it would end a runner whose channel is closed
        (self.machine.home / "uncovered").touch()
        wait_until(lambda: len(os.listdir("/proc/%d/fd" % first)) < 4)
        child.kill()
        child.wait()
        self.assertTrue(jobqueue.birth(first))
        self.begin()
        wait_until(lambda: len(self.runs(task_id)) > 1)
        self.assertIsNone(jobqueue.birth(first), "the first run goes on")
        self.wait(task_id)

    def test_what_it_did_not_tell_is_told_by_the_next_one(self):
        child = self.begin()
        task_id = self.add(until="go")
        wait_until(lambda: self.runs(task_id))
        self.site.stop_server()
        self.let_go()
        wait_until(self.spooled)
        child.kill()
        child.wait()
        self.site.start_server()
        self.address = self.site.address.rstrip("/")
        self.start()
        self.wait(task_id)
        self.assertEqual(self.runs(task_id), ["START", "END"])
        self.assertEqual(self.site.json("show", task_id)["attempts"], 1)

    def test_the_folder_of_a_worker_that_lives_may_be_copied(self):
        self.begin()
        task_id = self.add(until="go")
        wait_until(lambda: self.runs(task_id))
        folder = self.machine.home / "data-remote"
        shutil.copytree(folder, self.machine.home / "copy")
        (self.machine.home / "copy" / "1" / ("%032x.outcome" % 1)).touch()     # as after a power cut
        self.begin("--data", "copy")
        self.wait(self.add(text="of the copy"))
        self.let_go()
        self.wait(task_id)
        self.assertEqual(self.runs(task_id), ["START", "END"])

    def test_what_a_broken_file_cannot_run_is_left_to_others(self):
        self.begin()
        self.wait(self.add())
        text = (self.machine.home / "tasks.py").read_text()
        self.machine.write_tasks("def half(")
        task_id = self.add()
        wait_until(lambda: self.site.rows("SELECT 1 FROM task WHERE id=? AND put_backs>0", (task_id,)))
        self.assertIn("tasks.py cannot be read", self.complaints())
        self.machine.write_tasks(text)
        self.wait(task_id)
        self.assertEqual(self.runs(task_id), ["START", "END"])

    def test_newer_files_are_used_and_its_functions_are_offered_meanwhile(self):
        child = self.begin()
        os.utime(self.machine.home / "worker.py", (1, 1))
        wait_until(lambda: self.site.rows("SELECT 1 FROM activity WHERE event='worker_ended'"))
        self.assertIsNone(child.poll())
        self.wait(self.add())

    def test_who_is_refused_says_why_and_ends(self):
        self.token.write_text("jq_wrong")
        child = self.start()
        self.assertEqual(child.wait(30), 5)
        self.assertIn("token is not known", self.complaints())

    def test_mistakes_are_told_in_one_line(self):
        for words, more, address in (
                ("http: is for this machine only", [], "http://example.org"),
                ("must be an address", [], "example.org"), ("chmod 600", [], None)):
            if words == "chmod 600":
                self.token.chmod(0o644)
            child = self.start(*more, address=address)
            self.assertNotEqual(child.wait(30), 0)
            self.assertIn(words, self.complaints())
        self.token.chmod(0o600)
        (self.machine.home / "tasks.py").unlink()
        self.assertNotEqual(self.start().wait(30), 0)
        self.assertNotIn("Traceback", self.complaints())


class Outages(RemoteCase):
    """Whatever is lost between worker and site, each task runs once."""

    harmed = True

    def check_once(self, ids):
        for task_id in ids:
            found = self.wait(task_id)
            self.assertEqual((found["attempts"], self.runs(task_id)), (1, ["START", "END"]),
                             self.between.calls)

    def test_each_call_is_harmed_once_in_each_way(self):
        self.begin()
        for harm in ("before", "after", "html", "half", "twice", "late"):
            with self.subTest(harm):
                self.between.harm = {words: [harm] for words in (
                    "turn claim", "turn start", "turn hold", "turn end", "tasks")}
                fan = self.add("fan", n=2)
                self.check_once(self.wait(fan)["result"])
                self.assertEqual([len(found) for words, found in self.between.harm.items()
                                  if words not in ("turn hold",)], [0] * 4)

    def test_hello_is_harmed(self):
        self.between.harm = {"hello": ["before", "after", "html", "half", "twice"]}
        self.begin()
        self.check_once([self.add()])
        wait_until(lambda: not self.between.harm["hello"])

    def test_the_site_restarts_while_a_task_runs(self):
        self.begin()
        task_id = self.add(until="go")
        wait_until(lambda: self.runs(task_id))
        self.site.stop_server(signal.SIGKILL)
        self.let_go()
        wait_until(self.spooled)
        self.between.target = self.site.start_server()
        self.check_once([task_id, self.add()])

    def test_a_claim_whose_answers_never_arrive_goes_back_when_it_leaves(self):
        self.between.harm = {"turn claim": ["after"] * 100}
        child = self.begin()
        task_id = self.add()
        wait_until(lambda: self.site.rows("SELECT 1 FROM task WHERE status=1"))
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(30), 0)
        row = self.site.rows("SELECT status, crashes, put_backs FROM task WHERE id=?", (task_id,))[0]
        self.assertEqual(tuple(row), (jobqueue.PENDING, 0, 1))

    def test_what_it_has_and_has_not_begun_goes_back_when_it_leaves(self):
        self.between.harm = {"turn start": ["html"] * 100}
        child = self.begin()
        task_id = self.add()
        wait_until(lambda: "turn start" in dict(self.between.calls))
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(30), 0)
        row = self.site.rows("SELECT status, crashes, put_backs FROM task WHERE id=?", (task_id,))[0]
        self.assertEqual(tuple(row), (jobqueue.PENDING, 0, 1))

    def test_who_is_cut_off_for_a_lease_kills_its_task_before_another_may_have_it(self):
        fence = ("import sys, jobqueue, worker\nfrom types import SimpleNamespace as N\n")
        done = subprocess.run([self.machine.interpreter, "-c", fence + FENCE], cwd=self.machine.home,
                              stdout=subprocess.PIPE, encoding="utf-8", timeout=60)
        self.assertEqual(done.stdout.split(), ["None", "lost"])


FENCE = '''
clock = N(now=lambda: 0, monotonic=lambda: clock.at)
clock.at = 0.0
site = N(claims=None, lease_seconds=180.0, clock=clock)
site.database = site
row = {"id": 1, "claim": "x", "timeout": 1e9, "state": "running", "claimed": 0.0}
attempt = worker.RemoteAttempt(site, N(signal=lambda number: None), row)
attempt.log = N(is_full=False)
clock.at = 140.0
attempt._hold_or_signal(clock.at)
print(attempt.ending)
clock.at = 160.0
attempt._hold_or_signal(clock.at)
print(attempt.ending)
'''


class Waiting(RemoteCase):
    """Our own server answers a claim when there is a task."""

    session = "%032x" % 5

    def setUp(self):
        super().setUp()
        self.sequence = 0
        work = {**function_json("work", {"text": {"type": "string"}}), "external": False}
        self.ask("hello", protocol=1, machine="m", version="1", functions=[work])

    def send(self, name, **given):
        """A connection on which this call was sent."""
        parts = urlsplit(self.site.address)
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        self.addCleanup(link.close)
        body = json.dumps({"session": self.session, **given})
        link.request("POST", "/api/worker/" + name, body, {
            "X-Api-Key": self.token.read_text(), "Content-Type": "application/json"})
        return link

    def ask(self, name, **given):
        return json.loads(self.send(name, **given).getresponse().read())

    def claim(self):
        """A connection on which a claim waits."""
        self.sequence += 1
        link = self.send("turn", sequence=self.sequence,
                         claim={"claims": ["%032x" % self.sequence], "wait": 20})
        wait_until(lambda: self.site.value("SELECT sequence FROM worker") == self.sequence)
        return link

    def test_a_task_that_comes_is_told_at_once(self):
        link = self.claim()
        task_id = self.add(text="x")
        self.assertEqual(json.loads(link.getresponse().read())["tasks"][0]["id"], task_id)

    def test_who_has_left_gets_nothing(self):
        self.claim().close()
        task_id = self.add(text="x")
        time.sleep(2 * jobqueue.WAIT_LOOK_SECONDS)
        self.assertEqual(self.site.value("SELECT status FROM task WHERE id=?", (task_id,)), 0)

    def test_a_server_that_stops_waits_for_nobody(self):
        link = self.claim()
        self.assertEqual(self.site.stop_server(), 0)
        with contextlib.suppress(OSError, http.client.HTTPException):
            link.getresponse()


class Doors(RemoteCase):
    def test_a_site_under_cgi_is_asked_every_few_seconds(self):
        between = Between(cgi=self.site)
        self.addCleanup(between.close)
        self.site.stop_server()
        self.address = between.address
        self.begin()
        ids = [self.add(text=str(number)) for number in range(3)]
        for task_id in ids:
            self.wait(task_id)
            self.assertEqual(self.runs(task_id), ["START", "END"])
        count = len(between.calls)
        wait_until(lambda: len(between.calls) > count)

    def test_certificates_are_checked_and_a_proxy_is_used(self):
        need(any(os.access(os.path.join(folder, "openssl"), os.X_OK)
                 for folder in os.defpath.split(os.pathsep)), "openssl")
        certificate = make_certificate(str(self.machine.home))
        between, tunnel = Between(self.address, certificate=certificate), Tunnel()
        self.addCleanup(between.close)
        self.addCleanup(tunnel.close)
        self.address = between.address
        child = self.start()
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in self.complaints())
        self.assertEqual(between.calls, [])
        child.kill()
        self.begin("--ca", "cert.pem", https_proxy=tunnel.address.replace("//", "//me:pass%20word@"))
        self.wait(self.add("fan", n=3))
        self.assertGreaterEqual(len(between.calls), 5)
        self.assertEqual(set(tunnel.asked), {between.address.partition("//")[2]})
        self.assertEqual(tunnel.known, {"Basic bWU6cGFzcyB3b3Jk"})

    def test_too_slow_and_a_redirect_are_no_answers_and_the_token_goes_nowhere_else(self):
        import http.server
        import threading
        asked = []

        slow = json.dumps({"status": 408, "code": "bad_request", "detail": "too slow", "errors": []})

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                asked.append(self.path)
                if len(asked) == 1:
                    self.send_response(408)
                    self.send_header("Content-Length", str(len(slow)))
                    self.end_headers()
                    self.wfile.write(slow.encode())
                    return
                self.send_response(307)
                self.send_header("Location", "http://127.0.0.1:%d/elsewhere" % self.server.server_port)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.start(address="http://127.0.0.1:%d" % server.server_port)
        wait_until(lambda: len(asked) >= 3)
        self.assertEqual(set(asked), {"/api/worker/hello"})
        self.assertIn("too slow", self.complaints())
        self.assertIn("not jobqueue's", self.complaints())


if __name__ == "__main__":
    unittest.main()
