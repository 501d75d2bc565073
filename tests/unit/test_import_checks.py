"""Every value of an export is judged before it is stored: whoever wrote the file may be a stranger."""
import json

import jobqueue
from tests.helpers.support import TestCase


class Values(TestCase):
    def setUp(self):
        super().setUp()
        self.add("bob")
        self.change_settings(NbMaxWorker=1)
        self.queue.schedules.add({"function": "add", "arguments": {"a": 1}, "rule": "daily 01:00"},
                                 self.owner_id("bob"))
        self.queue.tokens.add(self.owner_id("bob"), "x")
        self.lines = list(jobqueue.export_lines(self.queue))

    def another(self):
        """An empty queue that takes an import."""
        queue = jobqueue.JobQueue(self.folder / "another", clock=self.clock)
        self.addCleanup(queue.database.close)
        self.addCleanup(jobqueue.remove_whole, self.folder / "another")
        return queue

    def changed(self, table, **values):
        """The export with other values in the first row of a table."""
        lines = list(self.lines)
        place = next(number for number, line in enumerate(lines) if table in json.loads(line))
        row = json.loads(lines[place])[table]
        self.assertLessEqual(values.keys(), row.keys())
        lines[place] = json.dumps({table: {**row, **values}})
        return lines

    def test_what_was_exported_comes_in(self):
        queue = self.another()
        jobqueue.import_lines(queue, self.lines)
        self.assertEqual(queue.tasks.get(1)["function"], "add")

    def test_values_that_the_api_would_refuse(self):
        deep = "[" * 700 + "]" * 700
        cases = [("task", {"status": 99}), ("task", {"status": "2"}), ("task", {"status": -1}),
                 ("task", {"id": 2 ** 63 - 1}), ("task", {"id": 0}), ("task", {"priority": 101}),
                 ("task", {"arguments": deep}), ("task", {"arguments": '{"a":%s}' % deep}),
                 ("task", {"arguments": "[]"}), ("task", {"arguments": "{"}), ("task", {"arguments": None}),
                 ("task", {"result": deep}), ("task", {"result": "NaN"}), ("task", {"queue": "../x"}),
                 ("task", {"function": 7}), ("task", {"function": "a\0b"}), ("task", {"on_crash": "x"}),
                 ("task", {"created_at": None}), ("task", {"created_at": 1e300}), ("task", {"run_at": "now"}),
                 ("user", {"role": "root"}), ("user", {"name": "a b"}), ("user", {"id": -1}),
                 ("user", {"password": "scrypt$4096000,8,5$00$00"}),
                 ("user", {"password": "scrypt$16384,8,4000$00$00"}), ("user", {"password": "scrypt$x"}),
                 ("user", {"disabled": "no"}),
                 ("state", {"name": "used_code"}), ("state", {"value": "{"}), ("setting", {"name": "nosuch"}),
                 ("setting", {"value": "{"}),
                 ("setting", {"value": '"many"'}), ("setting", {"value": "-1"}),
                 ("queue", {"name": ".."}), ("queue", {"machines": "{}"}), ("queue", {"external": 3}),
                 ("schedule", {"arguments": "7"}), ("schedule", {"overlap": "x"}),
                 ("schedule", {"options": deep}),
                 ("token", {"scope": "root"}), ("token", {"limits": "["}), ("activity", {"at": "x"})]
        queue = self.another()
        for table, values in cases:
            with self.subTest("%s %.60s" % (table, values)):
                with self.assertRaises(jobqueue.JobQueueError) as caught:
                    jobqueue.import_lines(queue, self.changed(table, **values))
                self.assertLess(len(caught.exception.detail), 600)
                self.assertIsNone(queue.database.one("SELECT 1 FROM user"))
        jobqueue.import_lines(queue, self.lines)
