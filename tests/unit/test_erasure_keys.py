"""Keys as a user writes them, as the source prints them, as the lake holds them; and who is refused among many."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from pgoutput_record import scratch_database
from throwaway_postgres import throwaway_postgres

from erasure import origins, run, steps
from erasure.key_periods import NEVER, Period
from erasure.proof import Search
from erasure.run import HOW_TO_END
from erasure.steps import Erasure
from erasure.subjects import as_printed, held_by_source, named_now, source_texts, typing_of
from erasure.tombstones import Tombstone
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import FORMERLY, renamed
from ingestion.sources.postgres.catalog.describe import describe
from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError

KEPT, ASKED = frozenset({"id"}), "2026-05-04T11:00:00+00:00"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def table(name: str = "people", *key: str) -> RawTable:
    key = key or ("id",)
    return RawTable(
        source="shop", name=name, description="", load=LoadPolicy(), maintenance=None, owners=(),
        columns=tuple(Column(name=n, data_type=None, description="") for n in (*key, "name")),
        raw=RawPolicy(relation=f"public.{name}", key=key, personal=("name",)), vault=None,
    )  # fmt: skip


def shop(*tables: RawTable) -> Declarations:
    return Declarations(sources=(Source(name="shop", description="", load=LoadPolicy(), tables=tables),))


def column(type_oid: int, type_name: str, typmod: int = -1) -> TableFacts:
    own = ColumnFacts("id", 1, type_name, type_oid, type_name, "b", typmod, type_oid, typmod, "", lake="id")
    return TableFacts(oid=1, filenode=1, relkind="r", replica_identity="d", key=("id",), columns=(own,))


@pytest.mark.parametrize(
    ("facts", "printed", "again"),
    [
        (column(16, "bool"), "t", "True"), (column(17, "bytea"), "\\x00ff", "\\x00ff"),
        (column(23, "int4"), "-4", "-4"), (column(1082, "date"), "2024-02-29", "2024-02-29"),
        (column(1083, "time"), "24:00:00", "24:00:00.000000"),
        (column(1083, "time"), "01:02:03.000004", "01:02:03.000004"), (column(1042, "bpchar", 8), "ab  ", "ab  "),
        (column(1114, "timestamp"), "2024-02-29 01:02:03.5", "2024-02-29 01:02:03.500000"),
        (column(1184, "timestamptz"), "2024-02-29 01:02:03+00", "2024-02-29 01:02:03+00:00"),
        (column(1700, "numeric", 4 + (10 << 16) + 2), "1.50", "1.50"), (column(25, "text"), "Ann", "Ann"),
    ],
)  # fmt: skip
def test_a_key_of_the_lake_is_a_text_again_that_the_source_reads(facts: TableFacts, printed: str, again: str) -> None:
    assert source_texts(table(), facts, typing_of(table(), facts, {})({"id": printed})) == {"id": again}


def test_an_old_key_is_read_by_the_name_that_its_column_had_then() -> None:
    typed = typing_of(table(), column(23, "int4"), {f"{FORMERLY}id": "number\t2026-05-04 12:00:00.000000 UTC"})
    assert typed({"number": "4"}) == typed({"id": "4"}) == (4,)


@pytest.mark.parametrize(
    ("facts", "formerly", "printed"),
    [
        (column(16, "bool"), "true", "t"), (column(1083, "time"), "36000000000", "10:00:00"),
        (column(1114, "timestamp"), "2024-01-01 00:00:00.500000", "2024-01-01 00:00:00.5"),
        (column(1184, "timestamptz"), "2024-01-01T00:00:00.5Z", "2024-01-01 00:00:00.5+00"),
    ],
)  # fmt: skip
def test_an_old_key_that_an_earlier_version_landed_of_a_topic_is_read(
    facts: TableFacts, formerly: str, printed: str
) -> None:
    typed = typing_of(table(), facts, {})
    assert typed({"id": formerly}) == typed({"id": printed})


def test_an_old_key_that_is_no_value_of_the_type_is_told() -> None:
    """It ended in a traceback."""
    with pytest.raises(LakehouseError, match=r"shop\.people: key column 'id' is int4, .*--drop-tables"):
        typing_of(table(), column(23, "int4"), {})({"id": "a"})


def test_an_old_key_that_the_lake_cannot_hold_is_the_key_that_landed() -> None:
    """One `infinity` ended every erasure of its table."""
    facts, old = column(1082, "date"), {"id": "infinity"}
    for policy, landed in (("clamp", date(9999, 12, 31)), ("null", None)):
        raw = table().raw.model_copy(update={"on_unrepresentable": policy})
        assert typing_of(table().model_copy(update={"raw": raw}), facts, {})(old) == (landed,)
    with pytest.raises(
        LakehouseError, match=r"shop\.people: key column 'id' .*\(infinity\): declare meta\.raw\.on_unrep"
    ):
        typing_of(table(), facts, {})(old)


def test_an_old_key_of_an_unknown_name_is_told_with_the_way_out() -> None:
    """A bare KeyError ended every erasure of a table whose key the source had renamed under an alias."""
    facts = column(23, "int4")
    facts = replace(facts, columns=(replace(facts.columns[0], lake="person_id"),))
    with pytest.raises(
        LakehouseError, match=r"shop\.people: an earlier key names number and not 'id'.*person_id"
    ) as told:
        typing_of(table(), facts, {})({"number": "4"})
    ((name, stated),) = re.findall(r"property (\S+) of its raw table, as (\S.*)", str(told.value))
    assert typing_of(table(), facts, {name: stated.replace("…", "number")})({"number": "4"}) == (4,)


def test_an_old_key_is_not_read_by_a_name_that_another_column_has_by_now() -> None:
    """Key (a, b): `a` became `x`, then `b` became `a`."""
    noon, one = datetime(2026, 5, 4, 12, tzinfo=UTC), column(23, "int4").columns[0]
    facts = replace(
        column(23, "int4"), columns=(replace(one, name="x", lake="x"), replace(one, name="a", number=2, lake="a"))
    )
    typed = typing_of(table("people", "x", "a"), facts, renamed("a", "x", noon, {}) | renamed("b", "a", noon, {}))
    assert typed({"a": "1", "b": "2"}, noon - timedelta(hours=1)) == (1, 2) == typed({"x": "1", "a": "2"}, noon)


@pytest.fixture(scope="module")
def source() -> Iterator[psycopg.Connection[Any]]:
    with (
        throwaway_postgres() as url,
        scratch_database(url) as database,
        psycopg.connect(database, autocommit=True, prepare_threshold=None) as c,
    ):
        c.execute("CREATE DOMAIN code AS varchar(4) CHECK (value <> 'no')")
        c.execute("CREATE DOMAIN price AS numeric(6, 2)")
        yield c


def facts_of(source: psycopg.Connection[Any], kind: str, value: str) -> TableFacts:
    """Of a table whose key is of this type, with one row."""
    source.execute("DROP TABLE IF EXISTS people")
    source.execute("DROP PUBLICATION IF EXISTS p")
    source.execute(f"CREATE TABLE people (id {kind} PRIMARY KEY, name text)")
    source.execute("INSERT INTO people VALUES (%s, 'Ann')", (value,))
    source.execute("CREATE PUBLICATION p FOR TABLE people")
    facts = describe(source, table(), "p")
    return replace(facts, columns=tuple(replace(column, lake=column.name) for column in facts.columns))


@pytest.mark.stack
@pytest.mark.parametrize(
    ("kind", "written", "printed"),
    [
        ("int", "042", "42"), ("boolean", "true", "t"), ("char(4)", "ab", "ab  "), ("inet", "10.0.0.1", "10.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/8"), ("bytea", "\\x0aFF", "\\x0aff"), ("time", "24:00", "24:00:00"),
        ("varchar(4)", "abcd", "abcd"), ("numeric(6,2)", "1.5", "1.50"), ("code", "abcd", "abcd"),
        ("bit(3)", "101", "101"), ("time(0)", "01:02:03", "01:02:03"), ("text[]", "{a,b}", "{a,b}"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ],
)  # fmt: skip
def test_a_key_is_printed_as_the_stream_prints_it_and_found_in_the_source_again(
    source: psycopg.Connection[Any], kind: str, written: str, printed: str
) -> None:
    facts = facts_of(source, kind, written)
    assert as_printed(source, table(), facts, {"id": written}) == {"id": printed}
    found = source_texts(table(), facts, typing_of(table(), facts, {})({"id": printed}))
    assert "still holds personal data of people" in (held_by_source(source, table(), facts, [found], KEPT) or "")
    source.execute("UPDATE people SET name = NULL")
    assert held_by_source(source, table(), facts, [found], KEPT) is None


@pytest.mark.stack
@pytest.mark.parametrize(
    ("kind", "there", "written", "message"),
    [
        ("varchar(4)", "Anna", "Annabel", r"id=Annabel is no character varying\(4\), which would hold Anna"),
        ("code", "Anna", "Annabel", "value too long for type character varying"),
        ("price", "1.01", "1.005", "id=1.005 is no price, which would hold 1.01"),
        ("numeric(6,2)", "1.01", "1.005", r"id=1.005 is no numeric\(6,2\), which would hold 1.01"),
        ("bit(3)", "100", "1", r"id=1 is no bit\(3\), which would hold 100"),
        ("code", "Anna", "no", "violates check constraint"),
        ("int", "1", "x", 'invalid input syntax for type integer: "x"'),
    ],
)
def test_a_key_that_its_type_would_make_anothers_is_refused(
    source: psycopg.Connection[Any], kind: str, there: str, written: str, message: str
) -> None:
    facts = facts_of(source, kind, there)
    with pytest.raises(LakehouseError, match=rf"shop\.people: .*{message}"):
        as_printed(source, table(), facts, {"id": written})


@pytest.mark.stack
@pytest.mark.parametrize("policy", ["clamp", "null"])
@pytest.mark.parametrize(
    ("kind", "text", "other"),
    [
        ("date", "infinity", "2026-01-01"), ("date", "-infinity", "2026-01-01"),
        ("timestamp", "10000-01-01", "2026-01-01"), ("timestamptz", "infinity", "2026-01-01"),
        ("timestamptz", "0044-03-15 BC", "2026-01-01"), ("numeric(6,2)", "NaN", "1"),
        ("date", "2026-01-01", "infinity"),
    ],
)  # fmt: skip
def test_a_key_that_the_lake_cannot_hold_is_found_in_the_source(
    source: psycopg.Connection[Any], kind: str, text: str, other: str, policy: str
) -> None:
    facts = facts_of(source, kind, text)
    of = table().model_copy(update={"raw": table().raw.model_copy(update={"on_unrepresentable": policy})})
    typed = typing_of(of, facts, {})
    keys = [source_texts(of, facts, typed(as_printed(source, of, facts, {"id": id}))) for id in (text, other)]
    assert "still holds personal data" in (held_by_source(source, of, facts, keys[:1], KEPT) or "")
    assert held_by_source(source, of, facts, keys[1:], KEPT) is None


@pytest.fixture
def erased(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """Keys by run of the steps; the source holds 5, and 70, which 7 became."""
    ran: list[list[dict[str, str]]] = []

    def steps(settings: Any, writer: Any, states: Any, plan: Any, say: Any, mirrors: Any) -> Any:
        def act(keys: list[dict[str, str]]) -> Erasure:
            assert [str(key) for (key,) in plan.periods] == [key["id"] for key in keys]
            ran.append(keys)
            return Erasure([key["id"] for key in keys])

        return SimpleNamespace(run=act)

    def plan_of(
        settings: Any, catalog: Any, manifest: Any, table: RawTable, facts: Any, keys: Any, alike: Any
    ) -> run.Plan:
        periods = {(int(key["id"]),): (Period((int(key["id"]),)),) for key in keys}
        if (7,) in periods:
            periods[(7,)] += (Period((70,), (0, 1, 1), NEVER), Period((71,), (0, 1, 1), (0, 2, 1)))
        return run.Plan(table, periods, (), (), 0, {})

    def held(source: Any, table: RawTable, facts: Any, keys: Any, kept: Any) -> str | None:
        return next((f"held {key['id']}" for key in keys if key["id"] in ("5", "70", "71")), None)

    def printed(source: Any, table: RawTable, facts: Any, key: dict[str, str]) -> dict[str, str]:
        if not key["id"].isdigit():
            raise LakehouseError(f"{key['id']} is no number")
        return key

    stones = [Tombstone("shop", name, {"id": n}, ASKED, "") for name, n in
              [("gone", "1"), ("orders", "5"), *(("people", n) for n in ("5", "6", "7", "x", "8"))]]  # fmt: skip
    monkeypatch.setattr(origins, "connect_source", lambda *given: nullcontext())
    monkeypatch.setattr(
        run, "up_to_date_alone", lambda *given: nullcontext(SimpleNamespace(catalog=SimpleNamespace(name="lake")))
    )
    monkeypatch.setattr(run, "no_next_tables", lambda *given: nullcontext())
    monkeypatch.setattr(run, "drop_next", lambda *given: None)
    monkeypatch.setattr(run, "mirrors_held", lambda *given: nullcontext())
    monkeypatch.setattr(run, "no_maintenance", lambda *given: nullcontext())
    monkeypatch.setattr(run, "no_loads", lambda *given: nullcontext())
    position = SimpleNamespace(facts=column(23, "int4"), state="streaming")
    monkeypatch.setattr(run, "_position", lambda *given: position)
    raw = SimpleNamespace(properties=renamed("number", "id", NOON, {}))
    catalog = SimpleNamespace(load_table=lambda name: raw, close=lambda: None)
    monkeypatch.setattr(run, "open_catalog", lambda settings: catalog)
    monkeypatch.setattr(run, "remembered", lambda *given: tuple(stones))
    for module, name, stub in (
        (run, "Erasing", steps), (run, "make_plan", plan_of),
        (origins, "held_by_source", held), (origins, "as_printed", printed),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, stub)
    return ran


def test_one_who_is_in_the_source_again_is_in_nobody_elses_way(erased: list[list[dict[str, str]]]) -> None:
    declared = shop(table(), table("orders"))
    done, problems = run.repeat(cast(Any, None), declared, {})
    assert erased == [[{"id": "6"}, {"id": "8"}]]
    assert [erasure.subjects for erasure in done] == [["6", "8"]]
    assert problems == [
        "raw_shop.gone is no longer declared: declare it, or drop it",
        "shop.orders id=5: held 5",
        "x is no number",
        "shop.people id=5: held 5",
        "shop.people id=7: held 70",
        HOW_TO_END,
    ]


def test_one_alone_who_is_in_the_source_is_refused(erased: list[list[dict[str, str]]]) -> None:
    declared = shop(table())
    for key, reason in (("id=5", "held 5"), ("id=7", "held 70"), ("id=x", "no number")):
        with pytest.raises(LakehouseError, match=reason):
            run.erase(cast(Any, None), declared, {}, "shop.people", [key])
    assert erased == []


def test_one_whose_delete_has_not_come_by_its_topic_is_in_nobody_elses_way(
    erased: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database had deleted them, the connector was behind, and their rows landed after the proof."""
    monkeypatch.setattr(run, "origin_of", lambda settings, table: nullcontext(origins.Database(cast(Any, None), table)))
    monkeypatch.setattr(origins, "facts_there", lambda source, table, facts: facts)
    monkeypatch.setattr(
        origins, "awaited", lambda catalog, plan, facts: ["late" * (key == (8,)) or None for key in plan.periods]
    )
    people = table().model_copy(update={"kind": "debezium"})
    _, problems = run.repeat(cast(Any, None), shop(people), {})
    assert erased == [[{"id": "6"}]] and "shop.people id=8: late" in problems
    with pytest.raises(LakehouseError, match=r"shop\.people id=8: late"):
        run.erase(cast(Any, None), shop(people), {}, "shop.people", ["id=8"])
    assert len(erased) == 1


