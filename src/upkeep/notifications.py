"""Mail, webhooks, a function of tasks.py: a process of its own sends.

The process is started like a worker. It sends the due rows of `delivery`, records the results, and ends
after SENDING_SECONDS at the latest. Before each try it stores the number of tries and the time of the next
one. So a try counts even if the process is killed, and a server that hangs holds up no other row. A
permanent refusal (Refused) ends the tries. Errors are stored without passwords and webhook addresses.
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import VERSION
from ..base.errors import Conflict, Invalid, print_errors
from ..base.time_and_text import dump_json, iso, shorten, storable
from ..store.connection import find_database, private_path, write_private
from ..store.database import Database
from ..store.data_folder import user_name
from ..store.settings import Settings, web_label
from .alerts import CUT_OFF, SENDING_MARK, SEND_PAUSES, Recipient, recipients_of_alerts

if TYPE_CHECKING:
    from email.message import Message
    from http.client import HTTPResponse
    from smtplib import SMTP
    from socket import socket as Socket
    from typing import Any
    from urllib.parse import SplitResult

    from ..base.types import JsonObject, Row
    from .catalogue import AnnouncedFunction
    from .alerts import MessageContent

STEP_SECONDS = 10.0             # timeout of each step of a conversation with a server
SENDMAIL_SECONDS = 30.0
MAIL_WORD_CHARACTERS = 75       # maximum of an encoded word (RFC 2047, section 2)
PASSWORD_FILE_BYTES = 200
SENDMAIL_PLACES = "/usr/sbin:/usr/lib:/usr/local/sbin"
REFUSED_FOR_GOOD = (400, 404, 410, 413, 422)    # HTTP statuses of permanent refusals


class Refused(Exception):
    """A permanent refusal: another try would be refused, too."""


class WebhookPost(NamedTuple):
    """The path and body for a host of SHAPES. The body is None for other hosts: they get a signed one."""

    path: str
    body: JsonObject | None


def log_heading(content: MessageContent) -> list[str]:
    """Return the lines above the last lines of a task's log: none without a log."""
    return ["", "The last lines of task %d:" % content["task"]] if content.get("log") else []


def message_text(content: MessageContent) -> str:
    """Return the text of a message without its subject."""
    return "\n".join([*content["lines"], *log_heading(content), *content.get("log", [])])


def header_text(text: str) -> str:
    """Return a text that is safe in a mail header: no line ends, nothing that looks like an encoded word."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+", " ", text)
    return shorten(text.replace("=?", "= ?"), 150)


def mail_message(content: MessageContent, sender: str, recipient: str, row: Row) -> Message:
    """Return the mail of a row of `delivery`. Each try sends the same mail.

    Header encodes text that is not ASCII by RFC 2047. EmailMessage would write encoded words that are too
    long or empty, or lose spaces between them (python/cpython issues 136052 and 144156).
    """
    from email import charset, policy
    from email.header import Header
    from email.message import Message
    from email.utils import format_datetime
    message: Message[Any, Any] = Message(policy.compat32.clone(
        linesep="\r\n", max_line_length=MAIL_WORD_CHARACTERS + 1))
    domain, moment = sender.rpartition("@")[2], int(row["created_at"] * 1000)
    subject = "[jobqueue] " + header_text(content["subject"])
    is_plain = subject.isascii() and max(map(len, subject.split())) <= MAIL_WORD_CHARACTERS
    message["From"], message["To"] = sender, recipient
    message["Subject"] = Header(subject, "us-ascii" if is_plain else "utf-8", header_name="Subject")
    message["Date"] = format_datetime(datetime.fromtimestamp(row["created_at"], timezone.utc))
    message["Message-ID"] = "<jobqueue.%d.%d@%s>" % (row["id"], moment, domain)
    if "thread" in content:
        message["References"] = "<jobqueue.alert.%d@%s>" % (content["thread"], domain)
    message["Auto-Submitted"], message["X-Auto-Response-Suppress"] = "auto-generated", "All"
    quoted = charset.Charset("utf-8")
    quoted.body_encoding = charset.QP
    message.set_payload(storable(message_text(content)) + "\n", quoted)
    return message


def send_mail(settings: Settings, recipient: str, content: MessageContent, row: Row) -> None:
    """Send a row by the mail server in the settings, or by the host's sendmail if none is set."""
    import socket
    user = settings.get("mail_user")
    sender = settings.get("mail_from") or (user if "@" in user else "%s@%s" % (
        user_name(os.getuid()), socket.getfqdn()))
    message = mail_message(content, sender, recipient, row)
    if settings.get("mail_server"):
        _send_by_server(settings, user, sender, recipient, message)
    else:
        _send_by_sendmail(sender, recipient, message)


