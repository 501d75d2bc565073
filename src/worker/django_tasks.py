"""Running Django's tasks.

A task runs as a request of Django does: old connections to its database are closed before it, and all
connections after it. So a waiting worker holds none, however long CONN_MAX_AGE is. The signals task_started
and task_finished are sent here. A process that is killed sends no task_finished.
"""
from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime

import jobqueue
from jobqueue import TYPE_CHECKING, JobQueueError

from .outcomes import outcome_of_exception, outcome_of_result

if TYPE_CHECKING:
    from typing import Any

    from jobqueue import DjangoFunction, DjangoResult, JsonObject, ResultView, TaskContext

    from .outcomes import OutcomeMessage


THREADS_SECONDS = 0.1                   # the thread of async_to_sync() ends a moment after its call
COLLECT_SECONDS = 0.003


def run_django(function: DjangoFunction, order: Mapping[str, Any], context: TaskContext) -> OutcomeMessage:
    """Run a task of Django; return its outcome."""
    names, task, threads = jobqueue.django_names(), function.task, threading.active_count()
    result = running_result(function, order, context)
    arguments = [*result.args]
    if task.takes_context:
        arguments.insert(0, names.context(task_result=result))
    try:
        begin_request()
        names.signals.task_started.send(sender=type(task.get_backend()), task_result=result)
        value = task.call(*arguments, **result.kwargs)
    except BaseException as error:      # any exception of the owner's code is the attempt's error
        outcome = outcome_of_exception(error)
        finish(result, outcome, error, order["more"])
    else:                               # Django refuses a value that is not JSON
        outcome = outcome_of_result(value, names.normalize)
        finish(result, outcome, None, order["more"])
    try:
        end_request(threads)
    except Exception as error:          # the task has run: only its log shows this
        print(outcome_of_exception(error)["traceback"], file=sys.stderr)
    return outcome


def running_result(function: DjangoFunction, order: Mapping[str, Any], context: TaskContext) -> DjangoResult:
    """Return Django's TaskResult of the attempt that begins now."""
    more, now, task = order["more"], datetime.now().timestamp(), function.task
    view: ResultView = {
        "id": order["id"], "function": function.name, "queue": more["queue"] or task.queue_name,
        "priority": task.priority if more["priority"] is None else more["priority"],
        "run_at": more["run_at"], "status": "running", "arguments": json.loads(order["arguments"]),
        "result": None, "created_at": more["created_at"], "started_at": now, "attempted_at": now,
        "finished_at": None, "errors": [], "workers": [str(more["worker_id"] or "")] * order["attempt"]}
    if order["attempt"] > 1 or more["run_at"] is not None:  # there are errors, or run_at may not be run_after
        try:
            view = context.ask_task(order["id"])
        except JobQueueError:           # a worker of another machine cannot ask
            view["run_at"] = None
    return jobqueue.make_result(view, jobqueue.task_of(view, task.backend) or task, task.backend)


def finish(result: DjangoResult, outcome: OutcomeMessage, error: BaseException | None,
           more: JsonObject) -> None:
    """Write the outcome into Django's TaskResult, and send task_finished unless the task is tried again."""
    names, path = jobqueue.django_names(), outcome.get("error_type", "")
    if error is not None:
        kind = type(error)
        path = "%s.%s" % (kind.__module__, kind.__qualname__)
        if kind.__module__ != "builtins" and outcome["kind"] != "succeeded":
            outcome["error_type"] = path
    status = "succeeded" if outcome["kind"] == "succeeded" else "failed"
    changes: dict[str, Any] = {"status": names.statuses[status],
                               "finished_at": jobqueue.moment(datetime.now().timestamp())}
    if status == "succeeded":
        changes["_return_value"] = json.loads(outcome["result"])
    else:
        result.errors.append(names.error(
            exception_class_path=path if "." in path else "builtins." + path,
            traceback=outcome.get("traceback", "")))
        left, first = more["retries_left"] or 0, more["retries_left"] == more["max_retries"]
        if outcome["kind"] == "error" and (left > 0 or "retry_after" in outcome and first):
            return
    for name, value in changes.items():
        object.__setattr__(result, name, value)
    names.signals.task_finished.send_robust(sender=type(result.task.get_backend()), task_result=result)


def begin_request() -> None:
    """Forget queries and old connections, as Django does at the beginning of a request."""
    db = importlib.import_module("django.db")
    db.reset_queries()
    db.close_old_connections()


def end_request(threads: int) -> None:
    """Close connections and caches, and forget the language and the zone that the task has chosen.

    Wait a moment until no more than `threads` run: a thread that is left costs a new runner. After an
    error, or in old versions, only the garbage collector ends the thread of async_to_sync().
    """
    importlib.import_module("django.db").connections.close_all()
    importlib.import_module("django.core.cache").close_caches()
    importlib.import_module("django.utils.translation").deactivate()
    importlib.import_module("django.utils.timezone").deactivate()
    began, is_collected = time.monotonic(), False
    while threading.active_count() > threads and time.monotonic() < began + THREADS_SECONDS:
        time.sleep(0.0005)
        if not is_collected and time.monotonic() > began + COLLECT_SECONDS:
            gc.collect(1)
            is_collected = True
