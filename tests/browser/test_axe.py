"""Every view is open to everybody: axe-core finds nothing in light, dark (colours) and on a phone."""
import unittest

from tests.helpers.busy import BusyCase, from_npm
from tests.helpers.support import wait_until

NARROW = {"width": 320, "height": 844, "deviceScaleFactor": 1, "mobile": True}
WIDE = {"width": 1100, "height": 800, "deviceScaleFactor": 1, "mobile": False}
COLOURS = ["color-contrast", "link-in-text-block"]      # in the dark nothing else is another
LOOKS = {"light": (WIDE, "light", None), "dark": (WIDE, "dark", COLOURS), "phone": (NARROW, "light", None)}
AXE = """return axe.run(document, {resultTypes: ["violations"], ...(arguments[0] && {runOnly: arguments[0]})})
    .then(({ violations }) => violations.map(
        ({ id, nodes }) => id + ": " + nodes.map(({ target }) => target).join(", ")))"""


class Axe(BusyCase):

    @classmethod
    def setUpClass(cls):
        cls.axe = from_npm("axe-core/axe.min.js").read_text("utf-8")
        super().setUpClass()

    def check(self, browser, view):
        """No violation, however one looks at it."""
        browser.run(self.axe)
        for look, (screen, scheme, rules) in LOOKS.items():
            browser.emulate("Emulation.setDeviceMetricsOverride", **screen)
            browser.emulate("Emulation.setEmulatedMedia", features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"}])
            with self.subTest(view, look=look):
                self.assertEqual(browser.run(AXE, rules), [])

    def visit(self, browser, address, heading=None):
        """Open a view, and wait until all of it is there."""
        browser.go(address)
        browser.find("h1", heading)
        wait_until(lambda: not browser.count(".busy"), what="the end of loading")
        wait_until(lambda: browser.count("link[href='static/pages.css']"), what="its style")

    def test_what_everybody_sees(self):
        nobody = self.open()
        self.visit(nobody, "#/tasks", "Log in to jobqueue")
        self.check(nobody, "the log-in")
        self.visit(nobody, "#setup=", "A new admin password")
        self.check(nobody, "a new password")
        nobody.click("main button", "Set password")
        nobody.find("[aria-invalid]")
        self.check(nobody, "errors in a form")

    def test_what_an_admin_sees(self):
        ana = self.open("ana")
        for view in ("overview", "overview?range=month", "functions", "functions/report", "activity", "tasks",
                     "tasks?status=failed", "tasks?q=nothing",
                     "tasks/%d" % self.done, "tasks/%d" % self.failed, "tasks/%d" % self.running,
                     "tasks/999999", "new", "new/report", "new/report?many=1", "new/crop", "schedules",
                     "schedules/%d" % self.schedule, "schedules/new?function=report", "queues",
                     "queues/default", "queues?new=1", "workers", "users", "settings",
                     "settings/host", "alerts", "account"):
            self.visit(ana, "#/" + view)
            self.check(ana, view)

    def test_dialogs_and_what_is_asked_in_place(self):
        ana = self.open("ana")
        self.visit(ana, "#/tasks", "Tasks")
        ana.press("?")
        ana.find("dialog")
        self.check(ana, "the keys")
        ana.press("Escape")
        ana.click("tbody .pick input")
        self.check(ana, "selected tasks")
        ana.click(".picked [aria-haspopup]")
        ana.see("Delete", "dialog")
        self.check(ana, "actions on all that match")
        self.visit(ana, "#/overview")
        ana.click(".charts + details summary")
        ana.run("document.querySelector('.keys').focus()")
        ana.press("Left")
        ana.see("so far", ".reading")
        self.check(ana, "a chart that is read")
        ana.click("button", "Retry these: letter, ValueError")
        ana.see("Retry 1", "dialog")
        self.check(ana, "what failed together")
        self.visit(ana, "#/tasks/%d" % self.done)
        ana.see("Oslo", ".files table")
        ana.click("button", "Times")
        ana.type("[type=search]", "colour")
        ana.see("1 of 16", ".search")
        self.check(ana, "a log that is searched, with times and colours")
        ana.click("main button", "Delete")
        ana.see("Delete #%d?" % self.done)
        self.check(ana, "a question")
        self.visit(ana, "#/new/report")
        ana.click("main summary")
        self.check(ana, "options")
        ana.click("header summary")
        self.check(ana, "the menu")

    def test_alerts_and_messages(self):
        self.site._insert("alert", {"code": "failed", "subject": "letter: ValueError x", "count": 2,
                                    "text": "ValueError: x (task 2)", "opened_at": 0, "seen_at": 0})
        self.site.settings(alert_mail="ops@example.org")
        self.addCleanup(self.site.settings, alert_mail="")
        ana = self.open("ana")
        self.visit(ana, "#/alerts")
        ana.see("ops@example.org", "main")
        ana.click("main button", "Mute…: letter failed")
        self.check(ana, "an alert that is being muted")
        self.visit(ana, "#/settings?q=Alerts")
        self.check(ana, "settings of messages")
        self.visit(ana, "#/tasks/%d" % self.running)
        ana.click("main button", "Tell me when it is done")
        ana.find("main button", "Do not tell me")
        self.check(ana, "a task that will be told")
        self.visit(ana, "#/new/report")
        ana.choose("notify", "end")
        self.check(ana, "a form with mail")

    def test_a_fault_is_found(self):
        ana = self.open("ana")
        self.visit(ana, "#/tasks", "Tasks")
        ana.run(self.axe)
        ana.run("document.querySelector('main').append(document.createElement('img'))")
        self.assertEqual(ana.run(AXE), ["image-alt: img"])
        self.assertEqual(ana.run(AXE, COLOURS), [])
        ana.run("document.querySelector('h1').style.cssText = 'color: #ddd; background: #fff'")
        self.assertEqual(ana.run(AXE, COLOURS), ["color-contrast: h1"])


if __name__ == "__main__":
    unittest.main()
