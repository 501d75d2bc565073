"""The server under abuse (H1-H16): what other files do not show, most of it with real processes.

JOBQUEUE_TEST_LOAD makes the long forms run: 20,000 hostile requests instead of 2,000, each injection in
each wrapping, and slow clients meet the deadlines as they are.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import jobqueue
import worker
from tests.helpers.server import HEALTH, HOST, Link, Listener, run_request
from tests.helpers.support import PASSWORD, Site, TestCase, need, wait_until
from tests.helpers.web import BODIES, ROUTES, SITE, UPLOADS, Visitor, WebTestCase, call, openapi, random_word

LONG = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))
TASKS = """
from jobqueue import task

@task
def add(a: int, b: int = 0) -> int:
    return a + b
"""
UNSAFE = [(method, path, who) for method, path, who in ROUTES if method != "GET"]
SERVE = "import jobqueue; %s; jobqueue.main(['serve', '--port', '0'])"


def serve(case, site, first="pass"):
    """Start a site's server, what it complains of kept in errors.txt; (host, port)."""
    errors = open(site.home / "errors.txt", "wb")
    case.addCleanup(errors.close)
    site.server = site._start(["-c", SERVE % first], stdout=subprocess.PIPE, stderr=errors,
                              encoding="utf-8")
    site.address = re.search(r"http://\S+", site.server.stdout.readline())[0]
    return "127.0.0.1", int(re.search(r":(\d+)/", site.address)[1])


class ServerProcess(unittest.TestCase):
    """A server process of its own, without workers; what it complains of is a failure."""

    def setUp(self):
        self.site = Site(TASKS)
        self.addCleanup(self.site.close)
        self.site.settings(NbMaxWorker=0)
        self.site.run("add", "add", "a=1", "--owner", "bob")
        self.token = self.site.token("bob")
        self.start()

    def start(self, first="pass"):
        """Start it, after a Python statement that may change its constants."""
        self.address = serve(self, self.site, first)

    def tearDown(self):
        """It lives, answers a right request, complained of nothing, and its data is sound."""
        self.assertEqual(self.ask(HEALTH)[0], 200)
        self.assertIsNone(self.site.server.poll())
        self.site.stop_server()
        said = (self.site.home / "errors.txt").read_text().splitlines()
        self.assertEqual([line for line in said if not self.may_say(line)], [])
        self.assertEqual(self.site.damage(), [])

    @staticmethod
    def may_say(line):
        """True for what it may complain of."""
        return False

    def ask(self, data):
        """The answer to bytes on a connection of their own."""
        with Link(self.address) as link:
            return link.send(data).answer()

    def request(self, method, path, body=b"", extra=b""):
        """A right request as bytes, with bob's token."""
        return (b"%s %s HTTP/1.1\r\n" % (method.encode(), path.encode()) + HOST
                + b"Authorization: Bearer " + self.token.encode() + b"\r\n" + extra
                + b"Content-Type: application/json\r\n"
                + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def told(self, name):
        """A number that the kernel tells of the server."""
        text = Path("/proc/%d/status" % self.site.server.pid).read_text()
        return int(re.search(name + r":\s+(\d+)", text)[1])

    def memory(self):
        """Resident memory of the server in megabytes."""
        return self.told("VmRSS") / 1024

    def await_calm(self):
        """Wait until the server has nothing to do."""
        path = Path("/proc/%d/stat" % self.site.server.pid)

        def ticks():
            return sum(map(int, path.read_text().rpartition(")")[2].split()[11:13]))

        def is_calm():
            before = ticks()
            time.sleep(0.3)
            return ticks() - before <= 1

        wait_until(is_calm, 60, "calm")

    def sockets(self):
        """How many sockets the server has open."""
        folder = "/proc/%d/fd" % self.site.server.pid
        found = []
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.append(os.readlink(os.path.join(folder, name)))
        return sum(text.startswith("socket:") for text in found)


SIGNS = (
    b"GET ", b"POST ", b"HEAD ", b"/", b"/api/tasks", b"/healthz", b" HTTP/1.1", b" HTTP/1.0",
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b":", b"Host: localhost", b"Content-Length: 5",
    b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Connection: keep-alive",
    b"Expect: 100-continue", b"Cookie: ", b"jobqueue=", b"Authorization: Bearer ", b"{", b"}",
    b'"a"', b"[", b"%", b"%00", b"..", b"?", b"&", b"=", b"#", b"\0", b"\xff", b"\xc3\xa9", b" ",
    b"\t", b"9" * 19, b"-1", b"NaN")
INSERTIONS = (b"\r\n", b"\r\n\r\n", b"%00", b"%", b"..", b"\0", b"9" * 20, b"-", b"'", b'"',
              b"[" * 40, b"\xff")
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"X")


