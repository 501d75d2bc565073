"""What strangers tried and must not get: rules that stand with the thing, whichever way leads to it."""
import json
import os
import threading

import jobqueue
from tests.helpers.support import PASSWORD, function_json
from tests.helpers.web import Visitor, WebTestCase
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

    def test_an_upload_is_refused_where_it_is_stored_if_the_claim_was_lost_meanwhile(self):
        task = self.begin()
        queue, owner = self.queue, self.owner_id("bob")

        def pieces():
            yield b"old"
            self.write("UPDATE task SET claim='another' WHERE id=?", (task["id"],))
            self.queue.files.receive(owner, "result.txt", 4, [b"good"], task["id"])
            yield b"er"

        def is_held(db):
            return queue.claims.asked_with(db, task["id"], task["claim"]) is not None
        with self.refused(jobqueue.Conflict, "Another worker has this task"):
            queue.files.receive(owner, "result.txt", 5, pieces(), task["id"], is_held)
        folder = jobqueue.task_folder(self.database.folder, task["id"])
        self.assertEqual((folder / "result.txt").read_bytes(), b"good")
        self.assertEqual(os.listdir(folder), ["result.txt"])

    def test_an_upload_writes_through_no_link(self):
        task = self.begin()
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        folder = jobqueue.task_folder(self.database.folder, task["id"])
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(elsewhere)
        program = Visitor(self.app, token=task["claim"])
        self.check(program.upload("/api/worker/tasks/%d/files?name=x" % task["id"], b"x"), 201)
        self.assertEqual((os.listdir(elsewhere), (folder / "x").read_bytes()), ([], b"x"))

    def test_a_claim_is_worth_nothing_without_its_token(self):
        task = self.begin()
        program = Visitor(self.app, token=task["claim"])
        path = "/api/worker/tasks/%d" % task["id"]
        self.check(program.get(path + "/results"), 200)
        self.write("DELETE FROM token")
        self.check(program.get(path + "/results"), 401)
        self.check(program.upload(path + "/files?name=x", b"x"), 401)

    def test_a_hello_makes_no_queue_of_an_admin_one_for_remote_workers(self):
        self.check(self.ana.post("/api/queues", {"name": "fresh"}), 201)
        self.write("UPDATE queue SET external=0 WHERE name='remote'")
        paint = {**RENDER, "name": "paint", "options": {**RENDER["options"], "queue": "fresh"}}
        self.hello(session=nonce(9), functions=[paint], status=409)
        self.assertEqual(self.database.value("SELECT external FROM queue WHERE name='fresh'"), 0)
        self.hello(self.remote(queues=["fresh"]), nonce(10), [paint])
        self.assertEqual(self.database.value("SELECT external FROM queue WHERE name='fresh'"), 2)

    def test_what_the_workers_of_a_token_announce_has_a_limit_in_all(self):
        large = {**RENDER, "description": "x" * 20_000}
        announced = [{**large, "name": "f%d" % number} for number in range(12)]
        for number in range(11, 15):        # the same counts once
            self.hello(session=nonce(number), functions=announced)
        self.hello(session=nonce(20), functions=[{**large, "name": "more"}], status=422)
        self.assertLess(len(self.bob.get("/api/functions").body), 300_000)
        self.hello(self.remote(), nonce(21), [{**large, "name": "more"}])


