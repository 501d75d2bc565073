"""The page in a real Chromium: what people do with it, small and dark screens, the keyboard."""
import gzip
import re
import unittest

import jobqueue
from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import PASSWORD, ROOT, wait_until

VERDICTS = ["bad", "note", "ok"]
# From now on no request is sent until letGo().
HOLD = """
const held = new Promise((go) => { window.letGo = go; });
const real = window.fetch;
window.fetch = async (...request) => {
  await held;
  return real(...request);
};
"""
FIRST_VIEW_BYTES, WHOLE_PAGE_BYTES = 14336, 112640       # as they are sent: compressed
LANGUAGE_BYTES, SERVER_BYTES = 15360, 21504     # what the server says is asked for after the first view


class Weight(unittest.TestCase):
    """What has to be sent before something is seen, and in all."""

    def weight(self, names):
        """As the server sends them."""
        files = jobqueue.StaticFiles(ROOT / "static")
        return sum(len(gzip.compress(files.answer(name).body, 9)) for name in names)

    def first_view(self):
        """index.html, what it names, and what that imports."""
        found, left = set(), {"index.html"}
        while left:
            name = left.pop()
            found.add(name)
            text = (ROOT / "static" / name).read_text("utf-8")
            left |= set(re.findall(r'"static/([\w.]+)"', text))
            left |= set(re.findall(r"^(?:import .*|\}) from '\./([\w.]+)';$", text, re.MULTILINE))
            left -= found
        return found

    def test_the_first_view_is_small(self):
        names = self.first_view()
        self.assertLessEqual({"index.html", "style.css", "app.js", "tasks.js", "format.js"}, names)
        self.assertNotIn("live.js", names)
        self.assertLessEqual(self.weight(names), FIRST_VIEW_BYTES)

    def test_the_whole_page_is_small(self):
        names = {path.name for path in (ROOT / "static").iterdir() if path.is_file()}
        names -= {"api.json", "types.js"}
        self.assertLessEqual(self.first_view(), names)
        self.assertLessEqual(self.weight(names), WHOLE_PAGE_BYTES)

    def test_a_language_is_small(self):
        for path in (ROOT / "static" / "languages").iterdir():
            most = SERVER_BYTES if path.stem.endswith("-server") else LANGUAGE_BYTES
            self.assertLessEqual(self.weight(["languages/" + path.name]), most, path.name)

    def test_all_that_the_first_view_imports_is_asked_for_at_once(self):
        index = (ROOT / "static" / "index.html").read_text("utf-8")
        for name in self.first_view() - {"index.html"}:
            self.assertIn('"static/%s"' % name, index)


