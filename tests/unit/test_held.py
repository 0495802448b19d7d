"""A declared flush: reads are held and shown, published together, and neither lost nor doubled by a crash."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from held_topics import PARTITIONS, Files, Follower, Lake, declared, make_lake
from pyiceberg.table.snapshots import Operation

from ingestion.pipeline import held as held_module
from ingestion.pipeline import hold, load_changes
from ingestion.pipeline.session import RowCounts
from ingestion.run import operate
from ingestion.run.stopped import publish_held
from ingestion.schema.offsets import Offsets
from ingestion.state import lease as leases
from ingestion.state import live, store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.live_tables import POSITION, SNAPSHOT, only_rewritten
from lakehouse.catalog.pins import TAG
from lakehouse.catalog.relations import TableName
from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import ROLES, Rights, ensure_own_logins
from lakehouse.settings import Settings
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.tokens import Tokens
from lakehouse_serve.answers import Access, Answers, Caller, Refused
from lakehouse_serve.past.moments import prefix_of
from lakehouse_serve.reading import CatalogRows
from lakehouse_serve.relations import Relations
from maintenance.inventory.in_use import elsewhere
from tests.marks import slow

pytestmark = pytest.mark.stack


@pytest.fixture
def lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake whose table has been loaded, with three published rows."""
    made = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    made.once()
    made.broker.send("clicks", 3)
    made.once()
    yield made
    if made.follower is not None:
        made.kill()


def of_state(lake: Lake, query: str) -> list[tuple[Any, ...]]:
    with store.connect_catalog(lake.settings) as states:
        return states.execute(cast(Any, query)).fetchall()


def test_reads_are_shown_at_once_and_published_together_when_the_flush_is_due(lake: Lake) -> None:
    follower, before = lake.start(), lake.snapshots()
    for count in (1, 2, 3):
        lake.broker.send("clicks", count)
        assert follower.read() == 0
        assert lake.shown() == list(range(lake.broker.sent)) and lake.committed() == [0, 1, 2]
    lake.now = 601.0
    assert follower.read() == 6 and lake.committed() == lake.shown() == list(range(9))
    assert lake.snapshots() == before + 1, "one snapshot of all reads"
    lake.broker.send("clicks", 1)
    assert follower.read() == 0 and lake.shown() == list(range(10)), "the next interval"
    assert of_state(lake, "SELECT count(*) FROM lakehouse.cycles WHERE cut_lsn IS NOT NULL")[0][0] >= 2


def test_a_state_says_up_to_where_it_goes_and_keeps_the_earlier_ones(lake: Lake) -> None:
    follower, seen = lake.start(), {}
    for _ in range(3):
        lake.broker.send("clicks", 2)
        follower.read()
        table = lake.table_at(lake.document().location)
        end = {("clicks", n): len(lake.broker.logs["clicks", n]) for n in range(PARTITIONS)}
        assert table.properties[POSITION] == Offsets.of(end).text, "the next offset of each partition"
        assert table.properties[SNAPSHOT] == str(table.metadata.current_snapshot_id)
        seen[int(table.properties[SNAPSHOT])] = lake.broker.sent
    for pinned, sent in seen.items():
        rows = table.scan(snapshot_id=pinned).to_arrow().column("id").to_pylist()
        assert sorted(rows) == list(range(sent))


def test_what_is_held_is_published_for_somebody_who_waits(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 4)
    follower.read()
    with store.connect_catalog(lake.settings) as states:
        live.ask_for_flush(states, "web")
    assert follower.read() == 4 and lake.committed() == list(range(7))
    lake.broker.send("clicks", 1)
    assert follower.read() == 0, "once"


def test_a_follower_that_is_stopped_publishes_what_it_holds_and_reads_no_further(lake: Lake) -> None:
    follower, before = lake.start(), lake.snapshots()
    assert stop(follower) == {}
    for _ in range(2):
        lake.broker.send("clicks", 3)
        follower.read()
    lake.broker.send("clicks", 5)
    assert stop(follower) == {"clicks": {"c": 6}} and lake.snapshots() == before + 1
    lake.kill()
    assert lake.committed() == list(range(9))
    assert not of_state(lake, "SELECT 1 FROM lakehouse.live WHERE metadata_location IS NOT NULL")
    assert lake.start().read() == 0 and lake.shown() == list(range(14)), "the rest is the next follower's"


