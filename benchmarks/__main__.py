"""`python -m benchmarks [name...]`: all benchmarks or those named; results as JSON, medians on the terminal."""

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.ingestion import measure_ingestion
from benchmarks.vault import measure_vault
from lakehouse.settings import Settings, load_settings

BENCHMARKS: dict[str, Callable[[Settings], dict[str, list[float]]]] = {
    "changes_per_second": measure_ingestion,
    "vault_load": measure_vault,
}
VERSIONS = ("pyspark", "pyiceberg", "pyarrow", "numpy", "adbc-driver-postgresql", "trino", "dbt-trino", "dagster")


def main() -> None:
    """Runs the benchmarks and writes benchmarks/results/<time>.json."""
    from stack.control import down, up

    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    home = Path(tempfile.mkdtemp(prefix="lakehouse-bench-"))
    home.chmod(0o755)
    os.environ["LAKEHOUSE_HOME"] = str(home)
    try:
        up(load_settings())
        results = {name: summary(BENCHMARKS[name](load_settings())) for name in names}
    finally:
        down(load_settings())
        shutil.rmtree(home, ignore_errors=True)
    file = Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machine": machine(), "versions": versions(), "results": results}, indent=2) + "\n")
    for name, result in results.items():
        for contender, figures in result.items():
            print(f"{name}: {contender:<28} median {figures['median']:>12,.0f}  runs {figures['runs']}")
    print(f"written to {file}")


def summary(runs: dict[str, list[float]]) -> dict[str, Any]:
    """Runs and their median per contender."""
    return {
        contender: {"runs": [round(value) for value in values], "median": round(statistics.median(values))}
        for contender, values in runs.items()
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that matter."""
    return {name: version(name) for name in VERSIONS}


if __name__ == "__main__":
    main()
