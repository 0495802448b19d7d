-- ingestion: what has been read and is not published yet, as the catalog service shows it beside the raw table; no
-- metadata once it is published. It rests on `base_snapshot` of the table, whose metadata was at `base_location`.
CREATE TABLE IF NOT EXISTS lakehouse.live (
  source text, "table" text, namespace text NOT NULL, base_location text NOT NULL, base_snapshot bigint,
  metadata_location text, position text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (source, "table"));
-- somebody waits for what is read and not published
ALTER TABLE lakehouse.streams ADD COLUMN IF NOT EXISTS flush_asked_at timestamptz;
