"""`prepare --check` of topics: which rights a login needs, and which it lacks."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import typer
from debezium_recorded import ITEMS, table
from debezium_recorded import settings as debezium
from typer.testing import CliRunner

from ingestion.sources.kafka.connection import UNREADABLE, Topic
from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.settings import KafkaSettings, Settings
from lakehouse_cli.source.ingest import prepare

HIDDEN = "the login may not describe and read it"


@dataclass
class Told:
    """What brokers tell of topics, and of the configuration of those that are compacted or hidden."""

    found: dict[str, Topic | str]
    configured: dict[str, int | None] = field(default_factory=dict)

    def topics(self, names: Iterable[str]) -> dict[str, Topic | str]:
        return {name: self.found[name] for name in names if name in self.found}

    def compacted(self, names: Iterable[str]) -> dict[str, int | None]:
        return {name: self.configured[name] for name in names if name in self.configured}


def checked(monkeypatch: pytest.MonkeyPatch, kind: str, told: Told, **given: Any) -> tuple[int, list[str]]:
    """The exit status and the lines."""
    of: Any = debezium(**given) if kind == "debezium" else KafkaSettings(kind="kafka", bootstrap_servers="a:1")
    settings = Settings().model_copy(update={"sources": {"shop": of}, "catalog_url": None})
    declared = [table(name, ITEMS).model_copy(update={"kind": kind}) for name in ("items", "others")]
    source = Source(name="shop", description="", load=LoadPolicy(), tables=tuple(declared))
    monkeypatch.setattr(f"ingestion.sources.{kind}.check.Brokers", lambda *_: told)
    monkeypatch.setattr("lakehouse_cli.source.ingest.load_settings", lambda: settings)
    monkeypatch.setattr("lakehouse_cli.source.ingest.load_declarations", lambda _: Declarations(sources=(source,)))
    monkeypatch.setattr("lakehouse_cli.source.ingest._chosen", lambda *_: ["shop"])
    app = typer.Typer(add_completion=False)
    app.command()(prepare)
    result = CliRunner().invoke(app, ["--check"])
    return result.exit_code, " ".join(result.output.split()).replace(" in the way ", "\n").splitlines()


ITEM, OTHER = Topic("public.items", 7, (0,)), Topic("public.others", 8, (0,))
BOTH: dict[str, Topic | str] = {"public.items": ITEM, "public.others": OTHER}


def test_rights_are_listed_where_none_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `prepare` without `--check` named them."""
    status, [line] = checked(monkeypatch, "kafka", Told(BOTH))
    assert status == 0 and line.startswith(
        "-- source shop: the login needs Describe and Read on topic public.items, public.others; DescribeConfigs on "
        "public.items, public.others, to be told where compaction loses deletes; nothing is created in Kafka"
    )
    assert line.endswith("shop: nothing is in the way")


@pytest.mark.parametrize("kind", ["kafka", "debezium"])
def test_each_right_that_is_missing_is_named_with_its_topic(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    told = Told({"public.items": UNREADABLE, "public.others": HIDDEN, "transaction": UNREADABLE})
    status, [first, *lines] = checked(monkeypatch, kind, told)
    assert status == 1 and "the login needs Describe and Read on topic public.items, public.others" in first
    said = {part.partition(": ")[0]: part for part in [first, *lines]}
    assert "topic public.items: the login may describe it, but not read it: grant Read on it" in said["shop.items"]
    assert "topic public.others: the login may not describe and read it: " in said["shop.others"]
    assert "grant Describe and Read on it" in said["shop.others"]
    if kind == "debezium":
        wanted = "transaction topic transaction: the login may describe it, but not read it: grant Read on it"
        assert "public.others, transaction; DescribeConfigs on" in first and wanted in said["shop"]


@pytest.mark.parametrize(("kind", "transactions"), [("kafka", None), ("debezium", None), ("debezium", "transaction")])
def test_where_nobody_tells_of_compaction_that_is_said(
    monkeypatch: pytest.MonkeyPatch, kind: str, transactions: str | None
) -> None:
    """Deletes that compaction takes show in nothing, and a login without DescribeConfigs was not told that it looks at
    nothing."""
    told = Told({**BOTH, "transaction": Topic("transaction", 9, (0,))}, {"public.items": None})
    status, lines = checked(monkeypatch, kind, told, transactions=transactions)
    says = "topic public.items: the login may not describe its configuration, so nobody tells whether compaction loses"
    assert status == 0 and says in lines[0] and "DescribeConfigs on" in lines[0]


@pytest.mark.parametrize("transactions", [None, "transaction"])
def test_a_compacted_topic_is_told_also_where_ends_count_its_events(
    monkeypatch: pytest.MonkeyPatch, transactions: str | None
) -> None:
    """The first read goes on without what is missing."""
    told = Told({**BOTH, "transaction": Topic("transaction", 9, (0,))}, {"public.items": 86_400_000})
    status, lines = checked(monkeypatch, "debezium", told, transactions=transactions)
    says = "left out by the first read" if transactions else "a delete that is not read before its tombstone"
    assert status == 0 and "topic public.items is compacted: " in lines[0] and says in lines[0]
