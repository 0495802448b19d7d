"""Who serves a job and who writes, by sessions of the catalog's database, and the bell that a publish rings."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from throwaway_postgres import throwaway_postgres

from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.presence import is_served, serve, withdraw, writing, writing_if_free
from lakehouse.servers.worker_sessions import RESTLESS, enter, is_restless, is_there, leave, restarts_of, state_of
from lakehouse.settings import Settings, load_settings
from lakehouse_watch.probes.worker import read_worker
from orchestration.runs.processes.queries import _is_over, session_name
from orchestration.worker import loop
from orchestration.worker.bell import Bell
from orchestration.worker.dbt.statements import Interrupted, Statements


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with throwaway_postgres() as url:
        yield load_settings(home=tmp_path_factory.mktemp("home"), catalog_url=url)


def test_a_worker_serves_a_job_until_its_session_ends(settings: Settings) -> None:
    """However it ends: the lock is the session's, so no timeout has to pass."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        assert not is_served(settings, "load_shop")
        assert serve(one, lake, "load_shop") and is_served(settings, "load_shop")  # type: ignore[arg-type]
        assert not serve(other, lake, "load_shop")  # type: ignore[arg-type]
        assert not is_served(settings, "load_bank")
        withdraw(one, lake, "load_shop")  # type: ignore[arg-type]
        assert serve(other, lake, "load_shop")  # type: ignore[arg-type]
        one.execute("SELECT pg_terminate_backend(%s, 10000)", (other.info.backend_pid,))
        assert not is_served(settings, "load_shop")


def test_a_worker_that_is_at_a_step_for_too_long_is_told_until_it_has_ended_it(tmp_path: Path) -> None:
    """It hung in the vault on the last sale of a day: parsed was current, and no run had failed."""
    with throwaway_postgres() as url:
        given = {"catalog_url": url, "sources": {"shop": {"url": url}}}
        lake, soon = load_settings(home=tmp_path, **given), {"load_seconds": 0.2}
        hasty = load_settings(home=tmp_path, alerts=soon, **given)
        with connect_catalog(lake) as connection:
            ensure_state(connection)
        with connect_catalog(lake) as one, connect_catalog(lake) as run:
            with writing_if_free(run, lake.catalog_name, {"shop": ["shop"]}):
                time.sleep(0.3)
                enter(one, lake.catalog_name)
                assert serve(one, lake.catalog_name, "load_shop")
                time.sleep(0.3)
                assert not read_worker(hasty).occasions, "a run is at it, and its first load may take hours"
            with writing_if_free(one, lake.catalog_name, {"shop": ["shop"]}):
                time.sleep(0.3)
                assert [told.key for told in read_worker(hasty).occasions] == ["worker/step"]
                assert not read_worker(lake).occasions
            time.sleep(0.3)
            assert not read_worker(hasty).occasions
            leave(one, lake.catalog_name)


def test_queries_of_a_worker_are_over_once_its_session_has_ended(settings: Settings) -> None:
    """One of a killed worker replaced a mart that the next had built and tested. Those of another lake are not ours."""
    dsn, lake, instance = settings.catalog_dsn(), settings.catalog_name, None
    session, own = session_name(settings), session_name(settings)
    with psycopg.connect(dsn, autocommit=True) as alive:
        assert serve(alive, lake, session)  # type: ignore[arg-type]
        assert not _is_over(settings, instance, session, own)  # type: ignore[arg-type]
        assert _is_over(settings, instance, session, session), "what it waits for no more"  # type: ignore[arg-type]
    assert _is_over(settings, instance, session, own)  # type: ignore[arg-type]
    other = session.replace(f"/{settings.trino.catalog}/", "/other/")
    assert not _is_over(settings, instance, other, own)  # type: ignore[arg-type]


