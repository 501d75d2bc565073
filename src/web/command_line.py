"""COMMANDS and python3 jobqueue.py COMMAND.

A command is a row of COMMANDS: its function and its arguments. Nearly all commands ask the API of this
host's queue or of another site. They print its answer as JSON with --json, else as text. So they have the
checks and errors of the handlers, and options and help from the same schemas. The function gets a Client, the
JobQueue or None, and the options. `options.given` has the command's own arguments. The function returns the
exit code, if that is not 0.
"""
from __future__ import annotations

import contextlib
import functools
import math
import os
import sys

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import PAGE_ROWS, VERSION
from ..base.errors import JobQueueError, SetupError, complain
from ..base.schedule_rules import RULE_HINT
from ..base.values import OPTION_SCHEMAS, TEXT, about, integer_within
from ..base.options import become_private, data_folder
from ..tasks.queues import QUEUE_LIMITS
from ..upkeep.schedule_rows import SCHEDULE_FIELDS
from ..access.people import CHANGED_USER, NEW_INVITATION, NEW_TOKEN
from ..access.requests import REQUEST_SCHEMA
from ..access.python_interface import JobQueue
from .handlers_tasks import WHICH_TASKS
from .handlers_site import PREVIEW, WHICH_FIGURES
from .servers import run_cgi
from .serve import cmd_serve
from .clients import HttpClient, Client, LocalClient
from .command_rows import (PLACES, POSITIVE, SWITCH, Command, argument, arguments, asks, lists,
                           parse_rate, schedule_text, task_text)
from .commands_tasks import (ACTION_ROUTES, cmd_act, cmd_add, cmd_files, cmd_help_of, cmd_log,
                             cmd_wait)
from .commands_site import (cmd_add_schedule, cmd_add_token, cmd_backup, cmd_check, cmd_export,
                            cmd_import, cmd_invite, cmd_preview, cmd_restore, cmd_set_queue, cmd_settings,
                            cmd_stats, cmd_test_alerts, cmd_tick, read_password)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from .command_rows import Argument, Run

TASK, SCHEDULE = "/api/tasks/{id}", "/api/schedules/{id}"
QUEUE, ACCOUNT = "/api/queues/{name}", "/api/users/{name}"
OWNER: Argument = ("--owner", {"metavar": "USER"})
WHY = argument("--why", SCHEDULE_FIELDS["paused_why"], dest="paused_why", metavar="TEXT")
LIMIT = argument("--limit", integer_within(1, 1000), default=PAGE_ROWS, metavar="N")
ZONE = argument("--tz", SCHEDULE_FIELDS["zone"], dest="zone", metavar="ZONE")
FILTERS = arguments(WHICH_TASKS, "status", "function", "queue", "owner", "since", "until") + [
    argument("--search", WHICH_TASKS["q"], dest="q", metavar="TEXT")]
# COMMON are options of all commands, ABOUT_SITES those of commands that ask the API.
COMMON: list[Argument] = [
    ("--data", {"metavar": "DIR", "help": "data folder (default: data beside jobqueue.py)"}),
    ("--json", {"action": "store_true", "help": "print JSON: what the API answers"})]
ABOUT_SITES: list[Argument] = [
    ("--server", {"metavar": "URL", "help": "ask another site, such as https://example.org/jobs"}),
    ("--token-file", {"metavar": "FILE", "help": "with --server: a file that holds an API token of it"})]

