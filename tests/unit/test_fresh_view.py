"""The text of a fresh view, on an engine inside this process, beside a plain replay of the log."""

import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from pyiceberg.types import DecimalType, DoubleType, IcebergType, IntegerType, StringType, TimeType

from ingestion.mirrors.fresh_sql import Kind, spark_text, trino_text
from ingestion.mirrors.view_parts import Column, FreshView, Position, named_snapshots
from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.schema.facts import ColumnFacts
from ingestion.schema.former_names import Called
from lakehouse.catalog.views.current_views import as_loaded, is_fresh, is_plain, is_short, past_of
from lakehouse.catalog.views.mirrored import tag_of
from tests.marks import seeds

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
PAST = 'SELECT "id" FROM lake.parsed.parsed_s__t'
EPOCH, CUT = 1, 100
AT = Position(7, EPOCH, CUT, BEGIN, "lakehouse_regular_1")
DIALECT = [  # Trino's → DuckDB's
    (r" FOR VERSION AS OF (\d+|'[^']*')", ""),
    (r"\bcontains\(", "list_contains("),
    (r"last_value\((CASE .*? END)\) IGNORE NULLS OVER", r"last_value(\1 IGNORE NULLS) OVER"),
    (r"TIMESTAMP '([^']*) UTC'", r"TIMESTAMPTZ '\1+00'"),
]
Row = dict[str, Any]


def column(name: str, kind: IcebergType, shown: IcebergType | None = None) -> Column:
    facts = ColumnFacts(name, 1, "text", 25, "text", "b", -1, 25, -1, "textout", lake=name)
    return Column(SpelledColumn(facts, kind, None, (Called(name),)), name, shown or kind)


def view(*columns: Column, key: tuple[str, ...] = ("id",), nulls: tuple[str, ...] = ()) -> FreshView:
    of_key = [c.source for name in key for c in columns if c.name == name]
    return FreshView("lake", "lake", "s", "t", columns, of_key, nulls)


WIDE = view(column("id", IntegerType()), column("name", StringType()), column("big", StringType()))


class Lake:
    """A mirror at `CUT`, the raw log after it and the cuts, with every change since in one transaction each."""

    def __init__(self, mirror: dict[int, tuple[Any, ...]]) -> None:
        self.db = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'; ATTACH ':memory:' AS lake")
        for schema in ("raw_s", "mirror_s", "meta"):
            self.db.execute(f"CREATE SCHEMA lake.{schema}")
        columns = "id integer, name varchar, big varchar"
        self.db.execute(f"CREATE TABLE lake.mirror_s.t ({columns})")
        self.db.execute(
            f"CREATE TABLE lake.raw_s.t ({columns}, _op varchar, _epoch integer, _commit_lsn bigint, _seq bigint,"
            " _ingested_at timestamptz, _unchanged varchar[], _old_key varchar)"
        )
        self.db.execute(
            "CREATE TABLE lake.meta.cuts (source varchar, epoch integer, cut_lsn bigint, published_at timestamptz,"
            " snapshots map(varchar, varchar))"
        )
        for row in mirror.values():
            self.db.execute("INSERT INTO lake.mirror_s.t VALUES (?, ?, ?)", row)

    def land(self, lsn: int, *events: Row) -> None:
        for seq, event in enumerate(events):
            row = {"_epoch": EPOCH, "_commit_lsn": lsn, "_seq": seq, "_ingested_at": at(lsn)} | event
            names = ", ".join(row)
            self.db.execute(f"INSERT INTO lake.raw_s.t ({names}) VALUES ({', '.join('?' * len(row))})", [*row.values()])

    def cut(self, lsn: int, covers: bool = True, after: int = 1) -> None:
        tables = "MAP {'t': '1', 'u': '2'}" if covers else "MAP {'u': '2'}"
        self.db.execute(f"INSERT INTO lake.meta.cuts SELECT 's', {EPOCH}, {lsn}, ?, {tables}", [at(lsn, after)])

    def rows(self, of: FreshView = WIDE, position: Position = AT, *, kind: Kind = Kind.LONG) -> list[tuple[Any, ...]]:
        """What the text says."""
        text = trino_text(of, position, "SELECT 1", kind)
        assert text is not None
        for there, here in DIALECT:
            text = re.sub(there, here, text)
        return sorted(self.db.execute(text).fetchall(), key=repr)


def at(lsn: int, after: int = 0) -> datetime:
    return BEGIN + timedelta(seconds=lsn, microseconds=after)


def full(op: str, key: int | None, name: str | None = None, big: str | None = None, **more: Any) -> Row:
    return {"_op": op, "id": key, "name": name, "big": big} | more