def random_request(chance):
    """Bytes that are sometimes nearly a request."""
    kind = chance.randrange(3)
    if kind == 0:
        return bytes(chance.randrange(256) for _ in range(chance.randint(0, 400)))
    if kind == 1:
        return b"".join(chance.choice(SIGNS) for _ in range(chance.randint(0, 60)))
    path = b"/" + b"".join(chance.choice(SIGNS).strip() for _ in range(chance.randint(0, 6)))
    body = bytes(chance.choice(b'{}[]":,0a \\\xff') for _ in range(chance.randint(0, 60)))
    lines = [b"%s %s HTTP/1.1" % (chance.choice(METHODS), path), b"Host: localhost",
             b"Content-Length: %d" % len(body)]
    for number in range(chance.randint(0, 4)):
        lines.append(b"X-%d: %s" % (number, chance.choice(SIGNS)))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def mutated(chance, data):
    """Bytes with one to three small changes."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place, kind = chance.randrange(len(data)), chance.randrange(5)
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            del data[place:place + chance.randint(1, 20)]
        elif kind == 2:
            data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 20)))
        elif kind == 3:
            data[place:place] = data[chance.randrange(len(data)):][:chance.randint(1, 80)]
        else:
            data[place:place] = chance.choice(INSERTIONS)
        data = data or bytearray(b"x")
    return bytes(data)


def count_created(status, body):
    """How many tasks an answer acknowledges."""
    return json.loads(body).get("created", 1) if status == 201 else 0


class Storm(ServerProcess):
    """Hostile requests, fixed seeds: no crash, hang or 500, no task but acknowledged ones (H2)."""

    COUNT = 10_000 if LONG else 1000
    THREADS = 4

    def attack(self, seed, make):
        """Send COUNT requests, several at a time; how often each status came."""
        before = self.site.value("SELECT count(*) FROM task")
        memory = self.memory()
        with ThreadPoolExecutor(self.THREADS) as pool:
            seeds = [random.Random(seed + number) for number in range(self.THREADS)]
            found = sum(pool.map(lambda chance: self.send_some(chance, make), seeds), [])
        self.assertEqual([data for status, data, _ in found if status in (408, 500)], [])
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE id>?", (before,)),
                         sum(count_created(status, body) for status, _, body in found))
        self.assertLess(self.memory() - memory, 50)
        statuses = [status for status, _, _ in found]
        return {status: statuses.count(status) for status in set(statuses)}

    def send_some(self, chance, make):
        """One client's share: [(status, what was sent, what was answered)]."""
        found = []
        for _ in range(self.COUNT // self.THREADS):
            data = b"".join(make(chance) for _ in range(chance.choice((1, 1, 1, 2))))
            with Link(self.address) as link:
                link.send(data)
                with contextlib.suppress(OSError):
                    link.finish()
                with contextlib.suppress(KeyError, ValueError):     # the answer to HEAD has no body
                    for answer in iter(link.answer, None):
                        found.append((answer[0], data, answer[2]))
        return found

    def valid(self):
        """(method, path, body) of right requests, but none that could change the token."""
        task = {"function": "add", "arguments": {"a": 1}}
        bodies = [("POST", "/api/tasks", task), ("POST", "/api/tasks", [task, task]),
                  ("POST", "/api/tasks", {**task, "queue": "default", "priority": -5, "delay": 60}),
                  ("POST", "/api/tasks/1/cancel", {}), ("POST", "/api/tasks/1/retry", {}),
                  ("PATCH", "/api/users/bob", {"password": "x", "current_password": "y"}),
                  ("PATCH", "/api/settings", {"linger": 3}), ("POST", "/api/users", {"name": "x"}),
                  ("POST", "/api/session", {"name": "bob", "password": "wrong"}),
                  ("POST", "/api/setup", {"code": "x", "name": "x", "password": "another horse"})]
        paths = ("/", "/healthz", "/static/app.js", "/api/functions",
                 "/api/tasks?limit=5&counts=1&q=a", "/api/tasks/1",
                 "/api/tasks/1/log?attempt=1&offset=0", "/api/activity?task=1&limit=9",
                 "/api/workers", "/api/tokens", "/api/session", "/api/users", "/api/settings")
        return [(method, path, json.dumps(body).encode()) for method, path, body in bodies] + [
            ("GET", path, b"") for path in paths]

    def mutated_request(self, chance):
        """A right request that is changed in its body, in its path, or anywhere."""
        method, path, body = chance.choice(self.valid())
        kind = chance.randrange(3)
        if kind == 0 and body:
            return self.request(method, path, mutated(chance, body))
        if kind == 1:
            path = bytes(sign for sign in mutated(chance, path.encode()) if 32 < sign < 127)
            return self.request(method, path.decode(), body)
        return mutated(chance, self.request(method, path, body))

    def test_random_requests(self):
        found = self.attack(20261121, random_request)
        self.assertGreater(found[400], self.COUNT // 4)

    def test_mutated_requests(self):
        found = self.attack(20261122, self.mutated_request)
        for status in (200, 201, 400, 401, 404, 422):
            self.assertIn(status, found)


class Slow(ServerProcess):
    """500 clients that send header or body byte by byte, or never read their answer (H4)."""

    EACH = (220, 220, 60)

    def start(self, first="pass"):
        short = "jobqueue.PATIENCE.update(idle=10, body=15, answer=15)"
        self.deadlines = (10, 30) if LONG else (10, 15)
        super().start(first if LONG else short)

    def setUp(self):
        super().setUp()
        import resource
        need(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1500, "1,500 open files")
        self.site._insert("log", {"task_id": 1, "attempt": 1, "start": 0, "length": 1 << 20,
                                  "text": "x" * (1 << 20)})
        self.over = threading.Event()
        self.failures = []

    def connect(self, data, kept=None):
        """A socket that has sent `data`; it takes hardly anything at once if `kept` is given."""
        link = socket.socket()
        self.addCleanup(link.close)
        if kept:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kept)
        link.connect(self.address)
        link.sendall(data)
        return link

    def use_it(self):
        """What a person does meanwhile, again and again."""
        chance = random.Random(1)
        data = [HEALTH, self.request("GET", "/api/tasks"), self.request("GET", "/static/app.js"),
                self.request("POST", "/api/tasks", b'{"function": "add", "arguments": {"a": 1}}')]
        while not self.over.wait(0.02):
            answer = self.ask(chance.choice(data))
            self.answered += 1
            if not answer or answer[0] not in (200, 201):
                self.failures.append(answer)

    def drip(self, links):
        """One more byte from each that is still connected."""
        for link in links:
            with contextlib.suppress(OSError):
                link.send(b"x", socket.MSG_DONTWAIT)

    def closed_after(self, links, baseline, most):
        """Let bytes trickle until the server has at most `baseline` sockets."""
        wait_until(lambda: self.drip(links) or self.sockets() <= baseline, most, "their end", 0.5)

    def test_they_hold_up_nobody_and_are_closed_in_time(self):
        baseline = self.sockets()
        pool = ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        self.addCleanup(self.over.set)
        heads, bodies, greedy = self.EACH
        log = self.request("GET", "/api/tasks/1/log?download=1&attempt=1")
        body = self.request("POST", "/api/tasks").replace(b"Length: 0", b"Length: 100000")
        stuck = [self.connect(log * 8, 4096) for _ in range(greedy)]
        self.await_calm()               # when no buffer takes any more
        early = [self.connect(b"GET / HTTP/1.1\r\nX: ") for _ in range(heads)]
        late = [self.connect(body) for _ in range(bodies)]
        self.answered = 0
        user = pool.submit(self.use_it)
        wait_until(lambda: self.sockets() >= baseline + len(early + late), what="all are connected")
        begun = self.answered
        wait_until(lambda: self.answered > begun + 10, what="answers to others")
        self.assertGreaterEqual(self.sockets(), baseline + len(early + late), "who was held up until then?")
        self.assertLessEqual(self.told("Threads"), 520)
        head_seconds, body_seconds = self.deadlines
        most = baseline + bodies + greedy + 3
        self.closed_after(early + late, most, head_seconds + 60)
        self.closed_after(late, baseline + 3, body_seconds + 60)
        wait_until(lambda: self.answered > 50, what="enough answers")
        self.over.set()
        user.result()
        self.assertEqual((len(stuck), self.failures), (greedy, []))


class Descriptors(ServerProcess):
    """A server that may open few files, and more clients than that."""

    def start(self, first="pass"):
        """Start it with 60 descriptors, of which it needs some itself."""
        super().start("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))")

    @staticmethod
    def may_say(line):
        """The housekeeping says so when it gets none."""
        return "Too many open files" in line

    def test_who_waits_makes_room_and_nothing_spins_meanwhile(self):
        for data in (b"", b"GET / HTTP/1.1\r\nX: ", HEALTH):
            with self.subTest(data):
                links = [Link(self.address).send(data) for _ in range(100)]
                for _ in range(5):
                    self.assertEqual(self.ask(HEALTH)[0], 200)
                    self.assertEqual(self.ask(self.request("GET", "/api/tasks"))[0], 200)
                self.await_calm()
                for link in links:
                    link.close()


class Bodies(ServerProcess):
    """Bodies that are too large, too short, packed or many (H5)."""

    def test_no_large_body_is_kept_in_memory(self):
        before = self.memory()
        for _ in range(10):
            for length in ((1 << 20) + 1, 10 << 30, 999_999_999_999):
                head = self.request("POST", "/api/tasks").replace(b": 0", b": %d" % length)
                link = Link(self.address)
                self.addCleanup(link.close)
                link.send(head)
                for _ in range(32):
                    link.send(b"x" * 65536)
                self.assertEqual(link.status(), 413)
        self.assertLess(self.memory() - before, 20)

    def test_a_packed_body_is_not_unpacked(self):
        import gzip
        bomb = gzip.compress(b" " * (100 << 20), 9)
        before = self.memory()
        answer = self.ask(self.request("POST", "/api/tasks", bomb, b"Content-Encoding: gzip\r\n"))
        self.assertEqual(answer[0], 415)
        self.assertLess(self.memory() - before, 20)

    def test_a_body_that_ends_early_adds_nothing(self):
        body = b'{"function": "add", "arguments": {"a": 1}}'
        data = self.request("POST", "/api/tasks", body + b" ")[:-1]
        with Link(self.address) as link:
            link.send(data).finish()
            self.assertIn(link.status(), (None, 400, 408))
        self.assertEqual(self.site.value("SELECT count(*) FROM task"), 1)

    def test_many_half_sent_bodies_of_nobody_do_not_fill_the_memory(self):
        before = self.memory()
        head = b"POST /api/session HTTP/1.1\r\n" + HOST + b"Content-Length: 1048576\r\n\r\n"
        for _ in range(200):
            link = Link(self.address)
            self.addCleanup(link.close)
            link.send(head + b" " * (1 << 19))
        self.assertEqual(self.ask(HEALTH)[0], 200)
        self.assertLess(self.memory() - before, 64)


class JsonEverywhere(WebTestCase):
    """What is no JSON, or no JSON that all read alike, is refused wherever a body is read (H6)."""

    TEXTS = (
        '{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', '{"a": 1e999}',
        '{"a": %s}' % ("9" * 5000), '{"a": %d}' % 2 ** 63, '{"a": 1, "a": 2}',
        '{"a": "\\ud800"}', '{"\\udfff": 1}',
        '{"a": "\\u0000"}', "{", "[", '"', "nul", "", " ", "01", "{'a': 1}", "[" * 100_000,
        '{"a":' * 100_000, '{"a": 1}x', "[1,]", '"a"', "7", "null", "true")
    BYTES = (b"\xff\xfe{\0}\0", b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}',
             b"\0", b"\x1f\x8b")

    def test_in_every_route_with_a_body(self):
        people, worker = self.program("ana"), self.program("ana", "worker")
        before = self.database.value("SELECT count(*) FROM activity")
        taken = [(method, path, worker if who == jobqueue.WORKER else people)
                 for method, path, who in UNSAFE if path in BODIES and method != "DELETE"
                 and path != "/api/worker/tasks/ID"]    # which asks first whose task that is
        self.assertGreaterEqual(len(taken), 7)
        for method, path, ana in taken:
            address = path.replace("NAME", "eve").replace("ID", "1")
            for body in [text.encode() for text in self.TEXTS] + list(self.BYTES):
                with self.subTest(method=method, path=path, body=body[:20]):
                    self.check(ana.ask(method, address, body), 400, "malformed")
        self.assertEqual(self.database.value("SELECT count(*) FROM activity"), before)


