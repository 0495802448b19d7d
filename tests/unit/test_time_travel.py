"""A question about the past that Trino would answer with the present is refused; one that it answers is let through."""

import re

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.time_travel import refuse_ignored

MOMENT = "FOR TIMESTAMP AS OF TIMESTAMP '2026-01-01 00:00:00 UTC'"
VIEWS = {("lake", "parsed", "current_s__t"), ("lake", "vault", "sat_t_v1"), ("lake", "mine", 'odd "view"')}


def is_view(query: str) -> bool:
    catalog, schema, name = re.findall(r"catalog_name = '(.*)' AND schema_name = '(.*)' AND name = '(.*)'", query)[0]
    return (catalog, schema, name) in VIEWS


def refuse(sql: str) -> None:
    refuse_ignored(sql, "lake", is_view)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT * FROM parsed.current_s__t {MOMENT}",
        "select * from Parsed.CURRENT_S__T for version as of 42",
        "SELECT * FROM parsed.current_s__t FOR\n\tVERSION /* of */ AS -- the\n OF 1 AS t",
        f'SELECT * FROM lake.parsed."current_s__t" {MOMENT} t',
        f'SELECT * FROM "lake" . "PARSED" . "Current_S__T" {MOMENT}',
        f'SELECT * FROM parsed/* . */./**/"current_s__t"/**/{MOMENT}',
        f"SELECT * FROM parsed.parsed_s__t {MOMENT} JOIN vault.sat_t_v1 {MOMENT} USING (id)",
        f"WITH x AS (SELECT * FROM parsed.current_s__t {MOMENT}) SELECT * FROM x",
        f"WITH x AS (SELECT * FROM parsed.parsed_s__t) SELECT * FROM x {MOMENT}",
        f'WITH a AS (SELECT 1), "X" (b, c) AS (SELECT 1, 2) SELECT * FROM x {MOMENT}',
        f'SELECT * FROM mine."odd ""view""" {MOMENT}',
        f"SELECT 'it''s -- no comment', \"/*\" FROM parsed.current_s__t {MOMENT} -- */",
        f"SELECT * FROM (SELECT 1 FROM parsed.current_s__t {MOMENT}) WHERE EXISTS (SELECT 1)",
        f"CREATE VIEW mine.v AS SELECT * FROM vault.sat_t_v1 {MOMENT}",
        "EXECUTE IMMEDIATE 'SELECT * FROM parsed.current_s__t FOR TIMESTAMP AS OF TIMESTAMP ''2026-01-01 00:00:00'''",
        f"EXPLAIN SELECT * FROM lake.vault.sat_t_v1 {MOMENT}",
    ],
)
def test_the_past_of_a_view_or_a_with_query_is_refused_in_one_line_that_tells_the_way(sql: str) -> None:
    with pytest.raises(LakehouseError, match=r"Trino ignores FOR (TIMESTAMP|VERSION) AS OF") as refused:
        refuse(sql)
    told = str(refused.value)
    assert "\n" not in told and (told.endswith("(see docs/past.md)") or "put it on the table inside" in told)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM parsed.current_s__t",
        f"SELECT * FROM parsed.parsed_s__t {MOMENT}",
        f"SELECT * FROM other.parsed.current_s__t {MOMENT}",
        f"WITH current_s__t AS (SELECT 1) SELECT * FROM raw_s.current_s__t {MOMENT}",
        f"WITH x AS (SELECT * FROM parsed.parsed_s__t {MOMENT}) SELECT * FROM x",
        "SELECT 'FROM parsed.current_s__t FOR VERSION AS OF 1'",
        "SELECT 1 -- FROM parsed.current_s__t FOR VERSION AS OF 1",
        "SELECT 1 /* FROM parsed.current_s__t FOR VERSION AS OF 1 */",
        'SELECT "parsed.current_s__t FOR VERSION AS OF 1" FROM parsed.parsed_s__t',
        f"SELECT * FROM parsed.current_s__t JOIN parsed.parsed_s__t {MOMENT} USING (id)",
        "SELECT substring('abc' FROM 1 FOR 2), timestamp '2026-01-01'",
        "FOR TIMESTAMP AS OF",
        "",
    ],
)
def test_what_trino_answers_rightly_or_refuses_itself_is_let_through(sql: str) -> None:
    refuse(sql)


def test_the_refusal_names_the_table_to_ask_instead() -> None:
    with pytest.raises(LakehouseError, match=r"newest version of each key in parsed\.parsed_s__t where _valid_from <="):
        refuse(f"SELECT * FROM parsed.current_s__t {MOMENT}")
    with pytest.raises(LakehouseError, match="valid_from <= the moment AND"):
        refuse(f"SELECT * FROM vault.sat_t_v1 {MOMENT}")
