"""Who may do what: every route, method, kind of visitor and kind of object, against one table."""
import os
import re
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD
from tests.helpers.web import BODIES, NEW_PASSWORD, ROUTES, UPLOADS, Visitor, WebTestCase, call

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "X-FOO")
NOBODY = ("anonymous", "expired", "idle", "left", "disabled", "disabled token", "revoked")
PLACES = {**dict.fromkeys(NOBODY, 0), "owner": 1, "token": 1, "stranger": 2, "demoted": 2,
          "demoted token": 2, "admin": 3, "viewer": 3, "reader": 1, "admin reader": 3}
READERS = ("reader", "admin reader")        # tokens of the owner and of an admin, for reading only

# The status for who is nobody, for the owner of the object (by session and by token), for a stranger
# and for an admin with the same object; then that for a missing object, None where there is none.
#                                              nobody  owner  stranger  admin  missing
TABLE = {
    ("GET", "/"):                               (200,   200,   200,     200,   None),
    ("GET", "/static/NAME"):                    (200,   200,   200,     200,   404),
    ("GET", "/static/languages/NAME"):          (200,   200,   200,     200,   404),
    ("GET", "/static/docs/NAME"):               (200,   200,   200,     200,   404),
    ("GET", "/healthz"):                        (200,   200,   200,     200,   None),
    ("GET", "/openapi.json"):                   (200,   200,   200,     200,   None),
    ("GET", "/metrics"):                        (401,   403,   403,     403,   None),
    ("GET", "/tick"):                           (401,   401,   401,     401,   None),
    ("POST", "/tick"):                          (401,   200,   200,     200,   None),
    ("POST", "/api/setup"):                     (404,   404,   404,     404,   None),
    ("POST", "/api/session"):                   (200,   200,   200,     200,   None),
    ("GET", "/api/session"):                    (401,   200,   200,     200,   None),
    ("DELETE", "/api/session"):                 (401,   204,   204,     204,   None),
    ("GET", "/api/sessions"):                   (401,   200,   200,     200,   None),
    ("DELETE", "/api/sessions"):                (401,   204,   204,     204,   None),
    ("GET", "/api/functions"):                  (401,   200,   200,     200,   None),
    ("GET", "/api/summary"):                    (401,   200,   200,     200,   None),
    ("GET", "/api/overview"):                   (401,   200,   200,     200,   None),
    ("GET", "/api/tasks"):                      (401,   200,   200,     200,   None),
    ("POST", "/api/tasks"):                     (401,   201,   201,     201,   None),
    ("POST", "/api/tasks/actions"):             (401,   200,   200,     200,   None),
    ("GET", "/api/tasks/ID"):                   (401,   200,   404,     200,   404),
    ("PATCH", "/api/tasks/ID"):                 (401,   200,   404,     200,   404),
    ("DELETE", "/api/tasks/ID"):                (401,   204,   404,     204,   404),
    ("POST", "/api/tasks/ID/cancel"):           (401,   200,   404,     200,   404),
    ("POST", "/api/tasks/ID/retry"):            (401,   200,   404,     200,   404),
    ("GET", "/api/tasks/ID/success"):           (401,   200,   404,     200,   404),
    ("GET", "/api/tasks/ID/log"):               (401,   200,   404,     200,   404),
    ("POST", "/api/files"):                     (401,   201,   201,     201,   None),
    ("GET", "/api/tasks/ID/files"):             (401,   200,   404,     200,   404),
    ("GET", "/api/tasks/ID/files/NAME"):        (401,   200,   404,     200,   404),
    ("GET", "/api/schedules"):                  (401,   200,   200,     200,   None),
    ("POST", "/api/schedules"):                 (401,   201,   201,     201,   None),
    ("POST", "/api/schedules/preview"):         (401,   200,   200,     200,   None),
    ("GET", "/api/schedules/ID"):               (401,   200,   404,     200,   404),
    ("PATCH", "/api/schedules/ID"):             (401,   200,   404,     200,   404),
    ("DELETE", "/api/schedules/ID"):            (401,   204,   404,     204,   404),
    ("POST", "/api/schedules/ID/run"):          (401,   201,   404,     201,   404),
    ("GET", "/api/metrics"):                    (401,   200,   200,     200,   None),
    ("GET", "/api/activity"):                   (401,   200,   200,     200,   None),
    ("GET", "/api/workers"):                    (401,   200,   200,     200,   None),
    ("GET", "/api/forecast"):                   (401,   400,   400,     400,   None),
    ("GET", "/api/queues"):                     (401,   200,   200,     200,   None),
    ("POST", "/api/queues"):                    (401,   403,   403,     201,   None),
    ("GET", "/api/queues/NAME"):                (401,   200,   200,     200,   404),
    ("PATCH", "/api/queues/NAME"):              (401,   403,   403,     200,   404),
    ("DELETE", "/api/queues/NAME"):             (401,   403,   403,     204,   404),
    ("GET", "/api/alerts"):                     (401,   403,   403,     200,   None),
    ("POST", "/api/alerts/test"):               (401,   403,   403,     202,   None),
    ("POST", "/api/alerts/ID/mute"):            (401,   403,   403,     200,   404),
    ("GET", "/api/host"):                       (401,   403,   403,     200,   None),
    ("GET", "/api/backup"):                     (401,   403,   403,     200,   None),
    ("POST", "/api/host/test"):                 (401,   403,   403,     201,   None),
    ("POST", "/api/host/exposure"):             (401,   403,   403,     204,   None),
    ("GET", "/api/settings"):                   (401,   403,   403,     200,   None),
    ("PATCH", "/api/settings"):                 (401,   403,   403,     200,   None),
    ("GET", "/api/users"):                      (401,   403,   403,     200,   None),
    ("POST", "/api/users"):                     (401,   403,   403,     201,   None),
    ("POST", "/api/invitations"):               (401,   403,   403,     201,   None),
    ("POST", "/api/invitations/accept"):        (403,   403,   403,     403,   None),
    ("PATCH", "/api/users/NAME"):               (401,   200,   404,     200,   404),
    ("DELETE", "/api/users/NAME"):              (401,   403,   403,     409,   404),
    ("DELETE", "/api/users/NAME/sessions"):     (401,   403,   403,     204,   404),
    ("GET", "/api/tokens"):                     (401,   200,   200,     200,   None),
    ("POST", "/api/tokens"):                    (401,   201,   201,     201,   None),
    ("DELETE", "/api/tokens/ID"):               (401,   204,   404,     204,   404),
    ("GET", "/api/saved"):                      (401,   200,   200,     200,   None),
    ("POST", "/api/saved"):                     (401,   201,   201,     201,   None),
    ("DELETE", "/api/saved/ID"):                (401,   204,   404,     404,   404),
    ("POST", "/api/worker/hello"):              (401,   403,   403,     403,   None),
    ("POST", "/api/worker/turn"):               (401,   403,   403,     403,   None),
    ("POST", "/api/worker/tasks/ID"):           (401,   403,   403,     403,   403),
    ("POST", "/api/worker/tasks/ID/files"):     (401,   401,   401,     401,   None),
    ("GET", "/api/worker/tasks/ID/files/NAME"): (401,   401,   401,     401,   None),
    ("GET", "/api/worker/tasks/ID/results"):    (401,   401,   401,     401,   None),
}
# All that a viewer may do, as a stranger may: about their own account, and housekeeping.
OPEN_TO_VIEWERS = {("POST", "/tick"), ("DELETE", "/api/session"), ("DELETE", "/api/sessions"),
                   ("PATCH", "/api/users/NAME"), ("POST", "/api/tokens"), ("DELETE", "/api/tokens/ID"),
                   ("POST", "/api/saved"), ("DELETE", "/api/saved/ID")}
