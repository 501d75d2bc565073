#!/bin/sh
# A worker for external(...) functions that is not ours: sh and the sqlite3 command line, with
# nothing but the statements of static/docs/workers.md.
#
#     foreign_worker.sh DATABASE QUEUE LEDGER
#
# It works until it is ended. A task here is to put its arguments into its result; every attempt
# is noted in LEDGER as the functions of the load test and the drill do it.
set -u
database=$1 queue=$2 ledger=$3
boot=$(cat /proc/sys/kernel/random/boot_id)

# Counts sleep, which CLOCK_MONOTONIC does not: on a machine that sleeps leave :boot NULL.
monotonic() { read -r seconds _ < /proc/uptime; echo "$seconds"; }

sql() {                                 # runs standard input as one script; its rows
    { cat <<PARAMETERS
.timeout 10000
.bail on
.parameter set :queue "'$queue'"
.parameter set :claim "'${claim:-}'"
.parameter set :id ${id:-0}
.parameter set :boot "'$boot'"
.parameter set :monotonic $(monotonic)
.parameter set :now $(date +%s.%N)
.parameter set :result "CAST(x'$(printf %s "${result:-null}" | od -An -v -tx1 | tr -d ' \n')' AS TEXT)"
.parameter set :error_type "'Failed'"
.parameter set :error_message "'it said so'"
.parameter set :progress NULL
.parameter set :message NULL
.output /dev/null
PRAGMA wal_autocheckpoint=0;
.output stdout
PARAMETERS
      cat; } | sqlite3 -batch -noheader -separator ' ' "$database"
}

claim_next() {
    sql <<'SQL'
BEGIN IMMEDIATE;
UPDATE task SET status=1, claim=:claim, attempts=attempts+1, worker_id=NULL, lease_boot=:boot,
    lease_monotonic=:monotonic+60, lease_wall=:now+60, started_at=:now, reason=NULL,
    progress=NULL, message=NULL, error_type=NULL, error_message=NULL
WHERE id=(SELECT id FROM task WHERE status=0 AND queue=:queue
          ORDER BY priority DESC, turn, id LIMIT 1)
  AND status=0 AND EXISTS (SELECT 1 FROM queue WHERE name=:queue AND paused=0);
INSERT INTO activity (at, event, task_id, attempt, owner_id, function, queue, waited)
SELECT :now, 'started', id, attempts, owner_id, function, queue,
    max(0, :now-max(created_at, coalesce(run_at, 0)))
FROM task WHERE status=1 AND queue=:queue AND claim=:claim;
COMMIT;
SELECT id, attempts, function, arguments
FROM task WHERE status=1 AND queue=:queue AND claim=:claim;
SQL
}

renew() {                               # what of cancel_requested, nothing if it was lost
    sql <<'SQL'
UPDATE task SET lease_monotonic=:monotonic+60, lease_wall=:now+60,
    progress=:progress, message=:message
WHERE id=:id AND status=1 AND claim=:claim;
SELECT cancel_requested FROM task WHERE id=:id AND status=1 AND claim=:claim;
SQL
}

succeed() {
    sql <<'SQL'
BEGIN IMMEDIATE;
INSERT INTO activity (at, event, task_id, attempt, owner_id, function, queue, seconds, service)
SELECT :now, 'succeeded', id, attempts, owner_id, function, queue, :now-started_at, :now-created_at
FROM task WHERE id=:id AND status=1 AND claim=:claim;
UPDATE task SET status=2, result=:result, cancel_requested=0, lease_boot=NULL,
    lease_monotonic=NULL, lease_wall=NULL, finished_at=:now
WHERE id=:id AND status=1 AND claim=:claim;
COMMIT;
SQL
}

fail() {
    sql <<'SQL'
BEGIN IMMEDIATE;
INSERT INTO activity (at, event, task_id, attempt, owner_id, function, queue, seconds, message,
    service)
SELECT :now, CASE WHEN cancel_requested>0 THEN 'cancelled' WHEN retries_left>0 THEN 'retry'
                  ELSE 'failed' END,
    id, attempts, owner_id, function, queue, :now-started_at, :error_message,
    CASE WHEN cancel_requested>0 OR retries_left=0 THEN :now-created_at END
FROM task WHERE id=:id AND status=1 AND claim=:claim;
UPDATE task SET status=4, cancel_requested=0, lease_boot=NULL, lease_monotonic=NULL,
    lease_wall=NULL, finished_at=:now
WHERE id=:id AND status=1 AND claim=:claim AND cancel_requested>0;
UPDATE task SET status=5, reason='error', retries_left=retries_left-1, run_at=:now+retry_delay,
    turn=CAST((:now+retry_delay)*1000 AS INTEGER)+1, error_type=:error_type,
    error_message=:error_message, lease_boot=NULL, lease_monotonic=NULL, lease_wall=NULL
WHERE id=:id AND status=1 AND claim=:claim AND retries_left>0;
UPDATE task SET status=3, reason='error', error_type=:error_type, error_message=:error_message,
    lease_boot=NULL, lease_monotonic=NULL, lease_wall=NULL, finished_at=:now
WHERE id=:id AND status=1 AND claim=:claim;
COMMIT;
SQL
}

note() { echo "$1 $id $attempt $claim $$ $(monotonic)" >> "$ledger"; }

while :; do
    claim=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') id=0
    row=$(claim_next) || { sleep 0.2; continue; }
    [ -n "$row" ] || { sleep 0.1; continue; }
    id=${row%% *} row=${row#* }
    attempt=${row%% *} row=${row#* }
    arguments=${row#* }
    note START
    until asked=$(renew); do sleep 0.2; done        # while nobody can write, say
    if [ "$asked" = 0 ] && [ "$arguments" != '{"text":"fail"}' ]; then
        result=$arguments end=succeed
    else
        end=fail
    fi
    note END
    until $end; do sleep 0.2; done
done