class Traversal(ServerProcess):
    """500 ways to ask for a file that is none of the page's, as raw bytes (H7)."""

    STEPS = ("..", ".", "%2e%2e", "%252e%252e", "..%5c", "..%2f", "..\\", "%c0%ae%c0%ae", "....//",
             "..;", "%00", "static", "data", "", "~", "%2e", ".%2e", "%u002e", "..%00", "..%0d%0a",
             "index.html")
    STARTS = ("/static/", "/", "//", "/api/", "/static//", "/./", "//evil.example/")

    def setUp(self):
        super().setUp()
        (self.site.data / "canary.txt").write_text("canary")
        database = next(self.site.data.glob("jobqueue-*.db"))
        self.targets = (
            "data/" + database.name, "data/" + database.name + "-wal", "data/canary.txt", "data",
            "jobqueue.py", "worker.py", "tasks.py", "etc/passwd", "errors.txt",
            quote(str(database), safe=""), quote(str(database)).lstrip("/"))

    def test_none_gets_anything(self):
        chance = random.Random(7)
        statuses = []
        for _ in range(500):
            steps = [chance.choice(self.STEPS) for _ in range(chance.randint(1, 6))]
            path = chance.choice(self.STARTS) + "/".join(steps + [chance.choice(self.targets)])
            line = b"GET " + path.encode() + b" HTTP/1.1\r\n"
            status, headers, body = self.ask(line + HOST + b"\r\n")
            statuses.append(status)
            self.assertIn(status, (400, 401, 404), path)
            self.assertEqual(headers["content-type"], "application/problem+json", path)
            self.assertNotIn("location", headers, path)
            self.assertNotIn(b"canary", body.replace(path.encode(), b""), path)
        self.assertGreater(statuses.count(404), 300)


