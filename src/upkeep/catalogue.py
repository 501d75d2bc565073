"""The functions of tasks.py, as a child process announced them."""
import json
import os
import threading

from ..base.limits import CACHE_SECONDS, HOME, TASKS_FILE, WORKER_FILE
from ..base.time_and_text import Every, dump_json, iso, shorten, storable
from ..base.values import TASK_DEFAULTS
from ..store.settings import recall, remember
from .worker_modes import START_ERRORS, explain_start_error, file_stamps

CATALOGUE_SECONDS = 10.0
FUNCTION_TEXTS = ("name", "title", "description", "who")


class Catalogue:
    """The functions that tasks.py declares; this process never imports it itself. A child process
    announces them, as the runners of workers do. They are read again when a file changes that they
    were made of. While they cannot be read the last good ones stay."""

    def __init__(self, database, interpreter):
        self._database, self._interpreter = database, interpreter
        self._reading = threading.Lock()
        self._known = (0.0, None, None)     # until, state, {name: function}
        self._misses = Every(0.05, database.clock)

    def functions(self):
        """All functions, in the order of their declaration; then those of remote workers only."""
        return list(self._load()[2].values())

    def find(self, name):
        """One function, or None; one that a worker has just announced is known at once."""
        if name not in self._load()[2] and self._misses.is_due():
            self._known = (0.0, None, None)
        return self._load()[2].get(name)

    def state(self):
        """What is known of the last reading: files, error, samples, read_at, schedules."""
        return self._load()[1]

    def describe(self, is_admin=True):
        """What can be run as the API tells it; admins see all, and why tasks.py cannot be read."""
        state = self.state()
        functions = [one for one in self.functions() if is_admin or one["who"] == "user"]
        error = state["error"] if is_admin else state["error"] and {
            "message": "tasks.py cannot be read; an admin sees why.", "file": None, "line": None}
        return {"functions": functions, "error": error, "samples": state["samples"],
                "file": str(TASKS_FILE) if is_admin else None, "read_at": iso(state["read_at"])}

    def files(self):
        """What the functions are made of as far as is known, to be stamped before they are read."""
        return [TASKS_FILE, WORKER_FILE, *self.state()["files"]]

    def schedules(self):
        """What @schedule said in tasks.py when it could be read the last time, as of now."""
        return (recall(self._database, ".catalogue") or self.state()).get("schedules", [])

    def refresh(self, wait=False):
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

    def store(self, announcement, stamps=()):
        """Keep what a runner announced; an error leaves the last good functions in place. `stamps`
        are of before it began to read. Returns the stamps of all that it is made of."""
        self._known = (0.0, None, None)     # others may just have stored what they read
        before, stamps = self.state(), dict(stamps)
        files = file_stamps([TASKS_FILE, WORKER_FILE, *announcement.get("files", stamps)])
        functions = announcement.get("functions")
        known = before if functions is None else announcement
        state = {"files": {name: stamps.get(name, stamp) for name, stamp in files.items()},
                 "error": announcement.get("error"), "samples": announcement.get("samples", False),
                 "read_at": before["read_at"], "schedules": known.get("schedules", [])}
        ours = [one for one in self.functions() if "remote" not in one]
        if state != before or functions not in (None, ours):
            state["read_at"] = self._database.clock.now()
            with self._database.transaction(durable=False) as transaction:
                remember(transaction, ".catalogue", state)
                if functions is not None:
                    self._replace(transaction, functions)
            self._known = (0.0, None, None)
        return state["files"]

    def _replace(self, transaction, functions):
        """Store functions and the queues they name; a queue of external ones is other people's."""
        transaction.update("queue", {"external": 0}, "external=1")
        for function in functions:
            queue = function["options"]["queue"]
            transaction.ensure("queue", {"name": queue, "created_at": self._database.clock.now()})
            transaction.update("queue", {"external": int(function.get("external", False))},
                               "name=?", (queue,))
        transaction.run("DELETE FROM function")
        transaction.insert_all("function", (
            {**{name: one[name] for name in FUNCTION_TEXTS},
             "schema": dump_json(one["schema"]), "options": dump_json(one["options"])}
            for one in functions))

    def _load(self):
        """(until, state, {name: function}), read again after CACHE_SECONDS."""
        now, known = self._database.clock.monotonic(), self._known
        if known[0] < now:
            state = recall(self._database, ".catalogue") or {
                "files": {}, "error": None, "samples": False, "read_at": None, "schedules": []}
            functions = {row["name"]: {
                **{name: row[name] for name in FUNCTION_TEXTS}, "schema": json.loads(row["schema"]),
                "options": {**TASK_DEFAULTS, **json.loads(row["options"])}}
                for row in self._database.all("SELECT * FROM function ORDER BY id")}
            self._add_remote(functions)
            known = self._known = (now + CACHE_SECONDS, state, functions)
        return known

    def _add_remote(self, functions):
        for worker in self._database.all(
                "SELECT machine, functions FROM worker WHERE mode='remote' ORDER BY id"):
            for one in json.loads(worker["functions"]):
                found = functions.setdefault(one["name"], {**one, "remote": []})
                if worker["machine"] not in found.get("remote", (worker["machine"],)):
                    found["remote"].append(worker["machine"])

    def _has_changed(self):
        known = self._load()[1]["files"]
        return str(TASKS_FILE) not in known or file_stamps(known) != known

    def _announcement(self):
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
    def _failure(problem):
        return {"error": {"message": problem, "file": TASKS_FILE.name, "line": None}}
