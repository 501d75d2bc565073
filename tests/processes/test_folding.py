"""Many processes fold the activity of a quarter of a year at once, and some are killed meanwhile."""
import os
import random
import subprocess
import sys
import time

import jobqueue
from tests.helpers.recount import assert_counted, history, write_history
from tests.helpers.support import ROOT, TestCase, wait_until

PROCESSES = 20
# Ticks until all is folded. argv: the data folder
TICKING = """
import os, sys
sys.path.insert(0, %r)
import jobqueue
jobqueue.FOLD_ROWS, jobqueue.FOLD_LEAST_ROWS = 200, 1
queue = jobqueue.JobQueue(sys.argv[1], patience=60)
newest = queue.database.value("SELECT max(id) FROM activity")
while queue.rollup.mark() < newest:
    queue.tick.run("server", start=False)
""" % str(ROOT)


class TestBackfill(TestCase):

    def start(self):
        place = {"JOBQUEUE_KEEP_ACTIVITY_DAYS": "0", "JOBQUEUE_KEEP_HOURS_DAYS": "0"}
        child = subprocess.Popen([sys.executable, "-c", TICKING, str(self.folder / "data")],
                                 env={**os.environ, **place, **self.place})
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def test_each_hour_counts_once_whoever_ticks_and_whoever_dies(self):
        rows, chance = history(90, time.time(), 60), random.Random(9)
        write_history(self.database, rows)
        children = [self.start() for _ in range(PROCESSES)]
        for share in range(1, 10):      # at each tenth of the way two die, wherever they are
            wait_until(lambda part=share: self.queue.rollup.mark() > len(rows) * part / 10, 120)
            for place in chance.sample(range(PROCESSES), 2):
                children[place].kill()
                children[place] = self.start()
        self.assertEqual([child.wait(120) for child in children], [0] * PROCESSES)
        self.assertEqual(self.queue.rollup.mark(), len(rows))
        self.assertEqual(jobqueue.recall(self.database, "folded"), len(rows))
        assert_counted(self, self.database)
