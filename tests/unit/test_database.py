"""Busy, broken and full: what SQLite can do to us, and what we do then."""

import contextlib
import errno
import fcntl
import os
import re
import select
import sqlite3
import subprocess
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers.faults import outsider
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import ROOT, TestCase, at_once, close_quietly, need, wait_until

setUpModule = needs_sqlite("its connections, its lock, its log and its file")

SECOND = """
import sys; sys.path.insert(0, %r); import jobqueue
database = jobqueue.SqliteDatabase(sys.argv[1], patience=60)
""" % str(ROOT)


class Spy:
    """Collects every statement of a Database's two connections."""

    def __init__(self, database):
        self.seen = []
        for name in ("_reader", "_writer"):
            link = getattr(database, name)._link
            link.set_trace_callback(lambda text, name=name: self.seen.append((name, text)))

    def texts(self):
        return [text for _, text in self.seen]

    def synchronous_at(self, start):
        """What "PRAGMA synchronous" said last before the first statement that starts so."""
        said = None
        for text in self.texts():
            if text.strip().startswith(start):
                return said
            if "PRAGMA synchronous=" in text:
                said = text.split("=")[1]
        raise AssertionError("no %s among %s" % (start, self.texts()))


class DatabaseCase(TestCase):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"

    def remember(self, name, value="1", **options):
        with self.database.transaction(**options) as transaction:
            jobqueue.remember(transaction, name, value)

    def hold(self, statement="BEGIN IMMEDIATE"):
        link = outsider(self.database.path)
        self.addCleanup(link.close)
        link.execute(statement)
        return link


class TestTransactions(DatabaseCase):
    def test_what_is_committed_is_seen_by_every_connection(self):
        self.remember(".x", 5)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 5)
        self.assertEqual(jobqueue.recall(self.another_queue().database, ".x"), 5)

    def test_an_exception_undoes_everything(self):
        with self.assertRaises(ZeroDivisionError), self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", 5)
            raise ZeroDivisionError
        self.assertIsNone(jobqueue.recall(self.database, ".x"))

    def test_a_transaction_is_read_through_its_own_connection_only(self):
        seen = []
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", 5)
            seen.append(jobqueue.recall(transaction, ".x"))
            with self.assertRaises(RuntimeError):
                jobqueue.recall(self.database, ".x")
            thread = threading.Thread(target=lambda: seen.append(jobqueue.recall(self.database, ".x")))
            thread.start()
            thread.join()
        self.assertEqual(seen, [5, None])
        self.remember(".y")

    def test_a_wrong_statement_becomes_an_error_for_people_and_undoes_everything(self):
        with (
            self.refused(jobqueue.StorageBroken, "no such table"),
            self.database.transaction() as transaction,
        ):
            jobqueue.remember(transaction, ".x", 5)
            transaction.run("UPDATE nonsense SET a=1")
        self.assertIsNone(jobqueue.recall(self.database, ".x"))

    def test_the_log_is_short_again_after_a_very_large_transaction(self):
        with (mock.patch.object(jobqueue, "WAL_CHECKPOINT_BYTES", 20_000),
              mock.patch.object(jobqueue, "WAL_ALARM_BYTES", 40_000)):
            database = self.another_queue().database
            with database.transaction() as transaction:
                jobqueue.remember(transaction, ".x", "x" * 200_000)
            self.assertLess(database.wal_bytes(), 40_000)

    def test_rows_are_inserted_several_at_once_whatever_their_number(self):
        for count in (0, 1, 2, 500, 1000):
            with self.database.transaction() as transaction:
                transaction.run("DELETE FROM throttle")
                transaction.insert_all("throttle", (
                    {"subject": "name %d" % number, "failures": number, "failed_at": 0, "until": 0}
                    for number in range(count)))
            found = self.database.all("SELECT subject FROM throttle ORDER BY id")
            self.assertEqual([row[0] for row in found], ["name %d" % number for number in range(count)])

    def test_a_transaction_within_a_transaction_is_a_mistake_of_ours(self):
        with self.database.transaction(), self.assertRaisesRegex(RuntimeError, "within"):
            with self.database.transaction():
                pass

    def test_the_outer_transaction_survives_that_mistake(self):
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, ".x", 5)
            with contextlib.suppress(RuntimeError), self.database.transaction():
                pass
        self.assertEqual(jobqueue.recall(self.database, ".x"), 5)

    def test_threads_of_one_process_take_turns(self):
        self.remember(".n", 0)

        def count(_):
            for _ in range(20):
                with self.database.transaction(durable=False) as transaction:
                    jobqueue.remember(transaction, ".n", jobqueue.recall(transaction, ".n") + 1)

        at_once(count, range(8))
        self.assertEqual(jobqueue.recall(self.database, ".n"), 160)

    def test_processes_take_turns_and_lose_no_update(self):
        self.remember(".n", 0)
        text = SECOND + (
            "for _ in range(40):\n    with database.transaction(durable=False) as t:\n"
            "        jobqueue.remember(t, '.n', jobqueue.recall(t, '.n') + 1)\n"
        )
        children = [subprocess.Popen([sys.executable, "-c", text, str(self.data)]) for _ in range(6)]
        self.assertEqual([child.wait(60) for child in children], [0] * 6)
        self.assertEqual(jobqueue.recall(self.database, ".n"), 240)

    def test_what_was_told_is_full_and_bookkeeping_is_normal(self):
        self.remember(".a", durable=False)
        spy = Spy(self.database)
        self.remember(".b", durable=True)
        self.remember(".c", durable=False)
        found = [text for text in spy.texts() if "synchronous" in text]
        self.assertEqual(found, ["PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"])

    def test_an_add_is_committed_with_full(self):
        self.remember(".a", durable=False)
        spy = Spy(self.database)
        self.add()
        self.assertEqual(spy.synchronous_at("INSERT INTO task"), "FULL")

    def test_cancel_retry_and_delete_are_committed_with_full(self):
        for action, start in (
            ("cancel", "UPDATE task"),
            ("retry", "UPDATE task"),
            ("delete", "DELETE FROM task"),
        ):
            task_id = self.add()
            if action == "retry":
                self.cancel(task_id)
            self.remember(".a", durable=False)
            spy = Spy(self.database)
            getattr(self.queue.actions, action)(task_id)
            self.assertEqual(spy.synchronous_at(start), "FULL", action)

    def test_a_worker_notices_what_others_commit(self):
        other = self.another_queue().database
        before = self.database.version_seen()
        self.assertEqual(self.database.version_seen(), before)
        with other.transaction() as transaction:
            jobqueue.remember(transaction, ".x", 1)
        self.assertNotEqual(self.database.version_seen(), before)


