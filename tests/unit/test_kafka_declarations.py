"""A source of topics in its declaration and its settings: what is wrong is told with file and line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.declarations import Declarations, declarations_from
from lakehouse.errors import LakehouseError
from lakehouse.settings import KafkaSettings, load_settings

TOPICS = """\
sources:
  - name: shop
    schema: raw_shop
    config:
      meta:
        kind: kafka
    tables:
      - name: clicks
        config:
          meta:
            raw: {topic: web.clicks, format: json, key: [id]}
        columns: [{name: id, data_type: bigint}, {name: Page, data_type: text}]
"""


def declared(place: Path, text: str) -> Declarations:
    """What the declarations are with dbt's manifest of that file."""
    (place / "shop.yml").write_text(text)
    [source] = yaml.safe_load(text)["sources"]
    nodes = {}
    for table in source["tables"]:
        node = {
            "unique_id": f"source.lake.shop.{table['name']}", "source_name": "shop", "name": table["name"],
            "schema": "raw_shop", "original_file_path": "shop.yml", "source_description": "", "description": "",
            "config": {"meta": source["config"]["meta"] | table["config"]["meta"]},
            "columns": {column["name"]: column for column in table["columns"]},
        }  # fmt: skip
        nodes[node["unique_id"]] = node
    return declarations_from({"sources": nodes, "nodes": {}}, place)


def test_a_topic_is_declared_as_a_raw_table_of_its_kind(tmp_path: Path) -> None:
    [table] = declared(tmp_path, TOPICS).tables
    assert (table.kind, table.raw.topic, table.key, table.identifier) == (
        "kafka", "web.clicks", ("id",), ("raw_shop", "clicks"),
    )  # fmt: skip
    assert table.relation == ("", "web.clicks") and table.raw.origin == "web.clicks"


def test_an_optional_source_takes_part_only_while_it_has_a_connection(tmp_path: Path) -> None:
    found = declared(tmp_path, TOPICS.replace("kind: kafka", "kind: kafka\n        optional: true"))
    assert [source.name for source in found.among({"shop"}).sources] == ["shop"] and not found.among(()).sources
    assert declared(tmp_path, TOPICS).among(()).sources, "otherwise it is missed"


MISTAKES = [
    ("kind: kafka", "kind: mysql", 6, "meta.kind: Input should be 'postgres', 'kafka' or 'debezium'"),
    ("format: json", "format: xml", 11, "meta.raw.format: Input should be 'json' or 'avro'"),
    ("topic: web.clicks, ", "", 11, "meta.raw.topic: Field required"),
    ("topic: web.clicks", "topic: web clicks", 11, "meta.raw.topic"),
    ("format: json", "relation: public.clicks", 11, "meta.raw.relation: not in a source of kind kafka"),
    ("format: json", "exclude: [Page]", 11, "meta.raw.exclude: not in a source of kind kafka"),
    (", data_type: text", "", 12, "column Page needs a data_type"),
    ("        kind: kafka\n", "        owners: []\n", 11, "meta.raw.relation: Field required"),
    ("raw: {", "kind: postgres\n            raw: {relation: a.b, ", 12, "meta.raw.format: only for sources"),
]


@pytest.mark.parametrize(("was", "now", "line", "text"), MISTAKES, ids=[mistake[3] for mistake in MISTAKES])
def test_a_mistake_is_told_with_its_line(tmp_path: Path, was: str, now: str, line: int, text: str) -> None:
    with pytest.raises(LakehouseError) as failure:
        declared(tmp_path, TOPICS.replace(was, now))
    assert f"shop.yml:{line}: " in str(failure.value) and text in str(failure.value)


def test_a_topic_is_declared_once_and_the_tables_of_a_source_are_of_one_kind(tmp_path: Path) -> None:
    more = TOPICS[TOPICS.index("      - name: clicks") :]
    with pytest.raises(LakehouseError, match=r"shop.yml:16: meta.raw.topic: web.clicks is declared as another table"):
        declared(tmp_path, TOPICS + more.replace("name: clicks", "name: others"))
    other = more.replace("name: clicks", "name: others").replace(
        "raw: {topic: web.clicks, format: json, ", "kind: postgres\n            raw: {relation: a.b, "
    )
    (tmp_path / "two").mkdir()
    with pytest.raises(LakehouseError, match=r"shop.yml:16: meta.kind: the tables of a source are of one kind"):
        declared(tmp_path / "two", TOPICS + other)


