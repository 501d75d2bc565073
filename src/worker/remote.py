"""RemoteWorker: a worker without the database, over HTTPS.

It asks a site over HTTPS for tasks that its own tasks.py can run, and reports on them. RemoteSite sends
calls over HTTP. A Call is a request that a thread makes. The Spool keeps unsent outcomes on the disk.
RemoteWorker is the loop.

Rules: only an answer of jobqueue counts. After any other answer the call is repeated, and the site handles
it only once. The lease of a claim counts from the time at which the call that renewed it was sent. So the
runner is killed before another worker may have its task.
"""
from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, JobQueueError, dump_json

from .runner import Refusal
from .child import Child
from .attempt import Batch
from .runners import Runners
from .worker import Loop
from .remote_site import (CALL_BYTES, Addition, Call, News, NotHeard, RemoteAttempt, RemoteSite, Spool,
                          claim_reference, json_bytes)

if TYPE_CHECKING:
    from jobqueue import AnnouncedFunction, Announcement, AnyClock, ClaimedTask, JsonObject, Stamps

    from .runner import ToRunner
    from .remote_site import AttemptItem, RemoteTask

WAIT_SECONDS = 20.0                     # how long a call may wait at the site for a task
HOLD_SECONDS, TELL_SECONDS = 5.0, 2.0   # between reports on running tasks: without output, and with output
AGAIN_SECONDS = 0.5, 15.0               # least and longest pause before a call is repeated
LEAVE_SECONDS = 20.0                    # after a stop: when the worker ends even if the site is silent
CLAIMS_MAX = 64                         # most tasks claimed in one call; the site allows no more


