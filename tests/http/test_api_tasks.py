"""/api/tasks over HTTP: adding, finding, changing, logs."""
import io
import json
import sqlite3
import unittest
from unittest import mock
from urllib.parse import quote

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import INTEGER, function_json
from tests.helpers.web import call, WebTestCase

ADD = {"function": "add", "arguments": {"a": 1}}
NOW = "2027-01-15T08:00:00.000Z"        # of the fake clock
TASK_KEYS = set(
    "id owner function summary queue status reason priority run_at unique_key after after_failure "
    "attempts crashes max_retries retries_left retry_delay retry_backoff timeout on_crash cancel_requested "
    "progress message error worker schedule created_at started_at finished_at arguments result "
    "samples predecessors followers remove_on_success notify blocked blocked_text".split())


class Adding(WebTestCase):

    def test_an_added_task_is_answered_whole(self):
        reply = self.bob.post("/api/tasks", {"function": "add", "arguments": {"b": 2, "a": 1}})
        task = self.check(reply, 201)
        self.assertEqual(set(task), TASK_KEYS)
        self.assertEqual(reply.headers["location"], "/api/tasks/%d" % task["id"])
        self.assertEqual((task["owner"], task["status"], task["arguments"], task["created_at"],
                          task["run_at"]),
                         ("bob", "pending", {"a": 1, "b": 2}, NOW, None))
        self.assertEqual((task["max_retries"], task["retry_delay"], task["timeout"], task["on_crash"]),
                         (0, 60, 3600, "retry"))

    def test_arguments_are_kept_in_the_order_of_the_signature(self):
        task = self.bob.post("/api/tasks", {"function": "add", "arguments": {"b": 2, "a": 1}}).json
        self.assertEqual(list(task["arguments"]), ["a", "b"])
        self.assertEqual(task["summary"], "1, 2")

    def test_every_option_can_be_given(self):
        self.add("ana", options={"queue": "mail"})
        options = {"queue": "mail", "priority": -5, "max_retries": 3, "retry_delay": 1.5, "retry_backoff": 1,
                   "timeout": 10, "on_crash": "fail"}
        task = self.check(self.bob.post("/api/tasks", {**ADD, **options}), 201)
        self.assertEqual({name: task[name] for name in options}, options)
        self.assertEqual(task["retries_left"], 3)

    def test_only_admins_begin_a_new_queue(self):
        wanted = {**ADD, "queue": "brand-new"}
        answer = self.check(self.bob.post("/api/tasks", wanted), 422)
        self.assertEqual([error["field"] for error in answer["errors"]], ["queue"])
        self.check(self.ana.post("/api/tasks", wanted), 201)
        self.check(self.bob.post("/api/tasks", wanted), 201)

    def test_only_admins_take_a_task_out_of_its_functions_queue(self):
        send = {"function": "send", "arguments": {"to": "x"}, "queue": "default"}
        answer = self.check(self.bob.post("/api/tasks", send), 422)
        self.assertEqual(answer["errors"], [
            {"field": "queue", "message": "must be mail: only an admin can choose another"}])
        self.check(self.bob.post("/api/tasks", {**send, "queue": "mail"}), 201)
        self.check(self.ana.post("/api/tasks", send), 201)
        self.add("ana", function="send", options=dict(queue="default"), to="code may")

    def test_only_admins_get_around_limits_of_the_queue_default(self):
        self.add("ana", options={"queue": "other"})
        wanted = {**ADD, "queue": "other"}
        self.check(self.bob.post("/api/tasks", wanted), 201)
        for limit in ({"paused": True}, {"max_running": 1}, {"rate": {"count": 1, "seconds": 9}},
                      {"machines": ["far"]}):
            with self.subTest(limit=limit):
                self.queue.queues.change("default", limit, "ana")
                self.check_wrong(self.bob.post("/api/tasks", wanted), "queue")
                self.check(self.ana.post("/api/tasks", wanted), 201)
                self.queue.queues.change("default", dict.fromkeys(limit) if "paused" not in limit
                                         else {"paused": False}, "ana")

    def test_only_admins_take_less_care_than_the_function_says(self):
        self.declare(function_json("once", on_crash="fail", timeout=60))
        for field, value, words in (
                ("on_crash", "retry", "must be fail, as the function says; only an admin can choose retry"),
                ("timeout", 61, "must be at most 60, as the function says; longer ones are for admins")):
            wanted = {"function": "once", field: value}
            answer = self.check(self.bob.post("/api/tasks", wanted), 422)
            self.assertEqual(answer["errors"], [{"field": field, "message": words}])
            self.check(self.ana.post("/api/tasks", wanted), 201)
            self.queue.add([wanted], self.owner_id("bob"))
        self.check(self.bob.post("/api/tasks", {"function": "once", "timeout": 59, "on_crash": "fail"}), 201)

    def test_a_worker_is_started_for_it(self):
        self.bob.post("/api/tasks", ADD)
        self.assertEqual(len(self.started), 1)

    def test_a_worker_that_cannot_be_started_does_not_lose_the_task(self):
        self.start_error = OSError(11, "Resource temporarily unavailable")
        self.check(self.bob.post("/api/tasks", ADD), 201)
        self.assertEqual(self.bob.get("/api/tasks").json["service"]["code"], "no_worker")

    def test_delay_and_run_at_put_it_off(self):
        task = self.check(self.bob.post("/api/tasks", {**ADD, "delay": 60}), 201)
        self.assertEqual((task["status"], task["run_at"]), ("scheduled", "2027-01-15T08:01:00.000Z"))
        task = self.check(self.bob.post("/api/tasks", {**ADD, "run_at": "2027-01-15T12:00:00+02:00"}), 201)
        self.assertEqual((task["status"], task["run_at"]), ("scheduled", "2027-01-15T10:00:00.000Z"))

    def test_a_time_that_has_passed_means_now(self):
        task = self.check(self.bob.post("/api/tasks", {**ADD, "run_at": "2000-01-01T00:00:00Z"}), 201)
        self.assertEqual(task["status"], "pending")

    def test_null_for_a_time_is_as_if_it_were_left_out(self):
        self.check(self.bob.post("/api/tasks", {**ADD, "run_at": None, "delay": None, "owner": None}), 201)
        self.check(self.bob.post("/api/tasks", {**ADD, "run_at": None, "delay": 5}), 201)

    def test_each_wrong_field_is_named(self):
        wrong = {
            "function": (None, 7, "", "nothing", "Add", "add ", ["add"], {}),
            "arguments": (None, 7, "a=1", [1], True),
            "queue": (None, "", "a b", "x" * 51, 7, "a/b", "é", "a\n"),
            "priority": (None, "1", 101, -101, 1.5, True, [1], {}),
            "max_retries": (None, -1, 1001, "1", 1.5, False),
            "retry_delay": (None, -1, 30 * 86400 + 1, "1", True),
            "retry_backoff": (None, 0.9, 10.1, "2"),
            "timeout": (None, 0, 0.5, 30 * 86400 + 1, "1 h"),
            "on_crash": (None, "ignore", "", 1, "Retry"),
            "run_at": (7, "", "tomorrow", "2027-01-15", "2027-01-15T08:00:00", "2027-13-01T00:00:00Z", True,
                       []),
            "delay": (-1, "60", 10 * 365 * 86400 + 1, True, [60]),
            "owner": (7, "eve", "nobody", True, [], {"name": "bob"}),
            "after": ([1], 1, "1", {}, list(range(1, 1002))),
            "after_failure": ("ignore", 1, ""), "unique_key": ("", "x" * 201, "a\n", 7, ["x"]),
            "colour": ("red", None), "": (1,), "__proto__": ({},)}
        for field, values in wrong.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    self.check_wrong(self.bob.post("/api/tasks", {**ADD, field: value}), field)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_a_missing_function_is_named(self):
        self.check_wrong(self.bob.post("/api/tasks", {}), "function")
        self.check_wrong(self.bob.post("/api/tasks", {"arguments": {}}), "function")

    def test_each_wrong_argument_is_named(self):
        for arguments, fields in (({}, ["arguments.a"]), ({"a": "1"}, ["arguments.a"]),
                                  ({"a": 1.5}, ["arguments.a"]),
                                  ({"a": None}, ["arguments.a"]), ({"a": True}, ["arguments.a"]),
                                  ({"a": 1, "c": 3}, ["arguments.c"]),
                                  ({"b": "x"}, ["arguments.a", "arguments.b"])):
            with self.subTest(arguments=arguments):
                self.check_wrong(self.bob.post("/api/tasks", {"function": "add", "arguments": arguments}),
                                 *fields)

    def test_all_wrong_fields_are_named_at_once(self):
        reply = self.bob.post("/api/tasks", {"function": "add", "arguments": {}, "timeout": 0, "colour": 1})
        self.check_wrong(reply, "arguments.a", "timeout", "colour")

    def test_delay_and_run_at_exclude_each_other(self):
        self.check_wrong(self.bob.post("/api/tasks", {**ADD, "delay": 1, "run_at": "2027-01-15T12:00:00Z"}),
                         "delay")

    def test_the_far_ends_of_time_are_kept_or_refused(self):
        for text in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z",
                     "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z"):
            with self.subTest(text=text):
                self.assertIn(self.bob.post("/api/tasks", {**ADD, "run_at": text}).status, (201, 422))

    def test_every_kind_of_argument_is_checked(self):
        kinds = {"text": {"type": "string"}, "day": {"type": "string", "format": "date"},
                 "moment": {"type": "string", "format": "date-time"},
                 "hour": {"type": "string", "format": "time"},
                 "style": {"enum": ["big", "small"]}, "ratio": {"type": "number", "minimum": 0, "maximum": 1},
                 "on": {"type": "boolean"}, "list": {"type": "array", "items": INTEGER},
                 "any": {"type": "object"}, "maybe": {"type": ["integer", "null"]}}
        self.declare(function_json("every", kinds, required=()))
        right = {"text": ("", "é"), "day": ("2026-02-28",), "moment": ("2026-01-31T12:00:00Z",),
                 "hour": ("14:30",),
                 "style": ("big",), "ratio": (0, 0.5, 1), "on": (True, False), "list": ([], [1, 2]),
                 "any": ({}, {"x": [None]}), "maybe": (None, 3)}
        wrong = {"text": (1, None), "day": ("2026-02-30", "x", "20260228"),
                 "moment": ("2026-01-31T12:00:00", "x"),
                 "hour": ("25:00", ""), "style": ("huge", None, 1), "ratio": (-0.1, 1.1, "0.5", True),
                 "on": (1, "true", None), "any": ([], "{}"), "maybe": ("", 1.5)}
        for name, values in right.items():
            for value in values:
                body = {"function": "every", "arguments": {name: value}}
                self.assertEqual(self.check(self.bob.post("/api/tasks", body), 201)["arguments"],
                                 {name: value})
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    body = {"function": "every", "arguments": {name: value}}
                    self.check_wrong(self.bob.post("/api/tasks", body), "arguments." + name)
        body = {"function": "every", "arguments": {"list": [1, "x", 2.5]}}
        self.check_wrong(self.bob.post("/api/tasks", body), "arguments.list[1]", "arguments.list[2]")

    def test_unicode_everywhere_comes_back_as_it_was(self):
        for text in ("Ærøskøbing", "日本語", "\U0001f600", "e\u0301", "\u202eabc", "a\tb\nc", "\u2028",
                     "\x7f\x01"):
            reply = self.bob.post("/api/tasks", {"function": "greet", "arguments": {"name": text}})
            self.assertEqual(self.check(reply, 201)["arguments"]["name"], text)


