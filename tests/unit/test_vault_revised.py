"""Rows of parsed that were loaded are other ones now, as after a late dead letter: what the vault says is made anew.

Keys stay in hubs and links, and so does all of which parsed says nothing any more.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.marks import seeds, slow
from tests.unit.dbt_macros import Refused
from tests.unit.embedded_vault import MODELS, START, WAYS, Event, Vault, by_our_restore, by_rollback, history, restore

MAY = START + timedelta(days=50)
LATER = MAY + timedelta(days=9)
KEYS = {name: f"hk_{name.partition('_')[2]}" for name, (kind, _) in MODELS.items() if kind in ("hub", "link")}


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


def values(vault: Vault) -> dict[str, Any]:
    """Of the tables that are no hub or link."""
    return {name: rows for name, rows in contents(vault).items() if name not in KEYS}


def keys(vault: Vault) -> dict[str, list[Any]]:
    """Of the hubs and links."""
    return {name: [row[0] for row in vault.rows(f"select {key} from {name}")] for name, key in KEYS.items()}


def snapshots(vault: Vault) -> dict[str, int]:
    return {name: vault.snapshot(name) for name in vault.models}


def full_load_of(vault: Vault) -> Vault:
    """What a vault that was never loaded makes of the same parsed table."""
    fresh = Vault()
    rows = vault.rows("select * from parsed")
    if rows:
        fresh.db.executemany(f"insert into parsed values ({', '.join('?' * len(rows[0]))})", rows)
    fresh.commit("parsed")
    fresh.load([], LATER)
    return fresh


def assert_has_all_keys(vault: Vault, of: Vault) -> None:
    """Once each."""
    for name, found in keys(vault).items():
        assert set(found) >= set(keys(of)[name]) and len(found) == len(set(found)), name


@pytest.mark.parametrize(("seed", "is_renamed"), [(0, False), slow(1, False), slow(2, False), slow(1, True)])
def test_where_loaded_rows_are_other_ones_all_tables_say_what_a_full_load_says(seed: int, is_renamed: bool) -> None:
    vault, rng = loaded(seed)
    if is_renamed:  # the source's table, since the rows were loaded
        vault.db.execute("update parsed set _record_source = split_part(_record_source, '.', 1) || '.renamed'")
    for _ in range(2):
        revise(vault, rng)
        vault.load([], LATER)
        full = full_load_of(vault)
        assert values(vault) == values(full)
        assert_has_all_keys(vault, full)
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


def begin_again(vault: Vault, events: list[Event]) -> None:
    """Parsed is dropped, and begun again with these events."""
    vault.db.execute("delete from parsed")
    vault.commit("parsed", replaces=True)
    models, vault.models = vault.models, {}
    vault.load(events, MAY + timedelta(days=2))
    vault.models = models


@pytest.mark.parametrize("seed", seeds(6, 1))
def test_rows_from_before_a_parsed_table_was_begun_again_stay_in_the_vault(seed: int) -> None:
    """What they say of later ones counts too: the vault is as if those had come in the first place."""
    events = history(random.Random(seed), keys=3, most=60)
    half = len(events) // 2
    vaults = Vault(), Vault()
    for vault in vaults:
        vault.load(events[:half], MAY)
        begin_again(vault, events[half:])
    vault, at_once = vaults
    vault.load([], LATER)
    before, was_there = contents(vault), keys(vault)
    for each in vaults:
        revise(each, random.Random(seed))
    at_once.db.execute("delete from properties where model = 'parsed'")
    for each in vaults:
        each.load([], LATER)
    assert values(vault) == values(at_once)
    for name, rows in before.items():
        old = [row for row in rows if MAY in row]
        assert {*old} <= {*vault.rows(f"select * from {name}")}, name
    assert all({*found} >= {*was_there[name]} for name, found in keys(vault).items())
    assert_has_all_keys(vault, at_once)
    last = snapshots(vault)
    vault.load([], LATER)
    assert snapshots(vault) == last, "once is enough"


REMOVED = {
    "hub_thing": "hk_thing", "nh_sat_row": "hk_row", "rts_thing": "hk_thing", "sat_row": "hk_row", "sts_row": "hk_row",
    "eff_sat_row_owner": "hk_row_owner", "link_row_owner": "hk_row_owner",
}  # fmt: skip


def add_rows_of_a_removed_source(vault: Vault) -> None:
    """The same as are there, of other keys."""
    for name, key in REMOVED.items():
        removed = f"select * replace ('b.removed' as record_source, {key} || '-' as {key}) from {name}"
        vault.db.execute(f"insert into {name} {removed} where record_source <> 'ghost'")


def rows_of_a_removed_source(vault: Vault) -> dict[str, Any]:
    """By table."""
    return {
        name: vault.rows(f"select * from {name} where record_source = 'b.removed' order by all") for name in REMOVED
    }


def test_rows_of_a_source_that_no_stage_has_any_more_stay_in_the_vault() -> None:
    vault, rng = loaded(4)
    add_rows_of_a_removed_source(vault)
    before = rows_of_a_removed_source(vault)
    revise(vault, rng)
    vault.load([], LATER)
    assert rows_of_a_removed_source(vault) == before
    assert_has_all_keys(vault, full_load_of(vault))


def test_rows_that_stay_stay_once_more_where_their_load_was_killed_before_it_wrote_down_how_far_it_came() -> None:
    vault, rng = loaded(4)
    add_rows_of_a_removed_source(vault)
    revise(vault, rng)
    remembered = vault.rows("select * from properties where key like 'lakehouse.loaded.%'")
    vault.load([], LATER)
    expected = contents(vault)
    assert all(rows_of_a_removed_source(vault).values())
    vault.db.execute("delete from properties where key like 'lakehouse.loaded.%'")
    vault.db.executemany("insert into properties values (?, ?, ?)", remembered)
    vault.load([], LATER)
    assert contents(vault) == expected
    before = snapshots(vault)
    vault.load([], LATER)
    assert snapshots(vault) == before, "once is enough"


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_source_that_no_stage_has_any_more_stay_in_tables_that_are_put_back(
    way: Callable[[Vault, str, int], None],
) -> None:
    vault, _ = loaded(4)
    add_rows_of_a_removed_source(vault)
    before = rows_of_a_removed_source(vault)
    put_back = restore(vault, list(REMOVED), way)
    event = {"id": 1, "line": 1, "a": "new", "gone": False, "at": START + timedelta(days=9), "lsn": 9999, "seq": 1}
    vault.load([event], LATER)
    put_back()
    vault.load([], LATER)
    assert rows_of_a_removed_source(vault) == before
    assert_has_all_keys(vault, full_load_of(vault))


@pytest.mark.parametrize("way", WAYS)
def test_a_hub_that_is_put_back_has_each_key_from_who_said_it_first(way: Callable[[Vault, str, int], None]) -> None:
    """A source that was removed may have said before the others what they say too."""
    vault, _ = loaded(4, "hub_thing")
    vault.db.execute("update hub_thing set record_source = 'b.removed', load_date = load_date - interval 1 day")
    put_back = restore(vault, ["hub_thing"], way)
    event = {"id": 77, "line": 1, "gone": False, "at": START + timedelta(days=9), "lsn": 9999, "seq": 1}
    vault.load([event], LATER)
    expected = contents(vault)
    put_back()
    vault.load([], LATER)
    assert contents(vault) == expected


def test_a_satellite_that_is_put_back_to_before_it_had_a_column_is_made_anew_without_an_error() -> None:
    """What no stage says any more was gone then. It has NULL in the column."""
    vault, _ = loaded(4)
    add_rows_of_a_removed_source(vault)
    vault.db.execute("alter table sat_row drop column b")
    by_our_restore(vault, "sat_row", 0)
    removed = "select hk_row, a, source_seq from sat_row where record_source = 'b.removed' order by all"
    before = vault.rows(removed)
    vault.load([], LATER)
    assert vault.rows(removed) == before
    assert vault.rows("select count(b) from sat_row where record_source = 'b.removed'") == [(0,)]
    vault.db.execute("delete from sat_row where record_source = 'b.removed'")
    assert contents(vault)["sat_row"] == contents(full_load_of(vault))["sat_row"]


def test_of_several_tables_of_one_source_what_one_has_begun_again_is_not_taken_for_what_another_says() -> None:
    """Rows from before it was begun again stay, though the other table's are as old."""
    vault, rng = loaded(4)
    other = (
        "create or replace view another as"
        " select * replace ('the.other' as record_source, hk_thing || '-' as hk_thing) from stg"
    )
    vault.db.execute(other)
    nodes = vault.context["graph"]["nodes"]
    nodes["model.p.another"] = nodes["model.p.stg"]
    vault.context["model"].depends_on.nodes.append("model.p.another")
    vault.db.execute("drop table rts_thing")
    vault.db.execute("delete from properties where model = 'rts_thing'")
    vault.models = {"rts_thing": ("rec_track_sat", {"src_pk": "hk_thing", "source_model": ["stg", "another"]})}
    vault.load([], LATER)
    before = contents(vault)
    assert {row[2] for row in before["rts_thing"] if MAY in row} == {"the.source", "the.other"}
    vault.db.execute(f"{other} where load_date > timestamptz '{MAY}'")
    revise(vault, rng)
    vault.load([], LATER)
    assert contents(vault) == before


def test_of_several_stages_what_to_do_with_rows_of_an_unknown_table_is_not_guessed() -> None:
    """They may be of a table that was renamed, and be there twice then, or of one that was removed."""
    vault, _ = loaded(4, "rts_thing")
    vault.db.execute("create view another as select * from stg")
    vault.context["this"] = "rts_thing"
    asked = ["stg", "another"], "load_date", "record_source"
    assert vault.context["carried_rows"](*asked) is None
    other = "split_part(record_source, '.', 1) || '.other' as record_source"
    vault.db.execute(f"insert into rts_thing select * replace ({other}) from rts_thing")
    with pytest.raises(Refused, match=r"\.other, which none of its stages has.*--full-refresh"):
        vault.context["carried_rows"](*asked)
    kept = vault.context["carried_rows"](*asked, keys_only=True)
    rows = vault.rows(f"select distinct record_source from rts_thing where {kept}")
    assert rows == [("the.other",)], "a hub or link would have each key once in any case"
