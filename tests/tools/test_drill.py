"""The drill's checker must catch what it is for: in made-up records, and in real seeded faults."""
import errno
import importlib.util
import io
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from tests.tools import drill
from tests.tools.drill import Event, Evidence, Hit, Order, Pause, Plan, Records, Removal, Slot, Task, explains
from tests.tools.load_test import Entry, Run
from tests.helpers import machines
from tests.helpers.support import need, need_part

WORKER, RUNNER = 50, 100


# What is broken on purpose. Each is appended to the drill's own copy of jobqueue.py and leans on
# the text of its statements; a fault that is never met is an error, not a success.

FAULT_TEXT = '''
_true_all, _true_many, _true_transaction = FileConnection.all, FileConnection.many, Database.transaction


def _fault_is_met():
    os.close(os.open(str(HOME / "fault-is-met"), os.O_WRONLY | os.O_CREAT, 0o600))


def _changed(statement, old, new):
    assert old in statement, statement
    return statement.replace(old, new)
'''

CLAIM_FAULT_TEXT = FAULT_TEXT + '''
_queries, _early = set(), {}


def _all(self, statement, values=()):
    if "status=PENDING" not in statement or "priority DESC, turn" not in statement:
        return _true_all(self, statement, values)
    key = statement, tuple(values[:-1])
    if key not in _early:
        _queries.add(key)
        return _true_all(self, statement, values)
    return _early.pop(key)[:values[-1]]


def _many(self, statement, rows):
    if "SET status=RUNNING" in statement:
        statement = _changed(statement, "AND status=PENDING", "")
        if any(self.value("SELECT status FROM task WHERE id=?", (row[-1],)) for row in rows):
            _fault_is_met()
    return _true_many(self, statement, rows)


@contextlib.contextmanager
def _transaction(self, *arguments, **options):
    for statement, values in list(_queries):
        rows = self.all(statement, (*values, 64))
        _early[statement, values] = rows
    with _true_transaction(self, *arguments, **options) as transaction:
        yield transaction


FileConnection.many, Database.transaction = _many, _transaction
FileConnection.all = _all
'''

# Nobody kills a worker that stands still, as where its process id cannot be vouched for.
SILENT_TEXT = '''
assert Reaper._end_silent
Reaper._end_silent = staticmethod(lambda *_: False)
'''

FENCE_FAULT_TEXT = FAULT_TEXT + SILENT_TEXT + '''

def _all(self, statement, values=()):
    if "interruptions" in statement and "AND status=RUNNING" in statement:
        statement = _changed(statement, "AND status=RUNNING", "")
    return _true_all(self, statement, values)


def _many(self, statement, rows):
    if "SET status=?" in statement and "put_backs" in statement:
        statement = _changed(statement, "AND status=RUNNING AND claim=?", "AND ? IS NOT NULL")
    return _true_many(self, statement, rows)


_true_end_all = Claims.end_all


def _end_all(self, transaction, ended, now, *more):
    by_id = [(task_id, transaction.value("SELECT claim FROM task WHERE id=?", (task_id,)), outcome)
             for task_id, _, outcome in ended]
    if [claim for _, claim, _ in by_id] != [claim for _, claim, _ in ended]:
        _fault_is_met()
    return _true_end_all(self, transaction, by_id, now, *more)


FileConnection.all, FileConnection.many, Claims.end_all = _all, _many, _end_all
'''

COUNT_FAULT_TEXT = FAULT_TEXT + '''

def _many(self, statement, rows):
    rows = list(rows)
    if "SET status=RUNNING" in statement:
        statement = _changed(statement, "attempts=?", "attempts=attempts+0*?")
    changed = _true_many(self, statement, rows)
    if "SET status=?" in statement and "AND status=RUNNING AND claim=?" in statement:
        _true_many(self, "UPDATE task SET attempts=attempts+1 WHERE id=? AND status<>0",
                   [(row[-2],) for row in rows])
        _fault_is_met()
    return changed


FileConnection.many = _many
'''

# No limit, rate, quota, key, order or turn holds, and schedules do not look back.
LIMITS_FAULT_TEXT = """
assert Queues.room and Adding._check_quota and Adding._holders and ScheduleRunner.unfinished
assert Adding._predecessors and turn_after
Queues.room = staticmethod(lambda *_: INTEGER_MAX)
Adding._check_quota = lambda *_: None
Adding._holders = staticmethod(lambda *_: {})
ScheduleRunner.unfinished = staticmethod(lambda *_: [])


def _predecessors(transaction, owner_id, orders, new):
    for order in new:
        order.after = ()
    return {}


Adding._predecessors = staticmethod(_predecessors)


def turn_after(turns):
    return int(time.time() * 1e6)
"""

PLANTS = {"claim": CLAIM_FAULT_TEXT, "fence": FENCE_FAULT_TEXT, "count": COUNT_FAULT_TEXT,
          "limits": LIMITS_FAULT_TEXT}

FEATURES = {"keys", "order", "limit", "rate", "quota", "slots", "turns"}


class Story:
    """Records of tasks that went well, to be changed by a test."""

    def __init__(self):
        self.records = Records(*([] for _ in range(15)))
        self.orders, self.tasks = self.records.orders, self.records.tasks

    def add(self, number, function="quick", **arguments):
        """A task that was acknowledged; its id is its number."""
        arguments = {"number": number, **arguments}
        self.orders.append(Order(number, function, arguments, "batch", number))
        self.tasks.append(Task(number, function, arguments, "pending", None, 0, None, None))
        self.records.events.append(Event(number, "added", None, None, 0.0))

    def ask(self, number, **values):
        """Change what was asked for."""
        self.orders[number - 1] = self.orders[number - 1]._replace(**values)

    def run(self, number, start, end=None, how="END", told=None, worker=WORKER):
        """A claim, and its lines in the ledger; without `end` it was cut off."""
        task = self.tasks[number - 1]
        attempts = task.attempts + 1
        claim = "claim-%d-%d" % (number, attempts)
        self.change(number, attempts=attempts, claim=claim, status="running")
        self.records.events.append(Event(number, "started", attempts, 1, start))
        for kind, at in (("START", start), (how, end)):
            if at is not None:
                self.records.entries.append(
                    Entry(kind, number, told or attempts, claim, RUNNER, at, worker))

    def end(self, number, status="succeeded", reason=None):
        """Record the outcome of the last claim."""
        task = self.tasks[number - 1]
        result = '"%d %s"' % (number, task.claim) if status == "succeeded" else None
        self.change(number, status=status, reason=reason, result=result)
        self.records.events.append(Event(number, status, task.attempts, 1, 0.0))

    def done(self, number, function="quick", start=None, **arguments):
        """A task that was added, ran once and succeeded."""
        start = 10.0 * number if start is None else start
        self.add(number, function, **arguments)
        self.run(number, start, start + 1)
        self.end(number)

    def change(self, number, **values):
        """Change a row."""
        self.tasks[number - 1] = self.tasks[number - 1]._replace(**values)

    def tell(self, kind, number, at):
        """A line of the ledger under the last claim."""
        task = self.tasks[number - 1]
        self.records.entries.append(
            Entry(kind, number, task.attempts, task.claim, RUNNER, at, WORKER))

    def hit(self, kind, at, until=None, pid=RUNNER):
        """Do something to a process."""
        self.records.hits.append(Hit(kind, pid, at, until or at))

    def remove(self, task_id, kind, status):
        """Ask for a task to be cancelled or deleted."""
        self.records.removals.append(Removal(task_id, kind, status))