class Journey(BrowserTestCase):
    """From the printed link to a deleted task, with two people."""

    TASKS = TASKS
    USERS = False

    def test_a_first_visit_a_task_and_a_second_person(self):
        ana = self.set_up(self.link())
        number = self.add_report(ana)
        self.watch_it_run(ana, number)
        bob = self.second_person(ana)
        self.sees_none_of_it(bob, number)
        self.delete(ana, number)

    def link(self):
        """What the server printed for the first admin."""
        said = "".join(self.site.server.stdout.readline() for _ in range(3))
        return re.search(r"#setup=\S+", said)[0]

    def set_up(self, link):
        """The link makes the first admin."""
        ana = self.open()
        ana.go(link)
        ana.see("Welcome to jobqueue")
        ana.type("[name=name]", "ana")
        ana.type("[name=password]", PASSWORD)
        ana.click("button", "Start")
        ana.find("h1", "Overview")
        ana.see("No task yet")
        self.assertIsNone(ana.run("return document.querySelector('.charts').offsetParent"))
        self.assertNotIn("setup", ana.run("return location.href"))
        return ana

    def add_report(self, ana):
        """The form has a field for each parameter, and says what is wrong beside it."""
        ana.click("a", "New task")
        ana.click("a[href='#/new/report']")
        ana.find("h1", "report")
        ana.see("Write the monthly report of a city.")
        self.assertEqual(ana.run("return document.querySelector('[name=\"arguments.pages\"]').value"), "3")
        self.assertEqual(ana.run("return document.querySelector('[name=\"arguments.detailed\"]').type"),
                         "checkbox")
        ana.click("button", "Add task")
        ana.see("Please fill this in.")
        ana.type("[name='arguments.city']", "Tromsø")
        ana.click("button", "Add task")
        wait_until(lambda: re.search(r"#/tasks/\d+$", ana.run("return location.hash")),
                   what="the task's page")
        return int(ana.run("return location.hash").split("/")[-1])

    def watch_it_run(self, ana, number):
        """A worker starts by itself; progress, log and result appear without a reload."""
        ana.run("window.here = true")
        ana.see("halfway there")
        ana.see("writing about Tromsø")
        self.assertNotIn("not known yet", ana.text(".sentence"))
        (self.site.home / "go on").touch()
        ana.see("succeeded")
        ana.see("done with Tromsø")
        ana.see("pages")
        ana.click("a", "← Tasks")
        ana.see("succeeded", "table.list tbody tr")
        self.assertTrue(ana.run("return window.here"))
        self.assertEqual(self.site.json("show", number)["result"], {"city": "Tromsø", "pages": 3})
        self.list_is_live(ana)

    def list_is_live(self, ana):
        """What is added elsewhere shows up, and moves on, by itself."""
        number = self.site.add("report", city="Oslo")
        ana.see("1 new")
        ana.click("button", "1 new")
        row = "table.list tbody tr:first-child"
        ana.see("Oslo", row)
        ana.see("succeeded", row)
        self.site.run("delete", number)

    def second_person(self, ana):
        """An admin adds somebody, who logs in with another browser."""
        self.site.run("user", "add", "bob", given=PASSWORD + "\n")
        ana.click("a", "Users")
        ana.see("bob")
        return self.open("bob")

    def sees_none_of_it(self, bob, number):
        """Neither in the list, nor by its address, nor by searching."""
        bob.see("No task yet")
        self.assertEqual(bob.count("a.admin:not([hidden])"), 0)
        bob.go("#/tasks/%d" % number)
        bob.see("There is nothing here")
        bob.go("#/tasks?q=Troms")
        bob.see("No task matches")
        self.assertNotIn("Tromsø", bob.text())

    def delete(self, ana, number):
        """Deleting asks once, then the task is gone."""
        ana.go("#/tasks/%d" % number)
        ana.click("button", "Delete")
        ana.see("Delete #%d?" % number)
        ana.click(".question button", "Delete")
        ana.find("h1", "Tasks")
        ana.see_no("Tromsø")
        self.assertEqual(self.site.rows("SELECT id FROM task WHERE id=?", (number,)), [])


