"""What loads remember of themselves and their tables in properties and summaries, and what can be told from it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.types import ListType, StringType

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads import remembered
from lakehouse.catalog.loads.remembered import LOADED, Load, LoadedInput, loaded_inputs, remember
from lakehouse.catalog.open import rows_since
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from orchestration.worker.loads.loads import columns_of

HUB, LINK = ("vault", "hub"), ("vault", "link")
KEY = f"{LOADED}stg"


@pytest.fixture
def catalog(postgres_catalog: LakeCatalog) -> LakeCatalog:
    postgres_catalog.create_namespace_if_not_exists("vault")
    for name in (HUB, LINK):
        append(postgres_catalog, name, 1)
        append(postgres_catalog, name, 2)
    return postgres_catalog


@pytest.fixture
def connection(catalog_settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as found:
        yield found


def append(catalog: LakeCatalog, name: tuple[str, str], row: int) -> None:
    """One row, with the query that wrote it in the snapshot's summary, as Trino leaves it there."""
    data = pa.table({"n": [row]})
    catalog.create_table_if_not_exists(name, data.schema).append(data, {"trino_query_id": f"q{row}"})


def test_all_tables_remember_their_snapshot_and_get_no_new_one(
    catalog: LakeCatalog, connection: psycopg.Connection[Any]
) -> None:
    before = {name: catalog.load_table(name).metadata.snapshots for name in (HUB, LINK)}
    remember(connection, catalog, {
        HUB: Load({KEY: "2026-05-01|3"}, str(before[HUB][0].snapshot_id), "q2"), LINK: Load({}),
        ("vault", "gone"): Load({KEY: "?"}),
    })  # fmt: skip
    fresh = LakeCatalog(catalog.name, **catalog.properties)
    hub, link = fresh.load_table(HUB), fresh.load_table(LINK)
    assert hub.properties[KEY] == f"2026-05-01|3|{before[HUB][-1].snapshot_id}"
    assert KEY not in link.properties
    assert [hub.metadata.snapshots, link.metadata.snapshots] == [before[HUB], before[LINK]]
    assert catalog.load_table(HUB).metadata_location == hub.metadata_location, "it knows what it has written"


def test_what_was_put_back_while_a_load_ran_remembers_nothing(
    catalog: LakeCatalog, connection: psycopg.Connection[Any]
) -> None:
    states = {name: [s.snapshot_id for s in catalog.load_table(name).metadata.snapshots] for name in (HUB, LINK)}
    for name, (first, _) in states.items():
        catalog.load_table(name).manage_snapshots().set_current_snapshot(first).commit()
    planned_on_it, wrote_it = Load({KEY: "x"}, str(states[HUB][1])), Load({KEY: "x"}, None, "q2")
    remember(connection, catalog, {HUB: planned_on_it, LINK: wrote_it})
    assert not [name for name in states if KEY in catalog.load_table(name).properties]
    remember(connection, catalog, {HUB: Load({KEY: "x"}, str(states[HUB][0]), "q1")})
    assert catalog.load_table(HUB).properties[KEY] == f"x|{states[HUB][0]}"


def test_a_table_that_another_writer_changes_meanwhile_is_left_to_its_next_load(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped_first(*arguments: Any) -> bool:
        if arguments[2] == HUB:
            append(LakeCatalog(catalog.name, **catalog.properties), HUB, 3)
        return move(*arguments)

    move = remembered.move_pointer
    monkeypatch.setattr(remembered, "move_pointer", swapped_first)
    remember(connection, catalog, {HUB: Load({KEY: "2"}), LINK: Load({KEY: "2"})})
    assert KEY not in catalog.load_table(HUB).properties and KEY in catalog.load_table(LINK).properties
    assert catalog.load_table(HUB).scan().to_arrow().num_rows == 3


def test_what_was_loaded_of_each_input_is_read_while_the_table_descends_from_it(catalog: LakeCatalog) -> None:
    first, second = (snapshot.snapshot_id for snapshot in catalog.load_table(HUB).metadata.snapshots)
    values = {"stg": f"2026-05-01|3|0001.5|12|{first}", "stg.hk_link": f"2026-05-02|4|0001.6|{second}",
              "older": "2026-05-01|3", "hash": f"md5|{second}", "columns": f"a1|{second}"}  # fmt: skip
    with catalog.load_table(HUB).transaction() as change:
        change.set_properties({LOADED + name: value for name, value in values.items()} | {"comment": "1|2|3|4"})
    one, other = LoadedInput("stg", "2026-05-01", 3, "0001.5", "12"), LoadedInput("stg", "2026-05-02", 4, "0001.6")
    assert loaded_inputs(catalog.load_table(HUB).metadata) == {one, other}
    catalog.load_table(HUB).manage_snapshots().set_current_snapshot(first).commit()
    assert loaded_inputs(catalog.load_table(HUB).metadata) == {one}, "it was put back"


def test_columns_are_told_as_trino_describes_them_or_not_at_all(catalog: LakeCatalog) -> None:
    hub = catalog.load_table(HUB)
    with hub.update_schema() as update:
        update.update_column("n", doc=f"A {ident('number')}.")
    assert columns_of({HUB: catalog.load_table(HUB)}) == {"vault.hub": [["n", "bigint", 'A "number".']]}
    with catalog.load_table(LINK).update_schema() as update:
        update.add_column("_unchanged", ListType(element_id=1, element_type=StringType()))
    raw = columns_of({LINK: catalog.load_table(LINK)})["vault.link"]
    assert raw[1] == ["_unchanged", "array(varchar)", ""], "every raw table has it"
    data = pa.table({"n": [[1]]})
    odd = catalog.create_table(("vault", "odd"), data.schema)
    assert columns_of({("vault", "odd"): odd}) == {}


def test_rows_of_all_cycles_since_a_snapshot_are_counted_or_none(catalog: LakeCatalog) -> None:
    """A load that found a follower's work done said that no rows had come."""
    name, data = ("vault", "log"), pa.table({"n": [1]})
    table = catalog.create_table(name, data.schema)
    for created, deleted in ((3, 0), (2, 1), (0, 4)):
        counts = {f"lakehouse.rows.{op}": str(count) for op, count in (("c", created), ("d", deleted)) if count}
        table.append(data, counts)
    first, second, third = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert rows_since(catalog, {name: None, ("vault", "gone"): None}) == {name: {"c": 5, "d": 5}}
    assert rows_since(catalog, {name: first}) == {name: {"c": 2, "d": 5}}
    assert rows_since(catalog, {name: third}) == {name: {}}
    table.manage_snapshots().set_current_snapshot(first).commit()
    assert rows_since(catalog, {name: second}) == {}, "it was put back"
