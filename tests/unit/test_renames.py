"""Renames: every value lands in the column of the raw table that bears its column's name when it is written.

A name that another column takes over goes on with that one's values, and the table needs a resync: rows that nobody
has updated read otherwise from then on.
"""

from collections.abc import Sequence
from dataclasses import make_dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, StringType
from sqlalchemy import insert
from sqlalchemy.orm import Session

from ingestion.pipeline import load_changes
from ingestion.pipeline.session import Cycle
from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import conclude, plan_course
from ingestion.schema.evolve import Step, name_columns, rename_in, resync_reason, steps
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import names_of
from ingestion.schema.lake_columns import LakeColumn, stepped
from ingestion.schema.positions import Lsn
from ingestion.schema.problem import TableProblem
from ingestion.sink.raw_tables import ensure_raw_table, follow_source, is_under_way, keys_renamed
from ingestion.sink.rows import Counts, TableTarget, raw_rows
from ingestion.sink.writer import TableWriter, writable_metadata
from ingestion.state.store import TablePosition
from ingestion.tasks.lanes import Findings
from ingestion.tasks.snapshot import Point, rows_at
from lakehouse.catalog.relations import BEGUN_AT, list_views, read_metadata
from lakehouse.catalog.views.current_views import CUT, MARK, view_of, with_past
from lakehouse.catalog.views.view_versions import current_version, write_view
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy

TABLE = RawTable(
    source="shop", name="items", description="", columns=(), raw=RawPolicy(relation="public.items", key=("id",)),
    load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip
VIEW = view_of("shop", "items")
TYPES = {"int4": (23, "integer"), "int8": (20, "bigint"), "text": (25, "text")}
Values = dict[str, str | None]


def facts(lsn: int, *columns: tuple[str, int, str]) -> TableFacts:
    return TableFacts(
        oid=1, filenode=1, relkind="r", replica_identity="d", key=("id",), relation=("public", "items"), lsn=lsn,
        columns=tuple(
            ColumnFacts(
                name=name, number=number, declared_type=TYPES[kind][1], type_oid=TYPES[kind][0], type_name=kind,
                type_kind="b", typmod=-1, stream_oid=TYPES[kind][0], stream_typmod=-1, output_function="", lake=name,
            )
            for name, number, kind in (("id", 1, "int4"), *columns)
        ),
    )  # fmt: skip


NOW = datetime(2026, 11, 22, 8, 0, 0, 12, UTC)
A, B, C = ("a", 2, "text"), ("b", 3, "text"), ("c", 4, "text")
A_NEW = ("a_new", 3, "text")
# how the table looks time after time, its state meanwhile, a row before, one after, how both read then, is it resynced?
Scenario = tuple[list[tuple[tuple[str, int, str], ...]], bool, Values, Values, list[dict[str, Any]], bool]
SCENARIOS: dict[str, Scenario] = {
    "added, then renamed, while paused": (
        [(), (A,), (("b", 2, "text"),)], True, {}, {"b": "new"}, [{"b": None}, {"b": "new"}], False,
    ),
    "renamed twice while paused": (
        [(A,), (("b", 2, "text"),), (("c", 2, "text"),)], True, {"a": "old"}, {"c": "new"},
        [{"c": "old"}, {"c": "new"}], False,
    ),
    "a chain at once": (
        [(A, A_NEW), (("a_old", 2, "text"), ("a", 3, "text"))], False, {"a": "1", "a_new": "2"},
        {"a_old": "3", "a": "4"},
        [{"a_old": None, "a": "1", "a_new": "2"}, {"a_old": "3", "a": "4", "a_new": None}], True,
    ),
    "into the name of a dropped column": (
        [(A, A_NEW), (("a", 3, "text"),)], False, {"a": "gone", "a_new": "2"}, {"a": "4"},
        [{"a": "gone", "a_new": "2"}, {"a": "4", "a_new": None}], True,
    ),
    "into the name of a dropped column of a narrower type": (
        [(("a", 2, "int4"), ("a_new", 3, "int8")), (("a", 3, "int8"),)], False, {"a": "7", "a_new": "8"},
        {"a": "3000000000"}, [{"a": 7, "a_new": 8}, {"a": 3000000000, "a_new": None}], True,
    ),
    "into the name of a column that was dropped before": (
        [(A, A_NEW), (A_NEW,), (("a", 3, "text"),)], False, {"a": "gone", "a_new": "2"}, {"a": "4"},
        [{"a": "gone", "a_new": "2"}, {"a": "4", "a_new": None}], True,
    ),
    "… while paused": (
        [(A, A_NEW), (A_NEW,), (("a", 3, "text"),)], True, {"a": "gone", "a_new": "2"}, {"a": "4"},
        [{"a": "gone", "a_new": "2"}, {"a": "4", "a_new": None}], True,
    ),
    "dropped, and another of the name added": (
        [(A,), (), (("a", 3, "text"),)], False, {"a": "gone"}, {"a": "4"}, [{"a": "gone"}, {"a": "4"}], True,
    ),
    "dropped, and another of the name and another type added": (
        [(A,), (), (("a", 3, "int4"),)], False, {"a": "gone"}, {"a": "4"},
        [{"a": None, "a__string": "gone"}, {"a": 4, "a__string": None}], True,
    ),
    "swapped": (
        [(A, B), (("b", 2, "text"), ("a", 3, "text"))], False, {"a": "1", "b": "2"}, {"a": "3", "b": "4"},
        [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}], True,
    ),
    "swapped and back while paused, and once more": (
        [(A, B), (("b", 2, "text"), ("a", 3, "text")), (A, B), (("b", 2, "text"), ("a", 3, "text"))], True,
        {"a": "1", "b": "2"}, {"a": "3", "b": "4"}, [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}], True,
    ),
    "round in a circle": (
        [(A, B, C), (("b", 2, "text"), ("c", 3, "text"), ("a", 4, "text"))], False, {"a": "1", "b": "2", "c": "3"},
        {"a": "4"}, [{"a": "1", "b": "2", "c": "3"}, {"a": "4", "b": None, "c": None}], True,
    ),
    "only the case of a letter": (
        [(A,), (("A", 2, "text"),)], False, {"a": "1"}, {"A": "2"}, [{"A": "1"}, {"A": "2"}], False,
    ),
}  # fmt: skip


