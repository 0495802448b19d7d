"""Which tables are maintained, and how: every dbt source or model that carries `config.meta.maintenance`.

A table without a policy is not maintained, and an action its policy leaves out is not done: nothing has a silent
default. Unknown keys are errors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from lakehouse.errors import LakehouseError
from lakehouse.policies import MaintenancePolicy
from maintenance.outcome import TableName

STORING = frozenset({"model", "seed", "snapshot"})
NOT_STORED = frozenset({"view", "ephemeral"})


@dataclass(frozen=True)
class MaintainedTable:
    """A declared table with its policy."""

    name: TableName
    policy: MaintenancePolicy


def maintained_tables(manifest: dict[str, Any]) -> tuple[MaintainedTable, ...]:
    """All declared tables with a policy, by name; raises LakehouseError naming the first wrong key."""
    found, problems = [], []
    for node in _stored_nodes(manifest):
        policy = _meta(node).get("maintenance")
        if policy is None:
            continue
        try:
            found.append(MaintainedTable(_table_name(node), MaintenancePolicy.model_validate(policy)))
        except ValidationError as error:
            problems += _problems(node, error)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LakehouseError(problems[0] + more)
    return tuple(sorted(found, key=lambda table: table.name))


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
            f"declare config.meta.maintenance in dbt{_like(missing[0], known)}"
        )
    if group is not None and group not in schedule_groups(tables):
        groups = ", ".join(schedule_groups(tables)) or "none"
        raise LakehouseError(f"no table is in schedule group {group!r}; groups are {groups}")
    return tuple(
        table
        for table in tables
        if (not wanted or str(table.name) in wanted) and group in (None, table.policy.schedule_group)
    )


def _like(name: str, known: set[str]) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f", or did you mean {near[0]}?" if near else ""


def _stored_nodes(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from manifest["sources"].values()
    for node in manifest["nodes"].values():
        if node["resource_type"] in STORING and node["config"].get("materialized") not in NOT_STORED:
            yield node


def _meta(node: dict[str, Any]) -> dict[str, Any]:
    return {**node.get("meta", {}), **node["config"].get("meta", {})}


def _table_name(node: dict[str, Any]) -> TableName:
    return TableName(node["schema"], node.get("identifier") or node.get("alias") or node["name"])


def _problems(node: dict[str, Any], error: ValidationError) -> list[str]:
    return [
        f"{node['original_file_path']}: {node['name']}: "
        f"meta.maintenance.{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        for problem in error.errors()
    ]
