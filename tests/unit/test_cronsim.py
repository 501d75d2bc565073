"""The next time of random cron expressions, beside what the package cronsim says.

The package needs Python 3.10. Where this Python has it not, one on the PATH that has it does the
comparison, such as that of the virtual environment whose programs .ci/run puts there.
"""

import collections
import itertools
import os
import random
import shutil
import subprocess
import sys
import unittest
import zoneinfo
from datetime import datetime, timezone
from unittest import mock

import jobqueue
from tests.helpers.support import ROOT, need, need_part

try:
    from cronsim import CronSim, CronSimError
except ImportError:
    CronSim = None

COMPARED = 20_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NAMES = {4: "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(),
         5: "SUN MON TUE WED THU FRI SAT".split()}
BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
# Every kind of change: by an hour, half an hour or two, at midnight, at 02:45, by a whole day.
ZONES = ("UTC Europe/Oslo Europe/Dublin America/New_York America/Sao_Paulo America/Havana Asia/Beirut "
         "Asia/Tehran Africa/Cairo Africa/Casablanca Antarctica/Troll Australia/Lord_Howe Pacific/Chatham "
         "Pacific/Apia").split()
# Where cronsim is known to go wrong with expressions that follow the clocks: it steps by whole hours,
# and after a change that does not begin and end with one it misses what comes early in the next;
# and it begins days at midnight, also where the clocks skip it.
ODD_HOURS = ("Australia/Lord_Howe", "Pacific/Chatham")
NO_MIDNIGHT = ("America/Sao_Paulo America/Havana Asia/Beirut Asia/Tehran Africa/Cairo "
               "Africa/Casablanca Pacific/Apia").split()


