"""What `config.meta` of a raw table says, key by key."""

from typing import Literal

from lakehouse.declarations.kinds import Kind
from lakehouse.declarations.policies import (
    FlushPolicy,
    LagPolicy,
    LoadPolicy,
    MaintenancePolicy,
    MirrorPolicy,
    Owner,
    Policy,
    RawPolicy,
)
from lakehouse.declarations.vault.policy import VaultPolicy


class TableMeta(Policy):
    """The whole of it; a table inherits from its source key by key."""

    raw: RawPolicy
    kind: Kind = "postgres"
    optional: bool = False
    load: LoadPolicy | None = None
    lag: LagPolicy | None = None
    maintenance: MaintenancePolicy | None = None
    owners: tuple[Owner, ...] = ()
    vault: VaultPolicy | None = None
    mirror: MirrorPolicy | Literal["none"] | None = None
    flush: FlushPolicy | None = None
