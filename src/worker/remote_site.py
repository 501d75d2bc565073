"""A site elsewhere: its calls, and the unsent outcomes.

RemoteSite sends calls over HTTP. A Call is a request that a thread makes. The Spool keeps outcomes on the
disk until the site has them.
"""
from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import jobqueue
from jobqueue import (TYPE_CHECKING, FileSite, JobQueueError, NamedTuple, Outcome, dump_json,
                      integer_within, number_within, text_like)

from .requests import http_opener
from .runner import Refusal
from .child import Child
from .attempt import WatchedAttempt

if TYPE_CHECKING:
    from typing import Any, Protocol, TypedDict

    from jobqueue import AnyClock, ClaimedTask, JsonObject, Schema

    from .samples import Sample

if TYPE_CHECKING:
    class RemoteTask(ClaimedTask):
        """A task from the site.

        `claimed` is missing until the site has confirmed the task. From then on it is the time at which
        the last call that renewed the claim was sent. `owner_id` is the owner's name.
        """

        state: str                      # the site's last answer about it: running, cancel, or lost

    class LogItem(TypedDict):
        """A part of a log that begins at byte `start`."""

        start: int
        text: str

    class _Attempt(TypedDict):
        id: int
        claim: str

    class AttemptItem(_Attempt, total=False):
        """A report on an attempt for the site. `id` and `claim` identify the attempt."""

        progress: float | None
        message: str | None
        log: list[LogItem]
        samples: list[Sample]
        outcome: JsonObject             # once the attempt has ended: the Outcome without its None values

    class RemoteQueue(Protocol):
        """The part of a RemoteWorker that a RemoteAttempt uses."""

        @property
        def clock(self) -> AnyClock: ...
        @property
        def lease_seconds(self) -> float: ...
        @property
        def protocol(self) -> int: ...
        @property
        def site(self) -> RemoteSite: ...
        @property
        def adds(self) -> list[Addition]: ...

def object_like(**properties: Any) -> Schema:
    """Return the schema of an object with these keys. A newer version may send further keys."""
    return {**jobqueue.object_of(properties, **properties), "additionalProperties": True}


CALL_SECONDS = 30.0                     # for a whole call, in addition to the site's waiting time
CALL_BYTES = 900_000                    # most bytes of a call's body; the site accepts a megabyte
ANSWER_BYTES = 16 << 20                 # most bytes that are read of an answer
PAUSE_MAX_SECONDS = 3600.0              # longest pause, even if the site asks for a longer one
# The schema of each answer, by the call's `answer_key`; that of a refusal has the key "".
_WHOLE = integer_within(0, jobqueue.INTEGER_MAX)
_ID, _CLAIM = integer_within(1, jobqueue.INTEGER_MAX), text_like("[0-9a-f]{32}", "must be a claim")
ANSWERS: dict[str, Schema] = {
    "lease_seconds": object_like(
        lease_seconds=number_within(1, 86400), protocol=_WHOLE, settings=object_like(
            runner_tasks=_WHOLE, runner_memory=_WHOLE, runner_per_owner={"enum": ["yes", "no"]})),
    "attempts": object_like(
        attempts={"type": "object", "propertyNames": _CLAIM, "additionalProperties": {"type": "string"}},
        wait=number_within(0, PAUSE_MAX_SECONDS), tasks={"type": "array", "items": object_like(
            id=_ID, claim=_CLAIM, function={"type": "string"}, arguments={"type": "string"},
            owner={"type": "string"}, attempt=_ID, crashes=_WHOLE,
            timeout=number_within(1, 30 * 86400))}),
    "ids": object_like(ids={"type": "array", "items": _ID}, created=_WHOLE),
    "": object_like(code={"type": "string"}, detail={"type": "string"}, errors={
        "type": "array", "items": {"type": "object"}})}