def _send_by_server(settings: Settings, user: str, sender: str, recipient: str,
                    message: Message) -> None:
    import smtplib
    import ssl
    host, _, port = settings.get("mail_server").rpartition(":")
    context, is_safe = ssl.create_default_context(), port == "465"
    connect = functools.partial(smtplib.SMTP_SSL, context=context) if is_safe else smtplib.SMTP
    place = host.strip("[]"), int(port)
    try:
        with contextlib.closing(connect(*place, timeout=STEP_SECONDS)) as server:
            server.ehlo()
            if not is_safe and server.has_extn("starttls"):
                server.starttls(context=context)
                is_safe = True
            if user and not is_safe:
                raise Refused("The mail server offers no TLS; the password is not sent without.")
            if user:
                _log_in(server, user, _password(settings))
            server.send_message(message, sender, [recipient])
            with contextlib.suppress(OSError, smtplib.SMTPException):       # the message is sent already
                if server.sock:
                    server.sock.settimeout(1)
                server.quit()
    except smtplib.SMTPRecipientsRefused as error:
        raise _as_refused(*error.recipients[recipient]) from None
    except smtplib.SMTPResponseException as error:
        raise _as_refused(error.smtp_code, error.smtp_error) from None


def _log_in(server: SMTP, user: str, password: str) -> None:
    """Log in, with UTF-8 (RFC 4616) for characters outside ASCII, which smtplib refuses."""
    import base64
    server.ehlo_or_helo_if_needed()
    if (user + password).isascii():
        server.login(user, password)
    elif "PLAIN" in server.esmtp_features.get("auth", "").upper().split():
        credentials = base64.b64encode(("\0%s\0%s" % (user, password)).encode("utf-8")).decode("ascii")
        code, words = server.docmd("AUTH", "PLAIN " + credentials)
        if code != 235:
            raise _as_refused(code, words)
    else:
        raise Refused("This mail server takes only ASCII in the mail user and the password: choose others.")


def _as_refused(code: int, words: bytes | str) -> Refused | OSError:
    text = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
    return (Refused if code >= 500 else OSError)("%d %s" % (code, text))


def _password(settings: Settings) -> str:
    path = settings.password_file()
    if path is None:
        raise Refused("The mail server wants a password: set mail_password_file on the host.")
    try:
        with open(path, "rb") as file:
            password = file.read(PASSWORD_FILE_BYTES + 1).decode("utf-8-sig").strip()
    except (OSError, ValueError):
        raise Refused("mail_password_file cannot be read: it must be the path of a file") from None
    if not password.isprintable() or len(password) > PASSWORD_FILE_BYTES:
        raise Refused("mail_password_file must hold one line of at most %d characters: %s"
                      % (PASSWORD_FILE_BYTES, path))
    return password


def _sendmail_path() -> str | None:
    import shutil
    return shutil.which("sendmail", path="%s:%s" % (os.environ.get("PATH", ""), SENDMAIL_PLACES))


def can_send_mail(settings: Settings) -> bool:
    """Return True if a mail server is set, or the host has a sendmail."""
    return bool(settings.get("mail_server") or _sendmail_path())


def _send_by_sendmail(sender: str, recipient: str, message: Message) -> None:
    import subprocess
    path = _sendmail_path()
    if path is None:
        raise Refused("There is no sendmail here: set mail_server.")
    text = message.as_bytes().replace(b"\r\n", b"\n")
    try:
        done = subprocess.run([path, "-i", "-f", sender, "--", recipient], input=text,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SENDMAIL_SECONDS)
    except subprocess.TimeoutExpired:
        raise OSError("sendmail did not end within %d s" % SENDMAIL_SECONDS) from None
    if done.returncode:
        raise OSError("sendmail ended with exit code %d: %s" % (
            done.returncode, shorten(done.stdout.decode("utf-8", "replace"), 300)))


def is_inside(address: str) -> bool:
    """Return True for an address inside this host or its network. Webhooks need a setting to use one."""
    from ipaddress import IPv6Address, ip_address
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and (parsed.sixtofour or parsed.teredo or int(parsed) >> 125 != 1):
        return True                     # leads to IPv4, or is no address of one host (RFC 4291)
    return parsed.is_multicast or not parsed.is_global


def _cut(text: str, most: int, encoding: str = "utf-8", unit: int = 1) -> str:
    """Return a text of at most `most` code units, each of `unit` bytes. A cut text ends with an ellipsis."""
    data = text.encode(encoding, "replace")
    if len(data) <= most * unit:
        return text
    return data[:most * unit - len("…".encode(encoding))].decode(encoding, "ignore") + "…"


def shaped(parts: SplitResult, content: MessageContent) -> WebhookPost:
    """Return the WebhookPost of a message, in the shape that the host expects."""
    query = "?" + parts.query if parts.query else ""
    for hosts, shape in SHAPES:
        if re.fullmatch(hosts, parts.hostname or ""):
            return shape(parts.path or "/", query, content)
    return WebhookPost((parts.path or "/") + query, None)


