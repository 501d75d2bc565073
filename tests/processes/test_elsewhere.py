"""tasks.py elsewhere, as JOBQUEUE_TASKS says, at every door; Enums by their names."""

import json
import re
import subprocess
import sys
import unittest

from tests.helpers.support import Site

TASKS = """
import enum, os
from jobqueue import task
import helper

class Colour(enum.Enum):
    RED = 1
    DARK_BLUE = 2

@task
def paint(colour: Colour, other: Colour = Colour.RED) -> list:
    return [str(colour), str(other), os.getcwd(), helper.WORD]
"""
SCRIPT = "#!/bin/sh\npwd\n"


class Elsewhere(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.site = Site(linger=1)
        cls.addClassCleanup(cls.site.close)
        cls.place = cls.site.home.parent / "my own code"
        (cls.place / "schedules" / "hourly").mkdir(parents=True)
        (cls.place / "jobs.py").write_text(TASKS)
        (cls.place / "helper.py").write_text("WORD = 'helped'\n")
        script = cls.place / "schedules" / "hourly" / "where.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        cls.variables = {"JOBQUEUE_TASKS": str(cls.place / "jobs.py")}

    def run_command(self, *arguments, **options):
        return self.site.run(*arguments, environment=self.variables, **options)

    def result(self, task_id):
        """What a task returned; a worker started by whatever added it runs it."""
        self.run_command("wait", task_id, "--timeout", "60", seconds=120)
        return json.loads(self.run_command("show", task_id, "--json").stdout)["result"]

    def test_its_folder_is_where_a_started_worker_runs_it_imports_and_works(self):
        task_id = int(self.run_command("add", "paint", "colour=2").stdout)
        self.assertEqual(
            self.result(task_id), ["Colour.DARK_BLUE", "Colour.RED", str(self.place), "helped"]
        )

    def test_a_worker_of_cron_runs_it(self):
        idle = {**self.variables, "JOBQUEUE_NBMAXWORKER": "0"}
        task_id = int(self.site.run("add", "paint", "colour=1", environment=idle).stdout)
        done = subprocess.run(
            [sys.executable, "worker.py", "--seconds", "20"],
            cwd=self.site.home,
            env={**self.site.environment, **self.variables},
            timeout=120,
        )
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.result(task_id)[2], str(self.place))

    def test_a_cgi_process_knows_it(self):
        done = subprocess.run(
            [sys.executable, "static/hosts/jobqueue.cgi"],
            cwd=self.site.home,
            text=True,
            timeout=120,
            capture_output=True,
            env={
                **self.site.environment,
                **self.variables,
                "GATEWAY_INTERFACE": "CGI/1.1",
                "REQUEST_METHOD": "GET",
                "PATH_INFO": "/api/functions",
                "SCRIPT_NAME": "/jq",
                "SERVER_NAME": "localhost",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "localhost",
                "HTTP_X_API_KEY": self.site.token("ana"),
            },
        )
        said = json.loads(done.stdout.partition("\n\n")[2])
        self.assertEqual([one["name"] for one in said["functions"]], ["paint"])
        self.assertEqual(said["file"], str(self.place / "jobs.py"))

    def test_check_says_where_it_is_and_what_is_wrong_there(self):
        def said():
            checks = json.loads(self.run_command("check", "--quick", "--json", code=None).stdout)
            return next(one["text"] for one in checks["checks"] if one["name"] == "Functions")

        self.assertEqual(said(), "%s: paint" % (self.place / "jobs.py"))
        (self.place / "helper.py").write_text("WORD = \n")
        self.addCleanup(said)
        self.addCleanup((self.place / "helper.py").write_text, "WORD = 'helped'\n")
        self.assertRegex(
            said(),
            re.escape("%s/jobs.py cannot be read: SyntaxError" % self.place)
            + r".*\(helper.py, line 1\)",
        )

    def test_scripts_for_schedules_lie_beside_it(self):
        self.run_command("tick")
        listed = json.loads(self.run_command("schedule", "list", "--json").stdout)["schedules"]
        self.assertEqual([one["name"] for one in listed], ["hourly/where.sh"])

    def test_one_that_is_named_and_not_there_is_an_error_that_names_it(self):
        missing = str(self.place / "nowhere" / "tasks.py")
        said = json.loads(
            self.site.run("functions", "--json", environment={"JOBQUEUE_TASKS": missing}).stdout
        )
        self.assertEqual((said["samples"], said["file"]), (False, missing))
        self.assertIn(missing, said["error"]["message"])

    def test_a_relative_path_begins_at_our_own_folder(self):
        for given, path in (("sub/jobs.py", "sub/jobs.py"), ("", "tasks.py")):
            done = subprocess.run(
                [sys.executable, str(self.site.home / "jobqueue.py"), "functions", "--json"],
                cwd="/",
                capture_output=True,
                text=True,
                env={**self.site.environment, "JOBQUEUE_TASKS": given},
            )
            self.assertEqual(json.loads(done.stdout)["file"], str(self.site.home / path))

    def test_an_enum_is_known_by_its_names_and_its_values(self):
        self.assertIn("colour=RED|DARK_BLUE", self.run_command("functions").stdout)
        for value in ("DARK_BLUE", "2"):
            task_id = int(self.run_command("add", "paint", "colour=" + value).stdout)
            self.assertEqual(self.result(task_id)[0], "Colour.DARK_BLUE")
        for value in ("DARK_BLUE", 2):
            text = (
                "from jobqueue import JobQueue; "
                "print(JobQueue().enqueue('paint', {'colour': %r}).id)" % value
            )
            task_id = self.site.python(text, environment=self.variables)
            self.assertEqual(self.result(task_id)[0], "Colour.DARK_BLUE")
        said = self.run_command("add", "paint", "colour=green", code=2).stderr
        self.assertIn("must be one of RED, DARK_BLUE", said)

    def test_a_schedule_that_has_the_value_of_an_enum_still_runs(self):
        self.site.rows(
            "INSERT INTO schedule (owner_id, source, function, arguments, options, rule, zone, start, "
            "catch_up, overlap, created_at) VALUES (1, 'person', 'paint', '{\"colour\":2}', '{}', "
            "'weekly mon 01:00', 'UTC', 0, 'once', 'allow', 1)"
        )
        number = self.site.value("SELECT max(id) FROM schedule")
        self.addCleanup(self.run_command, "schedule", "delete", number)
        self.run_command("schedule", "run", number)
        task_id = self.site.value("SELECT id FROM task WHERE schedule_id=?", (number,))
        self.assertEqual(self.result(task_id)[0], "Colour.DARK_BLUE")


if __name__ == "__main__":
    unittest.main()
