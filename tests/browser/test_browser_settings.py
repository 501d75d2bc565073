"""The page in a real Chromium: settings, forms that help, schedules and queues at a glance, backups."""
import json
import unittest

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import wait_until

TASKS = "from jobqueue import task\n" + "".join('''

@task
def job_%d(x: int = 1, where: str = "here"):
    """Does the thing number %d."""
''' % (number, number) for number in range(9))
# What people type, in the languages of the page, and its seconds; None: it says no duration.
DURATIONS = {
    "90": 90, "0": 0, "1.5 h": 5400, "1,5 h": 5400, "90 min": 5400, "1 h 30": 5400, "1h30": 5400,
    "2 days": 172800, "1 d 12": 129600, "1 day and 2 hours": 93600, "45s": 45, "3 weeks": 1814400,
    "1 Std. 30 Min.": 5400, "2 Tage": 172800, "2 jours": 172800, "3 semaines": 1814400,
    "1 hora y 5 minutos": 3900, "2 días": 172800, "90 分钟": 5400, "2 小时": 7200, "3 天": 259200,
    "": None, "soon": None, "5 months": None, "h": None, "-5": None, "1 30": None, "5 s 3": None, "1e3": None,
}


class Planning(BrowserTestCase):
    TASKS = TASKS

    def value(self, browser, name):
        return browser.run("return document.querySelector(`[name='${arguments[0]}']`).value", name)

    def test_durations_are_read_as_people_write_them(self):
        bob = self.open("bob")
        read = bob.run("""
            return import(new URL('static/durations.js', document.baseURI)).then((module) => (
              JSON.parse(arguments[0]).map((text) => {
                const seconds = module.readDuration(text);
                return Number.isNaN(seconds) ? null : seconds;
              })))""", json.dumps(list(DURATIONS)))
        self.assertEqual(dict(zip(DURATIONS, read)), DURATIONS)
        written = bob.run("""
            return import(new URL('static/durations.js', document.baseURI)).then((module) => (
              [0, 1, 90, 5400, 86400, 90061].map(module.durationText)))""")
        self.assertEqual(written, ["0 s", "1 s", "1 min 30 s", "1 h 30 min", "1 d", "1 d 1 h 1 min 1 s"])

    def test_a_form_takes_durations_and_a_queue_from_the_list(self):
        self.site.run("queue", "set", "press", "--max-running", "1")
        self.site.run("queue", "pause", "press")
        self.addCleanup(self.site.run, "queue", "resume", "press")
        bob = self.open("bob", "#/new/job_3")
        bob.click("summary", "Start time and options")
        bob.choose("queue", "press")
        bob.type("[name=timeout]", "soon")
        bob.click("button", "Add task")
        bob.see("90 min, 1 h 30 or 2 days", "[data-field=timeout]")
        bob.type("[name=timeout]", "1 min 30")
        bob.type("[name=delay]", "2 days")
        bob.click("button", "Add task")
        number = bob.number()
        [row] = self.site.rows(
            "SELECT queue, timeout, run_at-created_at AS later FROM task WHERE id=?", (number,))
        self.assertEqual((row["queue"], row["timeout"]), ("press", 90))
        self.assertAlmostEqual(row["later"], 172800, delta=5)

    def test_ones_own_last_values_are_offered(self):
        self.site.add("job_4", "--owner", "eve", x=7)
        bob = self.open("bob", "#/new/job_4")
        bob.find("h1", "job_4")
        bob.see_no("Use the values of")
        number = self.site.add("job_4", "--owner", "bob", x=5, where="there")
        bob.go("#/new")
        bob.go("#/new/job_4")
        bob.see("Use the values of #%d" % number)
        bob.click("main a", "Use the values of #%d" % number)
        wait_until(lambda: self.value(bob, "arguments.x") == "5", what="the values")
        self.assertEqual(self.value(bob, "arguments.where"), "there")

    def test_many_functions_can_be_searched_and_the_most_used_come_first(self):
        for _ in range(3):
            self.site.wait(self.site.add("job_6", "--owner", "bob"))
        bob = self.open("bob")
        self.site.rows("UPDATE activity SET at=at-100")     # few rows are counted when they are old
        wait_until(lambda: self.site.run("tick") and self.site.value(
            "SELECT 1 FROM hour WHERE function='job_6'"), what="its figures")
        bob.go("#/new")
        bob.find("[type=search]")
        self.assertEqual(bob.text(".choices li:first-child b"), "job_6")
        bob.type("[type=search]", "NUMBER 7")
        self.assertEqual(bob.run("return [...document.querySelectorAll('.choices li')]"
                                 ".filter((row) => row.checkVisibility()).map((row) => row.innerText)[0]")
                         .split()[0], "job_7")
        bob.type("[type=search]", "nothing")
        bob.see("Nothing matches.")

    def test_a_schedule_has_a_name_and_is_run_and_paused_in_its_row(self):
        bob = self.open("bob", "#/schedules/new?function=job_1")
        bob.type("[name=name]", "Nightly letters")
        bob.click("button", "Add schedule")
        bob.see("Nightly letters", "h1")
        bob.click("a", "← Schedules")
        bob.see("Nightly letters job_1", ".schedules")
        bob.click(".schedules button", "Run now")
        bob.see(" was added.")
        bob.click(".schedules button", "Pause")
        bob.type("[name=why]", "holidays")
        bob.click(".schedules form button", "Pause")
        bob.see("holidays", ".schedules")
        bob.click(".schedules button", "Resume")
        bob.see_no("holidays", ".schedules")
        bob.click(".schedules a", "Nightly letters")
        bob.click("a", "Change")
        bob.find("[name=name]")
        self.assertEqual(self.value(bob, "name"), "Nightly letters")

    def test_queues_show_how_full_they_are(self):
        self.site.run("queue", "set", "mail", "--max-running", "4")
        self.site.run("queue", "pause", "mail")
        for _ in range(2):
            self.site.add("job_2", "--queue", "mail", "--owner", "bob")
        bob = self.open("bob", "#/queues")
        row = "tr[data-key=mail]"
        bob.see("0 of 4", row)
        bob.see("oldest waits", row)
        self.assertEqual(bob.run("return [...document.querySelectorAll(`${arguments[0]} progress`)]"
                                 ".map((bar) => [bar.value, bar.max])", row), [[0, 4]])

    def test_settings_stand_in_groups_with_defaults_and_are_reset_together_with_the_rest(self):
        self.site.settings(linger=60)
        ana = self.open("ana", "#/settings")
        ana.find("h2", "Workers")
        ana.see("Default: 15 s.", "[data-field=linger]")
        ana.click("button", "Reset: Wait for more work")
        ana.type("[name=alert_wait]", "1 h 30")
        ana.choose("backup_hour", "3")
        ana.see("3 changes not saved")
        ana.click("button", "Save")
        ana.see("Saved.")
        rows = {row["name"]: row for row in self.site.json("settings")["settings"]}
        self.assertEqual((rows["linger"]["value"], rows["linger"]["from"]), (15, "default"))
        self.assertEqual((rows["alert_wait"]["value"], rows["backup_hour"]["value"]), (5400, "3"))
        ana.type("[name=alert_wait]", "whenever")
        ana.click("button", "Save")
        ana.see("90 min", "[data-field=alert_wait] .error")

    def test_settings_are_searched_and_an_error_is_seen_whatever_one_searched(self):
        ana = self.open("ana")
        ana.go("#/settings")
        ana.type("[name=linger]", "a while")
        ana.type("[type=search]", "BACKUP_hour")
        ana.find("[name=backup_hour]")
        self.assertEqual(ana.run("return ['h2', '.field'].map((one) => [...document.querySelectorAll("
                                 "`main ${one}`)].filter((part) => part.checkVisibility()).length)"), [1, 1])
        ana.click("button", "Save")
        ana.find("[data-field=linger] .error")
        ana.type("[type=search]", "no such setting")
        ana.see("Nothing matches.")
        ana.type("[type=search]", "linger")
        ana.type("[name=linger]", "16 s")
        ana.click("button", "Save")
        ana.see("Saved.")
        self.assertEqual(ana.focused(), "Save")
        self.assertEqual(ana.run("return document.querySelector('.seek').value"), "linger")
        self.assertFalse(ana.run("return document.querySelector('[name=backup_hour]').checkVisibility()"))
        ana.go("#/settings/host")
        ana.click("main p a", "Settings")
        ana.find("[name=backup_hour]")
        self.assertFalse(ana.run("return document.querySelector('[name=linger]').checkVisibility()"))

    def test_a_backup_is_downloaded_by_a_button(self):
        ana = self.open("ana", "#/settings/host")
        ana.find("a", "Download a backup")
        size, kind = ana.run("""
            return fetch(document.querySelector('main a[download]').href).then(async (answer) => (
              [(await answer.blob()).size, answer.headers.get('content-disposition')]))""")
        self.assertGreater(size, 20_000)
        self.assertIn("attachment; filename=backup-", kind)
        self.assertEqual(list(self.site.data.glob("*download*")), [])


if __name__ == "__main__":
    unittest.main()
