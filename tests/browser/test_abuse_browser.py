"""Hostile text in every stored field, in every view of the page, in a real Chromium (H9).

Two sites hold the same things, one with texts that would be more than text, the other with
harmless ones of the same length. Each view of both must consist of the same elements with the
same attributes, and show the text as often.
"""

import json
import re
import string
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from jobqueue import CACHE_SECONDS, SETTINGS
from tests.helpers.browser import Browser, BrowserTestCase
from tests.helpers.support import PASSWORD, Site, quick_hash, wait_until

# Several in one text, each where nothing before it takes away its meaning.
PAYLOADS = (
    "<img src=x onerror=alert(1)>\"><svg onload=alert(3)>'-alert(4)-'"
    "<input autofocus onfocus=alert(18)>",
    "javascript:alert(5)//\" autofocus onfocus=alert(19) x=\"<script>alert(2)</script>"
    "</script><script>alert(6)</script>",
    "{{7*7}}${7*7}#{7*7}<%= 7*7 %></title></textarea></pre><b>bold"
    "<iframe srcdoc='<script>parent.alert(8)</script>'><a href=javascript:alert(9)>click</a>",
    "&lt;b&gt;&#60;b&#62;<style>*{display:none}</style>\u202e<b>txet</b>"
    "<math><mi//xlink:href=\"data:x,<script>alert(15)</script>\">",
    "<form action=//evil.example><button><base href=//evil.example/>"
    "<template><p title='</template><img src onerror=alert(20)>'><!--")
SIGNS = sorted(set("".join(PAYLOADS)) - set(string.ascii_letters + string.digits + " ."))
LETTERS = {ord(sign): letter for sign, letter in zip(SIGNS, string.ascii_uppercase)}
HARMLESS = tuple(text.translate(LETTERS) for text in PAYLOADS)

TASKS = '''
import importlib.util, json
from pathlib import Path
from typing import List, Literal
from jobqueue import current_task, task

TEXTS = json.loads(Path("texts.json").read_text())

def declare(text):
    """A function that has the text for its name, title, description, help, default and choice."""
    def function(words: str = text, kind: Literal[text, "b"] = text, many: List[str] = [text],
                 end: str = "", **more):
        print(text)
        current_task().progress(1, 2, text)
        if end == "error":
            raise type(text, (Exception,), {})(text)
        if end == "table":
            return [{text: text}, {text: [text], "b": {text: text}}]
        return text if end == "text" else {text: text, "list": [text], "object": {text: text}}
    function.__name__ = text
    about = "About %s\\n\\n%s\\n\\nArgs:\\n    words: %s\\n    kind: %s\\n"
    function.__doc__ = about % (text, text, text, text)
    task(function)

for text in TEXTS:
    declare(text)
'''
ADD = '''
import json, sys
from jobqueue import JobQueue
queue = JobQueue()
queue.catalogue.refresh(wait=True)
print(json.dumps(queue.add(json.load(sys.stdin), queue.users.find("bob")["id"])))
'''
BROKEN = '''
import importlib.util, json
from pathlib import Path
texts = json.loads(Path("texts.json").read_text())
name = next(text for text in texts if "/" not in text) + ".py"
path = Path.cwd() / name
path.write_text("raise ValueError(%r)" % " ".join(texts))
spec = importlib.util.spec_from_file_location("spoilt", path)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
'''
# How a task of each text ends; one more belongs to somebody with such a name.
ENDS = ("", "table", "text", "error")
ALL_ENDS = (*ENDS, "owned")
WATCH = """
window.reports = [];
window.confirm = () => true;           // forms with something typed are left unsent here
addEventListener('securitypolicyviolation', (event) => {
  window.reports.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
}, true);
window.awaited = 0;
const real = window.fetch;
window.fetch = async (...request) => {
  window.awaited += 1;
  try {
    const answer = await real(...request);
    await answer.clone().arrayBuffer();
    return answer;
  } finally {
    setTimeout(() => { window.awaited -= 1; }, 100);    // the page has shown it then, or asked for more
  }
};
"""
# Goes to an address, waits until all of its view is there, does something to it, and tells its elements.
LOOK = """
const [address, ready, text, done] = arguments;
const fields = () => [...document.querySelectorAll('input, textarea, option')];
const values = () => fields().map(({ value }) => value);
const texts = () => [document.body.textContent, ...values()].join('\\n');
const is_there = () => document.querySelector(ready) && !window.awaited
  && !document.querySelector('body.busy');
const end = Date.now() + 40000;
const until = async (condition) => {
  while (!condition() && Date.now() < end) await new Promise((go) => setTimeout(go, 20));
};
const changing = ['aria-busy', 'selected'];     // which option: queues stand in the order of their names
// Without the places at which a text may be broken: they follow the marks of each text.
const elements = () => [...document.querySelectorAll(':not(wbr)')].map((element) => (
  [element.tagName, ...element.getAttributeNames().filter((name) => !changing.includes(name)).sort()]
    .join(' ')));
(async () => {
  if (new URL(address, location).hash !== location.hash) {
    const changed = new Promise((go) => addEventListener('hashchange', go, { once: true }));
    location.hash = address;
    await changed;
  }
  await until(is_there);
  %s
  await until(() => is_there() && texts().includes(text));
  // Whoever was seen in a list stays in its choice of owners: how many, depends on the time.
  for (const option of document.querySelectorAll('[name=owner] option')) option.remove();
  const reports = window.reports;
  const count = (words) => texts().split(words).length - 1;
  const quoted = JSON.stringify(text).slice(1, -1);
  const times = text ? count(text) + (quoted.includes(text) ? 0 : count(quoted)) : 1;
  done({ elements: elements(), reports, times });
})();
"""


