"""The tables that hold a subject's rows, found from the declaration and dbt's graph.

In every layer but the marts a column keeps its name from table to table, so personal data is in columns of the declared
names, and in those of the raw table that are not declared. Views store nothing and pass columns on. A table that dbt
builds whole is rebuilt, whatever its column names. The rows that a test has stored are dropped.

A hub's hash key identifies the subject. The name of a key column does not: in marts, and in tables with hash keys, an
`id` may be another entity's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lakehouse.declarations import RawTable
from lakehouse.declarations.dbt.lineage import parents
from lakehouse.declarations.metadata_columns import OF_KINDS, OF_TOPICS, PARSED_METADATA
from lakehouse.declarations.vault.names import EVENT, stage_columns
from lakehouse.errors import LakehouseError
from lakehouse.servers.presence import ALONE

Treatment = Literal["empty", "collapse", "delete", "rebuild", "drop", "discard"]
"""What happens to the subject's rows. `empty`: personal columns become null. `collapse`: the same in a satellite, and
rows that equal the version before are deleted. `delete`: they are deleted. `rebuild`: dbt rebuilds the table. `drop`:
the table, a mirror, is dropped with all its files and made anew. `discard`: the table, of rows that failed a test, is
dropped with all its files; the next test makes it."""

ANY_NAMES = frozenset({"rebuild", "discard"})  # treatments of tables whose columns may have any names
WHOLE = frozenset({"table", "rebuilt_table"})
NOT_STORED = frozenset({"view", "ephemeral"})
FORMER_METADATA = frozenset({"_deleted"})  # of parsed, in release 0.1
OF_EACH_STAGE = frozenset({"is_deleted", *EVENT})
KEEP_NAMES = frozenset({"parsed", "current", "stage", "vault", "timelines"})  # folders below models
STORED = frozenset({"model", "snapshot"})
MARTS = "marts"  # schema, or tag of what is built with them


@dataclass(frozen=True)
class Target:
    """A table with rows of a subject.

    `key`: the columns that identify them, the raw table's key or one hash key; empty if there are none.
    `personal`: the columns to empty. `kept`: of a raw table, the columns not to empty. `round`: of those that
    dbt builds whole, how many of its runs have to be over before.
    """

    identifier: tuple[str, str]
    treatment: Treatment
    key: tuple[str, ...] = ()
    personal: frozenset[str] = frozenset()
    kept: frozenset[str] | None = None
    is_hashed: bool = False
    hashdiff: str | None = None
    model: str = ""
    round: int = 0

    def personal_among(self, columns: tuple[str, ...] | list[str]) -> list[str]:
        """The personal columns of a file; of a raw table all columns but those declared as not personal."""
        if self.kept is not None:
            return [name for name in columns if name not in self.kept]
        return [name for name in columns if name in self.personal]

    def __str__(self) -> str:
        return ".".join(self.identifier)


def lake_names(table: RawTable, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The lake's names of declared columns."""
    return tuple(table.raw.alias.get(name, name) for name in columns)


def raw_target(table: RawTable, metadata_columns: tuple[str, ...]) -> Target:
    """The raw table. A column that is not declared (new in the source, or set aside by a type change) counts as
    personal."""
    kept = {*lake_names(table, table.landed), *metadata_columns} - {*lake_names(table, table.personal)}
    key, personal = lake_names(table, table.key), frozenset(lake_names(table, table.personal))
    return Target(table.identifier, "empty", key, personal, frozenset(kept))


def mirror_target(table: RawTable) -> Target:
    """The mirror. Under a former key its old files have the subject too, so it is not rewritten row by row."""
    personal = frozenset(lake_names(table, table.personal))
    return Target(table.mirror_identifier, "drop", lake_names(table, table.key), personal)


