"""The page in a real Chromium behind a host that passes only GET, HEAD and POST, with forms and JSON."""
import threading
from http.server import ThreadingHTTPServer

from tests.helpers.browser import ELEMENT, BrowserTestCase
from tests.http.test_narrow import Strict

TASKS = """
from pathlib import Path
from jobqueue import task

@task
def size(file: Path) -> int:
    return len(file.read_bytes())
"""


class Narrow(BrowserTestCase):
    TASKS = TASKS

    @classmethod
    def start_site(cls):
        super().start_site()
        cls.handler = type("Here", (Strict,), {"target": cls.base})
        front = ThreadingHTTPServer(("127.0.0.1", 0), cls.handler)
        cls.addClassCleanup(front.server_close)
        cls.addClassCleanup(front.shutdown)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        cls.address = cls.base = "http://127.0.0.1:%d/" % front.server_port

    def setUp(self):
        super().setUp()
        self.site.rows("UPDATE queue SET paused=0")

    def test_the_page_works_and_says_what_is_refused(self):
        ana = self.open("ana", "#/settings/host")
        ana.see("Something in front of this site refuses PATCH (403), DELETE (403), "
                "application/octet-stream (403).", "main")
        ana.go("#/queues")
        ana.click("button", "Pause")
        ana.click("form button", "Pause")
        ana.see("paused", "main")
        self.assertEqual(self.site.value("SELECT paused FROM queue WHERE name='default'"), 1)
        photo = self.site.home / "photo"
        photo.write_bytes(b"12345" * 1000)
        ana.go("#/new/size")
        ana.ask("POST", "/element/%s/value" % ana.find("[type=file]")[ELEMENT], {"text": str(photo)})
        ana.see("stored", "main")
        ana.click("button", "Add task")
        ana.see("uploaded", "main")
        ana.click("button", "Delete")
        ana.click(".question button", "Delete")
        ana.see("deleted")
        self.assertEqual(self.site.value("SELECT count(*) FROM task"), 0)
        ana.click("header summary")
        ana.click("#leave")
        ana.see("Log in to jobqueue")

    def test_what_is_refused_whatever_is_tried_is_named(self):
        ana = self.open("ana", "#/queues")
        self.handler.types = ()
        self.addCleanup(delattr, self.handler, "types")
        ana.click("button", "Pause")
        ana.click("form button", "Pause")
        ana.see("Something in front of this site refused: 403.")
