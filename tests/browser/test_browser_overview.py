"""The page in a real Chromium: the overview with its charts, and the activity."""
import json
import time
import unittest

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import wait_until

HOUR = 3600
# From now on figures are answered from what a test says: {step: figures}, by the moment of the step.
FIGURES = """(() => {
const figures = %s;
const real = window.fetch;
window.fetch = async (path, ...more) => {
  if (!String(path).startsWith('api/metrics')) return real(path, ...more);
  window.asked = String(path);
  return new Response(JSON.stringify(figures), {headers: {'Content-Type': 'application/json'}});
};
})()"""


def times(median, most):
    """What some tasks took, in seconds."""
    return {"count": 30, "sum": 30 * median, "min": 0, "max": most, "mean": median, "p50": median,
            "p95": most}


def figures_of(**values):
    """The figures of a step or a function."""
    return {"complete": True, "added": 0, "started": 0, "succeeded": 0, "failed": 0, "cancelled": 0,
            "retried": 0, "crashed": 0, "waited": None, "ran": None, "service": None, **values}


class Overview(BrowserTestCase):

    TASKS = TASKS
    EMPTY = ("task", "activity", "schedule")

    def setUp(self):
        super().setUp()
        (self.site.home / "go on").touch()

    def add_failures(self, *texts, owner="ana"):
        ids = [self.add("fail", owner, text=text) for text in texts]
        self.site.wait_for_all(ids)
        return ids

    def show(self, name, address="#/overview", figures=None):
        """A browser that shows the overview, with these figures instead of the site's own."""
        browser = self.open(name)
        if figures:
            browser.emulate("Page.addScriptToEvaluateOnNewDocument",
                            source=FIGURES % json.dumps(figures))
        browser.go(address)
        browser.find("h1", "Overview")
        return browser

    def test_a_sentence_each_sums_up_yesterday_and_last_week(self):
        ids = self.add_failures("one", owner="bob") + [self.done("echo", "bob", text="a")]
        yesterday = time.time() - 86400
        self.site.rows("UPDATE activity SET at=%r" % yesterday)
        bob = self.show("bob")
        bob.see("Yesterday: 1 succeeded in 1 s of work, 1 failed (fail 1).", ".head + .help")
        bob.see("Last week", ".head + .help")
        self.assertEqual(len(ids), 2)

    def test_the_summary_comes_by_mail_at_an_hour_of_ones_choice(self):
        ana = self.open("ana", "#/account")
        ana.find("h1", "Account")
        self.assertTrue(ana.run("return document.querySelector('[name=summary]').disabled"))
        ana.type("[name=email]", "ana@example.org")
        ana.click("button", "Save address")
        ana.find("[name=summary]:enabled")
        ana.run("const e = document.querySelector('[name=summary]'); e.value = '7';"
                "e.dispatchEvent(new Event('change'))")
        ana.see("Saved.")
        self.assertEqual(ana.api("GET", "api/session")["user"]["summary"]["hour"], 7)
        ana.api("PATCH", "api/users/ana", {"email": None})

    def day(self, **more):
        """Figures of the last hours: 3 and 4 hours ago, and this one, nothing of those between."""
        now = int(time.time()) // HOUR * HOUR
        points = [figures_of(at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), **values)
                  for at, values in (
                      (now - 4 * HOUR, {"succeeded": 3, "waited": times(2, 40)}),
                      (now - 3 * HOUR, {"succeeded": 12, "failed": 5, "waited": times(4, 120)}),
                      (now, {"succeeded": 1, "complete": False}))]
        return {"step": "hour", "counted_from": None, "points": points, "totals": figures_of(),
                "functions": [], "workers": [], **more}

    def test_it_is_what_one_sees_first_and_the_brand_leads_back(self):
        ana = self.open("ana", "")
        ana.find("h1", "Overview")
        ana.see("Nothing is running.")
        ana.see("Nothing failed, or all of it was retried.")
        ana.find("header nav [aria-current]", "Overview")
        ana.click("nav a", "Tasks")
        ana.find("h1", "Tasks")
        ana.find("header nav [aria-current]", "Tasks")
        ana.click(".brand")
        ana.find("h1", "Overview")

    def test_what_runs_is_shown_with_its_progress_and_goes_when_it_has_ended(self):
        (self.site.home / "go on").unlink()
        self.add("report", city="Oslo")
        ana = self.show("ana")
        ana.see("50 % · halfway there", ".works")
        ana.see("Oslo", ".works")
        (self.site.home / "go on").touch()
        ana.see("Nothing is running.")

    def test_what_failed_is_grouped_and_retried_together(self):
        self.add_failures("no such city", "no such town")
        ana = self.show("ana")
        ana.see("ValueError, the newest: no such town")
        ana.find(".works .state", "2")
        ana.click("button", "Retry these: fail, ValueError")
        ana.see("· failed · fail · ValueError", "dialog")
        ana.click("dialog button", "Retry 2")
        ana.see("2 tasks were retried.")
        wait_until(lambda: self.site.value(
            "SELECT count(*) FROM activity WHERE event='retried'") == 2)

    def test_only_ones_own_is_shown(self):
        self.add_failures("a secret of ana")
        self.add_failures("what bob did", owner="bob")
        bob = self.show("bob")
        bob.see("what bob did")
        bob.see("None of your tasks is running.")
        self.assertNotIn("a secret", bob.text())
        ana = self.show("ana")
        ana.see("2\nfailed in 24 hours")
        ana.click("nav a", "Only mine")
        ana.see("1\nfailed in 24 hours")
        ana.see_no("what bob did")
        self.assertEqual(ana.run("return location.hash"), "#/overview?whose=mine")
        ana.click("[data-name=failed]")
        ana.see("a secret of ana")
        self.assertEqual(ana.count(".list tbody tr"), 1)

    def test_figures_are_a_users_own_and_everybodys_for_an_admin(self):
        self.done("send", "ana", city="Oslo")
        self.done("send", "bob", city="Rome")
        self.done("echo", "bob", text="x")
        bob = self.show("bob")
        bob.see("How your tasks went")
        bob.see("2 succeeded, 0 failed.")
        self.assertEqual(bob.count("[data-whose]"), 0)
        self.assertNotIn("Worker utilization", bob.text("main"))
        eve = self.show("eve")
        eve.see("Nothing failed, or all of it was retried.")
        self.pause(0.5)
        self.assertEqual(eve.count(".functions a"), 0)
        ana = self.show("ana")
        ana.see("How it went, everybody")
        ana.see("3 succeeded, 0 failed.")
        ana.click("nav a", "Only mine")
        ana.see("How your tasks went")
        ana.see("1 succeeded, 0 failed.")
        ana.see_no("echo", ".functions")

    def test_few_rows_are_shown_and_links_lead_to_the_rest(self):
        self.add_failures("a")
        functions = [figures_of(name="f%d" % number, succeeded=number, failed=number == 3)
                     for number in range(8)]
        ana = self.show("ana", figures=self.day(functions=functions))
        ana.find(".functions a", "f3")
        self.assertEqual(ana.run("return [...document.querySelectorAll('.functions a')].map("
                                 "(one) => one.textContent)"), ["f3", "f7", "f6", "f5", "f4"])
        ana.find("a", "All functions")

    def test_without_workers_the_page_warns(self):
        self.add("send", city="Oslo")
        self.site.run("settings", "NbMaxWorker", "0")
        self.addCleanup(self.site.run, "settings", "NbMaxWorker", "2")
        ana = self.show("ana")
        ana.see("No task starts: the number of workers is set to 0.", "#service")
        self.assertFalse(ana.run("return document.querySelector('#service').matches('.calm')"))
        self.assertNotIn("of 0 workers", ana.text("main"))

    def test_schedules_stand_on_the_line_of_the_day(self):
        self.site.run("schedule", "add", "send", "every 7h", "city=Oslo")
        self.site.run("schedule", "add", "send", "every 1m", "city=Rome")
        ana = self.show("ana")
        ana.see("Rome\nevery 1 min")
        ana.see("Oslo\n3 times")
        self.assertEqual(ana.count(".day i"), 24 + 1 + 3)

    def test_a_chart_is_read_by_keys_and_as_a_table(self):
        ana = self.show("ana", figures=self.day())
        ana.see("Ended tasks")
        ana.find(".chart rect.k1")
        label = "return document.querySelector('.chart svg').getAttribute('aria-label')"
        self.assertEqual(ana.run(label), "Ended tasks. 16 succeeded, 5 failed.")
        ana.see("16 succeeded, 5 failed.", ".reading")
        self.assertEqual(ana.run("return [...document.querySelectorAll('.chart svg')].map((one) => "
                                 "one.querySelector('text').textContent)"), ["20", "2 min", "1 s", "100 %"])
        ana.run("document.querySelector('.keys').focus()")
        ana.press("Left")
        ana.see("so far: 1 succeeded, 0 failed", ".reading")
        ana.press("Left")
        ana.see(": nothing measured", ".reading")
        ana.press("Left", "Left")
        ana.see(": 12 succeeded, 5 failed", ".reading")
        ana.click(".charts + details summary")
        wait_until(lambda: ana.count("details tbody tr") == 24, what="a row for each hour")
        ana.see("12\t5\t4 s\t2 min", "details table")

    def test_nothing_measured_is_a_gap_and_an_unfinished_hour_is_hatched(self):
        ana = self.show("ana", figures=self.day())
        ana.find(".chart rect.k0")
        self.assertEqual(ana.count(".chart:first-child rect.k0"), 3)
        self.assertEqual(ana.count(".chart rect[fill^='url(#hatch']"), 1)
        [path] = ana.run("return [...document.querySelectorAll('.chart:nth-child(2) path.k0')]"
                         ".map((one) => one.getAttribute('d'))")
        self.assertEqual((path.count("M"), path.count("L")), (1, 1))

    def test_the_range_is_in_the_address(self):
        ana = self.show("ana", figures=self.day())
        ana.click("nav a", "30 days")
        wait_until(lambda: "step=day" in (ana.run("return window.asked") or ""))
        self.assertEqual(ana.run("return location.hash"), "#/overview?range=month")
        ana.find("[aria-current=page]", "30 days")

    def test_functions_are_told_with_their_last_runs(self):
        runs = [{"id": number, "status": "failed" if number == 3 else "succeeded", "seconds": 1.5}
                for number in range(1, 21)]
        ana = self.show("ana", figures=self.day(functions=[figures_of(
            name="report", succeeded=39, failed=1, waited=times(0.02, 0), ran=times(30, 90),
            recent=runs, peak_memory=50 << 20)]))
        ana.see("97.5 %", ".functions")
        self.assertEqual([ana.text(".functions td:nth-child(%d)" % number) for number in range(4, 8)],
                         ["20 ms", "0 s", "30 s", "1 min"])
        ana.see("50 MB", ".functions")
        self.assertEqual((ana.count(".dots i"), ana.count(".dots [data-state=failed]")), (20, 1))

    def test_nothing_is_wider_than_a_small_phone(self):
        self.add_failures("x" * 200)
        self.site.run("schedule", "add", "send", "every 1m", "city=Rome")
        ana = self.show("ana", figures=self.day())
        ana.emulate("Emulation.setDeviceMetricsOverride", width=320, height=640,
                    deviceScaleFactor=1, mobile=True)
        ana.go("#/overview")
        ana.find(".chart rect.k0")
        self.assertEqual(ana.run("return document.documentElement.scrollWidth"), 320)
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_the_charts_own_lines_stay_while_others_come(self):
        ana = self.show("ana", figures=self.day())
        ana.find(".chart rect.k0")
        ana.run("window.before = document.querySelector('.chart svg').firstChild")
        self.add_failures("now")
        ana.see("ValueError: now")
        self.assertTrue(ana.run("return window.before.isConnected"))