class Numbers(WebTestCase):
    """Numbers of any size are bounded, refused or kept, in the address and in bodies (H8)."""

    VALUES = (0, -1, 1, 0.5, -0.0, 1e-320, 1e15, 1e300, -1e300, 922337203685, 10 ** 9, 10 ** 15,
              2 ** 31, 2 ** 32, 2 ** 53, -2 ** 53)
    TEXTS = ("-1", "0", "1000000000", "922337203685", "1000000000000000000", ";drop", "1e9", "-0")
    FIELDS = ("priority", "max_retries", "retry_delay", "retry_backoff", "timeout", "delay")

    def setUp(self):
        super().setUp()
        self.asked, self.spent = 0, 0.0

    def timed(self, visitor, *question):
        started = time.process_time()
        reply = visitor.ask(*question)
        self.spent += time.process_time() - started
        self.asked += 1
        return reply

    def tearDown(self):
        """All together have cost no more than so many usual questions."""
        spent, asked, self.spent = self.spent, self.asked, 0.0
        for _ in range(asked):
            self.timed(self.ana, "POST", "/api/tasks", {"function": "add", "arguments": {"a": 1}})
        self.assertLess(spent, 20 * self.spent + (asked == 0))
        super().tearDown()

    def test_in_the_fields_of_a_task(self):
        for field in self.FIELDS:
            for value in self.VALUES:
                with self.subTest(field=field, value=value):
                    body = {"function": "add", "arguments": {"a": 1}, field: value}
                    reply = self.timed(self.ana, "POST", "/api/tasks", body)
                    self.assertIn(reply.status, (201, 422))
                    if reply.status == 422:
                        self.assertEqual(reply.fields, [field])
        self.check(self.ana.get("/api/tasks?limit=200&counts=1"), 200)
        self.tick()

    def test_in_settings(self):
        for name, setting in jobqueue.SETTINGS.items():
            schema = setting.schema
            for value in self.VALUES if "maximum" in schema else ():
                with self.subTest(name=name, value=value):
                    reply = self.timed(self.ana, "PATCH", "/api/settings", {name: value})
                    right = schema["minimum"] <= value <= schema["maximum"] and (
                        schema["type"] == "number" or value == int(value))
                    self.assertEqual(reply.status, 200 if right else 422)
                    self.check(self.ana.get("/api/workers"), 200)

    def test_in_the_address_of_a_long_list(self):
        self.add_many("bob", 3000)
        for name in ("limit", "cursor", "days", "page", "offset", "sort", "per_page"):
            for value in self.TEXTS:
                for path in ("/api/tasks?counts=1&%s=%s", "/api/activity?%s=%s"):
                    reply = self.timed(self.bob, "GET", path % (name, value))
                    self.assertIn(reply.status, (200, 400))
                    if reply.status == 200:
                        rows = reply.json.get("tasks", reply.json.get("activity"))
                        self.assertLessEqual(len(rows), jobqueue.PAGE_ROWS_MAX)


# {m} is a word that stands nowhere else: a text that finds something was understood as SQL.
INJECTIONS = (
    "{m}' OR '1'='1", "{m}' OR 1=1 --", "{m}'; DROP TABLE task; --", "{m}\" OR \"\"=\"",
    "{m}') OR ('1'='1", "{m}' UNION SELECT password FROM user --",
    "{m}' AND (SELECT load_extension('x'))", "{m}%' OR '%'='", "'{m}", "''{m}", "{m}\\' OR 1=1 --",
    "{m}/**/OR/**/1=1", "{m}';--", "{m}' || (SELECT 1) || '", "?{m}", ":{m}", "@{m}", "${m}",
    "{m}' LIKE '%", "{m}*", "{m}' GLOB '*", "{m}` OR `a`=`a", "[{m}] OR 1=1", "x'{m}'",
    "{m}' COLLATE NOCASE OR 1 --", "{m}\uff07 OR 1=1", "{m}\u2019 OR 1=1", "{m}'/*", "*/{m}",
    "{m}'; ATTACH 'x' AS y; --", "{m}'; PRAGMA user_version=99; --", "{m}'; VACUUM; --",
    "{m}' ESCAPE '\\", "{m}' IN (SELECT name FROM user) --", "{m}') UNION ALL SELECT 1,2,3 --",
    "0{m} OR 1", "1;{m}", "{m}' AND randomblob(1000000000) --", "{m}'||char(39)", "{m} ORDER BY 1")
WRAPPINGS = ("%s", "(%s)", "%s ;", "1 %s", "a' %s")


