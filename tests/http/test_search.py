"""Search: what it finds, that it is cut off and goes on, and that others are answered meanwhile."""
import contextlib
import threading
import unittest
from unittest import mock
from urllib.parse import quote

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.web import WebTestCase

LONG = "a" * 199_000                    # of one argument, nearly the most there may be
HARD = "a" * 199 + "b"                  # what it is compared with at every place, in vain


class Searching(WebTestCase):

    def found(self, visitor, text, more=""):
        """(ids on the first page, how to go on)"""
        page = self.check(visitor.get("/api/tasks?q=%s%s" % (quote(text, safe=""), more)), 200)
        return [row["id"] for row in page["tasks"]], page["next"]

    def found_in_all(self, visitor, text):
        """(ids of all pages, how many pages)"""
        ids, after = self.found(visitor, text)
        pages = 1
        while after:
            more, after = self.found(visitor, text, "&cursor=" + after)
            ids += more
            pages += 1
        return ids, pages

    @contextlib.contextmanager
    def slowly(self):
        """Time passes so fast that each look is cut off until it is at a single task."""
        self.clock.step = jobqueue.LOOK_SECONDS
        with mock.patch.object(jobqueue, "LOOK_STEPS", 20):
            yield
        self.clock.step = 0.0


class What(Searching):

    def test_a_number_is_found_with_and_without_its_sign(self):
        ids = self.add_many("bob", 12)
        self.assertEqual(self.found(self.bob, str(ids[-1]))[0][:1], [ids[-1]])
        self.assertEqual(self.found(self.bob, "#%d" % ids[0])[0], [ids[0]])
        self.assertEqual(self.found(self.bob, "#%d" % self.add("eve"))[0], [])

    def test_an_error_is_found_by_its_kind_and_its_words(self):
        failed = self.add("bob")
        self.end(self.claim(), "fail", None, "SMTPError", "User unknown: x@example.org")
        self.add("bob")
        for text in ("User unknown", "user UNKNOWN", "smtperr", "SMTPError: User"):
            self.assertEqual(self.found(self.bob, text)[0], [failed], text)

    def test_an_owner_is_found_by_a_part_of_the_name(self):
        mine, theirs = self.add("bob"), self.add("eve")
        self.assertEqual(self.found(self.ana, "BO")[0], [mine])
        self.assertEqual(self.found(self.ana, "eve")[0], [theirs])
        self.assertEqual(self.found(self.bob, "eve")[0], [])

    def test_only_letters_from_a_to_z_are_found_in_either_case(self):
        task_id = self.add("bob", function="greet", name="\u00c4pfel")
        for text, wanted in (("\u00c4PFEL", [task_id]), ("\u00c4pf", [task_id]), ("\u00e4pfel", [])):
            self.assertEqual(self.found(self.bob, text)[0], wanted, text)

    def test_the_beginning_of_arguments_is_searched(self):
        task_id = self.add("bob", function="greet", name="needle" + LONG + "thread")
        self.assertEqual(self.found(self.bob, "needle")[0], [task_id])
        self.assertEqual(self.found(self.bob, "thread")[0], [])

    def test_a_text_is_refused_where_it_is_too_long_whatever_it_is_for(self):
        for visitor in (self.bob, self.ana):
            self.assertEqual(self.check(visitor.get("/api/tasks?q=" + "a" * 201), 400)["errors"], [
                {"field": "q", "message": "must have at most 200 characters"}])
            self.check_wrong(visitor.post("/api/tasks/actions", {
                "action": "cancel", "filter": {"q": "%" * 201}, "continue": "0-9"}), "filter.q")


