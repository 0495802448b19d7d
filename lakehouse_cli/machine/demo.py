"""`lakehouse demo`: the whole path, by the very commands a user would type, each shown before it runs."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say
from lakehouse_samples.loading import SAMPLES

MARTS = ("fct_transactions", "dim_store")
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
    _check_project(load_settings())
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


def _check_project(settings: Settings) -> None:
    """Raises LakehouseError where the project is not that of the demo, whose declarations and models are not in the
    wheel; before anything is started or loaded."""
    manifest = load_manifest(settings)
    found = {each["source_name"] for each in manifest["sources"].values()}
    found |= {each["name"] for each in manifest["nodes"].values()}
    if missing := [name for name in (*SAMPLES, *MARTS) if name not in found]:
        raise LakehouseError(
            f"{settings.project_dir} is not the project of the demo, as it has no {', '.join(missing)}: run "
            "`make demo` in a checkout; `lakehouse scaffold SOURCE` begins with a database of yours"
        )


def _run(command: tuple[str, ...]) -> None:
    say()
    say(f"$ lakehouse {shlex.join(command)}", flush=True)
    program, begun = Path(sys.executable).with_name("lakehouse"), time.monotonic()
    if subprocess.run([str(program), *command]).returncode:
        raise LakehouseError(f"`lakehouse {shlex.join(command)}` failed; the demo stops here; run it again")
    say(f"({time.monotonic() - begun:.1f} s)", flush=True)