def looked(forms: Sequence[TableFacts]) -> list[TableFacts]:
    """The forms as looks at the source, one after the other, describe them."""
    seen: list[TableFacts] = []
    for form in forms:
        seen.append(name_columns(TABLE, seen[-1] if seen else None, form))
    return seen


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")


def rows_of(iceberg: Table, form: TableFacts, values: Values, lsn: int, mask: dict[str, Any] | None = None) -> pa.Table:
    target = TableTarget(
        "shop", "items", "", form.columns, (form,), frozenset(), mask or {}, ("id",), "error", 0, 1, datetime.now(UTC)
    )
    schema = TableWriter(writable_metadata(iceberg, "c"), iceberg.io, 1).schema
    texts = {name: pa.array([value], pa.string()) for name, value in values.items()}
    return raw_rows(target, texts, rows_at(Point(Lsn(lsn), "", datetime.now(UTC)), "c", 0, 1), schema, Counts())


def read(iceberg: Table) -> list[dict[str, Any]]:
    rows = sorted(iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["_commit_lsn"])
    return [{name: value for name, value in row.items() if name != "id" and name[0] != "_"} for row in rows]


def columns_of(iceberg: Table) -> list[tuple[int, str, str]]:
    return [(field.field_id, field.name, str(field.field_type)) for field in iceberg.schema().fields]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_value_is_in_its_column_however_it_is_renamed(catalog: SqlCatalog, scenario: str, killed: bool) -> None:
    looks, paused, before, after, expected, needs_resync = SCENARIOS[scenario]
    forms = looked([facts(100 + i, *columns) for i, columns in enumerate(looks)])
    iceberg = ensure_raw_table(catalog, TABLE, forms[0], NOW)
    iceberg.append(rows_of(iceberg, forms[0], before, 10))
    position = TablePosition(
        "items", 1, Lsn(100), "paused" if paused else "streaming", Lsn(50), versions=(forms[0],), fingerprint="0"
    )
    for i, form in enumerate(forms[1:], 1):
        seen = Outlook(TABLE, str(i), form)
        if paused:
            position = plan_course(position, seen).position
            if i < len(looks) - 1:
                continue
            position = replace(position, state="streaming")
        course = plan_course(position, seen)
        assert course.aside is None
        for _ in range(1 + killed):
            iceberg = follow_source(iceberg, TABLE, course.steps, position.followed, course.position.facts, NOW)
            described = columns_of(iceberg)
        assert columns_of(catalog.load_table(TABLE.identifier)) == described
        old_forms = course.position.versions
        position = conclude(course, Findings(), Lsn(200 + i)).position
    assert [len({c.lake for c in form.columns}) for form in old_forms] == [len(form.columns) for form in old_forms]
    iceberg.append(rows_of(iceberg, position.facts, after, 20))
    assert read(iceberg) == expected
    assert (position.state == "stale") == needs_resync
    if paused or len(looks) == 2:  # the spool, and the stream, have rows of the first form still
        iceberg.append(rows_of(iceberg, old_forms[0], before, 30))
        assert read(iceberg)[-1] == expected[0]


