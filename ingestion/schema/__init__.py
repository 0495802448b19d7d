"""Descriptions of tables, schema changes, and what these mean for the lake. Pure."""
