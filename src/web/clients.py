"""Clients of commands: this host's queue, or another site over HTTP."""
import contextlib
import functools
import io
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlencode

from ..base.limits import PIECE_BYTES
from ..base.errors import JobQueueError, SetupError, field_error
from ..base.time_and_text import Clock
from ..tasks.files import BYTES_TYPE, Portion
from .http_answer import JSON_TYPE, LINES_TYPE
from .http_request import Request
from .application import Application
from .printing import OTHER_SITE_SECONDS


class Shell:
    """Who asks on the command line of this host: the site's own code, which may do everything."""

    name, role, is_admin, scope, answerable = "the command line", "admin", True, None, None
    who, own, token = (scope, name), None, None

    def __init__(self, users, owner):
        self._find = functools.partial(users.owner, owner)

    @property
    def id(self):
        """Whose tasks are added: the named owner's, else the default one's."""
        return self._find()["id"]


def _as_sent(method, given):
    """(query, body, its type) of a request for what is given, such as an open file."""
    if isinstance(given, io.IOBase):
        size = os.fstat(given.fileno()).st_size
        return urlencode({"name": Path(given.name).name}), Portion(given, size), BYTES_TYPE
    if isinstance(given, bytes):
        return "", given, LINES_TYPE
    if method not in ("GET", "DELETE"):
        return "", json.dumps(given or {}).encode("ascii"), JSON_TYPE
    given = {name: value for name, value in (given or {}).items() if value is not None}
    return urlencode(given, errors="replace"), b"", JSON_TYPE


class ThisSite:
    """The API of this host's own queue: the handlers, without a server between."""

    def __init__(self, queue):
        self._app = Application(queue, "code")
        self.clock = queue.database.clock

    def ask(self, method, path, given=None):
        """What the API answers, None for nothing, the pieces of a file; errors are raised.
        `given` is the query of a GET, else the body; bytes are JSON lines, one for each task."""
        owner = None
        if method == "POST" and isinstance(given, dict):
            given = dict(given)
            owner = given.pop("owner", None)
        query, body, kind = _as_sent(method, given)
        request = Request({
            "REQUEST_METHOD": method, "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
            "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body) if isinstance(body, bytes) else given,
            "jobqueue.door": "shell"}, self._app.queue.settings)
        request.person = Shell(self._app.queue.users, owner)
        with self._app.queue.database.deadline():
            answer = self._app.route(request).body
        return (json.loads(answer) if answer else None) if isinstance(answer, bytes) else answer


class OtherSite:
    """The API of another site, over HTTP; whoever's token it is asks."""

    clock = Clock

    def __init__(self, address, token_file):
        if not re.match("https?://", address):
            raise field_error("--server", "must be an address such as https://example.org/jobs")
        self._address = address.rstrip("/")
        self._token = Path(token_file).read_text("ascii", "replace").strip() if token_file else ""
        if not re.fullmatch("[!-~]*", self._token):
            raise field_error("--token-file", "must hold an API token and nothing else")

    def ask(self, method, path, given=None):
        """As ThisSite.ask() does."""
        import urllib.request
        query, body, kind = _as_sent(method, given)
        with self._heard():
            request = urllib.request.Request("%s%s?%s" % (self._address, path, query), body or None,
                                             {"Content-Type": kind, "Content-Length": len(body)},
                                             method=method)
            request.add_unredirected_header("X-Api-Key", self._token)
            answer = urllib.request.urlopen(request, timeout=OTHER_SITE_SECONDS)
            kind = answer.headers.get("Content-Type", JSON_TYPE)
            if kind.startswith("text/html"):    # the page of something else: no API answers that
                raise ValueError(kind)
            if "json" not in kind:
                return self._pieces(answer)
            with answer:
                text = answer.read()
            return json.loads(text) if text else None

    def _pieces(self, answer):
        with answer, self._heard():
            yield from iter(functools.partial(answer.read, PIECE_BYTES), b"")

    @contextlib.contextmanager
    def _heard(self):
        """What goes wrong with the other site becomes an error that people can read."""
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
    def _refusal(error):
        """The error that a site answered with, as it was raised there."""
        kinds = {kind.code: kind for kind in JobQueueError.__subclasses__()}
        try:
            told = json.loads(error.read())
            return kinds.get(told["code"], JobQueueError)(
                told["detail"], told["errors"], count=told.get("count"))
        except Exception:               # no answer of ours, or half of one
            return SetupError("The server answered %d %s." % (error.code, error.reason))
