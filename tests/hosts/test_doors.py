"""The same from end to end through every door: each web server is a real one (see doors.py).

Before the tests of a door its site is set up, a long task is added and begins to run, and the web
server is restarted gracefully beneath it.
"""
import concurrent.futures
import contextlib
import gzip
import json
import os
import re
import socket
import time
import unittest
from urllib.parse import quote

import jobqueue
from tests.helpers import doors
from tests.helpers.processes import everybody
from tests.helpers.support import PASSWORD, ROOT, need_part, wait_until
from tests.helpers.web import Visitor, as_sent, call

TASKS = '''
import os, time
from pathlib import Path
from jobqueue import task

@task
def double(n: int) -> int:
    print("doubling", n)
    return 2 * n

@task
def rest(until: str) -> str:
    print("resting", flush=True)
    while not Path(until).exists():
        time.sleep(0.05)
    return "rested"

def look_at(pid):
    there = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (there / "status").read_text().splitlines())
    names = [part.partition(b"=")[0].decode() for part in (there / "environ").read_bytes().split(b"\\0")]
    return {"environment": names, "blocked": int(status["SigBlk"], 16),
            "nice": os.getpriority(os.PRIO_PROCESS, pid)}

@task
def look() -> list:
    return [look_at(os.getppid()), look_at(os.getpid())]
'''
MEBIBYTE = 2 ** 20
RANDOM = re.compile("[0-9a-f]{16}")
PUBLIC = ("canary.txt", ".htaccess", "index.html")      # of the data folder: no secret
LEFT_THERE = (                          # by editors, upload programs, version control, owners
    "tasks.py.bak", "tasks.py~", "tasks.PY", "tasks.py.orig", ".tasks.py.swp", "#tasks.py#",
    "settings.yml", "settings.json", ".env", "backup.db", "backup.sql.gz", "site.zip", "notes",
    "jobqueue.cgi.bak", "jobqueue.cgi~", "wsgi.py.bak", "index.html~", "secret.css", "error_log",
    ".git/config", ".htaccess.bak", "schedules/daily", "tests/x.html", "tmp/restart.txt",
    "static/tasks.py", "README.html", "static/docs/notes.md",
    "static/hosts/wsgi.py.bak", "static/app.js~", "static/.hidden", "lib/keys.js")
OF_A_REQUEST = re.compile("HTTP|QUERY|COOKIE|AUTHORI|GATEWAY|REMOTE_|REQUEST_|SCRIPT_|SERVER_|wsgi",
                          re.IGNORECASE)
FILES = {"/": "text/html", "/static/app.js": "text/javascript", "/static/style.css": "text/css",
         "/static/favicon.svg": "image/svg+xml", "/static/api.json": "application/json"}


def links(pid):
    """What the descriptors of a process are: files, "socket:[123]", ..."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                found.add(os.readlink("/proc/%d/fd/%s" % (pid, name)))
    return found


class Opened:
    """A door whose site is set up, with a worker that has come through a graceful restart."""

    def __init__(self, door):
        self.door, self.site = door, door.site
        door.start()
        self.app = door.address
        self.nobody, self.ana = Visitor(self.app), Visitor(self.app)
        self.greeting = self.nobody.get("/api/session")
        self.set_up = self.ana.post("/api/setup", {"code": door.setup_code(), "name": "ana",
                                                   "password": PASSWORD})
        self.ana.patch("/api/settings", {"linger": 1, **door.settings})
        self.long_task = self.ana.post(
            "/api/tasks", {"function": "rest", "arguments": {"until": "restarted"}}).json
        wait_until(lambda: self._look()["status"] == "running", what="the long task's start")
        self.worker = self.site.workers()
        self.retired = set(door.family()) - door.first_processes()
        door.reload()
        self.after_restart = self._look()
        (self.site.home / "restarted").touch()

    def _look(self):
        return self.ana.get("/api/tasks/%d" % self.long_task["id"]).json


class Opener:
    """Opens the next door while the tests of one run: most of that is waiting."""

    def __init__(self):
        self._pool = concurrent.futures.ThreadPoolExecutor(2)
        self._begun = {}                # test case -> its Door, a Future of Opened

    def begin(self, case):
        """Begin to open a test case's door, if that was not done."""
        if case not in self._begun and not case.Door.missing():
            door = case.Door(TASKS)
            self._begun[case] = door, self._pool.submit(Opened, door)

    def take(self, case):
        """What `begin` has opened."""
        self.begin(case)
        return self._begun[case][1].result()

    def close(self, case):
        """Close it."""
        door, future = self._begun.pop(case)
        concurrent.futures.wait([future])
        door.close()

    def end(self):
        """Close whatever was never taken."""
        for case in list(self._begun):
            self.close(case)
        self._pool.shutdown()


