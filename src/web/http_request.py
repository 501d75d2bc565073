"""A request as handlers see it; proxies; static files.

A Request is the same under all web servers. Headers of proxies count only if the proxy is trusted. A body
is read when a handler asks for it, and never beyond its limit.
"""
from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import BODY_MAX_BYTES, PIECE_BYTES
from ..base.errors import (Denied, Invalid, JobQueueError, LengthRequired, Malformed, NotFound,
                           TooLarge, Unauthorized, UnsupportedType, join_errors, wrong)
from ..base.time_and_text import load_json, random_token, shorten
from ..base.values import TRUE_WORDS, check_value, checked, parse_text
from ..store.settings import SETTINGS, Settings, read_networks
from ..tasks.files import BYTES_TYPE
from ..tasks.adding import IdempotencyRecord
from ..access.people import SESSION_SECONDS, Person
from .http_answer import HOST, JSON_TYPE, STATIC_TYPES, Answer

if TYPE_CHECKING:
    import threading
    from ipaddress import IPv4Address, IPv6Address
    from typing import Any, Protocol, Union

    from ..base.types import JsonObject, Schema
    from ..access.people import Token
    from ..access.host import Visit
    from .http_answer import Environ, Header

LINES_MAX_BYTES = 64 << 20      # the largest body with one task per line
ENVELOPE_TYPE, ENVELOPE_BYTES = "multipart/form-data", 8 << 10      # the most bytes of a form's head and tail
NO_ENVELOPE = "A body of the type multipart/form-data must have one part, which names its Content-Type."
COMMENTS = re.compile(rb"^\s*(//[^\n]*|/\*((?!\*/).)*\*/)\n|/\*\* @type ((?!\*/).)*\*/ ?|(?<=;) +// [^\n]*"
                      rb"|^\s+", re.M | re.S)      # also matches indentation and empty lines
# Spaces and last semicolons that styles do without; the group has strings, which keep theirs.
STYLE_SPACES = re.compile(rb"""("[^"]*"|'[^']*')|;\s*(?=})|(?<=[{};:,])\s+|\s+(?=[{}])""")
STATIC_NAME = r"((languages|docs)/)?[A-Za-z0-9_-]+\.[a-z]+"


if TYPE_CHECKING:
    Address = Union[IPv4Address, IPv6Address]

    class App(Protocol):
        """An Application, as far as handlers use it."""

        source: str                     # the caller of its ticks, see Tick.maybe()
        static: StaticFiles
        one_by_one: threading.Lock      # for requests that need much memory
        waiting: threading.BoundedSemaphore     # for calls that wait for a task

        @property
        def document(self) -> Answer:
            """Return the answer of /openapi.json."""


def read_address(text: str) -> Address | None:
    """Return an IP address, also from a text with a port or brackets; None for any other text."""
    from ipaddress import ip_address
    match = re.fullmatch(
        r"\[([0-9a-fA-F:.]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+|([0-9a-fA-F:.]+)", text.strip())
    try:
        address = ip_address(match[match.lastindex or 0] if match else "")
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_trusted(text: str, networks: str) -> bool:
    """Return True for an address in one of these networks."""
    address = read_address(text) if networks else None
    return address is not None and any(address in network for network in read_networks(networks))


def nearest_client(environ: Environ, trusted: str) -> str:
    """Return the client's address. Each trusted proxy appends its peer to X-Forwarded-For."""
    address: str = environ.get("REMOTE_ADDR", "")
    for item in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").rsplit(",", 10)):
        peer = read_address(item) if is_trusted(address, trusted) else None
        if peer is None:
            break
        address = str(peer)
    return address


def asked_path(environ: Environ) -> str:
    """Return the path that the browser asked for, with single slashes; "" if the server does not tell it."""
    path = environ.get("REQUEST_URI", "").partition("?")[0]
    if not path.startswith("/"):        # the URL begins with scheme and host
        path = "/".join(["", *path.split("/")[3:]])
    return re.sub("//+", "/", unquote(path, "latin-1"))


def inner_path(environ: Environ) -> str:
    """Return PATH_INFO, decoded; Passenger leaves it encoded."""
    path = environ.get("PATH_INFO", "")
    sent = environ.get("REQUEST_URI", "").partition("?")[0]
    return unquote(path, "latin-1") if "%" in path and sent.endswith(path) else path


