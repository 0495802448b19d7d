"""By which columns of the stream's rows a table tells its rows apart.

A key is declared by the names that its columns have today. The stream has them by those of the time when its rows were
written, so they are found as the columns that land in the raw table's key.
"""

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.changes import Batch, Relation
from ingestion.schema.facts import ColumnFacts
from ingestion.schema.streamed_columns import UnknownRowSchema
from ingestion.sink.rows import TableTarget
from ingestion.tasks.withheld import form_of

Key = tuple[str, ...] | None  # None where the rows do not carry all of it


def key_in(target: TableTarget, relation: Relation) -> Key:
    """The declared key in the names of a relation of the stream."""
    try:
        _, columns = form_of(target, relation)
    except UnknownRowSchema:  # its rows do not land
        return None
    return key_among(target, columns)


def key_among(target: TableTarget, columns: tuple[ColumnFacts, ...]) -> Key:
    """The declared key in the names of the stream's columns."""
    lake = {column.name: column.lake for column in target.columns}
    streamed = {column.lake: column.name for column in columns}
    names = tuple(streamed[lake[name]] for name in target.key if lake.get(name) in streamed)
    return names if len(names) == len(target.key) else None


def lacks_key(batch: Batch, key: Key) -> bool:
    """Whether the batch has updates or deletes that do not tell which row they are of."""
    if key is not None and batch.relation.identity.issuperset(key):
        return False
    return pc.any(pc.is_in(batch.meta.column("_op"), pa.array(["u", "d"]))).as_py() is True


def keeps_key(relation: Relation, key: Key) -> bool:
    """Whether the replica identity, of which no two rows have the same, lies within the key."""
    identity = relation.identity
    return relation.replica_identity != "f" and bool(identity) and identity.issubset(key or ())
