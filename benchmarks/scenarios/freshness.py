"""Freshness: the time from a commit over five tables to its published cut, and to its rows in Trino."""

import random
import time

import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.workloads import SOURCE, insert
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect

TABLES = tuple(f"wide_fresh{number}" for number in range(5))
SAMPLES, WARM_UP = 100, 40  # Trino's JIT compiler needs this number of queries
SIZES = (1000, 500)
PERCENTILES = (*range(0, 100, 5), 99)


def freshness(bench: Bench) -> Results:
    """Transactions at random intervals of one to two seconds, with a running follower."""
    results: Results = {}
    with bench.tables(*TABLES) as (connection, declarations), bench.following(declarations):
        cursor, first = connect(bench.settings).cursor(), 1
        for number, rows in enumerate(SIZES):
            cut = Measurement("s", does=f"{rows} rows; from COMMIT's answer until a cut with all of them is published")
            returned = Measurement("s", does=f"{rows} rows; from COMMIT's answer until Trino has returned them")
            warm_up = 0 if number else WARM_UP
            for sample in range(warm_up + max(10, int(SAMPLES * bench.scale))):
                committed = commit_rows(connection, rows, first)
                bench.wait_for_follower(declarations)  # polling Trino would take CPU from the follower
                published = time.monotonic() - committed
                if len(cursor.execute(select_rows(f"raw_{SOURCE}", first)).fetchall()) != rows:
                    raise LakehouseError("a published cut does not show its rows")
                if sample >= warm_up:
                    returned.add(time.monotonic() - committed)
                    cut.add(published)
                first += rows // len(TABLES)
                time.sleep(1.0 + random.random())
            results |= {f"{rows} rows, returned by Trino": returned, f"{rows} rows, published cut": cut}
        bench.verify(connection, declarations)
    note_percentiles(results)
    return results


def commit_rows(connection: psycopg.Connection, rows: int, first: int) -> float:
    """Inserts so many rows in one transaction, as many into each table, with ids from `first` on; when it was done."""
    with connection.transaction():
        for table in TABLES:
            connection.execute(insert(table, first, first + rows // len(TABLES) - 1))
    return time.monotonic()


def select_rows(schema: str, first: int) -> str:
    """A query for these rows in the tables of a schema."""
    return " UNION ALL ".join(f"SELECT id FROM {schema}.{table} WHERE id >= {first}" for table in TABLES)


def note_percentiles(results: Results) -> None:
    """Adds percentiles to what was measured, as notes and as a plot."""
    for result in results.values():
        ordered = sorted(result.runs)
        at = {percent: ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in PERCENTILES}
        result.notes |= {f"p{percent}": round(at[percent], 3) for percent in (50, 95, 99)}
        result.plots["seconds by percentile"] = [(percent, round(seconds, 3)) for percent, seconds in at.items()]
