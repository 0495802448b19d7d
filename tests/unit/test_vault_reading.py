"""What readers take from the vault: history, points in time, bridges and effectivity lose no key and no moment."""

import random
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from tests.unit.dbt_macros import Refused, macro_texts, macros
from tests.unit.embedded_vault import START, Vault, history, position

ZERO = "0" * 32
DAYS = "select timestamptz '2026-03-01' + n * interval '1 day' as sdts, true as is_active from range(0, 10) t (n)"


class Readers:
    """Relations made by hand, and what a macro says of them."""

    def __init__(self, **relations: str) -> None:
        self.db = duckdb.connect()
        self.db.execute("set TimeZone = 'UTC'")
        for name, select in {"control_snap": DAYS, **relations}.items():
            self.db.execute(f"create table {name} as {select}")
            if name.endswith("_v1"):
                self.db.execute(f"create table {name[:-3]} as {select}")
        called = SimpleNamespace(macros=["macro.cdc_vault.ma_sat"])
        nodes = {name: SimpleNamespace(name=name, depends_on=called) for name in relations if name.startswith("many")}
        self.context = macros(
            macro_texts(),
            ref=lambda name: name,
            last_snapshot=lambda *_: "timestamptz '2026-04-01'",
            graph={"nodes": nodes},
        )

    def of(self, macro: str, columns: str, **arguments: Any) -> list[tuple[Any, ...]]:
        """The rows, days as numbers, in order."""
        sql = self.context[macro](**arguments)
        return self.db.execute(f"select {columns} from ({sql}) order by all").fetchall()


def timeline(*rows: tuple[str, int, int | None, bool, str], value: str = "value") -> str:
    """A `_v1` view of key, first day, day it ends, whether deleted, and a value; positions are the days."""
    values = ", ".join(
        f"('{key}', {first}, {last or 'null'}, {gone}, '{said}')" for key, first, last, gone, said in rows
    )
    return (
        "select hk, format('{:02}', first) as source_seq, format('{:02}', last) as source_seq_to,"
        f" make_timestamptz(2026, 3, first, 0, 0, 0) as valid_from,"
        f" make_timestamptz(2026, 3, last, 0, 0, 0) as valid_to, is_deleted, {value}"
        f" from (values {values}) t (hk, first, last, is_deleted, {value})"
    )


HUB = "select * from (values ('a', 1), ('b', 2), ('c', 3)) t (hk, id)"


def test_history_keeps_a_key_that_one_system_knows_alone_and_the_time_before_the_other_knew_it() -> None:
    found = Readers(
        hub=HUB,
        crm_v1=timeline(
            ("a", 2, None, False, "Ann"), ("b", 1, 4, False, "Bob"), ("b", 4, None, True, ""), value="name"
        ),
        shop_v1=timeline(("a", 5, None, False, "gold"), ("c", 3, None, False, "new"), value="tier"),
    ).of(
        "history", "id, name, tier, day(valid_from), day(valid_to)",
        source_model="hub", src_pk="hk", src_nk="id", satellites={"crm": ["name"], "shop": ["tier"]},
    )  # fmt: skip
    assert found == [
        (1, "Ann", "gold", 5, None), (1, "Ann", None, 2, 5), (2, "Bob", None, 1, 4), (3, None, "new", 3, None),
    ]  # fmt: skip


def test_a_point_in_time_has_no_key_that_every_satellite_calls_deleted() -> None:
    """They stayed for ever, without a value."""
    found = Readers(
        hub=HUB,
        crm_v1=timeline(("a", 2, 5, False, ""), ("a", 5, None, True, "")),
        shop_v1=timeline(("a", 3, 7, False, ""), ("a", 7, None, True, ""), ("b", 9, None, False, "")),
    ).of("pit", "hk, day(sdts), crm_seq, shop_hk", source_model="hub", src_pk="hk", satellites=["crm", "shop"])
    days = {(hk, day) for hk, day, *_ in found}
    assert days == {("a", day) for day in (2, 3, 4, 5, 6)} | {("b", 9), ("b", 10)}
    assert [row[3] for row in found if row[:2] == ("a", 2)] == [ZERO], "the ghost record where nothing is known yet"


