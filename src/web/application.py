"""The WSGI callable: finds the route, checks, answers errors.

An Application finds the route of a request in ROUTES, checks its user and its input, calls the handler, and
turns errors into answers.
"""
from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.limits import BODY_MAX_BYTES, CACHE_SECONDS, CODE_FILES, INTEGER_MAX, STATIC_FOLDER
from ..base.errors import (Denied, Invalid, JobQueueError, Malformed, NotAllowed, NotFound,
                           Unauthorized, UnsupportedType, print_errors)
from ..base.time_and_text import load_json, shorten
from ..store.schema import SCHEMA_VERSION
from ..tasks.files import BYTES_TYPE
from ..upkeep.worker_modes import file_stamps
from ..access.people import TOKEN_SCOPES, Person
from ..access.python_interface import JobQueue
from .http_answer import JSON_TYPE, LINES_TYPE, Answer, conceal, json_answer, problem
from .http_request import ENVELOPE_TYPE, LINES_MAX_BYTES, Request, StaticFiles
from .handlers_tasks import NEW_TASKS, UPLOAD, tick
from .routes import (ADMIN, ANYONE, CHANGE, CLAIM, FRESH, KEPT, METRICS, OWN, ROUTES_AT, TICKER,
                     WHOLE, WORKER, Route, match_path, place_of)
from .openapi import describe_api

if TYPE_CHECKING:
    from .http_answer import Content, Environ, StartResponse
    from .routes import PathParts

if TYPE_CHECKING:
    WsgiCallable = Callable[[Environ, StartResponse], Iterable[bytes]]

SCOPES = {WORKER: "worker", METRICS: "metrics"}     # the scope that an admin's token needs for such a route
# The address of a new object, by the schema of the answer.
MADE_AT = {"Task": "api/tasks/%(id)d", "ScheduleDetail": "api/schedules/%(id)d",
           "Queue": "api/queues/%(name)s", "User": "api/users/%(name)s"}
WAITERS_MAX = 16


