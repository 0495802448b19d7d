"""Set-up never makes a statement of the application fail, and says beforehand what is in the way of ingestion."""

import json
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import typer
import yaml
from pydantic import SecretStr

from ingestion.sources.postgres.connection import check_server, connect_source, create_slot
from ingestion.sources.postgres.points.patience import Patience
from ingestion.sources.postgres.setup import Unfit, check_source, prepare
from lakehouse.declarations import Column, Declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.source.ingest import _check
from scaffold.propose import lake_name, propose
from tests.clusters import OWNER, OWNER_PASSWORD, ROLE, ROLE_PASSWORD, Cluster, cluster
from tests.marks import slow
from tests.world import World, declared_source, statements

WORKS = {
    "plain": "CREATE TABLE plain (id int PRIMARY KEY, v int)",
    "wide": "CREATE TABLE wide (id int, v int); ALTER TABLE wide REPLICA IDENTITY FULL",
    "indexed": "CREATE TABLE indexed (id int NOT NULL, v int); CREATE UNIQUE INDEX by_id ON indexed (id);"
    "ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_id",
    "parts": "CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000)",
    "wide_parts": "CREATE TABLE wide_parts (id int, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE wide_parts_1 PARTITION OF wide_parts FOR VALUES FROM (0) TO (1000);"
    "ALTER TABLE wide_parts_1 REPLICA IDENTITY FULL",
    "generated": "CREATE TABLE generated (id int PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v * 2) STORED)",
    "covering": "CREATE TABLE covering (id int, v int, PRIMARY KEY (id) INCLUDE (v))",
    '"Odd ""Name"': 'CREATE TABLE "Odd ""Name" (id int PRIMARY KEY, v int)',
}
BREAKS = {
    "keyless": "CREATE TABLE keyless (id int, v int)",
    "nothing": "CREATE TABLE nothing (id int PRIMARY KEY, v int); ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    "late": "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int)",
    "dropped": "CREATE TABLE dropped (id int NOT NULL, v int); CREATE UNIQUE INDEX gone ON dropped (id);"
    "ALTER TABLE dropped REPLICA IDENTITY USING INDEX gone; DROP INDEX gone",
    "key_gone": "CREATE TABLE key_gone (id int PRIMARY KEY, v int); ALTER TABLE key_gone DROP CONSTRAINT key_gone_pkey",
    "bare_parts": "CREATE TABLE bare_parts (id int, v int) PARTITION BY RANGE (id);"
    "ALTER TABLE bare_parts REPLICA IDENTITY FULL;"
    "CREATE TABLE bare_parts_1 PARTITION OF bare_parts FOR VALUES FROM (0) TO (1000)",
    "mute_parts": "CREATE TABLE mute_parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE mute_parts_1 PARTITION OF mute_parts FOR VALUES FROM (0) TO (1000);"
    "ALTER TABLE mute_parts_1 REPLICA IDENTITY NOTHING",
}
SINCE_18 = {  # what Postgres 18 refuses, and earlier versions do not
    "wide_generated": "CREATE TABLE wide_generated (id int, v int, w int GENERATED ALWAYS AS (v * 2) STORED);"
    "ALTER TABLE wide_generated REPLICA IDENTITY FULL",
    "generated_key": "CREATE TABLE generated_key (id int, v int, k int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY"
    ")",
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of no stack: nothing here needs more than the source."""
    return Settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module", params=["15", slow("16"), slow("17"), "18"])
def source(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as made:
        yield made


def unprepared(made: Cluster, settings: Settings, ddl: dict[str, str], **policy: Any) -> World:
    """A database with these tables, all declared, and no publication."""
    name = f"t{uuid.uuid4().hex[:10]}"
    made.admin(f'CREATE DATABASE "{name}" OWNER {OWNER}')
    urls = made.url(name, ROLE, ROLE_PASSWORD), made.url(name, OWNER, OWNER_PASSWORD)
    configured = {name: SourceSettings(url=SecretStr(urls[0]), owner_url=SecretStr(urls[1]))}
    policies = {
        f"t_{number}": RawPolicy(relation=f"public.{table}", **policy) for number, table in enumerate(ddl)
    }  # fmt: skip
    world = World(settings.model_copy(update={"sources": configured}), declared_source(name, policies), urls[1])
    for script in ddl.values():
        world.sql(*statements(script))
    return world


def failing(world: World, tables: Iterable[str]) -> dict[str, list[str]]:
    """The application's statements that fail now, of those tables that have such."""
    failed: dict[str, list[str]] = {}
    with psycopg.connect(world.owner_url, autocommit=True) as application:
        for table in tables:
            for statement in (
                f"INSERT INTO {table} (id, v) VALUES (1, 1)", f"UPDATE {table} SET v = v + 1",
                f"UPDATE {table} SET id = id + 1", f"DELETE FROM {table}",
            ):  # fmt: skip
                try:
                    application.execute(statement)
                except psycopg.Error:
                    failed.setdefault(table, []).append(statement)
    return failed


def in_the_way(world: World) -> dict[str | None, set[str]]:
    """What about which table."""
    found: dict[str | None, set[str]] = {}
    for finding in check_source(world.settings, world.source):
        if finding.weight == "in the way":
            relation = world.source.table(finding.table).raw.relation if finding.table else None
            found.setdefault(relation, set()).add(finding.about)
    return found


def test_every_statement_of_the_application_that_worked_works_after_prepare(
    source: Cluster, settings: Settings
) -> None:
    world = unprepared(source, settings, WORKS)
    assert failing(world, WORKS) == {}
    prepare(world.settings, world.source)
    assert failing(world, WORKS) == {}
    assert in_the_way(world) == {}
    prepare(world.settings, world.source)


def test_a_table_whose_updates_would_fail_is_refused_and_nothing_is_done(source: Cluster, settings: Settings) -> None:
    """What is refused is what Postgres itself would refuse, no less and no more: it is asked after the refusal."""
    since_18 = SINCE_18 if source.admin("SHOW server_version_num")[0][0] >= "180000" else {}
    suspects = {**BREAKS, **SINCE_18}
    world = unprepared(source, settings, {**WORKS, **suspects})
    with pytest.raises(Unfit, match="nothing was done") as refused:
        prepare(world.settings, world.source)
    assert world.rows("SELECT 1 FROM pg_publication") == []
    assert world.rows(f"SELECT 1 FROM pg_class WHERE relacl::text LIKE '%{ROLE}%'") == []
    assert failing(world, suspects) == {}
    expected = {f"public.{table}" for table in {**BREAKS, **since_18}}
    assert set(in_the_way(world)) == expected
    for table in BREAKS:
        assert f'"{table}' in str(refused.value) and f'UPDATE and DELETE of "public"."{table}' in str(refused.value)
    listed = ", ".join([*WORKS, *suspects])
    world.sql(f"CREATE PUBLICATION lakehouse FOR TABLE {listed} WITH (publish_via_partition_root = true)")
    really = {f"public.{table}" for table in failing(world, {**WORKS, **suspects})}
    assert really == expected == set(in_the_way(world))


def test_the_remedy_that_is_printed_helps(source: Cluster, settings: Settings) -> None:
    world = unprepared(source, settings, BREAKS)
    for finding in check_source(world.settings, world.source):
        if finding.weight == "in the way":
            world.sql(finding.remedy.removeprefix("run ").partition(" as its owner")[0])
    prepare(world.settings, world.source)
    assert failing(world, BREAKS) == {}


def test_a_publication_of_inserts_alone_leaves_updates_of_any_table_working(
    source: Cluster, settings: Settings
) -> None:
    world = unprepared(source, settings, {**BREAKS, **SINCE_18}, changes="inserts")
    assert in_the_way(world) == {}
    prepare(world.settings, world.source)
    assert world.rows("SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication") == [
        (True, False, False, True)
    ]
    assert failing(world, {**BREAKS, **SINCE_18}) == {}


def test_what_broke_after_prepare_is_found(source: Cluster, settings: Settings) -> None:
    world = unprepared(source, settings, WORKS)
    prepare(world.settings, world.source)
    world.sql(
        "ALTER TABLE plain DROP CONSTRAINT plain_pkey", "DROP INDEX by_id",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1000) TO (2000)",
        "ALTER TABLE parts_2 REPLICA IDENTITY NOTHING",
        "CREATE TABLE wide_parts_2 PARTITION OF wide_parts FOR VALUES FROM (1000) TO (2000)",
        "ALTER PUBLICATION lakehouse DROP TABLE generated", "ALTER PUBLICATION lakehouse ADD TABLE generated (v, w)"
        if source.admin("SHOW server_version_num")[0][0] >= "180000" else
        "ALTER PUBLICATION lakehouse ADD TABLE generated (v)",
    )  # fmt: skip
    broken = ("plain", "indexed", "parts", "wide_parts", "generated")
    assert in_the_way(world) == {f"public.{table}": {"replica identity"} for table in broken}
    with pytest.raises(Unfit, match="fail in the application"):
        prepare(world.settings, world.source)


