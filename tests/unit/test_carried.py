"""Partitions whose rows come as another relation's: how the stream shows them, and when they need a resync."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pgoutput_encode import begin, commit, insert, relation, truncate
from test_planning import FACTS, looks, position, resumed

from ingestion.pipeline.table_plans import conclude, plan_course
from ingestion.schema.changes import Relation, RelationColumn
from ingestion.schema.facts import Leaf
from ingestion.schema.positions import Lsn
from ingestion.sink.rows import TableTarget
from ingestion.sources.postgres.pgoutput import Decoder
from ingestion.sources.postgres.pgoutput.carried import carried_partitions
from ingestion.tasks.lanes import Findings
from ingestion.tasks.partitions import carried_resync_reason, partitions_of

ID, V = RelationColumn("id", 23, -1, True), RelationColumn("v", 23, -1, False)
LEAF = Relation(2, "public", "leaf", "d", (ID, V))
BY_ID = Relation(1, "public", "root", "d", (ID, V))
WHOLE = Relation(1, "public", "root", "f", (ID, replace(V, is_key=True)))
BY_V = Relation(2, "public", "leaf", "i", (replace(ID, is_key=False), replace(V, is_key=True)))
COLUMNS = (("id", True),)
TYPE = b"Y" + (99999).to_bytes(4, "big") + b"public\0mood\0"
ROOT, PART = relation(1, COLUMNS, name="root"), relation(2, COLUMNS, name="leaf")


def target(*, oid: int = 1, leaf: int | None = None, updates: bool = True, shares_keys: bool = False) -> TableTarget:
    facts = replace(FACTS, oid=oid, leaves=(Leaf(leaf, "public.leaf", 2, 0),) if leaf else ())
    return TableTarget(
        "shop", "orders", "", facts.columns, (facts,), frozenset(), {}, ("id",), "error", 0, 1, datetime.now(UTC),
        updates=updates, shares_keys=shares_keys,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ((ROOT, PART, insert(1, ["1"])), True),
        ((TYPE, ROOT, TYPE, TYPE, PART, insert(1, ["1"])), True),
        ((ROOT, PART, truncate(1, 2)), False),
        ((ROOT, insert(1, ["1"]), PART, insert(2, ["1"])), False),
    ],
)
def test_a_partition_is_described_between_its_root_and_its_first_row(messages: tuple[bytes, ...], found: bool) -> None:
    stream = [begin(100, xid=77), *messages, commit(100)]
    for cut in range(len(stream)):
        decoder = Decoder(1)
        for piece in (stream[:cut], stream[cut:]):
            decoder.feed(pa.array(piece, pa.binary()))
        assert {(root.oid, leaf.oid): xid for (root, leaf), xid in decoder.carried.items()} == (
            {(1, 2): 77} if found else {}
        )


def test_what_is_described_ahead_of_a_transaction_is_nobodys_partition() -> None:
    decoder = Decoder(1)
    decoder.feed(pa.array([ROOT, PART, begin(100), insert(1, ["1"]), commit(100)], pa.binary()))
    assert not decoder.carried
    assert carried_partitions((), np.frombuffer(b"RR", np.uint8), [(0, LEAF), (1, BY_V)])[1] == (LEAF, BY_V)


def test_rows_that_came_as_another_tables_need_a_resync() -> None:
    assert "those of another table" in str(carried_resync_reason(target(oid=2), {(BY_ID, LEAF)}))
    assert "those of another table" in str(carried_resync_reason(target(oid=7, leaf=2), {(BY_ID, LEAF)}))
    assert carried_resync_reason(target(leaf=2), {(BY_ID, LEAF)}) is None
    assert carried_resync_reason(target(oid=7), {(BY_ID, LEAF)}) is None
    assert partitions_of(
        target(), {(BY_ID, LEAF): 9, (BY_ID, BY_V): 8, (replace(BY_ID, oid=3), replace(LEAF, oid=4)): 7}
    ) == {2: 8}


def test_a_partition_whose_changes_lack_the_key_needs_a_resync() -> None:
    assert "without the declared key" in str(carried_resync_reason(target(leaf=2), {(BY_ID, BY_V)}))
    assert carried_resync_reason(target(leaf=2), {(BY_ID, replace(BY_V, replica_identity="f"))}) is None
    assert carried_resync_reason(target(leaf=2, updates=False), {(BY_ID, BY_V)}) is None


def test_a_partition_that_tells_less_of_its_rows_than_the_images_need_it_needs_a_resync() -> None:
    """What its old rows lack comes as nulls, so that an event is taken for another row's."""
    sharing = target(leaf=2, shares_keys=True)
    assert "narrower than the table's" in str(carried_resync_reason(sharing, {(WHOLE, LEAF)}))
    assert carried_resync_reason(target(leaf=2), {(WHOLE, LEAF)}) is None, "one index keeps the key"
    assert carried_resync_reason(target(leaf=2, shares_keys=True, updates=False), {(WHOLE, LEAF)}) is None
    for root, leaf in ((WHOLE, replace(LEAF, replica_identity="f")), (BY_ID, LEAF), (BY_ID, replace(WHOLE, oid=2))):
        assert carried_resync_reason(sharing, {(root, leaf)}) is None


def test_a_parked_table_that_needs_a_resync_gets_it_once_it_resumes() -> None:
    parked = conclude(
        plan_course(position("streaming"), looks(problem="no SELECT right")), Findings(stale="carried"), Lsn(200)
    )
    assert (parked.position.state, parked.position.resync_reason) == ("parked", "carried")
    assert resumed(parked).position.state == "stale"
