"""Postgres as a source: logical replication slots, snapshots, and what its catalog says."""
