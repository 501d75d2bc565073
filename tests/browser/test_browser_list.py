"""The list in a real Chromium: its order, dates, what is selected, groups of failures, files, widths."""
import json
import unittest

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import wait_until

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
WIDE = {"width": 1920, "height": 900, "deviceScaleFactor": 1, "mobile": False}
ROWS = "return [...document.querySelectorAll('.list tbody .id')].map((cell) => Number(cell.innerText))"
LINES = ("return [...document.querySelectorAll('.list tbody .id')]"
         ".map((cell) => getComputedStyle(cell).borderBottomWidth)")
TICKED = ("return [...document.querySelectorAll('.list tbody input:checked')]"
          ".map((box) => Number(box.value)).sort((one, other) => one - other)")
# Where the rows begin, how wide the document is, and the table.
MEASURES = """
const { top, width } = document.querySelector('.list').getBoundingClientRect();
const row = document.querySelector('.list tbody tr').getBoundingClientRect();
return [row.top, document.documentElement.scrollWidth, width, top];"""
# Where everything stands beside the heading.
PLACES = """
return [...document.querySelectorAll('.head > *, .filters > :not(.more)')].flatMap((one) => {
  const { left, top } = one.getBoundingClientRect();
  return [left, top];
});"""
# A click with shift, as the mouse gives it.
SHIFT_CLICK = """
document.querySelector(arguments[0]).dispatchEvent(
  new MouseEvent('click', { bubbles: true, cancelable: true, shiftKey: true }))"""


