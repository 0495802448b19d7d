"""A moment that the lake has not read is told apart from one at which nothing has changed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.schema.positions import Lsn
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse_serve.past import asked, states
from lakehouse_serve.past.cuts import Cut, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.reads import READS, Read, read_sources, reads_of, refuse_unread, unread

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
        connection.execute("TRUNCATE lakehouse.streams, lakehouse.claims, lakehouse.live")
        store.create_stream(connection, "shop", "s", store.Cluster("1", 1), 0)
        connection.execute("UPDATE lakehouse.streams SET lsn = 150, updated_at = %s", (AT,))
        yield connection, settings


def test_a_source_was_read_until_somebody_noted_it(states_of: tuple[CatalogConnection, Settings]) -> None:
    """Positions of an idle source stand still. A moment that was noted stays, and is none where rows are held."""
    connection, settings = states_of
    assert read_sources(settings) == {"shop": Read(1, 150, AT)}, "a release that noted nothing has read it"
    connection.execute("UPDATE lakehouse.streams SET cut_lsn = 149, cut_at = %s", (AT - MINUTE,))
    assert read_sources(settings)["shop"].until == AT - MINUTE, "and not when the cut was published"
    for at in (AT + MINUTE, AT):
        store.note_read(connection, "shop", at)
        assert read_sources(settings)["shop"].until == AT + MINUTE
    connection.execute("INSERT INTO lakehouse.live VALUES ('shop', 't', 'raw_shop', 'l', 1, 'm', 'p')")
    store.note_read(connection, "shop", AT + 2 * MINUTE)
    assert read_sources(settings)["shop"].until == AT + MINUTE
    store.set_positions(connection, "shop", Lsn(100))
    assert read_sources(settings)["shop"].until == AT - MINUTE, "the lake lost rows"


def test_a_source_that_followers_share_was_read_until_its_newest_cut(
    states_of: tuple[CatalogConnection, Settings],
) -> None:
    """While something happens in it all the time, nobody sees that there is nothing left."""
    connection, settings = states_of
    store.note_read(connection, "shop", AT)
    connection.execute("UPDATE lakehouse.streams SET cut_lsn = 149, cut_at = %s", (AT + MINUTE,))
    assert read_sources(settings)["shop"].until == AT, "a cut of a backlog is of a moment until which more was there"
    connection.execute(
        "INSERT INTO lakehouse.claims (source, part, generation, seat, token) VALUES ('shop', 'a', 1, '', 0)"
    )
    assert read_sources(settings)["shop"].until == AT + MINUTE


def test_a_state_of_an_earlier_release_tells_its_newest_cut(states_of: tuple[CatalogConnection, Settings]) -> None:
    connection, _ = states_of
    with connection.transaction(force_rollback=True):
        connection.execute("ALTER TABLE lakehouse.streams DROP COLUMN read_at")
        rows = connection.execute(READS).fetchall()
    assert reads_of(rows) == {"shop": Read(1, 150, AT)}
