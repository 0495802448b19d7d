"""A pinned cut: mirrors, raw tables and marts together, in SQL and as a warehouse, whatever happens afterwards."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import PrivateAttr

from ingestion import pause
from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.past import newest_until
from lakehouse.catalog.relations import TableName
from lakehouse.catalog.writing.next_tables import building_next
from lakehouse.declarations import Declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_serve.past.asked import at_cut, at_moment, moment_of
from lakehouse_serve.past.moments import Moment
from lakehouse_serve.past.states import together
from maintenance.inventory.pins import unpin
from maintenance.inventory.session import Session
from orchestration.resources import Lake
from tests.mirrored import declaring_columns, listed, mirror, refreshed
from tests.serving import Served, served
from tests.slots import until
from tests.world import World, make_world, without_mirrors

pytestmark = pytest.mark.stack

DDL = "CREATE TABLE orders (id int PRIMARY KEY, item text); CREATE TABLE notes (at int)"
TABLES = {
    "orders": RawPolicy(relation="public.orders", key=("id",)),
    "notes": RawPolicy(relation="public.notes"),
}


@pytest.fixture
def world(settings: Settings, spark: Any) -> Iterator[World]:
    """Three orders and a note in raw and the mirror, and a mart over them."""
    world = declaring_columns(make_world(settings, DDL, TABLES))
    world.sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')", "INSERT INTO notes VALUES (1)")
    build(world, spark)
    yield world
    query(settings, f"DROP TABLE marts.{world.source.name}")


def build(world: World, spark: Any) -> None:
    world.ingest(spark)
    refreshed(world, spark)
    query(world.settings, "CREATE SCHEMA IF NOT EXISTS marts")
    rows = f"SELECT max(id) AS id, array_join(array_agg(item ORDER BY id), '') AS items FROM {orders(world)}"
    query(world.settings, f"CREATE OR REPLACE TABLE marts.{world.source.name} AS {rows}")


def orders(world: World) -> str:
    return f"mirror_{world.source.name}.orders"


def go_on(world: World, spark: Any) -> None:
    """Everything changes, and what is not pinned expires."""
    world.sql(
        "DELETE FROM orders WHERE id = 1", "UPDATE orders SET item = item || item", "INSERT INTO notes VALUES (2)"
    )
    build(world, spark)
    for table in (f"raw_{world.source.name}.notes", orders(world), f"marts.{world.source.name}"):
        spark.sql(f"CALL lake.system.expire_snapshots(table => 'lake.{table}', older_than => now(), retain_last => 1)")


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`lakehouse pin` of a project that declares this world."""
    module = import_module("lakehouse_cli.lake.pin")
    monkeypatch.setattr(module, "load_settings", lambda: world.settings)
    monkeypatch.setattr("lakehouse.declarations.load_declarations", lambda _: world.declarations)
    return cast(Callable[..., None], module.pin)


class WorldLake(Lake):
    """What Dagster's runs reach, of one world."""

    _world: Any = PrivateAttr()

    def settings(self) -> Settings:
        return cast(Settings, self._world.settings)

    def declarations(self) -> Declarations:
        return cast(Declarations, self._world.declarations)


@pytest.fixture
def service(settings: Settings, world: World, tmp_path: Path) -> Iterator[Served]:
    relations = [
        {"schema": schema, "name": name, "least": "reader", "personal": []}
        for schema, name in ((f"mirror_{world.source.name}", "orders"), ("marts", world.source.name))
    ]
    with served(settings, tmp_path / "access", relations) as found:
        yield found


