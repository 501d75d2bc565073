"""The page in a real Chromium when requests fail, come late, or are answered by somebody else."""
import http.client
import json
import re
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import wait_until

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
        self.add("report", "bob", {"delay": 600}, city="Oslo")      # without a task there are no filters
        bob = self.open("bob")
        self.refuse(bob, functions=[[500, "{}"]], queues=[[500, "{}"]])
        bob.go("#/tasks")
        bob.find("[name=q]")
        wait_until(lambda: "GET api/functions" in bob.run("return asked"), what="the catalogue's first try")
        self.hurry(bob)
        wait_until(lambda: "report" in self.options(bob, "function"), what="the functions")
        self.hurry(bob)
        wait_until(lambda: "slow" in self.options(bob, "queue"), what="the queues")

    def test_filters_are_made_once_although_one_goes_elsewhere_meanwhile(self):
        bob = self.open("bob")
        self.refuse(bob, queues=[[0, 1000], [0, 1000]])
        bob.go("#/tasks")
        wait_until(lambda: "GET api/queues" in bob.run("return asked"), what="the first look")
        bob.run("location.hash = '#/tasks?status=failed'")
        bob.find(".filters [name=q]")
        wait_until(lambda: bob.run("return asked.filter((one) => one === 'GET api/queues').length") == 2)
        self.pause(1.2)
        self.assertEqual(bob.count(".filters select"), 2)

    def test_the_timeline_comes_although_it_could_not_be_read_at_first(self):
        number = self.done("fail", "bob", text="x")
        bob = self.open("bob")
        self.refuse(bob, activity=[[500, "{}"]])
        bob.go("#/tasks/%d" % number)
        bob.find("h1", "fail x")
        wait_until(lambda: bob.run("return asked.some((path) => path.startsWith('GET api/activity'))"))
        self.hurry(bob)
        bob.see("Timeline")


class Host(ThreadingHTTPServer):
    """Stands before a server as a host's web server does, and sometimes answers itself."""

    daemon_threads = True

    def handle_error(self, *_):
        """A browser that has gone is no news."""

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Visit)
        self.port = port                # of the server behind it
        self.own = {}                   # {"POST /api/tasks": [(status, headers, body), LOST, ...]}
                                        # an Event holds the next of them back
        self.seen = []                  # what was asked


LOST = "the answer is lost"
NO_LONG_PAUSES = "setInterval(() => dispatchEvent(new Event('online')), 1000)"
BUSY = (503, {"Retry-After": "1", "Content-Type": "text/html"}, "<h1>Resource limit is reached</h1>")


def refusal(status, code, detail):
    """What our own server says."""
    return status, {"Content-Type": "application/problem+json", "Retry-After": "1"}, json.dumps(
        {"status": status, "code": code, "detail": detail})


class Visit(BaseHTTPRequestHandler):
    """One connection to a Host."""

    protocol_version = "HTTP/1.1"

    def pass_on(self):
        """Have it answered, or answer it."""
        name = "%s %s" % (self.command, self.path.split("?")[0])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((name, self.headers.get("Idempotency-Key")))
        answers = self.server.own.get(name)
        own = answers.pop(0) if answers else None
        if isinstance(own, threading.Event):
            own.wait(60)
            own = answers.pop(0) if answers else None
        if own is None or own is LOST:
            own, lost = self.ask(body), own is LOST
            if lost:
                self.close_connection = True
                return
        status, headers, text = own
        self.send_response_only(status)
        for header in headers.items():
            self.send_header(*header)
        data = text if isinstance(text, bytes) else text.encode()
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def ask(self, body):
        """What the server behind says."""
        link = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            link.request(self.command, self.path, body, dict(self.headers.items()))
            answer = link.getresponse()
            headers = {name: value for name, value in answer.getheaders()
                       if name.lower() not in ("content-length", "connection", "transfer-encoding")}
            return answer.status, headers, answer.read()
        finally:
            link.close()

    do_GET = do_POST = do_PATCH = do_DELETE = pass_on

    def log_message(self, *_):
        """Nothing."""