class TestTogether(DatabaseCase):
    """Adds of several threads at the same time."""

    def answer(self, request):
        try:
            return self.add("bob", **request)
        except BaseException as error:
            return type(error)

    def add_meanwhile(self, *requests):
        """What each of these is answered, which wait until all are there."""
        with ThreadPoolExecutor(len(requests)) as pool:
            with self.database.transaction():
                answers = [pool.submit(self.answer, request) for request in requests]
                wait_until(lambda: len(self.database._waiting) == len(requests), what="adds that wait")
            return [answer.result() for answer in answers]

    def stored(self):
        return {row[0] for row in self.database.all("SELECT task_id FROM activity WHERE event='added'")}

    def test_they_share_one_durable_commit(self):
        spy = Spy(self.database)
        ids = self.add_meanwhile(*[{}] * 6)
        self.assertEqual(len(set(ids)), 6)
        self.assertEqual(self.stored(), set(ids))
        inserts = [at for at, text in enumerate(spy.texts()) if text.startswith("INSERT INTO task")]
        self.assertEqual(len(inserts), 6)
        self.assertNotIn("COMMIT", spy.texts()[inserts[0]:inserts[-1]])
        self.assertEqual(spy.synchronous_at("INSERT INTO task"), "FULL")

    def test_what_is_refused_is_refused_alone(self):
        *ids, refused, last = self.add_meanwhile({}, {}, {}, {"options": {"after": [12345]}}, {})
        self.assertIs(refused, jobqueue.Invalid)
        self.assertEqual(self.stored(), {*ids, last})

    def test_a_commit_that_fails_is_not_repeated_and_each_is_told(self):
        real, failed = self.database._commit, []

        def commit(durable):
            if threading.current_thread() is not threading.main_thread():
                failed.append(durable)
                raise sqlite3.OperationalError("database or disk is full")
            real(durable)

        with mock.patch.object(self.database, "_commit", commit):
            answers = self.add_meanwhile({}, {}, {})
        self.assertEqual(answers, [jobqueue.StorageFull] * 3)
        self.assertEqual(failed, [True])  # who cannot know what became of it does not repeat it
        self.assertEqual(self.stored(), set())

    def test_who_is_interrupted_while_it_adds_for_all_keeps_nobody_from_going_on(self):
        with mock.patch.object(self.queue.adding, "add", side_effect=KeyboardInterrupt):
            answers = self.add_meanwhile({}, {}, {})
        self.assertEqual(
            sorted(answers, key=lambda one: one.__name__), [jobqueue.Busy, jobqueue.Busy, KeyboardInterrupt])
        self.assertEqual(self.stored(), set())
        self.assertEqual({self.add()}, self.stored())

    def test_behind_a_stranger_who_writes_for_long_all_are_busy_and_later_none(self):
        link = self.hold()
        self.assertEqual(at_once(self.answer, [{}] * 4), [jobqueue.Busy] * 4)
        link.rollback()
        self.assertEqual(self.stored(), set())
        self.assertEqual(set(at_once(self.answer, [{}] * 4)), self.stored())


