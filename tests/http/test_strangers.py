"""What strangers tried and must not get: rules that stand with the thing, whichever way leads to it."""
import json

import jobqueue
from tests.helpers.support import PASSWORD, function_json
from tests.helpers.web import WebTestCase
from tests.http.test_worker_routes import RENDER, RemoteTestCase, nonce


class Doors(WebTestCase):
    """One rule at every door."""

    def test_arguments_are_no_deeper_whoever_adds_them(self):
        deep = 1
        for _ in range(jobqueue.JSON_MAX_DEPTH + 1):
            deep = [deep]
        self.declare(function_json("load", {"value": {}}))
        with self.refused(jobqueue.Invalid, "arguments must be nested at most 32 levels deep"):
            self.queue.enqueue("load", {"value": deep}, owner="bob")
        self.queue.enqueue("load", {"value": deep[0][0]}, owner="bob")

    def test_a_row_that_is_too_deep_hides_no_other(self):
        first, second = self.add("bob"), self.add("bob")
        self.write("UPDATE task SET arguments=? WHERE id=?", (
            json.dumps({"a": 1})[:-2] + "[" * 900 + "]" * 900 + "}", first))
        found = self.check(self.bob.get("/api/tasks"), 200)["tasks"]
        self.assertEqual([one["id"] for one in found], [second, first])

    def test_a_user_runs_no_schedule_of_what_is_for_admins(self):
        for who in ("admin", "nobody"):
            with self.subTest(who):
                self.declare(function_json("restricted", who=who), function_json("open"))
                ids = {}
                for name in ("restricted", "open"):
                    ids[name] = self.queue.schedules.add(
                        {"function": name, "rule": "daily 01:00", "overlap": "allow"}, self.owner_id("bob"))
                self.check(self.bob.post("/api/schedules/%d/run" % ids["restricted"]), 403)
                self.check(self.ana.post("/api/schedules/%d/run" % ids["restricted"]), 201)
                self.check(self.bob.post("/api/schedules/%d/run" % ids["open"]), 201)

    def test_a_schedule_of_a_disabled_admin_has_a_users_rights(self):
        self.queue.users.add("adam", PASSWORD, "admin")
        adam = self.queue.users.person(self.queue.users.find("adam")["id"])
        self.queue.schedules.add({"function": "add", "arguments": {"a": 1}, "rule": "every 1m",
                                  "options": {"priority": 100}}, self.owner_id("bob"), adam)
        self.tick(60)
        self.assertEqual(self.database.value("SELECT max(priority) FROM task"), 100)
        self.write("UPDATE user SET disabled=1 WHERE name='adam'")
        self.tick(60)
        self.assertIn("priority must be 0 or less", self.queue.schedules.find()[0]["problem"])

    def test_a_tick_token_is_worth_what_its_owner_is(self):
        token = self.make_token("bob", "tick")[1]
        self.assertLess(self.nobody.post("/tick?token=" + token).status, 300)
        self.write("UPDATE user SET role='viewer' WHERE name='bob'")
        self.check(self.nobody.post("/tick?token=" + token), 401)

    def test_an_empty_list_is_no_limit_and_is_refused(self):
        for name in ("queues", "functions"):
            given = {"name": "x", "scope": "worker", "password": PASSWORD, name: []}
            self.check(self.ana.post("/api/tokens", given), 422)

    def test_a_log_in_forgives_only_its_own_guesses(self):
        def guess(name, password="wrong"):
            return self.nobody.post("/api/session", {"name": name, "password": password}).status
        seen = []
        for number in range(60):
            seen.append(guess("stranger%d" % number))
            if number % 10 == 9:
                guess("bob", PASSWORD)
        self.assertIn(429, seen)


class Counts(WebTestCase):
    """Whatever a user can make has a number."""

    def test_tokens_of_a_user_are_counted(self):
        for _ in range(jobqueue.TOKENS_MAX):
            self.make_token("bob")
        reply = self.program("ana").post("/api/tokens", {"name": "x"})
        self.check(reply, 201)
        with self.refused(jobqueue.Conflict, "at most 100 tokens"):
            self.make_token("bob")

    def test_files_of_a_user_are_counted_and_take_room(self):
        self.patch(jobqueue, "UNUSED_MAX", 3)
        bob = self.program("bob")
        for _ in range(3):
            self.check(bob.upload("/api/files?name=x", b""), 201)
        self.check(bob.upload("/api/files?name=x", b""), 507)
        self.patch(jobqueue, "UNUSED_MAX", 1000)
        self.change_settings(max_files_mb=1)
        self.write("UPDATE file SET size=0")
        for number in range(130):
            self.write("INSERT INTO file (owner_id, key, name, size, until) VALUES (?, ?, 'x', 1, ?)",
                       (self.owner_id("bob"), "f_%d" % number, self.clock.now() + 3600))
        self.check(bob.upload("/api/files?name=x", b""), 507)

    def test_nothing_in_a_table_is_a_formula_of_any_country(self):
        for text in ("=1", ";=1", "x;=HYPERLINK(1)", "a\t+1", "\uff1d1", "x;\uff0d1", "-1", "@a"):
            with self.subTest(text):
                self.write("DELETE FROM task")
                self.add("bob")
                self.run_one("fail", None, "Error", text)
                cells = self.bob.get("/api/tasks?format=csv").body.decode("utf-8-sig")
                self.assertNotRegex(cells, "[;\t,\"\n][=+@\uff1d\uff0d-][1Ha]")


class Wire(RemoteTestCase):
    """A worker's token."""

    def test_a_token_that_is_bound_to_a_queue_adds_its_own_and_what_users_may(self):
        worker = self.remote(queues=["gpu"])
        render = {**RENDER, "name": "paint", "options": {**RENDER["options"], "queue": "gpu"}}
        self.hello(worker, nonce(9), [render])
        self.add(function="paint", text="x")
        [task] = self.turn(worker=worker, session=nonce(9), claim={"claims": [nonce(1)]})["tasks"]
        for number, (name, arguments, status) in enumerate((
                ("restart", {}, 422), ("cleanup", {}, 422), ("greet", {"name": "x"}, 201),
                ("paint", {"text": "x"}, 201))):
            line = json.dumps({"function": name, "arguments": arguments}).encode()
            reply = worker.post("/api/worker/tasks/%d" % task["id"], line,
                                Content_Type="application/x-ndjson",
                                Idempotency_Key="%s-%d" % (task["claim"], number))
            self.check(reply, status)

    def test_a_call_names_an_attempt_once_and_brings_few_pieces(self):
        task = self.begin()
        pieces = [{"start": number, "text": "x"} for number in range(200)]
        self.turn(hold=[{**self.named(task), "log": pieces}])
        self.turn(422, hold=[{**self.named(task), "log": []}] * 2)
        self.turn(422, hold=[{"id": task["id"], "claim": nonce(100 + one), "log": pieces}
                             for one in range(6)])
        self.assertEqual(self.database.value("SELECT count(*) FROM log"), 200)

    def test_users_see_the_functions_of_workers_that_are_for_them(self):
        self.hello(functions=[RENDER, {**RENDER, "name": "secret", "who": "admin"}])
        for person, names in ((self.bob, ["render"]), (self.ana, ["render", "secret"])):
            [worker] = self.check(person.get("/api/workers"), 200)["workers"]
            self.assertEqual(worker["functions"], names)
