"""Numbers that link to lists: a walk through all views follows each, and counts what its list has."""
import json
import re
import time
import unittest
from datetime import datetime
from urllib.parse import parse_qsl, urlencode

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import Site, free_port

FUNCTIONS = "echo import_feed letter report sync tidy transcode".split()     # tasks.py lacks the last
TASKS = "from jobqueue import task\n" + "".join(
    "\n@task\ndef %s(text: str = ''):\n    pass\n" % name for name in FUNCTIONS[:-1])
STATUSES = "pending running succeeded failed cancelled scheduled waiting".split()     # as the database counts
HOUR, DAY = 3600, 86400
KINDS = 26                              # of failures, of each person; the page shows the largest 5 or 10
PLAIN = {"queue": "default", "priority": 0, "max_retries": 3, "retries_left": 3, "retry_delay": 60,
         "retry_backoff": 2, "timeout": 3600, "on_crash": "retry"}
# Views that have no filter and no number of their own.
PLACES = "overview overview?range=week functions queues workers schedules schedules/2 activity account " \
    "help new".split()
ADMINS_PLACES = "users alerts settings settings/host queues?new=1 schedules/1 overview?whose=mine " \
    "functions?whose=mine functions/letter?whose=mine".split()
# What a filter of the page's addresses means, in SQL of its own. The order and the page are no filters.
MEANINGS = {"function": "function=?", "queue": "queue=?", "error": "coalesce(error_type, reason)=?",
            "owner": "owner_id=(SELECT id FROM user WHERE name=?)", "ended_since": "finished_at>=?",
            "since": "created_at>=?", "until": "created_at<?", "q": "arguments LIKE '%' || ? || '%'",
            "sort": "?<>''", "cursor": "?<>''"}
LOUD = "SELECT count(*) FROM alert WHERE ended_at IS NULL AND muted_until IS NULL"
LISTS = r"#/(tasks|alerts|functions|queues|schedules|workers|users|activity)(\?|$)"
NUMBER = r"(?<![\w#])\d+(?:\u202f\d{3})*"
# The numbers of links that are no counts of a list's rows, and what they are.
EXCEPTIONS = {
    r"^.* ✕$": "the value of a filter, which a click takes away",
    r"\d[\d.]* (ms|s|min|h|d|hours|days)\b": "a time, or the range of figures",
    r"\d+:\d\d( [AP]M)?": "a time of day",
    r"\d+ of \d+ workers": "workers",
}
# Counts the requests that the page waits for.
COUNTING = """
window.asked = 0;
const real = window.fetch;
window.fetch = (...all) => {
  window.asked += 1;
  return real(...all).finally(() => { window.asked -= 1; });
};
"""
# Goes to a view, and waits until it is there and asks for nothing more.
ARRIVE = """
const rest = () => new Promise((done) => setTimeout(done, 8));
async function arrive(hash) {
  if (location.hash !== hash) {
    const changed = new Promise((done) => addEventListener('hashchange', done, { once: true }));
    location.hash = hash;
    await changed;
  }
  for (let calm = 0; calm < 3; calm += 1) {
    await rest();
    if (document.body.matches('.busy') || window.asked) calm = -1;
  }
}
"""
# Of each link to a place of this page: the place, its texts and, where it stands in an item, the bare
# numbers of that item.
LINKS = ARRIVE + """
const words = (one) => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
  const all = [];
  while (texts.nextNode()) all.push(texts.currentNode.data);
  return all.join(' ').trim();
};
const bare = (a) => [...a.closest('li')?.querySelectorAll('*') || []]
  .filter((one) => !a.contains(one) && !one.contains(a))
  .map(words).filter((text) => /^(at least )?[\\d\\u202f]+\\+?$/.test(text));
return arrive(arguments[0]).then(() => [...document.querySelectorAll('a[href^="#"]')]
  .filter((a) => !a.closest('[hidden]'))
  .map((a) => [a.getAttribute('href'), [words(a), a.ariaLabel || ''], bare(a)]));"""
