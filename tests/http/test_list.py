"""The list of tasks: its orders, times and fields, what it tells besides, and the files of all that match."""
import csv
import http.client
import io
import json
import tracemalloc
import unittest
from unittest import mock
from urllib.parse import quote

import jobqueue
from tests.helpers.server import ServerTestCase
from tests.helpers.web import WebTestCase


class Listing(WebTestCase):

    def page(self, query="", visitor=None):
        return self.check((visitor or self.bob).get("/api/tasks" + query), 200)

    def ids(self, query="", visitor=None):
        return [row["id"] for row in self.page(query, visitor)["tasks"]]

    def ids_of_all_pages(self, query):
        ids, cursor = [], ""
        while cursor is not None:
            page = self.page(query + cursor)
            ids += [row["id"] for row in page["tasks"]]
            cursor = page["next"] and "&cursor=" + page["next"]
        return ids

    def ran(self, seconds, owner="bob", **options):
        """A task that ran for so long."""
        task_id = self.add(owner, **options)
        row = self.claim()
        self.clock.advance(seconds)
        self.end(row)
        return task_id

    def failed(self, kind, words="no", owner="bob", **options):
        task_id = self.add(owner, **options)
        self.end(self.claim(), "fail", None, kind, words)
        return task_id


class Orders(Listing):

    def test_the_oldest_come_first_if_one_asks_so_whatever_the_filter(self):
        ids = self.add_many("bob", 25)
        self.cancel(ids[3])
        for query, wanted in (("", ids), ("&status=pending", ids[:3] + ids[4:]), ("&q=add", ids),
                              ("&status=pending,cancelled", ids), ("&function=add", ids)):
            self.assertEqual(self.ids_of_all_pages("?sort=id&limit=10" + query), wanted, query)
            self.assertEqual(self.ids_of_all_pages("?sort=-id&limit=10" + query), wanted[::-1], query)

    def test_by_duration_those_that_run_count_as_long_as_they_do_so_far(self):
        short, long = self.ran(5), self.ran(50)
        running = self.add("bob")
        self.claim()
        self.clock.advance(20)
        waiting = self.add("bob")
        self.assertEqual(self.ids("?sort=-duration"), [long, running, short, waiting])
        self.assertEqual(self.ids("?sort=duration"), [waiting, short, running, long])

    def test_by_function_and_by_when_they_began(self):
        add, greet = self.add("bob"), self.add("bob", function="greet", name="x")
        first, second = self.claim(), self.claim()
        self.assertEqual((first["id"], second["id"]), (add, greet))
        self.write("UPDATE task SET started_at=started_at+5 WHERE id=?", (add,))
        later = self.add("bob", function="greet", name="y")
        self.assertEqual(self.ids("?sort=function"), [add, later, greet])
        self.assertEqual(self.ids("?sort=-started_at"), [add, greet, later])

    def test_pages_of_an_order_follow_each_other(self):
        wanted = [self.ran(seconds) for seconds in (3, 1, 4, 1, 5, 9, 2, 6)]
        found = self.ids_of_all_pages("?sort=-duration&limit=3")
        self.assertEqual(sorted(found), wanted)
        self.assertEqual(found[0], wanted[5])
        self.assertEqual(found, self.ids("?sort=-duration"))

    def test_a_page_after_a_task_that_is_gone_is_refused(self):
        for seconds in (3, 1, 4):
            self.ran(seconds)
        page = self.page("?sort=duration&limit=1")
        self.delete(page["tasks"][0]["id"], "bob")
        self.check(self.bob.get("/api/tasks?sort=duration&cursor=" + page["next"]), 400, "malformed")

    def test_only_the_newest_are_sorted(self):
        ids = [self.ran(seconds) for seconds in (9, 1, 5)]
        with mock.patch.object(jobqueue, "SORT_ROWS", 2):
            self.assertEqual(self.ids("?sort=-duration"), [ids[2], ids[1]])
            self.assertEqual(self.ids("?sort=-duration&status=succeeded&q=add"), [ids[2], ids[1]])

    def test_those_that_wait_keep_none_that_ran_out_of_an_order_by_times(self):
        short, long = self.ran(5), self.ran(50)
        waiting = [self.add("bob") for _ in range(3)]
        with mock.patch.object(jobqueue, "SORT_ROWS", 2):
            self.assertEqual(self.ids("?sort=-duration")[:2], [long, short])
            self.assertEqual(self.ids("?sort=-started_at")[:2], [long, short])
            self.assertEqual(self.ids("?sort=-duration&status=pending"), waiting[:0:-1])
            self.assertEqual(self.ids("?sort=-function"), waiting[:0:-1])

    def test_nobody_sees_others_tasks_in_any_order(self):
        mine = self.add("bob")
        self.add("eve")
        for order in ("id", "-id", "duration", "started_at", "-function"):
            self.assertEqual(self.ids("?sort=" + order), [mine], order)

    def test_an_order_that_there_is_not_is_malformed(self):
        for order in ("nothing", "--id", "id,function", "created"):
            self.check(self.bob.get("/api/tasks?sort=" + order), 400, "malformed")