# Commands of one or two words, each with its row. The functions of commands in LOCAL get this host's queue,
# or None if they are also in WITHOUT_QUEUE. The other functions get a Client.
COMMANDS: dict[str, Command] = {
    "serve": Command(cmd_serve, [
        ("--host", {"default": "127.0.0.1", "help": "address to listen on (127.0.0.1)"}),
        argument("--port", integer_within(0, 65535), default=8000, help="port to listen on (8000)")]),
    "add": Command(cmd_add, [
        ("function", {"metavar": "FUNCTION", "help": "see the command functions"}),
        ("words", {"metavar": "name=value", "nargs": "*", "default": ()}),
        *arguments(REQUEST_SCHEMA["properties"], *list(REQUEST_SCHEMA["properties"])[2:]),
        ("--each", {"metavar": "FILE.csv", "help": "a task for each row; the first row names the "
                                                   "parameters; - is standard input"})]),
    "functions": lists("functions", "name parameters title"),
    "list": lists("tasks", "id status owner function summary", *FILTERS, "--sort", LIMIT,
                  ("--csv", {"dest": "format", "action": "store_const", "const": "csv",
                             "help": "all matching tasks as CSV, without a limit"}),
                  words="List tasks, newest first."),
    "show": asks("GET", TASK, text=task_text),
    "wait": Command(cmd_wait, [PLACES["id"], argument(
        "--timeout", {"type": "number", "minimum": 0}, default=math.inf, metavar="SECONDS")]),
    "log": Command(cmd_log, [PLACES["id"], argument("--attempt", POSITIVE, metavar="N")]),
    "files": Command(cmd_files, [PLACES["id"], ("--save", {"metavar": "DIR", "help": "where to"})]),
    **dict.fromkeys(ACTION_ROUTES, Command(cmd_act, [
        argument("ids", POSITIVE, nargs="*", default=(), metavar="ID"), *FILTERS,
        argument("--all", about(SWITCH, "all tasks")),
        argument("--yes", about(SWITCH, "change them, instead of printing how many match"))])),
    "settings": Command(cmd_settings, [("name", {"nargs": "?", "default": None}),
                                       ("value", {"nargs": "?", "default": None})]),
    "user list": lists("users", "name role disabled max_pending max_running last_seen_at"),
    "user add": asks("POST", "/api/users", PLACES["name"], "--role",
                     ("--admin", {"dest": "role", "action": "store_const", "const": "admin"}),
                     words="Make a user; the password is asked for, or read from standard input.",
                     password=read_password),
    "user invite": Command(cmd_invite, arguments(NEW_INVITATION["properties"], "role")),
    "user set": asks("PATCH", ACCOUNT, "--role", argument(
        "--max-running", CHANGED_USER["properties"]["max_running"], null="none", metavar="N|none"),
                     argument("--email", CHANGED_USER["properties"]["email"], null="none",
                              metavar="ADDRESS|none"),
                     words="Change a user's rights and mail address."),
    "user logout": asks("DELETE", ACCOUNT + "/sessions"),
    "user disable": asks("PATCH", ACCOUNT, disabled=True, words="Lock out a user and all their tokens."),
    "user enable": asks("PATCH", ACCOUNT, disabled=False, words="Let a user in again."),
    "user delete": asks("DELETE", ACCOUNT),
    "user password": asks(
        "PATCH", ACCOUNT, password=read_password,
        words="Change a password, which is asked for, or read from standard input."),
    "user quota": asks("PATCH", ACCOUNT, argument(
        "max_pending", CHANGED_USER["properties"]["max_pending"], null="none", metavar="N|none"),
                       words="Set how many tasks of a user may be pending."),
    "token list": lists("tokens", "id owner name scope last_used_at", OWNER),
    "token add": Command(cmd_add_token, [
        PLACES["name"], OWNER,
        argument("--scope", NEW_TOKEN["properties"]["scope"],
                 help="its scope: all rights of USER, only to read, only to call /tick, only to work, or "
                      "only to read /metrics"),
        *arguments(NEW_TOKEN["properties"], "queues", "functions"),
        ("--file", {"metavar": "FILE", "help": "write it to this file, which only you can read"})]),
    "token delete": asks("DELETE", "/api/tokens/{id}"),
    "schedule list": lists("schedules", "id name owner function summary words next_at problem"),
    "schedule add": Command(cmd_add_schedule, [
        ("words", {"nargs": "*", "default": (), "metavar": "FUNCTION RULE name=value ...",
                   "help": "a rule is " + RULE_HINT.replace("%", "%%")}),
        ZONE, *arguments(SCHEDULE_FIELDS, "name", "catch_up", "overlap"), OWNER,
        *arguments(OPTION_SCHEMAS, *OPTION_SCHEMAS)]),
    "schedule show": asks("GET", SCHEDULE, text=schedule_text),
    "schedule preview": Command(cmd_preview, [
        ("words", {"nargs": "*", "default": (), "metavar": "RULE"}), ZONE,
        *arguments(PREVIEW["properties"], "from", "count")]),
    "schedule pause": asks("PATCH", SCHEDULE, WHY, paused=True,
                           words="Let a schedule add nothing until it is resumed."),
    "schedule resume": asks("PATCH", SCHEDULE, paused=False, words="Let a schedule go on."),
    "schedule run": asks("POST", SCHEDULE + "/run", text=lambda task: str(task["id"])),
    "schedule delete": asks("DELETE", SCHEDULE),
    "queue list": lists("queues", "name pending running max_running rate machines problem"),
    "queue set": Command(cmd_set_queue, [
        PLACES["name"],
        argument("--max-running", QUEUE_LIMITS["max_running"], null="none", metavar="N|none"),
        argument("--rate", QUEUE_LIMITS["rate"], null="none", parse=parse_rate,
                 metavar="N/SECONDS|none"),
        argument("--machines", QUEUE_LIMITS["machines"], null="any", metavar="NAME[,NAME]|any")]),
    "queue pause": asks("PATCH", QUEUE, WHY, paused=True,
                        words="Start none of a queue's tasks until it is resumed."),
    "queue resume": asks("PATCH", QUEUE, paused=False, words="Let a queue go on."),
    "queue delete": asks("DELETE", QUEUE),
    "activity": lists("activity", "at event task function owner actor message", "--since",
                      "--until", "--event", "--task", "--worker", "--function", "--owner", LIMIT),
    "alert list": lists("alerts", "id opened_at ended_at told title text"),
    "alert mute": asks("POST", "/api/alerts/{id}/mute", "how"),
    "alert test": Command(cmd_test_alerts, []),
    "workers": lists("workers", "id machine pid state mode tasks task function"),
    "stats": Command(cmd_stats, [
        argument("--since", about(TEXT, "such as 12h, 7d or 4w ago, or a time"), metavar="TIME"),
        *arguments(WHICH_FIGURES["properties"], "step", "function", "queue")]),
    "tick": Command(cmd_tick, []),
    "backup": Command(cmd_backup, [("file", {"metavar": "FILE"})]),
    "restore": Command(cmd_restore, [("file", {"metavar": "FILE"}), argument(
        "--force", about(SWITCH, "even while a server or workers run here"))]),
    "export": Command(cmd_export, [("file", {"metavar": "FILE", "help": "- is standard output"})]),
    "import": Command(cmd_import, [("file", {"metavar": "FILE", "help": "- is standard input"})]),
    "check": Command(cmd_check, [
        ("--repair", {"nargs": "?", "const": "alone", "choices": ["alone", "shared"],
                      "help": "with everything stopped: choose the journal mode for this file "
                              "system, or for several machines (shared)"}),
        argument("--quick", about(SWITCH, "no effect; older versions tested a worker")),
        argument("--files", about(SWITCH, "print the lines for cron and web servers"))])}
