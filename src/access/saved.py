"""Saved filters and form values, by name, each user's own.

The list of tasks saves its filters, the form of a new task saves its values. The server does not read the
saved value.
"""
from __future__ import annotations

import json

from ..base.head import TYPE_CHECKING
from ..base.errors import Conflict, NotFound
from ..base.time_and_text import dump_json
from ..base.values import about, mask, object_of, text_like, titled
from ..store.connection import Connection
from ..store.database import Database

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row

SAVED_MAX = 100                 # saved values of one user
SAVED_CHARACTERS = 10000        # maximum of a saved value as JSON
NEW_SAVED = titled("NewSaved", object_of(
    ("page", "name", "value"),
    page=about(text_like(r"tasks|new/[^/\x00-\x1f]{1,300}", "must be tasks, or new/ and a function"),
               "the page that uses it"),
    name={**text_like(r"[^\x00-\x1f]*[^\s\x00-\x1f][^\x00-\x1f]*", "must have 1 to 60 characters"),
          "maxLength": 60},
    value=about({"type": "object"}, "anything that the page can read")))


class Saved:
    """The saved filters and form values of users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, user_id: int) -> list[JsonObject]:
        """Return the saved values of a user, by page and name."""
        return [self._json(row) for row in self._database.all(
            "SELECT * FROM saved WHERE user_id=? ORDER BY page, name", (user_id,))]

    def add(self, user_id: int, page: str, name: str, value: JsonObject) -> JsonObject:
        """Save a value, with its secrets masked, in the place of one with the same name; return its row."""
        key, text = {"user_id": user_id, "page": page, "name": name.strip()}, dump_json(mask(value))
        if len(text) > SAVED_CHARACTERS:
            raise Conflict("These values are too long to be saved: %d characters are the maximum."
                           % SAVED_CHARACTERS)
        with self._database.transaction() as transaction:
            transaction.upsert("saved", key, {"value": text})
            self._check_count(transaction, user_id)
            return self._json(transaction.row(
                "SELECT * FROM saved WHERE user_id=? AND page=? AND name=?", tuple(key.values())))

    def delete(self, user_id: int, saved_id: int) -> None:
        """Remove a saved value; NotFound if it is not this user's."""
        with self._database.transaction() as transaction:
            if not transaction.run("DELETE FROM saved WHERE id=? AND user_id=?", (saved_id, user_id)):
                raise NotFound("There is no saved value %s." % saved_id)

    @staticmethod
    def _check_count(transaction: Connection, user_id: int) -> None:
        if transaction.value("SELECT count(*) FROM saved WHERE user_id=?", (user_id,)) > SAVED_MAX:
            raise Conflict("A user can save at most %d values: delete some." % SAVED_MAX)

    @staticmethod
    def _json(row: Row) -> JsonObject:
        return {"id": row["id"], "page": row["page"], "name": row["name"],
                "value": json.loads(row["value"])}