def find_base(environ: Environ, base_path: str = "") -> str:
    """Return the path below which the browser finds this site, with a slash at both ends.

    Behind a rewrite SCRIPT_NAME is the path of the start file, and only REQUEST_URI has the browser's path.
    A client can choose REQUEST_URI freely, so it counts only if it ends with PATH_INFO.
    """
    script, asked_for = environ.get("SCRIPT_NAME", ""), asked_path(environ)
    inside = re.sub("//+", "/", inner_path(environ))
    base = asked_for[:len(asked_for) - len(inside)] if asked_for and asked_for.endswith(inside) else script
    if {".", ".."} & set(base.split("/")):
        base = script
    parts = [part for part in (base_path or base).split("/") if part]
    return quote("/".join(["", *parts, ""]), safe="/!$&'()*+,=:@",      # as browsers do
                 encoding="latin-1", errors="replace")


class Envelope(NamedTuple):
    """A form around a body: its Content-Type, and the bytes before and after the body."""

    kind: str
    head: bytes
    tail: bytes


def envelope(kind: str) -> Envelope:
    """Return an Envelope for a body of this Content-Type, as Request.unwrap() reads it."""
    mark = random_token()
    head = ('--%s\r\nContent-Disposition: form-data; name="body"; filename="body"\r\n'
            "Content-Type: %s\r\n\r\n" % (mark, kind))
    return Envelope("%s; boundary=%s" % (ENVELOPE_TYPE, mark), head.encode("ascii"),
                    b"\r\n--%s--\r\n" % mark.encode("ascii"))


def kept_within(low: int, high: int) -> Schema:
    """Return the schema of a whole number in a query. A number out of bounds is set to the nearest bound."""
    return {"type": ["integer", "null"], "keptWithin": [low, high]}


class Upload(NamedTuple):
    """A body that is a file."""

    size: int
    pieces: Iterator[bytes]


