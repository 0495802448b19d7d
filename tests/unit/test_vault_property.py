"""The vault is true under any arrival: random histories through the macros' own SQL, against an oracle without SQL."""

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.unit.embedded_vault import WAYS, Event, Timeline, Vault, arrivals, effectivity, history, position, restore

ZERO, ERROR = "0" * 32, "f" * 32
TWO_AT_ONCE = """
select * from {view} as one join {view} as other using (hk_row)
where one.is_active and other.is_active and one.source_seq < other.source_seq
  and other.valid_from < coalesce(one.valid_to, timestamptz '2100-01-01')
  and other.valid_from < coalesce(other.valid_to, timestamptz '2100-01-01')
"""


def test_any_split_order_and_redelivery_gives_the_timelines_of_the_source() -> None:
    """Two histories of up to 105 keys: some 170 timelines of each table. In the second, keys have a NULL in them."""
    vault = Vault()
    for seed in (1, 3):
        check(vault, seed, keys=35, most=500)


@pytest.mark.slow
def test_loads_that_are_handed_their_rows_make_the_same_vault() -> None:
    """They read nothing else: of what a stage has, the new rows, and of a table itself, those of their keys.

    Now and then the load of some tables fails, which then lack more than the next rows.
    """
    vault = Vault()
    vault.hands_over = True
    for seed in (9, 11, 15):
        check(vault, seed, keys=20, most=120)
    assert vault.handed > 100


@pytest.mark.slow
def test_any_split_order_and_redelivery_in_the_long_form() -> None:
    vault = Vault()
    for seed in range(1000, 2000):
        vault.hands_over = seed % 3 > 0
        check(vault, seed, keys=seed % 35 + 1, most=seed % 500 + 5)


def check(vault: Vault, seed: int, keys: int = 20, most: int = 250, every: float = 0.2) -> None:
    """One history, loaded as it happens to arrive, of every second seed with tables put back; raises AssertionError."""
    rng = random.Random(seed)
    vault.few = (0, 5, 100)[seed % 3]
    vault.clear()
    arrived: list[tuple[Event, datetime]] = []
    undo: Callable[[], None] | None = None
    for number, (batch, moment) in enumerate(arrivals(rng, history(rng, keys, most))):
        if undo and rng.random() < 0.3:
            undo()
            undo = None
        failed = rng.sample(list(vault.models), 8) if vault.hands_over and number and rng.random() < 0.3 else []
        vault.load(batch, moment, failed)
        if number == 0:
            vault.make_timelines()
        arrived += [(event, moment) for event in batch]
        if rng.random() < every and not failed:
            compare(vault, arrived)
        if seed % 2 and not undo and rng.random() < 0.3:
            undo = restore(vault, rng.sample(list(vault.models), rng.randint(1, 15)), rng.choice(WAYS))
    if undo:
        undo()
    vault.load([], moment)
    compare(vault, arrived)
    before = vault.counts()
    vault.load([], moment)
    assert vault.counts() == before, "a rerun adds rows"


