"""The functions of tasks.py, as a child process announced them."""
from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CACHE_SECONDS, HOME, TASKS_FILE, WORKER_FILE
from ..base.time_and_text import (Every, digest, dump_json, iso, machine_name, name_signal, shorten,
                                  storable)
from ..base.values import TASK_DEFAULTS
from ..store.connection import Connection
from ..store.database import Database
from ..store.state import recall, remember
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
        schema: Schema                  # JSON Schema of its arguments
        options: JsonObject             # every name of TASK_OPTIONS

    class AnnouncedFunction(_Announced, total=False):
        """A function, as a runner or a remote worker announces it."""

        external: bool                  # workers in other languages run it
        remote: list[str]               # machines whose remote workers run it, if tasks.py does not have it

    class Announcement(TypedDict, total=False):
        """An announcement of a runner: all that tasks.py declares, or its error without functions."""

        functions: list[AnnouncedFunction]
        schedules: list[JsonObject]     # as POST /api/schedules takes them
        error: JsonObject | None        # message, file, line
        samples: bool                   # there is no tasks.py: these are sample functions
        project: JsonObject | None      # of Django: settings, folder, digest
        files: list[str]                # paths of tasks.py and its imports

    class CatalogueState(TypedDict):
        """The state of the last reading of tasks.py, besides its functions."""

        files: Stamps
        error: JsonObject | None
        samples: bool
        read_at: float | None
        schedules: list[JsonObject]
        project: JsonObject | None      # see Announcement; older states lack it
        pause: float                    # seconds after an error until tasks.py is read again
        # Until then the schedules of a newer tasks.py count, which another process has read.
        theirs_until: float | None

    class _Reader(TypedDict):
        digest: str                     # of all that this tasks.py declares
        changed: float                  # when tasks.py was last changed
        at: float                       # when tasks.py was last read

CATALOGUE_SECONDS = 10.0                # how long the child process may take to announce
AGAIN_SECONDS = 2.0                     # pause before the next reading after an error; doubled each time
AGAIN_MAX_SECONDS = 60.0
READER_SECONDS = 3600.0         # how long a reader of tasks.py is remembered


class _Known(NamedTuple):
    """A copy of the catalogue in this process, and the monotonic time until which it is used."""

    until: float
    state: CatalogueState
    functions: dict[str, AnnouncedFunction]


_NOTHING = _Known(-math.inf, {
    "files": {}, "error": None, "samples": False, "read_at": None, "schedules": [], "project": None,
    "pause": 0, "theirs_until": None}, {})


