"""Marts that are built by key: mistakes of a declaration, and which keys change."""

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import IntegerType

import orchestration.worker.marts.marts as module
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import next_name
from lakehouse.declarations.built_by_key import ByKey, Lead, built_by_key
from lakehouse.declarations.dbt.manifest import manifest_path
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_watch.probes.models import read_models
from orchestration.worker.dbt.warm_dbt import NodeResult
from orchestration.worker.marts.by_key import BuiltAt, changes, noted, state_of
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph
from tests.unit.dbt_macros import macro

HUB, SAT, LINK, OTHER = (("vault", name) for name in ("hub_sale", "sat_line", "link_sold", "hub_store"))
OWN, BY_LINK = Lead(("hk_sale",)), Lead((), LINK, (("hk_line", "hk_line"),), ("hk_sale",))
TESTS = ("unique", "not_null")
TODAY = date(2026, 11, 24)
VIEW = ("vault", "sat_line_v1")


def node(name: str, materialized: str, *columns: str, reads: tuple[str, ...] = (), **meta: Any) -> dict[str, Any]:
    return {
        "unique_id": f"model.{name}", "resource_type": "model", "name": name, "alias": name, "schema": "vault",
        "original_file_path": "models/marts/fct_sale.sql", "patch_path": None,
        "columns": {column: {"description": ""} for column in columns}, "tags": [],
        "depends_on": {"nodes": [f"model.{n}" for n in reads]},
        "config": {"materialized": materialized, "meta": meta},
    }  # fmt: skip


def manifest(
    built_by: dict[str, Any],
    *,
    reads: tuple[str, ...] = (),
    tests: tuple[str, ...] = TESTS,
    kind: str = "rebuilt_table",
    **of_tests: str,
) -> dict[str, Any]:
    read = ("hub_sale", "sat_line_v1", "link_sold", "hub_store", *reads)
    nodes = [
        node("fct_sale", kind, "hk_sale", reads=read, built_by=built_by),
        node("hub_sale", "append_only", "hk_sale", "sale_id"),
        node("sat_line_v1", "view", "hk_line", reads=("sat_line",)),
        node("sat_line", "append_only", "hk_line", "load_date"),
        node("link_sold", "append_only", "hk_sold", "hk_line", "hk_sale", "load_date"),
        node("hub_store", "append_only", "hk_store", "load_date"),
        node("dim_store", "rebuilt_table", "hk_store"),
    ]
    of_key = [
        {
            "unique_id": f"test.{name}", "name": name, "resource_type": "test", "attached_node": "model.fct_sale",
            "depends_on": {"nodes": ["model.fct_sale"]}, "column_name": "hk_sale", "test_metadata": {"name": name},
            "config": of_tests,
        }
        for name in tests
    ]  # fmt: skip
    return {"sources": {}, "nodes": {n["unique_id"]: n for n in (*nodes, *of_key)}}


def test_tables_lead_to_the_key_themselves_or_through_others_and_all_else_changes_the_whole(tmp_path: Path) -> None:
    found, wrong = built_by_key(manifest({"key": "hk_sale", "through": {"sat_line": "link_sold"}}), tmp_path)
    leads = {HUB: OWN, LINK: OWN, SAT: BY_LINK}
    assert not wrong
    assert found == {
        "model.fct_sale": ByKey("hk_sale", 100_000, leads, frozenset({HUB, SAT, LINK, OTHER}), frozenset({VIEW}))
    }


