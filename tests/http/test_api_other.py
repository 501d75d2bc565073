"""The rest of the API: functions, activity, workers, settings, users, tokens, session, set-up, health."""
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD
from tests.helpers.web import Visitor, WebTestCase

NEW = "another horse"


class Functions(WebTestCase):

    def test_a_function_is_told_with_its_schema_and_options(self):
        value = self.check(self.bob.get("/api/functions"), 200)
        self.assertEqual(value["functions"][0], {
            "name": "add", "title": "add", "description": "", "who": "user",
            "schema": {"type": "object", "properties": {"a": {"type": "integer"},
                                                        "b": {"type": "integer", "default": 0}},
                       "additionalProperties": False, "required": ["a"]},
            "options": {"queue": "default", "priority": 0, "max_retries": 0, "retry_delay": 60,
                        "retry_backoff": 2, "timeout": 3600, "on_crash": "retry",
                        "remove_on_success": False, "notify": None}})
        self.assertEqual((value["error"], value["samples"]), (None, False))
        self.assertEqual(value["read_at"], "2027-01-15T08:00:00.000Z")

    def test_functions_and_parameters_keep_their_order(self):
        names = [function["name"] for function in self.ana.get("/api/functions").json["functions"]]
        self.assertEqual(names, ["add", "greet", "send", "restart", "cleanup"])

    def test_a_broken_tasks_py_keeps_the_last_good_functions(self):
        self.queue.catalogue.store({"error": {"message": "SyntaxError: no", "file": "tasks.py", "line": 7}})
        value = self.check(self.ana.get("/api/functions"), 200)
        self.assertEqual(len(value["functions"]), 5)
        self.assertEqual(value["error"], {"message": "SyntaxError: no", "file": "tasks.py", "line": 7})
        self.assertEqual(self.bob.get("/api/tasks").json["service"]["code"], "code_error")
        self.check(self.bob.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}), 201)


class Activity(WebTestCase):

    def test_it_tells_what_happened_newest_first(self):
        task_id = self.add("bob")
        self.clock.advance(5)
        row = self.claim()
        self.end(row, "succeeded", "1", seconds=1.5, cpu_seconds=0.5, peak_memory=1 << 20)
        rows = self.check(self.bob.get("/api/activity?task=%d" % task_id), 200)["activity"]
        self.assertEqual([(one["event"], one["attempt"]) for one in rows],
                         [("succeeded", 1), ("started", 1), ("added", None)])
        self.assertEqual((rows[0]["seconds"], rows[0]["cpu_seconds"], rows[0]["peak_memory"],
                          rows[1]["waited"]),
                         (1.5, 0.5, 1 << 20, 5))
        self.assertEqual((rows[0]["owner"], rows[0]["function"], rows[0]["queue"]), ("bob", "add", "default"))

    def test_pages_follow_each_other(self):
        self.add_many("bob", 25)
        seen, cursor = [], ""
        while cursor is not None:
            page = self.bob.get("/api/activity?limit=10" + cursor).json
            seen += [row["task"] for row in page["activity"]]
            cursor = page["next"] and "&cursor=" + page["next"]
        self.assertEqual(seen, list(range(25, 0, -1)))

    def test_an_admin_reads_one_owners_and_a_user_only_their_own(self):
        mine, _ = self.add("bob"), self.add("eve")
        for visitor in (self.ana, self.bob):
            rows = self.check(visitor.get("/api/activity?owner=bob"), 200)["activity"]
            self.assertEqual([row["task"] for row in rows], [mine])
        self.check(self.bob.get("/api/activity?owner=eve"), 403, "denied")
        self.check(self.ana.get("/api/activity?owner=nobody"), 404, "not_found")

    def test_a_missing_task_has_none(self):
        self.check(self.bob.get("/api/activity?task=99"), 404, "not_found")
        self.check(self.bob.get("/api/activity?task=x"), 400, "malformed")

    def test_what_happened_to_workers_is_for_admins(self):
        self.add("bob")
        with self.database.transaction() as transaction:
            jobqueue.record_activity(transaction, self.clock.now(), "worker_started", worker_id=1)
        self.assertIn("worker_started",
                      [row["event"] for row in self.ana.get("/api/activity").json["activity"]])
        self.assertEqual([row["event"] for row in self.bob.get("/api/activity").json["activity"]], ["added"])