class Secrets(WebTestCase):
    """What is named like a secret is shown to its owner alone, and what leaves as a file has none."""

    def setUp(self):
        super().setUp()
        self.declare(function_json("send", {"password": {"type": "string"}, "to": {"type": "string"}}))
        self.queue.users.add("vera", PASSWORD, "viewer")
        self.task = self.add("bob", "send", password="s3cret", to="mallory")

    def everywhere(self, person):
        """All that a person can get of the task, as one text."""
        paths = ("tasks", "tasks?fields=arguments", "tasks?format=csv", "tasks?format=ndjson",
                 "tasks/%d" % self.task, "overview", "activity", "schedules", "queues")
        return b"".join(person.get("/api/" + path).body for path in paths).decode("utf-8")

    def test_who_sees_it(self):
        self.queue.schedules.add({"function": "send", "arguments": {"password": "s3cret", "to": "x"},
                                  "rule": "daily 01:00"}, self.owner_id("bob"))
        shown = self.check(self.bob.get("/api/tasks/%d" % self.task), 200)
        self.assertEqual(shown["arguments"]["password"], "s3cret")
        for person in (self.ana, self.browser("vera"), self.program("bob", "read"),
                       self.program("ana", "read")):
            text = self.everywhere(person) + person.get("/api/schedules/1").body.decode("utf-8")
            self.assertNotIn("s3cret", text)
            self.assertIn("mallory", text)
        for kind in ("csv", "ndjson"):
            self.assertNotIn(b"s3cret", self.bob.get("/api/tasks?format=" + kind).body)

    def test_who_finds_it(self):
        def found(person, words):
            return len(self.check(person.get("/api/tasks?q=" + words), 200)["tasks"])
        self.assertEqual((found(self.bob, "s3cret"), found(self.bob, "mallory")), (1, 1))
        for person in (self.ana, self.browser("vera"), self.program("bob", "read")):
            self.assertEqual((found(person, "s3cret"), found(person, "send")), (0, 1))
        filter_ = {"action": "cancel", "filter": {"q": "s3cret"}, "expected_count": None}
        self.assertEqual(self.ana.post("/api/tasks/actions", filter_).json.get("count", 0), 0)

    def test_a_schedule_that_another_changes_keeps_it(self):
        schedule = self.queue.schedules.add(
            {"function": "send", "arguments": {"password": "s3cret", "to": "x"}, "rule": "daily 01:00"},
            self.owner_id("bob"))
        path = "/api/schedules/%d" % schedule
        shown = self.check(self.ana.get(path), 200)
        self.assertNotEqual(shown["arguments"]["password"], "s3cret")
        self.check(self.ana.patch(path, {"arguments": {**shown["arguments"], "to": "y"}}), 200)
        self.assertEqual(self.bob.get(path).json["arguments"], {"password": "s3cret", "to": "y"})

    def test_users_are_not_told_what_a_worker_printed(self):
        with self.database.transaction() as transaction:
            self.queue.workers.start_failed(transaction, "a started worker died: password=hunter2")
        self.change_settings(worker_mode="detached")
        self.assertIn(b"hunter2", self.ana.get("/api/tasks").body)
        for person in (self.bob, self.browser("vera")):
            for path in ("tasks", "overview", "queues", "workers", "schedules", "activity"):
                self.assertNotIn(b"hunter2", person.get("/api/" + path).body, path)
        self.assertIn("an admin sees why", self.bob.get("/api/tasks").json["service"]["text"])