class CheckerTestCase(unittest.TestCase):
    def setUp(self):
        self.story = Story()
        self.records = self.story.records
        for number in (1, 2, 3):
            self.story.done(number)

    def found(self):
        """The names of the checks that found something, once all checks were made."""
        self.findings = drill.check(Evidence(self.records))
        return [name for name, problems in self.findings.problems.items() if problems]

    def assert_found(self, *names, kind=None, task_id=None):
        self.assertEqual(self.found(), list(names), self.findings.problems)
        if kind:
            self.assertEqual(self.findings.ids(kind), {task_id})


class CleanTests(CheckerTestCase):
    def test_records_that_agree_are_clean(self):
        self.assert_found()
        self.assertTrue(self.findings.is_clean)
        self.assertEqual(str(self.findings), "lost 0, run twice 0, overlaps 0, stuck 0")

    def test_nothing_at_all_is_clean(self):
        self.assertTrue(drill.check(Evidence(Records())).is_clean)

    def test_every_check_says_what_it_holds(self):
        for name, function in drill.CHECKS:
            self.assertGreater(len(function.__doc__), 15, name)


class AddsTests(CheckerTestCase):
    """I1"""

    def test_an_acknowledged_task_without_a_row_is_lost(self):
        del self.records.tasks[1]
        self.assert_found("I1", kind="lost", task_id=2)

    def test_a_deleted_task_may_be_gone(self):
        del self.records.tasks[1]
        self.story.remove(2, "delete", None)
        self.assert_found()

    def test_a_cancelled_task_may_not_be_gone(self):
        del self.records.tasks[1]
        self.story.remove(2, "cancel", 200)
        self.assert_found("I1", kind="lost", task_id=2)

    def test_a_deleted_task_that_is_still_there_is_caught(self):
        self.story.remove(2, "delete", 204)
        self.assert_found("I1")

    def test_a_task_whose_deletion_was_refused_may_be_there(self):
        self.story.remove(2, "delete", 409)
        self.assert_found()

    def test_a_row_that_is_another_task_than_the_acknowledged_one_is_caught(self):
        self.records.orders[1] = Order(2, "quick", {"number": 2, "place": 1}, "batch", 2)
        self.assert_found("I1")

    def test_a_row_that_nobody_asked_for_is_caught(self):
        del self.records.orders[2]
        self.assert_found("I1")

    def test_a_task_that_was_added_twice_is_caught(self):
        self.story.done(4)
        self.records.orders.pop()
        self.story.change(4, arguments={"number": 3}, result='"3 claim-4-1"')
        self.assert_found("I1")

    def test_an_add_without_an_answer_may_be_there_or_not(self):
        self.records.orders[2] = self.records.orders[2]._replace(id=None)
        self.records.orders.append(Order(4, "quick", {"number": 4}, "other", None))
        self.assert_found()

    def test_a_bulk_add_that_is_there_in_part_is_caught(self):
        self.records.orders[2] = self.records.orders[2]._replace(id=None)
        self.records.orders.append(Order(4, "quick", {"number": 4}, "batch", None))
        self.assert_found("I1")

    def add_family(self, children, runs=1):
        """A parent (task 4) that added so many of three children."""
        self.story.add(4, "parent", children=3)
        for run in range(runs):
            self.story.run(4, 40.0 + 10 * run, 41.0 + 10 * run)
            if run:
                self.story.hit("kill", 40.0 + 10 * run - 8)
        self.story.end(4)
        for place in range(children):
            number = 5 + place
            self.story.done(number, "child", place=place % 3)
            self.records.orders.pop()
            self.story.change(number, arguments={"number": 4, "place": place % 3},
                              result='"4 claim-%d-1"' % number)
            self.records.entries.append(
                Entry("ADDED", number, 1, "claim-4-1", RUNNER, 40.5, WORKER))

    def test_what_a_function_adds_is_there_once(self):
        self.add_family(3)
        self.assert_found()

    def test_what_a_function_added_and_is_not_there_is_lost(self):
        self.add_family(3)
        self.records.entries.append(Entry("ADDED", 99, 1, "claim-4-1", RUNNER, 40.5, WORKER))
        self.assert_found("I1", kind="lost", task_id=99)

    def test_a_function_that_added_half_of_what_it_should_is_caught(self):
        self.add_family(2)
        self.assert_found("I1")

    def test_a_function_that_ran_again_after_a_kill_adds_again(self):
        self.add_family(6, runs=2)
        self.assert_found()

    def test_a_function_that_ran_once_and_added_twice_is_caught(self):
        self.add_family(6)
        self.assert_found("I1")


class EndsTests(CheckerTestCase):
    """I2 and I7"""

    def test_an_unfinished_task_is_stuck(self):
        for status in ("pending", "scheduled", "waiting"):
            self.story.change(2, status=status)
            self.records.events[:] = [event for event in self.records.events
                                      if (event.task, event.event) != (2, "succeeded")]
            self.assert_found("I2", kind="stuck", task_id=2)

    def test_a_task_that_nobody_runs_is_stuck(self):
        self.story.change(2, status="running")
        self.assert_found("I2", "I7", kind="stuck", task_id=2)

    def test_a_task_that_stayed_with_its_dead_worker_is_caught_though_it_ended(self):
        self.records.orphans = [2]
        self.assert_found("I7", kind="stuck", task_id=2)


