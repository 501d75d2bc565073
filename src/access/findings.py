"""The findings of `check` and of the page This host.

FINDINGS has a row for everything that can be wrong here, or is worth knowing. The functions of TOPICS yield
texts about the state, and a Finding for each row that is true here. describe_work() yields the Findings that
explain why tasks do not run. `check` and the page This host show both by topic. Every user sees the first
explanation above the lists of the page. The advice is the first remedy. An error in a check becomes a
Finding, too.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import (CLOCK_SLACK_SECONDS, FAILED, HOME, LOOPBACK, PENDING, STATUS_WORDS, TASKS_FILE,
                           VERSION, WORKER_FILE)
from ..base.errors import Invalid, JobQueueError
from ..base.time_and_text import how_often, iso, random_token, shorten, storable, time_of_day
from ..base.options import SERVER_SCHEMES, data_folder
from ..store.connection import free_bytes
from ..store.schema import SCHEMA_VERSION
from ..store.sqlite import file_system
from ..store.data_folder import user_name
from ..store.state import recall
from ..tasks.followers import lanes
from ..upkeep.tick_history import VISITORS
from ..upkeep.worker_modes import create_lock
from ..upkeep.finding_table import BACKUPS, BAD, FINE, READ_ALL_BYTES, Finding, readable_time
from ..upkeep.conditions import disk_findings, schedule_name
from ..upkeep.alerts import IS_OPEN, UNSENT_SECONDS, is_message_due, page_link
from .people import SCRYPT_MISSING, knows_scrypt
from .python_interface import JobQueue
from .host import DOORS, WEB_FOLDERS, exposure, is_world_writable, read_text

if TYPE_CHECKING:
    from typing import TypeVar, Union

    from ..base.types import JsonObject
    from ..upkeep.finding_table import Findings, Lines
    from .host import Visit

if TYPE_CHECKING:
    Found = tuple[str, Union[str, Finding]]     # a topic, and a text or Finding about it
    About = TypeVar("About")                    # the object that is checked


def _check_program(folder: Path) -> Lines:
    others_files = [name for name in ("worker.py", "static/index.html")
             if '"%s"' % VERSION not in read_text(HOME / name)]
    yield "jobqueue %s in %s" % (VERSION, HOME)
    yield "%s %s, SQLite %s" % (sys.executable, sys.version.split()[0], sqlite3.sqlite_version)
    if others_files:
        yield Finding("files_mixed", names=", ".join(others_files))
    if not knows_scrypt():
        yield Finding("scrypt_missing", why=SCRYPT_MISSING)
    ours, owner = os.getuid(), HOME.stat().st_uid
    open_ones = ["'%s'" % path for path in (
        HOME, HOME / "jobqueue.py", WORKER_FILE, TASKS_FILE, folder.parent) if is_world_writable(path)]
    yield "runs as %s (uid %d)" % (user_name(ours), ours)
    if open_ones:
        yield Finding("program_open", paths=" ".join(open_ones))
    elif ours not in (0, owner):
        yield Finding("program_of_other", owner=user_name(owner), user=user_name(ours))


def _check_data(folder: Path) -> Lines:
    yield str(folder)
    if not folder.is_dir():
        yield Finding("data_none")
        return
    address = HOME / "data"
    if read_text(address).startswith(SERVER_SCHEMES) and address.stat().st_mode & 0o077:
        yield Finding("address_open", path=address)
    if folder.stat().st_mode & 0o077:   # opening the folder tries to mend this before
        yield Finding("data_open", folder=folder)


def _check_disk(folder: Path) -> Lines:
    """Check the free space on the disk, and make, write and remove a file like a worker's lock."""
    place = folder if folder.is_dir() else HOME
    yield "%.1f GB free" % (free_bytes(place) / 1e9)
    yield from disk_findings(place)
    if not folder.is_dir():
        return
    path = folder / "locks" / ("check-" + random_token(6))
    try:
        handle, locks = create_lock(path)
        os.close(handle)
        path.write_bytes(b"." * 4096)
        path.unlink()
    except OSError as error:
        yield Finding("data_closed", folder=folder, why=error.strerror)
        return
    closed = ["'%s'" % path for path in sorted(folder.glob("jobqueue-*.db*"))
              if not os.access(path, os.W_OK)]
    if closed:
        yield Finding("database_closed", paths=" ".join(closed))
    if not locks:
        yield Finding("locks_missing")


