-- worker: a row from when one is started until it ends by itself: without a living one somebody has to know
CREATE TABLE IF NOT EXISTS lakehouse.workers (
  catalog text PRIMARY KEY, began_at timestamptz NOT NULL DEFAULT clock_timestamp());
