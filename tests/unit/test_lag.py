"""Lag against declared limits: invalid declarations, the level of a table, and when the sensor reports it."""

from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ingestion.run.reports import SourceReport, SourceStatus, TableReport, TableStatus
from ingestion.sources.base import Retention
from ingestion.sources.postgres.connection import Slot
from lakehouse.declarations import RawTable, Source, declarations_from
from lakehouse.declarations.policies import LagPolicy, LoadPolicy, RawPolicy, check_owner
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_cli.machine.lag import _trouble, lag_table
from lakehouse_watch.probes import sources
from lakehouse_watch.probes.sources import CATCH_UP_SECONDS, CLAIM_SECONDS, measure, read_source
from lakehouse_watch.probes.sources import judge as judge_source
from lakehouse_watch.probes.still_there import Declared
from orchestration.checks.lag import CHECK, CONFIRM_TICKS, judge, lag_definitions, to_report
from orchestration.factory import source_definitions
from orchestration.resources import Lake

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
LIMITS = LagPolicy(warn_bytes=100, error_bytes=1000, warn_seconds=60, error_seconds=600)
YAML = """sources:
  - name: shop
    schema: raw_shop
    config:
      meta:
        lag: {inherited}
    tables:
      - name: things
        config:
          meta:
            raw: {{relation: public.things}}
            {own}
"""


def things(lag: LagPolicy | None = LIMITS) -> RawTable:
    return RawTable(
        source="shop", name="things", description="", columns=(), raw=RawPolicy(relation="public.things"),
        load=LoadPolicy(), maintenance=None, owners=(), lag=lag,
    )  # fmt: skip


def status(kept: int = 0, seconds: float = 0, slot: str = "reserved", sound: bool = True) -> SourceStatus:
    tables = (TableStatus("things", "parked", "a reason", "0/1F4", 500),)
    return SourceStatus(
        "shop",
        True,
        "host:1",
        kept,
        True,
        "0/1F4",
        500,
        NOW,
        "0/1F5",
        500,
        NOW,
        0,
        lag_seconds=seconds,
        slot_state=slot,
        slot_is_sound=sound,
        tables=tables,
    )


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        (status(99, 59), "ok"),
        (status(100, 0), "warn"),
        (status(0, 60), "warn"),
        (status(1000, 0), "error"),
        (status(0, 600), "error"),
        (status(slot="wal_removed", sound=False), "error"),
        (status(slot="missing", sound=False), "error"),
        (status(slot="offsets retained"), "ok"),
    ],
)
def test_a_lag_amounts_to_the_worse_of_its_bytes_and_seconds(seen: SourceStatus, level: str) -> None:
    assert judge(things(), seen).level == level


def test_a_verdict_names_the_figures_and_the_state_of_the_table() -> None:
    metadata = judge(things(), status(150, 61.24)).metadata
    assert (metadata["slot_lag_bytes"], metadata["lag_seconds"], metadata["table_state"]) == (150, 61.2, "parked")


def test_a_level_is_told_when_it_changes_and_now_and_then() -> None:
    good, bad = [judge(things(), status())], [judge(things(), status(5000))]
    told, cursor = to_report(good, None)
    assert told == good
    told, cursor = to_report(good, cursor)
    assert told == []
    told, cursor = to_report(bad, cursor)
    assert told == bad
    ticks = []
    for _ in range(CONFIRM_TICKS):
        told, cursor = to_report(bad, cursor)
        ticks.append(bool(told))
    assert ticks == [False] * (CONFIRM_TICKS - 1) + [True]


