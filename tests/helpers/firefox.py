"""Driving a real Firefox as tests drive Chromium; it is spoken to by Marionette, which it has itself.

    FirefoxTestCase    a BrowserTestCase whose browsers are Firefox; no geckodriver is needed
"""
import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.helpers.browser import Browser, BrowserTestCase, DriverError
from tests.helpers.support import PASSWORD, need, need_part, wait_until

# What WebDriver calls by address, Marionette calls by name; a group is the id of an element.
COMMANDS = {
    r"DELETE ": "WebDriver:DeleteSession",
    r"POST /url": "WebDriver:Navigate",
    r"POST /execute/sync": "WebDriver:ExecuteScript",
    r"POST /element/(.+)/click": "WebDriver:ElementClick",
    r"POST /element/(.+)/clear": "WebDriver:ElementClear",
    r"POST /element/(.+)/value": "WebDriver:ElementSendKeys",
    r"POST /actions": "WebDriver:PerformActions",
}
PREFERENCES = {
    "marionette.port": 0, "browser.shell.checkDefaultBrowser": False, "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False, "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "browser.aboutwelcome.enabled": False,
    "network.proxy.type": 0, "intl.accept_languages": "en-US", "extensions.update.enabled": False,
}


class Firefox(Browser):
    """One Firefox with a profile of its own."""

    def __init__(self, program, base):
        self.base = base
        self._number = 0
        self._messages = []
        self._profile = tempfile.mkdtemp(prefix="jobqueue firefox ")
        profile = Path(self._profile)
        (profile / "user.js").write_text("".join(
            "user_pref(%s, %s);\n" % (json.dumps(name), json.dumps(value))
            for name, value in PREFERENCES.items()))
        self._process = subprocess.Popen(
            [program, "--headless", "--marionette", "--no-remote", "--profile", self._profile],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = profile / "MarionetteActivePort"
        wait_until(lambda: port.exists() and port.read_text().strip(), 60, "Firefox")
        self._link = socket.create_connection(("127.0.0.1", int(port.read_text())), 60)
        self._file = self._link.makefile("rb")
        self._receive()
        self._send("WebDriver:NewSession", {"unhandledPromptBehavior": "ignore"})

    def ask(self, method, path, body=None):
        """One command of WebDriver."""
        for pattern, name in COMMANDS.items():
            found = re.fullmatch(pattern, "%s %s" % (method, path))
            if found:
                element = {"id": found[1]} if found.groups() else {}
                answer = self._send(name, {**(body or {}), **element})
                return answer.get("value") if isinstance(answer, dict) else answer
        raise DriverError("unknown command", "%s %s" % (method, path))

    def _send(self, name, parameters):
        self._number += 1
        text = json.dumps([0, self._number, name, parameters]).encode()
        self._link.sendall(b"%d:%s" % (len(text), text))
        _, _, error, value = self._receive()
        if error:
            raise DriverError(error["error"], error["message"])
        return value

    def _receive(self):
        size = b""
        while not size.endswith(b":"):
            size += self._file.read(1) or b":"
        return json.loads(self._file.read(int(size[:-1])))

    def close(self):
        """Close it and remove its profile."""
        with contextlib.suppress(DriverError, OSError, ValueError):
            self._send("Marionette:Quit", {"flags": ["eForceQuit"]})
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._file.close()
        self._link.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def messages(self):
        """Nothing: Marionette does not tell what is said on the console."""
        return self._messages

    def enter(self, name, password=PASSWORD):
        """Log in by the form: cookies cannot be given."""
        self.log_in(name, password)
        wait_until(lambda: self.count("link[href='static/pages.css']"), 60, "the end of its start")


class FirefoxTestCase(BrowserTestCase):
    """The same tests in another browser."""

    @classmethod
    def start_driver(cls):
        """There is none: each Firefox is driven by itself."""
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        need_part("page")
        need(program, "Firefox")
        cls.driver = program

    def open(self, name=None):
        """A Firefox of its own."""
        browser = Firefox(self.driver, self.base)
        self.addCleanup(browser.close)
        if name:
            browser.enter(name)
        return browser
