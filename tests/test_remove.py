"""`lakehouse remove`: afterwards a source keeps nothing for the lake, and its other readers keep all that they had."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.io import load_file_io

from ingestion import refresh_mirrors, source_status
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup import (
    drop_slot,
    other_readers,
    prepare,
    removal_statements,
    run_as_owner,
    slot_of,
)
from lakehouse.catalog.open import file_io_properties, open_catalog
from lakehouse.catalog.relations import list_relations
from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.slots_left import slots_left
from lakehouse_cli.source import remove as command
from lakehouse_cli.source import uninstall as uninstalling
from maintenance.inventory.lake import list_objects
from maintenance.inventory.of_source import relations_of
from tests.clusters import ROLE, Cluster, cluster
from tests.marks import slow
from tests.ports import free_port
from tests.slots import assert_refused, assert_repaired, following, orders_in, until
from tests.slots import slot_of as configured_slot
from tests.test_ingestion import assert_equal
from tests.test_prepare import unprepared
from tests.world import World

TABLES = {
    "plain": "CREATE TABLE plain (id int PRIMARY KEY, secret text)",
    "parts": "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "odd": 'CREATE SCHEMA app; CREATE TABLE app."Odd ""Name" (id int PRIMARY KEY)',
    "orders": "CREATE SCHEMA shared; CREATE TABLE shared.orders (id int PRIMARY KEY)",
}
RELATIONS = ("public.plain", "public.parts", 'app."Odd ""Name"', "shared.orders")
RIGHTS = f"""
SELECT n.nspname, c.relname, a.attname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE n.nspname IN ('public', 'app', 'shared') AND has_column_privilege('{ROLE}', c.oid, a.attnum, 'SELECT')
UNION ALL
SELECT nspname, NULL, NULL FROM pg_namespace
WHERE nspname IN ('app', 'shared') AND has_schema_privilege('{ROLE}', oid, 'USAGE')
ORDER BY 1, 2, 3
"""

PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables ORDER BY 1, 2"


@pytest.fixture(scope="module", params=["15", slow("16"), slow("17"), "18"])
def source(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as made:
        yield made


def declared(world: World, **columns: tuple[str, ...]) -> Source:
    """The world's source; of some relations these columns are left out."""
    tables = tuple(
        t.model_copy(update={"raw": RawPolicy(relation=relation, exclude=columns.get(relation, ()))})
        for t, relation in zip(world.source.tables, RELATIONS, strict=True)
    )
    return world.source.model_copy(update={"tables": tables})


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of no stack."""
    return Settings(home=tmp_path_factory.mktemp("home"))


def test_publication_and_rights_are_as_they_were_before_prepare(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    name, mine = world.source.name, declared(world, **{"public.plain": ("secret",)})
    world.sql(
        "CREATE TABLE shared.other (id int)",
        f"GRANT USAGE ON SCHEMA shared TO {ROLE}",
        f"GRANT SELECT ON shared.other TO {ROLE}",
    )
    before = world.rows(RIGHTS)
    prepare(world.settings, mine)
    assert world.rows(RIGHTS) != before

    run_as_owner(world.settings, name, removal_statements(world.settings, name))

    assert world.rows(RIGHTS) == before
    assert world.rows("SELECT * FROM pg_publication") == []
    assert removal_statements(world.settings, name) == [], "a second time there is nothing to do"


def test_of_one_table_the_publication_and_rights_of_all_others_stay(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    name, mine = world.source.name, declared(world, **{"public.plain": ("secret",)})
    without = mine.model_copy(
        update={"tables": tuple(t for t in mine.tables if t.relation[1] not in ("plain", "parts"))}
    )
    prepare(world.settings, without)
    wanted = world.rows(RIGHTS), world.rows(PUBLISHED)
    prepare(world.settings, mine)

    for relation in (("public", "plain"), ("public", "parts")):
        run_as_owner(world.settings, name, removal_statements(world.settings, name, relation))

    assert (world.rows(RIGHTS), world.rows(PUBLISHED)) == wanted
    assert removal_statements(world.settings, name, ("public", "plain")) == [], "a second time there is nothing to do"


def test_what_another_lake_reads_stays(source: Cluster, alone: Settings) -> None:
    """A second project of the source took publication and rights along, and the first had to compare every row."""
    world = unprepared(source, alone, TABLES)
    name, mine = world.source.name, declared(world)
    prepare(world.settings, mine)
    before, published = world.rows(RIGHTS), world.rows(PUBLISHED)
    publication, slot = world.settings.source(name).publication, f"another_{name}"
    with connect_source(world.settings, name) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with closing(connect_source(world.settings, name, replication=True)) as other:
            options = f"""(proto_version '1', publication_names '"{publication}"')"""
            other.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
            until(lambda: other_readers(world.settings, name) == [slot])
            for only in (None, ("public", "plain")):
                run_as_owner(world.settings, name, removal_statements(world.settings, name, only))
            assert (world.rows(RIGHTS), world.rows(PUBLISHED)) == (before, published)
        until(lambda: other_readers(world.settings, name) == [])
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    run_as_owner(world.settings, name, removal_statements(world.settings, name))
    assert world.rows("SELECT * FROM pg_publication") == []


def test_what_fails_as_the_owner_is_told_and_nothing_is_done(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    name = world.source.name
    prepare(world.settings, declared(world))
    before = world.rows(RIGHTS)
    wanted = [*removal_statements(world.settings, name), "DROP PUBLICATION not_there"]
    with pytest.raises(LakehouseError, match=r'stay: publication "not_there" does not exist'):
        run_as_owner(world.settings, name, wanted)
    assert world.rows(RIGHTS) == before


@pytest.mark.stack
def test_the_slot_goes_and_the_lake_can_go_on_later(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster() as made:
        world = orders_in(made, settings)
        name, slot = world.source.name, configured_slot(world)
        monkeypatch.setattr(command, "load_settings", lambda: world.settings)
        monkeypatch.setattr("scaffold.declared_alone", lambda settings: world.declarations)
        assert slot_of(world.settings, name) is None, "nothing has been ingested"
        world.ingest(spark)
        assert (slots_left(world.settings) or {})[name] == slot
        with pytest.raises(LakehouseError, match=r"no file of models/sources"):
            command.remove(name)
        monkeypatch.setattr("scaffold.declared_alone", lambda settings: Declarations(sources=()))
        with following(world):
            until(lambda: source_status(world.settings, name).follower_alive)
            with pytest.raises(LakehouseError, match="is at work"):
                drop_slot(world.settings, name, slot)
        command.remove(name, drop_tables=True, dry_run=True)
        assert made.admin("SELECT slot_name FROM pg_replication_slots") == [(slot,)]
        said = capsys.readouterr().out
        assert f"slot {slot} would be dropped" in said and f"table raw_{name}.orders would be dropped" in said
        assert world.raw("orders")

        command.remove(name)

        assert made.admin("SELECT slot_name FROM pg_replication_slots") == []
        assert world.rows("SELECT * FROM pg_publication") == []
        command.remove(name)
        assert f"{name}: it keeps nothing for the lake" in capsys.readouterr().out
        world.sql("UPDATE orders SET id = id + 1000000 WHERE id < 4")
        prepare(world.settings, world.source)
        assert_refused(world, spark, "--recover")
        assert_repaired(world, spark)


@pytest.mark.stack
@pytest.mark.slow
def test_with_its_tables_nothing_of_a_source_is_left_and_it_can_come_again(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster() as made:
        world, other = orders_in(made, settings), orders_in(made, settings)
        name = world.source.name
        world.ingest(spark)
        other.ingest(spark)
        refresh_mirrors(world.settings, world.declarations, name, spark)
        monkeypatch.setattr(command, "load_settings", lambda: world.settings)
        monkeypatch.setattr("scaffold.declared_alone", lambda settings: Declarations(sources=(other.source,)))
        assert objects_of(world) and relations_in_lake(world)

        command.remove(name, drop_tables=True, yes=True)

        assert objects_of(world) == [] and relations_in_lake(world) == []
        assert_equal(other, "orders")
        prepare(world.settings, world.source)
        with pytest.raises(LakehouseError, match="--recover"):
            world.ingest(spark)
        assert_repaired(world, spark)
        assert {row["_epoch"] for row in world.raw("orders")} == {2}, "behind what vault tables have of it"


@pytest.mark.stack
def test_uninstalling_leaves_nothing_in_any_source_and_names_those_where_something_stays(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[bool] = []
    with cluster() as made:
        world = orders_in(made, settings)
        world.ingest(spark)
        away = SourceSettings(url=SecretStr(f"postgresql://lake@127.0.0.1:{free_port()}/shop"))
        sources = dict(world.settings.sources)
        both = world.settings.model_copy(update={"sources": {**sources, "away": away}})
        monkeypatch.setattr(uninstalling, "load_settings", lambda: both)
        monkeypatch.setattr(uninstalling, "_end", lambda _, delete_data: ended.append(delete_data))

        with pytest.raises(LakehouseError, match=r"^away: something stays there, so nothing was stopped"):
            uninstalling.uninstall(yes=True)

        assert made.admin("SELECT slot_name FROM pg_replication_slots") == [] and not ended
        assert world.rows("SELECT * FROM pg_publication") == []
        monkeypatch.setattr(uninstalling, "load_settings", lambda: world.settings)
        uninstalling.uninstall(delete_data=True, yes=True)
        assert ended == [True] and "pip uninstall lakehouse" in capsys.readouterr().out


def objects_of(world: World) -> list[str]:
    """What the object store has of the source's own tables."""
    stored = list_objects(load_file_io(file_io_properties(world.settings)), world.settings.warehouse)
    return [each.path for each in stored if re.search(rf"/(raw|mirror)_{world.source.name}(\.db)?/", each.path)]


def relations_in_lake(world: World) -> list[str]:
    with closing(open_catalog(world.settings)) as catalog:
        return [str(each.name) for each in relations_of(list_relations(catalog), world.source.name)]
