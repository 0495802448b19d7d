"""A query of the past: only names of relations change, views become their text, and every table is bounded."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads.remembered import MADE_ANEW, LoadedInput
from lakehouse.catalog.open import MIRROR_STATE
from lakehouse.catalog.pins import Pinned
from lakehouse.catalog.relations import BEGUN_AT, TableName
from lakehouse.errors import LakehouseError
from lakehouse_serve.past import asked, states
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.loaded import FirstSight, Loaded, Model
from lakehouse_serve.past.mirrors import has_snapshot, key_of
from lakehouse_serve.past.moments import Moment
from lakehouse_serve.past.queries import AsOfCuts, Kind, below, position_after, select_list, without_columns

OF_COMMITS, OF_POSITIONS = (
    frozenset({"_epoch", "_commit_lsn", "id"}),
    frozenset({"source_seq", "record_source", "hk_t"}),
)
CUTS = {"s": Cut("s", 2, 77, {"t": 5, "Other": 6}), "bank": Cut("bank", 1, 9, {"t": 1})}
VIEW = """select "id", cast(f("email", 1) as time(6)) as "email", _epoch
from "lake"."parsed"."parsed_s__t" where id > 0 -- v"""
KINDS = {
    TableName("parsed", "parsed_s__t"): Kind(OF_COMMITS),
    TableName("raw_bank", "t"): Kind(OF_COMMITS),
    TableName("parsed", "parsed_s__late"): Kind(OF_COMMITS),
    TableName("parsed", "parsed_gone__t"): Kind(OF_COMMITS),
    TableName("parsed", "current_s__t"): Kind(frozenset(), VIEW),
    TableName("mine", "over"): Kind(
        frozenset(), "SELECT * FROM parsed.current_s__t UNION ALL SELECT * FROM parsed.current_s__t"
    ),
    TableName("mine", "loop"): Kind(frozenset(), "SELECT * FROM mine.loop"),
    TableName("mine", "of_its_schema"): Kind(
        frozenset(), "WITH people AS (SELECT * FROM people WHERE id > 1) SELECT * FROM people"
    ),
    TableName("vault", "hub_t"): Kind(OF_POSITIONS),
    TableName("marts", "dim_t"): Kind(frozenset({"id"})),
    TableName("mirror_s", "t"): Kind(frozenset({"id"})),
}
BOUND = '(SELECT * FROM "lake"."parsed"."parsed_s__t" WHERE (_epoch < 2 OR (_epoch = 2 AND _commit_lsn <= 77)))'


def lake() -> AsOfCuts:
    return AsOfCuts(CUTS, "lake", KINDS.get)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM parsed.parsed_s__t", 'SELECT * FROM {} AS "parsed_s__t"'),
        ("select a.id from Lake.PARSED.Parsed_S__T as a -- of parsed.t", "select a.id from {} as a -- of parsed.t"),
        ('SELECT * FROM "parsed" . "parsed_s__t" x, parsed.parsed_s__t', 'SELECT * FROM {} x, {} AS "parsed_s__t"'),
        ("SELECT 'parsed.parsed_x', \"parsed.x\" FROM T.T t", None),
        ("WITH x AS (SELECT * FROM T.T t) SELECT * FROM x", None),
        ("SELECT 1 WHERE EXISTS (SELECT 1 FROM T.T t)", None),
        ("SELECT (SELECT max(id) FROM T.T t) AS m", None),
        ("SELECT 1 FROM T.T t UNION SELECT 2 FROM T.T t", None),
        ("SELECT 1 FROM T.T t CROSS JOIN UNNEST(t.list) AS u (v)", None),
        ("SELECT 1 FROM T.T t TABLESAMPLE BERNOULLI (10)", None),
        ("SELECT 1", None),
        ("TABLE T.T LIMIT 3", 'SELECT * FROM {} AS "parsed_s__t" LIMIT 3'),
        ("WITH x AS (SELECT 1 FROM T.T t), y AS (SELECT * FROM X) SELECT * FROM x UNION SELECT * FROM (TABLE y)", None),
        ("WITH x AS (SELECT 1 FROM T.T t) SELECT (WITH y AS (SELECT * FROM x) SELECT max(1) FROM y, x)", None),
        ("WITH RECURSIVE x (n) AS (SELECT id FROM T.T t UNION ALL SELECT n + 1 FROM x) SELECT * FROM x", None),
        ("WITH parsed_s__t AS (SELECT 1) SELECT * FROM T.T t, parsed_s__t", None),
        ("WITH x AS (table  T.T) TABLE x", 'WITH x AS (SELECT * FROM {} AS "parsed_s__t") TABLE x'),
    ],
)  # fmt: skip
def test_names_of_tables_become_their_rows_and_nothing_else_changes(query: str, expected: str | None) -> None:
    """Where nothing else is expected, the name alone is replaced; `T` stands for it."""
    expected = (expected or query).replace("T.T", BOUND)
    assert lake().rewrite(query.replace("T.T", "parsed.parsed_s__t")) == expected.replace("{}", BOUND)


def test_views_are_read_through_to_their_tables_and_named_as_they_are() -> None:
    asked = lake()
    text = asked.rewrite("SELECT * FROM mine.over JOIN parsed.current_s__t c USING (id)")
    assert text.count(BOUND) == 3 and ') AS "current_s__t"' in text and text.endswith("\n) c USING (id)")
    assert asked.tables == {TableName("parsed", "parsed_s__t")}
    assert asked.tables_below(TableName("mine", "over")) == asked.tables


def test_a_parsed_table_is_of_the_source_that_has_its_raw_table() -> None:
    """Of sources `a` and `a__b`, the first one's cut was taken for both."""
    kinds = {
        TableName("raw_a", "b__u"): Kind(OF_COMMITS),
        TableName("raw_a__b", "t"): Kind(OF_COMMITS),
        TableName("parsed", "parsed_a__b__u"): Kind(OF_COMMITS),
        TableName("parsed", "parsed_a__b__t"): Kind(OF_COMMITS),
    }
    cuts = {"a": Cut("a", 1, 5, {"b__u": 1}), "a__b": Cut("a__b", 1, 9, {"t": 1})}
    asked = AsOfCuts(cuts, "lake", kinds.get)
    assert "_commit_lsn <= 9" in asked.rewrite("SELECT * FROM parsed.parsed_a__b__t")
    assert "_commit_lsn <= 5" in asked.rewrite("SELECT * FROM parsed.parsed_a__b__u")
    with pytest.raises(LakehouseError, match="no cut of a__b was published until then"):
        AsOfCuts({"a": cuts["a"]}, "lake", kinds.get).rewrite("SELECT * FROM parsed.parsed_a__b__t")


