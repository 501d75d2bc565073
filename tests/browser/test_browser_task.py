"""The page of a task in a real Chromium: what stands on top, its log, its files."""
import json
import unittest

from tests.helpers.browser import ELEMENT, BrowserTestCase
from tests.helpers.support import function_json, wait_until
from tests.helpers.web import Visitor

TASKS = r'''
import json
import sys
import time
from pathlib import Path
from jobqueue import RetryAfter, current_task, task

@task(max_retries=1, retry_delay=0)
def letter(to: str):
    """Send a letter."""
    print("looking for", to)
    raise ValueError("550 5.1.1: no such mailbox")

@task
def lines(count: int, width: int = 0):
    for number in range(count):
        print("line %d %s" % (number, "x" * (number * 7 % (width or 1))))

@task
def say(text: str):
    sys.stdout.write(text)

@task
def turn(photo: Path, others: list[Path] = (), title: str = "") -> Path:
    """Turn a photo."""
    out = current_task().folder / "turned.txt"
    out.write_text("turned " + photo.read_text() + "".join(one.read_text() for one in others))
    (current_task().folder / "towns.csv").write_text(
        "town,people\n" + "".join('"Town, %d",%d\n' % (n, n) for n in range(30)))
    (current_task().folder / "dot.png").write_bytes(bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360f8cf500f0003860180"
        "5a347d6b0000000049454e44ae426082"))
    (current_task().folder / "page.html").write_text("<script>alert(1)</script>")
    return out

@task
def collect(town: str):
    if Path("broken").exists():
        raise ValueError("no numbers of " + town)

@task(max_retries=5)
def patient(seconds: float, message: str = ""):
    raise RetryAfter(seconds, *[message] if message else [])

@task(max_retries=1, retry_delay=600)
def mute(kind: str = "assertion"):
    assert kind != "assertion"

@task
def numbers() -> list:
    rows = [{"longitude": -60.1451234567, "at": "2026-11-05T12:00:00+00:00", "city": "San Miguel de Tucuman",
             "day": "2026-11-05", "temperature_in_degrees": 12.5, "word": "word " * 30} for _ in range(3)]
    (current_task().folder / "numbers.csv").write_text(
        "\n".join([",".join(rows[0])] + [",".join(map(str, row.values())) for row in rows]))
    return rows

@task
def chart(width: int = 600, height: int = 300) -> Path:
    """Leave a picture, and return it."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    out = current_task().folder / "chart.png"
    out.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + chunk(
            b"IDAT", zlib.compress((b"\0" + b"\x90" * width) * height)) + chunk(b"IEND", b""))
    return out

@task
def charts() -> dict:
    return {"picture": chart(60, 30), "text": "chart.png, the picture", "at": "https://example.org/a?b=c"}

@task
def give(value: str):
    return json.loads(value)

@task
def follow():
    """Prints a line for each one in a file, until that says "end"."""
    at = 0
    while True:
        lines = Path("said").read_text().splitlines() if Path("said").exists() else []
        for line in lines[at:]:
            print(line, flush=True)
            if line == "end":
                return
        at = len(lines)
        time.sleep(0.05)
'''
# What is in the document of a log, and how high it is and seems to be.
SIGHT = """
const box = document.querySelector('.log');
const rows = [...box.querySelectorAll('.line')];
const top = box.getBoundingClientRect().top;
const seen = rows.filter((row) => {
  const at = row.getBoundingClientRect();
  return at.bottom > top + 1 && at.top < top + box.clientHeight - 1;
});
return {
  rows: rows.length, height: box.scrollHeight, top: box.scrollTop,
  atEnd: box.scrollTop + box.clientHeight > box.scrollHeight - 2,
  wrong: rows.filter((row) => row.querySelector('a').innerText
    !== String(Number(row.querySelector('span').innerText.split(' ')[1]) + 1)).length,
  first: seen[0]?.innerText, last: seen[seen.length - 1]?.innerText,
  body: rows.length && Math.round(rows[rows.length - 1].getBoundingClientRect().bottom
    - rows[0].getBoundingClientRect().top),
  gaps: [box.firstElementChild, box.lastElementChild].map((gap) => gap.offsetHeight),
};
"""


