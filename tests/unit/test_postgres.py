"""A database of PostgreSQL's: whose it is, what is said of its address, and how long it is connected."""
import contextlib
import tempfile
import time
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers import postgres

OTHERS = (
    "CREATE TABLE task (name TEXT)",
    "CREATE TABLE jobqueue (name TEXT)",
    "CREATE FUNCTION jobqueue_task_ended() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
)
PASSWORDS = ("Se@kret", "Se/kret", "Se@kr/et", "Sekret%zz", "Se?kret")


@unittest.skipUnless(postgres.ADDRESS, "there is no PostgreSQL: JOBQUEUE_TEST_DATABASE")
class Server(unittest.TestCase):

    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.folder = Path(room.name, "data")

    def database(self):
        address, remove = postgres.fresh_database(empty=True)
        self.addCleanup(remove)
        return address

    def open(self, address, patience=5.0):
        return jobqueue.JobQueue(self.folder, patience=patience, environment={"JOBQUEUE_DATABASE": address})

    def test_what_belongs_to_another_program_is_left_alone(self):
        for statement in OTHERS:
            address = self.database()
            with postgres.connect(address) as link:
                link.execute(statement)
                with self.assertRaisesRegex(jobqueue.SetupError, "needs one of its own"):
                    self.open(address)
                there = link.execute("SELECT count(*) FROM pg_tables WHERE schemaname='public'").fetchone()
                self.assertEqual(there, ("TABLE" in statement,), statement)

    def test_no_part_of_a_password_is_said_that_was_written_wrongly(self):
        for password in PASSWORDS:
            with self.assertRaises(jobqueue.JobQueueError) as raised:
                self.open("postgresql://bob:%s@127.0.0.1:1/queue" % password, 0.1)
            for part in ("Se", "kr", "et@"):
                self.assertNotIn(part, str(raised.exception).replace("Setup", ""), password)

    def test_a_server_that_is_away_is_left_in_peace_between_tries(self):
        from psycopg import OperationalError
        connect = mock.Mock(side_effect=OperationalError("it is away"))
        with mock.patch.object(jobqueue, "ServerConnection", connect), self.assertRaises(jobqueue.Busy):
            self.open("postgresql://127.0.0.1:1/queue", 1.0)
        self.assertIn(connect.call_count, range(2, 51))

    def test_who_drops_a_queue_is_not_connected_any_more(self):
        queue = self.open(self.database())
        link = weakref.ref(queue.database)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # the driver wants to be closed
            del queue
        self.assertIsNone(link())

    def test_texts_come_back_as_they_were_however_the_server_reads_backslashes(self):
        texts = ["it's", "\\", "\\'; --", "%s ? $1 %%", "a user said 'user'", "-1", "é\n\t€", "E'\\''"]
        for reads in ("on", "off"):
            with self.subTest(reads):
                address = self.database()
                address += "%soptions=-cstandard_conforming_strings%%3D%s" % (
                    "&" if "?" in address else "?", reads)
                self.folder = self.folder.with_name("data-" + reads)
                queue = self.open(address)
                self.addCleanup(queue.close)
                with queue.database.transaction() as transaction:
                    for number, text in enumerate(texts):
                        jobqueue.remember(transaction, ".text%d" % number, text)
                        self.assertEqual(transaction.value("SELECT ?", (text,)), text)
                self.assertEqual([jobqueue.recall(queue.database, ".text%d" % number)
                                  for number in range(len(texts))], texts)

    def open_with_an_admin(self):
        """A queue that starts no workers, and reads nothing again because the machine is busy."""
        known = mock.patch.object(jobqueue, "CACHE_SECONDS", 3600)
        known.start()
        self.addCleanup(known.stop)
        queue = self.open(self.database())
        self.addCleanup(queue.close)
        queue.users.add("admin", "a long enough password", "admin")
        queue.settings.change({"NbMaxWorker": 0})
        queue.enqueue("add", {"a": 1, "b": 2})
        return queue

    def messages(self, action):
        """What the server is sent meanwhile."""
        sent, real = [], jobqueue.ServerConnection._do

        def do(link, text, *more):
            sent.append(text)
            return real(link, text, *more)

        with mock.patch.object(jobqueue.ServerConnection, "_do", do):
            action()
        return sent

    def test_a_task_is_added_in_two_messages(self):
        """The lock and all that is looked at under it; what is stored. The owner is known already."""
        queue = self.open_with_an_admin()
        sent = self.messages(lambda: queue.enqueue("add", {"a": 1, "b": 2}))
        self.assertEqual(len(sent), 2, sent)
        self.assertLess(sent[0].index("FOR UPDATE"), sent[0].index("task_id_seq"))

    def test_a_batch_is_recorded_and_the_next_one_claimed_in_four_messages(self):
        queue = self.open_with_an_admin()
        queue.enqueue_many("add", [{"a": 1, "b": 2}] * 20)
        claims, rows = queue.claims, []

        def work(wanted):
            ended = [(row["id"], row["claim"], jobqueue.Outcome("succeeded", "3")) for row in rows]
            foreseen = [claims.ending([row["id"] for row in rows])]
            with queue.database.transaction(durable=False, foreseen=foreseen) as transaction:
                now = queue.database.clock.now()
                claims.end_all(transaction, ended, now, wanted)
                rows[:] = claims.claim(transaction, None, now, wanted, "add")

        work(1)
        queue.claims._promotions.put_off(3600)
        work(3)
        sent = self.messages(lambda: work(3))
        self.assertEqual(len(rows), 3)
        self.assertEqual(len(sent), 4, sent)
        self.assertEqual(queue.tasks.get(3)["status"], jobqueue.SUCCEEDED)

    def test_an_idle_worker_claims_in_three_messages(self):
        """The lock and all that is looked at under it; the claim; its sign of life and the COMMIT."""
        queue = self.open_with_an_admin()
        queue.enqueue("add", {"a": 1, "b": 2})
        with queue.database.transaction() as transaction:       # so it knows its queue
            queue.claims.claim(transaction, None, queue.database.clock.now())
        queue.enqueue("add", {"a": 1, "b": 2})
        queue.claims._promotions.put_off(0)

        def work():
            foreseen = *jobqueue.PROMOTING, *queue.claims.foreseen()
            with queue.database.transaction(durable=False, foreseen=foreseen) as transaction:
                [row] = queue.claims.claim(transaction, 1, queue.database.clock.now())
                queue.workers.heartbeat(transaction, 1, "busy", 0)

        self.assertEqual(len(self.messages(work)), 3)

    def test_marks_of_long_ago_are_removed(self):
        address = self.database()
        queue = self.open(address)
        self.addCleanup(queue.close)
        with queue.database.transaction() as transaction:
            jobqueue.remember(transaction, ".new", 1)
            transaction.run("INSERT INTO mark VALUES ('gone', 1, 0)")
        self.open(address).close()
        self.assertEqual([row[0] == "gone" for row in queue.database.all("SELECT writer FROM mark")], [False])

    def test_how_long_the_lock_of_the_server_was_waited_for_is_known(self):
        queue, clock = self.open_with_an_admin(), mock.Mock(wraps=jobqueue.ServerClock())
        begin = jobqueue.PostgresDatabase._begin

        def begin_late(database, *values):
            begin(database, *values)
            clock.monotonic.side_effect = lambda: time.monotonic() + 7

        clock.monotonic.side_effect = time.monotonic
        with mock.patch.object(queue.database, "clock", clock), \
                mock.patch.object(jobqueue.PostgresDatabase, "_begin", begin_late), \
                queue.database.transaction():
            pass
        self.assertLess(abs(queue.database.waited - 7), 5)

    def test_what_was_answered_in_advance_is_forgotten_at_the_next_change(self):
        queue = self.open_with_an_admin()
        question = "SELECT value FROM setting WHERE name=?", (".seen",)
        changes = (
            lambda link, value: link.run("UPDATE setting SET value=?", (value,)),
            lambda link, value: link.tell("UPDATE setting SET value=?", (value,)),
            lambda link, value: link.many("UPDATE setting SET value=?", [(value,)]),
            lambda link, value: link.insert("setting", {"name": ".seen", "value": value}))
        for change in changes:
            with self.subTest(change), contextlib.suppress(ZeroDivisionError), \
                    queue.database.transaction(foreseen=[question]) as transaction:
                change(transaction, "[1]")
                if change is not changes[-1]:
                    transaction.run("INSERT INTO setting (name, value) VALUES ('.seen', '[1]')")
                self.assertEqual(transaction.value(*question), "[1]")
                transaction.foresee([question])
                transaction.value("SELECT 1")
                change(transaction, "[2]") if change is not changes[-1] else transaction.run(
                    "UPDATE setting SET value='[2]'")
                self.assertEqual(transaction.value(*question), "[2]")
                raise ZeroDivisionError
            self.assertIsNone(queue.database.value(*question))

    def test_what_is_no_number_is_no_task(self):
        queue = self.open_with_an_admin()
        for task_id in ("abc", "", "1; DROP TABLE task", -1, 2 ** 70, None, 1.5):
            with self.subTest(task_id), self.assertRaises(jobqueue.NotFound):
                queue.get(task_id)
        self.assertEqual(queue.get("1").id, 1)

    def test_a_column_that_is_missing_later_is_no_other_programs_table(self):
        queue = self.open_with_an_admin()
        with self.assertRaises(queue.database.errors) as raised:
            queue.database.all("SELECT no_such_column FROM task")
        self.assertEqual(raised.exception.sqlstate, "42703")

    def test_a_lock_row_that_is_gone_is_refused_in_one_line_and_nothing_is_written(self):
        queue = self.open_with_an_admin()
        for statement in ("INSERT INTO jobqueue SELECT version, epoch FROM jobqueue", "DELETE FROM jobqueue"):
            with queue.database.transaction() as link:
                link.run(statement)
            with self.subTest(statement), self.assertRaises(jobqueue.StorageBroken) as raised:
                queue.enqueue("add", {"a": 1, "b": 2})
            self.assertRegex(raised.exception.detail, "^The database .* was replaced while it was in use")
            self.assertNotIn("\n", raised.exception.detail)
            self.assertEqual(queue.database.value("SELECT count(*) FROM task"), 1)
            with queue.database.snapshot() as link:
                link.run("ROLLBACK")
                link.run("DELETE FROM jobqueue")
                link.run("INSERT INTO jobqueue VALUES (?, ?)",
                         (jobqueue.SCHEMA_VERSION, queue.database._epoch))

    def test_machines_whose_clocks_differ_by_an_hour_do_no_harm(self):
        queue = self.open_with_an_admin()
        other = Path(self.folder.parent, "other")
        with mock.patch.object(jobqueue.time, "time", lambda real=time.time: real() + 3600):
            late = jobqueue.JobQueue(other, environment={"JOBQUEUE_DATABASE": queue.database._address})
            self.addCleanup(late.close)
            for here, there in ((queue, late), (late, queue)):
                soon = here.enqueue("add", {"a": 1, "b": 2}, delay=100)
                due = there.get(soon.id)
                self.assertEqual(due.status, "scheduled")
                with here.database.transaction() as transaction:
                    now = here.database.clock.now()
                    [row] = here.claims.claim(transaction, None, now)
                with there.database.transaction():
                    pass                # it has looked at the server's clock
                there.claims.leases.boot = "another"
                now = there.database.clock.now()
                left = there.claims.leases.left(now)[row["id"]]
                self.assertLess(abs(left - there.database.lease_seconds), 30)
                self.assertEqual(there.claims.leases._late(now), {})
                with here.database.transaction() as transaction:
                    here.claims.end(transaction, row["id"], row["claim"],
                                    jobqueue.Outcome("succeeded", "3"), now)
                here.enqueue("add", {"a": 1, "b": 2})
            self.assertLess(abs(late.database.clock_offset - 3600), 60)

    def write_without_an_answer(self, database, name, is_sent):
        """Remember something; the connection breaks before the COMMIT, or before its answer."""
        real = jobqueue.ServerConnection.script

        def script(link, text, *more):
            if not text.startswith("COMMIT"):
                return real(link, text, *more)
            if is_sent:
                real(link, text, *more)
            link.close()
            patch.stop()
            raise jobqueue.driver()[0].OperationalError("gone")

        patch = mock.patch.object(jobqueue.ServerConnection, "script", script)
        with patch, database.transaction() as transaction:
            jobqueue.remember(transaction, name, 1)

    def test_whether_a_commit_without_an_answer_was_kept_is_asked(self):
        queue = self.open(self.database())
        self.addCleanup(queue.close)
        self.write_without_an_answer(queue.database, ".kept", True)
        self.assertEqual(jobqueue.recall(queue.database, ".kept"), 1)
        with self.assertRaises(jobqueue.Busy):
            self.write_without_an_answer(queue.database, ".lost", False)
        self.assertIsNone(jobqueue.recall(queue.database, ".lost"))

    def test_there_is_nothing_to_repair_here(self):
        self.open(self.database()).close()
        with self.assertRaisesRegex(jobqueue.SetupError, "on PostgreSQL"):
            jobqueue.repair_journal(self.folder)
