"""Throughput of the initial snapshot in rows per second, compared with Spark's JDBC source."""

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.peers import spark_jdbc
from benchmarks.workloads import insert

ROWS = 5_000_000


def narrow_snapshot(bench: Bench) -> Results:
    """A table of (bigint, text, numeric)."""
    return _snapshot(bench, "narrow", bench.rows(ROWS))


def wide_snapshot(bench: Bench) -> Results:
    """A table of 20 columns with numerics, timestamps and text."""
    return _snapshot(bench, "wide", bench.rows(ROWS))


def _snapshot(bench: Bench, kind: str, rows: int) -> Results:
    ours = Measurement("rows/s", does="consistent with the stream; until the table is in a cut")
    peer = Measurement("rows/s", does=spark_jdbc.DOES)
    for run in range(bench.runs):
        table = f"{kind}_snapshot{run}"
        first_rows = (insert(table, 1, rows), f"VACUUM ANALYZE {table}")
        with bench.tables("narrow_before") as (_, before), bench.tables(table, first_rows=first_rows) as made:
            connection, declarations = made
            bench.bring_up(before)  # advances the slot past the inserts that filled the table
            with bench.cost() as cost:
                bench.bring_up(declarations)
            bench.verify(connection, declarations)
            ours.add(rows / cost.seconds, cost)
            with bench.cost() as copied:
                spark_jdbc.copy_table(bench.settings, bench.session, table, rows)
            peer.add(rows / copied.seconds, copied)
    return {"lakehouse": ours, "Spark JDBC": peer}
