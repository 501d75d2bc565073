"""Every door but our own server: CGI, the start files of static/hosts, where the browser finds the site."""

import ast
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

import jobqueue
from tests.helpers.support import ROOT, Site

HOSTS = ROOT / "static" / "hosts"
START_FILES = ("jobqueue.cgi", "passenger_wsgi.py", "wsgi.py")
CGI = {"GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/jq/jobqueue.cgi",
       "PATH_INFO": "/", "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "example.org", "PATH": os.defpath}


def old_pythons():
    """Interpreters older than we need."""
    found = [shutil.which(name) for name in ("python2", "python2.7", "python3.6", "python3.7", "python3.8")]
    found += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python"))
    return [str(path) for path in found if path and subprocess.run(
        [str(path), "-c", "import sys; sys.exit(sys.version_info >= (3, 9))"], stderr=subprocess.DEVNULL
    ).returncode == 0]


class Base(unittest.TestCase):
    """find_base: cookies and redirects depend on it, and anybody can choose the address."""

    def found(self, target, inside="/", script="/jq/jobqueue.cgi", **more):
        return jobqueue.find_base(
            {"REQUEST_URI": target, "PATH_INFO": inside, "SCRIPT_NAME": script, **more})

    def test_it_is_what_the_browser_asked_for_without_what_lies_inside(self):
        for target, inside, base in (
            ("/jq/", "/", "/jq/"),
            ("/jq/api/tasks?limit=5", "/api/tasks", "/jq/"),
            ("/jq/api/tasks?next=/a", "/api/tasks", "/jq/"),
            ("/jq/jobqueue.cgi/api/tasks", "/api/tasks", "/jq/jobqueue.cgi/"),
            ("/jq/jobqueue.cgi", "", "/jq/jobqueue.cgi/"),
            ("/jq/", "", "/jq/"),       # a DirectoryIndex
            ("/api/tasks", "/api/tasks", "/"),
            ("/my%20jobs/api/users/a%40b", "/api/users/a@b", "/my%20jobs/"),
            ("/%C3%A6/api/tasks", "/api/tasks", "/%C3%A6/"),
            ("/~me/a+b@c/api/tasks", "/api/tasks", "/~me/a+b@c/"),      # a cookie's path must be the same
            ("/jq/api/users/zo%C3%AB", "/api/users/zo%C3%AB", "/jq/"),      # as Passenger has it
        ):
            with self.subTest(target):
                self.assertEqual(self.found(target, inside), base)

    def test_without_a_usable_address_it_is_the_start_file(self):
        for target in ("", "*", "/other/", "/jq/%2e%2e/x/", "/a/./", "http://evil.example.org", "jq/", "\0"):
            with self.subTest(target):
                self.assertEqual(self.found(target, "/api/tasks"), "/jq/jobqueue.cgi/")
        self.assertEqual(jobqueue.find_base({}), "/")
        self.assertEqual(jobqueue.find_base({"SCRIPT_NAME": "/jq"}), "/jq/")
        self.assertEqual(jobqueue.find_base({"SCRIPT_NAME": "/jq/", "PATH_INFO": "/x"}), "/jq/")

    def test_what_lies_inside_is_decoded_exactly_once(self):
        for sent, inside, path in (("/jq/a%2541", "/a%41", "/a%41"), ("/jq/a%2541", "/a%2541", "/a%41"),
                                   ("/jq/50%25", "/50%", "/50%"), ("", "/a%41", "/a%41")):
            self.assertEqual(jobqueue.inner_path({"REQUEST_URI": sent, "PATH_INFO": inside}), path)

    def test_it_never_leads_to_another_site_and_never_ends_a_header(self):
        hosts = ("http://evil.example.org", "//evil.example.org", "///evil.example.org",
                 "/%2F/evil.example.org", "/\\evil.example.org", "/%5Cevil.example.org",
                 "https:evil.example.org", "/%0d%0aSet-Cookie:%20a=b", "/;%20Domain=example.org",
                 "/%3B%20Domain=example.org", "/\x85", "//")
        for host in hosts:
            for inside in ("", "/", "/x", host):
                for target in (host, host + "/", host + "/x", host + inside):
                    base = self.found(target, inside)
                    self.assertRegex(base, r"\A/(?:[A-Za-z0-9._~%:@!$&'()*+,=-]+/)*\Z", (target, inside))
                    self.assertNotRegex(base, "[;\\\\\r\n]|/[.]{1,2}/")

    def test_a_proxys_absolute_address_counts_without_its_host(self):
        self.assertEqual(self.found("http://example.org:80/jq/api/tasks", "/api/tasks"), "/jq/")

    def test_doubled_slashes_are_one(self):
        self.assertEqual(self.found("//jq///api//tasks", "/api/tasks"), "/jq/")
        self.assertEqual(self.found("//jq///api//tasks", "//api/tasks"), "/jq/")
        self.assertEqual(self.found("", "/", "//jq/jobqueue.cgi"), "/jq/jobqueue.cgi/")

    def test_the_setting_wins(self):
        for setting in ("/jobs", "jobs", "/jobs/", "//jobs//"):
            self.assertEqual(jobqueue.find_base({"REQUEST_URI": "/x/", "PATH_INFO": "/"}, setting), "/jobs/")


class Doors(unittest.TestCase):
    """They are told apart by what each of them adds to a request."""

    @staticmethod
    def door(environ):
        settings = SimpleNamespace(get=lambda name: jobqueue.SETTINGS[name].default)
        return jobqueue.Request({"REQUEST_METHOD": "GET", **environ}, settings).door

    def test_each_door_is_told(self):
        for environ, door in (
            ({"jobqueue.door": "server"}, "server"),
            ({"jobqueue.door": "cgi", "wsgi.run_once": True}, "cgi"),
            ({"mod_wsgi.version": (4, 9), "mod_wsgi.process_group": ""}, "mod_wsgi embedded"),
            ({"mod_wsgi.version": (4, 9), "mod_wsgi.process_group": "jq"}, "mod_wsgi daemon"),
            ({"uwsgi.version": b"2.0"}, "uwsgi"),
            ({"wsgi.run_once": True}, "cgi"),
            ({"HTTP_JOBQUEUE_DOOR": "server"}, "wsgi"),
        ):
            self.assertEqual(self.door(environ), door)

    def test_passenger_is_told_by_the_name_of_its_start_file(self):
        sys.modules["passenger_wsgi"] = sys
        self.addCleanup(sys.modules.pop, "passenger_wsgi")
        self.assertEqual(self.door({}), "passenger")


class ProcessTestCase(unittest.TestCase):
    """A site whose start files are run as web servers run them."""

    def setUp(self):
        self.site = Site(users=False)
        self.addCleanup(self.site.close)
        self.start = self.site.home / "jobqueue.cgi"
        shutil.copy(HOSTS / "jobqueue.cgi", self.start)

    def ask(self, path="/", start=None, arguments=(), body=b"", python=sys.executable, **more):
        """(status, headers, body, what the log says) of a CGI request."""
        environment = {**CGI, "PATH_INFO": path, "REQUEST_URI": "/jq" + path,
                       "CONTENT_LENGTH": str(len(body)), **more}
        done = subprocess.run([python, str(start or self.start), *arguments], input=body, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=environment)
        head, _, rest = done.stdout.replace(b"\r\n", b"\n").partition(b"\n\n")
        headers = dict(line.split(": ", 1) for line in head.decode("ascii").splitlines())
        return int(headers["Status"][:3]), headers, rest, done.stderr.decode()

    def in_words(self, answer, *words):
        """The answer is a page of a few plain words."""
        status, headers, body, _ = answer
        self.assertEqual((status, headers["Content-Type"].partition(";")[0]), (500, "text/plain"))
        for word in words:
            self.assertIn(word, body.decode("ascii"))
        self.assertNotRegex(body.decode("ascii"), "Traceback|/")


class Cgi(ProcessTestCase):
    """One process for each request."""

    def test_the_start_file_answers(self):
        status, headers, body, said = self.ask("/api/session", HTTPS="on")
        self.assertEqual((status, headers["Content-Type"], said), (401, "application/problem+json", ""))
        self.assertEqual(int(headers["Content-Length"]), len(body))
        self.assertTrue(json.loads(body)["setup"])
        status, headers, body, _ = self.ask("/")
        self.assertEqual((status, body), (200, (self.site.home / "static" / "index.html").read_bytes()))
        tag = headers["ETag"]
        status, headers, body, _ = self.ask("/", REQUEST_METHOD="HEAD")
        self.assertEqual((status, headers["ETag"], body), (200, tag, b""))
        status, headers, body, _ = self.ask("/", HTTP_IF_NONE_MATCH=tag)
        self.assertEqual((status, body, "Content-Length" in headers), (304, b"", False))
        status, headers, *_ = self.ask("", REQUEST_URI="/jq/jobqueue.cgi")
        self.assertEqual((status, headers["Location"]), (308, "/jq/jobqueue.cgi/"))

    def test_an_admin_is_made_and_a_task_added(self):
        self.ask("/api/session")
        code = next(self.site.data.glob("setup-code*.txt")).read_text().strip()
        post = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json",
                "HTTP_SEC_FETCH_SITE": "same-origin"}
        body = json.dumps({"code": code, "name": "ana", "password": "correct horse"}).encode()
        status, headers, *_ = self.ask("/api/setup", body=body, **post)
        self.assertEqual(status, 201)
        cookie = headers["Set-Cookie"]
        self.assertIn("; Path=/jq/;", cookie)
        post["HTTP_COOKIE"] = cookie.partition(";")[0]
        self.site.settings(NbMaxWorker=0)
        body = b'{"function":"add","arguments":{"a":1,"b":2}}'
        status, headers, *_ = self.ask("/api/tasks", body=body, **post)
        self.assertEqual((status, headers["Location"]), (201, "/jq/api/tasks/1"))
        post["REQUEST_METHOD"] = "DELETE"
        status, headers, body, said = self.ask("/api/tasks/1", **post)
        self.assertEqual((status, body, "Content-Length" in headers, said), (204, b"", False, ""))

    def test_a_body_without_its_length_is_asked_for_with_it(self):
        status, headers, body, _ = self.ask(
            "/api/session", body=b"{}", REQUEST_METHOD="POST", CONTENT_TYPE="application/json",
            CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked", HTTP_SEC_FETCH_SITE="same-origin")
        self.assertEqual((status, headers["Content-Type"], json.loads(body)["detail"]), (
            411, "application/problem+json", "Send the body with a Content-Length."))

    def test_words_of_a_query_never_become_a_command(self):
        script = self.site.home / "jobqueue.py"
        for words in (["user", "add", "eve", "--admin"], ["--version"], ["--help"]):
            status, _, body, _ = self.ask("/healthz", script, words, QUERY_STRING="+".join(words),
                                          SCRIPT_FILENAME=str(script))
            self.assertEqual((status, json.loads(body)["status"]), (200, "ok"))

    def test_the_worker_is_no_page(self):
        for arguments in ([], ["--service"], ["--catalogue"]):
            status, _, body, _ = self.ask("/", self.site.home / "worker.py", arguments)
            self.assertEqual((status, body), (403, b"This is not a page.\n"))
        self.assertFalse(self.site.data.exists())

    def test_a_list_loads_nothing_that_it_does_not_need(self):
        site = Site()
        self.addCleanup(site.close)
        shutil.copy(HOSTS / "jobqueue.cgi", site.home)
        environment = {**CGI, "PATH_INFO": "/api/tasks", "HTTP_X_API_KEY": site.token("bob")}

        def loaded(*arguments):
            done = subprocess.run([sys.executable, "-X", "importtime", *arguments], cwd=site.home,
                                  env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, encoding="utf-8")
            return done.stdout, {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

        loaded("jobqueue.cgi")          # the first one finds what is to be done once
        answer, names = loaded("jobqueue.cgi")
        self.assertTrue(answer.startswith("Status: 200"), answer)
        self.assertIn("sqlite3", names)
        needless = ("argparse gzip http.client inspect logging random selectors shutil socket subprocess "
                    "tempfile traceback typing wsgiref zoneinfo")
        self.assertEqual((names - loaded("-c", "pass")[1]) & set(needless.split()), set())

    def test_a_command_of_another_cgi_script_fails_loudly(self):
        php = self.site.home / "index.php"
        php.touch()
        answer = self.ask("/", self.site.home / "jobqueue.py", ["add", "add", "a=1"],
                          SCRIPT_FILENAME=str(php))
        self.in_words(answer)
        self.assertIn("env -u GATEWAY_INTERFACE", answer[3])

    def test_what_is_printed_goes_to_the_log(self):
        with (self.site.home / "jobqueue.py").open("a") as file:
            file.write("\n\ndef get_page(app, request, _answer=get_page):\n    print('Status: 200 printed')\n"
                       "    return _answer(app, request)\n"
                       "ROUTES_AT['/'][0] = ROUTES[0]._replace(handler=get_page)\n")
        status, headers, _, said = self.ask("/")
        self.assertEqual((status, headers["Content-Type"], said),
                         (200, "text/html; charset=utf-8", "Status: 200 printed\n"))

    def test_a_token_is_found_where_the_web_server_puts_it(self):
        settings = {name: setting.default for name, setting in jobqueue.SETTINGS.items()}
        for name in ("HTTP_AUTHORIZATION", "REDIRECT_HTTP_AUTHORIZATION"):
            environ = {"REQUEST_METHOD": "GET", "HTTP_AUTHORIZATION": "", name: "Bearer jq_1"}
            self.assertEqual(jobqueue.Request(environ, settings).bearer(), "jq_1")

    def test_bytes_of_the_address_arrive_as_they_are(self):
        status, headers, *_ = self.ask("", REQUEST_URI="", SCRIPT_NAME="/jq/\u00e6.cgi")
        self.assertEqual((status, headers["Location"]), (308, "/jq/%C3%A6.cgi/"))

    def test_a_folder_that_cannot_be_used_is_a_page_in_words(self):
        (self.site.home / "data").write_text("/proc/nothing\n")
        status, headers, body, said = self.ask("/", HTTP_ACCEPT="text/html,*/*")
        self.assertEqual((status, headers["Content-Type"]), (503, "text/plain; charset=utf-8"))
        self.assertTrue(body.startswith(b"jobqueue: "), body)
        self.assertNotIn(b"/proc", body)
        self.assertIn("/proc/nothing", said)
        status, headers, _, _ = self.ask("/api/session", HTTP_ACCEPT="application/json")
        self.assertEqual((status, headers["Content-Type"]), (503, "application/problem+json"))


class StartFiles(ProcessTestCase):
    """What people copy from static/hosts/."""

    def test_half_a_file_is_a_page_in_words(self):
        code = (self.site.home / "jobqueue.py").read_text()
        (self.site.home / "jobqueue.py").write_text("def half(:\n")
        answer = self.ask("/")
        self.in_words(answer, "invalid syntax (jobqueue.py, line 1)")
        self.assertIn("Traceback", answer[3])
        (self.site.home / "jobqueue.py").write_text(code[:code.index("\ndef run_cgi(")])
        self.in_words(self.ask("/"), "cannot start: jobqueue.py is not complete: copy it again. More is in")
        (self.site.home / "jobqueue.py").write_text("import nothing_of_that_name\n")
        self.in_words(self.ask("/"), "No module named 'nothing_of_that_name'")
        (self.site.home / "jobqueue.py").write_text("raise ValueError('/home/me/secret')\n")
        self.in_words(self.ask("/"), "ValueError")
        (self.site.home / "jobqueue.py").unlink()
        self.in_words(self.ask("/"), "there is no jobqueue.py", "FOLDER")

    def test_one_elsewhere_names_the_folder_or_is_used_where_it_lies(self):
        elsewhere = self.site.home.parent / "jobqueue.cgi"
        text = (HOSTS / "jobqueue.cgi").read_text()
        elsewhere.write_text(text.replace('FOLDER = ""', "FOLDER = %r" % str(self.site.home)))
        for start in (elsewhere, self.site.home / "static" / "hosts" / "jobqueue.cgi"):
            self.assertEqual(self.ask("/healthz", start)[0], 200)

    def test_an_old_python_is_told_what_is_needed(self):
        for name in START_FILES:        # few machines have an old one, and none can install one
            ast.parse((HOSTS / name).read_text(), feature_version=(3, 4))
        for python in old_pythons():
            with self.subTest(python):
                self.in_words(self.ask("/", python=python), "it needs Python 3.9 or newer; this is Python ")
                if not subprocess.call([python, "-c", "import sys; sys.exit(sys.version_info < (3, 6))"]):
                    answer = self.ask("/", self.site.home / "jobqueue.py", python=python)
                    self.in_words(answer, "needs Python 3.9 or newer")
                for name in START_FILES[1:]:
                    code = ("import %s as start; print(start.application({}, lambda *head: None)[0].decode())"
                            % name.partition(".")[0])
                    done = subprocess.run([python, "-c", code], cwd=HOSTS, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, env={"PYTHONDONTWRITEBYTECODE": "1"})
                    self.assertIn(b"it needs Python 3.9 or newer; this is Python ", done.stdout)

    def test_their_words_are_those_that_every_python_reads(self):
        for name in START_FILES:
            text = (HOSTS / name).read_text("ascii")
            self.assertNotIn("\r", text)
            for node in ast.walk(ast.parse(text)):
                self.assertNotIsInstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr))
                if isinstance(node, ast.FunctionDef):
                    self.assertIsNone(node.returns)
                    self.assertEqual(node.args.kwonlyargs, [])
                if isinstance(node, ast.Raise):
                    self.assertIsNone(node.cause)

    def test_the_two_for_wsgi_differ_in_their_first_line_only(self):
        first, second = ((HOSTS / name).read_text().split("\n", 1)[1] for name in START_FILES[1:])
        self.assertEqual(first, second)

    def test_they_are_not_part_of_the_page(self):
        self.assertEqual(self.ask("/static/hosts/wsgi.py")[0], 404)
        self.assertEqual(self.ask("/static/wsgi.py")[0], 404)

    def test_the_rules_for_apache_are_such_as_hosts_allow(self):
        for path in (HOSTS / "htaccess", ROOT / ".htaccess"):
            lines = path.read_text().splitlines()
            words = {line.split()[0] for line in lines if line and line[0] not in "#<"}
            self.assertLessEqual(words, {"AddHandler", "AddOutputFilterByType", "Header", "RewriteEngine",
                                         "RewriteCond", "RewriteRule"})

    def test_lines_for_cron_start_the_worker_without_arguments_or_output(self):
        lines = (HOSTS / "crontab").read_text().splitlines()
        for line in [line for line in lines if not line.startswith("#")]:
            *times, command = line.split(None, 5)
            self.assertEqual(command, "/usr/bin/python3 /home/me/jobqueue/worker.py >/dev/null 2>&1")
            jobqueue.parse_rule(" ".join(times), "UTC")

    def test_the_service_leaves_workers_to_their_tasks(self):
        text = (HOSTS / "jobqueue.service").read_text()
        self.assertIn("\nKillMode=process\n", text)
        self.assertIn("\nUMask=0077\n", text)


