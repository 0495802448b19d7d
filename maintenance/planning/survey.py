"""A survey of all declared tables: the health of each, and the actions of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.declarations.policies import MaintenancePolicy, ProjectMaintenance
from lakehouse.errors import LakehouseError
from maintenance.actions.clean_dbt_temporary import strays
from maintenance.inventory.declared import MaintainedTable, maintained_tables, select
from maintenance.inventory.outcome import one_line
from maintenance.inventory.session import Session
from maintenance.planning.health import measure_health
from maintenance.planning.history import Act, recent
from maintenance.planning.plan import Case, Step, steps_for, why_none
from maintenance.planning.rates import learn

READERS = 8


@dataclass(frozen=True)
class Survey:
    """The tables with their health, the actions of the last month (newest first), and the project's settings."""

    cases: tuple[Case, ...]
    acts: tuple[Act, ...]
    project: ProjectMaintenance

    def last(self, table: str) -> Act | None:
        """The last action on a table."""
        return self._last.get(table)

    @cached_property
    def _last(self) -> dict[str, Act]:
        return {act.table: act for act in reversed(self.acts)}

    def as_dict(self) -> dict[str, Any]:
        """For JSON: a line per table with its due actions and their gain, the largest first."""
        rates = learn(self.acts)
        lines = [self._line(case, steps_for(case, rates)) for case in self.cases]
        return {"tables": sorted(lines, key=lambda line: (-line["score"], line["table"]))}

    def _line(self, case: Case, steps: list[Step]) -> dict[str, Any]:
        last = self.last(str(case.table.name))
        return {
            "table": str(case.table.name),
            "group": case.table.policy.schedule_group,
            "health": case.health and case.health.as_dict(),
            "last": last and {**asdict(last), "started_at": last.started_at.isoformat()},
            "due": [{"action": step.action, "reason": step.reason} for step in steps],
            "gain_seconds": round(sum(step.gain_seconds for step in steps), 3),
            "gain_bytes": sum(step.gain_bytes for step in steps),
            "score": round(sum(step.score for step in steps), 6),
            "reason": "" if steps else why_none(case),
        }


def survey(session: Session, names: Iterable[str] = (), group: str | None = None) -> Survey:
    """Measures the declared tables of these names and this group; without names also undeclared leftovers of dbt.

    Raises LakehouseError for a broken environment, a wrong declaration, or unknown names.
    """
    names, project_dir = tuple(names), session.settings.dbt_project_dir
    declared = maintained_tables(load_manifest(session.settings), project_dir)
    chosen = select(declared, names, group)
    session.check()
    session.lake()
    others = () if names else _strays(session, declared, group)
    with ThreadPoolExecutor(READERS) as pool:
        cases = tuple(pool.map(lambda table: _measure(session, table), (*chosen, *others)))
    return Survey(cases, tuple(recent(session)), project_maintenance(project_dir))


def _strays(session: Session, declared: tuple[MaintainedTable, ...], group: str | None) -> list[MaintainedTable]:
    """Undeclared models with temporary relations or objects, with a policy for these only."""
    return [
        MaintainedTable(
            table.name,
            MaintenancePolicy(
                schedule_group=table.policy.schedule_group,
                clean_dbt_temporary=table.policy.clean_dbt_temporary,
            ),
        )
        for table in strays(session, declared, group)
    ]


def _measure(session: Session, table: MaintainedTable) -> Case:
    if table.policy.opt_out is not None:
        return Case(table, None)
    if table.name in session.lake().unreadable:
        return Case(table, None, "its metadata cannot be read")
    try:
        return Case(table, measure_health(session, table.name, table.policy))
    except LakehouseError:
        raise
    except Exception as error:
        return Case(table, None, one_line(error))
