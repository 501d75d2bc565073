"""Sockets: our server in this process and clients that send it bytes; servers that others ask.

    Link              a client's socket and the answers it reads; HOST, HEALTH: a line and a request to send
    ServerTestCase    a WebTestCase with a Server in a thread, on a free port
    sockets_of        what the kernel tells of a port's connections
    Listener          a server that remembers what it was asked
    run_request       an http_request of tasks.py that asks it
"""
import contextlib
import io
import json
import os
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import jobqueue
import worker
from tests.helpers.support import FakeContext, need, wait_until
from tests.helpers.web import WebTestCase

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"


class Link:
    """A client's socket, and the answers it reads."""

    def __init__(self, address, seconds=60):
        self.socket = socket.create_connection(address, timeout=seconds)
        self._file = self.socket.makefile("rb")

    def send(self, data):
        """Send bytes; returns itself."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)
        return self

    def answer(self, head=False):
        """The next answer: (status, {header: value}, body); None if the connection is closed."""
        try:
            first = self._file.readline()
            if not first:
                return None
            headers = {}
            for line in iter(self._file.readline, b"\r\n"):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            status = int(first.split()[1])
            length = 0 if head or status in (204, 304) or status < 200 else int(headers["content-length"])
            return status, headers, self._file.read(length)
        except ConnectionError:
            return None

    def status(self):
        """The status of the next answer, or None."""
        answer = self.answer()
        return answer and answer[0]

    def has_news(self, seconds=0.0):
        """True if there is something to read within so long, which may be the end."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def is_closed(self):
        """True if the server says nothing more and closes."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def finish(self):
        """Say that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self):
        """Close it."""
        self._file.close()
        self.socket.close()

    __enter__ = lambda self: self

    def __exit__(self, *_):
        self.close()


class Front:
    """The application as the server sees it; `instead` answers in its place if a test sets that."""

    def __init__(self, app):
        self.app = self.instead = app
        self.queue = app.queue

    def __call__(self, environ, start_response):
        return self.instead(environ, start_response)


def sockets_of(port):
    """(how many connections to this port are accepted and open, bytes that it has not read yet)."""
    need(os.path.exists("/proc/net/tcp"), "/proc of Linux")
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].rpartition(":")[2], 16) == port and words[3] != "0A" and words[9] != "0":
            found.append(int(words[4].rpartition(":")[2], 16))
    return len(found), sum(found)


class ServerTestCase(WebTestCase):
    """A Server in a thread, on a free port; `self.server_clock` is real unless a test sets another."""

    host = "127.0.0.1"
    server_clock = jobqueue.Clock

    def setUp(self):
        super().setUp()
        self.front = Front(self.app)
        self.crashes = []
        self.errors = io.StringIO()
        shown = mock.patch("sys.stderr", self.errors)
        shown.start()
        self.addCleanup(shown.stop)
        self.start()

    def start(self):
        """Start the server for self.front."""
        self.server = jobqueue.open_server(self.front, self.host, 0, self.server_clock)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.addCleanup(self.stop)

    def _run(self):
        try:
            self.server.run()
        except BaseException as error:
            self.crashes.append(error)

    def stop(self):
        """Stop it and look whether it lived until now."""
        self.server.stop()
        self.thread.join(60)
        self.assertEqual(self.crashes, [])
        self.assertFalse(self.thread.is_alive())
        with self.assertRaises(OSError):
            Link(self.server.address).close()

    def connections(self):
        """How many the server has."""
        return sockets_of(self.server.address[1])[0]

    def await_reading(self):
        """Wait until the server has read all that was sent to it."""
        wait_until(lambda: not sockets_of(self.server.address[1])[1], what="that all is read")

    def link(self):
        """A new connection."""
        link = Link(self.server.address)
        self.addCleanup(link.close)
        return link

    def ask(self, data, **options):
        """The answer to a request on a connection of its own."""
        with Link(self.server.address) as link:
            return link.send(data).answer(**options)

    def told(self, headers):
        """The WSGI environment of a request with these headers."""
        seen = []
        self.front.instead = lambda environ, start: (seen.append(environ), self.app(environ, start))[1]
        self.ask(b"GET /healthz HTTP/1.1\r\n" + HOST + headers + b"\r\n")
        self.front.instead = self.app
        return seen[0]

    def healthy(self):
        """A right request is answered."""
        answer = self.ask(HEALTH)
        self.assertEqual(answer and answer[0], 200)

    def request(self, method, path, body=None, token=None, extra=b""):
        """A right request as bytes."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [b"%s %s HTTP/1.1" % (method.encode(), path.encode()), b"Host: localhost"]
        if token:
            lines.append(b"Authorization: Bearer " + token.encode())
        if body is not None:
            lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(data)]
        return b"\r\n".join(lines) + b"\r\n" + extra + b"\r\n" + data


class Visit(BaseHTTPRequestHandler):
    """One request to a Listener."""

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.path, dict(self.headers), self.rfile.read(length)))
        self.send_response(302 if self.server.redirect else 200)
        if self.server.redirect:
            self.send_header("Location", self.server.redirect)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    """Remembers what it was asked; `redirect` is where it sends people, if anywhere."""

    daemon_threads = True

    def __init__(self):
        self.asked, self.redirect = [], None
        super().__init__(("127.0.0.1", 0), Visit)
        self.port = self.server_address[1]
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self):
        """End it."""
        self.shutdown()
        self.server_close()
        self.thread.join(10)


def run_request(address, method="GET", **values):
    """Run an http_request with these values; the exception, if there was one."""
    target = {"method": method, "address": address, "headers": {"Authorization": "Bearer canary"}}
    function = jobqueue.Function("call", "http_request", target, {}, "user", dict.fromkeys(values, str))
    with mock.patch("builtins.print"):
        try:
            worker.run_request(function, values, FakeContext)
        except Exception as error:
            return error
    return None
