"""Rows of COMMANDS that ask one route, and answers in words."""
from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import COUNT_MAX, INTEGER_MAX
from ..base.errors import complain, wrong
from ..base.time_and_text import UNITS, Clock, dump_json, parse_time, shorten
from ..base.values import check_value, choice_names, integer_within, parse_text
from .routes import ID, NAME, ROUTES
from .printing import say, show, table
from .clients import Client

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any, Optional

    from ..base.types import JsonObject, Schema

if TYPE_CHECKING:
    Argument = tuple[str, dict[str, Any]]       # name or flag, and the keywords for argparse
    # The function of a command: it gets a Client, the JobQueue or None, and the options.
    Run = Callable[[Any, Namespace], Optional[int]]


class Command(NamedTuple):
    """A row of COMMANDS: its function, whose docstring is its help, and its arguments."""

    run: Run
    arguments: Sequence[Argument]


def argument(flag: str, schema: Schema, null: str | None = None,
             parse: Callable[[Schema, str], Any] = parse_text, **details: Any) -> Argument:
    """Return the row of an argument. The text in `null` stands for None. `details` are for argparse."""
    def read(text: str) -> Any:
        import argparse
        value = None if text == null else parse(schema, text)
        errors = check_value(schema, value, "")
        if value is None and text != null:
            errors = wrong("", "must not be empty")
        if errors:
            raise argparse.ArgumentTypeError(("%(field)s %(message)s" % errors[0]).strip())
        return value

    row: dict[str, Any] = {"help": schema.get("description", "").replace("%", "%%")}
    if schema.get("type") == "boolean":
        return flag, {**row, "action": "store_const", "const": True}
    if "enum" in schema:
        row["metavar"] = "|".join(filter(None, schema["enum"]))
    return flag, {**row, "type": read, **details}


POSITIVE = integer_within(1, INTEGER_MAX)
SWITCH: Schema = {"type": "boolean"}
PLACES: dict[str, Argument] = {         # arguments that are parts of a path
    "id": argument("id", POSITIVE, metavar="ID"), "name": ("name", {"metavar": "NAME"})}


def arguments(schemas: dict[str, Schema], *names: str) -> list[Argument]:
    """Return the rows of the options that have these names in `schemas`."""
    return [argument("--" + name.replace("_", "-"), schemas[name]) for name in names]


IN_ADDRESS = {"safe": "", "errors": "replace"}


def ask_all(client: Client, key: str, fields: JsonObject) -> JsonObject:
    """Return a list of the API with the rows of all its pages, or the first `limit` rows."""
    page, limit = client.ask("GET", "/api/" + key, fields), fields.get("limit")
    rows = page[key]
    while page.get("next") and len(rows) != limit:
        page = client.ask("GET", "/api/" + key, {
            **fields, "cursor": page["next"], "limit": limit and limit - len(rows)})
        rows += page[key]
    if page.get("error"):
        complain("tasks.py cannot be read: " + page["error"]["message"])
    return {**page, key: rows}


def _over_route(method: str, path: str, run: Run, words: str | None,
                rows: Iterable[str | Argument]) -> Command:
    """Return the row of a command that asks a route.

    Without `words`, the docstring of the route's handler is the help. An argument that is only a
    name takes its schema from the route.
    """
    pattern = path.replace("{id}", ID).replace("{name}", NAME)
    route = next(route for route in ROUTES if (route.method, route.path) == (method, pattern))
    run.__doc__ = words or route.handler.__doc__
    schemas = route.takes["properties"] if route.takes else {}
    return Command(run, [argument(row, schemas[row.strip("-").replace("-", "_")])
                         if isinstance(row, str) else row for row in rows])


def asks(method: str, path: str, *rows: str | Argument, words: str | None = None,
         text: Callable[[JsonObject], str | None] = lambda value: None, **fixed: Any) -> Command:
    """Return a command that asks the API once and prints the answer as `text` makes it.

    It sends the values of the arguments in `rows`, and the `fixed` values, which may be callables.
    """
    places = [row for name, row in PLACES.items() if "{%s}" % name in path]

    def run(client: Client, options: Namespace) -> None:
        fields = {name: value() if callable(value) else value for name, value in fixed.items()}
        fields.update(options.given)
        address = path.format(**{name: quote(str(fields.pop(name)), **IN_ADDRESS)
                                 for name, _ in places})
        value: JsonObject | None = client.ask(method, address, fields)
        show(options, value, None if value is None else text(value))
    return _over_route(method, path, run, words, [*places, *rows])


def kind_text(schema: Schema) -> str:
    """Return the type of a value as --help shows it."""
    if "enum" in schema:
        return "|".join(choice_names(schema))
    if "unclear" in schema:
        return "text (%(unclear)s is not known)" % schema
    kinds = schema.get("format") or schema.get("type", "text")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def parameters_text(schema: Schema) -> str:
    """Return a function's parameters in the syntax of `add`, in brackets if not required."""
    required = schema.get("required", ())
    parts = [("%s=%s" if name in required else "[%s=%s]") % (name, kind_text(parameter))
             for name, parameter in schema["properties"].items()]
    return " ".join(parts + ["[name=value ...]"] * bool(schema.get("additionalProperties")))


