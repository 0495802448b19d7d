-- ingestion: until when, by the source's clock, all that it had committed was published
ALTER TABLE lakehouse.streams ADD COLUMN IF NOT EXISTS read_at timestamptz;
