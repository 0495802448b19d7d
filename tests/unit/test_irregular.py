"""What a publish brings that a short text cannot follow, and what becomes of the table's view then."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType

from ingestion.mirrors import copies
from ingestion.schema.positions import Lsn
from ingestion.sink import publish as sink
from ingestion.sink.irregular import irregular
from ingestion.sink.publication import Cut, Publication, TableAppend
from ingestion.sink.writer import TableWriter, fitted, writable_metadata
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.lease import Lease, mirrors_of
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views import mirrored
from lakehouse.catalog.views.current_views import CUT, MARK, MIRROR, TAIL, view_of, with_past
from lakehouse.catalog.views.regular import KEPT, newest_tag
from lakehouse.catalog.views.tags import REGULAR, after_rewrites, tags_of
from lakehouse.catalog.views.tags import VIEW as VIEW_TAGS
from lakehouse.catalog.views.view_versions import LONG, NextView, Plain, current_version, with_version, write_view
from lakehouse.catalog.writing.commit import move_pointer, until_committed
from lakehouse.declarations.policies import ExpirePolicy
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings
from lakehouse_backup.views import fitting_views
from maintenance.actions.expire_snapshots import decide

NOW = datetime(2026, 11, 26, tzinfo=UTC)
RAW, VIEW = ("raw_shop", "items"), view_of("shop", "items")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "_op", StringType(), required=False),
    NestedField(3, "_commit_lsn", LongType(), required=False),
    NestedField(4, "_unchanged", ListType(5, StringType(), element_required=False), required=False),
)
RULE = ExpirePolicy(older_than_hours=1, retain_last=1, keep_metadata_files=5)
PAST, LONG_TEXT = "SELECT 1 AS id", "SELECT 2 AS id"
SHORT_TEXT = with_past(PAST, TAIL, "SELECT 3 AS id", "\nSELECT 3 AS id")
PLAIN_TEXT = with_past(PAST, MIRROR, "SELECT 4 AS id", "\nSELECT 4 AS id")


class Shop:
    """A raw table, its current view, and who may publish: the follower and the refresh."""

    def __init__(self, settings: Settings, catalog: LakeCatalog, states: Any) -> None:
        self.settings, self.catalog, self.states = settings, catalog, states
        self.lease, self.mirrors = self._lease("shop"), self._lease(mirrors_of("shop"))
        store.create_stream(states, "shop", "slot", store.Cluster("7", 1), 2)
        catalog.create_namespace_if_not_exists("raw_shop")
        catalog.create_table(RAW, SCHEMA)
        self.number = 0

    def _lease(self, name: str) -> Lease:
        lease = leases.acquire(self.states, name, 600, "once")
        assert lease is not None
        return lease

    def append(self, op: str = "u", lsn: int = 10, left_out: list[str] | None = None) -> TableAppend:
        """A version, written as a task writes it."""
        table = self.catalog.load_table(RAW)
        writer = TableWriter(writable_metadata(table, "c"), table.io, 1 << 20)
        rows = {"id": [1, 2], "_op": [op] * 2, "_commit_lsn": [lsn - 1, lsn], "_unchanged": [None, left_out]}
        writer.add(fitted(pa.table(rows), writer.schema))
        return TableAppend(RAW, writer.close(), {f"lakehouse.rows.{op}": "2"})

    def publish(self, *appends: TableAppend, tables: tuple[str, ...] = ("items",), lsn: int = 100) -> None:
        """With a cut of these tables."""
        self.number += 1
        cut = Cut(1, Lsn(lsn), NOW, tables)
        made = Publication(f"c{self.number}", "shop", 1, appends, cut=cut, advance_to=cut.position)
        sink.publish(self.settings, self.catalog, self.lease, made)

    def make_view(self) -> None:
        version = {
            "version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": [],
            "representations": [{"type": "sql", "sql": LONG_TEXT, "dialect": "trino"}],
        }  # fmt: skip
        metadata = {
            "location": f"{self.catalog.properties['warehouse']}/view", "properties": {"comment": f"Items. {MARK}x]"},
            "schemas": [], "current-version-id": 1, "versions": [version], "version-log": [],
        }  # fmt: skip
        location = write_view(self.catalog.file_io, metadata)
        self.states.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
            " VALUES (%s, %s, %s, %s, 'VIEW')",
            (self.catalog.name, *VIEW, location),
        )

    def shortened(self, seen: datetime, plain_at: str | None = None) -> None:
        """What a refresh publishes that knows of no publish after that one; the view gets its plain text if the raw
        table is at `plain_at`."""
        base = list_views(self.catalog, [VIEW])[VIEW]
        metadata = read_metadata(self.catalog.file_io, base)
        assert metadata is not None
        long = with_version(metadata, {"trino": LONG_TEXT}, {"at": "1"})
        short = with_version(long, {"trino": SHORT_TEXT}, {"at": "1", LONG: str(long["current-version-id"])})
        plain = with_version(short, {"trino": PLAIN_TEXT}, {"at": "1", LONG: str(long["current-version-id"])})
        at = Plain(write_view(self.catalog.file_io, plain), RAW, plain_at) if plain_at else None
        view = NextView(VIEW, base, write_view(self.catalog.file_io, short), "items", True, at)
        copies.publish(self.settings, self.catalog, self.mirrors, copies.Published("shop", seen, 0, (), (view,), None))

    @property
    def raw_at(self) -> str:
        """Where the raw table is."""
        return self.catalog.load_table(RAW).metadata_location

    @property
    def seen(self) -> datetime:
        found = store.last_publish(self.states, "shop")
        assert found is not None
        return found

    @property
    def text(self) -> str:
        """What a reader of the view gets."""
        metadata = read_metadata(self.catalog.file_io, list_views(self.catalog, [VIEW])[VIEW])
        assert metadata is not None
        [text] = current_version(metadata)["representations"]
        return str(text["sql"])


@pytest.fixture
def shop(cluster: str, catalog_settings: Settings, postgres_catalog: LakeCatalog) -> Iterator[Shop]:
    with psycopg.connect(cluster, autocommit=True) as states:
        states.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(states)
        made = Shop(catalog_settings, postgres_catalog, states)
        made.make_view()
        made.publish(made.append())
        yield made
        states.execute("DELETE FROM iceberg_tables WHERE iceberg_type = 'VIEW'")


def while_staged(monkeypatch: pytest.MonkeyPatch, refresh: Callable[[], None]) -> list[Any]:
    """Has the next publish staged when that happens; what is returned has an item for each time that it was staged."""
    swap, staged = sink._swap, list[Any]()

    def after_a_refresh(*given: Any) -> None:
        staged.append(given)
        if len(staged) == 1:
            refresh()
        swap(*given)

    monkeypatch.setattr(sink, "_swap", after_a_refresh)
    return staged


def test_what_makes_a_publish_irregular(shop: Shop) -> None:
    def found(*appends: TableAppend, tables: tuple[str, ...] = ("items",), lsn: int = 11, cut: bool = True) -> Any:
        raw = shop.catalog.load_table(RAW).metadata
        known = {RAW: raw, ("meta", "spool"): raw}
        return irregular("shop", appends, Cut(1, Lsn(lsn), NOW, tables) if cut else None, known)

    assert found(shop.append("u"), shop.append("d"), shop.append("c")) == ()
    assert found(TableAppend(RAW, (), {})) == found(TableAppend(("meta", "spool"), (), {}), cut=False) == ()
    assert found(shop.append("t")) == ("items",), "a truncate"
    assert found(shop.append(left_out=["big"])) == ("items",), "a value that was left out"
    assert found(shop.append(), tables=("other",)) == found(shop.append(), cut=False) == ("items",), "in no cut"
    assert found(shop.append(), lsn=10) == ("items",), "beyond the cut"
    assert found(TableAppend(RAW, (), {}, is_rewritten=True)) == ("items",), "rows went before it"
    assert found(TableAppend(RAW, (), {}, joins=True)) == ("items",), "the long text stays before the cut without it"
    untold = shop.append()
    assert found(TableAppend(RAW, untold.data_files, {})) == ("items",), "nobody says what it is"
    with shop.catalog.load_table(RAW).update_schema() as update:
        update.add_column("more", LongType())
    assert found(shop.append()) == found(TableAppend(RAW, (), {})) == ("items",), "a tag shows the columns of then"
    shop.publish(shop.append())
    assert found(shop.append()) == ()
    with shop.catalog.load_table(RAW).transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    assert found(shop.append()) == (), "a compaction"
    shop.catalog.load_table(RAW).append(pa.table({"id": [9]}, schema=pa.schema([("id", pa.int64())])))
    assert found(shop.append()) == found(TableAppend(RAW, (), {})) == ("items",), "of a release that moves no tag, say"
    shop.publish(shop.append())
    assert found(shop.append()) == ()


def test_a_publish_of_what_a_short_text_cannot_follow_gives_the_view_its_long_text(shop: Shop) -> None:
    assert shop.text == LONG_TEXT
    shop.shortened(shop.seen)
    assert shop.text == SHORT_TEXT
    shop.publish(shop.append("c"))
    assert shop.text == SHORT_TEXT
    shop.publish(shop.append("u", left_out=["big"]))
    assert shop.text == LONG_TEXT
    seen = shop.seen
    shop.publish(shop.append("u"))
    assert store.irregular_since(shop.states, "shop", seen).irregular == frozenset()
    shop.shortened(seen)
    assert shop.text == SHORT_TEXT, "the next refresh has read what was irregular"


@pytest.mark.parametrize(("left_out", "becomes"), [(None, SHORT_TEXT), (["big"], LONG_TEXT)], ids=["regular", "others"])
def test_a_publish_of_rows_takes_the_plain_text_from_a_view(
    shop: Shop, left_out: list[str] | None, becomes: str
) -> None:
    shop.shortened(shop.seen, shop.raw_at)
    assert shop.text == PLAIN_TEXT
    shop.publish(TableAppend(RAW, (), {}))
    assert shop.text == PLAIN_TEXT, "a cut without rows"
    shop.publish(shop.append(left_out=left_out))
    assert shop.text == becomes
    shop.publish(shop.append())
    assert shop.text == becomes
    shop.publish(shop.append("t"))
    assert shop.text == LONG_TEXT, "which is still among the versions"


def test_a_table_that_is_called_like_the_view_stops_no_publish(shop: Shop) -> None:
    """A project may build `current_shop__items` as a table."""
    shop.states.execute("DELETE FROM iceberg_tables WHERE iceberg_type = 'VIEW'")
    shop.catalog.create_namespace_if_not_exists(VIEW[0])
    made = shop.catalog.create_table(VIEW, SCHEMA)
    shop.publish(shop.append())
    shop.publish(shop.append("t"))
    assert shop.catalog.load_table(VIEW).metadata_location == made.metadata_location


def test_a_refresh_gives_no_plain_text_where_rows_have_come_since_it_looked(shop: Shop) -> None:
    before, seen = shop.raw_at, shop.seen
    shop.publish(shop.append())
    shop.shortened(seen, before)
    assert shop.text == SHORT_TEXT
    shop.publish(shop.append("t"))
    shop.shortened(seen, shop.raw_at)
    assert shop.text == LONG_TEXT, "an irregular publish that it does not know"


def test_a_plain_text_that_comes_while_a_publish_is_staged_is_replaced_with_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shop.seen

    def refresh() -> None:
        shop.shortened(seen, shop.raw_at)
        assert shop.text == PLAIN_TEXT

    staged = while_staged(monkeypatch, refresh)
    shop.publish(shop.append())
    assert (shop.text, len(staged)) == (SHORT_TEXT, 2)
    assert shop.catalog.load_table(RAW).scan().to_arrow().num_rows == 4, "landed once"


def test_a_plain_text_waits_for_whoever_moves_the_raw_table(shop: Shop, cluster: str) -> None:
    """Also for one who holds no lease: else the view would stay at the mirror, and rows behind it."""
    seen, before = shop.seen, shop.raw_at
    with psycopg.connect(cluster) as moving, ThreadPoolExecutor(1) as pool:
        assert move_pointer(moving, shop.catalog.name, RAW, before, f"{before}.next")
        refreshing = pool.submit(shop.shortened, seen, before)
        time.sleep(0.5)
        assert shop.text == LONG_TEXT and not refreshing.done()
        moving.commit()
    refreshing.result()
    assert shop.text == SHORT_TEXT


def test_a_refresh_gives_no_short_text_after_an_irregular_publish_that_it_knows_nothing_of(shop: Shop) -> None:
    seen = shop.seen
    shop.publish(shop.append("t"))
    shop.publish(shop.append("u"))
    assert store.irregular_since(shop.states, "shop", seen).irregular == {"items"}
    shop.shortened(seen)
    assert shop.text == LONG_TEXT


def test_a_short_text_that_comes_while_an_irregular_publish_is_staged_is_replaced_with_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shop.seen

    def refresh() -> None:
        shop.shortened(seen)
        assert shop.text == SHORT_TEXT

    staged = while_staged(monkeypatch, refresh)
    shop.publish(shop.append("t"))
    assert (shop.text, len(staged)) == (LONG_TEXT, 2)
    assert shop.catalog.load_table(RAW).scan().to_arrow().num_rows == 4, "landed once"


def test_a_view_that_is_made_and_shortened_while_an_irregular_publish_is_staged_is_not_passed_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shop.seen
    shop.states.execute("DELETE FROM iceberg_tables WHERE iceberg_type = 'VIEW'")

    def refresh() -> None:
        shop.make_view()
        shop.shortened(seen)

    staged = while_staged(monkeypatch, refresh)
    shop.publish(shop.append(left_out=["big"]))
    assert (shop.text, len(staged)) == (LONG_TEXT, 2)


def test_a_short_text_waits_for_the_publish_that_is_in_its_transaction(shop: Shop, cluster: str) -> None:
    seen = shop.seen
    with psycopg.connect(cluster) as publishing:
        leases.check(publishing, shop.lease, 600)
        store.finish_cycle(publishing, "c9", "shop", 1, None, ["items"])
        impatient = psycopg.connect(cluster, autocommit=True, options="-c lock_timeout=200ms")
        with impatient as refreshing, pytest.raises(psycopg.errors.LockNotAvailable):
            leases.hold_off(refreshing, "shop")
        publishing.commit()
    shop.shortened(seen)
    assert shop.text == LONG_TEXT


def test_nobody_gets_a_short_text_beside_a_release_that_does_not_tell(shop: Shop) -> None:
    seen = shop.seen
    shop.states.execute("INSERT INTO lakehouse.cycles (cycle_id, source, epoch) VALUES ('old', 'shop', 1)")
    assert store.irregular_since(shop.states, "shop", seen).irregular is None
    shop.shortened(seen)
    assert shop.text == LONG_TEXT


def test_a_tag_shows_nothing_irregular_after_what_it_began_with(shop: Shop) -> None:
    """Whatever an engine finds behind a tag that it has read from a text before."""

    def behind(tag: str) -> list[int]:
        raw = shop.catalog.load_table(RAW)
        found = raw.scan(snapshot_id=raw.metadata.refs[tag].snapshot_id).to_arrow()
        return sorted(lsn for lsn in found["_commit_lsn"].to_pylist() if lsn % 10 == 0)

    def newest() -> str:
        found = newest_tag(shop.catalog.load_table(RAW).metadata)
        assert found is not None
        return found[0]

    first = newest()
    shop.publish(shop.append(lsn=20), lsn=21)
    assert (newest(), behind(first)) == (first, [10, 20])
    shop.publish(shop.append("t", lsn=30), lsn=31)
    second = newest()
    assert second != first and (behind(first), behind(second)) == ([10, 20], [10, 20, 30])
    shop.publish(shop.append(lsn=40), lsn=41)
    shop.publish(TableAppend(RAW, (), {}), lsn=51)
    assert (behind(first), behind(second)) == ([10, 20], [10, 20, 30, 40]) and newest() == second
    shop.publish(TableAppend(RAW, (), {}, is_rewritten=True), lsn=61)
    assert newest() not in (first, second) and behind(second) == [10, 20, 30, 40]
    for number in range(2 * KEPT):
        shop.publish(shop.append("t", lsn=100 + number), lsn=200 + number)
    tags = [name for name in shop.catalog.load_table(RAW).metadata.refs if name.startswith(REGULAR)]
    assert len(tags) == KEPT and newest() in tags and first not in tags


def test_an_expiry_takes_off_the_tags_that_were_left_behind_an_hour_ago_and_not_the_newest(shop: Shop) -> None:
    """Else they would keep what compactions have replaced, on a table that gets little that is irregular for ever."""

    def kept(hours: float) -> list[str]:
        raw, then = shop.catalog.load_table(RAW), int((time.time() + hours * 3600) * 1000)
        over = decide(raw, RULE, frozenset(), then, then).references
        return [name for name in raw.metadata.refs if name.startswith(REGULAR) and name not in over]

    for number in range(3):
        shop.publish(shop.append("t", lsn=20 + number), lsn=30 + number)
    newest = newest_tag(shop.catalog.load_table(RAW).metadata)
    assert newest is not None
    assert len(kept(0.9)) == 4 and kept(1.1) == kept(9000) == [newest[0]]


def test_the_newest_tag_moves_on_after_a_compaction_and_no_other(shop: Shop) -> None:
    raw = shop.catalog.load_table(RAW)
    assert after_rewrites(raw.metadata) == ()
    tag = newest_tag(raw.metadata)
    assert tag is not None
    with raw.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    raw = shop.catalog.load_table(RAW)
    until_committed(shop.catalog, RAW, lambda found: after_rewrites(found.metadata))
    found = shop.catalog.load_table(RAW)
    assert newest_tag(found.metadata) == (tag[0], raw.metadata.current_snapshot_id)
    found.append(pa.table({"id": [9]}, schema=pa.schema([("id", pa.int64())])))
    assert after_rewrites(shop.catalog.load_table(RAW).metadata) == (), "rows that no publish has judged"


def test_the_tag_of_a_mirror_stays_at_its_rows_and_moves_on_after_a_compaction(shop: Shop) -> None:
    def written() -> int:
        rows = pa.table({"id": [9]}, schema=pa.schema([("id", pa.int64())]))
        shop.catalog.load_table(RAW).append(rows)
        snapshot = shop.catalog.load_table(RAW).metadata.current_snapshot_id
        until_committed(shop.catalog, RAW, lambda found: mirrored.next_tag(found.metadata, snapshot or 0))
        return snapshot or 0

    first, second = written(), written()
    with shop.catalog.load_table(RAW).transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    until_committed(shop.catalog, RAW, lambda found: after_rewrites(found.metadata))
    now = shop.catalog.load_table(RAW).metadata
    assert now.refs[mirrored.tag_of(first)].snapshot_id == first
    assert now.refs[mirrored.tag_of(second)].snapshot_id == now.current_snapshot_id != second
    assert mirrored.next_tag(now, second) == (), "a refresh that finds nothing leaves it there"
    for _ in range(mirrored.KEPT):
        written()
    assert len(tags_of(shop.catalog.load_table(RAW).metadata, VIEW_TAGS)) == mirrored.KEPT


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_view_gets_its_long_text_from_the_versions_that_somebody_has_left_of_it(shop: Shop, is_dropped: bool) -> None:
    """Trino makes a version of its own for a comment on a column."""
    shop.shortened(shop.seen)
    base = list_views(shop.catalog, [VIEW])[VIEW]
    metadata = read_metadata(shop.catalog.file_io, base)
    assert metadata is not None
    slim, commented = metadata | {"versions": [current_version(metadata)]}, {"engine-name": "trino"}
    made = slim if is_dropped else with_version(metadata, {"trino": SHORT_TEXT}, commented)
    location = write_view(shop.catalog.file_io, made)
    shop.states.execute(
        "UPDATE iceberg_tables SET metadata_location = %s WHERE metadata_location = %s", (location, base)
    )
    shop.publish(shop.append("t"))
    assert shop.text == (PAST if is_dropped else LONG_TEXT)


def rolled_forward(shop: Shop) -> None:
    shop.states.execute(
        'INSERT INTO lakehouse.positions (source, "table", epoch, lsn, state)'
        " VALUES ('shop', 'items', 1, 0, 'streaming')"
    )
    with shop.states.transaction():
        found = fitting_views(shop.states, shop.catalog.name, shop.catalog.file_io, ["shop"])
        for view, moved in found.items():
            move_pointer(shop.states, shop.catalog.name, view, *moved)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_catalog_that_is_rolled_forward_has_no_short_texts(shop: Shop, is_plain: bool) -> None:
    """Its views are those of the backup, and its raw tables have got who knows what since."""
    shop.shortened(shop.seen, shop.raw_at if is_plain else None)
    rolled_forward(shop)
    assert shop.text == LONG_TEXT


@pytest.mark.parametrize("becomes", ["kept", "erased", "lost"])
def test_a_view_whose_snapshot_of_the_mirror_went_since_the_backup_reads_parsed(shop: Shop, becomes: str) -> None:
    """An erasure had rebuilt the mirror: every query of the view failed until the next refresh."""
    mirror = ("mirror_shop", "items")
    shop.catalog.create_namespace_if_not_exists("mirror_shop")
    made = shop.catalog.create_table(mirror, SCHEMA)
    made.append(pa.table({"id": [1]}))
    named = made.metadata.current_snapshot_id
    text = with_past(
        PAST, CUT, "SELECT 1", f'\nSELECT m.id FROM "lake"."mirror_shop"."items" FOR VERSION AS OF {named} AS m'
    )
    base = list_views(shop.catalog, [VIEW])[VIEW]
    metadata = read_metadata(shop.catalog.file_io, base)
    assert metadata is not None
    location = write_view(shop.catalog.file_io, with_version(metadata, {"trino": text, "spark": "SELECT 1"}, {}))
    move_pointer(shop.states, shop.catalog.name, VIEW, base, location)
    if becomes != "kept":
        shop.catalog.drop_table(mirror)
    if becomes == "erased":
        shop.catalog.create_table(mirror, SCHEMA, location=f"{made.location()}_again").append(pa.table({"id": [2]}))
    rolled_forward(shop)
    if becomes == "kept":
        assert list_views(shop.catalog, [VIEW]) == {VIEW: location}
    else:
        assert shop.text == PAST
