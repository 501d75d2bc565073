"""Web servers before the application, each with a configuration of its own in a folder of its own.

    DOORS          all of them; each is a class
    Door           door = ApacheCgi(TASKS); door.start(); door.address; door.site; door.reload(); door.close()
    account        the ordinary user that web servers and the site run as, if we are root

A door's site lies in the web server's document root, where a person with FTP puts it. Started by root, the
web server runs as an ordinary user to whom the site belongs; started by anybody else, all is theirs.
"""
import contextlib
import glob
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

from tests.helpers.processes import everybody, family
from tests.helpers.support import ROOT, Site, as_user, free_port, need, wait_until

APACHE_MODULES = Path("/usr/lib/apache2/modules")
PASSENGER_ROOT = Path("/usr/lib/ruby/vendor_ruby/phusion_passenger/locations.ini")
DEBIAN_PYTHON = "/usr/bin/python3"
STOP_SECONDS = 20


def account():
    """The name of the user to run as, or None if we are no root and must stay who we are."""
    return "www-data" if os.getuid() == 0 else None


def open_folders():
    """Let the site's user into the folders that tests make, whatever commands that ran here left set."""
    unittest.addModuleCleanup(os.umask, os.umask(0o022))


def bystander():
    """The name of a user who is neither root nor the site's, if we can become one."""
    return "nobody" if os.getuid() == 0 else None


def interpreter(below):
    """The Python of the tests, if it is older than `below` and the site's user may run it, else Debian's."""
    for path in (sys.executable, DEBIAN_PYTHON)[sys.version_info >= below:]:
        with contextlib.suppress(OSError):
            if subprocess.call([path, "-c", "import sqlite3, ssl"], cwd="/", **as_user(account())) == 0:
                return path
    need(False, "a Python that the user %s may run" % account())


