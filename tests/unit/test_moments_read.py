"""A moment that the lake has not read is told apart from one at which nothing has changed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.state import lease, store
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse_serve.past import asked, states
from lakehouse_serve.past.cuts import Cut, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.reads import Read, pace, read_sources, refuse_unread, unread

AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
CUTS = (Cut("bank", 1, 7, {}), Cut("shop", 2, 100, {}))
READ = {"shop": Read(2, 150, AT), "bank": Read(1, 8, AT + 9 * MINUTE)}


def moment(text: str) -> Moment:
    found = parse_warehouse(f"lake@{text}", "lake")
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["shop=0/64", "shop=0/96", "shop=2:0/96", "shop=1:0/FF", "bank=0/8,shop=2:0/64"])
def test_a_position_that_was_read_is_answered(text: str) -> None:
    """Also one of an epoch that has ended, and one of which a restored state knows nothing but the cut."""
    refuse_unread(moment(text), CUTS, READ)
    refuse_unread(moment("shop=2:0/64"), CUTS, {"shop": Read(2, 50, AT)})
    refuse_unread(moment("shop=0/FF"), CUTS, {})


@pytest.mark.parametrize("text", ["shop=0/97", "shop=2:0/97", "bank=0/8,shop=0/97"])
def test_a_position_that_was_not_read_is_refused_with_what_can_be_asked(text: str) -> None:
    says = "is not in the lake yet: shop has been read until shop=2:0/96; ask again later, or for the newest cut, shop="
    with pytest.raises(NoCut, match=says):
        refuse_unread(moment(text), CUTS, READ)


def test_a_commit_that_was_just_made_is_not_answered_from_the_cut_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, with exit code 0."""
    done = list[str]()
    monkeypatch.setattr(states, "read_sources", lambda _: done.append("reads") or READ)
    monkeypatch.setattr(states, "Cuts", lambda *_: SimpleNamespace(at=lambda *_: done.append("cuts") or CUTS))
    for answer in (
        lambda: asked.at_moment(cast(Any, None), "SELECT 1", moment("shop=0/97"), "reader"),
        lambda: states.together(cast(Any, None), moment("shop=0/97"), []),
    ):
        with pytest.raises(LakehouseError, match="shop=0/97 is not in the lake yet"):
            answer()
    assert done == ["reads", "cuts"] * 2, "a cut that was published between these would be passed over"


def test_a_time_that_was_not_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While ingestion was down, an hour ago was answered with yesterday."""
    monkeypatch.setattr(asked, "read_sources", lambda _: READ)
    monkeypatch.setattr(asked, "open_catalog", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(asked, "came_later", lambda *_: [])
    at = Moment(at=AT + MINUTE)
    says = "shop has been read until 2026-11-20 10:00:00 UTC only: what it committed after that is not in it"
    assert asked.remarks(cast(Any, None), at, CUTS) == [says]
    assert asked.remarks(cast(Any, None), at, CUTS[:1]) == []
    assert unread(Moment(at=AT), CUTS, READ) == {}


def test_a_lake_without_a_state_has_read_nothing(cluster: str) -> None:
    assert read_sources(load_settings(catalog_url=cluster)) == {}


@pytest.fixture
def states_of(cluster: str) -> Iterator[tuple[CatalogConnection, Settings]]:
    settings = load_settings(catalog_url=cluster)
    with connect_catalog(settings) as connection:
        store.ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.streams, lakehouse.leases, lakehouse.progress, lakehouse.live")
        store.create_stream(connection, "shop", "s", store.Cluster("1", 1), 0)
        connection.execute("UPDATE lakehouse.streams SET lsn = 150, updated_at = %s", (AT,))
        yield connection, settings


def test_a_follower_without_anything_to_do_has_read_until_now(states_of: tuple[CatalogConnection, Settings]) -> None:
    """Positions of an idle source stand still, whether somebody follows it or not."""
    connection, settings = states_of
    assert read_sources(settings) == {"shop": Read(1, 150, AT)}
    assert lease.acquire(connection, "shop", 60, "follow") is not None
    assert read_sources(settings)["shop"].until == AT, "it has just begun"
    connection.execute("UPDATE lakehouse.leases SET acquired_at = acquired_at - interval '1 day'")
    lately = store.catalog_clock(connection) - pace(settings)
    assert lately <= read_sources(settings)["shop"].until <= lately + MINUTE
    for busy in (
        "INSERT INTO lakehouse.progress VALUES ('shop', 'changes', 0, 1, 0, now(), now())",
        "INSERT INTO lakehouse.live VALUES ('shop', 't', 'raw_shop', 'l', 1, 'm', 'p')",
        "UPDATE lakehouse.leases SET expires_at = now()",
    ):
        connection.execute(busy)
        assert read_sources(settings)["shop"].until == AT, busy
        connection.execute("TRUNCATE lakehouse.progress, lakehouse.live")


def test_a_source_that_followers_share_is_read_as_far_as_each_part(
    states_of: tuple[CatalogConnection, Settings],
) -> None:
    connection, settings = states_of
    for name in ("shop", "shop/follower/1"):
        assert lease.acquire(connection, name, 60, "follow") is not None
    connection.execute("UPDATE lakehouse.leases SET acquired_at = acquired_at - interval '1 day'")
    for part, ago in (("a", 0), ("b", 30)):
        connection.execute(
            "INSERT INTO lakehouse.claims (source, part, generation, seat, token, read_at) VALUES ('shop', %s, 1, 's',"
            " 1, clock_timestamp() - make_interval(mins => %s))",
            (part, ago),
        )
    until = store.catalog_clock(connection) - 30 * MINUTE
    assert until - MINUTE <= read_sources(settings)["shop"].until <= until


def test_a_position_that_a_cut_has_was_read_when_the_cut_was(states_of: tuple[CatalogConnection, Settings]) -> None:
    """And not when it was published, which may be minutes later."""
    connection, settings = states_of
    connection.execute("UPDATE lakehouse.streams SET cut_lsn = 149, cut_at = %s", (AT - MINUTE,))
    assert read_sources(settings)["shop"].until == AT - MINUTE