def test_of_a_vault_table_the_rows_of_each_source_until_its_cut_and_ghosts() -> None:
    text = lake().rewrite("SELECT * FROM vault.hub_t")
    assert text == (
        'SELECT * FROM (SELECT * FROM "lake"."vault"."hub_t" WHERE record_source = \'ghost\''
        " OR (starts_with(record_source, 'bank.') AND source_seq < '0000000001.0000000000000000009.~')"
        " OR (starts_with(record_source, 's.') AND source_seq < '0000000002.0000000000000000077.~')) AS \"hub_t\""
    )


@pytest.mark.parametrize("columns", [OF_COMMITS, OF_POSITIONS, OF_COMMITS | OF_POSITIONS])
@pytest.mark.parametrize("name", [TableName("marts", "of_now"), TableName("mirror_s", "t")])
def test_what_is_made_of_the_newest_rows_is_read_at_its_snapshot_whatever_its_columns_are_called(
    name: TableName, columns: frozenset[str]
) -> None:
    """A mart that had kept `source_seq` and `record_source` was bounded by them, and a pin of it was refused."""
    kinds = KINDS | {name: Kind(columns)}
    at = AsOfCuts(CUTS, "lake", kinds.get, snapshots={name: 5})
    assert at.rewrite(f"SELECT * FROM {name} m") == (
        f'SELECT * FROM (SELECT * FROM "lake"."{name.namespace}"."{name.name}" FOR VERSION AS OF 5) m'
    )
    assert at.versions == {name} and not at.tables
    with pytest.raises(LakehouseError, match=r"has no past|does not say which columns are its key"):
        AsOfCuts(CUTS, "lake", kinds.get).rewrite(f"SELECT * FROM {name}")


MIRROR, OF_MIRROR = TableName("mirror_s", "t"), {"email": "varchar", "id": "integer", "at": "date"}
OF_PARSED = {"id": "integer", "email": "varchar", "at": "timestamp(6)"} | dict.fromkeys(("_epoch", "_commit_lsn"), "")
MIRRORED = {
    MIRROR: Kind(frozenset(OF_MIRROR), types=OF_MIRROR, key=("id",)),
    TableName("parsed", "parsed_s__t"): Kind(frozenset(OF_PARSED), types=OF_PARSED),
    TableName("mine", "over"): Kind(frozenset(), "SELECT id FROM lake.mirror_s.t"),
}


def test_a_mirror_without_a_snapshot_of_the_cut_is_made_of_parsed_with_its_own_columns() -> None:
    """It was refused. A value that is not the same in the mirror's type fails in place of being changed."""
    at = AsOfCuts(CUTS, "lake", MIRRORED.get, snapshots={MIRROR: 5}, has_snapshot=lambda *_: False)
    day = 'CAST("at" AS date)'
    says = "a value of at is timestamp(6), and not the same as date"
    expected = (
        f'SELECT "email", "id", IF(CAST({day} AS timestamp(6)) IS DISTINCT FROM "at",'
        f""" CAST(fail('{says}') AS date), {day}) AS "at" FROM (SELECT *, row_number() OVER (PARTITION BY "id" """
        f"ORDER BY _epoch DESC, _commit_lsn DESC, _seq DESC) AS _lh_version FROM {BOUND})"
        " WHERE _lh_version = 1 AND NOT _is_deleted"
    )
    assert at.rewrite("SELECT * FROM mirror_s.t m") == f"SELECT * FROM ({expected}) m"
    assert at.rewrite("SELECT * FROM mine.over") == f'SELECT * FROM (SELECT id FROM ({expected}) AS "t"\n) AS "over"'
    assert at.tables == {TableName("parsed", "parsed_s__t")} and not at.versions, "parsed has to be loaded until then"
    for_readers = AsOfCuts(CUTS, "lake", MIRRORED.get, {MIRROR: {"email"}})
    assert for_readers.rewrite("SELECT * FROM mirror_s.t") == (
        f'SELECT * FROM ({expected.replace(chr(34) + "email" + chr(34) + ", ", "")}) AS "t"'
    )


@pytest.mark.parametrize(
    ("mirror", "parsed", "says"),
    [
        (
            Kind(frozenset(OF_MIRROR), types=OF_MIRROR),
            Kind(frozenset(OF_PARSED)),
            r"refresh it \(`lakehouse mirror s`\)",
        ),
        (MIRRORED[MIRROR], None, r"there is no parsed\.parsed_s__t, of which its past is made"),
        (MIRRORED[MIRROR], Kind(OF_COMMITS, types={"id": "integer"}), "has no column email, at yet: run its load"),
    ],
)
def test_a_mirror_that_cannot_be_made_of_parsed_is_refused(mirror: Kind, parsed: Kind | None, says: str) -> None:
    kinds = {MIRROR: mirror, TableName("parsed", "parsed_s__t"): parsed}
    with pytest.raises(LakehouseError, match=says):
        AsOfCuts(CUTS, "lake", kinds.get).rewrite("SELECT * FROM mirror_s.t")


