"""Filters of the list and values of a form, saved by name and used again, in a real Chromium."""
import json
import unittest

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import wait_until

TASKS = '''
from jobqueue import task

@task
def report(city: str, pages: int = 3, password: str = "", **more) -> dict:
    return {"city": city, "pages": pages, **more}
'''
PAGE = "return [...document.querySelectorAll('.menu[open] p a')].map((link) => link.innerText)"


class Saved(BrowserTestCase):

    TASKS, EMPTY = TASKS, ("task", "saved")

    def save(self, browser, name):
        """Save what is on the page under this name."""
        browser.click("main .menu summary", "Saved")
        browser.type("main .menu[open] input", name)
        browser.click("main .menu[open] button", "Save")
        browser.see("Saved as %s." % name)

    def value_of(self, browser, parameter):
        """The text in a field of the form; "" without the field."""
        return browser.run("return document.getElementsByName(arguments[0])[0]?.value ?? ''",
                           "arguments." + parameter)

    def add_task(self, browser):
        """Send the form, and wait for the page of the new task."""
        browser.click(".primary", "Add task")
        wait_until(lambda: browser.run("return location.hash").startswith("#/tasks/"), what="the new task")

    def test_a_filter_is_saved_used_and_deleted(self):
        self.done("report", "bob", city="Oslo")
        bob = self.open("bob", "#/tasks?status=succeeded&q=Oslo")
        bob.see("Oslo", ".list tbody")
        self.save(bob, "From Oslo")
        bob.go("#/tasks")
        bob.click("main .menu summary", "Saved")
        bob.click(".menu[open] a", "From Oslo")
        wait_until(lambda: "q=Oslo" in bob.run("return location.hash"), what="the filter")
        self.assertIn("status=succeeded", bob.run("return location.hash"))
        bob.click("main .menu summary", "Saved")
        bob.click(".menu[open] button", "Delete From Oslo")
        bob.see("Delete From Oslo?")
        bob.click(".question button", "Delete")
        bob.see("From Oslo was deleted.")
        bob.click("main .menu summary", "Saved")
        bob.find(".menu[open] input")
        self.assertEqual(bob.run(PAGE), [])

    def test_values_of_a_form_are_saved_without_secrets_and_used_again(self):
        bob = self.open("bob", "#/new/report")
        bob.type("[name='arguments.city']", "Bergen")
        bob.type("[name='arguments.password']", "a secret")
        bob.run("document.querySelector('form details').open = true")
        bob.type("[name='priority']", "-3")
        self.save(bob, "Bergen, later")
        saved = bob.api("GET", "api/saved")["saved"]
        self.assertEqual([row["value"] for row in saved], [
            {"arguments": {"city": "Bergen", "pages": 3, "password": "•••"}, "priority": -3}])
        bob.run("window.onbeforeunload = null; document.querySelector('form').reset()")
        bob.go("#/new/report")
        bob.click("main .menu summary", "Saved")
        bob.click(".menu[open] a", "Bergen, later")
        wait_until(lambda: self.value_of(bob, "city") == "Bergen", what="the saved values")
        self.add_task(bob)
        self.assertEqual([tuple(row) for row in self.site.rows("SELECT arguments, priority FROM task")],
                         [('{"city":"Bergen","pages":3}', -3)])
        bob.go("#/new/report?saved=999999")
        bob.see("There is nothing here")

    def test_what_cannot_be_read_is_said_and_not_saved(self):
        bob = self.open("bob", "#/new/report")
        bob.type("[name='arguments.pages']", "2.5")
        bob.click("main .menu summary", "Saved")
        bob.type("main .menu[open] input", "Wrong")
        bob.click("main .menu[open] button", "Save")
        bob.see("Please use a whole number.")
        self.assertEqual(bob.api("GET", "api/saved")["saved"], [])

    def test_parameters_without_a_name_of_their_own_are_given_as_json(self):
        bob = self.open("bob", "#/new/report")
        bob.type("[name='arguments.city']", "Oslo")
        bob.type("[name='arguments.**']", '{"colour": "red"}')
        self.add_task(bob)
        text = self.site.value("SELECT arguments FROM task ORDER BY id DESC LIMIT 1")
        self.assertEqual(json.loads(text), {"city": "Oslo", "pages": 3, "password": "", "colour": "red"})
        number = self.site.value("SELECT max(id) FROM task")
        bob.go("#/new/report?from=%d" % number)
        wait_until(lambda: "red" in self.value_of(bob, "**"), what="the value of the earlier task")


if __name__ == "__main__":
    unittest.main()
