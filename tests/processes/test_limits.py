"""Limits of queues and users under real workers; with JOBQUEUE_TEST_LOAD=1 for a minute."""
import json
import os
import statistics
import unittest

from tests.helpers.support import Site, wait_until

LONG = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))
SECONDS = 60 if LONG else 3

TASKS = '''
import os, time
from jobqueue import current_task, task

@task
def nothing():
    """Do nothing."""

@task
def hold():
    """Say so while it runs, in one file for all."""
    with open("running", "a") as file:
        os.write(file.fileno(), b"+")
        time.sleep(0.1)
        os.write(file.fileno(), b"-")

@task
def mine():
    """The same, in a file for each owner, and quicker."""
    with open("running-" + current_task().owner, "a") as file:
        os.write(file.fileno(), b"+")
        time.sleep(0.03)
        os.write(file.fileno(), b"-")
'''


def most_at_once(signs):
    """How many ran at the same time, by the + and - that they wrote."""
    running = most = 0
    for sign in signs:
        running += 1 if sign == "+" else -1
        most = max(most, running)
    return most


class Limits(unittest.TestCase):
    def setUp(self):
        self.site = Site(TASKS, NbMaxWorker=20, nice=0)
        self.addCleanup(self.site.close)

    def enqueue(self, function, count, queue, owner=None, **options):
        """Add tasks without starting workers for them."""
        given = json.dumps([function, [{}] * count, {"queue": queue, "owner": owner, **options}])
        self.site.python("import json, sys\nfrom jobqueue import JobQueue\n"
                         "function, many, options = json.load(sys.stdin)\n"
                         "JobQueue().enqueue_many(function, many, **options)",
                         given=given, environment={"JOBQUEUE_NBMAXWORKER": "0"})

    def start_workers(self, count):
        """Workers that stay, all ready."""
        for _ in range(count):
            self.site.start_worker("--service")
        wait_until(lambda: len(self.site.runners()) == count and self.site.value(
            "SELECT count(*) FROM worker WHERE state='idle'") == count, 300, "the workers' arrival")

    def starts(self):
        return [row[0] for row in self.site.rows("SELECT at FROM activity WHERE event='started' "
                                              "AND queue='mail' ORDER BY at")]

    def test_twenty_workers_together_keep_a_rate_and_a_limit(self):
        self.start_workers(20)
        self.site.run("queue", "set", "mail", "--rate", "10/1")
        self.site.run("queue", "set", "narrow", "--max-running", "3")
        self.enqueue("hold", 60, "narrow")
        self.enqueue("nothing", 10 * SECONDS + 100, "mail")
        first = wait_until(self.starts, 60, "the first start")[0]
        wait_until(lambda: self.starts()[-1] > first + SECONDS and len(self.starts()) > 10 * SECONDS,
                   SECONDS + 60, "as many starts as there may be in that time")
        self.check_rate(first, self.starts())
        wait_until(lambda: not self.site.value("SELECT count(*) FROM task WHERE status<2 AND queue='narrow'"),
                   180, "the end of all")
        signs = (self.site.home / "running").read_text("ascii")
        self.assertEqual((signs.count("+"), signs.count("-"), most_at_once(signs)), (60, 60, 3))

    def test_eight_workers_run_no_more_of_a_user_than_may_run_and_all_of_others(self):
        self.site.run("user", "set", "eve", "--max-running", "3")
        for queue, priority in (("a", 5), ("b", 0), ("default", 0)):
            self.enqueue("mine", 60, queue, "eve", priority=priority)
        self.enqueue("mine", 60, "b", "bob", priority=-9)
        for _ in range(8):
            self.site.start_worker("--service")
        wait_until(lambda: not self.site.value("SELECT count(*) FROM task WHERE status<2"), 180,
                   "the end of all")
        most = {}
        for name, count in (("eve", 180), ("bob", 60)):
            signs = (self.site.home / ("running-" + name)).read_text("ascii")
            self.assertEqual((signs.count("+"), signs.count("-")), (count, count))
            most[name] = most_at_once(signs)
        self.assertEqual(most["eve"], 3)
        last = dict(map(tuple, self.site.rows("SELECT name, max(finished_at) FROM task "
                                              "JOIN user ON user.id=owner_id GROUP BY name")))
        self.assertLess(last["bob"], last["eve"], "bob waited for eve's")

    def check_rate(self, first, starts):
        most = max(sum(at <= other <= at + 1 for other in starts) for at in starts)
        self.assertLessEqual(most, 11)
        within = sum(at <= first + SECONDS for at in starts)
        self.assertLessEqual(within, 10 * SECONDS + 10)
        usual = statistics.median(after - before for before, after in zip(starts, starts[1:]))
        self.assertLess(usual, 2 * 0.1, "the rate is not used")
        if LONG:                        # for seconds a machine may well be busy with something else
            self.assertGreaterEqual(within, 590, "starts were missed")

    def test_cron_waits_for_a_rate_but_not_for_other_machines(self):
        self.site.run("queue", "set", "mail", "--rate", "5/1")
        self.site.run("queue", "set", "far", "--machines", "elsewhere")
        self.enqueue("nothing", 6, "mail")
        self.enqueue("nothing", 1, "far")
        self.site.start_worker().wait(100)
        done = self.site.rows("SELECT queue, count(*) FROM task WHERE status=2 GROUP BY queue")
        self.assertEqual(dict(map(tuple, done)), {"mail": 6})
        far = next(one for one in self.site.json("queue", "list")["queues"] if one["name"] == "far")
        self.assertEqual((far["pending"], far["blocked"]), (1, "machines"))


if __name__ == "__main__":
    unittest.main()