class Use(BrowserTestCase):
    """Single things that people do."""

    TASKS = TASKS

    def test_a_list_in_which_nothing_but_progress_changes_is_looked_at_less_often(self):
        self.add("echo", "ana", text="looked at")
        ana = self.open("ana")
        waits = ana.run("""
            const ask = window.fetch;
            return (async () => {
              const page = await (await ask('api/tasks?limit=50&counts=1')).json();
              const { TaskList } = await import(new URL('static/tasks.js', document.baseURI));
              const list = new TaskList(null);
              const [task] = page.tasks;
              const { signal } = new AbortController();
              const waits = [];
              window.fetch = async (path, ...more) => (String(path).startsWith('api/tasks')
                ? new Response(JSON.stringify(page)) : ask(path, ...more));
              page.service = { code: 'ok', text: '', since: null };
              for (const change of [
                () => { task.status = 'running'; page.counts.running = 1; }, () => {}, () => {},
                () => { task.progress = 0.5; }, () => { task.message = 'nearly'; },
                () => { task.status = 'failed'; page.counts.running = 0; }, () => {}, () => {}, () => {},
              ]) {
                change();
                waits.push(await list.refresh(signal));
              }
              return waits;
            })().finally(() => { window.fetch = ask; });
        """)
        self.assertEqual(waits, [2, 5, 8, 8, 8, 2, 5, 12.5, 15])

    def test_a_wrong_password_is_told_and_the_right_one_lets_in(self):
        bob = self.open()
        bob.go("#/tasks")
        bob.type("[name=name]", "bob")
        bob.type("[name=password]", "wrong")
        bob.click("button", "Log in")
        bob.see("The name or the password is not right.")
        bob.type("[name=password]", PASSWORD)
        bob.click("button", "Log in")
        bob.find("h1", "Tasks")

    def test_an_admin_who_has_lost_the_password_uploads_a_code(self):
        ana = self.open()
        ana.go("#/tasks")
        ana.click("summary", "Lost your password?")
        ana.click("main a", "set a new one")
        ana.find("h1", "A new admin password")
        ana.see("named setup-code-WORD.txt with a word that nobody can guess")
        code = self.site.home / "setup-code-mellonta.txt"
        self.addCleanup(lambda: code.exists() and code.unlink())
        code.write_text("sixteen or more characters")
        ana.type("[name=code]", "sixteen or more characters")
        ana.type("[name=name]", "bob")
        ana.type("[name=password]", PASSWORD)
        ana.click("button", "Set password")
        ana.see("that of an admin", "[data-field=name]")
        ana.type("[name=name]", "ana")
        ana.click("button", "Set password")
        ana.find("h1", "Overview")
        self.assertEqual(ana.run("return location.hash"), "#/overview")

    def test_logging_out_shows_the_log_in_again(self):
        bob = self.open("bob")
        bob.click("header summary")
        bob.click("#leave")
        bob.see("Log in to jobqueue")
        bob.go("#/tasks")
        bob.see("Log in to jobqueue")

    def test_whoever_has_to_log_in_again_finds_what_was_typed_and_nobody_else_does(self):
        bob = self.open("bob")
        self.fill_in(bob, "Hamar")
        self.site.rows("DELETE FROM session")
        bob.click("button", "Add task")
        self.log_in_here(bob, "bob")
        self.assertEqual(self.typed(bob), ["Hamar", "7", ""])
        bob.find("[name=max_retries]")                      # where it was typed is unfolded
        bob.click("button", "Add task")
        bob.see("Hamar", "h1")
        self.fill_in(bob, "Hamar")
        self.site.rows("DELETE FROM session")
        bob.run("dispatchEvent(new Event('online'))")       # the page looks, and is refused
        self.log_in_here(bob, "eve")
        self.assertEqual(self.typed(bob), ["", "", ""])

    def fill_in(self, browser, city):
        """The form of a new task, with something in its folded part and a secret."""
        browser.go("#/new/send")
        browser.type("[name='arguments.city']", city)
        browser.type("[name='arguments.password']", "secret")
        browser.click("summary", "Start time and options")
        browser.type("[name=max_retries]", "7")

    def log_in_here(self, browser, name):
        """Log in where the page asks for it; the form is there again then."""
        browser.find("h1", "Log in to jobqueue")
        browser.type("[name=name]", name)
        browser.type("[name=password]", PASSWORD)
        browser.click("button", "Log in")
        browser.find("h1", "send")

    def typed(self, browser):
        """What the form holds."""
        return browser.run("return ['arguments.city', 'max_retries', 'arguments.password'].map((name) => "
                           "document.querySelector(`[name='${name}']`).value)")

    def test_a_failed_task_shows_its_error_and_can_be_retried(self):
        number = self.done("fail", "bob", text="no such city")
        bob = self.open("bob")
        bob.see("failed", "table.list")
        bob.go("#/tasks/%d" % number)
        bob.see("ValueError: no such city")
        bob.click("button", "Retry")
        wait_until(lambda: self.site.json("show", number)["attempts"] == 2)
        bob.see("failed")

    def test_a_long_value_is_shown_in_part_and_can_be_fetched_whole(self):
        number = self.done("echo", "bob", text="r" * 11_000)
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.see("… and 1\u202f000 more characters")
        bob.find("a[href='api/tasks/%d'][download]" % number, "Download all of it")

    def test_a_task_can_be_cancelled_in_the_list(self):
        number = self.add("report", "bob", {"delay": 600}, city="Bergen")
        bob = self.open("bob")
        bob.click("button", "Cancel %d" % number)
        bob.see("cancelled", "table.list")
        self.assertEqual(self.site.json("show", number)["status"], "cancelled")

    def test_running_again_with_changes_starts_from_the_same_values(self):
        number = self.done("echo", "bob", text="Narvik")
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("a", "Run again with changes")
        bob.find("h1", "echo")
        self.assertEqual(bob.run("return document.querySelector(`[name='arguments.text']`).value"), "Narvik")

    def test_a_task_runs_again_with_the_same_values_by_one_click(self):
        number = self.done("echo", "bob", {"priority": -7, "max_retries": 2}, text="Narvik")
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("button", "Run again")
        wait_until(lambda: bob.number() != number, what="another task")
        again = self.site.json("show", bob.number())
        names = ("function", "arguments", "priority", "max_retries", "owner")
        self.assertEqual([again[name] for name in names], ["echo", {"text": "Narvik"}, -7, 2, "bob"])
        bob.see("succeeded", ".sentence")

    def test_another_persons_secret_does_not_run_again_by_one_click(self):
        number = self.done("send", "bob", city="Bergen", password="hidden")
        ana = self.open("ana", "#/tasks/%d" % number)
        ana.find("a", "Run again with changes")
        self.assertNotIn("Run again", ana.run(
            "return [...document.querySelectorAll('main button')].map((one) => one.innerText)"))
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("button", "Run again")
        wait_until(lambda: bob.number() != number, what="another task")
        values = [self.site.value("SELECT arguments FROM task WHERE id=?", (one,)) for one in (
            number, bob.number())]
        self.assertEqual(values[0], values[1])

    def test_a_task_that_has_not_begun_is_cancelled_and_changed(self):
        number = self.add("report", "bob", {"run_at": "2099-03-01T12:30:00Z", "unique_key": "north"},
                          city="Narvik", pages=7)
        bob = self.open("bob", "#/tasks/%d" % number)
        bob.click("button", "Cancel and change")
        bob.see("Cancel %d and open its values in a new form?" % number)
        self.assertEqual(bob.focused(), "No")
        bob.click(".danger", "Cancel and change")
        bob.find("h1", "report")
        self.assertEqual(self.site.json("show", number)["status"], "cancelled")
        bob.type("[name='arguments.pages']", "8")
        bob.click("button", "Add task")
        wait_until(lambda: bob.number() != number, what="another task")
        shown = self.site.json("show", bob.number())
        self.assertEqual([shown[name] for name in ("arguments", "run_at", "unique_key", "status")],
                         [{"city": "Narvik", "pages": 8}, "2099-03-01T12:30:00.000Z", "north", "scheduled"])

    def test_an_answer_from_the_server_stands_beside_its_field(self):
        bob = self.open("bob", "#/new/report")
        bob.type("[name='arguments.city']", "Bodø")
        bob.click("summary", "Start time and options")
        bob.type("[name=priority]", "101")
        bob.click("button", "Add task")
        bob.see("ust be", "[data-field=priority]")
        self.assertEqual(bob.run("return document.querySelector('[name=\"arguments.city\"]').value"), "Bodø")

    def test_a_server_that_is_away_is_told_and_found_again(self):
        bob = self.open("bob")
        port = int(self.base.rsplit(":", 1)[1].strip("/"))
        self.site.stop_server()
        try:
            bob.see("Connection lost", "#connection")
            looks = bob.run("return [document.querySelector('#connection').className, "
                            "Number(getComputedStyle(document.querySelector('main')).opacity) < 1]")
            self.assertEqual(looks, ["", True])         # a problem, and what is shown may be old
        finally:
            self.site.start_server("--port", str(port))
        wait_until(lambda: bob.run("return document.querySelector('#connection').hidden"),
                   what="the connection")
        self.browsers.remove(bob)                   # its console tells of the refused connections

    def test_an_admin_changes_a_setting(self):
        ana = self.open("ana")
        ana.click("a", "Settings")
        ana.type("[name=linger]", "21")
        ana.click("button", "Save")
        ana.see("Saved.")
        self.assertEqual(self.site.json("settings", "linger")["value"], 21)

    def test_an_admin_sees_what_check_says_of_this_host_the_problems_first(self):
        ana = self.open("ana")
        ana.click("a", "Settings")
        ana.click("main a", "This host")
        ana.find("h1", "This host: no problems")
        self.assertEqual(ana.focused(), "This host: no problems")
        self.assertEqual(ana.text("nav [aria-current]"), "Settings")
        self.addCleanup(self.site.write_tasks, TASKS)
        self.site.write_tasks("half of an upload (")
        ana.click("button", "Check again")
        ana.find("h1", "This host: 1 problem")
        self.assertEqual(ana.focused(), "This host: 1 problem")
        self.assertEqual(ana.run("return document.title"), "This host: 1 problem · jobqueue")
        said = self.site.json("check", "--quick", code=1)["checks"]
        shown = self.checks(ana)
        self.assertEqual(sorted(row[:2] for row in shown if row[0] != "Web server"),    # only seen there
                         sorted([check["name"], check["verdict"]] for check in said))
        verdicts = [row[1] for row in shown]
        self.assertEqual(verdicts, sorted(verdicts, key=VERDICTS.index))
        self.assertIn("Disk", [row[0] for row in shown if " GB free" in row[2]])
        self.assertEqual(shown[0], next([check["name"], check["verdict"], check["text"]]
                                        for check in said if check["name"] == "Functions"))

    def checks(self, browser):
        """Name, verdict and text of each row."""
        return browser.run("return [...document.querySelectorAll('main tbody tr')].map("
                           "(row) => [...row.children].map((cell) => cell.innerText))")

    def test_a_look_at_this_host_that_takes_long_says_so(self):
        ana = self.open("ana")
        ana.run(HOLD)
        ana.run("location.hash = '#/settings/host'")
        ana.see("Checking…")
        ana.run("letGo()")
        ana.find("button", "Check again")
        ana.run(HOLD)
        ana.click("button", "Check again")
        ana.see("Checking…")
        ana.run("letGo()")
        ana.find("h1", "This host: no problems")

    def test_who_is_no_admin_sees_nothing_of_this_host(self):
        bob = self.open("bob")
        self.assertEqual(bob.count("header a[href^='#/settings']:not([hidden])"), 0)
        bob.go("#/settings/host")
        bob.find("h1", "Not allowed")
        self.assertEqual(bob.count("main table"), 0)
        self.assertNotIn("host", bob.text("main").lower())
        self.assertEqual(bob.run("""
            const asked = new XMLHttpRequest();
            asked.open('GET', 'api/host', false);
            asked.send();
            return asked.status"""), 403)

    def test_a_token_is_shown_once(self):
        bob = self.open("bob", "#/account")
        bob.find("h1", "Account")
        bob.type("form [name=name]", "laptop")
        bob.type("form:has([name=scope]) [name=password]", PASSWORD)
        bob.run("document.querySelector('form [name=name]').form.requestSubmit()")
        wait_until(lambda: re.search(r"jq_\w{20,}", bob.run("return document.body.innerText + "
                   "[...document.querySelectorAll('input, textarea')].map((e) => e.value)")),
                   what="the token")
        bob.go("#/account")
        bob.see("laptop")
        self.assertNotRegex(bob.text(), r"jq_\w{20,}")

    def test_a_workers_token_is_bound_to_queues_and_functions(self):
        ana = self.open("ana", "#/account")
        ana.type("form [name=name]", "strong machine")
        self.assertFalse(ana.run("return document.querySelector('[name=queues]').checkVisibility()"))
        ana.run("const scope = document.querySelector('[name=scope]'); scope.value = 'worker';"
                "scope.dispatchEvent(new Event('input', { bubbles: true }))")
        ana.type("[name=queues]", "gpu, remote")
        ana.type("[name=functions]", "render")
        ana.type("form:has([name=scope]) [name=password]", PASSWORD)
        ana.run("document.querySelector('[name=scope]').form.requestSubmit()")
        ana.see("Copy it now")
        self.assertEqual(self.site.value("SELECT limits FROM token WHERE scope='worker'"),
                         '{"queues":["gpu","remote"],"functions":["render"]}')
        self.assertFalse(ana.run("return document.querySelector('[name=queues]').checkVisibility()"))

    def test_an_admin_sees_and_deletes_everybodys_tokens(self):
        self.site.run("token", "add", "of a program", "--owner", "bob")
        ana = self.open("ana", "#/account")
        ana.see("of a program")
        ana.run("[...document.querySelectorAll('tr')].find("
                "(row) => row.innerText.includes('of a program')).id = 'ours'")
        self.assertEqual(ana.text("#ours [data-label=Owner]"), "bob")
        ana.click("#ours button", "Delete")
        ana.click("#ours .danger", "Delete")
        ana.see_no("of a program", "table")
        self.assertNotIn("of a program", self.site.run("token", "list").stdout)