@pytest.mark.parametrize("what", ["broker", "state", "lease"])
def test_what_a_stopped_follower_cannot_publish_is_told_and_read_again(
    lake: Lake, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 4)
    follower.read()
    if what == "broker":
        lake.broker.cluster_id = "another"
    elif what == "state":
        store.revise(follower.states, "web")
    else:
        follower.states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
        assert leases.acquire(follower.states, "web", 60, "once")
    assert stop(follower) == {}
    assert "the next follower reads it again" in caplog.text and lake.committed() == [0, 1, 2]
    lake.kill()
    lake.broker.cluster_id = "c"
    lake.once()
    assert lake.committed() == list(range(7))


def stop(follower: Follower) -> RowCounts:
    """What a follower does at last; the rows that it publishes."""
    held = follower.session.held
    assert held is not None
    return publish_held(follower.session, held, follower.opened, follower.states)


def test_what_retention_would_take_from_the_next_follower_is_published_at_once(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 6)
    follower.read()
    lake.broker.gone = 3
    assert follower.read() == 6 and lake.committed() == list(range(9))
    lake.broker.send("clicks", 2)
    assert follower.read() == 0 and len(lake.shown()) == 11, "and held again while all of it is still there"


POISON = "no object"


def aside(lake: Lake, kept_in: str) -> list[tuple[Any, ...]]:
    """Where the records are from that are kept aside."""
    if not lake.catalog.table_exists(("meta", kept_in)):
        return []
    rows = lake.catalog.load_table(("meta", kept_in)).scan().to_arrow().to_pylist()
    return sorted((row["table"], row["partition"], row["offset"]) for row in rows)


def end(lake: Lake) -> str:
    return Offsets.of({("clicks", n): len(lake.broker.logs["clicks", n]) for n in range(PARTITIONS)}).text


