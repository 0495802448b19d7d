"""Positions in the state: text that its source writes, beside the number of release 0.1."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import psycopg
import pyarrow as pa
import pytest
from memory_source import Offsets
from pydantic import SecretStr

from ingestion.schema.facts import TableFacts
from ingestion.schema.offsets import Offsets as TopicOffsets
from ingestion.schema.positions import POSITIONS, Lsn
from ingestion.sink import publish
from ingestion.sink.publication import Cut as SinkCut
from ingestion.sink.publication import Publication
from ingestion.sources.kafka.history import check_cluster
from ingestion.sources.kinds import KINDS
from ingestion.state import lease as leases
from ingestion.state import store, stored
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state, known_steps, migrate
from lakehouse.settings import DebeziumSettings, KafkaSettings, Settings, SourceSettings, load_settings
from lakehouse_backup import roll_forward
from lakehouse_backup.cuts import Cut, newest_cuts
from lakehouse_backup.positions import restore_position

PEOPLE = pa.schema([("id", pa.int64())])
PERSON = pa.Table.from_pylist([{"id": 1}], PEOPLE)
PUBLISHED = Lsn.parse("0/500")
AT, CUT_AT, POINT = Lsn.parse("0/3C87757"), Lsn.parse("16/B374D848"), Lsn.parse("0/3C87700")


@pytest.fixture
def states(cluster: str) -> Iterator[Any]:
    """The state as release 0.1 left it, with a table that needs a resync once it is resumed."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        migrate(connection, known_steps()[:1])
        connection.execute(
            "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid,"
            " cut_lsn) VALUES ('shop', 1, %s, 's', '7', 1, 2, %s), ('bank', 1, 0, 's', '7', 1, 2, NULL)",
            (AT, CUT_AT - 1),
        )
        connection.execute(
            'INSERT INTO lakehouse.positions (source, "table", epoch, lsn, state, point, facts)'
            " VALUES ('shop', 'items', 1, %s, 'parked', %s, '{\"doubt\": \"it was rewritten\", \"versions\": []}')",
            (AT, POINT),
        )
        yield connection


def test_positions_of_release_0_1_are_upgraded_to_text(states: Any) -> None:
    ensure_state(states)
    written = states.execute("SELECT position, cut_position FROM lakehouse.streams ORDER BY source").fetchall()
    assert written == [("0/0", None), ("0/3C87757", "16/B374D848")]
    stream, items = store.read_stream(states, "shop"), store.read_positions(states, "shop")["items"]
    assert stream is not None and (stream.position, stream.cut_position, stream.cut_lsn) == (AT, CUT_AT, CUT_AT - 1)
    assert (items.position, items.point, items.resync_reason) == (AT, POINT, "it was rewritten")
    assert isinstance(stream.position, Lsn) and isinstance(items.point, Lsn)
    before = store.read_stream(states, "bank")
    assert before is not None and before.position == Lsn.start() and before.cut_position is None


def test_what_a_process_of_release_0_1_writes_meanwhile_counts(states: Any) -> None:
    """It knows the numbers alone, and may go on beside a command of this release that has upgraded the state."""
    ensure_state(states)
    states.execute("UPDATE lakehouse.streams SET lsn = lsn + 16, cut_lsn = cut_lsn + 16 WHERE source = 'shop'")
    facts = '{"doubt": "other", "versions": []}'
    states.execute("UPDATE lakehouse.positions SET lsn = lsn + 16, point = point + 16, facts = %s", (facts,))
    stream, items = store.read_stream(states, "shop"), store.read_positions(states, "shop")["items"]
    assert stream is not None and (stream.position, stream.cut_position) == (AT + 16, CUT_AT + 16)
    assert (items.position, items.point, items.resync_reason) == (AT + 16, POINT + 16, "other")
    store.advance_positions(states, "shop", Lsn(AT + 8))
    store.put_position(states, "shop", items, "read")
    rows = states.execute("SELECT position, lsn FROM lakehouse.positions").fetchall()
    assert rows == [(Lsn(AT + 16).text, AT + 16)]
    assert states.execute("SELECT facts ->> 'doubt' FROM lakehouse.positions").fetchall() == [("other",)]


