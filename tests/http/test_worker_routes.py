"""The routes of remote workers: who may use them, and what a worker that lies or repeats itself gets."""

import json
import unittest

import jobqueue
from tests.helpers.support import FUNCTIONS, PASSWORD, function_json
from tests.helpers.web import Visitor, WebTestCase

TEXT = {"type": "string"}
RENDER = {**function_json("render", {"text": TEXT}), "external": False}
SESSION = "%032x" % 7


def nonce(number):
    """A claim as a worker chooses it."""
    return "%032x" % number


class RemoteTestCase(WebTestCase):
    """A site and a remote worker that can run `render`, which the site has not."""

    def forget_functions(self):
        """As a second later: what functions there are is read again."""
        self.queue.catalogue._known = self.queue.catalogue._known._replace(until=0.0)

    def setUp(self):
        super().setUp()
        self.worker = self.remote()
        self.sequence = 0
        self.hello()

    def remote(self, name="ana", **limits):
        """A program with a token of the scope worker."""
        given = {"name": "strong machine", "scope": "worker", "password": PASSWORD, **limits}
        token = self.check(self.browser(name).post("/api/tokens", given), 201)["token"]
        return Visitor(self.app, token=token)

    def hello(self, worker=None, session=SESSION, functions=(RENDER,), status=200, **more):
        """A worker says hello; what it is answered."""
        given = {"session": session, "protocol": 1, "machine": "strong", "version": "1.0.0",
                 "functions": list(functions), **more}
        answer = self.check((worker or self.worker).post("/api/worker/hello", given), status)
        self.forget_functions()
        return answer

    def turn(self, status=200, worker=None, session=SESSION, again=False, **given):
        """A turn of the worker; `again` sends the number of the last one."""
        self.sequence += not again
        given = {"session": session, "sequence": self.sequence, **given}
        return self.check((worker or self.worker).post("/api/worker/turn", given), status)

    def take(self, *numbers, again=False, **more):
        """The tasks that are claimed under these claims."""
        return self.turn(claim={"claims": [nonce(number) for number in numbers]}, again=again,
                         **more)["tasks"]

    def begin(self, number=1, function="render", **arguments):
        """A task that the worker has and has begun: its order."""
        self.add(function=function, **(arguments or {"text": "x"}))
        [task] = self.take(number)
        self.assertEqual(self.turn(start=[self.named(task)])["attempts"], {task["claim"]: "running"})
        return task

    @staticmethod
    def named(task):
        """How an item of a turn names an attempt."""
        return {"id": task["id"], "claim": task["claim"]}

    def finish(self, task, kind="succeeded", again=False, **outcome):
        """The worker tells how it ended; the state that is answered."""
        item = {**self.named(task), "outcome": {"kind": kind, **outcome}}
        return self.turn(end=[item], again=again)["attempts"][task["claim"]]


