"""A PostgreSQL server of our own, and databases on it for the tests.

    python3 -m tests.helpers.postgres start FOLDER      prints its address
    python3 -m tests.helpers.postgres stop FOLDER
    JOBQUEUE_TEST_DATABASE=ADDRESS python3 -m unittest ...      each test gets a database there

    Server              one in a folder, from the machine's own programs, by an ordinary user: start,
                        stop (smart, fast, immediate), freeze, address; ask(statement, database)
    ADDRESS             of the server that the tests may use, None on SQLite
    fresh_database()    (address, a function that removes it); of queues, unless `empty`
    Link                what somebody else sees and changes of a database, in SQLite's manner
    about_sqlite, needs_sqlite
                        leave a test or a class, or a module, out on PostgreSQL, and say why
"""
import contextlib
import functools
import glob
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

ADDRESS = os.environ.get("JOBQUEUE_TEST_DATABASE") or None
NAME = "jobs"                           # of the user to whom all of it belongs
NOBODY = "nobody"                       # PostgreSQL refuses to run as root
HASTY = {"fsync": "off", "full_page_writes": "off"}     # for tests that cut no power
# Sorting by a language's rules, as most servers do, shows who relies on the order of bytes.
SORTED = ["--locale-provider=icu", "--icu-locale=en-US"]
_numbers = itertools.count(1)


def about_sqlite(why):
    """Leave this out on PostgreSQL: it is about what only SQLite has."""
    return unittest.skipIf(ADDRESS, "about SQLite: " + why)


def needs_sqlite(why):
    """A module's setUpModule, which leaves all of it out on PostgreSQL."""
    def look():
        if ADDRESS:
            raise unittest.SkipTest("about SQLite: " + why)
    return look


def programs():
    """The folder of PostgreSQL's programs that is asked for, else of the newest ones on this machine;
    None if there are none."""
    if os.environ.get("JOBQUEUE_TEST_POSTGRES"):
        return os.environ["JOBQUEUE_TEST_POSTGRES"]

    def version(folder):
        return [int(digits) for digits in re.findall(r"\d+", folder)]

    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=version)
    path = found[-1] if found else shutil.which("initdb")
    return path and os.path.dirname(path)


def with_path(address, name):
    """The same server's address with another database."""
    return urlunsplit(urlsplit(address)._replace(path="/" + name))


def connect(address, **options):
    """A connection of psycopg, each statement by itself."""
    import psycopg
    return psycopg.connect(address, autocommit=True, **options)


def ordinary_user():
    """The words before a command that run it as an ordinary user, if we are root."""
    if os.getuid():
        return []
    group = str(pwd.getpwnam(NOBODY).pw_gid)
    return ["setpriv", "--reuid", NOBODY, "--regid", group, "--clear-groups", "--"]


