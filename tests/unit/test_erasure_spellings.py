"""A key is erased in all spellings that its database calls one key, and no other key is."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from pgoutput_record import scratch_database
from pyiceberg.catalog.sql import SqlCatalog
from test_erasure_keys import KEPT, table
from throwaway_postgres import throwaway_postgres

from erasure import run
from erasure.key_periods import Key, Period
from erasure.origins import Database
from erasure.plan import Plan, make_plan
from erasure.rows import SubjectRows
from erasure.steps import _spelled
from erasure.subjects import held_by_source
from erasure.tombstones import Tombstone
from ingestion.schema.facts import TableFacts
from ingestion.sources.postgres.catalog.describe import describe
from lakehouse.errors import LakehouseError

pytestmark = pytest.mark.stack
SCHEMA = pa.schema([
    ("id", pa.string()), ("name", pa.string()), ("_op", pa.string()), ("_epoch", pa.int32()),
    ("_commit_lsn", pa.int64()), ("_seq", pa.int64()), ("_old_key", pa.string()), ("_xid", pa.int64()),
    ("_ingested_at", pa.timestamp("us", "UTC")),
])  # fmt: skip

# The type as its extension, which the packaged server lacks, makes it: with operators in its own schema.
CITEXT = """
CREATE TYPE public.citext;
CREATE FUNCTION public.citextin(cstring) RETURNS public.citext IMMUTABLE STRICT LANGUAGE internal AS 'textin';
CREATE FUNCTION public.citextout(public.citext) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout';
CREATE TYPE public.citext (INPUT = public.citextin, OUTPUT = public.citextout, LIKE = text);
CREATE CAST (public.citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS public.citext) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE FUNCTION public.lt(public.citext, public.citext) RETURNS bool IMMUTABLE STRICT RETURN lower($1) < lower($2);
CREATE FUNCTION public.le(public.citext, public.citext) RETURNS bool IMMUTABLE STRICT RETURN lower($1) <= lower($2);
CREATE FUNCTION public.eq(public.citext, public.citext) RETURNS bool IMMUTABLE STRICT RETURN lower($1) = lower($2);
CREATE FUNCTION public.ge(public.citext, public.citext) RETURNS bool IMMUTABLE STRICT RETURN lower($1) >= lower($2);
CREATE FUNCTION public.gt(public.citext, public.citext) RETURNS bool IMMUTABLE STRICT RETURN lower($1) > lower($2);
CREATE FUNCTION public.cmp(public.citext, public.citext) RETURNS int IMMUTABLE STRICT
  RETURN bttextcmp(lower($1), lower($2));
CREATE OPERATOR public.< (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.lt);
CREATE OPERATOR public.<= (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.le);
CREATE OPERATOR public.= (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.eq, MERGES);
CREATE OPERATOR public.>= (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.ge);
CREATE OPERATOR public.> (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.gt);
CREATE OPERATOR CLASS public.citext_ops DEFAULT FOR TYPE public.citext USING btree AS
  OPERATOR 1 public.<, OPERATOR 2 public.<=, OPERATOR 3 public.=, OPERATOR 4 public.>=, OPERATOR 5 public.>,
  FUNCTION 1 public.cmp(public.citext, public.citext);
