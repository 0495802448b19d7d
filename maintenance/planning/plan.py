"""A ranked list of steps with reasons, from declared policies and measured health. Pure.

The value of a step is the seconds it saves per full read of its table, plus the gigabytes it frees. Steps with the most
value per second come first. Each counts against its schedule group's budget; what does not fit is put off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from lakehouse.declarations.policies import MaintenancePolicy, ProjectMaintenance
from maintenance.actions.layout import not_compacted
from maintenance.actions.need import Need
from maintenance.actions.registry import ACTIONS
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import TableName
from maintenance.planning.rates import Rates

SECONDS_A_FREED_GIGABYTE = 1.0  # a freed gigabyte counts as a second saved
NOT_THERE = "not in the lake yet"
GIGABYTE = 1024**3


@dataclass(frozen=True)
class Step:
    """An action to run on a table. `expected_bytes` are read and written, `gain_bytes` freed, `gain_seconds` saved per
    read."""

    table: MaintainedTable
    action: str
    reason: str
    expected_bytes: int
    expected_seconds: float
    stated_seconds: float
    expected_from: str
    gain_seconds: float
    gain_bytes: int

    @property
    def score(self) -> float:
        """The value per second of work."""
        return (self.gain_seconds + self.gain_bytes / GIGABYTE * SECONDS_A_FREED_GIGABYTE) / self.expected_seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **{key: value for key, value in asdict(self).items() if key != "table"},
            "table": str(self.table.name),
            "group": self.table.policy.schedule_group,
            "score": round(self.score, 6),
        }


@dataclass(frozen=True)
class Passed:
    """A table, or one action on it, that is skipped or put off, with the reason."""

    table: TableName
    reason: str
    action: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"table": str(self.table)}


@dataclass(frozen=True)
class Plan:
    """Steps to run, the most worthwhile first; steps put off for lack of time; skipped tables."""

    steps: tuple[Step, ...]
    put_off: tuple[Passed, ...]
    skipped: tuple[Passed, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {part: [item.as_dict() for item in getattr(self, part)] for part in ("steps", "put_off", "skipped")}


@dataclass(frozen=True)
class Case:
    """A declared table and its health; None if it is not in the lake or could not be measured."""

    table: MaintainedTable
    health: Health | None
    error: str | None = None


@dataclass(frozen=True)
class Allowance:
    """Seconds that a run may spend on a schedule group's tables, and the text of that limit.

    Groups of one `pool` share them. `closed`: outside the group's window.
    """

    pool: str
    seconds: float
    limit: str
    closed: bool = False

    def why_put_off(self, needed: float, left: float) -> str:
        """The reason for a step that does not fit into the remaining seconds."""
        if self.closed:
            return f"put off: {self.limit} is closed"
        return f"put off: needs {needed:.0f} s, {max(0.0, left):.0f} s are left of {self.limit}"


def allowances(project: ProjectMaintenance, now: datetime, budget_minutes: float | None = None) -> dict[str, Allowance]:
    """By group: its budget, or the rest of its window (UTC). `budget_minutes` overrides both, for all groups."""
    if budget_minutes is not None:
        shared = Allowance("shared", budget_minutes * 60, f"the budget of {budget_minutes:g} min")
        return dict.fromkeys(project.groups, shared)
    found = {}
    for name, group in project.groups.items():
        seconds, limit = group.seconds(now), f"the budget of {name}, {group.budget_minutes:g} min"
        if seconds < group.budget_minutes * 60:
            limit = f"the window of {name}, {group.window} UTC,"
        found[name] = Allowance(name, seconds, limit, closed=seconds <= 0)
    return found


def make_plan(cases: Iterable[Case], allowed: dict[str, Allowance], rates: Rates) -> Plan:
    """Ranks the steps that the tables need, and fits them into the time of each schedule group."""
    wanted: list[Step] = []
    skipped: list[Passed] = []
    for case in cases:
        steps = steps_for(case, rates)
        wanted += steps
        if case.health is not None and case.health.reserved_column is not None:
            skipped.append(Passed(case.table.name, not_compacted(case.health.reserved_column), "compact"))
        elif not steps:
            skipped.append(Passed(case.table.name, why_none(case)))
    wanted.sort(key=lambda step: (-step.score, str(step.table.name), step.action))
    return _fit(wanted, allowed, skipped)


def _fit(wanted: Iterable[Step], allowed: dict[str, Allowance], skipped: Iterable[Passed]) -> Plan:
    left = {allowance.pool: allowance.seconds for allowance in allowed.values()}
    steps, put_off = [], []
    for step in wanted:
        allowance = allowed[step.table.policy.schedule_group]
        if step.expected_seconds <= left[allowance.pool]:
            left[allowance.pool] -= step.expected_seconds
            steps.append(step)
        else:
            reason = allowance.why_put_off(step.expected_seconds, left[allowance.pool])
            put_off.append(Passed(step.table.name, reason, step.action))
    return Plan(tuple(steps), tuple(put_off), tuple(skipped))


def steps_for(case: Case, rates: Rates) -> list[Step]:
    """The steps that one table needs, with their expected time."""
    if case.table.policy.opt_out is not None or case.health is None:
        return []
    steps = []
    for need in needs(case.health, case.table.policy):
        expected = rates.expected(str(case.table.name), need.action, need.work)
        steps.append(
            Step(
                case.table, need.action, need.reason, need.work.bytes, expected.seconds, expected.stated_seconds,
                expected.source, need.gain_seconds, need.gain_bytes,
            )
        )  # fmt: skip
    return steps


def why_none(case: Case) -> str:
    """The reason why a table has no steps."""
    if case.table.policy.opt_out is not None:
        return f"opted out: {case.table.policy.opt_out}"
    if case.error is not None:
        return f"could not be measured: {case.error}"
    if case.health is None:
        return NOT_THERE
    health = case.health
    if health.reserved_column is not None:
        return not_compacted(health.reserved_column)
    return (
        f"healthy: {health.files} files, {health.small_share:.0%} small, {health.delete_files} delete files, "
        f"{health.snapshots} snapshots, {health.manifests} manifests, {health.orphans} orphans"
    )


def needs(health: Health, policy: MaintenancePolicy) -> Iterator[Need]:
    """The actions that a table needs by its health and policy, in the order in which they run."""
    for action in ACTIONS:
        if (need := action.module.need(health, policy)) is not None:
            yield need
