"""Running Django's tasks.

A task runs as a request of Django does, but each begins without connections to the databases. So a
waiting worker holds none, however long CONN_MAX_AGE is. The signals task_started
and task_finished are sent here. A process that is killed sends no task_finished.
"""
from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime

import jobqueue
from jobqueue import TYPE_CHECKING

from .outcomes import LINE_MAX_BYTES, outcome_of_exception, outcome_of_result, too_large

if TYPE_CHECKING:
    from typing import Any

    from jobqueue import DjangoFunction, DjangoResult, JsonObject, ResultView, TaskContext

    from .outcomes import OutcomeMessage


THREADS_SECONDS = 0.1                   # the thread of async_to_sync() ends a moment after its call
COLLECT_SECONDS = 0.003


def run_django(function: DjangoFunction, order: Mapping[str, Any], context: TaskContext) -> OutcomeMessage:
    """Run a task of Django; return its outcome."""
    names, task, threads = jobqueue.django_names(), function.task, threading.active_count()
    result: DjangoResult = None
    try:
        result = running_result(function, order, context)
        names.signals.task_started.send(sender=type(task.get_backend()), task_result=result)
        first = [names.context(task_result=result)] if task.takes_context else []
        value = task.call(*first, *result.args, **result.kwargs)
    except BaseException as error:      # any exception of the owner's code is the attempt's error
        outcome = outcome_of_exception(error)
        name_class(outcome, error)
        guard(finish, result, outcome, error, order["more"])
    else:
        outcome = outcome_of_value(value)
        guard(finish, result, outcome, None, order["more"])
    guard(end_request, threads)
    return outcome


def guard(step: Callable[..., None], *values: Any) -> None:
    """Take a step after the end of the task. Its error only appears in the log: the task has run."""
    try:
        step(*values)
    except BaseException as error:
        print(outcome_of_exception(error).get("traceback", ""), file=sys.stderr)


def outcome_of_value(value: object) -> OutcomeMessage:
    """Return the outcome of a task that ran to its end. Django refuses a value that is not JSON."""
    outcome = outcome_of_result(value, jobqueue.django_names().normalize)
    if len(jobqueue.dump_json(outcome)) > LINE_MAX_BYTES - 4096:        # the worker would refuse it
        return too_large(outcome)
    return outcome


def name_class(outcome: OutcomeMessage, error: BaseException) -> None:
    """Name the module of the exception's class, too, as Django does. Ours and Python's need none."""
    kind = type(error)
    if kind.__module__ != "builtins" and outcome["kind"] != "succeeded":
        outcome["error_type"] = "%s.%s" % (kind.__module__, kind.__qualname__)


def running_result(function: DjangoFunction, order: Mapping[str, Any], context: TaskContext) -> DjangoResult:
    """Return Django's TaskResult of the attempt that begins now."""
    more, now, task = order["more"], datetime.now().timestamp(), function.task
    view: ResultView = {
        "id": order["id"], "function": function.name, "queue": more["queue"] or task.queue_name,
        "priority": task.priority if more["priority"] is None else more["priority"],
        "run_at": more["run_at"], "status": "running", "arguments": json.loads(order["arguments"]),
        "result": None, "created_at": more["created_at"], "started_at": now, "attempted_at": now,
        "finished_at": None, "errors": [], "workers": [str(more["worker_id"] or "")] * order["attempt"]}
    if context.ask_task is None:
        view["run_at"] = None           # it may be the time of a retry
    elif order["attempt"] > 1 or more["run_at"] is not None:
        view = context.ask_task(order["id"])
    return jobqueue.make_result(view, jobqueue.task_with(view, task, task.backend), task.backend)


def finish(result: DjangoResult, outcome: OutcomeMessage, error: BaseException | None,
           more: JsonObject) -> None:
    """Write the outcome into Django's TaskResult, and send task_finished unless the task is tried again."""
    names = jobqueue.django_names()
    if result is None:                  # the task did not begin
        return
    status = "succeeded" if outcome["kind"] == "succeeded" else "failed"
    changes: dict[str, Any] = {"status": names.statuses[status],
                               "finished_at": jobqueue.moment(datetime.now().timestamp())}
    if status == "succeeded":
        changes["_return_value"] = json.loads(outcome["result"])
    else:
        path = outcome["error_type"]
        result.errors.append(names.error(
            exception_class_path=path if "." in path else "builtins." + path,
            traceback=outcome.get("traceback", "")))
        is_first = more["retries_left"] == more["max_retries"]
        if outcome["kind"] == "error" and (
                (more["retries_left"] or 0) > 0 or "retry_after" in outcome and is_first):
            return                      # leases.judge() lets it be tried again
    for name, value in changes.items():
        object.__setattr__(result, name, value)
    names.signals.task_finished.send_robust(sender=type(result.task.get_backend()), task_result=result)


def end_request(threads: int) -> None:
    """Close connections and caches, and forget the language and the zone that the task has chosen.

    Wait a moment until no more than `threads` run: a thread that is left costs a new runner. After an
    error, or in old versions, only the garbage collector ends the thread of async_to_sync().
    """
    jobqueue.drop_connections()
    jobqueue.django_module("core.cache").close_caches()
    jobqueue.django_module("utils.translation").deactivate()
    jobqueue.django_module("utils.timezone").deactivate()
    began, is_collected = time.monotonic(), False
    while threading.active_count() > threads and time.monotonic() < began + THREADS_SECONDS:
        time.sleep(0.0005)
        if not is_collected and time.monotonic() > began + COLLECT_SECONDS:
            gc.collect(1)
            is_collected = True
