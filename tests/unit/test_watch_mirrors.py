"""Mirrors that stand still, as the watch and `lakehouse status` see them: they were served and exported as if fresh."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import scalar_row

from ingestion.mirrors.refresh import LACKING
from ingestion.state import refreshes
from ingestion.state.lease import Follower
from ingestion.state.refreshes import Reached, Refreshes
from lakehouse.declarations import RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, MirrorPolicy, RawPolicy
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_cli.machine.stack import said_of_mirrors
from lakehouse_watch.probes import mirrors
from lakehouse_watch.probes.mirrors import left_behind, read_mirrors, stand_still

HOUR = 3600.0
SOUND = Refreshes("shop", None, 20.0, False, "done", None, True)
LATE = replace(SOUND, behind_seconds=600.0, begun_seconds=900.0)
FAILS = replace(LATE, outcome="failed", said="Spark: no room")
HELD = replace(LATE, outcome="held", said="mirror_shop.orders: compaction")
NEVER = Refreshes("shop", 600.0)


def table(name: str, mirror: Any = None) -> RawTable:
    raw = RawPolicy(relation=f"public.{name}", key=("id",))
    return RawTable(
        source="shop", name=name, description="", columns=(), raw=raw, load=LoadPolicy(), maintenance=None, owners=(),
        mirror=mirror,
    )  # fmt: skip


SHOP = Source(name="shop", description="", load=LoadPolicy(), tables=(table("orders"), table("log", "none")))
HOURLY = SHOP.model_copy(update={"tables": (table("orders", MirrorPolicy(refresh_seconds=HOUR)),)})


@pytest.mark.parametrize(
    ("source", "follower", "at", "says"),
    [
        (SHOP, "alive", SOUND, None),
        (SHOP, "alive", replace(SOUND, outcome="failed", said="no room"), None),
        (SHOP, "alive", replace(LATE, behind_seconds=200.0), None),
        (SHOP, "alive", LATE, "was published 10 minutes ago: the follower has begun no refresh for 15 minutes"),
        (SHOP, "alive", FAILS, "lack what was published 10 minutes ago: each refresh fails: Spark: no room"),
        (SHOP, "alive", replace(FAILS, at_work=True, failures=2), "each refresh fails: Spark: no room"),
        (SHOP, "alive", replace(FAILS, at_work=True, failures=1), None),
        (HOURLY, "alive", replace(FAILS, behind_seconds=3 * HOUR), None),
        (SHOP, "alive", replace(LATE, at_work=True, behind_seconds=9 * HOUR, begun_seconds=HOUR), None),
        (SHOP, "alive", HELD, None),
        (SHOP, "alive", replace(HELD, behind_seconds=2 * HOUR), "refreshes wait: mirror_shop.orders: compaction"),
        (SHOP, "alive", NEVER, "mirrors of shop were not made yet: the follower has begun no refresh"),
        (SHOP, "alive", replace(NEVER, at_work=True, begun_seconds=600.0), None),
        (
            SHOP, "alive", replace(NEVER, at_work=True, begun_seconds=7200.0),
            "mirrors of shop were not made yet: a refresh has been at work for 120 minutes",
        ),
        (SHOP, "none", FAILS, None),
        (SHOP, "none", replace(LATE, behind_seconds=30 * HOUR), "no follower refreshes them, and nobody has since"),
        (SHOP, "none", replace(NEVER, behind_seconds=30 * HOUR), None),
    ],
)  # fmt: skip
def test_it_is_told_when_turns_were_missed_and_why(
    source: Source, follower: Follower, at: Refreshes, says: str | None
) -> None:
    found = stand_still(source, follower, at)
    assert (found and found.summary.endswith(says or "")) == (says and True)
    if found:
        is_slow = follower == "none" or "wait" in found.summary or "at work" in found.summary
        assert (found.key, found.severity) == ("mirrors/shop", "warning" if is_slow else "error")
        assert found.patience == (0 if follower == "none" else 300), "a follower that was started just now has as long"


def test_a_mirror_that_every_refresh_leaves_behind_is_told_by_itself() -> None:
    at = replace(SOUND, aside={"orders": (200.0, LACKING), "log": (9 * HOUR, LACKING)})
    assert not list(left_behind(SHOP, at)), "a refresh or two; and one that was declared to have no mirror"
    [told] = left_behind(SHOP, replace(at, aside={"orders": (7200.0, LACKING)}))
    assert told.summary == f"the mirror of shop.orders has stayed as it was for 120 minutes: {LACKING}"
    assert (told.key, told.severity, told.source) == ("mirrors/shop.orders", "error", "shop")


@pytest.fixture
def states(catalog_settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """The state of a source with a cut of ten minutes ago."""
    with connect_catalog(catalog_settings) as connection:
        ensure_state(connection)
        connection.execute(
            "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid,"
            " cut_lsn) VALUES ('shop', 1, 42, 'lakehouse_shop', '7', 1, 2, 41)"
        )
        publish(connection, 41, 600)
        yield connection
        for name in ("streams", "cycles", "mirrors"):
            connection.execute(f"DELETE FROM lakehouse.{name}")


def publish(states: psycopg.Connection[Any], lsn: int, seconds_ago: float) -> datetime:
    states.execute("UPDATE lakehouse.streams SET cut_lsn = %s", (lsn,))
    with states.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute(
            "INSERT INTO lakehouse.cycles (cycle_id, source, epoch, cut_lsn, published_at) VALUES (gen_random_uuid(),"
            " 'shop', 1, %s, clock_timestamp() - make_interval(secs => %s)) RETURNING published_at",
            (lsn, seconds_ago),
        ).fetchone()
    assert isinstance(found, datetime)
    return found


def read(states: psycopg.Connection[Any]) -> Refreshes:
    return refreshes.read(states)["shop"]


def test_mirrors_are_behind_since_the_first_publish_that_they_lack(states: psycopg.Connection[Any]) -> None:
    """And not since their last refresh: a source may have been idle for days in between."""
    assert 590 < (read(states).behind_seconds or 0) < 700 and not read(states).was_done
    seen = publish(states, 100, 500)
    refreshes.begin(states, "shop")
    assert read(states).at_work
    refreshes.end(states, "shop", Reached(seen, 1, 100), {})
    at = read(states)
    assert (at.behind_seconds, at.at_work, at.outcome, at.was_done, at.aside) == (None, False, "done", True, {})
    publish(states, 100, 400)
    assert read(states).behind_seconds is None, "it has brought no newer cut, as where a table is loaded"
    publish(states, 101, 60)
    publish(states, 102, 1)
    assert 390 < (read(states).behind_seconds or 0) < 500
    refreshes.begin(states, "shop")
    refreshes.give_up(states, "shop", "failed", "no room")
    refreshes.begin(states, "shop")
    at = read(states)
    assert (at.at_work, at.outcome, at.said) == (True, "failed", "no room"), "until one is done"
    assert said_of_mirrors(at).endswith("s behind, and the last refresh was not done: no room")
    states.execute("UPDATE lakehouse.streams SET cut_lsn = NULL")
    assert refreshes.read(states) == {}, "there is no cut of the source"


def test_since_when_a_mirror_stays_behind_is_not_forgotten_by_the_next_refresh(states: psycopg.Connection[Any]) -> None:
    reached = Reached(datetime.now(UTC), 1, 41)
    for aside in ({"orders": LACKING, "lines": LACKING}, {"orders": LACKING}):
        refreshes.begin(states, "shop")
        refreshes.end(states, "shop", reached, aside)
        states.execute(
            "UPDATE lakehouse.mirrors SET aside = jsonb_set(aside, '{orders,since}', to_jsonb(now() - interval '1 h'))"
        )
    refreshes.end(states, "shop", reached, {"orders": "another reason", "lines": LACKING})
    aside = read(states).aside
    assert aside["orders"][0] > 3500 and aside["orders"][1] == "another reason" and aside["lines"][0] < 60
    assert said_of_mirrors(read(states)) == (
        f"shop, lines stays as it was: {LACKING}; orders stays as it was: another reason"
    )
    refreshes.end(states, "shop", reached, {})
    assert read(states).aside == {} and not said_of_mirrors(read(states))


def test_the_watch_tells_of_sources_that_are_declared_and_leaves_those_of_a_dead_follower(
    catalog_settings: Settings, states: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alert for one cause: a follower that was killed has its own."""
    monkeypatch.setattr(mirrors, "declared_sources", lambda _: None)
    assert read_mirrors(catalog_settings).unknown == ("mirrors/",), "nobody has parsed the project"
    monkeypatch.setattr(mirrors, "declared_sources", lambda _: (SHOP,))
    assert read_mirrors(catalog_settings).samples == (), "they were never refreshed"
    refreshes.begin(states, "shop")
    refreshes.end(states, "shop", Reached(publish(states, 50, 550), 1, 50), {})
    publish(states, 51, 500)
    refreshes.give_up(states, "shop", "failed", "no room")
    found = {}
    for follower in ("alive", "dead", "none"):
        monkeypatch.setattr("ingestion.state.lease.follower_of", lambda *_, now=follower: now)
        reading = found[follower] = read_mirrors(catalog_settings)
        [behind] = reading.samples
        assert behind.name == "lakehouse_mirror_behind_seconds" and 490 < behind.value < 600
    assert [o.summary.rpartition(": ")[2] for o in found["alive"].occasions] == ["no room"]
    assert (found["dead"].occasions, found["dead"].unknown) == ((), ("mirrors/shop",))
    assert (found["none"].occasions, found["none"].unknown) == ((), ())
    monkeypatch.setattr(mirrors, "declared_sources", lambda _: (HOURLY.model_copy(update={"tables": ()}),))
    assert read_mirrors(catalog_settings).samples == (), "it has no mirrors any more"
