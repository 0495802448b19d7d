"""When a table needs a resync, by its descriptions before and now and by the stream; and when it does not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from test_planning import FACTS, column, looks, position, resumed

from ingestion.pipeline.load_changes import tell_out_of_cuts
from ingestion.pipeline.table_plans import conclude, plan_course
from ingestion.schema.changes import Relation, RelationColumn
from ingestion.schema.evolve import Truncates, resync_reason
from ingestion.schema.facts import Leaf, facts_from_json
from ingestion.schema.positions import Lsn
from ingestion.schema.streamed_columns import UnknownRowSchema, columns_of
from ingestion.tasks.lanes import Findings

OLDER = "edges", "attribute_rows"


def test_descriptions_of_an_earlier_version_are_read_and_need_no_resync_for_what_they_lack() -> None:
    root = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0, has_rows=False),))
    stored = {name: value for name, value in root.to_json().items() if name not in OLDER}
    kept = facts_from_json(json.loads(json.dumps(stored)))
    assert kept == root
    assert facts_from_json(json.loads(json.dumps({**stored, "attributes": "a digest of them"}))) == root
    assert resync_reason(kept, replace(root, edges=((2, 700),), attribute_rows=((1, 1), (2, 2)))) is None
    now = replace(root, edges=((2, 700),), attribute_rows=((1, 700), (2, 701)))
    assert facts_from_json(json.loads(json.dumps(now.to_json()))) == now


@pytest.mark.parametrize(
    ("truncates", "now", "needs_resync"),
    [
        (Truncates(), {"filenode": 9}, True),
        (Truncates(frozenset({800}), frozenset({800})), {"filenode": 9}, False),
        (Truncates(frozenset({801})), {"filenode": 9}, True),
        (Truncates(frozenset({799})), {"filenode": 9}, False),
        (Truncates(frozenset({(1 << 32) - 5})), {"filenode": 9}, False),
        (Truncates(frozenset({799})), {"filenode": 9, "is_partition": True}, True),
        (Truncates(frozenset({800})), {"filenode": 9, "is_partition": True}, False),
        (Truncates(frozenset({800})), {"filenode": 9, "attribute_rows": ((1, 800),)}, True),
        (Truncates(frozenset({800})), {"filenode": 9, "attribute_rows": ((1, 700), (2, 800))}, True),
        (Truncates(frozenset({800})), {"filenode": 9, "member": 0}, True),
    ],
)
def test_a_truncate_explains_a_new_file_only_where_nothing_else_was_altered(
    truncates: Truncates, now: dict[str, Any], needs_resync: bool
) -> None:
    before = replace(FACTS, attribute_rows=((1, 700),), member=now.get("member", 77))
    after = replace(before, changed_by=800, **now)
    assert (resync_reason(before, after, truncates) is not None) == needs_resync
    assert resync_reason(replace(before, attribute_rows=None), after, truncates) is not None, "an earlier version's"


@pytest.mark.parametrize(
    ("truncates", "leaf", "needs_resync"),
    [
        (Truncates(frozenset({800})), Leaf(2, "public.a", 9, 800, has_rows=False), False),
        (Truncates(frozenset({800})), Leaf(2, "public.a", 9, 800, has_rows=True), True),
        (Truncates(frozenset({800}), frozenset({800})), Leaf(2, "public.a", 9, 800, has_rows=False), True),
        (Truncates(), Leaf(2, "public.a", 9, 800, has_rows=False), True),
    ],
)
def test_a_truncate_of_the_root_explains_a_partition_that_stayed_empty(
    truncates: Truncates, leaf: Leaf, needs_resync: bool
) -> None:
    before = replace(FACTS, relkind="p", filenode=None, leaves=(Leaf(2, "public.a", 2, 0),))
    assert (resync_reason(before, replace(before, leaves=(leaf,)), truncates) is not None) == needs_resync


def test_a_partition_that_was_attached_again_needs_a_resync() -> None:
    before = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0),), edges=((2, 700), (3, 700)))
    assert resync_reason(before, replace(before, edges=((2, 700), (3, 700)))) is None
    assert "public.a was detached" in str(resync_reason(before, replace(before, edges=((2, 900), (3, 700)))))
    assert "detached for a while" in str(resync_reason(before, replace(before, edges=((2, 700), (3, 900)))))


def test_columns_that_bore_each_others_names_are_known_by_their_order() -> None:
    facts = replace(FACTS, columns=(column("id", 1), column("a", 2), column("b", 4)), hidden=((3, "secret"),))

    def streamed(*names: str) -> Relation:
        return Relation(FACTS.oid, "public", "t", "d", tuple(RelationColumn(name, 23, -1, False) for name in names))

    excluded = frozenset({"secret"})
    assert columns_of((facts,), streamed("id", "a", "secret", "b"), excluded) == facts.columns
    assert columns_of((facts,), streamed("id", "a", "b"), excluded) == facts.columns
    for names in (("id", "b", "secret", "a"), ("id", "secret", "a", "b"), ("a", "id", "secret", "b")):
        with pytest.raises(UnknownRowSchema, match="each other's names"):
            columns_of((facts,), streamed(*names), excluded)


def test_a_table_that_leaves_the_cuts_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The follower's log told of it by the mirrors that stand still alone."""
    root = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0),))
    course = conclude(plan_course(position("streaming", root), looks(root)), Findings(parked="it is odd"), Lsn(200))
    again = conclude(plan_course(course.position, looks(root)), Findings(), Lsn(300))
    stale = conclude(plan_course(position("streaming", root), looks(root)), Findings(stale="it was read"), Lsn(200))
    tell_out_of_cuts("shop", [course, again, stale])
    assert [record.getMessage() for record in caplog.records] == [
        "source 'shop': orders is parked: it is odd",
        "source 'shop': orders is out of the cuts, and read anew: it was read",
    ]


