-- ingestion: the session that the holder of a lease keeps open; it counts for the token it was stored with
ALTER TABLE lakehouse.leases ADD COLUMN IF NOT EXISTS session_pid integer;
ALTER TABLE lakehouse.leases ADD COLUMN IF NOT EXISTS session_began timestamptz;
ALTER TABLE lakehouse.leases ADD COLUMN IF NOT EXISTS session_token bigint;
-- the token of the last follower, until it ends by itself: without a living one somebody has to know
ALTER TABLE lakehouse.leases ADD COLUMN IF NOT EXISTS follower_token bigint;
