"""Dagster's web server behind a login: it has none of its own, and takes commands from any page of any browser."""