def _with_block(content: MessageContent, most: int, escape: Callable[[str], str] = str) -> str:
    """Return a message of at most `most` characters before `escape`, its log as a block between ```."""
    text = "\n".join([content["subject"], *content["lines"], *log_heading(content)])
    log = "\n".join(content.get("log", [])).replace("```", "\'\'\'")[-most // 2:]
    block = "\n```\n%s\n```" % log if log else ""
    return escape(text[:most - len(block)] + block)


def _for_slack(path: str, query: str, content: MessageContent) -> WebhookPost:
    from html import escape
    return WebhookPost(path + query, {"text": _with_block(
        content, 3000, functools.partial(escape, quote=False))})


def _for_discord(path: str, query: str, content: MessageContent) -> WebhookPost:
    return WebhookPost(path + query, {"content": _with_block(content, 2000),
                                      "allowed_mentions": {"parse": []}})


def _for_telegram(path: str, query: str, content: MessageContent) -> WebhookPost:
    # Drop parse_mode: error messages contain characters that Telegram's markup does not accept.
    more = {name: value for name, value in parse_qsl(query[1:]) if name != "parse_mode"}
    text = "\n".join((content["subject"], message_text(content)))
    return WebhookPost(path, {**more, "text": _cut(text, 4096, "utf-16-le", 2)})


def _for_ntfy(path: str, query: str, content: MessageContent) -> WebhookPost:
    # ntfy shows the title above the message.
    click = {"click": content["link"]} if content.get("link") else {}
    return WebhookPost("/" + query, {"topic": path.strip("/"), "title": content["subject"],
                                     "message": _cut(message_text(content), 4000), **click})


SHAPES = ((r"hooks\.slack\.com", _for_slack), (r"(.+\.)?discord(app)?\.com", _for_discord),
          (r"api\.telegram\.org", _for_telegram), (r"ntfy\..+|.+\.ntfy\..+", _for_ntfy))


def webhook_key(folder: Path) -> bytes:
    """Return the secret that signs webhooks. It is made at first use; the site's owner may replace it."""
    import base64
    path = private_path(find_database(folder), "webhook-secret.txt")
    former = folder / "webhook-secret.txt"      # the name in earlier versions, which can be guessed
    if former.exists() and not path.exists():
        former.rename(path)
    if not path.exists():
        write_private(path, "whsec_%s\n" % base64.b64encode(os.urandom(32)).decode("ascii"))
    try:
        text = path.read_text("ascii").strip()
        return base64.b64decode(text[6:] if text.startswith("whsec_") else text, validate=True)
    except ValueError:
        raise Refused("webhook-secret-WORD.txt in the data folder must be whsec_ and base64.") from None


def _signed(folder: Path, content: MessageContent, row: Row,
            now: float) -> tuple[dict[str, str], str]:
    """Return the (headers, body) of a signed request by the rules of Standard Webhooks."""
    import base64
    import hmac
    name, moment = "msg_%d_%d" % (row["id"], int(row["created_at"] * 1000)), "%d" % now
    body = dump_json({"type": "jobqueue." + content["kind"], "timestamp": iso(row["created_at"]),
                      "data": {name: content.get(name) for name in ("subject", "lines", "link", "log")}})
    signed_text = ("%s.%s.%s" % (name, moment, body)).encode("utf-8")
    sign = base64.b64encode(hmac.digest(webhook_key(folder), signed_text, "sha256")).decode("ascii")
    return {"webhook-id": name, "webhook-timestamp": moment,
            "webhook-signature": "v1," + sign}, body


def open_outside(host: str, port: int, inside: bool) -> Socket:
    """Return a socket to a host; Refused if an address is inside, unless `inside` allows it.

    The name is resolved only once: all addresses are checked, and the first that answers is used. So a
    second look-up cannot lead elsewhere.
    """
    import socket
    places = [(str(place[0]), int(place[1])) for *_, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM)]
    if not inside and any(is_inside(address) for address, _ in places):
        raise Refused("The webhook leads into this host or its network; the setting "
                      "alert_webhook_inside allows that.")
    for place in places[:-1]:
        with contextlib.suppress(OSError):      # such as an IPv6 address on a host without IPv6
            return socket.create_connection(place, STEP_SECONDS / 2)
    return socket.create_connection(places[-1], STEP_SECONDS)