def update(key: int, name: str | None) -> Row:
    """One that leaves the large value out."""
    return full("u", key, name, None, _unchanged=["big"])


def lake() -> Lake:
    return Lake({1: (1, "one", "big 1"), 2: (2, "two", None)})


def test_rows_that_nothing_touched_are_the_mirrors_and_the_others_the_newest_of_raw() -> None:
    it = lake()
    it.land(110, full("u", 1, "uno", "x"), full("c", 3, "three", "y"))
    it.land(120, full("d", 1), full("u", 3, "tres", None))
    it.cut(110)
    assert it.rows() == [(1, "uno", "x"), (2, "two", None), (3, "three", "y")], "as of the cut, not of raw"
    it.cut(120)
    assert it.rows() == [(2, "two", None), (3, "tres", None)]


def test_without_a_cut_after_it_the_view_is_the_mirror() -> None:
    it = lake()
    it.land(110, full("d", 1))
    assert it.rows() == [(1, "one", "big 1"), (2, "two", None)]


def test_a_value_that_an_update_left_out_is_the_one_before_it_in_the_tail_or_in_the_mirror() -> None:
    it = lake()
    it.land(110, update(1, "a"), update(2, "b"))
    it.land(120, full("u", 2, "c", "carried"))
    it.land(130, update(2, "d"))
    it.land(140, full("d", 1), full("c", 1, "again", None))
    it.land(150, update(1, "kept"))
    it.cut(130)
    assert it.rows() == [(1, "a", "big 1"), (2, "d", "carried")]
    it.cut(150)
    assert it.rows() == [(1, "kept", None), (2, "d", "carried")], "a new life of the key does not go on from the old"


def test_a_null_is_not_taken_for_a_value_that_another_column_of_a_former_name_left_out() -> None:
    it, swapped = lake(), at(115)
    columns = [
        replace(c, source=replace(c.source, names=(Called(c.name, since=swapped), Called(former, until=swapped))))
        for c, former in zip(WIDE.columns, ("id", "big", "name"), strict=True)
    ]
    it.land(110, update(1, None))  # as it landed before `big` became `name`: the value of `name` is left out
    it.cut(110)
    assert it.rows(view(*columns)) == [(1, "one", None), (2, "two", None)]
    it.land(120, update(1, None))
    it.cut(120)
    assert it.rows(view(*columns)) == [(1, None, None), (2, "two", None)]


@pytest.mark.parametrize(
    ("kind", "oid", "may_be"),
    [
        (StringType(), 25, True),
        (StringType(), 2950, False),
        (DecimalType(24, 2), 1700, False),
        (DecimalType(25, 2), 1700, True),
        (IntegerType(), 23, False),
    ],
)
def test_values_that_postgres_never_stores_apart_are_not_looked_for(kind: IcebergType, oid: int, may_be: bool) -> None:
    plain = column("v", kind)
    facts = replace(plain.source.source, type_oid=oid)
    assert replace(plain, source=replace(plain.source, source=facts)).may_be_left_out == may_be


def test_a_truncate_holds_the_view_before_its_commit() -> None:
    it = lake()
    it.land(110, full("c", 3, "three", "x"))
    it.land(120, {"_op": "t"}, full("c", 1, "new", "y"))
    it.cut(120)
    assert it.rows() == [(1, "one", "big 1"), (2, "two", None), (3, "three", "x")]


def test_a_key_change_that_left_a_value_out_holds_the_view_before_its_commit() -> None:
    it = lake()
    it.land(110, full("u", 2, "before", "x"))
    it.land(120, full("d", 1), full("c", 5, "moved", None, _unchanged=["big"], _old_key='{"id":"1"}'))
    it.land(130, full("d", 2))
    it.cut(130)
    assert it.rows() == [(1, "one", "big 1"), (2, "before", "x")]


def test_a_key_change_that_carries_all_is_followed() -> None:
    it = lake()
    it.land(110, full("d", 1), full("c", 5, "moved", "big 1", _old_key='{"id":"1"}'))
    it.cut(110)
    assert it.rows() == [(2, "two", None), (5, "moved", "big 1")]


def test_rows_that_land_while_the_table_is_in_no_cut_are_not_shown_until_the_next_refresh() -> None:
    it = lake()
    it.land(110, full("d", 2))
    it.cut(110)
    it.land(120, full("c", 9, "of a snapshot under way", "x"))
    it.cut(120, covers=False)
    assert it.rows() == [(1, "one", "big 1")]
    it.cut(130)
    assert it.rows() == [(1, "one", "big 1")]
    assert len(it.rows(position=Position(7, EPOCH, 110, at(125)))) == 3, "one that was refreshed after it"