@pytest.mark.slow
def test_a_pin_is_a_warehouse_and_a_cut_that_mirrors_raw_and_marts_have_together(
    settings: Settings,
    spark: Any,
    world: World,
    service: Served,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, name = world.source.name, f"close_{world.source.name}"
    command(name, as_json=True, cut=None, until=None)
    made = json.loads(capsys.readouterr().out)
    assert {(pin["consumer"], pin["until"]) for pin in made} == {(name, None)}
    [cut] = {pin["cut"] for pin in made}
    assert cut.startswith(f"{source}=1:")
    assert {pin["table"] for pin in made} == {
        f"raw_{source}.orders", f"raw_{source}.notes", f"mirror_{source}.orders", *marts(settings),
    }  # fmt: skip
    before = sorted(mirror(world, "orders"))
    go_on(world, spark)
    for role, namespaces in (("reader", {"mirror", "marts"}), ("writer", {"mirror", "marts", "raw"})):
        client = service.client(role, f"lake@pin:{name}")
        assert {namespace.split("_")[0] for (namespace,) in client.list_namespaces()} == namespaces
        rows = client.load_table((f"mirror_{source}", "orders")).scan().to_arrow().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == before
        mart = client.load_table(("marts", source)).scan().to_arrow().to_pylist()
        assert mart == [{"id": 3, "items": "abc"}]
    raw = client.load_table((f"raw_{source}", "notes")).scan().to_arrow().to_pylist()
    assert [row["at"] for row in raw] == [1]
    joined = f"SELECT o.id, o.item, m.items FROM {orders(world)} o JOIN marts.{source} m ON m.id >= o.id"
    counted = f"SELECT count(*) FROM raw_{source}.notes"
    assert answer(world, joined, f"pin:{name}") == [(i, item, "abc") for i, item in before]
    assert answer(world, counted, f"pin:{name}") == [(1,)] and query(settings, counted) == [[2]]
    query(settings, f"INSERT INTO raw_{source}.notes SELECT * FROM raw_{source}.notes WHERE at = 1")
    assert answer(world, counted, f"pin:{name}") == [(1,)], "what lands late, as by `ingest --replay`, came after it"
    with closing(Session(world.settings)) as session:
        unpin(session, name)
        assert not [key for key in session.catalog.load_table(("marts", source)).properties if name in key]
    until(lambda: is_refused(service, f"lake@pin:{name}", f"there is no pin '{name}'"), 20)
    with pytest.raises(LakehouseError, match=f"there is no pin '{name}'"):
        answer(world, counted, f"pin:{name}")


def test_a_mart_keeps_when_its_former_builds_were_published(settings: Settings) -> None:
    """Trino leaves it out where it replaces a table: a pin of a moment during the build before took what came after."""
    mart, replace = ("marts", "replaced"), "CREATE OR REPLACE TABLE {}.{} AS SELECT {} AS id"

    def at(moment: datetime) -> tuple[int | None, bool]:
        return newest_until(catalog.load_table(mart).metadata, moment)

    query(settings, "CREATE SCHEMA IF NOT EXISTS marts")
    query(settings, replace.format(*mart, 1))
    with closing(open_catalog(settings)) as catalog:
        first, before = catalog.load_table(mart).metadata.current_snapshot_id, datetime.now(UTC)
        with building_next(catalog, {mart: {}}) as sound:
            query(settings, replace.format(*next_name(mart), 2))
            sound.add(mart)
            built = datetime.now(UTC)
            time.sleep(0.1)
        second, published = catalog.load_table(mart).metadata.current_snapshot_id, datetime.now(UTC)
        assert (at(before), at(built), at(published)) == ((first, True), (first, True), (second, True))
        with building_next(catalog, {mart: {}}) as sound:
            query(settings, replace.format(*next_name(mart), 3))
            sound.add(mart)
        third = catalog.load_table(mart).metadata.current_snapshot_id
        assert len({first, second, third}) == 3
        assert (at(before), at(built), at(published)) == ((first, True), (first, True), (second, True))
        assert at(datetime.now(UTC)) == (third, True)
    query(settings, "DROP TABLE marts.replaced")


def is_refused(service: Served, warehouse: str, why: str) -> bool:
    """A service knows a pin for some seconds."""
    try:
        service.client("reader", warehouse)
    except Exception as error:
        return why in str(error)
    return False


def marts(settings: Settings) -> set[str]:
    return {f"marts.{name}" for (name,) in query(settings, "SHOW TABLES FROM marts")}


def answer(world: World, text: str, cut: str) -> list[Any]:
    rewritten, _ = at_cut(world.settings, text, moment_of(world.settings, cut), "writer")
    return sorted(tuple(row) for row in query(world.settings, rewritten))


@pytest.mark.slow
def test_a_cut_of_the_past_is_pinned_at_the_last_refresh_before_it(
    settings: Settings, spark: Any, world: World
) -> None:
    """Raw is at the same cut, although there are later ones until that moment."""
    source = world.source.name
    first = listed(world)[-1]["cut_lsn"]
    world.sql("INSERT INTO orders VALUES (4, 'late')")
    world.ingest(spark)
    at = datetime.now(UTC)
    world.sql("INSERT INTO orders VALUES (5, 'later')")
    build(world, spark)
    lake, end = WorldLake(), at + timedelta(days=1)
    lake._world = world
    made, *_ = lake.pin_cut(f"past_{source}", at, end)
    try:
        assert not lake.pin_cut(f"past_{source}", at, end)[0], "it is there already"
        [cut] = together(world.settings, Moment(at=at), [world.source]).cuts
        assert cut.lsn == first and {pin.cut for pin in made} == {str(cut.position)}
        assert answer(world, f"SELECT count(*) FROM {orders(world)}", f"pin:past_{source}") == [(3,)]
        assert answer(world, f"SELECT count(*) FROM raw_{source}.orders", f"pin:past_{source}") == [(3,)]
        assert answer(world, f"SELECT items FROM marts.{source}", f"pin:past_{source}") == [("abc",)]
        exactly = str(cut.position)
        assert answer(world, f"SELECT max(item) FROM {orders(world)}", exactly) == [("c",)]
        with pytest.raises(LakehouseError, match=r"no cut is exactly there: the newest until then is .*; --as-of"):
            answer(world, f"SELECT 1 FROM {orders(world)}", f"{source}=1:7FFFFFFF/0")
        with pytest.raises(LakehouseError, match=r"marts\..* has no past: .* or a pin"):
            answer(world, f"SELECT 1 FROM marts.{source}", exactly)
        with pytest.raises(LakehouseError, match="is no time and no position: use --as-of-cut"):
            at_moment(world.settings, "SELECT 1", moment_of(world.settings, f"pin:past_{source}"), "writer")
    finally:
        with closing(Session(world.settings)) as session:
            unpin(session, f"past_{source}")


@pytest.mark.slow
def test_a_pin_that_comes_late_keeps_all_but_what_has_left_the_metadata_of_a_busy_table(
    spark: Any, world: World
) -> None:
    """A follower publishes each second: the pin of midnight failed as a whole a few minutes after it."""
    source, midnight = world.source.name, datetime.now(UTC)
    few = world.settings.ingestion.model_copy(update={"max_snapshots": 10})
    busy = replace(world, settings=world.settings.model_copy(update={"ingestion": few}))
    for number in range(4, 15):
        busy.sql(f"INSERT INTO orders VALUES ({number}, 'later')")
        busy.ingest(spark)
    lake = WorldLake()
    lake._world = world
    made, missing, _ = lake.pin_cut(f"late_{source}", midnight, midnight + timedelta(days=1))
    try:
        assert missing == (
            f"raw_{source}.orders is not in it: its snapshot of then has left the metadata, or it was made again since",
        )
        assert {f"raw_{source}.notes", orders(world), f"marts.{source}"} <= {str(pin.table) for pin in made}
        for relation in (f"raw_{source}.orders", orders(world)):
            assert answer(world, f"SELECT count(*) FROM {relation}", f"pin:late_{source}") == [(3,)]
    finally:
        with closing(Session(world.settings)) as session:
            unpin(session, f"late_{source}")


@pytest.mark.slow
def test_a_pin_says_what_was_committed_and_not_ingested_by_then_and_which_tables_are_not_in_it(
    settings: Settings, spark: Any, world: World
) -> None:
    """A month-end after an outage lacked its last hours, and a parked table, and nobody was told; and each one its last
    minutes, up to three refreshes of mirrors."""
    source = world.source.name
    world.sql("INSERT INTO orders VALUES (4, 'before midnight')")
    midnight = datetime.now(UTC)
    world.sql("INSERT INTO notes VALUES (2)")
    build(world, spark)
    [text] = together(settings, Moment(at=midnight), [world.source]).missing
    assert text.startswith(f"orders of {source} had changes until then that are not in it")
    before = datetime.now(UTC)
    assert not together(settings, Moment(at=before), [world.source]).missing
    pause(settings, world.source.table("notes"))
    world.sql("INSERT INTO orders VALUES (5, 'after')")
    build(world, spark)
    state = together(settings, Moment(at=datetime.now(UTC)), [world.source])
    assert [text.split(": ")[:2] for text in state.missing] == [["not in it", f"{source}.notes"]]
    unknown = world.source.model_copy(update={"name": "never"})
    missing = together(settings, Moment(at=datetime.now(UTC)), [world.source, unknown]).missing
    assert "never is not in it: no cut of it was published until then" in missing
    query(settings, f"DROP TABLE raw_{source}.notes")
    state = together(settings, Moment(at=before), [world.source])
    assert state.missing == (f"raw_{source}.notes is not in it: it was dropped since",)
    assert TableName(f"raw_{source}", "orders") in state.snapshots


@pytest.mark.slow
def test_a_pin_is_of_the_newest_cut_and_says_that_mirrors_are_not_in_it_where_they_are_stuck(
    settings: Settings,
    spark: Any,
    world: World,
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither a table without a mirror nor a compaction makes a mirror old."""
    monkeypatch.setattr("lakehouse_serve.past.states.LATE_REFRESHES", 0)
    source, name = world.source.name, f"stuck_{world.source.name}"
    [first] = together(settings, Moment(at=datetime.now(UTC)), [world.source]).cuts
    world.sql("INSERT INTO notes VALUES (2)")
    world.ingest(spark)
    whole = "options => map('rewrite-all', 'true')"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => 'lake.raw_{source}.orders', {whole})")
    world.sql("INSERT INTO notes VALUES (3)")
    world.ingest(spark)
    state = together(settings, Moment(at=datetime.now(UTC)), [world.source])
    assert state.cuts != (first,) and not state.missing, "the notes are there, and the mirror is as it would be"
    assert TableName(f"mirror_{source}", "orders") in state.snapshots
    world.sql("INSERT INTO orders VALUES (4, 'd')")
    world.ingest(spark)
    command(name, as_json=False, cut=None, until=None)
    try:
        assert f"{name}: mirrors of {source} are not in it: they were not refreshed since {first.position}" in (
            capsys.readouterr().err.replace("\n", " ")
        )
        assert answer(world, f"SELECT count(*) FROM raw_{source}.orders", f"pin:{name}") == [(4,)]
        with pytest.raises(LakehouseError, match=rf"mirror_{source}.orders has no snapshot .* no parsed\.parsed_"):
            answer(world, f"SELECT 1 FROM {orders(world)}", f"pin:{name}")
        state = together(settings, Moment(at=datetime.now(UTC)), [without_mirrors(world.source)])
        assert state.cuts != (first,) and not state.missing
    finally:
        with closing(Session(world.settings)) as session:
            unpin(session, name)