class Server:
    """A PostgreSQL server in `folder`, on a unix socket there; with `port`, on `host` as well.

    `command` makes of a command the one that runs it elsewhere (Machine.command).
    """

    def __init__(self, folder, port=None, host="127.0.0.1", command=list, **settings):
        self.folder, self.data = Path(folder), Path(folder) / "pg"
        self.host, self.port, self._command = host, port, command
        self._settings = {
            **HASTY, "unix_socket_directories": str(folder), "port": str(port or 5432),
            "listen_addresses": host if port else "", "max_connections": "200",
            "log_min_messages": "fatal", **settings}
        self._programs = programs()
        self._user = pwd.getpwnam(NOBODY) if os.getuid() == 0 else None
        self._drop = ordinary_user()

    @property
    def address(self):
        """Of its database `postgres`, by the unix socket."""
        return "postgresql://%s@/postgres?host=%s&port=%s" % (NAME, self.folder, self._settings["port"])

    def program(self, name, *arguments):
        """Run one of PostgreSQL's programs; what it printed."""
        with tempfile.TemporaryFile() as said:      # a pipe would stay open in the server
            words = [*self._drop, os.path.join(self._programs, name), *map(str, arguments)]
            code = subprocess.call(self._command(words), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                   cwd=self.folder)
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
        if code:
            raise OSError("%s ended with %d: %s" % (name, code, text))
        return text

    def own(self, folder):
        """Make sure of a folder of its user's."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def make(self, *options):
        """Make it, in a folder that need not be there."""
        self.own(self.folder)
        common = ["-D", self.data, "-U", NAME, "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync"]
        sorting = SORTED if "icu" in self.program("initdb", "--help") else []
        self.program("initdb", *common, *sorting, *options)
        self.change(**self._settings)
        return self

    def start(self):
        """Start it, and wait until it answers."""
        self.program("pg_ctl", "start", "-D", self.data, "-l", self.folder / "log", "-w", "-t", "60")
        return self

    def stop(self, mode="fast", wait=True):
        """Stop it: `smart` waits for its clients, `immediate` is a crash."""
        self.program("pg_ctl", "stop", "-D", self.data, "-m", mode, *([] if wait else ["-W"]))

    def processes(self):
        """The process ids of all that it runs, the first one first."""
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path("/proc/%d/task/%d/children" % (first, first)).read_text()
        return [first, *map(int, children.split())]

    @contextlib.contextmanager
    def frozen(self):
        """In this block all of it stands still."""
        stopped = []
        try:
            for number in self.processes():         # the first one first: it starts no other then
                os.kill(number, signal.SIGSTOP)
                stopped.append(number)
            yield
        finally:
            for number in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGCONT)

    def change(self, **settings):
        """Add lines to its configuration, for the next start."""
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines("%s = '%s'\n" % pair for pair in settings.items())

    def let_in(self, line):
        """Let others in as this line of pg_hba.conf says, before all other lines."""
        path = self.data / "pg_hba.conf"
        path.write_text("%s\n%s" % (line, path.read_text()))

    def add_database(self, name="queue"):
        """Make an empty one; its address."""
        self.ask("CREATE DATABASE %s TEMPLATE template0" % name)
        return with_path(self.address, name)

    def replica(self, folder, port):
        """Another Server that follows this one, as it is made; nobody may be connected."""
        other = Server(folder, port, self.host, self._command)
        other.own(other.folder)
        self.stop()
        self.program("/bin/cp", "-a", self.data, other.data)    # not all builds bring pg_basebackup
        self.start()
        (other.data / "standby.signal").touch()
        other.change(primary_conninfo="host=%s port=%s user=%s application_name=replica"
                     % (self.folder, self._settings["port"], NAME), **other._settings)
        return other

    def ask(self, statement, database="postgres"):
        """The rows of a statement of the test's own."""
        with connect(with_path(self.address, database)) as link:
            done = link.execute(statement)
            return done.fetchall() if done.description else []

    def remove(self):
        """Stop it if it runs, and remove the folder."""
        with contextlib.suppress(OSError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


class Row(tuple):
    """A row whose columns have a place and a name, as sqlite3.Row."""

    names = ()

    def __getitem__(self, key):
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def keys(self):
        """The names."""
        return list(self.names)


class Rows(list):
    """What a statement found."""

    def fetchall(self):
        """All rows."""
        return self

    def fetchone(self):
        """The first row, or None."""
        return self[0] if self else None


def _rows(cursor):
    names = [column.name for column in cursor.description or ()]
    return type("Row", (Row,), {"names": names})


class Link:
    """Somebody else's connection: statements as SQLite takes them, with `?` for values."""

    def __init__(self, address):
        self._link = connect(address, row_factory=_rows)

    def execute(self, statement, values=()):
        """Its rows, as a list that can be fetched."""
        import jobqueue
        done = self._link.execute(jobqueue.to_postgres(statement), tuple(values))
        return Rows(done.fetchall() if done.description else [])

    def commit(self):
        """Nothing: each statement was committed."""

    def close(self):
        """Close it."""
        self._link.close()


@functools.lru_cache(maxsize=None)
def _link(address):
    """The connection by which this process makes and removes databases."""
    return connect(address)


@functools.lru_cache(maxsize=None)
def _template():
    """The name of a database of this process that every test's one is a copy of."""
    import atexit

    import jobqueue
    name = "jobqueue_test_%d" % os.getpid()
    _link(ADDRESS).execute('CREATE DATABASE "%s"' % name)
    atexit.register(remove_database, name)
    with tempfile.TemporaryDirectory() as folder:
        jobqueue.JobQueue(Path(folder) / "data",
                          environment={"JOBQUEUE_DATABASE": with_path(ADDRESS, name)}).close()
    return name


def remove_database(name):
    """Remove it, whoever is still connected."""
    _link(ADDRESS).execute('DROP DATABASE IF EXISTS "%s" WITH (FORCE)' % name)


def fresh_database(empty=False):
    """(its address, a function that removes it)"""
    name = "jobqueue_test_%d_%d" % (os.getpid(), next(_numbers))
    template, link = "template0" if empty else _template(), _link(ADDRESS)
    # Files are copied for half of what it costs to write all of them into the log.
    how = "STRATEGY file_copy" if link.info.server_version >= 150000 else ""
    link.execute('CREATE DATABASE "%s" TEMPLATE "%s" %s' % (name, template, how))
    return with_path(ADDRESS, name), functools.partial(remove_database, name)


def main(verb, folder):
    """Start a server in a folder, or stop the one there."""
    server = Server(folder)
    if verb == "start":
        print(server.make().start().address)
    else:
        server.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
