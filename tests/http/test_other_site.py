"""The command line as a client of another site: the same commands, sent over HTTP with a token."""
import contextlib
import io
import json
import socket
import threading
import unittest
from unittest import mock
from wsgiref.simple_server import WSGIRequestHandler, make_server

import jobqueue
from tests.helpers.web import WebTestCase


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


class OtherSite(WebTestCase):

    def setUp(self):
        super().setUp()
        server = make_server("127.0.0.1", 0, self.app, handler_class=Quiet)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        self.addCleanup(server.server_close)
        self.addCleanup(serving.join)
        self.addCleanup(server.shutdown)
        self.address = "http://127.0.0.1:%d" % server.server_port
        self.token_file = self.folder / "token.txt"
        self.be("ana")

    def be(self, name):
        """Ask with a token of this user from now on."""
        self.token_file.write_text(self.make_token(name)[1] + "\n")

    def run_command(self, *words, given="", server=None):
        """(exit code, standard output, standard error) of a command that asks the server."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(jobqueue, "JobQueue", side_effect=AssertionError), \
                mock.patch.object(jobqueue.os, "umask"), mock.patch("sys.stdin", io.StringIO(given)), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = jobqueue.main([*map(str, words), "--server", server or self.address,
                                  "--token-file", str(self.token_file)])
        return code, out.getvalue().strip(), err.getvalue().strip()

    def ok(self, *words, **more):
        """What a command that works prints."""
        code, out, err = self.run_command(*words, **more)
        self.assertEqual((code, err), (0, ""), words)
        return out

    def test_tasks_are_added_for_whose_token_it_is(self):
        self.be("bob")
        self.assertEqual(self.ok("add", "add", "a=1", "--priority", "-5"), "1")
        self.assertEqual(json.loads(self.ok("show", "1", "--json")), self.bob.get("/api/tasks/1").json)
        self.assertIn("bob", self.ok("list"))
        self.assertEqual(self.run_command("add", "add", "a=1", "--priority", "5"), (
            2, "", "jobqueue: Nothing was added: priority must be 0 or less; higher ones are for admins."))

    def test_a_token_that_only_reads_may_wait(self):
        self.add("bob")
        token = self.queue.tokens.add(self.queue.users.find("bob")["id"], "reads", "read", None, {}, "bob")
        self.token_file.write_text(token["token"])
        self.assertEqual(self.run_command("wait", "1", "--timeout", "0.1")[::2], (
            124, "jobqueue: task 1 is still pending"))

    def test_an_address_has_no_password(self):
        code, out, err = self.run_command("list", server="http://ana:secret@127.0.0.1:1/jq")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--server must have no name or password", err)
        self.assertNotIn("secret", err)

    def test_a_list_as_csv_comes_whole_and_in_order(self):
        self.add_many("bob", 120)
        lines = self.ok("list", "--csv", "--sort", "id").splitlines()
        self.assertEqual([line.split(",")[0] for line in lines], ["id", *map(str, range(1, 121))])

    def test_a_long_list_as_csv_is_cut_nowhere(self):
        """It comes in pieces that end anywhere."""
        texts = ["日本é%d" % number for number in range(3000)]
        for text in texts:
            self.add("bob", function="greet", name=text)
        lines = self.ok("list", "--csv", "--sort", "id").splitlines()[1:]
        self.assertEqual([line.split('""')[3] for line in lines], texts)

    def test_a_file_of_rows_is_sent_whole(self):
        path = self.folder / "rows.csv"
        path.write_text("a\n" + "7\n" * 500)
        self.assertEqual(self.ok("add", "add", "--each", path, "--owner", "bob"), "500 tasks")
        self.assertEqual(self.queue.get_json(500)["owner"], "bob")

    def test_actions_queues_users_tokens_settings_and_schedules(self):
        self.add_many("bob", 3)
        self.assertEqual(self.ok("cancel", "1"), "")
        self.assertEqual(self.ok("cancel", "--owner", "bob", "--yes"), "2 of 2 tasks")
        self.ok("queue", "set", "post", "--max-running", "2")
        self.ok("queue", "pause", "post", "--why", "holidays")
        self.assertRegex(self.ok("queue", "list"), r"post +0 +0 +2 +paused by ana: holidays")
        self.ok("user", "add", "zoe", given="another horse\n")
        self.ok("user", "disable", "zoe")
        self.assertRegex(self.ok("user", "list"), "zoe +user +yes")
        self.assertEqual(self.ok("settings", "linger", "20"), "20")
        number = self.ok("token", "add", "laptop", "--json")
        self.ok("token", "delete", json.loads(number)["id"])
        self.assertEqual(self.ok("schedule", "add", "add", "daily 01:00", "a=1", "--tz", "Europe/Oslo"), "1")
        self.assertIn("Every day at 01:00 (Europe/Oslo)", self.ok("schedule", "list"))

    def test_refusals_have_the_same_exit_codes(self):
        self.assertEqual(self.run_command("show", "99"), (4, "", "jobqueue: There is no task 99."))
        self.be("bob")
        self.assertEqual(self.run_command("settings")[::2], (5, "jobqueue: Only admins may do this."))
        self.token_file.write_text("jq_wrong\n")
        self.assertEqual(self.run_command("list")[::2], (5, "jobqueue: This API token is not known."))

    def test_what_is_no_site_is_said_in_one_line(self):
        for server in ("http://127.0.0.1:1", "http://127.0.0.1:x", "http://a b", "ftp://example.org",
                       "example.org"):
            code, out, err = self.run_command("list", server=server)
            self.assertIn(code, (1, 2))
            self.assertEqual((out, err.count("\n")), ("", 0))
            self.assertTrue(err.startswith("jobqueue: "), err)
            if not server.startswith("http"):
                self.assertEqual((code, err), (2, "jobqueue: --server must be an address such as "
                                                  "https://example.org/jobs"))

    def ask_another(self, answer, *words):
        """(exit code, standard output, standard error) of a command that is answered this."""
        def answer_once(connection):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)
            connection.close()

        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=lambda: answer_once(listening.accept()[0]), daemon=True).start()
            return self.run_command(*words, server="http://127.0.0.1:%d" % listening.getsockname()[1])

    def test_an_answer_that_is_cut_is_said_in_one_line(self):
        code, _, err = self.ask_another(b"Content-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n"
                                        b"5\r\nid,ow\r\n5\r\nab", "list", "--csv")
        self.assertEqual((code, err.count("\n")), (1, 0))
        self.assertIn("cannot be reached: IncompleteRead", err)

    def test_a_page_of_something_else_is_no_answer(self):
        for words in (["list"], ["cancel", "1"], ["list", "--csv"]):
            code, out, err = self.ask_another(b"Content-Type: text/html\r\n\r\n<h1>Hello", *words)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("is not the address of a jobqueue.", err)

    def test_a_file_that_holds_more_than_a_token_is_not_told(self):
        for content in (b"jq_one two\n", b"jq_one\njq_two\n", b"\xff\xfe"):
            self.token_file.write_bytes(content)
            self.assertEqual(self.run_command("list"), (
                2, "", "jobqueue: --token-file must hold an API token and nothing else"))

    def test_commands_about_this_host_ask_no_other(self):
        for command in ("serve", "tick", "check", "backup x", "export x", "import x",
                        "schedule preview @daily"):
            with self.assertRaises(SystemExit) as end:
                self.run_command(*command.split())
            self.assertEqual(end.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
