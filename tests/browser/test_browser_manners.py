"""How the page behaves in a real Chromium: nothing jumps, nothing is done that nobody meant."""
import unittest

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import wait_until

LONG_NAME = "a_function_whose_name_is_as_long_as_sixty_three_characters_allo"
TASKS = '''
import time
from pathlib import Path
from jobqueue import task

@task(timeout=600)
def report(city: str) -> dict:
    """Write the monthly report of a city."""
    print("writing about", city, flush=True)
    while not Path("go on").exists():
        time.sleep(0.1)
    return {"city": city}

@task
def echo(text: str) -> str:
    return text

@task
def %s(x: int = 1):
    pass
''' % LONG_NAME
MOST_SHIFT = 0.05
# Adds up what moves without being asked to, as browsers report it.
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) shifted += value;
}).observe({ type: 'layout-shift', buffered: true });
"""
# The headings that the pill above the list lies on.
COVERED = """
const pill = document.querySelector('.fresh').getBoundingClientRect();
return [...document.querySelectorAll('.list thead th')].filter((th) => {
  const words = document.createRange();
  words.selectNodeContents(th);
  const { left, right } = words.getBoundingClientRect();
  return th.innerText.trim() && !th.querySelector('.hidden') && left < pill.right && right > pill.left;
}).map((th) => th.innerText)"""


class Manners(BrowserTestCase):
    """Single things that people stumbled over."""

    TASKS = TASKS

    def tearDown(self):
        super().tearDown()
        for number, in self.site.rows("SELECT id FROM task WHERE status IN (0, 1, 5, 6)"):
            self.stop(number)

    def later(self, city="Bergen"):
        """A task of bob's that does not start meanwhile."""
        return self.add("report", "bob", {"delay": 600}, city=city)

    def running(self):
        """A task of bob's that runs until it is stopped."""
        number = self.add("report", "bob", city="Oslo")
        wait_until(lambda: self.site.rows("SELECT 1 FROM task WHERE id=? AND status=1", (number,)),
                   what="the start of task %d" % number)
        return number

    def stop(self, number):
        """Have a task that has not ended cancelled."""
        self.program("ana").post("/api/tasks/%d/cancel" % number)
        self.site.wait_for_all([number])

    def press_twice(self, browser, selector):
        """Two clicks of a mouse 0.3 s apart, wherever they land."""
        where = browser.run("const { x, y, width, height } = document.querySelector(arguments[0])"
                            ".getBoundingClientRect(); return [x + width / 2, y + height / 2]", selector)
        move = {"type": "pointerMove", "duration": 0, "x": int(where[0]), "y": int(where[1])}
        click = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        browser.ask("POST", "/actions", {"actions": [{
            "type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": [move, *click, {"type": "pause", "duration": 300}, *click]}]})

    def events(self, number):
        """What happened to a task, in order."""
        return [row[0] for row in self.site.rows("SELECT event FROM activity WHERE task_id=? ORDER BY id",
                                                 (number,))]

    def test_nothing_jumps_while_a_page_comes_and_workers_are_busy(self):
        self.site.run("settings", "NbMaxWorker", "1")
        self.site.run("schedule", "add", "echo", "daily 01:00", "text=x")
        number = self.running()
        self.add("report", city="Oslo")
        ana = self.open("ana")
        ana.emulate("Page.enable")
        ana.emulate("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS)
        ana.emulate("Network.enable")
        ana.emulate("Network.setCacheDisabled", cacheDisabled=True)
        slow = {"offline": False, "downloadThroughput": 200_000, "uploadThroughput": 100_000}
        ana.emulate("Network.emulateNetworkConditions", latency=120, **slow)
        for width, phone in ((1100, False), (390, True)):
            ana.emulate("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
                        mobile=phone)
            for address in ("#/tasks", "#/tasks/%d" % number, "#/schedules", "#/settings"):
                with self.subTest(address=address, width=width):
                    ana.go(address)
                    ana.see("All workers are busy.", "#service")
                    ana.find("h1")
                    self.pause(1)
                    self.assertLessEqual(ana.run("return shifted"), MOST_SHIFT)
        ana.emulate("Network.emulateNetworkConditions", latency=0, offline=False, downloadThroughput=-1,
                    uploadThroughput=-1)
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_the_notice_counts_nobodys_tasks_and_stands_apart_from_the_heading(self):
        self.site.run("settings", "NbMaxWorker", "1")
        self.running()
        self.add("report", city="Oslo")
        bob = self.open("bob")
        bob.see("All workers are busy.", "#service")
        self.assertNotRegex(bob.text("#service"), r"\d|waiting")
        gap = bob.run("const [line, title] = ['#service span', 'h1'].map((one) => "
                      "document.querySelector(one).getBoundingClientRect()); return title.top - line.bottom")
        self.assertGreaterEqual(gap, 10)

    def test_a_long_name_makes_no_phone_scroll_sideways(self):
        number = self.add(LONG_NAME, "bob", {"delay": 600})
        bob = self.open("bob")
        for width in (320, 390):
            bob.emulate("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
                        mobile=True)
            for address in ("#/tasks", "#/tasks/%d" % number, "#/new", "#/new/" + LONG_NAME):
                bob.go(address)
                bob.see(LONG_NAME, "main")
                if address == "#/tasks":
                    wait_until(lambda: bob.count("option[value=%s]" % LONG_NAME))
                with self.subTest(address=address, width=width):
                    self.assertLessEqual(bob.run("return document.documentElement.scrollWidth"), width)
        bob.emulate("Emulation.clearDeviceMetricsOverride")

    def test_an_impatient_second_click_on_cancel_retries_nothing(self):
        number = self.later()
        bob = self.open("bob")
        bob.find("button", "Cancel %d" % number)
        self.press_twice(bob, "[aria-label='Cancel %d']" % number)
        bob.see("cancelled", "table.list")
        self.pause(1)
        self.assertEqual(self.events(number), ["added", "cancelled"])
        bob.click("button", "Retry %d" % number)        # who waits a moment means it
        wait_until(lambda: "retried" in self.events(number))

    def test_an_impatient_second_click_on_cancel_retries_nothing_on_the_tasks_page(self):
        number = self.later()
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.find("main > .actions button", "Cancel")
        self.press_twice(bob, "main > .actions button")
        bob.find("main > .actions button", "Retry")
        self.pause(1)
        self.assertEqual(self.events(number), ["added", "cancelled"])

    def test_what_runs_is_not_stopped_unasked(self):
        number = self.running()
        bob = self.open("bob")
        for address, label in (("#/tasks", "Cancel %d" % number), ("#/tasks/%d" % number, "Stop")):
            bob.go(address)
            bob.find("button", label)
            self.press_twice(bob, "main [aria-label='%s'], main > .actions button" % label)
            self.pause(0.5)
            self.assertEqual(self.events(number), ["added", "started"])
            if not bob.count(".question"):
                bob.click("button", label)
            bob.see("Stop %d?" % number)
            bob.click(".question button", "No")
            bob.find("button", label)
        bob.go("#/tasks")
        bob.click("button", "Cancel %d" % number)
        bob.click(".question button", "Stop")
        wait_until(lambda: self.site.json("show", number)["status"] == "cancelled")

    def test_the_next_page_of_the_list_begins_at_its_top(self):
        self.site.python("from jobqueue import JobQueue; JobQueue().enqueue_many('echo', "
                         "[{'text': str(n)} for n in range(60)], owner='eve', delay=600)")
        eve = self.open("eve")
        eve.find("a", "Older tasks →")
        eve.run("scrollTo(0, document.body.scrollHeight)")
        eve.run("document.querySelector('.pager a:last-child').click()")
        eve.find("a", "← Newest")
        self.assertEqual(eve.run("return scrollY"), 0)

    def test_a_long_text_that_came_out_is_set_as_text_and_can_be_copied(self):
        for text, boxes in (("x y " * 200, 1), ("all fine", 0)):
            number = self.done("echo", "bob", text=text)
            bob = self.open("bob", "#/tasks/%d" % number)
            bob.see("Result")
            self.assertEqual([bob.count("main .copy pre"), bob.count(".scalar")], [boxes, 1 - boxes])

    def test_the_next_run_of_another_zone_is_told_in_ones_own_time(self):
        for rule in ("every 7m", "daily 01:00"):
            self.site.run("schedule", "add", "echo", rule, "text=" + rule.split()[0], "--owner", "bob",
                          "--tz", "Asia/Tokyo")
        bob = self.open("bob", "#/schedules")
        bob.see("Tokyo", "main")
        ana = self.open("ana", "#/schedules")
        ana.see("every bob", "main tbody")
        cells = bob.run("return Object.fromEntries([...document.querySelectorAll('.schedules tbody tr')]"
                        ".map((row) => [row.querySelector('bdi').innerText, row.cells[2].innerText]))")
        self.assertRegex(cells["every"], r"^in [\d.]+ (min|s)$")
        self.assertRegex(cells["daily"], r"^(\D* ?\d\d:\d\d your time|in [\d.]+ (min|s))$")

    def test_a_timeline_says_when_to_the_second_and_who(self):
        number = self.later()
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("button", "Cancel")
        bob.see("cancelled by bob", "ol.timeline")
        ana = self.open("ana", "#/tasks/%d" % number)
        ana.click("button", "Retry")
        ana.see("retried by ana", "ol.timeline")
        times = ana.run("return [...document.querySelectorAll('.timeline time')].map((e) => e.innerText)")
        self.assertGreaterEqual(len(times), 3)
        for time in times:
            self.assertRegex(time, r"^\d+ \w+, \d\d:\d\d:\d\d$")
        self.assertNotIn("just now", ana.text())

    def test_the_list_says_how_many_seconds_ago_something_started(self):
        self.running()
        bob = self.open("bob")
        bob.find(".list tbody time")
        self.assertRegex(bob.text(".list tbody .when"), r"^\d+ s ago$")

    def test_new_rows_are_announced_beside_the_headings(self):
        bob = self.open("bob")
        self.later(city="Bodø")
        bob.find(".fresh", "1 new")
        self.assertEqual(bob.run(COVERED), [])

    def test_what_was_said_goes_with_the_view_it_was_said_on(self):
        numbers = [self.later(), self.later()]
        bob = self.open("bob")
        bob.click("[value='%d']" % numbers[0])
        bob.click(".picked button", "Delete 1")
        bob.click(".question button", "Delete 1")
        bob.find(".toast", "1 task was deleted.")
        bob.click("header a", "Queues")
        bob.find("h1", "Queues")
        self.assertEqual(bob.count(".toast"), 0)
        bob.go("#/tasks/%d" % numbers[1])
        bob.click("main button", "Delete")
        bob.click(".question button", "Delete")
        bob.find("h1", "Tasks")
        bob.find(".toast", "#%d was deleted." % numbers[1])     # it is why one is here

    def test_an_address_that_means_nothing_says_so(self):
        bob = self.open("bob")
        nothing, refused = "There is nothing here", "Not allowed"
        for address, title in (("#/nonsense", nothing), ("#/constructor", nothing), ("#/settings", refused),
                               ("#/users", refused), ("#/", "Overview"), ("#setup=x", "Overview")):
            bob.go(address)
            bob.find("h1", title)
        bob.go("#/settings")
        bob.see("Only admins may do this.")

    def test_a_short_page_has_no_scroll_bar(self):
        bob = self.open("bob", "#/queues")
        bob.see("default", "main")
        height, window = bob.run("return [document.documentElement.scrollHeight, innerHeight]")
        self.assertEqual(height, window)

    def test_settings_that_are_not_saved_are_not_left_unasked(self):
        ana = self.open("ana", "#/settings")
        ana.type("[name=linger]", "33")
        ana.run("scrollTo(0, 0)")
        bottom = ana.run("return document.querySelector('.primary').getBoundingClientRect().bottom")
        self.assertLessEqual(bottom, ana.run("return innerHeight"))
        self.assertTrue(ana.run("return !dispatchEvent(new Event('beforeunload', { cancelable: true }))"))
        ana.click("header a", "Tasks")
        wait_until(lambda: "not saved" in self.asked(ana), what="the question")
        ana.ask("POST", "/alert/dismiss", {})
        self.assertEqual(ana.run("return [location.hash, document.querySelector('[name=linger]').value]"),
                         ["#/settings", "33"])
        ana.click("button", "Save")
        ana.see("Saved.")
        ana.click("header a", "Tasks")                  # now there is nothing to ask
        ana.find("h1", "Tasks")
        ana.click("header a", "Settings")
        ana.type("[name=linger]", "34")
        ana.click("header a", "Tasks")
        wait_until(lambda: "not saved" in self.asked(ana), what="the question")
        ana.ask("POST", "/alert/accept", {})
        ana.find("h1", "Tasks")
        self.assertEqual(self.site.json("settings", "linger")["value"], 33)

    def asked(self, browser):
        """The words of the browser's own question; "" while there is none."""
        try:
            return browser.ask("GET", "/alert/text")
        except Exception as error:
            if getattr(error, "kind", "") != "no such alert":
                raise
            return ""


class BrokenFunctions(BrowserTestCase):
    """A site of its own: its workers would wait for a better tasks.py."""

    TASKS = TASKS

    def test_a_broken_tasks_py_is_explained_wherever_the_page_is_loaded(self):
        ana, bob = self.open("ana"), self.open("bob")
        self.site.write_tasks(TASKS + "\nhalf of an upload (\n")
        for address in ("#/new", "#/new/echo", "#/schedules/new", "#/settings", "#/tasks"):
            with self.subTest(address=address):
                ana.go(address)
                ana.see("Nothing new starts: tasks.py, line", "#code")
                ana.see("SyntaxError", "#code")
                self.assertEqual(ana.run("return [...document.querySelectorAll('.lines p')].filter("
                                         "(one) => one.checkVisibility()).map((one) => one.id)"), ["code"])
        bob.go("#/new")
        bob.see("Nothing new starts: tasks.py cannot be read: an admin sees why.", "#service")
        self.assertNotIn("line", bob.text(".lines"))
        bob.run("localStorage.setItem('jobqueue-language', 'de')")
        bob.go("#/new")
        bob.see("Nichts Neues startet: tasks.py ist nicht lesbar: ein Admin sieht, warum.", "#service")


if __name__ == "__main__":
    unittest.main()
