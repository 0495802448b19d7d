"""When messages came, as far as their timestamps can be believed.

Whoever writes a message may set its timestamp, and its clock may be wrong. One that is ahead of the reader's would not
be settled, or be later than all that comes, until that time. A partition keeps the order in which messages came: one
that is ahead came no later than the next one that is not, and before the partition's end was first seen behind it. By
one clock that is ahead, messages are in their order all the same.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Seen = Sequence[tuple[int, datetime]]
"""Where a partition ended, as of some moments, in their order."""


def believed(messages: pa.Table, now: datetime, seen: Mapping[int, Seen] | None = None) -> pa.Table:
    """Messages in the order of each partition, in which none came after `now`: one that says so came with the next of
    its partition that does not, or, where there is none, as far as partitions were `seen`, or just now. The column
    `sent` is the same by which they are ordered: where there is none, it is what they say."""
    column = messages.column("at")
    latest = pc.max(column).as_py()
    if latest is None or latest <= now:
        return messages.append_column("sent", column)
    at, most = column.cast(pa.int64()).to_numpy().copy(), _number(now, column.type)
    sent, offsets, numbers = at.copy(), *(messages.column(name).to_numpy() for name in ("offset", "partition"))
    is_ahead = at > most
    for number in np.unique(numbers[is_ahead]).tolist():
        mine = np.flatnonzero(numbers == number)
        wrong, others = mine[is_ahead[mine]], mine[~is_ahead[mine]]
        following = np.searchsorted(others, wrong)
        is_last = following == len(others)
        at[wrong[~is_last]] = sent[wrong[~is_last]] = at[others[following[~is_last]]]
        ends = (seen or {}).get(number, ())
        came = np.array([*(_number(moment, column.type) for _, moment in ends), most], np.int64)
        last = wrong[is_last]
        at[last] = came[np.searchsorted(np.array([end for end, _ in ends], np.int64), offsets[last], side="right")]
    moments = [pa.array(values, pa.int64()).cast(column.type) for values in (at, sent)]
    named = messages.set_column(messages.schema.get_field_index("at"), messages.schema.field("at"), moments[0])
    return named.append_column("sent", moments[1])


def _number(moment: datetime, kind: pa.DataType) -> int:
    return int(pa.scalar(moment, kind).cast(pa.int64()).as_py())
