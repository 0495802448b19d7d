"""What is declared, read: sources, their raw tables and columns."""

from collections.abc import Container
from typing import Literal

from pydantic import BaseModel, ConfigDict

from lakehouse.declarations.kinds import Kind
from lakehouse.declarations.policies import (
    FlushPolicy,
    LagPolicy,
    LoadPolicy,
    MaintenancePolicy,
    MirrorPolicy,
    RawPolicy,
)
from lakehouse.declarations.vault.policy import VaultPolicy
from lakehouse.errors import LakehouseError
from lakehouse.text.spelling import close
from lakehouse.text.sql import relation

REFRESH_SECONDS = 60.0  # of mirrors, unless declared


class Declared(BaseModel):
    """A frozen model."""

    model_config = ConfigDict(frozen=True)


class Column(Declared):
    """A declared column of a raw table."""

    name: str
    data_type: str | None
    description: str


class RawTable(Declared):
    """One raw table: a dbt source entry with its policies."""

    source: str
    name: str
    description: str
    columns: tuple[Column, ...]
    raw: RawPolicy
    load: LoadPolicy
    maintenance: MaintenancePolicy | None
    owners: tuple[str, ...]
    lag: LagPolicy | None = None
    vault: VaultPolicy | None = None
    mirror: MirrorPolicy | Literal["none"] | None = None
    flush: FlushPolicy | None = None
    kind: Kind = "postgres"
    optional: bool = False

    @property
    def landed(self) -> tuple[str, ...]:
        """The declared columns that come into the lake, as the source spells them."""
        return tuple(column.name for column in self.columns if column.name not in self.raw.exclude)

    @property
    def personal(self) -> tuple[str, ...]:
        """The columns of personal data that land, as the source spells them: erasing a data subject empties them."""
        named = set(self.raw.personal).union(
            *(s.columns for s in (self.vault.satellites if self.vault else {}).values() if s.personal)
        )
        return tuple(name for name in self.landed if name in named)

    @property
    def has_personal(self) -> bool:
        """Whether it has personal data, or had: what is excluded by now is still in rows from before."""
        return bool(self.personal or self.raw.personal)

    @property
    def namespace(self) -> str:
        """The Iceberg namespace, `raw_<source>`."""
        return f"raw_{self.source}"

    @property
    def asset_key(self) -> tuple[str, str]:
        """[schema, table], as everywhere in Dagster and Trino."""
        return (self.namespace, self.name)

    @property
    def identifier(self) -> tuple[str, str]:
        """The Iceberg table identifier."""
        return (self.namespace, self.name)

    @property
    def is_mirrored(self) -> bool:
        """Whether it has a mirror: every table with a key, unless declared otherwise."""
        return bool(self.key) and self.mirror != "none"

    @property
    def mirror_identifier(self) -> tuple[str, str]:
        """The Iceberg table identifier of its mirror."""
        return (f"mirror_{self.source}", self.name)

    @property
    def relation(self) -> tuple[str, str]:
        """Schema and name of the relation in Postgres; of a topic, no schema and its name."""
        return self.raw.schema_and_table

    @property
    def behind(self) -> "RawTable":
        """The table in Postgres whose rows land, where they come by a topic."""
        if self.kind != "debezium":
            return self
        raw = self.raw.model_copy(update={"relation": relation(*self.raw.captured), "topic": ""})
        return self.model_copy(update={"kind": "postgres", "raw": raw})

    @property
    def is_compared(self) -> bool:
        """Whether the daily check compares it, at a point of its source."""
        return self.kind == "postgres" and bool(self.key)

    @property
    def key(self) -> tuple[str, ...]:
        """The declared key columns, as the source spells them."""
        return self.raw.key


class Source(Declared):
    """One source database with its raw tables."""

    name: str
    description: str
    load: LoadPolicy
    tables: tuple[RawTable, ...]

    @property
    def kind(self) -> Kind:
        """What kind of source it is; one is of one kind."""
        return self.tables[0].kind if self.tables else "postgres"

    @property
    def flush(self) -> FlushPolicy | None:
        """How often it is published, where that is declared; otherwise as soon as something was read."""
        return self.tables[0].flush if self.tables else None

    @property
    def mirrored(self) -> tuple[RawTable, ...]:
        """The tables that have a mirror."""
        return tuple(table for table in self.tables if table.is_mirrored)

    @property
    def refresh_seconds(self) -> float:
        """How often the mirrors are refreshed, all of them together."""
        declared = (table.mirror.refresh_seconds for table in self.mirrored if isinstance(table.mirror, MirrorPolicy))
        return next(declared, REFRESH_SECONDS)

    def table(self, name: str) -> RawTable:
        """The raw table of that name; raises LakehouseError."""
        for table in self.tables:
            if table.name == name:
                return table
        meant = _meant(name, self.tables) or f"; it declares {_names(self.tables)}"
        raise LakehouseError(f"source {self.name!r} declares no table {name!r}{meant}")


class Declarations(Declared):
    """Everything that is declared."""

    sources: tuple[Source, ...]

    def among(self, connected: Container[str]) -> "Declarations":
        """Without the optional sources that have no connection."""
        kept = (s for s in self.sources if s.name in connected or not all(table.optional for table in s.tables))
        return self.model_copy(update={"sources": tuple(kept)})

    def source(self, name: str) -> Source:
        """The source of that name; raises LakehouseError."""
        for source in self.sources:
            if source.name == name:
                return source
        meant = _meant(name, self.sources) or f"; declared are {_names(self.sources)}"
        raise LakehouseError(f"no source {name!r} is declared{meant}")

    def named(self, name: str) -> RawTable:
        """The raw table that `source.table` names; raises LakehouseError."""
        source, table = source_and_table(name)
        return self.source(source).table(table)

    @property
    def tables(self) -> tuple[RawTable, ...]:
        """All raw tables of all sources."""
        return tuple(table for source in self.sources for table in source.tables)


def source_and_table(name: str) -> tuple[str, str]:
    """Splits `source.table`; raises LakehouseError."""
    source, _, table = name.partition(".")
    if not (source and table):
        raise LakehouseError(f"{name!r} is not SOURCE.TABLE")
    return source, table


def _meant(name: str, items: tuple[RawTable, ...] | tuple[Source, ...]) -> str:
    near = close(name, [item.name for item in items], 0.6)
    return f": did you mean {near!r}?" if near else ""


def _names(items: tuple[RawTable, ...] | tuple[Source, ...]) -> str:
    return ", ".join(item.name for item in items) or "none"