class WhoDidIt(WebTestCase):
    """What people do is told with their name, to admins and to whom it was done."""

    def told(self, visitor, query="limit=200", names="event owner actor message"):
        rows = self.check(visitor.get("/api/activity?" + query), 200)["activity"]
        return [tuple(row[name] for name in names.split()) for row in reversed(rows)]

    def log_in(self, name, password=PASSWORD, status=200):
        visitor = Visitor(self.app)
        self.check(visitor.post("/api/session", {"name": name, "password": password}), status)
        return visitor

    def test_log_ins_refused_ones_and_log_outs(self):
        bob = self.log_in("bob")
        self.assertEqual(bob.delete("/api/session").status, 204)
        self.log_in("bob", "wrong", 401)
        self.log_in("nobody", "wrong", 401)
        self.check(self.nobody.delete("/api/session"), 401)
        mine = [("logged_in", "bob", "bob", "bob"), ("logged_out", "bob", "bob", "bob"),
                ("log_in_refused", "bob", None, "bob")]
        self.assertEqual(self.told(self.ana), mine)
        self.assertEqual(self.told(self.bob), mine)
        self.assertEqual(self.told(self.eve), [])

    def test_who_guesses_leaves_few_rows(self):
        for second in range(0, 3600, 10):
            self.clock.advance(10)
            Visitor(self.app).post("/api/session", {"name": "bob", "password": "wrong"})
            if second % 60 == 0:
                Visitor(self.app).post("/api/session", {"name": "x%d" % second, "password": "wrong"})
        self.assertLess(self.database.value("SELECT count(*) FROM activity"), 20)

    def test_settings_by_their_names_only(self):
        self.check(self.ana.patch("/api/settings", {"keep_days": 7, "host_names": "secret.example"}), 200)
        self.check(self.ana.patch("/api/settings", {"keep_days": -7}), 422)
        self.assertEqual(self.told(self.ana), [("settings_changed", None, "ana", "keep_days, host_names")])
        self.assertEqual(self.told(self.bob), [])

    def test_accounts(self):
        self.check(self.ana.post("/api/users", {"name": "kim", "password": NEW}), 201)
        self.check(self.ana.patch("/api/users/kim", {
            "role": "admin", "current_password": PASSWORD, "max_pending": 7}), 200)
        self.check(self.bob.patch("/api/users/bob", {"password": NEW, "current_password": PASSWORD}), 200)
        own = [("user_changed", "bob", "bob", "bob: password"), ("logged_in", "bob", "bob", "bob")]
        self.assertEqual(self.told(self.log_in("bob", NEW))[:2], own)
        self.assertEqual(self.ana.delete("/api/users/kim").status, 204)
        self.check(self.ana.delete("/api/users/ana"), 409)
        self.assertEqual([row for row in self.told(self.ana) if row[1] != "bob"], [
            ("user_added", None, "ana", "kim: user"),
            ("user_changed", None, "ana", "kim: max_pending, role"),
            ("user_deleted", None, "ana", "kim")])

    def test_tokens(self):
        made = self.check(self.bob.post("/api/tokens", {"name": "laptop", "password": PASSWORD}), 201)
        self.assertEqual(self.ana.delete("/api/tokens/%d" % made["id"]).status, 204)
        rows = [("token_added", "bob", "bob", "laptop (user)"),
                ("token_revoked", "bob", "ana", "laptop (user)")]
        self.assertEqual(self.told(self.bob), rows)
        self.assertEqual(self.told(self.ana, "owner=bob"), rows)

    def test_schedules(self):
        path = "/api/schedules/%d" % self.check(self.bob.post("/api/schedules", {
            "function": "add", "arguments": {"a": 1}, "rule": "daily 10:00"}), 201)["id"]
        self.check(self.bob.patch(path, {"rule": "daily 11:00"}), 200)
        for paused in (True, False):
            self.check(self.ana.patch(path, {"paused": paused}), 200)
        self.assertEqual(self.bob.delete(path).status, 204)
        self.assertEqual(self.told(self.bob, names="event actor function message"), [
            ("schedule_added", "bob", "add", "1: daily 10:00"),
            ("schedule_changed", "bob", "add", "1: daily 11:00"),
            ("schedule_paused", "ana", "add", "1: daily 11:00"),
            ("schedule_resumed", "ana", "add", "1: daily 11:00"),
            ("schedule_deleted", "bob", "add", "1: daily 11:00")])
        self.assertEqual(self.told(self.eve), [])

    def test_many_tasks_at_once(self):
        ids = self.add_many("bob", 3)
        self.check(self.bob.post("/api/tasks/actions", {"action": "cancel", "ids": ids}), 200)
        self.check(self.ana.post("/api/tasks/actions", {
            "action": "delete", "filter": {"status": "cancelled"}, "expected_count": 3}), 200)
        self.check(self.ana.post("/api/tasks/actions", {"action": "delete", "ids": ids}), 200)
        self.assertEqual(self.told(self.ana, "event=bulk_cancel"), [("bulk_cancel", "bob", "bob", "3 tasks")])
        self.assertEqual(self.told(self.ana, "event=bulk_delete"), [
            ("bulk_delete", None, "ana", '3 tasks of {"status":"cancelled"}')])
        self.assertEqual(self.told(self.bob, "event=deleted"), 3 * [("deleted", "bob", "ana", None)])
        self.assertEqual(self.told(self.bob, "event=bulk_delete"), [])

    def test_one_task(self):
        task_id = self.add("bob")
        for action, visitor in (("cancel", self.bob), ("retry", self.ana)):
            self.check(visitor.post("/api/tasks/%d/%s" % (task_id, action), {}), 200)
        self.assertEqual(self.ana.delete("/api/tasks/%d" % task_id).status, 204)
        self.assertEqual(self.told(self.bob), [
            ("added", "bob", None, None), ("cancelled", "bob", "bob", None),
            ("retried", "bob", "ana", None), ("deleted", "bob", "ana", None)])

    def test_queues(self):
        for name in (".", ".."):        # browsers would make another address of them
            self.check(self.ana.post("/api/queues", {"name": name}), 422)
        self.check(self.ana.post("/api/queues", {"name": "post", "max_running": 2}), 201)
        self.assertEqual(self.ana.delete("/api/queues/post").status, 204)
        self.assertEqual(self.told(self.ana, names="event queue actor message"), [
            ("queue_changed", "post", "ana", '{"name":"post","max_running":2}'),
            ("queue_deleted", "post", "ana", None)])

    def test_a_new_user_with_an_old_name_sees_nothing_of_before(self):
        self.log_in("eve")
        self.assertEqual(self.ana.delete("/api/users/eve").status, 204)
        self.check(self.ana.post("/api/users", {"name": "eve", "password": PASSWORD}), 201)
        self.assertEqual([row[0] for row in self.told(self.log_in("eve"))], ["user_added", "logged_in"])

    def test_filters_by_time_function_and_worker(self):
        self.add("bob")
        self.clock.advance(60)
        self.add("bob", "greet", name="Oslo")
        self.claim(worker_id=1)
        names = "event function"
        self.assertEqual(self.told(self.bob, "until=2027-01-15T08:00:30Z", names), [("added", "add")])
        self.assertEqual(self.told(self.bob, "since=2027-01-15T09:00:30%2B01:00", names),
                         [("added", "greet"), ("started", "add")])
        self.assertEqual(self.told(self.bob, "function=greet", names), [("added", "greet")])
        self.assertEqual(self.told(self.bob, "worker=1", names), [("started", "add")])
        self.assertEqual(self.told(self.bob, "event=", names), self.told(self.bob, names=names))
        for query in ("since=yesterday", "until=2027-01-15", "worker=x", "events=added"):
            self.check(self.bob.get("/api/activity?" + query), 400, "malformed")


