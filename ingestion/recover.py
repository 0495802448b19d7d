"""What is put aside before tables are read anew. The snapshot that follows is the ordinary one for new tables."""

from ingestion import lease as leases
from ingestion import source as src
from ingestion import state
from ingestion.context import Writer


def begin_next_epoch(writer: Writer) -> None:
    """Drops the slot, then forgets positions and cluster: the next cycle makes all of them again, one epoch later.

    LSNs are not monotone across a restore, a failover or a new cluster; the epoch is what keeps the order total. A
    crash in between leaves a slot that is gone, which the next cycle reports and this repairs.
    """
    with (
        src.connect_source(writer.settings, writer.name) as connection,
        state.connect_catalog(writer.settings) as states,
    ):
        if src.read_slot(connection, writer.slot) is not None:
            src.drop_slot(connection, writer.slot)
        publication = src.publication_oid(connection, writer.name, writer.publication)
        with states.transaction():
            leases.check(states, writer.lease, writer.limits.lease_seconds)
            state.restart_stream(
                states, writer.name, writer.slot, src.identify(writer.settings, writer.name), publication
            )


def forget_tables(writer: Writer, tables: list[str]) -> None:
    """The next cycle snapshots these tables again."""
    with state.connect_catalog(writer.settings) as states, states.transaction():
        leases.check(states, writer.lease, writer.limits.lease_seconds)
        state.forget_positions(states, writer.name, tables)
