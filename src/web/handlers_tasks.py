"""Handlers of pages, tasks, files and logs: one function per route.

A handler does the part of a request that a row of ROUTES cannot describe. It gets (queue, request, *parts
of the path). It returns an Answer, a JSON object, or None for an empty body. An object or None is sent with
the status of the row. The docstring of a handler is its description in /openapi.json.
"""
from __future__ import annotations

import contextlib
import io
import itertools
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import (HOME, INTEGER_MAX, PAGE_ROWS, PENDING, RUNNING, SCHEDULED, SLICE_SECONDS,
                           STATUS_WORDS, VERSION, WORKER_FILE)
from ..base.errors import (Conflict, Denied, Invalid, Malformed, NotFound, SetupError, field_error,
                           wrong)
from ..base.time_and_text import dump_json, iso, parse_time, shorten
from ..base.values import (TEXT, TEXT_OR_NULL, about, integer_within, number_within, object_of,
                           or_null, titled)
from ..store.log_and_activity import LOG_MAX_BYTES, logged_attempts, read_log
from ..tasks.files import BYTES_TYPE, FileSlice
from ..tasks.task_list import (FIELDS, FIELDS_ROW, LIST_ROW, NEWEST, OLDEST, RUNNING_MAX, SORTS,
                               SORT_ROWS, Filter, TaskList)
from ..tasks.actions import ACTIONS
from ..upkeep.rollup import DAY
from ..upkeep.notifications import can_send_mail
from ..access.people import Person, wrong_log_in
from ..access.requests import REQUEST_SCHEMA
from ..access.python_interface import JobQueue
from ..access.host import exposure
from ..access.findings import describe_service
from .http_answer import LINES_TYPE, Answer, conceal, json_answer
from .http_request import Request, kept_within

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Row, Schema

SLICE_PAGE_SECONDS = 5.0        # how long one request of the page works: other requests may wait
PAGE_ROWS_MAX = 200


def get_page(queue: JobQueue, request: Request) -> Answer:
    """Send the page, always at an address that ends with a slash."""
    if request.lacks_slash:
        return Answer(308, headers=[("Location", request.base)])
    return request.app.static.answer("index.html")


def tick(queue: JobQueue, request: Request) -> Answer:
    """Do the maintenance, and run some tasks where no worker can stay: for cron and open pages."""
    ticked = queue.tick.maybe(request.app.source if request.asker else "address")
    worked = queue.starter.work_slice(SLICE_PAGE_SECONDS if request.asker else SLICE_SECONDS)
    answer = {"ticked": ticked, "worked": worked, "service": describe_service(queue, request.is_by_admin)}
    return Answer(200, dump_json(answer).encode("utf-8"), keep=None)


def get_health(queue: JobQueue, _: Request) -> JsonObject:
    """Check that the process answers, its program is in place, and the database can be read."""
    database = queue.database
    database.check_file()
    if not WORKER_FILE.exists():
        raise SetupError("The folder of the program, %s, is gone: restart it from where it is now." % HOME)
    return {"status": "ok", "version": VERSION, "schema": database.value(database.version_words)}


def session_json(queue: JobQueue, person: Person) -> JsonObject:
    """Return a session as the API shows it."""
    visible = exposure(queue) if person.is_admin else {"exposed": None, "at": None}
    user = queue.users.describe(person.name)
    return {"user": {name: user[name] for name in ("name", "role", "email", "summary")},
            "mail": can_send_mail(queue.settings), "version": VERSION,
            "data": str(queue.database.folder) if person.is_admin else None,
            "expires_at": iso(person.expires_at), "exposed": visible["exposed"] or [],
            "looked_at": iso(visible["at"]), "max_file_mb": queue.settings.get("max_file_mb")}


def session_answer(queue: JobQueue, request: Request, token: str, status: int) -> Answer:
    """Return the Answer with the session of a token, and its cookie."""
    person = queue.sessions.person(token)
    if person is None:                  # the user was disabled a moment ago
        raise wrong_log_in()
    return json_answer(session_json(queue, person), status, [request.set_cookie(token)])


