"""The kinds of sources: which there are, which can follow which, and the source of a name."""

from collections.abc import Collection
from importlib import import_module
from threading import Event
from typing import Any

from ingestion.sources.base import Source
from ingestion.sources.findings import ORDER, Finding, known_positions, of_parked
from ingestion.state.store import RESTORED, Stream
from lakehouse.declarations import Source as Declared
from lakehouse.errors import LakehouseError
from lakehouse.extras import missing_extra
from lakehouse.settings import Settings

KINDS = {
    "postgres": "ingestion.sources.postgres.source",
    "kafka": "ingestion.sources.kafka.source",
    "debezium": "ingestion.sources.debezium.source",
}  # modules with a function `source`
CHECKS = {
    "postgres": "ingestion.sources.postgres.setup",
    "kafka": "ingestion.sources.kafka.check",
    "debezium": "ingestion.sources.debezium.check",
}  # modules with a function `check_source`
MOVES = frozenset({("postgres", "debezium"), ("debezium", "postgres")})  # whose rows are the same


def check_kind(settings: Settings, declared: Declared) -> None:
    """Raises LakehouseError where the declaration and the connection of a source are not of one kind."""
    if declared.tables and (set_to := settings.connection(declared.name).kind) != declared.kind:
        raise LakehouseError(
            f"source {declared.name!r} is declared with meta.kind {declared.kind}, and its connection is of kind "
            f"{set_to}: correct the declaration, or LAKEHOUSE_SOURCES__{declared.name.upper()}__KIND"
        )


def check_shared(declared: Declared) -> None:
    """Raises LakehouseError for a source that only one follower at a time can read."""
    if declared.kind != "kafka":
        raise LakehouseError(
            f"source {declared.name!r}: a source of kind {declared.kind} has one order, which one follower reads: "
            "follow it without --share (that is for kind kafka)"
        )
    if declared.flush is not None:
        raise LakehouseError(
            f"source {declared.name!r}: what its declared flush holds is in the memory of one follower: follow it "
            "without --share, or remove meta.flush"
        )


def check_not_restored(stream: Stream) -> None:
    """Raises LakehouseError for a source whose restored position ingestion cannot go on from, with the reason."""
    if stream.system_identifier.startswith(RESTORED):
        raise LakehouseError(
            f"source {stream.source!r} was {stream.system_identifier}: ingestion cannot go on from the restored "
            f"position, and `lakehouse ingest --recover {stream.source}` makes that good"
        )


def check_same_kind(stream: Stream | None, kind: str) -> None:
    """Raises LakehouseError for a source that was of another kind, whose positions are of another type."""
    if stream is None or stream.kind == kind:
        return
    name, was = stream.source, f"source {stream.source!r}: it was ingested as kind {stream.kind}, and is declared as"
    anew = (
        f"`lakehouse ingest --recover {name}` begins it anew once `lakehouse remove {name} --drop-tables` was run with "
        "the former kind's connection"
    )
    if (stream.kind, kind) in MOVES:
        says = f"run `lakehouse ingest --move {name}`, or declare the former kind again"
        raise LakehouseError(f"{was} {kind}: {says}; {anew}")
    raise LakehouseError(
        f"{was} {kind}: one raw table does not mix these kinds: declare the tables as a source of another name; {anew}"
    )


def source_of(settings: Settings, name: str, seconds: float | None = None, stop: Event | None = None) -> Source[Any]:
    """The source of that name; it waits so long for others' transactions, or until `stop` is set.

    The module of a kind is known by its name alone, so that nobody who imports this one depends on a kind.
    """
    try:
        kind = import_module(KINDS[settings.connection(name).kind])
    except ModuleNotFoundError as error:
        raise (LakehouseError(f"source {name!r}: {what}") if (what := missing_extra(error)) else error) from None
    made: Source[Any] = kind.source(settings, name, seconds, stop or Event())
    return made


def check_source(settings: Settings, declared: Declared) -> list[Finding]:
    """What is in the way of a source's ingestion, what prepare is going to do, and what is worth knowing.

    Raises LakehouseError where the declaration and the connection are not of one kind.
    """
    check_kind(settings, declared)
    module = import_module(CHECKS[declared.kind])
    positions = known_positions(settings, declared.name)
    declared_ones = {table.name: positions[table.name] for table in declared.tables if table.name in positions}
    found: list[Finding] = [*module.check_source(settings, declared), *of_parked(declared.name, declared_ones)]
    return sorted(found, key=lambda finding: ORDER[finding.weight])


def check_former_slot(settings: Settings, name: str, stream: Stream) -> None:
    """Raises LakehouseError unless the database behind a source of topics has the slot that the stream was read from,
    and is the same database still."""
    _handover().check_slot_is_there(settings.behind(name), name, stream)


def let_go_of_slot(settings: Settings, name: str, slot: str) -> None:
    """Drops a slot that is read no more, in the database of a source of any kind; raises LakehouseError."""
    _handover().let_go(settings.behind(name), name, slot)


def unread_slots(settings: Settings, name: str, own: Collection[str]) -> tuple[str, ...]:
    """The slots of the database behind a source of topics, but for the lake's `own`, where nobody reads any of them;
    raises LakehouseError where it cannot be asked."""
    found: tuple[str, ...] = import_module("ingestion.sources.debezium.connector").unread_slots(settings, name, own)
    return found


def _handover() -> Any:
    return import_module("ingestion.sources.postgres.handover")
