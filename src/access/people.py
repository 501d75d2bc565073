"""People: passwords, roles, users, and guessed passwords."""
from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import CACHE_SECONDS
from ..base.errors import (Busy, Conflict, Denied, Invalid, JobQueueError, NotFound, SetupError, TooMany,
                           Unauthorized, field_error, join_errors, wrong)
from ..base.time_and_text import iso, shorten, storable
from ..base.values import (OPTION_SCHEMAS, TEXT, about, object_of, or_null, text_up_to,
                           titled)
from ..store.connection import Connection, Reader
from ..store.database import Database
from ..store.log_and_activity import record_activity
from ..store.settings import EMAIL, SETTINGS, Settings
from ..tasks.queues import QUEUE_LIMITS
from ..upkeep.summary import SUMMARY, summary_columns

if TYPE_CHECKING:
    from typing import Any, BinaryIO, TypedDict

    from ..base.types import FieldError, JsonObject, Row

if TYPE_CHECKING:
    class TokenLimits(TypedDict, total=False):
        """The queues and functions that a token for workers is bound to."""

        queues: list[str]
        functions: list[str]

    class Token(TokenLimits):
        """The token of the program that sends a request."""

        id: int
        scope: str

SESSION_SECONDS = 12 * 3600.0
PASSWORD_MIN, PASSWORD_MAX = 8, 256
SCRYPT_COST = (2 ** 14, 8, 5)   # OWASP's 16 MiB row
STORED_PASSWORD = "scrypt$%d,%d,%d$%s$%s"
SCRYPT_MISSING = "this Python lacks scrypt, which passwords need: use another Python"
hashing = threading.Semaphore(2)    # threads that hash at a time: each needs 16 MiB of a small host
guessing = threading.BoundedSemaphore(6)    # threads that hash or wait to hash; a further one gets Busy
# The number of guesses before the first wait; in seconds how long guesses count, the shortest and the longest
# wait.
GUESSES, GUESSES_BY_ADDRESS = (5, 3600.0, 1.0, 900.0), (20, 60.0, 60.0, 60.0)
# Passwords that are long enough, but that guessers try first.
COMMON_PASSWORDS = frozenset(
    "password password1 password12 password123 passw0rd 12345678 123456789 1234567890 qwertyuiop "
    "qwerty123 1q2w3e4r 1qaz2wsx iloveyou sunshine princess football baseball superman trustno1 "
    "welcome1 letmein1 adminadmin admin123 administrator changeme jobqueue abcd1234 abc12345 "
    "11111111 00000000 88888888 87654321 987654321 123123123 asdfghjkl zxcvbnm1 starwars whatever "
    "computer michelle jennifer internet corvette mercedes maverick".split())
NAME_PATTERN = r"\w[\w.@+-]{0,49}"
ROLES = ("viewer", "user", "admin")     # viewers see all tasks, and change nothing
# {scope of a token: the roles that may make one}. The scope user allows everything that the user may do, read
# allows only reading. Each of the last three allows only the calls of its name.
TOKEN_SCOPES = {"user": ROLES, "read": ROLES, "tick": ROLES[1:], "worker": ("admin",),
                "metrics": ("admin",)}
LOG_IN = titled("Login", object_of(("name", "password"), name=TEXT, password=TEXT))
SET_UP = titled("Setup", object_of(("code", "name", "password"), name=TEXT, password=TEXT,
                                 code=about(TEXT, "from the printed link, or a file "
                                            "setup-code*.txt in data or beside jobqueue.py")))
NEW_USER = titled("NewUser", object_of(
    ("name", "password"), name=TEXT, password=TEXT, role={"enum": list(ROLES)},
    current_password=about(or_null(TEXT), "your own password, if a session creates an admin")))
NEW_INVITATION = titled("NewInvitation", object_of(
    role={"enum": list(ROLES)},
    current_password=about(or_null(TEXT), "your own password, if a session invites an admin")))
ACCEPTED = titled("Acceptance", object_of(("code", "name", "password"), name=TEXT, password=TEXT,
                                          code=about(TEXT, "from the link of the invitation")))
