"""Real workers, real runners, real signals: nothing is lost and nothing runs twice at once.

The only slow file. What ran is told by three records that share no code: the ids that were added, the
ledger that the functions themselves append to, and the database.
"""

import contextlib
import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from tests.helpers.faults import has_begun, outsider
from tests.helpers.postgres import about_sqlite
from tests.helpers.processes import everybody
from tests.helpers.support import Site, wait_until
from tests.helpers.working import TASKS, ProcessCase
from tests.tools.load_test import Entry


IMPORTS_ARE_HELD = """
import os, time
with open(__file__ + ".imports", "a") as file:
    file.write("x")
while os.path.getsize(__file__ + ".imports") > 1 and not os.path.exists(__file__ + ".go"):
    time.sleep(0.02)
"""


class TestOutcomes(ProcessCase):
    """Every way in which a function can end, one task each, run together."""

    settings = {"linger": 1, "NbMaxWorker": 3, "nice": 0}
    SCENES = {
        "double": ("double", {"n": 4}),
        "unicode": ("prints", {"kind": "unicode"}),
        "bytes": ("prints", {"kind": "bytes"}),
        "both": ("prints", {"kind": "both"}),
        "no newline": ("prints", {"kind": "no newline"}),
        "flood": ("prints", {"kind": "flood"}),
        "flood and fail": ("prints", {"kind": "flood and fail"}),
        "closed": ("prints", {"kind": "closed"}),
        "progress": ("shows_progress", {}),
        "folder": ("uses_folder", {}),
        "typed": ("typed", {"day": "2026-01-31", "ratio": 1}),
        "nan": ("returns", {"kind": "nan"}),
        "half": ("returns", {"kind": "half"}),
        "object": ("returns", {"kind": "object"}),
        "large": ("returns", {"kind": "large"}),
        "fail": ("fails", {"kind": "fail"}),
        "later": ("fails", {"kind": "later"}),
        "always": ("fails", {"kind": "always"}),
        "stumbles": ("fails", {"kind": "once"}),
        "half message": ("fails", {"kind": "half"}),
        "exit": ("ends", {"kind": "exit"}),
        "interrupt": ("ends", {"kind": "interrupt"}),
        "_exit": ("ends", {"kind": "_exit"}),
        "_exit 0": ("ends", {"kind": "_exit 0"}),
        "segv": ("ends", {"kind": "segv"}),
        "group": ("ends", {"kind": "group"}),
        "once": ("once", {}),
        "timeout": ("sleeps", {"seconds": 60}),
        "ignores": ("ignores", {"seconds": 60}),
        "child": ("leaves_a_child", {}),
        "daemon": ("leaves_a_daemon", {}),
        "child reports": ("child_reports", {}),
        "malformed": ("speaks", {"kind": "malformed"}),
        "foreign": ("speaks", {"kind": "foreign"}),
        "no object": ("speaks", {"kind": "no object"}),
        "too long": ("speaks", {"kind": "too long"}),
        "reads": ("reads", {}),
        "many": ("adds_many", {"count": 10_000}),
        "many wrong": ("adds_many", {"count": 3000, "wrong": True}),
        "waits": ("waits", {}),
        "environment": ("environment", {}),
        "echo": ("echo", {"text": "; rm -rf $HOME"}),
        "exits": ("exits", {"code": 3}),
    }

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        requests = [[function, arguments] for function, arguments in cls.SCENES.values()]
        text = (
            "import json, sys\nfrom jobqueue import JobQueue\nqueue = JobQueue()\n"
            "print(json.dumps([queue.enqueue(f, a, owner='bob').id for f, a in json.load(sys.stdin)]))"
        )
        ids = json.loads(cls.site.python(text, given=json.dumps(requests),
                                         environment={"PWD_OF_WEB": "secret"}))
        cls.ids = dict(zip(cls.SCENES, ids))
        cls.wait_for_all(ids)

    def task(self, scene):
        return self.site.json("show", self.ids[scene])

    def check(self, scene, status, reason=None, attempts=1):
        """The task of a scene as JSON; `attempts` leaves out those that never reached a runner."""
        task = self.task(scene)
        run = task["attempts"] - self.events(self.ids[scene]).count("put_back")
        self.assertEqual((task["status"], task["reason"], run), (status, reason, attempts), task)
        return task

    def test_a_result_is_stored_and_what_was_printed(self):
        self.assertEqual(self.check("double", "succeeded")["result"], 8)
        self.assertEqual(self.log(self.ids["double"]), "doubling 4\n")

    def test_any_text_can_be_printed(self):
        self.check("unicode", "succeeded")
        self.assertIn("Åse 日本 half \\ud800 zero \\x00 end", self.log(self.ids["unicode"]))
        self.assertIn("bad \\xff byte", self.log(self.ids["bytes"]))

    def test_both_streams_and_unfinished_lines_are_kept(self):
        self.assertEqual(self.log(self.ids["both"]), "out\nerr\n")
        self.assertEqual(self.log(self.ids["no newline"]).strip(), "left over")

    def test_of_five_megabytes_the_middle_is_cut_out(self):
        self.check("flood", "succeeded")
        text = self.log(self.ids["flood"])
        self.assertTrue(text.startswith("00000000xxx"))
        self.assertRegex(text, r"\n\[\.\.\. \d+ bytes cut out \.\.\.\]\n")
        self.assertTrue(text.endswith("THE END\n"), text[-100:])
        self.assertLess(len(text), 1_300_000)

    def test_a_traceback_is_kept_also_after_a_flood(self):
        task = self.check("flood and fail", "failed", "error")
        self.assertIn("ValueError: after the flood", task["error"]["traceback"])
        self.assertIn("ValueError: after the flood", self.log(self.ids["flood and fail"])[-2000:])

    def test_a_function_that_closes_its_output_only_hurts_itself(self):
        self.check("closed", "succeeded")

    def test_the_last_progress_is_kept(self):
        task = self.check("progress", "succeeded")
        self.assertEqual((task["progress"], task["message"]), (0.75, "nearly"))

    def test_a_task_has_a_folder_which_goes_with_it(self):
        folder = Path(self.check("folder", "succeeded")["result"])
        self.assertEqual((folder / "file").read_text(), "x")
        self.site.run("delete", self.ids["folder"])
        self.assertFalse(folder.exists())

    def test_a_task_that_is_removed_on_success_takes_its_folder_with_it(self):
        task_id = self.site.run("add", "uses_folder", "--remove-on-success").stdout.strip()
        wait_until(lambda: not self.site.rows("SELECT 1 FROM task WHERE id=" + task_id), what="its removal")
        wait_until(lambda: not list(self.site.data.glob("work-*/%s" % task_id)), what="its folder's")

    def test_arguments_arrive_as_their_types(self):
        self.assertEqual(self.check("typed", "succeeded")["result"], ["date", "float", "2026-01-31"])

    def test_a_result_that_is_no_json_is_a_text_or_an_error_that_says_so(self):
        self.assertEqual(self.check("nan", "succeeded")["result"], "nan")
        self.assertIn("object", self.check("object", "failed", "error")["error"]["message"])
        self.assertIn("larger than", self.check("large", "failed", "error")["error"]["message"])

    def test_a_result_that_sqlite_cannot_store_is_escaped(self):
        task = self.check("half", "succeeded")
        self.assertEqual(task["result"], "a\ud800\0b")

    def test_fail_means_for_good(self):
        error = self.check("fail", "failed", "error")["error"]
        self.assertEqual((error["type"], error["message"]), ("Fail", "for good"))

    def test_retry_after_says_when(self):
        self.assertEqual(self.check("later", "succeeded", attempts=2)["result"], "in the end")

    def test_an_exception_is_retried_until_nothing_is_left(self):
        task = self.check("always", "failed", "error", attempts=3)
        last = task["attempts"]
        self.assertEqual(task["error"]["message"], "attempt %d" % last)
        self.assertEqual(task["error"]["type"], "ValueError")
        self.assertIn('raise ValueError("attempt %d"', task["error"]["traceback"])
        self.assertNotIn("worker.py", task["error"]["traceback"])
        self.assertIn("attempt %d" % (last - 1), self.log(self.ids["always"], last - 1))

    def test_a_later_success_forgets_the_error(self):
        self.assertIsNone(self.check("stumbles", "succeeded", attempts=2)["error"])

    def test_any_error_message_can_be_stored(self):
        self.assertIn(
            "\\ud800\\x00", self.check("half message", "failed", "error", attempts=3)["error"]["message"]
        )

    def test_sys_exit_and_ctrl_c_are_errors_of_that_attempt_only(self):
        self.assertEqual(self.check("exit", "failed", "error")["error"]["type"], "SystemExit")
        self.assertEqual(self.check("interrupt", "failed", "error")["error"]["type"], "KeyboardInterrupt")

    def test_a_process_that_dies_is_a_crash_and_the_third_one_is_the_last(self):
        for scene, words in (
            ("_exit", "exit code 3"),
            ("_exit 0", "exit code 0"),
            ("segv", "signal 11"),
            ("group", "signal 9"),
        ):
            task = self.check(scene, "failed", "crashed", attempts=3)
            self.assertIn(words, task["error"]["message"])
            self.assertEqual(task["crashes"], 3)

    def test_a_line_that_is_against_the_rules_ends_the_runner(self):
        for scene in ("malformed", "foreign", "no object", "too long"):
            self.check(scene, "failed", "crashed", attempts=3)

    def test_what_must_not_run_twice_fails_at_its_first_crash(self):
        self.check("once", "failed", "crashed", attempts=1)

    def test_a_time_limit_ends_a_function(self):
        task = self.check("timeout", "failed", "timeout")
        self.assertIn("longer than 1 s", task["error"]["message"])

    def test_a_function_that_ignores_every_signal_is_killed(self):
        self.check("ignores", "failed", "timeout")
        self.assertEqual(self.log(self.ids["ignores"]), "ignoring\n", "it came to its end")

    def test_what_a_straggler_prints_never_reaches_another_log(self):
        for scene in ("child", "daemon"):
            self.check(scene, "succeeded")
        self.assertIn("parent is done", self.log(self.ids["child"]))
        late = self.site.rows("SELECT DISTINCT task_id FROM log WHERE text LIKE '%LATE%'")
        self.assertLessEqual({row[0] for row in late}, {self.ids["child"], self.ids["daemon"]})

    def test_a_child_that_was_left_behind_is_killed(self):
        """It would go on for ever."""
        self.check("child", "succeeded")
        pid = int((self.site.home / "child").read_text())
        wait_until(lambda: not self.alive(pid), what="its end")

    def test_a_fork_of_the_runner_may_not_report(self):
        self.check("child reports", "succeeded")
        self.assertIn("refused: this process is a fork", self.log(self.ids["child reports"]))

    def test_standard_input_is_empty(self):
        self.assertEqual(self.check("reads", "succeeded")["result"], "")

    def test_ten_thousand_tasks_are_added_from_inside_a_function_for_the_same_owner(self):
        self.assertEqual(self.check("many", "succeeded")["result"], [10_000, True])
        rows = self.site.rows(
            "SELECT count(*), owner.name FROM task JOIN user AS owner ON owner.id=owner_id "
            "WHERE queue='many' GROUP BY owner.name"
        )
        self.assertEqual([tuple(row) for row in rows], [(10_000, "bob")])

    def test_all_of_them_are_added_or_none(self):
        self.assertRegex(self.check("many wrong", "succeeded")["result"], "Invalid: .*must be a whole number")

    def test_waiting_for_another_task_raises(self):
        self.assertIn("must not wait", self.check("waits", "failed", "error")["error"]["message"])

    def test_a_function_runs_in_its_folder_with_few_variables_and_files_for_itself_only(self):
        result = self.check("environment", "succeeded")["result"]
        host = os.umask(0o077)
        os.umask(host)
        self.assertEqual(
            (result["cwd"], result["umask"], result["group"]), (str(self.site.home), host, True)
        )
        self.assertNotIn("PWD_OF_WEB", result["names"])
        self.assertEqual(result["sqlite"], sqlite3.sqlite_version)      # under LD_LIBRARY_PATH, too

    def test_commands_get_their_arguments_without_a_shell(self):
        self.check("echo", "succeeded")
        self.assertIn("['say', '; rm -rf $HOME']", self.log(self.ids["echo"]))
        self.assertIn("exit code 3", self.check("exits", "failed", "error")["error"]["message"])

    def test_every_attempt_has_a_death_certificate(self):
        rows = self.site.rows(
            "SELECT event, seconds, cpu_seconds, peak_memory, function, message FROM activity "
            "WHERE event IN ('succeeded', 'failed', 'retry', 'crashed')"
        )
        self.assertGreater(len(rows), 40)
        for row in rows:
            self.assertIsNotNone(row["seconds"])
            self.assertGreater(row["peak_memory"] or 0, 1_000_000, tuple(row))

    def test_no_lock_is_left_of_workers_that_have_gone(self):
        wait_until(lambda: not self.site.workers(), 60, "the end of the workers")
        self.assertEqual(os.listdir(self.site.data / "locks"), [])

    def test_nobody_complained(self):
        self.assertEqual(next(self.site.data.glob("worker-*.log")).read_text(), "")


