"""ROUTES: each request, its users, its input and its answer.

A row of ROUTES has a request, the users that may send it, its input, its answer, and the actions before and
after it. /openapi.json is made from the same rows.
"""
from __future__ import annotations

import re
from collections.abc import Callable

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.errors import Busy, Denied, Malformed, NotFound, StorageFull, TooMany, Unauthorized
from ..base.values import object_of
from ..store.settings import CHANGED_SETTINGS
from ..tasks.queues import CHANGED_QUEUE, NEW_QUEUE
from ..tasks.files import BYTES_TYPE, SHOWN_TYPES
from ..tasks.actions import CHANGED_TASK
from ..upkeep.schedule_rows import CHANGED_SCHEDULE, SCHEDULE_SCHEMA
from ..access.people import (ACCEPTED, CHANGED_USER, LOG_IN, NEW_INVITATION, NEW_TOKEN, NEW_USER,
                             SET_UP)
from ..access.saved import NEW_SAVED
from ..access.remote_workers import HELLO, TURN
from ..access.host import add_sample
from .http_answer import JSON_TYPE, LINES_TYPE, STATIC_TYPES
from .handlers_tasks import (ACTION, LISTED_TASKS, LOG_PART, NEW_TASKS, OWNER_FILTER, PAGE_FIELDS,
                             SUMMARIZED, UPLOAD, WHOSE, WOULD_BE, delete_session, get_file, get_files,
                             get_forecast, get_health, get_log, get_overview, get_page, get_summary,
                             get_task, get_tasks, post_actions, post_file, post_setup, post_tasks,
                             session_answer, session_json, tick, wanted_owner)
from .handlers_site import (EXPOSURE, LISTED_ACTIVITY, MUTE, PREVIEW, WHICH_FIGURES, get_activity,
                            get_backup, get_exposition, get_host, get_metrics, get_queue,
                            get_queues, get_schedules, get_settings, get_workers, patch_queue,
                            patch_schedule, patch_settings, patch_user, post_acceptance,
                            post_exposure, post_invitations, post_queues, post_schedules, post_tokens,
                            post_users, post_worker_file, post_worker_tasks, post_worker_turn,
                            preview_rule)

if TYPE_CHECKING:
    from typing import Any, Union, overload

    from ..base.types import JsonObject, Schema
    from ..access.python_interface import JobQueue
    from .http_answer import Answer
    from .http_request import Request

if TYPE_CHECKING:
    Handled = Union[Answer, JsonObject, None]   # the JSON of an answer, or None
    PathParts = tuple[Any, ...]         # the variable parts of a path
    Handler = Callable[..., Handled]    # its parameters: queue, request, *path parts

ANYONE, USER, ADMIN, WORKER, METRICS = "anyone", "user", "admin", "worker token", "metrics token"
CLAIM = "claim"                         # the claim of a running task, sent instead of a token
TICKER = "tick token"                   # a token of the scope tick; for POST also any user
ID, NAME = "([0-9]{1,15})", "([^/]{1,300})"

# Flags of a route. FRESH: before it, tasks.py is read if it changed. CHANGE: after it, workers are started.
# KEPT: its answer is cached until the next commit, for CACHE_SECONDS at most. OWN: viewers may send it, too,
# such as a change of their own account. WHOLE: its answer contains credentials, so viewers and tokens of the
# scope read may not get it.
FRESH, CHANGE, KEPT, OWN, WHOLE = 1, 2, 4, 8, 16
FILES = " ".join(kind.partition(";")[0] for kind in STATIC_TYPES.values())
_TASK, _SCHEDULE_ID = "/api/tasks/" + ID, "/api/schedules/" + ID
_RUNNING_TASK = "/api/worker/tasks/" + ID
FILE_TYPES = " ".join((*(kind.partition(";")[0] for kind in SHOWN_TYPES.values()), BYTES_TYPE))
_QUEUE, _USER = "/api/queues/" + NAME, "/api/users/" + NAME


if TYPE_CHECKING:
    @overload
    def _does(words: str, handler: Callable[[JobQueue, Request], Handled]) -> Handler: ...
    @overload
    def _does(words: str, handler: Callable[[JobQueue, Request, Any], Handled]) -> Handler: ...


def _does(words: str, handler: Handler) -> Handler:
    """Return the handler, a lambda, with `words` as its docstring."""
    handler.__doc__ = words
    return handler


class Route(NamedTuple):
    """A request, its users, its input and its answer."""

    method: str
    path: str                       # a regular expression
    handler: Handler
    who: str
    takes: Schema | None            # schema of the query for a GET and UPLOAD, else of the body
    status: int
    kinds: str                      # the answer's schemas of static/api.json, or media types
    needs: int = 0


