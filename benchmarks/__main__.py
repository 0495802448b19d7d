"""`python -m benchmarks [SCENARIO ...]` runs scenarios with their peers and writes the results as JSON and to docs/."""

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench import Bench, Results
from benchmarks.report import write_report
from benchmarks.scenarios.changes import huge_transaction, mixed_changes, narrow_inserts
from benchmarks.scenarios.commit_to_fact import commit_to_fact
from benchmarks.scenarios.events_visible import events_visible
from benchmarks.scenarios.freshness import freshness
from benchmarks.scenarios.freshness_readers import freshness_readers
from benchmarks.scenarios.idle import idle
from benchmarks.scenarios.kills import kills
from benchmarks.scenarios.maintenance import maintenance
from benchmarks.scenarios.many_models import many_models
from benchmarks.scenarios.marts_by_key import marts_by_key
from benchmarks.scenarios.mirror_reads import large_mirror_reads, mirror_reads
from benchmarks.scenarios.mirrors import large_mirror_refreshes, mirror_publishes, mirror_refreshes
from benchmarks.scenarios.shape import long_history, many_tables, old_transaction
from benchmarks.scenarios.snapshots import narrow_snapshot, wide_snapshot
from benchmarks.scenarios.topics import narrow_events, wide_envelopes
from benchmarks.scenarios.tpcb import single_row_transactions
from benchmarks.scenarios.vault import vault_loads
from lakehouse.settings import load_settings
from lakehouse_stack.control.start_stop import down, up

SCENARIOS: dict[str, tuple[str, Callable[[Bench], Results]]] = {
    "narrow_inserts": ("Changes: narrow inserts", narrow_inserts),
    "mixed_changes": ("Changes: 20 columns, 60 % insert, 30 % update, 10 % delete, 5 tables", mixed_changes),
    "narrow_events": ("Topics in Kafka: narrow events, loaded before", narrow_events),
    "wide_envelopes": ("Topics of Debezium: envelopes of 20 columns, loaded before", wide_envelopes),
    "events_visible": ("Freshness of a topic, and of a slot", events_visible),
    "huge_transaction": ("One transaction of 5,000,000 changes", huge_transaction),
    "narrow_snapshot": ("Snapshot: narrow", narrow_snapshot),
    "wide_snapshot": ("Snapshot: 20 columns", wide_snapshot),
    "freshness": ("Freshness: 1,000 rows over five tables", freshness),
    "freshness_readers": ("Freshness by reader: 1,000 rows over five tables", freshness_readers),
    "single_row_transactions": ("Single-row transactions: pgbench TPC-B", single_row_transactions),
    "many_tables": ("A cycle with many declared tables", many_tables),
    "long_history": ("A cycle with a long history", long_history),
    "old_transaction": ("A transaction that stays open", old_transaction),
    "maintenance": ("Maintenance: a table after 5,000 small commits", maintenance),
    "commit_to_fact": ("From the commit of a sale to its fact", commit_to_fact),
    "many_models": ("Sales with ten times the models, of which none changes but the demo's", many_models),
    "marts_by_key": ("Two facts after twenty sales", marts_by_key),
    "mirror_reads": ("Mirrors: a full scan beside a plain copy of the same rows", mirror_reads),
    "large_mirror_reads": ("Mirrors: a full scan of 10,000,000 narrow rows beside a plain copy", large_mirror_reads),
    "mirror_refreshes": ("Mirrors: a refresh of 1,000,000 wide rows with 10,000 changes", mirror_refreshes),
    "large_mirror_refreshes": (
        "Mirrors: a refresh of 10,000,000 narrow rows with 10,000 changes",
        large_mirror_refreshes,
    ),
    "mirror_publishes": ("Mirrors: publishes beside refreshes", mirror_publishes),
    "idle": ("An idle hour, and a load with nothing new", idle),
    "kills": ("kill -9", kills),
    "vault_loads": ("Data Vault loads: 10,000 changes against a history", vault_loads),
}
VERSIONS = ("pyspark", "pyiceberg", "pyarrow", "numpy", "adbc-driver-postgresql", "trino", "dbt-trino", "dagster")
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Runs the scenarios on their own stack; results are written after each scenario."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS], help="default: all")
    parser.add_argument("--runs", type=int, default=5, help="runs per contender (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the work; docs/benchmarks.md shows 1.0")
    parser.add_argument("--docs", action="store_true", help="also write the results to docs/benchmarks.md")
    arguments = parser.parse_args()
    if arguments.runs < 1 or arguments.scale <= 0:
        parser.error("--runs and --scale must be positive")
    home = Path(tempfile.mkdtemp(prefix="lakehouse-bench-"))
    home.chmod(0o755)
    os.environ["LAKEHOUSE_HOME"] = str(home)
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": {name: version(name) for name in VERSIONS},
        "settings": {"runs": arguments.runs, "scale": arguments.scale},
        "results": {},
    }
    file = Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    file.parent.mkdir(exist_ok=True)
    try:
        up(load_settings())
        bench = Bench(load_settings(), arguments.runs, arguments.scale)
        for name in arguments.scenario or SCENARIOS:
            title, run = SCENARIOS[name]
            contenders = {contender: found.as_json() for contender, found in run(bench).items()}
            results["results"][name] = {"title": title, "contenders": contenders}
            file.write_text(json.dumps(results, indent=2) + "\n")
            for contender, found in contenders.items():
                print(f"{name}: {contender:<28} median {found['median']:>12,} {found['unit']}", flush=True)
    finally:
        down(load_settings())
        shutil.rmtree(home, ignore_errors=True)
    print(f"written to {file}")
    if arguments.docs:
        write_report(ROOT / "docs" / "benchmarks.md", results)


def machine() -> dict[str, Any]:
    """The machine that runs the benchmarks."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
