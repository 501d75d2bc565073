"""The page in another language, in the theme that one chose, and moved through by keys."""
import json
import re
import unittest

import jobqueue
from tests.helpers.browser import TASKS, BrowserTestCase
from tests.helpers.support import ROOT, wait_until

# Tells which texts the page ever showed in its frame.
SEEN = """
window.seen = new Set();
new MutationObserver(() => {
  const link = document.querySelector('header:not([hidden]) nav a');
  if (link) window.seen.add(link.textContent);
}).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
"""


NUMBERS = re.compile(re.search(r"NUMBERS = /\^(.*)\$/", (ROOT / "static" / "said.js").read_text("utf-8"))[1])


def texts(language):
    """What the page says in a language."""
    return json.loads((ROOT / "static" / "languages" / (language + ".json")).read_text("utf-8"))


def fill(text):
    """A text of the server with values at its places: those of numbers have numbers."""
    return re.sub(r"{(\w+)}", lambda place: "7" if NUMBERS.fullmatch(place[1]) else "X" + place[1], text)


class Languages(BrowserTestCase):
    """The browser chooses, or the person."""

    TASKS = TASKS

    def keep(self, browser, **values):
        """Put into the browser what it remembers."""
        for name, value in values.items():
            browser.run("localStorage.setItem('jobqueue-' + arguments[0], arguments[1])", name, value)

    def test_a_person_chooses_a_language_and_never_sees_another_after_that(self):
        bob = self.open("bob")
        bob.click("#me")
        bob.run("""const select = document.querySelector('.menu select');
            select.value = 'de';
            select.dispatchEvent(new Event('change'))""")
        german = texts("de")
        bob.find("h1", german["Tasks"])
        self.assertEqual(bob.run("return document.documentElement.lang"), "de")
        bob.emulate("Page.enable")
        bob.emulate("Page.addScriptToEvaluateOnNewDocument", source=SEEN)
        bob.go("#/tasks")
        bob.find("h1", german["Tasks"])
        self.assertEqual(bob.run("return [...seen]"), [german["Overview"]])
        self.keep(bob, language="en")
        bob.open_list()
        self.assertEqual(bob.run("return document.documentElement.lang"), "en")

    def test_the_browser_s_own_language_is_taken_if_there_is_one(self):
        bob = self.open("bob")
        bob.emulate("Page.enable")
        for code, spoken in ("fr-CA", "fr"), ("zh-CN", "zh"), ("ja-JP", "en"):
            bob.emulate("Page.addScriptToEvaluateOnNewDocument",
                        source="Object.defineProperty(navigator, 'languages', "
                               "{ configurable: true, get: () => ['%s'] })" % code)
            bob.go("#/tasks")
            bob.find("h1", texts(spoken)["Tasks"] if spoken != "en" else "Tasks")
            self.assertEqual(bob.run("return document.documentElement.lang"), spoken)

    def test_times_and_numbers_are_written_as_the_language_does(self):
        bob = self.open("bob")
        self.keep(bob, language="de")
        bob.go("#/schedules/new?function=send")
        bob.find("select[name=kind]")
        bob.run("""const kind = document.querySelector('[name=kind]');
            kind.value = 'yearly';
            kind.dispatchEvent(new Event('input', { bubbles: true }))""")
        bob.see("Dezember", "[name=month]")
        words = bob.run("""return import('./static/format.js').then(
            ({ countWords, duration }) => [countWords(12345, 1e6), duration(0.5)])""")
        self.assertEqual(words, ["12\u202f345", "0,5 s"])

    def test_forms_follow_the_count_as_the_language_has_them(self):
        bob = self.open("bob")
        for code, words in (("en", ["0 tasks", "1 task", "2 tasks"]),
                            ("fr", ["0 tâche", "1 tâche", "2 tâches"]),
                            ("zh", ["0 个任务", "1 个任务", "2 个任务"])):
            self.keep(bob, language=code)
            bob.go("#/tasks")
            bob.find("h1", texts(code)["Tasks"] if code != "en" else "Tasks")
            said = bob.run("""return import('./static/language.js').then(({ t }) => (
                [0, 1, 2].map((count) => t.n('{count} task | {count} tasks', count))))""")
            self.assertEqual(said, words)

    def test_where_one_is_stays_in_sight_on_a_phone_with_long_words(self):
        ana = self.open("ana")
        self.keep(ana, language="de")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=320, height=640, deviceScaleFactor=2,
                    mobile=True)
        ana.go("#/settings")
        ana.find("h1", texts("de")["Settings"])
        wait_until(lambda: ana.run("""
            const here = document.querySelector('header nav [aria-current]');
            return here && here.getBoundingClientRect().right <= innerWidth"""))
        self.assertLessEqual(ana.run("return document.documentElement.scrollWidth"), 320)

    def test_who_one_is_stands_beside_the_name_with_long_words_on_a_small_screen(self):
        ana = self.open("ana")
        self.keep(ana, language="de")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=1000, height=700, deviceScaleFactor=1,
                    mobile=False)
        ana.go("#/queues")
        ana.find("h1", texts("de")["Queues"])
        self.assertEqual(ana.text(".queues thead th:nth-child(3)"), "Laufend")
        bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        self.assertEqual(*(round(ana.run(bottom, one) / 8) for one in (".brand", ".menu")))
        ana.emulate("Emulation.clearDeviceMetricsOverride")

    def test_what_the_server_says_is_in_that_language_too(self):
        ana = self.open("ana")
        for code in "de", "es", "fr", "zh":
            self.keep(ana, language=code)
            own = {**texts(code), **texts(code + "-server")}
            ana.go("#/settings")
            ana.find("h2", own["Web address"])
            for one in jobqueue.SETTINGS.values():
                for text in (one.label, one.help):
                    ana.see(own[text], "main")
                    if own[text] != text and " " in text:
                        self.assertNotIn(text, ana.text("main").split("\n"))
            ana.see(own["days"], "[data-field=keep_days]")
            self.assertEqual(ana.run("return document.querySelector('[name=stay_asleep]').innerText"),
                             "%s\n%s" % (own["no"], own["yes"]))
            ana.go("#/settings/host")
            ana.see(own["HTTP, from this machine"], "main")
            ana.see(own["Run a sample task"], "main")
            ana.see(own["For systemd"], "main")
            for topic in (*jobqueue.VISIT_TOPICS, *jobqueue.TOPICS):
                ana.see(own[topic], "main")
        self.keep(ana, language="en")

    def test_sentences_with_values_are_in_that_language_too_and_names_stay(self):
        self.site.run("queue", "pause", "default", "--why", "moving")
        self.addCleanup(self.site.run, "queue", "resume", "default")
        number = self.add("report", city="Oslo")
        ana = self.open("ana")
        self.keep(ana, language="de")
        for page in "#/tasks/%d" % number, "#/tasks":
            ana.go(page)
            ana.see("Die Warteschlange default wurde von der Kommandozeile angehalten: moving.")
        told = {
            "Next: remove files: the disk is full":
                "Als Nächstes: entfernen Sie Dateien: Die Festplatte ist voll",
            "No task starts: tasks. Next try 12:00.": "Keine Aufgabe startet: tasks. Nächster Versuch 12:00.",
            "Waiting for cron, which comes about every 5 minutes; it came last at 10:00.":
                "Warten auf Cron, der etwa alle 5 Minuten kommt; zuletzt kam er um 10:00.",
            "All workers are busy, and a worker could not be started (process limit).":
                "Alle Worker sind beschäftigt, und: Ein Worker konnte nicht gestartet werden (Grenze für "
                "Prozesse).",
            "The running time of search is not known yet.": "Die Laufzeit von search ist noch nicht bekannt.",
            "visitors come through a proxy, 192.0.2.7; its headers about them and about HTTPS are ignored: "
            "if it belongs to your host, write 192.0.2.7 into the setting trusted_proxies; if only HTTPS is "
            "not noticed, set https to always":
                "Besucher kommen über einen Proxy, 192.0.2.7; seine Kopfzeilen über sie und über HTTPS "
                "werden ignoriert: Gehört er zu Ihrem Host, tragen Sie 192.0.2.7 in die Einstellung "
                "trusted_proxies ein; wird nur HTTPS nicht bemerkt, setzen Sie https auf always",
            "no task is run: set NbMaxWorker to 1 or more: it is 0; no cron has come; else":
                "keine Aufgabe wird ausgeführt: setzen Sie NbMaxWorker auf 1 oder mehr: Es ist 0; kein Cron "
                "kam; else",
            "Nothing was added: row 2 (index 1): arguments.city must be at least 1 and at most 5.":
                "Nichts wurde hinzugefügt: Zeile 2 (Index 1): arguments.city muss mindestens 1 und höchstens "
                "5 sein.",
            "a worker could not be started (process limit) at 2026-01-31 12:00:00 UTC":
                "Ein Worker konnte nicht gestartet werden (Grenze für Prozesse) um 2026-01-31 12:00:00 UTC",
            "slice. Cron works on the tasks, because the host ended workers soon after they had started "
            "(12:00 UTC). Starting them is tried again at 13:00 UTC":
                "slice. Cron bearbeitet die Aufgaben, weil der Host gestartete Worker bald beendete (12:00 "
                "UTC). Um 13:00 UTC wird erneut versucht, sie zu starten",
            "something else": "something else", "it went wrong on line 3": "it went wrong on line 3",
            "ValueError: no such city; running": "ValueError: no such city; running"}
        said = ana.run("return import('./static/said.js').then(({ said }) => arguments[0].map(said))".replace(
            "arguments[0]", json.dumps(list(told))))
        self.assertEqual(dict(zip(told, said)), told)

    def test_what_is_refused_and_what_happened_is_in_that_language_too(self):
        self.site.run("user", "logout", "bob")
        ana = self.open("ana")
        self.keep(ana, language="de")
        ana.go("#/tasks")
        ana.find("h1", texts("de")["Tasks"])
        refused = """return import('./static/api.js').then(({ request }) => request(...arguments)).catch(
            ({ errors, message }) => [errors[0].message, message])"""
        self.assertEqual(ana.run(refused, "PATCH", "api/settings", {"NbMaxWorker": 9999}), [
            "muss mindestens 0 und höchstens 256 sein",
            "NbMaxWorker muss mindestens 0 und höchstens 256 sein."])
        words = "kann nicht „61“ als Minute haben: schreiben Sie 0 bis 59; ein Bereich läuft vorwärts, ein " \
                "Schritt bleibt darin"
        self.assertEqual(ana.run(refused, "POST", "api/schedules/preview", {"rule": "61 1 * * *"}),
                         [words, "rule " + words])
        ana.go("#/activity?event=logged_out")
        ana.see("bob: überall", "table.activity")
        ana.see("von der Kommandozeile", "table.activity")

    def test_each_sentence_of_the_server_is_known_by_its_own_row_whatever_its_values_are(self):
        bob = self.open("bob")
        for code in "de", "es", "fr", "zh":
            self.keep(bob, language=code)
            bob.go("#/tasks")
            bob.find("h1", texts(code)["Tasks"])
            filled = {fill(key): fill(own) for key, own in texts(code + "-server").items()}
            said = bob.run("return import('./static/said.js').then(({ said }) => %s.map(said))"
                           % json.dumps(list(filled)))
            self.assertEqual({one: own for one, own in zip(filled, said) if own != filled[one]}, {})

    def test_a_rule_is_told_in_that_language(self):
        rules = {"daily 07:00": "Täglich, 07:00", "weekly mon,fri 07:00": "Wöchentlich, Mo, Fr, 07:00",
                 "monthly last 01:00": "Monatlich, der letzte Tag, 01:00", "every 90m": "Alle 90 min",
                 "yearly 12-24 01:00": "Jährlich, 24. Dezember, 01:00", "@weekly": "Wöchentlich, So, 00:00",
                 "every 2 hours": "Alle 2 h", "0 7 * * 1-5": "Wöchentlich, Mo–Fr, 07:00",
                 "0 3 * * *": "Täglich, 03:00",
                 "5 4 * * sun": "Wöchentlich, So, 04:05", "*/20 * * * *": "Alle 20 min",
                 "*/15 9-17 * mar *": "Minute */15, Stunde 9-17, Monat März",
                 "0 6 L * *": "06:00, Tag des Monats L"}
        zone = self.open("ana").run("return Intl.DateTimeFormat().resolvedOptions().timeZone")
        for rule in rules:
            self.program("ana").post("/api/schedules", {
                "function": "send", "arguments": {"city": "Oslo"}, "rule": rule, "zone": zone})
        self.program("ana").post("/api/schedules", {"function": "send", "arguments": {"city": "Vik"},
                                                    "rule": "daily 07:30", "zone": "Asia/Tokyo"})
        ana = self.open("ana")
        self.keep(ana, language="de")
        ana.go("#/schedules")
        for words in (*rules.values(), "Täglich, 07:30 (Asia/Tokyo)"):
            ana.see(words, ".schedules")
        ana.go("#/schedules/new?function=send")
        ana.see("Täglich, 01:00", ".preview")

    def test_a_language_that_does_not_come_leaves_the_page_in_english(self):
        bob = self.open("bob")
        self.keep(bob, language="de")
        bob.emulate("Network.enable")
        bob.emulate("Network.setBlockedURLs", urls=["*/languages/*"])
        bob.go("#/tasks")
        bob.find("h1", "Tasks")
        bob.emulate("Network.setBlockedURLs", urls=[])
        bob.messages().clear()


