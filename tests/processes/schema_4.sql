-- A database that the jobqueue.py of schema version 4 made and filled.
BEGIN TRANSACTION;
CREATE TABLE activity (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    task_id INTEGER,
    attempt INTEGER,
    worker_id INTEGER,
    owner_id INTEGER,
    function TEXT,
    queue TEXT,
    waited REAL,                        -- seconds from due to started
    seconds REAL,                       -- seconds from started to ended
    cpu_seconds REAL,
    peak_memory INTEGER,                -- bytes
    message TEXT
);
INSERT INTO "activity" VALUES(1,1793000000.0,'queue_changed',NULL,NULL,NULL,NULL,NULL,'held',NULL,NULL,NULL,NULL,'ana: {"name":"held","paused":true,"paused_why":"why not","max_running":2}');
INSERT INTO "activity" VALUES(2,1793000000.0,'queue_changed',NULL,NULL,NULL,NULL,NULL,'default',NULL,NULL,NULL,NULL,'ana: {"rate":{"count":1000,"seconds":1}}');
INSERT INTO "activity" VALUES(3,1793000000.0,'added',1,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(4,1793000000.0,'started',1,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(5,1793000000.0,'succeeded',1,1,1,2,'work','default',NULL,0.0,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(6,1793000010.0,'added',2,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(7,1793000010.0,'started',2,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(8,1793000010.0,'failed',2,1,1,2,'work','default',NULL,0.0,NULL,NULL,'oh no');
INSERT INTO "activity" VALUES(9,1793000015.0,'added',3,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(10,1793000015.0,'cancelled',3,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(11,1793000015.0,'added',4,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(12,1793000015.0,'started',4,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(13,1793000015.0,'put_back',4,1,1,2,'work','default',NULL,NULL,NULL,NULL,'unknown_function');
INSERT INTO "activity" VALUES(14,1793000055.0,'promoted',4,1,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(15,1793000055.0,'started',4,2,1,2,'work','default',10.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(16,1793000055.0,'put_back',4,2,1,2,'work','default',NULL,NULL,NULL,NULL,'unknown_function');
INSERT INTO "activity" VALUES(17,1793000055.0,'added',5,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(18,1793000055.0,'started',5,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(19,1793000055.0,'retry',5,1,1,2,'work','default',NULL,0.0,NULL,NULL,'not now');
INSERT INTO "activity" VALUES(20,1793000055.0,'added',6,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(21,1793000055.0,'failed',6,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,'Task 2, which this one comes after, failed.');
INSERT INTO "activity" VALUES(22,1793000055.0,'added',7,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(23,1793000055.0,'added',8,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(24,1793000055.0,'added',9,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(25,1793000055.0,'added',10,NULL,NULL,1,'work','held',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(26,1793000055.0,'added',11,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(27,1793000055.0,'added',12,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(28,1793000055.0,'added',13,NULL,NULL,1,'admins_only','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(29,1793000055.0,'added',14,NULL,NULL,2,'render','renderers',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(30,1793000055.0,'added',15,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(31,1793000055.0,'added',16,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(32,1793000055.0,'started',16,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(33,1793000055.0,'added',17,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(34,1793000055.0,'started',17,1,1,2,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(35,1793000055.0,'deleted',17,1,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(36,1793000055.0,'added',18,NULL,NULL,2,'render','renderers',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(37,1793000055.0,'added',19,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(38,1793000055.0,'added',20,NULL,NULL,1,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(39,1793000055.0,'added',21,NULL,NULL,1,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(40,1793000055.0,'added',22,NULL,NULL,1,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(41,1793000055.0,'added',23,NULL,NULL,1,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(42,1793000055.0,'started',20,1,1,1,'work','default',0.0,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(43,1793000055.0,'succeeded',20,1,1,1,'work','default',NULL,0.0,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(44,1793000055.0,'released',21,NULL,NULL,1,'work','default',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "activity" VALUES(45,1793003656.0,'added',24,NULL,NULL,2,'work','default',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE function (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    schema TEXT NOT NULL,               -- JSON Schema 2020-12 of the arguments
    options TEXT NOT NULL,              -- JSON, see TASK_OPTIONS
    who TEXT NOT NULL                   -- user, admin or nobody
);
INSERT INTO "function" VALUES(6,'work','work','','{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false,"required":["n"]}','{"queue":"default","priority":0,"max_retries":0,"retry_delay":60,"retry_backoff":2,"timeout":3600,"on_crash":"retry","remove_on_success":false}','user');
INSERT INTO "function" VALUES(7,'admins_only','admins_only','','{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false,"required":["n"]}','{"queue":"default","priority":0,"max_retries":0,"retry_delay":60,"retry_backoff":2,"timeout":3600,"on_crash":"retry","remove_on_success":false}','admin');
INSERT INTO "function" VALUES(8,'render','render','','{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false,"required":["n"]}','{"queue":"renderers","priority":0,"max_retries":0,"retry_delay":60,"retry_backoff":2,"timeout":3600,"on_crash":"retry","remove_on_success":false}','user');
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    start INTEGER NOT NULL,             -- offset of this piece in bytes of UTF-8
    length INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (task_id, attempt, start)
);
INSERT INTO "log" VALUES(1,2,1,0,3,'oh
');
CREATE TABLE machine (                  -- who opened this database, for several must not share a log
    name TEXT PRIMARY KEY,
    boot TEXT NOT NULL,
    first_seen REAL NOT NULL,           -- since when it has not been away for a day
    seen_at REAL NOT NULL
);
INSERT INTO "machine" VALUES('old.example.org','11111111-2222-3333-4444-555555555555',1792913656.0,1793003656.0);
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    paused_by TEXT,
    paused_at REAL,
    paused_why TEXT,
    max_running INTEGER,                -- NULL: no limit
    rate_count INTEGER,                 -- at most rate_count starts in rate_seconds
    rate_seconds REAL,
    rate_next_at REAL,
    machines TEXT,                      -- JSON list of names; NULL: any
    created_at REAL NOT NULL
, external INTEGER NOT NULL DEFAULT 0);
INSERT INTO "queue" VALUES(1,'default',0,NULL,NULL,NULL,NULL,1000,1.0,1.79300005495499968524e+09,NULL,1792990000.0,0);
INSERT INTO "queue" VALUES(4,'mail',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1792990000.0,0);
INSERT INTO "queue" VALUES(9,'renderers',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1793000000.0,1);
INSERT INTO "queue" VALUES(10,'held',1,'ana',1793000000.0,'why not',2,NULL,NULL,NULL,NULL,1793000000.0,0);
CREATE TABLE request (                  -- answers to requests with an Idempotency-Key
    owner_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,               -- SHA-256 of what was asked
    created_at REAL NOT NULL,
    answer TEXT NOT NULL,               -- JSON
    PRIMARY KEY (owner_id, key)
);
INSERT INTO "request" VALUES(2,'order-17','c6be62d031edb62acd62727cdbe17379f12b4e07919f30fdf665fe634cf00e65',1793000055.0,'{"ids":[15],"created":1,"task":{"id":15,"owner":"bob","function":"work","summary":"15","queue":"default","status":"pending","reason":null,"priority":-4,"run_at":null,"unique_key":null,"after":[],"after_failure":null,"attempts":0,"crashes":0,"max_retries":0,"retries_left":0,"retry_delay":60,"retry_backoff":2,"timeout":3600,"on_crash":"retry","remove_on_success":false,"cancel_requested":false,"progress":null,"message":null,"error":null,"worker":null,"schedule":null,"created_at":"2026-10-26T07:34:15.000Z","started_at":null,"finished_at":null,"arguments":{"n":15},"result":null,"predecessors":[],"followers":[],"blocked":null,"blocked_text":null}}');
CREATE TABLE schedule (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT,                          -- of those from tasks.py and folders; unique per source
    source TEXT NOT NULL,               -- person, code or folder
    function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    options TEXT NOT NULL,              -- JSON, those of TASK_OPTIONS that were chosen
    rule TEXT NOT NULL,
    zone TEXT NOT NULL,
    start REAL NOT NULL,                -- where "every N seconds" begins to count
    catch_up TEXT NOT NULL,             -- none, once or all
    overlap TEXT NOT NULL,              -- skip, queue or allow
    paused INTEGER NOT NULL DEFAULT 0,
    paused_by TEXT,
    paused_at REAL,
    paused_why TEXT,
    problem TEXT,                       -- why it could not add its task the last time
    next_at REAL,                       -- NULL: never again, or paused
    next_from REAL,                     -- the time from which next_at was counted
    last_at REAL,                       -- the slot that was looked at last
    last_task_id INTEGER,
    set_by INTEGER,                     -- who made or changed it last; NULL: the site's own code
    created_at REAL NOT NULL
);
INSERT INTO "schedule" VALUES(1,2,NULL,'person','work','{"n":50}','{}','every 1h','UTC',1793000055.0,'once','allow',0,NULL,NULL,NULL,NULL,1793007255.0,1793003656.0,1793003655.0,24,2,1793000055.0);
INSERT INTO "schedule" VALUES(2,2,NULL,'person','work','{"n":51}','{}','0 3 * * *','UTC',1793000055.0,'once','skip',1,'bob',1793000055.0,'holidays',NULL,NULL,1793000055.0,NULL,NULL,2,1793000055.0);
INSERT INTO "schedule" VALUES(3,1,'kept','code','work','{"n":52}','{}','0 4 * * *','UTC',1793000055.0,'once','skip',0,NULL,NULL,NULL,NULL,2293000055.0,1793000055.0,NULL,NULL,NULL,1793000055.0);
INSERT INTO "schedule" VALUES(4,1,'gone','code','work','{"n":52}','{}','0 4 * * *','UTC',1793000055.0,'once','skip',0,NULL,NULL,NULL,'It is not in tasks.py or the folder schedules any more; in a minute it is removed.',2293000055.0,1793000055.0,NULL,NULL,NULL,1793000055.0);
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the cookie
    user_id INTEGER NOT NULL REFERENCES user(id),
    created_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    expires_at REAL NOT NULL
);
INSERT INTO "session" VALUES(4,'3e54df6b4d9b31b41c1b5eb8e0b829f164cea5429a81ef19a7f278471b490830',2,1793000000.0,1793000000.0,1793043200.0);
INSERT INTO "session" VALUES(5,'281e5442ee8db66ca2bd27557d7613b5a83d57acaa237530f6c572e09abcaf76',1,1793000000.0,1793000000.0,1793043200.0);
CREATE TABLE setting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,          -- one of SETTINGS, or .name for what we remember ourselves
    value TEXT NOT NULL                 -- JSON
);
INSERT INTO "setting" VALUES(1,'.catalogue','{"files":{"/srv/site/tasks.py":null,"/srv/site/worker.py":[1795372331831194840,90616]},"error":null,"samples":false,"read_at":1793000000.0,"schedules":[]}');
INSERT INTO "setting" VALUES(2,'.rhythm','{"since":1793000000.0,"seen":{"request":1793000055.0,"worker":1793003656.0},"gaps":{"11":[53.433828086875955,40.0],"2":[3601.0,2.0]},"visits":{}}');
INSERT INTO "setting" VALUES(3,'NbMaxWorker','1');
INSERT INTO "setting" VALUES(4,'linger','1');
CREATE TABLE slot (                     -- each time a schedule was due, once
    schedule_id INTEGER NOT NULL,
    at REAL NOT NULL,
    task_id INTEGER,                    -- NULL: skipped, and why
    message TEXT,
    PRIMARY KEY (schedule_id, at)
);
INSERT INTO "slot" VALUES(1,1793003655.0,24,NULL);
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES user(id),
    queue TEXT NOT NULL,
    function TEXT NOT NULL,
    arguments TEXT NOT NULL,            -- JSON object
    status INTEGER NOT NULL,            -- index into STATUS_WORDS
    reason TEXT,                        -- why failed, or why it waits for a retry
    priority INTEGER NOT NULL,          -- -100..100, larger first
    turn INTEGER NOT NULL,              -- pending: place among equals; scheduled: run_at in ms
    run_at REAL,                        -- not before; NULL: at once
    unique_key TEXT,                    -- NULL when finished
    max_retries INTEGER NOT NULL,
    retries_left INTEGER NOT NULL,
    retry_delay REAL NOT NULL,
    retry_backoff REAL NOT NULL,
    timeout REAL NOT NULL,
    on_crash TEXT NOT NULL,             -- retry or fail
    after_failure TEXT,                 -- fail or run, for tasks that come after others
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    interruptions INTEGER NOT NULL DEFAULT 0,
    claim TEXT,                         -- random, proves an attempt; stays after the end
    worker_id INTEGER,
    lease_boot TEXT,
    lease_monotonic REAL,               -- counts while lease_boot is this boot
    lease_wall REAL,                    -- counts everywhere else, with slack
    cancel_requested INTEGER NOT NULL DEFAULT 0,    -- 1 cancel, 2 delete
    progress REAL,                      -- 0..1
    message TEXT,
    result TEXT,                        -- JSON
    error_type TEXT,
    error_message TEXT,
    schedule_id INTEGER,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL
, remove_on_success INTEGER NOT NULL DEFAULT 0);
INSERT INTO "task" VALUES(1,2,'default','work','{"n":1}',2,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'fa9a676aeceaf9d147c0147b39765f6e',1,NULL,NULL,NULL,0,NULL,NULL,'2',NULL,NULL,NULL,1793000000.0,1793000000.0,1793000000.0,0);
INSERT INTO "task" VALUES(2,2,'default','work','{"n":2}',3,'error',0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'3737c7c8a212ff102a4b829ffe50d78b',1,NULL,NULL,NULL,0,NULL,NULL,NULL,'ValueError','oh no',NULL,1793000010.0,1793000010.0,1793000010.0,0);
INSERT INTO "task" VALUES(3,2,'default','work','{"n":3}',4,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000015.0,NULL,1793000015.0,0);
INSERT INTO "task" VALUES(4,2,'default','work','{"n":4}',5,'unknown_function',0,1793000085000,1793000085.0,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,2,0,0,'71edc4ac815d1a394189f9729b1634c5',1,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000015.0,NULL,NULL,0);
INSERT INTO "task" VALUES(5,2,'default','work','{"n":5}',5,'error',0,1793000655000,1793000655.0,NULL,3,2,600.0,2.0,3600.0,'retry',NULL,1,0,0,'675227468f33d6e328186d8bc9069a18',1,NULL,NULL,NULL,0,NULL,NULL,NULL,'OSError','not now',NULL,1793000055.0,1793000055.0,NULL,0);
INSERT INTO "task" VALUES(6,2,'default','work','{"n":6}',3,'dependency',0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,'Dependency','Task 2, which this one comes after, failed.',NULL,1793000055.0,NULL,1793000055.0,0);
INSERT INTO "task" VALUES(7,2,'default','work','{"n":7}',0,NULL,-1,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(8,2,'default','work','{"n":8}',6,NULL,0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(9,2,'default','work','{"n":9}',6,NULL,0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','run',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(10,1,'held','work','{"n":10}',0,NULL,0,1,NULL,'nightly',0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(11,2,'default','work','{"n":11}',0,NULL,-2,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,1);
INSERT INTO "task" VALUES(12,2,'default','work','{"n":12}',5,NULL,0,4070908800000,4070908800.0,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(13,1,'default','admins_only','{"n":13}',0,NULL,-3,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(14,2,'renderers','render','{"n":14}',0,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(15,2,'default','work','{"n":15}',0,NULL,-4,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(16,2,'default','work','{"n":16}',1,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'10ba2eff378a14bbd9b43a00e92355b2',1,'boot-1',1115.0,1793000115.0,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,1793000055.0,NULL,0);
INSERT INTO "task" VALUES(17,2,'default','work','{"n":17}',1,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'f1fc931e158c36ab8d949ea56a815bbe',1,'boot-1',1115.0,1793000115.0,2,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,1793000055.0,NULL,0);
INSERT INTO "task" VALUES(18,2,'renderers','render','{"n":18}',2,NULL,0,2,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'f',NULL,NULL,NULL,NULL,0,NULL,NULL,'36',NULL,NULL,NULL,1793000055.0,1793000050.0,1793000055.0,0);
INSERT INTO "task" VALUES(19,2,'default','work','{"n":19}',6,NULL,0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(20,1,'default','work','{"n":20}',2,NULL,0,1,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,1,0,0,'b0a5cab1310ddf20e6f79aa281e4b4de',1,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,1793000055.0,1793000055.0,0);
INSERT INTO "task" VALUES(21,1,'default','work','{"n":21}',0,NULL,0,1,1793000055.0,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(22,1,'default','work','{"n":21}',6,NULL,0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(23,1,'default','work','{"n":21}',6,NULL,0,0,NULL,NULL,0,0,60.0,2.0,3600.0,'retry','fail',0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1793000055.0,NULL,NULL,0);
INSERT INTO "task" VALUES(24,2,'default','work','{"n":50}',0,NULL,0,2,NULL,NULL,0,0,60.0,2.0,3600.0,'retry',NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,1,1793003656.0,NULL,NULL,0);
CREATE TABLE task_after (
    task_id INTEGER NOT NULL,           -- this one comes after ...
    after_id INTEGER NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0, -- 0 is waited for, 1 is over as it should, 2 given up
    PRIMARY KEY (task_id, settled, after_id)
);
INSERT INTO "task_after" VALUES(6,2,2);
INSERT INTO "task_after" VALUES(8,7,0);
INSERT INTO "task_after" VALUES(9,7,0);
INSERT INTO "task_after" VALUES(9,2,1);
INSERT INTO "task_after" VALUES(19,18,0);
INSERT INTO "task_after" VALUES(21,20,1);
INSERT INTO "task_after" VALUES(22,20,0);
INSERT INTO "task_after" VALUES(23,20,0);
CREATE TABLE task_key (                 -- a row of every task that has a unique_key
    owner_id INTEGER NOT NULL,
    unique_key TEXT NOT NULL,
    task_id INTEGER NOT NULL,
    PRIMARY KEY (owner_id, unique_key)
);
INSERT INTO "task_key" VALUES(1,'nightly',10);
CREATE TABLE throttle (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL UNIQUE,       -- user:NAME or address:IP
    failures INTEGER NOT NULL,
    failed_at REAL NOT NULL,
    until REAL NOT NULL
);
INSERT INTO "throttle" VALUES(7,'user:eve',1,1793000055.0,1793000055.0);
INSERT INTO "throttle" VALUES(8,'address:192.0.2.7',1,1793000055.0,1793000055.0);
CREATE TABLE token (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,        -- SHA-256 of the token
    user_id INTEGER NOT NULL REFERENCES user(id),
    name TEXT NOT NULL,
    scope TEXT NOT NULL,                -- one of TOKEN_SCOPES
    created_at REAL NOT NULL,
    last_used_at REAL
);
INSERT INTO "token" VALUES(1,'f1cd4f26126460a7e3f08a1b1e53085e72d695f9e042edab173cef0c82c7fa94',2,'laptop','user',1793000000.0,NULL);
CREATE TABLE unsettled (                -- tasks that ended, while others wait for them still
    task_id INTEGER PRIMARY KEY,
    status INTEGER                      -- NULL: deleted
);
INSERT INTO "unsettled" VALUES(20,2);
CREATE TABLE user (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE UNIQUE,
    password TEXT NOT NULL,             -- method$parameters$salt$hash
    role TEXT NOT NULL,                 -- user or admin
    disabled INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    last_seen_at REAL
, max_pending INTEGER);
INSERT INTO "user" VALUES(1,'ana','scrypt$16384,8,5$ccbcf20c4f41d17e8403d6a212349fa0$a089236b727561d42dd0a295bec0589c02b9a7541b089a5a10cee43a809e5821f2c138effdd7a07614086f974a1e64d42f4c3dc4531a7d9b13c8b4f8e2be1173','admin',0,1792990000.0,1793000000.0,NULL);
INSERT INTO "user" VALUES(2,'bob','scrypt$16384,8,5$6673532969548dd5aa06aa9bafa1c95c$2a96c3bc64c0181e8d1e116b6a1695c66c7496a59029c16cf75a65603439a64e4d98e7724a8b5cf92a0f0291e0387ce814ef926e2352d4a84c2c093f9433820a','user',0,1792990000.0,1793000000.0,500);
INSERT INTO "user" VALUES(3,'eve','scrypt$16384,8,5$2e69e90cb9e95ef0d9f448482fb35412$ea8cacd7027468feb4227867614c8a2f140c8f5d4ad6a6524ecff2acfda95fe1df630a4082ca032dd28df9512ef71f925a42613924c8947bbaa82965bc5c0690','user',1,1792990000.0,1792990000.0,NULL);
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL,
    boot TEXT NOT NULL,
    pid INTEGER,
    lock TEXT NOT NULL,                 -- name of its file in locks/
    lock_proven INTEGER NOT NULL DEFAULT 0,
    mode TEXT NOT NULL,                 -- detached, cron, slice or service
    state TEXT NOT NULL,                -- starting, idle, busy or stopping
    version TEXT NOT NULL,
    tasks INTEGER NOT NULL DEFAULT 0,   -- ended by it so far
    started_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    lease_monotonic REAL NOT NULL,
    lease_wall REAL NOT NULL
);
INSERT INTO "worker" VALUES(1,'old.example.org','11111111-2222-3333-4444-555555555555',4194303,'left.lock',1,'detached','busy','1.0.0',7,1792999500.0,1793000000.0,1060.0,1793000060.0);
CREATE INDEX task_claim ON task (status, queue, priority DESC, turn, id);
CREATE INDEX task_turn ON task (owner_id, status, queue, priority, turn);
CREATE INDEX task_owner ON task (owner_id);
CREATE INDEX activity_task ON activity (task_id);
CREATE INDEX task_after_follower ON task_after (settled, after_id);
CREATE INDEX schedule_next ON schedule (paused, next_at);
CREATE INDEX schedule_next_from ON schedule (next_from);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('queue',34);
INSERT INTO "sqlite_sequence" VALUES('user',3);
INSERT INTO "sqlite_sequence" VALUES('setting',4);
INSERT INTO "sqlite_sequence" VALUES('function',8);
INSERT INTO "sqlite_sequence" VALUES('session',5);
INSERT INTO "sqlite_sequence" VALUES('throttle',8);
INSERT INTO "sqlite_sequence" VALUES('token',1);
INSERT INTO "sqlite_sequence" VALUES('worker',1);
INSERT INTO "sqlite_sequence" VALUES('task',24);
INSERT INTO "sqlite_sequence" VALUES('schedule',4);
COMMIT;
PRAGMA user_version=4;
