"""A move to topics is refused where the text of a key or of a masked value would be another one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from debezium_recorded import settings
from debezium_recorded import table as topic

from ingestion.run.move import _check_forms, _tell_forms
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.types.table import RULES
from ingestion.sources.base import Brought
from ingestion.sources.debezium.forms import brought
from ingestion.sources.debezium.shape import facts_of, modes_of
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

LIKE_TEXT: dict[str, Any] = {"numeric": (1700, -1), "timetz": (1266, -1), "interval": (1186, -1), "_int4": (1007, -1),
                             "hstore": (16999, -1), "text": (25, -1), "citext": (16998, -1), "bpchar": (1042, 9),
                             "uuid": (2950, -1), "int4": (23, -1), "timestamptz": (1184, -1), "bytea": (17, -1),
                             "varchar": (1043, -1), "ltree": (16997, -1), "money": (790, -1), "vector": (16996, -1),
                             "halfvec": (16995, -1), "tstzrange": (3910, -1), "pair": (16994, -1),
                             "int4multirange": (4451, -1), "xid": (28, -1), "name": (19, -1), "geometry": (16993, -1),
                             "_numeric": (1231, -1), "_timestamp": (1115, -1), "_bytea": (1001, -1),
                             "_point": (1017, -1), "_text": (1009, -1), "_mood": (16992, -1), "mood": (16991, -1),
                             "numeric(50,2)": (1700, (50 << 16 | 2) + 4), "daterange": (3912, -1),
                             "inet": (16990, -1), "_pair": (16989, -1), "_percent": (16988, -1),
                             "_citext": (16987, -1), "_vector": (16986, -1)}  # fmt: skip
PRINTS = {  # what the source's catalog tells of a user's types
    "_mood": (("label 16991", "sad"), ("label row 16991", "731")),
    "_pair": (("attributes 16994", "2"), ("composite 16994", "1,2"), ("label 16991", "sad")),
}  # fmt: skip
BUILT_IN = {rule.name: rule.oid for rule in RULES}


def by_slot(kind: str, of_kind: str = "b") -> TableFacts:
    oid, typmod = LIKE_TEXT[kind]
    name = kind.partition("(")[0]
    columns = (
        ColumnFacts("id", 1, "integer", 23, "int4", "b", -1, 23, -1, "", lake="id"),
        ColumnFacts("v", 2, kind, oid, name, of_kind, typmod, oid, typmod, "", lake="v", prints=PRINTS.get(kind, ())),
    )
    return TableFacts(oid=1, filenode=1, relkind="r", replica_identity="d", key=("id",), columns=columns)


def brings(**modes: str) -> Callable[[ColumnFacts], Brought]:
    return partial(brought, modes=modes_of(settings(**modes)))


def by_topic(declared: str, *, is_key: bool = False, mask: str = "") -> tuple[RawTable, TableFacts]:
    table = topic("items", {"id": "integer", "v": declared}, ("id", "v") if is_key else ("id",))
    facts = facts_of(table, 1, settings())
    columns = tuple(replace(c, mask=mask if c.name == "v" else "") for c in facts.columns)
    return table, replace(facts, columns=columns)


REFUSED = [
    ("numeric", "numeric", "without trailing zeros"), ("timetz", "timetz", "without its offset"),
    ("interval", "interval", "by ISO 8601"), ("_int4", "text", "as JSON"), ("hstore", "text", "as JSON"),
    ("citext", "text", "declare the type"), ("text", "citext", "declare the type"),
    ("bpchar", "text", "declare the type"), ("vector", "text", "as JSON"), ("halfvec", "text", "as JSON"),
    ("tstzrange", "text", "in the time zone of"), ("_text", "text", "as JSON"), ("_mood", "text", "as JSON"),
    ("_citext", "text", "as JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "declared", "says"), REFUSED)
@pytest.mark.parametrize("use", [{"is_key": True}, {"mask": "sha256"}])
def test_a_key_or_a_digest_whose_text_topics_have_otherwise_is_refused(
    kind: str, declared: str, says: str, use: dict[str, Any]
) -> None:
    """A row that did not change since the move and one that did had two keys, and a value two digests."""
    table, facts = by_topic(declared, **use)
    with pytest.raises(LakehouseError, match=f"table 'items': column v .*{says}.*; nothing has changed"):
        _check_forms(table, by_slot(kind), facts, brings())


def test_a_key_that_rows_were_told_apart_by_before_is_refused_too() -> None:
    table, facts = by_topic("numeric")
    with pytest.raises(LakehouseError, match="column v"):
        _check_forms(table, replace(by_slot("numeric"), keyed_by=(1, 2)), facts, brings())


def test_a_masked_value_that_is_declared_as_another_type_is_refused() -> None:
    """The lake has text in any case: by that nobody sees the type."""
    table, facts = by_topic("text", mask="sha256")
    with pytest.raises(LakehouseError, match=r"v \(timestamptz\) is declared as text: declare the type"):
        _check_forms(table, by_slot("timestamptz"), facts, brings())


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("citext", "app.citext"), ("ltree", "ltree"), ("ltree", "text"), ("uuid", "uuid"), ("int4", "integer"),
        ("timestamptz", "timestamptz"), ("bytea", "bytea"), ("varchar", "text"), ("daterange", "text"),
        ("numeric(50,2)", "numeric(50,2)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("use", [{"is_key": True}, {"mask": "sha256"}, {}])
def test_what_is_the_same_by_topics_is_moved(kind: str, declared: str, use: dict[str, Any]) -> None:
    table, facts = by_topic(declared, **use)
    _check_forms(table, by_slot(kind), facts, brings())


@pytest.mark.parametrize("kind", [kind for kind, _, _ in REFUSED])
def test_a_column_that_is_in_no_key_and_not_masked_is_moved(kind: str) -> None:
    table, facts = by_topic("text")
    _check_forms(table, by_slot(kind), facts, brings())


@pytest.mark.parametrize("use", [{"is_key": True}, {"mask": "sha256"}, {}])
@pytest.mark.parametrize(
    "kind",
    ["money", "pair", "int4multirange", "xid", "name", "geometry", "inet", "_numeric", "_timestamp", "_bytea", "_point",
     "_pair", "_percent", "_vector"],
)  # fmt: skip
def test_a_column_that_does_not_come_is_refused_wherever_it_is(kind: str, use: dict[str, Any]) -> None:
    """The slot was dropped, and then the table was parked, or each change landed NULL."""
    table, facts = by_topic("bigint" if kind == "xid" else "text", **use)
    with pytest.raises(LakehouseError, match=r"column v \(.*from topics.*; nothing has changed"):
        _check_forms(table, by_slot(kind), facts, brings())


def test_what_does_not_land_need_not_come() -> None:
    table, facts = by_topic("text", mask="null")
    _check_forms(table, by_slot("pair"), facts, brings())


def test_an_enum_comes_as_its_label() -> None:
    table, facts = by_topic("text", is_key=True)
    _check_forms(table, by_slot("mood", "e"), facts, brings())


AS_TEXT = {"decimals": "string", "times": "isostring", "binary": "hex"}


def test_numbers_that_are_written_as_text_keep_their_zeros() -> None:
    """Such a key was refused, though its text is the same."""
    table, facts = by_topic("numeric", is_key=True)
    _check_forms(table, by_slot("numeric"), facts, brings(**AS_TEXT))


@pytest.mark.parametrize("kind", ["money", "_numeric", "_timestamp", "_bytea"])
def test_what_comes_as_text_is_moved_though_not_in_a_key(kind: str) -> None:
    _check_forms(*_both(kind, *by_topic("text")), brings(**AS_TEXT))
    with pytest.raises(LakehouseError, match="is in the key"):
        _check_forms(*_both(kind, *by_topic("text", is_key=True)), brings(**AS_TEXT))


def _both(kind: str, table: RawTable, facts: TableFacts) -> tuple[RawTable, TableFacts, TableFacts]:
    return table, by_slot(kind), facts


def test_of_each_type_of_the_lake_it_is_known_what_comes() -> None:
    """A type that is added to the table comes by no topic until somebody has looked."""
    found: dict[str, set[str]] = {}
    for name, oid in BUILT_IN.items():
        column = ColumnFacts("v", 1, name, oid, name, "b", -1, oid, -1, "", lake="v")
        how = brings()(column)
        found.setdefault("the same" if how == Brought() else "otherwise" if how.lands else "nothing", set()).add(name)
    assert found["otherwise"] == {"numeric", "interval", "timetz"}
    assert found["nothing"] == {
        "money", "name", "varbit", "xid", "cid", "jsonpath", "tsquery", "point", "lseg", "path", "box",
        "polygon", "line", "circle", "pg_lsn", "xid8", "tid", "txid_snapshot", "pg_snapshot",
    }  # fmt: skip


def test_columns_that_come_otherwise_are_named_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    table, _ = by_topic("text")
    for kind, modes, says in (("hstore", {}, "as JSON"), ("numeric", {}, "zeros"), ("numeric", AS_TEXT, ""),
                              ("money", AS_TEXT, "currency"), ("text", {}, "")):  # fmt: skip
        caplog.clear()
        _tell_forms(table, by_slot(kind), brings(**modes))
        assert (says in caplog.text) if says else not caplog.records