class NotHeard(Exception):
    """The error of a call that must be repeated: it has no valid answer, or the site is busy."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.pause = pause              # seconds, if the site asked for a pause


class RemoteSite:
    """The site that a remote worker works for."""

    def __init__(self, address: str, token_file: str, authorities: str | None = None) -> None:
        parts, token = urlsplit(address), Path(token_file)
        is_near = parts.scheme == "http" and parts.hostname in (*jobqueue.LOOPBACK, "localhost")
        if not parts.hostname or parts.username or not (is_near or parts.scheme == "https"):
            raise jobqueue.SetupError("--server must be an address such as "
                                      "https://example.org/jobs; http: is for this machine only.")
        if token.stat().st_mode & 0o077:
            raise jobqueue.SetupError("Others can read %s: run chmod 600 on it." % token)
        self._token = token.read_text("ascii", "replace").strip()
        if not re.fullmatch("[!-~]+", self._token):
            raise jobqueue.SetupError("%s must hold a token and nothing else." % token)
        self.place = FileSite(address.rstrip("/"), authorities)
        self._opener = http_opener(authorities, by_proxy=not is_near)
        self._wraps = False             # send bodies as forms: a firewall in front of the site refuses JSON

    def ask(self, call: Call) -> JsonObject:
        """Return jobqueue's answer to a Call. A refusal is an answer, too.

        NotHeard if the answer is not jobqueue's, or if the site is busy. Other errors if there is none.
        """
        from urllib.request import Request
        answer_json: JsonObject | None = None
        body, headers = call.body, dict(call.headers)
        if self._wraps:
            headers["Content-Type"], head, tail = jobqueue.envelope(headers["Content-Type"])
            body = head + body + tail
        request = Request(self.place.address + call.path, body, {
            "X-Api-Key": self._token, "User-Agent": "jobqueue-worker/" + jobqueue.VERSION, **headers})
        with self._opener.open(request, timeout=call.seconds) as answer:
            status, pause = answer.status, answer.headers.get("Retry-After")
            data = answer.read(ANSWER_BYTES)
        with contextlib.suppress(ValueError, RecursionError):
            answer_json = jobqueue.read_json(data.decode("utf-8"))
        is_refusal = isinstance(answer_json, dict) and answer_json.get("status") == status
        errors = jobqueue.check_value(ANSWERS["" if is_refusal else call.answer_key], answer_json, "it")
        self._wraps = self._wraps or (400 <= status < 500 and not is_refusal)
        if answer_json is None or errors or not (is_refusal or status in (200, 201)):
            raise NotHeard("an answer (%d) that is not jobqueue's%s" % (status, "".join(
                ": %(field)s %(message)s" % error for error in errors[:1])))
        if status >= 500 or status == 408:      # 408: the network was too slow
            seconds = jobqueue.read_retry_after(pause, time.time())
            raise NotHeard(answer_json["detail"], seconds and min(seconds, PAUSE_MAX_SECONDS))
        return answer_json


class Call:
    """A request that a thread makes while the worker watches running tasks.

    The answer has the key `answer_key`, unless it is a refusal.
    """

    def __init__(self, path: str, answer_key: str, body: str, seconds: float = 0.0,
                 headers: Mapping[str, str] | None = None) -> None:
        self.path, self.answer_key, self.body = "/api/worker/" + path, answer_key, body.encode("utf-8")
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self.sent, self.seconds = time.monotonic(), CALL_SECONDS + seconds
        self.answer: JsonObject = {}     # the answer; empty until it has arrived
        self.error: NotHeard | None = None
        # Only in a turn: its outcomes, its reports on running attempts, its further keys, its session.
        self.ends: list[AttemptItem] = []
        self.news: list[News] = []
        self.extra_keys: JsonObject = {}
        self.session = ""

    def start(self, site: RemoteSite, waker: int) -> None:
        """Start the call in a thread. At its end the thread writes to `waker`."""
        def run() -> None:
            try:
                self.answer = site.ask(self)
            except NotHeard as error:
                self.error = error
            except Exception as error:  # the worker must see every error
                self.error = NotHeard("%s: %s" % (type(error).__name__, error))
            with contextlib.suppress(OSError):
                os.write(waker, b".")
        threading.Thread(target=run, daemon=True).start()

    def is_over(self) -> bool:
        """Return True once there is an answer or an error. No answer in time is an error."""
        if time.monotonic() > self.sent + self.seconds:
            self.error = self.error or NotHeard("no answer within %d s" % self.seconds)
        return bool(self.answer) or self.error is not None


class Spool:
    """The folder of a remote worker: its session, and the outcomes (`ends`) that are not reported yet.

    Only one worker at a time has the folder: it holds the lock file, and so does its runner. A process that
    gets the lock knows that both are dead, unless a task has closed the runner's descriptors. So the lock
    file also names the runner, which is ended before another worker begins.
    """

    def __init__(self, base: Path) -> None:
        import fcntl
        for number in range(1, 1000):
            self.folder = base / str(number)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:     # another worker has the folder
                os.close(self.lock)
        self.ends: dict[str, AttemptItem] = {}  # outcomes by claim
        for path in self.folder.glob("*.outcome"):
            with contextlib.suppress(ValueError):       # a power cut can leave empty files
                self.ends[path.stem] = jobqueue.read_json(path.read_text("utf-8"))
        self._session = self.folder / "jobqueue-worker.remote"  # find_database() accepts this name
        self._place = " %d %s" % (os.fstat(self.lock).st_ino, jobqueue.machine_name())

    def set_runner(self, pid: int, born: str | None) -> None:
        """Overwrite the runner's pid and start time in the lock file. This works on a full disk, too."""
        with contextlib.suppress(OSError):
            words = "%s %d %s" % (jobqueue.boot_id(), pid, born)
            os.pwrite(self.lock, words.ljust(200).encode("ascii"), 0)

    def former(self) -> str | None:
        """End the runner of the folder's former worker; return that worker's session.

        None if the folder was copied, since the original worker may live. None if the runner does not end.
        """
        with contextlib.suppress(OSError, ValueError):
            session, space, place = self._session.read_text("utf-8").partition(" ")
            return session if space + place == self._place and self._end_runner() else None
        return None

    def _end_runner(self) -> bool:
        named = os.pread(self.lock, 200, 0).decode("ascii").split()
        if len(named) < 3 or named[0] != jobqueue.boot_id():
            return True
        return jobqueue.end_group(int(named[1]), named[2], time.sleep)

    def begin(self, session: str) -> None:
        """Store the session of the present worker."""
        jobqueue.write_private(self._session, session + self._place)

    def keep(self, item: AttemptItem) -> None:
        """Keep an outcome until it is reported, also on the disk if there is room."""
        self.ends[item["claim"]] = item
        with contextlib.suppress(JobQueueError, OSError):
            jobqueue.write_private(self.folder / (item["claim"] + ".outcome"), dump_json(item))

    def forget(self, item: AttemptItem) -> None:
        """Remove an outcome that the site has, and the task's folder here."""
        self.ends.pop(item["claim"], None)
        with contextlib.suppress(OSError):
            (self.folder / (item["claim"] + ".outcome")).unlink()
        jobqueue.remove_task_folder(self.folder, item["id"])


