"""Alerts through real servers of mail and of the web, that behave and that do not, and through a sendmail
that is a script. A mail server of our own: what it must do wrong no package does."""
import base64
import contextlib
import hashlib
import hmac
import json
import os
import quopri
import re
import shutil
import signal
import socket
import subprocess
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import urlsplit

import jobqueue
from tests.helpers.faults import plant
from tests.helpers.mail import SECRET, MailServer
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import Site, TestCase, need, wait_until

def make_certificate(folder):
    """(certificate and key, for the name localhost) of a file each."""
    need(shutil.which("openssl"), "openssl")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-out", str(paths[0]), "-keyout",
                        str(paths[1])],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return paths


class Hook(BaseHTTPRequestHandler):
    """A receiver of webhooks; the server has `status`, `headers` to answer and `got`."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        for name, value in self.server.more.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(self.server.pieces):
                self.wfile.write(b"x" * 65536)

    def log_message(self, *_):
        pass


class SendingCase(TestCase):
    """In this process: one message, sent by the courier."""

    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "STEP_SECONDS", 2.0)
        self.change_settings(alert_mail="ops@example.org", mail_from="jobs@example.org")
        self.queue.alerts.check(self.clock.now())

    def serve_mail(self, how="ok", certificate=None, **settings):
        server = MailServer(how, certificate)
        self.addCleanup(server.close)
        self.change_settings(mail_server="localhost:%d" % server.port, **settings)
        return server

    def serve_hook(self, status=200, pieces=0, inside="yes", **more):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        server.got, server.status, server.more, server.pieces = [], status, more, pieces
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.change_settings(alert_mail="", alert_webhook_inside=inside,
                             alert_webhook="http://localhost:%d/secret-path" % server.server_port)
        return server

    def post(self, *lines):
        with self.database.transaction() as transaction:
            for recipient in jobqueue.recipients_of_alerts(self.queue.settings, transaction):
                jobqueue.post_message(transaction, recipient, {
                    "kind": "alert", "subject": "add failed", "lines": list(lines) or ["it failed"]},
                    self.clock.now())

    def send(self, *lines):
        """Post a message and try it once; its row."""
        self.post(*lines)
        return self.send_again()

    def send_again(self):
        jobqueue.DeliverySender(self.database, self.queue.settings, self.queue.enqueue,
                         self.queue.catalogue.find).run()
        return self.database.one("SELECT * FROM delivery ORDER BY id DESC LIMIT 1")

    def password_file(self, text=SECRET):
        path = self.folder / "password"
        path.write_text(text)
        return str(path)


class TestMail(SendingCase):
    def test_it_arrives_once(self):
        server = self.serve_mail()
        row = self.send("it failed", ".", "..", "From me")
        self.assertIsNone(row["error"])
        self.send_again()
        [(sender, to, text)] = server.mails
        self.assertEqual((sender, to), ("jobs@example.org", ["ops@example.org"]))
        self.assertIn(b"Subject: [jobqueue] add failed\r\n", text)
        self.assertIn(b"\r\n..\r\n...\r\n", text)

    def test_the_password_goes_over_tls_only(self):
        with mock.patch.dict(os.environ):
            certificate = make_certificate(self.folder)
            os.environ["SSL_CERT_FILE"] = str(certificate[0])
            server = self.serve_mail(certificate=certificate, mail_user="me",
                                     mail_password_file=self.password_file())
            self.assertIsNone(self.send()["error"])
        self.assertEqual(server.log_ins, [(True, b"\0me\0" + SECRET.encode())])
        self.assertEqual(len(server.mails), 1)

    def test_a_password_beyond_ascii_is_sent_as_utf_8(self):
        with mock.patch.dict(os.environ):
            certificate = make_certificate(self.folder)
            os.environ["SSL_CERT_FILE"] = str(certificate[0])
            server = self.serve_mail(certificate=certificate, mail_user="jürgen",
                                     mail_password_file=self.password_file(SECRET + "Käse€1"))
            self.assertIsNone(self.send()["error"])
        self.assertEqual(server.log_ins, [(True, ("\0jürgen\0%sKäse€1" % SECRET).encode())])

    def test_a_file_in_the_data_folder_holds_one_line(self):
        path = self.queue.database.folder / "mail-password-x.txt"
        with mock.patch.dict(os.environ):
            certificate = make_certificate(self.folder)
            os.environ["SSL_CERT_FILE"] = str(certificate[0])
            server = self.serve_mail(certificate=certificate, mail_user="me")
            for text in ("a\nb\n", "x" * 300, "\x00"):
                path.write_text(text)
                self.assertIn("must hold one line of at most 200 characters", self.send()["error"])
            self.assertEqual(server.log_ins, [])
            path.write_text(SECRET + "\n")
            self.assertIsNone(self.send()["error"])

    def test_without_tls_no_password_is_sent(self):
        server = self.serve_mail(mail_user="me", mail_password_file=self.password_file())
        row = self.send()
        self.assertIn("offers no TLS", row["error"])
        self.assertEqual((server.log_ins, server.mails, row["next_at"]), ([], [], None))

    def test_a_certificate_that_nobody_vouches_for_is_an_error(self):
        server = self.serve_mail(certificate=make_certificate(self.folder), mail_user="me",
                                 mail_password_file=self.password_file())
        row = self.send()
        self.assertIn("CERTIFICATE", row["error"].upper())
        self.assertEqual((server.log_ins, server.mails), ([], []))
        self.assertIsNotNone(row["next_at"])

    def test_a_wrong_password_ends_the_tries_and_is_not_told(self):
        with mock.patch.dict(os.environ):
            certificate = make_certificate(self.folder)
            os.environ["SSL_CERT_FILE"] = str(certificate[0])
            self.serve_mail(certificate=certificate, mail_user="me",
                            mail_password_file=self.password_file("another-canary"))
            row = self.send()
        self.assertEqual((row["error"], row["next_at"]), ("535 not you", None))

    def test_a_recipient_that_is_refused_ends_the_tries_and_is_a_finding(self):
        self.serve_mail("refuse")
        self.assertEqual(self.send()["error"], "550 no such user")
        [found] = [str(one) for one in jobqueue.check_host(self.queue).findings
                   if one.code == "channel_fails"]
        self.assertIn("550 no such user", found)

    def test_one_that_is_busy_is_tried_again(self):
        server = self.serve_mail("later")
        row = self.send()
        self.assertEqual((row["error"], row["tries"]), ("451 later", 1))
        server.how = "ok"
        self.clock.advance(61)
        self.assertIsNone(self.send_again()["error"])

    def test_one_that_is_cut_off_after_the_text_is_tried_again_as_the_same_mail(self):
        server = self.serve_mail("cut")
        self.assertIsNotNone(self.send()["error"])
        server.how = "ok"
        self.clock.advance(61)
        self.send_again()
        first, second = (re.search(rb"Message-ID: (\S+)", text)[1] for _, _, text in server.mails)
        self.assertEqual(first, second)

    def test_a_server_that_says_nothing_keeps_no_webhook_waiting(self):
        self.serve_mail("silent")
        hook = self.serve_hook()
        self.change_settings(alert_mail="ops@example.org")
        self.post()
        self.send_again()
        self.assertEqual(len(hook.got), 1)
        self.assertIn("timed out", self.database.value("SELECT error FROM delivery WHERE channel='mail'"))

    def test_one_that_is_slow_to_part_has_taken_it(self):
        server = self.serve_mail("slow_quit")
        self.assertIsNone(self.send()["error"])
        self.assertEqual(len(server.mails), 1)


class TestSendmail(SendingCase):
    def setUp(self):
        super().setUp()
        self.change_settings(mail_server="")
        self.out = self.folder / "out"
        self.patch(jobqueue, "SENDMAIL_SECONDS", 1.0)

    def script(self, last):
        """A sendmail that keeps what it gets, then does `last`."""
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        path = bin_folder / "sendmail"
        path.write_text('#!/bin/sh\necho "$@" >"%s.arguments"\ncat >"%s"\n%s\n' % (self.out, self.out,
            last))
        path.chmod(0o755)
        patch = mock.patch.dict(os.environ, PATH="%s:%s" % (bin_folder, os.environ["PATH"]))
        patch.start()
        self.addCleanup(patch.stop)

    def test_it_gets_the_mail_with_plain_line_ends_and_a_lone_dot(self):
        self.script("exit 0")
        self.assertIsNone(self.send("a", ".", "b")["error"])
        text = self.out.read_bytes()
        self.assertNotIn(b"\r", text)
        self.assertIn(b"\na\n.\nb\n", text)
        self.assertEqual((self.folder / "out.arguments").read_text(),
                         "-i -f jobs@example.org -- ops@example.org\n")

    def test_one_that_says_later_is_tried_again(self):
        self.script("echo no room; exit 75")
        row = self.send()
        self.assertIn("exit code 75: no room", row["error"])
        self.assertIsNotNone(row["next_at"])

    def test_one_that_hangs_is_ended(self):
        self.script("exec sleep 300")
        self.assertIn("did not end", self.send()["error"])

    def test_where_there_is_none_that_is_said(self):
        self.patch(jobqueue, "SENDMAIL_PLACES", "")
        with mock.patch.dict(os.environ, PATH=str(self.folder)):
            self.assertIn("There is no sendmail", self.send()["error"])


class TestWebhook(SendingCase):
    def test_a_receiver_can_check_who_it_comes_from(self):
        hook = self.serve_hook()
        self.assertIsNone(self.send()["error"])
        [(path, headers, body)] = hook.got
        headers = {name.lower(): value for name, value in headers.items()}
        [secret_file] = self.queue.database.folder.glob("webhook-secret-*.txt")
        secret = secret_file.read_text().strip()
        told = "%s.%s." % (headers["webhook-id"], headers["webhook-timestamp"])
        sign = hmac.new(base64.b64decode(secret[len("whsec_"):]), told.encode() + body,
                        hashlib.sha256).digest()
        self.assertEqual(headers["webhook-signature"], "v1," + base64.b64encode(sign).decode())
        self.assertEqual(json.loads(body)["data"]["subject"], "add failed")
        self.assertEqual(path, "/secret-path")
        self.assertEqual(secret_file.stat().st_mode & 0o777, 0o600)

    def test_the_id_stays_and_the_time_is_new_at_each_try(self):
        hook = self.serve_hook(status=500)
        self.assertIn("500", self.send()["error"])
        self.clock.advance(61)
        self.send_again()
        first, second = ({name.lower(): value for name, value in one[1].items()} for one in hook.got)
        self.assertEqual(first["webhook-id"], second["webhook-id"])
        self.assertNotEqual(first["webhook-timestamp"], second["webhook-timestamp"])

    def test_it_does_not_lead_into_the_host(self):
        hook = self.serve_hook(inside="no")
        row = self.send()
        self.assertIn("alert_webhook_inside", row["error"])
        self.assertEqual((hook.got, row["next_at"]), ([], None))

    def test_a_name_that_leads_inside_with_one_of_its_addresses_is_refused(self):
        self.serve_hook(inside="no")
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 80)) for one in ("8.8.8.8", "10.0.0.1")]
        with mock.patch.object(socket, "getaddrinfo", return_value=found), \
                mock.patch.object(socket, "create_connection") as connect:
            self.assertIn("alert_webhook_inside", self.send()["error"])
        connect.assert_not_called()

    def test_an_address_that_leads_nowhere_is_followed_by_the_next(self):
        hook = self.serve_hook()
        port = hook.server_port
        found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)),
                 (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        real = socket.getaddrinfo
        with mock.patch.object(socket, "getaddrinfo", lambda host, *more, **options: found if host
                               == "localhost" else real(host, *more, **options)):
            self.assertIsNone(self.send()["error"])
        self.assertEqual(len(hook.got), 1)

    def test_the_address_that_was_judged_is_the_one_that_is_used(self):
        self.serve_hook(inside="no")
        answers = [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 80))] for one in ("8.8.8.8",
            "127.0.0.1")]
        with mock.patch.object(socket, "getaddrinfo", side_effect=answers) as resolve, \
                mock.patch.object(socket, "create_connection", side_effect=OSError("no route")) as connect:
            self.send()
        self.assertEqual(resolve.call_count, 1)
        self.assertEqual([call[0][0] for call in connect.call_args_list], [("8.8.8.8", 80)])

    def test_a_redirect_is_not_followed(self):
        elsewhere = self.serve_hook()
        hook = self.serve_hook(status=302, Location="http://localhost:%d/inside" % elsewhere.server_port)
        self.assertIn("not followed", self.send()["error"])
        self.assertEqual((len(hook.got), elsewhere.got), (1, []))

    def test_one_that_is_gone_or_takes_no_such_message_ends_the_tries(self):
        for status in (400, 404, 410, 413, 422):
            self.serve_hook(status=status)
            self.assertIsNone(self.send()["next_at"])

    def test_an_answer_without_an_end_is_not_read(self):
        self.serve_hook(pieces=1 << 20)
        self.assertIsNone(self.send()["error"])

    def test_its_address_is_in_no_error_and_no_list(self):
        self.serve_hook(status=500)
        self.send()
        self.assertNotIn("secret-path",
                         repr([tuple(row) for row in self.database.all("SELECT * FROM delivery")]))
        self.assertNotIn("secret-path", json.dumps([self.queue.alerts.all(),
                                                    self.queue.settings.describe()]))


class TestShapes(unittest.TestCase):
    """What those expect that many people use."""

    CONTENT = {"kind": "alert", "subject": "add failed", "lines": ["<@everyone> & co", "x" * 5000]}

    def shape(self, url):
        return jobqueue.shaped(urlsplit(url), self.CONTENT)

    def test_slack(self):
        self.assertIn("&lt;@everyone&gt; &amp; co",
                      self.shape("https://hooks.slack.com/services/x")[1]["text"])

    def test_discord_mentions_nobody(self):
        body = self.shape("https://discord.com/api/webhooks/1/x")[1]
        self.assertEqual((len(body["content"]), body["allowed_mentions"]), (2000, {"parse": []}))

    def test_telegram(self):
        path, body = self.shape("https://api.telegram.org/bot1:x/sendMessage?chat_id=7")
        self.assertEqual((path, body["chat_id"], len(body["text"])), ("/bot1:x/sendMessage", "7", 4096))

    def test_limits_are_counted_as_the_receiver_counts(self):
        content = {**self.CONTENT, "lines": ["\U0001f600<b>" * 3000]}
        for url in ("https://api.telegram.org/bot1:x/sendMessage?chat_id=7&parse_mode=HTML", "https://ntfy.sh/t"):
            body = jobqueue.shaped(urlsplit(url), content)[1]
            text = body.get("text") or body["message"]
            units = len(text.encode("utf-16-le")) // 2 if "text" in body else len(text.encode("utf-8"))
            self.assertLessEqual(units, 4096)
            self.assertGreater(units, 3900)
            self.assertEqual((text[-1], "parse_mode" in body), ("…", False))

    def test_ntfy(self):
        path, body = self.shape("https://ntfy.sh/my-topic")
        self.assertEqual((path, body["topic"], body["title"]), ("/", "my-topic", "add failed"))

    def test_another_host_that_only_looks_like_one_is_signed_for(self):
        for url in ("https://hooks.slack.com.example.org/x", "https://xdiscord.com/x"):
            self.assertEqual(self.shape(url), ("/x", None))


class TestProcesses(unittest.TestCase):
    """The whole path: a task fails, whoever ticks notices, a process of its own sends."""

    TASKS = ("from jobqueue import task, Fail\n\n@task()\ndef bad(number: int):\n"
             "    raise Fail('order %d is wrong' % number)\n\n@task()\ndef good():\n    return 1\n\n"
             "@task(who='nobody')\n"
             "def tell(subject: str, text: str):\n    open('told.txt', 'a').write(subject)\n")

    def setUp(self):
        self.site = Site(self.TASKS)
        self.addCleanup(self.site.close)
        self.server = MailServer()
        self.addCleanup(self.server.close)
        self.site.settings(alert_mail="ops@example.org", mail_from="jobs@example.org",
                           mail_server="localhost:%d" % self.server.port)

    def test_alert_test_takes_the_real_path_and_says_what_the_server_said(self):
        said = self.site.run("alert", "test").stdout
        self.assertIn("mail ops@example.org: sent at", said)
        self.assertEqual(len(self.server.mails), 1)
        self.server.how = "refuse"
        self.assertIn("550 no such user", self.site.run("alert", "test", code=1).stdout)

    def test_a_function_of_ones_own_is_run(self):
        self.site.settings(alert_mail="", alert_function="tell")
        self.site.run("alert", "test")
        told = self.site.home / "told.txt"
        self.assertEqual(wait_until(lambda: told.exists() and told.read_text(), what="the function"),
                         "a test")

    def test_a_failure_is_mailed_with_a_link_and_the_end_of_its_log(self):
        plant(self.site, "WATCH_SECONDS = 0.0")
        self.site.settings(page_address="https://example.org/jq/")
        self.site.run("tick")
        number = self.site.add("bad", number=7)
        self.site.wait(number)
        wait_until(lambda: self.site.run("tick") and self.server.mails, what="a mail")
        text = quopri.decodestring(self.server.mails[0][2]).decode().replace("\r\n", "\n")
        self.assertIn("bad failed: Fail: order 7 is wrong (task %d). https://example.org/jq/#/tasks/%d\n"
                      % (number, number), text)
        self.assertRegex(text, r"\nThe last lines of task %d:\n(.*\n){0,9}.*Fail: order 7 is wrong\n"
                         % number)

    @about_sqlite("the clocks of marks are put back in the folder")
    def test_a_failure_is_mailed_once_and_nobody_waits_for_a_server_that_hangs(self):
        self.site.run("tick")
        self.server.how = "silent"
        self.site.wait(self.site.add("bad", number=7))

        def look():
            with contextlib.suppress(OSError):
                os.utime(self.site.data / "alerts.mark", (0, 0))
            self.site.run("tick")
        wait_until(lambda: look() or self.site.value("SELECT count(*) FROM delivery"), what="a message")
        wait_until(lambda: self.site.value("SELECT max(tries) FROM delivery"), what="a try")
        self.site.wait(self.site.add("good"))           # while it hangs
        self.assertEqual(self.server.mails, [])

    def test_no_secret_is_on_a_command_line(self):
        self.site.settings(alert_webhook="https://127.0.0.1:9/canary-of-a-webhook")
        self.site.run("alert", "test", code=1)
        for line in self.site.processes().values():
            self.assertNotIn("canary", str(line))
        logs = "".join(path.read_text("utf-8", "replace") for path in self.site.data.glob("worker*.log*"))
        self.assertNotIn("canary", logs)


class FatalHook(Hook):
    """A receiver whose sender dies when it has the answer, before it can note that."""

    def do_POST(self):
        with self.server.nobody_writes():
            super().do_POST()
            self.connection.shutdown(socket.SHUT_WR)
            self.rfile.read(1)          # until the other side has closed: it knows
            self.server.kill()


class TestKilledSenders(unittest.TestCase):
    """Who sends is killed at the worst moment: all is told once or twice, and is known for the same."""

    def setUp(self):
        self.site = Site(TestProcesses.TASKS)
        self.addCleanup(self.site.close)
        plant(self.site, "WATCH_SECONDS = 0.0")
        self.site.run("tick")
        self.kills = 0

    def kill_sender(self):
        """Kill the process that sends, the first time."""
        if not self.kills:
            [pid] = [pid for pid, line in self.site.processes().items() if "--send" in line]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: pid not in self.site.processes(), what="its death")
        self.kills += 1

    @contextlib.contextmanager
    def nobody_writes(self):
        """Hold the write lock, the first time."""
        with contextlib.ExitStack() as stack:
            if not self.kills:
                queue = stack.enter_context(contextlib.closing(
                    jobqueue.JobQueue(self.site.data, environment=self.site.place)))
                stack.enter_context(queue.database.transaction())
            yield

    def fail_and_look(self, got):
        """A task fails, and its alert is sent until something has come in and who sent it is dead."""
        self.site.wait(self.site.add("bad", number=7))
        wait_until(lambda: self.site.run("tick") and self.kills, what="a message, and a death")
        self.assertEqual(len(got), 1)
        [row] = self.site.rows("SELECT * FROM delivery")
        self.assertEqual((row["tries"], row["sent_at"], row["error"]), (1, None, jobqueue.CUT_OFF))
        self.assertIsNotNone(row["next_at"])
        self.assertEqual(self.site.wait(self.site.add("good"))["status"], "succeeded")

    def pass_a_minute(self):
        """The times of the message and of who sends it lie a minute back; its row once it was tried."""
        self.site.rows("UPDATE delivery SET next_at=next_at-60")
        os.utime(self.site.data / jobqueue.SENDING_MARK, (0, 0))
        return wait_until(lambda: self.site.run("tick") and self.site.rows(
            "SELECT * FROM delivery WHERE tries=2 AND next_at IS NULL"), what="the second try")[0]

    def look_for_more(self):
        """Nothing is left to be sent, and nothing holds up what comes later."""
        for _ in range(3):
            self.site.run("tick")
        self.assertEqual(self.site.run("alert", "test", code=None).returncode, 0)
        self.assertEqual(self.site.value("SELECT count(*) FROM delivery WHERE sent_at IS NOT NULL"), 2)

    def check_mail(self, moment):
        server = MailServer(on=lambda word: self.kill_sender() if word == moment else None)
        self.addCleanup(server.close)
        self.site.settings(alert_mail="ops@example.org", mail_from="jobs@example.org",
                           mail_server="localhost:%d" % server.port)
        self.fail_and_look(server.mails)
        row = self.pass_a_minute()
        self.assertEqual((row["error"], len(server.mails)), (None, 2))
        self.assertEqual(server.mails[0], server.mails[1])
        self.assertRegex(server.mails[0][2], rb"(?m)^Message-ID: <jobqueue\.\d+\.\d+@example\.org>\r$")
        self.look_for_more()
        self.assertEqual(len(server.mails), 3)
        self.assertNotIn(re.search(rb"Message-ID: \S+", server.mails[0][2])[0], server.mails[2][2])

    def test_a_mail_that_was_taken_comes_again_as_the_same_mail(self):
        self.check_mail("QUIT")

    def test_a_mail_whose_taking_nobody_heard_of_comes_again_as_the_same_mail(self):
        self.check_mail("TEXT")

    def test_a_webhook_that_was_answered_comes_again_under_the_same_id(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), FatalHook)
        server.got, server.status, server.more, server.pieces = [], 200, {}, 0
        server.kill, server.nobody_writes = self.kill_sender, self.nobody_writes
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.site.settings(alert_webhook="http://localhost:%d/hook" % server.server_port,
                           alert_webhook_inside="yes")
        self.fail_and_look(server.got)
        row = self.pass_a_minute()
        self.assertEqual((row["error"], len(server.got)), (None, 2))
        (first, text), (second, again) = ((headers["webhook-id"], body) for _, headers, body in server.got)
        self.assertEqual((first, text), (second, again))
        self.look_for_more()
        self.assertEqual(len(server.got), 3)
        self.assertNotEqual(server.got[2][1]["webhook-id"], first)