@pytest.mark.slow
def test_a_point_in_time_says_from_and_until_which_position_its_rows_held() -> None:
    """At each of its moments, against what each satellite says after each commit."""
    vault = Vault()
    satellites = ["sat_row", "sts_row"]
    vault.context["cdc_vault"].last_snapshot = lambda *_: "timestamptz '2027-01-01'"
    vault.context["graph"] = {"nodes": {}}
    for seed in range(3):
        vault.clear()
        events = history(random.Random(seed), keys=6, most=80)
        vault.load(events, START + timedelta(days=40))
        half = position(events[len(events) // 2])
        vault.db.execute(f"delete from sat_row where record_source <> 'ghost' and source_seq < '{half}'")
        vault.make_timelines()
        vault.db.execute("create or replace table control_snap as select distinct applied_date as sdts,"
                         " true as is_active from sts_row")  # fmt: skip
        pit = vault.context["pit"](source_model="hub_row", src_pk="hk_row", satellites=satellites)
        vault.db.execute(f"create or replace table pit as {pit}")
        assert vault.rows("select 1 from pit where sat_row_hk <> hk_row"), "a satellite that knows nothing yet"
        for commit in {event["lsn"] for event in events}:
            held = vault.context["valid_after"]("pit", 1, commit)
            then = " and ".join(
                f"coalesce((select max(v.source_seq) from {name}_v1 as v where v.hk_row = pit.hk_row"
                f" and {vault.context['valid_after']('v', 1, commit)}), {vault.context['ghost_position']()})"
                f" = {name}_seq"
                for name in satellites
            )
            assert not vault.rows(f"select * from pit where ({held}) <> ({then})"), (seed, commit)


@pytest.mark.parametrize(("systems", "held"), [(["crm", "shop"], (None, None)), (["crm", "crm"], ("05", "07"))])
def test_a_point_in_time_over_satellites_of_two_sources_has_no_position(
    systems: list[str], held: tuple[str | None, str | None]
) -> None:
    """The higher of two of them said nothing, and `valid_after` found rows that had held at no such moment."""
    readers = Readers(
        hub=HUB, person_v1=timeline(("a", 2, 9, False, "Ann")),
        tier_v1=timeline(("a", 5, 7, False, "gold"), ("a", 7, None, False, "silver")),
    )  # fmt: skip
    satellites = ["person", "tier"]
    nodes: dict[str, Any] = {}
    for satellite, system in zip(satellites, systems, strict=True):
        for name, read in ((satellite, f"model.p.stg_{system}"), (f"stg_{system}", f"source.p.{system}")):
            below = SimpleNamespace(macros=[], nodes=[read])
            nodes[f"model.p.{name}"] = SimpleNamespace(name=name, resource_type="model", depends_on=below)
    sources = {f"source.p.{name}": SimpleNamespace(source_name=name, schema=f"raw_{name}") for name in systems}
    readers.context["graph"] = {"nodes": nodes, "sources": sources}
    pit = {"source_model": "hub", "src_pk": "hk", "satellites": satellites}
    found = readers.of("pit", "day(sdts), source_seq, source_seq_to, typeof(source_seq)", **pit)
    assert (6, *held, "VARCHAR") in found


def test_a_point_in_time_over_a_satellite_of_several_rows_is_refused() -> None:
    readers = Readers(hub=HUB, many=timeline(("a", 2, None, False, "x")))
    with pytest.raises(Refused, match="many has several rows of a key at a time, and a PIT names one"):
        readers.of("pit", "*", source_model="hub", src_pk="hk", satellites=["many"])


def test_a_history_over_a_satellite_of_several_rows_is_refused() -> None:
    """Each of its rows was laid over those of the others: two phones doubled every name."""
    readers = Readers(hub=HUB, many=timeline(("a", 2, None, False, "x")))
    with pytest.raises(Refused, match="many has several rows of a key at a time, and a history has one: leave it"):
        readers.of("history", "*", source_model="hub", src_pk="hk", src_nk="id", satellites={"many": ["value"]})


def test_a_bridge_keeps_a_key_whose_walk_ends_early() -> None:
    """A line of a receipt that is not there yet: the receipt's customer is the zero key."""
    links = {
        "line_sale": "select * from (values ('l1', 'a', 's1'), ('l2', 'b', 's2')) t (hk_line_sale, hk, hk_sale)",
        "sale_customer": "select 'c1' as hk_sale_customer, 's1' as hk_sale, 'k1' as hk_customer",
    }
    until = "null::timestamptz as valid_to"
    active = {
        "eff_line_sale": "select * from (values ('l1', true, timestamptz '2026-03-08'),"
        " ('l2', true, timestamptz '2026-03-09')) t (hk_line_sale, is_active, valid_from)",
        "eff_sale_customer": "select 'c1' as hk_sale_customer, true as is_active,"
        " timestamptz '2026-03-10' as valid_from",
    }
    found = Readers(hub=HUB, **links, **{n: f"select *, {until} from ({s})" for n, s in active.items()}).of(
        "bridge", "hk, day(sdts), hk_sale, hk_customer", source_model="hub", src_pk="hk",
        walk=[
            {"link": "line_sale", "effectivity": "eff_line_sale", "src_pk": "hk_line_sale",
             "from": "hk", "to": ["hk_sale"]},
            {"link": "sale_customer", "effectivity": "eff_sale_customer", "src_pk": "hk_sale_customer",
             "from": "hk_sale", "to": ["hk_customer"]},
        ],
    )  # fmt: skip
    assert found == [
        ("a", 8, "s1", ZERO), ("a", 9, "s1", ZERO), ("a", 10, "s1", "k1"), ("b", 9, "s2", ZERO), ("b", 10, "s2", ZERO),
    ]  # fmt: skip


def test_two_links_of_a_driving_key_are_never_active_at_once_though_commit_times_run_backwards() -> None:
    """Link 1 from day 1, link 2 from day 6, link 3 after it in the source's order but committed on day 5."""
    events = [("l1", 1, True, 1), ("l1", 2, False, 6), ("l2", 2, True, 6), ("l2", 3, False, 5), ("l3", 3, True, 5)]
    values = ", ".join(
        f"('{link}', 'd', {active}, timestamptz '2026-03-{day:02}', '{seq}')" for link, seq, active, day in events
    )
    found = Readers(
        eff="select *, applied_date as load_date, 'the.source' as record_source"
        f" from (values {values}) t (hk_link, hk_driving, is_active, applied_date, source_seq)"
    ).of(
        "timeline", "hk_link, day(valid_from), day(valid_to), is_active",
        source_model="eff", src_pk="hk_link", src_hashdiff="is_active", src_payload=["hk_driving"],
    )  # fmt: skip
    assert [row[:3] for row in found if row[3]] == [("l1", 1, 6), ("l2", 6, 6), ("l3", 6, None)]


def test_a_timeline_after_any_commit_is_the_source_after_it() -> None:
    """Whatever the clock says; commits of which several rows of a key came too."""
    vault = Vault()
    for seed in range(3):
        vault.clear()
        events = history(random.Random(seed), keys=6, most=120)
        vault.load(events, START + timedelta(days=40))
        vault.make_timelines()
        for commit in {event["lsn"] for event in events}:
            newest = {(e["id"], e["line"]): e for e in events if e["lsn"] <= commit and e["line"]}  # a code is no NULL
            held = vault.context["valid_after"]("v", 1, commit)
            rows = vault.rows(f"select id, line, a, b from ref_row_v1 as v where not is_deleted and {held}")
            wanted = [(*key, e["a"], e["b"]) for key, e in newest.items() if not e["gone"]]
            assert sorted(rows, key=str) == sorted(wanted, key=str), (seed, commit)


def test_a_bridge_does_not_go_on_from_a_reference_that_is_null() -> None:
    """A sale without a store, and a clerk without one, have nothing to do with each other."""
    zero, until = f"'{ZERO}'", "null::timestamptz as valid_to"
    since = "timestamptz '2026-03-10' as valid_from"
    links = {
        "sale_store": f"select * from (values ('l1', 'a', {zero}), ('l2', 'b', 's1')) t (hk_sale_store, hk, hk_store)",
        "clerk_store": f"select * from (values ('c1', 'k1', {zero}), ('c2', 'k2', 's1'))"
        " t (hk_clerk_store, hk_clerk, hk_store)",
    }
    active = {f"eff_{name}": f"select hk_{name}, true as is_active, {since}, {until} from {name}" for name in links}
    found = Readers(hub=HUB, **links, **active).of(
        "bridge", "hk, hk_store, hk_clerk", source_model="hub", src_pk="hk",
        walk=[
            {"link": "sale_store", "effectivity": "eff_sale_store", "src_pk": "hk_sale_store",
             "from": "hk", "to": ["hk_store"]},
            {"link": "clerk_store", "effectivity": "eff_clerk_store", "src_pk": "hk_clerk_store",
             "from": "hk_store", "to": ["hk_clerk"]},
        ],
    )  # fmt: skip
    assert found == [("a", ZERO, ZERO), ("b", "s1", "k2")]
