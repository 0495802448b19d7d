"""An erasure beside a worker, a run and a statement that a killed one has left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from test_erasure_keys import shop, table
from test_groups import manifest, node
from test_worker_sessions import waiting
from throwaway_postgres import throwaway_postgres

from erasure import origins, run, steps, tombstones
from erasure.plan import Plan
from erasure.proof import Search
from erasure.rows import SubjectRows
from erasure.steps import Erasing, Erasure
from erasure.targets import Target, sources_to_lock
from erasure.tombstones import Tombstone
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.servers.presence import ALONE, writing, writing_if_free
from lakehouse.servers.table_locks import Held, locked
from lakehouse.settings import Settings, load_settings

SHOP = {"shop": ["shop"]}
STONE = Tombstone("shop", "people", {"id": "5"}, "2026-01-01T00:00:00+00:00", "me")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with throwaway_postgres() as url:
        found = load_settings(home=tmp_path_factory.mktemp("home"), catalog_url=url)
        with connect_catalog(found) as states:
            ensure_state(states)
        yield found


class Lake:
    """The subject's rows in raw and parsed, a cycle that lands the last of them, and a worker."""

    def __init__(self, settings: Settings, patch: pytest.MonkeyPatch) -> None:
        self.settings, self.said = settings, list[str]()
        self.raw, self.parsed = set[str](), set[str]()
        self.ends: Callable[[], None] = lambda: None
        patch.setattr(run, "up_to_date_alone", self.up_to_date_alone)
        patch.setattr(run, "Erasing", self.erasing)
        plan = Plan(cast(Any, None), {(5,): ()}, (), (), 0, {})
        for module, name in ((origins, "connect_source"), (run, "mirrors_held"), (run, "no_next_tables")):
            patch.setattr(module, name, lambda *given: nullcontext())
        for module, name in ((run, "drop_next"), (origins, "facts_there"), (origins, "held_by_source")):
            patch.setattr(module, name, lambda *given: None)
        patch.setattr(run, "_position", lambda *given: SimpleNamespace(facts=None, state="streaming"))
        patch.setattr(run, "_named", lambda *given: ([], {}))
        patch.setattr(run, "_printed", lambda source, table, facts, keys, refused: keys)
        patch.setattr(run, "remembered", lambda *given: ())
        patch.setattr(run, "make_plan", lambda *given: plan)

    @contextmanager
    def up_to_date_alone(self, *given: Any) -> Iterator[Any]:
        self.raw.add("person")
        self.load()
        yield SimpleNamespace(catalog=SimpleNamespace(name="lake"))

    def load(self) -> None:
        """What a worker does that a cut has woken: reads raw, and writes once the search is over."""
        with connect_catalog(self.settings) as worker, writing_if_free(worker, "lake", SHOP) as free:
            read = set(self.raw) if free else set[str]()
            self.ends = lambda: self.parsed.update(read)

    def erasing(self, settings: Settings, writer: Any, states: Any, plan: Plan, say: Any, mirrors: Any) -> Any:
        def act(keys: Any) -> Erasure:
            concerned = [layer for layer in (self.raw, self.parsed) if "person" in layer]
            for layer in concerned:
                layer.clear()
            self.ends()
            return Erasure(["person"] if self.raw | self.parsed else [])

        return SimpleNamespace(run=act)

    def erase(self) -> Erasure:
        return run.erase(self.settings, shop(table()), {}, "shop.people", ["id=5"], say=self.said.append)


