"""Summaries: a sentence each about yesterday and last week, on the page and by mail.

A user who wants the mail has a row with `summary`, JSON {"hour", "zone"}, and `summary_at`, the next time.
Any process that ticks may post it: the statement that moves `summary_at` changes a row only once.

The figures are those of Metrics. The sums of all users' tasks are kept for whole hours of UTC. So in a zone
with an offset of a half hour, a day begins at the full hour before.
"""
from __future__ import annotations

import collections
import json

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.errors import Invalid, print_errors
from ..base.schedule_rules import parse_rule
from ..base.time_and_text import dump_json, iso, span_text
from ..base.values import TEXT, about, integer_within, object_of, or_null
from ..store.database import Database
from ..store.settings import Settings
from .rollup import DAY, HOUR, SIX_HOURS
from .metrics import Metrics
from .alerts import page_link, post_message

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .alerts import MessageContent

SUMMARY = or_null(about(object_of(("hour", "zone"), hour=integer_within(0, 23), zone=TEXT),
                        "when the user gets a summary by mail: an hour, in a time zone; null: never"))
NAMES_SHOWN = 3                 # functions that failed most, in a sentence
WEEKLY_BACK_SECONDS = 15 * DAY  # contains two Mondays
POST_SECONDS = 1.0              # of one tick; the next tick goes on
TOO_FAR_SECONDS = 2.0 * DAY
# The sentences of a span without such tasks, without failures, with failures, with missing figures.
SENTENCES = {
    "yesterday": ("Yesterday no task succeeded or failed.",
                  "Yesterday: %d succeeded in %s of work, none failed.",
                  "Yesterday: %d succeeded in %s of work, %d failed (%s).",
                  "Yesterday: not all tasks of this user could be counted."),
    "last_week": ("Last week no task succeeded or failed.",
                  "Last week (Monday to Sunday): %d succeeded in %s of work, none failed.",
                  "Last week (Monday to Sunday): %d succeeded in %s of work, %d failed (%s).",
                  "Last week (Monday to Sunday): not all tasks of this user could be counted.")}


class Span(NamedTuple):
    """A day or a week that is over: its name in SENTENCES, and its first and last moment."""

    name: str
    start: float
    end: float


def known_zone(zone: str) -> str:
    """Return the zone, or UTC if this machine does not know it: a browser may know more zones."""
    try:
        parse_rule("@daily", zone)
    except Invalid:
        return "UTC"
    return zone


def past_spans(zone: str, now: float) -> list[Span]:
    """Return yesterday and the last whole week, from Monday on, in a time zone; in UTC if it is unknown."""
    spans = []
    for name, rule in (("yesterday", "0 0 * * *"), ("last_week", "0 0 * * 1")):
        moments = parse_rule(rule, known_zone(zone)).upcoming(now - WEEKLY_BACK_SECONDS, 20)
        start, end = [at for at in moments if at <= now][-2:]
        spans.append(Span(name, start, end))
    return spans


def next_summary(hour: int, zone: str, now: float) -> float | None:
    """Return when the next summary is due; Invalid if the zone is unknown."""
    return parse_rule("0 %d * * *" % hour, zone).next_after(now)


def summary_columns(summary: JsonObject | None, now: float) -> JsonObject:
    """Return the columns of a user for a summary by mail, or for none; Invalid for a wrong zone."""
    return {"summary": summary and dump_json(summary),
            "summary_at": summary and next_summary(**summary, now=now)}


class Part(NamedTuple):
    """A part of a span whose figures are read in the same steps, a word of STEPS."""

    start: int
    end: int
    step: str


