"""Several rows on one key in one transaction: the events of the row that lives on come last, or nothing is claimed."""

import random
from dataclasses import replace

import pytest
from test_planning import column

from ingestion.pipeline.repair.stage import DELETE_SEQ, ROW_SEQ
from ingestion.schema.declared_columns import may_share_keys
from ingestion.schema.facts import TableFacts, facts_from_json
from ingestion.tasks.shared_keys.positions import MAX_RANK, ranked, sent_at_seq
from ingestion.tasks.shared_keys.row_events import AmbiguousRows, Event, events_by_row, is_sequential
from ingestion.tasks.snapshot import CHUNK_SEQ
from lakehouse.declarations.policies import RawPolicy
from tests.world import declared_source


def image(number: int) -> bytes:
    return str(number).encode()


def arranged(events: list[Event], *, empty: bool = False) -> list[Event]:
    """What lands of them, in this order."""
    if is_sequential("".join(event.op for event in events), empty=empty):
        return events
    found = events_by_row(events, empty=empty)
    return [events[index] for life in found.rows for index in life] if found.land else []


def create(after: int) -> Event:
    return Event("c", None, image(after))


def update(before: int, after: int) -> Event:
    return Event("u", image(before), image(after))


def delete(before: int) -> Event:
    return Event("d", image(before), None)


@pytest.mark.parametrize(
    ("events", "landed"),
    [
        pytest.param([create(1), delete(2)], [delete(2), create(1)], id="another row makes room"),
        pytest.param([create(1), delete(1)], [], id="as it was before, whatever it was"),
        pytest.param([create(1), update(1, 2), delete(2)], [], id="as it was before, after an update"),
        pytest.param([delete(1), create(1)], [delete(1), create(1)], id="made again"),
        pytest.param([create(1), update(1, 2)], [create(1), update(1, 2)], id="one row alone"),
        pytest.param(
            [create(1), update(9, 8), delete(1)], [create(1), delete(1), update(9, 8)], id="a passing row beside"
        ),
        pytest.param(
            [create(1), update(9, 8), update(1, 2), delete(8)],
            [update(9, 8), delete(8), create(1), update(1, 2)],
            id="the old row goes",
        ),
        pytest.param(
            [create(1), create(2), delete(9), delete(1)],
            [delete(9), create(1), delete(1), create(2)],
            id="three rows on one key",
        ),
        pytest.param([delete(1), create(2), delete(2)], [delete(1), create(2), delete(2)], id="all gone"),
    ],
)
def test_the_row_that_lives_on_comes_last(events: list[Event], landed: list[Event]) -> None:
    assert arranged(events) == landed


def test_after_a_truncate_the_key_was_surely_empty() -> None:
    gone = [create(1), delete(1)]
    assert arranged(gone, empty=True) == gone
    with pytest.raises(AmbiguousRows):
        arranged([delete(1), create(1)], empty=True)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([create(1), create(2)], id="two rows left"),
        pytest.param([create(1), delete(8), delete(9)], id="two rows before"),
        pytest.param([delete(9), create(1), create(2)], id="one before, two left"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(events: list[Event]) -> None:
    with pytest.raises(AmbiguousRows):
        arranged(events)


def test_any_history_of_rows_that_share_a_key_ends_with_the_row_that_is_left() -> None:
    """The newest event that lands says what is left; without one, what was there before is there still."""
    shared = left_out = 0
    for seed in range(20_000):
        chance = random.Random(seed)
        before = chance.choice([None, chance.randint(0, 2)])
        there = [] if before is None else [before]
        events: list[Event] = []
        while len(events) < 8 and (len(events) < 2 or len(there) > 1 or chance.random() < 0.6):
            op = chance.choice("cud" if there else "c") if len(there) < 3 else "d"
            row = chance.randint(0, 2)
            if op == "c":
                there.append(row)
                events.append(create(row))
                continue
            old = there.pop(chance.randrange(len(there)))
            events.append(delete(old) if op == "d" else update(old, row))
            there += [row] if op == "u" else []
        if len(there) > 1:
            continue
        landed = arranged(events)
        now = image(before) if before is not None and not landed else landed[-1].after if landed else None
        assert now == (image(there[0]) if there else None), (seed, before, events, there)
        shared += landed != events
        left_out += not landed
    assert shared > 1000 and left_out > 100


def facts(*enforced_by: int) -> TableFacts:
    columns = (column("id", 1),)
    return TableFacts(
        oid=1, filenode=1, relkind="r", replica_identity="f", key=(), columns=columns, enforced_by=enforced_by
    )


def test_rows_may_share_a_key_unless_one_index_kept_it_all_the_time() -> None:
    def may_share(policy: RawPolicy, *versions: TableFacts) -> bool:
        return may_share_keys(declared_source("s", {"k": policy}).tables[0], versions)

    policy = RawPolicy(relation="public.k", key=("id",))
    assert not may_share(policy, facts(7))
    assert not may_share(policy, facts(7, 8), facts(8, 9))
    assert may_share(policy, facts(7), facts(8)), "the one may be gone before the other came"
    assert may_share(policy, facts())
    assert not may_share(RawPolicy(relation="public.k"), facts())
    assert not may_share(policy.model_copy(update={"changes": "inserts"}), facts())
    assert not may_share(policy, replace(facts(), columns=())), "a table that lost its key lands nothing"


def test_a_description_of_an_earlier_version_says_that_rows_may_share_a_key() -> None:
    stored = facts(7).to_json()
    assert facts_from_json(stored) == facts(7)
    del stored["enforced_by"]
    assert facts_from_json(stored) == facts()


def test_the_place_of_an_event_that_was_put_in_order_stays_readable() -> None:
    for seq in (0, 1, 1 << 39):
        assert sent_at_seq(seq) == seq
        assert sent_at_seq(ranked(1, seq)) == sent_at_seq(ranked(MAX_RANK, seq)) == seq
        assert ranked(1, seq) < ranked(2, 0) < ranked(MAX_RANK, seq) < DELETE_SEQ
    for given_by_a_repair in (DELETE_SEQ, DELETE_SEQ + 5, ROW_SEQ + CHUNK_SEQ):
        assert sent_at_seq(given_by_a_repair) == given_by_a_repair
