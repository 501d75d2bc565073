"""Settings: an admin changes them while everything runs.

Each setting is a row of SETTING_GROUPS. The table `setting` has the changed values only. A room that uses
a setting may add a validator of its new values to Settings.validators.
"""
from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CACHE_SECONDS
from ..base.errors import Invalid, field_error, refusal
from ..base.time_and_text import digest, dump_json, shorten
from ..base.values import (about, checked, integer_within, object_of, or_null, parse_text,
                           text_like, text_up_to, titled)
from .connection import Connection, Reader
from .database import Database
from .log_and_activity import record_activity

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network
    from typing import Any

    from ..base.types import Schema


def tidy_path(text: str) -> str:
    """Return a path as a prefix: "/jq", or "" for none."""
    path = re.sub("/+", "/", "/%s/" % text)[:-1]
    if (not re.fullmatch(r"(/(?!\.+(/|$))[A-Za-z0-9._~-]+)*", path)
            or re.match(r"/(api|static|tick|healthz|metrics|openapi\.json)(/|$)", path)):
        raise ValueError("must be the path of an address, such as /jq, and not one of our own")
    return path


@functools.lru_cache(maxsize=4)
def read_networks(text: str) -> list[IPv4Network | IPv6Network]:
    """Return the addresses and networks in a text; ValueError names a wrong word."""
    from ipaddress import ip_network
    networks: list[IPv4Network | IPv6Network] = []
    for word in text.replace(",", " ").split():
        with contextlib.suppress(ValueError):
            networks.append(ip_network(word, strict=False))
            if networks[-1].prefixlen:
                continue
        raise ValueError("must list addresses or networks, such as 127.0.0.1 or 10.0.0.0/8; %s is not "
                         "allowed" % shorten(word, 60))
    return networks


MAIL_ADDRESS = (r"[A-Za-z0-9][A-Za-z0-9._%+~'-]{0,62}"
                r"@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,200}[A-Za-z0-9])?")
EMAIL = text_like(MAIL_ADDRESS, "must be an address such as ana@example.org")