def test_a_tombstone_names_its_columns_as_they_were_called_then() -> None:
    """A KeyError ended the repetition for every later table of every source."""
    before, after, one = NOON - timedelta(hours=1), NOON + timedelta(hours=1), column(23, "int4").columns[0]
    names = {"x": 1, "a": 2, "code": 3}
    facts = replace(column(23, "int4"), columns=tuple(replace(one, name=n, number=k, lake=n) for n, k in names.items()))
    properties = renamed("a", "x", NOON, {}) | renamed("b", "a", NOON, {})
    people = table("people", "x", "a")
    assert named_now(people, facts, properties, {"a": "1", "b": "2"}, before) == {"x": "1", "a": "2"}
    assert named_now(people, facts, properties, {"a": "2", "x": "1"}, after) == {"x": "1", "a": "2"}
    for other in ({"code": "42"}, {"a": "1"}, {"a": "1", "b": "2", "code": "3"}, {"gone": "1"}):
        with pytest.raises(LakehouseError, match=r"by a key that is not the declared one \(x, a\): ") as told:
            named_now(people, facts, properties, other, before)
        assert FORMERLY not in str(told.value), "42 would be read as the key of somebody else"
    with pytest.raises(LakehouseError, match=r"key column y is not among those that were ingested: `lakehouse ingest"):
        named_now(table("people", "y"), facts, properties, {"a": "1"}, before)