def test_check_names_everything_at_once_and_changes_nothing(settings: Settings) -> None:
    ddl = {
        "secret": "CREATE TABLE secret (id int PRIMARY KEY); ALTER TABLE secret ENABLE ROW LEVEL SECURITY",
        "fast": "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        "parts": "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE UNLOGGED TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000)",
        "keyless": "CREATE TABLE keyless (id int)",
        "seen": "CREATE VIEW seen AS SELECT 1 AS id",
        "parent": "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)",
        "absent": "",
        "fine": "CREATE TABLE fine (id int PRIMARY KEY)",
        "filtered": "CREATE TABLE filtered (id int PRIMARY KEY);"
        "CREATE PUBLICATION lakehouse FOR TABLE filtered WHERE (id > 0) WITH (publish = 'insert')",
    }
    with cluster("16", wal_level="replica", max_replication_slots="1", max_wal_senders="1") as made:
        world = unprepared(made, settings, ddl)
        made.admin(f"ALTER ROLE {ROLE} NOREPLICATION")
        used = "SELECT pg_snapshot_xmax(pg_current_snapshot())"
        before = made.admin(used)
        found = check_source(world.settings, world.source)
        assert made.admin(used) == before, "no transaction of it has written anything"
        assert in_the_way(world) == {
            None: {"wal_level", "rights", "max_replication_slots", "max_wal_senders", "publication"},
            "public.secret": {"row-level security"}, "public.fast": {"unlogged"}, "public.parts": {"unlogged"},
            "public.seen": {"relation"}, "public.parent": {"relation"}, "public.absent": {"relation"},
            "public.filtered": {"publication"},
        }  # fmt: skip
        assert all(finding.says and finding.remedy and "\n" not in finding.line for finding in found)
        yet = {world.source.table(f.table).raw.relation for f in found if f.table and f.weight == "prepare"}
        assert {"public.fine", "public.keyless"} <= yet


