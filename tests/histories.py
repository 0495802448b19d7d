"""Random histories of source tables, as raw rows and, by an oracle that knows no SQL, as what they mean.

A history is a list of changes in commit order: inserts, updates that may leave TOASTed columns out, key changes,
deletes and truncates. The oracle keeps the table in a dict, as the source would.
"""

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]
START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class TableHistory:
    """One table: its raw log so far, the rows it holds, and every version there was."""

    key: str
    columns: tuple[str, ...]
    toasted: frozenset[str] = frozenset()
    raw: list[Row] = field(default_factory=list)
    rows: dict[Any, Row] = field(default_factory=dict)
    versions: list[Row] = field(default_factory=list)

    def apply(self, op: str, position: Row, new: Row | None = None, key: Any = None, carried: bool = True) -> None:
        """One change; `carried` false leaves TOASTed columns out of the raw row where they did not change."""
        old = self.rows.get(key)
        if op == "t":
            for gone in list(self.rows):
                self._version("t", gone, None, position)
            self.rows.clear()
            self._raw("t", {}, position)
        elif op == "d":
            self._delete(key, position)
        elif op == "u" and old is not None and new is not None and new[self.key] != key:
            self._delete(key, position)
            then = position | {"_seq": position["_seq"] + 1}
            self._write("c", new, then, old, carried, old_key=json.dumps({self.key: str(key)}))
        elif new is not None:
            self._write(op, new, position, old, carried)

    def _delete(self, key: Any, position: Row) -> None:
        del self.rows[key]
        self._raw("d", {self.key: key}, position)
        self._version("d", key, None, position)

    def _write(
        self, op: str, new: Row, position: Row, old: Row | None, carried: bool, old_key: str | None = None
    ) -> None:
        same = {c for c in self.toasted if old is not None and old[c] == new[c] and not carried}
        sent = {c: (None if c in same else new[c]) for c in self.columns}
        self._raw(op, sent, position | {"_unchanged": sorted(same) or None, "_old_key": old_key})
        self.rows[new[self.key]] = new
        self._version(op, new[self.key], new, position)

    def _raw(self, op: str, values: Row, position: Row) -> None:
        empty: Row = dict.fromkeys(self.columns) | {"_unchanged": None, "_old_key": None}
        self.raw.append(empty | values | {"_op": op} | position)

    def _version(self, op: str, key: Any, row: Row | None, position: Row) -> None:
        payload = row or dict.fromkeys(self.columns) | {self.key: key}
        self.versions.append(payload | {"_op": op, "_is_deleted": row is None} | position)


@dataclass
class Clock:
    """Hands out positions: one transaction after another, several changes in each."""

    rng: random.Random
    lsn: int = 1000
    now: datetime = START
    left: int = 0
    seq: int = 0

    def position(self) -> Row:
        """Where the next change stands."""
        if self.left == 0:
            self.left, self.seq = self.rng.randint(1, 4), 0
            self.lsn += self.rng.randint(1, 90)
            self.now += timedelta(seconds=self.rng.randint(0, 7200), microseconds=self.rng.randint(0, 999_999))
        self.left -= 1
        self.seq += 2
        return {
            "_epoch": 1, "_commit_lsn": self.lsn, "_seq": self.seq, "_xid": self.lsn,
            "_committed_at": self.now, "_ingested_at": None,
        }  # fmt: skip


def change_at_random(table: TableHistory, clock: Clock, keys: list[Any], row: Any, truncates: bool = False) -> None:
    """One random change; `row(key)` makes a row with a small number of different values, so that states recur."""
    rng = clock.rng
    if truncates and rng.random() < 0.004:
        table.apply("t", clock.position())
        return
    key = rng.choice(keys)
    if key not in table.rows:
        table.apply("c", clock.position(), row(key))
        return
    dice = rng.random()
    if dice < 0.15:
        table.apply("d", clock.position(), key=key)
    elif dice < 0.30 and (free := [k for k in keys if k not in table.rows]):
        moved = table.rows[key] | {table.key: rng.choice(free)}
        table.apply("u", clock.position(), moved, key, carried=rng.random() < 0.3)
    else:
        fresh = row(key)
        kept = {c: table.rows[key][c] for c in table.columns if rng.random() < 0.6}
        table.apply("u", clock.position(), fresh | kept | {table.key: key}, key, carried=rng.random() < 0.4)
