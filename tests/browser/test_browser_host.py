"""The admin's host page, what is found exposed, and what goes with them, in a real Chromium."""
import json
import subprocess
import unittest

from jobqueue import STATUS_WORDS
from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import PASSWORD, wait_until

# Some addresses are answered as another host would, which may change what is in GET api/host then:
# {path: [status, text, change]}, where the status "lost" is no answer.
OTHER_HOST = """
window.served = %s;
window.host = %s;
window.asked = [];
const real = window.fetch;
window.fetch = async (path, options) => {
  window.asked.push({ path, ...options });
  const [status, text, change] = served[path] || [];
  Object.assign(host, change);
  if (status === 'lost') throw new TypeError('Failed to fetch');
  if (status) return new Response(text, { status });
  const answer = await real(path, options);
  if (path !== 'api/host') return answer;
  return new Response(JSON.stringify({ ...await answer.json(), ...host }), answer);
};
"""
HOST = {
    "advice": "Copy the line for cron.",
    "files": [{"title": "Every 5 minutes", "name": "crontab", "text": "*/5 * * * * python3 worker.py"}],
    "mode": {"mode": "cron", "why": "Workers that were started here were gone."},
    "ticks": {"last_at": "2026-11-21T12:00:00.000Z", "last_source": "cron", "period": 900, "resident": False,
              "cron": {"last_at": "2026-11-21T12:00:00.000Z", "period": 900}},
}
CANARY = {"canary": {"token": "b0nny", "addresses": ["data/canary.txt", "data/journal.json", "worker.py"]}}
RED = "#exposed:not([hidden])"
RARE_TICKS = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options);
  if (!path.startsWith('api/schedules')) return answer;
  const data = await answer.json();
  const warning = 'Runs in between are left out.';
  data.ticks = { last_at: '2026-11-21T12:00:00.000Z', last_source: 'cron', period: 900, cron: null };
  data.warning = warning;
  for (const schedule of data.schedules || []) schedule.warning = warning;
  return new Response(JSON.stringify(data), answer);
};
"""
NOTHING_YET = {"advice": "", "files": [], "ticks": None}


class HostPage(BrowserTestCase):
    """What an admin sees of the host."""

    def other_host(self, browser, host=None, **served):
        """From the next load on, the host is another one."""
        browser.emulate("Page.enable")
        browser.emulate("Page.addScriptToEvaluateOnNewDocument",
                        source=OTHER_HOST % (json.dumps(served.get("served", {})), json.dumps(host or {})))

    def looked(self):
        """What the server was told of what is exposed."""
        found = self.site.value("SELECT value FROM state WHERE name='exposure'")
        return found and json.loads(found)["exposed"]

    def setUp(self):
        super().setUp()
        self.site.rows("DELETE FROM state WHERE name='exposure'")

    def test_advice_comes_first_then_modes_ticks_and_lines_to_copy(self):
        ana = self.open("ana")
        self.other_host(ana, HOST)
        ana.go("#/settings/host")
        ana.find("h1", "This host: no problems")
        text = ana.text("main")
        places = [text.index(words) for words in (
            "Copy the line for cron.", "A cron job (cron). Workers that were started here were gone.",
            "Run a sample task", "about every 15 min", "Every 5 minutes")]
        self.assertEqual(places, sorted(places))
        self.assertNotIn("worker.py\n", ana.text(".copy"))
        ana.click("main summary")
        ana.see("*/5 * * * * python3 worker.py", ".copy")
        ana.find(".copy button", "Copy")

    def test_a_sample_task_shows_whether_workers_live(self):
        ana = self.open("ana", "#/settings/host")
        ana.click("button", "Run a sample task")
        ana.see("sample-task", "h1")
        ana.see("A worker lived for 10 s.", "main")

    def test_what_is_not_known_yet_is_said_or_left_out(self):
        ana = self.open("ana")
        self.other_host(ana, NOTHING_YET)
        ana.go("#/settings/host")
        ana.see("not known yet")
        self.assertNotIn("Lines to copy", ana.text("main"))
        self.assertNotIn("null", ana.text("main"))
        ana.see("Your browser found no private file")

    def test_a_file_that_comes_back_turns_every_page_red_for_admins(self):
        ana = self.open("ana")
        self.other_host(ana, CANARY, served={"data/canary.txt": [200, "a b0nny canary"],
                                             "worker.py": [200, '"""..."""\nimport jobqueue\n']})
        ana.go("#/settings/host")
        ana.see("Anybody can read this over the web: data/canary.txt, worker.py.", "#exposed")
        ana.see(self.base + "data/canary.txt", "main")
        self.assertEqual(self.looked(), ["data/canary.txt", "worker.py"])
        asked = [one for one in ana.run("return asked") if one["path"] == "data/canary.txt"]
        self.assertEqual([(one["credentials"], one["cache"]) for one in asked], [("omit", "no-store")])
        again = self.open("ana", "#/queues")
        again.see("Anybody can read this", "#exposed")
        again.click("#exposed a")
        wait_until(lambda: self.looked() == [], what="another look, which finds nothing")
        wait_until(lambda: again.count(RED) == 0, what="the end of the red line")
        self.assertEqual(self.open("bob").count(RED), 0)

    def test_pages_that_only_look_like_a_file_are_no_alarm(self):
        ana = self.open("ana")
        self.other_host(ana, CANARY, served={"data/canary.txt": [200, "no canary here"],
                                             "worker.py": [200, "<html>\nimport jobqueue\n"],
                                             "data/journal.json": [200, '{"error": "not found"}']})
        ana.go("#/settings/host")
        wait_until(lambda: self.looked() == [], what="the end of the look")
        self.assertEqual(ana.count(RED), 0)

    def test_an_admins_browser_looks_once_a_day_without_being_asked(self):
        ana = self.open("ana")
        wait_until(lambda: self.looked() == [], what="the look")
        self.other_host(ana)
        ana.go("#/queues")
        again = "return asked.filter(({ path }) => path === 'api/workers').length"
        wait_until(lambda: ana.run(again) > 1, what="what is asked after the look would have been")
        self.assertEqual([one["path"] for one in ana.run("return asked") if "api/host" in one["path"]], [])

    def test_a_look_that_the_host_had_no_time_for_counts_as_none(self):
        ana = self.open("ana")
        wait_until(lambda: self.looked() == [], what="the look")
        self.site.rows("DELETE FROM state WHERE name='exposure'")
        self.other_host(ana, served={"worker.py": [503, "busy"]})
        ana.go("#/settings/host")
        ana.see("The server answered 503", "#live")
        self.assertIsNone(self.looked())

    def test_a_look_without_an_answer_does_not_stop_the_page(self):
        ana = self.open()
        self.other_host(ana, served={"worker.py": ["lost"]})
        ana.log_in("ana")
        ana.run("location.hash = '#/queues'")
        asked = "return asked.filter(({ path }) => path === arguments[0]).length"
        wait_until(lambda: ana.run(asked, "worker.py"), what="a look")
        ana.run("window.dispatchEvent(new Event('online'))")
        wait_until(lambda: ana.run(asked, "api/workers") > 1, what="that the page goes on asking")
        self.assertIsNone(self.looked())

    def test_a_token_for_the_tick_address_is_shown_as_that_address(self):
        ana = self.open("ana", "#/account")
        ana.type("form [name=name]", "cron of the host")
        ana.type("form:has([name=scope]) [name=password]", PASSWORD)
        ana.run("document.querySelector('[name=scope]').value = 'tick'")
        ana.run("document.querySelector('[name=scope]').form.requestSubmit()")
        ana.see("Copy it now")
        lines = ana.run("return [...document.querySelectorAll('main pre')].map((pre) => pre.textContent)")
        address = lines[0]
        self.assertTrue(address.startswith(self.base + "tick?token=jq_"), address)
        self.assertTrue(all(address in line for line in lines))
        self.assertEqual(ana.run("""
            const asked = new XMLHttpRequest();
            asked.open('GET', arguments[0], false);
            asked.send();
            return asked.status""", address), 200)

    def test_schedules_say_how_often_somebody_looks_for_what_is_due_and_if_that_is_too_rare(self):
        self.site.run("schedule", "add", "add", "every 5m", "a=1", "b=2", "--owner", "bob")
        bob = self.open("bob")
        bob.emulate("Page.enable")
        bob.emulate("Page.addScriptToEvaluateOnNewDocument", source=RARE_TICKS)
        bob.go("#/schedules")
        bob.see("Runs in between are left out.", "tbody")
        bob.see("about every 15 min", "main")
        bob.click("tbody a")
        bob.see("Runs in between are left out.", "main")


# What a web server does that imports jobqueue and keeps no process of its own awake.
ONLY_ANSWERS = """
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
import jobqueue

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

