"""A vault whose tables were restored in place: the next load brings back what they had, each row once."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace

import duckdb
import pytest

from tests.marks import slow
from tests.unit.dbt_macros import macro
from tests.unit.embedded_vault import WAYS, Event, Vault, arrivals, history, restore
from tests.unit.test_vault_property import compare
from tests.unit.test_vault_redeclared import MAY, event, said, say


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seeds", [range(1), slow(range(1, 60))])
def test_whatever_is_restored_the_next_load_ends_with_the_timelines_of_the_source(
    seeds: range, way: Callable[[Vault, str, int], None]
) -> None:
    vault = Vault()
    for seed in seeds:
        rng = random.Random(seed)
        vault.clear()
        loads = list(arrivals(rng, history(rng, keys=8, most=150)))
        restored = rng.sample(list(vault.models), rng.randint(1, len(vault.models)))
        then = rng.randrange(len(loads))
        arrived: list[tuple[Event, datetime]] = []
        for number, (batch, moment) in enumerate(loads):
            vault.load(batch, moment)
            arrived += [(event, moment) for event in batch]
            if number == 0:
                vault.make_timelines()
            if number == then:
                put_back = restore(vault, restored, way)
        put_back()
        vault.load([], moment)
        compare(vault, arrived)
        before = vault.counts()
        vault.load([], moment)
        assert vault.counts() == before, "a rerun adds rows"


@pytest.mark.parametrize("way", WAYS)
def test_a_satellite_restored_to_before_a_column_was_declared_is_built_anew(
    way: Callable[[Vault, str, int], None],
) -> None:
    vault = Vault()
    say(vault, ["a"])
    vault.load([event(100, a="A", b=1), event(110, a="A", b=2)], MAY)
    put_back = restore(vault, ["sat_row"], way)
    say(vault, ["a", "b"])
    vault.load([event(120, a="A", b=3)], MAY + timedelta(days=1))
    put_back()
    vault.load([], MAY + timedelta(days=1))
    assert said(vault, "a, b") == [(100, "A", 1), (110, "A", 2), (120, "A", 3)]
    assert vault.rows("select count(*) from sat_row where record_source = 'ghost'") == [(2,)]


def test_a_table_goes_on_from_where_it_is_once_the_snapshots_of_its_first_loads_are_expired() -> None:
    """A satellite's columns were remembered with the snapshot of its first load: days later it was built anew."""
    vault = Vault()
    say(vault, ["a"])
    for day, letter in enumerate("ABC"):
        vault.load([event(100 + day, a=letter)], MAY + timedelta(days=day))
    for table in ("sat_row", "hub_row", "link_row_owner"):
        vault.db.execute(f"delete from {table} where source_seq like '%100.%'")
    vault.expire()
    vault.load([event(110, a="D")], MAY + timedelta(days=9))
    assert said(vault, "a") == [(101, "B"), (102, "C"), (110, "D")], "compared with the whole stage again"
    assert vault.rows("select count(*) from hub_row") == [(1,)], "its key came again with the new row"


def test_a_backfill_keeps_what_the_loads_before_it_remember() -> None:
    vault = Vault()
    vault.load([event(100, a="A"), event(110, a="B")], MAY)
    vault.db.execute("delete from sat_row where source_seq like '%110.%'")
    vault.db.execute("insert into run_bounds values ('this-run', date '2026-03-05', date '2026-03-05', now())")
    vault.load([], MAY)
    assert said(vault, "a") == [(100, "A"), (110, "B")]
    vault.expire()
    vault.db.execute("delete from run_bounds")
    vault.db.execute("delete from sat_row where source_seq like '%100.%'")
    vault.load([event(120, a="D")], MAY + timedelta(days=1))
    assert said(vault, "a") == [(110, "B"), (120, "D")], "compared with the whole stage again"


def test_what_was_put_back_while_a_load_ran_is_compared_again() -> None:
    """The load was planned on a state that is undone by the time that it would write down how far it came."""
    lake = duckdb.connect()
    lake.execute("create table refs as select 'main' as name, 3 as snapshot_id")
    lake.execute("create table snapshots as select 3 as snapshot_id, map {'trino_query_id': 'q3'} as summary"
                 " union all select 2, map {'trino_query_id': 'q2'}")  # fmt: skip
    lake.execute("create table history as select 1 as snapshot_id, true as is_current_ancestor"
                 " union all select 2, false union all select 3, true")  # fmt: skip
    lake.execute("create macro element_at(m, k) as map_extract_value(m, k)")
    after = macro(
        "loaded_snapshot",
        system_table=lambda _, name: name,
        run_query=lambda sql: SimpleNamespace(rows=lake.execute(sql).fetchall()),
    )
    assert after("hub", "1", "q3") == "3" and after("hub", None, None) == "3"
    assert after("hub", "1", "of a load that wrote nothing") == "3"
    assert after("hub", "2", "q3") is None, "planned on what is undone"
    assert after("hub", "1", "q2") is None, "written, and undone"


