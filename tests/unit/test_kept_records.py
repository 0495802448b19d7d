"""Records that are kept aside hold no value of a column that is left out, or masked as null; all else is as it came."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from ingestion.schema.evolve import Truncates
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import writable_metadata
from ingestion.sources.base import Piece
from ingestion.sources.postgres.pgoutput import Decoder
from ingestion.sources.postgres.pgoutput.tuples import without
from ingestion.sources.postgres.records import PgoutputRecords
from ingestion.tasks.changes import land_piece
from ingestion.tasks.lanes import Findings, Lanes
from ingestion.tasks.replay import ReplayPlan, ReplayResult, merged, replay
from tests.unit import pgoutput_encode as wire

COLUMNS = (("id", True), ("card", False), ("salary", False), ("email", False), ("city", False))
NAMES = [name for name, _ in COLUMNS]
GONE = frozenset({"card", "salary"})
SECRET, MASKED, DIGESTED, CITY = "4111-1111", "90,000", "ann@example.com", "Brno"
FULL, LEFT = ["7", SECRET, MASKED, DIGESTED, CITY], ["7", None, None, DIGESTED, CITY]


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (wire.insert(1, FULL), wire.insert(1, LEFT)),
        (wire.update(1, FULL), wire.update(1, LEFT)),
        (wire.update(1, FULL, FULL, b"O"), wire.update(1, LEFT, LEFT, b"O")),
        (wire.update(1, ["8", ..., None, ..., CITY]), wire.update(1, ["8", ..., None, ..., CITY])),
        (wire.delete(1, ["7", None, None, None, None]), wire.delete(1, ["7", None, None, None, None])),
        (wire.delete(1, FULL, b"O"), wire.delete(1, LEFT, b"O")),
        (wire.truncate(1), wire.truncate(1)),
        (b"I\0\0\0\1Nbroken", b"I\0\0\0\1Nbroken"),
        (wire.insert(1, ["7", SECRET]), wire.insert(1, ["7", SECRET])),
    ],
)
def test_only_the_values_of_withheld_columns_become_null(message: bytes, kept: bytes) -> None:
    assert without(message, NAMES, GONE) == kept


def test_a_parked_tables_records_are_spooled_without_what_must_not_land(tmp_path: Path) -> None:
    """They stood in the spool as the slot had sent them, for everybody who reads `meta.spool`."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "meta"):
        catalog.create_namespace(namespace)
    raw = catalog.create_table("raw_shop.people", pa.schema([("id", pa.int64())]))
    facts = TableFacts(1, 1, "r", "f", ("id",), ())
    target = TableTarget(
        "shop", "people", writable_metadata(raw, "c"), (), (facts,), frozenset({"card"}),
        {"salary": "null", "email": "sha256"}, ("id",), "error", 0, 0, datetime.now(UTC),
    )  # fmt: skip
    stream = [
        wire.begin(10), wire.relation(1, COLUMNS, "f"), wire.insert(1, FULL), wire.update(1, FULL, FULL, b"O"),
        wire.truncate(1), wire.delete(1, FULL, b"O"), wire.commit(10),
    ]  # fmt: skip
    assert [row[2] for row in kept(catalog, target, stream)] == [
        wire.insert(1, LEFT), wire.update(1, LEFT, LEFT, b"O"), wire.truncate(1), wire.delete(1, LEFT, b"O"),
    ]  # fmt: skip
    plain = replace(target, excluded=frozenset(), mask={"email": "sha256"})
    assert [row[2] for row in kept(catalog, plain, stream)] == [*stream[2:6]]
    assert [row[:2] for row in kept(catalog, target, stream)] == [row[:2] for row in kept(catalog, plain, stream)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("both_land", [False, True])
def test_a_relation_that_another_table_was_before_lands_in_the_one_that_it_is_now(
    tmp_path: Path, turned: bool, both_land: bool
) -> None:
    """`orders` was renamed while it was paused and made again, and `orders_2023` declared: its rows went to the spool
    as the former's, and the position of the latter went on without them."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "meta"):
        catalog.create_namespace(namespace)
    raw = catalog.create_table("raw_shop.any", pa.schema([("id", pa.string())]))
    columns = (ColumnFacts("id", 1, "text", 25, "text", "b", -1, 25, -1, "textout", lake="id"),)
    renamed, made_again = (TableFacts(oid, oid, "r", "d", ("id",), columns) for oid in (1, 2))
    targets = [
        TableTarget(
            "shop", name, writable_metadata(raw, "c"), columns, versions, frozenset(), {}, ("id",), "error",
            0, 1, datetime.now(UTC),
        )
        for name, versions in (("orders", (renamed, made_again)), ("orders_2023", (renamed,)))
    ]  # fmt: skip
    spool = ensure_meta(catalog, "spool")
    lanes = Lanes(
        targets[::-1] if turned else targets, {"spool": writable_metadata(spool, "c")}, spool.io, 1 << 20,
        PgoutputRecords(), {} if both_land else {"orders": "paused by the user"},
    )  # fmt: skip
    messages = pa.array(
        [wire.begin(10), wire.relation(1, [("id", True)]), wire.insert(1, ["7"]), wire.relation(2, [("id", True)]),
         wire.insert(2, ["8"]), wire.commit(10)], pa.binary(),
    )  # fmt: skip
    decoder = Decoder(1, None, lanes.landing)
    batches = decoder.feed(messages)
    land_piece(lanes, Piece(batches, partial(decoder.pick, messages)))
    written, files, noticed = lanes.close()
    assert not noticed
    rows = [
        row
        for file in files.get("spool", ())
        for row in pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()
    ]
    landed = {each.name: each.operations for each in written}
    assert landed == {"orders_2023": {"c": 1}} | ({"orders": {"c": 1}} if both_land else {})
    assert [(row["table"], row["message"]) for row in rows] == (
        [] if both_land else [("orders", wire.insert(2, ["8"]))]
    )


def test_a_table_kept_aside_whose_relation_is_another_table_for_a_while_needs_a_resync(tmp_path: Path) -> None:
    """`orders` was dropped and `sales` renamed to it: what was committed while it was `sales` landed in `orders` too,
    and once it was called `sales` again that table went on without it."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("raw_shop")
    raw = catalog.create_table("raw_shop.any", pa.schema([("id", pa.string())]))
    dropped, renamed = (TableFacts(oid, oid, "r", "d", ("id",), ()) for oid in (1, 2))
    targets = [
        TableTarget(
            "shop", name, writable_metadata(raw, "c"), (), versions, frozenset(), {}, ("id",), "error", 0, 1,
            datetime.now(UTC),
        )
        for name, versions in (("orders", (dropped, renamed)), ("sales", (renamed, renamed)))
    ]  # fmt: skip
    _, _, noticed = Lanes(targets, {}, raw.io, 1 << 20, PgoutputRecords(), {"sales": "it is renamed"}).close()
    assert {name: found.stale for name, found in noticed.items()} == {
        "sales": "its relation was declared as another table for a while"
    }


def test_a_truncate_of_two_tables_that_one_cannot_read_is_kept_of_that_one_alone(tmp_path: Path) -> None:
    """It landed in the other one, and a replay would have landed it there again."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "meta"):
        catalog.create_namespace(namespace)
    raw = catalog.create_table("raw_shop.any", pa.schema([("id", pa.string())]))
    columns = (ColumnFacts("id", 1, "text", 25, "text", "b", -1, 25, -1, "textout", lake="id"),)
    targets = [
        TableTarget(
            "shop", name, writable_metadata(raw, "c"), columns, (TableFacts(oid, oid, "r", "d", ("id",), known),),
            frozenset(), {}, ("id",), "error", 0, 1, datetime.now(UTC),
        )
        for oid, (name, known) in enumerate((("orders", columns), ("people", ())), 1)
    ]  # fmt: skip
    kept_in = ensure_meta(catalog, "quarantine")
    templates = {"quarantine": writable_metadata(kept_in, "c")}
    lanes = Lanes(targets, templates, kept_in.io, 1 << 20, PgoutputRecords())
    relations = [wire.relation(oid, [("id", True)]) for oid in (1, 2)]
    messages = pa.array([wire.begin(10), *relations, wire.truncate(1, 2), wire.commit(10)], pa.binary())
    decoder = Decoder(1, None, lanes.landing)
    land_piece(lanes, Piece(decoder.feed(messages), partial(decoder.pick, messages)))
    written, files, noticed = lanes.close()
    assert {each.name: each.operations for each in written} == {"orders": {"t": 1}}
    (file,) = files["quarantine"]
    rows = pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()
    assert [row["table"] for row in rows] == ["people"] and noticed["people"].stale


def kept(catalog: SqlCatalog, target: TableTarget, stream: list[bytes]) -> list[tuple[int, int, bytes]]:
    """Commit LSN, place and message of what a task keeps of the stream while the table is parked."""
    spool = ensure_meta(catalog, "spool")
    templates, aside = {"spool": writable_metadata(spool, "c")}, {"people": "parked"}
    lanes = Lanes([target], templates, spool.io, 1 << 20, PgoutputRecords(), aside)
    messages, decoder = pa.array(stream, pa.binary()), Decoder(1, None, lanes.landing)
    assert decoder.feed(messages) == []
    lanes.keep("spool", decoder.pick(messages, lanes.aside))
    _, files, _ = lanes.close()
    (file,) = files["spool"]
    rows = pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()
    return [(row["commit_lsn"], row["seq"], row["message"]) for row in rows]


@pytest.mark.parametrize("unknown", [(), ("of_a_newer_release",)])
def test_kept_records_of_a_relation_that_was_made_again_stay(tmp_path: Path, unknown: tuple[str, ...]) -> None:
    """Also in tables that a newer release has given columns. Why they were kept first stays, however often they are
    replayed: it was overwritten, and with it what had been wrong with a dead letter."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "meta"):
        catalog.create_namespace(namespace)
    for place, column in itertools.product(("spool", "quarantine", "unrepresentable"), unknown):
        with ensure_meta(catalog, place).update_schema() as update:
            update.add_column(column, StringType())
            update.move_first(column)
    raw = catalog.create_table("raw_shop.people", pa.schema([("id", pa.int64())]))
    target = TableTarget(
        "shop", "people", writable_metadata(raw, "c"), (), (TableFacts(1, 1, "r", "d", ("id",), ()),), frozenset(), {},
        ("id",), "error", 0, 1, datetime.now(UTC),
    )  # fmt: skip
    meta = {name: ensure_meta(catalog, name) for name in ("spool", "quarantine", "unrepresentable")}
    templates = {name: writable_metadata(table, "c") for name, table in meta.items()}
    stream = [wire.begin(10), wire.relation(1, COLUMNS), wire.insert(1, FULL), wire.commit(10)]
    lanes = Lanes([target], templates, raw.io, 1 << 20, PgoutputRecords(), {"people": "parked"})
    messages, decoder = pa.array(stream, pa.binary()), Decoder(1, None, lanes.landing)
    decoder.feed(messages)
    lanes.keep("spool", decoder.pick(messages, lanes.aside))
    with meta["spool"].transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(lanes.close()[1]["spool"][0])
    spool = meta["spool"].refresh()
    made_again = replace(target, versions=(TableFacts(2, 2, "r", "d", ("id",), ()),))
    tasks = tuple(spool.scan().plan_files())
    begun_since = datetime.now(UTC) + timedelta(seconds=1)
    of_former = ReplayPlan(
        spool.metadata.model_dump_json(), tasks, made_again, templates, {}, 1 << 20, PgoutputRecords(), begun_since
    )
    assert replay(of_former).meta_files == {}, "a record of a table that was dropped is none of this one"
    plan = ReplayPlan(spool.metadata.model_dump_json(), tasks, made_again, templates, {}, 1 << 20, PgoutputRecords())
    quarantine = meta["quarantine"]
    for _ in range(2):
        result = replay(plan)
        assert not result.written
        (file,) = result.meta_files["quarantine"]
        (row,) = pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()
        assert row["message"] == wire.insert(1, FULL)
        assert row["reason"] == "parked; of a relation that the table was before"
        with quarantine.transaction() as transaction, transaction.update_snapshot().overwrite() as again:
            again.append_data_file(file)
        tasks = tuple(task for task in quarantine.refresh().scan().plan_files() if task.file == file)
        plan = replace(plan, metadata_json=quarantine.metadata.model_dump_json(), tasks=tasks)


def test_what_was_noticed_of_records_of_one_epoch_is_not_lost_by_those_of_another() -> None:
    """The last epoch's findings were taken for all: a table that had to be parked or resynced went on."""
    truncates = Truncates(frozenset({7}))
    one = ReplayResult((), {}, {"people": Findings(stale="of no form", truncates=truncates), "orders": Findings("no")})
    other = ReplayResult((), {}, {"people": Findings(parked="refused", truncates=truncates)})
    both = {"people": Findings("refused", "of no form"), "orders": Findings("no")}
    assert merged([one, other]).noticed == merged([other, one]).noticed == both
    assert merged([other]).noticed == other.noticed
