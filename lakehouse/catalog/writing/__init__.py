"""Commits to the catalog's tables: on the state that was inspected, and of many tables in one transaction."""
