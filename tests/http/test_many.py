"""Many tasks at once: one JSON object a line over HTTP."""
import contextlib
import io
import json
import os
import unittest
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers.server import HEALTH, Link, ServerTestCase
from tests.helpers.support import FakeClock, TestCase, function_json, need_part, wait_until
from tests.helpers.web import WebTestCase, call

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
                                            (4, "")])

    def test_lines_that_are_not_json_are_named_too(self):
        body = lines(add(1)) + b'{"function": \n\xff\n' + lines(add(2)) + b'{"a":1,"a":2}\n{"a": NaN}'
        self.assertEqual(self.wrong(body), [(1, ""), (2, ""), (4, ""), (5, "")])

    def test_the_sentence_names_the_row_too(self):
        for body, words in (
                (lines(*map(add, range(3)), add("x")),
                 "Nothing was added: row 4 (index 3): arguments.a must be a whole number."),
                (lines(add(1)) + b'{"function": ',
                 "Nothing was added: row 2 (index 1): is not JSON that can be read: "
                 "Expecting value: line 1 column 14 (char 13)."),
                (b"\xff\n", "Nothing was added: row 1 (index 0): is not UTF-8."),
                (lines(add("x")), "Nothing was added: arguments.a must be a whole number.")):
            self.assertEqual(self.send(body, 422)["detail"], words)
        answer = self.check(self.bob.post("/api/tasks", [add(1), add(1, after=[99])]), 422)
        self.assertIn("Nothing was added: row 2 (index 1): after must name tasks", answer["detail"])

    def test_after_some_errors_the_rest_is_not_read(self):
        body = lines(*[add("x")] * 100)
        self.assertEqual(len(self.wrong(body)), jobqueue.ERRORS_MAX)

    def test_an_empty_body_is_refused(self):
        for body in (b"", b"\n \n"):
            self.send(body, 400)

    def test_too_many_lines_too_long_ones_and_too_large_bodies_are_refused(self):
        for name, limit in (("ADD_MAX", 2), ("LINES_MAX_BYTES", 50), ("BODY_MAX_BYTES", 20)):
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

    def test_what_waits_in_a_file_meanwhile_is_added_whole(self):
        texts = ["one", "z\u00e4hlen \U0001f600", "", "x" * 5000]
        body = lines(*({"function": "greet", "arguments": {"name": text}} for text in texts))
        with mock.patch.object(jobqueue, "ARGUMENTS_HELD_BYTES", 10):
            ids = self.send(body)["ids"]
        found = [json.loads(self.row(one)["arguments"])["name"] for one in ids]
        self.assertEqual(found, texts)

    def test_nothing_is_added_if_there_is_no_room_for_that_file(self):
        with open("/dev/full", "wb", 0) as full, \
                mock.patch.object(jobqueue, "ARGUMENTS_HELD_BYTES", 10), \
                mock.patch("tempfile.TemporaryFile", lambda **_: full):
            self.send(lines(add(1), add(2), add(3)), 507)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_an_admin_names_one_owner_for_all_of_them(self):
        answer = self.send(lines(add(1, owner="bob"), add(2, owner="bob")), visitor=self.ana)
        self.assertEqual({self.row(one)["owner_id"] for one in answer["ids"]}, {self.owner_id("bob")})
        self.send(lines(add(1, owner="bob"), add(2)), 422, self.ana)
        self.send(lines(add(1, owner="eve")), 422)

    def test_a_repeated_request_gets_its_answer_even_if_it_would_be_wrong_now(self):
        body = lines(*map(add, range(40)))
        sent = {**LINES, "Idempotency_Key": "k"}
        first = self.bob.post("/api/tasks", body, **sent)
        self.declare()
        again = self.bob.post("/api/tasks", body, **sent)
        self.assertEqual((again.status, again.json), (201, first.json))
        self.check_wrong(self.bob.post("/api/tasks", body + lines(add(1)), **sent), "Idempotency-Key")

    def test_other_routes_do_not_take_lines(self):
        self.check(self.ana.post("/api/users", b"{}", **LINES), 415)

    def test_other_pages_cannot_send_them(self):
        self.check(self.bob.post("/api/tasks", lines(add(1)), Sec_Fetch_Site="cross-site", **LINES), 403)


