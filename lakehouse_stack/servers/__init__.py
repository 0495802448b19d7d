"""Postgres, S3Proxy and Trino: how each is configured, started and checked."""
