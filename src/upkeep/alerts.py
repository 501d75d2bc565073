"""Alerts: conditions, their recipients, when they open and end.

All decisions come from rows. Any process that ticks may make them, at most once in WATCH_SECONDS:

1. Conditions returns the findings that hold now. The activity since the last check shows the tasks that
   failed for good.
2. A finding makes a row of `alert`, unless another alert explains it. There is one row for each code and
   subject. An alert opens when two checks in a row have its finding, and ends at a check without it. The
   alert of a failed task opens at once. It ends a day after the last such failure, or three hours
   after it if the failed tasks of its function were retried or deleted.
3. Recipients get a message when an alert opens, then daily while it is open. They also get one when an
   alert ends, if they were told that it opened.
4. Messages are rows of `delivery`. A child process sends them (upkeep/notifications.py), so no request,
   claim or tick waits for a server. After a message there is no check for PACE_SECONDS. The next message
   covers that time.
"""
from __future__ import annotations

import collections
import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import PAGE_ROWS
from ..base.errors import Conflict, NotFound
from ..base.time_and_text import dump_json, iso, seconds_since, shorten
from ..base.values import MASKED, secret_texts, shown_arguments
from ..store.connection import LOOK_SECONDS, Connection, Reader
from ..store.database import Database
from ..store.state import recall, remember
from ..store.settings import MAIL_ADDRESS, Settings, web_label
from .tick_history import renew_mark
from .worker_modes import START_ERRORS
from .finding_table import FINDINGS, Finding, readable_time
from .starter import Starter
from .conditions import Conditions

if TYPE_CHECKING:
    from typing import TypedDict

    from ..base.types import JsonObject, Row

if TYPE_CHECKING:
    AlertKey = tuple[str, str]          # code, subject

    class MessageContent(TypedDict, total=False):
        """The text of a message. `thread` is the id of the alert that it is mainly about."""

        kind: str                       # alert, test, task or summary
        thread: int
        subject: str
        lines: list[str]
        link: str                       # address of the page that it is mainly about
        task: int                       # the task whose last lines of output are in `log`
        log: list[str]

WATCH_SECONDS = 30.0
PACE_SECONDS = 180.0            # between two messages: a recipient gets at most 20 an hour
REPEAT_SECONDS = 86400.0        # between two messages about an open alert
QUIET_SECONDS = 86400.0         # a failure's alert ends after this time without such a failure
SETTLED_SECONDS = 3 * 3600.0    # or after this time, if all that failed was retried or deleted
# Functions with failed tasks, or with tasks that were retried and have not ended.
STILL_FAILED = """SELECT DISTINCT function FROM task WHERE status=FAILED AND finished_at>=?
    OR status IN (PENDING, SCHEDULED, WAITING) AND attempts>0 OR status=RUNNING AND attempts>1"""
IS_OPEN = "(seen_at>opened_at OR code='failed')"
ALERT_GROUPS_MAX = 50           # open alerts and new groups of failures; then one group for each function
UNTIL_IT_ENDS = 253402300799.0  # the year 9999
MUTES = {"1h": 3600.0, "8h": 8 * 3600.0, "end": UNTIL_IT_ENDS, "no": None}
MESSAGE_LINES = 30              # each of at most 500 characters: some receivers take only 20 kB
LOG_LINES, LOG_LINE_CHARACTERS = 10, 200        # of a task's output in a message
CONTROLS = r"\x1b\[[0-9;?]*[ -/]*[@-~]|[^\t -~\xa0-\U0010ffff]"        # colours, bells
LOG_PIECES = 50                 # stored pieces of output that are read for these lines
SENDING_MARK, SENDING_SECONDS = "sending.mark", 60.0    # mark and longest life of a sending process
CUT_OFF = "There was no answer in time."        # the error of a message until its try has ended
SEND_PAUSES = (0.0, 60.0, 300.0, 1800.0, 7200.0)        # seconds before each try
UNSENT_SECONDS = 900            # age at which `check` reports unsent messages


class Trouble(NamedTuple):
    """The sentence of a finding. For failures also their number since the last check, and when they began."""

    text: str
    number: int = 0
    since: float | None = None


class Recipient(NamedTuple):
    """A receiver of messages: its channel, and its name in `delivery`."""

    channel: str                        # mail, webhook or function
    name: str