class TestRunning(ProcessCase):
    """What can be done to a task while it runs."""

    def test_cancelling_ends_it_soon(self):
        task_id = self.add("ledger", seconds=600)
        pid = self.running(task_id)
        self.site.run("cancel", task_id)
        self.wait_for(task_id, 4)
        self.assertFalse(self.alive(pid))
        self.assertEqual(self.events(task_id), ["added", "started", "cancel_requested", "cancelled"])
        self.assertNotIn(("END", task_id), [entry[:2] for entry in self.ledger()])

    def test_deleting_hides_it_at_once_and_ends_it_soon(self):
        task_id = self.add("ledger", seconds=600)
        pid = self.running(task_id)
        self.site.run("delete", task_id)
        self.site.run("show", task_id, code=4)
        wait_until(lambda: self.row(task_id) is None, 30, "its end")
        self.assertFalse(self.alive(pid))

    def test_progress_is_seen_while_it_runs(self):
        task_id = self.add("shows_progress", seconds=300)
        row = wait_until(
            lambda: self.row(task_id)["progress"] is not None and self.row(task_id), 60, "progress"
        )
        self.assertEqual((row["progress"], row["message"], row["status"]), (0.25, "reading é", 1))
        self.site.run("cancel", task_id)
        self.wait_for(task_id, 4)

    def test_a_lost_claim_kills_the_runner_and_records_nothing(self):
        task_id = self.add("ledger", seconds=600)
        pid = self.running(task_id)
        self.site.rows("UPDATE task SET claim='somebody else', lease_monotonic=lease_monotonic+3600 "
                       "WHERE id=?", (task_id,))
        wait_until(lambda: not self.alive(pid), 30, "the end of the runner")
        other = self.add("double", n=1)
        self.wait_for(other)
        row = self.row(task_id)
        self.assertEqual((row["status"], row["claim"]), (1, "somebody else"))
        self.assertEqual(self.events(task_id), ["added", "started"])
        self.site.rows("DELETE FROM task WHERE id=?", (task_id,))

    def test_one_task_runs_from_the_command_line_to_its_result(self):
        task_id = self.site.add("double", n=21)
        self.assertEqual(self.site.wait(task_id)["result"], 42)
        self.assertEqual(self.events(task_id), ["added", "started", "succeeded"])

    def test_an_add_after_every_worker_was_killed_starts_one(self):
        self.site.settings(NbMaxWorker=1)
        self.site.wait(self.site.add("double", n=1))
        self.kill(*self.site.workers())
        wait_until(lambda: not self.site.workers() + self.site.runners(), 30, "the end of all")
        self.wait_for(self.add("double", n=2))

    def test_a_failed_task_makes_wait_end_with_3(self):
        task_id = self.site.add("fails", kind="fail")
        self.site.run("wait", task_id, "--timeout", "60", code=3)

    def test_a_task_that_takes_too_long_makes_wait_end_with_124(self):
        task_id = self.add("ledger", seconds=300)
        self.site.run("wait", task_id, "--timeout", "0.2", code=124)
        self.site.run("delete", task_id)


