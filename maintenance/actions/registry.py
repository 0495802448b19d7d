"""The list of all maintenance actions, in the order in which they run on a table.

An action is a module of this folder with the action's name; `Module` says what it must contain. Plans, commands, jobs,
schedules and the table in docs/operations.md are made from this list. Dagster's code location loads it, so it imports
none of the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from lakehouse.declarations.policies import MaintenancePolicy

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from maintenance.actions.need import Body, Need, Rate
    from maintenance.inventory.health import Health
    from maintenance.inventory.outcome import TableName
    from maintenance.inventory.session import Session

MINUTES_APART = 2


@dataclass(frozen=True)
class Action:
    """An action as plans, commands and jobs see it.

    `part` is the part of a policy that enables it, `engine` what runs it; `does` and `spares` are its documentation.
    An action that `reads_lake` needs a listing of the whole lake; one that `rewrites` data is probed.
    """

    name: str
    part: str
    engine: str
    does: str
    spares: str
    reads_lake: bool = False
    rewrites: bool = False

    def is_asked_for(self, policy: MaintenancePolicy) -> bool:
        """Whether the policy has the action's part."""
        return getattr(policy, self.part) is not None

    @property
    def module(self) -> Module:
        """The action's module; imports it."""
        return cast(Module, import_module(f"maintenance.actions.{self.name}"))

    @property
    def body(self) -> Body:
        """The function that acts on one table."""
        return cast("Body", getattr(self.module, self.name))

    def cron(self, group: str) -> str:
        """A group's cron, later by a few minutes per action before this one; minutes in lists or steps stay."""
        minute, rest = group.split(maxsplit=1)
        later = MINUTES_APART * (1 + ACTIONS.index(self))
        return f"{(int(minute) + later) % 60} {rest}" if minute.isdigit() else group


class Module(Protocol):
    """What the module of an action contains besides the function of its name, which acts on one table."""

    RATE: Rate

    def inspect(
        self, session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy
    ) -> dict[str, Any]:
        """The fields of `Health` that the action needs; `table` is None if it is not in the lake."""
        ...

    def need(self, health: Health, policy: MaintenancePolicy) -> Need | None:
        """The action as a need of this table, or None if it is not due."""
        ...


ACTIONS = (
    Action(
        "compact",
        "compact",
        "Spark",
        "merges small files, keeps the declared order, applies deletes or merges their files, merges manifests",
        "commits a gigabyte at a time (more where a table is huge), so that a killed run keeps what it did; a conflict "
        "with another writer is planned anew, four times at most; sensors ignore its snapshots",
        rewrites=True,
    ),
    Action(
        "expire_snapshots",
        "expire_snapshots",
        "PyIceberg",
        "drops old snapshots, tags and branches whose time is over, and metadata files beyond `keep_metadata_files` "
        "from the log",
        "keeps the newest ones, what was in force when the retention time began, those that cuts of that time or the "
        "last one before it name, and what tags and branches name",
    ),
    Action(
        "remove_orphan_files",
        "remove_orphan_files",
        "PyIceberg, Spark",
        "takes objects out of use that nothing refers to",
        "spares what ingestion has staged, what other tables and restored copies refer to, and tables that share a "
        "location; two readers must agree",
        reads_lake=True,
    ),
    Action(
        "drop_extended_stats",
        "statistics",
        "Trino",
        "drops Trino's extended statistics, then runs ANALYZE, once `stale_share` of the rows has changed",
        "–",
    ),
    Action(
        "clean_dbt_temporary",
        "clean_dbt_temporary",
        "Trino, PyIceberg",
        "drops temporary relations of dbt older than a limit, and objects without a relation, also of marts that were "
        "built and not published",
        "keeps what a view refers to or a run has made anew",
        reads_lake=True,
    ),
)
BY_NAME = {action.name: action for action in ACTIONS}
