"""Clients of Postgres, Trino and Spark, their retries, and the errors for servers that do not answer."""
