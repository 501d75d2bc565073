"""Paths, statuses, limits and times that several rooms share.

A constant that only one room uses stands in that room. Units are in the names.
"""
from __future__ import annotations

import os
from pathlib import Path

VERSION = "1.0.0"
HOME = Path(__file__).resolve().parent
TASKS_FILE = Path(os.path.abspath(HOME / (os.environ.get("JOBQUEUE_TASKS") or "tasks.py")))
WORKER_FILE = HOME / "worker.py"
CODE_FILES = (WORKER_FILE, HOME / "jobqueue.py")
SCRIPTS_FOLDER = TASKS_FILE.parent / "schedules"
STATIC_FOLDER = HOME / "static"

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED, SCHEDULED, WAITING = range(7)
STATUS_WORDS = ("pending", "running", "succeeded", "failed", "cancelled", "scheduled", "waiting")
DELETE = 2                      # task.cancel_requested: 1 asks for a cancel, 2 for a cancel and the removal

LEASE_SECONDS = 60.0            # how long a claim holds without being renewed
RENEW_SECONDS = 10.0
SAMPLES_MAX = 60                # samples of the CPU time and memory of an attempt
SELF_FENCE_SECONDS = 50.0       # time without a renewal after which a worker kills its runner
TICK_SECONDS = 2.0              # time between ticks: a killed worker's task starts again within 5 s
SLICE_SECONDS = 20.0            # longest work in one request of a program: hosts end longer requests

WEB_PATIENCE_SECONDS = 5.0      # longest wait of one request for a busy database, in all
DISK_LOW_BYTES = 100 << 20

BODY_MAX_BYTES = 1 << 20
JSON_MAX_DEPTH, RESULT_MAX_DEPTH = 32, 64
INTEGER_MAX = 2 ** 53

ERRORS_MAX = 20                 # errors that one answer reports at most
PAGE_ROWS = 50
COUNT_MAX = 10_001
PIECE_BYTES = 64 << 10          # most bytes that are read or written at once
CACHE_SECONDS = 1.0

INVITATION, INVITATION_SECONDS = "invitation", 86400.0      # a scope of tokens; how long one can be accepted
CLOCK_SLACK_SECONDS = 60.0
SAMPLE_FUNCTION, SAMPLE_SECONDS = "sample-task", 10.0    # the task that the page This host adds
LOOPBACK = ("127.0.0.1", "::1")