def post_setup(queue: JobQueue, request: Request) -> Answer:
    """Make the first admin, or give an admin a new password, and log in.

    Needs the code of a setup-code file. 404 if there is an admin and no such file.
    """
    row = queue.setup.redeem(**request.given, address=request.address, doubtful=request.doubtful_settings())
    return session_answer(queue, request, queue.sessions.open(row, request.address), 201)


def delete_session(queue: JobQueue, request: Request) -> Answer:
    """Log out."""
    for token in request.cookies():
        queue.sessions.close(token)
    # An answer that a browser keeps for a conditional request must not outlive the session: ASVS 14.3.1.
    return Answer(204, headers=[request.set_cookie("", 0), ("Clear-Site-Data", '"cache"')])


def owner_for(queue: JobQueue, request: Request, names: set[str]) -> int:
    """Return the id of the owner of added tasks: the caller, or the owner that an admin names."""
    if names <= {request.person.name}:
        return request.person.id
    if not request.person.is_admin:
        raise field_error("owner", "can be chosen by admins only")
    if len(names) > 1:
        raise field_error("owner", "must be the same for all tasks of one request")
    try:
        owner_id: int = queue.users.find(names.pop())["id"]
    except NotFound:
        raise field_error("owner", "is no user") from None
    return owner_id


# One task, an array of tasks, or JSON lines, each a task. Tasks are checked while the body is read, also
# against the schemas of their functions.
NEW_TASKS = {"anyOf": [REQUEST_SCHEMA, {"type": "array", "minItems": 1, "items": REQUEST_SCHEMA}]}


def _add_once(queue: JobQueue, request: Request,
              requests: Iterator[JsonObject | Invalid]) -> JsonObject:
    """Add these tasks, unless a request with the same Idempotency-Key added them before."""
    person = request.person
    try:
        with queue.database.deadline_paused():    # reading the body may take long
            orders = queue.requests.check(requests, person.answerable)
        if not orders:
            raise Malformed("There is no task in the body.")
        owner_id = owner_for(queue, request, {order.owner or person.name for order in orders})
        return queue.add_orders(orders, owner_id, request.idempotency_record())
    except Invalid:                     # a repeated request may be invalid now
        for _ in requests:                 # only the whole body shows whether it is repeated
            pass
        record = request.idempotency_record()
        answer = record and record.find(queue.database, queue.database.clock.now())
        if not answer:
            raise
        return answer


def post_tasks(queue: JobQueue, request: Request) -> Answer | JsonObject:
    """Add one task, an array of tasks, or a task for each line."""
    if request.content_type == LINES_TYPE:
        return _add_once(queue, request, request.lines())
    body = request.json()
    many = body if isinstance(body, list) else [body]
    if not all(isinstance(item, dict) for item in many):
        raise Malformed("The body must be a task or a list of tasks, each a JSON object.")
    added = _add_once(queue, request, iter(many))
    if many is body:
        return added
    task_id, shown = added["ids"][0], added
    with contextlib.suppress(NotFound):     # the task has ended and was removed: send its id only
        shown = conceal(queue.get_json(task_id, owner_id=request.person.visible_owner_id), request.person)
    return json_answer(shown, 201 if added["created"] else 200,
                       [("Location", "%sapi/tasks/%d" % (request.base, task_id))])


def wanted_owner(queue: JobQueue, request: Request, fields: JsonObject,
                 scope: int | None) -> int | None:
    """Return the id of the owner in a query, or `scope`; Denied for another person's tasks."""
    name = fields.get("owner")
    if not name:
        return scope
    if scope is not None and name != request.person.name:
        raise Denied("Only admins see other people's tasks.")
    return queue.users.find(name)["id"]


# The columns of a task in a CSV file.
CSV_COLUMNS = ("id owner function queue status reason priority attempts created_at run_at "
               "started_at finished_at error arguments result").split()