class Workers(WebTestCase):

    def test_without_workers(self):
        value = self.check(self.bob.get("/api/workers"), 200)
        self.assertEqual((value["workers"], value["maximum"], value["service"]["code"]), ([], 2, "ok"))

    def test_a_worker_is_told_with_the_task_it_runs(self):
        task_id = self.add("bob")
        self.claim(worker_id=1)
        self.write("UPDATE worker SET state='busy', pid=4321 WHERE id=1")
        worker = self.bob.get("/api/workers").json["workers"][0]
        self.assertEqual((worker["pid"], worker["state"], worker["mode"], worker["machine"]),
                         (4321, "busy", "detached", "machine-1"))
        self.assertEqual((worker["task"], worker["function"]), (task_id, "add"))

    def test_a_task_that_is_being_deleted_is_not_told(self):
        task_id = self.add("bob")
        self.claim(worker_id=1)
        self.delete(task_id)
        self.assertIsNone(self.ana.get("/api/workers").json["workers"][0]["function"])


class Settings(WebTestCase):

    def value(self, name):
        return next(row for row in self.ana.get("/api/settings").json["settings"] if row["name"] == name)

    def test_each_is_told_with_bounds_and_origin(self):
        self.assertEqual([row["name"] for row in self.ana.get("/api/settings").json["settings"]],
                         list(jobqueue.SETTINGS))
        row = self.value("NbMaxWorker")
        self.assertEqual((row["value"], row["default"], row["from"], row["type"], row["minimum"],
                          row["maximum"]),
                         (2, 2, "default", "integer", 0, 256))
        self.assertTrue(row["help"])

    def test_a_change_counts_at_once_and_null_takes_it_back(self):
        self.check(self.ana.patch("/api/settings", {"NbMaxWorker": 6, "host_names": "a.example"}), 200)
        self.assertEqual((self.value("NbMaxWorker")["value"], self.value("NbMaxWorker")["from"]),
                         (6, "table"))
        self.check(self.ana.patch("/api/settings", {"NbMaxWorker": None}), 200)
        self.assertEqual((self.value("NbMaxWorker")["value"], self.value("NbMaxWorker")["from"]),
                         (2, "default"))

    def test_more_workers_start_when_more_are_allowed(self):
        self.add_many("bob", 5)
        self.assertEqual(len(self.started), 2)
        self.ana.patch("/api/settings", {"NbMaxWorker": 4})
        self.assertEqual(len(self.started), 4)

    def test_each_wrong_value_is_named_and_nothing_is_changed(self):
        for name, value in (("NbMaxWorker", -1), ("NbMaxWorker", 257), ("NbMaxWorker", "2"),
                            ("NbMaxWorker", 1.5),
                            ("NbMaxWorker", True), ("NbMaxWorker", []), ("linger", 3601), ("host_names", 7),
                            ("host_names", "x" * 2001), ("python", {}), ("nosuch", 1), (".catalogue", {}),
                            ("", 1)):
            with self.subTest(name=name, value=value):
                self.check_wrong(self.ana.patch("/api/settings", {"linger": 99, name: value}), name)
                self.assertEqual(self.value("linger")["value"], 15)

    def test_all_wrong_values_are_named_at_once(self):
        self.check_wrong(self.ana.patch("/api/settings", {"NbMaxWorker": 999, "nice": -1}), "NbMaxWorker",
                         "nice")

    def test_what_the_environment_fixes_is_told_and_cannot_be_changed(self):
        self.app.queue = self.another_queue(environment={"JOBQUEUE_NBMAXWORKER": "3"})
        row = self.value("NbMaxWorker")
        self.assertEqual((row["value"], row["from"]), (3, "environment"))
        self.check_wrong(self.ana.patch("/api/settings", {"NbMaxWorker": 6}), "NbMaxWorker")

    def test_an_empty_change_is_none(self):
        self.check(self.ana.patch("/api/settings", {}), 200)
        for body in ([], None, 7, "x"):
            self.check(self.ana.patch("/api/settings", body if body is not None else b"null"), 400)


