"""Functions and hosts that misbehave: each harms its own attempt and nothing else."""

import os
import signal
import unittest

from tests.helpers.support import Site, wait_until

TASKS = '''
import json, os, socket, sys, time
from jobqueue import task, current_task, RetryAfter

def channel():
    for descriptor in range(3, 64):
        try:
            found = socket.socket(fileno=os.dup(descriptor))
            if found.family == socket.AF_UNIX:
                return found
        except OSError:
            pass

@task(on_crash="fail")
def forge(line: str):
    text = line.replace("CLAIM", current_task().claim)
    channel().sendall(text.encode() + b"\\n")
    time.sleep(3)

@task
def spoil():
    sys.stdout.close()
    sys.stderr = None
    os.chdir("/")
    return 1

@task
def plain():
    print("hello")
    return os.getcwd()

class Wordless(Exception):
    def __str__(self):
        raise ValueError("no words")

@task
def wordless():
    raise Wordless()

@task(max_retries=3)
def much_later(seconds: str):
    raise RetryAfter(float(seconds))

@task
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(40)
        os._exit(0)
    os.wait()

@task
def stay():
    """It ends once there is the file `released`."""
    while not os.path.exists("released"):
        time.sleep(0.05)

@task
def nested(levels: int):
    value = []
    for _ in range(levels):
        value = [value]
    return value
'''

FORGED = (
    '{"claim":"CLAIM","outcome":5}',
    '{"claim":"CLAIM","outcome":{}}',
    '{"claim":"CLAIM","outcome":{"kind":"put_back"}}',
    '{"claim":"CLAIM","outcome":{"kind":"succeeded","result":"not json"}}',
    '{"claim":"CLAIM","outcome":{"kind":"succeeded","result":"NaN"}}',
    '{"claim":"CLAIM","outcome":{"kind":"succeeded","result":{}}}',
    '{"claim":"CLAIM","outcome":{"kind":"error","error_message":7}}',
    '{"claim":"CLAIM","report":5}',
    '{"claim":"CLAIM","report":{"progress":1e999,"message":null}}',
    '{"claim":"CLAIM","enqueue":5}',
    '{"claim":"another","outcome":{"kind":"succeeded","result":"1"}}',
    'no json at all',
    '[]',
)


class TestHostileFunctions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, NbMaxWorker=2, worker_mode="detached")
        cls.addClassCleanup(cls.site.close)

    def plain_one_is_fine(self):
        task = self.site.wait(self.site.add("plain"))
        self.assertEqual((task["status"], task["result"]), ("succeeded", str(self.site.home)))
        self.assertEqual(self.site.run("log", str(task["id"])).stdout, "hello\n")

    def test_forged_messages_are_that_tasks_crash_and_the_page_stays_readable(self):
        ids = [self.site.add("forge", line=line) for line in FORGED]
        for task_id, line in zip(ids, FORGED):
            task = self.site.wait(task_id)
            self.assertEqual((task["status"], task["reason"]), ("failed", "crashed"), line)
        self.site.json("list")
        self.plain_one_is_fine()

    def test_a_task_that_closes_its_streams_spoils_only_itself(self):
        for _ in range(3):
            self.site.wait(self.site.add("spoil"))
            self.plain_one_is_fine()

    def test_an_exception_without_words_is_an_error_like_any_other(self):
        task = self.site.wait(self.site.add("wordless"))
        self.assertEqual((task["reason"], task["error"]["type"], task["attempts"]), ("error", "Wordless", 1))

    def test_a_retry_is_never_further_away_than_a_month(self):
        ids = [self.site.add("much_later", seconds=seconds) for seconds in ("1e12", "inf")]
        wait_until(lambda: all(self.site.json("show", number)["status"] == "scheduled" for number in ids))
        for row in self.site.rows("SELECT run_at - created_at AS far FROM task WHERE function='much_later'"):
            self.assertLess(row["far"] or 0, 31 * 86400)

    def test_a_result_that_is_nested_too_deeply_is_an_error(self):
        task = self.site.wait(self.site.add("nested", levels=900))
        self.assertEqual(task["reason"], "error")
        self.assertIn("nested deeper", task["error"]["message"])
        self.assertEqual(self.site.wait(self.site.add("nested", levels=20))["status"], "succeeded")

    def stay(self):
        """A task that runs until `release`; (its id, the row of its worker)."""
        (self.site.home / "released").unlink(missing_ok=True)
        task_id = self.site.add("stay")
        wait_until(lambda: self.site.json("show", task_id)["status"] == "running")
        worker = self.site.json("show", task_id)["worker"]
        return task_id, self.site.rows("SELECT * FROM worker WHERE id=%d" % worker)[0]

    def release(self, task_id):
        """The task as JSON, once it has ended."""
        (self.site.home / "released").touch()
        return self.site.wait(task_id)

    def test_a_daemon_that_a_task_left_behind_does_not_pass_for_a_worker(self):
        self.site.wait(self.site.add("daemon"))
        task_id, row = self.stay()
        os.kill(row["pid"], signal.SIGKILL)
        self.site.run("tick")
        wait_until(lambda: self.site.run("tick") and self.site.json("show", task_id)["attempts"] == 2)
        self.assertEqual(self.release(task_id)["status"], "succeeded")

    def test_a_worker_that_stands_still_for_a_lease_is_ended_before_another_begins(self):
        task_id, row = self.stay()
        os.kill(row["pid"], signal.SIGSTOP)
        self.site.python("from jobqueue import JobQueue; q = JobQueue(); "
                         "t = q.database.transaction(); "
                         "c = t.__enter__(); c.run('UPDATE worker SET lease_monotonic=0 WHERE id=%d'); "
                         "t.__exit__(None, None, None); q.tick.run(start=False)" % row["id"])
        self.site.rows("UPDATE setting SET value=replace(value, '\"lease_monotonic\":', "
                       "'\"lease_monotonic\":-') WHERE name='.doubts'")       # as if a while had passed
        wait_until(lambda: self.site.run("tick") and row["pid"] not in self.site.processes()
                   and self.site.json("show", task_id)["attempts"] == 2)
        self.assertEqual(self.release(task_id)["crashes"], 1)


if __name__ == "__main__":
    unittest.main()