class TaskCase(BrowserTestCase):

    TASKS = TASKS

    def show(self, number, query=""):
        """A browser of ana's at a task's page."""
        ana = self.open("ana", "#/tasks/%d%s" % (number, query))
        ana.find(".facts")
        return ana


class Top(TaskCase):
    """What one sees first."""

    def test_number_owner_attempt_and_times_stand_on_top(self):
        ana = self.show(self.done("letter", to="per"))
        number = int(ana.run("return location.hash").rsplit("/", 1)[1])
        self.assertRegex(ana.text(".facts"), r"^#%d · ana · attempt 2 of 2 · added \d+ \w+, \d\d:\d\d:\d\d"
                         r" · started \d\d:\d\d:\d\d · ended \d\d:\d\d:\d\d · all of letter" % number)
        ana.click("a", "all of letter")
        ana.find("h1", "Tasks")
        self.assertIn("function=letter", ana.run("return location.hash"))

    def test_an_error_is_told_once(self):
        ana = self.show(self.done("letter", to="per"))
        ana.see("looking for per", ".log")
        ana.see("failed", "ol.timeline")
        self.assertEqual(ana.text("main").replace(ana.text("ol.timeline"), "").count("no such mailbox"), 1)
        self.assertEqual(ana.text("ol.timeline").count("no such mailbox"), 1)   # of the first attempt
        self.assertNotIn("Traceback", ana.text(".log"))
        ana.run("document.querySelector('[aria-label=Attempt]').value = 1;"
                "document.querySelector('[aria-label=Attempt]').dispatchEvent(new Event('change'))")
        ana.see("Traceback", ".log")            # that of another attempt stands nowhere else

    def retried(self, function, **arguments):
        """The id of a task whose first attempt has ended, and which waits for the second."""
        number = self.add(function, **arguments)
        wait_until(lambda: self.site.value("SELECT status FROM task WHERE id=?", (number,)) == 5)
        self.addCleanup(self.program("ana").post, "/api/tasks/%d/cancel" % number)
        return number

    def test_a_retry_that_the_function_asked_for_is_no_failure(self):
        ana = self.show(self.retried("patient", seconds=600, message="only 3 of 5 are there"))
        ana.see("in 10 min, as the function asked", ".sentence")
        ana.see("asked for a retry in 600 s: only 3 of 5 are there", "ol.timeline")
        ana.find("h2", "Why it waits")
        self.assertEqual(ana.text("h2 + .code"), "only 3 of 5 are there")
        self.assertEqual(ana.count("main .bad"), 0)
        for words in ("Traceback", "failed", "RetryAfter"):
            self.assertNotIn(words, ana.text("main"))
        ana.go("#/tasks/%d" % self.retried("patient", seconds=600))
        ana.see("asked for a retry in 600 s", "ol.timeline")
        self.assertEqual(ana.count("main .code"), 0)

    def test_a_retry_that_the_function_asked_for_is_translated(self):
        number = self.retried("patient", seconds=600, message="too few")
        ana = self.open("ana")
        ana.run("localStorage.setItem('jobqueue-language', 'de')")
        ana.go("#/tasks/%d" % number)
        ana.see("bat um Wiederholung in 600 s: too few", "ol.timeline")

    def test_an_error_without_a_message_says_so(self):
        ana = self.show(self.retried("mute"))
        ana.see("AssertionError without a message", ".code.bad")
        ana.see("failed, will retry", "ol.timeline")
        self.assertRegex(ana.text("ol.timeline"), r"failed, will retry took [^,]*, [^,]* CPU, \d+ MB peak$")

    def test_one_action_is_the_first_and_what_destroys_stands_apart(self):
        for function, first in (("letter", "Retry"), ("say", "Run again")):
            ana = self.show(self.done(function, **{"to" if function == "letter" else "text": "x"}))
            with self.subTest(function):
                ana.find(".primary", first)
                self.assertEqual(ana.count("main .primary"), 1)
                ana.find(".apart", "Delete")

    def test_one_comes_back_to_the_list_as_one_left_it(self):
        first, second = (self.done("letter", to=name) for name in ("per", "kai"))
        ana = self.open("ana")
        ana.click(".tabs a[data-status=failed]")
        ana.click("table.list a", "letter kai")
        ana.click("a", "Next task: %d" % first)
        ana.see("#%d" % first, ".facts")
        ana.click("a", "← Tasks")
        ana.find(".tabs [aria-current][data-status=failed]")
        ana.click("header a", "Queues")
        ana.find("h1", "Queues")
        ana.run("location.hash = '#/tasks/%d'" % second)
        ana.click("a", "← Tasks")
        ana.find(".tabs [aria-current][data-status='']")

    def test_one_goes_to_the_tasks_beside_it(self):
        first, second, third = (self.done("say", text=text) for text in "abc")
        ana = self.show(second)
        ana.click("a", "Next task: %d" % third)
        ana.see("#%d" % third, ".facts")
        ana.click("a", "Previous task: %d" % second)
        ana.click("a", "Previous task: %d" % first)
        ana.see("#%d" % first, ".facts")

    def test_what_earlier_runs_took_is_told(self):
        for seconds in (180, 200, 240, 290, 310):
            number = self.done("lines", count=1)
            self.site.rows("UPDATE activity SET seconds=? WHERE task_id=? AND event='succeeded'",
                           (seconds, number))
        self.show(number).see("usually takes 3 min to 5 min", ".facts")

    def fail_after(self, **arguments):
        """The id of a task that failed while collect() was broken."""
        (self.site.home / "broken").touch()
        self.addCleanup(lambda: (self.site.home / "broken").unlink())
        return self.done("collect", **arguments)

    def test_a_failure_names_the_last_success_with_the_same_values(self):
        before = self.done("collect", town="Bergen")
        self.done("collect", town="Oslo")
        self.done("collect", "bob", town="Bergen")
        self.site.rows("UPDATE task SET finished_at=finished_at-82900 WHERE id=?", (before,))
        failed = self.fail_after(town="Bergen")
        for number, seconds, memory in ((before, 3, 40), (failed, 12, 512)):
            self.site.rows("UPDATE activity SET seconds=?, peak_memory=? WHERE task_id=? "
                           "AND seconds IS NOT NULL", (seconds, memory << 20, number))
        ana = self.show(failed)
        ana.see("Worked 23 h ago with the same values: #%d · took 3 s, 40 MB peak · this time: took 12 s, "
                "512 MB peak" % before)
        ana.click("a", "#%d" % before)
        ana.see("#%d" % before, ".facts")
        ana.see("took", "ol.timeline")
        self.assertNotIn("Worked", ana.text("main"))

    def test_a_failure_without_an_earlier_success_names_none(self):
        self.done("collect", "bob", town="Narvik")
        ana = self.show(self.fail_after(town="Narvik"))
        ana.see("failed", "ol.timeline")
        self.assertNotIn("Worked", ana.text("main"))

    def test_the_sentence_and_the_timeline_tell_the_same_duration(self):
        number = self.done("say", text="x")
        for change in ("activity SET seconds=3.04 WHERE task_id=? AND event='succeeded'",
                       "task SET finished_at=started_at+3.06 WHERE id=?"):      # it ran for 3.04 of these
            self.site.rows("UPDATE " + change, (number,))
        ana = self.show(number)
        ana.see("took 3 s", "ol.timeline")
        ana.see("took 3 s", ".sentence")
        self.assertNotIn("3.1", ana.text("main"))

    def test_how_many_come_before_it_is_told_even_if_nothing_else_is_known(self):
        self.site.run("queue", "pause", "default")
        self.addCleanup(self.site.run, "queue", "resume", "default")
        ids = [self.add("say", text=text) for text in "abcd"]
        ana = self.show(ids[3])
        ana.see("The queue default is paused by the command line. · 3 before this one", ".sentence")
        bob = self.open("bob", "#/new/say")
        bob.see("If you add it now: 2 before this one", "form")
        bob.run("localStorage.setItem('jobqueue-language', 'de')")
        bob.go("#/new/say")
        bob.see("2 vor dieser · Die Warteschlange default wurde von der Kommandozeile angehalten.", "form")
        for number in ids:
            self.program("ana").post("/api/tasks/%d/cancel" % number)

    def test_the_timeline_says_who_did_what(self):
        number = self.add("say", options={"delay": 600}, text="x")
        ana = self.show(number)
        ana.click("main button", "Cancel")
        ana.see("cancelled by ana", "ol.timeline")
        self.site.run("schedule", "add", "say", "daily 01:00", "text=x")
        schedule = self.site.value("SELECT max(id) FROM schedule")
        reply = self.program("ana").post("/api/schedules/%d/run" % schedule)
        ana.go("#/tasks/%d" % reply.json["id"])
        ana.see("added from schedule %d" % schedule, "ol.timeline")


