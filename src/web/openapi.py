"""/openapi.json, made of ROUTES."""
from __future__ import annotations

import collections

from ..base.head import TYPE_CHECKING
from ..base.limits import VERSION
from ..base.errors import Conflict, Invalid, TooLarge, UnsupportedType
from ..base.values import OPTION_SCHEMAS, integer_within
from ..tasks.files import BYTES_TYPE
from ..access.requests import ADD_MAX
from .http_answer import JSON_TYPE, LINES_TYPE
from .handlers_tasks import NEW_TASKS, UPLOAD
from .routes import ANYONE, CLAIM, ID, LOOKING_FAILS, NAME, ROUTES, TICKER, Route, component

if TYPE_CHECKING:
    from typing import Any

    from ..base.types import JsonObject, Schema

CHANGING_FAILS = (*LOOKING_FAILS, Conflict, TooLarge, UnsupportedType, Invalid)
OF_OURS = ("title", "patternMessage", "keptWithin")  # keywords of our schemas that other programs do not know


def _documented(part: Any, schemas: dict[str, Schema]) -> Any:
    """Return a part of our schemas for other programs. A part with a title is moved to `schemas`."""
    if isinstance(part, (list, tuple)):
        return [_documented(item, schemas) for item in part]
    if not isinstance(part, dict):
        return part
    documented = {name: _documented(value, schemas) for name, value in part.items() if name not in OF_OURS}
    if "keptWithin" in part:            # nearly any number is accepted, and also an empty text
        del documented["type"]
        documented["anyOf"] = [integer_within(1 - 10 ** 18, 10 ** 18 - 1), {"const": ""}]
    if "pattern" in documented:
        documented["pattern"] = "^(%s)$" % documented["pattern"]
    if "title" not in part:
        return documented
    schemas[part["title"]] = documented
    return component("schemas", part["title"])


def _parameters(route: Route, schemas: dict[str, Schema]) -> list[JsonObject]:
    names = {"Id": ID in route.path, "Name": NAME in route.path,
             "IfNoneMatch": route.method == "GET" and route.who != TICKER,
             "IdempotencyKey": route.takes is NEW_TASKS}
    takes: Schema = {}
    if route.takes and (route.takes is UPLOAD or route.method == "GET"):
        takes = route.takes
    return [component("parameters", name) for name in names if names[name]] + [
        {"name": name, "in": "query", "required": name in takes.get("required", ()),
         "schema": _documented(field, schemas)} for name, field in takes.get("properties", {}).items()]


def _responses(route: Route) -> JsonObject:
    content: JsonObject = {}
    for name in route.kinds.split():
        media = name if "/" in name else JSON_TYPE
        content[media] = {"schema": {} if "/" in name else component("schemas", name)}
    errors = LOOKING_FAILS if route.method == "GET" else CHANGING_FAILS
    responses: JsonObject = {
        str(kind.status): component("responses", kind.__name__) for kind in errors}
    responses[str(route.status)] = {"description": "Done.", "content": content}
    if route.takes is NEW_TASKS:
        responses["200"] = {"description": "Nothing was added: this task has the unique_key.",
                        "content": content}
    if route.method == "GET" and route.who != TICKER:
        responses["304"] = {"description": "Unchanged since If-None-Match."}
    return responses


def _operation(route: Route, schemas: dict[str, Schema]) -> JsonObject:
    summary, _, more = (route.handler.__doc__ or "").partition("\n")
    operation: JsonObject = {"summary": summary.rstrip("."), "x-who": route.who,
                        "responses": _responses(route), "description": " ".join(more.split()),
                        "parameters": _parameters(route, schemas)}
    if route.who == ANYONE:
        operation["security"] = []
    if route.who == TICKER:
        schemes = ("bearer", "key", "cookie") if route.method == "POST" else ()
        operation["security"] = [{name: []} for name in ("tick", *schemes)]
    if route.who == CLAIM:
        operation["security"] = [{"bearer": []}, {"key": []}]
    if route.takes and route.method != "GET":
        content: JsonObject = (
            {BYTES_TYPE: {"schema": {}}} if route.takes is UPLOAD else
            {JSON_TYPE: {"schema": _documented(route.takes, schemas)}})
        if route.takes is NEW_TASKS:
            content[LINES_TYPE] = {"schema": {
                "type": "string", "pattern": "[!-~]",
                "description": "A NewTask on each line; %d at most." % ADD_MAX}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def describe_api(document: JsonObject) -> JsonObject:
    """Return the OpenAPI document of all ROUTES, which begins as the content of static/api.json."""
    parts = document["components"]
    document["info"]["version"] = VERSION
    document["paths"] = collections.defaultdict(dict)
    for route in ROUTES:
        path = route.path.replace(ID, "{id}").replace(NAME, "{name}")
        document["paths"][path][route.method.lower()] = _operation(route, parts["schemas"])
    _documented({"title": "Options", "type": "object", "required": list(OPTION_SCHEMAS),
                 "properties": OPTION_SCHEMAS}, parts["schemas"])
    content = {"application/problem+json": {"schema": component("schemas", "Problem")}}
    parts["responses"] = {kind.__name__: {"description": (kind.__doc__ or "").partition("\n")[0],
                                          "content": content} for kind in CHANGING_FAILS}
    return document
