# Start file for Passenger (cPanel, DirectAdmin: "Setup Python App"). Copy it beside jobqueue.py.
import os
import sys

FOLDER = ""                             # where jobqueue.py is; empty: beside this file
prepared = []


def find_folder():
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in (FOLDER or here, os.path.dirname(os.path.dirname(here))):
        if os.path.isfile(os.path.join(folder, "jobqueue.py")):
            return folder
    raise SystemExit("there is no jobqueue.py; write its folder into FOLDER of the start file")


def prepare():
    if sys.version_info < (3, 9):
        raise SystemExit("it needs Python 3.9 or newer; this is Python %d.%d" % sys.version_info[:2])
    folder = find_folder()
    sys.path.insert(0, folder)
    import jobqueue
    if not os.path.samefile(os.path.dirname(jobqueue.__file__), folder):
        raise SystemExit("another jobqueue runs in this process; each needs processes of its own")
    return True


def application(environ, start_response):
    try:
        if not prepared:
            prepared.append(prepare())
        import jobqueue
        return jobqueue.application(environ, start_response)
    except (Exception, SystemExit) as error:
        import traceback
        traceback.print_exc()
        words = str(error)
        if not words or "/" in words:
            words = type(error).__name__
    start_response("500 Internal Server Error",
                   [("Content-Type", "text/plain"), ("Cache-Control", "no-store")])
    words = "jobqueue cannot start: %s. More is in the web server's error log.\n" % words
    return [words.encode("ascii", "replace")]
