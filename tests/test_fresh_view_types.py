"""Fresh views of every kind of key, column and table, after each step of a random history: what the source says.

In Trino by `reconcile`, which has each server spell its own values, and in Spark by what Trino says.
`RANDOM_SEED` runs one seed.
"""

import math
import os
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from trino.exceptions import TrinoUserError

from ingestion.verify import reconcile, reconcile_raw
from lakehouse.catalog.views.current_views import MARK
from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from lakehouse_serve.past.asked import at_cut, moment_of
from tests.fresh import is_fresh_view, is_short_view, make_views, name_of
from tests.mirrored import declaring_columns, listed, refreshed, write_position_deletes
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = """
CREATE TYPE mood AS ENUM ('fröhlich', 'so, "lala"', '');
CREATE DOMAIN price AS numeric(9,2) CHECK (VALUE > -1000);
CREATE DOMAIN letter AS text;
CREATE TABLE "Kunden Größe" (
  "Id" bigint GENERATED ALWAYS AS IDENTITY, "größe" numeric(8,3), "order" text, "日本" jsonb, digits numeric, m mood,
  p price, l letter, words text[], bin bytea, twice numeric GENERATED ALWAYS AS (p * 2) STORED, "a b" text,
  PRIMARY KEY ("Id", "größe"));
ALTER TABLE "Kunden Größe" ALTER "order" SET STORAGE EXTERNAL, ALTER "日本" SET STORAGE EXTERNAL,
  ALTER l SET STORAGE EXTERNAL, ALTER words SET STORAGE EXTERNAL, ALTER bin SET STORAGE EXTERNAL;
CREATE TABLE parts (region text, at timestamptz, uid uuid, n int, big text, PRIMARY KEY (region, at, uid))
  PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a', 'ä');
CREATE TABLE parts_z PARTITION OF parts DEFAULT;
ALTER TABLE parts ALTER big SET STORAGE EXTERNAL;
CREATE TABLE floats (f double precision PRIMARY KEY, r real, d date, t time, i interval, b boolean);
CREATE TABLE bytes (k bytea PRIMARY KEY, v text);
ALTER TABLE bytes ALTER v SET STORAGE EXTERNAL;
CREATE TABLE whole (k char(5), n numeric(30,4), v text, PRIMARY KEY (n, k));
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER v SET STORAGE EXTERNAL
"""
TABLES = {
    "kunden": RawPolicy(relation='public."Kunden Größe"', key=("Id", "größe")),
    "parts": RawPolicy(relation="public.parts", key=("region", "at", "uid")),
    "floats": RawPolicy(relation="public.floats", key=("f",)),
    "bytes": RawPolicy(relation="public.bytes", key=("k",)),
    "whole": RawPolicy(relation="public.whole", key=("n", "k")),
}
GENERATED = {"kunden": {"twice"}}  # no stream has it, so a declaration that names it is refused
LONG = "repeat(md5(random()::text), 200)"
SEEDS = [int(os.environ["RANDOM_SEED"])] if "RANDOM_SEED" in os.environ else [1, 2]
INSERTS = {
    "kunden": f"""INSERT INTO "Kunden Größe" ("größe", "order", "日本", digits, m, p, l, words, bin, "a b")
      SELECT i * 1.125, {LONG}, jsonb_build_object('é', {LONG}), ('1' || repeat('7', 5000) || '.10')::numeric,
      (enum_range(null::mood))[1 + i % 3], i * 1.1, {LONG}, ARRAY[{LONG}, NULL, 'a,"b"'], decode({LONG}, 'hex'),
      nullif('x' || i % 3, 'x0') FROM generate_series({{n}}, {{n}} + 9) i""",
    "parts": f"""INSERT INTO parts SELECT (ARRAY['a', 'ä', 'z', ''])[1 + i % 4], '2024-03-31 00:59Z'::timestamptz
      + i * interval '0.000001 s', md5(i::text)::uuid, i, {LONG} FROM generate_series({{n}}, {{n}} + 9) i
      ON CONFLICT DO NOTHING""",
    "floats": """INSERT INTO floats SELECT f, nullif(f, 1e-300)::real, '2024-02-28'::date + {n}, '23:59:59.999999',
      interval '1 month', f > 0 FROM unnest(ARRAY['NaN', 'Infinity', '-Infinity', '0.1', '1e-300', '{n}.1']::float8[]) f
      ON CONFLICT DO NOTHING""",
    "bytes": f"""INSERT INTO bytes SELECT decode(lpad(to_hex(i), 4, '0'), 'hex'), {LONG}
      FROM generate_series({{n}}, {{n}} + 5) i ON CONFLICT DO NOTHING""",
    "whole": f"""INSERT INTO whole SELECT 'ab', i * 12345678901234567890.1234, {LONG}
      FROM generate_series({{n}}, {{n}} + 5) i ON CONFLICT DO NOTHING""",
}
CHANGES = {  # "!" marks what the view shows with the next refresh: a truncate, a key change that may leave a value out
    "kunden": (
        """UPDATE "Kunden Größe" SET p = p + 1 WHERE ("Id" + {n}) % 3 = 0""",
        """UPDATE "Kunden Größe" SET "a b" = NULL, "order" = NULL WHERE ("Id" + {n}) % 5 = 0""",
        f"""UPDATE "Kunden Größe" SET words = ARRAY[{LONG}], digits = NULL WHERE ("Id" + {{n}}) % 4 = 0""",
        """DELETE FROM "Kunden Größe" WHERE ("Id" + {n}) % 7 = 0""",
        """!UPDATE "Kunden Größe" SET "größe" = "größe" + 0.001 WHERE ("Id" + {n}) % 6 = 0""",
        """ALTER TYPE mood ADD VALUE IF NOT EXISTS 'neu {n}'""",
        """UPDATE "Kunden Größe" SET m = (enum_range(null::mood))[array_length(enum_range(null::mood), 1)]
           WHERE ("Id" + {n}) % 9 = 0""",
        """!BEGIN; TRUNCATE "Kunden Größe"; """ + INSERTS["kunden"] + "; COMMIT",
    ),
    "parts": (
        "UPDATE parts SET n = n + 1 WHERE (n + {n}) % 3 = 0",
        "!UPDATE parts SET region = CASE region WHEN 'a' THEN 'q' ELSE 'a' END WHERE (n + {n}) % 5 = 0",
        "DELETE FROM parts WHERE (n + {n}) % 4 = 0",
        f"UPDATE parts SET big = {LONG} WHERE (n + {{n}}) % 4 = 0",
        "!TRUNCATE parts",
    ),
    "floats": (
        "UPDATE floats SET b = NOT b, r = '-0' WHERE f > 0",
        "UPDATE floats SET f = f + 0.5, t = '00:00' WHERE f BETWEEN 0.2 AND 1000",
        "DELETE FROM floats WHERE f = 'NaN'",
        "BEGIN; DELETE FROM floats WHERE f = 'Infinity'; INSERT INTO floats VALUES ('Infinity', 1); COMMIT",
    ),
    "bytes": (
        r"UPDATE bytes SET k = k || '\x00' WHERE length(k) < 4 AND v IS NULL",
        r"!UPDATE bytes SET k = '\xff' || k WHERE length(k) < 4",
        "UPDATE bytes SET v = NULL WHERE get_byte(k, 1) % 2 = {n} % 2",
        "DELETE FROM bytes WHERE get_byte(k, 1) % 5 = {n} % 5",
    ),
    "whole": (
        "UPDATE whole SET k = k || 'c' WHERE length(k) < 5",
        "UPDATE whole SET v = NULL WHERE n < {n} * 12345678901234567890",
        "DELETE FROM whole WHERE n > {n} * 12345678901234567890",
        "UPDATE whole SET n = n + 0.0001",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_step_a_view_is_the_source(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    write_position_deletes(monkeypatch)
    rng, world = random.Random(seed), declaring_columns(make_world(settings, DDL, TABLES), but=GENERATED)
    world.sql(*(statement.format(n=1) for statement in INSERTS.values()))
    assert not world.ingest(spark).aside
    make_views(world)
    refreshed(world, spark)
    moments: list[tuple[str, dict[str, list[str]]]] = []
    waits: set[str] = set()
    for number in range(2, int(os.environ.get("ROUNDS", "9"))):
        waits |= change(world, rng, number)
        world.ingest(spark)
        if rng.random() < 0.4:
            refreshed(world, spark)
            assert all(
                found.equal for found in reconcile_raw(world.settings, world.declarations, mirrors=True, spark=spark)
            )
            waits.clear()
            moments.append((cut_of(world), {name: in_mirror(world, query, name) for name in TABLES}))
        assert_views(world, spark, set(TABLES) - waits, (seed, number))
    refreshed(world, spark)
    assert_views(world, spark, set(TABLES), (seed, "end"))
    for cut, copies in moments:
        for name, copy in copies.items():
            assert in_mirror(world, as_of(world, cut), name) == copy, (seed, cut, name)


def test_keys_of_real_and_times_of_day_are_the_sources_in_every_time_zone(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trino prints seven digits of a `real`, and took the time of day in the zone of the session."""
    write_position_deletes(monkeypatch)
    ddl = (
        "CREATE TABLE spots (k real PRIMARY KEY, opens time, r real, big text); "
        "ALTER TABLE spots ALTER big SET STORAGE EXTERNAL"
    )
    world = declaring_columns(make_world(settings, ddl, {"spots": RawPolicy(relation="public.spots", key=("k",))}))
    close = "16777215, 16777216, 1000.0001, 1000.00006, 'NaN', '-Infinity', 0"
    world.sql(f"INSERT INTO spots SELECT k, '10:00', k, {LONG} FROM unnest(ARRAY[{close}]::real[]) k")
    world.ingest(spark)
    make_spots(world)
    refreshed(world, spark)
    assert_spots(world)
    world.sql(
        "UPDATE spots SET opens = '09:30' WHERE k = 16777216",
        "DELETE FROM spots WHERE k = 1000.0001::real",
        f"INSERT INTO spots VALUES (2, '00:00', 2, {LONG}), (16777214, '23:59:59.999999', 1, {LONG})",
    )
    world.ingest(spark)
    assert not is_short_view(world, "spots"), "values were left out"
    assert_spots(world)
    refreshed(world, spark)
    world.sql(f"UPDATE spots SET big = {LONG}, opens = '08:00' WHERE k IN (16777215, 16777214, 'NaN')")
    world.ingest(spark)
    assert is_short_view(world, "spots")
    assert_spots(world)

    world.sql(
        "ALTER TABLE spots ALTER r TYPE double precision", f"INSERT INTO spots VALUES (3, '10:00', 16777217, {LONG})"
    )
    world.ingest(spark)
    with pytest.raises(TrinoUserError, match=r"stale or in invalid state.*double.*real"):
        spots(world, "UTC")
    refreshed(world, spark)
    assert not is_fresh_view(world, "spots"), "it would round"


def test_a_column_whose_lower_case_is_two_letters_is_in_every_text(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trino did not find it in raw or in the mirror."""
    write_position_deletes(monkeypatch)
    ddl = 'CREATE TABLE odd ("kİ" int PRIMARY KEY, "İ" text, n int); ALTER TABLE odd ALTER "İ" SET STORAGE EXTERNAL'
    world = declaring_columns(make_world(settings, ddl, {"odd": RawPolicy(relation="public.odd", key=("kİ",))}))
    world.sql(f"INSERT INTO odd SELECT i, {LONG}, i FROM generate_series(1, 5) i")
    world.ingest(spark)
    make_views(world)
    refreshed(world, spark)
    assert_views(world, spark, {"odd"}, ("nothing new",))
    world.sql("UPDATE odd SET n = 0", "INSERT INTO odd VALUES (6, 'new', 6)")
    world.ingest(spark)
    assert not is_short_view(world, "odd"), "values were left out"
    assert_views(world, spark, {"odd"}, ("long",))
    refreshed(world, spark)
    world.sql("INSERT INTO odd VALUES (7, 'newer', 7)", "DELETE FROM odd WHERE n = 6")
    world.ingest(spark)
    assert is_short_view(world, "odd")
    assert_views(world, spark, {"odd"}, ("short",))


def make_spots(world: World) -> None:
    """The view as dbt makes it."""
    raw, view = relation(*world.source.table("spots").identifier), relation(*name_of(world, "spots"))
    opens = "cast(at_timezone(from_unixtime_nanos(opens * 1000), 'UTC') as time(6)) AS opens"
    query(world.settings, "CREATE SCHEMA IF NOT EXISTS parsed")
    query(
        world.settings,
        f"CREATE VIEW {view} COMMENT 'Of a test. {MARK}test]' SECURITY DEFINER AS"
        f" SELECT k, {opens}, r, big FROM {raw} WHERE false",
    )


def assert_spots(world: World) -> None:
    wanted = sorted(repr(row) for row in world.rows("SELECT k::float8::text, opens::text, md5(big) FROM spots"))
    assert is_fresh_view(world, "spots")
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        assert spots(world, zone) == wanted, zone


def spots(world: World, zone: str) -> list[str]:
    shown = "cast(k AS double), opens, lower(to_hex(md5(to_utf8(big))))"
    rows = query(
        world.settings, f"SELECT {shown} FROM {relation(*name_of(world, 'spots'))}", session={"time_zone_id": zone}
    )
    return sorted(repr((postgres_text(k), opens.isoformat(), big)) for k, opens, big in rows)


def postgres_text(number: float) -> str:
    """As Postgres prints a double."""
    return {"nan": "NaN", "-inf": "-Infinity"}.get(repr(number), repr(number).removesuffix(".0"))


def change(world: World, rng: random.Random, number: int) -> set[str]:
    """A few statements; the tables whose views wait for the next refresh now."""
    waits = set()
    for _ in range(rng.randint(1, 8)):
        name = rng.choice(list(TABLES))
        statement = rng.choice([*CHANGES[name], INSERTS[name]]).format(n=number)
        if statement.startswith("!"):
            waits.add(name)
        with suppress(psycopg.errors.UniqueViolation):
            world.sql(statement.removeprefix("!"))
    return waits


def assert_views(world: World, spark: Any, names: set[str], when: tuple[Any, ...]) -> None:
    source = world.source.name
    assert all(is_fresh_view(world, name) for name in names), when
    for found in reconcile(world.settings, world.declarations, [f"{source}.{name}" for name in sorted(names)]):
        assert found.equal, (when, found.table, found.examples[:3], found.absent_columns)
    for name in names:
        schema, view = name_of(world, name)
        there = spark.sql(f"SELECT * FROM {world.settings.catalog_name}.{schema}.{view}")
        shown = ", ".join(in_trino(field.name, field.dataType.typeName()) for field in there.schema)
        trino = rows_of(query(world.settings, f"SELECT {shown} FROM {relation(schema, view)}"))
        assert rows_of(there.collect()) == trino, (when, name)


def in_trino(column: str, spark_type: str) -> str:
    """The column as Spark's client has it: Trino's shortens a `real`."""
    return f'CAST("{column}" AS double)' if spark_type == "float" else f'"{column}"'


def rows_of(rows: Any) -> list[str]:
    return sorted(repr(tuple(map(plain, row))) for row in rows)


def plain(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case bytearray():
            return bytes(value)
        case datetime() if value.tzinfo:
            return value.astimezone(UTC).replace(tzinfo=None)
    return value


def cut_of(world: World) -> str:
    """The cut at which the mirrors stand, as it is named."""
    newest = listed(world)[-1]
    return f"{world.source.name}={newest['epoch']}:{newest['cut_lsn'] >> 32:X}/{newest['cut_lsn'] & 0xFFFFFFFF:X}"


def in_mirror(world: World, ask: Callable[[Settings, str], list[list[Any]]], name: str) -> list[str]:
    place = relation(*world.source.table(name).mirror_identifier)
    return rows_of(ask(world.settings, f"SELECT * FROM {place}"))


def as_of(world: World, cut: str) -> Callable[[Settings, str], list[list[Any]]]:
    def ask(settings: Settings, sql: str) -> list[list[Any]]:
        rewritten, _ = at_cut(settings, sql, moment_of(settings, cut), "writer")
        return query(settings, rewritten)

    return ask