def test_another_epoch_waits_for_the_next_refresh() -> None:
    it = lake()
    it.land(110, full("d", 1, _epoch=2))
    it.cut(110)
    assert len(it.rows()) == 2


@pytest.mark.parametrize("kind", Kind)
def test_the_text_holds_the_one_that_has_a_past(kind: Kind) -> None:
    text = trino_text(WIDE, AT, PAST, kind)
    assert text is not None and is_fresh(text) and past_of(text) == PAST and past_of(PAST) == PAST


@pytest.mark.parametrize("kind", Kind)
def test_who_reads_with_rights_of_his_own_gets_the_text_that_dbt_gave(kind: Kind) -> None:
    texts = {"trino": trino_text(WIDE, AT, PAST, kind), "spark": spark_text(WIDE, AT, kind)}
    fresh = {"version-id": 2, "representations": [{"type": "sql", "dialect": d, "sql": t} for d, t in texts.items()]}
    plain = {"version-id": 1, "representations": [{"type": "sql", "dialect": "trino", "sql": PAST}]}
    handed_out = as_loaded({"current-version-id": 2, "versions": [plain, fresh]})
    assert handed_out["versions"] == [plain, {**plain, "version-id": 2}]


def test_spark_has_no_text_for_a_time_of_day() -> None:
    assert spark_text(WIDE, AT) is not None
    assert spark_text(view(column("id", IntegerType()), column("at", IntegerType(), TimeType())), AT) is None


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_after_a_random_history_the_view_is_what_a_replay_gives(seed: int) -> None:
    rng = random.Random(seed)
    state: dict[int, tuple[Any, ...]] = {
        n: (n, f"m{n}", rng.choice([None, f"big {n}"])) for n in range(rng.randint(0, 6))
    }
    it, wanted, followed = Lake(state), dict(state), dict(state)
    truncated = False
    for lsn in range(110, 110 + 10 * rng.randint(1, 12), 10):
        events: list[Row] = []
        for _ in range(rng.randint(1, 3)):
            events += step(rng, state, f"{lsn}")
        it.land(lsn, *events)
        truncated |= any(event["_op"] == "t" for event in events)
        followed = followed if truncated else dict(state)
        if rng.random() < 0.8:
            it.cut(lsn)
            wanted = followed
        assert it.rows() == sorted(wanted.values(), key=repr), (seed, lsn)


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_after_a_random_regular_history_the_short_text_says_what_a_replay_gives(seed: int) -> None:
    rng = random.Random(seed)
    state: dict[int, tuple[Any, ...]] = {n: (n, f"m{n}", None) for n in range(rng.randint(0, 6))}
    it = Lake(state)
    for lsn in range(110, 110 + 10 * rng.randint(1, 12), 10):
        events = [event for _ in range(rng.randint(1, 3)) for event in step(rng, state, f"{lsn}", regular=True)]
        it.land(lsn, *events)
        it.cut(lsn)
        assert it.rows(kind=Kind.SHORT) == it.rows() == sorted(state.values(), key=repr), (seed, lsn)


@pytest.mark.parametrize("kind", [Kind.LONG, Kind.SHORT])
def test_keys_of_several_columns_are_compared_and_numbers_with_fractions_by_their_text(kind: Kind) -> None:
    it, pairs = lake(), view(*WIDE.columns, key=("id", "name"))
    it.land(110, full("d", 1, "one"), full("c", 1, "uno", "x"), full("u", 2, "two", "y"))
    it.cut(110)
    assert it.rows(pairs, kind=kind) == [(1, "uno", "x"), (2, "two", "y")]
    floats = view(column("id", DoubleType()), column("name", StringType()))
    assert "coalesce(CAST(m.\"id\" AS varchar), '')" in (trino_text(floats, AT, "SELECT 1", kind) or "")


@pytest.mark.parametrize("kind", [Kind.LONG, Kind.SHORT])
def test_a_row_whose_key_is_null_in_the_mirror_follows_its_changes(kind: Kind) -> None:
    """It was shown twice after an update, and stayed after a delete: a null equals nothing, not even itself."""
    it = Lake({1: (None, "old", "b"), 2: (2, "two", "b")})
    by_id = view(*WIDE.columns, nulls=("id",))
    it.land(110, full("u", None, "new", "b"))
    it.cut(110)
    assert it.rows(by_id, kind=kind) == [(2, "two", "b"), (None, "new", "b")]
    it.land(120, full("d", None))
    it.cut(120)
    assert it.rows(by_id, kind=kind) == [(2, "two", "b")]
    it.land(130, full("c", None, "again", "b"))
    it.cut(130)
    assert it.rows(by_id, kind=kind) == [(2, "two", "b"), (None, "again", "b")]