CHANGED_USER = titled("UserChange", object_of(
    role=or_null({"enum": list(ROLES)}), password=or_null(TEXT), disabled={"type": "boolean"},
    max_pending=about(or_null(SETTINGS["max_pending"].schema),
                      "maximum of pending tasks; 0: no limit, null: as the setting says"),
    max_running=about(QUEUE_LIMITS["max_running"], "maximum of running tasks; null: no limit"),
    email=about(or_null(EMAIL), "where mail about the user's tasks is sent; an admin enters it"),
    summary=SUMMARY,
    current_password=about(or_null(TEXT), "your own password: to change it, or to create an admin or set "
                                          "an admin's password in a session")))
NEW_TOKEN = titled("NewToken", object_of(
    ("name",), scope={"enum": list(TOKEN_SCOPES)},
    queues=about({"type": ["array", "null"], "items": OPTION_SCHEMAS["queue"], "minItems": 1,
                  "maxItems": 50},
                 "with the scope worker: tasks of these queues only"),
    functions=about({"type": ["array", "null"], "items": text_up_to(200), "minItems": 1,
                     "maxItems": 200},
                    "with the scope worker: tasks of these functions only"),
    name={"type": "string", "maxLength": 100, "pattern": r"[^\x00]*[^\s\x00][^\x00]*",
          "patternMessage": "must have 1 to 100 characters"},
    password=about(TEXT, "your own password; not needed with an API token")))


class Person:
    """The user of a request: id, name and role, and the end of their session if there is one."""

    def __init__(self, row: Row, expires_at: float | None = None) -> None:
        self.id: int = row["id"]
        self.name: str = row["name"]
        self.role: str = row["role"]
        self.is_admin = self.role == "admin"
        # The owner of the visible tasks; None: all.
        self.visible_owner_id = self.id if self.role == "user" else None
        # The owner of the visible tokens, and of the events of accounts that a viewer sees; None: all.
        self.visible_account_id = None if self.is_admin else self.id
        self.scope_and_actor = self.visible_owner_id, self.name
        self.expires_at = expires_at
        self.token: Token | None = None     # the token of the request, if a program sent it

    def sees_secrets_of(self, owner: str) -> bool:
        """Return True if the arguments of this owner's tasks are shown with their secrets."""
        return owner == self.name and not (self.token and self.token["scope"] == "read")

    @property
    def searches_as(self) -> int | None:
        """Return the id of the user whose secrets a search reads; 0: no user's, None: all users'."""
        return self.id if self.sees_secrets_of(self.name) else 0

    @property
    def answerable(self) -> Person | None:
        """Return the Person whose rights count for a request; None for the site's own code."""
        return self


class KnownOwner(NamedTuple):
    """The cached row of the user who owns tasks of code and shell, and the monotonic time when it expires."""

    until: float
    name: str
    row: Row


def knows_scrypt() -> bool:
    """Return True if this Python has scrypt for passwords."""
    import hashlib
    return hasattr(hashlib, "scrypt")


def _scrypt(password: str, salt: bytes, cost: Iterable[int]) -> bytes:
    """Return the scrypt key of a password at this cost; SetupError if scrypt is missing."""
    import hashlib
    if not knows_scrypt():
        raise SetupError(SCRYPT_MISSING)
    n, r, p = cost
    with hashing:
        return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p,
                              maxmem=64 << 20)


def hash_password(password: str) -> str:
    """Return the stored form of a password: method$parameters$salt$key.

    The parameters are in it, so a later version can raise the cost.
    """
    salt = os.urandom(16)
    key = _scrypt(password, salt, SCRYPT_COST)
    return STORED_PASSWORD % (*SCRYPT_COST, salt.hex(), key.hex())


def verify_password(password: str | None, stored: str) -> bool:
    """Return True if `password` is the stored one; False if the stored method is unknown."""
    import hmac
    if password is None or len(password) > PASSWORD_MAX:
        return False
    try:
        method, parameters, salt, key = stored.split("$")
        computed = _scrypt(password, bytes.fromhex(salt), map(int, parameters.split(",")))
        return method == "scrypt" and hmac.compare_digest(computed, bytes.fromhex(key))
    except (ValueError, AttributeError):
        return False


@contextlib.contextmanager
def may_guess(database: Database, *subjects: str) -> Iterator[None]:
    """Count a guess under each subject, then run the block. Busy, and no count, if many threads hash."""
    if not guessing.acquire(blocking=False):
        raise Busy("Many people log in at the moment. Please try again.", retry_after=1)
    try:
        count_guess(database, *subjects)
        yield
    finally:
        guessing.release()