def status_text(task: JsonObject) -> str:
    """Return a task's status, with the reason if it has one."""
    return "%s (%s)" % (task["status"], task["reason"]) if task["reason"] else task["status"]


def _lines(value: JsonObject) -> str:
    return "\n".join("%-15s %s" % (name, part if isinstance(part, str) else dump_json(part))
                     for name, part in value.items() if part not in (None, [], False))


def _range_text(moments: Iterable[str]) -> str:
    """Return a range of moments for people, such as "in 10 to 15 minutes"."""
    ahead = [max(0, parse_time(text, "") - Clock.now()) for text in moments]
    unit, size = next(row for row in UNITS if ahead[1] >= 2 * row[1] or row[1] == 1)
    low, high = (round(seconds / size) for seconds in ahead)
    if high == 0:
        return "right away"
    unit += "s" * (high > 1)
    return ("within %d %s" % (high, unit) if low == 0 else "in about %d %s" % (high, unit)
            if low == high else "in %d to %d %s" % (low, high, unit))


def _forecast_text(forecast: JsonObject | None) -> str | None:
    if forecast is None:
        return None
    before = forecast["before"] if forecast["before"] != COUNT_MAX else "more than %d" % (COUNT_MAX - 1)
    parts = [None if before is None else "%s before it" % before, *(
        forecast[key] and word + _range_text(forecast[key])
        for key, word in (("expected_start", "starts "), ("expected_end", "ends ")))]
    return ", ".join(filter(None, [*parts, forecast["reason"], forecast["slow"] and "slower than usual"]))


def task_text(task: JsonObject) -> str:
    """Return a task as a command prints it."""
    error = task["error"] or {}
    words = error.get("traceback") or error.get("message") or ""
    return _lines({**task, "error": words.rstrip() or None,
                   "forecast": _forecast_text(task.get("forecast"))})


def _standing(row: JsonObject) -> str | None:
    """Return the reason why a queue or a schedule is idle, or its problem."""
    if not row["paused"]:
        return row.get("blocked") or row.get("problem") or row.get("warning")
    why = ": " + row["paused_why"] if row["paused_why"] else ""
    return "paused by %s%s" % (row["paused_by"], why)


def schedule_text(shown: JsonObject) -> str:
    """Return a schedule with its coming and past runs, as a command prints it."""
    coming = ["%s  due%s" % (run["local"], run["note"] and ", " + run["note"] or "")
              for run in reversed(shown["upcoming"]) if not shown["paused"]]
    history = ["%s  %s" % (slot["at"], slot["message"] or "task %(id)d %(status)s" % slot["task"])
               for slot in shown["history"] if slot["message"] or slot["task"]]
    return "\n".join([_lines({**shown, "upcoming": [], "history": []}), *coming, *history])


def _count_text(name: str) -> Callable[[JsonObject], int | str]:
    return lambda row: row[name] if row[name] < COUNT_MAX else "%d+" % (COUNT_MAX - 1)


# Columns of lists whose cells are not simply the row's value of that name.
CELLS: dict[str, Callable[[JsonObject], object]] = {
    "parameters": lambda row: parameters_text(row["schema"]), "status": status_text,
    "summary": lambda row: shorten(row["summary"], 60), "problem": _standing,
    "disabled": lambda row: "yes" if row["disabled"] else "",
    "pending": _count_text("pending"), "running": _count_text("running"),
    "rate": lambda row: row["rate"] and "%(count)d/%(seconds)s" % row["rate"],
    "machines": lambda row: ",".join(row["machines"] or [])}


def columns(names: str, rows: Iterable[JsonObject]) -> str:
    """Return a table with these columns of rows of the API."""
    column_names = names.split()
    return table([name.upper() for name in column_names], [
        [CELLS[name](row) if name in CELLS else row[name] for name in column_names] for row in rows])


def lists(key: str, names: str, *rows: str | Argument, words: str | None = None) -> Command:
    """Return a command that prints a list of the API as a table of the columns `names`."""
    def run(client: Client, options: Namespace) -> None:
        if "format" in options.given:
            pieces = client.ask("GET", "/api/" + key, options.given)
            for text in codecs.iterdecode(pieces, "utf-8-sig"):
                say(text.replace("\r", ""), end="")
            return
        answer = ask_all(client, key, options.given)
        show(options, answer, columns(names, answer[key]))
    return _over_route("GET", "/api/" + key, run, words, rows)


def parse_rate(_: Schema, text: str) -> JsonObject:
    """Read a rate: COUNT/SECONDS."""
    count, pause = text.partition("/")[::2]
    return {"count": parse_text(POSITIVE, count), "seconds": parse_text({"type": "number"}, pause)}