class Which(Listing):

    def test_tasks_are_found_by_the_time_when_they_were_added(self):
        first = self.add("bob")
        self.clock.advance(600)
        noon = quote(jobqueue.iso(self.clock.now()))
        second = self.add("bob")
        self.assertEqual(self.ids("?since=" + noon), [second])
        self.assertEqual(self.ids("?until=" + noon), [first])
        self.assertEqual(self.ids("?since=%s&until=%s" % (noon, noon)), [])
        self.assertEqual(self.page("?counts=1&since=" + noon)["counts"]["all"], 1)
        self.check(self.bob.get("/api/tasks?since=yesterday"), 400, "malformed")

    def test_an_action_keeps_to_the_times_too(self):
        first = self.add("bob")
        self.clock.advance(600)
        noon = jobqueue.iso(self.clock.now())
        second = self.add("bob")
        self.check(self.bob.post("/api/tasks/actions", {
            "action": "cancel", "filter": {"until": noon}, "expected_count": 1}), 200)
        self.assertEqual((self.status(first), self.status(second)), ("cancelled", "pending"))

    def test_tasks_are_found_by_their_numbers_but_not_others(self):
        one, _, three = self.add_many("bob", 3)
        theirs = self.add("eve")
        self.assertEqual(self.ids("?ids=%d,%d,%d" % (one, three, theirs)), [three, one])
        self.check(self.bob.get("/api/tasks?ids=1,x"), 400, "malformed")


