"""Export and import by real processes: while others work, and killed on the way."""
import os
import subprocess
import sys
import unittest

from tests.helpers.support import Site, wait_until

TASKS = """
import time
from jobqueue import task

@task
def nap(n: int):
    print("nap", n)
    time.sleep(0.05)
    return n
"""
ADD = "from jobqueue import JobQueue; JobQueue().enqueue_many('nap', [{'n': n} for n in range(%d)])"
ENDED = "SELECT count(*) FROM task WHERE status=2"


class Moving(unittest.TestCase):
    """F13. An export is a moment of the database, and an import is all of it or nothing."""

    def site(self, **more):
        site = Site(tasks=TASKS, **more)
        self.addCleanup(site.close)
        return site

    def test_what_is_exported_while_all_work_goes_on_elsewhere(self):
        here = self.site(NbMaxWorker=2)
        here.python(ADD % 60)
        wait_until(lambda: here.value(ENDED) > 5)
        text = here.run("export", "-").stdout
        there = self.site(users=False)
        there.run("import", "-", given=text)
        self.assertEqual(there.value("SELECT count(*) FROM task"), 60)
        self.assertGreater(there.value(ENDED), 5)
        self.assertEqual(there.value("SELECT count(*) FROM task WHERE status=1"), 0)
        there.run("queue", "resume", "default")
        for site in (here, there):
            site.run("tick")
            wait_until(lambda site=site: site.value(ENDED) == 60)
        for number in (1, 60):
            self.assertEqual(there.run("log", number).stdout, "nap %d\n" % (number - 1))

    def test_an_import_that_is_killed_leaves_nothing(self):
        here, there = self.site(NbMaxWorker=0), self.site(users=False)
        here.python(ADD % 1000)
        text = here.run("export", "-").stdout
        pipe = there.home / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen([sys.executable, "jobqueue.py", "import", pipe], cwd=there.home,
                              env=there.environment) as process, open(pipe, "w") as file:
            file.write(text[:-1000])            # more than a pipe holds: most of it is read
            file.flush()
            process.kill()
            process.wait()
        self.assertEqual(there.value("SELECT count(*) FROM task"), 0)
        self.assertEqual(there.value("SELECT count(*) FROM user"), 0)
        there.run("import", "-", given=text)
        self.assertEqual(there.value("SELECT count(*) FROM task"), 1000)


if __name__ == "__main__":
    unittest.main()
