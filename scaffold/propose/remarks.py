"""What a proposal cannot decide, or leaves out, in a sentence for the person who reads it."""

from collections.abc import Iterator, Mapping

from scaffold.entities import article
from scaffold.propose.columns import looks_personal
from scaffold.propose.database import DbTable
from scaffold.propose.names import aliases, is_by_sound
from scaffold.propose.shapes import Shape
from scaffold.text import flow, scalar

_FORMS = {
    "reference_table": "A guess: codes, as the table is small and refers to no thing. If they are things, `hub: {}`.",
    "event": "A guess: rows that never change, by the name. If they do, `hub: {}` with links and a satellite.",
}


def of_names(table: DbTable, name: str) -> Iterator[str]:
    """What is called by its sound, or by nothing that says more; `name` is the table's in the lake."""
    columns = aliases([column for column, *_ in table.columns])
    called = {table.name: name} if is_by_sound(table.name) else {}
    called |= {column: alias for column, alias in columns.items() if is_by_sound(column)}
    if called:
        said = ", ".join(f"{theirs} is {ours}" for theirs, ours in called.items())
        yield f"By their sound: {said}. Put names that people know in their place before the first load."


def of_columns(table: DbTable, shape: Shape | None) -> Iterator[str]:
    """What does not land, and what lands and cannot be erased."""
    if table.generated:
        yield f"{', '.join(table.generated)}: generated, so not in the stream."
    if shape and shape.parts.secret:
        yield f"{', '.join(shape.parts.secret)}: called like a secret, so excluded."
    if kept := looks_personal(table.key):
        yield f"{', '.join(kept)}: called like personal data, and a key cannot be erased."


def of_shape(table: DbTable, shape: Shape, known: Mapping[int, DbTable], found: Mapping[int, Shape]) -> Iterator[str]:
    """What is a guess, and what becomes of each foreign key that is no link."""
    if shape.form in _FORMS:
        yield _FORMS[shape.form].format(scalar(shape.name))
    if shape.by_row:
        yield from _of_rows(shape)
    linked = {(reference.columns, reference.target) for reference in shape.references}
    for columns, other in dict.fromkeys(table.foreign):
        if (columns, other) not in linked:
            yield f"{', '.join(columns)}: {_unlinked(known[other], found)}, so an attribute."
    for columns, what in table.loose:
        yield f"{', '.join(columns)}: refers to {what}, so an attribute."
    for reference in shape.references:
        if via := shape.implied.get(reference.role):
            yield f"{', '.join(reference.columns)}: the {reference.hub} of the {via}, so no link of its own."
        if shape.form == "hub" and set(reference.columns) == set(table.key):
            hub = flow({"name": reference.hub, "extends": True})
            yield f"One row for each {reference.hub} at most. If it says more of the same thing, `hub: {hub}`."
    if shape.form == "hub" and not shape.together and table.unique:
        keys = "; ".join(", ".join(columns) for columns in table.unique)
        yield f"Unique too: {keys}. The hub goes by {', '.join(table.key)}, as the stream does."


def _of_rows(shape: Shape) -> Iterator[str]:
    """Rows that relate things and have an id of their own may be either."""
    if shape.form == "link":
        things = " and ".join(shape.linked)
        yield f"A guess: it relates {things}. If its rows are things, `hub: {scalar(shape.name)}` with links."
    elif shape.form == "hub":
        link = f"link: {flow({'name': shape.name, 'to': shape.linked})}"
        yield f"Undecided: if people never speak of {article(shape.name)}, `{link}` in place of hub and links."


def _unlinked(other: DbTable, found: Mapping[int, Shape]) -> str:
    shape = found.get(other.oid)
    if shape is not None and shape.form == "reference_table":
        return f"a code of ref_{shape.name}"
    return f"refers to {other.relation}, which is left out" if other.unfit else f"refers to {other.relation}"
