"""Recorder: writes how attempts ended."""
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from jobqueue import TYPE_CHECKING, JobQueue, Outcome

from .attempt import TEMPORARY_ERRORS, Attempt, Batch, Pace
from .place import Place

if TYPE_CHECKING:
    from jobqueue import ClaimedTask


class Recorder:
    """The writer of outcomes.

    1. One transaction stores the rest of the output, records each outcome under its claim, puts back
       unbegun tasks, and claims the next ones.
    2. While the disk is full or the database is busy, the batch keeps everything. The worker's next round
       tries again. Meanwhile hold() renews the claims as soon as that is possible.
    3. After any other error each outcome is recorded alone. An outcome that cannot be stored fails its
       task with a StorageError. So no task harms another task of its batch.
    """

    def __init__(self, queue: JobQueue, place: Place, say: Callable[..., None]) -> None:
        self._claims, self._database, self._files = queue.claims, queue.database, queue.files
        self._place, self._say = place, say

    def record(self, batch: Batch[Attempt], pace: Pace | None = None, most: int = 0) -> list[ClaimedTask]:
        """Record the ended attempts of a batch. With a pace, claim up to `most` tasks; return their rows."""
        try:
            rows = self._write(batch, batch.ended, batch.unbegun, pace, most)
        except TEMPORARY_ERRORS:
            raise
        except Exception as error:      # after any error each outcome is recorded alone
            self._say("recording: %s", error)
            for attempt, outcome in batch.ended:
                self._record_alone(batch, attempt, outcome)
            rows = self._write(batch, [], batch.unbegun)
        batch.ended, batch.unbegun, batch.record_by = [], [], math.inf
        return rows

    def hold(self, batch: Batch[Attempt] | None) -> None:
        """Renew the worker's row, and the claims of ended or unbegun attempts that are not recorded yet."""
        pending = [*batch.unbegun, *(attempt for attempt, _ in batch.ended)] if batch else []
        with contextlib.suppress(*TEMPORARY_ERRORS), \
                self._database.transaction(durable=False) as transaction:
            for attempt in pending:
                attempt.renew(transaction)
            self._place.heartbeat(transaction)

    def _record_alone(self, batch: Batch[Attempt], attempt: Attempt, outcome: Outcome) -> None:
        try:
            self._write(batch, [(attempt, outcome)], [])
        except TEMPORARY_ERRORS:
            raise
        except Exception as error:
            attempt.drop()
            outcome = Outcome("fail", error_type="StorageError",
                              error_message="its outcome could not be stored: %s" % error)
            self._write(batch, [(attempt, outcome)], [])

    def _write(self, batch: Batch[Attempt], ended: list[tuple[Attempt, Outcome]], unbegun: list[Attempt],
               pace: Pace | None = None, most: int = 0) -> list[ClaimedTask]:
        rows: list[ClaimedTask] = []
        size = min(pace.size, most) if pace else 0
        endings = [(attempt, Outcome("put_back")) for attempt in unbegun]
        endings += [(attempt, outcome) for attempt, outcome in ended if outcome.kind != "lost"]
        with self._database.transaction(durable=False) as transaction:
            now = self._database.clock.now()
            for attempt, _ in endings:
                attempt.write_ending(transaction)
            verdicts = self._claims.end_all(
                transaction, [(*attempt.key, outcome) for attempt, outcome in endings], now)
            if pace:
                rows = self._claims.claim(transaction, self._place.id, now, size, pace.function,
                                          batch.child.owner)
            if not rows and not batch.running:
                self._place.heartbeat(transaction, "stopping" if self._place.stopping else "idle")
        for (attempt, _), verdict in zip(endings, verdicts):
            if verdict:                 # the claimed tasks must begin even if these files cannot be removed
                with contextlib.suppress(*TEMPORARY_ERRORS):
                    self._files.tidy(attempt.row["id"], verdict)
        return rows
