"""Handlers of schedules, figures, queues, people, remote workers.

The docstring of web/handlers_tasks.py describes a handler.
"""
from __future__ import annotations

import json
import os

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import INTEGER_MAX, PAGE_ROWS, PENDING
from ..base.errors import Busy, Denied, Malformed, NotFound, field_error
from ..base.time_and_text import YEAR_10000, iso, parse_moment, parse_time, shorten
from ..base.schedule_rules import parse_rule, preview
from ..base.values import TEXT, TEXT_OR_NULL, about, integer_within, object_of, or_null, titled
from ..store.connection import BUSY
from ..store.log_and_activity import find_activity
from ..tasks.files import BYTES_TYPE, FileSlice
from ..upkeep.schedule_rows import SCHEDULE_FIELDS, UPCOMING
from ..upkeep.rollup import DAY, STEPS, whole_steps
from ..upkeep.metrics import counter_families, exposition
from ..upkeep.alerts import MUTES, page_link
from ..access.people import TOKEN_SCOPES, check_password
from ..access.python_interface import JobQueue
from ..access.host import (canary_token, exposure, host_files, store_exposure,
                           private_addresses)
from ..access.findings import check_host, describe_service, next_step
from ..access.backup import save
from .http_answer import Answer, json_answer
from .http_request import Request, kept_within
from .handlers_tasks import (FILE_HEADERS, MOMENT, OWNER_FILTER, PAGE_FIELDS, due_at, owner_for,
                             session_answer, wanted_owner)

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .http_answer import Header

ASK_AGAIN_SECONDS = 3.0         # before the next call, if the server cannot wait for a task
WAIT_LOOK_SECONDS = 0.3
POINTS_MAX = 480


def get_schedules(queue: JobQueue, request: Request) -> JsonObject:
    """List the schedules that the user may see, oldest first."""
    queue.schedules.synchronise()
    limit, after = request.given.get("limit", PAGE_ROWS), request.given.get("cursor") or 0
    schedules = queue.schedules.find_with_recent(request.person.visible_owner_id, limit + 1, after)
    return {"schedules": schedules[:limit],
            "next": str(schedules[limit - 1]["id"]) if len(schedules) > limit else None,
            "ticks": queue.tick_history.state(), "service": describe_service(queue, request.is_by_admin)}


def post_schedules(queue: JobQueue, request: Request) -> JsonObject:
    """Make a schedule."""
    owner_id = owner_for(queue, request, {request.given.get("owner") or request.person.name})
    schedule_id = queue.schedules.add(request.given, owner_id, request.person.answerable)
    return queue.schedules.get(schedule_id, request.person.visible_owner_id)


PREVIEW = titled("PreviewRequest", object_of(("rule",), **{
    "rule": SCHEDULE_FIELDS["rule"], "zone": SCHEDULE_FIELDS["zone"], "count": integer_within(1, 50),
    "from": about({"type": ["string", "null"], "format": "date-time"}, "instead of now")}))


def preview_rule(fields: JsonObject, now: float) -> JsonObject:
    """Describe a rule in English, with its next times from `now` on."""
    at = parse_time(fields["from"], "from") if fields.get("from") else now
    rule = parse_rule(fields["rule"], fields.get("zone", "UTC"), at)
    return {"rule": rule.text, "zone": rule.zone, "words": rule.words(),
            "times": preview(rule, at, int(fields.get("count", UPCOMING)))}


def patch_schedule(queue: JobQueue, request: Request, schedule_id: int) -> JsonObject:
    """Change, pause or resume a schedule."""
    name = request.given.get("owner")
    queue.schedules.change(schedule_id, request.given, request.person.visible_owner_id,
                           request.person.answerable, name and owner_for(queue, request, {name}))
    return queue.schedules.get(schedule_id, request.person.visible_owner_id)


