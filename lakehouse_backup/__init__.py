"""Backup and restore of the lake: the catalog database together with the objects of the warehouse.

A restored catalog is older than the warehouse. It is rolled forward from the metadata files in the warehouse, so that
no row ingested since the backup is lost and ingestion continues from its last position.
"""
