"""Commands about settings, people, schedules, the host, its data."""
from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.errors import NotFound, field_error
from ..base.time_and_text import Clock, iso, parse_time
from ..base.values import OPTION_SCHEMAS, checked, parse_text
from ..base.options import data_folder
from ..store.connection import write_private
from ..store.data_folder import repair_journal
from ..store.settings import SETTINGS
from ..upkeep.rollup import DAY, HOUR, STEPS
from ..upkeep.alerts import CUT_OFF, SENDING_SECONDS
from ..access.python_interface import JobQueue
from ..access.host import host_files
from ..upkeep.finding_table import BAD
from ..access.findings import check_installation, next_step
from ..access.backup import back_up, export_lines, export_to, import_lines, restore
from .handlers_site import PREVIEW, preview_rule
from .printing import say, show, table
from .clients import Client
from .command_rows import IN_ADDRESS, columns
from .commands_tasks import known_function, typed_arguments

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ..base.types import JsonObject

PERIODS = {"h": HOUR, "d": DAY, "w": 7 * DAY}


def cmd_settings(client: Client, options: Namespace) -> None:
    """Print all settings, print one, or change one."""
    name, value = options.given.get("name"), options.given.get("value")
    if name not in (None, *SETTINGS):
        raise field_error(name, "is not a setting; known are %s" % ", ".join(SETTINGS))
    answer = client.ask("GET", "/api/settings") if value is None else client.ask(
        "PATCH", "/api/settings", {name: parse_text(SETTINGS[name].schema, value)})
    if name is None:
        show(options, answer, columns("name value unit from label help", answer["settings"]))
    else:
        row = next(row for row in answer["settings"] if row["name"] == name)
        show(options, row, str(row["value"]))


