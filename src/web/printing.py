"""Printing for people and pipes."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence

from ..base.head import TYPE_CHECKING
from ..base.errors import escape_controls

if TYPE_CHECKING:
    from argparse import Namespace

    from ..base.types import JsonObject

EXIT_PIPE_CLOSED = 141                  # as a shell reports SIGPIPE


def say(text: str, end: str = "\n") -> None:
    """Print to standard output at once, whatever its encoding. Exit if the reader has closed the pipe."""
    stream = sys.stdout
    encoding = stream.encoding or "utf-8"
    if stream.isatty():
        text = escape_controls(text)
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream,
              flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())      # for text that is still buffered
        raise SystemExit(EXIT_PIPE_CLOSED) from None


def show(options: Namespace, value: JsonObject | list[JsonObject] | None,
         text: str | None) -> None:
    """Print a result: `value` as JSON with --json, else `text`."""
    if options.json:
        text = "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
    if text:
        say(text)


def table(titles: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return columns of text, each as wide as its widest cell."""
    lines = [titles, *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