class Who(WebTestCase):
    """What depends on who adds."""

    def test_users_may_not_raise_the_priority(self):
        for priority in (1, 100):
            self.check_wrong(self.bob.post("/api/tasks", {**ADD, "priority": priority}), "priority")
        for priority in (0, -1, -100):
            self.check(self.bob.post("/api/tasks", {**ADD, "priority": priority}), 201)

    def test_users_may_not_raise_the_priority_with_a_whole_float(self):
        for priority in ("5.0", "1e2", "1.0"):
            body = b'{"function": "add", "arguments": {"a": 1}, "priority": %s}' % priority.encode()
            self.check_wrong(self.bob.post("/api/tasks", body), "priority")

    def test_nor_in_an_array(self):
        reply = self.bob.post("/api/tasks", [ADD, {**ADD, "priority": 1}])
        self.check_wrong(reply, "priority")
        self.assertEqual(reply.json["errors"][0]["index"], 1)

    def test_a_function_may_have_a_higher_priority_by_itself(self):
        self.declare(function_json("fast", priority=50))
        task = self.check(self.bob.post("/api/tasks", {"function": "fast"}), 201)
        self.assertEqual(task["priority"], 50)

    def test_admins_may_raise_the_priority(self):
        self.assertEqual(self.check(self.ana.post("/api/tasks", {**ADD, "priority": 100}), 201)["priority"],
                         100)

    def test_admins_choose_the_owner(self):
        task = self.check(self.ana.post("/api/tasks", {**ADD, "owner": "bob"}), 201)
        self.assertEqual(task["owner"], "bob")
        self.assertEqual(self.check(self.ana.post("/api/tasks", ADD), 201)["owner"], "ana")
        ids = self.check(self.ana.post("/api/tasks", [{**ADD, "owner": "eve"}, {**ADD, "owner": "eve"}]),
                         201)["ids"]
        self.assertEqual({self.bob_sees(task_id) for task_id in ids}, {404})

    def bob_sees(self, task_id):
        return self.bob.get("/api/tasks/%d" % task_id).status

    def test_an_owner_must_exist_and_be_one_for_all(self):
        self.check_wrong(self.ana.post("/api/tasks", {**ADD, "owner": "nobody"}), "owner")
        self.check_wrong(self.ana.post("/api/tasks", [{**ADD, "owner": "bob"}, {**ADD, "owner": "eve"}]),
                         "owner")

    def test_in_an_array_an_owner_counts_for_its_own_task_only(self):
        """Whoever names an owner for one task of two does not mean both."""
        self.check_wrong(self.ana.post("/api/tasks", [{**ADD, "owner": "bob"}, ADD]), "owner")

    def test_oneself_may_be_named(self):
        self.assertEqual(self.check(self.bob.post("/api/tasks", {**ADD, "owner": "bob"}), 201)["owner"],
                         "bob")

    def test_functions_for_admins_and_for_nobody(self):
        self.check_wrong(self.bob.post("/api/tasks", {"function": "restart"}), "function")
        self.check(self.ana.post("/api/tasks", {"function": "restart"}), 201)
        for visitor in (self.bob, self.ana):
            self.check_wrong(visitor.post("/api/tasks", {"function": "cleanup"}), "function")

    def test_an_unknown_functions_message_names_only_functions_one_may_add(self):
        said = self.bob.post("/api/tasks", {"function": "nothing"}).body
        self.assertIn(b"greet", said)
        self.assertNotIn(b"restart", said)
        self.assertNotIn(b"cleanup", said)

    def test_a_function_that_one_may_not_add_looks_unknown(self):
        said = [self.bob.post("/api/tasks", {"function": name}).body.replace(name.encode(), b"X")
                for name in ("restart", "cleanup", "nothing")]
        self.assertEqual(said[0], said[1])
        self.assertEqual(said[0], said[2])


