"""Hosts that pass only GET, HEAD and POST, with few types of bodies: as=METHOD, and a form around a body."""
import contextlib
import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jobqueue
from tests.helpers.support import Site
from tests.helpers.web import WebTestCase, call

FORM = "multipart/form-data; boundary=x-y"
TASK = json.dumps({"function": "add", "arguments": {"a": 1}}).encode()

TASKS = """
from pathlib import Path
from jobqueue import task

@task
def size(file: Path) -> int:
    return len(file.read_bytes())

@task
def twice(n: int) -> int:
    return 2 * n
"""


def wrap(body, kind="application/json", mark=b"x-y"):
    """A body in a form with one file, as browsers send it."""
    return (b"--%s\r\nContent-Disposition: form-data; name=\"body\"; filename=\"body\"\r\nContent-Type: %s"
            b"\r\n\r\n%s\r\n--%s--\r\n" % (mark, kind.encode(), body, mark))


class Post(WebTestCase):
    """What the server takes."""

    def test_every_change_has_a_post(self):
        task = self.add("bob")
        self.check(self.ana.post("/api/settings?as=PATCH", {"linger": 1}), 200)
        self.assertEqual(self.queue.settings.get("linger"), 1)
        self.check(self.eve.post("/api/tasks/%d?as=DELETE" % task), 404)
        self.check(self.bob.post("/api/tasks/%d?as=DELETE" % task), 204)
        self.check(self.bob.get("/api/tasks/%d" % task), 404)
        self.check(self.bob.post("/api/session?as=DELETE"), 204)
        self.check(self.bob.get("/api/session"), 401)

    def test_the_rules_are_those_of_the_method_that_is_meant(self):
        self.check(self.bob.post("/api/settings?as=PATCH", {"linger": 1}), 403)
        self.check(self.ana.post("/api/settings?as=PATCH", {"linger": 1}, Sec_Fetch_Site="cross-site"), 403)
        self.check(self.program("ana", "read").post("/api/settings?as=PATCH", {"linger": 1}), 403)
        self.check(self.bob.get("/api/tasks/1?as=DELETE"), 404)
        for words in ("as=GET", "as=delete", "as=PUT", "as=DELETE&x=1"):
            reply = call(self.app, self.ana.environ("POST", "/api/users/bob?" + words, b""))
            self.assertEqual(reply.status, 405)
        self.assertEqual(self.database.value("SELECT count(*) FROM user WHERE name='bob'"), 1)

    def send(self, body, path="/api/tasks", kind=FORM, who=None, **headers):
        return (who or self.bob).ask("POST", path, body, Content_Type=kind, **headers)

    def test_a_body_in_a_form(self):
        self.check(self.send(wrap(TASK)), 201)
        lines = b"\n".join([TASK] * 3)
        self.assertEqual(self.check(self.send(wrap(lines, "application/x-ndjson")), 201)["created"], 3)
        self.check(self.send(wrap(b'{"linger": 1}'), "/api/settings?as=PATCH", who=self.ana), 200)
        for content in (b"", b"x", b"\r\n--x-y--\r\n" * 3, bytes(range(256)) * 5000):
            reply = self.send(wrap(content, "application/octet-stream"), "/api/files?name=a.bin")
            self.assertEqual(self.check(reply, 201)["size"], len(content))
            path = jobqueue.given_folder(self.database.folder) / reply.json["id"]
            self.assertEqual(path.read_bytes(), content)

    def test_the_same_request_in_a_form_or_not_is_the_same_once(self):
        first = self.bob.ask("POST", "/api/tasks", TASK, Content_Type="application/json", Idempotency_Key="k")
        self.assertEqual(self.send(wrap(TASK), Idempotency_Key="k").json["id"], first.json["id"])

    def test_what_is_no_such_form_is_refused(self):
        whole = wrap(TASK)
        for body in (b"", b"x", whole[:-4], whole[:-1] + b"x", whole.replace(b"x-y\r", b"x-z\r", 1),
                     whole.replace(b"Content-Type", b"X"), b"x" * 20_000, whole + whole):
            self.check(self.send(body), 400, "malformed")
        for kind in ("multipart/form-data", "multipart/form-data; boundary="):
            self.check(self.send(whole, kind=kind), 400, "malformed")
        self.check(self.send(wrap(TASK, "text/html")), 415)
        self.check(self.send(whole, Sec_Fetch_Site="cross-site"), 403)
        self.check(self.send(wrap(b'"%s"' % (b"x" * (1 << 20))), "/api/session"), 413)
        self.change_settings(max_file_mb=1)
        large = wrap(b"x" * ((1 << 20) + 1), "application/octet-stream")
        self.check(self.send(large, "/api/files?name=x"), 413)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)


class Strict(BaseHTTPRequestHandler):
    """A server in front that passes what the usual rules of ModSecurity pass."""

    target = ""
    types = "application/json", "multipart/form-data", "application/x-www-form-urlencoded"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.headers.get("Content-Type", "").partition(";")[0]
        if self.command not in ("GET", "HEAD", "POST") or body and kind not in self.types:
            return self.answer(403, [("Content-Type", "text/html")], b"<h1>Forbidden</h1>")
        request = urllib.request.Request(self.target + self.path.lstrip("/"), body or None, {
            name: value for name, value in self.headers.items()
            if name.lower() not in ("host", "connection")},
            method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return self.answer(reply.status, reply.headers.items(), reply.read())
        except urllib.error.HTTPError as error:
            return self.answer(error.code, error.headers.items(), error.read())

    do_GET = do_POST = do_PATCH = do_DELETE = pass_on

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            if name.lower() in ("content-type", "content-security-policy", "set-cookie", "etag",
                                "cache-control", "content-encoding"):
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):      # a browser that goes on does not wait for it
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class CommandLine(WebTestCase):
    """jobqueue.py --server through such a host."""

    def test_commands_work_and_what_is_refused_is_said(self):
        site = Site(TASKS, nice=0)
        self.addCleanup(site.close)
        token = site.home / "token"
        token.write_text(site.token("ana"))
        token.chmod(0o600)
        site.start_server()
        handler = type("Here", (Strict,), {"target": site.address})
        front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.addCleanup(front.server_close)
        self.addCleanup(front.shutdown)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        there = ["--server", "http://127.0.0.1:%d" % front.server_port, "--token-file", token]
        photo = site.home / "photo"
        photo.write_bytes(b"12345" * 1000)
        task = int(site.run("add", "size", "file=@%s" % photo, *there).stdout)
        self.assertEqual(json.loads(site.run("wait", task, "--json", *there).stdout)["result"], 5000)
        site.run("delete", task, *there)
        self.assertIn("There is no task", site.run("show", task, *there, code=4).stderr)
        site.run("queue", "pause", "default", *there)
        lines = site.home / "rows.csv"
        lines.write_text("n\n1\n2\n")
        self.assertIn("2", site.run("add", "twice", "--each", lines, *there).stdout)
        handler.types = ()
        self.assertIn("Something in front of that site refused: 403", site.run(
            "queue", "resume", "default", *there, code=1).stderr)
