"""Gives a mirror the columns that are declared now, by the fields of the raw table: a name may change hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, NestedField

from ingestion.mirrors.state import MirrorState
from ingestion.pipeline.repair.lake_side import Log
from ingestion.schema.evolve import widens
from lakehouse.declarations import RawTable


@dataclass(frozen=True)
class ColumnPlan:
    """How a mirror gets the columns that are wanted; with `anew` all its rows are read again."""

    drop: tuple[str, ...] = ()
    anew: bool = False


def plan_columns(wanted: Mapping[str, int], state: MirrorState) -> ColumnPlan:
    """Compares the raw table's fields by id, because a name may have become another column's.

    A column that the raw table did not have yet has its values in the events since; of any other new one the older
    rows have values too.
    """
    drop = tuple(name for name, field in state.columns.items() if wanted.get(name) != field)
    new = (field for name, field in wanted.items() if state.columns.get(name) != field)
    return ColumnPlan(drop, any(field <= state.last_field for field in new))


def schema_of(log: Log, table: RawTable) -> Schema:
    """The schema of a new mirror."""
    described = _descriptions(table)
    fields = [
        NestedField(n, column.lake_name, column.lake_type, required=False, doc=described.get(column.source.name))
        for n, column in enumerate(log.columns, start=1)
    ]
    return Schema(*fields)


def fit(copy: Table, log: Log, table: RawTable, plan: ColumnPlan) -> Table:
    """The copy with the columns that are wanted now."""
    here = {field.name: field for field in copy.schema().fields}
    wanted = {column.lake_name: column.lake_type for column in log.columns}
    drop = [name for name, field in here.items() if name in plan.drop or not _fits(field.field_type, wanted.get(name))]
    if drop:
        with copy.update_schema(allow_incompatible_changes=True) as update:
            for name in drop:
                update.delete_column((name,))
    described = _descriptions(table)
    with copy.update_schema() as update:
        for column in log.columns:
            name, field = column.lake_name, here.get(column.lake_name)
            if field is None or name in drop:
                update.add_column((name,), column.lake_type, described.get(column.source.name))
            elif widens(field.field_type, column.lake_type):
                update.update_column((name,), column.lake_type)
    return copy.refresh()


def _descriptions(table: RawTable) -> dict[str, str]:
    return {column.name: column.description for column in table.columns if column.description}


def _fits(type_: IcebergType, wanted: IcebergType | None) -> bool:
    return wanted is not None and (type_ == wanted or widens(type_, wanted))