def _parts(span: Span, has_sums: bool) -> list[Part]:
    """Return the parts of a span. Stored sums of whole six hours are fewer to read than those of hours."""
    start, end = (int(at) // HOUR * HOUR for at in span[1:])
    first, last = -(-start // SIX_HOURS) * SIX_HOURS, end // SIX_HOURS * SIX_HOURS
    parts = Part(start, first, "hour"), Part(first, last, "6h"), Part(last, end, "hour")
    return [part for part in parts if part.start < part.end] if has_sums else [Part(start, end, "hour")]


class Summaries:
    """The summaries of all tasks or of one owner's, and the mails with them."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics) -> None:
        self._database, self._settings, self._metrics = database, settings, metrics

    def sentences(self, zone: str, now: float, owner_id: int | None = None) -> dict[str, str]:
        """Return {name of a span: its sentence}. With `owner_id` only this user's tasks count."""
        return {span.name: self.sentence(span, owner_id) for span in past_spans(zone, now)}

    def sentence(self, span: Span, owner_id: int | None) -> str:
        """Return the sentence of a span."""
        none_ended, succeeded, failed, incomplete = SENTENCES[span.name]
        seconds, counts, failures = 0.0, 0, collections.Counter[str]()
        for start, end, step in _parts(span, owner_id is None):
            figures = self._metrics.read(start, end, step, lambda *_: True, owner_id, owner_id)
            if figures["counted_from"] and figures["counted_from"] > iso(start):
                return incomplete
            seconds += figures["totals"]["ran"]["sum"]
            counts += figures["totals"]["succeeded"]
            failures.update({row["name"]: row["failed"] for row in figures["functions"] if row["failed"]})
        if not counts and not failures:
            return none_ended
        whole = max(1, round(seconds))
        shown = counts, span_text(whole if whole < HOUR else whole // 60 * 60)
        names = ["%s %d" % pair for pair in failures.most_common(NAMES_SHOWN)]
        return failed % (*shown, sum(failures.values()), ", ".join(
            names + ["…"] * (len(failures) > NAMES_SHOWN))) if failures else succeeded % shown

    def post_due(self) -> None:
        """Add the mail of each user whose summary is due to `delivery`, for POST_SECONDS at most.

        A time that is more than TOO_FAR_SECONDS away comes from a wrong clock or a long standstill. Then no
        mail is added, and only the next time is stored.
        """
        now, until = self._database.clock.now(), self._database.clock.monotonic() + POST_SECONDS
        for user in self._database.all("""
                SELECT * FROM user WHERE (summary_at<=? OR summary_at>?) AND summary IS NOT NULL
                AND disabled=0 AND email IS NOT NULL""", (now, now + TOO_FAR_SECONDS)):
            if self._database.clock.monotonic() < until:
                with print_errors("making the summary of %s" % user["name"]):
                    self._post(user, now)

    def _post(self, user: Row, now: float) -> None:
        """Add the mail of a user and store the next time, unless another process has just done so."""
        wish, due = json.loads(user["summary"]), user["summary_at"]
        zone = known_zone(wish["zone"])
        content = self._content(user, zone, due, now) if abs(now - due) < TOO_FAR_SECONDS else None
        with self._database.transaction(durable=False) as transaction:
            if transaction.update("user", {"summary_at": next_summary(wish["hour"], zone, now)},
                                  "id=? AND summary_at=?", (user["id"], due)) and content:
                post_message(transaction, ("mail", user["email"]), content, now)

    def _content(self, user: Row, zone: str, due: float, now: float) -> MessageContent | None:
        """Return the mail of a user, with the week if it is over since the mail before.

        Admins and viewers get the figures of all users' tasks. None if another process was faster.
        """
        if self._database.value("SELECT summary_at FROM user WHERE id=?", (user["id"],)) != due:
            return None
        yesterday, week = past_spans(zone, now)
        spans = [yesterday, week] if week.end > due - DAY else [yesterday]
        lines = [self.sentence(span, user["id"] if user["role"] == "user" else None) for span in spans]
        link = page_link(self._settings, "#/overview")
        return {"kind": "summary", "subject": lines[0].rstrip("."), "link": link,
                "lines": [*lines, *filter(None, [link])]}