# Checks of how the page was reached. Their argument is a Request.visit().

def _check_visit(visit: Visit) -> Lines:
    yield DOORS[visit["door"]]
    if visit["door"] == "mod_wsgi embedded":
        yield Finding("door_shared")
    if visit["forwarded"] and not visit["trusted"]:
        yield Finding("proxy_unknown", client=visit["client"])
    elif visit["https"]:
        yield "HTTPS"
    elif visit["client"] in LOOPBACK and not visit["forwarded"]:    # otherwise the address may be a proxy's
        yield "HTTP, from this machine"
    else:
        yield Finding("http_open")


# Checks of the queue. Their argument is the JobQueue.

def _check_admin(queue: JobQueue) -> Lines:
    old = queue.database.value("SELECT name FROM user WHERE password NOT LIKE 'scrypt$%'")
    files = ", ".join(map(str, queue.setup.files()))
    yield "%d users" % len(queue.users.all())
    if old:
        yield Finding("old_password", name=old)
    if not queue.users.has_admin():
        yield Finding("no_admin", file=queue.setup.file)
    elif files:
        yield Finding("code_left", files=files)


def _check_exposure(queue: JobQueue) -> Lines:
    folder, visible = queue.database.folder, exposure(queue)
    inside = WEB_FOLDERS.intersection(part.lower() for part in folder.parts)
    yield "the data is %s a web folder" % ("inside" if inside else "not inside")
    if visible["exposed"]:
        yield Finding("exposed", addresses=", ".join(visible["exposed"]))
    elif inside and not (folder / ".htaccess").exists():
        yield Finding("htaccess_missing")
    elif visible["at"]:
        yield "an admin's browser found no private file, %s" % readable_time(visible["at"])
    else:
        yield Finding("unlooked")


def _check_workers(queue: JobQueue) -> Lines:
    yield "%d of %d running" % (len(queue.workers.rows()), queue.settings.get("NbMaxWorker"))
    yield ("%s. %s" % queue.modes.decide()).rstrip(".")


def _check_worker(queue: JobQueue) -> Lines:
    yield "tasks run with " + queue.interpreter.path()
    task_id = recall(queue.database, "sample_task")
    status = task_id and queue.database.value("SELECT status FROM task WHERE id=?", (task_id,))
    if status == FAILED:
        yield Finding("sample_failed", id=task_id)
    elif status is not None:
        yield "the sample task %d: %s" % (task_id, STATUS_WORDS[status])


def _check_machines(queue: JobQueue) -> Lines:
    database = queue.database
    rows = database.all("SELECT machine, version, count(*) AS workers FROM worker "
                        "GROUP BY machine, version ORDER BY machine, version")
    yield "; ".join("workers on %s: %d" % (row["machine"], row["workers"]) for row in rows) or (
        "no worker runs")
    other_versions = ["%s has %s" % tuple(row)[:2] for row in rows if row["version"] != VERSION]
    if other_versions:
        yield Finding("versions_differ", version=VERSION, names=", ".join(other_versions))
    ahead = database.clock_offset
    if abs(ahead) > CLOCK_SLACK_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding("clock_differs", seconds=abs(ahead), way=way)


def _check_ticks(queue: JobQueue) -> Lines:
    cron, period = queue.tick_history.visitor("cron"), queue.tick_history.period()
    yield "cron came last at " + readable_time(cron["last_at"]) if cron else "no cron has come"
    if period:
        yield "due tasks and schedules are checked " + how_often(period)
    elif not any(visits and visits["comes"] for visits in map(queue.tick_history.visitor, VISITORS)):
        yield Finding("nobody_comes")