@pytest.mark.parametrize(
    ("built_by", "more", "problem"),
    [
        ({"key": "hk_sale"}, {"tests": TESTS[:1]}, "hk_sale has no test `not_null`"),
        ({"key": "hk_sale"}, {"severity": "warn"}, "hk_sale has no test `not_null`"),
        ({"key": "hk_sale"}, {"where": "sale_id > 9"}, "hk_sale has no test `not_null`"),
        ({"key": "sale_id"}, {}, "sale_id is no hash key"),
        ({"key": "hk_sale"}, {"reads": ("dim_store",)}, "it reads dim_store, and only tables that are appended to"),
        ({"key": "hk_sale"}, {"kind": "view"}, "for models that are materialized as rebuilt_table"),
        ({"key": "hk_sale", "through": {"sat_lime": "link_sold"}}, {}, "fct_sale does not read sat_lime; it"),
        ({"key": "hk_sale", "through": {"sat_line": "sat_line"}}, {}, "sat_line has no column hk_sale"),
        ({"key": "hk_sale", "through": {"hub_sale": "link_sold"}}, {}, "hub_sale has hk_sale itself: leave it out"),
        ({"key": "hk_sale", "through": {"hub_store": "link_sold"}}, {}, "hub_store and link_sold have no hash key in"),
        ({"kye": "hk_sale"}, {}, "unknown key `kye`: did you mean `key`?"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_what_the_mart_reads_is_told_with_file_and_line(
    tmp_path: Path, built_by: dict[str, Any], more: dict[str, Any], problem: str
) -> None:
    """It stopped the worker, and the loads of all sources."""
    found, wrong = built_by_key(manifest(built_by, **more), tmp_path)
    [(mart, line)] = wrong.items()
    assert mart == "model.fct_sale" and not found, "it is built whole"
    assert re.match(r".*/models/marts/fct_sale\.sql:1: fct_sale: meta\.built_by: ", line) and problem in line


STAFF = ("hub_person", "sat_person", "link_manages", "eff_sat_manages", "sat_manages")
BY_LINK_OF_TWO = dict.fromkeys(("hub_person", "sat_person", "eff_sat_manages"), "link_manages")


def staff(through: dict[str, str], *more: dict[str, Any]) -> dict[str, Any]:
    """A mart of persons that shows the manager of each: it reads their hub and satellites twice."""
    reads = (*STAFF, *(each["name"] for each in more))
    models = [
        node(
            "fct_person", "rebuilt_table", "hk_person", reads=reads, built_by={"key": "hk_person", "through": through}
        ),
        node("hub_person", "append_only", "hk_person", "person_id"),
        node("sat_person", "append_only", "hk_person", "name"),
        node("link_manages", "append_only", "hk_manages", "hk_person", "hk_manager"),
        node("eff_sat_manages", "append_only", "hk_manages", "hk_person", "is_active"),
        node("sat_manages", "append_only", "hk_manages", "since"),
        *more,
    ]
    tests: list[tuple[str, str, str | None, dict[str, Any]]] = [
        *((name, "fct_person", "hk_person", {}) for name in TESTS),
        ("link_is_sound", "link_manages", None, {
            "src_pk": "hk_manages",
            "hubs": {"hk_person": "hub_person", "hk_manager": {"model": "hub_person", "src_pk": "hk_person"}},
        }),
    ]  # fmt: skip
    nodes = [
        {
            "unique_id": f"test.{name}", "name": name, "resource_type": "test", "attached_node": f"model.{of}",
            "depends_on": {"nodes": []}, "column_name": column, "config": {},
            "test_metadata": {"name": name, "kwargs": given},
        }
        for name, of, column, given in tests
    ]  # fmt: skip
    return {"sources": {}, "nodes": {n["unique_id"]: n for n in (*models, *nodes)}}


@pytest.mark.parametrize("unsaid", BY_LINK_OF_TWO)
def test_a_mart_that_meets_its_own_hub_twice_says_of_each_table_how_it_leads_to_other_keys(
    tmp_path: Path, unsaid: str
) -> None:
    """It was accepted: a new name of a manager changed the manager's own row, and not those of the persons managed."""
    through = {name: link for name, link in BY_LINK_OF_TWO.items() if name != unsaid}
    found, wrong = built_by_key(staff(through), tmp_path)
    said = r"fct_sale\.sql:1: fct_person: meta\.built_by: link_manages has hk_manager and hk_person, of one hub, so "
    assert not found and re.search(said + unsaid, wrong["model.fct_person"])


def test_a_row_that_leads_to_another_key_by_an_indirect_way_is_refused(tmp_path: Path) -> None:
    """The team of a manager: from the team to its members, and from these to those that they manage."""
    more = [node("sat_team", "append_only", "hk_team"), node("link_team", "append_only", "hk_team", "hk_person")]
    found, wrong = built_by_key(
        staff({**BY_LINK_OF_TWO, "link_team": "link_manages", "sat_team": "link_team"}, *more), tmp_path
    )
    assert not found and "so sat_team leads to other keys too" in wrong["model.fct_person"]


def led(*links: dict[str, Any], **hubs: dict[str, Any]) -> dict[str, Any]:
    """A mart of persons without `through`, and links whose tests say `hubs`."""
    found = staff({})
    for name in ("link_manages", "eff_sat_manages", "sat_manages"):
        del found["nodes"][f"model.{name}"]
    mart = found["nodes"]["model.fct_person"]
    mart["depends_on"]["nodes"] = [
        f"model.{name}" for name in ("hub_person", "sat_person", *(n["name"] for n in links))
    ]
    for link in links:
        of = next(iter(link["columns"]))
        found["nodes"][link["unique_id"]] = link
        found["nodes"][f"test.{link['name']}"] = {
            "unique_id": f"test.{link['name']}", "name": "sound", "resource_type": "test", "config": {},
            "attached_node": link["unique_id"], "depends_on": {"nodes": []}, "column_name": None,
            "test_metadata": {"name": "link_is_sound", "kwargs": {"src_pk": of, "hubs": hubs.get(link["name"], {})}},
        }  # fmt: skip
    return found


PERSON, TEAM = ({"model": f"hub_{name}", "src_pk": f"hk_{name}"} for name in ("person", "team"))
MEMBERS = node("link_team", "append_only", "hk_member", "hk_person", "hk_team")


@pytest.mark.parametrize(
    ("links", "hubs"),
    [
        ([node("link_lead", "append_only", "hk_leads", "hk_team", "hk_lead")], {"hk_team": "hub_team"}),
        ([node("link_lead", "append_only", "hk_leads", "hk_led", "hk_lead")], {"hk_led": TEAM}),
        (
            [
                node("link_lead", "append_only", "hk_leads", "hk_unit", "hk_lead"),
                node("link_unit", "append_only", "hk_within", "hk_unit", "hk_team"),
            ],
            {"hk_unit": "hub_unit"},
        ),
    ],
)
def test_a_mart_that_meets_its_hub_again_by_two_links_is_refused(
    tmp_path: Path, links: list[dict[str, Any]], hubs: dict[str, Any]
) -> None:
    """A lead's new name changed the lead's own row, and not those of the members of the team."""
    found, wrong = built_by_key(led(MEMBERS, *links, link_lead={**hubs, "hk_lead": PERSON}), tmp_path)
    assert not found
    assert "link_lead has hk_lead, and link_team has hk_person, of one hub" in wrong["model.fct_person"]
    assert wrong["model.fct_person"].endswith("in two steps: leave built_by out")


def test_a_mart_that_meets_its_hub_once_by_another_name_is_not_refused(tmp_path: Path) -> None:
    """The store that a person manages, beside the team that the person is in."""
    manages = node("link_store", "append_only", "hk_runs", "hk_store", "hk_manager")
    state = node("eff_sat_store", "append_only", "hk_runs", "hk_manager")
    hubs = {"hk_store": "hub_store", "hk_manager": PERSON}
    found, wrong = built_by_key(led(MEMBERS, manages, state, link_store=hubs, eff_sat_store=hubs), tmp_path)
    assert found and not wrong


def test_a_mart_of_two_links_of_two_rows_is_told_to_go_without(tmp_path: Path) -> None:
    """It was told to lead by the one link, and when it did, by the other."""
    friends = node("link_friends", "append_only", "hk_friends", "hk_person", "hk_friend")
    stated = staff({**BY_LINK_OF_TWO, "link_friends": "link_manages"}, friends)
    stated["nodes"]["test.of_friends"] = {
        **stated["nodes"]["test.link_is_sound"], "attached_node": "model.link_friends",
        "test_metadata": {"kwargs": {"src_pk": "hk_friends", "hubs": {"hk_friend": PERSON}}},
    }  # fmt: skip
    found, wrong = built_by_key(stated, tmp_path)
    assert not found and "leave built_by out" in wrong["model.fct_person"]
    assert "say through" not in wrong["model.fct_person"]


def test_a_link_of_two_rows_of_one_hub_leads_to_both(tmp_path: Path) -> None:
    """The right declaration was refused: "hub_person has hk_person itself: leave it out"."""
    found, wrong = built_by_key(staff({**BY_LINK_OF_TWO, "sat_manages": "link_manages"}), tmp_path)
    assert not wrong
    link, ends = ("vault", "link_manages"), ("hk_manager", "hk_person")
    either, one = (("hk_person", "hk_manager"), ("hk_person", "hk_person")), ("hk_manages", "hk_manages")
    assert found["model.fct_person"].leads == {
        ("vault", "hub_person"): Lead(("hk_person",), link, either, ends),
        ("vault", "sat_person"): Lead(("hk_person",), link, either, ends),
        ("vault", "eff_sat_manages"): Lead(("hk_person",), link, (one, *either), ends),
        ("vault", "sat_manages"): Lead((), link, (one,), ends),
        link: Lead(ends),
    }


class Lake:
    """A mart by `hk_sale` and its tables, as loads leave them."""

    def __init__(self, catalog: LakeCatalog) -> None:
        self._catalog = catalog
        catalog.create_namespace_if_not_exists("vault")
        leads = {HUB: OWN, SAT: BY_LINK}
        self.of = ByKey("hk_sale", 2, leads, frozenset({HUB, SAT, OTHER}), frozenset({VIEW}))
        self.views = {VIEW: "v1.metadata.json"}
        self.mart = ("vault", "fct_sale")
        for table, rows in ((HUB, ["a", "b"]), (SAT, ["l"]), (OTHER, ["s"]), (self.mart, ["a", "b"])):
            self.append(table, *rows)
        self.built()

    def append(self, table: tuple[str, str], *keys: str | None) -> None:
        data = pa.table({"hk_line" if table == SAT else "hk_sale": pa.array(keys, pa.string())})
        self._catalog.create_table_if_not_exists(table, data.schema).append(data)

    def changes(self, today: date = TODAY) -> tuple[dict[str, Any] | None, BuiltAt]:
        tables = self._catalog.load_tables(list(self.of.tables))
        return changes(self._catalog.load_table(self.mart), self.of, tables, self.views, today)

    def built(self, note: BuiltAt | None = None) -> None:
        note = note or self.changes()[1]
        mart = self._catalog.load_table(self.mart)
        mart.transaction().set_properties(note.of(mart)).commit_transaction()


@pytest.fixture
def lake(postgres_catalog: LakeCatalog) -> Lake:
    return Lake(postgres_catalog)


def test_the_keys_that_change_are_those_of_rows_appended_since_the_mart_was_built(lake: Lake) -> None:
    lake.append(HUB, "c")
    lake.append(HUB, "b", "b")
    lake.append(SAT, "m", "l")
    found, note = lake.changes()
    assert found is not None and found["keys"] == ["b", "c"] and note.merges == 1
    assert found["through"] == [{"table": '"vault"."link_sold"', "ends": ["hk_sale"], "by": {"hk_line": ["l", "m"]}}]
    lake.append(lake.mart, "c")
    lake.built(note)
    assert noted(lake._catalog.load_table(lake.mart)) == note
    lake.append(SAT, "n", None)
    found, note = lake.changes()
    assert found is not None and (found["keys"], len(found["through"]), note.merges) == ([], 1, 2)


def test_a_row_leads_to_its_own_key_and_by_either_side_of_a_link_to_others(lake: Lake) -> None:
    sides = (("hk_sale", "hk_before"), ("hk_sale", "hk_sale"))
    ends = ("hk_before", "hk_sale")
    lake.of = replace(lake.of, leads={HUB: Lead(("hk_sale",), LINK, sides, ends)})
    lake.append(HUB, "c", "d")
    found, _ = lake.changes()
    assert found is not None and found["keys"] == ["c", "d"]
    [through] = found["through"]
    assert through["ends"] == [*ends] and through["by"] == {"hk_before": ["c", "d"], "hk_sale": ["c", "d"]}


def test_the_keys_of_both_sides_of_a_link_are_asked_for() -> None:
    duck = duckdb.connect()
    duck.execute("CREATE TABLE link AS VALUES ('a', 'b'), ('c', 'a'), ('d', 'e')")
    duck.execute("ALTER TABLE link RENAME col0 TO hk_person; ALTER TABLE link RENAME col1 TO hk_manager")
    sides = ["hk_manager", "hk_person"]
    asked = macro("keys_through")(
        {"through": [{"table": "link", "ends": sides, "by": {side: ["a"] for side in sides}}]}
    )
    assert {key for (key,) in duck.execute(asked).fetchall()} == {"a", "b", "c"}


def test_rows_without_a_key_lead_nowhere(lake: Lake) -> None:
    lake.append(SAT, None)
    found, _ = lake.changes()
    assert found is not None and not found["keys"] and not found["through"], "a query without a condition fails"


def test_a_mart_is_built_whole_where_its_keys_cannot_be_told(lake: Lake, postgres_catalog: LakeCatalog) -> None:
    lake.append(HUB, "c")
    found, _ = lake.changes()
    assert found is not None
    assert lake.changes(date(2026, 11, 25))[0] is None, "once a day"
    postgres_catalog.load_table(HUB).overwrite(pa.table({"hk_sale": ["a"]}))
    assert lake.changes()[0] is None, "rows are gone"
    lake.built()
    lake.append(OTHER, "t")
    assert lake.changes()[0] is None, "of this table no row leads to a key"
    lake.built()
    lake.append(lake.mart, "x")
    lake.append(HUB, "d")
    assert lake.changes()[0] is None, "somebody else has changed the mart"
    lake.built()
    with postgres_catalog.load_table(SAT).update_schema() as update:
        update.add_column("units", IntegerType())
    lake.append(HUB, "e")
    assert lake.changes()[0] is None, "a table has other columns"
    lake.built()
    lake.of = replace(lake.of, leads={**lake.of.leads, HUB: Lead((), LINK, (("hk_store", "hk_store"),), ("hk_sale",))})
    lake.append(HUB, "e")
    assert lake.changes()[0] is None, "a column that is declared, and not there"
    lake.of = replace(lake.of, leads={**lake.of.leads, HUB: OWN})
    lake.built()
    lake.views = {VIEW: "v2.metadata.json"}
    lake.append(HUB, "f")
    assert lake.changes()[0] is None, "a view that it reads has another definition: its SQL is the same"
    lake.built()
    lake.append(HUB, *(str(number) for number in range(1001)))
    assert lake.changes()[0] is None, "too many"


def test_a_table_of_which_only_a_compaction_is_kept_is_not_one_without_rows() -> None:
    """What was appended between two compactions, and expired, would not be seen."""
    summary = Summary(Operation.REPLACE)
    found = []
    for number in (7, 9):
        compaction = SimpleNamespace(snapshot_id=number, parent_snapshot_id=number - 1, summary=summary)
        metadata = SimpleNamespace(current_snapshot_id=number, current_schema_id=0, snapshots=[compaction])
        table: Any = SimpleNamespace(metadata=metadata)
        found.append(state_of(table))
    assert found == [(7, 0), (9, 0)]


class Dbt:
    """dbt that replaces the mart, or finds no new data."""

    def __init__(self, catalog: LakeCatalog) -> None:
        self.catalog, self.no_new_data = catalog, False

    def run(self, _command: str, names: list[str], _variables: dict[str, str]) -> list[NodeResult]:
        for name in names if not self.no_new_data else []:
            data = pa.table({"hk_sale": ["a", "b"]})
            self.catalog.create_table_if_not_exists(next_name(("vault", name)), data.schema).overwrite(data)
        message = "no new data" if self.no_new_data else "SUCCESS"
        return [NodeResult(f"model.{name}", "success", 0.0, 0, message) for name in names]


def test_a_mart_that_is_declared_wrongly_is_told_and_stops_nothing(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker ended each time that it began, and no source was loaded."""
    declared = manifest({"key": "hk_sale", "through": {"sat_lime": "link_sold"}}) | {"child_map": {}}
    Marts(catalog_settings, postgres_catalog, Dbt(postgres_catalog), declared, Graph(declared))  # type: ignore[arg-type]
    assert "fct_sale does not read sat_lime" in caplog.text and "it is built whole" in caplog.text
    catalog_settings.home.mkdir(exist_ok=True)
    path = manifest_path(catalog_settings)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(declared))
    [told] = read_models(catalog_settings).occasions
    assert told.key == "declaration/fct_sale" and "fct_sale does not read sat_lime" in told.summary


def test_a_mart_that_dbt_leaves_alone_is_not_noted_as_built(
    lake: Lake, postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore of the mart it was noted: the keys of later loads came into a mart that lacked earlier ones."""
    monkeypatch.setattr(module, "run_tests", lambda *_: [])
    declared = manifest({"key": "hk_sale", "through": {"sat_line": "link_sold"}}) | {"child_map": {}}
    dbt = Dbt(postgres_catalog)
    marts = Marts(catalog_settings, postgres_catalog, dbt, declared, Graph(declared))  # type: ignore[arg-type]
    built = lambda: noted(postgres_catalog.load_table(lake.mart))  # noqa: E731
    marts.build(["model.fct_sale"], (), {}, [])
    first = built()
    assert first is not None
    lake.append(HUB, "c")
    dbt.no_new_data = True
    marts.build(["model.fct_sale"], (), {}, [])
    assert built() == first, "what it lacks stays to be built"
    lake.append(lake.mart, "x")
    marts.build(["model.fct_sale"], (), {}, [])
    assert built() is None, "somebody else has changed it"


@pytest.mark.parametrize("is_left_alone", [False, True])
def test_what_a_killed_build_still_writes_into_a_copy_is_not_published(
    is_left_alone: bool,
    lake: Lake,
    postgres_catalog: LakeCatalog,
    catalog_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trino finished its statement after the next build had made, or left alone, and tested the copy."""
    declared = manifest({"key": "hk_sale", "through": {"sat_line": "link_sold"}}) | {"child_map": {}}
    dbt = Dbt(postgres_catalog)
    marts = Marts(catalog_settings, postgres_catalog, dbt, declared, Graph(declared))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "run_tests", lambda *_: [])
    marts.build(["model.fct_sale"], (), {}, [])
    before = postgres_catalog.load_table(lake.mart).metadata_location
    late = pa.table({"hk_sale": ["older"]})

    def finish(*_: object) -> list[NodeResult]:
        postgres_catalog.load_table(next_name(lake.mart)).overwrite(late)
        return []

    if is_left_alone:
        dbt.no_new_data, run = True, dbt.run
        monkeypatch.setattr(dbt, "run", lambda *given: [*finish(), *run(*given)])
    else:
        monkeypatch.setattr(module, "run_tests", finish)
    with pytest.raises(LakehouseError, match=r"vault\.fct_sale was built by another once it was tested"):
        marts.build(["model.fct_sale"], (), {}, [])
    assert postgres_catalog.load_table(lake.mart).metadata_location == before
