"""The worker of jobqueue: claims tasks, has its runner run them, records how they ended.

    python3 worker.py                 for cron: work on pending and due tasks for at most 50 s
    python3 worker.py --service       for hosts with always-on processes: never ends by itself
    python3 worker.py --verbose       print each step
    python3 worker.py --server https://site/jobs --token-file F     for a site elsewhere

Adding a task starts workers, so they need not be started by hand. A worker never runs the owner's
code. Its child, the runner, does that, and never touches the database. When the worker dies the
kernel ends the runner. Then their lock file is free, which shows the next tick of any process that both
are dead.
"""
from __future__ import annotations

import jobqueue

# A copy that broke off lacks the last lines of worker.py. refuse_half() looks for them in the last 1,000
# bytes of the file:
#     if __name__ == "__main__":
#         sys.exit(main())
jobqueue.refuse_half(__file__)

VERSION = "1.0.0"                       # version of the jobqueue.py that this file needs
