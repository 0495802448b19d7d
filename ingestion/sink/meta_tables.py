"""The tables of the namespace `meta` that ingestion keeps beside the raw layer, appended to by the same publish.

`cuts`: what every reader goes by (see `publish`). `spool`: records of tables that cannot or must not land now, as the
bytes that the slot sent. `quarantine`: single records that cannot be decoded or written. `unrepresentable`: texts of
values that the lake's types cannot hold. `schema_changes`: what was altered in the source, and what the lake did.

`mirrors`: the cut at which the mirrors of a source stand, a row per refresh.
"""

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from ingestion.sink.cuts import CUTS, CUTS_SCHEMA
from ingestion.sink.publish import TABLE_PROPERTIES, ensure_table
from lakehouse.catalog.writing.evolving import complete


def _schema(**columns: IcebergType) -> Schema:
    fields = [NestedField(i, name, type_, required=False) for i, (name, type_) in enumerate(columns.items(), start=1)]
    return Schema(*fields)


_RECORDS = _schema(
    source=StringType(),
    table=StringType(),
    epoch=IntegerType(),
    commit_lsn=LongType(),
    seq=LongType(),
    xid=LongType(),
    committed_at=TimestamptzType(),
    reason=StringType(),
    relation=BinaryType(),
    message=BinaryType(),
    kept_at=TimestamptzType(),
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
)
SCHEMAS = {
    "spool": _RECORDS,
    "quarantine": _RECORDS,
    "unrepresentable": _schema(
        source=StringType(),
        table=StringType(),
        column=StringType(),
        epoch=IntegerType(),
        commit_lsn=LongType(),
        seq=LongType(),
        text=StringType(),
    ),
    "schema_changes": _schema(
        source=StringType(),
        table=StringType(),
        epoch=IntegerType(),
        noticed_lsn=LongType(),
        noticed_at=TimestamptzType(),
        kind=StringType(),
        column=StringType(),
        before=StringType(),
        after=StringType(),
        effect=StringType(),
    ),
}

MIRRORS = ("meta", "mirrors")
MIRRORS_SCHEMA = Schema(*(field for field in CUTS_SCHEMA.fields if field.name != "position"))


def known_schemas() -> dict[tuple[str, str], Schema]:
    """Every table of the namespace `meta` that ingestion makes, with the columns it writes."""
    return {CUTS: CUTS_SCHEMA, MIRRORS: MIRRORS_SCHEMA} | {("meta", name): schema for name, schema in SCHEMAS.items()}


def ensure_mirrors(catalog: SqlCatalog) -> Table:
    """`meta.mirrors`, made, or given columns, where they are missing."""

    def create() -> Table:
        return catalog.create_table_if_not_exists(MIRRORS, MIRRORS_SCHEMA, properties=TABLE_PROPERTIES)

    return complete(catalog, ensure_table(catalog, MIRRORS, create), MIRRORS_SCHEMA)


def ensure_meta(catalog: SqlCatalog, name: str) -> Table:
    """The table `meta.<name>`, partitioned by source and table; made, or given columns, where they are missing."""
    schema = SCHEMAS[name]
    spec = PartitionSpec(
        *(
            PartitionField(schema.find_field(column).field_id, 1000 + index, IdentityTransform(), column)
            for index, column in enumerate(("source", "table"))
        )
    )

    def create() -> Table:
        return catalog.create_table_if_not_exists(
            ("meta", name), schema, partition_spec=spec, properties=TABLE_PROPERTIES
        )

    return complete(catalog, ensure_table(catalog, ("meta", name), create), schema)