def send_webhook(settings: Settings, url: str, content: MessageContent, row: Row, folder: Path,
                 now: float) -> None:
    """Send a row of `delivery` to a webhook, in the shape that its host expects."""
    import http.client
    import ssl
    parts = urlsplit(url)
    host, is_safe = parts.hostname or "", parts.scheme == "https"
    path, shaped_body = shaped(parts, content)
    headers, body = ({}, dump_json(shaped_body)) if shaped_body else _signed(folder, content, row, now)
    sock = open_outside(host, parts.port or (443 if is_safe else 80),
                        settings.get("alert_webhook_inside") == "yes")
    with contextlib.closing(sock):
        if is_safe:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection = http.client.HTTPConnection(host, parts.port or 80)
        connection.sock = sock          # the port above is only for the header Host
        with contextlib.closing(connection):
            connection.request("POST", path, body.encode("utf-8"), {
                "Content-Type": "application/json", "User-Agent": "jobqueue/" + VERSION, **headers})
            _judge_answer(connection.getresponse())


def _judge_answer(answer: HTTPResponse) -> None:
    if 200 <= answer.status < 300:
        return
    words = "%d %s" % (answer.status, shorten(storable(answer.reason), 100))
    if answer.status in REFUSED_FOR_GOOD:
        raise Refused(words)
    raise OSError(words + (", and is not followed" if answer.status < 400 else ""))


class DeliverySender:
    """The sender of the rows of `delivery`. `add` adds a task, `find` returns a function of tasks.py."""

    def __init__(self, database: Database, settings: Settings, add: Callable[..., object],
                 find: Callable[[str], AnnouncedFunction | None]) -> None:
        self._database, self._settings, self._clock = database, settings, database.clock
        self._add, self._find = add, find

    def run(self) -> None:
        """Send all due messages."""
        with print_errors("telling"):
            for row in iter(self._next_due, None):
                self._send(row)
        with contextlib.suppress(OSError):
            os.unlink(self._database.folder / SENDING_MARK)     # so the next process may start at once

    def _next_due(self) -> JsonObject | None:
        """Count a try of the next due row; return the row, or None if no row is due."""
        now = self._clock.now()
        with self._database.transaction(durable=False) as transaction:
            row = transaction.one(
                "SELECT * FROM delivery WHERE next_at<=? ORDER BY next_at, id LIMIT 1", (now,))
            if row is None:
                return None
            tries = row["tries"] + 1
            next_at = now + SEND_PAUSES[tries] if tries < len(SEND_PAUSES) else None
            taken = {"tries": tries, "next_at": next_at, "error": CUT_OFF}
            transaction.update("delivery", taken, "id=?", (row["id"],))
        return {**row, **taken}

    def _send(self, row: Row) -> None:
        """Send a row whose try was counted, and record the result."""
        changes: JsonObject = {"next_at": None, "error": None}
        content: MessageContent = json.loads(row["content"])
        try:
            self._by_channel(row, content)
            changes["sent_at"] = self._clock.now()
        except Exception as error:      # an answer of a server may cause any error
            changes["error"] = self._words(error)
            if not isinstance(error, Refused):
                changes["next_at"] = row["next_at"]
        with self._database.transaction(durable=False) as transaction:
            transaction.update("delivery", changes, "id=? AND tries=?", (row["id"], row["tries"]))

    def _by_channel(self, row: Row, content: MessageContent) -> None:
        channel, recipient = row["channel"], row["recipient"]
        if not self._may_be_told(content["kind"], Recipient(channel, recipient)):
            raise Refused("This recipient was removed meanwhile.")
        if channel == "mail":
            send_mail(self._settings, recipient, content, row)
        elif channel == "webhook":
            url = next(address for address in self._settings.get("alert_webhook").split()
                       if web_label(address) == recipient)
            send_webhook(self._settings, url, content, row, self._database.folder,
                         self._clock.now())
        else:
            self._add_task(recipient, content, row)

    def _may_be_told(self, kind: str, recipient: Recipient) -> bool:
        if kind in ("task", "summary"):
            return bool(self._database.value(
                "SELECT 1 FROM user WHERE email=? AND disabled=0 LIMIT 1", (recipient.name,)))
        return recipient in recipients_of_alerts(self._settings)

    def _add_task(self, name: str, content: MessageContent, row: Row) -> None:
        arguments = {"subject": content["subject"], "text": message_text(content)}
        function = self._find(name)
        names = function["schema"]["properties"] if function else arguments
        try:
            self._add(name, {key: value for key, value in arguments.items() if key in names},
                      unique_key="alert %d" % row["id"])
        except (Invalid, Conflict) as error:
            raise Refused(error.detail) from None

    def _words(self, error: Exception) -> str:
        """Return the text of an error on one line, with secrets replaced."""
        words, hooks = str(error) or type(error).__name__, self._settings.get("alert_webhook")
        secrets = [part for address in hooks.split() for part in (address, *address.split("/", 3)[3:])]
        with contextlib.suppress(Refused):
            secrets += [_password(self._settings)] if self._settings.get("mail_user") else []
        for secret in secrets:
            words = words.replace(secret, "•••") if len(secret) > 3 else words
        return shorten(storable(words), 300)