@pytest.mark.parametrize(
    ("inherited", "own", "line", "message"),
    [
        ("{warn_bytes: -1}", "", 6, "greater than 0"),
        ("{warn_bites: 1}", "", 6, "did you mean `warn_bytes`"),
        ("{}", "", 6, "give at least one of warn_bytes"),
        ("{warn_seconds: 9, error_seconds: 9}", "", 6, r"warn_seconds \(9.0\) must be below error_seconds \(9.0\)"),
        ("{warn_bytes: 1}", "lag: {warn_bytes: many}", 12, "valid integer"),
    ],
)
def test_wrong_limits_are_refused_with_file_and_line(
    tmp_path: Path, inherited: str, own: str, line: int, message: str
) -> None:
    import yaml

    text = YAML.format(inherited=inherited, own=own)
    (tmp_path / "shop.yml").write_text(text)
    [source] = yaml.safe_load(text)["sources"]
    meta = source["config"]["meta"] | source["tables"][0]["config"]["meta"]  # as dbt merges
    node: dict[str, Any] = {
        "schema": "raw_shop", "source_name": "shop", "name": "things", "columns": {}, "config": {"meta": meta},
        "original_file_path": "shop.yml",
    }  # fmt: skip
    with pytest.raises(LakehouseError, match=rf"shop.yml:{line}: meta.lag.*{message}") as caught:
        declarations_from({"sources": {"s": node}}, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("owner", ["data-team", "team:", "a@b", "@b.com"])
def test_an_owner_that_dagster_would_refuse_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="neither a mail address nor `team:`"):
        check_owner(owner)
    assert check_owner("team:data") and check_owner("data-platform@example.com")


STATUS: list[SourceStatus | Exception] = []


class InventedLake(Lake):
    """Only the source's status is fake."""

    def source_status(self, source: str) -> SourceStatus:
        if isinstance(STATUS[-1], Exception):
            raise STATUS[-1]
        return STATUS[-1]

    def bring_up(self, source: str) -> SourceReport:
        return SourceReport(source, 1, "0/1F5", 500, NOW, (TableReport("things", 1, {"c": 1}, 1, 0, ()),))

    def rows_since(self, tables: Any) -> dict[Any, Any]:
        return {}

    def newest_snapshots(self, tables: Any) -> dict[str, Any]:
        return {}


def test_the_sensor_writes_evaluations_without_a_run() -> None:
    lag = lag_definitions(Source(name="shop", description="", load=LoadPolicy(), tables=(things(),)))
    asset = dg.AssetSpec(dg.AssetKey(["raw_shop", "things"]))
    defs = dg.Definitions.merge(lag, dg.Definitions(assets=[asset], resources={"lake": InventedLake()}))
    sensor = defs.get_repository_def().get_sensor_def("lag_shop")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, resources={"lake": InventedLake()})
        for seen, passed in ((status(), True), (ConnectionError("the source is away"), False)):
            STATUS.append(seen)
            [event] = sensor.evaluate_tick(context).asset_events
            assert isinstance(event, dg.AssetCheckEvaluation)
            assert (event.check_name, event.passed) == (CHECK, passed)
        assert event.description == "cannot read the status: the source is away"


def test_the_check_can_be_executed_by_hand() -> None:
    STATUS.append(status(150))
    lag = lag_definitions(Source(name="shop", description="", load=LoadPolicy(), tables=(things(),)))
    [check] = lag.asset_checks or []
    result = dg.materialize([check], resources={"lake": InventedLake()}, selection=dg.AssetSelection.all_asset_checks())
    [evaluation] = result.get_asset_check_evaluations()
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert evaluation.metadata["slot_lag_bytes"].value == 150


def test_a_load_ends_with_the_lag_it_leaves() -> None:
    STATUS.append(status(5000))
    shop = Source(name="shop", description="", load=LoadPolicy(), tables=(things(),))
    defs = dg.Definitions.merge(
        source_definitions(shop, date(2026, 1, 1)),
        dg.Definitions(resources={"lake": InventedLake()}, executor=dg.in_process_executor),
    )
    result = defs.resolve_job_def("load_shop").execute_in_process()
    assert result.success, "a lag beyond its limit is told, it does not fail the load"
    assert {e.check_name: e.passed for e in result.get_asset_check_evaluations()}[CHECK] is False


def test_without_limits_there_is_neither_check_nor_sensor() -> None:
    nothing = lag_definitions(Source(name="shop", description="", load=LoadPolicy(), tables=(things(None),)))
    assert not nothing.asset_checks and not nothing.sensors


@pytest.mark.parametrize("state", ["reserved", "extended", "unreserved"])
def test_a_source_says_itself_whether_its_stream_can_go_on(state: str) -> None:
    """Only Postgres knows Postgres's words; a source of another kind has words of its own."""
    slot = Slot(1, True, None, 0, state)
    assert slot.is_sound and not replace(slot, invalid="wal_removed").is_sound
    assert not replace(slot, wal_status="lost").is_sound
    assert not Retention().is_sound


