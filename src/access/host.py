"""This host: doors, a browser's reach, a sample task, lines to copy.

A door is the server or gateway that runs the page; DOORS lists them. An admin's browser tries to fetch
private files, and the row `exposure` of the table state keeps the result. A sample task shows whether workers
can run here. host_files() returns the lines to copy into the host's own files.
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
        client: str                     # the client's address: a browser's, or a proxy's
        trusted: bool                   # whether the setting trusted_proxies contains `client`
        forwarded: bool                 # whether `client` forwards another client's request

    class Exposure(TypedDict):
        """The private files that an admin's browser could fetch. Both values are None before a try."""

        exposed: list[str] | None       # the addresses that it could fetch
        at: float | None

WEB_FOLDERS = frozenset("public_html htdocs httpdocs www web wwwroot html public".split())
DOORS = {                       # {server or gateway that runs the page: its name for people}
    "server": "the built-in server",
    "cgi": "CGI, a new process for each request",
    "passenger": "Passenger, which stops it when no page is open",
    "mod_wsgi daemon": "mod_wsgi in processes of its own",
    "mod_wsgi embedded": "mod_wsgi within Apache",
    "uwsgi": "uWSGI",
    "wsgi": "a WSGI server"}
WHAT_FOR = r"(?m)^(?:#|<!--) ([^\n.:(]*[\w>])"  # the title in a file of static/hosts


def read_text(path: Path) -> str:
    """Return the text of a small file, or "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def is_world_writable(path: Path) -> bool:
    """Return True if every user of this machine can write a file, or replace the files in a folder."""
    with contextlib.suppress(OSError):  # the file may not exist
        return path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    return False


def exposure(queue: JobQueue) -> Exposure:
    """Return the Exposure that store_exposure() stored."""
    stored: Exposure | None = recall(queue.database, "exposure")
    return stored or {"exposed": None, "at": None}


def store_exposure(queue: JobQueue, exposed: list[str]) -> None:
    """Store which private addresses an admin's browser could fetch."""
    with queue.database.transaction() as transaction:
        remember(transaction, "exposure", {"exposed": exposed, "at": queue.database.clock.now()})


def canary_token(folder: Path) -> str | None:
    """Return the content of canary.txt, which is made if it is missing; None if that fails.

    A browser that can fetch this file can also fetch other files of the data folder.
    """
    path = folder / "canary.txt"
    with contextlib.suppress(OSError, ValueError):
        if not path.exists():
            write_private(path, random_token())
        return path.read_text("utf-8").strip() or None
    return None


def private_addresses(folder: Path, script: str = "", root: str = "") -> list[str]:
    """Return the addresses at which a badly configured web server would deliver private files.

    They are relative to the page or to its start-up file `script`, or to a web folder or the server's `root`.
    """
    files = [folder / "canary.txt", WORKER_FILE]
    files += [TASKS_FILE] if TASKS_FILE.exists() else []
    beside, _, name = script.rpartition("/")
    starts = ("", beside + "/") if "." in name else ("",)
    addresses: list[str] = []
    for path in files:
        if HOME in path.parents:
            addresses += [start + path.relative_to(HOME).as_posix() for start in starts]
        addresses += ["/" + path.relative_to(place).as_posix() for place in path.parents
                  if place.name.lower() in WEB_FOLDERS or str(place) == root]
    return [quote(address) for address in dict.fromkeys(addresses)]


def add_sample(queue: JobQueue, owner_id: int) -> JsonObject:
    """Add a task that sleeps for SAMPLE_SECONDS, and store its id. It succeeds if workers can run here."""
    options = {**TASK_DEFAULTS, "priority": 100, "max_retries": 0, "timeout": 6 * SAMPLE_SECONDS}
    [task_id] = queue.add_orders([Order(SAMPLE_FUNCTION, "{}", options)], owner_id)["ids"]
    with queue.database.transaction() as transaction:
        remember(transaction, "sample_task", task_id)
    queue.start_workers()
    return queue.get_json(task_id)


def fill_in(text: str, python: str, visit: Visit | None) -> str:
    """Return the text of a file of static/hosts with our paths, user and address instead of its examples."""
    import shlex
    home, example = str(HOME), "/home/me/jobqueue"
    text = re.sub("/usr/bin/(env )?python3(?![.0-9])", lambda _: shlex.quote(python), text)
    text = re.sub("(?<= )%s[a-z./_]*" % example,        # arguments of a command: our paths may need quotes
                  lambda match: shlex.quote(home + match[0][len(example):]), text)
    text = text.replace(example, home).replace('FOLDER = ""', "FOLDER = %r" % home)
    text = re.sub(r"(?<=[Uu]ser=)me\b", lambda _: user_name(os.getuid()), text)
    if visit:
        address = "http%s://%s%s" % ("s" if visit["https"] else "", visit["host"], visit["base"])
        text = text.replace("https://example.org/jq/", address)
        text = re.sub("/jq(?=[/ ;$>=])", lambda _: visit["base"].rstrip("/") or "/jq", text)
    return text


def host_files(queue: JobQueue, visit: Visit | None = None) -> list[dict[str, str]]:
    """Return {"title", "name", "text"} for each file of static/hosts, with our paths; cron's is the first.

    With a Request.visit() the texts have the page's address, too.
    """
    python = "python3"
    with contextlib.suppress(JobQueueError, OSError):
        python = queue.interpreter.path()
    paths = (STATIC_FOLDER / "hosts").glob("[a-z]*")
    texts = {path.name: read_text(path) for path in sorted(
        paths, key=lambda path: (path.name != "crontab", path.name))}
    return [{"title": (re.search(WHAT_FOR, text) or ("", name))[1], "name": name,
             "text": fill_in(text, python, visit)} for name, text in texts.items() if text]
