"""Maintains Iceberg tables: compaction, snapshot expiry, orphan removal, statistics. Actions are plain functions
`(session, table, policy) -> Outcome`."""