# The places where a ' is inserted, since a spreadsheet would read a formula there. They are at the beginning
# of a cell, and after the cell separators of other countries.
FORMULA = re.compile(r"\A(?=[\t\r\n])|(\A|[;\t])(?=[-=+@\uff0d\uff1d\uff0b\uff20])")


def _csv(rows: Iterable[JsonObject]) -> str:
    import csv
    text = io.StringIO()
    for row in rows:
        row["error"] = row["error"] and ": ".join(filter(None, row["error"].values()))
        cells = [dump_json(cell) if isinstance(cell, (bool, dict, list)) else cell
                 for cell in map(row.get, CSV_COLUMNS)]
        csv.writer(text).writerow(
            FORMULA.sub(lambda match: match[0] + "'", cell) if isinstance(cell, str) else cell
            for cell in cells)
    return text.getvalue()


EXPORTING = threading.Lock()


def in_turns(pieces: Iterator[str]) -> Generator[bytes, None, None]:
    """Yield the pieces of an exported file, in turns with other exports.

    So several exports slow down other requests no more than one does.
    """
    while True:
        with EXPORTING:
            piece = next(pieces, None)
        if piece is None:
            return
        if piece:
            yield piece.encode("utf-8")


class Export(NamedTuple):
    """A format of exported tasks: its media type, its first text, and the function that writes tasks."""

    kind: str
    first: str
    text: Callable[[Iterable[JsonObject]], str]


EXPORTS = {                             # \ufeff tells spreadsheets that the file is UTF-8
    "csv": Export("text/csv; charset=utf-8", "\ufeff%s\r\n" % ",".join(CSV_COLUMNS), _csv),
    "ndjson": Export(LINES_TYPE, "", lambda rows: "".join(dump_json(row) + "\n" for row in rows))}
PAGE_FIELDS = {"limit": about(kept_within(1, PAGE_ROWS_MAX), "kept within 1 and %d" % PAGE_ROWS_MAX),
         "cursor": about(kept_within(0, INTEGER_MAX), "the value next of the page before")}
OWNER_FILTER = about(TEXT_OR_NULL, "a name; for users only their own")
MOMENT: Schema = {"type": "string", "format": "date-time"}
WHICH_TASKS: dict[str, Schema] = {
    "status": about(
        {"type": ["string", "null"], "pattern": "(({0})(,({0}))*)?".format("|".join(STATUS_WORDS)),
         "patternMessage": "must be one of %s" % ", ".join(STATUS_WORDS)},
        "any of these, such as failed,cancelled"),
    "function": TEXT_OR_NULL, "queue": TEXT_OR_NULL,
    "q": about({"type": ["string", "null"], "maxLength": 200},
               "number, or part of function, message, error, owner, arguments"),
    "error": about(TEXT_OR_NULL, "the kind of error, such as ValueError, or the reason, such as timeout"),
    "ended_since": about(MOMENT, "ended then or later"),
    "since": about(MOMENT, "added then or later"), "until": about(MOMENT, "added before"),
    "ids": about({"type": ["string", "null"], "pattern": "([0-9]{1,15}(,[0-9]{1,15}){0,199})?",
                  "patternMessage": "must be numbers with commas"}, "any of these"),
    "owner": OWNER_FILTER}
# Further parts of the answer with a list, each if the query has its name with the value 1.
ALSO: dict[str, Callable[[TaskList, Filter], Any]] = {
    "counts": lambda tasks, task_filter: tasks.count(task_filter),
    "failed": lambda tasks, task_filter: tasks.failures(task_filter),
    "running": lambda tasks, task_filter: tasks.list_json(
        tasks.find(task_filter.within([RUNNING]), RUNNING_MAX)[0])}
LISTED_TASKS = object_of(
    **WHICH_TASKS, **PAGE_FIELDS, **{name: about(TEXT, "1: told as well") for name in (*ALSO, "held")},
    sort=about(or_null({"enum": [sign + name for name in (OLDEST, *SORTS) for sign in ("-", "")]}),
               "-: descending. Except by id, only the newest %d are sorted; by times, the newest %d that "
               "have started" % (SORT_ROWS, SORT_ROWS)),
    fields=about(or_null({"enum": [*FIELDS, ",".join(FIELDS)]}), "further fields of each task, if short"),
    format=about(or_null({"enum": list(EXPORTS)}), "all matching tasks, as a file"))


