"""The place of the data: flag, environment, the file beside the program."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .limits import HOME
from .errors import SetupError

FOR_CODE = ("JOBQUEUE_TASKS", "JOBQUEUE_DATA", "JOBQUEUE_UMASK")
SERVER_SCHEMES = ("postgresql://", "postgres://")


def data_folder(flag: Path | str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder: --data, else JOBQUEUE_DATA, else `data` beside this file.

    `data` may also be a text file, so that the folder can be outside the web root with FTP alone. Its
    first line is the folder's path. If that line is a server's address, the folder is `data-local`.
    """
    chosen = flag or environment.get("JOBQUEUE_DATA")
    if chosen:
        return Path(os.path.abspath(chosen))
    line = _data_line()
    return Path(os.path.abspath(HOME / ("data-local" if line.startswith(SERVER_SCHEMES) else line)))


def database_address(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the server that has the database of this folder, "" for SQLite.

    It is JOBQUEUE_DATABASE, else the first line of the text file `data`.
    """
    address = environment.get("JOBQUEUE_DATABASE", "")
    if not address and folder == HOME / "data-local":
        address = _data_line()
    if address and not address.startswith(SERVER_SCHEMES):
        raise SetupError("JOBQUEUE_DATABASE must begin with %s." % SERVER_SCHEMES[0])
    return address


def _data_line() -> str:
    """Return the first line of the text file `data`, or "data" if there is no such file."""
    beside = HOME / "data"
    try:
        if not beside.is_file():
            return "data"
        line = beside.read_text("utf-8-sig").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        raise SetupError("%s cannot be read as a folder's path: %s." % (beside, error)) from None
    if not line or line[0] == "~":      # ~ depends on the user of the process
        raise SetupError("%s must have the data folder's path, without ~." % beside)
    return line


def code_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment for users' code, without the variables of this program.

    These variables may be secrets, such as the password in JOBQUEUE_DATABASE.
    """
    return {name: value for name, value in environment.items()
            if name in FOR_CODE or not name.startswith("JOBQUEUE_")}


def become_private() -> None:
    """Make new files readable by this account alone. Keep the host's umask for users' code."""
    os.environ.setdefault("JOBQUEUE_UMASK", "%o" % os.umask(0o077))


def host_umask() -> int:
    """Return the host's umask, as become_private() found it."""
    try:
        return int(os.environ.get("JOBQUEUE_UMASK", ""), 8) & 0o777
    except ValueError:
        return 0o077
