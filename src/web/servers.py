"""The built-in web server; CGI."""
from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable

from ..base.head import TYPE_CHECKING
from ..base.limits import LOOPBACK
from ..base.errors import Busy, JobQueueError, complain
from ..base.time_and_text import Clock, Every
from ..base.options import become_private
from .http_request import is_trusted
from .application import Application, application, applications
from .connections import LOOPBACK_HOSTS, PATIENCE, SHUT_BOTH, Exchange, compose_refusal

if TYPE_CHECKING:
    from socket import socket as Socket

    from ..base.time_and_text import AnyClock
    from .http_answer import Environ, Header
    from .connections import Endpoint, Listener

CONNECTIONS_MAX = 512
ANSWERS_AT_ONCE = 32                    # answers that are made at the same time
STOP_SECONDS = 5.0                      # how long run() waits for the last answers
# Modules that requests import later. A server without free descriptors could not import them any more.
NEEDED_LATER = (
    "calendar glob hashlib heapq hmac http io ipaddress pwd random resource secrets shlex "
    "shutil subprocess tempfile traceback unicodedata wsgiref.handlers zlib zoneinfo").split()


if TYPE_CHECKING:
    class ServerBase:
        """A ThreadingHTTPServer, as far as a Server uses it."""

        socket: Socket
        server_address: Endpoint

        def __init__(self: Listener, address: Endpoint, handler: type[Exchange]) -> None: ...
        def handle_request(self) -> None: ...
        def server_close(self) -> None: ...
        def get_request(self) -> tuple[Socket, Endpoint]:
            raise NotImplementedError
        def process_request(self, request: Socket, client_address: Endpoint) -> None: ...
        def process_request_thread(self, request: Socket, client_address: Endpoint) -> None: ...
        def shutdown_request(self, request: Socket) -> None: ...
else:
    ServerBase = object


