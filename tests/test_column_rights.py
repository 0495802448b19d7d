"""Where `exclude` is declared the run-time role is given columns, not the table, and ingestion is content with them."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from ingestion import resume
from ingestion.sources.postgres.setup import check_source, prepare
from ingestion.state import store
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.clusters import ROLE, ROLE_PASSWORD, Cluster, cluster, world_in
from tests.marks import slow
from tests.world import World

CARD = "4111-1111-1111-1111"
DDL = f"""
CREATE TABLE cards (id int PRIMARY KEY, owner text, card text);
INSERT INTO cards SELECT i, 'o' || i, '{CARD}' FROM generate_series(1, 5000) i;
CREATE TABLE parts (id int PRIMARY KEY, v text, card text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200);
INSERT INTO parts SELECT i, 'v' || i, '{CARD}' FROM generate_series(1, 150) i;
CREATE TABLE "Open" (id int PRIMARY KEY, v text);
INSERT INTO "Open" VALUES (1, 'a')
"""
TABLES = {
    "cards": RawPolicy(relation="public.cards", key=("id",), exclude=("card",)),
    "parts": RawPolicy(relation="public.parts", key=("id",), exclude=("card",)),
    "open": RawPolicy(relation='public."Open"', key=("id",)),
}


@pytest.fixture(scope="module", params=["15", slow("16"), slow("18")])
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as made:
        yield made


@pytest.fixture
def world(server: Cluster, settings: Settings) -> World:
    return world_in(server, settings, f"t{uuid.uuid4().hex[:10]}", DDL, TABLES, snapshot_chunk_bytes=65_536)


def stolen(server: Cluster, world: World, query: str) -> list[tuple[Any, ...]]:
    """What somebody who has the run-time role's password is answered."""
    with psycopg.connect(server.url(world.source.name, ROLE, ROLE_PASSWORD)) as connection:
        return connection.execute(query).fetchall()