def read_password() -> str:
    """Return a password from the terminal, asked twice, or the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    import getpass
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise field_error("password", "was typed differently the second time")
    return password


def cmd_add_token(client: Client, options: Namespace) -> None:
    """Make an API token, which is printed once or written to a file."""
    fields = dict(options.given)
    path = fields.pop("file", None)
    token = client.ask("POST", "/api/tokens", fields)
    if path is None:
        show(options, token, token["token"])
        return
    try:
        write_private(Path(path), token["token"] + "\n")
    except OSError:
        client.ask("DELETE", "/api/tokens/%d" % token["id"])
        raise


def cmd_invite(client: Client, options: Namespace) -> None:
    """Print a link with which a new user chooses a name and a password. It works once, for a day."""
    answer = client.ask("POST", "/api/invitations", options.given)
    place, page = "#invite=" + answer["code"], options.server and options.server.rstrip("/") + "/"
    show(options, answer, answer["link"] or (
        page + place if page else "Put this behind the address of your page:\n\n    " + place))


def cmd_preview(_: None, options: Namespace) -> None:
    """Print when a rule is due."""
    fields = dict(options.given)
    fields["rule"] = " ".join(fields.pop("words"))
    moments = preview_rule(checked(PREVIEW, fields), Clock.now())
    show(options, moments, "\n".join(moment["local"] for moment in moments["times"]))


def cmd_add_schedule(client: Client, options: Namespace) -> None:
    """Add a schedule and print its id."""
    fields = dict(options.given)
    name, *words = fields.pop("words") or [""]
    typed = [word for word in words if "=" in word]
    added = client.ask("POST", "/api/schedules", {
        "function": name, "rule": " ".join(word for word in words if word not in typed),
        "arguments": typed_arguments(known_function(client, name), typed),
        "options": {option: fields.pop(option) for option in OPTION_SCHEMAS if option in fields},
        **fields})
    show(options, added, str(added["id"]))


# The figures in the table ALL by their names, each with its path in the totals of GET /api/metrics.
TOTAL_FIGURES = {
    "minimum executing time": "executed.min", "maximum executing time": "executed.max",
    "mean executing time": "executed.mean", "mean throughput": "mean_throughput",
    "maximum throughput": "maximum_throughput", "utilization": "utilization",
    "added": "added", "started": "started", "failed": "failed", "finished": "succeeded",
    "error": "retried", "minimum service time": "service.min", "mean service time": "service.mean",
    "maximum service time": "service.max"}


def _figure(answer: JsonObject, path: str) -> str:
    """Return a number of an answer as text, by its path; a dash if nothing was measured."""
    value: Any = answer
    for name in path.split("."):
        value = value[name]
    return "-" if value is None else "%.4g" % value if isinstance(value, float) else str(value)


def _figures_table(titles: Sequence[str], rows: Sequence[JsonObject], paths: Sequence[str]) -> str:
    """Return a table of some figures of each row, with a bar for the number of ended tasks."""
    most = max([row["succeeded"] + row["failed"] for row in rows] or [0]) or 1
    return table((*titles, *"ADDED SUCCEEDED FAILED RETRIED WAITED RAN 95TH".split(), ""), [
        [*(row[path] for path in paths), *(_figure(row, path) for path in (
            "added", "succeeded", "failed", "retried", "waited.p50", "ran.p50", "ran.p95")),
         "#" * math.ceil(30 * (row["succeeded"] + row["failed"]) / most)] for row in rows])


def cmd_stats(client: Client, options: Namespace) -> None:
    """Print how much was done and how long it took: by time, by function, and in total."""
    fields, now = dict(options.given), client.clock.now()
    since = fields.pop("since", "1d")
    match = re.fullmatch("([0-9]{1,4})([hdw])", since)
    start = now - int(match[1]) * PERIODS[match[2]] if match else parse_time(since, "--since")
    fitting = [step for step, seconds in STEPS.items() if now - start <= 60 * seconds]
    metrics = client.ask("GET", "/api/metrics", {
        "from": iso(start), "step": [*fitting, "week"][0], **fields})
    show(options, metrics, "\n\n".join([
        _figures_table(["FROM"], metrics["points"], ["at"]),
        _figures_table(["FUNCTION"], metrics["functions"], ["name"]),
        table(("ALL", ""), [(name, _figure(metrics["totals"], path))
                            for name, path in TOTAL_FIGURES.items()])]))


def cmd_set_queue(client: Client, options: Namespace) -> None:
    """Set limits of a queue, and make it if it is new."""
    limits = dict(options.given)
    name = limits.pop("name")
    try:
        changed = client.ask("PATCH", "/api/queues/" + quote(name, **IN_ADDRESS), limits)
    except NotFound:
        changed = client.ask("POST", "/api/queues", {"name": name, **limits})
    show(options, changed, None)


def _channel_text(channel: JsonObject) -> str:
    state = channel["error"] or (channel["sent_at"] and "sent at %s" % channel["sent_at"]) or "not sent yet"
    return "%s %s: %s" % (channel["channel"], channel["recipient"], state)


def cmd_test_alerts(client: Client, options: Namespace) -> int:
    """Send a test message to every recipient of alerts, and print how that went."""
    sent = {(delivery["channel"], delivery["recipient"]): delivery["id"] for delivery in
            client.ask("POST", "/api/alerts/test", {})["deliveries"]}
    until = time.monotonic() + SENDING_SECONDS
    channels: list[JsonObject] = []
    while time.monotonic() < until:
        states = client.ask("GET", "/api/alerts")["channels"]
        channels = [state for state in states if state["last"] == sent.get(
            (state["channel"], state["recipient"]))]
        if len(channels) == len(sent) and CUT_OFF not in [channel["error"] for channel in channels]:
            break
        time.sleep(0.2)
    show(options, channels, "\n".join(map(_channel_text, channels)) or "Nothing was sent in time.")
    return 1 if len(channels) < len(sent) or any(channel["error"] for channel in channels) else 0


def cmd_tick(queue: JobQueue, _: Namespace) -> None:
    """Do the maintenance once: reap dead workers, promote due tasks, run schedules, start workers."""
    queue.catalogue.refresh()
    queue.tick.run("cron")


def cmd_backup(queue: JobQueue, options: Namespace) -> None:
    """Copy the database to a file, while everything goes on."""
    path = options.given["file"]
    back_up(queue, path)
    size = os.path.getsize(path)
    show(options, {"file": path, "bytes": size}, "%s: %.1f MB, checked" % (path, size / 1e6))


def cmd_restore(_: None, options: Namespace) -> None:
    """Replace the database by a backup. The old database stays under another name."""
    old_path = restore(data_folder(options.data), options.given["file"], "force" in options.given)
    show(options, {"kept": str(old_path)}, "The backup is restored. The old database is now %s" % old_path)


def cmd_export(queue: JobQueue, options: Namespace) -> None:
    """Write the whole database as lines of JSON, which import reads."""
    path = options.given["file"]
    if path == "-":
        for line in export_lines(queue):
            say(line)
        return
    export_to(queue, path)
    size = os.path.getsize(path)
    show(options, {"file": path, "bytes": size}, "%s: %.1f MB" % (path, size / 1e6))


def cmd_import(queue: JobQueue, options: Namespace) -> None:
    """Read an export into a database without users and tasks, and pause its queues."""
    import shutil
    import tempfile
    path = options.given["file"]
    if path == "-":                     # copy it first, so that no server waits for standard input
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as lines:
            shutil.copyfileobj(sys.stdin, lines)
            lines.seek(0)
            counts = import_lines(queue, lines)
    else:
        with open(path, "rb") as file:
            counts = import_lines(queue, file)
    show(options, counts, "%(user)d users, %(task)d tasks and %(schedule)d schedules; all queues "
                          "are paused: see python3 jobqueue.py queue resume" % counts)


def cmd_check(_: None, options: Namespace) -> int:
    """Print the state of this host and this queue; exit code 1 if something is bad."""
    if "repair" in options.given:
        say("journal mode: " + repair_journal(data_folder(options.data),
                                              options.given["repair"] == "shared"))
    report, queue = check_installation(options.data)
    shown: JsonObject = {"checks": [check._asdict() for check in report.checks], "advice": None,
                         "files": None}
    lines = ["%(verdict)-5s %(name)-11s %(text)s" % check for check in shown["checks"]]
    if queue:
        shown["advice"] = next_step(report)
        lines += ["", shown["advice"], "For lines of cron and of web servers, with your paths: "
                  "python3 jobqueue.py check --files"]
    if queue and "files" in options.given:
        shown["files"] = host_files(queue)
        lines = ["# %(title)s: %(name)s\n\n%(text)s" % file for file in shown["files"]]
    show(options, shown, "\n".join(lines))
    return 1 if any(check.verdict == BAD for check in report.checks) else 0