def test_the_key_of_a_mirror_is_what_its_state_says() -> None:
    """As a refresh has stored it: ids of raw's fields, and names as the source has them."""
    state = {"key": [3, 1], "columns": {"Id": 1, "note": 2, "part": 3}}
    assert key_of({MIRROR_STATE: json.dumps(state)}) == ("id", "part")
    for unknown in ({}, {MIRROR_STATE: "{}"}, {MIRROR_STATE: json.dumps(state | {"key": [1, 4]})}):
        assert key_of(unknown) == ()


def test_a_snapshot_of_a_mirror_answers_where_raw_got_nothing_of_its_cut_since(tmp_path: Path) -> None:
    """What `ingest --replay` brings is in the source's state of then, and not in a snapshot of before."""
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("mirror_s", "raw_s"):
        catalog.create_namespace(namespace)
    mirror = catalog.create_table(MIRROR, Schema())
    with mirror.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    snapshot = mirror.metadata.current_snapshot_id
    assert snapshot is not None
    published = datetime(2026, 1, 1, tzinfo=UTC)
    cut = replace(CUTS["s"], published_at=published)
    standing = replace(cut, layer="mirror", published_at=published + timedelta(seconds=9))
    assert has_snapshot(catalog, MIRROR, snapshot, None) and not has_snapshot(catalog, MIRROR, snapshot + 1, None)
    assert has_snapshot(catalog, MIRROR, snapshot, (cut, standing)), "raw was dropped"
    assert not has_snapshot(catalog, MIRROR, snapshot, (standing, cut)), "the mirror is of before that cut"
    rows = pa.table({
        "_epoch": pa.array([2, 2], pa.int32()), "_commit_lsn": [77, 78], "_seq": [1, 2],
        "_ingested_at": [published, published + timedelta(days=1)],
    })  # fmt: skip
    raw = catalog.create_table(("raw_s", "t"), rows.schema)
    raw.append(rows)
    assert has_snapshot(catalog, MIRROR, snapshot, (cut, standing)), "what came later is of a later cut"
    raw.append(rows.slice(0, 1).set_column(3, "_ingested_at", pa.array([published + timedelta(days=2)])))
    assert not has_snapshot(catalog, MIRROR, snapshot, (cut, standing))
    assert has_snapshot(catalog, MIRROR, snapshot, None), "a pin keeps it as it was"


def test_a_mart_of_a_pin_whose_snapshot_has_expired_is_refused_with_what_is_left(tmp_path: Path) -> None:
    """Trino said that an Iceberg snapshot does not exist."""
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("marts")
    table, name = catalog.create_table(("marts", "t"), Schema()), TableName("marts", "t")
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    kept = table.current_snapshot()
    assert kept is not None
    asked._refuse_expired(table, name, kept.snapshot_id)
    asked._refuse_expired(None, name, 1)
    with pytest.raises(LakehouseError, match=rf"marts.t has no snapshot of that cut .* since {datetime.now(UTC):%Y-}"):
        asked._refuse_expired(table, name, kept.snapshot_id + 1)


def test_what_a_pin_does_not_keep_is_told_as_missing_in_it() -> None:
    at = AsOfCuts(CUTS, "lake", KINDS.get, snapshots={TableName("raw_s", "t"): 5})
    with pytest.raises(LakehouseError, match="or another pin, as this one was made without it"):
        at.rewrite("SELECT * FROM marts.dim_t")


def test_a_raw_table_that_a_pin_keeps_is_read_without_what_landed_later() -> None:
    """After `ingest --replay` a pin had more rows in it than in its own mirrors, marts and warehouse."""
    raw, parsed = TableName("raw_bank", "t"), TableName("parsed", "parsed_s__t")
    at = AsOfCuts(CUTS, "lake", KINDS.get, snapshots={raw: 7, parsed: 8})
    assert at.rewrite("SELECT * FROM raw_bank.t x") == (
        'SELECT * FROM (SELECT * FROM "lake"."raw_bank"."t" FOR VERSION AS OF 7'
        " WHERE (_epoch < 1 OR (_epoch = 1 AND _commit_lsn <= 9))) x"
    )
    assert at.rewrite("SELECT * FROM parsed.parsed_s__t x") == f"SELECT * FROM {BOUND} x", "it was loaded later"
    assert at.tables == {raw, parsed}


@pytest.mark.parametrize(("commit", "is_below"), [((1, 99), True), ((2, 77), True), ((2, 78), False), ((3, 1), False)])
def test_a_position_in_the_vault_is_below_a_cut_as_its_commit_is(commit: tuple[int, int], is_below: bool) -> None:
    epoch, lsn = commit
    assert (f"{epoch:010d}.{lsn:019d}.{10**18:019d}" < position_after(CUTS["s"])) == is_below
    assert eval(below(CUTS["s"]).replace("OR", "or").replace("AND", "and").replace(" = ", " == "),
                {"_epoch": epoch, "_commit_lsn": lsn}) == is_below  # fmt: skip


def test_a_view_does_not_ask_for_columns_that_the_role_may_not_read() -> None:
    asked = AsOfCuts(CUTS, "lake", KINDS.get, {TableName("parsed", "current_s__t"): {"email"}})
    text = asked.rewrite("SELECT id FROM parsed.current_s__t")
    assert "email" not in text and text.startswith('SELECT id FROM (select "id", _epoch\nfrom (SELECT')


