"""The page of alerts in a real Chromium: the bell, muting, who is told, users' addresses."""
import time

from tests.helpers.browser import BrowserTestCase


class AlertsPage(BrowserTestCase):

    EMPTY = ("alert", "delivery")

    def open_alert(self):
        now = time.time()
        self.site._insert("alert", {
            "code": "failed", "subject": "report: ValueError: x", "text": "<b>report</b> said x",
            "count": 3, "opened_at": now, "seen_at": now})

    def test_the_bell_rings_and_an_alert_can_be_muted(self):
        self.open_alert()
        ana = self.open("ana")
        ana.see("Alerts (1)", "header")
        ana.click("#bell")
        ana.see("report failed", "main")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=660, height=700, deviceScaleFactor=1,
                    mobile=False)
        self.assertLess(ana.run("return document.querySelector('.plain time').offsetHeight"), 30)
        ana.emulate("Emulation.clearDeviceMetricsOverride")
        ana.see("<b>report</b> said x 3 times.", "main")
        ana.click("main button", "Mute until it ends")
        ana.see("Muted until it ends", "main")
        ana.see_no("Alerts (1)", "header")
        ana.click("main button", "Unmute")
        ana.see("Alerts (1)", "header")

    def test_on_a_phone_the_chosen_page_stays_in_sight_when_the_bell_rings(self):
        ana = self.open("ana")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1,
                    mobile=True)
        self.open_alert()
        ana.go("#/settings")
        ana.see("Alerts (1)", "header")
        self.assertLessEqual(ana.run("return document.querySelector('header [aria-current]')"
                                     ".getBoundingClientRect().right"), 374.5)
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_users_have_no_bell(self):
        bob = self.open("bob")
        bob.see("Tasks", "header")
        self.assertNotIn("Alerts", bob.text("header"))

    def test_where_nothing_is_wrong_that_is_said(self):
        ana = self.open("ana", "#/alerts")
        ana.see("Nothing is wrong.", "main")
        self.assertEqual([ana.run("return arguments[0].checkVisibility()", table)
                          for table in ana.run("return [...document.querySelectorAll('main table')]")],
                         [False] * 3)
        ana.click("main a", "settings")
        ana.find("h1", "Settings")

    def test_an_admin_enters_an_address_and_its_user_removes_it(self):
        ana = self.open("ana", "#/account")
        ana.type("[name=email]", "ana@example.org")
        ana.click("main button", "Save address")
        ana.see("Mail about your tasks goes there.")
        self.site.run("user", "set", "bob", "--email", "bob@example.org")
        bob = self.open("bob", "#/account")
        bob.see("Mail about tasks added with notify goes to bob@example.org.", "main")
        bob.click("main button", "Remove address")
        bob.click(".question button", "Remove address")
        bob.see("You have no address now.")
        self.assertEqual(
            [self.site.value("SELECT email FROM user WHERE name='%s'" % name) for name in ("ana", "bob")],
            ["ana@example.org", None])