class Uploads(ServerTestCase):
    """Bodies that are too large for memory, here from 1 kB on, sent to the built-in server."""

    def setUp(self):
        for name, value in (("LARGE_BYTES", 1000), ("BODY_MAX_BYTES", 1000),
                            ("LINES_MAX_BYTES", 20000)):
            self.patch(jobqueue, name, value)
        super().setUp()
        self.token = self.make_token("bob")[1]

    def head(self, length, path="/api/tasks", kind="application/x-ndjson", token=None, extra=""):
        text = ("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                "Authorization: Bearer %s\r\n%s\r\n" % (path, kind, length, token or self.token, extra))
        return text.encode()

    def count(self):
        return self.database.value("SELECT count(*) FROM task")

    def files(self):
        """The open files without a name in the data folder: one for each upload."""
        names = []
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(os.readlink(str(link)))
        folder = str(self.folder / "data")
        return sum(name.startswith(folder) and name.endswith("(deleted)") for name in names)

class TestLargest(ServerTestCase):
    """As many as may be, in as large a body as may be, with the limits as they are."""

    def test_a_hundred_thousand_in_one_upload_of_64_mib(self):
        need_part("abuse")
        self.declare(function_json("send", {"to": {"type": "string"}}))
        most = 64 << 20
        room = most // 100_000 - len(lines(self.letter("")))
        body = lines(*(self.letter(("%d " % number).ljust(room, "x")) for number in range(100_000)))
        self.assertLess(most - len(body), 1 << 20)
        self.assertLessEqual(len(body), most)
        head = ("POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
                "Content-Length: %%d\r\nAuthorization: Bearer %s\r\n\r\n" % self.make_token("bob")[1])
        self.assertEqual(self.send(head, body + lines(add(1)))[0], 413)
        self.assertEqual(self.send(head, b"x" * (most + 1))[0], 413)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)
        status, _, answer = self.send(head, body)
        self.assertEqual((status, json.loads(answer)["created"]), (201, 100_000))
        rows = self.database.all("SELECT arguments FROM task ORDER BY id")
        self.assertEqual([int(json.loads(row[0])["to"].split()[0]) for row in rows], list(range(100_000)))

    @staticmethod
    def letter(to):
        return {"function": "send", "arguments": {"to": to}}

    def send(self, head, body):
        link = Link(self.server.address, 300)
        self.addCleanup(link.close)
        return link.send((head % len(body)).encode()).send(body).answer()


class TestUploads(Uploads):

    def test_a_large_body_is_taken_whole_and_in_pieces(self):
        body = lines(*map(add, range(200)))
        self.assertEqual(self.ask(self.head(len(body)) + body)[0], 201)
        link = self.link().send(self.head(len(body)) + body[:10])
        wait_until(self.files, what="a file for the body")
        for start in range(10, len(body), 3000):
            link.send(body[start:start + 3000])
        status, _, answer = link.answer()
        self.assertEqual((status, json.loads(answer)["created"]), (201, 200))
        self.assertEqual(self.count(), 400)
        wait_until(lambda: not self.files(), what="the end of all files")
        self.assertEqual(link.send(HEALTH).status(), 200)

    def test_who_may_not_send_it_hears_so_before_sending(self):
        link = self.link().send(self.head(5000, token="jq_wrong", extra="Expect: 100-continue\r\n"))
        self.assertEqual(link.status(), 401)
        self.assertTrue(link.is_closed())
        link = self.link().send(self.head(5000, extra="Expect: 100-continue\r\n"))
        self.assertEqual(link.status(), 100)
        self.assertEqual(self.ask(self.head(5000).replace(b"localhost", b"other.example"))[0], 421)

    def test_only_lines_for_new_tasks_may_be_large(self):
        for rest in ({"kind": "application/json"}, {"path": "/api/users"}, {"path": "/api/tasks/1/cancel"}):
            self.assertIn(self.ask(self.head(5000, **rest))[0], (403, 404, 413), rest)
        self.assertEqual(self.ask(self.head(20001))[0], 413)

    def test_an_upload_that_breaks_off_leaves_nothing(self):
        link = self.link().send(self.head(5000) + lines(add(1)))
        wait_until(self.files, what="a file for the body")
        link.close()
        wait_until(lambda: not self.files(), what="the end of the upload")
        self.assertEqual((self.count(), self.queue_files()), (0, []))

    def queue_files(self):
        return [path.name for path in (self.folder / "data").iterdir() if path.name.startswith("tmp")]

    def test_many_upload_at_once_and_nobody_else_waits_for_them(self):
        body = lines(*map(add, range(100)))
        links = [self.link().send(self.head(len(body)) + body[:-1]) for _ in range(40)]
        wait_until(lambda: self.files() == len(links), what="their files")
        self.healthy()
        self.assertEqual(self.ask(self.request("POST", "/api/tasks", add(1), self.token))[0], 201)
        for link in links:
            self.assertEqual(link.send(body[-1:]).status(), 201)
        self.assertEqual(self.count(), 4001)
        wait_until(lambda: not self.files(), what="the end of all files")

    def test_a_full_disk_is_said_in_words(self):
        room = mock.Mock(f_bavail=1, f_frsize=1024)
        with mock.patch.object(jobqueue.os, "statvfs", return_value=room):
            self.assertEqual(self.ask(self.head(5000))[0], 507)
        self.healthy()

    def test_a_disk_that_fills_up_meanwhile_is_said_in_words(self):
        file = io.BytesIO()
        file.write = mock.Mock(side_effect=OSError(28, "full"))
        with mock.patch("tempfile.TemporaryFile", return_value=file):
            self.assertEqual(self.ask(self.head(5000) + b"x" * 100)[0], 507)
        self.healthy()

    def test_below_a_base_path_they_may_be_as_large(self):
        self.change_settings(base_path="/jq")
        link = self.link().send(self.head(5000, "/jq/api/tasks", extra="Expect: 100-continue\r\n"))
        self.assertEqual(link.status(), 100)
        head = self.head(5000, "/jq/api/tasks", "application/json", extra="Expect: 100-continue\r\n")
        self.assertEqual(self.ask(head)[0], 413)