class Injection(WebTestCase):
    """A text that means something to SQL does what a random text does, at every place (H10)."""

    TABLES = ("user", "function", "setting", "state", "task")

    def setUp(self):
        super().setUp()
        self.add_many("bob", 3)
        self.program_of = {name: self.program(name) for name in ("ana", "bob")}
        self.program_of["worker"] = self.program("ana", "worker")
        self.before = self.state()

    def state(self):
        """The schema and how much is in the tables that nothing here should change."""
        schema = self.database.all("SELECT type, name, sql FROM sqlite_master")
        return ([tuple(row) for row in schema], self.database.value("PRAGMA user_version"),
                [self.database.value("SELECT count(*) FROM " + table) for table in self.TABLES])

    def texts(self, place):
        """40 texts, each with a word of its own, at each place in other wrappings."""
        return [wrapping % text.replace("{m}", random_word()) for number, text in enumerate(INJECTIONS)
                for wrapping in (WRAPPINGS if LONG else [WRAPPINGS[(place + number) % len(WRAPPINGS)]])]

    def places(self):
        """Where a text can be put: {name: function that sends it and returns the Reply}."""
        places = {}
        for (method, path), operation in openapi().operations().items():
            for part in map(openapi().resolve, operation.get("parameters", ())):
                if part["in"] == "query":
                    send = self.in_query(path.replace("{id}", "1"), part["name"])
                    places["query %s %s" % (path, part["name"])] = send
            if "{" in path and operation["x-who"] != jobqueue.CLAIM:
                places["path %s %s" % (method, path)] = self.in_path(method, path)
            body = BODIES.get(path.replace("{name}", "NAME").replace("{id}", "ID"), {})
            for name in body if "requestBody" in operation else ():
                places["body %s %s" % (path, name)] = self.in_body(method, path, body, name)
        for name in ("Cookie", "Authorization", "X_Api_Key", "If_None_Match", "Accept_Encoding"):
            places["header " + name] = self.in_header(name)
        return places

    def in_query(self, path, name):
        return lambda text: self.program_of["bob"].get(
            "%s?%s=%s" % (path, name, quote(text, safe="")))

    def in_path(self, method, path):
        path = path.replace("{id}", "1", path.count("{") - 1)
        before, after = re.split(r"\{\w+\}", path)
        body = {} if method in ("POST", "PATCH") else None
        return lambda text: self.program_of["ana"].ask(
            method, before + quote(text, safe="") + after, body)

    def in_body(self, method, path, body, name):
        where = path.replace("{name}", "eve").replace("{id}", "1")

        def send(text):
            self.write("DELETE FROM throttle")
            given = {key: value for key, value in body.items() if key != "current_password"}
            who = self.program_of["worker" if "/worker/" in path else "ana"]
            return who.ask(method, where, {**given, name: text})
        return send

    def in_header(self, name):
        start = {"Cookie": "jobqueue=", "Authorization": "Bearer "}.get(name, "")

        def send(text):
            value = (start + text).encode().decode("latin-1")
            return self.nobody.get("/api/session", **{name: value})
        return send

    def outcome(self, reply):
        """What an answer says, but for the words that were sent."""
        said = reply.json if reply.body and "json" in reply.kind else {}
        rows = [len(value) for value in said.values() if isinstance(value, list)]
        return reply.status, said.get("code"), sorted(said), rows

    def test_at_every_place(self):
        places = self.places()
        self.assertGreater(len(places), 30)
        for place, (where, send) in enumerate(places.items()):
            harmless = random_word(), random_word() + " , é-"
            usual = [self.outcome(send(text)) for text in harmless]
            for text in self.texts(place):
                self.assertIn(self.outcome(send(text)), usual, (where, text))
            self.undo()
            self.assertEqual(self.state(), self.before, where)

    def undo(self):
        """Users whose names were accepted go again."""
        self.write("DELETE FROM user WHERE name NOT IN ('ana', 'bob', 'eve')")


# Ways to write a host that is not the one that was declared; most of them mean this machine.
HOSTS = (
    "127.0.0.1 127.1 127.0.1 0 0.0.0.0 localhost LOCALHOST localhost. 2130706433 0x7f000001 "
    "017700000001 0x7f.0.0.1 0177.0.0.1 127.0.0.1. 127.000.000.001 127.255.255.254 [::1] [::] "
    "[::ffff:127.0.0.1] [0:0:0:0:0:ffff:7f00:1] [64:ff9b::7f00:1] 169.254.169.254 10.0.0.1 "
    "192.168.0.1 172.16.0.1 100.64.0.1 192.0.2.1 [fe80::1] [fd00::1] 127.0.0.1%00 user@127.0.0.1 "
    "user:pass@127.0.0.1 example.org@127.0.0.1 127.0.0.1#@example.org 127.0.0.1?@example.org "
    "\uff11\uff12\uff17.0.0.1 \u2460\u2461\u2466.0.0.1 127\u30020\u30020\u30021").split()
ADDRESSES = ["http://%s:PORT/x" % host for host in HOSTS] + [
    "https://127.0.0.1:PORT/", "//127.0.0.1:PORT/", "///127.0.0.1:PORT/", "\\\\127.0.0.1:PORT\\",
    "/\\127.0.0.1:PORT/", " http://127.0.0.1:PORT/", "\thttp://127.0.0.1:PORT/",
    "HTTP://127.0.0.1:PORT/", "http:/127.0.0.1:PORT/", "http:127.0.0.1:PORT/",
    "file:///etc/hostname", "ftp://127.0.0.1:PORT/x", "gopher://127.0.0.1:PORT/x",
    "data:text/plain,x", "jar:http://127.0.0.1:PORT!/", "dict://127.0.0.1:PORT/x",
    "http://127.0.0.1:22/", "@127.0.0.1:PORT/", ":PORT/", "..//127.0.0.1:PORT/",
    "?@127.0.0.1:PORT/", "#@127.0.0.1:PORT/", "x.127.0.0.1:PORT/"]
PLACES_IN_HOSTS = (
    "http://{a}/", "http://{a}", "https://{a}.example.org/", "http://www.{a}/", "http://x:{a}/",
    "http://{a}@x/", "http://x@{a}/", "http://x{a}", "http://x?{a}", "http://x#{a}",
    "http://x\\{a}", "http://[{a}]/", "http://", "http:///{a}", "{a}", "{a}://x/", "http:{a}",
    "http:/{a}", "//{a}/", "ftp://x/{a}", "file:///{a}", " http://x/{a}", "HTTP://{a}/")


