"""References of other types than the keys they name: one key of the vault wherever Postgres says so, or refused."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pgoutput_record import scratch_database
from psycopg import sql

from lakehouse.errors import LakehouseError
from scaffold.key_types import is_comparable, is_converted
from scaffold.propose import proposal
from scaffold.propose.database import read
from scaffold.types import lake_type
from tests.marks import slow
from tests.unit.dbt_macros import macro
from tests.unit.declared_vault import DeclaredVault, table
from tests.unit.embedded_vault import START
from tests.unit.test_scaffold import declared
from tests.unit.test_vault_names import of

pytestmark = pytest.mark.stack
DAY, NUMBERS = "2026-01-02", ["7", "0", "1", "16384"]
TEXTS, FRACTIONS = ["ab", "ab  ", "AB", "a|b"], [*NUMBERS, "7.00", "0.1", "0.5", "1.50"]
VALUES = {
    "smallint": NUMBERS, "integer": NUMBERS, "bigint": NUMBERS, "oid": NUMBERS,
    "numeric": [*FRACTIONS, "9007199254740993", "0.10000000149011612"], "numeric(10,3)": FRACTIONS,
    "numeric(50,3)": FRACTIONS, "real": [*FRACTIONS, "-0"],
    "double precision": [*FRACTIONS, "-0", "9007199254740992", "0.10000000149011612"],
    "date": [DAY, "2026-01-03"], "timestamp without time zone": [DAY, f"{DAY} 10:00"],
    "timestamp with time zone": [DAY, f"{DAY} 10:00"],
    "time without time zone": ["00:00", "10:00"], "time with time zone": ["00:00", "10:00"], "interval": ["10:00"],
    "text": TEXTS, "character varying(9)": TEXTS, "character(5)": TEXTS, "bpchar": TEXTS, "name": TEXTS,
    '"char"': ["a", "A"], "uuid": ["11111111-1111-1111-1111-111111111111"], "boolean": ["t", "f"],
    "inet": ["10.0.0.1", "10.0.0.0/8"], "cidr": ["10.0.0.1", "10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"], "macaddr8": ["08:00:2b:01:02:03"], "bit(3)": ["101"], "bit varying": ["101"],
    "bytea": ["ab"], "pg_lsn": ["0/1"], "money": ["1"], "xid8": ["7"], "jsonb": ["1"], "regclass": ["pg_class"],
}  # fmt: skip
CONVERTED = {
    "timestamp without time zone": {"date"}, "double precision": {"bigint", "real"}, "character(5)": {"text"},
}  # fmt: skip
COMPARED = """SELECT quote_ident(typname) FROM pg_constraint JOIN pg_operator o ON o.oid = conpfeqop[1]
  JOIN pg_type t ON t.oid = oprright WHERE conrelid = 'r'::regclass AND contype = 'f'"""


@pytest.fixture(scope="module")
def postgres(cluster: str) -> Iterator[psycopg.Connection[Any]]:
    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("key", [*CONVERTED, *(slow(kind) for kind in VALUES if kind not in CONVERTED)])
def test_what_a_foreign_key_may_refer_to_is_one_key_of_the_vault_or_refused(
    postgres: psycopg.Connection[Any], key: str
) -> None:
    """A date that named a timestamp, and seven other pairs, were keys of their own: the link led nowhere."""
    pairs = set()
    for reference, operator in comparisons(postgres, key):
        if is_comparable(reference, key):
            pairs.add(reference)
            keys = texts(postgres, key)
            named = texts(postgres, reference, key if is_converted(reference, key) else "")
            for one, other in itertools.product(named, keys):
                same = postgres.execute(operator.format(sql.Literal(other), sql.Literal(one))).fetchone()
                assert same == (named[one] == keys[other],), f"{one!r} of {reference}, {other!r} of {key}"
    assert pairs >= CONVERTED.get(key, set())


def comparisons(postgres: psycopg.Connection[Any], key: str) -> Iterator[tuple[str, sql.SQL]]:
    """Each type of which a foreign key may be to keys of this one, and how Postgres compares the two."""
    for reference in (kind for kind in VALUES if kind != key):
        with suppress(psycopg.Error), postgres.transaction(force_rollback=True):
            postgres.execute(f"CREATE TABLE k (k {key} PRIMARY KEY); CREATE TABLE r (k {reference} REFERENCES k)")
            [[right]] = postgres.execute(COMPARED).fetchall()
            yield reference, sql.SQL(f"SELECT {{}}::{key} = {{}}::{reference}::{right}")


def texts(postgres: psycopg.Connection[Any], kind: str, key: str = "") -> dict[str, str]:
    """What is hashed of each value as Postgres prints it, of its own type, or as a key of another one."""
    column = {"name": "k", "type": lake_type(kind), "postgres_type": kind, "key_type": key}
    text = macro("key_part")(column).replace("'$1'", "'\\1'")
    held = column["type"] if column["type"] != "varbinary" else "blob"
    found = {}
    for value in VALUES[kind]:
        printed = postgres.execute(sql.SQL(f"SELECT format('%s', {{}}::{kind})").format(sql.Literal(value))).fetchone()
        found[value] = duckdb.execute(f"select {text} from (select cast(? as {held}) as k)", printed).fetchall()[0][0]
    return found


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [("citext", "text", "AB"), ("text", "citext", "ab"), ("text", "public.citext", "ab"), ("citext", "citext", "ab")],
)  # fmt: skip
def test_a_text_is_read_as_its_key_is(kind: str, key: str, expected: str) -> None:
    """A citext that named a text was looked for in lower case."""
    column = {"name": "k", "type": "varchar", "postgres_type": kind, "key_type": key if is_converted(kind, key) else ""}
    assert duckdb.execute(f"select {macro('key_part')(column)} from (select 'AB' as k)").fetchall() == [(expected,)]


ROOMS = of(("shop", [
    table("days", ["day"], "day:timestamp note", {"hub": "day", "satellites": {"day": ["note"]}}),
    table("shifts", ["id"], "id:int day:date", {
        "hub": "shift", "references": {"day": "day"}, "links": {"works": ["day"]}}),
    table("hours", ["day", "hour"], "day:date hour:int note", {
        "children_of": "day", "references": {"day": "day"}, "satellites": {"hour": ["note"]}}),
    table("moments", ["day"], "day:date text", {
        "hub": {"name": "day", "extends": True}, "satellites": {"moment": ["text"]}}),
]))  # fmt: skip


def test_a_date_and_a_timestamp_are_one_key_in_links_satellites_and_tables_that_extend_a_hub(tmp_path: Path) -> None:
    """In whatever order they arrive."""
    vault = DeclaredVault(ROOMS, tmp_path)
    event = {"gone": False, "at": START, "lsn": 1, "seq": 1, "day": DAY}
    vault.load_tables({("shop", "shifts"): [event | {"id": 1}], ("shop", "hours"): [event | {"hour": 2}]}, START)
    vault.load_tables({("shop", "days"): [event], ("shop", "moments"): [event]}, START)
    assert vault.rows("select count(*) from hub_day") == [(1,)]
    for relation in ("link_works", "sat_day", "ma_sat_hour", "sat_moment", "sts_day", "sts_day_shop_moments"):
        found = vault.rows(f"select count(*) from {relation} join hub_day using (hk_day)")
        assert found == [(1,)], relation


def test_a_reference_whose_type_goes_by_the_time_zone_is_refused_and_not_proposed(cluster: str, tmp_path: Path) -> None:
    """Of a table that extends a hub, too."""
    zoned = ROOMS.replace("data_type: timestamp", "data_type: timestamptz")
    with pytest.raises(
        LakehouseError, match=r"shop\.yml:\d+: V5: day is date, and the key of hub 'day' is timestamptz"
    ):
        declared(tmp_path, zoned)
    ddl = """CREATE TABLE days (day timestamptz PRIMARY KEY, note text);
      CREATE TABLE shifts (id int PRIMARY KEY, day date REFERENCES days, of timestamptz REFERENCES days)"""
    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ddl)
        tables, left_out = read(connection, "shop", ["public"], [])
    text = proposal("shop", tables, set(), left_out)
    assert "# day: refers to public.days, whose key is timestamp with time zone: the vault cannot tell" in text
    vault = declared(tmp_path, text).source("shop").table("shifts").vault
    assert vault is not None and [r.columns for r in vault.references.values()] == [("of",)]
