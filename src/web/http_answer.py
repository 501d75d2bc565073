"""An answer as WSGI wants it; problems as JSON."""
from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Generator, Sequence

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.errors import JobQueueError, complain
from ..base.time_and_text import dump_json
from ..base.values import mask
from ..tasks.files import FileSlice

if TYPE_CHECKING:
    from typing import Any, Protocol, Union

    from ..base.types import JsonObject
    from ..access.people import Person

if TYPE_CHECKING:
    Header = tuple[str, str]
    Pieces = Generator[bytes, None, None]               # pieces of a body, none empty
    Content = Union[list[bytes], FileSlice, Pieces]       # a body as WSGI wants it
    Environ = dict[str, Any]                            # a type of WSGI, as StartResponse is
    StartResponse = Callable[[str, list[Header]], object]

    class Asked(Protocol):
        """A Request, as far as an Answer depends on it."""

        method: str

        @property
        def by_https_only(self) -> bool: ...
        def header(self, name: str) -> str | None: ...

SECURITY_HEADERS = [
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
     "'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors "
     "'none'; require-trusted-types-for 'script'"), ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin")]
JSON_TYPE, LINES_TYPE = "application/json", "application/x-ndjson"
PACK_BYTES = 1024                       # shorter answers are not compressed
ACCEPTS_GZIP = r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))"
STATIC_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
                ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
                ".json": "application/json", ".md": "text/markdown; charset=utf-8",
                ".png": "image/png", ".ico": "image/x-icon"}
HOST = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"


class Response(NamedTuple):
    """A response as WSGI wants it."""

    status: str                     # the number and its words
    headers: list[Header]
    content: Content


def is_known(header: str, tag: str) -> bool:
    """Return whether If-None-Match names a tag (RFC 9110, 13.1.2), weak or not.

    Web servers that compress append to the tag, such as -gzip.
    """
    opaque = re.search('"([^"]*)"', tag)
    tags = re.findall(r'"([^"]*?)(?:[-;](?:gzip|br|zstd|deflate))?"', header)
    return header.strip() == "*" or opaque is not None and opaque[1] in tags


class Answer:
    """Status, headers and body of a response.

    The compressed body is made only once. A body may also be a FileSlice, or pieces (none empty) that are
    made while they are sent. These are neither cached nor compressed.
    """

    def __init__(self, status: int, body: bytes | FileSlice | Pieces = b"", kind: str = JSON_TYPE,
                 headers: Sequence[Header] = (), keep: str | None = "no-cache, private") -> None:
        self.status, self.body, self.headers, self._kind = status, body, headers, kind
        self.whole = body if isinstance(body, bytes) else b""   # the body, if it is in memory
        self.keep = keep                # its Cache-Control; None: the answer is never cached

    @functools.cached_property
    def tag(self) -> str:
        """Return the ETag; a weak one, since the body may be sent compressed or not."""
        import hashlib
        hashed = repr(SECURITY_HEADERS).encode() + self.whole
        return 'W/"%s"' % hashlib.sha256(hashed).hexdigest()[:20]

    @functools.cached_property
    def packed(self) -> bytes:
        """Return the compressed body."""
        import zlib
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)     # 31 selects gzip
        return packer.compress(self.whole) + packer.flush()

    def to(self, request: Asked | None = None) -> Response:
        """Return the Response to a request, or without one a Response to any request."""
        from http import HTTPStatus
        status, body = self.status, self.body
        headers = [("Cache-Control", "no-store"), *self.headers]
        asks: Callable[[str], str | None] = request.header if request else lambda _: None
        is_long = len(self.whole) > PACK_BYTES
        if request and self.keep and status == 200 and request.method in ("GET", "HEAD"):
            headers[0] = ("Cache-Control", self.keep)
            headers.append(("ETag", self.tag))
            status = 304 if is_known(asks("If-None-Match") or "", self.tag) else status
        if is_long:
            headers.append(("Vary", "Accept-Encoding"))
        if status != 304:               # with 304 the browser has these already
            names = {name for name, _ in self.headers}
            headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
            if request and request.by_https_only:
                headers.append(("Strict-Transport-Security", "max-age=31536000"))
            if is_long and re.search(ACCEPTS_GZIP, asks("Accept-Encoding") or ""):
                body = self.packed
                headers.append(("Content-Encoding", "gzip"))
            if status != 204:
                headers.append(("Content-Type", self._kind))
            if status != 204 and isinstance(body, (bytes, FileSlice)):
                headers.append(("Content-Length", str(len(body))))
        content: Content = [body] if isinstance(body, bytes) else body
        if status == 304 or request and request.method == "HEAD":
            if not isinstance(content, list):
                content.close()
            content = [b""]
        return Response("%d %s" % (status, HTTPStatus(status).phrase), headers, content)


def conceal(shown: JsonObject, person: Person) -> JsonObject:
    """Return the answer. Mask secrets in tasks and schedules whose secrets this person may not see.

    It masks the answer itself and the items of its lists.
    """
    if "owner" in shown and "arguments" in shown and not person.sees_secrets_of(shown["owner"]):
        return {**shown, "arguments": mask(shown["arguments"])}
    return {name: [conceal(item, person) if isinstance(item, dict) and "arguments" in item else item
                   for item in value] if isinstance(value, list) else value
            for name, value in shown.items()}


def json_answer(value: JsonObject, status: int = 200, headers: Sequence[Header] = ()) -> Answer:
    """Return an Answer of JSON."""
    return Answer(status, dump_json(value).encode("utf-8"), headers=headers)


def problem(error: Exception, accepts: str = "") -> Answer:
    """Return an error as application/problem+json (RFC 9457), or as plain text for a browser."""
    from http import HTTPStatus
    if not isinstance(error, JobQueueError):
        sys.__excepthook__(type(error), error, error.__traceback__)     # an unexpected error
        error = JobQueueError("Something went wrong here; see the server's log.")
    if error.public:
        complain(error.detail)
    detail, headers = error.public or error.detail, list(error.headers)
    if error.retry_after is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after)))))
    if error.status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    if "text/html" in accepts:
        return Answer(error.status, ("jobqueue: %s\n" % detail).encode("utf-8"),
                      "text/plain; charset=utf-8", headers)
    value = {"type": "about:blank", "title": HTTPStatus(error.status).phrase, "code": error.code,
             "status": error.status, "detail": detail, "errors": error.errors, **error.extra}
    return Answer(
        error.status, dump_json(value).encode("utf-8"), "application/problem+json", headers)
