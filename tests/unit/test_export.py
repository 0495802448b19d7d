"""What an export does, by what both catalogs name."""

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from importlib import import_module
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from erasure.steps import Erasure
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.errors import LakehouseError
from lakehouse.servers.exports import followed
from lakehouse.settings import Settings, load_settings
from lakehouse_cli.source.dropping import drop
from lakehouse_serve import export as exporting
from lakehouse_serve.export import Plan, export, export_again, follow, plan
from lakehouse_serve.exported import Note, Owner

WAREHOUSE = "s3://lake/"
LAKE = Owner(WAREHOUSE)
A, B, C = ("m", "a"), ("m", "b"), ("m", "c")
CUTS = ("meta", "cuts")  # which is in each list of rules


def test_tables_are_registered_refreshed_and_dropped_and_those_of_others_stay() -> None:
    here = {A: "s3://lake/m/a/2", B: "s3://lake/m/b/1", ("m", "same"): "s3://lake/s/1"}
    there = {A: "s3://lake/m/a/1", C: "s3://lake/m/c/1", ("m", "same"): "s3://lake/s/1", ("t", "x"): "s3://lakes/x"}
    found = plan(here, there, LAKE)
    assert (found.register, found.refresh, found.drop) == ({B: "s3://lake/m/b/1"}, {A: "s3://lake/m/a/2"}, (C,))
    assert str(found) == "1 registered, 1 refreshed, 1 dropped"
    assert not plan(here, here, LAKE)


def test_a_name_that_another_table_has_is_refused() -> None:
    with pytest.raises(LakehouseError, match=r"m\.a is another table in the second catalog"):
        plan({A: "s3://lake/m/a/2"}, {A: "s3://lake2/m/a/2"}, LAKE)


def test_a_table_that_lies_outside_the_warehouse_is_the_lakes_too() -> None:
    """The second export took it for another one and was refused, as each later one: all tables stayed as of then."""
    here = {A: "s3://old/m/a/metadata/2", B: "s3a://old/m/b/metadata/2"}
    there = {A: "s3://old/m/a/metadata/1", B: "s3://old/m/b/metadata/1", C: "s3://old/m/c/metadata/1"}
    found = plan(here, there, LAKE)
    assert (found.register, found.refresh, found.drop) == ({}, here, ()), "nothing says whose C is"
    noted = {name: Note(WAREHOUSE, f"s3://old/m/{name[1]}/metadata") for name in (A, B, C)}
    dropped = plan({}, there, Owner(WAREHOUSE, noted))
    assert dropped.drop == (A, B, C), "its files may be deleted"
    of_others = {**there, A: "s3://theirs/m/a/metadata/1"}
    assert plan({}, of_others, Owner(WAREHOUSE, noted)).drop == (B, C), "somebody has put another table there"


def test_a_table_that_was_registered_from_the_second_catalog_stays_there() -> None:
    """The first export dropped its owner's only pointer, because the lake has a table in that folder, too."""
    there = {("foreign", "x"): "s3://theirs/x/metadata/7"}
    assert not plan({}, there, LAKE)
    noted = Owner(WAREHOUSE, {("foreign", "x"): Note("s3://theirs/", "s3://theirs/x/metadata")})
    assert not plan({}, there, noted)


def test_after_the_warehouse_has_another_name_its_tables_are_exported_on() -> None:
    """Each export was refused, because a note of the former warehouse had taken the name."""
    there = {A: "s3://old/m/a/metadata/1", B: "s3://old/m/b/metadata/1"}
    noted = {name: Note("s3://old/", f"s3://old/m/{name[1]}/metadata") for name in there}
    found = plan({A: "s3://old/m/a/metadata/2"}, there, Owner(WAREHOUSE, noted))
    assert (found.register, found.refresh, found.drop) == ({}, {A: "s3://old/m/a/metadata/2"}, ())


def test_of_lakes_whose_warehouses_lie_in_each_other_each_has_its_own_tables() -> None:
    """The outer one dropped what the inner one had registered, at each export."""
    there = {A: "s3://lake/dev/m/a/metadata/1", B: "s3://lake/m/b/metadata/1"}
    notes = {A: Note("s3://lake/dev/", "s3://lake/dev/m/a/metadata"), B: Note(WAREHOUSE, "s3://lake/m/b/metadata")}
    assert plan({}, there, Owner(WAREHOUSE, notes)).drop == (B,)
    assert plan({}, there, Owner("s3://lake/dev", notes)).drop == (A,)
    with pytest.raises(LakehouseError, match=r"m\.a is another table"):
        plan({A: "s3://lake/m/a/metadata/1"}, there, Owner(WAREHOUSE, notes))


