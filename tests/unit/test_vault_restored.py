"""A vault whose tables were restored in place: the next load brings back what they had, each row once."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace

import duckdb
import pytest

from tests.marks import slow
from tests.unit.dbt_macros import macro
from tests.unit.embedded_vault import Event, Vault, arrivals, history
from tests.unit.test_vault_property import compare
from tests.unit.test_vault_redeclared import MAY, event, said, say


def restore(vault: Vault, tables: list[str]) -> Callable[[], None]:
    """Puts these tables back, when it is called, as they are now; they remember no load then (see maintenance)."""
    for name in tables:
        vault.db.execute(f"create or replace table was_{name} as select * from {name}")

    def put_back() -> None:
        for name in tables:
            vault.db.execute(f"create or replace table {name} as select * from was_{name}")
            vault.db.execute("delete from properties where model = ? and key like 'lakehouse.loaded.%'", [name])

    return put_back


@pytest.mark.parametrize("seeds", [range(4), slow(range(4, 60))])
def test_whatever_is_restored_the_next_load_ends_with_the_timelines_of_the_source(seeds: range) -> None:
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
                put_back = restore(vault, restored)
        put_back()
        vault.load([], moment)
        compare(vault, arrived)
        before = vault.counts()
        vault.load([], moment)
        assert vault.counts() == before, "a rerun adds rows"


def test_a_satellite_restored_to_before_a_column_was_declared_is_built_anew() -> None:
    vault = Vault()
    say(vault, ["a"])
    vault.load([event(100, a="A", b=1), event(110, a="A", b=2)], MAY)
    put_back = restore(vault, ["sat_row"])
    say(vault, ["a", "b"])
    vault.load([event(120, a="A", b=3)], MAY + timedelta(days=1))
    put_back()
    vault.load([], MAY + timedelta(days=1))
    assert said(vault, "a, b") == [(100, "A", 1), (110, "A", 2), (120, "A", 3)]
    assert vault.rows("select count(*) from sat_row where record_source = 'ghost'") == [(1,)]


def test_a_mart_goes_by_the_newest_state_of_what_it_reads_and_not_by_the_newest_snapshot() -> None:
    """A state that was put back is an older snapshot than those that it undid."""
    lake = duckdb.connect()
    lake.execute("create macro array_join(parts, sep) as array_to_string(parts, sep)")
    lake.execute("create table snapshots (snapshot_id integer, committed_at integer, summary map(varchar, varchar))")
    lake.execute("insert into snapshots values (1, 1, map {'total-records': '7'}), (2, 2, map {'total-records': '9'})")
    lake.execute("create table refs as select 'main' as name, 1 as snapshot_id union all select 'pin_x', 2")
    table_sizes = macro(
        "table_sizes",
        system_table=lambda _, name: name,
        run_query=lambda sql: SimpleNamespace(rows=lake.execute(sql).fetchall()),
    )
    assert table_sizes([SimpleNamespace(schema="vault", identifier="hub")]) == "vault.hub:7"
