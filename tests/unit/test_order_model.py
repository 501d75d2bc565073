"""What comes after what, by chance: random calls by three people beside a simple model of the rules.

The model knows no SQL and shares nothing with the program. After each step every task must be as the
model says. Time is a fake clock.
"""

import random
import unittest
from unittest import mock

import jobqueue
from tests.helpers import postgres
from tests.helpers.support import TestCase

SEEDS, STEPS = range(1 if postgres.ADDRESS else 2), 1400
PEOPLE = ("ana", "bob", "eve")
OPEN = ("pending", "running", "scheduled", "waiting")
BAD = ("failed", "cancelled", None)


class Item:
    """A task as the model sees it; `status` None: deleted. `after` is {id: waited for, met or lost}."""

    def __init__(self, number, owner, after, carries_on, due, retries):
        self.id, self.owner, self.carries_on, self.due, self.retries = (
            number,
            owner,
            carries_on,
            due,
            retries,
        )
        self.after = dict.fromkeys(after, "waited for")
        self.left, self.crashes, self.attempts, self.asked = retries, 0, 0, None
        self.status = "waiting"


class Refused(Exception):
    """What was asked is not possible now."""


class Model:
    """The rules of order, as one would tell them."""

    def __init__(self):
        self.items, self.now = {}, 0.0

    def of(self, owner):
        return [item for item in self.items.values() if item.owner == owner]

    def add(self, number, owner, after, carries_on, delay, retries):
        due = None if delay is None else self.now + delay
        item = self.items[number] = Item(number, owner, after, carries_on, due, retries)
        for before in after:
            status = self.items[before].status
            if status == "succeeded" or (carries_on and status in BAD):
                item.after[before] = "met"
        blame = [
            before
            for before in after
            if item.after[before] == "waited for" and self.items[before].status in BAD
        ]
        if blame:
            self.fail(item)
            self.settle([item])
        elif not self.waits(item):
            self.let_go(item)

    def waits(self, item):
        return "waited for" in item.after.values()

    def let_go(self, item):
        later = item.due is not None and item.due > self.now
        item.status = "scheduled" if later else "pending"

    def fail(self, item):
        item.status = "failed"
        self.give_up(item)

    def give_up(self, item):
        for before, how in item.after.items():
            if how == "waited for":
                item.after[before] = "lost"

    def judge_anew(self, item):
        """What has been retried meanwhile is waited for again."""
        for before in item.after:
            if self.items[before].status in OPEN:
                item.after[before] = "waited for"

    def settle(self, ended):
        """What follows from ends, from the oldest on."""
        todo = {item.id for item in ended}
        while todo:
            before = self.items[min(todo)]
            todo.remove(before.id)
            for item in list(self.items.values()):
                if item.status != "waiting" or item.after.get(before.id) != "waited for":
                    continue
                if before.status == "succeeded" or item.carries_on:
                    item.after[before.id] = "met"
                    if not self.waits(item):
                        self.judge_anew(item)
                    if not self.waits(item):
                        self.let_go(item)
                else:
                    self.fail(item)
                    todo.add(item.id)

    def cancel(self, item):
        if item.status in ("succeeded", "failed"):
            raise Refused
        if item.status == "running":
            item.asked = "cancel"
        elif item.status != "cancelled":
            item.status = "cancelled"
            self.give_up(item)
            self.settle([item])

    def delete(self, item):
        if item.status == "running":
            item.asked = "delete"
        else:
            was_open, item.status = item.status in OPEN, None
            if was_open:
                self.settle([item])

    def retry(self, item):
        if item.status not in ("failed", "cancelled"):
            raise Refused
        if not item.carries_on and any(
            how == "lost" and self.items[before].status in BAD for before, how in item.after.items()
        ):
            raise Refused
        item.after = {before: "met" for before in item.after}
        self.judge_anew(item)
        item.left, item.crashes, item.due, item.asked = item.retries, 0, None, None
        item.status = "waiting" if self.waits(item) else "pending"

    def promote(self):
        for item in self.items.values():
            if item.status == "scheduled" and item.due <= self.now:
                item.status = "pending"

    def begin(self, item):
        item.status, item.attempts = "running", item.attempts + 1

    def end(self, ended):
        """Ends of attempts that are recorded together: pairs of an item and how."""
        over = []
        for item, how in ended:
            self.end_one(item, how)
            if item.status not in OPEN:
                over.append(item)
        self.settle(over)

    def end_one(self, item, how):
        if item.asked == "delete":
            item.status = None
        elif how == "succeeded":
            item.status = "succeeded"
        elif item.asked:
            item.status = "cancelled"
        elif how == "error" and item.left:
            item.due = self.now + 60 * 2 ** (item.retries - item.left)
            item.status, item.left = "scheduled", item.left - 1
        elif how == "put_back":
            item.status = "pending"
        elif how == "crashed" and item.crashes < 2:
            item.crashes, item.left, item.status = (
                item.crashes + 1,
                max(0, item.left - 1),
                "pending",
            )
        else:
            item.crashes += how == "crashed"
            item.status = "failed"
        item.asked = None