def _wanted(queue: JobQueue, request: Request, fields: JsonObject) -> Filter:
    """Return the Filter of a query, or of the object of an action."""
    def text(name: str) -> str | None:
        return fields.get(name) or None

    def moment(name: str) -> float | None:
        return parse_time(fields[name], name) if fields.get(name) else None
    words, ids = fields.get("status"), fields.get("ids")
    return Filter(wanted_owner(queue, request, fields, request.person.visible_owner_id),
                  sorted(set(map(STATUS_WORDS.index, words.split(",")))) if words else None,
                  text("function"), text("queue"), text("q"), text("error"),
                  moment("ended_since"), moment("since"), moment("until"),
                  list(map(int, ids.split(","))) if ids else None, request.person.searches_as)


def get_tasks(queue: JobQueue, request: Request) -> Answer | JsonObject:
    """List a page of tasks, newest first; or send a file of all that match."""
    query, tasks = request.given, queue.tasks
    task_filter, sort = _wanted(queue, request, query), query.get("sort") or NEWEST
    if query.get("format"):
        if sort not in (NEWEST, OLDEST):
            raise field_error("sort", "must be %s or %s in a file" % (NEWEST, OLDEST))
        export = EXPORTS[query["format"]]
        pieces = itertools.chain([export.first], map(export.text, tasks.pages(task_filter, sort)))
        return Answer(200, in_turns(pieces), export.kind, [(
            "Content-Disposition", 'attachment; filename="tasks.%(format)s"' % query)], keep=None)
    fields = query["fields"].split(",") if query.get("fields") else ()
    rows, going_on = tasks.find(task_filter, query.get("limit", PAGE_ROWS), query.get("cursor"), sort,
                                FIELDS_ROW if fields else LIST_ROW)
    return {"tasks": queue.forecast.of_list(tasks.list_json(rows, fields)),
            "next": going_on and str(going_on), "service": describe_service(queue, request.is_by_admin),
            **({"held": held_queues(queue, request, {
                *(row["queue"] for row in rows if row["status"] == PENDING),
                *([task_filter.queue] if task_filter.queue else ())})} if query.get("held") == "1" else {}),
            **{name: tell(tasks, task_filter) for name, tell in ALSO.items() if query.get(name) == "1"}}


def due_at(row: Row) -> float:
    """Return the time from which on a pending task may start."""
    return max(row["created_at"], row["run_at"] or 0)


def held_queues(queue: JobQueue, request: Request, names: Iterable[str]) -> list[JsonObject]:
    """Return {"queue", "code", "text"} for each of these queues that starts nothing now for this person."""
    blocked = {name: queue.queues.blocked(name, queue.claims.machine, request.person.visible_owner_id)
               for name in sorted(names)}
    return [{"queue": name, "code": why.code, "text": why.words}
            for name, why in blocked.items() if why.words]


WHOSE = object_of(owner=OWNER_FILTER)
SUMMARIZED = object_of(owner=OWNER_FILTER, zone=about(TEXT, "the time zone of the days; UTC if left out"))


def get_summary(queue: JobQueue, request: Request) -> JsonObject:
    """Sum up yesterday and last week in a sentence each: the user's own tasks, or all for an admin."""
    fields = request.given
    return queue.summaries.sentences(
        fields.get("zone") or "UTC", queue.database.clock.now(),
        wanted_owner(queue, request, fields, request.person.visible_owner_id))