def test_what_cannot_be_read_is_held_with_what_can(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """One unreadable event in each read made each read a publish of all tables: 3,600 snapshots an hour."""
    follower, before = lake.start(), lake.snapshots()
    for count in (1, 2, 3):
        lake.broker.send("clicks", count)
        lake.broker.logs["clicks", 0].append(POISON)
        assert follower.read() == 0 and lake.shown() == list(range(lake.broker.sent))
        assert lake.snapshots() == before and not aside(lake, "quarantine")
    assert "dead letters" not in caplog.text, "they are told once they are in meta.quarantine"
    lake.now = 601.0
    assert follower.read() == 6 and lake.committed() == list(range(9)) and lake.snapshots() == before + 1
    assert len(aside(lake, "quarantine")) == len(set(aside(lake, "quarantine"))) == 3
    assert caplog.text.count("new dead letters: 3 of web.clicks") == 1
    lake.broker.logs["clicks", 1].append(POISON)
    assert follower.read() == 0 and len(aside(lake, "quarantine")) == 3, "the next interval, with nothing that lands"
    assert lake.shown() == lake.committed() and lake.table_at(lake.document().location).properties[POSITION] == end(
        lake
    )
    with store.connect_catalog(lake.settings) as states:
        shown = live.shown(states, "web")
        assert shown is not None and shown.position.text == end(lake), "or the source would count as behind"
    lake.now = 1300.0
    follower.read()
    assert len(aside(lake, "quarantine")) == 4 and lake.snapshots() == before + 1


def test_held_dead_letters_outlast_a_crash_once_each(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 2)
    lake.broker.logs["clicks", 0] += [POISON, POISON]
    follower.read()
    lake.kill()
    assert not aside(lake, "quarantine")
    follower = lake.start()
    follower.read()
    lake.broker.logs["clicks", 1].append(POISON)
    follower.read()
    stop(follower)
    lake.kill()
    lake.once()
    assert len(aside(lake, "quarantine")) == len(set(aside(lake, "quarantine"))) == 3
    assert lake.committed() == list(range(5))


def test_events_of_a_paused_table_are_held_and_land_once_it_is_resumed(lake: Lake) -> None:
    """Traffic of one table that is paused or parked made each read a publish."""
    lake.broker.create("views")
    lake.source = declared("clicks", "views")
    lake.broker.send("views", 1)
    lake.once()
    operate.pause(lake.settings, lake.source.table("views"))
    lake.once()
    follower, before = lake.start(), lake.snapshots()
    for _ in range(3):
        lake.broker.send("clicks", 1)
        lake.broker.send("views", 1)
        assert follower.read() == 0 and lake.snapshots() == before and not aside(lake, "spool")
    lake.broker.send("views", 2)
    follower.read()
    lake.kill()
    lake.broker.send("views", 1)
    follower = lake.start()
    follower.read()
    assert not aside(lake, "spool") and lake.snapshots() == before
    lake.now = 601.0
    assert follower.read() == 3 and lake.snapshots() == before + 1
    assert len(aside(lake, "spool")) == len(set(aside(lake, "spool"))) == 6
    lake.broker.send("views", 1)
    follower.read()
    operate.resume(lake.settings, lake.source.table("views"))
    follower.read()
    assert len(lake.committed("views")) == 8 and not aside(lake, "spool")


def test_a_source_without_a_table_that_lands_holds_nothing(lake: Lake) -> None:
    """Nothing could say how far it has read: it would count as behind."""
    operate.pause(lake.settings, lake.source.table("clicks"))
    lake.once()
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    assert len(aside(lake, "spool")) == 2


def test_texts_of_values_that_the_lake_cannot_hold_are_held_with_their_rows(lake: Lake) -> None:
    lake.source = declared("clicks", columns={"id": "bigint", "page": "date"}, on_unrepresentable="null")
    lake.once()
    follower, before = lake.start(), lake.snapshots()
    lake.broker.says = "12000-01-01"
    for _ in range(2):
        lake.broker.send("clicks", 1)
        assert follower.read() == 0 and lake.snapshots() == before
    lake.now = 601.0
    assert follower.read() == 2
    assert lake.catalog.load_table(("meta", "unrepresentable")).scan().to_arrow().num_rows == 2


def test_what_is_kept_aside_is_published_early_before_its_files_are_too_many(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "MOST_ASIDE", 3)
    follower = lake.start()
    for _ in range(3):
        lake.broker.logs["clicks", 0].append(POISON)
        follower.read()
    assert not aside(lake, "quarantine")
    follower.read()
    assert len(aside(lake, "quarantine")) == 3


def test_a_killed_follower_is_followed_by_one_that_goes_no_step_back(lake: Lake) -> None:
    """The backlog is read in pieces, of which the first ones end before what readers have seen."""
    small = lake.settings.ingestion.model_copy(update={"cycle_max_bytes": 256 * 4})
    follower = lake.start()
    lake.broker.send("clicks", 40)
    follower.read()
    lake.kill()
    assert lake.shown() == list(range(43)) and lake.committed() == [0, 1, 2]
    lake.settings = lake.settings.model_copy(update={"ingestion": small})
    lake.broker.send("clicks", 30)
    seen: list[int] = []
    follower = lake.start()
    real = store.advance_positions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "advance_positions", lambda *a: (seen.append(a[2].count), real(*a)))
        follower.read()
        assert lake.shown() == list(range(73)) and not seen
        lake.kill()
        lake.once()
    assert min(seen) >= 73 and lake.committed() == lake.shown() == list(range(73))


def test_held_files_are_spared_while_other_cycles_come_and_go(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 1)
    follower.read()
    held = follower.session.held
    assert held is not None and held.cycle_id in follower.session.live
    store.register_staged(follower.states, "another", "web", ["file:///x"], follower.session.live)
    prefixes = of_state(lake, f"SELECT prefix FROM lakehouse.staged_files WHERE cycle_id = '{held.cycle_id}'")
    [file] = held.written[0].files
    assert any(file.file_path.startswith(prefix) for (prefix,) in prefixes)
    lake.now = 601.0
    follower.read()
    assert not of_state(lake, f"SELECT 1 FROM lakehouse.staged_files WHERE cycle_id = '{held.cycle_id}'")
    assert not follower.session.live


def test_orphan_removal_spares_the_files_of_a_live_state_that_a_killed_follower_has_left(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 1)
    follower.read()
    held = follower.session.held
    assert held is not None
    [file], state = held.written[0].files, held.staged["clicks"].table
    lake.kill()
    snapshot = state.current_snapshot()
    assert snapshot is not None
    wanted = {file.file_path, state.metadata_location, snapshot.manifest_list}
    session: Any = SimpleNamespace(
        catalog=lake.catalog, load=lambda name: lake.catalog.load_table(tuple(name)), once=lambda name, make: make()
    )
    assert wanted <= elsewhere(session, TableName("raw_web", "clicks"))
    lake.once()
    assert not wanted & elsewhere(session, TableName("raw_web", "clicks"))


