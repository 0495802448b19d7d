"""`lakehouse sql`: one query on the lake, through Trino."""

import re
from typing import Annotated, Any

import typer
from trino.exceptions import TrinoQueryError
from trino.types import NamedRowTuple

from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Role
from lakehouse.servers.time_travel import refuse_ignored
from lakehouse.servers.trino import answering, connect
from lakehouse.servers.trino import query as ask
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import print_table, say, say_json

NOT_MINE = " (asked as {role}: `--role privacy` sees personal data, `--role writer` everything)"
NOT_LOADED = " (no load has made it yet: `lakehouse run load_SOURCE` makes parsed and vault of what is in raw)"


def sql(
    query: Annotated[str, typer.Argument(help="a Trino query, such as: SELECT * FROM marts.dim_store")],
    json: Annotated[bool, typer.Option("--json", help="print one JSON object per row")] = False,
    role: Annotated[
        Role, typer.Option(help="role of the login: `privacy` sees personal data, `writer` everything")
    ] = "reader",
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="as of a time, such as '2026-11-20 10:00' (UTC)")
    ] = None,
    as_of_lsn: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE=[EPOCH:]LSN", help="as of a commit, such as retail=0/3C87757; one of each source"),
    ] = None,
    as_of_cut: Annotated[
        str | None,
        typer.Option(metavar="CUT", help="as of pin:NAME, or of a published cut, such as retail=1:0/3C87757"),
    ] = None,
) -> None:
    """Run one query on the lake and print its rows.

    Runs with the least rights by default: a pasted query drops no table and shows no personal data.

    With --as-of or --as-of-lsn every table and view is read as it was at the newest cut until then; with --as-of-cut
    at that cut, and the marts that a pin keeps too (docs/past.md).
    FOR TIMESTAMP AS OF and FOR VERSION AS OF are refused on a view, where Trino ignores them.

    A table has NULL where there is no value. In JSON, NaN and Infinity are texts, and so are decimals and times; a
    varbinary is hexadecimal digits in both.
    """
    settings = load_settings()
    given = (as_of, _commits(as_of_lsn) if as_of_lsn else None, as_of_cut)
    moments = [text for text in given if text is not None]  # an empty one is none, and not the present
    if len(moments) > 1:
        raise LakehouseError("--as-of, --as-of-lsn and --as-of-cut: give one of them")
    try:
        with answering(settings):
            if moments:
                query = _as_of(settings, query, moments[0], as_of_cut is not None, role)
            refuse_ignored(query, settings.trino.catalog, lambda views: bool(_answer(settings, views, role)))
            cursor = connect(settings, role=role).cursor()
            cursor.execute(query)
            rows = cursor.fetchall()
    except TrinoQueryError as error:
        raise LakehouseError(f"query: {error.message}{_more(error, role)}") from None
    _print([column[0] for column in cursor.description or []], rows, json)


def _commits(texts: list[str]) -> str:
    from lakehouse_serve.past.moments import joined_positions

    try:
        return joined_positions(texts)
    except ValueError as error:
        raise LakehouseError(f"--as-of-lsn: {error}") from None


def _more(error: TrinoQueryError, role: Role) -> str:
    """What else a person may want to know."""
    if role != "writer" and re.search("Access Denied|not allowed", error.message):
        return NOT_MINE.format(role=role)
    return NOT_LOADED if re.search("Schema '(parsed|vault)' does not exist", error.message) else ""


def _print(names: list[str], rows: list[list[Any]], json: bool) -> None:
    if json:
        if twice := [name for name in names if names.count(name) > 1]:
            raise LakehouseError(f"query: two columns are called {twice[0]}: name them apart with AS")
        for row in rows:
            say_json(dict(zip(names, row, strict=True)))
        return
    if len(rows) == len(names) == 1 and isinstance(rows[0][0], str):  # as of EXPLAIN and SHOW CREATE
        say(names[0])
        for line in rows[0][0].split("\n"):
            say(line)
        return
    print_table(names, [[_shown(value) for value in row] for row in rows])


def _shown(value: Any) -> Any:
    """An empty text is not to be taken for none."""
    return "NULL" if value is None else _readable(value)


def _readable(value: Any) -> Any:
    """Bytes as hexadecimal digits, also those in an array, a map or a row."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {_readable(key): _readable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, NamedRowTuple):
        said = value.__annotations__
        return NamedRowTuple([_readable(each) for each in value], said["names"], said["types"])
    return value


def _as_of(settings: Settings, query: str, moment: str, exactly: bool, role: Role) -> str:
    """The query as of a moment, or a cut; says as of which cuts it is, and what they lack of the moment."""
    from lakehouse_serve.past.asked import at_cut, at_moment, moment_of, remarks

    asked = moment_of(settings, moment)
    rewritten, cuts = (at_cut if exactly else at_moment)(settings, query, asked, role)
    say(f"as of {', '.join(f'{cut.position}, {cut.said_at}' for cut in cuts) or 'no cut'}", error=True)
    for text in [] if exactly else remarks(settings, asked, cuts):
        say(text, error=True)
    return rewritten


def _answer(settings: Settings, query: str, role: Role) -> list[list[Any]]:
    """Nothing where the catalog does not exist: what Trino says of the query itself is better."""
    try:
        return ask(settings, query, role=role)
    except TrinoQueryError as error:
        if error.error_name == "CATALOG_NOT_FOUND":
            return []
        raise