def test_a_table_that_a_release_without_snapshots_loaded_is_compared_once_and_not_built_anew() -> None:
    vault = Vault()
    say(vault, ["a"])
    vault.load([event(100, a="A"), event(110, a="B")], MAY)
    lost = "delete from sat_row where source_seq like '%110.%'"
    vault.db.execute(lost)
    vault.db.execute("update properties set value = regexp_replace(value, '[|][^|]*$', '') where key like '%.columns'")
    vault.db.execute(
        "update properties set value = regexp_replace(value, '[|][^|]*[|][^|]*$', '') where key like '%.stg'"
    )
    vault.load([], MAY)
    assert said(vault, "a") == [(100, "A"), (110, "B")]
    vault.db.execute(lost)
    vault.load([], MAY)
    assert said(vault, "a") == [(100, "A")], "it goes on from there"


def test_a_mart_goes_by_the_newest_state_of_what_it_reads_and_not_by_the_newest_snapshot() -> None:
    """A state that was put back is an older snapshot than those that it undid. Deleted rows do not count.

    As many rows may be others: some were erased and some came, or the table was made anew.
    """
    lake = duckdb.connect()
    lake.execute("create macro array_join(parts, sep) as array_to_string(parts, sep)")
    lake.execute("create macro element_at(m, k) as map_extract_value(m, k)")
    lake.execute("create macro max_by(value, ranked) as arg_max(value, ranked)")
    lake.execute(
        "create table snapshots"
        " (snapshot_id integer, committed_at integer, operation varchar, summary map(varchar, varchar))"
    )
    lake.execute(
        "insert into snapshots values (1, 1, 'append', map {'total-records': '7'}),"
        " (2, 2, 'append', map {'total-records': '9'})"
    )
    lake.execute(
        "create table history as select 1 as snapshot_id, true as is_current_ancestor union all select 2, false"
    )
    lake.execute("create table refs as select 'main' as name, 1 as snapshot_id union all select 'pin_x', 2")
    table_sizes = macro(
        "table_sizes",
        system_table=lambda _, name: name,
        run_query=lambda sql: SimpleNamespace(rows=lake.execute(sql).fetchall()),
    )
    hub = [SimpleNamespace(schema="vault", identifier="hub")]
    assert table_sizes(hub) == "vault.hub:7/1"
    lake.execute("update snapshots set summary = map {'total-records': '9', 'total-position-deletes': '3'}")
    assert table_sizes(hub) == "vault.hub:6/1"
    lake.execute("insert into snapshots values (3, 3, 'replace', map {'total-records': '6'})")
    lake.execute("insert into history values (3, true)")
    lake.execute("update refs set snapshot_id = 3 where name = 'main'")
    assert table_sizes(hub) == "vault.hub:6/1", "a compaction changes no row"
    lake.execute("insert into snapshots values (4, 4, 'overwrite', map {'total-records': '6'})")
    lake.execute("insert into history values (4, true)")
    lake.execute("update refs set snapshot_id = 4 where name = 'main'")
    assert table_sizes(hub) == "vault.hub:6/4"


def test_the_models_of_a_stage_count_its_new_rows_once_in_a_run() -> None:
    """Each model counted them: nine scans of parsed where one says it, after every load and every compaction."""
    vault = Vault()
    asked: list[str] = []
    vault.context["run_query"] = lambda sql: asked.append(sql) or SimpleNamespace(rows=vault.rows(sql))  # type: ignore[func-returns-value]
    vault.load([event(100, a="A")], MAY)
    vault.load([event(110, a="B")], MAY + timedelta(days=1))
    vault.commit("parsed")  # a compaction
    vault.load([], MAY + timedelta(days=1))
    assert len([sql for sql in asked if "rows_there" in sql]) == 3
    assert said(vault, "a") == [(100, "A"), (110, "B")]