def test_the_lake_is_read_once_no_other_export_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower export pointed tables back to where they had been when it had begun."""
    module = import_module("lakehouse_serve.export")
    second, said = SqlCatalog("second", uri=f"sqlite:///{tmp_path}/second.db"), list[str]()
    event.listen(second.engine, "before_cursor_execute", lambda _, __, statement, *more: said.append(statement))

    def allowed(*_: Any) -> dict[tuple[str, str], str]:
        assert any("FROM iceberg_tables" in statement for statement in said), "its rows are not locked yet"
        return {A: "s3://lake/m/a/1"}

    monkeypatch.setattr(module, "_allowed", allowed)
    settings: Any = SimpleNamespace(warehouse=WAREHOUSE)
    assert (
        str(module._export(settings, SimpleNamespace(locations=dict), second)) == "1 registered, 0 refreshed, 0 dropped"
    )
    assert second.list_tables("m") == [A] and second.list_namespaces() == [("m",)]
    second.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lake": "s3://lake/"}', '{"lake": 1, "folder": "f"}',
                                  '{"lake": "l", "folder": "f", "since": "3"}'])  # fmt: skip
def test_a_note_that_cannot_be_read_is_none_and_written_anew(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every export ended in a traceback."""
    monkeypatch.setattr(exporting, "_allowed", lambda *_: {A: f"{WAREHOUSE}m/a/1"})
    settings: Any = SimpleNamespace(warehouse=WAREHOUSE)
    rows: Any = SimpleNamespace(locations=dict)
    with closing(SqlCatalog("second", uri=f"sqlite:///{tmp_path}/second.db")) as second:
        second.create_namespace("m", {"lakehouse.exported.a": text})
        assert exporting._export(settings, rows, second).register
        noted = second.load_namespace_properties("m")["lakehouse.exported.a"]
        assert json.loads(noted) == {"lake": WAREHOUSE, "folder": "s3://lake/m/a"}


def test_what_deletes_files_exports_again_where_a_second_catalog_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines failed on a mirror that an erasure had made anew, until somebody ran `lakehouse export`."""
    module, done = import_module("lakehouse_serve.export"), list[object]()
    monkeypatch.setattr(module, "export", done.append)
    alone, exported = load_settings(), load_settings(export={"url": "postgresql://nobody@nowhere/second"})
    assert export_again(alone) is None and not done
    assert export_again(exported) is None and done == [exported]

    def fails(_: object) -> None:
        raise LakehouseError("second catalog: no route; check LAKEHOUSE_EXPORT__URL and its rights")

    monkeypatch.setattr(module, "export", fails)
    said = export_again(exported)
    assert said is not None and said.startswith("the second catalog may still name files that were deleted: second")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_table_that_was_dropped_is_dropped_in_the_second_catalog(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lakehouse.servers.trino.answering", lambda _: nullcontext())
    monkeypatch.setattr("lakehouse.servers.trino.query", lambda *_: [])
    monkeypatch.setattr("lakehouse_cli.source.dropping._refuse_pinned", lambda *_: None)
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    drop(load_settings(), [Relation(TableName("mirror_shop", "people"), "table", "s3://lake/people/")], dry_run)
    assert ("no route" in capsys.readouterr().err) == (not dry_run)


def test_what_was_dropped_before_an_error_is_dropped_in_the_second_catalog(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise LakehouseError("trino: no route")

    monkeypatch.setattr("lakehouse.servers.trino.answering", lambda _: nullcontext())
    monkeypatch.setattr("lakehouse.servers.trino.query", fails)
    monkeypatch.setattr("lakehouse_cli.source.dropping._refuse_pinned", lambda *_: None)
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: exported again")
    with pytest.raises(LakehouseError, match="trino"):
        drop(load_settings(), [Relation(TableName("mirror_shop", "people"), "table", "s3://lake/people/")], False)
    assert "exported again" in capsys.readouterr().err


def test_what_an_erasure_deleted_before_it_broke_off_is_told_to_the_second_catalog(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise LakehouseError("a query is still running")

    module = import_module("lakehouse_cli.lake.erase")
    monkeypatch.setattr(module, "load_manifest", lambda _: {})
    monkeypatch.setattr(module, "declarations_from", lambda *_: None)
    monkeypatch.setattr("erasure.run.erase", breaks)
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    with pytest.raises(LakehouseError, match=r"^a query is still running$"):
        module.erase("shop.people", ["id=4"], False, False, False, False, True, False)
    assert "no route" in capsys.readouterr().err


def test_after_a_recovery_the_second_catalog_is_told_what_was_erased_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("lakehouse_cli.source.ingest")
    monkeypatch.setattr(module, "load_manifest", lambda _: {})
    monkeypatch.setattr("erasure.run.remembered", lambda *_: ["someone"])
    monkeypatch.setattr("erasure.run.repeat", lambda *_, **__: ([], []))
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    with pytest.raises(LakehouseError, match="no route"):
        module._erase_again(load_settings(), None, "shop")


def test_an_erasure_is_not_over_while_the_second_catalog_names_deleted_files(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("lakehouse_cli.lake.erase")
    monkeypatch.setattr(module, "load_manifest", lambda _: {})
    monkeypatch.setattr(module, "declarations_from", lambda *_: None)
    monkeypatch.setattr("erasure.run.erase", lambda *_, **__: Erasure(["shop.people id=1"]))
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    with pytest.raises(LakehouseError, match=r"^the second catalog: no route$"):
        module.erase("shop.people", ["id=1"], yes=True)


@pytest.fixture
def second_url(cluster: str) -> Iterator[str]:
    """The URL of an empty database for a second catalog."""
    with psycopg.connect(cluster, autocommit=True) as admin:
        admin.execute("CREATE DATABASE second")
        yield f"{cluster.rsplit('/', 1)[0]}/second"
        admin.execute("DROP DATABASE second WITH (FORCE)")


def lake_of(monkeypatch: pytest.MonkeyPatch, *tables: tuple[str, str]) -> None:
    """A lake that exports these tables, and whose rows are read from nowhere."""
    rows = nullcontext(SimpleNamespace(locations=lambda: dict.fromkeys(tables, "")))
    monkeypatch.setattr(exporting, "_rows", lambda _: rows)
    monkeypatch.setattr(exporting, "_allowed", lambda *_: {name: f"{WAREHOUSE}{name[1]}/1" for name in tables})


def test_exports_to_one_target_wait_for_one_another(second_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one failed with what the database says of a key that is there already."""
    lake_of(monkeypatch, A, B)
    settings, both = load_settings(warehouse=WAREHOUSE, export={"url": second_url}), Barrier(4)

    def run(_: int) -> str:
        both.wait(10)
        return str(export(settings))

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(run, range(4)))
    assert sorted(done) == [*["0 registered, 0 refreshed, 0 dropped"] * 3, "2 registered, 0 refreshed, 0 dropped"]


