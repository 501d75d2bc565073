"""The clock, RFC 3339, JSON, tokens, processes."""
from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import date, datetime, time as clock_time, timedelta, timezone
from enum import Enum
from pathlib import Path

from .head import TYPE_CHECKING
from .limits import CLOCK_SLACK_SECONDS, INTEGER_MAX, JSON_MAX_DEPTH
from .errors import Malformed, field_error

if TYPE_CHECKING:
    from typing import Any, NoReturn, Union, overload


class Clock:
    """The sources of time and chance. Tests use their own."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)    # one clock for all processes of a boot; it stops while the
                                                # system sleeps
    sleep = staticmethod(time.sleep)

    @staticmethod
    def uniform(low: float, high: float) -> float:
        """Return a random number from `low` to `high`."""
        import random
        return random.uniform(low, high)


if TYPE_CHECKING:
    AnyClock = Union[Clock, type[Clock]]


def seconds_since(moment: float, now: float) -> float:
    """Return the seconds from a recorded moment until now, infinite if the moment is in the future.

    A moment is in the future if the clock was set back since. Nothing may wait for that moment: a clock
    that was a year ahead would stop alerts, starts and backups for a year. For the same reason the program
    does not make its wall clock monotonic.
    """
    return now - moment if moment <= now + CLOCK_SLACK_SECONDS else math.inf


class Every:
    """A timer that is due at once, then again after each period."""

    def __init__(self, seconds: float, clock: AnyClock) -> None:
        self._seconds, self._clock, self._at = seconds, clock, -math.inf

    def begin_if_due(self) -> bool:
        """Return True if the timer is due, and begin its next period."""
        if self._clock.monotonic() < self._at:
            return False
        self.put_off(self._seconds)
        return True

    def put_off(self, seconds: float) -> None:
        """Make the timer due in `seconds`."""
        self._at = self._clock.monotonic() + seconds

    def hasten(self, seconds: float) -> None:
        """Make the timer due in `seconds` at the latest."""
        self._at = min(self._at, self._clock.monotonic() + seconds)


if TYPE_CHECKING:
    @overload
    def iso(seconds: float) -> str: ...
    @overload
    def iso(seconds: None) -> None: ...
    @overload
    def iso(seconds: float | None) -> str | None: ...


def iso(seconds: float | None) -> str | None:
    """Return UTC seconds since 1970 as RFC 3339 with milliseconds; None stays None."""
    if seconds is None:
        return None
    whole, fraction = divmod(round(seconds * 1000), 1000)
    return "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ" % (*time.gmtime(whole)[:6], fraction)


def time_of_day(seconds: float) -> str:
    """Return the time of day of a moment, such as "12:05 UTC"."""
    return iso(seconds)[11:16] + " UTC"


# Patterns are compiled at first use. Else each CGI request would compile all of them.
RFC3339 = (r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?"
           r"([Zz]|[+-]\d\d:\d\d)")


def parse_moment(text: str) -> datetime:
    """Return the datetime of an RFC 3339 text with an offset; ValueError for any other text."""
    match = re.fullmatch(RFC3339, text, re.ASCII)
    if not match:
        raise ValueError("not a time with an offset: %s" % text)
    day, clock, fraction, offset = match.groups()
    return datetime.fromisoformat("%sT%s.%s%s" % (
        day, (clock + ":00")[:8], (fraction or "").ljust(6, "0")[:6],
        offset.upper().replace("Z", "+00:00")))


YEAR_10000 = 253402300800       # RFC 3339 has no year with five digits


def parse_time(text: str, field: str) -> float:
    """Return the UTC seconds since 1970 of an RFC 3339 text with an offset; Invalid names `field`."""
    try:
        seconds = parse_moment(text).timestamp()
        if not 0 <= seconds < YEAR_10000:
            raise ValueError(text)
        return seconds
    except (ValueError, TypeError, OverflowError):
        raise field_error(field, "must be a time with an offset, such as 2026-01-31T12:00:00Z") \
            from None


UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def how_often(seconds: float, exactly: bool = False) -> str:
    """Return a period in words ("every 15 minutes"), rounded unless `exactly`."""
    unit, size = next((unit, size) for unit, size in UNITS if size == 1 or (
        seconds % size == 0 if exactly else seconds >= 2 * size or abs(seconds - size) < size / 10))
    number = round(seconds / size)
    return "every %s" % unit if number == 1 else "every %d %ss" % (number, unit)


def span_text(seconds: float) -> str:
    """Return a time span as the page writes it ("1 h 30 min")."""
    words = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        number, seconds = divmod(seconds, size)
        if number:
            words.append("%d %s" % (number, unit))
    return " ".join([*words, "%g s" % seconds] if seconds else words)


def storable(text: str) -> str:
    """Return a text that SQLite can store: lone surrogates and NUL become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters on one line. A shortened text ends with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit - 1] + "…"


