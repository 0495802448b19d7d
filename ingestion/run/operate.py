"""What a user does to one table of a live pipeline. A follower goes by the new state at its next cycle."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ingestion.sources.kinds import source_of
from ingestion.state import lease as leases
from ingestion.state import live, store
from ingestion.state.store import TablePosition
from ingestion.state.transitions import may_move
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

PAUSED = "paused by the user"


@contextmanager
def nobody_ingests(settings: Settings, source: str) -> Iterator[None]:
    """Keeps the source from being ingested while the block runs; raises LakehouseError while somebody does that."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        lease = leases.take_over(states, source, settings.ingestion.lease_seconds)
    with leases.kept_alive(settings, lease):
        yield


def pause(settings: Settings, table: RawTable) -> None:
    """From now on the table's records go to the spool, and the table is in no cut. Raises LakehouseError."""

    def paused(table: RawTable, position: TablePosition) -> TablePosition:
        if not may_move("user", position.state, "paused"):
            raise _refusal(table, position, "only a table that streams can be paused")
        return replace(position, state="paused", reason=PAUSED)

    _change(settings, [table], paused)


def resume(settings: Settings, *tables: RawTable) -> None:
    """The next cycle lands what was spooled of the tables, then they stream again. Raises LakehouseError, with
    nothing changed, where one of them cannot be resumed."""

    def resumed(table: RawTable, position: TablePosition) -> TablePosition:
        if not may_move("user", position.state, "resuming"):
            raise _refusal(table, position, "only a parked or paused table can be resumed")
        return replace(position, state="resuming")

    _change(settings, tables, resumed)


def forget(settings: Settings, source: str, table: str, declared: Collection[str]) -> None:
    """Leaves a table that is declared no longer out of the cuts; its rows stay in the lake. Raises LakehouseError."""
    if table in declared:
        raise LakehouseError(
            f"source {source!r}, table {table!r}: it is declared: remove its declaration first, or pause it"
        )
    with store.connect_catalog(settings) as states, states.transaction():
        store.ensure_state(states)
        _lock(states, source)
        if table not in store.read_positions(states, source):
            raise LakehouseError(f"source {source!r}: the lake knows no table {table!r} of it")
        store.forget_positions(states, source, [table])
        store.revise(states, source)


def forget_source(settings: Settings, source: str) -> None:
    """Leaves no table of a source known, whose tables are about to be dropped: each needs a new snapshot. What the ids
    of its schema registry meant is forgotten too: it may be declared again with another one.

    The epoch is kept: a source that is ingested again later begins the next one, after the rows that vault tables have.
    """
    from ingestion.state.schemas import forget_schemas  # with Arrow's file systems, which no other command here needs

    with store.connect_catalog(settings) as states, states.transaction():
        store.ensure_state(states)
        _lock(states, source)
        store.forget_positions(states, source, list(store.read_positions(states, source)))
        live.forget(states, source)
        store.revise(states, source)
    forget_schemas(settings, source)


def forget_live(settings: Settings, source: str) -> None:
    """Of a source that nobody ingests any more, nothing is shown that is not published: nobody will publish it."""
    with store.connect_catalog(settings) as states, states.transaction():
        store.ensure_state(states)
        _lock(states, source)
        live.forget(states, source)


def read_anew(settings: Settings, *tables: RawTable) -> None:
    """The next cycle reads the whole of each table again, behind a truncate marker. Raises
    LakehouseError, with nothing changed, where one of them cannot be read again."""
    for table in tables:
        if not source_of(settings, table.source).holds_tables:
            raise LakehouseError(
                f"source {table.source!r}, table {table.name!r}: its events are read once: there is nothing to snapshot"
            )
    _change(settings, tables, lambda _, position: replace(position.forgotten, state="new", reason=None))


def _change(
    settings: Settings, tables: Sequence[RawTable], change: Callable[[RawTable, TablePosition], TablePosition]
) -> None:
    """All of them, or none."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        with states.transaction():
            for source in sorted({table.source for table in tables}):
                _lock(states, source)
                store.revise(states, source)
            for table in tables:
                position = store.read_positions(states, table.source, [table.name]).get(table.name)
                if position is None:
                    raise LakehouseError(f"source {table.source!r}, table {table.name!r}: it has not been ingested yet")
                store.put_position(states, table.source, change(table, position), "user")


def _lock(connection: CatalogConnection, source: str) -> None:
    """Keeps a publish from committing in between."""
    connection.execute("SELECT 1 FROM lakehouse.leases WHERE source = %s FOR UPDATE", (source,))


def _refusal(table: RawTable, position: TablePosition, rule: str) -> LakehouseError:
    return LakehouseError(f"source {table.source!r}, table {table.name!r}: it is {position.state}: {rule}")
