"""What a load of 10,000 changes costs the vault, against the length of the history that is there already.

CPU and peak memory are Trino's own figures for the statement that fills each table.
"""

import json
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from lakehouse.settings import Settings
from tests.histories import START
from tests.zoo import Zoo, animals, build_zoo

HISTORIES = (100_000, 1_000_000, 5_000_000, 20_000_000)
BATCH = 10_000
TABLES = ("hub_animal", "link_animal_keeper", "eff_sat_animal_keeper", "sat_animal_details", "sts_animal")
_VERSIONS = """
INSERT INTO parsed.parsed_zoo__animals
SELECT CAST({key} AS integer), CAST(n % 1000 AS integer), 'name ' || CAST(n % 97 AS varchar), 'story', 1.5, 'u', false,
  timestamp '2026-04-01 00:00 UTC' + n * interval '1' second, 1, 1000000 + n, 1, 'zoo.public.animals', {moment}
FROM (SELECT {first} + million * 1000000 + thousand * 1000 + one AS n
      FROM unnest(sequence(0, 999)) AS o (one) CROSS JOIN unnest(sequence(0, 999)) AS t (thousand)
      CROSS JOIN unnest(sequence(0, {millions})) AS m (million))
WHERE n < {last}
"""


def measure_vault(settings: Settings, histories: tuple[int, ...] = HISTORIES) -> dict[str, list[float]]:
    """CPU milliseconds and peak KiB of each table's load, per length of history."""
    results: dict[str, list[float]] = {}
    for history in histories:
        place = Path(tempfile.mkdtemp(prefix="lakehouse-bench-"))
        zoo = build_zoo(settings, place)
        try:
            shutil.rmtree(zoo.project / "models" / "business")
            for table, (cpu, memory) in _costs(zoo, history).items():
                results[f"{table}, {history:,} before: CPU ms"] = [cpu]
                results[f"{table}, {history:,} before: KiB"] = [memory]
        finally:
            zoo.clear()
            shutil.rmtree(place, ignore_errors=True)
    return results


def _costs(zoo: Zoo, history: int) -> dict[str, tuple[float, float]]:
    table = animals()
    first = {"_epoch": 1, "_commit_lsn": 1, "_seq": 1, "_xid": 1, "_committed_at": START, "_ingested_at": None}
    table.apply("c", first, {"id": 0, "keeper_id": 1, "name": "Leo", "story": "", "weight": 1})
    zoo.publish(table.raw, START)
    zoo.dbt("run")
    _add(zoo, 0, history, f"n % {max(history // 4, 1)}", "2027-01-01")
    zoo.dbt("run", without="parsed")
    _add(zoo, history, history + BATCH, f"n % {max(history // 4, 1)} + 7", "2027-01-02")
    before = {row[0] for row in zoo.rows("SELECT query_id FROM system.runtime.queries")}
    zoo.dbt("run", without="parsed")
    queries = zoo.rows("SELECT query_id, query FROM system.runtime.queries WHERE query LIKE '%insert into %'")
    return {
        name: _statistics(zoo.settings, query_id)
        for query_id, text in queries
        for name in TABLES
        if query_id not in before and f'insert into "lake"."vault"."{name}"' in text
    }


def _add(zoo: Zoo, first: int, last: int, key: str, day: str) -> None:
    moment = f"timestamp '{day} 00:00 UTC'"
    millions = (last - first) // 1_000_000
    zoo.rows(_VERSIONS.format(first=first, last=last, key=key, moment=moment, millions=millions))


def _statistics(settings: Settings, query_id: str) -> tuple[float, float]:
    url = f"{settings.trino.http_scheme}://{settings.trino.host}:{settings.trino.port}/v1/query/{query_id}"
    request = urllib.request.Request(url, headers={"X-Trino-User": settings.trino.user})
    with urllib.request.urlopen(request) as answer:
        stats: dict[str, Any] = json.load(answer)["queryStats"]
    return _number(stats["totalCpuTime"]), _number(stats["peakTotalMemoryReservation"]) / 1024


def _number(text: str) -> float:
    """`1.50s` in milliseconds, `12kB` in bytes."""
    units = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "h": 3.6e6,
             "B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30}  # fmt: skip
    unit = text.lstrip("0123456789.")
    return float(text[: len(text) - len(unit)]) * units[unit]