class Life(RemoteTestCase):
    """From hello to the end."""

    def test_a_task_is_added_claimed_started_and_ended(self):
        task_id = self.bob.post("/api/tasks", {"function": "render", "arguments": {"text": "hi"}}).json["id"]
        [task] = self.take(1)
        self.assertEqual(task, {"id": task_id, "claim": nonce(1), "function": "render", "owner": "bob",
                                "arguments": '{"text":"hi"}', "attempt": 1, "crashes": 0,
                                "timeout": 3600, "on_crash": "retry"})
        self.turn(start=[self.named(task)])
        self.turn(hold=[{**self.named(task), "progress": 0.5, "message": "half",
                         "log": [{"start": 0, "text": "one\n"}]}])
        shown = self.check(self.bob.get("/api/tasks/%d" % task_id), 200)
        self.assertEqual((shown["status"], shown["progress"], shown["message"]), ("running", 0.5, "half"))
        self.assertEqual(self.finish(task, result='{"ok":true}'), "succeeded")
        shown = self.check(self.bob.get("/api/tasks/%d" % task_id), 200)
        self.assertEqual((shown["status"], shown["result"]), ("succeeded", {"ok": True}))
        self.assertEqual(self.bob.get("/api/tasks/%d/log" % task_id).json["text"], "one\n")

    def test_its_samples_are_kept_while_the_task_runs(self):
        task = self.begin()
        held = {**self.named(task), "samples": [[10.5, 9, 4096], [20.5, 19.25, 8192]]}
        self.assertGreaterEqual(self.hello()["protocol"], 2)
        self.turn(hold=[held])
        self.turn(hold=[self.named(task)])
        shown = self.ana.get("/api/tasks/%d" % task["id"]).json
        self.assertEqual([sample["memory"] for sample in shown["samples"]], [4096, 8192])
        for wrong in ([[1, 2]], [[1, 2, -3]], [[1, 2, "3"]], [[1, 2, 3]] * 61, {}, "x"):
            self.turn(422, hold=[{**held, "samples": wrong}])
        self.finish(task)
        self.assertIsNone(self.ana.get("/api/tasks/%d" % task["id"]).json["samples"])

    def test_it_is_among_the_workers_and_takes_nobodys_place(self):
        self.change_settings(NbMaxWorker=1)
        [worker] = self.check(self.ana.get("/api/workers"), 200)["workers"]
        self.assertEqual([worker[name] for name in ("machine", "mode", "version", "functions", "state")],
                         ["strong", "remote", "1.0.0", ["render"], "idle"])
        self.add()
        self.assertEqual(len(self.started), 1)

    def test_a_worker_of_ours_on_a_machine_of_that_name_is_not_taken_for_it(self):
        self.hello(machine=self.queue.claims.machine)
        self.assertFalse(self.queue.workers.are_there())
        worker_id, _ = self.live()
        self.assertTrue(self.queue.workers.idles_alone(worker_id))
        self.assertEqual(self.queue.workers.rank(worker_id), 1)

    def test_one_with_a_newer_protocol_is_told_so_in_a_sentence(self):
        error = self.hello(session=nonce(7), status=422, protocol=jobqueue.REMOTE_PROTOCOL + 1)
        self.assertIn("this site speaks 2: its jobqueue.py is older than this worker", error["detail"])
        self.assertEqual(len(self.queue.workers.rows()), 1)

    def test_its_functions_are_offered_while_it_lives(self):
        def offered():
            found = {one["name"]: one for one in self.bob.get("/api/functions").json["functions"]}
            return found.get("render", {}).get("remote")
        self.assertEqual(offered(), ["strong"])
        self.hello(session=nonce(8), machine="other")
        self.assertEqual(offered(), ["strong", "other"])
        self.turn(leave="no more work")
        self.turn(leave="no more work", session=nonce(8))
        self.forget_functions()
        self.assertIsNone(offered())
        self.check_wrong(self.bob.post("/api/tasks", {"function": "render", "arguments": {"text": "x"}}),
                         "function")

    def test_our_own_workers_leave_its_functions_alone(self):
        task_id = self.add(function="render", text="x")
        self.assertEqual(self.row(task_id)["queue"], "remote")
        self.assertIsNone(self.claim())
        self.declare(*FUNCTIONS)                    # tasks.py was read anew
        self.assertIsNone(self.claim())
        shown = self.bob.get("/api/tasks/%d" % task_id).json
        self.assertEqual(shown["blocked_text"], "Only remote workers work on the queue remote.")

    def test_what_the_site_can_run_too_is_taken_by_who_comes_first(self):
        self.hello(functions=[RENDER, {**function_json("add", {}), "external": False}])
        ids = self.add_many("bob", 3)
        self.add(function="greet", name="x")
        self.assertEqual(self.claim()["id"], ids[0])
        self.assertEqual([task["id"] for task in self.take(1)], [ids[1]])
        self.assertEqual(self.claim()["id"], ids[2])
        self.assertEqual(self.take(2), [], "greet is none of its functions")

    def test_a_queue_of_its_own_is_kept_unless_ours_hold_tasks_in_it(self):
        gpu, mail = ({**function_json(name, queue=name), "external": False} for name in ("gpu", "mail"))
        self.add(function="send", to="x")           # in the queue mail
        self.hello(functions=[gpu, mail])
        for name, queue in (("gpu", "gpu"), ("mail", "remote")):
            self.assertEqual(self.queue.catalogue.find(name)["options"]["queue"], queue)
        self.assertEqual({row["name"]: row["external"] for row in self.database.all(
            "SELECT name, external FROM queue")}, {"default": 0, "mail": 0, "gpu": 2, "remote": 2})

    def test_limits_and_the_order_of_queues_hold_for_it(self):
        self.queue.queues.change("remote", {"max_running": 1}, "ana")
        first, second = (self.add(function="render", text="x") for _ in range(2))
        task = self.take(1)[0]
        self.assertEqual((task["id"], self.take(2)), (first, []))
        self.turn(start=[self.named(task)])
        self.finish(task)
        self.assertEqual(self.take(3)[0]["id"], second)
        self.queue.queues.change("remote", {"paused": True}, "ana")
        self.add(function="render", text="x")
        self.assertEqual(self.take(4), [])

    def test_limits_of_users_hold_for_it(self):
        self.hello()
        self.queue.users.change("bob", max_running=1)
        for owner in ("bob", "bob", "eve"):
            self.add(owner, function="render", options={"priority": -5 * (owner == "eve")}, text=owner)
        [first] = self.take(1)
        [second] = self.take(2)
        self.assertEqual((first["owner"], second["owner"], self.take(3)), ("bob", "eve", []))
        self.turn(start=[self.named(first)])
        self.finish(first)
        self.assertEqual([task["owner"] for task in self.take(4)], ["bob"])

    def test_several_of_a_function_are_claimed_at_once(self):
        ids = [self.add(function="render", text="x") for _ in range(3)]
        tasks = self.turn(claim={"claims": [nonce(1), nonce(2)], "function": "render"})["tasks"]
        self.assertEqual([(task["id"], task["claim"]) for task in tasks],
                         [(ids[0], nonce(1)), (ids[1], nonce(2))])

    def test_where_nothing_can_wait_it_is_told_when_to_ask_again(self):
        claim, app = {"claims": [nonce(1)], "wait": 20}, self.app
        self.assertEqual(self.turn(claim=claim)["wait"], jobqueue.ASK_AGAIN_SECONDS)

        def patient(environ, start_response):
            return app({**environ, "jobqueue.pause": pauses.append}, start_response)

        pauses = []
        self.worker.app = patient
        self.assertEqual((self.turn(claim=claim)["wait"], len(pauses)), (0, 1), "the client has left")
        while app.waiting.acquire(blocking=False):
            pass
        self.assertEqual(self.turn(claim=claim)["wait"], jobqueue.ASK_AGAIN_SECONDS)

    def test_errors_are_retried_and_a_cancel_is_told(self):
        task = self.begin(number=1)
        self.assertEqual(self.finish(task, "error", error_type="ValueError", error_message="no"), "failed")
        task = self.begin(number=2)
        self.cancel(task["id"])
        self.assertEqual(self.turn(hold=[self.named(task)])["attempts"], {nonce(2): "cancel"})
        self.assertEqual(self.finish(task, "cancelled"), "cancelled")

    def test_a_deleted_task_leaves_nothing_behind(self):
        task = self.begin()
        folder = jobqueue.task_folder(self.database.folder, task["id"])
        folder.mkdir(parents=True)
        self.delete(task["id"])
        self.finish(task, "cancelled")
        self.assertEqual((self.row(task["id"]), folder.exists()), (None, False))


