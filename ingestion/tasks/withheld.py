"""Which values of the stream must not land or be stored, also while columns have other names than those declared.

Excluded and masked columns are identified by their numbers, whatever their names in the stream. The values of a name
that may have belonged to such a column are dropped; a resync then brings what the source has. Pure.
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

    Raises UnknownRowSchema where no description explains a column, or where a column that lands may be an excluded one
    or another masked one.
    """
    descriptions = _descriptions(target, relation)
    left_out, masked = _called(descriptions, target.excluded), _called(descriptions, target.mask)
    if not left_out | masked:
        return target, columns_of(target.versions, relation, target.excluded)
    numbers = _numbers(target, descriptions, relation)
    surely = {name for name, may_be in numbers.items() if may_be is not None and may_be <= left_out}
    columns = columns_of(target.versions, relation, target.excluded | surely)
    for column in columns:
        may_be = numbers[column.name]
        if may_be is None or may_be & (left_out | masked - {column.number}):
            raise UnknownRowSchema(f"column {column.name!r} may have been one that is left out or masked")
    return _masked_by_number(target, descriptions, columns), columns


def withheld_in(target: TableTarget, relation: Relation) -> frozenset[str]:
    """The relation's columns whose values must not be kept: those withheld, and those that may have been.

    A value that is to land as a digest is kept under the names that its column is known by.
    """
    descriptions = _descriptions(target, relation)
    withheld, masked = _called(descriptions, target.withheld), _called(descriptions, target.mask)
    if not withheld | masked:
        return target.withheld
    return target.withheld | {
        name
        for name, may_be in _numbers(target, descriptions, relation).items()
        if may_be is None or may_be & (withheld | masked - _called(descriptions, {name}))
    }


def _masked_by_number(
    target: TableTarget, descriptions: Sequence[TableFacts], columns: Sequence[ColumnFacts]
) -> TableTarget:
    """Rows from before a column was renamed, in the source and its declaration, have it by its former name."""
    by_number = {number: how for name, how in target.mask.items() for number in _called(descriptions, {name})}
    formerly = {column.name: by_number[column.number] for column in columns if column.number in by_number}
    return replace(target, mask={**formerly, **target.mask})


def _descriptions(target: TableTarget, relation: Relation) -> list[TableFacts]:
    return [facts for facts in target.descriptions if facts.oid == relation.oid]


def _called(descriptions: Sequence[TableFacts], names: Collection[str]) -> Numbers:
    """The numbers of columns that bear one of the names in one of the descriptions."""
    return frozenset(n for facts in descriptions for n, name in names_by_number(facts).items() if name in names)


def _numbers(target: TableTarget, descriptions: Sequence[TableFacts], relation: Relation) -> dict[str, Numbers | None]:
    """By the relation's names, the numbers that each may stand for; None where it may be any: none was made after the
    rows, or none explains them."""
    names = [column.name for column in relation.columns]
    bounded = target.is_there and target.descriptions[-1].oid == relation.oid
    possible = possible_numbers(descriptions, names) if bounded else None
    return dict(zip(names, possible, strict=True)) if possible is not None else dict.fromkeys(names)
