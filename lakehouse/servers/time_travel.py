"""Refuses time travel that Trino would ignore: `FOR TIMESTAMP AS OF` on a view or a WITH query.

Trino applies the clause to Iceberg tables only; on anything else it silently returns the present.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from lakehouse.errors import LakehouseError
from lakehouse.text.sql import ident, literal

PAGE = "docs/past.md"
_TOKEN = re.compile(
    r"""\s+ | --[^\r\n]* | /\*.*?\*/ | (?P<token>'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \w+ | .)""",
    re.DOTALL | re.VERBOSE,
)
_CLAUSE = re.compile(r"FOR (TIMESTAMP|VERSION) AS OF")
_NAME = re.compile(r'\w+|".*"', re.DOTALL)


@dataclass(frozen=True)
class AsOf:
    """A relation that the clause stands on: the parts of its name in lower case, as Trino reads them."""

    name: tuple[str, ...]
    kind: Literal["TIMESTAMP", "VERSION"]

    @property
    def clause(self) -> str:
        """`FOR TIMESTAMP AS OF` or `FOR VERSION AS OF`."""
        return f"FOR {self.kind} AS OF"


def refuse_ignored(sql: str, catalog: str, is_view: Callable[[str], bool]) -> None:
    """Raises LakehouseError for the first clause that Trino would ignore.

    `is_view` answers a query that finds a row where the relation is a view; `catalog` is the session's.
    """
    tokens = _tokens(sql)
    for read in _as_of(tokens):
        *before, schema, name = ("", *read.name) if len(read.name) == 1 else read.name
        if not schema:
            if _is_with_query(tokens, name):
                raise LakehouseError(
                    f"{name} is a WITH query, on which Trino ignores {read.clause}: put it on the table inside"
                )
        elif is_view(_views_named(before[0] if before else catalog, schema, name)):
            raise LakehouseError(
                f"{schema}.{name} is a view, on which Trino ignores {read.clause} and returns the rows of now: "
                f"{_instead(schema, name)} (see {PAGE})"
            )
    for inner in _immediate(tokens):
        refuse_ignored(inner, catalog, is_view)


def _instead(schema: str, name: str) -> str:
    if name.startswith("current_"):
        table = f"{schema}.parsed_{name.removeprefix('current_')}"
        return f"take the newest version of each key in {table} where _valid_from <= the moment"
    if name.endswith("_v1"):
        return "ask for valid_from <= the moment AND (valid_to > the moment OR valid_to IS NULL)"
    return "query the tables that it reads"


def _tokens(sql: str) -> list[str]:
    """Words, quoted names, strings and signs; comments and spaces are gone."""
    return [found["token"] for found in _TOKEN.finditer(sql) if found["token"]]


def _as_of(tokens: list[str]) -> Iterator[AsOf]:
    for at in range(1, len(tokens) - 3):
        clause = _CLAUSE.fullmatch(" ".join(tokens[at : at + 4]).upper())
        if clause and _NAME.fullmatch(tokens[at - 1]):
            first = at - 1
            while first >= 2 and tokens[first - 1] == "." and _NAME.fullmatch(tokens[first - 2]):
                first -= 2
            parts = tuple(map(_spelled, tokens[first:at:2]))
            yield AsOf(parts, "TIMESTAMP" if clause[1] == "TIMESTAMP" else "VERSION")


def _spelled(token: str) -> str:
    return (token[1:-1].replace('""', '"') if token.startswith('"') else token).lower()


def _is_with_query(tokens: list[str], name: str) -> bool:
    """Whether `name AS (` or `name (columns) AS (` is there."""
    for at in (n for n, token in enumerate(tokens) if _NAME.fullmatch(token) and _spelled(token) == name):
        after = at + 1
        if tokens[after : after + 1] == ["("]:
            after = tokens.index(")", after) + 1 if ")" in tokens[after:] else len(tokens)
        if [token.upper() for token in tokens[after : after + 2]] == ["AS", "("]:
            return True
    return False


def _immediate(tokens: list[str]) -> Iterator[str]:
    """The statement of an EXECUTE IMMEDIATE."""
    if [token.upper() for token in tokens[:2]] == ["EXECUTE", "IMMEDIATE"] and tokens[2:3]:
        yield tokens[2][1:-1].replace("''", "'")


def _views_named(catalog: str, schema: str, name: str) -> str:
    named = f"table_schema = {literal(schema)} AND table_name = {literal(name)}"
    return (
        f"SELECT 1 FROM {ident(catalog)}.information_schema.views WHERE {named} UNION ALL"
        " SELECT 1 FROM system.metadata.materialized_views"
        f" WHERE catalog_name = {literal(catalog)} AND schema_name = {literal(schema)} AND name = {literal(name)}"
    )