def jsonable(value: Any) -> str | float | list[Any]:
    """Return a JSON value for a value of a type that json.dumps does not know.

    The types are dates, times, time spans, enums, paths, sets, Decimal and UUID; TypeError for another one.
    """
    if isinstance(value, (date, clock_time)):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, (str, int, float)) else value.name
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Path) or type(value).__name__ in ("Decimal", "UUID"):  # not imported here
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError("a value of the type %s cannot be written as JSON" % type(value).__name__)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"),
                           default=jsonable).encode


def dump_json(value: Any) -> str:
    """Return compact JSON that SQLite can store; ValueError or TypeError if there is none."""
    text = _encode(value)
    return text if text.isascii() else storable(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError("%s is not a JSON number" % name)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object names a key twice")
    return result


class _NumberTooLarge(Exception):
    """A number that some JSON readers would read differently."""


def _check_json(value: Any, depth: int) -> None:
    if depth < 0:
        raise ValueError("nested deeper than %d levels" % JSON_MAX_DEPTH)
    if isinstance(value, (dict, list)):
        for item in itertools.chain(value, value.values() if isinstance(value, dict) else ()):
            _check_json(item, depth - 1)
    elif isinstance(value, str):
        if "\0" in value or not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise ValueError("a text holds NUL or an incomplete character")
    elif isinstance(value, int) and abs(value) > INTEGER_MAX or value in (math.inf, -math.inf):
        raise _NumberTooLarge


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


_NESTED = dict, list, tuple, set, frozenset


def is_deep(value: Any, levels: int) -> bool:
    """Return True if lists and dicts are nested deeper than `levels`. Some JSON readers cannot read that."""
    if not isinstance(value, _NESTED):
        return False
    if levels == 0:
        return True
    for item in list(value.values()) if isinstance(value, dict) else value:
        if isinstance(item, _NESTED) and is_deep(item, levels - 1):     # a generator would take twice as long
            return True
    return False


# Reads JSON text as json.loads() does, but refuses NaN and Infinity with ValueError.
read_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def _place_of_large(value: Any, place: str = "") -> str | None:
    """Return the place of a number that some readers would read differently; None if there is none."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (_place_of_large(item, "%s.%s" % (place, key)) for key, item in pairs)),
                    None)
    is_large = isinstance(value, int) and abs(value) > INTEGER_MAX or value in (math.inf, -math.inf)
    return place.strip(".") or "it" if is_large else None


def load_json(text: str | bytes) -> Any:
    """Return the value of a JSON text from outside.

    Malformed for a text that other JSON readers would understand differently.
    """
    try:
        # Editors on Windows begin files with a byte order mark.
        text = text.lstrip("\ufeff") if isinstance(text, str) else text
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        _check_json(value, JSON_MAX_DEPTH)
        return value
    except _NumberTooLarge:
        raise Malformed("The number of %s is too large: give it as a text." % _place_of_large(value)) \
            from None
    except (ValueError, RecursionError) as error:
        raise Malformed("This is not JSON that can be read: %s." % error) from None


def random_token(size: int = 16) -> str:
    """Return `size` random bytes as text, for secrets."""
    return os.urandom(size).hex()


def digest(token: str) -> str:
    """Return the SHA-256 of a token. The database stores this, never the token."""
    import hashlib
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


def machine_name() -> str:
    """Return the name of this machine, as in rows of workers."""
    return os.uname().nodename


@functools.lru_cache(maxsize=None)
def boot_id() -> str:
    """Return a text that changes at every boot; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def birth(pid: int) -> str | None:
    """Return the process start time and pid namespace of a living process; None if unknown.

    Together with the pid they identify a process, even if the pid is used again.
    """
    try:
        status = Path("/proc/%d/stat" % pid).read_text("ascii", "replace")
        fields = status.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19] + os.readlink("/proc/self/ns/pid")
    except (OSError, TypeError, IndexError):
        return None


def end_group(pid: int, born: str | None, sleep: Callable[[float], None]) -> bool:
    """Kill a process and its group; return False if it still lives.

    `born` is its birth(): another process that has this pid by now is not killed. A process of another
    user cannot be killed.
    """
    for _ in range(20):
        if born is None or birth(pid) != born:
            return True
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        sleep(0.01)
    return False


def read_retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds of a header Retry-After: digits or a date (RFC 9110).

    None if the header has no usable value: then the usual delay counts.
    """
    if not text or len(text) > 100:
        return None
    try:
        seconds = float(math.ceil(float(text)))
    except (ValueError, OverflowError):
        from email.utils import parsedate_to_datetime
        try:
            moment = parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError):
            return None
        if moment.tzinfo is None:       # the offset -0000: times in HTTP are UTC
            moment = moment.replace(tzinfo=timezone.utc)
        seconds = moment.timestamp() - now
    return seconds if 0 < seconds < math.inf else None


def name_signal(number: int) -> str:
    """Return a signal's number and name, and for SIGKILL its usual cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
    if number == signal.SIGKILL:
        return "signal %d (%s); the usual cause is too little memory" % (number, name)
    return "signal %d (%s)" % (number, name)