WHICH_FIGURES = object_of(**{
    "from": about(MOMENT, "a day before `to` if left out"),
    "to": about(MOMENT, "now if left out"),
    "step": about(or_null({"enum": list(STEPS)}), "what one point is of"),
    "function": TEXT_OR_NULL, "queue": TEXT_OR_NULL,
    "owner": about(TEXT_OR_NULL, "counts only this user's tasks; for users only their own name")})


def get_exposition(queue: JobQueue, _: Request) -> Answer:
    """Send counters and gauges for Prometheus, to a token of the scope metrics."""
    now, states = queue.database.clock.now(), [row["state"] for row in queue.workers.rows()]
    due = map(due_at, queue.tasks.firsts(PENDING))
    text = exposition([
        *counter_families(queue.metrics.all_time()),
        ("queue_pending", "gauge", "Tasks that may start now.", [
            ("", {"queue": row["name"]},
             queue.queues.count(queue.database, PENDING, row["name"], INTEGER_MAX))
            for row in queue.queues.all(queue.claims.machine)]),
        ("oldest_pending_seconds", "gauge", "Waiting time of the oldest of them.", [
            ("", {}, max(0.0, now - min(due, default=now)))]),
        ("workers", "gauge", "Worker processes.", [
            ("", {"state": state}, states.count(state))
            for state in ("starting", "idle", "busy", "stopping")])])
    return Answer(200, text.encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")


def get_metrics(queue: JobQueue, request: Request) -> JsonObject:
    """Count tasks and measure their times, in steps from an hour to a week.

    Without an owner, users see the figures of the functions that they may add, including other users' tasks.
    """
    fields, person = request.given, request.person
    end = parse_time(fields["to"], "to") if fields.get("to") else queue.database.clock.now()
    start = parse_time(fields["from"], "from") if fields.get("from") else end - DAY
    step = fields.get("step") or "hour"
    start, end = whole_steps(start, end, step)
    if not 0 < (end - start) / STEPS[step] <= POINTS_MAX or end >= YEAR_10000:
        raise Malformed("There must be 1 to %d steps between from and to." % POINTS_MAX)
    owner_id = wanted_owner(queue, request, fields, person.visible_owner_id) if fields.get("owner") else None
    own = None if person.visible_owner_id is None or owner_id is not None else {
        each["name"] for each in queue.catalogue.functions() if each["who"] == "user"}

    def wants(function: str, lane: str) -> bool:
        return ((own is None or function in own) and fields.get("queue", lane) == lane
                and fields.get("function", function) == function)
    return queue.metrics.read(start, end, step, wants, person.visible_owner_id, owner_id)


LISTED_ACTIVITY = object_of(
    task=about(kept_within(0, INTEGER_MAX), "only what happened to this task"),
    since=MOMENT, until=about(MOMENT, "before this moment"),
    event=about(TEXT_OR_NULL, "such as failed or logged_in"),
    worker=about(kept_within(0, INTEGER_MAX), "a worker's number"), function=TEXT_OR_NULL,
    owner=OWNER_FILTER, **PAGE_FIELDS)


def get_activity(queue: JobQueue, request: Request) -> JsonObject:
    """List the activity, newest first. A page may be short or empty although older events follow."""
    fields, person = request.given, request.person
    since, until = (fields.get(name) and parse_moment(fields[name]).timestamp()
                    for name in ("since", "until"))
    if fields.get("task") is not None:
        try:
            queue.tasks.get(fields["task"], person.visible_owner_id)
        except NotFound:
            queue.tasks.removed(fields["task"], person.visible_owner_id)
    rows, before = find_activity(
        queue.database, fields.get("limit", PAGE_ROWS), fields.get("cursor"), since, until,
        person.visible_account_id if person.visible_owner_id is None else None, task_id=fields.get("task"),
        worker_id=fields.get("worker"), event=fields.get("event"), function=fields.get("function"),
        owner_id=wanted_owner(queue, request, fields, person.visible_owner_id))
    same = ("id", "event", "attempt", "function", "queue", "waited", "seconds", "cpu_seconds",
            "peak_memory", "actor")

    def message(row: Row) -> str | None:
        # The text after the colon is the last output of a worker, which only admins may see.
        is_open = person.is_admin or row["event"] not in ("worker_lost", "worker_start_failed")
        return row["message"] if is_open else (row["message"] or "").partition(": ")[0]
    return {"next": before and str(before), "activity": [
        {**{name: row[name] for name in same}, "message": message(row), "at": iso(row["at"]),
         "task": row["task_id"], "worker": row["worker_id"], "owner": row["owner"]} for row in rows]}


def get_workers(queue: JobQueue, request: Request) -> JsonObject:
    """List the worker processes. Their tasks are shown to people who may see them."""
    def shown(row: Row) -> JsonObject:
        hidden = request.person.visible_owner_id not in (None, row["owner_id"])
        names = ("id", "machine", "pid", "state", "mode", "version", "tasks")
        return {**{name: row[name] for name in names},
                "functions": [each["name"] for each in json.loads(row["functions"] or "[]")
                              if request.person.is_admin or each["who"] == "user"],
                "started_at": iso(row["started_at"]), "seen_at": iso(row["seen_at"]),
                "task": None if hidden else row["task_id"],
                "function": None if hidden else row["function"]}
    return {"workers": [shown(row) for row in queue.workers.rows()],
            "maximum": queue.settings.get("NbMaxWorker"),
            "service": describe_service(queue, request.is_by_admin)}


def get_queue(queue: JobQueue, _: Request, name: str) -> JsonObject:
    """Send one queue."""
    return queue.forecast.of_queue(queue.queues.get(name, queue.claims.machine))


def get_queues(queue: JobQueue, request: Request) -> JsonObject:
    """List all queues with their limits and their tasks."""
    queues, machine = queue.queues, queue.claims.machine
    firsts = sorted(queue.tasks.firsts(PENDING), key=due_at, reverse=True)
    oldest = {row["queue"]: iso(due_at(row)) for row in firsts}    # the last, oldest row of each queue stays
    return {"queues": [{**queue.forecast.of_queue(row), "oldest_at": oldest.get(row["name"])}
                       for row in queues.all(machine)],
            "machines": sorted({machine, *queues.machines()}),
            "service": describe_service(queue, request.is_by_admin)}


def post_queues(queue: JobQueue, request: Request) -> JsonObject:
    """Make a queue."""
    return patch_queue(queue, request, request.given["name"], new=True)


def patch_queue(queue: JobQueue, request: Request, name: str, new: bool = False) -> JsonObject:
    """Change a queue's limits, pause or resume it."""
    queue.queues.change(name, request.given, request.person.name, new)
    return get_queue(queue, request, name)


def get_host(queue: JobQueue, request: Request) -> JsonObject:
    """Check this host, as `check` does."""
    folder, visit = queue.database.folder, request.visit()
    report, visible = check_host(queue, visit), exposure(queue)
    return {
        "checks": [check._asdict() for check in report.checks], "advice": next_step(report),
        "files": host_files(queue, visit), "mode": dict(zip(("mode", "why"), queue.modes.decide())),
        "ticks": queue.tick_history.state(), "canary": {
            "token": canary_token(folder), "addresses": private_addresses(folder, *request.places)},
        "exposed": visible["exposed"], "looked_at": iso(visible["at"])}


def get_backup(queue: JobQueue, _: Request) -> Answer:
    """Download a checked copy of the database, or on PostgreSQL an export."""
    path = save(queue, queue.database.folder, "download")
    try:
        file = open(path, "rb", buffering=0)
    except FileNotFoundError:           # another request took the file
        raise Busy(BUSY) from None
    path.unlink(missing_ok=True)
    name = "backup-%s%s" % (iso(queue.database.clock.now())[:10], path.suffix)
    return Answer(200, FileSlice(file, os.fstat(file.fileno()).st_size), BYTES_TYPE, [
        *FILE_HEADERS, ("Content-Disposition", "attachment; filename=" + name)], None)


EXPOSURE = titled("Exposure", object_of(("exposed",), exposed={"type": "array", "items": TEXT}))


def post_exposure(queue: JobQueue, request: Request) -> None:
    """Store which of the addresses in GET /api/host an admin's browser could fetch."""
    addresses = private_addresses(queue.database.folder, *request.places)
    exposed = request.given["exposed"]
    if not set(exposed) <= set(addresses):
        raise field_error("exposed", "must be some of %s" % ", ".join(addresses))
    store_exposure(queue, list(dict.fromkeys(exposed)))


def get_settings(queue: JobQueue, _: Request) -> dict[str, list[JsonObject]]:
    """List all settings with their bounds and the source of each value."""
    return {"settings": queue.settings.describe()}


def patch_settings(queue: JobQueue, request: Request) -> dict[str, list[JsonObject]]:
    """Change settings; null restores the default."""
    if request.given.get("https") == "always" and "https" in request.doubtful_settings():
        raise field_error("https", "would lock you out: open this page by https:// first")
    queue.settings.change(request.given, request.person.name,
                          on_host=request.person.answerable is None)
    return get_settings(queue, request)


def _confirm_admin(queue: JobQueue, request: Request, password: str | None) -> None:
    """Check the password of an admin in a session: the new rights or password of an admin outlive it."""
    if not request.bearer() and request.person.answerable is not None:
        queue.users.confirm(request.person, password, "current_password")


def post_users(queue: JobQueue, request: Request) -> JsonObject:
    """Make a user."""
    fields = dict(request.given)
    password = fields.pop("current_password", None)
    if fields.get("role") == "admin":
        _confirm_admin(queue, request, password)
    return queue.users.add(**fields, by=request.person.name)


def post_invitations(queue: JobQueue, request: Request) -> JsonObject:
    """Make an invitation: a link with which a new user chooses a name and a password, once within a day."""
    fields, person = request.given, request.person
    role = fields.get("role", "user")
    if role == "admin":
        _confirm_admin(queue, request, fields.get("current_password"))
    invitation = queue.invitations.add(person.id if person.answerable else None, role, person.name)
    link = page_link(queue.settings, "#invite=" + invitation["code"])
    return {**invitation, "link": link or None}


def post_acceptance(queue: JobQueue, request: Request) -> Answer:
    """Make the user whom an invitation is for, and log in."""
    row = queue.invitations.accept(**request.given, address=request.address)
    return session_answer(queue, request, queue.sessions.open(row, request.address), 201)


def patch_user(queue: JobQueue, request: Request, name: str) -> Answer | JsonObject:
    """Change a user: admins change any user, other users their own password.

    Users may also remove their own mail address, and choose when they get a summary. A changed password
    ends all sessions of the user. After a change of their own password the user gets a new session.
    """
    users, person, fields = queue.users, request.person, dict(request.given)
    user, current = users.find(name), fields.pop("current_password", None)
    own = user["name"] == person.name
    if not own and not person.is_admin:
        raise NotFound("There is no user %s." % shorten(name, 60))
    if own and fields and set(fields) <= {"email", "summary"} and fields.get("email") is None:
        return users.change(person.name, by=person.name, **fields)
    if not own or ("password" not in fields and person.is_admin):
        if "password" in fields if user["role"] == "admin" else fields.get("role") == "admin":
            _confirm_admin(queue, request, current)
        return users.change(name, by=person.name, **fields)
    if set(fields) - {"password"}:
        raise Denied("Only admins may change roles, limits and addresses and disable users.")
    check_password(fields.get("password") or "", person.name)
    confirmed = users.confirm(person, current, "current_password")
    headers: list[Header] = []
    changed = users.change(person.name, confirmed, person.name, password=fields["password"])
    if request.cookies():
        token = queue.sessions.open(users.find(person.name), request.address)
        headers = [request.set_cookie(token)]
    return json_answer(changed, headers=headers)


MUTE = titled("Mute", object_of(("how",), how=about({"enum": list(MUTES)}, "for how long")))


def post_tokens(queue: JobQueue, request: Request) -> JsonObject:
    """Make an API token, which is shown once. A session must send the password: the token outlives it."""
    fields, person, scope = request.given, request.person, request.given.get("scope", "user")
    is_known = request.bearer() or person.answerable is None
    limits = {name: fields[name] for name in ("queues", "functions") if fields.get(name)}
    if person.role not in TOKEN_SCOPES[scope]:
        raise Denied("Such a token may only be made by: %s." % ", ".join(TOKEN_SCOPES[scope]))
    if limits and scope != "worker":
        raise field_error(*limits.popitem()[:1], "is for tokens of the scope worker")
    confirmed = None if is_known else queue.users.confirm(person, fields.get("password"))
    return queue.tokens.add(person.id, fields["name"], scope, confirmed, limits, person.name)


class _Waited(NamedTuple):
    """The claimed tasks, and the seconds after which the worker asks again."""

    tasks: list[JsonObject]
    again: float


def _wait_for_work(queue: JobQueue, request: Request) -> _Waited:
    """Wait for tasks, as long as the worker's call and this server allow."""
    wait, clock = request.given["claim"].get("wait"), queue.database.clock
    tasks: list[JsonObject] = []
    if not (request.pause and wait and request.app.waiting.acquire(blocking=False)):
        return _Waited([], ASK_AGAIN_SECONDS)
    try:
        until = clock.monotonic() + wait
        while not tasks and clock.monotonic() < until:
            with queue.database.deadline_paused():
                is_heard = request.pause(WAIT_LOOK_SECONDS)
            if not is_heard:
                break
            tasks = queue.remote.claim_late(request.token, request.given)
        return _Waited(tasks, 0)
    finally:
        request.app.waiting.release()


def post_worker_turn(queue: JobQueue, request: Request) -> JsonObject:
    """Report a remote worker's attempts, and claim tasks. Each part is answered on its own."""
    answer = queue.remote.turn(request.token, request.given)
    if request.given.get("claim") and not answer["tasks"] and "leave" not in request.given:
        answer["tasks"], answer["wait"] = _wait_for_work(queue, request)
    return answer


def post_worker_tasks(queue: JobQueue, request: Request, task_id: int) -> JsonObject:
    """Add the tasks that a running task sends, one on each line, for the same owner.

    The Idempotency-Key begins with the task's claim and a minus. With a token for certain functions or
    queues, it may add only the functions of that token's workers, and those that any user may add.
    """
    claim = (request.header("Idempotency-Key") or "").partition("-")[0]
    owner_id = queue.remote.owner_of(request.token, task_id, claim)
    bound: list[str] | None = request.token.get("functions")
    if bound is None and request.token.get("queues"):
        bound = queue.remote.announced(request.token)
    barred = set() if bound is None else {
        each["name"] for each in queue.catalogue.functions()
        if each["who"] != "user" and each["name"] not in bound}
    words = "is not allowed: this token is bound to %s" % ", ".join(bound or ())
    with queue.database.deadline_paused():
        orders = queue.requests.check(
            field_error("function", words)
            if isinstance(line, dict) and line.get("function") in barred else line
            for line in request.lines())
    return queue.add_orders(orders, owner_id, request.idempotency_record(), adding_task_id=task_id)


def post_worker_file(queue: JobQueue, request: Request, task_id: int) -> JsonObject:
    """Store a file that a running task leaves. It replaces a file of the same name."""
    sent = request.upload(queue.settings.get("max_files_mb") << 20 or INTEGER_MAX)
    owner_id: int = queue.tasks.get(task_id)["owner_id"]
    claim = request.bearer() or ""
    return queue.files.receive(
        owner_id, request.given["name"], *sent, task_id,
        is_held=lambda db: queue.claims.asked_with(db, task_id, claim) is not None)