class Used(TaskCase):
    """CPU and memory of a running task: a worker elsewhere reports what the test says."""

    def setUp(self):
        super().setUp()
        self.worker, self.sequence = Visitor(self.base, token=self.site.token("ana", "worker")), 0
        self.ask("hello", protocol=2, machine="strong", version="1.0.0", functions=[function_json("render")])
        number = self.add("render")
        [self.task] = self.turn(claim={"claims": ["c" * 32]})["tasks"]
        self.item = {"id": number, "claim": self.task["claim"]}
        self.turn(start=[self.item])
        self.ana = self.show(number)

    def ask(self, path, **given):
        reply = self.worker.post("/api/worker/" + path, {"session": "5" * 32, **given})
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json

    def turn(self, **given):
        self.sequence += 1
        return self.ask("turn", sequence=self.sequence, **given)

    def hold(self, *samples):
        self.turn(hold=[{**self.item, "samples": samples}])

    def top_of_actions(self):
        return self.ana.run("return document.querySelector('.actions').getBoundingClientRect().top")

    def test_they_appear_with_the_second_sample_and_move_nothing(self):
        ana, top = self.ana, self.top_of_actions()
        self.hold([10, 2.5, 200 << 20])
        self.turn(hold=[{**self.item, "message": "one so far"}])
        ana.see("one so far", ".progress")
        self.assertEqual(ana.text(".samples"), "")
        self.turn(hold=[{**self.item, "message": None}])
        self.hold([10, 2.5, 800 << 20], [20, 12.2, 412 << 20])
        ana.see("CPU 97 %", ".samples")
        ana.see("· 412 MB", ".samples")
        ana.see_no("one so far", ".progress")
        self.assertEqual(self.top_of_actions(), top)
        self.assertEqual(ana.run(
            "return [...document.querySelectorAll('.samples svg[role=img]')].map((svg) => ["
            "svg.getAttribute('aria-label'), svg.firstChild.getAttribute('points')])"), [
                ["CPU over the run: at most 97 %", "32,11.5 64,1.42"],
                ["Memory over the run: at most 800 MB", "32,1 64,7.79"]])
        self.hold([10, 2.5, 800 << 20], [20, 12.2, 412 << 20], [30, 32.2, 1 << 30])
        ana.see("CPU 200 %", ".samples")
        ana.see("· 1 GB", ".samples")
        self.turn(end=[{**self.item, "outcome": {"kind": "succeeded"}}])
        ana.see("succeeded", ".sentence")
        self.assertEqual(ana.text(".samples"), "")


