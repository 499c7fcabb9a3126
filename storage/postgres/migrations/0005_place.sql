-- Version 5: a claim finds its fresh jobs by where their rows are.

-- Where the rows of seqs are; NULL if the claim did not say. A row of a fresh job
-- does not move, unless all rows do, as with VACUUM FULL.
ALTER TABLE public.pawl_claim ADD COLUMN tids tid[];

UPDATE public.pawl_meta SET version = 5;
