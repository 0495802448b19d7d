"""Backup and restore of the lake: the catalog's database and the warehouse's objects, which are one thing.

A restored catalog is older than the warehouse. It is rolled forward from the metadata files that lie there, so that no
row that was ingested since is lost, and ingestion goes on where it stopped.
"""
