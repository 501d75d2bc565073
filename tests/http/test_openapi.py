"""/openapi.json says what the application does: the same routes, the same answers."""
import json
import re
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import ROOT
from tests.helpers.web import WebTestCase, openapi

SAMPLES = {"NewTask": {"function": "add", "arguments": {"a": 1}}, "Action": {"action": "cancel", "ids": [2]},
           "NewSchedule": {"function": "add", "arguments": {"a": 1}, "rule": "daily 01:00"},
           "ScheduleChange": {"rule": "daily 02:00"}, "NewSettings": {"linger": 20},
           "NewUser": {"name": "zoe", "password": "another horse"}, "NewToken": {"name": "laptop"},
           "NewSaved": {"page": "tasks", "name": "Failed", "value": {}},
           "PreviewRequest": {"rule": "daily 01:00"}, "NewQueue": {"name": "post"},
           "QueueChange": {"max_running": 2}, "TaskChange": {"notify": "end"},
           "UserChange": {"role": "admin"}, "Mute": {"how": "1h"}, "Exposure": {"exposed": []},
           "Hello": {"session": "0" * 32, "protocol": 1, "machine": "strong", "version": "1.0.0",
                     "functions": []},
           "Turn": {"session": "0" * 32, "sequence": 1},
           "Login": {"name": "bob", "password": "correct horse"},
           "NewInvitation": {"role": "user"},
           "Acceptance": {"code": "x", "name": "zoe", "password": "another horse"},
           "Setup": {"code": "x", "name": "zoe", "password": "another horse"}}


def routes():
    """{(METHOD, path as OpenAPI writes it): who}; the empty path cannot be written there."""
    return {(method, pattern.replace(jobqueue.ID, "{id}").replace(jobqueue.NAME, "{name}")): who
            for method, pattern, _, who, *_ in jobqueue.ROUTES if pattern}


class Document(unittest.TestCase):

    def test_it_lists_exactly_the_routes(self):
        self.assertEqual(set(openapi().operations()), set(routes()))

    def test_it_says_who_may(self):
        for key, operation in openapi().operations().items():
            self.assertEqual(operation["x-who"], routes()[key], key)
            self.assertEqual(operation.get("security") == [], routes()[key] == "anyone", key)

    def test_every_reference_leads_somewhere_and_every_part_is_used(self):
        text = json.dumps(openapi().document)
        used = set(re.findall(r'"#/components/(\w+/\w+)"', text))
        parts = {"%s/%s" % (kind, name) for kind, found in openapi().document["components"].items()
                 for name in found if kind != "securitySchemes"}
        self.assertEqual(used, parts)

    def test_every_operation_that_may_be_refused_says_so(self):
        for (method, path), operation in openapi().operations().items():
            codes = set(operation["responses"])
            if operation["x-who"] != "anyone":
                self.assertIn("401", codes, (method, path))
            if operation["x-who"] == "admin" or method != "GET":
                self.assertIn("403", codes, (method, path))
            if "{" in path:
                self.assertIn("404", codes, (method, path))
            if "requestBody" in operation:
                self.assertLessEqual({"400", "413", "415", "422"}, codes, (method, path))

    def test_settings_and_options_are_the_ones_we_have(self):
        schemas = openapi().document["components"]["schemas"]
        self.assertEqual(list(schemas["NewSettings"]["properties"]), list(jobqueue.SETTINGS))
        self.assertEqual(set(schemas["NewTask"]["properties"]), set(jobqueue.REQUEST_SCHEMA["properties"]))
        self.assertEqual(set(schemas["Options"]["properties"]), set(jobqueue.TASK_OPTIONS))
        self.assertEqual(set(schemas["ChosenOptions"]["properties"]), set(jobqueue.TASK_OPTIONS))
        self.assertEqual(set(schemas["NewSchedule"]["properties"]),
                         set(jobqueue.SCHEDULE_SCHEMA["properties"]))
        for name, (schema, _) in jobqueue.TASK_OPTIONS.items():
            told = schemas["NewTask"]["properties"][name]
            for bound in ("minimum", "maximum", "type", "enum"):
                self.assertEqual(told.get(bound), schema.get(bound), (name, bound))

    def test_every_operation_says_in_words_what_it_does(self):
        for key, operation in openapi().operations().items():
            self.assertTrue(operation["summary"], key)

    def test_lines_can_be_read(self):
        lines = (ROOT / "static" / "api.json").read_text("utf-8").splitlines()
        self.assertEqual([line for line in lines if len(line) > 110], [])

    def test_the_validator_sees_what_is_wrong(self):
        api, task = openapi(), {"$ref": "#/components/schemas/Created"}
        self.assertIsNone(api.mismatch(task, {"ids": [1], "created": 1}, "body"))
        for wrong in ({"ids": [1]}, {"ids": ["1"], "created": 1}, {"ids": [1], "created": -1}, [], None,
                      {"ids": [1], "created": 1, "more": 1}, {"ids": 1, "created": 1}):
            self.assertIsNotNone(api.mismatch(task, wrong, "body"), wrong)


