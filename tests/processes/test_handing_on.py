"""Keys, and tasks that are removed when they succeed, among real workers."""
import json

from tests.helpers.support import Site, wait_until
from tests.helpers.working import ProcessCase

TASKS = '''
from jobqueue import task

@task
def poll(n: int = 0):
    added = poll.using(unique_key="poll", after_failure=None).enqueue(n + 1) if n < 3 else None
    return [n, added and added.created]

@task(remove_on_success=True)
def extract(): return 1

@task
def load(n: int = 0): return n
'''


class HandingOn(ProcessCase):
    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, linger=1, NbMaxWorker=2, nice=0)
        cls.addClassCleanup(cls.site.close)

    def test_a_task_that_adds_itself_under_its_key_makes_a_chain(self):
        first = self.site.add("poll", "--unique-key", "poll")
        wait_until(lambda: len(self.site.rows("SELECT id FROM task WHERE function='poll' AND status=2")) == 4)
        rows = self.site.rows("SELECT id, result FROM task WHERE function='poll' ORDER BY id")
        self.assertEqual(rows[0]["id"], first)
        self.assertEqual([json.loads(row["result"]) for row in rows],
                         [[0, True], [1, True], [2, True], [3, None]])

    def test_a_removed_success_is_followed_and_awaited(self):
        said = self.site.python(
            "import tasks\nadded = tasks.extract.enqueue()\nadded.wait(60)\n"
            "print(added.id, added.then(tasks.load, 2).wait(60).result, added.status)")
        task_id, result, status = said.split()
        self.assertEqual((result, status), ("2", "succeeded"))
        self.assertIsNone(self.row(task_id))
        self.assertEqual(self.site.run("wait", task_id).stdout, "succeeded\n")
        self.site.run("wait", 99999, code=4)