def check_password(password: str, name: str) -> None:
    """Raise Invalid unless a password is long enough and not one that guessers try first."""
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise field_error("password", "must have %d to %d characters"
                          % (PASSWORD_MIN, PASSWORD_MAX))
    if password.lower() in COMMON_PASSWORDS or password.lower() == name.lower():
        raise field_error("password", "is one that guessers try first; please choose another")


def wrong_password(field: str) -> Denied:
    """Return the error for a wrong current password, which this field asks for."""
    return Denied("The current password is not right.", wrong(field, "is not right"))


def wrong_log_in() -> Unauthorized:
    """Return the error of a refused log-in. It does not tell whether the name or the password is wrong."""
    return Unauthorized("The name or the password is not right.")


def end_sessions(transaction: Connection, user_id: int, programs: bool) -> None:
    """End all sessions of a user. With `programs` remove the user's API tokens, too."""
    for table in ("session", "token") if programs else ("session",):
        transaction.run("DELETE FROM %s WHERE user_id=?" % table, (user_id,))


def record_user_event(transaction: Connection, at: float, event: str, row: Row, by: str | None,
              details: str | None = None) -> None:
    """Record an event of a user (their row) or of their account in the activity."""
    record_activity(transaction, at, event, owner_id=row["id"], actor=by,
         message=": ".join(filter(None, (row["name"], details))))


def record_use(database: Database, row: Row, table: str, column: str) -> None:
    """Record that a session or token was used. A busy database is no error here."""
    now = database.clock.now()
    if now - (row[column] or 0) > 60:
        with contextlib.suppress(JobQueueError), database.deadline(0.2), \
                database.transaction(durable=False) as transaction:
            transaction.update(table, {column: now}, "id=?", (row["used_id"],))
            transaction.update("user", {"last_seen_at": now}, "id=?", (row["id"],))


def address_subject(address: str) -> str:
    """Return the subject of guesses from an address. An IPv6 /64 network has one subject."""
    if ":" in address:
        from ipaddress import IPv6Address, IPv6Network
        with contextlib.suppress(ValueError):
            mapped = IPv6Address(address).ipv4_mapped
            address = str(mapped or IPv6Network(address + "/64", strict=False))
    return "address:%s" % address


def user_subject(name: str) -> str:
    """Return the subject of guesses at a user's password.

    Only A to Z become lower case, as in the database.
    """
    return "user:" + storable(re.sub("[A-Z]+", lambda match: match[0].lower(), name[:100]))


def fold_name(name: str) -> str:
    """Return the form of a name for comparison. Names that look alike have the same form."""
    import unicodedata
    return unicodedata.normalize("NFKC", name).casefold()


def count_guess(database: Database, *subjects: str) -> None:
    """Count a guess under each subject before it is checked, so parallel guesses count, too.

    TooMany while any subject must wait.
    """
    now = database.clock.now()
    with database.transaction(durable=False) as transaction:
        for subject in subjects:
            row = transaction.one("SELECT * FROM throttle WHERE subject=?", (subject,))
            if row and now < row["until"] < now + 2 * GUESSES[3]:
                raise TooMany("Too many attempts. Please wait.",
                              retry_after=math.ceil(row["until"] - now))
            free, memory, least, most = (
                GUESSES_BY_ADDRESS if subject.startswith("address:") else GUESSES)
            failures = row["failures"] + 1 if row and now - row["failed_at"] < memory else 1
            pause = min(most, least * 2 ** min(failures - free, 20)) if failures >= free else 0
            transaction.upsert("throttle", {"subject": subject},
                               {"failures": failures, "failed_at": now, "until": now + pause})


def forgive(transaction: Connection, *subjects: str) -> None:
    """Remove the guesses counted under these subjects."""
    for subject in subjects:
        transaction.run("DELETE FROM throttle WHERE subject=?", (subject,))


