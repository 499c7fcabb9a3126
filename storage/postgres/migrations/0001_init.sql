-- Version 1: jobs and what belongs to them.
--
-- Times and durations are microseconds, times since 1970 in UTC, so that they
-- are the same to every driver and time zone; the view pawl_jobs shows them as
-- timestamps. NULL is "none", a negative duration is one of the special values
-- of the Go package. To use another schema or prefix, replace every "public." and
-- "pawl_" in this file.

CREATE TABLE public.pawl_meta (
    one     boolean PRIMARY KEY CHECK (one),
    version integer NOT NULL -- of this schema
);

-- A queue that has a setting. Queues without a row are not paused.
CREATE TABLE public.pawl_queue (
    name   text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL
);

-- What names a claim. It never goes back.
CREATE SEQUENCE public.pawl_fence AS bigint;

CREATE TABLE public.pawl_job (
    id           uuid     PRIMARY KEY,
    seq          bigint   GENERATED ALWAYS AS IDENTITY, -- order of insertion
    run_at       bigint   NOT NULL,
    created_at   bigint   NOT NULL,
    started_at   bigint,           -- first claim
    claimed_at   bigint,           -- last claim
    lease_until  bigint,           -- as claimed; pawl_lease has what heartbeats made of it
    finished_at  bigint,
    purge_at     bigint,           -- completed, canceled: when the record goes
    start_before bigint,
    lease        bigint,
    timeout      bigint,
    retention    bigint   NOT NULL,
    fence        bigint,           -- of the last claim; current while state is 3
    last_fence   bigint,           -- of the last settle that was accepted,
    token        bigint,           -- of the claim call
    uwindow      bigint,
    max_attempts integer  NOT NULL,
    max_rescues  integer  NOT NULL,
    attempt      integer  NOT NULL DEFAULT 0,
    rescued      integer  NOT NULL DEFAULT 0,
    retries      integer,          -- counts; NULL is 0
    rescues      integer,
    releases     integer,
    snoozes      integer,
    skips        integer,
    kicks        integer,
    state        smallint NOT NULL, -- 1 scheduled, 2 ready, 3 running, 4 completed, 5 buried, 6 canceled
    priority     smallint NOT NULL,
    last_verb    smallint,         -- and its verb
    umode        smallint,         -- 0 until final, 1 until claimed, 2 until final + window
    held         boolean,          -- true while it holds ukey; NULL otherwise
    queue        text     COLLATE "C" NOT NULL,
    kind         text     COLLATE "C" NOT NULL,
    reason       text     COLLATE "C",
    worker       text     COLLATE "C",
    ukey         text     COLLATE "C",
    meta         json,
    failures     json[],           -- the last ones
    payload      bytea,
    result       bytea
);

-- Which of two partial indexes on one state a query may use is decided by their
-- conditions: those on run_at > 0 and lease_until > 0, which all rows meet, only
-- serve queries that say so. Left to itself, the planner takes the wrong one when
-- it believes the table to be empty.

-- The order of claims.
CREATE INDEX pawl_job_ready ON public.pawl_job (queue, priority, run_at, seq) WHERE state = 2;
CREATE INDEX pawl_job_scheduled ON public.pawl_job (queue, run_at, seq) INCLUDE (reason) WHERE state = 1;
CREATE INDEX pawl_job_due ON public.pawl_job (run_at) WHERE state = 1 AND run_at > 0;
CREATE INDEX pawl_job_running ON public.pawl_job (queue, claimed_at, seq) WHERE state = 3;
CREATE INDEX pawl_job_lease ON public.pawl_job (lease_until) WHERE state = 3 AND lease_until > 0;
CREATE INDEX pawl_job_final ON public.pawl_job (queue, state, finished_at, id) WHERE state >= 4;
CREATE INDEX pawl_job_purge ON public.pawl_job (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX pawl_job_expiry ON public.pawl_job (start_before) WHERE start_before IS NOT NULL AND state <= 2;
CREATE UNIQUE INDEX pawl_job_key ON public.pawl_job (queue, ukey) WHERE held;

-- What heartbeats write, apart from the job, so that an open transaction that
-- settles the job hinders no heartbeat, and no heartbeat that transaction. A
-- row is made by the first heartbeat and outlives the claim.
CREATE TABLE public.pawl_lease (
    seq         bigint  PRIMARY KEY, -- of the job
    id          uuid    NOT NULL,
    fence       bigint  NOT NULL,    -- of the claim that was extended last
    until       bigint,              -- NULL: that claim is known to be over
    extends     integer NOT NULL,    -- of all claims
    progress_at bigint,
    progress    json
) WITH (fillfactor = 70);

CREATE INDEX pawl_lease_until ON public.pawl_lease (until) WHERE until IS NOT NULL;

-- A text that is JSON as jsonb, anything else as NULL.
CREATE FUNCTION public.pawl_as_json(payload bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(payload, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- Jobs for people: times as timestamps, names of states, payloads that are JSON
-- as jsonb. Not for programs that need speed.
CREATE VIEW public.pawl_jobs AS
SELECT j.id, j.queue, j.kind,
    (ARRAY['scheduled', 'ready', 'running', 'completed', 'buried', 'canceled'])[j.state] AS state,
    j.reason, j.priority, j.attempt, j.max_attempts, j.rescued, j.worker, j.ukey AS unique_key,
    to_timestamp(j.run_at / 1e6) AS run_at,
    to_timestamp(j.created_at / 1e6) AS created_at,
    to_timestamp(j.started_at / 1e6) AS started_at,
    to_timestamp(j.claimed_at / 1e6) AS claimed_at,
    to_timestamp(j.finished_at / 1e6) AS finished_at,
    to_timestamp(CASE WHEN j.state = 3 THEN coalesce(l.until, j.lease_until) END / 1e6) AS lease_until,
    public.pawl_as_json(j.payload) AS payload,
    public.pawl_as_json(j.result) AS result,
    l.progress, to_json(j.failures) AS failures, j.meta
FROM public.pawl_job j
LEFT JOIN public.pawl_lease l ON l.seq = j.seq AND l.fence = j.fence;

INSERT INTO public.pawl_meta (one, version) VALUES (true, 1);
