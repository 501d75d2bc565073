"""What the owner's objects do at the end of a function: no work is done twice, no error lost."""

import unittest

from tests.helpers.working import ProcessCase, Site

TASKS = '''
import datetime, decimal, enum, fractions, pathlib, signal, sys, time, uuid, dataclasses, collections
from jobqueue import task, current_task, RetryAfter, Fail

def mark(name):
    with open("ledger.txt", "a") as file:
        file.write(name + "\\n")

class Odd:
    def __truediv__(self, other): return "odd"
    def __str__(self): raise OSError("no text")
    __repr__ = __str__

class Float32:                          # as numpy has it
    dtype = "float32"
    def __init__(self, value): self.value = value
    def __float__(self): return self.value
    def __truediv__(self, other): return Float32(self.value / other)
    def item(self): return self.value

@task(retry_delay=0.1)
def progress(kind: str):
    mark("progress " + kind)
    numbers = {"decimal": (decimal.Decimal(1), decimal.Decimal(3)), "fraction": (fractions.Fraction(1, 2), 1),
               "numpy": (Float32(1.5), 3), "odd": (Odd(), 2), "nan": (float("nan"), 1), "none": (None, 1),
               "mixed": (decimal.Decimal("0.5"), 1.0), "large": (10**400, 2 * 10**400), "text": ("x", 1)}
    current_task().progress(0, 3)
    current_task().progress(*numbers[kind], message=Odd())
    return "done"

class RateLimited(RetryAfter):
    def __init__(self, response): self.response = response

class Silent(Exception):
    def __str__(self): raise RuntimeError("not even this")
    __repr__ = __str__

class Liar(RetryAfter):
    @property
    def seconds(self): raise ValueError("no number")
    @seconds.setter
    def seconds(self, value): pass

@task(max_retries=1, retry_delay=0.1)
def raises(kind: str):
    mark("raises " + kind)
    raise {"limited": lambda: RateLimited("429"),
           "syntax": lambda: SyntaxError("bad", ("file", 1, 1, b"text")),
           "syntax number": lambda: SyntaxError("bad", ("file", 1, 1, 7)), "silent": Silent,
           "liar": lambda: Liar(1), "delta": lambda: RetryAfter(datetime.timedelta(seconds=0.1), "soon"),
           "long": lambda: ValueError("y" * 300_000), "chained": Silent}[kind]() from (
               Silent() if kind == "chained" else None)

class Frame:
    def to_dict(self): return {"a": {0: 1.5}}

class Colour(enum.Enum):
    RED = "red"

@dataclasses.dataclass
class Point:
    x: int
    y: decimal.Decimal

@task(max_retries=3, retry_delay=0.1)
def returns(kind: str):
    mark("returns " + kind)
    deep = []
    for _ in range(2000): deep = [deep]
    return {"decimal": {"sum": decimal.Decimal("0.30")}, "uuid": [uuid.UUID(int=5)], "nan": float("nan"),
            "bytes": b"12345", "dataclass": Point(1, decimal.Decimal("2.5")), "set": {1}, "enum": Colour.RED,
            "keys": {(1, 2): 1, Colour.RED: 2, 3: 4}, "date": datetime.date(2026, 1, 2),
            "delta": datetime.timedelta(hours=1), "numpy": [Float32(1.5)],
            "deque": collections.deque([1, 2]),
            "frame": Frame(), "path": [pathlib.PurePosixPath("/a")],
            "object": object(), "odd": Odd(), "deep": deep,
            "large": "z" * (2 << 20), "generator": (n for n in "ab")}[kind]

@task(max_retries=2, retry_delay=0.1)
def exits(code: str):
    mark("exits " + code)
    sys.exit({"None": None, "0": 0, "False": False, "3": 3}.get(code, code))

@task(timeout=1, max_retries=0)
def late(kind: str):
    def stop(*_):
        if kind == "exit": sys.exit(0)
        raise ValueError("stopped")
    signal.signal(signal.SIGTERM, stop)
    time.sleep(60)
'''


