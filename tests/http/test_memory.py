"""The server's memory under any calls of one user within the limits, by real servers and /proc.

    python3 -m tests.http.test_memory       prints what each row of CALLS costs, also beyond the limit
"""
import contextlib
import json
import re
import socket
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from tests.helpers.support import Site, need_part

TASKS = """
from jobqueue import task

@task
def add(a: int, b: int = 0) -> int:
    return a + b

@task
def take(value: list = (), text: str = ""):
    return value
"""
LIMIT = 100                     # megabytes above what an idle server has
AT_ONCE = 8                     # a large body alone takes 12 to 25 MB: without turns so many would be seen
JSON, LINES = "application/json", "application/x-ndjson"


def many(text, count):
    """JSON: an array of so many of the same."""
    return "[%s]" % ",".join([text] * count)


def task(function="add", rest="", **arguments):
    """JSON of a task; `rest` is more of it."""
    return '{"function":"%s","arguments":%s%s}' % (function, json.dumps(arguments), rest)


def taking(value, rest=""):
    """JSON of what takes an argument that is JSON text already."""
    return '{"function":"take","arguments":{"value":%s}%s}' % (value, rest)


def lines(count, line):
    """`count` lines, of which line(number) makes each: as many as may be sent at once."""
    text = "\n".join(map(line, range(count)))
    return text[:64 << 20].rpartition("\n")[0] if len(text) >= 64 << 20 else text


def post(path, body, kind=JSON, times=1, **headers):
    """A call of CALLS."""
    return "POST", path, body, kind, times, headers


def get(path, times=2):
    """A call of CALLS."""
    return "GET", path, None, JSON, times, {}


LONG = "a" * 199_000
SCHEDULE = ',"rule":"daily 01:00"'
SMALL = task(a=1)
# Name -> calls, each made so many times by AT_ONCE at the same time, or fewer; 0: once.
CALLS = {
    "bodies of empty lists": lambda: [post("tasks", taking(many("[]", 340_000)))],
    "bodies of empty objects": lambda: [post("tasks", many("{}", 340_000))],
    "arrays of tasks": lambda: [post("tasks", many(SMALL, 26_000))],
    "actions on many ids": lambda: [post("tasks/actions", '{"action":"delete","ids":%s}'
                                         % many("1", 500_000))],
    "tasks of large arguments": lambda: [post("tasks", taking(many("{}", 66_000)), times=4)],
    "one key after the other": lambda: [post("tasks", task("take", text=LONG), times=4,
                                             **{"Idempotency-Key": "k"})],
    "large schedules": lambda: [post("schedules", task("take", SCHEDULE, text=LONG), times=26),
                                get("schedules?limit=200"), get("schedules"), get("schedules/1")],
    "many schedules": lambda: [post("schedules", task("take", SCHEDULE, text="a" * 3900), times=26),
                               get("schedules?limit=200")],
    "lists of long arguments": lambda: [
        post("tasks", lines(1000, lambda _: task("take", text="a" * 3900)), LINES, 0),
        get("tasks?limit=200&counts=1"), get("activity?limit=200"),
        *[get("tasks?limit=200&cursor=%d" % cursor, cursor > 981) for cursor in range(1001, 801, -1)]],
    "large results": lambda: [get("tasks/1")],
    "large logs": lambda: [get("tasks/1/log?attempt=0", 3), get("tasks/1/log?attempt=0&download=1", 3)],
    "everything else": lambda: [get(path) for path in (
        "functions", "workers", "queues", "session", "tokens")],
    "100,000 long lines": lambda: [post("tasks", lines(100_000, lambda number: task(
        "take", ',"unique_key":"%d"' % number, text="a" * 550)), LINES)],
    "long lines": lambda: [post("tasks", lines(337, lambda _: task("take", text=LONG)), LINES)],
    "lines with wide characters": lambda: [post("tasks", lines(
        337, lambda _: json.dumps(json.loads(task("take", text=LONG[:-4] + "\U0001f600")),
                                  ensure_ascii=False)), LINES)],
    "lines of many objects": lambda: [post("tasks", lines(    # of which each is 4 MB when it is read
        60, lambda _: taking(many("{}", 66_000))), LINES)],
    "lines that come after others": lambda: [post("tasks", lines(
        100_000, lambda number: '{"function":"add","arguments":{"a":1},"after":%s}'
        % json.dumps([1 + (number + other) % 1000 for other in range(130)])), LINES)],
}
ONE_AT_ONCE = {LINES: 2}


