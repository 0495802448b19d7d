"""dbt in the worker's process, and what it asks of Trino."""
