"""The worker of jobqueue: claims tasks, has its runner run them, records how they ended.

    python3 worker.py                 for cron: work on what is there or due for at most 50 s
    python3 worker.py --service       for hosts with always-on processes: never ends by itself
    python3 worker.py --verbose       say what happens
    python3 worker.py --server https://site/jobs --token-file F     for a site elsewhere

Workers are started by adding a task; nobody needs to start one by hand. A worker never runs
the owner's code: its child, the runner, does, and the runner never touches the database. When
the worker dies the kernel ends the runner, and whoever ticks next sees both dead by their lock.
"""
from __future__ import annotations

import jobqueue

# A copy that broke off lacks the last lines of worker.py:
#     if __name__ == "__main__":
#         sys.exit(main())
# They are looked for in the last 1,000 bytes.
jobqueue.refuse_half(__file__)

VERSION = "1.0.0"                       # of the jobqueue.py that this belongs to
