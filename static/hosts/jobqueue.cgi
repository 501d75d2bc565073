#!/usr/bin/env python3
# Start file for CGI. Copy it beside jobqueue.py and make it executable (mode 755). If env does not
# find a Python 3.9 or newer, write its path into the first line, such as #!/usr/bin/python3.11
import os
import sys

FOLDER = ""                             # where jobqueue.py is; empty: beside this file


def find_folder():
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in (FOLDER or here, os.path.dirname(os.path.dirname(here))):
        if os.path.isfile(os.path.join(folder, "jobqueue.py")):
            return folder
    raise SystemExit("there is no jobqueue.py; write its folder into FOLDER of the start file")


try:
    if sys.version_info < (3, 9):
        raise SystemExit("it needs Python 3.9 or newer; this is Python %d.%d" % sys.version_info[:2])
    sys.path.insert(0, find_folder())
    from jobqueue import run_cgi
    run_cgi()
except (Exception, SystemExit) as error:
    import traceback
    traceback.print_exc()
    words = str(error)
    if not words or "/" in words:
        words = type(error).__name__
    print("Status: 500 Internal Server Error\nContent-Type: text/plain\nCache-Control: no-store\n")
    print("jobqueue cannot start: %s. More is in the web server's error log." % words)