MISSING_FOR_USERS = {("DELETE", "/api/users/NAME"): 403,      # who may not, learns nothing
                     ("POST", "/api/alerts/ID/mute"): 403}


PATHS = sorted({path for _, path, _ in ROUTES})
OPEN_TO_ALL = {(method, path) for method, path, who in ROUTES if who == jobqueue.ANYONE}


def expected(method, path, visitor):
    """(the status for an object that is there, for one that is missing or None)"""
    row, place = TABLE[method, path], PLACES[visitor]
    there, missing = row[place], row[4]
    is_whole = path == "/api/backup"    # passwords included: not for who only reads
    is_change = is_whole or method != "GET" and there != 401 and (method, path) not in OPEN_TO_ALL
    if is_change and (visitor in READERS or (
            visitor == "viewer" and (method, path) not in OPEN_TO_VIEWERS)):
        there = 403
    elif visitor == "viewer" and (is_change or row[2] == 403):
        there = row[2]
    if there in (401, 403):
        return there, missing and there
    if visitor in NOBODY or place == 3 and visitor != "viewer":
        return there, missing
    return there, missing and MISSING_FOR_USERS.get((method, path), missing)


class Matrix(WebTestCase):
    """Every question in a world of its own, because most answers change it."""

    def setUp(self):
        super().setUp()
        for name in ("dora", "mara"):
            self.queue.users.add(name, PASSWORD, "admin")
        self.queue.users.add("vera", PASSWORD, "viewer")
        self.visitors = {"anonymous": self.nobody, "owner": self.bob, "token": self.program("bob"),
                         "stranger": self.eve, "admin": self.ana,
                         "disabled": self.browser("dora"), "disabled token": self.program("dora"),
                         "demoted": self.browser("mara"), "demoted token": self.program("mara"),
                         "viewer": self.browser("vera"), "reader": self.program("bob", "read"),
                         "admin reader": self.program("ana", "read"),
                         "expired": self.ended("bob", "expires_at", 1),
                         "idle": self.ended("bob", "seen_at", jobqueue.SESSION_IDLE_SECONDS + 1),
                         "left": self.left("bob"), "revoked": self.revoked("bob")}
        self.change_settings(alert_mail="ops@example.org")
        self.write("UPDATE user SET disabled=1 WHERE name='dora'")
        self.write("UPDATE user SET role='user' WHERE name='mara'")

    def ended(self, name, column, seconds):
        """Whose session ended so many seconds ago by this column."""
        visitor = self.browser(name)
        self.write("UPDATE session SET %s=? WHERE digest=?" % column,
                   (self.clock.now() - seconds, jobqueue.digest(visitor.cookie.split("=")[1])))
        return visitor

    def left(self, name):
        """Who logged out and kept the cookie."""
        visitor = self.browser(name)
        self.queue.sessions.close(visitor.cookie.split("=")[1])
        return visitor

    def revoked(self, name):
        token_id, token = self.make_token(name)
        self.queue.tokens.delete(self.owner_id(name), token_id)
        return Visitor(self.app, token=token)

    def address(self, path, which, owner="bob"):
        """`path` with an object: one of `owner`, or one that is missing."""
        if "users/NAME" in path:
            return path.replace("NAME", owner if which == "there" else "missing")
        if "queues/NAME" in path:
            self.write("INSERT OR IGNORE INTO queue (name, created_at) VALUES ('post', 0)")
            return path.replace("NAME", "post" if which == "there" else "missing")
        if "languages/NAME" in path:
            return path.replace("NAME", "de.json" if which == "there" else "missing.json")
        if "docs/NAME" in path:
            return path.replace("NAME", "hosts.md" if which == "there" else "missing.md")
        if "static/NAME" in path:
            return path.replace("NAME", "app.js" if which == "there" else "missing.js")
        if "ID" not in path:
            return path
        if which == "missing":
            return path.replace("ID", "987654")
        if "alerts" in path:
            self.write("INSERT INTO alert (code, subject, text, opened_at, seen_at) "
                       "VALUES ('backup', ?, '', 0, 0)", (str(self.clock.now()) + os.urandom(4).hex(),))
            return path.replace("ID", str(self.database.value("SELECT max(id) FROM alert")))
        if "tokens" in path:
            return path.replace("ID", str(self.make_token(owner)[0]))
        if "saved" in path:
            saved = self.queue.saved.add(self.owner_id(owner), "tasks", os.urandom(4).hex(), {})
            return path.replace("ID", str(saved["id"]))
        if "schedules" in path:
            given = {"function": "add", "arguments": {"a": 1}, "rule": "daily 01:00"}
            return path.replace("ID", str(self.queue.schedules.add(given, self.owner_id(owner))))
        task_id = self.add(owner)
        if "files/NAME" in path:
            self.queue.files.receive(self.owner_id(owner), "x.txt", 1, [b"x"], task_id)
            path = path.replace("NAME", "x.txt")
        if path.endswith("/retry"):
            self.cancel(task_id)
        return path.replace("ID", str(task_id))

    def status(self, visitor, method, path, which):
        visitor, address = self.visitors[visitor], self.address(path, which)
        if path in UPLOADS and method == "POST":
            return visitor.upload(address + "?name=x.txt").status
        return visitor.ask(method, address, BODIES.get(path)).status

    def test_every_route_has_its_row_and_every_row_its_route(self):
        self.assertEqual({(method, path) for method, path, _ in ROUTES}, set(TABLE))

    def test_every_visitor_is_asked_about(self):
        self.assertEqual(set(self.visitors), set(PLACES))

    def test_no_route_is_open_by_mistake(self):
        for method, path, who in ROUTES:
            self.assertEqual(who == jobqueue.ANYONE, TABLE[method, path][0] != 401, (method, path))

    def test_another_method_is_refused_whoever_asks(self):
        before = self.database.value("SELECT count(*) FROM activity")
        for path in PATHS:
            known = {method for method, other, _ in ROUTES if other == path}
            known |= {"HEAD"} if "GET" in known else set()
            for method in sorted(set(METHODS) - known):
                for name, visitor in self.visitors.items():
                    environ = visitor.environ(method, self.address(path, "missing"), BODIES.get(path))
                    reply = call(self.app, environ, checked=False)
                    self.assertEqual(reply.status, 405, (method, path, name))
        self.assertEqual(self.database.value("SELECT count(*) FROM activity"), before)

    def test_a_refused_admins_action_says_the_same_about_any_name(self):
        for name in ("bob", "ana", "missing"):
            reply = self.eve.delete("/api/users/" + name)
            self.assertEqual((reply.status, b"missing" in reply.body), (403, False))