def tidy_server(text: str) -> str:
    """Return HOST:PORT of a mail server. The default port is 587."""
    match = re.fullmatch(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?", text)
    if text and not (match and 0 < int(match[2] or 587) < 65536):
        raise ValueError("must be a host and a port, such as mail.example.org:587")
    return match and "%s:%s" % (match[1], match[2] or 587) or ""


def tidy_webhooks(text: str) -> str:
    """Return web addresses with a space between them."""
    for word in text.split():
        parts = urlsplit(word)
        if (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc
                or not re.fullmatch(r"[!-~]+", word) or parts.port == 0):
            raise ValueError("must be an address such as https://example.org/hook")
    return " ".join(dict.fromkeys(text.split()))


def check_password_file(text: str) -> None:
    """Refuse a text that is no path of a file. The error does not repeat the text: it may be a password."""
    if not (os.path.isabs(text) and os.path.isfile(text)):
        raise field_error("mail_password_file", "must be the whole path of a file that exists: write the "
                          "password into a file such as /home/me/mail-password.txt, and give its path here")


def web_label(address: str) -> str:
    """Return a label for a webhook that does not show its secret address: host and digest."""
    return "%s (%s)" % (urlsplit(address).hostname, digest(address)[:6])


# Settings that name a program, its environment or a password's file. They are changed on the host only, so
# that a stolen admin session gives no access to the host.
HOST_SETTINGS = frozenset(("python", "pass_environment", "mail_password_file"))
NO_OR_YES = {"enum": ["no", "yes"]}
SECRETLY = "as it is"                   # shown in place of a secret
TIDY: dict[str, Callable[[str], str]] = {
    "alert_webhook": tidy_webhooks, "page_address": tidy_webhooks, "base_path": tidy_path,
    "mail_server": tidy_server,
    "trusted_proxies": lambda text: text if read_networks(text) else ""}


class Setting(NamedTuple):
    """A row of SETTINGS."""

    group: str
    label: str
    unit: str
    schema: Schema
    default: int | str
    help: str


SETTING_GROUPS: dict[str, dict[str, tuple[str, str, Schema, int | str, str]]] = {"Workers": {
    "NbMaxWorker": ("Maximum workers", "", integer_within(0, 256), 2,
        "Processes at once; 0 stops all work. Cheap hosts allow 25 to 100 processes in all."),
    "worker_mode": ("How workers are started", "", {"enum": "auto detached cron slice service".split()},
        "auto", "detached: the program that adds a task starts one; cron: a cron job calls worker.py; "
        "slice: this page while it is open, and the tick address, run tasks; service: the host keeps "
        "worker.py --service alive. auto finds out what works here."),
    "linger": ("Wait for more work", "seconds", integer_within(0, 3600), 15,
        "An idle worker ends after this time."),
    "linger_due": ("Keep workers for upcoming runs", "seconds", integer_within(0, 86400), 300,
        "A worker stays while a task or a schedule is due within this time."),
    "stay_asleep": ("Keep one idle worker", "", NO_OR_YES, "no",
        "While a schedule exists. For hosts with neither cron nor a resident server."),
    "worker_seconds": ("New worker after", "seconds", integer_within(10, 86400), 3000,
        "Some hosts kill older processes."),
    "runner_tasks": ("New process after", "tasks", integer_within(1, 1000000), 10000,
        "One process runs the functions of so many tasks."),
    "runner_memory": ("New process above", "MB", integer_within(16, 1000000), 512,
        "Memory of the process that runs the functions."),
    "runner_per_owner": ("New process for each owner", "", NO_OR_YES, "no",
        "No state reaches another owner's task. Each change of owner starts Python and tasks.py again."),
    "nice": ("CPU priority (nice)", "", integer_within(0, 19), 10,
        "0: as other programs. 19: other programs go first."),
    "pass_environment": ("Environment", "", text_up_to(2000), "",
        "Names of environment variables that workers get besides the usual ones."),
    "python": ("Python", "", text_up_to(1000), "", "Interpreter for workers; empty: found automatically."),
}, "Tasks": {
    "max_pending": ("Maximum pending tasks", "tasks", integer_within(0, 1000000), 200000,
        "Per user; 0: no limit. Admins have no limit."),
    "default_owner": ("Default owner", "", text_up_to(100), "",
        "The owner of tasks added by code and command line; empty: the first admin."),
    "keep_days": ("Keep finished tasks", "days", integer_within(0, 36500), 30, "0: keep them for ever."),
    "keep_activity_days": ("Keep the activity", "days", integer_within(0, 36500), 90,
        "0: keep them for ever."),
    "keep_hours_days": ("Keep hourly figures", "days", integer_within(0, 36500), 400,
        "0: keep them for ever."),
    "max_file_mb": ("Largest file", "MB", integer_within(1, 100_000), 64,
        "The size of an uploaded file. The web server may allow less."),
    "max_files_mb": ("Files of one user", "MB", integer_within(0, 10_000_000), 1000,
        "The files of all tasks of a user; 0: no limit."),
    "throughput_base": ("Maximum throughput", "tasks per hour", integer_within(0, 10000000), 0,
        "Utilization is measured against this; 0: against a worker that never waits."),
}, "Backup": {
    "backup_hour": ("Back up every day at", "o'clock UTC", {"enum": ["", *map(str, range(24))]}, "",
        "The backup is written to the folder backups of the data folder; empty: never."),
    "backup_keep": ("Keep the newest", "backups", integer_within(1, 1000), 7,
        "The number of daily backups that are kept."),
    "alert_backup_days": ("Warn when older than", "days", integer_within(0, 3650), 7, "0: never."),
}, "Web address": {
    "host_names": ("Host names", "", text_up_to(2000), "",
        "Names of this site for the built-in server, besides localhost."),
    "base_path": ("Base path", "", text_up_to(200), "",
        "Path below which browsers find this page, such as /jq; empty: found automatically. Only if your "
        "proxy does not send the prefix. A wrong path locks all users out until an admin's password is set "
        "anew with a file setup-code-WORD.txt."),
    "page_address": ("Address of this page", "", text_up_to(2000), "",
        "Such as https://example.org/jq. Messages link to it. Workers of other machines fetch and send files "
        "there, if several machines share a queue on PostgreSQL."),
    "https": ("HTTPS", "", {"enum": ["auto", "always"]}, "auto",
        "always: browsers reach this page by HTTPS only, although this server cannot see it. "
        "If that is wrong, no user can log in: see base_path."),
    "trusted_proxies": ("Trusted proxies", "", text_up_to(2000), "",
        "Addresses and networks of your proxies. Their X-Forwarded-For, -Proto and -Host headers are "
        "trusted, so only your proxies may be there. Empty: none."),
}, "Alerts": {
    "alert_mail": ("Mail to", "", {
        **EMAIL, **text_up_to(2000), "pattern": r"[\s,]*(%s([\s,]+|$))*" % MAIL_ADDRESS}, "",
        "Addresses that get a mail when something goes wrong."),
    "mail_server": ("Mail server", "", text_up_to(300), "", "HOST:PORT; empty: the host's sendmail."),
    "mail_user": ("Mail user", "", text_up_to(300), "", "User name on that server; empty: no log-in."),
    "mail_password_file": ("Password file", "", text_up_to(1000), "",
        "Path of a file that holds the password, never the password itself; empty: mail-password-WORD.txt in "
        "the data folder, if there is one. With a password, mail_server is changed on the host only, too."),
    "mail_from": ("Mail from", "", {
        **EMAIL, **text_up_to(300), "pattern": r"\s*(%s)?\s*" % MAIL_ADDRESS}, "",
        "Sender; an address of a domain of yours."),
    "alert_webhook": ("Webhooks", "", {**text_up_to(2000), "writeOnly": True}, "",
        "Slack, Discord, ntfy, Telegram, or a program of yours; secrets, and not shown again."),
    "alert_webhook_inside": ("Webhooks may lead inside", "", NO_OR_YES, "no",
        "Webhooks may lead to this host and its network."),
    "alert_function": ("Function to run", "", text_up_to(200), "", "It gets subject and text."),
    "alert_wait": ("Alert after waiting", "seconds", integer_within(0, 30 * 86400), 900,
        "A task that could start and has waited longer is an alert; 0: never."),
}}
SETTINGS = {name: Setting(group, *row) for group, rows in SETTING_GROUPS.items()
            for name, row in rows.items()}
CHANGED_SETTINGS = titled("NewSettings", object_of(**{  # null restores the default
    name: {**about(or_null(one.schema), "%s. %s" % (one.label, one.help)),
           **({"readOnly": True} if name in HOST_SETTINGS else {})}     # read-only over HTTP
    for name, one in SETTINGS.items()}))


def tidy_setting(name: str, value: Any) -> int | str:
    """Return `value` as this setting stores it; Invalid says which values are right."""
    setting, value = SETTINGS[name], value.strip() if isinstance(value, str) else value
    checked({"properties": {name: setting.schema}}, {name: value})
    try:
        return TIDY[name](value) if name in TIDY else type(setting.default)(value)
    except ValueError as error:
        raise field_error(name, str(error)) from None


def store_setting(transaction: Connection, name: str, value: int | str | None) -> None:
    """Store the value of a setting; None restores the default."""
    if value is None:
        transaction.run("DELETE FROM setting WHERE name=?", (name,))
    else:
        transaction.upsert("setting", {"name": name}, {"value": dump_json(value)})


class Settings:
    """Values of settings, from the environment (JOBQUEUE_NAME), the table, or the default, in this order."""

    def __init__(self, database: Database, environment: Mapping[str, str] = os.environ) -> None:
        self._database = database
        self.validators: dict[str, Callable[[Any], None]] = {      # of new values, besides the schema
            "mail_password_file": check_password_file}
        self._known: tuple[float, dict[str, Any]] = (-math.inf, {})     # when the cache ends, {name: value}
        self._fixed: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            text = environment.get("JOBQUEUE_" + name.upper())
            if text is not None:
                self._fixed[name] = tidy_setting(name, parse_text(setting.schema, text))

    def get(self, name: str, transaction: Reader | None = None) -> Any:
        """Return the value of a setting: as `transaction` sees it, else at most CACHE_SECONDS old."""
        if name in self._fixed:
            return self._fixed[name]
        if transaction is None:
            self._database.refuse_inside()
            until, table = self._known
            table = table if self._database.clock.monotonic() <= until else self._read()
            return table.get(name, SETTINGS[name].default)
        text = transaction.value("SELECT value FROM setting WHERE name=?", (name,))
        return SETTINGS[name].default if text is None else json.loads(text)

    def describe(self) -> list[dict[str, Any]]:
        """Return all settings as the page shows them."""
        table, rows = self._read(), []
        for name, setting in SETTINGS.items():
            schema = setting.schema
            origin, value = (("environment", self._fixed[name]) if name in self._fixed else
                             ("table", table[name]) if name in table else ("default", setting.default))
            kind = "choice" if "enum" in schema else schema["type"].replace("string", "text")
            rows.append({
                "fixed": origin == "environment" or self._is_of_host(name), "name": name,
                "group": setting.group, "label": setting.label, "unit": setting.unit,
                "value": SECRETLY if value and (
                    # An earlier version stored a password that was given in place of a path.
                    schema.get("writeOnly") or name == "mail_password_file" and not os.path.isabs(str(value))
                ) else value,
                "default": setting.default, "from": origin, "type": kind, "choices": schema.get("enum"),
                "minimum": schema.get("minimum"), "help": setting.help,
                "maximum": schema.get("maximum", schema.get("maxLength"))})
        return rows

    def password_file(self) -> Path | None:
        """Return the path of the file with the mail server's password, or None."""
        path = self.get("mail_password_file")
        return Path(path) if path else min(self._database.folder.glob("mail-password*.txt"), default=None)

    def change(self, values: dict[str, Any], by: str | None = None, on_host: bool = True) -> None:
        """Store the given values, all or none; None restores the default.

        Invalid for a setting that is changed on the host only, unless `on_host`.
        """
        errors, checked = [], {}
        for name, value in values.items():
            try:
                checked[name] = self._check(name, value, on_host)
            except Invalid as error:
                errors += error.errors
        if errors:
            raise refusal("Nothing was changed", errors)
        with self._database.transaction() as transaction:
            for name, value in checked.items():
                store_setting(transaction, name, value)
            record_activity(transaction, self._database.clock.now(), "settings_changed", actor=by,
                 message=", ".join(checked))
        self._known = (-math.inf, {})

    def _read(self) -> dict[str, Any]:
        until = self._database.clock.monotonic() + CACHE_SECONDS
        table = {row["name"]: json.loads(row["value"]) for row in self._database.all(
            "SELECT name, value FROM setting")}
        self._known = (until, table)
        return table

    def _is_of_host(self, name: str) -> bool:
        # If the mail server is changed, the new server is sent the password.
        return name in HOST_SETTINGS or name == "mail_server" and self.password_file() is not None

    def _check(self, name: str, value: Any, on_host: bool) -> Any:
        if name not in SETTINGS:
            raise field_error(name, "is not a setting")
        if name in self._fixed:
            raise field_error(name, "is set by environment, not here")
        if not on_host and self._is_of_host(name):
            raise field_error(name, "is changed on the host only: python3 jobqueue.py settings %s VALUE"
                              % name)
        if value == SECRETLY and SETTINGS[name].schema.get("writeOnly"):
            return self._read().get(name)
        value = None if value is None else tidy_setting(name, value)
        if value and name in self.validators:
            self.validators[name](value)
        return value
