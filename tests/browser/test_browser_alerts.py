"""Alerts and messages in a real Chromium: the bell, muting, recipients and a test, telling about a task."""
import time

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.mail import MailServer
from tests.helpers.support import wait_until

# A browser that shows notifications: `notes` has them.
NOTIFYING = """
window.notes = [];
window.Notification = class {
  static permission = 'granted';
  static requestPermission = async () => 'granted';
  constructor(title, { body, tag }) { window.notes.push([title, body, tag]); }
};
"""


class AlertsPage(BrowserTestCase):

    TASKS = TASKS
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
        ana.see("<b>report</b> said x · 3 times", "main")
        ana.click("main button", "Mute…: report failed")
        self.assertEqual(ana.focused(), "1 hour: report failed")
        ana.press("Escape")
        self.assertEqual(ana.focused(), "Mute…: report failed")
        ana.click("main button", "Mute…: report failed")
        ana.click("main button", "Until resolved: report failed")
        ana.see("Muted until it is resolved", "main")
        ana.see_no("Alerts (1)", "header")
        ana.click("main button", "Unmute: report failed")
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
        place = ana.run("const { left, right } = document.querySelector('#loud').getBoundingClientRect();"
                        "return [left, right]")
        self.assertTrue(0 < place[0] < place[1] < 390, place)
        ana.click("#loud")
        ana.find("h1", "Alerts")
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
        ana.see("Nobody is told yet. Set up mail, Slack or ntfy.", "main")
        ana.click("main a", "Set up mail, Slack or ntfy")
        ana.find("h1", "Settings")
        self.assertEqual([name for name in ("alert_mail", "mail_server", "mail_user", "mail_from",
                                            "mail_password_file", "alert_webhook", "linger")
                          if not ana.run("return document.querySelector(`[name=${arguments[0]}]`)"
                                         ".checkVisibility()", name)], ["linger"])

    def test_an_admin_enters_an_address_and_its_user_removes_it(self):
        ana = self.open("ana", "#/account")
        ana.type("[name=email]", "ana@example.org")
        ana.click("main button", "Save address")
        ana.see("Mail about your tasks goes there.")
        self.site.run("user", "set", "bob", "--email", "bob@example.org")
        bob = self.open("bob", "#/account")
        bob.see("When a task asks for it, mail goes to bob@example.org.", "main")
        bob.click("main button", "Remove address")
        bob.click(".question button", "Remove address")
        bob.see("You have no address now.")
        self.assertEqual(
            [self.site.value("SELECT email FROM user WHERE name='%s'" % name) for name in ("ana", "bob")],
            ["ana@example.org", None])

    def test_an_alert_leads_to_its_tasks_and_retries_them(self):
        ids = [self.done("fail", text="boom") for _ in range(2)]
        self.assertEqual(self.site.value("SELECT count(*) FROM task WHERE status=3"), 2)
        began = self.site.value("SELECT min(finished_at) FROM task")
        self.site._insert("alert", {
            "code": "failed", "subject": "fail: ValueError boom", "count": 2,
            "text": "ValueError: boom (task %d)" % ids[1],
            "opened_at": began, "seen_at": time.time()})
        ana = self.open("ana", "#/alerts")
        ana.see("fail failed", "main")
        self.assertEqual(ana.text("main th .help"), "ValueError: boom (task %d) · 2 times" % ids[1])
        ana.click("main a", "fail failed")
        ana.find("h1", "Tasks")
        wait_until(lambda: ana.count("main table tbody a") == 2, what="the two tasks")
        ana.go("#/alerts")
        ana.click("main button", "Retry these: fail, ValueError")
        ana.click("dialog button", "Retry 2")
        ana.see("2 tasks were retried.")
        self.site.wait_for_all(ids)
        self.assertEqual(self.site.value("SELECT count(*) FROM activity WHERE event='retried'"), 2)

    def test_from_alerts_to_a_recipient_and_a_test_are_six_clicks(self):
        server = MailServer()
        self.addCleanup(server.close)
        self.addCleanup(self.site.settings, alert_mail="", mail_server="", mail_from="", page_address="")
        ana = self.open("ana", "#/alerts")
        ana.click("main a", "Set up mail, Slack or ntfy")
        ana.type("[name=alert_mail]", "ops@example.org")            # each field is a click
        ana.type("[name=mail_server]", "localhost:%d" % server.port)
        ana.type("[name=mail_from]", "jobs@example.org")
        ana.click("button", "Save")
        ana.see("Saved.")
        ana.click("button", "Send a test")
        ana.see("The test was sent.")
        self.assertEqual(len(server.mails), 1)
        ana.go("#/alerts")
        ana.see("ops@example.org", "main")
        ana.click("main button", "Let them link to " + self.base.rstrip("/"))
        ana.see("Saved.")
        ana.see_no("Messages do not link to this page yet.")
        server.how = "silent"
        ana.click("button", "Send a test")
        ana.see("sending…", "main")
        server.how = "refuse"

    def test_a_task_that_is_there_is_told_by_mail_and_by_the_browser(self):
        self.site.run("user", "set", "bob", "--email", "none")
        number = self.add("report", "bob", city="Oslo")
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.run(NOTIFYING)
        bob.click("main button", "Tell me when it is done")
        bob.see("This browser tells you while a page of this site is open.", "main")
        bob.see("Mail needs your address, which an admin enters.", "main")
        self.assertEqual(self.site.value("SELECT notify FROM task WHERE id=%d" % number), "end")
        bob.go("#/account")
        bob.find("h1", "Account")
        bob.go("#/queues")              # the page is loaded again, and still tells it
        bob.find("h1", "Queues")
        bob.run(NOTIFYING)
        self.site.run("cancel", str(number))
        told = wait_until(lambda: bob.run("return window.notes"), what="a notification")
        self.assertEqual(told, [["report: cancelled", "#%d Oslo" % number, "#/tasks/%d" % number]])

    def test_telling_is_taken_back_and_needs_no_notifications(self):
        self.site.run("user", "set", "bob", "--email", "bob@example.org")
        self.addCleanup(self.site.run, "user", "set", "bob", "--email", "none")
        self.site.settings(mail_server="mail.example.org:587")
        self.addCleanup(self.site.settings, mail_server="")
        wait_until(lambda: self.program("bob").get("/api/session").json["mail"], what="the setting")
        number = self.add("report", "bob", city="Oslo")
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("main button", "Tell me when it is done")
        bob.see("Mail goes to bob@example.org when it has ended.", "main")
        bob.see_no("This browser tells you")
        bob.click("main button", "Do not tell me")
        bob.find("main button", "Tell me when it is done")
        self.assertIsNone(self.site.value("SELECT notify FROM task WHERE id=%d" % number))
        self.site.run("cancel", str(number))
        bob.see_no("Tell me when it is done")

    def test_forms_of_one_of_many_and_of_a_schedule_ask_whether_to_mail(self):
        self.site.run("user", "set", "ana", "--email", "none")
        ana = self.open("ana", "#/new/send")
        ana.type("[name='arguments.city']", "Oslo")
        ana.choose("notify", "failure")
        ana.see("Mail needs your address: see the page Account.", "[data-field=notify]")
        ana.click("button", "Add task")
        first = ana.number()
        ana.see("mail only if it fails", "main")
        ana.go("#/new/send?many=1")
        ana.type("[name=lines]", "city\nBergen\nTurku")
        ana.choose("notify", "end")
        ana.click("button", "Add 2 tasks")
        ana.see("2 tasks added.")
        ana.go("#/schedules/new?function=send")
        ana.type("[name='arguments.city']", "Oslo")
        ana.choose("notify", "end")
        ana.click("button", "Add schedule")
        ana.see("mail when it has ended", "main")
        ana.go("#/schedules/%d?change=1" % ana.number())
        ana.find("[name=notify]")
        self.assertEqual(ana.run("return document.querySelector('[name=notify]').value"), "end")
        self.assertEqual([row["notify"] for row in self.site.rows(
            "SELECT notify FROM task WHERE id>=%d ORDER BY id" % first)], ["failure", "end", "end"])
        self.assertEqual(self.site.value("SELECT options FROM schedule"), '{"notify":"end"}')
