"""Conditions: the findings that also open alerts.

`check`, the sentence above task lists (describe_service()) and the alerts use this class. So each condition
is defined once. Its texts stand in FINDINGS.
"""
from __future__ import annotations

from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import TASKS_FILE
from ..base.time_and_text import time_of_day
from ..store.connection import free_bytes
from ..store.database import Database
from ..store.state import recall
from ..store.settings import Settings
from ..store.sqlite_connection import WAL_ALARM_BYTES
from ..tasks.claims import Claims
from .catalogue import Catalogue
from .finding_table import Finding
from .schedule_rows import HELD_UP, why_held_up
from .tick_history import TickHistory
from .worker_modes import Modes

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Row
    from .finding_table import Findings

MISSED_SECONDS = 600.0
LOW_DISK_BYTES = 256 << 20


def disk_findings(folder: Path, is_open: bool = False) -> Findings:
    """Yield a finding while the file system of a folder is nearly full."""
    free = free_bytes(folder)
    if free < LOW_DISK_BYTES * (1.2 if is_open else 1):
        yield Finding("disk", free=free >> 20)


class Conditions:
    """The conditions of this queue that open alerts.

    Each method has the name of its row of FINDINGS. It yields a finding for each subject for which the
    condition holds. `is_open` says that its alert is open: some conditions have hysteresis.
    """

    def __init__(self, database: Database, settings: Settings, claims: Claims, tick_history: TickHistory,
                 modes: Modes, catalogue: Catalogue) -> None:
        self._database, self._settings, self._claims = database, settings, claims
        self._tick_history, self._modes, self._catalogue = tick_history, modes, catalogue

    def disk(self, is_open: bool = False) -> Findings:
        """Yield a finding while the file system of the data is nearly full."""
        return disk_findings(self._database.folder, is_open)

    def log(self, _: bool = False) -> Findings:
        """Yield a finding while the database's log is too long, because a program keeps reading it."""
        size = self._database.wal_bytes() if self._database.journal == "wal" else 0
        if size > WAL_ALARM_BYTES:
            yield Finding("log", size=size >> 20, path=self._database.path)

    def code(self, _: bool = False) -> Findings:
        """Yield a finding while tasks.py cannot be read."""
        error = self._catalogue.state()["error"]
        if error:
            place = ", line ".join(str(error[key]) for key in ("file", "line") if error[key])
            why = error["message"] + (" (%s)" % place if place else "")
            yield Finding("code", file=TASKS_FILE, why=why)

    def no_worker(self, _: bool = False) -> Findings:
        """Yield a finding while tasks could start, no worker is there, and none can be expected."""
        if not self._settings.get("NbMaxWorker") or not self._claims.claimable(1):
            return
        if self._database.value("SELECT 1 FROM worker WHERE mode<>'remote' AND state<>'starting'"):
            return
        mode, failure = self._modes.decide().mode, recall(self._database, "start_failure")
        why = self.absent_starter(mode) or failure and failure["message"]
        if why:
            yield Finding("no_worker", why=why)

    def absent_starter(self, mode: str) -> str | None:
        """Return a clause about the absent program that should start or be a worker in this mode, or None."""
        if mode == "service" and not self._tick_history.has_service():
            return "worker.py --service is not there"
        if mode != "cron":
            return None
        cron = self._tick_history.visitor("cron")
        return None if cron and cron["comes"] else "cron has not come lately"

    def waiting(self, is_open: bool = False) -> Findings:
        """Yield a finding while the oldest task that could start has waited longer than alert_wait."""
        limit, waited = self._settings.get("alert_wait"), self._claims.longest_wait()
        if not limit or not waited or not self._settings.get("NbMaxWorker"):
            return
        if waited > max(limit, 2 * (self._tick_history.period() or 0)) / (2 if is_open else 1):
            yield Finding("waiting", minutes=int(waited // 60))

    def missed(self, _: bool = False) -> Findings:
        """Yield a finding for each schedule whose newest run was late, or stood for several missed runs."""
        least = MISSED_SECONDS + (self._tick_history.period() or 0)
        for row in self._database.all("""
                SELECT id, name, function, late_at, coalesce((
                    SELECT max(at) FROM slot WHERE schedule_id=schedule.id AND task_id IS NULL
                    AND message LIKE 'missed, %' AND at BETWEEN last_at-86400*31 AND last_at
                ), last_at) AS first_at
                FROM schedule WHERE paused=0 AND gone_at IS NULL AND late_at>=last_at"""):
            if row["late_at"] - row["first_at"] > least:
                yield _schedule_finding("missed", row, at=time_of_day(row["late_at"]))

    def held_up(self, _: bool = False) -> Findings:
        """Yield a finding for each schedule whose runs wait for a task that does not end."""
        now = self._database.clock.now()
        for row in self._database.all("SELECT id, name, function, overlap, %s FROM schedule "
                                      "WHERE paused=0 AND gone_at IS NULL" % HELD_UP):
            why = why_held_up(row, now)
            if why:
                yield _schedule_finding("held_up", row, why=why)

    def problem(self, _: bool = False) -> Findings:
        """Yield a finding for each schedule that could not add its task the last time."""
        for row in self._database.all("SELECT id, name, function, problem FROM schedule "
                                      "WHERE paused=0 AND gone_at IS NULL AND problem IS NOT NULL"):
            yield _schedule_finding("problem", row, why=row["problem"])

    def backup(self, _: bool = False) -> Findings:
        """Yield a finding while the newest backup is older than alert_backup_days."""
        last, days = recall(self._database, "backup"), self._settings.get("alert_backup_days")
        if not last or not days:
            return
        age = self._database.clock.now() - last["at"]
        if age >= 86400 * days:
            yield Finding("backup", days=int(age // 86400),
                          command="backup" if self._database.journal else "export")

    def backup_failed(self, _: bool = False) -> Findings:
        """Yield a finding from a failed daily backup until the next one that succeeds."""
        state = self._settings.get("backup_hour") and recall(self._database, "daily_backup")
        if state and state["error"]:
            yield Finding("backup_failed", why=state["error"])


def schedule_name(row: Row | JsonObject) -> str:
    """Return the name of a schedule in a finding."""
    return "the schedule %d (%s)" % (row["id"], row["name"] or row["function"])


def _schedule_finding(code: str, row: Row, **values: Any) -> Finding:
    return Finding(code, subject=str(row["id"]), name=schedule_name(row), **values)