opener = Opener()
cases = []                              # all that are about to be run, in their order


def load_tests(_, tests, __):
    """Note what is going to be run."""
    cases[:] = dict.fromkeys(type(test) for suite in tests for test in suite)
    return tests


setUpModule = doors.open_folders


def tearDownModule():
    """Leave nothing."""
    opener.end()


class BasicTests:
    """What shows that a door is open."""

    Door = None

    @classmethod
    def setUpClass(cls):
        need_part("doors")
        cls.Door.need()
        cls.addClassCleanup(opener.close, cls)
        opener.begin(cls)
        for following in cases[cases.index(cls) + 1:][:1] if cls in cases else ():
            opener.begin(following)
        for name, value in vars(opener.take(cls)).items():
            setattr(cls, name, value)

    @classmethod
    def show(cls, task_id):
        """A task as it is now."""
        return cls.ana.get("/api/tasks/%d" % task_id).json

    def add(self, function, **arguments):
        """Add a task; its id."""
        reply = self.ana.post("/api/tasks", {"function": function, "arguments": arguments})
        self.assertEqual(reply.status, 201, reply.body)
        return reply.json["id"]

    def until(self, task_id, *words):
        """The task, once its status is one of these words."""
        def there():
            task = self.show(task_id)
            return task["status"] in words and task
        return wait_until(there, 60, "task %d %s" % (task_id, " or ".join(words)), 0.2)

    def run_one(self, function, **arguments):
        """Add a task and wait for its end; the task."""
        task = self.until(self.add(function, **arguments), "succeeded", "failed")
        self.assertEqual((task["status"], task["error"]), ("succeeded", None))
        return task

    @staticmethod
    def unchecked(visitor, method, path, body=None, **headers):
        """An answer that may be the web server's own."""
        return call(visitor.app, visitor.environ(method, path, body, headers), checked=False)

    def test_the_first_admin_is_made_with_the_code(self):
        self.assertEqual((self.greeting.status, self.greeting.json["setup"]), (401, True))
        self.assertEqual(self.set_up.status, 201, self.set_up.body)
        self.assertEqual(self.nobody.get("/api/session").json["setup"], False)

    def test_a_worker_survives_a_graceful_restart_of_the_web_server(self):
        self.assertEqual(self.after_restart["status"], "running")
        task = self.until(self.long_task["id"], "succeeded", "failed")
        self.assertEqual((task["status"], task["attempts"], task["result"]), ("succeeded", 1, "rested"))

    def test_whoever_logs_in_gets_a_cookie_for_the_sites_own_path(self):
        visitor = Visitor(self.app)
        reply = visitor.post("/api/session", {"name": "ana", "password": "wrong horse"})
        self.assertEqual((reply.status, visitor.cookie), (401, None))
        reply = visitor.post("/api/session", {"name": "ana", "password": PASSWORD})
        self.assertIn("; Path=%s;" % self.door.prefix, reply.headers["set-cookie"])
        self.assertEqual(visitor.get("/api/session").json["user"],
                         {"name": "ana", "role": "admin", "email": None, "summary": None})
        visitor.delete("/api/session")
        self.assertEqual(visitor.get("/api/session").status, 401)

    def test_a_task_runs_and_its_output_can_be_read(self):
        task = self.run_one("double", n=21)
        self.assertEqual(task["result"], 42)
        self.assertIn("doubling 21", self.ana.get("/api/tasks/%d/log" % task["id"]).json["text"])
        self.assertIn(task["id"], [row["id"] for row in self.ana.get("/api/tasks?limit=5").json["tasks"]])

    def test_the_admin_is_told_which_door_it_is(self):
        told = {check["name"]: check["text"] for check in self.ana.get("/api/host").json["checks"]}
        self.assertIn(jobqueue.DOORS[self.door.kind], told["Web server"])

    def test_without_the_last_slash_the_browser_is_sent_to_the_right_address(self):
        reply = self.unchecked(self.nobody, "GET", "")
        self.assertIn(reply.status, (301, 302, 307, 308))
        location = reply.headers["location"].split("127.0.0.1:%d" % self.door.port)[-1]
        self.assertEqual(location, self.door.prefix)

    def test_programs_send_their_token_in_either_header(self):
        token = self.ana.post("/api/tokens", {"name": "program", "password": PASSWORD}).json["token"]
        self.assertEqual(self.nobody.get("/api/session", X_Api_Key=token).status, 200)
        self.assertEqual(self.nobody.get("/api/session", X_Api_Key=token[:-1] + "?").status, 401)
        if self.door.authorization:
            self.assertEqual(Visitor(self.app, token=token).get("/api/session").status, 200)