@pytest.mark.parametrize("kind", [Kind.LONG, Kind.SHORT])
def test_a_null_in_one_column_of_a_key_is_no_empty_text(kind: Kind) -> None:
    it = Lake({1: (1, None, "of null"), 2: (1, "", "of none"), 3: (2, "", "other")})
    pairs = view(*WIDE.columns, key=("id", "name"), nulls=("name",))
    it.land(110, full("u", 1, None, "new"), full("d", 2, ""))
    it.cut(110)
    assert it.rows(pairs, kind=kind) == [(1, "", "of none"), (1, None, "new")]


@pytest.mark.parametrize("kind", [Kind.LONG, Kind.SHORT])
def test_a_null_that_the_mirror_has_not_needs_no_more_than_an_equal_sign(kind: Kind) -> None:
    """A text of each key would read all files of the mirror at a lookup."""
    it = lake()
    it.land(110, full("c", None, "new", "x"), full("u", None, "newer", "x"))
    it.cut(110)
    assert it.rows(kind=kind) == [(1, "one", "big 1"), (2, "two", None), (None, "newer", "x")]
    assert 'ON m."id" = t._lh_key_0' in (trino_text(WIDE, AT, "SELECT 1", kind) or "")


def test_the_short_text_reads_no_cuts_and_looks_at_no_more_than_the_versions_of_a_key() -> None:
    text = trino_text(WIDE, AT, "SELECT 1", Kind.SHORT) or ""
    assert "meta" not in text and "OVER ()" not in text
    assert "FOR VERSION AS OF 'lakehouse_regular_1' AS r" in text, "what comes later may not be regular"


@pytest.mark.parametrize("kind", Kind)
def test_every_text_tells_which_one_it_is(kind: Kind) -> None:
    text = trino_text(WIDE, AT, PAST, kind) or ""
    assert (is_short(text), is_plain(text)) == (kind == Kind.SHORT, kind == Kind.PLAIN)


@pytest.mark.parametrize("kind", Kind)
def test_a_column_whose_lower_case_is_two_letters_is_called_as_trino_calls_it(kind: Kind) -> None:
    """Trino found no `İ` in raw or in the mirror, and the view could not be read."""
    wide = view(column("id", IntegerType()), column("İ", StringType()), column("kİ", StringType()), key=("id", "kİ"))
    for nulls in ((), ("kİ",)):
        text = trino_text(replace(wide, nulls=nulls), AT, PAST, kind) or ""
        assert '"i\u0307"' in text and '"ki\u0307"' in text and 'İ"' not in text
        assert ("contains(_unchanged, 'İ')" in text) == (kind == Kind.LONG), "raw has the names of the source"
    assert "`İ`" in (spark_text(wide, AT, kind) or ""), "Spark finds it"


def test_the_plain_text_reads_the_mirror_alone() -> None:
    it, text = lake(), trino_text(WIDE, AT, "SELECT 1", Kind.PLAIN) or ""
    assert it.rows(kind=Kind.PLAIN) == it.rows() == [(1, "one", "big 1"), (2, "two", None)]
    assert "raw_s" not in text and "meta" not in text and "JOIN" not in text
    assert f"FOR VERSION AS OF '{tag_of(AT.snapshot)}' AS m" in text and named_snapshots(text) == set()


def step(rng: random.Random, state: dict[int, tuple[Any, ...]], text: str, *, regular: bool = False) -> list[Row]:
    """A change of the table, and its events; with `regular` none that a short text cannot follow."""
    key, kind = rng.randint(0, 7), rng.random()
    if kind < 0.04 and not regular:
        state.clear()
        return [{"_op": "t"}]
    if key not in state:
        state[key] = (key, f"c{text}", rng.choice([None, f"c{text}"]))
        return [full("c", *state[key])]
    if kind < 0.2:
        del state[key]
        return [full("d", key)]
    if kind < 0.3 and (other := rng.randint(8, 12)) not in state:
        _, name, big = state.pop(key)
        state[other] = (other, name, big)
        return [full("d", key), full("c", *state[other], _old_key=f'{{"id":"{key}"}}')]
    if kind < 0.7 and not regular:
        state[key] = (key, f"u{text}", state[key][2])
        return [update(key, f"u{text}")]
    state[key] = (key, f"w{text}", rng.choice([None, f"w{text}"]))
    return [full("u", *state[key])]
