-- ingestion: the tables to which a publish brought what the short text of their fresh view cannot follow; null where
-- the release that published does not tell
ALTER TABLE lakehouse.cycles ADD COLUMN IF NOT EXISTS irregular text[];
