"""schemathesis asks all that /openapi.json allows and forbids, as admin and as user (H3).

It is a program of its own (`pip install schemathesis==4.32.5`, for Python 3.10 or newer), found on
the PATH.
"""

import json
import re
import shutil
import subprocess
import unittest
import urllib.request

from tests.helpers.support import Site, need, need_part
from tests.helpers.web import openapi

TASKS = """
from jobqueue import task

@task
def greet(name: str, loud: bool = False, share: float = 0.5) -> str:
    return name
"""
# Requests that may change everything must not start processes.
SERVE = """
import subprocess
import jobqueue

def refuse(*_, **__):
    raise OSError(11, "no process here")

subprocess.Popen = refuse
jobqueue.main(["serve", "--port", "0"])
"""
# What is asked must go on being asked by somebody: their token, role and account stay.
KEEPERS = (
    "CREATE TRIGGER keep_token BEFORE DELETE ON token WHEN OLD.id<5",
    "CREATE TRIGGER keep_user BEFORE DELETE ON user WHEN OLD.id<3",
    "CREATE TRIGGER keep_role BEFORE UPDATE OF role, disabled ON user WHEN OLD.id<3",
)
# 422 is right where the document cannot say what is wrong: common passwords, rules and time zones,
# times that exclude each other, priorities and owners that only admins may choose, ids beside a
# filter, functions that cannot be shown, limits of a token that is no worker's. What a worker tells
# may hold more than the document says of it; a number that is too large there is 400. To a method
# that the server has nowhere its gate answers 501. Files of a claim need that claim, which nobody has.
CONFIGURATION = """
generation.allow-x00 = false
warnings = { fail-on = %s }
auth.openapi.tick.api_key = "%s"
headers = { Authorization = "Bearer %s" }

[phases.coverage]
unexpected-methods = ["get", "put", "post", "delete", "options", "patch"]

[dictionaries.files]
values = ["app.js", "style.css"]

[[operations]]
include-path-regex = "^/api/worker/"
headers = { Authorization = "Bearer %s" }

[[operations]]
include-path-regex = "^/api/worker/tasks/[^/]+/(files|results)"
warnings = false

[[operations]]
include-name = "GET /metrics"
headers = { Authorization = "Bearer %s" }

[[operations]]
include-name = "GET /static/{name}"
parameters = { "path.name" = { dictionary = "files", probability = 0.5 } }

[[operations]]
include-name = [
    "POST /api/tasks", "POST /api/tasks/actions", "POST /api/users", "PATCH /api/users/{name}",
    "POST /api/schedules", "PATCH /api/schedules/{id}", "POST /api/schedules/preview",
    "POST /api/queues", "PATCH /api/queues/{name}", "POST /api/tokens"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "403", "404", "409", "422"]

[[operations]]
include-name = ["GET /api/forecast", "GET /api/metrics", "GET /api/tasks"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "400", "403", "404"]

[[operations]]
include-name = ["POST /api/worker/hello", "POST /api/worker/turn"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "404", "409", "422"]
"""
OPTIONS = ["--checks", "all", "--generation-deterministic", "--no-color",
           "--suppress-health-check", "too_slow"]       # that is about this machine
NOTHING = {"type": "null"}
PATH = "^/*([A-Za-z0-9._~-]*[A-Za-z0-9_~-][A-Za-z0-9._~-]*(/+|$))*$"