def failure_group(function: str, kind: str | None, message: str) -> str:
    """Return the group of a failure: its function, error, and message without quoted words and numbers."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", message or "")
    return shorten("%s: %s %s" % (function, kind or "", re.sub(r"\S*\d\S*", "0", words)), 200)


def why_failed(row: Row) -> str:
    """Return the error of a failed task in one line, from its row of activity and its columns."""
    if row["error_type"] and row["message"] == row["reason"]:    # the function gave no text
        return "%s without a message" % row["error_type"]
    return shorten(": ".join(filter(None, (row["error_type"], row["message"]))), 300)


def last_lines(db: Reader, task_id: int) -> list[str]:
    """Return the last lines that a task printed, as plain text, with the secrets of its arguments masked."""
    row = db.one("SELECT attempts, arguments FROM task WHERE id=?", (task_id,))
    if row is None:
        return []
    pieces = db.all("SELECT text FROM log WHERE task_id=? AND attempt=? ORDER BY start DESC LIMIT %d"
                    % LOG_PIECES, (task_id, row["attempts"]))
    text = "".join([piece["text"] for piece in pieces][::-1])
    for secret in secret_texts(shown_arguments(row["arguments"])):
        text = text.replace(secret, MASKED)
    lines = [re.sub(CONTROLS, "", line.rstrip("\r").rpartition("\r")[2])
             for line in text.rstrip().split("\n")]
    return [line if len(line) <= LOG_LINE_CHARACTERS else line[:LOG_LINE_CHARACTERS - 1] + "…"
            for line in lines[-LOG_LINES:] if text]


def page_link(settings: Settings, place: str, transaction: Reader | None = None) -> str:
    """Return the address of a place of the page, such as #/tasks/7; "" if page_address is not set."""
    addresses = settings.get("page_address", transaction).split()
    return "%s/%s" % (addresses[0].rstrip("/"), place) if addresses else ""


def recipients_of_alerts(settings: Settings, transaction: Reader | None = None) -> list[Recipient]:
    """Return the recipients of alerts. A webhook's address is a secret, so its label is its name."""
    mail, webhook, function = (settings.get(setting, transaction) for setting in (
        "alert_mail", "alert_webhook", "alert_function"))
    return [*(Recipient("mail", name) for name in re.findall(MAIL_ADDRESS, mail)),
            *(Recipient("webhook", web_label(name)) for name in webhook.split()),
            *(Recipient("function", name) for name in function.split())]


def post_message(transaction: Connection, recipient: tuple[str, str], content: MessageContent,
                 now: float, tries: int = 0) -> int:
    """Add a message to `delivery`; return its id."""
    channel, name = recipient
    lines, surplus = content["lines"][:MESSAGE_LINES], len(content["lines"]) - MESSAGE_LINES
    shown = {**content, "lines": lines + ["... and %d more." % surplus] * (surplus > 0)}
    return transaction.insert("delivery", {
        "channel": channel, "recipient": name, "content": dump_json(shown),
        "tries": tries, "next_at": now, "created_at": now})


def is_message_due(database: Database, now: float) -> bool:
    """Return True if a message waits to be sent at this time."""
    return bool(database.value("SELECT 1 FROM delivery WHERE next_at<=? LIMIT 1", (now,)))