@pytest.mark.parametrize(
    ("query", "without"),
    [
        ("SELECT a, b FROM t", "SELECT a FROM t"),
        ("SELECT b, a FROM t", "SELECT a FROM t"),
        ("WITH b AS (SELECT 1 AS b) SELECT f(a, b) AS c, (SELECT b FROM b) AS b FROM t", None),
        ("SELECT * FROM t", "SELECT * FROM t"),
        ("SELECT a FROM t UNION SELECT b FROM t", "SELECT a FROM t UNION SELECT b FROM t"),
    ],
)
def test_a_column_is_left_out_at_the_outermost_level_alone(query: str, without: str | None) -> None:
    found = without_columns(query, {"b"})
    assert found == (without or "WITH b AS (SELECT 1 AS b) SELECT f(a, b) AS c FROM t")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT a, b FROM t",
        "SELECT b, a, count(*) AS n FROM t GROUP BY 1, 2",
        "SELECT b, a FROM t ORDER BY 2 LIMIT 1",
    ],
)
def test_a_view_whose_rows_depend_on_a_hidden_column_is_left_to_trino_to_refuse(query: str) -> None:
    """Without the column it would have other rows."""
    assert without_columns(query, {"b"}) == query


def test_the_select_list_of_a_query_without_from_is_not_told() -> None:
    assert select_list([]) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM marts.dim_t", "marts.dim_t has no past: it is rebuilt"),
        ("SELECT * FROM mirror_s.t", "mirror_s.t has no snapshot of that cut, and does not say which columns"),
        (
            "SELECT * FROM parsed.parsed_s__late",
            "the cut s=2:0/4D does not cover late, which was not loaded yet, or was parked, paused or being resynced",
        ),
        ("SELECT * FROM parsed.parsed_gone__t", "no cut of gone"),
        ("SELECT * FROM parsed.nothing", "there is no table or view parsed.nothing"),
        ("SELECT * FROM parsed_s__t", "parsed_s__t: name its schema"),
        ("SELECT * FROM hive.parsed.parsed_s__t", "hive.parsed.parsed_s__t is not of the lake"),
        ("SELECT * FROM mine.loop", "mine.loop is a view that reads itself"),
        ("WITH people AS (SELECT 1 AS id) SELECT * FROM mine.of_its_schema", "people: name its schema"),
        ("WITH FUNCTION f() RETURNS bigint RETURN 1 SELECT f()", "f: name its schema"),
        ("WITH x AS (SELECT * FROM x) SELECT * FROM x", "x: name its schema"),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x", "y: name its schema"),
        ("SELECT * FROM x, (WITH x AS (SELECT 1) SELECT * FROM x)", "x: name its schema"),
        ("SELECT * FROM parsed.parsed_s__t FOR TIMESTAMP AS OF now()", "leave out FOR … AS OF"),
        ('SELECT * FROM parsed."parsed_s__t$files"', "there is no table or view"),
        ("SELECT * FROM TABLE(lake.system.table_changes('parsed', 't', 1, 2))", "functions that return tables"),
        ("DELETE FROM parsed.parsed_s__t", "only one SELECT has a past"),
        ("SELECT 1; SELECT 2", "only one SELECT has a past"),
        ("SHOW TABLES", "only one SELECT has a past"),
        ("SELECT (", "query: "),
        ("SELECT var_map(1)", "query: it cannot be read (IndexError): see that each function has all of its arguments"),
        (
            "SELECT array_agg(id, (SELECT id FROM parsed.parsed_s__t)) FROM parsed.parsed_s__t",
            "parsed.parsed_s__t stands where it cannot be read as of a moment",
        ),
        (
            'SELECT array_agg(id, (SELECT id FROM Lake."parsed" . "parsed_s__t")) FROM parsed.parsed_s__t',
            "parsed.parsed_s__t stands where it cannot be read as of a moment",
        ),
        ("", "only one SELECT has a past"),
    ],
)
def test_what_has_no_past_is_refused_in_one_line(query: str, message: str) -> None:
    with pytest.raises(LakehouseError) as refused:
        lake().rewrite(query)
    assert message in str(refused.value) and "\n" not in str(refused.value)


HUB = TableName("vault", "hub_of_two")
OF_HUB = frozenset(LoadedInput(f"stg_s__{table}", "2026-01-01 00:00:00 UTC", 1, "0", "") for table in ("t", "late"))
STAGES = {
    TableName("vault", f"stg_s__{table}"): Kind(OF_POSITIONS, f"SELECT * FROM parsed.parsed_s__{table}")
    for table in ("t", "late")
}


Answers = Mapping[str, list[list[Any]]]
NOTHING: Answers = MappingProxyType({})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT array_agg(t.id, t.name) FROM parsed.parsed_s__t t",
        "SELECT 'parsed.parsed_s__t', 1.5, t.id, extract(year FROM t.at) FROM parsed.parsed_s__t t, UNNEST(t.a) u(v)",
        "SELECT transform(t.a, x -> x.b.c), cast(row(t.id) AS row(id int)).id FROM lake.parsed.parsed_s__t t -- s.t",
    ],
)
def test_names_with_dots_that_are_no_relations_stay(query: str) -> None:
    assert lake().rewrite(query).count("WHERE") == 1


def check(
    kinds: Mapping[TableName, Kind],
    table: TableName,
    answers: Answers = NOTHING,
    remembered: Any = frozenset(),
    models: Mapping[str, Model] = MappingProxyType({}),
    cuts: Mapping[str, Cut] = MappingProxyType(CUTS),
    is_of_all: bool = False,
    since: datetime | None = None,
) -> list[str]:
    """Asks whether a table is loaded, and returns the statements; the first text within one gives its answer."""
    statements: list[str] = []

    def ask(statement: str) -> list[list[Any]]:
        statements.append(statement)
        return next((answer for part, answer in answers.items() if part in statement), [])

    lake = AsOfCuts(cuts, "lake", kinds.get, is_of_all=is_of_all)
    Loaded(ask, lambda _: remembered, lambda _: since, lambda: models, lake).check(table)
    return statements


