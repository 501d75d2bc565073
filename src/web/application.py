"""The WSGI callable: finds the route, checks, answers errors.

The dispatcher keeps to ROUTES, checks what is sent and answers errors, all in one place.
"""
import contextlib
import functools
import os
import threading
from types import SimpleNamespace
from urllib.parse import quote

from ..base.limits import CACHE_SECONDS, CODE_FILES, STATIC_FOLDER
from ..base.errors import (Denied, Invalid, JobQueueError, Malformed, NotAllowed, NotFound,
                           Unauthorized, UnsupportedType, in_passing)
from ..base.time_and_text import load_json, shorten
from ..store.schema import SCHEMA_VERSION
from ..tasks.files import BYTES_TYPE
from ..upkeep.worker_modes import file_stamps
from ..access.remote_workers import WAITERS_MAX
from ..access.python_interface import JobQueue
from .http_answer import JSON_TYPE, LINES_TYPE, Answer, json_answer, problem
from .http_request import Request, StaticFiles
from .handlers_tasks import NEW_TASKS, UPLOAD, tick
from .routes import (ADMIN, ANYONE, CHANGE, CLAIM, FRESH, KEPT, MADE_AT, OWN, ROUTES, SCOPES,
                     TICKER, WHOLE, match_path)
from .openapi import describe_api


