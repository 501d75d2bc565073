"""A busy site for tests of the whole page, and what those tests take from npm.

`npm install --prefix FOLDER axe-core lighthouse`, then NODE_PATH=FOLDER/node_modules.
"""
import os
from pathlib import Path

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import need, wait_until

TASKS = r'''
import time
from datetime import date
from pathlib import Path
from typing import Literal
from jobqueue import current_task, task

@task
def report(city: str, month: date = None, kind: Literal["PDF", "text"] = "PDF",
           detailed: bool = False, api_key: str = "", pages: list[int] = ()):
    """Write the monthly report of a city.

    Args:
        city: As it is written in the list of cities.
    """
    print("Reading", city)
    for code in (*range(30, 38), *range(90, 98)):
        print("\x1b[%dmcolour %d\x1b[0m" % (code, code))
    (current_task().folder / "cities.csv").write_text("city,pages\nOslo,12\n")
    return [{"city": city, "pages": 12}, {"city": "all", "pages": 40}]

@task
def crop(photo: Path, width: int = 1600):
    """Make a photo smaller."""

@task
def letter(to: str):
    raise ValueError("550 5.1.1 <%s>: no such mailbox" % to)

@task
def photos(album: str):
    current_task().progress(3, 8, "photo 3 of 8")
    print("photo-001.jpg")
    time.sleep(600)
'''


def from_npm(path):
    """A file of a package below NODE_PATH; without it the test is skipped."""
    folders = filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep))
    files = (Path(folder, path) for folder in folders)
    found = next((file for file in files if file.exists()), None)
    need(found, "%s from npm, in a folder that NODE_PATH names" % path.split("/")[0])
    return found


class BusyCase(BrowserTestCase):
    """A site on which two workers run tasks, and more wait."""

    TASKS = TASKS

    @classmethod
    def start_site(cls):
        super().start_site()
        cls.done = cls.site.add("report", city="Oslo", month="2026-01-31", api_key="x")
        cls.failed = cls.site.add("letter", to="per")
        for task_id in (cls.done, cls.failed):
            cls.site.wait(task_id)
        albums = "".join('{"album": "Summer %d"}\n' % number for number in range(60))
        cls.site.python("import json, sys; from tasks import photos\n"
                        "photos.enqueue_many(map(json.loads, sys.stdin))", given=albums)
        wait_until(lambda: cls.site.value("SELECT count(*) FROM task WHERE progress>0") == 2)
        cls.running = cls.site.value("SELECT min(id) FROM task WHERE status=1")
        cls.site.run("schedule", "add", "report", "daily 01:00", "city=Oslo")
        cls.schedule = cls.site.value("SELECT max(id) FROM schedule")
        cls.site.run("queue", "set", "mail", "--max-running", 2, "--rate", "500/3600")
        cls.site.run("queue", "pause", "mail", "--why", "the provider is down")
