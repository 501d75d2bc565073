"""Names of files on a host whose locale knows no letters but those of ASCII."""
import json
import os
import sys
import unittest
import urllib.request
from urllib.parse import quote

from tests.helpers.support import Site

TASKS = '''
from pathlib import Path
from jobqueue import current_task, task

@task
def copy(given: Path) -> Path:
    folder = current_task().folder
    (folder / "über.txt").write_text(given.read_text(), "utf-8")
    return folder / "über.txt"
'''


class Locale(unittest.TestCase):
    def test_names_are_utf8_on_the_disk_whatever_the_locale_says(self):
        site = Site(TASKS, linger=1)
        self.addCleanup(site.close)
        python = site.home / "python"       # as a web server embeds it: without its own UTF-8 mode
        python.write_text("#!/bin/sh\nexport LC_ALL=C LD_LIBRARY_PATH='%s'\nexec '%s' -X utf8=0 \"$@\"\n" % (
            os.environ.get("LD_LIBRARY_PATH", ""), sys.executable))
        python.chmod(0o755)
        site.interpreter = str(python)
        address, token = site.start_server(), site.token("ana")

        def ask(path, body=None, kind="application/json"):
            request = urllib.request.Request(address + path, body, {"X-Api-Key": token, "Content-Type": kind})
            with urllib.request.urlopen(request) as answer:
                return answer.read()

        file = json.loads(ask("api/files?name=" + quote("Übung.txt"), b"1 2 3", "application/octet-stream"))
        self.assertEqual(file["name"], "Übung.txt")
        task = json.loads(ask("api/tasks", json.dumps({
            "function": "copy", "arguments": {"given": file["id"]}}).encode()))["id"]
        site.wait_for_all([task])
        row = site.rows("SELECT status, error_message FROM task WHERE id=?", (task,))[0]
        self.assertEqual((row["status"], row["error_message"]), (2, None))
        files = json.loads(ask("api/tasks/%d/files" % task))["files"]
        self.assertEqual([one["name"] for one in files], ["über.txt", "Übung.txt"])
        for one in files:
            self.assertEqual(ask("api/tasks/%d/files/%s" % (task, quote(one["name"]))), b"1 2 3")
        names = {path.name for path in site.data.glob("*-*/*/**/*.txt")}
        self.assertEqual(names, {"über.txt"}, "as on any other host; what was handed in has its id there")
        self.assertEqual(site.run("files", task, "--save", "saved").returncode, 0)
        self.assertIn("über.txt", {path.name for path in (site.home / "saved").iterdir()})