class Users(WebTestCase):

    def test_users_are_listed(self):
        users = self.check(self.ana.get("/api/users"), 200)["users"]
        self.assertEqual([(user["name"], user["role"], user["disabled"]) for user in users],
                         [("ana", "admin", False), ("bob", "user", False), ("eve", "user", False)])
        self.assertNotIn(b"scrypt", self.ana.get("/api/users").body)

    def test_a_new_user_can_log_in(self):
        reply = self.ana.post("/api/users", {"name": "zoe", "password": NEW, "role": "user"})
        self.assertEqual(self.check(reply, 201)["name"], "zoe")
        self.assertEqual(reply.headers["location"], "/api/users/zoe")
        self.check(self.nobody.post("/api/session", {"name": "zoe", "password": NEW}), 200)

    def test_each_wrong_field_is_named(self):
        for field, values in (("name", ("", "a b", "x" * 51, None, 7, "<b>")), ("role", ("root", 7, [], {})),
                              ("password", ("short", None, 12345678, "x" * 257, "zoe", "password1")),
                              ("disabled", (True,)), ("id", (1,))):
            for value in values:
                with self.subTest(field=field, value=value):
                    body = {"name": "zoe", "password": NEW, field: value}
                    self.check(self.ana.post("/api/users", body), 422)
                    self.assertIn(field, self.ana.post("/api/users", body).fields)
        self.check_wrong(self.ana.post("/api/users", {}), "name", "password")

    def test_a_taken_name_is_a_conflict(self):
        for name in ("bob", "BOB"):
            self.check(self.ana.post("/api/users", {"name": name, "password": NEW}), 409, "conflict")

    def test_admins_change_role_password_and_whether_disabled(self):
        self.assertEqual(self.check(self.ana.patch("/api/users/bob", {
            "role": "admin", "current_password": PASSWORD}), 200)["role"],
                         "admin")
        self.check(self.ana.patch("/api/users/bob", {"password": NEW, "current_password": PASSWORD}), 200)
        self.check(self.bob.get("/api/session"), 401)
        self.check(self.nobody.post("/api/session", {"name": "bob", "password": NEW}), 200)
        self.assertTrue(self.check(self.ana.patch("/api/users/bob", {"disabled": True}), 200)["disabled"])
        self.assertFalse(self.check(self.ana.patch("/api/users/bob", {"disabled": False}), 200)["disabled"])

    def test_each_wrong_change_is_named(self):
        for field, value in (("role", "root"), ("role", 7), ("password", "short"), ("password", 7),
                             ("disabled", "yes"), ("disabled", None), ("disabled", 1), ("name", "bobby")):
            with self.subTest(field=field, value=value):
                self.check_wrong(self.ana.patch("/api/users/bob", {field: value}), field)

    def test_ones_own_password_needs_the_current_one(self):
        self.check(self.bob.patch("/api/users/bob", {"password": NEW}), 403)
        self.check(self.bob.patch("/api/users/bob", {"password": NEW, "current_password": "wrong"}), 403)
        self.check_wrong(self.bob.patch("/api/users/bob",
                                        {"password": "short", "current_password": PASSWORD}),
                         "password")
        self.check_wrong(self.bob.patch("/api/users/bob", {}), "password")
        self.check(self.nobody.post("/api/session", {"name": "bob", "password": PASSWORD}), 200)

    def test_who_changed_it_stays_logged_in_and_all_others_do_not(self):
        other = self.browser("bob")
        old = Visitor(self.app, cookie=self.bob.cookie)
        self.check(self.bob.patch("/api/users/bob", {"password": NEW, "current_password": PASSWORD}), 200)
        self.check(self.bob.get("/api/session"), 200)
        self.check(other.get("/api/session"), 401)
        self.check(old.get("/api/session"), 401)

    def test_an_admin_changes_their_own_password_in_the_same_way(self):
        self.check(self.ana.patch("/api/users/ana", {"password": NEW}), 403)
        reply = self.ana.patch("/api/users/ana", {"password": NEW, "current_password": PASSWORD})
        self.check(reply, 200)
        self.check(self.ana.get("/api/users"), 200)

    def test_deleting_needs_a_user_without_tasks(self):
        self.add("bob")
        self.check(self.ana.delete("/api/users/bob"), 409, "conflict")
        self.assertEqual(self.ana.delete("/api/users/eve").status, 204)
        self.check(self.eve.get("/api/session"), 401)
        self.check(self.ana.delete("/api/users/eve"), 404, "not_found")

    def test_a_deleted_users_activity_is_still_told(self):
        task_id = self.add("eve")
        self.delete(task_id)
        self.assertEqual(self.ana.delete("/api/users/eve").status, 204)
        self.assertEqual({row["owner"] for row in self.ana.get("/api/activity").json["activity"]}, {None})


