"""Alterations that leave no trace where one would look first: taken back between two looks at the source, hidden by a
TRUNCATE of the same transaction, or made on a partition alone. Every row and column is compared with the source.

All tables of a version are altered between the same two reads, by peeks or of the live stream; then each has a test of
its own.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ingestion.state import store
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.clusters import cluster, world_in
from tests.hunt.look import Reader
from tests.hunt.play import Stage
from tests.marks import slow
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.test_parking import meta
from tests.world import World

pytestmark = pytest.mark.stack

PARTED = (
    "CREATE TABLE {t} (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
    "INSERT INTO {t} SELECT i, i FROM generate_series(1, 19) i"
)
BRANCHED = (
    "CREATE TABLE {t} (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_11 PARTITION OF {t}_1 FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
    "INSERT INTO {t} SELECT i, i FROM generate_series(1, 19) i"
)
PLAIN = "CREATE TABLE {t} (id int PRIMARY KEY, v int); INSERT INTO {t} SELECT i, i FROM generate_series(1, 9) i"
NAMES = "CREATE TABLE {t} (id int PRIMARY KEY, a text, b text); INSERT INTO {t} VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2')"
ALONE = PLAIN + "; CREATE TABLE {t}_root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)"
ATTACH = "ALTER TABLE {t}_root ATTACH PARTITION {t} FOR VALUES FROM (0) TO (100)"
DETACH = "ALTER TABLE {t}_root DETACH PARTITION {t}"
OTHERS = "DELETE FROM {t} WHERE id = 1; UPDATE {t} SET v = -v WHERE id = 2; INSERT INTO {t} VALUES (0, 100)"
CHANGED = "DELETE FROM {t}_1 WHERE id = 1; UPDATE {t}_1 SET v = -v WHERE id = 2; INSERT INTO {t}_1 VALUES (0, 100);"
SWAP = "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b"


@dataclass(frozen=True)
class Case:
    """A table `{t}`, and what is done to it between two cycles, each item in a transaction of its own."""

    ddl: str
    alterations: tuple[str, ...]
    read_anew: bool = True
    policy: tuple[tuple[str, Any], ...] = ()


CASES = {
    "detached_changed_attached": Case(
        PARTED,
        (
            "ALTER TABLE {t} DETACH PARTITION {t}_1;"
            + CHANGED
            + "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10)",
        ),
    ),
    "branch_detached_changed_attached": Case(
        BRANCHED,
        (
            "ALTER TABLE {t} DETACH PARTITION {t}_1;"
            + CHANGED
            + "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10)",
        ),
    ),
    "leaf_of_a_branch_detached_changed_attached": Case(
        BRANCHED,
        (
            "ALTER TABLE {t}_1 DETACH PARTITION {t}_11;"
            + CHANGED.replace("{t}_1", "{t}_11")
            + "ALTER TABLE {t}_1 ATTACH PARTITION {t}_11 FOR VALUES FROM (0) TO (10)",
        ),
    ),
    "detached_and_attached_apart": Case(
        PARTED,
        (
            "ALTER TABLE {t} DETACH PARTITION {t}_1",
            CHANGED,
            "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10)",
        ),
    ),
    "default_on_a_root": Case(PARTED, ("ALTER TABLE {t} ADD COLUMN c int DEFAULT 7", "INSERT INTO {t} VALUES (0, 0)")),
    "default_on_a_branch": Case(BRANCHED, ("ALTER TABLE {t} ADD COLUMN c text DEFAULT 'seven'",)),
    "truncated_and_rewritten": Case(
        PLAIN, ("TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1), (2, 2); ALTER TABLE {t} ALTER v TYPE int USING v * 10",)
    ),
    "truncated_and_rewritten_in_a_savepoint": Case(
        PLAIN,
        (
            "BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1); SAVEPOINT s;"
            "ALTER TABLE {t} ALTER v TYPE int USING v * 10; RELEASE s; COMMIT",
        ),
    ),
    "truncated_with_a_volatile_default": Case(
        PLAIN, ("TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1); ALTER TABLE {t} ADD c float8 DEFAULT random()",)
    ),
    "leaf_truncated_after_its_root": Case(
        PARTED, ("TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1), (11, 11); TRUNCATE {t}_1",)
    ),
    "leaf_unlogged_after_a_truncate": Case(
        PARTED,
        (
            "TRUNCATE {t}; ALTER TABLE {t}_1 SET UNLOGGED; INSERT INTO {t} VALUES (1, 1), (11, 11);"
            "ALTER TABLE {t}_1 SET LOGGED",
        ),
    ),
    "label_renamed_used_and_renamed_back": Case(
        "CREATE TYPE {t}_mood AS ENUM ('sad', 'glad'); CREATE TABLE {t} (id int PRIMARY KEY, v {t}_mood);"
        "INSERT INTO {t} VALUES (1, 'sad')",
        (
            "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'",
            "INSERT INTO {t} VALUES (2, 'blue')",
            "ALTER TYPE {t}_mood RENAME VALUE 'blue' TO 'sad'",
        ),
    ),
    "labels_swapped_and_swapped_back": Case(
        "CREATE TYPE {t}_mood AS ENUM ('sad', 'glad'); CREATE DOMAIN {t}_moods AS {t}_mood[];"
        "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_moods); INSERT INTO {t} VALUES (1, '{{sad}}')",
        (
            "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE {t}_mood RENAME VALUE 'glad' TO 'sad';"
            "ALTER TYPE {t}_mood RENAME VALUE 'x' TO 'glad'",
            "INSERT INTO {t} VALUES (2, '{{sad}}')",
            "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE {t}_mood RENAME VALUE 'glad' TO 'sad';"
            "ALTER TYPE {t}_mood RENAME VALUE 'x' TO 'glad'",
        ),
    ),
    "names_swapped_and_swapped_back": Case(
        NAMES, (SWAP, "INSERT INTO {t} VALUES (3, 'first', 'second'); UPDATE {t} SET a = 'new' WHERE id = 1", SWAP)
    ),
    "names_of_an_excluded_column_swapped_and_swapped_back": Case(
        NAMES, (SWAP, "INSERT INTO {t} VALUES (3, 'first', 'second')", SWAP), policy=(("exclude", ("b",)),)
    ),
    "attribute_added_and_dropped": Case(
        "CREATE TYPE {t}_pair AS (a int, b text); CREATE TABLE {t} (id int PRIMARY KEY, v {t}_pair);"
        "INSERT INTO {t} VALUES (1, '(1,x)')",
        (
            "ALTER TYPE {t}_pair ADD ATTRIBUTE c int",
            "INSERT INTO {t} VALUES (2, '(2,y,3)'); UPDATE {t} SET v = '(1,z,4)' WHERE id = 1",
            "ALTER TYPE {t}_pair DROP ATTRIBUTE c",
        ),
    ),
    "partition_came_and_went": Case(
        PARTED,
        (
            "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t} VALUES (25, 1)",
            "DROP TABLE {t}_3",
        ),
    ),
    "partition_attached_changed_and_detached": Case(
        BRANCHED,
        (
            "CREATE TABLE {t}_12 (id int PRIMARY KEY, v int); INSERT INTO {t}_12 VALUES (21, 1);"
            "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);"
            "ALTER TABLE {t}_3 ATTACH PARTITION {t}_12 FOR VALUES FROM (20) TO (30);"
            "UPDATE {t} SET v = 2 WHERE id = 21; ALTER TABLE {t} DETACH PARTITION {t}_3",
        ),
    ),
    "partition_of_an_enum_came_and_went": Case(
        PARTED.replace("v int", "v {t}_mood")
        .replace("i, i FROM", "i, 'sad' FROM")
        .replace("CREATE TABLE {t} ", "CREATE TYPE {t}_mood AS ENUM ('sad', 'glad'); CREATE TABLE {t} "),
        (
            "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t} VALUES (25, 'glad')",
            "DROP TABLE {t}_3",
        ),
    ),
    "partition_identified_by_another_column": Case(
        PARTED + "; ALTER TABLE {t}_1 ALTER v SET NOT NULL; CREATE UNIQUE INDEX {t}_v ON {t}_1 (v)",
        (
            "ALTER TABLE {t}_1 REPLICA IDENTITY USING INDEX {t}_v",
            "DELETE FROM {t} WHERE id = 1; UPDATE {t} SET id = 0 WHERE id = 2; UPDATE {t} SET v = -1 WHERE id = 3",
            "ALTER TABLE {t}_1 REPLICA IDENTITY DEFAULT",
        ),
    ),
    "partition_of_another_table_for_a_while": Case(
        ALONE,
        (
            "ALTER PUBLICATION lakehouse ADD TABLE {t}_root",
            ATTACH,
            OTHERS,
            DETACH,
            "ALTER PUBLICATION lakehouse DROP TABLE {t}_root",
        ),
    ),
    "root_above_it_published_for_a_while": Case(
        f"{ALONE}; {ATTACH}",
        ("ALTER PUBLICATION lakehouse ADD TABLE {t}_root", OTHERS, "ALTER PUBLICATION lakehouse DROP TABLE {t}_root"),
    ),
    "partition_of_a_declared_table_for_a_while": Case(
        PLAIN,
        tuple(step.replace("{t}_root", "declared_root") for step in (ATTACH, OTHERS, DETACH)),
    ),
    "declared_root": Case("CREATE TABLE {t} (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)", ()),
    "moved_out_of_a_published_schema_and_back": Case(
        "CREATE SCHEMA shown; CREATE SCHEMA unseen;" + PLAIN.replace("{t}", "shown.moved"),
        (
            "ALTER TABLE shown.moved SET SCHEMA unseen",
            OTHERS.replace("{t}", "unseen.moved"),
            "ALTER TABLE unseen.moved SET SCHEMA shown",
        ),
        policy=(("relation", "shown.moved"),),
    ),
    "added_again_after_rows_came": Case(
        NAMES,
        (
            "ALTER TABLE {t} ADD c text",
            "INSERT INTO {t} VALUES (3, 'a3', 'b3', 'c3')",
            "ALTER TABLE {t} DROP c; ALTER TABLE {t} ADD c text",
        ),
    ),
    "name_of_a_dropped_column_lent_to_another": Case(
        NAMES,
        (
            "ALTER TABLE {t} DROP b; ALTER TABLE {t} RENAME a TO b",
            "INSERT INTO {t} VALUES (3, 'x'); UPDATE {t} SET b = 'y' WHERE id = 1",
            "ALTER TABLE {t} RENAME b TO a",
        ),
    ),
    "name_of_a_dropped_column_lent_to_a_new_one": Case(
        NAMES,
        (
            "ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b text; INSERT INTO {t} VALUES (3, 'a3', 'new');"
            "ALTER TABLE {t} RENAME b TO c",
        ),
    ),
    "name_lent_among_new_columns": Case(
        NAMES,
        (
            "ALTER TABLE {t} ADD y text",
            "INSERT INTO {t} VALUES (3, 'a3', 'b3', 'x3')",
            "ALTER TABLE {t} RENAME y TO x; ALTER TABLE {t} ADD y text",
        ),
    ),
    "names_shifted_to_what_they_were": Case(
        NAMES,
        (
            "ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD x text; ALTER TABLE {t} RENAME b TO a;"
            "ALTER TABLE {t} RENAME x TO b",
            "INSERT INTO {t} VALUES (3, 'bb', 'xx')",
            "ALTER TABLE {t} RENAME b TO x; ALTER TABLE {t} RENAME a TO b",
        ),
    ),
    "truncated_and_filled": Case(PLAIN, ("TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1), (2, 2)",), read_anew=False),
    "root_truncated": Case(PARTED, ("TRUNCATE {t}",), read_anew=False),
    "leaf_granted": Case(
        PARTED, ("GRANT SELECT ON {t}_1 TO PUBLIC", "UPDATE {t} SET v = 0 WHERE id < 5"), read_anew=False
    ),
}
FEW = (  # of each way to alter a table; `make test-all` alters all of them
    "detached_changed_attached",
    "default_on_a_branch",
    "truncated_and_rewritten_in_a_savepoint",
    "labels_swapped_and_swapped_back",
    "names_of_an_excluded_column_swapped_and_swapped_back",
    "partition_attached_changed_and_detached",
    "partition_of_a_declared_table_for_a_while",
    "declared_root",
    "root_above_it_published_for_a_while",
    "moved_out_of_a_published_schema_and_back",
    "added_again_after_rows_came",
    "truncated_and_filled",
)
ALTERED = {  # version, tables, and whether they are read by the live stream
    "18, few": ("18", FEW, False),
    "18": ("18", tuple(CASES), False),
    "18, live": ("18", tuple(CASES), True),
    "15": ("15", tuple(CASES), False),
}
LEAVING_OUT = ("names_of_an_excluded_column_swapped_and_swapped_back",)


@dataclass(frozen=True)
class Altered:
    """What there is after the second read, and where tables stood before it."""

    world: World
    before: dict[str, store.TablePosition]
    positions: dict[str, store.TablePosition]


@pytest.fixture(scope="module")
def altered(request: pytest.FixtureRequest, settings: Settings, spark: Any) -> Iterator[Altered]:
    version, names, live = ALTERED[request.param]
    cases = {name: CASES[name] for name in names}
    ddl = ";".join(case.ddl.format(t=name) for name, case in cases.items())
    tables = {
        name: RawPolicy.model_validate({"relation": f"public.{name}", "key": ("id",), **dict(case.policy)})
        for name, case in cases.items()
    }
    with cluster(version) as made:
        world = world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", ddl, tables)
        made.admin(
            "ALTER PUBLICATION lakehouse DROP TABLE shown.moved",
            "ALTER PUBLICATION lakehouse ADD TABLES IN SCHEMA shown",
            database=world.source.name,
        )
        with reading(world, spark, live=live) as read:
            before = read()
            for name, case in cases.items():
                world.sql(*(alteration.format(t=name) for alteration in case.alterations))
            yield Altered(world, before, read())


@contextmanager
def reading(world: World, spark: Any, *, live: bool) -> Iterator[Callable[[], dict[str, store.TablePosition]]]:
    """Brings the lake up to now, and tells where tables stand then; with `live` by a stream that stays open."""
    if live:
        with closing(Reader(Stage(world, {}), spark, live=True, anew=False)) as reader:

            def read() -> dict[str, store.TablePosition]:
                reader.look("full", lambda _: False)
                assert reader.is_live
                return reader.positions()

            yield read
        return

    def peek() -> dict[str, store.TablePosition]:
        world.ingest(spark)
        with store.connect_catalog(world.settings) as catalog:
            return store.read_positions(catalog, world.source.name)

    yield peek


@pytest.mark.parametrize("altered", [which if which == "18, few" else slow(which) for which in ALTERED], indirect=True)
def test_no_value_of_an_excluded_column_lands_while_it_bears_another_name(altered: Altered) -> None:
    (name,) = LEAVING_OUT
    assert altered.positions[name].state == "streaming"
    assert {k[0]: row["a"] for k, row in altered.world.current(name).items()} == {1: "a1", 2: "a2", 3: "first"}
    assert {row["a"] for row in altered.world.raw(name)} == {"a1", "a2", "first"}
    kept = [row["message"] for row in meta(altered.world, "quarantine") if row["table"] == name]
    assert kept and not any(b"second" in message for message in kept)


@pytest.mark.parametrize(
    ("altered", "name"),
    [
        (which, name) if which == "18, few" else slow(which, name)
        for which, (_, names, _) in ALTERED.items()
        for name in names
        if name not in LEAVING_OUT
    ],
    indirect=["altered"],
)
def test_the_lake_is_the_source_after(altered: Altered, name: str) -> None:
    position = altered.positions[name]
    assert position.state == "streaming", position.reason
    assert_equal(altered.world, name)
    assert_order_is_unique(altered.world, name)
    assert (position.point != altered.before[name].point) <= CASES[name].read_anew
