"""The outcome of one action on one table, for the terminal, JSON and Dagster."""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse.text.shown import shortened, visible

Status = Literal["failed", "done", "planned", "skipped"]
ERROR_LENGTH = 400


@dataclass(frozen=True)
class Figures:
    """Sizes of a table's current state; None if the action does not measure them."""

    files: int | None = None
    bytes: int | None = None
    delete_files: int | None = None
    manifests: int | None = None
    snapshots: int | None = None
    metadata_bytes: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of one action on one table. `reason` says why it was skipped, or what was done.

    `read_bytes` and `written_bytes` count data files. Probes are seconds by query name.
    """

    action: str
    table: TableName
    status: Status
    reason: str = ""
    error: str | None = None
    before: Figures = Figures()
    after: Figures = Figures()
    removed_files: int = 0
    removed_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    started_at: datetime | None = None
    probes_before: dict[str, float] = field(default_factory=dict)
    probes_after: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the table as `namespace.name`, without figures that were not measured."""
        record = asdict(self) | {"table": str(self.table), "seconds": round(self.seconds, 3)}
        record["started_at"] = self.started_at and self.started_at.isoformat()
        for side in ("before", "after"):
            record[side] = {key: value for key, value in record[side].items() if value is not None}
        return record


def one_line(error: Exception) -> str:
    """An exception's type and first line; Spark and Trino send pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[1].startswith(": "):  # Py4J puts Java's own message on the second line
        lines[0] = lines[1].removeprefix(": ")
    return shortened(visible(f"{type(error).__name__}: {lines[0] if lines else 'no message'}"), ERROR_LENGTH)


def plainly(error: Exception) -> str:
    """One line for users: a LakehouseError's own text, else type and first line."""
    return str(error) if isinstance(error, LakehouseError) else one_line(error)
