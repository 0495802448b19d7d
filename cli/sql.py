"""`lakehouse sql`: one query on the lake, through Trino."""

from typing import Annotated, Any

import typer
from trino.exceptions import TrinoQueryError

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.shown import console, say, say_json, table
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
            say_json(dict(zip(names, row, strict=True)))
        return
    if len(rows) == len(names) == 1 and isinstance(rows[0][0], str):  # as of EXPLAIN and SHOW CREATE
        say(names[0])
        for line in rows[0][0].split("\n"):
            say(line)
        return
    console().print(table(names, [["" if value is None else value for value in row] for row in rows]))


def _answer(settings: Settings, query: str) -> list[list[Any]]:
    """Nothing where the catalog does not exist: what Trino says of the query itself is better."""
    try:
        return ask(settings, query)
    except TrinoQueryError as error:
        if error.error_name == "CATALOG_NOT_FOUND":
            return []
        raise