class TestBell(DatabaseCase):
    """What wakes workers that wait."""

    def setUp(self):
        super().setUp()
        self.other = self.another_queue().database

    def rings(self, database=None):
        return bool(select.select([(database or self.database).alarm], [], [], 0)[0])

    def test_it_rings_after_what_others_wait_for_and_not_after_bookkeeping(self):
        self.database.calm()
        with self.other.transaction(durable=False) as transaction:
            jobqueue.remember(transaction, ".x", 1)
        self.assertFalse(self.rings())
        with self.other.transaction() as transaction:
            self.assertFalse(self.rings())
            jobqueue.remember(transaction, ".x", 2)
        self.assertTrue(self.rings())
        self.database.calm()
        self.assertFalse(self.rings())
        with self.other.transaction():
            pass
        self.assertFalse(self.rings())

    def test_all_who_wait_hear_it_and_whoever_stops_it_stops_it_for_all(self):
        third = self.another_queue().database
        self.other.ring()
        self.assertTrue(self.rings() and self.rings(third))
        third.calm()
        self.assertFalse(self.rings() or self.rings(third))

    def test_nobody_waits_for_the_one_who_rings_however_often(self):
        for _ in range(70_000):
            self.other.ring()
        self.assertTrue(self.rings())
        self.database.calm()
        self.assertFalse(self.rings())

    def test_who_finds_that_another_has_just_made_it_hears_it_too(self):
        make = os.mkfifo

        def come_second(*given):
            make(*given)
            raise FileExistsError

        (self.data / "bell").unlink()
        with mock.patch.object(os, "mkfifo", come_second):
            self.assertIsNotNone(self.another_queue().database.alarm)

    def test_without_a_pipe_everything_else_works(self):
        refused = mock.patch.object(os, "mkfifo", side_effect=PermissionError)
        (self.data / "bell").unlink()
        for hindrance in (refused, contextlib.nullcontext()):
            with hindrance:
                database = self.another_queue().database
            self.assertIsNone(database.alarm)
            with database.transaction() as transaction:
                jobqueue.remember(transaction, ".x", 3)
            database.calm()
            (self.data / "bell").write_text("copied by FTP", "utf-8")


class TestBusy(DatabaseCase):
    def test_a_stranger_who_writes_for_long_makes_us_busy_and_nothing_is_changed(self):
        self.hold()
        started = self.clock.monotonic()
        with self.refused(jobqueue.Busy, "nothing was changed") as caught:
            self.remember(".x")
        self.assertIsNotNone(caught.exception.retry_after)
        self.assertGreaterEqual(self.clock.monotonic() - started, jobqueue.WEB_PATIENCE_SECONDS)
        self.assertIsNone(jobqueue.recall(self.database, ".x"))

    def test_patience_can_be_shorter(self):
        self.hold()
        started = self.clock.monotonic()
        with self.database.deadline(0.2), self.refused(jobqueue.Busy):
            self.remember(".x")
        self.assertLess(self.clock.monotonic() - started, 1)

    def test_several_waits_may_share_their_patience(self):
        self.hold()
        started = self.clock.monotonic()
        with self.database.deadline(3):
            with self.database.deadline(2), self.refused(jobqueue.Busy):
                self.remember(".x")
            self.assertAlmostEqual(self.clock.monotonic() - started, 2, delta=0.1)
            for _ in range(5):
                with self.refused(jobqueue.Busy):
                    self.remember(".x")
            self.assertAlmostEqual(self.clock.monotonic() - started, 3, delta=0.2)
        with self.refused(jobqueue.Busy):
            self.remember(".x")
        self.assertGreater(self.clock.monotonic() - started, 3 + jobqueue.WEB_PATIENCE_SECONDS)

    def test_what_is_done_unhurried_puts_the_deadline_off(self):
        with self.database.deadline(3):
            with self.database.deadline_paused():
                self.clock.advance(60)
            self.clock.advance(1)
            self.assertAlmostEqual(self.database.seconds_left(), 2)
            self.clock.advance(60)
            self.assertEqual(self.database.seconds_left(), 0)
            self.remember(".x", 1)
        self.assertEqual(self.database.seconds_left(), jobqueue.WEB_PATIENCE_SECONDS)

    def test_who_waits_to_read_keeps_no_other_thread_from_trying(self):
        asked = []

        def locked(statement, values=()):
            if not asked:
                asked.append(1)
                thread = threading.Thread(target=lambda: asked.append(self.database.value("SELECT 2")))
                self.clock.sleep = lambda _: (thread.start(), thread.join(30), asked.append(3))
                raise sqlite3.OperationalError("database is locked")
            return real(statement, values)
        real = self.database._reader.all
        with mock.patch.object(self.database._reader, "all", locked), \
                mock.patch.object(self.clock, "sleep"):
            self.assertEqual(self.database.value("SELECT 1"), 1)
        self.assertEqual(asked, [1, 2, 3])

    def test_it_succeeds_once_the_stranger_is_done(self):
        link = self.hold()
        sleeps = []
        with mock.patch.object(
            self.clock,
            "sleep",
            side_effect=lambda seconds: (
                self.clock.advance(seconds),
                sleeps.append(1),
                len(sleeps) == 30 and link.rollback(),
            ),
        ):
            self.remember(".x", 7)
        self.assertGreaterEqual(len(sleeps), 30)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 7)

    def test_the_turn_is_free_after_busy(self):
        link = self.hold()
        with self.refused(jobqueue.Busy):
            self.remember(".x")
        link.rollback()
        self.remember(".x", 3)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 3)

    def test_who_waits_for_the_turn_is_busy_in_the_end(self):
        with open(self.data / "turn.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with self.refused(jobqueue.Busy):
                self.remember(".x")
        self.remember(".x")

    def test_a_commit_that_is_busy_is_repeated_and_the_work_is_not(self):
        real, tries, work = self.database._writer.run, [], []

        def run(statement, values=()):
            if statement == "COMMIT" and len(tries) < 3:
                tries.append(1)
                raise sqlite3.OperationalError("database is locked")
            return real(statement, values)

        with mock.patch.object(self.database._writer, "run", run):
            with self.database.transaction() as transaction:
                work.append(1)
                jobqueue.remember(transaction, ".x", 4)
        self.assertEqual((len(tries), len(work)), (3, 1))
        self.assertEqual(jobqueue.recall(self.database, ".x"), 4)

    def test_a_commit_that_stays_busy_is_undone_and_told(self):
        real = self.database._writer.run

        def run(statement, values=()):
            if statement == "COMMIT":
                raise sqlite3.OperationalError("database is locked")
            return real(statement, values)

        with mock.patch.object(self.database._writer, "run", run), self.refused(jobqueue.Busy):
            self.remember(".x")
        self.assertIsNone(jobqueue.recall(self.database, ".x"))
        self.remember(".x")

    def test_a_read_that_is_busy_is_repeated(self):
        link, calls = self.database._reader, []
        real = link.all

        def locked(statement, values=()):
            calls.append(1)
            if len(calls) < 4:
                raise sqlite3.OperationalError("database is locked")
            return real(statement, values)

        with mock.patch.object(link, "all", locked):
            self.assertEqual(self.database.value("SELECT 1"), 1)

    def test_a_read_that_stays_busy_is_told(self):
        with mock.patch.object(
            self.database._reader, "all", side_effect=sqlite3.OperationalError("database is locked")
        ):
            with self.refused(jobqueue.Busy):
                self.database.value("SELECT 1")

    def test_opening_waits_too(self):
        real, calls = jobqueue.FileConnection.value, []

        def locked(link, statement, values=()):
            calls.append(1)
            if len(calls) < 3:
                raise sqlite3.OperationalError("database is locked")
            return real(link, statement, values)

        with mock.patch.object(jobqueue.FileConnection, "value", locked):
            jobqueue.SqliteDatabase(self.data, self.clock).close()

    def test_opening_again_and_again_leaves_no_descriptor_behind(self):
        jobqueue.SqliteDatabase(self.data, self.clock).close()
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(5):
            jobqueue.SqliteDatabase(self.data, self.clock).close()
        after = len(os.listdir("/proc/self/fd")) if before else 0
        self.assertEqual(after, before)

    def test_a_setting_of_the_connection_that_is_busy_is_repeated(self):
        """The synchronous PRAGMA may meet another program's lock like any statement."""
        real, tries = self.database._writer.run, []

        def run(statement, values=()):
            if "synchronous" in statement and not tries:
                tries.append(1)
                raise sqlite3.OperationalError("database is locked")
            return real(statement, values)

        with mock.patch.object(self.database._writer, "run", run):
            self.remember(".x", durable=self.database._synchronous != "FULL")
        self.assertEqual(jobqueue.recall(self.database, ".x"), "1")

    def test_reading_goes_on_while_a_stranger_writes(self):
        self.hold()
        self.assertEqual(self.database.value("SELECT count(*) FROM user"), 3)

    def test_a_web_request_under_load_adds_all_or_nothing(self):
        self.hold()
        with self.refused(jobqueue.Busy):
            self.add_many("bob", 50)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)


