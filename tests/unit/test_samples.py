"""Samples of CPU time and memory: what is read of /proc, how often, and which samples are kept."""
import json
import os
import subprocess
import sys
import unittest
from unittest.mock import Mock, patch

import jobqueue
import worker
from tests.helpers.support import TestCase, need

SAMPLE = worker.FamilyUse(1.5, 5 << 20)


def setUpModule():
    need(os.path.exists("/proc/self/stat"), "Linux")


class Reading(unittest.TestCase):
    """What /proc shows of a process and its descendants."""

    def family_of_a_shell(self):
        """How many processes a shell and a program in it are found to be."""
        shell = subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with shell:
            shell.stdin.write(b"x")
            shell.stdin.flush()
            shell.stdout.read(1)                # the program runs
            return len(worker.read_family(shell.pid))

    def test_children_of_children_count(self):
        self.assertEqual(self.family_of_a_shell(), 2)

    def test_children_are_found_though_the_kernel_does_not_list_them(self):
        real = os.path.exists
        with patch("os.path.exists", lambda path: "children" not in path and real(path)):
            self.assertEqual(self.family_of_a_shell(), 2)

    def test_the_time_of_an_ended_child_counts(self):
        before = worker.measure_family(os.getpid()).cpu_seconds
        burn = "import time\nwhile time.process_time() < 0.2: pass"
        subprocess.run([sys.executable, "-c", burn], check=True)
        self.assertGreater(worker.measure_family(os.getpid()).cpu_seconds, before + 0.15)

    def test_memory_is_in_bytes(self):
        before = worker.measure_family(os.getpid()).memory
        block = b"x" * (32 << 20)
        self.assertGreater(worker.measure_family(os.getpid()).memory, before + len(block) // 2)

    def test_what_is_gone_or_hidden_is_no_error(self):
        with subprocess.Popen(["true"]) as gone:
            gone.wait()
        self.assertIsNone(worker.measure_family(gone.pid))
        with patch("builtins.open", side_effect=PermissionError):
            self.assertIsNone(worker.measure_family(os.getpid()))
        with patch("os.listdir", side_effect=PermissionError):
            self.assertEqual(len(worker.read_family(os.getpid())), 1)
            with patch("os.path.exists", lambda path: "children" not in path):
                self.assertEqual(len(worker.read_family(os.getpid())), 1)

    def test_few_files_are_read(self):
        with patch.object(worker, "FILES_MAX", 1):
            self.assertEqual(self.family_of_a_shell(), 1)


class Keeping(unittest.TestCase):
    """Which samples are kept of a long run."""

    def keep(self, count):
        samples, most = worker.Samples(), 0
        for number in range(1, count + 1):
            samples.add(worker.Sample(10.5 * number, number, number))
            most = max(most, len(samples.all()))
        return samples.all(), most

    def test_a_short_run_keeps_all(self):
        kept, _ = self.keep(60)
        self.assertEqual([sample.memory for sample in kept], list(range(1, 61)))

    def test_a_day_keeps_at_most_sixty_over_all_of_it(self):
        count = 86400 * 2 // 21
        kept, most = self.keep(count)
        self.assertEqual(most, jobqueue.SAMPLES_MAX)
        self.assertGreater(len(kept), jobqueue.SAMPLES_MAX // 2)
        self.assertEqual([sample.memory for sample in (kept[0], *kept[-2:])], [1, count - 1, count])
        gaps = [after.seconds - before.seconds for before, after in zip(kept[:-2], kept[1:-2])]
        self.assertLess(max(gaps), 2 * min(gaps))

    def test_cpu_time_never_decreases(self):
        samples = worker.Samples()
        for number, seconds in enumerate([1.0, 3.0, 2.0]):
            samples.add(worker.Sample(number, seconds, 1))
        self.assertEqual([sample.cpu_seconds for sample in samples.all()], [1.0, 3.0, 3.0])


class Taking(TestCase):
    """When a worker takes samples, and what it stores."""

    def setUp(self):
        super().setUp()
        self.task_id = self.add(options={"max_retries": 1})
        self.child = Mock(ended=False, death=None, cpu_seconds=1.0)
        self.attempt = worker.Attempt(self.queue, self.child, self.claim())

    def stored(self):
        text = self.database.value("SELECT samples FROM task WHERE id=?", (self.task_id,))
        return json.loads(text or "null")

    def watch(self, seconds, report=None, used=SAMPLE):
        """Watch the attempt each second; return how many samples were taken."""
        with patch.object(worker, "measure_family", return_value=used) as measure:
            for _ in range(seconds):
                self.clock.advance(1.01)
                self.attempt.report = report
                self.attempt.check()
            return measure.call_count

    def test_a_sample_is_stored_with_each_renewal(self):
        self.assertEqual(self.watch(9), 0)
        self.assertIsNone(self.stored())
        self.assertEqual(self.watch(16), 2)
        self.assertEqual(self.stored(), [[10.1, 0.5, 5 << 20], [20.2, 0.5, 5 << 20]])

    def test_a_quiet_task_writes_no_more_often_than_it_renews(self):
        with patch.object(self.queue.claims, "renew", wraps=self.queue.claims.renew) as renew:
            samples = self.watch(65)
        self.assertEqual((samples, renew.call_count), (6, 6))

    def test_one_that_says_much_has_no_more_samples(self):
        self.assertEqual(self.watch(65, {"progress": 0.5, "message": "x"}), 6)
        self.assertEqual(len(self.stored()), 6)

    def test_without_proc_it_runs_on(self):
        self.watch(25, used=None)
        self.assertIsNone(self.stored())
        self.assertIsNone(self.attempt.ending)

    def test_what_could_not_be_stored_is_stored_later(self):
        self.watch(9)
        with patch.object(self.queue.claims, "renew", side_effect=jobqueue.Busy("busy")):
            self.watch(2)
        self.assertIsNone(self.stored())
        self.watch(2)
        self.assertEqual(len(self.stored()), 1)

    def test_another_attempt_begins_without(self):
        self.watch(12)
        self.end(self.attempt.row, "error")
        self.assertIsNone(self.stored())
        self.write("UPDATE task SET samples='[[1,1,1]]' WHERE id=?", (self.task_id,))   # by an older program
        self.clock.advance(3600)
        self.claim()
        self.assertIsNone(self.stored())


class Reporting(TestCase):
    """What a worker of another machine tells its site."""

    def attempt(self, protocol):
        self.add()
        there = Mock(clock=self.clock, protocol=protocol)
        attempt = worker.RemoteAttempt(there, Mock(cpu_seconds=0.0), self.claim())
        self.clock.advance(10.1)
        return attempt

    def test_samples_are_sent_until_the_site_has_them(self):
        with patch.object(worker, "measure_family", return_value=SAMPLE):
            attempt = self.attempt(2)
            lost, again = attempt.item(), attempt.item()
            self.assertEqual(lost["samples"], [(10.1, 1.5, 5 << 20)])
            self.assertEqual(lost, again)
            attempt.forget(again)
            self.assertNotIn("samples", attempt.item())
            self.clock.advance(10.1)
            self.assertEqual(len(attempt.item()["samples"]), 2)

    def test_an_older_site_gets_none(self):
        self.assertNotIn("samples", self.attempt(1).item())


if __name__ == "__main__":
    unittest.main()