"""


@pytest.fixture(scope="module")
def source() -> Iterator[psycopg.Connection[Any]]:
    with (
        throwaway_postgres() as url,
        scratch_database(url) as database,
        psycopg.connect(database, autocommit=True, options="-c search_path=pg_catalog") as connection,
    ):
        connection.execute(CITEXT)
        connection.execute("CREATE DOMAIN public.login AS public.citext")
        connection.execute('CREATE COLLATION public.asked FROM "C"')  # one that ignores case takes ICU, which it lacks
        connection.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'asked'")
        yield connection


def facts_of(source: psycopg.Connection[Any], kind: str) -> TableFacts:
    """Of a table whose key is of this type."""
    source.execute("DROP TABLE IF EXISTS public.people")
    source.execute("DROP PUBLICATION IF EXISTS p")
    source.execute(f"CREATE TABLE public.people (id {kind} PRIMARY KEY, name text)")
    source.execute("CREATE PUBLICATION p FOR TABLE public.people")
    facts = describe(source, table(), "p")
    return replace(facts, columns=tuple(replace(column, lake=column.name) for column in facts.columns))


def lake(folder: Path, *events: dict[str, Any]) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    for name in ("raw_shop", "meta"):
        catalog.create_namespace(name)
    rows = [{"_op": "c", "_epoch": 1, "_commit_lsn": lsn, "_seq": 0} | event for lsn, event in enumerate(events, 10)]
    catalog.create_table(("raw_shop", "people"), SCHEMA).append(pa.Table.from_pylist(rows, schema=SCHEMA))
    return catalog


def planned(source: psycopg.Connection[Any], catalog: SqlCatalog, facts: TableFacts, key: str) -> Plan:
    alike = partial(Database(source, table()).spellings, facts)
    return make_plan(cast(Any, None), catalog, {}, table(), facts, [{"id": key}], alike)


@pytest.mark.parametrize(
    ("kind", "named", "same", "others"),
    [
        ("public.citext", "Alice", ["alice", "ALICE"], ["Alicia"]),
        ("public.login", "Alice", ["alice"], ["Alicia"]),
        ("numeric", "1.0", ["1", "1.00"], ["10", "1.001"]),
        ("numeric(50,3)", "1.000", ["1.0"], ["2.000", "from when it was text"]),
        ("jsonb", '{"a": 1}', ['{"a": 1.0}'], ['{"a": 2}']),
        ("interval", "1 day", ["24:00:00"], ["2 days"]),
        ("text COLLATE public.asked", "Alice", [], ["alice"]),
        ("text", "Alice", [], ["alice"]),
    ],
)
def test_a_key_is_emptied_in_all_spellings_that_the_database_calls_equal(
    source: psycopg.Connection[Any], tmp_path: Path, kind: str, named: str, same: list[str], others: list[str]
) -> None:
    """Rows of `alice` stayed in raw and parsed once `Alice` of a citext key was erased, and the proof was clean."""
    facts = facts_of(source, kind)
    catalog = lake(tmp_path, *({"id": id, "name": "Alice Adams"} for id in (named, *same, *others)))
    plan = planned(source, catalog, facts, named)
    subject = plan.raw[0]
    assert isinstance(subject, SubjectRows)
    rows = catalog.load_table(("raw_shop", "people")).scan().to_arrow()
    emptied = subject.after(rows).sort_by("_commit_lsn").to_pylist()
    assert [row["id"] for row in emptied if row["name"] is None] == [named, *same]


def test_another_spellings_key_history_is_the_subjects(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    facts = facts_of(source, "public.citext")
    catalog = lake(
        tmp_path,
        {"id": "Alice"}, {"id": "Alice", "_op": "d"}, {"id": "alice"}, {"id": "alice", "_op": "d", "_commit_lsn": 13},
        {"id": "bob", "_commit_lsn": 13, "_seq": 1, "_old_key": '{"id":"alice"}'},
    )  # fmt: skip
    [periods] = planned(source, catalog, facts, "Alice").periods.values()
    assert {period.key for period in periods} == {("Alice",), ("alice",), ("bob",)}
    assert {Period(("Alice",)), Period(("alice",))} < set(periods)


def test_the_database_holds_a_person_under_another_spelling(source: psycopg.Connection[Any]) -> None:
    """With the extension in another schema than pg_catalog, citext was compared as text."""
    facts = facts_of(source, "public.citext")
    source.execute("INSERT INTO public.people VALUES ('alice', 'Alice Adams')")
    assert held_by_source(source, table(), facts, [{"id": "Alice"}], KEPT)
    assert held_by_source(source, table(), facts, [{"id": "Alicia"}], KEPT) is None


EARLIER = Tombstone("shop", "people", {"id": "Ann"}, "2026-01-01T00:00:00+00:00", "me")


def test_the_daily_check_asks_a_database_only_where_a_key_may_have_several_texts(
    source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(settings: Any, of: Any) -> Any:
        raise LakehouseError("source 'shop' does not answer")

    monkeypatch.setattr(run, "origin_of", away)
    raw: Any = SimpleNamespace(properties={})  # whose rows nobody reads
    spellings = partial(run._spellings, cast(Any, None), table())
    stone = replace(EARLIER, spellings=({"id": "ANN"},))
    for known in ([], [({"id": "Ann"}, replace(EARLIER, spellings=()))]):
        assert spellings(facts_of(source, "text"), known, raw, [("Ann",)], []) == {("Ann",): ()}
    for kind in ("public.citext", "text COLLATE public.asked"):
        facts = facts_of(source, kind)
        assert spellings(facts, [({"id": "Ann"}, stone)], raw, [("Ann",)], []) == {("Ann",): (("ANN",),)}
    with pytest.raises(LakehouseError, match="does not answer"):
        spellings(facts_of(source, "public.citext"), [({"id": "Ann"}, EARLIER)], raw, [("Ann",)], [])


def test_the_daily_check_finds_a_spelling_that_landed_after_the_erasure(
    source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It searched for those alone that the erasure had found. The source says which of them are still the same key."""
    monkeypatch.setattr(run, "origin_of", lambda settings, of: nullcontext(Database(cast(Any, source), of)))
    raw = lake(tmp_path, {"id": "Ann"}, {"id": "ANN"}, {"id": "Bob"}).load_table(("raw_shop", "people"))
    named = [({"id": "Ann"}, replace(EARLIER, spellings=({"id": "ann"},)))]

    def found(facts: TableFacts) -> set[Key]:
        return set(run._spellings(cast(Any, None), table(), facts, named, raw, [("Ann",)], [])[("Ann",)])

    assert found(facts_of(source, "public.citext")) == {("ANN",), ("ann",)}
    assert found(facts_of(source, "text")) == set(), "others, since the key is of another type"
    facts = facts_of(source, "public.citext")
    source.execute("DROP TABLE public.people")
    assert found(facts) == {("ann",)}, "the table is gone there"


