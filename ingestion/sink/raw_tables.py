"""Raw tables: the source's columns with faithful types, then the metadata columns, partitioned by commit day."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import md5
from typing import cast

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

from ingestion.schema.evolve import Step, lake_type, widens
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import renamed, sourced
from ingestion.schema.lake_columns import LakeColumn, stepped
from ingestion.schema.problem import TableProblem
from ingestion.schema.types.declared import declared_type, is_known, source_type_of
from ingestion.sink.publish import TABLE_PROPERTIES, ensure_table
from lakehouse.catalog.objects import sync_objects
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.relations import BEGUN_AT
from lakehouse.catalog.views.current_views import view_of
from lakehouse.catalog.views.view_versions import taken_back
from lakehouse.catalog.writing.commit import retried, swap_together
from lakehouse.declarations import RawTable
from lakehouse.declarations.metadata_columns import OF_KINDS

METADATA_TYPES: Mapping[str, IcebergType] = {
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "timestamptz": TimestamptzType(),
    "list<string>": ListType(1000, StringType(), element_required=True),
}
PARTITION_BY = "_committed_at"
BEGUN = "lakehouse.altered-from"  # property of a raw table: what the newest alteration began with
_SAID = {"long": "bigint", "float": "real", "double": "double precision", "string": "text", "binary": "bytea"}
KEYED_BY = "lakehouse.keyed-by"  # property of a raw table of events: the columns of the key under which they landed


def raw_schema(table: RawTable, facts: TableFacts) -> Schema:
    """The Iceberg schema of a raw table whose columns' names are checked."""
    names = [column.lake for column in facts.columns]
    types = [lake_type(table, column) for column in facts.columns]
    fields = [
        NestedField(index, name, kind, required=False, doc=column.declared_type)
        for index, (name, kind, column) in enumerate(zip(names, types, facts.columns, strict=True), start=1)
    ]
    next_id = len(fields) + 1
    metadata = [
        NestedField(next_id + index, name, METADATA_TYPES[kind], required=False, doc=doc)
        for index, (name, (kind, doc)) in enumerate(OF_KINDS[table.kind].items())
    ]
    return Schema(*fields, *metadata)


def keyed_as_declared(table: RawTable) -> dict[str, str]:
    """The property of a raw table of events that land under the declared key, or without one. It outlasts the table's
    position, which is forgotten once the table is declared no longer."""
    return {KEYED_BY: json.dumps(sorted(table.key))} if table.raw.topic else {}


def landed_key(iceberg: Table) -> tuple[str, ...] | None:
    """The key under which events have landed last, empty where they had none; None where that is not known."""
    told = iceberg.properties.get(KEYED_BY)
    return None if told is None else tuple(json.loads(told))


def landed_facts(iceberg: Table, table: RawTable, facts: TableFacts) -> TableFacts:
    """A topic by the columns that its raw table has: how it was described, where no description is kept."""
    there = {field.name.lower(): field for field in iceberg.schema().fields}
    known = [column for column in facts.columns if column.lake.lower() in there]
    return replace(facts, columns=tuple(_landed(table, column, there[column.lake.lower()]) for column in known))


def _landed(table: RawTable, column: ColumnFacts, field: NestedField) -> ColumnFacts:
    """A column as its values have landed."""
    column = replace(column, lake=field.name)
    if lake_type(table, column) == field.field_type:
        return column
    said, is_text = field.doc or "", isinstance(field.field_type, StringType)
    is_masked = is_text and is_known(said) and declared_type(said) != field.field_type
    if is_masked or not is_known(said) or declared_type(said) != field.field_type:
        said = _SAID.get(str(field.field_type), str(field.field_type))
    found, mask = source_type_of(said), "" if column.mask == "sha256" else column.mask
    return replace(
        column, declared_type=said, type_oid=found.oid, type_name=found.name, typmod=found.typmod,
        stream_oid=found.oid, stream_typmod=found.typmod, mask="sha256" if is_masked else mask,
    )  # fmt: skip


def ensure_raw_table(catalog: SqlCatalog, table: RawTable, facts: TableFacts, now: datetime) -> Table:
    """The raw Iceberg table, created from the source's types when it is missing; `now` is after every cut published."""
    schema = raw_schema(table, facts)
    day = PartitionField(schema.find_field(PARTITION_BY).field_id, 1000, DayTransform(), "_committed_at_day")
    properties = TABLE_PROPERTIES | {"comment": table.description, BEGUN_AT: now.isoformat()}
    return ensure_table(
        catalog,
        table.identifier,
        lambda: catalog.create_table_if_not_exists(
            table.identifier, schema, partition_spec=PartitionSpec(day), properties=properties
        ),
    )


def add_metadata(iceberg: Table, table: RawTable) -> None:
    """Adds the metadata columns that a kind of source has and the table, which was of another, has not."""
    there = {field.name for field in iceberg.schema().fields}
    missing = {name: told for name, told in OF_KINDS[table.kind].items() if name not in there}
    if missing:
        with iceberg.update_schema() as update:
            for name, (kind, doc) in missing.items():
                update.add_column(name, METADATA_TYPES[kind], doc=doc)