class Theme(BrowserTestCase):
    """Light, dark, or as the system has it."""

    TASKS = TASKS

    def test_what_one_chose_is_there_from_the_first_moment_and_in_every_tab(self):
        bob = self.open("bob")
        theme = "return document.documentElement.dataset.theme"
        self.assertEqual(bob.run(theme), "light")
        bob.run("""const select = [...document.querySelectorAll('.menu select')].pop();
            select.value = 'dark';
            select.dispatchEvent(new Event('change'))""")
        self.assertEqual(bob.run(theme), "dark")
        bob.emulate("Page.enable")
        bob.emulate("Page.addScriptToEvaluateOnNewDocument", source="""
            new MutationObserver((_, watch) => {
              if (!document.body) return;
              window.first = document.documentElement.dataset.theme;
              watch.disconnect();
            }).observe(document, { subtree: true, childList: true })""")
        bob.open_list()
        self.assertEqual(bob.run("return first"), "dark")
        self.assertEqual(bob.run("return getComputedStyle(document.documentElement).colorScheme"), "dark")
        bob.run("""localStorage.setItem('jobqueue-theme', '');
            dispatchEvent(new StorageEvent('storage'))""")          # as another tab does
        self.assertEqual(bob.run(theme), "light")


class Keys(BrowserTestCase):
    """What keys do besides those of every page."""

    TASKS = TASKS

    def test_a_task_is_cancelled_retried_and_left_by_keys(self):
        self.site.add("report", "--owner", "bob", "--delay", "3600", city="Oslo")
        bob = self.open("bob")
        bob.see("Oslo", "table.list")
        bob.press("c")                              # no row has the focus
        self.pause(0.3)
        self.assertIn("scheduled", bob.text("table.list"))
        bob.press("j", "c")
        bob.see("cancelled", "table.list")
        self.pause(1.1)                             # who presses at once meant the button before
        bob.press("r")
        bob.see_no("cancelled", "table.list")
        bob.press("j", "Enter")
        bob.see("Timeline")
        bob.press("u")
        bob.find("h1", "Tasks")

    def test_the_tabs_are_turned_by_keys_but_not_while_one_types(self):
        bob = self.open("bob")
        chosen = "return document.querySelector('.tabs [aria-current]').dataset.status"
        bob.press("l")
        wait_until(lambda: bob.run(chosen) == "pending")
        bob.press("h")
        wait_until(lambda: bob.run(chosen) == "")
        bob.press("/")
        wait_until(lambda: bob.focused() == "Search tasks")
        bob.press(*"hello")
        self.assertEqual(bob.run("return document.activeElement.value"), "hello")

    def test_all_keys_are_shown(self):
        bob = self.open("bob")
        bob.press("?")
        bob.see("retry the task", "dialog")
        bob.press("Escape")
        bob.see_no("retry the task")


if __name__ == "__main__":
    unittest.main()
