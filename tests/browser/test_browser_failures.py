"""A site whose imports failed at night: what its list shows of them, and how few steps lead to a retry."""
import atexit
import unittest

from tests.browser.test_browser_manners import MOST_SHIFT, SHIFTS
from tests.helpers.browser import MOUSE, STARTED, Browser, BrowserTestCase
from tests.helpers.support import wait_until

TASKS = '''
from datetime import date
from jobqueue import task

ERRORS = {
    0: (ConnectionError, "HTTPSConnectionPool(host='data.example.org', port=443): Max retries exceeded"),
    1: (ValueError, "no data for 2026-11-05 in stations.csv, line 12: '-60.145|1'"),
    2: (TimeoutError, "The read operation timed out"),
}

@task
def import_feed(url: str, day: date):
    """Import what a station measured."""
    error, words = ERRORS.get(int(url[-5]) % 8, ERRORS[0])
    raise error(words)

@task
def transcode(name: str, height: int = 720):
    """Make a film small enough for the web."""
    return {"name": name, "minutes": 12}

@task
def nothing():
    pass

@task
def other(kind: int):
    """Fail in many ways."""
    raise type("Error%d" % kind, (Exception,), {})("no")
'''
HEIGHT = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
URL = "https://data.example.org/exports/2026-11-05/stations-%03d.csv"
# Of all rows: how many have cut arguments, and how many a cut error.
CUT = """
const isCut = (one) => one && one.clientWidth > 0 && (
  one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight + 1);
const rows = [...document.querySelectorAll('.list tbody tr')];
const count = (name) => rows.filter((row) => (
  isCut(row.querySelector(name)) || isCut(row.querySelector(name + ' bdi')))).length;
return [rows.length, count('.what'), count('.result')];"""
EDGES = """
return ['header', 'main', '.list'].map((name) => {
  const { left, right } = document.querySelector(name).getBoundingClientRect();
  return [left, document.body.getBoundingClientRect().right - right];
});"""

# The columns that one sees, but the first.
COLUMNS = """
return [...document.querySelectorAll('.list thead th')].filter((head) => (
  head.getBoundingClientRect().width > 0)).map((head) => head.className).slice(1);"""
# Of a row's button: how opaque it is, from where to where it lies, and the cell of the duration.
ACTION = """
const row = document.querySelector(`.list tbody tr:nth-child(${arguments[0]})`);
const button = row.querySelector('.do button');
return [getComputedStyle(button).opacity, ...[button, row.querySelector('.took')].map((one) => {
  const { left, right } = one.getBoundingClientRect();
  return [left, right];
})];"""
CONTROLS = """
return [...document.querySelectorAll('.picked :is(button, a)')].map((one) => (
  one.ariaLabel || one.innerText))"""