class Tokens(WebTestCase):

    def test_a_token_works_until_it_is_revoked(self):
        given = self.check(self.bob.post("/api/tokens", {"name": "laptop", "password": PASSWORD}), 201)
        self.assertTrue(given["token"].startswith("jq_"))
        program = Visitor(self.app, token=given["token"])
        self.check(program.get("/api/session"), 200)
        self.check(self.nobody.get("/api/session", X_Api_Key=given["token"]), 200)
        self.check(self.nobody.get("/api/session", Authorization="bearer  " + given["token"]), 200)
        self.assertEqual(self.bob.delete("/api/tokens/%d" % given["id"]).status, 204)
        self.check(program.get("/api/session"), 401)

    def test_making_one_in_a_session_needs_the_password(self):
        for number, body in enumerate(({}, {"password": "wrong"}, {"password": NEW})):
            reply = self.bob.post("/api/tokens", {"name": "laptop", **body})
            self.check(reply, 403, "denied")
            self.assertEqual(reply.fields, ["password"], number)
        self.assertEqual(self.bob.get("/api/tokens").json, {"tokens": []})
        self.check(self.program("bob").post("/api/tokens", {"name": "by a program"}), 201)
        for visitor in (self.bob, self.program("bob")):
            self.check(visitor.post("/api/tokens", {"name": "laptop", "password": None}), 422, "invalid")

    def test_guessing_it_is_slowed_down(self):
        for _ in range(5):
            self.check(self.bob.post("/api/tokens", {"name": "laptop", "password": "wrong"}), 403)
        self.check(self.bob.post("/api/tokens", {"name": "laptop", "password": PASSWORD}), 429, "too_many")

    def test_a_token_is_never_shown_again(self):
        given = self.bob.post("/api/tokens", {"name": "laptop", "scope": "user", "password": PASSWORD}).json
        listed = self.bob.get("/api/tokens")
        self.assertEqual([token["name"] for token in listed.json["tokens"]], ["laptop"])
        self.assertNotIn(given["token"].encode(), listed.body)

    def test_each_wrong_field_is_named(self):
        for field, values in (("name", (None, "", " ", "x" * 101, 7)), ("scope", ("root", None, 7, [], "")),
                              ("id", (1,))):
            for value in values:
                with self.subTest(field=field, value=value):
                    body = {"name": "x", "password": PASSWORD, field: value}
                    self.check_wrong(self.bob.post("/api/tokens", body), field)

    def test_a_token_in_the_address_is_no_token(self):
        token = self.make_token("bob")[1]
        for name in ("token", "api_key", "access_token", "X-Api-Key"):
            self.check(self.nobody.get("/api/session?%s=%s" % (name, token)), 401)