class DoorTests(BasicTests):
    """What must be true behind every door."""

    def test_an_add_is_answered_before_its_task_is_done_though_it_starts_the_worker(self):
        self.assertIn(self.long_task["status"], ("pending", "running"))
        self.assertEqual(len(self.worker), 1)

    def test_a_running_task_is_cancelled_and_deleted(self):
        task_id = self.add("rest", until="never")
        self.until(task_id, "running")
        self.assertEqual(self.ana.post("/api/tasks/%d/cancel" % task_id).status, 200)
        self.until(task_id, "cancelled")
        self.assertEqual(self.ana.delete("/api/tasks/%d" % task_id).status, 204)
        self.assertEqual(self.ana.get("/api/tasks/%d" % task_id).status, 404)

    def test_the_page_and_its_files_come_with_their_types_and_compressed(self):
        for path, kind in FILES.items():
            with self.subTest(path):
                name = path.rpartition("/")[2] or "index.html"
                plain = self.nobody.get(path)
                self.assertEqual((plain.status, plain.kind), (200, kind))
                file = ROOT / "static" / name       # some web servers send it themselves
                self.assertIn(plain.body, (as_sent(file), file.read_bytes()))
                if len(plain.body) > 1024:
                    self.comes_compressed(self.nobody, path, plain)

    def test_answers_come_compressed(self):
        path = "/api/settings"
        small = self.comes_compressed(self.ana, path, self.ana.get(path))
        again = self.ana.get(path, Accept_Encoding="gzip, br", If_None_Match=small.headers["etag"])
        self.assertEqual((again.status, again.body), (304, b""))

    def comes_compressed(self, visitor, path, plain):
        small = visitor.get(path, Accept_Encoding="gzip, br")
        self.assertEqual(small.headers["content-encoding"], "gzip")
        self.assertEqual(gzip.decompress(small.body), plain.body)
        return small

    def test_what_is_unchanged_is_not_sent_again(self):
        for visitor, path in (self.nobody, "/static/app.js"), (self.ana, "/api/settings"):
            with self.subTest(path):
                tag = visitor.get(path).headers["etag"]
                again = visitor.get(path, If_None_Match=tag)
                self.assertEqual((again.status, again.body), (304, b""))

    def test_head_is_answered_without_a_body(self):
        whole, head = self.nobody.get("/static/app.js"), self.nobody.ask("HEAD", "/static/app.js")
        self.assertEqual((head.status, head.kind, head.body), (200, whole.kind, b""))

    def test_unknown_addresses_are_not_found_in_words(self):
        for path in ("/nothing", "/api/nothing", "/static/nothing.js", "/api/tasks/7/nothing"):
            reply = self.ana.get(path)
            self.assertEqual((reply.status, reply.kind), (404, "application/problem+json"))

    def test_a_sample_task_is_run(self):
        made = self.ana.post("/api/host/test")
        self.assertEqual(made.status, 201)
        self.site.wait_for_all([made.json["id"]])
        self.assertEqual(self.ana.get("/api/tasks/%d" % made.json["id"]).json["result"],
                         "A worker lived for 10 s.")

    def test_names_in_addresses_may_have_any_letters(self):
        reply = self.ana.post("/api/users", {"name": "zoë", "password": PASSWORD, "role": "user"})
        self.assertEqual(reply.status, 201)
        self.assertEqual(self.ana.delete("/api/users/" + quote("zoë")).status, 204)

    def test_another_sites_page_can_change_nothing(self):
        body = {"function": "double", "arguments": {"n": 1}}
        for wrong in ({"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": None},
                      {"Sec_Fetch_Site": None, "Origin": "http://evil.example.org"}):
            self.assertEqual(self.ana.post("/api/tasks", body, **wrong).status, 403, wrong)
        own = {"Sec_Fetch_Site": None, "Origin": "http://127.0.0.1:%d" % self.door.port}
        self.assertEqual(self.ana.post("/api/schedules/preview", {"rule": "every 5m"}, **own).status, 200)

    def test_a_body_of_a_mebibyte_is_accepted_and_not_a_byte_more(self):
        body = json.dumps({"rule": "every 5m"}).encode()
        whole = body + b" " * (MEBIBYTE - len(body))
        self.assertEqual(self.ana.post("/api/schedules/preview", whole).status, 200)
        self.assertEqual(self.unchecked(self.ana, "POST", "/api/schedules/preview", whole + b" ").status, 413)

    def test_a_file_of_64_mebibytes_goes_in_and_one_that_is_cut_leaves_nothing(self):
        body = os.urandom(MEBIBYTE) * 64
        reply = self.ana.upload("/api/files?name=large.bin", body)
        self.assertEqual((reply.status, reply.json["size"]), (201, len(body)))
        [path] = self.site.data.glob("files-*/%s" % reply.json["id"])
        self.assertEqual(path.read_bytes(), body)
        before = self.uploads()
        with socket.create_connection(("127.0.0.1", self.door.port), 60) as link:
            link.sendall(("POST %sapi/files?name=cut HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nCookie: %s\r\n"
                          "Sec-Fetch-Site: same-origin\r\nContent-Type: application/octet-stream\r\n"
                          "Content-Length: %d\r\n\r\n" % (self.door.prefix, self.door.port, self.ana.cookie,
                                                         len(body))).encode() + body[:len(body) // 2])
        wait_until(lambda: self.uploads() == before, what="that nothing is left of it", pause=0.1)
        self.assertEqual(self.ana.get("/api/session").status, 200)

    def uploads(self):
        """What is there of files that were handed in: (rows, folders)."""
        return (self.site.rows("SELECT count(*) FROM file")[0][0],
                sorted(path.name for path in self.site.data.glob("files-*/*")))

    def test_a_worker_knows_nothing_of_the_request_that_started_it(self):
        for process in self.run_one("look")["result"]:
            self.assertEqual([name for name in process["environment"] if OF_A_REQUEST.search(name)], [])
            self.assertEqual((process["blocked"], process["nice"]), (0, 10))

    def test_a_worker_shares_no_socket_and_no_pipe_with_the_web_server(self):
        task_id = self.add("rest", until="never")
        self.until(task_id, "running")
        ours = {*self.site.workers(), *self.site.runners()}
        of_workers = {link for pid in ours for link in links(pid) if link.startswith(("socket:", "pipe:"))}
        self.assertTrue(of_workers)
        for pid in set(everybody()) - ours:
            self.assertEqual(links(pid) & of_workers, set(), pid)
        self.ana.delete("/api/tasks/%d" % task_id)

    def test_workers_work_in_a_slice_and_leave_no_zombie(self):
        self.until(self.long_task["id"], "succeeded")
        token = self.ana.post("/api/tokens", {"name": "cron", "scope": "tick",
                                              "password": PASSWORD}).json["token"]
        self.ana.patch("/api/settings", {"worker_mode": "slice"})
        try:
            time.sleep(jobqueue.CACHE_SECONDS)      # then every process knows it
            wait_until(lambda: not self.site.workers(), what="the end of the workers", pause=0.1)
            ids = [self.add("double", n=number) for number in range(3)]
            worked = []

            def is_done():
                worked.append(self.nobody.get("/tick?token=" + token).json["worked"])
                return {self.show(number)["status"] for number in ids} == {"succeeded"}

            wait_until(is_done, 120, "the end of the tasks", 0.2)
        finally:
            self.ana.patch("/api/settings", {"worker_mode": "auto"})
        self.assertIn(sum(worked), range(self.door.kind != "server", 4))     # that door needs nobody to call
        wait_until(self.buried, what="the end of all zombies", pause=0.1)

    def buried(self):
        """True if no ended worker is left behind; mod_wsgi 4.9 hangs at a restart, whatever it serves."""
        self.ana.get("/api/tasks")
        return not [pid for pid, process in self.door.family().items()
                    if process.state == "Z" and process.parent not in self.retired]


class FolderTests(DoorTests):
    """What can be fetched where the web server serves the site's folder too."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.files = Visitor(cls.door.folder_address)

    def fetch(self, path):
        """What the web server answers to whoever asks for a file or folder of the site's."""
        return self.unchecked(self.files, "GET", "/" + quote(path))

    def served(self, *paths):
        """Those of these files and folders that the web server gives away."""
        return [path for path in paths if self.fetch(path).status not in (403, 404)]

    def data_files(self):
        """The paths of all files in the data folder."""
        return [str(path.relative_to(self.site.home)) for path in self.site.data.rglob("*") if path.is_file()]

    def test_nothing_but_the_page_is_served_where_htaccess_counts(self):
        self.assertIn("data/canary.txt", self.data_files())
        self.assertEqual(self.served("data/", "data/locks/", *self.data_files()), [])
        self.assertEqual(self.served("worker.py", "tasks.py", "jobqueue.pyc", "__pycache__/"), [])

    def test_what_people_and_programs_leave_in_the_folder_is_not_served_either(self):
        for path in LEFT_THERE:
            (self.site.home / path).parent.mkdir(exist_ok=True)
            self.door.write(self.site.home / path, "private")
        self.assertEqual([path for path in (*LEFT_THERE, *(path + "/x" for path in LEFT_THERE))
                          if b"private" in self.fetch(path).body], [])

    def test_what_certificates_are_renewed_by_is_served(self):
        path = ".well-known/acme-challenge/token"
        (self.site.home / path).parent.mkdir(parents=True)
        self.door.write(self.site.home / path, "public")
        self.assertEqual(self.fetch(path).body, b"public")

    def test_where_htaccess_is_ignored_nobody_can_guess_where_anything_private_is(self):
        guessable = [path for path in self.data_files() if not RANDOM.search(path)]
        private = [path for path in guessable
                   if os.path.basename(path) not in PUBLIC and (self.site.home / path).stat().st_size]
        self.assertEqual(private, [])
        is_its_own = self.door.user() == doors.account()
        self.door.allow("None")
        try:
            if is_its_own:              # processes from before the restart may still take requests
                wait_until(lambda: self.served("data/canary.txt"), what="files without .htaccess")
            served = self.served(*guessable)
            shown = {folder: self.fetch(folder).body for folder in ("", "data/")}
        finally:
            self.door.allow("All")
        if (self.site.home / "index.html").exists():
            self.assertIn(b"url=jobqueue.cgi/", shown[""])      # instead of the names of what was uploaded
        self.assertIsNone(RANDOM.search(shown["data/"].decode("latin-1")))     # nor is that listed
        if is_its_own:
            self.assertIn("data/canary.txt", served)
        else:
            self.assertEqual(served, [])            # 0700 keeps the web server's own user out


for _door in doors.DOORS:
    _base = (BasicTests if _door is doors.ApacheCgiAlias else
             FolderTests if issubclass(_door, doors.Apache) else DoorTests)
    globals()[_door.__name__ + "Tests"] = type(_door.__name__ + "Tests", (_base, unittest.TestCase),
                                               {"Door": _door, "__doc__": _door.__doc__})