def test_a_new_table_and_what_it_changes_publishes_what_is_held_with_it(lake: Lake) -> None:
    lake.broker.create("views")
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    lake.kill()
    lake.source = declared("clicks", "views")
    lake.broker.send("views", 2)
    lake.once()
    follower = lake.start()
    assert lake.shown() == lake.committed() == list(range(5))
    lake.broker.send("views", 1)
    lake.broker.send("clicks", 1)
    assert follower.read() == 0 and lake.shown("views") == [5, 6, 7] and lake.committed("views") == [5, 6]


def test_what_was_planned_before_somebody_changed_the_state_is_read_again(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 5)
    follower.read()
    with store.connect_catalog(lake.settings) as states:
        store.revise(states, "web")
    lake.now = 601.0
    assert follower.read() == 0, "it was forgotten, and is held once more"
    assert lake.shown() == list(range(8)) and lake.committed() == [0, 1, 2]
    lake.now = 1300.0
    assert follower.read() == 5 and lake.committed() == list(range(8))


def test_a_writer_that_lost_its_lease_shows_nothing(lake: Lake) -> None:
    zombie = lake.start()
    lake.broker.send("clicks", 1)
    zombie.read()
    before = lake.document().location
    lake.broker.send("clicks", 1)
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
        assert leases.acquire(states, "web", 60, "once")
    with pytest.raises(leases.LeaseLost):
        zombie.read()
    assert lake.document().location == before


def test_a_rewrite_leaves_the_live_state_and_anything_else_ends_it(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    lake.rewrite()
    lake.rewrite()
    assert lake.shown() == list(range(5)), "the same rows in other files"
    lake.broker.send("clicks", 1)
    follower.read()
    assert lake.shown() == list(range(6)), "staged on the new state"
    lake.rewrite(operation=Operation.OVERWRITE)
    assert lake.shown() == lake.committed() == [0, 1, 2], "rows may have been erased: nothing is shown beside them"
    lake.broker.send("clicks", 1)
    follower.read()
    assert lake.shown() == list(range(7))


def test_an_added_column_comes_at_once_to_what_is_published_and_what_is_held(lake: Lake) -> None:
    """There is one table: its earlier rows, published or held, have NULL, and the later ones their values."""
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    lake.kill()
    lake.source = declared("clicks", columns={"id": "bigint", "page": "text"})
    lake.broker.says = "/x"
    lake.broker.send("clicks", 2)
    follower = lake.start()
    assert follower.read() == 4, "a change of columns is published with all that is held"
    lake.broker.send("clicks", 1)
    assert follower.read() == 0
    rows = lake.table_at(lake.document().location).scan().to_arrow().to_pylist()
    pages = {row["id"]: row["page"] for row in rows}
    assert pages == dict.fromkeys(range(5)) | dict.fromkeys(range(5, 8), "/x")


def test_a_live_table_is_shown_to_whom_its_table_is_shown_and_the_past_has_none(lake: Lake, tmp_path: Path) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    relation = {"schema": "raw_web", "name": "clicks", "least": "reader", "personal": ["id"]}
    (tmp_path / RELATIONS).write_text(json.dumps({"relations": [relation]}))
    ensure_own_logins(tmp_path, {"lakehouse": "w", "reader": "r", "privacy": "p"})
    grants, rows = Grants(tmp_path), CatalogRows(lake.settings, cast(Any, Files()))
    grants.refresh()
    tokens, none = Tokens("s" * 32), cast(Any, None)
    ask = Answers("lake", Relations(rows, grants), none, none, tokens, Access("http://here", "here"))
    callers = {role: Caller(role, Rights(role), "") for role in ROLES}
    for caller in callers.values():
        assert ask.names(caller, "lake", "live_raw_web", "TABLE")["identifiers"] == [
            {"namespace": ["live_raw_web"], "name": "clicks"}
        ]
    for role in ("writer", "privacy"):
        found = json.loads(ask.table(callers[role], "lake", "live_raw_web", "clicks"))
        assert found["metadata-location"] == lake.document().location
    with pytest.raises(Refused, match=r"personal columns \(id\)"):
        ask.table(callers["reader"], "lake", "live_raw_web", "clicks")
    assert "live_meta" not in str(ask.namespaces(callers["writer"], "lake", None))

    table = lake.catalog.load_table(("raw_web", "clicks"))
    assert table.metadata.current_snapshot_id is not None
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, TAG + "then").commit()
    past = prefix_of("lake@pin:then")
    assert ask.namespaces(callers["writer"], past, None) == {"namespaces": [["raw_web"]]}
    with pytest.raises(Refused, match=r"no table live_raw_web\.clicks"):
        ask.table(callers["writer"], past, "live_raw_web", "clicks")
    rows.close()


