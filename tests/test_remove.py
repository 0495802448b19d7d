"""`lakehouse remove`: afterwards a source keeps nothing for the lake, and its other readers keep all that they had."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.io import load_file_io

from ingestion import refresh_mirrors, source_status
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup import kept, prepare, run_as_owner, slot_of
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import file_io_properties, open_catalog
from lakehouse.catalog.relations import list_relations
from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.slots_left import slots_left
from lakehouse_cli.source import remove as command
from lakehouse_cli.source import uninstall as uninstalling
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
PLAIN = ("public", "plain")


def due(world: World, only: tuple[str, str] | None = None, ours: set[tuple[str, str]] | None = None) -> list[str]:
    """What the owner has to run now."""
    wanted = {only} if only else ours
    return list(kept(world.settings, world.source.name, None, wanted, whole=only is None).due)


def give_back(world: World, only: tuple[str, str] | None = None, ours: set[tuple[str, str]] | None = None) -> None:
    run_as_owner(world.settings, world.source.name, due(world, only, ours))


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
    mine = declared(world, **{"public.plain": ("secret",)})
    world.sql(
        "CREATE TABLE shared.other (id int)",
        f"GRANT USAGE ON SCHEMA shared TO {ROLE}",
        f"GRANT SELECT ON shared.other TO {ROLE}",
    )
    before = world.rows(RIGHTS)
    prepare(world.settings, mine)
    assert world.rows(RIGHTS) != before

    give_back(world)

    assert world.rows(RIGHTS) == before
    assert world.rows("SELECT * FROM pg_publication") == []
    assert due(world) == [], "a second time there is nothing to do"


def test_of_one_table_the_publication_and_rights_of_all_others_stay(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    mine = declared(world, **{"public.plain": ("secret",)})
    without = mine.model_copy(
        update={"tables": tuple(t for t in mine.tables if t.relation[1] not in ("plain", "parts"))}
    )
    prepare(world.settings, without)
    wanted = world.rows(RIGHTS), world.rows(PUBLISHED)
    prepare(world.settings, mine)

    for relation in (("public", "plain"), ("public", "parts")):
        give_back(world, relation)

    assert (world.rows(RIGHTS), world.rows(PUBLISHED)) == wanted
    assert due(world, PLAIN) == [], "a second time there is nothing to do"


def test_what_another_lake_may_read_stays(source: Cluster, alone: Settings) -> None:
    """A second project of the source took publication and rights along, and the first had to compare every row; then it
    did so while no follower of the first one streamed."""
    world = unprepared(source, alone, TABLES)
    name, mine = world.source.name, declared(world)
    prepare(world.settings, mine)
    before, published = world.rows(RIGHTS), world.rows(PUBLISHED)
    publication, slot = world.settings.source(name).publication, f"another_{name}"

    def assert_all_stays() -> None:
        assert kept(world.settings, name, None).readers == (slot,)
        for only in (None, PLAIN):
            give_back(world, only)
        assert (world.rows(RIGHTS), world.rows(PUBLISHED)) == (before, published)

    with connect_source(world.settings, name) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", (f"of_a_standby_{name}",))
        assert_all_stays()
        with streaming(world, slot, publication):
            assert_all_stays()
        connection.execute("SELECT pg_drop_replication_slot(%s)", (f"of_a_standby_{name}",))
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    give_back(world)
    assert world.rows("SELECT * FROM pg_publication") == []


@contextmanager
def streaming(world: World, slot: str, publication: str) -> Iterator[None]:
    """Somebody who streams that publication by the slot."""
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    with closing(connect_source(world.settings, world.source.name, replication=True)) as other:
        options = f"""(proto_version '1', publication_names '"{publication}"')"""
        other.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
        until(lambda: world.rows(active) == [(True,)])
        yield
    until(lambda: world.rows(active) == [(False,)])


def test_a_stream_of_another_publication_keeps_nothing_but_the_rights_on_its_tables(
    source: Cluster, alone: Settings
) -> None:
    """Projects with publications of their own may have one role: the other one could not read its tables any more."""
    world = unprepared(source, alone, TABLES)
    name, slot = world.source.name, f"another_{world.source.name}"
    world.sql("CREATE PUBLICATION others FOR TABLE parts, shared.orders WITH (publish_via_partition_root = true)")
    prepare(world.settings, declared(world))
    with connect_source(world.settings, name) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with streaming(world, slot, "others"):
            assert "others carries as well" in kept(world.settings, name, None).stays[0]
            give_back(world)
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert world.rows("SELECT pubname FROM pg_publication") == [("others",)]
    assert world.rows(RIGHTS) == [
        ("public", "parts", "id"), ("public", "parts_1", "id"), ("shared", "orders", "id"), ("shared", None, None),
    ]  # fmt: skip


def test_tables_of_the_publication_that_are_not_the_projects_stay(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    prepare(world.settings, declared(world))
    ours = {PLAIN, ("public", "parts"), ("app", 'Odd "Name')}
    assert "shared" in kept(world.settings, world.source.name, None, ours).stays[0]
    give_back(world, ours=ours)
    assert world.rows(PUBLISHED) == [("shared", "orders")]
    assert world.rows(RIGHTS) == [("shared", "orders", "id"), ("shared", None, None)]
    assert due(world, ours=ours) == [], "a second time there is nothing to do"
    give_back(world, ours={*ours, ("shared", "orders")})
    assert world.rows(RIGHTS) == [] and world.rows("SELECT * FROM pg_publication") == []


def test_a_table_that_is_published_with_its_schema_is_taken_from_the_role_alone(
    source: Cluster, alone: Settings
) -> None:
    """It was refused: nobody can drop such a table from a publication."""
    world = unprepared(source, alone, TABLES)
    options = "FOR TABLES IN SCHEMA public, app, shared WITH (publish_via_partition_root = true)"
    source.admin(f"CREATE PUBLICATION lakehouse {options}", database=world.source.name)
    prepare(world.settings, declared(world))
    give_back(world, PLAIN)
    assert ("public", "plain", "id") not in world.rows(RIGHTS) and ("shared", "orders", "id") in world.rows(RIGHTS)


def test_what_fails_as_the_owner_is_told_and_nothing_is_done(source: Cluster, alone: Settings) -> None:
    world = unprepared(source, alone, TABLES)
    name = world.source.name
    prepare(world.settings, declared(world))
    before = world.rows(RIGHTS)
    wanted = [*due(world), "DROP PUBLICATION not_there"]
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
                command.remove(name)
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
