"""Moves a source from its slot to topics of Debezium, or back: the next epoch, in which its tables go on.

To topics, they go on where the slot has got to, transaction by transaction. Back to a slot, each table is compared
with the database at a consistent point, as in a recovery. All is one transaction of the state, beside which only the
former slot is dropped, so that whatever is killed on the way can be run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.types import IcebergType

from ingestion.pipeline.cycle import connections
from ingestion.pipeline.session import Session
from ingestion.pipeline.survey import declared_fingerprint, inspect
from ingestion.run.api import bring_up
from ingestion.run.recover import begin_next_epoch
from ingestion.run.reports import SourceReport
from ingestion.schema.evolve import lake_type, source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.types import target_type
from ingestion.schema.types.model import Form
from ingestion.sink.raw_tables import add_metadata
from ingestion.sources.base import NEAR, Brought, OpenSource, TakesOver
from ingestion.sources.kinds import MOVES, check_former_slot, check_kind, check_same_kind, let_go_of_slot
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.described import Known
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.move")
Brings = Callable[[ColumnFacts], Brought]
SEVERAL_TEXTS = {"citext", "bpchar"}  # of values that are equal


def move_source(
    settings: Settings, declarations: Declarations, source: str, spark: SparkSession | None = None
) -> SourceReport:
    """Moves a source to the kind that is declared now, then brings it up to date; again, it goes on where it stopped.

    Raises LakehouseError, with nothing changed, where a table is not in the cuts, where the topics do not reach back
    to what the slot has brought, and while another writer holds the lease.
    """
    declared = declarations.source(source)
    check_kind(settings, declared)
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream = store.read_stream(states, source)
        if stream is None:
            raise LakehouseError(f"source {source!r}: nothing was ingested of it yet: `ingest --once` begins it")
        if stream.kind != declared.kind:
            if (stream.kind, declared.kind) not in MOVES:
                check_same_kind(stream, declared.kind)  # which says what to do instead
            lease = leases.take_over(states, source, settings.ingestion.lease_seconds)
            with leases.kept_alive(settings, lease), closing(open_catalog(settings)) as catalog:
                running = spark or spark_session(settings, "lakehouse-ingest")
                session = Session(settings, catalog, running, lease, declared)
                _check_tables(states, declared)
                if declared.kind == "postgres":
                    _drop_former_slot(settings, states, source)
                    _check_no_slot(session)
                    begin_next_epoch(session, kind="postgres")  # each table is compared at a point of the new slot
                else:
                    _to_topics(session, stream)
        if declared.kind == "debezium":
            _drop_former_slot(settings, states, source)
    return bring_up(settings, declarations, source, spark)


def _check_tables(states: CatalogConnection, declared: Source) -> None:
    """What is kept aside is in the form of the source that it came from."""
    positions = store.read_positions(states, declared.name)
    for table in declared.tables:
        position = positions.get(table.name)
        if position is None or position.state != "streaming":
            state = position.state if position else "not ingested yet"
            raise LakehouseError(
                f"source {declared.name!r}, table {table.name!r}: it is {state}: a source is moved while all its "
                "tables stream: declare the former kind, and ingest or resume the table first; nothing has changed"
            )


def _check_no_slot(session: Session) -> None:
    """A slot that somebody else made is not dropped."""
    with connections(session) as (source, _):
        if source.retention(None).state != "missing":
            variable = f"LAKEHOUSE_SOURCES__{session.name.upper()}__SLOT"
            raise LakehouseError(
                f"source {session.name!r}: its slot exists but this lake did not make it: set another name with "
                f"{variable}, or drop it if nothing else reads it; nothing has changed"
            )


def _to_topics(session: Session, stream: store.Stream) -> None:
    name, declared = session.name, session.source
    check_former_slot(session.settings, name, stream)
    with connections(session) as (source, states):
        positions = store.read_positions(states, name)
        found = source.fingerprints(declared.tables)
        known, recent = dict[str, Known](), set[int]()
        assert isinstance(source, TakesOver)
        for table in declared.tables:
            fingerprint = declared_fingerprint(table, found[table.name])
            facts = _described(source, table, fingerprint)
            _check_columns(session, table, facts, positions[table.name].landed)
            _check_declared(table, positions[table.name].followed, facts)
            _check_forms(table, positions[table.name].followed, facts, source.brings)
            _tell_forms(table, positions[table.name].followed, source.brings)
            known[table.name] = Known((facts,), fingerprint, former=positions[table.name].facts)
            recent |= _recent(session, table, stream)
        if any(positions[table.name].position != stream.position for table in declared.tables):
            raise LakehouseError(
                f"source {name!r}: its tables are not equally far: ingest it once more; nothing changed"
            )
        taken = source.take_over([one.versions[-1] for one in known.values()], int(stream.position), recent)
        for table in declared.tables:
            add_metadata(session.catalog.load_table(table.identifier), table)
        with states.transaction():
            leases.check(states, session.lease, session.limits.lease_seconds)
            store.restart_stream(states, name, stream.slot, taken.cluster, taken.own)
            store.hand_over(states, name, declared.kind, taken.position, known)


def _described(source: OpenSource, table: RawTable, fingerprint: str) -> TableFacts:
    outlook = inspect(source, table, fingerprint, None, {})
    if outlook.facts is None or outlook.problem is not None:
        raise LakehouseError(f"{outlook.problem}; nothing has changed")
    return outlook.facts


def _check_columns(session: Session, table: RawTable, facts: TableFacts, landed: frozenset[str]) -> None:
    """The topics' columns are those of the raw table, none less, in their types."""
    where, iceberg = f"source {table.source!r}, table {table.name!r}", session.catalog.load_table(table.identifier)
    there = {field.name: field.field_type for field in iceberg.schema().fields}
    if lacking := sorted(landed - {column.lake for column in facts.columns}):
        raise LakehouseError(
            f"{where}: column {', '.join(lacking)} comes by the slot and is not declared for the topics: declare it; "
            "nothing has changed"
        )
    for column in facts.columns:
        if there.get(column.lake, wanted := lake_type(table, column)) != wanted:
            raise LakehouseError(
                f"{where}: column {column.lake} is {there[column.lake]} in the lake, and declared as "
                f"{column.declared_type}: declare the type that the database has; nothing has changed"
            )
    if new := sorted({column.lake for column in facts.columns} - landed):
        raise LakehouseError(
            f"{where}: column {', '.join(new)} has not come by the slot: declare it after the move; nothing has changed"
        )


