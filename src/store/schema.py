"""The tables, and how an older database becomes a newer one.

Times are UTC seconds since 1970. SQL is the subset of SQLite 3.15. Ids are never used again
(AUTOINCREMENT), so an old id never names another row. `activity` and `log` do without AUTOINCREMENT, because
it costs a page in every commit. An index with the status of a task costs as much, because each change of
status moves an entry. So only two indexes have the status.
"""
from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ..base.errors import SetupError
from .connection import Connection

SCHEMA_VERSION = 9              # version of SCHEMA; SQLite stores it in PRAGMA user_version

SCHEMA = """
CREATE TABLE IF NOT EXISTS user (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE UNIQUE,
    password TEXT NOT NULL,             -- method$parameters$salt$hash
    role TEXT NOT NULL,                 -- one of ROLES
    disabled INTEGER NOT NULL DEFAULT 0,
    max_pending INTEGER,                -- NULL: the setting of this name
    max_running INTEGER,                -- NULL: no limit
    email TEXT,                         -- confirmed, or given by an admin
    created_at REAL NOT NULL, last_seen_at REAL,
    summary TEXT,                       -- JSON {"hour", "zone"}; NULL: no summary by mail
    summary_at REAL                     -- when the next summary is due
);
CREATE TABLE IF NOT EXISTS saved (          -- filters and values of forms that a user saved by name
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES user(id),
    page TEXT NOT NULL,                 -- tasks, or new/FUNCTION
    name TEXT NOT NULL,
    value TEXT NOT NULL,                -- JSON object
    UNIQUE (user_id, page, name)
);
CREATE TABLE IF NOT EXISTS session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the cookie
    user_id INTEGER NOT NULL REFERENCES user(id),
    address TEXT,                       -- where it began
    created_at REAL NOT NULL, seen_at REAL NOT NULL, expires_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS token (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the token
    user_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT NOT NULL,
    scope TEXT NOT NULL,                -- one of TOKEN_SCOPES
    created_at REAL NOT NULL, last_used_at REAL,
    limits TEXT                         -- of scope worker: JSON {"queues", "functions"}
);
CREATE TABLE IF NOT EXISTS throttle (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL UNIQUE,       -- user:NAME, address:IP, known:ID address:IP or password:ID
    failures INTEGER NOT NULL, failed_at REAL NOT NULL, until REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS known_address (  -- where a user logged in from lately
    user_id INTEGER NOT NULL REFERENCES user(id),
    address TEXT NOT NULL,              -- as in throttle
    until REAL NOT NULL,
    PRIMARY KEY (user_id, address)
);
CREATE TABLE IF NOT EXISTS setting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,          -- of SETTINGS
    value TEXT NOT NULL                 -- JSON
);
CREATE TABLE IF NOT EXISTS state (      -- values that the program itself keeps
    name TEXT PRIMARY KEY NOT NULL,     -- of STATE
    value TEXT NOT NULL                 -- JSON
);
CREATE TABLE IF NOT EXISTS function (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE, title TEXT NOT NULL, description TEXT NOT NULL,
    schema TEXT NOT NULL,               -- JSON Schema 2020-12 of the arguments
    options TEXT NOT NULL,              -- JSON, see TASK_OPTIONS
    who TEXT NOT NULL                   -- user, admin or nobody
);
CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0, paused_by TEXT, paused_at REAL, paused_why TEXT,
    max_running INTEGER,                -- NULL: no limit
    rate_count INTEGER,                 -- at most rate_count starts in rate_seconds
    rate_seconds REAL, rate_next_at REAL,
    machines TEXT,                      -- JSON list of names; NULL: any
    external INTEGER NOT NULL DEFAULT 0,    -- 1: only other people's workers serve it; 2: remote
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER,
    lock TEXT NOT NULL,                 -- name of its file in locks/; what a remote one chose
    lock_proven INTEGER NOT NULL DEFAULT 0,
    mode TEXT NOT NULL,                 -- detached, cron, slice, service or remote
    state TEXT NOT NULL,                -- starting, idle, busy or stopping
    version TEXT NOT NULL,
    tasks INTEGER NOT NULL DEFAULT 0,   -- ended by it so far
    runner_pid INTEGER,
    runner_birth TEXT,                  -- see birth(); NULL where that cannot be known
    started_at REAL NOT NULL, seen_at REAL NOT NULL,
    lease_monotonic REAL NOT NULL, lease_wall REAL NOT NULL,
    token_id INTEGER,                   -- of remote workers: whose they are,
    functions TEXT,                     -- what they announced (JSON)
    sequence INTEGER                    -- and the number of the last call
);
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    queue TEXT NOT NULL, function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    status INTEGER NOT NULL,            -- index into STATUS_WORDS
    reason TEXT,                        -- why failed, or why it waits for a retry
    priority INTEGER NOT NULL,          -- -100..100, larger first
    turn INTEGER NOT NULL,              -- pending: place among equals; scheduled: run_at in ms
    run_at REAL,                        -- not before; NULL: at once
    unique_key TEXT,                    -- NULL when finished, see task_ended
    max_retries INTEGER NOT NULL,
    retries_left INTEGER NOT NULL,      -- -1: max_retries is 0, and RetryAfter was granted
    retry_delay REAL NOT NULL, retry_backoff REAL NOT NULL, timeout REAL NOT NULL,
    on_crash TEXT NOT NULL,             -- retry or fail
    after_failure TEXT,                 -- fail or run, for tasks that come after others
    remove_on_success INTEGER NOT NULL DEFAULT 0,
    notify TEXT,                        -- end or failure: tell the owner by mail
    admin_id INTEGER,                   -- who asked for what only admins may; NULL: the site's code
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0, interruptions INTEGER NOT NULL DEFAULT 0,
    put_backs INTEGER NOT NULL DEFAULT 0,   -- attempts that ran no function, and cost nothing
    unknown_since REAL,                 -- since when no tasks.py that we saw has its function
    claim TEXT,                         -- random, proves an attempt; stays after the end. One of a
                                        -- remote worker begins with ? until it says that it has it
    worker_id INTEGER,
    lease_boot TEXT,
    lease_monotonic REAL,               -- counts while lease_boot is this boot
    lease_wall REAL,                    -- counts everywhere else, with slack
    cancel_requested INTEGER NOT NULL DEFAULT 0,    -- 1 cancel, 2 delete
    progress REAL,                      -- 0..1
    message TEXT,
    samples TEXT,                       -- while it runs: JSON [[seconds, CPU seconds, bytes of memory]]
    result TEXT,                        -- JSON
    error_type TEXT, error_message TEXT,
    schedule_id INTEGER,
    created_at REAL NOT NULL, started_at REAL, finished_at REAL
);
CREATE INDEX IF NOT EXISTS task_claim ON task (status, queue, priority DESC, turn, id);
CREATE INDEX IF NOT EXISTS task_turn ON task (owner_id, status, queue, priority, turn);
CREATE INDEX IF NOT EXISTS task_owner ON task (owner_id);
CREATE INDEX IF NOT EXISTS task_unique ON task (owner_id, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_schedule ON task (schedule_id)
WHERE schedule_id IS NOT NULL AND status NOT IN ENDED;
CREATE TABLE IF NOT EXISTS task_after (
    task_id INTEGER NOT NULL,           -- this one comes after ...
    after_id INTEGER NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0, -- 0 is waited for, 1 is over as it should, 2 given up
    place INTEGER,                      -- among those that it comes after, as they were named
    PRIMARY KEY (task_id, settled, after_id)
);
CREATE INDEX IF NOT EXISTS task_after_follower ON task_after (settled, after_id);
CREATE TABLE IF NOT EXISTS unsettled (      -- tasks that ended, while others wait for them still
    task_id INTEGER PRIMARY KEY,
    status INTEGER                      -- NULL: deleted
);
-- What follows when a task ends or goes, whoever ends or removes it, in whatever language.
-- An end sets status and finished_at in one statement.
CREATE TRIGGER IF NOT EXISTS task_ended AFTER UPDATE OF finished_at ON task
WHEN new.status BETWEEN SUCCEEDED AND CANCELLED     -- IN is slow here
    AND old.status NOT BETWEEN SUCCEEDED AND CANCELLED AND (
    old.status=WAITING OR new.unique_key IS NOT NULL OR old.cancel_requested=2 OR new.remove_on_success=1
    OR EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=new.id))
BEGIN
    INSERT OR IGNORE INTO unsettled (task_id, status)
    SELECT new.id, CASE WHEN old.cancel_requested<2 THEN new.status END
    WHERE EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=new.id);
    UPDATE task_after SET settled=2 WHERE settled=0 AND task_id=new.id;
    UPDATE task SET unique_key=NULL WHERE id=new.id AND unique_key IS NOT NULL;
    DELETE FROM task WHERE id=new.id
        AND (old.cancel_requested=2 OR new.status=SUCCEEDED AND new.remove_on_success=1);
END;
CREATE TRIGGER IF NOT EXISTS task_removed AFTER DELETE ON task
BEGIN
    INSERT OR IGNORE INTO unsettled (task_id, status)
    SELECT old.id, CASE WHEN old.status IN ENDED THEN old.status END
    WHERE EXISTS (SELECT 1 FROM task_after WHERE settled=0 AND after_id=old.id);
    DELETE FROM task_after WHERE task_id=old.id;
    DELETE FROM log WHERE task_id=old.id;
    UPDATE file SET task_id=NULL, until=0 WHERE task_id=old.id AND key IS NOT NULL;
    DELETE FROM file WHERE task_id=old.id;
END;
CREATE TABLE IF NOT EXISTS file (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL,
    task_id INTEGER,                    -- NULL: no task has it, and it goes at `until`
    key TEXT,                           -- of what was handed in, for one task or several;
                                        -- NULL: the task left it in its folder
    name TEXT,                          -- NULL: it is still being written
    size INTEGER NOT NULL,
    until REAL
);
CREATE INDEX IF NOT EXISTS file_task ON file (task_id);
CREATE INDEX IF NOT EXISTS file_key ON file (key);
CREATE INDEX IF NOT EXISTS file_owner ON file (owner_id);
CREATE INDEX IF NOT EXISTS file_until ON file (until) WHERE until IS NOT NULL;
CREATE TABLE IF NOT EXISTS activity (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL,
    task_id INTEGER, attempt INTEGER, worker_id INTEGER, owner_id INTEGER,
    function TEXT, queue TEXT,
    waited REAL,                        -- seconds from due to started; of a lost worker those
                                        -- since it was last heard of
    seconds REAL,                       -- seconds from started to ended
    cpu_seconds REAL,
    peak_memory INTEGER,                -- bytes
    service REAL,                       -- seconds from added to ended, when it ended for good
    machine TEXT,                       -- of the worker that began or ended
    actor TEXT,                         -- who did it, if it was a person
    message TEXT
);
CREATE INDEX IF NOT EXISTS activity_task ON activity (task_id);
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL, attempt INTEGER NOT NULL,
    start INTEGER NOT NULL,             -- offset of this piece in bytes of UTF-8
    length INTEGER NOT NULL,
    text TEXT NOT NULL,
    at REAL,                            -- when it came; NULL: before version 7
    UNIQUE (task_id, attempt, start)
);
CREATE TABLE IF NOT EXISTS request (        -- answers to requests with an Idempotency-Key
    owner_id INTEGER NOT NULL, key TEXT NOT NULL,
    digest TEXT NOT NULL,               -- SHA-256 of what was asked
    created_at REAL NOT NULL,
    answer TEXT NOT NULL,               -- JSON
    PRIMARY KEY (owner_id, key)
);
CREATE TABLE IF NOT EXISTS schedule (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT,                          -- unique among those from tasks.py, and from folders
    source TEXT NOT NULL,               -- person, code or folder
    function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    options TEXT NOT NULL,              -- JSON, those of TASK_OPTIONS that were chosen
    rule TEXT NOT NULL, zone TEXT NOT NULL,
    start REAL NOT NULL,                -- where "every N seconds" begins to count
    catch_up TEXT NOT NULL,             -- none, once or all
    overlap TEXT NOT NULL,              -- skip, queue or allow
    paused INTEGER NOT NULL DEFAULT 0, paused_by TEXT, paused_at REAL, paused_why TEXT,
    problem TEXT,                       -- why it could not add its task the last time
    gone_at REAL,                       -- since when its source does not name it; NULL: it does
    next_at REAL,                       -- NULL: never again, or paused
    next_from REAL,                     -- the time from which next_at was counted
    last_at REAL,                       -- the slot that was looked at last
    last_task_id INTEGER,
    late_at REAL,                       -- when a run was last late, or several fell together
    set_by INTEGER,                     -- who made or changed it last; NULL: the site's own code
    created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS schedule_next ON schedule (paused, next_at);
CREATE INDEX IF NOT EXISTS schedule_next_from ON schedule (next_from);
CREATE TABLE IF NOT EXISTS slot (           -- each time a schedule was due, once
    schedule_id INTEGER NOT NULL, at REAL NOT NULL,
    task_id INTEGER,                    -- NULL: skipped, and why
    message TEXT,
    PRIMARY KEY (schedule_id, at)
);
CREATE TABLE IF NOT EXISTS hour (           -- the activity of an hour or so, as far as folded
    span INTEGER NOT NULL,              -- one of SPANS: its seconds; 0: of all time
    at INTEGER NOT NULL,                -- its beginning
    function TEXT NOT NULL, queue TEXT NOT NULL,
    added INTEGER NOT NULL DEFAULT 0, started INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, retried INTEGER NOT NULL DEFAULT 0,
    crashed INTEGER NOT NULL DEFAULT 0,
    waited TEXT, ran TEXT, service TEXT,    -- JSON: count, sum, minimum, maximum, {bucket: count}
    cpu_seconds REAL NOT NULL DEFAULT 0, peak_memory INTEGER,
    PRIMARY KEY (span, at, function, queue)
);
CREATE TABLE IF NOT EXISTS worker_hour (
    span INTEGER NOT NULL, at INTEGER NOT NULL, machine TEXT NOT NULL,
    alive_seconds REAL NOT NULL DEFAULT 0, busy_seconds REAL NOT NULL DEFAULT 0,
    tasks INTEGER NOT NULL DEFAULT 0,
    executed TEXT,                      -- as in hour; how long all attempts ran
    PRIMARY KEY (span, at, machine)
);
CREATE TABLE IF NOT EXISTS recent (         -- the latest runs of a function, as far as folded
    function TEXT PRIMARY KEY NOT NULL,
    runs TEXT NOT NULL                  -- JSON: [[task id, owner id, status, seconds]]
);
CREATE TABLE IF NOT EXISTS shift (          -- a worker's life, as far as worker_hour has it
    worker_id INTEGER PRIMARY KEY, machine TEXT NOT NULL,
    counted_to REAL NOT NULL,
    ended_at REAL                       -- NULL: it lives
);
CREATE TABLE IF NOT EXISTS alert (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    code TEXT NOT NULL,                 -- of FINDINGS
    subject TEXT NOT NULL,              -- what it is about: a function and its error, a schedule
    text TEXT NOT NULL,                 -- the latest sentence
    count INTEGER NOT NULL DEFAULT 1,
    opened_at REAL NOT NULL, seen_at REAL NOT NULL,     -- first, last; open if they differ
    told INTEGER NOT NULL DEFAULT 0, told_at REAL,      -- how often, and when last
    muted_until REAL, ended_at REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS alert_open ON alert (code, subject) WHERE ended_at IS NULL;
CREATE TABLE IF NOT EXISTS delivery (       -- what is told to one place, and how that goes
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,              -- mail, webhook or function
    recipient TEXT NOT NULL,
    content TEXT NOT NULL,              -- JSON
    tries INTEGER NOT NULL DEFAULT 0,
    next_at REAL,                       -- when to try it; NULL: it is sent, or given up
    sent_at REAL, error TEXT, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS delivery_next ON delivery (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS delivery_recipient ON delivery (recipient, id);
INSERT OR IGNORE INTO queue (name, created_at) VALUES ('default', strftime('%s', 'now'));
"""

