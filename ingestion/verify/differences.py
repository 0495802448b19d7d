"""Rows of both sides that belong together, and how they differ: a batch at a time, a column at a time."""

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.compared import StandIns
from ingestion.verify.compare import MAX_EXAMPLES, Example, TableComparison


@dataclass(frozen=True)
class ComparedColumn:
    """A column of the batches: `bits` tells floats of 4 and 8 bytes, which are spelled as integers;
    `stand_ins` are for values that the lake cannot hold."""

    name: str
    is_key: bool
    bits: Literal["f", "d"] | None
    stand_ins: StandIns


def is_stand_in(known: StandIns, ours: str, theirs: str | None) -> bool:
    """Whether the lake has what the policy makes of the source's value."""
    return any(re.fullmatch(printed, ours) and theirs == instead for printed, instead in known)


def _are_stand_ins(known: StandIns, ours: pa.Array, theirs: pa.Array) -> pa.Array:
    """The same of a batch."""
    found = pa.repeat(False, len(ours))
    for printed, instead in known:
        here = pc.fill_null(pc.match_substring_regex(ours, f"^({printed})$"), False)
        there = pc.is_null(theirs) if instead is None else pc.fill_null(pc.equal(theirs, instead), False)
        found = pc.or_(found, pc.and_(here, there))
    return found


def examine(result: TableComparison, columns: Sequence[ComparedColumn], batches: Iterable[pa.RecordBatch]) -> None:
    """Adds to `result` what the batches tell.

    They hold `line`, `s0` … of the source and `lake_line`, `l0` … of the lake; a side that has no such row is null.
    """
    for batch in batches:
        ours, theirs = pc.is_valid(batch.column("line")), pc.is_valid(batch.column("lake_line"))
        for kind, mask in (("missing", pc.invert(theirs)), ("extra", pc.invert(ours))):
            rows = batch.filter(mask)
            setattr(result, kind, getattr(result, kind) + rows.num_rows)
            side = "s" if kind == "missing" else "l"
            _keep(result, columns, "missing" if kind == "missing" else "extra", rows, side, {})
        _examine_pairs(result, columns, batch.filter(pc.and_(ours, theirs)))


def _examine_pairs(result: TableComparison, columns: Sequence[ComparedColumn], rows: pa.RecordBatch) -> None:
    # A row that lacks a value which an update left out differs even where both sides read null.
    differs = pc.equal(rows.column("lake_line"), "lacking")
    marks: dict[int, pa.Array] = {}
    for i, column in enumerate(columns):
        mark = _differ(rows.column(f"s{i}"), rows.column(f"l{i}"))
        if column.stand_ins:
            replaced = _are_stand_ins(column.stand_ins, rows.column(f"s{i}"), rows.column(f"l{i}"))
            result.unrepresentable += pc.sum(replaced).as_py() or 0
            mark = pc.and_not(mark, replaced)
        if count := pc.sum(mark).as_py():
            result.differing_columns[column.name] += count
            marks[i] = mark
            differs = pc.or_(differs, mark)
    result.differing += pc.sum(differs).as_py() or 0
    wanted = pc.indices_nonzero(differs)[: MAX_EXAMPLES - len(result.examples)]
    kept = {i: mark.take(wanted) for i, mark in marks.items()}
    _keep(result, columns, "differs", rows.take(wanted), "s", kept)


def _differ(ours: pa.Array, theirs: pa.Array) -> pa.Array:
    one_null = pc.xor(pc.is_null(ours), pc.is_null(theirs))
    return pc.or_(one_null, pc.fill_null(pc.not_equal(ours, theirs), False))


def _keep(
    result: TableComparison,
    columns: Sequence[ComparedColumn],
    kind: Literal["missing", "extra", "differs"],
    rows: pa.RecordBatch,
    key_side: str,
    marks: dict[int, pa.Array],
) -> None:
    """A few rows as examples, in words that people can read."""

    def said(side: str, i: int, row: int) -> str | None:
        return readable(columns[i], rows.column(f"{side}{i}")[row].as_py())

    for row in range(min(rows.num_rows, MAX_EXAMPLES - len(result.examples))):
        key = {column.name: said(key_side, i, row) for i, column in enumerate(columns) if column.is_key}
        changed = {
            columns[i].name: (said("s", i, row), said("l", i, row)) for i, mark in marks.items() if mark[row].as_py()
        }
        result.examples.append(Example(kind, key, changed))


def readable(column: ComparedColumn, text: str | None) -> str | None:
    """The value behind a spelling: floats are spelled as the integer with their bits."""
    if text is None or column.bits is None or not re.fullmatch(r"-?\d+", text):
        return text
    integer = "i" if column.bits == "f" else "q"
    return repr(struct.unpack(column.bits, struct.pack(integer, int(text)))[0])


def add(result: TableComparison, part: TableComparison) -> None:
    """Takes over what one task found."""
    result.missing += part.missing
    result.extra += part.extra
    result.differing += part.differing
    result.differing_columns.update(part.differing_columns)
    result.unrepresentable += part.unrepresentable
    result.examples.extend(part.examples[: MAX_EXAMPLES - len(result.examples)])
