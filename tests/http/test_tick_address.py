"""/tick: the address that those call whose cron cannot start a program."""

from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD
from tests.helpers.web import Visitor, WebTestCase


class TickAddress(WebTestCase):
    def setUp(self):
        super().setUp()
        self.token_id = self.bob.post("/api/tokens", {"name": "cron of my host", "scope": "tick",
                                                        "password": PASSWORD}).json
        self.token = self.token_id.pop("token")
        self.address = "/tick?token=" + self.token

    def test_it_does_the_housekeeping(self):
        task_id = self.add(options={"delay": 10})
        self.clock.advance(11)
        self.assertTrue(self.check(self.nobody.get(self.address), 200)["ticked"])
        self.assertEqual(self.status(task_id), "pending")
        self.assertFalse(self.check(self.nobody.post(self.address), 200)["ticked"], "somebody just has")
        self.assertEqual(self.queue.tick_history.state()["last_source"], "address")

    def test_it_may_be_called_at_any_rate_and_writes_hardly_ever(self):
        self.clock.advance(61)          # what is looked for now and then was looked for
        self.nobody.get(self.address)
        version, ticked = self.database.version_seen(), 0
        for _ in range(40):
            self.clock.advance(1)
            ticked += self.nobody.get(self.address).json["ticked"]
        self.assertEqual(ticked, 8)
        self.assertEqual(self.database.version_seen(), version)

    def test_who_calls_it_by_itself_has_a_period(self):
        for _ in range(3):
            self.clock.advance(600)
            self.nobody.get(self.address)
        self.assertEqual(self.queue.tick_history.state()["period"], 600)

    def test_the_token_may_be_sent_as_other_tokens_are(self):
        for headers in ({"Authorization": "Bearer " + self.token}, {"X_Api_Key": self.token}):
            for method in ("GET", "POST", "HEAD"):
                self.assertEqual(self.nobody.ask(method, "/tick", **headers).status, 200)

    def test_no_answer_may_be_kept(self):
        for method in ("GET", "HEAD", "POST"):
            headers = self.nobody.ask(method, self.address).headers
            self.assertEqual((headers["cache-control"], headers.get("etag")), ("no-store", None))

    def test_the_token_may_do_nothing_else(self):
        program = Visitor(self.app, token=self.token)
        for method, path, _, who, *_ in jobqueue.ROUTES:
            if who in (jobqueue.USER, jobqueue.ADMIN):
                path = path.replace(jobqueue.ID, "1").replace(jobqueue.NAME, "x")
                self.check(program.ask(method, path, {}), 403)

    def test_another_token_may_not_do_it_by_address(self):
        token = self.make_token("ana")[1]
        self.check(self.nobody.get("/tick?token=" + token), 401)
        self.check(self.nobody.post("/tick?token=" + token), 401)
        self.check(Visitor(self.app, token=token).get("/tick"), 401)
        self.check(Visitor(self.app, token=token).post("/tick"), 200)

    def test_a_page_may_do_it_but_not_one_of_another_site(self):
        self.check(self.bob.post("/tick"), 200)
        self.check(self.bob.get("/tick"), 401)
        self.check(self.bob.post("/tick", Sec_Fetch_Site="cross-site"), 403)
        self.check(self.bob.post("/tick", Content_Type="text/plain"), 415)
        self.assertEqual(self.queue.tick_history.state()["last_source"], "request")

    def test_without_a_token_or_with_an_empty_one_nobody_may(self):
        for path in ("/tick", "/tick?token=", "/tick?token"):
            for method in ("GET", "POST"):
                self.check(self.nobody.ask(method, path), 401)
        self.assertEqual(self.database.value("SELECT count(*) FROM throttle"), 0)

    def test_a_token_that_was_deleted_or_whose_user_is_disabled_is_none(self):
        self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.check(self.nobody.get(self.address), 401)
        self.write("UPDATE user SET disabled=0 WHERE name='bob'")
        self.check(self.nobody.get(self.address), 200)
        self.bob.delete("/api/tokens/%d" % self.token_id["id"])
        self.check(self.nobody.get(self.address), 401)

    def test_who_guesses_is_refused_and_makes_nobody_write(self):
        version = self.database.version_seen()
        replies = [self.nobody.get("/tick?token=jq_%d" % number) for number in range(30)]
        self.assertEqual({reply.status for reply in replies}, {401})
        self.assertEqual(self.database.version_seen(), version)

    def test_the_token_is_said_nowhere_again(self):
        for reply in (self.nobody.get(self.address), self.nobody.get(self.address + "x"),
                      self.nobody.get(self.address + "&a=1" * 60), self.bob.get("/api/tokens"),
                      self.nobody.ask("PUT", self.address), self.nobody.get("/tock?token=" + self.token)):
            self.assertNotIn(self.token.encode(), reply.body)
            self.assertNotIn(self.token, str(reply.head))
        for path in self.database.folder.glob("*"):
            if path.is_file():
                self.assertNotIn(self.token.encode(), path.read_bytes(), path.name)

    def test_a_full_disk_or_a_busy_database_is_no_fault_of_ours(self):
        with self.another_queue().database.transaction():
            self.database.patience = 0.05
            self.check(self.nobody.get(self.address), 200)

    def test_in_mode_slice_it_works_for_a_while_and_for_a_page_shorter(self):
        with mock.patch.object(self.queue.starter, "work_slice", return_value=3) as work:
            self.assertEqual(self.nobody.get(self.address).json["worked"], 3)
            self.assertEqual(self.bob.post("/tick").json["worked"], 3)
        self.assertEqual([call.args for call in work.call_args_list], [
            (jobqueue.SLICE_SECONDS,), (jobqueue.SLICE_PAGE_SECONDS,)])