def add_question(method, path, visitor):
    """A test of one visitor at one route, with an object that is there and one that is not."""
    def test(self):
        there, missing = expected(method, path, visitor)
        if missing and (there in (401, 403) or visitor not in NOBODY):
            self.assertEqual(self.status(visitor, method, path, "missing"), missing)
        if method == "DELETE" and path == "/api/users/NAME" and visitor == "admin":
            self.add("bob")             # who owns a task is not deleted
        if method == "GET":
            self.assertEqual(self.status(visitor, "HEAD", path, "there"), there)
        self.assertEqual(self.status(visitor, method, path, "there"), there)
    words = re.sub(r"\W+", "_", path.strip("/")) or "page"
    name = "test_%s_of_%s_by_%s" % (method.lower(), words, visitor.replace(" ", "_"))
    test.__name__ = name
    setattr(Matrix, name, test)


for _method, _path, _who in ROUTES:
    for _visitor in PLACES:
        if (_method, _path) in TABLE:
            add_question(_method, _path, _visitor)


class Former(WebTestCase):
    """Who was an admin when a task for admins only was asked for, and is none when it would start."""

    def setUp(self):
        super().setUp()
        self.ana.patch("/api/users/bob", {"role": "admin", "current_password": PASSWORD})

    def ask(self, **more):
        """Have bob ask for a task of that function."""
        return self.check(self.bob.post("/api/tasks", {"function": "restart", **more}), 201)["id"]

    def check_refused(self, task_id):
        """It fails instead of being run, and says why."""
        self.assertIsNone(self.claim())
        task = self.check(self.ana.get("/api/tasks/%d" % task_id), 200)
        self.assertEqual((task["status"], task["reason"]), ("failed", "error"))
        self.assertEqual(task["error"]["message"],
                         "restart is for admins only, and the user who added this task is no longer an admin")

    def test_a_task_that_waits_is_not_run_for_who_was_demoted_or_disabled(self):
        for change in ({"role": "user"}, {"disabled": True}):
            for kind in ("pending", "delayed", "waiting"):
                before = self.add("eve") if kind == "waiting" else None
                more = {"delayed": {"delay": 60}, "waiting": {"owner": "eve", "after": [before]}}
                task_id = self.ask(**more.get(kind, {}))
                self.ana.patch("/api/users/bob", change)
                if kind == "waiting":
                    self.run_one()
                self.clock.advance(61)
                with self.subTest(change=change, kind=kind):
                    self.check_refused(task_id)
                self.ana.patch("/api/users/bob", {
                "role": "admin", "current_password": PASSWORD, "disabled": False})
                self.bob = self.browser("bob")

    def test_nor_is_one_that_is_to_be_retried(self):
        task_id = self.ask(max_retries=1, retry_delay=60)
        self.end(self.claim(), "error")
        self.ana.patch("/api/users/bob", {"role": "user"})
        self.clock.advance(100)
        self.check_refused(task_id)
        self.check(self.bob.post("/api/tasks/%d/retry" % task_id), 403)

    def test_nor_one_of_their_schedule_or_one_for_somebody_else(self):
        body = {"function": "restart", "rule": "every 60", "overlap": "queue"}
        schedule = self.check(self.bob.post("/api/schedules", body), 201)["id"]
        tasks = [self.check(self.bob.post("/api/schedules/%d/run" % schedule), 201)["id"],
                 self.ask(owner="eve")]
        self.ana.patch("/api/users/bob", {"role": "user"})
        for task_id in tasks:
            self.check_refused(task_id)

    def test_it_runs_for_who_is_an_admin_still_or_again(self):
        for change in ({"role": "admin"}, {"role": "user"}, {"disabled": True}):
            task_id = self.ask(delay=60)
            self.ana.patch("/api/users/bob", change)
            self.ana.patch("/api/users/bob", {
                "role": "admin", "current_password": PASSWORD, "disabled": False})
            self.clock.advance(61)
            self.assertEqual(self.run_one()["id"], task_id)
            self.bob = self.browser("bob")

    def test_what_the_sites_own_code_asks_for_runs_whoever_owns_it(self):
        for owner in ("bob", "eve"):
            for function in ("restart", "cleanup"):
                self.add(owner, function, {"delay": 60})
        self.ana.patch("/api/users/bob", {"role": "user", "disabled": True})
        self.clock.advance(61)
        self.assertEqual([self.run_one()["status"] for _ in range(4)], [jobqueue.SUCCEEDED] * 4)

    def test_a_worker_goes_on_to_the_next_task(self):
        refused = [self.ask() for _ in range(5)]
        waiting = self.add("eve", options={"priority": -5})
        self.ana.patch("/api/users/bob", {"role": "user"})
        self.assertEqual([row["id"] for row in self.claim_many(10, function="restart")], [waiting])
        self.assertEqual({self.status(task_id) for task_id in refused}, {"failed"})

    def test_very_many_are_refused_in_portions(self):
        refused = [self.ask() for _ in range(5)]
        waiting = self.add("eve", options={"priority": -5})
        self.ana.patch("/api/users/bob", {"role": "user"})
        with mock.patch.object(jobqueue, "CLAIM_TRIES_MAX", 2):
            self.assertIsNone(self.claim())
            words = [self.status(task_id) for task_id in refused]
            self.assertTrue(0 < words.count("pending") < 5, words)
            self.assertEqual(self.claim()["id"], waiting)
        self.assertEqual({self.status(task_id) for task_id in refused}, {"failed"})


