"""Real clients of the catalog service, each in an environment of its own, by what `lakehouse env --for` prints.

Each reads a table with every usual type and with delete files, and compares with the same query over the source; and
a mirror at a cut, with the source's copy of that moment.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.spark import JARS
from lakehouse.servers.trino import query
from lakehouse.settings import ServeSettings, Settings
from lakehouse_cli.machine.clients import client_text
from lakehouse_stack.control.start_stop import running, up
from tests.mirrored import declaring_columns, refreshed
from tests.pages import block
from tests.serving import PASSWORDS, Served, served
from tests.world import _MADE, drop_worlds, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PAGE = "reading.md"
ROWS = 20_000
DDL = """CREATE TABLE orders (id int PRIMARY KEY, item text, amount numeric(12, 2), at timestamptz, day date,
paid boolean, weight double precision, big bigint);
CREATE TABLE lines (id int PRIMARY KEY, order_id int)"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "lines")}
FILL = f"""INSERT INTO orders SELECT n, CASE WHEN n % 5 = 0 THEN NULL ELSE 'käse 🧀 ' || n END, n * 1.01,
timestamptz '2026-01-01 00:00:00.000001+00' + n * interval '1 minute', date '2026-01-01' + n / 1440, n % 2 = 0,
n / 7.0::float8, n * 10000000000 FROM generate_series(1, {ROWS}) n"""
LEFT_OUT = "id % 7 <> 0"
COLUMNS = "id, item, amount, at, day, paid, weight, big"
# as each engine writes it: integers, text, decimals as text, microseconds, days as text, booleans, doubles as text
ORACLE = """SELECT id, item, amount::text, (extract(epoch FROM at) * 1000000)::bigint, day::text, paid,
weight, big FROM orders WHERE {} ORDER BY id"""
CHANGED = "INSERT INTO orders VALUES (-2, 'before', 1.50, '2026-01-01 00:00:00+00', '2026-01-01', true, 0.5, 1)"


@dataclass(frozen=True)
class Lake:
    """What clients are told, and what they shall find: `rows` in the table, `mirrored` in the mirror at `lsn`."""

    settings: Settings
    service: Served
    source: str
    lsn: str
    rows: list[list[Any]]
    mirrored: list[list[Any]]

    @property
    def cut(self) -> str:
        """The warehouse of that cut."""
        return f"lake@{self.source}={self.lsn}"

    def text(self, client: str, role: str = "reader", warehouse: str = "lake") -> str:
        """What `lakehouse env --for CLIENT` prints for this service."""
        login = {"reader": "reader", "writer": "lakehouse"}[role]
        trino = self.settings.trino.model_copy(
            update={"reader_user": login, "reader_password": SecretStr(PASSWORDS[login])}
        )
        serve = ServeSettings(port=int(self.service.uri.rpartition(":")[2]))
        found = self.settings.model_copy(update={"trino": trino, "serve": serve})
        return client_text(found, client).replace(
            f"warehouse='{self.settings.catalog_name}'", f"warehouse={warehouse!r}"
        )


