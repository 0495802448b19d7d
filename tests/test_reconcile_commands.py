"""Reconciling and repairing by the commands a user types, and as the job that the schedule launches."""

import json
import subprocess
from pathlib import Path

import pytest

from ingestion.verify import TableComparison
from lakehouse.settings import Settings
from lakehouse_cli.source.reconcile import _progress
from tests.marks import slow
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.repairing import spoil

pytestmark = pytest.mark.stack
SEED = 20261121


def run(o: Orchestrated, *arguments: str) -> tuple[int, str]:
    """Exit status and output of `lakehouse reconcile`; without its progress where a machine reads it."""
    done = subprocess.run(
        [str(BIN / "lakehouse"), "reconcile", *arguments], capture_output=True, text=True, timeout=300,
        env=o.environment, cwd=o.environment["LAKEHOUSE_PROJECT_DIR"],
    )  # fmt: skip
    return done.returncode, done.stdout + ("" if "--json" in arguments else done.stderr)


@pytest.mark.slow
def test_a_difference_is_found_named_and_repaired_by_commands(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, SEED)
    table = o.tables[0]
    status, said = run(o, o.name, "--json")
    assert status == 0, said
    assert {t["table"]: (t["equal"], t["source_rows"]) for t in json.loads(said)} == {
        t.name: (True, 500) for t in o.tables
    }

    spoil(o.world, table.name, lambda rows: [row for row in rows if row[table.key] != 7])
    wanted = f"{o.name}.{table.name}"
    status, said = run(o, wanted)
    assert status == 1 and f"{wanted}: not in the lake ({table.key}=7)" in said
    status, said = run(o, wanted, "--keys", "8..")
    assert status == 0, said
    said = o.command("lakehouse", "run", f"reconcile_{o.name}")
    assert f"check reconciles_with_source of raw_{o.name}.{table.name}: ERROR" in said

    status, said = run(o, wanted, "--keys", "1..10", "--repair")
    assert status == 1 and f"{wanted}: repaired, as new raw events: r 1" in said
    status, said = run(o, o.name)
    assert status == 0, said
    assert "check " not in o.command("lakehouse", "run", f"reconcile_{o.name}")


def test_each_table_is_told_of_when_it_is_done() -> None:
    found = TableComparison("shop", "orders", ("id",), source_rows=1500, lake_rows=1500)
    assert _progress(found, 3, 32) == "3/32 shop.orders: equal, 1,500 rows"
    found.missing = 1
    assert _progress(found, 4, 32) == "4/32 shop.orders: DIFFERENT, 1,500 rows"
    found = TableComparison("shop", "log", (), aside="without a key")
    assert _progress(found, 5, 32) == "5/32 shop.log: not compared"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keys", "1..2"), "--keys needs exactly one table"),
        slow(("a.b", "--keys", "12"), "'12' is not FIRST..END"),
        (("--views", "--repair"), "--views compares whole tables and repairs nothing"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_read(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run([str(BIN / "lakehouse"), "reconcile", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in " ".join(done.stderr.replace("│", " ").split())