def test_only_rewrites_leave_a_state_on_its_base() -> None:
    def metadata(*operations: str, current: int | None = None) -> dict[str, Any]:
        snapshots = [
            {"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "summary": {"operation": operation}}
            for n, operation in enumerate(operations, start=1)
        ]
        return {"snapshots": snapshots, "current-snapshot-id": len(operations) if current is None else current}

    assert only_rewritten(metadata("append", "replace", "replace"), 1)
    assert not only_rewritten(metadata("append", "replace", "append"), 1)
    assert not only_rewritten(metadata("append", "append", current=1), 2), "the table was rolled back"
    assert not only_rewritten({"snapshots": [], "current-snapshot-id": 7}, 7), "its files may be gone"
    assert only_rewritten({"snapshots": [], "current-snapshot-id": -1}, None)
    assert not only_rewritten(metadata("append"), None)


def test_events_that_readers_have_seen_and_brokers_have_lost_are_told(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 4)
    follower.read()
    lake.kill()
    lake.broker.logs["clicks", 0].pop()
    with pytest.raises(LakehouseError, match=r"partition 0 ends at offset 3, before 4.*lost events"):
        lake.start().read()


def test_without_the_declaration_nothing_is_held_and_nothing_is_listed(lake: Lake) -> None:
    follower = lake.start()
    lake.broker.send("clicks", 2)
    follower.read()
    lake.kill()
    lake.source = declared("clicks", flush=None)
    follower = lake.start()
    lake.broker.send("clicks", 1)
    assert follower.read() == 3 and lake.committed() == list(range(6))
    assert not of_state(lake, "SELECT 1 FROM lakehouse.live")


class Killed(BaseException):
    """The end of the process, at one of the places where something was written just before or after."""


DEATHS = [(hold, "stage_live"), (live, "show"), (load_changes, "publish")]
STEPS = ["send", "send", "send", "poison", "read", "read", "read", "die", "later", "kill", "rewrite", "once", "revise"]


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 12))])
def test_readers_see_a_prefix_that_never_shrinks_whatever_happens(lake: Lake, seed: int) -> None:
    """Random steps; the oracle is the log itself. Each table is read without a gap, a double or a step back."""
    chance, least, published = random.Random(seed), 0, 0
    for _ in range(30):
        step = chance.choice(STEPS)
        if step == "send":
            lake.broker.send("clicks", chance.randrange(1, 6))
        elif step == "poison":
            lake.broker.logs["clicks", chance.randrange(PARTITIONS)].append(POISON)
        elif step == "read":
            (lake.follower or lake.start()).read()
        elif step == "die":
            die(lake, *chance.choice(DEATHS), before=chance.random() < 0.5)
        elif step == "later":
            lake.now += 400.0
        elif step == "kill" and lake.follower:
            lake.kill()
        elif step == "rewrite":
            lake.rewrite()
        elif step == "once" and not lake.follower:
            lake.once()
        elif step == "revise" and lake.follower:
            store.revise(lake.follower.states, "web")
        if not of_state(lake, "SELECT 1 FROM lakehouse.live"):
            continue
        rows, committed = lake.shown(), lake.committed()
        assert rows == list(range(len(rows))) and committed == list(range(len(committed))), step
        assert len(rows) >= least and len(committed) >= published and len(rows) >= len(committed), step
        least, published = len(rows), len(committed)
    if lake.follower:
        lake.kill()
    lake.once()
    assert lake.committed() == list(range(lake.broker.sent))
    logs = lake.broker.logs
    poison = [("clicks", n, at) for n in range(PARTITIONS) for at, e in enumerate(logs["clicks", n]) if e == POISON]
    assert aside(lake, "quarantine") == poison, "each dead letter is there once"


def die(lake: Lake, module: Any, name: str, *, before: bool) -> None:
    """A read that ends the process just before or after a step of it, if it comes to that."""
    follower, real = lake.follower or lake.start(), getattr(module, name)

    def killed(*given: Any, **named: Any) -> Any:
        if not before:
            real(*given, **named)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, killed)
        with suppress(Killed):
            follower.read()
            return
    lake.kill()
