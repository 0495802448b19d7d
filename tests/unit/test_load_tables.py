"""Loading a group of tables: the problem of one is that one's, and the others go on, as the stream does."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import memory_source as memory
import psycopg
import pytest

from ingestion.pipeline import load_changes, load_tables
from ingestion.pipeline.cycle import catch_up, waiting_tables
from ingestion.pipeline.session import RowCounts, Session
from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import conclude, plan_course
from ingestion.schema.positions import POSITIONS
from ingestion.schema.problem import TableProblem
from ingestion.sink.writer import Written, pack, unpack
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.lanes import Findings
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations import RawTable
from lakehouse.declarations import Source as Declared
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings

TABLE = RawTable(
    source="shop", name="items", description="", columns=(), raw=RawPolicy(relation="public.items", key=("id",)),
    load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip


def loading(*names: str) -> Any:
    return [SimpleNamespace(table=SimpleNamespace(name=name), position=name, ranges=None) for name in names]


def contained(monkeypatch: pytest.MonkeyPatch, group: Any, problems: dict[str, TableProblem]) -> tuple[Any, list[str]]:
    """What the rest of the group has brought, and which tables were parked."""
    parked: list[str] = []
    monkeypatch.setattr(load_tables, "_park", lambda writer, states, position, problem: parked.append(position))

    def load(tables: list[Any]) -> dict[str, dict[str, int]]:
        for item in tables:
            if item.table.name in problems:
                raise problems[item.table.name]
        return {item.table.name: {"r": 1} for item in tables}

    return load_tables._contained(cast(Any, None), cast(Any, None), group, load), parked


def test_the_table_that_has_the_problem_is_parked_whatever_its_text_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table to blame was looked for in the text, and where the text did not help it was the first of the group."""
    problem = TableProblem("shop", "lines", "column 'x' refers to table 'orders': correct it")
    rows, parked = contained(monkeypatch, loading("orders", "lines", "items"), {"lines": problem})
    assert parked == ["lines"] and sorted(rows) == ["items", "orders"]


def test_a_problem_of_another_table_parks_none_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableProblem, match="table 'elsewhere': refused"):
        contained(monkeypatch, loading("orders"), {"orders": TableProblem("shop", "elsewhere", "refused")})


def test_a_tasks_problem_comes_back_with_its_table() -> None:
    problem = unpack(pack(TableProblem("shop", "orders", "column 'x': too large\n")))
    assert isinstance(problem, TableProblem) and problem.table == "orders"
    assert str(problem).startswith("source 'shop', table 'orders': column 'x': too large")


class OnlyHere(memory.MemorySource):
    """The source in memory, which is asked something of its own when a declared key is checked."""

    asked: Callable[[], None] = staticmethod(lambda: None)

    def check_key(self, table: Any, facts: Any) -> None:
        self.asked()
        super().check_key(table, facts)


@dataclass(frozen=True)
class Shop:
    """A source of one table, loaded into a lake by tasks that run in this process."""

    log: memory.Log
    source: OnlyHere
    session: Session
    states: Any

    def read(self) -> RowCounts:
        """As the cycle's thread, beside a load: by a connection of its own."""
        with store.connect_catalog(self.session.settings) as states:
            return catch_up(self.session, cast(Any, self.source), states).rows

    def load(self) -> RowCounts:
        """One try to load what waits for it."""
        self.read()
        wanted = waiting_tables(self.session, cast(Any, self.source), self.states)
        return load_tables.load_tables(self.session, cast(Any, self.source), self.states, wanted, lambda _: self.read())

    @property
    def position(self) -> store.TablePosition:
        return store.read_positions(self.states, "shop")["items"]

    def move(self, position: store.TablePosition, by: Any) -> None:
        store.put_position(self.states, "shop", position, by)

    def ids(self) -> list[str]:
        rows = self.session.catalog.load_table(("raw_shop", "items")).scan().to_arrow().to_pylist()
        return sorted(row["id"] for row in rows)