def claim_reference(row: ClaimedTask) -> AttemptItem:
    """Return id and claim of an attempt, which identify it at the site."""
    return {"id": row["id"], "claim": row["claim"]}


def json_bytes(value: object) -> int:
    """Return the size of a value as JSON in UTF-8."""
    return len(dump_json(value).encode("utf-8"))


class RemoteAttempt(WatchedAttempt):
    """An attempt of a remote worker, whose calls renew its claim and report its output."""

    row: RemoteTask

    def __init__(self, worker: RemoteQueue, child: Child, row: RemoteTask) -> None:
        super().__init__(worker.clock, child, row)
        self._worker = worker

    def item(self) -> AttemptItem:
        """Return the report on the running attempt."""
        item = self._reported()
        log: list[LogItem] = []
        for start, text in self.log.decode_pieces(final=False) if self.log else ():
            log.append({"start": start, "text": text})
            if json_bytes(log) > CALL_BYTES // 4:       # one larger piece still fits into a call
                break
        item["log"] = log
        if self._worker.protocol > 1:
            self._take_sample(self._clock.monotonic())
        if self.samples:
            item["samples"] = self.samples
        return item

    def forget(self, item: AttemptItem) -> None:
        """Drop the output, the progress and the samples in a report that the site has."""
        del self.log.pieces[:len(item["log"])]
        if item.get("samples") is self.samples:
            self.samples = None
        if self.report and {**item, **self.report} == item:
            self.report = None

    def last_item(self, outcome: Outcome) -> AttemptItem:
        """Return the report on the ended attempt. If it is too large, drop the middle of the log."""
        outcome_json: JsonObject = {name: value for name, value in vars(outcome).items() if value is not None}
        if json_bytes(outcome_json) > CALL_BYTES:
            outcome_json = {"kind": "fail", "error_type": "ValueError",
                    "error_message": "the result is larger than %d bytes" % CALL_BYTES}
        self.log.decode_pieces(final=True)
        self.log.put(self.traceback or "")
        pieces: list[LogItem] = [{"start": start, "text": text} for start, text in self.log.pieces]
        item: AttemptItem = {**self._reported(), "log": pieces, "outcome": outcome_json}
        while pieces and json_bytes(item) > CALL_BYTES:
            del pieces[len(pieces) // 2]
        return item

    def _reported(self) -> AttemptItem:
        item = claim_reference(self.row)
        if self.report:
            item["progress"], item["message"] = self.report["progress"], self.report["message"]
        return item

    def lease_seconds(self) -> float:
        """Return how long a claim holds without being renewed."""
        return self._worker.lease_seconds

    def site(self) -> FileSite | None:
        """Return the site that has the task's files."""
        return self._worker.site.place

    def _prepare_start(self) -> bool:
        return True                     # the site has confirmed the task

    def _test_claim(self) -> None:
        self._is_doubted, self._safe_at = True, self.row["claimed"]
        if self.row["state"] == "cancel":
            self.end("cancelled", "cancelled while it ran")
        elif self.row["state"] != "running":
            self.end("lost")

    def _store(self, now: float) -> None:
        if self.log.is_full:
            self.log.decode_pieces(final=False)

    def _enqueue(self, requests: list[JsonObject]) -> None:
        for request in requests:        # the site checks the tasks of Django, too
            if request.pop(jobqueue.DJANGO_MARK, None):
                request.get("arguments", {}).pop(jobqueue.POSITIONAL_COUNT, None)
        self._worker.adds.append(Addition(self, requests))

    def _answer_results(self) -> bool:
        return False                    # the runner asks the site for results

    def _answer_task(self, task_id: int) -> None:
        self.reply({"refused": Refusal("Denied", "A worker of another machine cannot read task %d."
                                       % task_id, [], None)})


class Addition(NamedTuple):
    """An attempt's request to add tasks."""

    attempt: RemoteAttempt
    requests: list[JsonObject]


class News(NamedTuple):
    """A running attempt and the report on it in a turn."""

    attempt: RemoteAttempt
    item: AttemptItem