class BusyHost(BrowserTestCase):
    """A host that refuses, hides or forgets now and then what the server says."""

    TASKS = TASKS

    def setUp(self):
        super().setUp()
        self.host = Host(int(self.base.rsplit(":", 1)[1].strip("/")))
        thread = threading.Thread(target=self.host.serve_forever, args=(0.05,))
        thread.start()
        self.addCleanup(self.host.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.host.shutdown)
        self.bob = self.open("bob")
        self.bob.base = "http://127.0.0.1:%d/" % self.host.server_port
        self.bob.emulate("Page.enable")
        self.bob.emulate("Page.addScriptToEvaluateOnNewDocument", source=NO_LONG_PAUSES)
        self.addCleanup(setattr, self.bob, "base", self.base)

    def gate(self):
        """Holds an answer back until it is set."""
        gate = threading.Event()
        self.addCleanup(gate.set)
        return gate

    def added(self):
        """How many tasks there are."""
        return self.site.value("SELECT count(*) FROM task")

    def fill_in(self, city):
        """The form of a new task, ready to be sent."""
        self.bob.go("#/new/report")
        self.bob.type("[name='arguments.city']", city)

    def asked(self, name):
        """The keys of the requests like this one."""
        return [key for asked, key in self.host.seen if asked == name]

    def test_a_busy_host_is_told_calmly_and_the_list_comes_by_itself(self):
        busy, full = self.gate(), self.gate()
        self.host.own["GET /api/tasks"] = [BUSY, busy, refusal(503, "storage", "No disk."), full,
                                           (508, {}, ""), (429, {}, ""), (200, {}, "<a>")]
        self.bob.go("#/tasks")
        self.bob.see("The server is busy, trying again…", "#connection")
        busy.set()
        self.bob.see("No disk.", "#connection")
        full.set()
        self.bob.see("No task")
        wait_until(lambda: self.bob.count("#connection[hidden]"), what="the end of the line")
        self.assertEqual(self.bob.count("h1"), 1)

    def test_a_form_is_sent_again_until_it_is_taken_and_once_only(self):
        before = self.added()
        self.host.own["POST /api/tasks"] = [BUSY, LOST, BUSY]
        self.fill_in("Bodø")
        self.bob.click("button", "Add task")
        self.bob.see("trying again", "#connection")
        self.assertEqual(self.bob.run("return document.querySelector('form input').value"), "Bodø")
        wait_until(lambda: re.search(r"#/tasks/\d+$", self.bob.run("return location.hash")),
                   what="the task's page")
        self.bob.see("Bodø", "h1")
        self.assertEqual(self.added(), before + 1)
        keys = self.asked("POST /api/tasks")
        self.assertEqual([bool(keys[0]), keys], [True, keys[:1] * 4])

    def test_who_has_gone_elsewhere_meanwhile_is_told_and_left_there(self):
        gone = self.gate()
        self.host.own["POST /api/tasks"] = [BUSY, gone]
        self.fill_in("Narvik")
        self.bob.click("button", "Add task")
        self.bob.see("trying again", "#connection")
        self.host.own["GET /api/workers"] = [BUSY] * 50     # where one goes comes later still
        self.bob.run("location.hash = '#/workers'")
        gone.set()
        self.bob.see("was added", "#live")
        self.host.own.clear()
        self.bob.find("h1", "Workers")

    def test_what_might_be_done_twice_is_not_repeated(self):
        number = self.add("fail", "bob", {"delay": 600}, text="x")
        self.host.own["POST /api/tasks/%d/cancel" % number] = [(504, {}, "<html>")]
        self.bob.go("#/tasks/%d" % number)
        self.bob.click("button", "Cancel")
        self.bob.see("The server answered 504. Check whether it was done before you try again.", "#live")
        self.assertEqual(len(self.asked("POST /api/tasks/%d/cancel" % number)), 1)

    def test_what_our_server_refuses_is_not_repeated(self):
        self.host.own["POST /api/tasks"] = [refusal(429, "too_many", "You have too many tasks.")]
        self.fill_in("Oslo")
        self.bob.click("button", "Add task")
        self.bob.see("You have too many tasks.", "form")
        self.assertEqual(len(self.asked("POST /api/tasks")), 1)

    def test_a_file_of_the_page_that_did_not_come_is_loaded_again(self):
        self.add("report", "bob", {"delay": 600}, city="Oslo")      # without a task there are no filters
        self.bob.go("#/tasks")
        self.bob.find("[name=q]")
        self.host.own["GET /static/queues.js"] = [BUSY]
        self.bob.run("location.hash = '#/queues'")
        self.bob.find("h1", "Queues")

    def test_a_page_whose_first_script_did_not_come_offers_to_load_it_again(self):
        self.host.own["GET /static/app.js"] = [BUSY]
        self.bob.go("#/tasks")
        self.bob.click("main a", "Load it again")
        self.bob.find("h1", "Overview")

    def test_a_style_that_did_not_come_is_loaded_again(self):
        self.host.own["GET /static/pages.css"] = [BUSY]
        self.bob.go("#/queues")
        self.bob.find("h1", "Queues")
        self.assertEqual(self.bob.run("return [...document.styleSheets].filter(({ href }) => "
                                      "href.includes('pages')).length"), 1)


if __name__ == "__main__":
    unittest.main()
