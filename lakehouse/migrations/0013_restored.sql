-- backup: the databases whose catalogs were restored here, so that their backups are this lake's
CREATE TABLE IF NOT EXISTS lakehouse.restored (
  cluster text PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