# What a list of tasks says that it has, and how many rows there are on all of its pages.
TASK_COUNTS = ARRIVE + """
return (async () => {
  await arrive(arguments[0]);
  const query = new URLSearchParams(location.hash.split('?')[1]);
  query.set('limit', '100');
  let rows = 0;
  for (let next = ''; next !== null;) {
    query.set('cursor', next);
    const answer = await (await fetch(`api/tasks?${query}`)).json();
    rows += answer.tasks.length;
    next = answer.next;
  }
  return { tab: document.querySelector('main .tabs [aria-current] b')?.textContent ?? '', rows };
})();"""
ALERT_COUNTS = ARRIVE + """
return arrive(arguments[0]).then(() => ({ rows: [...document.querySelectorAll('.alerts tbody button')]
  .filter(({ textContent }) => textContent.startsWith('Mute')).length }));"""


def numbers_in(text):
    """Return the numbers of a text that EXCEPTIONS does not explain."""
    for pattern in EXCEPTIONS:
        text = re.sub(pattern, " ", text)
    return [int(re.sub(r"\D", "", number)) for number in re.findall(NUMBER, text)]


def failures_of(owner_id, now):
    """Yield failed tasks of many kinds, from the last day and before, and of one kind more than a page."""
    for kind in range(KINDS):
        for place in range(61 if kind == 0 else 1 + kind % 5):
            error = {"error_type": "%sError" % chr(65 + kind), "error_message": "no such text " * 60,
                     "reason": "error"} if kind % 6 else {"reason": ["timeout", "crashed"][kind // 6 % 2]}
            age = 2 * HOUR + 60 * place if (kind + place) % 3 else 2 * DAY
            yield {"function": FUNCTIONS[(kind + owner_id) % 7], "status": 3, "attempts": 1 + kind % 3,
                   "schedule_id": 1 if kind % 4 == 1 else None, "finished_at": now - age, **error}


def others_of(owner_id, now):
    """Yield tasks in all other states; no worker may begin those that are pending."""
    for place in range(57 * owner_id):
        yield {"function": FUNCTIONS[place % 6], "status": 0, "queue": ["held", "far"][place % 2]}
    for place in range(2 * owner_id):
        yield {"function": "report", "status": 1, "worker_id": 1000, "lease_boot": "x", "lease_monotonic": 0,
               "lease_wall": now + DAY, "attempts": 1 + place, "progress": 0.5}
    for place in range(60 + owner_id):
        yield {"function": FUNCTIONS[place % 5], "status": 2, "attempts": 1 + place % 2, "result": "7",
               "schedule_id": 2 if place % 4 == 0 else None, "finished_at": now - place * HOUR}
    for place in range(4 + owner_id):
        yield {"function": FUNCTIONS[place % 3], "status": 4, "finished_at": now - place * HOUR}
    for place in range(9 + owner_id):
        retried = {"reason": "error", "error_type": "BError", "attempts": 1} if place % 2 else {}
        yield {"function": FUNCTIONS[place % 4], "status": 5, "run_at": now + DAY,
               "turn": 1000 * (now + DAY), **retried}
    for place in range(6 + owner_id):
        yield {"function": FUNCTIONS[place % 2], "status": 6, "after_failure": "run"}


def row_of(task, owner_id, place, now):
    """Return the row of a task, with what all have."""
    ended = task.get("finished_at", now)
    return {**PLAIN, "owner_id": owner_id, "turn": place, "created_at": ended - 90,
            "arguments": json.dumps({"text": "%s %d" % (["river", "lake"][place % 3 % 2], place)}),
            "started_at": ended - 60 if task["status"] in (1, 2, 3, 4) else None, **task}


class Numbers(BrowserTestCase):
    """Two people with hundreds of tasks, which stay as they are."""

    TASKS = TASKS

    @classmethod
    def start_site(cls):
        cls.site = Site(cls.TASKS, users=cls.USERS)
        cls.addClassCleanup(cls.site.close)
        cls.plant(time.time())
        cls.base = cls.site.start_server("--port", free_port())

    @classmethod
    def plant(cls, now):
        """Write all rows in one transaction."""
        with cls.site.connection() as link:
            link.execute("BEGIN")
            for name, more in (("held", {"paused": 1}), ("far", {"machines": '["mars"]', "max_running": 9})):
                cls.insert(link, "queue", {"name": name, "created_at": now, **more})
            cls.insert(link, "worker", {
                "id": 1000, "machine": "mars", "boot": "x", "pid": 1, "lock": "x", "mode": "service",
                "state": "busy", "version": "x", "started_at": now, "seen_at": now, "lease_monotonic": 0,
                "lease_wall": now + DAY})
            cls.plant_schedules(link, now)
            cls.plant_tasks(link, now)
            for subject, muted, ended in (("a", None, None), ("b", None, None), ("c", now + DAY, None),
                                          ("d", None, now)):
                cls.insert(link, "alert", {
                    "code": "failed", "subject": "%s: BError" % subject, "text": "BError: no", "count": 3,
                    "opened_at": now - DAY, "seen_at": now, "muted_until": muted, "ended_at": ended})
            link.execute("COMMIT")

    @staticmethod
    def insert(link, table, row):
        """Insert one row."""
        link.execute("INSERT INTO %s (%s) VALUES (%s)" % (
            table, ", ".join(row), ", ".join("?" * len(row))), tuple(row.values()))

    @classmethod
    def plant_schedules(cls, link, now):
        """Write schedules of both people, due within a day and later."""
        for place in range(8):
            cls.insert(link, "schedule", {
                "owner_id": 1 + place % 2, "source": "person", "function": FUNCTIONS[place % 5],
                "arguments": "{}", "options": "{}", "rule": "every %dh" % (5 + 5 * place), "zone": "UTC",
                "start": now, "catch_up": "once", "overlap": "allow", "created_at": now,
                "next_at": now + (5 + 5 * place) * HOUR, "next_from": now, "paused": int(place == 7)})

    @classmethod
    def plant_tasks(cls, link, now):
        """Write the tasks, and the ends of those that have ended."""
        for owner_id in (1, 2):
            tasks = [*failures_of(owner_id, now), *others_of(owner_id, now)]
            for place, task in enumerate(tasks):
                cls.insert(link, "task", row_of(task, owner_id, place, now))
                if task.get("finished_at"):
                    cls.insert(link, "activity", {
                        "at": task["finished_at"], "event": STATUSES[task["status"]], "seconds": 60,
                        "owner_id": owner_id, "function": task["function"], "queue": "default"})
        link.execute("INSERT INTO task_after (task_id, after_id) SELECT task.id, other.id FROM task, task AS "
                     "other WHERE task.status=6 AND other.id=(SELECT min(id) FROM task WHERE status=5)")

    def views(self, name):
        """Return the addresses of all views, with the filters and groups of lists."""
        is_admin = name == "ana"
        since = datetime.fromtimestamp(time.time() - DAY).astimezone().isoformat()
        filters = [{}, {"function": "letter"}, {"queue": "held"}, {"q": "river"}, {"error": "BError"},
                   {"ended_since": since}, {"since": since}, {"sort": "-duration"}, {"cursor": 300},
                   *[{"owner": "bob"}] * is_admin]
        lists = [{**one, **status} for one in filters for status in ({}, {"status": "failed"})]
        lists += [{"status": status} for status in STATUSES]
        tasks = self.site.rows("SELECT max(id) FROM task WHERE owner_id=? GROUP BY status", (2 - is_admin,))
        places = [*PLACES, *ADMINS_PLACES * is_admin, *("functions/" + one for one in FUNCTIONS),
                  *("tasks/%d" % row[0] for row in tasks)]
        return ["#/" + place for place in places] + ["#/tasks?" + urlencode(one) for one in lists]

    def enter(self, name):
        """Open a browser of somebody, in which requests are counted."""
        browser = self.open()
        browser.emulate("Page.enable")
        browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=COUNTING)
        browser.enter(name)
        return browser

    def numbers_of(self, browser, view):
        """Yield (address of a list, number, text) for each number of a link in a view.

        A link to one thing has other numbers in its text, such as ids. A link that orders the list in sight
        stands beside the count of those failures that have no row of their own.
        """
        for place, texts, bare in browser.run(LINKS, view):
            orders = "sort=" in place and without_order(place) == without_order(view)
            for text in texts * bool(re.match(LISTS, place)) + bare * (not orders):
                for number in numbers_in(text):
                    yield place, number, " | ".join([*texts, *bare])

    def true_count(self, name, place):
        """Return what the database has of a list; one of a link to one thing."""
        kind, _, query = place.removeprefix("#/").partition("?")
        if "/" in kind:
            return 1
        if kind == "alerts":
            return self.site.value(LOUD)
        self.assertEqual(kind, "tasks", "a count that this test cannot make yet: " + place)
        given = {"owner": name, **dict(parse_qsl(query))} if name == "bob" else dict(parse_qsl(query))
        given.update({key: datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
                      for key, value in given.items() if key in ("since", "until", "ended_since")})
        states = [str(STATUSES.index(word)) for word in given.pop("status", ",".join(STATUSES)).split(",")]
        return self.site.value("SELECT count(*) FROM task WHERE status IN (%s)%s" % (
            ", ".join(states), "".join(" AND " + MEANINGS[key] for key in given)), tuple(given.values()))

    def shown_counts(self, browser, place):
        """Return what a list says and has on all of its pages."""
        if re.match(r"#/tasks(\?|$)", place):
            found = browser.run(TASK_COUNTS, place)
            return [found["rows"], *(numbers_in(found["tab"]) or ["no chosen tab"])]
        return [browser.run(ALERT_COUNTS, place)["rows"]] if place == "#/alerts" else []

    def wrong(self, browser, name, views):
        """Return the views that have such numbers, and what is wrong with them."""
        found, having = {}, []
        for view in views:
            for place, number, text in self.numbers_of(browser, view):
                found.setdefault((place, number), (view, text))
                having.append(view)
        counts = {}
        for place in sorted({place for place, _ in found}):
            counts[place] = [self.true_count(name, place), *self.shown_counts(browser, place)]
        return having, ["%s: %r leads to %s with %s" % (view, text, place, counts[place])
                       for (place, number), (view, text) in found.items() if {number} != set(counts[place])]

    def look(self, name):
        """Walk through all views of somebody."""
        states = "SELECT status, count(*) FROM task GROUP BY status ORDER BY status"
        before = [tuple(row) for row in self.site.rows(states)]
        having, wrong = self.wrong(self.enter(name), name, self.views(name))
        for view in ("#/overview", "#/functions/letter", "#/tasks?", "#/tasks?status=failed"):
            self.assertIn(view, having)
        self.assertGreater(len(having), 300)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertEqual([tuple(row) for row in self.site.rows(states)], before)
        self.assertEqual(len(before), len(STATUSES))

    def test_each_number_that_an_admins_page_links_is_the_count_of_its_list(self):
        self.look("ana")

    def test_each_number_that_a_users_page_links_is_the_count_of_its_list(self):
        self.look("bob")

    def test_a_number_that_is_wrong_is_found_and_so_is_one_of_a_new_link(self):
        ana = self.enter("ana")
        ana.run(ARRIVE + "return arrive('#/help').then(() => document.querySelector('main').prepend("
                "Object.assign(document.createElement('a'), "
                "{ href: '#/tasks?status=running', textContent: '7 tasks run' })))")
        _, wrong = self.wrong(ana, "ana", ["#/help"])
        self.assertEqual(wrong, ["#/help: '7 tasks run | ' leads to #/tasks?status=running with [6, 6, 6]"])


def without_order(place):
    """Return the parts of an address but those that order a list."""
    path, _, query = place.partition("?")
    return path, {pair for pair in parse_qsl(query) if pair[0] not in ("sort", "cursor")}


if __name__ == "__main__":
    unittest.main()
