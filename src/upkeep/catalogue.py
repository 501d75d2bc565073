"""The functions of tasks.py, as a child process announced them."""
from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CACHE_SECONDS, HOME, TASKS_FILE, WORKER_FILE
from ..base.time_and_text import Every, dump_json, iso, shorten, storable
from ..base.values import TASK_DEFAULTS
from ..store.connection import Connection
from ..store.database import Database
from ..store.settings import recall, remember
from .worker_modes import START_ERRORS, Interpreter, explain_start_error, file_stamps

if TYPE_CHECKING:
    from typing import TypedDict

    from ..base.types import JsonObject, Row, Schema
    from .worker_modes import Stamps

if TYPE_CHECKING:
    class _Announced(TypedDict):
        name: str
        title: str
        description: str
        who: str                        # one of WHO_MAY_ADD
        schema: Schema                  # of its arguments
        options: JsonObject             # every name of TASK_OPTIONS

    class AnnouncedFunction(_Announced, total=False):
        """A function, as a runner or a remote worker announces it."""

        external: bool                  # other people's workers run it
        remote: list[str]               # machines: remote workers run it, tasks.py has it not

    class Announcement(TypedDict, total=False):
        """What a runner announces of tasks.py: all of it, or without functions what is wrong."""

        functions: list[AnnouncedFunction]
        schedules: list[JsonObject]     # as POST /api/schedules takes them
        error: JsonObject | None        # message, file, line
        samples: bool                   # there is no tasks.py: these are functions to try
        files: list[str]                # what they are made of

    class CatalogueState(TypedDict):
        """What is remembered of the last reading of tasks.py, besides its functions."""

        files: Stamps
        error: JsonObject | None
        samples: bool
        read_at: float | None
        schedules: list[JsonObject]

CATALOGUE_SECONDS = 10.0


class _Known(NamedTuple):
    """What this process knows, and until when (monotonic)."""

    until: float
    state: CatalogueState
    functions: dict[str, AnnouncedFunction]


_NOTHING = _Known(-math.inf, {
    "files": {}, "error": None, "samples": False, "read_at": None, "schedules": []}, {})


