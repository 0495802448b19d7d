"""Compares a source with the lake: every column of every row, as it is now.

It deliberately shares nothing with the path it checks: the source's rows come as the text that Postgres prints, the
lake's through Trino from the `current_` views, and the two are merged in key order, so memory stays bounded.
"""

from ingestion.reconcile.compare import Example, TableComparison, compare
from ingestion.reconcile.run import reconcile

__all__ = ["Example", "TableComparison", "compare", "reconcile"]
