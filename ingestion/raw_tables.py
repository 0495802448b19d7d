"""Raw tables: the source's columns with faithful types, then the metadata columns, partitioned by commit day."""

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

from ingestion.describe import ColumnFacts, TableFacts
from ingestion.publish import TABLE_PROPERTIES, ensure_table
from ingestion.types import SourceType, target_type
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

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


def source_type(column: ColumnFacts) -> SourceType:
    """The column's type as the conversion table knows it."""
    return SourceType(oid=column.type_oid, name=column.type_name, typmod=column.typmod, kind=column.type_kind)


def lake_name(table: RawTable, column: str) -> str:
    """The column's name in the lake: its own, or its declared alias."""
    return table.raw.alias.get(column, column)


def raw_schema(table: RawTable, facts: TableFacts) -> Schema:
    """The Iceberg schema of a raw table; raises LakehouseError when two names would collide in Trino."""
    names = [lake_name(table, column.name) for column in facts.columns]
    _check_names(table, names)
    types = [_column_type(table, column) for column in facts.columns]
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


def add_missing_columns(iceberg: Table, table: RawTable, facts: TableFacts) -> Table:
    """Adds columns that the source has gained, before the metadata columns' meaning changes for anyone."""
    existing = {field.name for field in iceberg.schema().fields}
    added = [column for column in facts.columns if lake_name(table, column.name) not in existing]
    if not added:
        return iceberg
    with iceberg.update_schema() as update:
        for column in added:
            update.add_column(lake_name(table, column.name), _column_type(table, column), doc=column.declared_type)
    return iceberg.refresh()


def _column_type(table: RawTable, column: ColumnFacts) -> IcebergType:
    if table.raw.mask.get(column.name) == "sha256":
        return StringType()
    return target_type(source_type(column)).iceberg


def _check_names(table: RawTable, names: list[str]) -> None:
    taken = {name for name, _, _ in METADATA}
    for name in names:
        if name.lower() in taken:
            raise LakehouseError(
                f"source {table.source!r}, table {table.name!r}: column {name!r} collides (names are compared in lower "
                f"case, metadata columns included): declare meta.raw.alias: {{{name}: another_name}}"
            )
        taken.add(name.lower())