def derived_targets(
    table: RawTable, manifest: Mapping[str, Any], columns_of: Callable[[tuple[str, str]], tuple[str, ...] | None]
) -> tuple[Target, ...]:
    """The tables below a raw table that hold its personal columns, in dbt's order, then rows that its tests stored.

    `columns_of` returns a stored table's columns, or None if it is not in the lake. Raises LakehouseError for a table
    whose rows cannot be found by key, or that is made of itself.
    """
    nodes, made_of = manifest.get("nodes", {}), parents(manifest)
    carrying = {_source_id(table, manifest): True}  # model → whether columns kept their names so far
    unknown = undeclared_in_raw(table, columns_of(table.identifier) or ())
    order = _in_order(nodes, made_of)
    rounds = _rounds(order, nodes, made_of)
    targets, passed = list[Target](), list[str]()
    for unique_id in order:
        node = nodes[unique_id]
        above = carrying.keys() & made_of[unique_id]
        if not above:
            passed.append(unique_id)
            continue
        is_named = all(carrying[parent] for parent in above)
        keeps_names = is_named and layer(node) in KEEP_NAMES
        has_key = keeps_names or (is_named and is_snapshot(node) and above == made_of[unique_id])
        is_stored = node["config"].get("materialized") not in NOT_STORED
        found = columns_of((node["schema"], node["alias"])) if is_stored else None
        if found is None:
            carrying[unique_id] = keeps_names
        elif target := _target(table, node, found, has_key, unknown):
            carrying[unique_id] = keeps_names
            targets.append(replace(target, round=rounds[unique_id]))
    if looped := next((nodes[key] for key in passed if carrying.keys() & made_of[key]), None):
        raise LakehouseError(
            f"{looped['original_file_path']}: {looped['name']} is made of itself, by a source of dbt that names a "
            "model, and erasure cannot follow that: let it read something else"
        )
    tests = (n for key, n in nodes.items() if n["resource_type"] == "test" and carrying.keys() & made_of[key])
    failures = dict.fromkeys((test["schema"], test["alias"]) for test in tests)
    return (*targets, *(Target(name, "discard") for name in failures if columns_of(name) is not None))


def _target(
    table: RawTable, node: Mapping[str, Any], columns: tuple[str, ...], has_key: bool, unknown: frozenset[str]
) -> Target | None:
    there = {name.lower() for name in columns}
    hash_key = f"hk_{table.vault.hub.name}" if table.vault and table.vault.hub else None
    personal = {name.lower() for name in lake_names(table, (*table.personal, *table.raw.personal))}
    satellites = {f"sat_{name}": policy for name, policy in (table.vault.satellites if table.vault else {}).items()}
    if layer(node) == "parsed":
        personal |= undeclared(table, columns)
    elif node["name"] in satellites:
        personal |= unknown - of_the_vault(table)
    elif is_snapshot(node):  # what it is of may have no column of the vault's: such names are the source's there
        personal |= unknown.difference(EVENT, [hash_key])
    identifier, carried = (node["schema"], node["alias"]), frozenset(personal & there)
    key = tuple(name.lower() for name in lake_names(table, table.key))
    named = there & unique_key(node) if is_snapshot(node) else there  # any other is null in rows from before it came
    is_whole, is_hashed = node["config"].get("materialized") in WHOLE, hash_key in named
    is_own = set(key) <= named and (is_whole or has_key) and not any(name.startswith("hk_") for name in there)
    found_by = (hash_key,) if is_hashed and hash_key else key if is_own else ()
    if is_whole:
        return Target(identifier, "rebuild", found_by, carried, is_hashed=is_hashed, model=node["name"])
    if not carried:
        return None
    if not found_by:
        raise LakehouseError(
            f"{node['original_file_path']}: {node['name']} holds {', '.join(sorted(carried))} of {table.source}."
            f"{table.name}, and {_remedy(node, hash_key)}"
        )
    of_source = {name.lower() for name in lake_names(table, table.landed)} | unknown - of_the_vault(table)
    hashdiff = next((name for name in columns if name.startswith("hd_") and name.lower() not in of_source), None)
    treatment: Treatment = "empty" if hashdiff is None else "delete"
    if node["name"] in satellites and satellites[node["name"]].personal:
        treatment = "collapse"
    return Target(identifier, treatment, found_by, carried, is_hashed=is_hashed, hashdiff=hashdiff, model=node["name"])


def _remedy(node: Mapping[str, Any], hash_key: str | None) -> str:
    if is_snapshot(node):
        by_hash = f", or with unique_key {hash_key}" if hash_key else ""
        return (
            f"its unique_key does not identify the subject: drop {node['schema']}.{node['alias']}, then let dbt take "
            f"it without these columns{by_hash}"
        )
    give = f"give it {hash_key}, or " if hash_key else ""
    return f"no column identifies the subject: {give}let dbt build it whole (`rebuilt_table`)"


def stages_above(table: RawTable, manifest: Mapping[str, Any], target: Target) -> list[tuple[str, str]]:
    """The stages that make the hash keys of a table: that of the raw table, and those above it that have the same."""
    nodes, made_of = manifest.get("nodes", {}), parents(manifest)
    waiting = [key for key, node in nodes.items() if (node["schema"], node.get("alias")) == target.identifier]
    above = set[str]()
    while waiting:
        found = made_of.get(waiting.pop(), frozenset()) - above
        above |= found
        waiting += found
    stages = [nodes[key] for key in sorted(above & nodes.keys()) if layer(nodes[key]) == "stage"]
    hashed = [node for node in stages if target.key[0] in node["config"].get("meta", {}).get("hashed_keys", {})]
    return list(dict.fromkeys([("vault", stage_of(table)), *((node["schema"], node["alias"]) for node in hashed)]))