class Foreign(WebTestCase):
    """What is somebody else's looks exactly like what does not exist."""

    def setUp(self):
        super().setUp()
        self.task = self.add("bob", a=4711)
        self.write_log(self.task, "secret words of bob")
        row = self.claim()
        self.end(row, "error", None, "ValueError", "secret error of bob")

    def same(self, visitor, method, path, there, missing, body=None):
        """Both answers are the same but for the id."""
        replies = [visitor.ask(method, path % name, body) for name in (there, missing)]
        texts = [reply.body.replace(str(name).encode(), b"X") for reply,
                 name in zip(replies, (there, missing))]
        heads = [sorted((name, value) for name, value in reply.headers.items() if name != "content-length")
                 for reply in replies]
        self.assertEqual(replies[0].status, 404)
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(heads[0], heads[1])

    def test_a_foreign_task_looks_missing(self):
        for method, path in (("GET", "/api/tasks/%s"), ("HEAD", "/api/tasks/%s"), ("DELETE", "/api/tasks/%s"),
                             ("POST", "/api/tasks/%s/cancel"), ("POST", "/api/tasks/%s/retry"),
                             ("GET", "/api/tasks/%s/log"), ("GET", "/api/tasks/%s/log?download=1"),
                             ("GET", "/api/tasks/%s/log?attempt=1&offset=0"),
                             ("GET", "/api/activity?task=%s")):
            with self.subTest(method=method, path=path):
                self.same(self.eve, method, path, self.task, 98765)
        self.assertEqual(self.row(self.task)["status"], jobqueue.FAILED)

    def test_a_foreign_user_looks_missing(self):
        for body in ({}, {"role": "admin"}, {"password": "another horse"}, {"disabled": True}):
            with self.subTest(body=body):
                self.same(self.eve, "PATCH", "/api/users/%s", "bob", "zed", body)
        for name in ("bob", "zed"):
            self.check(self.eve.patch("/api/users/" + name, b"{"), 400)

    def test_a_foreign_token_looks_missing(self):
        self.same(self.eve, "DELETE", "/api/tokens/%s", self.make_token("bob")[0], 98765)

    def test_a_foreign_owner_looks_missing_in_filters(self):
        replies = [self.eve.get("/api/tasks?owner=" + name) for name in ("bob", "zed", "ana")]
        self.assertEqual({(reply.status, reply.body) for reply in replies}, {(403, replies[0].body)})

    def test_a_task_being_deleted_looks_missing_to_all(self):
        task_id = self.add("bob")
        self.claim()
        self.delete(task_id)
        for visitor in (self.ana, self.bob, self.eve):
            self.same(visitor, "GET", "/api/tasks/%s", task_id, 98765)
            self.assertNotIn(task_id, [row["id"] for row in visitor.get("/api/tasks").json["tasks"]])


