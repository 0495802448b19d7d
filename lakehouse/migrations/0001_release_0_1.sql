-- The state as release 0.1.0 keeps it. That release did not stamp it, and its development added columns one by one:
-- every statement does nothing where its work is done.

-- ingestion: how far each source and each table is in the lake
CREATE TABLE IF NOT EXISTS lakehouse.streams (
  source text PRIMARY KEY, epoch integer NOT NULL, lsn bigint NOT NULL, slot text NOT NULL,
  system_identifier text NOT NULL, timeline integer NOT NULL, publication_oid bigint NOT NULL,
  cut_lsn bigint, cut_at timestamptz, cut_tables text[] NOT NULL DEFAULT '{}',
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp());
ALTER TABLE lakehouse.streams ADD COLUMN IF NOT EXISTS revision bigint NOT NULL DEFAULT 0;
CREATE TABLE IF NOT EXISTS lakehouse.positions (
  source text, "table" text, epoch integer NOT NULL, lsn bigint NOT NULL, state text NOT NULL,
  facts jsonb NOT NULL DEFAULT '{}', updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (source, "table"));
ALTER TABLE lakehouse.positions ADD COLUMN IF NOT EXISTS point bigint NOT NULL DEFAULT 0;
ALTER TABLE lakehouse.positions ADD COLUMN IF NOT EXISTS reason text;
CREATE TABLE IF NOT EXISTS lakehouse.chunks (
  source text, "table" text, number integer, relation text[] NOT NULL, first_page bigint NOT NULL, end_page bigint,
  point bigint, PRIMARY KEY (source, "table", number));

-- ingestion: who publishes, what was published, what is being written
CREATE TABLE IF NOT EXISTS lakehouse.leases (
  source text PRIMARY KEY, token bigint NOT NULL, holder text NOT NULL, mode text NOT NULL,
  acquired_at timestamptz NOT NULL, expires_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS lakehouse.cycles (
  cycle_id text PRIMARY KEY, source text NOT NULL, epoch integer NOT NULL, cut_lsn bigint,
  published_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX IF NOT EXISTS cycles_by_age ON lakehouse.cycles (source, published_at);
CREATE TABLE IF NOT EXISTS lakehouse.staged_files (
  cycle_id text, source text NOT NULL, prefix text, created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (cycle_id, prefix));
CREATE TABLE IF NOT EXISTS lakehouse.progress (
  source text PRIMARY KEY, phase text NOT NULL, done bigint NOT NULL, total bigint NOT NULL, rows bigint NOT NULL,
  began_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);

-- ingestion: what proves that a slot is the one that was read
CREATE TABLE IF NOT EXISTS lakehouse.slots (
  source text PRIMARY KEY, epoch integer NOT NULL, made_lsn bigint NOT NULL);
CREATE TABLE IF NOT EXISTS lakehouse.witnesses (
  source text PRIMARY KEY, epoch integer NOT NULL, commit_lsn bigint NOT NULL, committed_at timestamptz NOT NULL);

-- maintenance: files out of use that are not deleted yet
CREATE TABLE IF NOT EXISTS lakehouse.removed_files (
  path text PRIMARY KEY, namespace text NOT NULL, "table" text NOT NULL, size bigint,
  removed_at timestamptz NOT NULL DEFAULT clock_timestamp(), action text NOT NULL, metadata_location text NOT NULL);
CREATE INDEX IF NOT EXISTS removed_files_by_table ON lakehouse.removed_files (namespace, "table", removed_at);

-- erasure: what was erased, and files that are about to be cut off
CREATE TABLE IF NOT EXISTS lakehouse.erasures (id text PRIMARY KEY, tombstone jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS lakehouse.condemned (
  namespace text, "table" text, path text, PRIMARY KEY (namespace, "table", path));