def stage_of(table: RawTable) -> str:
    """The name of the raw table's stage."""
    return f"stg_{table.source}__{table.name}"


def undeclared(table: RawTable, columns: Iterable[str]) -> frozenset[str]:
    """Columns of a raw or parsed table that are not or no longer declared, or now excluded, in lower case. The metadata
    columns are not among them: by name, as a source may call a column `_email`."""
    declared = {name.lower() for name in lake_names(table, table.landed)}
    metadata = {*OF_KINDS[table.kind], *PARSED_METADATA, *FORMER_METADATA}
    return frozenset(name.lower() for name in columns) - declared - metadata


def undeclared_in_raw(table: RawTable, columns: Iterable[str]) -> frozenset[str]:
    """The same of the raw table, which keeps the places of events in topics once its source comes from Postgres."""
    found = undeclared(table, columns)
    return found - OF_TOPICS.keys() if OF_TOPICS.keys() <= found else found


def of_the_vault(table: RawTable) -> frozenset[str]:
    """Names that columns of the vault's own have, whatever the source has, in lower case; declared columns too."""
    made = stage_columns(table, table.vault) if table.vault else ()
    return OF_EACH_STAGE | {column.name.lower() for column in made}


def is_snapshot(node: Mapping[str, Any]) -> bool:
    """Whether it is a snapshot of dbt's, which keeps the versions of rows that it has seen."""
    return bool(node["resource_type"] == "snapshot")


def unique_key(node: Mapping[str, Any]) -> frozenset[str]:
    """The columns by which a snapshot tells rows apart, in lower case."""
    stated = node["config"].get("unique_key") or ()
    return frozenset(name.lower() for name in ([stated] if isinstance(stated, str) else stated))


def layer(node: Mapping[str, Any]) -> str | None:
    """The folder below models that a model is in; None of others."""
    return node["fqn"][1] if node["resource_type"] == "model" else None


def sources_to_lock(source: str, manifest: Mapping[str, Any]) -> list[str]:
    """The sources by which loads and marts of anything made of this one are kept out, in order, itself among them.

    By `ref` its tables and all that is made of them are in one group of loads. What reads them by a `source()` is in
    the group of what else it is made of, or of none.
    """
    nodes, made_of = manifest.get("nodes", {}), parents(manifest)
    sources = manifest.get("sources", {}).items()
    raw = {key: node["source_name"] for key, node in sources if node["schema"].startswith("raw_")}
    makes: dict[str, set[str]] = {}
    for key, above in made_of.items():
        for parent in above:
            makes.setdefault(parent, set()).add(key)
    below = _reached([key for key, name in raw.items() if name == source], makes)
    loaded = [key for key in below & nodes.keys() if not _is_mart(nodes[key])]
    return sorted({source, ALONE, *(raw[key] for key in _reached(loaded, made_of) if key in raw)})


def _is_mart(node: Mapping[str, Any]) -> bool:
    """Whether it is built with the marts, which lock each source that they are made of."""
    return MARTS in (node["schema"], *node.get("tags", ()))


def _reached(start: Iterable[str], near: Mapping[str, Collection[str]]) -> set[str]:
    seen, waiting = set(start), list(start)
    while waiting:
        new = set(near.get(waiting.pop(), ())) - seen
        seen |= new
        waiting += new
    return seen


def _source_id(table: RawTable, manifest: Mapping[str, Any]) -> str:
    ids = (
        unique_id
        for unique_id, node in manifest.get("sources", {}).items()
        if (node["source_name"], node["name"]) == (table.source, table.name)
    )
    return next(ids, "")


def _rounds(order: Iterable[str], nodes: Mapping[str, Any], made_of: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Each node → the run of dbt that builds it: later than its parent's where dbt does not know of the parent."""
    found: dict[str, int] = {}
    for unique_id in order:
        known = nodes[unique_id]["depends_on"].get("nodes", ())
        later = (found[parent] + (parent not in known) for parent in made_of[unique_id] if parent in found)
        found[unique_id] = max(later, default=0)
    return found


def _in_order(nodes: Mapping[str, Any], made_of: Mapping[str, Collection[str]]) -> list[str]:
    """Models and snapshots, parents first."""
    ordered: dict[str, None] = {}
    begun = set[str]()

    def visit(unique_id: str) -> None:
        if unique_id in nodes and unique_id not in begun:
            begun.add(unique_id)
            for parent in sorted(made_of[unique_id]):
                visit(parent)
            ordered[unique_id] = None

    for unique_id, node in sorted(nodes.items()):
        if node["resource_type"] in STORED:
            visit(unique_id)
    return [unique_id for unique_id in ordered if nodes[unique_id]["resource_type"] in STORED]