class Failures(BrowserTestCase):

    TASKS, EMPTY = TASKS, ("task",)
    idle = []                           # no browsers of other classes, which have no mouse

    def start_browser(self):
        """Start a browser with a mouse."""
        browser = Browser(self.driver, self.base, MOUSE)
        atexit.register(browser.close)
        return browser

    def fail_at_night(self, count=40, owner="ana"):
        """Add failed imports, most for one reason."""
        added = self.program(owner).post("/api/tasks", [
            {"function": "import_feed", "arguments": {"url": URL % number, "day": "2026-11-05"}}
            for number in range(count)])
        self.site.wait_for_all(added.json["ids"])
        return added.json["ids"]

    def show(self, browser, address, width=1280):
        """Open a list at a width."""
        browser.emulate("Emulation.setDeviceMetricsOverride", width=width, **HEIGHT)
        self.addCleanup(browser.emulate, "Emulation.clearDeviceMetricsOverride")
        browser.go(address)
        browser.find(".list tbody a")
        wait_until(lambda: browser.run(STARTED), what="the end of its start")

    def point(self, browser, selector):
        """Move the mouse over an element."""
        x, y = browser.run("const { x, y, width, height } = document.querySelector(arguments[0])"
                           ".getBoundingClientRect(); return [x + width / 2, y + height / 2]", selector)
        browser.ask("POST", "/actions", {"actions": [{
            "type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": [{"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)}]}]})


class Columns(Failures):
    """The width of the list, and what it is used for."""

    def test_arguments_and_errors_are_read_in_the_list(self):
        self.fail_at_night()
        self.program("ana").post("/api/tasks", [
            {"function": "transcode", "arguments": {"name": "holiday %d" % number}} for number in range(5)])
        ana = self.open("ana")
        for address in ("?status=failed", "", "?function=import_feed", "?function=import_feed&status=failed"):
            with self.subTest(address):
                self.show(ana, "#/tasks" + address)
                rows, arguments, errors = ana.run(CUT)
                self.assertGreaterEqual(rows, 40)
                self.assertLess(max(arguments, errors), rows / 5)

    def test_no_column_is_the_same_or_empty_in_all_rows(self):
        self.fail_at_night(2)
        self.add("nothing", options={"delay": 600})
        ana = self.open("ana")
        for address, columns in (
                ("", ["id", "name", "what", "status", "result", "who", "when", "took"]),
                ("?function=import_feed", ["id", "what", "status", "result", "who", "when", "took"]),
                ("?owner=ana", ["id", "name", "what", "status", "result", "when", "took"]),
                ("?status=scheduled", ["id", "name", "status", "who", "when"])):
            with self.subTest(address):
                self.show(ana, "#/tasks" + address)
                self.assertEqual(ana.run(COLUMNS), columns)

    def test_a_column_comes_back_with_the_first_row_that_has_something_in_it(self):
        number = self.add("transcode", options={"delay": 600}, name="holiday")
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=scheduled")
        self.assertNotIn("result", ana.run(COLUMNS))
        self.site.rows("UPDATE task SET run_at=0, turn=0 WHERE id=?", (number,))
        ana.see("minutes: 12", ".list td.result")
        self.assertIn("result", ana.run(COLUMNS))

    def test_where_the_function_is_the_filter_the_arguments_are_the_link(self):
        self.fail_at_night(3)
        ana = self.open("ana")
        self.show(ana, "#/tasks?function=import_feed")
        ana.press("j", "j", "Enter")
        ana.see("stations-001.csv", "h1")

    def test_header_and_list_are_equally_wide_and_centred(self):
        self.fail_at_night(3)
        ana = self.open("ana")
        for width in (1280, 1920):
            with self.subTest(width):
                self.show(ana, "#/tasks", width)
                edges = ana.run(EDGES)
                self.assertEqual(edges, [edges[0]] * 3)
                self.assertAlmostEqual(*edges[0], delta=1)

    def test_the_action_lies_over_the_duration_for_mouse_and_keyboard(self):
        self.fail_at_night(3)
        ana = self.open("ana")
        self.show(ana, "#/tasks")
        self.assertEqual(ana.run(ACTION, 1)[0], "0")
        self.point(ana, ".list tbody tr:nth-child(1) .took")
        shown, button, duration = ana.run(ACTION, 1)
        self.assertEqual(shown, "1")
        self.assertLess(duration[0], button[0])
        self.assertLessEqual(button[1], duration[1])
        ana.press("j", "j")
        self.assertEqual(ana.run(ACTION, 2)[0], "1")


class Failed(Failures):
    """The failed tab: groups, counts, and the way to a retry."""

    def test_the_failed_tab_does_not_move(self):
        self.fail_at_night()
        ana = self.open("ana")
        ana.emulate("Page.enable")
        ana.emulate("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS)
        ana.emulate("Network.enable")
        slow = {"offline": False, "downloadThroughput": 200_000, "uploadThroughput": 100_000}
        for latency in (0, 150):
            ana.emulate("Network.emulateNetworkConditions", latency=latency, **slow)
            self.show(ana, "#/tasks?status=failed")
            ana.find(".works .small")
            self.pause(1)
            self.assertLessEqual(ana.run("return shifted"), MOST_SHIFT)
        ana.emulate("Network.emulateNetworkConditions", latency=700, **slow)      # later than a click excuses
        self.show(ana, "#/tasks")
        self.pause(1)
        ana.run("shifted = 0")
        ana.click(".tabs a[data-status=failed]")
        ana.find(".works .small")
        self.pause(1)
        self.assertLessEqual(ana.run("return shifted"), MOST_SHIFT)
        ana.emulate("Network.emulateNetworkConditions", latency=0, offline=False, downloadThroughput=-1,
                    uploadThroughput=-1)

    def test_groups_have_the_counts_of_their_lists_and_the_rest_is_counted(self):
        self.fail_at_night(8)
        kinds = [self.add("other", kind=kind) for kind in range(12)]
        self.site.wait_for_all(kinds)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        self.assertEqual(ana.count(".works li"), 11)
        self.assertRegex(ana.text(".works li:first-child"), r"^6\s+import_feed")
        self.assertRegex(ana.text(".works li:last-child"), r"^5\s+5 more kinds of errors")
        ana.click(".works li:first-child a")
        ana.see("ConnectionError ✕", ".chips")
        self.assertEqual(ana.text(".tabs [data-status=failed] b"), "6")
        self.assertEqual(ana.count(".list tbody tr"), 6)

    def test_a_group_keeps_the_other_filters(self):
        self.fail_at_night(4)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        ana.find(".works .small")
        ana.type("[name=q]", "stations")
        wait_until(lambda: "q=stations" in ana.run("return document.querySelector('.works a').href"),
                   what="the filter in the group's link")

    def test_last_nights_imports_are_read_and_retried_in_at_most_four_clicks(self):
        numbers = self.fail_at_night(12)
        ana = self.open("ana")
        self.show(ana, "#/tasks")
        clicks = [(".tabs a[data-status=failed]", None),
                  ("button", "Retry these: import_feed, ConnectionError"), ("dialog button", "Retry 8")]
        ana.click(*clicks[0])
        ana.see("Max retries exceeded", ".list tbody")
        ana.see("ConnectionError, the newest: HTTPSConnectionPool", ".works")
        for click in clicks[1:]:
            ana.click(*click)
        ana.see("8 tasks were retried.")
        self.assertLessEqual(len(clicks), 4)
        self.site.wait_for_all(numbers)
        self.assertEqual(self.site.value("SELECT sum(attempts) FROM task"), 12 + 8)


class Picked(Failures):
    """What is done to rows that are ticked."""

    def test_three_rows_are_ticked_and_retried_by_keyboard(self):
        numbers = self.fail_at_night(6)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        ana.press("j", "x", "j", "x", "j", "x")
        ana.see("3 selected", ".picked")
        self.assertTrue(ana.run("return Boolean(document.querySelector('.picked').compareDocumentPosition("
                                "document.querySelector('.list')) & Node.DOCUMENT_POSITION_FOLLOWING)"))
        self.assertEqual(ana.text(".picked button"), "Retry 3")
        ana.press("r")
        ana.see("3 tasks were retried.", "#live.toast")
        self.assertEqual(ana.count(".question"), 0)
        self.site.wait_for_all(numbers)
        self.assertEqual(self.site.value("SELECT sum(attempts) FROM task"), 6 + 3)
        self.assertIn("import_feed", ana.focused())     # one goes on from a row

    def test_a_key_cancels_the_ticked_rows_after_a_question_and_a_row_without_them(self):
        for _ in range(3):
            self.add("nothing", options={"delay": 600})
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=scheduled")
        ana.press("j", "x", "j", "x", "c")
        ana.find(".picked .question button", "Cancel 2")
        self.assertEqual(ana.focused(), "No")
        ana.click(".picked .question button", "Cancel 2")
        ana.see("2 tasks were cancelled.")
        ana.see("scheduled", ".list")
        ana.press("j", "c")
        wait_until(lambda: self.site.value("SELECT count(*) FROM task WHERE status=4") == 3, what="the third")

    def test_the_bar_has_few_controls_and_all_that_match_only_for_more_than_the_page(self):
        self.fail_at_night(52)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        ana.press("j", "x")
        ana.see("1 selected", ".picked")
        self.assertEqual(ana.run(CONTROLS), ["Retry 1", "Delete 1", "Clear"])
        ana.click("thead .pick input")
        ana.see("50 selected", ".picked")
        self.assertEqual(ana.run(CONTROLS), ["Retry 50", "Delete 50", "All 52 that match…", "Clear"])
        ana.click(".picked button", "Clear")
        wait_until(lambda: not ana.count(".list :checked"), what="that nothing is ticked")

    def test_on_a_phone_one_ticked_row_is_enough_to_reach_all_that_match(self):
        self.fail_at_night(3)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed", 390)
        ana.click(".list tbody .pick input")
        ana.click(".picked button", "All 3 that match…")
        ana.see("Retry 3", "dialog")
        ana.press("Escape")

    def test_keys_for_ticked_rows_are_in_the_list_of_keys(self):
        self.fail_at_night(1)
        ana = self.open("ana")
        ana.press("?")
        ana.see("retry the task, or the selected ones", "dialog")
        ana.see("cancel the task, or the selected ones", "dialog")


class Reading(Failures):
    """From the list to its tasks and back."""

    def test_one_goes_through_the_list_one_came_from(self):
        numbers = self.fail_at_night(20)
        found = self.program("ana").get("/api/tasks?status=failed&error=ValueError&sort=id").json["tasks"]
        first, second, third = (task["id"] for task in found[:3])
        self.assertGreater(second, first + 1)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed&error=ValueError&sort=id")
        ana.press("j", "Enter")
        ana.see("#%d" % first, ".facts")
        self.assertEqual(ana.count("[rel=prev]"), 0)
        ana.press("j")
        ana.see("#%d" % second, ".facts")
        ana.click("a", "Next task: %d" % third)
        ana.see("#%d" % third, ".facts")
        ana.press("k")
        ana.see("#%d" % second, ".facts")
        ana.press("u")
        ana.find("h1", "Tasks")
        self.assertIn("error=ValueError", ana.run("return location.hash"))
        ana.go("#/tasks/%d" % numbers[3])           # from nowhere: by number
        ana.find("[rel=next][href$='/%d']" % numbers[4])

    def test_one_goes_on_into_the_lists_next_page(self):
        numbers = self.fail_at_night(52)
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        ana.click(".list tbody tr:last-child a")
        ana.see("#%d" % numbers[2], ".facts")
        ana.press("j")
        ana.see("#%d" % numbers[1], ".facts")
        ana.press("j")
        ana.see("#%d" % numbers[0], ".facts")
        self.assertEqual(ana.count("[rel=next]"), 0)

    def test_one_comes_back_to_the_place_where_one_left(self):
        self.fail_at_night()
        ana = self.open("ana")
        self.show(ana, "#/tasks?status=failed")
        ana.run("scrollTo(0, 700)")
        ana.click(".list tbody tr:nth-child(20) a")
        ana.see("Max retries", ".code")
        ana.press("j")
        ana.find("h1")
        ana.click("a", "← Tasks")
        ana.find(".list tbody a")
        self.pause(1)
        self.assertEqual(ana.run("return [scrollY, location.hash]"), [700, "#/tasks?status=failed"])


class Paused(Failures):

    def test_a_paused_queue_is_told_in_its_rows_and_above_the_list_of_the_queue(self):
        self.program("ana").post("/api/queues", {"name": "texts", "paused": True, "paused_why": "no paper"})
        self.add("nothing", options={"queue": "texts"})
        ana = self.open("ana")
        self.show(ana, "#/tasks")
        ana.see("queue paused", ".list td.result")
        self.assertEqual(ana.run("return document.querySelector('.list .note').title"),
                         "The queue texts is paused by ana: no paper.")
        self.assertNotIn("no paper", ana.text("main"))
        self.show(ana, "#/tasks?queue=texts")
        ana.see("The queue texts is paused by ana: no paper.", ".held")


if __name__ == "__main__":
    unittest.main()
