"""What readers see of keys that some table does not know, on Trino: the macros' SQL over rows that are written here."""

from hashlib import md5
from typing import Any

import pytest

from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.unit.dbt_macros import macro

pytestmark = pytest.mark.stack
ZERO = "0" * 32
KNOWN = "(values ('a', 1), ('b', 2), ('c', 3)) t (hk, id)"
Row = tuple[Any, ...]


def day(number: int | None) -> str:
    """Midnight of a day in March."""
    return f"timestamp '2026-03-{number:02} 00:00 UTC'" if number else "null"


def timeline(*rows: tuple[str, int, int | None, bool, str], value: str = "value", key: str = "hk") -> str:
    """A `_v1` view of key, first day, day it ends, whether deleted, and a value; positions are the days."""
    values = ", ".join(
        f"('{hk}', 's{first:02}', nullif('s{last or 0:02}', 's00'), {day(first)}, {day(last)}, {gone}, '{said}')"
        for hk, first, last, gone, said in rows
    )
    return f"(values {values}) t ({key}, source_seq, source_seq_to, valid_from, valid_to, is_deleted, {value})"


def read(settings: Settings, name: str, columns: str, relations: dict[str, str], **arguments: Any) -> list[Row]:
    """What a macro finds in these relations on the last days of the month that are listed."""
    moments = ", ".join(f"({day(number)}, true)" for number in (2, 4, 6, 8))
    there = {"hub": KNOWN, "control_snap": f"(values {moments}) t (sdts, is_active)", **relations}
    there |= {name[:-3]: relation for name, relation in there.items() if name.endswith("_v1")}
    sql = macro(
        name, ref=lambda name: f"(select * from {there[name]})", last_snapshot=lambda *_: day(9), graph={"nodes": {}}
    )(source_model="hub", src_pk="hk", **arguments)
    return [tuple(row) for row in query(settings, f"select {columns} from ({sql}) order by 1, 2")]


def test_days_end_at_midnight_utc_wherever_the_session_is(settings: Settings) -> None:
    """They ended at midnight of the machine that built them, so no day was the last of a week, a month or a year."""
    sql = macro(
        "control_snap",
        last_snapshot=lambda type="timestamp": f"{type} '2027-01-03{' 00:00:00.000000 UTC' * (type != 'date')}'",
    )("2025-12-31")
    shown = "cast(sdts as varchar), ends_week, ends_month, ends_year, is_active"
    rows = [
        query(settings, f"select {shown} from ({sql}) order by sdts", session={"time_zone_id": zone})
        for zone in ("UTC", "Europe/Berlin", "America/New_York")
    ]
    assert rows[0][0] == ["2026-01-01 00:00:00.000000 UTC", False, True, True, True]
    assert len(rows[0]) == 368 and rows[1] == rows[0] == rows[2]


def test_history_keeps_what_one_system_knows_alone(settings: Settings) -> None:
    found = read(
        settings, "history", "id, day(valid_from), day(valid_to), name, tier",
        {"crm_v1": timeline(
            ("a", 2, None, False, "Ann"), ("b", 1, 4, False, "Bob"), ("b", 4, None, True, ""), value="name"),
         "shop_v1": timeline(("a", 5, None, False, "gold"), ("c", 3, None, False, "new"), value="tier")},
        src_nk="id", satellites={"crm": ["name"], "shop": ["tier"]},
    )  # fmt: skip
    assert found == [
        (1, 2, 5, "Ann", None),
        (1, 5, None, "Ann", "gold"),
        (2, 1, 4, "Bob", None),
        (3, 3, None, None, "new"),
    ]


def test_a_bridge_keeps_a_key_from_which_a_step_is_missing(settings: Settings) -> None:
    links = {
        "to_order": "(values ('l1', 'a', 'o1'), ('l2', 'b', 'o2')) t (hk_to_order, hk, hk_order)",
        "to_store": "(values ('m1', 'o1', 's1')) t (hk_to_store, hk_order, hk_store)",
        "of_order_v1": "(values ('l1', true, {0}, null), ('l2', true, {0}, null)) t (hk_to_order, is_active,"
        " valid_from, valid_to)".format(day(1)),
        "of_store_v1": f"(values ('m1', true, {day(3)}, {day(7)})) t (hk_to_store, is_active, valid_from, valid_to)",
    }
    order = {"link": "to_order", "effectivity": "of_order_v1", "src_pk": "hk_to_order", "from": "hk"}
    store = {"link": "to_store", "effectivity": "of_store_v1", "src_pk": "hk_to_store", "from": "hk_order"}
    walk = [order | {"to": ["hk_order"]}, store | {"to": ["hk_store"]}]
    found = read(settings, "bridge", "hk, day(sdts), hk_order, hk_store", links, walk=walk)
    assert found == [
        *(("a", number, "o1", "s1" if number in (4, 6) else ZERO) for number in (2, 4, 6, 8)),
        *(("b", number, "o2", ZERO) for number in (2, 4, 6, 8)),
    ]


