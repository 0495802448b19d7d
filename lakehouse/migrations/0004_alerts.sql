-- watch: what is wrong and has been told, and messages that no target has taken yet
CREATE TABLE IF NOT EXISTS lakehouse.alerts (key text PRIMARY KEY, alert jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS lakehouse.messages (
  id text PRIMARY KEY, target text NOT NULL, number bigint NOT NULL, message jsonb NOT NULL);
-- backup: when the last ones were made
CREATE TABLE IF NOT EXISTS lakehouse.backups (
  made_at timestamptz PRIMARY KEY, folder text NOT NULL, catalog_only boolean NOT NULL);