class Screens(BrowserTestCase):
    """Small screens, dark screens, the keyboard."""

    TASKS = TASKS
    PAGES = ("#/tasks", "#/tasks/1", "#/tasks/2", "#/new", "#/new/report", "#/new/report?many=1",
             "#/schedules", "#/schedules/1", "#/schedules/1?change=1", "#/queues", "#/queues/default",
             "#/workers", "#/settings", "#/settings/host", "#/users", "#/account", "#/nothing",
             "#/tasks/99999")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.site.home / "go on").touch()
        cls.site.run("schedule", "add", "report", "30 2 * mar,oct sunL", "city=" + "Vik" * 60, "--tz",
                     "Europe/Oslo")
        for number in (cls.site.add("report",
                                    city="Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch" * 3),
                       cls.site.add("fail", text="an/endless/path/without/a/space" * 20),
                       cls.site.add("report", "--delay", "600", city="Vik")):
            if number < 3:
                cls.site.wait(number)

    def each_page(self, browser):
        for page in self.PAGES:
            browser.go(page)
            browser.find("h1")
            wait_until(lambda: browser.count("body.busy") == 0)
            self.pause(0.2)
            yield page

    def test_every_page_fits_into_320_pixels_and_is_dark_where_the_screen_is(self):
        ana = self.open("ana")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=320, height=640, deviceScaleFactor=2,
                    mobile=True)
        ana.emulate("Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-color-scheme", "value": "dark"}])
        for page in self.each_page(ana):
            width = ana.run("return document.documentElement.scrollWidth")
            self.assertLessEqual(width, 320, page)
            self.assertGreater(self.brightness(ana, "color") - self.brightness(ana, "backgroundColor"), 0.5,
                               page)
        ana.emulate("Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-color-scheme", "value": "light"}])
        wait_until(lambda: self.brightness(ana, "backgroundColor") - self.brightness(ana, "color") > 0.5)

    def brightness(self, browser, name):
        """0..1 of a colour of the page, drawn on a canvas so that any way of writing it is understood."""
        red, green, blue = browser.run("""
            const places = [document.body, document.documentElement];
            const styles = places.map((e) => getComputedStyle(e)[arguments[0]]);
            const colour = styles.find((c) => !/^rgba\\(0, 0, 0, 0\\)$/.test(c)) || 'Canvas';
            const context = document.createElement('canvas').getContext('2d');
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)""", name)
        return (0.299 * red + 0.587 * green + 0.114 * blue) / 255

    def test_everything_can_be_reached_with_the_keyboard(self):
        ana = self.open("ana")
        ana.see("Vik", "table.list")
        ana.open_list()
        ana.see("Vik", "table.list")
        ana.find("[name=q]")
        ana.press("Tab")
        self.assertEqual(ana.focused(), "Skip to content")
        seen = set()
        for _ in range(60):
            ana.press("Tab")
            seen.add(ana.focused())
        for words in ("Tasks", "Workers", "Users", "Settings", "New task", "Cancel 3", "Search tasks"):
            self.assertTrue([text for text in seen if words in text], words)

    def test_keys_lead_to_search_list_and_new_task(self):
        ana = self.open("ana")
        ana.see("Vik", "table.list")
        first = ana.run("return document.querySelector('table.list tbody a').ariaLabel")
        ana.press("j")
        self.assertEqual(ana.focused(), first)
        ana.press("j")
        self.assertNotEqual(ana.focused(), first)
        ana.press("k", "Enter")
        ana.see("Timeline")
        ana.press("n")
        ana.find("h1", "New task")
        ana.press("/")
        wait_until(lambda: ana.focused() == "Search tasks")
        ana.press(*"Vik")
        wait_until(lambda: "q=Vik" in ana.run("return location.hash"))
        ana.press("n")                              # a letter, while one types
        self.assertIn("#/tasks", ana.run("return location.hash"))

    def test_a_task_can_be_added_without_a_mouse(self):
        ana = self.open("ana")
        ana.see("Vik", "table.list")                # who presses sooner is not heard yet
        ana.press("n")
        ana.find("a[href='#/new/report']")
        ana.run("document.querySelector('a[href=\"#/new/report\"]').focus()")
        ana.press("Enter")
        ana.find("[name='arguments.city']")
        ana.run("document.querySelector('[name=\"arguments.city\"]').focus()")
        ana.press(*"Vang", "Enter")
        wait_until(lambda: re.search(r"#/tasks/\d+$", ana.run("return location.hash")))
        ana.see("Vang")

    def test_nothing_moves_for_who_wants_no_motion(self):
        ana = self.open("ana")
        moves = "document.body.ariaBusy = 'true'; return getComputedStyle(document.body).transitionProperty"
        wait_until(lambda: ana.run(moves) == "opacity", what="the style")
        ana.emulate("Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        wait_until(lambda: ana.run(moves) == "none", what="the end of motion")


if __name__ == "__main__":
    unittest.main()
