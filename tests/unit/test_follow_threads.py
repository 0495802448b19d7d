"""What a follower does when its sources are declared or connected otherwise than when it was started."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ingestion.run import threads as module
from ingestion.run.threads import Threads, take_changes
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.source import ingest


class Followed:
    """Threads that note what they follow, until they are asked to end."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.threads = Threads(self._run)

    def _run(self, settings: Settings, source: Source, stop: threading.Event) -> None:
        what = f"{source.name} {','.join(table.name for table in source.tables)}"
        self.told.append(f"+ {what}")
        stop.wait(30)
        self.told.append(f"- {what}")

    def tends(self, *told: str) -> None:
        """Tends until all of that was told, in this order."""
        deadline = time.monotonic() + 10
        while self.told != list(told) and time.monotonic() < deadline:
            self.threads.tend()
            time.sleep(0.01)
        for _ in range(5):
            self.threads.tend()
        assert self.told == list(told)
        self.told.clear()


@pytest.fixture
def followed() -> Iterator[Followed]:
    made = Followed()
    yield made
    made.threads.end()


def connected(**urls: str) -> Settings:
    sources = {name: SourceSettings.model_validate({"url": f"postgresql://{url}"}) for name, url in urls.items()}
    return Settings().model_copy(update={"sources": sources})


def declared_source(name: str, *tables: str) -> Source:
    declared = [
        RawTable(
            source=name, name=table, description="", columns=(), raw=RawPolicy(relation=f"public.{table}"),
            load=LoadPolicy(), maintenance=None, owners=(),
        )
        for table in tables
    ]  # fmt: skip
    return Source(name=name, description="", load=LoadPolicy(), tables=tuple(declared))


SHOP, WIDER = declared_source("shop", "orders"), declared_source("shop", "orders", "tolls")
BANK = declared_source("bank", "loans")


def test_a_table_that_is_declared_is_followed_and_other_sources_go_on(followed: Followed) -> None:
    """It was not, until a person restarted the follower."""
    settings = connected(shop="one/shop", bank="one/bank")
    followed.threads.want(settings, [SHOP, BANK])
    followed.tends("+ shop orders", "+ bank loans")
    followed.threads.want(settings, [declared_source("shop", "orders"), declared_source("bank", "loans")])
    followed.tends()
    followed.threads.want(settings, [WIDER, BANK])
    followed.tends("- shop orders", "+ shop orders,tolls")


def test_a_source_that_is_connected_otherwise_begins_anew(followed: Followed) -> None:
    followed.threads.want(connected(shop="one/shop"), [SHOP])
    followed.tends("+ shop orders")
    followed.threads.want(connected(shop="two/shop"), [SHOP])
    followed.tends("- shop orders", "+ shop orders")


def test_a_source_that_is_declared_is_followed_and_one_that_is_no_more_ends(followed: Followed) -> None:
    settings = connected(shop="one/shop", bank="one/bank")
    followed.threads.want(settings, [SHOP])
    followed.tends("+ shop orders")
    followed.threads.want(settings, [BANK])
    deadline = time.monotonic() + 10
    while len(followed.told) < 2 and time.monotonic() < deadline:
        followed.threads.tend()
    assert sorted(followed.told) == ["+ bank loans", "- shop orders"] and followed.threads.names == ["bank"]


def test_a_thread_that_has_ended_by_itself_is_begun_again() -> None:
    begun: list[str] = []
    threads = Threads(lambda settings, source, stop: begun.append(source.name))
    threads.want(connected(shop="one/shop"), [SHOP])
    deadline = time.monotonic() + 10
    while len(begun) < 2 and time.monotonic() < deadline:
        threads.tend()
        time.sleep(0.01)
    assert begun[:2] == ["shop", "shop"]


def test_declarations_that_are_refused_are_said_once_and_the_former_ones_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    stop, wanted = threading.Event(), list[Any]()
    threads: Any = type("Noting", (), {"want": lambda self, settings, sources: wanted.append((settings, sources))})()
    now = connected(shop="two/shop").model_copy(update={"warehouse": "s3://other/"})

    def refused() -> None:
        raise LakehouseError("shop.yml:7: no such key")

    def broken() -> None:
        raise RuntimeError("a bug")

    def last() -> Any:
        stop.set()
        return now, [WIDER]

    steps: Iterator[Callable[[], Any]] = iter([lambda: None, refused, lambda: None, broken, last])
    before = connected(shop="one/shop")
    with caplog.at_level(logging.INFO):
        take_changes(lambda: next(steps)(), before, threads, stop)
    assert caplog.text.count("shop.yml:7: no such key; goes on with what was declared before") == 1
    assert "RuntimeError: a bug" in caplog.text
    [(settings, sources)] = wanted
    assert sources == [WIDER] and settings.sources == now.sources and settings.warehouse == before.warehouse


@pytest.mark.parametrize(
    ("chosen", "share", "connection", "taken"),
    [
        (None, False, {"url": "postgresql://one/shop"}, ["bank", "shop"]),
        (["shop"], False, {"url": "postgresql://one/shop"}, ["shop"]),
        (["shop"], True, {"url": "postgresql://one/shop"}, "source 'shop': a source of kind postgres has one order"),
        (None, False, {}, "source 'shop' has no connection"),
        (["bank"], False, {}, ["bank"]),
        (
            None,
            False,
            {"kind": "kafka", "bootstrap_servers": "b:9092"},
            "source 'shop' is declared with meta.kind postg",
        ),
    ],
)
def test_a_follower_takes_what_it_would_follow_if_it_started_now(
    chosen: list[str] | None, share: bool, connection: dict[str, str], taken: list[str] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What would keep it from starting must not end it: other sources of it are sound."""
    sources = {"bank": {"url": "postgresql://one/bank"}} | ({"shop": connection} if connection else {})
    settled = iter([False, True])
    monkeypatch.setattr(ingest, "load_settings", lambda: Settings.model_validate({"sources": sources}))
    monkeypatch.setattr(ingest, "load_declarations", lambda _: Declarations(sources=(BANK, SHOP)))
    changes: Any = SimpleNamespace(settled=lambda: next(settled))
    assert ingest._changed(changes, chosen, share) is None
    if isinstance(taken, str):
        with pytest.raises(LakehouseError, match=f"^{taken}"):
            ingest._changed(changes, chosen, share)
    else:
        found = ingest._changed(changes, chosen, share)
        assert found is not None and [source.name for source in found[1]] == taken