class Application:
    """The WSGI callable of one queue; `source` is what its requests tick as, see Tick."""

    def __init__(self, queue, source="request"):
        self.queue = queue
        self.source = source
        self.static = StaticFiles(STATIC_FOLDER)
        self._cache = {}                # what was asked by whom -> the answer, and as of when
        self.one_by_one = threading.Lock()
        self.waiting = threading.BoundedSemaphore(WAITERS_MAX)      # calls of remote workers
        if source != "code":
            with in_passing("settling here"):
                queue.files.settle()

    def __call__(self, environ, start_response):
        with self.queue.database.deadline():
            request = Request(environ, self.queue.settings)
            try:
                answer = self.route(request)
            except Unauthorized as error:
                answer = problem(self._invited_to_setup(error))
            except Exception as error:
                answer = problem(error)
            status, headers, body = answer.to(request)
        if request.left:
            request.take_the_rest()
        start_response(status, headers)
        return [body] if isinstance(body, bytes) else body

    @functools.cached_property
    def document(self):
        """What /openapi.json answers."""
        return json_answer(describe_api(load_json(self.static.answer("api.json").body.decode())))

    def _invited_to_setup(self, error):
        """The 401 that says if there is no admin, whose code is then there to be read."""
        try:
            error.extra = {"setup": not self.queue.users.has_admin()}
        except JobQueueError as trouble:
            return trouble
        with in_passing("making the set-up code"):
            if error.extra["setup"]:
                self.queue.setup.code()
        return error

    def route(self, request):
        """What the row of ROUTES for a request answers; errors are raised."""
        request.app = self
        method = "GET" if request.method == "HEAD" else request.method
        allowed = []
        for route in ROUTES:
            parts = match_path(route.path, request.path)
            if parts is not None and route.method == method:
                self._admit(request, route.who, route.needs, *parts)
                return self._handle(request, route, parts)
            if parts is not None:
                allowed.append(route.method)
        if not allowed:
            raise NotFound("There is nothing at this address.")
        allowed = ", ".join([*allowed, *(["HEAD"] if "GET" in allowed else [])])
        raise NotAllowed("%s is not possible here; possible: %s." % (
            shorten(request.method, 20), allowed), headers=[("Allow", allowed)])

    def _handle(self, request, route, parts):
        if request.person and route.handler is not tick:
            with self.queue.database.deadline(0.5):     # any request does the housekeeping
                self.queue.tick.maybe(self.source)
        if not route.needs & KEPT:
            return self._perform(request, route, parts)
        key = request.path, request.query_text, request.person.scope, request.person.role
        if len(self._cache) >= 20:
            self._cache.clear()
        kept, database = self._cache.setdefault(key, SimpleNamespace(
            answer=None, version=None, until=0.0, making=threading.Lock())), self.queue.database
        version, now = database.version_seen(), database.clock.monotonic()
        with kept.making:               # one makes it for all who ask
            if kept.version == version and now <= kept.until:
                return kept.answer
            answer = self._perform(request, route, parts)
            if answer.keep:
                kept.answer, kept.version, kept.until = answer, version, now + CACHE_SECONDS
            return answer

    def _perform(self, request, route, parts):
        if route.takes and route.takes is not NEW_TASKS:
            with self.queue.database.unhurried():
                is_query = route.method == "GET" or route.takes is UPLOAD
                read = request.read_query if is_query else request.read_object
                request.given = read(route.takes)
        if route.needs & FRESH:
            self.queue.catalogue.refresh()
        try:
            found = route.handler(self.queue, request, *parts)
        except Invalid as error:
            if route.method == "GET":   # what it takes is its query
                raise Malformed(error.detail, error.errors) from None
            raise
        finally:                        # an action that is refused may have changed some
            if route.needs & CHANGE:
                self.queue.start_workers()
        if isinstance(found, Answer):
            return found
        status, *kinds = route.answer
        if found is None:
            return Answer(status)
        place = MADE_AT.get(kinds[0]) if status == 201 else None
        headers = [("Location", request.base + quote(place % found))] if place else []
        return json_answer(found, status, headers)

    def _admit(self, request, who, needs, *parts):
        if who == ANYONE and request.method == "POST":
            request.check_origin(strict=False)
        if who == CLAIM:
            request.attempt = self.queue.claims.cancel_asked(parts[0], request.bearer() or "")
        if (who == ANYONE or request.attempt is not None
                or who == TICKER and self._admit_ticker(request)):
            return
        request.person = request.person or who != CLAIM and self._identify(request, who) or None
        if request.person is None:
            raise Unauthorized("This API token is not known." if request.bearer() is not None
                               else "Please log in. Programs send an API token as X-Api-Key, or as "
                               "Authorization: Bearer, which some web servers drop.")
        if who == ADMIN and not request.person.is_admin:
            raise Denied("Only admins may do this.")
        if who in SCOPES and not (request.person.token and request.person.is_admin):
            raise Denied("This needs a token of the scope %s, and of an admin." % SCOPES[who])
        reads = (request.person.token or {}).get("scope") == "read" or (
            request.person.role == "viewer" and not needs & OWN)
        if reads and (request.method not in ("GET", "HEAD") or needs & WHOLE):
            raise Denied("Viewers, and tokens of the scope read, change nothing and get no backup.")

    def _admit_ticker(self, request):
        """True if a tick token is sent, in the address or as API tokens are."""
        token = request.query.get("token")
        sent = request.bearer() if token is None else token
        person = sent and self.queue.tokens.person(sent)
        if person and person.token["scope"] == "tick":
            return True
        if token is None and request.method == "POST":
            return False                # any user may, too
        raise Unauthorized("This address needs ?token= and a token of the scope tick.")

    def _identify(self, request, who):
        """The Person of the API token if one is sent, else of the session cookie."""
        token = request.bearer()
        if token is not None:
            scopes = (SCOPES[who],) if who in SCOPES else ("user", "read")
            person = self.queue.tokens.person(token)
            if person and person.token["scope"] not in scopes:
                raise Denied("This API token is for something else.")
            return person
        tokens = request.cookies()
        people = list(filter(None, map(self.queue.sessions.person, tokens)))
        if len({person.id for person in people}) > 1:
            for token in tokens:        # one was planted by somebody else, and nobody knows which
                self.queue.sessions.close(token)
            raise Unauthorized("Two people were logged in here at once; both were logged out. "
                               "Please log in again.", headers=[request.set_cookie("", 0)])
        person = next(iter(people), None)
        if person and request.method not in ("GET", "HEAD"):
            request.check_origin(strict=True)
            if request.content_type not in (JSON_TYPE, LINES_TYPE, BYTES_TYPE):
                raise UnsupportedType("Send requests as application/json.")
        return person


applications = {}                      # process id -> its Application, for `application`
_code = file_stamps(CODE_FILES)         # what this process runs


def _application():
    """This process's Application; a new one if the database was replaced by another, SetupError if
    newer code has made a newer one of it."""
    known = applications.get(os.getpid())
    with contextlib.suppress(JobQueueError, OSError):
        if known:
            database = known.queue.database
            database.check_file()
            if (file_stamps(_code) == _code
                    or database.value(database.version_words) == SCHEMA_VERSION):
                return known
    known = applications[os.getpid()] = Application(JobQueue())    # a thread may use the old one
    return known


def application(environ, start_response):
    """The WSGI callable for web servers that import this file."""
    try:
        app = _application()
    except Exception as error:          # there is no queue
        status, headers, body = problem(error, environ.get("HTTP_ACCEPT", "")).to()
        start_response(status, headers)
        return [body if environ["REQUEST_METHOD"] != "HEAD" else b""]
    return app(environ, start_response)