class Schemathesis(unittest.TestCase):

    def setUp(self):
        need_part("schemathesis")
        self.program = shutil.which("schemathesis")
        need(self.program, "schemathesis (pip install schemathesis)")
        self.site = Site(TASKS)
        self.addCleanup(self.site.close)
        self.errors = open(self.site.home / "errors.txt", "wb")
        self.addCleanup(self.errors.close)

    def document(self, address):
        """What is served, in which a task's function and arguments are those that this site has,
        and that wants nothing which only some may have or which has to be there already."""
        with urllib.request.urlopen(address + "openapi.json") as answer:
            document = json.load(answer)
        self.site.python("from jobqueue import JobQueue; JobQueue().catalogue.refresh(wait=True)")
        name, schema = self.site.rows("SELECT name, schema FROM function")[0]
        arguments = json.loads(schema)
        arguments["properties"]["share"]["maximum"] = 2 ** 53
        schemas = document["components"]["schemas"]
        for kind in ("NewTask", "NewSchedule", "ScheduleChange"):
            schemas[kind]["properties"].update(function={"enum": [name]}, arguments=arguments)
        for kind in ("NewTask", "NewSchedule"):
            schemas[kind]["required"].append("arguments")
            schemas[kind]["properties"]["owner"] = NOTHING
        schemas["NewTask"]["properties"].update(
            queue={"enum": ["default"]}, priority={"type": "integer", "minimum": -100, "maximum": 0},
            after=NOTHING, run_at=NOTHING)
        schemas["NewSchedule"]["properties"].update(
            rule={"enum": ["every 5m", "0 1 * * mon"]}, zone={"enum": ["UTC", "Europe/Oslo"]})
        schemas["NewSettings"]["properties"].update(
            trusted_proxies={"enum": ["192.0.2.1, 10.0.0.0/8", None]},
            base_path={"type": ["string", "null"], "maxLength": 200, "pattern": PATH},
            default_owner={"enum": ["ana", "bob", None]},
            backup_hour=NOTHING,        # at that hour it would start a process
            alert_mail={"enum": ["ana@example.org", "", None]},
            mail_from={"enum": ["a@example.org", "", None]},
            mail_server={"type": ["string", "null"], "pattern": "^([a-z0-9]{1,9}:[1-9][0-9]{0,3})?$"},
            page_address={"enum": ["https://example.org/jq", "", None]},
            alert_webhook={"enum": ["https://example.org/hook", "", None]})
        schemas["Exposure"]["properties"]["exposed"]["items"] = {"enum": ["data/canary.txt", "worker.py"]}
        return document

    def ask_everything(self, name, fail_on, *options):
        """Run it as this user; what it said."""
        folder = self.site.home.parent
        tokens = [self.site.token(name, scope) for scope in ("user", "tick", "worker", "metrics")]
        (folder / "schemathesis.toml").write_text(CONFIGURATION % (
            json.dumps(fail_on), tokens[1], tokens[0], *tokens[2:]))
        for statement in KEEPERS:
            self.site.rows(statement + " BEGIN SELECT RAISE(IGNORE); END")
        self.site.server = self.site._start(["-c", SERVE], stdout=subprocess.PIPE,
                                            stderr=self.errors, encoding="utf-8")
        address = re.search(r"http://[^/]+/", self.site.server.stdout.readline())[0]
        (folder / "openapi.json").write_text(json.dumps(self.document(address)))
        done = subprocess.run(
            [self.program, "run", "openapi.json", "--url", address, *OPTIONS, *options],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace", timeout=1800)
        self.assertEqual(done.returncode, 0, done.stdout[-30000:])
        self.assertIn("Tested: %d\n" % len(openapi().operations()), done.stdout)
        self.assertEqual((self.site.home / "errors.txt").read_text(), "")
        self.assertEqual(self.site.value("SELECT count(*) FROM token WHERE id<4"), 3)
        return done.stdout

    def added(self, table):
        """How many rows there have been."""
        return self.site.value("SELECT seq FROM sqlite_sequence WHERE name=?", (table,))

    def test_as_an_admin(self):
        self.ask_everything("ana", ["missing_auth"], "--max-examples", "5")
        self.assertGreater(self.added("task"), 10)
        self.assertGreater(self.added("schedule"), 3)
        self.assertGreater(self.added("user"), 3)

    def test_as_a_user(self):
        self.ask_everything("bob", [], "--phases", "fuzzing", "--max-examples", "10")
        self.assertGreater(self.added("task"), 5)       # a schedule whose task waits runs no second one
        users = [tuple(row) for row in self.site.rows("SELECT name, role, disabled FROM user")]
        self.assertEqual(users, [("ana", "admin", 0), ("bob", "user", 0), ("eve", "user", 0)])
        self.assertEqual(self.site.rows("SELECT name FROM setting"), [])


if __name__ == "__main__":
    unittest.main()