class Repeated(RemoteTestCase):
    """The connection may fail at any byte: every call can be made once more."""

    def test_hello(self):
        self.hello()
        self.assertEqual(len(self.ana.get("/api/workers").json["workers"]), 1)

    def test_a_claim_whose_answer_was_lost_gets_the_same_tasks(self):
        self.add(function="render", text="x")
        self.add(function="render", text="x")
        self.assertEqual(self.take(1, 2), self.take(1, 2, again=True))
        self.assertEqual(self.database.value("SELECT count(*) FROM task WHERE status=1"), 1)

    def test_a_late_copy_of_a_call_claims_nothing(self):
        self.take(1)
        self.add(function="render", text="x")
        late = {"session": SESSION, "sequence": self.sequence, "claim": {"claims": [nonce(1)]}}
        self.turn()
        reply = self.worker.post("/api/worker/turn", late)
        self.assertEqual(self.check(reply, 409)["gone"], False)
        self.assertEqual(self.database.value("SELECT count(*) FROM task WHERE status=1"), 0)

    def test_a_start_and_an_end(self):
        task = self.begin()
        self.turn(start=[self.named(task)], again=True)
        for _ in range(3):
            self.assertEqual(self.finish(task, again=True), "succeeded")
        self.assertEqual(self.events(task["id"]), ["added", "started", "succeeded"])

    def test_pieces_of_a_log_are_kept_once_and_in_order(self):
        task = self.begin()
        one, two = {"start": 0, "text": "one\n"}, {"start": 4, "text": "two\n"}
        for log in ([one], [one], [one, two], [two, {"start": 2, "text": "over"}], [{**two, "text": ""}]):
            self.turn(hold=[{**self.named(task), "log": log}])
        self.assertEqual(self.bob.get("/api/tasks/%d/log" % task["id"]).json["text"], "one\ntwo\n")

    def test_adding_from_inside_a_task(self):
        task = self.begin(function="render")
        path, key = "/api/worker/tasks/%d" % task["id"], task["claim"] + "-1"
        lines = b'{"function":"add","arguments":{"a":1}}\n{"function":"cleanup"}\n'
        first, second = (self.check(self.worker.post(
            path, lines, Content_Type="application/x-ndjson", Idempotency_Key=key), 201) for _ in range(2))
        self.assertEqual((first, first["created"]), (second, 2))
        self.assertEqual({self.row(task_id)["owner_id"] for task_id in first["ids"]}, {self.owner_id("bob")})
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 3)

    def test_over_http_no_request_is_taken_unchecked(self):
        task = self.begin(function="render")
        for number, line in enumerate(({"function": "blog.jobs.wipe"}, {"function": "add"},
                                       {"function": "add", "arguments": {"a": "text"}})):
            reply = self.worker.post(
                "/api/worker/tasks/%d" % task["id"], json.dumps({**line, "django": True}).encode(),
                Content_Type="application/x-ndjson", Idempotency_Key="%s-%d" % (task["claim"], number))
            self.check(reply, 422)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 1)