class Result(TaskCase):
    """What a function returned."""

    def test_a_returned_picture_is_the_result_and_opens_in_full(self):
        number = self.done("chart")
        ana = self.show(number)
        address = "api/tasks/%d/files/chart.png" % number
        ana.find("main .picture img[alt='chart.png']")
        self.assertEqual(ana.run(
            "const { href, target, rel, firstChild } = document.querySelector('.picture');"
            "const { src, clientWidth } = firstChild; return [href, src, target, rel, clientWidth]"),
            [self.base + address, self.base + address, "_blank", "noopener", 600])
        self.assertEqual(ana.text("h2 + div"), "")          # in the place of its name
        self.assertEqual(ana.count("main img"), 1)          # and not again below
        ana.click(".files summary", "Show")
        ana.find(".files img")
        ana.go("#/tasks/%d" % self.done("charts"))
        ana.find(".pairs .picture img")
        self.assertEqual(ana.count(".pairs img"), 1)
        self.assertEqual(ana.run("return [...document.querySelectorAll('.pairs a')].pop().href"),
                         "https://example.org/a?b=c")

    def test_a_returned_file_is_a_link(self):
        reply = self.program("ana").upload("/api/files?name=photo.txt", b"a photo")
        ana = self.show(self.done("turn", photo=reply.json["id"]))
        ana.find("h2 + div a[download='turned.txt']", "turned.txt")

    def test_numbers_dates_and_words_of_a_table_do_not_break_on_a_phone(self):
        number = self.done("numbers")
        ana = self.open("ana")
        ana.emulate("Emulation.setDeviceMetricsOverride", width=320, height=800, deviceScaleFactor=1,
                    mobile=True)
        self.addCleanup(ana.emulate, "Emulation.clearDeviceMetricsOverride")
        ana.go("#/tasks/%d" % number)
        ana.see("San Miguel", ".files")
        lines = ana.run(
            "return [...document.querySelectorAll('.cells tr')].flatMap((row) => [...row.cells].slice(0, 5))"
            ".map((cell) => { const range = document.createRange(); range.selectNodeContents(cell);"
            "return new Set([...range.getClientRects()].map(({ top }) => Math.round(top / 8))).size; })")
        self.assertEqual((len(lines), set(lines)), (2 * 4 * 5, {1}))
        self.assertEqual(ana.run("return document.documentElement.scrollWidth"), 320)
        height = ana.run("return document.querySelector('td:last-child').clientHeight")
        self.assertTrue(60 < height < 250, height)      # a long text breaks, but not after each word

    def test_only_an_address_of_the_web_is_a_link(self):
        ana = self.open("ana")
        for value, link in (
                ("https://example.org/a?b=c#d", True), ("http://example.org", True),
                ("HTTPS://example.org", True), ("javascript:alert(1)", False),
                (" javascript:alert(1)//http://x", False), ("ftp://example.org", False),
                ("data:text/html,x", False), ("https://", False), ("see https://example.org", False)):
            with self.subTest(value):
                ana.go("#/tasks/%d" % self.done("give", value=json.dumps(value)))
                ana.see("succeeded", ".sentence")
                ana.find("h2", "Result")
                self.assertEqual(ana.run(
                    "const link = document.querySelector('h2 + div a');"
                    "return link && [link.getAttribute('href'), link.target, link.rel]"),
                    [value, "_blank", "noopener noreferrer"] if link else None)

    def test_the_link_of_a_task_can_be_copied_by_everyone_who_sees_it(self):
        number = self.done("say", text="x")
        copied = "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
        self.site.run("user", "set", "bob", "--role", "viewer")
        self.addCleanup(self.site.run, "user", "set", "bob", "--role", "user")
        for name in ("ana", "bob"):
            browser = self.open(name, "#/tasks/%d?line=1" % number)
            browser.find("h2", "Result")
            browser.run(copied)
            browser.click("button", "Copy link")
            browser.see("Copied", "#live")
            self.assertEqual(browser.run("return window.copied"), "%s#/tasks/%d" % (self.base, number))


