"""Filters and form values that people save by name."""
import jobqueue
from tests.helpers.support import PASSWORD
from tests.helpers.web import WebTestCase


class Saved(WebTestCase):

    def save(self, visitor, name, value, page="tasks", status=201):
        """The answer to a request that saves something."""
        reply = visitor.post("/api/saved", {"page": page, "name": name, "value": value})
        self.assertEqual(reply.status, status, reply.body)
        return reply.json

    def names(self, visitor):
        return [(row["page"], row["name"]) for row in visitor.get("/api/saved").json["saved"]]

    def test_people_see_their_own_by_page_and_name(self):
        self.save(self.bob, "Mine", {"arguments": {"a": 1}}, "new/add")
        self.save(self.bob, "Failed", {"query": "status=failed"})
        self.save(self.bob, " A task ", {"query": "q=1"})
        self.save(self.eve, "Of eve", {})
        self.assertEqual(self.names(self.bob), [("new/add", "Mine"), ("tasks", "A task"),
                                                ("tasks", "Failed")])
        self.assertEqual(self.names(self.eve), [("tasks", "Of eve")])
        self.assertEqual(self.names(self.ana), [])

    def test_the_same_name_replaces_the_value_on_that_page_only(self):
        first = self.save(self.bob, "Mine", {"query": "q=1"})
        self.save(self.bob, "Mine", {"arguments": {}}, "new/add")
        again = self.save(self.bob, "Mine", {"query": "q=2"})
        self.assertEqual(again, {**first, "value": {"query": "q=2"}})
        self.assertEqual(len(self.names(self.bob)), 2)

    def test_secrets_in_a_value_are_masked_at_any_depth(self):
        for secret in ("x", "•••"):
            value = {"arguments": {"api_token": secret, "to": {"password": secret, "a": 1}}}
            saved = self.save(self.bob, "Mine", value, "new/add")
        self.assertEqual(saved["value"], value)
        self.assertNotIn('"x"', self.database.value("SELECT value FROM saved"))

    def test_a_deleted_one_is_gone_and_another_persons_cannot_be_deleted(self):
        saved = self.save(self.bob, "Mine", {})
        self.assertEqual(self.eve.delete("/api/saved/%d" % saved["id"]).status, 404)
        self.assertEqual(self.bob.delete("/api/saved/%d" % saved["id"]).status, 204)
        self.assertEqual(self.names(self.bob), [])

    def test_wrong_values_are_refused_with_their_field(self):
        for body, field in (({"page": "users", "name": "x", "value": {}}, "page"),
                            ({"page": "new/", "name": "x", "value": {}}, "page"),
                            ({"page": "tasks", "name": " ", "value": {}}, "name"),
                            ({"page": "tasks", "name": "x" * 61, "value": {}}, "name"),
                            ({"page": "tasks", "name": "x", "value": []}, "value"),
                            ({"page": "tasks", "name": "x"}, "value")):
            reply = self.bob.post("/api/saved", body)
            self.assertEqual((reply.status, reply.json["errors"][0]["field"]), (422, field), body)

    def test_what_is_too_long_or_too_much_is_refused_and_nothing_is_kept_of_it(self):
        self.save(self.bob, "Long", {"query": "x" * jobqueue.SAVED_CHARACTERS}, status=409)
        for number in range(jobqueue.SAVED_MAX):
            self.save(self.bob, str(number), {})
        self.save(self.bob, "One more", {}, status=409)
        self.save(self.bob, "7", {"query": "q=1"})
        self.assertEqual(len(self.names(self.bob)), jobqueue.SAVED_MAX)

    def test_a_viewer_saves_filters_too(self):
        self.queue.users.add("vera", PASSWORD, "viewer")
        self.save(self.browser("vera"), "Failed", {"query": "status=failed"})

    def test_a_deleted_user_leaves_nothing(self):
        self.save(self.eve, "Mine", {})
        self.assertEqual(self.ana.delete("/api/users/eve").status, 204)
        self.assertEqual(self.database.value("SELECT count(*) FROM saved"), 0)