class Catalogue:
    """The functions that tasks.py declares.

    This process never imports tasks.py. A child process announces its functions, as the runners of
    workers do. tasks.py is read again when it or one of its imports changes. After an error it is read
    again and again, since a missing module may be installed meanwhile. The last good functions stay.
    """

    def __init__(self, database: Database, interpreter: Interpreter) -> None:
        self._database, self._interpreter = database, interpreter
        self._reading = threading.Lock()
        self._known = _NOTHING
        self._misses = Every(0.05, database.clock)

    def functions(self) -> list[AnnouncedFunction]:
        """Return all functions in the order of their declaration, then those of remote workers only."""
        return list(self._load().functions.values())

    def find(self, name: str) -> AnnouncedFunction | None:
        """Return a function, or None. An unknown name is looked up again: a worker may have announced it."""
        if name not in self._load().functions and self._misses.begin_if_due():
            self._known = _NOTHING
        return self._load().functions.get(name)

    def state(self) -> CatalogueState:
        """Return the state of the last reading."""
        return self._load().state

    def describe(self, is_admin: bool = True) -> JsonObject:
        """Return the functions as the API has them. Admins see all, and the error of tasks.py."""
        state = self.state()
        functions = [function for function in self.functions() if is_admin or function["who"] == "user"]
        error = state["error"] if is_admin else state["error"] and {
            "message": "tasks.py cannot be read; an admin sees why.", "file": None, "line": None}
        return {"functions": functions, "error": error, "samples": state["samples"],
                "file": str(TASKS_FILE) if is_admin else None, "read_at": iso(state["read_at"])}

    def files(self) -> list[Path | str]:
        """Return tasks.py, worker.py and the known imports, to be stamped before tasks.py is read."""
        return [TASKS_FILE, WORKER_FILE, *self.state()["files"]]

    def schedules(self) -> list[JsonObject]:
        """Return the schedules of tasks.py when it was last read without an error."""
        state: CatalogueState = recall(self._database, "catalogue") or self.state()
        return state.get("schedules", [])

    def refresh(self, wait: bool = False) -> None:
        """Read tasks.py again if it or one of its imports changed.

        While another thread reads it, callers use the known functions. They wait with `wait`, or if
        tasks.py was never read.
        """
        if (not self._has_changed()
                or not self._reading.acquire(blocking=wait or not self.state()["files"])):
            return
        try:
            if self._has_changed():
                stamps = file_stamps(self.files())
                self.store(self._announcement(), stamps)
        except START_ERRORS as error:   # the next call tries again
            if not self.functions():
                problem = explain_start_error(error, "the process that reads it")
                self.store(self._failure(problem), {str(WORKER_FILE): None})
        finally:
            self._reading.release()

    def store(self, announcement: Announcement, stamps: Stamps | None = None) -> Stamps:
        """Store an announcement; return the stamps of its files.

        After an error the last good functions stay. `stamps` were taken before the reading began.
        """
        self._known = _NOTHING          # another process may just have stored an announcement
        before, stamps = self.state(), stamps or {}
        files = file_stamps([TASKS_FILE, WORKER_FILE, *announcement.get("files", stamps)])
        functions = announcement.get("functions")
        source = before if functions is None else announcement
        state: CatalogueState = {
            "files": {name: stamps.get(name, stamp) for name, stamp in files.items()},
            "error": announcement.get("error"), "samples": announcement.get("samples", False),
            "read_at": before["read_at"], "schedules": source.get("schedules", []), "pause": 0,
            "project": source.get("project"),
            "theirs_until": None}
        readers = None if functions is None or state["samples"] else (
            self._readers(announcement, state, before))
        if state["error"]:
            state["pause"] = min(AGAIN_MAX_SECONDS, 2 * before.get("pause", 0) or AGAIN_SECONDS)
        ours = [function for function in self.functions() if "remote" not in function]
        if state != before or state["error"] or functions not in (None, ours):
            state["read_at"] = self._database.clock.now()
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, "catalogue", state)
                if functions is not None:
                    self._replace(transaction, functions)
                if readers is not None:
                    remember(transaction, "tasks_files", readers)
            self._known = _NOTHING
        return state["files"]

    def _readers(self, announcement: Announcement, state: CatalogueState,
                 before: CatalogueState) -> dict[str, _Reader]:
        """Return the readers of tasks.py, this one included.

        If another reader's tasks.py is newer, `state` keeps its schedules. So two readers do not change
        them by turns.
        """
        now, place = self._database.clock.now(), "%s on %s" % (TASKS_FILE, machine_name())
        stamp = state["files"].get(str(TASKS_FILE))
        mine: _Reader = {"at": now, "changed": stamp[0] if stamp else 0, "digest": digest(
            dump_json([announcement["functions"], announcement.get("schedules", [])]))}
        other_readers = {name: reader for name, reader in self.readers().items() if name != place}
        newer = [reader["at"] for reader in other_readers.values()
                 if reader["digest"] != mine["digest"] and reader["changed"] > mine["changed"]]
        if newer:
            state["schedules"], state["theirs_until"] = before["schedules"], max(newer) + READER_SECONDS
        return {**other_readers, place: mine}

    def readers(self) -> dict[str, _Reader]:
        """Return the readers of tasks.py within the last hour."""
        now, readers = self._database.clock.now(), recall(self._database, "tasks_files") or {}
        return {place: reader for place, reader in readers.items()
                if abs(now - reader["at"]) < READER_SECONDS}

    def _replace(self, transaction: Connection, functions: list[AnnouncedFunction]) -> None:
        """Store functions and their queues. Queues of external functions are only for their own workers."""
        transaction.update("queue", {"external": 0}, "external=1")
        for function in functions:
            queue = function["options"]["queue"]
            transaction.ensure("queue", {"name": queue, "created_at": self._database.clock.now()})
            transaction.update("queue", {"external": int(function.get("external", False))},
                               "name=?", (queue,))
        transaction.run("DELETE FROM function")
        transaction.insert_all("function", (
            {"name": row["name"], "title": row["title"], "description": row["description"],
             "who": row["who"], "schema": dump_json(row["schema"]),
             "options": dump_json(row["options"])}
            for row in functions))

    def _load(self) -> _Known:
        """Return this process's copy of the catalogue, at most CACHE_SECONDS old."""
        now, copy = self._database.clock.monotonic(), self._known
        if copy.until < now:
            state: CatalogueState = recall(self._database, "catalogue") or _NOTHING.state
            functions = {row["name"]: self._function(row) for row in self._database.all(
                "SELECT * FROM function ORDER BY id")}
            self._add_remote(functions)
            copy = self._known = _Known(now + CACHE_SECONDS, state, functions)
        return copy

    @staticmethod
    def _function(row: Row) -> AnnouncedFunction:
        return {"name": row["name"], "title": row["title"], "description": row["description"],
                "who": row["who"], "schema": json.loads(row["schema"]),
                "options": {**TASK_DEFAULTS, **json.loads(row["options"])}}

    def _add_remote(self, functions: dict[str, AnnouncedFunction]) -> None:
        announced: dict[str, list[AnnouncedFunction]] = {}      # by JSON: most workers announce the same
        for worker in self._database.all(
                "SELECT machine, functions FROM worker WHERE mode='remote' ORDER BY id"):
            text = worker["functions"]
            announced[text] = announced.get(text) or json.loads(text)
            for function in announced[text]:
                entry = functions.setdefault(function["name"], {**function, "remote": []})
                if worker["machine"] not in entry.get("remote", (worker["machine"],)):
                    entry["remote"].append(worker["machine"])

    def _has_changed(self) -> bool:
        state = self._load().state
        stamps, pause = state["files"], state.get("pause", 0)
        if str(TASKS_FILE) not in stamps or file_stamps(stamps) != stamps:
            return True
        now = self._database.clock.now()
        if now > (state.get("theirs_until") or now):
            return True
        waited = now - (state["read_at"] or 0)
        return state["error"] is not None and not 0 <= waited < pause

    def _announcement(self) -> Announcement:
        """Return the announcement of a child process."""
        import subprocess
        import tempfile
        # Files, not pipes: a process that tasks.py starts may keep a pipe open for long.
        folder = self._database.folder
        with tempfile.TemporaryFile(dir=folder) as answer, tempfile.TemporaryFile(dir=folder) as words:
            try:
                ended = subprocess.run(
                    [self._interpreter.path(), "-m", "worker", "--catalogue"],
                    stdin=subprocess.DEVNULL, stdout=answer, stderr=words, timeout=CATALOGUE_SECONDS,
                    start_new_session=True, cwd=str(HOME), env=self._interpreter.environment())
            except subprocess.TimeoutExpired:
                return self._failure("it took longer than %d s to import" % CATALOGUE_SECONDS)
            answer.seek(0)
            with contextlib.suppress(ValueError):
                return json.loads(answer.read())
            words.seek(max(0, words.seek(0, os.SEEK_END) - 2000))
            last_line = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            code = ended.returncode
            how = "exit code %d" % code if code >= 0 else name_signal(-code)
            why = ": ".join(filter(None, [how, shorten(storable(last_line), 300)]))
            return self._failure("the process that reads it ended with %s" % why)

    @staticmethod
    def _failure(problem: str) -> Announcement:
        return {"error": {"message": problem, "file": TASKS_FILE.name, "line": None}}