def test_a_slot_that_may_lose_wal_is_a_warning_and_one_that_has_lost_it_an_error() -> None:
    """Both were errors of one name, so that the loss itself was not told after the danger."""
    seen = (status(slot="unreserved"), status(slot="lost", sound=False))
    found = [o for one in seen for o in judge_source(one, {}, load_settings().alerts) if o.kind == "slot"]
    assert [(o.key, o.severity) for o in found] == [("slot/shop", "warning"), ("slot/shop", "error")]
    assert "--recover" in found[1].to_do


def test_lag_is_told_once_a_follower_has_had_time_to_start() -> None:
    """After each pause `lakehouse dev` told that every source was behind, and then that it was over."""
    behind = [o for o in judge_source(status(seconds=9000.0), {}, load_settings().alerts) if o.kind == "lag"]
    assert [occasion.patience for occasion in behind] == [CATCH_UP_SECONDS]


def test_a_slot_that_a_moved_source_has_left_is_told_with_the_command_that_drops_it() -> None:
    """It retains WAL until the disk of the source is full, and the topics say nothing of it."""
    left = replace(status(), former_slot="lakehouse_shop", tables=())
    [occasion] = judge_source(left, {}, load_settings().alerts)
    assert occasion.kind == "former_slot" and "lakehouse_shop" in occasion.summary
    assert "`lakehouse ingest --move shop`" in occasion.to_do
    assert "`lakehouse ingest --move shop`" in str(_trouble(asdict(left)))
    assert not list(judge_source(replace(left, former_slot=None), {}, load_settings().alerts))


def test_partitions_that_no_follower_reads_are_told_and_shown() -> None:
    parts = tuple(f"clicks/{number}" for number in range(5))
    left = replace(status(), followers=2, unclaimed=parts, tables=())
    [occasion] = judge_source(left, {}, load_settings().alerts)
    assert occasion.kind == "unclaimed" and occasion.patience == CLAIM_SECONDS
    assert "clicks/0, clicks/1, clicks/2 and 2 more" in occasion.summary and "--follow --share" in occasion.to_do
    samples = {(s.name, tuple(value for _, value in s.labels)): s.value for s in measure(left, NOW)}
    assert samples["lakehouse_followers", ("shop",)] == 2 and samples["lakehouse_unclaimed_parts", ("shop",)] == 5
    assert not list(judge_source(replace(left, unclaimed=()), {}, load_settings().alerts))
    row = next(iter(lag_table([asdict(left) | {"trouble": None}]).columns[1].cells))
    assert str(row) == "2 followers; nobody reads clicks/0, clicks/1, clicks/2, clicks/3, clicks/4"


def test_a_cut_is_as_old_as_the_part_of_a_shared_source_that_stands_still() -> None:
    samples = {s.name: s.value for s in measure(status(seconds=700.0), NOW)}
    assert samples["lakehouse_cut_age_seconds"] == 700.0


def test_a_source_that_is_removed_and_retains_nothing_needs_no_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `lakehouse remove` it was told to recover the source, and that it is behind, for ever."""
    monkeypatch.setattr(sources, "declared_limits", lambda settings, source: {})

    def told(slot: str, *declared: str) -> list[str]:
        there = Declared(frozenset(declared), frozenset(), frozenset())
        monkeypatch.setattr(sources, "declared_still", lambda settings: there)
        monkeypatch.setattr(sources, "why_refused", lambda *_: None)
        monkeypatch.setattr(sources, "source_status", lambda *_: status(0, 9e9, slot, sound=slot == "reserved"))
        return [occasion.kind for occasion in read_source(load_settings(), "shop").occasions]

    assert told("missing", "shop") == ["slot", "lag", "parked"]
    assert told("missing", "bank") == []
    assert told("reserved", "bank") == ["lag", "parked"], "its slot retains WAL"


def test_what_keeps_a_source_from_being_ready_is_told_without_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/ready` has no login, and showed the keys of rows that a table was parked for."""
    monkeypatch.setattr(sources, "declared_limits", lambda settings, source: {})
    monkeypatch.setattr(sources, "declared_still", lambda settings: None)
    monkeypatch.setattr(sources, "why_refused", lambda *_: None)
    monkeypatch.setattr(sources, "source_status", lambda *_: status(0, 0, "lost", sound=False))
    reading = read_source(load_settings(), "shop")
    assert any("a reason" in occasion.summary for occasion in reading.occasions)
    assert reading.not_ready == {"shop": "slot: shop; parked: shop.things"}
