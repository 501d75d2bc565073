"""This host: doors, a browser's reach, a sample task, lines to copy.

What is known of this host: what a browser could fetch, whether it lets a worker live; and the
lines to copy into its own files. What an admin's browser saw is kept in the row .exposure.
"""
from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.limits import (HOME, SAMPLE_FUNCTION, SAMPLE_SECONDS, STATIC_FOLDER, TASKS_FILE,
                           WORKER_FILE)
from ..base.errors import JobQueueError
from ..base.time_and_text import random_token
from ..base.values import TASK_DEFAULTS
from ..store.connection import write_private
from ..store.data_folder import user_name
from ..store.state import recall, remember
from ..tasks.adding import Order
from .python_interface import JobQueue

if TYPE_CHECKING:
    from typing import TypedDict

    from ..base.types import JsonObject

if TYPE_CHECKING:
    class Visit(TypedDict):
        """How a browser reached the page, as the web server shows it."""

        door: str                       # a key of DOORS
        https: bool
        base: str                       # the path of the page
        host: str
        client: str                     # the address that asks: a browser's, or a proxy's
        trusted: bool                   # that is one of trusted_proxies
        forwarded: bool                 # the client says that it asks for another

    class Exposure(TypedDict):
        """What is private and an admin's browser could fetch; nothing until one looked."""

        exposed: list[str] | None       # addresses
        at: float | None

WEB_FOLDERS = frozenset("public_html htdocs httpdocs www web wwwroot html public".split())
DOORS = {                       # what runs the page
    "server": "the built-in server",
    "cgi": "CGI, a new process for each request",
    "passenger": "Passenger, which ends it while nobody asks for it",
    "mod_wsgi daemon": "mod_wsgi in processes of its own",
    "mod_wsgi embedded": "mod_wsgi within Apache",
    "uwsgi": "uWSGI",
    "wsgi": "a WSGI server"}
WHAT_FOR = r"(?m)^(?:#|<!--) ([^\n.:(]*[\w>])"  # how the files of static/hosts begin


def read_text(path: Path) -> str:
    """A small file of the system, "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def is_open(path: Path) -> bool:
    """True if every user of this machine can change it, or put another in its place."""
    with contextlib.suppress(OSError):  # it is not there, or not any more
        return path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    return False


def exposure(queue: JobQueue) -> Exposure:
    """Return what note_exposure() kept."""
    known: Exposure | None = recall(queue.database, "exposure")
    return known or {"exposed": None, "at": None}


def note_exposure(queue: JobQueue, exposed: list[str]) -> None:
    """Keep what an admin's browser could fetch of what is private."""
    with queue.database.transaction() as transaction:
        remember(transaction, "exposure", {"exposed": exposed, "at": queue.database.clock.now()})


def canary_token(folder: Path) -> str | None:
    """What data/canary.txt holds, or None; whoever can fetch it can fetch more."""
    path = folder / "canary.txt"
    with contextlib.suppress(OSError, ValueError):
        if not path.exists():
            write_private(path, random_token())
        return path.read_text("utf-8").strip() or None
    return None


def private_addresses(folder: Path, script: str = "", root: str = "") -> list[str]:
    """Where a browser could reach what is private, if the web server gave it away.
    That is relative to the page or its start-up file `script`, or below a web folder or `root`."""
    files = [folder / "canary.txt", WORKER_FILE]
    files += [TASKS_FILE] if TASKS_FILE.exists() else []
    beside, _, name = script.rpartition("/")
    starts = ("", beside + "/") if "." in name else ("",)
    found: list[str] = []
    for path in files:
        if HOME in path.parents:
            found += [start + path.relative_to(HOME).as_posix() for start in starts]
        found += ["/" + path.relative_to(place).as_posix() for place in path.parents
                  if place.name.lower() in WEB_FOLDERS or str(place) == root]
    return [quote(address) for address in dict.fromkeys(found)]


def add_sample(queue: JobQueue, owner_id: int) -> JsonObject:
    """Add a task that sleeps for SAMPLE_SECONDS, and keep its id: what becomes of it shows whether
    workers live here."""
    options = {**TASK_DEFAULTS, "priority": 100, "max_retries": 0, "timeout": 6 * SAMPLE_SECONDS}
    [task_id] = queue.add_orders([Order(SAMPLE_FUNCTION, "{}", options)], owner_id)["ids"]
    with queue.database.transaction() as transaction:
        remember(transaction, "sample_task", task_id)
    queue.start_workers()
    return queue.get_json(task_id)


def fill_in(text: str, python: str, visit: Visit | None) -> str:
    """A file of static/hosts with our paths, user and address in place of its examples."""
    import shlex
    home, example = str(HOME), "/home/me/jobqueue"
    text = re.sub("/usr/bin/(env )?python3(?![.0-9])", lambda _: shlex.quote(python), text)
    text = re.sub("(?<= )%s[a-z./_]*" % example,        # words of a command, which may hold spaces
                  lambda match: shlex.quote(home + match[0][len(example):]), text)
    text = text.replace(example, home).replace('FOLDER = ""', "FOLDER = %r" % home)
    text = re.sub(r"(?<=[Uu]ser=)me\b", lambda _: user_name(os.getuid()), text)
    if visit:
        address = "http%s://%s%s" % ("s" if visit["https"] else "", visit["host"], visit["base"])
        text = text.replace("https://example.org/jq/", address)
        text = re.sub("/jq(?=[/ ;$>=])", lambda _: visit["base"].rstrip("/") or "/jq", text)
    return text


def host_files(queue: JobQueue, visit: Visit | None = None) -> list[dict[str, str]]:
    """[{"title", "name", "text"}]: lines to copy, cron's first, with our paths and, if one has a
    Request.visit(), the page's address."""
    python = "python3"
    with contextlib.suppress(JobQueueError, OSError):
        python = queue.interpreter.path()
    paths = (STATIC_FOLDER / "hosts").glob("[a-z]*")
    found = {path.name: read_text(path) for path in sorted(
        paths, key=lambda path: (path.name != "crontab", path.name))}
    return [{"title": (re.search(WHAT_FOR, text) or ("", name))[1], "name": name,
             "text": fill_in(text, python, visit)} for name, text in found.items() if text]
