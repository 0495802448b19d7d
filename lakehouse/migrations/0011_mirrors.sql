-- mirrors: a row of each source from its first refresh: when one was begun and ended last, what came of that, and how
-- many have failed in a row; the newest publish and cut that a refresh has brought, and the tables whose mirrors it left as they were, with since when
-- and why
CREATE TABLE IF NOT EXISTS lakehouse.mirrors (
  source text PRIMARY KEY, begun_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz,
  outcome text, failures int NOT NULL DEFAULT 0, said text, seen timestamptz, epoch int, cut_lsn bigint, aside jsonb NOT NULL DEFAULT '{}');
