"""Clients of the servers: Postgres, Trino, Spark; how long to wait for them, and what to say when they are gone."""