class Server:
    """A server of its own whose memory is watched; `bob` is who calls it."""

    def __init__(self, name):
        self.name = name
        self.site = Site(TASKS, NbMaxWorker=0)
        self.token = self.site.token("bob")
        self.site.start_server()
        self.host = re.match(r"http://([^/]+)/", self.site.address)[1]
        self.call(*post("tasks", SMALL)[:4])
        if name == "large results":
            self._write("UPDATE task SET status=2, result=? WHERE id=1", many("[]", 340_000))
        if name == "large logs":
            self._write("INSERT INTO log (task_id, attempt, start, length, text) "
                        "VALUES (1, 0, 0, 1048576, ?)", "\u00e9" * (1 << 19))
        for path in ("tasks", "functions", "schedules"):
            self.call(*get(path)[:4])
        self.idle = self.told("VmRSS")

    def _write(self, statement, *values):
        with self.site.connection() as link:
            link.execute(statement, values)
            link.commit()

    def told(self, name):
        """Megabytes, as the kernel tells them."""
        text = Path("/proc/%d/status" % self.site.server.pid).read_text()
        return int(re.search(name + r":\s+(\d+)", text)[1]) / 1024

    def call(self, method, path, body=None, kind=JSON, headers=()):
        """Its status."""
        link = HTTPConnection(self.host, timeout=600)
        try:
            link.request(method, "/api/" + path, body and body.encode("utf-8"), {
                "Content-Type": kind, "Authorization": "Bearer " + self.token, **dict(headers)})
            answer = link.getresponse()
            while answer.read(65536):
                pass
            return answer.status
        finally:
            link.close()

    def call_at_once(self):
        """Make all calls of a row; the statuses that were answered."""
        seen = set()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for method, path, body, kind, times, headers in CALLS[self.name]():
                count = ONE_AT_ONCE.get(kind, AT_ONCE) * times or 1
                asked = [threads.submit(self.call, method, path, body, kind, headers) for _ in range(count)]
                seen |= {one.result() for one in asked}
        return seen

    def cost(self):
        """Megabytes that it had at most, above an idle one."""
        return self.told("VmHWM") - self.idle

    def close(self):
        """Stop it."""
        self.site.close()


def slow_readers(server):
    """Ask for large answers, and read none."""
    head = ("GET /api/tasks/1/log?attempt=0&download=1 HTTP/1.1\r\nHost: localhost\r\n"
            "Authorization: Bearer %s\r\n\r\n" % server.token).encode()
    host, port = server.host.split(":")
    links = []
    for _ in range(300):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((host, int(port)))
        link.sendall(head)
        links.append(link)
    for link in links:                  # an answer has begun, or the server let go
        with contextlib.suppress(OSError):
            link.recv(1)
    return links


@unittest.skipUnless(sys.platform == "linux", "needs /proc of Linux")
class TestMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need_part("abuse")

    def start(self, name):
        server = Server(name)
        self.addCleanup(server.close)
        return server

    def test_no_calls_of_one_user_take_much(self):
        for name in CALLS:
            with self.subTest(name):
                server = self.start(name)
                statuses = server.call_at_once()
                self.assertLessEqual(statuses, {200, 201, 403, 409, 413, 422, 429, 503})
                self.assertLess(server.cost(), LIMIT)
                server.close()

    def test_what_log_ins_took_is_given_back(self):
        server = self.start("large logs")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            statuses = list(threads.map(lambda number: server.call(
                "POST", "session", json.dumps({"name": "ana%d" % number, "password": "wrong"}),
                headers={"Sec-Fetch-Site": "same-origin"}), range(40)))
        self.assertIn(401, statuses)
        self.assertGreater(server.cost(), 14)       # a digest takes 16 MiB while it is made
        self.assertLess(server.told("VmRSS") - server.idle, 8)

    def test_nor_do_answers_that_nobody_reads(self):
        server = self.start("large logs")
        links = slow_readers(server)
        self.addCleanup(lambda: [link.close() for link in links])
        self.assertLess(server.cost(), LIMIT)


def print_costs(names):
    """Measure and print."""
    for name in names or CALLS:
        server = Server(name)
        try:
            statuses = server.call_at_once()
            print("%-30s idle %5.1f MB, at most %7.1f MB more, then %7.1f; %s" % (
                name, server.idle, server.cost(), server.told("VmRSS") - server.idle,
                sorted(statuses)), flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    print_costs(sys.argv[1:])
