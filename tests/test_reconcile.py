"""Reconciling against real servers: every type must be spelled alike, and one changed cell must be found."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest

from ingestion.verify import TableComparison, reconcile
from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url

pytestmark = pytest.mark.stack

# name, Postgres type, Trino type, value in Postgres, the same value in Trino
CELLS = (
    ("small", "smallint", "integer", "-32768", "-32768"),
    ("big", "bigint", "bigint", "9223372036854775807", "9223372036854775807"),
    ("money", "numeric(38,9)", "decimal(38,9)", "-12345678901234567890123456789.000000001", None),
    ("loose", "numeric", "varchar", "1.500", "'1.500'"),
    ("flag", "boolean", "boolean", "true", "true"),
    ("half", "real", "real", "'1.1'", "real '1.1'"),
    ("tiny", "double precision", "double", "'4.9e-324'", "4.9e-324"),
    ("nan", "double precision", "double", "'NaN'", "nan()"),
    ("day", "date", "date", "'0001-01-01'", "date '0001-01-01'"),
    ("moment", "timestamp", "timestamp(6)", "'2026-11-21 04:05:06.12'", "timestamp '2026-11-21 04:05:06.120000'"),
    (
        "instant",
        "timestamptz",
        "timestamp(6) with time zone",
        "'2026-11-21 04:05:06+03'",
        "timestamp '2026-11-21 01:05:06.000000 UTC'",
    ),
    ("clock", "time", "bigint", "'23:59:59.999999'", "86399999999"),
    ("bytes", "bytea", "varbinary", r"'\x00ff'", "X'00ff'"),
    ("padded", "char(4)", "varchar", "'ab'", "'ab  '"),
    ("ident", "uuid", "varchar", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("words", "text[]", "varchar", "ARRAY['a b', NULL]", "'{\"a b\",NULL}'"),
    ("doc", "jsonb", "varchar", """'{"b": 1, "a": "é"}'""", """'{"a": "é", "b": 1}'"""),
    ("nothing", "text", "varchar", "NULL", "NULL"),
)
NAMES = ("B", "a", "aa", "Zoë", "é", "\U0001f600", "")


@dataclass(frozen=True)
class Bench:
    """A table on both sides and the settings and declaration that name it."""

    settings: Settings
    declarations: Declarations
    lake_table: str
    owner: str
    relation: str

    def compare(self) -> TableComparison:
        """Runs the comparison."""
        (result,) = reconcile(self.settings, self.declarations, ["payroll"])
        return result


@pytest.fixture
def bench(settings: Settings) -> Iterator[Bench]:
    """Six rows of every type on both sides, keyed by texts that sort differently in different collations."""
    token = uuid.uuid4().hex[:10]
    schema, name = f"reconcile_{token}", f"t{token}"
    source = settings.source("payroll")
    assert source.owner_url is not None
    owner = source.owner_url.get_secret_value()
    role = parse_url(source.url.get_secret_value()).user
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        columns = ", ".join(f"{cell[0]} {cell[1]}" for cell in CELLS)
        connection.execute(f"CREATE TABLE {schema}.every (name text PRIMARY KEY, {columns})")
        values = ", ".join(cell[3] for cell in CELLS)
        for text in NAMES:
            connection.execute(f"INSERT INTO {schema}.every VALUES (%s, {values})", [text])
        connection.execute(f"CREATE PUBLICATION {schema} FOR TABLE {schema}.every")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT SELECT ON {schema}.every TO {role}")
        query(settings, f"CREATE SCHEMA IF NOT EXISTS parsed WITH (location = '{settings.warehouse}parsed')")
        lake = ", ".join(f"CAST({_lake_value(cell)} AS {cell[2]}) AS {cell[0]}" for cell in CELLS)
        texts = ", ".join(f"('{text}')" for text in NAMES)
        query(settings, f"CREATE TABLE parsed.{name} AS SELECT n AS name, {lake} FROM (VALUES {texts}) AS t(n)")
        query(settings, f"CREATE VIEW parsed.current_payroll__{name} AS SELECT * FROM parsed.{name}")
        published = source.model_copy(update={"publication": schema})
        mine = settings.model_copy(update={"sources": {**settings.sources, "payroll": published}})
        yield Bench(mine, _declared(schema, name), f"parsed.{name}", owner, f"{schema}.every")
        query(settings, f"DROP VIEW parsed.current_payroll__{name}")
        query(settings, f"DROP TABLE parsed.{name}")
        connection.execute(f"DROP PUBLICATION {schema}")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def test_every_type_is_spelled_alike_on_both_sides(bench: Bench) -> None:
    result = bench.compare()
    assert result.examples == [] and result.equal
    assert result.source_rows == result.lake_rows == len(NAMES)
    assert set(result.columns) == {"name", *(cell[0] for cell in CELLS)}


def test_one_changed_cell_of_each_column_is_found(bench: Bench) -> None:
    _owner(bench, f"UPDATE {bench.relation} SET moment = moment + interval '1 microsecond' WHERE name = 'aa'")
    _owner(bench, f"UPDATE {bench.relation} SET nothing = '' WHERE name = ''")
    _owner(bench, f"DELETE FROM {bench.relation} WHERE name = 'B'")
    _owner(bench, f"INSERT INTO {bench.relation} (name) VALUES ('new')")
    result = bench.compare()
    assert (result.missing, result.extra, result.differing) == (1, 1, 2)
    assert result.differing_columns == {"moment": 1, "nothing": 1}
    kinds = {(example.kind, example.key["name"]) for example in result.examples}
    assert kinds == {("differs", "aa"), ("differs", ""), ("extra", "B"), ("missing", "new")}


def test_a_column_that_the_lake_does_not_have_is_a_difference(bench: Bench) -> None:
    _owner(bench, f"ALTER TABLE {bench.relation} ADD COLUMN later integer DEFAULT 1")
    result = bench.compare()
    assert result.absent_columns == ("later",) and not result.equal


def test_a_column_with_capitals_is_found_in_its_view(bench: Bench) -> None:
    """Trino's answer about a view has its columns as they were spelled, about a table in lower case."""
    _owner(bench, f'ALTER TABLE {bench.relation} ADD COLUMN "Later On" integer DEFAULT 1')
    view = bench.lake_table.replace("parsed.", "parsed.current_payroll__")
    query(bench.settings, f'CREATE OR REPLACE VIEW {view} AS SELECT *, 1 AS "Later On" FROM {bench.lake_table}')
    result = bench.compare()
    assert result.absent_columns == () and result.equal
    assert "Later On" in result.columns


