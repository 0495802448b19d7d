"""From the commit of a 1,000-row transaction over five tables until Trino returns its rows."""

import random
import time

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.workloads import SOURCE, insert
from lakehouse.errors import LakehouseError
from lakehouse.trino import connect

TABLES = tuple(f"wide_fresh{number}" for number in range(5))
SAMPLES, WARM_UP = 100, 5
ROWS = 1000


def freshness(bench: Bench) -> Results:
    """Transactions at random moments, one to two seconds apart."""
    result = Measurement("s", does="the follower by itself; from COMMIT's answer to a SELECT over all five tables")
    each = ROWS // len(TABLES)
    with bench.tables(*TABLES) as (connection, declarations), bench.following(declarations):
        cursor = connect(bench.settings).cursor()
        for sample in range(WARM_UP + max(10, int(SAMPLES * bench.scale))):
            first = 1 + sample * each
            with connection.transaction():
                for table in TABLES:
                    connection.execute(insert(table, first, first + each - 1))
            committed = time.monotonic()
            counted = " + ".join(f"(SELECT count(*) FROM raw_{SOURCE}.{t} WHERE id >= {first})" for t in TABLES)
            bench.until_level(declarations)  # asking Trino all the while would take both cores from the follower
            if cursor.execute(f"SELECT {counted}").fetchall()[0][0] != ROWS:
                raise LakehouseError("a published cut does not show its rows")
            if sample >= WARM_UP:
                result.add(time.monotonic() - committed)
            time.sleep(1.0 + random.random())
        bench.verify(connection, declarations)
    ordered = sorted(result.runs)
    result.notes = {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in (50, 95, 99)}
    return {"lakehouse": result}