class Functions(BrowserTestCase):

    TASKS = TASKS
    EMPTY = ("task", "activity", "schedule")

    def test_all_functions_are_listed_also_those_that_did_not_run(self):
        self.done("send", city="Oslo")
        ana = self.open("ana", "#/overview")
        ana.click("a", "All functions")
        ana.find("h1", "Functions")
        ana.find("header nav [aria-current]", "Overview")
        self.assertEqual(ana.run("return [...document.querySelectorAll('.functions th a')].map("
                                 "(one) => one.textContent)"), ["send", "report", "fail", "echo"])
        ana.click("nav a", "7 days")
        ana.click(".functions a", "echo")
        ana.find("h1", "echo")
        self.assertEqual(ana.run("return location.hash"), "#/functions/echo?range=week")
        ana.find("[aria-current=page]", "7 days")

    def test_a_function_has_its_form_its_tasks_and_what_failed(self):
        (self.site.home / "go on").touch()
        self.site.run("schedule", "add", "report", "every 7h", "city=Rome")
        self.done("report", city="Oslo")
        self.done("fail", text="no such city")
        ana = self.open("ana", "#/functions/report")
        ana.see("Write the monthly report of a city.")
        ana.see("Users may add it.")
        ana.see("succeeded 1", ".links")
        ana.see("1 succeeded, 0 failed, 0 cancelled.", ".pairs")
        ana.see("Nothing failed, or all of it was retried.")
        ana.see("Rome", "main")
        ana.click("a", "succeeded 1")
        ana.find("h1", "Tasks")
        self.assertEqual(ana.run("return location.hash"), "#/tasks?status=succeeded&function=report")
        ana.go("#/functions/report")
        ana.find("h1", "report")
        ana.click("a", "New task")
        ana.find("a", "← Another function")
        ana.go("#/functions/fail")
        ana.see("ValueError: no such city", ".works")
        ana.see("No schedule adds it.")

    def test_the_last_runs_are_bars_that_keys_reach(self):
        first = self.done("echo", text="x")
        last = self.done("echo", text="y")
        other = self.done("fail", text="z")
        ana = self.open("ana", "#/functions/echo")
        wait_until(lambda: ana.count(".runs a") == 2)
        self.assertEqual(ana.count(".runs [tabindex='0']"), 1)
        ana.run("document.querySelector('.runs [tabindex=\"0\"]').focus()")
        self.assertTrue(ana.focused().startswith("#%d, succeeded, took " % last), ana.focused())
        ana.press("Left")
        self.assertTrue(ana.focused().startswith("#%d, succeeded, took " % first), ana.focused())
        ana.see("#%d, succeeded" % first, ".reading")
        ana.press("Enter")
        wait_until(lambda: ana.run("return location.hash") == "#/tasks/%d" % first)
        ana.go("#/functions/fail")
        ana.find(".runs [data-state=failed]", "✕")
        self.assertIn("/%d" % other, ana.run("return document.querySelector('.runs a').href"))

    def test_users_see_their_own_runs(self):
        self.done("echo", "ana", text="x")
        bob = self.open("bob", "#/functions/echo")
        bob.see("No run has ended.")
        bob.see("Of your tasks.")
        bob.see("succeeded 0", ".links")
        bob.go("#/functions/never")
        bob.see("There is nothing here")


