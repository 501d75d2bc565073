"""Clients of commands: this host's queue, or another site over HTTP."""
from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import PIECE_BYTES
from ..base.errors import JobQueueError, SetupError, field_error
from ..base.time_and_text import Clock
from ..tasks.files import BYTES_TYPE, FileSlice, shown_name
from ..access.people import Person, Users
from ..access.python_interface import JobQueue
from .http_answer import JSON_TYPE, LINES_TYPE
from .http_request import Request, envelope
from .application import Application

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from typing import Any, BinaryIO, Union
    from urllib.error import HTTPError

    from ..base.types import JsonObject
    from ..base.time_and_text import AnyClock

OTHER_SITE_SECONDS = 60.0


if TYPE_CHECKING:
    # The content of a request: a query or a JSON object; JSON lines, each a task; a file; nothing.
    Given = Union[JsonObject, bytes, BinaryIO, None]


class Shell(Person):
    """The user of the command line on this host: the site's own code, which may do everything."""

    name, role, is_admin = "the command line", "admin", True
    visible_owner_id = visible_account_id = token = expires_at = None
    scope_and_actor = visible_owner_id, name

    def __init__(self, users: Users, owner: str | None) -> None:
        self._find = functools.partial(users.owner, owner)

    def sees_secrets_of(self, owner: str) -> bool:
        """Return True: every user with a shell here can read the database."""
        return True

    @property
    def searches_as(self) -> None:
        """Return None: a search reads the secrets of all users."""

    @property
    def answerable(self) -> None:
        """Return None: no user's rights limit the request."""

    @property
    def id(self) -> int:  # type: ignore[override]   # looked up only if needed: there may be no admin
        """Return the id of the owner of added tasks: the named owner, else the default one."""
        return self._find()["id"]


class _Sent(NamedTuple):
    """The parts of a request."""

    query: str
    body: bytes | FileSlice
    kind: str               # the Content-Type of the body


def _as_sent(method: str, content: Given) -> _Sent:
    """Return the query, the body and its type for a request with this content, such as an open file."""
    if isinstance(content, bytes):
        return _Sent("", content, LINES_TYPE)
    if content is not None and not isinstance(content, dict):
        size = os.fstat(content.fileno()).st_size
        name = urlencode({"name": shown_name(Path(content.name).name)}, errors="replace")
        return _Sent(name, FileSlice(content, size), BYTES_TYPE)
    if method not in ("GET", "DELETE"):
        return _Sent("", json.dumps(content or {}).encode("ascii"), JSON_TYPE)
    query = {name: value for name, value in (content or {}).items() if value is not None}
    return _Sent(urlencode(query, errors="replace"), b"", JSON_TYPE)


class Client:
    """The API that commands use: that of this host's own queue, or of another site."""

    clock: AnyClock = Clock
    status = 0                          # the HTTP status of the last answer

    def ask(self, method: str, path: str, content: Given = None) -> Any:
        """Return the API's answer: an object, the pieces of a file, or None if empty. Errors are raised.

        A dictionary is the query of a GET or DELETE, else the JSON body. Other content is the body.
        """
        raise NotImplementedError


class LocalClient(Client):
    """The API of this host's own queue, without a server in between."""

    def __init__(self, queue: JobQueue) -> None:
        self._app = Application(queue, "code")
        self.clock = queue.database.clock

    def ask(self, method: str, path: str,
               content: Given = None) -> JsonObject | Iterable[bytes] | None:
        """Return the answer, see Client.ask()."""
        owner = None
        if method == "POST" and isinstance(content, dict):
            content = dict(content)
            owner = content.pop("owner", None)
        query, body, kind = _as_sent(method, content)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
            "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body) if isinstance(body, bytes) else content,
            "jobqueue.door": "shell"}
        request = Request(environ, self._app.queue.settings)
        request.asker = Shell(self._app.queue.users, owner)
        with self._app.queue.database.deadline():
            reply = self._app.route(request)
        answer, self.status = reply.body, reply.status
        return (json.loads(answer) if answer else None) if isinstance(answer, bytes) else answer