def test_a_server_without_a_slot_left_says_what_to_raise(settings: Settings) -> None:
    with cluster("16", max_replication_slots="1") as made:
        world = unprepared(made, settings, {"fine": "CREATE TABLE fine (id int PRIMARY KEY)"})
        made.admin("SELECT pg_create_physical_replication_slot('of_a_standby')")
        name = world.source.name
        with (
            closing(connect_source(world.settings, name)) as connection,
            pytest.raises(LakehouseError, match=f"raise max_replication_slots .* `lakehouse prepare {name} --check`"),
        ):
            create_slot(connection, "mine", Patience(world.settings, name, 5.0).execute)


def test_a_column_that_is_declared_and_not_there_is_in_the_way(source: Cluster, settings: Settings) -> None:
    """Above all one that is to be left out: misspelt, it would land."""
    world = unprepared(source, settings, {"people": "CREATE TABLE people (id int PRIMARY KEY, secret text)"})
    assert in_the_way(world.declaring("t_0", key=("id",), exclude=("secret",))) == {}
    misspelt = world.declaring("t_0", key=("id",), exclude=("Secret",))
    (finding,) = [f for f in check_source(misspelt.settings, misspelt.source) if f.weight == "in the way"]
    assert finding.says == "public.people has no column Secret"
    assert finding.remedy == "correct its declaration: it has id, secret"


def test_what_a_key_includes_beside_its_columns_is_not_of_the_replica_identity(
    source: Cluster, settings: Settings
) -> None:
    world = unprepared(source, settings, {"covering": WORKS["covering"]})
    world.sql("CREATE PUBLICATION lakehouse FOR TABLE covering (id)")
    prepare(world.settings, world.source)
    assert failing(world, ["covering"]) == {}
    assert in_the_way(world) == {}
    wider = world.declaring("t_0", key=("id", "v"))
    (finding,) = [f for f in check_source(wider.settings, wider.source) if f.weight == "in the way"]
    assert finding.says == "declared key (id, v) is not within the replica identity (id)"


