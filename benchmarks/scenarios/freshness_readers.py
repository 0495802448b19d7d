"""Freshness by reader: from a commit over five tables until Trino, DuckDB and a second catalog return its rows.

The readers take turns, because all of them at once would wait for one another's CPU. Trino and DuckDB read raw, the
latter through the catalog service as the writer; a reader's DuckDB reads the mirrors there; PyIceberg reads them in
another JDBC catalog, which an export keeps up to date.
"""

import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import load_average
from benchmarks.scenarios.freshness import SIZES, TABLES, WARM_UP, commit_rows, note_percentiles, select_rows
from benchmarks.scenarios.mirrors import declaring_columns, paced, refreshed, verify
from benchmarks.workloads import SOURCE
from lakehouse.catalog.open import file_io_properties
from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.declarations.policies import MirrorPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect
from lakehouse.settings import ExportSettings, Settings
from lakehouse.text.urls import parse_url
from lakehouse_cli.machine.clients import client_text
from lakehouse_serve.export import export, follow
from tests.serving import write_relations
from tests.test_serve_clients import DUCKDB, environment, installed
from tests.world import catalog_superuser

SAMPLES = 100
REFRESH, EXPORT = 2.0, 1.0  # seconds between refreshes of mirrors, and between exports
LONGEST, PAUSE = 120.0, 0.1
RAW, MIRROR, SECOND = f"raw_{SOURCE}", f"mirror_{SOURCE}", "second"
# the lock's DuckDB is another one than that whose extensions are in the package index
DUCKDB_VERSION = "1.5.5"
EXTENSIONS = tuple(f"duckdb-extension-{name}=={DUCKDB_VERSION}" for name in ("iceberg", "avro", "httpfs"))
ANSWER = "for query in sys.stdin:\n    print(len(lake.execute(query).fetchall()), flush=True)\n"
Read = Callable[[int], int]  # how many rows it returns whose ids begin there


def freshness_readers(bench: Bench) -> Results:
    """Transactions at random intervals, with a follower that refreshes mirrors, and an export beside it."""
    results: Results = {}
    with bench.tables(*TABLES) as (connection, declared), ExitStack() as stack:
        declarations = paced(declaring_columns(declared), MirrorPolicy(refresh_seconds=REFRESH))
        bench.bring_up(declarations)
        refreshed(bench, declarations)
        readers, first = stack.enter_context(_readers(bench)), 1
        with bench.following(declarations):
            for read in readers.values():
                for _ in range(WARM_UP):
                    read(first)
            for rows in SIZES:
                for _ in range(max(10, int(SAMPLES * bench.scale))):
                    for name, read in readers.items():
                        committed = commit_rows(connection, rows, first)
                        bench.wait_for_follower(declarations)  # polling raw would take CPU from the follower
                        while read(first) != rows:
                            if name.startswith("raw") or time.monotonic() - committed > LONGEST:
                                raise LakehouseError(f"{name}: a published cut does not show its rows")
                            time.sleep(PAUSE)
                        does = f"{rows} rows; from COMMIT's answer until they were returned: {name}"
                        result = results.setdefault(f"{rows} rows, {name}", Measurement("s", does=does))
                        result.add(time.monotonic() - committed)
                        result.notes = {"load": load_average()}
                        first += rows // len(TABLES)
                        time.sleep(1.0 + random.random())
        bench.verify(connection, declarations)
        refreshed(bench, declarations)
        verify(bench, declarations)
    note_percentiles(results)
    return results


@contextmanager
def _readers(bench: Bench) -> Iterator[dict[str, Read]]:
    """The readers by name. Whoever has the reader's login may read the mirrors meanwhile."""
    settings = bench.settings
    writer = {"reader_user": settings.trino.user, "reader_password": settings.trino.password}
    as_writer = settings.model_copy(update={"trino": settings.trino.model_copy(update=writer)})
    with ExitStack() as stack:
        stack.enter_context(_allowed(settings))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = environment(folder, f"duckdb=={DUCKDB_VERSION}", *EXTENSIONS)
        cursor = connect(settings).cursor()
        yield {
            "raw in Trino": lambda first: len(cursor.execute(select_rows(RAW, first)).fetchall()),
            "raw in DuckDB": partial(_asked, stack.enter_context(_duckdb(python, as_writer)), RAW),
            "mirrors in DuckDB": partial(_asked, stack.enter_context(_duckdb(python, settings)), MIRROR),
            "mirrors in a second catalog": stack.enter_context(_second_catalog(bench)),
        }


@contextmanager
def _allowed(settings: Settings) -> Iterator[None]:
    folder = settings.trino.access
    assert folder is not None
    rules = folder / RELATIONS
    before = rules.read_text() if rules.exists() else None
    write_relations(folder, [{"schema": MIRROR, "name": name, "least": "reader", "personal": []} for name in TABLES])
    try:
        yield
    finally:
        rules.unlink() if before is None else rules.write_text(before)


@contextmanager
def _duckdb(python: Path, settings: Settings) -> Iterator["subprocess.Popen[str]"]:
    """DuckDB with the lake as `lakehouse env --for duckdb` attaches it; answers queries with numbers of rows."""
    code = DUCKDB[: DUCKDB.index("attach = time")].format(connect=installed(client_text(settings, "duckdb"))) + ANSWER
    with subprocess.Popen(
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _asked(process: "subprocess.Popen[str]", schema: str, first: int) -> int:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{select_rows(f'lake.{schema}', first)}\n")
    return int(process.stdout.readline())


@contextmanager
def _second_catalog(bench: Bench) -> Iterator[Read]:
    """Has a JDBC catalog in a database of its own, and an export that follows.

    It is not in the source's cluster, whose WAL the follower would have to pass.
    """
    owner = parse_url(bench.settings.catalog_dsn())
    url = f"postgresql://{owner.user}:{owner.password}@{owner.host}:{owner.port}/{SECOND}"
    options = ExportSettings(url=SecretStr(url), catalog=SECOND, tables=(f"{MIRROR}.*",), every_seconds=EXPORT)
    settings, stop = bench.settings.model_copy(update={"export": options}), threading.Event()
    with catalog_superuser(bench.settings) as admin:
        admin.execute(f'CREATE DATABASE "{SECOND}" OWNER "{owner.user}"')
    try:
        export(settings)
        thread = threading.Thread(target=follow, args=(settings, stop, print), daemon=True)
        thread.start()
        io = file_io_properties(settings)
        with closing(SqlCatalog(SECOND, uri=parse_url(url).sqlalchemy(), **io)) as catalog:

            def read(first: int) -> int:
                tables = (catalog.load_table((MIRROR, name)) for name in TABLES)
                scans = (table.scan(f"id >= {first}", selected_fields=("id",)) for table in tables)
                return sum(scan.to_arrow().num_rows for scan in scans)

            yield read
        stop.set()
        thread.join()
    finally:
        stop.set()
        with catalog_superuser(bench.settings) as admin:
            admin.execute(f'DROP DATABASE "{SECOND}" WITH (FORCE)')
