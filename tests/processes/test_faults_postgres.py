"""PostgreSQL that is stopped, stands still, lets nobody in, is full, out of reach, or another one.

People are told that the queue is busy meanwhile and nothing else, and everything goes on by itself
afterwards: what was acknowledged is there, and nothing runs twice. (What was not acknowledged may
be there as well: who loses the answer to a commit cannot know.)
"""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobqueue import Busy, JobQueue, recall, remember
from tests.helpers import machines, postgres
from tests.helpers.faults import MANY, SiteCase, WatchedSite, mount, plant
from tests.helpers.processes import look_at
from tests.helpers.support import free_port, need, need_part, wait_until
from tests.helpers.working import TASKS

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='queue'"
QUICK = "\nTICK_SECONDS, RENEW_SECONDS = 0.3, 1.0\n"
SHORT_LEASE = "\nLEASE_SECONDS, SELF_FENCE_SECONDS = 5.0, 4.0\n"
SECONDS = 60 if MANY else 3
# Holds the lock around every write, and stands still.
HOLDER = """
import os, signal
from jobqueue import JobQueue, remember
with JobQueue().database.transaction() as transaction:
    remember(transaction, ".held", 1)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


# Waits for an answer that nobody takes, which is more than the system keeps for it.
TAKER = HOLDER.replace("    print", """\
    transaction._link.pgconn.send_query(b"SELECT repeat('x', 1000000) FROM generate_series(1, 100)")
    print""")


class People:
    """Those who add tasks all the time: `ids` of what was acknowledged, `statuses` of all answers."""

    def __init__(self, case, visitor):
        self.ids, self.statuses = [], set()
        self._case, self._visitor, self._over = case, visitor, threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self._done = [self._pool.submit(self._add) for _ in range(2)]

    def _add(self):
        with contextlib.closing(self._visitor.twin()) as visitor:
            while not self._over.wait(0.1):
                reply = self._case.post(visitor)
                self.statuses.add(reply and reply.status)
                if reply and reply.status == 201:
                    self.ids.append(reply.value["id"])

    def are_heard(self):
        """Wait until they are told of further tasks."""
        before = len(self.ids)
        wait_until(lambda: len(self.ids) > before + 3, 120, "adds that are acknowledged")

    def are_told_to_wait(self):
        """Wait until they are told that the queue is busy."""
        wait_until(lambda: 503 in self.statuses, 120, "an answer that the queue is busy")

    def stop(self):
        """They go home; what went wrong with one of them is raised."""
        self._over.set()
        for done in self._done:
            done.result()
        self._pool.shutdown()


class PostgresCase(SiteCase):
    """A server and a site of its own for each test."""

    settings = {"linger": 300, "NbMaxWorker": 2, "nice": 0}
    SERVER = {}
    REFUSALS = {503}

    def setUp(self):
        need_part("postgres")
        need(postgres.programs(), "PostgreSQL's programs")
        try:
            from psycopg import OperationalError
        except ImportError:
            need(False, "psycopg")
        self.refusal = OperationalError
        self.server = self.make_server(self.new_folder(), **self.SERVER)
        self.use_database(self.server.add_database())

    def new_folder(self):
        """A folder for a server."""
        folder = Path(tempfile.mkdtemp(prefix="jobqueue-postgres-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        return folder / "server"

    def make_server(self, folder, *values, **settings):
        """A running Server."""
        server = postgres.Server(folder, *values, **settings)
        self.addCleanup(server.remove)
        return server.make().start()

    def use_database(self, address):
        """Have a site there."""
        self.use(WatchedSite(TASKS, database=address, **self.settings))
        plant(self.site, QUICK)

    @contextlib.contextmanager
    def work(self):
        """In this block people add tasks and workers run them; afterwards all is as it should be."""
        self.site.start_server()
        visitor = self.browser()
        held = self.post(visitor, until=self.hold()).value["id"]
        self.running(held)
        people = People(self, visitor)
        try:
            people.are_heard()
            yield people
            people.are_heard()
        finally:
            people.stop()
        self.release()
        ids = [held, *people.ids]
        self.wait_for_all(ids)
        self.check_records(ids)
        self.assertLessEqual(people.statuses, {201, *self.REFUSALS})
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE crashes>0"), 0)
        self.check_quiet()


class TestServer(PostgresCase):
    def test_it_crashes_and_is_started_again(self):
        self.stop_and_start("immediate")

    def test_it_is_stopped_and_started_again(self):
        self.stop_and_start("fast")

    def stop_and_start(self, mode):
        with self.work() as people:
            self.server.stop(mode)
            people.are_told_to_wait()
            time.sleep(SECONDS)
            self.server.start()

    def test_it_is_asked_to_stop_once_all_have_left(self):
        with self.work() as people:
            self.server.stop("smart", wait=False)
            time.sleep(SECONDS)
            self.server.stop("fast")
            people.are_told_to_wait()
            self.server.start()

    def test_it_stands_still(self):
        with self.work() as people, self.server.frozen():
            people.are_told_to_wait()
            time.sleep(SECONDS)

    def test_every_connection_is_cut_again_and_again(self):
        with self.work() as people:
            for _ in range(20 if MANY else 5):
                self.server.ask(CUT)
                time.sleep(1 if MANY else 0.2)
            people.are_heard()

    def test_nobody_may_connect_any_more(self):
        """Other programs have taken all connections."""
        self.server.stop()
        self.server.change(max_connections="12", superuser_reserved_connections="0")
        self.server.start()
        links = []
        self.addCleanup(lambda: [link.close() for link in links])
        with self.work() as people:
            while 503 not in people.statuses:
                with contextlib.suppress(OSError, self.refusal):
                    links.append(postgres.connect(self.server.address))
                    links[0].execute(CUT)
            for link in links:
                link.close()


class TestFence(PostgresCase):
    def test_a_worker_that_can_ask_nobody_ends_what_it_runs_before_others_may_begin_it(self):
        plant(self.site, SHORT_LEASE)
        self.site.start_server()
        held = self.post(self.browser(), until=self.hold()).value["id"]
        runner = self.running(held)
        with self.server.frozen():
            wait_until(lambda: not look_at(runner), 120, "the end of a run that nobody can renew")
            self.assertEqual(self.count(held), 1)
        self.release()
        self.wait_for_all([held])
        self.assertEqual(self.count(held), 2)
        self.assertEqual(self.site.value("SELECT status FROM task WHERE id=%d" % held), 2)


class TestPassword(PostgresCase):
    SERVER = {"password_encryption": "scram-sha-256"}      # PostgreSQL 13 would keep it otherwise

    def setUp(self):
        super().setUp()
        self.server.ask("CREATE USER website PASSWORD 'first' SUPERUSER")
        self.server.let_in("local all website scram-sha-256")
        self.server.ask("SELECT pg_reload_conf()")
        self.use_database(self.server.add_database("other").replace("jobs@", "website:first@"))

    def change_to(self, password):
        self.server.ask("ALTER USER website PASSWORD '%s'" % password)
        self.server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='website'")

    def test_it_is_another_for_a_while(self):
        with self.work() as people:
            self.change_to("second")
            people.are_told_to_wait()
            self.change_to("first")
        self.assertNotIn("first", self.site.said())


class TestHolder(PostgresCase):
    def test_whoever_holds_the_lock_stands_still(self):
        """The others go on once the server ends its transaction, of which nothing is left."""
        with self.work() as people:
            holder = self.site._start(["-c", HOLDER], stdout=subprocess.PIPE)
            self.assertEqual(holder.stdout.readline(), b"held\n")
            people.are_heard()
            holder.send_signal(signal.SIGCONT)
            self.assertNotEqual(holder.wait(60), 0)
            said = self.site.home.parent / "said"
            said.write_text(said.read_text().replace("Traceback", "expected"))
        self.assertIsNone(self.site.value("SELECT value FROM state WHERE name='.held'"))


class TestOrder(PostgresCase):
    def test_the_owner_has_chosen_another_isolation(self):
        """What was waited for is seen, whatever the database's default is."""
        for level in ("repeatable read", "serializable"):
            with self.subTest(level):
                self.server.ask("ALTER DATABASE queue SET default_transaction_isolation='%s'" % level)
                text = ("from jobqueue import JobQueue\nqueue = JobQueue(patience=60)\n"
                        "for _ in range(30):\n"
                        "    with queue.database.transaction() as link:\n"
                        "        n = int(link.value(\"SELECT value FROM state WHERE name='.n'\"))\n"
                        "        link.run(\"UPDATE state SET value=? WHERE name='.n'\", (str(n + 1),))\n")
                self.site.rows("DELETE FROM state WHERE name='.n'")
                self.site.rows("INSERT INTO state (name, value) VALUES ('.n', '0')")
                writers = [self.site._start(["-c", text]) for _ in range(4)]
                self.assertEqual([writer.wait(120) for writer in writers], [0] * 4)
                self.assertEqual(self.site.value("SELECT value FROM state WHERE name='.n'"), "120")