class TestReplacedFile(DatabaseCase):
    def test_a_database_that_was_removed_while_in_use_takes_no_more_writes(self):
        os.rename(self.database.path, self.folder / "elsewhere")
        with self.refused(jobqueue.StorageBroken, "removed or replaced"):
            self.remember(".x", 1)

    def test_one_that_was_replaced_is_not_written_to_either(self):
        copy = self.folder / "copy"
        copy.write_bytes(self.database.path.read_bytes())
        os.replace(copy, self.database.path)
        with self.refused(jobqueue.StorageBroken, "removed or replaced"):
            self.remember(".x", 1)


class TestWriteLock(DatabaseCase):
    def write_back_to_back(self):
        """Seconds that were spent on resting."""
        turn = jobqueue.WriteLock(self.folder / "turn", self.clock)
        self.addCleanup(turn.close)
        started = self.clock.monotonic()
        for _ in range(20):
            turn.acquire(1)
            self.clock.advance(0.001)
            turn.release()
        return self.clock.monotonic() - started - 20 * 0.001

    def test_who_writes_back_to_back_stays_away_for_a_moment_while_somebody_waits(self):
        with open(self.folder / "turn.wait", "w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            rested = self.write_back_to_back()
        self.assertGreaterEqual(rested, 2 * jobqueue.WRITE_REST_SECONDS)
        self.assertLess(rested, 0.02)

    def test_who_writes_alone_never_rests(self):
        self.assertAlmostEqual(self.write_back_to_back(), 0)

    def test_who_waits_says_so_and_takes_it_back(self):
        free = []

        def look(seconds):
            self.clock.advance(seconds)
            with open(self.data / "turn.lock.wait") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free.append(True)
                except OSError:
                    free.append(False)

        with open(self.data / "turn.lock") as file, mock.patch.object(self.clock, "sleep", look):
            fcntl.flock(file, fcntl.LOCK_EX)
            with self.database.deadline(0.1), self.refused(jobqueue.Busy):
                self.remember(".x")
        self.assertTrue(free and not any(free[:-1]))
        look(0)
        self.assertTrue(free[-1])

    def test_who_writes_now_and_then_never_rests(self):
        turn = jobqueue.WriteLock(self.folder / "turn", self.clock)
        self.addCleanup(turn.close)
        started = self.clock.monotonic()
        for _ in range(20):
            self.clock.advance(0.01)
            turn.acquire(1)
            turn.release()
        self.assertAlmostEqual(self.clock.monotonic() - started, 0.2)

    def test_a_host_without_flock_works_by_sqlites_own_lock(self):
        with mock.patch("fcntl.flock", side_effect=OSError(38, "not implemented")):
            self.remember(".x", 1)
            self.remember(".x", 2)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 2)


