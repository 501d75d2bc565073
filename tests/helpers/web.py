"""Asking the application in this process, or a server at its address, as browsers and programs do.

    WebTestCase    a TestCase with self.app, and the visitors self.nobody, self.ana, self.bob, self.eve:
                   browsers, the last three logged in; self.program("bob") sends an API token instead
    Visitor        visitor.get("/api/tasks?limit=5"), .post(path, body), .patch, .delete, .ask(method, ...)
                   -> Reply with status, headers, body, json; every call goes through wsgiref.validate,
                   and every answer is held against /openapi.json
    Wire           what a Visitor of an address asks: a WSGI application in front of a server
    OpenApi        that document, and the part of JSON Schema that it uses
    ROUTES, BODIES every route as (method, path, who), and a right body for each that takes one
"""
import contextlib
import functools
import gzip
import http.client
import io
import json
import re
import secrets
import sys
from urllib.parse import quote, unquote, urlsplit
from wsgiref.validate import validator

import jobqueue
from tests.helpers.support import PASSWORD, ROOT, TestCase, quick_hash

SITE = "jobs.example.org"
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
NOT_FOR_WSGI = ("connection", "keep-alive", "transfer-encoding", "upgrade", "status")
NEW_PASSWORD = {"password": "another horse", "current_password": PASSWORD}
# A right body for each route that takes one.
BODIES = {
    "/api/setup": {"code": "x", "name": "mallory", "password": "another horse"},
    "/api/session": {"name": "bob", "password": PASSWORD},
    "/api/tasks": {"function": "add", "arguments": {"a": 1}},
    "/api/tasks/actions": {"action": "cancel", "ids": [1, 2]},
    "/api/tasks/ID": {"notify": "end"},
    "/api/schedules": {"function": "add", "arguments": {"a": 1}, "rule": "daily 01:00"},
    "/api/schedules/preview": {"rule": "daily 01:00"},
    "/api/schedules/ID": {"rule": "daily 02:00"},
    "/api/settings": {"linger": 20},
    "/api/alerts/ID/mute": {"how": "1h"},
    "/api/host/exposure": {"exposed": []},
    "/api/queues": {"name": "new"},
    "/api/queues/NAME": {"max_running": 2},
    "/api/users": {"name": "newcomer", "password": "another horse"},
    "/api/invitations": {"role": "user"},
    "/api/invitations/accept": {"code": "x", "name": "mallory", "password": "another horse"},
    "/api/users/NAME": NEW_PASSWORD,
    "/api/tokens": {"name": "new", "password": PASSWORD},
    "/api/saved": {"page": "tasks", "name": "Failed", "value": {"query": "status=failed"}},
    "/api/worker/hello": {"session": "0" * 32, "protocol": 1, "machine": "strong", "version": "1.0.0",
                          "functions": []},
    "/api/worker/turn": {"session": "0" * 32, "sequence": 1},
    "/api/worker/tasks/ID": {"function": "add", "arguments": {"a": 1}},
}
UPLOADS = ("/api/files", "/api/worker/tasks/ID/files")      # whose bodies are files, named in the query


def readable(pattern):
    """A path of ROUTES with ID and NAME in place of their patterns."""
    return pattern.replace(jobqueue.ID, "ID").replace(jobqueue.NAME, "NAME")


# (method, path, who)
ROUTES = [(method, readable(pattern), who) for method, pattern, _, who, *_ in jobqueue.ROUTES]


class Reply:
    """An answer: `status`, `headers` with small names, `body`; `json` if it is that."""

    def __init__(self, status, headers, body):
        self.status = int(status.split(" ")[0])
        self.head = headers                     # as they were sent, for those sent twice
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def json(self):
        """The body as JSON."""
        packed = self.headers.get("content-encoding") == "gzip"
        return json.loads((gzip.decompress(self.body) if packed else self.body).decode("utf-8"))

    @property
    def text(self):
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    @property
    def fields(self):
        """The names of the wrong fields of a problem."""
        return [error["field"] for error in self.json["errors"]]

    @property
    def kind(self):
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0]