WSGIRequestHandler.log_message = lambda *_: None
server = Server(("127.0.0.1", 0), WSGIRequestHandler)
server.set_app(jobqueue.application)
print(server.server_port, flush=True)
server.serve_forever()
"""


COUNT_TICKS = """
const real = window.fetch;
window.ticks = 0;
window.fetch = (path, options) => {
  if (path === 'tick') window.ticks += 1;
  return real(path, options);
};
"""


class NobodyElse(BrowserTestCase):
    """A host where nothing runs but answers to requests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.site.stop_server()
        cls.site.settings(worker_mode="slice")
        cls.site.server = cls.site._start(["-c", ONLY_ANSWERS], stdout=subprocess.PIPE, encoding="utf-8")
        cls.base = "http://127.0.0.1:%d/" % int(cls.site.server.stdout.readline())

    def test_tasks_run_while_the_page_is_open(self):
        numbers = [self.site.add("add", "--owner", "bob", a=1, b=number) for number in range(3)]
        self.assertEqual(self.states(numbers), {"pending"})
        bob = self.open("bob")
        bob.run(COUNT_TICKS)
        wait_until(lambda: self.states(numbers) == {"succeeded"}, what="the end of the tasks")
        bob.see("succeeded", "table.list")
        wait_until(lambda: bob.count("#service[hidden]"), what="that the page knows it")
        before = bob.run("return ticks")
        self.pause(3)
        self.assertEqual(bob.run("return ticks"), before)       # there is nothing left to do

    def states(self, numbers):
        """The states of these tasks."""
        found = self.site.rows("SELECT DISTINCT status FROM task WHERE id IN (%s)"
                               % ", ".join(map(str, numbers)))
        return {STATUS_WORDS[row[0]] for row in found}


if __name__ == "__main__":
    unittest.main()