class Catalogue:
    """The functions that tasks.py declares; this process never imports it itself. A child process
    announces them, as the runners of workers do. They are read again when a file changes that they
    were made of. While they cannot be read the last good ones stay."""

    def __init__(self, database: Database, interpreter: Interpreter) -> None:
        self._database, self._interpreter = database, interpreter
        self._reading = threading.Lock()
        self._known = _NOTHING
        self._misses = Every(0.05, database.clock)

    def functions(self) -> list[AnnouncedFunction]:
        """All functions, in the order of their declaration; then those of remote workers only."""
        return list(self._load().functions.values())

    def find(self, name: str) -> AnnouncedFunction | None:
        """One function, or None; one that a worker has just announced is known at once."""
        if name not in self._load().functions and self._misses.is_due():
            self._known = _NOTHING
        return self._load().functions.get(name)

    def state(self) -> CatalogueState:
        """Return what is known of the last reading."""
        return self._load().state

    def describe(self, is_admin: bool = True) -> JsonObject:
        """What can be run as the API tells it; admins see all, and why tasks.py cannot be read."""
        state = self.state()
        functions = [one for one in self.functions() if is_admin or one["who"] == "user"]
        error = state["error"] if is_admin else state["error"] and {
            "message": "tasks.py cannot be read; an admin sees why.", "file": None, "line": None}
        return {"functions": functions, "error": error, "samples": state["samples"],
                "file": str(TASKS_FILE) if is_admin else None, "read_at": iso(state["read_at"])}

    def files(self) -> list[Path | str]:
        """What the functions are made of as far as is known, to be stamped before they are read."""
        return [TASKS_FILE, WORKER_FILE, *self.state()["files"]]

    def schedules(self) -> list[JsonObject]:
        """What @schedule said in tasks.py when it could be read the last time, as of now."""
        state: CatalogueState = recall(self._database, ".catalogue") or self.state()
        return state.get("schedules", [])

    def refresh(self, wait: bool = False) -> None:
        """Read tasks.py again if it or what it imports changed; keep the last good one if it fails.
        While another thread reads it, callers go on with what is known, unless that is nothing."""
        if (not self._has_changed()
                or not self._reading.acquire(blocking=wait or not self.state()["files"])):
            return
        try:
            if self._has_changed():
                stamps = file_stamps(self.files())
                self.store(self._announcement(), stamps)
        except START_ERRORS as error:   # as soon as it can be started, all is well
            if not self.functions():
                problem = explain_start_error(error, "the process that reads it")
                self.store(self._failure(problem), {str(WORKER_FILE): None})
        finally:
            self._reading.release()

    def store(self, announcement: Announcement, stamps: Stamps | None = None) -> Stamps:
        """Keep what a runner announced; an error leaves the last good functions in place. `stamps`
        are of before it began to read. Returns the stamps of all that it is made of."""
        self._known = _NOTHING          # others may just have stored what they read
        before, stamps = self.state(), stamps or {}
        files = file_stamps([TASKS_FILE, WORKER_FILE, *announcement.get("files", stamps)])
        functions = announcement.get("functions")
        known = before if functions is None else announcement
        state: CatalogueState = {
            "files": {name: stamps.get(name, stamp) for name, stamp in files.items()},
            "error": announcement.get("error"), "samples": announcement.get("samples", False),
            "read_at": before["read_at"], "schedules": known.get("schedules", [])}
        ours = [one for one in self.functions() if "remote" not in one]
        if state != before or functions not in (None, ours):
            state["read_at"] = self._database.clock.now()
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, ".catalogue", state)
                if functions is not None:
                    self._replace(transaction, functions)
            self._known = _NOTHING
        return state["files"]

    def _replace(self, transaction: Connection, functions: list[AnnouncedFunction]) -> None:
        """Store functions and the queues they name; a queue of external ones is other people's."""
        transaction.update("queue", {"external": 0}, "external=1")
        for function in functions:
            queue = function["options"]["queue"]
            transaction.ensure("queue", {"name": queue, "created_at": self._database.clock.now()})
            transaction.update("queue", {"external": int(function.get("external", False))},
                               "name=?", (queue,))
        transaction.run("DELETE FROM function")
        transaction.insert_all("function", (
            {"name": one["name"], "title": one["title"], "description": one["description"],
             "who": one["who"], "schema": dump_json(one["schema"]),
             "options": dump_json(one["options"])}
            for one in functions))

    def _load(self) -> _Known:
        """Return what is known, read again after CACHE_SECONDS."""
        now, known = self._database.clock.monotonic(), self._known
        if known.until < now:
            state: CatalogueState = recall(self._database, ".catalogue") or _NOTHING.state
            functions = {row["name"]: self._function(row) for row in self._database.all(
                "SELECT * FROM function ORDER BY id")}
            self._add_remote(functions)
            known = self._known = _Known(now + CACHE_SECONDS, state, functions)
        return known

    @staticmethod
    def _function(row: Row) -> AnnouncedFunction:
        return {"name": row["name"], "title": row["title"], "description": row["description"],
                "who": row["who"], "schema": json.loads(row["schema"]),
                "options": {**TASK_DEFAULTS, **json.loads(row["options"])}}

    def _add_remote(self, functions: dict[str, AnnouncedFunction]) -> None:
        for worker in self._database.all(
                "SELECT machine, functions FROM worker WHERE mode='remote' ORDER BY id"):
            announced: list[AnnouncedFunction] = json.loads(worker["functions"])
            for one in announced:
                found = functions.setdefault(one["name"], {**one, "remote": []})
                if worker["machine"] not in found.get("remote", (worker["machine"],)):
                    found["remote"].append(worker["machine"])

    def _has_changed(self) -> bool:
        known = self._load().state["files"]
        return str(TASKS_FILE) not in known or file_stamps(known) != known

    def _announcement(self) -> Announcement:
        """Ask a child process what tasks.py declares."""
        import subprocess
        import tempfile
        # A file, since what tasks.py starts may keep its end of a pipe open for long.
        with tempfile.TemporaryFile(dir=self._database.folder) as words:
            try:
                answer = subprocess.run(
                    [self._interpreter.path(), "-m", "worker", "--catalogue"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words,
                    timeout=CATALOGUE_SECONDS, start_new_session=True, cwd=str(HOME),
                    env=self._interpreter.environment())
                return json.loads(answer.stdout)
            except subprocess.TimeoutExpired:
                return self._failure("it took longer than %d s to import" % CATALOGUE_SECONDS)
            except ValueError:
                words.seek(max(0, words.seek(0, os.SEEK_END) - 2000))
                said = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
                return self._failure("the process that reads it failed: "
                                     + shorten(storable(said), 300))

    @staticmethod
    def _failure(problem: str) -> Announcement:
        return {"error": {"message": problem, "file": TASKS_FILE.name, "line": None}}
