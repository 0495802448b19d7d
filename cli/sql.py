"""`lakehouse sql`: one query on the lake, through Trino."""

import json as jsonlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from trino.exceptions import TrinoQueryError

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.time_travel import refuse_ignored
from lakehouse.trino import answering, connect
from lakehouse.trino import query as ask


def sql(
    query: Annotated[str, typer.Argument(help="a Trino query, such as: SELECT * FROM marts.dim_store")],
    json: Annotated[bool, typer.Option("--json", help="print one JSON object per row")] = False,
) -> None:
    """Run one query on the lake and print its rows.

    FOR TIMESTAMP AS OF and FOR VERSION AS OF are refused on a view, where Trino ignores them (docs/past.md).
    """
    settings = load_settings()
    try:
        with answering(settings):
            refuse_ignored(query, settings.trino.catalog, lambda views: bool(_answer(settings, views)))
            cursor = connect(settings).cursor()
            cursor.execute(query)
            rows = cursor.fetchall()
    except TrinoQueryError as error:
        raise LakehouseError(f"query: {error.message}") from None
    names = [column[0] for column in cursor.description or []]
    if json:
        for row in rows:
            print(jsonlib.dumps(dict(zip(names, row, strict=True)), default=str))
        return
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console(highlight=False).print(table)


def _answer(settings: Settings, query: str) -> list[list[Any]]:
    """Nothing where the catalog does not exist: what Trino says of the query itself is better."""
    try:
        return ask(settings, query)
    except TrinoQueryError as error:
        if error.error_name == "CATALOG_NOT_FOUND":
            return []
        raise