@pytest.fixture
def lake(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(settings, monkeypatch)


def is_free(settings: Settings, groups: dict[str, list[str]]) -> bool:
    with connect_catalog(settings) as other, writing_if_free(other, settings.catalog_name, groups) as free:
        return free == groups.keys()


def test_a_worker_that_the_own_cycle_wakes_does_not_load_the_person_beside_an_erasure(lake: Lake) -> None:
    """It had read the person's last events, and wrote them into parsed after the proof."""
    assert lake.erase().subjects == [] and not lake.parsed
    assert is_free(lake.settings, SHOP), "and the worker loads afterwards"


def test_an_erasure_waits_for_the_load_that_runs_and_holds_nothing_while_it_waits(lake: Lake) -> None:
    """A run that has the lock may wait for the lease."""
    order = list[str]()
    with connect_catalog(lake.settings) as load:
        with writing(load, lake.settings.catalog_name, {"crm": ["crm", "shop"]}):
            thread = waiting(lake.settings, lambda: (order.append("erase"), lake.erase(), order.append("erased")))
            assert not lake.raw, "the cycle has not begun, nor is the lease taken"
            order.append("loaded")
        thread.join(timeout=30)
    assert order == ["erase", "loaded", "erased"]
    assert lake.said[0].startswith("waiting until others have written") and "shop" in lake.said[0]
    assert lake.said[1].endswith("loads and marts of shop wait until the erasure ends")


def is_maintained(settings: Settings, name: tuple[str, str]) -> bool:
    with suppress(Held), locked(settings, [name], "maintenance"):
        return True
    return False


def test_an_erasure_waits_for_maintenance_of_its_tables_and_keeps_it_out(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction had read the person's rows, and wrote them into more files after the proof."""
    raw, hub, mirror = ((namespace, "people") for namespace in ("raw_shop", "vault", "mirror_shop"))
    parts = [SubjectRows(Target(name, kind, ("id",), frozenset()), ())
             for name, kind in ((raw, "empty"), (hub, "empty"), (mirror, "drop"))]  # fmt: skip
    plan = Plan(cast(Any, None), {(5,): ()}, (parts[0],), tuple(parts[1:]), 0, {})
    monkeypatch.setattr(run, "make_plan", lambda *given: plan)
    monkeypatch.setattr(lake, "load", lambda: None)
    seen: list[bool] = []
    lake.ends = lambda: seen.extend(is_maintained(lake.settings, name) for name in (raw, hub, mirror))
    with locked(lake.settings, [hub], "maintenance"):
        thread = Thread(target=lake.erase)
        thread.start()
        for _ in range(300):
            if lake.said and lake.said[-1].startswith("waiting for maintenance of vault.people: another maintenance"):
                break
            time.sleep(0.1)
        assert lake.raw == {"person"} and seen == [], "it has begun with nothing"
    thread.join(timeout=60)
    assert seen == [False, False, True], "the refresh of the mirror takes its lock itself"
    assert is_maintained(lake.settings, raw) and not lake.raw
    impatient = lake.settings.ingestion.model_copy(update={"wait_seconds": 0.01})
    lake.settings = lake.settings.model_copy(update={"ingestion": impatient})
    again = r"^raw_shop\.people: another maintenance run .* holds it; run the erasure again once it has ended$"
    with locked(lake.settings, [raw], "maintenance"), pytest.raises(LakehouseError, match=again):
        lake.erase()
    assert lake.raw == {"person"}


def test_a_mirror_is_dropped_while_nobody_compacts_it_and_made_anew_by_a_refresh_that_locks_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def look(result: Any) -> Callable[..., Any]:
        return lambda *given: (seen.append(is_maintained(settings, ("mirror_shop", "people"))), result)[1]

    given: Any = None
    monkeypatch.setattr(steps, "await_readers", lambda settings: None)
    monkeypatch.setattr(steps, "drop_mirror", look(7))
    monkeypatch.setattr(steps, "refresh", look(SimpleNamespace(aside=())))
    monkeypatch.setattr(steps, "replace", lambda writer, **given: writer)
    erasing = Erasing(settings, cast(Any, SimpleNamespace(catalog=None)), given, given, lambda step: None, given)
    erasing._mirror(Target(("mirror_shop", "people"), "drop", ("id",), frozenset()), Erasure([]))
    assert seen == [False, True]


def test_loads_of_other_sources_go_on_beside_an_erasure_and_all_do_once_it_was_killed(settings: Settings) -> None:
    manifest_of_shop = manifest(
        hub=node("model", "hub", "shop__people"), hub_user=node("model", "hub_user", "bank__users")
    )
    begun, go = Event(), Event()

    def erase() -> None:
        with suppress(psycopg.OperationalError), run.no_loads(settings, manifest_of_shop, "shop", print) as states:
            pids.append(states.info.backend_pid)
            begun.set()
            go.wait(30)
            states.execute("SELECT 1")
            pids.append(0)

    pids = list[int]()
    thread = Thread(target=erase)
    thread.start()
    assert begun.wait(30)
    assert is_free(settings, {"bank": ["bank"]}) and not is_free(settings, SHOP)
    with connect_catalog(settings) as killer:
        killer.execute("SELECT pg_terminate_backend(%s, 10000)", (pids[0],))
    assert is_free(settings, SHOP)
    go.set()
    thread.join(timeout=30)
    assert len(pids) == 1, "one whose session was lost cannot write that it was proved"


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_proof_begins_after_statements_that_a_killed_load_has_left_and_counts_in_the_session_that_keeps_loads_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Where nothing was to rewrite, nobody waited for them: one wrote the person after the proof."""
    parsed = set[str]()
    monkeypatch.setattr(steps, "open_io", lambda settings: SimpleNamespace(new_output=lambda path: pytest.fail(path)))
    monkeypatch.setattr(steps, "await_readers", lambda settings: parsed.add("person"))
    monkeypatch.setattr(steps, "search", lambda *given: Search())
    monkeypatch.setattr(steps, "count_unreadable", lambda *given: 0)
    monkeypatch.setattr(Erasing, "_stones", lambda *given: [STONE])
    for name in ("check_copies", "check_references"):
        monkeypatch.setattr(steps.expire, name, lambda *given: None)
    kept = list[str]()

    def keep(settings: Any, io: Any, states: CatalogConnection, stones: list[Tombstone]) -> None:
        for stone in stones:
            states.execute("SELECT 1")
            kept.append(stone.id)

    def prove(self: Erasing, io: Any, parts: Any, values: Any, erasure: Erasure) -> None:
        assert parsed == {"person"}, "it is searched for what they have written"
        if is_lost:
            with connect_catalog(settings) as killer:
                killer.execute("SELECT pg_terminate_backend(%s, 10000)", (self.states.info.backend_pid,))

    monkeypatch.setattr(tombstones, "read", lambda *given: (STONE,))
    monkeypatch.setattr(tombstones, "add", lambda *given: ())
    monkeypatch.setattr(tombstones, "keep", keep)
    monkeypatch.setattr(Erasing, "_prove", prove)
    with run.no_loads(settings, {}, "shop", print) as states:
        plan = Plan(cast(Any, None), {}, (), (), 0, {})
        erasing = Erasing(settings, cast(Any, SimpleNamespace(catalog=None)), states, plan, print, cast(Any, None))
        with pytest.raises(psycopg.OperationalError) if is_lost else nullcontext():
            erasing.run([STONE.key])
    assert kept == ([] if is_lost else [STONE.id])


def test_what_reads_the_source_by_another_name_is_locked_by_what_else_it_is_made_of() -> None:
    """dbt knows no reference there, so its load does not lock the source. A mart of two sources locks both itself."""
    found = manifest(
        hub=node("model", "hub", "shop__people"),
        mart=node("model", "mart", "hub", "bank__users", mart=True),
    )
    assert sources_to_lock("shop", found) == sorted([ALONE, "shop"])
    found["sources"]["named"] = node("source", "vault__hub") | {"schema": "vault", "name": "hub"}
    found["nodes"]["bv"] = node("model", "bv", "named", "bank__users")
    assert sources_to_lock("shop", found) == sorted([ALONE, "bank", "shop"])
