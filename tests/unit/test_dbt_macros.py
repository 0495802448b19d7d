"""The macros that decide: types as ingestion has them, hashing that is injective, and what a load has to read."""

import itertools
import json
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion.schema.types import SourceType, target_type
from ingestion.schema.types.table import RULES
from scaffold.types import has_several_spellings, lake_type
from tests.marks import slow
from tests.unit.dbt_macros import ARRAY_JOIN, Refused, macro

SPELLINGS = {
    "integer": "int4", "INT": "int4", "serial": "int4", "serial4": "int4", "smallint": "int2", "smallserial": "int2",
    "serial2": "int2", "bigint": "int8", "bigserial": "int8", "serial8": "int8", "boolean": "bool", "real": "float4",
    "double precision": "float8", "Double  Precision": "float8", "float": "float8", "float(24)": "float4",
    "float(25)": "float8", "decimal": "numeric", "dec": "numeric", "timestamp without time zone": "timestamp",
    "timestamp(3)": "timestamp", "timestamptz (0)": "timestamptz", "timestamp(3) with time zone": "timestamptz",
    "time(0) without time zone": "time", "time with time zone": "timetz", "character varying(20)": "varchar",
    "character varying": "varchar", "varchar(3)": "varchar", "char(3)": "bpchar", "bit varying(3)": "varbit",
    "text[]": "text", "int[]": "text", "numeric(3,2)[]": "text", "mood": "text",
}  # fmt: skip
TRINO = {
    "int": "integer", "long": "bigint", "boolean": "boolean", "float": "real", "double": "double", "date": "date",
    "timestamp": "timestamp(6)", "timestamptz": "timestamp(6) with time zone", "binary": "varbinary",
    "string": "varchar",
}  # fmt: skip


@pytest.mark.parametrize("declared", [*(rule.name for rule in RULES), *SPELLINGS])
def test_a_parsed_column_has_the_type_that_ingestion_gave_the_raw_one(declared: str) -> None:
    rule = next(rule for rule in RULES if rule.name == SPELLINGS.get(declared, declared))
    assert macro("lake_type")(declared) == lake_type(declared) == TRINO[str(rule.iceberg or "string")]


@pytest.mark.parametrize(
    ("raw", "declared", "kept"),
    [
        ("integer", "bigint", True),
        ("bigint", "integer", True),  # Trino refuses what does not fit
        ("real", "double precision", True),
        ("double", "real", False),
        ("decimal(10,2)", "numeric(12,2)", True),
        ("decimal(10, 2)", "numeric(10,3)", True),
        ("decimal(12,2)", "numeric(10,2)", True),
        ("decimal(10,2)", "numeric(10,1)", False),
        ("decimal(10,2)", "price", False),  # a domain
        ("varchar", "numeric(10,2)", False),
        ("bigint", "bigit", False),
        ("boolean", "booleen", False),
        ("date", "dat", False),
        ("bigint", "user_id", False),  # a domain, whose base type the lake has
        ("bigint", "text", True),
        ("integer", "character varying(20)", True),
        ("varchar", "order_state", True),  # an enum
        ("bigint", "time", True),
        ("varbinary", "image", False),
        ("timestamp(6) with time zone", "timestamp", False),
        ("varchar", "jsonb", True),
        ("varchar", "uuid", True),
        ("varchar", "int[]", True),
        ("varchar", "numeric", True),
    ],
)
def test_a_declared_type_that_would_change_values_is_refused(raw: str, declared: str, kept: bool) -> None:
    columns = [{"name": "V", "postgres_type": declared, "type": macro("lake_type")(declared)}]
    check = macro("check_types", table_columns=lambda _: [{"name": "v", "type": raw}])
    if kept:
        check("shop.orders", None, columns)
    else:
        remedy = r"declare the data_type that the source has \(.*\), and run `lakehouse scaffold`"
        with pytest.raises(Refused, match=rf"shop\.orders: column V is .* in raw, and as .*: {remedy}$"):
            check("shop.orders", None, columns)