class RunsTests(CheckerTestCase):
    """I3 and I5"""

    def setUp(self):
        super().setUp()
        self.story.add(4, "sleepy", seconds=1.0)

    def test_a_run_cut_off_by_a_kill_and_repeated_is_explained(self):
        self.story.run(4, 40.0)
        self.story.hit("kill", 40.5)
        self.story.run(4, 42.0, 43.0)
        self.story.end(4)
        self.assert_found()

    def test_the_death_of_its_worker_explains_it_as_well(self):
        self.story.run(4, 40.0, worker=60)
        self.story.hit("kill", 40.5, pid=60)
        self.story.run(4, 42.0, 43.0)
        self.story.end(4)
        self.assert_found()

    def test_a_kill_of_another_process_explains_nothing(self):
        self.story.run(4, 40.0)
        self.story.hit("kill", 40.5, pid=RUNNER + 1)
        self.story.run(4, 42.0, 43.0)
        self.story.end(4)
        self.assert_found("I5", kind="twice", task_id=4)

    def test_a_run_that_was_repeated_without_a_reason_is_caught(self):
        self.story.run(4, 40.0, 41.0)
        self.story.run(4, 42.0, 43.0)
        self.story.end(4)
        self.assert_found("I5", kind="twice", task_id=4)

    def test_a_kill_before_the_outcome_was_recorded_explains_a_second_run(self):
        self.story.run(4, 40.0, 41.0)
        self.story.hit("kill", 41.1)
        self.story.run(4, 44.0, 45.0)
        self.story.end(4)
        self.assert_found()

    def test_a_kill_long_after_the_end_does_not(self):
        self.story.run(4, 40.0, 41.0)
        self.story.hit("kill", 41.0 + drill.RECORD_SECONDS + 1)
        self.story.run(4, 60.0, 61.0)
        self.story.end(4)
        self.assert_found("I5", kind="twice", task_id=4)

    def repeat(self, kill, *pauses):
        """A run that ended at 41 s, was killed then, and began again at 70 s."""
        self.story.run(4, 40.0, 41.0)
        self.story.hit("kill", kill)
        self.story.run(4, 70.0, 71.0)
        self.story.end(4)
        self.records.pauses = [Pause(*pause) for pause in pauses]

    def test_nor_does_one_seven_seconds_after_the_end(self):
        self.repeat(48.0)
        self.assert_found("I5", kind="twice", task_id=4)

    def test_but_does_if_nobody_could_write_meanwhile(self):
        self.repeat(48.0, (42.0, 47.0))
        self.assert_found()

    def test_or_if_the_worker_or_its_runner_stood_still_then(self):
        for pid in (RUNNER, WORKER):
            with self.subTest(pid=pid):
                self.setUp()
                self.repeat(48.0, (42.0, 47.0, pid))
                self.assert_found()

    def test_not_if_another_worker_did_or_before_the_run_ended(self):
        self.repeat(48.0, (42.0, 47.0, 7), (20.0, 40.5))
        self.assert_found("I5", kind="twice", task_id=4)

    def test_a_machine_that_fell_explains_what_a_kill_does(self):
        for kind, at, names in (("fall", 41.1, []), ("fall", 47.0, ["I5"]), ("fence", 41.1, [])):
            with self.subTest(kind=kind, at=at):
                self.setUp()
                self.story.run(4, 40.0, 41.0)
                self.story.hit(kind, at, pid=WORKER)
                self.story.run(4, 70.0, 71.0)
                self.story.end(4)
                self.assert_found(*names)

    def test_a_machine_that_is_cut_off_must_end_its_runs_before_others_begin(self):
        self.story.run(4, 40.0, 60.0)
        self.story.hit("fence", 41.0, until=55.0, pid=WORKER)
        self.story.run(4, 50.0, 51.0)
        self.story.end(4)
        self.assert_found("I3", kind="overlap", task_id=4)

    def test_a_kill_long_after_a_full_disk_explains_nothing(self):
        self.repeat(66.0, (41.5, 60.0))
        self.assert_found("I5", kind="twice", task_id=4)

    def test_what_was_excused_is_counted_with_the_longest_gap(self):
        self.repeat(46.0, (42.0, 44.0))
        self.story.run(1, 80.0)
        self.story.hit("kill", 80.5)
        self.story.run(1, 82.0, 83.0)
        self.assertEqual(Evidence(self.records).excused(), [(3.0, 5.0)])
        self.assertEqual(drill.repetitions(Evidence(self.records)),
                         "2 runs: cut off 1, had ended 1; the longest gap before the kill "
                         "3.00 s, with pauses 5.00 s, at most 5 s are excused")

    def test_overlapping_runs_are_caught_though_a_kill_explains_the_second(self):
        self.story.run(4, 40.0, 45.0)
        self.story.hit("kill", 45.1)
        self.story.run(4, 44.0, 46.0)
        self.story.end(4)
        self.assert_found("I3", kind="overlap", task_id=4)

    def test_a_run_that_begins_before_the_one_before_was_killed_is_caught(self):
        self.story.run(4, 40.0)
        self.story.hit("kill", 45.0)
        self.story.run(4, 44.0, 46.0)
        self.story.end(4)
        self.assert_found("I3", kind="overlap", task_id=4)

    def lose_descriptors(self, seen):
        """A task whose worker is killed, and which is seen in the ledger once more; then it begins again."""
        self.story.change(4, function="cut")
        self.story.ask(4, function="cut")
        self.story.run(4, 40.0)
        self.story.hit("kill", 41.0, pid=WORKER)
        self.story.tell("LIVES", 4, seen)
        self.story.run(4, 43.0, 46.0)
        self.story.end(4, "failed", "crashed")
        self.assertEqual(str(drill.check(Evidence(self.records))),
                         "lost 0, run twice 0, overlaps %d, stuck 0" % (seen > 43))

    def test_a_run_without_descriptors_that_goes_on_beside_the_next_is_an_overlap(self):
        self.lose_descriptors(43.1)
        self.assert_found("I3", kind="overlap", task_id=4)

    def test_one_that_was_ended_before_the_next_began_is_none(self):
        self.lose_descriptors(42.9)
        self.assert_found()

    def test_a_task_that_crashed_on_record_and_ended_well_in_the_ledger_is_caught(self):
        self.story.run(4, 40.0, 41.0)
        self.story.end(4, "failed", "crashed")
        self.assert_found("I4")
        self.story.hit("kill", 41.1)
        self.assert_found()

    def test_what_is_left_behind_may_end_its_own_runner_and_nobody_elses(self):
        for function, found in (("messy", []), ("neat", ["I5"])):
            with self.subTest(function=function):
                self.setUp()
                self.story.change(4, function=function)
                self.story.ask(4, function=function)
                self.story.run(4, 40.0)
                self.story.run(4, 42.0, 43.0)
                self.story.end(4)
                self.assert_found(*found)

    def test_a_worker_that_stood_still_beyond_its_lease_explains_an_overlap(self):
        self.story.run(4, 40.0, 130.0)
        self.story.hit("stop", 41.0, 120.0)
        self.story.run(4, 105.0, 106.0)
        self.story.end(4)
        self.assert_found()

    def test_a_run_cut_off_for_good_needs_a_reason_as_well(self):
        self.story.run(4, 40.0)
        self.story.end(4, "failed", "crashed")
        self.assert_found("I5")

    def test_a_cancelled_run_may_be_cut_off(self):
        self.story.run(4, 40.0)
        self.story.end(4, "cancelled")
        self.story.remove(4, "cancel", 200)
        self.assert_found()

    def test_a_task_that_must_not_begin_twice_may_not_even_after_a_kill(self):
        self.story.change(4, function="once")
        self.records.orders[3] = self.records.orders[3]._replace(function="once")
        self.story.run(4, 40.0)
        self.story.hit("kill", 40.5)
        self.story.run(4, 42.0, 43.0)
        self.story.end(4)
        self.assert_found("I5", kind="twice", task_id=4)

    def test_a_task_that_kills_its_runner_is_given_up_after_three_times(self):
        self.story.run(4, 40.0, 41.0)
        self.story.end(4)
        self.story.add(5, "poison")
        for runs in (1, 2, 3, 4):
            self.story.run(5, 50.0 + runs)
            if runs == drill.CRASH_LIMIT:
                self.story.end(5, "failed", "crashed")
                self.assert_found()
        self.assertIn("I5", self.found())
        self.assertEqual(self.findings.ids("twice"), {5})

    def fail_often(self, times):
        self.story.change(4, function="shaky", arguments={"number": 4, "failures": 9})
        self.records.orders[3] = Order(4, "shaky", {"number": 4, "failures": 9}, "batch", 4)
        for number in range(times):
            self.story.run(4, 40.0 + number, 40.5 + number, "FAIL")
        self.story.end(4, "failed", "error")

    def test_a_failing_task_is_run_as_often_as_its_retries_say(self):
        self.fail_often(drill.RETRIES + 1)
        self.assert_found()

    def test_a_failing_task_that_is_run_more_often_is_caught(self):
        self.fail_often(drill.RETRIES + 2)
        self.assert_found("I5", kind="twice", task_id=4)


