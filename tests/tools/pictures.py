"""Makes README's pictures: a real server with a day of tasks, seen through a headless Chromium.

    python3 -m tests.tools.pictures             # writes tests/images/list.png, form.png, task.png
"""
import base64
import collections
import contextlib
import shutil
import struct
import sys
import time
import zlib

from tests.helpers.browser import MOUSE, Browser, Driver
from tests.helpers.support import ROOT, Site, wait_until

IMAGES = ROOT / "tests" / "images"
DESKTOP = {"width": 1100, "height": 640, "deviceScaleFactor": 1, "mobile": False}
LOW = {**DESKTOP, "width": 720, "height": 660}
PHONE = {"width": 390, "height": 640, "deviceScaleFactor": 1.5, "mobile": True}
TASKS = '''
import time
from datetime import date
from typing import Literal
from jobqueue import Fail, current_task, task

@task(max_retries=3)
def report(city: str, month: date, format: Literal["PDF", "text"] = "PDF", detailed: bool = False):
    """Write the monthly energy report of a city.

    Args:
        city: As it is written in the list of cities.
        month: Any day of it.
        detailed: With a page for each building.
    """
    return {"city": city, "pages": 12}

@task(queue="mail")
def send_letter(to: str, subject: str):
    """Send the newsletter to one address."""
    if "@" not in to:
        raise Fail("550 5.1.1 <%s>: not a mail address" % to)

@task
def resize_photos(album: str, width: int = 1600):
    """Make the photos of an album small enough for the web."""
    steps = 48
    for number in range(1, steps + 1):
        print("photo-%03d.jpg  4032 x 3024 -> %d x %d" % (number, width, width * 3 // 4))
        current_task().progress(number, steps, "photo %d of %d" % (number, steps))
        time.sleep(0.02 if number < 31 else 5)
    return {"photos": steps}

@task
def backup_site():
    """Copy the site and its database to the store."""
    return {"megabytes": 418}
'''
# (who, function, arguments, minutes ago, seconds that it took)
DAY = (
    ("ana", "backup_site", {}, 412, 47),
    ("ana", "report", {"city": "Bergen", "month": "2026-10-01"}, 96, 31),
    ("bob", "send_letter", {"to": "kari@example.org", "subject": "Your bill for October"}, 61, 0.4),
    ("bob", "send_letter", {"to": "per.example.org", "subject": "Your bill for October"}, 61, 0.3),
    ("bob", "send_letter", {"to": "liv@example.org", "subject": "Your bill for October"}, 60, 0.4),
    ("ana", "report", {"city": "Oslo", "month": "2026-10-01"}, 38, 44),
    ("bob", "resize_photos", {"album": "Opening day"}, 21, 126),
    ("ana", "report", {"city": "Stavanger", "month": "2026-10-01", "detailed": True}, 9, 73),
)


def fill(site):
    """The day's tasks, put at the times when the day had them; the id of the running one."""
    for who, function, arguments, _, _ in DAY:
        site.add(function, "--owner", who, **arguments)
    wait_until(lambda: not site.value("SELECT count(*) FROM task WHERE status IN (0, 1)"), 120)
    for number, (_, _, _, minutes, seconds) in enumerate(DAY, 1):
        began = time.time() - 60 * minutes
        site.rows("UPDATE task SET created_at=?, started_at=?, finished_at=? WHERE id=?",
                  (began - 1, began, began + seconds, number))
    running = site.add("resize_photos", "--owner", "ana", album="Lofoten in June")
    site.add("backup_site", "--run-at", "2099-01-01T02:00:00Z", "--owner", "ana")
    site.rows("UPDATE task SET run_at=? WHERE status=5", (time.time() + 2400,))
    wait_until(lambda: site.value("SELECT progress FROM task WHERE id=? AND progress>0.6", (running,)))
    site.add("report", "--owner", "bob", city="Tromsø", month="2026-10-01")
    return running


