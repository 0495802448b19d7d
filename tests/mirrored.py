"""Mirrors in tests: a world that declares all columns, and the oracle, SQL against the source."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any

import pytest

from ingestion import refresh_mirrors
from ingestion.mirrors.refresh import RefreshReport
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import Column
from tests.world import World


def declaring_columns(world: World, but: Mapping[str, set[str]] = MappingProxyType({})) -> World:
    """The same world, whose tables declare every column that the source has now, but those."""
    tables = tuple(
        table.model_copy(
            update={
                "columns": tuple(
                    column
                    for column in _columns(world, *table.relation)
                    if column.name not in but.get(table.name, set())
                )
            }
        )
        for table in world.source.tables
    )
    return replace(world, source=world.source.model_copy(update={"tables": tables}))


def _columns(world: World, schema: str, name: str) -> list[Column]:
    found = world.rows(
        f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name = '{name}'"
        " ORDER BY ordinal_position"
    )
    return [Column(name=column, data_type=None, description=f"the {column}") for (column,) in found]


def refreshed(world: World, spark: Any) -> RefreshReport:
    """Brings the mirrors to the newest cut."""
    return refresh_mirrors(world.settings, world.declarations, world.source.name, spark)


def write_position_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has refreshes write them, as they do for large mirrors, and not all rows."""
    write = import_module("ingestion.mirrors.write")
    monkeypatch.setattr(write, "SMALL_BYTES", -1)
    monkeypatch.setattr(write, "MANY_DELETES", 1e9)


def assert_mirrors_equal(world: World) -> None:
    """Every row and column of every mirror is the source's."""
    for table in world.source.mirrored:
        columns = ", ".join(f'"{name}"' for name in table.landed)
        schema, name = table.relation
        theirs = world.rows(f'SELECT {columns} FROM "{schema}"."{name}"')
        assert sorted(map(repr, mirror(world, table.name))) == sorted(map(repr, theirs)), table.name


def mirror(world: World, table: str, only: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows of a mirror, as PyIceberg reads them; of all columns, or of these."""
    declared = world.source.table(table)
    catalog = open_catalog(world.settings)
    try:
        iceberg = load_table(catalog, *declared.mirror_identifier)
        assert iceberg is not None
        rows = iceberg.scan().to_arrow()
    finally:
        catalog.close()
    assert only or set(rows.column_names) == set(declared.landed)
    return list(zip(*(rows.column(name).to_pylist() for name in only or declared.landed), strict=True))


def properties(world: World, table: str) -> dict[str, str]:
    """The properties of a mirror."""
    return metadata(world, table).properties


def metadata(world: World, table: str) -> Any:
    """A mirror as its catalog has it."""
    catalog = open_catalog(world.settings)
    try:
        return catalog.load_table(world.source.table(table).mirror_identifier)
    finally:
        catalog.close()


def drop_mirror(world: World, table: str) -> None:
    """So that the next refresh reads the whole log."""
    catalog = open_catalog(world.settings)
    try:
        catalog.drop_table(world.source.table(table).mirror_identifier)
    finally:
        catalog.close()


def listed(world: World) -> list[dict[str, Any]]:
    """The rows of `meta.mirrors` of this source, oldest first."""
    catalog = open_catalog(world.settings)
    try:
        table = load_table(catalog, "meta", "mirrors")
        rows = table.scan().to_arrow().to_pylist() if table else []
    finally:
        catalog.close()
    own = (row for row in rows if row["source"] == world.source.name)
    return sorted(own, key=lambda row: row["published_at"])
