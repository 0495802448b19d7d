"""Compares a source with the lake: every column of every row.

It deliberately shares nothing with the path it checks: both servers spell their own values. `reconcile_raw` compares
the raw layer at one cut, by digests, while both sides go on. `reconcile` compares the `current_` views, through Trino,
with the source of now: the two are merged in key order, so memory stays bounded.
"""

from ingestion.verify.compare import Example, TableComparison, compare
from ingestion.verify.raw import reconcile_raw
from ingestion.verify.run import reconcile, select

__all__ = ["Example", "TableComparison", "compare", "reconcile", "reconcile_raw", "select"]
