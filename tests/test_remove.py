"""`lakehouse remove`: afterwards a source keeps nothing for the lake, and its other readers keep all that they had."""

from collections.abc import Iterator
from typing import Any

import pytest

from ingestion import source_status
from ingestion.sources.postgres.setup import drop_slot, prepare, removal_statements, run_as_owner, slot_of
from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_cli.machine.stack import slots_left
from lakehouse_cli.source import remove as command
from tests.clusters import ROLE, Cluster, cluster
from tests.marks import slow
from tests.slots import assert_refused, assert_repaired, following, orders_in, until
from tests.slots import slot_of as configured_slot
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


@pytest.fixture(scope="module", params=["15", slow("16"), "18"])
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
        monkeypatch.setattr(command, "load_declarations", lambda settings: world.declarations)
        assert slot_of(world.settings, name) is None, "nothing has been ingested"
        world.ingest(spark)
        assert slots_left(world.settings)[name] == slot
        with pytest.raises(LakehouseError, match="is declared"):
            command.remove(name)
        monkeypatch.setattr(command, "load_declarations", lambda settings: Declarations(sources=()))
        with following(world):
            until(lambda: source_status(world.settings, name).follower_alive)
            with pytest.raises(LakehouseError, match="is at work"):
                drop_slot(world.settings, name, slot)
        command.remove(name, dry_run=True)
        assert made.admin("SELECT slot_name FROM pg_replication_slots") == [(slot,)]
        assert f"slot {slot} would be dropped" in capsys.readouterr().out

        command.remove(name)

        assert made.admin("SELECT slot_name FROM pg_replication_slots") == []
        assert world.rows("SELECT * FROM pg_publication") == []
        command.remove(name)
        assert f"{name}: it keeps nothing for the lake" in capsys.readouterr().out
        world.sql("UPDATE orders SET id = id + 1000000 WHERE id < 4")
        prepare(world.settings, world.source)
        assert_refused(world, spark, "--recover")
        assert_repaired(world, spark)