def test_one_who_was_erased_by_another_key_is_in_nobody_elses_way(
    erased: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stones = [Tombstone("shop", "people", key, ASKED, "") for key in ({"email": "a@b"}, {"number": "6"}, {"id": "6"})]
    monkeypatch.setattr(run, "remembered", lambda *given: tuple(stones))
    done, problems = run.repeat(cast(Any, None), shop(table()), {})
    assert erased == [[{"id": "6"}]] and len(done) == 1
    assert problems[0].startswith("shop.people email=a@b: erased by a key that is not the declared one (id)")


def test_the_check_finds_who_was_erased_by_another_key_and_searches_for_the_others(
    erased: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stones = [Tombstone("shop", "people", key, ASKED, "") for key in ({"email": "a@b"}, {"number": "6"})]
    searched: list[Any] = []
    monkeypatch.setattr(run, "remembered", lambda *given: tuple(stones))
    monkeypatch.setattr(run, "open_io", lambda settings: None)
    monkeypatch.setattr(run, "parts_of", lambda catalog, parts: parts)
    monkeypatch.setattr(run, "strays_of", lambda settings, catalog, io, plan: searched.append([*plan.periods]) or [])
    monkeypatch.setattr(run, "search", lambda io, parts: Search())
    [found] = run.verify(cast(Any, None), {}, table()).traces
    assert searched == [[(6,)]] and (found.table, found.path) == ("raw_shop.people", f"erasures/{stones[0].id}.json")
    assert "not the declared one (id)" in found.why


def test_a_tombstone_of_a_former_name_stays_the_one_of_its_subject() -> None:
    """A second one would have held when the first was ended."""
    stone = Tombstone("shop", "people", {"number": "6"}, ASKED, "")
    plan = run.Plan(table(), {(6,): (Period((6,)),)}, (), (), 0, {}, stones={"id=6": stone})
    given: Any = None
    erasing = steps.Erasing(given, SimpleNamespace(catalog=None), given, plan, given, given)  # type: ignore[arg-type]
    assert erasing._stones({stone.id: stone}, [{"id": "6"}]) == [stone]