class Wire:
    """A WSGI application that hands every request to the site at `address`, which ends in a slash.

    Every answer is read until the web server closes the connection: nothing may keep it open.
    """

    def __init__(self, address):
        parts = urlsplit(address)
        self._host, self._base = parts.netloc, parts.path.rstrip("/")

    def __call__(self, environ, start_response):
        headers = {name[5:].replace("_", "-").title(): value for name, value in environ.items()
                   if name.startswith("HTTP_") and name != "HTTP_HOST"}
        headers["Connection"] = "close"
        if environ.get("CONTENT_TYPE"):
            headers["Content-Type"] = environ["CONTENT_TYPE"]
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        target = self._base + quote(environ["PATH_INFO"], safe="/%", encoding="latin-1")
        if environ["QUERY_STRING"]:
            target += "?" + environ["QUERY_STRING"]
        link = http.client.HTTPConnection(self._host, timeout=60)
        with contextlib.closing(link):
            link.request(environ["REQUEST_METHOD"], target, body or None, headers)
            with link.sock.dup() as rest:
                answer = link.getresponse()
                content = answer.read()
                rest.recv(1)
            start_response("%d %s" % (answer.status, answer.reason or "-"),
                           [pair for pair in answer.getheaders() if pair[0].lower() not in NOT_FOR_WSGI])
            return [content]


class Visitor:
    """A browser with its cookie, or a program with its API token; `app` may be a server's address."""

    def __init__(self, app, cookie=None, token=None, prefix="", secure=False):
        self.app = Wire(app) if isinstance(app, str) else app
        self.cookie = cookie            # NAME=VALUE
        self.token = token
        self.prefix = prefix
        self.secure = secure

    def get(self, path, **headers):
        """GET."""
        return self.ask("GET", path, **headers)

    def post(self, path, body=None, **headers):
        """POST; `body` is sent as JSON, or as it is if it is bytes."""
        return self.ask("POST", path, body, **headers)

    def upload(self, path, body=b"bytes", **headers):
        """POST of a file."""
        return self.ask("POST", path, body, **{"Content_Type": jobqueue.BYTES_TYPE, **headers})

    def patch(self, path, body=None, **headers):
        """PATCH."""
        return self.ask("PATCH", path, body, **headers)

    def delete(self, path, **headers):
        """DELETE."""
        return self.ask("DELETE", path, **headers)

    def log_in(self, name, password=PASSWORD):
        """Have a session; returns itself."""
        reply = self.post("/api/session", {"name": name, "password": password})
        if reply.status != 200:
            raise AssertionError("log-in was answered %d: %s" % (reply.status, reply.text))
        return self

    def ask(self, method, path, body=None, **headers):
        """Send a request. Headers are given with _ for -; None leaves out one that is sent otherwise."""
        environ = self.environ(method, path, body, headers)
        reply = call(self.app, environ)
        for name, value in reply.head:
            if name == "Set-Cookie":
                self.cookie = value.partition(";")[0]
        meant = re.search("(?:^|&)as=(PATCH|DELETE)$", environ["QUERY_STRING"])   # many hosts want POST
        method = meant[1] if meant and method == "POST" else method
        problem = openapi().what_is_wrong(method, environ["PATH_INFO"], reply)
        if problem:
            raise AssertionError("%s %s -> %d is not as /openapi.json says: %s\n%s" % (
                method, path, reply.status, problem, reply.body[:2000]))
        return reply

    def environ(self, method, path, body=None, headers=()):
        """The WSGI environment of a request."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode("utf-8")
        sent = {"Host": SITE, "Cookie": self.cookie}
        if self.token is not None:
            sent["Authorization"] = "Bearer " + self.token
        elif method in UNSAFE:
            sent["Sec-Fetch-Site"] = "same-origin"
        if method in UNSAFE:
            sent["Content-Type"] = "application/json"
        sent.update({name.replace("_", "-"): value for name, value in dict(headers).items()})
        where, _, query = path.partition("?")
        result = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": self.prefix, "PATH_INFO": unquote(where, "latin-1"),
            "QUERY_STRING": query, "SERVER_NAME": "localhost", "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "192.0.2.7", "wsgi.version": (1, 0),
            "wsgi.url_scheme": "https" if self.secure else "http", "wsgi.input": io.BytesIO(body or b""),
            "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": True,
            "wsgi.run_once": False, "CONTENT_LENGTH": str(len(body or b""))}
        for name, value in sent.items():
            if value is not None:
                name = name.upper().replace("-", "_")
                result[name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + name] = value
        return result


def as_sent(path):
    """What browsers get of a file of the page: scripts and styles come without comments and indents."""
    return jobqueue.lighter(path.suffix, path.read_bytes())


def call(app, environ, checked=True):
    """The Reply of a WSGI application."""
    said = []

    def start_response(status, headers, _=None):
        said[:] = [status, headers]
        return lambda data: None

    parts = (validator(app) if checked else app)(environ, start_response)
    try:
        body = b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
    return Reply(*said, body)


class WebTestCase(TestCase):
    """See the module's docstring."""

    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "hash_password", quick_hash)
        self.queue.catalogue.refresh = lambda **_: None
        self.patch(jobqueue, "NOBODYS_PASSWORD", quick_hash("nobody has this"))
        self.app = jobqueue.Application(self.queue)
        self.nobody = Visitor(self.app)
        self.ana, self.bob, self.eve = (self.browser(name) for name in ("ana", "bob", "eve"))
        self.write("DELETE FROM activity")      # their log-ins are nothing that a test did

    def browser(self, name, **options):
        """A browser in which `name` has just logged in."""
        prefix = "__Host-" if options.get("secure") else ""
        token = self.queue.sessions.open(self.queue.users.find(name), "192.0.2.200")
        return Visitor(self.app, cookie="%sjobqueue=%s" % (prefix, token), **options)

    def remove_users(self):
        """As before the first set-up."""
        for table in ("session", "token", "known_address", "saved", "user"):
            self.write("DELETE FROM " + table)

    def program(self, name, scope="user", **limits):
        """A program with a new API token of `name`."""
        return Visitor(self.app, token=self.make_token(name, scope, **limits)[1])

    def make_token(self, name, scope="user", **limits):
        """(id, text) of a new API token."""
        token = self.queue.tokens.add(
            self.queue.users.find(name)["id"], "test", scope, limits=limits)
        return token["id"], token["token"]

    def check(self, reply, status, code=None):
        """The reply has this status and, if it is a problem, this code; returns its JSON, if any."""
        self.assertEqual(reply.status, status, reply.body[:2000])
        if status >= 400:
            self.assertEqual(reply.kind, "application/problem+json")
            self.assertEqual(reply.json["status"], status)
        if code:
            self.assertEqual(reply.json["code"], code)
        return reply.json if reply.body and "json" in reply.kind else None

    def check_wrong(self, reply, *fields):
        """The reply is 422 and names exactly these fields."""
        self.check(reply, 422, "invalid")
        self.assertEqual(sorted(set(reply.fields)), sorted(fields), reply.json)


