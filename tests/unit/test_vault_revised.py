"""Rows of parsed that were loaded are other ones now, as after a late dead letter: the vault is made anew from them."""

import random
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.embedded_vault import MODELS, START, Vault, by_rollback, history, restore

MAY = START + timedelta(days=50)
LATER = MAY + timedelta(days=9)


def loaded(seed: int, *models: str) -> tuple[Vault, random.Random]:
    """A vault, or some tables of one, after a random history in two loads."""
    rng, vault = random.Random(seed), Vault()
    vault.models = {name: MODELS[name] for name in models or MODELS}
    events = history(rng, keys=3, most=30)
    vault.load(events[::2], MAY)
    vault.load(events[1::2], MAY + timedelta(days=1))
    return vault, rng


def revise(vault: Vault, rng: random.Random) -> None:
    """As a load of parsed that is made anew: values of loaded positions change, and a truncate deletes another key."""
    value = rng.choice(["p", "filled"])
    vault.db.execute(f"update parsed set a = '{value}', owner = '{value}' where id = 1 and not _is_deleted")
    vault.db.execute("update parsed set b = 7 where _commit_lsn % 3 = 0 and not _is_deleted")
    nothing = ", ".join(f'null as "{name}"' for name in ("a", "b", "owner", "order", "made"))
    deleted = f"select * replace (true as _is_deleted, {nothing}, _seq + 500 as _seq) from parsed where not _is_deleted"
    vault.db.execute(f"insert into parsed by name {deleted} order by _commit_lsn, _seq limit 1")
    vault.commit("parsed", replaces=True)
    vault.revise("parsed")


def contents(vault: Vault) -> dict[str, Any]:
    return {name: vault.rows(f"select * from {name} order by all") for name in vault.models}


def snapshots(vault: Vault) -> dict[str, int]:
    return {name: vault.snapshot(name) for name in vault.models}


def full_load_of(vault: Vault) -> dict[str, Any]:
    """What a vault that was never loaded makes of the same parsed table."""
    fresh = Vault()
    rows = vault.rows("select * from parsed")
    if rows:
        fresh.db.executemany(f"insert into parsed values ({', '.join('?' * len(rows[0]))})", rows)
    fresh.commit("parsed")
    fresh.load([], LATER)
    return contents(fresh)


@pytest.mark.parametrize("seed", range(3))
def test_where_loaded_rows_are_other_ones_all_tables_are_what_a_full_load_makes(seed: int) -> None:
    vault, rng = loaded(seed)
    for _ in range(2):
        revise(vault, rng)
        vault.load([], LATER)
        assert contents(vault) == full_load_of(vault)
        before = snapshots(vault)
        vault.load([], LATER)
        assert snapshots(vault) == before, "once is enough"
    event = {"id": 1, "line": 1, "a": "new", "gone": False, "at": START + timedelta(days=9), "lsn": 9999, "seq": 1}
    vault.load([event], LATER + timedelta(days=1))
    kept = vault.rows(f"select is_current_ancestor from history where snapshot_id = {before['sat_row']}")
    assert kept == [(True,)], "what is new is added as ever"


def test_a_table_that_is_made_anew_so_says_it_to_those_that_are_loaded_from_it() -> None:
    vault, rng = loaded(1, "sat_row")
    key = vault.context["revised_property"]()
    assert vault.rows(f"select model from properties where key = '{key}'") == []
    revise(vault, rng)
    vault.load([], LATER)
    assert sorted(vault.rows(f"select model from properties where key = '{key}'")) == [("parsed",), ("sat_row",)]


def test_a_parsed_table_that_is_made_anew_for_a_column_makes_nothing_load_again() -> None:
    """Nor does an upgrade: neither has anything been revised, nor is anything remembered of that."""
    vault, _ = loaded(2, "hub_thing", "sat_row")
    before = snapshots(vault)
    vault.commit("parsed", replaces=True)
    vault.load([], LATER)
    assert snapshots(vault) == before
    assert vault.rows("select * from properties where key = 'lakehouse.loaded.revised'") == []


def test_a_table_that_is_put_back_to_before_it_was_made_anew_is_made_so_again() -> None:
    vault, rng = loaded(3, "sat_row", "eff_sat_row_owner")
    put_back = restore(vault, ["sat_row", "eff_sat_row_owner"], by_rollback)
    revise(vault, rng)
    vault.load([], LATER)
    expected = contents(vault)
    put_back()
    assert contents(vault) != expected
    vault.load([], LATER)
    assert contents(vault) == expected


def test_a_table_that_is_new_has_read_the_rows_as_they_are_now() -> None:
    vault, rng = loaded(0, "sat_row", "rts_thing")
    revise(vault, rng)
    vault.db.execute("drop table rts_thing")
    vault.db.execute("delete from properties where model = 'rts_thing'")
    vault.load([], LATER)
    before = vault.snapshot("rts_thing")
    vault.load([], LATER)
    assert vault.snapshot("rts_thing") == before