def test_a_point_in_time_has_a_key_while_any_satellite_has_it(settings: Settings) -> None:
    satellites = {
        "crm_v1": timeline(("a", 2, 5, False, ""), ("a", 5, None, True, "")),
        "shop_v1": timeline(("a", 3, 7, False, ""), ("a", 7, None, True, ""), ("b", 8, None, False, "")),
    }
    found = read(settings, "pit", "hk, day(sdts), crm_hk, shop_hk", satellites, satellites=["crm", "shop"])
    assert found == [
        ("a", 2, "a", ZERO), ("a", 4, "a", "a"), ("a", 6, "a", "a"), ("b", 8, ZERO, "b"),
    ]  # fmt: skip


def test_two_links_of_a_driving_key_are_never_active_at_once_though_commit_times_run_backwards(
    settings: Settings,
) -> None:
    """Link 1 from day 1, link 2 from day 6, link 3 after it in the source's order but committed on day 5."""
    events = [("l1", 1, True, 1), ("l1", 2, False, 6), ("l2", 2, True, 6), ("l2", 3, False, 5), ("l3", 3, True, 5)]
    rows = ", ".join(
        f"('{link}', 'd', {active}, {day(at)}, {day(9)}, '{seq}', 'the.source')" for link, seq, active, at in events
    )
    columns = "hk_link, hk_driving, is_active, applied_date, load_date, source_seq, record_source"
    sql = macro("timeline", ref=lambda _: f"(select * from (values {rows}) t ({columns}))")(
        source_model="eff", src_pk="hk_link", src_hashdiff="is_active", src_payload=["hk_driving"]
    )
    found = query(settings, f"select hk_link, day(valid_from), day(valid_to) from ({sql}) where is_active order by 1")
    assert [tuple(row) for row in found] == [("l1", 1, 6), ("l2", 6, 6), ("l3", 6, None)]


def test_a_hashdiff_of_values_larger_than_trino_concatenates_is_made_like_any_other(settings: Settings) -> None:
    """Such a row stopped every load of its satellite. The hash is that of `||`, which stored rows have."""
    sql = macro("hash_diff")([{"name": "t", "type": "varchar"}, {"name": "b", "type": "varbinary"}], "false")
    text = "array_join(transform(sequence(1, 3), n -> rpad('a|', 900000, 'x')), '')"
    found = query(settings, f"select {sql} from (values ({text}, to_utf8({text})), ('', null)) v (t, b)")
    said = ("a|" + "x" * 899_998) * 3
    large = f"b={said.encode().hex().upper()}|t=" + said.replace("|", "\\|")
    assert [tuple(row) for row in found] == [(md5(text.encode()).hexdigest(),) for text in (large, "t=")]


def test_reals_that_trino_prints_alike_have_different_hashes_which_they_keep_as_doubles(settings: Settings) -> None:
    """It prints seven digits: a change of the others was none for a satellite, and two such keys were one."""

    def hashes(kind: str) -> list[tuple[str, ...]]:
        column = {"name": "r", "type": kind}
        made = f"{macro('hash_diff')([column], 'false')}, {macro('hash_key')([column])}"
        rows = ", ".join(f"real '{value}'" for pair in pairs for value in pair)
        return [
            tuple(row)
            for row in query(
                settings, f"select {made} from (select cast(r as {kind}) r from unnest(array[{rows}]) t (r))"
            )
        ]

    pairs = [(12345678, 12345679), (16777215, 16777216), (1000.0001, 1000.00006)]
    for one, other in pairs:
        printed = query(settings, f"select cast(real '{one}' as varchar), cast(real '{other}' as varchar)")
        assert len(set(printed[0])) == 1
    assert [len(set(found)) for found in zip(*hashes("real"), strict=True)] == [6, 6]
    assert hashes("real") == hashes("double")