@about_sqlite("a stranger's lock on the file")
class TestFirstRunner(ProcessCase):
    """The process of the first runner is there before its worker has its place."""

    settings = {"linger": 5, "NbMaxWorker": 1, "nice": 5, "worker_mode": "detached"}

    def setUp(self):
        super().setUp()
        wait_until(lambda: not self.site.runners(), 60, "the end of those before")
        self.task_id = self.add("double", idle=True, n=21)
        stranger = outsider(next(self.site.data.glob("jobqueue-*.db")))
        self.addCleanup(stranger.close)
        wait_until(lambda: has_begun(stranger), 30, "a stranger's lock")
        self.worker = subprocess.Popen(
            [self.site.interpreter, "-m", "worker", "--detached", "999", "its lock", str(self.site.data)],
            cwd=self.site.home, env=self.site.environment, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(self.worker.wait, 60)
        self.runner = wait_until(self.site.runners, 30, "the runner")[0]
        self.stranger = stranger

    def test_it_runs_the_first_task(self):
        self.stranger.close()
        self.assertEqual(self.wait_for(self.task_id)["result"], "42")
        self.assertEqual(self.wait_for(self.add("environment"))["status"], 2)
        self.assertIn(self.runner, self.site.runners())
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, self.runner), 5)

    def test_it_ends_with_a_worker_that_dies_before(self):
        self.worker.kill()
        self.worker.wait(60)
        wait_until(lambda: not self.alive(self.runner), 30, "its end")
        self.stranger.close()
        self.assertEqual(self.site.wait(self.task_id)["result"], 42)

    def test_if_it_dies_before_the_task_runs_all_the_same(self):
        self.kill(self.runner)
        self.stranger.close()
        self.assertEqual(self.site.wait(self.task_id)["result"], 42)
        self.assertEqual(self.row(self.task_id)["crashes"], 0)