ROUTES = [
    Route("GET", "/", get_page, ANYONE, None, 200, FILES),
    Route("GET", "/static/" + NAME, _does("Send a file of static/.", lambda _, request, name:
             request.app.static.answer(name)), ANYONE, None, 200, FILES),
    Route("GET", "/static/languages/" + NAME, _does("Send the texts of the page in a language.",
             lambda _, request, name: request.app.static.answer("languages/" + name)),
          ANYONE, None, 200, JSON_TYPE),
    Route("GET", "/static/docs/" + NAME, _does("Send a page of the handbook.",
             lambda _, request, name: request.app.static.page(name)),
          ANYONE, None, 200, "text/markdown"),
    Route("GET", "/openapi.json", _does("Send this document.", lambda _, request:
             request.app.document), ANYONE, None, 200, JSON_TYPE),
    Route("GET", "/healthz", get_health, ANYONE, None, 200, "Health"),
    Route("GET", "/metrics", get_exposition, METRICS, None, 200, "text/plain"),
    Route("GET", "/tick", tick, TICKER, None, 200, "Ticked"),
    Route("POST", "/tick", tick, TICKER, None, 200, "Ticked", OWN),
    Route("POST", "/api/setup", post_setup, ANYONE, SET_UP, 201, "Session"),
    Route("POST", "/api/session", _does("Log in.", lambda queue, request: session_answer(
             queue, request, queue.sessions.log_in(**request.given, address=request.address), 200)),
          ANYONE, LOG_IN, 200, "Session"),
    Route("GET", "/api/session", _does("Name the user of the session or token.", lambda queue, request:
             session_json(queue, request.person)), USER, None, 200, "Session"),
    Route("DELETE", "/api/session", delete_session, USER, None, 204, "", OWN),
    Route("GET", "/api/sessions", _does("List the user's sessions.", lambda queue, request: {
             "sessions": queue.sessions.all(request.person.id, request.cookies())}),
          USER, None, 200, "SessionList"),
    Route("DELETE", "/api/sessions", _does("Log out everywhere else.", lambda queue, request:
             queue.sessions.close_all(queue.users.find(request.person.name), request.person.name,
                                      request.cookies())), USER, None, 204, "", OWN),
    Route("GET", "/api/functions", _does("List the functions, with their schemas.",
             lambda queue, request: queue.catalogue.describe(request.person.is_admin)),
          USER, None, 200, "FunctionList", FRESH),
    Route("GET", "/api/overview", get_overview, USER, WHOSE, 200, "Overview", KEPT),
    Route("GET", "/api/summary", get_summary, USER, SUMMARIZED, 200, "Summary", KEPT),
    Route("GET", "/api/tasks", get_tasks, USER, LISTED_TASKS, 200, "TaskList text/csv " + LINES_TYPE,
          KEPT),
    Route("POST", "/api/tasks", post_tasks, USER, NEW_TASKS, 201, "Added", FRESH | CHANGE),
    Route("POST", "/api/tasks/actions", post_actions, USER, ACTION, 200, "ActionDone", FRESH | CHANGE),
    Route("GET", _TASK, get_task, USER, None, 200, "Task"),
    Route("PATCH", _TASK, _does("Change a task that has not ended, such as whether its owner gets mail about "
             "its end.", lambda queue, request, task_id: queue.row_json(queue.actions.change(
                 task_id, request.given, request.person.visible_owner_id))),
          USER, CHANGED_TASK, 200, "Task"),
    Route("DELETE", _TASK, _does("Remove a task.", lambda queue, request, task_id:
             queue.actions.delete(task_id, *request.person.scope_and_actor)), USER, None, 204, "", CHANGE),
    Route("POST", _TASK + "/cancel", _does("Cancel a task, or ask the worker that runs it to stop.",
             lambda queue, request, task_id: queue.row_json(queue.actions.cancel(
                 task_id, *request.person.scope_and_actor))), USER, None, 200, "Task", CHANGE),
    Route("POST", _TASK + "/retry", _does("Make a failed or cancelled task pending again.",
             lambda queue, request, task_id: queue.row_json(queue.actions.retry(
                 task_id, *request.person.scope_and_actor))), USER, None, 200, "Task", FRESH | CHANGE),
    Route("POST", "/api/files", post_file, USER, UPLOAD, 201, "Uploaded"),
    Route("GET", _TASK + "/success", _does("Find the newest success with the same function, owner and "
             "arguments.", lambda queue, request, task_id: {"success": queue.tasks.last_success(
                 queue.tasks.get(task_id, request.person.visible_owner_id))}),
          USER, None, 200, "LastSuccess"),
    Route("GET", _TASK + "/files", get_files, USER, None, 200, "FileList"),
    Route("GET", _TASK + "/files/" + NAME, get_file, USER, None, 200, FILE_TYPES),
    Route("GET", _TASK + "/log", get_log, USER, LOG_PART, 200, "Log text/plain"),
    Route("GET", "/api/forecast", get_forecast, USER, WOULD_BE, 200, "Forecast"),
    Route("GET", "/api/schedules", get_schedules, USER, object_of(**PAGE_FIELDS), 200,
          "ScheduleList", FRESH),
    Route("POST", "/api/schedules", post_schedules, USER, SCHEDULE_SCHEMA, 201, "ScheduleDetail",
          FRESH | CHANGE),
    Route("POST", "/api/schedules/preview", _does("Describe a rule in English, with its next times.",
             lambda queue, request: preview_rule(request.given, queue.database.clock.now())),
          USER, PREVIEW, 200, "Preview"),
    Route("GET", _SCHEDULE_ID, _does("Send a schedule with its history.", lambda queue, request, number:
             queue.schedules.get(number, request.person.visible_owner_id)),
          USER, None, 200, "ScheduleDetail"),
    Route("PATCH", _SCHEDULE_ID, patch_schedule, USER, CHANGED_SCHEDULE, 200, "ScheduleDetail",
          CHANGE),
    Route("DELETE", _SCHEDULE_ID, _does("Remove a schedule.", lambda queue, request, schedule_id:
             queue.schedules.delete(schedule_id, request.person.visible_owner_id, request.person.answerable)),
          USER, None, 204, ""),
    Route("POST", _SCHEDULE_ID + "/run", _does("Add a schedule's task now.", lambda queue, request,
             number: queue.row_json(queue.schedules.run(number, request.person.visible_owner_id,
                                                        request.person.answerable))),
          USER, None, 201, "Task", CHANGE),
    Route("GET", "/api/activity", get_activity, USER, LISTED_ACTIVITY, 200, "ActivityList"),
    Route("GET", "/api/metrics", get_metrics, USER, WHICH_FIGURES, 200, "Metrics", KEPT),
    Route("GET", "/api/workers", get_workers, USER, None, 200, "WorkerList"),
    Route("GET", "/api/queues", get_queues, USER, None, 200, "QueueList", KEPT),
    Route("POST", "/api/queues", post_queues, ADMIN, NEW_QUEUE, 201, "Queue", CHANGE),
    Route("GET", _QUEUE, get_queue, USER, None, 200, "Queue"),
    Route("PATCH", _QUEUE, patch_queue, ADMIN, CHANGED_QUEUE, 200, "Queue", CHANGE),
    Route("DELETE", _QUEUE, _does("Remove a queue that holds no tasks.", lambda queue, request, name:
             queue.delete_queue(name, request.person.name)), ADMIN, None, 204, ""),
    Route("GET", "/api/alerts", _does("List open and recent alerts, and their recipients.", lambda
             queue, _: queue.alerts.all()), ADMIN, None, 200, "AlertList"),
    Route("POST", "/api/alerts/test", _does("Send a test message to all recipients of alerts.",
             lambda queue, _: queue.alerts.test()), ADMIN, None, 202, "AlertTest"),
    Route("POST", "/api/alerts/" + ID + "/mute", _does("Mute an alert for a time or until it is resolved, or "
             "(no) unmute it.", lambda queue, request, alert_id: queue.alerts.mute(
                 alert_id, request.given["how"])), ADMIN, MUTE, 200, "Alert"),
    Route("GET", "/api/host", get_host, ADMIN, None, 200, "HostReport"),
    Route("GET", "/api/backup", get_backup, ADMIN, None, 200, BYTES_TYPE, WHOLE),
    Route("POST", "/api/host/exposure", post_exposure, ADMIN, EXPOSURE, 204, ""),
    Route("POST", "/api/host/test", _does("Add a task that sleeps for 10 s, to see whether workers live.",
             lambda queue, request: add_sample(queue, request.person.id)), ADMIN, None, 201, "Task"),
    Route("GET", "/api/settings", get_settings, ADMIN, None, 200, "SettingList"),
    Route("PATCH", "/api/settings", patch_settings, ADMIN, CHANGED_SETTINGS, 200, "SettingList",
          CHANGE),
    Route("GET", "/api/users", _does("List all users.", lambda queue, request:
             {"users": queue.users.all()}), ADMIN, None, 200, "UserList"),
    Route("POST", "/api/users", post_users, ADMIN, NEW_USER, 201, "User"),
    Route("POST", "/api/invitations", post_invitations, ADMIN, NEW_INVITATION, 201, "Invitation"),
    Route("POST", "/api/invitations/accept", post_acceptance, ANYONE, ACCEPTED, 201, "Session"),
    Route("PATCH", _USER, patch_user, USER, CHANGED_USER, 200, "User", CHANGE | OWN),
    Route("DELETE", _USER + "/sessions", _does("Log a user out everywhere.", lambda queue, request,
             name: queue.sessions.close_all(queue.users.find(name), request.person.name)),
          ADMIN, None, 204, ""),
    Route("DELETE", _USER, _does("Remove a user who owns no tasks.", lambda queue, request, name:
             queue.users.delete(name, request.person.name)), ADMIN, None, 204, ""),
    Route("GET", "/api/tokens", _does("List API tokens: the user's own; for admins all, or those of an "
             "`owner`.", lambda queue, request: {"tokens": queue.tokens.all(wanted_owner(
                 queue, request, request.given, request.person.visible_account_id))}),
          USER, object_of(owner=OWNER_FILTER), 200, "TokenList"),
    Route("POST", "/api/tokens", post_tokens, USER, NEW_TOKEN, 201, "CreatedToken", OWN),
    Route("DELETE", "/api/tokens/" + ID, _does("Revoke an own token; admins revoke any.", lambda
             queue, request, token_id: queue.tokens.delete(request.person.visible_account_id, token_id,
                                                           request.person.name)),
          USER, None, 204, "", OWN),
    Route("GET", "/api/saved", _does("List the user's saved filters and form values.", lambda queue,
             request: {"saved": queue.saved.all(request.person.id)}), USER, None, 200, "SavedList"),
    Route("POST", "/api/saved", _does("Save a filter or the values of a form under a name.", lambda queue,
             request: queue.saved.add(request.person.id, **request.given)),
          USER, NEW_SAVED, 201, "Saved", OWN),
    Route("DELETE", "/api/saved/" + ID, _does("Remove a saved filter or saved values.", lambda queue,
             request, saved_id: queue.saved.delete(request.person.id, saved_id)),
          USER, None, 204, "", OWN),
    Route("POST", "/api/worker/hello", _does("Register a remote worker, or register it again.", lambda
             queue, request: queue.remote.hello(request.token, request.given)),
          WORKER, HELLO, 200, "Welcome"),
    Route("POST", "/api/worker/turn", post_worker_turn, WORKER, TURN, 200, "TurnAnswer"),
    Route("POST", _RUNNING_TASK, post_worker_tasks, WORKER, NEW_TASKS, 201, "Created",
          FRESH | CHANGE),
    Route("POST", _RUNNING_TASK + "/files", post_worker_file, CLAIM, UPLOAD, 201, "Uploaded"),
    Route("GET", _RUNNING_TASK + "/files/" + NAME, get_file, CLAIM, None, 200, FILE_TYPES),
    Route("GET", _RUNNING_TASK + "/results", _does("Return the results of the tasks before a running one.",
             lambda queue, _, task_id: {"results": queue.tasks.results_before(task_id)}),
          CLAIM, None, 200, "ResultList"),
]


