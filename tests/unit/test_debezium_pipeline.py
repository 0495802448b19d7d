"""Recorded messages of Debezium through the pipeline into raw tables: what is visible grows between the cycles."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from debezium_recorded import ITEMS, PAIRS, Message, RecordedReader, recorded, settings, table, untold

from ingestion.pipeline import load_changes, replay
from ingestion.pipeline.cycle import run_cycle
from ingestion.pipeline.session import Session
from ingestion.run import api, operate
from ingestion.schema.offsets import Offsets
from ingestion.sink.writer import pack, unpack
from ingestion.sources.debezium import source as module
from ingestion.sources.debezium.message import opened
from ingestion.sources.debezium.reading import EnvelopeReader
from ingestion.sources.kafka.connection import Topic
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads.load_facts import LANDED_LATE, moment
from lakehouse.declarations import Declarations
from lakehouse.declarations import Source as Declared
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.settings import DebeziumSettings, Settings

pytestmark = pytest.mark.stack
PLAIN = recorded("plain")
TABLES = (table("items", ITEMS), table("pairs", PAIRS, ("a", "b")))


@dataclass
class Visible:
    """The topics, as far as they are visible; it stands in for the brokers."""

    messages: list[Message] = field(default_factory=list)
    cluster_id: str = "c"
    closed: str = ""  # to our login

    def topics(self, names: Any) -> dict[str, Any]:
        known = {m["topic"] for m in self.messages}
        found = {name: Topic(name, 1 + sum(map(ord, name)), (0,)) for name in names if name in known}
        return found | {name: "the login may not describe and read it" for name in found if name == self.closed}

    def starts(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Any) -> dict[Any, int]:
        return {p: max([m["offset"] + 1 for m in self.messages if m["topic"] == p[0]], default=0) for p in partitions}


@dataclass
class Lake:
    """A source of the recording, ingested by cycles of the pipeline, whose tasks run in this process."""

    settings: Settings
    catalog: LakeCatalog
    visible: Visible
    tables: tuple[Any, ...] = TABLES

    def cycle(self, work: Callable[[Session], Any] = run_cycle) -> None:
        declared = Declared(name="shop", description="", load=LoadPolicy(), tables=self.tables)
        with store.connect_catalog(self.settings) as states:
            lease = leases.acquire(states, "shop", 60, "once")
            assert lease is not None
            origin = module.DebeziumSource(self.settings, "shop")
            work(Session(self.settings, self.catalog, cast(Any, None), lease, declared, origin=origin))
            leases.release(states, lease)

    def replay(self, name: str) -> None:
        self.cycle(partial(api.try_again, names=[name]))

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows = self.catalog.load_table(("raw_shop", name)).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda r: (r["_epoch"], r["_commit_lsn"], r["_seq"]))

    def kept(self, where: str) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.catalog.load_table(("meta", where)).scan().to_arrow().to_pylist())


@pytest.fixture
def lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    visible = Visible()
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(cast(Any, connection))

    def run_here(spark: Any, work: Any, items: Any) -> list[Any]:
        return [work(unpack(pack(item))) for item in items]

    def messages(reader: EnvelopeReader, ranges: Any) -> Any:
        return RecordedReader.messages(cast(Any, SimpleNamespace(recording=visible.messages)), ranges)

    for part in (load_changes, replay):
        monkeypatch.setattr(part, "run_tasks", run_here)
    monkeypatch.setattr("ingestion.sources.kafka.source.Brokers", lambda *_: visible)
    monkeypatch.setattr(EnvelopeReader, "messages", messages)
    mine = catalog_settings.model_copy(update={"sources": {"shop": settings()}})
    yield Lake(mine, postgres_catalog, visible)


def grown(step: int) -> Iterator[list[Message]]:
    """The messages as they came, step by step."""
    came = sorted(PLAIN, key=lambda m: (m["at"], m["topic"] == "transaction", m["offset"]))
    came = [m for m in came if m["topic"] in ("public.items", "public.pairs", "transaction")]
    return (came[:last] for last in (*range(step, len(came), step), len(came)))


def test_cycles_land_what_is_whole_and_cuts_are_of_whole_transactions(lake: Lake) -> None:
    for visible in grown(9):
        lake.visible.messages = visible
        lake.cycle()
    items, pairs = lake.rows("items"), lake.rows("pairs")
    assert [r["id"] for r in items if r["_op"] == "c"] == [
        3, 30, *range(100, 105), *range(200, 206), 401, 400, 402, 500, 600,
    ]  # fmt: skip
    assert [r["_op"] for r in pairs] == ["c", "d", "c", "t"]
    for rows in (items, pairs):
        assert len({(r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)
        assert len({(r["_offset"], r["_seq"] % 2) for r in rows}) == len(rows)
    cuts = sorted(lake.kept("cuts"), key=lambda cut: cut["published_at"])
    bounds = [cut["cut_lsn"] for cut in cuts]
    assert bounds == sorted(bounds) and len(cuts) > 5 and cuts[-1]["position"].endswith("<24771857")
    snapshots = lake.catalog.load_table(("raw_shop", "items")).metadata.snapshots
    lake.cycle()
    assert lake.catalog.load_table(("raw_shop", "items")).metadata.snapshots == snapshots


@pytest.fixture
def by_api(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Declarations:
    """What is declared, for commands, whose catalog is the one of the lake."""
    monkeypatch.setattr(api, "open_catalog", lambda _: lake.catalog)
    monkeypatch.setattr(api, "closing", nullcontext)
    declared = Declared(name="shop", description="", load=LoadPolicy(), tables=TABLES, kind="debezium")
    return Declarations(sources=(declared,))


def test_a_source_whose_tables_were_dropped_begins_anew_as_another_kind(lake: Lake, by_api: Declarations) -> None:
    """It was tried as `kafka` first. After `remove --drop-tables` its name was barred for ever."""
    with store.connect_catalog(lake.settings) as states:
        store.create_stream(states, "shop", "", store.Cluster("c", 0), 0, kind="kafka")
        store.advance_positions(states, "shop", Offsets.of({("public.items", 0): 5}))
        store.note_topic(states, "shop", "public.items", "items", 7)
    lake.visible.messages = [m for m in PLAIN if m["topic"] in ("public.items", "public.pairs", "transaction")]
    with pytest.raises(LakehouseError, match="--recover shop` begins it anew once `lakehouse remove shop"):
        lake.cycle()
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
    report = api.recover_source(lake.settings, by_api, "shop", cast(Any, object()))
    assert {one.name for one in report.tables} == {"items", "pairs"} and report.epoch > 1
    items = lake.rows("items")
    assert [r["id"] for r in items if r["_op"] == "c"][:4] == [3, 30, 100, 101]
    assert {r["_epoch"] for r in items} == {report.epoch}
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.streams SET kind = 'kafka', position = NULL, cut_position = NULL")
    with pytest.raises(LakehouseError, match="one raw table does not mix these kinds"):
        api.recover_source(lake.settings, by_api, "shop", cast(Any, object()))
    assert lake.rows("items") == items


def test_who_needs_all_that_the_topics_have_waits_for_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure went on while a transaction waited for its END, and the rows of the person landed after the proof."""
    declared = Declared(name="shop", description="", load=LoadPolicy(), tables=TABLES, kind="debezium")
    declarations, looks = Declarations(sources=(declared,)), list[int]()
    monkeypatch.setattr(api, "open_catalog", lambda _: lake.catalog)
    monkeypatch.setattr(api, "closing", nullcontext)
    monkeypatch.setattr(api, "WAIT_STEP_SECONDS", 0.0)
    *others, end = [m for m in PLAIN if m["topic"] in ("public.items", "public.pairs", "transaction")]
    assert json.loads(end["value"])["status"] == "END"

    def run_one(*given: Any) -> Any:
        looks.append(len(lake.visible.messages))
        found = run_cycle(*given)
        if len(looks) == 5:
            lake.visible.messages = [*others, end]
        return found

    lake.visible.messages = others
    lake.cycle()
    monkeypatch.setattr(api, "run_cycle", run_one)
    monkeypatch.setattr(api, "WHOLE_SECONDS", 0.0)
    alone = partial(api.up_to_date_alone, lake.settings, declarations, "shop", cast(Any, object()))
    with pytest.raises(LakehouseError, match="have changes that wait"), alone():
        pytest.fail("it was told that all is there")
    monkeypatch.setattr(api, "WHOLE_SECONDS", 60.0)
    with alone():
        assert lake.rows("items")[-1]["id"] == 600
    assert len(looks) == 6