class TestSlowUploads(Uploads):
    """With a clock that the test moves."""

    def setUp(self):
        self.server_clock = FakeClock()
        super().setUp()

    def patience_with(self, drip):
        """The seconds until an upload of 5,000 bytes ends that goes on with this every second."""
        link, seconds = self.link().send(self.head(5000) + b"{"), 0
        wait_until(self.files, what="a file for the body")
        while not link.has_news(0.05):
            self.await_reading()
            self.server_clock.advance(1)
            for _ in range(2):
                self.healthy()
            link.send(drip)
            seconds += 1
        self.assertEqual(link.status(), 408)
        wait_until(lambda: not self.files(), what="the end of its file")
        return seconds

    def test_who_sends_nothing_for_long_is_sent_away(self):
        self.assertIn(self.patience_with(b""), range(30, 35))

    def test_who_sends_drop_by_drop_is_sent_away_too(self):
        self.assertIn(self.patience_with(b"x"), range(30, 35))


class TestEnqueueMany(WebTestCase):

    def test_any_iterable_will_do(self):
        ids = self.queue.enqueue_many("add", ({"a": number} for number in range(30)), owner="bob")
        self.assertEqual(len(ids), 30)

    def test_one_wrong_among_them_adds_none_and_says_which(self):
        with self.refused(jobqueue.Invalid) as caught:
            self.queue.enqueue_many("add", iter([{"a": 1}, {"a": "x"}]), owner="bob")
        self.assertEqual(caught.exception.errors[0]["index"], 1)
        self.assertIn("row 2 (index 1): arguments.a must be", caught.exception.detail)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)


