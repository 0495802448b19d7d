"""What the stream says of partitions: it describes each one behind the table whose rows it carries as."""

from collections.abc import Collection

from ingestion.schema.changes import Carried, Relation, lowest
from ingestion.schema.declared_columns import needed_of_partitions
from ingestion.sink.rows import TableTarget
from ingestion.tasks.row_keys import key_in


def partitions_of(target: TableTarget, carried: Carried) -> dict[int, int]:
    """The oids of partitions whose rows came as the table's own, and the lowest id of a transaction they came by."""
    found = dict[int, int]()
    for (root, leaf), xid in carried.items():
        if root.oid in target.oids:
            found = lowest(found, {leaf.oid: xid})
    return found


def carried_resync_reason(target: TableTarget, carried: Collection[tuple[Relation, Relation]]) -> str | None:
    """Why the table's own records cannot have told everything; None when they can.

    Rows of a table that is a partition for a while come as its root's. A partition with a replica identity of its own
    tells by that, and not by the root's, which row was changed.
    """
    mine = frozenset[int]().union(*(facts.oids for facts in target.versions))
    for root, leaf in carried:
        if root.oid not in target.oids:
            if leaf.oid in mine:
                return "rows of it came as those of another table, which it was or had a partition of"
            continue
        key = key_in(target, root) or target.key
        needed = needed_of_partitions(key, root.identity, shares_keys=target.shares_keys)
        if target.updates and leaf.replica_identity != "f" and not needed <= leaf.identity:
            lacks = "narrower than the table's" if leaf.identity.issuperset(key) else "without the declared key"
            return f"partition {leaf.schema}.{leaf.name} had a replica identity {lacks}"
    return None
