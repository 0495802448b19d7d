"""What a publish is asked to do: files to append to tables, the cut that they make, the position to advance to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile

from ingestion.schema.positions import Position
from lakehouse.catalog.open import ROWS
from lakehouse.servers.database import CatalogConnection


@dataclass(frozen=True)
class TableAppend:
    """Data files to append to one table; no files still make a snapshot, so that a cut can name one.

    `delete` names rows that go in the same commit: records that leave the spool as they land. `is_rewritten` says that
    rows have gone or changed in the snapshots before it, `joins` that the cut before left the table out. The table gets
    these `properties` in the same commit.
    """

    identifier: tuple[str, str]
    data_files: tuple[DataFile, ...]
    summary: dict[str, str]
    delete: BooleanExpression | None = None
    is_rewritten: bool = False
    joins: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def only_adds(self) -> bool:
        """Whether the rows that the table had are there as they were."""
        return self.delete is None and not self.is_rewritten


@dataclass(frozen=True)
class Cut:
    """A consistent point of the source: everything below `position` of the named tables."""

    epoch: int
    position: Position
    at: datetime
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Publication:
    """What one publish does. `revision` is the stream's when the publish was planned; None where that does not matter.

    `ingested_at` is the latest that a row of it carries; it is not published before, whatever the clock says.
    `record` writes further state in the same transaction.
    """

    cycle_id: str
    source: str
    epoch: int
    appends: tuple[TableAppend, ...]
    ingested_at: datetime | None = None
    revision: int | None = None
    cut: Cut | None = None
    advance_to: Position | None = None
    record: Callable[[CatalogConnection], None] = lambda connection: None

    @property
    def rows(self) -> int:
        """The rows that come to raw tables."""
        raw = (append for append in self.appends if append.identifier[0] == f"raw_{self.source}")
        return sum(int(rows) for append in raw for key, rows in append.summary.items() if key.startswith(ROWS))