def test_a_table_that_is_altered_again_before_the_steps_are_kept_follows_from_where_it_was(catalog: SqlCatalog) -> None:
    begun = facts(1, A, B, C)
    iceberg = ensure_raw_table(catalog, TABLE, begun, NOW)
    iceberg.append(rows_of(iceberg, begun, {"a": "1", "b": "2", "c": "3"}, 10))
    for then in (
        facts(2, ("x", 2, "text"), ("y", 3, "text"), C),
        facts(3, ("y", 2, "text"), ("x", 4, "text"), ("e", 5, "int4")),
        facts(4, ("z", 2, "text"), B, ("x", 4, "text"), ("d", 5, "int4")),
    ):
        iceberg = follow_source(iceberg, TABLE, steps(TABLE, begun, then, consent=False), begun, then, NOW)
    (row,) = read(iceberg)
    assert {name: row[name] for name in "zbxd"} == {"z": "1", "b": "2", "x": "3", "d": None}


def test_a_column_with_a_dot_in_its_name_is_added_renamed_and_widened(catalog: SqlCatalog) -> None:
    """It stopped its source for good: `Cannot add column with ambiguous name`."""
    forms = [
        facts(1, A),
        facts(2, A, ("Nr. 1", 3, "int4")),
        facts(3, A, ("Nr. 1", 3, "int8")),
        facts(4, A, ("a.b", 3, "int8"), (".", 4, "text")),
    ]
    iceberg = ensure_raw_table(catalog, TABLE, forms[0], NOW)
    for before, now in pairwise(forms):
        iceberg = follow_source(iceberg, TABLE, steps(TABLE, before, now, consent=False), before, now, NOW)
    assert {"a.b", "."} < set(iceberg.schema().column_names) and str(iceberg.schema().find_type("a.b")) == "long"


def test_a_raw_table_says_when_it_was_begun(catalog: SqlCatalog) -> None:
    """One that was dropped and declared again answered for moments before it with no rows."""
    later, form = NOW + timedelta(days=1), facts(1, ("a", 2, "int4"))
    begun = [ensure_raw_table(catalog, TABLE, form, at).properties[BEGUN_AT] for at in (NOW, later)]
    catalog.drop_table(TABLE.identifier)
    begun.append(ensure_raw_table(catalog, TABLE, form, later).properties[BEGUN_AT])
    assert [datetime.fromisoformat(at) for at in begun] == [NOW, NOW, later]


def test_a_rename_is_taken_back(catalog: SqlCatalog) -> None:
    forms = [facts(1, A, B), facts(2, ("z", 2, "text"), ("a__text", 3, "text")), facts(3, A, B)]
    iceberg = ensure_raw_table(catalog, TABLE, forms[0], NOW)
    first = columns_of(iceberg)
    for before, now in [*pairwise(forms)] * 2:
        iceberg = follow_source(iceberg, TABLE, steps(TABLE, before, now, consent=False), before, now, NOW)
        assert (columns_of(iceberg) == first) == (now == forms[2])


def test_an_alteration_that_was_begun_and_is_taken_back_is_undone(catalog: SqlCatalog) -> None:
    begun, renamed = facts(1, A, B), facts(2, ("y", 2, "text"), ("z", 3, "text"))
    iceberg = ensure_raw_table(catalog, TABLE, begun, NOW)
    there = columns_of(iceberg)
    iceberg = follow_source(iceberg, TABLE, steps(TABLE, begun, renamed, consent=False), begun, renamed, NOW)
    assert is_under_way(iceberg, begun) and not is_under_way(iceberg, renamed)
    assert columns_of(follow_source(iceberg, TABLE, (), begun, begun, NOW)) == there


