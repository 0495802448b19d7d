"""Keeps others from writing to a lake whose catalog is restored.

Between the load of the dump and the end of the roll-forward, the catalog has the pointers of the backup: who goes on
from these writes beside what the warehouse has got since. So all leases change hands in the transaction that loads the
dump, and come back when a restore has ended. They are bound to no session: one that was killed has to be run again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingestion.state import lease, store
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.worker_sessions import refuse_worker
from lakehouse.settings import Settings
from lakehouse.text.sql import literal

RESTORE = "lakehouse restore-backup (one that was killed has to be run again)"
# Whoever has taken a lease since it was asked for would publish to what is replaced; nobody takes one from here on.
NOBODY_WRITES = f"""DO $$ DECLARE held record; BEGIN
  IF to_regclass('lakehouse.leases') IS NULL THEN RETURN; END IF;
  LOCK TABLE lakehouse.leases IN ACCESS EXCLUSIVE MODE;
  SELECT source, holder INTO held FROM lakehouse.leases WHERE {lease.AT_WORK} AND holder <> {literal(RESTORE)} LIMIT 1;
  IF FOUND THEN RAISE 'source %: % is at work: stop it, then run this again', held.source, held.holder; END IF;
END $$;
"""


def refuse_at_work(settings: Settings) -> None:
    """Raises LakehouseError while somebody ingests, or a worker lives."""
    with store.connect_catalog(settings) as states:
        lease.refuse_writers(states, but=RESTORE)  # a cut published during the restore would be lost
    refuse_worker(settings)


def holding_off(sources: Iterable[str]) -> str:
    """The statements that hand the restored leases, and those of the sources, to the restore.

    Removed files are kept as long as if they had been removed now: some may be in use again since the backup.
    """
    values = "token, holder, mode, acquired_at, expires_at"
    taken = f"{literal(RESTORE)}, 'once', clock_timestamp(), clock_timestamp() + interval '100 years'"
    new = "".join(
        f"  INSERT INTO lakehouse.leases (source, {values}) VALUES ({literal(source)}, 1, {taken})"
        " ON CONFLICT DO NOTHING;\n"
        for source in sources
    )
    return f"""DO $$ BEGIN
  IF to_regclass('lakehouse.leases') IS NOT NULL THEN
  UPDATE lakehouse.leases SET ({values}) = (token + 1, {taken});
{new}  END IF;
  IF to_regclass('lakehouse.removed_files') IS NOT NULL THEN
  UPDATE lakehouse.removed_files SET removed_at = clock_timestamp(); END IF;
END $$;
"""


def forget_processes(states: CatalogConnection) -> None:
    """Forgets what ran when the backup was made: nobody started it in this home, so nobody misses it."""
    states.execute("UPDATE lakehouse.leases SET follower_token = NULL WHERE follower_token IS NOT NULL")
    states.execute("TRUNCATE lakehouse.workers, lakehouse.exports, lakehouse.progress")


def let_in(states: CatalogConnection) -> None:
    """Gives the leases back."""
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE holder = %s", (RESTORE,))