@pytest.mark.parametrize("declared", [*(rule.name for rule in RULES), *SPELLINGS])
def test_no_type_of_postgres_is_unknown(declared: str) -> None:
    """But for arrays, of which no raw column is anything but text."""
    assert macro("is_unknown_type")(declared) == (declared.endswith("[]") or declared == "mood")


def test_a_column_of_an_unknown_type_that_parsed_has_as_text_stays_so() -> None:
    columns = [{"name": "V", "postgres_type": "user_id", "type": "varchar"}]
    check = macro("check_types", table_columns=lambda _: [{"name": "v", "type": "bigint"}])
    check("shop.orders", None, columns, {"v": "varchar"})
    with pytest.raises(Refused, match="as user_id it would be varchar, as Postgres itself has no such type: declare"):
        check("shop.orders", None, columns, {"v": "bigint"})


@pytest.mark.parametrize(
    ("there", "declared", "fits"),
    [
        ("integer", "integer", True),
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("integer", "varchar", False),
        ("varchar", "integer", False),
        ("real", "double", True),
        ("double", "real", False),
        ("decimal(10,2)", "decimal(12, 2)", True),
        ("decimal(10,2)", "decimal(8,2)", False),
        ("decimal(10,2)", "decimal(12,4)", False),
        ("decimal(10,2)", "varchar", False),
        ("date", "timestamp(6)", False),
        ("timestamp(6)", "timestamp(6) with time zone", False),
        ("timestamp(6)", "TIMESTAMP", True),
        ("varchar", "varchar(20)", True),
        ("integer", "int", True),
    ],
)
def test_a_column_that_cannot_get_its_declared_type_stops_the_load_with_the_remedy(
    there: str, declared: str, fits: bool
) -> None:
    """Of how somebody may spell a type of a model of theirs, Trino decides."""
    done: list[str] = []
    fit = macro(
        "fit_columns", table_columns=lambda _: [{"name": "v", "type": there, "comment": ""}], run_query=done.append
    )
    columns = [{"name": "V", "type": declared, "description": ""}]
    if fits:
        fit("vault.sat_x", columns)
        assert len(done) == (there != declared)
    else:
        with pytest.raises(
            Refused, match=r"column V .*: build .*dbt build --full-refresh --select 'a_model\+'`\. Where"
        ):
            fit("vault.sat_x", columns)


def test_the_end_of_the_day_is_read_from_a_key_too() -> None:
    """Trino has no such time, and one would stop the load: no part of the text is taken for one."""
    column = {"name": "closes", "postgres_type": "time(6) without time zone", "type": "bigint"}
    sql = macro("from_postgres_text")("closes", column)
    assert " as time" not in sql and "date_diff" not in sql
    times = {
        "24:00:00": 86_400_000_000,
        "36000000000": 36_000_000_000,
        "23:59:59.5": 86_399_500_000,
        "00:00:00.000001": 1,
        "00:00:00": 0,
        None: None,
    }
    assert {text: evaluate(sql, {"closes": text}) for text in times} == times


@pytest.mark.parametrize("policy", ["null", "clamp"])
@pytest.mark.parametrize(
    ("postgres", "trino", "text", "clamped"),
    [
        ("date", "date", "infinity", "9999-12-31"),
        ("date", "date", "-infinity", "0001-01-01"),
        ("date", "date", "0044-03-15 BC", "0001-01-01"),
        ("date", "date", "10000-01-01", "9999-12-31"),
        ("timestamp", "timestamp(6)", "infinity", "9999-12-31 23:59:59.999999"),
        ("timestamp", "timestamp(6)", "4713-01-01 00:00:00 BC", "0001-01-01 00:00:00"),
        ("timestamp", "timestamp(6)", "294276-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"),
        ("numeric(6,2)", "decimal(6,2)", "NaN", None),
    ],
)
def test_a_key_that_the_lake_cannot_hold_is_read_as_it_landed(
    postgres: str, trino: str, text: str, clamped: str | None, policy: str
) -> None:
    """The row of the old key is in raw by the table's policy, and a TOASTed value has to be found under it."""
    column = {"name": "k", "postgres_type": postgres, "type": trino, "on_unrepresentable": policy}
    read = macro("from_postgres_text")("k", column)
    found = evaluate(f"cast({read} as varchar)", {"k": text})
    assert found == (clamped if policy == "clamp" else None)
    plain = {"date": "2024-02-29", "timestamp(6)": "2024-02-29 01:02:03.5", "decimal(6,2)": "12.50"}[trino]
    assert evaluate(f"cast({read} as varchar)", {"k": plain}) == plain