def test_a_worker_that_was_killed_is_missed_and_one_that_has_ended_is_not(settings: Settings) -> None:
    """Of two, the last one counts."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        assert state_of(settings) == "none", "nothing is stored yet"
        ensure_state(one)
        assert not is_there(settings) and state_of(settings) != "killed", "none was ever started"
        enter(one, lake)
        enter(other, lake)
        leave(other, lake)
        assert is_there(settings) and state_of(settings) != "killed"
        assert [o.key for o in read_worker(settings).occasions] == []
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (one.info.backend_pid,))
        assert not is_there(settings) and state_of(settings) == "killed"
        [dead] = read_worker(settings).occasions
        assert dead.key == "worker/lake" and "cannot read the project" in dead.summary, "it begins anew for ever then"
        enter(other, lake)
        assert state_of(settings) != "killed"
        leave(other, lake)
        assert not is_there(settings) and state_of(settings) != "killed"


def test_a_worker_that_is_killed_again_and_again_is_told_though_it_is_back_at_once(settings: Settings) -> None:
    """It was back within seconds each time, so nobody was told, and what it could not finish was never built."""
    lake = settings.catalog_name

    def told() -> list[str]:
        return [occasion.key for occasion in read_worker(settings).occasions]

    with connect_catalog(settings) as admin:
        ensure_state(admin)
        for restarts in range(5):
            with connect_catalog(settings) as killed:
                enter(killed, lake)
                with connect_catalog(settings) as second:
                    enter(second, lake)
                enter(killed, lake, is_restart=False)
                assert restarts_of(settings) == restarts
                assert told() == (["worker/restarts"] if restarts >= RESTLESS else [])
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", (killed.info.backend_pid,))
        assert told() == ["worker/lake", "worker/restarts"]
        earlier = "ARRAY(SELECT at - interval '61 minutes' FROM unnest(restarts) AS at)"
        admin.execute(f"UPDATE lakehouse.workers SET restarts = {earlier}")  # type: ignore[arg-type]
        assert told() == ["worker/lake"] and not is_restless(settings)
        enter(admin, lake)
        assert restarts_of(settings) == 1
        assert admin.execute("SELECT cardinality(restarts) FROM lakehouse.workers").fetchone() == (1,), "of the hour"
        leave(admin, lake)
        assert restarts_of(settings) == 0


def test_a_worker_that_waits_for_a_server_or_for_the_project_to_be_corrected_counts_as_one_restart(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries anew every five seconds, so one outage of the object store counted as many restarts."""
    stop, given = Event(), list[bool]()
    ends = iter(["unread", "at work", "unread", "at work", "at work", "stop"])

    def work_connected(settings: Settings, stop: Event, entered: Event) -> None:
        end = next(ends)
        if end != "unread":
            given.append(not entered.is_set())
            entered.set()
        if end == "stop":
            stop.set()
        else:
            raise LakehouseError(end)

    monkeypatch.setattr(loop, "_work_connected", work_connected)
    monkeypatch.setattr(loop, "PAUSE_SECONDS", 0.0)
    loop.work(settings, stop)
    assert given == [True, False, False, False]