class Besides(Listing):

    def test_arguments_and_results_are_told_if_one_asks_for_them(self):
        task_id = self.add("bob", function="greet", name="x")
        self.end(self.claim(), "succeeded", json.dumps({"pages": 12}))
        row, = self.page("?fields=arguments,result")["tasks"]
        self.assertEqual((row["id"], row["arguments"], row["result"]),
                         (task_id, {"name": "x"}, {"pages": 12}))
        row, = self.page("?fields=result&q=greet")["tasks"]
        self.assertEqual((row["result"], "arguments" in row), ({"pages": 12}, False))
        self.check(self.bob.get("/api/tasks?fields=claim"), 400, "malformed")

    def test_what_is_long_is_left_out_of_a_list(self):
        self.add("bob", function="greet", name="x" * 5000)
        self.end(self.claim(), "succeeded", json.dumps("y" * 1000))
        row, = self.page("?fields=arguments,result")["tasks"]
        self.assertEqual((row["arguments"], row["result"], row["summary"]), (None, "…", "…"))

    def test_a_task_without_a_result_has_none(self):
        self.add("bob")
        self.assertIsNone(self.page("?fields=result")["tasks"][0]["result"])

    def test_what_runs_is_told_wherever_it_stands_as_far_as_it_matches(self):
        running = self.add("bob")
        self.claim()
        self.add("eve")
        self.claim()
        self.add_many("bob", 5)
        page = self.page("?limit=3&running=1")
        self.assertEqual([row["id"] for row in page["running"]], [running])
        self.assertNotIn(running, [row["id"] for row in page["tasks"]])
        self.assertEqual(self.page("?running=1&function=greet")["running"], [])
        self.assertEqual(self.page("?running=1&status=pending")["running"], [])
        self.assertNotIn("running", self.page())

    def test_what_failed_is_told_by_function_and_error_as_far_as_it_matches(self):
        for kind in ("ValueError", "OSError", "ValueError"):
            newest = self.failed(kind)
        self.failed("OSError", owner="eve")
        self.add("bob")
        told = self.page("?failed=1&status=failed")["failed"]
        self.assertEqual([(one["error"], one["count"]) for one in told["groups"]],
                         [("ValueError", 2), ("OSError", 1)])
        self.assertEqual((told["groups"][0]["newest"], told["more"]), (newest, False))
        told = self.page("?failed=1&error=OSError")["failed"]
        self.assertEqual([one["error"] for one in told["groups"]], ["OSError"])
        self.assertEqual(self.page("?failed=1&status=pending")["failed"]["groups"], [])

    def test_groups_have_the_count_of_the_list_that_they_lead_to(self):
        for kind in ("ValueError", "OSError", "ValueError"):
            self.failed(kind)
        self.failed("ValueError", owner="eve")
        for visitor, count in ((self.bob, 2), (self.ana, 3)):
            told = self.check(visitor.get("/api/tasks?failed=1&status=failed"), 200)["failed"]
            for group in told["groups"]:
                counts = self.check(visitor.get("/api/tasks?counts=1&status=failed&function=%s&error=%s" % (
                    group["function"], group["error"])), 200)["counts"]
                self.assertEqual(group["count"], counts["failed"])
            self.assertEqual(told["groups"][0]["count"], count)

    def test_why_queues_start_nothing_is_told_for_what_is_shown_and_for_the_filter(self):
        self.check(self.ana.patch("/api/queues/mail", {"paused": True, "paused_why": "no provider"}), 200)
        self.assertEqual(self.page("?held=1")["held"], [])
        held = [{"queue": "mail", "code": "paused", "text": "The queue mail is paused by ana: no provider."}]
        self.assertEqual(self.page("?held=1&queue=mail")["held"], held)
        self.add("bob", options={"queue": "mail"})
        self.assertEqual(self.page("?held=1")["held"], held)
        self.assertNotIn("held", self.page())


