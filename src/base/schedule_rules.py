"""Rules of schedules: every N seconds, daily, weekly, cron.

This room computes due times and needs no database. Each rule but `every` becomes a cron expression.
The next matching day is found first, then the wall-clock time on that day, then its moment in the time
zone. Times that the clocks skip or repeat are handled as in Debian's cron.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time as clock_time, timedelta, timezone, tzinfo

from .head import TYPE_CHECKING
from .errors import Invalid, field_error
from .time_and_text import UNITS, how_often, iso, shorten

if TYPE_CHECKING:
    from typing import Any, Union

if TYPE_CHECKING:
    CronValue = Union[int, tuple[int, int]]     # a number, or (weekday, its number in the month)

RULE_MAX_CHARACTERS = 500
EVERY_MAX_SECONDS = 3650 * 86400
LAST_MOMENT = 221845392000                  # the year 9000: nothing is due after it
CALENDAR_YEARS = 400                        # after this time dates and weekdays repeat
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November "
          "December").split()
LAST_DAY, LAST_WORKDAY = 32, 33             # the values of L and LW as a day of the month
LAST = 6                                    # 1 to 5: a month's first to fifth Friday; 6: its last one

EVERY = r"every (\d{1,9}) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
EVERY_UNITS = {unit[0]: size for unit, size in UNITS}
CLOCK = r" (?P<hour>\d{1,2}):(?P<minute>\d\d)"
WORDED_RULES = {                            # pattern of a rule: its cron expression
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@(yearly|annually)": "0 0 1 1 *",
    "daily" + CLOCK: "{minute} {hour} * * *",
    r"weekly (?P<day>[a-z]+(?:[,-][a-z]+)*)" + CLOCK: "{minute} {hour} * * {day}",
    r"monthly (?P<day>\d{1,2}|last)" + CLOCK: "{minute} {hour} {day} * *",
    r"yearly (?P<month>\d\d)-(?P<day>\d\d)" + CLOCK: "{minute} {hour} {day} {month} *"}
RULE_HINT = ('as "every 5m", "every 2 hours", "daily 01:30", "weekly mon 01:00", '
             '"monthly last 01:00", "yearly 12-24 01:00", "@daily" or five fields of cron as in '
             '"*/15 9-17 * * mon-fri", six with the seconds first')


class CronField:
    """A field of a cron expression: its name, its bounds, and names for its values.

    `special` maps further terms to their values. `hint` describes them to people.
    """

    TERM = r"(?:\*|([a-z]+|\d{1,4})(?:-([a-z]+|\d{1,4}))?)(?:/(\d{1,4}))?"

    def __init__(self, name: str, low: int, high: int, names: Sequence[str] = (),
                 special: Mapping[str, CronValue] | None = None, hint: str = "") -> None:
        self.name, self.low, self.high = name, low, high
        self.names = {text.lower(): low + place for place, name in enumerate(names)
                      for text in (name, name[:3])}
        self.special = dict(special or {})
        self.right = "write %d to %d%s%s" % (low, high, names and ", %s to %s" % (
            names[0][:3].lower(), names[-1][:3].lower()) or "", hint)

    def parse(self, text: str) -> set[CronValue]:
        """Return the values of a list of terms; Invalid names a term that is wrong."""
        return {value for term in text.split(",")
                for value in ([self.special[term]] if term in self.special else self._range(term))}

    def _range(self, term: str) -> range:
        match = re.fullmatch(self.TERM, term, re.ASCII)
        first, last, step = match.groups() if match else ("", "", "")
        low = self._number(first or str(self.low))
        high = self._number(last) if last else low if first and not step else self.high
        step = int(step or 1)
        if not (match and self.low <= low <= high <= self.high
                and 1 <= step <= self.high - self.low + 1):
            raise field_error(
                "rule", 'cannot have "%s" as %s: %s; a range runs forwards, a step stays within it'
                % (shorten(term, 20), self.name, self.right))
        return range(low, high + 1, step)

    def _number(self, text: str) -> int:
        return self.names.get(text, int(text) if text.isdigit() else -1)


_DAY_NAMES = WEEKDAYS[6:] + WEEKDAYS[:6]        # cron counts from Sunday, which is 0 and 7
CRON_FIELDS = (
    CronField("second", 0, 59), CronField("minute", 0, 59), CronField("hour", 0, 23),
    CronField("day of the month", 1, 31, (), {"l": LAST_DAY, "lw": LAST_WORKDAY},
              ", L (the last) or LW (the last from Monday to Friday)"),
    CronField("month", 1, 12, MONTHS),
    CronField("weekday", 0, 7, _DAY_NAMES, {
        text + ending: ((number - 1) % 7, which)
        for number, name in enumerate([*_DAY_NAMES, "7"])
        for text in ("%d" % number, "%02d" % number, name.lower(), name[:3].lower())
        for which, ending in enumerate("#1 #2 #3 #4 #5 l".split(), 1)},
        ", 5L (the last Friday) or 5#2 (the second)"))


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _listing(values: Iterable[int], name: Callable[[int], str] = str) -> str:
    """Return values in words, three or more in a row as a range: "Monday to Friday and Sunday"."""
    words: list[str] = []
    for _, pairs in itertools.groupby(enumerate(sorted(values)), lambda pair: pair[1] - pair[0]):
        run = [name(value) for _, value in pairs]
        words += ["%s to %s" % (run[0], run[-1])] if len(run) > 2 else run
    return _and(words)


def _pace(values: list[int], unit: str, size: int) -> str:
    """Return seconds, minutes or hours in words: "every 15 minutes", "minutes 0 to 10"."""
    step = values[1] - values[0] if len(values) > 1 else size
    if step < size and size % step == 0 and values == list(range(0, size, step)):
        return "every " + unit if step == 1 else "every %d %ss" % (step, unit)
    return "%s%s %s" % (unit, "s"[:len(values) - 1], _listing(values))


def _ordinal(number: int) -> str:
    if number > 31:
        return "last day" if number == LAST_DAY else "last working day"
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return "%d%s" % (number, ending)


class Rule:
    """A rule for due times. `text` is the rule, `zone` the name of its time zone.

    Moments are seconds since 1970.
    """

    def __init__(self, text: str, zone: str, tzinfo: tzinfo) -> None:
        self.text, self.zone, self.tzinfo = text, zone, tzinfo

    def meaning(self) -> tuple[Any, ...]:
        """Return a value that is equal for two spellings of one rule."""
        raise NotImplementedError

    def next_after(self, at: float) -> float | None:
        """Return the first moment later than `at`, or None."""
        try:
            return float(self._next(at)) if at < LAST_MOMENT else None
        except OverflowError:
            return None

    def upcoming(self, at: float, count: int) -> list[float]:
        """Return the next `count` moments after `at`; fewer only if the years end."""
        moments: list[float] = []
        while len(moments) < count:
            moment = self.next_after(moments[-1] if moments else at)
            if moment is None:
                break
            moments.append(moment)
        return moments

    def local(self, at: float) -> str:
        """Return a moment as RFC 3339 with the offset of the rule's zone."""
        return self._aware(at).isoformat(timespec="seconds")

    def clock_change(self, at: float) -> str | None:
        """Return how the clocks change on the day of this moment, or None."""
        day = self._wall(at).replace(hour=0, minute=0, second=0)
        before, after = [self._offset(min(self._moments(midnight)) - 1)
                         for midnight in (day, day + timedelta(days=1))]
        words = "the clocks go %s on this day" % ("forward" if before < after else "back")
        return None if before == after else words

    def words(self) -> str:
        """Return the rule in plain English."""
        raise NotImplementedError

    def _next(self, at: float) -> float:
        """Return the first moment later than `at`; OverflowError if there is none."""
        raise NotImplementedError

    def _aware(self, at: float) -> datetime:
        return (EPOCH + timedelta(seconds=math.floor(at))).astimezone(self.tzinfo)

    def _wall(self, at: float) -> datetime:
        return self._aware(at).replace(tzinfo=None)

    def _offset(self, at: float) -> timedelta:
        return self._aware(at).utcoffset() or timedelta()

    def _moments(self, wall: datetime) -> list[int]:
        """Return the two moments (fold 0 and 1) at which clocks show this time.

        The moments are equal as a rule. The second one is later if clocks repeat the time, earlier if they
        skip it.
        """
        return [(wall.replace(tzinfo=self.tzinfo, fold=fold) - EPOCH) // SECOND for fold in (0, 1)]

    def _change(self, low: int, high: int) -> int:
        """Return the moment above `low` up to `high` at which the clocks change."""
        offset = self._offset(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high


class Interval(Rule):
    """The rule of a period of seconds, counted from a start."""

    def __init__(self, text: str, zone: str, tzinfo: tzinfo, seconds: int, start: float) -> None:
        super().__init__(text, zone, tzinfo)
        self.seconds, self.start = seconds, start

    def meaning(self) -> tuple[Any, ...]:
        """Return a value that is equal for two spellings of one rule."""
        return (self.seconds,)

    def words(self) -> str:
        """Return the rule in plain English."""
        return how_often(self.seconds, exactly=True).capitalize()

    def _next(self, at: float) -> float:
        turn = math.floor((at - self.start) / self.seconds)
        return next(moment for moment in (self.start + (turn + more) * self.seconds
                                          for more in range(3)) if moment > at)


class Calendar(Rule):
    """A rule that is a cron expression: times of day on certain days.

    A rule is `fixed` if it has five fields that name hours and minutes. It is due once, even if the clocks
    skip its time (right after the change) or repeat it (the first time). Other rules follow the clocks.
    With `both` the date and the weekday must match, otherwise one of them is enough.
    """

    def __init__(self, text: str, zone: str, tzinfo: tzinfo, fields: list[str]) -> None:
        super().__init__(text, zone, tzinfo)
        self.fixed = len(fields) == 5 and "*" not in (fields[0][0], fields[1][0])
        self.both = "*" in (fields[-3][0], fields[-1][0])
        fields = fields if len(fields) == 6 else ["0", *fields]
        values = [field.parse(text) for field, text in zip(CRON_FIELDS, fields)]
        numbers = [sorted(value for value in numbers if isinstance(value, int)) for numbers in values]
        self.clock = numbers[2], numbers[1], numbers[0]
        self.dates, self.months = set(numbers[3]), numbers[4]
        self.weekdays = {(day - 1) % 7 for day in numbers[5]}
        self.weekdays_of = {day for day in values[5] if not isinstance(day, int)}
        self._days = functools.lru_cache(maxsize=None)(self._find_days)

    def meaning(self) -> tuple[Any, ...]:
        """Return a value that is equal for two spellings of one rule."""
        return (self.fixed, self.both, self.clock, self.dates, self.months, self.weekdays,
                self.weekdays_of)

    def _find_days(self, first: int, length: int) -> list[int]:
        """Return the matching days of a month of this length that begins on weekday `first`."""
        last = (first + length - 1) % 7
        special = {LAST_DAY: length, LAST_WORKDAY: length - max(0, last - 4)}
        dates = {special.get(day, day) for day in self.dates}
        days = [range(1 + (weekday - first) % 7, length + 1, 7) for weekday in range(7)]
        weekdays = {day for weekday in self.weekdays for day in days[weekday]}
        for weekday, which in self.weekdays_of:
            weekdays.update(days[weekday][-1:] if which == LAST else days[weekday][which - 1:which])
        days_of_month = dates & weekdays if self.both else dates | weekdays
        return sorted(day for day in days_of_month if day <= length)

    def _days_from(self, start: date) -> Iterator[date]:
        """Yield the matching days from `start` on, for CALENDAR_YEARS."""
        from calendar import monthrange
        for year in range(start.year, start.year + CALENDAR_YEARS + 1):
            for month in self.months:
                if (year, month) >= (start.year, start.month):
                    days = (date(year, month, day) for day in self._days(*monthrange(year, month)))
                    yield from (day for day in days if day >= start)

    def _next_wall(self, wall: datetime) -> datetime:
        """Return the next matching wall-clock time after `wall`; OverflowError if there is none."""
        wall += SECOND
        hours, minutes, seconds = self.clock
        for day in self._days_from(wall.date()):
            first = (wall.hour, wall.minute, wall.second) if day == wall.date() else (0, 0, 0)
            for clock in ((hour, minute, second) for hour in hours if hour >= first[0]
                          for minute in minutes if (hour, minute) >= first[:2]
                          for second in seconds if (hour, minute, second) >= first):
                return datetime.combine(day, clock_time(*clock))
        raise OverflowError             # no month has such a day

    def _next(self, at: float) -> int:
        wall = self._wall(at)
        again = self._moments(wall)[1]
        if again > at and not self.fixed:           # the clocks will show this time again
            change = self._change(math.floor(at), again)
            candidate = self._moments(self._next_wall(wall))[0]
            if candidate < change:
                return candidate
            wall = self._wall(change) - SECOND
        end = wall.year + CALENDAR_YEARS
        while wall.year <= end:
            wall = self._next_wall(wall)
            first, second = self._moments(wall)
            if first > second:
                change = self._change(second, first)
                if self.fixed and change > at:
                    return change
                wall = max(wall, self._wall(change) - SECOND)
            elif first > at:
                return first
            elif not self.fixed:
                return second
        raise OverflowError             # the clocks always skip this time

    def words(self) -> str:
        """Return the rule in plain English."""
        hours, minutes, seconds = self.clock
        times = list(itertools.islice(itertools.product(*self.clock), 5))
        days = "every " + self._days_in_words()
        if len(times) < 5:
            precision = "minutes" if seconds == [0] else "seconds"
            clocks = [clock_time(hour, minute, second).isoformat(precision)
                      for hour, minute, second in times]
            text = "%s at %s" % (days, _and(clocks))
        else:
            parts = [(seconds, "second", 60), (minutes, "minute", 60), (hours, "hour", 24)]
            pace = " of ".join(_pace(*part) for part in parts[seconds == [0]:])
            text = ("" if pace.startswith("every") else "at ") + pace
            text += ", " + days if days != "every day" else ""
        return "%s%s (%s)" % (text[0].upper(), text[1:], self.zone)

    def _days_in_words(self) -> str:
        """Return the days in words, to follow "every"."""
        names = _listing(self.months, lambda month: MONTHS[month - 1])
        month, inside = ("the month", "") if len(self.months) == 12 else (names, " in " + names)
        dates, weekdays = "", []
        if not self.dates >= set(range(1, 32)):
            dates = "%s of %s" % (_listing(self.dates, _ordinal), month)
        if self.weekdays and len(self.weekdays) < 7:
            weekdays = [_listing(self.weekdays, WEEKDAYS.__getitem__) + inside]
        if len(self.weekdays) < 7:
            weekdays += ["%s %s of %s" % ("last" if which == LAST else _ordinal(which),
                                          WEEKDAYS[weekday], month)
                         for weekday, which in sorted(self.weekdays_of)]
        if dates and weekdays:
            return dates + (" that is a " if self.both else " and every ") + _and(weekdays)
        return self.both and (dates or _and(weekdays)) or "day" + inside


def _time_zone(name: str) -> tzinfo:
    """Return the time zone of this name; Invalid if it is unknown."""
    if name == "UTC":
        return timezone.utc
    import zoneinfo
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name, re.ASCII):
        with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return zoneinfo.ZoneInfo(name)
    if not zoneinfo.available_timezones():
        raise field_error("zone", "can only be UTC: this machine has no time zone data (the "
                                  "system's package tzdata, or pip install tzdata, brings it)")
    raise field_error("zone", "must be the name of a time zone, such as Europe/Oslo, not %s"
                      % shorten(str(name), 64))


def parse_rule(text: str, zone: str = "UTC", start: float = 0.0) -> Rule:
    """Return the Rule of a text; Invalid if it cannot be read. `every` counts from `start`."""
    text = " ".join(text.split()) if isinstance(text, str) else ""
    tzinfo = _time_zone(zone)
    if not (text.isascii() and text.isprintable() and len(text) <= RULE_MAX_CHARACTERS):
        raise field_error("rule", "must have at most %d plain characters" % RULE_MAX_CHARACTERS)
    lower = text.lower()
    every = re.fullmatch(EVERY, lower, re.ASCII)
    if every:
        seconds = int(every[1]) * EVERY_UNITS[(every[2] or "s")[0]]
        if not 1 <= seconds <= EVERY_MAX_SECONDS:
            raise field_error("rule", "must be every 1 second to every 3650 days")
        return Interval(text, zone, tzinfo, seconds, start)
    matches = ((re.fullmatch(pattern, lower, re.ASCII), cron)
               for pattern, cron in WORDED_RULES.items())
    fields = next((cron.format(**match.groupdict()).replace("last", "l")
                   for match, cron in matches if match), lower).split(" ")
    if len(fields) not in (5, 6):
        raise field_error("rule", "is not understood: write it " + RULE_HINT)
    return Calendar(text, zone, tzinfo, fields)


def is_same_rule(text: str, zone: str, other_text: str, other_zone: str) -> bool:
    """Return whether two rules have the same meaning, even if their texts differ."""
    if (text, zone) == (other_text, other_zone) or zone != other_zone:
        return zone == other_zone
    try:
        return parse_rule(text, zone).meaning() == parse_rule(other_text, zone).meaning()
    except Invalid:
        return False


def preview(rule: Rule, at: float, count: int) -> list[dict[str, str | None]]:
    """Return the next `count` moments of a rule after `at`, for people; Invalid if there is none."""
    moments = rule.upcoming(at, count)
    if not moments:
        raise field_error("rule", "never comes: no month has such a day, or the clocks of %s "
                                  "always skip its time" % rule.zone)
    return [{"at": iso(moment), "local": rule.local(moment), "note": rule.clock_change(moment)}
            for moment in moments]