class TestAtRest(ProcessCase):
    """A worker that waits for tasks."""

    settings = {"linger": 600, "NbMaxWorker": 1, "nice": 0}

    def test_it_starts_what_no_bell_told_of(self):
        self.wait_for(self.add("double", n=1))
        pids = self.site.workers()
        bell = self.site.data / "bell"
        if bell.exists():               # on PostgreSQL there is none
            bell.unlink()               # the worker goes on listening to the old one
            bell.write_text("", "utf-8")        # which nobody else can open as a pipe
        for number in range(3):
            self.wait_for(self.add("double", n=number))
        self.assertEqual(self.site.workers(), pids)

    def test_of_several_that_rest_each_begins_one_of_several(self):
        self.site.settings(NbMaxWorker=3)
        tasks = self.enqueue("ledger", [{"seconds": 600}] * 3)
        for task_id in tasks:
            self.running(task_id)
        self.site.run("cancel", *tasks)
        for task_id in tasks:
            self.wait_for(task_id, 4)
        again = self.enqueue("ledger", [{"seconds": 600}] * 3)
        pids = {self.running(task_id) for task_id in again}
        self.assertEqual(len(pids), 3)
        self.site.run("cancel", *again)


class TestBatches(ProcessCase):
    """Many short tasks back to back, which a worker claims and records several at once.

    Workers are killed; that it is the host who does that is for others to find out.
    """

    settings = {"linger": 1, "NbMaxWorker": 1, "nice": 0, "worker_mode": "detached"}

    def test_what_each_of_many_short_tasks_prints_stays_with_it(self):
        ids = self.enqueue("double", [{"n": number} for number in range(400)])
        self.wait_for_all(ids)
        rows = self.site.rows("SELECT task_id, text FROM log WHERE task_id>=?", (ids[0],))
        logs = {row["task_id"]: row["text"] for row in rows}
        self.assertEqual(logs, {task_id: "doubling %d\n" % n for n, task_id in enumerate(ids)})

    def test_a_flood_among_short_tasks_stays_where_it_is(self):
        quiet = self.enqueue("prints", [{"kind": "both"}] * 20)
        mixed = self.enqueue("prints", [{"kind": kind} for kind in ["both"] * 5 + ["flood"] + ["both"] * 5])
        self.wait_for_all(quiet + mixed)
        for task_id in quiet + mixed[:5] + mixed[6:]:
            texts = [row[0] for row in self.site.rows("SELECT text FROM log WHERE task_id=?", (task_id,))]
            self.assertEqual("".join(texts), "out\nerr\n")

    def test_a_long_task_among_short_ones_holds_nobody_up(self):
        self.site.settings(NbMaxWorker=2)
        ids = self.enqueue("ledger", [{}] * 30 + [{"until": "others are done"}] + [{}] * 30)
        self.wait_for_all(ids[:30] + ids[31:])
        self.assertEqual(self.row(ids[30])["status"], 1)
        (self.site.home / "others are done").touch()
        self.wait_for(ids[30])
        self.check_records(ids)

    def test_few_descriptors_make_smaller_batches(self):
        self.site.settings(NbMaxWorker=1)
        wait_until(lambda: not self.site.workers(), 60, "no worker")
        worker = subprocess.Popen(
            ["sh", "-c", 'ulimit -n 80; exec "$0" worker.py --service', self.site.interpreter],
            cwd=self.site.home, env=self.site.environment)
        try:
            wait_until(lambda: self.site.value("SELECT 1 FROM worker WHERE state='idle'"), 60)
            ids = self.enqueue("ledger", [{}] * 200)
            self.wait_for_all(ids)
        finally:
            worker.kill()
            worker.wait()
        self.assertEqual(sorted(self.starts(ids)), ids, "what a late batch puts back has not begun")
        rows = self.site.rows("SELECT id, attempts, crashes, worker_id FROM task WHERE id>=?", (ids[0],))
        for row in rows:
            put_back = self.events(row["id"]).count("put_back")
            self.assertEqual((row["attempts"], row["crashes"]), (1 + put_back, 0))
        self.assertEqual(len({row["worker_id"] for row in rows}), 1)

    def test_a_batch_whose_worker_is_killed_runs_again_and_nothing_is_lost(self):
        ids = self.enqueue("ledger", [{}] * 300)
        for begun in (30, 120):
            wait_until(lambda least=begun: (self.site.workers() or self.site.run("tick"))
                       and len(self.starts(ids)) >= least, 60, "so many starts")
            self.kill(*self.site.workers())
        wait_until(lambda: self.site.run("tick") and self.site.value(
            "SELECT count(*) FROM task WHERE status NOT IN (2, 3, 4)") == 0, 180, "the end")
        self.check_records(ids)
        self.assertEqual({self.row(task_id)["status"] for task_id in ids}, {2})