class Log(TaskCase):
    """The log."""

    def sight(self, browser):
        return browser.run(SIGHT)

    def scroll(self, browser, part):
        """Scroll to this part of the log; what is seen then."""
        browser.run("const box = document.querySelector('.log');"
                    "box.scrollTop = (box.scrollHeight - box.clientHeight) * arguments[0]", part)
        return wait_until(lambda: (lambda seen: seen["first"] and seen)(self.sight(browser)))

    def test_of_a_hundred_thousand_lines_only_those_in_sight_are_in_the_document(self):
        number = self.done("lines", count=100_000)
        ana = self.show(number)
        ana.see("line 99999", ".log")
        ana.see("The middle of this log was cut out")       # it has more than 1 MiB
        for wraps in (True, False):
            with self.subTest(wraps=wraps):
                for part in (0, 0.001, 0.3, 0.301, 0.75, 1, 0.9999, 0.5):
                    seen = self.scroll(ana, part)
                    self.assertLess(seen["rows"], 250)
                    self.assertEqual(seen["body"] + sum(seen["gaps"]) + 24, seen["height"])
                self.assertIn("line 0", self.scroll(ana, 0)["first"])
                self.assertIn("line 99999", self.scroll(ana, 1)["last"])
                ana.click("button", "Wrap")

    def test_lines_that_wrap_are_as_high_as_they_were_reckoned(self):
        ana = self.show(self.done("lines", count=2000, width=900))
        ana.see("line 1999", ".log")
        for part in (0.2, 0.205, 0.8, 0.79, 0, 1):
            seen = self.scroll(ana, part)
            self.assertEqual((seen["body"] + sum(seen["gaps"]) + 24, seen["wrong"]), (seen["height"], 0))
        self.assertTrue(seen["atEnd"])
        ana.emulate("Emulation.setDeviceMetricsOverride", width=420, height=844, deviceScaleFactor=1,
                    mobile=True)
        wait_until(lambda: self.sight(ana)["height"] > 1.1 * seen["height"], what="another width")
        wait_until(lambda: self.sight(ana)["atEnd"], what="its end in sight")
        for part in (0.4, 1):
            narrow = self.scroll(ana, part)
            self.assertEqual(narrow["body"] + sum(narrow["gaps"]) + 24, narrow["height"])

    def write(self, path, text):
        """Write all of a file at once: who reads it never finds a part."""
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)

    def test_it_is_followed_until_one_scrolls_up(self):
        said = self.site.home / "said"
        self.addCleanup(lambda: said.exists() and said.unlink())
        text = "".join("word %d\n" % number for number in range(300))
        self.write(said, text)
        number = self.add("follow")
        self.addCleanup(self.site.wait, number)
        self.addCleanup(lambda: self.write(said, said.read_text() + "end\n"))
        ana = self.show(number)
        ana.see("word 299", ".log")
        self.assertTrue(self.sight(ana)["atEnd"])
        self.write(said, text + "word 300\n")
        ana.see("word 300", ".log")
        self.assertTrue(self.sight(ana)["atEnd"])
        before = self.scroll(ana, 0.5)
        self.write(said, text + "word 300\nword 301\nword 302\n")
        ana.click("button", "2 new lines ↓")
        ana.see("word 302", ".log")
        self.assertTrue(self.sight(ana)["atEnd"])
        self.assertGreater(self.sight(ana)["top"], before["top"])
        self.assertFalse(ana.run("return document.querySelector('.end button').checkVisibility()"))

    def test_the_search_counts_and_goes_from_one_to_the_next(self):
        ana = self.show(self.done("lines", count=3000))
        ana.see("line 2999", ".log")
        ana.type("[type=search]", "LINE 17")
        ana.see("1 of 111", ".search")
        self.assertEqual(ana.text(".line[aria-current]").split()[-1], "17")
        self.assertEqual(ana.text(".line[aria-current] mark"), "line 17")
        ana.press("Enter", "Enter")
        ana.see("3 of 111", ".search")
        self.assertEqual(ana.text(".line[aria-current]").split()[-1], "171")
        ana.click("button", "Previous line found")
        ana.see("2 of 111", ".search")
        ana.type("[type=search]", "no such")
        ana.see("0 lines", ".search")
        ana.type("[type=search]", "(")              # is no pattern
        ana.see("0 lines", ".search")

    def test_a_line_has_an_address(self):
        number = self.done("lines", count=5000)
        ana = self.show(number)
        ana.see("line 4999", ".log")
        self.scroll(ana, 0.5)
        line = ana.run("return [...document.querySelectorAll('.line a')][70].innerText")
        ana.run("[...document.querySelectorAll('.line a')][70].click()")
        address = "#/tasks/%d?line=%s" % (number, line)
        self.assertEqual(ana.run("return location.hash"), address)
        self.scroll(ana, 1)
        ana.run("[...document.querySelectorAll('.line a')].pop().click()")
        self.assertTrue(self.sight(ana)["atEnd"])       # it does not jump
        ana.go(address)
        ana.find(".line[aria-current]")
        seen = self.sight(ana)
        self.assertLess(int(seen["first"].split()[0]), int(line))
        self.assertGreater(int(seen["last"].split()[0]), int(line))
        self.assertEqual(ana.text(".line[aria-current]").split()[0], line)

    def test_colours_are_shown_and_other_codes_are_not(self):
        codes = ("\x1b(B\x1bPsecret\x1b\\plain \x1b[31mred \x1b[1mbold\x1b[0m \x1b[92;44mgreen\n"
                 "still\x1b[m \x1b[38;5;200mfar"
                 "\x1b[0m\x1b]0;title\x07\x1b[2K<b>end</b>\n10 %\r20 %\r30 %\n")
        ana = self.show(self.done("say", text=codes))
        ana.see("30 %", ".log")
        self.assertEqual(
            ana.run("return [...document.querySelectorAll('.line > span')].map((line) => "
                    "[...line.children].map((run) => [run.className, run.textContent]))"),
            [[["", "plain "], ["c1", "red "], ["c1 strong", "bold"], ["", " "], ["c2 bright", "green"]],
             [["c2 bright", "still"], ["", " "], ["", "far"], ["", "<b>end</b>"]], [["", "30 %"]]])

    def test_without_lines_there_is_nothing_to_do_with_them(self):
        ana = self.show(self.done("say", text=""))
        ana.find(".log[data-empty='It printed nothing.']")
        seen = ("return [...document.querySelectorAll('.logs .bar :is(button, input, a)')]"
                ".filter((one) => one.checkVisibility()).length")
        self.assertEqual(ana.run(seen), 0)
        ana.go("#/tasks/%d" % self.done("say", text="x"))
        ana.see("x", ".log")
        self.assertGreater(ana.run(seen), 4)

    def test_times_are_shown_on_demand(self):
        ana = self.show(self.done("say", text="one\ntwo\n"))
        ana.see("two", ".log")
        self.assertEqual(ana.count(".line time"), 0)
        ana.click("button", "Times")
        self.assertRegex(ana.text(".line time"), r"^\d\d:\d\d:\d\d$")
        self.assertEqual(ana.count(".line time"), 2)
        ana.click("button", "Times")                # it is kept for other tasks

    def test_it_can_be_as_high_as_the_window(self):
        ana = self.show(self.done("lines", count=1000))
        ana.see("line 999", ".log")
        before = ana.run("return document.querySelector('.log').clientHeight")
        ana.click("button", "Full height")
        self.assertGreater(ana.run("return document.querySelector('.log').clientHeight"), before + 100)
        self.assertTrue(self.sight(ana)["atEnd"])