class Destinations(unittest.TestCase):
    """An http_request goes where its owner wrote: no argument, no answer leads elsewhere (H11)."""

    def setUp(self):
        self.home, self.other = Listener(), Listener()
        self.addCleanup(self.home.close)
        self.addCleanup(self.other.close)
        self.base = "http://127.0.0.1:%d" % self.home.port
        self.targets = [text.replace("PORT", str(self.other.port)) for text in ADDRESSES]

    def send(self, path, method="GET", **values):
        """Run such a request; the exception, if there was one."""
        self.home.asked.clear()
        with mock.patch.object(worker, "REQUEST_SECONDS", 2):
            return run_request(self.base + path, method, **values)

    def test_there_are_sixty_targets(self):
        self.assertGreaterEqual(len(set(ADDRESSES)), 60)

    def test_no_place_in_the_host_part_can_be_declared(self):
        for address in PLACES_IN_HOSTS:
            with self.subTest(address=address), self.assertRaises(ValueError):
                jobqueue.http_request("goes_nowhere", "GET", address, a=str)
        self.assertNotIn("goes_nowhere", jobqueue.declared)

    def test_an_argument_in_the_path_leads_nowhere_else(self):
        for path in ("/{a}", "/x/{a}", "/x{a}", "/x/{a}/y", "/x?to={a}", "/x?{a}", "/x#{a}"):
            for target in self.targets:
                climbs = ".." in target and path.startswith(("/{a}", "/x/{a}"))
                self.send(path, a=target)
                self.assertEqual((len(self.home.asked), self.other.asked), (not climbs, []), (path, target))

    def test_nor_does_one_in_the_query_or_the_body(self):
        for target in self.targets:
            for method in ("GET", "POST", "DELETE"):
                self.assertIsNone(self.send("/x", method, url=target, host=target, Host=target))
                self.assertEqual((len(self.home.asked), self.other.asked), (1, []), target)
                self.assertEqual(self.home.asked[0][1]["Host"], self.base[len("http://"):])

    def test_an_argument_does_not_climb_out_of_its_place(self):
        for value in ("..", ".", "../x", "..\\x", "%2e%2e", "..;x", "x/../y", "/", "//", "..%2fx"):
            self.send("/users/{a}/refresh", a=value)
            for path, _, _ in self.home.asked:
                self.assertRegex(path, r"^/users/[^/?#\\]+/refresh$", value)
                self.assertNotIn(path.split("/")[2], (".", "..", "%2e%2e"), value)

    def test_an_answer_leads_nowhere_else(self):
        for target in self.targets:
            self.home.redirect = target
            self.send("/x")
            self.assertEqual(self.other.asked, [], target)
            self.assertEqual(len(self.home.asked), 1, target)

    def test_an_answer_that_leads_elsewhere_fails_the_task_and_says_so(self):
        self.home.redirect = "http://localhost:%d/" % self.other.port
        error = self.send("/x")
        self.assertIsInstance(error, jobqueue.Fail)
        self.assertIn("address", str(error))


SHELL_TASKS = """
import sys
from jobqueue import command
script = "import json, sys; open('ledger', 'a').write(json.dumps(sys.argv[1:]) + chr(10))"
command("note", [sys.executable, "-c", script, "{first}", "--name={second}", "--", "{third}"],
        first=str, second=str, third=str)
"""
SHELL_TEXTS = (
    "; touch canary", "$(touch canary)", "`touch canary`", "| touch canary", "&& touch canary",
    "> canary", "\n touch canary", "'; touch canary; '", '"; touch canary; "', "$HOME", "~root",
    "*", "?", "[a-z]", "{a,b}", "!!", "#", "\\", "\\\\", "%s", "%00", "{first}", "{{x}}",
    "{0.__class__}", "-", "--", "-c", "--version", "-rf /", "--name=x", "-\n", "\u2013x",
    "", " ", "\t", "\r\n", "é日😀", "\x7f\x1b[31m", "a" * 5000, "@file", "=x", "+x",
    "/etc/passwd", "../../x", "\u202e", "a\\nb")
SHELL_SIGNS = "abc -$`\"'\\|&;<>(){}[]*?!~#%\n\t=^,é"


class Shell(unittest.TestCase):
    """A hundred texts on their way through HTTP, worker and runner to a program (H12)."""

    def test_they_arrive_as_they_are_or_are_refused_as_options(self):
        site = Site(SHELL_TASKS, linger=1)
        self.addCleanup(site.close)
        serve(self, site)
        token = site.token("bob")
        chance = random.Random(12)
        texts = list(SHELL_TEXTS) + ["".join(chance.choice(SHELL_SIGNS) for _ in range(12))
                                     for _ in range(100 - len(SHELL_TEXTS))]
        options = [text for text in texts if text.startswith("-")]
        self.assertGreaterEqual(len(options), 7)
        for text in options:
            self.assertEqual(self.add(site, token, text, text), 422, text)
        expected = []
        for text in texts:
            first = "x" if text in options else text
            self.assertEqual(self.add(site, token, first, text), 201, text)
            expected.append([first, "--name=" + text, "--", text])
        done = "SELECT count(*) FROM task WHERE status=%d" % jobqueue.SUCCEEDED
        wait_until(lambda: site.value(done) == len(texts), 120, "the end of all tasks")
        lines = (site.home / "ledger").read_text().splitlines()
        self.assertEqual(sorted(map(json.loads, lines)), sorted(expected))
        self.assertEqual([str(path) for path in site.home.parent.rglob("*canary*")
                          if path.name != "canary.txt"], [])

    @staticmethod
    def add(site, token, first, other):
        """Add a task; the status."""
        arguments = {"first": first, "second": other, "third": other}
        task = {"function": "note", "arguments": arguments}
        return Visitor(site.address, token=token).post("/api/tasks", task).status


def forgery(kind="application/json", site=None, origin=None):
    """Headers that a page of another site makes a browser send."""
    return {"Content_Type": kind, "Sec_Fetch_Site": site, "Origin": origin}