class Many(WebTestCase):

    def test_an_array_is_added_in_its_order(self):
        reply = self.bob.post("/api/tasks",
                              [{"function": "add", "arguments": {"a": n}} for n in (30, 10, 20)])
        value = self.check(reply, 201)
        self.assertEqual(value["created"], 3)
        self.assertEqual([self.bob.get("/api/tasks/%d" % task_id).json["arguments"]["a"]
                          for task_id in value["ids"]],
                         [30, 10, 20])

    def test_an_array_of_one_is_answered_as_an_array(self):
        self.assertEqual(self.check(self.bob.post("/api/tasks", [ADD]), 201), {"ids": [1], "created": 1})

    def test_one_wrong_task_keeps_all_out_and_says_where(self):
        many = [ADD, {"function": "add", "arguments": {}}, ADD, {**ADD, "timeout": 0}]
        reply = self.bob.post("/api/tasks", many)
        self.check(reply, 422, "invalid")
        self.assertEqual([(error["index"], error["field"]) for error in reply.json["errors"]],
                         [(1, "arguments.a"), (3, "timeout")])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_not_every_error_of_thousands_is_told(self):
        reply = self.bob.post("/api/tasks", [{"function": "add", "arguments": {}}] * 5000)
        self.check(reply, 422)
        self.assertLess(len(reply.body), 10_000)

    def test_what_is_no_task_keeps_all_out(self):
        for many in ([ADD, 7], [ADD, None], [ADD, [ADD]], [[]]):
            self.check(self.bob.post("/api/tasks", many), 400)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_as_many_as_fit_into_a_body_are_added(self):
        reply = self.bob.post("/api/tasks", [ADD] * 20_000)
        self.assertEqual(self.check(reply, 201)["created"], 20_000)