@pytest.mark.parametrize("policy", ["error", "clamp", "null"])
@pytest.mark.parametrize(
    ("trino", "text", "printed"),
    [
        ("boolean", "true", "t"), ("timestamp(6)", "2024-01-01T00:00:00.500000", "2024-01-01 00:00:00.5"),
        ("timestamp(6) with time zone", "2024-01-01T00:00:00.5Z", "2024-01-01 00:00:00.5+00"),
    ],
)  # fmt: skip
def test_a_key_that_an_earlier_version_landed_of_a_topic_is_read(
    trino: str, text: str, printed: str, policy: str
) -> None:
    """A load failed, or a value that an update did not carry became NULL."""
    column = {"name": "k", "postgres_type": trino, "type": trino, "on_unrepresentable": policy}
    formerly, now = (macro("from_postgres_text")(name, column) for name in ("formerly", "now"))
    same = f"({formerly}) = ({now})".replace("timestamp(6) with time zone", "timestamptz")  # as DuckDB calls it
    assert evaluate(same, {"formerly": text, "now": printed}) is True


@pytest.mark.parametrize("policy", ["error", "clamp", "null"])
@pytest.mark.parametrize("trino", ["date", "timestamp(6)", "timestamp(6) with time zone", "decimal(6,2)", "double"])
def test_a_key_that_has_landed_as_null_is_found_again_whatever_the_policy_is_now(trino: str, policy: str) -> None:
    """`clamp` stores null for a NaN too, and rows keep what a former policy made of them: TOASTed values were lost."""
    column = {"name": "k", "type": trino, "on_unrepresentable": policy, "is_key": True}
    key = macro("comparable_key")([column])
    assert evaluate(f"({key}) = ({key})", {"k": None}) is True


def test_a_key_that_the_lake_always_holds_is_compared_as_it_is() -> None:
    columns = [{"name": n, "type": t, "is_key": True} for n, t in (("a", "bigint"), ("b", "varchar"))]
    assert macro("comparable_key")(columns, "loaded") == 'loaded."a", loaded."b"'


def test_a_key_of_real_is_compared_with_all_its_digits() -> None:
    """Trino prints seven of them: a TOASTed value was another row's."""
    key = macro("comparable_key")([{"name": "k", "type": "real", "is_key": True}])
    assert key == """coalesce(cast(cast("k" as double) as varchar), '')"""


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (38, 0), (38, 38), (39, 2), (5, -2), (2, 5)])
def test_a_numeric_is_the_decimal_that_ingestion_makes_of_it(precision: int, scale: int) -> None:
    iceberg = str(target_type(SourceType(1700, "numeric", ((precision << 16) | (scale & 0x7FF)) + 4)).iceberg)
    expected = "varchar" if iceberg == "string" else iceberg.replace(" ", "")
    for declared in (f"numeric({precision}, {scale})", f"dec({precision},{scale})"):
        assert macro("lake_type")(declared) == lake_type(declared) == expected


TEXTS = [None, "", "a", "a|b", "b", "\\", "\\N", "|", "a\\|b", "null"]


def test_two_different_keys_never_give_the_same_text_to_hash() -> None:
    texts = [key_text(pair) for pair in itertools.product(TEXTS, TEXTS)]
    assert len(set(texts)) == len(texts)


@settings(deadline=None)  # the first call compiles the macro
@given(st.tuples(*[st.one_of(st.none(), st.text(alphabet="a|\\N=", max_size=4))] * 3), st.data())
def test_keys_are_injective_whatever_the_text(key: tuple[str | None, ...], data: st.DataObject) -> None:
    other = data.draw(st.tuples(*[st.one_of(st.none(), st.text(alphabet="a|\\N=", max_size=4))] * 3))
    assert (key_text(key) == key_text(other)) == (key == other)


