"""Ingestion as its callers see it: bring a source up once, follow it, operate on one table."""