def compare(vault: Vault, arrived: list[tuple[Event, datetime]]) -> None:
    """Every table against what the events that have arrived mean."""
    events = sorted({(e["id"], e["line"], position(e)): e for e, _ in arrived}.values(), key=position)
    assert ids(vault, "select id from hub_thing") == ids_of(events, lambda e: (e["id"],))
    assert ids(vault, "select id, line from hub_row") == ids_of(events, lambda e: (e["id"], e["line"]))
    assert ids(vault, "select owner from hub_owner") == ids_of(events, lambda e: (e["owner"],) if e["owner"] else None)
    assert ids(vault, "select id, line, link.owner from link_row_owner as link join hub_row using (hk_row)") == ids_of(
        events, lambda e: None if e["gone"] else (e["id"], e["line"], e["owner"])
    )
    assert ids(vault, "select owner, a from hub_pair") == ids_of(
        [e | {"pair": pair_of(e, column)} for e in events for column in ("a", "order")],
        lambda e: e["pair"] if e["pair"][0] is not None else None,
    )
    assert ids(vault, f"select {PAIRS} from link_row_pairs as link {PAIRS_OF}") == ids_of(
        events, lambda e: None if e["gone"] else pairs_of(e)
    )
    assert ids(vault, "select id, line from link_thing_line join hub_thing using (hk_thing)") == ids_of(
        events, lambda e: (e["id"], e["line"])
    )
    assert ids(vault, "select id, rts.load_date from rts_thing as rts join hub_thing using (hk_thing)") == sorted(
        {(event["id"], moment) for event, moment in arrived}, key=str
    )
    for view in ("eff_sat_row_owner_v1", "eff_sat_row_pairs_v1"):
        assert not vault.rows(TWO_AT_ONCE.format(view=view)), f"{view}: two links of one driving key are active at once"
    assert ids(vault, "select id, line, made from nh_sat_row join hub_row using (hk_row)") == ids_of(
        events, lambda e: None if e["gone"] else (e["id"], e["line"], e["made"])
    )
    assert timeline(vault, "sat_owned", "b") == collapsed(
        [e for e in events if not e["gone"]], lambda e: (e["b"],), lambda e: (e["id"], e["line"], e["owner"])
    )
    details = collapsed(events, lambda e: (e["gone"], e["a"], e["b"]))
    for name in ("sat_row", "ma_sat_thing"):
        assert timeline(vault, name, "is_deleted, a, b") == details, name
    coded = {key: states for key, states in details.items() if None not in key}
    assert timeline(vault, "ref_row", "is_deleted, a, b") == coded, "a code is no NULL"
    assert timeline(vault, "sts_row", "is_deleted") == collapsed(events, lambda e: (e["gone"],))
    said = [((event["id"], event["line"]), event) for event in events]
    assert active(vault, *OWNERS) == effectivity(said, lambda e: (e["id"], e["line"], e["owner"]))
    assert active(vault, *PAIRS_ACTIVE) == effectivity(said, pairs_of)
    assert active(vault, *LINES) == effectivity(said, lambda e: (e["id"], e["line"]))
    assert_stored_rows_are_true(vault, events)
    for name, key in (("sat_row", "hk_row"), ("eff_sat_row_owner", "hk_row_owner")):
        ghosts = vault.rows(f"select {key} from {name} where record_source = 'ghost' order by 1")
        assert ghosts == [(ZERO,), (ERROR,)], f"{name}: one ghost record of each key"


def ids(vault: Vault, sql: str) -> list[tuple[Any, ...]]:
    """All rows; one that is there twice is seen twice."""
    return sorted(vault.rows(sql), key=str)


def ids_of(events: list[Event], key: Any) -> list[tuple[Any, ...]]:
    """Every key once, those that are None left out."""
    return sorted({found for event in events if (found := key(event)) is not None}, key=str)


def collapsed(events: list[Event], state: Any, key: Any = lambda e: (e["id"], e["line"])) -> Timeline:
    """Per key, position and state of each event that differs from the one before."""
    found: Timeline = defaultdict(list)
    for event in events:
        rows = found[key(event)]
        if not rows or rows[-1][1:] != state(event):
            rows.append((position(event), *state(event)))
    return dict(found)


KEYS = {
    "sat_row": "hub.id, hub.line from sat_row_v1 as v join hub_row as hub using (hk_row)",
    "sts_row": "hub.id, hub.line from sts_row_v1 as v join hub_row as hub using (hk_row)",
    "sat_owned": "hub.id, hub.line, link.owner from sat_owned_v1 as v join link_row_owner as link using (hk_row_owner)"
    " join hub_row as hub using (hk_row)",
    "ma_sat_thing": "hub.id, v.line from ma_sat_thing_v1 as v join hub_thing as hub using (hk_thing)",
    "ref_row": "v.id, v.line from ref_row_v1 as v",
}


