"""Which engine rewrites a table's data, and how that spells a condition.

It is Spark, except for a table that Spark refuses to read because a column is named like one of Iceberg's own metadata
columns: every parsed table has `_deleted`. Trino, which wrote those tables, reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.declarations.policies import CompactPolicy
from lakehouse.text.sql import ident, literal, spark_ident, spark_literal

if TYPE_CHECKING:
    from pyiceberg.table import Table

RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)


class Dialect(NamedTuple):
    """How a name, a string, and a timestamp without a zone are spelled."""

    ident: Callable[[str], str]
    literal: Callable[[str], str]
    timestamp: str


SPARK = Dialect(spark_ident, spark_literal, "TIMESTAMP_NTZ")
TRINO = Dialect(ident, literal, "TIMESTAMP")


def spark_reads(table: Table) -> bool:
    """Whether Spark can read the table's rows."""
    return RESERVED.isdisjoint(field.name for field in table.schema().fields)


def dialect_of(table: Table) -> Dialect:
    """The dialect of the engine that rewrites the table."""
    return SPARK if spark_reads(table) else TRINO


def followed(table: Table, rule: CompactPolicy) -> CompactPolicy:
    """What of a rule its engine can follow: Trino's `optimize` merges files and keeps no order."""
    return rule if spark_reads(table) else rule.model_copy(update={"sort_by": (), "zorder_by": ()})