def test_the_next_epoch_begins_at_the_start(states: Any) -> None:
    ensure_state(states)
    store.restart_stream(states, "shop", "slot", store.Cluster("8", 1), 2)
    stream, items = store.read_stream(states, "shop"), store.read_positions(states, "shop")["items"]
    assert stream is not None and (stream.epoch, stream.position, items.position, items.point) == (2, 0, 0, 0)


def test_every_kind_of_source_that_can_be_set_has_a_module_and_a_position() -> None:
    connections = (SourceSettings, KafkaSettings, DebeziumSettings)
    known = {kind for of in connections for kind in get_args(of.model_fields["kind"].annotation)}
    assert known == KINDS.keys() == POSITIONS.keys()


def test_a_number_counts_for_postgres_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release 0.1 knew no other kind: what its process may have written is an LSN."""
    monkeypatch.setitem(cast(Any, POSITIONS), "memory", Offsets)
    text = "topic/0:3,topic/1:1"
    assert stored.read("memory", text, 99) == Offsets((3, 1)) == stored.read("memory", text, 4)
    assert stored.read("memory", None, 99) == Offsets.start()
    assert stored.read("postgres", "0/10", 99) == Lsn(99)


def test_a_restored_catalog_takes_the_position_of_a_cut_as_its_source_wrote_it(
    states: Any, catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several partitions, the number in `cut_lsn` does not say how far each was read."""
    monkeypatch.setitem(cast(Any, POSITIONS), "memory", Offsets)
    ensure_state(states)
    store.create_stream(states, "web", "", store.Cluster("", 0), 0, kind="memory")
    lease = leases.acquire(states, "web", 60, "once")
    assert lease is not None
    at, slot = Offsets((3, 1)), Offsets((2, 4))
    cut = SinkCut(1, at, datetime.now(UTC), ())
    publish.publish(catalog_settings, postgres_catalog, lease, Publication("c", "web", 1, (), cut=cut))
    session = cast(Any, SimpleNamespace(catalog=postgres_catalog, io=postgres_catalog.file_io))
    cuts = newest_cuts(session, ("web", "shop"), {"web": slot}.get).cuts
    for complete, reached in ((False, at), (True, Offsets((3, 4)))):
        restore_position(states, session, "web", cuts["web"], slot, complete, {"items": ()}, ())
        stream = store.read_stream(states, "web")
        assert stream is not None and (stream.cut_position, stream.position) == (at, reached)
    assert Cut(1, 5, datetime.now(UTC), {}).position("postgres") == Lsn(6), "of a release that kept the number alone"


class Restoring:
    """A lake of tables of people, one per source, whose catalog is then rolled forward."""

    def __init__(self, states: Any, catalog: LakeCatalog, settings: Settings) -> None:
        self.states, self.catalog, self.settings = states, catalog, settings
        ensure_state(states)

    def ingest(self, source: str, epoch: int = 1) -> None:
        """Publishes a row of the source's table and a cut with it."""
        if store.read_stream(self.states, source) is None:
            store.create_stream(self.states, source, f"s_{source}", store.Cluster("7", 1), 3)
        lease = leases.acquire(self.states, source, 60, "once")
        assert lease is not None
        name = (f"raw_{source}", "people")
        self.catalog.create_namespace_if_not_exists(name[0])
        location = f"{self.settings.warehouse}/{name[0]}/people"
        self.catalog.create_table_if_not_exists(name, PEOPLE, location=location).append(PERSON)
        cut = SinkCut(epoch, PUBLISHED, datetime.now(UTC), ("people",))
        made = Publication(f"c_{source}_{epoch}", source, epoch, (), cut=cut)
        publish.publish(self.settings, self.catalog, lease, made)
        leases.release(self.states, lease)

    def leave_out(self, *namespaces: str) -> None:
        """Of the catalog; the files stay."""
        self.states.execute("DELETE FROM iceberg_tables WHERE table_namespace = ANY(%s)", ([*namespaces],))

    @property
    def session(self) -> Any:
        return SimpleNamespace(
            catalog=self.catalog, io=self.catalog.file_io, settings=self.settings, close=lambda: None
        )

    def roll_forward(self, monkeypatch: pytest.MonkeyPatch) -> roll_forward.RollForward:
        monkeypatch.setattr(roll_forward, "Session", lambda settings: self.session)
        return roll_forward.roll_forward(self.settings, lambda source: None, True)