# The next upload is answered by a web server that is not ours: [status, body, parts of it told].
OTHER_SERVER = """
const [status, body, parts] = %s;
XMLHttpRequest.prototype.send = function send(file) {
  const told = (name, more) => Object.assign(new Event(name), more);
  for (const part of parts) this.upload.onprogress(told('progress', { loaded: part * file.size }));
  if (status === null) return;
  Object.defineProperty(this, 'status', { value: status });
  Object.defineProperty(this, 'response', { value: body });
  setTimeout(() => (status ? this.onload() : this.onerror()));
};
"""


class Files(TaskCase):
    """Files that are handed in with a form, and those that a task leaves."""

    def setUp(self):
        super().setUp()
        for name in ("holiday.jpg", "one.txt", "two.txt"):
            (self.site.home / name).write_text("<%s>" % name)

    def form(self):
        """A browser of ana's at the form."""
        ana = self.open("ana", "#/new/turn")
        ana.find("h1", "turn")
        return ana

    def give(self, browser, field, *names):
        """Choose files for a field, as a person does."""
        place = browser.find("[type=file][name='arguments.%s']" % field)
        browser.ask("POST", "/element/%s/value" % place[ELEMENT],
                    {"text": "\n".join(str(self.site.home / name) for name in names)})

    def test_a_file_is_handed_in_and_what_comes_out_is_shown(self):
        ana = self.form()
        self.give(ana, "photo", "holiday.jpg")
        ana.see("holiday.jpg, 13 bytes: stored")
        self.give(ana, "others", "one.txt", "two.txt")
        ana.see("one.txt, 9 bytes: stored, two.txt, 9 bytes: stored")
        ana.click("button", "Add task")
        ana.see("succeeded", ".sentence")
        ana.see("turned <holiday.jpg><one.txt><two.txt>", ".files")
        self.assertIn("turn holiday.jpg, ", ana.text("h1"))
        self.assertEqual(ana.run("return [...document.querySelectorAll('.pairs a')].map((e) => e.innerText)"),
                         ["holiday.jpg", "one.txt", "two.txt"])
        ana.see("Town, 9", ".files table")
        self.assertEqual(ana.count(".files table tbody tr"), 10)
        wait_until(lambda: ana.run("return document.querySelector('.files img').naturalWidth") == 1)
        self.assertIn("page.html", ana.text(".files"))
        self.assertEqual(ana.count("iframe, object, embed"), 0)
        ana.go("#/new/turn?from=%s" % ana.run("return location.hash").rsplit("/", 1)[1])
        ana.find("h1", "turn")
        ana.see("the file of the earlier task")     # which a page that is loaded anew cannot name
        ana.type("[name='arguments.title']", "again")
        ana.click("button", "Add task")
        ana.see("again", "h1")
        ana.see("succeeded", ".sentence")
        ana.see("turned <holiday.jpg><one.txt><two.txt>", ".files")

    def test_one_that_is_too_large_is_not_sent(self):
        self.site.run("settings", "max_file_mb", "1")
        self.addCleanup(self.site.run, "settings", "max_file_mb", "64")
        wait_until(lambda: self.program("ana").get("/api/session").json["max_file_mb"] == 1)
        (self.site.home / "large.bin").write_bytes(bytes(1200 * 1024))
        ana = self.form()
        self.give(ana, "photo", "large.bin")
        ana.see("large.bin has 1.17 MB; a file may have 1 MB.")
        self.assertEqual(ana.run("return performance.getEntriesByType('resource').filter(({ name }) => "
                                 "name.includes('api/files')).length"), 0)
        ana.click("button", "Add task")
        ana.see("Nothing is stored yet.", "[data-field='arguments.photo']")
        self.give(ana, "photo", "one.txt")
        ana.see("one.txt, 9 bytes: stored")

    def test_adding_waits_for_the_file_and_values_stay(self):
        ana = self.form()
        ana.type("[name='arguments.title']", "kept")
        ana.run(OTHER_SERVER % json.dumps([None, None, [0.2, 0.625]]))
        self.give(ana, "photo", "holiday.jpg")
        ana.see("62 %")
        ana.click("button", "Add task")
        self.assertEqual(ana.run("return document.querySelector('.primary').ariaBusy"), "true")
        self.assertIn("#/new/turn", ana.run("return location.hash"))
        ana.click(".sent button", "Cancel")
        ana.see_no("62 %")
        self.assertEqual(ana.run("return document.querySelector(\"[name='arguments.title']\").value"), "kept")

    def test_a_refusal_is_explained_and_can_be_tried_again(self):
        ana = self.form()
        ana.run("window.send = XMLHttpRequest.prototype.send")
        for status, body, words in (
                (413, None, "The web server of this host takes no file as large as this"),
                (507, {"code": "storage_full", "detail": "The disk is full."}, "The disk is full."),
                (0, None, "The connection broke off.")):
            with self.subTest(status):
                ana.run(OTHER_SERVER % json.dumps([status, body, [1]]))
                if status == 413:
                    self.give(ana, "photo", "holiday.jpg")
                else:
                    ana.click("button", "Try again")
                ana.see(words)
        ana.run("XMLHttpRequest.prototype.send = window.send")
        ana.click("button", "Try again")
        ana.see("holiday.jpg, 13 bytes: stored")


if __name__ == "__main__":
    unittest.main()
