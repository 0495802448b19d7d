"""Which rows of a second catalog an export may point elsewhere or drop: those of its own lake's tables.

A row is the lake's where it lies below the warehouse. A table that was registered from elsewhere may lie anywhere, and
a warehouse may lie within another's, so the export also notes in that catalog, as a property of the namespace, whose a
table is and in which folder its metadata is. It commits with the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog.sql import IcebergNamespaceProperties as Properties
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.relations import directory

Name = tuple[str, str]
Pointers = Mapping[Name, str]
NOTE = "lakehouse.exported."
MOST_KEY, MOST_VALUE = 255, 1000  # letters that the catalog's table has room for


@dataclass(frozen=True)
class Note:
    """Whose table it is, and the folder of its metadata files."""

    lake: str
    folder: str


@dataclass(frozen=True)
class Owner:
    """A lake, by its warehouse: `notes` are what exports have noted in the second catalog."""

    warehouse: str
    notes: Mapping[Name, Note] = field(default_factory=dict)

    @property
    def lake(self) -> str:
        """What notes call it."""
        return directory(self.warehouse)

    def has(self, name: Name, location: str, now: str | None = None) -> bool:
        """Whether a row is of this lake; `now` is where the table is that the export has of that name.

        The same folder makes it the same table, whoever has noted it: the warehouse may have another name by now. That
        the lake has such a table which it does not export says nothing: it may have been registered from that catalog.
        """
        if now is not None and folder_of(now) == folder_of(location):
            return True
        note = self.notes.get(name)
        if note is not None and folder_of(location) == note.folder:
            return note.lake == self.lake
        return one_spelling(location).startswith(self.lake)


def folder_of(location: str) -> str:
    """Where a metadata file lies, as every other one of its table."""
    return one_spelling(location).rpartition("/")[0]


def read_notes(session: Session, catalog: str) -> dict[Name, Note]:
    """What exports have noted of tables of that catalog."""
    own = Properties.property_key.startswith(NOTE, autoescape=True)
    found = session.scalars(select(Properties).where(Properties.catalog_name == catalog, own)).all()
    read = {(row.namespace, row.property_key.removeprefix(NOTE)): _note(row.property_value) for row in found}
    return {name: note for name, note in read.items() if note is not None}


def _note(text: str) -> Note | None:
    """None where a person or another release has written something else."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    is_note = isinstance(read, dict) and read.keys() == {"lake", "folder"} and {*map(type, read.values())} == {str}
    return Note(**read) if is_note else None


def write_notes(session: Session, catalog: str, owner: Owner, here: Pointers) -> None:
    """Notes the tables that are exported now, and forgets the lake's that are so no longer."""
    now = {name: Note(owner.lake, folder_of(location)) for name, location in here.items()}
    gone = [name for name, note in owner.notes.items() if note.lake == owner.lake and now.get(name) != note]
    changed = {name: note for name, note in now.items() if owner.notes.get(name) != note}
    for name in {*gone, *changed}:  # also where one stands that cannot be read
        session.execute(delete(Properties).filter_by(**_key(catalog, name)))
    for name, note in changed.items():
        row = {**_key(catalog, name), "property_value": json.dumps(vars(note))}
        if len(row["property_key"]) <= MOST_KEY and len(row["property_value"]) <= MOST_VALUE:
            session.add(Properties(**row))


def _key(catalog: str, name: Name) -> dict[str, str]:
    return {"catalog_name": catalog, "namespace": name[0], "property_key": f"{NOTE}{name[1]}"}
