-- topics: by topic the table for which it was last read, and the topic's number
ALTER TABLE lakehouse.streams ADD COLUMN IF NOT EXISTS topics jsonb NOT NULL DEFAULT '{}';
