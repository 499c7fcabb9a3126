-- Version 3: claims that do not touch the rows of new jobs.

-- What the ids of transactions below belong to: pg_control_system().
ALTER TABLE public.pawl_meta ADD COLUMN system bigint;

-- A job that is due when it is enqueued, and nothing special, begins in state 0,
-- "fresh": ready while it is behind the head of its queue, running once it is in
-- a row of pawl_claim. All that happens to it but its deletion turns it into one
-- of the other states, for good.
ALTER TABLE public.pawl_job ADD COLUMN xid xid8; -- state 0: the transaction that enqueued it

-- How far the fresh jobs of a queue are claimed: all up to (xid, seq), but of the
-- transactions in pend only up to pendseq. Those were open when the head passed
-- them. Only the row of the greatest gen counts; gen grows now and then, so that
-- no reader has to pass many dead versions when they can't be vacuumed.
CREATE TABLE public.pawl_head (
    queue   text     COLLATE "C" NOT NULL,
    gen     bigint   NOT NULL DEFAULT 0,
    n       integer  NOT NULL DEFAULT 0, -- updates since gen grew
    xid     xid8     NOT NULL,
    seq     bigint   NOT NULL,
    pend    xid8[]   NOT NULL,
    pendseq bigint[] NOT NULL,
    PRIMARY KEY (queue, gen)
) WITH (fillfactor = 50);

-- A batch of claimed jobs. It stays at least as long as one of them is fresh.
CREATE TABLE public.pawl_claim (
    fence      bigint PRIMARY KEY,
    token      bigint NOT NULL,
    mark       bigint NOT NULL, -- a random number, by which the claim reads what it took
    claimed_at bigint NOT NULL,
    lease      bigint NOT NULL,
    until      bigint NOT NULL, -- when the first lease in it may end
    lo         bigint NOT NULL, -- of seqs
    hi         bigint NOT NULL, -- 0 if there are none
    queue      text   COLLATE "C" NOT NULL,
    worker     text   COLLATE "C" NOT NULL,
    seqs       bigint[] NOT NULL, -- of the fresh jobs, with
    xids       xid8[]   NOT NULL, -- their xid
    ids        uuid[]   NOT NULL  -- of the others
);

-- The conditions, which all rows meet, are as those of pawl_job's indexes.
CREATE INDEX pawl_claim_mark ON public.pawl_claim (mark);
CREATE INDEX pawl_claim_until ON public.pawl_claim (until, fence) WHERE until > 0;
CREATE INDEX pawl_claim_queue ON public.pawl_claim (queue, claimed_at) WHERE claimed_at > 0;

CREATE OR REPLACE VIEW public.pawl_jobs AS
SELECT j.id, j.queue, j.kind,
    (ARRAY['scheduled', 'ready', 'running', 'completed', 'buried', 'canceled'])[
        CASE WHEN j.state > 0 THEN j.state WHEN c.fence IS NULL THEN 2 ELSE 3 END] AS state,
    j.reason, j.priority, CASE WHEN c.fence IS NULL THEN j.attempt ELSE 1 END AS attempt, j.max_attempts, j.rescued,
    coalesce(c.worker, j.worker) AS worker, j.ukey AS unique_key,
    to_timestamp(j.run_at / 1e6) AS run_at,
    to_timestamp(j.created_at / 1e6) AS created_at,
    to_timestamp(coalesce(c.claimed_at, j.started_at) / 1e6) AS started_at,
    to_timestamp(coalesce(c.claimed_at, j.claimed_at) / 1e6) AS claimed_at,
    to_timestamp(j.finished_at / 1e6) AS finished_at,
    to_timestamp(CASE WHEN j.state = 3 OR c.fence IS NOT NULL
        THEN coalesce(l.until, c.claimed_at + coalesce(j.lease, c.lease), j.lease_until) END / 1e6) AS lease_until,
    public.pawl_as_json(j.payload) AS payload,
    public.pawl_as_json(j.result) AS result,
    l.progress, to_json(j.failures) AS failures, j.meta
FROM public.pawl_job j
LEFT JOIN LATERAL (SELECT * FROM public.pawl_claim
    WHERE j.state = 0 AND queue = j.queue AND claimed_at > 0 AND j.seq BETWEEN lo AND hi AND j.seq = ANY (seqs) LIMIT 1) c ON true
LEFT JOIN public.pawl_lease l ON l.seq = j.seq AND l.fence = coalesce(c.fence, j.fence);

UPDATE public.pawl_meta SET version = 3;