class Lost(RemoteTestCase):
    """Workers that die, are started anew, or are cut off."""

    def test_what_was_never_confirmed_goes_back_unspent(self):
        task_id = self.add(function="render", text="x")
        self.take(1)
        self.pass_in_silence(jobqueue.REMOTE_LEASE_SECONDS + 60)
        self.tick()
        row = self.row(task_id)
        self.assertEqual([row[name] for name in ("status", "crashes", "put_backs", "attempts")], [0, 0, 1, 1])
        self.assertEqual(self.ana.get("/api/workers").json["workers"], [])
        self.hello()
        self.assertEqual(self.take(2)[0]["attempt"], 1)

    def test_what_had_begun_has_crashed(self):
        task = self.begin()
        self.pass_in_silence(jobqueue.REMOTE_LEASE_SECONDS + 60)
        self.tick()
        self.assertEqual((self.status(task["id"]), self.row(task["id"])["crashes"]), ("pending", 1))
        reply = self.turn(409)
        self.assertEqual(reply["gone"], True)
        self.hello()
        self.assertEqual(self.finish(task), "lost")

    def test_who_renews_keeps_it(self):
        task = self.begin()
        for _ in range(5):
            self.pass_in_silence(jobqueue.REMOTE_LEASE_SECONDS - 30)
            self.tick()
            self.assertEqual(self.turn(hold=[self.named(task)])["attempts"], {task["claim"]: "running"})

    def test_who_leaves_gives_back_what_it_never_began(self):
        task_id = self.add(function="render", text="x")
        self.take(1)
        self.turn(leave="stopped by a signal")
        self.assertEqual((self.status(task_id), self.row(task_id)["crashes"]), ("pending", 0))
        self.assertTrue(self.database.value("SELECT 1 FROM activity WHERE event='worker_ended'"))

    def test_one_that_was_killed_tells_later_what_it_did(self):
        done, running = self.begin(1), self.begin(2)
        item = {**self.named(done), "outcome": {"kind": "succeeded", "result": "1"}}
        answer = self.turn(end=[item], leave="was started anew")
        self.assertEqual(answer["attempts"], {done["claim"]: "succeeded"})
        self.assertEqual((self.status(running["id"]), self.row(running["id"])["crashes"]), ("pending", 1))

    def test_a_later_worker_of_the_same_token_may_tell_it_as_well(self):
        task = self.begin()
        self.hello(session=nonce(8))
        self.assertEqual(self.turn(end=[{**self.named(task), "outcome": {"kind": "succeeded"}}],
                                   session=nonce(8))["attempts"], {task["claim"]: "succeeded"})

    def test_an_unconfirmed_task_may_be_given_back(self):
        self.add(function="render", text="x")
        [task] = self.take(1)
        self.assertEqual(self.finish(task, "put_back"), "pending")


