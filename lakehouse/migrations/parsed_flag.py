"""Parsed's flag of deletions, which release 0.1 called `_deleted`: a name that Iceberg reserves.

A rename writes a metadata file and no data. It breaks views that read the former name, so Trino makes them anew from
their own text; dbt makes its own once more at its next run, with their comments. A property marks the tables that are
renamed while views are still to be made: the next run finishes one that was killed, and leaves alone a view that gets
such a column later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import TableName, list_relations, read_metadata, view_columns, view_text
from lakehouse.catalog.writing.commit import retried
from lakehouse.servers.trino import answering, query
from lakehouse.settings import Settings
from lakehouse.text.sql import relation

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

FORMER, NAME = "_deleted", "_is_deleted"
RENAMED = "lakehouse.renamed"  # property: the former name, while views that read it are to be made anew
OF_PARSED = {"_op", "_valid_from", "_record_source", "_loaded_at"}


@dataclass(frozen=True)
class Outdated:
    """What still has the former name: tables to rename, tables renamed whose views are not all made anew, views.

    `unclear` tables have a column of either name.
    """

    tables: tuple[TableName, ...]
    renamed: tuple[TableName, ...]
    unclear: tuple[TableName, ...]
    views: tuple[TableName, ...]

    def lines(self) -> list[str]:
        """What is to be done, for people."""
        return [
            *(f"{table}: rename {FORMER} to {NAME}" for table in self.tables),
            *(f"{view}: make the view anew, which reads {FORMER}" for view in self.views),
            *(f"{table}: end the renaming of {FORMER}" for table in self.renamed),
            *(f"{table}: {_why_unclear()}" for table in self.unclear),
        ]


def outdated(settings: Settings, catalog: SqlCatalog) -> Outdated:
    """Reads the metadata of parsed tables, and that of views where one of those is outdated."""
    relations = list_relations(catalog)
    tables, renamed, unclear = list[TableName](), list[TableName](), list[TableName]()
    for name in (r.name for r in relations if r.kind == "table" and r.name.name.startswith("parsed_")):
        table = load_table(catalog, *name)
        columns = {field.name for field in table.schema().fields} if table else set()
        if table is not None and {FORMER, *OF_PARSED} <= columns:
            (unclear if NAME in columns else tables).append(name)
        elif table is not None and table.properties.get(RENAMED) == FORMER:
            renamed.append(name)
    views = dict[TableName, tuple[str, frozenset[str]]]()
    if tables or renamed:
        io = open_io(settings)
        for view in (r for r in relations if r.kind == "view"):
            if (metadata := read_metadata(io, view.metadata_location)) is not None:
                views[view.name] = (view_text(metadata), view_columns(metadata))
    return Outdated(tuple(tables), tuple(renamed), tuple(unclear), tuple(_reading(views, [*tables, *renamed])))


def rename(settings: Settings, catalog: SqlCatalog) -> list[str]:
    """Renames the column in all tables, then makes the views anew; returns a line for each that Trino refuses.

    Raises LakehouseError, before anything is renamed, where Trino does not answer.
    """
    found = outdated(settings, catalog)
    if found.views:
        with answering(settings):
            query(settings, "SELECT 1")
    for name in found.tables:
        retried(catalog, name, _rename)
    with answering(settings):
        failed = _make_views(settings, found.views)
    for name in (*found.tables, *found.renamed):
        retried(catalog, name, _forget)
    return [
        f"{view} read {FORMER}, which is called {NAME} now: change its definition and make it anew ({why})"
        for view, why in failed.items()
    ]


def _reading(views: dict[TableName, tuple[str, frozenset[str]]], tables: Iterable[TableName]) -> list[TableName]:
    """The views that have or name the column and read one of the tables, or another one of these views."""
    found: list[TableName] = []
    read = [name.name for name in tables]
    while more := [
        name
        for name, (text, columns) in views.items()
        if name not in found and (FORMER in columns or _has(FORMER, text)) and any(_has(other, text) for other in read)
    ]:
        found += more
        read = [name.name for name in more]
    return found


def _has(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def _make_views(settings: Settings, views: Iterable[TableName]) -> dict[TableName, str]:
    """Makes the views anew, those last that read others; returns those that Trino refuses, and why."""
    from trino.exceptions import TrinoQueryError

    left, failed = list(views), dict[TableName, str]()
    while left:
        failed = {}
        for view in left:
            try:
                [[text]] = query(settings, f"SHOW CREATE VIEW {relation(*view)}")
                query(settings, under_the_new_name(text))
            except TrinoQueryError as error:
                failed[view] = error.message.splitlines()[0]
        if len(failed) == len(left):
            return failed
        left = list(failed)
    return failed


def under_the_new_name(statement: str) -> str:
    """A view's `CREATE VIEW` as a replacement that reads the column under its new name."""
    return re.sub(rf"\b{FORMER}\b", NAME, re.sub(r"\ACREATE VIEW\b", "CREATE OR REPLACE VIEW", statement))


def _rename(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({RENAMED: FORMER})
        with transaction.update_schema() as update:
            update.rename_column(FORMER, NAME)


def _forget(table: Table) -> None:
    if RENAMED in table.properties:
        with table.transaction() as transaction:
            transaction.remove_properties(RENAMED)


def _why_unclear() -> str:
    return (
        f"its source has a column {NAME}, which parsed calls the flag of deletions: "
        f"declare meta.raw.alias: {{{NAME}: another_name}}, then build the model once with --full-refresh"
    )
