"""The page in a real Chromium: schedules, queues, order, many tasks at once."""
import unittest

from tests.helpers.browser import ELEMENT, BrowserTestCase
from tests.helpers.support import wait_until

TASKS = '''
import time
from enum import Enum
from pathlib import Path
from jobqueue import current_task, task

class Colour(Enum):
    RED = 1
    DARK_BLUE = 2

@task
def paint(colour: Colour, other: Colour = None) -> str:
    return str(colour)

@task
def report(city: str, pages: int = 3, month: str = "may") -> dict:
    """Write the monthly report of a city."""
    return {"city": city, "pages": pages}

@task
def fail(text: str):
    raise ValueError(text)

@task
def wait(name: str):
    while not Path(name).exists():
        time.sleep(0.05)

@task(max_retries=1, retry_delay=0)
def twice(name: str):
    print("printed by attempt", current_task().attempt)
    if current_task().attempt == 1:
        raise ValueError("again")
    wait(name)

@task
def letter(text: str, city: str = "Oslo", lines: list[str] = None, **more):
    pass
'''
# What the page's own fields would damage, or have no place for.
LETTER = {"text": "line 1\nline 2", "city": "", "lines": ["a b\nc", " d"], "extra": 7}
CHOSEN = {"on_crash": "fail", "retry_delay": 5}
# From now on no part of a log is read until letGo().
HOLD_LOG = """
const held = new Promise((go) => { window.letGo = go; });
const real = window.fetch;
window.asked = window.answered = 0;
window.fetch = async (path, ...more) => {
  if (!path.includes('/log')) return real(path, ...more);
  window.asked += 1;
  await held;
  const answer = await real(path, ...more);
  window.answered += 1;
  return answer;
};
"""
COUNT = "SELECT count(*) FROM task WHERE function=?"
QUEUE_CHANGES = "SELECT count(*) FROM activity WHERE event='queue_changed'"