def test_a_table_that_cannot_go_on_is_parked_and_lands_once_it_is_corrected(lake: Lake) -> None:
    of = cast(DebeziumSettings, lake.settings.sources["shop"])
    right = lake.settings
    lake.settings = right.model_copy(update={"sources": {"shop": of.model_copy(update={"decimals": None})}})
    for lake.visible.messages in grown(30):
        lake.cycle()
    with store.connect_catalog(lake.settings) as states:
        parked = store.read_positions(states, "shop")["items"]
    assert parked.state == "parked" and "`decimals` of the source has to be set" in str(parked.reason)
    assert lake.rows("items") == [] and len(lake.rows("pairs")) == 4
    operate.resume(lake.settings, TABLES[0])
    lake.cycle()
    assert lake.rows("items") == [] and lake.kept("quarantine") == []
    lake.settings = right
    operate.resume(lake.settings, TABLES[0])
    lake.cycle()
    items = lake.rows("items")
    assert len({(r["_commit_lsn"], r["_seq"]) for r in items}) == len(items) == 42 and lake.kept("spool") == []
    said = lake.catalog.load_table(("raw_shop", "items")).properties[LANDED_LATE]
    assert said in {moment(r["_ingested_at"]) for r in items}, "loads look whether these rows change what they have"
    assert LANDED_LATE not in lake.catalog.load_table(("raw_shop", "pairs")).properties
    create = next(r for r in items if r["_op"] == "c" and r["id"] == 30)
    assert create["_old_key"] == '{"id":"3"}' and create["_unchanged"] == ["big"]


