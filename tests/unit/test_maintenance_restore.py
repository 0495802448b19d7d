"""Which state a table was in at a moment, from whatever metadata is left; and that a copy of it stands on its own."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lakehouse.catalog.open import PUBLISHED
from lakehouse.catalog.past import milliseconds, newest_until
from lakehouse.catalog.pins import Pinned
from lakehouse.catalog.writing.commit import commit_on
from lakehouse.catalog.writing.next_tables import BUILT_FROM
from lakehouse.errors import LakehouseError
from maintenance.actions.expire_snapshots import Expiry
from maintenance.command.restore import past
from maintenance.inventory.in_use import all_tables, elsewhere, living_on
from maintenance.inventory.outcome import TableName
from maintenance.inventory.pins import complete_states, pin_cut, pin_states, pin_table, pins, unpin
from maintenance.restore.moments import find
from maintenance.restore.table import Restored, _put_back, _register

SCHEMA = pa.schema([("id", pa.int64())])
NAME = TableName("shop", "sales")


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table(NAME, SCHEMA, properties={"write.metadata.previous-versions-max": "1"})


def grow(table: Table, times: int) -> list[datetime]:
    """Appends row by row; the moments behind each."""
    moments = []
    for number in range(times):
        table.append(pa.Table.from_pylist([{"id": number}], SCHEMA))
        moments.append(datetime.now(UTC))
        time.sleep(0.01)
    return moments


def ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def expire(catalog: SqlCatalog, *snapshots: int) -> Table:
    loaded = catalog.load_table(NAME)
    return commit_on(catalog, loaded, tuple(Expiry(snapshots, (), {}).updates(loaded)))


def state(table: Table, at: datetime) -> int:
    return find(cast(Any, table.io), table, at).snapshot.snapshot_id


def session(catalog: SqlCatalog) -> Any:
    def once(name: str, make: Callable[[], Any]) -> Any:
        return make()

    load = lambda name: catalog.load_table(name) if catalog.table_exists(name) else None  # noqa: E731
    return SimpleNamespace(catalog=catalog, io=catalog._load_file_io(), load=load, once=once)


def test_each_moment_finds_the_snapshot_that_was_the_newest_then(table: Table) -> None:
    moments = grow(table, 3)
    assert [state(table, at) for at in moments] == ids(table)
    with pytest.raises(LakehouseError, match=r"no state of .* is left; the oldest that is left is of"):
        state(table, moments[0] - timedelta(hours=1))


def test_a_snapshot_that_went_from_the_middle_is_found_in_an_earlier_metadata_file(
    catalog: SqlCatalog, table: Table
) -> None:
    moments = grow(table, 5)
    before = ids(table)
    table = expire(catalog, before[1], before[2])
    grow(table, 1)
    assert [state(table, at) for at in moments] == before


def test_what_was_expired_at_once_behind_its_commit_is_found_where_it_was_the_newest(
    catalog: SqlCatalog, table: Table
) -> None:
    moments = grow(table, 6)
    before = ids(table)
    table = expire(catalog, *before[:-1])
    assert [state(table, at) for at in moments] == before


def test_a_metadata_file_that_was_never_published_is_not_believed(catalog: SqlCatalog, table: Table) -> None:
    moments = grow(table, 2)
    loser = catalog.load_table(NAME)
    with loser.transaction() as lost:
        lost.append(pa.Table.from_pylist([{"id": 99}], SCHEMA))
        staged = catalog._update_and_stage_table(loser, NAME, (), lost._updates)
        catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        lost._updates, lost._requirements = (), ()
    bogus, before = staged.metadata.current_snapshot_id, ids(catalog.load_table(NAME))
    moments += grow(catalog.load_table(NAME), 3)
    after = ids(catalog.load_table(NAME))
    table = expire(catalog, *after[:-1])
    found = [state(table, at) for at in moments]
    assert found == after and bogus not in found and after[:2] == before


def test_until_a_build_was_published_the_state_is_the_one_before(catalog: SqlCatalog, table: Table) -> None:
    """A restore to before a bad build was published found that build itself, and reported success."""
    moments, published = grow(table, 3), datetime.now(UTC)
    first, second, third = ids(table)
    with table.transaction() as transaction:
        transaction.set_properties({f"{PUBLISHED}{third}": str(milliseconds(published))})
    wanted = [first, second, second, third]
    assert [state(table, at) for at in (*moments, published)] == wanted
    grow(table, 1)
    assert [state(table, at) for at in (*moments, published)] == wanted
    table = expire(catalog, first, second)
    assert [state(table, at) for at in (*moments, published)] == wanted, "in earlier metadata files"


def test_a_state_before_a_replacement_is_found_while_its_snapshot_is_there(catalog: SqlCatalog, table: Table) -> None:
    """`create or replace table` begins the log anew: the state before was said to be gone."""
    moments, metadata = grow(table, 3), table.metadata
    parentless = [snapshot.model_copy(update={"parent_snapshot_id": None}) for snapshot in metadata.snapshots]
    update = {"snapshots": parentless, "snapshot_log": metadata.snapshot_log[-1:]}
    replaced = Table(NAME, metadata.model_copy(update=update), table.metadata_location, table.io, catalog)
    assert [state(replaced, at) for at in moments] == ids(table)


def test_a_copy_beside_the_table_has_manifests_of_its_own_and_the_tables_data_files(
    catalog: SqlCatalog, table: Table
) -> None:
    moments = grow(table, 4)
    table = expire(catalog, *ids(table)[:3])
    moment, copy = find(cast(Any, table.io), table, moments[1]), TableName("shop", "sales__as_of_1")
    _register(session(catalog), NAME, copy, moment, moments[1])
    restored = catalog.load_table(copy)
    assert sorted(restored.scan().to_arrow().column("id").to_pylist()) == [0, 1]
    assert restored.properties["gc.enabled"] == "false" and not restored.location().startswith(table.location() + "/")
    manifests = set(restored.inspect.manifests().column("path").to_pylist())
    assert manifests and all(path.startswith(restored.location()) for path in manifests)
    assert living_on(all_tables(catalog), [NAME]) == [f"{NAME}: {copy} is a restored copy: drop it first"]
    assert living_on(all_tables(catalog), [NAME, copy]) == [] == living_on(all_tables(catalog), [copy])
    files = {task.file.file_path for task in restored.scan().plan_files()}
    assert files and files <= elsewhere(session(catalog), NAME), "nobody deletes what the copy needs"
    grow(restored, 1)
    assert len(catalog.load_table(copy).scan().to_arrow()) == 3
    assert len(catalog.load_table(NAME).scan().to_arrow()) == 4


def test_all_that_lives_on_the_files_of_a_table_is_found(catalog: SqlCatalog, table: Table) -> None:
    """A copy of a copy, a second name of the table and one that took its files over lost them without a word."""
    moments = grow(table, 2)
    copy, second = TableName("shop", "sales__as_of_1"), TableName("shop", "sales__as_of_1__as_of_2")
    _register(session(catalog), NAME, copy, find(cast(Any, table.io), table, moments[0]), moments[0])
    restored = catalog.load_table(copy)
    _register(session(catalog), copy, second, find(cast(Any, restored.io), restored, datetime.now(UTC)), moments[1])
    catalog.drop_table(copy)
    assert living_on(all_tables(catalog), [NAME]) == [f"{NAME}: {second} is a restored copy: drop it first"]
    catalog.drop_table(second)
    catalog.create_namespace("shop_next")
    for name in ("shop.frozen", "shop_next.sales"):  # the latter is where its own next state is built
        catalog.register_table(name, catalog.load_table(NAME).metadata_location)
    taken = catalog.create_table("shop.taken", SCHEMA)
    taken.add_files([task.file.file_path for task in catalog.load_table(NAME).scan().plan_files()])
    catalog.create_table("shop.sales_of_others", SCHEMA).append(pa.Table.from_pylist([{"id": 1}], SCHEMA))
    assert living_on(all_tables(catalog), [NAME]) == [
        f"{NAME}: shop.{name} lives on its files, and DROP TABLE would delete them: "
        f"run CALL \"lake\".system.unregister_table('shop', '{name}') first"
        for name in ("frozen", "taken")
    ]


def test_in_place_the_state_is_the_newest_and_what_came_later_can_be_restored_in_turn(
    catalog: SqlCatalog, table: Table
) -> None:
    moments = grow(table, 4)
    table = expire(catalog, *ids(table)[:3])
    _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moments[1]))
    table = catalog.load_table(NAME)
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [0, 1]
    time.sleep(0.01)
    back = datetime.now(UTC)
    grow(table, 1)
    table = catalog.load_table(NAME)
    assert len(table.scan().to_arrow()) == 3
    _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moments[3]))
    table = catalog.load_table(NAME)
    assert len(table.scan().to_arrow()) == 4
    assert find(cast(Any, table.io), table, back).snapshot.summary is not None


def test_in_place_the_table_forgets_its_loads_and_keeps_its_other_properties(catalog: SqlCatalog, table: Table) -> None:
    """A load that remembers more than the rows it finds never adds those that are missing."""
    moments = grow(table, 2)
    with table.transaction() as transaction:
        transaction.set_properties(
            {"lakehouse.loaded.stg": "2026|2|1", "lakehouse.loaded.ghost": "1", "comment": "a hub"}
        )
    _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moments[0]))
    properties = catalog.load_table(NAME).properties
    assert properties["comment"] == "a hub" and not [key for key in properties if key.startswith("lakehouse.loaded.")]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_mirror_of_then_does_not_say_where_the_one_of_now_stands(
    catalog: SqlCatalog, table: Table, in_place: bool
) -> None:
    """Who read on from its position, or remembered it, missed the changes in between."""
    moments, state = grow(table, 2), {"lakehouse.position": "1:0/1F5", "lakehouse.mirror": "{}", "comment": "stores"}
    with table.transaction() as transaction:
        transaction.set_properties(state)
    moment, copy = find(cast(Any, table.io), table, moments[0]), TableName("shop", "sales__as_of_1")
    if in_place:
        _put_back(session(catalog), NAME, table, moment)
    else:
        _register(session(catalog), NAME, copy, moment, moments[0])
    restored = catalog.load_table(NAME if in_place else copy)
    assert len(restored.scan().to_arrow()) == 1
    assert restored.properties["comment"] == "stores" and not {*list(state)[:2]} & {*restored.properties}


def test_in_place_nothing_changes_where_the_table_is_in_that_state_already(catalog: SqlCatalog, table: Table) -> None:
    """It reported success in the same words."""
    (moment,) = grow(table, 1)
    assert not _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moment))
    assert catalog.load_table(NAME).metadata_location == table.metadata_location
    told = Restored(NAME, 1, moment, 1_000, changed=False)
    assert str(told).startswith("shop.sales is in that state already; nothing changed: 1,000 rows, as of 20")
    assert str(replace(told, changed=True)).startswith("shop.sales: 1,000 rows, as of 20")


def test_a_mart_that_was_put_back_is_built_anew_by_the_next_build(catalog: SqlCatalog, table: Table) -> None:
    """It said that it was built from what there is, and showed its earlier state until something else came."""
    moments = grow(table, 2)
    with table.transaction() as transaction:
        transaction.set_properties({BUILT_FROM: "of the newest state"})
    _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moments[0]))
    assert BUILT_FROM not in catalog.load_table(NAME).properties


def test_in_place_the_table_says_since_when_it_has_which_state(catalog: SqlCatalog, table: Table) -> None:
    """A replacement, as of a mart, begins the log of snapshots anew: a pin of a moment between them took what had been
    rolled back."""
    moments = grow(table, 3)
    first, _, third = ids(table)
    before = datetime.now(UTC)
    time.sleep(0.01)
    _put_back(session(catalog), NAME, table, find(cast(Any, table.io), table, moments[0]))
    time.sleep(0.01)
    after = datetime.now(UTC)
    time.sleep(0.01)
    table = catalog.load_table(NAME)
    grow(table, 1)
    metadata = catalog.load_table(NAME).metadata
    replaced = metadata.model_copy(update={"snapshot_log": metadata.snapshot_log[-1:]})
    for found in (metadata, replaced):
        assert newest_until(found, before) == (third, True)
        assert newest_until(found, after) == (first, True)


def test_a_pin_is_a_tag_until_it_is_taken_off_or_over(catalog: SqlCatalog, table: Table) -> None:
    grow(table, 2)
    until = datetime.now(UTC) + timedelta(hours=1)
    (pin,) = pin_table(session(catalog), "report", NAME, ids(table)[0], until)
    assert pin.snapshot_id == ids(table)[0] and pin.until is not None
    assert abs(pin.until - until) < timedelta(seconds=1)
    assert "pin_report" in catalog.load_table(NAME).refs()
    assert [p.consumer for p in pins(session(catalog))] == ["report"]
    for wrong, message in (
        (lambda: pin_table(session(catalog), "report", NAME), r"'report' already pins shop\.sales"),
        (lambda: pin_table(session(catalog), "a-b", NAME), "cannot name a pin"),
        (lambda: pin_table(session(catalog), "x", NAME, 1), "snapshot 1 no longer exists"),
        (lambda: pin_table(session(catalog), "x", NAME, 0), "snapshot 0 no longer exists"),
        (lambda: pin_table(session(catalog), "x", TableName("shop", "no")), "nothing to pin"),
        (lambda: pin_cut(session(catalog), "x", "shop"), "has no cut yet"),
        (lambda: unpin(session(catalog), "x"), "'x' has no pins"),
    ):
        with pytest.raises(LakehouseError, match=message):
            wrong()
    unpin(session(catalog), "report")
    assert list(catalog.load_table(NAME).refs()) == ["main"]


def test_a_pin_that_was_killed_half_way_is_completed_and_one_of_another_cut_is_left_alone(
    catalog: SqlCatalog, table: Table
) -> None:
    """The next run took it for the whole pin: tables that it lacked were not kept."""
    grow(table, 2)
    other = TableName("shop", "stores")
    catalog.create_table(other, SCHEMA).append(pa.Table.from_pylist([{"id": 1}], SCHEMA))
    wanted = {NAME: ids(table)[0], other: ids(catalog.load_table(other))[0]}
    pin_states(session(catalog), "close", Pinned({NAME: wanted[NAME]}, "shop=1:0/1"))
    made = complete_states(session(catalog), "close", Pinned(wanted, "shop=1:0/1"))
    assert [pin.table for pin in made] == [other]
    assert {pin.table: pin.snapshot_id for pin in pins(session(catalog))} == wanted
    assert complete_states(session(catalog), "close", Pinned(wanted, "shop=1:0/1")) == []
    with pytest.raises(LakehouseError, match="'close' pins shop=1:0/1 already, and not shop=1:0/2"):
        complete_states(session(catalog), "close", Pinned(wanted, "shop=1:0/2"))


def test_of_two_that_make_one_pin_at_once_neither_mixes_it_with_another_state(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(table, 2)
    monkeypatch.setattr("maintenance.inventory.pins.pins", lambda _: [])  # neither has seen the other yet
    pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0]}, "shop=1:0/1"))
    pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0]}, "shop=1:0/1"))
    with pytest.raises(LakehouseError, match=r"'close' was pinned by somebody else meanwhile, .* of shop\.sales"):
        pin_states(session(catalog), "close", Pinned({NAME: ids(table)[1]}, "shop=1:0/2"))
    kept = catalog.load_table(NAME)
    assert kept.metadata.refs["pin_close"].snapshot_id == ids(table)[0]
    assert kept.properties["lakehouse.pin.close"] == "shop=1:0/1"


def test_a_pin_that_fails_leaves_what_another_one_of_its_name_has_put_on(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the tags of a finished pin off, whose tables then expired."""
    grow(table, 2)
    other = TableName("shop", "stores")
    catalog.create_table(other, SCHEMA).append(pa.Table.from_pylist([{"id": 1}], SCHEMA))
    monkeypatch.setattr("maintenance.inventory.pins.pins", lambda _: [])  # neither has seen the other yet
    pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0]}, "shop=1:0/1"))
    with pytest.raises(LakehouseError, match="snapshot 0 no longer exists"):
        pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0], other: 0}, "shop=1:0/1"))
    kept = catalog.load_table(NAME)
    assert kept.metadata.refs["pin_close"].snapshot_id == ids(table)[0]
    assert kept.properties["lakehouse.pin.close"] == "shop=1:0/1"


