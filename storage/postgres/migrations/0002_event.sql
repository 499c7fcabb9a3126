-- Version 2: what NOTIFY, which goes without a payload, says only that it was.

-- What processes must act on at once, the last ones: claims that were ended by
-- someone other than their worker (2), queues that were paused (3). A lost row
-- costs time, never a job. One sender writes at a time, so seq grows in order of
-- commit.
CREATE TABLE public.pawl_event (
    seq   bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind  smallint NOT NULL,
    queue text     COLLATE "C" NOT NULL,
    id    uuid,    -- of the job
    fence bigint   -- of its claim that ended
);

UPDATE public.pawl_meta SET version = 2;
