"""`lakehouse demo`: the whole path, by the very commands a user would type, each shown before it runs."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.shown import say

REVENUE = (
    "SELECT s.store_name, count(*) AS transactions, sum(t.total_amount) AS revenue"
    " FROM marts.fct_transactions t JOIN marts.dim_store s ON s.store_id = t.store_id"
    " GROUP BY s.store_name ORDER BY revenue DESC"
)

STAGES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("stack", (("up",),)),
    ("samples", (("samples",), ("prepare",))),
    ("snapshot", (("ingest", "--once"),)),
    (
        "live changes",
        (
            ("simulate", "retail", "--seed", "1", "--if-untouched"),
            ("simulate", "bank", "--if-untouched"),
            ("simulate", "payroll", "--if-untouched"),
        ),
    ),
    ("loads and marts", (("run", "load_retail", "load_bank", "load_payroll_employee", "build_marts"),)),
    (
        "maintenance",
        (
            (
                "run", "compact", "expire_snapshots", "remove_orphan_files", "drop_extended_stats",
                "clean_dbt_temporary",
            ),
        ),
    ),
    ("check", (("show",), ("sql", REVENUE), ("reconcile",), ("reconcile", "--views"))),
)  # fmt: skip


def demo() -> None:
    """Postgres to marts on this machine: start, load samples, ingest, build, maintain, compare with the source."""
    seconds = {}
    for stage, commands in STAGES:
        begun = time.monotonic()
        try:
            for command in commands:
                _run(command)
        except KeyboardInterrupt:
            say(
                f"in {stage!r}; what was started keeps running. Run it again to go on; `lakehouse down` stops",
                error=True,
            )
            raise
        seconds[stage] = time.monotonic() - begun
    say()
    say("seconds per stage")
    for stage, taken in seconds.items():
        say(f"  {stage:<16} {taken:6.1f}")
    say(f"  {'all':<16} {sum(seconds.values()):6.1f}")
    home = load_settings().home
    say()
    say(f"The stack of {home} is running.")
    say("`lakehouse dev` opens the Dagster UI and follows the sources; `lakehouse down` stops.")


def _run(command: tuple[str, ...]) -> None:
    say()
    say(f"$ lakehouse {shlex.join(command)}", flush=True)
    program, begun = Path(sys.executable).with_name("lakehouse"), time.monotonic()
    if subprocess.run([str(program), *command]).returncode:
        raise LakehouseError(f"`lakehouse {shlex.join(command)}` failed; the demo stops here; run it again")
    say(f"({time.monotonic() - begun:.1f} s)", flush=True)