def test_every_mistake_about_columns_is_named_at_once(source: Cluster, settings: Settings) -> None:
    ddl = {
        "other": "CREATE TABLE other (id int PRIMARY KEY, code text NOT NULL)",
        "root": "CREATE TABLE root (id int, code text) PARTITION BY RANGE (id);"
        "CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (9); ALTER TABLE root_1 REPLICA IDENTITY FULL",
        "leaf": "CREATE TABLE leaf (id int, code text NOT NULL, PRIMARY KEY (id, code)) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf_1 PARTITION OF leaf FOR VALUES FROM (0) TO (9); CREATE UNIQUE INDEX codes ON leaf_1 (code);"
        "ALTER TABLE leaf_1 REPLICA IDENTITY USING INDEX codes",
        "twice": 'CREATE TABLE twice (id int PRIMARY KEY, "ID" int, code text, "_op" text)',
        "typed": "CREATE SCHEMA app; CREATE TYPE app.mood AS ENUM ('a'); CREATE DOMAIN mail AS text;"
        'CREATE SCHEMA "My.app"; CREATE TYPE "My.app"."Ü.mood" AS ENUM (); CREATE DOMAIN moods AS "My.app"."Ü.mood"[];'
        "CREATE TABLE typed (id int PRIMARY KEY, a bigint, b app.mood, c mail, d int[], e numeric(9,2), f text,"
        "g moods)",
        "late": "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE) PARTITION BY RANGE (id);"
        "CREATE TABLE late_1 PARTITION OF late FOR VALUES FROM (0) TO (9); ALTER TABLE late_1 REPLICA IDENTITY FULL",
        "own": "CREATE TABLE own (id int, code text) PARTITION BY RANGE (id); ALTER TABLE own REPLICA IDENTITY FULL;"
        "CREATE TABLE own_1 PARTITION OF own (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9)",
    }
    world = unprepared(source, settings, ddl)
    for number, key in enumerate((("code",), ("id",), ("id", "code"))):
        world = world.declaring(f"t_{number}", key=key)
    world = world.declaring("t_3", key=("id",), alias={"code": "Id"}).declaring("t_4", key=("id",))
    world = world.declaring("t_5", key=("id",)).declaring("t_6", key=("id",))
    types = ("int", "bigintt", "mood", "mail", "int[]", "numeric(9,2)", "not a type!", '"My.app"."Ü.mood"[]')
    columns = [
        Column(name=name, data_type=kind, description="") for name, kind in zip(("id", *"abcdefg"), types, strict=True)
    ]
    tables = [t.model_copy(update={"columns": tuple(columns)}) if t.name == "t_4" else t for t in world.source.tables]
    declared = world.source.model_copy(update={"tables": tuple(tables)})
    found = check_source(world.settings, declared)
    lines = {f.line.partition(".")[2] for f in found if f.weight == "in the way" and f.about != "replica identity"}
    lower, outside = "collides (names are compared in lower case, metadata columns included)", "replica identity"
    remedy, full = "declare that key, or set REPLICA IDENTITY FULL", "REPLICA IDENTITY FULL, then resume the table"
    each = "also of each partition ({}), which does not inherit it"
    assert lines == {
        f"t_0: declared key (code) is not within the {outside} (id): {remedy}",
        f"t_1: declared key (id) is not within the {outside} (none): {remedy}, {each.format('public.root_1')}",
        f't_2: partition "public"."leaf_1" has a {outside} of its own (code), without the declared key (id, code): '
        f'ALTER TABLE "public"."leaf_1" {full}',
        f"t_5: declared key (id) is not within the {outside} (none): {remedy}, {each.format('public.late_1')}",
        f't_6: partition "public"."own_1" has a {outside} of its own (id), narrower than that of public.own (FULL), '
        "and no unique index keeps its rows from having one declared key (id) within a transaction: "
        f'ALTER TABLE "public"."own_1" {full}',
        *(f"t_3: column {c!r} {lower}: declare meta.raw.alias: {{{c}: another_name}}" for c in ("ID", "Id", "_op")),
        "t_4: column a is declared as 'bigintt', a type that Postgres does not have: declare data_type: bigint, which "
        "it has in public.typed",
        "t_4: column f is declared as 'not a type!', a type that Postgres does not have: declare data_type: text, "
        "which it has in public.typed",
    }


def test_a_source_that_is_not_there_is_a_finding(settings: Settings) -> None:
    nowhere = {"shop": SourceSettings(url=SecretStr("postgresql://x:y@127.0.0.1:1/x"))}
    declared = declared_source("shop", {"x": RawPolicy(relation="public.x")})
    (finding,) = check_source(settings.model_copy(update={"sources": nowhere}), declared)
    assert finding.weight == "in the way" and finding.about == "connection"