PARSED_IS_LOADED: Answers = {"max(_loaded_at)": [["2026-01-01 00:00:00 UTC"]], '"raw_s"."t"': [[1, 0, 1]]}
IS_LOADED: Answers = {**PARSED_IS_LOADED, "count_if(load_date": [[0, 1]]}


def check_hub(
    kinds: dict[TableName, Kind],
    raw_rows: int,
    loads: Any = OF_HUB,
    is_of_all: bool = False,
    models: Mapping[str, Model] = MappingProxyType({}),
) -> list[str]:
    """Asks whether a hub of two tables is loaded; the cut does not cover `late`, of which raw has so many rows then."""
    return check(kinds, HUB, {'FROM "raw_s"."late"': [[1]] * raw_rows, **IS_LOADED}, loads, models, is_of_all=is_of_all)


def kinds_of_hub() -> dict[TableName, Kind]:
    raw = {TableName("raw_s", table): Kind(OF_COMMITS) for table in ("t", "late")}
    return {**KINDS, HUB: Kind(OF_POSITIONS), **STAGES, **raw}


def test_a_hub_is_read_as_of_a_cut_before_one_of_its_tables_came_into_the_lake() -> None:
    assert not any("stg_s__late" in statement for statement in check_hub(kinds_of_hub(), 0))


def test_a_hub_is_refused_at_a_cut_at_which_one_of_its_tables_was_parked() -> None:
    """Keys that had come while it was parked were missing, and nobody was told."""
    with pytest.raises(LakehouseError, match=r"the cut s=2:0/4D does not cover late, which was .* parked"):
        check_hub(kinds_of_hub(), 3)


@pytest.mark.parametrize("gone", [TableName("vault", "stg_s__t"), TableName("parsed", "parsed_s__t")])
def test_a_hub_outlives_a_table_that_was_dropped(gone: TableName) -> None:
    """As `lakehouse remove --drop-tables` leaves a hub of several sources: it could not be asked for any past."""
    kinds = {name: kind for name, kind in kinds_of_hub().items() if name != gone}
    assert not any("stg_s__t" in statement for statement in check_hub(kinds, 0))


def test_a_hub_is_checked_by_its_stage_wherever_the_project_has_that() -> None:
    """In another schema, or under an alias, it was not found, and the hub was read without what it lacked."""
    kinds, elsewhere = kinds_of_hub(), TableName("prepared", "stage_of_t")
    kinds[elsewhere] = kinds.pop(TableName("vault", "stg_s__t"))
    models = {"stg_s__t": Model(elsewhere)}
    assert any('FROM "prepared"."stage_of_t"' in statement for statement in check_hub(kinds, 0, models=models))
    del kinds[elsewhere]
    with pytest.raises(LakehouseError, match=r"vault\.hub_of_two: its stage prepared\.stage_of_t is not loaded"):
        check_hub(kinds, 0, models=models)


def test_a_hub_is_read_as_of_a_time_before_one_of_its_sources_came_into_the_lake() -> None:
    """It had no past any more before that, as soon as another source shared it."""
    [one, _] = sorted(OF_HUB, key=lambda load: load.stage, reverse=True)
    other = LoadedInput("stg_new__t", "2026-01-01 00:00:00 UTC", 1, "0", "")
    stage = {TableName("vault", "stg_new__t"): Kind(OF_POSITIONS, "SELECT * FROM parsed.parsed_new__t")}
    kinds = {**kinds_of_hub(), **stage, TableName("parsed", "parsed_new__t"): Kind(OF_COMMITS)}
    assert not any("new" in statement for statement in check_hub(kinds, 0, frozenset({one, other}), is_of_all=True))
    for loads, of_all in ((frozenset({one, other}), False), (frozenset({other}), True)):
        with pytest.raises(LakehouseError, match=r"no cut of new was published until then, or its position is not"):
            check_hub(kinds, 0, loads, of_all)


PARSED = TableName("parsed", "parsed_s__t")


def test_a_truncate_that_is_not_loaded_is_told_by_the_text_that_is_asked() -> None:
    """The fresh view of a mirrored table was empty already, so every row that was truncated was shown as there."""
    kinds = {**KINDS, TableName("parsed", "current_s__t"): Kind(frozenset(), "SELECT * FROM parsed.parsed_s__t")}
    alive: Answers = {"max(_loaded_at)": [["2026-01-01 00:00:00 UTC"]], "count_if(_op <> 't')": [[0, 1, 0]]}
    with pytest.raises(LakehouseError, match=r"parsed\.parsed_s__t lacks 7 changes"):
        check(kinds, PARSED, {**alive, f"SELECT count(*) FROM (SELECT * FROM {BOUND}": [[7]]})
    check(kinds, PARSED, {**alive, "SELECT count(*) FROM (": [[0]]})


@pytest.mark.parametrize(
    ("counts", "says"),
    [([3, 0, 6], "has 3 rows of its newest load more than what it is loaded from"), ([6, 0, 3], "lacks 3 changes")],
)
def test_parsed_that_has_more_than_raw_does_not_lack_changes(counts: list[int], says: str) -> None:
    """It was said to lack -3 changes."""
    with pytest.raises(LakehouseError, match=says):
        check(KINDS, PARSED, {"max(_loaded_at)": [["2026-01-01 00:00:00 UTC"]], '"raw_s"."t"': [counts]})


