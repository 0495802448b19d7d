"""Digests of row images, by which the events of rows that share a key are told apart.

An image is what identifies a row in the stream: all columns under REPLICA IDENTITY FULL, else those of the identity.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import Relation
from ingestion.sources.postgres.pgoutput.cells import NULL, TEXT, UNCHANGED, Cells
from ingestion.sources.postgres.pgoutput.wire import Positions, Wire

IMAGE = pa.binary(16)


def image_columns(relation: Relation) -> tuple[int, ...]:
    """The columns that an image is made of."""
    whole = relation.replica_identity == "f"
    return tuple(i for i, column in enumerate(relation.columns) if whole or column.is_key)


def digests(wire: Wire, cells: Sequence[Cells], columns: Sequence[int], count: int) -> list[bytes]:
    """One for each of `count` tuples. A value that is not carried counts as null: the row's other image lacks it."""
    if not columns:
        return [b"\0" * IMAGE.byte_width] * count
    if len(columns) == len(cells) and _as_sent(cells):
        return [_digest(wire.data[a:b]) for a, b in zip(_begin(cells[0]).tolist(), cells[-1].end.tolist(), strict=True)]
    parts = [_canonical(wire, cells[column]) for column in columns]
    return [_digest(b"".join(values)) for values in zip(*parts, strict=True)]


def _begin(cells: Cells) -> Positions:
    return cells.start - np.where(cells.kind == TEXT, 5, 1)


def _as_sent(cells: Sequence[Cells]) -> bool:
    """Whether each tuple lies in the stream as it is here: no value is missing, or taken from another tuple."""
    follow = all((_begin(right) == left.end).all() for left, right in pairwise(cells))
    return follow and not any((column.kind == UNCHANGED).any() for column in cells)


def _canonical(wire: Wire, cells: Cells) -> list[bytes]:
    """Each cell as a tuple has it on the wire."""
    null = bytes([NULL])
    bounds = zip((cells.kind == TEXT).tolist(), cells.start.tolist(), cells.end.tolist(), strict=True)
    return [
        bytes([TEXT]) + (end - start).to_bytes(4, "big") + wire.data[start:end].tobytes() if text else null
        for text, start, end in bounds
    ]


def _digest(data: object) -> bytes:
    return blake2b(data, digest_size=IMAGE.byte_width).digest()  # type: ignore[arg-type]


def row_images(
    ops: Sequence[str], message: Positions, old: dict[int, bytes], new: dict[int, bytes]
) -> tuple[pa.Array, pa.Array]:
    """The images of rows before and after, null where a row has none; `old` and `new` are by message.

    An update that carries no old tuple has changed nothing of what identifies its row.
    """
    before, after = [], []
    for op, index in zip(ops, message.tolist(), strict=True):
        before.append(old.get(index, new.get(index)) if op in "ud" else None)
        after.append(new.get(index) if op in "cu" else None)
    return pa.array(before, IMAGE), pa.array(after, IMAGE)
