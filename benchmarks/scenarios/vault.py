"""The cost of a vault load of 10,000 changes, by the length of the existing history.

Trino generates the history from sequences: a steady rate of changes over months, in files as large as after compaction.
A load is `dbt run`; CPU and peak memory are Trino's figures for all statements of a model.
"""

import re
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Measurement, Results
from lakehouse.servers.trino import http_session
from lakehouse.settings import Settings
from tests.histories import START
from tests.zoo import Zoo, animals, build_zoo

HISTORIES = (100_000, 1_000_000, 5_000_000, 20_000_000)
BATCH = 10_000
CHUNK = 5_000_000
MOMENT = "timestamp '2026-03-02 00:00 UTC' + {} * interval '3.15' second"
EVENT = f"""date_trunc('minute', {MOMENT.format("n")}), {MOMENT.format("n")},
  '0000000001.' || lpad(cast(10 * n as varchar), 19, '0') || '.0000000000000000001', 'zoo.public.animals'"""


def _hash(text: str) -> str:
    return f"lower(to_hex(md5(to_utf8({text}))))"


ANIMAL = _hash("cast(n as varchar)")
KEEPER = _hash("cast(n % 1000 as varchar)")
TOGETHER = _hash("cast(n as varchar) || '|' || cast(n % 1000 as varchar)")
VERSIONED = _hash("cast(n * 7919 % 25000 + 25000 * (n / 100000) as varchar)")
# Row n is change n of the source. Each key of the satellite has four versions, each key of the others one.
FILLED = {
    "hub_animal": f"{ANIMAL}, cast(n as integer), {EVENT}",
    "link_animal_keeper": f"{TOGETHER}, {ANIMAL}, {KEEPER}, {EVENT}",
    "sat_animal_details": f"{VERSIONED}, {ANIMAL}, 'name ' || cast(n % 97 as varchar), 'story', 1.5, false, {EVENT}",
    "eff_sat_animal_keeper": f"{TOGETHER}, {ANIMAL}, true, {EVENT}",
}
NUMBERS = """(SELECT million * 1000000 + thousand * 1000 + one AS n
  FROM unnest(sequence(0, 999)) AS o (one) CROSS JOIN unnest(sequence(0, 999)) AS t (thousand)
  CROSS JOIN unnest(sequence({first} / 1000000, ({last} - 1) / 1000000)) AS m (million))
WHERE n >= {first} AND n < {last}"""
# A quarter of the keys are new, the others spread over the history; one transaction, published at once.
CHANGES = """INSERT INTO parsed.parsed_zoo__animals
SELECT CAST(CASE WHEN j % 4 = 0 THEN 100000000 + {history} + {run} * {batch} + j
  ELSE j * {stride} + {run} END AS integer), CAST(j % 1000 + 7 AS integer), 'name ' || CAST(j % 89 AS varchar), 'story',
  2.5, 'u', false, {moment}, 1, 10 * {history} - 5, {run} * {batch} + j, 'zoo.public.animals', {moment}
FROM unnest(sequence(0, {batch} - 1)) AS b (j)"""


def vault_loads(bench: Bench) -> Results:
    """CPU seconds and peak memory of the loads of each table, by length of history."""
    place = Path(tempfile.mkdtemp(prefix="lakehouse-bench-"))
    zoo = build_zoo(bench.settings, place)
    try:
        _keep_measured(zoo)
        return _costs(zoo, sorted({bench.rows(history) for history in HISTORIES}), bench.runs)
    finally:
        zoo.clear()
        shutil.rmtree(place, ignore_errors=True)


def _keep_measured(zoo: Zoo) -> None:
    shutil.rmtree(zoo.project / "models" / "business")
    shutil.rmtree(zoo.project / "models" / "timelines")
    for file in (zoo.project / "models" / "vault" / "zoo").iterdir():
        if file.stem not in FILLED:
            file.unlink()


def _costs(zoo: Zoo, histories: list[int], runs: int) -> Results:
    table, results = animals(), Results()
    first = {"_epoch": 1, "_commit_lsn": 0, "_seq": 1, "_xid": 1, "_committed_at": START, "_ingested_at": None}
    table.apply("c", first, {"id": -1, "keeper_id": 1, "name": "Leo", "story": "", "weight": 1})
    zoo.publish(table.raw, START)
    zoo.dbt("run")
    filled = 0
    for history in histories:
        for begin in range(filled, history, CHUNK):
            _fill(zoo, begin, min(begin + CHUNK, history))
        filled = history
        for model in FILLED:
            does = f"{BATCH:,} changes on a history of {history:,} rows"
            results[f"{model}, {history:,} rows"] = Measurement("CPU s", does=does, notes={"peak MiB": []})
        for run in range(runs):
            for model, cpu, memory in _load(zoo, history, run, runs):
                results[f"{model}, {history:,} rows"].add(cpu)
                results[f"{model}, {history:,} rows"].notes["peak MiB"].append(round(memory))
    for model in FILLED:
        costs = [(rows, statistics.median(results[f"{model}, {rows:,} rows"].runs)) for rows in histories]
        longest = results[f"{model}, {histories[-1]:,} rows"]
        longest.plots["CPU s by million rows of history"] = [(rows / 1e6, cpu) for rows, cpu in costs]
    return results


def _fill(zoo: Zoo, first: int, last: int) -> None:
    for name, columns in FILLED.items():
        zoo.rows(f"INSERT INTO vault.{name} SELECT {columns} FROM {NUMBERS.format(first=first, last=last)}")


def _load(zoo: Zoo, history: int, run: int, runs: int) -> Iterator[tuple[str, float, float]]:
    moment = MOMENT.format(history - 1) + f" + interval '{3 * (run + 1) / (runs + 1):.3f}' second"
    stride = max(history // 4 // BATCH, 1)
    zoo.rows(CHANGES.format(history=history, run=run, batch=BATCH, stride=stride, moment=moment))
    before = {row[0] for row in zoo.rows("SELECT query_id FROM system.runtime.queries")}
    zoo.dbt("run", without="parsed")
    spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for query_id, text in zoo.rows("SELECT query_id, query FROM system.runtime.queries WHERE state = 'FINISHED'"):
        model = re.search(r'"node": "model\.lakehouse\.(\w+)"', text)
        if model and model[1] in FILLED and query_id not in before:
            spent[model[1]].append(_statistics(zoo.settings, query_id))
    for name in FILLED:
        cpu, memory = zip(*spent[name], strict=True)
        yield name, sum(cpu), max(memory)


def _statistics(settings: Settings, query_id: str) -> tuple[float, float]:
    trino = settings.trino
    login = (trino.user, trino.password.get_secret_value()) if trino.password else None
    with http_session(trino) as session:
        url = f"{trino.http_scheme}://{trino.host}:{trino.port}/v1/query/{query_id}"
        answer = session.get(url, auth=login, headers={"X-Trino-User": trino.user})
    stats: dict[str, Any] = answer.json()["queryStats"]
    return _number(stats["totalCpuTime"]), _number(stats["peakTotalMemoryReservation"]) / 2**20


def _number(text: str) -> float:
    """`1.50s` in seconds, `12kB` in bytes."""
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600,
             "B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30}  # fmt: skip
    unit = text.lstrip("0123456789.")
    return float(text[: len(text) - len(unit)]) * units[unit]
