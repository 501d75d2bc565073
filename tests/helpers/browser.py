"""Driving a real Chromium by the WebDriver protocol, with the standard library alone.

    BrowserTestCase   a Site with a running server; self.open() is a browser that knows nothing;
                      self.add, self.done: tasks that people see there; no process is started for it
    Browser           go, find, text, see, click, type, choose, press, run (JavaScript), api, number,
                      messages
"""
import atexit
import contextlib
import functools
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from tests.helpers.support import PASSWORD, Site, free_port, need, need_part, wait_until
from tests.helpers.web import Visitor

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"     # the protocol's own name for a reference
FLAGS = ("--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --no-proxy-server "
         "--disable-background-networking --disable-component-update --disable-sync "
         "--disable-ipc-flooding-protection --disable-site-isolation-trials "
         "--disable-features=IsolateOrigins,site-per-process,BackForwardCache,Translate,MediaRouter "
         "--disable-dev-shm-usage --window-size=1100,800 --lang=en-US "
         "--renderer-process-limit=1 --in-process-gpu").split()     # a new process costs as much as a page
# With a mouse: without this, a Chromium without windows has a screen to touch.
MOUSE = ["--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,"
         "availablePointerTypes=4"]
# A Chromium without windows takes a third less processor; the script that Debian has in the path for it
# would be ended in its place.
HEADLESS = "/usr/lib/chromium/chromium-headless-shell"
PATIENCE = 60                           # where answers are slow the page waits up to 15 s between two looks
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Down": "\ue015",
        "Left": "\ue012"}
# A tasks.py for what people see: work that waits for a file, fails, or echoes what it was given.
TASKS = '''
import time
from pathlib import Path
from jobqueue import task, current_task

@task
def report(city: str, pages: int = 3, detailed: bool = False) -> dict:
    """Write the monthly report of a city.

    Args:
        city: where
    """
    print("writing about", city, flush=True)
    current_task().progress(1, 2, "halfway there")
    while not Path("go on").exists():
        time.sleep(0.1)
    print("done with", city)
    return {"city": city, "pages": pages}

@task
def send(city: str, password: str = ""):
    pass

@task
def fail(text: str):
    raise ValueError(text)

@task
def echo(text: str) -> dict:
    """<img src=x onerror=alert(1)> is a title."""
    print(text)
    current_task().progress(1, 2, text)
    return {"text": text, text: [text], "rows": [{text: text}]}
'''

# The page loads this last, when it hears keys already.
STARTED = "return performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/alerts.js'))"

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class DriverError(Exception):
    """What chromedriver says is wrong; `kind` is the protocol's word for it."""

    def __init__(self, kind, message):
        super().__init__("%s: %s" % (kind, message))
        self.kind = kind


