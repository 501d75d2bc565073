"""The page in a real Chromium when requests fail, come late, or are answered by somebody else."""
import json
import unittest

from tests.browser import BrowserTestCase
from tests.support import wait_until
from tests.test_browser import TASKS

# The first requests for a path are not answered by the server, or late: {path: [[status, body], ...]},
# where status 0 is for the server's own answer, `body` milliseconds later.
REFUSE = """
const refused = %s;
window.asked = [];
const real = window.fetch;
window.fetch = async (path, options) => {
  window.asked.push(`${options.method} ${path}`);
  const [status, body] = refused[path.split('?')[0]]?.shift() || [0, 0];
  if (status) return new Response(body, { status });
  await new Promise((go) => setTimeout(go, body));
  return real(path, options);
};
"""


class Refusals(BrowserTestCase):
    """What one failed request leaves out comes later by itself."""

    TASKS = TASKS

    def refuse(self, browser, **refused):
        """From the next load on, these paths below api/ are not answered by the server at first."""
        paths = {"api/" + path: answers for path, answers in refused.items()}
        browser.emulate("Page.enable")
        browser.emulate("Page.addScriptToEvaluateOnNewDocument",
                        source=REFUSE % json.dumps(paths))

    def hurry(self, browser):
        """The page need not wait for its next try."""
        browser.run("window.dispatchEvent(new Event('online'))")

    def options(self, browser, name):
        """What one can choose in a filter."""
        return browser.run("return [...document.querySelectorAll(`[name=${arguments[0]}] option`)]"
                           ".map(({ value }) => value)", name)

    def test_a_filter_gets_its_choices_although_they_could_not_be_read_at_first(self):
        self.site.run("queue", "set", "slow", "--max-running", "1")
        bob = self.open("bob")
        self.refuse(bob, functions=[[500, "{}"]], queues=[[500, "{}"]])
        bob.go()
        bob.find("[name=q]")
        wait_until(lambda: "GET api/functions" in bob.run("return asked"), what="the catalogue's first try")
        self.hurry(bob)
        wait_until(lambda: "report" in self.options(bob, "function"), what="the functions")
        self.hurry(bob)
        wait_until(lambda: "slow" in self.options(bob, "queue"), what="the queues")

    def test_filters_are_made_once_although_one_goes_elsewhere_meanwhile(self):
        bob = self.open("bob")
        self.refuse(bob, queues=[[0, 1000], [0, 1000]])
        bob.go()
        wait_until(lambda: "GET api/queues" in bob.run("return asked"), what="the first look")
        bob.run("location.hash = '#/tasks?status=failed'")
        bob.find(".filters [name=q]")
        wait_until(lambda: bob.run("return asked.filter((one) => one === 'GET api/queues').length") == 2)
        self.pause(1.2)
        self.assertEqual(bob.count(".filters select"), 2)

    def test_the_timeline_comes_although_it_could_not_be_read_at_first(self):
        number = self.site.add("fail", "--owner", "bob", text="x")
        self.site.wait(number)
        bob = self.open("bob")
        self.refuse(bob, activity=[[500, "{}"]])
        bob.go("#/tasks/%d" % number)
        bob.find("h1", "fail x")
        wait_until(lambda: bob.run("return asked.some((path) => path.startsWith('GET api/activity'))"))
        self.hurry(bob)
        bob.see("Timeline")


if __name__ == "__main__":
    unittest.main()