def chunks(picture):
    """(kind, content) of each part of a PNG."""
    place = 8
    while place < len(picture):
        [length] = struct.unpack(">I", picture[place:place + 4])
        yield picture[place + 4:place + 8], picture[place + 8:place + 8 + length]
        place += length + 12


def pixels(picture):
    """(width, the colours of a PNG of 3 bytes each, row by row)"""
    parts = list(chunks(picture))
    width, height, _, kind = struct.unpack(">IIBB", parts[0][1][:10])
    if kind != 2:
        raise ValueError("this PNG has other than red, green and blue")
    data = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    step = 3 * width
    above, colours = bytes(step), []
    for start in range(0, height * (step + 1), step + 1):
        above = unfiltered(data[start], bytearray(data[start + 1:start + 1 + step]), above)
        colours += [bytes(above[place:place + 3]) for place in range(0, step, 3)]
    return width, colours


def unfiltered(kind, row, above):
    """A row as it was before PNG wrote it as differences."""
    for place, byte in enumerate(row):
        left, corner = (row[place - 3], above[place - 3]) if place > 2 else (0, 0)
        over = above[place]
        near = min((left, over, corner), key=lambda one: abs(left + over - corner - one))
        row[place] = (byte + (0, left, over, (left + over) // 2, near)[kind]) & 255
    return row


def number_of(colour, palette):
    """Which colour of the palette is most like this one."""
    return min(range(len(palette)), key=lambda number: sum(
        (one - other) ** 2 for one, other in zip(colour, palette[number])))


def packed(picture):
    """Return a PNG with 256 colours of another: half the size, and nobody sees it.

    Of colours that are much alike, only the commonest one is taken. So a rare red stays red.
    """
    width, colours = pixels(picture)
    alike = {}
    for colour, _ in collections.Counter(colours).most_common():
        alike.setdefault(tuple(channel >> 4 for channel in colour), colour)
    palette = list(alike.values())[:256]
    nearest = {colour: number_of(colour, palette) for colour in set(colours)}
    numbers = bytes(nearest[colour] for colour in colours)
    rows = b"".join(b"\0" + numbers[start:start + width] for start in range(0, len(numbers), width))
    head = struct.pack(">IIBBBBB", width, len(numbers) // width, 8, 3, 0, 0, 0)
    made = picture[:8]
    for kind, body in ((b"IHDR", head), (b"PLTE", b"".join(palette)),
                       (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        check = struct.pack(">I", zlib.crc32(kind + body))
        made += struct.pack(">I", len(body)) + kind + body + check
    return made


def take(browser, name, screen, address, dark=False):
    """One picture of an address below the site's."""
    browser.emulate("Emulation.setDeviceMetricsOverride", **screen)
    browser.emulate("Emulation.setEmulatedMedia", features=[
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
    browser.emulate("Emulation.setScrollbarsHidden", hidden=True)
    browser.go(address)
    wait_until(lambda: browser.count("h1") and not browser.count(".busy"), what="the page")
    time.sleep(3)
    browser.run("document.activeElement.blur()")
    picture = packed(base64.b64decode(browser.ask("GET", "/screenshot")))
    (IMAGES / name).write_bytes(picture)
    print("%s: %d bytes" % (name, len(picture)))


def main():
    """Make all of them."""
    with contextlib.ExitStack() as stack:
        site = Site(TASKS, NbMaxWorker=1, linger=60)
        stack.callback(site.close)
        driver = Driver(shutil.which("chromedriver"), shutil.which("chromium"))
        stack.callback(driver.close)
        running = fill(site)
        browser = Browser(driver, site.start_server(), MOUSE)
        stack.callback(browser.close)
        browser.enter("ana")
        take(browser, "task.png", PHONE, "#/tasks/%d" % running, dark=True)
        take(browser, "list.png", DESKTOP, "#/tasks")
        take(browser, "form.png", LOW, "#/new/report")


if __name__ == "__main__":
    sys.exit(main())
