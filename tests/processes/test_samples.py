"""CPU time and memory of a running task, as a real worker samples them."""
import json
import os
import unittest

from tests.helpers.faults import plant
from tests.helpers.support import Site, need, wait_until
from tests.helpers.working import ProcessCase

# Samples come ten times as often. The worker stores no more often than once a second.
QUICK = "\nTICK_SECONDS, RENEW_SECONDS = 0.3, 1.0\n"
TASKS = '''
import os, subprocess, sys, time
from pathlib import Path
from jobqueue import current_task, task

HERE = Path(__file__).parent
BURN = "block = b'x' * (64 << 20)\\nwhile True: pass"

@task(max_retries=1, retry_delay=0)
def burns():
    """Run a program that uses processor and memory until there is a file; the second attempt only waits."""
    attempt = current_task().attempt
    program = subprocess.Popen([sys.executable, "-c", BURN if attempt == 1 else "input()"],
                               stdin=subprocess.PIPE)
    while not (HERE / ("end %d" % attempt)).exists():
        time.sleep(0.01)
    program.kill()
    program.wait()
    program.stdin.close()
    if attempt == 1:
        raise ValueError("once more")
    return os.getpid()

@task
def quick(n: int):
    """End at once."""
'''


class TestSamples(ProcessCase):

    settings = {"linger": 5, "NbMaxWorker": 1, "nice": 0, "worker_mode": "detached"}

    @classmethod
    def setUpClass(cls):
        need(os.path.exists("/proc/self/stat"), "Linux")
        cls.site = Site(TASKS, **cls.settings)
        cls.addClassCleanup(cls.site.close)
        plant(cls.site, QUICK)

    def samples(self, task_id, attempt, count):
        """The samples of an attempt once there are so many."""
        def look():
            row = self.row(task_id)
            found = json.loads(row["samples"] or "[]")
            return row["attempts"] == attempt and len(found) >= count and found
        return wait_until(look, 60, "%d samples of attempt %d" % (count, attempt))

    def test_a_program_that_a_task_runs_is_sampled_and_the_next_attempt_begins_anew(self):
        task_id = self.add("burns")
        first = self.samples(task_id, 1, 3)
        for before, after in zip(first, first[1:]):
            self.assertGreater(after[0], before[0])
            self.assertGreater(after[1], before[1])
        self.assertGreater(first[-1][2], 64 << 20)
        self.assertLess(first[-1][1], 2 * first[-1][0])
        (self.site.home / "end 1").touch()
        second = self.samples(task_id, 2, 2)
        self.assertLess(second[0][0], first[-1][0])
        self.assertLess(second[-1][1], first[-1][1] / 2, "what the runner had used before does not count")
        self.assertLess(second[-1][2], 64 << 20)
        (self.site.home / "end 2").touch()
        self.assertIsNone(self.wait_for(task_id)["samples"])

    def test_quick_tasks_have_none(self):
        ids = self.enqueue("quick", [{"n": number} for number in range(50)])
        self.wait_for_all(ids)
        self.assertEqual(self.site.rows("SELECT id FROM task WHERE samples IS NOT NULL"), [])


if __name__ == "__main__":
    unittest.main()
