"""What runs here, as the kernel tells it (Linux).

    everybody()             {pid: Process} of all that runs, zombies included
    look_at(pid)            one Process, or None
    processes_of(folder)    those that were started in a folder or with a file of it, and their zombies
    family(pids)            these processes and all that they started
    is_worker, is_runner    what a living Process is
    holds_lock(pid, paths)  whether it keeps others out of a file
"""
import collections
import contextlib
import os
import re
from pathlib import Path

Process = collections.namedtuple("Process", "pid parent state started line session")
PROC = "/proc"
WORKER = r"(worker\.py|-m worker)"
INNER = ("--runner", "--catalogue")     # processes of worker.py that are no workers


def told(pid, name):
    """A file of a process as bytes: thousands are read, and Path takes three times as long."""
    handle = os.open("%s/%s/%s" % (PROC, pid, name), os.O_RDONLY)
    try:
        return os.read(handle, 1 << 20)
    finally:
        os.close(handle)


def look_at(pid):
    """A Process as the kernel shows it; None if there is none."""
    try:
        fields = told(pid, "stat").rpartition(b")")[2].split()
        line = told(pid, "cmdline")
    except OSError:
        return None
    text = line.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return Process(int(pid), int(fields[1]), fields[0].decode("ascii"), int(fields[19]), text,
                   int(fields[3]))


def everybody():
    """{pid: Process} of all that runs."""
    found = map(look_at, filter(str.isdigit, os.listdir(PROC)))
    return {process.pid: process for process in found if process}


def is_from(folder, process):
    """True if a process was started in a folder, or with a file of it."""
    if folder in process.line:
        return True
    with contextlib.suppress(OSError):
        here = os.readlink("%s/%d/cwd" % (PROC, process.pid))
        return here == folder or here.startswith(folder + os.sep)
    return False


def processes_of(folder):
    """{pid: Process} of all but ourselves that came from a folder, and of their zombies."""
    everything = everybody()
    everything.pop(os.getpid(), None)
    ours = {pid: process for pid, process in everything.items() if is_from(str(folder), process)}
    zombies = {pid: process for pid, process in everything.items()
               if process.state == "Z" and process.parent in ours}
    return {**ours, **zombies}


def family(pids):
    """{pid: Process} of these processes and of whatever they started, directly or not."""
    everything, found, more = everybody(), set(), set(pids)
    while more:
        found |= more
        more = {pid for pid, process in everything.items() if process.parent in found} - found
    return {pid: everything[pid] for pid in found if pid in everything}


def is_worker(process):
    """True for a worker."""
    return bool(process.state != "Z" and re.search(WORKER, process.line) and not is_runner(process)
                and not any(word in process.line for word in INNER))


def is_runner(process):
    """True for the process that runs a worker's functions: a fork of it, or a fresh one."""
    is_fork = re.search("-m worker --(detached|slice)", process.line) and process.session != process.pid
    return bool(process.state != "Z" and (is_fork or re.search(WORKER + " --runner", process.line)))


def workers_among(processes):
    """Those of {pid: Process} that are workers; a worker's child that only looks like it is none yet."""
    workers = {pid: process for pid, process in processes.items() if is_worker(process)}
    return {pid: process for pid, process in workers.items() if process.parent not in workers}


def holds_lock(pid, paths):
    """True if a process keeps others out of one of these files, or we cannot know."""
    with contextlib.suppress(OSError):
        files = {str(os.stat(path).st_ino) for path in paths if os.path.exists(path)}
        lines = [line.split() for line in Path(PROC, "locks").read_text("ascii").splitlines()]
        return any(fields[3:5] == ["WRITE", str(pid)] and fields[5].rpartition(":")[2] in files
                   for fields in lines if len(fields) > 5)
    return True
