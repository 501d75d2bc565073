"""Django projects in folders, for the tools that measure and drill Django's tasks.

    make_project(folder, tasks=TEXT, settings=TEXT)     a project with the app `blog`
    add_jobqueue(folder, python)                        jobqueue beside its manage.py, with an admin
    environment()                                       what its processes get
"""
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("jobqueue.py", "worker.py", "static")
PASSWORD = "a password that nobody needs"

MANAGE_TEXT = '''\
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
'''

# As Django's page about SQLite has it for sites with several processes. A connection may stay open.
SETTINGS_TEXT = '''\
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "of a project that lives for a minute"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["blog"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": BASE_DIR / "db.sqlite3",
    "CONN_MAX_AGE": None,
    "OPTIONS": {"timeout": 20},
}}
if django.VERSION >= (5, 1):
    DATABASES["default"]["OPTIONS"].update(
        transaction_mode="IMMEDIATE", init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
'''
OURS_TEXT = '''\
TASKS = {"default": {"BACKEND": "jobqueue.DjangoBackend"}}
'''


def environment():
    """Return the environment of a project's processes: ours, without what would lead elsewhere."""
    return {**{name: value for name, value in os.environ.items()
               if not name.startswith(("JOBQUEUE_", "PYTHON", "DJANGO_"))},
            "DJANGO_SETTINGS_MODULE": "mysite.settings"}


def run(folder, *command, given=None):
    """Run a program in a project; return what it printed. RuntimeError if it failed."""
    done = subprocess.run([str(word) for word in command], cwd=folder, env=environment(), input=given,
                          stdin=None if given else subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        raise RuntimeError("%s failed:\n%s%s" % (" ".join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


def make_project(folder, tasks, settings=OURS_TEXT, models=""):
    """Make a project in a folder: its settings, and an app with these tasks and models."""
    texts = {"manage.py": MANAGE_TEXT, "mysite/__init__.py": "",
             "mysite/settings.py": SETTINGS_TEXT + settings, "blog/__init__.py": "",
             "blog/models.py": models, "blog/tasks.py": tasks, "blog/migrations/__init__.py": ""}
    for name, text in texts.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def add_jobqueue(folder, python, **settings):
    """Copy jobqueue beside manage.py, make its first admin, and change its settings."""
    for name in COPIED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, Path(folder, name))
    run(folder, python, "jobqueue.py", "user", "add", "admin", "--admin", given=PASSWORD + "\n")
    for name, value in settings.items():
        run(folder, python, "jobqueue.py", "settings", name, value)


def queue_file(folder):
    """Return the path of jobqueue's database in a project."""
    return next(Path(folder, "data").glob("jobqueue-*.db"))
