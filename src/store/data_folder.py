"""The data folder: create, open, repair."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import HOME, WEB_PATIENCE_SECONDS
from ..base.errors import Busy, SetupError, StorageBroken
from ..base.time_and_text import Clock, random_token
from .connection import find_database, write_private
from .database import Database
from .sqlite import Journal, SqliteDatabase, create_database, open_exclusively, safe_journal
from .postgres_sql import NO_EPOCH, SERVER_FILE
from .postgres import PostgresDatabase

if TYPE_CHECKING:
    from ..base.time_and_text import AnyClock

DENY = ("<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>\n"
        "<IfModule !mod_authz_core.c>\nOrder deny,allow\nDeny from all\n</IfModule>\n"
        "<IfModule mod_rewrite.c>\nRewriteEngine On\nRewriteRule ^ - [F,L]\n</IfModule>\n")


def _fill_data_folder(room: Path, on_server: bool) -> None:
    (room / "locks").mkdir(mode=0o700)
    for name, text in ((".htaccess", DENY), ("index.html", ""), ("canary.txt", random_token())):
        write_private(room / name, text)
    if on_server:
        write_private(room / ("jobqueue-%s%s" % (random_token(8), SERVER_FILE)), NO_EPOCH)
        return
    path, mode = room / ("jobqueue-%s.db" % random_token(8)), safe_journal(room)
    try:
        create_database(path, mode)
    except (StorageBroken, Busy):       # some local file systems have no shared memory, which WAL needs
        if mode == "truncate":
            raise
        for part in room.glob(path.name + "*"):
            part.unlink()
        create_database(path, "truncate")


def create_data_folder(folder: Path, on_server: bool = False) -> None:
    """Make a complete data folder under another name, then rename it. So none is ever incomplete."""
    import shutil
    room = folder.with_name("%s.new-%s" % (folder.name, random_token(6)))
    try:
        room.mkdir(mode=0o700)
        _fill_data_folder(room, on_server)
        os.rename(room, folder)
    except OSError as error:
        if not folder.is_dir():         # else another process was first
            raise SetupError("The data folder %s cannot be made: %s."
                             % (folder, error.strerror)) from None
    finally:
        shutil.rmtree(room, ignore_errors=True)


def user_name(number: int) -> str:
    """Return a user's name for `sudo -u`, or #1000 if the number has no name."""
    import pwd
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return "#%d" % number


def refuse_other_user(folder: Path) -> None:
    """Raise SetupError if the folder belongs to another user. The message has the right command.

    Files of two users would lock one of them out. A copy by FTP may let all users of the machine read the
    folder, so their permissions are removed.
    """
    try:
        status = os.stat(folder)
    except OSError as error:
        raise SetupError("The data folder %s cannot be read: %s."
                         % (folder, error.strerror)) from None
    if status.st_uid != os.getuid():
        owner = user_name(status.st_uid)
        raise SetupError(
            "The data folder %s belongs to the user %s, and this runs as %s. Run it as that user "
            "(sudo -u '%s' python3 '%s' ...), or use the page and its tick address."
            % (folder, owner, user_name(os.getuid()), owner, HOME / "jobqueue.py"))
    for path in (folder, *Path(folder).iterdir()) if status.st_mode & 0o077 else ():
        with contextlib.suppress(OSError):
            if not path.is_symlink():
                path.chmod(0o700 if path.is_dir() else 0o600)


def open_database(folder: Path, clock: AnyClock = Clock, patience: float = WEB_PATIENCE_SECONDS,
                  address: str = "") -> Database:
    """Open the database of a data folder, on a server if `address` is given. Make a missing folder."""
    if not os.path.lexists(folder):
        create_data_folder(folder, bool(address))
    refuse_other_user(folder)
    path = find_database(folder)
    if (path.suffix == SERVER_FILE) != bool(address):
        raise SetupError((
            "The data folder %s has a database of its own, %s. A queue on PostgreSQL needs another "
            "data folder." if address else "The data folder %s belongs to a queue on PostgreSQL (%s), "
            "whose address is missing: set JOBQUEUE_DATABASE.") % (folder, path.name))
    return (PostgresDatabase(address, folder, clock, patience) if address
            else SqliteDatabase(folder, clock, patience))


class OwnedFile(NamedTuple):
    """The file of a database, and its journal mode, or None if the mode is unknown."""

    path: Path
    mode: str | None


def own_database(folder: Path) -> OwnedFile:
    """Return the file of a database, even if it is damaged.

    SetupError if it belongs to another user, if another machine uses its log, or if it is on a server.
    """
    refuse_other_user(folder)
    path = find_database(folder, allow_empty=True)
    if path.suffix == SERVER_FILE:
        raise SetupError("The queue of %s is on PostgreSQL and has no file here." % folder)
    try:
        journal = Journal(path)
    except SetupError:
        return OwnedFile(path, None)    # the journal's file is missing or unreadable: callers write it
    journal.refuse_another(Clock.now())
    return OwnedFile(path, journal.mode)


def repair_journal(folder: Path, shared: bool = False) -> str:
    """Choose the journal mode and write it; return the mode.

    The mode is safe for this file system or, if `shared`, for several machines. Everything must be
    stopped. A change of the mode proves that, because it needs the exclusive lock.
    """
    path, _ = own_database(folder)
    mode = "truncate" if shared else safe_journal(folder)
    with open_exclusively(path, mode):
        Journal.decide(path, mode, Clock.now())
    return mode
