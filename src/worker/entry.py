"""python3 worker.py

Each process has one job. It is a worker: for cron, as a service, detached, or for a slice of a request. Or
it is a worker's runner, announces the functions, sends messages, or makes the daily backup.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, JobQueue, JobQueueError, dump_json

from .signatures import read_functions
from .runner import Runner, arm_lifeline
from .child import Fork, Started, spares
from .place import CHECK_SECONDS, STOP_SIGNALS
from .worker import Worker
from .remote_site import RemoteSite, Spool
from .remote import RemoteWorker

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import NoReturn

CRON_SECONDS = 50.0
WORKER_PATIENCE_SECONDS = 45.0          # longest wait for the database; less than SELF_FENCE_SECONDS


def run_runner(channel: str, data: str) -> int:
    """Run a runner. The life line is armed before anything else. `channel` is a descriptor's number."""
    link = socket.socket(fileno=int(channel))
    bell, lifeline, lock = socket.recv_fds(link, 1, 3)[1]
    arm_lifeline(lifeline)
    for descriptor in (link.fileno(), bell, lock):
        os.set_inheritable(descriptor, False)
    for name in os.environ.keys() - jobqueue.code_environment().keys():
        del os.environ[name]
    runner = Runner(link, bell, Path(data), lock)
    os.register_at_fork(after_in_child=runner.forget)
    return runner.run()


def fork_runner(data: str) -> None:
    """Fork the first runner. A fork needs half the time and memory of a new process.

    Nothing may be open yet. If no worker uses the fork, it ends with this process.
    """
    ours, theirs = socket.socketpair()
    gc.freeze()                         # the garbage collector would write into shared memory pages
    pid = os.fork()
    if pid:
        theirs.close()
        os.setpgid(pid, pid)
        spares.append(Started(Fork(pid), ours))
        return
    try:
        ours.close()
        with open(os.devnull, "r+b", 0) as null:
            for stream in range(3):
                os.dup2(null.fileno(), stream)
        importlib.import_module("inspect")
        os._exit(run_runner(str(theirs.detach()), data))
    finally:                            # a fork must never become a second worker
        os._exit(1)


def print_catalogue() -> NoReturn:
    """Print the announcement of the functions as JSON, and nothing that tasks.py prints."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open(out, "wb") as file:
        file.write(dump_json(read_functions()).encode("utf-8"))
    if os.getpgrp() == os.getpid():     # end the processes that tasks.py has started
        os.killpg(0, signal.SIGKILL)
    os._exit(0)                         # do not wait for threads and exit handlers of tasks.py


def open_queue(data: Path | str | None, is_new: bool = False) -> JobQueue:
    """Open the queue, and lower the priority of this process and its spare runners to the setting `nice`.

    Make no new database unless `is_new`.
    """
    if not is_new:
        jobqueue.find_database(jobqueue.data_folder(data))
    queue = JobQueue(data, patience=WORKER_PATIENCE_SECONDS)
    with contextlib.suppress(OSError):
        nice = max(queue.settings.get("nice"), os.getpriority(os.PRIO_PROCESS, 0))
        for pid in (0, *(process.pid for process, _ in spares)):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
    return queue


def work(mode: str, data: Path | str | None = None, seconds: float | None = None,
         verbose: bool = False, row: int | None = None, lock: str | None = None) -> int:
    """Run a worker: detached, for cron, within a web request (slice), or as a service."""
    queue = open_queue(data, is_new=row is None)
    if mode == "cron" and seconds is not None:
        queue.catalogue.refresh()
        queue.tick.run("cron", start=False)   # dead workers must not count against NbMaxWorker
        due = queue.tick.next_work() or math.inf
        if not queue.claims.claimable(1) and due > queue.database.clock.now() + seconds:
            queue.starter.start_needed(queue.tick.sleepers_missing())
            return 0
    was_stopped = Worker(queue, mode, verbose, seconds).run(row, lock)
    if mode == "service":
        for number in STOP_SIGNALS:     # a later signal ends the process at once
            signal.signal(number, signal.SIG_DFL)
        if not was_stopped:             # exec, because the host might start no other process
            time.sleep(CHECK_SECONDS)
            os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    return 0


def work_remotely(options: Namespace) -> int:
    """Work for another site until a stop signal comes. If the program's files change, exec the new ones."""
    if not jobqueue.TASKS_FILE.exists():
        raise jobqueue.SetupError("There is no %s, whose functions this worker could run."
                                  % jobqueue.TASKS_FILE)
    site = RemoteSite(options.server, options.token_file, options.ca)
    spool = Spool(Path(options.data or jobqueue.HOME / "data-remote"))
    worker = RemoteWorker(site, spool, options.verbose)
    if worker.run():
        time.sleep(CHECK_SECONDS)
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    return worker.exit_code


