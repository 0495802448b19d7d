"""What a load of the vault costs, on one tree or on two of them in turn: CPU, rows and bytes that Trino reads.

    python -m benchmarks.vault_costs --rows 600000 --tree old=/path/to/worktree --tree new=. --json costs.json

Each tree writes its models from one declaration with its own scaffold and runs its own dbt on one running stack: a
first load of about a million rows, then a batch in order, one late row, and a run without new data. What the history
has more is written by Trino alone, to parsed and to the vault as loads leave it. With `--minutes` that stops after a
while, and the same command goes on with it.
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
START = "timestamp '2026-03-02 00:00 UTC'"
MOMENT = f"{START} + n * interval '10' second"
ID = "n % 25000 + 25000 * (n / 100000)"
NUMBERS = """(select million * 1000000 + thousand * 1000 + one as n
  from unnest(sequence(0, 999)) as o (one) cross join unnest(sequence(0, 999)) as t (thousand)
  cross join unnest(sequence({first} / 1000000, ({last} - 1) / 1000000)) as m (million))
where n >= {first} and n < {last}"""
CHUNK, BATCH = 1_080_000, 200  # whole hours of changes; a statement has 1 GB of memory on the embedded stack
# Which changes a load stores: satellites all, as each says something else than the one before of its key, others the
# first of the four.
FIRST = f"date_diff('second', {START}, applied_date) / 10 % 100000 < 25000"
STORED = {"sat_order_place": "true", "sat_order_state": "true", "sat_order_note": "true"} | dict.fromkeys(
    ("hub_order", "link_order_buyer", "eff_sat_order_buyer", "sts_order"), FIRST
)
STAGE, PARSED = "vault.stg_costs__orders", "parsed_costs__orders"
MEASURED = ("cpu_s", "rows", "mib")


def main() -> None:
    """Runs each tree in a process of its own, or, with `--here`, the tree that this process imports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="changes in the history")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind of load; the table has their median")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PATH", help="a checkout with its .venv")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument(
        "--minutes", type=float, default=0, help="stop writing the history then, and keep what is there"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.here:
        print(json.dumps(_measure(wanted)))
        return
    trees = dict(tree.split("=", 1) for tree in wanted.tree or ["new=."])
    results = {name: _in_tree(Path(path).resolve(), wanted) for name, path in trees.items()}
    if not all(results.values()):
        print("the history is not complete: run this again")
        return
    if wanted.json:
        wanted.json.write_text(json.dumps({"rows": wanted.rows, "batch": BATCH, "trees": results}, indent=1) + "\n")
    print(_table(results))


def _in_tree(tree: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """What each load costs; nothing while the history is not complete."""
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), "--here", "--rows", str(wanted.rows)]
    done = subprocess.run(
        [*command, "--runs", str(wanted.runs), "--minutes", str(wanted.minutes)], cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True, check=True,
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


def _measure(wanted: argparse.Namespace) -> dict[str, Any]:
    from lakehouse.settings import load_settings
    from scaffold import apply, models_of, plan
    from tests.unit.test_scaffold import declared
    from tests.zoo import Zoo, empty_project

    settings, until = load_settings(), time.monotonic() + 60 * wanted.minutes if wanted.minutes else None
    with tempfile.TemporaryDirectory(prefix="lakehouse-costs-") as folder:
        place = Path(folder)
        (place / "declared").mkdir()
        models = models_of(declared(place / "declared", SOURCE), "costs")
        project = empty_project(settings, place)
        (project / "models/sources/costs.yml").write_text(SOURCE)
        apply(plan(project, "costs", models))
        lake = Zoo(settings, project, "costs", tuple(f"{model.folder}/{model.name}" for model in models))
        lake.rows("create schema if not exists parsed")
        if not (goes_on := bool(lake.rows(f"show tables from parsed like '{PARSED}'"))) or until is None:
            lake.clear()
            _create_parsed(lake, models)
        first = {} if goes_on and until else {"the first load": _first_load(lake, min(wanted.rows, CHUNK))}
        if not _write_history(lake, wanted.rows, until):
            return {}
        found = first | _loads(lake, wanted.rows, wanted.runs)
        lake.clear()
        return found


def _create_parsed(lake: Any, models: list[Any]) -> None:
    for model in models:
        if model.folder.startswith("parsed/"):
            columns = ", ".join(f'"{name}" {kind}' for name, kind, _ in model.columns)
            lake.rows(f"create table parsed.{model.name} ({columns}) with (partitioning = array['month(_valid_from)'])")


def _first_load(lake: Any, rows: int) -> dict[str, Any]:
    _insert(lake, 0, rows)
    return _load(lake)


def _write_history(lake: Any, rows: int, until: float | None) -> bool:
    """Adds to parsed and to the vault what is missing of the history; False if the time is up before."""
    for first in range(CHUNK, rows, CHUNK):
        if until is not None and time.monotonic() > until:
            return False
        last = min(first + CHUNK, rows)
        if not lake.rows(f"select 1 from parsed.{PARSED} where _commit_lsn >= {10 * first} limit 1"):
            _insert(lake, first, last - first)
        new = f"applied_date >= {START} + interval '{10 * first}' second"
        for table, stored in STORED.items():
            names = [row[0] for row in lake.rows(f"describe vault.{table}")]
            columns = ", ".join("true" if name == "is_active" else f'"{name}"' for name in names)
            if not lake.rows(f"select 1 from vault.{table} where {new} limit 1"):
                lake.rows(f"insert into vault.{table} select {columns} from {STAGE} where {new} and {stored}")
        print(f"{last:,} of {rows:,} changes", file=sys.stderr)
    if rows > CHUNK:
        _remember(lake, rows)
    return True


def _remember(lake: Any, rows: int) -> None:
    """Lets each table of the vault remember that all of parsed is loaded, as after a load."""
    [mark] = lake.rows(
        "select cast(load_date as varchar), cast(count(*) as varchar), max(source_seq),"
        f" (select cast(snapshot_id as varchar) from parsed.\"{PARSED}$refs\" where name = 'main')"
        f" from {STAGE} where applied_date >= {START} + interval '{10 * (rows - 720)}' second"
        " group by load_date order by load_date desc limit 1"
    )
    for table in (*STORED, "hub_buyer"):
        for key, value in lake.rows(
            f"select key, value from vault.\"{table}$properties\" where key like '%.stg_costs__orders%'"
        ):
            now = "|".join([*mark, value.rpartition("|")[2]])
            lake.rows(
                f"alter table vault.{table} set properties extra_properties = map(array['{key}'], array['{now}'])"
            )


def _loads(lake: Any, rows: int, runs: int) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for run in range(runs):
        arrival = f"timestamp '2040-01-01 00:00 UTC' + interval '{2 * run}' hour"
        _insert(lake, rows + run * BATCH, BATCH, arrival)
        found.setdefault(f"{BATCH} rows in order", []).append(_load(lake))
        _insert(lake, rows // 2 + run, 1, f"{arrival} + interval '1' hour", seq=2)
        found.setdefault("one late row", []).append(_load(lake))
        found.setdefault("no new data", []).append(_load(lake))
    return {load: _median(costs) for load, costs in found.items()}


def _insert(lake: Any, first: int, count: int, loaded: str = f"date_trunc('hour', {MOMENT})", seq: int = 1) -> None:
    change = CHANGE.format(id=ID, moment=MOMENT, loaded=loaded, seq=seq)
    numbers = NUMBERS.format(first=first, last=first + count)
    lake.rows(f"insert into parsed.{PARSED} select {change} from {numbers}")


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
