"""`lakehouse sql --as-of`: queries over several tables are answered as the source was, beside copies of its tables."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehouse.catalog.views.tags import VIEW, tags_of
from lakehouse.declarations.access.rules import RELATIONS, RULES, Relation, rules
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_shared
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_cli.lake.show import show
from lakehouse_cli.lake.sql import sql
from lakehouse_serve.past.asked import at_moment, moment_of
from tests.fresh import is_fresh_view
from tests.marks import slow
from tests.mirrored import declaring_columns, metadata, refreshed
from tests.readers import Declared, Project, columns_in_source, project_of
from tests.test_access import eventually
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = """CREATE TABLE people (id int PRIMARY KEY, name text, email text, at time, note text);
ALTER TABLE people ALTER note SET STORAGE EXTERNAL;
CREATE TABLE visits (id int PRIMARY KEY, person int REFERENCES people DEFERRABLE, spent numeric(10,2), many int)"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("people", "visits")}
MIRRORED = "SELECT id, name, email, (extract(epoch FROM at) * 1000000)::bigint, note FROM people ORDER BY id"
JOINED = "SELECT v.id, p.name, v.spent FROM {visits} v JOIN {people} AS p ON p.id = v.person"


@dataclass(frozen=True)
class Copy:
    """What the source answered at a commit, and where and when that was."""

    lsn: str
    at: str
    people: list[Any]
    joined: list[Any]
    mirrors: dict[str, list[Any]]


def change(world: World, rng: random.Random, step: int) -> None:
    """A transaction over both tables: values that an update does not carry, keys that go, come back and change."""
    person, other = rng.sample(range(1, 9), 2)
    statements = [
        f"INSERT INTO people VALUES ({person}, 'p{step}', 'p{step}@example.com', '12:00', repeat('n', 9000))"
        f" ON CONFLICT (id) DO UPDATE SET name = 'p{step}', at = '24:00'",
        f"INSERT INTO visits VALUES ({step}, {person}, {step}.5, {step})",
        f"UPDATE visits SET spent = spent + 1 WHERE id % 3 = {step % 3}",
    ]
    if step % 3 == 0:
        statements += [f"DELETE FROM visits WHERE person = {other}", f"DELETE FROM people WHERE id = {other}"]
    if step % 5 == 0:
        statements.append(f"UPDATE visits SET id = id + 1000 WHERE id = {step - 1}")
    if step % 11 == 0:
        statements.append("TRUNCATE visits")
    world.sql(";".join(statements))


def copied(world: World) -> Copy:
    [(lsn, at)] = world.rows(
        "SELECT pg_current_wal_lsn()::text, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
    )
    people = world.rows("SELECT id, name, email FROM people ORDER BY 1")
    joined = world.rows(JOINED.format(visits="visits", people="people") + " ORDER BY 1")
    mirrors = {"people": world.rows(MIRRORED), "visits": world.rows("SELECT * FROM visits ORDER BY id")}
    return Copy(lsn, at, people, joined, mirrors)


@contextmanager
def ruled(settings: Settings, source: str) -> Iterator[None]:
    """Trino's rules, by which readers see no mail addresses of the source."""
    assert settings.trino.access is not None
    files = [settings.trino.access / name for name in (RULES, RELATIONS)]
    before = [file.read_text() if file.exists() else "" for file in files]
    made = [Relation(schema, name, "reader", frozenset({"email"} if table == "people" else ())) for table in TABLES
            for schema, name in (("parsed", f"parsed_{source}__{table}"), ("parsed", f"current_{source}__{table}"),
                                 (f"mirror_{source}", table))]  # fmt: skip
    write_shared(files[0], json.dumps(rules(made)))
    write_shared(files[1], json.dumps({"relations": [{**r._asdict(), "personal": sorted(r.personal)} for r in made]}))
    try:
        eventually(lambda: query(settings, f"SELECT id FROM parsed.current_{source}__people", role="reader"))
        yield
    finally:
        for file, text in zip(files, before, strict=True):
            write_shared(file, text or '{"relations": []}')


def asked(project: Project, text: str, moment: str) -> list[Any]:
    """The answer as of a moment, in order."""
    rewritten, _ = at_moment(project.settings, text, moment_of(project.settings, moment), "writer")
    return sorted(tuple(row) for row in project.rows(rewritten))


def declared(world: World, table: str) -> Declared:
    name = world.source.name
    vault: dict[str, Any] = {"hub": {"name": f"{name}_{table}"}}
    if table == "people":
        vault["satellites"] = {f"{name}_names": ["name", "email"], f"{name}_more": ["at", "note"]}
    else:
        vault |= {
            "references": {f"{name}_people": "person"}, "satellites": {f"{name}_spent": ["spent", "many"]},
            "links": {f"{name}_who": {"to": [f"{name}_people"]}},
        }  # fmt: skip
    columns = columns_in_source(world, table) | ({"many": "bigint"} if table == "visits" else {})  # an int in mirrors
    return Declared(columns, {"relation": f"public.{table}", "key": ["id"]}, vault)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("moments", "loaded_at"), [(2, [1]), slow(20, [10, 20])])
