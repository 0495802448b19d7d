"""The policies a declaration may carry: how a table is loaded and how it is maintained.

They are read from dbt's `config.meta`. A part that is left out means "do not do this": nothing has a silent default.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from lakehouse.declarations.times import Window, check_cron, ticks_within
from lakehouse.text.names import NAME
from lakehouse.text.numbers import StrictNumbers


class Policy(StrictNumbers):
    """Frozen, and strict about names: an unknown key is an error. Numbers are finite: `.nan` is below no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must match {NAME.pattern}")
    return name


LakeName = Annotated[str, AfterValidator(_check_name)]


def check_owner(text: str) -> str:
    """The owner as it is; raises ValueError where Dagster would refuse it, and with it everything that is declared."""
    if not re.fullmatch(r"team:.+|[A-Za-z0-9_%+-][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", text):
        raise ValueError(f"owner {text!r} is neither a mail address nor `team:` and a name")
    return text


def check_pin_name(name: str) -> str:
    """What a pin is called, as it is; raises ValueError. Every engine reads it as a tag, and `pin:NAME` names a cut."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name):
        raise ValueError(f"{name!r} cannot name a pin: use a-z, 0-9 and _, beginning with a letter or digit")
    return name


PinName = Annotated[str, AfterValidator(check_pin_name)]
Owner = Annotated[str, AfterValidator(check_owner)]
CronText = Annotated[str, AfterValidator(check_cron)]
GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$")]  # becomes a schedule's name
Hours = Annotated[float, Field(ge=0, le=24 * 366 * 100)]  # a century at most: what is older has no date


class Cron(Policy):
    """A schedule in cron syntax, in UTC."""

    cron: CronText


class LoadPolicy(Policy):
    """Which job loads a table into parsed and vault, and what starts it."""

    job: Literal["shared", "own"] = "shared"
    trigger: Literal["sensor"] | Cron = "sensor"


class CompactPolicy(Policy):
    """Rewrite small data files into files of a target size: sorted, along a z-order curve, or as they come."""

    target_file_size_mb: int = Field(gt=0)
    min_input_files: int = Field(gt=1, description="a partition with fewer files off the target size is left alone")
    sort_by: tuple[str, ...] = Field((), description="columns that rows are sorted by")
    zorder_by: tuple[str, ...] = Field((), description="columns whose bits are interleaved")

    @model_validator(mode="after")
    def _has_one_order(self) -> "CompactPolicy":
        if self.sort_by and self.zorder_by:
            raise ValueError("give sort_by or zorder_by, not both")
        return self


class AgePolicy(Policy):
    """A part with an age limit."""

    older_than_hours: Hours


class RemovingPolicy(AgePolicy):
    """One that takes files out of use, which stay restorable for a while; what dbt left is deleted at once."""


class ExpirePolicy(RemovingPolicy):
    """Drop old snapshots, keeping the newest ones, and metadata files beyond a number."""

    retain_last: int = Field(ge=1)
    keep_metadata_files: int = Field(ge=1, description="earlier metadata.json files that the table's log keeps")


class OrphanPolicy(RemovingPolicy):
    """Take files out of use that no snapshot refers to."""


class StatisticsPolicy(Policy):
    """Refresh the optimizer's statistics: drop the extended ones, then ANALYZE."""

    analyze: bool
    stale_share: float = Field(ge=0, le=1, description="changed rows, of all, from which on they count as stale")


class TemporaryPolicy(AgePolicy):
    """Drop what dbt left behind of a model: temporary relations, and objects no table knows."""


class ProbePolicy(Policy):
    """Queries that are timed before and after acting: a count, a lookup of this key, a scan of a day."""

    key: str


class MaintenancePolicy(Policy):
    """The actions for one table and its schedule group; or why it is not maintained."""

    schedule_group: str
    opt_out: str | None = Field(None, min_length=1, description="why the table is not maintained")
    compact: CompactPolicy | None = None
    expire_snapshots: ExpirePolicy | None = None
    remove_orphan_files: OrphanPolicy | None = None
    statistics: StatisticsPolicy | None = None
    clean_dbt_temporary: TemporaryPolicy | None = None
    keep_removed_hours: Hours | None = Field(None, description="what is removed stays restorable so long")
    probe: ProbePolicy | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """The parts of the policy, by key."""
        return {key: part for key, part in self if key not in ("schedule_group", "opt_out") and part is not None}

    @model_validator(mode="after")
    def _is_whole(self) -> "MaintenancePolicy":
        if self.opt_out is not None and self.parts:
            raise ValueError(f"opt_out excludes every other part; take out {', '.join(self.parts)}")
        removing = [key for key, part in self.parts.items() if isinstance(part, RemovingPolicy)]
        if removing and self.keep_removed_hours is None:
            raise ValueError(f"{removing[0]} removes files: say with keep_removed_hours how long they stay restorable")
        return self