def get_overview(queue: JobQueue, request: Request) -> JsonObject:
    """Show running, pending, recently failed and next tasks: the user's own, or all for an admin."""
    scope = wanted_owner(queue, request, request.given, request.person.visible_owner_id)
    now = queue.database.clock.now()
    firsts = queue.tasks.firsts(PENDING, scope)
    oldest = min(firsts, key=due_at, default=None)
    states = [row["state"] for row in queue.workers.rows() if row["mode"] != "remote"]
    return {
        **{name: ALSO[name](queue.tasks, Filter(scope)) for name in ("running", "counts")},
        "oldest": oldest and {"id": oldest["id"], "function": oldest["function"],
                              "queue": oldest["queue"], "since": iso(due_at(oldest))},
        "held": held_queues(queue, request, {row["queue"] for row in firsts}),
        "next_at": iso(min((row["run_at"] for row in queue.tasks.firsts(SCHEDULED, scope)),
                           default=None)),
        "failed": {"since": iso(now - DAY), **queue.tasks.failures(Filter(scope, ended_since=now - DAY))},
        "schedules": queue.schedules.coming(scope, now + DAY),
        "workers": {"alive": len(states), "busy": states.count("busy"),
                    "maximum": queue.settings.get("NbMaxWorker")},
        "service": describe_service(queue, request.is_by_admin)}


def get_task(queue: JobQueue, request: Request, task_id: int) -> Answer:
    """Send one task."""
    with request.app.one_by_one:        # a large result needs much memory
        row = queue.tasks.get(task_id, request.person.visible_owner_id)
        before, behind = queue.tasks.neighbours(row, request.person.visible_owner_id)
        shown = conceal(queue.row_json(row), request.person)
        return json_answer({**shown, "forecast": queue.forecast.of_task(row),
                            "previous": before, "next": behind})


WOULD_BE = object_of(("function",), function=TEXT, queue=about(TEXT_OR_NULL, "else the function's"),
                   priority=about(kept_within(-100, 100), "else the function's"))


def get_forecast(queue: JobQueue, request: Request) -> JsonObject:
    """Predict when a task would begin and end if it were added now."""
    fields, person = request.given, request.person
    function = queue.requests.function(fields["function"], person)
    options = {**function["options"], **{name: fields[name] for name in fields if name != "function"}}
    queue.queues.get(options["queue"], queue.claims.machine)
    return queue.forecast.of_new(person.id, function["name"], options)


ACTION = titled("Action", object_of(
    ("action",),
    action={"enum": list(ACTIONS)},
    ids={"type": "array", "items": integer_within(1, INTEGER_MAX), "maxItems": 1000},
    filter=about(object_of(**WHICH_TASKS), "as in the query of a list; instead of ids"),
    expected_count=about(number_within(0, INTEGER_MAX, ["integer", "null"]),
                         "with a filter, in the first request: the confirmed maximum; null: 409 returns "
                         "the count"),
    **{"continue": {"type": "string", "pattern": "[0-9]{1,15}-[0-9]{1,15}",
                    "patternMessage": "must be the value of the answer before"}}))
COUNT_SECONDS = 5.0             # how long the tasks that match a filter are counted
ACTION_SECONDS = 3.0            # how long one request changes tasks; the next continues


def _act_on_filter(queue: JobQueue, request: Request, body: JsonObject) -> JsonObject:
    """Do an action to the tasks that match a filter, as far as the time allows.

    1. The first request counts the tasks. It is refused without expected_count, or if more tasks match.
    2. Tasks are changed in the order of their ids. The newest id of the first request is the bound.
    3. `continue` has the last id that was reached, and the bound. The next request begins after that id.
    """
    action, task_filter = body["action"], _wanted(queue, request, body["filter"])
    low, top = map(int, (body.get("continue") or "0-%d" % queue.database.last_id("task")).split("-"))
    counts, reached = queue.tasks.tally(task_filter.within(ACTIONS[action]), low, top, COUNT_SECONDS)
    count, expected = sum(counts), body.get("expected_count")
    if "continue" not in body:
        if reached < top:
            raise field_error("filter", "matches tasks that take too long to count: narrow it, such as "
                                        "by a function or a time")
        if expected is None or count > expected:
            raise Conflict("Nothing was changed: %d tasks match and can be changed now. Please "
                           "confirm this number." % count,
                           wrong("expected_count", "must be %d now" % count), count=count)
    done, low = queue.actions.act(action, task_filter, low, top, ACTION_SECONDS,
                                  *request.person.scope_and_actor)
    if low >= top:
        return {"done": done, "remaining": 0, "continue": None}
    return {"done": done, "remaining": max(0, count - done), "continue": "%d-%d" % (low, top)}


