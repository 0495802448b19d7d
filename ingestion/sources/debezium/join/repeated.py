"""Events that came twice within a transaction, told from rows that only look alike. Pure.

What comes once more after a restart has the same (lsn, relation, operation, key). So have the rows of one COPY that
share a key, where the declared key is not unique in the database. Where delivery is exactly once the numbers tell them
apart: what is sent again has the one that it had, and no other event has that. Otherwise Debezium may count on from any
number, so an insert is a repetition if all that it says is the same: of rows that are the same in every column, one
lands.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from ingestion.sources.debezium.join.heads import Loaded
from ingestion.sources.debezium.join.joined import Follows

_INSERT = ord("c")
_Record = tuple[int, int, int]


def repetitions(heads: Loaded, events: Sequence[int], follows: Follows) -> dict[int, bool]:
    """Of the events of a transaction those that came before, and whether under another number."""
    of_each: dict[str, list[int]] = {}
    for index in events:
        of_each.setdefault(follows.relations[heads.partition[index]], []).append(index)
    found: dict[int, bool] = {}
    for relation, mine in of_each.items():
        if relation in follows.keyed:
            found |= _of_relation(heads, mine, follows)
    return found


def _of_relation(heads: Loaded, events: Sequence[int], follows: Follows) -> dict[int, bool]:
    numbered: dict[int, int] = {}
    again: dict[int, bool] = {}
    for index in events:
        first = numbered.setdefault(heads.in_table[index], index)
        if first != index and _record(heads, first) != _record(heads, index):
            return _alike(heads, events, follows.content)
        if first != index:
            again[index] = heads.order[first] != heads.order[index]
    ranked = [numbered[number] for number in sorted(numbered)]
    goes_back = any(heads.lsn[one] > heads.lsn[other] for one, other in pairwise(ranked))
    may_repeat = goes_back or not follows.exactly_once
    return again | _alike(heads, ranked, follows.content if may_repeat else lambda index: index)


def _alike(heads: Loaded, events: Sequence[int], content: Callable[[int], int]) -> dict[int, bool]:
    """The events that are of the same record as others before them, inserts if they have the same content, too."""
    records = Counter(_record(heads, index) for index in events)
    known = set[tuple[_Record, int]]()
    again: dict[int, bool] = {}
    for index in events:
        record = _record(heads, index)
        is_one_of_many = records[record] > 1 and heads.op[index] == _INSERT
        said = record, content(index) if is_one_of_many else 0
        if said in known:
            again[index] = True
        known.add(said)
    return again


def _record(heads: Loaded, index: int) -> _Record:
    return heads.lsn[index], heads.op[index], heads.identity[index]
