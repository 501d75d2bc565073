"""Programs as functions.

The arguments fill their places in the parts of a command, which runs without a shell. Its output is the
task's log. An exit code other than 0 is an error.

Rules: an argument never becomes an option of the program, unless the owner wrote the minus sign or the
argument is a number. A script of the folder schedules never runs twice at once.
"""
from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from pathlib import Path

import jobqueue
from jobqueue import TYPE_CHECKING, Fail, Function, RetryAfter, dump_json

if TYPE_CHECKING:
    from jobqueue import JsonObject, TaskContext

START_AGAIN_SECONDS = 60                # pause if the host refuses to start a task's process


class CommandFailed(Exception):
    """The error of a program that ended with an exit code other than 0."""


def as_word(value: object) -> str:
    """Return a value as programs read it."""
    if value is None or isinstance(value, (str, Path)):
        return str(value or "")
    text = dump_json(value)
    return text[1:-1] if text.startswith('"') else text


def fill_parts(target: list[str], arguments: JsonObject) -> list[str]:
    """Return the words of a command: its parts with the arguments in their places.

    If a part is one place and nothing else, a list becomes a word for each item, and null none. Fail if
    the program could read an argument as an option.
    """
    parts: list[str] = []
    guarded = True
    for part in target:
        names = re.findall(jobqueue.PLACE, part)
        values = [item for value in map(arguments.get, names)
                  for item in (value if isinstance(value, (list, tuple, set)) else [value])]
        if names and part == "{%s}" % names[0] and names[0] in arguments:
            pieces = [as_word(item) for item in values if item is not None]
        else:
            pieces = [re.sub(jobqueue.PLACE, lambda match: as_word(arguments.get(match[1])), part)]
        guarded = guarded and part != "--"
        harmless = part.startswith("-") or all(map(jobqueue.is_number, values))
        for piece in pieces:
            if guarded and piece.startswith("-") and not harmless:
                raise Fail('an argument must not begin with "-": %s' % piece[:100])
        parts += pieces
    return parts


def explain_program(program: str, error: OSError) -> str:
    """Return the reason why a program could not be started, and the remedy if it is known."""
    import shutil
    path = program if "/" in program else shutil.which(program)
    if path is None:
        return "%s was not found; PATH is %s" % (program, os.environ.get("PATH", ""))
    if not os.path.exists(path):
        return "%s was not found in %s" % (os.path.basename(path), os.path.dirname(os.path.abspath(path)))
    if not os.access(path, os.X_OK):
        return "%s may not be run: give it the rights 755" % program
    with contextlib.suppress(OSError), open(path, "rb") as file:
        line = file.readline(200)
        if line.startswith(b"#!") and line.rstrip(b"\n").endswith(b"\r"):
            return "the line ends of %s are those of Windows: save it with those of Unix" % program
        interpreter = os.fsdecode(line[2:].strip().partition(b" ")[0])
        if line.startswith(b"#!") and not os.path.exists(interpreter):
            return "the first line of %s names a program that is not there: %s" % (program, interpreter)
        if error.errno == errno.ENOEXEC:
            return "%s is no program for this machine; a script begins with #! and its interpreter" % program
    return "%s could not be started: %s" % (program, error.strerror)


def run_program(parts: list[str], context: TaskContext) -> dict[str, int]:
    """Run a program to its end; CommandFailed if its exit code is not 0."""
    import subprocess
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, "JOBQUEUE_TASK_ID": str(context.id),
                   "JOBQUEUE_ATTEMPT": str(context.attempt), "JOBQUEUE_CLAIM": context.claim,
                   "JOBQUEUE_FOLDER": str(context.folder)}
    try:
        ended = subprocess.run(parts, stdin=subprocess.DEVNULL, env=environment, check=False)
    except OSError as error:
        if error.errno in jobqueue.SHORTAGES:   # such as a host that allows no more processes
            raise RetryAfter(START_AGAIN_SECONDS,
                             jobqueue.explain_start_error(error, parts[0])) from None
        raise CommandFailed(explain_program(parts[0], error)) from None
    if ended.returncode < 0:
        raise CommandFailed("%s was ended by %s" % (parts[0], jobqueue.name_signal(-ended.returncode)))
    if ended.returncode:
        raise CommandFailed("%s ended with exit code %d" % (parts[0], ended.returncode))
    return {"exit_code": 0}


def run_command(function: Function, arguments: JsonObject, context: TaskContext) -> dict[str, int]:
    """Run a program with the arguments in their places; no shell."""
    return run_program(fill_parts(function.target, arguments), context)


def run_script(function: Function, arguments: JsonObject, context: TaskContext) -> dict[str, int]:
    """Run a script of the schedule folders, never twice at once."""
    import fcntl
    name = arguments["script"]
    if name not in jobqueue.find_scripts():
        raise Fail("schedules/%s is not there any more, or cannot be run any more" % name)
    path = str(jobqueue.SCRIPTS_FOLDER / name)
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fail("schedules/%s is running already" % name) from None
        except OSError:
            pass                        # without flock only the schedule's overlap prevents that
        return run_program([sys.executable, path] if path.endswith(".py") else [path], context)


def run_sample() -> str:
    """Run the sample task of the page This host."""
    print("The worker process %d runs this for %d s." % (os.getpid(), jobqueue.SAMPLE_SECONDS))
    time.sleep(jobqueue.SAMPLE_SECONDS)
    return "A worker lived for %d s." % jobqueue.SAMPLE_SECONDS


BUILT_IN = {
    jobqueue.SCRIPT_FUNCTION: jobqueue.Function(
        jobqueue.SCRIPT_FUNCTION, "script", None, {}, "nobody", {"script": str}),
    jobqueue.SAMPLE_FUNCTION: jobqueue.Function(
        jobqueue.SAMPLE_FUNCTION, "python", run_sample, {}, "nobody", {})}
