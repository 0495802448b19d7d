"""What the watch reads in the lake's own tables: dead letters and failed maintenance were told to nobody."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from held_topics import make_lake
from pgoutput_record import scratch_database
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema

from ingestion.run.recover import begin_next_epoch
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.positions import Lsn
from ingestion.schema.types.declared import source_type_of
from ingestion.sink.meta_tables import ensure_meta
from ingestion.state.store import TablePosition
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import PUBLISHED
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.policies import LoadPolicy, MaintenancePolicy, RawPolicy
from lakehouse.migrations import ensure_state
from lakehouse.settings import AlertSettings, Settings, load_settings
from lakehouse_watch.alerts import Alert, Occasion, State, advance
from lakehouse_watch.probes import lake
from lakehouse_watch.probes.lake import read_backups, read_lake
from lakehouse_watch.probes.schema_changes import Standing, is_over
from lakehouse_watch.probes.still_there import Declared
from maintenance.actions.clean_dbt_temporary import READING
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.planning import history
from maintenance.planning.plan import Case, Plan
from maintenance.planning.survey import Survey
from maintenance.runner import maintain

NOW, DAY = datetime.now(UTC), timedelta(days=1)


@pytest.fixture(autouse=True)
def no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "declared_still", lambda settings: None)


def told(settings: Settings) -> dict[str, str]:
    return {occasion.key: occasion.summary for occasion in read_lake(settings).occasions}


def add(catalog: LakeCatalog, kept_in: str, *tables: str) -> None:
    kept = ensure_meta(catalog, kept_in)
    rows = [{"source": "shop", "table": table, "reason": "no JSON", "kept_at": NOW} for table in tables]
    kept.append(pa.Table.from_pylist(rows, schema=kept.schema().as_arrow()))


def test_a_dead_letter_is_told_until_its_table_has_none(
    postgres_catalog: LakeCatalog, catalog_settings: Settings
) -> None:
    """Of a producer that changed a field every event was set aside, and all was green."""
    postgres_catalog.create_namespace_if_not_exists("meta")
    ensure_meta(postgres_catalog, "quarantine")
    assert told(catalog_settings) == {}
    add(postgres_catalog, "quarantine", "orders")
    add(postgres_catalog, "quarantine", "orders", "stores")
    add(postgres_catalog, "spool", "prices")
    assert told(catalog_settings) == {
        "dead_letters/shop.orders": "dead letters of shop.orders in meta.quarantine: 2",
        "dead_letters/shop.stores": "dead letters of shop.stores in meta.quarantine: 1",
    }
    ensure_meta(postgres_catalog, "quarantine").delete(EqualTo(term="table", value="orders"))
    assert set(told(catalog_settings)) == {"dead_letters/shop.stores"}


def test_each_cycle_logs_its_dead_letters_and_the_watch_tells_them(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    web = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    for poison in (["no event"], [], ["no event", {"id": "x"}]):
        web.broker.logs["clicks", 0] += poison
        web.broker.send("clicks", 1)
        web.once()
    said = [record.getMessage() for record in caplog.records if "dead letters" in record.getMessage()]
    assert [text.partition(";")[0] for text in said] == [
        f"source 'web': new dead letters: {count} of web.clicks" for count in (1, 2)
    ]
    assert told(catalog_settings) == {"dead_letters/web.clicks": "dead letters of web.clicks in meta.quarantine: 3"}


def test_what_was_altered_at_once_is_told_once(postgres_catalog: LakeCatalog, catalog_settings: Settings) -> None:
    """A statement that altered two columns, and had the table read anew, came as three messages."""
    postgres_catalog.create_namespace_if_not_exists("meta")
    kept = ensure_meta(postgres_catalog, "schema_changes")

    def noticed(table: str, seconds: int, *changes: tuple[str, str | None, str | None, str | None, str]) -> None:
        head = {"source": "shop", "table": table, "epoch": 1, "noticed_at": NOW - timedelta(seconds=seconds)}
        named = [dict(zip(("kind", "column", "before", "after", "effect"), row, strict=True)) for row in changes]
        kept.append(pa.Table.from_pylist([head | row for row in named], schema=kept.schema().as_arrow()))

    anew = "read anew: a column was rewritten"
    noticed(
        "orders", 3, ("column added", "discount", None, "numeric", anew),
        ("type changed", "price", "integer", "bigint", anew),
        ("table stale", None, "streaming", "stale", "a column was rewritten"),
    )  # fmt: skip
    noticed("orders", 2, ("table streaming", None, "stale", "streaming", None))  # type: ignore[arg-type]
    noticed("stores", 1, ("table parked", None, "streaming", "parked", "no key"))
    noticed("prices", 1, ("table stale", None, "streaming", "stale", "a partition came"))
    assert sorted(told(catalog_settings).values()) == [
        "shop.prices is read anew: a partition came",
        "the source has changed shop.orders: column added: discount (numeric), "
        f"type changed: price (integer → bigint); in the lake: {anew}",
    ]


SEEN = {"before": None, "after": None, "effect": "applied"}
DISCOUNT = {"kind": "column added", "column": "discount", "after": "numeric(9,2)"}
PRICE = {"kind": "type changed", "column": "price", "before": "integer", "after": "bigint"}
GONE = {"kind": "column dropped", "column": "note", "before": "text"}
RENAMED = {"kind": "column renamed", "column": "label", "before": "name", "after": "label"}
MOVED = {"kind": "table renamed", "before": "public.order", "after": "public.orders"}
AGAIN = {"kind": "table made again"}
STALE = {"kind": "table stale", "before": "streaming", "after": "stale", "effect": "it was made again"}
THERE = {"id": "bigint", "discount": "numeric(9,2)", "price": "bigint", "label": "text"}


def standing(declared: dict[str, str], state: Any = "streaming", epoch: int = 1) -> Standing:
    """The table as the source has it, and as it is declared."""
    found = [(number, name, source_type_of(kind), kind) for number, (name, kind) in enumerate(THERE.items(), 1)]
    columns = tuple(
        ColumnFacts(name, number, kind, of.oid, of.name, "b", of.typmod, of.oid, of.typmod, "out")
        for number, name, of, kind in found
    )
    facts = TableFacts(1, 1, "r", "d", ("id",), columns, ("public", "orders"))
    table = RawTable(
        source="shop", name="orders", description="", raw=RawPolicy(relation="public.orders", key=("id",)),
        columns=tuple(Column(name=name, data_type=kind, description="") for name, kind in declared.items()),
        load=LoadPolicy(), maintenance=None, owners=(),
    )  # fmt: skip
    return Standing(epoch, TablePosition("orders", epoch, Lsn(9), state, Lsn(9), versions=(facts,)), table)


def over(now: Standing | None, *rows: dict[str, Any], minutes: float = 60) -> bool:
    head = {"source": "shop", "table": "orders", "epoch": 1, "column": None}
    return is_over([head | SEEN | row for row in rows], now, timedelta(minutes=minutes))


def test_an_altered_table_is_told_until_it_is_declared_as_it_is() -> None:
    """It was told for a day, whatever had been done about it."""
    right = standing(THERE)
    for row, wrong in (
        (DISCOUNT, {name: kind for name, kind in THERE.items() if name != "discount"}),
        (PRICE, {**THERE, "price": "integer"}),
        (GONE, {**THERE, "note": "text"}),
        (RENAMED, {"name" if name == "label" else name: kind for name, kind in THERE.items()}),
    ):
        assert over(right, row, minutes=0) and not over(standing(wrong), row), row
        assert not over(right._replace(declared=None), row), "the project cannot be read"
    assert over(standing({**THERE, "price": "numeric"}), GONE), "another column is another matter"
    assert over(right, MOVED)
    assert right.declared is not None
    other = right.declared.model_copy(update={"raw": RawPolicy(relation="public.order", key=("id",))})
    assert not over(right._replace(declared=other), MOVED)


def test_a_table_that_was_read_anew_is_told_for_some_minutes_and_one_that_is_not_yet_until_then() -> None:
    for rows in ([AGAIN, STALE], [STALE], [AGAIN]):
        assert not over(standing(THERE), *rows, minutes=1) and over(standing(THERE), *rows, minutes=6)
        assert not over(standing(THERE, "stale"), *rows) and not over(standing(THERE, "parked"), *rows)


def test_what_was_altered_before_a_source_was_recovered_or_a_table_removed_is_told_no_more() -> None:
    for rows in ([DISCOUNT], [AGAIN, STALE], [GONE]):
        assert over(standing({"id": "bigint"}, "stale", epoch=2), *rows, minutes=0)
        assert over(None, *rows, minutes=0)


def test_a_source_that_was_recovered_is_found_so_in_the_state(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    web.broker.send("clicks", 1)
    web.once()
    kept = ensure_meta(postgres_catalog, "schema_changes")
    row = {"source": "web", "table": "clicks", "epoch": 1, "noticed_at": NOW} | SEEN | DISCOUNT
    kept.append(pa.Table.from_pylist([row], schema=kept.schema().as_arrow()))
    assert [key.partition("/")[0] for key in told(catalog_settings)] == ["schema"]
    web.once(begin_next_epoch)
    assert told(catalog_settings) == {}


def test_dead_letters_of_a_table_that_is_removed_are_told_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*declared: str) -> list[str]:
        checks = frozenset((f"raw_shop.{table}", "in_the_cut") for table in declared)
        there = Declared(frozenset({"shop"}), frozenset(), checks)
        return [occasion.key for occasion in lake._dead_letters({("shop", "orders"): 1}, there)]

    assert told("orders", "stores") == ["dead_letters/shop.orders"]
    assert told("stores") == []


def test_a_mart_that_no_model_makes_any_more_is_told_and_no_table_of_ones_own(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model was renamed, and readers went on with what was built last."""
    nothing = frozenset[Any]()
    there = Declared(nothing, nothing, nothing, models=frozenset({("marts", "dim_person")}))
    monkeypatch.setattr("lakehouse_watch.probes.lake.declared_still", lambda _: there)
    postgres_catalog.create_namespace_if_not_exists("marts")
    for name, properties in {
        "dim_person": {PUBLISHED + "1": ""},
        "dim_user": {PUBLISHED + "2": ""},
        "mine": {},
    }.items():
        postgres_catalog.create_table(("marts", name), Schema(), properties=properties)
    assert list(told(catalog_settings)) == ["unmade/marts.dim_user"]
    postgres_catalog.drop_table(("marts", "dim_user"))
    assert told(catalog_settings) == {}


