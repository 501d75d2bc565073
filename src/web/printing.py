"""Printing for people and pipes."""
import json
import os
import sys

from ..base.errors import escape_controls
from ..upkeep.rollup import DAY, HOUR

OTHER_SITE_SECONDS = 60.0
PERIODS = {"h": HOUR, "d": DAY, "w": 7 * DAY}
EXIT_AWAITED_FAILED, EXIT_TIMED_OUT = 3, 124
EXIT_PIPE_CLOSED = 141                  # as a shell tells of SIGPIPE


def say(text, end="\n"):
    """Print to standard output at once, whatever its encoding; end where nobody reads on."""
    stream = sys.stdout
    encoding = stream.encoding or "utf-8"
    if stream.isatty():
        text = escape_controls(text)
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream,
              flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())      # for what is still buffered
        raise SystemExit(EXIT_PIPE_CLOSED) from None


def show(options, value, text):
    """Print a result: `value` as JSON if that was asked for, else `text`."""
    if options.json:
        text = "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
    if text:
        say(text)


def table(titles, rows):
    """Columns of text, each as wide as its widest cell."""
    rows = [titles] + [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
