"""What fills a place in the path of an http_request stays there, behind web servers that decode paths."""
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import jobqueue
import worker
from tests.helpers import doors
from tests.helpers.server import Listener, run_request
from tests.helpers.support import free_port, need_part

SLASHES = ("/", "\\", "%2f", "%2F", "%5c", "%252f", "%255C", "%25252f", "%25%32%66", "%%32%66")
DOTS = ("..", "%2e%2e", ".%2e", "%2E.", "%252e%252e", "%25252e.", "%%32e%2%65")
STEPS = tuple(dots + slash for dots in DOTS for slash in SLASHES)
CLIMBING = STEPS + tuple(step + "admin/1" for step in STEPS) + (
    "..", ".", "%2e", "./x", "x/..", "x/../../admin", "x\\..\\..\\admin", "..;/admin", "..;x", "..?x", "..#",
    "/../admin", "..%3b/admin", "..%00/admin", ".%09./admin", "..\n/admin", "%" + "25" * 30 + "2e./admin")
ORDINARY = ("2026-01-31", "a..b", "..a", "a..", "...", "x.y", "Åse Ørsted", "日本", "50%", "100%25", "a;b",
            "1+1=2", "?", "what? no", "C:", "a b", ".htaccess", "%zz", "~x", "é%c3%a9")
SEPARATED = ("1/2", "a\\b", "2026/01/31", "a%2fb")       # which a web server may refuse itself


class Case(unittest.TestCase):
    """A server behind; `base` is its address as the tasks know it."""

    @classmethod
    def setUpClass(cls):
        cls.listener = Listener()
        cls.addClassCleanup(cls.listener.close)
        cls.base = "http://127.0.0.1:%d" % cls.listener.port

    def setUp(self):
        self.listener.asked.clear()

    def paths(self):
        """What the server was asked for."""
        return [path for path, _, _ in self.listener.asked]


class Refused(Case):

    def test_what_climbs_is_not_sent_and_the_task_says_which_value_it_was(self):
        for value in CLIMBING:
            with self.subTest(value):
                error = run_request(self.base + "/api/public/{x}/view", x=value)
                self.assertIsInstance(error, jobqueue.Fail)
                self.assertRegex(str(error), "^x must not hold")
        self.assertEqual(self.paths(), [])

    def test_values_and_what_was_written_beside_them_are_judged_together(self):
        for path, values in (("/a/{x}{y}/b", (".", ".")), ("/a/.{x}/b", (".", "")),
                             ("/a/{x}{y}", ("..%", "2f")), ("/a/b{x}", ("/../c", "")),
                             ("/{x}2e/b", (".%", ""))):
            with self.subTest(path=path, values=values):
                error = run_request(self.base + path, **dict(zip("xy", values)))
                self.assertIsInstance(error, jobqueue.Fail)
        self.assertEqual(self.paths(), [])

    def test_ordinary_values_are_sent_as_they_are(self):
        from urllib.parse import quote
        for value in ORDINARY + SEPARATED:
            self.assertIsNone(run_request(self.base + "/api/public/{x}/view", x=value), value)
        self.assertEqual(self.paths(), ["/api/public/%s/view" % quote(value, safe="")
                                        for value in ORDINARY + SEPARATED])

    def test_dots_that_the_owner_wrote_and_those_of_a_query_are_left_alone(self):
        self.assertIsNone(run_request(self.base + "/a/../%2e%2e/{x}?back=../{y}", x="1", y="../.."))
        self.assertIsNone(run_request(self.base + "/a?x={x}", x="../.."))
        self.assertIsNone(run_request(self.base + "/a", x=".."))
        self.assertEqual(len(self.paths()), 3)

    def test_a_value_that_is_encoded_without_end_is_soon_refused(self):
        self.assertIsInstance(run_request(self.base + "/a/{x}", x="%" + "25" * 60_000), jobqueue.Fail)


