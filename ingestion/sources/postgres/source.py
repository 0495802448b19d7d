"""Postgres as a source: a slot that pgoutput decodes, and exported snapshots. The base's `Source` and `OpenSource`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import psycopg

from ingestion.schema.compared import ComparedColumn, KeyRange, Order
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.positions import Lsn
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import LiveStream, Point, Retention, SourceNow
from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres import live as lives
from ingestion.sources.postgres.catalog import describe
from ingestion.sources.postgres.catalog.enforced import check_key_is_one
from ingestion.sources.postgres.comparison import ComparedHeap, StatementReader, characters_sql, key_bounds
from ingestion.sources.postgres.configured import Configured
from ingestion.sources.postgres.connection import source_url
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.history.witness import Witness, put_witness
from ingestion.sources.postgres.points import Blocked, Patience, consistent_point
from ingestion.sources.postgres.points.blockers import spoken, who_alters_tables
from ingestion.sources.postgres.points.together import heap_bytes
from ingestion.sources.postgres.reading import SlotReader
from ingestion.sources.postgres.records import PgoutputRecords
from ingestion.sources.postgres.snapshot import (
    HeapReader,
    check_readable,
    ordered_rows,
    page_ranges,
    plan_chunks,
    select_sql,
    typed_columns,
)
from ingestion.sources.postgres.standby import check_standby, primary_of, source_now
from ingestion.sources.postgres.stream import check_made_here, check_slot, check_stream, ensure_stream
from ingestion.state import store
from ingestion.state.chunks import Chunk
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, SourceConnection
from lakehouse.settings import Settings

WAL_PAGE_BYTES = 64 * 1024  # the largest that Postgres can be built with; it is 8 kB nearly everywhere


def source(settings: Settings, name: str, seconds: float | None, stop: Event) -> "PostgresSource":
    """The source of that name, which waits for others' transactions so long, or until `stop` is set."""
    return PostgresSource(settings, name, Patience(settings, name, seconds, stop))


class PostgresSource(Configured):
    """One source in Postgres."""

    holds_tables = True

    @contextmanager
    def open(self) -> Iterator["OpenPostgres"]:
        """With a connection of its own; raises LakehouseError where the source cannot be reached."""
        with (
            src.connect_source(self.settings, self.name) as connection,
            primary_of(self.settings, self.name, connection) as primary,
        ):
            yield OpenPostgres(self, connection, primary)

    @contextmanager
    def snapshot(
        self, tables: Sequence[RawTable], before_try: Callable[[], None] = lambda: None
    ) -> Iterator[Point[Lsn]]:
        """A consistent point of the tables; see `consistent_point`."""
        with consistent_point(self.settings, self.name, tables, self.patience, before_try) as point:
            yield point