class Alerts:
    """The alerts: opens, reports and ends them, and informs owners of their tasks; see check()."""

    def __init__(self, database: Database, settings: Settings, conditions: Conditions,
                 starter: Starter) -> None:
        self._database, self._settings, self._clock = database, settings, database.clock
        self._conditions, self._starter = conditions, starter

    def tick(self) -> None:
        """Check the conditions unless another process has just done so, and send due messages."""
        now = self._clock.now()
        if renew_mark(self._database.folder / "alerts.mark", now, WATCH_SECONDS):
            self.check(now)
            self.send(now)

    def send(self, now: float) -> None:
        """Start the process that sends messages, if one is due and no such process runs."""
        if is_message_due(self._database, now) and renew_mark(
                self._database.folder / SENDING_MARK, now, SENDING_SECONDS + 5):
            with contextlib.suppress(*START_ERRORS):    # the next tick tries again
                self._starter.start_helper("--send")

    def check(self, now: float) -> None:
        """Compare the findings with the rows of `alert`, and store the changes in one transaction.

        If another process was faster, this one finds a changed state and stores nothing.
        """
        before = recall(self._database, "alerts") or {}
        told_at = before.get("told_at", 0)
        if seconds_since(told_at, now) < PACE_SECONDS:
            return
        newest: int = self._database.value("SELECT max(id) FROM activity") or 0
        span = before.get("seen", newest), newest
        rows = {(row["code"], row["subject"]): row for row in self._database.all(
            "SELECT * FROM alert WHERE ended_at IS NULL ORDER BY id")}
        troubles = {**self._held({code for code, _ in rows}), **self._failures(rows, span)}
        ended, unsettled = self._asked_for(span), self._unsettled(rows, now)
        if before.get("seen") == newest and not (troubles or rows):
            return
        with self._database.transaction(durable=False) as transaction:
            if (recall(transaction, "alerts") or {}) != before:
                return
            self._open(transaction, rows, troubles, now)
            over = [row for key, row in rows.items()
                    if key not in troubles and self._end(transaction, row, now, unsettled)]
            if self._post_messages(transaction, troubles, over, now) or ended:
                told_at = now
            for email, content in ended.items():
                post_message(transaction, ("mail", email), content, now)
            state = {"seen": newest, "told_at": told_at}
            if state != before:
                remember(transaction, "alerts", state)

    def _held(self, open_codes: set[str]) -> dict[AlertKey, Trouble]:
        """Return all findings with alerts that hold now, except failed tasks."""
        return {(code, finding.subject): Trouble(shorten(str(finding), 500))
                for code, row in FINDINGS.items() if row.alert and code != "failed"
                for finding in getattr(self._conditions, code)(code in open_codes)}

    def _failures(self, rows: Mapping[AlertKey, Row],
                  span: tuple[int, int]) -> dict[AlertKey, Trouble]:
        """Return the tasks that failed for good, by group. Failures because of a predecessor are left out."""
        groups: dict[AlertKey, Trouble] = {}
        for row in self._database.all("""
                SELECT activity.task_id, activity.function, activity.message, activity.at,
                    task.error_type, task.reason
                FROM activity LEFT JOIN task ON task.id=activity.task_id
                WHERE activity.id>? AND activity.id<=? AND activity.event='failed'
                    AND (task.reason IS NULL OR task.reason<>'dependency')
                ORDER BY activity.id""", span):
            key = "failed", failure_group(row["function"], row["error_type"], row["message"])
            if key not in rows and key not in groups and len(groups) + len(rows) >= ALERT_GROUPS_MAX:
                key = "failed", "%s: and others" % row["function"]
            finding = Finding("failed", id=row["task_id"], why=why_failed(row))
            number, since = groups[key][1:] if key in groups else (0, row["at"])
            groups[key] = Trouble(str(finding), number + 1, since)
        return groups

    def _asked_for(self, span: tuple[int, int]) -> dict[str, MessageContent]:
        """Return {mail address: message} about ended tasks whose owners asked for a mail."""
        ended: dict[str, list[Row]] = collections.defaultdict(list)
        for row in self._database.all("""
                SELECT activity.event, activity.message, task.id, task.function, task.error_type,
                    task.reason, user.email
                FROM activity JOIN task ON task.id=activity.task_id
                JOIN user ON user.id=task.owner_id AND user.disabled=0 AND user.email IS NOT NULL
                WHERE activity.id>? AND activity.id<=? AND task.notify IS NOT NULL AND (
                    activity.event='failed'
                    OR activity.event IN ('succeeded', 'cancelled') AND task.notify='end')
                ORDER BY activity.id""", span):
            ended[row["email"]].append(row)
        return {email: self._ended_message(rows) for email, rows in ended.items()}

    def _ended_message(self, rows: list[Row]) -> MessageContent:
        """Return the message about ended tasks, with the log of the first that failed, or of the first."""
        lines, links = [], [page_link(self._settings, "#/tasks/%d" % row["id"]) for row in rows]
        for row, link in zip(rows, links):
            verb, why = "was cancelled" if row["event"] == "cancelled" else row["event"], why_failed(row)
            line = "Task %d (%s) %s%s" % (row["id"], row["function"], verb, why and ": " + why)
            lines.append("%s. %s" % (line.rstrip("."), link) if link else line)
        main = next((place for place, row in enumerate(rows) if row["event"] == "failed"), 0)
        task_id = rows[main]["id"]
        return {"kind": "task", "lines": lines, "link": links[main],
                "task": task_id, "log": last_lines(self._database, task_id),
                "subject": "%d of your tasks ended" % len(rows) if len(rows) > 1
                else lines[0].partition(":")[0].partition(".")[0]}

    @staticmethod
    def _open(transaction: Connection, rows: Mapping[AlertKey, Row],
              troubles: Mapping[AlertKey, Trouble], now: float) -> None:
        """Add or update the rows of findings. Remove a row that never opened if its finding is gone."""
        causes = {code for code, _ in (*troubles, *rows)}
        for (code, subject), (text, count, since) in troubles.items():
            row = rows.get((code, subject))
            if row:
                opened_at = min(now - 1, row["opened_at"])      # the clock may have been set back
                transaction.run(
                    "UPDATE alert SET text=?, count=count+?, opened_at=?, seen_at=? WHERE id=?",
                    (text, count, opened_at, now, row["id"]))
            elif not causes.intersection(FINDINGS[code].causes.split(",")):
                transaction.ensure("alert", {        # another process may have added it
                    "code": code, "subject": subject, "text": text, "count": max(1, count),
                    "opened_at": now if since is None else min(now, since), "seen_at": now})
        transaction.run("DELETE FROM alert WHERE seen_at<>? AND NOT %s" % IS_OPEN, (now,))

    def _unsettled(self, rows: Mapping[AlertKey, Row], now: float) -> set[str]:
        """Return the subjects of functions with tasks that are failed still or tried again.

        Alerts with a failure within SETTLED_SECONDS are left out: they do not end yet.
        """
        opened = {row["subject"]: row["opened_at"] for row in rows.values()
                  if row["code"] == "failed" and now - row["seen_at"] >= SETTLED_SECONDS}
        if not opened:
            return set()
        names, _ = self._database.read_within(STILL_FAILED, (min(opened.values()),), LOOK_SECONDS)
        return {subject for subject in opened if names is None or subject.endswith("…")
                or any(subject.startswith("%s:" % name) for name, in names)}

    @staticmethod
    def _end(transaction: Connection, row: Row, now: float, unsettled: set[str]) -> bool:
        """End an alert whose finding is gone; return True if it ended.

        Failures end after QUIET_SECONDS, or after SETTLED_SECONDS if their subject is not in `unsettled`.
        """
        least = (0.0 if row["code"] != "failed" else
                 QUIET_SECONDS if row["subject"] in unsettled else SETTLED_SECONDS)
        return now - row["seen_at"] >= least and transaction.update(
            "alert", {"ended_at": now}, "id=? AND ended_at IS NULL", (row["id"],)) == 1

    def _post_messages(self, transaction: Connection, troubles: Mapping[AlertKey, Trouble], over: list[Row],
              now: float) -> bool:
        """Add the due message to `delivery` for each recipient; return False if none was added."""
        rows = transaction.all(
            "SELECT * FROM alert WHERE ended_at IS NULL AND %s "
            "AND (muted_until IS NULL OR muted_until<=?) ORDER BY id" % IS_OPEN, (now,))
        news = [row for row in rows if self._is_due(row, now)]
        over = [row for row in over if row["told"] and (row["muted_until"] or 0) <= now]
        recipients = recipients_of_alerts(self._settings, transaction) if news or over else []
        if not recipients:
            return False
        lines = [line for row in news for line in self._lines(row, troubles, self._link(row, transaction))]
        lines += [" ".join(filter(None, (
            "Resolved: %s, from %s to %s. The last report was: %s." % (
                _title(row), readable_time(row["opened_at"]), readable_time(now), row["text"].rstrip(".")),
            self._link(row, transaction)))) for row in over]
        first, more = (news + over)[0], len(news + over) - 1
        subject = "%s%s%s" % (
            "" if news else "Resolved: ", _title(first), ", and %d more" % more if more else "")
        content: MessageContent = {
            "kind": "alert", "thread": first["id"], "lines": lines, "subject": subject,
            "link": self._link(first, transaction)}
        task_id = next(filter(None, (about_alert(row)["task"] for row in news)), None)
        if task_id:
            content["task"], content["log"] = task_id, last_lines(transaction, task_id)
        for recipient in recipients:
            post_message(transaction, recipient, content, now)
        transaction.run_many_later("UPDATE alert SET told=told+1, told_at=? WHERE id=?",
                              [(now, row["id"]) for row in news])
        return True

    def _link(self, row: Row, transaction: Reader) -> str:
        return page_link(self._settings, about_alert(row)["link"], transaction)

    @staticmethod
    def _is_due(row: Row, now: float) -> bool:
        told_at: float = row["told_at"] or -math.inf
        return row["seen_at"] > told_at and now - told_at >= REPEAT_SECONDS

    @staticmethod
    def _lines(row: Row, troubles: Mapping[AlertKey, Trouble], link: str) -> Iterator[str]:
        """Yield the lines of a message: the alert with its link, then the findings that it explains."""
        since = "" if not row["told"] else " It began at %s." % iso(row["opened_at"])
        count = "" if row["count"] == 1 else " %d times." % row["count"]
        yield "%s: %s.%s%s%s" % (_title(row), row["text"].rstrip("."), count, since, link and " " + link)
        for (code, _), (text, *_) in troubles.items():
            if row["code"] in FINDINGS[code].causes.split(","):
                yield "  Therefore: " + text

    def all(self) -> JsonObject:
        """Return all open alerts, the latest ended ones, and the state of each recipient."""
        rows = self._database.all("SELECT * FROM alert WHERE ended_at IS NULL AND %s "
                                  "ORDER BY id DESC" % IS_OPEN)
        ended = self._database.all("SELECT * FROM alert WHERE ended_at IS NOT NULL "
                                   "ORDER BY ended_at DESC, id DESC LIMIT %d" % PAGE_ROWS)
        return {"alerts": [alert_json(row) for row in (*rows, *ended)],
                "channels": list(self.channels()),
                "page_address": page_link(self._settings, "") or None}

    def channels(self) -> Iterator[JsonObject]:
        """Yield the state of each recipient: its newest tried message, and when one was last sent.

        `sending` is True while a message of the last minute is being sent.
        """
        now = self._clock.now()
        for channel, recipient in recipients_of_alerts(self._settings):
            last, sent = (self._database.one(
                "SELECT * FROM delivery WHERE channel=? AND recipient=? AND (sent_at IS NOT NULL "
                "%s) ORDER BY id DESC LIMIT 1" % more, (channel, recipient))
                for more in ("OR error IS NOT NULL", ""))
            sending = self._database.value(
                "SELECT 1 FROM delivery WHERE channel=? AND recipient=? AND sent_at IS NULL AND created_at>? "
                "AND (next_at<=? OR error=?) LIMIT 1",
                (channel, recipient, now - SENDING_SECONDS, now, CUT_OFF))
            yield {"channel": channel, "recipient": recipient, "last": last["id"] if last else None,
                   "sending": sending is not None,
                   "sent_at": iso(sent["sent_at"] if sent else None),
                   "error": last["error"] if last else None,
                   "next_at": iso(last["next_at"] if last else None)}

    def mute(self, alert_id: int, how: str) -> JsonObject:
        """Send no message about an alert for a while; NotFound if it is not open."""
        seconds = MUTES[how]
        until = seconds and min(self._clock.now() + seconds, UNTIL_IT_ENDS)
        with self._database.transaction() as transaction:
            if not transaction.update("alert", {"muted_until": until},
                                      "id=? AND ended_at IS NULL", (alert_id,)):
                raise NotFound("There is no open alert %d." % alert_id)
            return alert_json(transaction.row("SELECT * FROM alert WHERE id=?", (alert_id,)))

    def test(self) -> JsonObject:
        """Send each recipient a test message, which is tried only once."""
        now, recipients = self._clock.now(), recipients_of_alerts(self._settings)
        if not recipients:
            raise Conflict("There are no recipients: enter an address, a webhook or a function, and save it.")
        content: MessageContent = {"kind": "test", "subject": "a test", "lines": [
            "This is a test of the alerts of jobqueue. Nothing is wrong."]}
        with self._database.transaction() as transaction:
            deliveries = [{"id": post_message(transaction, recipient, content, now, len(SEND_PAUSES) - 1),
                     "channel": recipient.channel, "recipient": recipient.name} for recipient in recipients]
        self.send(now)
        return {"deliveries": deliveries}


