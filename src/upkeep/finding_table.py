"""FINDINGS: each thing that can be wrong here, or is worth knowing.

A row has the texts of a finding for all places that report it. These are `check`, the page This host, the
sentence above task lists, and alerts. A row with an alert title can open an alert, under the same code.
"""
from __future__ import annotations

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.time_and_text import iso
from .worker_modes import MODE_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Union

if TYPE_CHECKING:
    Findings = Iterator["Finding"]
    Lines = Iterator[Union[str, "Finding"]]

READ_ALL_BYTES = 16 << 20       # size of the largest database that is checked while a browser waits
BACKUPS = "backups"             # folder of the daily backups, in the data folder
BAD, NOTE, FINE = "bad", "note", "ok"         # in alphabetical order the worst comes first


class FindingRow(NamedTuple):
    """A row of FINDINGS. The texts are templates, filled with the values of a Finding."""

    topic: str                          # heading in `check`; empty: `check` does not show it
    verdict: str
    text: str = ""                      # the fault
    remedy: str = ""                    # the advice
    service_code: str = ""              # code of the service's state, for every user
    service_text: str = ""              # sentence above task lists
    alert: str = ""                     # title of the alert; empty: it opens none
    causes: str = ""                    # codes of the alerts that explain this one and silence it
    page: str = "#/settings/host"       # place of the page that shows more of the alert; a template


