"""The policies a declaration may carry: how a table is loaded and how it is maintained.

They are read from dbt's `config.meta`. A part that is left out means "do not do this": nothing has a silent default.
"""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Policy(BaseModel):
    """Frozen, and strict about names: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Cron(Policy):
    """A schedule in cron syntax, in UTC."""

    cron: str


class LoadPolicy(Policy):
    """Which job loads a table into parsed and vault, and what starts it."""

    job: Literal["shared", "own"] = "shared"
    trigger: Literal["sensor"] | Cron = "sensor"


class CompactPolicy(Policy):
    """Rewrite small data files into files of a target size."""

    target_file_size_mb: int = Field(gt=0)
    min_input_files: int = Field(5, gt=1)


class ExpirePolicy(Policy):
    """Drop old snapshots, keeping the newest ones."""

    older_than_hours: float = Field(ge=0)
    retain_last: int = Field(1, ge=1)


class OrphanPolicy(Policy):
    """Delete files that no snapshot refers to."""

    older_than_hours: float = Field(ge=0)


class StatisticsPolicy(Policy):
    """Refresh the optimizer's statistics: drop the extended ones, then ANALYZE."""

    analyze: bool = True


class TemporaryPolicy(Policy):
    """Drop what dbt left behind of a model: temporary relations, and objects no table knows."""

    older_than_hours: float = Field(ge=0)


class MaintenancePolicy(Policy):
    """What is done to keep one table fast, and in which schedule group."""

    schedule_group: str
    compact: CompactPolicy | None = None
    expire_snapshots: ExpirePolicy | None = None
    remove_orphan_files: OrphanPolicy | None = None
    statistics: StatisticsPolicy | None = None
    clean_dbt_temporary: TemporaryPolicy | None = None


LagLevel = Literal["ok", "warn", "error"]


class LagPolicy(Policy):
    """How far the lake may be behind its source: in WAL that the source keeps for it, and in time."""

    warn_bytes: int | None = Field(None, gt=0)
    error_bytes: int | None = Field(None, gt=0)
    warn_seconds: float | None = Field(None, gt=0)
    error_seconds: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _says_something_and_warns_first(self) -> "LagPolicy":
        pairs = {"bytes": (self.warn_bytes, self.error_bytes), "seconds": (self.warn_seconds, self.error_seconds)}
        if all(limit is None for pair in pairs.values() for limit in pair):
            raise ValueError("give at least one of warn_bytes, error_bytes, warn_seconds, error_seconds")
        for unit, (warn, error) in pairs.items():
            if warn is not None and error is not None and warn >= error:
                raise ValueError(f"warn_{unit} ({warn}) must be below error_{unit} ({error})")
        return self

    def level(self, lag_bytes: int, lag_seconds: float) -> LagLevel:
        """What a lag amounts to; a limit that is reached counts."""
        if _reached(lag_bytes, self.error_bytes) or _reached(lag_seconds, self.error_seconds):
            return "error"
        return "warn" if _reached(lag_bytes, self.warn_bytes) or _reached(lag_seconds, self.warn_seconds) else "ok"


def _reached(lag: float, limit: float | None) -> bool:
    return limit is not None and lag >= limit


class RawPolicy(Policy):
    """Where a raw table comes from and what is done before a row lands."""

    relation: str = Field(description="schema.table in Postgres; quote parts that need it")
    key: tuple[str, ...] = Field((), description="source columns that identify a row; empty for a table without a key")
    exclude: tuple[str, ...] = Field((), description="columns that never land")
    mask: dict[str, Literal["null", "sha256"]] = Field(default_factory=dict, description="column → how it is masked")
    alias: dict[str, str] = Field(default_factory=dict, description="source column → name in the lake")
    personal: tuple[str, ...] = Field((), description="personal data that is in no personal satellite of meta.vault")
    changes: Literal["all", "inserts"] = Field("all", description="inserts: published without updates and deletes")
    on_unrepresentable: Literal["error", "clamp", "null"] = "error"
    freshness_minutes: int | None = Field(None, gt=0, description="older than this, the table counts as stale")

    @field_validator("relation")
    @classmethod
    def _has_two_parts(cls, value: str) -> str:
        split_relation(value)
        return value

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """The relation's two parts, unquoted."""
        return split_relation(self.relation)


def split_relation(text: str) -> tuple[str, str]:
    """Splits `schema.table`, either part in double quotes when it holds a dot, capitals or spaces."""
    match = re.fullmatch(r'(?:"((?:[^"]|"")+)"|([^".]+))\.(?:"((?:[^"]|"")+)"|([^".]+))', text)
    if match is None:
        raise ValueError(f"{text!r} is not schema.table")
    quoted_schema, schema, quoted_table, table = match.groups()
    return (
        quoted_schema.replace('""', '"') if quoted_schema else schema,
        quoted_table.replace('""', '"') if quoted_table else table,
    )