class Outcomes(ProcessCase):
    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, **cls.settings)
        cls.addClassCleanup(cls.site.close)
        kinds = {
            "progress": "decimal fraction numpy odd nan none mixed large text".split(),
            "raises": [*"limited syntax silent liar delta long chained".split(), "syntax number"],
            "returns": "decimal uuid nan bytes dataclass set enum keys date delta numpy deque path frame"
            " object odd deep large generator".split(),
            "late": ["exit", "error"],
        }
        cls.tasks = {}
        for function, names in kinds.items():
            ids = cls.enqueue(function, [{"kind": name} for name in names])
            cls.tasks.update({(function, name): task_id for name, task_id in zip(names, ids)})
        codes = ["None", "0", "False", "3", "cannot go on"]
        ids = cls.enqueue("exits", [{"code": code} for code in codes])
        cls.tasks.update({("exits", code): task_id for code, task_id in zip(codes, ids)})
        cls.wait_for_all(list(cls.tasks.values()))
        cls.ledger_lines = (cls.site.home / "ledger.txt").read_text().splitlines()

    def ended(self, function, kind, status, attempts=1):
        """The task, which ended with this status after so many attempts, none of them a crash."""
        row = self.row(self.tasks[function, kind])
        times = self.ledger_lines.count("%s %s" % (function, kind)) if function != "late" else attempts
        begun = row["attempts"] - row["put_backs"]          # a slow runner gives back what it did not begin
        facts = row["status"], begun, row["crashes"], times
        self.assertEqual(facts, (status, attempts, 0, attempts), (kind, row["error_message"]))
        return row

    def test_progress_takes_numbers_of_any_kind(self):
        shares = {"decimal": 1 / 3, "fraction": 0.5, "numpy": 0.5, "mixed": 0.5, "large": 0.5}
        for kind in (*shares, "odd", "nan", "none", "text"):
            with self.subTest(kind):
                row = self.ended("progress", kind, 2)
                self.assertEqual(row["result"], '"done"')
        for kind, share in shares.items():
            with self.subTest(kind):
                self.assertAlmostEqual(self.row(self.tasks["progress", kind])["progress"], share, 4)
        self.assertIn("takes two numbers", self.log(self.tasks["progress", "odd"]))

    def test_an_exception_that_raises_when_it_is_looked_at_fails_with_its_class(self):
        for kind, name in (
            ("limited", "RateLimited"), ("syntax", "SyntaxError"), ("syntax number", "SyntaxError"),
            ("silent", "Silent"), ("chained", "Silent"), ("liar", "Liar"), ("delta", "RetryAfter"),
        ):
            with self.subTest(kind):
                self.assertEqual(self.ended("raises", kind, 3, attempts=2)["error_type"], name)

    def test_a_long_message_leaves_room_for_the_frames(self):
        self.ended("raises", "long", 3, attempts=2)
        log = self.log(self.tasks["raises", "long"])
        self.assertIn('tasks.py", line', log)
        self.assertIn("more characters", log)

    def test_a_result_that_json_has_no_word_for_is_kept_as_text(self):
        for kind, text in (
            ("decimal", '{"sum":"0.30"}'), ("uuid", '["00000000-0000-0000-0000-000000000005"]'),
            ("nan", '"nan"'), ("bytes", '"<5 bytes>"'), ("dataclass", '{"x":1,"y":"2.5"}'), ("set", "[1]"),
            ("enum", '"red"'), ("keys", '{"[1, 2]":1,"red":2,"3":4}'), ("date", '"2026-01-02"'),
            ("delta", "3600.0"), ("numpy", "[1.5]"), ("deque", "[1,2]"), ("path", '["/a"]'),
            ("frame", '{"a":{"0":1.5}}'),
        ):
            with self.subTest(kind):
                self.assertEqual(self.ended("returns", kind, 2)["result"], text)

    def test_a_result_that_cannot_be_kept_fails_for_good_after_one_run(self):
        for kind, words in (
            ("object", "cannot be kept"), ("odd", "cannot be kept"), ("deep", "nested deeper"),
            ("large", "larger than"), ("generator", "cannot be kept"),
        ):
            with self.subTest(kind):
                self.assertIn(words, self.ended("returns", kind, 3)["error_message"])

    def test_half_a_character_at_the_end_of_a_log_is_shown(self):
        self.site.write_tasks(TASKS + '''
import os
@task
def half():
    os.write(1, b"tail \\342")
    time.sleep(1.5)
    os.write(1, b"\\202")
    time.sleep(1.5)
''')
        task_id = self.add("half")
        self.wait_for(task_id)
        self.assertEqual(self.log(task_id).rstrip(), "tail \\xe2\\x82")

    def test_exit_codes_of_success_succeed(self):
        for code in ("None", "0", "False"):
            with self.subTest(code):
                self.assertEqual(self.ended("exits", code, 2)["error_type"], None)
        for code in ("3", "cannot go on"):
            with self.subTest(code):
                self.assertEqual(self.ended("exits", code, 3, attempts=3)["error_type"], "SystemExit")

    def test_a_time_limit_is_told_whatever_the_function_says_after_it(self):
        for kind in ("exit", "error"):
            with self.subTest(kind):
                row = self.ended("late", kind, 3)
                self.assertEqual((row["reason"], row["error_type"]), ("timeout", "Timeout"))
                self.assertIn("longer than 1 s", row["error_message"])


if __name__ == "__main__":
    unittest.main()