WITHOUT_QUEUE = ("check", "restore", "schedule preview")
LOCAL = ("serve", "tick", "backup", "export", "import", *WITHOUT_QUEUE)
# Commands that do not create the data folder: if it is missing, its path was mistyped.
NEED_DATA_FOLDER = "list show files stats wait log activity cancel retry delete backup export".split()


def terminal_width() -> int:
    """Return the terminal's width in characters, or 80 without one. Importing shutil would take long."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size().columns or 80
    return 80


def command_parser(words: list[str]) -> ArgumentParser:
    """Return the parser of all commands. Only the command in `words` gets its arguments.

    Adding the arguments of all commands would take longer than most commands.
    """
    import argparse
    shape = functools.partial(argparse.HelpFormatter, width=terminal_width() - 2)
    parser = argparse.ArgumentParser(
        prog="jobqueue.py", description="Background jobs for a web site on a cheap shared host. "
                                        "Without a command it serves the page.",
        epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 the awaited task failed, 4 not found, "
               "5 refused, 75 busy, 124 wait timed out, 141 the reader closed the pipe early.",
        formatter_class=shape)
    parser.add_argument("--version", action="version", version="jobqueue " + VERSION)
    parser.set_defaults(data=None, json=False, server=None, token_file=None)
    groups = {"": parser.add_subparsers(dest="command", metavar="[COMMAND]")}
    for name, (run, rows) in COMMANDS.items():
        group, _, action = name.rpartition(" ")
        if group not in groups:
            actions = [words.split()[1] for words in COMMANDS if words.startswith(group + " ")]
            line = "%ss: %s." % (group.capitalize(), ", ".join(actions))
            groups[group] = groups[""].add_parser(
                group, help=line, description=line, formatter_class=shape).add_subparsers(
                    dest="action", metavar="ACTION", required=True)
        line = (run.__doc__ or "").partition("\n")[0]
        sub = groups[group].add_parser(action, help=line, description=line, allow_abbrev=False,
                                       argument_default=argparse.SUPPRESS, formatter_class=shape)
        if name.split() != words[:name.count(" ") + 1]:
            continue
        for flag, details in (*COMMON, *(ABOUT_SITES if name not in LOCAL else ())):
            sub.add_argument(flag, **details)
        fields = [sub.add_argument(flag, **details).dest for flag, details in rows]
        sub.set_defaults(name_of_command=name, run=run, fields=fields)
    return parser


class ParsedCommand(NamedTuple):
    """A parsed command line: its options and its function."""

    options: Namespace
    run: Run


def parse_command(words: list[str]) -> ParsedCommand:
    """Parse a command line. Words such as name=value may also follow --options."""
    parser = command_parser(words)
    helpless = [word for word in words if word not in ("-h", "--help")]
    wants_help = words[:1] == ["add"] and 1 < len(helpless) < len(words)
    options, rest = parser.parse_known_args(helpless if wants_help else words)
    if rest and ("words" not in options or any(word.startswith("-") for word in rest)):
        parser.error("unrecognized arguments: " + " ".join(rest))
    if rest:
        options.words = [*options.words, *rest]
    options.given = {name: vars(options)[name] for name in options.fields if name in options}
    return ParsedCommand(options, cmd_help_of if wants_help else options.run)


def _target(options: Namespace) -> JobQueue | Client | None:
    """Return this host's queue for a command, a Client of its API or of another site's API, or None."""
    name = options.name_of_command
    if name in WITHOUT_QUEUE:
        return None
    if options.server:
        return HttpClient(options.server, options.token_file)
    if name in NEED_DATA_FOLDER and not os.path.lexists(data_folder(options.data)):
        raise SetupError("There is no data folder %s." % data_folder(options.data))
    queue = JobQueue(options.data)
    return queue if name in LOCAL else LocalClient(queue)


def main(words: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:      # the parent process has closed it
            setattr(sys, name, open(os.devnull, mode))
    words = sys.argv[1:] if words is None else words
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words = ["serve", *words]
    options, run = parse_command(words)
    become_private()
    try:
        return run(_target(options), options) or 0
    except JobQueueError as error:
        complain(error.detail)
        return error.exit_code
    except (OSError, ValueError, OverflowError) as error:
        complain("%s: %s" % (type(error).__name__, error))
        return 1
    except KeyboardInterrupt:
        return 130


def _start() -> int:
    """Run one command, or answer a CGI request. Its arguments come from the query and are ignored."""
    if "GATEWAY_INTERFACE" not in os.environ:
        return main()
    script = os.environ.get("SCRIPT_FILENAME", "")
    if os.path.isfile(script) and not os.path.basename(script).startswith("jobqueue"):
        # Another CGI script of the site (PHP, Perl) may run this: its query must not be read as ours.
        complain("to run a command from a CGI script of your own, take GATEWAY_INTERFACE out of its "
                 "environment: env -u GATEWAY_INTERFACE python3 jobqueue.py ...")
        print("Status: 500 Internal Server Error\nContent-Type: text/plain\n\n"
              "See the web server's log.")
        return 2
    run_cgi()
    return 0


if __name__ == "__main__":
    sys.exit(_start())
