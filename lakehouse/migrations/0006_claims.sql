-- ingestion: which follower of a shared source reads a part of it, and when that part has moved last, or had nothing
-- left to read. `seat` is the name of the follower's lease and `token` the lease's; the generation grows when the claim
-- changes hands.
CREATE TABLE lakehouse.claims (
  source text, part text, generation bigint NOT NULL, seat text NOT NULL, token bigint NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(), read_at timestamptz, PRIMARY KEY (source, part));
-- reads of such followers that are not published yet, in the order of the moments that their rows have as
-- `_ingested_at`: each goes from `base` to `reach`, and begins where the one before it ends
CREATE TABLE lakehouse.turns (
  source text, at timestamptz, seat text NOT NULL, token bigint NOT NULL, base text NOT NULL, reach text NOT NULL,
  PRIMARY KEY (source, at));
-- which of several followers wrote it; empty for one that is alone
ALTER TABLE lakehouse.staged_files ADD COLUMN writer text NOT NULL DEFAULT '';
