"""The next epoch: a new slot and a resync of every table, or topics that are read on."""

from collections.abc import Mapping

from ingestion.pipeline.cycle import connections
from ingestion.pipeline.session import Session
from ingestion.pipeline.survey import check_keys
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.servers.database import CatalogConnection


def begin_next_epoch(session: Session, kind: str | None = None) -> None:
    """Drops the slot, then forgets slot, cluster and positions: the next cycle makes them again, one epoch later.
    Topics that are the same go on where they were.

    LSNs are not monotone across a restore, a failover or a new cluster; the epoch is what keeps the order total. A
    crash in between leaves a slot that is gone, which the next cycle reports and this repairs. `kind` is that of the
    source from now on, where it was another.
    """
    with connections(session) as (source, states):
        if not source.holds_tables:
            known = store.read_positions(states, session.name)
            check_keys(session, known)
            _know_as_declared(session, states, known)
        forget = source.begin_anew(states)
        with states.transaction():
            leases.check(states, session.lease, session.limits.lease_seconds)
            forget(states)
            if kind is not None:
                store.set_kind(states, session.name, kind)


def _know_as_declared(session: Session, states: CatalogConnection, known: Mapping[str, store.TablePosition]) -> None:
    """The declared tables that have a raw table are known, and no others: the topics of these are read anew."""
    stream = store.read_stream(states, session.name)
    if stream is None:
        return
    there = session.catalog.locations([table.identifier for table in session.source.tables])
    wanted = {table.name for table in session.source.tables if table.identifier in there}
    with states.transaction():
        leases.check(states, session.lease, session.limits.lease_seconds)
        store.forget_positions(states, session.name, known.keys() - wanted)
        for name in wanted - known.keys():
            store.note_new(states, session.name, name, stream.epoch, None)
        store.revise(states, session.name)