def test_a_null_is_not_in_a_hashdiff_so_a_new_nullable_column_changes_none() -> None:
    assert diff_text({"b": "x", "a": "y"}) == diff_text({"b": "x", "a": "y", "c": None}) == "a=y|b=x"
    assert diff_text({"a": "x|b=y"}) != diff_text({"a": "x", "b": "y"})
    assert diff_text({"a": ""}) != diff_text({"a": None}) == ""


def test_a_deleted_row_has_one_hashdiff_whatever_it_said() -> None:
    assert diff_text({"a": "x"}, deleted=True) == diff_text({"a": None}, deleted=True) == "\\D"


def test_a_key_of_nulls_is_the_zero_key() -> None:
    sql = macro("hash_key", hash_of=lambda text: text)(
        [{"name": "a", "type": "varchar"}, {"name": "b", "type": "varchar"}]
    )
    assert evaluate(sql, {"a": None, "b": None}) == "0" * 32


@pytest.mark.parametrize(
    ("kind", "postgres", "one", "other"),
    [
        ("double", "double precision", "0", "-0.0"),
        ("real", "real", "0", "-0.0"),
        ("varchar", "numeric", "1.0", "1.00"),
        ("varchar", "decimal", "-20.50", "-20.5"),
        ("varchar", "numeric", "100", "100.000"),
        ("varchar", "numeric(50,3)", "1.500", "1.5"),
        ("varchar", "character(5)", "ab", "ab   "),
        ("varchar", "bpchar", "", "  "),
        ("varchar", "citext", "Žluť", "žLUŤ"),
        ("varchar", "app.citext", "a", "A"),
    ],
)
def test_values_that_postgres_calls_equal_are_one_key_and_not_one_row(
    kind: str, postgres: str, one: str, other: str
) -> None:
    """A float key that went from 0 to -0 was two keys of its hub."""
    column = {"name": "k", "type": kind, "postgres_type": postgres}
    key = macro("hash_key", hash_of=lambda text: text)([column])
    says = macro("hash_diff", hash_of=lambda text: text)([column], "false")
    keys, rows = ({typed(sql, kind, value) for value in (one, other)} for sql in (key, says))
    assert len(keys) == 1
    assert len(rows) == 2, "a satellite has what the source has"


@pytest.mark.parametrize(
    ("postgres", "values"),
    [
        ("numeric", ["1", "10", "100", "1.01", "1.1", "0.1", "NaN", "Infinity", "-1", "1e400"]),
        ("text", ["a", "A", "a ", "1.0", "1.00", ""]),
        ("character varying(5)", ["a", "a "]),
        ('"char"', ["a", "A", ""]),
        ("character(3)", ["a", " a", "A"]),
        ("citext", ["a", "a ", "b"]),
        ("numeric(12,2)[]", ["{1.00}", "{1.10}"]),
        ("timetz", ["12:00:00+00", "13:00:00+01"]),
    ],
)
def test_values_that_postgres_tells_apart_are_different_keys(postgres: str, values: list[str]) -> None:
    sql = macro("hash_key", hash_of=lambda text: text)([{"name": "k", "type": "varchar", "postgres_type": postgres}])
    assert len({typed(sql, "varchar", value) for value in values}) == len(values)


@pytest.mark.parametrize(
    "postgres",
    ["interval", "interval(3)", "interval day to second", "jsonb", "numrange", "nummultirange", "numeric[]", "real[]",
     "double precision[]", "citext[]", "interval[]", "jsonb[]", "public.citext[]", "Public.CITEXT[]"],
)  # fmt: skip
def test_a_key_of_which_only_postgres_knows_what_is_equal_is_refused_by_name(postgres: str) -> None:
    column = {"name": "k", "type": "varchar", "postgres_type": postgres}
    with pytest.raises(Refused, match=rf"column k is {re.escape(postgres)}, .*`vault: {{none"):
        macro("hash_key")([column])
    assert macro("hash_diff")([column], "false")


