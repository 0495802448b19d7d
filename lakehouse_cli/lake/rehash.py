"""`lakehouse rehash`: the whole vault anew, after a change of what its keys are made of."""

from contextlib import closing

from lakehouse.declarations.manifest import rebuild
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import busy, console
from lakehouse_cli.lake.run import problem

LAYERS = ("stage", "vault", "timelines")


def rehash() -> None:
    """Build the vault anew from parsed, and the marts from it.

    For another hash function (vars.vault_hash), key or collision code: every table has to have the new keys. Loads wait
    until the vault is there again. Run it again if it was interrupted.
    """
    from lakehouse_stack.home.instance import ensure_instance
    from orchestration.runs.interrupts import interruptible

    settings = load_settings()
    ensure_instance(settings)
    with busy(console(error=True), "building the vault anew"):
        build_vault(settings)
    with interruptible() as stop:
        from orchestration.jobs.marts import JOB
        from orchestration.runner import run_jobs

        outcomes = run_jobs(settings, [JOB], None, stop)
    if failed := [problem(outcome) for outcome in outcomes if not outcome.success]:
        raise LakehouseError(*failed)


def build_vault(settings: Settings) -> None:
    """Builds the vault anew while no load runs; raises LakehouseError with dbt's last lines."""
    from orchestration.runs.presence import writing

    with closing(connect_catalog(settings)) as connection, writing(connection, settings.catalog_name):
        rebuild(settings, [f"path:models/{layer}" for layer in LAYERS])