class Server(ServerBase):
    """The built-in web server. open_server() adds ThreadingHTTPServer as a base.

    At the limits of connections and descriptors the slowest client is disconnected, so that no other
    waits for it.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_port = False            # two servers must not share a port
    timeout = 0.5                       # seconds that handle_request() waits for a connection

    def __init__(self, app: Application, address: Endpoint, clock: AnyClock,
                 background: Callable[[], object] | None, handler: type[Exchange]) -> None:
        super().__init__(address, handler)
        self.address: Endpoint = self.server_address[:2]
        self.app, self.clock = app, clock
        self.folder, self.is_stopping = app.queue.database.folder, False
        # Connections, each with its Exchange, or None until its thread runs.
        self.connections: dict[Socket, Exchange | None] = {}
        self.answer_slots = threading.BoundedSemaphore(ANSWERS_AT_ONCE)
        self.large_body_locks = threading.Lock(), threading.Lock()  # large bodies; those over BODY_MAX_BYTES
        self._background = background   # runs in a thread as soon as this host allows another one
        self._names = LOOPBACK_HOSTS
        self._looks = Every(1.0, clock)
        self._changed = threading.Condition()       # guards `connections`

    def run(self) -> None:
        """Serve until stop() is called. Then wait until all requests are answered, at most STOP_SECONDS."""
        while not self.is_stopping:
            if self._looks.begin_if_due():
                self._check_connections()
            self.handle_request()
        self.server_close()
        deadline = self.clock.monotonic() + STOP_SECONDS
        with self._changed:
            while self.connections and self.clock.monotonic() < deadline:
                for exchange in self._exchanges("head", "body", "idle", "farewell"):
                    exchange.end()
                self._changed.wait(0.05)

    def stop(self) -> None:
        """Make run() return. A signal handler may call this."""
        self.is_stopping = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(SHUT_BOTH)

    def _check_connections(self) -> None:
        """End late connections. Start the background thread unless it has been started."""
        now = self.clock.monotonic()
        with self._changed:
            for exchange in self._exchanges(*PATIENCE):
                if exchange.deadline < now:
                    exchange.end_late()
        if self._background:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._background, daemon=True).start()
                self._background = None

    def _exchanges(self, *phases: str) -> list[Exchange]:
        return [each for each in self.connections.values() if each and each.phase in phases]

    def _cut_the_slowest(self) -> bool:
        """Shut the connection of the slowest client; return False if all clients wait for us."""
        slow = self._exchanges(*PATIENCE.keys() - {"work"})
        if slow:
            min(slow, key=lambda exchange: exchange.counts_from).end()
        return bool(slow)

    def get_request(self) -> tuple[Socket, Endpoint]:
        """Accept a connection. If no descriptor is free, cut the slowest client and raise the error."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                with self._changed:
                    self._cut_the_slowest()
                    self._changed.wait(0.05)
            raise

    def process_request(self, request: Socket, client_address: Endpoint) -> None:
        """Start a thread for a connection. At the limit it replaces the slowest one, or gets a 503."""
        with self._changed:
            if len(self.connections) >= CONNECTIONS_MAX:
                self._cut_the_slowest()
            has_room = self._changed.wait_for(
                lambda: len(self.connections) < CONNECTIONS_MAX, 1.0)
            if has_room:
                self.connections[request] = None
        if not has_room:
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.sendall(compose_refusal(Busy("Too many connections.", retry_after=2)))
            return self.shutdown_request(request)
        for _ in range(20):
            with contextlib.suppress(RuntimeError):     # this host allows no more threads
                return super().process_request(request, client_address)
            with self._changed:
                if not self._cut_the_slowest():
                    break
            self.clock.sleep(0.05)      # until the thread of the cut connection has ended
        request.settimeout(1.0)         # no thread can start: serve the client here, the rest waits
        return self.process_request_thread(request, client_address)

    def shutdown_request(self, request: Socket) -> None:
        """Forget a connection and close it. The lock prevents a cut at the same time."""
        with self._changed:
            self.connections.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def handle_error(self, *_: object) -> None:
        """Ignore a client that went away; report other errors of a connection."""
        error = sys.exc_info()[1]
        if isinstance(error, JobQueueError):    # it came in the middle of an answer
            complain(error.detail)
        elif not isinstance(error, OSError):
            sys.__excepthook__(*sys.exc_info())

    def answers_to(self, host: str | None, address: str) -> bool:
        """Return True if requests for this host name are answered: a check against DNS rebinding."""
        is_public = self.address[0] not in LOOPBACK
        with contextlib.suppress(JobQueueError):
            settings = self.app.queue.settings
            names = settings.get("host_names").lower().replace(",", " ").split()
            self._names = LOOPBACK_HOSTS + tuple(names)
            is_public |= is_trusted(address, settings.get("trusted_proxies"))
        everything = is_public and self._names == LOOPBACK_HOSTS
        return host is None or everything or re.sub(":[0-9]+$", "", host.lower()) in self._names


def open_server(app: Application, host: str, port: int, clock: AnyClock = Clock,
                background: Callable[[], object] | None = None) -> Server:
    """Return a Server that listens. Only here http.server is imported: CGI requests do not need it."""
    import importlib
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from socketserver import TCPServer
    for name in NEEDED_LATER:
        importlib.import_module(name)
    handler = type("HttpExchange", (Exchange, BaseHTTPRequestHandler), {})
    kind = type("HttpServer", (Server, ThreadingHTTPServer), {
        "address_family": socket.AF_INET6 if ":" in host else socket.AF_INET,
        "server_bind": TCPServer.server_bind})      # that of HTTPServer looks up a name, which takes long
    return kind(app, (host, port), clock, background, handler)


def run_cgi() -> None:
    """Answer the one request for which a web server has started this process, and end."""
    become_private()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # the client has left: the body is dropped
    environment = {os.fsdecode(name): value.decode("latin-1") for name, value in os.environb.items()}
    environ: Environ = {"REQUEST_METHOD": "GET", **environment, "wsgi.input": sys.stdin.buffer,
                        "wsgi.run_once": True}
    head: list[str] = []

    def start_response(status: str, headers: list[Header], _: object = None) -> None:
        head[:] = ["Status: " + status, *map("%s: %s".__mod__, headers), "", ""]

    with contextlib.redirect_stdout(sys.stderr):    # printed text is for the web server's log
        content = application(environ, start_response)
    with contextlib.suppress(OSError, sqlite3.Error):
        sys.stdout.buffer.write("\r\n".join(head).encode("latin-1", "replace"))
        sys.stdout.buffer.writelines(content)
        sys.stdout.flush()
        for app in applications.values():
            app.queue.close()
    os._exit(0)                         # a regular exit would take a tenth of the whole time
