-- worker: when one began in the place of one that had not ended by itself, within the last hour
ALTER TABLE lakehouse.workers ADD COLUMN IF NOT EXISTS restarts timestamptz[] NOT NULL DEFAULT '{}';