class TestLost(PostgresCase):
    """A transaction of which the server had written nothing yet."""

    SERVER = {"wal_writer_delay": "10s"}

    def test_one_that_a_crash_undid_is_not_taken_for_the_one_that_gets_its_number(self):
        address = {"JOBQUEUE_DATABASE": self.server.address.replace("/postgres", "/queue")}
        one, two = (JobQueue(self.new_folder(), environment=address, patience=60) for _ in range(2))
        for queue in (one, two):
            self.addCleanup(queue.close)
        with self.assertRaises(Busy), one.database.transaction() as transaction:
            remember(transaction, ".lost", 1)
            self.server.stop("immediate")
            self.server.start()
            for number in range(3):
                with two.database.transaction() as other:
                    remember(other, ".other", number)
        self.assertIsNone(recall(one.database, ".lost"))
        with one.database.transaction() as transaction:
            remember(transaction, ".found", 1)
        self.assertEqual(recall(two.database, ".found"), 1)


class TestDisk(PostgresCase):
    REFUSALS = {503, 507}

    def new_folder(self):
        disk = mount(self, super().new_folder().parent / "disk", "-t", "tmpfs", "-o", "size=100m", "x")
        return disk / "server"

    def setUp(self):
        super().setUp()
        self.ballast = self.server.folder.parent / "ballast"

    def test_it_is_full_for_a_while(self):
        """Whether the server lives on or must be started again is PostgreSQL's business."""
        with self.work() as people:
            with contextlib.suppress(OSError), open(self.ballast, "ab", buffering=0) as file:
                while True:
                    file.write(b"x" * 8192)
            wait_until(lambda: people.statuses - {201}, 120, "an add that is refused")
            time.sleep(SECONDS)
            self.ballast.unlink()
            with contextlib.suppress(OSError):
                self.server.start()
            people.are_heard()