class DeathsTests(CheckerTestCase):
    def kill(self, *seconds, wall=1000.0):
        """A task for each of these: so late it was on record that it might start again."""
        self.records.wall = wall
        for number, late in enumerate(seconds, 4):
            at = 50.0 * number
            self.story.add(number)
            self.story.run(number, at)
            self.story.hit("kill", at + 0.5)
            self.records.events.append(Event(number, "crashed", 1, 1, wall + at + 0.5 + late))
            self.story.run(number, at + 40, at + 41)
            self.story.end(number)

    def test_a_few_may_be_late_and_more_may_not(self):
        self.kill(*[4.9] * 20, *[5.1] * drill.LATE_MAX)
        self.assert_found()
        self.setUp()
        self.kill(*[4.9] * 20, *[5.1] * (drill.LATE_MAX + 1))
        self.assert_found("death")

    def test_nobody_is_late_while_nobody_could_write(self):
        self.kill(*[8.0] * 9)
        self.records.pauses = [Pause(50.0 * number + 1, 50.0 * number + 5) for number in range(4, 13)]
        self.assert_found()


class FallsTests(CheckerTestCase):
    def test_after_its_lease_a_task_of_a_fallen_machine_must_soon_be_free(self):
        most = 30.0 + drill.FALLEN_SECONDS
        for late, names in ((most - 1, []), (most + 1, ["falls"])):
            with self.subTest(late=late):
                self.setUp()
                self.records.lease = 30.0
                self.story.add(4)
                self.story.run(4, 50.0)
                self.story.hit("fall", 50.5)
                self.records.events.append(Event(4, "crashed", 1, 1, 50.5 + late))
                self.story.run(4, 200.0, 201.0)
                self.story.end(4)
                self.assert_found(*names)


