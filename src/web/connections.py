"""A client's connection to the built-in web server.

The built-in web server is Python's http.server with a thread for each connection. This room adds strict
checks of the heads of requests, and time limits for clients. A body is read when the application asks for
it. A thread blocks while it waits for its client. Every second the main thread shuts the connections of
late clients, which wakes their threads. If there is no room for another connection, it shuts that of the
slowest client. A body or answer of more than LARGE_BYTES is kept in a temporary file, not in memory.
"""
from __future__ import annotations

import contextlib
import errno
import io
import math
import re
import select
import time
from urllib.parse import unquote

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import BODY_MAX_BYTES, DISK_LOW_BYTES, PIECE_BYTES
from ..base.errors import Busy, JobQueueError, StorageFull
from ..store.connection import free_bytes
from ..tasks.files import FileSlice
from .http_answer import HOST, problem

if TYPE_CHECKING:
    import threading
    from pathlib import Path
    from socket import socket as Socket
    from typing import BinaryIO, Protocol, Union

    from ..base.time_and_text import AnyClock
    from .http_answer import Environ, Header, Pieces
    from .application import Application

if TYPE_CHECKING:
    Endpoint = tuple[str, int]          # an address and a port; IPv6 has two more items
    Source = Union[bytes, FileSlice, Pieces]      # a part of a response

    class Listener(Protocol):
        """A Server, as far as an Exchange uses it."""

        app: Application
        clock: AnyClock
        folder: Path
        is_stopping: bool
        connections: dict[Socket, Exchange | None]
        answer_slots: threading.BoundedSemaphore
        large_body_locks: tuple[threading.Lock, threading.Lock]

        def answers_to(self, host: str | None, address: str) -> bool: ...

    class HandlerBase:
        """A BaseHTTPRequestHandler, as far as an Exchange uses it."""

        server: Listener
        request: Socket
        connection: Socket              # the same socket
        client_address: Endpoint
        rfile: io.BufferedReader
        close_connection: bool

        def setup(self) -> None: ...
        def finish(self) -> None: ...
else:
    HandlerBase = object

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
REQUEST_LINE = (rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (/[!-~]{0,8000}) "
                rb"HTTP/1\.([01])\r\n")
HEADER_LINE = rb"(?:([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([^\x00-\x08\x0a-\x1f\x7f]*))?\r\n"
GIVEN_ONCE = {
    "host": HOST, "content-length": "[0-9]{1,12}", "content-type": ".*", "authorization": ".*"}
HEAD_MAX_BYTES, HEAD_MAX_LINES = 32 << 10, 100
PATIENCE = {                            # seconds for a client in each phase of its connection
    "head": 10.0,                       # to send the first byte; then again to send the rest of the head
    "body": 30.0,                       # to send the body; one second more for each 64 KiB
    "work": math.inf,                   # the client waits for us
    "wait": math.inf,                   # we wait for a task, see pause()
    "answer": 30.0,                     # to receive the answer; one second more for each 64 KiB
    "idle": 15.0,                       # to send the next request
    "farewell": 2.0}                    # to close its side after the last answer
CLIENT_BYTES_PER_SECOND = 64 << 10      # a slower client uses up the seconds of its phase
# Larger bodies and answers are kept in files. At most two requests with such bodies are handled at a time:
# one with up to BODY_MAX_BYTES, and one with more. Parsed JSON can need much memory.
LARGE_BYTES = 64 << 10
SHUT_READ, SHUT_WRITE, SHUT_BOTH = 0, 1, 2      # the constants of the module socket
UNKNOWN_NAME = ("This server is not known by that name. On the host, python3 jobqueue.py settings "
                "host_names NAME adds it; behind a proxy, settings trusted_proxies ADDRESS does.")