def test_a_table_that_cannot_follow_is_parked_alone(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: TABLE.model_copy(update={"name": name}) for name in ("bad", "good")}
    outlooks = {name: Outlook(table, "1", facts(2, A, B)) for name, table in tables.items()}
    courses = {
        name: plan_course(
            TablePosition(name, 1, Lsn(100), "streaming", Lsn(0), versions=(facts(1, A),), fingerprint="0"), outlook
        )
        for name, outlook in outlooks.items()
    }
    lake = {tables["bad"].identifier: facts(1), tables["good"].identifier: facts(1, A)}
    icebergs = {
        table.identifier: ensure_raw_table(catalog, table, lake[table.identifier], NOW) for table in tables.values()
    }
    for name in ("meta_metadata", "register"):
        monkeypatch.setattr(load_changes, name, lambda *_: {})
    made = make_dataclass("Plan", ["io_properties", "reader", "records", "targets", "aside", "meta"])
    monkeypatch.setattr(load_changes, "ChangePlan", made)
    monkeypatch.setattr(load_changes, "run_tasks", lambda _session, _task, plans: plans)
    monkeypatch.setattr(load_changes, "as_one", lambda plans: plans[0])
    writer: Any = SimpleNamespace(
        name="shop", spark=None, task_settings={"io_properties": {}}, limits=SimpleNamespace(file_bytes=1),
        catalog=SimpleNamespace(load_tables=lambda _: icebergs),
    )  # fmt: skip
    source = cast(Any, SimpleNamespace(records=lambda described: None))
    cycle, none = Cycle("c", 1, datetime.now(UTC)), cast(Any, None)
    reader = cast(Any, SimpleNamespace(relations=None, parts=lambda: [None]))
    plan = cast(Any, load_changes._read(writer, source, none, cycle, courses, outlooks, reader))
    assert list(plan.aside) == ["bad"] and "column 'a' cannot be stored" in plan.aside["bad"]
    assert [courses[name].position.state for name in ("bad", "good")] == ["parked", "streaming"]
    assert "b" in [name for _, name, _ in columns_of(catalog.load_table(tables["good"].identifier))]


def test_all_former_names_of_a_column_are_known(catalog: SqlCatalog) -> None:
    forms = [
        facts(1, ("x", 2, "text"), B), facts(2, A, B), facts(3, ("c", 2, "text"), ("d", 3, "text")),
        facts(4, ("c", 2, "text"), ("e", 3, "text")),
    ]  # fmt: skip
    iceberg = ensure_raw_table(catalog, TABLE, forms[0], NOW)
    for before, now in pairwise(forms):
        iceberg = follow_source(iceberg, TABLE, steps(TABLE, before, now, consent=False), before, now, NOW)
    called = {name: names_of(name, iceberg.properties) for name in ("c", "e", "id")}
    assert {name: [n.name for n in names] for name, names in called.items()} == {
        "c": ["c", "a", "x"], "e": ["e", "d", "b"], "id": ["id"],
    }  # fmt: skip
    assert all(name.until == NOW for name in called["c"][1:])


def test_what_the_source_called_a_key_under_an_alias_stays_known(catalog: SqlCatalog) -> None:
    """An earlier version has landed old keys by the source's names, and the lake's column is not renamed."""
    table = TABLE.model_copy(
        update={"raw": TABLE.raw.model_copy(update={"alias": {"id": "doc_id", "ident": "doc_id"}})}
    )
    before, now = name_columns(table, None, facts(1, A)), facts(2, A)
    now = name_columns(table, before, replace(now, columns=(replace(now.columns[0], name="ident"), *now.columns[1:])))
    table = table.model_copy(update={"raw": table.raw.model_copy(update={"key": ("ident",)})})
    iceberg = ensure_raw_table(catalog, table, before, NOW)
    assert steps(table, before, now, consent=False) == () and keys_renamed(table, before, now) == {"doc_id": "id"}
    iceberg = follow_source(iceberg, table, (), before, now, NOW)
    assert [(n.name, n.until) for n in names_of("doc_id", iceberg.properties)] == [("doc_id", None), ("id", NOW)]
    assert keys_renamed(table, now, now) == {}


