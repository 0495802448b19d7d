-- ingestion: how many rows a cycle has published in raw tables; null of cycles from before
ALTER TABLE lakehouse.cycles ADD COLUMN IF NOT EXISTS rows bigint;