@pytest.mark.parametrize(
    ("counts", "says"),
    [([2, 1], "lacks 2 changes"), ([0, 1], "has 2 rows of its newest load more"), ([0, 4], "lacks 1")],
)
def test_what_is_new_in_a_stage_is_not_made_up_for_by_what_is_gone(counts: list[int], says: str) -> None:
    """A hub that lacked two rows was read, where its stage had two less of those that were loaded."""
    one = frozenset(replace(load, rows=3) for load in OF_HUB if load.stage == "stg_s__t")
    with pytest.raises(LakehouseError, match=says):
        check(kinds_of_hub(), HUB, {**PARSED_IS_LOADED, "count_if(load_date": [counts]}, one)


def test_a_stage_that_has_nothing_of_its_newest_moment_any_more_lacks_nothing_of_it() -> None:
    """After an erasure of all rows of the newest load the hub was refused for good: no load counts them anew."""
    one = frozenset(replace(load, rows=3) for load in OF_HUB if load.stage == "stg_s__t")
    check(kinds_of_hub(), HUB, {**PARSED_IS_LOADED, "count_if(load_date": [[0, 0]]}, one)
    with pytest.raises(LakehouseError, match="lacks 2 changes"):
        check(kinds_of_hub(), HUB, {**PARSED_IS_LOADED, "count_if(load_date": [[2, 0]]}, one)


def test_a_table_of_ones_own_has_no_past() -> None:
    """It was said to lack a load that it does not have."""
    own = {"hub_of_two": Model(HUB, ("stg_s__t",))}
    with pytest.raises(LakehouseError, match=r"vault\.hub_of_two has no past: nothing says how far it is loaded"):
        check(kinds_of_hub(), HUB, models=own)


def test_a_stage_that_a_hub_has_never_loaded_from_is_asked_too() -> None:
    """It was empty at the first load. What came into it since was missing in the hub, and nobody was told."""
    [one] = (load for load in OF_HUB if load.stage == "stg_s__t")
    models = {
        "hub_of_two": Model(HUB, ("stg_s__t", "stg_s__late"), loads=True),
        "stg_s__late": Model(TableName("vault", "stg_s__late"), ("parsed_s__late",)),
        "parsed_s__late": Model(TableName("parsed", "parsed_s__late")),
    }
    cuts = {"s": Cut("s", 2, 77, {"t": 5, "late": 6})}
    answers = {'"raw_s"."late"': [[1, 0, 1]], '"vault"."stg_s__late"': [[4, 0]], **IS_LOADED}
    with pytest.raises(LakehouseError, match=r"vault\.hub_of_two lacks 4 changes"):
        check(kinds_of_hub(), HUB, answers, {one}, models, cuts)
    check(kinds_of_hub(), HUB, {**answers, '"vault"."stg_s__late"': [[0, 0]]}, {one}, models, cuts)
    with pytest.raises(LakehouseError, match=r"parsed\.parsed_s__t: the cut s=2:0/4D does not cover t"):
        check(kinds_of_hub(), HUB, answers, {one}, models, {"s": Cut("s", 2, 77, {"late": 6})})
    unmade = {name: kind for name, kind in kinds_of_hub().items() if "late" not in name.name or "raw" in name.namespace}
    with pytest.raises(LakehouseError, match=r"its stage vault\.stg_s__late is not loaded: run the load of its source"):
        check(unmade, HUB, answers, {one}, models, cuts)
    check(unmade, HUB, {**IS_LOADED, '"raw_s"."late"': []}, {one}, models, cuts)
    awaited = Kind(OF_POSITIONS, "SELECT id FROM (SELECT CAST(NULL AS integer) id WHERE false) _lh_awaited")
    waiting = {**unmade, TableName("vault", "stg_s__late"): awaited}
    with pytest.raises(LakehouseError, match=r"vault\.stg_s__late is a stage whose table was never loaded"):
        AsOfCuts(cuts, "lake", waiting.get).rewrite("SELECT * FROM vault.stg_s__late")
    with pytest.raises(LakehouseError, match=r"its stage vault\.stg_s__late is not loaded: run the load of its source"):
        check(waiting, HUB, answers, {one}, models, cuts)
    check(waiting, HUB, {**IS_LOADED, '"raw_s"."late"': []}, {one}, models, cuts)


def test_a_hub_with_rows_of_a_source_that_is_not_asked_is_refused() -> None:
    """After `lakehouse remove bank --drop-tables` keys that bank had loaded first were missing in a past of retail."""
    one = frozenset(load for load in OF_HUB if load.stage == "stg_s__t")
    answers = {"SELECT split_part(record_source": [["left"]], **IS_LOADED}
    with pytest.raises(LakehouseError, match=r"vault\.hub_of_two has rows of left too, of which there is no cut"):
        check(kinds_of_hub(), HUB, answers, one)
    [asked, *_] = check(kinds_of_hub(), HUB, IS_LOADED, one)
    assert asked.endswith(
        "WHERE NOT (record_source = 'ghost' OR starts_with(record_source, 'bank.') OR starts_with(record_source, 's.'))"
        " LIMIT 1"
    )
    check(kinds_of_hub(), HUB, answers, one, is_of_all=True)


BEGUN = datetime(2026, 11, 2, tzinfo=UTC)
BEGUN_AGAIN = {
    **kinds_of_hub(),
    TableName("raw_s", "t"): Kind(OF_COMMITS, begun_at=BEGUN),
}


