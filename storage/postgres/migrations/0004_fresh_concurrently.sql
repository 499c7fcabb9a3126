-- Version 4: the index of the fresh lane. Its statements run one by one outside a
-- transaction, so that a large table can be used meanwhile; on an empty one they
-- may do so in a transaction, without CONCURRENTLY.

-- What a crash half-way through has left.
DROP INDEX CONCURRENTLY IF EXISTS public.pawl_job_fresh;

CREATE INDEX CONCURRENTLY pawl_job_fresh ON public.pawl_job (queue, xid, seq) WHERE state = 0;

UPDATE public.pawl_meta SET version = 4;
