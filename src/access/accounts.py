"""The first admin, a lost password, sessions, tokens, invitations."""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import HOME, INVITATION, INVITATION_SECONDS
from ..base.errors import Conflict, Denied, NotFound, field_error, wrong
from ..base.time_and_text import digest, dump_json, iso, random_token, storable
from ..store.connection import Connection, Reader, private_path, write_private
from ..store.database import Database
from ..store.log_and_activity import record_activity
from ..store.state import recall, remember
from ..store.settings import store_setting
from .people import (SCRYPT_COST, SESSION_SECONDS, STORED_PASSWORD, Person, Users,
                     address_subject, changed_at, count_guess, end_sessions, forgive, may_guess,
                     record_use, record_user_event, plain_code, user_subject, verify_password, wrong_log_in,
                     wrong_password)

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row
    from .people import TokenLimits

SESSION_IDLE_SECONDS = 30 * 60.0
TOKENS_MAX = 100                # tokens of one user
SETUP_CODE_SECONDS = 3600.0
SETUP_CODE_MIN_CHARACTERS = 16
# The stored password for unknown names. Verifying it takes as long as verifying a user's.
NOBODYS_PASSWORD = STORED_PASSWORD % (*SCRYPT_COST, "00" * 16, "00" * 64)
TOKEN_ROW = ("SELECT token.*, user.name AS owner, user.password FROM token "
             "JOIN user ON user.id=user_id WHERE ")


def read_code(path: Path, now: float) -> str | None:
    """Return the code in a text file; None if the code is short, or the file unreadable or too old."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            code = plain_code(file.read(4096).decode("utf-8-sig", "replace"))
            is_young = now - changed_at(file) <= SETUP_CODE_SECONDS
    except OSError:
        return None
    return code if is_young and len(code) >= SETUP_CODE_MIN_CHARACTERS else None


class SetUp:
    """The set-up of the first admin, and the reset of an admin's lost password.

    A code proves that a person can read or write files here.

    1. While there is no admin, our own file holds a code, which is replaced every hour. The site's owner
       may upload another file, with a code of their own, at any time.
    2. A code in a request is counted as a guess, then compared with the codes in all these files.
    3. In one transaction the code is marked as used, and the admin is made or gets the password.
    4. All these files are deleted.
    """

    def __init__(self, database: Database, users: Users) -> None:
        self._database, self._users, self._clock = database, users, database.clock
        self._home = HOME
        self.file = private_path(database.path, "setup-code.txt")

    def code(self) -> str:
        """Return the one-time code for the first admin. A code older than SETUP_CODE_SECONDS is replaced."""
        with self._database.transaction(durable=False):     # two processes must not make two codes
            code = read_code(self.file, self._clock.now())
            if not code:
                code = random_token(16)
                write_private(self.file, code + "\n")
        return code

    def files(self) -> list[Path]:
        """Return all files setup-code*.txt: our own, and those that the site's owner uploaded."""
        return sorted(path for folder in (self._database.folder, self._home)
                      for path in folder.glob("setup-code*.txt"))

    def redeem(self, code: str, name: str, password: str, address: str = "",
               doubtful: Iterable[str] = ()) -> Row:
        """Make the first admin, or give an admin a new password; return the user's row.

        A reset of the password also resets the `doubtful` settings: a wrong setting may have locked out
        all users. NotFound if there is an admin and no file; Denied if no file holds the code.
        """
        is_first = not self._users.has_admin()
        if is_first:
            self.code()
        files = self.files()
        code = self._check(code, files, address)
        columns = self._users.prepare(name, password, "admin")
        with self._database.transaction() as transaction:
            if recall(transaction, "used_code") == digest(code):   # its file could not be deleted
                raise Denied("This code has been used: delete its file, or write another code into "
                             "it.", wrong("code", "has been used"))
            remember(transaction, "used_code", digest(code))
            if not is_first:
                self._reset(transaction, columns, doubtful)
            elif self._users.has_admin(transaction):
                raise NotFound("This is set up already.")
            else:
                self._users.insert(transaction, columns, name)
            forgive(transaction, address_subject(address))
        for path in files:
            with contextlib.suppress(OSError):
                path.unlink()
        return self._users.find(name)

    def _check(self, code: str, files: list[Path], address: str) -> str:
        """Return the code in the form that is compared; Denied unless a file holds it."""
        if not files:
            raise NotFound("This is set up already. If an admin's password is lost: upload a text "
                           "file with %d or more characters of your own beside jobqueue.py, named "
                           "setup-code-WORD.txt with a word that nobody can guess, and enter them "
                           "here within an hour." % SETUP_CODE_MIN_CHARACTERS)
        count_guess(self._database, address_subject(address))
        code = plain_code(code)
        for path in files:
            file_code = read_code(path, self._clock.now())
            # The time that a comparison of digests takes reveals nothing about the code.
            if file_code and digest(file_code) == digest(code):
                return code
        words = ("is in no file setup-code*.txt here. Such a file must be readable (rights 644), at most "
                 "an hour old, and hold %d or more characters"
                 % SETUP_CODE_MIN_CHARACTERS)
        raise Denied("This code %s." % words, wrong("code", words))

    def _reset(self, transaction: Connection, columns: JsonObject, doubtful: Iterable[str]) -> None:
        name, is_admin = columns["name"], "role='admin' AND disabled=0"
        ids = [row["id"] for row in transaction.all(
            "SELECT id FROM user WHERE name=? AND " + is_admin, (name,))]
        if not ids:
            raise field_error("name", "must be that of an admin: " + ", ".join(
                row["name"] for row in transaction.all(
                    "SELECT name FROM user WHERE %s ORDER BY id" % is_admin)))
        transaction.update("user", {"password": columns["password"]}, "id=?", ids[:1])
        record_user_event(transaction, self._clock.now(), "user_changed", {"id": ids[0], "name": name},
                  None, "password, with a code from a file")
        end_sessions(transaction, ids[0], True)
        for setting in doubtful:
            store_setting(transaction, setting, None)
        forgive(transaction, user_subject(name))


