"""How values and names are compared for a repair: both servers spell them alike, policies and masks are gone by."""

from typing import Any, Literal

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.marks import slow
from tests.repairing import compared, repair, spoil
from tests.world import make_world

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("large")]

ODD = """CREATE TABLE "Odd Été" ("Gruppe é" text, "the ""day" date, "select" int, "Wert`s" text, skipped text,
 secret text, hidden text, PRIMARY KEY ("Gruppe é", "the ""day"))"""
ODD_POLICY = RawPolicy(
    relation='public."Odd Été"', key=("Gruppe é", 'the "day'), exclude=("skipped",), alias={"select": "chosen"},
    mask={"secret": "sha256", "hidden": "null"},
)  # fmt: skip


def test_composite_quoted_keys_masks_and_aliases(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ODD, {"odd": ODD_POLICY})
    names = ["", "a", "a:1", "B", "é", "\U0001f600", "x''y", "1:a"]
    for name in names:
        world.sql(f"""INSERT INTO "Odd Été" SELECT '{name}', '2024-01-01'::date + i, i, NULLIF('{name}', 'B'),
            's' || i, 'geheim' || i, 'h' FROM generate_series(1, 5) i""")  # fmt: skip
    world.ingest(spark)
    assert repair(world, spark, "odd") == {}

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            where = (row["Gruppe é"], row["chosen"])
            row["Wert`s"] = {("", 1): None, ("B", 2): ""}.get(where, row["Wert`s"])
            row["secret"] = "seen" if where == ("é", 3) else row["secret"]
            row["hidden"] = "seen" if where == ("a", 4) else None
        return [row for row in rows if (row["Gruppe é"], row["chosen"]) != ("a:1", 5)]

    spoil(world, "odd", change)
    assert repair(world, spark, "odd") == {"r": 5}
    assert repair(world, spark, "odd") == {}
    assert len(world.current("odd")) == 40
    assert {row["secret"] for row in world.current("odd").values()} == {
        secret for (secret,) in world.rows("SELECT encode(sha256(secret::bytea), 'hex') FROM \"Odd Été\"")
    }


EVERY = (
    ("a", "boolean", ("true", "false", "NULL")),
    ("b", "real", ("'NaN'", "'-0'", "'0'", "'Infinity'", "0.1", "3e-40", "16777216")),
    ("c", "double precision", ("'NaN'", "'-0'", "'0'", "'-Infinity'", "0.1", "1e-320", "1e22")),
    ("d", "numeric(12,2)", ("0", "-0.01", "1234567890.12")),
    ("e", "numeric(20,12)", ("0.000000000000", "0.000000000001", "12345678.5")),
    ("f", "numeric", ("'NaN'", "0.10", "1e40", "'-Infinity'")),
    ("g", "date", ("'0001-01-01'", "'1582-10-10'", "'9999-12-31'", "'1900-02-28'")),
    ("h", "timestamp", ("'0001-01-01 00:00:00'", "'1582-10-10 10:00:00.1'", "'2024-03-31 02:30:00.000001'")),
    ("i", "timestamptz", ("'0001-01-01 00:00:00+00'", "'1890-01-01 01:02:03+00'", "'9999-12-31 23:59:59.999999+00'")),
    ("j", "time", ("'00:00:00'", "'24:00:00'", "'23:59:59.999999'", "'01:02:03.5'")),
    ("k", "bytea", ("''", r"'\x00ff'", "NULL")),
    ("l", "text", ("''", "NULL", r"'\N'", r"E'a\nb\t\\'", "'\U0001f600é'")),
    ("m", "char(5)", ("''", "'ab'")),
    ("n", "uuid", ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",)),
    ("o", "jsonb", ("""'{"b": 1, "a": "é"}'""", "'null'")),
    ("p", "text[]", ("ARRAY['a b', NULL]", "'{}'")),
    ("q", "oid", ("4294967295",)),
    ("r", "interval", ("'1 mon -2 days 03:04:05.6'",)),
    ("s", "smallint", ("-32768",)),
    ("t", "bigint", ("-9223372036854775808",)),
    ("u", "numeric(5,-2)", ("12300", "0")),
)


@pytest.mark.slow
def test_every_type_is_spelled_alike_by_both_servers(settings: Settings, spark: Any) -> None:
    """Each value stands in a row of its own, and the key is each type in turn (its `_old_key` too)."""
    ddl, tables, inserts, moves = [], {}, [], []
    for name, kind, values in EVERY:
        ddl.append(f"CREATE TABLE t_{name} (n int, v {kind}, big text)")
        ddl.append(f"CREATE TABLE k_{name} (v {kind} PRIMARY KEY, n int, big text STORAGE EXTERNAL)")
        tables[f"t_{name}"] = RawPolicy(relation=f"public.t_{name}", key=("n",))
        ddl.append(f"ALTER TABLE t_{name} ADD PRIMARY KEY (n)")
        tables[f"k_{name}"] = RawPolicy(relation=f"public.k_{name}", key=("v",))
        keys = [value for value in values if value not in ("NULL", "'0'")]
        inserts += [f"INSERT INTO t_{name} VALUES ({n}, {value})" for n, value in enumerate(values)]
        inserts += [
            f"INSERT INTO k_{name} VALUES ({value}, {n}, repeat('x', 3000))" for n, value in enumerate(keys[:-1])
        ]
        moves += [f"UPDATE k_{name} SET v = {keys[-1]} WHERE v = {keys[0]}"] if len(keys) > 1 else []
    world = make_world(settings, ";".join(ddl), tables)
    world.sql(*inserts)
    world.ingest(spark)
    world.sql(*moves)
    world.ingest(spark)
    assert {name: found for name in tables if (found := repair(world, spark, name))} == {}


INFINITE = "CREATE TABLE infinite (id int PRIMARY KEY, at timestamptz, amount numeric(6,2), x double precision)"


@pytest.mark.parametrize("policy", ["clamp", slow("null")])
def test_values_that_a_policy_replaced_are_counted_apart_and_not_repaired(
    settings: Settings, spark: Any, policy: Literal["clamp", "null"]
) -> None:
    tables = {"infinite": RawPolicy(relation="public.infinite", key=("id",), on_unrepresentable=policy)}
    world = make_world(settings, INFINITE, tables)
    world.sql(
        "INSERT INTO infinite VALUES (1, 'infinity', 'NaN', 'NaN'), (2, now(), 1.50, '-0'), (3, '-infinity', 1, 2)"
    )
    found = compared(world, spark, "infinite", repair=True)
    assert found.equal and found.unrepresentable == 3 and found.repaired == {}
    spoil(world, "infinite", lambda rows: [row | {"x": 0.5} if row["id"] < 3 else row for row in rows])
    found = compared(world, spark, "infinite")
    assert (found.differing, found.differing_columns) == (2, {"x": 2})
    assert {e.key["id"]: e.columns["x"] for e in found.examples} == {"1": ("NaN", "0.5"), "2": ("-0.0", "0.5")}
    assert compared(world, spark, "infinite", repair=True).repaired == {"r": 2}
    assert compared(world, spark, "infinite", repair=True).equal