def _title(row: Row) -> str:
    """Return the title of an alert. The title of a failure names the function."""
    title = FINDINGS[row["code"]].alert
    return "%s %s" % (row["subject"].partition(":")[0], title) if row["code"] == "failed" else title


def about_alert(row: Row) -> JsonObject:
    """Return the place of the page for an alert; for failures also the function, error and newest task.

    These are read from the row's subject and text: failure_group() and why_failed() begin with them.
    """
    code, subject, text = row["code"], row["subject"], row["text"]
    if code != "failed":
        return {"function": None, "error": None, "task": None,
                "link": FINDINGS[code].page.format(subject=quote(subject, safe=""))}
    function = subject.partition(":")[0]
    kind = re.match(r"(?:%s: )?(\w[\w.]*)(?:: | without )" % re.escape(function), text)
    error = kind[1] if kind and subject != "%s: and others" % function else None
    task = re.search(r"\(task (\d+)\)", text)
    group = {"status": "failed", "function": function, **({"error": error} if error else {}),
             "ended_since": iso(row["opened_at"])}
    return {"function": function, "error": error, "task": int(task[1]) if task else None,
            "link": "#/tasks/" + task[1] if task and row["count"] == 1 else "#/tasks?" + urlencode(group)}


def alert_json(row: Row) -> JsonObject:
    """Return an alert as the API has it."""
    times = ("opened_at", "seen_at", "told_at", "muted_until", "ended_at")
    return {**row, **{name: iso(row[name]) for name in times}, "title": _title(row), **about_alert(row)}
