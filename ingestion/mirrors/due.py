"""Where the mirrors of the tables in a cut stand, and what of their raw tables they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from ingestion.mirrors.state import MirrorState, columns_with_nulls, read_state
from ingestion.pipeline.repair.lake_side import Log
from ingestion.pipeline.repair.spelling import SpelledColumn, spelled_columns
from ingestion.pipeline.session import Session
from ingestion.schema.declared_columns import is_keyed_as_declared
from ingestion.schema.facts import TableFacts
from ingestion.state import store
from lakehouse.catalog.next_names import Name
from lakehouse.catalog.open import is_unchanged
from lakehouse.catalog.views.current_views import TAG
from lakehouse.catalog.views.mirrored import tag_of
from lakehouse.declarations import RawTable
from lakehouse.text.sql import spark_relation


@dataclass(frozen=True)
class Mirror:
    """A mirror to write: its table, the mirror as it is, and where it stands. `log` names its columns.

    Everything that the raw table had at `raw_snapshot` is in the cut.
    """

    table: RawTable
    raw: Table
    raw_snapshot: int | None
    mirror: Table | None
    state: MirrorState | None
    log: Log

    @property
    def columns(self) -> dict[str, int]:
        """The raw table's fields that the mirror has, by name."""
        return _fields(self.raw, self.log.columns)

    @property
    def key(self) -> list[str]:
        """The key's columns, as the lake calls them."""
        return [column.lake_name for column in self.log.key]

    @property
    def is_same(self) -> bool:
        """Whether nothing has happened to it."""
        if self.state is None or self.columns != dict(self.state.columns) or not self.is_tagged:
            return False
        return is_unchanged(self.raw.metadata, self.state.raw_snapshot)

    @property
    def is_tagged(self) -> bool:
        """Whether expiry keeps what the view's texts name."""
        if self.state is None or self.mirror is None:
            return False
        refs = self.mirror.metadata.refs
        return TAG in refs and refs[TAG].snapshot_id == self.state.snapshot and tag_of(self.state.snapshot) in refs


def mirrors_at_cut(
    session: Session,
    tables: list[RawTable],
    epoch: int,
    positions: Mapping[str, store.TablePosition],
    before: Mapping[Name, int | None],
) -> list[Mirror]:
    """The mirrors of these tables, without those whose columns the next cycle adds to the raw table, or to which it
    brings what another key lacks."""
    raws = session.catalog.load_tables([table.identifier for table in tables])
    mirrors = session.catalog.load_tables([table.mirror_identifier for table in tables])
    items = []
    for table in tables:
        raw, mirror = raws[table.identifier], mirrors.get(table.mirror_identifier)
        followed = positions[table.name].followed
        log = _log(session, table, raw, followed)
        has_columns = {column.source.name for column in log.columns} == set(table.landed)
        if has_columns and is_keyed_as_declared(table, followed):
            state = read_state(mirror, epoch, *made_of(raw, log)) if mirror else None
            item = Mirror(table, raw, before.get(table.identifier), mirror, state, log)
            if mirror and state and state.nulls is None:
                nulls = columns_with_nulls(mirror, state.snapshot, item.key)
                item = replace(item, state=replace(state, nulls=nulls))
            items.append(item)
    return items


def _fields(raw: Table, columns: Iterable[SpelledColumn]) -> dict[str, int]:
    """The raw table's fields of these columns, by name."""
    return {column.lake_name: raw.schema().find_field(column.lake_name).field_id for column in columns}


def made_of(raw: Table, log: Log) -> tuple[str, tuple[int, ...]]:
    """The raw table, and its fields of the key in their order."""
    return str(raw.metadata.table_uuid), tuple(sorted(_fields(raw, log.key).values()))


def _log(session: Session, table: RawTable, raw: Table, facts: TableFacts) -> Log:
    """What is read of the raw table: its declared columns."""
    spelled = spelled_columns(table, raw, facts)
    columns = tuple(column for column in spelled if column.source.name in table.landed)
    key = tuple(column for name in table.key for column in columns if column.source.name == name)
    return Log(spark_relation(session.settings.catalog_name, *table.identifier), columns, key, ())
