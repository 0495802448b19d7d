"""The processes behind runs: who serves a job and who writes, orphaned runs, signals, queries that a dead dbt left."""