class Liars(RemoteTestCase):
    """A worker that lies or floods harms nobody."""

    def test_a_token_of_another_scope_or_of_no_admin_may_not(self):
        for worker in (self.program("ana"), self.program("ana", "tick"), self.program("bob", "worker")):
            self.hello(worker, status=403)
        self.check(self.bob.post("/api/tokens", {"name": "x", "scope": "worker", "password": PASSWORD}), 403)
        self.write("UPDATE user SET role='user' WHERE name='ana'")
        self.turn(403)

    def test_its_token_may_do_nothing_else(self):
        for method, path, _, who, *_ in jobqueue.ROUTES:
            if who in (jobqueue.USER, jobqueue.ADMIN):
                path = path.replace(jobqueue.ID, "1").replace(jobqueue.NAME, "x")
                self.check(self.worker.ask(method, path, {}), 403)
        for path in ("/tick", "/metrics"):
            self.assertIn(self.worker.get(path).status, (401, 403, 404))

    def test_a_token_sees_only_its_functions_and_queues(self):
        worker = self.remote(queues=["remote"], functions=["draw", "add"])
        draw = {**function_json("draw"), "external": False}
        self.hello(worker, nonce(8), [RENDER, draw, {**function_json("add", {}), "external": False}])
        self.turn(leave="x")                        # the other one, which can render
        self.forget_functions()
        self.assertIsNone(self.queue.catalogue.find("render"))
        self.add()
        task_id = self.add(function="draw")
        claim = {"claims": [nonce(1)]}
        self.assertEqual(self.turn(worker=worker, session=nonce(8), claim=claim)["tasks"][0]["id"], task_id)
        claim = {"claims": [nonce(2)]}
        self.assertEqual(self.turn(worker=worker, session=nonce(8), claim=claim)["tasks"], [])

    def test_a_function_without_a_queue_of_its_own_is_refused(self):
        worker = self.remote(queues=["default"])
        self.hello(worker, nonce(8), status=409)

    def test_tasks_of_others_are_lost_to_it(self):
        other = self.remote()
        self.hello(other, nonce(8))
        task = self.begin(1)
        self.add()
        for foreign in (task, self.claim()):
            item = {"id": foreign["id"], "claim": foreign["claim"]}
            for given in ({"start": [item]}, {"hold": [{**item, "progress": 1, "message": "mine"}]},
                          {"end": [{**item, "outcome": {"kind": "succeeded"}}]}):
                answer = self.turn(worker=other, session=nonce(8), **given)
                self.assertEqual(answer["attempts"], {foreign["claim"]: "lost"})
            reply = other.post("/api/worker/tasks/%d" % foreign["id"], b'{"function":"cleanup"}',
                               Idempotency_Key=foreign["claim"] + "-1")
            self.check(reply, 409)
            row = self.row(foreign["id"])
            self.assertEqual((row["status"], row["message"]), (jobqueue.RUNNING, None))

    def test_nor_are_sessions_of_others_its_own(self):
        other = self.remote()
        self.assertTrue(self.turn(409, worker=other, leave="ha")["gone"])
        self.assertEqual(len(self.ana.get("/api/workers").json["workers"]), 1)

    def test_each_item_is_answered_on_its_own(self):
        good, bad = self.begin(1), self.begin(2)
        wrong = {"kind": "succeeded", "result": "{", "surprise": 1}
        answer = self.turn(end=[{**self.named(good), "outcome": {"kind": "succeeded"}},
                                {**self.named(bad), "outcome": wrong},
                                {"id": 999, "claim": nonce(3), "outcome": {"kind": "succeeded"}}])
        self.assertEqual(answer["attempts"], {nonce(1): "succeeded", nonce(2): "failed", nonce(3): "lost"})
        self.assertIn("outcome", self.row(bad["id"])["error_message"])

    def test_results_that_are_no_json_fail_the_task(self):
        deep = "[" * 66 + "]" * 66
        for number, result in enumerate(("{", "NaN", "[" * 100_000, "", "1e999x", "1e999", deep), 1):
            task = self.begin(number)
            state = self.finish(task, result=result)
            self.assertEqual(state, "succeeded" if not result else "failed", result[:10])

    def test_a_token_has_so_many_workers_and_they_have_so_many_queues(self):
        def hello(number, status=200):
            draw = function_json("draw%d" % number, queue="own%d" % number)
            self.hello(session=nonce(number), functions=[{**draw, "external": False}], status=status)

        self.patch(jobqueue, "REMOTE_MAX", 3)
        hello(101)
        hello(102)
        hello(103, 409)
        hello(102)
        self.turn(session=nonce(101), leave="no more work")
        hello(103)
        queues = [self.queue.catalogue.find("draw%d" % one)["options"]["queue"] for one in (102, 103)]
        self.assertEqual(queues, ["own102", "remote"])
        self.hello(functions=[{**RENDER, "description": "x" * 20_000}] * 14, status=422)

    def test_a_gigabyte_of_log_is_kept_within_the_limit(self):
        task, text, start = self.begin(), "x" * 60_000, 0
        for _ in range(20):
            pieces = [{"start": start + place * 60_000, "text": text} for place in range(10)]
            self.turn(hold=[{**self.named(task), "log": pieces}])
            start += 10 * 60_000
        kept = self.database.value("SELECT sum(length) FROM log WHERE task_id=?", (task["id"],))
        self.assertLess(kept, jobqueue.LOG_MAX_BYTES + 2 * 60_000)
        for piece in ({"start": start, "text": "x" * 70_000}, {"start": jobqueue.INTEGER_MAX, "text": ""}):
            self.turn(422, hold=[{**self.named(task), "log": [piece]}])

    def test_a_million_nested_adds_are_refused(self):
        task = self.begin()
        lines = b'{"function":"cleanup"}\n' * (jobqueue.ADD_MAX + 1)
        reply = self.worker.post("/api/worker/tasks/%d" % task["id"], lines,
                                 Content_Type="application/x-ndjson", Idempotency_Key=task["claim"] + "-1")
        self.check(reply, 413)
        self.change_settings(max_pending=10)
        reply = self.worker.post("/api/worker/tasks/%d" % task["id"], lines[:23 * 11],
                                 Content_Type="application/x-ndjson", Idempotency_Key=task["claim"] + "-2")
        self.check(reply, 429)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 1)

    def test_a_bound_token_adds_its_functions_and_what_any_user_may(self):
        for functions, expected in ((["render"], (201, 422, 422)), (["render", "cleanup"], (201, 422, 201)),
                                    ([], (201, 201, 201))):
            limits = {"functions": functions} if functions else {}
            worker, session = self.remote(**limits), nonce(50 + len(functions))
            self.hello(worker, session)
            self.add(function="render", text="x")
            self.sequence += 1
            [task] = self.turn(worker=worker, session=session, claim={"claims": [session]})["tasks"]
            path = "/api/worker/tasks/%d" % task["id"]
            for name, status in zip(("greet", "restart", "cleanup"), expected):
                line = json.dumps({"function": name, "arguments": {"name": "x"} if name == "greet" else {}})
                self.check(worker.post(path, line.encode(), Content_Type="application/x-ndjson",
                                       Idempotency_Key="%s-%s" % (task["claim"], name)), status)

    def test_announcements_that_cannot_be_shown_are_refused(self):
        def announced(parameter, **more):
            return {**RENDER, "schema": {"type": "object", "properties": {"x": parameter},
                                         "required": [], **more}}
        for function in (announced({"type": 5}), announced({"type": "strange"}), announced(7),
                         announced({"type": "string", "pattern": 3}), announced({"enum": 3}),
                         announced({"type": "array", "items": {"format": "strange"}}),
                         announced({"type": "array", "items": 3}), announced({}, required=3),
                         {**RENDER, "options": {"timeout": -1}}, {**RENDER, "who": "me"},
                         {**RENDER, "name": ""}, {**RENDER, "name": "\x1b[31m"},
                         {**RENDER, "name": jobqueue.SCRIPT_FUNCTION},
                         {**RENDER, "schema": {}}, {"name": "x"}, {}):
            self.hello(session=nonce(8), functions=[function], status=422)
        self.hello(functions=[announced({"type": ["string", "null"], "default": None, "format": "date"}),
                              {**announced({"enum": list(range(250))}), "name": "countries"}])

    def test_patterns_that_could_take_long_do_not_count_here(self):
        slow, quick = "(a+)+$", "auto|by\\ hand"
        self.hello(functions=[{**RENDER, "name": "slow", "schema": {
            "type": "object", "required": [], "properties": {
                "x": {"type": "string", "pattern": slow},
                "y": {"type": "array", "items": {"type": "string", "pattern": slow}},
                "pattern": {"type": "string", "pattern": quick}}}}])
        self.add(function="slow", x="a" * 50 + "b", y=["a" * 50 + "b"], pattern="by hand")
        with self.refused(jobqueue.Invalid, "pattern"):
            self.add(function="slow", pattern="by chance")
        self.assertEqual(self.bob.get("/api/functions").status, 200)


if __name__ == "__main__":
    unittest.main()