class Finding(WebTestCase):

    def ids(self, query="", visitor=None):
        return [row["id"] for row in self.check((visitor or self.bob).get("/api/tasks" + query),
                                                200)["tasks"]]

    def test_rows_leave_out_what_may_be_large(self):
        self.add("bob")
        self.assertEqual(set(self.bob.get("/api/tasks").json["tasks"][0]),
                         TASK_KEYS - {"arguments", "result", "samples", "predecessors", "followers",
                                      "blocked", "blocked_text"})

    def test_a_running_task_tells_what_it_has_used(self):
        task_id = self.add("bob")
        path, samples = "/api/tasks/%d" % task_id, [[10.1, 0.5, 5 << 20], [20.2, 9.5, 6 << 20]]
        self.assertIsNone(self.bob.get(path).json["samples"])
        row = self.claim()
        self.assertIsNone(self.bob.get(path).json["samples"])
        with self.database.transaction() as transaction:
            self.queue.claims.renew(transaction, task_id, row["claim"], self.clock.now(), samples=samples)
        self.assertEqual(self.check(self.bob.get(path), 200)["samples"], [
            {"seconds": 10.1, "cpu_seconds": 0.5, "memory": 5 << 20},
            {"seconds": 20.2, "cpu_seconds": 9.5, "memory": 6 << 20}])
        self.assertNotIn("samples", self.bob.get("/api/tasks").json["tasks"][0])
        self.check(self.eve.get(path), 404)
        self.end(row)
        self.assertIsNone(self.bob.get(path).json["samples"])

    def test_pages_follow_each_other_without_gap_or_repetition(self):
        ids = self.add_many("bob", 25)
        seen, cursor = [], ""
        while cursor is not None:
            page = self.bob.get("/api/tasks?limit=10" + cursor).json
            seen += [row["id"] for row in page["tasks"]]
            cursor = page["next"] and "&cursor=" + page["next"]
        self.assertEqual(seen, ids[::-1])

    def test_new_tasks_do_not_disturb_a_later_page(self):
        ids = self.add_many("bob", 20)
        page = self.bob.get("/api/tasks?limit=10").json
        self.add_many("bob", 5)
        self.assertEqual(self.ids("?limit=10&cursor=" + page["next"]), ids[9::-1])

    def test_filters_by_status_function_queue_and_text(self):
        one, two = self.add("bob"), self.add("bob", function="greet", name="Søren")
        three = self.add("bob", options={"queue": "mail"})
        self.cancel(one)
        self.assertEqual(self.ids("?status=cancelled"), [one])
        self.assertEqual(self.ids("?status=pending,cancelled"), [three, two, one])
        self.assertEqual(self.ids("?function=greet"), [two])
        self.assertEqual(self.ids("?queue=mail"), [three])
        self.assertEqual(self.ids("?q=" + quote("Søren")), [two])
        self.assertEqual(self.ids("?q=GREET"), [two])
        self.assertEqual(self.ids("?status=pending&function=add&q=1"), [three])
        self.assertEqual(self.ids("?status=&function=&queue=&q=&owner=&limit=&cursor="), [three, two, one])

    def test_a_wrong_status_is_malformed(self):
        for text in ("nothing", "pending,nothing", "PENDING", "0", "pending,", ",", "pending pending"):
            self.check(self.bob.get("/api/tasks?status=" + quote(text, safe=",")), 400, "malformed")

    def test_a_mistyped_filter_does_not_give_everything(self):
        task_id = self.add("bob")
        for path in ("/api/tasks?statsu=failed", "/api/tasks/%d/log?attemp=1" % task_id,
                     "/api/activity?id=1"):
            refused = self.check(self.bob.get(path), 400, "malformed")
            self.assertRegex(refused["detail"], "^(statsu|attemp|id) is not known here; known are ")

    def test_admins_filter_by_owner(self):
        bob, eve = self.add("bob"), self.add("eve")
        self.assertEqual(self.ids("?owner=bob", self.ana), [bob])
        self.assertEqual(self.ids("", self.ana), [eve, bob])
        self.check(self.ana.get("/api/tasks?owner=nobody"), 404)
        self.check(self.bob.get("/api/tasks?owner=eve"), 403)
        self.assertEqual(self.ids("?owner=bob"), [bob])

    def test_counts_follow_every_filter_but_status(self):
        self.add_many("bob", 3)
        self.cancel(self.add("bob", function="greet", name="x"))
        counts = self.bob.get("/api/tasks?counts=1&status=failed").json["counts"]
        self.assertEqual((counts["all"], counts["pending"], counts["cancelled"]), (4, 3, 1))
        counts = self.bob.get("/api/tasks?counts=1&function=greet").json["counts"]
        self.assertEqual((counts["all"], counts["pending"], counts["cancelled"]), (1, 0, 1))
        self.assertNotIn("counts", self.bob.get("/api/tasks").json)

    def test_counts_are_null_if_counting_takes_too_long(self):
        with mock.patch.object(self.queue.tasks, "count", return_value=None):
            self.assertIsNone(self.check(self.bob.get("/api/tasks?counts=1&q=x"), 200)["counts"])

    def test_errors_come_without_traceback_in_lists_and_with_it_alone(self):
        task_id = self.add("bob")
        row = self.claim()
        self.write_log(task_id, "Traceback (most recent call last):\n  File...\nValueError: no\n")
        self.end(row, "error", None, "ValueError", "no")
        self.assertEqual(self.bob.get("/api/tasks").json["tasks"][0]["error"],
                         {"type": "ValueError", "message": "no"})
        self.assertIn("File...", self.bob.get("/api/tasks/%d" % task_id).json["error"]["traceback"])

    def test_a_task_names_those_before_and_behind_it_that_one_may_see(self):
        first, theirs, second, hidden, third = (
            self.add(name) for name in ("bob", "eve", "bob", "bob", "bob"))
        self.write("UPDATE task SET cancel_requested=2 WHERE id=?", (hidden,))

        def around(visitor, task_id):
            task = visitor.get("/api/tasks/%d" % task_id).json
            return task["previous"], task["next"]
        self.assertEqual(around(self.bob, second), (first, third))
        self.assertEqual(around(self.ana, second), (theirs, third))
        self.assertEqual((around(self.bob, first)[0], around(self.bob, third)[1]), (None, None))

    def test_the_newest_success_with_the_same_values_is_found(self):
        def done(owner="bob", kind="succeeded", **values):
            task_id = self.add(owner, **values)
            self.end(self.claim(), kind, *([None, "ValueError", "no"] if kind == "error" else []),
                     seconds=3.0, cpu_seconds=1.0, peak_memory=1000)
            return task_id

        def success(visitor, task_id):
            return self.check(visitor.get("/api/tasks/%d/success" % task_id), 200)["success"]
        alone = done(kind="error", a=5)
        done(a=1)
        newest = done(a=1)
        done(a=2)
        done("eve", a=1)
        done("bob", "error", a=1)
        failed = done("bob", "error", a=1)
        self.assertEqual(success(self.bob, failed),
                         {"id": newest, "finished_at": NOW, "seconds": 3.0, "peak_memory": 1000})
        self.assertEqual(success(self.ana, failed)["id"], newest)       # the owner's, also for an admin
        self.assertIsNone(success(self.bob, alone))
        self.write("DELETE FROM activity")
        self.assertEqual(success(self.bob, failed),
                         {"id": newest, "finished_at": NOW, "seconds": None, "peak_memory": None})
        self.check(self.eve.get("/api/tasks/%d/success" % failed), 404)

    def test_empty_values_are_left_out_of_the_summary(self):
        self.declare(function_json("send", {name: {"type": "string"} for name in ("to", "text", "more")}))
        self.add("bob", "send", to="ana", text="", more="")
        self.assertEqual(self.bob.get("/api/tasks").json["tasks"][0]["summary"], "ana")

    def test_secrets_among_the_arguments_are_masked_in_the_summary(self):
        self.declare(function_json("call", {"url": {"type": "string"}, "api_key": {"type": "string"}}))
        self.bob.post("/api/tasks", {"function": "call", "arguments": {"url": "x", "api_key": "canary"}})
        self.assertEqual(self.bob.get("/api/tasks").json["tasks"][0]["summary"], "x, •••")
        self.assertNotIn(b"canary", self.bob.get("/api/tasks").body)

    def test_the_service_line_is_for_everyone(self):
        self.add("bob")
        self.assertEqual(self.eve.get("/api/tasks").json["service"]["code"], "starting")
        self.ana.patch("/api/settings", {"NbMaxWorker": 0})
        self.assertEqual(self.eve.get("/api/tasks").json["service"]["code"], "off")