@pytest.mark.parametrize("step", [30, 200])
def test_what_cannot_be_read_of_a_parked_table_is_kept_until_it_resumes(lake: Lake, step: int) -> None:
    of, right = cast(DebeziumSettings, lake.settings.sources["shop"]), lake.settings
    lake.settings = right.model_copy(update={"sources": {"shop": of.model_copy(update={"decimals": None})}})
    for visible in grown(step):
        lake.visible.messages = [
            m | {"value": '{"op": "c"'} if (m["topic"], m["offset"]) == ("public.items", 40) else m for m in visible
        ]
        lake.cycle()
    assert lake.rows("items") == [] and lake.kept("quarantine") == []
    assert {r["offset"] for r in lake.kept("spool")} >= {39, 40, 41}
    lake.settings = right
    operate.resume(lake.settings, TABLES[0])
    lake.cycle()
    assert len(lake.rows("items")) == 41 and lake.kept("spool") == []
    assert [(r["table"], r["offset"]) for r in lake.kept("quarantine")] == [("items", 40)]


def inserted(*rows: dict[str, Any]) -> list[Message]:
    """Rows of one COPY into items."""
    of = {(m["topic"], m["offset"]): m for m in PLAIN}
    first, end = of["public.items", 4], of["transaction", 2]
    event, counts = json.loads(first["value"]), json.loads(end["value"])
    counts["data_collections"] = [{"data_collection": "public.items", "event_count": len(rows)}]
    events = []
    for number, row in enumerate(rows, start=1):
        placed = event["transaction"] | {"total_order": number, "data_collection_order": number}
        value = json.dumps(event | {"after": event["after"] | row, "transaction": placed})
        events.append(first | {"offset": number - 1, "value": value})
    return [*events, end | {"value": json.dumps(counts)}]


def test_rows_of_a_key_that_is_not_unique_are_kept_until_another_is_declared(lake: Lake) -> None:
    """All but the first of them were dropped, without a word."""
    lake.tables = TABLES[:1]
    lake.visible.messages = inserted({"id": 5, "name": "a"}, {"id": 5, "name": "b"}, {"id": 6, "name": "c"})
    for _ in range(2):
        lake.cycle()
        with store.connect_catalog(lake.settings) as states:
            parked = store.read_positions(states, "shop")["items"]
        assert parked.state == "parked" and "several rows that have the key (id) in common" in str(parked.reason)
        assert lake.rows("items") == [] and len(lake.kept("spool")) == 3
        operate.resume(lake.settings, TABLES[0])
    lake.tables = (table("items", ITEMS, ("id", "name")),)
    lake.cycle()
    assert [(r["id"], r["name"]) for r in lake.rows("items")] == [(5, "a"), (5, "b"), (6, "c")]
    assert lake.kept("spool") == [] and lake.kept("quarantine") == []


def parked(lake: Lake) -> str:
    with store.connect_catalog(lake.settings) as states:
        position = store.read_positions(states, "shop")["items"]
    return str(position.reason) if position.state == "parked" else ""


