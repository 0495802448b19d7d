"""What a declaration says of a table's columns and key, against the facts. Pure."""

from collections.abc import Collection, Sequence
from functools import partial

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from lakehouse.declarations import RawTable


def check_columns(table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when a declared column does not arrive; `facts` know the columns' names in the lake.

    One that is to be left out has to be there too: misspelt, or made again under another name, it would land.
    """
    refused = partial(TableProblem, table.source, table.name)
    arriving = {column.lake for column in facts.columns}
    declared = {column.name for column in table.columns} - set(table.raw.exclude)
    missing = sorted(name for name in declared if table.raw.alias.get(name, name) not in arriving)
    if unsent := sorted({name for _, name in facts.hidden}.intersection(missing)):
        raise refused(
            f"declared column {', '.join(unsent)} of {table.raw.origin} does not arrive, because it is generated, or "
            "not in the publication's list of columns: remove it from the declaration, or add it to the list"
        )
    if missing:
        raise refused(
            f"declared column {', '.join(missing)} does not exist in "
            f"{table.raw.origin}, which has {', '.join(sorted(c.name for c in facts.columns))}: correct it"
        )
    if unknown := sorted(set(table.raw.exclude) - facts.names):
        raise refused(
            f"meta.raw.exclude names {', '.join(unknown)}, which does not exist in {table.raw.relation}; it "
            f"has {', '.join(sorted(facts.names))}: correct it"
        )


def keyed_by(table: RawTable, before: TableFacts | None, now: TableFacts) -> tuple[int, ...] | None:
    """The numbers of the declared key's columns. While there is no such key, those of the key `before`: no row was told
    apart by another one since."""
    numbers = {column.name: column.number for column in now.columns}
    if table.key and numbers.keys() >= set(table.key):
        return tuple(sorted(numbers[name] for name in table.key))
    return before.keyed_by if before else ()


def is_keyed_as_declared(table: RawTable, facts: TableFacts) -> bool:
    """Whether what has landed by these facts is complete under the declared key: else deletes lack its columns."""
    return facts.keyed_by in (None, keyed_by(table, facts, facts))


def problem_of_former_key(table: RawTable, former: Collection[str], then: str) -> TableProblem:
    """Of a topic whose events have landed under another key, or without one: their deletes do not tell the columns of
    the declared one, a key was no key then, and there is no table to compare with. `then` are the options of `lakehouse
    ingest` once the former declaration is back.
    """
    landed = f"under the key ({', '.join(former)})" if former else "without a key"
    again = "declare the former key again" if former else "declare it without a key again"
    return TableProblem(
        table.source,
        table.name,
        f"changes of topic {table.raw.topic} have landed {landed}, and cannot be read again under "
        f"({', '.join(table.key)}): {again}, then `lakehouse ingest {then}`; for another key, `lakehouse remove "
        f"{table.source}.{table.name} --drop-tables`, declare it again, then `lakehouse ingest --recover "
        f"{table.source}`; or have them written to a topic of another name, and declare that one as a table of its own",
    )


def may_share_keys(table: RawTable, versions: Sequence[TableFacts]) -> bool:
    """Whether the stream's rows, which are of these descriptions, may share a declared key within a transaction.

    They cannot where one unique index kept the key at once all the time. Where updates and deletes are not published,
    there is nothing to put in order; nor where a column of the key is gone, as nothing lands then.
    """
    if not table.key or table.raw.changes != "all" or not {c.name for c in versions[-1].columns}.issuperset(table.key):
        return False
    return not set.intersection(*(set(facts.enforced_by) for facts in versions))


def needed_of_partitions(key: Collection[str], identity: Collection[str], *, shares_keys: bool) -> frozenset[str]:
    """The columns that the replica identity of each partition has to have, where `identity` is the table's own.

    Rows that may share a key within a transaction are told apart by images of the table's identity, and Postgres fills
    what a partition's own identity lacks with nulls.
    """
    return frozenset(key).union(identity if shares_keys else ())