class TestOrderModel(TestCase):
    def test_every_task_is_as_the_rules_say_after_each_of_thousands_of_random_steps(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.play(seed)

    def test_the_comparison_sees_a_task_that_is_not_judged_anew(self):
        with (
            mock.patch.object(jobqueue.Followers, "reopen_edges", lambda *_: 0),
            self.assertRaises(AssertionError),
        ):
            self.play(0)

    def play(self, seed):
        """One game of STEPS steps, with the tasks of those before removed."""
        self.model, self.chance, self.running, self.known = Model(), random.Random(seed), {}, []
        with self.database.transaction() as transaction:
            for table in ("task", "task_after", "unsettled"):
                transaction.run("DELETE FROM " + table)
        for number in range(STEPS):
            told = "step %d of seed %d: %s" % (number, seed, self.step())
            self.compare(self.known[-25:], told)
        self.compare(self.known, "at the end of seed %d" % seed)

    def compare(self, ids, told):
        marks = ", ".join("?" * len(ids))
        found = {
            row["id"]: row
            for row in self.database.all(
                "SELECT id, CASE WHEN status=5 AND run_at<=? THEN 0 ELSE status END AS status, "
                "cancel_requested FROM task WHERE id IN (%s)" % marks,
                (self.clock.now(), *ids),
            )
        }
        for task_id in ids:
            item, row = self.model.items[task_id], found.get(task_id)
            says = row and (jobqueue.STATUS_WORDS[row["status"]], row["cancel_requested"])
            asked = {None: 0, "cancel": 1, "delete": 2}[item.asked]
            self.assertEqual(
                says, item.status and (item.status, asked), "task %d, %s" % (task_id, told)
            )

    def step(self):
        """Something happens, in both; what."""
        seconds = self.chance.choice((1, 1, 5, 20))
        self.clock.advance(seconds)
        self.model.now = self.clock.now()
        self.model.promote()
        with self.database.transaction() as transaction:
            for task_id, claim in self.running.items():
                self.assertTrue(
                    self.queue.claims.renew(transaction, task_id, claim, self.clock.now())
                )
        what = self.chance.choice(
            ["add"] * 4
            + ["claim"] * 3
            + ["end"] * 3
            + ["cancel", "retry", "retry", "delete", "tick", "stranger"]
        )
        return "%s %s" % (what, getattr(self, what)())

    def pick(self, owner=None):
        """One of the newer tasks that can be seen."""
        seen = [
            item
            for item in map(self.model.items.get, self.known[-25:])
            if item.status and item.asked != "delete" and owner in (None, item.owner)
        ]
        return self.chance.choice(seen) if seen else None

    def add(self):
        owner, retries = self.chance.choice(PEOPLE), self.chance.choice((0, 0, 2))
        before = {self.pick(owner) for _ in range(self.chance.choice((0, 1, 2, 3)))} - {None}
        after, carries_on = sorted(item.id for item in before), self.chance.random() < 0.5
        delay = self.chance.choice((None, None, None, 10, 100))
        more = {"delay": delay} if delay else {}
        many = self.chance.choice((1, 1, 3))
        ids = self.queue.add(
            [
                {
                    "function": "add",
                    "arguments": {"a": 1},
                    "after": after,
                    "max_retries": retries,
                    "after_failure": "run" if carries_on else "fail",
                    **more,
                }
            ]
            * many,
            self.owner_id(owner),
        )
        for task_id in ids:
            self.model.add(task_id, owner, after, carries_on, delay, retries)
        self.known += ids
        return ids, after

    def claim(self):
        rows = self.claim_many(self.chance.choice((1, 1, 4)), function="add")
        for row in rows:
            self.assertEqual(
                self.model.items[row["id"]].status, "pending", "claimed: %d" % row["id"]
            )
            self.model.begin(self.model.items[row["id"]])
            self.running[row["id"]] = row["claim"]
        if not rows:
            self.assertNotIn("pending", [item.status for item in self.model.items.values()])
        return [row["id"] for row in rows]

    def end(self):
        some = self.chance.sample(
            sorted(self.running), min(len(self.running), self.chance.choice((1, 1, 3)))
        )
        ended = [
            (
                task_id,
                self.running.pop(task_id),
                self.chance.choice(
                    ("succeeded", "succeeded", "error", "fail", "crashed", "put_back")
                ),
            )
            for task_id in some
        ]
        with self.database.transaction() as transaction:
            self.queue.claims.end_all(
                transaction,
                [(task_id, claim, jobqueue.Outcome(how)) for task_id, claim, how in ended],
                self.clock.now(),
            )
        self.model.end([(self.model.items[task_id], how) for task_id, _, how in ended])
        return [(task_id, how) for task_id, _, how in ended]

    def ask(self, action):
        """Its owner wants something done to a task: the program and the model must both do or refuse it."""
        item = self.pick()
        if item is None:
            return None
        done = refused = False
        try:
            getattr(self.model, action)(item)
        except Refused:
            refused = True
        try:
            getattr(self.queue.actions, action)(item.id, self.owner_id(item.owner))
            done = True
        except jobqueue.Conflict:
            pass
        self.assertEqual(done, not refused, "%s %d" % (action, item.id))
        return item.id

    def cancel(self):
        return self.ask("cancel")

    def retry(self):
        return self.ask("retry")

    def delete(self):
        return self.ask("delete")

    def tick(self):
        self.queue.tick.run(start=False)

    def stranger(self):
        """Somebody else finds nothing, and cannot let a task of theirs come after it."""
        item = self.pick()
        if item is None:
            return None
        other = self.chance.choice([name for name in PEOPLE if name != item.owner])
        with self.refused(jobqueue.Invalid):
            self.add_many(other, 1, options={"after": [item.id]})
        for action in ("cancel", "retry", "delete"):
            with self.refused(jobqueue.NotFound):
                getattr(self.queue.actions, action)(item.id, self.owner_id(other))
        return item.id


if __name__ == "__main__":
    unittest.main()
