-- Version 1: jobs and what belongs to them.
--
-- Times and durations are microseconds, times since 1970 in UTC. 0 is "none",
-- a duration of -1 is one of the special values of the Go package. Texts that
-- can hold more than ASCII are kept as the bytes of their UTF-8, so that no
-- character set of a connection changes them.
-- To use another prefix, replace every "pawl_" in this file. Each statement can
-- be run again if the file was not run to its end.

CREATE TABLE IF NOT EXISTS pawl_meta (
    one     TINYINT PRIMARY KEY,
    version INT NOT NULL -- of this schema
) ENGINE = InnoDB;

-- A queue that had a setting, or a limit of depth.
CREATE TABLE IF NOT EXISTS pawl_queue (
    name   VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    paused TINYINT NOT NULL
) ENGINE = InnoDB;

-- What claims draw their fences from. Rows mean nothing; the counter does.
CREATE TABLE IF NOT EXISTS pawl_fence (
    n BIGINT AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS pawl_job (
    seq          BIGINT AUTO_INCREMENT PRIMARY KEY, -- order of insertion
    id           BINARY(16) NOT NULL,               -- UUID
    queue        VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind         VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state        TINYINT  NOT NULL,           -- 1 scheduled, 2 ready, 3 running, 4 completed, 5 buried, 6 canceled
    urgency      SMALLINT NOT NULL,           -- ready: the priority; else 0
    moment       BIGINT   NOT NULL,           -- scheduled, ready: run_at; running: claimed_at; final: when it ended
    retrying     TINYINT  NOT NULL DEFAULT 0, -- scheduled: 1 for a retry or after a rescue
    wake_at      BIGINT,                      -- when a sweep has to do with it, if ever
    run_at       BIGINT   NOT NULL,
    priority     SMALLINT NOT NULL,
    reason       VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    fence        BIGINT   NOT NULL DEFAULT 0, -- of the last claim, which is current while it is running
    last_fence   BIGINT   NOT NULL DEFAULT 0, -- of the last settle that was accepted,
    last_verb    TINYINT  NOT NULL DEFAULT 0, -- and its verb
    attempt      INT      NOT NULL DEFAULT 0,
    rescued      INT      NOT NULL DEFAULT 0,
    max_attempts INT      NOT NULL,
    max_rescues  INT      NOT NULL,
    lease        BIGINT   NOT NULL,
    timeout      BIGINT   NOT NULL,
    retention    BIGINT   NOT NULL,
    created_at   BIGINT   NOT NULL,
    started_at   BIGINT   NOT NULL DEFAULT 0,
    claimed_at   BIGINT   NOT NULL DEFAULT 0,
    start_before BIGINT   NOT NULL DEFAULT 0,
    worker       VARBINARY(255) NOT NULL DEFAULT '',
    token        BIGINT   NOT NULL DEFAULT 0, -- of the claim call
    mark         BIGINT   NOT NULL,           -- of the enqueue call
    ukey         VARBINARY(255) NOT NULL DEFAULT '',
    umode        TINYINT  NOT NULL DEFAULT 0, -- 0 until final, 1 until claimed, 2 until final + window
    uwindow      BIGINT   NOT NULL DEFAULT 0,
    held         TINYINT  NOT NULL DEFAULT 0, -- 1 while it holds ukey, see pawl_key
    extends      INT      NOT NULL DEFAULT 0,
    apart        TINYINT  NOT NULL DEFAULT 0, -- 1: payload, 2: result is in pawl_blob
    counts       BLOB,                        -- JSON, the other counts
    failures     MEDIUMBLOB,                  -- JSON
    meta         BLOB,                        -- JSON
    progress     MEDIUMBLOB,                  -- JSON
    payload      BLOB,
    result       BLOB,
    UNIQUE KEY by_id (id),
    -- The one index that every state of a queue is walked by.
    KEY place (queue, state, urgency, moment, seq, retrying),
    KEY wake (state, wake_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Payloads and results above 1 KiB, so that the rows that claims and settles
-- rewrite stay short.
CREATE TABLE IF NOT EXISTS pawl_blob (
    id   BINARY(16) NOT NULL, -- of the job
    part TINYINT NOT NULL,    -- 1 payload, 2 result
    data LONGBLOB NOT NULL,
    PRIMARY KEY (id, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Unique keys that are held.
CREATE TABLE IF NOT EXISTS pawl_key (
    k  VARBINARY(456) PRIMARY KEY, -- queue, a zero byte, key
    id BINARY(16) NOT NULL         -- of the job that holds it
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO pawl_meta (one, version) VALUES (1, 1);
