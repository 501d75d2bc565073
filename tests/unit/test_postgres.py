"""A database of PostgreSQL's: whose it is, what is said of its address, and how long it is connected."""
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers import postgres
from tests.helpers.support import free_port, wait_until

OTHERS = (
    "CREATE TABLE task (name TEXT)",
    "CREATE TABLE jobqueue (name TEXT)",
    "CREATE FUNCTION jobqueue_task_ended() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
)
POOLER = """[databases]
* = %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
%s
"""
PASSWORDS = ("Se@kret", "Se/kret", "Se@kr/et", "Sekret%zz", "Se?kret")


# A server in a process of its own: the driver lets no other thread run while it pings.
REFUSING_SERVER = r"""
import socket, struct, sys
fields = b"SFATAL", b"VFATAL", b"C" + sys.argv[1].encode(), b"M" + sys.argv[2].encode()
body = b"\0".join(fields) + b"\0\0"
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    with server.accept()[0] as client:
        head = client.recv(8)
        while len(head) == 8:
            length, code = struct.unpack("!ii", head)
            client.recv(length - 8)
            is_start = code >> 16 == 3          # else it asks for TLS, or for GSSAPI
            client.sendall(b"E" + struct.pack("!i", len(body) + 4) + body if is_start else b"N")
            head = b"" if is_start else client.recv(8)
"""