@pytest.mark.parametrize("published", [BEGUN - timedelta(seconds=1), BEGUN + timedelta(seconds=1), None])
def test_a_table_that_was_begun_again_after_a_cut_is_refused_there(published: datetime | None) -> None:
    """Every moment of before `lakehouse remove --drop-tables` was answered with no rows."""
    cuts = {"s": replace(CUTS["s"], published_at=published)}
    raw = "SELECT * FROM raw_s.t"
    if published is None or published > BEGUN:
        AsOfCuts(cuts, "lake", BEGUN_AGAIN.get).rewrite(raw)
        check(BEGUN_AGAIN, PARSED, PARSED_IS_LOADED, cuts=cuts)
        return
    with pytest.raises(LakehouseError, match=r"raw_s\.t was begun again after the cut s=2:0/4D"):
        AsOfCuts(cuts, "lake", BEGUN_AGAIN.get).rewrite(raw)
    with pytest.raises(LakehouseError, match=r"parsed\.parsed_s__t was begun again after the cut s=2:0/4D"):
        check(BEGUN_AGAIN, PARSED, PARSED_IS_LOADED, cuts=cuts)
    has = {"_loaded_at < timestamp '2026-11-02 00:00:00.000000 UTC'": [[1]]}
    check(BEGUN_AGAIN, PARSED, {**has, **PARSED_IS_LOADED}, cuts=cuts)


def test_only_a_raw_table_is_asked_when_it_was_begun(tmp_path: Path) -> None:
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for name in ("raw_s.t", "parsed.parsed_s__t"):
        catalog.create_namespace_if_not_exists(name.split(".")[0])
        catalog.create_table(name, Schema(), properties={BEGUN_AT: "2026-11-02T01:00:00+01:00"})
    catalog.create_table("raw_s.old", Schema())
    names = [TableName("raw_s", "t"), TableName("raw_s", "old"), TableName("raw_s", "none"), PARSED]
    assert [asked._begun_at(catalog, name) for name in names] == [BEGUN, None, None, None]


def test_the_stages_of_a_table_that_grows_are_the_views_that_it_reads() -> None:
    def node(name: str, made: str, *reads: str) -> dict[str, Any]:
        named = {"name": name, "schema": "vault", "alias": f"the_{name}", "resource_type": "model"}
        return {**named, "config": {"materialized": made}, "depends_on": {"nodes": reads}}

    nodes = {
        "model.a.hub": node("hub", "append_only", "model.a.stg", "model.a.other", "source.a.gone"),
        "model.a.stg": node("stg", "view", "model.a.parsed"),
        "model.a.parsed": node("parsed", "parsed_table"),
        "model.a.other": node("other", "append_only"),
    }
    mentions = [{"stage": "stg", "key": "hk_T"}, {"stage": "stg", "key": "hk_of"}]
    nodes["model.a.hub"]["config"]["meta"] = {"first_sight": {"key": "hk_T", "mentions": mentions, "of_deletes": True}}
    first_sight = FirstSight("hk_t", (("stg", "hk_t"), ("stg", "hk_of")), of_deletes=True)
    assert [asked._model(nodes[f"model.a.{name}"], nodes) for name in ("hub", "stg")] == [
        Model(TableName("vault", "the_hub"), ("stg",), loads=True, first_sight=first_sight),
        Model(TableName("vault", "the_stg"), ("parsed",)),
    ]


def test_a_hub_outlives_a_table_that_was_begun_again() -> None:
    """It has what was loaded of it before, unless it was made anew itself."""
    cuts = {"s": replace(CUTS["s"], published_at=BEGUN - timedelta(days=1))}
    one = frozenset(load for load in OF_HUB if load.stage == "stg_s__t")
    outlives = {"AND load_date < timestamp '2026-11-02 00:00:00.000000 UTC'": [[1]], **IS_LOADED}
    check(BEGUN_AGAIN, HUB, outlives, one, cuts=cuts)
    with pytest.raises(LakehouseError, match=r"parsed\.parsed_s__t was begun again after the cut"):
        check(BEGUN_AGAIN, HUB, IS_LOADED, one, cuts=cuts)


@pytest.mark.parametrize(("after", "is_refused"), [(-1, False), (0, False), (1, True), (None, True)])
def test_a_hub_that_stands_since_before_a_cut_outlives_a_table_that_brought_no_key_first(
    after: int | None, is_refused: bool
) -> None:
    """Where a customer always came before its order, the hub was refused at every moment before orders were begun
    again, though it lacked nothing; so it was while the new table was empty."""
    published = BEGUN - timedelta(days=1)
    cuts = {"s": replace(CUTS["s"], published_at=published)}
    since = None if after is None else published + timedelta(seconds=after)
    one = frozenset(load for load in OF_HUB if load.stage == "stg_s__t")
    if not is_refused:
        check(BEGUN_AGAIN, HUB, IS_LOADED, one, cuts=cuts, since=since)
        return
    with pytest.raises(LakehouseError, match=r"parsed\.parsed_s__t was begun again after the cut"):
        check(BEGUN_AGAIN, HUB, IS_LOADED, one, cuts=cuts, since=since)


def test_of_a_stage_over_two_tables_the_one_that_was_not_begun_again_is_still_checked() -> None:
    """As soon as the hub outlived one of them, what it lacked of the other was not looked at."""
    both = "SELECT * FROM parsed.parsed_s__t JOIN parsed.parsed_s__late USING (id)"
    kinds = {**BEGUN_AGAIN, TableName("vault", "stg_s__t"): Kind(OF_POSITIONS, both)}
    cuts = {"s": replace(CUTS["s"], snapshots={"t": 5, "late": 6}, published_at=BEGUN - timedelta(days=1))}
    one = frozenset(load for load in OF_HUB if load.stage == "stg_s__t")
    for counts, says in (([4, 0, 1], r"parsed\.parsed_s__late lacks 3"), ([1, 0, 1], r"vault\.hub_of_two lacks 2")):
        answers = {'FROM "raw_s"."late"': [counts], **PARSED_IS_LOADED, "count_if(load_date": [[2, 0]]}
        with pytest.raises(LakehouseError, match=says):
            check(kinds, HUB, answers, one, cuts=cuts, since=BEGUN - timedelta(days=2))


