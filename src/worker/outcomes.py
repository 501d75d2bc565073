"""Outcomes: how an attempt ended, as JSON that can always be sent.

After the end of a function the owner's objects may still raise exceptions: the text of an exception, its
attributes, the result and its parts.

Rules: outcome_of_result() and outcome_of_exception() raise nothing. A function that ran to its end is never
run again because of its result. A value that JSON cannot write is converted if possible. Any other fault of
the result fails the task for good.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from jobqueue import (RESULT_MAX_DEPTH, TYPE_CHECKING, Fail, RetryAfter, dump_json, is_deep,
                      plain_value, storable)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, TypedDict

if TYPE_CHECKING:
    class Report(TypedDict):
        """The progress that a function reports."""

        progress: float | None          # from 0 to 1
        message: str | None

    class _Ended(TypedDict):
        kind: str                       # succeeded, error, fail or unknown_function

    class OutcomeMessage(_Ended, total=False):
        """The end of an attempt, as the runner reports it."""

        result: str                     # JSON text
        error_type: str                 # in a success: the function called sys.exit()
        error_message: str
        retry_after: float
        seconds: float
        cpu_seconds: float
        peak_memory: int
        traceback: str
        report: Report                  # the last progress, if it was not sent before
        left: str                       # the state that the task left in the runner, in words

MESSAGE_MAX_CHARACTERS = 4000           # most characters of a message, or of a line of a traceback
TRACEBACK_MAX_CHARACTERS = 100_000
LINE_MAX_BYTES = 1 << 20                # longest message between worker and runner


def write_result(result: Any) -> str:
    """Return a result as JSON text; raise TypeError, ValueError or any other error if that fails."""
    if result is None:
        return "null"
    if is_deep(result, RESULT_MAX_DEPTH):
        raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
    try:
        return dump_json(result)
    except (TypeError, ValueError):
        return dump_json(plain_value(result))


def outcome_of_result(result: object, keep: Callable[[Any], Any]) -> OutcomeMessage:
    """Return the outcome of a function that ran to its end. `keep` stores a file whose path it returned."""
    try:
        return {"kind": "succeeded", "result": write_result(keep(result))}
    except BaseException as error:
        outcome = outcome_of_exception(error)
        outcome["kind"] = "fail"
        outcome["error_message"] = (
            "it has run, but its result cannot be kept (%s): return texts, numbers, lists or dictionaries"
            % outcome["error_message"])
        return outcome


def too_large(outcome: OutcomeMessage) -> OutcomeMessage:
    """Return the outcome of a function whose result is too large to be sent."""
    failed: OutcomeMessage = {**outcome, "kind": "fail", "result": "null", "error_type": "ValueError"}
    failed["error_message"] = "the result is larger than %d bytes" % LINE_MAX_BYTES
    return failed


def outcome_of_exception(error: BaseException) -> OutcomeMessage:
    """Return an exception as an outcome: class, message, and the traceback below our own frames."""
    if isinstance(error, SystemExit) and (
            error.code is None or isinstance(error.code, int) and not error.code):
        return {"kind": "succeeded", "result": "null", "error_type": "SystemExit"}
    name = str(type.__getattribute__(type(error), "__name__"))
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        message, lines = show_exception(error, frames)
    except BaseException:               # the owner's class raises when it is inspected
        message, lines = "its message could not be shown", show_frames(name, frames)
    outcome: OutcomeMessage = {
        "kind": "fail" if isinstance(error, Fail) else "error", "error_type": name,
        "error_message": message[:MESSAGE_MAX_CHARACTERS],
        "traceback": storable("".join(map(cut, lines)))[-TRACEBACK_MAX_CHARACTERS:]}
    if isinstance(error, RetryAfter):
        seconds = seconds_of(error)
        if seconds is not None:
            outcome["retry_after"] = seconds
    return outcome


def show_exception(error: BaseException, frames: TracebackType | None) -> tuple[str, list[str]]:
    """Return an exception's message, and the lines of its traceback."""
    import traceback
    formatted = traceback.TracebackException(type(error), error, frames)
    lines = list(formatted.format())
    if not lines[0].startswith("Traceback "):
        lines.insert(0, "Traceback (most recent call last):\n")
    return storable(str(formatted)), lines


def show_frames(name: str, frames: TracebackType | None) -> list[str]:
    """Return the last 50 frames of a traceback, without calling any code of the exception."""
    lines = ["Traceback (most recent call last):\n"]
    while frames:
        code = frames.tb_frame.f_code
        lines.append('  File "%s", line %d, in %s\n' % (code.co_filename, frames.tb_lineno, code.co_name))
        frames = frames.tb_next
    return [*lines[:1], *lines[1:][-50:], "%s: its message could not be shown\n" % name]


def cut(line: str) -> str:
    """Return a line of a traceback, cut if it is long, so that there is room for the frames."""
    left_out = len(line) - MESSAGE_MAX_CHARACTERS
    return line if left_out <= 0 else "%s… (%d more characters)\n" % (
        line[:MESSAGE_MAX_CHARACTERS], left_out)


def seconds_of(error: RetryAfter) -> float | None:
    """Return the seconds of a RetryAfter, within limits; None if it has no number."""
    try:
        seconds = float(error.seconds)
    except BaseException:               # a subclass that did not call our __init__()
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), 1e9)