_ROWS: dict[str, tuple[str, ...]] = {
    "unknown": ("", BAD, "{why}"),
    "files_mixed": ("Program", BAD, "missing, or of another version: {names}",
                    "copy all files of one version"),
    "scrypt_missing": ("Program", BAD, "{why}"),
    "program_open": ("Program", BAD, "every user of this machine can change the program",
                     "let only the owner write (755 for folders, 644 for files): chmod o-w {paths}"),
    "program_of_other": ("Program", NOTE, "the program's files belong to {owner}, but it runs as {user}: "
                         "run cron jobs and commands as {user}, too; other sites that run as {user} can "
                         "change jobqueue's data"),
    "data_none": ("Data", NOTE, "there is none yet; it is made when the page is opened first"),
    "data_open": ("Data", BAD, "other users can read it", "chmod 700 '{folder}'; if that changes "
                  "nothing, move the folder to another disk"),
    "address_open": ("Data", BAD, "other users can read the database's password",
                     "chmod 600 {path}"),
    "data_gone": ("Data", BAD, "it is gone or cannot be read", "",
                  "storage", "The data folder is gone or cannot be read."),
    "data_closed": ("Disk", BAD, "nothing can be written to {folder} ({why})", "if the disk or your quota "
                    "is full, remove files; else check its owner and rights"),
    "database_closed": ("Disk", BAD, "the database cannot be written",
                        "give the owner the right to write (600): chmod u+w {paths}"),
    "locks_missing": ("Disk", NOTE, "this disk has no file locks (flock): tasks of a killed worker "
                      "begin again only some minutes later"),
    "disk": ("Disk", BAD, "only {free} MB are left", "remove files: otherwise it will soon be impossible "
             "to add tasks",
             "", "", "the disk is nearly full"),
    "disk_full": ("Disk", BAD, "", "remove files: the disk is full",
                  "storage", "The disk is full: nothing can be added or recorded."),
    "old_password": ("Admin", BAD, "the password of {name} was kept without scrypt: set it anew"),
    "no_admin": ("Admin", NOTE, "none yet",
                 "open the page and make the first admin, with the code in {file}"),
    "code_left": ("Admin", NOTE, "a setup-code file is left: its code can give an admin a new password",
                  "delete {files}"),
    "exposed": ("Exposure", BAD, "the web server delivers private files: {addresses}", "put .htaccess "
                "there, or move all files out of the web site: the handbook (Hosts) shows how"),
    "htaccess_missing": ("Exposure", BAD, "the data folder has no .htaccess: a browser that guesses the "
                         "name of a file can fetch it", "move the folder data out of the web site; in its "
                         "place make a text file named data with the folder's new path"),
    "unlooked": ("Exposure", NOTE, "", "log in as an admin and open the page This host: it tests whether a "
                 "browser can fetch private files"),
    "door_shared": ("Web server", NOTE, "other sites of this machine can read the data",
                    "copy the line WSGIDaemonProcess of static/hosts/apache.conf, with your account "
                    "after user="),
    "http_open": ("Web server", NOTE, "by HTTP, passwords can be read on the way",
                  "open the page by https://: nearly every host offers it"),
    "proxy_unknown": ("Web server", NOTE, "visitors come through a proxy, {client}; its headers about them "
                      "and about HTTPS are ignored: if it belongs to your host, write {client} into the "
                      "setting trusted_proxies; if only HTTPS is not noticed, set https to always"),
    "slices_awaited": ("", NOTE, "", "", "cron_wait", MODE_WORDS["slice"] + "."),
    "no_worker": ("", BAD, "tasks wait, and {why}", "", "", "", "no worker starts", "disk"),
    "service_missing": ("Workers", BAD, "No service runs",
                        "let the host keep worker.py --service running", "no_worker",
                        "No task starts: worker.py --service is not running."),
    "cron_missing": ("Workers", BAD, "No cron comes", "add a line for cron in your host's panel: the page "
                     "This host shows it",
                     "cron_wait", "Waiting for cron, which has not come lately."),
    "cron_awaited": ("", NOTE, "", "",
                     "cron_wait", "Waiting for cron{often}; it came last at {at}."),
    "off": ("Workers", NOTE, "no task is run", "set NbMaxWorker to 1 or more: it is 0",
            "off", "No task starts: the number of workers is set to 0."),
    "start_failed": ("Workers", BAD, "{why} at {at}", "",
                     "no_worker", "No task starts: {why}. Next try {next}."),
    "busy": ("", NOTE, "", "", "busy", "All workers are busy{more}."),
    "starting": ("", NOTE, "", "", "starting", "A worker is being started."),
    "paused": ("", NOTE, "", "", "paused", "{words}"),
    "sample_failed": ("Worker", NOTE, "the sample task {id} failed",
                      "open its page for the reason"),
    "versions_differ": ("Machines", NOTE, "here is jobqueue {version}, but {names}",
                        "copy the same files to all machines"),
    "clock_differs": ("Machines", NOTE, "the clock here is {seconds:.0f} s {way} the database's clock, "
                      "which jobqueue uses", "set the time of this machine by NTP"),
    "nobody_comes": ("Cron", NOTE, "due tasks and schedules wait until a page is opened",
                     "add a line for cron in your host's panel, or let cron call the tick address: the "
                     "page This host shows both"),
    "log": ("Journal", BAD, "the database's log has grown to {size} MB, because a program keeps reading "
            "the database: end that program (the command fuser '{path}' prints its number)", "", "storage",
            "The database's log has grown to {size} MB, because a program keeps reading the database.",
            "the database's log is long", "disk"),
    "damaged": ("Database", BAD, "{name} is damaged: {why}",
                "stop everything, then run python3 jobqueue.py restore FILE with a backup"),
    "backup_none": ("Backup", NOTE, "", "download one from the page This host, set backup_hour for "
                    "one every day, or run python3 jobqueue.py {command} FILE"),
    "backup": ("Backup", NOTE, "the last one was made {days} days ago", "download one from the page "
               "This host, set backup_hour for one every day, or run python3 jobqueue.py {command} FILE",
               "", "", "the backup is old"),
    "backup_failed": ("Backup", BAD, "the daily one failed: {why}", "make room on the disk",
                      "", "", "the daily backup failed", "disk"),
    "copy_lags": (
        "Journal", NOTE, "the server does not wait until its replica has a change: if the replica must take "
        "over, the newest changes may be lost",
        "let the admin of PostgreSQL name the replica in synchronous_standby_names"),
    "snapshot_old": (
        "Journal", NOTE, "{holder} of the server has kept old rows from being removed for more than "
        "10 minutes: tasks start more slowly",
        "let the admin of PostgreSQL end that session or drop that slot"),
    "no_function": ("Functions", NOTE, "{file} declares no function yet: README shows how"),
    "tasks_differ": ("Functions", NOTE,
                     "programs used different files as their tasks.py within the last hour: {places}",
                     "set the environment variable JOBQUEUE_TASKS to the same path for the web server, for "
                     "cron and in shells"),
    "hint_unclear": ("Functions", NOTE, "unknown types: {names}; their values are not converted, and the "
                     "form sends texts",
                     "use a type that the handbook lists (Functions), or leave out the type hint"),
    "samples": ("Functions", FINE, "", "write the functions of your tasks into tasks.py"),
    "code": ("Functions", BAD, "{file} cannot be read: {why}", "", "code_error",
             "Nothing new starts: tasks.py cannot be read: {why}.", "tasks.py is broken"),
    "problem": ("Schedules", BAD, "{name}: {why}", "", "", "",
                "a schedule cannot add its task", "code", "#/schedules/{subject}"),
    "schedule_warning": ("Schedules", NOTE, "{name}: {why}"),
    "missed": ("", NOTE, "{name}: the run added at {at} was late, or replaced several missed runs",
               "", "", "",
               "a schedule was missed", "disk,no_worker", "#/schedules/{subject}"),
    "held_up": ("", NOTE, "{name}: {why}", "", "", "",
                "a schedule waits long", "disk,code,no_worker", "#/schedules/{subject}"),
    "task_lost": ("Tasks", BAD, "the worker of task {id} has given no sign of life for {seconds:.0f} s, "
                  "and no other worker takes the task over", "open the page or run python3 jobqueue.py tick"),
    "waiting": ("Tasks", NOTE, "the oldest task that could start has waited {minutes} min", "", "", "",
                "tasks wait long", "disk,code,no_worker", "#/tasks?status=pending"),
    "failed": ("", NOTE, "{why} (task {id})", "", "", "", "failed"),
    "clock_back": ("Tasks", BAD, "the clock is {seconds:.0f} s behind the newest event that jobqueue "
                   "recorded: it was set back, or was wrong before",
                   "correct the clock; if it shows the right time already, this ends at {at}"),
    "channel_fails": ("Alerts", BAD, "{channel} to {recipient} failed: {error}",
                      "fix this, then send a test alert: python3 jobqueue.py alert test"),
    "links_missing": ("Alerts", NOTE, "messages have no links, because page_address is not set",
                      "set page_address to the address of this page, such as https://example.org/jq"),
    "outbox_waits": ("Alerts", BAD, "messages have waited for over {minutes} min: the process that sends "
                     "them does not start")}