def test_a_table_stands_since_it_was_made_anew_or_its_oldest_snapshot(tmp_path: Path) -> None:
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("vault")
    table = catalog.create_table("vault.hub", Schema())
    assert asked._stands_since(catalog, TableName("vault", "hub")) is None
    assert asked._stands_since(catalog, TableName("vault", "none")) is None
    table.append(table.schema().as_arrow().empty_table())
    first = catalog.load_table("vault.hub").metadata.snapshots[0].timestamp_ms
    table.append(table.schema().as_arrow().empty_table())
    assert asked._stands_since(catalog, TableName("vault", "hub")) == datetime.fromtimestamp(first / 1000, UTC)
    catalog.load_table("vault.hub").transaction().set_properties(
        {MADE_ANEW: "2026-11-02 01:00:00.000000 UTC"}
    ).commit_transaction()
    assert asked._stands_since(catalog, TableName("vault", "hub")) == datetime(2026, 11, 2, 1, tzinfo=UTC)


def test_while_the_project_does_not_parse_it_is_read_as_it_parsed_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A half-edited YAML refused every query of the past of the vault."""

    def broken(_: Any) -> dict[str, Any]:
        raise LakehouseError("the dbt project does not parse: a.yml")

    monkeypatch.setattr(asked, "load_manifest", broken)
    hub = {"name": "hub", "schema": "vault", "alias": "hub", "resource_type": "model"}
    node = {**hub, "config": {"materialized": "append_only"}, "depends_on": {"nodes": []}}
    last = {"nodes": {"model.a.hub": node}, "metadata": {"generated_at": "2026-11-02T01:00:00Z"}}
    monkeypatch.setattr(asked, "parsed_last", lambda _: last)
    assert asked._models(cast(Any, None)) == {"hub": Model(TableName("vault", "hub"), loads=True)}
    assert "as it last parsed, at 2026-11-02T01:00:00Z: the dbt project does not parse: a.yml" in caplog.text
    monkeypatch.setattr(asked, "parsed_last", lambda _: None)
    with pytest.raises(LakehouseError, match="is not known without its project: the dbt project does not parse"):
        asked._models(cast(Any, None))


LEFT = Cut("left", 1, 10, {})
MADE = datetime(2026, 11, 1, tzinfo=UTC)
OF_PIN = tuple(
    replace(cut, at=MADE - timedelta(days=ago), published_at=MADE + timedelta(seconds=1 - ago))
    for ago, cut in enumerate(CUTS.values())
)


def of_pin(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[Cut, ...], there: str, has_later: bool = False
) -> states.State:
    """The state of a pin; what `meta.cuts` has of its positions, and which sources had a cut when it was made."""

    def newest(moment: Moment) -> tuple[Cut, ...]:
        assert moment == Moment(at=MADE)
        return tuple(Cut(source, 1, 1, {}) for source in there.split())

    def has_others_after(sources: set[str], at: datetime, published_at: datetime) -> bool:
        assert (sources, at, published_at) == ({"s", "bank"}, MADE, MADE + timedelta(seconds=1))
        return has_later

    cuts = SimpleNamespace(at=lambda *_: listed, newest=newest, has_others_after=has_others_after)
    return state_of(monkeypatch, cuts, None)


def state_of(monkeypatch: pytest.MonkeyPatch, cuts: Any, others: str | None) -> states.State:
    kept = Pinned({TableName("marts", "dim_t"): 5}, "s=2:0/4D,bank=1:0/9", others)
    monkeypatch.setattr(states, "Cuts", lambda _: cuts)
    monkeypatch.setattr(states, "open_catalog", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(states, "pinned", lambda *_: kept)
    found = states.state_at(cast(Any, None), Moment(pin="close"))
    assert found.snapshots == kept.snapshots
    return found


@pytest.mark.parametrize(("there", "others"), [("s bank", ()), ("s", ()), ("s bank left", ("left",))])
def test_a_pin_is_of_all_sources_that_had_a_cut_when_it_was_made(
    there: str, others: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made after a source had been removed left out of the hub what that source had brought."""
    found = of_pin(monkeypatch, OF_PIN, there)
    assert found.is_of_all and found.cuts == (*OF_PIN, *(Cut(source, 1, 1, {}) for source in others))


@pytest.mark.parametrize(
    ("others", "listed", "known"), [("", (), ()), ("left=1:0/A", (LEFT,), (LEFT,)), ("left=1:0/B", (LEFT,), None)]
)
def test_a_pin_that_names_the_cuts_of_other_sources_has_these_while_they_are_listed(
    others: str, listed: tuple[Cut, ...], known: tuple[Cut, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a new source shared a hub, no pin of before could be asked for it."""
    cuts = SimpleNamespace(at=lambda *_: OF_PIN, newest=lambda _: listed)
    found = state_of(monkeypatch, cuts, others)
    assert found.cuts == (*OF_PIN, *(known or ())) and found.is_of_all == (known is not None)


def test_a_pin_of_sources_that_were_idle_does_not_tell_what_another_one_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cuts were hours older than itself. What a source that was removed had brought since was missing in a hub."""
    found = of_pin(monkeypatch, OF_PIN, "s bank left", has_later=True)
    assert found.cuts == OF_PIN and not found.is_of_all


def test_a_pin_of_cuts_whose_time_nobody_knows_is_of_its_own_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_pin(monkeypatch, tuple(CUTS.values()), "s")
    assert found.cuts == tuple(CUTS.values()) and not found.is_of_all


def test_a_pin_whose_cut_is_listed_no_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was answered from the newest cut before it."""
    with pytest.raises(LakehouseError, match=r"the pin 'close' is of s=2:0/4D,bank=1:0/9, which meta\.cuts does not"):
        of_pin(monkeypatch, (replace(OF_PIN[0], lsn=76), OF_PIN[1]), "")
