"""Schedules with real processes: many who fire them at once, and nobody but one worker."""

import os
import subprocess
import sys
import time
import unittest

from tests.helpers.support import Site, wait_until

ONE_A_SECOND = """
from jobqueue import schedule, task

@schedule("every 1s")
@task
def beat():
    pass
"""
PREPARE = """
import time
from jobqueue import JobQueue
queue, begin = JobQueue(), time.time() - %d * 3600 - 1800
queue.schedules.add({"function": "add", "arguments": {"a": 1, "b": 2}, "rule": "every 1h",
                     "catch_up": "all", "overlap": "allow"}, 1)
with queue.database.transaction() as transaction:
    transaction.run("UPDATE schedule SET start=?, next_at=?", (begin, begin + 3600))
"""
TICKER = """
import sys, time, jobqueue
jobqueue.SLOTS_AT_ONCE = 1
queue = jobqueue.JobQueue(patience=60)
queue.starter.start_needed = lambda *_: 0
while time.time() < float(sys.argv[1]):
    time.sleep(0.001)
while queue.schedule_runner.next_due() <= time.time():
    queue.tick.run("test")
"""


class TestSlots(unittest.TestCase):
    """Real processes, a real clock."""

    LOAD = bool(os.environ.get("JOBQUEUE_TEST_LOAD"))

    def test_many_who_tick_at_once_fill_each_slot_once(self):
        processes, slots = (20, 1000) if self.LOAD else (6, 200)
        site = Site()
        self.addCleanup(site.close)
        site.python(PREPARE % slots)
        command = [sys.executable, "-c", TICKER, str(time.time() + processes / 5)]
        running = [subprocess.Popen(command, cwd=site.home, env=site.environment)
                   for _ in range(processes)]
        self.assertEqual({process.wait() for process in running}, {0})
        filled = site.rows("SELECT at, task_id FROM slot ORDER BY at")
        self.assertEqual(len(filled), slots)
        self.assertEqual({round(later["at"] - one["at"]) for one, later in zip(filled, filled[1:])}, {3600})
        tasks = site.rows("SELECT id FROM task")
        self.assertEqual({row["task_id"] for row in filled}, {row["id"] for row in tasks})
        self.assertEqual(len(tasks), slots)

    def test_they_go_on_with_nothing_alive_but_one_worker(self):
        site = Site(tasks=ONE_A_SECOND, linger=0, NbMaxWorker=2)
        self.addCleanup(site.close)
        site.run("schedule", "list")
        site.run("schedule", "run", "1", code=None)     # unless it has run by itself meanwhile
        wait_until(lambda: len(site.rows("SELECT 1 FROM task WHERE status=2")) >= 4, what="the fourth run")
        wait_until(lambda: len(site.rows("SELECT 1 FROM worker")) == 1, what="the other worker's end")

    def test_a_script_runs_beside_tasks_py_with_its_log(self):
        site = Site(tasks="", users=True)
        self.addCleanup(site.close)
        script = site.home / "schedules" / "daily" / "hello.sh"
        script.parent.mkdir(parents=True)
        script.write_text("#!/bin/sh\necho hello from $PWD\n")
        script.chmod(0o755)
        schedule_id = site.json("schedule", "list")["schedules"][0]["id"]
        task_id = site.json("schedule", "run", schedule_id)["id"]
        self.assertEqual(site.wait(task_id)["status"], "succeeded")
        self.assertEqual(site.run("log", str(task_id)).stdout.strip(), "hello from %s" % site.home)


if __name__ == "__main__":
    unittest.main()
