"""What a table's declaration says of its columns, against the source: what ingestion would refuse, but all of it.

The words are ingestion's own, as it would set the table aside with them.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

import psycopg

from ingestion.schema.declared_columns import check_columns
from ingestion.schema.evolve import name_columns, source_type, steps
from ingestion.schema.facts import TableFacts
from ingestion.schema.names import colliding_names
from ingestion.schema.problem import TableProblem
from ingestion.schema.types import target_type
from ingestion.schema.types.declared import is_known, type_name
from ingestion.schema.types.unrepresentable import KINDS
from ingestion.sources.findings import Finding, Positions
from ingestion.sources.postgres.catalog.describe import read_facts
from ingestion.sources.postgres.catalog.problems import problem_of_key, problem_of_leaf
from ingestion.sources.postgres.setup.relations import Stored
from ingestion.state.withheld import check_withheld
from lakehouse.declarations import METADATA_COLUMNS, PARSED_METADATA, RawTable
from lakehouse.servers.database import SourceConnection
from lakehouse.text.shown import visible

OF_PARSED = PARSED_METADATA.keys() - METADATA_COLUMNS  # ingestion goes on with these: only dbt refuses them


def column_findings(
    connection: SourceConnection, table: RawTable, stored: list[Stored], publication: str, positions: Positions
) -> Iterator[Finding]:
    """One for each mistake about columns that are there; those that are not have findings of their own, until the table
    has begun: then the lake may go on with a column under its former name."""
    facts, _ = read_facts(connection, table, publication)
    if facts is None:
        return
    finding, position = partial(Finding, table.source, table.name), positions.get(table.name)
    before = position.facts if position and position.versions else None
    begun = before is not None
    if begun or facts.names.issuperset(table.key):
        for problem in _of_key(table, facts, stored):
            yield finding("key", "in the way", *_said(problem))
    yield from one_key_of_two(table, facts)
    for problem in _raised(check_withheld, table, position, facts):
        yield finding("withheld columns", "in the way", *_said(problem))
    landed, named = position.landed if position else (), name_columns(table, before, facts)
    for problem in colliding_names(table, named, landed):
        yield finding("column names", "in the way", *_said(problem))
    if begun or facts.names >= {*(column.name for column in table.columns), *table.raw.exclude}:
        yield from (
            finding("columns", "in the way", *_said(problem)) for problem in _raised(check_columns, table, named)
        )
    if position is not None and position.state == "streaming" and before is not None:
        follow = partial(steps, consent=False)
        yield from (finding("types", "in the way", *_said(p)) for p in _raised(follow, table, position.followed, named))
    for name in (name for name in table.landed if table.raw.alias.get(name, name).lower() in OF_PARSED):
        says = f"column {name!r} has a name that parsed gives a column of its own, so its model fails"
        yield finding("column names", "warning", says, f"declare meta.raw.alias: {{{name}: another_name}}")
    yield from _of_types(connection, table, facts)


def _of_key(table: RawTable, facts: TableFacts, stored: list[Stored]) -> Iterator[TableProblem]:
    """The table's own identity, and that of each partition: an UPDATE carries the one of where the row is."""
    if (problem := problem_of_key(table, facts)) is not None:
        yield problem
        return
    for leaf in (item for item in stored if item.root_kind == "p" and item.kind == "r" and item.identity is not None):
        problem = problem_of_leaf(table, facts, leaf.quoted, leaf.identity or "", leaf.identified_by)
        if problem is not None:
            yield problem


def one_key_of_two(table: RawTable, facts: TableFacts) -> Iterator[Finding]:
    """The key columns in which the lake may have one value for several of the source."""
    policy = table.raw.on_unrepresentable
    for column in facts.columns:
        form = target_type(source_type(column)).form
        if policy != "error" and column.name in table.key and form in KINDS:
            says = (
                f"key column {column.name} is {column.declared_type}, and on_unrepresentable: {policy} makes one value "
                "of several that the lake cannot hold: rows whose keys differ in these alone are one row there"
            )
            remedy = "see to it that the source tells no two rows apart so (docs/types.md), or declare error"
            yield Finding(table.source, table.name, "key", "warning", says, remedy)


def _raised(check: Callable[..., object], *given: object) -> list[TableProblem]:
    """The problem that a check of ingestion raises, if it does."""
    try:
        check(*given)
    except TableProblem as problem:
        return [problem]
    return []


def _of_types(connection: SourceConnection, table: RawTable, facts: TableFacts) -> Iterator[Finding]:
    actual = {column.name: column for column in facts.columns}
    for column in (column for column in table.columns if column.data_type is not None):
        there, declared = actual.get(column.name), column.data_type or ""
        if there is None or is_known(declared):
            continue
        if declared != there.declared_type and not _names_a_type(connection, declared):
            says = f"column {column.name} is declared as {declared!r}, a type that Postgres does not have"
            remedy = f"declare data_type: {there.declared_type}, which it has in {table.raw.relation}"
            yield Finding(table.source, table.name, "types", "in the way", says, remedy)


def _names_a_type(connection: SourceConnection, declared: str) -> bool:
    """Whether Postgres reads it as a type, or some schema has one of that name: its own types all land as text."""
    bare = _without_schema(declared)
    known = "SELECT EXISTS (SELECT FROM pg_type WHERE typname = %s OR lower(typname) = %s)"
    if connection.execute(known, (bare, bare.lower())).fetchone() == (True,):
        return True
    try:
        return connection.execute("SELECT to_regtype(%s) IS NOT NULL", (declared,)).fetchone() == (True,)
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError):  # it reads as no type at all
        return False


def _without_schema(declared: str) -> str:
    """The bare name of a type or of an array's elements. A role may see a type in a schema that it may not use."""
    element = declared.strip().removesuffix("[]")
    quoted = re.search(r'"((?:[^"]|"")*)"$', element)
    return quoted[1].replace('""', '"') if quoted else type_name(element).rpartition(".")[2]


def _said(problem: TableProblem) -> tuple[str, str]:
    says, _, remedy = visible(problem.says).partition(": ")
    return says, remedy