def test_prepare_that_cannot_get_a_lock_ends_and_leaves_nothing(
    source: Cluster, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["ingestion.sources.postgres.setup.owner"], "LOCK_TIMEOUT", "200ms")
    world = unprepared(source, settings, WORKS)
    with psycopg.connect(world.owner_url) as other:
        other.execute("LOCK TABLE plain IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(
            LakehouseError,
            match=r"rolled back: canceling statement due to lock timeout: .* once it has ended",
        ):
            prepare(world.settings, world.source)
    assert world.rows("SELECT 1 FROM pg_publication") == []


def test_a_proposal_leaves_out_in_comments_what_prepare_would_refuse(source: Cluster, settings: Settings) -> None:
    since_18 = SINCE_18 if source.admin("SHOW server_version_num")[0][0] >= "180000" else {}
    unfit = {**BREAKS, **since_18, "fast": "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY, v int)"}
    world = unprepared(source, settings, {**WORKS, **unfit})
    text = propose(world.settings, world.source.name)
    declared = yaml.safe_load(text)["sources"][0]["tables"]
    assert {table["name"] for table in declared} == {lake_name(name.strip('"')) for name in WORKS}
    for table in unfit:
        assert f"# public.{table} is left out: " in text and f"# - name: {table}\n" in text


def test_a_proposal_looks_at_each_schema_that_is_named(source: Cluster, settings: Settings) -> None:
    world = unprepared(source, settings, {"plain": WORKS["plain"]})
    world.sql('CREATE SCHEMA "Front Desk"', 'CREATE TABLE "Front Desk".plain (id int PRIMARY KEY)')
    (proposed,) = yaml.safe_load(propose(world.settings, world.source.name, ["Front Desk", "public"]))["sources"]
    relations = {table["name"]: table["config"]["meta"]["raw"]["relation"] for table in proposed["tables"]}
    assert relations == {"plain": '"Front Desk".plain', "public_plain": "public.plain"}
    with pytest.raises(LakehouseError, match="schema 'nowhere' has no tables; name another with --schema"):
        propose(world.settings, world.source.name, ["public", "nowhere"])


def test_check_prints_a_line_for_each_finding_and_exits_1(
    source: Cluster, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    world = unprepared(source, settings, {"keyless": BREAKS["keyless"], "plain": WORKS["plain"]})
    name, declarations = world.source.name, Declarations(sources=(world.source,))
    with pytest.raises(typer.Exit):
        _check(world.settings, declarations, [name], as_json=True)
    (found,) = [f for f in json.loads(capsys.readouterr().out) if f["weight"] == "in the way"]
    assert (found["source"], found["table"], found["about"]) == (name, "t_0", "replica identity")
    with pytest.raises(typer.Exit):
        _check(world.settings, declarations, [name], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f'in the way  {name}.t_0: UPDATE and DELETE of "public"."keyless" would fail')
    assert 'run ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL as its owner' in lines[0]
    world.sql("ALTER TABLE keyless REPLICA IDENTITY FULL")
    with pytest.raises(typer.Exit):  # it was 0, by which scripts take a source for prepared
        _check(world.settings, declarations, [name], as_json=False)
    assert f"{name}: nothing is in the way; `lakehouse prepare {name}` does what" in capsys.readouterr().out
    prepare(world.settings, world.source)
    _check(world.settings, declarations, [name], as_json=False)
    assert capsys.readouterr().out.endswith(f"{name}: nothing is in the way\n")


def test_a_server_of_a_provider_names_its_own_remedies_and_gives_the_right_by_a_role(settings: Settings) -> None:
    """On RDS a role replicates by membership of rds_replication, and was refused for lack of the attribute."""
    with cluster("18") as made:
        world = unprepared(made, settings, {"fine": "CREATE TABLE fine (id int PRIMARY KEY)"})
        made.admin("CREATE ROLE rds_superuser")
        made.admin("CREATE ROLE rds_replication")
        made.admin(f"ALTER ROLE {ROLE} NOREPLICATION")
        found = {f.about: f for f in check_source(world.settings, world.source) if f.weight == "in the way"}
        assert "GRANT rds_replication TO" in found["rights"].remedy and "stream" not in found
        made.admin(f"GRANT rds_replication TO {ROLE}")
        with connect_source(world.settings, world.source.name) as connection:
            check_server(connection, world.source.name)
        # the attribute is what a plain server goes by: it refuses the stream, as a pooler does
        found = {f.about: f for f in check_source(world.settings, world.source) if f.weight == "in the way"}
        assert "rights" not in found and "WAL sender" in found["stream"].says
        assert "not that of a pooler" in found["stream"].remedy
