"""The servers of one machine as plain processes: two Postgres clusters, S3 and Trino, and the downloads they need."""