NO_ORIGIN = "JSON without origin"
FORGERIES = {
    "a form's fields": forgery("application/x-www-form-urlencoded", "cross-site"),
    "a form's text": forgery("text/plain", "cross-site"),
    "a form's file": forgery("multipart/form-data; boundary=x", "cross-site"),
    "a text of an old browser": forgery("text/plain"),
    "a beacon": forgery("text/plain;charset=UTF-8", "cross-site", "https://evil.example"),
    "no type": forgery(None),
    "JSON from another site": forgery(site="cross-site", origin="https://evil.example"),
    "JSON from a sibling": forgery(site="same-site", origin="http://sub." + SITE),
    "JSON from a sibling of an old browser": forgery(origin="http://sub." + SITE),
    "JSON typed into the address": forgery(site="none"),
    NO_ORIGIN: forgery(),
    "JSON of a sandbox": forgery(origin="null"),
    "JSON of a sandbox, told twice": forgery(site="cross-site", origin="null"),
    "our origin, another site": forgery(site="cross-site", origin="http://" + SITE),
    "another port": forgery(origin="http://%s:81" % SITE),
    "another scheme": forgery(origin="https://" + SITE),
    "our name in front": forgery(origin="http://%s.evil.example" % SITE),
    "two origins": forgery(origin="http://%s, http://evil.example" % SITE),
}


class ForgeryMatrix(WebTestCase):
    """Each route that changes something, against each request another site can cause (H13)."""

    def everything(self):
        """All rows of all tables."""
        tables = self.database.all("SELECT name FROM sqlite_master WHERE type='table'")
        return {name: [tuple(row) for row in self.database.all("SELECT * FROM " + name)]
                for name, in tables}

    def address(self, path):
        """`path` with an object that it could change."""
        if "tokens" in path:
            return path.replace("ID", str(self.make_token("ana")[0]))
        if "alerts" in path:
            self.change_settings(alert_mail="ops@example.org")
            self.write("INSERT INTO alert (code, subject, text, opened_at, seen_at) "
                       "VALUES ('failed', ?, '', 0, ?)", (random_word(), self.clock.now()))
            return path.replace("ID", str(self.database.value("SELECT max(id) FROM alert")))
        if "saved/" in path:
            saved = self.queue.saved.add(self.owner_id("ana"), "tasks", random_word(), {})
            return path.replace("ID", str(saved["id"]))
        if "queues/" in path:
            self.write("INSERT OR IGNORE INTO queue (name, created_at) VALUES ('eve', 0)")
        if "schedules" in path:
            schedule_id = self.queue.schedules.add(BODIES["/api/schedules"], self.owner_id("ana"))
            return path.replace("ID", str(schedule_id))
        task_id = self.add("ana")
        if path.endswith("/retry"):
            self.cancel(task_id)
        return path.replace("NAME", "eve").replace("ID", str(task_id))

    def test_nothing_is_changed(self):
        for method, path, who in UNSAFE:
            where = self.address(path)
            before = self.everything()
            for name, headers in FORGERIES.items():
                if who == "anyone" and name == NO_ORIGIN:
                    continue            # programs log in that way; no form can send JSON
                with self.subTest(method=method, path=path, attack=name):
                    reply = self.ana.ask(method, where, BODIES.get(path, {}), **headers)
                    # A claim is sent by programs only: no browser brings it along.
                    self.assertIn(reply.status, (401,) if who == jobqueue.CLAIM else (403, 415))
                    self.assertNotIn("set-cookie", reply.headers)
            self.assertEqual(self.everything(), before)

    def test_nor_by_another_method_that_claims_to_be_one(self):
        for method, path, _ in UNSAFE:
            address = self.address(path)
            before = self.everything()
            for header in ("X_HTTP_Method_Override", "X_HTTP_Method", "X_Method_Override"):
                for query in ("", "?_method=" + method, "?method=" + method):
                    reply = self.ana.get(address + query, **{header: method})
                    self.assertIn(reply.status, (200, 400, 401, 404, 405), path)
            self.assertEqual(self.everything(), before)

    def test_nor_the_first_set_up(self):
        self.remove_users()
        code = self.queue.setup.code()
        body = {"code": code, "name": "mallory", "password": "another horse"}
        for name, headers in FORGERIES.items():
            if name != NO_ORIGIN:
                reply = self.nobody.post("/api/setup", body, **headers)
                self.assertIn(reply.status, (403, 415), name)
        self.assertEqual(self.queue.users.all(), [])

    def test_each_would_be_heard_from_our_own_page(self):
        for method, path, who in UNSAFE:
            if path not in ("/api/setup", "/api/invitations/accept", "/api/users/NAME", "/api/session") and (
                    who not in (jobqueue.WORKER, jobqueue.CLAIM)):
                reply = (self.ana.upload(path + "?name=x") if path in UPLOADS else
                         self.ana.ask(method, self.address(path), BODIES.get(path, {})))
                self.assertLess(reply.status, 300, (method, path, reply.body))


CANARIES = """
from jobqueue import http_request, task
http_request("call", "GET", "http://127.0.0.1:1/{a}", headers={"Authorization": "canary-1"}, a=str)

@task
def lose(a: str):
    key = "canary-2"
    raise ValueError("it did not work")
"""
SPOILT = """
from jobqueue import http_request
http_request("call", "GET", "http://127.0.0.1:1/{a}", headers={"X-Key": "canary-1\\n"}, a=str)
"""
WITH_USER = """
from jobqueue import http_request
http_request("call", "GET", "http://me:canary-1@127.0.0.1:1/{a}", a=str)
"""


class Canaries(unittest.TestCase):
    """What tasks.py keeps secret, and tokens in an address, are found nowhere afterwards (H14)."""

    def look(self, tasks, *functions):
        """{where: text} of all that can be read once these functions were tried."""
        site = Site(tasks, linger=1)
        self.addCleanup(site.close)
        serve(self, site)
        self.token, self.other = site.token("ana"), site.token("bob")
        nobody, ana = Visitor(site.address), Visitor(site.address, token=self.token)
        seen = {path: nobody.get(path).text for path in (
            "/?token=" + self.other, "/api/tasks?api_key=" + self.other)}
        ana.get("/api/tasks?token=%s&q=%s" % (self.other, self.other))
        for name in functions:
            task = {"function": name, "arguments": {"a": "x"}}
            reply = ana.post("/api/tasks", task)
            if reply.status == 201:
                site.wait(reply.json["id"])
        paths = ["functions", "tasks", "activity", "workers", "settings", "tokens", "host"]
        for number in range(1, len(functions) + 1):
            paths += ["tasks/%d" % number, "tasks/%d/log" % number]
        seen.update((path, ana.get("/api/" + path).text) for path in paths)
        site.stop_server()
        seen.update((path.name, path.read_bytes().decode("latin-1"))
                    for path in site.home.rglob("*") if path.is_file() and path.name != "tasks.py")
        return seen

    def check(self, seen):
        for where, text in seen.items():
            for secret in ("canary-", self.token, self.other):
                self.assertFalse(secret in text, "%s stands in %s" % (secret, where))

    def test_those_of_functions_that_fail(self):
        seen = self.look(CANARIES, "call", "lose")
        self.assertIn("it did not work", seen["tasks/2"])
        self.check(seen)

    def test_those_in_a_header_that_ends_with_a_line_break(self):
        self.check(self.look(SPOILT, "call"))

    def test_those_in_an_address(self):
        self.check(self.look(WITH_USER, "call"))