class Host(WebTestCase):
    """What is the host's is set on the host."""

    def test_the_web_changes_no_program_path_or_password_of_the_host(self):
        for name, value in (("python", "/bin/sh"), ("mail_password_file", "/etc/passwd"),
                            ("pass_environment", "AWS_SECRET")):
            for person in (self.ana, self.program("ana")):
                self.check_wrong(person.patch("/api/settings", {name: value}), name)
            [row] = [one for one in self.ana.get("/api/settings").json["settings"] if one["name"] == name]
            self.assertEqual((row["fixed"], row["value"]), (True, ""))

    def test_with_a_password_the_server_that_is_sent_it_is_the_hosts_too(self):
        self.check(self.ana.patch("/api/settings", {"mail_server": "mail.example.org"}), 200)
        path = self.database.folder / "mail-password-x.txt"
        path.write_text("hunter2\n")
        self.assertEqual(self.queue.settings.password_file(), path)
        self.check_wrong(self.ana.patch("/api/settings", {"mail_server": "evil.example.org"}), "mail_server")
        self.change_settings(mail_server="mail.example.org")

    def test_an_admin_is_made_with_the_password_of_who_makes_one(self):
        given = {"name": "mal", "password": PASSWORD, "role": "admin"}
        self.check(self.ana.post("/api/users", given), 403)
        self.check(self.ana.post("/api/users", {**given, "current_password": "wrong"}), 403)
        self.check(self.ana.post("/api/users", {**given, "current_password": PASSWORD}), 201)
        self.check(self.ana.patch("/api/users/bob", {"role": "admin"}), 403)
        self.check(self.ana.patch("/api/users/mal", {"password": "another horse"}), 403)
        self.check(self.ana.patch("/api/users/bob", {"role": "admin", "current_password": PASSWORD}), 200)
        self.check(self.ana.patch("/api/users/bob", {"role": "user"}), 200)
        self.check(self.program("ana").patch("/api/users/bob", {"role": "admin"}), 200)

    def test_browsers_come_by_https_again_and_keep_nothing_after_the_log_in(self):
        for options, kept in (({"secure": True}, "max-age=31536000"), ({}, None)):
            reply = self.browser("bob", **options).get("/api/session")
            self.assertEqual(reply.headers.get("strict-transport-security"), kept)
        self.assertEqual(self.bob.delete("/api/session").headers["clear-site-data"], '"cache"')

    def test_names_that_look_alike_are_one(self):
        self.queue.users.add("Äb", PASSWORD)
        for name in ("äb", "A\u0308b", "BOB", "b\uff4fb"):
            with self.subTest(name), self.refused(jobqueue.JobQueueError):
                self.queue.users.add(name, PASSWORD)

    def test_whoever_has_a_name_that_python_takes_for_the_own_changes_the_others(self):
        self.queue.users.add("Äb", PASSWORD, "admin")
        self.write("INSERT INTO user (name, password, role, created_at) "
                   "SELECT 'äb', 'x', 'user', created_at FROM user WHERE name='Äb'")
        admin = self.browser("Äb")
        self.check(admin.patch("/api/users/%C3%A4b", {"password": "another horse"}), 200)
        self.assertNotEqual(self.database.value("SELECT password FROM user WHERE name='äb'"), "x")
        self.check(admin.get("/api/session"), 200)


class Waits(WebTestCase):
    """Nobody is held up by what others wait for."""

    def test_few_guesses_are_judged_at_once_and_others_are_not_counted(self):
        go = threading.Event()
        begun = threading.Semaphore(0)

        def verify(*_):
            begun.release()
            go.wait(60)
            return False
        self.patch(jobqueue, "verify_password", verify)

        def guess(name):
            return self.nobody.post("/api/session", {"name": name, "password": "wrong"})
        threads = [threading.Thread(target=guess, args=["n%d" % number]) for number in range(6)]
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire(timeout=60)
        reply = guess("one more")
        self.assertEqual((reply.status, reply.headers["retry-after"]), (503, "1"))
        self.assertEqual(self.database.value("SELECT count(*) FROM throttle WHERE subject LIKE 'user:%'"), 6)
        go.set()
        for thread in threads:
            thread.join()

    def test_wrong_log_ins_of_an_address_lock_out_nobody_who_is_known_there(self):
        def log_in(name, password=PASSWORD):
            return self.nobody.post("/api/session", {"name": name, "password": password}).status
        self.assertEqual(log_in("bob"), 200)
        while log_in("stranger%d" % self.database.value("SELECT count(*) FROM throttle"), "wrong") != 429:
            pass
        self.assertEqual((log_in("eve"), log_in("bob")), (429, 200))

    def test_forecasts_of_new_tasks_take_a_share_of_time(self):
        made, clock = [], self.queue.database.clock

        def plan(*given):
            made.append(given)
            clock.advance(1)
            return kind(*given)
        kind = jobqueue.Plan
        self.patch(jobqueue, "Plan", plan)
        self.add("bob")
        for _ in range(20):
            self.check(self.bob.get("/api/forecast?function=add"), 200)
        self.assertLess(len(made), 4)