class Stage:
    """A site that holds the texts in every stored field, and a browser that looks at it."""

    def __init__(self, site, texts):
        self.site, self.texts = site, texts
        self.ids = {}
        (site.home / "texts.json").write_text(json.dumps(texts))
        site.write_tasks(TASKS)
        site.settings(linger=1)
        self.run_tasks()
        self.fill_the_database()
        self.site.start_server()
        self.base = re.match(r"http://[^/]+/", site.address)[0]

    def run_tasks(self):
        """A task for each text and each way to end."""
        places = [(place, end) for place in range(len(self.texts)) for end in ALL_ENDS]
        requests = [{"function": self.texts[place], "arguments": {
            "words": self.texts[place], "end": end, self.texts[place]: self.texts[place]}}
            for place, end in places]
        self.ids = dict(zip(places, json.loads(self.site.python(ADD, given=json.dumps(requests)))))
        left = "SELECT 1 FROM task WHERE status<2 LIMIT 1"
        wait_until(lambda: not self.site.value(left), 90, "the end of the tasks")
        wait_until(lambda: not self.site.workers(), 60, "the end of the workers")

    def fill_the_database(self):
        """What only we ever write, as if somebody had found a way."""
        now = time.time()
        for place, text in enumerate(self.texts):
            kept, running, later, _, owned = (self.ids[place, end] for end in ALL_ENDS)
            self.add_person(text, now, owned)
            self.add_worker(text, now)
            self.change("task", running, status=1, queue=text, message=text, finished_at=None,
                        worker_id=place + 1000, lease_boot="x", lease_monotonic=0,
                        lease_wall=now + 86400, result=None)
            self.change("task", later, status=5, run_at=now + 86400, turn=(now + 86400) * 1000,
                        reason=text, queue=text, error_type=text, error_message=text)
            self.site._insert("activity", {"at": now, "event": text, "task_id": kept, "attempt": 1,
                                           "message": text})
            self.site._insert("queue", {"name": text, "created_at": now, "paused": 1, "paused_at": now,
                                        "paused_by": text, "paused_why": text,
                                        "machines": json.dumps([text])})
            self.change("task", kept, unique_key=text)
            self.site._insert("task_after", {"task_id": later, "after_id": kept, "settled": 1})
            self.add_schedules(text, now, kept)
        everything = " ".join(self.texts)
        for name in ("default_owner", "pass_environment", "python", "host_names"):
            self.remember(name, everything[:100 if name == "default_owner" else 900])
        self.name_parameters()

    def change(self, table, row_id, **values):
        """Change a row behind everybody's back."""
        columns = ", ".join(name + "=?" for name in values)
        self.site.rows("UPDATE %s SET %s WHERE id=?" % (table, columns), (*values.values(), row_id))

    def add_person(self, text, now, task_id):
        """A user with such a name, who owns a task, and tokens with such a name."""
        self.site._insert("user", {"name": text, "password": quick_hash(PASSWORD), "role": "user",
                                   "created_at": now})
        self.change("task", task_id, owner_id=self.site.value("SELECT max(id) FROM user"))
        for user in (1, 2):
            self.site._insert("token", {"digest": "%s %d" % (text, user), "user_id": user,
                                        "name": text, "scope": "user", "created_at": now})

    def add_worker(self, text, now):
        """A worker of another machine."""
        self.site._insert("worker", {
            "id": 1000 + self.texts.index(text), "machine": text, "boot": "x", "pid": 1,
            "lock": text, "mode": text, "state": text, "version": text, "started_at": now,
            "seen_at": now, "lease_monotonic": 0, "lease_wall": now + 86400})

    def add_schedules(self, text, now, task_id):
        """One that is paused and one with a problem, with a task and words in their histories."""
        owner_id = self.site.value("SELECT max(id) FROM user")
        for paused in (1, 0):
            self.site._insert("schedule", {
                "owner_id": owner_id, "source": "person", "function": text, "rule": "yearly 12-24 01:00",
                "arguments": json.dumps({"words": text, text: text}),
                "options": json.dumps({"queue": text}), "zone": "UTC", "catch_up": "once",
                "overlap": "skip", "paused": paused, "paused_by": text, "paused_at": now,
                "paused_why": text, "problem": text, "last_task_id": task_id, "created_at": now,
                "start": now})
            number = self.site.value("SELECT max(id) FROM schedule")
            self.site._insert("slot", {"schedule_id": number, "at": now, "message": text})

    def remember(self, name, value):
        """Store a setting without a check, or a row of the program's own."""
        table = "setting" if name in SETTINGS else "state"
        self.site.rows("DELETE FROM %s WHERE name=?" % table, (name,))
        self.site.rows("INSERT INTO %s (name, value) VALUES (?, ?)" % table, (name, json.dumps(value)))

    def name_parameters(self):
        """Names of parameters that no Python function can have."""
        for number, name, text in self.site.rows("SELECT id, name, schema FROM function"):
            schema = json.loads(text)
            schema["properties"].update({
                name: {"type": "string", "description": name, "default": name + "\n",
                       "format": name},
                "s" + name: {"type": "object", "default": {name: 1}},
                "e" + name: {"enum": [name, None]}})
            self.change("function", number, schema=json.dumps(schema))

    def written(self, place):
        """A text as it is written in an address."""
        return quote(self.texts[place], safe="")

    def let_no_worker_start(self, place):
        """Say why the last start failed; there is a task to be run, and no worker that lives."""
        now = time.time()
        self.remember("start_failure", {"message": self.texts[place], "next": now + 60, "at": now,
                                         "tries": 1})
        self.site.rows("UPDATE worker SET state='starting'")
        self.change("task", self.ids[place, "text"], status=0, queue="default")

    def spoil_tasks_py(self):
        """Break tasks.py with the texts in the message and in the name of the file."""
        self.remember("python", "")
        self.site.write_tasks(BROKEN)
        self.site.python("from jobqueue import JobQueue; JobQueue().catalogue.refresh(wait=True)")
        time.sleep(CACHE_SECONDS)       # then the server knows it