class Listing(BrowserTestCase):

    TASKS, EMPTY = TASKS, ("task",)

    def box(self, number):
        return "tbody .pick [value='%d']" % number

    def test_what_runs_stands_first_and_keeps_its_place_when_it_ends(self):
        running = self.add("report", "bob", city="Oslo")
        wait_until(lambda: self.site.rows("SELECT 1 FROM task WHERE status=1"), what="its start")
        others = [self.done("echo", "bob", text="a") for _ in range(3)]
        bob = self.open("bob")
        bob.see("halfway", ".list tbody tr:first-child .result")
        self.assertEqual(bob.run(ROWS), [running, *others[::-1]])
        # A line stands between what runs and the sorted rest.
        self.assertEqual(bob.run(LINES), ["2px", "1px", "1px", "1px"])
        (self.site.home / "go on").touch()
        bob.see("succeeded", ".list tbody tr:first-child")
        bob.see("city: Oslo, pages: 3", ".list tbody tr:first-child .result")
        self.assertEqual(bob.run(ROWS), [running, *others[::-1]])
        bob.open_list()
        bob.find(".list tbody a")
        self.assertEqual(bob.run(ROWS), [*others[::-1], running])

    def test_headings_sort_and_the_address_says_how(self):
        numbers = [self.done("echo", "bob", text=text) for text in "abc"]
        bob = self.open("bob")
        bob.find(".list tbody a")
        self.assertEqual(bob.run(ROWS), numbers[::-1])
        self.assertEqual(bob.run("return document.querySelector('thead .id').ariaSort"), "descending")
        bob.click("thead .id a")
        wait_until(lambda: bob.run(ROWS) == numbers, what="the oldest first")
        self.assertTrue(bob.run("return location.hash").endswith("sort=id"))
        self.assertEqual(bob.run("return document.querySelector('thead .id').ariaSort"), "ascending")
        bob.click("thead .took a")
        wait_until(lambda: bob.run("return document.querySelector('thead .took').ariaSort") == "descending",
                   what="the longest first")
        self.assertTrue(bob.run("return location.hash").endswith("sort=-duration"))

    def test_dates_are_chosen_behind_a_button_and_stand_in_the_address(self):
        self.done("echo", "bob", text="a")
        bob = self.open("bob")
        self.assertFalse(bob.run("return document.querySelector('[name=since]').checkVisibility()"))
        bob.click("button", "Filters")
        bob.choose("since", "2099-01-01")
        bob.see("No task matches.")
        since = bob.run("return new Date('2099-01-01T00:00').toISOString()")
        self.assertIn("since=" + since.replace(":", "%3A"), bob.run("return location.hash"))
        bob.run("location.reload()")
        bob.see("No task matches.")
        self.assertEqual(bob.run("return document.querySelector('[name=since]').value"), "2099-01-01")
        self.assertTrue(bob.run("return document.querySelector('[name=since]').checkVisibility()"))

    def test_of_very_many_only_some_are_sorted_but_by_number_all(self):
        lines = b'{"function": "echo", "arguments": {"text": "a"}, "delay": 9999}\n' * 5001
        self.program("bob").post("/api/tasks", lines, Content_Type="application/x-ndjson")
        bob = self.open("bob", "#/tasks?sort=function")
        bob.see("only the newest 5\u202f000 are sorted", ".chips")
        bob.go("#/tasks?sort=id")
        bob.see_no("are sorted", ".chips")

    def test_ticked_tasks_are_retried_together_and_shift_takes_those_between(self):
        numbers = [self.done("fail", "bob", text="no %d" % place) for place in range(5)]
        bob = self.open("bob")
        bob.click(self.box(numbers[4]))
        bob.see("1 selected", ".picked")
        bob.run(SHIFT_CLICK, self.box(numbers[1]))
        bob.see("4 selected", ".picked")
        self.assertEqual(bob.run(TICKED), numbers[1:])
        bob.click(self.box(numbers[2]))
        bob.see("3 selected", ".picked")
        bob.click(".picked button", "Retry 3")
        bob.see("3 tasks were retried.")
        wait_until(lambda: not bob.run(TICKED), what="that nothing is ticked")
        self.site.wait_for_all(numbers)
        self.assertEqual([self.program("bob").get("/api/tasks/%d" % number).json["attempts"]
                          for number in numbers], [1, 2, 1, 2, 2])

    def test_what_is_ticked_stays_while_others_come_and_another_list_begins_anew(self):
        first = self.done("echo", "bob", text="a")
        bob = self.open("bob")
        bob.click(self.box(first))
        self.done("echo", "bob", text="b")
        bob.find(".fresh", "1 new")
        self.assertEqual(bob.run(ROWS), [first])
        bob.click(".fresh")
        self.assertEqual(bob.run(TICKED), [first])
        bob.click(".tabs a[data-status=succeeded]")
        wait_until(lambda: not bob.run(TICKED), what="that nothing is ticked")
        self.assertFalse(bob.run("return document.querySelector('.picked').checkVisibility()"))

    def test_a_key_ticks_the_row_that_has_the_focus(self):
        numbers = [self.done("echo", "bob", text=text) for text in "abc"]
        bob = self.open("bob")
        bob.find(".list tbody a")
        bob.press("j", "j", "x", "j", "x")
        bob.see("2 selected", ".picked")
        self.assertEqual(bob.run(TICKED), numbers[:2])
        bob.click(self.box(numbers[0]))
        bob.press("k", "x")                     # a box that has the focus stands in nobody's way
        wait_until(lambda: not bob.run(TICKED), what="that nothing is ticked")

    def test_the_bar_leads_to_all_that_match(self):
        self.program("bob").post("/api/tasks", [
            {"function": "echo", "arguments": {"text": "a"}, "delay": 600} for _ in range(53)])
        bob = self.open("bob", "#/tasks?function=echo")
        bob.click("thead input")
        bob.see("50 selected", ".picked")
        bob.click(".picked button", "All 53 that match…")
        bob.click("dialog button", "Delete 53")
        bob.click("dialog .question button", "No")
        bob.click("dialog button", "Delete 53")
        bob.click(".question button", "Delete 53")
        bob.see("53 tasks were deleted.")
        self.assertEqual(self.program("bob").get("/api/tasks?counts=1").json["counts"]["all"], 0)

    def test_failures_are_grouped_and_retried_by_group(self):
        for text in ("first", "second"):
            self.done("fail", "bob", text=text)
        bob = self.open("bob", "#/tasks?status=failed")
        bob.see("ValueError, the newest: second", ".works")
        bob.click("button", "Retry these: fail, ValueError")
        bob.see("fail · ValueError", "dialog")
        bob.find("dialog button", "Retry 2")
        self.assertNotIn("Delete", bob.text("dialog"))      # it was not asked for
        bob.click("dialog button", "Retry 2")
        bob.see("2 tasks were retried.")
        bob.go("#/tasks?status=failed")
        bob.click(".works a", "fail")
        bob.see("ValueError ✕", ".chips")
        bob.click(".chips a")
        wait_until(lambda: "error=" not in bob.run("return location.hash"), what="the filter's end")

    def test_all_that_matches_and_what_is_ticked_are_files(self):
        numbers = [self.done("echo", "bob", text=text) for text in "abc"]
        bob = self.open("bob", "#/tasks?sort=-duration&function=echo")
        bob.click(self.box(numbers[1]))
        bob.see("1 selected", ".picked")
        fetch = """const [link, done] = arguments;
            fetch(document.querySelector(link).href).then((answer) => answer.text()).then(done)"""
        bob.see("The selected tasks as a file:", ".pager + .help")
        ticked = bob.ask("POST", "/execute/async", {"script": fetch, "args": [".pager + .help a"]})
        self.assertEqual([line.split(",")[0] for line in ticked.splitlines()][1:], [str(numbers[1])])
        bob.click(".picked button", "Clear")
        bob.see("All that match as a file:", ".pager + .help")
        whole = bob.ask("POST", "/execute/async", {"script": fetch, "args": [".pager + .help a:last-child"]})
        self.assertEqual([json.loads(line)["id"] for line in whole.splitlines()], numbers[::-1])

    def test_on_a_phone_the_first_row_begins_within_360_pixels(self):
        self.done("echo", "ana", text="a word " * 40)
        self.add("echo", "bob", {"delay": 600}, text="b")
        ana = self.open("ana")
        ana.emulate("Emulation.setDeviceMetricsOverride", **PHONE)
        ana.open_list()
        ana.see("a word", ".list tbody")
        top, width, _, _ = ana.run(MEASURES)
        self.assertLessEqual(top, 360)
        self.assertLessEqual(width, 390)
        ana.click("button", "Filters")
        self.assertTrue(ana.run("return document.querySelector('[name=function]').checkVisibility()"))
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_on_a_phone_the_chosen_tab_is_in_sight(self):
        self.done("fail", "bob", text="no")
        bob = self.open("bob")
        bob.emulate("Emulation.setDeviceMetricsOverride", **PHONE)
        bob.go("#/tasks?status=failed")
        bob.see("fail", ".list tbody")
        wait_until(lambda: bob.run("return document.querySelector('.tabs [aria-current]')"
                                   ".getBoundingClientRect().right") < 390, what="the chosen tab in sight")
        bob.emulate("Emulation.clearDeviceMetricsOverride")

    def test_boxes_are_large_enough_to_touch(self):
        self.done("echo", "bob", text="a")
        bob = self.open("bob")
        bob.find(".list tbody a")
        sizes = "return [...document.querySelectorAll('.pick input')].map((one) => one.offsetWidth)"
        for screen in (WIDE, PHONE):
            bob.emulate("Emulation.setDeviceMetricsOverride", **screen)
            self.assertGreaterEqual(bob.run(sizes)[-1], 24)
        bob.emulate("Emulation.clearDeviceMetricsOverride")

    def test_more_filters_come_below_and_move_nothing_beside_them(self):
        self.done("echo", "ana", text="a")
        ana = self.open("ana")
        wait_until(lambda: ana.count("[name=function] option") > 1, what="the functions")
        before = ana.run(PLACES)
        ana.click("button", "Filters")
        ana.find(".more")
        self.assertEqual(ana.run(PLACES), before)

    def test_on_a_wide_screen_the_list_is_as_wide_as_what_is_in_it(self):
        self.done("echo", "ana", text="a word " * 40)
        ana = self.open("ana")
        ana.emulate("Emulation.setDeviceMetricsOverride", **WIDE)
        ana.open_list()
        ana.see("a word", ".list tbody")
        _, width, table, _ = ana.run(MEASURES)
        self.assertGreater(table, 1200)
        self.assertLessEqual(width, 1920)
        for width in (1180, 1100, 1000, 800, 700, 641):
            ana.emulate("Emulation.setDeviceMetricsOverride", **{**WIDE, "width": width})
            wait_until(lambda most=width - 48: ana.run(MEASURES)[2] <= most, what="a narrower table")
            self.assertLessEqual(ana.run(MEASURES)[1], width)
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_who_has_no_task_sees_neither_tabs_nor_filters(self):
        bob = self.open("bob")
        bob.see("No task yet")
        self.assertFalse(bob.run("return document.querySelector('.tabs').checkVisibility()"))
        self.assertFalse(bob.run("return document.querySelector('.filters').checkVisibility()"))
        self.add("echo", "bob", text="a")
        bob.see("echo", ".list")
        self.assertTrue(bob.run("return document.querySelector('.tabs').checkVisibility()"))

    def test_admins_see_whose_tasks_these_are(self):
        self.done("echo", "bob", text="a")
        ana, bob = self.open("ana"), self.open("bob")
        ana.see("bob", ".list td.who")
        bob.find(".list tbody a")
        self.assertEqual(bob.count(".list .who"), 0)


if __name__ == "__main__":
    unittest.main()