def listens(port):
    """True once somebody answers there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class WebServer:
    """One process in the foreground that listens on a port, and whatever it starts."""

    def __init__(self, arguments, port, log, **options):
        self.port, self.log = port, log
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True, **options)
        try:
            wait_until(self._answers, what="an answer of " + arguments[0])
        except AssertionError:
            self.stop()
            raise

    def _answers(self):
        if self._process.poll() is not None:
            raise AssertionError("the web server has ended:\n%s" % self.said())
        return listens(self.port)

    def said(self):
        """What it said so far."""
        return Path(self.log).read_text("utf-8", "replace")

    @property
    def pid(self):
        """The first process's id."""
        return self._process.pid

    def signal(self, number):
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self):
        """End it and whatever it started, politely first."""
        left = set(family({self.pid}))
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS / 4
        while left & set(everybody()) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.02)
        for pid in left & set(everybody()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


FILL_IN = "import sys, jobqueue; print(jobqueue.fill_in(sys.stdin.read(), sys.executable, None))"


class Door:
    """See the module's docstring."""

    kind = ""                           # as jobqueue.door says
    prefix = "/jq/"                     # where the site begins
    authorization = True                # whether the header of that name arrives
    below = (4,)                        # the first Python that it cannot have
    settings = {}                       # what an admin has to set for it
    needs = ()                          # files without which there is no such door
    packages = ""                       # that have them, in Debian

    @classmethod
    def missing(cls):
        """The files without which there is no such door here."""
        return [path for path in cls.needs if not glob.glob(path)]

    @classmethod
    def need(cls):
        """Skip the test if a program is missing."""
        need(not cls.missing(), "%s (Debian: %s)" % (", ".join(cls.missing()), cls.packages))

    def __init__(self, tasks):
        self.site = Site(tasks, users=False, python=interpreter(self.below), folder="jq", user=account())
        self.room = Path(tempfile.mkdtemp(prefix="jobqueue-door-"))
        self.room.chmod(0o755)
        self.port = free_port()
        self.server = self.inner = None         # the web server; another one behind it

    @property
    def address(self):
        """The site's address; it ends in a slash."""
        return "http://127.0.0.1:%d%s" % (self.port, self.prefix)

    def start(self):
        """Write the configuration and start the web server."""
        raise NotImplementedError

    def reload(self):
        """A graceful restart of the web server, as an update of the host's does; returns when it is done."""
        raise NotImplementedError

    def family(self):
        """The processes of the web servers, and what they started: {pid: Process}."""
        return family(self.first_processes())

    def first_processes(self):
        """The process ids of the web servers that were started here."""
        return {server.pid for server in (self.server, self.inner, self.site.server) if server}

    def setup_code(self):
        """What the owner reads in a file of the data folder after a first look at the page."""
        return next(self.site.data.glob("setup-code-*.txt")).read_text("utf-8").strip()

    def close(self):
        """Stop the web server, end whatever came from the site, and remove both folders."""
        try:
            for server in filter(None, (self.server, self.inner)):
                server.stop()
        finally:
            self.site.close()
            shutil.rmtree(self.room, ignore_errors=True)

    def host_file(self, name, part=0):
        """A file of static/hosts as the host page fills it in; of those with numbered parts, that part."""
        text = self.site.python(FILL_IN, given=(ROOT / "static" / "hosts" / name).read_text("utf-8"))
        if part:
            text = re.split(r"(?m)^# [0-9]\.", text)[part].partition("\n")[2]
        return text.replace(":8000", ":%d" % urlsplit(self.site.address).port) if self.site.address else text

    def write(self, path, text, mode=0o644):
        """Write a file that belongs to the site's user."""
        path.write_text(text, "utf-8")
        path.chmod(mode)
        self.site.give(path)


APACHE = """
ServerRoot "{room}"
DefaultRuntimeDir "{room}"
PidFile "{room}/pid"
Mutex file:{room}
Listen 127.0.0.1:{port}
ServerName 127.0.0.1
{user}
ErrorLog "{log}"
{modules}
StartServers 1
ServerLimit 3
ThreadsPerChild 8
MaxRequestWorkers 24
MinSpareThreads 1
MaxSpareThreads 16
TypesConfig /etc/mime.types
DocumentRoot "{web}"
<Directory />
AllowOverride None
Require all denied
</Directory>
<Directory "{web}">
Options FollowSymLinks ExecCGI Indexes
AllowOverride {override}
{access}
</Directory>
Alias /folder "{home}"
<Location /folder>
Require all granted
</Location>
{more}
"""
PLAIN_MODULES = ("mpm_event authz_core authz_host access_compat dir autoindex mime alias rewrite env "
                 "setenvif")


class Apache(Door):
    """Apache, with the site in its document root; `override` is what .htaccess may do."""

    modules = ""
    packages = "apache2"
    needs = ("/usr/sbin/apache2",)
    override = "All"
    folder = "/folder/"                 # where the site's folder itself is served
    user = staticmethod(account)        # whom the web server's own processes belong to

    @property
    def folder_address(self):
        """Where the files of the site's folder would be."""
        return "http://127.0.0.1:%d%s" % (self.port, self.folder)

    def configuration(self):
        """What this door has beyond plain Apache."""
        return ""

    def start(self):
        if not (self.site.home / ".htaccess").exists():
            self.write(self.site.home / ".htaccess", (ROOT / ".htaccess").read_text("utf-8"))
        self._configure()
        self.server = WebServer(["/usr/sbin/apache2", "-f", str(self.room / "conf"), "-D", "FOREGROUND"],
                                self.port, self.room / "error.log", cwd="/", env={"PATH": os.defpath})
        wait_until(self._begun, what="the end of Apache's start")

    def _configure(self):
        user = self.user()
        loaded = ['LoadModule %s_module "%s/mod_%s.so"' % (name, APACHE_MODULES, name)
                  for name in (PLAIN_MODULES + " " + self.modules).split()]
        (self.room / "conf").write_text(APACHE.format(
            room=self.room, port=self.port, log=self.room / "error.log", modules="\n".join(loaded),
            user="User %s\nGroup #%d" % (user, pwd.getpwnam(user).pw_gid) if user else "",
            web=self.site.home.parent, home=self.site.home, override=self.override,
            access="Require all granted" if self.folder == "/jq/" else "",
            more=self.configuration()), "utf-8")

    def allow(self, override):
        """Let .htaccess do this much from now on."""
        self.override = override
        self._configure()
        self.reload()

    def reload(self):
        before = self._begun()
        self.server.signal(signal.SIGUSR1)
        wait_until(lambda: self._begun() > before, what="the end of the graceful restart")

    def _begun(self):
        return self.server.said().count("resuming normal operations")


class ApacheCgi(Apache):
    """The start file as CGI script, where the project's own .htaccess lies."""

    kind = "cgi"
    prefix = "/jq/jobqueue.cgi/"
    folder = "/jq/"
    authorization = False
    modules = "cgid"

    def configuration(self):
        handler = "" if self.override == "All" else "AddHandler cgi-script .cgi"    # else .htaccess has it
        return 'ScriptSock "%s/cgid"\n%s' % (self.room, handler)

    def start(self):
        self.write(self.site.home / "jobqueue.cgi", self.host_file("jobqueue.cgi"), 0o755)
        self.write(self.site.home / "index.html", self.host_file("index.html"))
        super().start()


class ApacheCgiAlias(ApacheCgi):
    """The start file as CGI script, as somebody sets it up who may configure Apache."""

    prefix = "/jq/"
    folder = "/folder/"
    authorization = True

    def configuration(self):
        return 'ScriptSock "%s/cgid"\n%s' % (self.room, self.host_file("apache.conf", 3))


class ApacheCgiScript(ApacheCgi):
    """jobqueue.py itself as CGI script."""

    prefix = "/jq/jobqueue.py/"

    def configuration(self):
        return super().configuration() + "\nAddHandler cgi-script .py"

    def start(self):
        script = self.site.home / "jobqueue.py"
        code = script.read_text("utf-8").partition("\n")[2]
        self.write(script, "#!%s\n%s" % (self.site.interpreter, code), 0o755)
        Apache.start(self)


class ApacheCgiRewritten(ApacheCgi):
    """The start file as CGI script, behind rewrite rules that make the address clean."""

    prefix = "/jq/"
    authorization = True
    modules = "cgid headers filter deflate"

    def start(self):
        self.write(self.site.home / ".htaccess", self.host_file("htaccess"))
        super().start()


class ModWsgiEmbedded(Apache):
    """mod_wsgi in Apache's own processes."""

    kind = "mod_wsgi embedded"
    modules = "wsgi"
    packages = "libapache2-mod-wsgi-py3"
    needs = Apache.needs + (str(APACHE_MODULES / "mod_wsgi.so"),)
    authorization = False

    def configuration(self):
        lines = self.host_file("apache.conf", 1).splitlines()
        return "\n".join(line.replace("process-group=jobqueue ", "") for line in lines
                         if not line.startswith(("WSGIDaemonProcess", "WSGIPassAuthorization")))


class ModWsgiDaemon(ModWsgiEmbedded):
    """mod_wsgi in processes of the account's own; Apache itself is somebody else."""

    kind = "mod_wsgi daemon"
    user = staticmethod(bystander)
    authorization = True

    def configuration(self):
        return 'WSGISocketPrefix "%s/wsgi"\n%s' % (self.room, self.host_file("apache.conf", 1))


class Passenger(Apache):
    """Passenger, as control panels set it up; Apache itself is somebody else."""

    kind = "passenger"
    user = staticmethod(bystander)
    below = (3, 12)                     # its loader needs the module imp
    modules = "passenger"
    packages = "libapache2-mod-passenger"
    needs = Apache.needs + (str(APACHE_MODULES / "mod_passenger.so"), str(PASSENGER_ROOT))

    def configuration(self):
        return PASSENGER.format(root=PASSENGER_ROOT, room=self.room, home=self.site.home,
                                python=self.site.interpreter)

    def start(self):
        (self.room / "instances").mkdir()
        self.write(self.site.home / "passenger_wsgi.py", self.host_file("passenger_wsgi.py"))
        super().start()


PASSENGER = """
PassengerRoot {root}
PassengerInstanceRegistryDir {room}/instances
PassengerDisableAnonymousTelemetry on
PassengerDisableSecurityUpdateCheck on
PassengerMaxPoolSize 2
PassengerPython {python}
Alias /jq {room}/public
<Location /jq>
PassengerBaseURI /jq
PassengerAppRoot "{home}"
PassengerAppType wsgi
PassengerStartupFile passenger_wsgi.py
Require all granted
</Location>
"""


class Nginx(Door):
    """nginx before a process of the account's own."""

    packages = "nginx-light"
    needs = ("/usr/sbin/nginx",)

    def location(self):
        """The lines that hand requests on."""
        raise NotImplementedError

    def start(self):
        (self.room / "conf").write_text(NGINX.format(
            user="user %s;" % account() if account() else "", room=self.room, port=self.port,
            location=self.location()), "utf-8")
        self.server = WebServer(["/usr/sbin/nginx", "-c", str(self.room / "conf")], self.port,
                                self.room / "said")

    def reload(self):
        before = self._generation()
        self.server.signal(signal.SIGHUP)
        wait_until(lambda: self._generation() and not self._generation() & before,
                   what="new processes of nginx")

    def _generation(self):
        return set(family({self.server.pid})) - {self.server.pid}


NGINX = """
daemon off;
{user}
pid {room}/pid;
error_log stderr;
worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {room}/body;
    proxy_temp_path {room}/proxy;
    uwsgi_temp_path {room}/uwsgi;
    fastcgi_temp_path {room}/fastcgi;
    scgi_temp_path {room}/scgi;
    server {{
        listen 127.0.0.1:{port};
{location}
    }}
}}
"""


class Uwsgi(Nginx):
    """uWSGI behind nginx."""

    kind = "uwsgi"
    packages = "nginx-light, uwsgi, uwsgi-plugin-python3"
    needs = Nginx.needs + ("/usr/bin/uwsgi", "/usr/lib/uwsgi/plugins/python3*_plugin.so")

    def location(self):
        text = self.host_file("nginx.conf", 2).replace("127.0.0.1:3031", "127.0.0.1:%d" % self.inner.port)
        return text.replace("include ", "include /etc/nginx/")

    def start(self):
        port = free_port()
        self.inner = WebServer(
            ["/usr/bin/uwsgi", "--plugin", "python3", "--socket", "127.0.0.1:%d" % port, "--master",
             "--processes", "2", "--die-on-term", "--manage-script-name",
             "--mount", "/jq=%s/static/hosts/wsgi.py" % self.site.home],
            port, self.room / "uwsgi.log", cwd="/", env=self.site.environment, **as_user(account()))
        super().start()

    def reload(self):
        before = self._begun()
        self.inner.signal(signal.SIGHUP)
        wait_until(lambda: self._begun() > before, what="uWSGI's new processes")
        super().reload()

    def _begun(self):
        return self.inner.said().count("spawned uWSGI worker 2 ")


class NginxServe(Nginx):
    """nginx before `jobqueue.py serve`."""

    kind = "server"
    settings = {"base_path": "/jq/"}

    def location(self):
        return self.host_file("nginx.conf", 1)

    def start(self):
        self.site.start_server("--port", free_port())
        super().start()

    def reload(self):
        self.site.stop_server()
        self.site.start_server("--port", urlsplit(self.site.address).port)
        super().reload()


class ApacheServe(Apache):
    """Apache before `jobqueue.py serve`."""

    kind = "server"
    modules = "proxy proxy_http headers"
    settings = {"base_path": "/jq/"}

    def configuration(self):
        return self.host_file("apache.conf", 2)

    def start(self):
        self.site.start_server("--port", free_port())
        super().start()


DOORS = (ApacheCgi, ApacheCgiAlias, ApacheCgiScript, ApacheCgiRewritten, ModWsgiEmbedded, ModWsgiDaemon,
         Passenger, Uwsgi, NginxServe, ApacheServe)
