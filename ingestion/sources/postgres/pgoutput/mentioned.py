"""Which relations' rows a piece of the stream changes, without decoding it."""

import numpy as np
import pyarrow as pa

_ROWS = np.frombuffer(b"IUD", np.uint8)
_TRUNCATE = ord("T")


def mentioned(messages: pa.Array) -> frozenset[int]:
    """The oids in messages of protocol 1 (`large_binary`) that change rows or truncate."""
    if not len(messages):
        return frozenset()
    offsets = np.frombuffer(messages.buffers()[1], np.int64)[messages.offset : messages.offset + len(messages)]
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    kinds = data[offsets]
    at = offsets[np.isin(kinds, _ROWS)]
    oids = (data[at[:, None] + np.arange(1, 5)].astype(np.int64) << np.array([24, 16, 8, 0])).sum(axis=1)
    found = set(np.unique(oids).tolist())
    for index in np.flatnonzero(kinds == _TRUNCATE).tolist():
        message = messages[index].as_py()
        count = int.from_bytes(message[1:5], "big")  # then a byte of options
        found.update(int.from_bytes(message[6 + 4 * n : 10 + 4 * n], "big") for n in range(count))
    return frozenset(found)