class Activity(BrowserTestCase):

    TASKS = TASKS

    def test_filters_are_in_the_address(self):
        for name in ("ana", "bob"):
            self.done("send", name, city=name)
        ana = self.open("ana", "#/activity")
        ana.find("h1", "Activity")
        ana.see("send #1")
        ana.choose("owner", "bob")
        ana.click("button", "Show")
        ana.see_no("send #1")
        ana.see("send #2")
        self.assertEqual(ana.run("return location.hash"), "#/activity?owner=bob")
        ana.click("a", "Show everything")
        ana.see("send #1")

    def test_what_was_changed_is_told_in_words(self):
        program = self.program("ana")
        program.post("/api/queues", {"name": "mail", "rate": {"count": 500, "seconds": 3600}})
        self.addCleanup(program.delete, "/api/queues/mail")
        program.patch("/api/queues/mail", {"paused": True, "paused_why": "moving"})
        number = self.add("send", "bob", {"queue": "mail"}, city="Vik")
        program.post("/api/tasks/actions", {"action": "delete", "expected_count": 1, "filter": {
            "status": "pending", "queue": "mail"}})
        ana = self.open("ana", "#/activity")
        ana.see("500 in 1 h", "table")
        ana.see("paused, moving", "table")
        ana.see("1 task, pending, queue mail", "table")
        self.assertNotIn("{", ana.text("table"), number)
        ana.choose("event", "queue_changed")
        ana.click("button", "Show")
        ana.see_no("send #", "table")
        self.assertEqual(ana.run("return document.querySelector('[name=event]').selectedOptions[0].text"),
                         "queue changed")

    def test_others_see_what_is_theirs(self):
        for name in ("ana", "bob"):
            self.done("send", name, city=name)
        bob = self.open("bob", "#/activity")
        bob.find("h1", "Activity")
        mine = self.site.value("SELECT max(id) FROM task")
        bob.see("send #%d" % mine)
        self.assertNotIn("#%d" % (mine - 1), bob.text("table"))
        self.assertEqual(bob.count("[name=owner]"), 0)


if __name__ == "__main__":
    unittest.main()
