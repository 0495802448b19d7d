"""Merges two streams of rows in key order and tells what differs. Knows no database."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lakehouse.errors import LakehouseError

Row = tuple[str | None, ...]
Rows = Iterable[Row]
MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Example:
    """One difference: `columns` maps a column to its value in the source and in the lake."""

    kind: Literal["missing", "extra", "differs"]
    key: dict[str, str | None]
    columns: dict[str, tuple[str | None, str | None]]


@dataclass
class TableComparison:
    """What a comparison found. `missing` rows are in the source alone, `extra` rows in the lake alone, `repaired`
    counts the events by operation that a repair has published since. `aside` is why the table is not compared: without
    a key its rows cannot be paired, and changes of one that does not stream are kept elsewhere until it does. `doubled`
    tells of rows that are not compared beside others that differ: they share their key."""

    source: str
    table: str
    columns: tuple[str, ...]
    source_rows: int = 0
    lake_rows: int = 0
    missing: int = 0
    extra: int = 0
    differing: int = 0
    differing_columns: Counter[str] = field(default_factory=Counter)
    unrepresentable: int = 0
    absent_columns: tuple[str, ...] = ()
    examples: list[Example] = field(default_factory=list)
    seconds: float = 0.0
    repaired: dict[str, int] = field(default_factory=dict)
    aside: str | None = None
    doubled: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every column of every row is the same."""
        return not (self.missing or self.extra or self.differing or self.absent_columns or self.aside)

    @property
    def verdict(self) -> str:
        """The result in a word or two."""
        return "not compared" if self.aside else "equal" if self.equal else "DIFFERENT"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return asdict(self) | {"equal": self.equal, "differing_columns": dict(self.differing_columns)}


@dataclass(frozen=True)
class Layout:
    """Where the key stands in a row, how its parts are ordered, and which differences are none: of a column, the
    source's value and the lake's."""

    columns: tuple[str, ...]
    key: tuple[int, ...]
    order: tuple[Callable[[str], Any], ...]
    replaced: Callable[[int, str, str | None], bool] = lambda index, ours, theirs: False

    def sort_key(self, row: Row) -> tuple[tuple[bool, Any], ...]:
        """Orders rows the way both servers do: nulls last."""
        parts = zip(self.key, self.order, strict=True)
        return tuple((True, 0) if (text := row[index]) is None else (False, of(text)) for index, of in parts)


def compare(result: TableComparison, layout: Layout, source: Rows, lake: Rows) -> TableComparison:
    """Fills `result` from two streams that are both sorted by the key."""
    for ours, theirs in _pairs(layout, source, lake):
        result.source_rows += ours is not None
        result.lake_rows += theirs is not None
        if theirs is None and ours is not None:
            result.missing += 1
            _add_example(result, layout, "missing", ours, {})
        elif ours is None and theirs is not None:
            result.extra += 1
            _add_example(result, layout, "extra", theirs, {})
        elif ours != theirs and ours is not None and theirs is not None:
            _compare_rows(result, layout, ours, theirs)
    return result


def _pairs(layout: Layout, source: Rows, lake: Rows) -> Iterator[tuple[Row | None, Row | None]]:
    left, right = _keyed(layout, source), _keyed(layout, lake)
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[1], None
            ours = next(left, None)
        elif ours is None or theirs[0] < ours[0]:
            yield None, theirs[1]
            theirs = next(right, None)
        else:
            yield ours[1], theirs[1]
            ours, theirs = next(left, None), next(right, None)


def _keyed(layout: Layout, rows: Rows) -> Iterator[tuple[Any, Row]]:
    previous = None
    for row in rows:
        key = layout.sort_key(row)
        if previous is not None and key < previous:
            raise LakehouseError("rows did not arrive in the order of their key, so they cannot be compared: a bug")
        previous = key
        yield key, row


def _compare_rows(result: TableComparison, layout: Layout, ours: Row, theirs: Row) -> None:
    differing: dict[str, tuple[str | None, str | None]] = {}
    for index, (here, there) in enumerate(zip(ours, theirs, strict=True)):
        if here == there:
            continue
        if here is not None and layout.replaced(index, here, there):
            result.unrepresentable += 1
        else:
            differing[layout.columns[index]] = (here, there)
    if differing:
        result.differing += 1
        result.differing_columns.update(differing.keys())
        _add_example(result, layout, "differs", ours, differing)


def _add_example(
    result: TableComparison,
    layout: Layout,
    kind: Literal["missing", "extra", "differs"],
    row: Row,
    columns: dict[str, tuple[str | None, str | None]],
) -> None:
    if len(result.examples) < MAX_EXAMPLES:
        key = {layout.columns[index]: row[index] for index in layout.key}
        result.examples.append(Example(kind, key, columns))