class Files(Listing):

    def file(self, query, visitor=None):
        """(the text of a file, its media type)"""
        reply = (visitor or self.bob).get("/api/tasks?" + query)
        self.assertEqual(reply.status, 200, reply.text)
        self.assertNotIn("content-length", reply.headers)
        return reply.body.decode("utf-8-sig"), reply.kind

    def rows(self, query="", visitor=None):
        """The rows of a CSV file."""
        text, kind = self.file("format=csv" + query, visitor)
        self.assertEqual(kind, "text/csv")
        return list(csv.DictReader(io.StringIO(text, newline="")))

    def test_a_csv_file_has_all_that_matches_and_begins_as_spreadsheets_want_it(self):
        ids = self.add_many("bob", 120)
        self.add("bob", function="greet", name="x")
        reply = self.bob.get("/api/tasks?format=csv&function=add&limit=3")
        self.assertTrue(reply.body.startswith(b"\xef\xbb\xbfid,owner,"))
        self.assertEqual(reply.headers["content-disposition"], 'attachment; filename="tasks.csv"')
        self.assertEqual([int(row["id"]) for row in self.rows("&function=add")], ids[::-1])
        self.assertEqual([int(row["id"]) for row in self.rows("&status=pending&function=add&sort=id")], ids)

    def test_json_lines_have_what_lists_have_with_arguments_and_results(self):
        self.ran(5)
        text, kind = self.file("format=ndjson")
        self.assertEqual(kind, "application/x-ndjson")
        row, = map(json.loads, text.splitlines())
        self.assertEqual((row["arguments"], row["result"], row["status"]), ({"a": 1}, None, "succeeded"))

    def test_cells_hold_texts_as_they_are_and_the_rest_as_json(self):
        self.add("bob", function="greet", name='a "b", c\nd')
        self.end(self.claim(), "succeeded", json.dumps("y" * 31_000))
        self.add("bob")
        self.end(self.claim(), "succeeded", json.dumps({"pages": 12}))
        self.failed("ValueError", "no, really")
        failed, plain, long = self.rows()
        self.assertEqual(failed["error"], "ValueError: no, really")
        self.assertEqual((plain["result"], plain["arguments"]), ('{"pages":12}', '{"a":1}'))
        self.assertEqual((long["result"], json.loads(long["arguments"])),
                         ("y" * 31_000, {"name": 'a "b", c\nd'}))

    def test_what_a_spreadsheet_takes_for_a_formula_is_made_harmless(self):
        for text in ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1"):
            self.add("bob")
            self.end(self.claim(), "succeeded", json.dumps(text))
            self.assertEqual(self.rows()[0]["result"], "'" + text.replace("\t=", "\t'="))
        self.add("bob")
        self.end(self.claim(), "succeeded", json.dumps(-5))
        self.assertEqual(self.rows()[0]["result"], "-5")

    def test_a_file_holds_what_one_may_see(self):
        mine, theirs = self.add("bob"), self.add("eve")
        self.assertEqual([int(row["id"]) for row in self.rows()], [mine])
        self.assertEqual(self.rows("&ids=%d" % theirs), [])
        self.assertEqual([int(row["id"]) for row in self.rows("", self.ana)], [theirs, mine])
        self.check(self.bob.get("/api/tasks?format=csv&owner=eve"), 403)
        self.check(self.nobody.get("/api/tasks?format=csv"), 401)

    def test_a_file_is_never_kept_for_the_next(self):
        self.add("bob")
        self.assertEqual([len(self.rows()) for _ in range(3)], [1, 1, 1])

    def test_a_file_of_nothing_has_its_first_line_only(self):
        self.assertEqual(self.rows(), [])
        self.assertEqual(self.file("format=ndjson")[0], "")

    def test_an_order_of_some_is_refused(self):
        self.assertEqual(self.check(self.bob.get("/api/tasks?format=csv&sort=duration"), 400)["errors"], [
            {"field": "sort", "message": "must be -id or id in a file"}])
        self.check(self.bob.get("/api/tasks?format=xlsx"), 400, "malformed")

    def test_to_ask_for_the_head_makes_nothing(self):
        self.add("bob")
        with mock.patch.object(self.queue.tasks, "find", side_effect=AssertionError):
            self.assertEqual(self.bob.ask("HEAD", "/api/tasks?format=csv").body, b"")

    def test_many_tasks_take_little_memory(self):
        self.add_many("bob", 3000)
        environ = self.bob.environ("GET", "/api/tasks?format=ndjson")
        self.app(dict(environ), lambda *_: None)        # what is imported now, and kept
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        size = sum(map(len, self.app(environ, lambda *_: None)))
        self.assertGreater(size, 1_500_000)
        self.assertLess(tracemalloc.get_traced_memory()[1], size / 2)


class Sent(ServerTestCase):
    """By our own server, while they are made."""

    def ask_for_file(self, version=11):
        link = http.client.HTTPConnection(*self.server.address, timeout=60)
        self.addCleanup(link.close)
        link._http_vsn, link._http_vsn_str = version, "HTTP/1.%d" % (version - 10)
        link.request("GET", "/api/tasks?format=ndjson", headers={"Cookie": self.bob.cookie})
        return link.getresponse()

    def test_a_file_comes_in_chunks_and_an_old_client_gets_it_without(self):
        ids = self.add_many("bob", 120)
        for version, coding in ((11, "chunked"), (10, None)):
            answer = self.ask_for_file(version)
            self.assertEqual(answer.getheader("Transfer-Encoding"), coding)
            self.assertEqual([json.loads(line)["id"] for line in answer.read().splitlines()], ids[::-1])

    def test_who_gets_a_part_only_knows_it(self):
        self.add_many("bob", 120)
        pages = self.queue.tasks.pages

        def break_down(*wanted):
            yield next(pages(*wanted))
            raise OSError("the disk is gone")

        with mock.patch.object(self.queue.tasks, "pages", break_down):
            with self.assertRaises(http.client.IncompleteRead) as caught:
                self.ask_for_file().read()
        self.assertEqual(len(caught.exception.partial.splitlines()), 50)

    def test_who_leaves_early_costs_nothing_more(self):
        self.add_many("bob", 1000)
        answer = self.ask_for_file()
        answer.read(100)
        answer.close()
        self.assertEqual(self.ask_for_file().status, 200)


if __name__ == "__main__":
    unittest.main()
