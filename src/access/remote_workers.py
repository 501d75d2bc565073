"""Workers that ask over HTTP, from machines without the database.

Workers on machines that nobody can reach and that have no database: they ask over HTTP. What they
send comes from outside, so it is checked, and each part of a call is answered on its own.

1. hello() makes a worker's row, under the random name that it chose, with its functions. Those
   that the site has not get queues which only remote workers serve.
2. turn() tells how the worker's attempts go, and claims under claims that the worker chose. If
   the answer is lost the same call is sent again, and gets the same tasks. A late copy of an
   older call is known by its number.
3. What was claimed begins only after a turn has confirmed it. What nobody confirms goes back
   unspent when the worker leaves, or is not heard of for REMOTE_LEASE_SECONDS. One that was
   killed and is there again has its former self leave, and tells what that did not tell.
4. What a running task adds belongs to its owner, and is added once under its Idempotency-Key.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.limits import (INTEGER_MAX, PIECE_BYTES, RENEW_SECONDS, SAMPLE_FUNCTION, STATUS_WORDS,
                           VERSION)
from ..base.errors import Conflict, Invalid, field_error, refusal, wrong
from ..base.time_and_text import dump_json, shorten, storable
from ..base.values import (BOUNDS, OPTION_SCHEMAS, TASK_DEFAULTS, TEXT, TEXT_FORMS, TEXT_OR_NULL,
                           TYPES, WHO_MAY_ADD, about, check_value, integer_within, number_within,
                           object_of, or_null, text_like, text_up_to, titled)
from ..store.connection import BY_CLAIM, Connection, Reader
from ..store.database import Database
from ..store.log_and_activity import append_log, log_length, note
from ..store.settings import Settings
from ..tasks.queues import QUEUE_LIMITS, Queues
from ..tasks.followers import ENDED
from ..tasks.files import CLAIM_LOST, Files
from ..tasks.leases import (OUTCOME_KINDS, REMOTE_LEASE_SECONDS, UNCONFIRMED, Outcome, Reach,
                            Verdict)
from ..tasks.claims import Claims
from ..upkeep.schedule_rows import SCRIPT_FUNCTION
from ..upkeep.workers import Workers

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import FieldError, JsonObject, TaskRow, WorkerRow
    from .people import Token

REMOTE_PROTOCOL = 1
WAIT_MAX_SECONDS = 20.0
REMOTE_QUEUE = "remote"         # of functions that name no queue of their own
REMOTE_MAX = 64                 # workers of a token; queues that only remote workers serve
PIECES_MAX = 1000               # of logs in one call
ANNOUNCED_MAX = 256 << 10       # characters of what a token's workers announce, the same once

_NONCE = text_like("[0-9a-f]{32}", "must be 32 hexadecimal digits")
_AT_MOST = {"type": "array", "maxItems": 200}
_ATTEMPT = {"id": integer_within(1, INTEGER_MAX), "claim": _NONCE}
_HELD = {**_ATTEMPT, "progress": or_null(number_within(0, 1)), "message": or_null(text_up_to(500)),
         "log": {**_AT_MOST, "items": object_of(
             ("start", "text"), start=integer_within(0, INTEGER_MAX // 2), text=text_up_to(PIECE_BYTES))}}
HELLO = titled("Hello", object_of(
    ("session", "protocol", "machine", "version", "functions"),
    session=_NONCE, protocol=integer_within(1, 1000), machine=QUEUE_LIMITS["machines"]["items"],
    version=text_up_to(200), pid=integer_within(1, INTEGER_MAX),
    functions={**_AT_MOST, "items": {"type": "object"}}))
TURN = titled("Turn", object_of(
    ("session", "sequence"),
    session=_NONCE, sequence=about(integer_within(1, INTEGER_MAX), "higher with each new call"),
    start={**_AT_MOST, "items": object_of(("id", "claim"), **_ATTEMPT)},
    hold={**_AT_MOST, "items": object_of(("id", "claim"), **_HELD)},
    end={**_AT_MOST, "items": object_of(("id", "claim", "outcome"), **_HELD,
                                      outcome={"type": "object"})},
    claim=object_of(("claims",), claims={"type": "array", "maxItems": 64, "items": _NONCE},
                  function=about(TEXT_OR_NULL, "of which all are, if it is more than one"),
                  wait=about(number_within(0, WAIT_MAX_SECONDS), "seconds for a task to come")),
    leave=about(TEXT, "why the worker does not go on")))
# What a remote worker may announce of a function: it is shown, and arguments are judged by it.
_KIND = {"type": ["string", "array"], "pattern": "|".join(TYPES), "items": {"enum": list(TYPES)}}
_LENGTH, _NUMBER = integer_within(0, INTEGER_MAX), {"type": "number"}
_PARAMETER = object_of()
for _ in range(4):                      # so deep may lists and objects be nested
    _PARAMETER = object_of(
        type=_KIND, enum={"type": "array"}, enumNames={"type": "array", "items": TEXT}, default={},
        format={"enum": [*TEXT_FORMS, "password", "seconds"]}, description=text_up_to(2000),
        items=_PARAMETER, prefixItems={"type": "array", "items": _PARAMETER}, propertyNames=_PARAMETER,
        properties={"type": "object", "additionalProperties": _PARAMETER},
        additionalProperties={**_PARAMETER, "type": ["boolean", "object"]},
        required={"type": "array", "items": TEXT}, unclear=text_up_to(200),
        **dict.fromkeys(BOUNDS, _NUMBER), minItems=_LENGTH, maxItems=_LENGTH,
        minLength=_LENGTH, maxLength=_LENGTH, pattern=text_up_to(2000), patternMessage=text_up_to(500))
# Patterns that take no more time than a text is long; a remote worker alone heeds all others.
_QUICK_PATTERNS = r"\(\?s\)\(\?!-\)\.\*|-\?\[0-9\]\{1,15\}|(?:[^\\.*+?()\[\]{}^$]|\\[^A-Za-z0-9])*"
_ANNOUNCED = object_of(
    ("name", "title", "description", "schema", "options", "who"),
    name=text_like("(?!(%s|%s)$)[^\\x00-\\x1f\\x7f-\\x9f]{1,200}" % (SCRIPT_FUNCTION, SAMPLE_FUNCTION),
               "must be a name, and none of our own"),
    title=text_up_to(1000), description=text_up_to(20_000), who={"enum": list(WHO_MAY_ADD)},
    options=object_of(**OPTION_SCHEMAS), schema={
        **object_of(("properties", "required")), "properties": {
            "type": {"enum": ["object"]}, "properties": {"type": "object"},
            "required": {**_AT_MOST, "items": TEXT},
            "additionalProperties": {**_PARAMETER, "type": ["boolean", "object"]}}})


def _without_slow_patterns(schema: Any) -> Any:
    """Return a schema that was announced without the patterns that could take long."""
    if isinstance(schema, list):
        return list(map(_without_slow_patterns, schema))
    if not isinstance(schema, dict):
        return schema
    return {name: _without_slow_patterns(part) for name, part in schema.items()
            if name != "pattern" or not isinstance(part, str) or re.fullmatch(_QUICK_PATTERNS, part)}


class RemoteWorkers:
    """The site's side of workers that ask over HTTP; see the room. `token` is Person.token."""

    def __init__(self, database: Database, settings: Settings, claims: Claims, workers: Workers,
                 queues: Queues, files: Files) -> None:
        self._database, self._settings, self._clock = database, settings, database.clock
        self._claims, self._workers, self._queues, self._files = claims, workers, queues, files

    def hello(self, token: Token, given: JsonObject) -> JsonObject:
        """Take a worker up, or once more, and say what it has to know."""
        if given["protocol"] > REMOTE_PROTOCOL:
            raise field_error("protocol", "is %d, and this site speaks %d: its jobqueue.py is "
                              "older than this worker" % (given["protocol"], REMOTE_PROTOCOL))
        allowed = token.get("functions")
        errors: list[FieldError] = []
        functions = [one for one in given["functions"] if not one.pop("external", False)
                     and (allowed is None or one.get("name") in allowed)]
        for one in functions:
            errors += check_value(_ANNOUNCED, one, "functions") or check_value(
                {"type": "array", "items": _PARAMETER}, list(one["schema"]["properties"].values()),
                one["name"])
        if errors:
            raise refusal("This worker cannot be used", errors)
        for one in functions:
            one["schema"] = _without_slow_patterns(one["schema"])
            one["options"] = {**TASK_DEFAULTS, **one["options"]}
        with self._database.transaction() as transaction:
            for one in functions:
                self._place(transaction, token, one)
            now, key, text = self._clock.now(), (given["session"], token["id"]), dump_json(functions)
            self._check_room(transaction, key, text)
            row = {"machine": given["machine"], "version": given["version"],
                   "pid": given.get("pid"), "functions": text, **self._lease(now)}
            if not transaction.update("worker", row, "lock=? AND token_id=?", key):
                if transaction.value("SELECT count(*) FROM worker WHERE token_id=?",
                                     key[1:]) >= REMOTE_MAX:
                    raise Conflict("This token has %d workers already." % REMOTE_MAX)
                worker_id = transaction.insert("worker", {
                    **row, "lock": key[0], "token_id": key[1], "mode": "remote", "state": "idle",
                    "sequence": 0, "started_at": now})
                note(transaction, now, "worker_started", worker_id=worker_id,
                     machine=given["machine"])
        names = "runner_tasks", "runner_memory", "runner_per_owner"
        return {"protocol": REMOTE_PROTOCOL, "version": VERSION, "renew_seconds": RENEW_SECONDS,
                "lease_seconds": REMOTE_LEASE_SECONDS,
                "settings": {name: self._settings.get(name) for name in names}}

    @staticmethod
    def _check_room(transaction: Connection, key: tuple[str, int], text: str) -> None:
        """Refuse an announcement that is too large together with those of the token's other workers."""
        others = transaction.value(
            "SELECT sum(length(functions)) FROM (SELECT DISTINCT functions FROM worker "
            "WHERE lock<>? AND token_id=? AND functions<>?) AS announced", (*key, text)) or 0
        if len(text) + others > ANNOUNCED_MAX:
            raise refusal("This worker cannot be used", wrong(
                "functions", "of one token's workers are longer than %d characters" % ANNOUNCED_MAX))

    def turn(self, token: Token, given: JsonObject) -> JsonObject:
        """What became of each attempt that is named, and the tasks that are claimed. What the
        worker may forget then is on the disk."""
        starts, ended = given.get("start", []), {one["claim"]: one for one in given.get("end", ())}
        self._check_size(given)
        with self._database.transaction(bool(starts or ended)) as transaction:
            worker = self._check(transaction, token, given)
            now, held = self._clock.now(), self._held(transaction, token)
            states = {one["claim"]: self._hold(transaction, one, held.get(one["claim"]), now)
                      for one in starts + given.get("hold", [])}
            verdicts = self._end(transaction, ended.values(), held, now)
            for one, verdict in zip(ended.values(), verdicts):
                states[one["claim"]] = self._state(transaction, one, verdict)
            tasks = worker["tasks"] + sum(map(bool, verdicts))
            rows = self._claim(transaction, token, worker, given, now)
            busy = rows or "running" in states.values()
            transaction.update("worker", {
                "sequence": given["sequence"], "tasks": tasks, "state": "busy" if busy else "idle",
                **self._lease(now)}, "id=?", (worker["id"],))
            if "leave" in given:
                self._leave(transaction, worker["id"], given["leave"], tasks, now)
        for one, verdict in zip(ended.values(), verdicts):
            if verdict:
                self._files.tidy(one["id"], verdict)
        return {"attempts": states, "tasks": rows, "wait": 0}

    def _leave(self, transaction: Connection, worker_id: int, why: str, tasks: int,
               now: float) -> None:
        """What it still ran has crashed, what never began goes back."""
        self._workers.leave(transaction, worker_id, shorten(why, 99), tasks)
        for task in self._claims.leases.lost({worker_id}, now, transaction):
            if task["worker_id"] == worker_id:
                self._claims.end_lost(transaction, task, now)

    @staticmethod
    def _check_size(given: JsonObject) -> None:
        """Refuse a call that names an attempt twice, or would hold the write lock for long."""
        told = [*given.get("hold", ()), *given.get("end", ())]
        claims = [one["claim"] for one in (*given.get("start", ()), *told)]
        if len(claims) > len(set(claims)):
            raise field_error("claim", "is named twice in one call")
        if sum(len(one.get("log", ())) for one in told) > PIECES_MAX:
            raise field_error("log", "must have at most %d pieces in one call" % PIECES_MAX)

    def claim_late(self, token: Token, given: JsonObject) -> list[JsonObject]:
        """The tasks that came since turn() found none."""
        worker = self._check(self._database, token, given)
        reach = self._reach(token, worker, given["claim"]["claims"])
        if not self._claims.next_heads(self._database, self._clock.now(), reach=reach)[1]:
            return []
        with self._database.transaction(durable=False) as transaction:
            worker = self._check(transaction, token, given)
            return self._claim(transaction, token, worker, given, self._clock.now())

    def owner_of(self, token: Token, task_id: int, claim: str) -> int:
        """The id of the owner of a task that a worker runs; Conflict if it does not (any more)."""
        row = self._held(self._database, token).get(claim)
        if row is None or row["id"] != task_id:
            raise Conflict(CLAIM_LOST, gone=True)
        return row["owner_id"]

    def announced(self, token: Token) -> list[str]:
        """Return the names of the functions that this token's workers announced."""
        return [one["name"] for row in self._database.all(
            "SELECT functions FROM worker WHERE token_id=?", (token["id"],))
            for one in json.loads(row["functions"] or "[]")]

    @staticmethod
    def _check(db: Reader, token: Token, given: JsonObject) -> WorkerRow:
        """The worker's row; Conflict if it is gone, or this call was overtaken by a later one."""
        row = db.one("SELECT * FROM worker WHERE lock=? AND token_id=?",
                     (given["session"], token["id"]))
        if row is None:
            raise Conflict("This worker is not known here any more: it must say hello again.",
                           gone=True)
        if row["sequence"] > given["sequence"]:
            raise Conflict("A later call of this worker has been answered.", gone=False)
        return row

    def _lease(self, now: float) -> JsonObject:
        lease = self._claims.leases.new(now, REMOTE_LEASE_SECONDS)
        return {"boot": lease.pop("lease_boot"), "seen_at": now, **lease}

    def _place(self, transaction: Connection, token: Token, function: JsonObject) -> None:
        """Find the queue of a function that the site has not: none that our own workers serve."""
        ours = {row["name"]: json.loads(row["options"])["queue"]
                for row in transaction.all("SELECT name, options FROM function")}
        if function["name"] in ours:
            return
        allowed = token.get("queues") or ()
        for name in (function["options"]["queue"], REMOTE_QUEUE, *allowed):
            row = transaction.one("SELECT external FROM queue WHERE name=?", (name,))
            has_room = row or name == REMOTE_QUEUE or transaction.value(
                "SELECT count(*) FROM queue WHERE external=2") < REMOTE_MAX
            is_free = has_room and (not row or row["external"] or name in allowed and not (
                name in ours.values() or any(self._queues.count(transaction, status, name, 1)
                                             for status in range(len(STATUS_WORDS)))))
            if is_free and name != TASK_DEFAULTS["queue"] and (name in allowed or not allowed):
                break
        else:
            raise Conflict("%s needs a queue that no other function uses: give it one by @task "
                           "(queue=...) and let the token have it." % function["name"])
        function["options"]["queue"] = name
        transaction.ensure("queue", {"name": name, "created_at": self._clock.now()})
        transaction.update("queue", {"external": 2}, "name=? AND external=0", (name,))

    def _reach(self, token: Token, worker: WorkerRow, claims: Sequence[str]) -> Reach:
        names = [one["name"] for one in json.loads(worker["functions"])]
        return Reach(worker["machine"], names, token.get("queues"), claims)

    def _held(self, db: Reader, token: Token) -> dict[str, TaskRow]:
        """{claim: row} of the running tasks of this token's workers."""
        return {row["claim"].lstrip(UNCONFIRMED): row for row in db.all(
            "SELECT id, claim, owner_id, attempts, cancel_requested, worker_id FROM task %s "
            "WHERE status=RUNNING AND worker_id IN (SELECT id FROM worker WHERE token_id=?)" % BY_CLAIM,
            (token["id"],))}

    def _hold(self, transaction: Connection, one: JsonObject, task: TaskRow | None,
              now: float) -> str:
        """Renew a claim, keep what is told of the attempt; its state."""
        if task is None or task["id"] != one["id"]:
            return self._state(transaction, one, None)
        self._claims.renew(transaction, one["id"], one["claim"], now, REMOTE_LEASE_SECONDS)
        self._keep(transaction, one, task, now)
        return "cancel" if task["cancel_requested"] else "running"

    def _keep(self, transaction: Connection, one: JsonObject, task: TaskRow, now: float) -> None:
        """Keep a piece of the log that follows what is there, and progress; the same once."""
        if "progress" in one or "message" in one:
            self._claims.report(transaction, one["id"], one["claim"], one.get("progress"),
                                storable(one.get("message") or "") or None)
        place = one["id"], task["attempts"]
        known = log_length(transaction, *place) if one.get("log") else 0
        for piece in one.get("log", ()):
            if piece["start"] >= known and piece["text"]:
                append_log(transaction, now, *place, piece["start"], storable(piece["text"]))
                known = piece["start"] + len(piece["text"].encode("utf-8", "surrogatepass"))

    def _end(self, transaction: Connection, ended: Iterable[JsonObject], held: dict[str, TaskRow],
             now: float) -> Sequence[Verdict | None]:
        """The Verdicts on attempts that have ended; None for those of others."""
        endings: list[tuple[int, str, Outcome]] = []
        for one in ended:
            task, outcome, claim = held.get(one["claim"]), self._outcome(one["outcome"]), ""
            if task and task["id"] == one["id"]:
                self._keep(transaction, one, task, now)
                claim = task["claim"] if outcome.kind == "put_back" else one["claim"]
            endings.append((one["id"], claim, outcome))
        return self._claims.end_all(transaction, endings, now)

    @staticmethod
    def _outcome(sent: JsonObject) -> Outcome:
        """Return the outcome that a worker sent; a failure if it cannot be kept as it is."""
        try:
            return Outcome.parse(sent, OUTCOME_KINDS)
        except Invalid as error:
            return Outcome("fail", None, "StorageError", error.detail)

    @staticmethod
    def _state(transaction: Connection, one: JsonObject, verdict: Verdict | None) -> str:
        """What is recorded of an attempt that does not run (any more): a status, or "lost"."""
        if verdict:
            return STATUS_WORDS[verdict.status]
        status = transaction.value("SELECT status FROM task WHERE id=? AND claim=?",
                                   (one["id"], one["claim"]))
        return STATUS_WORDS[status] if status in ENDED else "lost"

    def _claim(self, transaction: Connection, token: Token, worker: WorkerRow, given: JsonObject,
               now: float) -> list[JsonObject]:
        """The tasks that a call claims, or has claimed when it came the first time."""
        asked = given.get("claim")
        if not asked or not asked["claims"] or "leave" in given:
            return []
        rows = self._claimed(transaction, worker, asked["claims"])
        reach = self._reach(token, worker, asked["claims"])
        if not rows and reach.functions:
            self._claims.claim(transaction, worker["id"], now, len(reach.claims),
                               asked.get("function"), reach=reach)
            rows = self._claimed(transaction, worker, reach.claims)
        return rows

    @staticmethod
    def _claimed(transaction: Connection, worker: WorkerRow, claims: Sequence[str]) -> list[JsonObject]:
        """What a worker is told of the tasks that it has under these claims."""
        names = [UNCONFIRMED + claim for claim in claims]
        rows = transaction.all(
            "SELECT task.id, function, arguments, attempts-put_backs AS attempt, crashes, timeout, "
            "on_crash, claim, user.name AS owner FROM task %s JOIN user ON user.id=owner_id "
            "WHERE status=RUNNING AND worker_id=? AND claim IN (%s) ORDER BY turn, task.id" % (
                BY_CLAIM, ", ".join("?" * len(names))), (worker["id"], *names))
        return [{**row, "claim": row["claim"][len(UNCONFIRMED):]} for row in rows]
