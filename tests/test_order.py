"""Tasks that come after others: released, failed, retried, whoever ends what they wait for."""

from tests.support import TestCase


class OrderCase(TestCase):
    def after(self, *before, owner="bob", **options):
        """Add a task that comes after others; its id."""
        return self.add(owner, options={"after": list(before), **options})

    def states(self, *ids):
        """Their status words."""
        return [self.status(task_id) for task_id in ids]


class TestWaiting(OrderCase):
    def test_a_task_waits_until_what_it_comes_after_has_succeeded(self):
        first = self.add()
        second = self.after(first)
        self.assertEqual(self.status(second), "waiting")
        self.assertEqual(self.run_one()["id"], first)
        self.assertEqual(self.status(second), "pending")
        self.assertEqual(self.run_one()["id"], second)
        self.assertEqual(self.events(second), ["added", "released", "started", "succeeded"])

    def test_it_waits_for_all_of_many(self):
        before = self.add_many("bob", 5)
        last = self.after(*before)
        for _ in before:
            self.assertEqual(self.status(last), "waiting")
            self.run_one()
        self.assertEqual(self.status(last), "pending")

    def test_what_has_succeeded_already_is_not_waited_for(self):
        first = self.run_one()["id"] if self.add() else None
        self.assertEqual(self.status(self.after(first)), "pending")
        second = self.add()
        third = self.after(first, second)
        self.assertEqual(self.status(third), "waiting")
        self.run_one()
        self.assertEqual(self.status(third), "waiting")

    def test_a_failure_fails_it_and_says_by_which(self):
        first, other = self.add_many("bob", 2)
        second = self.after(first, other)
        third = self.after(second)
        self.run_one("fail")
        row = self.row(second)
        self.assertEqual(self.states(other, second, third), ["pending", "failed", "failed"])
        self.assertEqual((row["reason"], row["finished_at"]), ("dependency", self.clock.now()))
        self.assertEqual(
            row["error_message"], "Task %d, which this one comes after, failed." % first
        )
        self.run_one()
        self.assertEqual(self.status(second), "failed")

    def test_it_runs_after_a_failure_if_that_is_wanted(self):
        first, other = self.add_many("bob", 2)
        second = self.after(first, other, after_failure="run")
        self.run_one("fail")
        self.assertEqual(self.status(second), "waiting")
        self.run_one("fail")
        self.assertEqual(self.status(second), "pending")

    def test_a_retry_to_come_is_no_end(self):
        first = self.add("bob", "greet", name="x")
        second = self.after(first)
        self.run_one("error")
        self.assertEqual(self.states(first, second), ["scheduled", "waiting"])
        self.clock.advance(100)
        self.run_one()
        self.assertEqual(self.status(second), "pending")