class Users:
    """The users and their passwords. After the set-up there is always an admin who is not disabled."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        settings.validators["default_owner"] = functools.partial(self._test_owner, database)
        self._owner = KnownOwner(-math.inf, "", {})

    def has_admin(self, db: Reader | None = None) -> bool:
        """Return True if there is an admin, disabled or not."""
        return bool((db or self._database).value("SELECT 1 FROM user WHERE role='admin' LIMIT 1"))

    def all(self) -> list[JsonObject]:
        """Return all users as admins see them."""
        return [self._json(row) for row in self._database.all("SELECT * FROM user ORDER BY id")]

    def describe(self, name: str) -> JsonObject:
        """Return a user as admins see them; NotFound if there is none."""
        return self._json(self.find(name))

    def find(self, name: str, db: Reader | None = None) -> Row:
        """Return the row of a user; NotFound if there is none."""
        row = (db or self._database).one("SELECT * FROM user WHERE name=?", (name,))
        if row is None:
            raise NotFound("There is no user %s." % shorten(str(name), 60))
        return row

    def person(self, user_id: int) -> Person | None:
        """Return the Person with this user id; None if there is no such user, or the user is disabled."""
        row = self._database.one("SELECT * FROM user WHERE id=? AND disabled=0", (user_id,))
        return Person(row) if row else None

    def owner(self, name: str | None = None) -> Row:
        """Return the row of this user; without a name that of the user who owns tasks of code and shell.

        Without a name the row may be CACHE_SECONDS old. If the user was deleted since then, adding the
        task fails.
        """
        if name:
            return self.find(name)
        name, now = self._settings.get("default_owner"), self._database.clock.monotonic()
        until, known_name, known_row = self._owner
        if known_name == name and now <= until:
            return known_row
        row = self._database.one("""
            SELECT * FROM user WHERE name=? OR (?='' AND role='admin' AND disabled=0)
            ORDER BY id LIMIT 1""", (name, name))
        if row is None:
            raise SetupError("There is no user %s, whom the setting default_owner names." % name
                             if name else "There is no admin yet who could own the task. Open the "
                             "page and make one, or run: python3 jobqueue.py user add NAME --admin")
        self._owner = KnownOwner(now + CACHE_SECONDS, name, row)
        return row

    @staticmethod
    def _test_owner(database: Database, name: str) -> None:
        # Static: a bound method would keep a dropped JobQueue, and its connections, alive.
        if not database.one("SELECT id FROM user WHERE name=?", (name,)):
            raise field_error("default_owner", "must be the name of a user")

    def add(self, name: str, password: str, role: str = "user",
            by: str | None = None) -> JsonObject:
        """Make a user; Conflict if the name is taken."""
        columns = self.prepare(name, password, role)
        with self._database.transaction() as transaction:
            self.insert(transaction, columns, by)
        return self.describe(name)

    def insert(self, transaction: Connection, columns: JsonObject,
               by: str | None = None) -> None:
        """Store a user with the columns from prepare(); Conflict if a name that looks alike is taken."""
        for other_name, in transaction.all("SELECT name FROM user"):
            if fold_name(other_name) == fold_name(columns["name"]):
                raise Conflict("There is a user %s already." % other_name, wrong("name", "is taken"))
        record_activity(transaction, self._database.clock.now(), "user_added", actor=by,
             owner_id=transaction.insert("user", columns),
             message="%(name)s: %(role)s" % columns)

    def prepare(self, name: str, password: str, role: str) -> JsonObject:
        """Return the columns of a new user; Invalid if the name or the password is not allowed."""
        errors: list[FieldError] = []
        if not re.fullmatch(NAME_PATTERN, name):
            errors += wrong("name", "must be 1 to 50 letters, digits, _ . @ + or -, and begin "
                            "with a letter or digit")
        try:
            check_password(password, name)
        except Invalid as error:
            errors += error.errors
        if errors:
            raise Invalid(join_errors(errors), errors)
        return {"name": name, "password": hash_password(password), "role": role,
                "created_at": self._database.clock.now()}

    def change(self, name: str, password_seen: str | None = None, by: str | None = None,
               **changes: Any) -> JsonObject:
        """Change columns of a user. A new password or disabling ends their sessions and tokens.

        None clears max_pending (the setting holds then), max_running, email or summary, and leaves any
        other column as it is. With `password_seen`, which confirm() returned, tokens stay. Denied if the
        password was changed since then.
        """
        changes = {column: value for column, value in changes.items()
                   if value is not None or column in ("max_pending", "max_running", "email", "summary")}
        if "email" in changes and changes["email"] is None:
            changes["summary"] = None
        if "summary" in changes:
            changes.update(summary_columns(changes["summary"], self._database.clock.now()))
        if "password" in changes:
            check_password(changes["password"], self.find(name)["name"])
            changes["password"] = hash_password(changes["password"])
        with self._database.transaction() as transaction:
            row = self.find(name, transaction)
            if password_seen not in (None, row["password"]):
                raise wrong_password("current_password")
            if changes:
                transaction.update("user", changes, "id=?", (row["id"],))
                record_user_event(transaction, self._database.clock.now(), "user_changed", row, by,
                          ", ".join(sorted(changes.keys() - {"summary_at"})))
                self._check_summary(transaction, row["id"])
            if "password" in changes or changes.get("disabled"):
                end_sessions(transaction, row["id"], password_seen is None)
            self._keep_an_admin(transaction)
            return self._json(self.find(name, transaction))

    @staticmethod
    def _check_summary(transaction: Connection, user_id: int) -> None:
        if transaction.value("SELECT 1 FROM user WHERE id=? AND summary IS NOT NULL AND email IS NULL",
                             (user_id,)):
            raise field_error("summary", "needs a mail address: an admin enters it")

    def confirm(self, person: Person, password: str | None, field: str = "password") -> str:
        """Return the stored form of a person's password; Denied, naming `field`, if `password` is wrong."""
        subject = "password:%d" % person.id     # only a logged-in user can guess here
        stored: str = self.find(person.name)["password"]
        with may_guess(self._database, subject):
            if not verify_password(password, stored):
                raise wrong_password(field)
        with self._database.transaction(durable=False) as transaction:
            forgive(transaction, subject)
        return stored

    def delete(self, name: str, by: str | None = None) -> None:
        """Remove a user who owns no task and no schedule; Conflict otherwise."""
        with self._database.transaction() as transaction:
            row = self.find(name, transaction)
            owner = self._settings.get("default_owner", transaction)
            if owner and transaction.value("SELECT id FROM user WHERE name=?", (owner,)) == row["id"]:
                raise Conflict("%s cannot be deleted: the setting default_owner names %s."
                               % (name, name))
            self._remove_gone_schedules(transaction, row["id"])
            for table in ("task", "schedule"):
                if transaction.value("SELECT 1 FROM %s WHERE owner_id=? LIMIT 1" % table,
                                     (row["id"],)):
                    raise Conflict("%s owns %ss; disable the user instead." % (row["name"], table))
            end_sessions(transaction, row["id"], True)
            for table in ("known_address", "saved"):
                transaction.run("DELETE FROM %s WHERE user_id=?" % table, (row["id"],))
            transaction.run("DELETE FROM user WHERE id=?", (row["id"],))
            record_user_event(transaction, self._database.clock.now(), "user_deleted", row, by)
            self._keep_an_admin(transaction)

    @staticmethod
    def _remove_gone_schedules(transaction: Connection, owner_id: int) -> None:
        """Remove the rows of a user's schedules that tasks.py does not declare any more."""
        gone = "owner_id=? AND gone_at IS NOT NULL"
        transaction.run("DELETE FROM slot WHERE schedule_id IN (SELECT id FROM schedule WHERE %s)" % gone,
                        (owner_id,))
        transaction.run("DELETE FROM schedule WHERE " + gone, (owner_id,))

    @staticmethod
    def _keep_an_admin(transaction: Connection) -> None:
        if not transaction.value("SELECT 1 FROM user WHERE role='admin' AND disabled=0 LIMIT 1"):
            raise Conflict("This is the last admin; make another one first.")

    @staticmethod
    def _json(row: Row) -> JsonObject:
        same = {name: row[name] for name in ("name", "role", "max_pending", "max_running", "email")}
        return {**same, "summary": row["summary"] and json.loads(row["summary"]),
                "disabled": bool(row["disabled"]), "created_at": iso(row["created_at"]),
                "last_seen_at": iso(row["last_seen_at"])}


def changed_at(file: BinaryIO) -> float:
    """Return the time of a file's last change (ctime). An upload can set only the modification time."""
    return os.fstat(file.fileno()).st_ctime


def plain_code(text: str) -> str:
    """Return the form of a code for comparison, without line ends and spaces around words."""
    return " ".join(text.split())