class _Kept:
    """A cached answer, and the version of the database from which it was made."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.version: object = None
        self.until = 0.0
        self.making = threading.Lock()      # one thread makes the answer, the rest waits


class Application:
    """The WSGI callable of one queue. `source` is the caller of its ticks, see Tick.maybe()."""

    def __init__(self, queue: JobQueue, source: str = "request") -> None:
        self.queue = queue
        self.source = source
        self.static = StaticFiles(STATIC_FOLDER)
        # Cached answers by path, query, and the user's scope, role, name and token scope.
        self._cache: dict[tuple[str, str, int | None, str, str, str | None], _Kept] = {}
        self.one_by_one = threading.Lock()
        self.waiting = threading.BoundedSemaphore(WAITERS_MAX)      # calls that wait for tasks
        if source != "code":
            with print_errors("settling here"):
                queue.files.settle()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Content:
        with self.queue.database.deadline():
            request = Request(environ, self.queue.settings)
            try:
                answer = self.route(request)
            except Unauthorized as error:
                answer = problem(self._invited_to_setup(error))
            except Exception as error:
                answer = problem(error)
            status, headers, content = answer.to(request)
        if request.left:
            request.read_rest()
        start_response(status, headers)
        return content

    @functools.cached_property
    def document(self) -> Answer:
        """Return the answer of /openapi.json."""
        return json_answer(describe_api(load_json(self.static.answer("api.json").whole.decode())))

    def _invited_to_setup(self, error: Unauthorized) -> JobQueueError:
        """Return the error 401, with a hint whether there is an admin. If there is none, make the code."""
        try:
            error.extra = {"setup": not self.queue.users.has_admin()}
        except JobQueueError as trouble:
            return trouble
        with print_errors("making the set-up code"):
            if error.extra["setup"]:
                self.queue.setup.code()
        return error

    def route(self, request: Request) -> Answer:
        """Return the answer to a request; errors are raised."""
        request.app = self
        method = "GET" if request.method == "HEAD" else request.method
        methods: list[str] = []
        for route in ROUTES_AT.get(place_of(request.path), ()):
            parts = match_path(route.path, request.path)
            if parts is not None and route.method == method:
                self._admit(request, route.who, route.needs, parts)
                return self._handle(request, route, parts)
            if parts is not None:
                methods.append(route.method)
        if not methods:
            raise NotFound("There is nothing at this address.")
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        raise NotAllowed("%s is not possible here; possible: %s." % (
            shorten(request.method, 20), allowed), headers=[("Allow", allowed)])

    def _handle(self, request: Request, route: Route, parts: PathParts) -> Answer:
        if request.asker and route.handler is not tick:
            with self.queue.database.deadline(0.5):     # a user's request also does the maintenance
                self.queue.tick.maybe(self.source)
        if not route.needs & KEPT:
            return self._perform(request, route, parts)
        person, database = request.person, self.queue.database
        key = request.path, request.query_text, person.visible_owner_id, person.role, person.name, \
            person.token and person.token["scope"]
        if len(self._cache) >= 20:
            self._cache.clear()
        entry = self._cache.setdefault(key, _Kept())
        version, now = database.version_seen(), database.clock.monotonic()
        with entry.making:
            if entry.answer and entry.version == version and now <= entry.until:
                return entry.answer
            answer = self._perform(request, route, parts)
            if answer.keep:
                entry.answer, entry.version, entry.until = answer, version, now + CACHE_SECONDS
            return answer

    def _perform(self, request: Request, route: Route, parts: PathParts) -> Answer:
        if request.content_type == ENVELOPE_TYPE:
            with self.queue.database.deadline_paused():
                most = self.queue.settings.get("max_files_mb") << 20 or INTEGER_MAX
                request.unwrap(most if route.takes is UPLOAD else
                               LINES_MAX_BYTES if route.takes is NEW_TASKS else BODY_MAX_BYTES)
        if route.takes and route.takes is not NEW_TASKS:
            with self.queue.database.deadline_paused():
                is_query = route.method == "GET" or route.takes is UPLOAD
                read = request.read_query if is_query else request.read_object
                request.given = read(route.takes)
        if route.needs & FRESH:
            self.queue.catalogue.refresh()
        try:
            value = route.handler(self.queue, request, *parts)
        except Invalid as error:
            if route.method == "GET":   # the query is the input of a GET
                raise Malformed(error.detail, error.errors) from None
            raise
        finally:                        # a refused action may have changed some tasks
            if route.needs & CHANGE:
                self.queue.start_workers()
        if isinstance(value, Answer):
            return value
        if value is None:
            return Answer(route.status)
        if request.asker:
            value = conceal(value, request.asker)
        place = MADE_AT.get(route.kinds) if route.status == 201 else None
        headers = [("Location", request.base + quote(place % value))] if place else []
        return json_answer(value, route.status, headers)

    def _admit(self, request: Request, who: str, needs: int, parts: PathParts) -> None:
        if who == ANYONE and request.method == "POST":
            request.check_origin(strict=False)
        if who == CLAIM:
            request.cancel_requested = self.queue.claims.asked_with(
                self.queue.database, parts[0], request.bearer() or "")
        if (who == ANYONE or request.cancel_requested is not None
                or who == TICKER and self._admit_ticker(request)):
            return
        if request.asker is None and who != CLAIM:
            request.asker = self._identify(request, who)
        if request.asker is None and request.bearer() is not None:
            raise Unauthorized("This API token is not known.")
        person, token = request.person, request.person.token
        if who == ADMIN and not person.is_admin:
            raise Denied("Only admins may do this.")
        if who in SCOPES and not (token and person.is_admin):
            raise Denied("This needs an admin's token of the scope %s." % SCOPES[who])
        reads = token and token["scope"] == "read" or person.role == "viewer" and not needs & OWN
        if reads and (request.method not in ("GET", "HEAD") or needs & WHOLE):
            raise Denied("Viewers, and tokens of the scope read, change nothing and get no backup.")

    def _admit_ticker(self, request: Request) -> bool:
        """Return True if a tick token is sent, either as ?token= or in a header."""
        token = request.query.get("token")
        sent = request.bearer() if token is None else token
        person = self.queue.tokens.person(sent) if sent else None
        if person and person.token and person.token["scope"] == "tick" and (
                person.role in TOKEN_SCOPES["tick"]):
            return True
        if token is None and request.method == "POST":
            return False                # users may tick, too, without this token
        raise Unauthorized("This address needs ?token= and a token of the scope tick.")

    def _identify(self, request: Request, who: str) -> Person | None:
        """Return the Person of the API token if one is sent, else of the session cookie."""
        token = request.bearer()
        if token is not None:
            scopes = (SCOPES[who],) if who in SCOPES else ("user", "read")
            person = self.queue.tokens.person(token)
            if person and person.token and person.token["scope"] not in scopes:
                raise Denied("The scope of this API token does not allow this request.")
            return person
        tokens = request.cookies()
        people = list(filter(None, map(self.queue.sessions.person, tokens)))
        if len({person.id for person in people}) > 1:
            for token in tokens:        # another site may have set one of these cookies: trust none
                self.queue.sessions.close(token)
            raise Unauthorized("Two people were logged in here at once; both were logged out. "
                               "Please log in again.", headers=[request.set_cookie("", 0)])
        person = next(iter(people), None)
        if person and request.method not in ("GET", "HEAD"):
            request.check_origin(strict=True)
            if request.content_type not in (JSON_TYPE, LINES_TYPE, BYTES_TYPE, ENVELOPE_TYPE):
                raise UnsupportedType("Send requests as application/json.")
        return person


applications: dict[int, Application] = {}   # the keys are process ids
_code = file_stamps(CODE_FILES)         # stamps of the code that this process runs


def _application() -> Application:
    """Return this process's Application; a new one if the database was replaced by another.

    SetupError if newer code has migrated the database.
    """
    current = applications.get(os.getpid())
    with contextlib.suppress(JobQueueError, OSError):
        if current:
            database = current.queue.database
            database.check_file()
            if (file_stamps(_code) == _code
                    or database.value(database.version_words) == SCHEMA_VERSION):
                return current
    current = applications[os.getpid()] = Application(JobQueue())    # another thread may still use the
                                                                     # former one
    return current


def application(environ: Environ, start_response: StartResponse) -> Content:
    """Answer a request: the WSGI callable for web servers that import this file."""
    try:
        app = _application()
    except Exception as error:          # the queue cannot be opened
        status, headers, content = problem(error, environ.get("HTTP_ACCEPT", "")).to()
        start_response(status, headers)
        return content if environ["REQUEST_METHOD"] != "HEAD" else [b""]
    return app(environ, start_response)


def mount(prefix: str, site: WsgiCallable) -> WsgiCallable:
    """Return a WSGI callable with the page at `prefix`, such as "/jobs". All else goes to `site`.

    Use it in the start file of Django or Flask: application = mount("/jobs", application).
    """
    prefix = "/" + prefix.strip("/").encode("utf-8").decode("latin-1")     # as WSGI has paths
    if prefix == "/":
        raise ValueError("mount: the prefix must be a path such as /jobs")

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path != prefix and not path.startswith(prefix + "/"):
            return site(environ, start_response)
        return application({**environ, "SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + prefix,
                            "PATH_INFO": path[len(prefix):]}, start_response)
    return answer
