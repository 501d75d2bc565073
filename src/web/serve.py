"""The command `serve`."""
from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.limits import CODE_FILES, HOME, VERSION
from ..base.errors import SetupError, complain, print_errors
from ..upkeep.worker_modes import file_stamps
from ..upkeep.tick import LOOK_FOR_SCHEDULES_SECONDS, TICK_SOON_SECONDS
from ..access.python_interface import JobQueue
from .application import Application
from .servers import open_server
from .printing import say

if TYPE_CHECKING:
    from argparse import Namespace


def _tick_for_ever(queue: JobQueue) -> None:
    code = file_stamps(CODE_FILES)
    for number in itertools.count():
        if number % LOOK_FOR_SCHEDULES_SECONDS == 0:
            with print_errors("reading tasks.py"):
                queue.catalogue.refresh()       # tasks.py may have new schedules
        queue.tick.maybe("server")
        with print_errors("working here"):
            queue.starter.work_slice()
        if code != file_stamps(code):
            code = file_stamps(code)
            complain("jobqueue was replaced: restart this server, which runs the old one")
        queue.database.clock.sleep(TICK_SOON_SECONDS)


def _use_compiled_module(data: Path) -> None:
    """Restart this process with compiled modules: compiling in it would keep 20 MB for good."""
    if (__name__ != "__main__" or not sys.executable or "jobqueue" in sys._xoptions
            or getattr(sys.flags, "safe_path", False)):
        return
    from importlib.machinery import SourceFileLoader
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")      # glibc would keep a heap per thread
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "1048576")  # glibc would keep the 16 MiB of the first
                                                                # log-in
    with contextlib.suppress(OSError, MemoryError, SyntaxError):    # if it fails, the next start compiles
        for path in CODE_FILES:                 # so that the server and workers find both files compiled
            SourceFileLoader(path.stem, str(path)).get_code(path.stem)
        os.chdir(HOME)
        os.execv(sys.executable, [
            sys.executable, "-X", "jobqueue", "-m", "jobqueue", *sys.argv[1:], "--data", str(data)])


def _say_where(queue: JobQueue, address: tuple[str, int]) -> None:
    """Print where the page is, and how to open it for the first time."""
    place = ("[%s]:%d" if ":" in address[0] else "%s:%d") % address
    link = "http://%s%s/" % (place, queue.settings.get("base_path"))
    say("jobqueue %s is at %s" % (VERSION, link))
    if not queue.users.has_admin():
        say("Open this link to make the first admin; it works once, for an hour:\n\n"
            "    %s#setup=%s\n" % (link, queue.setup.code()))


def cmd_serve(queue: JobQueue, options: Namespace) -> None:
    """Run the built-in web server until interrupted."""
    host, port = options.given["host"], options.given["port"]
    _use_compiled_module(queue.database.folder.absolute())
    queue.database.read_within("SELECT 1")     # opens the database while descriptors are free
    try:
        server = open_server(Application(queue, "server"), host, port,
                             background=lambda: _tick_for_ever(queue))
    except OSError as error:
        raise SetupError("Port %d on %s cannot be used: %s. Choose another with --port."
                         % (port, host, error.strerror)) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    _say_where(queue, server.address)
    server.run()
    say("stopped; workers go on until their tasks are done")
