"""What a load of the vault costs, on one tree or on two of them in turn: CPU, rows and bytes that Trino reads.

    python -m benchmarks.vault_costs --rows 600000 --tree old=/path/to/worktree --tree new=. --json costs.json

Each tree writes its models from one declaration with its own scaffold and runs its own dbt on one running stack: the
history, about a million rows a load, then a batch in order, one late row, and a run without new data.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

SOURCE = """
sources:
  - name: costs
    schema: raw_costs
    tables:
      - name: orders
        description: Orders.
        config: {meta: {raw: {relation: public.orders, key: [id]}, vault: {
          hub: order, references: {buyer: buyer_id}, links: {order_buyer: [buyer]},
          satellites: {order_place: [city, street], order_state: [state, total], order_note: [note]}}}}
        columns: [{name: id, data_type: bigint}, {name: buyer_id, data_type: integer}, {name: city, data_type: text},
          {name: street, data_type: text}, {name: state, data_type: text}, {name: total, data_type: "numeric(8,2)"},
          {name: note, data_type: text}]
      - name: buyers
        description: Buyers.
        config: {meta: {raw: {relation: public.buyers, key: [id]}, vault: {hub: buyer}}}
        columns: [{name: id, data_type: integer}]
"""
# Change n: every order has four within a window of 100,000, as orders change soon after they were made.
CHANGE = """cast({id} as bigint), cast(n % 1000 as integer), 'city ' || cast(n % 97 as varchar),
  'street ' || cast(n % 1009 as varchar), 'state ' || cast(n % 5 as varchar), cast(n % 10000 as decimal(8,2)),
  'note ' || cast(n as varchar), 'u', false, {moment}, 1, 10 * cast(n as bigint), {seq}, 'costs.public.orders',
  {loaded}"""
MOMENT = "timestamp '2026-03-02 00:00 UTC' + n * interval '10' second"
ID = "n % 25000 + 25000 * (n / 100000)"
NUMBERS = """(select million * 1000000 + thousand * 1000 + one as n
  from unnest(sequence(0, 999)) as o (one) cross join unnest(sequence(0, 999)) as t (thousand)
  cross join unnest(sequence({first} / 1000000, ({last} - 1) / 1000000)) as m (million))
where n >= {first} and n < {last}"""
CHUNK, BATCH = 1_080_000, 200  # whole hours of changes; a statement has 1 GB of memory on the embedded stack
MEASURED = ("cpu_s", "rows", "mib")


def main() -> None:
    """Runs each tree in a process of its own, or, with `--here`, the tree that this process imports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="changes in the history")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind of load; the table has their median")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PATH", help="a checkout with its .venv")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.here:
        print(json.dumps(_measure(wanted.rows, wanted.runs)))
        return
    trees = dict(tree.split("=", 1) for tree in wanted.tree or ["new=."])
    results = {name: _in_tree(Path(path).resolve(), wanted.rows, wanted.runs) for name, path in trees.items()}
    if wanted.json:
        wanted.json.write_text(json.dumps({"rows": wanted.rows, "batch": BATCH, "trees": results}, indent=1) + "\n")
    print(_table(results))