@pytest.fixture
def shop(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setitem(cast(Any, POSITIONS), "memory", memory.Offsets)
    for part in (load_changes, load_tables):
        monkeypatch.setattr(part, "run_tasks", lambda _, work, items: [work(unpack(pack(item))) for item in items])
    with store.connect_catalog(catalog_settings) as states:
        states.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(cast(psycopg.Connection[Any], states))
        store.create_stream(states, "shop", "", store.Cluster("", 0), 0, kind="memory")
        lease = leases.acquire(states, "shop", 60, "follow")
        assert lease is not None
        log = memory.Log()
        source = OnlyHere(log)
        declared = Declared(name="shop", description="", load=LoadPolicy(), tables=(TABLE,))
        session = Session(
            catalog_settings, postgres_catalog, cast(Any, None), lease, declared, origin=cast(Any, source)
        )
        for key in ("1", "2"):
            log.write("c", key, "before")
        yield Shop(log, source, session, states)


@pytest.mark.stack
def test_a_long_look_at_a_declared_key_does_not_keep_a_table_from_its_point(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream passed the point while the whole table was read, and each load began the same again, in silence."""

    def look() -> None:
        shop.log.write("c", "3", "meanwhile")
        shop.read()

    shop.source.asked = look
    assert shop.load() == {"items": {"r": 2}}
    assert shop.position.state == "streaming" and shop.ids() == ["1", "2", "3"] and not caplog.records


@pytest.mark.stack
def test_that_the_stream_passes_the_points_of_a_table_again_is_told(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = load_tables._begin

    def slow(*given: Any) -> Any:
        shop.log.write("u", "1", "meanwhile")
        shop.read()
        return begin(*given)

    monkeypatch.setattr(load_tables, "_begin", slow)
    with caplog.at_level(logging.WARNING):
        assert shop.load() == {} and not caplog.records
        assert shop.load() == {} and "tables items: the stream passed the point" in caplog.text


@pytest.mark.stack
def test_the_stream_stands_still_for_tables_whose_point_it_has_passed_before(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose tables are all new has nothing to land, and passed each point of a busy source for minutes."""
    begin, waits = load_tables._begin, shop.session.registering.is_set

    def slow(*given: Any) -> Any:
        if not waits():
            shop.log.write("u", "1", "meanwhile")
            shop.read()
        return begin(*given)

    monkeypatch.setattr(load_tables, "_begin", slow)
    assert shop.load() == {} and not waits()
    seen = []
    monkeypatch.setattr(load_tables, "_snapshot", lambda *_: seen.append(waits()) or {})
    assert shop.load() == {} and seen == [False], "the load needs the stream to go on once they are registered"
    assert shop.position.state == "loading"


@pytest.mark.stack
def test_a_declared_key_that_two_rows_have_parks_the_table_that_is_loaded(shop: Shop) -> None:
    def refuse() -> None:
        raise TableProblem("shop", "items", "several rows have one declared key")

    shop.source.asked = refuse
    assert shop.load() == {} and (shop.position.state, shop.position.versions) == ("parked", ())
    shop.source.asked = lambda: None
    shop.move(replace(shop.position, state="resuming"), "user")
    shop.load()
    assert shop.position.state == "streaming" and shop.ids() == ["1", "2"]


def stale_meanwhile(shop: Shop, reason: str) -> store.TablePosition:
    """Where the table stands after a read that found this."""
    now = shop.position
    course = plan_course(now, Outlook(TABLE, now.fingerprint, now.facts))
    return conclude(course, Findings(stale=reason), now.position).position


@pytest.mark.stack
@pytest.mark.parametrize("reason", ["a row of no form", "another one"])
def test_a_table_that_needs_a_resync_again_while_it_is_repaired_is_repaired_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The end of the repair forgot it, and what had happened above its point stayed wrong."""
    shop.load()
    shop.move(stale_meanwhile(shop, "a row of no form"), "read")
    reads = [reason]

    def repair(*_: Any) -> Written:
        if reads:
            shop.move(stale_meanwhile(shop, reads.pop()), "read")
        return Written("items", (), {}, {})

    monkeypatch.setattr(load_tables, "stage_repair", repair)
    shop.load()
    assert (shop.position.state, shop.position.reason) == ("stale", reason)
    shop.load()
    assert (shop.position.state, shop.position.resync_reason) == ("streaming", None)


@pytest.mark.stack
def test_a_snapshot_that_a_read_begins_anew_while_it_is_taken_up_again_is_not_taken_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the load had read of the table before the read overwrote where the read had put it."""

    def killed(*_: Any) -> Any:
        raise LakehouseError("killed")

    with monkeypatch.context() as patch, pytest.raises(LakehouseError, match="killed"):
        patch.setattr(load_tables, "run_tasks", killed)
        shop.load()
    assert shop.position.state == "loading"
    survey, calls = load_tables.survey, [0]

    def read_meanwhile(*given: Any) -> Any:
        found = survey(*given)
        calls[0] += 1
        if calls[0] == 2:  # the first one is before the point
            shop.move(stale_meanwhile(shop, "a row of no form"), "read")
        return found

    monkeypatch.setattr(load_tables, "survey", read_meanwhile)
    assert shop.load() == {} and (shop.position.state, shop.position.reason) == ("new", "a row of no form")
    shop.load()
    assert shop.position.state == "streaming"


@pytest.mark.stack
def test_a_column_that_came_before_a_recovery_is_in_the_raw_table_before_its_values_land(shop: Shop) -> None:
    """The table was parked before its resync, with the remedy of another case: no description told of the column."""
    shop.load()
    with shop.session.catalog.load_table(("raw_shop", "items")).update_schema() as update:
        update.delete_column("v")  # as if the source had it only since
    store.restart_stream(shop.states, "shop", "", store.Cluster("", 0), 0)
    shop.log.write("c", "3", "new")
    shop.read()
    rows = shop.session.catalog.load_table(("raw_shop", "items")).scan().to_arrow().to_pylist()
    assert (shop.position.state, shop.position.reason) == ("stale", None)
    assert [row["v"] for row in rows if row["id"] == "3"] == ["new"]


@pytest.mark.stack
def test_what_a_read_finds_before_the_resync_of_a_recovery_is_one_more_reason_for_it(shop: Shop) -> None:
    shop.load()
    facts = shop.position.facts
    store.restart_stream(shop.states, "shop", "", store.Cluster("", 0), 0)
    now = shop.position
    course = conclude(plan_course(now, Outlook(TABLE, "f", facts)), Findings(stale="a row of no form"), now.position)
    assert (course.position.state, course.position.reason) == ("stale", "a row of no form")
    assert course.position.versions == (facts,)