class TestTasksFile(ProcessCase):
    settings = {"linger": 20, "NbMaxWorker": 1, "nice": 0, "worker_mode": "detached"}

    def tearDown(self):
        self.site.write_tasks(TASKS)

    def test_a_broken_tasks_py_spends_nothing_and_is_mended(self):
        self.wait_for(self.add("double", n=1))
        self.site.write_tasks(TASKS + "\ndef (:\n")
        task_id = self.add("double", n=5)
        wait_until(lambda: re.search(r"tasks.py cannot be read: SyntaxError.*line \d+",
                                     self.site.run("check", "--quick", code=None).stdout), 60, "the words")
        wait_until(lambda: all(self.site.workers() and not self.site.runners() for _ in range(5)), 60,
                   "a worker that waits for a better one")
        self.assertEqual((self.row(task_id)["status"], self.row(task_id)["attempts"]), (0, 0))
        self.site.write_tasks(TASKS)
        self.wait_for(task_id)
        self.assertEqual(self.row(task_id)["attempts"], 1)

    def test_what_tasks_py_starts_and_leaves_running_is_not_waited_for(self):
        self.site.write_tasks(TASKS + "\nimport subprocess\nsubprocess.Popen(['sleep', '30'])\n"
                              "@task\ndef newest(n: int): return n\n")
        self.assertEqual(self.wait_for(self.add("newest", n=5))["result"], "5")

    def test_a_changed_function_is_used_from_the_next_task_on(self):
        self.assertEqual(self.wait_for(self.add("double", n=1))["result"], "2")
        self.site.write_tasks(TASKS.replace("return 2 * n", "return 20 * n"))
        self.assertEqual(self.wait_for(self.add("double", n=1))["result"], "20")

    def test_a_file_that_changes_while_it_is_imported_is_imported_again(self):
        self.site.stop_all(signal.SIGTERM)
        self.site.write_tasks(IMPORTS_ARE_HELD + TASKS)
        task_id = self.add("double", n=1)
        imports = self.site.home / "tasks.py.imports"
        wait_until(lambda: imports.exists() and imports.read_text() == "xx", 60,
                   "the import by the runner, after the catalogue's")
        self.site.write_tasks(TASKS.replace("return 2 * n", "return 20 * n"))
        (self.site.home / "tasks.py.go").touch()
        self.assertEqual(self.wait_for(task_id)["result"], "20")

    def test_a_missing_function_waits_unspent(self):
        self.wait_for(self.add("double", n=1))
        self.site.stop_all(signal.SIGTERM)
        task_id = self.add("double", idle=True, n=2)
        self.site.write_tasks(
            TASKS.replace("def double", "def threefold").replace("double.using", "threefold.using")
        )
        self.add("threefold", n=1)
        row = self.wait_for(task_id, 5)
        self.assertEqual((row["reason"], row["crashes"], row["retries_left"]), ("unknown_function", 0, 0))
        put_back = self.site.value("SELECT max(at) FROM activity WHERE task_id=? AND event='put_back'",
                                   (task_id,))
        self.assertEqual(row["run_at"], put_back + 30)


class TestDeaths(ProcessCase):
    """kill -9 of whoever it may be; the web server ticks, and does not ask whether the host does that."""

    settings = {"linger": 2, "NbMaxWorker": 3, "nice": 0, "worker_mode": "detached"}
    server = True

    def worker_of(self, task_id):
        return self.site.value(
            "SELECT pid FROM worker WHERE id=(SELECT worker_id FROM task WHERE id=?)", (task_id,)
        )

    def seconds_until_it_runs_again(self, choose):
        """From the kill of those whom `choose` names (of worker and runner) to the second start."""
        task_id = self.add("ledger", seconds=600)
        pid = self.running(task_id)
        killed = choose(self.worker_of(task_id), pid)
        killed_at = time.time()
        self.kill(*killed)
        wait_until(lambda: ("START", task_id, 2) in [one[:3] for one in self.ledger()], 60,
                   "the second attempt")
        self.assertFalse(self.alive(pid), "the first one was to be dead by then")
        self.assertEqual(self.events(task_id), ["added", "started", "crashed", "started"])
        started = self.site.value("SELECT max(at) FROM activity WHERE task_id=? AND event='started'",
                                  (task_id,))
        self.site.run("delete", task_id)
        return started - killed_at

    def check_runs_again(self, choose):
        """Within the 5 seconds that are promised; a machine that was busy then may try once more."""
        seconds = self.seconds_until_it_runs_again(choose)
        if seconds > 5:
            seconds = self.seconds_until_it_runs_again(choose)
        self.assertLessEqual(seconds, 5)

    def test_a_killed_workers_runner_dies_with_it_and_its_task_runs_again_at_once(self):
        self.check_runs_again(lambda worker, runner: [worker])

    def test_a_killed_runners_task_runs_again_at_once(self):
        self.check_runs_again(lambda worker, runner: [runner])

    def test_both_killed_at_once(self):
        self.check_runs_again(lambda worker, runner: [worker, runner])

    def test_an_orphaned_runner_in_the_middle_of_a_command_dies_with_it(self):
        self.site.write_tasks(TASKS + "command('pause', ['sleep', '600'])\n")
        task_id = self.add("pause")
        wait_until(lambda: [line for line in self.site.processes().values() if line == "sleep 600"], 60)
        self.kill(self.worker_of(task_id))
        wait_until(
            lambda: not [line for line in self.site.processes().values() if line == "sleep 600"],
            30,
            "the end of the command",
        )
        self.site.run("delete", task_id)

    def test_nothing_is_lost_or_run_twice_while_everything_is_killed(self):
        chance = random.Random(11)
        ids = self.enqueue("ledger", [{"seconds": 0.05}] * 200)
        for round_number in range(10):
            time.sleep(chance.uniform(0.1, 0.5))
            workers, runners = self.site.workers(), self.site.runners()
            if round_number == 5:
                self.kill(self.site.server.pid)
                self.site.server.wait()
                self.site.server.stdout.close()
                self.site.start_server()
            elif workers and runners:
                self.kill(
                    *chance.choice(([chance.choice(workers)], [chance.choice(runners)], workers + runners))
                )
        self.wait_for_all(ids)
        self.check_records(ids)
        statuses = {
            row[0]
            for row in self.site.rows("SELECT status FROM task WHERE id IN (%s)" % ", ".join(map(str, ids)))
        }
        self.assertEqual(statuses, {2})

    def test_poison_fails_after_three_crashes_while_good_tasks_finish(self):
        poison = self.enqueue("ends", [{"kind": "segv"}] * 4)
        good = self.enqueue("ledger", [{}] * 60)
        self.wait_for_all(poison + good)
        self.assertEqual(
            [(self.row(one)["status"], self.row(one)["reason"], self.row(one)["crashes"]) for one in poison],
            [(3, "crashed", 3)] * 4,
        )
        self.assertEqual({self.row(one)["status"] for one in good}, {2})
        self.check_records(good)


