"""Dagster's web server behind a login: Dagster has none, and accepts requests from any site open in a browser."""
