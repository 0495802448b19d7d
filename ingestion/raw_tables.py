"""Raw tables: the source's columns with faithful types, then the metadata columns, partitioned by commit day."""

import re
from collections.abc import Iterable

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from ingestion.describe import TableFacts, TableProblem
from ingestion.evolve import Step, lake_type, widens
from ingestion.publish import TABLE_PROPERTIES, ensure_table
from lakehouse.declarations import RawTable

METADATA: tuple[tuple[str, IcebergType, str], ...] = (
    ("_op", StringType(), "r snapshot row, c insert, u update, d delete, t truncate"),
    ("_epoch", IntegerType(), "incarnation of the source"),
    ("_commit_lsn", LongType(), "commit LSN of the transaction"),
    ("_seq", LongType(), "position within the transaction"),
    ("_xid", LongType(), "transaction id, widened to 64 bits"),
    ("_committed_at", TimestamptzType(), "commit time"),
    ("_ingested_at", TimestamptzType(), "when ingestion wrote the row"),
    ("_unchanged", ListType(0, StringType(), element_required=True), "TOASTed columns the update did not carry"),
    ("_old_key", StringType(), "JSON of the previous key on the c of a key change"),
)
PARTITION_BY = "_committed_at"
FORMERLY = "lakehouse.formerly."  # property of a raw table: what a renamed column was called before


def raw_schema(table: RawTable, facts: TableFacts) -> Schema:
    """The Iceberg schema of a raw table; raises TableProblem when two names would collide in Trino."""
    names = [column.lake for column in facts.columns]
    check_names(table, facts)
    types = [lake_type(table, column) for column in facts.columns]
    fields = [
        NestedField(index, name, kind, required=False, doc=column.declared_type)
        for index, (name, kind, column) in enumerate(zip(names, types, facts.columns, strict=True), start=1)
    ]
    next_id = len(fields) + 1
    for name, kind, doc in METADATA:
        if isinstance(kind, ListType):
            kind = ListType(1000, kind.element_type, element_required=True)
        fields.append(NestedField(next_id, name, kind, required=False, doc=doc))
        next_id += 1
    return Schema(*fields)


def ensure_raw_table(catalog: SqlCatalog, table: RawTable, facts: TableFacts) -> Table:
    """The raw Iceberg table, created from the source's types when it is missing."""
    schema = raw_schema(table, facts)
    day = PartitionField(schema.find_field(PARTITION_BY).field_id, 1000, DayTransform(), "_committed_at_day")
    properties = TABLE_PROPERTIES | {"comment": table.description}
    return ensure_table(
        catalog,
        table.identifier,
        lambda: catalog.create_table_if_not_exists(
            table.identifier, schema, partition_spec=PartitionSpec(day), properties=properties
        ),
    )


def follow_source(iceberg: Table, steps: Iterable[Step]) -> Table:
    """Takes the steps that are not taken yet: repeating them, after a crash in between, changes nothing.

    Renames come first and by themselves, because one of them may make room for a column that is added. Columns keep
    their field ids, so earlier snapshots and files stay readable.
    """
    steps = list(steps)
    there = {field.name: field.field_type for field in iceberg.schema().fields}
    renames = [s for s in steps if s.action == "rename" and s.column in there and s.to not in there]
    moved = {step.column for step in renames}
    renames += [
        Step("rename", step.column, to=_named_by_type(step.column, there[step.column]))
        for step in steps
        if step.action == "add" and step.type is not None and step.column in there.keys() - moved
        and not _fits(there[step.column], step.type)
    ]  # fmt: skip
    if renames:
        with iceberg.transaction() as transaction:
            transaction.set_properties({f"{FORMERLY}{step.to}": step.column for step in renames})
            with transaction.update_schema() as update:
                for step in renames:
                    update.rename_column(step.column, step.to)
        iceberg = iceberg.refresh()
    types = {field.name: field.field_type for field in iceberg.schema().fields}
    with iceberg.update_schema() as update:
        for step in steps:
            if step.action == "rename" or step.type is None:
                continue
            if step.column not in types:
                update.add_column(step.column, step.type, doc=step.doc)
            elif widens(types[step.column], step.type):
                update.update_column(step.column, step.type, doc=step.doc)
    return iceberg.refresh()


def _named_by_type(column: str, type_: IcebergType) -> str:
    return f"{column}__{re.sub(r'[^a-z0-9]+', '_', str(type_))}".rstrip("_")


def _fits(there: IcebergType, wanted: IcebergType) -> bool:
    """Whether a column that is there already, from an earlier life of the source's, can hold the wanted type."""
    return there == wanted or widens(there, wanted) or widens(wanted, there)


def check_names(table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when two columns would bear one name in Trino."""
    taken = {name for name, _, _ in METADATA}
    for name in (column.lake for column in facts.columns):
        if name.lower() in taken:
            raise TableProblem(
                f"source {table.source!r}, table {table.name!r}: column {name!r} collides (names are compared in lower "
                f"case, metadata columns included): declare meta.raw.alias: {{{name}: another_name}}"
            )
        taken.add(name.lower())