class ScheduleGroup(Policy):
    """When the tables of a group are maintained, for how long at most, and at what times of the day (UTC)."""

    cron: CronText
    budget_minutes: float = Field(gt=0)
    window: str | None = Field(None, description="HH:MM-HH:MM; no step begins outside of it")

    @field_validator("window")
    @classmethod
    def _is_a_window(cls, value: str | None) -> str | None:
        return value if value is None else str(Window.parse(value))

    @model_validator(mode="after")
    def _begins_in_its_window(self) -> "ScheduleGroup":
        if self.window and not ticks_within(self.cron, Window.parse(self.window)):
            raise ValueError(
                f"cron {self.cron!r} never begins within the window {self.window}, outside of which nothing is done: "
                "change one of them"
            )
        return self

    def seconds(self, now: datetime) -> float:
        """How long a run that begins now may take: the budget, or what is left of the window."""
        budget = self.budget_minutes * 60
        return min(budget, Window.parse(self.window).seconds_left(now)) if self.window else budget


class ProjectMaintenance(Policy):
    """Settings of all tables: `vars.maintenance` of dbt_project.yml."""

    longest_write_hours: float = Field(gt=0, description="no retention may be shorter: a write may be as old")
    max_failed_share: float = Field(ge=0, le=1, description="a run fails above this share of failed tables")
    groups: dict[GroupName, ScheduleGroup] = Field(min_length=1)


class PinPolicy(Policy):
    """A cut that is pinned again and again, such as each month's last one."""

    cron: CronText
    timezone: str = Field("UTC", description="whose days and months they are, such as Europe/Berlin")
    keep_days: float = Field(gt=0, le=36_600, description="how long each of them is kept")

    @field_validator("timezone")
    @classmethod
    def _is_a_timezone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"timezone {value!r} is not known: give one such as UTC or Europe/Berlin")
        return value

    @property
    def is_at_most_daily(self) -> bool:
        """Whether no day has two moments."""
        minute, hour, *_ = self.cron.split()
        return minute.isdecimal() and hour.isdecimal()


class MirrorPolicy(Policy):
    """How often the mirrors of a source are brought to its newest cut: all of them together."""

    refresh_seconds: float = Field(gt=0)


class FlushPolicy(Policy):
    """How often what is read of a source is published; until then it is in its live tables."""

    interval_minutes: float = Field(gt=0, le=24 * 60)


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


class BuiltByKey(Policy):
    """How a mart that is built whole gets a few new rows instead: each row is made of what has its key, and no more."""

    key: str = Field(description="column that is unique in the mart; tables that have it say which rows change")
    through: dict[str, str] = Field(
        default_factory=dict, description="table → table that leads from it to the key, or to other keys, too"
    )
    from_rows: int = Field(100_000, ge=0, description="a mart of fewer rows is built whole, which is as fast")


class ModelPolicy(Policy):
    """What the page of a model's table shows: who answers for it, and how old it may be; and how it is built."""

    owners: tuple[Owner, ...] = ()
    freshness_minutes: int | None = Field(None, gt=0, description="older than this, the table counts as stale")
    built_by: BuiltByKey | None = Field(None, description="build the rows that changed, not the whole mart")


class AccessPolicy(Policy):
    """Who reads a model's relation in Trino; see `lakehouse.declarations.access.rules` for what holds without it."""

    access: Literal["reader", "privacy", "writer"] | None = Field(None, description="the least role that reads it")
    personal: tuple[str, ...] = Field((), description="personal columns that are called otherwise in the raw table")


class RawPolicy(Policy):
    """Where a raw table comes from and what is done before a row lands."""

    relation: str = Field(
        "",
        description="schema.table in Postgres; quote parts that need it. Of a topic of Debezium that is not called so",
    )
    topic: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", description="topic in Kafka")
    format: Literal["json", "avro"] = Field("json", description="what the values of a topic are")
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
    def origin(self) -> str:
        """What the rows are read from, as it is declared."""
        return self.topic or self.relation

    @property
    def captured(self) -> tuple[str, ...]:
        """Schema and name of the relation whose changes a topic of Debezium has; nothing where they are not known."""
        parts = self.topic.split(".")[-2:]
        return split_relation(self.relation) if self.relation else tuple(parts) if len(parts) == 2 else ()

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """The relation's two parts, unquoted; a topic is in no schema."""
        return ("", self.topic) if self.topic else split_relation(self.relation)


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
