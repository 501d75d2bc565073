"""HTTP requests as functions.

Arguments fill the places of the address. The other arguments become the query or the JSON body. The answer
is the result. A status of 4xx fails for good, except for 408, 425 and 429. 5xx may be retried.

Rules: a request goes only to the server that the owner wrote, without proxy and redirect. No argument can
add ".." to the path. Answers are read up to a limit.
"""
from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from urllib.parse import quote, unquote, urlencode

import jobqueue
from jobqueue import TYPE_CHECKING, Fail, Function, RetryAfter, dump_json, read_retry_after

from .commands import CommandFailed, as_word

if TYPE_CHECKING:
    from typing import Any
    from urllib.request import OpenerDirector, Request

    from jobqueue import JsonObject, TaskContext

ANSWER_MAX_BYTES = 1 << 19              # largest answer to an HTTP request
REQUEST_SECONDS = 30.0                  # to connect, and for each read of an answer


def refuse_climbing(template: str, arguments: JsonObject) -> None:
    """Fail if a value would lead out of its place in the path, however often a server decodes it.

    nginx reads "..%2Fx" as "../x". Other servers read a backslash as a slash and skip text after ";".
    """
    for part in re.split("[?#]", template)[0].split("/"):
        names = re.findall(jobqueue.PLACE, part)
        text = re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)
        for _ in range(10):
            text = unquote(text, "latin-1")
        steps = {re.sub(r"[\x00-\x20\x7f]", "", step) for step in re.split(r"[/\\?#;]", text)}
        if names and (steps & {".", ".."} or unquote(text) != text):
            raise Fail("%s must not hold . or .. between slashes, however they are encoded: that "
                       "would lead out of its place in the address" % " and ".join(names))


def build_request(target: JsonObject, arguments: JsonObject, context: TaskContext) -> Request:
    """Return the urllib Request, with the arguments in the places, the query or the JSON body."""
    from urllib.request import Request
    refuse_climbing(target["address"], arguments)
    address = re.sub(jobqueue.PLACE, lambda match: quote(as_word(arguments.get(match[1])), safe=""),
                     target["address"])
    rest = {name: arguments[name] for name in arguments if "{%s}" % name not in target["address"]}
    headers = {"User-Agent": "jobqueue/" + jobqueue.VERSION,
               "Idempotency-Key": "task-%d" % context.id, **target["headers"]}
    body = None
    if target["method"] in ("GET", "HEAD", "DELETE"):
        words = urlencode({name: as_word(value) for name, value in rest.items()})
        address += ("&" if "?" in address else "?") + words if words else ""
    else:
        body = dump_json(rest).encode("utf-8")
        headers["Content-Type"] = "application/json"
    return Request(address, body, headers, method=target["method"])


@functools.lru_cache(maxsize=None)
def http_opener(authorities: str | None = None, by_proxy: bool = False) -> OpenerDirector:
    """Return an opener that checks certificates, follows no redirect, and returns every answer.

    With `by_proxy` it uses the proxies that the environment names, else none.
    """
    import ssl
    from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler
    opener, trusted = OpenerDirector(), ssl.create_default_context(cafile=authorities)
    for handler in (ProxyHandler(None if by_proxy else {}), HTTPHandler(),
                    HTTPSHandler(context=trusted)):
        opener.add_handler(handler)
    return opener


def run_request(function: Function, arguments: JsonObject, context: TaskContext) -> Any:
    """Send an HTTP request; return its answer as result. Fail for an error that a retry cannot mend."""
    request = build_request(function.target, arguments, context)
    with http_opener().open(request, timeout=REQUEST_SECONDS) as answer:
        data, code, headers = answer.read(ANSWER_MAX_BYTES + 1), answer.status, answer.headers
        whole = len(data) + (answer.length or 0)    # expected bytes, by Content-Length
    if code >= 300:
        print(data[:4096].decode("utf-8", "replace"))
        message = "the server answered %d %s" % (code, answer.reason)
        if code < 400:
            raise Fail("the server named another address: no redirect is followed")
        pause = read_retry_after(headers.get("Retry-After"), time.time())
        if code in (429, 503) and pause is not None:
            raise RetryAfter(pause, message)
        raise (CommandFailed if code >= 500 or code in (408, 425, 429) else Fail)(message)
    if len(data) > ANSWER_MAX_BYTES:
        raise Fail("the answer is larger than %d bytes" % ANSWER_MAX_BYTES)
    if len(data) < whole:
        raise CommandFailed("the answer broke off after %d of %d bytes" % (len(data), whole))
    with contextlib.suppress(ValueError):
        if "json" in headers.get("Content-Type", ""):
            return json.loads(data)
    return data.decode("utf-8", "replace") or None