class TestCheckpoints(DatabaseCase):
    def setUp(self):
        super().setUp()
        need(self.database.journal == "wal", "a temporary folder on a local file system")

    def grow(self, bytes_wanted=jobqueue.WAL_CHECKPOINT_BYTES):
        while self.database.wal_bytes() < bytes_wanted:
            before = self.database.wal_bytes()
            self.remember(".big", os.urandom(200_000).hex(), durable=False)
            if self.database.wal_bytes() <= before:
                return

    def test_a_checkpoint_runs_only_inside_a_transaction_of_the_writer(self):
        spy = Spy(self.database)
        self.grow()
        places = [place for place, (_, text) in enumerate(spy.seen) if "wal_checkpoint" in text]
        self.assertTrue(places)
        for place in places:
            writer = [
                text
                for name, text in spy.seen[:place]
                if name == "_writer" and re.match("BEGIN|COMMIT|ROLLBACK", text)
            ]
            self.assertEqual(writer[-1], "BEGIN IMMEDIATE")
            self.assertEqual(spy.seen[place][0], "_reader")

    def test_the_turn_is_held_during_a_checkpoint(self):
        real, held = self.database._reader.row, []

        def row(statement, values=()):
            if "wal_checkpoint" in statement:
                with open(self.data / "turn.lock") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        held.append(False)
                    except OSError:
                        held.append(True)
            return real(statement, values)

        with mock.patch.object(self.database._reader, "row", row):
            self.grow()
        self.assertTrue(held and all(held))

    def test_a_small_log_is_left_alone(self):
        spy = Spy(self.database)
        for _ in range(5):
            self.remember(".x")
        self.assertFalse([text for text in spy.texts() if "checkpoint" in text])

    def test_the_log_starts_over_after_a_checkpoint(self):
        self.grow()
        self.remember(".x")
        self.assertLessEqual(self.database.wal_bytes(), jobqueue.WAL_CHECKPOINT_BYTES)

    def test_between_two_checkpoints_nobody_who_commits_waits_for_who_reads_much(self):
        self.database._checkpoint_timer.put_off(1000)
        with self.database._looking:
            writer = threading.Thread(target=self.grow, args=(jobqueue.WAL_CHECKPOINT_BYTES + 1_000_000,))
            writer.start()
            writer.join(20)
            waits = writer.is_alive()
        writer.join()
        self.assertFalse(waits)

    def test_a_long_reader_delays_it_and_loses_nothing(self):
        link = outsider(self.database.path)
        self.addCleanup(link.close)
        link.execute("BEGIN")
        link.execute("SELECT count(*) FROM user").fetchall()
        self.clock.step = 0.0005
        for number in range(jobqueue.WAL_CHECKPOINT_BYTES // 200_000 + 3):
            self.remember(".big%d" % number, "x" * 200_000, durable=False)
        self.assertGreater(self.database.wal_bytes(), jobqueue.WAL_CHECKPOINT_BYTES)
        self.clock.step = 0
        spy = Spy(self.database)
        self.remember(".x")
        self.assertFalse([text for text in spy.texts() if "checkpoint" in text], "it pauses for a while")
        link.rollback()
        self.clock.advance(2)
        self.remember(".x", 9)
        self.remember(".y", 9)
        self.assertLessEqual(self.database.wal_bytes(), jobqueue.WAL_CHECKPOINT_BYTES)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 9)

    def test_automatic_checkpoints_are_off_on_every_connection(self):
        for link in (self.database._reader, self.database._writer):
            self.assertEqual(link.value("PRAGMA wal_autocheckpoint"), 0)
            self.assertEqual(link.value("PRAGMA journal_mode"), "wal")

    def test_a_checkpoint_that_fails_does_not_undo_what_was_committed(self):
        real = self.database._reader.row

        def row(statement, values=()):
            if "wal_checkpoint" in statement:
                raise sqlite3.OperationalError("disk I/O error")
            return real(statement, values)

        with mock.patch.object(self.database._reader, "row", row):
            self.grow()
            self.remember(".x", 1)
        self.assertEqual(jobqueue.recall(self.database, ".x"), 1)


class TestDeletedLog(DatabaseCase):
    def setUp(self):
        super().setUp()
        need(self.database.journal == "wal", "a temporary folder on a local file system")
        self.index = Path(str(self.database.path) + "-shm")

    def test_who_closes_and_who_opens_in_the_same_moment_look_like_none(self):
        seen, real = [], Path.exists

        def exists(path):
            seen.append(path)
            return len(seen) != 2 and real(path)    # the second look falls between the two

        with mock.patch.object(Path, "exists", exists):
            self.database._refuse_missing_log()
        self.assertEqual(seen[:2], [self.index, self.database._wal])

    def test_one_is_told(self):
        self.database.close()
        self.index.touch()
        with self.assertRaisesRegex(jobqueue.StorageBroken, "was deleted"):
            jobqueue.SqliteDatabase(self.data)


