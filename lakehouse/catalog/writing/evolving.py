"""Adds the columns that this release writes to `meta` tables of an earlier release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehouse.catalog.open import load_table
from lakehouse.catalog.private_pyiceberg import iceberg_schema
from lakehouse.catalog.relations import TableName
from lakehouse.catalog.writing.commit import retried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField


def complete(catalog: SqlCatalog, table: Table, wanted: Schema | pa.Schema) -> Table:
    """The table with every column of `wanted`: those it lacks are added as optional ones, at its end.

    Columns that this release does not know stay. Another process may add the same ones at the same time.
    """
    known = iceberg_schema(wanted)

    def add_missing(now: Table) -> Table:
        if missing := lacking(now, known):
            with now.update_schema() as update:
                for field in missing:
                    update.add_column((field.name,), field.field_type, field.doc)
        return now

    return retried(catalog, TableName(*table.name()), add_missing) if lacking(table, known) else table


def lacking(table: Table, wanted: Schema) -> list[NestedField]:
    """Columns of `wanted` that the table lacks."""
    there = {field.name for field in table.schema().fields}
    return [field for field in wanted.fields if field.name not in there]


def outdated(catalog: SqlCatalog, schemas: Mapping[tuple[str, str], Schema | pa.Schema]) -> dict[str, list[str]]:
    """The missing columns by table; tables that are complete or do not exist are omitted."""
    found = {}
    for (namespace, name), wanted in schemas.items():
        table = load_table(catalog, namespace, name)
        missing = lacking(table, iceberg_schema(wanted)) if table else []
        if missing:
            found[f"{namespace}.{name}"] = [field.name for field in missing]
    return found
