"""dbt on Trino, against an oracle that knows no SQL: parsed is the log completed, the vault true under any arrival."""

import random
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

import pytest

from ingestion.schema.former_names import renamed
from lakehouse.catalog.loads.load_facts import LANDED_LATE, LEFT_OUT
from lakehouse.catalog.open import open_catalog
from lakehouse.migrations.parsed_flag import outdated, rename
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.restore.table import restore
from tests.histories import START, Clock, Row, TableHistory, change_at_random
from tests.unit.dbt_macros import macro
from tests.zoo import COLUMNS, Zoo, animals, random_animal

pytestmark = pytest.mark.stack
KEYS = list(range(1, 41))
Timeline = dict[Any, list[tuple[Any, ...]]]


@pytest.mark.slow
def test_parsed_is_the_log_completed_and_the_vault_follows_it(zoo: Zoo) -> None:
    """TOASTed columns through key changes, truncates, several versions of a key per load; a rerun does nothing. What
    was restored in place to the load before is whole again after the next run."""
    rng = random.Random(7)
    table, clock, at = animals(), Clock(rng), START
    for load in range(3):
        before_load = datetime.now(UTC)
        before = len(table.raw)
        for _ in range(400):
            change_at_random(table, clock, KEYS, random_animal(rng), truncates=load > 0)
        clock.left = 0
        at += timedelta(days=1)
        zoo.publish(table.raw[before:], at)
        zoo.dbt("build")
        assert_parsed_is_complete(zoo, table)
        assert_vault_is_true(zoo, table.versions)
        nobody = sum(version["_is_deleted"] or version["keeper_id"] is None for version in table.versions)
        assert zoo.counted("cdc_vault_keys_are_given") == nobody, "rows whose key is not given are counted"
    assert any(row["_op"] == "t" for row in table.raw), "the history should truncate"

    seen = zoo.snapshots()
    zoo.dbt("run")
    assert zoo.snapshots() == seen

    with closing(Session(zoo.settings)) as session:
        for name in ("hub_animal", "sat_animal_details", "ma_sat_animal", "eff_sat_animal_keeper", "rts_animal"):
            restore(session, TableName("vault", name), before_load, in_place=True)
    zoo.dbt("build")
    assert_vault_is_true(zoo, table.versions)


