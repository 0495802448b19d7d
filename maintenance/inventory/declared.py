"""The maintained tables and their policies: every dbt source or model with `config.meta.maintenance`.

A table without a policy is not maintained, and an action that its policy omits is not run: there are no silent
defaults. The policy of a raw table is that of its mirror too. A wrong policy is reported with its file and line.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehouse.declarations import RESERVED_BY_ICEBERG
from lakehouse.declarations.dbt.lineage import meta_of
from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.declarations.lines import line_in_model, line_in_source, mistakes_in, refuse
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.declarations.policies import AgePolicy, MaintenancePolicy, ProjectMaintenance
from lakehouse.errors import LakehouseError
from maintenance.inventory.outcome import TableName

STORING = frozenset({"model", "seed", "snapshot"})
NOT_STORED = frozenset({"view", "ephemeral"})


@dataclass(frozen=True)
class MaintainedTable:
    """A declared table with its policy."""

    name: TableName
    policy: MaintenancePolicy


def maintained_tables(manifest: dict[str, Any], project_dir: Path) -> tuple[MaintainedTable, ...]:
    """All declared tables with a policy, by name; raises LakehouseError with file and line of the first mistake."""
    found, problems, project = [], [], project_maintenance(project_dir)
    for node in _stored_nodes(manifest):
        stated = meta_of(node).get("maintenance")
        if stated is None:
            continue
        try:
            policy = MaintenancePolicy.model_validate(stated)
            mistakes = list(mistakes_of(policy, project, _columns(node)))
            found.append(MaintainedTable(_table_name(node), policy))
            found += _mirror_of(node, policy)
        except ValidationError as error:
            mistakes = mistakes_in(error, MaintenancePolicy, below=("maintenance",))
        line = line_in_source if node["resource_type"] == "source" else line_in_model
        problems += [f"{line(project_dir, node, path)}: {node['name']}: {text}" for path, text in mistakes]
    refuse(problems)
    return tuple(sorted(found, key=lambda table: table.name))


def _mirror_of(node: dict[str, Any], policy: MaintenancePolicy) -> Iterator[MaintainedTable]:
    """The mirror of a raw table is maintained as the table is, in the order of its key."""
    meta = meta_of(node)
    raw = meta.get("raw", {})
    if node["resource_type"] != "source" or not raw.get("key") or meta.get("mirror") == "none":
        return
    key = tuple(raw.get("alias", {}).get(name, name) for name in raw["key"])
    compact = policy.compact and policy.compact.model_copy(update={"sort_by": key, "zorder_by": ()})
    own = policy.model_copy(update={"compact": compact, "probe": None})
    yield MaintainedTable(TableName(f"mirror_{node['source_name']}", node["name"]), own)


def mistakes_of(
    policy: MaintenancePolicy, project: ProjectMaintenance, columns: frozenset[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The mistakes of a policy, each with its key's path; without `columns` any column name is accepted."""
    if policy.schedule_group not in project.groups:
        groups = ", ".join(project.groups)
        yield _mistake(f"{policy.schedule_group!r} is none of vars.maintenance.groups: {groups}", "schedule_group")
    for path, hours in _ages(policy):
        if hours is not None and hours < project.longest_write_hours:
            limit = f"vars.maintenance.longest_write_hours ({project.longest_write_hours:g})"
            yield _mistake(f"{hours:g} h is below {limit}: files of a running write would go", *path)
    for path, names in _named_columns(policy):
        if path[0] == "compact" and names and (reserved := sorted(RESERVED_BY_ICEBERG & columns)):
            yield _mistake(f"Spark, which sorts, reads no table with a column {reserved[0]!r}: leave it out", *path)
        for name in names:
            if columns and name.lower() not in columns:
                yield _mistake(f"{name!r} is no column of the table{like(name, columns)}", *path)


def _mistake(text: str, *path: str) -> tuple[tuple[str, ...], str]:
    return ("maintenance", *path), f"meta.maintenance.{'.'.join(path)}: {text}"


def _ages(policy: MaintenancePolicy) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for key, part in policy.parts.items():
        if isinstance(part, AgePolicy):
            yield (key, "older_than_hours"), part.older_than_hours
    yield ("keep_removed_hours",), policy.keep_removed_hours


def _named_columns(policy: MaintenancePolicy) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    if policy.compact is not None:
        yield ("compact", "sort_by"), policy.compact.sort_by
        yield ("compact", "zorder_by"), policy.compact.zorder_by
    if policy.probe is not None:
        yield ("probe", "key"), (policy.probe.key,)


def _columns(node: dict[str, Any]) -> frozenset[str]:
    """The declared or documented columns, in lower case; of a raw table those that land, and the metadata columns."""
    names = [column["name"] for column in node.get("columns", {}).values()]
    raw = meta_of(node).get("raw")
    if raw is None:
        return frozenset(name.lower() for name in names)
    alias, exclude = raw.get("alias", {}), raw.get("exclude", ())
    landed = (alias.get(name, name).lower() for name in names if name not in exclude)
    return frozenset((*landed, *OF_KINDS[meta_of(node).get("kind", "postgres")])) if names else frozenset()


def schedule_groups(tables: Iterable[MaintainedTable]) -> tuple[str, ...]:
    """The schedule groups in use."""
    return tuple(sorted({table.policy.schedule_group for table in tables}))


def select(
    tables: tuple[MaintainedTable, ...], names: Iterable[str] = (), group: str | None = None
) -> tuple[MaintainedTable, ...]:
    """The tables of these names (`namespace.table`) and of this group; raises LakehouseError for an unknown one."""
    known = {str(table.name) for table in tables}
    wanted = set(names)
    if missing := sorted(wanted - known):
        raise LakehouseError(
            f"no maintenance policy for {', '.join(missing)}: "
            f"declare config.meta.maintenance in dbt{like(missing[0], known)}"
        )
    if group is not None and group not in schedule_groups(tables):
        groups = ", ".join(schedule_groups(tables)) or "none"
        raise LakehouseError(f"no table is in schedule group {group!r}; groups are {groups}")
    return tuple(
        table
        for table in tables
        if (not wanted or str(table.name) in wanted) and group in (None, table.policy.schedule_group)
    )


def like(name: str, known: Collection[str]) -> str:
    """`, or did you mean …?` if a known name is close; else empty."""
    near = get_close_matches(name, sorted(known), n=1)
    return f", or did you mean {near[0]}?" if near else ""


def _stored_nodes(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from manifest["sources"].values()
    for node in manifest["nodes"].values():
        if node["resource_type"] in STORING and node["config"].get("materialized") not in NOT_STORED:
            yield node


def _table_name(node: dict[str, Any]) -> TableName:
    return TableName(node["schema"], node.get("identifier") or node.get("alias") or node["name"])