def test_rows_of_an_unknown_partition_need_a_resync_also_while_records_are_spooled() -> None:
    root = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0),))
    passed = Findings(partitions={2: 700, 3: 810})
    course = conclude(plan_course(position("streaming", root), looks(root)), passed, Lsn(200))
    assert "a partition came" in str(course.position.reason)
    known = conclude(plan_course(position("streaming", root), looks(root)), Findings(partitions={2: 700}), Lsn(200))
    assert known.position.state == "streaming"
    paused = conclude(plan_course(position("paused", root), looks(root)), passed, Lsn(200))
    assert "a partition came" in str(resumed(paused).position.reason)


@pytest.mark.parametrize(
    ("filenode", "changed_by", "edges", "described_at", "truncates", "needs_resync"),
    [
        (9, 820, ((2, 700), (3, 800)), 150, Truncates(), True),
        (9, 820, ((2, 700), (3, 800)), 150, Truncates(frozenset({820})), False),
        (9, 820, ((2, 700), (3, 800)), 100, Truncates(), False),
        (3, 800, ((2, 700), (3, 810)), 150, Truncates(), True),
        (3, 830, ((2, 700), (3, 830)), 150, Truncates(), True),
        (3, 800, ((2, 700), (3, 800), (4, 830)), 150, Truncates(), True),
        (3, 800, None, 150, Truncates(), True),
        (3, 800, ((2, 900), (3, 800)), 150, Truncates(), False),
        (3, 800, ((2, 700), (3, (1 << 32) - 5)), 150, Truncates(), False),
    ],
    ids=[
        "emptied by itself", "by a truncate of the table", "before the changes came", "by the transaction that made it",
        "while it was detached", "while one above it was", "unknown", "by deletes, or not filled yet",
        "over a wraparound",
    ],
)  # fmt: skip
def test_a_partition_that_was_emptied_before_it_was_seen_needs_a_resync(
    filenode: int, changed_by: int, edges: tuple[tuple[int, int], ...] | None, described_at: int,
    truncates: Truncates, needs_resync: bool,
) -> None:  # fmt: skip
    """Its rows had come in the stream as the table's, and a TRUNCATE of a partition alone does not come. Deletes do: a
    queue whose partitions are empty again by the hour was read anew by the hour."""
    root = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0),))
    leaf = Leaf(3, "public.b", filenode, changed_by, has_rows=False)
    seen = replace(root, leaves=(*root.leaves, leaf), lsn=described_at, edges=edges)
    passed = Findings(partitions={3: (5 << 32) + 810}, truncates=truncates)
    course = conclude(plan_course(position("streaming", root), looks(seen, "altered")), passed, Lsn(200))
    assert (course.position.state == "stale") == needs_resync, course.position.reason
    later = conclude(plan_course(position("streaming", root), looks(seen, "altered")), Findings(), Lsn(120))
    read_on = conclude(plan_course(later.position, looks(seen, "altered")), passed, Lsn(200))
    assert (read_on.position.state == "stale") == (needs_resync and described_at > 120), "a read that was split"


def test_a_generated_column_that_is_published_all_the_same_does_not_land() -> None:
    facts = replace(FACTS, columns=(column("id", 1),), hidden=((2, "doubled"),))
    columns = tuple(RelationColumn(name, 23, -1, False) for name in ("id", "doubled"))
    assert columns_of((facts,), Relation(FACTS.oid, "public", "t", "d", columns), frozenset()) == facts.columns


@pytest.mark.parametrize(
    ("rows", "columns", "needs_resync"),
    [
        (((1, 700), (2, 700)), (1, 2), False),
        (((1, 700), (2, 900)), (1, 2), False),
        (((1, 700), (2, 700), (3, 900)), (1, 2, 3), False),
        (((1, 700), (2, 900)), (1,), False),
        (((1, 700), (2, 700), (3, 900)), (1, 2), True),
        (((1, 700), (2, 900), (3, 900)), (1, 3), True),
        (((1, 700), (2, 900), (3, 900)), (1, 2, 3), True),
        (((1, 900), (2, 900)), (1,), True),
    ],
)
def test_a_name_is_ambiguous_where_columns_were_added_or_dropped_and_others_were_altered(
    rows: tuple[tuple[int, int], ...], columns: tuple[int, ...], needs_resync: bool
) -> None:
    before = replace(FACTS, columns=(column("c1", 1), column("c2", 2)), attribute_rows=((1, 700), (2, 700)))
    now = replace(before, columns=tuple(column(f"c{n}", n) for n in columns), attribute_rows=rows)
    assert (resync_reason(before, now) is not None) == needs_resync


@pytest.mark.parametrize("names", [("id", "b"), ("id", "a", "y")])
def test_rows_of_columns_that_the_table_never_had_together_are_not_landed(names: tuple[str, ...]) -> None:
    columns = {"id": column("id", 1), "a": column("a", 2), "b": column("b", 3)}
    before = replace(FACTS, columns=tuple(columns.values()))
    now = replace(before, columns=(columns["id"], columns["a"], column("x", 4), column("y", 5)))
    relation = Relation(FACTS.oid, "public", "t", "d", tuple(RelationColumn(n, 23, -1, n == "id") for n in names))
    with pytest.raises(UnknownRowSchema, match="bore another one's name"):
        columns_of((before, now), relation, frozenset())
