"""Adding: each order becomes a task only once, within its owner's limit.

All orders of a request become tasks, or none. Adding.add() numbers them and checks their owner's limit.
It gives each a status and a turn, and stores it with a row of the activity. Until then the arguments of a
large request may be in a file. A request with an Idempotency-Key is carried out once.
"""
from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import COUNT_MAX, DELETE, INTEGER_MAX, PENDING, SCHEDULED, SUCCEEDED, WAITING
from ..base.errors import Conflict, TooMany, field_error, tasks_refused, wrong
from ..base.time_and_text import dump_json, shorten
from ..base.values import TASK_DEFAULTS
from ..store.connection import (BY_ID, BY_TURN, BY_UNIQUE, OWNER_GONE, VARIABLES_MAX, Connection, Reader,
                                cannot_write)
from ..store.database import Database
from ..store.settings import Settings
from .followers import Followers, TURNS, next_turn, scheduled_turn, turn_after
from .files import Files

if TYPE_CHECKING:
    from ..base.types import JsonObject, Row

if TYPE_CHECKING:
    Placed = tuple["Order", int, int, int]      # an order, its task's id, status and turn

FEW_ORDERS = 10                 # requests with more orders get a commit of their own (no group commit)
UNCOUNTED_MAX = 1000            # tasks that are added until pending tasks are counted again
REQUEST_SECONDS = 86400.0       # how long an Idempotency-Key is known
OWNER_STATE = "SELECT name, role, max_pending, (%%s) AS last, %s FROM user WHERE id=?" % TURNS


class Order:
    """A task to be added: checked, complete, not yet a row."""

    __slots__ = ("function", "arguments", "size", "options", "run_at", "after", "after_failure",
                 "unique_key", "owner", "admin_id", "schedule_id", "file", "start", "given",
                 "scope")

    def __init__(self, function: str, arguments: str, options: JsonObject,
                 run_at: float | None = None, after: Sequence[int] = (),
                 after_failure: str | None = None, unique_key: str | None = None,
                 owner: str | None = None, admin_id: int | None = None,
                 scope: int | None = None) -> None:
        self.function, self.options = function, options     # options: every name of TASK_OPTIONS
        self.arguments = arguments      # JSON text; empty while it is in a file
        self.size = sys.getsizeof(arguments)
        self.file: ArgumentsFile | None = None
        self.start = 0                  # where its arguments begin in the file
        self.run_at, self.unique_key = run_at, unique_key
        self.schedule_id: int | None = None
        self.after, self.after_failure = after, after_failure or "fail"     # after: ids without duplicates
        self.owner = owner              # the requested owner's name, or None
        self.admin_id = admin_id        # the user who must still be an admin when it starts
        self.given: Sequence[str] = ()  # keys of the files in its arguments
        self.scope = scope              # the owner that given files must have; None: any

    def text(self) -> str:
        """Return the arguments, from wherever they are."""
        return self.file.read(self) if self.file else self.arguments


class ArgumentsFile:
    """A file with the arguments of many orders, to save memory. It is deleted with the last order."""

    def __init__(self, folder: Path) -> None:
        import tempfile
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        except OSError as error:
            raise cannot_write(folder, error) from None

    def __del__(self) -> None:
        self._file.close()

    def move(self, order: Order) -> None:
        """Move the arguments of an order into this file."""
        utf8, order.file, order.start = order.arguments.encode("utf-8"), self, self._file.tell()
        order.arguments, order.size = "", len(utf8)
        try:
            if self._file.write(utf8) < len(utf8):
                raise OSError(errno.ENOSPC, "")
        except OSError as error:
            raise cannot_write(self._folder, error) from None

    def read(self, order: Order) -> str:
        """Return the arguments of an order."""
        return os.pread(self._file.fileno(), order.size, order.start).decode("utf-8")


class Added(NamedTuple):
    """The ids of the tasks for the orders, in the same order, and how many of them are new."""

    ids: list[int]
    new: int


class Holder(NamedTuple):
    """The unfinished task that has a unique key."""

    id: int
    function: str