# Statements that migrate databases of older versions. SQLite runs SCHEMA before them, PostgreSQL does not.
FROM_6 = """
ALTER TABLE token ADD COLUMN limits TEXT;
ALTER TABLE worker ADD COLUMN token_id INTEGER;
ALTER TABLE worker ADD COLUMN functions TEXT;
ALTER TABLE worker ADD COLUMN sequence INTEGER;
ALTER TABLE user ADD COLUMN email TEXT;
ALTER TABLE user ADD COLUMN max_running INTEGER;
ALTER TABLE session ADD COLUMN address TEXT;
ALTER TABLE task ADD COLUMN notify TEXT;
ALTER TABLE task_after ADD COLUMN place INTEGER;
ALTER TABLE activity ADD COLUMN service REAL;
ALTER TABLE activity ADD COLUMN machine TEXT;
ALTER TABLE activity ADD COLUMN actor TEXT;
ALTER TABLE log ADD COLUMN at REAL;
DELETE FROM setting WHERE name='.rhythm';
"""
FROM_7 = """
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);
INSERT OR IGNORE INTO state (name, value) SELECT substr(name, 2), value FROM setting
WHERE name IN ('.alerts', '.backup', '.catalogue', '.daily_backup', '.doubts', '.exposure', '.files',
    '.folded', '.keeping', '.rhythm', '.start_failure', '.tasks_files', '.used_code');
DELETE FROM setting WHERE substr(name, 1, 1)='.';
"""
FROM_8 = """
ALTER TABLE user ADD COLUMN summary TEXT;
ALTER TABLE user ADD COLUMN summary_at REAL;
ALTER TABLE task ADD COLUMN samples TEXT;
CREATE TABLE IF NOT EXISTS saved (id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES user(id), page TEXT NOT NULL, name TEXT NOT NULL,
    value TEXT NOT NULL, UNIQUE (user_id, page, name));
"""
MIGRATIONS = {0: "", SCHEMA_VERSION: "", 8: FROM_8, 7: FROM_7 + FROM_8, 6: FROM_6 + FROM_7 + FROM_8,
              4: FROM_6 + """
ALTER TABLE worker ADD COLUMN runner_pid INTEGER;
ALTER TABLE worker ADD COLUMN runner_birth TEXT;
ALTER TABLE schedule ADD COLUMN late_at REAL;
ALTER TABLE schedule ADD COLUMN gone_at REAL;
ALTER TABLE task ADD COLUMN unknown_since REAL;
ALTER TABLE task ADD COLUMN put_backs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN admin_id INTEGER;
UPDATE task SET put_backs=(
    SELECT count(*) FROM activity WHERE task_id=task.id AND event='put_back')
WHERE attempts>0 AND status<>SUCCEEDED;
UPDATE task SET admin_id=owner_id
WHERE status NOT IN ENDED AND function IN (SELECT name FROM function WHERE who='admin')
    AND owner_id IN (SELECT id FROM user WHERE role='admin');
UPDATE task SET unique_key=NULL WHERE unique_key IS NOT NULL AND status IN ENDED;
INSERT OR IGNORE INTO unsettled (task_id, status)
SELECT DISTINCT after_id, status FROM task_after LEFT JOIN task ON task.id=after_id
WHERE settled=0 AND (status IS NULL OR status IN ENDED);
DROP TABLE IF EXISTS task_key;
DROP TABLE IF EXISTS machine;
""" + FROM_7 + FROM_8}


def statements(script: str) -> Iterator[str]:
    """Yield the SQL statements of a script. Each ends at the end of a line."""
    lines = []
    for line in script.splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines)
            lines = []


def another_version(version: int) -> SetupError:
    """Return the error for a database whose schema version this code cannot use."""
    return SetupError("The database has schema version %d, this jobqueue.py has %d. Copy the "
                      "newer jobqueue.py and worker.py here, and restart the web server."
                      % (version, SCHEMA_VERSION))


def migrate(transaction: Connection) -> None:
    """Bring an empty or older SQLite file to the newest schema version, in a given transaction.

    SetupError if its version is newer or too old.
    """
    version = transaction.value("PRAGMA user_version")
    if version == SCHEMA_VERSION:
        return
    if version not in MIGRATIONS:
        raise another_version(version)
    for statement in statements(SCHEMA + MIGRATIONS[version]):
        transaction.run(statement)
    transaction.run("PRAGMA user_version=%d" % SCHEMA_VERSION)