def test_a_value_without_a_place_in_the_lake_is_a_problem_of_its_table(catalog: SqlCatalog) -> None:
    iceberg = ensure_raw_table(catalog, TABLE, facts(1, ("a", 2, "int4")), NOW)
    with pytest.raises(TableProblem, match=r"table 'items'.*column 'b' cannot be stored.*--resnapshot shop\.items"):
        follow_source(iceberg, TABLE, [], facts(1), facts(2, B), NOW)
    for form, values in (
        (facts(1, B), {"b": "x"}),
        (facts(1, A), {"a": "x"}),
        (facts(1, A, ("a", 3, "text")), {"a": "1"}),
    ):
        with pytest.raises(
            TableProblem, match=r"table 'items': the values of column '[ab]' cannot be stored.*--resnapshot"
        ):
            rows_of(iceberg, form, dict(values), 10)
    rows_of(iceberg, facts(1, B), {}, 10)
    rows_of(iceberg, facts(1, B), {"b": "x"}, 10, {"b": "null"})


def test_a_column_that_was_left_out_for_a_while_goes_on_where_it_was() -> None:
    (step,) = steps(TABLE, facts(2), facts(3, A), consent=False, earlier=(facts(1, A),))
    assert (step.action, step.column) == ("add", "a")


def test_a_declared_column_gives_its_name_to_the_one_that_takes_it() -> None:
    table = TABLE.model_copy(update={"columns": (Column(name="a", data_type="text", description=""),)})
    before = name_columns(table, None, facts(1, A, A_NEW))
    renamed = name_columns(table, before, facts(2, ("a_old", 2, "text"), A_NEW))
    assert [c.lake for c in renamed.columns] == ["id", "a", "a_new"]
    replaced = name_columns(table, before, facts(2, ("a_old", 2, "text"), ("a", 3, "text")))
    assert [c.lake for c in replaced.columns] == ["id", "a_old", "a"] and replaced.gone == ("a_new",)


def test_another_column_under_the_name_of_the_key_goes_on_in_it() -> None:
    """Were the raw table's key column another one, its rows so far would be of no key."""
    before = facts(1, A, ("id_new", 3, "int8"))
    now = name_columns(TABLE, before, replace(facts(2, A), columns=(*facts(2, A).columns[1:], key_column(3))))
    (step,) = steps(TABLE, before, now, consent=False)
    assert (step.action, step.column, str(step.type)) == ("widen", "id", "long")
    assert resync_reason(before, now) == "column id is another one than it was, by the same name"


def key_column(number: int) -> ColumnFacts:
    return replace(facts(0, ("id", number, "int8")).columns[1])


def test_a_dropped_column_makes_way_under_a_name_of_its_own() -> None:
    text, whole = LakeColumn(StringType(), "", 1), LakeColumn(IntegerType(), "", 2)
    columns = {"A": text, "a__string": whole, "b": whole}
    assert list(stepped(columns, [Step("rename", "b", to="a")], {})) == ["a__string", "A__string_", "a"]


def test_what_is_set_aside_is_called_by_one_rule_whoever_makes_way() -> None:
    """A type that cannot widen was told by its name in the source, a dropped column's by that in the lake."""
    whole, text = facts(1, ("a", 2, "int4")), facts(2, ("a", 2, "text"))
    set_aside, _ = steps(TABLE, whole, text, consent=True)
    columns = {"a": LakeColumn(IntegerType(), "", 1), "b": LakeColumn(StringType(), "", 2)}
    made_way = stepped(columns, [Step("rename", "b", to="a")], {})
    assert (set_aside.action, set_aside.to) == ("set aside", "a__int") and list(made_way) == ["a__int", "a"]


def test_a_type_that_cannot_widen_is_told_with_all_that_is_to_be_done() -> None:
    """The models kept the former type, and their loads cast to it."""
    remedy = r"correct data_type in the declaration, run `lakehouse scaffold`, then `lakehouse ingest --resume \S+` "
    with pytest.raises(TableProblem, match=f": {remedy}"):
        steps(TABLE, facts(1, ("a", 2, "int4")), facts(2, ("a", 2, "text")), consent=False)


