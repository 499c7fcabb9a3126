-- Version 2: a claim whose reply was lost is found again by its token in an
-- index, instead of in the rows of all running jobs.
--
-- The index keeps its name: statements of programs of version 1 ask for it.
-- Those go on while it is built.

ALTER TABLE pawl_job DROP KEY wake, ADD KEY wake (state, wake_at, token), ALGORITHM = INPLACE, LOCK = NONE;

UPDATE pawl_meta SET version = 2 WHERE one = 1;