def send_messages(data: str) -> int:
    """Send due messages. If a server hangs, only this process ends, after SENDING_SECONDS."""
    signal.alarm(int(jobqueue.SENDING_SECONDS))
    queue = open_queue(data)
    jobqueue.DeliverySender(queue.database, queue.settings, queue.enqueue, queue.catalogue.find).run()
    return 0


def make_daily_backup(queue: JobQueue) -> None:
    """Make the daily backup that a tick has ordered, remove old backups, and store the outcome."""
    database = queue.database
    error: str | None = None
    begun = jobqueue.recall(database, "daily_backup")
    folder = database.folder / jobqueue.BACKUPS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        jobqueue.save(queue, folder, "backup-" + begun["day"])
        remove_older_backups(folder, queue.settings.get("backup_keep"))
    except (JobQueueError, OSError) as problem:
        error = str(problem)
    with database.transaction() as transaction:
        jobqueue.remember(transaction, "daily_backup",
                          {**begun, "done": not error, "error": error})


def remove_older_backups(folder: Path, count: int) -> None:
    """Keep the newest `count` complete daily backups.

    Remove older ones, and incomplete ones that are older than the newest complete one.
    """
    paths = sorted(folder.glob("backup-????-??-??-*"))
    whole = [path for path in paths if path.suffix != ".part"]
    for path in paths:
        if path < whole[-1] and path not in whole[-count:]:
            path.unlink()


def back_up(data: str) -> int:
    """Open the queue and make its daily backup."""
    make_daily_backup(open_queue(data))
    return 0


def dispatch(arguments: list[str]) -> int:
    """Run the process that the arguments ask for; return its exit code."""
    mode, *rest = arguments or [""]
    if mode in ("--detached", "--slice"):
        row, lock, data, *seconds = rest
        if sys.platform == "linux":     # on macOS a fork must not use many system libraries
            with contextlib.suppress(OSError):
                fork_runner(data)
        limit = float(seconds[0]) if seconds else None
        return work(mode[2:], data, limit, row=int(row), lock=lock)
    inside: dict[str, Callable[..., int]] = {
        "--runner": run_runner, "--catalogue": print_catalogue,
        "--send": send_messages, "--backup": back_up}
    if mode in inside:
        return inside[mode](*rest)
    import argparse
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Run tasks of jobqueue.", allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="data folder (data beside jobqueue.py)")
    parser.add_argument("--service", action="store_true", help="never end by itself")
    parser.add_argument("--server", metavar="URL", help="work for that site, without its database")
    parser.add_argument("--token-file", metavar="F", help="with a token of the scope worker of it")
    parser.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("--seconds", type=float, default=CRON_SECONDS, metavar="S",
                        help="without --service: work for at most S seconds (50)")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    if options.server:
        if not options.token_file:
            parser.error("--server needs --token-file")
        return work_remotely(options)
    if options.service:
        return work("service", options.data, verbose=options.verbose)
    return work("cron", options.data, options.seconds, options.verbose)


def main() -> int:
    """Prepare this process and run it; return its exit code. A web server is refused."""
    if "GATEWAY_INTERFACE" in os.environ:   # a web server runs this file, and the query is its arguments
        print("Status: 403 Forbidden\nContent-Type: text/plain\n\nThis is not a page.")
        return 2
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    jobqueue.become_private()
    try:
        return dispatch(sys.argv[1:])
    except JobQueueError as error:
        jobqueue.complain(error.detail)
        return error.exit_code
    except (OSError, MemoryError) as error:
        jobqueue.complain("%s: %s" % (type(error).__name__, error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