class Requests(WebTestCase):
    """What the document calls a right request is accepted, and a wrong one refused."""

    def setUp(self):
        super().setUp()
        self.queue.queues.change("bob", {}, "ana", new=True)
        schedule = {"function": "add", "arguments": {"a": 1}, "rule": "daily 01:00"}
        self.places = {"{name}": "bob", "{id}": str(self.queue.schedules.add(schedule, self.owner_id("bob")))}
        self.write("INSERT INTO alert (id, code, subject, text, opened_at, seen_at) "
                   "VALUES (?, 'failed', '', '', 0, ?)", (int(self.places["{id}"]), self.clock.now()))

    def address(self, path):
        """A path of the document that leads to something of bob's."""
        return re.sub(r"\{\w+\}", lambda match: self.places[match[0]], path)

    def test_samples_are_right_by_the_document(self):
        for name, value in SAMPLES.items():
            self.assertIsNone(openapi().mismatch({"$ref": "#/components/schemas/" + name}, value, name))

    def test_samples_are_accepted(self):
        ana, worker = self.program("ana"), self.program("ana", "worker")
        for (method, path), operation in openapi().operations().items():
            if not self.takes_json(operation) or path in (
                    "/api/setup", "/api/invitations/accept", "/api/worker/tasks/{id}"):
                continue
            who = worker if operation["x-who"] == jobqueue.WORKER else ana
            reply = who.ask(method, self.address(path), self.sample(operation))
            self.assertLess(reply.status, 300, (method, path, reply.body))

    def test_an_unknown_field_is_refused_everywhere(self):
        worker = self.program("ana", "worker")
        for (method, path), operation in openapi().operations().items():
            if self.takes_json(operation) and path not in ("/api/setup", "/api/worker/tasks/{id}"):
                body = {**self.sample(operation), "surprise": 1}
                who = worker if operation["x-who"] == jobqueue.WORKER else self.ana
                self.check_wrong(who.ask(method, self.address(path), body), "surprise")

    @staticmethod
    def takes_json(operation):
        return "application/json" in operation.get("requestBody", {}).get("content", ())

    def sample(self, operation):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        name = re.search(r"schemas/(\w+)", json.dumps(schema))[1]
        return SAMPLES[name]


class Served(WebTestCase):

    def test_anybody_gets_it_and_other_programs_can_read_it(self):
        reply = self.nobody.get("/openapi.json")
        self.assertEqual(self.check(reply, 200), openapi().document)


class Answers(WebTestCase):
    """Every call of WebTestCase is held against the document; here are those that others do not make."""

    def test_every_operation_answers_as_documented(self):
        task_id = self.add("ana")
        self.end(self.claim(), "error", None, "ValueError", "no")
        places = {"{id}": str(task_id), "{name}": "bob"}
        for method, path in sorted(openapi().operations(), key=lambda key: key[0] == "DELETE"):
            for visitor in (self.nobody, self.eve, self.ana):
                where = path.replace("{id}", places["{id}"]).replace("{name}", places["{name}"])
                body = b"{}" if method in ("POST", "PATCH") else None
                self.assertLess(visitor.ask(method, where, body).status, 500)

    def test_an_answer_that_is_not_documented_would_be_noticed(self):
        sleepy = {"code": "sleepy", "text": "", "since": None}
        told = mock.patch.object(jobqueue, "describe_service", return_value=sleepy)
        self.addCleanup(told.stop)
        told.start()
        with self.assertRaisesRegex(AssertionError, "sleepy"):
            self.bob.get("/api/workers")


if __name__ == "__main__":
    unittest.main()