class OpenPostgres:
    """A source with a connection, and one to its primary where it is a standby; all may raise LakehouseError."""

    holds_tables = PostgresSource.holds_tables

    def __init__(self, of: PostgresSource, connection: SourceConnection, primary: SourceConnection) -> None:
        self._of = of
        self.connection = connection
        self._primary = primary
        self.snapshot = of.snapshot

    def records(self, described: Mapping[str, TableFacts]) -> PgoutputRecords:
        """Messages of the stream, which tell how they are to be read."""
        return PgoutputRecords()

    def check(self, states: CatalogConnection, live: LiveStream[Lsn] | None = None) -> store.Stream:
        """The stream, whose slot and identity are those that the lake was read from."""
        src.check_server(self.connection, self._of.name)
        return ensure_stream(self._of, self.connection, self._primary, states, live)

    def check_only(self, states: CatalogConnection) -> None:
        """Raises as `check` would, but for what a read of the slot alone shows; changes nothing, and ends no reader."""
        of = self._of
        src.check_server(self.connection, of.name)
        publication = src.publication_oid(of.settings, self.connection, of.name, of.publication)
        if of.on_standby:
            check_standby(of.settings, of.name, self.connection, self._primary)
        else:
            src.check_standbys(self.connection, of.name)
        check_stream(of, self.connection, self._primary, states, publication)

    def check_again(self, stream: store.Stream, live: LiveStream[Lsn] | None) -> None:
        """Raises LakehouseError where the publication or the slot changed since `check`."""
        of = self._of
        if src.publication_oid(of.settings, self.connection, of.name, of.publication) != stream.publication_oid:
            raise LakehouseError(f"source {of.name!r}: its publication changed during the read; nothing was published")
        if live is None:
            check_slot(of, stream, src.read_slot(self.connection, of.slot))

    def now(self) -> SourceNow[Lsn]:
        """The flushed end of the WAL."""
        return source_now(self._of.name, self.connection, self._primary)

    def committed(self) -> Lsn:
        """Where the next record of the WAL will be: some transactions do not wait for the flush."""
        return src.committed_lsn(self._primary)

    def retention(self, stream: store.Stream | None) -> Retention:
        """The WAL that the slot keeps; its state is Postgres's wal_status, or why it is of no use."""
        slot = src.read_slot(self.connection, stream.slot if stream else self._of.slot)
        if slot is None:
            return Retention()
        return Retention(slot.lag_bytes, slot.active_pid is not None, slot.invalid or slot.wal_status, slot.is_sound)

    def stop_between(self, reached: Lsn, end: Lsn, max_bytes: int) -> Lsn:
        """The end, or a page's boundary about `max_bytes` behind `reached`."""
        return Lsn(next_stop(reached, end, max_bytes))

    def distance(self, start: Lsn, end: Lsn) -> int:
        """Bytes of WAL."""
        return end - start

    def fingerprints(self, tables: Iterable[RawTable]) -> dict[str, str]:
        """By table, a digest of all that `inspect` reads."""
        with self._names_who_alters():
            return describe.fingerprints(self.connection, tables, self._of.publication)

    def inspect(self, table: RawTable, oid: int | None) -> tuple[TableFacts | None, TableProblem | None]:
        """A table's facts, and what is in the way of it; by its oid where it is not called as declared."""
        with self._names_who_alters():
            facts, problem = describe.read_facts(self.connection, table, self._of.publication, oid)
        if facts is not None and self._of.on_standby:  # which shows a commit before it counts it as replayed
            facts = replace(facts, lsn=int(self.committed()))
        return facts, problem

    @contextmanager
    def _names_who_alters(self) -> Iterator[None]:
        """From Postgres 16 on, asking what a publication has waits for whoever alters any table of it."""
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            with src.connect_source(self._of.settings, self._of.name) as beside:
                waited = spoken(src.lock_timeout_seconds(beside))
                who = "; ".join(who_alters_tables(beside)) or "a transaction that has just ended"
            raise Blocked(
                f"source {self._of.name!r}: describing its tables waited {waited} for a lock, held up by {who} "
                "(nothing was lost; the next cycle tries again)"
            ) from None

    def name_of(self, oid: int) -> tuple[str, str] | None:
        """The present name of a relation, or None when it was dropped."""
        return describe.name_of(self.connection, oid)

    def check_readable(self, table: RawTable, facts: TableFacts) -> None:
        """Raises TableProblem for columns that the role may not read."""
        check_readable(self.connection, table, facts)

    def check_key(self, table: RawTable, facts: TableFacts) -> None:
        """Raises TableProblem when the role may not read each column, or several rows have one declared key."""
        check_readable(self.connection, table, facts)
        check_key_is_one(self.connection, table, facts)

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """In one read-only transaction; row-level security is an error, not a filter."""
        self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        except psycopg.Error as error:
            raise LakehouseError(f"source {self._of.name!r}: {str(error).strip().splitlines()[0]}") from None
        self.connection.execute("ROLLBACK")

    def ordered_rows(
        self, table: RawTable, columns: Sequence[ColumnFacts], order: Sequence[tuple[ColumnFacts, Order]]
    ) -> Iterator[Sequence[str | None]]:
        """All rows, each value as its type's output function prints it."""
        return ordered_rows(self.connection, table.relation, columns, order)

    def compared(
        self, table: RawTable, facts: TableFacts, columns: Sequence[ComparedColumn], key: Sequence[ComparedColumn],
        point: Point[Lsn], key_range: KeyRange | None,
    ) -> ComparedHeap:  # fmt: skip
        """The table's heap on the point's snapshot. Raises TableProblem for columns that the role may not read."""
        check_readable(self.connection, table, facts)
        of, limits = self._of, self._of.settings.ingestion
        where = f"source {of.name!r}, table {table.name!r}"
        conditions, bounds = key_bounds(self.connection, facts, key[0], key_range, where)
        url = source_url(of.settings.source(of.name))
        reader = StatementReader(of.name, table.name, url, point.snapshot, limits.batch_bytes)
        chunks = tuple(plan_chunks(self.connection, of.name, facts, limits.snapshot_chunk_bytes))
        characters = characters_sql(self._encoding)
        return ComparedHeap(reader, tuple(columns), tuple(key), chunks, conditions, bounds, characters)

    def sizes(self, tables: Sequence[RawTable]) -> dict[str, list[int]]:
        """Bytes of each table's heaps."""
        return heap_bytes(self.connection, tables)

    def ranges_of(self, size: int, chunk_bytes: int) -> int:
        """Into how many ranges a heap of that size is read."""
        return len(page_ranges(size, chunk_bytes))

    def ranges(self, facts: TableFacts, chunk_bytes: int) -> list[Chunk]:
        """The ranges of a table's heaps."""
        return plan_chunks(self.connection, self._of.name, facts, chunk_bytes)

    def row_reader(self, table: RawTable, facts: TableFacts, chunk: Chunk, point: Point[Lsn]) -> HeapReader:
        """Reads one of the ranges at the point."""
        of = self._of
        return HeapReader(
            source=of.name,
            table=table.name,
            url=source_url(of.settings.source(of.name)),
            chunk=chunk,
            select=select_sql(facts, chunk, typed_columns(facts, table.raw.mask)),
            select_text=select_sql(facts, chunk),
            snapshot=point.snapshot,
            batch_bytes=of.settings.ingestion.batch_bytes,
        )

    def change_reader(
        self, now: SourceNow[Lsn], live: LiveStream[Lsn] | None, described: Iterable[TableFacts] = ()
    ) -> SlotReader:
        """Reads what is committed below `now.position`: what the live stream has brought, else a peek."""
        of = self._of
        return SlotReader(
            source=of.name,
            url=self._stream_url(),
            server=0 if live else started_at(self.connection),
            slot=of.slot,
            publication=of.publication,
            upto_lsn=now.position,
            xid=now.xid,
            received=live.below(now.position) if live else None,
            batch_bytes=of.settings.ingestion.batch_bytes,
        )

    def remember(self, states: CatalogConnection, epoch: int, witness: object | None) -> None:
        """Keeps the newest transaction that was read."""
        if isinstance(witness, Witness):
            put_witness(states, self._of.name, epoch, witness)

    def confirm(self, position: Lsn, live: LiveStream[Lsn] | None = None) -> None:
        """Lets the slot pass what is below."""
        if live is None:
            src.advance_slot(self.connection, self._of.slot, position)
        else:
            live.confirm(position)

    def stream(self, position: Lsn, max_bytes: int) -> LiveStream[Lsn]:
        """A walsender from `position` on."""
        of, server = self._of, started_at(self.connection)
        return lives.LiveStream(self._stream_url(), of.slot, of.publication, position, max_bytes, server)

    def begin_anew(self, states: CatalogConnection) -> Callable[[CatalogConnection], None]:
        """Drops the slot, unless it is another lake's; what is returned forgets slot, cluster and positions."""
        of = self._of
        check_made_here(of, self.connection, store.read_stream(states, of.name))
        if src.read_slot(self.connection, of.slot) is not None:
            src.free_slot(self.connection, of.name, of.slot)
            src.drop_slot(self.connection, of.slot)
        publication = src.publication_oid(of.settings, self.connection, of.name, of.publication)
        cluster = src.identify(of.settings, of.name, self.connection)
        return lambda states: store.restart_stream(states, of.name, of.slot, cluster, publication)

    def _stream_url(self) -> str:
        """The source's URL for reading the slot.

        The server's own default of decoding memory is 64 MB; a transaction that outgrows it is sent unfinished, and
        costs the reader a file. A database in SQL_ASCII may hold what is not UTF-8; unless asked not to, the server
        would check it and refuse all.
        """
        settings = self._of.settings
        memory = f"{settings.ingestion.decoding_memory_bytes // 1024}kB"
        url = src.source_url(settings.source(self._of.name), logical_decoding_work_mem=memory)
        is_ascii = self._encoding == "SQL_ASCII"
        return url.replace("client_encoding=UTF8", "client_encoding=SQL_ASCII") if is_ascii else url

    @property
    def _encoding(self) -> str | None:
        """Of the database."""
        return self.connection.info.parameter_status("server_encoding")


def next_stop(reached: int, end: int, max_bytes: int) -> int:
    """The LSN up to which one publish reads: the end, or a page's boundary about `max_bytes` further on; never back.

    Postgres stops reading behind the first record that ends at or beyond the LSN it is given. Between a page's boundary
    and the first record on it is a header: an LSN within would let in a transaction that commits behind it.
    """
    pages = max((reached + max_bytes) // WAL_PAGE_BYTES, reached // WAL_PAGE_BYTES + 1)
    return max(reached, min(end, pages * WAL_PAGE_BYTES))