@pytest.fixture(scope="module")
def lake(settings: Settings, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    world = declaring_columns(make_world(settings, DDL, TABLES))
    _MADE.remove(world.source.name)  # it lives for all tests of the module
    raw = f"lake.raw_{world.source.name}"
    world.sql(FILL, CHANGED, "INSERT INTO lines SELECT n, n FROM generate_series(1, 10) n")
    world.ingest(spark)
    refreshed(world, spark)
    [(lsn,)] = world.rows("SELECT pg_current_wal_lsn()::text")
    mirrored = [list(row) for row in world.rows(ORACLE.format("true"))]
    world.sql("INSERT INTO lines VALUES (11, 11)", "INSERT INTO orders (id) VALUES (0)")
    world.sql("UPDATE orders SET item = 'after' WHERE id = -2")
    world.ingest(spark)
    refreshed(world, spark)
    query(settings, "CREATE SCHEMA IF NOT EXISTS lake.parsed")
    for name in ("client_orders", "client_people"):  # of a run that was killed, in a home that was kept
        query(settings, f"DROP TABLE IF EXISTS lake.parsed.{name}")
    query(
        settings,
        f"CREATE TABLE lake.parsed.client_orders WITH (partitioning = ARRAY['month(day)']) AS SELECT {COLUMNS} "
        f"FROM {raw}.orders WHERE id > 0",
    )
    query(settings, "CREATE TABLE lake.parsed.client_people AS SELECT 'ann@example.com' AS email")
    query(settings, f"DELETE FROM lake.parsed.client_orders WHERE NOT ({LEFT_OUT})")
    relations = [
        {"schema": "parsed", "name": "client_orders", "least": "reader", "personal": []},
        {"schema": "parsed", "name": "client_people", "least": "reader", "personal": ["email"]},
        {"schema": f"mirror_{world.source.name}", "name": "orders", "least": "reader", "personal": []},
    ]
    world.sql("DELETE FROM orders WHERE id <= 0")
    rows = [list(row) for row in world.rows(ORACLE.format(LEFT_OUT))]
    with served(settings, tmp_path_factory.mktemp("access"), relations) as service:
        yield Lake(settings, service, world.source.name, lsn, rows, mirrored)
    for name in ("client_orders", "client_people"):
        query(settings, f"DROP TABLE lake.parsed.{name}")
    _MADE.append(world.source.name)
    drop_worlds(settings)


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages and nothing of ours."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
    return python


def run(python: Path | str, code: str, folder: Path, **variables: str) -> Any:
    """What a script prints as JSON in its last line."""
    script = folder / "client.py"
    script.write_text(code)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSL_CERT_FILE", "JAVA_HOME") if name in os.environ}
    begun = time.monotonic()
    done = subprocess.run(
        [python, str(script)], cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(f"{time.monotonic() - begun:.1f} s for the whole script")
    found = json.loads(done.stdout.splitlines()[-1])
    print({name: value for name, value in found.items() if name.startswith("seconds")})
    return found


def assert_rows(found: list[list[Any]], lake: Lake) -> None:
    assert len(found) == len(lake.rows) > 10_000
    assert sorted(found) == lake.rows


def assert_mirror(found: list[list[Any]], lake: Lake) -> None:
    """The rows of the mirror at the cut, and none of after it."""
    assert len(found) == len(lake.mirrored) == ROWS + 1
    assert sorted(found) == lake.mirrored


PYICEBERG = """
import json, sys, time
{connect}
{writer}
{then}
begun = time.perf_counter()
table = lake.load_table("parsed.client_orders")
load = time.perf_counter() - begun
frame = table.scan().to_{kind}()
seconds = time.perf_counter() - begun
rows = table.scan().to_arrow().to_pylist()
{rows}
first = rows
table_then = then.load_table("mirror_{source}.orders")
frame = table_then.scan().to_{kind}()
rows = table_then.scan().to_arrow().to_pylist()
{rows}
mirrored, rows = rows, first
few = table.scan(row_filter="id >= 100 and id < 200", selected_fields=("id",)).to_arrow().num_rows
try:
    lake.load_table("parsed.client_people")
    refused = ""
except Exception as error:
    refused = str(error)
count = past.load_table("raw_{source}.lines").scan().to_arrow().num_rows
tables = [".".join(name) for name in lake.list_tables("parsed")]
print(json.dumps({{"rows": rows, "few": few, "refused": refused, "tables": tables, "past": count,
    "mirrored": mirrored, "seconds": seconds, "seconds_load": load}}))
"""
PLAIN = """
from calendar import timegm
def micros(at): return timegm(at.utctimetuple()) * 1000000 + at.microsecond
rows = [
    [r["id"], r["item"], str(r["amount"]), micros(r["at"]), str(r["day"]), r["paid"], r["weight"], r["big"]]
    for r in rows]
"""
FRAMES = {
    "pandas": "rows = frame.astype(object).where(frame.notna(), None).to_dict('records')",
    "polars": "rows = frame.to_dicts()",
    "arrow": "rows = frame.to_pylist()",
}


@pytest.fixture(scope="module")
def pyiceberg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("pyiceberg"), "pyiceberg[pyarrow]==0.12.0", "pandas", "polars")


@pytest.mark.parametrize("kind", FRAMES)
def test_pyiceberg_reads_the_table_as_a_frame(lake: Lake, pyiceberg: Path, tmp_path: Path, kind: str) -> None:
    code = PYICEBERG.format(
        connect=lake.text("pyiceberg"),
        writer=lake.text("pyiceberg", "writer", lake.cut).replace("lake = ", "past = "),
        then=lake.text("pyiceberg", "reader", lake.cut).replace("lake = ", "then = "),
        kind=kind, rows=FRAMES[kind] + PLAIN, source=lake.source,
    )  # fmt: skip
    found = run(pyiceberg, code, tmp_path)
    assert_rows(found["rows"], lake)
    assert found["few"] == len([row for row in lake.rows if 100 <= row[0] < 200])
    assert "personal columns (email)" in found["refused"]
    assert found["tables"] == ["parsed.client_orders", "parsed.client_people"]
    assert found["past"] == 10
    assert_mirror(found["mirrored"], lake)


def test_polars_scans_the_table_lazily(lake: Lake, pyiceberg: Path, tmp_path: Path) -> None:
    """By the page's code: the table as a frame, then Polars' own reader, to which the keys have to be given."""
    table = ("parsed.parsed_retail__stores", "parsed.client_orders")
    whole = block(PAGE, "python", table, below="Python")
    lazily = block(PAGE, "python", table, ('col("store_id") < 10', 'col("id") < 1000'), number=1, below="Python")
    code = f"""
import json, time
REST_URI, REST_CLIENT_ID, REST_CLIENT_SECRET = {(lake.service.uri, "reader", PASSWORDS["reader"])!r}
{whole}
whole, begun = len(stores), time.perf_counter()
{lazily}
rows = [[row["id"], str(row["amount"])] for row in stores.select("id", "amount").to_dicts()]
seconds = time.perf_counter() - begun
{lake.text("pyiceberg", "reader", lake.cut)}
table = lake.load_table("mirror_{lake.source}.orders")
keys = {{name: value for name, value in table.io.properties.items() if name.startswith("s3.")}}
rows_then = polars.scan_iceberg(table, storage_options=keys).collect().to_dicts()
{PLAIN.replace("in rows]", "in rows_then]").replace("rows = [", "mirrored = [")}
print(json.dumps({{"seconds": seconds, "rows": rows, "whole": whole, "mirrored": mirrored}}))
"""
    found = run(pyiceberg, code, tmp_path)
    assert sorted(found["rows"]) == [[row[0], row[2]] for row in lake.rows if row[0] < 1000]
    assert found["whole"] == len(lake.rows)
    assert_mirror(found["mirrored"], lake)


DUCKDB = """
import json, sys, time
from pathlib import Path
import duckdb
lake = duckdb.connect()
for name in ("avro", "httpfs", "iceberg"):
    [file] = Path(sys.prefix).glob(f"lib/python3*/site-packages/duckdb_extension_{{name}}/**/{{name}}.duckdb_extension")
    lake.execute(f"LOAD '{{file}}'")
begun = time.perf_counter()
for statement in {connect!r}.split(";"):
    if statement.strip():
        lake.execute(statement)
attach = time.perf_counter() - begun
columns = 'id, item, amount::varchar, epoch_us("at"), day::varchar, paid, weight, big'
rows = lake.execute(f"SELECT {{columns}} FROM lake.parsed.client_orders").fetchall()
seconds = time.perf_counter() - begun
def refusal(statement):
    try:
        lake.execute(statement)
        return ""
    except Exception as error:
        return str(error)
refused = [refusal(s) for s in (
    "SELECT * FROM lake.parsed.client_people",
    "SELECT * FROM lake.raw_{source}.lines",
    "DELETE FROM lake.parsed.client_orders",
    "INSERT INTO lake.parsed.client_orders (id) VALUES (-1)",
    "DROP TABLE lake.parsed.client_orders",
    "CREATE TABLE lake.parsed.mine (id int)")]
again = lake.execute("SELECT count(*), min(id) FROM lake.parsed.client_orders").fetchall()
for statement in ({past!r} + ";" + {mirrored!r}).split(";"):
    if statement.strip():
        lake.execute(statement)
past = [lake.execute(f"SELECT count(*) FROM past.raw_{source}.{{name}}").fetchone()[0] for name in ("lines", "orders")]
mirrored = lake.execute(f"SELECT {{columns}} FROM mirrored.mirror_{source}.orders").fetchall()
print(json.dumps({{"rows": rows, "refused": refused, "again": again, "past": past, "mirrored": mirrored,
    "seconds": seconds, "seconds_attach": attach}}))
"""


def test_duckdb_attaches_the_lake(lake: Lake, tmp_path: Path) -> None:
    extensions = [f"duckdb-extension-{name}==1.5.5" for name in ("iceberg", "avro", "httpfs")]
    python = environment(tmp_path / "duckdb", "duckdb==1.5.5", *extensions)
    quoted = PASSWORDS["reader"].replace("'", "''")
    connect = block(
        PAGE, "sql", ("CLIENT_ID '…'", "CLIENT_ID 'reader'"), ("SECRET '…'", f"SECRET '{quoted}'"),
        ("http://127.0.0.1:…", lake.service.uri), ("parsed_retail__stores", "client_orders"), below="DuckDB",
    )  # fmt: skip
    texts = {"connect": installed(connect)}
    for name, role in (("past", "writer"), ("mirrored", "reader")):
        text = lake.text("duckdb", role).replace("SECRET lake", f"SECRET {name}")
        text = text.replace("ATTACH 'lake'", f"ATTACH '{lake.cut}'").replace(" AS lake ", f" AS {name} ")
        texts[name] = text.split("\n", 1)[1]
    found = run(python, DUCKDB.format(**texts, source=lake.source), tmp_path)
    assert_rows(found["rows"], lake)
    print(found["refused"])
    assert all(found["refused"]), found["refused"]
    assert found["again"] == [[len(lake.rows), 1]]
    assert found["past"] == [10, ROWS + 1]
    assert_mirror(found["mirrored"], lake)
    assert query(lake.settings, "SELECT count(*) FROM lake.parsed.client_orders") == [[len(lake.rows)]]


def installed(text: str) -> str:
    """With the extensions of the environment in place of those that DuckDB would download."""
    return text.replace("INSTALL iceberg; LOAD iceberg;", "")


SPARK = """
import json, time
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.jars", {jars!r}).config("spark.ui.enabled", "false")
for line in {properties!r}.splitlines():
    builder = builder.config(*line.split("=", 1))
for name, lines in {{"past": {past!r}, "mirrored": {mirrored!r}}}.items():
    for line in lines.splitlines():
        if "catalog.lake" in line:
            builder = builder.config(*line.replace("catalog.lake", "catalog." + name).split("=", 1))
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
begun = time.perf_counter()
select = "SELECT id, item, cast(amount AS string), unix_micros(at), cast(day AS string), paid, weight, big FROM "
rows = [list(row) for row in spark.sql(select + "lake.parsed.client_orders").collect()]
seconds = time.perf_counter() - begun
def refusal(statement):
    try:
        spark.sql(statement).collect()
        return ""
    except Exception as error:
        return str(error)[:300]
refused = [refusal(s) for s in (
    "SELECT * FROM lake.parsed.client_people",
    "SELECT * FROM lake.raw_{source}.lines",
    "DELETE FROM lake.parsed.client_orders WHERE id = 1",
    "INSERT INTO lake.parsed.client_orders (id) VALUES (-1)",
    "DROP TABLE lake.parsed.client_orders",
    "CREATE TABLE lake.parsed.mine (id int) USING iceberg")]
past = [spark.table("past.raw_{source}.lines").count(), spark.table("past.raw_{source}.orders").count()]
mirrored = [list(row) for row in spark.sql(select + "mirrored.mirror_{source}.orders").collect()]
tables = [row[1] for row in spark.sql("SHOW TABLES IN lake.parsed").collect()]
print(json.dumps({{"rows": rows, "refused": refused, "past": past, "tables": tables, "mirrored": mirrored,
    "seconds": seconds}}))
"""


def test_spark_without_anything_of_ours(lake: Lake, tmp_path: Path) -> None:
    from lakehouse.servers.java import spark_java_home

    settings = lake.settings
    jars = ",".join(str(settings.artifacts / "jars" / jar) for jar in JARS)
    past, mirrored = (
        lake.text("spark", role).replace(".warehouse=lake", f".warehouse={lake.cut}") for role in ("writer", "reader")
    )
    texts = {"properties": lake.text("spark"), "past": past, "mirrored": mirrored}
    code = SPARK.format(jars=jars, **texts, source=lake.source)
    found = run(sys.executable, code, tmp_path, JAVA_HOME=str(spark_java_home(settings)))
    assert_rows(found["rows"], lake)
    print(found["refused"])
    assert all(found["refused"]), found["refused"]
    assert found["past"] == [10, ROWS + 1]
    assert_mirror(found["mirrored"], lake)
    assert query(settings, "SELECT count(*) FROM lake.parsed.client_orders") == [[len(lake.rows)]]


def test_trino_by_its_rest_catalog(lake: Lake) -> None:
    """A second catalog of the running Trino, which starts anew for it."""
    settings = lake.settings
    catalogs = trino_catalogs(settings)
    past, mirrored = (
        lake.text("trino", role).replace(".warehouse=lake", f".warehouse={lake.cut}") for role in ("writer", "reader")
    )
    files = {"served": lake.text("trino"), "past": past, "mirrored": mirrored}
    select = (
        "SELECT id, item, cast(amount AS varchar), cast(to_unixtime(at) * 1000000 AS bigint), "
        "cast(day AS varchar), paid, weight, big FROM "
    )
    for name, text in files.items():
        (catalogs / f"{name}.properties").write_text(text)
    try:
        restart_trino(settings)
        begun = time.perf_counter()
        rows = query(settings, f"{select} served.parsed.client_orders")
        print(f"{time.perf_counter() - begun:.2f} s")
        assert_rows([list(row) for row in rows], lake)
        then = query(settings, f"{select} mirrored.mirror_{lake.source}.orders")
        assert_mirror([list(row) for row in then], lake)
        raw = f"raw_{lake.source}"
        assert query(
            settings, f"SELECT (SELECT count(*) FROM past.{raw}.lines), (SELECT count(*) FROM past.{raw}.orders)"
        ) == [[10, ROWS + 1]]
        for statement in (
            "SELECT * FROM served.parsed.client_people",
            f"SELECT * FROM served.{raw}.lines",
            "DELETE FROM served.parsed.client_orders WHERE id = 1",
            "INSERT INTO served.parsed.client_orders (id) VALUES (-1)",
            "DROP TABLE served.parsed.client_orders",
            "CREATE TABLE served.parsed.mine (id int)",
        ):
            with pytest.raises(Exception) as caught:
                query(settings, statement)
            print(statement, "→", str(caught.value)[:200])
        assert query(settings, "SELECT count(*) FROM lake.parsed.client_orders") == [[len(lake.rows)]]
    finally:
        for name in files:
            (catalogs / f"{name}.properties").unlink()
        restart_trino(settings)


def trino_catalogs(settings: Settings) -> Path:
    """The folder of the running Trino's catalogs, beside that of its rules."""
    assert settings.trino.access is not None
    return settings.trino.access.parent / "trino" / "catalog"


def restart_trino(settings: Settings) -> None:
    trino = running(settings, "trino")
    assert trino is not None
    trino.send_signal(signal.SIGKILL)
    trino.wait(30)
    up(settings)


CHDB = """
import json, time
from chdb import session
lake = session.Session()
begun = time.perf_counter()
for statement in {connect!r}.split(";"):
    if statement.strip():
        lake.query(statement)
def rows_of(table):
    found = lake.query(f'''SELECT id, item, toDecimalString(amount, 2), toUnixTimestamp64Micro(at), toString(day),
    paid, weight, big FROM {{table}} FORMAT JSONCompactEachRow''').bytes().decode()
    return [json.loads(line) for line in found.splitlines()]
rows = rows_of("lake.`parsed.client_orders`")
seconds = time.perf_counter() - begun
def refusal(statement):
    try:
        lake.query(statement)
        return ""
    except Exception as error:
        return str(error)[:300]
refused = [refusal(s) for s in (
    "SELECT * FROM lake.`parsed.client_people`",
    "SELECT * FROM lake.`raw_{source}.lines`",
    "INSERT INTO lake.`parsed.client_orders` (id) VALUES (-1)",
    "DROP TABLE lake.`parsed.client_orders`")]
for statement in ({past!r} + ";" + {mirrored!r}).split(";"):
    if statement.strip():
        lake.query(statement)
past = [int(lake.query(f"SELECT count(*) FROM past.`raw_{source}.{{name}}`").bytes()) for name in ("lines", "orders")]
mirrored = rows_of("mirrored.`mirror_{source}.orders`")
print(json.dumps({{"rows": rows, "refused": refused, "past": past, "mirrored": mirrored, "seconds": seconds}}))
"""


def test_clickhouse_reads_the_table(lake: Lake, tmp_path: Path) -> None:
    python = environment(tmp_path / "chdb", "chdb==4.4.0")
    texts = {"connect": lake.text("clickhouse")}
    for name, role in (("past", "writer"), ("mirrored", "reader")):
        text = lake.text("clickhouse", role).replace("DATABASE lake", f"DATABASE {name}")
        texts[name] = text.replace("warehouse = 'lake'", f"warehouse = '{lake.cut}'")
    found = run(python, CHDB.format(**texts, source=lake.source), tmp_path)
    rows, mirrored = (
        [[int(r[0]), *r[1:3], int(r[3]), *r[4:7], int(r[7])] for r in found[name]] for name in ("rows", "mirrored")
    )
    assert_rows(rows, lake)
    assert_mirror(mirrored, lake)
    print(found["refused"])
    assert all(found["refused"]), found["refused"]
    assert found["past"] == [10, ROWS + 1]
    assert query(lake.settings, "SELECT count(*) FROM lake.parsed.client_orders") == [[len(lake.rows)]]
