"""A change of a row's key: Debezium sends it as two events."""

from collections.abc import Sequence

import numpy as np

from ingestion.sources.debezium.join.heads import EVENT, Heads, Loaded
from ingestion.sources.debezium.join.joined import Placing
from ingestion.sources.debezium.numbers import Shared, mixed

_RECORD = np.dtype(
    [
        ("hash", np.uint64), ("xid", np.int64), ("lsn", np.int64), ("relation", np.int32), ("is_create", np.int8),
        ("index", np.int64),
    ]
)  # fmt: skip
_NONE = np.zeros(0, np.int64), np.zeros(0, np.int64)


def key_changes(heads: Loaded, joined: Placing, relations: Sequence[str]) -> dict[int, int]:
    """The create and the delete of one record: an update that changed the key comes as both, at one LSN."""

    def record(index: int) -> tuple[int, int, str]:
        return heads.xid[index], heads.lsn[index], relations[heads.partition[index]]

    landing = [i for i in range(len(heads)) if joined.numbers[i] >= 0]
    deletes = {record(i): i for i in landing if heads.op[i] == ord("d")}
    creates = [i for i in landing if heads.op[i] == ord("c")] if deletes else []
    return {i: deletes[record(i)] for i in creates if record(i) in deletes}


class Pairs:
    """The key changes among all events, in columns: creates in their order, and the delete of each."""

    def __init__(self, heads: Heads, relations: np.ndarray) -> None:
        """`relations` are the numbers of the partitions' relations."""
        found = [_NONE] if _lacks_one(heads) else _found(heads, relations)
        creates, deletes = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(creates)
        self.creates, self.deletes = creates[order], deletes[order]

    def of(self, first: int, count: int) -> np.ndarray:
        """By event, so many from the first on: the delete that made room for it, -1 for none."""
        found = np.full(count, -1, np.int64)
        some = slice(*np.searchsorted(self.creates, (first, first + count)).tolist())
        found[self.creates[some] - first] = self.deletes[some]
        return found


def _lacks_one(heads: Heads) -> bool:
    lacking = {"c", "d"}
    for _, rows in heads.windows():
        lacking -= {op for op in lacking if (rows["op"] == ord(op)).any()}
        if not lacking:
            return False
    return True


def _found(heads: Heads, relations: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    records = Shared(_RECORD)
    try:
        for first, rows in heads.windows():
            wanted = np.flatnonzero((rows["kind"] == EVENT) & np.isin(rows["op"], (ord("c"), ord("d"))))
            rows, found = rows[wanted], np.empty(len(wanted), _RECORD)
            found["xid"], found["lsn"], found["relation"] = rows["xid"], rows["lsn"], relations[rows["partition"]]
            found["hash"] = mixed(found["xid"], found["lsn"], found["relation"])
            found["is_create"], found["index"] = rows["op"] == ord("c"), first + wanted
            records.add(found)
        return [_paired(share) for share in records.shares()]
    finally:
        records.close()


def _paired(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The creates that have a delete, and the last delete of each one's record."""
    rows = rows[np.lexsort([rows[name] for name in ("index", "is_create", "relation", "lsn", "xid")])]
    at, is_create = np.arange(len(rows)), rows["is_create"] == 1
    is_other = np.ones(len(rows), bool)
    is_other[1:] = np.any([rows[name][1:] != rows[name][:-1] for name in ("xid", "lsn", "relation")], axis=0)
    begins = np.maximum.accumulate(np.where(is_other, at, 0))
    last = np.maximum.accumulate(np.where(is_create, -1, at))
    wanted = is_create & (last >= begins)
    return rows["index"][wanted], rows["index"][last[wanted]]
