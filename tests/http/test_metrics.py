"""What was done and how long it took, as the API tells it."""
import re
import shutil
import subprocess
import unittest

import jobqueue
from tests.helpers.support import PASSWORD, function_json, need
from tests.helpers.web import Visitor, WebTestCase

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def parsed(text):
    """{(name, labels): value} of Prometheus' text format; each family is typed before its samples."""
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
        elif not line.startswith("# HELP "):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert re.sub("_(bucket|sum|count)$", "", name) in kinds or name in kinds, line
            labels = tuple((label, words.replace(r"\n", "\n").replace(r"\"", '"').replace(r"\\", "\\"))
                           for label, words in LABEL.findall(labels or ""))
            assert (name, labels) not in found, line
            found[name, labels] = float(value)
    return found


class MetricsCase(WebTestCase):

    def run_some(self, count=3, **named):
        """Tasks of bob that wait a second and run two."""
        for _ in range(count):
            self.add("bob", **named)
            self.clock.advance(1)
            row = self.claim()
            self.clock.advance(2)
            self.end(row, seconds=2.0)


class TestFigures(MetricsCase):

    def figures(self, query="", who=None):
        return self.check((who or self.ana).get("/api/metrics" + query), 200)

    def test_the_last_day_by_the_hour_is_answered(self):
        self.run_some()
        told = self.figures()
        self.assertEqual((told["step"], len(told["points"])), ("hour", 25))
        self.assertEqual([point["succeeded"] for point in told["points"]][-1], 3)
        self.assertEqual(told["totals"]["waited"], {
            "count": 3, "sum": 3.0, "min": 1.0, "max": 1.0, "mean": 1.0, "p50": 1.0, "p95": None})

    def test_it_is_the_same_before_and_after_it_is_folded(self):
        self.run_some()
        before = self.figures("?step=day")
        self.clean(61)
        self.assertEqual(self.database.value("SELECT count(*) FROM hour WHERE span=3600"), 1)
        self.assertEqual(self.figures("?step=day")["totals"], before["totals"])

    def test_more_points_than_a_chart_has_are_refused(self):
        self.check(self.ana.get("/api/metrics?from=2020-01-01T00:00:00Z"), 400, "malformed")
        self.check(self.ana.get("/api/metrics?from=2099-01-01T00:00:00Z"), 400, "malformed")
        self.check(self.ana.get("/api/metrics?step=month"), 400, "malformed")
        self.check(self.ana.get("/api/metrics?to=9999-12-31T23:30:00Z"), 400, "malformed")

    def test_users_see_the_functions_that_they_may_add_and_no_numbers_of_others(self):
        self.run_some(1)
        self.add("ana", "restart")
        told = self.figures(who=self.eve)
        self.assertEqual([(one["name"], one["recent"]) for one in told["functions"]], [
            ("add", [{"id": None, "status": "succeeded", "seconds": 2.0}])])
        self.assertEqual(told["totals"]["added"], 1)
        self.assertIsNotNone(self.figures(who=self.bob)["functions"][0]["recent"][0]["id"])
        self.assertEqual(self.figures(who=self.ana)["totals"]["added"], 2)

    def test_an_owner_has_figures_of_their_own_tasks_only(self):
        self.run_some(2)
        self.add("eve")
        self.clean(61)
        for who in (self.ana, self.bob):
            told = self.figures("?owner=bob", who)
            self.assertEqual((told["totals"]["added"], told["totals"]["succeeded"]), (2, 2))
            self.assertEqual(told["totals"]["ran"]["p50"], 2.0)
            self.assertEqual((told["counted_from"], told["workers"]), (None, []))
            self.assertEqual(len(told["functions"][0]["recent"]), 2)
        self.assertEqual(self.figures("?owner=eve", self.eve)["totals"]["succeeded"], 0)
        self.check(self.eve.get("/api/metrics?owner=bob"), 403, "denied")
        self.check(self.ana.get("/api/metrics?owner=nobody"), 404, "not_found")

    def test_figures_of_an_owner_begin_with_the_range(self):
        self.run_some(1)
        self.clock.advance(2 * 86400)
        self.bob = self.program("bob")      # no session lasts that long
        self.run_some(3)
        self.assertEqual(self.figures("?owner=bob", self.bob)["totals"]["succeeded"], 3)

    def test_figures_of_an_owner_say_from_when_on_they_are_counted(self):
        self.run_some(3)
        self.patch(jobqueue, "FOLD_ROWS", 4)
        told = self.figures("?owner=bob", self.bob)
        self.assertEqual(sum(told["totals"][name] for name in ("added", "started", "succeeded")), 4)
        first = self.database.value("SELECT at FROM activity WHERE owner_id IS NOT NULL "
                                    "AND task_id IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET 3")
        self.assertEqual(told["counted_from"], jobqueue.iso(first))