def python_with_cronsim():
    """A Python on the PATH that has the package, or None."""
    for folder in os.get_exec_path():
        python = shutil.which("python3", path=folder)
        if python and subprocess.run([python, "-c", "import cronsim"], stdin=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


def changes(zone):
    """The days from 1970 to 2037 in which the clocks of a zone change, as seconds since 1970."""
    offsets = [(day, datetime.fromtimestamp(day, zone).utcoffset()) for day in range(0, 2145916800, 86400)]
    return [day for (day, before), (_, after) in zip(offsets, offsets[1:]) if before != after]


class Chance(random.Random):
    """Random expressions and starts."""

    def value(self, field):
        low, high = BOUNDS[field]
        if field in NAMES and self.random() < 0.3:
            return self.choice(NAMES[field])
        return self.choice(("%d", "%d", "%02d")) % self.randint(low, high)

    def term(self, field):
        low, high = BOUNDS[field]
        kind = self.random()
        if field == 3 and kind < 0.1:
            return self.choice(("L", "LW"))
        if field == 5 and kind < 0.15:
            return self.choice(("%dL" % self.randint(0, 7), "%s#%d" % (self.value(5), self.randint(1, 5))))
        if kind < 0.6:
            return self.value(field)
        if kind < 0.7:
            return "*/%d" % self.randint(1, high - low)
        if kind < 0.8:
            return "%d/%d" % (self.randint(low, high), self.randint(1, high - low))
        text = "%d-%d" % tuple(sorted(self.sample(range(low, high + 1), 2)))
        return text + self.choice(("", "", "/%d" % self.randint(1, high - low)))

    def field(self, field):
        if self.random() < (0, 0.25, 0.3, 0.5, 0.6, 0.5)[field]:
            return "*"
        if field == 2 and self.random() < 0.6:         # the hours in which clocks change
            return self.choice(("0", "1", "2", "3", "1-3", "0,2", "*/2", "23", "0-4"))
        return ",".join(self.term(field) for _ in range(self.choice((1, 1, 1, 2, 3))))

    def expression(self):
        return " ".join(self.field(place) for place in range(self.random() < 0.85, 6))

    def start(self, days):
        if days and self.random() < 0.8:
            return self.choice(days) + self.randint(-86400, 2 * 86400)
        return self.randint(0, 4102444800)


def ours(text, zone, start):
    """Our answer as seconds since 1970, or "never"."""
    try:
        answer = jobqueue.parse_rule(text, zone).next_after(start)
        assert answer is None or answer > start, (text, zone, start, answer)
        return "never" if answer is None else answer
    except jobqueue.Invalid as error:
        return error.detail


def theirs(text, zone, start):
    """Its first answer later than the start: in a repeated hour it may begin with an earlier one."""
    try:
        for answer in itertools.islice(CronSim(text, datetime.fromtimestamp(start, zone)), 99):
            if (answer - EPOCH).total_seconds() > start:
                return (answer - EPOCH).total_seconds()
    except CronSimError:
        pass
    return "never"


def first_match(text, zone, start, limit):
    """The first moment up to `limit` at which all that the expression names is what the clocks show."""
    wanted = CronSim(text, EPOCH)
    pace = 60 if wanted.seconds == {0} else 1
    for moment in range(start + pace - start % pace, int(limit) + 1, pace):
        wall = datetime.fromtimestamp(moment, zone)
        if (wall.minute in wanted.minutes and wall.hour in wanted.hours and wall.month in wanted.months
                and wall.second in wanted.seconds and wanted.match_day(wall.date())):
            return moment
    return None


def follows_clocks(text):
    """Whether an expression takes times as the clocks show them, also those that are repeated."""
    fields = text.split()
    return len(fields) == 6 or fields[0].startswith("*") or fields[1].startswith("*")


def explain(text, name, zone, start, our, their):
    """Which known difference this is; None for any other."""
    if isinstance(our, str):
        return None
    if their == "never":
        # It refuses days that no month of the expression has, though weekdays are named besides.
        fields = text.split()[-3:]
        return "weekdays besides" if "*" not in fields[0][0] + fields[2][0] else None
    if follows_clocks(text) and first_match(text, zone, start, max(our, their)) == our:
        return "odd hours" if name in ODD_HOURS else "no midnight" if name in NO_MIDNIGHT else None
    return None


def compare(count):
    """How often each known difference was met; AssertionError for any other."""
    chance = Chance(1)
    zones = {name: timezone.utc if name == "UTC" else zoneinfo.ZoneInfo(name) for name in ZONES}
    days = {name: changes(zone) for name, zone in zones.items()}
    explained = collections.Counter()
    for _ in range(count):
        text, name = chance.expression(), chance.choice(ZONES)
        start = chance.start(days[name])
        our, their = ours(text, name, start), theirs(text, zones[name], start)
        if our != their:
            why = explain(text, name, zones[name], start, our, their)
            if not why:
                raise AssertionError("%r in %s after %d: %s, not %s" % (text, name, start, our, their))
            explained[why] += 1
    return explained


class TestAgainstCronsim(unittest.TestCase):
    def test_the_next_time_is_the_same_save_for_known_differences(self):
        need_part("cronsim")            # the oldest Python would have the same one compare again
        if CronSim is None:
            self.elsewhere()
        else:
            explained = compare(COMPARED)
            self.assertEqual(set(explained), {"odd hours", "no midnight", "weekdays besides"})
            self.assertLess(sum(explained.values()), COMPARED // 200, explained)

    def elsewhere(self):
        if sys.version_info < (3, 10):
            self.skipTest("once is enough, and cronsim needs Python 3.10")
        python = python_with_cronsim()
        need(python, "cronsim (pip install cronsim==2.7)")
        done = subprocess.run([python, "-m", "unittest", "tests.unit.test_cronsim"], cwd=ROOT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace", timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])

    def test_the_comparison_sees_what_is_wrong(self):
        if CronSim is None:
            self.skipTest("the test above runs it elsewhere")
        wrong = (lambda rule: setattr(rule, "fixed", not rule.fixed),       # the rule for clock changes
                 lambda rule: setattr(rule, "both", not rule.both),         # day and weekday
                 lambda rule: rule.dates.discard(jobqueue.LAST_WORKDAY))
        parse = jobqueue.parse_rule
        for change in wrong:
            def parse_wrongly(text, zone, change=change):
                rule = parse(text, zone)
                change(rule)
                return rule
            with mock.patch.object(jobqueue, "parse_rule", parse_wrongly), self.assertRaises(AssertionError):
                compare(COMPARED)


if __name__ == "__main__":
    unittest.main()
