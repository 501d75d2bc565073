"""Workers that ask over HTTP, from machines without the database.

These workers run on machines that the site cannot reach. The site checks everything that they send. Each
part of a call is answered on its own.

1. hello() stores a worker's row with its functions, under a random session id that the worker chose. A
   function that the site does not have gets a queue which only remote workers serve.
2. turn() records the reports on the worker's attempts, and claims tasks with tokens that the worker chose.
   If the answer is lost, the worker repeats the call and gets the same tasks. The call's sequence number
   shows a late copy of an older call.
3. A claimed task begins only after the next turn has confirmed the claim. Without a confirmation the task
   becomes pending again, at no cost, when the worker leaves or is silent for REMOTE_LEASE_SECONDS. A worker
   that was killed and started again first delivers the outcomes of its old session, and ends that session.
4. A task that a running task adds belongs to the same owner. The Idempotency-Key of the call prevents that a
   repeated call adds it again.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.limits import (INTEGER_MAX, PIECE_BYTES, RENEW_SECONDS, SAMPLE_FUNCTION, SAMPLES_MAX,
                           STATUS_WORDS, VERSION)
from ..base.errors import Conflict, Invalid, field_error, refusal, wrong
from ..base.time_and_text import dump_json, shorten, storable
from ..base.values import (BOUNDS, OPTION_SCHEMAS, TASK_DEFAULTS, TEXT, TEXT_FORMS, TEXT_OR_NULL,
                           TYPES, WHO_MAY_ADD, about, check_value, integer_within, number_within,
                           object_of, or_null, text_like, text_up_to, titled)
from ..store.connection import BY_CLAIM, Connection, Reader
from ..store.database import Database
from ..store.log_and_activity import append_log, log_length, record_activity
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

REMOTE_PROTOCOL = 2             # 2: a report may have samples
WAIT_MAX_SECONDS = 20.0
REMOTE_QUEUE = "remote"         # the queue of functions that declare no other
REMOTE_MAX = 64                 # limit of a token's workers, and of queues that only remote workers serve
PIECES_MAX = 1000               # pieces of logs in one call
ANNOUNCED_MAX = 256 << 10       # characters of the announcements of a token's workers; equal ones count once

_NONCE = text_like("[0-9a-f]{32}", "must be 32 hexadecimal digits")
_AT_MOST = {"type": "array", "maxItems": 200}
_ATTEMPT = {"id": integer_within(1, INTEGER_MAX), "claim": _NONCE}
_HELD = {**_ATTEMPT, "progress": or_null(number_within(0, 1)), "message": or_null(text_up_to(500)),
         "log": {**_AT_MOST, "items": object_of(
             ("start", "text"), start=integer_within(0, INTEGER_MAX // 2), text=text_up_to(PIECE_BYTES))}}
_SAMPLES = about({"type": "array", "maxItems": SAMPLES_MAX, "items": {
    "type": "array", "minItems": 3, "maxItems": 3, "items": number_within(0, INTEGER_MAX)}},
    "all so far, each as [seconds since the start, CPU seconds, bytes of memory]")
HELLO = titled("Hello", object_of(
    ("session", "protocol", "machine", "version", "functions"),
    session=_NONCE, protocol=integer_within(1, 1000), machine=QUEUE_LIMITS["machines"]["items"],
    version=text_up_to(200), pid=integer_within(1, INTEGER_MAX),
    functions={**_AT_MOST, "items": {"type": "object"}}))
TURN = titled("Turn", object_of(
    ("session", "sequence"),
    session=_NONCE, sequence=about(integer_within(1, INTEGER_MAX), "higher with each new call"),
    start={**_AT_MOST, "items": object_of(("id", "claim"), **_ATTEMPT)},
    hold={**_AT_MOST, "items": object_of(("id", "claim"), **_HELD, samples=_SAMPLES)},
    end={**_AT_MOST, "items": object_of(("id", "claim", "outcome"), **_HELD,
                                      outcome={"type": "object"})},
    claim=object_of(("claims",), claims={"type": "array", "maxItems": 64, "items": _NONCE},
                  function=about(TEXT_OR_NULL, "the function of all the claims, if there are several"),
                  wait=about(number_within(0, WAIT_MAX_SECONDS), "seconds to wait for a task")),
    leave=about(TEXT, "why the worker ends")))
# Announcements must match these. The schema in an announcement is shown, and arguments are checked with it.
_KIND = {"type": ["string", "array"], "pattern": "|".join(TYPES), "items": {"enum": list(TYPES)}}
_LENGTH, _NUMBER = integer_within(0, INTEGER_MAX), {"type": "number"}
_PARAMETER = object_of()
for _ in range(4):                      # levels of nested lists and objects
    _PARAMETER = object_of(
        type=_KIND, enum={"type": "array"}, enumNames={"type": "array", "items": TEXT}, default={},
        format={"enum": [*TEXT_FORMS, "password", "seconds"]}, description=text_up_to(2000),
        items=_PARAMETER, prefixItems={"type": "array", "items": _PARAMETER}, propertyNames=_PARAMETER,
        properties={"type": "object", "additionalProperties": _PARAMETER},
        additionalProperties={**_PARAMETER, "type": ["boolean", "object"]},
        required={"type": "array", "items": TEXT}, unclear=text_up_to(200),
        **dict.fromkeys(BOUNDS, _NUMBER), minItems=_LENGTH, maxItems=_LENGTH,
        minLength=_LENGTH, maxLength=_LENGTH, pattern=text_up_to(2000), patternMessage=text_up_to(500))
# Patterns whose matching time is linear in the text's length. Only the remote worker checks other patterns.
_QUICK_PATTERNS = r"\(\?s\)\(\?!-\)\.\*|-\?\[0-9\]\{1,15\}|(?:[^\\.*+?()\[\]{}^$]|\\[^A-Za-z0-9])*"
_ANNOUNCED = object_of(
    ("name", "title", "description", "schema", "options", "who"),
    name=text_like("(?!(%s|%s)$)[^\\x00-\\x1f\\x7f-\\x9f]{1,200}" % (SCRIPT_FUNCTION, SAMPLE_FUNCTION),
               "must be a name that jobqueue does not use itself"),
    title=text_up_to(1000), description=text_up_to(20_000), who={"enum": list(WHO_MAY_ADD)},
    options=object_of(**OPTION_SCHEMAS), schema={
        **object_of(("properties", "required")), "properties": {
            "type": {"enum": ["object"]}, "properties": {"type": "object"},
            "required": {**_AT_MOST, "items": TEXT},
            "additionalProperties": {**_PARAMETER, "type": ["boolean", "object"]}}})


def _without_slow_patterns(schema: Any) -> Any:
    """Return an announced schema without the patterns that could take long to match."""
    if isinstance(schema, list):
        return list(map(_without_slow_patterns, schema))
    if not isinstance(schema, dict):
        return schema
    return {name: _without_slow_patterns(part) for name, part in schema.items()
            if name != "pattern" or not isinstance(part, str) or re.fullmatch(_QUICK_PATTERNS, part)}


class RemoteWorkers:
    """The site's side of the protocol at the top of this room. `token` is Person.token."""

    def __init__(self, database: Database, settings: Settings, claims: Claims, workers: Workers,
                 queues: Queues, files: Files) -> None:
        self._database, self._settings, self._clock = database, settings, database.clock
        self._claims, self._workers, self._queues, self._files = claims, workers, queues, files

    def hello(self, token: Token, call: JsonObject) -> JsonObject:
        """Make or renew a worker's row; return the limits and settings for it."""
        if call["protocol"] > REMOTE_PROTOCOL:
            raise field_error("protocol", "is %d, and this site speaks %d: its jobqueue.py is "
                              "older than this worker" % (call["protocol"], REMOTE_PROTOCOL))
        allowed = token.get("functions")
        errors: list[FieldError] = []
        functions = [function for function in call["functions"] if not function.pop("external", False)
                     and (allowed is None or function.get("name") in allowed)]
        for function in functions:
            errors += check_value(_ANNOUNCED, function, "functions") or check_value(
                {"type": "array", "items": _PARAMETER}, list(function["schema"]["properties"].values()),
                function["name"])
        if errors:
            raise refusal("This worker cannot be used", errors)
        for function in functions:
            function["schema"] = _without_slow_patterns(function["schema"])
            function["options"] = {**TASK_DEFAULTS, **function["options"]}
        with self._database.transaction() as transaction:
            for function in functions:
                self._place(transaction, token, function)
            now, key, text = self._clock.now(), (call["session"], token["id"]), dump_json(functions)
            self._check_room(transaction, key, text)
            row = {"machine": call["machine"], "version": call["version"],
                   "pid": call.get("pid"), "functions": text, **self._lease(now)}
            if not transaction.update("worker", row, "lock=? AND token_id=?", key):
                if transaction.value("SELECT count(*) FROM worker WHERE token_id=?",
                                     key[1:]) >= REMOTE_MAX:
                    raise Conflict("This token has %d workers already." % REMOTE_MAX)
                worker_id = transaction.insert("worker", {
                    **row, "lock": key[0], "token_id": key[1], "mode": "remote", "state": "idle",
                    "sequence": 0, "started_at": now})
                record_activity(transaction, now, "worker_started", worker_id=worker_id,
                     machine=call["machine"])
        names = "runner_tasks", "runner_memory", "runner_per_owner"
        return {"protocol": REMOTE_PROTOCOL, "version": VERSION, "renew_seconds": RENEW_SECONDS,
                "lease_seconds": REMOTE_LEASE_SECONDS,
                "settings": {name: self._settings.get(name) for name in names}}

    @staticmethod
    def _check_room(transaction: Connection, key: tuple[str, int], text: str) -> None:
        """Raise Invalid if the announcements of a token's workers, with this one, would be too large."""
        other_length = transaction.value(
            "SELECT sum(length(functions)) FROM (SELECT DISTINCT functions FROM worker "
            "WHERE lock<>? AND token_id=? AND functions<>?) AS announced", (*key, text)) or 0
        if len(text) + other_length > ANNOUNCED_MAX:
            raise refusal("This worker cannot be used", wrong(
                "functions", "of one token's workers are longer than %d characters" % ANNOUNCED_MAX))

    def turn(self, token: Token, call: JsonObject) -> JsonObject:
        """Record a worker's reports; return the state of each reported attempt, and the claimed tasks.

        The reported outcomes are durable when this returns, so the worker may forget them.
        """
        starts, ended = call.get("start", []), {end["claim"]: end for end in call.get("end", ())}
        self._check_size(call)
        with self._database.transaction(bool(starts or ended)) as transaction:
            worker = self._check(transaction, token, call)
            now, held = self._clock.now(), self._held(transaction, token)
            states = {attempt["claim"]: self._hold(transaction, attempt, held.get(attempt["claim"]), now)
                      for attempt in starts + call.get("hold", [])}
            verdicts = self._end(transaction, ended.values(), held, now)
            for end, verdict in zip(ended.values(), verdicts):
                states[end["claim"]] = self._state(transaction, end, verdict)
            tasks = worker["tasks"] + sum(map(bool, verdicts))
            rows = self._claim(transaction, token, worker, call, now)
            busy = rows or "running" in states.values()
            transaction.update("worker", {
                "sequence": call["sequence"], "tasks": tasks, "state": "busy" if busy else "idle",
                **self._lease(now)}, "id=?", (worker["id"],))
            if "leave" in call:
                self._leave(transaction, worker["id"], call["leave"], tasks, now)
        for end, verdict in zip(ended.values(), verdicts):
            if verdict:
                self._files.tidy(end["id"], verdict)
        return {"attempts": states, "tasks": rows, "wait": 0}

    def _leave(self, transaction: Connection, worker_id: int, why: str, tasks: int,
               now: float) -> None:
        """Remove a worker's row. Its running tasks have crashed; unconfirmed ones become pending again."""
        self._workers.leave(transaction, worker_id, shorten(why, 99), tasks)
        for task in self._claims.leases.lost({worker_id}, now, transaction):
            if task["worker_id"] == worker_id:
                self._claims.end_lost(transaction, task, now)

    @staticmethod
    def _check_size(call: JsonObject) -> None:
        """Raise Invalid if a call names an attempt twice, or has so many pieces that it locks for long."""
        reports = [*call.get("hold", ()), *call.get("end", ())]
        claims = [attempt["claim"] for attempt in (*call.get("start", ()), *reports)]
        if len(claims) > len(set(claims)):
            raise field_error("claim", "is named twice in one call")
        if sum(len(report.get("log", ())) for report in reports) > PIECES_MAX:
            raise field_error("log", "must have at most %d pieces in one call" % PIECES_MAX)

    def claim_late(self, token: Token, call: JsonObject) -> list[JsonObject]:
        """Claim tasks that have become claimable since turn() found none; return them."""
        worker = self._check(self._database, token, call)
        reach = self._reach(token, worker, call["claim"]["claims"])
        if not self._claims.next_heads(self._database, self._clock.now(), reach=reach)[1]:
            return []
        with self._database.transaction(durable=False) as transaction:
            worker = self._check(transaction, token, call)
            return self._claim(transaction, token, worker, call, self._clock.now())

    def owner_of(self, token: Token, task_id: int, claim: str) -> int:
        """Return the owner's id of a running task; Conflict if none of the token's workers runs it."""
        row = self._held(self._database, token).get(claim)
        if row is None or row["id"] != task_id:
            raise Conflict(CLAIM_LOST, gone=True)
        return row["owner_id"]

    def announced(self, token: Token) -> list[str]:
        """Return the names of the functions that this token's workers announced."""
        return [function["name"] for row in self._database.all(
            "SELECT functions FROM worker WHERE token_id=?", (token["id"],))
            for function in json.loads(row["functions"] or "[]")]

    @staticmethod
    def _check(db: Reader, token: Token, call: JsonObject) -> WorkerRow:
        """Return the worker's row; Conflict if it is gone, or a later call was answered before this one."""
        row = db.one("SELECT * FROM worker WHERE lock=? AND token_id=?",
                     (call["session"], token["id"]))
        if row is None:
            raise Conflict("This site no longer knows this worker: send hello again.",
                           gone=True)
        if row["sequence"] > call["sequence"]:
            raise Conflict("A later call of this worker has been answered.", gone=False)
        return row

    def _lease(self, now: float) -> JsonObject:
        lease = self._claims.leases.new(now, REMOTE_LEASE_SECONDS)
        return {"boot": lease.pop("lease_boot"), "seen_at": now, **lease}

    def _place(self, transaction: Connection, token: Token, function: JsonObject) -> None:
        """Choose a queue for a function that the site does not have. Our own workers do not serve it."""
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
        names = [function["name"] for function in json.loads(worker["functions"])]
        return Reach(worker["machine"], names, token.get("queues"), claims)

    def _held(self, db: Reader, token: Token) -> dict[str, TaskRow]:
        """Return {claim: row} of the running tasks of this token's workers."""
        return {row["claim"].lstrip(UNCONFIRMED): row for row in db.all(
            "SELECT id, claim, owner_id, attempts, cancel_requested, worker_id FROM task %s "
            "WHERE status=RUNNING AND worker_id IN (SELECT id FROM worker WHERE token_id=?)" % BY_CLAIM,
            (token["id"],))}

    def _hold(self, transaction: Connection, attempt: JsonObject, task: TaskRow | None,
              now: float) -> str:
        """Renew a claim, and store the attempt's log and progress; return its state."""
        if task is None or task["id"] != attempt["id"]:
            return self._state(transaction, attempt, None)
        self._claims.renew(transaction, attempt["id"], attempt["claim"], now, REMOTE_LEASE_SECONDS,
                           attempt.get("samples"))
        self._keep(transaction, attempt, task, now)
        return "cancel" if task["cancel_requested"] else "running"

    def _keep(self, transaction: Connection, attempt: JsonObject, task: TaskRow, now: float) -> None:
        """Store the progress and the new pieces of an attempt's log. A repeated call changes nothing."""
        if "progress" in attempt or "message" in attempt:
            self._claims.report(transaction, attempt["id"], attempt["claim"], attempt.get("progress"),
                                storable(attempt.get("message") or "") or None)
        place = attempt["id"], task["attempts"]
        length = log_length(transaction, *place) if attempt.get("log") else 0
        for piece in attempt.get("log", ()):
            if piece["start"] >= length and piece["text"]:
                append_log(transaction, now, *place, piece["start"], storable(piece["text"]))
                length = piece["start"] + len(piece["text"].encode("utf-8", "surrogatepass"))

    def _end(self, transaction: Connection, ended: Iterable[JsonObject], held: dict[str, TaskRow],
             now: float) -> Sequence[Verdict | None]:
        """Record the ends of attempts; return a Verdict for each, or None for a lost claim."""
        endings: list[tuple[int, str, Outcome]] = []
        for attempt in ended:
            task, outcome, claim = held.get(attempt["claim"]), self._outcome(attempt["outcome"]), ""
            if task and task["id"] == attempt["id"]:
                self._keep(transaction, attempt, task, now)
                claim = task["claim"] if outcome.kind == "put_back" else attempt["claim"]
            endings.append((attempt["id"], claim, outcome))
        return self._claims.end_all(transaction, endings, now)

    @staticmethod
    def _outcome(sent: JsonObject) -> Outcome:
        """Return the outcome that a worker sent, or a failure if it cannot be stored."""
        try:
            return Outcome.parse(sent, OUTCOME_KINDS)
        except Invalid as error:
            return Outcome("fail", None, "StorageError", error.detail)

    @staticmethod
    def _state(transaction: Connection, attempt: JsonObject, verdict: Verdict | None) -> str:
        """Return the recorded state of an attempt that does not run: a status, or "lost"."""
        if verdict:
            return STATUS_WORDS[verdict.status]
        status = transaction.value("SELECT status FROM task WHERE id=? AND claim=?",
                                   (attempt["id"], attempt["claim"]))
        return STATUS_WORDS[status] if status in ENDED else "lost"

    def _claim(self, transaction: Connection, token: Token, worker: WorkerRow, call: JsonObject,
               now: float) -> list[JsonObject]:
        """Claim the tasks that a call asks for; return them. A repeated call gets the same tasks."""
        claim_request = call.get("claim")
        if not claim_request or not claim_request["claims"] or "leave" in call:
            return []
        rows = self._claimed(transaction, worker, claim_request["claims"])
        reach = self._reach(token, worker, claim_request["claims"])
        if not rows and reach.functions:
            self._claims.claim(transaction, worker["id"], now, len(reach.claims),
                               claim_request.get("function"), reach=reach)
            rows = self._claimed(transaction, worker, reach.claims)
        return rows

    @staticmethod
    def _claimed(transaction: Connection, worker: WorkerRow, claims: Sequence[str]) -> list[JsonObject]:
        """Return a worker's unconfirmed tasks with these claims, as the worker gets them."""
        names = [UNCONFIRMED + claim for claim in claims]
        rows = transaction.all(
            "SELECT task.id, function, arguments, attempts-put_backs AS attempt, crashes, timeout, "
            "on_crash, claim, user.name AS owner FROM task %s JOIN user ON user.id=owner_id "
            "WHERE status=RUNNING AND worker_id=? AND claim IN (%s) ORDER BY turn, task.id" % (
                BY_CLAIM, ", ".join("?" * len(names))), (worker["id"], *names))
        return [{**row, "claim": row["claim"][len(UNCONFIRMED):]} for row in rows]