FLUSHED = TOPICS.replace("kind: kafka", "kind: kafka\n        flush: {interval_minutes: 10}")


def test_a_source_of_events_declares_how_often_it_is_published(tmp_path: Path) -> None:
    [source] = declared(tmp_path, FLUSHED).sources
    assert source.flush is not None and source.flush.interval_minutes == 10
    assert declared(tmp_path, TOPICS).sources[0].flush is None


OF_OTHERS = {
    "postgres": ("raw: {topic: web.clicks, format: json,", "raw: {relation: a.b,", "the slot would retain its WAL"),
    "debezium": ("raw: {", "raw: {", "transactions would be joined again"),
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_a_flush_of_another_kind_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    was, now, reason = OF_OTHERS[kind]
    text = FLUSHED.replace("kind: kafka", f"kind: {kind}").replace(was, now)
    with pytest.raises(LakehouseError, match=rf"shop.yml:7: meta.flush: only for sources of kind kafka.*{reason}"):
        declared(tmp_path, text)


def test_a_flush_is_declared_once_and_is_a_time(tmp_path: Path) -> None:
    more = FLUSHED[FLUSHED.index("      - name: clicks") :].replace("name: clicks", "name: others")
    more = more.replace("topic: web.clicks", "topic: others").replace(
        "raw: {", "flush: {interval_minutes: 1}\n            raw: {"
    )
    with pytest.raises(LakehouseError, match=r"shop.yml:17: meta.flush: the tables of source 'shop' are published tog"):
        declared(tmp_path, FLUSHED + more)
    (tmp_path / "two").mkdir()
    with pytest.raises(LakehouseError, match=r"shop.yml:7: meta.flush.interval_minutes: .*greater than 0"):
        declared(tmp_path / "two", FLUSHED.replace("interval_minutes: 10", "interval_minutes: 0"))


def test_a_connection_to_brokers_is_told_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))  # not that of a demo that was run here
    given = {
        "KIND": "kafka",
        "BOOTSTRAP_SERVERS": "a:9092",
        "TLS": "true",
        "SASL": "PLAIN",
        "USER": "u",
        "PASSWORD": "p",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__WEB__{name}", value)
    monkeypatch.setenv("LAKEHOUSE_SOURCES__SHOP__URL", "postgresql://u:p@localhost/shop")
    settings = load_settings()
    assert isinstance(settings.connection("web"), KafkaSettings) and set(settings.databases) == {"shop"}
    assert settings.kafka("web").bootstrap_servers == "a:9092"
    with pytest.raises(LakehouseError, match="'web' is of kind kafka"):
        settings.source("web")
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES__SHOP__KIND=kafka"):
        settings.kafka("shop")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"SLOT": "x"}, "LAKEHOUSE_SOURCES__WEB__SLOT is no setting"),
        ({"BOOTSTRAP_SERVER": "x"}, "did you mean LAKEHOUSE_SOURCES__WEB__BOOTSTRAP_SERVERS?"),
        ({"KIND": "mysql"}, "LAKEHOUSE_SOURCES__WEB__KIND: Input should be 'postgres', 'kafka' or 'debezium'"),
        ({"KIND": "debezium", "DELIVERY": "once"}, "LAKEHOUSE_SOURCES__WEB__DELIVERY: Input should be 'exactly_once'"),
        ({"USER": "u"}, "sasl, user and password belong together"),
        ({"SASL": "PLAIN", "USER": "u", "PASSWORD": "geheim"}, "set tls = true"),
        ({"CA": "/ca.pem"}, "ca needs tls = true"),
    ],
)
def test_a_wrong_connection_is_told_and_its_password_is_not(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    for name, value in ({"KIND": "kafka", "BOOTSTRAP_SERVERS": "a:9092"} | given).items():
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__WEB__{name}", value)
    with pytest.raises(LakehouseError) as failure:
        load_settings()
    assert says in str(failure.value) and "geheim" not in str(failure.value)