class Adding:
    """The adding of orders: ids, the owner's limit, and the turns."""

    def __init__(self, database: Database, settings: Settings, files: Files) -> None:
        self._database, self._settings, self._files = database, settings, files
        # (owner id, limit) -> the last task id that is surely within the limit
        self._sure: dict[tuple[int, int], int] = {}

    def add(self, transaction: Connection, owner_id: int, orders: list[Order], now: float,
            adding_task_id: int | None = None) -> Added:
        """Add all orders; return their ids.

        An order adds nothing if an unfinished task of the owner has its unique_key: it gets the id of
        that task. If the running task `adding_task_id` has the key, and so adds the order itself, the new
        task takes the key.
        """
        options = orders[0].options if orders else TASK_DEFAULTS
        lane = options["queue"], options["priority"]
        owner = self._owner(transaction, owner_id, lane)
        first = (owner["last"] or 0) + 1
        ids, new = self._number(transaction, owner_id, orders, first, adding_task_id)
        self._check_quota(transaction, owner_id, owner, len(new))
        statuses = self._predecessors(transaction, owner_id, orders, new)
        turns: dict[tuple[str, int], int] = {lane: turn_after(owner)}
        placed: list[Placed] = []
        edges: list[JsonObject] = []
        for task_id, order in enumerate(new, first):
            lane = order.options["queue"], order.options["priority"]
            edges += [{"task_id": task_id, "after_id": before, "place": at,
                       "settled": int(statuses[before] == SUCCEEDED)}
                      for at, before in enumerate(order.after)]
            if any(statuses[before] != SUCCEEDED for before in order.after):
                status, turn = WAITING, 0
            elif order.run_at is not None and order.run_at > now:
                status, turn = SCHEDULED, scheduled_turn(order.run_at)
            else:
                turn = turns.get(lane) or next_turn(
                    transaction, {"owner_id": owner_id, **order.options})
                status, turns[lane] = PENDING, turn + 1
            placed.append((order, task_id, status, turn))
        self._insert(transaction, owner_id, placed, now)
        self._give(transaction, owner_id, orders, placed, now)
        Followers.tie(transaction, edges, statuses, now)
        return Added(ids, len(new))

    def _number(self, transaction: Connection, owner_id: int, orders: list[Order],
                first: int, adding_task_id: int | None) -> tuple[list[int], list[Order]]:
        """Return the ids for all orders, and the orders to be added, which get ids from `first` on."""
        ids: list[int] = []
        new: list[Order] = []
        holders = self._holders(transaction, owner_id, {
            order.unique_key for order in orders if order.unique_key is not None}, adding_task_id)
        for order in orders:
            next_id = first + len(new)
            holder = Holder(next_id, order.function)
            if order.unique_key is not None:
                holder = holders.setdefault(order.unique_key, holder)
            if holder.function != order.function:
                raise Conflict("The unique_key %s belongs to task %d of %s; choose another key." % (
                    shorten(order.unique_key or "", 60), holder.id, holder.function),
                    wrong("unique_key", "belongs to a task of another function"))
            if holder.id == next_id:
                new.append(order)
            ids.append(holder.id)
        return ids, new

    @staticmethod
    def _holders(transaction: Connection, owner_id: int, keys: set[str],
                 adding_task_id: int | None) -> dict[str, Holder]:
        """Return the unfinished task that has each key; Conflict if one of them is being ended.

        The running task `adding_task_id`, which adds the orders, loses its key.
        """
        holders: dict[str, Holder] = {}
        for task_id, key, function, cancel_requested in transaction.all_of(
                "SELECT id, unique_key, function, cancel_requested FROM task %s WHERE owner_id=? "
                "AND status NOT IN ENDED AND unique_key IN (%%s)" % BY_UNIQUE,
                (owner_id,), keys):
            if cancel_requested:                   # that task will not do the work
                raise Conflict("The task with the unique_key %s is being %s; try again in a few seconds."
                               % (shorten(key, 60), "deleted" if cancel_requested == DELETE else "cancelled"),
                               wrong("unique_key", "is still in use"))
            if task_id == adding_task_id:
                transaction.update("task", {"unique_key": None}, "id=? AND status=RUNNING", (adding_task_id,))
            else:
                holders[key] = Holder(task_id, function)
        return holders

    def _owner(self, transaction: Connection, owner_id: int, lane: tuple[str, int]) -> Row:
        """Return an owner's row with the last task id and the turns of a lane; Conflict if the owner is
        gone."""
        owner = transaction.one(OWNER_STATE % (self._database.last_id_words % "task"),
                                (*lane, owner_id, *lane, owner_id))
        if owner is None:
            raise Conflict(OWNER_GONE)
        return owner

    def check_quota(self, transaction: Connection, owner_id: int, count: int, refusal: str) -> int:
        """Return how many more tasks the owner may have pending; TooMany if fewer than `count`."""
        owner = self._owner(transaction, owner_id, ("", 0))
        return self._check_quota(transaction, owner_id, owner, count, refusal)

    def _check_quota(self, transaction: Connection, owner_id: int, owner: Row, count: int,
                     refusal: str | None = None) -> int:
        """Return how many tasks the owner may add, as check_quota() does; TooMany if fewer than `count`.

        If an owner has more than COUNT_MAX tasks, not every add counts them. So retries and adds together
        may exceed the limit by up to UNCOUNTED_MAX. A call with a `refusal` always counts.
        """
        if owner["role"] == "admin":
            return INTEGER_MAX
        limit: int | None = owner["max_pending"]
        if limit is None:
            limit = self._settings.get("max_pending", transaction)
        if not limit:
            return INTEGER_MAX
        last: int = owner["last"] or 0
        sure = self._sure.get((owner_id, limit), 0)
        if refusal is None and last + count <= sure:
            return sure - last
        waiting: int = transaction.value(
            "SELECT count(*) FROM (SELECT 1 FROM task %s "
            "WHERE owner_id=? AND status IN (PENDING, SCHEDULED, WAITING) "
            "LIMIT ?) AS found" % BY_TURN, (owner_id, limit))
        if waiting + count > limit:
            raise TooMany(
                "%s: at most %d of %s's tasks may be pending, and %s. Try again "
                "when some of them have run." % (
                    refusal or "Nothing was added", limit, owner["name"],
                    "that many already are" if waiting == limit else
                    "%d more would make %d" % (count, waiting + count)), retry_after=60)
        if waiting > COUNT_MAX:
            self._sure[owner_id, limit] = last + min((limit - waiting) // 2, UNCOUNTED_MAX)
        return limit - waiting

    @staticmethod
    def _predecessors(transaction: Connection, owner_id: int, orders: list[Order],
                      new: list[Order]) -> dict[int, int]:
        """Return {id: status} of the tasks that new tasks come after; Invalid for tasks of other owners."""
        wanted_ids = dict.fromkeys(before for order in new for before in order.after)    # keeps the order
        statuses: dict[int, int] = {before: status for before, status in transaction.all_of(
            "SELECT id, status FROM task %s WHERE owner_id=? AND id IN (%%s)" % BY_ID,
            (owner_id,), wanted_ids)}
        missing = wanted_ids.keys() - statuses.keys()
        if missing:                     # it may have been removed on success
            statuses.update((task_id, SUCCEEDED) for task_id, in transaction.all_of(
                "SELECT task_id FROM activity WHERE event='succeeded' AND owner_id=? "
                "AND task_id IN (%s)", (owner_id,), missing))
            missing -= statuses.keys()
        if missing:
            raise tasks_refused([
                {"field": "after", "index": index,
                 "message": "must name tasks of the same owner; %d is not one of them" % before}
                for index, order in enumerate(orders)
                for before in order.after if before in missing], len(orders) == 1)
        return {before: statuses[before] for before in wanted_ids}

    def _give(self, transaction: Connection, owner_id: int, orders: list[Order],
              placed: list[Placed], now: float) -> None:
        """Give new tasks the files that their arguments name; Invalid for files of other owners."""
        for order, task_id, *_ in placed:
            missing = order.given and self._files.give(
                transaction, task_id, owner_id, order.given, order.scope, now)
            if missing:
                raise tasks_refused([
                    {"field": "arguments", "index": orders.index(order), "message":
                     "name the file %s, which does not exist or is not yours" % key}
                    for key in missing], len(orders) == 1)

    @staticmethod
    def _insert(transaction: Connection, owner_id: int, placed: list[Placed], now: float) -> None:
        """Store orders as rows, a few at a time: all of them would need as much memory as the upload."""
        for queue in {order.options["queue"] for order, *_ in placed} - {TASK_DEFAULTS["queue"]}:
            transaction.ensure("queue", {"name": queue, "created_at": now})
        longest = max((order.size for order, *_ in placed), default=0)
        transaction.insert_all(
            "task", (dict(
                order.options, id=task_id, owner_id=owner_id, function=order.function,
                arguments=order.text(), status=status, turn=turn,
                run_at=order.run_at, unique_key=order.unique_key,
                retries_left=order.options["max_retries"],
                after_failure=order.after_failure if order.after else None,
                schedule_id=order.schedule_id, admin_id=order.admin_id, created_at=now)
                for order, task_id, status, turn in placed),
            VARIABLES_MAX // (1 + longest // 20_000))
        if placed:
            transaction.advance_ids("task", placed[-1][1])
            transaction.run_later(
                "INSERT INTO activity (at, event, task_id, owner_id, function, queue) "
                "SELECT created_at, 'added', id, owner_id, function, queue FROM task WHERE id>=?",
                (placed[0][1],))


class IdempotencyRecord:
    """A request with an Idempotency-Key, which its client can repeat safely."""

    def __init__(self, person_id: int, key: str, digest: str) -> None:
        self._key = {"owner_id": person_id, "key": key}
        self._digest = digest           # digest of the request

    def find(self, db: Reader, now: float) -> JsonObject | None:
        """Return the stored answer to this request, or None; Invalid if another request used the key."""
        row = db.one(
            "SELECT digest, answer FROM request WHERE owner_id=? AND key=? "
            "AND created_at BETWEEN ? AND ?",
            (*self._key.values(), now - REQUEST_SECONDS, now + REQUEST_SECONDS))
        if row is None:
            return None
        if row["digest"] != self._digest:
            raise field_error("Idempotency-Key", "was used for another request")
        answer = json.loads(row["answer"])       # older versions stored more keys
        return {"ids": answer["ids"], "created": answer["created"]}

    def keep(self, transaction: Connection, answer: JsonObject, now: float) -> None:
        """Store the answer {"ids", "created"} in the transaction that carries out the request."""
        transaction.upsert("request", self._key, {
            "digest": self._digest, "created_at": now, "answer": dump_json(answer)})