def test_what_an_export_has_registered_is_its_own_wherever_it_lies(
    second_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = (
        {A: "s3://old/a/1", B: "s3://old/b/1"},
        load_settings(warehouse=WAREHOUSE, export={"url": second_url}),
    )
    monkeypatch.setattr(exporting, "_rows", lambda _: nullcontext(SimpleNamespace(locations=lambda: lake)))
    monkeypatch.setattr(exporting, "_allowed", lambda *_: lake)
    said = []
    for location in ("s3://old/a/1", "s3://old/a/2", "s3://new/a/1", None):
        lake |= {A: location} if location else {}
        if location is None:
            del lake[A]  # dropped in the lake: nothing but the note tells whose it was
        said.append(str(export(settings)))
    changed = ["0 registered, 1 refreshed, 0 dropped"] * 2
    assert said == ["2 registered, 0 refreshed, 0 dropped", *changed, "0 registered, 0 refreshed, 1 dropped"]
    with psycopg.connect(second_url) as connection:
        notes = connection.execute(
            "SELECT property_key, property_value FROM iceberg_namespace_properties WHERE property_key LIKE 'lakehouse%'"
        ).fetchall()
    assert notes == [("lakehouse.exported.b", '{"lake": "s3://lake/", "folder": "s3://old/b"}')]
    assert not export(settings)


def test_an_export_that_another_one_holds_up_says_so_in_one_line(
    second_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_of(monkeypatch, A)
    monkeypatch.setattr(exporting, "WAIT_SECONDS", 1)
    with psycopg.connect(second_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (exporting.LOCK,))
        with pytest.raises(LakehouseError, match=r"^another export to lake at [\d.]+:\d+/second has been at work"):
            export(load_settings(warehouse=WAREHOUSE, export={"url": second_url}))


def test_an_engine_may_have_made_the_tables_of_the_catalog(second_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Iceberg's Java library makes them they have no `iceberg_type`, and every export failed."""
    lake_of(monkeypatch, A)
    columns = "catalog_name text, table_namespace text, table_name text, metadata_location text"
    with psycopg.connect(second_url, autocommit=True) as engine:
        engine.execute(f"CREATE TABLE iceberg_tables ({columns}, previous_metadata_location text)")
        engine.execute(
            "CREATE TABLE iceberg_namespace_properties (catalog_name text, namespace text, property_key text,"
            " property_value text, PRIMARY KEY (catalog_name, namespace, property_key))"
        )
        assert export(load_settings(warehouse=WAREHOUSE, export={"url": second_url})).register
        assert engine.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall() == [
            ("a", f"{WAREHOUSE}a/1")
        ]


def allowed(folder: Path, listed: str | None, role: str = "reader") -> Collection[tuple[str, str]]:
    """What is exported of three tables of a lake, by what the file of rules says."""
    if listed is not None:
        (folder / RELATIONS).write_text(listed)
    rows: Any = SimpleNamespace(
        locations=lambda: dict.fromkeys((A, B, C, CUTS), "here"), read=lambda _: SimpleNamespace(columns={"id"})
    )
    settings = load_settings(export={"tables": ["m.*", "meta.*"], "role": role}, trino={"access": folder})
    return set(exporting._allowed(rows, settings)) - {CUTS}


def of_rules(*names: tuple[str, str], least: str = "reader") -> str:
    return json.dumps({"relations": [{"schema": s, "name": n, "least": least, "personal": []} for s, n in names]})


@pytest.mark.parametrize("listed", [None, of_rules(), of_rules(CUTS, ("other", "a"))])
def test_a_list_of_rules_that_names_none_of_the_tables_drops_none(tmp_path: Path, listed: str | None) -> None:
    """After the file of rules was lost, the next export dropped every table of the second catalog."""
    with pytest.raises(LakehouseError, match=r"relations\.json names none of the 3 tables to export: see"):
        allowed(tmp_path, listed)
    assert allowed(tmp_path, listed, "writer") == {A, B, C}, "who reads everything needs no rule"


@pytest.mark.parametrize("listed", ["", "{", "[]", '{"relations": [{}]}', '{"relations": null}'])
def test_a_list_of_rules_that_is_cut_off_is_one_line(tmp_path: Path, listed: str) -> None:
    with pytest.raises(LakehouseError, match=r"relations\.json cannot be read: `lakehouse doctor` writes it anew$"):
        allowed(tmp_path, listed)


def test_a_table_that_is_declared_no_more_or_closed_goes(tmp_path: Path) -> None:
    assert allowed(tmp_path, of_rules(A, B)) == {A, B}
    assert allowed(tmp_path, of_rules(A, least="writer")) == set(), "the only one was closed"


def test_a_catalog_without_tables_drops_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where LAKEHOUSE_CATALOG_URL was that of another database."""
    with closing(SqlCatalog("second", uri=f"sqlite:///{tmp_path}/second.db")) as second:
        settings: Any = SimpleNamespace(warehouse=WAREHOUSE)

        def run(asked: dict[tuple[str, str], str], *there: tuple[str, str]) -> Plan:
            monkeypatch.setattr(exporting, "_allowed", lambda *_: asked)
            rows: Any = SimpleNamespace(locations=lambda: dict.fromkeys(there, "here"))
            return exporting._export(settings, rows, second)

        run({A: f"{WAREHOUSE}1"}, A)
        with pytest.raises(LakehouseError, match="the lake's catalog has no table, and second would lose all of its 1"):
            run({})
        assert second.list_tables("m") == [A]
        assert run({}, A).drop == (A,), "it is there, and not to be exported"


def test_a_follower_goes_on_after_an_error_and_is_watched_until_it_ends_by_itself(
    catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended at once where the second catalog did not answer at its start, and nobody was told."""
    stop, said, watched = Event(), list[str](), list[Any]()
    url = "postgresql://nobody:secret@nowhere:5433/second"
    settings = catalog_settings.model_copy(update={"export": load_settings(export={"url": url}).export})
    settings = settings.model_copy(update={"export": settings.export.model_copy(update={"every_seconds": 0.01})})

    def done(_: Settings) -> Plan:
        watched.extend(followed(settings))
        if len(watched) == 1:
            raise LakehouseError("second catalog: no route to it")
        if len(watched) == 4:
            stop.set()
        return Plan({A: "1"} if len(watched) == 3 else {}, {}, ())

    monkeypatch.setattr(exporting, "export", done)
    follow(settings, stop, said.append)
    assert said == ["lake: 0 registered, 0 refreshed, 0 dropped"]
    assert [each.error for each in watched] == [None, "second catalog: no route to it", None, None]
    assert [each.done_at is not None for each in watched] == [False, False, True, True]
    assert {each.target for each in watched} == {"lake at nowhere:5433/second"}
    assert followed(settings) == (), "it has ended by itself"
