"""The next epoch: a new slot, and every table in doubt, so that it is compared with the source and repaired."""

from ingestion.pipeline.session import Writer
from ingestion.sources.postgres import connection as src
from ingestion.state import lease as leases
from ingestion.state import store


def begin_next_epoch(writer: Writer) -> None:
    """Drops the slot, then forgets slot, cluster and positions: the next cycle makes them again, one epoch later.

    LSNs are not monotone across a restore, a failover or a new cluster; the epoch is what keeps the order total. A
    crash in between leaves a slot that is gone, which the next cycle reports and this repairs.
    """
    with (
        src.connect_source(writer.settings, writer.name) as connection,
        store.connect_catalog(writer.settings) as states,
    ):
        if src.read_slot(connection, writer.slot) is not None:
            src.drop_slot(connection, writer.slot)
        publication = src.publication_oid(writer.settings, connection, writer.name, writer.publication)
        with states.transaction():
            leases.check(states, writer.lease, writer.limits.lease_seconds)
            store.restart_stream(
                states, writer.name, writer.slot, src.identify(writer.settings, writer.name, connection), publication
            )