@pytest.fixture
def restoring(states: Any, catalog_settings: Settings, postgres_catalog: LakeCatalog, tmp_path: Path) -> Restoring:
    crm = SourceSettings(url=SecretStr("postgresql://127.0.0.1:1/crm"), slot="s_crm")
    given = {"warehouse": f"file://{tmp_path}", "sources": {"crm": crm}}
    return Restoring(states, postgres_catalog, catalog_settings.model_copy(update=given))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_source_that_was_added_since_the_backup_is_told_and_its_tables_are_entered(
    restoring: Restoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Not a word was said of it, its slot was somebody else's, and its history was nobody's files. The cuts of a source
    that was removed are there, too. A backup from before the first cut does not know the table of cuts."""
    for source in ("shop", "crm", "removed", "unconnected"):
        restoring.ingest(source)
    shutil.rmtree(tmp_path / "raw_removed")
    states = restoring.states
    states.execute("DELETE FROM lakehouse.streams WHERE source NOT IN ('shop', 'bank')")
    restoring.leave_out("raw_crm", "raw_removed", "raw_unconnected", *(["meta"] if is_first else []))

    forward = restoring.roll_forward(monkeypatch)

    assert forward.to_recover.keys() == {"shop", "crm", "unconnected"}
    assert forward.to_recover["crm"] == "it was added since the backup"
    assert "source 'unconnected' has no connection: set" in forward.to_recover["unconnected"]
    assert {"raw_crm.people", "raw_unconnected.people"} <= {*forward.tables}
    assert restoring.catalog.load_table(("raw_crm", "people")).scan().to_arrow().num_rows == 1
    stream = store.read_stream(states, "crm")
    assert stream is not None
    assert (stream.slot, stream.position, stream.cut_tables) == ("s_crm", PUBLISHED, ["people"])
    assert stream.system_identifier == "restored from a backup: it was added since the backup"
    assert [store.read_stream(states, source) for source in ("removed", "unconnected")] == [None, None]


def test_a_source_that_was_removed_before_the_backup_does_not_come_back(
    restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cuts and its stream stay, and the backup's folder had its files: each restore entered its tables again and
    asked to recover it, which is declared no more. One that was added again since is another matter."""
    for source in ("crm", "again"):
        restoring.ingest(source)
    known = store.read_stream(restoring.states, "again")
    assert known is not None
    restoring.ingest("again", epoch=2)
    restoring.states.execute("UPDATE lakehouse.streams SET cut_lsn = %s WHERE source = 'again'", (known.cut_lsn,))
    restoring.leave_out("raw_crm", "raw_again")

    forward = restoring.roll_forward(monkeypatch)

    assert (forward.removed, forward.going_on) == (["crm"], [])
    assert forward.to_recover == {"again": "it was recovered since: epoch 1 is now 2"}
    assert forward.tables == ["raw_again.people"]
    assert not restoring.catalog.table_exists(("raw_crm", "people"))


@pytest.mark.parametrize("slot", [Lsn.parse("0/700"), None])
def test_a_warehouse_that_is_older_than_the_backup_sets_the_position_back(
    restoring: Restoring, slot: Lsn | None
) -> None:
    """The bucket came back as of an earlier time: the source went on from its slot, and nobody was told of the changes
    between. A slot that cannot be read now is compared by the next cycle."""
    states = restoring.states
    store.create_stream(states, "crm", "s", store.Cluster("7", 1), 3)
    begun = store.TablePosition("people", 1, Lsn.parse("0/700"), "loading", Lsn.parse("0/400"))
    store.put_position(states, "crm", begun, "load")
    store.put_position(states, "crm", replace(begun, state="streaming"), "load")
    store.advance_positions(states, "crm", Lsn.parse("0/700"))
    store.put_cut(states, "crm", Lsn.parse("0/600"), datetime.now(UTC), ["people"])
    cut = Cut(1, PUBLISHED - 1, datetime.now(UTC), {"people": 1}, PUBLISHED.text)
    reason = restore_position(states, restoring.session, "crm", cut, slot, True, {}, ())
    assert reason == (None if slot is None else "its slot is beyond the newest restored cut")
    stream, positions = store.read_stream(states, "crm"), store.read_positions(states, "crm")
    assert stream is not None and (stream.position, stream.cut_position) == (PUBLISHED, PUBLISHED)
    assert positions["people"].position == PUBLISHED


def test_a_topic_whose_table_lacks_files_is_not_read_on_from_the_cut(
    states: Any, catalog_settings: Settings, postgres_catalog: LakeCatalog
) -> None:
    """`--recover` goes on from the position: events below the cut that no file has would never be read."""
    ensure_state(states)
    store.create_stream(states, "web", "", store.Cluster("c", 0), 0, kind="kafka")
    backed_up = TopicOffsets.parse("clicks/0:300,visits/0:80")
    for name, state in (("clicks", "streaming"), ("visits", "streaming"), ("later", "new")):
        facts = TableFacts(1, None, "r", "f", ("id",), (), ("", name))
        begun = store.TablePosition(name, 1, backed_up, "loading", TopicOffsets(), versions=(facts,))
        if state == "new":
            store.note_new(states, "web", name, 1, None)
        else:
            store.put_position(states, "web", begun, "load")
            store.put_position(states, "web", replace(begun, state="streaming"), "load")
    store.advance_positions(states, "web", backed_up)
    session = cast(
        Any, SimpleNamespace(catalog=postgres_catalog, io=postgres_catalog.file_io, settings=catalog_settings)
    )
    newest, former = (
        Cut(1, lsn, datetime.now(UTC), {"clicks": clicks, "visits": 3}, text)
        for lsn, clicks, text in ((5089, 2, "clicks/0:5000,visits/0:90"), (189, 1, "clicks/0:100,visits/0:90"))
    )
    reason = restore_position(states, session, "web", newest, None, True, {"clicks": {1}}, [newest, former])
    assert reason == "later joined or left the cuts, or was loading, parked or paused"
    stream = store.read_stream(states, "web")
    assert stream is not None
    with pytest.raises(LakehouseError, match=rf"'web' was restored from a backup: {reason}.*--recover web") as refused:
        check_cluster(stream, "c", "kafka")
    assert "cluster" not in str(refused.value), "it said that this is not the Kafka cluster of before"
    stream, positions = store.read_stream(states, "web"), store.read_positions(states, "web")
    assert stream is not None and (stream.position.text, stream.cut_position) == ("clicks/0:100,visits/0:90", None)
    assert {name: found.position.text for name, found in positions.items()} == {
        "clicks": "clicks/0:100,visits/0:90", "visits": "clicks/0:100,visits/0:90", "later": "",
    }  # fmt: skip
    restore_position(states, session, "web", newest, None, True, {}, [newest, former])
    stream = store.read_stream(states, "web")
    assert stream is not None and stream.position == stream.cut_position == newest.position("kafka")


def test_an_unknown_kind_is_told_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lakehouse.toml"
    file.write_text('[sources.shop]\nurl = "postgresql://localhost/shop"\nkind = "mysql"\n')
    file.chmod(0o600)
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    with pytest.raises(LakehouseError) as told:
        load_settings()
    assert f"{file}:3: LAKEHOUSE_SOURCES__SHOP__KIND: Input should be 'postgres'" in str(told.value)
