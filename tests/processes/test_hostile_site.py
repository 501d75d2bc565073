"""A remote worker works for a site that was taken over: nothing outside its folder is read or written."""
import json
import random
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.helpers.support import Site, wait_until

TASKS = '''
from pathlib import Path
from jobqueue import task

@task
def add(a: int, b: int): return a + b

@task
def read(photo: Path): return photo.read_text()
'''
WELCOME = {"protocol": 1, "version": "1.0.0", "renew_seconds": 10.0, "lease_seconds": 180.0,
           "settings": {"runner_tasks": 1000, "runner_memory": 512, "runner_per_owner": "no"}}


class Hostile(ThreadingHTTPServer):
    """Welcomes a worker, and answers its turns with what `tasks(claims)` makes."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.turns, self.ends = answer, 0, []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = WELCOME
        if self.path.endswith("/turn"):
            self.server.turns += 1
            self.server.ends += said.get("end", [])
            answer = self.server.answer(said)
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class HostileSite(unittest.TestCase):
    def setUp(self):
        self.machine = Site(TASKS, users=False, folder="strong machine")
        self.addCleanup(self.machine.close)
        self.secret = self.machine.home / "secret"
        self.secret.mkdir()
        (self.secret / "file").write_text("canary")
        (self.machine.home / "token").write_text("jq_x")
        (self.machine.home / "token").chmod(0o600)

    def work_for(self, answer):
        """The hostile site, for which a worker works."""
        server = Hostile(answer)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.said = (self.machine.home / "said").open("w+")
        self.addCleanup(self.said.close)
        self.worker = self.machine.start_worker(
            "--server", "http://127.0.0.1:%d" % server.server_port, "--token-file", "token", stderr=self.said)
        return server

    def task(self, claims, **more):
        return {"id": 7, "function": "add", "arguments": '{"a": 1, "b": 2}', "attempt": 1, "crashes": 0,
                "timeout": 60, "on_crash": "retry", "owner": "x", "claim": (claims or ["0" * 32])[0], **more}

    def test_answers_that_are_not_right_do_nothing(self):
        """Hundreds of them, one after the other; each is a task that would do harm, or no answer."""
        chance, paths = random.Random(29), (str(self.secret), str(self.secret / "file"), "../../secret", "..")
        odd = [None, -1, 0, 2 ** 60, 1.5, True, [], {}, "x", "", [[]], *paths]

        def answer(said):
            claims = said.get("claim", {}).get("claims", [])
            task = self.task(claims, **{chance.choice((
                "id", "claim", "function", "arguments", "attempt", "crashes", "timeout", "owner")):
                chance.choice([one for one in odd if one not in ("x", "", "..", *paths)])})
            if chance.random() < 0.4:
                task = self.task(claims, **{chance.choice(("id", "claim", "function")): chance.choice(paths)})
            whole = {"attempts": {one["claim"]: chance.choice(("running", "cancel"))
                                  for one in said.get("start", [])}, "tasks": [task], "wait": 0}
            if chance.random() < 0.3:
                whole[chance.choice(list(whole))] = chance.choice(odd[:-4])
            if chance.random() < 0.2:
                return chance.choice((b"", b"{", b"[" * 100_000, chance.randbytes(1000), b"null", b"[1]"))
            return whole
        server = self.work_for(answer)
        wait_until(lambda: server.turns > 5, 120)
        self.assertEqual((self.secret / "file").read_text(), "canary")
        self.assertEqual([path.name for path in self.secret.iterdir()], ["file"])
        self.assertIsNone(self.worker.poll())
        self.said.seek(0)
        said = self.said.read()
        self.assertIn("the site does not answer: an answer", said)
        self.assertNotIn("Traceback", said)

    def test_arguments_are_judged_here_too(self):
        wrong = [("read", {"photo": str(self.secret / "file")}), ("read", {"photo": "../../secret/file"}),
                 ("add", {"a": "1", "b": 2}), ("add", {"a": 1, "b": 2, "c": 3}), ("add", {"a": 1})]
        left = list(wrong)

        def answer(said):
            claims = said.get("claim", {}).get("claims", [])
            tasks = []
            if claims and left:
                function, arguments = left.pop(0)
                tasks = [self.task(claims, id=10 + len(left), function=function,
                                   arguments=json.dumps(arguments))]
            states = {one["claim"]: "running" for one in said.get("start", []) + said.get("hold", [])}
            states.update({one["claim"]: "succeeded" for one in said.get("end", [])})
            return {"attempts": states, "tasks": tasks, "wait": 0.1}
        server = self.work_for(answer)
        wait_until(lambda: len(server.ends) >= len(wrong), 60)
        for end in server.ends:
            self.assertEqual(end["outcome"]["kind"], "fail", end)
            self.assertNotIn("canary", json.dumps(end))
