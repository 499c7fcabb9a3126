-- Version 1: jobs and what belongs to them.
--
-- Times and durations are microseconds, times since 1970 in UTC. 0 is "none",
-- a duration of -1 is one of the special values of the Go package.
-- To use another prefix, replace every "pawl_" in this file.

CREATE TABLE pawl_meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL, -- of this schema
    fence   INTEGER NOT NULL  -- the last one given to a claim; never goes back
) STRICT;

-- A queue that has a setting. Queues without a row are not paused.
CREATE TABLE pawl_queue (
    name   TEXT PRIMARY KEY,
    paused INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE pawl_job (
    seq          INTEGER PRIMARY KEY,         -- order of insertion
    id           BLOB    NOT NULL,            -- UUID, 16 bytes
    queue        TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    state        INTEGER NOT NULL,            -- 1 scheduled, 2 ready, 3 running, 4 completed, 5 buried, 6 canceled
    rank         INTEGER NOT NULL,            -- ready: the priority; else 0
    at           INTEGER NOT NULL,            -- scheduled, ready: run_at; running: end of the lease; final: when it ended
    run_at       INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    reason       TEXT    NOT NULL DEFAULT '',
    fence        INTEGER NOT NULL DEFAULT 0,  -- running: of the current claim
    last_fence   INTEGER NOT NULL DEFAULT 0,  -- of the last settle that was accepted,
    last_verb    INTEGER NOT NULL DEFAULT 0,  -- and its verb
    attempt      INTEGER NOT NULL DEFAULT 0,
    rescued      INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    max_rescues  INTEGER NOT NULL,
    lease        INTEGER NOT NULL,
    timeout      INTEGER NOT NULL,
    retention    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER NOT NULL DEFAULT 0,
    claimed_at   INTEGER NOT NULL DEFAULT 0,
    start_before INTEGER NOT NULL DEFAULT 0,
    purge_at     INTEGER NOT NULL DEFAULT 0,  -- completed, canceled: when the record goes
    worker       TEXT    NOT NULL DEFAULT '',
    token        INTEGER NOT NULL DEFAULT 0,  -- of the claim call
    ukey         TEXT    NOT NULL DEFAULT '',
    umode        INTEGER NOT NULL DEFAULT 0,  -- 0 until final, 1 until claimed, 2 until final + window
    uwindow      INTEGER NOT NULL DEFAULT 0,
    held         INTEGER NOT NULL DEFAULT 0,  -- 1 while it holds ukey
    extends      INTEGER NOT NULL DEFAULT 0,
    counts       TEXT,                        -- JSON, the other counts
    failures     INTEGER NOT NULL DEFAULT 0,  -- how many there ever were
    meta         TEXT,                        -- JSON
    progress     TEXT,                        -- JSON
    apart        INTEGER NOT NULL DEFAULT 0,  -- 1: payload, 2: result is in its own table
    payload      BLOB,
    result       BLOB,
    -- What a hand may not write, since no program could read it again.
    CHECK (length(id) = 16 AND state BETWEEN 1 AND 6 AND last_verb BETWEEN 0 AND 255 AND umode BETWEEN 0 AND 2
        AND held BETWEEN 0 AND 1 AND attempt < 9e18 AND max(at, lease, retention, uwindow) < 4e18)
) STRICT;

CREATE UNIQUE INDEX pawl_job_id ON pawl_job (id);
-- The one index that every state is walked by.
CREATE INDEX pawl_job_place ON pawl_job (state, queue, rank, at);
CREATE UNIQUE INDEX pawl_job_key ON pawl_job (queue, ukey) WHERE held = 1;
CREATE INDEX pawl_job_expiry ON pawl_job (start_before) WHERE start_before > 0 AND state <= 2;
CREATE INDEX pawl_job_purge ON pawl_job (purge_at) WHERE purge_at > 0;
CREATE INDEX pawl_job_retrying ON pawl_job (queue) WHERE state = 1 AND reason IN ('retry', 'rescue');

CREATE TABLE pawl_payload (
    seq  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE pawl_result (
    seq  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE pawl_failure (
    seq     INTEGER NOT NULL,
    n       INTEGER NOT NULL, -- from 1
    at      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker  TEXT    NOT NULL,
    error   TEXT    NOT NULL,
    stack   TEXT    NOT NULL,
    PRIMARY KEY (seq, n)
) WITHOUT ROWID, STRICT;

-- What belongs to a job goes with it, however it goes.
CREATE TRIGGER pawl_job_gone AFTER DELETE ON pawl_job
WHEN OLD.apart > 0 OR OLD.failures > 0
BEGIN
    DELETE FROM pawl_payload WHERE seq = OLD.seq;
    DELETE FROM pawl_result WHERE seq = OLD.seq;
    DELETE FROM pawl_failure WHERE seq = OLD.seq;
END;

INSERT INTO pawl_meta (one, version, fence) VALUES (1, 1, 0);
