"""The columns that rows of the stream carry, found by the names that the stream gives them."""

from ingestion.schema.changes import Relation
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.match import names_by_number
from ingestion.schema.types.table import NUMERIC_OID

Versions = tuple[TableFacts, ...]


class UnknownRowSchema(Exception):
    """The schema of a row in the stream matches no recorded version of the table."""


def columns_of(versions: Versions, relation: Relation, excluded: frozenset[str]) -> tuple[ColumnFacts, ...]:
    """The facts of each column that a relation of the stream describes, excluded ones left out.

    They come from the newest description of exactly these names and types, else from all of them where they do not
    contradict each other. The stream has columns in the order of their numbers: names in another one were exchanged for
    a while. Raises UnknownRowSchema where no description explains a column.
    """
    for facts in reversed(versions):
        known = {c.name: c for c in facts.columns}
        streamed = _landing(relation, facts, excluded)
        if facts.oid == relation.oid and len(streamed) == len(known) and _in_order((facts,), relation):
            fitting = [known[name] for name, *kind in streamed if name in known and _same_type(known[name], *kind)]
            if len(fitting) == len(streamed):
                return tuple(fitting)
    if not _in_order(versions, relation):
        raise UnknownRowSchema("the stream has rows from a time when columns bore each other's names")
    streamed = _landing(relation, versions[-1], excluded)
    found = tuple(_only_candidate(versions, relation, name, oid, typmod) for name, oid, typmod in streamed)
    if not _were_all({column.number for column in found}, versions):
        raise UnknownRowSchema("the stream has rows from a time when a column bore another one's name")
    return found


def _were_all(numbers: set[int], versions: Versions) -> bool:
    """Whether a table that went through these descriptions can have had these columns and no others.

    What the first and the last description have was always there; what the last one has came in the order of numbers.
    """
    first, last = ({column.number for column in facts.columns} for facts in (versions[0], versions[-1]))
    if versions[0].oid != versions[-1].oid:
        return True
    newest = max(numbers, default=0)
    return numbers >= {number for number in last if number in first or number <= newest}


def _landing(relation: Relation, facts: TableFacts, excluded: frozenset[str]) -> list[tuple[str, int, int]]:
    """The relation's columns without those that do not land: excluded, or generated and published all the same."""
    hidden = excluded | {name for _, name in facts.hidden}
    return [(c.name, c.type_oid, c.typmod) for c in relation.columns if c.name not in hidden]


def _in_order(versions: Versions, relation: Relation) -> bool:
    """Whether the columns that bear one number in all descriptions stand in the order of these; excluded ones too."""
    numbers: dict[str, set[int]] = {}
    for facts in versions:
        for number, name in names_by_number(facts).items():
            if facts.oid == relation.oid:
                numbers.setdefault(name, set()).add(number)
    sure = [min(numbers[c.name]) for c in relation.columns if len(numbers.get(c.name, ())) == 1]
    return sure == sorted(sure)


def _only_candidate(versions: Versions, relation: Relation, name: str, type_oid: int, typmod: int) -> ColumnFacts:
    found = [
        column
        for facts in versions
        if facts.oid == relation.oid
        for column in facts.columns
        if column.name == name and _same_type(column, type_oid, typmod)
    ]
    if len({column.number for column in found}) != 1:
        raise UnknownRowSchema(f"the stream has rows with a column {name!r} that the table did not keep")
    return found[-1]


def _same_type(column: ColumnFacts, type_oid: int, typmod: int) -> bool:
    return column.stream_oid == type_oid and (column.stream_typmod == typmod or type_oid != NUMERIC_OID)
