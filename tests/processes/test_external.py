"""Functions that other people's workers run: external(), and the handbook's statements for them."""

import re
import shutil
import subprocess
import unittest

import jobqueue
from tests.helpers.faults import QUICK_LEASE, plant
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import ROOT, Site, TestCase, function_json, need, wait_until

TASKS = '''
from jobqueue import external, task

external("render", queue="c", text=str, max_retries=1, retry_delay=0)

@task
def shout(text: str):
    return text.upper()
'''


def statements(text):
    """The SQL statements of a text, each on one line."""
    return [" ".join(part.split()) for part in text.split(";") if part.strip()]


class TestDeclaration(TestCase):
    def setUp(self):
        super().setUp()
        render = {**function_json("render", {"text": {"type": "string"}}, queue="c"), "external": True}
        self.declare(function_json("shout"), render)

    def declare(self, *functions):
        self.queue.catalogue.store({"functions": list(functions), "error": None})

    def test_our_workers_leave_its_tasks_alone(self):
        self.add("bob", "render", text="x")
        self.assertEqual(self.queue.claims.claimable(10), 0)
        self.assertIsNone(self.claim())
        self.assertEqual(self.started, [])

    def test_its_tasks_stay_in_its_queue_and_no_others_come_there(self):
        for function, queue in (("render", "default"), ("shout", "c")):
            with self.refused(jobqueue.Invalid) as caught:
                self.queue.enqueue(function, {"text": "x"} if function == "render" else {}, queue=queue)
            self.assertEqual([error["field"] for error in caught.exception.errors], ["queue"])

    def test_a_queue_is_ours_again_once_nothing_external_names_it(self):
        self.add("bob", "render", text="x")
        self.declare(function_json("render", {"text": {"type": "string"}}, queue="c"))
        self.assertEqual(self.claim()["function"], "render")

    def test_it_needs_a_queue_of_its_own(self):
        with self.assertRaises(ValueError):
            jobqueue.external("render", queue="default")
        with self.assertRaises(TypeError):
            jobqueue.external("render")


@about_sqlite("its command line is the other language")
class TestForeignWorker(unittest.TestCase):
    def setUp(self):
        need(shutil.which("sqlite3"), "the sqlite3 command line")
        self.site = Site(TASKS, NbMaxWorker=1)
        self.addCleanup(self.site.close)
        self.ledger = self.site.home / "ledger.txt"
        self.worker = None

    def start_worker(self):
        path, = self.site.data.glob("jobqueue-*.db")
        self.worker = subprocess.Popen(
            ["sh", str(ROOT / "tests" / "tools" / "foreign_worker.sh"), str(path), "c", str(self.ledger)],
            start_new_session=True)
        self.addCleanup(self.worker.wait)
        self.addCleanup(self.worker.kill)

    def status(self, task_id):
        return self.site.json("show", task_id)["status"]

    def events(self, task_id):
        return [row["event"] for row in self.site.rows(
            "SELECT event FROM activity WHERE task_id=? ORDER BY id", (task_id,))]

    def service(self, task_id):
        """What the last event says of the time since it was added."""
        return self.site.value("SELECT service FROM activity WHERE task_id=? ORDER BY id DESC", (task_id,))

    @staticmethod
    def told(function):
        """The statements in a function of the foreign worker."""
        text = (ROOT / "tests" / "tools" / "foreign_worker.sh").read_text("utf-8")
        return re.search(r"^%s\(\) .*?<<'SQL'\n(.*?)^SQL$" % function, text, re.S | re.M)[1]

    def say(self, text, **values):
        with self.site.connection() as link:
            for statement in statements(text):
                link.execute(statement, {"now": jobqueue.Clock.now(), **values})

    def test_it_runs_what_is_added_and_ours_runs_the_rest(self):
        ids = [self.site.add("render", text="it's %d \" \\" % number) for number in range(5)]
        other = self.site.add("shout", text="x")
        self.site.wait(other)
        self.assertEqual({self.status(task_id) for task_id in ids}, {"pending"})
        self.start_worker()
        for number, task_id in enumerate(ids):
            task = self.site.wait(task_id)
            self.assertEqual((task["status"], task["result"], task["attempts"]),
                             ("succeeded", {"text": "it's %d \" \\" % number}, 1))
            self.assertEqual(self.events(task_id), ["added", "started", "succeeded"])
            self.assertAlmostEqual(self.service(task_id), jobqueue.parse_time(
                task["finished_at"], "") - jobqueue.parse_time(task["created_at"], ""), 2)
        self.assertEqual(len(self.ledger.read_text().splitlines()), 10)

    def test_a_failure_is_retried_and_then_recorded(self):
        self.start_worker()
        task_id = self.site.add("render", text="fail")
        wait_until(lambda: "retry" in self.events(task_id), what="the first failure")
        self.site.run("tick")
        task = self.site.wait(task_id)
        self.assertEqual((task["status"], task["reason"], task["error"]["message"], task["attempts"]),
                         ("failed", "error", "it said so", 2))
        self.assertEqual(self.events(task_id),
                         ["added", "started", "retry", "promoted", "started", "failed"])
        self.assertIsNotNone(self.service(task_id))

    def test_a_task_whose_foreign_worker_died_is_given_out_again_after_its_lease(self):
        plant(self.site, QUICK_LEASE)
        task_id = self.site.add("render", text="x")
        self.say(self.told("claim_next"), queue="c", claim="f" * 32, boot=jobqueue.boot_id(),
                 monotonic=jobqueue.Clock.monotonic() + 600)
        self.site.run("tick")
        self.assertEqual(self.status(task_id), "running")
        self.say("UPDATE task SET lease_monotonic=lease_monotonic-:gone", gone=600 + jobqueue.LEASE_SECONDS)
        self.start_worker()
        wait_until(lambda: self.site.run("tick") and self.status(task_id) == "succeeded",
                   what="its end by another worker")
        self.assertIn("crashed", self.events(task_id))

    def test_what_was_cancelled_or_deleted_while_it_ran_ends_as_that(self):
        self.say("PRAGMA wal_autocheckpoint=0")
        for word, function in (("cancel", "fail"), ("delete", "fail"), ("delete", "succeed")):
            with self.subTest(word, function=function):
                task_id = self.site.add("render", text=function)
                self.say(self.told("claim_next"), queue="c", claim="f" * 32, boot=None, monotonic=None)
                self.assertEqual(self.status(task_id), "running")
                self.site.run(word, task_id)
                self.say(self.told(function), id=task_id, claim="f" * 32, result='"x"',
                         error_type="Error", error_message="it was asked to end")
                row = self.site.rows("SELECT status, cancel_requested FROM task WHERE id=?", (task_id,))
                self.assertEqual([tuple(one) for one in row], [(4, 0)] if word == "cancel" else [])


class TestReadme(unittest.TestCase):
    def test_the_statements_are_those_of_the_foreign_worker(self):
        page = (ROOT / "static" / "docs" / "workers.md").read_text("utf-8")
        script = (ROOT / "tests" / "tools" / "foreign_worker.sh").read_text("utf-8")
        told = statements("".join(re.findall(r"```sql\n(.*?)```", page, re.S)))
        used = statements("".join(re.findall(r"<<'SQL'\n(.*?)^SQL$", script, re.S | re.M)))
        self.assertEqual(told, used)
        self.assertGreater(len(told), 15)


if __name__ == "__main__":
    unittest.main()
