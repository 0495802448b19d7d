"""Run config of maintenance jobs: groups and tables are enums, not free strings.

A string in run config may be `{env: NAME}`; an error message that quoted it would reveal the variable's value.
"""

from collections.abc import Collection
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeVar

import dagster as dg
from pydantic import ConfigDict, Field, create_model


class ScopedConfig(dg.Config):
    """One group or some tables; without either, all maintained tables."""

    model_config = ConfigDict(use_enum_values=True)

    group: str | None = Field(None, description="schedule group whose tables are maintained")
    tables: list[str] = Field([], description="names (namespace.table) of the tables to maintain")


Scoped = TypeVar("Scoped", bound=ScopedConfig)


def scoped(config: type[Scoped], groups: Collection[str], tables: Collection[str]) -> type[Scoped]:
    """The config restricted to these groups and tables."""
    group, table = _choice("ScheduleGroup", groups), _choice("MaintainedTable", tables)
    return create_model(
        config.__name__,
        __base__=config,
        __doc__=config.__doc__,
        group=(group | None, config.model_fields["group"]),
        tables=(list[table], config.model_fields["tables"]),  # type: ignore[valid-type]
    )


def _choice(name: str, values: Collection[str]) -> Any:
    # Dagster keeps config types per process by name alone: the same name with other values would mean the older ones
    digest = sha256("\0".join(values).encode()).hexdigest()[:8]
    return StrEnum(f"{name}_{digest}", {value: value for value in values})
