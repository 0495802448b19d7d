-- Positions as text, in the form in which their source writes them, and the kind of a source, which reads them again.
-- Each stays beside its number, `lsn` and `point`, in which a process of release 0.1 reads and writes it.
ALTER TABLE lakehouse.streams ADD COLUMN kind text NOT NULL DEFAULT 'postgres';
ALTER TABLE lakehouse.streams ADD COLUMN position text;
ALTER TABLE lakehouse.streams ADD COLUMN cut_position text;
ALTER TABLE lakehouse.positions ADD COLUMN position text;
ALTER TABLE lakehouse.positions ADD COLUMN snapshot_position text;

UPDATE lakehouse.streams SET position = upper(to_hex(lsn >> 32) || '/' || to_hex(lsn & 4294967295)),
  cut_position = upper(to_hex((cut_lsn + 1) >> 32) || '/' || to_hex((cut_lsn + 1) & 4294967295));
UPDATE lakehouse.positions SET position = upper(to_hex(lsn >> 32) || '/' || to_hex(lsn & 4294967295)),
  snapshot_position = upper(to_hex(point >> 32) || '/' || to_hex(point & 4294967295));
-- why a table needs a resync once its records land again, which release 0.1 calls `doubt`
UPDATE lakehouse.positions SET facts = facts || jsonb_build_object('resync_reason', facts -> 'doubt')
  WHERE facts ? 'doubt';
