"""Hunts for histories of DDL and DML after which the lake is silently wrong: `make hunt`, or `python -m tests.hunt`.

Many independent histories share one source database, its slot and each look; the oracle is SQL against the source.
"""
