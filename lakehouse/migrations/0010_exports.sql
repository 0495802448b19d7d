-- export: a row of each second catalog from when somebody begins to keep it up to date until he ends by himself; when
-- that was tried last, when it was done last, and why it was not
CREATE TABLE IF NOT EXISTS lakehouse.exports (
  catalog text, target text, every_seconds double precision NOT NULL,
  began_at timestamptz NOT NULL DEFAULT clock_timestamp(), tried_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at timestamptz, error text, PRIMARY KEY (catalog, target));