class TestEach(TestCase):
    """add FUNCTION --each FILE.csv"""

    def run_add(self, text, *more, function="add"):
        """Standard output and standard error of `add` with this file."""
        path = self.folder / "rows.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        options, run = jobqueue.parse_command(
            ["add", function, *more, "--owner", "bob", "--each", str(path)])
        with mock.patch("sys.stdout", io.StringIO()) as out:
            run(jobqueue.LocalClient(self.queue), options)
        return out.getvalue().strip()

    def wrong(self, text, *words, function="add"):
        with self.assertRaises(jobqueue.JobQueueError) as caught:
            self.run_add(text, function=function)
        for word in words:
            self.assertIn(word, caught.exception.detail)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def rows(self):
        """The arguments of all tasks in order."""
        return [json.loads(row[0]) for row in self.database.all("SELECT arguments FROM task ORDER BY id")]

    def test_each_row_becomes_a_task_and_their_number_is_printed(self):
        self.assertEqual(self.run_add("a,b\n1,2\n3,4\n"), "2 tasks")
        self.assertEqual(self.rows(), [{"a": 1, "b": 2}, {"a": 3, "b": 4}])

    def test_files_as_spreadsheets_write_them(self):
        for text in ("\ufeffa;b\r\n1;2\r\n", "a\tb\n1\t2", "b,a\r\n2,1\r\n,\r\n\r\n", '"a","b"\n"1","2"\n'):
            with self.subTest(text):
                self.write("DELETE FROM task WHERE status=0")
                self.assertEqual(self.run_add(text), "1 task")
                self.assertEqual(self.rows(), [{"a": 1, "b": 2}])

    def test_cells_are_typed_by_the_schema_and_may_hold_separators_and_lines(self):
        self.run_add('name\n"Ås; ""Bo"", 007"\n"two\nlines"\n007\n', function="greet")
        self.assertEqual([row["name"] for row in self.rows()], ['Ås; "Bo", 007', "two\nlines", "007"])

    def test_an_empty_cell_leaves_an_optional_parameter_at_its_default(self):
        self.run_add("a,b\n1,\n")
        self.assertEqual(self.rows(), [{"a": 1}])

    def test_an_empty_cell_of_a_required_parameter_is_an_error(self):
        self.wrong("a,b\n,1\n", "arguments.a is missing")
        self.declare(function_json("send", {"to": {"type": "string"}, "text": {"type": "string"}}))
        self.wrong("to,text\nana,hello\n,hello\n", "row 3: arguments.to is missing",
                   function="send")

    def test_an_empty_cell_is_null_where_a_required_parameter_may_be_that(self):
        self.declare(function_json("send", {"to": {"type": "string"}, "at": {"type": ["integer", "null"]}}))
        self.run_add("to,at\nana,\n", function="send")
        self.assertEqual(self.rows(), [{"to": "ana", "at": None}])

    def test_other_arguments_and_options_are_the_same_for_all_rows(self):
        self.run_add("a\n1\n2\n", "b=7", "--priority", "5", "--delay", "60")
        self.assertEqual(self.rows(), [{"a": 1, "b": 7}, {"a": 2, "b": 7}])
        found = {tuple(row) for row in self.database.all("SELECT priority, status FROM task")}
        self.assertEqual(found, {(5, jobqueue.SCHEDULED)})

    def test_json_gives_the_ids(self):
        self.assertEqual(json.loads(self.run_add("a\n1\n2\n", "--json")), {"ids": [1, 2], "created": 2})

    def test_errors_name_row_and_column_and_nothing_is_added(self):
        self.wrong('a,b\n1,2\n\n"x",2\n3,y\n', "row 4: arguments.a must be a whole number",
                   "row 5: arguments.b must be")
        self.wrong("a,b\n1,2\n4\n", "Row 3 must have as many cells as row 1, 2; it has 1")
        self.wrong("a\nx\n", "arguments.a must be a whole number")
        self.wrong("b\n1\n", "arguments.a is missing")

    def test_wrong_options_are_named_too_and_one_key_for_all_is_refused(self):
        for words, said in ((("--after", "99"), "after must name tasks"),
                            (("--unique-key", "x"), "unique_key cannot be the same for all rows")):
            with self.refused(jobqueue.Invalid, said):
                self.run_add("a\n1\n", *words)

    def test_a_first_row_alone_is_no_mailing(self):
        self.wrong("a,b\n", "There is no row below the first one")

    def test_a_wrong_first_row_is_refused(self):
        self.wrong("a,c\n1,2\n", "arguments.c is not known here; known are a, b")
        self.wrong("a,a\n1,2\n", "arguments.a is given twice")
        with self.refused(jobqueue.Invalid, "arguments.a is given twice"):
            jobqueue.typed_arguments(self.queue.requests.function("add"), ["a=1", "a=2"])

    def test_the_separator_is_looked_for_outside_of_quotes(self):
        for text in ('"a";"b"\n1;2\n', 'sep=;\r\na;b\r\n1;2\r\n', '\ufeffsep=|\na|b\n1|2\n',
                     '"sep=,"\na,b\n1,2\n'):
            with self.subTest(text):
                self.write("DELETE FROM task")
                self.run_add(text)
                self.assertEqual(self.rows(), [{"a": 1, "b": 2}])
        self.write("DELETE FROM task")
        self.wrong('"a, b, c, d";b\n1;2\n', "a, b, c, d")
        self.wrong('"a,\nb";b\n1;2\n', "arguments")

    def test_blank_rows_count_as_in_the_spreadsheet(self):
        text = "a;b\n;\n1;2\n\n1;2\nx;2\n"
        self.wrong(text, "row 6: arguments.a")
        self.run_add(text.replace("x", "1") + ";\n" * 300)
        self.assertEqual(len(self.rows()), 3)

    def test_a_long_cell_is_no_error_of_the_reader(self):
        self.assertEqual(self.run_add('name\n"%s"\n' % ("x" * 150_000), function="greet"), "1 task")

    def test_what_is_no_csv_file_in_utf_8_is_refused(self):
        self.wrong(b"name\nOslo\nK\xf6ln\n", "rows.csv is not in UTF-8: save it as CSV UTF-8",
                   function="greet")
        self.wrong('name\nVik\n"Oslo\nBergen\n', "row 3, which begins in line 3",
                   "unexpected end of data", function="greet")
        self.wrong("", "There is no row below the first one")

    def test_a_file_that_cannot_be_opened_is_a_wrong_argument(self):
        for path, words in ((self.folder / "none.csv", "No such file"), (self.folder, "Is a directory")):
            options, run = jobqueue.parse_command(["add", "add", "--each", str(path)])
            with self.refused(jobqueue.Malformed, words) as caught:
                run(jobqueue.LocalClient(self.queue), options)
            self.assertEqual(caught.exception.exit_code, 2)


if __name__ == "__main__":
    unittest.main()
