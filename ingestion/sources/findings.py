"""What a check of a source found: one line each, with the remedy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psycopg

from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

Weight = Literal["in the way", "prepare", "warning"]
Positions = Mapping[str, store.TablePosition]
ORDER: dict[Weight, int] = {"in the way": 0, "prepare": 1, "warning": 2}


@dataclass(frozen=True)
class Finding:
    """`in the way` keeps rows from arriving, or the application from writing; `prepare` is what prepare will do."""

    source: str
    table: str | None
    about: str
    weight: Weight
    says: str
    remedy: str

    @property
    def line(self) -> str:
        """For people."""
        where = f"{self.source}.{self.table}" if self.table else self.source
        return f"{where}: {self.says}: {self.remedy}"

    def as_dict(self) -> Mapping[str, Any]:
        """For machines."""
        return asdict(self)


def known_positions(settings: Settings, source: str) -> Positions:
    """What the lake knows of the source's tables; nothing where it was never set up, or does not answer."""
    try:
        with store.connect_catalog(settings) as states:
            return store.read_positions(states, source)
    except (LakehouseError, psycopg.Error):
        return {}


def of_parked(source: str, positions: Positions) -> Iterator[Finding]:
    """The tables that wait for the user, or could not be loaded when that was last tried."""
    for name, position in sorted(positions.items()):
        reason = (position.reason or "").removeprefix(f"source {source!r}, table {name!r}: ")
        if position.state == "parked":
            remedy = f"fix the cause, then `lakehouse ingest --resume {source}.{name}`"
            yield Finding(source, name, "parked", "in the way", f"it is parked: {reason}", remedy)
        elif position.state == "new" and reason:
            remedy = "fix the cause: the next cycle loads it"
            yield Finding(source, name, "parked", "warning", f"it could not be loaded: {reason}", remedy)


def of_stream(settings: Settings, source: str, check: Callable[[CatalogConnection], None]) -> Iterator[Finding]:
    """What ingestion would refuse the whole source for, by `check` and in its words; nothing where the state cannot be
    read."""
    try:
        with store.connect_catalog(settings) as states:
            refused = refusal(source, lambda: check(states))
    except (LakehouseError, psycopg.Error):
        return
    if refused is not None:
        yield Finding(source, None, "stream", "in the way", *in_two(refused))


def refusal(source: str, check: Callable[[], None]) -> str | None:
    """What `check` raises a LakehouseError with, without what goes without saying; None where it raises none."""
    try:
        check()
    except LakehouseError as error:
        return str(error).removeprefix(f"source {source!r}: ").replace("; nothing was written: ", ": ")
    return None


def in_two(refused: str) -> tuple[str, str]:
    """What is wrong by such a text, and what to do about it."""
    says, _, remedy = refused.rpartition(": ")
    return says, remedy
