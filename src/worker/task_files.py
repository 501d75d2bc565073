"""Files that a task is given and leaves.

The given files are copied into the task's folder. So a retry gets the same files, even if the function
changes them. If the files are kept at a site on another machine, they are fetched from there over HTTP. The
files that the task leaves are sent there before its outcome. The task's claim authorizes these requests.

Rules: a request goes only to the site's address. The certificate is checked, and no redirect is followed.
"""
from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from urllib.parse import quote, unquote

import jobqueue
from jobqueue import TYPE_CHECKING, Fail

from .requests import http_opener

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from typing import Any, BinaryIO

    from jobqueue import FileSite, Schema, TaskContext

FILE_SECONDS = 60.0                     # timeout of each network step of a request
FILE_PAUSES = 1.0, 5.0, *[15.0] * 10    # after failed requests; a remote worker's claim is lost by then
TRY_AGAIN = (408, 429, 502, 503, 504)
RUN_ENDINGS = r"ph|shtm|f?cgi|as[pmch]|jsp|cfm"    # some servers test every ending in a name
GIVEN = ".given"                        # subfolder of the task's folder; the task does not leave its files


def inert_name(name: str) -> str:
    """Return a given file's name on the disk, without endings that make a web server run the file."""
    plain = re.sub(r"\.(?=%s)" % RUN_ENDINGS, "_", jobqueue.file_name(name), flags=re.IGNORECASE)
    return jobqueue.disk_name(plain)


def error_in(answer: HTTPResponse) -> str:
    """Return the error in an unsuccessful answer. Fail if it is jobqueue's and no retry can help."""
    with answer:
        is_ours = answer.headers.get_content_type() == "application/problem+json"
        if is_ours and answer.status not in TRY_AGAIN:
            raise Fail("the site refuses: %s" % json.load(answer)["detail"])
        return "the server answered %d %s" % (answer.status, answer.reason)


class TaskSite:
    """The site that has the files of a task, and the results of its predecessors."""

    def __init__(self, place: FileSite, context: TaskContext) -> None:
        self._address, self._authorities = place
        self._context = context

    def ask(self, path: str, file: BinaryIO | None = None) -> HTTPResponse:
        """Send a request, with the file if there is one; return the site's answer.

        Fail if the site refuses the request; ConnectionError if it does not answer.
        """
        from http.client import HTTPException
        from urllib.request import Request
        task = self._context
        if not self._address:
            raise Fail("its files are on another machine, and the setting page_address is empty")
        place = "%s/api/worker/tasks/%d/%s" % (self._address.rstrip("/"), task.id, path)
        size = os.fstat(file.fileno()).st_size if file else 0
        opener = http_opener(self._authorities, by_proxy=place.startswith("https:"))
        kind, head, tail = jobqueue.BYTES_TYPE, b"", b""
        for pause in FILE_PAUSES:
            request = Request(place, file and chain([head], jobqueue.FileSlice(file, size), [tail]), {
                "Content-Type": kind, "Content-Length": str(len(head) + size + len(tail)),
                "X-Api-Key": task.claim})
            try:
                answer: HTTPResponse = opener.open(request, timeout=FILE_SECONDS)
                if answer.status < 300:
                    return answer
                problem: str | Exception = error_in(answer)
                if file and 400 <= answer.status < 500:     # a firewall in front of the site refuses it
                    kind, head, tail = jobqueue.envelope(jobqueue.BYTES_TYPE)
            except (HTTPException, OSError) as error:
                problem = error
            time.sleep(pause)
            if file:
                file.seek(0)
        raise ConnectionError("the site does not answer: %s" % problem)