@pytest.mark.parametrize(
    "postgres",
    ["numeric", "numeric(9,2)", "numeric(50,3)", "char(3)", "character(3)", "bpchar", '"char"', "citext", "x.citext",
     "text", "varchar(3)", "uuid", "timetz"],
)  # fmt: skip
def test_the_scaffold_knows_which_texts_have_several_spellings(postgres: str) -> None:
    column = {"name": "k", "type": lake_type(postgres), "postgres_type": postgres}
    assert has_several_spellings(postgres) == (macro("one_spelling")('"k"', column).strip() != '"k"')


def typed(expression: str, kind: str, value: str) -> Any:
    """The expression's value where `k` is the value of that type; DuckDB has \\1 for Trino's $1."""
    sql = f"select {expression} from (select cast(? as {kind}) as k)".replace("'$1'", "'\\1'")
    duckdb.execute(ARRAY_JOIN)
    return duckdb.execute(sql, [value]).fetchall()[0][0]


def test_an_unknown_normalization_or_column_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="lower"):
        macro("hash_key")([{"name": "a", "type": "varchar"}], "lower")
    with pytest.raises(Refused, match="hk_x hashes nope"):
        macro("hashed_column")("hk_x", ["nope"], {})


def test_equal_keys_of_hubs_are_one_key_of_their_link() -> None:
    """By `normalize` and `blank` two spellings are one key of a hub, and were two links."""
    columns = {name: {"name": name, "type": "varchar"} for name in ("id", "code")}
    hashes = {"hk_sale": ["id"], "hk_shop": {"columns": ["code"], "normalize": "upper_trim", "blank": "unknown"}}
    sql = macro("hashed_column", hash_of=lambda text: f"md5({text})")(
        "hk_sale_shop", {"keys": ["hk_sale", "hk_shop"]}, columns, hashes
    )
    links = {code: evaluate(sql, {"id": "1", "code": code}) for code in ("ab", " AB ", "ac", " ", "", None)}
    assert links["ab"] == links[" AB "]
    assert links[" "] == links[""] == links[None]
    assert len(set(links.values())) == 3
    assert evaluate(sql, {"id": "2", "code": "ab"}) not in links.values()
    with pytest.raises(Refused, match="hk_x is made of hk_nope"):
        macro("hashed_column")("hk_x", {"keys": ["hk_nope"]}, columns, hashes)


MARK = ["2026-01-01 00:00:00.000000 UTC", "3", "0001.5", "11"]


@pytest.mark.parametrize(
    ("facts", "new_data", "late"),
    [
        pytest.param((MARK[0], 3, 0, 3, None, "0001.5"), False, False, id="nothing new"),
        pytest.param((MARK[0], 4, 0, 4, None, "0001.7"), True, True, id="another row at the watermark"),
        pytest.param(("2026-01-02", 2, 2, 3, "0001.6", "0001.8"), True, False, id="in order"),
        pytest.param(("2026-01-02", 2, 2, 3, "0001.4", "0001.8"), True, True, id="out of order"),
        pytest.param((None, None, 0, 0, None, None), False, True, id="a stage that has been emptied"),
    ],
)
def test_a_load_knows_from_facts_whether_there_is_new_data_and_whether_it_is_late(
    facts: tuple[Any, ...], new_data: bool, late: bool
) -> None:
    window = plan_of(facts, remembered={"stg": MARK})["inputs"]["stg"]
    assert (window["new_data"], window["late"]) == (new_data, late)
    again = facts[3] != int(MARK[1])  # rows at the watermark are those that were loaded, or they are read again
    assert window["rows"].startswith(f"load_date {'>=' if again else '>'} timestamp '{MARK[0]}' and ") or not new_data


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("refreshed", [True, False])
def test_a_target_counts_as_loaded_unless_its_config_or_else_the_flag_has_it_refreshed(
    is_there: bool, refreshed: bool
) -> None:
    """By the flag alone: with `full_refresh: false` the load added each row again to a table that had it."""
    loaded = macro(
        "is_loaded", this="t", existing_relation=lambda name: name if is_there else None,
        should_full_refresh=lambda: refreshed, flags=SimpleNamespace(FULL_REFRESH=not refreshed),
    )  # fmt: skip
    assert loaded() is (is_there and not refreshed)


