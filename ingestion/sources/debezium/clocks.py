"""When messages came, as far as their timestamps can be believed.

Whoever writes a message may set its timestamp, and its clock may be wrong. One that is ahead of the reader's would not
be settled, or be later than all that comes, until that time. A partition keeps the order in which messages came: one
that is ahead came no later than the next one that is not.
"""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def believed(messages: pa.Table, now: datetime) -> pa.Table:
    """Messages in the order of each partition, in which none came after `now`: one that says so came with the next of
    its partition that does not, or just now, where there is none."""
    column = messages.column("at")
    latest = pc.max(column).as_py()
    if latest is None or latest <= now:
        return messages
    at = column.cast(pa.int64()).to_numpy().copy()
    most, numbers = int(pa.scalar(now, column.type).cast(pa.int64()).as_py()), messages.column("partition").to_numpy()
    is_ahead = at > most
    for number in np.unique(numbers[is_ahead]).tolist():
        mine = np.flatnonzero(numbers == number)
        wrong, others = mine[is_ahead[mine]], mine[~is_ahead[mine]]
        at[wrong] = np.append(at[others], most)[np.searchsorted(others, wrong)]
    made = pa.array(at, pa.int64()).cast(column.type)
    return messages.set_column(messages.schema.get_field_index("at"), messages.schema.field("at"), made)