class TestBrokenFiles(DatabaseCase):
    """Each case: one clear error, and the file stays exactly as it is."""

    def setUp(self):
        super().setUp()
        self.add_many("bob", 50)
        self.queue.close()
        self.path = self.database.path

    def check(self, kind, words):
        before = self.path.read_bytes() if self.path.is_file() else None
        for _ in range(2):
            with self.refused(kind, words) as caught, contextlib.closing(
                    jobqueue.JobQueue(self.data, self.clock, environment={})) as queue:
                queue.database.all("SELECT * FROM task")
                queue.add([{"function": "add", "arguments": {"a": 1}}], 1)
            self.assertNotIn("\n", caught.exception.detail)
        self.assertEqual(self.path.read_bytes() if self.path.is_file() else None, before)
        self.assertEqual(len(list(self.data.glob("jobqueue-*.db"))), 1)

    def test_an_emptied_file(self):
        self.path.write_bytes(b"")
        self.check(jobqueue.StorageBroken, "is empty")

    def test_a_file_of_nothing_but_zeros(self):
        self.path.write_bytes(b"\0" * 8192)
        self.check(jobqueue.StorageBroken, "ackup in its place")

    def test_an_empty_database_of_somebody_elses_making(self):
        self.path.unlink()
        link = sqlite3.connect(str(self.path))
        link.execute("VACUUM")
        link.execute("CREATE TABLE x (a)")
        link.commit()
        link.close()
        self.check(jobqueue.StorageBroken, "is empty")

    def test_a_web_page_in_its_place(self):
        self.path.write_text("<html>Account suspended</html>" * 100)
        self.check(jobqueue.StorageBroken, "is damaged")

    def test_an_overwritten_header(self):
        data = self.path.read_bytes()
        self.path.write_bytes(b"x" * 100 + data[100:])
        self.check(jobqueue.StorageBroken, "is damaged")

    def test_a_truncated_file(self):
        data = self.path.read_bytes()
        self.path.write_bytes(data[: len(data) // 3 // 4096 * 4096 or 4096])
        self.check(jobqueue.StorageBroken, "is damaged")

    def test_random_bytes_in_its_pages(self):
        data = bytearray(self.path.read_bytes())
        for page in range(1, len(data) // 4096):
            data[page * 4096 : page * 4096 + 100] = os.urandom(100)
        self.path.write_bytes(data)
        self.check(jobqueue.StorageBroken, "is damaged")

    def test_a_folder_in_its_place(self):
        self.path.unlink()
        self.path.mkdir()
        with self.assertRaises(jobqueue.StorageBroken):
            jobqueue.JobQueue(self.data, self.clock, environment={})

    def test_no_database_at_all(self):
        self.path.unlink()
        with self.refused(jobqueue.SetupError, "exactly one is expected"):
            jobqueue.JobQueue(self.data, self.clock, environment={})
        self.assertEqual(list(self.data.glob("jobqueue-*.db")), [])

    def test_two_databases(self):
        (self.data / "jobqueue-copy.db").write_bytes(self.path.read_bytes())
        with self.refused(jobqueue.SetupError, "exactly one is expected. Move the unused"):
            jobqueue.JobQueue(self.data, self.clock, environment={})

    def test_a_folder_that_vanished_is_a_new_start_only_if_nothing_is_left_of_it(self):
        os.rename(self.data, self.folder / "elsewhere")
        self.data.symlink_to(self.folder / "gone")
        with self.assertRaises(jobqueue.SetupError):
            jobqueue.JobQueue(self.data, self.clock, environment={})
        self.assertFalse((self.folder / "gone").exists())

    def test_a_missing_journal_file(self):
        next(self.data.glob("journal-*.json")).unlink()
        self.check(jobqueue.SetupError, "json is missing or unreadable")

    def test_a_journal_file_that_says_nonsense(self):
        for text in ("", "[]", "{}", "null", "not json"):
            next(self.data.glob("journal-*.json")).write_text(text)
            self.check(jobqueue.SetupError, "json is missing or unreadable")

    def test_a_journal_file_that_names_an_unknown_mode(self):
        next(self.data.glob("journal-*.json")).write_text('{"mode": "wal2"}')
        with self.assertRaises(jobqueue.SetupError):
            jobqueue.JobQueue(self.data, self.clock, environment={})

    def test_a_broken_database_stays_unclaimed_while_it_is_open_elsewhere(self):
        queue = jobqueue.JobQueue(self.data, self.clock, environment={})
        self.addCleanup(close_quietly, queue)
        with mock.patch.object(
            queue.database._reader,
            "all",
            side_effect=sqlite3.DatabaseError("database disk image is malformed"),
        ):
            with self.refused(jobqueue.StorageBroken, "ackup in its place"):
                self.tick(queue=queue)

    def test_a_full_disk_is_told_as_such(self):
        error = jobqueue.storage_error(sqlite3.OperationalError("database or disk is full"), "x.db")
        self.assertIsInstance(error, jobqueue.StorageFull)
        self.assertEqual(error.status, 507)

    def test_so_is_one_without_room_for_what_reading_needs(self):
        error = sqlite3.OperationalError("disk I/O error")
        for free, kind in ((0, jobqueue.StorageFull), (100, jobqueue.StorageBroken)):
            with mock.patch("os.statvfs", return_value=mock.Mock(f_bavail=free, f_frsize=4096)):
                self.assertIs(type(jobqueue.storage_error(error, "x.db")), kind)
                damaged = jobqueue.storage_error(sqlite3.DatabaseError("file is not a database"), "x.db")
                self.assertIn("is damaged", damaged.detail)

    def test_a_folder_that_nothing_can_be_written_to_is_told(self):
        for number, kind, words in ((errno.EROFS, jobqueue.StorageBroken, ": Read-only file system."),
                                    (errno.ENOSPC, jobqueue.StorageFull, "nothing was changed")):
            failure = OSError(number, os.strerror(number))
            with mock.patch.object(jobqueue, "WriteLock", side_effect=failure), self.refused(kind, words):
                jobqueue.JobQueue(self.data, self.clock, environment={})

    def test_a_full_disk_changes_nothing(self):
        queue = jobqueue.JobQueue(self.data, self.clock, environment={})
        self.addCleanup(close_quietly, queue)
        limit = queue.database._writer.value("PRAGMA page_count") + 2
        queue.database._writer.run("PRAGMA max_page_count=%d" % limit)
        with self.refused(jobqueue.StorageFull, "nothing was changed"):
            with queue.database.transaction() as transaction:
                for number in range(50):
                    jobqueue.remember(transaction, ".big%d" % number, "x" * 100_000)
        self.assertIsNone(jobqueue.recall(queue.database, ".big0"))

    def test_each_message_of_sqlite_has_its_error(self):
        for text, kind in (
            ("attempt to write a readonly database", jobqueue.StorageBroken),
            ("database is locked", jobqueue.Busy),
            ("database table is locked", jobqueue.Busy),
            ("locking protocol", jobqueue.Busy),
            ("database disk image is malformed", jobqueue.StorageBroken),
            ("file is not a database", jobqueue.StorageBroken),
            ("disk I/O error", jobqueue.StorageBroken),
            ("unable to open database file", jobqueue.StorageBroken),
        ):
            self.assertIs(type(jobqueue.storage_error(sqlite3.OperationalError(text), "x.db")), kind, text)


class TestOurMistakes(DatabaseCase):
    """What SQLite refuses because of us is told as a bug, never as a broken database."""

    MISTAKES = (
        ("SELEC 1", ()), ("SELECT absent FROM task", ()), ("SELECT * FROM task WHERE id=?", ()),
        ("SELECT ?", (object(),)), ("INSERT INTO user (name) VALUES ('x')", ()),
        ("SELECT 1 LIMIT 'x'", ()), ("SELECT 'full' busily", (1,)),
        ("SELECT * FROM task INDEXED BY none", ()))

    def test_each_is_raised_as_it_is_and_undoes_everything(self):
        for statement, values in self.MISTAKES:
            with self.subTest(statement):
                with self.assertRaises(sqlite3.Error) as caught, self.database.transaction() as transaction:
                    jobqueue.remember(transaction, ".x", 5)
                    transaction.all(statement, values)
                self.assertIs(jobqueue.storage_error(caught.exception, ""), caught.exception)
                self.assertIsNone(jobqueue.recall(self.database, ".x"))
                if statement.startswith("SEL"):
                    for read in (self.database.all, self.database.read_within):
                        with self.assertRaises(sqlite3.Error):
                            read(statement, values)

    def test_on_the_command_line_it_is_a_traceback(self):
        error = sqlite3.OperationalError("no such column: absent")
        with mock.patch.object(jobqueue.TaskList, "find", side_effect=error), \
                mock.patch.object(jobqueue, "JobQueue", return_value=self.queue), \
                self.assertRaises(sqlite3.OperationalError):
            jobqueue.main(["list", "--data", str(self.data)])


class TestOtherUsers(DatabaseCase):
    """Run as another user than the owner: file modes count, which they do not for root."""

    def as_nobody(self, text):
        """What a process of another user says; the suite's own modules are imported before."""
        need(os.getuid() == 0, "root to become somebody else")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                try:
                    said = text()
                except jobqueue.JobQueueError as error:
                    said = "%s: %s" % (type(error).__name__, error.detail)
                except BaseException as error:
                    said = "unexpected: %r" % error
                os.write(writing, str(said).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            said = file.read().decode()
        os.waitpid(child, 0)
        return said

    def test_somebody_else_is_refused_with_the_command_that_works(self):
        os.chmod(self.folder, 0o755)
        said = self.as_nobody(lambda: jobqueue.open_database(self.data))
        self.assertIn("SetupError: The data folder", said)
        self.assertIn("belongs to the user root, and this runs as nobody", said)
        self.assertIn("sudo -u 'root' python3 '%s'" % (jobqueue.HOME / "jobqueue.py"), said)

    def test_the_owner_is_let_in(self):
        jobqueue.refuse_other_user(self.data)

    def test_a_database_that_may_only_be_read(self):
        self.queue.close()
        os.chmod(self.folder, 0o755)
        for folder, _, files in os.walk(self.data):
            for path in [folder] + [os.path.join(folder, name) for name in files]:
                os.chown(path, 65534, 65534)
        os.chmod(self.database.path, 0o400)
        before = self.database.path.read_bytes()

        def use():
            database = jobqueue.open_database(self.data, jobqueue.Clock, 0.5)
            with database.transaction() as transaction:
                jobqueue.remember(transaction, ".x", 1)
            return "it was written"

        said = self.as_nobody(use)
        self.assertRegex(said, "StorageBroken: .*cannot be (written|used)")
        self.assertEqual(self.database.path.read_bytes(), before)

    def test_a_parent_folder_that_may_not_be_written(self):
        os.chmod(self.folder, 0o755)
        said = self.as_nobody(lambda: jobqueue.open_database(self.folder / "new"))
        self.assertRegex(said, "SetupError: The data folder .* cannot be made: Permission denied")


class TestJournalMode(DatabaseCase):
    def make(self, kind):
        with mock.patch.object(jobqueue, "file_system", return_value=kind):
            jobqueue.create_data_folder(self.folder / "made")
            database = jobqueue.SqliteDatabase(self.folder / "made", self.clock)
        self.addCleanup(close_quietly, database)
        return database

    @staticmethod
    def mode(folder):
        return jobqueue.Journal(jobqueue.find_database(folder)).mode

    def test_a_local_file_system_gets_wal(self):
        database = self.make("ext4")
        self.assertEqual(database.value("PRAGMA journal_mode"), "wal")

    def test_a_network_file_system_gets_truncate_and_always_full(self):
        database = self.make("nfs4")
        self.assertEqual(database.journal, "truncate")
        with database.transaction(durable=False) as transaction:
            jobqueue.remember(transaction, ".x", 1)
            self.assertEqual(transaction.value("PRAGMA journal_mode"), "truncate")
            self.assertEqual(transaction.value("PRAGMA synchronous"), 2)
        self.assertFalse(list((self.folder / "made").glob("*-wal")))

    def test_an_unknown_file_system_counts_as_a_network(self):
        for kind in ("unknown", "fuse.sshfs", "cifs", "9p", "lustre"):
            with self.subTest(kind):
                with mock.patch.object(jobqueue, "file_system", return_value=kind):
                    room = self.folder / kind
                    jobqueue.create_data_folder(room)
                    self.assertEqual(self.mode(room), "truncate")

    def test_a_wal_folder_that_now_is_on_a_network_is_refused_before_sqlite_opens_it(self):
        self.make("ext4").close()
        with (
            mock.patch.object(jobqueue, "file_system", return_value="nfs"),
            mock.patch.object(jobqueue, "FileConnection", side_effect=AssertionError("it was opened")),
        ):
            with self.refused(jobqueue.SetupError, "check --repair"):
                jobqueue.SqliteDatabase(self.folder / "made", self.clock)

    def test_a_second_machine_on_a_wal_folder_is_refused(self):
        self.make("ext4").close()
        with (
            mock.patch.object(jobqueue, "machine_name", return_value="another-machine"),
            mock.patch.object(jobqueue, "file_system", return_value="nfs"),
        ):
            with self.assertRaises(jobqueue.SetupError):
                jobqueue.SqliteDatabase(self.folder / "made", self.clock)

    def test_repair_chooses_what_is_safe_here(self):
        self.make("ext4").close()
        with mock.patch.object(jobqueue, "file_system", return_value="nfs"):
            self.assertEqual(jobqueue.repair_journal(self.folder / "made"), "truncate")
            database = jobqueue.SqliteDatabase(self.folder / "made", self.clock)
        self.addCleanup(close_quietly, database)
        self.assertEqual(database.journal, "truncate")

    def test_repair_is_refused_while_somebody_has_it_open(self):
        database = self.make("ext4")
        self.assertTrue(database.value("SELECT count(*) FROM user") == 0)
        with mock.patch.object(jobqueue, "file_system", return_value="nfs"):
            with self.assertRaises(jobqueue.JobQueueError):
                jobqueue.repair_journal(self.folder / "made")
        self.assertEqual(self.mode(self.folder / "made"), "wal")

    def test_a_mounted_file_system_is_found_by_the_longest_path(self):
        text = (
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - xfs /dev/b rw\n"
            "3 2 0:1 / /home/ana/my\\040share rw - nfs4 host:/x rw\n4 1 0:2 / /homework rw - cifs //x rw\n"
        )
        with mock.patch.object(jobqueue.Path, "read_text", return_value=text):
            for path, kind in (
                ("/var/data", "ext4"),
                ("/home/ana/data", "xfs"),
                ("/homework/data", "cifs"),
                ("/home/ana/my share/data", "nfs4"),
                ("/home", "xfs"),
            ):
                self.assertEqual(jobqueue.file_system(path), kind, path)

    def test_a_symbolic_link_counts_as_what_it_points_to(self):
        text = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / %s rw - nfs4 host:/x rw\n" % (
            os.path.realpath(self.folder / "share").replace(" ", "\\040")
        )
        (self.folder / "share").mkdir()
        (self.folder / "link").symlink_to(self.folder / "share")
        with mock.patch.object(jobqueue.Path, "read_text", return_value=text):
            self.assertEqual(jobqueue.file_system(self.folder / "link" / "data"), "nfs4")

    def test_a_system_without_that_list_counts_as_unknown(self):
        with mock.patch.object(jobqueue.Path, "read_text", side_effect=FileNotFoundError):
            self.assertEqual(jobqueue.file_system("/"), "unknown")


if __name__ == "__main__":
    unittest.main()
