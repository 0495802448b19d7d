"""The next epoch: a new slot, and a resync of every table."""

from ingestion.pipeline.cycle import connections
from ingestion.pipeline.session import Session
from ingestion.pipeline.survey import check_keys
from ingestion.state import lease as leases
from ingestion.state import store


def begin_next_epoch(session: Session, kind: str | None = None) -> None:
    """Drops the slot, then forgets slot, cluster and positions: the next cycle makes them again, one epoch later.

    LSNs are not monotone across a restore, a failover or a new cluster; the epoch is what keeps the order total. A
    crash in between leaves a slot that is gone, which the next cycle reports and this repairs. `kind` is that of the
    source from now on, where it was another.
    """
    with connections(session) as (source, states):
        if not source.holds_tables:
            check_keys(session, store.read_positions(states, session.name))
        forget = source.begin_anew(states)
        with states.transaction():
            leases.check(states, session.lease, session.limits.lease_seconds)
            forget(states)
            if kind is not None:
                store.set_kind(states, session.name, kind)