class Invitations(WebTestCase):

    def invite(self, role="user", visitor=None, **more):
        """The code of a new invitation."""
        given = {"role": role, **more}
        return self.check((visitor or self.ana).post("/api/invitations", given), 201)["code"]

    def accept(self, code, name="kim", visitor=None, **more):
        return (visitor or Visitor(self.app)).post(
            "/api/invitations/accept", {"code": code, "name": name, "password": NEW, **more})

    def refused(self, code):
        """It makes no user."""
        reply = self.accept(code, "lou")
        self.check(reply, 403, "denied")
        self.assertIn("This invitation does not work", reply.json["detail"])
        self.assertIsNone(self.database.value("SELECT id FROM user WHERE name='lou'"))

    def test_a_colleague_chooses_name_and_password_once_and_is_logged_in(self):
        made = self.check(self.ana.post("/api/invitations", {"role": "viewer"}), 201)
        self.assertEqual((made["role"], made["link"]), ("viewer", None))
        kim = Visitor(self.app)
        self.check_wrong(self.accept(made["code"], password="short"), "password")
        self.check_wrong(self.accept(made["code"], "a b"), "name")
        self.check(self.accept(made["code"], "bob"), 409)
        value = self.check(self.accept(made["code"], visitor=kim), 201)
        self.assertEqual((value["user"]["name"], value["user"]["role"]), ("kim", "viewer"))
        self.check(kim.get("/api/tasks"), 200)
        self.check(Visitor(self.app).post("/api/session", {"name": "kim", "password": NEW}), 200)
        self.refused(made["code"])
        rows = self.check(self.ana.get("/api/activity?limit=50"), 200)["activity"]
        told = [(row["event"], row["actor"], row["message"]) for row in rows]
        self.assertIn(("token_added", "ana", "viewer (invitation)"), told)
        self.assertIn(("user_added", "ana", "kim: viewer"), told)

    def test_the_link_is_to_this_page(self):
        self.change_settings(page_address="https://jobs.example.org/jq/")
        made = self.check(self.ana.post("/api/invitations", {}), 201)
        self.assertEqual(made["link"], "https://jobs.example.org/jq/#invite=" + made["code"])
        self.assertEqual(made["role"], "user")

    def test_it_ends_after_a_day(self):
        young, old = self.invite(), self.invite()
        self.clock.advance(86399)
        self.check(self.accept(young), 201)
        self.clock.advance(2)
        self.refused(old)

    def test_an_admin_sees_and_revokes_it(self):
        code = self.invite()
        [row] = [one for one in self.check(self.ana.get("/api/tokens"), 200)["tokens"]
                 if one["scope"] == "invitation"]
        self.assertEqual((row["owner"], row["name"]), ("ana", "user"))
        self.assertEqual(self.ana.delete("/api/tokens/%d" % row["id"]).status, 204)
        self.refused(code)

    def test_it_ends_with_the_rights_of_the_inviting_admin(self):
        self.queue.users.add("dora", PASSWORD, "admin")
        for change in ("role='user'", "disabled=1"):
            with self.subTest(change=change):
                self.write("UPDATE user SET role='admin', disabled=0 WHERE name='dora'")
                code = self.invite(visitor=self.browser("dora"))
                self.write("UPDATE user SET %s WHERE name='dora'" % change)
                self.refused(code)
        self.write("UPDATE user SET role='admin', disabled=0 WHERE name='dora'")
        code = self.invite(visitor=self.browser("dora"))
        for disabled in (True, False):
            self.check(self.ana.patch("/api/users/dora", {"disabled": disabled}), 200)
        self.refused(code)

    def test_an_admin_is_invited_with_the_own_password_only(self):
        for given in ({}, {"current_password": "wrong horse"}):
            reply = self.ana.post("/api/invitations", {"role": "admin", **given})
            self.check(reply, 403, "denied")
            self.assertEqual(reply.fields, ["current_password"])
        code = self.invite("admin", current_password=PASSWORD)
        self.assertEqual(self.check(self.accept(code), 201)["user"]["role"], "admin")

    def test_the_code_gives_no_other_right_and_only_its_digest_is_stored(self):
        code = self.invite("admin", current_password=PASSWORD)
        for path in ("/api/tasks", "/api/users", "/tick?token=" + code):
            self.check(Visitor(self.app, token=code).get(path), 401)
        self.assertEqual(self.database.value("SELECT digest FROM token WHERE scope='invitation'"),
                         jobqueue.digest(code))
        self.check(self.accept(code, visitor=self.nobody, token="x"), 422)
        self.assertEqual(self.nobody.post("/api/invitations/accept", {
            "code": code, "name": "kim", "password": NEW}, Sec_Fetch_Site="cross-site").status, 403)

    def test_a_token_for_programs_cannot_be_made_of_it(self):
        self.check_wrong(self.ana.post("/api/tokens", {
            "name": "x", "scope": "invitation", "password": PASSWORD}), "scope")

    def test_guesses_are_throttled(self):
        replies = [self.accept("jq_%d" % number).status for number in range(25)]
        self.assertEqual((replies[0], replies[-1]), (403, 429))
        self.check(self.accept(self.invite()), 429, "too_many")
        self.clock.advance(61)
        self.check(self.accept(self.invite()), 201)

    def test_old_ones_are_removed(self):
        self.invite()
        self.clock.advance(86401)
        self.queue.retention.prune()
        for _ in range(40):
            self.clock.advance(3601)
            while self.queue.retention.prune():
                pass
        self.assertEqual(self.database.value("SELECT count(*) FROM token WHERE scope='invitation'"), 0)