class Driver:
    """The chromedriver process, which holds any number of browsers."""

    def __init__(self, program, chromium):
        self.chromium = chromium
        for _ in range(3):              # it ends if another has the port that it was given by IPv6
            self._folder = tempfile.mkdtemp(prefix="jobqueue browser ")     # of the profiles
            self._process = subprocess.Popen(
                [program, "--port=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, encoding="utf-8", env={**os.environ, "TMPDIR": self._folder})
            for line in self._process.stdout:
                found = re.search(r"started successfully on port (\d+)", line)
                if found:
                    self.address = "http://127.0.0.1:%s" % found[1]
                    return
            self.close()
        raise DriverError("not started", "chromedriver said no port")

    def ask(self, method, path, body=None):
        """One command; its value."""
        data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.address + path, data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with _open(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            with error:
                value = json.loads(error.read())["value"]
            raise DriverError(value["error"], value["message"].splitlines()[0]) from None

    def close(self):
        """End it."""
        self._process.terminate()
        self._process.wait(60)
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.lru_cache(maxsize=None)
def common_driver():
    """The driver of all tests of this process."""
    program = shutil.which("chromedriver")
    chromium = next(filter(None, map(shutil.which, (
        HEADLESS, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
    need(program and chromium, "chromium and chromedriver")
    driver = Driver(program, chromium)
    atexit.register(driver.close)
    return driver


class Browser:
    """One Chromium with a profile of its own."""

    def __init__(self, driver, base, flags=()):
        self.base = base
        self._driver = driver
        options = {"binary": driver.chromium, "args": [*FLAGS, *flags]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "unhandledPromptBehavior": "ignore",
                  "timeouts": {"script": 50000}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = driver.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._path = "/session/" + session["sessionId"]
        self._process = session["capabilities"].get("goog:processID")
        self._messages = []

    def ask(self, method, path, body=None):
        """One command of this browser's session."""
        return self._driver.ask(method, self._path + path, body)

    def close(self):
        """Close it."""
        try:
            self.ask("DELETE", "")
        except (DriverError, OSError, http.client.HTTPException):
            if self._process:                   # the driver is gone, its browser may not be
                with contextlib.suppress(OSError):
                    os.kill(self._process, signal.SIGKILL)
        self._process = None

    def forget(self):
        """Be as new: another tab, no cookie, nothing stored."""
        new = self.ask("POST", "/window/new", {"type": "tab"})["handle"]
        self.ask("DELETE", "/window")
        self.ask("POST", "/window", {"handle": new})
        self.emulate("Network.clearBrowserCookies")
        self.emulate("Storage.clearDataForOrigin", origin=self.base.rstrip("/"), storageTypes="all")
        self.messages().clear()

    def go(self, address=""):
        """Open an address below the site's."""
        if "#" in address and not address.startswith("#"):
            raise ValueError("give the part from # on")
        self.ask("POST", "/url", {"url": "about:blank"})    # so that the page is really loaded again
        self.ask("POST", "/url", {"url": self.base + address})

    def run(self, script, *values):
        """Run JavaScript, with `values` as its arguments; what it returns."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(values)})

    def text(self, selector="body"):
        """The visible text of the first element; "" if there is none."""
        return self.run("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''",
                        selector)

    def count(self, selector):
        """How many elements there are."""
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def see(self, words, selector="body", seconds=PATIENCE):
        """Wait until these words are visible there."""
        self._wait(lambda: words in self.text(selector), seconds, "%r in %s" % (words, selector))

    def see_no(self, words, selector="body", seconds=PATIENCE):
        """Wait until these words are gone."""
        self._wait(lambda: words not in self.text(selector), seconds, "the end of %r" % words)

    def _wait(self, condition, seconds, what):
        try:
            return wait_until(condition, seconds, what, 0.05)
        except AssertionError as error:
            raise AssertionError("%s on a page that says:\n%s\n%s" % (
                error, self.text()[:1500], "\n".join(self.messages()))) from None

    def find(self, selector, words=None, seconds=PATIENCE):
        """Wait for a visible element, with this text or label if given; a reference to it."""
        script = """return [...document.querySelectorAll(arguments[0])].find((e) => e.checkVisibility() &&
            (arguments[1] === null
            || [e.innerText, e.ariaLabel].some((text) => text && text.trim() === arguments[1])))"""
        return self._wait(lambda: self.run(script, selector, words), seconds,
                          "%s %s" % (selector, words or ""))

    def click(self, selector, words=None):
        """Click an element as soon as it is there."""
        def clicked():
            try:
                self.ask("POST", "/element/%s/click" % self.find(selector, words)[ELEMENT], {})
                return True
            except DriverError as error:
                if error.kind not in ("stale element reference", "element click intercepted"):
                    raise
        wait_until(clicked, what="a click on %s %s" % (selector, words))

    def type(self, selector, text):
        """Put a text into a field."""
        element = self.find(selector)[ELEMENT]
        self.ask("POST", "/element/%s/clear" % element, {})
        self.ask("POST", "/element/%s/value" % element, {"text": text})

    def choose(self, name, value):
        """Choose something, as a person would with a list."""
        self.run("const e = [...document.querySelectorAll(arguments[0])].find((e) => e.checkVisibility());"
                 "e.value = arguments[1]; e.dispatchEvent(new Event('input', {bubbles: true}));",
                 "[name=%s]" % name, value)

    def api(self, method, path, body=None):
        """What the API answers to whom this browser belongs to."""
        return self.run("return fetch(arguments[1], {method: arguments[0], body: arguments[2], "
                        "headers: {'Content-Type': 'application/json'}})"
                        ".then((answer) => answer.status === 204 || answer.json())",
                        method, path, json.dumps(body) if body else None)

    def number(self):
        """The id at the end of the address, once there is one."""
        def found():
            last = self.run("return location.hash").rpartition("/")[2]
            return last.isdigit() and int(last)
        return wait_until(found, what="a number at the end of the address")

    def press(self, *keys):
        """Press keys, one after the other: letters, or names of KEYS."""
        actions = []
        for key in keys:
            key = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def focused(self):
        """The text or label of the element that has the focus."""
        return self.run("const e = document.activeElement; "
                        "return e.ariaLabel || e.innerText || e.name || e.tagName")

    def messages(self):
        """All that was said on the console: errors of scripts, refusals by the policy."""
        with contextlib.suppress(DriverError):
            self._messages += [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"})]
        return self._messages

    def emulate(self, command, **parameters):
        """A command of the DevTools protocol, such as Emulation.setEmulatedMedia."""
        self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def enter(self, name, address=None, password=PASSWORD):
        """Open the list, or what is at `address`, as somebody who has logged in before."""
        cookie, _, value = Visitor(self.base).log_in(name, password).cookie.partition("=")
        self.emulate("Network.setCookie", name=cookie, value=value, url=self.base)
        if address is None:
            self.open_list()
        else:
            self.go(address)

    def open_list(self):
        """Load the page anew, and wait for the end of its start."""
        self.go("#/tasks")
        self.find("h1", "Tasks")
        wait_until(lambda: self.run(STARTED), PATIENCE, "the end of its start")

    def log_in(self, name, password=PASSWORD):
        """Fill in the log-in and wait for the list."""
        self.go("#/tasks")
        self.type("[name=name]", name)
        self.type("[name=password]", password)
        self.click("button", "Log in")
        self.find("h1", "Tasks")


class BrowserTestCase(unittest.TestCase):
    """See the module's docstring. TASKS is the site's tasks.py; each test finds the tables EMPTY."""

    TASKS = None
    USERS = True
    EMPTY = ()
    idle = []                           # browsers that the tests before have left, of any class

    @classmethod
    def setUpClass(cls):
        cls.start_driver()
        cls.start_site()

    @classmethod
    def start_driver(cls):
        """What the browsers are driven by."""
        need_part("page")
        cls.driver = common_driver()

    @classmethod
    def start_site(cls):
        """A site, and the address at which browsers find it."""
        cls.site = Site(cls.TASKS, users=cls.USERS)
        cls.addClassCleanup(cls.site.close)
        cls.address = cls.site.start_server("--port", free_port())
        cls.base = re.match(r"http://[^/]+/", cls.address)[0]

    def setUp(self):
        self.browsers, self.programs = [], {}
        self.site.empty(*self.EMPTY)

    def program(self, name):
        """What asks the API with a token of somebody."""
        if name not in self.programs:
            self.programs[name] = Visitor(self.base, token=self.site.token(name))
        return self.programs[name]

    def add(self, function, owner="ana", options=None, **arguments):
        """Add a task as a program of its owner does; its id."""
        reply = self.program(owner).post(
            "/api/tasks", {"function": function, "arguments": arguments, **(options or {})})
        self.assertEqual(reply.status, 201, reply.text)
        return reply.json["id"]

    def done(self, function, owner="ana", options=None, **arguments):
        """Add a task and wait for its end; its id."""
        number = self.add(function, owner, options, **arguments)
        self.site.wait_for_all([number])
        return number

    def tearDown(self):
        for browser in self.browsers:
            self.assertEqual(self.serious(browser), [])

    def open(self, name=None, address=None):
        """A browser as new; if `name` is given, logged in, with the list or this address before it."""
        browser = self.idle.pop() if self.idle else self.start_browser()
        browser.base = self.base
        self.addCleanup(self.leave, browser)
        self.browsers.append(browser)
        if name:
            browser.enter(name, address)
        return browser

    def start_browser(self):
        """One more, which stays until all tests are done."""
        browser = Browser(self.driver, self.base)
        atexit.register(browser.close)
        return browser

    def leave(self, browser):
        """Let another test have this browser, which remembers nothing."""
        try:
            browser.forget()
            self.idle.append(browser)
        except (DriverError, OSError, http.client.HTTPException):
            browser.close()

    @staticmethod
    def serious(browser):
        """Messages but those of answers with a status that the page expects."""
        return [text for text in browser.messages() if "the server responded with a status of" not in text
                and "Clear-Site-Data header" not in text]      # after a log-out

    def pause(self, seconds):
        """Let the page do what it might do by itself."""
        time.sleep(seconds)