def _check_journal(queue: JobQueue) -> Lines:
    database = queue.database
    if database.journal is None:        # PostgreSQL has no journal file
        server = database.server_facts()
        yield "PostgreSQL " + server["version"]
        if server["lags"]:
            yield Finding("copy_lags")
        if server["holder"]:
            yield Finding("snapshot_old", holder=server["holder"])
        return
    yield "journal mode %s, file system %s" % (database.journal.upper(), file_system(database.folder))


def _check_database(queue: JobQueue, reads_all: bool = True) -> Lines:
    database, size = queue.database, queue.database.size()
    if database.journal and size > READ_ALL_BYTES and not reads_all:
        yield ("%.0f MB, too large to check while a browser waits: run python3 jobqueue.py check"
               % (size / 1e6))
        return
    damage = database.damage()
    if damage:
        yield Finding("damaged", name=database, why=shorten(damage, 200))
    else:
        yield "%s: %s%.1f MB, schema %d" % (
            database, "intact, " if database.journal else "", size / 1e6, SCHEMA_VERSION)


def _check_backup(queue: JobQueue) -> Lines:
    last = recall(queue.database, "backup")
    yield "the last one: %s, %s%s" % (
        readable_time(last["at"]), last["path"], "" if os.path.exists(last["path"]) else
        " (no longer there)") if last else "none yet"
    if queue.settings.get("backup_hour"):
        yield "one every day in %s: now and then copy that folder to another computer" % (
            queue.database.folder / BACKUPS)
    yield from queue.conditions.backup_failed()
    yield from queue.conditions.backup()
    if not last:
        yield Finding("backup_none", command="backup" if queue.database.journal else "export")


def _check_functions(queue: JobQueue) -> Lines:
    queue.catalogue.refresh(wait=True)
    state = queue.catalogue.state()
    functions = queue.catalogue.functions()
    names = ", ".join(function["name"] for function in functions)
    unclear = ["%s(%s: %s)" % (function["name"], name, schema["unclear"]) for function in functions
               for name, schema in function["schema"]["properties"].items() if "unclear" in schema]
    readers = queue.catalogue.readers()
    if len({reader["digest"] for reader in readers.values()}) > 1:
        yield Finding("tasks_differ", places=", ".join(sorted(readers)))
    if unclear:
        yield Finding("hint_unclear", names=shorten(", ".join(unclear), 300))
    if state["samples"]:
        yield "no %s yet; the sample functions are: %s" % (TASKS_FILE, names)
        yield Finding("samples")
    elif names:
        yield "%s: %s" % (TASKS_FILE, names)
    elif not state["error"]:            # the finding `code` reports the error
        yield Finding("no_function", file=TASKS_FILE)


def _check_schedules(queue: JobQueue) -> Lines:
    schedules = queue.schedules.find()
    yield "%d schedules" % len(schedules)
    warnings = (Finding("schedule_warning", name=schedule_name(row), why=row["warning"])
                for row in schedules if row["warning"])
    for findings in map(list, (queue.conditions.problem(), warnings)):
        yield from findings[:1]
        if len(findings) > 1:
            yield "and %d more" % (len(findings) - 1)


