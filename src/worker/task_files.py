"""Files that a task is given and leaves.

What a task was given is copied into its folder, so that a retry gets the same whatever the
function does to it. Where the site keeps its files elsewhere it is asked for them over HTTP, and
what the task leaves is sent there before its outcome is told; its claim is the authority.
Rules: a site is asked under its certificate and at its address alone, by no redirect.
"""
import json
import os
import re
import time
from urllib.parse import quote, unquote

import jobqueue
from jobqueue import Fail

from .requests import http_opener

FILE_SECONDS = 60.0                     # for each step of a request
FILE_PAUSES = 1.0, 5.0, *[15.0] * 10    # after one that was not answered; then the claim is lost
TRY_AGAIN = (408, 429, 502, 503, 504)
GIVEN = ".given"                        # in the task's folder: no file there is one that it leaves


def told_by(answer):
    """What an answer says that is no success; Fail if jobqueue itself refuses for good."""
    with answer:
        is_ours = answer.headers.get_content_type() == "application/problem+json"
        if is_ours and answer.status not in TRY_AGAIN:
            raise Fail("the site refuses: %s" % json.load(answer)["detail"])
        return "the server answered %d %s" % (answer.status, answer.reason)


class TaskFiles:
    """The files of the task that runs; `site` is (address, certificates) if it has them."""

    def __init__(self, site, context, data):
        self.site, self._context, self._data = site, context, data

    def bring(self, value):
        """An argument with paths of copies in the place of the ids of files."""
        if isinstance(value, list):
            return list(map(self.bring, value))
        if not (isinstance(value, str) and re.fullmatch(jobqueue.FILE_KEY, value)):
            return value
        folder = self._context.folder / GIVEN / value
        folder.mkdir(parents=True, exist_ok=True)
        if self.site:
            with self.ask("files/" + value) as answer:
                name = answer.headers["Content-Disposition"].rpartition("''")[2]
                return self._copy(answer, folder / jobqueue.file_name(unquote(name)))
        source = jobqueue.given_folder(self._data, value)
        for name in os.listdir(source) if source.is_dir() else ():
            with open(source / name, "rb") as file:
                return self._copy(file, folder / name)
        raise Fail("the file that it was given, %s, is not there any more" % value)

    @staticmethod
    def _copy(file, path):
        import shutil
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, jobqueue.PIECE_BYTES)
        return str(path)

    def leave(self, path):
        """The name of a file that the function returns: it becomes the task's. Of a path that leads
        to no file it is all."""
        if not path.is_file():
            return str(path)
        if path.parent.resolve() != self._context.folder.resolve():
            with open(path, "rb") as file:
                self._copy(file, self._context.folder / path.name)
        return path.name

    def close(self):
        """Remove what it was given; send what it leaves if that belongs elsewhere."""
        if not self._context.has_folder:
            return
        import shutil
        folder = self._context.folder
        shutil.rmtree(folder / GIVEN, ignore_errors=True)
        names = self.site and jobqueue.names_left(folder) or []
        for name in names[:jobqueue.FILES_MAX]:
            try:
                with jobqueue.open_plain(folder, name) as file:
                    self.ask("files?name=" + quote(name, safe="", errors="replace"), file).close()
            except ConnectionError:
                raise
            except (Fail, OSError) as error:
                print("Not kept: %s (%s)" % (name, error))
        if names[jobqueue.FILES_MAX:]:
            print("Not kept: the %d after these" % len(names[jobqueue.FILES_MAX:]))

    def ask(self, path, file=None):
        """The site's answer; it is sent the file. Fail if it refuses, else ConnectionError."""
        from http.client import HTTPException
        from urllib.request import Request
        (address, authorities), task = self.site, self._context
        if not address:
            raise Fail("its files are on another machine, and the setting page_address is empty")
        place = "%s/api/worker/tasks/%d/%s" % (address.rstrip("/"), task.id, path)
        size = os.fstat(file.fileno()).st_size if file else 0
        opener = http_opener(authorities, by_proxy=place.startswith("https:"))
        headers = {"Content-Type": jobqueue.BYTES_TYPE, "Content-Length": str(size),
                   "X-Api-Key": task.claim}
        for pause in FILE_PAUSES:
            request = Request(place, file and jobqueue.Portion(file, size), headers)
            try:
                answer = opener.open(request, timeout=FILE_SECONDS)
                if answer.status < 300:
                    return answer
                told = told_by(answer)
            except (HTTPException, OSError) as error:
                told = error
            time.sleep(pause)
            if file:
                file.seek(0)
        raise ConnectionError("the site is not heard: %s" % told)