def test_random_renames_drops_and_additions_keep_each_name_in_its_place() -> None:
    """A name stays in its column of the raw table; who else wrote there before is noticed."""
    for seed in range(400):
        random = Random(seed)
        now = facts(0, A, B, C)
        lake = {c.lake: LakeColumn(StringType(), "", number) for number, c in enumerate(now.columns, 1)}
        versions, fields = (now,), {c.number: lake[c.lake].field_id for c in now.columns}
        writers = {field: number for number, field in fields.items()}
        for look in range(1, 6):
            now, before = name_columns(TABLE, now, altered(random, now, look)), now
            versions = (*versions, before)[-1 - random.randrange(3) :]
            found = steps(TABLE, before, now, consent=False, earlier=versions[:-1])
            versions, names = rename_in(versions, found), {name: c.field_id for name, c in lake.items()}
            lake = {
                name: replace(column, field_id=column.field_id or 100 * look + number)
                for number, (name, column) in enumerate(stepped(lake, found, {}).items())
            }
            fields, moved = {c.number: lake[c.lake].field_id for c in now.columns}, fields
            assert len(set(fields.values())) == len(fields)
            assert all(fields[c.number] == names.get(c.lake, fields[c.number]) for c in now.columns), seed
            others = any(
                writers.get(field, number) != number or moved.get(number, field) != field
                for number, field in fields.items()
            )
            assert (resync_reason(before, now) is not None) == others, (seed, look)
            writers |= {field: number for number, field in fields.items()}
            for form in versions:
                assert len({c.lake for c in form.columns}) == len(form.columns) and {
                    c.lake for c in form.columns
                } <= set(lake)


def altered(random: Random, now: TableFacts, look: int) -> TableFacts:
    staying = [c for c in now.columns[1:] if random.random() < 0.7]
    names = random.sample("abcdAB", len(staying))
    while len({name.lower() for name in names}) < len(names):
        names = random.sample("abcdAB", len(staying))
    free = [name for name in "abcd" if name not in {n.lower() for n in names}]
    added = [(name, 10 * look + i, "text") for i, name in enumerate(free) if random.random() < 0.5]
    return facts(look, *((name, c.number, "text") for name, c in zip(names, staying, strict=True)), *added)


def test_a_rename_takes_the_current_view_back_and_another_alteration_does_not(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    """The text of a fresh view calls columns of the raw table by their names."""
    forms = [facts(1, A, B), facts(2, A, B, C), facts(3, ("z", 2, "text"), B, C)]
    iceberg = ensure_raw_table(catalog, TABLE, forms[0], NOW)
    past = 'SELECT "a" FROM "lake"."parsed"."parsed_shop__items"'
    fresh = with_past(past, CUT, "SELECT 1", ", x AS (SELECT 1) SELECT * FROM x")
    begun = a_view(catalog, tmp_path, {"trino": fresh, "spark": "SELECT 1"})
    iceberg = follow_source(iceberg, TABLE, steps(TABLE, forms[0], forms[1], consent=False), forms[0], forms[1], NOW)
    assert list_views(catalog, [VIEW]) == {VIEW: begun}
    iceberg = follow_source(iceberg, TABLE, steps(TABLE, forms[1], forms[2], consent=False), forms[1], forms[2], NOW)
    there = list_views(catalog, [VIEW])[VIEW]
    found = read_metadata(iceberg.io, there)
    assert found is not None and there != begun
    assert current_version(found)["representations"] == [{"type": "sql", "sql": past, "dialect": "trino"}]
    follow_source(iceberg, TABLE, steps(TABLE, forms[2], forms[1], consent=False), forms[2], forms[1], NOW)
    assert list_views(catalog, [VIEW])[VIEW] != there, "so that a refresh under way does not replace it"


def a_view(catalog: SqlCatalog, folder: Path, texts: dict[str, str]) -> str:
    """The current view, with these texts; where its metadata is."""
    version = {
        "version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": [],
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in texts.items()],
    }  # fmt: skip
    metadata = {
        "location": f"file://{folder}/view", "properties": {"comment": f"Items. {MARK}x]"}, "schemas": [],
        "current-version-id": 1, "versions": [version], "version-log": [],
    }  # fmt: skip
    location = write_view(catalog.load_table(TABLE.identifier).io, metadata)
    row = insert(IcebergTables).values(
        catalog_name=catalog.name, table_namespace=VIEW[0], table_name=VIEW[1], metadata_location=location,
        iceberg_type="VIEW",
    )  # fmt: skip
    with Session(catalog.engine) as session:
        session.execute(row)
        session.commit()
    return location
