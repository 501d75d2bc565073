"""Commands about functions and tasks."""
from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import BODY_MAX_BYTES
from ..base.errors import (Conflict, Denied, Invalid, Malformed, NotFound, SetupError, complain,
                           field_error, tasks_refused)
from ..base.time_and_text import dump_json, storable
from ..base.values import OPTION_SCHEMAS, parse_text
from ..tasks.files import disk_name, file_name, open_given
from ..access.requests import file_parameters
from .printing import say, show, table
from .clients import Client
from .command_rows import IN_ADDRESS, ask_all, columns, kind_text, parameters_text, status_text

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any, TextIO

    from ..base.types import JsonObject

EXIT_AWAITED_FAILED, EXIT_TIMED_OUT = 3, 124


def known_function(client: Client, name: str) -> JsonObject:
    """Return the API's entry of one function, or an empty one if it is not known."""
    functions = ask_all(client, "functions", {})["functions"]
    return next((each for each in functions if each["name"] == name), {"schema": {"properties": {}}})


def cmd_help_of(client: Client, options: Namespace) -> None:
    """Print how one function is added: its parameters, and the defaults of its options."""
    function = known_function(client, options.given["function"])
    if "name" not in function:
        raise field_error("function", "%(function)s is not known; see the command functions"
                          % options.given)
    schema, required = function["schema"], function["schema"].get("required", ())
    rows = [(name, kind_text(parameter), dump_json(parameter.get("default")) if name not in required else
             "required", parameter.get("description")) for name, parameter in schema["properties"].items()]
    rows += [("--" + name.replace("_", "-"), kind_text(OPTION_SCHEMAS[name]), dump_json(usual),
              OPTION_SCHEMAS[name]["description"]) for name, usual in function["options"].items()]
    say("usage: jobqueue.py add %s %s\n\n%s\n" % (
        function["name"], parameters_text(schema), function["description"] or function["title"]))
    say(table(("", "TYPE", "DEFAULT", ""), rows))
    say("\nAll options: python3 jobqueue.py add --help")


def typed_arguments(function: JsonObject, texts: Iterable[str]) -> JsonObject:
    """Return the values of name=value texts, read by the function's schema."""
    values: JsonObject = {}
    properties, more = function["schema"]["properties"], function["schema"].get("additionalProperties")
    more = more if isinstance(more, dict) else {}         # the schema of **more
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise field_error(text, "must be written as name=value")
        if name in values:
            raise field_error("arguments." + name, "is given twice")
        values[name] = parse_text(properties.get(name, more), storable(value))
    return values


def _hand_in(client: Client, function: JsonObject, values: JsonObject) -> JsonObject:
    """Upload the files at @paths; return the arguments with the ids of these files instead."""
    def send(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(send, value))
        if not str(value).startswith("@"):
            return value
        with open_given(value[1:]) as file:
            return client.ask("POST", "/api/files", file)["id"]
    return {**values, **{name: send(values[name]) for name in file_parameters(function["schema"])
                        if name in values}}


class FirstRow(NamedTuple):
    """The text of a CSV file's first row, and its separator."""

    text: str
    separator: str


def _first_row(file: TextIO) -> FirstRow:
    """Read the first row, which may have several lines, and find its separator."""
    first = file.readline()
    hint = re.fullmatch('"?sep=(.)"?\\s*', first)   # Excel writes this line for itself
    if hint:
        first = file.readline()
    while first.count('"') % 2 and len(first) < BODY_MAX_BYTES:
        more = file.readline()
        if not more:
            break
        first += more
    plain = re.sub('"(?:[^"]|"")*"', "", first)
    return FirstRow(first, hint[1] if hint else max(",;\t", key=plain.count))