@pytest.mark.slow
def test_a_backfill_of_days_never_duplicates_and_brings_back_what_was_lost(zoo: Zoo) -> None:
    """Rows of two days vanish from parsed and vault; deriving these days again makes the lake whole."""
    rng = random.Random(11)
    table, clock = animals(), Clock(rng)
    for _ in range(600):
        change_at_random(table, clock, KEYS, random_animal(rng), truncates=True)
    zoo.publish(table.raw, START + timedelta(days=99))
    zoo.dbt("run")
    first = table.raw[len(table.raw) // 2]["_committed_at"].date()
    days = {"LAKEHOUSE_DAY_FROM": str(first), "LAKEHOUSE_DAY_TO": str(first + timedelta(days=1))}
    seen = zoo.snapshots()
    zoo.dbt("run", **days)
    assert zoo.snapshots() == seen

    lost = f"between timestamp '{first} 00:00:00 UTC' and timestamp '{first + timedelta(days=1)} 23:59:59.999999 UTC'"
    zoo.rows(f"delete from parsed.parsed_zoo__animals where _valid_from {lost}")
    for name in ("sat_animal_details", "sts_animal", "eff_sat_animal_keeper"):
        zoo.rows(f"delete from vault.{name} where applied_date {lost}")
    zoo.dbt("build", **days)
    assert_parsed_is_complete(zoo, table)
    assert_vault_is_true(zoo, table.versions)


@pytest.mark.slow
def test_parsed_is_made_anew_where_it_lacks_a_column(zoo: Zoo) -> None:
    """Declared later than it landed, or renamed: what was loaded before had nulls. And updates name what they lack as
    it was called then. Rolled back to before, it is made anew again; so it is where the column was of another type."""
    rng = random.Random(23)
    table, clock = animals(), Clock(rng)
    for _ in range(300):
        change_at_random(table, clock, KEYS, random_animal(rng), truncates=True)
    called = {"story": "tale", "name": "name"}
    landed = [row | {"_unchanged": [called[c] for c in row["_unchanged"] or ()] or None} for row in table.raw]
    zoo.publish(landed, START + timedelta(days=99))
    (was,) = renamed("tale", "story", START + timedelta(days=100), {}).items()
    zoo.rows(
        "alter table raw_zoo.animals set properties"
        f" extra_properties = map(array[{literal(was[0])}], array[{literal(was[1])}])"
    )
    zoo.dbt("run")
    assert_parsed_is_complete(zoo, table)

    zoo.rows("alter table parsed.parsed_zoo__animals drop column story")
    seen = zoo.snapshots()
    zoo.dbt("run")
    assert_parsed_is_complete(zoo, table)
    assert {name for name, snapshot in zoo.snapshots().items() if snapshot != seen[name]} == {"parsed_zoo__animals"}

    parsed = "parsed.parsed_zoo__animals"
    zoo.rows(f"alter table {parsed} execute rollback_to_snapshot({seen['parsed_zoo__animals']})")
    assert zoo.rows(f"select count(*) > 0, count(story) from {parsed}") == [[True, 0]], (
        "the column is there, in no file"
    )
    zoo.dbt("run")
    assert_parsed_is_complete(zoo, table)

    zoo.rows(f"alter table {parsed} drop column story")
    zoo.rows(f"alter table {parsed} add column story integer")
    zoo.dbt("run")
    assert_parsed_is_complete(zoo, table)
    noted = f'select value from parsed."parsed_zoo__animals$properties" where key = {literal(LEFT_OUT)}'
    assert zoo.rows(noted) == [["[]"]]


@pytest.mark.slow
@pytest.mark.parametrize("note", ['["story"]', ""], ids=["noted", "loaded by an earlier release"])
def test_a_column_that_was_not_declared_for_a_while_is_in_parsed_and_the_vault(zoo: Zoo, note: str) -> None:
    """Loads had left it out, and it is in the table still."""
    rng = random.Random(37)
    table, clock = animals(), Clock(rng)
    for _ in range(200):
        change_at_random(table, clock, KEYS, random_animal(rng), truncates=True)
    parsed = "parsed.parsed_zoo__animals"
    zoo.publish(table.raw[:120], START + timedelta(days=98))
    zoo.dbt("run")
    zoo.publish(table.raw[120:], START + timedelta(days=99))
    zoo.dbt("run", models=["parsed_zoo__animals"])
    zoo.rows(f"update {parsed} set story = null where _loaded_at = (select max(_loaded_at) from {parsed})")
    zoo.dbt("run")
    zoo.rows(f"alter table {parsed} set properties extra_properties = map(array[{literal(LEFT_OUT)}], array['{note}'])")
    assert_one_build_mends(zoo, table)

    zoo.rows(f"alter table {parsed} add column gone varchar")
    noted = f'select value from parsed."parsed_zoo__animals$properties" where key = {literal(LEFT_OUT)}'
    landed = len(table.raw)
    for _ in range(20):
        change_at_random(table, clock, KEYS, random_animal(rng))
    assert zoo.rows(noted) == [["[]"]]
    zoo.publish(table.raw[landed:], START + timedelta(days=100))
    zoo.dbt("run")
    assert_parsed_is_complete(zoo, table)
    assert zoo.rows(noted) == [['["gone"]']]


@pytest.mark.slow
def test_keys_of_real_that_trino_prints_alike_are_told_apart(zoo: Zoo) -> None:
    keys = "real '16777215', real '16777216', real '0.1', real '0.10000001', real 'NaN'"
    key = macro("comparable_key")([{"name": "k", "type": "real", "is_key": True}])
    found = zoo.rows(f"select count(distinct cast(k as varchar)), count(distinct {key}) from (values {keys}) as t (k)")
    assert found[0][0] < 5 and found[0][1] == 5


@pytest.mark.slow
def test_what_lands_late_is_in_parsed_and_the_vault_as_if_it_had_come_in_time(zoo: Zoo) -> None:
    """Dead letters that are replayed: later rows had the values before them, and truncates passed over their keys."""
    rng = random.Random(17)
    table, clock = animals(), Clock(rng)
    for _ in range(600):
        change_at_random(table, clock, KEYS, random_animal(rng), truncates=True)
    assert any(row["_op"] == "t" for row in table.raw) and any(row["_unchanged"] for row in table.raw)
    kept = sorted(rng.sample([at for at, row in enumerate(table.raw[:-1]) if row["_op"] != "t"], 60))
    in_time = [row for at, row in enumerate(table.raw) if at not in kept]
    for day, rows in enumerate((in_time[:250], in_time[250:])):
        zoo.publish(rows, START + timedelta(days=97 + day))
        zoo.dbt("run")
    at = START + timedelta(days=99)
    zoo.publish([table.raw[place] for place in kept], at)
    zoo.rows(
        "alter table raw_zoo.animals set properties"
        f" extra_properties = map(array[{literal(LANDED_LATE)}], array['{at:%Y-%m-%d %H:%M:%S.%f} UTC'])"
    )
    assert_one_build_mends(zoo, table)


@pytest.mark.slow
def test_tables_of_the_vault_that_were_rolled_back_have_every_row_after_the_next_load(zoo: Zoo) -> None:
    """By Trino's `rollback_to_snapshot`: their properties say what was loaded since, and their rows do not have it."""
    rng = random.Random(31)
    table, clock = animals(), Clock(rng)
    seen, loaded = {}, 0
    for load in range(3):
        for _ in range(80):
            change_at_random(table, clock, KEYS + list(range(1000 + 10 * load, 1010 + 10 * load)), random_animal(rng))
        zoo.publish(table.raw[loaded:], START + timedelta(days=load + 1))
        zoo.dbt("run")
        seen, loaded = seen or zoo.snapshots(), len(table.raw)
    for name in seen.keys() - {"parsed_zoo__animals"}:
        zoo.rows(f"alter table vault.{name} execute rollback_to_snapshot({seen[name]})")
    zoo.dbt("build")
    assert_vault_is_true(zoo, table.versions)
    now = zoo.snapshots()
    zoo.dbt("run")
    assert zoo.snapshots() == now, "a load after it finds nothing to do"


@pytest.mark.slow
def test_views_that_read_the_former_flag_are_made_anew_and_a_load_waits_for_it(zoo: Zoo) -> None:
    """As release 0.1 left them: the table, its current view, a stage, and views of somebody else's."""
    rng = random.Random(29)
    table, clock = animals(), Clock(rng)
    for _ in range(60):
        change_at_random(table, clock, KEYS, random_animal(rng))
    zoo.publish(table.raw[:-5], START + timedelta(days=1))
    zoo.dbt("run")
    parsed, shown = "parsed.parsed_zoo__animals", "select * from parsed.current_zoo__animals order by id"
    now, own = zoo.rows(shown), ["parsed.current_zoo__animals", "vault.stg_zoo__animals"]
    zoo.rows(f"alter table {parsed} rename column _is_deleted to _deleted")
    for view in own:
        [[text]] = zoo.rows(f"show create view {view}")
        zoo.rows(text.replace("_is_deleted", "_deleted").replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
    zoo.rows(f"create view parsed.of_others as select * from {parsed}")
    zoo.rows("create view parsed.above as select count_if(_deleted) as n from parsed.of_others")
    others = zoo.rows("select * from parsed.above")

    zoo.publish(table.raw[-5:], START + timedelta(days=2))
    with pytest.raises(AssertionError, match=r"parsed_zoo__animals.* run `lakehouse upgrade`, then load it again"):
        zoo.dbt("run")
    assert [row[0] for row in zoo.rows(f"describe {parsed}") if "deleted" in row[0]] == ["_deleted"]

    with closing(open_catalog(zoo.settings)) as catalog:
        found = outdated(zoo.settings, catalog)
        assert {*map(str, found.tables)} >= {parsed} and {*map(str, found.views)} >= {
            *own,
            "parsed.of_others",
            "parsed.above",
        }
        assert rename(zoo.settings, catalog) == []
        assert outdated(zoo.settings, catalog).lines() == []
    assert zoo.rows(shown) == now and zoo.rows("select * from parsed.above") == others
    for view in ("parsed.above", "parsed.of_others"):
        zoo.rows(f"drop view {view}")
    zoo.dbt("build")
    assert_parsed_is_complete(zoo, table)


@pytest.mark.slow
def test_as_of_a_commit_the_vault_answers_as_the_source_did_then(zoo: Zoo) -> None:
    """Copies of the source after each commit, against the rows that the PIT names, and those that held after its
    position; half the events come late."""
    rng = random.Random(31)
    table, clock = animals(), Clock(rng)
    copies: dict[datetime, list[list[Any]]] = {}
    commits: dict[datetime, tuple[int, int]] = {}
    for _ in range(300):
        change_at_random(table, clock, KEYS, random_animal(rng), truncates=True)
        copies[clock.now] = [[r[c] for c in ("id", "name", "story", "weight")] for r in table.rows.values()]
        commits[clock.now] = (table.raw[-1]["_epoch"], table.raw[-1]["_commit_lsn"])
    zoo.publish([table.raw[0]], START)
    zoo.dbt("run")
    late = rng.sample(table.versions[1:], len(table.versions) // 2)
    for day, batch in enumerate(([v for v in table.versions[1:] if v not in late], late)):
        insert_parsed(zoo, batch, START + timedelta(days=100 + day))
        zoo.dbt("build", without="parsed")
    facts = "id, name, story, weight"
    named = (
        "from vault.pit_animal as pit join vault.hub_animal as hub on hub.hk_animal = pit.hk_animal"
        " join vault.sat_animal_details as sat on sat.hk_animal = pit.sat_animal_details_hk"
        " and sat.source_seq = pit.sat_animal_details_seq where not sat.is_deleted"
    )
    held = (
        "from vault.sat_animal_details_v1 as v join vault.hub_animal as hub on hub.hk_animal = v.hk_animal"
        " where not v.is_deleted"
    )
    then: dict[datetime, list[list[Any]]] = {moment: [] for moment in copies}
    for moment, *row in zoo.rows(f"select pit.sdts, {facts} {named}"):
        then[moment].append(row)
    for moment, copy in copies.items():
        assert in_order(then[moment]) == in_order(copy), moment
    after = macro("valid_after")
    for moment in rng.sample(sorted(copies), 8):
        position, copy = commits[moment], in_order(copies[moment])
        assert in_order(zoo.rows(f"select {facts} {held} and {after('v', *position)}")) == copy, position
        by_pit = zoo.rows(f"select distinct {facts} {named} and {after('pit', *position)}")
        assert in_order(by_pit) == copy, position


def assert_one_build_mends(zoo: Zoo, table: TableHistory) -> None:
    """The next build makes parsed and vault right, and the one after it does nothing."""
    zoo.dbt("build")
    assert_parsed_is_complete(zoo, table)
    assert_vault_is_true(zoo, table.versions)
    seen = zoo.snapshots()
    zoo.dbt("run")
    assert zoo.snapshots() == seen, "once is enough"


def assert_parsed_is_complete(zoo: Zoo, table: TableHistory) -> None:
    """Every version with every column, and the current view as the source has it."""
    columns = [*COLUMNS, "_op", "_is_deleted", "_epoch", "_commit_lsn", "_seq", "_valid_from"]
    found = zoo.rows(f"select {', '.join(columns)} from parsed.parsed_zoo__animals")
    wanted = [[version[c] for c in columns[:-1]] + [version["_committed_at"]] for version in table.versions]
    assert in_order(found) == in_order(wanted)
    now = zoo.rows(f"select {', '.join(COLUMNS)} from parsed.current_zoo__animals")
    assert in_order(now) == in_order([row[c] for c in COLUMNS] for row in table.rows.values())


def assert_vault_is_true(zoo: Zoo, events: list[Row]) -> None:
    """The collapsed timelines are those of all events in source order, and every stored row is true."""
    versions = {(event["id"], source_seq(event)): event for event in events}
    ordered = sorted(versions.values(), key=lambda event: (event["id"], source_seq(event)))
    assert in_order(zoo.rows("select id from vault.hub_animal")) == in_order([k] for k in {e["id"] for e in ordered})

    details = zoo.rows(
        "select hub.id, source_seq, is_deleted, name, story, weight from vault.sat_animal_details"
        " join vault.hub_animal as hub using (hk_animal)".replace("source_seq", "sat_animal_details.source_seq", 1)
    )
    assert all(row[2:] == statement(versions[row[0], row[1]]) for row in details), "a stored row is not its event"
    assert timeline_of(zoo, "sat_animal_details_v1", "is_deleted, name, story, weight") == collapse(ordered, statement)
    assert timeline_of(zoo, "ma_sat_animal_v1", "is_deleted, name, story, weight") == collapse(ordered, statement)
    codes = zoo.rows("select id, source_seq, is_deleted, name, story, weight from vault.ref_animal_v1 order by 1, 2")
    found = {key: [tuple(row[1:]) for row in rows] for key, rows in groupby(codes, key=lambda row: row[0])}
    assert found == collapse(ordered, statement)
    mentioned = zoo.rows("select distinct id from vault.rts_animal join vault.hub_animal using (hk_animal)")
    assert in_order(mentioned) == in_order([k] for k in {e["id"] for e in ordered})
    assert_events_are_true(zoo, events)
    assert timeline_of(zoo, "sts_animal_v1", "is_deleted") == collapse(ordered, lambda e: [e["_is_deleted"]])
    assert keepers_of(zoo) == effectivity(ordered)


def assert_events_are_true(zoo: Zoo, events: list[Row]) -> None:
    """The non-historized link has each combination of a live row once, as the event that it came by says it."""
    live = {(event["id"], event["keeper_id"], source_seq(event)): event for event in events if not event["_is_deleted"]}
    rows = zoo.rows("select id, keeper_id, source_seq, applied_date from vault.nh_link_animal_keeper")
    assert in_order(row[:2] for row in rows) == in_order(list(pair) for pair in {key[:2] for key in live})
    assert all(row[3] == live[row[0], row[1], row[2]]["_committed_at"] for row in rows), "not what its event said"


def statement(event: Row) -> list[Any]:
    """What the details satellite says about an event."""
    return [event["_is_deleted"], event["name"], event["story"], event["weight"]]


def collapse(ordered: list[Row], state: Any) -> Timeline:
    """Per key: position and state of each event that differs from the one before."""
    timelines: Timeline = {}
    for event in ordered:
        timeline = timelines.setdefault(event["id"], [])
        if not timeline or list(timeline[-1][1:]) != state(event):
            timeline.append((source_seq(event), *state(event)))
    return timelines


def timeline_of(zoo: Zoo, view: str, columns: str) -> Timeline:
    """Per key, what the `_v1` view has."""
    rows = zoo.rows(
        f"select hub.id, view.source_seq, {columns} from vault.{view} as view"
        " join vault.hub_animal as hub on hub.hk_animal = view.hk_animal order by 1, 2"
    )
    return {key: [tuple(row[1:]) for row in group] for key, group in groupby(rows, key=lambda row: row[0])}


def effectivity(ordered: list[Row]) -> Timeline:
    """Per animal and keeper: when it began and ended."""
    found: Timeline = {}
    for animal, events in groupby(ordered, key=lambda event: event["id"]):
        before: tuple[Any, ...] | None = None
        for event in events:
            now = None if event["_is_deleted"] else (animal, event["keeper_id"])
            if now != before:
                for link, active in ((before, False), (now, True)):
                    if link is not None:
                        found.setdefault(link, []).append((source_seq(event), active))
            before = now
    return found


def keepers_of(zoo: Zoo) -> Timeline:
    """Per animal and keeper, what the effectivity view has; the zero key is nobody."""
    rows = zoo.rows(
        "select animal.id, keeper.keeper_id, eff.source_seq, eff.is_active from vault.eff_sat_animal_keeper_v1 as eff"
        " join vault.link_animal_keeper as link on link.hk_animal_keeper = eff.hk_animal_keeper"
        " join vault.hub_animal as animal on animal.hk_animal = link.hk_animal"
        " left join vault.hub_keeper as keeper on keeper.hk_keeper = link.hk_keeper order by 1, 2, 3"
    )
    return {link: [(r[2], r[3]) for r in group] for link, group in groupby(rows, key=lambda row: (row[0], row[1]))}


def source_seq(event: Row) -> str:
    """The vault's sortable position."""
    return f"{event['_epoch']:010}.{event['_commit_lsn']:019}.{event['_seq']:019}"


def insert_parsed(zoo: Zoo, events: list[Row], loaded_at: datetime) -> None:
    """Puts versions into the parsed table past dbt."""
    values = ", ".join(
        "(" + ", ".join(map(literal, [*(e[c] for c in COLUMNS), e["_op"], e["_is_deleted"], e["_committed_at"], 1,
         e["_commit_lsn"], e["_seq"], "zoo.public.animals", loaded_at])) + ")"
        for e in events
    )  # fmt: skip
    zoo.rows(f"insert into parsed.parsed_zoo__animals values {values}")


def literal(value: Any) -> str:
    """A Trino literal."""
    if isinstance(value, datetime):
        return f"timestamp '{value:%Y-%m-%d %H:%M:%S.%f} UTC'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "null" if value is None else str(value).lower()


def in_order(rows: Any) -> list[Any]:
    """Rows in an order that does not mind nulls; numbers by value."""
    return sorted((list(row) for row in rows), key=lambda row: [(v is None, _text(v)) for v in row])


def _text(value: Any) -> str:
    return str(value.normalize() if isinstance(value, Decimal) else value)