def test_an_erasure_is_repeated_for_the_spellings_that_it_remembers(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """The check found a file of a spelling that no row has any more, and nothing could remove it."""
    facts = facts_of(source, "public.citext")
    catalog, named = lake(tmp_path, {"id": "Ann"}), [({"id": "Ann"}, replace(EARLIER, spellings=({"id": "ANN"},)))]
    asked = partial(run._asked, Database(cast(Any, source), table()), table(), facts, named)
    plan = make_plan(cast(Any, None), catalog, {}, table(), facts, [{"id": "Ann"}], asked)
    assert {period.key for period in plan.periods[("Ann",)]} == {("Ann",), ("ANN",)}


def test_an_erasure_remembers_the_spellings_that_it_has_found(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    """The daily check asked the source for them, and failed while that was away or its table was dropped."""
    facts = facts_of(source, "public.citext")
    plan = planned(source, lake(tmp_path, *({"id": id} for id in ("Alice", "alice", "ALICE", "Bob"))), facts, "Alice")
    stone = Tombstone("shop", "people", {"id": "Alice"}, "2026-01-01T00:00:00+00:00", "me")
    named = _spelled(stone, plan)
    assert named.spellings == ({"id": "ALICE"}, {"id": "alice"})
    earlier = replace(stone, spellings=({"id": "aLICE"}, {"id": "alice"}))
    assert _spelled(earlier, plan).spellings == ({"id": "aLICE"}, {"id": "alice"}, {"id": "ALICE"}), "rows may be gone"
    former = replace(stone, key={"login": "Alice"})
    assert _spelled(former, plan) == former
