"""`lakehouse rehash`: the whole vault anew, after a change of what its keys are made of."""

from contextlib import closing

from lakehouse.declarations.manifest import rebuild
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import busy, console


def rehash() -> None:
    """Build the vault anew from parsed, and all that is made from it.

    For another hash function (vars.vault_hash), key or collision code: every table has to have the new keys. Loads wait
    until it is done. Run it again if it was interrupted.
    """
    from orchestration.runs.processes.interrupts import interruptible

    with interruptible(), busy(console(error=True), "building the vault and what is made from it anew"):
        rebuild_vault(load_settings())


def rebuild_vault(settings: Settings) -> None:
    """Builds it while no load runs; raises LakehouseError with dbt's last lines."""
    from orchestration.runs.processes.presence import writing

    with closing(connect_catalog(settings)) as connection, writing(connection, settings.catalog_name):
        rebuild(settings, ["path:models/stage+"])