class NetworkCase(PostgresCase):
    """There is another machine."""

    def setUp(self):
        need_part("postgres")
        words = machines.missing()
        need(not words, words)
        self.network = machines.Network(1)
        self.addCleanup(self.network.close)
        [self.machine] = self.network.machines
        super().setUp()


class TestNetwork(NetworkCase):
    """The server is on a machine of its own."""

    def make_server(self, folder, *values, **settings):
        server = postgres.Server(folder, 5432, self.machine.address, self.machine.command, **settings)
        self.addCleanup(server.remove)
        server.make().let_in("host all all %s/24 trust" % self.network.address)
        return server.start()

    def use_database(self, address):
        super().use_database("postgresql://jobs@%s:5432/queue" % self.machine.address)

    def test_packets_vanish_for_a_while(self):
        self.cut("silent")

    def test_the_cable_is_out_for_a_while(self):
        self.cut("down")

    def cut(self, how):
        with self.work() as people:
            self.machine.cut(how)
            people.are_told_to_wait()
            time.sleep(SECONDS)
            self.machine.mend()


class TestVanished(NetworkCase):
    """A machine is off the network while its client has the lock, and the server is not told."""

    def make_server(self, folder, *values, **settings):
        server = super().make_server(folder, 5432, self.network.address, **settings)
        server.let_in("host all all %s/24 trust" % self.network.address)
        server.ask("SELECT pg_reload_conf()")
        return server

    def test_who_took_the_lock_there_and_then_no_answer_loses_it(self):
        command = self.machine.command([self.site.interpreter, "-c", TAKER], self.site.home)
        far = {"JOBQUEUE_DATABASE": "postgresql://jobs@%s/queue" % self.network.address}
        with self.work() as people:
            holder = subprocess.Popen(command, stdout=subprocess.PIPE, env={**self.site.environment, **far})
            self.addCleanup(lambda: (holder.kill(), holder.wait(), holder.stdout.close()))
            self.assertEqual(holder.stdout.readline(), b"held\n")
            self.machine.cut("silent")
            people.are_heard()
        self.assertIsNone(self.site.value("SELECT value FROM state WHERE name='.held'"))


class TestFailover(PostgresCase):
    """Two servers, of which the second follows the first and is waited for."""

    def use_database(self, address):
        self.second = self.server.replica(self.new_folder(), free_port())
        self.addCleanup(self.second.remove)
        self.second.start()
        self.server.ask("ALTER SYSTEM SET synchronous_standby_names='*'")
        self.server.ask("SELECT pg_reload_conf()")
        super().use_database("postgresql://jobs@127.0.0.1:%s,127.0.0.1:%s/queue"
                             "?target_session_attrs=read-write" % (self.server.port, self.second.port))

    def make_server(self, folder, *values, **settings):
        return super().make_server(folder, free_port(), **settings)

    def test_the_first_one_is_gone_and_the_second_one_takes_over(self):
        with self.work() as people:
            self.server.stop("immediate")
            people.are_told_to_wait()
            self.second.program("pg_ctl", "promote", "-D", self.second.data)


