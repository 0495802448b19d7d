"""Follow transactions and relations through the stream.

A block of messages may begin and end in the middle of a transaction, so what a later message needs to know about
earlier ones is one small immutable `State`. `feed` puts the new state in force only when the whole
array decoded: after a DecodeError the decoder stands where it stood before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import (
    IMAGE_COLUMNS,
    META_SCHEMA,
    PICKED_SCHEMA,
    Batch,
    Carried,
    Relation,
    lowest,
    rows_without_columns,
)
from ingestion.sources.postgres.pgoutput.carried import carried_partitions
from ingestion.sources.postgres.pgoutput.cells import fail_where
from ingestion.sources.postgres.pgoutput.model import DecodeError
from ingestion.sources.postgres.pgoutput.relations import encode_relation, read_truncates, read_versions, segments
from ingestion.sources.postgres.pgoutput.rows import Rows, decode_rows
from ingestion.sources.postgres.pgoutput.wire import Mask, Positions, Wire, blocks

Keys = Callable[[Relation], tuple[str, ...] | None]

_POSTGRES_EPOCH = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970
_LATEST = 252_455_615_999_999_999  # 9999-12-31 in microseconds since 2000
_EARLIEST = -63_082_281_600_000_000  # 0001-01-01
# A is an abort that Postgres 18 announces to everybody, of a transaction that it has sent nothing of
_KNOWN = np.frombuffer(b"BCRYOMIUDTA", np.uint8)
_BEGIN_SIZE, _COMMIT_SIZE, _SMALLEST_CHANGE = 21, 26, 8


@dataclass(frozen=True)
class State:
    """Where the decoder stands. The fields of a transaction are meaningful while `in_transaction`."""

    in_transaction: bool = False
    lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    counted: int = 0  # messages of the transaction so far that take a place in `_seq`
    relations: Mapping[int, Relation] = field(default_factory=dict)
    described: tuple[Relation, ...] = ()  # those that the last messages described, two at most
    carried: Carried = field(default_factory=dict)
    transactions: int = 0
    last_commit_lsn: int | None = None
    last_commit_end_lsn: int | None = None
    last_commit_at: int | None = None


@dataclass(frozen=True)
class _Transactions:
    """The transactions of a block; number 0 is the one open when the block began (or a placeholder)."""

    number: Positions  # per message
    lsn: Positions  # the rest: per transaction
    committed_at: Positions
    xid: Positions
    place: Positions  # per message: its index within its transaction


class Decoder:
    """Decode a stream of pgoutput messages that arrives in pieces, cut anywhere between messages.

    `xid_reference` is a 64-bit transaction id of the stream's time (a little older or younger is fine); it widens
    the 32-bit ids of the stream.
    `keys` names the key of a relation as it is described, where the replica identity does not: under REPLICA IDENTITY
    FULL an update is known as a key change only with it.
    `only` are the oids of the relations to decode; all of them when left out. `images` are those whose rows' images
    are wanted (IMAGE_COLUMNS beside META_SCHEMA).
    """

    def __init__(
        self,
        xid_reference: int,
        keys: Keys | None = None,
        only: frozenset[int] | None = None,
        images: frozenset[int] = frozenset(),
    ) -> None:
        self._xid_reference = xid_reference
        self._keys = keys
        self.only = only
        self._images = images
        self._state = State()
        self._before = self._state

    @property
    def in_transaction(self) -> bool:
        """Whether the last message was inside a transaction."""
        return self._state.in_transaction

    @property
    def transactions(self) -> int:
        """Complete transactions seen."""
        return self._state.transactions

    @property
    def last_commit_lsn(self) -> int | None:
        """Commit LSN of the last complete transaction."""
        return self._state.last_commit_lsn

    @property
    def last_commit_end_lsn(self) -> int | None:
        """End LSN of the last complete transaction: the slot may be advanced to here."""
        return self._state.last_commit_end_lsn

    @property
    def last_commit_at(self) -> int | None:
        """Commit time of the last complete transaction, microseconds since 1970."""
        return self._state.last_commit_at

    @property
    def carried(self) -> Carried:
        """Partitions that had rows, as the stream describes them."""
        return self._state.carried

    @property
    def relations(self) -> Mapping[int, Relation]:
        """The relations in force, by oid."""
        return self._state.relations

    def feed(self, messages: pa.Array | pa.ChunkedArray) -> list[Batch]:
        """Decode the next messages. The batches of one table are in the order of the stream."""
        state = self._state
        parts: list[Batch] = []
        for first, wire in _all_blocks(messages):
            try:
                state, decoded = self._decode(state, wire)
            except DecodeError as error:
                earliest = self._earliest(state, wire, error)
                raise DecodeError(first + earliest.index, earliest.reason) from None
            parts += decoded
        self._before, self._state = self._state, state
        return _merged(parts)

    def pick(self, messages: pa.Array | pa.ChunkedArray, oids: frozenset[int]) -> pa.Table:
        """The change messages of some relations as they are (PICKED_SCHEMA), of the messages last given to `feed`.

        A truncate of several relations is given for each of them apart.
        """
        state, picked = self._before, []
        for _, wire in _all_blocks(messages):
            state, parts, transactions = _walk(state, wire, self._xid_reference)
            picked += [_picked(wire, relation, at, transactions) for relation, at in parts if relation.oid in oids]
        return pa.concat_tables([PICKED_SCHEMA.empty_table(), *picked])

    def _decode(self, state: State, wire: Wire) -> tuple[State, list[Batch]]:
        if len(wire) == 0:
            return state, []
        after, parts, transactions = _walk(state, wire, self._xid_reference)
        batches = []
        for relation, segment in parts:
            if self.only is None or relation.oid in self.only:
                wanted = relation.oid in self._images
                key = self._keys(relation) if self._keys is not None else None
                rows = decode_rows(wire, relation, key, segment, images=wanted)
                batches.append(Batch(relation, rows.values, _meta(rows, transactions)))
        return after, batches

    def _earliest(self, state: State, wire: Wire, error: DecodeError) -> DecodeError:
        """The first bad message: checks run by kind and column, so a later one may have been found first."""
        try:
            self._decode(state, wire.first(error.index))
        except DecodeError as earlier:
            return self._earliest(state, wire, earlier)
        return error

    def skip(self, message: bytes) -> pa.Table:
        """Pass over one change message that could not be decoded, so that those after it keep their `_seq`.

        Returns it as `pick` does, with no row for a logical message. Raises ValueError for what cannot be skipped.
        """
        relation = self._state.relations.get(int.from_bytes(message[1:5], "big"))
        if message[:1] not in (b"I", b"U", b"D") or not self._state.in_transaction or relation is None:
            raise ValueError("only a change message inside a transaction can be skipped")
        picked = pa.table(
            [
                [self._state.lsn], [self._state.counted], [self._state.xid],
                pa.array([self._state.committed_at]).cast(pa.timestamp("us", tz="UTC")),
                [relation.oid], [encode_relation(relation)], [message],
            ],
            schema=PICKED_SCHEMA,
        )  # fmt: skip
        self._before = self._state = replace(self._state, counted=self._state.counted + 1)
        return picked


def _all_blocks(messages: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, Wire]]:
    first = 0
    for chunk in messages.chunks if isinstance(messages, pa.ChunkedArray) else [messages]:
        for index, wire in blocks(chunk):
            yield first + index, wire
        first += len(chunk)


def _walk(
    state: State, wire: Wire, xid_reference: int
) -> tuple[State, list[tuple[Relation, Positions]], _Transactions]:
    """The row messages of each relation version of a block, and where the decoder stands after it."""
    every = np.arange(len(wire))
    size = wire.end - wire.start
    fail_where(size == 0, every, "message is empty")
    kind = wire.u8(wire.start)
    known = np.isin(kind, _KNOWN)
    if not known.all():
        index = int(np.argmin(known))
        raise DecodeError(index, f"unknown kind of message {bytes([kind[index]])!r}")
    change = np.isin(kind, np.frombuffer(b"IUD", np.uint8))
    fail_where(change & (size < _SMALLEST_CHANGE), every, "message is too short")
    transactions, depth = _read_transactions(state, wire, kind, size, xid_reference)
    fail_where((change | (kind == ord("T"))) & (depth != 1), every, "change outside of a transaction")
    versions = read_versions(wire, np.flatnonzero(kind == ord("R")), state.relations)
    messages, oids = _changes(wire, np.flatnonzero(change), np.flatnonzero(kind == ord("T")))
    after = _after(state, wire, kind, transactions, bool(depth[-1]))
    if versions.changes:
        after = replace(after, relations=versions.after())
    if versions.changes or state.described:
        found, described = carried_partitions(state.described, kind, versions.changes)
        by = {pair: int(transactions.xid[transactions.number[index]]) for pair, index in found.items()}
        after = replace(after, carried=lowest(state.carried, by), described=described)
    return after, segments(versions, messages, oids), transactions


def _picked(wire: Wire, relation: Relation, at: Positions, transactions: _Transactions) -> pa.Table:
    number = transactions.number[at]
    single = b"T" + (1).to_bytes(4, "big") + b"\0" + relation.oid.to_bytes(4, "big")
    found = (wire.message(index) for index in at.tolist())
    return pa.table(
        [
            pa.array(transactions.lsn[number]),
            pa.array(transactions.place[at]),
            pa.array(transactions.xid[number]),
            pa.array(transactions.committed_at[number]).cast(pa.timestamp("us", tz="UTC")),
            pa.repeat(pa.scalar(relation.oid, pa.int64()), len(at)),
            pa.repeat(pa.scalar(encode_relation(relation), pa.binary()), len(at)),
            pa.array([single if message[:1] == b"T" else message for message in found], pa.binary()),
        ],
        schema=PICKED_SCHEMA,
    )


def _read_transactions(
    state: State, wire: Wire, kind: np.ndarray, size: Positions, xid_reference: int
) -> tuple[_Transactions, Positions]:
    begins, commits = kind == ord("B"), kind == ord("C")
    number = np.cumsum(begins)
    depth = int(state.in_transaction) + number - np.cumsum(commits)
    every = np.arange(len(wire))
    fail_where(begins & ((depth != 1) | (size != _BEGIN_SIZE)), every, "begin is misplaced or has a wrong length")
    fail_where(commits & ((depth != 0) | (size != _COMMIT_SIZE)), every, "commit is misplaced or has a wrong length")
    begin = wire.start[begins]
    begin_lsn, begin_at = wire.i64(begin + 1), wire.i64(begin + 9)
    possible = (begin_lsn > 0) & (begin_at >= _EARLIEST) & (begin_at <= _LATEST)
    fail_where(~possible, np.flatnonzero(begins), "begin has an impossible LSN or commit time")
    lsn = np.concatenate(([state.lsn], begin_lsn))
    committed_at = np.concatenate(([state.committed_at], begin_at + _POSTGRES_EPOCH))
    xid = np.concatenate(([state.xid], widened(wire.u32(begin + 17), xid_reference)))
    commit = np.flatnonzero(commits)
    fail_where(
        wire.i64(wire.start[commit] + 2) != lsn[number[commit]], commit, "commit is of another LSN than its begin"
    )
    return _Transactions(number, lsn, committed_at, xid, _places(state, kind, begins, depth, number)), depth


def widened(xid: Positions, reference: int) -> Positions:
    """The 64-bit transaction id nearest to the reference; Postgres knows no two that are 2^31 apart."""
    nearest = reference + ((xid - reference + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    return np.where(nearest < 0, nearest + (1 << 32), nearest)


def _places(state: State, kind: np.ndarray, begins: Mask, depth: Positions, number: Positions) -> Positions:
    """Index of each message in its transaction, among the messages that take a place."""
    counts = np.isin(kind, np.frombuffer(b"IUDTM", np.uint8)) & (depth == 1)
    so_far = np.cumsum(counts)
    base = np.concatenate(([-state.counted], so_far[begins]))
    return so_far - 1 - base[number]


def _changes(wire: Wire, change: Positions, truncate: Positions) -> tuple[Positions, Positions]:
    oids = wire.u32(wire.start[change] + 1)
    if len(truncate) == 0:
        return change, oids
    truncated, truncated_oids = read_truncates(wire, truncate)
    messages = np.concatenate((change, np.array(truncated, np.int64)))
    order = np.argsort(messages, kind="stable")
    return messages[order], np.concatenate((oids, np.array(truncated_oids, np.int64)))[order]


def _meta(rows: Rows, transactions: _Transactions) -> pa.Table:
    number = transactions.number[rows.message]
    columns = [
        rows.op,
        pa.array(transactions.lsn[number]),
        pa.array(2 * transactions.place[rows.message] + rows.late),
        pa.array(transactions.xid[number]),
        pa.array(transactions.committed_at[number]).cast(pa.timestamp("us", tz="UTC")),
        rows.unchanged,
        rows.old_key,
    ]
    meta = pa.table(columns, schema=META_SCHEMA)
    for name, images in zip(IMAGE_COLUMNS, rows.images or (), strict=False):
        meta = meta.append_column(name, images)
    return meta


def _after(state: State, wire: Wire, kind: np.ndarray, transactions: _Transactions, open_: bool) -> State:
    commits = np.flatnonzero(kind == ord("C"))
    state = replace(
        state,
        in_transaction=open_,
        lsn=int(transactions.lsn[-1]),
        committed_at=int(transactions.committed_at[-1]),
        xid=int(transactions.xid[-1]),
        counted=int(transactions.place[-1]) + 1,
        transactions=state.transactions + len(commits),
    )
    if len(commits) == 0:
        return state
    last = wire.start[commits[-1:]]
    return replace(
        state,
        last_commit_lsn=int(wire.i64(last + 2)[0]),
        last_commit_end_lsn=int(wire.i64(last + 10)[0]),
        last_commit_at=int(wire.i64(last + 18)[0]) + _POSTGRES_EPOCH,
    )


def _merged(parts: Iterable[Batch]) -> list[Batch]:
    """Join the batches of one relation version across blocks (no copy), in order of first appearance."""
    runs: dict[tuple[str, str], list[list[Batch]]] = {}
    for part in parts:
        of_table = runs.setdefault((part.relation.schema, part.relation.name), [])
        if of_table and of_table[-1][0].relation == part.relation:
            of_table[-1].append(part)
        else:
            of_table.append([part])
    return [_joined(run) for of_table in runs.values() for run in of_table]


def _joined(run: list[Batch]) -> Batch:
    if len(run) == 1:
        return run[0]
    meta = pa.concat_tables(part.meta for part in run)
    if not run[0].relation.columns:
        return Batch(run[0].relation, rows_without_columns(meta.num_rows), meta)
    return Batch(run[0].relation, pa.concat_tables(part.values for part in run), meta)