def test_a_worker_that_begins_serves_its_jobs_before_it_is_known_to_live(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between, a sensor saw a living worker that leaves the job to it, and launched a run."""
    stop, seen = Event(), list[str]()

    class Beginning:
        ready, read_project = dict[str, str], lambda _: None

        def take_jobs(self) -> None:
            seen.append(state_of(settings))

        def load_what_is_due(self) -> None:
            seen.append(state_of(settings))
            stop.set()

        def run_tests(self) -> float:
            return 0.0

    @contextmanager
    def opened(settings: Settings, stop: Event) -> Iterator[Any]:
        with psycopg.connect(settings.catalog_dsn(), autocommit=True) as connection:
            yield Beginning(), SimpleNamespace(wait=lambda _: True), connection

    monkeypatch.setattr(loop, "open_worker", opened)
    loop.work(settings, stop)
    assert seen == ["none", "alive"] and state_of(settings) == "none"


def ring(settings: Settings) -> None:
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as publisher:
        publisher.execute("SELECT pg_notify('lakehouse_cuts', 'shop'), pg_notify('lakehouse_cuts', 'bank')")


def heard(bell: Bell) -> bool:
    """Whether it has rung, without waiting for it; the server takes a moment to pass that on."""
    return any(bell.wait(0) or time.sleep(0.05) for _ in range(400))


def test_a_publish_wakes_the_worker(settings: Settings) -> None:
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as listener:
        bell = Bell(listener, Event())  # type: ignore[arg-type]
        assert not bell.wait(0.1)
        ring(settings)
        assert bell.wait(5)
        assert not bell.wait(0.1), "one load reads all cuts"
        ring(settings)
        assert heard(bell), "what rang while nobody waited"


def test_work_that_yields_ends_when_a_cut_changes_a_table_and_the_cut_is_loaded_next(settings: Settings) -> None:
    """A sale waited for whole-table tests that had begun just before it came."""
    begun, ended, matters = Event(), Event(), [False]

    def work() -> bool:
        begun.set()
        return ended.wait(20)

    def ring_twice() -> None:
        begun.wait(20)
        ring(settings)
        time.sleep(0.5)
        assert not ended.is_set(), "a cut that changes no table"
        matters[0] = True
        ring(settings)

    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as listener:
        bell = Bell(listener, Event())  # type: ignore[arg-type]
        assert bell.during(lambda: 7, lambda: True, ended.set) == 7 and not ended.is_set()
        ringing = Thread(target=ring_twice)
        ringing.start()
        assert bell.during(work, lambda: matters[0], ended.set)
        ringing.join()
        assert heard(bell) and not bell.wait(0.1), "at once, and not twice"
        ended.clear()
        begun.clear()
        ringing = Thread(target=lambda: (begun.wait(20), time.sleep(0.5), ring(settings), time.sleep(0.5), ended.set()))
        ringing.start()
        late = Event()
        assert bell.during(work, lambda: True, late.set, 0.3) and not late.is_set(), "too late to yield"
        ringing.join()
        assert heard(bell), "and heard afterwards"
        stop = Event()
        stop.set()
        ended.clear()
        assert Bell(listener, stop).during(work, lambda: False, ended.set), "a worker that stops waits for nothing"  # type: ignore[arg-type]


def test_what_was_cancelled_has_no_results() -> None:
    """A statement that was cancelled looks like one that finds nothing: a failing test would pass."""
    statements = Statements()
    statements.begin()
    with pytest.raises(Interrupted), statements.running():
        statements.end()
    with pytest.raises(Interrupted), statements.running():
        raise AssertionError("it must not begin")
    statements.begin()
    with statements.running():
        pass


def test_one_writes_at_a_time_and_a_run_that_waits_comes_before_the_worker(settings: Settings) -> None:
    """A worker that loads again and again must not keep a run waiting for ever."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        order = []

        def run() -> None:
            with writing(other, lake, {"shop": ["shop"]}):  # type: ignore[arg-type]
                order.append("run")

        with writing_if_free(one, lake, {"shop": ["shop"]}) as free:  # type: ignore[arg-type]
            assert free == {"shop"}
            thread = waiting(settings, run)
            order.append("worker")
        thread.join(timeout=30)
        assert order == ["worker", "run"]
        with (
            writing(other, lake, {"shop": ["shop"]}),
            writing_if_free(one, lake, {"shop": ["shop"], "bank": ["bank"]}) as free,
        ):  # type: ignore[arg-type]
            assert free == {"bank"}, "a load of one source keeps no other waiting"
        with writing_if_free(one, lake, {"shop": ["shop"]}) as free:  # type: ignore[arg-type]
            assert free


def test_who_waits_for_one_of_several_sources_keeps_no_other_waiting(settings: Settings) -> None:
    """Marts of the shop and the bank waited for a long load of the bank, and loads of the shop for the marts."""
    dsn, lake, order = settings.catalog_dsn(), settings.catalog_name, []
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:

        def marts() -> None:
            with writing(other, lake, {"bank": ["bank"], "shop": ["shop"]}):  # type: ignore[arg-type]
                order.append("marts")

        for busy, free in (("bank", "shop"), ("shop", "bank")):
            with writing_if_free(one, lake, {busy: [busy]}):  # type: ignore[arg-type]
                thread = waiting(settings, marts)
                with writing_if_free(one, lake, {free: [free]}) as found:  # type: ignore[arg-type]
                    assert found == {free}
                order.append(busy)
            thread.join(timeout=30)
    assert order == ["bank", "marts", "shop", "marts"]


def test_a_group_that_has_got_another_name_is_not_written_beside_a_run_of_before(settings: Settings) -> None:
    """A reference from `crm` to `shop` makes them the group `crm`: the worker built its marts in the middle of a load.

    Where the run began with the reference, and it is gone, they are two groups.
    """
    dsn, lake, order = settings.catalog_dsn(), settings.catalog_name, []
    of_before, of_now = {"shop": ["shop"]}, {"crm": ["crm", "shop"], "bank": ["bank"]}
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        with writing(one, lake, of_before), writing_if_free(other, lake, of_now) as free:  # type: ignore[arg-type]
            assert free == {"bank"}
            with writing_if_free(one, lake, {"crm": ["crm"]}) as crm:  # type: ignore[arg-type]
                assert crm == {"crm"}, "nothing is locked of a group of which another has a source"
        with writing(one, lake, of_now), writing_if_free(other, lake, of_before) as free:  # type: ignore[arg-type]
            assert not free

        def run() -> None:
            with writing(other, lake, of_now), writing_if_free(one, lake, of_before) as free:  # type: ignore[arg-type]
                order.append(f"run beside {len(free)}")

        with writing(one, lake, of_before):  # type: ignore[arg-type]
            thread = waiting(settings, run)
            order.append("load")
        thread.join(timeout=30)
        assert order == ["load", "run beside 0"]
        with writing_if_free(one, lake, of_now) as free:  # type: ignore[arg-type]
            assert free == of_now.keys(), "all is given back"


def waiting(settings: Settings, work: Callable[[], None]) -> Thread:
    """Begins the work in a thread, which by now waits for a lock."""
    thread = Thread(target=work)
    thread.start()
    while not is_waiting(settings):
        time.sleep(0.05)
    return thread


def is_waiting(settings: Settings) -> bool:
    with psycopg.connect(settings.catalog_dsn()) as connection:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
        return connection.execute(query).fetchone() == (True,)