def test_a_target_without_a_watermark_replays_its_keys() -> None:
    assert plan_of((MARK[0], 3, 0, 0, None, "0001.5"), remembered={})["inputs"]["stg"]["late"]


def test_the_watermark_remembers_the_rows_at_it_and_the_highest_position_ever() -> None:
    plan = plan_of(("2026-01-02 UTC", 2, 2, 3, "0001.2", "0001.4"), remembered={"stg": MARK})
    assert plan["remember"] == {
        "lakehouse.loaded.stg": "2026-01-02 UTC|2|0001.5|12",
        "lakehouse.loaded.hash": "md5",
    }


def test_a_load_that_is_told_everything_plans_the_same_and_asks_nothing() -> None:
    """The worker gives what it has read from the catalog, in the place of two statements of each model."""
    hub, parsed = Relation("vault", "hub"), Relation("parsed", "p")
    facts = ["2026-01-02 UTC", 2, 2, 3, "0001.6", "0001.8"]
    loads = {"lakehouse.loaded.stg": "|".join([*MARK, "7"]), "lakehouse.loaded.hash": "md5|7"}
    given = {
        "LAKEHOUSE_TABLE_STATES": {
            "vault.hub": {"snapshot": "9", "loads": loads, "ancestors": ["7"]},
            "parsed.p": {"snapshot": "12", "loads": {}, "ancestors": []},
        },
        "LAKEHOUSE_STAGE_FACTS": {"stg|" + "|".join(MARK): facts},
    }

    def plan(told: dict[str, Any], *asked: list[tuple[Any, ...]]) -> dict[str, Any]:
        answers = iter(asked)
        load_plan = macro(
            "load_plan", is_loaded=lambda: True, this=hub, load_metadata=lambda *_: "", stage_facts=lambda *_: "",
            tables_of_stages=lambda _: {"stg": {"tables": [parsed], "whole": True}}, is_there=lambda _: bool(asked),
            env_var=lambda name, default: json.dumps(told[name]) if name in told else default,
            run_query=lambda _: SimpleNamespace(rows=next(answers)), carried_rows=lambda *_: None,
        )  # fmt: skip
        found: dict[str, Any] = load_plan(["stg"])
        return found

    metadata = [
        *(("property", key, value) for key, value in loads.items()),
        ("ancestor", "", "7"), ("base", "", "9"), ("table", str(parsed), "12"),
    ]  # fmt: skip
    answer = plan(given)
    assert answer == plan({}, metadata, [("stg", *facts)])
    assert answer["inputs"]["stg"]["new_data"] and answer["base"] == "9"
    other = {**given, "LAKEHOUSE_STAGE_FACTS": {"stg|" + "|".join(["2025", *MARK[1:]]): facts}}
    assert plan(other, [("stg", *facts)]) == answer, "facts after another watermark are none"
    given["LAKEHOUSE_TABLE_STATES"]["parsed.p"]["revised"] = "2026-01-03 UTC"
    answer = plan(given, [("stg", *facts)])
    assert answer == plan({}, [*metadata, ("revised", str(parsed), "2026-01-03 UTC")], [("stg", *facts)])
    assert answer["anew"] and answer["revised"]
    loads["lakehouse.loaded.revised"] = answer["remember"]["lakehouse.loaded.revised"] + "|7"
    assert not plan(given)["anew"]


@dataclass(frozen=True)
class Relation:
    schema: str
    identifier: str


def plan_of(facts: tuple[Any, ...], remembered: dict[str, list[str]]) -> dict[str, Any]:
    """What `load_plan` makes of one stage's facts."""
    load_plan = macro(
        "load_plan",
        is_loaded=lambda: True,
        tables_of_stages=lambda _: {},
        remembered_loads=lambda *_: {
            "inputs": remembered,
            "columns": None,
            "ghosts": False,
            "hash": "md5",
            "days": None,
            "states": {"stg": "12"},
            "base": "1",
            "revised": {},
            "revised_now": {},
        },
        stage_facts=lambda *_: "",
        run_query=lambda _: SimpleNamespace(rows=[("stg", *facts)]),
    )
    plan: dict[str, Any] = load_plan(["stg"])
    return plan