class Session(WebTestCase):

    def log_in(self, name="bob", password=PASSWORD):
        return self.nobody.post("/api/session", {"name": name, "password": password})

    def test_logging_in_tells_who_one_is(self):
        value = self.check(self.log_in("BOB"), 200)
        self.assertEqual(value, {"user": {"name": "bob", "role": "user", "email": None, "summary": None},
                                 "mail": value["mail"], "version": jobqueue.VERSION,
                                 "expires_at": "2027-01-15T20:00:00.000Z", "data": None, "exposed": [],
                                 "looked_at": None, "max_file_mb": 64})

    def test_wrong_names_and_passwords_sound_alike(self):
        bodies = {self.log_in(*pair).body for pair in (("bob", "wrong"), ("nobody", PASSWORD), ("", ""))}
        self.assertEqual(len(bodies), 1)
        self.check(self.log_in("bob", "wrong"), 401, "unauthorized")

    def test_each_wrong_field_is_named(self):
        for field in ("name", "password"):
            for value in (None, 7, [], {}, True):
                body = {"name": "bob", "password": PASSWORD, field: value}
                self.check_wrong(self.nobody.post("/api/session", body), field)
        self.check_wrong(self.nobody.post("/api/session", {}), "name", "password")
        self.check_wrong(self.nobody.post("/api/session", {"name": "a", "password": "b", "remember": 1}),
                         "remember")

    def test_too_many_failures_are_429_with_the_seconds_to_wait(self):
        for _ in range(5):
            self.check(self.log_in("bob", "wrong"), 401)
        reply = self.log_in()
        self.check(reply, 429, "too_many")
        self.assertEqual(reply.headers["retry-after"], "1")
        self.clock.advance(1)
        self.check(self.log_in(), 200)

    def test_logging_out_twice_is_401(self):
        cookie = self.bob.cookie
        self.assertEqual(self.bob.delete("/api/session").status, 204)
        self.check(Visitor(self.app, cookie=cookie).delete("/api/session"), 401)

    def test_a_program_has_no_session_that_expires(self):
        self.assertIsNone(self.program("bob").get("/api/session").json["expires_at"])