class Lists(WebTestCase):
    """No list, count or search shows what is somebody else's."""

    def setUp(self):
        super().setUp()
        self.foreign = {self.add("bob", a=4711), self.add("bob", function="greet", name="canary"),
                        self.add("ana", a=4711)}
        self.mine = self.add("eve", a=1)
        running = self.claim()
        self.assertIn(running["id"], self.foreign)
        self.write("UPDATE worker SET state='busy', pid=77 WHERE id=1")

    def test_lists_and_searches_show_own_tasks_only(self):
        for query in ("", "?limit=200", "?q=add", "?q=canary", "?q=4711", "?function=greet", "?queue=default",
                      "?status=pending,running", "?owner=eve", "?cursor=100", "?q=a&status=running"):
            with self.subTest(query=query):
                reply = self.eve.get("/api/tasks" + query)
                self.assertLessEqual({row["id"] for row in reply.json["tasks"]}, {self.mine})
                self.assertNotIn(b"canary", reply.body)
                self.assertNotIn(b"4711", reply.body)

    def test_counts_count_own_tasks_only(self):
        for query, count in (("", 1), ("&q=add", 1), ("&q=canary", 0), ("&function=greet", 0)):
            counts = self.eve.get("/api/tasks?counts=1" + query).json["counts"]
            self.assertEqual((counts["all"], counts["running"]), (count, 0), query)

    def test_activity_shows_own_tasks_only(self):
        for query in ("", "?limit=200", "?cursor=1000"):
            rows = self.eve.get("/api/activity" + query).json["activity"]
            self.assertEqual({(row["task"], row["owner"]) for row in rows}, {(self.mine, "eve")})

    def test_activity_of_a_deleted_task_stays_its_owners(self):
        for task_id in self.foreign:
            self.delete(task_id)
        rows = self.eve.get("/api/activity?limit=200").json["activity"]
        self.assertEqual({row["task"] for row in rows}, {self.mine})

    def test_workers_say_what_they_run_only_to_who_may_know(self):
        shown = {name: visitor.get("/api/workers").json["workers"][0]
                 for name, visitor in (("eve", self.eve), ("ana", self.ana))}
        self.assertEqual((shown["eve"]["task"], shown["eve"]["function"]), (None, None))
        self.assertIn(shown["ana"]["task"], self.foreign)

    def test_admins_see_everything(self):
        ids = {row["id"] for row in self.ana.get("/api/tasks").json["tasks"]}
        self.assertEqual(ids, self.foreign | {self.mine})
        ids = {row["task"] for row in self.ana.get("/api/activity").json["activity"]}
        self.assertEqual(ids, self.foreign | {self.mine})

    def test_users_see_only_functions_that_they_may_add(self):
        names = {function["name"] for function in self.eve.get("/api/functions").json["functions"]}
        self.assertEqual(names, {"add", "greet", "send"})
        names = {function["name"] for function in self.ana.get("/api/functions").json["functions"]}
        self.assertEqual(names, {"add", "greet", "send", "restart", "cleanup"})

    def test_users_hear_that_tasks_py_is_broken_but_not_how(self):
        self.queue.catalogue.store({"error": {"message": "NameError: canary", "file": "tasks.py", "line": 3}})
        self.assertNotIn(b"canary", self.eve.get("/api/functions").body + self.eve.get("/api/tasks").body)
        self.assertEqual(self.ana.get("/api/functions").json["error"]["line"], 3)

    def test_only_admins_hear_where_the_data_is(self):
        self.assertIsNone(self.eve.get("/api/session").json["data"])
        self.assertEqual(self.ana.get("/api/session").json["data"], str(self.folder / "data"))

    def test_tokens_listed_are_ones_own_and_an_admin_sees_and_revokes_everybodys(self):
        number = self.make_token("bob")[0]
        self.assertEqual(self.eve.get("/api/tokens").json, {"tokens": []})
        self.check(self.eve.get("/api/tokens?owner=bob"), 403)
        self.check(self.eve.delete("/api/tokens/%d" % number), 404)
        for query, found in (("", [number]), ("?owner=bob", [number]), ("?owner=ana", [])):
            tokens = self.check(self.ana.get("/api/tokens" + query), 200)["tokens"]
            self.assertEqual([(token["id"], token["owner"]) for token in tokens],
                             [(one, "bob") for one in found])
        self.assertNotIn("password", tokens)
        self.check(self.ana.delete("/api/tokens/%d" % number), 204)
        self.assertEqual(self.bob.get("/api/tokens").json, {"tokens": []})


