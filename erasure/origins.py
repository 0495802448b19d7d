"""Who is asked about subjects before they are erased: the database that their rows come from, or their topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from erasure.awaited import awaited, undeleted
from erasure.key_periods import Key
from erasure.plan import Plan
from erasure.spellings import equal_keys, spellings
from erasure.subjects import as_landed, as_printed, check_key, facts_there, held_by_source
from erasure.targets import raw_target
from ingestion.schema.facts import TableFacts
from ingestion.sources.postgres.connection import connect_source
from lakehouse.declarations import RawTable
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings


class Origin(Protocol):
    """Where the rows of a table come from. Every method may raise LakehouseError."""

    def there(self, facts: TableFacts) -> TableFacts:
        """The facts by which it is asked, of a table with these."""

    def printed(self, facts: TableFacts, key: dict[str, str]) -> dict[str, str]:
        """A key as the user writes it, in the form in which it comes."""

    def spellings(
        self, facts: TableFacts, raw: Table, keys: Collection[Key], kept: Collection[Key]
    ) -> Mapping[Key, Collection[Key]]:
        """By key, the other ones in the raw table, or of what is `kept` aside, that are the same."""

    def held(self, facts: TableFacts, keys: Iterable[Mapping[str, str | None]]) -> str | None:
        """Why a subject with these keys would come back, as far as that can be asked."""

    def awaited(self, catalog: SqlCatalog, plan: Plan, facts: TableFacts) -> list[str | None]:
        """By subject of the plan, what has not come yet that says they are gone."""


@dataclass(frozen=True)
class Database:
    """The database of a slot, or the one behind topics of Debezium."""

    connection: SourceConnection
    table: RawTable

    def there(self, facts: TableFacts) -> TableFacts:
        """Those of its own table."""
        return facts_there(self.connection, self.table, facts)

    def printed(self, facts: TableFacts, key: dict[str, str]) -> dict[str, str]:
        """As the stream prints it."""
        return as_printed(self.connection, self.table, facts, key)

    def spellings(
        self, facts: TableFacts, raw: Table, keys: Collection[Key], kept: Collection[Key]
    ) -> Mapping[Key, Collection[Key]]:
        """Those that the database calls equal."""
        return equal_keys(self.connection, raw, self.table, facts, keys, kept)

    def held(self, facts: TableFacts, keys: Iterable[Mapping[str, str | None]]) -> str | None:
        """Whether a row with personal data is there."""
        kept = raw_target(self.table, tuple(OF_KINDS[self.table.kind])).kept or frozenset()
        return held_by_source(self.connection, self.table, facts, keys, kept)

    def awaited(self, catalog: SqlCatalog, plan: Plan, facts: TableFacts) -> list[str | None]:
        """What a connector has not told; a slot has told everything."""
        return awaited(catalog, plan, facts) if self.table.kind == "debezium" else [None] * len(plan.periods)


@dataclass(frozen=True)
class Topic:
    """A topic of events, which nobody can be asked for: with a key, its newest event says whether somebody is there."""

    table: RawTable

    def there(self, facts: TableFacts) -> TableFacts:
        """The same."""
        check_key(self.table, facts)
        return facts

    def printed(self, facts: TableFacts, key: dict[str, str]) -> dict[str, str]:
        """As events with that key land."""
        return as_landed(self.table, facts, key)

    def spellings(
        self, facts: TableFacts, raw: Table, keys: Collection[Key], kept: Collection[Key]
    ) -> Mapping[Key, Collection[Key]]:
        """As producers write them; what is kept aside is read in one form."""
        return spellings(raw, self.table, facts, keys)

    def held(self, facts: TableFacts, keys: Iterable[Mapping[str, str | None]]) -> str | None:
        """None: all that can be known has landed, or is kept aside."""

    def awaited(self, catalog: SqlCatalog, plan: Plan, facts: TableFacts) -> list[str | None]:
        """Deletes, in a topic that has them."""
        return [None] * len(plan.periods) if plan.keyless else undeleted(catalog, plan, facts)


@contextmanager
def origin_of(settings: Settings, table: RawTable) -> Iterator[Origin]:
    """The origin of a table's rows; raises LakehouseError where it does not answer."""
    if table.kind == "kafka":
        yield Topic(table)
        return
    of = settings if table.kind == "postgres" else settings.behind(table.source)
    with connect_source(of, table.source) as connection:
        yield Database(connection, table)


def elsewhere(table: RawTable) -> str:
    """What is not in the lake and has the events of subjects, and what that asks for; empty where there is none."""
    if table.kind != "kafka":
        return ""
    return (
        f"topic {table.raw.topic} has the events until its retention or compaction takes them. Once the lake has read "
        "it from its beginning again, `lakehouse erase --repeat` erases them again, as `lakehouse ingest --recover "
        f"{table.source}` does by itself"
    )