class Sessions:
    """The sessions of browsers. The database stores only the digest of a session's token."""

    def __init__(self, database: Database) -> None:
        self._database, self._clock = database, database.clock

    def log_in(self, name: str, password: str, address: str) -> str:
        """Return the token of a new session; Unauthorized if the name or the password is wrong."""
        place = address_subject(address)
        subjects = [user_subject(name), place]
        row = self._database.one(
            "SELECT *, (SELECT until FROM known_address WHERE user_id=user.id AND address=?) "
            "AS known FROM user WHERE name=?", (place, storable(name)))
        # Guesses from other addresses must not lock out a known address.
        if row and (row["known"] or 0) > self._clock.now():
            subjects = ["known:%d %s" % (row["id"], place)]     # no name in a request gives this subject
        with may_guess(self._database, *subjects):
            right = verify_password(password, row["password"] if row else NOBODYS_PASSWORD)
        if not right or row is None or row["disabled"]:
            with self._database.transaction(durable=False) as transaction:
                if row:                 # the throttle limits how many events this writes
                    record_user_event(transaction, self._clock.now(), "log_in_refused", row, None)
            raise wrong_log_in()
        return self.open(row, address, subjects[0], counted="".join(subjects[1:]))

    def open(self, row: Row, address: str, *subjects: str, counted: str = "") -> str:
        """Return the token of a new session for a user's row.

        Guesses under `subjects` are forgiven. So is one guess under `counted`, the subject that all users
        of an address share. Unauthorized if the password has changed since the row was read, or the user
        is disabled.
        """
        token, now = random_token(32), self._clock.now()
        with self._database.transaction() as transaction:
            if not transaction.one("SELECT 1 FROM user WHERE id=? AND password=? AND disabled=0",
                                   (row["id"], row["password"])):
                raise wrong_log_in()
            transaction.insert("session", {
                "digest": digest(token), "user_id": row["id"], "created_at": now, "seen_at": now,
                "expires_at": now + SESSION_SECONDS, "address": address})
            forgive(transaction, *subjects)
            transaction.run("UPDATE throttle SET failures=failures-1 WHERE subject=?", (counted,))
            transaction.update("user", {"last_seen_at": now}, "id=?", (row["id"],))
            record_user_event(transaction, now, "logged_in", row, row["name"])
            place = {"user_id": row["id"], "address": address_subject(address)}
            transaction.upsert("known_address", place, {"until": now + 30 * 86400})
        return token

    def person(self, token: str) -> Person | None:
        """Return the Person whose session has this token; None if no session has it, or it has expired."""
        now = self._clock.now()
        row = self._database.one(
            "SELECT user.*, session.id AS used_id, session.seen_at, session.expires_at "
            "FROM session JOIN user ON user.id=session.user_id "
            "WHERE session.digest=? AND user.disabled=0", (digest(token),))
        if row is None or row["expires_at"] < now or row["seen_at"] + SESSION_IDLE_SECONDS < now:
            return None
        record_use(self._database, row, "session", "seen_at")
        return Person(row, row["expires_at"])

    def close(self, token: str) -> None:
        """Log out."""
        with self._database.transaction() as transaction:
            row = transaction.one("SELECT user.id, user.name FROM session "
                                  "JOIN user ON user.id=user_id WHERE digest=?", (digest(token),))
            if row:
                transaction.run("DELETE FROM session WHERE digest=?", (digest(token),))
                record_user_event(transaction, self._clock.now(), "logged_out", row, row["name"])

    def all(self, user_id: int, tokens: Iterable[str] = ()) -> list[JsonObject]:
        """Return a user's sessions, the last used first. Sessions with the given tokens are `current`."""
        now, ours = self._clock.now(), set(map(digest, tokens))
        rows = self._database.all(
            "SELECT * FROM session WHERE user_id=? AND expires_at>=? AND seen_at>=? "
            "ORDER BY seen_at DESC, id DESC", (user_id, now, now - SESSION_IDLE_SECONDS))
        return [{"id": row["id"], "address": row["address"], "current": row["digest"] in ours,
                 "created_at": iso(row["created_at"]), "seen_at": iso(row["seen_at"])}
                for row in rows]

    def close_all(self, row: Row, by: str, but: Sequence[str] = ()) -> None:
        """End all sessions of a user (their row), except those with the tokens in `but`."""
        with self._database.transaction() as transaction:
            transaction.run("DELETE FROM session WHERE user_id=? AND digest NOT IN ('', %s)"
                            % ", ".join("?" * len(but) or ["''"]), (row["id"], *map(digest, but)))
            record_user_event(transaction, self._clock.now(), "logged_out", row, by,
                      "elsewhere" if but else "everywhere")


