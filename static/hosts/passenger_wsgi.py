# Start file for Passenger (cPanel, DirectAdmin: "Setup Python App"). Copy it beside jobqueue.py.
import os
import sys

FOLDER = ""                             # where jobqueue.py is; empty: beside this file


def find_folder():
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in (FOLDER or here, os.path.dirname(os.path.dirname(here))):
        if os.path.isfile(os.path.join(folder, "jobqueue.py")):
            return folder
    raise SystemExit("there is no jobqueue.py: write its folder into FOLDER of the start file")


def find_application():
    if sys.version_info < (3, 9):
        raise SystemExit("it needs Python 3.9 or newer; this is Python %d.%d" % sys.version_info[:2])
    if "jobqueue" not in sys.modules:
        sys.path.insert(0, find_folder())
    from jobqueue import application
    return application


def application(environ, start_response):
    try:
        return find_application()(environ, start_response)
    except (Exception, SystemExit) as error:
        import traceback
        traceback.print_exc()
        words = isinstance(error, (SyntaxError, SystemExit)) and error or type(error).__name__
    start_response("500 Internal Server Error",
                   [("Content-Type", "text/plain"), ("Cache-Control", "no-store")])
    return [("jobqueue cannot start: %s.\n" % words).encode("ascii", "replace")]
