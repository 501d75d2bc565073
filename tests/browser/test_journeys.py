"""Five journeys of newcomers, in Chromium and in Firefox: nobody tells them what to do but the page."""
import re
import unittest

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.firefox import FirefoxTestCase
from tests.helpers.support import PASSWORD, wait_until


class Journeys:
    """From the printed link on, by what one sees: no address is typed but that link."""

    TASKS = TASKS
    USERS = False

    def test_five_journeys(self):
        ana = self.becomes_the_first_admin()
        number = self.adds_a_task_by_its_form(ana)
        self.watches_it_and_stops_it(ana, number)
        self.retries_what_failed_and_deletes_it(ana)
        self.plans_one_for_every_day(ana)

    def becomes_the_first_admin(self):
        """The link, a name and a password are enough."""
        said = "".join(self.site.server.stdout.readline() for _ in range(3))
        ana = self.open()
        ana.go(re.search(r"#setup=\S+", said)[0])
        ana.see("Welcome to jobqueue")
        ana.type("[name=name]", "ana")
        ana.type("[name=password]", PASSWORD)
        ana.click("button", "Start")
        ana.find("h1", "Overview")
        return ana

    def adds_a_task_by_its_form(self, ana):
        """What is missing is said beside its field; then the task's page opens."""
        ana.click("a", "New task")
        ana.click("a[href='#/new/report']")
        ana.click("button", "Add task")
        ana.see("Please fill this in.")
        ana.type("[name='arguments.city']", "Oslo")
        ana.click("button", "Add task")
        return self.number_in_address(ana)

    def watches_it_and_stops_it(self, ana, number):
        """Progress and log come by themselves; what runs is stopped only after a question."""
        ana.see("halfway there")
        ana.see("writing about Oslo")
        self.pause(1.1)                 # who presses at once meant the button before
        ana.click("button", "Stop")
        ana.see("Stop %d?" % number)
        ana.click(".question button", "Stop")
        ana.see("cancelled", ".sentence")
        self.assertEqual(self.site.json("show", number)["status"], "cancelled")

    def retries_what_failed_and_deletes_it(self, ana):
        """The list shows what failed and why."""
        number = self.site.add("fail", text="no paper")
        ana.click("header a", "Tasks")
        ana.click(".tabs a[data-status=failed]")
        ana.see("ValueError: no paper", "table.list")
        ana.click("table.list a", "fail no paper")
        ana.see("ValueError: no paper", ".code")
        wait_until(lambda: self.attempts(number) == 1)
        ana.click("button", "Retry")
        wait_until(lambda: self.attempts(number) == 2, what="another attempt")
        ana.see("failed", ".sentence")
        ana.click("button", "Delete")
        ana.click(".question button", "Delete")
        ana.find("h1", "Tasks")
        self.assertEqual(self.site.rows("SELECT id FROM task WHERE id=?", (number,)), [])

    def attempts(self, number):
        """How often it ran."""
        task = self.site.json("show", number)
        return task["attempts"] if task["status"] == "failed" else None

    def plans_one_for_every_day(self, ana):
        """A schedule with its preview; run at once, then deleted."""
        (self.site.home / "go on").touch()
        ana.click("header a", "Schedules")
        ana.see("No schedule yet")
        ana.click("a", "New schedule")
        ana.click("main a[href$=report]")
        ana.see("Every day at 01:00", ".preview")
        ana.type("[name='arguments.city']", "Bergen")
        ana.click("button", "Add schedule")
        self.number_in_address(ana)
        ana.click("button", "Run now")
        ana.see("succeeded", ".columns")
        ana.click("button", "Delete")
        ana.click(".question button", "Delete")
        ana.see("No schedule yet")

    def number_in_address(self, browser):
        """The id of the task or schedule that is shown."""
        wait_until(lambda: re.search(r"/\d+$", browser.run("return location.hash")), 60, "its page")
        return int(browser.run("return location.hash").split("/")[-1])


class InChromium(Journeys, BrowserTestCase):
    """In Chromium, and with it Edge, Opera and others."""


class InFirefox(Journeys, FirefoxTestCase):
    """In Firefox, as Debian has it."""


if __name__ == "__main__":
    unittest.main()
