"""No value of a column that is left out or masked is in any file, whatever the column was called while rows came.

All tables of a version are altered between the same two cycles; then each has a test of its own. The oracle of what
must be there is SQL against the source; of what must not, every file of the warehouse.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingestion import pause, replay, resnapshot, resume
from ingestion.pipeline import cycle
from ingestion.sources.postgres.setup import check_source
from ingestion.state import store
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from tests.clusters import ROLE, Cluster, cluster, world_in
from tests.erasing import holds, traces
from tests.marks import slow
from tests.slots import following, until
from tests.test_parking import do, meta
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]  # many tables are repaired one after the other

TABLE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, secret text, b text);"
    "INSERT INTO {t} VALUES (1, 'a1', '{s}', 'b1'), (2, 'a2', '{s}', 'b2')"
)
FULL = TABLE + "; ALTER TABLE {t} REPLICA IDENTITY FULL"
LARGE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, secret text, b text);"
    "ALTER TABLE {t} ALTER secret SET STORAGE EXTERNAL;"
    "INSERT INTO {t} VALUES (1, 'a1', repeat('{s}', 300), 'b1')"
)
KEYED = (
    "CREATE TABLE {t} (id text PRIMARY KEY, secret text, a text); ALTER TABLE {t} REPLICA IDENTITY FULL;"
    "INSERT INTO {t} VALUES ('1', '{s}', 'a1'), ('2', '{s}', 'a2')"
)
SHARED = (
    "CREATE TABLE {t} (id int, a text, secret text, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED);"
    "ALTER TABLE {t} REPLICA IDENTITY FULL; INSERT INTO {t} VALUES (1, 'a1', '{s}'), (2, 'a2', '{s}')"
)
PARTED = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, secret text) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (100); INSERT INTO {t} VALUES (1, 'a1', '{s}')"
)
LEND = "ALTER TABLE {t} DROP a; ALTER TABLE {t} RENAME secret TO a"
ROW = (
    "INSERT INTO {t} (id, a) VALUES (3, '{s}'); UPDATE {t} SET a = '{s}' || '.' WHERE id = 1;"
    "DELETE FROM {t} WHERE id = 2"
)
BACK = "ALTER TABLE {t} RENAME a TO secret"
SWAP = "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME secret TO a; ALTER TABLE {t} RENAME c TO secret"
KEY_SWAP = "ALTER TABLE {t} RENAME id TO c; ALTER TABLE {t} RENAME secret TO id; ALTER TABLE {t} RENAME c TO secret"
AFTER = "INSERT INTO {t} (id, secret) VALUES (9, '{s}')"


@dataclass(frozen=True)
class Case:
    """A table `{t}` whose column `secret` says `{s}`, and what is done to it between two cycles."""

    ddl: str
    alterations: tuple[str, ...]
    policy: tuple[tuple[str, Any], ...] = (("exclude", ("secret",)),)


DIGEST, NULL = (("mask", {"secret": "sha256"}),), (("mask", {"secret": "null"}),)
CASES = {
    "lent_the_name_of_a_dropped_one": Case(TABLE, (LEND, ROW, BACK, AFTER)),
    "lent_in_one_transaction": Case(TABLE, (";".join((LEND, ROW, BACK, AFTER)),)),
    "lent_and_the_name_added_again": Case(TABLE, (LEND, ROW, BACK, "ALTER TABLE {t} ADD a text", AFTER)),
    "lent_while_another_had_its_own": Case(
        TABLE,
        (
            LEND + "; ALTER TABLE {t} ADD secret text",
            ROW,
            "ALTER TABLE {t} DROP secret;" + BACK + "; ALTER TABLE {t} ADD a text",
        ),
    ),
    "swapped_and_swapped_back": Case(TABLE, (SWAP, ROW, SWAP, AFTER)),
    "bore_the_name_of_a_new_one": Case(
        TABLE,
        (
            "ALTER TABLE {t} DROP b; ALTER TABLE {t} RENAME secret TO x",
            "INSERT INTO {t} (id, x) VALUES (3, '{s}')",
            "ALTER TABLE {t} RENAME x TO secret; ALTER TABLE {t} ADD x text",
            AFTER,
        ),
    ),
    "last_one_bore_the_name_of_a_new_one": Case(
        "CREATE TABLE {t} (id int PRIMARY KEY, a text, secret text); INSERT INTO {t} VALUES (1, 'a1', '{s}')",
        (
            "ALTER TABLE {t} RENAME secret TO x",
            "INSERT INTO {t} (id, x) VALUES (3, '{s}')",
            "ALTER TABLE {t} RENAME x TO secret; ALTER TABLE {t} ADD x text",
        ),
    ),
    "lent_under_full_identity": Case(FULL, (LEND, ROW, BACK)),
    "lent_with_values_out_of_line": Case(
        LARGE, (LEND, "UPDATE {t} SET b = 'new'; INSERT INTO {t} VALUES (3, repeat('{s}', 300), 'b3')", BACK)
    ),
    "large_transaction": Case(
        TABLE,
        (
            LEND,
            "INSERT INTO {t} (id, a) SELECT i, '{s}' || i FROM generate_series(10, 4000) i",
            BACK + "; INSERT INTO {t} (id, secret) SELECT i, '{s}' || i FROM generate_series(5000, 9000) i",
        ),
    ),
    "lent_within_a_large_transaction": Case(
        TABLE,
        (
            "INSERT INTO {t} (id, secret) SELECT i, '{s}' || i FROM generate_series(5000, 9000) i;" + LEND + ";"
            "INSERT INTO {t} (id, a) SELECT i, '{s}' || i FROM generate_series(10, 4000) i;" + BACK,
        ),
    ),
    "swapped_with_the_key": Case(
        KEYED,
        (KEY_SWAP, "UPDATE {t} SET id = '{s}' || '.', a = 'new'; INSERT INTO {t} VALUES ('3', '{s}', 'a3')", KEY_SWAP),
    ),
    "rows_that_share_a_key": Case(SHARED, (LEND, "UPDATE {t} SET id = 3 - id, a = '{s}' || id", BACK)),
    "of_a_partitioned_table": Case(
        PARTED, (LEND, "INSERT INTO {t} VALUES (3, '{s}')", BACK, "INSERT INTO {t} VALUES (9, '{s}')")
    ),
    "digest_lent": Case(TABLE, (LEND, ROW, BACK, AFTER), DIGEST),
    "digest_lent_in_one_transaction": Case(TABLE, (";".join((LEND, ROW, BACK, AFTER)),), DIGEST),
    "digest_swapped": Case(TABLE, (SWAP, ROW, SWAP, AFTER), DIGEST),
    "null_lent": Case(TABLE, (LEND, ROW, BACK, AFTER), NULL),
    "lent_and_the_table_made_again": Case(
        TABLE,
        (
            LEND,
            ROW,
            "DROP TABLE {t};"
            + TABLE
            + f"; GRANT SELECT ON {{t}} TO {ROLE}; ALTER PUBLICATION lakehouse ADD TABLE {{t}}",
            AFTER,
        ),
    ),
}


@dataclass(frozen=True)
class Altered:
    """What there is after the second cycle."""

    world: World
    secrets: dict[str, str]
    held: list[str]
    positions: dict[str, store.TablePosition]


def secret_of(name: str) -> str:
    return f"kept-in-{name}-{uuid.uuid4().hex}"


def policy_of(name: str, policy: tuple[tuple[str, Any], ...]) -> RawPolicy:
    return RawPolicy.model_validate({"relation": f"public.{name}", "key": ("id",), **dict(policy)})


@pytest.fixture(scope="module", params=[slow("18"), slow("15")])
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def altered(server: Cluster, settings: Settings, spark: Any) -> Altered:
    secrets = {name: secret_of(name) for name in CASES}
    ddl = ";".join(case.ddl.format(t=name, s=secrets[name]) for name, case in CASES.items())
    tables = {name: policy_of(name, case.policy) for name, case in CASES.items()}
    world = world_in(server, settings, f"t{uuid.uuid4().hex[:10]}", ddl, tables, decoding_memory_bytes=64 * 1024)
    open_tables(world)
    world.ingest(spark)
    for name, case in CASES.items():
        world.sql(*(alteration.format(t=name, s=secrets[name]) for alteration in case.alterations))
    world.ingest(spark)
    with store.connect_catalog(world.settings) as catalog:
        positions = store.read_positions(catalog, world.source.name)
    return Altered(world, secrets, traces(settings, *secrets.values()), positions)


def files_with(held: list[str], secret: str) -> list[str]:
    """Those of the files that hold this one."""
    return [path for path in held if holds(Path(path), [secret.encode()])]


def assert_landed(world: World, name: str) -> None:
    """All but the secret is the source's; a digest is that of the source's value."""
    raw = world.source.table(name).raw
    names = [n for (n,) in world.rows(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{raw.relation}'::regclass AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum"
    ) if n not in raw.exclude]  # fmt: skip
    shown = {"sha256": "encode(sha256(convert_to({n}, 'UTF8')), 'hex')", "null": "NULL"}
    columns = ", ".join(shown.get(raw.mask.get(n, ""), "{n}").format(n=n) for n in names)
    expected = {
        row[0]: dict(zip(names, row, strict=True)) for row in world.rows(f"SELECT {columns} FROM {raw.relation}")
    }
    assert {k[0]: {n: row[n] for n in names} for k, row in world.current(name).items()} == expected


@pytest.mark.parametrize("name", CASES)
def test_a_withheld_value_is_in_no_file_whatever_its_column_was_called(altered: Altered, name: str) -> None:
    assert files_with(altered.held, altered.secrets[name]) == []
    assert altered.positions[name].state == "streaming", altered.positions[name].reason
    assert_landed(altered.world, name)


def open_tables(world: World) -> None:
    """The role may read everything, new columns too, as before rights were given by column: a withheld value is kept
    out by ingestion alone."""
    role = parse_url(world.settings.source(world.source.name).url.get_secret_value()).user
    world.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")


def apart(settings: Settings, ddl: str, **policy: Any) -> tuple[World, str]:
    """A world with one table `people`, and what must not be seen of it."""
    secret = secret_of("people")
    given = policy or {"exclude": ("secret",)}
    world = make_world(
        settings, ddl.format(t="people", s=secret), {"people": policy_of("people", tuple(given.items()))}
    )
    open_tables(world)
    return world, secret


def run(world: World, secret: str, *statements: str) -> None:
    world.sql(*(statement.format(t="people", s=secret) for statement in statements))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["paused", "renamed"])
def test_a_withheld_value_is_not_spooled_under_another_name(settings: Settings, spark: Any, how: str) -> None:
    """While the user has paused the table, and while it is parked because the column bears another name."""
    world, secret = apart(settings, TABLE)
    world.ingest(spark)
    if how == "paused":
        pause(world.settings, world.source.table("people"))
        run(world, secret, LEND, ROW, BACK)
        world.ingest(spark)
    else:
        run(world, secret, LEND, ROW)
        assert "left out or masked" in world.ingest(spark).aside[0].reason
        run(world, secret, "INSERT INTO {t} (id, a) VALUES (4, '{s}')")
        world.ingest(spark)
        run(world, secret, BACK)
    assert len(meta(world, "spool")) >= 3
    assert traces(settings, secret) == []
    assert not do(world, resume, spark, "people").aside
    assert_landed(world, "people")
    do(world, replay, spark, "people")
    assert_landed(world, "people")
    assert traces(settings, secret) == []


@pytest.mark.slow
def test_what_is_spooled_beside_a_withheld_value_is_not_lost(settings: Settings, spark: Any) -> None:
    """The history of the other columns lands once the table resumes, as its columns can be told apart."""
    world, secret = apart(settings, TABLE)
    world.ingest(spark)
    run(world, secret, "ALTER TABLE {t} RENAME secret TO open", "UPDATE {t} SET a = 'once', open = '{s}' WHERE id = 1")
    assert "left out or masked" in world.ingest(spark).aside[0].reason
    run(world, secret, "UPDATE {t} SET a = 'twice', open = '{s}' WHERE id = 1", "ALTER TABLE {t} RENAME open TO secret")
    assert not do(world, resume, spark, "people").aside
    assert [row["a"] for row in world.raw("people") if row["id"] == 1] == ["a1", "once", "twice"]
    assert traces(settings, secret) == []


@pytest.mark.parametrize("how", ["left out", slow("sha256"), slow("null")])
def test_a_column_renamed_in_source_and_declaration_at_once_stays_withheld(
    settings: Settings, spark: Any, how: str
) -> None:
    def declared(name: str) -> dict[str, Any]:
        return {"exclude": (name,)} if how == "left out" else {"mask": {name: how}}

    world, secret = apart(settings, TABLE, **declared("secret"))
    world.ingest(spark)
    run(
        world, secret, "INSERT INTO {t} VALUES (3, 'a3', '{s}', 'b3')", "ALTER TABLE {t} RENAME secret TO hidden",
        "INSERT INTO {t} VALUES (4, 'a4', '{s}', 'b4')",
    )  # fmt: skip
    (told,) = [f for f in check_source(world.settings, world.source) if f.about == "withheld columns"]
    assert told.says.startswith("column secret is called hidden now") and told.remedy.startswith("name hidden in meta.")
    world = world.declaring("people", **declared("hidden"))
    assert not [f for f in check_source(world.settings, world.source) if f.weight == "in the way"]
    assert not world.ingest(spark).aside
    assert traces(settings, secret) == []
    assert {k[0]: (row["a"], row["b"]) for k, row in world.current("people").items()} == {
        row[0]: row[1:] for row in world.rows("SELECT id, a, b FROM people")
    }


@pytest.mark.slow
def test_a_withheld_value_under_another_name_is_not_staged_when_a_read_is_overtaken(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is altered after it was looked at and before the end of the read is fixed."""
    world, secret = apart(settings, TABLE)
    world.ingest(spark)
    original: Callable[..., Any] = cycle._now_at_least
    done: list[bool] = []

    def altered(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            run(world, secret, LEND, ROW, BACK, "ALTER TABLE {t} ADD a text")
        return original(*arguments)

    monkeypatch.setattr(cycle, "_now_at_least", altered)
    world.ingest(spark)
    assert done and traces(settings, secret) == []
    assert_landed(world, "people")


def test_a_withheld_value_is_not_read_anew_under_another_name(settings: Settings, spark: Any) -> None:
    world, secret = apart(settings, TABLE)
    world.ingest(spark)
    run(world, secret, "ALTER TABLE {t} RENAME secret TO open")
    assert "left out or masked" in do(world, resnapshot, spark, "people").aside[0].reason
    assert traces(settings, secret) == []
    run(world, secret, "ALTER TABLE {t} RENAME open TO secret")
    world.ingest(spark)
    assert_landed(world, "people")


def test_the_live_stream_lands_no_withheld_value_under_another_name(
    server: Cluster, settings: Settings, spark: Any
) -> None:
    secret = secret_of("people")
    world = world_in(
        server, settings, f"t{uuid.uuid4().hex[:10]}", TABLE.format(t="people", s=secret),
        {"people": policy_of("people", (("exclude", ("secret",)),))}, flush_interval_seconds=0.2, poll_seconds=0.2,
    )  # fmt: skip
    open_tables(world)
    world.ingest(spark)
    with following(world):
        for number in range(10, 16):
            row = f"INSERT INTO {{t}} (id, a) VALUES ({number}, '{{s}}')"
            run(world, secret, LEND, row, BACK, "ALTER TABLE {t} ADD a text")
        run(world, secret, "INSERT INTO {t} (id, a) VALUES (99, 'last')")
        until(lambda: (99,) in world.current("people") and (15,) in world.current("people"), 120)
    world.ingest(spark)
    assert_landed(world, "people")
    assert traces(settings, secret) == []