PROXIED = """
location /api/public/ { proxy_pass %(base)s/api/public/; }
location /api/admin/ { proxy_pass %(base)s/api/admin/; }
location /plain/ { proxy_pass %(base)s; }
location /files/ { alias %(room)s/files/; }
"""
PROXIED_BY_APACHE = """
Listen 127.0.0.1:%(port)d
ServerRoot "%(room)s"
DefaultRuntimeDir "%(room)s"
PidFile "%(room)s/pid"
Mutex file:%(room)s
ServerName 127.0.0.1
ErrorLog "%(room)s/error.log"
TypesConfig /etc/mime.types
%(modules)s
%(user)s
AllowEncodedSlashes On
ProxyPass /api/public/ %(base)s/api/public/
ProxyPass /api/admin/ %(base)s/api/admin/
ProxyPass /plain/ %(base)s/plain/ nocanon
Alias /files/ "%(room)s/files/"
<Directory "%(room)s/files">
Require all granted
</Directory>
"""


class Behind:
    """A real web server in front, which decodes paths and puts them in order."""

    @classmethod
    def setUpClass(cls):
        need_part("doors")
        cls.door.need()
        super().setUpClass()
        cls.room = Path(tempfile.mkdtemp(prefix="jobqueue-climbing-"))
        cls.addClassCleanup(shutil.rmtree, cls.room, True)
        cls.room.chmod(0o755)
        for name in ("public", "admin"):
            (cls.room / "files" / name).mkdir(parents=True)
            (cls.room / "files" / name / "1").write_text(name)
        cls.port = free_port()
        cls.server = cls.start()
        cls.addClassCleanup(cls.server.stop)
        cls.base = "http://127.0.0.1:%d" % cls.port

    def test_nothing_is_asked_for_outside_of_the_place(self):
        for value in CLIMBING:
            for path in ("/api/public/{x}/view", "/plain/public/{x}/view"):
                self.assertIsInstance(run_request(self.base + path, x=value), jobqueue.Fail, value)
        self.assertEqual(self.paths(), [])

    def test_no_other_file_is_served(self):
        for value in STEPS:
            error = run_request(self.base + "/files/public/{x}/1", x=value + "admin")
            self.assertIsInstance(error, jobqueue.Fail)

    def test_ordinary_values_arrive_below_the_place(self):
        for value in ORDINARY:
            self.assertIsNone(run_request(self.base + "/api/public/{x}/view", x=value), value)
        self.assertEqual(len(self.paths()), len(ORDINARY))
        for value in SEPARATED:
            run_request(self.base + "/api/public/{x}/view", x=value)
        for path in self.paths():
            self.assertRegex(path, "^/api/public/.+/view$")

    def test_the_servers_do_decode(self):
        """Else nothing here would be tried: what is sent past our check climbs."""
        with mock.patch.object(worker, "refuse_climbing"):
            for value in CLIMBING:
                run_request(self.base + "/api/public/{x}/view", x=value)
        self.assertTrue([path for path in self.paths() if not path.startswith("/api/public/")])


class BehindNginx(Behind, Case):
    door = doors.Nginx

    @classmethod
    def start(cls):
        (cls.room / "conf").write_text(doors.NGINX.format(
            user="user %s;" % doors.account() if doors.account() else "", room=cls.room, port=cls.port,
            location=PROXIED % {"base": cls.base, "room": cls.room}))
        return doors.WebServer(["/usr/sbin/nginx", "-c", str(cls.room / "conf")], cls.port, cls.room / "said")


class BehindApache(Behind, Case):
    door = doors.Apache

    @classmethod
    def start(cls):
        modules = ['LoadModule %s_module "%s/mod_%s.so"' % (name, doors.APACHE_MODULES, name)
                   for name in (doors.PLAIN_MODULES + " proxy proxy_http").split()]
        (cls.room / "conf").write_text(PROXIED_BY_APACHE % {
            "base": cls.base, "room": cls.room, "port": cls.port, "modules": "\n".join(modules),
            "user": "User %s" % doors.account() if doors.account() else ""})
        return doors.WebServer(["/usr/sbin/apache2", "-f", str(cls.room / "conf"), "-D", "FOREGROUND"],
                               cls.port, cls.room / "error.log", cwd="/")


if __name__ == "__main__":
    unittest.main()