def follow_source(
    iceberg: Table, table: RawTable, steps: Iterable[Step], followed: TableFacts, now: TableFacts, at: datetime
) -> Table:
    """Takes the steps that lead from the description that the table has `followed` to the one of `now`.

    `at` is a moment at or before that of the rows that land next, and after that of those which have landed.
    Repeating them, or others from the same beginning, ends as if nothing had been done before: a cycle may be killed,
    or the table altered once more, before the new description is kept. Columns keep their field ids, so earlier
    snapshots and files stay readable. Raises TableProblem when a column of `now` has no column in the lake.
    """
    here = {field.field_id: field for field in iceberg.schema().fields}
    begun = _schema_at(iceberg, followed)
    columns = {f.name: LakeColumn(f.field_type, f.doc or "", f.field_id) for f in begun.fields if f.field_id in here}
    known = {column.field_id for column in columns.values()}
    made = {f.name: LakeColumn(f.field_type, f.doc or "", f.field_id) for f in here.values() if f.field_id not in known}
    wanted = stepped(columns, steps, made)
    _check_columns(table, now, wanted)
    renames = {
        here[c.field_id].name: name for name, c in wanted.items() if c.field_id and here[c.field_id].name != name
    }
    transaction = Staging(iceberg)
    for lake, name in keys_renamed(table, followed, now).items():
        transaction.set_properties(sourced(lake, name, at, iceberg.properties))
    if renames or any(column.field_id is None for column in wanted.values()):
        properties = {BEGUN: f"{_digest(followed)} {begun.schema_id}"}
        for name, to in renames.items():
            properties |= renamed(name, to, at, iceberg.properties)
        transaction.set_properties(properties)
        with transaction.update_schema() as update:
            for name, to in renames.items():
                update.rename_column(name, to)
    with transaction.update_schema() as update:  # by itself: a rename may have made room for a column that is added
        for name, column in wanted.items():
            if column.field_id is None:
                update.add_column((name,), column.type, doc=column.doc)  # else a dot in it would lead into a struct
            elif widens(here[column.field_id].field_type, column.type):
                update.update_column(name, column.type, doc=column.doc)
    if renames:
        _commit_with_view(iceberg, transaction, table)
    else:
        transaction.commit_transaction()
    return iceberg.refresh()


def keys_renamed(table: RawTable, followed: TableFacts, now: TableFacts) -> dict[str, str]:
    """What the source called columns of the key that it has renamed since and the lake has not, by name in the lake."""
    before = {column.number: column for column in followed.columns} if followed.oid == now.oid else {}
    found = ((column, before.get(column.number)) for column in now.columns if column.name in table.key)
    return {
        column.lake: was.name
        for column, was in found
        if was is not None and was.lake == column.lake and was.name not in (column.name, column.lake)
    }


def _commit_with_view(iceberg: Table, altered: Staging, table: RawTable) -> None:
    """Takes the current view back at the same time: its fresh text reads columns of this table by their names."""
    catalog, view = cast(SqlCatalog, iceberg.catalog), view_of(table.source, table.name)

    def commit(loaded: Table) -> None:
        moves = [(table.identifier, loaded.metadata_location, altered.stage(catalog, loaded).metadata_location)]
        if back := taken_back(catalog, loaded.io, view):
            moves.append((back.view, back.base, back.location))
        sync_objects(loaded.io)
        swap_together(catalog, moves)

    retried(catalog, table.identifier, commit)


def _schema_at(iceberg: Table, followed: TableFacts) -> Schema:
    """The schema that the steps from this description on began with: some of them may be taken already."""
    if not is_under_way(iceberg, followed):
        return iceberg.schema()
    return iceberg.schemas().get(int(iceberg.properties[BEGUN].split()[1]), iceberg.schema())


def is_under_way(iceberg: Table, followed: TableFacts) -> bool:
    """Whether steps from this description on were taken by a cycle that did not come to its end.

    There may be none to take any more, when the source was altered back: then those are undone.
    """
    return BEGUN in iceberg.properties and iceberg.properties[BEGUN].startswith(_digest(followed))


def _digest(facts: TableFacts) -> str:
    return md5(json.dumps(facts.to_json()).encode(), usedforsecurity=False).hexdigest()


def _check_columns(table: RawTable, facts: TableFacts, wanted: Mapping[str, LakeColumn]) -> None:
    for column in facts.columns:
        type_, there = lake_type(table, column), wanted.get(column.lake)
        if there is None or not (there.type == type_ or widens(type_, there.type)):
            raise TableProblem(
                table.source,
                table.name,
                f"column {column.name!r} cannot be stored in the lake, "
                f"where {column.lake!r} is {there.type if there else 'missing'}: "
                f"`lakehouse ingest --resnapshot {table.source}.{table.name}`",
            )
