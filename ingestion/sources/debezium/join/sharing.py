"""Rows that a transaction inserts and leaves with one key, so that the declared key does not tell rows apart.

A key that is unique when a transaction ends may be shared within it (DEFERRABLE), and come again after a DELETE. Only
the changes of keys that a transaction inserts more than once are looked at, a share of them at a time.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ingestion.sources.debezium.numbers import HASHES, Numbers, Shared, mixed, twice

CHANGE = np.dtype(
    [
        ("number", np.int64), ("relation", np.int32), ("identity", np.int64), ("op", np.int8), ("place", np.int64),
        ("what", np.int64),
    ]
)  # fmt: skip
"""A change of a row: the number of its transaction, its relation, a number for its key, and its place; `what` is what
its caller knows it by."""
PAIR = np.dtype([("first", np.int64), ("other", np.int64)])
Changes = Callable[[], Iterator[np.ndarray]]

_OF_KEY = np.dtype([("hash", np.uint64), *((name, CHANGE[name]) for name in CHANGE.names or ())])
_FOUND = np.dtype([("hash", np.uint64), ("alive", np.int64), ("first", np.int64), ("other", np.int64)])
_INSERT, _UPDATE, _DELETE, _TRUNCATE = map(ord, "cudt")


def sharing(changes: Changes) -> Numbers:
    """Inserts whose key another row has that is there when the transaction ends, each with that of the other row, as
    PAIRs of their `what`. `changes` gives all of the changes of the transactions, some at a time, each time anew.

    Each update of a row that was not inserted under its key may have taken one from any key.
    """
    pairs, found = Numbers(PAIR), Numbers(_FOUND)
    keys, emptied = _inserted_twice(changes)
    if not len(keys):
        return pairs
    try:
        for rows in _by_key(changes, emptied, lambda rows: np.isin(_keys(rows), keys)):
            for group in _groups(rows):
                _note_alive(found, group)
        if len(found):
            _add_pairs(pairs, found, changes, emptied)
    finally:
        found.close()
    return pairs


def _keys(rows: np.ndarray) -> np.ndarray:
    return mixed(rows["number"], rows["relation"], rows["identity"])


def _tables(rows: np.ndarray) -> np.ndarray:
    return mixed(rows["number"], rows["relation"])


def _inserted_twice(changes: Changes) -> tuple[np.ndarray, dict[int, int]]:
    """The hashes of keys that a transaction inserts more than once, and by the hash of a transaction's table the place
    of its last TRUNCATE."""
    inserted, emptied = Shared(HASHES), dict[int, int]()
    try:
        for rows in changes():
            inserted.add(_keys(rows[rows["op"] == _INSERT]).view(HASHES))
            some = rows[rows["op"] == _TRUNCATE]
            for table, place in zip(_tables(some).tolist(), some["place"].tolist(), strict=True):
                emptied[table] = max(place, emptied.get(table, place))
        return twice(inserted), emptied
    finally:
        inserted.close()


def _by_key(
    changes: Changes, emptied: dict[int, int], wanted: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:  # fmt: skip
    """The changes that are wanted and came after the last TRUNCATE, those of a key together and in their order."""
    found = Shared(_OF_KEY)
    try:
        for rows in changes():
            rows = rows[np.isin(rows["op"], (_INSERT, _UPDATE, _DELETE))]
            rows = rows[wanted(rows)]
            if emptied:
                since = np.array([emptied.get(table, -1) for table in _tables(rows).tolist()], np.int64)
                rows = rows[rows["place"] > since]
            of_key = np.empty(len(rows), _OF_KEY)
            of_key["hash"] = _keys(rows)
            for name in CHANGE.names or ():
                of_key[name] = rows[name]
            found.add(of_key)
        for share in found.shares():
            yield share[np.lexsort([share["place"], share["hash"]])]
    finally:
        found.close()


def _groups(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, np.flatnonzero(np.diff(rows["hash"])) + 1) if len(rows) else []


def _note_alive(found: Numbers, group: np.ndarray) -> None:
    """The rows of one key that are left of those that the transaction inserted, if there are several."""
    alive = group["what"][group["op"] == _INSERT]
    if (group["op"] == _DELETE).any():
        left = list[int]()
        for op, what in zip(group["op"].tolist(), group["what"].tolist(), strict=True):
            if op == _INSERT:
                left.append(what)
            elif op == _DELETE and left:
                left.pop()
        alive = np.array(left, np.int64)
    if len(alive) > 1:
        rows = np.empty(len(alive) - 1, _FOUND)
        rows["hash"], rows["alive"] = _tables(group[:1])[0], len(alive)
        rows["first"], rows["other"] = alive[0], alive[1:]
        found.extend(rows)


def _add_pairs(pairs: Numbers, found: Numbers, changes: Changes, emptied: dict[int, int]) -> None:
    tables = np.unique(np.concatenate([np.unique(rows["hash"]) for _, rows in found.windows()]))
    moved = np.zeros(len(tables), np.int64)
    for rows in _by_key(changes, emptied, lambda rows: np.isin(_tables(rows), tables)):
        is_update = rows["op"] == _UPDATE
        is_updated = np.isin(rows["hash"], rows["hash"][is_update])
        is_inserted = np.isin(rows["hash"], rows["hash"][rows["op"] == _INSERT])
        np.add.at(moved, np.searchsorted(tables, _tables(rows[is_update & ~is_inserted])), 1)
        for group in _groups(rows[is_updated & is_inserted]):
            moved[np.searchsorted(tables, _tables(group[:1])[0])] += _moved(group["op"].tolist())
    for _, rows in found.windows():
        rows = rows[rows["alive"] - moved[np.searchsorted(tables, rows["hash"])] > 1]
        made = np.empty(len(rows), PAIR)
        made["first"], made["other"] = rows["first"], rows["other"]
        pairs.extend(made)


def _moved(ops: list[int]) -> int:
    """How many updates of a key come while no row is there that the transaction inserted."""
    there = found = 0
    for op in ops:
        there += (op == _INSERT) - (op == _DELETE and there > 0)
        found += op == _UPDATE and there == 0
    return found
