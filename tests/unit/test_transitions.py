"""Who may move a table from which state to which: all of it is declared, and nothing else is written."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, cast, get_args

import psycopg
import pytest
from throwaway_postgres import throwaway_postgres

from ingestion.schema.positions import Lsn
from ingestion.state import store
from ingestion.state.store import Cluster, TablePosition
from ingestion.state.transitions import ACTORS, STATES, TRANSITIONS, Mover, TableState, may_move, moved_by
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from tests.unit.test_planning import FACTS

DECLARED = {
    "load": "new>loading loading>loading stale>loading loading>streaming stale>streaming loading>stale stale>stale "
            "new>parked loading>parked stale>parked parked>parked resuming>parked new>resuming",
    "read": "loading>new loading>loading streaming>streaming streaming>stale stale>stale streaming>parked "
            "loading>parked stale>parked parked>parked paused>paused resuming>resuming",
    "resume": "resuming>new resuming>streaming resuming>stale resuming>parked",
    "user": "new>new loading>new streaming>new stale>new parked>new paused>new resuming>new streaming>paused "
            "parked>resuming paused>resuming resuming>resuming",
    "recovery": "new>new loading>new resuming>new streaming>stale stale>stale parked>parked paused>paused",
}  # fmt: skip
EVERY = [(by, state, to) for by, state, to in product(get_args(Mover), STATES, STATES)]


@pytest.fixture(scope="module")
def states() -> Iterator[Any]:
    with throwaway_postgres() as url, psycopg.connect(url, autocommit=True) as connection:
        ensure_state(connection)
        yield connection


def test_every_transition_is_declared_and_written_down_here() -> None:
    found = {
        by: {f"{state}>{to}" for b, state, to in EVERY if b == by and may_move(b, state, to)} for by in TRANSITIONS
    }
    assert found == {by: set(listed.split()) for by, listed in DECLARED.items()}


def test_every_state_is_entered_and_can_be_left() -> None:
    for state in STATES:
        assert any(may_move(by, other, state) for by, other, to in EVERY if to == state and other != state)
        assert any(may_move(by, state, to) for by, other, to in EVERY if other == state and to != state)


def insert(states: Any, table: str, state: TableState) -> None:
    columns = 'source, "table", epoch, lsn, state'
    states.execute(f"INSERT INTO lakehouse.positions ({columns}) VALUES ('shop', %s, 1, 5, %s)", (table, state))


def put(states: Any, by: Mover, state: TableState | None, to: TableState) -> TableState | None:
    """What the state says after the move, tried by `by` on a table that is there already or, with None, is not."""
    states.execute("DELETE FROM lakehouse.positions")
    if state is not None:
        insert(states, "orders", state)
    try:
        store.put_position(states, "shop", TablePosition("orders", 1, Lsn(9), to, Lsn(0)), by)
    except LakehouseError as error:
        assert f"{ACTORS[by]} cannot change its state from {state or 'new'} to {to}; nothing was written" in str(error)
    there = store.read_positions(states, "shop").get("orders")
    assert there is None or there.position == (9 if (there.state == to and may_move(by, state or "new", to)) else 5)
    return there.state if there else None


@pytest.mark.parametrize("by", get_args(Mover))
def test_what_is_not_declared_is_refused_and_not_written(states: Any, by: Mover) -> None:
    for state, to in product(STATES, STATES):
        assert put(states, by, state, to) == (to if may_move(by, state, to) else state), (state, to)
        assert put(states, by, None, to) == (to if may_move(by, "new", to) else None), to


def test_recovery_moves_every_table_as_declared(states: Any) -> None:
    states.execute("DELETE FROM lakehouse.positions")
    store.create_stream(states, "shop", "slot", Cluster("7", 1), 2)
    for state in STATES:
        insert(states, state, state)
    store.restart_stream(states, "shop", "slot", Cluster("8", 1), 2)
    positions = store.read_positions(states, "shop").values()
    assert {p.table: p.state for p in positions} == {state: moved_by("recovery", state) for state in STATES}
    assert {(p.epoch, p.position) for p in positions} == {(2, 0)}


def test_a_position_within_an_epoch_never_goes_back(states: Any) -> None:
    position = TablePosition("lines", 1, Lsn(20), "loading", Lsn(0))
    store.put_position(states, "shop", position, "load")
    store.put_position(states, "shop", replace(position, position=Lsn(10)), cast(Mover, "load"))
    assert store.read_positions(states, "shop")["lines"].position == 20


def test_some_of_the_positions_are_read_alone_and_descriptions_are_parsed_once(states: Any) -> None:
    """Each of a thousand tables that joined the cuts parsed the descriptions of all: five minutes, under the lease."""
    states.execute("DELETE FROM lakehouse.positions")
    for name in ("orders", "lines"):
        kept = TablePosition(name, 1, Lsn(9), "loading", Lsn(0), versions=(FACTS,), fingerprint="f", former=FACTS)
        store.put_position(states, "shop", kept, "load")
    assert store.read_positions(states, "shop", ["orders", "gone"]).keys() == {"orders"}
    assert store.read_positions(states, "shop", []) == {}
    first, again = store.read_positions(states, "shop"), store.read_positions(states, "shop")
    assert first == again and first["orders"].facts is again["orders"].facts and first["lines"].former == FACTS
