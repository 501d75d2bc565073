"""Types of parameters, each with a value: in JSON, as a text, in Python, and what a function gets.

    CASES                   {name: Case}
    TASKS                   a tasks.py with a function t_NAME(x) for each, which returns repr(x)
"""
import collections

Case = collections.namedtuple("Case", "hint json text python repr")

HEADER = '''
import dataclasses, enum, collections
from collections import abc
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import *
from uuid import UUID
from jobqueue import task

class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

@dataclasses.dataclass
class Point:
    x: int
    y: Decimal = Decimal("0")

class Town(TypedDict, total=False):
    required: str
    since: date

class Pair(NamedTuple):
    a: int
    b: Decimal

class Limits:
    ge, lt = 0, 10

UserId = NewType("UserId", int)
'''
UUID_TEXT = "12345678-1234-5678-1234-567812345678"
CASES = {name: Case(*row) for name, *row in (
    ("bool", "bool", True, "true", "True", "True"),
    ("int", "int", 7, "7", "7", "7"),
    ("float", "float", 2.5, "2.5", "2.5", "2.5"),
    ("decimal", "Decimal", "1.10", "1.10", 'Decimal("1.10")', "Decimal('1.10')"),
    ("str", "str", "é x", "é x", '"é x"', "'é x'"),
    ("bytes", "bytes", "aGk=", "aGk=", 'b"hi"', "b'hi'"),
    ("date", "date", "2026-01-31", "2026-01-31", "date(2026, 1, 31)", "datetime.date(2026, 1, 31)"),
    ("time", "time", "14:30", "14:30", "time(14, 30)", "datetime.time(14, 30)"),
    ("datetime", "datetime", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z",
     "datetime(2026, 1, 31, 12, tzinfo=timezone.utc)",
     "datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.timezone.utc)"),
    ("timedelta", "timedelta", 90, "90", "timedelta(seconds=90)", "datetime.timedelta(seconds=90)"),
    ("uuid", "UUID", UUID_TEXT, UUID_TEXT, 'UUID("%s")' % UUID_TEXT, "UUID('%s')" % UUID_TEXT),
    ("literal", 'Literal["a", "b"]', "b", "b", '"b"', "'b'"),
    ("enum", "Colour", "blue", "blue", "Colour.BLUE", "<Colour.BLUE: 'blue'>"),
    ("list", "list", ["a", "b"], "a,b", '["a", "b"]', "['a', 'b']"),
    ("list_int", "List[int]", [1, 2], "1,2", "[1, 2]", "[1, 2]"),
    ("list_date", "List[date]", ["2026-01-31"], "2026-01-31", "[date(2026, 1, 31)]",
     "[datetime.date(2026, 1, 31)]"),
    ("tuple", "Tuple[int, str]", [1, "b"], "1,b", '(1, "b")', "(1, 'b')"),
    ("tuple_any", "Tuple[int, ...]", [1, 2], "1,2", "(1, 2)", "(1, 2)"),
    ("set", "Set[int]", [1], "1", "{1}", "{1}"),
    ("frozenset", "FrozenSet[str]", ["a"], "a", 'frozenset(["a"])', "frozenset({'a'})"),
    ("deque", "Deque[int]", [1], "1", "collections.deque([1])", "deque([1])"),
    ("sequence", "Sequence[int]", [1, 2], "1,2", "(1, 2)", "[1, 2]"),
    ("abc_sequence", "abc.Sequence", ["a"], "a", '["a"]', "['a']"),
    ("iterable", "Iterable[Decimal]", ["1.5"], "1.5", '[Decimal("1.5")]', "[Decimal('1.5')]"),
    ("abc_set", "AbstractSet[int]", [3], "3", "{3}", "frozenset({3})"),
    ("dict", "dict", {"a": 1}, '{"a": 1}', '{"a": 1}', "{'a': 1}"),
    ("dict_int", "Dict[int, int]", {"1": 5}, '{"1": 5}', "{1: 5}", "{1: 5}"),
    ("dict_date", "Dict[str, date]", {"a": "2026-01-31"}, '{"a": "2026-01-31"}', '{"a": date(2026, 1, 31)}',
     "{'a': datetime.date(2026, 1, 31)}"),
    ("mapping", "Mapping[UUID, int]", {UUID_TEXT: 1}, '{"%s": 1}' % UUID_TEXT, '{UUID("%s"): 1}' % UUID_TEXT,
     "{UUID('%s'): 1}" % UUID_TEXT),
    ("optional", "Optional[Decimal]", "1.5", "1.5", 'Decimal("1.5")', "Decimal('1.5')"),
    ("union", "Union[int, str]", 5, "5", "5", "5"),
    ("union_text", "Union[int, str, None]", "five", "five", '"five"', "'five'"),
    ("union_list", "Union[int, List[int]]", [1, 2], "[1, 2]", "[1, 2]", "[1, 2]"),
    ("auto", 'Union[Literal["auto"], float]', "auto", "auto", '"auto"', "'auto'"),
    ("annotated", 'Annotated[int, Limits(), "how many"]', 9, "9", "9", "9"),
    ("new_type", "UserId", 5, "5", "UserId(5)", "5"),
    ("typed_dict", "Town", {"since": "2026-01-31"}, '{"since": "2026-01-31"}',
     'Town(since=date(2026, 1, 31))', "{'since': datetime.date(2026, 1, 31)}"),
    ("dataclass", "Point", {"x": 1, "y": "2.50"}, '{"x": 1, "y": "2.50"}', 'Point(1, Decimal("2.50"))',
     "Point(x=1, y=Decimal('2.50'))"),
    ("named_tuple", "Pair", {"a": 1, "b": "2"}, '{"a": 1, "b": "2"}', '{"a": 1, "b": Decimal(2)}',
     "Pair(a=1, b=Decimal('2'))"),
)}
TASKS = HEADER + "".join(
    "\n@task\ndef t_%s(x: %s):\n    return repr(x)\n" % (name, case.hint) for name, case in CASES.items())