class MachinesTests(unittest.TestCase):
    """What a drill on PostgreSQL does to machines, without a database."""

    def setUp(self):
        need(not machines.missing(), "machines (%s)" % machines.missing())
        network = machines.Network(2)
        self.addCleanup(network.close)
        self.address, self.machines = network.address, network.machines

    def say(self, machine, *words):
        return subprocess.run(machine.command(words), stdout=subprocess.PIPE, text=True).stdout.strip()

    def reaches(self, machine):
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.3)"
        done = subprocess.run(machine.command([sys.executable, "-c", code, *self.server]),
                              stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def test_each_has_its_own_name_and_boot_and_falls_alone(self):
        one, two = self.machines
        self.assertEqual([self.say(machine, "hostname") for machine in (one, two)], ["m1", "m2"])
        boots = [self.say(machine, "cat", machines.BOOT_ID) for machine in (one, two)]
        self.assertEqual(len({*boots, Path(machines.BOOT_ID).read_text().strip()}), 3)
        sleepers = [subprocess.Popen(machine.command(["sleep", "600"])) for machine in (one, two)]
        self.assertIn(sleepers[0].pid, one.fall())
        self.assertEqual(sleepers[0].wait(), -9)
        self.assertIsNone(sleepers[1].poll())
        one.boot()
        self.assertNotEqual(self.say(one, "cat", machines.BOOT_ID), boots[0])
        two.fall()
        sleepers[1].wait()

    def test_each_is_cut_off_alone_and_is_there_again(self):
        one, two = self.machines
        with socket.create_server((self.address, 0)) as server:
            self.server = [self.address, str(server.getsockname()[1])]
            self.assertTrue(self.reaches(one))
            for how in ("down", "silent"):
                one.cut(how)
                self.assertFalse(self.reaches(one), how)
                self.assertTrue(self.reaches(two), how)
                one.mend()
                until = time.monotonic() + 30
                while not self.reaches(one):
                    self.assertLess(time.monotonic(), until, how)


class OutcomesTests(CheckerTestCase):
    """I4"""

    def test_two_outcomes_of_a_task_are_caught(self):
        self.records.events.append(Event(2, "succeeded", 1, 1, 0.0))
        self.assert_found("I4")

    def test_two_outcomes_of_a_deleted_task_are_caught(self):
        self.records.events.append(Event(2, "succeeded", 1, 1, 0.0))
        del self.records.tasks[1]
        self.story.remove(2, "delete", 204)
        self.assert_found("I4")

    def test_a_task_without_an_outcome_on_record_is_caught(self):
        self.records.events[:] = [event for event in self.records.events
                                  if (event.task, event.event) != (2, "succeeded")]
        self.assert_found("I4")

    def test_an_outcome_of_another_attempt_is_caught(self):
        place = self.records.events.index(Event(2, "succeeded", 1, 1, 0.0))
        self.records.events[place] = Event(2, "succeeded", 2, 1, 0.0)
        self.assert_found("I4")

    def test_a_success_of_a_run_that_never_ended_is_lost_work(self):
        self.records.entries[:] = [entry for entry in self.records.entries
                                   if (entry.id, entry.kind) != (2, "END")]
        self.story.hit("kill", 20.5)
        self.assert_found("I4", kind="lost", task_id=2)

    def test_a_success_of_a_claim_that_was_lost_is_caught(self):
        self.story.run(2, 22.0, 23.0)
        self.story.hit("kill", 21.5)
        self.story.change(2, status="succeeded", claim="claim-2-1")
        self.records.events[:] = [event._replace(attempt=2)
                                  if (event.task, event.event) == (2, "succeeded") else event
                                  for event in self.records.events]
        self.assert_found("I4", kind="twice", task_id=2)

    def test_the_result_of_another_claim_is_caught(self):
        self.story.change(2, result='"2 claim-2-0"')
        self.assert_found("I4")

    def test_a_failure_that_the_ledger_does_not_know_is_caught(self):
        self.story.change(2, status="failed", reason="error")
        self.records.events[:] = [event._replace(event="failed")
                                  if (event.task, event.event) == (2, "succeeded") else event
                                  for event in self.records.events]
        self.assert_found("I4")

    def test_a_failure_for_a_reason_that_nobody_gave_is_caught(self):
        self.story.add(4)
        self.story.end(4, "failed", "timeout")
        self.assert_found("I4")

    def test_a_cancelled_task_that_nobody_cancelled_is_caught(self):
        self.story.add(4)
        self.story.end(4, "cancelled")
        self.assert_found("I4")
        self.story.remove(4, "cancel", None)
        self.assert_found()


class AttemptsTests(CheckerTestCase):
    """I6"""

    def test_a_claim_that_never_began_leaves_a_gap_in_the_ledger_only(self):
        self.story.add(4)
        self.story.run(4, None)
        self.story.run(4, 42.0, 43.0)
        self.records.entries[:] = [entry for entry in self.records.entries
                                   if entry.at is not None]
        self.story.end(4)
        self.assert_found()

    def test_an_attempt_that_was_not_counted_is_caught(self):
        self.story.add(4)
        self.story.run(4, 40.0)
        self.story.hit("kill", 40.5)
        self.story.run(4, 42.0, 43.0, told=1)
        self.story.end(4)
        self.assert_found("I6")

    def test_attempts_on_record_that_do_not_count_up_are_caught(self):
        place = self.records.events.index(Event(2, "started", 1, 1, 20.0))
        self.records.events[place] = Event(2, "started", 2, 1, 20.0)
        self.assert_found("I6")

    def test_an_attempt_that_is_not_on_record_is_caught(self):
        self.story.add(4)
        self.story.run(4, 40.0, 41.0, told=2)
        self.story.end(4)
        self.assert_found("I6")

    def test_two_runs_under_one_claim_are_caught(self):
        self.records.entries.append(Entry("START", 2, 1, "claim-2-1", RUNNER, 25.0, WORKER))
        self.assert_found("I5", "I6", kind="twice", task_id=2)

    def test_an_end_without_a_start_is_caught(self):
        self.records.entries.append(Entry("END", 2, 1, "claim-9-9", RUNNER, 25.0, WORKER))
        self.assert_found("I6")

    def test_two_ends_of_one_run_are_caught(self):
        self.records.entries.append(Entry("END", 2, 1, "claim-2-1", RUNNER, 25.0, WORKER))
        self.assert_found("I6")


class EventsTestCase(CheckerTestCase):
    """The checks that follow what is on record from commit to commit."""

    def tell(self, text, **values):
        """Set the events: "added 1, started 1" and so on; `values` are the same for all."""
        pairs = (part.split() for part in text.split(",") if part.strip())
        self.records.events[:] = [
            Event(int(number), word, None, 1, 0.0, **values) for word, number in pairs]

    def problems(self, name):
        """What one check alone finds: ids."""
        function = dict(drill.CHECKS)[name]
        return [problem.id for problem in function(Evidence(self.records))]


class RetriesTests(CheckerTestCase):
    """I4 and I5, when somebody has failed tasks tried again"""

    def setUp(self):
        super().setUp()
        self.story.add(4, "shaky", failures=9)
        self.story.ask(4, user=1)
        for place in range(2 * (drill.RETRIES + 1)):
            self.story.run(4, 40.0 + place, 40.5 + place, "FAIL")
            if place == drill.RETRIES:
                self.records.events += [Event(4, "failed", place + 1, 1, 0.0),
                                        Event(4, "retried", None, None, 0.0)]
        self.story.end(4, "failed", "error")

    def ask_again(self, user):
        self.records.removals.append(Removal(None, "retry", None, user, "shaky"))

    def test_a_task_that_was_tried_again_has_another_outcome(self):
        self.ask_again(1)
        self.assert_found()

    def test_one_that_nobody_or_somebody_else_wanted_to_be_tried_again_is_caught(self):
        self.ask_again(2)
        self.assert_found("I4")

    def test_an_outcome_more_than_that_is_caught(self):
        self.ask_again(1)
        self.records.events.append(Event(4, "failed", 8, 1, 0.0))
        self.assert_found("I4")

    def test_all_of_a_function_may_be_cancelled_by_their_owner_alone(self):
        self.story.add(5, "aside")
        self.story.ask(5, user=1)
        self.story.end(5, "cancelled")
        self.ask_again(1)
        self.records.removals.append(Removal(None, "cancel", None, 2, "aside"))
        self.assert_found("I4")
        self.records.removals[-1] = Removal(None, "cancel", None, 1, "aside")
        self.assert_found()


class KeysTests(EventsTestCase):
    def setUp(self):
        super().setUp()
        for number in (1, 2):
            self.story.ask(number, user=1, key="key 1")

    def test_one_after_the_other_is_right_and_two_at_once_are_caught(self):
        self.tell("added 1, started 1, succeeded 1, added 2")
        self.assertEqual(self.problems("keys"), [])
        self.tell("added 1, started 1, crashed 1, added 2")
        self.assertEqual(self.problems("keys"), [2])

    def test_a_task_that_was_deleted_while_it_ran_keeps_its_key_to_the_end(self):
        self.tell("added 1, deleted 1, added 2")
        self.assertEqual(self.problems("keys"), [])
        self.tell("added 1, started 1, deleted 1, added 2, cancelled 1")
        self.assertEqual(self.problems("keys"), [2])

    def test_the_same_key_of_another_user_is_another(self):
        self.story.ask(2, user=2, key="key 1")
        self.tell("added 1, added 2")
        self.assertEqual(self.problems("keys"), [])

    def test_the_answer_may_be_the_task_that_has_the_key_and_no_other(self):
        self.story.orders.append(Order(9, "aside", {"number": 9}, "batch", 1, 1, "key 1"))
        self.assert_found()
        self.story.orders[-1] = Order(9, "aside", {"number": 9}, "batch", 1, 1, "key 2")
        self.assert_found("I1")


class OrderTests(EventsTestCase):
    def setUp(self):
        super().setUp()
        self.story.ask(3, after=(1, 2))

    def test_it_waits_for_all_to_succeed(self):
        self.tell("added 1, added 2, added 3, started 1, succeeded 1, started 2, succeeded 2, started 3")
        self.assertEqual(self.problems("order"), [])
        self.tell("added 1, added 2, added 3, started 1, succeeded 1, started 2, started 3, succeeded 2")
        self.assertEqual(self.problems("order"), [3])

    def test_failures_and_deletions_do_unless_it_runs_after_them_too(self):
        events = "added 1, added 2, deleted 1, started 2, failed 2, started 3"
        self.tell(events)
        self.assertEqual(self.problems("order"), [3, 3])
        self.story.ask(3, after=(1, 2), run=True)
        self.tell(events)
        self.assertEqual(self.problems("order"), [])

    def fail_by_others(self):
        self.records.tasks[2] = self.records.tasks[2]._replace(
            status="failed", reason="dependency", attempts=0, result=None)
        self.records.entries[:] = [entry for entry in self.records.entries if entry.id != 3]
        self.records.events[:] = [event for event in self.records.events
                                  if event.task != 3 or event.event == "added"]
        self.records.events.append(Event(3, "failed", 0, None, 0.0))

    def test_it_fails_by_others_only_if_they_did(self):
        self.fail_by_others()
        self.assert_found("I4")
        self.records.events.append(Event(2, "retried", None, None, 0.0))
        self.records.events.append(Event(2, "failed", None, None, 0.0))
        self.assertNotIn(3, self.problems("I4"))

    def test_one_that_runs_whatever_happens_does_not_fail_by_it(self):
        self.fail_by_others()
        self.story.ask(3, after=(99,), run=True)
        self.records.events.append(Event(99, "failed", None, None, 0.0))
        self.assertIn(3, self.problems("I4"))

    def test_one_that_waits_for_ever_is_stuck(self):
        self.story.change(3, status="waiting")
        self.assertEqual(self.problems("I2"), [3])


class LimitTests(EventsTestCase):
    def setUp(self):
        super().setUp()
        for number in (4, 5, 6):
            self.story.add(number, "narrow", seconds=1)

    def test_more_at_once_than_allowed_are_caught(self):
        self.story.run(4, 40.0, 42.0)
        self.story.run(5, 41.0, 43.0)
        self.story.run(6, 42.0, 44.0)
        self.assertEqual(self.problems("limit"), [])
        self.records.entries[-2] = self.records.entries[-2]._replace(at=41.5)
        self.assertEqual(self.problems("limit"), [6])

    def test_one_that_was_killed_runs_until_then(self):
        self.story.run(4, 40.0, worker=60)
        self.story.hit("kill", 41.0, pid=60)
        self.story.run(5, 40.5, 43.0)
        self.story.run(6, 41.1, 44.0)
        self.assertEqual(self.problems("limit"), [])
        self.records.entries[-2] = self.records.entries[-2]._replace(at=40.9)
        self.assertEqual(self.problems("limit"), [6])

    def test_nobody_knows_how_long_one_ran_that_was_cancelled(self):
        self.story.run(4, 40.0, worker=60)
        self.story.remove(4, "cancel", 200)
        self.story.hit("kill", 45.0, pid=60)
        self.story.run(5, 40.5, 43.0)
        self.story.run(6, 41.1, 44.0)
        self.assertEqual(self.problems("limit"), [])

    def test_starts_closer_than_the_rate_allows_are_caught(self):
        count, seconds = drill.RATE
        for more, found in ((0.0, []), (-0.01, [count + 2])):
            self.records.events[:] = [
                Event(number + 1, "started", 1, 1, number * (seconds + more) / (count + 1), 1, "paced")
                for number in range(count + 2)]
            self.assertEqual(self.problems("rate"), found)


class QuotaTests(EventsTestCase):
    def test_a_task_that_is_added_beyond_the_quota_is_caught(self):
        self.records.quotas = [(7, 2)]
        self.tell("added 1, added 2, started 1, added 3, crashed 1", owner=7)
        self.assertEqual(self.problems("quota"), [])
        self.tell("added 1, added 2, started 1, crashed 1, added 3", owner=7)
        self.assertEqual(self.problems("quota"), [3])
        self.tell("added 1, added 2, added 3", owner=8)
        self.assertEqual(self.problems("quota"), [])


class SlotsTests(EventsTestCase):
    def setUp(self):
        super().setUp()
        self.records.plans = [Plan(1, "all", "allow"), Plan(2, "once", "skip"), Plan(3, "once", "queue"),
                              Plan(4, "once", "allow")]
        self.records.slots = [Slot(1, 5.25, 4), Slot(1, 6.25, 5), Slot(2, 5.5, 6), Slot(2, 8.5, None)]
        for number in (4, 5, 6):
            self.story.add(number, "slotted")

    def test_a_slot_for_each_second_and_a_task_for_each_slot(self):
        self.assertEqual(self.problems("slots"), [])

    def test_two_slots_at_once_are_caught(self):
        self.records.slots[1] = Slot(1, 5.25, 5)
        self.assertEqual(self.problems("slots"), [5])

    def test_a_slot_between_two_seconds_is_caught(self):
        self.records.slots[1] = Slot(1, 6.75, 5)
        self.assertEqual(self.problems("slots"), [5])

    def test_two_tasks_for_one_slot_are_caught(self):
        self.records.slots[1] = Slot(1, 6.25, None)
        self.assertEqual(self.problems("slots"), [5])

    def test_one_task_for_two_slots_is_caught(self):
        self.records.slots[3] = Slot(2, 8.5, 6)
        self.assertEqual(self.problems("slots"), [6])

    def test_a_slot_that_was_passed_over_is_caught_where_all_are_to_be_caught_up(self):
        self.records.slots[1] = Slot(1, 8.25, 5)
        self.assertEqual(self.problems("slots"), [5])

    def test_tasks_that_overlap_are_caught_unless_their_schedule_allows_it(self):
        for plan, text, found in (
                (1, "added 4, started 4, added 5, started 5", []),
                (2, "added 4, started 4, added 5", [5]),
                (2, "added 4, started 4, failed 4, added 5, started 5", []),
                (3, "added 4, started 4, added 5, succeeded 4, started 5", []),
                (3, "added 4, started 4, added 5, started 5", [5])):
            with self.subTest(plan=plan, text=text):
                self.records.slots = [Slot(plan, 5.0, 4), Slot(plan, 6.0, 5), Slot(4, 5.5, 6)]
                self.tell(text)
                self.assertEqual(self.problems("slots"), found)


class TurnsTests(EventsTestCase):
    """Owner 1 has many tasks, owner 2 adds one."""

    def go(self, *steps):
        self.records.events[:] = [
            Event(task, word, 1, 1, 0.0, owner, "turns") for word, owner, tasks in steps for task in tasks]
        return self.problems("turns")

    def test_the_one_is_among_the_next_few(self):
        many = range(100, 200)
        self.assertEqual(self.go(("added", 1, many), ("added", 2, [7]), ("started", 1, many[:3]),
                                 ("started", 2, [7]), ("started", 1, many[3:])), [])
        self.assertEqual(self.go(("added", 1, many), ("added", 2, [7]), ("started", 1, many[:30]),
                                 ("started", 2, [7])), [7])

    def test_ones_own_tasks_come_first(self):
        many, few = range(100, 200), range(7, 17)
        mixed = [step for pair in zip(many, few) for step in (
            ("started", 1, pair[:1]), ("started", 2, pair[1:]))]
        self.assertEqual(self.go(("added", 1, many), ("added", 2, few), *mixed), [])

    def test_one_that_is_cancelled_has_waited_for_nobody(self):
        many = range(100, 200)
        self.assertEqual(self.go(("added", 1, many), ("added", 2, [7]), ("started", 1, many),
                                 ("cancelled", 2, [7])), [])


class OtherTests(CheckerTestCase):
    """I8, I9, logs and manners"""

    def test_too_many_workers_are_caught(self):
        self.records.crowds = [(9, 8)]
        self.assert_found("I8")

    def test_what_was_left_behind_is_caught(self):
        self.records.traces = ["process 7 is still there"]
        self.assert_found("I9")

    def test_an_answer_that_must_not_be_is_caught(self):
        self.records.surprises = ["POST api/tasks was answered with 500"]
        self.assert_found("words")

    def talk(self, *pieces):
        self.story.done(4, "chatty", lines=2)
        self.records.logs += [(4, 1, piece) for piece in pieces]

    def test_a_complete_log_is_clean(self):
        self.talk("line 0 of 4\nline 1", " of 4\n")
        self.assert_found()

    def test_a_log_that_lacks_something_is_caught(self):
        self.talk("line 0 of 4\n")
        self.assert_found("logs")

    def test_another_tasks_words_in_a_log_are_caught(self):
        self.talk("line 0 of 4\nline 1 of 4\n")
        self.records.logs.append((3, 1, "line 1 of 4\n"))
        self.assert_found("logs")

    def test_the_log_of_a_task_that_is_gone_is_caught(self):
        self.records.logs.append((99, 1, "line 1 of 99\n"))
        self.assert_found("logs")

    def test_the_counts_name_tasks_once(self):
        self.records.orphans = [2, 2]
        self.story.change(2, status="running")
        self.found()
        self.assertEqual(str(self.findings), "lost 0, run twice 0, overlaps 0, stuck 1")

    def test_the_report_names_a_few_tasks(self):
        self.records.orphans = list(range(100, 200))
        self.found()
        text = drill.verdict(self.findings)
        self.assertIn("I7    VIOLATED 100 times", text)
        self.assertIn("I1    ok", text)
        self.assertEqual(text.count("task 1"), 5)


class ExplanationTests(unittest.TestCase):
    def run_from(self, start, end=None):
        run = Run(Entry("START", 1, 1, "c", RUNNER, start, WORKER))
        run.end = end
        return run

    def test_a_kill_explains_what_ran_or_had_just_ended(self):
        for start, end, explained in ((10, None, True), (20.5, None, True), (22, None, False),
                                      (10, 15, True), (10, 20.5, True), (10, 22, False),
                                      (1, 2, False)):
            run = self.run_from(start, end)
            self.assertEqual(explains(Hit("kill", RUNNER, 20, 20), run), explained, (start, end))

    def test_a_request_to_leave_explains_what_was_cut_off_but_no_end_that_came_before(self):
        for start, end, explained in ((19, None, True), (22, None, True), (19, 19.9, False),
                                      (19, 25.1, True), (60, None, False)):
            run = self.run_from(start, end)
            self.assertEqual(explains(Hit("term", WORKER, 20, 20), run), explained, (start, end))

    def test_the_first_of_several_hits_is_the_cause(self):
        entries = [Entry("START", 1, 1, "c", RUNNER, 10.0, WORKER)]
        hits = [Hit("kill", RUNNER, 14, 14), Hit("kill", WORKER, 12, 12)]
        evidence = Evidence(Records(entries=entries, hits=hits))
        self.assertEqual(evidence.cause(evidence.runs[1][0]).since, 12)


class DecisionTests(unittest.TestCase):
    def demand(self, seed, share=300):
        weights = drill.weights_of(300, 60, 8, False)
        return drill.Demand(random.Random(seed), iter(range(10 ** 6)), share, 3, weights)

    def test_the_same_seed_asks_for_the_same(self):
        one, two, other = self.demand("a"), self.demand("a"), self.demand("b")
        first = [one.next() for _ in range(50)]
        self.assertEqual(first, [two.next() for _ in range(50)])
        self.assertNotEqual(first, [other.next() for _ in range(50)])

    def test_no_more_poison_than_allowed_is_asked_for(self):
        demand = self.demand("c")
        names = [request["function"] for _ in range(3000) for request in demand.next()]
        self.assertIn(names.count("poison"), range(1, 1 + 3 + 1))
        self.assertEqual(set(names), set(drill.weights_of(300, 60, 8, False)))

    def test_no_call_asks_for_more_than_is_left(self):
        demand = self.demand("d", 7)
        self.assertLessEqual(max(len(demand.next()) for _ in range(500)), 7)

    def test_the_line_to_repeat_a_drill_is_its_command(self):
        options = drill.parse(["--minutes", "30", "--workers", "20", "--tasks", "50000", "--seed",
                               "x", "--foreign", "python3 'a b'", "--lease", "6", "--journal", "truncate",
                               "--folder", "a b", "--fill-disk", "7", "--without", "leftovers"])
        words = drill.shlex.split(drill.command_line(options))
        self.assertEqual(words[:2], ["python3", "tests/tools/drill.py"])
        self.assertEqual(drill.parse(words[2:]), options)

    def test_a_drill_without_foreign_workers_is_repeated_without(self):
        options = drill.parse(["--foreign", ""])
        self.assertEqual(options.foreign, [])
        self.assertEqual(drill.parse(drill.shlex.split(drill.command_line(options))[2:]), options)

    def test_a_drill_without_a_seed_gets_one(self):
        self.assertTrue(drill.parse([]).seed)

    def test_the_last_words_of_a_traceback_name_the_error(self):
        text = ":\n  File \"x\", line 1\n    boom()\nValueError: it broke\nmore\n"
        self.assertEqual(drill.last_words(text), "ValueError: it broke")

    def test_the_functions_are_a_program(self):
        compile(drill.TASKS_TEXT, "tasks.py", "exec")
        compile(drill.DrillSite.tasks_text(["command"]), "tasks.py", "exec")

    def test_a_function_that_cannot_add_because_the_queue_is_busy_says_that_it_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tasks.py")
            path.write_text(drill.TASKS_TEXT, "utf-8")
            spec = importlib.util.spec_from_file_location("tasks", path)
            tasks = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(tasks)
        with mock.patch.object(tasks, "note") as note, \
                mock.patch.object(tasks.child, "enqueue_many", side_effect=tasks.Busy("later")):
            self.assertRaises(tasks.Busy, tasks.parent, 1, 2)
        self.assertEqual([call.args[0] for call in note.mock_calls], ["START", "FAIL"])


class IdleHolderTests(unittest.TestCase):
    """Who stands still may be given the lock: nobody else can write until the server takes it away."""

    def sampler(self, *samples):
        site = mock.Mock()
        sampler = drill.Sampler(site, 1, None)
        for now, idle in samples:
            site.store.idle_seconds.return_value = idle
            with mock.patch.object(drill.time, "monotonic", return_value=now):
                sampler.watch_lock()
        return sampler

    def test_a_hold_is_one_pause_for_everybody_from_its_beginning_to_the_last_look(self):
        sampler = self.sampler((10, 0), (11, 0.3), (12, 1.3), (13, 2.3), (14, 0), (20, 0.6), (21, 0))
        self.assertEqual(sampler.holds, [Pause(10.7, 13), Pause(19.4, 20)])

    def test_one_that_the_server_did_not_end_in_time_is_told(self):
        self.assertEqual(self.sampler((10, 4.1)).long_holds(), [])
        self.assertEqual(self.sampler((10, 9.0), (11, 10.0)).long_holds(),
                         ["who did nothing held the lock for 10.0 s"])


class PauseTests(unittest.TestCase):
    PAUSES = [Pause(2, 4), Pause(3, 5), Pause(8, 9)]

    def test_seconds_pass_only_between_pauses(self):
        for at, seconds, end in ((0, 1, 1), (0, 2.5, 5.5), (0, 5, 8), (0, 5.5, 9.5), (3, 0, 5), (3, 1, 6),
                                 (20, 5, 25)):
            self.assertEqual(drill.after_pauses(at, seconds, self.PAUSES), end, (at, seconds))

    def test_pauses_that_overlap_count_once(self):
        for since, until, seconds in ((0, 10, 6), (0, 1, 1), (2, 5, 0), (4, 8.5, 3), (8.5, 8.7, 0),
                                      (9, 12, 3)):
            self.assertEqual(drill.without_pauses(since, until, self.PAUSES), seconds, (since, until))


class SmallDiskTests(unittest.TestCase):
    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.folder = Path(room.name) / "disk"

    def test_the_folders_own_disk_is_not_filled_beyond_what_was_allowed(self):
        disk = drill.SmallDisk(self.folder, most=1 << 20)
        disk.open(1 << 30)
        with self.assertRaisesRegex(drill.DrillError, "more than --fill-disk"):
            disk.fill()
        disk.empty()
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_without_a_disk_to_fill_it_says_why_it_was_not_filled(self):
        disk = drill.SmallDisk(self.folder, may_mount=False)
        disk.open(1 << 30)
        self.assertIn("your own", disk.why_not)

    def test_a_mounted_one_is_full_until_it_is_emptied(self):
        disk = drill.SmallDisk(self.folder)
        disk.open(32 << 20)
        self.addCleanup(disk.close)
        need(disk.why_not is None, "the right to mount a file system")
        (self.folder / "before").write_bytes(b"x" * 8192)
        disk.fill()
        with self.assertRaises(OSError) as caught:
            (self.folder / "during").write_bytes(b"x" * 8192)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        disk.empty()
        (self.folder / "after").write_bytes(b"x" * 8192)


class DrillTestCase(unittest.TestCase):
    def drill(self, *words, plant=""):
        need(drill.os.path.exists("/proc/self/stat"), "Linux's /proc")
        need_part("drill")
        return drill.run(drill.parse(words), io.StringIO(), plant)


class ShortDrillTests(DrillTestCase):
    """Everything at once, and a disk that is full for longer than a lease."""

    def check(self, *words):
        findings, report = self.drill("--minutes", "0.5", "--lease", "6", "--workers", "8", "--seed", "6",
                                      *words)
        self.assertTrue(findings.is_clean, report)
        self.assertRegex(report, r"kills     [1-9]")
        self.assertRegex(report, r"stopped beyond its lease [1-9]")
        self.assertRegex(report, r"repeated  [1-9]\d* runs: .* 5 s are excused")
        harm = [name for name in drill.SELF_HARM if re.search(r"harm      .*%s [1-9]" % name, report)]
        self.assertGreater(len(harm), 1, report)        # a busy machine does not get to each
        self.assertIn("lost 0, run twice 0, overlaps 0, stuck 0", report)
        need("no small disk" not in report, "the right to mount a file system")
        self.assertRegex(report, r"disk      was full [1-9]")
        return report

    def test_nothing_is_lost_run_twice_or_stuck(self):
        report = self.check("--tasks", "2000")
        for words in ("tasks after others", "answers by key", "actions on many", "beyond the quota"):
            self.assertRegex(report, words + " [1-9]")
        self.assertRegex(report, "schedules [1-9]")
        self.assertIn("again: python3 tests/tools/drill.py --seed 6", report)

    def test_nor_with_a_rollback_journal_as_on_a_network_file_system(self):
        report = self.check("--journal", "truncate", "--tasks", "1500")
        self.assertIn("log       of the database had at most 0.0 MB", report)


class SeededFaultTests(DrillTestCase):
    def broken(self, fault, minutes="0.6", tasks="2000", lease="6"):
        plain = [word for name in drill.TROUBLES for word in ("--without", name)]
        findings, report = self.drill("--minutes", minutes, "--tasks", tasks, "--lease", lease,
                                      "--workers", "5", "--seed", "1", "--foreign", "", *plain,
                                      plant=PLANTS[fault])
        return {name for name, problems in findings.problems.items() if problems}, report

    def test_a_claim_that_does_not_look_at_the_status_is_caught(self):
        broken, report = self.broken("claim")
        self.assertIn("I5", broken, report)
        self.assertNotIn("run twice 0", report)

    def test_a_completion_without_the_fence_is_caught(self):
        broken, report = self.broken("fence", lease="1.5")
        self.assertIn("I4", broken, report)

    def test_an_attempt_that_is_counted_at_its_end_is_caught(self):
        broken, report = self.broken("count")
        self.assertIn("I6", broken, report)

    def test_limits_that_do_not_hold_are_caught_each_by_its_check(self):
        broken, report = self.broken("limits", "0.15", "1300")
        self.assertEqual(broken & FEATURES, FEATURES, report)


if __name__ == "__main__":
    unittest.main()