def test_a_second_key_that_is_not_unique_parks_the_table_again(lake: Lake) -> None:
    """Only the first pair was known, by the key of that time: rows of the next one were taken for versions of one."""
    lake.tables = TABLES[:1]
    rows = [{"id": 5, "name": "a"}, {"id": 5, "name": "b"}, {"id": 6, "name": "c"}, {"id": 6, "name": "c", "big": "x"}]
    lake.visible.messages = inserted(*rows)
    lake.cycle()
    assert "the key (id) in common" in parked(lake)
    for key in (("id", "name"), ("name",)):
        operate.resume(lake.settings, TABLES[0])
        lake.tables = (table("items", ITEMS, key),)
        lake.cycle()
        assert f"the key ({', '.join(key)}) in common" in parked(lake)
        assert lake.rows("items") == [] and len(lake.kept("spool")) == 4
    operate.resume(lake.settings, TABLES[0])
    lake.tables = (table("items", ITEMS, ("id", "name", "big")),)
    lake.cycle()
    assert not parked(lake) and lake.kept("spool") == []


def test_a_key_that_comes_again_after_a_delete_that_cannot_be_read_is_no_shared_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the delete could be read, the table was parked all the same, each time it was resumed."""
    lake.tables = TABLES[:1]
    first, second, end = inserted({"id": 5, "name": "a"}, {"id": 5, "name": "b"})
    event, count = json.loads(second["value"]), json.loads(end["value"])
    gone = event | {"op": "d", "before": event["after"] | {"name": "a"}, "after": None}
    event["transaction"] = event["transaction"] | {"total_order": 3, "data_collection_order": 3}
    count["data_collections"][0]["event_count"] = 3
    lake.visible.messages = [
        first, second | {"value": "no JSON"}, second | {"offset": 2, "value": json.dumps(event)},
        end | {"value": json.dumps(count)},
    ]  # fmt: skip
    for _ in range(2):
        lake.cycle()
        says = parked(lake)
        assert "if one of them was deleted by what cannot be read, partition 0, offset 1 (the value is no JSON" in says
        assert lake.rows("items") == [] and len(lake.kept("spool")) == 3
        operate.resume(lake.settings, TABLES[0])
    known = opened.parsed
    monkeypatch.setattr(opened, "parsed", lambda message: gone if message == b"no JSON" else known(message))
    lake.cycle()
    assert [(r["_op"], r["_seq"]) for r in lake.rows("items")] == [("c", 2), ("d", 4), ("c", 6)]
    assert not parked(lake) and lake.kept("spool") == [] and lake.kept("quarantine") == []


def test_a_stray_message_of_the_transaction_topic_is_in_the_quarantine(lake: Lake) -> None:
    last = stray(lake)
    for _ in range(2):
        lake.cycle()
    [letter] = lake.kept("quarantine")
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("transaction", 0, last)
    assert "neither begin nor end" in letter["reason"] and len(lake.rows("items")) == 42


def stray(lake: Lake) -> int:
    """All messages, and behind them one of the transaction topic that tells no transaction; returns its offset."""
    *_, lake.visible.messages = grown(200)
    last = max(m["offset"] for m in PLAIN if m["topic"] == "transaction")
    of = {"topic": "transaction", "partition": 0, "key": None, "at": PLAIN[0]["at"]}
    lake.visible.messages += [of | {"offset": last + 1, "value": '{"test": true}'}]
    return int(last) + 1


def test_a_replay_lets_go_of_a_stray_message_and_tells_where_it_was(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """It was kept again each time, and no command got rid of it."""
    last = stray(lake)
    broken = {("public.items", 40): '{"op": "c"'}
    lake.visible.messages = [
        m | {"value": broken.get((m["topic"], m["offset"]), m["value"])} for m in lake.visible.messages
    ]
    lake.cycle()
    assert len(lake.kept("quarantine")) == 2 and len(lake.rows("items")) == 41
    for _ in range(2):
        lake.replay("items")
        assert [(r["topic"], r["offset"]) for r in lake.kept("quarantine")] == [("public.items", 40)]
    [says] = [m for m in caplog.messages if "has left meta.quarantine" in m]
    assert f"topic transaction, partition 0, offset {last}: it tells neither begin nor end" in says
    assert len(lake.rows("items")) == 41


def test_a_stray_message_is_kept_where_no_table_lands(lake: Lake) -> None:
    """Of it nothing was left but a line in the log."""
    last, messages = stray(lake), lake.visible.messages
    lake.visible.messages = messages[:-1]
    lake.cycle()
    for of in TABLES:
        operate.pause(lake.settings, of)
    lake.visible.messages = messages
    lake.cycle()
    [kept] = lake.kept("spool")
    assert (kept["topic"], kept["offset"]) == ("transaction", last) and lake.kept("quarantine") == []
    for of in TABLES:
        operate.resume(lake.settings, of)
    lake.cycle()
    [letter] = lake.kept("quarantine")
    assert (letter["topic"], letter["offset"]) == ("transaction", last) and lake.kept("spool") == []
    lake.replay("items")
    assert lake.kept("quarantine") == []


def test_a_source_that_waits_is_behind_since_its_position_moved_last(lake: Lake) -> None:
    """Each cycle made it look as if it were up to date, and no alert of lag ever came."""
    *messages, end = [m for m in PLAIN if m["topic"] in ("public.items", "public.pairs", "transaction")]
    lake.visible.messages, moments = messages, []
    for _ in range(3):
        lake.cycle()
        with store.connect_catalog(lake.settings) as states:
            moments.append([p.updated_at for p in [store.read_stream(states, "shop")] if p])
    assert moments[0] == moments[1] == moments[2]
    lake.visible.messages = [*messages, end]
    lake.cycle()
    with store.connect_catalog(lake.settings) as states:
        stream = store.read_stream(states, "shop")
    assert stream is not None and stream.updated_at > moments[0][0]


def test_a_transaction_topic_that_may_not_be_read_is_not_called_deleted(lake: Lake) -> None:
    """The advice cost an epoch, and read the topic from its beginning."""
    *_, lake.visible.messages = grown(200)
    lake.cycle()
    lake.visible.closed = "transaction"
    for ask in (lambda: recover(lake), lake.cycle):
        with pytest.raises(LakehouseError, match="may not describe and read it: grant it") as failure:
            ask()
        assert "deleted" not in str(failure.value) and "--recover" not in str(failure.value)
    with store.connect_catalog(lake.settings) as states:
        stream = store.read_stream(states, "shop")
    assert stream is not None and stream.epoch == 1


def test_a_table_that_is_declared_later_joins_the_cuts_with_its_history(lake: Lake) -> None:
    lake.tables = TABLES[:1]
    *_, lake.visible.messages = grown(200)
    lake.cycle()
    lake.tables = TABLES
    lake.cycle()
    pairs = lake.rows("pairs")
    assert [r["_op"] for r in pairs] == ["c", "d", "c", "t"]
    assert {r["_commit_lsn"] for r in pairs} == {24771857} and [r["_xid"] for r in pairs] == [783, 783, 783, 837]
    newest = max(lake.kept("cuts"), key=lambda cut: cut["published_at"])
    assert {name for name, _ in newest["snapshots"]} == {"items", "pairs"} and newest["cut_lsn"] == 24771857


def test_recovery_goes_on_with_what_is_there_in_the_next_epoch(lake: Lake) -> None:
    *_, lake.visible.messages = grown(200)
    lake.cycle()
    before = lake.rows("items")
    with store.connect_catalog(lake.settings) as states, module.DebeziumSource(lake.settings, "shop").open() as opened:
        opened.begin_anew(states)(states)
    lake.cycle()
    assert lake.rows("items") == before
    extra = {"topic": "public.items", "partition": 0, "key": None, "at": PLAIN[0]["at"]}
    event = next(m for m in PLAIN if m["topic"] == "public.items" and m["offset"] == 4)
    told = [m for m in PLAIN if m["topic"] == "transaction" and m["offset"] in (0, 2)]
    later = [m | {"offset": 200 + m["offset"]} for m in told]
    lake.visible.messages = [*lake.visible.messages, extra | {"offset": 60, "value": event["value"]}, *later]
    lake.cycle()
    [again] = lake.rows("items")[len(before) :]
    assert (again["_epoch"], again["id"], again["_commit_lsn"]) == (2, 3, 24739056)


def test_without_transactions_each_publish_is_a_number_and_its_cut_the_offsets(lake: Lake) -> None:
    told = lake.settings
    of = cast(DebeziumSettings, told.sources["shop"]).model_copy(update={"transactions": None})
    lake.settings = told.model_copy(update={"sources": {"shop": of}})
    lake.tables = TABLES[:1]
    steps = [untold(visible) for visible in grown(12)]  # which takes no change of a key apart
    for lake.visible.messages in steps[:-1]:
        lake.cycle()
    lake.tables, lake.visible.messages = TABLES, steps[-1]
    for _ in range(2):
        lake.cycle()
    items, pairs = lake.rows("items"), lake.rows("pairs")
    assert [r["_offset"] for r in items] == sorted(r["_offset"] for r in items) and len(items) == 42
    assert [r["_op"] for r in pairs] == ["c", "d", "c", "t"] and len({r["_commit_lsn"] for r in pairs}) == 1
    numbers = sorted({r["_commit_lsn"] for r in (*items, *pairs)})
    assert numbers[0] == 1 and numbers[-1] < 20 and len(numbers) > 4
    for rows in (items, pairs):
        assert len({(r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)
    for cut in lake.kept("cuts"):
        told_to = dict(part.rsplit(":", 1) for part in cut["position"].partition("@")[0].split(","))
        below = [r for r in items if r["_commit_lsn"] <= cut["cut_lsn"]]
        assert {r["_offset"] for r in below} == {
            r["_offset"] for r in items if r["_offset"] < int(told_to["public.items/0"])
        }
    lake.settings = told
    with pytest.raises(LakehouseError, match="a change without its transaction"):
        lake.visible.messages = [*steps[-1], steps[-1][-1] | {"offset": 200}]
        lake.cycle()


def test_a_source_that_was_read_with_transactions_is_not_read_without(lake: Lake) -> None:
    *_, lake.visible.messages = grown(200)
    lake.cycle()
    of = cast(DebeziumSettings, lake.settings.sources["shop"]).model_copy(update={"transactions": None})
    lake.settings = lake.settings.model_copy(update={"sources": {"shop": of}})
    with pytest.raises(LakehouseError, match="`transactions` is not set any more"):
        lake.cycle()


def test_a_topic_that_was_read_as_another_table_is_read_from_its_beginning_by_a_recovery(lake: Lake) -> None:
    """Its table began in the middle of the topic, without a word: rows that had not changed since were missing."""
    *_, lake.visible.messages = grown(200)
    lake.cycle()
    lake.tables = (TABLES[0], TABLES[1].model_copy(update={"name": "couples"}))
    lake.cycle()
    with store.connect_catalog(lake.settings) as states:
        couples = store.read_positions(states, "shop")["couples"]
        assert couples.state == "new" and "topic public.pairs was read before, as table 'pairs'" in str(couples.reason)
        with module.DebeziumSource(lake.settings, "shop").open() as opened:
            opened.begin_anew(states)(states)
    lake.cycle()
    assert [r["_op"] for r in lake.rows("couples")] == ["c", "d", "c", "t"]


def recover(lake: Lake) -> None:
    with store.connect_catalog(lake.settings) as states, module.DebeziumSource(lake.settings, "shop").open() as opened:
        opened.begin_anew(states)(states)


def test_recoveries_without_a_cycle_between_them_read_nothing_twice(lake: Lake) -> None:
    *steps, last = grown(30)
    for lake.visible.messages in steps:
        lake.cycle()
    for _ in range(2):
        recover(lake)
    lake.visible.messages = last
    lake.cycle()
    items = lake.rows("items")
    assert sorted(r["_offset"] for r in items if r["_seq"] % 2 == 0) == sorted({r["_offset"] for r in items})
    assert {r["_epoch"] for r in items} == {1, 3} and len(items) == 42


def test_a_parked_table_misses_nothing_of_a_recovery(lake: Lake) -> None:
    """An event whose END was told before the recovery is kept aside, too: it held up all that came behind it."""
    of, right = cast(DebeziumSettings, lake.settings.sources["shop"]), lake.settings
    lake.settings = right.model_copy(update={"sources": {"shop": of.model_copy(update={"decimals": None})}})
    *steps, last = grown(30)
    for lake.visible.messages in steps:
        lake.cycle()
    recover(lake)
    lake.visible.messages = last
    lake.cycle()
    event = next(m for m in PLAIN if m["topic"] == "public.items" and m["offset"] == 4)
    lake.visible.messages = [*last, event | {"offset": 60}]
    lake.cycle()
    kept = lake.kept("spool")
    assert lake.rows("items") == [] and {r["epoch"] for r in kept} == {1, 2} and 60 in {r["offset"] for r in kept}
    lake.settings = right
    operate.resume(lake.settings, TABLES[0])
    lake.cycle()
    items = lake.rows("items")
    assert len(items) == 43 and items[-1]["_offset"] == 60 and items[-1]["_epoch"] == 2 and lake.kept("spool") == []