class SameWork(TestCase):
    """Who is unknown, disabled or wrong costs the same work, so that time tells nothing (H15)."""

    def setUp(self):
        super().setUp()
        self.sessions, self.tokens = self.queue.sessions, self.queue.tokens
        self.write("UPDATE user SET password=?", (jobqueue.hash_password(PASSWORD),))
        self.write("UPDATE user SET disabled=1 WHERE name='eve'")

    def work(self, action, *values):
        """What was hashed, at which cost, and what was read, until `action` refused."""
        done = []
        scrypt, read = hashlib.scrypt, self.database.all

        def counted(secret, **options):
            done.append(("scrypt", options["n"], options["r"], options["p"]))
            return scrypt(secret, **options)

        def noted(statement, *values):
            done.append(statement)
            return read(statement, *values)

        with mock.patch.object(hashlib, "scrypt", counted), \
                mock.patch.object(self.database, "all", noted), \
                contextlib.suppress(jobqueue.Unauthorized):
            self.assertIsNone(action(*values))
        self.write("DELETE FROM throttle")
        return done

    def log_in(self, name, password):
        return self.work(self.sessions.log_in, name, password, "192.0.2.1")

    def test_logging_in(self):
        usual = self.log_in("bob", "wrong password")
        self.assertEqual(len(usual), 2)
        self.assertIn(("scrypt", 2 ** 14, 8, 5), usual)
        for name, password in (
                ("nobody", "wrong password"), ("eve", PASSWORD), ("eve", "wrong password"),
                ("ana", "x"), ("", "wrong password"), ("' OR 1=1", "x" * 256)):
            self.assertEqual(self.log_in(name, password), usual, (name, password))

    def test_a_password_that_is_too_long_or_odd(self):
        for password in ("x" * 257, "\ud800"):
            works = [self.log_in(name, password) for name in ("bob", "nobody", "eve")]
            self.assertEqual(works[1:], works[:1] * 2, password[:5])

    def test_a_token_that_differs_in_its_first_or_last_sign(self):
        token = self.tokens.add(self.owner_id("bob"), "x")["token"]
        wrong = ("jq_" + "." + token[4:], token[:-1] + ".", "jq_", "x" * 46, "")
        works = [self.work(self.tokens.person, text) for text in wrong]
        self.assertEqual(works, [[works[0][0]]] * len(wrong))


class FirstRun(unittest.TestCase):
    """Fifty people at once with the right code, by HTTP (H16)."""

    def test_exactly_one_becomes_admin_and_the_code_is_worth_nothing_afterwards(self):
        site = Site(TASKS, users=False)
        self.addCleanup(site.close)
        serve(self, site)
        code = next(filter(None, (re.search(r"#setup=(\S+)", line)
                                  for line in site.server.stdout)))[1]

        def set_up(person):
            return Visitor(site.address).post("/api/setup", person).status

        people = [{"code": code, "name": "root%d" % number, "password": PASSWORD}
                  for number in range(51)]
        with ThreadPoolExecutor(50) as pool:
            statuses = list(pool.map(set_up, people[:50]))
        self.assertEqual(statuses.count(201), 1)
        self.assertLessEqual(set(statuses), {201, 403, 404, 429, 503})
        self.assertEqual([tuple(row) for row in site.rows("SELECT role FROM user")], [("admin",)])
        self.assertEqual(set_up(people[50]), 404)
        self.assertEqual(list(site.data.glob("setup-code*")), [])


HASH = jobqueue.hash_password           # as it is, before the tests make it quick


class Values(WebTestCase):
    """Bounds that other files do not look at."""

    def test_tokens_sessions_and_codes_cannot_be_guessed(self):
        queue = self.queue
        self.assertGreaterEqual(len(self.make_token("bob")[1]), len("jq_") + 43)
        self.assertGreaterEqual(len(queue.sessions.open(queue.users.find("bob"), "")), 43)
        self.assertGreaterEqual(len(queue.setup.code()), 22)

    def test_at_most_two_passwords_are_hashed_at_once(self):
        inside, most, gate, two = [], [], threading.Lock(), threading.Event()

        def slow(*_, **__):
            with gate:
                inside.append(1)
                most.append(len(inside))
                if len(inside) == 2:
                    two.set()
            two.wait(60)
            time.sleep(0.02)
            with gate:
                inside.pop()
            return b"00"

        users, sessions = self.queue.users, self.queue.sessions
        with mock.patch("hashlib.scrypt", slow), \
                mock.patch.object(jobqueue, "hash_password", HASH), ThreadPoolExecutor(12) as pool:
            for number in range(6):
                pool.submit(users.add, "user%d" % number, PASSWORD)
                pool.submit(sessions.log_in, "name%d" % number, "x", "192.0.2.%d" % number)
        self.assertEqual((len(most), max(most)), (12, 2))

    def test_every_answer_of_every_route_carries_the_security_headers(self):
        for method, path, _ in ROUTES:
            for visitor in (self.nobody, self.bob, self.ana):
                where = path.replace("ID", "1").replace("NAME", "x")
                reply = call(self.app, visitor.environ(method, where, BODIES.get(path)))
                for name, value in jobqueue.SECURITY_HEADERS:
                    self.assertEqual(reply.headers.get(name.lower()), value, (method, path, name))


if __name__ == "__main__":
    unittest.main()