def _check_tasks(queue: JobQueue) -> Lines:
    database, now, waited = queue.database, queue.database.clock.now(), queue.claims.longest_wait()
    leases = queue.claims.leases.seconds_left(now)
    failures = database.all(
        "SELECT function, count(*) AS failed FROM activity "
        "WHERE id>(SELECT max(id) FROM activity)-200000 AND event='failed' AND at>? "
        "GROUP BY function ORDER BY failed DESC, function", (now - 86400,))
    newest = database.value("SELECT at FROM activity ORDER BY id DESC LIMIT 1") or 0
    yield "%d running" % len(leases)
    remaining, task_id = min(((seconds, task_id) for task_id, seconds in leases.items()),
                             default=(0, None))
    if remaining < -database.lease_seconds:
        yield Finding("task_lost", id=task_id, seconds=-remaining)
    old = list(queue.conditions.waiting())
    yield from old
    if waited is not None and not old:
        yield "the oldest task that could start has waited %d min" % (waited // 60)
    if failures:
        yield "%d failed in the last day, most often %s (%d)" % (
            sum(row["failed"] for row in failures), *failures[0])
    if newest - now > CLOCK_SLACK_SECONDS:
        yield Finding("clock_back", seconds=newest - now, at=readable_time(newest))


def _check_alerts(queue: JobQueue) -> Lines:
    states = list(queue.alerts.channels())
    open_ones = queue.database.value("SELECT count(*) FROM alert WHERE ended_at IS NULL "
                                     "AND " + IS_OPEN)
    yield "%d open; recipients: %s" % (open_ones, ", ".join(
        state["recipient"] for state in states) or "none")
    if is_message_due(queue.database, queue.database.clock.now() - UNSENT_SECONDS):
        yield Finding("outbox_waits", minutes=UNSENT_SECONDS // 60)
    if states and not page_link(queue.settings, ""):
        yield Finding("links_missing")
    for state in states:
        if state["error"] and state["next_at"] is None:
            yield Finding("channel_fails", channel=state["channel"], recipient=state["recipient"],
                          error=state["error"])


# Findings for every user, the most important first. The first one is shown above the lists of the page.

def _describe_obstacles(queue: JobQueue) -> Findings:
    database = queue.database
    try:
        if free_bytes(database.folder) < 1 << 20:
            yield Finding("disk_full")
    except OSError:
        yield Finding("data_gone")
        return
    yield from queue.conditions.log()
    if queue.settings.get("NbMaxWorker") == 0:
        yield Finding("off")
    yield from queue.conditions.code()


def _describe_starts(queue: JobQueue) -> Findings:
    """Yield findings about the start of workers, and about tasks that could run now."""
    failure, mode = recall(queue.database, "start_failure"), queue.modes.decide().mode
    waits = queue.claims.claimable(1) > 0
    states = {row["state"] for row in queue.database.all(
        "SELECT state FROM worker WHERE mode<>'remote'")} if waits else set()
    nobody_works = waits and not states
    if not waits:
        yield from _describe_pause(queue)
    if failure:
        # In the mode slice, a waiting page runs tasks itself after the pause. Then only `check` shows this.
        is_for_everyone = waits and not states - {"starting"} and not (
            queue.database.clock.now() >= failure["next"] and mode == "slice")
        yield Finding("start_failed", failure["at"], is_for_everyone, why=failure["message"],
                      at=readable_time(failure["at"]), next=time_of_day(failure["next"]))
    if mode == "slice" and waits and queue.starter.needed():
        yield Finding("slices_awaited")
    if queue.conditions.absent_starter(mode):
        yield Finding("cron_missing" if mode == "cron" else "service_missing",
                      is_for_everyone=nobody_works)
    elif mode == "cron" and nobody_works:
        cron = queue.tick_history.visitor("cron")
        if cron:
            often = ", which comes about %s" % how_often(cron["period"]) if cron["period"] else ""
            yield Finding("cron_awaited", cron["last_at"], often=often,
                          at=time_of_day(cron["last_at"]))
    if waits and "idle" not in states:
        yield Finding("busy" if "busy" in states else "starting",
                      more=", and " + failure["message"] if failure else "")


def _describe_pause(queue: JobQueue) -> Findings:
    names = sorted({lane[0] for lane in lanes(queue.database, PENDING)})
    blocks = [queue.queues.blocked(name, queue.claims.machine) for name in names]
    held = [block for block in blocks if block.code not in ("external", "machines")]
    if held and all(code == "paused" for code, _ in held):      # a limit that is reached is no finding
        yield Finding("paused", words=held[0][1])


def describe_work(queue: JobQueue) -> Findings:
    """Yield the findings that explain why tasks do not run, the most important first."""
    yield from _describe_obstacles(queue)
    yield from _describe_starts(queue)


def describe_service(queue: JobQueue, is_admin: bool = True) -> JsonObject:
    """Return the state of the service for everyone: {"code", "text", "since"}. The code is usually "ok"."""
    finding = next((candidate for candidate in describe_work(queue) if candidate.service_code), None)
    if not finding:
        return {"code": "ok", "text": "", "since": None}
    text = finding.service_text if is_admin else finding.service_text_for_users
    return {"code": finding.service_code, "text": text, "since": iso(finding.since)}


HOST_TOPICS = {"Program": _check_program, "Data": _check_data, "Disk": _check_disk}
VISIT_TOPICS = {"Web server": _check_visit}
TOPICS: dict[str, Callable[[JobQueue], Lines]] = {
    "Admin": _check_admin, "Exposure": _check_exposure, "Workers": _check_workers,
    "Worker": _check_worker, "Machines": _check_machines, "Cron": _check_ticks,
    "Journal": _check_journal, "Database": _check_database, "Backup": _check_backup,
    "Functions": _check_functions, "Schedules": _check_schedules, "Tasks": _check_tasks,
    "Alerts": _check_alerts}


class Check(NamedTuple):
    """A line of `check`: the state of a topic."""

    name: str
    verdict: str
    text: str


class Report(NamedTuple):
    """The checks and findings of a host and a queue."""

    checks: list[Check]
    findings: list[Finding]


def _run_checks(topics: Mapping[str, Callable[[About], Lines]], about: About) -> Iterator[Found]:
    """Yield the results of each topic's check. An error in one check does not end the others."""
    for topic, check in topics.items():
        try:
            yield from ((topic, result) for result in check(about))
        except Exception as error:      # an error must not hide the other topics
            yield topic, Finding("unknown", why=getattr(error, "detail", None) or (
                "this could not be checked: %s: %s" % (
                    type(error).__name__, storable(shorten(str(error), 300)))))


def _report(results: list[Found]) -> Report:
    topics: dict[str, list[str | Finding]] = {}
    for topic, result in results:
        topics.setdefault(topic, []).append(result)
    checks = [Check(topic, min(getattr(result, "verdict", FINE) for result in here),
                    "; ".join(filter(None, map(str, here)))) for topic, here in topics.items()]
    return Report(checks, [result for _, result in results if isinstance(result, Finding)])


def check_host(queue: JobQueue, visit: Visit | None = None) -> Report:
    """Check this host and this queue; return a Report.

    `visit` is a Request.visit(). With it the web server is checked, too, and a large database is not read
    through, since a browser waits.
    """
    looks: dict[str, Callable[[JobQueue], Lines]] = {
        **TOPICS, "Database": functools.partial(_check_database, reads_all=not visit)}
    results = [*_run_checks(HOST_TOPICS, queue.database.folder), *_run_checks(looks, queue)]
    if visit:
        results += _run_checks(VISIT_TOPICS, visit)
    with contextlib.suppress(JobQueueError):            # _run_checks() reports the error
        results += ((finding.topic, finding) for finding in describe_work(queue) if finding.topic)
    return _report(results)


class Installation(NamedTuple):
    """The report of an installation, and its JobQueue if it could be opened."""

    report: Report
    queue: JobQueue | None


def check_installation(data: Path | str | None = None) -> Installation:
    """Check an installation that may be broken. It creates nothing and raises nothing."""
    folder, topic = HOME / "data", "Data"
    queue: JobQueue | None = None
    results: list[Found] = []
    try:
        folder, topic = data_folder(data), "Database"
        queue = JobQueue(data) if os.path.lexists(folder) else None
    except (JobQueueError, OSError, sqlite3.Error) as error:
        topic = "Settings" if isinstance(error, Invalid) else topic
        results = [(topic, Finding("unknown", why=str(error)))]
    if not queue:
        return Installation(_report([*_run_checks(HOST_TOPICS, folder), *results]), None)
    return Installation(check_host(queue), queue)


def next_step(report: Report) -> str:
    """Return the advice: the first remedy of the bad findings; if there are none, of all findings.

    It ends without a full stop, because a remedy may end with a command.
    """
    bad = [finding for finding in report.findings if finding.verdict == BAD]
    remedy = next((finding.remedy for finding in bad or report.findings if finding.remedy),
                  "fix the bad findings" if bad else "")
    return "Next: %s" % remedy if remedy else "No action is needed."