class Planning(BrowserTestCase):
    """What runs when, in which order, and how many at once."""

    TASKS = TASKS

    def schedule(self, browser, **given):
        """A schedule for the length of the test; its path."""
        path = "api/schedules/%d" % browser.api("POST", "api/schedules", given)["id"]
        self.addCleanup(browser.api, "DELETE", path)
        return path

    def open_change(self, browser, path):
        """The form that changes a schedule."""
        browser.run("location.hash = arguments[0]", "#%s?change=1" % path[3:])
        browser.find("h1", "Change schedule of letter")

    def test_an_enum_is_chosen_by_its_names(self):
        ana = self.open("ana", "#/new/paint")
        ana.find("h1", "paint")
        shown = ("return [...document.querySelectorAll(`[name='arguments.${arguments[0]}'] option`)]"
                 ".map((one) => one.textContent)")
        self.assertEqual(ana.run(shown, "colour"), ["RED", "DARK_BLUE"])
        self.assertEqual(ana.run(shown, "other"), ["–", "RED", "DARK_BLUE"])
        ana.choose("'arguments.colour'", "1")
        ana.click("button", "Add task")
        task_id = ana.number()
        self.assertEqual(ana.api("GET", "api/tasks/%d" % task_id)["arguments"], {"colour": 2})
        named = {"function": "paint", "arguments": {"colour": "DARK_BLUE"}}
        task_id = ana.api("POST", "api/tasks", named)["id"]
        self.site.wait(task_id)
        ana.go("#/tasks/%d" % task_id)
        ana.click("a", "Run again with changes")
        ana.find("h1", "paint")
        self.assertEqual(ana.run("return document.querySelector(`[name='arguments.colour']`)"
                                 ".selectedOptions[0].textContent"), "DARK_BLUE")

    def test_a_form_leaves_alone_what_was_not_changed_in_it(self):
        ana = self.open("ana")
        options = {**CHOSEN, "remove_on_success": True, "priority": 3}
        rule = "monthly 1 02:00"
        path = self.schedule(ana, function="letter", rule=rule, arguments=LETTER, options=options)
        self.open_change(ana, path)
        ana.click("summary", "Missed runs, overlaps and options")
        ana.type("[name=priority]", "")
        ana.choose("overlap", "allow")
        ana.click("button", "Save")
        ana.see("if the last has not ended: run both at once")
        kept = ana.api("GET", path)
        del options["priority"]
        self.assertEqual([kept["arguments"], kept["options"], kept["rule"]], [LETTER, options, rule])
        self.open_change(ana, path)
        ana.type("textarea[name='arguments.text']", "one\ntwo")
        ana.click("button", "Save")
        ana.see("one\ntwo", "dl")
        self.assertEqual(ana.api("GET", path)["arguments"], {**LETTER, "text": "one\ntwo"})

    def test_a_task_runs_again_as_it_was_but_for_what_was_changed(self):
        ana = self.open("ana")
        first = ana.api("POST", "api/tasks", {"function": "letter", "arguments": LETTER, **CHOSEN})
        ana.go("#/new/letter?from=%d" % first["id"])
        ana.click("summary", "Start time and options")
        ana.type("[name=max_retries]", "2")
        ana.click("button", "Add task")
        again = ana.api("GET", "api/tasks/%d" % ana.number())
        self.assertEqual(again["arguments"], LETTER)
        self.assertLessEqual({**CHOSEN, "max_retries": 2}.items(), again.items())

    def test_two_who_change_the_same_do_not_undo_each_others_work(self):
        ana, eve = self.open("ana"), self.open("ana")
        path = self.schedule(ana, function="letter", rule="daily 01:00", arguments=LETTER)
        self.open_change(ana, path)
        eve.api("PATCH", path, {"rule": "daily 05:00", "arguments": {"text": "new"}})
        ana.click("summary", "Missed runs, overlaps and options")
        ana.type("[name=max_retries]", "3")
        ana.click("button", "Save")
        ana.see("max retries 3")
        kept = eve.api("GET", path)
        self.assertEqual([kept["rule"], kept["arguments"]], ["daily 05:00", {"text": "new"}])
        queue = "api/queues/post"
        ana.api("POST", "api/queues", {"name": "post", "max_running": 2})
        self.addCleanup(eve.api, "DELETE", queue)
        ana.go("#/queues/post")
        ana.find("[name=rate]")
        eve.api("PATCH", queue, {"max_running": None, "rate": {"count": 5, "seconds": 60}})
        ana.type("[name=machines]", "a")
        ana.click("button", "Save")
        ana.see("5 in 1 min\nmachine a", ".queues")
        noted = self.site.value(QUEUE_CHANGES)
        ana.click("a", "Change post")
        ana.click("button", "Save")                     # nothing was changed, and nothing is sent
        ana.see("5 in 1 min\nmachine a", ".queues")
        self.assertEqual(self.site.value(QUEUE_CHANGES), noted)
        self.assertIsNone(eve.api("GET", queue)["max_running"])

    def test_a_question_about_a_schedule_stays_while_it_runs(self):
        ana = self.open("ana")
        path = self.schedule(ana, function="report", rule="every 1s", overlap="allow",
                             arguments={"city": "Vik"})
        ana.go("#%s" % path[3:])
        ana.click("button", "Delete")
        runs = ana.count(".timeline .task")
        wait_until(lambda: ana.count(".timeline .task") > runs + 1, what="two more runs on the page")
        self.assertEqual(ana.focused(), "No")
        ana.press("Enter")
        self.assertEqual(ana.focused(), "Delete")
        ana.api("PATCH", path, {"paused": True})
        ana.find("button", "Resume")
        self.assertEqual(ana.run("return document.activeElement.tagName"), "H1")

    def test_the_log_of_another_attempt_is_shown_once(self):
        number = self.add("twice", "bob", name="gone")
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.see("printed by attempt 2", ".log")
        bob.run(HOLD_LOG + "const list = document.querySelector('select[aria-label=Attempt]');"
                "list.value = '1'; list.dispatchEvent(new Event('change'));")
        wait_until(lambda: bob.run("return asked") > 1, what="a look at the log besides the choice")
        bob.run("letGo()")
        wait_until(lambda: bob.run("return answered") > 2, what="all parts of the log")
        self.assertEqual(bob.text(".log").count("printed by attempt 1"), 1)
        (self.site.home / "gone").touch()

    def test_a_schedule_from_its_form_to_its_end(self):
        bob = self.open("bob")
        bob.click("a", "Schedules")
        bob.see("No schedule yet")
        bob.click("a", "New schedule")
        bob.click("main a[href$=report]")
        bob.type("[name=zone]", "Europe/Oslo")
        self.a_rule_is_shown_before_it_is_kept(bob)
        bob.choose("kind", "weekly")
        bob.see("Every Monday at 01:00 (Europe/Oslo)")
        bob.click("label", "Thu")
        bob.see("Every Monday and Thursday at 01:00 (Europe/Oslo)")
        bob.type("[name='arguments.city']", "Oslo")
        bob.click("button", "Add schedule")
        number = bob.number()
        bob.see("Every Monday and Thursday at 01:00 (Europe/Oslo)")
        bob.see("Next runs Europe/Oslo")
        self.assertEqual(bob.count(".slots li"), 10)
        self.assertIn("Next run %s Europe/Oslo, " % bob.text(".slots li span"), bob.text(".lead"))
        bob.click("button", "Run now")
        bob.see("succeeded", ".columns")
        self.it_is_paused_and_resumed(bob, number)
        self.it_is_changed(bob, number)
        bob.click("button", "Delete")
        bob.click(".question button", "Delete")
        bob.see("No schedule yet")
        self.assertEqual(self.site.rows("SELECT id FROM schedule"), [])

    def test_every_weekday_at_7_takes_seven_clicks(self):
        bob = self.open("bob", "#/overview")
        bob.click("a", "Schedules")
        bob.click("a", "New schedule")
        bob.click("main a[href$=report]")
        bob.click("button", "Mon–Fri")
        bob.click("[name=time]")
        bob.run("for (const one of document.querySelectorAll('[name=time]')) one.value = '07:00';"
                "document.querySelector('.rule').dispatchEvent(new Event('input'))")
        bob.click("[name='arguments.city']")
        bob.type("[name='arguments.city']", "Oslo")
        bob.see("Every Monday to Friday at 07:00", ".preview")
        for words, kind, days in (("Weekends", "weekly", ["sat", "sun"]), ("Every day", "daily", []),
                                  ("Mon–Fri", "weekly", ["mon", "tue", "wed", "thu", "fri"])):
            bob.click("button", words)
            self.assertEqual(bob.run("return [document.querySelector('[name=kind]').value, [...document."
                                     "querySelectorAll('[name=days]:checked')].filter((one) => "
                                     "one.checkVisibility()).map((one) => one.value)]"), [kind, days])
            self.assertEqual(bob.text("[aria-pressed=true]"), words)
        bob.click("button", "Add schedule")
        self.addCleanup(bob.api, "DELETE", "api/schedules/%d" % bob.number())
        bob.see("Every Monday to Friday at 07:00", ".sentence")
        self.assertEqual(bob.run("return [...document.querySelectorAll('.doing .button')].map("
                                 "(one) => one.classList.contains('apart'))"), [False, False, False, True])

    def test_the_list_begins_with_the_next_run_and_shows_the_last_ones(self):
        bob = self.open("bob")
        paths = [self.schedule(bob, function=function, rule=rule, arguments=arguments, overlap="allow")
                 for function, rule, arguments in (
                     ("report", "yearly 01-01 00:00", {"city": "Vik"}), ("fail", "every 3h", {"text": "no"}),
                     ("letter", "every 2h", {"text": "a"}))]
        bob.api("PATCH", paths[2], {"paused": True})
        for _ in range(2):
            for path in paths[:2]:
                self.site.wait(bob.api("POST", path + "/run")["id"])
        bob.go("#/schedules")
        bob.see("fail", ".schedules")
        self.assertEqual(bob.run("return [...document.querySelectorAll('.schedules th a')].map("
                                 "(one) => one.textContent)"), ["fail", "report", "letter"])
        bob.see("The last 2: 2 failed", ".schedules")
        bob.see("The last 2: 0 failed", ".schedules")
        self.assertEqual(bob.run("return [...document.querySelectorAll('.dots a')].map("
                                 "(one) => one.dataset.state)"), ["failed"] * 2 + ["succeeded"] * 2)
        bob.click(".dots a")
        bob.see("ValueError", "main")

    def a_rule_is_shown_before_it_is_kept(self, bob):
        """In words, with the next ten times; what is wrong, and days on which clocks change, are told."""
        bob.see("Every day at 01:00 (Europe/Oslo)", ".preview")
        self.assertEqual(bob.count(".preview li"), 10)
        bob.choose("kind", "cron")
        bob.type("[name=cron]", "30 2 * mar,oct sunL")
        bob.see("last Sunday of March and October", ".preview")
        bob.see("the clocks go forward on this day", ".preview")
        bob.type("[name=cron]", "30 2 31 feb *")
        bob.see("never comes", ".bad .preview")

    def it_is_paused_and_resumed(self, bob, number):
        """Everybody sees who did it and why."""
        bob.click("button", "Pause")
        self.assertEqual(bob.focused(), "why")
        bob.type("[name=why]", "summer break")
        bob.press("Enter")
        bob.see(": summer break")
        ana = self.open("ana", "#/schedules")
        ana.see("summer break", ".schedules")
        ana.see("bob", ".schedules th .who")
        ana.click("a[href='#/schedules/%d']" % number)
        ana.click("button", "Resume")
        ana.see("Next run")
        bob.see("Next run")

    def it_is_changed(self, bob, number):
        """The form holds what is so far."""
        bob.click("a", "Change")
        bob.find("[name='arguments.city']")
        self.assertEqual(bob.run("return document.querySelector(\"[name='arguments.city']\").value"), "Oslo")
        self.assertEqual(bob.run("return [...document.querySelectorAll('[name=days]:checked')]"
                                 ".map((e) => e.value)"), ["mon", "thu"])
        bob.choose("kind", "every")
        bob.see("Every 15 minutes")
        bob.click("button", "Save")
        bob.find("p.sentence", "Every 15 minutes")
        self.assertEqual(bob.number(), number)

    def test_a_queue_with_limits_is_made_paused_resumed_and_deleted(self):
        ana = self.open("ana")
        ana.click("a", "Queues")
        ana.click("a", "New queue")
        for name, value in (("name", "mail"), ("max_running", "2"), ("rate", "500"), ("machines", "a, b")):
            ana.type("[name=%s]" % name, value)
        ana.click("button", "Add queue")
        ana.see("at most 2 at once\n500 in 1 h\nmachines a, b", ".queues")
        ana.click("a", "Change mail")
        ana.type("[name=machines]", "")
        ana.click("button", "Save")
        ana.see_no("machines a, b")
        row = "tr[data-key=mail]"
        ana.click(row + " button", "Pause")
        ana.type("[name=why]", "the printer is broken")
        ana.click(row + " form button", "Pause")
        ana.see(": the printer is broken", row + " td:nth-child(2)")
        number = self.add("report", "bob", {"queue": "mail"}, city="Vik")
        ana.see("oldest waits", row)
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.see("The queue mail is paused by ana: the printer is broken.", ".sentence")
        bob.go("#/queues")
        bob.see("the printer is broken")
        self.assertEqual(bob.count("main button, main .button"), 0)
        bob.click(row + " a")
        bob.see("Vik", "table.list")
        bob.find("[name=queue]")
        self.assertEqual(bob.run("return document.querySelector('[name=queue]').value"), "mail")
        ana.click(row + " button", "Resume")
        bob.see("succeeded", "table.list tbody")
        ana.see_no("oldest waits", row)
        self.site.run("delete", number)
        ana.click(row + " button", "Delete")
        ana.click(".question button", "Delete")
        ana.see_no("mail", ".queues")

    def choose_all(self, browser):
        """Open the dialog about all tasks that match."""
        browser.click("thead input")
        browser.click(".picked [aria-haspopup]")

    def test_all_that_match_are_retried_and_deleted_once_their_number_is_confirmed(self):
        fifty = self.program("bob").post("/api/tasks", [
            {"function": "fail", "arguments": {"text": "no"}} for _ in range(51)]).json["ids"]
        numbers = [*fifty, self.add("fail", "eve", text="no")]
        self.site.wait_for_all(numbers)
        bob = self.open("bob", "#/tasks?function=fail&status=failed")
        self.choose_all(bob)
        bob.see("fail · failed", "dialog")
        bob.click("dialog button", "Retry 51")
        bob.see("51 tasks were retried.")
        self.site.wait_for_all(numbers)
        self.assertEqual([attempts for attempts, in self.site.rows(
            "SELECT attempts FROM task WHERE function='fail' ORDER BY id")], [2] * 51 + [1])
        bob.go("#/tasks?function=fail&status=failed")
        self.choose_all(bob)
        bob.click("dialog button", "Delete 51")
        bob.find(".question")
        bob.run("location.hash = '#/queues'")           # what was asked belongs to the page it was asked on
        bob.find("h1", "Queues")
        self.assertEqual(bob.count("dialog"), 0)
        bob.go("#/tasks?function=fail&status=failed")
        self.choose_all(bob)
        bob.click("dialog button", "Delete 51")
        self.site.wait(self.add("fail", "bob", text="no"))      # more match than the user confirmed
        bob.click(".question button", "Delete 51")
        bob.see("52 tasks match and can be changed now", "dialog")
        bob.click("dialog button", "Delete 52")
        bob.click(".question button", "Delete 52")
        bob.see("52 tasks were deleted.")
        bob.see("No task matches")
        self.assertEqual(self.site.value(COUNT, ("fail",)), 1)

    def test_one_task_per_line_of_a_table(self):
        bob = self.open("bob", "#/new/report")
        bob.click("a", "Add many (CSV)")
        bob.type("textarea", "city;pages;month\nOslo;1;june\n\"Vik; west\";x;\n")
        bob.see("Row 3, pages: This is not a number: x")
        bob.see("✕ 3\tVik; west\tx", "main table")
        self.assertFalse(bob.run("return arguments[0].checkVisibility() && !arguments[0].disabled",
                                 bob.find("button", "Fix the error first")))
        bob.type("textarea", "Town,pages\nOslo,1\n")
        bob.see("Row 1: there is no parameter “Town”.")
        bob.type("textarea", "city,pages\n")
        bob.click("button", "Add tasks")
        bob.see("There is no row below the first one.")
        bob.type("textarea", 'sep=|\ncity|pages\n"Voss, or | so"|2\n')
        bob.see("2\tVoss, or | so\t2", "main table")
        for table in 'city,pages\nOslo,1\n"Vik,2\n', 'city,pages\nOslo,1\n"He said \\"no\\"",2\n':
            bob.type("textarea", table)
            bob.see("Row 3: a quote is not closed, or something follows it.")
        bob.type("textarea", '"city, a, b";pages\nOslo;1\n')
        bob.see("Row 1: there is no parameter “city, a, b”.")
        bob.type("textarea", "Pages; CITY\n1;Oslo\n;Bergen\n")
        bob.see("Bergen", "main table")
        bob.click("button", "Add 2 tasks")
        bob.see("2 tasks added.")
        bob.see("Bergen", "table.list")
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE arguments LIKE '%Bergen%'"), 1)

    def test_other_columns_of_a_table_are_more_parameters_where_a_function_takes_them(self):
        bob = self.open("bob", "#/new/letter?many=1")
        bob.type("textarea", "text,colour\nHello,red\n")
        bob.click("button", "Add 1 task")
        bob.see("1 task added.")
        text = self.site.value("SELECT arguments FROM task WHERE function='letter' ORDER BY id DESC LIMIT 1")
        self.assertEqual(text, '{"text":"Hello","colour":"red"}')

    def test_a_file_as_spreadsheets_write_it_is_taken_all_or_none(self):
        path = self.site.home / "rows.csv"
        path.write_bytes("city,pages\r\n".encode() + "Tromsø,7\r\n".encode("cp1252") * 300)
        bob = self.open("bob", "#/new/report?many=1")
        bob.ask("POST", "/element/%s/value" % bob.find("[type=file]")[ELEMENT], {"text": str(path)})
        bob.see("300 tasks, beginning with:")
        self.assertEqual(bob.count("main tbody tr"), 5)
        bob.see("Tromsø", "main tbody")
        bob.click("summary", "Start time and options")
        bob.type("[name=priority]", "101")
        bob.click("button", "Add 300 tasks")
        bob.find("[name=priority][aria-invalid]")
        counted = "SELECT count(*) FROM task WHERE arguments LIKE '%Tromsø%7%'"
        self.assertEqual(self.site.value(counted), 0)
        bob.type("[name=priority]", "")
        bob.click("button", "Add 300 tasks")
        bob.see("300 tasks added.")
        self.assertEqual(self.site.value("SELECT count(*) FROM request"), 1)    # safe to be sent again
        self.assertEqual(self.site.value(counted), 300)

    def test_an_admin_limits_how_many_tasks_of_a_user_wait(self):
        ana = self.open("ana", "#/users")
        ana.click("button", "Change: eve")
        ana.type("[name=max_pending]", "1")
        ana.press("Enter")
        ana.see("at most 1 pending")
        self.add("report", "eve", {"delay": 600}, city="Vik")
        eve = self.open("eve", "#/new/report")
        eve.type("[name='arguments.city']", "Alta")
        eve.click("button", "Add task")
        eve.see("at most 1 of eve's tasks may be pending")

    def test_a_task_says_what_it_waits_for_and_what_waits_for_it(self):
        first = self.add("wait", "bob", name="go")
        bob = self.open("bob", "#/new/report")
        bob.type("[name='arguments.city']", "Alta")
        bob.click("summary", "Start time and options")
        bob.type("[name=after]", "%d, 999999" % first)
        bob.click("button", "Add task")
        bob.see("999999", "[data-field=after] .error")
        bob.type("[name=after]", "#%d" % first)
        bob.type("[name=unique_key]", "alta")
        bob.click("button", "Add task")
        second = bob.number()
        bob.see("waiting\nfor #%d" % first, ".sentence")
        bob.see("unique key alta")
        bob.click("a", "← Tasks")
        bob.see("for #%d" % first, "table.list")
        bob.go("#/tasks/%d" % first)
        bob.see("#%d report" % second)
        bob.click("a", "#%d report" % second)
        bob.see("#%d wait" % first)
        (self.site.home / "go").touch()
        bob.see("Alta", "dl")
        bob.see("succeeded", ".sentence")

    def test_when_a_task_begins_is_told_before_and_after_one_adds_it(self):
        self.site.rows("INSERT INTO queue (name, max_running, created_at) VALUES ('press', 1, 0)")
        for _ in range(30):
            self.site.rows("INSERT INTO activity (at, event, function, queue, seconds) "
                           "VALUES (0, 'succeeded', 'wait', 'default', 1200)")
        bob = self.open("bob")
        first, second = (self.add("wait", "bob", {"queue": "press"}, name="print")
                         for _ in range(2))
        bob.go("#/tasks/%d" % second)
        bob.see("starts in", ".sentence")
        bob.see("minutes", ".sentence")
        bob.go("#/tasks/%d" % first)
        bob.see("ends in", ".sentence")
        bob.go("#/queues")
        bob.see("empty in", "tr[data-key=press]")
        bob.go("#/new/wait")
        bob.see("If you add it now: starts right away", "form")
        bob.click("summary", "Start time and options")
        bob.choose("queue", "press")
        bob.type("[name=priority]", "-1")
        bob.see(" before this one · starts in", "form")
        (self.site.home / "print").touch()
        bob.go("#/tasks/%d" % second)
        bob.see("succeeded", ".sentence")


if __name__ == "__main__":
    unittest.main()