def _in_tree(tree: Path, rows: int, runs: int) -> dict[str, Any]:
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), "--here", "--rows", str(rows)]
    done = subprocess.run(
        [*command, "--runs", str(runs)], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE,
        text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _table(results: dict[str, Any]) -> str:
    lines = ["| load | tree | CPU s | rows read | MiB read | statements | wall s |", "|---|---|---|---|---|---|---|"]
    for load in next(iter(results.values())):
        for tree, found in results.items():
            all_of = found[load]["total"]
            lines.append(
                f"| {load} | {tree} | {all_of['cpu_s']:.2f} | {all_of['rows']:,.0f} | {all_of['mib']:.2f}"
                f" | {all_of['statements']} | {found[load]['wall_s']:.1f} |"
            )
    return "\n".join(lines)


def _measure(rows: int, runs: int) -> dict[str, Any]:
    from lakehouse.settings import load_settings
    from scaffold import apply, models_of, plan
    from tests.unit.test_scaffold import declared
    from tests.zoo import Zoo, empty_project

    settings = load_settings()
    with tempfile.TemporaryDirectory(prefix="lakehouse-costs-") as folder:
        place = Path(folder)
        (place / "declared").mkdir()
        models = models_of(declared(place / "declared", SOURCE), "costs")
        project = empty_project(settings, place)
        (project / "models/sources/costs.yml").write_text(SOURCE)
        apply(plan(project, "costs", models))
        lake = Zoo(settings, project, "costs", tuple(f"{model.folder}/{model.name}" for model in models))
        lake.clear()
        try:
            for model in models:
                if model.folder.startswith("parsed/"):
                    columns = ", ".join(f'"{name}" {kind}' for name, kind, _ in model.columns)
                    by_month = "with (partitioning = array['month(_valid_from)'])"
                    lake.rows(f"create table parsed.{model.name} ({columns}) {by_month}")
            return _loads(lake, rows, runs)
        finally:
            lake.clear()


def _loads(lake: Any, rows: int, runs: int) -> dict[str, Any]:
    loaded = f"date_trunc('hour', {MOMENT})"
    history = []
    for first in range(0, rows, CHUNK):
        change = CHANGE.format(id=ID, moment=MOMENT, loaded=loaded, seq=1)
        numbers = NUMBERS.format(first=first, last=min(first + CHUNK, rows))
        lake.rows(f"insert into parsed.parsed_costs__orders select {change} from {numbers}")
        history.append(_load(lake))
        print(f"{first}: {history[-1]['total']}", file=sys.stderr)
    found: dict[str, list[Any]] = {"the history": [_all(history)]}
    for run in range(runs):
        arrival = f"timestamp '2040-01-01 00:00 UTC' + interval '{2 * run}' hour"
        first = rows + run * BATCH
        _insert(lake, first, BATCH, arrival)
        found.setdefault(f"{BATCH} rows in order", []).append(_load(lake))
        _insert(lake, rows // 2 + run, 1, f"{arrival} + interval '1' hour", seq=2)
        found.setdefault("one late row", []).append(_load(lake))
        found.setdefault("no new data", []).append(_load(lake))
    return {load: _median(costs) for load, costs in found.items()}


def _insert(lake: Any, first: int, count: int, loaded: str, seq: int = 1) -> None:
    change = CHANGE.format(id=ID, moment=MOMENT, loaded=loaded, seq=seq)
    numbers = NUMBERS.format(first=first, last=first + count)
    lake.rows(f"insert into parsed.parsed_costs__orders select {change} from {numbers}")


def _load(lake: Any) -> dict[str, Any]:
    """One run of dbt, and what each model's statements cost."""
    before = {row[0] for row in lake.rows("select query_id from system.runtime.queries")}
    started = time.monotonic()
    lake.dbt("run", without="parsed")
    wall = time.monotonic() - started
    spent: dict[str, list[dict[str, float]]] = defaultdict(list)
    for query_id, text in lake.rows("select query_id, query from system.runtime.queries where state = 'FINISHED'"):
        model = re.search(r'"node(?:_id)?": "model\.lakehouse\.(\w+)"', text)
        if model and query_id not in before:
            spent[model[1]].append(_statistics(lake.settings, query_id))
    models = {name: _sum(costs) for name, costs in sorted(spent.items())}
    return {"wall_s": wall, "total": _sum([cost for costs in spent.values() for cost in costs]), "models": models}


def _sum(costs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(sum(cost[name] for cost in costs), 3) for name in MEASURED} | {"statements": len(costs)}


def _all(loads: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several loads."""
    total = {name: round(sum(load["total"][name] for load in loads), 3) for name in (*MEASURED, "statements")}
    return {"wall_s": sum(load["wall_s"] for load in loads), "total": total}


def _median(costs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median CPU time."""
    middle = statistics.median_low(cost["total"]["cpu_s"] for cost in costs)
    return next(cost for cost in costs if cost["total"]["cpu_s"] == middle)


def _statistics(settings: Any, query_id: str) -> dict[str, float]:
    from lakehouse.servers.trino import http_session

    trino = settings.trino
    login = (trino.user, trino.password.get_secret_value()) if trino.password else None
    with http_session(trino) as session:
        url = f"{trino.http_scheme}://{trino.host}:{trino.port}/v1/query/{query_id}"
        stats = session.get(url, auth=login, headers={"X-Trino-User": trino.user}).json()["queryStats"]
    read = _number(stats["physicalInputDataSize"]) / 2**20
    return {"cpu_s": _number(stats["totalCpuTime"]), "rows": stats["physicalInputPositions"], "mib": read}


def _number(text: str) -> float:
    """`1.50s` in seconds, `12kB` in bytes."""
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600,
             "B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30}  # fmt: skip
    unit = text.lstrip("0123456789.")
    return float(text[: len(text) - len(unit)]) * units[unit]


if __name__ == "__main__":
    main()
