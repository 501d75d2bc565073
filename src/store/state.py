"""State: values that the program itself keeps in the database, a row each.

People choose settings; the program sets these values. STATE documents each row. An export has the rows of
EXPORTED_STATE. All other rows are about this host.
"""
from __future__ import annotations

import json

from ..base.head import TYPE_CHECKING
from ..base.time_and_text import dump_json
from .connection import Connection, Reader

if TYPE_CHECKING:
    from typing import Any

STATE = {                       # {name: content of the row's JSON}
    "alerts": "the newest row of activity that alerts have seen, and when a message was last sent",
    "backup": "when and where the last backup or export was written",
    "catalogue": "the functions' file, its error or that they are samples, as last announced",
    "daily_backup": "when the last daily backup began, whether it is done, its error",
    "doubts": "leases that missed two renewals, by name: from when on others may take them over",
    "exposure": "which private addresses the web server gives away, and when that was tried",
    "files": "the machine whose data folder holds the files of tasks",
    "folded": "the id of the last row of activity that is counted in the rollup",
    "keeping": "when retention last ran, and from when on it trusts the clock",
    "rhythm": "the process that did the last maintenance; the last visits of cron and others",
    "sample_task": "the id of the last sample task that the page added",
    "start_failure": "why a worker could not start, how often, and when it is tried again",
    "tasks_files": "the files that programs read as tasks.py lately",
    "used_code": "digest of the last setup code that was used",
    "workers_lost": "by machine: workers that were lost young, the last time, their tasks"}
EXPORTED_STATE = ("catalogue", "folded")


def remember(transaction: Connection, name: str, value: Any) -> None:
    """Store a value of STATE; None removes it."""
    if value is None:
        transaction.run("DELETE FROM state WHERE name=?", (name,))
    else:
        transaction.upsert("state", {"name": name}, {"value": dump_json(value)})


def recall(db: Reader, name: str) -> Any:
    """Return a value of STATE, None if there is none."""
    text = db.value("SELECT value FROM state WHERE name=?", (name,))
    return None if text is None else json.loads(text)