def test_while_the_project_cannot_be_read_no_mart_without_a_model_is_over(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that was restarted meanwhile told that it was over: it knew of no model."""
    assert read_lake(catalog_settings).unknown == ("unmade/",)
    nothing = frozenset[Any]()
    there = Declared(nothing, nothing, nothing, models=frozenset({("marts", "dim_person")}))
    monkeypatch.setattr("lakehouse_watch.probes.lake.declared_still", lambda _: there)
    assert read_lake(catalog_settings).unknown == ()
    occasion = Occasion("unmade/marts.dim_user", "no model makes it", "drop it")
    open_alert = Alert(occasion, "lake", NOW - DAY, told=True)
    state = State(
        {occasion.key: open_alert, "parked/x": Alert(replace(occasion, key="parked/x"), "lake", NOW, told=True)}
    )
    for minutes in range(5):
        state = advance(state, {"lake": []}, ["webhook"], NOW + timedelta(minutes=minutes), ("unmade/",))
    assert state.alerts == {occasion.key: open_alert} and [m.body["key"] for m in state.outbox] == ["parked/x"]


def maintained(catalog: LakeCatalog, table: str, action: str, *outcomes: str, ago: timedelta = timedelta()) -> None:
    """A run a night, the last one so long ago."""
    catalog.create_namespace_if_not_exists("meta")
    kept = catalog.create_table_if_not_exists(("meta", "maintenance"), history.SCHEMA)
    rows = [
        {"run_id": str(night), "table": table, "action": action, "status": status,
         "started_at": NOW - ago - night * DAY, "error": "disk full" if status == "failed" else None,
         "files_before": 9, "files_after": 4}
        for night, status in enumerate(reversed(outcomes))
    ]  # fmt: skip
    kept.append(pa.Table.from_pylist(rows, schema=history.SCHEMA))


def test_what_fails_on_a_table_in_each_run_is_told_though_the_runs_succeed(
    postgres_catalog: LakeCatalog, catalog_settings: Settings
) -> None:
    """With twenty tables one could fail every night, and each run was green."""
    for name in ("raw_shop.orders", "raw_shop.stores", "vault.hub_store", "vault.sat_store"):
        postgres_catalog.create_namespace_if_not_exists(name.partition(".")[0])
        postgres_catalog.create_table(name, pa.schema([("id", pa.int64())]))
    maintained(postgres_catalog, "raw_shop.orders", "compact", "done", "failed", "failed", "failed")
    maintained(postgres_catalog, "raw_shop.orders", "expire_snapshots", "failed", "failed", "failed", "done")
    maintained(postgres_catalog, "raw_shop.stores", "compact", "failed", "failed")
    maintained(postgres_catalog, "raw_shop.removed", "compact", "failed", "failed", "failed")
    maintained(postgres_catalog, "vault.hub_store", "compact", "failed", "failed", "failed", ago=9 * DAY)
    maintained(postgres_catalog, "vault.sat_store", "compact", "failed", ago=15 * DAY)
    maintained(postgres_catalog, "vault.sat_store", "compact", "failed", ago=8 * DAY)
    maintained(postgres_catalog, "vault.sat_store", "compact", "failed", ago=DAY)
    assert told(catalog_settings) == {
        "maintenance/raw_shop.orders": "compact of raw_shop.orders failed 3 times in a row: disk full",
        "maintenance/vault.sat_store": "compact of vault.sat_store failed 3 times in a row: disk full",
    }
    maintained(postgres_catalog, "raw_shop.orders", "compact", "done", ago=-DAY)
    assert set(told(catalog_settings)) == {"maintenance/vault.sat_store"}
    fewer = {
        dict(s.labels)["action"]: s.value
        for s in read_lake(catalog_settings).samples
        if s.name.endswith("removed_files")
    }
    assert fewer == {"compact": 5, "expire_snapshots": 5}


def test_a_table_that_cannot_be_measured_is_told_until_it_can(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failures were recorded without a moment, by which the history is read: nothing was ever done to it."""
    policy, health = MaintenancePolicy(schedule_group="nightly"), Health(*[None] * len(fields(Health)))
    tables = [MaintainedTable(TableName("vault", name), policy) for name in ("hub_store", "sat_store")]
    postgres_catalog.create_namespace_if_not_exists("vault")
    for name in ("hub_store", "sat_store", "undeclared"):
        postgres_catalog.create_table(("vault", name), pa.schema([("id", pa.int64())]))
    undeclared, session = TableName("vault", "undeclared"), maintenance_of(postgres_catalog)

    def run(*errors: str | None, can_be_read: bool) -> None:
        of = zip(tables, errors, strict=True)
        cases = tuple(Case(table, None if error else health, error) for table, error in of)
        project: Any = SimpleNamespace(groups={}, max_failed_share=1.0)
        lost = () if can_be_read else (Outcome(READING, undeclared, "failed", error="gone"),)
        session.lake = lambda: SimpleNamespace(tables={undeclared: None} if can_be_read else {})
        monkeypatch.setattr(maintain, "survey", lambda *_: Survey(cases, tuple(history.recent(session)), project))
        monkeypatch.setattr(maintain, "hindrances_for", lambda *_: lost)
        monkeypatch.setattr(maintain, "allowances", lambda *_: {})
        monkeypatch.setattr(maintain, "make_plan", lambda *_: Plan((), (), ()))
        prepared = maintain.prepare(session)
        maintain.finish(session, prepared, prepared.unmeasured)

    run("no file", "no file", can_be_read=False)
    run("no file", None, can_be_read=False)
    run("no file", "no file", can_be_read=False)
    assert told(catalog_settings) == {
        "maintenance/vault.hub_store": "measure of vault.hub_store failed 3 times in a row: no file",
        "maintenance/vault.undeclared": "read_metadata of vault.undeclared failed 3 times in a row: gone",
    }
    run(None, None, can_be_read=True)
    assert told(catalog_settings) == {}
    rows = len(history.recent(session))
    run(None, None, can_be_read=True)
    assert len(history.recent(session)) == rows, "a sound lake adds nothing"


def maintenance_of(catalog: LakeCatalog) -> Any:
    return SimpleNamespace(catalog=catalog, dry_run=False, now=NOW, ago=lambda hours: NOW - timedelta(hours=hours))


def test_a_lake_that_was_never_backed_up_is_told_and_a_late_backup_with_its_folder(
    cluster: str, tmp_path: Path
) -> None:
    """A timer whose folder was missing failed every night, and nobody was told."""
    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        settings = load_settings(home=tmp_path, catalog_url=url)
        ensure_state(connection)
        connection.execute("UPDATE lakehouse.schema_version SET applied_at = now() - interval '60 hours'")
        assert read_backups(settings).occasions == (), "nothing was ever ingested"
        connection.execute(
            "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid)"
            " VALUES ('shop', 1, 1, 'slot', '1', 1, 1)"
        )
        [never] = read_backups(settings).occasions
        assert (never.key, never.severity) == ("backup/age", "warning")
        assert never.summary == "the lake is 60 hours old, and no backup has succeeded yet"
        quiet = settings.model_copy(update={"alerts": AlertSettings(backup_hours=0)})
        assert read_backups(quiet).occasions == ()
        for hours, late in ((70, "70"), (51, "51"), (2, None)):
            connection.execute(
                "INSERT INTO lakehouse.backups VALUES (now() - %s * interval '1 hour', '/backups/my lake', false)",
                [hours],
            )
            found = read_backups(settings)
            assert found.samples and [told.summary for told in found.occasions] == (
                [f"the last backup was made {late} hours ago"] if late else []
            )
            assert all("`lakehouse backup '/backups/my lake'`" in told.to_do for told in found.occasions)
            assert read_backups(quiet).occasions == ()


def test_backups_of_the_catalog_alone_and_a_clock_ahead_do_not_hide_that_the_warehouse_has_none(
    cluster: str, tmp_path: Path
) -> None:
    """The nightly backup failed while an hourly one of the catalog alone succeeded, and nobody was told."""
    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        settings = load_settings(home=tmp_path, catalog_url=url)
        ensure_state(connection)
        insert = "INSERT INTO lakehouse.backups VALUES (now() + %s * interval '1 hour', '/backups', %s)"

        def told(hours: int, catalog_only: bool) -> list[str]:
            connection.execute(insert, [hours, catalog_only])
            return [occasion.summary for occasion in read_backups(settings).occasions]

        assert told(-1, True) == [], "the warehouse is backed up by other means"
        assert told(-70, False) == ["the last backup with the warehouse was made 70 hours ago"]
        assert told(24, False) == ["the last backup with the warehouse was made 70 hours ago"]
        assert "WHERE NOT catalog_only" in read_backups(settings).occasions[0].to_do
        assert told(-2, False) == []