class HostileText(BrowserTestCase):
    """See the module's docstring."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.site.stop_server()
        harmless = Site()
        cls.addClassCleanup(harmless.close)
        cls.pool = ThreadPoolExecutor(2)
        cls.addClassCleanup(cls.pool.shutdown)
        sites = (cls.site, PAYLOADS), (harmless, HARMLESS)
        cls.stages = list(cls.pool.map(lambda one: Stage(*one), sites))
        cls.pair = []
        for stage in cls.stages:
            cls.pair.append((stage, Browser(cls.driver, stage.base)))
            cls.addClassCleanup(cls.pair[-1][1].close)
        cls.name = ""                   # who is logged in

    @staticmethod
    def serious(browser):
        """Without what Chromium advises about forms."""
        return [text for text in BrowserTestCase.serious(browser) if "[DOM]" not in text]

    def both(self, name=None):
        """A browser at each site, logged in as `name`."""
        self.browsers = [browser for _, browser in self.pair]
        if self.name != name:
            self.tearDown()
            type(self).name = name
            list(self.pool.map(self.begin, self.browsers))
        return self.pair

    def begin(self, browser):
        """A browser as new that takes note of what its policy refuses."""
        browser.forget()
        browser.emulate("Page.enable")
        browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        if self.name:
            browser.enter(self.name)
        else:
            browser.go("#/tasks")

    def same(self, pair, address, words=None, ready="h1", act=""):
        """A view of both sites has the same elements and shows the text as often."""
        def look(stage, browser):
            text = words(stage) if words else ""
            body = {"script": LOOK % act, "args": [address(stage), ready, text]}
            return browser.ask("POST", "/execute/async", body)

        found = list(self.pool.map(lambda one: look(*one), pair))
        self.assertEqual(found[0]["reports"], [])
        self.assertEqual(found[0]["elements"], found[1]["elements"])
        self.assertEqual(found[0]["times"], found[1]["times"])
        self.assertGreater(found[0]["times"], 0, address(pair[0][0]))

    def each_text(self, pair, address, shown=True, **options):
        """`same` for every text; `address` gets a stage and a place in its list of texts."""
        for place in range(len(PAYLOADS)):
            with self.subTest(text=PAYLOADS[place]):
                words = (lambda stage, place=place: stage.texts[place]) if shown else None
                self.same(pair, lambda stage, place=place: address(stage, place), words, **options)

    def test_in_the_list(self):
        for name in ("ana", "bob"):
            pair = self.both(name)
            self.each_text(pair, lambda stage, place: "#/tasks?function=" + stage.written(place),
                           ready="table.list tbody tr")
            for status in ("failed", "running", "scheduled", "succeeded"):
                self.same(pair, lambda _, status=status: "#/tasks?status=" + status,
                          lambda stage: stage.texts[-1], ready="table.list tbody tr")

    def test_in_a_task_of_each_kind_with_its_log_and_traceback(self):
        pair = self.both("ana")
        unfold = "for (const part of document.querySelectorAll('details')) part.open = true;"
        for end in ENDS:
            self.each_text(pair, lambda stage, place, end=end: "#/tasks/%d" % stage.ids[place, end],
                           ready="ol.timeline li", act=unfold)

    def test_in_the_choice_of_functions_and_in_forms(self):
        pair = self.both("bob")
        self.same(pair, lambda _: "#/new", lambda stage: stage.texts[0])
        self.each_text(pair, lambda stage, place: "#/new/" + stage.written(place), ready="form")
        self.each_text(pair, lambda stage, place: "#/new/%s?from=%d" % (
            stage.written(place), stage.ids[place, ""]), ready="form")

    def test_in_workers_settings_users_and_tokens(self):
        pair = self.both("ana")
        for page in ("#/workers", "#/users", "#/account"):
            for place in (0, 2, 4):
                self.same(pair, lambda _, page=page: page,
                          lambda stage, place=place: stage.texts[place])
        self.same(pair, lambda _: "#/settings", lambda stage: " ".join(stage.texts)[:900])

    def test_in_schedules_and_queues(self):
        pair = self.both("ana")
        # Queues are sorted by their names, and default stands elsewhere among the other site's.
        in_order = "document.querySelector('tbody').prepend(document.querySelector('[data-key=default]'));"
        for page, act in (("#/schedules", ""), ("#/queues", in_order)):
            self.same(pair, lambda _, page=page: page, lambda stage: stage.texts[-1], ready="tbody tr",
                      act=act)
        for number in (1, 2):
            self.each_text(pair, lambda _, place, number=number: "#/schedules/%d" % (2 * place + number),
                           ready=".timeline li")
        self.each_text(pair, lambda _, place: "#/schedules/%d?change=1" % (2 * place + 1), ready="form")
        self.each_text(pair, lambda stage, place: "#/queues/" + stage.written(place), ready="form")

    def test_in_a_table_of_tasks(self):
        pair = self.both("bob")
        paste = """const area = document.querySelector('textarea');
            area.value = `words,${JSON.stringify(text)},kind\n${JSON.stringify(text)},x,${text}`;
            area.dispatchEvent(new Event('input', { bubbles: true }));
            await until(() => document.querySelector('.error.text:not([hidden])'));"""
        self.each_text(pair, lambda stage, place: "#/new/%s?many=1" % stage.written(place), ready="form",
                       act=paste)

    def test_in_questions(self):
        """Deleting asks with the name; a new password is asked for with it."""
        pair = self.both("ana")
        ask = """for (const button of document.querySelectorAll('main button')) {
            if (button.textContent === '%s') button.click(); }"""
        for page, button, words in (
                ("#/users", "Delete", "Delete %s?"), ("#/account", "Delete", "Delete %s?"),
                ("#/users", "New password", "New password for %s")):
            self.same(pair, lambda _, page=page: page,
                      lambda stage, words=words: words % stage.texts[0], act=ask % button)

    def test_in_the_address(self):
        pair = self.both("bob")
        for form in ("#/tasks?status=%s", "#/tasks/%s", "#/new/x%s"):
            self.each_text(pair, lambda stage, place, form=form: form % stage.written(place),
                           shown=False)

    def test_in_the_address_of_a_first_visit_and_in_ones_own_name(self):
        pair = self.both()
        for place in (0, 1, 4):
            self.same(pair, lambda stage, place=place: "#setup=" + stage.texts[place],
                      lambda _: "A new admin password", "form")
        for place in (0, 1):
            for stage, browser in pair:
                browser.log_in(stage.texts[place])
            self.same(pair, lambda _: "#/account", lambda stage, place=place: stage.texts[place])
            for _, browser in pair:
                browser.ask("DELETE", "/cookie")

    def test_of_what_is_said_above_every_page_and_of_this_host(self):
        """That no worker can be started, and where tasks.py is broken: last, for it stays so."""
        pair = self.both("ana")
        for place in (0, 1, 2):
            for stage in self.stages:
                stage.let_no_worker_start(place)
            self.same(self.again(pair), lambda _: "#/tasks",
                      lambda stage, place=place: stage.texts[place], ready="#service:not([hidden])")
            self.same(pair, lambda _: "#/settings/host",
                      lambda stage, place=place: stage.texts[place], ready="table.host tbody tr")
        for stage in self.stages:
            stage.spoil_tasks_py()
        self.same(self.again(pair), lambda _: "#/tasks",
                  lambda stage: "ValueError: " + stage.texts[0], ready="#code:not([hidden])")
        self.same(pair, lambda _: "#/settings/host",
                  lambda stage: "ValueError: " + stage.texts[0], ready="table.host tbody tr")

    def again(self, pair):
        """The page is loaded anew in both browsers."""
        list(self.pool.map(lambda one: one[1].open_list(), pair))
        return pair


if __name__ == "__main__":
    unittest.main()
