"""Errors: one base class; each knows its HTTP status and exit code."""
from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from .head import TYPE_CHECKING
from .limits import ERRORS_MAX

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

    from .types import FieldError


class JobQueueError(Exception):
    """The base of all errors that a person can cause or should see.

    `detail` is a sentence for that person. `errors` names the wrong fields. `retry_after` is the number
    of seconds after which the same request may succeed.
    """

    status, code, exit_code = 500, "error", 1
    public: str | None = None           # shown to web clients instead of `detail`, which may name paths
    retry_after: float | None = None    # default for errors of this class

    def __init__(self, detail: str, errors: Iterable[FieldError] = (), retry_after: float | None = None,
                 headers: Sequence[tuple[str, str]] = (), **extra: Any) -> None:
        super().__init__(detail)
        self.detail, self.errors = detail, list(errors)
        self.extra = extra              # further members of the JSON answer
        self.retry_after, self.headers = retry_after or self.retry_after, headers   # headers of the answer


_CANNOT_BE_USED = ("The queue cannot be used at the moment. The web server's error log says why, "
                   "and so does python3 jobqueue.py check on the host.")


class Malformed(JobQueueError):
    """The request cannot be read at all."""

    status, code, exit_code = 400, "malformed", 2


class Unauthorized(JobQueueError):
    """No user is logged in."""

    status, code, exit_code = 401, "unauthorized", 5


class Denied(JobQueueError):
    """The user who is logged in may not do this."""

    status, code, exit_code = 403, "denied", 5


class NotFound(JobQueueError):
    """The thing does not exist, or belongs to another user: both look the same."""

    status, code, exit_code = 404, "not_found", 4


class NotAllowed(JobQueueError):
    """The path has no such method."""

    status, code = 405, "method_not_allowed"


class Conflict(JobQueueError):
    """The state of the object does not allow this."""

    status, code, exit_code = 409, "conflict", 5


class LengthRequired(JobQueueError):
    """The body has no length, and this web server does not add it."""

    status, code = 411, "length_required"


class TooLarge(JobQueueError):
    """The body exceeds its limit."""

    status, code = 413, "too_large"


class UnsupportedType(JobQueueError):
    """The body is no JSON, or its compression is unknown."""

    status, code = 415, "unsupported_type"


class Invalid(JobQueueError):
    """A well-formed request with wrong fields: see `errors`."""

    status, code, exit_code = 422, "invalid", 2


class TooMany(JobQueueError):
    """Too many attempts or tasks; see `retry_after`."""

    status, code, exit_code = 429, "too_many", 5


class Busy(JobQueueError):
    """The database stayed busy; nothing was changed."""

    status, code, exit_code = 503, "busy", 75
    retry_after = 2


class StorageBroken(JobQueueError):
    """The database cannot be used; it is left exactly as it is."""

    status, code = 503, "storage"
    public = _CANNOT_BE_USED


class StorageFull(JobQueueError):
    """Disk or quota is full; nothing was changed."""

    status, code = 507, "disk_full"


class SetupError(JobQueueError):
    """This host, folder or configuration cannot be used as it is."""

    status, code = 503, "setup"
    public = _CANNOT_BE_USED


class Fail(Exception):
    """The exception with which a function fails its task for good, without a retry."""


RETRY_MESSAGE = "asked to be retried"   # of a RetryAfter without a message of its own


class RetryAfter(Exception):
    """The exception with which a function asks for a retry after some seconds (a number or a timedelta).

    It uses up one of the task's retries. A task with max_retries=0 gets one retry.
    """

    def __init__(self, seconds: float | timedelta, message: str = RETRY_MESSAGE) -> None:
        super().__init__(message)
        number: Any = seconds
        self.seconds = float(number.total_seconds() if hasattr(number, "total_seconds") else number)


def wrong(field: str, message: str) -> list[FieldError]:
    """Return a list with one error about a field."""
    return [{"field": field, "message": message}]


def field_error(field: str, message: str) -> Invalid:
    """Return an Invalid about one field."""
    return Invalid("%s %s" % (field, message), wrong(field, message))


def join_errors(errors: list[FieldError]) -> str:
    """Return the first errors in one sentence.

    A task of many is named by its row of a file, or by its place: counted from 1 (row) and from 0 (index).
    """
    texts = []
    for error in errors[:5]:
        index, row = error.get("index"), error.get("row")
        place = (["row %d:" % row] if row else [] if index is None
                 else ["row %d (index %d):" % (index + 1, index)])
        texts.append(" ".join(filter(None, [*place, error["field"], error["message"]])))
    return "; ".join(texts) + "."


def refusal(words: str, errors: list[FieldError]) -> Invalid:
    """Return an Invalid: `words` say which action failed, the first errors say why."""
    return Invalid("%s: %s" % (words, join_errors(errors)), errors[:ERRORS_MAX])


def tasks_refused(errors: list[FieldError], alone: bool) -> Invalid:
    """Return an Invalid for errors of tasks. The index is left out if the task is `alone`."""
    if alone:
        errors = [{"field": error["field"], "message": error["message"]} for error in errors]
    return refusal("Nothing was added", errors)


def escape_controls(text: str) -> str:
    """Return a text without control characters, which could steer a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: r"\x%02x" % ord(match[0]), text)


def complain(text: str) -> None:
    """Print a message for a person to standard error, if there is one."""
    if sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            print("jobqueue: " + escape_controls(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def print_errors(action: str) -> Iterator[None]:
    """Print an error of the block instead of raising it. A JobQueueError is not printed."""
    try:
        yield
    except JobQueueError:               # a busy or broken queue is reported elsewhere
        pass
    except Exception as error:
        complain("%s failed: %s: %s" % (action, type(error).__name__, error))
