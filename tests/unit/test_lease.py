"""One writer per source: a killed one is replaced at once, a living one never before its lease has run out."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from ingestion.state import lease as leases
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings, load_settings

SECONDS = 60.0
HOLD = """
import sys, time
from ingestion.state import lease as leases
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import load_settings
settings = load_settings(catalog_url=sys.argv[1])
with connect_catalog(settings) as connection:
    lease = leases.acquire(connection, "shop", 60, "follow")
with leases.kept_alive(settings, lease):
    print(lease.token, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def settings(cluster: str) -> Settings:
    return load_settings(catalog_url=cluster)


@pytest.fixture
def states(settings: Settings) -> Iterator[CatalogConnection]:
    with connect_catalog(settings) as connection:
        ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.leases")
        yield connection


@pytest.fixture
def holder(settings: Settings, states: CatalogConnection) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease for a minute."""
    argv = [sys.executable, "-c", HOLD, settings.catalog_dsn()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "1"
        yield process
        process.kill()


def take(states: CatalogConnection) -> leases.Lease | None:
    return leases.acquire(states, "shop", SECONDS, "once")


def wait_for(fact: Callable[[], bool]) -> None:
    """Until the server has noticed that a client was killed."""
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline, "a killed one counts as alive"
        time.sleep(0.05)


def test_a_killed_holder_is_replaced_at_once(states: CatalogConnection, holder: subprocess.Popen[str]) -> None:
    """The next `ingest --once` waited out the lease: 31 seconds to its commit."""
    assert take(states) is None and leases.holder_of(states, "shop") is not None
    holder.kill()
    wait_for(lambda: leases.holder_of(states, "shop") is None)
    taken = take(states)
    assert taken is not None and taken.token == 2
    assert take(states) is None, "the next one has no session yet, and holds it"


def test_of_many_that_wait_one_replaces_a_killed_holder(
    settings: Settings, states: CatalogConnection, holder: subprocess.Popen[str]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    holder.kill()
    wait_for(lambda: leases.holder_of(states, "shop") is None)

    def try_it(_: int) -> leases.Lease | None:
        with connect_catalog(settings) as connection:
            return take(connection)

    with ThreadPoolExecutor(8) as pool:
        taken = [lease for lease in pool.map(try_it, range(32)) if lease]
    assert [lease.token for lease in taken] == [2]


def test_a_holder_whose_session_was_ended_comes_back_with_its_token(
    settings: Settings, states: CatalogConnection
) -> None:
    """It is alive: unless another writer was faster, it goes on; if one was, it cannot publish."""
    lease = take(states)
    assert lease is not None
    with leases.kept_alive(settings, lease):
        pid = states.execute("SELECT session_pid FROM lakehouse.leases").fetchone()
        assert pid is not None
        states.execute("SELECT pg_terminate_backend(%s)", pid)
        taken = next((found for _ in range(20) if (found := take(states)) or time.sleep(0.05)), None)
        assert taken is not None and taken.token == 2
        with pytest.raises(leases.LeaseLost), states.transaction():
            leases.check(states, lease, SECONDS)
    assert leases.holder_of(states, "shop") == (taken.holder, "once"), "the end of the first one releases nothing"


def test_after_a_restart_of_the_catalog_a_holder_is_not_taken_for_dead(
    states: CatalogConnection, holder: subprocess.Popen[str]
) -> None:
    """Every session has ended then, also those of holders that are alive."""
    states.execute(
        "UPDATE lakehouse.leases SET session_began = pg_postmaster_start_time() - interval '1 s', session_pid = 0"
    )
    assert take(states) is None and leases.holder_of(states, "shop") is not None


def test_a_lease_of_the_release_before_runs_out_by_time(states: CatalogConnection) -> None:
    """It takes a lease over without its session: the one that stands there is of the holder before."""
    first = take(states)
    assert first is not None
    states.execute(
        "UPDATE lakehouse.leases SET session_token = token, session_pid = 0, session_began = clock_timestamp()"
    )
    states.execute("UPDATE lakehouse.leases SET token = token + 1, holder = 'release before'")
    assert take(states) is None and leases.holder_of(states, "shop") == ("release before", "once")


def test_a_released_lease_is_free_and_is_no_killed_holders(settings: Settings, states: CatalogConnection) -> None:
    lease = take(states)
    assert lease is not None
    with leases.kept_alive(settings, lease):
        assert leases.holder_of(states, "shop") == (lease.holder, "once")
    assert leases.holder_of(states, "shop") is None
    assert states.execute("SELECT session_token FROM lakehouse.leases").fetchone() == (None,)


def test_it_is_known_what_became_of_a_follower(
    settings: Settings, states: CatalogConnection, holder: subprocess.Popen[str]
) -> None:
    """Also after somebody else has ingested once: the source has no follower any more."""
    assert leases.follower_of(states, "shop") == "alive" and leases.follower_of(states, "other") == "none"
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
    assert leases.follower_of(states, "shop") == "hung", "it is there and does not renew its lease"
    holder.kill()
    wait_for(lambda: leases.follower_of(states, "shop") == "dead")
    once = take(states)
    assert once is not None
    with leases.kept_alive(settings, once):
        assert leases.follower_of(states, "shop") == "dead"
    assert leases.follower_of(states, "shop") == "dead"
    follower = leases.acquire(states, "shop", SECONDS, "follow")
    assert follower is not None and leases.follower_of(states, "shop") == "alive"
    leases.release(states, follower)
    assert leases.follower_of(states, "shop") == "none", "it has ended by itself"


def test_a_follower_that_ends_by_an_error_is_missed_and_replaced_at_once(
    settings: Settings, states: CatalogConnection
) -> None:
    """One whose JVM was killed, or whose source fails each cycle, was as one that was stopped: nobody was told."""

    def follows(fails: bool) -> None:
        lease = leases.acquire(states, "shop", SECONDS, "follow")
        assert lease is not None, "the one before has let go"
        with leases.kept_alive(settings, lease):
            assert leases.follower_of(states, "shop") == "alive"
            if fails:
                raise RuntimeError("Spark's JVM has ended")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            follows(fails=True)
        assert leases.holder_of(states, "shop") is None and leases.follower_of(states, "shop") == "dead"
    leases.leave(settings, "shop")
    assert leases.follower_of(states, "shop") == "none", "it was stopped between two tries"
    with pytest.raises(RuntimeError):
        follows(fails=True)
    follows(fails=False)
    assert leases.follower_of(states, "shop") == "none"


def test_a_follower_that_has_failed_and_leaves_takes_nothing_from_another(
    settings: Settings, states: CatalogConnection
) -> None:
    lease = leases.acquire(states, "shop", SECONDS, "follow")
    assert lease is not None
    leases.release(states, lease, in_order=False)
    other = leases.acquire(states, "shop", SECONDS, "follow")
    assert other is not None
    leases.leave(settings, "shop")
    assert leases.follower_of(states, "shop") == "alive"
    leases.check(states, other, SECONDS)


def test_followers_that_share_a_source_are_missed_once_the_last_has_failed(
    settings: Settings, states: CatalogConnection
) -> None:
    seats = [leases.take_seat(states, "web", SECONDS) for _ in range(2)]
    for seat, left in zip(seats, ("alive", "dead"), strict=True):
        assert seat is not None
        leases.release(states, seat, in_order=False)
        assert leases.follower_of(states, "web") == left
    leases.leave(settings, "web")
    assert leases.follower_of(states, "web") == "none"


def test_sessions_of_other_roles_are_seen(settings: Settings, states: CatalogConnection) -> None:
    """Who may not see when a session began sees at least that it is there."""
    lease = take(states)
    assert lease is not None
    states.execute("DROP ROLE IF EXISTS weak")
    states.execute("CREATE ROLE weak LOGIN")
    states.execute("GRANT USAGE ON SCHEMA lakehouse TO weak")
    states.execute("GRANT SELECT ON lakehouse.leases TO weak")
    with leases.kept_alive(settings, lease), psycopg.connect(settings.catalog_dsn(), user="weak") as weak:
        assert leases.holder_of(weak, "shop") == (lease.holder, "once")  # type: ignore[arg-type]