class Viewer(WebTestCase):
    """Who has the role viewer sees what became of everybody's tasks, and nothing of their accounts."""

    def setUp(self):
        super().setUp()
        self.queue.users.add("vera", PASSWORD, "viewer")
        self.vera = self.browser("vera")
        self.task = self.add("bob", function="greet", name="canary")
        self.add("ana", function="restart")
        self.change_settings(alert_mail="secret@example.org")
        self.write("UPDATE user SET email='bob@example.org' WHERE name='bob'")
        self.make_token("ana")
        self.check(self.nobody.post("/api/session", {"name": "eve", "password": PASSWORD}), 200)
        self.claim()

    def test_the_same_as_an_admin_sees_of_tasks(self):
        self.ana.get("/api/tasks")      # the first of a process says nothing of when they begin
        for path in ("/api/tasks?counts=1", "/api/tasks?owner=bob", "/api/tasks?q=canary", "/api/overview",
                     "/api/schedules", "/api/queues", "/api/workers", "/api/metrics",
                     "/api/tasks/%d" % self.task, "/api/tasks/%d/log" % self.task,
                     "/api/activity?task=%d" % self.task):
            with self.subTest(path=path):
                shown = self.check(self.vera.get(path), 200)
                self.assertEqual(shown, self.check(self.ana.get(path), 200))

    def test_only_ones_own_tokens_and_sessions_and_nobodys_account(self):
        own = self.make_token("vera")[0]
        self.assertEqual([one["id"] for one in self.vera.get("/api/tokens").json["tokens"]], [own])
        self.check(self.vera.get("/api/tokens?owner=ana"), 403)
        self.assertEqual(len(self.vera.get("/api/sessions").json["sessions"]), 1)
        for path in ("/api/users", "/api/settings", "/api/alerts", "/api/host"):
            self.check(self.vera.get(path), 403)
        self.assertIsNone(self.vera.get("/api/session").json["data"])

    def test_of_the_activity_what_became_of_tasks_and_ones_own(self):
        for query in ("", "?limit=200", "?owner=eve", "?event=logged_in", "?event=token_added"):
            rows = self.check(self.vera.get("/api/activity" + query), 200)["activity"]
            self.assertEqual({row["owner"] for row in rows if row["task"] is None} - {"vera"}, set(), query)
        self.assertIn("bob", {row["owner"] for row in self.vera.get("/api/activity").json["activity"]})

    def test_answers_that_are_kept_for_admins_are_not_theirs(self):
        self.check(self.ana.get("/api/forecast?function=restart"), 200)
        self.check(self.vera.get("/api/forecast?function=restart"), 400)

    def test_nothing_can_be_changed_not_even_ones_own(self):
        self.people["vera"] = jobqueue.Person(self.queue.users.find("vera"))
        mine = self.add("vera")
        before = self.database.all("SELECT * FROM task WHERE id=?", (mine,))
        for method, path in (("DELETE", "/api/tasks/%d"), ("POST", "/api/tasks/%d/cancel"),
                             ("POST", "/api/tasks/%d/retry")):
            self.check(self.vera.ask(method, path % mine), 403, "denied")
        self.check(self.vera.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}), 403)
        self.check(self.vera.post("/api/tasks/actions", {"action": "delete", "ids": [mine]}), 403)
        self.assertEqual(self.database.all("SELECT * FROM task WHERE id=?", (mine,)), before)

    def test_of_ones_own_account_the_password(self):
        self.check(self.vera.patch("/api/users/vera", NEW_PASSWORD), 200)
        for body in ({"role": "admin"}, {"role": "user"}, {"max_running": 9}):
            self.check(self.vera.patch("/api/users/vera", body), 403)
        self.check(self.vera.patch("/api/users/bob", NEW_PASSWORD), 404)
        self.assertEqual(self.queue.users.find("vera")["role"], "viewer")

    def test_ones_own_tokens_are_for_looking_too(self):
        for scope in jobqueue.TOKEN_SCOPES:
            given = {"name": "x", "scope": scope, "password": PASSWORD}
            self.check(self.vera.post("/api/tokens", given), 201 if scope in ("user", "read") else 403)
        self.check(self.program("vera").delete("/api/tasks/%d" % self.task), 403)
        self.check(self.vera.delete("/api/tokens/%d" % self.make_token("ana")[0]), 404)

    def test_what_a_user_has_added_and_scheduled_goes_on_when_they_become_a_viewer(self):
        given = {"function": "add", "arguments": {"a": 1}}
        added = self.check(self.bob.post("/api/tasks", {**given, "priority": -1}), 201)["id"]
        self.check(self.bob.post("/api/schedules", {**given, "rule": "every 60"}), 201)
        self.check(self.ana.patch("/api/users/bob", {"role": "viewer"}), 200)
        self.tick(61)
        rows = self.database.all("SELECT id, status FROM task WHERE function='add' AND owner_id=?",
                                 (self.owner_id("bob"),))
        self.assertEqual((len(rows), {row["status"] for row in rows}), (2, {jobqueue.PENDING}))
        self.assertIn(added, [row["id"] for row in rows])

    def test_a_user_becomes_a_viewer_and_back_at_once(self):
        self.check(self.bob.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}), 201)
        for role, status in (("viewer", 403), ("user", 201)):
            self.check(self.ana.patch("/api/users/bob", {"role": role}), 200)
            self.check(self.bob.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}), status)