class Tokens:
    """The API tokens of programs. A token may do what its user may, or only what its scope allows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, user_id: int | None = None) -> list[JsonObject]:
        """Return the tokens of a user, or of all users, without their secrets."""
        return [self._json(row) for row in self._database.all(
            TOKEN_ROW + "coalesce(?, user_id)=user_id ORDER BY token.id", (user_id,))]

    def add(self, user_id: int, name: str, scope: str = "user", password_seen: str | None = None,
            limits: Mapping[str, list[str]] | None = None, by: str | None = None) -> JsonObject:
        """Make a token; return it with its text, which is stored nowhere else.

        Denied if the user's stored password is not `password_seen` any more. `limits` are the queues and
        functions of a token for workers.
        """
        token = "jq_" + random_token(32)
        with self._database.transaction() as transaction:
            if transaction.value("SELECT count(*) FROM token WHERE user_id=?", (user_id,)) >= TOKENS_MAX:
                raise Conflict("A user can have at most %d tokens: delete some." % TOKENS_MAX)
            token_id = transaction.insert("token", {
                "digest": digest(token), "user_id": user_id, "name": name.strip(), "scope": scope,
                "limits": dump_json(limits or {}), "created_at": self._database.clock.now()})
            row = transaction.row(TOKEN_ROW + "token.id=?", (token_id,))
            if password_seen not in (None, row["password"]):
                raise wrong_password("password")
            self._record_event(transaction, "token_added", row, by)
        return {**self._json(row), "token": token}

    def delete(self, user_id: int | None, token_id: int, by: str | None = None) -> None:
        """Revoke a token; NotFound if it is not this user's (None: any user's)."""
        with self._database.transaction() as transaction:
            row = transaction.one(TOKEN_ROW + "token.id=? AND user_id=coalesce(?, user_id)",
                                  (token_id, user_id))
            if not row:
                raise NotFound("There is no token %s." % token_id)
            transaction.run("DELETE FROM token WHERE id=?", (token_id,))
            self._record_event(transaction, "token_revoked", row, by)

    def _record_event(self, transaction: Connection, event: str, row: Row, by: str | None) -> None:
        record_activity(transaction, self._database.clock.now(), event, owner_id=row["user_id"], actor=by,
             message="%s (%s)" % (row["name"], row["scope"]))

    def person(self, token: str) -> Person | None:
        """Return the Person of an API token; None if it is unknown, or the user is disabled."""
        row = self._database.one(
            "SELECT user.*, token.id AS used_id, token.last_used_at, token.limits, token.scope "
            "FROM token JOIN user ON user.id=token.user_id WHERE token.digest=? "
            "AND user.disabled=0 AND scope<>?", (digest(token), INVITATION))
        if row is None:
            return None
        record_use(self._database, row, "token", "last_used_at")
        limits: TokenLimits = json.loads(row["limits"] or "{}")
        person = Person(row)
        person.token = {"id": row["used_id"], "scope": row["scope"], **limits}
        return person

    @staticmethod
    def _json(row: Row) -> JsonObject:
        return {"id": row["id"], "owner": row["owner"], "name": row["name"],
                "scope": row["scope"], **json.loads(row["limits"] or "{}"),
                "created_at": iso(row["created_at"]), "last_used_at": iso(row["last_used_at"])}


class Invitations:
    """The invitations of new users: links that work once, for a day.

    An invitation is a row of `token` with the scope INVITATION and the role as its name. So an admin can
    revoke it like a token, and it goes with the tokens of an admin who is disabled or deleted. Its code
    gives no other right.

    1. A code in a request is counted as a guess, then looked for.
    2. In one transaction the row is removed, and the user is made.
    """

    def __init__(self, database: Database, users: Users, tokens: Tokens) -> None:
        self._database, self._users, self._tokens = database, users, tokens

    def add(self, admin_id: int | None, role: str, by: str) -> JsonObject:
        """Make an invitation; return it with its code, which is stored nowhere else.

        `admin_id` is the inviting admin. None stands for the command line: the first admin invites.
        """
        admin_id = admin_id or self._database.value(
            "SELECT min(id) FROM user WHERE role='admin' AND disabled=0")
        if admin_id is None:
            raise Conflict("This is not set up yet: there is no admin.")
        token = self._tokens.add(admin_id, role, INVITATION, by=by)
        return {"id": token["id"], "role": role, "code": token["token"],
                "expires_at": iso(self._database.clock.now() + INVITATION_SECONDS)}

    def accept(self, code: str, name: str, password: str, address: str) -> Row:
        """Make the invited user; return their row. Denied if the code does not work (any more)."""
        count_guess(self._database, address_subject(address))
        columns = self._users.prepare(name, password, self._find(self._database, code)["name"])
        with self._database.transaction() as transaction:
            row = self._find(transaction, code)
            transaction.run("DELETE FROM token WHERE id=?", (row["id"],))
            self._users.insert(transaction, columns, row["owner"])
            forgive(transaction, address_subject(address))
        return self._users.find(name)

    def _find(self, db: Reader, code: str) -> Row:
        """Return the row of an invitation whose admin may still invite."""
        row = db.one(TOKEN_ROW + "digest=? AND scope=? AND token.created_at>=? AND role='admin' "
                     "AND disabled=0", (digest(code), INVITATION,
                                        self._database.clock.now() - INVITATION_SECONDS))
        if row is None:
            raise Denied("This invitation does not work: it was used or revoked, or is older than a day. "
                         "Ask an admin for a new one.")
        return row
