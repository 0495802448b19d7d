"""Which columns a raw table has, and what they are called, once it has followed its source. Pure.

A name says which column is meant only together with when it is said: after a swap, both names are still there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.types import IcebergType

from ingestion.schema.evolve import Step, fits, set_aside_name, unused, widens


@dataclass(frozen=True)
class LakeColumn:
    """A column of the raw table; one that is still to be added has no field id."""

    type: IcebergType
    doc: str
    field_id: int | None = None


def stepped(
    columns: Mapping[str, LakeColumn], steps: Iterable[Step], made: Mapping[str, LakeColumn]
) -> dict[str, LakeColumn]:
    """The columns by name after the steps, from `columns` on; `made` are those that an earlier try has added since.

    Steps find the names of the source's columns free. Who has such a name nevertheless is a column that the source
    dropped long ago and the lake keeps: it goes on under a name that tells its type.
    """
    found = dict(columns)
    for step in steps:
        there = found.get(step.column)
        if step.renames:
            if there is not None:
                del found[step.column]
                _make_way(found, step.to)
                found[step.to] = there
        elif step.type is not None:
            if there is None or not fits(there.type, step.type):
                _make_way(found, step.column)
                found[step.column] = LakeColumn(step.type, step.doc)
            elif widens(there.type, step.type):
                found[step.column] = replace(there, type=step.type, doc=step.doc)
    for name, column in made.items():
        new = found.get(name)
        if new is not None and new.field_id is None and fits(column.type, new.type):
            found[name] = replace(new, field_id=column.field_id)
        else:
            found[unused(name, _lower(found))] = column
    return found


def _make_way(found: dict[str, LakeColumn], name: str) -> None:
    for holder in [held for held in found if held.lower() == name.lower()]:
        column = found.pop(holder)
        found[set_aside_name(holder, column.type, _lower(found))] = column


def _lower(found: Mapping[str, LakeColumn]) -> set[str]:
    return {name.lower() for name in found}
