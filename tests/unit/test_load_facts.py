"""What loads of the worker know from the files that were added, so that they need not ask Trino."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse.catalog.added_rows import added_rows
from lakehouse.catalog.loads.load_facts import LANDED_LATE, LEFT_OUT, moment, raw_facts, stage_facts
from orchestration.worker.loads.facts import FEW_ROWS, Cut, Facts, _Parsed, covered, holds_beyond, is_stage, new_in_raw
from orchestration.worker.loads.loads import Loads
from orchestration.worker.loads.rows import Rows
from orchestration.worker.loads.small_loads import Loaded

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NAME = ("raw_shop", "orders")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    found = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    found.create_namespace("raw_shop")
    yield found
    found.close()


def append(catalog: SqlCatalog, *positions: int) -> int:
    """Rows at these commit LSNs; the snapshot that they make."""
    rows = pa.table({"_epoch": pa.array([1] * len(positions), pa.int32()), "_commit_lsn": list(positions)})
    table = catalog.create_table_if_not_exists(NAME, rows.schema)
    table.append(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def lsns(catalog: SqlCatalog, since: int, most: int = 100) -> list[int] | None:
    rows = added_rows(catalog.load_table(NAME), since, ("_commit_lsn",), most)
    return None if rows is None else sorted(row["_commit_lsn"] for row in rows)


def test_rows_added_since_a_snapshot_are_read_from_the_files_that_came(catalog: SqlCatalog) -> None:
    first = append(catalog, 1, 2)
    assert lsns(catalog, first) == []
    second = append(catalog, 3)
    append(catalog, 4, 5)
    assert lsns(catalog, first) == [3, 4, 5] and lsns(catalog, second) == [4, 5]
    assert lsns(catalog, first, most=2) is None, "more than are worth reading"
    assert lsns(catalog, 7) is None, "a snapshot that the table does not descend from"


def test_a_table_from_which_rows_were_taken_says_nothing(catalog: SqlCatalog) -> None:
    first = append(catalog, 1, 2)
    append(catalog, 3)
    catalog.load_table(NAME).delete("_commit_lsn = 3")
    assert lsns(catalog, first) is None
    fourth = append(catalog, 4)
    assert lsns(catalog, fourth) == [] and lsns(catalog, first) is None


def test_a_table_that_was_put_back_says_nothing_of_what_was_undone(catalog: SqlCatalog) -> None:
    first, second = append(catalog, 1), append(catalog, 2)
    table = catalog.load_table(NAME)
    table.manage_snapshots().set_current_snapshot(first).commit()
    assert lsns(catalog, second) is None


def test_rows_beyond_the_cut_are_noticed_from_statistics(catalog: SqlCatalog) -> None:
    append(catalog, 1, 8)
    table = catalog.load_table(NAME)
    assert holds_beyond(table, Cut(1, 7, ("orders",)))
    assert not holds_beyond(table, Cut(1, 8, ("orders",))) and not holds_beyond(table, Cut(2, 0, ("orders",)))


def raw(lsn: int, seconds: int, op: str = "u", unchanged: list[str] | None = None, old: str | None = None) -> Any:
    at = NOON + timedelta(seconds=seconds)
    return {
        "_op": op, "_epoch": 1, "_commit_lsn": lsn, "_ingested_at": at, "_unchanged": unchanged, "_old_key": old,
    }  # fmt: skip


def test_raw_facts_are_those_that_the_macro_asks_for() -> None:
    added = [raw(5, 1), raw(6, 1, unchanged=["note"]), raw(7, 2, "c", ["note", "size"], '{"id": 1}')]
    newest = moment(NOON + timedelta(seconds=2))
    assert raw_facts(added, moment(NOON), 1, 7) == [3, 0, '["note", "size"]', 1, 3, 0, newest, None, None]
    assert raw_facts([], moment(NOON), 1, 7) == [0, 0, None, 0, 0, 0, moment(NOON), None, None], "nothing to load"


def test_rows_that_a_load_may_have_read_before_they_were_looked_at_are_left_to_the_macro() -> None:
    """A load that began after a replay had them in parsed; handed over with the next one, they were there twice."""
    assert raw_facts([raw(6, 0)], moment(NOON), 1, 7) is None


@pytest.mark.parametrize(
    "row", [raw(8, 1), raw(7, 1, "t"), raw(7, -1)], ids=["beyond the cut", "a truncate", "published before"]
)
def test_what_is_out_of_the_ordinary_is_left_to_the_macro(row: Any) -> None:
    assert raw_facts([raw(6, 1), row], moment(NOON), 1, 7) is None


def test_where_rows_have_landed_late_trino_is_asked_whether_they_change_others(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {name: pa.nulls(1, pa.string()) for name in ("_op", "_unchanged", "_old_key")}
    at = NOON + timedelta(seconds=1)
    more = {"_epoch": pa.array([1], pa.int32()), "_commit_lsn": [5], "_ingested_at": pa.array([at])}
    rows = pa.table({**columns, **more})
    table = catalog.create_table(NAME, rows.schema)
    table.append(rows)
    before = table.metadata.current_snapshot_id
    table.append(rows)
    assert before is not None
    facts = Facts.__new__(Facts)
    parsed = SimpleNamespace(metadata=SimpleNamespace(current_snapshot_id=9), properties={LEFT_OUT: "[]"})
    monkeypatch.setattr(facts, "_parsed", {("parsed", "p"): _Parsed(9, before, moment(NOON))}, raising=False)
    monkeypatch.setattr(
        facts, "_with_raw", lambda *_: [("model.p", ("parsed", "p"), NAME, Cut(1, 7, ("orders",)))], raising=False
    )

    def given() -> list[str]:
        tables: Any = {NAME: catalog.load_table(NAME), ("parsed", "p"): parsed}
        found = facts.of_parsed(tables, ["model.p"], {})[0]
        assert all(said["left_out"] == "[]" for said in found.values())
        return list(found)

    assert given() == ["parsed.p"]
    for landed, known in ((at, []), (NOON, ["parsed.p"])):
        table.refresh().transaction().set_properties({LANDED_LATE: moment(landed)}).commit_transaction()
        assert given() == known


def test_what_is_published_while_a_load_begins_is_not_loaded_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncate that the cut has and the table that was looked at has not would pass for any other row."""
    published = [raw(6, 1)]
    loads = Loads.__new__(Loads)

    def cuts() -> dict[str, Cut]:
        found = {"shop": Cut(1, published[-1]["_commit_lsn"], ("orders",))}
        published.append(raw(7, 2, "t"))
        return found

    def stored(models: Any) -> dict[str, Any]:
        found = {"raw": list(published)}
        published.append(raw(8, 3, "t"))
        return found

    def looked_at(tables: Any, models: Any, cuts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        given = raw_facts(tables["raw"], moment(NOON), 1, cuts["shop"].cut_lsn)
        seen = [row for row in published if row["_commit_lsn"] <= cuts["shop"].cut_lsn]
        assert given is None or len(seen) == given[0], "the load reads rows that it knows nothing of"
        return {}, {}

    def step(*_: Any) -> Loaded:
        return Loaded([], {})

    monkeypatch.setattr(loads, "_cuts", cuts, raising=False)
    monkeypatch.setattr(loads, "stored", stored, raising=False)
    monkeypatch.setattr(loads, "_step", step, raising=False)
    graph = SimpleNamespace(sources_of=lambda models: [], downstream_of=lambda models: set())
    facts = SimpleNamespace(
        of_parsed=looked_at,
        loaded=lambda *_: None,
        of_vault=lambda tables: {"LAKEHOUSE_STAGE_FACTS": {}},
        below=lambda models: set(),
        few_in_parsed=lambda *_: set(),
        few_in_vault=lambda *_: set(),
    )
    monkeypatch.setattr(loads, "_graph", graph, raising=False)
    monkeypatch.setattr(loads, "_facts", facts, raising=False)
    loads.run([])


def parsed(lsn: int, seconds: float) -> Any:
    return {"_loaded_at": NOON + timedelta(seconds=seconds), "_epoch": 1, "_commit_lsn": lsn, "_seq": 0}


def at(lsn: int) -> str:
    return f"0000000001.{lsn:019d}.{0:019d}"


def test_stage_facts_are_those_that_the_macro_asks_for() -> None:
    mark = [moment(NOON), "2", at(5), "77"]
    assert stage_facts([], mark) == [mark[0], 2, 0, 2, None, at(5)], "nothing new"
    in_order = [parsed(6, 1), parsed(7, 2), parsed(8, 2)]
    assert stage_facts(in_order, mark) == [moment(NOON + timedelta(seconds=2)), 2, 3, 2, at(6), at(8)]
    assert stage_facts([parsed(6, 0)], mark) == [mark[0], 3, 0, 3, None, at(6)], "of the watermark's own moment: late"
    assert stage_facts([parsed(3, 1)], mark)[4] == at(3), "out of order: late"
    assert stage_facts([parsed(3, -1)], mark) == [mark[0], 2, 0, 2, None, at(5)], "of a backfill"


def test_rows_stand_for_a_stage_only_where_it_has_no_others_after_the_watermark() -> None:
    """A vault table whose last load failed lacks more than the rows that parsed has just got."""
    mark = [moment(NOON), "2", at(5), "77"]
    key, stages = "|".join(("stg", *mark)), {"stg": Rows([("n", "bigint")], [["6"], ["7"]])}
    new = [parsed(6, 1), parsed(7, 1)]
    assert covered({key: stage_facts(new, mark)}, stages) == [key]
    assert not covered({key: stage_facts([*new, parsed(8, 2)], mark)}, stages), "of a load before"
    assert not covered({key: stage_facts([parsed(5, 0), *new], mark)}, stages), "of the watermark's own moment"
    assert not covered({key: stage_facts(new, mark)}, {}), "of a stage whose rows are not known"


def test_of_a_few_new_rows_of_raw_all_columns_are_read(catalog: SqlCatalog) -> None:
    columns = {name: pa.nulls(3, pa.string()) for name in ("_op", "_ingested_at", "_unchanged", "_old_key")}
    rows = pa.table(
        {**columns, "_epoch": pa.array([1] * 3, pa.int32()), "_commit_lsn": [1, 2, 3], "v": ["a", None, "c"]}
    )
    table = catalog.create_table(NAME, rows.schema)
    table.append(rows.slice(0, 1))
    since = table.metadata.current_snapshot_id
    table.append(rows.slice(1))
    assert since is not None
    added, found = new_in_raw(table, since)
    assert added is not None and len(added) == 2 and found is not None
    places = {name: at for at, (name, _) in enumerate(found.columns)}
    assert [(row[places["_commit_lsn"]], row[places["v"]]) for row in found.rows] == [("2", None), ("3", "c")]


def test_moments_and_positions_sort_like_what_they_stand_for() -> None:
    assert moment(NOON) == "2026-11-23 12:00:00.000000 UTC" < moment(NOON + timedelta(microseconds=1))
    assert at(9) < at(10)


@pytest.mark.parametrize(
    ("code", "whole"),
    [
        ("{#- Written by `lakehouse scaffold` -#}\n{{ cdc_vault.stage(\n  source_model='p',\n) }}\n", True),
        ("select * from ({{ cdc_vault.stage(source_model='p') }}) where not is_deleted", False),
        ("{{ cdc_vault.stage(source_model='p') }} limit 1", False),
        ("{% if true %}{{ cdc_vault.stage(source_model='p') }}{% endif %}", False),
        ("{{ stage_of_mine('p') }}", False),
    ],
)
def test_a_stage_with_sql_of_its_own_may_leave_rows_out(code: str, whole: bool) -> None:
    assert is_stage({"config": {"materialized": "view"}, "raw_code": code}) == whole


def test_only_loads_whose_new_rows_are_known_and_few_share_a_statement() -> None:
    nodes = {
        "stage": {"name": "stg", "resource_type": "model"},
        "other": {"name": "stg_other", "resource_type": "model"},
        "parsed": {"name": "p", "resource_type": "model", "schema": "parsed", "alias": "p"},
        "hub": {"name": "hub", "depends_on": {"nodes": ["stage", "other"]}},
        "sat": {"name": "sat", "depends_on": {"nodes": ["stage"]}},
        "alone": {"name": "alone", "depends_on": {"nodes": []}},
    }
    facts = Facts.__new__(Facts)
    facts._graph = SimpleNamespace(nodes=nodes)  # type: ignore[assignment]

    def of_vault(**later: int) -> set[str]:
        found = {f"{stage}|mark": ["newest", 1, rows, 0, None, None] for stage, rows in later.items()}
        return facts.few_in_vault(["hub", "sat", "alone"], {"LAKEHOUSE_STAGE_FACTS": found})

    assert of_vault(stg=1) == {"sat"}, "nothing is known of the hub's other stage"
    assert of_vault(stg=FEW_ROWS, stg_other=0) == {"hub", "sat"}
    assert of_vault(stg=FEW_ROWS, stg_other=FEW_ROWS + 1) == {"sat"}
    assert facts.few_in_parsed(["parsed"], {"parsed.p": {"newest": "", "facts": [FEW_ROWS]}}) == {"parsed"}
    assert not facts.few_in_parsed(["parsed"], {"parsed.p": {"newest": "", "facts": [FEW_ROWS + 1]}})
    assert not facts.few_in_parsed(["parsed"], {})