class HttpClient(Client):
    """The API of another site, over HTTP, with a token."""

    def __init__(self, address: str, token_file: str | None) -> None:
        if not re.match("https?://", address):
            raise field_error("--server", "must be an address such as https://example.org/jobs")
        if "@" in urlsplit(address).netloc:
            raise field_error("--server", "must have no name or password; this program sends the token")
        self._address = address.rstrip("/")
        self._narrow = 0                # 1: changes are sent as POST; 2: also their bodies in a form
        self._token = Path(token_file).read_text("utf-8-sig", "replace").strip() if token_file else ""
        if not re.fullmatch("[!-~]*", self._token):
            raise field_error("--token-file", "must hold an API token and nothing else")

    def ask(self, method: str, path: str,
               content: Given = None) -> JsonObject | Iterable[bytes] | None:
        """Return the answer, see Client.ask()."""
        with self._errors_translated():
            answer = self._open(method, path, content)
            kind, self.status = answer.headers.get("Content-Type", JSON_TYPE), answer.status
            if kind.startswith("text/html"):    # the page of another program: the API never answers HTML
                answer.close()
                raise ValueError(kind)
            if "json" not in kind:
                return self._pieces(answer)
            with answer:
                text = answer.read()
            return json.loads(text) if text else None

    def _open(self, method: str, path: str, content: Given) -> HTTPResponse:
        """Send a request. If a firewall before the site refuses a change, send it as POST, then in a form.

        A refusal without JSON comes from such a firewall, not from jobqueue. Nearly every host lets forms
        pass. Later requests are sent in the way that passed.
        """
        import urllib.error
        while True:
            try:
                return self._send(method, path, content)
            except urllib.error.HTTPError as error:
                is_foreign = error.code < 500 and "json" not in error.headers.get("Content-Type", "")
                if method == "GET" or not is_foreign or self._narrow == 2:
                    raise
                self._narrow = 1 if method != "POST" and not self._narrow else 2
                if content is not None and not isinstance(content, (dict, bytes)):
                    content.seek(0)

    def _send(self, method: str, path: str, content: Given) -> HTTPResponse:
        import urllib.request
        query, body, kind = _as_sent(method, content)
        if self._narrow and method not in ("GET", "POST"):
            query, method = "&".join(filter(None, (query, "as=" + method))), "POST"
        sent: Iterable[bytes] | bytes | None = body or None
        size = len(body)
        if self._narrow == 2 and body:
            kind, head, tail = envelope(kind)
            sent = itertools.chain([head], [body] if isinstance(body, bytes) else body, [tail])
            size += len(head) + len(tail)
        request = urllib.request.Request("%s%s?%s" % (self._address, path, query), sent, {
            "Content-Type": kind, "Content-Length": str(size)}, method=method)
        request.add_unredirected_header("X-Api-Key", self._token)
        return urllib.request.urlopen(request, timeout=OTHER_SITE_SECONDS)

    def _pieces(self, answer: HTTPResponse) -> Iterator[bytes]:
        with answer, self._errors_translated():
            yield from iter(functools.partial(answer.read, PIECE_BYTES), b"")

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Raise errors of HTTP and of the connection as errors for people."""
        import http.client
        import urllib.error
        try:
            yield
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, http.client.IncompleteRead) as error:
            raise SetupError("%s cannot be reached: %s." % (
                self._address, getattr(error, "reason", error))) from None
        except (ValueError, http.client.HTTPException):
            raise SetupError("%s is not the address of a jobqueue." % self._address) from None

    @staticmethod
    def _refusal(error: HTTPError) -> JobQueueError:
        """Return the error that a site answered with, as it was raised there."""
        kinds = {kind.code: kind for kind in JobQueueError.__subclasses__()}
        try:
            with error:
                problem_json = json.loads(error.read())
            return kinds.get(problem_json["code"], JobQueueError)(
                problem_json["detail"], problem_json["errors"], count=problem_json.get("count"))
        except Exception:               # not an answer of jobqueue, or an incomplete one
            who = "Something in front of that site refused" if error.code < 500 else "The server answered"
            return SetupError("%s: %d %s." % (who, error.code, error.reason))
