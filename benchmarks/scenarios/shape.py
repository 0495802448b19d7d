"""The cost of a cycle with many declared tables, a long history, or a transaction that stays open."""

import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial

import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import Cost
from benchmarks.workloads import insert

FEW, MANY, CHANGED = 3, 100, 3
CYCLES = 10
OPEN_BATCHES, OPEN_ROWS = 20, 20_000
HISTORY, TOGETHER = 1000, 50


def many_tables(bench: Bench) -> Results:
    """A cycle with changes in 3 tables, with 3 and with 100 declared tables."""
    results = {}
    for count in (FEW, MANY):
        result = Measurement("s", does=f"1,000 rows in each of {CHANGED} tables; {count} tables declared")
        names = tuple(f"narrow_of{count}_{number}" for number in range(count))
        with bench.tables(*names) as (connection, declarations), bench.following(declarations):
            for cycle in range(CYCLES + 2):
                for name in names[:CHANGED]:
                    connection.execute(insert(name, cycle * 1000 + 1, cycle * 1000 + 1000))
                with bench.cost() as cost:
                    bench.wait_for_follower(declarations)
                if cycle >= 2:
                    result.add(cost.seconds, cost)
            bench.verify(connection, declarations)
        results[f"{count} tables"] = result
    return results


def long_history(bench: Bench) -> Results:
    """Cycles of 1,000 rows in a table without maintenance: each adds a file, a snapshot and a manifest."""
    result = Measurement(
        "s", does=f"1,000 rows, until they are in a cut; a run is the median of {TOGETHER} such cycles"
    )
    with bench.tables("narrow_history") as (connection, declarations):
        bench.bring_up(declarations)
        for begin in range(0, max(3 * TOGETHER, int(HISTORY * bench.scale)), TOGETHER):
            seconds, cpu = [], Counter[str]()
            for cycle in range(begin, begin + TOGETHER):
                connection.execute(insert("narrow_history", cycle * 1000 + 1, cycle * 1000 + 1000))
                with bench.cost() as cost:
                    bench.bring_up(declarations)
                seconds.append(cost.seconds)
                cpu.update(cost.cpu)
            result.add(statistics.median(seconds), Cost(cpu={name: total / TOGETHER for name, total in cpu.items()}))
            result.plots.setdefault("seconds by commits before", []).append((float(begin), round(result.runs[-1], 3)))
        bench.verify(connection, declarations)
    result.notes["last fifty over first"] = round(result.runs[-1] / result.runs[0], 2)
    return {"lakehouse": result}


def old_transaction(bench: Bench) -> Results:
    """Seconds per batch while another transaction stays open, by live stream and by peeking at the slot."""
    results = {}
    for name, table in (("live stream (--follow)", "narrow_open_live"), ("peeks (--once)", "narrow_open_peek")):
        result = Measurement(
            "s", does=f"{OPEN_ROWS:,} rows per batch, until they are in a cut; the open transaction is as old as all"
        )
        with bench.tables(table) as (connection, declarations), psycopg.connect(bench.owner_url) as old:
            bench.bring_up(declarations)
            old.execute("SELECT pg_current_xact_id()")
            if name.startswith("live"):
                with bench.following(declarations):
                    _batches(bench, connection, table, result, partial(bench.wait_for_follower, declarations))
            else:
                _batches(bench, connection, table, result, partial(bench.bring_up, declarations))
            bench.verify(connection, declarations)
        result.plots["seconds by batch"] = [
            (number, round(seconds, 3)) for number, seconds in enumerate(result.runs, 1)
        ]
        third = len(result.runs) // 3
        result.notes["last third over first"] = round(
            statistics.median(result.runs[-third:]) / max(0.001, statistics.median(result.runs[:third])), 2
        )
        results[name] = result
    return results


def _batches(
    bench: Bench, connection: psycopg.Connection, table: str, result: Measurement, catch_up: Callable[[], None]
) -> None:
    for batch in range(OPEN_BATCHES):
        connection.execute(insert(table, batch * OPEN_ROWS + 1, (batch + 1) * OPEN_ROWS))
        with bench.cost() as cost:
            catch_up()
        result.add(cost.seconds, cost)