def post_actions(queue: JobQueue, request: Request) -> JsonObject:
    """Cancel, retry or delete many tasks: the given ones, or all that match a filter.

    With a filter, repeat the request with the `continue` of the answer, until that is null.
    """
    body = request.given
    if ("ids" in body) == ("filter" in body):
        raise field_error("filter", "or ids must be given, and not both")
    if "ids" in body:
        done = queue.actions.act_on(body["action"], body["ids"], *request.person.scope_and_actor)
        acted: JsonObject = {"done": done, "remaining": 0, "continue": None}
    else:
        acted = _act_on_filter(queue, request, body)
    if acted["done"]:
        queue.actions.record_bulk(body["action"], acted["done"], body.get("filter"),
                                *request.person.scope_and_actor)
    return {"action": body["action"], **acted}


UPLOAD = object_of(("name",), name={"type": "string", "maxLength": 300})
FILE_HEADERS = [("Content-Security-Policy", "default-src 'none'; sandbox")]


def post_file(queue: JobQueue, request: Request) -> JsonObject:
    """Upload a file. The body is its bytes; arguments of tasks refer to it by its id."""
    sent = request.upload(queue.settings.get("max_file_mb") << 20)
    return queue.files.receive(request.person.id, request.given["name"], *sent)


def get_files(queue: JobQueue, request: Request, task_id: int) -> JsonObject:
    """List the files that a task left, then the uploads that it was given, which have an id."""
    queue.tasks.get(task_id, request.person.visible_owner_id)
    return {"files": list(queue.files.describe(task_id))}


def get_file(queue: JobQueue, request: Request, task_id: int, name: str) -> Answer:
    """Send a file of a task, by its name or id. Images and text are shown, other files are saved.

    No browser runs its content: the type is detected from the bytes, and headers demand a sandbox.
    """
    if request.cancel_requested is None:
        queue.tasks.get(task_id, request.person.visible_owner_id)
    row = next((row for row in queue.files.of_task(task_id) if name in tuple(row)[:2]), None)
    with contextlib.suppress(OSError):
        if row is not None:
            file, kind = queue.files.open_file(task_id, row)
            where = "%s; filename*=UTF-8''%s" % (
                "attachment" if kind == BYTES_TYPE else "inline", quote(row["name"], safe=""))
            return Answer(200, FileSlice(file, row["size"]), kind,
                          [*FILE_HEADERS, ("Content-Disposition", where)], None)
    raise NotFound("There is no file %s." % shorten(name, 60))


LOG_PART = object_of(attempt=about(kept_within(0, INTEGER_MAX), "the last one if left out"),
                   offset=about(kept_within(0, INTEGER_MAX), "in bytes"),
                   download=about(TEXT, "1: all of it, as a file"))


def get_log(queue: JobQueue, request: Request, task_id: int) -> Answer | JsonObject:
    """Send the output of an attempt, from a byte offset on."""
    db, row = queue.database, queue.tasks.get(task_id, request.person.visible_owner_id)
    query = request.given
    attempt, offset = query.get("attempt", row["attempts"]), query.get("offset", 0)
    if query.get("download") == "1":
        with request.app.one_by_one:
            whole = read_log(db, task_id, attempt, 0, 2 * LOG_MAX_BYTES).text.encode("utf-8")
        name = "task-%d-attempt-%d.txt" % (task_id, attempt)
        return Answer(200, whole, "text/plain; charset=utf-8",
                      [("Content-Disposition", 'attachment; filename="%s"' % name)])
    part = read_log(db, task_id, attempt, offset)
    return {"attempt": attempt, "attempts": logged_attempts(db, task_id), "offset": offset,
            "next": part.next_offset, "text": part.text, "cut": part.is_cut, "times": part.times,
            "complete": row["status"] != RUNNING or attempt < row["attempts"]}