def read_csv(path: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a CSV file (- is standard input). The first row tells the separator."""
    import csv
    csv.field_size_limit(BODY_MAX_BYTES)
    row = line = 0
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="",
                  closefd=path != "-") as file:
            first, separator = _first_row(file)
            rows = csv.reader(itertools.chain(first.splitlines(keepends=True), file), strict=True,
                              delimiter=separator)
            for cells in rows:
                row, line = row + 1, rows.line_num
                yield cells
    except csv.Error as error:
        raise Malformed("%s cannot be read as CSV: row %d, which begins in line %d (%s). Is a "
                        "quote not closed?" % (path, row + 1, line + 1, error)) from None
    except UnicodeError:
        raise Malformed("%s is not in UTF-8: save it as CSV UTF-8." % path) from None
    except OSError as error:
        raise Malformed("%s cannot be read: %s." % (path, error.strerror)) from None


class TypedRow(NamedTuple):
    """The arguments in a row of a CSV file, and the number of the row. Row 1 has the names."""

    number: int
    arguments: JsonObject


def _typed_rows(function: JsonObject, words: Sequence[str], path: str) -> Iterator[TypedRow]:
    """Yield the rows of a CSV file below the first, which names the parameters. Skip blank rows.

    `words` apply to all rows. An empty cell means the default; for a required parameter, null if allowed.
    """
    rows, schema = read_csv(path), function["schema"]
    names = [name.strip() for name in next(rows, [])]
    nullable = [name for name in schema.get("required", ())
                if "null" in schema["properties"][name].get("type", ())]
    for number, cells in enumerate(rows, 2):
        if not any(cells):              # spreadsheets leave blank rows; the numbers count them
            continue
        if len(cells) != len(names):
            raise Malformed("Row %d must have as many cells as row 1, %d; it has %d."
                            % (number, len(names), len(cells)))
        texts = ["%s=%s" % cell for cell in zip(names, cells) if cell[1] or cell[0] in nullable]
        yield TypedRow(number, typed_arguments(function, [*words, *texts]))


def cmd_add(client: Client, options: Namespace) -> None:
    """Add a task and print its id, or one for each row of a CSV file and print how many."""
    request = dict(options.given)
    words, path = request.pop("words"), request.pop("each", None)
    function = known_function(client, request["function"])
    if path is None:
        request["arguments"] = _hand_in(client, function, typed_arguments(function, words))
        added = client.ask("POST", "/api/tasks", request)
        if client.status == 200:
            complain("task %(id)d has this unique_key already; nothing was added" % added)
        show(options, added, str(added["id"] if "id" in added else added["ids"][0]))
        return
    if "unique_key" in request:
        raise field_error("unique_key", "cannot be the same for all rows")
    numbers, lines = [], []
    for number, values in _typed_rows(function, words, path):
        numbers.append(number)
        lines.append(json.dumps({**request, "arguments": _hand_in(client, function, values)}).encode("ascii"))
    if not lines:
        raise Malformed("There is no row below the first one, which names the parameters.")
    try:
        added = client.ask("POST", "/api/tasks", b"\n".join(lines))
    except Invalid as error:            # its errors have indexes of tasks, not of rows
        raise tasks_refused([{**fault, "row": numbers[fault["index"]]} if fault.get("index") is not None
                             else fault for fault in error.errors], alone=False) from None
    show(options, added, "%d task%s" % (added["created"], "s" * (added["created"] != 1)))


def _ended_or_not(client: Client, task_id: int) -> JsonObject:
    """Return a task, or a minimal object if it succeeded and was removed."""
    try:
        return client.ask("GET", "/api/tasks/%d" % task_id)
    except NotFound:
        [last] = client.ask("GET", "/api/activity", {"task": task_id, "limit": 1})["activity"] or [{}]
        if last.get("event") != "succeeded":
            raise
        return {"id": task_id, "status": "succeeded", "reason": None, "finished_at": last["at"]}


def cmd_wait(client: Client, options: Namespace) -> int:
    """Wait until a task has finished; exit code 3 if it did not succeed, 124 after --timeout."""
    deadline, pause = client.clock.monotonic() + options.given["timeout"], 0.02
    task = _ended_or_not(client, options.given["id"])
    while not task["finished_at"]:
        if client.clock.monotonic() > deadline:
            complain("task %(id)d is still %(status)s" % task)
            return EXIT_TIMED_OUT
        with contextlib.suppress(Denied):       # a token that only reads may wait, too
            client.ask("POST", "/tick")
        client.clock.sleep(pause)
        pause = min(1.0, pause * 1.3)
        task = _ended_or_not(client, options.given["id"])
    show(options, task, status_text(task))
    return 0 if task["status"] == "succeeded" else EXIT_AWAITED_FAILED


def cmd_log(client: Client, options: Namespace) -> None:
    """Print the output of a task's last attempt, or of --attempt."""
    fields = dict(options.given)
    path = "/api/tasks/%d/log" % fields.pop("id")
    part = whole = client.ask("GET", path, fields)
    while part["text"]:
        part = client.ask("GET", path, {"attempt": whole["attempt"], "offset": part["next"]})
        whole = {**whole, "text": whole["text"] + part["text"], "next": part["next"]}
    show(options, whole, whole["text"].rstrip("\n"))


def _save_file(client: Client, address: str, path: Path, size: int) -> None:
    """Save a file of the site under a new name, whole or not at all."""
    with open(path, "xb") as file:
        try:
            file.writelines(client.ask("GET", address))
            if file.tell() != size:
                raise SetupError("%s is incomplete." % path.name)
        except BaseException:           # an incomplete file would block the next try
            path.unlink()
            raise


def cmd_files(client: Client, options: Namespace) -> None:
    """Print a task's files. With --save, save those that it left into this folder, which is created."""
    path, folder = "/api/tasks/%(id)d/files" % options.given, options.given.get("save")
    answer = client.ask("GET", path)
    for entry in answer["files"] if folder else ():
        if entry["id"] is None:
            Path(folder).mkdir(exist_ok=True)
            _save_file(client, path + "/" + quote(entry["name"], **IN_ADDRESS),
                       Path(folder) / disk_name(file_name(entry["name"])), entry["size"])
    show(options, answer, columns("name size type id", answer["files"]))


ACTION_ROUTES = {"cancel": ("POST", "/api/tasks/%d/cancel"),
                 "retry": ("POST", "/api/tasks/%d/retry"), "delete": ("DELETE", "/api/tasks/%d")}


def _act_on_each(client: Client, action: str, ids: Iterable[int]) -> int:
    """Do an action to one task after another; return the exit code of the last failure."""
    code, (method, path) = 0, ACTION_ROUTES[action]
    for task_id in ids:
        try:
            client.ask(method, path % task_id)
        except (NotFound, Conflict) as error:
            complain(error.detail)
            code = error.exit_code
    return code


def cmd_act(client: Client, options: Namespace) -> int:
    """Cancel, delete or retry (if failed or cancelled) the given tasks, or all that match."""
    conditions, action = dict(options.given), options.command
    ids, sure = conditions.pop("ids"), conditions.pop("yes", False)
    if bool(ids) == bool(conditions):
        raise field_error("ID", "or a filter such as --status failed must be given (--all for all "
                                "tasks), and not both")
    if ids:
        return _act_on_each(client, action, ids)
    conditions.pop("all", None)
    done = 0
    place: JsonObject = {"expected_count": None}
    while place:
        try:
            answer = client.ask("POST", "/api/tasks/actions", {
                "action": action, "filter": conditions, **place})
        except Conflict as error:       # the error has the count
            count = error.extra["count"]
            if not sure:
                raise Conflict("%d tasks match that %s can change; nothing was changed. "
                               "Add --yes to change them." % (count, action)) from None
            place = {"expected_count": count}
        else:
            done += answer["done"]
            place = answer["continue"] and {"continue": answer["continue"]}
    show(options, {**answer, "done": done}, "%d of %d tasks" % (done, count))
    return 0
