"""Errors: one base class; each knows its HTTP status and exit code."""
import contextlib
import re
import sys

from .limits import ERRORS_MAX


class JobQueueError(Exception):
    """Base of all errors a person can cause or should hear about. `detail` is a sentence for that
    person, `errors` a list of {"field", "message"}, `retry_after` the seconds after which the same
    request may succeed."""

    status, code, exit_code = 500, "error", 1
    public = None                       # what the web is told instead of `detail`, which has paths
    retry_after = None                  # of those that do not say it

    def __init__(self, detail, errors=(), retry_after=None, headers=(), **extra):
        super().__init__(detail)
        self.detail, self.errors = detail, list(errors)
        self.extra = extra              # what programs are told besides
        self.retry_after, self.headers = retry_after or self.retry_after, headers   # of the answer


def _kind(name, about, status, code, exit_code=1, public=None):
    """A class of errors."""
    return type(name, (JobQueueError,), {
        "__doc__": about, "status": status, "code": code, "exit_code": exit_code, "public": public})


_CANNOT_BE_USED = ("The queue cannot be used at the moment. The web server's error log says why, "
                   "and so does python3 jobqueue.py check on the host.")
Malformed = _kind("Malformed", "The request cannot be read at all.", 400, "malformed", 2)
Unauthorized = _kind("Unauthorized", "Nobody is logged in.", 401, "unauthorized", 5)
Denied = _kind("Denied", "Somebody is logged in, but may not do this.", 403, "denied", 5)
NotFound = _kind("NotFound", "Missing or somebody else's: it looks the same.", 404, "not_found", 4)
NotAllowed = _kind("NotAllowed", "The path has no such method.", 405, "method_not_allowed")
Conflict = _kind("Conflict", "The thing is in no state that allows this.", 409, "conflict", 5)
TooLarge = _kind("TooLarge", "The body is larger than is read.", 413, "too_large")
UnsupportedType = _kind("UnsupportedType", "No JSON, or badly packed.", 415, "unsupported_type")
Invalid = _kind("Invalid", "Well-formed, but fields are wrong: see `errors`.", 422, "invalid", 2)
TooMany = _kind("TooMany", "Too many attempts or tasks; see `retry_after`.", 429, "too_many", 5)
Busy = _kind("Busy", "The database stayed busy; nothing was changed.", 503, "busy", 75)
Busy.retry_after = 2
StorageBroken = _kind("StorageBroken", "The database cannot be used; it is left exactly as it is.",
                      503, "storage", public=_CANNOT_BE_USED)
StorageFull = _kind("StorageFull", "Disk or quota is full; nothing was changed.", 507, "disk_full")
SetupError = _kind("SetupError", "This host, folder or configuration cannot be used as it is.",
                   503, "setup", public=_CANNOT_BE_USED)


class Fail(Exception):
    """Raised by a function: this task has failed for good, do not retry it."""


class RetryAfter(Exception):
    """Raised by a function: try it again in `seconds`, if retries are left; once if it has none."""

    def __init__(self, seconds, message="asked to be retried"):
        super().__init__(message)
        self.seconds = float(seconds)


def wrong(field, message):
    """What is wrong with one field, as a list of errors."""
    return [{"field": field, "message": message}]


def field_error(field, message):
    """An Invalid about one field."""
    return Invalid("%s %s" % (field, message), wrong(field, message))


def join_errors(errors):
    """The first of them in one sentence, with the places of tasks as people and programs count."""
    texts = []
    for error in errors[:5]:
        index = error.get("index")
        place = [] if index is None else ["row %d (index %d):" % (index + 1, index)]
        texts.append(" ".join(filter(None, [*place, error["field"], error["message"]])))
    return "; ".join(texts) + "."


def refusal(words, errors):
    """The Invalid that says what is not done (`words`) and the first of what is wrong."""
    return Invalid("%s: %s" % (words, join_errors(errors)), errors[:ERRORS_MAX])


def tasks_refused(errors, alone):
    """The Invalid for errors with an index, which says nothing where a task is `alone`."""
    if alone:
        errors = [{"field": one["field"], "message": one["message"]} for one in errors]
    return refusal("Nothing was added", errors)


def escape_controls(text):
    """Text that steers no terminal, whoever stored it."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: r"\x%02x" % ord(found[0]), text)


def complain(text):
    """A message for a person, on standard error if there is one."""
    if sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            print("jobqueue: " + escape_controls(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def in_passing(what):
    """What goes wrong in here must not end what it is done beside; others will try it again."""
    try:
        yield
    except JobQueueError:               # that the queue is busy or cannot be used now is no news
        pass
    except Exception as error:
        complain("%s failed: %s: %s" % (what, type(error).__name__, error))
