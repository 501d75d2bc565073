"""The page in a real Chromium behind real web servers (see doors.py)."""
from tests.browser import test_browser
from tests.helpers import browser, doors
from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import PASSWORD, need_part, wait_until
from tests.helpers.web import Visitor

setUpModule = doors.open_folders


class BehindDoor:
    """A site behind a web server instead of one with its own."""

    TASKS = browser.TASKS
    USERS = False

    @classmethod
    def start_site(cls):
        need_part("doors")
        cls.Door.need()
        cls.door = cls.Door(cls.TASKS)
        cls.addClassCleanup(cls.door.close)
        cls.door.start()
        cls.site, cls.base = cls.door.site, cls.door.address
        cls.visitor = Visitor(cls.base)
        cls.visitor.get("/api/session")

    def link(self):
        """What leads the first admin to the set-up."""
        return "#setup=" + self.door.setup_code()

    def second_person(self, ana):
        """None: the first one logs out and in again."""
        ana.click("summary", "ana")
        ana.click("button", "Log out")
        ana.find("button", "Log in")
        ana.log_in("ana")

    def sees_none_of_it(self, *_):
        """Nobody else is there."""

    def delete(self, ana, number):
        """Before that task is deleted another one is cancelled."""
        self.cancel(ana)
        super().delete(ana, number)

    def cancel(self, ana):
        """A task that runs is stopped from its page."""
        (self.site.home / "go on").unlink()
        another = self.site.add("report", city="Bergen")
        ana.go("#/tasks/%d" % another)
        ana.see("halfway there")
        ana.click("button", "Stop")
        ana.click(".question button", "Stop")
        ana.see("cancelled")
        self.assertEqual(self.site.json("show", another)["status"], "cancelled")


class CgiJourney(BehindDoor, test_browser.Journey):
    """The whole journey through CGI at a clean address."""

    Door = doors.ApacheCgiRewritten


class ProxyJourney(BehindDoor, test_browser.Journey):
    """The whole journey through nginx below a prefix."""

    Door = doors.NginxServe


class Exposed(BehindDoor, BrowserTestCase):
    """The admin's browser tells whether the web server gives away what is private."""

    Door = doors.ApacheCgi

    def test_the_page_turns_red_where_htaccess_is_ignored_and_only_there(self):
        self.visitor.post("/api/setup", {"code": self.door.setup_code(), "name": "ana", "password": PASSWORD})
        ana = self.open("ana")
        self.look(ana)
        ana.see("no private file", "main")
        self.assertEqual(ana.count("#exposed:not([hidden])"), 0)
        self.door.allow("None")
        self.look(ana)
        ana.see("Anybody can read this over the web", "#exposed")
        self.assertIn("/jq/data/canary.txt", ana.text("#exposed"))
        self.assertIn("/jq/tasks.py", ana.text("#exposed"))
        self.door.allow("All")
        self.look(ana)
        wait_until(lambda: ana.count("#exposed:not([hidden])") == 0, what="the end of the red line")

    def look(self, ana):
        """Let the browser fetch what is private."""
        before = self.visitor.get("/api/host").json["looked_at"]
        ana.go("#/settings/host")
        wait_until(lambda: self.visitor.get("/api/host").json["looked_at"] != before,
                   what="a look", pause=0.2)
