"""Requests to add tasks, checked against function and person.

A request, as POST /api/tasks has it, becomes an Order. HTTP, commands, Python and schedules use this room. A
request is checked against REQUEST_SCHEMA, the function's own schema and the rights of the person. Requests in
a row usually differ in their arguments only. So the rest of a request (a Frame) is checked once for all of
them.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import ERRORS_MAX, INTEGER_MAX, JSON_MAX_DEPTH
from ..base.errors import Busy, Invalid, TooLarge, field_error, tasks_refused, wrong
from ..base.time_and_text import dump_json, is_deep, parse_time, shorten
from ..base.values import (FILE_FORMATS, FILE_KEY, OPTION_SCHEMAS, POSITIONAL_COUNT, TASK_DEFAULTS,
                           TASK_OPTIONS, TEXT, TEXT_OR_NULL, WHO_MAY_ADD, about, check_value,
                           integer_within, number_within, object_of, text_like, titled)
from ..store.database import Database
from ..tasks.queues import is_limited, plain
from ..tasks.adding import ArgumentsFile, Order
from ..tasks.task_list import AFTER_MAX
from ..upkeep.catalogue import Catalogue
from .people import ROLES, Person

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import FieldError, JsonObject, Schema

ARGUMENTS_HELD_BYTES = 8 << 20  # bytes of arguments in memory for one upload; further ones wait in a file
ARGUMENTS_MAX_CHARACTERS = 200_000
ADD_MAX = 100_000               # tasks in one transaction
AFTER_SUM_MAX = 200_000         # predecessors of all tasks in one request
REQUEST_SCHEMA = titled("NewTask", object_of(
    ("function",),
    function=TEXT,
    arguments=about({"type": "object"}, "as the function's schema says, see /api/functions"),
    run_at=about({"type": ["string", "null"], "format": "date-time"},
                 "such as 2026-01-31T12:00:00Z"),
    delay=about(number_within(0, 10 * 365 * 86400, ["number", "null"]),
                "seconds until it may start; not together with run_at"),
    owner=about(TEXT_OR_NULL, "the owner of the task; for admins"),
    after=about({"type": ["array", "null"], "items": integer_within(1, INTEGER_MAX),
                 "maxItems": AFTER_MAX}, "wait until these tasks of the same owner have succeeded"),
    after_failure=about({"enum": ["fail", "run", None]}, "if one of them does not succeed (fail)"),
    unique_key=about({**text_like(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}",
                              "must be 1 to 200 characters on one line"),
                      "type": ["string", "null"]}, "add nothing while an unfinished task has it"),
    **OPTION_SCHEMAS))


# A request of our DjangoBackend has this key. Django checks neither the arguments nor whether the function
# is known: the worker imports it.
DJANGO_MARK = "django"
DJANGO_FUNCTION: JsonObject = {"options": TASK_DEFAULTS, "who": "nobody", "schema": {
    "type": "object", "properties": {}}}


class Frame(NamedTuple):
    """A request without its arguments. `make` makes an Order of their JSON text, if there are no errors."""

    rest: JsonObject
    schema: Schema
    files: list[str]                # names of parameters
    errors: list[FieldError]
    make: Callable[[str], Order]


def file_parameters(schema: Schema) -> list[str]:
    """Return the names of the parameters that are files, or lists of them."""
    return [name for name, parameter in schema["properties"].items()
            if any(part.get("format") in FILE_FORMATS for part in (parameter, parameter.get("items", {})))]


class Requests:
    """The maker of Orders from requests. The `person` None stands for the site's own code."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    def check(self, requests: Iterable[Any], person: Person | None = None,
              is_local: bool = False) -> list[Order]:
        """Return the Orders for `requests`; Invalid names every error.

        An Invalid among `requests` stands for a line that could not be read. Only requests of this site's
        own processes (`is_local`) may have the DJANGO_MARK.
        """
        orders: list[Order] = []
        errors: list[FieldError] = []
        frame: Frame | None = None
        file: ArgumentsFile | None = None
        index = named = held = 0
        for index, request in enumerate(requests):
            try:
                if index == ADD_MAX or named > AFTER_SUM_MAX:
                    raise TooLarge("At most %d tasks can be added at once, and name %d others." % (
                        ADD_MAX, AFTER_SUM_MAX))
                if isinstance(request, Invalid):
                    raise request
                frame = self._frame(request, person, frame, is_local)
                order = self._order(frame, request.get("arguments", {}))
                orders.append(order)
                named, held = named + len(order.after), held + order.size
                if held > ARGUMENTS_HELD_BYTES:
                    file = file or ArgumentsFile(self._database.folder)
                    file.move(order)
            except Invalid as error:
                errors += [{**field_fault, "index": index} for field_fault in error.errors]
                if len(errors) >= ERRORS_MAX:
                    break
        if errors:
            raise tasks_refused(errors, index == 0 and not isinstance(request, Invalid))
        return orders

    def function(self, name: str, person: Person | None = None) -> Mapping[str, Any]:
        """Return the function of this name; Invalid if there is none, or `person` may not add its tasks."""
        catalogue = self._catalogue
        if catalogue.find(name) is None:
            catalogue.refresh(wait=True)
        open_to = WHO_MAY_ADD if person is None else ROLES if person.is_admin else ("user",)
        function = catalogue.find(name)
        if function and function["who"] in open_to:
            return function
        functions, error = catalogue.functions(), catalogue.state()["error"]
        if error and not functions:
            raise Busy("The functions cannot be read at the moment: %s." % error["message"],
                       retry_after=10)
        names = [each["name"] for each in functions if each["who"] in open_to]
        raise field_error("function", "%s is not known; known are %s"
                          % (shorten(name, 60), ", ".join(names) or "none"))

    @staticmethod
    def _order(frame: Frame, arguments: JsonObject) -> Order:
        rest, schema, files, frame_errors, make = frame     # unpacking is quicker than attributes
        errors = frame_errors + check_value(schema, arguments, "arguments")
        if not errors and POSITIONAL_COUNT in arguments and DJANGO_MARK not in rest:
            errors += wrong("arguments." + POSITIONAL_COUNT, "is a reserved name")
        if is_deep(arguments, JSON_MAX_DEPTH):
            errors += wrong("arguments", "must be nested at most %d levels deep" % JSON_MAX_DEPTH)
        if errors:
            raise Invalid("", errors)
        ordered = {key: arguments[key] for key in schema["properties"] if key in arguments}
        try:
            text = dump_json({**ordered, **arguments})        # in the order of the parameters
        except (ValueError, TypeError) as error:
            raise field_error("arguments", "cannot be written as JSON: %s" % error) from None
        if len(text) > ARGUMENTS_MAX_CHARACTERS:
            raise field_error("arguments", "are longer than %d characters"
                              % ARGUMENTS_MAX_CHARACTERS)
        order = make(text)
        if files:
            order.given = tuple(dict.fromkeys(re.findall(FILE_KEY, dump_json(
                [arguments.get(name) for name in files]))))
        return order

    def _frame(self, request: Any, person: Person | None, last: Frame | None, is_local: bool) -> Frame:
        """Return the Frame of a request, or the `last` one if they are equal."""
        if not isinstance(request, dict):
            raise Invalid("", wrong("", "must be an object"))
        rest = {key: value for key, value in request.items() if key != "arguments"}
        if last and rest == last.rest:
            return last
        is_django = is_local and DJANGO_MARK in rest
        fields = {key: value for key, value in rest.items() if key != DJANGO_MARK} if is_django else rest
        errors = check_value(REQUEST_SCHEMA, fields, "")
        if any(error["field"] == "function" for error in errors):
            raise Invalid("", errors)
        function = ({"name": rest["function"], **DJANGO_FUNCTION} if is_django else
                    self.function(rest["function"], person))
        errors = errors or self._check_choices(rest, function["options"], person)
        make = functools.partial(Order, function["name"], options=function["options"])
        if errors:
            return Frame(rest, function["schema"], [], errors, make)
        run_at = rest.get("run_at") and parse_time(rest["run_at"], "run_at")
        if rest.get("delay") is not None:
            run_at = self._database.clock.now() + rest["delay"]
        chosen = {key: rest[key] for key in TASK_OPTIONS if key in rest}
        options = {**function["options"], **chosen} if chosen else function["options"]
        schema = function["schema"]
        return Frame(rest, schema, file_parameters(schema), [], functools.partial(
            make, options=options, run_at=run_at,
            after=tuple(dict.fromkeys(map(int, rest.get("after") or ()))),
            after_failure=rest.get("after_failure"), unique_key=rest.get("unique_key"),
            owner=rest.get("owner"),
            admin_id=person.id if person and function["who"] == "admin" else None,
            scope=person.visible_owner_id if person else None))

    def _check_choices(self, rest: JsonObject, declared: JsonObject,
                       person: Person | None) -> list[FieldError]:
        """Return the errors of fields that exclude each other, of another queue, of choices for admins."""
        errors: list[FieldError] = []
        own, queue = declared["queue"], rest.get("queue", declared["queue"])
        is_user = person is not None and not person.is_admin
        if rest.get("run_at") is not None and rest.get("delay") is not None:
            errors += wrong("delay", "cannot be given together with run_at")
        if queue != own:
            chosen_queue, own_queue = (self._database.one("SELECT * FROM queue WHERE name=?", (name,))
                           for name in (queue, own))
            if any(row and row["external"] for row in (chosen_queue, own_queue)):
                errors += wrong("queue", "must be %s: no other queue runs this function" % own)
            elif is_user and (own != TASK_DEFAULTS["queue"] or not chosen_queue
                              or own_queue and is_limited(own_queue)):
                errors += wrong("queue", "must be %s: only an admin can choose another" % own)
        if is_user and rest.get("priority", 0) > 0:
            errors += wrong("priority", "must be 0 or less; higher ones are for admins")
        if is_user and rest.get("timeout", 0) > declared["timeout"]:
            errors += wrong("timeout", "must be at most %s, as the function says; longer ones are "
                                       "for admins" % plain(declared["timeout"]))
        if is_user and declared["on_crash"] == "fail" and rest.get("on_crash") == "retry":
            errors += wrong("on_crash", "must be fail, as the function says; only an admin can "
                                        "choose retry")
        return errors