class Changing(WebTestCase):

    def ended(self, kind):
        task_id = self.add("bob")
        self.end(self.claim(), kind, None, "E" if kind == "error" else None, "m" if kind == "error" else None)
        return "/api/tasks/%d" % task_id

    def test_cancelling_a_pending_task_ends_it(self):
        task = self.check(self.bob.post("/api/tasks/%d/cancel" % self.add("bob")), 200)
        self.assertEqual((task["status"], task["finished_at"]), ("cancelled", NOW))

    def test_cancelling_a_running_task_asks_and_may_be_repeated(self):
        path = "/api/tasks/%d" % self.add("bob")
        self.claim()
        for _ in range(2):
            task = self.check(self.bob.post(path + "/cancel"), 200)
            self.assertEqual((task["status"], task["cancel_requested"]), ("running", True))
        self.assertEqual(self.events(task["id"]), ["added", "started", "cancel_requested"])

    def test_a_cancel_that_came_too_late_is_a_conflict(self):
        for kind in ("succeeded", "error"):
            self.check(self.bob.post(self.ended(kind) + "/cancel"), 409, "conflict")

    def test_a_repeated_cancel_is_no_error(self):
        path = "/api/tasks/%d" % self.add("bob")
        for _ in range(2):
            self.assertEqual(self.check(self.bob.post(path + "/cancel"), 200)["status"], "cancelled")
        self.assertEqual(self.events(1), ["added", "cancelled"])

    def test_retry_is_for_failed_and_cancelled_tasks(self):
        path = self.ended("error")
        task = self.check(self.bob.post(path + "/retry"), 200)
        self.assertEqual((task["status"], task["error"], task["finished_at"]), ("pending", None, None))
        self.check(self.bob.post(path + "/retry"), 409)
        self.check(self.bob.post(path + "/cancel"), 200)
        self.check(self.bob.post(path + "/retry"), 200)
        self.claim()
        self.check(self.bob.post(path + "/retry"), 409)
        self.check(self.bob.post(self.ended("succeeded") + "/retry"), 409)

    def test_deleting_removes_task_and_log(self):
        path = self.ended("succeeded")
        self.write_log(1, "words")
        self.assertEqual(self.bob.delete(path).status, 204)
        for reply in (self.bob.get(path), self.bob.get(path + "/log"), self.bob.delete(path),
                      self.bob.post(path + "/cancel"), self.bob.post(path + "/retry")):
            self.check(reply, 404, "not_found")
        self.assertEqual(self.database.value("SELECT count(*) FROM log"), 0)

    def test_deleting_a_running_task_hides_it_at_once(self):
        path = "/api/tasks/%d" % self.add("bob")
        self.claim()
        self.assertEqual(self.bob.delete(path).status, 204)
        self.check(self.bob.get(path), 404)
        self.assertEqual(self.bob.get("/api/tasks?counts=1").json["counts"]["all"], 0)

    def test_an_admin_changes_anybodys(self):
        path = "/api/tasks/%d" % self.add("bob")
        self.check(self.ana.post(path + "/cancel"), 200)
        self.check(self.ana.post(path + "/retry"), 200)
        self.assertEqual(self.ana.delete(path).status, 204)

    def test_a_body_is_not_needed(self):
        path = "/api/tasks/%d" % self.add("bob")
        self.check(self.bob.post(path + "/cancel", b""), 200)
        self.check(self.program("bob").post(path + "/retry", b"", Content_Type=None), 200)


