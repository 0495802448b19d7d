"""`lakehouse sql`: one query on the lake, through Trino."""

import re
from typing import Annotated, Any

import typer
from trino.exceptions import TrinoQueryError

from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Role
from lakehouse.servers.time_travel import refuse_ignored
from lakehouse.servers.trino import answering, connect
from lakehouse.servers.trino import query as ask
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import console, say, say_json, table

NOT_MINE = " (asked as {role}: `--role privacy` sees personal data, `--role writer` everything)"


def sql(
    query: Annotated[str, typer.Argument(help="a Trino query, such as: SELECT * FROM marts.dim_store")],
    json: Annotated[bool, typer.Option("--json", help="print one JSON object per row")] = False,
    role: Annotated[
        Role, typer.Option(help="role of the login: `privacy` sees personal data, `writer` everything")
    ] = "reader",
) -> None:
    """Run one query on the lake and print its rows.

    Runs with the least rights by default: a pasted query drops no table and shows no personal data.

    FOR TIMESTAMP AS OF and FOR VERSION AS OF are refused on a view, where Trino ignores them (docs/past.md).
    """
    settings = load_settings()
    try:
        with answering(settings):
            refuse_ignored(query, settings.trino.catalog, lambda views: bool(_answer(settings, views, role)))
            cursor = connect(settings, role=role).cursor()
            cursor.execute(query)
            rows = cursor.fetchall()
    except TrinoQueryError as error:
        refused = role != "writer" and re.search("Access Denied|not allowed", error.message)
        more = NOT_MINE if refused else ""
        raise LakehouseError(f"query: {error.message}{more.format(role=role)}") from None
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


def _answer(settings: Settings, query: str, role: Role) -> list[list[Any]]:
    """Nothing where the catalog does not exist: what Trino says of the query itself is better."""
    try:
        return ask(settings, query, role=role)
    except TrinoQueryError as error:
        if error.error_name == "CATALOG_NOT_FOUND":
            return []
        raise
