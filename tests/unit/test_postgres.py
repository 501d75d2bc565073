"""A database of PostgreSQL's: whose it is, what is said of its address, and how long it is connected."""
import tempfile
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