class Request:
    """A request, as handlers use it, made of a WSGI environment."""

    def __init__(self, environ: Environ, settings: Settings) -> None:
        self._environ = environ
        names = ("base_path", "https", "trusted_proxies")
        try:
            base_path, https, trusted = map(settings.get, names)
        except JobQueueError:           # the database cannot be read
            base_path, https, trusted = (SETTINGS[name].default for name in names)
        self._client: str = environ.get("REMOTE_ADDR", "")
        self._is_proxied = is_trusted(self._client, trusted)
        self.address = nearest_client(environ, trusted)     # the client's, as far as known
        host = self._added("X-Forwarded-Host")  # the host name that the browser used
        self._host: str = host if re.fullmatch(HOST, host) else environ.get("HTTP_HOST", "").lower()
        self.method: str = environ["REQUEST_METHOD"]
        self.query_text: str = environ.get("QUERY_STRING", "")
        meant = re.fullmatch("(.*&|)as=(PATCH|DELETE)", self.query_text)
        if self.method == "POST" and meant:     # many hosts let only GET, HEAD and POST pass
            self.method, self.query_text = meant[2], meant[1].rstrip("&")
        self.base = find_base(environ, base_path)
        path = inner_path(environ)
        self._came_below = (path + "/").startswith(base_path + "/") and base_path != ""
        if self._came_below:            # the proxy has left the base path in front
            path = path[len(base_path):]
        # Without a slash at the end of the address, relative links would lead outside the folder.
        self.lacks_slash = path in ("", "/") and not (asked_path(environ) or path).endswith("/")
        self.path = (path or "/").encode("latin-1", "replace").decode("utf-8", "replace")
        self.content_type: str = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        self.secure: bool = (https == "always" or environ.get("wsgi.url_scheme") == "https"
                             or environ.get("HTTPS", "").lower() in TRUE_WORDS
                             or self._added("X-Forwarded-Proto") == "https")
        self.app: App                   # the Application that answers and sets this
        self.asker: Person | None = None        # the user, also set by the Application
        self.cancel_requested: int | None = None     # that of the task whose claim is sent
        self.given: JsonObject = {}     # query or body, checked with the route's schema
        self._digest = ""               # digest of method, path, type and body, set when the body was read
        # Exchange.pause(), if this server can wait, or None.
        self.pause: Callable[[float], bool] | None = environ.get("jobqueue.pause")
        prefix = "__Host-" if self.base == "/" else "__Secure-"     # browsers require these prefixes
        self.cookie_name = prefix * self.secure + "jobqueue"        # the session cookie
        # The address of the start-up file and the folder that the web server serves, if known.
        self.places: tuple[str, str] = (
            environ.get("SCRIPT_NAME", ""), environ.get("DOCUMENT_ROOT", "").rstrip("/"))
        length = environ.get("CONTENT_LENGTH") or "0"
        self._length = int(length) if re.fullmatch("[0-9]{1,12}", length, re.ASCII) else None
        self.left = self._length or 0       # bytes of the body that were not read yet
        self._held = self._tail = b""       # the content read with an envelope's head, and its tail

    @property
    def person(self) -> Person:
        """Return the user of the request; Unauthorized if there is none."""
        if self.asker is None:
            raise Unauthorized("Please log in. Programs send an API token as X-Api-Key, or as "
                               "Authorization: Bearer, which some web servers drop.")
        return self.asker

    @person.setter
    def person(self, person: Person) -> None:
        """Set the user of the request."""
        self.asker = person

    @property
    def by_https_only(self) -> bool:
        """Return whether browsers may be told to use HTTPS only (ASVS 3.4.1).

        They may not if other sites share the host name, as on localhost or above a path such as /jq/.
        """
        host = (self.header("Host") or "").partition(":")[0].lower()
        return self.secure and host not in ("localhost", "127.0.0.1") and self.base == "/"

    @property
    def is_by_admin(self) -> bool:
        """Return whether the user is an admin, in person or through a token."""
        return self.asker is not None and self.asker.is_admin

    @property
    def token(self) -> Token:
        """Return the token of the program that sent the request."""
        if self.person.token is None:
            raise RuntimeError("a person asks")
        return self.person.token

    @functools.cached_property
    def door(self) -> str:
        """Return the kind of web server: "server" (ours), "cgi", "passenger", "uwsgi", ..."""
        environ = self._environ
        if "mod_wsgi.version" in environ:
            return "mod_wsgi " + ("daemon" if environ.get("mod_wsgi.process_group") else "embedded")
        if "uwsgi.version" in environ:
            return "uwsgi"
        if "passenger_wsgi" in sys.modules:     # the module name of Passenger's start file
            return "passenger"
        return environ.get("jobqueue.door") or ("cgi" if environ.get("wsgi.run_once") else "wsgi")

    def header(self, name: str) -> str | None:
        """Return a header's value, or None."""
        return self._environ.get("HTTP_" + name.upper().replace("-", "_"))

    def _added(self, name: str) -> str:
        """Return the value that a trusted proxy added at the end of a header; "" if there is none.

        `Forwarded` and X-Forwarded-Prefix are not read: the usual proxies pass them on from clients.
        """
        sent = self.header(name) if self._is_proxied else None
        return (sent or "").rpartition(",")[2].strip().lower()

    def doubtful_settings(self) -> list[str]:
        """Return the settings that seem wrong for this request. Wrong ones make browsers drop the cookie."""
        by_http = (self.header("Origin") or "").startswith("http://")
        return ([] if self._came_below else ["base_path"]) + (["https"] if by_http else [])

    @property
    def query(self) -> dict[str, str]:
        """Return the query as {name: last value}."""
        try:
            return dict(parse_qsl(self.query_text, keep_blank_values=True, max_num_fields=50))
        except ValueError:
            raise Malformed("The query has too many fields.") from None

    def read_query(self, schema: Schema) -> JsonObject:
        """Return the checked query; Malformed if it is wrong: an ignored filter would match all tasks."""
        fields: JsonObject = dict(self.query)
        properties = schema["properties"]
        for name in fields.keys() & properties.keys():
            value = fields[name] = parse_text(properties[name], fields[name])
            if isinstance(value, int) and "keptWithin" in properties[name]:
                low, high = properties[name]["keptWithin"]
                fields[name] = max(low, min(high, value))
        errors = check_value(schema, fields, "")
        if errors:
            raise Malformed(join_errors(errors), errors)
        return {name: value for name, value in fields.items() if value is not None}

    def read_object(self, schema: Schema) -> JsonObject:
        """Return the checked JSON object of the body; Invalid names every wrong field."""
        value = self.json()
        if not isinstance(value, dict):
            raise Malformed("The body must be a JSON object.")
        return checked(schema, value)

    def json(self) -> Any:
        """Return the body as JSON."""
        if self.content_type != JSON_TYPE:
            raise UnsupportedType("Send the body as application/json.")
        try:
            return load_json(b"".join(self._pieces(BODY_MAX_BYTES)).decode("utf-8"))
        except UnicodeDecodeError:
            raise Malformed("The body is not UTF-8.") from None

    def lines(self) -> Iterator[JsonObject | Invalid]:
        """Yield the objects of a body with one JSON object a line, and an Invalid for each bad line."""
        for line in filter(bytes.strip, self._body_lines()):
            try:
                yield load_json(line.decode("utf-8"))
            except UnicodeDecodeError:
                yield Invalid("", wrong("", "is not UTF-8"))
            except Malformed as error:
                yield Invalid("", wrong("", error.detail.replace("This is", "is", 1).rstrip(".")))

    def _body_lines(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._pieces(LINES_MAX_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            if any(len(line) > BODY_MAX_BYTES for line in (*whole, rest)):
                raise TooLarge("A line is longer than %d bytes." % BODY_MAX_BYTES)
            yield from whole
        yield rest

    def upload(self, limit: int) -> Upload:
        """Return the body as a file; TooLarge if it has more than `limit` bytes."""
        if self.content_type != BYTES_TYPE or not self._environ.get("CONTENT_LENGTH"):
            raise UnsupportedType("Send the file as %s, with its Content-Length." % BYTES_TYPE)
        size = self._size()
        if size > limit:
            raise TooLarge("A file may have %d MB here (max_file_mb)." % (limit >> 20))
        return Upload(size, self._pieces(limit))

    def _size(self) -> int:
        if self._length is None:
            raise Malformed("Content-Length must be a number.")
        if self.header("Transfer-Encoding") and not self._environ.get("CONTENT_LENGTH"):
            raise LengthRequired("Send the body with a Content-Length.")
        return self._length

    def _pieces(self, limit: int) -> Iterator[bytes]:
        """Yield the body in pieces of PIECE_BYTES or less; TooLarge if it has more than `limit` bytes."""
        if self.header("Content-Encoding") not in (None, "identity"):
            raise UnsupportedType("Send the body without compression.")
        if self._size() > limit:
            raise TooLarge("The body is larger than %d bytes." % limit)
        import hashlib
        about = "%s %s %s\n" % (self.method, self.path, self.content_type)
        hashed, end = hashlib.sha256(about.encode("utf-8", "backslashreplace")), b""
        while self.left or self._held:
            piece, self._held = self._held or self._read(), b""
            if not piece:
                raise Malformed("The body is shorter than its Content-Length.")
            size = max(0, len(piece) - max(0, len(self._tail) - self.left))
            piece, end = piece[:size], end + piece[size:]
            if piece:
                hashed.update(piece)
                yield piece
        if end != self._tail:
            raise Malformed(NO_ENVELOPE)
        self._digest = hashed.hexdigest()

    def unwrap(self, limit: int) -> None:
        """Read the head of a multipart/form-data body with one part of at most `limit` bytes.

        Some hosts let files and JSON lines pass only in such a form. Afterwards the part is the body of the
        request.
        """
        boundary = self._environ.get("CONTENT_TYPE", "").partition("boundary=")[2].partition(";")[0]
        if self._size() > limit + ENVELOPE_BYTES:
            raise TooLarge("The body is larger than %d bytes." % limit)
        mark, head = b"--" + boundary.strip('" ').encode("latin-1", "replace"), b""
        while b"\r\n\r\n" not in head and len(head) < ENVELOPE_BYTES and self.left:
            head += self._read() or b"\r\n\r\n"
        head, _, self._held = head.partition(b"\r\n\r\n")
        self._tail = b"\r\n%s--\r\n" % mark
        size = len(self._held) + self.left - len(self._tail)
        part = re.search(rb"(?im)^content-type: *([a-z0-9/+.-]+)", head)
        if len(mark) < 3 or not head.startswith(mark + b"\r\n") or not part or size < 0:
            raise Malformed(NO_ENVELOPE)
        self._length, self.content_type = size, part[1].decode("ascii").lower()

    def _read(self) -> bytes:
        piece = b""
        with contextlib.suppress(OSError):      # some servers raise this for a client that is gone
            piece = self._environ["wsgi.input"].read(min(self.left, PIECE_BYTES))
        self.left -= len(piece)
        return piece

    def read_rest(self) -> None:
        """Read the rest of the body. Without this CGI and uWSGI may lose the answer."""
        if self.door != "server" and self.left <= LINES_MAX_BYTES:
            while self.left and self._read():
                pass

    def idempotency_record(self) -> IdempotencyRecord | None:
        """Return the IdempotencyRecord of a request whose body was read; None without an Idempotency-Key."""
        key = self.header("Idempotency-Key")
        if key is None:
            return None
        if not re.fullmatch("[ -~]{1,200}", key):
            raise Malformed("An Idempotency-Key has 1 to 200 printable characters.")
        return IdempotencyRecord(self.person.id, key, self._digest)

    def cookies(self) -> list[str]:
        """Return all values of the session cookie: one of an older base path must not hide the right one."""
        sent = self._environ.get("HTTP_COOKIE", "").split(";")
        pairs = [part.strip().partition("=") for part in sent]
        return [value for name, _, value in pairs if name == self.cookie_name and value][:20]

    def set_cookie(self, token: str, seconds: float = SESSION_SECONDS) -> Header:
        """Return the header that sets the session cookie."""
        return "Set-Cookie", "%s=%s; Path=%s; Max-Age=%d; HttpOnly; SameSite=Strict%s" % (
            self.cookie_name, token, self.base, seconds, "; Secure" if self.secure else "")

    def bearer(self) -> str | None:
        """Return the API token of Authorization: Bearer or X-Api-Key, or None."""
        sent = self.header("Authorization") or self._environ.get("REDIRECT_HTTP_AUTHORIZATION", "")
        kind, _, token = sent.partition(" ")        # Apache renames headers after a rewrite
        return token.strip() if kind.lower() == "bearer" else self.header("X-Api-Key")

    def check_origin(self, strict: bool) -> None:
        """Raise Denied unless our own page sent this request (CSRF). `strict` demands a header as proof."""
        site, origin = self.header("Sec-Fetch-Site"), self.header("Origin")
        if site is not None:
            right = site == "same-origin"
        elif origin is not None:
            scheme, port = ("https", ":443") if self.secure else ("http", ":80")
            right = origin == "%s://%s" % (scheme, re.sub(port + "$", "", self._host))
        else:
            right = not strict
        if not right:
            raise Denied("This request does not come from this site's own page. If it does, a "
                         "proxy hides the address: see the settings trusted_proxies and https.")

    def visit(self) -> Visit:
        """Return how the page was reached, as the web server shows it."""
        return {"door": self.door, "https": self.secure, "base": self.base,
                "host": self._host if re.fullmatch(HOST, self._host) else "localhost",
                "client": self._client, "trusted": self._is_proxied,
                "forwarded": self.header("X-Forwarded-For") is not None}


class _StaticFile(NamedTuple):
    stamp: tuple[int, int]          # time of the last change, and size
    answer: Answer


def lighter(suffix: str, body: bytes) -> bytes:
    """Return a file as it is sent: scripts and styles lose comments, indents and needless spaces."""
    if suffix in (".js", ".css"):
        body = COMMENTS.sub(b"", body)
    return STYLE_SPACES.sub(rb"\1", body) if suffix == ".css" else body


class StaticFiles:
    """The files of static/ with plain names and known suffixes, without comments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _StaticFile] = {}

    def page(self, name: str) -> Answer:
        """Return the Answer with a page of the handbook. Other files in its folder are not served."""
        contents = self.answer("docs/README.md")
        if name != "README.md" and b"](%s)" % name.encode("utf-8", "replace") not in contents.body:
            raise NotFound("There is no file %s." % shorten(name, 60))
        return self.answer("docs/" + name)

    def answer(self, name: str) -> Answer:
        """Return the Answer with a file; NotFound if static/ has no such file."""
        path = self._folder / name
        if not re.fullmatch(STATIC_NAME, name) or path.suffix not in STATIC_TYPES:
            raise NotFound("There is no file %s." % shorten(name, 60))
        try:
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            cached = self._known.get(name)
            if cached is None or cached.stamp != stamp:
                body = lighter(path.suffix, path.read_bytes())
                answer = Answer(200, body, STATIC_TYPES[path.suffix], keep="no-cache")
                cached = self._known[name] = _StaticFile(stamp, answer)
        except OSError:
            raise NotFound("There is no file %s." % name) from None
        return cached.answer