FINDINGS = {code: FindingRow(*row) for code, row in _ROWS.items()}
HIDDEN = {"why": "an admin sees why", "more": ""}


class Finding:
    """A row of FINDINGS that is true here, with its texts filled in.

    `subject` tells findings of the same code apart, such as two schedules. `since` is when the finding
    began. If `is_for_everyone` is False, the finding is no part of the service's state.
    """

    def __init__(self, code: str, since: float | None = None, is_for_everyone: bool = True,
                 subject: str = "", **values: object) -> None:
        row = FINDINGS[code]
        self.code, self.subject, self.since = code, subject, since
        self.topic, self.verdict = row.topic, row.verdict
        self.text, self.remedy = row.text.format(**values), row.remedy.format(**values)
        # The last words of a worker may contain paths, servers and passwords.
        self.service_code = row.service_code if is_for_everyone else ""
        self.service_text = row.service_text.format(**values)
        self.service_text_for_users = row.service_text.format(**{**values, **HIDDEN})

    def __str__(self) -> str:
        """Return the text and the remedy in one line."""
        return ": ".join(filter(None, (self.text, self.remedy)))


def readable_time(moment: float) -> str:
    """Return a moment for people, without fractions of a second."""
    return iso(moment)[:19].replace("T", " ") + " UTC"
