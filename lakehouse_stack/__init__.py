"""The embedded stack: two Postgres clusters, S3Proxy and Trino as local processes, and their downloads."""