class Reading(WebTestCase):
    """A token of the scope read gets all that its owner gets, and changes nothing."""

    def test_it_sees_what_its_owner_sees(self):
        task = self.add("bob")
        for name, path, status in (("bob", "/api/tasks/%d" % task, 200), ("eve", "/api/tasks/%d" % task, 404),
                                   ("bob", "/api/settings", 403), ("ana", "/api/settings", 200),
                                   ("ana", "/api/users", 200), ("ana", "/metrics", 403),
                                   ("ana", "/api/backup", 403)):
            with self.subTest(name=name, path=path):
                self.check(self.program(name, "read").get(path), status)
                self.assertEqual(self.program(name, "read").ask("HEAD", path).status, status)

    def test_it_does_not_even_do_what_viewers_may(self):
        reader = self.program("ana", "read")
        for method, path in (("POST", "/tick"), ("DELETE", "/api/session"), ("DELETE", "/api/sessions"),
                             ("PATCH", "/api/users/ana"), ("POST", "/api/tokens")):
            self.check(reader.ask(method, path, BODIES.get(path)), 403, "denied")
        self.check(self.ana.get("/api/session"), 200)


class Power(WebTestCase):
    """What makes somebody an admin works at once, in both directions, and only for admins."""

    def test_a_demoted_admin_is_none_at_the_next_request(self):
        self.queue.users.change("bob", role="admin")
        program = self.program("bob")
        self.check(program.get("/api/users"), 200)
        self.ana.patch("/api/users/bob", {"role": "user"})
        self.check(program.get("/api/users"), 403)
        self.check(self.bob.get("/api/settings"), 403)

    def test_nobody_makes_themselves_an_admin(self):
        for body in ({"role": "admin"}, {"role": "admin", **NEW_PASSWORD},
                     {"disabled": False, **NEW_PASSWORD}):
            self.check(self.bob.patch("/api/users/bob", body), 403)
            self.check(self.bob.patch("/api/users/BOB", body), 403)
        self.assertEqual(self.queue.users.find("bob")["role"], "user")

    def test_a_user_adds_tasks_for_nobody_else(self):
        for owner in ("eve", "ana", "nobody", "BOB ", ["eve"], {"name": "eve"}, 1, True):
            with self.subTest(owner=owner):
                reply = self.bob.post("/api/tasks",
                                      {"function": "add", "arguments": {"a": 1}, "owner": owner})
                self.check(reply, 422)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_fields_that_only_we_set_cannot_be_given(self):
        for field in ("id", "status", "owner_id", "attempts", "claim", "result", "worker", "created_at",
                      "turn"):
            self.check_wrong(self.ana.post("/api/tasks",
                                           {"function": "add", "arguments": {"a": 1}, field: 1}), field)
        for field in ("id", "created_at", "last_seen_at", "name"):
            self.check_wrong(self.ana.patch("/api/users/bob", {field: 1}), field)

    def test_a_disabled_user_is_out_with_every_key(self):
        program = self.program("bob")
        self.ana.patch("/api/users/bob", {"disabled": True})
        self.check(self.bob.get("/api/tasks"), 401)
        self.check(program.get("/api/tasks"), 401)
        self.check(self.nobody.post("/api/session", {"name": "bob", "password": PASSWORD}), 401)

    def test_the_last_admin_cannot_be_locked_out(self):
        for body in ({"role": "user"}, {"disabled": True}):
            self.check(self.ana.patch("/api/users/ana", body), 409)
        self.check(self.ana.delete("/api/users/ana"), 409)
        self.check(self.ana.get("/api/users"), 200)


if __name__ == "__main__":
    unittest.main()