class OpenApi:
    """/openapi.json, and what it says about an answer."""

    TYPES = {name: check for name, (_, check, _) in jobqueue.TYPES.items()}
    SILENT = {"description", "default", "summary"}

    def __init__(self, text):
        self.document = json.loads(text)
        self._paths = []
        for path, methods in self.document["paths"].items():
            pattern = path.replace("{id}", "[0-9]{1,15}").replace("{name}", "[^/]{1,300}")
            self._paths.append((re.compile(pattern), methods))

    def operations(self):
        """{(METHOD, path): operation}"""
        return {(method.upper(), path): operation for path, methods in self.document["paths"].items()
                for method, operation in methods.items()}

    def find(self, method, path):
        """The operation that answers, or None."""
        method = "get" if method == "HEAD" else method.lower()
        for pattern, methods in self._paths:
            if pattern.fullmatch(path):
                return methods.get(method)
        return None

    def what_is_wrong(self, method, path, reply):
        """Why this answer is not as the document says, or None."""
        operation = self.find(method, path)
        if operation is None:
            known = (404, 405) if path else (308, 405)      # no path of OpenAPI can be empty
            return None if reply.status in known else "there is no such operation"
        if str(reply.status) not in operation["responses"]:
            return "this status is not listed"
        response = self.resolve(operation["responses"][str(reply.status)])
        content = response.get("content", {})
        if not content:
            return "there should be no body" if reply.body else None
        if reply.kind not in content:
            return "%s is not listed" % reply.kind
        for name in response.get("headers", ()):
            if name.lower() not in reply.headers and name not in ("Set-Cookie", "Location"):
                return "the header %s is missing" % name
        if reply.kind.endswith("json") and reply.body and content[reply.kind]["schema"]:
            return self.mismatch(content[reply.kind]["schema"], reply.json, "body")
        return None

    def resolve(self, part):
        """What a $ref stands for; what extends others (allOf) with all that they say."""
        while "$ref" in part:
            place = self.document
            for step in part["$ref"].split("/")[1:]:
                place = place[step]
            part = place
        if "allOf" not in part:
            return part
        whole = {"type": "object", "properties": {}, "required": []}
        for one in map(self.resolve, part["allOf"]):
            whole["properties"].update(one["properties"])
            whole["required"] += one.get("required", [])
        return whole

    def mismatch(self, schema, value, where):
        """Why `value` is not as `schema` says, or None. Keys that no schema names are wrong too."""
        schema = self.resolve(schema)
        for keyword, wanted in schema.items():
            if keyword in self.SILENT:
                continue
            wrong = getattr(self, "_" + keyword)(wanted, value, where, schema)
            if wrong:
                return wrong
        return None

    def _type(self, wanted, value, where, _):
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return None if any(self.TYPES[kind](value) for kind in kinds) else "%s is %r, not %s" % (
            where, value, " or ".join(kinds))

    def _enum(self, wanted, value, where, _):
        return None if value in wanted else "%s is %r, not one of %s" % (where, value, wanted)

    def _const(self, wanted, value, where, _):
        return None if value == wanted else "%s is %r, not %r" % (where, value, wanted)

    def _properties(self, wanted, value, where, _):
        if not isinstance(value, dict):
            return None
        unknown = sorted(set(value) - set(wanted))
        if unknown:
            return "%s has the unknown %s" % (where, ", ".join(unknown))
        found = [self.mismatch(wanted[name], item, "%s.%s" % (where, name)) for name, item in value.items()]
        return next(filter(None, found), None)

    def _required(self, wanted, value, where, _):
        missing = [name for name in wanted if isinstance(value, dict) and name not in value]
        return "%s lacks %s" % (where, ", ".join(missing)) if missing else None

    def _additionalProperties(self, wanted, value, where, schema):
        return None if wanted is False and "properties" in schema else "only false is understood"

    def _items(self, wanted, value, where, _):
        items = value if isinstance(value, list) else ()
        found = [self.mismatch(wanted, item, "%s[%d]" % (where, place)) for place, item in enumerate(items)]
        return next(filter(None, found), None)

    def _anyOf(self, wanted, value, where, _):
        found = [self.mismatch(schema, value, where) for schema in wanted]
        return " and ".join(found) if all(found) else None

    def _minimum(self, wanted, value, where, _):
        return "%s is below %s" % (where, wanted) if self.TYPES["number"](value) and value < wanted else None

    def _maximum(self, wanted, value, where, _):
        return "%s is above %s" % (where, wanted) if self.TYPES["number"](value) and value > wanted else None

    def _minLength(self, wanted, value, where, _):
        return "%s is too short" % where if isinstance(value, str) and len(value) < wanted else None

    def _maxLength(self, wanted, value, where, _):
        return "%s is too long" % where if isinstance(value, str) and len(value) > wanted else None

    def _minItems(self, wanted, value, where, _):
        return "%s has too few items" % where if isinstance(value, list) and len(value) < wanted else None

    def _maxItems(self, wanted, value, where, _):
        return "%s has too many items" % where if isinstance(value, list) and len(value) > wanted else None

    def _pattern(self, wanted, value, where, _):
        wrong = isinstance(value, str) and not re.search(wanted, value)
        return "%s is %r, which does not match %s" % (where, value, wanted) if wrong else None

    def _format(self, wanted, value, where, _):
        form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
        wrong = wanted == "date-time" and isinstance(value, str) and not re.fullmatch(form, value)
        return "%s is %r, no time in UTC" % (where, value) if wrong else None


@functools.lru_cache(maxsize=None)
def openapi():
    """The document, read once."""
    document = json.loads((ROOT / "static" / "api.json").read_text("utf-8"))
    return OpenApi(json.dumps(jobqueue.describe_api(document)))


def random_word(size=6):
    """Letters that nothing else holds."""
    return secrets.token_hex(size)
