"""`lakehouse sql`: one query on the lake, through Trino."""

import json as jsonlib
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from trino.exceptions import TrinoQueryError

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.trino import answering, connect


def sql(
    query: Annotated[str, typer.Argument(help="a Trino query, such as: SELECT * FROM marts.dim_store")],
    json: Annotated[bool, typer.Option("--json", help="print one JSON object per row")] = False,
) -> None:
    """Run one query on the lake and print its rows."""
    settings = load_settings()
    try:
        with answering(settings):
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
