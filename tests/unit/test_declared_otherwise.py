"""A table whose key or masks are declared otherwise once rows have landed."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import IntegerType, StringType

from ingestion.pipeline.session import Cycle, append_of
from ingestion.pipeline.survey import Outlook, check_keys, declared_fingerprint, survey
from ingestion.pipeline.table_plans import Course, conclude, plan_course
from ingestion.run.move import _check_declared
from ingestion.schema.declared_columns import is_keyed_as_declared
from ingestion.schema.evolve import lake_type, name_columns, resync_reason
from ingestion.schema.facts import TOPIC, TableFacts, facts_from_json
from ingestion.schema.positions import Lsn
from ingestion.schema.problem import TableProblem
from ingestion.sink.writer import Written
from ingestion.sources.kafka.connection import Topic
from ingestion.sources.kafka.source import OpenKafka
from ingestion.state.store import TablePosition
from ingestion.tasks.lanes import Findings
from lakehouse.declarations import RawTable, Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.errors import LakehouseError
from tests.unit.test_planning import FACTS, TABLE, column, position

TEXT = replace(
    column("email", 3), declared_type="text", type_oid=25, type_name="text", stream_oid=25,
    output_function="pg_catalog.textout",
)  # fmt: skip
FOUND = replace(FACTS, columns=(column("id", 1), column("code", 2), TEXT))


def declared(*key: str, kind: str = "postgres", **mask: str) -> RawTable:
    """The table with this key and these masks."""
    raw = TABLE.raw.model_copy(update={"key": key, "mask": mask, "topic": "orders" if kind != "postgres" else ""})
    return TABLE.model_copy(update={"raw": raw, "kind": kind})


def facts(table: RawTable, before: TableFacts | None = None, found: TableFacts = FOUND) -> TableFacts:
    return name_columns(table, before, found)


def read(before: TableFacts, table: RawTable, *, consent: bool = False, found: TableFacts = FOUND) -> Course:
    """The course of a streaming table, declared so from now on, through a read."""
    outlook = Outlook(table, "other", facts(table, before, found), None)
    return conclude(plan_course(position("streaming", before), outlook, consent=consent), Findings(), Lsn(200))


def resumed(parked: TablePosition, table: RawTable) -> Course:
    """As the user resumes it, under this declaration."""
    outlook = Outlook(table, "newest", facts(table, parked.facts), None)
    return conclude(plan_course(replace(parked, state="streaming"), outlook, consent=True), Findings(), Lsn(300))


def of_an_earlier_release(given: TableFacts) -> TableFacts:
    stored = json.loads(json.dumps(given.to_json()))
    del stored["keyed_by"]
    for each in stored["columns"]:
        del each["mask"]
    return facts_from_json(stored)


@pytest.mark.parametrize(
    ("before", "now", "state"),
    [
        (("id",), ("code",), "stale"),
        (("id",), ("id", "code"), "stale"),
        (("id", "code"), ("id",), "stale"),
        (("id", "code"), ("code", "id"), "streaming"),
        (("id",), ("id",), "streaming"),
        ((), ("id",), "stale"),
        (("id",), (), "streaming"),
    ],
)
def test_a_key_that_is_declared_otherwise_needs_a_resync(
    before: tuple[str, ...], now: tuple[str, ...], state: str
) -> None:
    """Deletes under the key before carry its columns alone, and every row that they took came back."""
    course = read(facts(declared(*before)), declared(*now))
    assert course.position.state == state
    assert (course.position.reason == "its key is declared otherwise") == (state == "stale")
    assert [change.kind for change in course.changes] == ["key declared"] * (state == "stale")
    assert is_keyed_as_declared(declared(*now), facts(declared(*before))) == (state == "streaming")


def test_a_key_that_the_table_lacks_for_a_while_or_that_is_declared_away_is_not_forgotten() -> None:
    keyed = facts(declared("id"))
    without = facts(declared(), keyed)
    renamed = replace(FOUND, columns=(column("number", 1), *FOUND.columns[1:]))
    lacking = facts(declared("id"), keyed, renamed)
    for between in (without, lacking):
        assert read(between, declared("code")).position.state == "stale"
    assert read(without, declared("id")).position.state == "streaming"
    assert read(lacking, declared("number"), found=renamed).position.state == "streaming"


def test_a_table_that_was_parked_for_its_key_is_resynced_when_it_resumes_under_the_other_one() -> None:
    keyed, says = facts(declared("id")), "declared key (id) is not within the replica identity (code): declare that key"
    outlook = Outlook(declared("id"), "moved", facts(declared("id"), keyed), says)
    parked = conclude(plan_course(position("streaming", keyed), outlook), Findings(), Lsn(200)).position
    assert parked.state == "parked"
    assert resumed(parked, declared("code")).position.state == "stale"
    seen = plan_course(parked, Outlook(declared("code"), "code", facts(declared("code"), parked.facts), None)).position
    assert (seen.state, resumed(seen, declared("code")).position.state) == ("parked", "stale"), "a read came in between"


@pytest.mark.parametrize(
    ("before", "now"),
    [("", "sha256"), ("", "null"), ("null", ""), ("sha256", ""), ("null", "sha256"), ("sha256", "null")],
)
def test_a_mask_that_is_declared_otherwise_needs_a_resync(before: str, now: str) -> None:
    """Plain values stayed beside digests, and NULL beside values, until each row changed."""
    was, table = (declared("id", **({"email": mask} if mask else {})) for mask in (before, now))
    course = read(facts(was), table)
    assert (course.position.state, course.position.reason) == (
        "stale",
        "the mask of column email is declared otherwise",
    )
    assert [(c.kind, c.column, c.before, c.after) for c in course.changes] == [
        ("mask declared", "email", before or None, now or None)
    ]
    assert read(facts(table), table).position.state == "streaming"


@pytest.mark.parametrize(
    ("masks", "aside"), [(({}, {"code": "sha256"}), "code__int"), (({"code": "sha256"}, {}), "code__string")]
)
def test_a_mask_that_gives_a_column_another_type_in_the_lake_waits_for_consent(
    masks: tuple[dict[str, str], dict[str, str]], aside: str
) -> None:
    """Numbers landed as their own text beside digests, or digests were to land in a column of numbers."""
    before, table = facts(declared("id", **masks[0])), declared("id", **masks[1])
    parked = read(before, table)
    assert parked.position.state == "parked"
    assert "the mask of column code is declared otherwise" in str(parked.position.reason)
    assert aside in str(parked.position.reason) and "data_type" not in str(parked.position.reason)
    course = resumed(parked.position, table)
    taken = [(step.action, step.column, step.to) for step in course.steps]
    assert taken == [("set aside", "code", aside), ("add", "code", "")]
    assert course.position.state == "stale"


def test_a_column_lands_in_the_type_of_the_mask_with_which_it_was_described() -> None:
    plain, masked = declared("id"), declared("id", code="sha256")
    assert isinstance(lake_type(masked, facts(plain).columns[1]), IntegerType)
    assert isinstance(lake_type(plain, facts(masked).columns[1]), StringType)


def test_descriptions_of_an_earlier_release_tell_neither_key_nor_masks_and_need_no_resync_for_that() -> None:
    table = declared("id", email="null", code="sha256")
    kept = of_an_earlier_release(facts(table))
    assert (kept.keyed_by, {c.mask for c in kept.columns}) == (None, {None})
    assert facts_from_json(json.loads(json.dumps(facts(table).to_json()))) == facts(table)
    course = read(kept, table)
    assert (course.position.state, course.steps, course.changes) == ("streaming", (), ())
    assert course.position.facts.keyed_by == (1,), "it is told from now on"
    assert read(course.position.facts, declared("id", email="null")).position.state == "parked", "and so are its masks"
    assert is_keyed_as_declared(declared("code"), kept)


def test_each_table_is_described_once_after_an_update_so_that_its_key_and_masks_are_known() -> None:
    table = declared("id", email="null")
    of_before = f"as it is/{sorted(table.raw.mask.items())}/{(table.key, table.raw.exclude, [])}"
    assert declared_fingerprint(table, "as it is") != of_before


def test_a_topic_whose_values_are_declared_to_be_in_another_format_is_described_again() -> None:
    """Its events were read in the former one until the table was described for another reason."""
    topics = OpenKafka.__new__(OpenKafka)
    topics._brokers = cast(Any, SimpleNamespace(topics=lambda _: {"orders": Topic("orders", 7, (0,))}))
    table = declared("id", kind="kafka")
    avro = table.model_copy(update={"raw": table.raw.model_copy(update={"format": "avro"})})
    assert topics.fingerprints([table]) == topics.fingerprints([table]) != topics.fingerprints([avro])


def test_nothing_restates_what_has_landed_of_a_topic() -> None:
    topic = replace(FOUND, relkind=TOPIC)
    before = facts(declared("id", kind="kafka"), None, topic)
    assert resync_reason(before, facts(declared("code", kind="kafka"), before, topic)) is None
    assert resync_reason(before, facts(declared("id", kind="kafka", email="null"), before, topic)) is None


@pytest.fixture
def landed(tmp_path: Path) -> Callable[..., Any]:
    """A catalog whose raw table has rows of these operations."""

    def make(*operations: str) -> SqlCatalog:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
        catalog.create_namespace("raw_shop")
        raw = catalog.create_table("raw_shop.orders", pa.schema([("_op", pa.string())]))
        if operations:
            raw.append(pa.table({"_op": operations}))
        return catalog

    return make


def session_of(catalog: SqlCatalog, table: RawTable) -> Any:
    declaring = Source(name="shop", description="", load=LoadPolicy(), tables=(table,))
    return SimpleNamespace(name="shop", source=declaring, catalog=catalog, described={})


def surveyed(catalog: SqlCatalog, table: RawTable, stands: TablePosition | None) -> Outlook:
    found = replace(FOUND, relkind=TOPIC)
    source = SimpleNamespace(
        holds_tables=False, fingerprints=lambda tables: {"orders": "as it is"}, inspect=lambda *of: (found, None)
    )
    return survey(session_of(catalog, table), cast(Any, source), {"orders": stands} if stands else {})["orders"]


@pytest.mark.parametrize(
    ("kind", "operations", "is_refused"),
    [
        ("kafka", ("c",), True),
        ("kafka", (), False),
        ("debezium", ("c", "u"), True),
        ("debezium", ("r", "d"), True),
        ("debezium", ("r", "c"), False),
    ],
)
def test_a_topic_whose_changes_have_landed_under_another_key_is_parked(
    landed: Callable[..., Any], kind: str, operations: tuple[str, ...], is_refused: bool
) -> None:
    """Their deletes do not tell the columns of the declared key, and there is no table to compare with."""
    former, table = declared("id", kind=kind), declared("code", kind=kind)
    stands = position("streaming", facts(former, None, replace(FOUND, relkind=TOPIC)))
    outlook = surveyed(catalog := landed(*operations), table, stands)
    assert (outlook.problem is not None) == is_refused
    assert surveyed(catalog, former, stands).problem is None
    if is_refused:
        assert "under the key (id), and cannot be read again under (code)" in str(outlook.problem)
        assert "--drop-tables`, declare it again, then `lakehouse ingest --recover " in str(outlook.problem)
        parked = plan_course(stands, outlook).position
        assert parked.state == "parked"
        noted = plan_course(parked, surveyed(catalog, table, parked)).position
        again = surveyed(catalog, table, replace(noted, state="resuming"))
        assert "declare the former key again" in str(again.problem), "resumed without a correction"
        assert surveyed(catalog, former, replace(noted, state="resuming")).problem is None


@pytest.mark.parametrize(
    ("kind", "operations", "is_refused"),
    [
        ("kafka", ("c",), True), ("kafka", (), False),
        ("debezium", ("c", "u"), True), ("debezium", ("r", "c"), False),
    ],
)  # fmt: skip
def test_a_topic_whose_changes_have_landed_without_a_key_is_parked_once_it_has_one(
    landed: Callable[..., Any], kind: str, operations: tuple[str, ...], is_refused: bool
) -> None:
    """Keys in other spellings and NULLs became rows of their own, and the key before a change stayed current."""
    former, table = declared(kind=kind), declared("id", kind=kind)
    stands = position("streaming", facts(former, None, replace(FOUND, relkind=TOPIC, key=())))
    catalog = landed(*operations)
    outlook = surveyed(catalog, table, stands)
    assert (outlook.problem is not None) == is_refused
    assert surveyed(catalog, former, stands).problem is None
    if is_refused:
        assert "have landed without a key, and cannot be read again under (id)" in str(outlook.problem)
        assert "declare it without a key again, then `lakehouse ingest --resume shop.orders`" in str(outlook.problem)
        with pytest.raises(TableProblem, match="without a key"):
            check_keys(session_of(catalog, table), {"orders": stands})
    of_before = replace(stands, versions=(replace(stands.facts, keyed_by=None),))
    assert surveyed(catalog, table, of_before).problem is None, "a release that did not tell keys"


def test_a_key_that_a_topic_lacked_for_a_while_is_another_one_only_if_events_have_landed_meanwhile(
    landed: Callable[..., Any],
) -> None:
    keyed, keyless, catalog = declared("id", kind="kafka"), declared(kind="kafka"), landed("c")
    before = facts(keyed, None, replace(FOUND, relkind=TOPIC))
    stands = position("streaming", facts(keyless, before, replace(FOUND, relkind=TOPIC, key=())))
    assert surveyed(catalog, keyed, stands).problem is None
    append = append_of(session_of(catalog, keyless), Cycle("c", 1, datetime.now(UTC)), Written("orders", (), {}, {}))
    catalog.load_table("raw_shop.orders").transaction().set_properties(dict(append.properties)).commit_transaction()
    for given in (stands, None):
        assert "have landed without a key" in str(surveyed(catalog, keyed, given).problem)
        assert surveyed(catalog, keyless, given).problem is None


def test_a_recovery_does_not_forget_the_key_of_a_topic(landed: Callable[..., Any]) -> None:
    former, table = declared("id", kind="kafka"), declared("code", kind="kafka")
    stands = position("streaming", facts(former, None, replace(FOUND, relkind=TOPIC)))
    catalog = landed("c")
    check_keys(session_of(catalog, former), {"orders": stands})
    with pytest.raises(TableProblem, match="declare the former key again"):
        check_keys(session_of(catalog, table), {"orders": stands})


def test_a_topic_that_was_not_declared_for_a_while_is_held_to_the_key_that_has_landed(
    landed: Callable[..., Any],
) -> None:
    """Its position is forgotten then, and persons whose delete had landed under the former key were there again."""
    former, table = declared("id", kind="kafka"), declared("code", kind="kafka")
    catalog = landed("c", "d")
    assert surveyed(catalog, table, None).problem is None, "an earlier release's"
    append = append_of(session_of(catalog, former), Cycle("c", 1, datetime.now(UTC)), Written("orders", (), {}, {}))
    catalog.load_table("raw_shop.orders").transaction().set_properties(dict(append.properties)).commit_transaction()
    assert surveyed(catalog, former, None).problem is None
    assert surveyed(catalog, declared(kind="kafka"), None).problem is None
    again = str(surveyed(catalog, table, None).problem)
    assert "under the key (id), and cannot be read again under (code)" in again and "`lakehouse ingest --once" in again
    stands = replace(position("streaming"), state="new", versions=())
    assert surveyed(catalog, table, stands).problem == again
    check_keys(session_of(catalog, former), {})
    with pytest.raises(TableProblem, match="declare the former key again"):
        check_keys(session_of(catalog, table), {})


def test_a_source_is_moved_to_topics_by_the_key_and_the_masks_of_its_rows_alone() -> None:
    by_slot, topic = facts(declared("id", email="null")), replace(FOUND, relkind=TOPIC)

    def check(table: RawTable, by_slot: TableFacts = by_slot) -> None:
        _check_declared(table, by_slot, facts(table, None, topic))

    check(declared("id", kind="debezium", email="null"))
    check(declared("code", kind="debezium"), of_an_earlier_release(by_slot))
    for table in (declared("code", kind="debezium", email="null"), declared("id", kind="debezium")):
        with pytest.raises(LakehouseError, match="declared otherwise than rows have landed by the slot"):
            check(table)
