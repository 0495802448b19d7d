"""What the page says: the watch's findings and numbers, put together by what they are about. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType

from lakehouse.metrics import Sample
from lakehouse_page.questions import Question
from lakehouse_watch.alerts import Occasion

Rows = Mapping[str, Sequence[int] | None]
Number = int | float | Decimal
UNREADABLE = "unreadable/dagster checks"  # the watch says so when it cannot read them


@dataclass(frozen=True)
class SourceRow:
    """How far a source is. `rows` are those published in each of the last minutes, oldest first. None: not known, such
    as what only the source itself could say while it cannot be read.

    `is_missed` says that the follower hangs or was killed; one that was stopped is not.
    """

    name: str
    follows: bool
    is_missed: bool
    cut_age: float | None
    lag_seconds: float | None
    behind_bytes: float | None
    slot_bytes: float | None
    tables: str
    rows: Sequence[int] | None


@dataclass(frozen=True)
class Noted:
    """What the catalog knows of a source: its follower, the age of its newest cut in seconds, its tables by state."""

    follows: bool
    cut_age: float | None
    tables: str


@dataclass(frozen=True)
class AsideTable:
    """A table that is in no cut: its state, why, and what to do."""

    source: str
    table: str
    state: str
    reason: str
    to_do: str

    @property
    def name(self) -> str:
        """With its source."""
        return f"{self.source}.{self.table}"


@dataclass(frozen=True)
class LastCut:
    """A cut that was published: how far it is in its source, and the rows that came with it, if that is known."""

    source: str
    at: datetime
    position: str
    rows: int | None


@dataclass(frozen=True)
class Maintained:
    """What an action did when it last did something."""

    action: str
    at: datetime
    files_fewer: int
    bytes_fewer: int


@dataclass(frozen=True)
class Chart:
    """A declared chart with its answer, or why there is none. A bar without a number is NULL; `rest` are left out."""

    title: str
    bars: Sequence[tuple[str, Number | None]] = ()
    trouble: str = ""
    rest: int = 0

    def width(self, value: Number | None) -> float:
        """How long a bar is, in percent of the longest; 0 for what is no length: NULL, NaN and what is below zero."""
        most = max((_length(each) for _, each in self.bars), default=0.0)
        return round(100 * _length(value) / most, 1) if most else 0.0


@dataclass(frozen=True)
class Contents:
    """The whole page. Where `failed_checks` is None, `unchecked` says why it is not known; `sees_runs` says whether
    runs, sensors and checks are looked at at all."""

    at: datetime
    occasions: Sequence[Occasion]
    sources: Sequence[SourceRow]
    sizes: Sequence[tuple[str, int, int]]
    maintained: Sequence[Maintained]
    failed_checks: int | None
    unchecked: str
    charts: Sequence[Chart]
    questions: Sequence[Question] = ()
    cuts: Sequence[LastCut] = ()
    sees_runs: bool = True
    aside: Sequence[AsideTable] = ()


def contents(
    occasions: Sequence[Occasion], samples: Iterable[Sample], rows: Rows | None, charts: Sequence[Chart], at: datetime,
    questions: Sequence[Question] = (), cuts: Sequence[LastCut] = (), sees_runs: bool = True,
    noted: Mapping[str, Noted] = MappingProxyType({}), aside: Sequence[AsideTable] = (),
) -> Contents:  # fmt: skip
    """The page of this moment. A source that was never ingested is left out; of one that cannot be read it has what is
    `noted`. A table `aside` that needs attention is not named twice.

    `rows` is None where it is not known. `sees_runs` says whether Dagster's database is among the settings.
    """
    found, keys = _Samples(samples), {occasion.key for occasion in occasions}
    shown = noted.keys() | {labels["source"] for labels, _ in found.of("lakehouse_lag_seconds")}
    sizes = {(labels["source"], labels["table"]): int(value) for labels, value in found.of("lakehouse_table_bytes")}
    failed = [int(value) for _, value in found.of("lakehouse_failed_checks")]
    return Contents(
        at,
        sorted(occasions, key=_cause_first),
        [
            _source(found, name, rows if rows is None else rows.get(name, ()), f"follower/{name}" in keys, noted)
            for name in sorted(shown)
        ],
        [
            (f"{labels['source']}.{labels['table']}", int(value), sizes[(labels["source"], labels["table"])])
            for labels, value in found.of("lakehouse_table_rows")
        ],
        list(_maintained(found)),
        sum(failed) if failed else None,
        "" if failed else _unchecked(occasions, sees_runs),
        charts,
        questions,
        cuts,
        sees_runs,
        [each for each in aside if each.source in shown and f"parked/{each.name}" not in keys],
    )


class _Samples:
    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    def of(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [(dict(sample.labels), sample.value) for sample in self.samples if sample.name == name]

    def value(self, name: str, source: str) -> float | None:
        return next((value for labels, value in self.of(name) if labels.get("source") == source), None)


def _length(value: Number | None) -> float:
    return max(float(value), 0.0) if value is not None and math.isfinite(value) else 0.0


def _unchecked(occasions: Sequence[Occasion], sees_runs: bool) -> str:
    if not sees_runs:
        return "LAKEHOUSE_DAGSTER__STORAGE_URL is not set"
    said = (occasion.summary for occasion in occasions if occasion.key == UNREADABLE)
    return next(said, "Dagster has recorded nothing yet")


def _cause_first(occasion: Occasion) -> tuple[bool, int, str]:
    """Errors before warnings; servers and sources before runs, and these before checks, in the order of the layers."""
    ranks = ("run/", "sensor/", "check/raw_", "check/parsed.", "check/vault.", "check/")
    rank = next((at for at, start in enumerate(ranks, start=1) if occasion.key.startswith(start)), 0)
    return occasion.severity != "error", rank, occasion.key


def _source(
    found: _Samples, name: str, rows: Sequence[int] | None, is_missed: bool, noted: Mapping[str, Noted]
) -> SourceRow:
    if said := noted.get(name):
        return SourceRow(name, said.follows, is_missed, said.cut_age, None, None, None, said.tables, rows)
    states = [
        f"{value:.0f} {labels['state']}" for labels, value in found.of("lakehouse_tables") if labels["source"] == name
    ]
    return SourceRow(
        name, bool(found.value("lakehouse_follower_up", name)), is_missed,
        found.value("lakehouse_cut_age_seconds", name), found.value("lakehouse_lag_seconds", name) or 0.0,
        found.value("lakehouse_behind_bytes", name) or 0.0, found.value("lakehouse_slot_lag_bytes", name) or 0.0,
        ", ".join(states), rows,
    )  # fmt: skip


def _maintained(found: _Samples) -> Iterable[Maintained]:
    files = {labels["action"]: int(value) for labels, value in found.of("lakehouse_maintenance_removed_files")}
    size = {labels["action"]: int(value) for labels, value in found.of("lakehouse_maintenance_removed_bytes")}
    for labels, value in found.of("lakehouse_maintenance_last_timestamp_seconds"):
        action, at = labels["action"], datetime.fromtimestamp(value, UTC)
        yield Maintained(action, at, files.get(action, 0), size.get(action, 0))
