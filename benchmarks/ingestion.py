"""Changes a second from the slot to a published cut, beside `pg_recvlogical` throwing the same changes away."""

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial

import psycopg

from ingestion import bring_up
from ingestion.setup import prepare
from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.policies import LoadPolicy, RawPolicy
from lakehouse.settings import Settings
from lakehouse.spark import spark_session
from lakehouse.urls import parse_url
from stack.accounts import packaged_programs

ROWS = 500_000
RUNS = 3
NAME = "payroll"
DDL = "CREATE TABLE IF NOT EXISTS bench (id bigint PRIMARY KEY, name text, amount numeric(12,2))"


def measure_ingestion(settings: Settings) -> dict[str, list[float]]:
    """Rows a second: the lake's whole cycle, and the peer, each on the same inserts."""
    source = _source()
    declarations = Declarations(sources=(source,))
    owner = settings.source(NAME).owner_url
    assert owner is not None
    results: dict[str, list[float]] = {"lakehouse ingest": [], "pg_recvlogical > /dev/null": []}
    with psycopg.connect(owner.get_secret_value(), autocommit=True) as connection:
        connection.execute(DDL)
        prepare(settings, source)
        session = spark_session(settings, "lakehouse-bench")
        bring_up(settings, declarations, NAME, session)
        for run in range(RUNS):
            _peer(settings, "--create-slot")
            connection.execute(
                "INSERT INTO bench SELECT i, 'name ' || i, i * 0.01 FROM generate_series(%s::bigint, %s::bigint) i",
                (run * ROWS + 1, (run + 1) * ROWS),
            )
            end = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            assert end is not None
            results["pg_recvlogical > /dev/null"].append(ROWS / _seconds(partial(_peer, settings, "--start", end[0])))
            _peer(settings, "--drop-slot")
            results["lakehouse ingest"].append(ROWS / _seconds(lambda: bring_up(settings, declarations, NAME, session)))
    return results


def _seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _peer(settings: Settings, action: str, until: str | None = None) -> None:
    url = parse_url(settings.source(NAME).url.get_secret_value())
    command = [str(packaged_programs() / "pg_recvlogical"), action, "--slot", "bench_peer", "--plugin", "pgoutput"]
    command += ["--host", url.host, "--port", str(url.port), "--username", url.user, "--dbname", url.database]
    if until:
        command += [
            "--endpos",
            until,
            "--file",
            os.devnull,
            "-o",
            "proto_version=1",
            "-o",
            "publication_names=lakehouse",
        ]
    subprocess.run(command, check=True, env=os.environ | {"PGPASSWORD": url.password})


def _source() -> Source:
    raw = RawPolicy(relation="public.bench", key=("id",))
    table = RawTable(
        source=NAME, name="bench", description="", columns=(Column(name="id", data_type=None, description=""),),
        raw=raw, load=LoadPolicy(), maintenance=None, owners=(),
    )  # fmt: skip
    return Source(name=NAME, description="", load=LoadPolicy(), tables=(table,))