@about_sqlite("how it ends a statement")
class CutOff(Searching):

    def setUp(self):
        super().setUp()
        self.ids = self.add_many("bob", 150)
        self.other = self.add("bob", function="greet", name="x")

    def test_a_search_that_is_cut_off_goes_on_where_it_was_and_misses_nothing(self):
        with self.slowly():
            ids, pages = self.found_in_all(self.bob, "add")
            self.assertEqual(ids, self.ids[::-1])
            self.assertGreater(pages, 20)
            self.assertEqual(self.found_in_all(self.bob, HARD)[0], [])

    def test_a_look_is_cut_off_in_the_midst_of_its_statement(self):
        rows, _ = self.database.read_within("SELECT id FROM task", (), 1.0)
        self.assertEqual(len(rows), 151)
        with self.slowly():
            self.assertIsNone(self.database.read_within("SELECT id FROM task", (), 0.0)[0])
        self.assertEqual(len(self.database.read_within("SELECT id FROM task", (), 0.0)[0]), 151)

    def test_who_searches_reads_few_tasks_at_once_where_they_take_long(self):
        looked, look = [], self.database.read_within

        def note(statement, values=(), seconds=1.0):
            rows, spent = look(statement, values, seconds)
            if "task.id>?" in statement:
                looked.append(values[1] - values[0])
            return rows, spent

        with mock.patch.object(self.database, "read_within", note), self.slowly():
            self.found(self.bob, HARD)
            slow = looked[:]
        with mock.patch.object(self.database, "read_within", note):
            looked.clear()
            self.found(self.bob, HARD[1:])
        self.assertEqual(slow[0], jobqueue.SEARCH_IDS)
        self.assertLess(slow[-1], slow[0])
        self.assertGreater(looked[1], looked[0])

    def test_counts_are_left_out_or_right(self):
        with self.slowly():
            page = self.bob.get("/api/tasks?q=add&counts=1").json
            self.assertIsNone(page["counts"])
        self.clock.advance(jobqueue.CACHE_SECONDS + 1)
        self.assertEqual(self.bob.get("/api/tasks?q=add&counts=1").json["counts"]["all"], 150)

    def act(self, status=200, **rest):
        return self.check(self.bob.post("/api/tasks/actions", {
            "action": "cancel", "filter": {"q": "add"}, **rest}), status)

    def test_an_action_changes_all_over_as_many_requests_as_it_takes(self):
        self.patch(jobqueue, "ACTION_ROWS", 40)
        self.patch(jobqueue, "ACTION_SECONDS", -1.0)
        answers = [self.act(expected_count=150)]
        while answers[-1]["continue"]:
            answers.append(self.act(**{"continue": answers[-1]["continue"]}))
        self.assertGreater(len(answers), 1)
        self.assertEqual(answers[-1]["remaining"], 0)
        self.assertEqual(sum(one["done"] for one in answers), 150)
        self.assertEqual({self.status(one) for one in self.ids}, {"cancelled"})
        self.assertEqual(self.status(self.other), "pending")

    def test_a_filter_that_takes_too_long_to_count_changes_nothing(self):
        with self.slowly():
            answer = self.act(422, expected_count=150)
        self.assertEqual(answer["errors"][0]["field"], "filter")
        self.assertEqual({self.status(one) for one in self.ids}, {"pending"})


@about_sqlite("what it asks while it looks")
class Meanwhile(Searching):

    def test_others_are_answered_in_the_midst_of_a_look(self):
        self.add_many("bob", 100)
        look, replies = jobqueue.FileConnection.all_within, []

        def ask():
            replies.append(self.eve.get("/api/session").status)
            replies.append(self.eve.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}).status)

        def look_slowly(connection, seconds, clock, statement, values=()):
            def ask_first():
                if not replies:
                    thread = threading.Thread(target=ask, daemon=True)
                    thread.start()
                    thread.join(20)
                return clock.monotonic()
            slow = mock.Mock(monotonic=ask_first)
            return look(connection, seconds, slow, statement, values)

        with mock.patch.object(jobqueue, "LOOK_STEPS", 50), \
                mock.patch.object(jobqueue.FileConnection, "all_within", look_slowly):
            self.found(self.bob, HARD)
        self.assertEqual(replies, [200, 201])


if __name__ == "__main__":
    unittest.main()
