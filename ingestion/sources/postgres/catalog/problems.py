"""What keeps one table from being brought up, in words that name the remedy. Pure: catalog rows in, problems out."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ingestion.schema.declared_columns import may_share_keys, needed_of_partitions
from ingestion.schema.facts import Leaf, TableFacts
from ingestion.schema.problem import TableProblem
from lakehouse.declarations import RawTable


def problem_of(table: RawTable, relation: Mapping[str, Any] | None, publication: str) -> TableProblem | None:
    """What is in the way of a relation, as `queries.RELATION` found it; None when nothing is."""
    refused = partial(TableProblem, table.source, table.name)
    if relation is None:
        return refused(f"relation {table.raw.relation} does not exist: correct meta.raw.relation of the declaration")
    if relation["children"]:
        return refused(
            f"a SELECT of {table.raw.relation} shows the rows of {relation['children']} too (INHERITS), which "
            "the stream does not carry as its own: ALTER TABLE … NO INHERIT, and declare each as a table of its own, "
            "or make it a partitioned table; then resume the table"
        )
    if not relation["readable"]:
        return refused(f"no SELECT right on {table.raw.relation}: run `lakehouse prepare {table.source}`")
    if relation["relkind"] == "p" and relation["by_root"] is False:
        return refused(
            f"publication {publication!r} publishes {table.raw.relation} by its partitions: "
            "ALTER PUBLICATION … SET (publish_via_partition_root = true), then resume the table"
        )
    if relation["comes_as"] is not None:
        return refused(
            f"{table.raw.relation} is a partition, and publication {publication!r} publishes its rows as those of "
            f"{relation['comes_as']}: declare that table instead, or ALTER PUBLICATION … DROP TABLE "
            f"{relation['comes_as']}, then resume the table"
        )
    if not relation["published"]:
        return refused(
            f"{table.raw.relation} is not in publication {publication!r}: run `lakehouse prepare {table.source}`"
        )
    if relation["filtered"]:
        return refused(
            f"publication {publication!r} filters its rows, so the lake would not be the table: "
            f"ALTER PUBLICATION … DROP TABLE, then run `lakehouse prepare {table.source}`"
        )
    if not relation["publishes_updates"] and table.raw.changes == "all":
        return refused(
            f"publication {publication!r} leaves out updates and deletes: declare meta.raw.changes: inserts, "
            "or ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate')"
        )
    if relation["replica_identity"] == "n" and relation["publishes_updates"]:
        return refused(
            "REPLICA IDENTITY NOTHING makes updates and deletes of a published table fail in the source: set "
            "REPLICA IDENTITY DEFAULT or FULL, or let its publication carry inserts and truncates only"
        )
    return None


def problem_of_leaves(
    table: RawTable, root: TableFacts, publishes_updates: bool, leaves: Iterable[Mapping[str, Any]]
) -> TableProblem | None:
    """A partition whose changes do not come, or do not tell their rows, as `queries.LEAVES` found it."""
    refused = partial(TableProblem, table.source, table.name)
    for leaf in leaves:
        if leaf["relkind"] == "f":
            return refused(
                f"partition {leaf['name']} is a foreign table, whose changes are not in this server's stream: "
                "detach it, then resume the table"
            )
        if leaf["relkind"] == "r" and leaf["persistence"] != "p":
            return refused(
                f"partition {leaf['name']} is UNLOGGED, so that its changes are not in the stream: "
                f"ALTER TABLE {leaf['name']} SET LOGGED, then resume the table"
            )
        if leaf["relkind"] == "r" and publishes_updates:
            identity, columns = leaf["replica_identity"], leaf["key"] or ()
            if (problem := problem_of_leaf(table, root, leaf["name"], identity, columns)) is not None:
                return problem
    return None


def problem_of_leaf(
    table: RawTable, root: TableFacts, name: str, replica_identity: str, identity: Sequence[str]
) -> TableProblem | None:
    """A partition whose updates and deletes do not tell which row they are of; `identity` are the columns of its own
    replica identity, unless that is FULL."""
    needed = needed_of_partitions(table.key, root.identity, shares_keys=may_share_keys(table, (root,)))
    if replica_identity == "f" or needed.issubset(identity):
        return None
    key, own = ", ".join(table.key), ", ".join(identity) or "none"
    if set(table.key) - set(identity):
        lacks = f"without the declared key ({key})"
    else:
        whole = "FULL" if root.replica_identity == "f" else ", ".join(root.key)
        lacks = (
            f"narrower than that of {table.raw.relation} ({whole}), and no unique index keeps its rows from having one "
            f"declared key ({key}) within a transaction"
        )
    return TableProblem(
        table.source,
        table.name,
        f"partition {name} has a replica identity of its own ({own}), {lacks}: ALTER TABLE {name} REPLICA IDENTITY "
        "FULL, then resume the table",
    )


def problem_of_key(table: RawTable, facts: TableFacts) -> TableProblem | None:
    """A declared key that the table does not have, or that its updates and deletes do not carry."""
    refused = partial(TableProblem, table.source, table.name)
    if missing := sorted(set(table.key) - facts.names):
        return refused(
            f"key column {', '.join(missing)} does not exist in {table.raw.relation}, which has "
            f"{', '.join(sorted(facts.names))}: correct meta.raw.key"
        )
    if table.key and facts.replica_identity not in ("f", "n") and set(table.key) - facts.identity:
        return refused(
            f"declared key ({', '.join(table.key)}) is not within the replica identity "
            f"({', '.join(facts.key) or 'none'}): declare that key, or set REPLICA IDENTITY FULL"
            + _of_partitions(facts.leaves)
        )
    return None


def _of_partitions(leaves: Sequence[Leaf]) -> str:
    """The first of them: a table may have thousands."""
    if not leaves:
        return ""
    more = f" and {len(leaves) - 1} more" if len(leaves) > 1 else ""
    return f", also of each partition ({leaves[0].name}{more}), which does not inherit it"
