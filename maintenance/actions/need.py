"""How an action describes itself to a plan: its work, its speed and its gain."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lakehouse.declarations.policies import MaintenancePolicy
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.inventory.session import Session

SCAN_THROUGHPUT = 100e6  # bytes per second of a reader that cannot skip files, without statistics or order


class Work(NamedTuple):
    """The work of an action: bytes to read and write, items (files, snapshots, objects) to inspect."""

    bytes: int = 0
    items: int = 0


class Rate(NamedTuple):
    """Fixed cost in seconds, throughput in bytes per second, cost per item in seconds."""

    fixed_cost: float
    throughput: float
    cost_per_item: float


@dataclass(frozen=True)
class Need:
    """An action that a table needs: the reason, the work and the gain."""

    action: str
    reason: str
    work: Work
    gain_seconds: float = 0.0
    gain_bytes: int = 0


Body = Callable[[Session, TableName, MaintenancePolicy], Outcome]
