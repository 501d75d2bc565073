"""Many tasks at once: one JSON object a line over HTTP."""
import io
import json
import unittest
from unittest import mock

import jobqueue
from tests.web import WebTestCase, call

LINES = {"Content_Type": "application/x-ndjson"}


def lines(*requests):
    """The body with one request a line."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


def add(a, **more):
    """A request for the function add."""
    return {"function": "add", "arguments": {"a": a}, **more}


class TestLines(WebTestCase):

    def send(self, body, status=201, visitor=None):
        return self.check((visitor or self.bob).post("/api/tasks", body, **LINES), status)

    def wrong(self, body):
        """(index, field) of each error; nothing was added."""
        answer = self.send(body, 422)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)
        return [(error.get("index"), error["field"]) for error in answer["errors"]]

    def test_each_line_becomes_a_task_in_the_order_of_the_lines(self):
        answer = self.send(lines(*map(add, range(50))))
        self.assertEqual((answer["created"], len(answer["ids"])), (50, 50))
        found = [json.loads(self.row(one)["arguments"])["a"] for one in answer["ids"]]
        self.assertEqual(found, list(range(50)))

    def test_the_last_line_needs_no_end_and_blank_lines_do_not_count(self):
        self.assertEqual(self.send(b"\r\n" + lines(add(1)) + b"  \n\n" + lines(add(2))[:-1])["created"], 2)

    def test_programs_send_them_as_browsers_do(self):
        self.assertEqual(self.send(lines(add(1)), visitor=self.program("bob"))["created"], 1)

    def test_wrong_lines_are_named_by_place_and_field_and_nothing_is_added(self):
        body = lines(add(1), add("x"), {"function": "nosuch"}, add(1, priority=1000), 7, add(2))
        self.assertEqual(self.wrong(body), [(1, "arguments.a"), (2, "function"), (3, "priority"),
                                            (3, "priority"), (4, "")])

    def test_lines_that_are_not_json_are_named_too(self):
        body = lines(add(1)) + b'{"function": \n\xff\n' + lines(add(2)) + b'{"a":1,"a":2}\n{"a": NaN}'
        self.assertEqual(self.wrong(body), [(1, ""), (2, ""), (4, ""), (5, "")])

    def test_after_some_errors_the_rest_is_not_read(self):
        body = lines(*[add("x")] * 100)
        self.assertLessEqual(len(self.wrong(body)), jobqueue.ERRORS_MAX + 1)

    def test_an_empty_body_is_refused(self):
        for body in (b"", b"\n \n"):
            self.send(body, 400)

    def test_too_many_lines_too_long_ones_and_too_large_bodies_are_refused(self):
        for name, limit in (("LINES_MAX", 2), ("LINES_MAX_BYTES", 50), ("BODY_MAX_BYTES", 20)):
            with mock.patch.object(jobqueue, name, limit):
                self.send(lines(add(1), add(2), add(3)), 413)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_a_body_that_ends_early_adds_nothing(self):
        environ = self.bob.environ("POST", "/api/tasks", lines(add(1), add(2)), LINES)
        environ["wsgi.input"] = io.BytesIO(lines(add(1)))
        self.assertEqual(call(self.app, environ).status, 400)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_the_body_is_read_in_pieces(self):
        body = lines(*map(add, range(5000)))
        asked = []

        class Input(io.BytesIO):
            def read(self, size):
                asked.append(size)
                return super().read(size)

        environ = self.bob.environ("POST", "/api/tasks", body, LINES)
        environ["wsgi.input"] = Input(body)
        self.assertEqual(call(self.app, environ).status, 201)
        self.assertLessEqual(max(asked), jobqueue.PIECE_BYTES)

    def test_an_admin_names_one_owner_for_all_of_them(self):
        answer = self.send(lines(add(1, owner="bob"), add(2, owner="bob")), visitor=self.ana)
        self.assertEqual({self.row(one)["owner_id"] for one in answer["ids"]}, {self.owner_id("bob")})
        self.send(lines(add(1, owner="bob"), add(2)), 422, self.ana)
        self.send(lines(add(1, owner="eve")), 422)

    def test_other_routes_do_not_take_lines(self):
        self.check(self.ana.post("/api/users", b"{}", **LINES), 415)

    def test_other_pages_cannot_send_them(self):
        self.check(self.bob.post("/api/tasks", lines(add(1)), Sec_Fetch_Site="cross-site", **LINES), 403)


class TestEnqueueMany(WebTestCase):

    def test_any_iterable_will_do(self):
        ids = self.queue.enqueue_many("add", ({"a": number} for number in range(30)), owner="bob")
        self.assertEqual(len(ids), 30)

    def test_one_wrong_among_them_adds_none_and_says_which(self):
        with self.refused(jobqueue.Invalid) as caught:
            self.queue.enqueue_many("add", iter([{"a": 1}, {"a": "x"}]), owner="bob")
        self.assertEqual(caught.exception.errors[0]["index"], 1)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)


if __name__ == "__main__":
    unittest.main()
