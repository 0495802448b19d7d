"""Which values of the stream must not land, and which not be kept, also while columns bear other names than declared.

A column that is left out or masked is one by its number: whatever it is called in the stream, its values are nobody
else's. Where a name may have been that of such a column, and nothing tells that it was not, its values go nowhere, and
a repair brings what the source has by then. Pure.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from ingestion.schema.changes import Relation
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.match import Numbers, names_by_number, possible_numbers
from ingestion.schema.streamed_columns import UnknownRowSchema, columns_of
from ingestion.sink.rows import TableTarget

Form = tuple[TableTarget, tuple[ColumnFacts, ...]]


def form_of(target: TableTarget, relation: Relation) -> Form:
    """The columns of a relation that land, and the target with the masks that they have by the stream's names.

    Raises CannotTell where no look explains a column, or one that lands may be a column that is left out, or another
    that is masked.
    """
    looks = _looks(target, relation)
    left_out, masked = _called(looks, target.excluded), _called(looks, target.mask)
    if not left_out | masked:
        return target, columns_of(target.versions, relation, target.excluded)
    numbers = _numbers(target, looks, relation)
    surely = {name for name, may_be in numbers.items() if may_be is not None and may_be <= left_out}
    columns = columns_of(target.versions, relation, target.excluded | surely)
    for column in columns:
        may_be = numbers[column.name]
        if may_be is None or may_be & (left_out | masked - {column.number}):
            raise UnknownRowSchema(f"column {column.name!r} may have been one that is left out or masked")
    return _masked_by_number(target, looks, columns), columns


def withheld_in(target: TableTarget, relation: Relation) -> frozenset[str]:
    """The relation's columns whose values must not be kept: those withheld, and those that may have been.

    A value that is to land as a digest is kept under the names that its column is known by.
    """
    looks = _looks(target, relation)
    withheld, masked = _called(looks, target.withheld), _called(looks, target.mask)
    if not withheld | masked:
        return target.withheld
    return target.withheld | {
        name
        for name, may_be in _numbers(target, looks, relation).items()
        if may_be is None or may_be & (withheld | masked - _called(looks, {name}))
    }


def _masked_by_number(target: TableTarget, looks: Sequence[TableFacts], columns: Sequence[ColumnFacts]) -> TableTarget:
    """Rows from before a column was renamed, in the source and its declaration, have it by its former name."""
    by_number = {number: how for name, how in target.mask.items() for number in _called(looks, {name})}
    formerly = {column.name: by_number[column.number] for column in columns if column.number in by_number}
    return replace(target, mask={**formerly, **target.mask})


def _looks(target: TableTarget, relation: Relation) -> list[TableFacts]:
    return [facts for facts in target.looks if facts.oid == relation.oid]


def _called(looks: Sequence[TableFacts], names: Collection[str]) -> Numbers:
    """The numbers of columns that bear one of the names at one of the looks."""
    return frozenset(n for facts in looks for n, name in names_by_number(facts).items() if name in names)


def _numbers(target: TableTarget, looks: Sequence[TableFacts], relation: Relation) -> dict[str, Numbers | None]:
    """By the relation's names, the numbers that each may stand for; None where it may be any: no look came after the
    rows, or none explains them."""
    names = [column.name for column in relation.columns]
    bounded = target.is_there and target.looks[-1].oid == relation.oid
    possible = possible_numbers(looks, names) if bounded else None
    return dict(zip(names, possible, strict=True)) if possible is not None else dict.fromkeys(names)