class TaskFiles:
    """The files of the running task. `site` has them if they are not here."""

    def __init__(self, site: FileSite | None, names: Mapping[str, str], context: TaskContext,
                 data: Path) -> None:
        self.site = TaskSite(site, context) if site else None
        self._names = names             # names of the given files, by key
        self._context, self._data = context, data

    def bring(self, value: Any, schema: Schema) -> Any:
        """Copy the files of an argument; return the argument with paths in place of the files' ids.

        Fail if the schema asks for a file and the value is no id. A value for `bytes` may also be Base64.
        """
        if isinstance(value, list):
            return [self.bring(item, schema.get("items", {})) for item in value]
        if not (isinstance(value, str) and re.fullmatch(jobqueue.FILE_KEY, value)):
            if value is not None and schema.get("format") == "file":
                raise Fail("a file must be the id of an upload")
            return value
        folder = self._context.folder / GIVEN / value
        folder.mkdir(parents=True, exist_ok=True)
        if self.site:
            return self._fetch(self.site, value, folder)
        source = jobqueue.given_path(jobqueue.given_folder(self._data), value)
        try:
            with open(source, "rb") as file:
                return self._copy(file, folder / inert_name(self._names[value]))
        except (FileNotFoundError, KeyError):
            raise Fail("the file that it was given, %s, is not there any more" % value) from None

    def _fetch(self, site: TaskSite, key: str, folder: Path) -> str:
        """Copy a file from the site. If the transfer breaks off, try again."""
        from http.client import HTTPException
        for pause in FILE_PAUSES:
            with site.ask("files/" + key) as answer:
                name = answer.headers["Content-Disposition"].rpartition("''")[2]
                try:
                    path = self._copy(answer, folder / inert_name(unquote(name)))
                    if not answer.length:       # length: the bytes that have not arrived
                        return path
                except HTTPException:
                    pass
            time.sleep(pause)
        raise ConnectionError("the file %s breaks off on its way from the site" % name)

    @staticmethod
    def _copy(file: BinaryIO, path: Path) -> str:
        import shutil
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, jobqueue.PIECE_BYTES)
        return str(path)

    def keep(self, result: Any) -> Any:
        """Make the files of a result the task's; return the result with file names in place of paths.

        Lists and dictionaries are searched, too, if they have at most FILES_MAX items.
        """
        if isinstance(result, Path):
            return self.leave(result)
        if type(result) in (list, tuple) and len(result) <= jobqueue.FILES_MAX:
            return [self.leave(item) if isinstance(item, Path) else item for item in result]
        if type(result) is dict and len(result) <= jobqueue.FILES_MAX:
            return {key: self.leave(item) if isinstance(item, Path) else item
                    for key, item in result.items()}
        return result

    def leave(self, path: Path) -> str:
        """Make a file whose path the function returned the task's; return its name.

        A file in another folder, a link, and a file with a hidden name are copied. A path that is no file
        is returned as text.
        """
        if not path.is_file():
            return str(path)
        folder, name = self._context.folder, jobqueue.file_name(path.name)
        is_there = path.parent.resolve() == folder.resolve()
        if not is_there or jobqueue.plain_size(folder, path.name) is None:
            copy = folder / (".copy-" + jobqueue.random_token(8))
            with open(path, "rb") as file:
                self._copy(file, copy)
            copy.replace(folder / jobqueue.disk_name(name))
        return name

    def close(self) -> None:
        """Remove the copies of the given files. Send the files that the task left to the site, if any."""
        if not self._context.has_folder:
            return
        import shutil
        folder = self._context.folder
        shutil.rmtree(folder / GIVEN, ignore_errors=True)
        if not self.site:
            return
        names = jobqueue.names_left(folder) or []
        for name in names[:jobqueue.FILES_MAX]:
            try:
                with jobqueue.open_plain(folder, name) as file:
                    quoted = quote(name, safe="", errors="replace")
                    self.site.ask("files?name=" + quoted, file).close()
            except ConnectionError:
                raise
            except (Fail, OSError) as error:
                print("Not kept: %s (%s)" % (name, error))
        if names[jobqueue.FILES_MAX:]:
            print("Not kept: the %d after these" % len(names[jobqueue.FILES_MAX:]))
