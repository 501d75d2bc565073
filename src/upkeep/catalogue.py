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
        pause: float                    # seconds until it is read again, after an error
        theirs_until: float | None      # the schedules are those of a newer tasks.py, read elsewhere

    class _Reader(TypedDict):
        digest: str                     # of what tasks.py declares there
        changed: float                  # when the file changed last
        at: float                       # when it was read

CATALOGUE_SECONDS = 10.0
AGAIN_SECONDS = 2.0                     # from a failed reading to the next; then twice as long each time
AGAIN_MAX_SECONDS = 60.0
READER_SECONDS = 3600.0         # how long it counts that a tasks.py was read


class _Known(NamedTuple):
    """What this process knows, and until when (monotonic)."""

    until: float
    state: CatalogueState
    functions: dict[str, AnnouncedFunction]


_NOTHING = _Known(-math.inf, {
    "files": {}, "error": None, "samples": False, "read_at": None, "schedules": [],
    "pause": 0, "theirs_until": None}, {})


class Catalogue:
    """The functions that tasks.py declares; this process never imports it itself. A child process
    announces them, as the runners of workers do. They are read again when a file changes that they
    were made of, and after a failed reading again and again: what it lacked may have come since. While they
    cannot be read the last good ones stay."""

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
        state: CatalogueState = recall(self._database, "catalogue") or self.state()
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
            "read_at": before["read_at"], "schedules": known.get("schedules", []), "pause": 0,
            "theirs_until": None}
        readers = None if functions is None or state["samples"] else (
            self._readers(announcement, state, before))
        if state["error"]:
            state["pause"] = min(AGAIN_MAX_SECONDS, 2 * before.get("pause", 0) or AGAIN_SECONDS)
        ours = [one for one in self.functions() if "remote" not in one]
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
        """Return who read which tasks.py, with this reading. The schedules of the newest file count, so
        that two readers do not change them in turns."""
        now, place = self._database.clock.now(), "%s on %s" % (TASKS_FILE, machine_name())
        stamp = state["files"].get(str(TASKS_FILE))
        mine: _Reader = {"at": now, "changed": stamp[0] if stamp else 0, "digest": digest(
            dump_json([announcement["functions"], announcement.get("schedules", [])]))}
        others = {name: one for name, one in self.readers().items() if name != place}
        newer = [one["at"] for one in others.values()
                 if one["digest"] != mine["digest"] and one["changed"] > mine["changed"]]
        if newer:
            state["schedules"], state["theirs_until"] = before["schedules"], max(newer) + READER_SECONDS
        return {**others, place: mine}

    def readers(self) -> dict[str, _Reader]:
        """Return who read which tasks.py within the last hour."""
        now, known = self._database.clock.now(), recall(self._database, "tasks_files") or {}
        return {place: one for place, one in known.items() if abs(now - one["at"]) < READER_SECONDS}

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
            state: CatalogueState = recall(self._database, "catalogue") or _NOTHING.state
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
        announced: dict[str, list[AnnouncedFunction]] = {}      # most announce the same
        for worker in self._database.all(
                "SELECT machine, functions FROM worker WHERE mode='remote' ORDER BY id"):
            text = worker["functions"]
            announced[text] = announced.get(text) or json.loads(text)
            for one in announced[text]:
                found = functions.setdefault(one["name"], {**one, "remote": []})
                if worker["machine"] not in found.get("remote", (worker["machine"],)):
                    found["remote"].append(worker["machine"])

    def _has_changed(self) -> bool:
        state = self._load().state
        known, pause = state["files"], state.get("pause", 0)
        if str(TASKS_FILE) not in known or file_stamps(known) != known:
            return True
        now = self._database.clock.now()
        if now > (state.get("theirs_until") or now):
            return True
        waited = now - (state["read_at"] or 0)
        return state["error"] is not None and not 0 <= waited < pause

    def _announcement(self) -> Announcement:
        """Ask a child process what tasks.py declares."""
        import subprocess
        import tempfile
        # Files, since what tasks.py starts may keep its end of a pipe open for long.
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
            said = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            code = ended.returncode
            how = "exit code %d" % code if code >= 0 else name_signal(-code)
            why = ": ".join(filter(None, [how, shorten(storable(said), 300)]))
            return self._failure("the process that reads it ended with %s" % why)

    @staticmethod
    def _failure(problem: str) -> Announcement:
        return {"error": {"message": problem, "file": TASKS_FILE.name, "line": None}}
