"""Changes as any source's decoder gives them back: plain tables of values beside their metadata, no wire format.

They are data between the stages rather than a part of Postgres's source: what lands rows, keeps records aside and puts
rows of one key in order knows them by these types alone. `Relation` speaks as Postgres does, of oids and a replica
identity; a source of another kind numbers its relations itself, and says `f` where a change carries every column.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

META_SCHEMA = pa.schema(
    [
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_commit_lsn", pa.int64(), nullable=False),
        pa.field("_seq", pa.int64(), nullable=False),
        pa.field("_xid", pa.int64(), nullable=False),
        pa.field("_committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("_unchanged", pa.list_(pa.string())),
        pa.field("_old_key", pa.string()),
    ]
)
PLACE_SCHEMA = pa.schema(
    [pa.field("_topic", pa.string()), pa.field("_topic_partition", pa.int32()), pa.field("_offset", pa.int64())]
)  # beside META_SCHEMA where changes come from a topic
IMAGE_COLUMNS = ("before", "after")  # what `images` adds to META_SCHEMA

PICKED_SCHEMA = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("place", pa.int64()),  # index within the transaction; `_seq` is twice that
        pa.field("xid", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("oid", pa.int64()),
        pa.field("relation", pa.binary()),
        pa.field("message", pa.binary()),
    ]
)


@dataclass(frozen=True)
class RelationColumn:
    """A published column. `is_key`: part of the replica identity (every column under REPLICA IDENTITY FULL)."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True)
class Relation:
    """A relation as one Relation message described it; `replica_identity` is pg_class.relreplident: d, n, f, i."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def identity(self) -> frozenset[str]:
        """The columns of the replica identity."""
        return frozenset(c.name for c in self.columns if c.is_key or self.replica_identity == "f")


Carried = Mapping[tuple[Relation, Relation], int]
"""A root and a partition whose rows came as the root's, and the lowest id known of a transaction that they came by."""


def lowest(one: Mapping[T, int], other: Mapping[T, int]) -> dict[T, int]:
    """All of both, each with the lower of its numbers."""
    return {key: min(found[key] for found in (one, other) if key in found) for key in (*one, *other)}


@dataclass(frozen=True)
class Batch:
    """Rows of one relation version in the order of the stream, row i of `values` beside row i of `meta`.

    `values` holds the source's columns as it prints them (text, null = NULL or not carried), `meta` the
    columns of META_SCHEMA. They are apart because a source column may have any name.
    """

    relation: Relation
    values: pa.Table
    meta: pa.Table


def rows_without_columns(count: int) -> pa.Table:
    """A table of `count` rows and no columns: Postgres has such relations, and concat_tables would forget the rows."""
    return pa.table({"": pa.nulls(count)}).select([])