@contextlib.contextmanager
def refusing_server(state, said):
    """The port of a server that answers each connection with this error."""
    with subprocess.Popen([sys.executable, "-c", REFUSING_SERVER, state, said],
                          stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def pooler(address, mode, lets_options_in):
    """The address of the same database through a PgBouncer."""
    from psycopg.conninfo import conninfo_to_dict
    server, port = conninfo_to_dict(address), free_port()
    with tempfile.TemporaryDirectory() as room:
        os.chmod(room, 0o755)               # it refuses to run as root
        names = Path(room, "users")
        names.write_text('"%s" ""\n' % postgres.NAME, "utf-8")
        file = Path(room, "pgbouncer.ini")
        file.write_text(POOLER % (
            " ".join("%s=%s" % (key, server[key]) for key in ("host", "port")), port, names, mode,
            "ignore_startup_parameters = options" if lets_options_in else ""), "utf-8")
        process = subprocess.Popen([*postgres.ordinary_user(), "pgbouncer", "-q", file],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(functools.partial(is_open, port))
            yield "postgresql://%s@127.0.0.1:%d/%s" % (postgres.NAME, port, server["dbname"])
        finally:
            process.terminate()
            process.wait()


def is_open(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@unittest.skipUnless(postgres.ADDRESS, "there is no PostgreSQL: JOBQUEUE_TEST_DATABASE")
@mock.patch.object(jobqueue, "PLANNED_AFTER", 0)
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

    def test_a_server_that_refuses_in_another_language_is_not_taken_for_one_that_is_busy(self):
        for state, said, kind in (
                ("28P01", "Passwort-Authentifizierung für Benutzer »bob« fehlgeschlagen",
                 jobqueue.StorageBroken),
                ("3D000", "база данных \"queue\" не существует", jobqueue.StorageBroken),
                ("57P03", "das Datenbanksystem startet", jobqueue.Busy)):
            with self.subTest(said), refusing_server(state, said) as port, \
                    self.assertRaises(kind) as raised:
                self.open("postgresql://bob:secret@127.0.0.1:%d/queue" % port, 0.3)
            self.assertIn(said, str(raised.exception))
            self.assertNotIn("secret", str(raised.exception))

    def test_an_option_that_the_driver_does_not_take_is_refused_at_once(self):
        for option in ("sslmode=no-verify", "schema=queue"):
            with self.subTest(option), self.assertRaises(jobqueue.JobQueueError) as raised:
                self.open("postgresql://bob@127.0.0.1:1/queue?" + option, 1.0)
            self.assertNotIsInstance(raised.exception, jobqueue.Busy)

    def test_tables_in_two_schemas_do_not_make_two_half_queues(self):
        address = self.database()
        self.open(address).close()
        with postgres.connect(address) as link:
            link.execute("CREATE SCHEMA other; CREATE TABLE other.task (name TEXT)")
            link.execute("ALTER DATABASE %s SET search_path = other, public" % link.info.dbname)
        with self.assertRaisesRegex(jobqueue.SetupError, "several schemas"):
            self.open(address)

    def test_a_role_that_may_make_no_tables_reads_what_to_grant(self):
        address = self.database()
        with postgres.connect(address) as link:
            link.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")      # as since PostgreSQL 15
            link.execute("CREATE ROLE guest LOGIN")
            self.addCleanup(self.drop_role, "guest")
        with self.assertRaisesRegex(jobqueue.StorageBroken, "GRANT USAGE, CREATE ON SCHEMA public"):
            self.open(address.replace(postgres.NAME + "@", "guest@"))

    def drop_role(self, name):
        with postgres.connect(postgres.ADDRESS) as link:
            link.execute("DROP ROLE " + name)

    def test_a_role_that_does_not_wait_for_its_commits_loses_none_here(self):
        address = self.database()
        with postgres.connect(address) as link:
            link.execute("ALTER DATABASE %s SET synchronous_commit = off" % link.info.dbname)
        queue = self.open(address)
        self.addCleanup(queue.close)
        with queue.database.transaction() as transaction:
            self.assertEqual(transaction.value("SHOW synchronous_commit"), "on")

    def test_what_keeps_an_old_snapshot_is_named(self):
        address = self.database()
        queue = self.open(address)
        self.addCleanup(queue.close)
        with postgres.connect(address) as link, mock.patch.object(
                jobqueue, "SERVER_FACTS", jobqueue.SERVER_FACTS.replace("10 minutes", "0 s")):
            self.assertIsNone(queue.database.server_facts()["holder"])
            link.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            self.assertEqual(queue.database.server_facts()["holder"],
                             "process %d" % link.info.backend_pid)

    @unittest.skipUnless(shutil.which("pgbouncer"), "there is no PgBouncer")
    def test_a_pooler_that_shares_sessions_is_refused(self):
        address = self.database()
        for mode, lets_options_in, is_refused in (
                ("transaction", False, True), ("transaction", True, True), ("session", True, False)):
            with self.subTest(mode=mode, lets_options_in=lets_options_in), \
                    pooler(address, mode, lets_options_in) as pooled:
                if is_refused:
                    with self.assertRaisesRegex(jobqueue.SetupError, "pooler"):
                        self.open(pooled)
                else:
                    self.open(pooled).close()
                with postgres.connect(pooled) as link:      # another application's session
                    self.assertEqual(link.execute("SHOW enable_hashjoin").fetchone(), ("on",))

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
        sent = []

        def watch(name):
            real = getattr(jobqueue.ServerConnection, name)

            def send(link, *what):
                sent.append(what)
                return real(link, *what)
            return mock.patch.object(jobqueue.ServerConnection, name, send)

        with watch("ask"), watch("send"):
            action()
        return sent

    def test_a_task_is_added_in_three_messages(self):
        """The lock; all that is read under it; what is stored. The owner is known already."""
        queue = self.open_with_an_admin()
        sent = self.messages(lambda: queue.enqueue("add", {"a": 1, "b": 2}))
        self.assertEqual(len(sent), 3, sent)

    def test_many_rows_are_stored_and_changed_as_each_would_be(self):
        queue = self.open_with_an_admin()
        texts = ["", "NULL", "{}", 'a "quote"', "back\\slash", "\\", "a, b", "new\nline", "ü'", "nu\0l", None]
        numbers = [1, 0.5, None, 2 ** 53, -1, 1e300, 3, 0, 0.0, 7, 8]
        rows = [{"at": 1.5, "event": "odd", "message": text, "seconds": number, "function": None,
                 "worker_id": place % 2 == 0} for place, (text, number) in enumerate(zip(texts, numbers))]

        def stored(reader):
            return [tuple(row) for row in reader.all(
                "SELECT at, event, message, seconds, function, worker_id FROM activity "
                "WHERE event='odd' ORDER BY id")]

        def clean(transaction):
            transaction.run("DELETE FROM activity WHERE event='odd'")

        for some in (rows, rows[:1], rows[:1] * 3, rows * 30, []):
            with self.subTest(len(some)), queue.database.transaction() as transaction:
                clean(transaction)
                transaction.insert_all("activity", some)
                self.assertEqual(stored(transaction), [tuple(
                    jobqueue.storable(value) if isinstance(value, str) else value
                    for value in row.values()) for row in some])
        with queue.database.transaction() as transaction:
            clean(transaction)
            transaction.insert_all("activity", rows)
            ids = [row[0] for row in transaction.all("SELECT id FROM activity WHERE event='odd' ORDER BY id")]
            changed = transaction.many(
                "UPDATE activity SET function=?, attempt=?, at=at+? WHERE id=? AND at=?",
                [(text, 2, 1, at, 1.5) for text, at in zip(texts, ids)])
            self.assertEqual(changed, len(ids))
            self.assertEqual([row[0] for row in transaction.all(
                "SELECT function FROM activity WHERE attempt=2 AND at=2.5 ORDER BY id")],
                [text and jobqueue.storable(text) for text in texts])
            transaction.run_many_later("DELETE FROM activity WHERE id=? AND attempt=2",
                                       [(at,) for at in ids[2:]])
            self.assertEqual(len(stored(transaction)), 2)
            self.assertEqual(transaction.many("UPDATE activity SET at=0 WHERE id=?", []), 0)

    def test_rows_of_a_batch_are_found_by_their_ids_whatever_the_statistics_say(self):
        """Those of an empty queue: a look for what is pending would seem to find one row at most."""
        queue = self.open_with_an_admin()
        queue.enqueue_many("add", [{"a": 1, "b": 2}] * 300)
        with queue.database.transaction() as transaction:
            transaction.run("UPDATE task SET status=2")
        queue.database._writer.ask("ANALYZE task")
        queue.enqueue_many("add", [{"a": 1, "b": 2}] * 2000)
        for words in ("UPDATE task SET claim=? WHERE id=? AND status=0",
                      "UPDATE task SET claim=? WHERE id=? AND status=1 AND claim=?"):
            with self.subTest(words):
                plan = queue.database.all("EXPLAIN " + words, ("claim", 500, "no")[:words.count("?")])
                self.assertIn("task_pkey", str(plan))
                self.assertNotIn("task_claim", str(plan))

    def test_a_plan_for_a_small_table_is_right_for_a_large_one(self):
        queue = self.open_with_an_admin()
        queue.database._writer.ask("ANALYZE task; ANALYZE activity")        # a page each: reading it is cheap
        for words in ("SELECT * FROM task WHERE id=?", "SELECT * FROM activity WHERE task_id=? ORDER BY id",
                      "SELECT * FROM task WHERE status=0 AND queue='default' ORDER BY turn LIMIT ?"):
            self.assertNotIn("Seq Scan", str(queue.database.all("EXPLAIN " + words, (1,))))

    def test_a_batch_is_recorded_and_the_next_one_claimed_in_seven_messages(self):
        queue = self.open_with_an_admin()
        queue.enqueue_many("add", [{"a": 1, "b": 2}] * 20)
        claims, rows = queue.claims, []

        def work(wanted):
            ended = [(row["id"], row["claim"], jobqueue.Outcome("succeeded", "3")) for row in rows]
            with queue.database.transaction(durable=False) as transaction:
                now = queue.database.clock.now()
                claims.end_all(transaction, ended, now)
                rows[:] = claims.claim(transaction, None, now, wanted, "add")

        work(1)
        queue.claims._promotions.put_off(3600)
        work(3)
        sent = self.messages(lambda: work(3))
        self.assertEqual(len(rows), 3)
        self.assertEqual(len(sent), 7, sent)
        self.assertEqual(queue.tasks.get(3)["status"], jobqueue.SUCCEEDED)

    def test_an_idle_worker_claims_in_seven_messages(self):
        """The lock; four looks at what is due and what waits; the claim; its heartbeat and the COMMIT."""
        queue = self.open_with_an_admin()
        queue.enqueue("add", {"a": 1, "b": 2})
        with queue.database.transaction() as transaction:       # so it knows its queue
            queue.claims.claim(transaction, None, queue.database.clock.now())
        queue.enqueue("add", {"a": 1, "b": 2})
        queue.claims._promotions.put_off(0)

        def work():
            with queue.database.transaction(durable=False) as transaction:
                [row] = queue.claims.claim(transaction, 1, queue.database.clock.now())
                queue.workers.heartbeat(transaction, 1, "busy", 0)

        self.assertEqual(len(self.messages(work)), 7)

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

    def test_the_lock_is_waited_for_longer_than_one_statement_may_take(self):
        address, real, tries = self.database(), jobqueue.PostgresDatabase._begin, []
        with mock.patch.object(jobqueue, "STATEMENT_MS", 100):
            queue = self.open(address)
            queue.database._open("_writer")
        self.addCleanup(queue.close)

        def begin(database, *values):
            tries.append(values)
            return real(database, *values)

        def write():
            with queue.database.transaction() as transaction:
                jobqueue.remember(transaction, ".late", 1)

        with postgres.connect(address) as link, \
                mock.patch.object(jobqueue.PostgresDatabase, "_begin", begin):
            writer = threading.Thread(target=write)
            with link.transaction():
                link.execute("SELECT * FROM jobqueue FOR UPDATE")
                writer.start()
                while len(tries) < 3 and writer.is_alive():
                    time.sleep(0.01)
            writer.join()
        self.assertGreaterEqual(len(tries), 3)
        self.assertEqual(jobqueue.recall(queue.database, ".late"), 1)

    def test_a_reading_that_nobody_limits_is_busy_in_the_end(self):
        queue = self.open_with_an_admin()
        with mock.patch.object(jobqueue, "LOOK_SECONDS_MAX", 0.05), queue.database.deadline(0.2):
            self.assertIsNone(queue.database.read_within("SELECT pg_sleep(9)", (), 0.01)[0])
            with self.assertRaises(jobqueue.Busy):
                queue.database.read_within("SELECT pg_sleep(9)")

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

    def test_tables_of_the_version_before_are_brought_to_the_newest(self):
        queue = self.open_with_an_admin()
        with queue.database.transaction() as link:
            jobqueue.store_setting(link, "linger", 7)
            kept = dict(link.all("SELECT name, value FROM state"))
            link.run("INSERT INTO setting (name, value) SELECT '.' || name, value FROM state")
            link.run("INSERT INTO setting (name, value) VALUES ('.worker_test', '1')")
            link.run("DROP TABLE state")
            link.run("DROP TABLE saved")
            for table, column in (("user", "summary"), ("user", "summary_at"), ("task", "samples")):
                link.run("ALTER TABLE %s DROP COLUMN %s" % (table, column))
            link.run("UPDATE jobqueue SET version=7")
        with self.assertRaisesRegex(jobqueue.SetupError, "schema version 7"):
            queue.enqueue("add", {"a": 1, "b": 2})
        address = {"JOBQUEUE_DATABASE": queue.database._address}
        others = [jobqueue.JobQueue(self.folder, environment=address) for _ in range(2)]
        for other in others:
            self.addCleanup(other.close)
        self.assertEqual(dict(queue.database.all("SELECT name, value FROM state")), kept)
        self.assertEqual(queue.database.all("SELECT name FROM setting WHERE substr(name, 1, 1)='.'"), [])
        self.assertEqual(others[0].settings.get("linger"), 7)
        self.assertEqual(others[1].enqueue("add", {"a": 1, "b": 2}).status, "pending")

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
                leases = there.claims.leases
                [left] = [leases._seconds_left(one, now) for one in leases._running(there.database)]
                self.assertLess(abs(left - there.database.lease_seconds), 30)
                self.assertEqual(leases._late(there.database, now), {})
                with here.database.transaction() as transaction:
                    here.claims.end(transaction, row["id"], row["claim"],
                                    jobqueue.Outcome("succeeded", "3"), now)
                here.enqueue("add", {"a": 1, "b": 2})
            self.assertLess(abs(late.database.clock_offset - 3600), 60)

    def write_without_an_answer(self, database, name, is_sent):
        """Remember something; the connection breaks before the COMMIT, or before its answer."""
        real = jobqueue.ServerConnection.send

        def send(link, *statements):
            if not statements or statements[0][0] != "COMMIT":
                return real(link, *statements)
            if is_sent:
                real(link, *statements)
            link.close()
            patch.stop()
            raise jobqueue.driver()[0].OperationalError("gone")

        patch = mock.patch.object(jobqueue.ServerConnection, "send", send)
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