def test_every_moment_is_answered_as_the_source_was(
    settings: Settings,
    spark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    moments: int,
    loaded_at: list[int],
) -> None:
    """And refused where it is not loaded yet."""
    world, rng, copies = make_world(settings, DDL, TABLES), random.Random(21), list[Copy]()
    mirrored = declaring_columns(world)
    with project_of(world, tmp_path) as project:
        project.declare({table: declared(world, table) for table in TABLES})
        for step in range(1, moments + 1):
            change(world, rng, step)
            world.ingest(spark)
            if step % 3 == 1:
                refreshed(mirrored, spark)
            copies.append(copied(world))
            world.ingest(spark)  # a position beyond what was read is refused
            if step in loaded_at:
                project.load()
            elif step == loaded_at[0] + 1:
                assert_refused_until_loaded(project, copies[-1])
        refreshed(mirrored, spark)
        assert all(is_fresh_view(world, table) for table in TABLES), "which has a past too"
        copies = copies[: loaded_at[-1]]
        for number, copy in enumerate(copies):
            forms = (f"{project.name}={copy.lsn}", f"{project.name}=1:{copy.lsn}", copy.at)
            assert_as(project, copy, forms[number % 3])
            assert_mirrors(project, copy, forms[number // 3 % 3], number % 3 == 0 or number + 1 == moments)
        assert_refusals(project, copies)
        with ruled(project.settings, project.name):
            assert_readers_see_no_personal_columns(project, copies[len(copies) // 2], capsys)
        assert_told_of_what_is_in_a_later_cut_alone(world, spark, rng, capsys)
        for table in TABLES:
            name = f"lake.mirror_{world.source.name}.{table}"
            for tag, _ in tags_of(metadata(world, table).metadata, VIEW)[:-1]:  # those left behind, as after an hour
                spark.sql(f"ALTER TABLE {name} DROP TAG `{tag}`")
            spark.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
        for number, copy in enumerate(copies):  # the mirrors still stand at the last of all
            assert_mirrors(project, copy, f"{project.name}={copy.lsn}", has_snapshot=number + 1 == moments)


@pytest.mark.slow  # tests/unit/test_mentions.py has the same in memory
@pytest.mark.timeout(900)
def test_a_key_is_in_its_hub_since_its_first_mention_whichever_was_loaded_first(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """A visit mentions its person. As of a moment before the visit, the person was in the satellite alone."""
    world = make_world(settings, DDL, TABLES)
    with project_of(world, tmp_path) as project:
        project.declare({table: declared(world, table) for table in TABLES})
        world.sql("INSERT INTO people VALUES (1, 'one'); INSERT INTO visits VALUES (1, 1, 1, 1)")
        world.ingest(spark)
        project.load()
        world.sql("INSERT INTO people VALUES (2, 'two')")
        world.ingest(spark)
        before = copied(world)
        world.sql("INSERT INTO visits VALUES (2, 2, 1, 1)")
        world.ingest(spark)
        project.load("run", "--exclude", f"parsed_{project.name}__people")
        project.load()
        assert_as(project, before, f"{project.name}={before.lsn}")


def assert_as(project: Project, copy: Copy, moment: str) -> None:
    name = project.name
    current = {table: f"parsed.current_{name}__{table}" for table in TABLES}
    vault = (
        f"SELECT people.{name}_people_id, s.name, s.email FROM vault.hub_{name}_people people"
        f" JOIN vault.sat_{name}_names_v1 s USING (hk_{name}_people) WHERE s.is_current AND NOT s.is_deleted"
    )
    by_hand = (
        "SELECT id, name, email FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _epoch DESC,"
        f" _commit_lsn DESC, _seq DESC) AS n FROM lake.parsed.parsed_{name}__people) WHERE n = 1 AND NOT _is_deleted"
    )
    assert asked(project, f"SELECT id, name, email FROM {current['people']}", moment) == copy.people, moment
    assert asked(project, f"WITH c AS ({JOINED.format(**current)}) SELECT * FROM c -- all", moment) == copy.joined
    assert asked(project, vault, moment) == copy.people, moment
    assert asked(project, by_hand, moment) == copy.people, moment


def assert_mirrors(project: Project, copy: Copy, moment: str, has_snapshot: bool) -> None:
    """By the snapshot of the refresh that was there, or made of parsed: the same rows."""
    for table, rows in copy.mirrors.items():
        text = f"SELECT * FROM mirror_{project.name}.{table}"
        rewritten, cuts = at_moment(project.settings, text, moment_of(project.settings, moment), "writer")
        assert (" FOR VERSION AS OF " in rewritten) == has_snapshot, rewritten
        assert [cut.source for cut in cuts] == [project.name]
        assert sorted(tuple(row) for row in project.rows(rewritten)) == rows, (table, moment)


def assert_refused_until_loaded(project: Project, copy: Copy) -> None:
    """The newest cut is in raw, and not in parsed and the vault."""
    name = project.name
    of_parsed = (f"parsed.current_{name}__visits", f"mirror_{name}.visits")
    for table in (*of_parsed, f"vault.sat_{name}_spent_v1", f"vault.link_{name}_who"):
        with pytest.raises(LakehouseError, match=r"lacks \d+ changes that are not loaded yet"):
            asked(project, f"SELECT * FROM {table}", f"{name}={copy.lsn}")


def assert_refusals(project: Project, copies: list[Copy]) -> None:
    name, moment = project.name, f"{project.name}={copies[len(copies) // 2].lsn}"
    for wrong, message in {
        "SELECT * FROM meta.cuts": "meta.cuts has no past",
        f"SELECT * FROM parsed.current_{name}__people FOR VERSION AS OF 1": "leave out FOR … AS OF",
        f"SELECT * FROM current_{name}__people": "name its schema",
        "SELECT * FROM tpch.tiny.nation": "not of the lake",
        f"SELECT * FROM parsed.nothing_{name}": "there is no table or view",
        f"DELETE FROM parsed.parsed_{name}__people": "only one SELECT has a past",
        f"SELECT * FROM TABLE(lake.system.table_changes('parsed', 'parsed_{name}__people', 1, 2))": "have no past",
    }.items():
        with pytest.raises(LakehouseError, match=message):
            asked(project, wrong, moment)
    with pytest.raises(LakehouseError, match=r"no cut.* was published until then"):
        asked(project, f"SELECT * FROM parsed.current_{name}__people", f"{name}=0/1")
    with pytest.raises(LakehouseError, match="in the future"):
        asked(project, f"SELECT * FROM parsed.current_{name}__people", "2999-01-01")


def assert_readers_see_no_personal_columns(project: Project, copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    """As the command asks, which is a reader by default."""
    people, moment = f"parsed.current_{project.name}__people", f"{project.name}={copy.lsn}"
    sql(f"SELECT id, name FROM {people} ORDER BY id", json=True, as_of_lsn=[moment])
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [{"id": i, "name": n} for i, n, _ in copy.people]
    assert printed.err.startswith(f"as of {project.name}=1:")
    mirror = f"mirror_{project.name}.people"
    for asked_for in (people, mirror):
        sql(f"SELECT * FROM {asked_for} ORDER BY id", json=True, as_of_lsn=[moment])
        assert "email" not in capsys.readouterr().out
    for asked_for in (people, mirror, f"parsed.parsed_{project.name}__people"):
        with pytest.raises(LakehouseError, match=r"email.* cannot be resolved|Access Denied"):
            sql(f"SELECT email FROM {asked_for}", as_of_lsn=[moment])


def assert_told_of_what_is_in_a_later_cut_alone(
    world: World, spark: Any, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a commit and of a time for which no cut was published, since nothing was ingested around it."""
    count, name = f"SELECT count(*) AS n FROM raw_{world.source.name}.visits", world.source.name
    world.ingest(spark)
    at_cut = copied(world)
    world.ingest(spark)
    capsys.readouterr()  # what was said before
    sql(count, json=True, role="writer", as_of_lsn=[f"{name}={at_cut.lsn}"])
    before = capsys.readouterr()
    change(world, rng, 13)
    [(xid,)] = world.rows("INSERT INTO visits VALUES (900, NULL, 1, 1) RETURNING pg_current_xact_id()::text")
    with pytest.raises(LakehouseError, match="not in the lake yet, or changed no table"):
        show(cut_of=f"{name}=xid:{xid}")
    between = copied(world)
    change(world, rng, 14)
    world.ingest(spark)
    asked: list[dict[str, Any]] = [{"as_of_lsn": [f"{name}={between.lsn}"]}, {"as_of": between.at}]
    for moment in asked:
        sql(count, json=True, role="writer", **moment)
        printed = capsys.readouterr()
        assert printed.out == before.out and printed.err.startswith(before.err), moment
        told = printed.err.removeprefix(before.err).replace("\n", " ")
        assert f"visits of {name} had changes until then that are not in it" in told, moment
    show(json=True, cut_of=f"{name}=xid:{xid}")
    [found] = json.loads(capsys.readouterr().out)
    assert found["rows"] == {"visits": 1} and not found["left_out"]
    sql(f"{count} WHERE id = 900", json=True, role="writer", as_of_cut=found["cut"])
    assert json.loads(capsys.readouterr().out) == {"n": 1}, "the first cut that has the transaction"