class TestTheRecordsThemselves(ProcessCase):
    """A checker that cannot fail is worthless."""

    @classmethod
    def setUpClass(cls):
        cls.site = None

    def entry(self, word, task=1, attempt=1, claim="a", pid=5, at=0.0):
        return Entry(word, task, attempt, claim, pid, at)

    def test_a_good_life_passes(self):
        self.check_ledger(
            [
                self.entry("START"),
                self.entry("START", attempt=2, claim="b"),
                self.entry("END", attempt=2, claim="b"),
            ],
            [1],
        )

    def test_how_many_run_at_once_is_counted_at_each_start(self):
        self.ledger = lambda: [self.entry(word, at=at) for at, word in enumerate(
            "START START END START START END END END START".split())]
        self.assertEqual(self.most_at_once(), 3)
        self.assertEqual([self.most_at_once(since, until) for since, until in ((0, 3), (3, 4), (5, 9))],
                         [2, 2, 1])

    def test_seeded_faults_are_caught(self):
        for entries in (
            [self.entry("START"), self.entry("OVERLAP", attempt=2)],
            [self.entry("START"), self.entry("END"), self.entry("START"), self.entry("END")],
            [self.entry("START"), self.entry("START", attempt=2)],
            [self.entry("START", attempt=2), self.entry("START", claim="b")],
            [self.entry("START"), self.entry("END"), self.entry("END")],
        ):
            with self.subTest(entries), self.assertRaises(AssertionError):
                self.check_ledger(entries, [1])