class Log(WebTestCase):

    def setUp(self):
        super().setUp()
        self.task = self.add("bob")
        self.row_claimed = self.claim()

    def log(self, query=""):
        return self.check(self.bob.get("/api/tasks/%d/log%s" % (self.task, query)), 200)

    def read_all(self):
        """The whole log, page by page; (text, pages, whether something was cut out)."""
        text, pages, at, cut = "", 0, 0, False
        while True:
            page = self.log("?offset=%d" % at)
            text, cut = text + page["text"], cut or page["cut"]
            if page["next"] == at:
                return text, pages, cut
            at, pages = page["next"], pages + 1

    def test_an_empty_log(self):
        self.assertEqual(self.log(), {"attempt": 1, "attempts": [], "offset": 0, "next": 0, "text": "",
                                      "cut": False, "times": [], "complete": False})

    def test_it_goes_on_from_next(self):
        self.write_log(self.task, "one\n")
        self.assertEqual((self.log()["text"], self.log()["next"]), ("one\n", 4))
        self.write_log(self.task, "two\n", start=4)
        self.assertEqual((self.log("?offset=4")["text"], self.log("?offset=8")["text"]), ("two\n", ""))

    def test_it_is_complete_when_the_attempt_has_ended(self):
        self.assertFalse(self.log()["complete"])
        self.end(self.row_claimed)
        self.assertTrue(self.log()["complete"])

    def test_earlier_attempts_are_kept_apart(self):
        self.write_log(self.task, "first", attempt=1)
        self.write_log(self.task, "second", attempt=2)
        self.write("UPDATE task SET attempts=2")
        self.assertEqual((self.log()["text"], self.log("?attempt=1")["text"]), ("second", "first"))
        self.assertEqual(self.log()["attempts"], [1, 2])
        self.assertTrue(self.log("?attempt=1")["complete"])
        self.assertEqual(self.log("?attempt=99")["text"], "")

    def test_pages_end_between_characters(self):
        text = "aé日\U0001f600" * 60_000
        self.write_log(self.task, text)
        read, pages, cut = self.read_all()
        self.assertEqual((read == text, pages, cut), (True, 3, False))

    def test_offsets_count_bytes(self):
        self.write_log(self.task, "é日\U0001f600")
        self.assertEqual(self.log()["next"], 9)
        self.assertEqual([self.log("?offset=%d" % at)["text"] for at in (0, 2, 5, 9)],
                         ["é日\U0001f600", "日\U0001f600", "\U0001f600", ""])

    def test_an_offset_inside_a_character_goes_on_behind_it(self):
        data = "éa日b".encode()
        self.write_log(self.task, data.decode())
        for at in range(len(data)):
            page = self.log("?offset=%d" % at)
            self.assertEqual((page["text"], page["next"]), (data[at:].decode("utf-8", "ignore"), len(data)),
                             at)

    def long_log(self, size, piece=64 << 10):
        start = 0
        for number in range(size // piece):
            self.write_log(self.task, ("%09d\n" % number) * (piece // 10) + "x" * (piece % 10), start=start)
            start += piece

    def test_a_log_beyond_the_limit_lacks_its_middle_and_says_so(self):
        self.long_log(3 << 20)
        text, _, cut = self.read_all()
        self.assertTrue(cut)
        self.assertTrue(text.startswith("000000000\n"))
        self.assertTrue(text.endswith("%09d\n" % 47 + "x" * 6))
        self.assertIn("bytes cut out", text)
        self.assertLess(len(text), (1 << 20) + (128 << 10))

    def test_a_download_is_the_whole_log(self):
        for size in (256 << 10, 1 << 20, 3 << 20, 8 << 20):
            with self.subTest(size=size):
                self.write("DELETE FROM log")
                self.long_log(size)
                reply = self.bob.get("/api/tasks/%d/log?download=1" % self.task)
                self.assertEqual(reply.body.decode(), self.read_all()[0])

    def test_a_download_of_many_small_pieces_is_whole(self):
        with self.database.transaction() as transaction:
            for number in range(2500):
                jobqueue.append_log(transaction, self.clock.now(), self.task, 1, number * 10,
                                    "%09d\n" % number)
        reply = self.bob.get("/api/tasks/%d/log?download=1" % self.task)
        self.assertEqual(reply.body.decode().splitlines()[-1], "000002499")

    def test_a_download_is_a_file_with_a_plain_name(self):
        self.write_log(self.task, "<script>alert(1)</script>")
        reply = self.bob.get("/api/tasks/%d/log?download=1" % self.task)
        self.assertEqual(reply.headers["content-disposition"],
                         'attachment; filename="task-%d-attempt-1.txt"' % self.task)
        self.assertEqual(reply.headers["content-type"], "text/plain; charset=utf-8")


@about_sqlite("what it says when something is wrong")
class Trouble(WebTestCase):
    """The database is busy, full or gone."""

    def setUp(self):
        super().setUp()
        self.task = self.add("bob")
        self.database.patience = 0.05

    WRITES = (("POST", "/api/tasks", ADD), ("POST", "/api/tasks/1/cancel", None),
              ("DELETE", "/api/tasks/1", None), ("POST", "/api/tokens", {"name": "x", "password": "x"}))

    def stranger(self):
        path = next((self.folder / "data").glob("jobqueue-*.db"))
        link = sqlite3.connect(str(path), isolation_level=None)
        self.addCleanup(link.close)
        link.execute("PRAGMA wal_autocheckpoint=0")
        return link

    def test_a_busy_database_is_a_503_that_says_when_to_try_again(self):
        link = self.stranger()
        link.execute("BEGIN IMMEDIATE")
        for method, path, body in self.WRITES:
            reply = self.bob.ask(method, path, body)
            self.check(reply, 503, "busy")
            self.assertGreaterEqual(int(reply.headers["retry-after"]), 1)
        self.check(self.bob.get("/api/tasks"), 200)
        link.execute("ROLLBACK")
        self.check(self.bob.post("/api/tasks/1/cancel"), 200)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 1)

    def check_patience(self, method, path, status, least, most):
        """How long that takes while settings are to be read again and housekeeping is to be done."""
        self.clock.advance(120)
        started = self.clock.monotonic()
        self.check(self.bob.ask(method, path, ADD if method == "POST" else None), status)
        self.assertTrue(least <= self.clock.monotonic() - started <= most, self.clock.monotonic() - started)

    def test_a_request_waits_no_longer_for_all_it_does_than_for_one_thing(self):
        self.database.patience = patience = jobqueue.WEB_PATIENCE_SECONDS
        self.add("bob", options={"delay": 1})
        link = self.stranger()
        link.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            self.check_patience("POST", "/api/tasks", 503, patience, patience + 0.5)
            self.check_patience("GET", "/api/tasks", 200, 0, 1.5)
        with mock.patch.object(self.database._reader, "all",
                               side_effect=sqlite3.OperationalError("database is locked")):
            for method in ("GET", "POST"):
                self.check_patience(method, "/api/tasks", 503, patience, patience + 0.5)

    def failing(self, error):
        """Every writing transaction fails with this SQLite error at its end."""
        run = self.database._writer.run

        def fail(statement, *values):
            if statement == "COMMIT":
                raise error
            return run(statement, *values)
        return mock.patch.object(self.database._writer, "run", fail)

    def test_a_full_disk_is_a_507_and_changes_nothing(self):
        with self.failing(sqlite3.OperationalError("database or disk is full")):
            for method, path, body in self.WRITES:
                self.check(self.bob.ask(method, path, body), 507, "disk_full")
        self.assertEqual((self.status(1), self.database.value("SELECT count(*) FROM task")), ("pending", 1))
        self.check(self.bob.post("/api/tasks/1/cancel"), 200)

    def test_a_damaged_or_read_only_database_is_a_503(self):
        for words in ("database disk image is malformed", "file is not a database",
                      "attempt to write a readonly database", "disk I/O error",
                      "unable to open database file"):
            with self.subTest(words=words), self.failing(sqlite3.OperationalError(words)):
                self.check(self.bob.post("/api/tasks", ADD), 503, "storage")
        self.check(self.bob.post("/api/tasks", ADD), 201)

    def test_a_mistake_of_ours_is_a_500_with_its_traceback_in_the_log(self):
        for method, path in (("GET", "/api/tasks/1"), ("POST", "/api/tasks/1/cancel")):
            with mock.patch.object(jobqueue, "TASK_ROW", "SELECT absent FROM task WHERE "), \
                    mock.patch("sys.stderr", io.StringIO()) as log:
                reply = call(self.app, self.bob.environ(method, path))
            self.check(reply, 500, "error")
            self.assertIn("Traceback", log.getvalue())
            self.assertIn("no such column: absent", log.getvalue())

    def test_a_database_that_cannot_be_read_is_a_503_everywhere(self):
        error = sqlite3.DatabaseError("database disk image is malformed")
        with mock.patch.object(self.database._reader, "all", side_effect=error), \
                mock.patch("sys.stderr", io.StringIO()):
            for visitor, path in ((self.bob, "/api/tasks"), (self.nobody, "/healthz"),
                                  (self.nobody, "/api/session")):
                self.check(visitor.get(path), 503, "storage")

    def test_who_cannot_be_written_down_as_seen_is_let_in_all_the_same(self):
        self.clock.advance(120)
        self.stranger().execute("BEGIN IMMEDIATE")
        self.check(self.bob.get("/api/tasks"), 200)
        self.check(self.bob.get("/api/session"), 200)


class Whole(WebTestCase):

    def test_a_task_lives_its_life_over_http(self):
        task_id = self.bob.post("/api/tasks", {"function": "greet", "arguments": {"name": "x"}}).json["id"]
        path = "/api/tasks/%d" % task_id
        row = self.claim()
        with self.database.transaction() as transaction:
            self.queue.claims.report(transaction, task_id, row["claim"], 0.5, "halfway")
        task = self.bob.get(path).json
        self.assertEqual((task["status"], task["progress"], task["message"], task["attempts"]),
                         ("running", 0.5, "halfway", 1))
        self.end(row, "error", None, "ValueError", "no")
        task = self.bob.get(path).json
        self.assertEqual((task["status"], task["reason"], task["retries_left"]), ("scheduled", "error", 1))
        self.clock.advance(100)
        self.end(self.claim(), "succeeded", json.dumps({"pages": 12}))
        task = self.bob.get(path).json
        self.assertEqual((task["status"], task["result"], task["error"], task["attempts"]),
                         ("succeeded", {"pages": 12}, None, 2))
        events = [row["event"] for row in self.bob.get("/api/activity?task=%d" % task_id).json["activity"]]
        self.assertEqual(events, ["succeeded", "started", "promoted", "retry", "started", "added"])


if __name__ == "__main__":
    unittest.main()
