"""jobqueue: background jobs for a web site on a cheap shared host.

Copy jobqueue.py, worker.py and static/ to the host, then

    python3 jobqueue.py                       serve the page and print a link for the first admin
    python3 jobqueue.py add FUNCTION a=1      add a task from a shell or from cron
    python3 jobqueue.py --help                everything else

The functions that tasks run are declared in tasks.py beside this file, or at the path in JOBQUEUE_TASKS.
Adding a task starts a detached worker.py process if fewer than NbMaxWorker run. Workers end when they are
idle.
"""
from __future__ import annotations

import os
import sqlite3
import sys

TYPE_CHECKING = False           # type checkers take it as true: see base/types.py


def refuse_old(name: str, found: tuple[int, int], oldest: tuple[int, int]) -> None:
    """Exit with a message if Python or SQLite is too old. Start files of web servers show the message."""
    if found < oldest:
        words = "jobqueue needs %s %d.%d or newer; this is %s %d.%d" % (name, *oldest, name, *found)
        if __name__ == "__main__" and "GATEWAY_INTERFACE" in os.environ:
            print("Status: 500 Internal Server Error\nContent-Type: text/plain\n\n%s" % words)
        sys.exit(words)


refuse_old("Python", sys.version_info[:2], (3, 9))
refuse_old("SQLite", sqlite3.sqlite_version_info[:2], (3, 15))
if os.name != "posix":
    sys.exit("jobqueue needs Linux, macOS or another POSIX system; Windows is not supported.")


def refuse_half(path: str) -> None:
    """Exit if the end of a program file is missing. The start of a broken upload may be valid Python."""
    with open(path, "rb") as file:
        file.seek(-1000, os.SEEK_END)
        if b'"__main__":' not in file.read():
            sys.exit("%s is not complete: copy it again" % os.path.basename(path))


refuse_half(__file__)
