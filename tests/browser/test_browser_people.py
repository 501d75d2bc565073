"""People in a real Chromium: roles and limits, what a viewer is offered, where one is logged in."""
import unittest

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import PASSWORD, wait_until


class PeopleCase(BrowserTestCase):

    TASKS = TASKS
    EMPTY = ("session",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.site.run("user", "add", "vera", "--role", "viewer", given=PASSWORD)

    def row(self, browser, words):
        """The selector of the row of a table that begins with these words."""
        browser.see(words, "main")
        browser.run("[...document.querySelectorAll('main tbody tr')].find("
                    "(row) => row.innerText.startsWith(arguments[0])).id = 'row'", words)
        return "#row"


class Users(PeopleCase):

    def test_an_admin_changes_what_somebody_may(self):
        ana = self.open("ana", "#/users")
        ana.click("button", "Change: eve")
        ana.type("[name=max_running]", "2")
        ana.choose("role", "viewer")
        ana.click("form button", "Save")
        ana.see("eve was changed.")
        ana.see("viewer at most 2 running", "main tbody")
        row = self.site.rows("SELECT role, max_running, max_pending FROM user WHERE name='eve'")[0]
        self.assertEqual(tuple(row), ("viewer", 2, None))
        ana.click("button", "Change: eve")
        self.assertEqual(ana.run("return document.querySelector('[name=max_running]').value"), "2")
        ana.type("[name=max_running]", "")
        ana.choose("role", "user")
        ana.click("form button", "Save")
        ana.see_no("at most 2 running", "main tbody")
        row = self.site.rows("SELECT role, max_running FROM user WHERE name='eve'")[0]
        self.assertEqual(tuple(row), ("user", None))

    def test_and_logs_them_out_everywhere(self):
        ana, eve = self.open("ana"), self.open("eve")
        ana.go("#/users")
        row = self.row(ana, "eve")
        ana.click(row + " summary")
        ana.click(row + " button", "New password")
        ana.click(row + " form button", "Cancel")
        self.assertEqual(ana.run("return document.activeElement.tagName"), "SUMMARY")
        ana.press("Enter")
        ana.find(row + " .menu[open]")
        ana.press("Escape")
        self.assertEqual(ana.count(row + " .menu[open]"), 0)
        ana.press("Enter")
        ana.click(row + " button", "Log out")
        ana.see("Log eve out everywhere?")
        ana.click(".question button", "Log out")
        ana.see("eve is logged out.")
        eve.go("#/queues")
        eve.find("h1", "Log in to jobqueue")

    def test_a_pending_task_says_that_its_owners_others_run(self):
        self.program("ana").patch("/api/users/bob", {"max_running": 1})
        self.addCleanup(self.program("ana").patch, "/api/users/bob", {"max_running": None})
        first, second = (self.add("report", "bob", city=city) for city in ("Oslo", "Vik"))
        wait_until(lambda: self.site.value("SELECT status FROM task WHERE id=?", (first,)) == 1,
                   what="the start of the first")
        bob = self.open("bob", "#/tasks/%d" % second)
        bob.see("The user bob runs at most 1 at once.")
        (self.site.home / "go on").touch()
        self.addCleanup((self.site.home / "go on").unlink)
        bob.see("succeeded", ".sentence")


    def test_a_colleague_is_invited_with_three_clicks_and_chooses_a_password(self):
        ana = self.open("ana")
        ana.click("header a", "Users")
        ana.click("button", "Make a link")
        ana.see("It works once, within a day", "main")
        link = ana.text("main pre.code")
        self.assertIn("#invite=jq_", link)
        ana.click(".copy button", "Copy")
        kim = self.open()
        kim.go(link[link.index("#"):])
        kim.find("h1", "Welcome to jobqueue")
        self.assertEqual(kim.focused(), "name")
        kim.type("[name=name]", "kim")
        kim.type("[name=password]", "another horse")
        kim.press("Enter")
        kim.find("h1", "Overview")
        self.assertNotIn("invite", kim.run("return location.href"))
        self.assertEqual(self.site.value("SELECT role FROM user WHERE name='kim'"), "user")
        late = self.open()
        late.go(link[link.index("#"):])
        late.type("[name=name]", "lou")
        late.type("[name=password]", "another horse")
        late.press("Enter")
        late.see("This invitation does not work: it was used or revoked")

    def test_an_invitation_is_revoked(self):
        ana = self.open("ana", "#/users")
        ana.find("button", "Make a link")
        ana.choose("role", "viewer")
        ana.click("button", "Make a link")
        ana.see("It works once", "main")
        ana.click("button", "Revoke")
        ana.click(".question button", "Revoke")
        ana.see("The invitation does not work any more.")
        self.assertEqual(self.site.value("SELECT count(*) FROM token WHERE scope='invitation'"), 0)


class Viewer(PeopleCase):

    def offered(self, browser):
        """What can be pressed on a page, but its menus and what only looks."""
        return browser.run("""
            return [...document.querySelectorAll('main :is(button, a.button, [type=checkbox])')]
                .filter((one) => one.checkVisibility()).map((one) => one.innerText.trim())""")

    def test_everybodys_tasks_are_shown_and_nothing_is_offered_that_changes_them(self):
        failed = self.done("fail", "bob", text="broken")
        self.add("report", "eve", {"delay": 600}, city="Vik")
        schedule = self.program("bob").post("/api/schedules", {
            "function": "send", "arguments": {"city": "Oslo"}, "rule": "daily 03:00"}).json["id"]
        vera = self.open("vera")
        for page, words, offered in (
                ("#/tasks", "broken", ["Filters"]), ("#/overview", "fail", []),
                ("#/tasks/%d" % failed, "ValueError", ["Copy link"]),
                ("#/schedules", "send", []), ("#/schedules/%d" % schedule, "Oslo", []),
                ("#/queues", "default", []), ("#/workers", "Workers", []),
                ("#/activity", "failed", ["Show"])):
            with self.subTest(page=page):
                vera.go(page)
                vera.see(words, "main")
                self.assertEqual(self.offered(vera), offered)
        vera.go("#/tasks/%d" % failed)
        vera.see("ValueError", "main")
        vera.press("r")
        self.assertEqual(self.site.value("SELECT status FROM task WHERE id=?", (failed,)), 3)
        for page in ("#/new/report", "#/schedules/new?function=report", "#/schedules/%d?change=1" % schedule):
            vera.go(page)
            vera.see("Viewers cannot change anything.", "main")
            self.assertEqual(vera.count("main form"), 0)
        for page in ("#/users", "#/settings"):
            self.assertEqual(vera.count("header a[href='%s']:not([hidden] *, [hidden])" % page), 0)

    def test_keys_that_change_something_are_neither_told_nor_heard(self):
        failed = self.done("fail", "bob", text="broken")
        vera, bob = self.open("vera"), self.open("bob")
        for browser, told in ((bob, True), (vera, False)):
            browser.press("?")
            browser.see("next row or task", "dialog")
            keys = browser.run("return [...document.querySelectorAll('dialog kbd')].map((e) => e.innerText)")
            self.assertEqual({key: key in keys for key in "/ncrxhl"},
                             {key: told or key not in "ncrx" for key in "/ncrxhl"})
            browser.press("Escape")
        vera.see("broken", "table.list")
        vera.press("j", "x", "r", "n")
        self.pause(0.5)
        self.assertEqual(vera.run("return location.hash"), "#/tasks")
        self.assertEqual(vera.count("table.list :checked"), 0)
        self.assertEqual(self.site.value("SELECT status FROM task WHERE id=?", (failed,)), 3)

    def test_a_user_is_offered_all_of_that(self):
        failed = self.done("fail", "bob", text="broken")
        bob = self.open("bob")
        bob.see("New task", "main")
        bob.go("#/tasks/%d" % failed)
        bob.find("main button", "Retry")


class Account(PeopleCase):

    def test_one_sees_where_one_is_logged_in_and_logs_out_elsewhere(self):
        here, there = self.open("bob"), self.open("bob")
        here.go("#/account")
        here.see("this browser", "main")
        self.assertEqual(here.run("return [...document.querySelectorAll('main tbody tr')].filter("
                                  "(row) => row.innerText.startsWith('127.0.0.1')).length"), 2)
        here.click("main button", "Log out everywhere else")
        here.see("Only this browser is logged in now.")
        self.assertEqual(self.site.value("SELECT count(*) FROM session WHERE user_id=2"), 1)
        there.go("#/queues")
        there.find("h1", "Log in to jobqueue")
        here.click("main button", "Log out everywhere")
        here.click(".question button", "Log out everywhere")
        here.find("h1", "Log in to jobqueue")
        self.assertEqual(self.site.value("SELECT count(*) FROM session WHERE user_id=2"), 0)

    def test_a_token_for_reading_is_made(self):
        bob = self.open("bob", "#/account")
        bob.type("form [name=name]", "screen")
        bob.choose("scope", "read")
        bob.type("form:has([name=scope]) [name=password]", PASSWORD)
        bob.run("document.querySelector('[name=scope]').form.requestSubmit()")
        bob.see("Copy it now")
        self.assertEqual(self.site.value("SELECT scope FROM token WHERE name='screen'"), "read")


if __name__ == "__main__":
    unittest.main()