def test_a_pin_until_another_time_is_another_one(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for a year was told that the pin was made, and it ended after a day."""
    grow(table, 1)
    monkeypatch.setattr("maintenance.inventory.pins.pins", lambda _: [])
    wanted, day = Pinned({NAME: ids(table)[0]}, "shop=1:0/1"), datetime.now(UTC) + timedelta(days=1)
    for _ in range(2):
        [pin] = pin_states(session(catalog), "close", wanted, day)
        assert pin.ends_at(day)
    for until in (day + timedelta(days=365), None):
        with pytest.raises(LakehouseError, match=r"by somebody else meanwhile, .* or until another time"):
            pin_states(session(catalog), "close", wanted, until)


def test_a_pin_that_somebody_takes_off_while_it_is_made_is_not_told_to_be_there(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(table, 1)
    monkeypatch.setattr("maintenance.inventory.pins._put_on", lambda *_: False)
    with pytest.raises(LakehouseError, match=r"'close' was taken off shop\.sales by somebody else meanwhile"):
        pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0]}, "shop=1:0/1"))


def test_a_pin_says_of_which_cut_it_is_until_it_is_taken_off_or_expires(catalog: SqlCatalog, table: Table) -> None:
    grow(table, 1)
    for end in (lambda: unpin(session(catalog), "close"), lambda: expire_reference(catalog, "pin_close")):
        pin_states(session(catalog), "close", Pinned({NAME: ids(table)[0]}, "shop=1:0/1", "gone=1:0/2"))
        assert catalog.load_table(NAME).properties["lakehouse.pin.close.others"] == "gone=1:0/2"
        assert [(pin.cut, pin.as_dict()["cut"]) for pin in pins(session(catalog))] == [("shop=1:0/1", "shop=1:0/1")]
        end()
        assert not pins(session(catalog))
        assert not [key for key in catalog.load_table(NAME).properties if key.startswith("lakehouse.pin.")]


def expire_reference(catalog: SqlCatalog, name: str) -> None:
    loaded = catalog.load_table(NAME)
    commit_on(catalog, loaded, tuple(Expiry((), (name,), {}).updates(loaded)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "is no time in ISO 8601"),
        ("2026-11-20+02:00", "is no time in ISO 8601"),  # two o'clock, to Python
        ("2026-11-20x10:00", "is no time in ISO 8601"),
        ("", "is no time in ISO 8601"),
        ("2999-01-01", "is not in the past"),
        ("1969-12-31T23:59", "is not in the past"),
        ("0001-01-01T00:00+14:00", "is no time in ISO 8601"),
        ("9999-12-31T23:59-14:00", "is no time in ISO 8601"),
    ],
)
def test_a_time_that_no_state_can_be_of_is_refused(text: str, message: str) -> None:
    with pytest.raises(LakehouseError, match=message):
        past(text)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert past("2026-01-02T03:04") == past("2026-01-02T05:04+02:00") == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
