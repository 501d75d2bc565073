"""The errors of a Django task's attempts, as get_result() names them; no Django is needed for that."""
import traceback
import unittest

import jobqueue
from tests.helpers.support import TestCase

GROUP = """\
Traceback (most recent call last):
  + Exception Group Traceback (most recent call last):
  |   File "tasks.py", line 6, in group
  |     raise Several("two", [ValueError("a"), KeyError("b")])
  | shop.errors.Several: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "tasks.py", line 3, in one
    | ValueError: a
    +------------------------------------
"""


def text_of(action):
    """The traceback of what an action raises."""
    try:
        action()
    except Exception:
        return traceback.format_exc()


class ErrorsTests(TestCase):
    def path(self, trace, kind="error", message=None):
        """The class of the first attempt's error, whose log ends with this traceback."""
        task_id = self.add(options={"max_retries": 1, "retry_delay": 0})
        row = self.claim()
        if trace:
            self.write_log(task_id, "printed\n")
            self.write_log(task_id, trace, start=8)
        self.end(row, kind, error_message=message)
        self.tick(1)
        self.end(self.claim())
        view = jobqueue.result_view(self.queue, task_id)
        self.assertEqual(len(view["errors"]), 1)
        self.assertEqual(view["errors"][0]["traceback"] == trace, bool(trace))
        return view["errors"][0]["path"]

    def test_the_class_stands_below_the_last_frame(self):
        self.assertEqual(self.path(text_of(lambda: 1 / 0)), "builtins.ZeroDivisionError")

    def test_a_cause_is_not_the_error(self):
        def fail():
            try:
                int("x")
            except ValueError as error:
                raise KeyError("File\nTypeError: no") from error
        self.assertEqual(self.path(text_of(fail), message=repr("File\nTypeError: no")), "builtins.KeyError")

    def test_a_group_is_named_and_not_one_of_its_members(self):
        self.assertEqual(self.path(GROUP, message="two (2 sub-exceptions)"), "shop.errors.Several")

    def test_an_error_after_a_group_is_named(self):
        after = GROUP + "\nDuring handling of it, another occurred:\n\n" + text_of(lambda: {}["a"])
        self.assertEqual(self.path(after, message="'a'"), "builtins.KeyError")

    def test_a_message_that_looks_like_a_traceback_names_no_class(self):
        message = "x\nTraceback (most recent call last):\n  fake\nos.system: x"

        def fail():
            raise LookupError(message)
        self.assertEqual(self.path(text_of(fail), message=message), "builtins.LookupError")
        self.assertEqual(self.path(text_of(fail), message="something else"), "builtins.Exception")
        long = message + " and so on" * 80
        self.assertEqual(self.path("Traceback (most recent call last):\nshop.errors.Long: " + long,
                                   message=long), "shop.errors.Long")

    def test_attempts_without_a_traceback_are_named_by_their_end(self):
        self.assertEqual(self.path("", "timeout"), "builtins.TimeoutError")
        self.assertEqual(self.path("", "crashed"), "builtins.ChildProcessError")


if __name__ == "__main__":
    unittest.main()