def assert_closed(server: Cluster, world: World) -> None:
    for relation in ("cards", "parts", "parts_1", "parts_2"):
        for columns in ("card", "*", f"{relation}"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stolen(server, world, f"SELECT {columns} FROM {relation}")


def assert_equal(world: World, table: str, relation: str, columns: str) -> None:
    names = columns.split(", ")
    lake = {tuple(row[name] for name in names) for row in world.current(table).values()}
    assert lake == set(world.rows(f"SELECT {columns} FROM {relation}"))


def standing(world: World) -> dict[str, tuple[str, str | None]]:
    with store.connect_catalog(world.settings) as catalog:
        found = store.read_positions(catalog, world.source.name)
    return {name: (position.state, position.reason) for name, position in found.items()}


def about_rights(world: World) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in check_source(world.settings, world.source):
        if finding.about == "rights" and finding.table:
            found.setdefault(finding.weight, []).append(finding.says)
    return found


def test_a_stolen_role_selects_no_excluded_column_and_everything_else_lands(
    server: Cluster, world: World, spark: Any
) -> None:
    """SELECT was granted on whole tables, so that the role showed what the declaration keeps out of the lake."""
    assert_closed(server, world)
    assert about_rights(world) == {}
    world.ingest(spark)
    world.sql(
        "UPDATE cards SET owner = 'new' WHERE id < 10", "INSERT INTO parts VALUES (180, 'late', 'x')",
        "DELETE FROM cards WHERE id = 4000",
    )  # fmt: skip
    world.ingest(spark)
    assert_equal(world, "cards", "cards", "id, owner")
    assert_equal(world, "parts", "parts", "id, v")
    assert_equal(world, "open", '"Open"', "id, v")
    assert {state for state, _ in standing(world).values()} == {"streaming"}


def test_a_table_wide_right_is_named_and_taken_back_when_asked_for(server: Cluster, world: World, spark: Any) -> None:
    world.sql(f"GRANT SELECT ON cards, parts, parts_1 TO {ROLE}")
    assert stolen(server, world, "SELECT DISTINCT card FROM cards") == [(CARD,)]
    assert about_rights(world)["warning"] == [
        f'role "{ROLE}" may read card of {relations}, declared to be excluded'
        for relations in ('"public"."cards"', '"public"."parts" and 1 of its partitions')
    ]
    prepare(world.settings, world.source)
    assert stolen(server, world, "SELECT DISTINCT card FROM parts_1") == [(CARD,)]
    world.ingest(spark)
    prepare(world.settings, world.source, revoke=True)
    assert_closed(server, world)
    assert about_rights(world) == {}
    again, _ = prepare(world.settings, world.source, revoke=True)
    assert not any("cards" in statement or "parts" in statement for statement in again)
    world.sql("UPDATE cards SET owner = 'after' WHERE id = 1")
    report = world.ingest(spark)
    assert {table.name: table.rows for table in report.tables if table.rows} == {"cards": {"u": 1}}


def test_a_right_on_the_column_alone_is_taken_back_too(server: Cluster, world: World) -> None:
    world.sql(f"GRANT SELECT (card) ON cards TO {ROLE}")
    assert stolen(server, world, "SELECT DISTINCT card FROM cards") == [(CARD,)]
    prepare(world.settings, world.source, revoke=True)
    assert_closed(server, world)


def test_a_column_that_comes_later_streams_and_is_read_once_prepare_has_granted_it(
    server: Cluster, world: World, spark: Any
) -> None:
    world.ingest(spark)
    world.sql("ALTER TABLE cards ADD note text", "UPDATE cards SET note = 'n' WHERE id = 7")
    world.ingest(spark)
    assert standing(world)["cards"][0] == "streaming"
    assert_equal(world, "cards", "cards", "id, owner, note")
    assert about_rights(world) == {"prepare": [f'role "{ROLE}" may not read "public"."cards" (note)']}

    world.sql("ALTER TABLE cards ALTER owner TYPE varchar(50) USING upper(owner)")
    world.ingest(spark)
    state, reason = standing(world)["cards"]
    assert state == "parked" and reason is not None
    assert f"no SELECT right on column note of public.cards: run `lakehouse prepare {world.source.name}`" in reason
    assert standing(world)["parts"][0] == "streaming"

    prepare(world.settings, world.source)
    assert_closed(server, world)
    resume(world.settings, world.declarations, world.source.name, ["cards"], spark)
    world.ingest(spark)
    assert standing(world)["cards"][0] == "streaming"
    assert_equal(world, "cards", "cards", "id, owner, note")


def test_columns_granted_by_hand_without_ctid_are_enough(server: Cluster, world: World, spark: Any) -> None:
    world.sql(f"REVOKE SELECT ON cards FROM {ROLE}", f"GRANT SELECT (id, owner) ON cards TO {ROLE}")
    world.ingest(spark)
    assert_equal(world, "cards", "cards", "id, owner")


@pytest.mark.slow
def test_a_partition_that_comes_later_is_read_through_its_root(server: Cluster, world: World, spark: Any) -> None:
    world.ingest(spark)
    world.sql(
        "CREATE TABLE parts_3 (id int PRIMARY KEY, v text, card text)",
        "INSERT INTO parts_3 VALUES (250, 'attached', 'c')",
        "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (200) TO (300)",
    )
    world.ingest(spark)
    assert_equal(world, "parts", "parts", "id, v")
    prepare(world.settings, world.source)
    assert_closed(server, world)


def test_row_level_security_of_columns_parks_that_table_alone(server: Cluster, world: World, spark: Any) -> None:
    """The lock of a point is a query where the role has columns only, and a policy failed it in each cycle."""
    world.sql("ALTER TABLE cards ENABLE ROW LEVEL SECURITY")
    world.ingest(spark)
    state, reason = standing(world)["cards"]
    assert state == "parked" and reason is not None and "row-level security" in reason
    assert_equal(world, "parts", "parts", "id, v")


def test_a_column_list_of_the_publication_keeps_excluded_values_at_the_source(
    server: Cluster, world: World, spark: Any
) -> None:
    world.sql('ALTER PUBLICATION lakehouse SET TABLE cards (id, owner), parts, "Open"')
    world.ingest(spark)
    world.sql("UPDATE cards SET owner = 'new', card = 'never-sent' WHERE id = 3", "UPDATE parts SET card = 'sent'")
    (slot,) = stolen(server, world, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    peek = (
        f"SELECT string_agg(encode(data, 'escape'), '') FROM pg_logical_slot_peek_binary_changes('{slot[0]}', NULL,"
        " NULL, 'proto_version', '1', 'publication_names', 'lakehouse')"
    )
    ((sent,),) = stolen(server, world, peek)
    assert "never-sent" not in sent and "sent" in sent
    world.ingest(spark)
    assert_equal(world, "cards", "cards", "id, owner")


@pytest.mark.slow
def test_reconcile_names_the_column_it_may_not_read(server: Cluster, world: World, spark: Any) -> None:
    from ingestion.verify.raw import reconcile_raw

    world.ingest(spark)
    assert all(result.equal for result in reconcile_raw(world.settings, world.declarations, spark=spark))
    world.sql("ALTER TABLE cards ADD note text", "UPDATE cards SET note = 'n' WHERE id = 7")
    world.ingest(spark)
    told = r"no SELECT right on column note of public\.cards: run `lakehouse prepare"
    with pytest.raises(LakehouseError, match=told):
        list(reconcile_raw(world.settings, world.declarations, spark=spark))