def timeline(vault: Vault, name: str, columns: str) -> Timeline:
    """Per key, what the `_v1` view has; intervals are looked at as well."""
    state = ", ".join(f"v.{column.strip()}" for column in columns.split(","))
    keys, tables = KEYS[name].split(" from ", 1)
    width = len(keys.split(", "))
    rows = vault.rows(
        f"select {keys}, v.valid_from, v.valid_to, v.is_current, v.source_seq, {state} from {tables}"
        " order by v.source_seq"
    )
    found: Timeline = defaultdict(list)
    intervals: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        found[row[:width]].append(row[width + 3 :])
        intervals[row[:width]].append(row[width : width + 3])
    for key, spans in intervals.items():
        ends = [span[0] for span in spans[1:]] + [None]
        assert [span[1] for span in spans] == ends, f"{name} {key}: a gap or an overlap"
        assert all(start <= end for start, end in zip((s[0] for s in spans), ends[:-1], strict=False)), f"{name} {key}"
        assert [span[2] for span in spans] == [end is None for end in ends], f"{name} {key}: what is current"
    return dict(found)


def pair_of(event: Event, column: str) -> tuple[Any, Any]:
    """A reference of two columns: to nothing where one of them is NULL."""
    found = (event["owner"], event[column])
    return (None, None) if None in found else found


def pairs_of(event: Event) -> tuple[Any, ...]:
    """A row and its two references, which share a column."""
    return (event["id"], event["line"], *pair_of(event, "a"), *pair_of(event, "order"))


PAIRS = "row.id, row.line, pair.owner, pair.a, other.owner, other.a"
PAIRS_OF = (
    "join hub_row as row on row.hk_row = link.hk_row left join hub_pair as pair on pair.hk_pair = link.hk_pair"
    " left join hub_pair as other on other.hk_pair = link.hk_other"
)
PAIRS_ACTIVE = ("eff_sat_row_pairs_v1", PAIRS, f"join link_row_pairs as link using (hk_row_pairs) {PAIRS_OF}")
OWNERS = (
    "eff_sat_row_owner_v1", "hub.id, hub.line, link.owner",
    "left join link_row_owner as link using (hk_row_owner) left join hub_row as hub on hub.hk_row = v.hk_row",
)  # fmt: skip
LINES = (
    "eff_sat_thing_line_v1", "hub.id, link.line",
    "join link_thing_line as link using (hk_thing_line) join hub_thing as hub using (hk_thing)",
)  # fmt: skip


def active(vault: Vault, view: str, columns: str, joins: str) -> Timeline:
    """Per link, what the effectivity view has."""
    rows = vault.rows(f"select v.source_seq, v.is_active, {columns} from {view} as v {joins} order by v.source_seq")
    found: Timeline = defaultdict(list)
    for row in rows:
        found[row[2:]].append(row[:2])
    return dict(found)


def assert_stored_rows_are_true(vault: Vault, events: list[Event]) -> None:
    """A stored row says what its own event said, and says it once."""
    said = {(e["id"], e["line"], position(e)): (e["gone"], e["a"], e["b"]) for e in events}
    rows = vault.rows("select id, line, source_seq, is_deleted, a, b from ref_row")
    assert all(said[row[:3]] == row[3:] for row in rows)
    for name, key in (("ref_row", "id, line"), ("ma_sat_thing", "hk_thing, line"), ("sat_row", "hk_row"),
                      ("sts_row", "hk_row"), ("nh_sat_row", "hk_row"), ("sat_owned", "hk_row_owner"),
                      ("eff_sat_row_owner", "hk_row_owner"),
                      ("eff_sat_row_pairs", "hk_row_pairs"), ("eff_sat_thing_line", "hk_thing_line")):  # fmt: skip
        twice = f"select 1 from {name} group by {key}, source_seq having count(*) > 1"
        assert not vault.rows(twice), f"{name}: an event twice"