CLIENT = """
import json, os, shutil, sys
sys.path.insert(0, "static/hosts")
import wsgi
from pathlib import Path

CODE = Path("jobqueue.py").read_text()

def ask():
    head = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/healthz"}
    body = b"".join(wsgi.application(environ, lambda *given: head.extend(given)))
    return head[0][:3], json.loads(body).get("version")

def show(*values):
    print(*values)

show(*ask())
"""


class LongLived(unittest.TestCase):
    """A web server's process that lives on while files are replaced beneath it."""

    def setUp(self):
        self.site = Site(users=False)
        self.addCleanup(self.site.close)

    def lives(self, text):
        """What a process prints that has answered once, and then runs this."""
        return self.site.python(CLIENT + text).splitlines()

    def test_a_database_that_newer_code_has_changed_is_left_alone_by_the_old(self):
        self.assertEqual(self.lives("""
import sqlite3
os.utime("jobqueue.py", (1, 1))
show(*ask())
link = sqlite3.connect(next(Path("data").glob("jobqueue-*.db")))
link.execute("PRAGMA user_version=99")
show(*ask())
"""), ["200 1.0.0", "200 1.0.0", "503 None"])

    def test_another_site_in_the_same_process_is_refused_in_words(self):
        self.assertEqual(self.lives("""
os.makedirs("other/static")
shutil.copytree("static/hosts", "other/static/hosts")
shutil.copy("jobqueue.py", "other/jobqueue.py")
del sys.modules["wsgi"]
sys.path.insert(0, "other/static/hosts")
import wsgi
show(wsgi.application({}, lambda *head: show(head[0]))[0].decode())
""")[1:], ["500 Internal Server Error", "jobqueue cannot start: another jobqueue runs in this process; each "
           "needs processes of its own. More is in the web server's error log."])

    def test_a_file_that_is_replaced_counts_after_a_restart(self):
        self.assertEqual(self.lives("""
Path("jobqueue.py").write_text(CODE[:len(CODE) // 2] + "(")
show(*ask())
Path("jobqueue.py").write_text(CODE.replace('VERSION = "1.0.0"', 'VERSION = "9.9"'))
show(*ask())
"""), ["200 1.0.0"] * 3)
        self.assertEqual(self.site.python(CLIENT), "200 9.9")

    def test_another_database_in_its_place_is_opened(self):
        self.assertEqual(self.lives("""
os.rename("data", "data.before")
show(*ask())
show(Path("data").is_dir())
"""), ["200 1.0.0", "200 1.0.0", "True"])


if __name__ == "__main__":
    unittest.main()