@pytest.mark.parametrize("key", [("name",), ("late", "name")])
def test_the_end_of_a_day_is_equal_to_what_the_view_shows_of_it(bench: Bench, key: tuple[str, ...]) -> None:
    """Trino's time ends before 24:00:00, which the view shows as 00:00:00, also in its order."""
    _owner(bench, f"ALTER TABLE {bench.relation} ADD COLUMN late time NOT NULL DEFAULT '04:05'")
    _owner(bench, f"ALTER TABLE {bench.relation} REPLICA IDENTITY FULL")
    _owner(bench, f"UPDATE {bench.relation} SET late = '24:00' WHERE name = 'aa'")
    view = bench.lake_table.replace("parsed.", "parsed.current_payroll__")
    late = "CAST(if(name = 'aa', time '00:00:00', time '04:05:00') AS time(6))"
    query(bench.settings, f"CREATE OR REPLACE VIEW {view} AS SELECT *, {late} AS late FROM {bench.lake_table}")
    result = replace(bench, declarations=_keyed(bench.declarations, key)).compare()
    assert result.examples == [] and result.equal
    _owner(bench, f"UPDATE {bench.relation} SET late = '23:59' WHERE name = 'aa'")
    assert not replace(bench, declarations=_keyed(bench.declarations, key)).compare().equal


def test_a_table_without_a_key_has_no_view_and_the_others_are_compared(bench: Bench) -> None:
    (source,) = bench.declarations.sources
    (table,) = source.tables
    keyless = table.model_copy(update={"name": "log", "raw": table.raw.model_copy(update={"key": ()})})
    declared = Declarations(sources=(source.model_copy(update={"tables": (keyless, table)}),))
    log, other = reconcile(bench.settings, declared)
    assert other.equal and log.aside is not None and "no current view" in log.aside


def test_a_view_that_is_not_built_is_one_line_with_the_remedy(bench: Bench) -> None:
    (source,) = bench.declarations.sources
    other = source.tables[0].model_copy(update={"name": "not_built"})
    declared = Declarations(sources=(source.model_copy(update={"tables": (other,)}),))
    with pytest.raises(LakehouseError, match=r"not_built.*run `lakehouse run`"):
        list(reconcile(bench.settings, declared))


def test_a_trino_that_is_down_is_one_line_with_the_remedy(bench: Bench) -> None:
    trino = bench.settings.trino.model_copy(update={"port": 1})
    with pytest.raises(LakehouseError, match=r"Trino at .* does not answer.*lakehouse up"):
        list(reconcile(bench.settings.model_copy(update={"trino": trino}), bench.declarations))


def _declared(schema: str, name: str) -> Declarations:
    columns = tuple(Column(name=column, data_type=None, description="") for column in ("name", "big"))
    table = RawTable(
        source="payroll", name=name, description="", columns=columns, load=LoadPolicy(), maintenance=None, owners=(),
        raw=RawPolicy(relation=f"{schema}.every", key=("name",)),
    )  # fmt: skip
    return Declarations(sources=(Source(name="payroll", description="", load=LoadPolicy(), tables=(table,)),))


def _keyed(declared: Declarations, key: tuple[str, ...]) -> Declarations:
    (source,) = declared.sources
    (table,) = source.tables
    table = table.model_copy(update={"raw": table.raw.model_copy(update={"key": key})})
    return Declarations(sources=(source.model_copy(update={"tables": (table,)}),))


def _lake_value(cell: tuple[str, str, str, str, str | None]) -> str:
    return cell[4] if cell[4] is not None else f"DECIMAL '{cell[3]}'"


def _owner(bench: Bench, sql: str) -> None:
    with psycopg.connect(bench.owner) as connection:
        connection.execute(sql)