def place_of(path: str) -> str:
    """Return the beginning of a path or pattern, which few routes share: /api/tasks, /static."""
    parts = path.split("/", 3)
    return "/".join(parts[:3 if parts[1:2] == ["api"] else 2])


ROUTES_AT: dict[str, list[Route]] = {}
for _route in ROUTES:
    ROUTES_AT.setdefault(place_of(_route.path), []).append(_route)


def match_path(pattern: str, path: str) -> PathParts | None:
    """Return the variable parts of `path`, or None if it does not match. An id comes first, as a number."""
    fixed, place, _ = pattern.partition("(")    # most paths differ here: no pattern is compiled
    if not place:
        return () if path == fixed else None
    match = re.fullmatch(pattern, path) if path.startswith(fixed) else None
    if match is None:
        return None
    if ID not in pattern:
        return match.groups()
    return (int(match[1]), *match.groups()[1:])


# The possible errors of a request that changes nothing, for /openapi.json. CHANGING_FAILS has those of the
# other requests.
LOOKING_FAILS = (Malformed, Unauthorized, Denied, NotFound, TooMany, Busy, StorageFull)


def component(kind: str, name: str) -> dict[str, str]:
    """Return a reference to a component of the OpenAPI document."""
    return {"$ref": "#/components/%s/%s" % (kind, name)}
