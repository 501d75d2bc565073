"""The built-in server, spoken to through real sockets: malformed, slow, greedy and many clients."""
import json
import os
import select
import socket
import sqlite3
import threading
import time
import unittest
from unittest import mock

import jobqueue
from tests.helpers.server import HEALTH, HOST, Link, ServerTestCase
from tests.helpers.support import FakeClock, need, wait_until

REFUSED = {400, 411, 413, 414, 415, 421, 431, 501}


def bad(line=b"GET /healthz HTTP/1.1", headers=HOST, body=b""):
    """A request from its parts."""
    return line + b"\r\n" + headers + b"\r\n" + body


POST = b"POST /api/session HTTP/1.1"
MALFORMED = {
    "two lengths": bad(POST, HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}x"),
    "the same length twice": bad(POST, HOST + b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"),
    "a list of lengths": bad(POST, HOST + b"Content-Length: 2, 2\r\n", b"{}"),
    "length and chunked": bad(POST, HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                              b"0\r\n\r\n"),
    "chunked": bad(POST, HOST + b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "chunked, oddly written": bad(POST, HOST + b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "chunked after a tab": bad(POST, HOST + b"Transfer-Encoding:\tchunked\r\n", b"0\r\n\r\n"),
    "chunked for a GET": bad(headers=HOST + b"Transfer-Encoding: identity\r\n"),
    "negative length": bad(POST, HOST + b"Content-Length: -1\r\n"),
    "length with a plus": bad(POST, HOST + b"Content-Length: +2\r\n", b"{}"),
    "length with an underscore": bad(POST, HOST + b"Content-Length: 0_2\r\n", b"{}"),
    "length in hex": bad(POST, HOST + b"Content-Length: 0x2\r\n", b"{}"),
    "empty length": bad(POST, HOST + b"Content-Length:\r\n"),
    "no length": bad(POST, HOST),
    "huge length": bad(POST, HOST + b"Content-Length: 10737418240\r\n"),
    "length of 13 digits": bad(POST, HOST + b"Content-Length: 9999999999999\r\n"),
    "length with a space before the colon": bad(POST, HOST + b"Content-Length : 2\r\n", b"{}"),
    "folded header": bad(headers=HOST + b"X: a\r\n b\r\n"),
    "header without a colon": bad(headers=HOST + b"nonsense\r\n"),
    "header without a name": bad(headers=HOST + b": x\r\n"),
    "NUL in a header": bad(headers=HOST + b"X: a\0b\r\n"),
    "CR in a header": bad(headers=HOST + b"X: a\rb\r\n"),
    "LF in a header": bad(headers=HOST + b"X: a\nY: b\r\n"),
    "space in a header's name": bad(headers=HOST + b"X Y: a\r\n"),
    "escape in a header": bad(headers=HOST + b"X: \x1b[0m\r\n"),
    "only LF": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "no host": bad(headers=b""),
    "two hosts": bad(headers=HOST + b"Host: evil.example\r\n"),
    "a foreign host": bad(headers=b"Host: evil.example\r\n"),
    "our host with a tail": bad(headers=b"Host: localhost.evil.example\r\n"),
    "a host that is none": bad(headers=b"Host: local host\r\n"),
    "a host with a path": bad(headers=b"Host: localhost/x\r\n"),
    "a user in the host": bad(headers=b"Host: a@localhost\r\n"),
    "empty host": bad(headers=b"Host:\r\n"),
    "lower-case method": bad(b"get /healthz HTTP/1.1"),
    "unknown method": bad(b"TRACE /healthz HTTP/1.1"),
    "odd method": bad(b"X-FOO /healthz HTTP/1.1"),
    "CONNECT": bad(b"CONNECT localhost:80 HTTP/1.1"),
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/1.10": bad(b"GET /healthz HTTP/1.10"),
    "HTTP/2.0": bad(b"GET /healthz HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "absolute address": bad(b"GET http://localhost/healthz HTTP/1.1"),
    "an asterisk": bad(b"OPTIONS * HTTP/1.1"),
    "NUL in the path": bad(b"GET /health\0z HTTP/1.1"),
    "space in the path": bad(b"GET /health z HTTP/1.1"),
    "beyond ASCII in the path": bad(b"GET /h\xc3\xa9 HTTP/1.1"),
    "two spaces": bad(b"GET  /healthz HTTP/1.1"),
    "an empty line first": b"\r\n" + HEALTH,
    "nothing but empty lines": b"\r\n\r\n",
    "a line of 70 KB": bad(b"GET /" + b"a" * 70_000 + b" HTTP/1.1"),
    "a path of 9,000 letters": bad(b"GET /" + b"a" * 9000 + b" HTTP/1.1"),
    "101 headers": bad(headers=HOST + b"".join(b"X%d: 1\r\n" % number for number in range(100))),
    "a header of 40 KB": bad(headers=HOST + b"X: " + b"a" * 40_000 + b"\r\n"),
    "1 MB of headers": bad(headers=HOST + (b"X: " + b"a" * 1000 + b"\r\n") * 1000),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    "noise": bytes(range(256)) + b"\r\n\r\n",
}


class Malformed(ServerTestCase):
    """Requests that are refused before anything is done (H1)."""

    def setUp(self):
        super().setUp()
        self.token = self.make_token("bob")[1]
        self.second = self.request("POST", "/api/tasks", {"function": "add", "arguments": {"a": 1}},
                                   self.token)

    def count(self):
        return self.database.value("SELECT count(*) FROM task")

    def test_each_is_refused_and_what_follows_is_never_executed(self):
        for name, data in MALFORMED.items():
            with self.subTest(name=name):
                link = self.link().send(data + self.second + self.second)
                self.assertIn(link.status(), REFUSED)
                self.assertTrue(link.is_closed())
        self.healthy()
        self.assertEqual(self.count(), 0)
        self.assertEqual(self.errors.getvalue(), "")

    def test_without_a_length_there_is_no_body_and_what_follows_is_never_executed(self):
        task_id = self.add("bob")
        data = (b"POST /api/tasks/%d/cancel HTTP/1.1\r\n" % task_id + HOST
                + b"X-Api-Key: " + self.token.encode() + b"\r\n\r\n")
        link = self.link().send(data + self.second)
        self.assertEqual(link.status(), 200)
        self.assertTrue(link.is_closed())
        self.assertEqual((self.status(task_id), self.count()), ("cancelled", 1))

    def test_nothing_follows_an_answer_that_is_an_error(self):
        first = {"401": self.request("GET", "/api/tasks"), "404": self.request("GET", "/nothing"),
                 "405": self.request("PUT", "/", {}),
                 "400": self.request("GET", "/api/tasks?limit=x", token=self.token),
                 "415": self.second.replace(b"application/json", b"text/plain")}
        for status, data in first.items():
            with self.subTest(status=status):
                link = self.link().send(data + self.second)
                self.assertEqual(str(link.status()), status)
                self.assertTrue(link.is_closed())
        self.assertEqual(self.count(), 0)

    def test_a_refusal_is_a_problem_with_the_security_headers(self):
        status, headers, body = self.ask(MALFORMED["no host"])
        self.assertEqual((status, headers["content-type"], headers["connection"]),
                         (400, "application/problem+json", "close"))
        self.assertEqual(set(json.loads(body)), {"type", "title", "status", "code", "detail", "errors"})
        for name, value in jobqueue.SECURITY_HEADERS:
            self.assertEqual(headers[name.lower()], value)

    def test_bytes_beyond_the_length_are_no_part_of_the_body(self):
        body = b'{"function": "add", "arguments": {"a": 1}}'
        data = self.second.replace(b"Content-Length: %d" % len(body), b"Content-Length: 0")
        link = self.link().send(data)
        self.assertEqual(link.status(), 400)
        self.assertTrue(link.is_closed())
        self.assertEqual(self.count(), 0)

    def test_headers_with_an_underscore_cannot_pose_as_others(self):
        data = b"GET /api/session HTTP/1.1\r\n" + HOST + b"X_Api_Key: " + self.token.encode() + b"\r\n\r\n"
        self.assertEqual(self.ask(data)[0], 401)

    def test_the_proxy_header_does_not_reach_the_application(self):
        seen = self.told(b"Proxy: http://evil.example\r\nX-A: 1\r\n")
        self.assertNotIn("HTTP_PROXY", seen)
        self.assertEqual(seen["HTTP_X_A"], "1")


class Hosts(ServerTestCase):
    """Only names that are ours are answered, so that no foreign name can be pointed at us."""

    def ask_as(self, host):
        return self.ask(b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")[0]

    def test_names_of_this_machine_are_answered(self):
        for host in (b"localhost", b"localhost:8000", b"127.0.0.1:1", b"[::1]:8000", b"LOCALHOST", b"[::1]"):
            self.assertEqual(self.ask_as(host), 200, host)

    def test_others_are_not_until_an_admin_adds_them(self):
        self.assertEqual(self.ask_as(b"jobs.example.org"), 421)
        self.queue.settings.change({"host_names": "a.example, Jobs.Example.org"})
        self.assertEqual(self.ask_as(b"jobs.example.org:8000"), 200)
        self.assertEqual(self.ask_as(b"evil.example"), 421)
        self.assertEqual(self.ask_as(b"localhost"), 200)

    def test_a_browser_is_told_in_plain_words_and_a_program_as_of_all_problems(self):
        told = {}
        for accept in (b"text/html,application/xhtml+xml,*/*;q=0.8", b"*/*"):
            status, headers, body = self.link().send(
                b"GET / HTTP/1.1\r\nHost: evil.example\r\nAccept: " + accept + b"\r\n\r\n").answer()
            self.assertEqual(status, 421)
            told[headers["content-type"].partition(";")[0]] = body.decode()
        words = told.pop("text/plain")
        self.assertIn("settings host_names NAME", words)
        detail = json.loads(told.pop("application/problem+json"))["detail"]
        self.assertEqual(words, "jobqueue: %s\n" % detail)

    def test_a_trusted_proxy_answers_for_the_name_until_one_is_set(self):
        self.change_settings(trusted_proxies="127.0.0.1")
        self.assertEqual(self.ask_as(b"jobs.example.org"), 200)
        self.change_settings(host_names="a.example")
        self.assertEqual(self.ask_as(b"jobs.example.org"), 421)

    def test_names_with_an_underscore_never_pass_for_a_proxys_header(self):
        seen = self.told(b"X_Forwarded_For: 198.51.100.9\r\nX-Forwarded-For: 1.1.1.1\r\n"
                         b"X-Forwarded-For: 203.0.113.5\r\n")
        self.assertEqual(seen["HTTP_X_FORWARDED_FOR"], "1.1.1.1, 203.0.113.5")

    def test_an_old_client_without_host_is_answered(self):
        with Link(self.server.address) as link:
            self.assertEqual(link.send(b"GET /healthz HTTP/1.0\r\n\r\n").status(), 200)
            self.assertTrue(link.is_closed())


class AnyHost(ServerTestCase):
    host = "0.0.0.0"

    def test_a_server_for_all_interfaces_answers_to_any_name_until_one_is_set(self):
        address = ("127.0.0.1", self.server.address[1])
        for names, status in (("", 200), ("jobs.example.org", 421)):
            self.change_settings(host_names=names)
            with Link(address) as link:
                self.assertEqual(link.send(b"GET /healthz HTTP/1.1\r\nHost: any.example\r\n\r\n").status(),
                                 status)


class Connections(ServerTestCase):

    def test_a_connection_is_kept_for_more_requests(self):
        link = self.link()
        for _ in range(5):
            status, headers, _ = link.send(HEALTH).answer()
            self.assertEqual((status, headers["connection"]), (200, "keep-alive"))

    def test_pipelined_requests_are_answered_in_their_order(self):
        token = self.make_token("bob")[1]
        self.add_many("bob", 5)
        link = self.link().send(b"".join(self.request("GET", "/api/tasks/%d" % number, token=token)
                                         for number in (3, 1, 5, 2, 4)))
        self.assertEqual([json.loads(link.answer()[2])["id"] for _ in range(5)], [3, 1, 5, 2, 4])

    def test_who_asks_for_it_is_closed_after_the_answer(self):
        for value in (b"close", b"Close", b"close, TE", b"te , close"):
            with self.subTest(value=value):
                data = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: " + value + b"\r\n\r\n"
                link = self.link().send(data)
                status, headers, _ = link.answer()
                self.assertEqual((status, headers["connection"]), (200, "close"))
                self.assertTrue(link.is_closed())

    def test_requests_in_pieces_are_put_together(self):
        link = self.link()
        for place in range(len(HEALTH)):
            link.send(HEALTH[place:place + 1])
        self.assertEqual(link.status(), 200)

    def test_a_client_that_will_send_no_more_gets_its_answer(self):
        link = self.link().send(HEALTH)
        link.finish()
        self.assertEqual(link.status(), 200)
        self.assertTrue(link.is_closed())

    def test_a_client_that_leaves_half_a_request_does_no_harm(self):
        for data in (b"", b"GET", b"GET / HTTP/1.1\r\nHost", self.request("POST", "/api/session", {})[:-1]):
            link = self.link().send(data)
            link.finish()
            self.assertIn(link.status(), (None, 400))
            self.assertTrue(link.is_closed())
        self.healthy()

    def test_a_client_that_is_gone_before_its_answer_does_no_harm(self):
        for _ in range(50):
            link = Link(self.server.address).send(HEALTH * 3)
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.close()
        self.healthy()

    def test_head_has_the_length_but_no_body(self):
        link = self.link().send(self.request("HEAD", "/healthz") + HEALTH)
        status, headers, _ = link.answer(head=True)
        self.assertEqual(status, 200)
        self.assertEqual(int(headers["content-length"]), len(link.answer()[2]))

    def test_204_and_304_have_no_body_that_would_shift_the_next_answer(self):
        token = self.make_token("bob")[1]
        path = "/api/tasks/%d" % self.add("bob")
        tag = self.ask(HEALTH)[1]["etag"].encode()
        unchanged = b"GET /healthz HTTP/1.1\r\n" + HOST + b"If-None-Match: " + tag + b"\r\n\r\n"
        link = self.link().send(self.request("DELETE", path, token=token) + unchanged + HEALTH)
        self.assertEqual([link.status() for _ in range(3)], [204, 304, 200])

    def test_who_waits_for_a_go_ahead_gets_it(self):
        body = json.dumps({"name": "bob", "password": "correct horse"}).encode()
        head = (b"POST /api/session HTTP/1.1\r\n" + HOST
                + b"Content-Type: application/json\r\nExpect: 100-continue\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body))
        link = self.link().send(head)
        self.assertEqual(link.status(), 100)
        self.assertEqual(link.send(body).status(), 200)

    def test_who_waits_for_a_go_ahead_with_too_much_gets_none(self):
        head = self.head_of_a_body(99999999, b"Expect: 100-continue\r\n")
        self.assertEqual(self.ask(head)[0], 413)

    @staticmethod
    def head_of_a_body(length, more=b""):
        """The head of a log-in with so long a body."""
        return (POST + b"\r\n" + HOST + more
                + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length)

    def test_a_large_body_is_read_and_a_larger_one_refused_before_it_is_sent(self):
        token = self.make_token("bob")[1]
        task = {"function": "add", "arguments": {"a": 1}}
        self.assertEqual(self.ask(self.request("POST", "/api/tasks", [task] * 15_000, token))[0], 201)
        self.assertEqual(self.ask(self.head_of_a_body(1048577))[0], 413)

    def test_a_refusal_is_read_even_by_who_goes_on_sending(self):
        link = self.link().send(self.head_of_a_body(5000000))
        for _ in range(16):
            link.send(b"x" * 65536)
        self.assertEqual(link.status(), 413)

    def test_a_large_answer_arrives_whole(self):
        self.add("bob")
        text = "0123456789abcde\n" * (1 << 16)
        self.write_log(1, text)
        self.write("UPDATE task SET attempts=1")
        data = self.request("GET", "/api/tasks/1/log?download=1", token=self.make_token("bob")[1])
        self.assertEqual(self.ask(data)[2].decode(), text)

    def test_an_exception_in_the_application_is_not_the_end(self):
        self.front.instead = mock.Mock(side_effect=RuntimeError("boom"))
        link = self.link().send(HEALTH)
        self.assertIsNone(link.status())
        self.front.instead = self.app
        self.healthy()
        link.close()
        wait_until(lambda: "RuntimeError: boom" in self.errors.getvalue())

    def test_searches_that_take_long_leave_room_for_others(self):
        go_on, asked = threading.Event(), []

        def slow(environ, start):
            if environ["QUERY_STRING"]:
                asked.append(1)
                go_on.wait(60)
            return self.app(environ, start)

        self.front.instead = slow
        self.addCleanup(go_on.set)
        links = [self.link().send(b"GET %s HTTP/1.1\r\n" % path + HOST + b"\r\n") for path in (
            b"/api/tasks?q=x", b"/jq/api/tasks?limit=1&%71=x", b"/api/tasks?function=x") * 7]
        wait_until(lambda: asked)
        self.healthy()
        go_on.set()
        self.assertEqual({link.status() for link in links}, {401, 404})

    def test_a_database_that_stays_busy_does_not_end_the_server(self):
        self.check_unreadable("database is locked", jobqueue.Busy("busy", retry_after=2))

    def test_a_database_that_is_damaged_does_not_end_the_server(self):
        self.check_unreadable("database disk image is malformed", jobqueue.StorageBroken("damaged"))

    def check_unreadable(self, words, error):
        """Who asks for what must be read gets a 503, all else is answered, and the server goes on."""
        with mock.patch.object(self.queue.settings, "get", side_effect=error):
            self.assertEqual(self.link().send(HEALTH).status(), 200)
        with mock.patch.object(self.database._reader, "all", side_effect=sqlite3.OperationalError(words)):
            self.assertEqual(self.link().send(HEALTH).status(), 503)
        self.healthy()

    def test_a_request_that_is_being_answered_is_answered_before_the_server_ends(self):
        begun, go_on = threading.Event(), threading.Event()

        def slow():
            begun.set()
            go_on.wait(60)

        with mock.patch.object(self.queue.database, "check_file", slow):
            link = self.link().send(HEALTH)
            begun.wait(60)
            self.server.stop()
            with self.assertRaises(OSError):
                wait_until(lambda: Link(self.server.address).close())
            self.assertTrue(self.thread.is_alive())
            go_on.set()
            self.assertEqual(link.status(), 200)
        self.thread.join(60)
        self.assertFalse(self.thread.is_alive())


class Slow(ServerTestCase):
    """Clients that take their time cost a socket each, and not for ever; the clock is the test's."""

    def setUp(self):
        self.server_clock = FakeClock()
        super().setUp()

    def later(self, seconds):
        """Let time pass for the server, and make it look at the clock."""
        self.await_reading()
        self.server_clock.advance(seconds)
        for _ in range(2):
            self.healthy()

    def opened(self, count, data=b""):
        links = [self.link().send(data) for _ in range(count)]
        wait_until(lambda: self.connections() >= count)
        return links

    def patience_with(self, link, drip=b""):
        """The seconds until the server reacts to a client that sends this every second."""
        seconds = 0
        while not link.has_news(0.05):
            link.send(drip)
            self.later(1)
            seconds += 1
            self.assertLess(seconds, 100)
        return seconds

    def check_patience(self, expected, link, drip=b""):
        """It ends within some seconds more, since threads may look at the clock late."""
        self.assertIn(self.patience_with(link, drip), range(expected, expected + 5))

    def test_a_header_must_be_complete_in_time(self):
        link = self.opened(1, b"GET / HTTP/1.1\r\nX: ")[0]
        self.check_patience(10, link, b"x")
        self.assertEqual(link.status(), 408)
        self.assertTrue(link.is_closed())

    def test_a_body_must_be_complete_in_time(self):
        link = self.opened(1, b"POST /api/session HTTP/1.1\r\n" + HOST
                           + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n")[0]
        self.check_patience(30, link, b"x")
        self.assertEqual(link.status(), 408)
        self.assertTrue(link.is_closed())

    def test_who_says_nothing_is_closed(self):
        link = self.opened(1)[0]
        self.check_patience(10, link)
        self.assertTrue(link.is_closed())

    def test_a_kept_connection_that_says_nothing_is_closed(self):
        link = self.opened(1, HEALTH)[0]
        self.assertEqual(link.status(), 200)
        self.later(10)
        self.assertEqual(link.send(HEALTH).status(), 200)
        self.check_patience(15, link)
        self.assertTrue(link.is_closed())

    def test_stopping_ends_the_server_whatever_clients_do(self):
        links = self.opened(5)
        links[0].send(b"GET /hea")
        self.server.stop()
        self.thread.join(60)
        self.assertFalse(self.thread.is_alive())

    def test_three_hundred_slow_clients_do_not_hold_up_another(self):
        self.opened(150, b"GET / HTTP/1.1\r\nX")
        self.opened(150, b"POST /api/session HTTP/1.1\r\n" + HOST
                    + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        self.healthy()                                  # none of theirs has ended: that takes time
        wait_until(lambda: self.later(31) or self.connections() < 5, what="all closed")

    def test_who_never_reads_does_not_hold_up_another(self):
        self.add("bob")
        self.write_log(1, "x" * (1 << 20))
        self.write("UPDATE task SET attempts=1")
        data = self.request("GET", "/api/tasks/1/log?download=1", token=self.make_token("bob")[1])
        greedy = []
        for _ in range(24):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(self.server.address)
            link.sendall(data * 8)
            greedy.append(link)
            self.addCleanup(link.close)
        for link in greedy:
            select.select([link], [], [], 60)           # its answer has begun
        self.healthy()
        wait_until(lambda: self.later(31) or self.connections() < 5, what="all given up")


class Full(ServerTestCase):
    """More connections than the server keeps: who has been waited for the longest makes room."""

    HALF = {"nothing": b"", "half a head": b"GET / HTTP/1.1\r\nX",
            "half a body": bad(POST, HOST + b"Content-Type: application/json\r\nContent-Length: 9\r\n", b"{"),
            "a whole request": HEALTH}

    def setUp(self):
        import resource
        need(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1500, "1,500 open files")
        super().setUp()

    def test_whoever_waits_in_any_phase_shuts_nobody_out(self):
        for name, data in self.HALF.items():
            with self.subTest(name):
                links = [self.link().send(data) for _ in range(600)]
                wait_until(lambda: self.connections() >= 500)
                for _ in range(20):
                    self.healthy()
                wait_until(lambda: self.connections() <= 512, what="closing those beyond the limit")
                for link in links:
                    link.close()
                wait_until(lambda: self.connections() < 10, what="room again")

    def test_a_request_that_is_being_answered_is_never_given_up(self):
        go_on, asked = threading.Event(), threading.Event()

        def slow(environ, start):
            if environ["QUERY_STRING"]:
                asked.set()
                go_on.wait(60)
            return self.app(environ, start)

        self.front.instead = slow
        link = self.link().send(HEALTH.replace(b"healthz", b"healthz?slow"))
        asked.wait(60)
        for _ in range(600):
            self.link()
        self.healthy()
        go_on.set()
        self.assertEqual(link.status(), 200)

    def test_only_when_all_are_being_answered_another_is_told_to_come_back(self):
        go_on, asked = threading.Event(), []

        def slow(environ, start):
            asked.append(1)
            go_on.wait(60)
            return self.app(environ, start)

        self.front.instead = slow
        links = [self.link().send(HEALTH) for _ in range(512)]
        wait_until(lambda: len(asked) == jobqueue.ANSWERS_AT_ONCE and self.connections() == 512)
        self.await_reading()
        status, headers, _ = self.ask(HEALTH)
        self.assertEqual((status, headers["retry-after"]), (503, "2"))
        go_on.set()
        self.assertEqual({link.status() for link in links}, {200})


class FewThreads(ServerTestCase):
    THREADS = 3                         # that this host allows for connections

    def setUp(self):
        super().setUp()
        real, allowed = threading.Thread.start, threading.Semaphore(self.THREADS)

        def start(thread):
            run = thread.run
            if getattr(thread, "_target", None) != self.server.process_request_thread:
                return real(thread)
            if not allowed.acquire(blocking=False):
                raise RuntimeError("can't start new thread")

            def counted():
                try:
                    run()
                finally:
                    allowed.release()
            thread.run = counted
            return real(thread)

        few = mock.patch.object(threading.Thread, "start", start)
        few.start()
        self.addCleanup(few.stop)

    def test_slow_clients_keep_nobody_waiting(self):
        going_on = threading.Event()
        self.addCleanup(going_on.set)
        links = [self.link().send(b"GET /hea") for _ in range(self.THREADS + 2)]

        def dribble():
            while not going_on.wait(0.2):
                for link in links:
                    link.send(b"x")

        threading.Thread(target=dribble, daemon=True).start()
        for _ in range(5):
            with Link(self.server.address, seconds=8) as link:
                self.assertEqual(link.send(HEALTH).status(), 200)


class Crowd(ServerTestCase):
    """Many clients add at the same time (F10)."""

    CLIENTS = 200
    TASKS = 10_000 if os.environ.get("JOBQUEUE_TEST_LOAD") else 600

    def test_every_acknowledged_task_is_there_once(self):
        token, acknowledged, statuses = self.make_token("bob")[1], [], []
        self.clock.sleep = time.sleep
        self.clock.monotonic, self.clock.now = time.monotonic, time.time
        gate = threading.Barrier(self.CLIENTS)

        def add(client):
            gate.wait()
            for number in range(self.TASKS // self.CLIENTS):
                body = {"function": "add", "arguments": {"a": client * 1000 + number}}
                with Link(self.server.address, seconds=60) as link:
                    status, headers, text = link.send(self.request("POST", "/api/tasks", body,
                        token)).answer()
                statuses.append(status)
                if status == 201:
                    acknowledged.append(json.loads(text)["id"])
                elif "retry-after" not in headers:
                    statuses.append("no Retry-After")

        threads = [threading.Thread(target=add, args=(number,)) for number in range(self.CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(statuses), self.TASKS)
        self.assertLessEqual(set(statuses), {201, 503})
        rows = [row[0] for row in self.database.all("SELECT id FROM task")]
        self.assertEqual(sorted(acknowledged), sorted(rows))
        self.assertGreater(len(acknowledged), self.TASKS // 2)


if __name__ == "__main__":
    unittest.main()