class TestWorkers(ProcessCase):
    """How many there are, when they come and when they go."""

    def setUp(self):
        self.site = Site(TASKS, linger=1, nice=0)
        self.addCleanup(self.site.close)
        type(self).site = self.site

    @classmethod
    def setUpClass(cls):
        pass

    def test_the_number_of_workers_follows_the_setting_and_never_exceeds_it(self):
        """By rows and ledger: a process whose row is gone is on its way out, and runs nothing."""
        self.site.settings(NbMaxWorker=2)
        self.site.start_server()
        limits, stop, seen = [(time.monotonic(), 2)], threading.Event(), []

        def allow(limit):
            limits.append((time.monotonic(), limit))

        def watch():
            while not stop.wait(0.03):
                before = limits[-1][1]
                count = self.site.value("SELECT count(*) FROM worker")
                seen.append((count, max(before, limits[-1][1])))

        def workers_are(*counts):
            wait_until(lambda: len(self.site.workers()) in counts
                       and self.site.value("SELECT count(*) FROM worker") in counts, 60, "so many workers")

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            ids = self.enqueue("ledger", [{"until": "six were there"}] * 6 + [{"seconds": 1}] * 30)
            workers_are(2)
            allow(6)
            self.site.settings(NbMaxWorker=6)
            workers_are(6)
            wait_until(lambda: self.most_at_once() == 6, 60, "6 at once")
            self.site.settings(NbMaxWorker=1)
            (self.site.home / "six were there").touch()
            workers_are(0, 1)
            allow(1)
            time.sleep(0.5)
            allow(6)
            self.site.settings(NbMaxWorker=6)
            self.wait_for_all(ids)
        finally:
            stop.set()
            watcher.join()
        self.assertEqual([one for one in seen if one[0] > one[1]], [])
        for (since, limit), (until, _) in zip(limits, limits[1:] + [(math.inf, 0)]):
            self.assertLessEqual(self.most_at_once(since, until), limit)
        self.check_records(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE crashes+interruptions>0"), 0)

    def test_a_worker_that_is_asked_to_stop_finishes_its_task_first(self):
        task_id = self.add("ledger", seconds=1)
        self.running(task_id)
        worker = self.site.workers()[0]
        os.kill(worker, signal.SIGTERM)
        self.wait_for(task_id, 2)
        wait_until(lambda: worker not in self.site.workers(), 60, "its end")
        self.assertEqual(self.row(task_id)["attempts"], 1)
        self.assertEqual(self.site.value("SELECT count(*) FROM worker"), 0)

    def test_at_the_second_signal_the_task_is_interrupted_and_not_spent(self):
        task_id = self.add("ledger", seconds=600)
        pid = self.running(task_id)
        worker = self.site.workers()[0]
        asked_at = time.monotonic()
        os.kill(worker, signal.SIGTERM)
        time.sleep(0.3)
        self.assertTrue(self.alive(pid) or time.monotonic() > asked_at + 5)
        os.kill(worker, signal.SIGTERM)
        wait_until(lambda: worker not in self.site.workers(), 60, "its end")
        row = self.row(task_id)
        self.assertEqual(
            (row["status"], row["reason"], row["crashes"], row["interruptions"]), (0, "interrupted", 0, 1)
        )
        self.assertFalse(self.alive(pid))

    def test_a_worker_lingers_and_then_leaves_nothing_behind(self):
        self.site.settings(linger=600)
        first = self.add("double", n=1)
        self.wait_for(first)
        worker = self.site.workers()
        second = self.add("double", n=1)
        self.wait_for(second)
        self.assertEqual(self.site.workers(), worker, "the same one was still there")
        self.site.settings(linger=1)
        wait_until(lambda: not self.site.processes(), 60, "everybody's end")
        self.assertEqual(self.site.value("SELECT count(*) FROM worker"), 0)
        self.assertEqual(os.listdir(self.site.data / "locks"), [])
        self.assertEqual(
            self.site.value("SELECT message FROM activity WHERE event='worker_ended'"), "idle after 2 tasks"
        )

    def test_a_worker_stays_while_something_becomes_due_soon(self):
        self.site.settings(NbMaxWorker=1)
        late = self.enqueue("double", [{"n": 3}], delay=6)[0]
        first = self.add("double", n=1)
        row = self.wait_for(late)
        self.assertGreaterEqual(row["started_at"], row["run_at"])
        self.assertEqual(row["worker_id"], self.row(first)["worker_id"])

    def test_a_runner_is_replaced_after_some_tasks(self):
        self.site.settings(runner_tasks=2, NbMaxWorker=1)
        ids = self.enqueue("ledger", [{}] * 8)
        self.wait_for_all(ids)
        pids = [entry[4] for entry in self.ledger() if entry[0] == "START"]
        self.assertEqual(len(set(pids)), 4)
        self.assertEqual(self.site.value("SELECT count(DISTINCT worker_id) FROM task"), 1)

    def test_an_old_worker_is_replaced_by_a_fresh_one(self):
        self.site.settings(NbMaxWorker=1)
        self.site.rows("INSERT INTO setting (name, value) VALUES ('worker_seconds', '1')")
        ids = self.enqueue("ledger", [{"seconds": 0.1}] * 30)
        self.wait_for_all(ids)
        self.check_records(ids)
        self.assertGreater(self.site.value("SELECT count(DISTINCT worker_id) FROM task"), 1)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE crashes+interruptions>0"), 0)

    def test_a_new_jobqueue_py_is_used_from_the_next_task_on(self):
        self.site.settings(NbMaxWorker=1)
        ids = self.enqueue("ledger", [{"seconds": 0.1}] * 40)
        self.running(ids[2])
        os.utime(self.site.home / "jobqueue.py")
        self.wait_for_all(ids)
        self.assertGreater(self.site.value("SELECT count(DISTINCT worker_id) FROM task"), 1)
        self.check_records(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE crashes+interruptions>0"), 0)

    def test_cron_drains_what_is_there_and_ends_silently(self):
        ids = self.enqueue("ledger", [{}] * 30, idle=True)
        worker = self.site.start_worker(stdout=-1, stderr=-1)
        out, err = worker.communicate(timeout=120)
        self.assertEqual((worker.returncode, out, err), (0, b"", b""))
        self.check_records(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE status<>2"), 0)

    def test_a_verbose_one_says_what_happens(self):
        good, bad = self.add("double", idle=True, n=1), self.add("fails", idle=True, kind="fail")
        worker = self.site.start_worker("--verbose", stdout=-1, stderr=-1)
        out, err = worker.communicate(timeout=120)
        self.assertEqual((worker.returncode, out), (0, b""))
        lines = [line.partition(" ")[2] for line in err.decode().splitlines()]
        self.assertLess(lines.index("task %d: succeeded" % good), lines.index("task %d: fail" % bad))

    def test_cron_without_work_ends_at_once(self):
        worker = self.site.start_worker(stdout=-1, stderr=-1)
        self.assertEqual(worker.communicate(timeout=60), (b"", b""))
        self.assertEqual(worker.returncode, 0)

    def test_a_service_waits_for_a_place_and_takes_that_of_a_dead_one(self):
        self.site.settings(NbMaxWorker=1)
        first, second = self.site.start_worker("--service"), self.site.start_worker("--service")
        wait_until(lambda: len(self.site.workers()) == 2 and self.site.runners(), 60, "two services")
        self.assertEqual(self.site.value("SELECT count(*) FROM worker"), 1)
        pid = self.site.value("SELECT pid FROM worker")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.site.value("SELECT pid FROM worker") not in (pid, None), 60, "the other")
        other = second if first.pid == pid else first
        self.wait_for(self.add("double", n=1))
        before = self.site.value("SELECT id FROM worker")
        os.utime(self.site.home / "jobqueue.py")
        wait_until(lambda: (self.site.value("SELECT max(id) FROM worker WHERE state='idle'") or 0) > before,
                   60, "new code")
        self.assertIsNone(other.poll(), "it goes on in the same process")
        self.wait_for(self.add("double", n=1))
        other.terminate()
        self.assertEqual(other.wait(60), 0)

    def test_cron_beside_enough_workers_ends_at_once(self):
        self.site.settings(NbMaxWorker=1)
        task_id = self.add("ledger", seconds=600)
        self.running(task_id)
        worker = self.site.start_worker(stdout=-1, stderr=-1)
        self.assertEqual(worker.communicate(timeout=60), (b"", b""))
        self.assertEqual(worker.returncode, 0)

    def test_a_service_worker_does_not_end_by_itself(self):
        """Others end as soon as nothing is left."""
        self.site.settings(linger=0, NbMaxWorker=1)
        worker = self.site.start_worker("--service")
        for _ in range(2):
            self.wait_for(self.add("double", idle=True, n=1))
            wait_until(lambda: self.site.value("SELECT state FROM worker") == "idle", 60, "its rest")
        self.assertEqual(self.site.value("SELECT count(DISTINCT worker_id) FROM task"), 1)
        self.assertIsNone(worker.poll())
        worker.terminate()
        self.assertEqual(worker.wait(60), 0)

    def test_nothing_piles_up_in_a_worker(self):
        self.site.settings(NbMaxWorker=1, runner_tasks=10, linger=600)
        self.wait_for_all(self.enqueue("ledger", [{}] * 15))
        worker = self.site.workers()[0]
        before = len(os.listdir("/proc/%d/fd" % worker))
        self.wait_for_all(self.enqueue("ledger", [{}] * 150))
        self.assertIn(worker, self.site.workers())
        wait_until(lambda: len(os.listdir("/proc/%d/fd" % worker)) <= before + 1, 60,
                   "as few descriptors as before")
        wait_until(lambda: [state == "Z" for state in self.children_of(worker)] == [False], 60,
                   "one living child")

    def children_of(self, parent):
        """States of its child processes."""
        return [process.state for process in everybody().values() if process.parent == parent]

    def test_a_server_leaves_no_zombies_of_the_workers_it_started(self):
        self.site.start_server()
        server = self.site.server.pid
        for task_id in self.enqueue("double", [{"n": 1}] * 3, idle=True):
            self.wait_for(task_id)
        wait_until(lambda: not self.site.workers(), 60, "the end of the workers")
        wait_until(lambda: "Z" not in self.children_of(server), 30, "no zombie")

    def test_many_adds_at_once_start_not_more_workers_than_may_run(self):
        self.site.settings(NbMaxWorker=2)
        text = "from jobqueue import JobQueue\nfor _ in range(5): JobQueue().enqueue('ledger', {})"
        threads = [threading.Thread(target=self.site.python, args=(text,)) for _ in range(6)]
        most = 0
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, self.site.value("SELECT count(*) FROM worker"))
        for thread in threads:
            thread.join()
        self.assertLessEqual(most, 2)
        ids = [row[0] for row in self.site.rows("SELECT id FROM task")]
        self.assertEqual(len(ids), 30)
        self.wait_for_all(ids)
        self.assertLessEqual(self.most_at_once(), 2)
        self.check_records(ids)


class TestNoDetachedWorkers(ProcessCase):
    """A host that ends every detached process as soon as it begins: a `python` that does so itself.

    What is asked is what such a host does to the queue, not how it finds out what is detached.
    """

    settings = {"linger": 1, "NbMaxWorker": 2, "nice": 0}
    PYTHON = """#!/bin/sh
case " $* " in *" --detached "*) kill -9 $$ ;; esac
exec '%s' "$@"
"""

    def setUp(self):
        super().setUp()
        self.site.write_tasks(TASKS)
        path = self.site.home / "python"
        path.write_text(self.PYTHON % sys.executable)
        path.chmod(0o700)
        self.site.settings(python=str(path))

    def mode(self):
        return json.loads(self.site.python(
            "import json, jobqueue; print(json.dumps(jobqueue.JobQueue().modes.decide()))"))

    def request(self, seconds, patience):
        """What a CGI process does for a tick request; the host ends it after `patience`, and all it left."""
        text = ("from jobqueue import JobQueue\nqueue = JobQueue()\n"
                "queue.tick.run(start=False)\nqueue.starter.work_slice(%g)" % seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-c", text], cwd=self.site.home, env=self.site.environment,
                           timeout=patience, check=True)
        self.kill(*self.site.workers())

    def is_done(self):
        return not self.site.value("SELECT count(*) FROM task WHERE status IN (0, 1, 5)")

    def lose_workers(self):
        """Add tasks, for which workers are started until `auto` does without; the tasks' ids."""
        self.site.start_server()        # it sees at once how those end that it started itself
        ids = self.enqueue("ledger", [{"seconds": 0.02}] * 200, idle=True)
        wait_until(lambda: self.mode()[0] == "slice", 120, "mode slice", 0.3)      # two ticks of the server
        self.assertIn("the host ended workers soon after they had started", self.mode()[1])
        self.site.stop_server()
        self.kill(*self.site.workers())     # slices that the server may have begun meanwhile
        return ids

    def test_auto_finds_out_and_slices_do_the_work(self):
        ids = self.lose_workers()
        self.request(3, patience=1)
        while not self.is_done():
            self.request(20, patience=60)
        self.check_records(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE status<>2"), 0)

    def test_cron_does_the_work_where_one_comes_and_overlaps_itself(self):
        self.lose_workers()
        self.site.start_worker().wait(60)
        self.assertEqual(self.mode()[0], "cron", "one has come")
        ids = self.enqueue("ledger", [{"seconds": 0.02}] * 200)
        self.assertEqual(self.site.workers(), [])
        seconds = 1
        while not self.is_done():
            seconds *= 2
            crons = [self.site.start_worker("--seconds", str(seconds), stdout=-1, stderr=-1)
                     for _ in range(3)]
            self.assertEqual([cron.communicate(timeout=seconds + 60) for cron in crons], [(b"", b"")] * 3)
            self.assertEqual([cron.returncode for cron in crons], [0] * 3)
        self.check_records(ids)
        self.assertEqual(self.site.value(
            "SELECT count(*) FROM task WHERE id>=? AND (status<>2 OR crashes>0)", (min(ids),)), 0)


if __name__ == "__main__":
    unittest.main()
