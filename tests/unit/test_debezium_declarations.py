"""A source of Debezium's topics in its declaration and its settings: what is wrong is told."""

from pathlib import Path

import pytest
from debezium_recorded import settings, table
from test_kafka_declarations import TOPICS, declared

from ingestion.schema.problem import TableProblem
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.debezium.shape import decoded, facts_of, modes_of, shape_of
from ingestion.verify.run import BEHIND, EVENTS, without_logs
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings

DEBEZIUM = TOPICS.replace("kind: kafka", "kind: debezium").replace("web.clicks", "shop.public.clicks")


def test_the_relation_of_a_topic_is_the_end_of_its_name_or_declared(tmp_path: Path) -> None:
    [of] = declared(tmp_path, DEBEZIUM).tables
    assert (of.kind, of.raw.captured, of.relation) == ("debezium", ("public", "clicks"), ("", "shop.public.clicks"))
    (tmp_path / "other").mkdir()
    [of] = declared(tmp_path / "other", DEBEZIUM.replace("format: json", 'relation: web."Clicks"')).tables
    assert of.raw.captured == ("web", "Clicks") and of.raw.origin == "shop.public.clicks"
    with pytest.raises(TableProblem, match=r"declare meta.raw.relation"):
        facts_of(table("items", {"id": "bigint"}, topic="items"), 1, settings())


@pytest.mark.parametrize(
    ("was", "now", "line", "text"),
    [
        ("format: json", "format: xml", 11, "meta.raw.format: Input should be 'json' or 'avro'"),
        ("format: json", "exclude: [Page]", 11, "meta.raw.exclude: not in a source of kind debezium"),
        ("topic: shop.public.clicks, ", "", 11, "meta.raw.topic: Field required in a source of kind debezium"),
        (", data_type: text", "", 12, "column Page needs a data_type"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, was: str, now: str, line: int, text: str) -> None:
    with pytest.raises(LakehouseError) as failure:
        declared(tmp_path, DEBEZIUM.replace(was, now))
    assert f"shop.yml:{line}: " in str(failure.value) and text in str(failure.value)


def test_a_column_that_avro_would_call_otherwise_is_refused() -> None:
    columns = {"id": "bigint", "größe": "text", "2nd": "text"}
    assert facts_of(table("items", columns), 1, settings()).columns[1].name == "größe"
    with pytest.raises(TableProblem, match="column größe, 2nd has a name that Avro does not allow"):
        facts_of(table("items", columns, format="avro"), 1, settings())


def test_a_table_without_a_key_needs_exactly_once() -> None:
    of = table("loose", {"v": "text"}, ())
    assert facts_of(of, 1, settings()).captured == "public.loose"
    with pytest.raises(TableProblem, match="has no key, by which an event that comes twice is known"):
        facts_of(of, 1, settings(delivery="at_least_once"))


def test_the_database_behind_topics_is_asked_where_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    of = table("items", {"id": "bigint"}, relation='shop."Items"').model_copy(update={"source": "shop"})
    assert (of.behind.kind, of.behind.relation, of.behind.key) == ("postgres", ("shop", "Items"), ("id",))
    assert not of.is_compared and of.behind.is_compared, "topics have no point in common with their database"
    given = {"KIND": "debezium", "BOOTSTRAP_SERVERS": "a:9092", "TRANSACTIONS": "t"}
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__SHOP__{name}", value)
    chosen = [(Source(name="shop", description="", load=LoadPolicy(), tables=(of,)), [of])]
    with pytest.raises(LakehouseError, match="set LAKEHOUSE_SOURCES__SHOP__URL"):
        load_settings().behind("shop")
    assert [said.aside for said in without_logs(load_settings(), chosen, views=True)[1]] == [EVENTS]
    monkeypatch.setenv("LAKEHOUSE_SOURCES__SHOP__URL", "postgresql://reader:x@db:5432/shop")
    known = load_settings()
    assert known.behind("shop").source("shop").url.get_secret_value().endswith("@db:5432/shop")
    assert known.debezium("shop").kind == "debezium" and "reader:x" not in repr(known)
    assert without_logs(known, chosen, views=True) == (chosen, [])
    assert [said.aside for said in without_logs(known, chosen)[1]] == [BEHIND]


def test_a_type_that_changes_do_not_carry_is_refused() -> None:
    with pytest.raises(TableProblem, match="column v is of a type that Debezium leaves empty in changes"):
        facts_of(table("items", {"id": "bigint", "v": "name"}), 1, settings())


def test_a_wrong_placeholder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"KIND": "debezium", "BOOTSTRAP_SERVERS": "a:9092", "TRANSACTIONS": "t", "UNAVAILABLE_VALUE": "hex:xy"}
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__SHOP__{name}", value)
    with pytest.raises(LakehouseError, match="what follows hex: is in hexadecimal digits"):
        load_settings()


def test_a_shape_is_the_same_after_it_was_kept() -> None:
    of = shape_of(facts_of(table("items", {"id": "bigint", "at": "timestamp(3)"}), 7, settings()), modes_of(settings()))
    assert decoded(of.encoded) == of and of.columns[1].digits == 3


def test_a_position_is_the_same_after_it_was_written_and_grows_in_every_part() -> None:
    at = TransactionOffsets((("s.public.a", 0, 5), ("s.t", 0, 9)), 40_000_000, 1_764_000_000_000_000, 40_000_003)
    assert TransactionOffsets.parse(at.text) == at and at.commit_bound == 40_000_003
    assert at.text == "s.public.a/0:5,s.t/0:9@40000000:1764000000000000<40000003"
    before = TransactionOffsets((("s.public.a", 0, 7),))
    assert not before <= at and not at <= before and before <= at.join(before) and at <= before.join(at)
    assert before.join(at) == at.join(before) and TransactionOffsets.parse("") == TransactionOffsets.start()
