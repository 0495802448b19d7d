"""The change messages of one relation version, as rows.

An insert, a delete or a truncate is one row. An update is one row too unless it changed the key: then it is a
delete of the old key and a create of the new one, or the old key would live on in the lake.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.changes import Relation, rows_without_columns
from ingestion.sources.postgres.pgoutput.cells import NULL, TEXT, UNCHANGED, Cells, fail_where, parse_tuples, text_array
from ingestion.sources.postgres.pgoutput.images import digests, image_columns, row_images
from ingestion.sources.postgres.pgoutput.json_key import json_objects
from ingestion.sources.postgres.pgoutput.wire import Bytes, Mask, Positions, Wire

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
_NEW, _KEY, _OLD = b"NKO"
_OPS = np.zeros(256, np.uint8)
_OPS[[INSERT, UPDATE, DELETE, TRUNCATE]] = np.frombuffer(b"cudt", np.uint8)


@dataclass(frozen=True)
class Rows:
    """`message`: index of the message a row came from; `late`: 1 for the create of a key change, else 0; `images` of
    each row before and after, where they were asked for."""

    values: pa.Table
    op: pa.StringArray
    message: Positions
    late: Positions
    unchanged: pa.ListArray
    old_key: pa.StringArray
    images: tuple[pa.Array, pa.Array] | None = None


@dataclass(frozen=True)
class _Tuples:
    """New and old tuples of the messages: `which[i]` is the message (of the group) that tuple i belongs to."""

    which: Positions
    cells: list[Cells]


def key_columns(relation: Relation, declared: tuple[str, ...] | None) -> tuple[int, ...]:
    """The columns whose change is a change of the key: the declared key, else the replica identity's columns.

    Under FULL every column is in the replica identity, which says nothing about the key. A declared key that the
    replica identity does not carry cannot be compared; the identity then stands for it.
    """
    index = {column.name: position for position, column in enumerate(relation.columns)}
    carried = {column.name for column in relation.columns if column.is_key}
    if declared and carried.issuperset(declared):
        return tuple(index[name] for name in declared)
    if relation.replica_identity == "f":
        return ()
    return tuple(position for position, column in enumerate(relation.columns) if column.is_key)


def decode_rows(
    wire: Wire, relation: Relation, declared: tuple[str, ...] | None, messages: Positions, *, images: bool = False
) -> Rows:
    """Decode the insert, update, delete and truncate messages (ascending indexes) of one relation version."""
    kind = wire.u8(wire.start[messages])
    new, old = _parse(wire, relation, messages, kind)
    key = key_columns(relation, declared)
    if len(old.which) == 0 and len(new.which) == len(messages):
        moved = np.zeros(len(messages), np.bool_)
        cells = new.cells
    else:
        new = _fill_unchanged(new, old)
        moved = _key_changed(wire, relation, key, messages, new, old)
        cells = _merge(wire, relation, messages, moved, new, old)
    count = 1 + moved.astype(np.int64)
    item = np.repeat(np.arange(len(messages)), count)
    late = np.zeros(len(item), np.int64)
    late[np.cumsum(count)[moved] - 1] = 1
    message = messages[item]
    columns = [text_array(wire, column, message) for column in cells]
    names = [column.name for column in relation.columns]
    op = _ops(kind[item], moved[item], late)
    return Rows(
        values=_table(columns, names, len(item)),
        op=op,
        message=message,
        late=late,
        unchanged=_unchanged(cells, names, len(item)),
        old_key=_old_keys(wire, relation, key, messages, moved, late, old),
        images=_images(wire, relation, messages, op, message, new, old) if images else None,
    )


def _images(
    wire: Wire,
    relation: Relation,
    messages: Positions,
    op: pa.StringArray,
    message: Positions,
    new: _Tuples,
    old: _Tuples,
) -> tuple[pa.Array, pa.Array]:
    columns = image_columns(relation)
    of_old, of_new = (
        dict(zip(messages[t.which].tolist(), digests(wire, t.cells, columns, len(t.which)), strict=True))
        for t in (old, new)
    )
    return row_images(op.to_pylist(), message, of_old, of_new)


def _parse(wire: Wire, relation: Relation, messages: Positions, kind: Bytes) -> tuple[_Tuples, _Tuples]:
    width = len(relation.columns)
    at = wire.start[messages] + 5
    marker = wire.u8(at)
    has_new = (kind == INSERT) | (kind == UPDATE)
    has_old = (kind == DELETE) | ((kind == UPDATE) & (marker != _NEW))
    fail_where((kind == INSERT) & (marker != _NEW), messages, "insert without a new tuple")
    old = np.flatnonzero(has_old)
    fail_where(~np.isin(marker[old], (_KEY, _OLD)), messages[old], "old tuple is marked neither K nor O")
    old_cells, old_end = parse_tuples(wire, at[old] + 1, width, messages[old])
    at[old] = old_end
    deleted = old[kind[old] == DELETE]
    fail_where(at[deleted] != wire.end[messages[deleted]], messages[deleted], "delete ends at a wrong place")
    new = np.flatnonzero(has_new)
    fail_where(wire.u8(at[new]) != _NEW, messages[new], "update without a new tuple")
    new_cells, new_end = parse_tuples(wire, at[new] + 1, width, messages[new])
    fail_where(new_end != wire.end[messages[new]], messages[new], "message ends at a wrong place")
    return _Tuples(new, new_cells), _Tuples(old, old_cells)


def _fill_unchanged(new: _Tuples, old: _Tuples) -> _Tuples:
    """Take a value that the new tuple left out (TOASTed, unchanged) from the old tuple where that has it."""
    both, in_new, in_old = np.intersect1d(new.which, old.which, assume_unique=True, return_indices=True)
    if len(both) == 0:
        return new
    filled = []
    for cells, old_cells in zip(new.cells, old.cells, strict=True):
        fill = (cells.kind[in_new] == UNCHANGED) & (old_cells.kind[in_old] == TEXT)
        if fill.any():
            cells = Cells(cells.kind.copy(), cells.start.copy(), cells.end.copy())
            to, source = in_new[fill], old_cells.take(in_old[fill])
            cells.kind[to], cells.start[to], cells.end[to] = source.kind, source.start, source.end
        filled.append(cells)
    return _Tuples(new.which, filled)


def _key_changed(
    wire: Wire, relation: Relation, key: tuple[int, ...], messages: Positions, new: _Tuples, old: _Tuples
) -> Mask:
    """Which messages changed the key. An old key alone does not say so: Postgres also sends one when a part of the
    key is stored out of line."""
    moved = np.zeros(len(messages), np.bool_)
    both, in_new, in_old = np.intersect1d(new.which, old.which, assume_unique=True, return_indices=True)
    for column in key if len(both) else ():
        before, after = old.cells[column].take(in_old), new.cells[column].take(in_new)
        differs = (before.kind != after.kind) | (before.end - before.start != after.end - after.start)
        same = np.flatnonzero(~differs & (after.kind == TEXT))
        left = text_array(wire, before.take(same), messages[both[same]])
        right = text_array(wire, after.take(same), messages[both[same]])
        differs[same] = pc.not_equal(left, right).to_numpy(zero_copy_only=False)
        moved[both] |= differs & (after.kind != UNCHANGED)
    return moved


def _merge(wire: Wire, relation: Relation, messages: Positions, moved: Mask, new: _Tuples, old: _Tuples) -> list[Cells]:
    """The cells of the rows to give back: new tuples, old tuples of deletes and key changes, none for a truncate."""
    last = np.cumsum(1 + moved.astype(np.int64)) - 1  # the row of a message; of a key change, its create
    total = int(last[-1]) + 1
    is_new = np.zeros(len(messages), np.bool_)
    is_new[new.which] = True
    kept = np.flatnonzero(moved[old.which] | ~is_new[old.which])
    old_row = last[old.which[kept]] - moved[old.which[kept]]
    blank = np.repeat(wire.start[messages], 1 + moved.astype(np.int64))
    merged = []
    for cells, old_cells in zip(new.cells, old.cells, strict=True):
        out = Cells(np.full(total, NULL, np.uint8), blank.copy(), blank.copy())
        for row, source in ((last[new.which], cells), (old_row, old_cells.take(kept))):
            out.kind[row], out.start[row], out.end[row] = source.kind, source.start, source.end
        merged.append(out)
    return merged


def _table(columns: list[pa.Array], names: list[str], count: int) -> pa.Table:
    if not columns:
        return rows_without_columns(count)
    return pa.table(columns, schema=pa.schema([(name, pa.string()) for name in names]))


def _ops(kind: Bytes, moved: Mask, late: Positions) -> pa.StringArray:
    op = _OPS[kind]
    op[moved] = ord("d")
    op[late == 1] = ord("c")
    offsets = np.arange(len(op) + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(op), [None, pa.py_buffer(offsets), pa.py_buffer(op)])


def _unchanged(cells: list[Cells], names: list[str], count: int) -> pa.ListArray:
    """Per row the names of the columns that the stream left out, null where it left none out."""
    marks = [(name, column.kind == UNCHANGED) for name, column in zip(names, cells, strict=True)]
    marks = [(name, mark) for name, mark in marks if mark.any()]
    if not marks:
        return pa.nulls(count, pa.list_(pa.string()))
    grid = np.column_stack([mark for _, mark in marks])
    per_row = grid.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(per_row))).astype(np.int32)
    listed = pa.array([name for name, _ in marks], pa.string()).take(pa.array(np.nonzero(grid)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), listed, mask=pa.array(per_row == 0))


def _old_keys(
    wire: Wire,
    relation: Relation,
    key: tuple[int, ...],
    messages: Positions,
    moved: Mask,
    late: Positions,
    old: _Tuples,
) -> pa.StringArray:
    if not moved.any():
        return pa.nulls(len(late), pa.string())
    changed = np.flatnonzero(moved[old.which])
    where = messages[old.which[changed]]
    columns = {relation.columns[c].name: text_array(wire, old.cells[c].take(changed), where) for c in key}
    ordinal = np.cumsum(late) - 1
    return json_objects(columns).take(pa.array(ordinal, mask=late == 0))