def _check_declared(table: RawTable, by_slot: TableFacts, facts: TableFacts) -> None:
    """Key and masks are those of the rows that have landed by the slot: topics cannot restate them."""
    if by_slot.keyed_by is not None and _declared(by_slot) != _declared(facts):
        raise LakehouseError(
            f"source {table.source!r}, table {table.name!r}: its key or masks are declared otherwise than rows have "
            "landed by the slot: declare the slot again, ingest it once, and move then; nothing has changed"
        )


def _declared(facts: TableFacts) -> tuple[set[str], dict[str, str]]:
    return set(facts.told_apart_by), {column.name: column.mask for column in facts.columns if column.mask}


def _check_forms(table: RawTable, by_slot: TableFacts, facts: TableFacts, brings: Brings) -> None:
    """Each column that lands has to come. Rows are told apart by the text of their key, and a digest is that of a text:
    topics have to bring the same."""
    declared, key = {column.name: column for column in facts.columns}, {*table.key, *by_slot.told_apart_by}
    for column in by_slot.columns:
        now, found = declared.get(column.name), brings(column)
        if now is None or now.mask == "null" or column.name in table.raw.exclude:
            continue
        where = f"source {table.source!r}, table {table.name!r}: column {column.name} ({column.declared_type})"
        if not found.lands:
            raise LakehouseError(f"{where} {found.otherwise}; nothing has changed")
        if column.name not in key and now.mask != "sha256":
            continue
        if found.otherwise:
            has = "is in the key, by which a row" if column.name in key else "is masked, by which a value"
            raise LakehouseError(
                f"{where} comes {found.otherwise} from topics, and {has} would be another one; nothing has changed"
            )
        if _read_as(column) != _read_as(now):
            raise LakehouseError(
                f"{where} is declared as {now.declared_type}: declare the type that the database has; nothing has "
                "changed"
            )


def _read_as(column: ColumnFacts) -> tuple[IcebergType, Form, str]:
    """What tells how values of a column are printed, and which of them are equal."""
    target = target_type(source_type(column))
    return target.iceberg, target.form, column.type_name if column.type_name in SEVERAL_TEXTS else ""


def _tell_forms(table: RawTable, by_slot: TableFacts, brings: Brings) -> None:
    """Tells of columns whose text is another one by topics: a row that does not change keeps that of the slot."""
    for column in by_slot.columns:
        if (otherwise := brings(column).otherwise) and column.name in {c.name for c in table.columns}:
            log.warning(
                "source %r, table %r: values of column %s (%s) come %s from now on, those that have landed stay as "
                "Postgres prints them: a cast in parsed has to take both",
                table.source, table.name, column.name, column.declared_type, otherwise,
            )  # fmt: skip


def _recent(session: Session, table: RawTable, stream: store.Stream) -> set[int]:
    """The transactions whose commits are just below the stream's position."""
    iceberg = load_table(session.catalog, *table.identifier)
    assert iceberg is not None
    since = GreaterThanOrEqual(term="_commit_lsn", value=int(stream.position) - NEAR)
    rows = iceberg.scan(
        row_filter=And(EqualTo(term="_epoch", value=stream.epoch), since), selected_fields=("_xid",)
    ).to_arrow()
    return {xid & 0xFFFFFFFF for xid in rows.column("_xid").to_pylist() if xid is not None}


def _drop_former_slot(settings: Settings, states: CatalogConnection, source: str) -> None:
    """Of a move to topics, which is killed before its end or may not do so, the slot is left."""
    stream = store.read_stream(states, source)
    if stream is not None and stream.slot:
        let_go_of_slot(settings, source, stream.slot)
        store.note_slot(states, source, "")
