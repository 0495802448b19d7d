"""Which relations a piece of the stream tells of, without decoding it."""

import numpy as np
import pyarrow as pa

_NAMING = np.frombuffer(b"IUDR", np.uint8)
_TRUNCATE, _BEGIN = ord("T"), ord("B")


def mentioned(messages: pa.Array) -> frozenset[int]:
    """The oids in messages of protocol 1 (`large_binary`) that change rows, truncate, or describe a relation.

    A partition whose rows come as its root's is named by its description alone, which Postgres sends in the transaction
    of the first of them. Descriptions ahead of all transactions tell nothing new: they were in force before.
    """
    if not len(messages):
        return frozenset()
    offsets = np.frombuffer(messages.buffers()[1], np.int64)[messages.offset : messages.offset + len(messages)]
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    kinds = data[offsets]
    begins = np.flatnonzero(kinds == _BEGIN)
    ahead = int(begins[0]) if len(begins) else 0
    at = offsets[ahead:][np.isin(kinds[ahead:], _NAMING)]
    oids = (data[at[:, None] + np.arange(1, 5)].astype(np.int64) << np.array([24, 16, 8, 0])).sum(axis=1)
    found = set(np.unique(oids).tolist())
    for index in np.flatnonzero(kinds == _TRUNCATE).tolist():
        message = messages[index].as_py()
        count = int.from_bytes(message[1:5], "big")  # then a byte of options
        found.update(int.from_bytes(message[6 + 4 * n : 10 + 4 * n], "big") for n in range(count))
    return frozenset(found)
