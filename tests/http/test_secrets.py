"""Passwords, tokens, session cookies and the set-up code are found nowhere afterwards."""
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from tests.helpers.support import Site, wait_until
from tests.helpers.web import Visitor

PASSWORD, SECOND, WRONG = "canary password one", "canary password two", "canary password wrong"
ENVIRONMENT = "canary of the environment"
TASKS = '''
import os
from jobqueue import task

@task
def look(note: str, api_key: str = "") -> dict:
    """Say what this process can see."""
    print("looking", note)
    return {"environment": dict(os.environ)}
'''


class Watch(threading.Thread):
    """Reads every command line of this machine again and again."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = set()
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(0.005):
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    with contextlib.suppress(OSError):
                        self.seen.add(Path("/proc", name, "cmdline").read_bytes())

    def stop(self):
        """All command lines as one text."""
        self.over.set()
        self.join()
        return b"\n".join(self.seen).replace(b"\0", b" ").decode("utf-8", "replace")


class Secrets(unittest.TestCase):
    """One site is used with many secrets; then everything it left behind is searched."""

    @classmethod
    def setUpClass(cls):
        os.environ["CANARY_SECRET"] = ENVIRONMENT
        cls.addClassCleanup(os.environ.pop, "CANARY_SECRET", None)
        cls.site = Site(TASKS, users=False)
        cls.addClassCleanup(cls.site.close)
        cls.answers, cls.secrets = [], {"password": PASSWORD, "second": SECOND, "wrong": WRONG,
                                        "environment": ENVIRONMENT}
        watch = Watch()
        watch.start()
        try:
            cls.use_it()
        finally:
            cls.processes = watch.stop()

    @classmethod
    def use_it(cls):
        """Set up, log in rightly and wrongly, add users, tokens and a task, break something, log out."""
        site = cls.site
        errors = open(site.home / "server-errors.txt", "wb")
        cls.addClassCleanup(errors.close)
        cls.visitor = Visitor(site.start_server(stderr=errors))
        said = site.server.stdout.readline() + site.server.stdout.readline() + site.server.stdout.readline()
        code = cls.secrets["code"] = re.search("setup=(\\S+)", said)[1]
        cls.ask("GET", "api/session")
        cls.ask("POST", "api/setup", {"code": code[:-1] + "!", "name": "root", "password": PASSWORD})
        cls.ask("POST", "api/setup", {"code": code, "name": "root", "password": PASSWORD})
        cls.secrets["cookie"] = cls.visitor.cookie.partition("=")[2]
        cls.ask("POST", "api/session", {"name": "root", "password": WRONG})
        cls.ask("POST", "api/users", {"name": "bob", "password": SECOND})
        token = cls.ask("POST", "api/tokens", {"name": "laptop", "password": PASSWORD})
        cls.secrets["token"] = token
        cls.secrets["invitation"] = cls.visitor.ask("POST", "/api/invitations", {"role": "user"}).json["code"]
        for code in (cls.secrets["invitation"] + "!", cls.secrets["invitation"]):
            cls.ask("POST", "api/invitations/accept", {"code": code, "name": "kim", "password": "short"})
        tick = cls.secrets["tick token"] = cls.ask(
            "POST", "api/tokens", {"name": "cron", "scope": "tick", "password": PASSWORD})
        for path in ("tick?token=" + tick, "tick?token=%sx" % tick, "tick?token=%s%s" % (tick, "&a=1" * 60)):
            cls.ask("GET", path)
            cls.ask("POST", path, {})
        cls.secrets["key"] = "canary api key"
        body = {"function": "look", "arguments": {"note": "hello", "api_key": "canary api key"}}
        cls.task = cls.ask("POST", "api/tasks", body)
        site.run("user", "password", "bob", given=PASSWORD + "\n")
        cls.secrets["command line token"] = site.run("token", "add", "cron").stdout.strip()
        wait_until(lambda: site.value("SELECT status FROM task") == 2, what="the task")
        for path in ("", "healthz", "api/tasks?counts=1", "api/activity", "api/workers", "api/settings",
                     "api/users",
                     "api/tokens", "api/functions", "api/tasks?limit=x", "api/nothing", "static/app.js"):
            cls.ask("GET", path)
        cls.ask("POST", "api/session", b'{"password": "%s", ' % WRONG.encode())
        cls.ask("DELETE", "api/session", {})
        site.stop_server()

    @classmethod
    def ask(cls, method, path, body=None):
        """Send a request as a browser does; the token or id of the answer, if any."""
        reply = cls.visitor.ask(method, "/" + path, body)
        value = reply.json if reply.body and "json" in reply.kind else {}
        given = value.pop("token", None) or value.get("id")
        cls.answers.append(json.dumps(value) if isinstance(given, str) else reply.text)
        return given

    def check(self, where, text, allowed=()):
        for name, secret in self.secrets.items():
            if name not in allowed:
                self.assertNotIn(secret, text, "the %s stands in %s" % (name, where))

    def test_no_process_list_shows_a_secret(self):
        self.assertIn("-m worker", self.processes)
        self.check("the process list", self.processes)

    def test_no_answer_shows_a_secret_again(self):
        for text in self.answers:
            self.check("an answer", text, allowed=("key",))    # a task shows its arguments to its owner

    def test_no_file_holds_a_secret(self):
        """The database holds a task's arguments, and what it returned, as they are."""
        for path in self.site.home.rglob("*"):
            if path.is_file():
                allowed = ("key",) if ".db" in path.name else ()
                self.check(path.name, path.read_bytes().decode("latin-1"), allowed)

    def test_a_secret_argument_is_shown_masked_in_lists(self):
        self.assertEqual(self.site.json("list")["tasks"][0]["summary"], "hello, •••")

    def test_the_set_up_code_is_gone(self):
        self.assertEqual(list(self.site.data.glob("setup-code*")), [])

    def test_the_server_kept_no_access_log(self):
        self.assertEqual((self.site.home / "server-errors.txt").read_text(), "")

    def test_tasks_do_not_get_the_environment_of_who_started_them(self):
        """Only a few names pass, so a secret of the web server's environment does not reach a function."""
        environment = json.loads(self.site.value("SELECT result FROM task"))["environment"]
        self.assertNotIn("CANARY_SECRET", environment)
        self.assertIn("PATH", environment)

    def test_the_watch_would_have_seen_a_secret(self):
        watch = Watch()
        watch.start()
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)", "canary in the open"],
                       check=True)
        time.sleep(0.02)
        self.assertIn("canary in the open", watch.stop())


if __name__ == "__main__":
    unittest.main()