class BadRequest(JobQueueError):
    """The error of a refused request. The connection is closed after it."""

    code = "bad_request"

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def compose(status: str, headers: list[Header], body: bytes, keep: bool = False) -> bytes:
    """Return a whole response as bytes."""
    from wsgiref.handlers import format_date_time
    lines = ["HTTP/1.1 " + status, "Date: " + format_date_time(time.time()),
             "Connection: " + ("keep-alive" if keep else "close")]
    lines += ["%s: %s" % pair for pair in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body


def compose_refusal(error: BadRequest | Busy, accepts: str = "") -> bytes:
    """Return the whole response to a request that the server refuses."""
    status, headers, content = problem(error, accepts).to()
    return compose(status, headers, b"".join(content))


class Body:
    """A request's body, read whole at first use, so that no holder of a lock waits for a client."""

    def __init__(self, exchange: Exchange, resources: contextlib.ExitStack) -> None:
        self._exchange, self._resources = exchange, resources   # resources are closed after the answer
        self._size = int(exchange.headers.get("content-length", 0))
        self._file: BinaryIO = io.BytesIO()
        self.is_read = not self._size   # True: the next bytes of the connection are the next request

    def read(self, size: int) -> bytes:
        """Return the next bytes; BadRequest if they come too late, StorageFull without room for them."""
        if not self.is_read:
            answer_slots = self._exchange.server.answer_slots
            answer_slots.release()         # other threads may answer while this one waits
            try:
                self._read_whole()
            finally:
                answer_slots.acquire()
            self.is_read = True
        return self._file.read(size)

    def _read_whole(self) -> None:
        exchange, folder = self._exchange, self._exchange.server.folder
        is_large, remaining = self._size > LARGE_BYTES, self._size
        exchange.enter("body")
        try:
            if is_large:
                import tempfile
                self._file = self._resources.enter_context(     # unbuffered: closing it cannot fail
                    tempfile.TemporaryFile(dir=folder, buffering=0))
            while remaining:
                if is_large and free_bytes(folder) < DISK_LOW_BYTES + 2 * remaining:
                    raise OSError(errno.ENOSPC, "too little is free")
                piece = self._next_piece(remaining)
                if self._file.write(piece) < len(piece):
                    raise OSError(errno.ENOSPC, "no room for all of it")
                remaining -= len(piece) or remaining      # an empty piece: the client has left
            self._file.seek(0)
        except OSError:
            raise StorageFull("There is no room on the disk for so much at once; nothing was "
                              "changed.") from None
        exchange.enter("work")
        if is_large:
            self._resources.enter_context(exchange.server.large_body_locks[self._size > BODY_MAX_BYTES])

    def _next_piece(self, remaining: int) -> bytes:
        exchange, piece = self._exchange, b""
        asks_first = exchange.headers.get("expect", "").lower() == "100-continue"
        with contextlib.suppress(OSError):      # an error counts as the end of the body
            if asks_first and remaining == self._size:
                exchange.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            piece = exchange.rfile.read1(min(remaining, PIECE_BYTES))
        if exchange.is_late:
            raise BadRequest(408, "The request took too long.")
        exchange.advance(len(piece))
        return piece


class _Answered(NamedTuple):
    keep: bool                          # whether the connection stays open
    sources: list[Source]               # the parts of the whole response


class Exchange(HandlerBase):
    """A connection, its phase and its time limit. open_server() adds BaseHTTPRequestHandler as a base."""

    disable_nagle_algorithm = True
    is_late = False                     # True: the time limit has passed, nothing more is read

    def setup(self) -> None:
        """Register the connection with the server."""
        super().setup()
        self.enter("head")
        self.server.connections[self.request] = self

    def enter(self, phase: str) -> None:
        """Begin a phase and its time limit."""
        self.phase = phase
        self.counts_from = self.server.clock.monotonic()
        self.deadline = self.counts_from + PATIENCE[phase]

    def advance(self, size: int) -> None:
        """Extend the time limit for bytes that the client sent or received."""
        later = self.counts_from + size / CLIENT_BYTES_PER_SECOND
        self.counts_from = min(later, self.server.clock.monotonic())
        self.deadline = self.counts_from + PATIENCE[self.phase]

    def end_late(self) -> None:
        """End a late connection. A client that has sent a part of its request still gets an answer."""
        self.is_late = True
        self.end(SHUT_READ if self.phase in ("head", "body") else SHUT_BOTH)

    def pause(self, seconds: float) -> bool:
        """Wait so long, and let other requests be answered.

        Return False if the client left or sent something, or if the server is stopping.
        """
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        self.enter("wait")
        self.server.answer_slots.release()
        try:                            # readable: the client closed the connection or sent more
            return not poll.poll(seconds * 1000) and not self.server.is_stopping
        finally:
            self.server.answer_slots.acquire()
            self.enter("work")

    def end(self, how: int = SHUT_BOTH) -> None:
        """Shut the connection, which wakes its thread."""
        with contextlib.suppress(OSError):
            self.request.shutdown(how)

    def handle_one_request(self) -> None:
        """Wait for the first byte of a request, then read and answer it. Without one, end the connection."""
        self.close_connection = True
        if not self.rfile.peek(1):
            return
        self.enter("head")
        try:
            self.parse_request()
        except BadRequest as error:
            refusal = compose_refusal(error, self.headers.get("accept", ""))
            return self._send(False, refusal)
        self.enter("work")
        with self.server.answer_slots, contextlib.ExitStack() as resources:
            keep, sources = self._answer(Body(self, resources))
        self._send(keep, *sources)

    def parse_request(self) -> None:
        """Read the head of a request; BadRequest unless it is well-formed."""
        self._head_left = HEAD_MAX_BYTES
        self.headers: dict[str, str] = {}
        first = self._read_line(REQUEST_LINE, "The request line is malformed.")
        self.command, self.path = first[1].decode("ascii"), first[2].decode("ascii")
        for _ in range(HEAD_MAX_LINES):
            line = self._read_line(HEADER_LINE, "A header line is malformed.")
            if line[1] is None:
                break
            self._add_header(line[1].decode().lower(), line[2].decode("latin-1").strip(" \t"))
        else:
            raise BadRequest(431, "The header is too large.")
        if "host" not in self.headers and first[3] == b"1":
            raise BadRequest(400, "The header Host is missing.")
        if "transfer-encoding" in self.headers:
            raise BadRequest(411, "Send the body with a Content-Length.")
        if not self.server.answers_to(self.headers.get("host"), self.client_address[0]):
            raise BadRequest(421, UNKNOWN_NAME)
        options = self.headers.get("connection", "").lower().replace(" ", "").split(",")
        self._is_http_1_1 = first[3] == b"1"
        # The body of a POST, PUT or PATCH without Content-Length is not read. The next bytes may be that
        # body, so no further request is read from this connection.
        self._may_follow = (self._is_http_1_1 and "close" not in options and (
            "content-length" in self.headers or self.command not in ("POST", "PUT", "PATCH")))

    def _read_line(self, pattern: bytes, detail: str) -> re.Match[bytes]:
        line = self.rfile.readline(self._head_left + 1)
        self._head_left -= len(line)
        if self._head_left < 0:
            raise BadRequest(431, "The header is too large.")
        match = re.fullmatch(pattern, line)
        if match:
            return match
        if self.is_late:
            raise BadRequest(408, "The request took too long.")
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the client left in the midst of a line")
        raise BadRequest(400, detail)

    def _add_header(self, name: str, value: str) -> None:
        if "_" in name:
            return                      # WSGI would take it for the header with - instead of _
        if not re.fullmatch(GIVEN_ONCE.get(name, ".*"), value, re.ASCII):
            raise BadRequest(400, "The header %s is malformed." % name)
        if name in self.headers:
            if name in GIVEN_ONCE:
                raise BadRequest(400, "The header %s is given twice." % name)
            value = "%s%s%s" % (self.headers[name], "; " if name == "cookie" else ", ", value)
        self.headers[name] = value

    def _answer(self, body: Body) -> _Answered:
        starts: list[tuple[str, list[Header]]] = []
        content = self.server.app(
            self._environ(body), lambda status, headers: starts.append((status, headers)))
        [(status, headers)] = starts
        keep = (self._may_follow and body.is_read and status < "4" and not self.server.is_stopping
                and self.connection.gettimeout() is None)
        if isinstance(content, FileSlice):
            return _Answered(keep, [compose(status, headers, b"", keep), content])
        if not isinstance(content, list):
            return _Answered(False, [self._chunks(status, headers, content)])
        whole = compose(status, headers, b"".join(content), keep)
        return _Answered(keep, [self._put_aside(whole)])

    def _chunks(self, status: str, headers: list[Header], parts: Pieces) -> Pieces:
        """Yield a response that is made while it is sent. Except in HTTP/1.0, an empty chunk ends it."""
        coding = [("Transfer-Encoding", "chunked")] if self._is_http_1_1 else []
        yield compose(status, [*headers, *coding], b"")
        part = b"all"
        while part:
            with self.server.answer_slots:
                part = next(parts, b"")
            yield b"%x\r\n%s\r\n" % (len(part), part) if coding else part

    def _put_aside(self, data: bytes) -> FileSlice | bytes:
        """Return the bytes, or a FileSlice if there are more than LARGE_BYTES and the disk has room."""
        if len(data) > LARGE_BYTES:
            import tempfile
            with contextlib.suppress(OSError):
                file = tempfile.TemporaryFile(dir=self.server.folder, buffering=0)
                if file.write(data) == len(data):
                    file.seek(0)
                    return FileSlice(file, len(data))
        return data

    def _environ(self, body: Body) -> Environ:
        path, _, query = self.path.partition("?")
        unprefixed = "content-type", "content-length", "proxy"
        sent = {"HTTP_" + name.upper().replace("-", "_"): value
                for name, value in self.headers.items() if name not in unprefixed}
        return {**sent, "REQUEST_METHOD": self.command, "REQUEST_URI": self.path, "SCRIPT_NAME": "",
                "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("content-type", ""),
                "CONTENT_LENGTH": self.headers.get("content-length", "0"),
                "REMOTE_ADDR": self.client_address[0], "jobqueue.door": "server",
                "wsgi.input": body, "jobqueue.pause": self.pause}

    def _send(self, keep: bool, *sources: Source) -> None:
        """Send the parts of a response. Without `keep` the connection ends after them."""
        self.enter("answer")
        with contextlib.ExitStack() as opened:
            for source in sources:
                if isinstance(source, bytes):
                    source = FileSlice(io.BytesIO(source), len(source))
                opened.callback(source.close)
                for piece in source:
                    self.connection.sendall(piece)
                    self.advance(len(piece))
        self.enter("idle")
        self.close_connection = not keep

    def finish(self) -> None:
        """Close our side first and read on for a moment, so that the answer is not lost."""
        self.enter("farewell")
        with contextlib.suppress(OSError):
            self.connection.shutdown(SHUT_WRITE)
            while self.connection.recv(PIECE_BYTES):
                pass
        super().finish()