class RemoteWorker(Loop[RemoteAttempt]):
    """The loop of a remote worker. Its Runners use it as their catalogue and as their Place.

    One call is under way at a time:

    1. Once the runner has announced its functions, hello is sent.
    2. The outcomes of the former worker in this folder are sent, which ends that worker's session.
    3. A turn reports everything that the site does not know. An idle worker's turn also asks for tasks and
       proposes a claim for each. These claims stay the same until the site answers.
    4. The next turn confirms a claimed task. Then the task begins.
    5. Running tasks are reported every HOLD_SECONDS.
    6. After a signal nothing is claimed. The last turn says that the worker leaves.
    """

    def __init__(self, site: RemoteSite, spool: Spool, verbose: bool) -> None:
        self.clock: AnyClock = jobqueue.Clock
        super().__init__(self.clock, verbose)
        self.site, self.lease_seconds, self._spool = site, 0.0, spool
        self.protocol = 1               # that of the site
        self.lock, self.stopping = spool.lock, ""
        self._settings.update(runner_tasks=10_000, runner_memory=512, runner_per_owner="no")
        self._runners = Runners(self.clock, spool.folder, self, self, self._settings)
        self._session = jobqueue.random_token()     # "" once the worker has left
        self._sequence, self._is_known = 0, False
        self._before = spool.former()
        self._taken: dict[str, RemoteTask] = {}     # claimed tasks that have not ended, by claim
        self._claims: list[str] = []    # proposed in the current request for tasks
        self.adds: list[Addition] = []
        self._functions: list[AnnouncedFunction] | None = None
        self._offered: set[str] = set()         # names of all functions that were ever announced
        self._files: list[str] = []
        self._call: Call | None = None
        self._trouble: str | None = None
        self._doubts_token = False      # the last answer refused the token
        self._next = self._sent_at = 0.0
        self._pause, self._wait = AGAIN_SECONDS[0], WAIT_SECONDS
        self.exit_code = 0

    def run(self) -> bool:
        """Work until there is a reason to leave; return True if the program was updated."""
        waker = self._runners.catch_signals(self._count_signal)
        self._runners.start()
        try:
            while not self._is_over():
                self._heed()
                self._step()
                self._ask(waker)
        finally:
            self._runners.end()
        return self.stopping == "limit"

    def _attempt(self, child: Child, row: ClaimedTask) -> RemoteAttempt:
        return RemoteAttempt(self, child, self._taken[row["claim"]])

    def _ask(self, waker: int) -> None:
        """Handle an answer that has arrived, and start the next due call."""
        if self._call and self._call.is_over():
            call, self._call = self._call, None
            self._handle_answer(call)
        if not self._call and time.monotonic() >= self._next:
            self._call = self._next_call()
            if self._call:
                self._call.start(self.site, waker)

    def stop(self, reason: str) -> None:
        """Make the worker leave. Only the first reason is kept."""
        self.stopping = self.stopping or reason

    def set_runner(self, pid: int, born: str | None) -> None:
        """Store the runner's pid and start time in the spool."""
        self._spool.set_runner(pid, born)

    def report_no_runner(self, error: OSError) -> None:
        """Print why there is no runner, and make the worker leave."""
        jobqueue.complain(jobqueue.explain_start_error(error))
        self.exit_code = 1
        self.stop("no runner could be started")

    def files(self) -> list[Path | str]:
        """Return the files that the functions are made of, as far as they are known."""
        return [jobqueue.TASKS_FILE, jobqueue.WORKER_FILE, *self._files]

    def store(self, announcement: Announcement, stamps: Stamps) -> Stamps:
        """Keep the runner's announcement; return the stamps of its files."""
        self._files = announcement.get("files", self._files)
        error = announcement.get("error")
        if error:
            jobqueue.complain("tasks.py cannot be read: %(message)s" % error)
            self._give_back(list(self._taken.values()))     # other workers may be able to run these tasks
        elif announcement["functions"] != self._functions:
            self._functions, self._is_known = announcement["functions"], False
        return {name: stamps.get(name, stamp)
                for name, stamp in jobqueue.file_stamps(self.files()).items()}

    def _is_over(self) -> bool:
        if self._batch or not self.stopping:
            return False
        until = (self._stopped_at or math.inf) + LEAVE_SECONDS
        return not self._session or time.monotonic() > until

    def _heed(self) -> None:
        """Handle signals, and newer files of the program."""
        self._runners.calm()
        if self._signals:
            self.stop(jobqueue.STOPPED)
            self._wind_up()
        elif self._checks.begin_if_due() and jobqueue.file_stamps(self._code) != self._code:
            self.stop("limit")
        if not self.stopping:
            return
        if self._call and self._claims:     # the call may claim a task that this worker would not run
            self._call.error, self._claims = NotHeard("the worker is stopping"), []
        if not self._batch:
            self._stopped_at = self._stopped_at or time.monotonic()
            self._give_back(list(self._taken.values()))

    def _step(self) -> None:
        """Watch the running tasks, begin confirmed tasks, hear the runner's announcement, or wait."""
        runners, rows = self._runners, list(self._taken.values())
        if self._batch:
            if self._batch.running:     # if none runs, the confirmation came too late
                self._batch.watch()
            self._put_aside(self._batch)
        elif self.stopping:
            self.clock.sleep(0.05)
        elif not runners.child.ready:
            runners.hear()
        elif not rows or not all("claimed" in row for row in rows):
            runners.rest(0.5 if self._call else 0.05, None)
        elif runners.is_stale() or runners.child.owner not in (None, rows[0]["owner_id"]):
            runners.start()
        else:
            self._hand_over(rows)

    def _put_aside(self, batch: Batch[RemoteAttempt]) -> None:
        """Put the outcomes of ended attempts into the spool, and give unbegun tasks back, if that is due."""
        if batch.running:
            if time.monotonic() < batch.record_by:
                return
            batch.withdraw()           # the ended attempts can wait no longer
            self._pace.slow_down()
        for attempt, outcome in batch.ended:
            del self._taken[attempt.row["claim"]]
            if outcome.kind != "lost":
                self._spool.keep(attempt.last_item(outcome))
        self._give_back([attempt.row for attempt in batch.unbegun])
        batch.unbegun, batch.ended, batch.record_by = [], [], math.inf
        if not batch.running:
            batch.child.withdraw()
            self._batch = None
            if batch.child.death is not None and not self.stopping:
                self._runners.start()

    def _give_back(self, rows: Iterable[ClaimedTask]) -> None:
        """Give back claimed tasks that have not begun. This does not count as an attempt."""
        for row in rows:
            del self._taken[row["claim"]]
            self._spool.keep({**claim_reference(row), "outcome": {"kind": "put_back"}})

    def _next_call(self) -> Call | None:
        """Return the Call that is due, or None."""
        if not self._is_known and self.stopping:
            self._session = ""
        if not self._session or not self._is_known and self._functions is None:
            return None
        if not self._is_known:
            self._offered.update(function["name"] for function in self._functions or ())
            return Call("hello", "lease_seconds", dump_json({
                "session": self._session, "protocol": 1, "pid": os.getpid(),
                "machine": jobqueue.machine_name()[:64], "version": jobqueue.VERSION,
                "functions": self._functions}))
        if self._before:                # the site still has the former session
            return self._turn(self._before, {"leave": "was started anew"})
        if self.adds and time.monotonic() < self._sent_at + 2 * HOLD_SECONDS:
            attempt, requests = self.adds[0]
            lines = "\n".join(map(dump_json, requests))
            return Call("tasks/%d" % attempt.row["id"], "ids", lines, headers={
                "Content-Type": jobqueue.LINES_TYPE,
                "Idempotency-Key": "%s-%d" % (attempt.row["claim"], attempt.answered_adds)})
        extra: JsonObject = {}
        running = self._batch.running[:1] if self._batch else []
        has_news = any(attempt.log or attempt.report for attempt in running)
        if self.stopping and not self._batch:
            if self.stopping == "limit" and not self._spool.ends:
                self._session = ""      # the process that follows ends this session
                return None
            extra = {} if self.stopping == "limit" else {"leave": self.stopping}
        elif not (self._batch or self._taken or self.stopping) and self._runners.child.ready:
            is_alone = self._settings["runner_per_owner"] == "yes"
            size = 1 if is_alone else min(CLAIMS_MAX, self._pace.size)
            self._claims = self._claims or [jobqueue.random_token() for _ in range(size)]
            extra["claim"] = {"claims": self._claims, "function": self._pace.function,
                              "wait": 0 if self._spool.ends else self._wait}
        begin_if_due = time.monotonic() >= self._sent_at + (TELL_SECONDS if has_news else HOLD_SECONDS)
        is_new = any("claimed" not in row for row in self._taken.values())
        if extra or self._spool.ends or is_new or self._taken and begin_if_due:
            return self._turn(self._session, extra)
        return None

    def _turn(self, session: str, extra: JsonObject) -> Call:
        """Return a turn with as many outcomes as fit. Only a turn that has all of them leaves or claims."""
        ends: list[AttemptItem] = []
        room, ours = CALL_BYTES, session == self._session
        for item in self._spool.ends.values():
            room -= json_bytes(item)
            if ends and room < 0:
                extra = {}
                break
            ends.append(item)
        running: list[RemoteAttempt] = []
        if self._batch and room > CALL_BYTES * 3 // 4:
            running = self._batch.running[:1]
        news = {attempt.row["claim"]: attempt.item() for attempt in running}
        rows = list(self._taken.values()) if ours else []
        self._sent_at, self._sequence = time.monotonic(), self._sequence + 1
        call = Call("turn", "attempts", dump_json({
            "session": session, "sequence": self._sequence if ours else jobqueue.INTEGER_MAX,
            "start": [claim_reference(row) for row in rows if "claimed" not in row],
            "hold": [news.get(row["claim"], claim_reference(row)) for row in rows if "claimed" in row],
            "end": ends, **extra}), extra.get("claim", {}).get("wait", 0.0))
        call.ends, call.extra_keys, call.session = ends, extra, session
        call.news = [News(attempt, news[attempt.row["claim"]]) for attempt in running]
        return call

    def _handle_answer(self, call: Call) -> None:
        """Handle the answer or the error of a call."""
        error = call.error or self._judge(call)
        if error is None:
            if self._trouble:
                jobqueue.complain("the site answers again")
            self._pause, self._trouble = AGAIN_SECONDS[0], None
            take = {"lease_seconds": self._handle_welcome, "attempts": self._handle_turn,
                    "ids": self._handle_added}[call.answer_key]
            return (take if call.answer_key in call.answer else self._handle_refusal)(call, call.answer)
        if error.why != self._trouble and not self.stopping:
            jobqueue.complain("the site does not answer: %s" % error.why)
        if time.monotonic() - call.sent > 1.0:
            self._wait /= 2             # a proxy may cut off calls that wait for long
        self._trouble = error.why
        pause = error.pause or self.clock.uniform(self._pause, 2 * self._pause)
        self._next, self._pause = time.monotonic() + pause, min(AGAIN_SECONDS[1], 2 * self._pause)

    def _judge(self, call: Call) -> NotHeard | None:
        """Return the fault of an answer, or None. Each task needs a proposed claim and an announced function.

        A refused token counts only the second time in a row. A request that a proxy has garbled must not
        end running tasks.
        """
        before, self._doubts_token = self._doubts_token, call.answer.get("code") == "unauthorized"
        if self._doubts_token and not before:
            return NotHeard(call.answer["detail"])
        unanswered = list(call.extra_keys.get("claim", {}).get("claims", ()))
        for task in call.answer.get("tasks", ()) if call.answer_key == "attempts" else ():
            if task["claim"] not in unanswered or task["function"] not in self._offered:
                return NotHeard("an answer with a task that was not asked for")
            unanswered.remove(task["claim"])
        return None

    def _handle_welcome(self, _: Call, answer: JsonObject) -> None:
        self._is_known, self.lease_seconds = True, answer["lease_seconds"]
        self.protocol = answer["protocol"]
        self._settings.update(answer["settings"])
        if not self._before:
            self._forget_former()

    def _forget_former(self) -> None:
        self._before = None
        self._spool.begin(self._session)

    def _handle_turn(self, call: Call, answer: JsonObject) -> None:
        for item in call.ends:
            self._spool.forget(item)
        for attempt, item in call.news:
            attempt.forget(item)
        if "leave" in call.extra_keys:
            if call.session == self._session:
                self._session = ""
            if self._before:
                self._forget_former()
            return
        for claim in self._taken.keys() & answer["attempts"].keys():
            row, state = self._taken[claim], answer["attempts"][claim]
            if self._batch or state == "running":
                row["state"], row["claimed"] = state, call.sent
            else:                       # the task has not begun, and must not begin
                del self._taken[claim]
                if state == "cancel":
                    self._spool.keep({**claim_reference(row), "outcome": {"kind": "cancelled"}})
        if "claim" in call.extra_keys:
            self._claims, idle = [], not (answer["tasks"] or call.ends)
            self._next = time.monotonic() + (answer["wait"] if idle else 0)
            self._wait = min(WAIT_SECONDS, self._wait + 1)
        for task in answer["tasks"]:      # the next turn confirms each task before it begins
            task.update(attempts=task["attempt"], put_backs=0, on_crash="retry",
                        owner_id=task["owner"])
            self._taken[task["claim"]] = task

    def _handle_added(self, _: Call, answer: JsonObject) -> None:
        self._answer_added({"ids": answer["ids"], "created": answer["created"]})

    def _answer_added(self, answer: ToRunner) -> None:
        attempt = self.adds.pop(0).attempt
        attempt.answered_adds += 1
        attempt.reply(answer)

    def _handle_refusal(self, call: Call, answer: JsonObject) -> None:
        """Handle a refusal: the session is gone, an add is wrong, or this worker is not allowed."""
        code, gone = answer["code"], answer.get("gone")
        if call.answer_key == "ids" and gone:
            self.adds.pop(0).attempt.end("lost")
        elif call.answer_key == "ids" and code not in ("unauthorized", "denied"):
            kinds = {kind.code: kind.__name__ for kind in JobQueueError.__subclasses__()}
            self._answer_added({"refused": Refusal(
                kinds.get(code, "JobQueueError"), answer["detail"], answer["errors"], None)})
        elif call.answer_key == "attempts" and code == "conflict":
            if call.session != self._session:
                self._forget_former()   # it has ended: the present session sends its outcomes
            self._is_known = self._is_known and not gone
        else:
            jobqueue.complain("the site refuses this worker: " + answer["detail"])
            self.exit_code, self._session = 5, ""
            self.stop("refused")
            for row in self._taken.values():
                row["state"] = "lost"