def key_text(values: tuple[str | None, ...]) -> Any:
    """The text that a key is hashed from."""
    columns = [{"name": f"c{i}", "type": "varchar"} for i in range(len(values))]
    return evaluate(macro("hash_key", hash_of=lambda text: text)(columns), {f"c{i}": v for i, v in enumerate(values)})


def diff_text(values: dict[str, str | None], deleted: bool = False) -> Any:
    """The text that a hashdiff is made from."""
    columns = [{"name": name, "type": "varchar"} for name in values]
    sql = macro("hash_diff", hash_of=lambda text: text)(columns, "deleted")
    return evaluate(sql, values | {"deleted": deleted})


@pytest.mark.parametrize("count", [1, slow(100), 101, slow(300)])
def test_a_hashdiff_of_any_number_of_columns_is_made_of_calls_that_trino_takes(count: int) -> None:
    """Trino takes 127 arguments: a satellite of more columns could not be loaded."""
    columns = [{"name": f"c{n:04}", "type": "varchar"} for n in range(count)]
    sql = macro("hash_diff", hash_of=lambda text: text)(columns, "deleted")
    assert "||" not in sql and "concat" not in sql, "they make no text of more than 1 MiB"
    arrays = re.findall(r"array\[(?:[^\[\]]|\[[^\[\]]*\])*\]", sql)
    assert arrays and all(array.count(" is not null") <= 126 for array in arrays)
    for filled in ((), (0,), (count - 1,), (0, count // 2), range(count)):
        cells = {f"c{n:04}": str(n) if n in filled else None for n in range(count)}
        assert evaluate(sql, cells | {"deleted": False}) == "|".join(f"c{n:04}={n}" for n in sorted(set(filled)))


def evaluate(expression: str, row: dict[str, Any]) -> Any:
    """The expression's value on one row."""
    names = ", ".join(f'cast(? as {"boolean" if isinstance(v, bool) else "varchar"}) as "{n}"' for n, v in row.items())
    duckdb.execute(ARRAY_JOIN)
    return duckdb.execute(f"select {expression} from (select {names})", list(row.values())).fetchall()[0][0]


@pytest.mark.parametrize(("description", "place"), [("Stores.\nOne row each.", 1), ("Stores.", 1), ("", 0)])
def test_the_first_lines_of_a_views_comment_say_that_it_has_no_past(description: str, place: int) -> None:
    lines = macro("view_comment", model=SimpleNamespace(description=description))().splitlines()
    assert "Trino ignores FOR TIMESTAMP AS OF and FOR VERSION AS OF" in lines[place] and "docs/past.md" in lines[place]
    assert lines[:place] + lines[place + 1 :] == description.splitlines()


def test_only_what_trino_would_misread_is_quoted_in_the_vault() -> None:
    """Plain names stay as they are, so that no view or mart that is there changes."""
    spelled = macro("spelled")(["store_id", "order", "end", "Upper", 'a"b', "1st", "no\n", "_x"])
    assert spelled == ["store_id", '"order"', '"end"', '"Upper"', '"a""b"', '"1st"', '"no\n"', "_x"]


def test_a_view_knows_the_types_of_all_that_it_reads() -> None:
    """Trino keeps a view's types: over a table that was widened it is made again, though its text is the same."""

    def types(kind: str) -> dict[str, Any]:
        nodes = {
            "parsed": {"columns": {"v": SimpleNamespace(data_type=kind)}, "depends_on": {"nodes": ["raw"]}},
            "stage": {"columns": {}, "depends_on": {"nodes": ["parsed"]}},
        }
        sources = {"raw": {"columns": {"v": SimpleNamespace(data_type="numeric")}}}
        graph = SimpleNamespace(nodes=nodes, sources=sources)
        found: dict[str, Any] = macro("types_below", graph=graph)({"depends_on": {"nodes": ["stage"]}}, {})
        return found

    assert types("decimal(4,2)") == {"stage": {}, "parsed": {"v": "decimal(4,2)"}, "raw": {"v": "numeric"}}
    assert types("decimal(4,2)") != types("decimal(8,2)")