class Sessions(WebTestCase):
    """Where one is logged in, and logging out there."""

    def there(self, visitor):
        return [(one["address"], one["current"])
                for one in self.check(visitor.get("/api/sessions"), 200)["sessions"]]

    def from_place(self, address):
        """A browser of bob's that logged in from this address."""
        token = self.queue.sessions.open(self.queue.users.find("bob"), address)
        return Visitor(self.app, cookie=self.bob.cookie.split("=")[0] + "=" + token)

    def test_ones_own_are_listed_with_the_latest_used_first(self):
        self.from_place("203.0.113.7")
        self.clock.advance(600)
        away = self.from_place("203.0.113.8")
        self.assertEqual(self.there(away), [
            ("203.0.113.8", True), ("203.0.113.7", False), ("192.0.2.200", False)])
        self.clock.advance(600)
        self.assertEqual(self.there(self.bob)[0], ("192.0.2.200", True))
        used = [one["seen_at"] for one in self.bob.get("/api/sessions").json["sessions"]]
        self.assertEqual(used, sorted(used, reverse=True))
        self.assertEqual(self.there(self.eve), [("192.0.2.200", True)])

    def test_those_that_ended_are_not(self):
        self.from_place("203.0.113.7")
        self.clock.advance(jobqueue.SESSION_IDLE_SECONDS - 60)
        self.assertEqual(len(self.there(self.bob)), 2)
        self.clock.advance(120)
        self.assertEqual(self.there(self.bob), [("192.0.2.200", True)])

    def test_everywhere_else_keeps_only_the_one_that_asks(self):
        away, program = self.from_place("203.0.113.7"), self.program("bob")
        self.check(self.bob.delete("/api/sessions"), 204)
        self.assertEqual(self.there(self.bob), [("192.0.2.200", True)])
        self.check(away.get("/api/session"), 401)
        self.check(program.get("/api/session"), 200)
        self.check(self.eve.get("/api/session"), 200)

    def test_a_program_that_asks_ends_all_of_them(self):
        self.check(self.program("bob").delete("/api/sessions"), 204)
        self.check(self.bob.get("/api/session"), 401)

    def test_an_admin_logs_out_anybody_and_that_is_noted(self):
        away = self.from_place("203.0.113.7")
        self.check(self.ana.delete("/api/users/bob/sessions"), 204)
        for visitor in (self.bob, away):
            self.check(visitor.get("/api/session"), 401)
        self.check(self.ana.delete("/api/users/nobody/sessions"), 404)
        rows = self.ana.get("/api/activity?event=logged_out").json["activity"]
        self.assertEqual([(row["owner"], row["actor"], row["message"]) for row in rows],
                         [("bob", "ana", "bob: everywhere")])

    def test_a_new_password_leaves_only_the_one_that_set_it(self):
        away = self.from_place("203.0.113.7")
        self.check(self.bob.patch("/api/users/bob", {"password": NEW, "current_password": PASSWORD}), 200)
        self.check(away.get("/api/session"), 401)
        self.assertEqual(self.database.value("SELECT count(*) FROM session WHERE user_id=?",
                                             (self.owner_id("bob"),)), 1)

    def test_nothing_more_is_stored_than_is_shown(self):
        columns = set(self.database.one("SELECT * FROM session").keys())
        self.assertEqual(columns, {
            "id", "digest", "user_id", "address", "created_at", "seen_at", "expires_at"})


class Setup(WebTestCase):

    def setUp(self):
        super().setUp()
        self.remove_users()
        self.code = self.queue.setup.code()
        self.patch(jobqueue, "changed_at", lambda file: self.clock.now())

    def set_up(self, visitor=None, **changes):
        return (visitor or self.nobody).post("/api/setup",
                                             {"code": self.code, "name": "root", "password": NEW, **changes})

    def test_the_code_makes_the_admin_and_logs_in(self):
        visitor = Visitor(self.app)
        value = self.check(self.set_up(visitor), 201)
        self.assertEqual(value["user"], {"name": "root", "role": "admin", "email": None, "summary": None})
        self.check(visitor.get("/api/users"), 200)

    def test_after_that_there_is_no_set_up(self):
        self.check(self.set_up(), 201)
        self.check(self.set_up(), 404)
        self.check(self.set_up(code="wrong"), 404)

    def test_a_wrong_code_is_403_and_named(self):
        reply = self.set_up(code="wrong")
        self.check(reply, 403, "denied")
        self.assertEqual(reply.fields, ["code"])

    def test_each_wrong_field_is_named(self):
        self.check_wrong(self.set_up(name="a b"), "name")
        self.check_wrong(self.set_up(password="short"), "password")
        self.check_wrong(self.set_up(role="admin"), "role")
        self.check_wrong(self.set_up(code=None), "code")

    def test_another_sites_page_cannot_set_up(self):
        body = {"code": self.code, "name": "root", "password": NEW}
        self.check(self.nobody.post("/api/setup", body, Sec_Fetch_Site="cross-site"), 403)
        self.check(self.nobody.post("/api/setup", body, Content_Type="text/plain"), 415)

    def test_everything_else_is_401_and_says_that_set_up_is_due(self):
        for path in ("/api/session", "/api/tasks", "/api/users"):
            self.assertIs(self.check(self.nobody.get(path), 401)["setup"], True)

    def test_the_page_does_not_tell_the_code(self):
        for path in ("/", "/healthz", "/api/session", "/static/app.js"):
            self.assertNotIn(self.code.encode(), self.nobody.get(path).body)


class Health(WebTestCase):

    def test_it_tells_version_and_schema_to_anyone(self):
        value = self.check(self.nobody.get("/healthz"), 200)
        self.assertEqual(value, {"status": "ok", "version": jobqueue.VERSION,
                                 "schema": jobqueue.SCHEMA_VERSION})

    def test_a_database_that_does_not_answer_is_503(self):
        with mock.patch.object(self.database, "value", side_effect=jobqueue.StorageBroken("broken")):
            self.check(self.nobody.get("/healthz"), 503, "storage")


if __name__ == "__main__":
    unittest.main()