class TestPrometheus(MetricsCase):

    def setUp(self):
        super().setUp()
        token = self.check(self.ana.post("/api/tokens", {
            "name": "scraper", "scope": "metrics", "password": PASSWORD}), 201)["token"]
        self.scraper = Visitor(self.app, token=token)

    def scrape(self):
        reply = self.scraper.get("/metrics")
        self.assertEqual((reply.status, reply.headers["content-type"]),
                         (200, "text/plain; version=0.0.4; charset=utf-8"))
        return reply.body.decode()

    def test_counters_gauges_and_a_histogram_are_told(self):
        self.run_some(3)
        self.add("bob")
        self.clock.advance(5)
        found = parsed(self.scrape())
        place = ("function", "add"), ("queue", "default")
        self.assertEqual(found["jobqueue_tasks_total", (("status", "succeeded"), *place)], 3)
        self.assertEqual(found["jobqueue_tasks_total", (("status", "added"), *place)], 4)
        self.assertEqual([found["jobqueue_task_run_seconds_bucket", (("function", "add"), ("le", top))]
                          for top in ("0.25", "1", "4", "16384", "+Inf")], [0, 0, 3, 3, 3])
        self.assertEqual(found["jobqueue_task_run_seconds_sum", (("function", "add"),)], 6.0)
        self.assertEqual(found["jobqueue_queue_pending", (("queue", "default"),)], 1)
        self.assertEqual(found["jobqueue_oldest_pending_seconds", ()], 5.0)
        self.assertEqual(found["jobqueue_workers", (("state", "busy"),)], 0)

    def test_counters_never_fall(self):
        self.change_settings(keep_activity_days=1, keep_hours_days=1, keep_days=1)
        before = {}
        for _ in range(6):
            self.run_some(2)
            self.clean(86400 / 2)
            self.queue.retention._rounds.hasten(0)
            self.queue.retention.prune()
            while self.queue.retention._round:
                self.queue.retention.prune()
            found = {key: value for key, value in parsed(self.scrape()).items()
                     if key[0].endswith(("_total", "_count", "_sum", "_bucket"))}
            self.assertTrue(all(found[key] >= value for key, value in before.items()))
            before = found
        self.assertLess(self.database.value("SELECT count(*) FROM activity WHERE event='added'"), 12)
        self.assertIn(12.0, before.values())

    def test_labels_are_escaped(self):
        name = 'a"b\\c\nd'
        self.declare(function_json(name))
        self.write("INSERT INTO activity (at, event, function, queue) VALUES (?, 'added', ?, 'default')",
                   (self.clock.now(), name))
        self.assertIn(("jobqueue_tasks_total", (
            ("status", "added"), ("function", name), ("queue", "default"))), parsed(self.scrape()))

    def test_its_token_can_do_nothing_else(self):
        self.check(self.scraper.get("/api/tasks"), 403, "denied")
        self.check(self.scraper.post("/api/tasks", {"function": "add", "arguments": {"a": 1}}), 403)
        self.check(self.bob.post("/api/tokens", {"name": "x", "scope": "metrics", "password": PASSWORD}),
                   403, "denied")
        self.check(self.ana.get("/metrics"), 403, "denied")

    def test_promtool_has_no_complaint(self):
        need(shutil.which("promtool"), "promtool, of Debian's package prometheus")
        self.run_some(3)
        done = subprocess.run(["promtool", "check", "metrics"], input=self.scrape(), text=True,
                              capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
