"""Where a table stands after a read: nothing that was under way is forgotten when something else stops its records."""

import json
from dataclasses import replace
from itertools import product

import pytest

from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import Course, conclude, plan_course
from ingestion.schema.evolve import name_columns, resync_reason, steps
from ingestion.schema.facts import ColumnFacts, Leaf, TableFacts, facts_from_json
from ingestion.schema.names import check_names
from ingestion.schema.positions import Lsn
from ingestion.schema.problem import TableProblem
from ingestion.state.store import TablePosition, TableState
from ingestion.state.transitions import STATES, Mover, may_move
from ingestion.tasks.lanes import Findings
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy

TABLE = RawTable(
    source="shop", name="orders", description="", columns=(),
    raw=RawPolicy(relation="public.orders", key=("id",)), load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip
REFUSED = "column 'at' has a value that the lake cannot hold"


def column(name: str, number: int, default: bool = False) -> ColumnFacts:
    return ColumnFacts(
        name=name, number=number, declared_type="integer", type_oid=23, type_name="int4", type_kind="b", typmod=-1,
        stream_oid=23, stream_typmod=-1, output_function="pg_catalog.int4out", has_default_for_earlier_rows=default,
        lake=name,
    )  # fmt: skip


FACTS = TableFacts(
    oid=1, filenode=1, relkind="r", replica_identity="d", key=("id",), columns=(column("id", 1),),
    relation=("public", "orders"),
)  # fmt: skip


def position(state: TableState, facts: TableFacts = FACTS) -> TablePosition:
    return TablePosition("orders", 1, Lsn(100), state, Lsn(50), versions=(facts,), fingerprint="as it was")


def looks(facts: TableFacts | None = FACTS, fingerprint: str = "as it was", problem: str | None = None) -> Outlook:
    return Outlook(TABLE, fingerprint, facts, problem)


def resumed(course: Course) -> Course:
    """As `kept.resume` lands a parked table's spool."""
    again = plan_course(replace(course.position, state="streaming", reason=None), looks(course.position.facts))
    return conclude(again, Findings(), Lsn(300))


@pytest.mark.parametrize("state", ["loading", "stale"])
@pytest.mark.parametrize("stopped_by", ["a refused value", "a lost right"])
def test_a_table_parked_before_it_was_whole_is_repaired_when_it_resumes(state: TableState, stopped_by: str) -> None:
    if stopped_by == "a refused value":
        parked = conclude(plan_course(position(state), looks()), Findings(parked=REFUSED), Lsn(200))
    else:
        parked = conclude(plan_course(position(state), looks(problem="no SELECT right")), Findings(), Lsn(200))
    assert parked.position.state == "parked"
    assert resumed(parked).position.state == "stale"


def test_a_table_parked_while_it_streamed_streams_on() -> None:
    parked = conclude(plan_course(position("streaming"), looks()), Findings(parked=REFUSED), Lsn(200))
    assert resumed(parked).position.state == "streaming"


def test_a_table_that_a_read_parks_is_resynced_for_the_reason_that_the_read_found() -> None:
    wider = replace(FACTS, columns=(*FACTS.columns, column("d", 2, default=True)))
    course = plan_course(position("streaming"), looks(wider, "wider"))
    parked = conclude(course, Findings(parked=REFUSED), Lsn(200))
    assert "added with a default" in str(parked.position.resync_reason)
    assert resumed(parked).position.state == "stale"


def test_a_record_of_unknown_form_in_the_read_that_parks_a_table_leads_to_a_repair() -> None:
    parked = conclude(
        plan_course(position("streaming"), looks()), Findings(parked=REFUSED, stale="a row of no form"), Lsn(200)
    )
    assert resumed(parked).position.state == "stale"


@pytest.mark.parametrize("found", ["x", "another reason"])
def test_what_is_noticed_while_a_table_is_repaired_outlasts_the_repair(found: str) -> None:
    """The repair knows the table at its point, and the end of it cleared what a read above had found."""
    begun = replace(position("stale"), reason="x")
    course = conclude(plan_course(begun, looks()), Findings(stale=found), Lsn(200))
    assert (course.position.state, course.position.resync_reason) == ("stale", found)
    again = conclude(plan_course(course.position, looks()), Findings(), Lsn(300))
    assert again.position == course.position
    assert (
        conclude(plan_course(position("streaming"), looks()), Findings(stale="x"), Lsn(200)).position.resync_reason
        is None
    )


@pytest.mark.parametrize(("state", "then"), [("streaming", "streaming"), ("stale", "stale"), ("loading", "new")])
def test_a_rename_begins_only_a_snapshot_anew_that_is_under_way(state: TableState, then: TableState) -> None:
    course = conclude(
        plan_course(position(state), looks(replace(FACTS, relation=("public", "sales")), "renamed")),
        Findings(),
        Lsn(200),
    )
    assert course.position.state == then
    assert [change.kind for change in course.changes] == ["table renamed"]


def test_partitions_that_swap_their_names_begin_a_snapshot_anew() -> None:
    root = replace(FACTS, relkind="p", leaves=(Leaf(2, "public.a", 2, 0), Leaf(3, "public.b", 3, 0)))
    swapped = replace(root, leaves=(Leaf(2, "public.b", 2, 0), Leaf(3, "public.a", 3, 0)))
    course = conclude(plan_course(position("loading", root), looks(swapped, "swapped")), Findings(), Lsn(200))
    assert course.position.state == "new"


def test_an_altered_publication_needs_a_resync_where_it_was_known_before() -> None:
    before, now = replace(FACTS, publishes="t,t,t,t,t,f,800"), replace(FACTS, publishes="t,t,t,t,t,f,900")
    assert (
        conclude(plan_course(position("streaming", before), looks(now, "other")), Findings(), Lsn(200)).position.state
        == "stale"
    )
    assert (
        conclude(plan_course(position("streaming"), looks(now, "other")), Findings(), Lsn(200)).position.state
        == "streaming"
    )


def test_a_column_that_was_dropped_and_re_created_needs_a_resync() -> None:
    text = replace(column("a", 2), type_oid=25, type_name="text", stream_oid=25, declared_type="text")
    before, now = (replace(FACTS, columns=(column("id", 1), a)) for a in (column("a", 2), text))
    course = plan_course(position("streaming", before), looks(now, "other"), consent=True)
    assert "column a begins anew" in str(conclude(course, Findings(), Lsn(200)).position.reason)


def test_a_column_that_the_user_calls_as_one_set_aside_is_none() -> None:
    """Known by its prefix, it made a table in which nothing was set aside be read anew."""
    renamed = replace(column("a__b", 2), lake="a__b")
    versions = (replace(FACTS, columns=(column("id", 1), a)) for a in (column("a", 2), renamed))
    paused = replace(position("streaming"), versions=tuple(versions), unfollowed=1, fingerprint="renamed")
    now = replace(FACTS, columns=(column("id", 1), renamed, column("a", 3)))
    course = plan_course(paused, looks(now, "added"))
    assert [(s.action, s.column) for s in course.steps] == [("rename", "a"), ("add", "a")]
    assert conclude(course, Findings(), Lsn(200)).position.state == "streaming"


@pytest.mark.parametrize("state", [state for state in STATES if state != "new"])
def test_whatever_a_read_finds_the_move_is_declared(state: TableState) -> None:
    """One that is not would be refused, and with it every publish of the source."""
    mover: Mover = "resume" if state == "resuming" else "read"
    rewritten, refused = (
        replace(FACTS, filenode=2),
        replace(FACTS, columns=(replace(column("id", 1), type_name="text", type_oid=25),)),
    )
    again, added = replace(FACTS, oid=2), replace(FACTS, columns=(*FACTS.columns, column("d", 2, default=True)))
    seen = [looks(), looks(problem="no right"), looks(None, problem="gone"),
            *(looks(facts, "other") for facts in (rewritten, refused, again, added))]  # fmt: skip
    noticed = [
        Findings(),
        Findings(parked=REFUSED),
        Findings(stale="reason"),
        Findings(REFUSED, "reason"),
        Findings(partitions={9: 700}),
    ]
    for before in (
        position(state),
        replace(position(state), versions=(FACTS, added), unfollowed=1, resync_reason="it moved"),
    ):
        for outlook, kept, consent in product(seen, noticed, (True, False)):
            given = replace(before, state="streaming") if state == "resuming" else before
            course = plan_course(given, outlook, consent=consent)
            if course.aside is None or kept.parked is None:  # a task parks no table whose records do not land
                after = conclude(course, kept, Lsn(200)).position.state
                assert may_move(mover, state, after), (outlook, kept, after)


MOOD = (("label 16401", "sad"), ("label 16402", "happy"))
PAIR = (("composite 16500", "1,2"), ("label 16401", "sad"))


@pytest.mark.parametrize(
    ("before", "now", "needs_resync"),
    [
        ({"prints": MOOD}, {"prints": (MOOD[0], ("label 16402", "glad"))}, True),
        ({"prints": MOOD}, {"prints": (("label 16401", "happy"), ("label 16402", "sad"))}, True),
        ({"prints": MOOD}, {"prints": (*MOOD, ("label 16403", "glad"))}, False),
        ({"prints": PAIR}, {"prints": (("composite 16500", "1,2,3"), PAIR[1])}, True),
        ({"prints": PAIR}, {"prints": (("composite 16500", "1"),)}, True),
        ({"prints": None}, {"prints": MOOD}, False),  # described by an earlier version
        ({"type_oid": 650, "output_function": "pg_catalog.cidr_out"},
         {"type_oid": 869, "output_function": "pg_catalog.inet_out"}, True),
        ({"type_oid": 1043, "output_function": "pg_catalog.varcharout"},
         {"type_oid": 25, "output_function": "pg_catalog.textout"}, False),
        ({"type_oid": 1043, "typmod": 9}, {"type_oid": 1043, "typmod": 14}, False),
    ],
)  # fmt: skip
def test_a_type_whose_text_output_changed_needs_a_resync(
    before: dict[str, object], now: dict[str, object], needs_resync: bool
) -> None:
    was, now_is = (replace(FACTS, columns=(replace(column("a", 1), **given),)) for given in (before, now))
    kept = facts_from_json(json.loads(json.dumps(was.to_json())))
    assert kept == was
    assert (resync_reason(kept, now_is) is not None) == needs_resync


def test_facts_that_were_kept_by_an_earlier_version_are_read() -> None:
    stored = FACTS.to_json()
    for given in stored["columns"]:
        del given["prints"]
    assert facts_from_json(json.loads(json.dumps(stored))) == FACTS


@pytest.mark.parametrize("name", ["$path", "$Partition", "$file_modified_time", "_OP", "_LH_nth"])
def test_a_name_that_trino_or_the_log_has_itself_needs_an_alias(name: str) -> None:
    """Trino cannot read a table with a column called as one that it hides there."""
    with pytest.raises(TableProblem, match=r"declare meta\.raw\.alias"):
        check_names(TABLE, replace(FACTS, columns=(*FACTS.columns, column(name, 2))))
    check_names(TABLE, replace(FACTS, columns=(*FACTS.columns, replace(column(name, 2), lake="another_name"))))


@pytest.mark.parametrize("name", ["_file", "_pos", "_Deleted", "_partition", "_last_updated_sequence_number"])
def test_a_name_that_iceberg_reserves_needs_an_alias_unless_the_raw_table_has_it_already(name: str) -> None:
    """Spark refuses to read such a table, so nothing would compact it."""
    facts = replace(FACTS, columns=(*FACTS.columns, column(name, 2)))
    with pytest.raises(
        TableProblem, match=rf"{name}' has a name that Iceberg reserves: declare meta\.raw\.alias: {{{name}"
    ):
        check_names(TABLE, facts)
    for known in (position("streaming", facts), position("streaming", facts).forgotten):
        check_names(TABLE, facts, known.landed)
    aliased = TABLE.model_copy(update={"raw": TABLE.raw.model_copy(update={"alias": {name: "another_name"}})})
    named = name_columns(aliased, facts, facts)
    check_names(aliased, named)
    taken = steps(aliased, facts, named, consent=False)
    assert [(step.action, step.column, step.to) for step in taken] == [("rename", name, "another_name")]
