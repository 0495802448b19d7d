"""What ingestion does at a look: the product's own cycle, step by step, by peeks or on the live stream."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import psycopg

from ingestion.pipeline.cycle import catch_up, connections, waiting_tables
from ingestion.pipeline.load_tables import load_tables
from ingestion.pipeline.session import Session
from ingestion.run import operate
from ingestion.run.follow import Live
from ingestion.sink.writer import pack, unpack
from ingestion.sources.postgres import connection as source
from ingestion.sources.postgres.live import LiveStreamLost
from ingestion.sources.postgres.points import Blocked
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.runner import _outcome
from lakehouse.catalog.open import open_catalog
from lakehouse.errors import LakehouseError
from tests.hunt.history import Look
from tests.hunt.play import Stage

VAIN_LOADS = 6
PLACES = (
    *(f"ingestion.pipeline.load_changes:{step}" for step in ("run_tasks", "unaltered", "publish")),
    *(f"ingestion.pipeline.load_tables:{step}" for step in ("survey", "run_tasks", "publish")),
)
WITH_TASKS = ("load_changes", "load_tables", "replay", "repair.source_side")
LOCK_MILLISECONDS = "2000"


def run_here(session: Any, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`run_tasks` without Spark: the same work on the same packed items, a second less each time."""
    outcomes = [unpack(pack(_outcome(work, pack(item)))) for item in items]
    for outcome in outcomes:
        if isinstance(outcome, LakehouseError):
            raise outcome
    return outcomes


@contextmanager
def tasks_here() -> Iterator[None]:
    """Lets the tasks of ingestion run in this process."""
    modules = [import_module(f"ingestion.pipeline.{name}") for name in WITH_TASKS]
    before = [module.run_tasks for module in modules]
    for module in modules:
        module.run_tasks = run_here  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            module.run_tasks = original  # type: ignore[attr-defined]


@contextmanager
def interrupted(act: Callable[[str], None]) -> Iterator[None]:
    """Calls `act` before the first call of each of the places."""
    with ExitStack() as ends:
        for place in PLACES:
            module_name, name = place.split(":")
            module = import_module(module_name)
            original, left = getattr(module, name), [place]

            def wrapped(*args: Any, original: Any = original, left: list[str] = left, **named: Any) -> Any:
                if left:
                    act(left.pop())
                return original(*args, **named)

            setattr(module, name, wrapped)
            ends.callback(setattr, module, name, original)
        yield


class Reader:
    """The only writer of a stage's source while it is open, as a follower is.

    `anew` snapshots tables that need a resync again, as `--resnapshot` does, which costs a tenth of a repair.
    """

    def __init__(self, stage: Stage, spark: Any, *, live: bool, anew: bool) -> None:
        self._stage, self._anew, self._ends = stage, anew, ExitStack()
        world = stage.world
        self._ends.callback(source.PINNED.update, lock_timeout=source.PINNED["lock_timeout"])
        source.PINNED["lock_timeout"] = LOCK_MILLISECONDS  # a look that waits for a history's own lock waits in vain
        if anew:  # a repair joins in Spark
            self._ends.enter_context(tasks_here())
        with store.connect_catalog(world.settings) as states:
            store.ensure_state(states)
            lease = leases.acquire(states, world.source.name, world.settings.ingestion.lease_seconds, "follow")
        assert lease is not None
        self._ends.enter_context(leases.kept_alive(world.settings, lease))
        catalog = open_catalog(world.settings)
        self._ends.callback(catalog.close)
        self.session = Session(world.settings, catalog, spark, lease, world.source)
        self._connection, self._states = self._ends.enter_context(connections(self.session))
        self._live = Live(self.session) if live else None

    def look(self, kind: Look, inside: Callable[[str], bool]) -> None:
        """Raises whatever ingestion raises; `inside` may do something at a place, and says whether it did."""
        done: list[bool] = []
        with interrupted(lambda place: done.append(inside(place))):
            self._look(kind)
        if any(done):
            self._look(kind)

    def _look(self, kind: Look) -> None:
        self._take_declaration()
        if kind == "full":
            self._stage.end_transactions(only_locking=False)
            self._full()
            return
        self._stage.end_transactions(only_locking=True)
        try:
            self._catch()
        except (psycopg.errors.LockNotAvailable, Blocked):
            self._stage.end_transactions(only_locking=False)
            self._catch()

    def _take_declaration(self) -> None:
        """What a follower does about another declaration: it begins anew."""
        declared = self._stage.world.source
        if declared == self.session.source:
            return
        self.session = replace(self.session, source=declared, described={})
        if self._live:
            self._live.close()
            self._live = Live(self.session)

    def _catch(self, until: int | None = None) -> None:
        stream = self._live.stream if self._live else None
        try:
            catch_up(self.session, self._connection, self._states, until, stream)
        except LiveStreamLost:
            assert self._live is not None
            self._live.close()
            catch_up(self.session, self._connection, self._states, until)
        if self._live:
            self._live.open_if_near(self._connection, self._states)

    def _full(self) -> None:
        self._catch()
        vain, before = 0, 0
        while wanted := waiting_tables(self.session, self._connection, self._states):
            vain, before = vain + 1 if len(wanted) == before else 0, len(wanted)
            if vain == VAIN_LOADS:
                names = ", ".join(f"{table.name} ({self.positions()[table.name].reason})" for table in wanted)
                raise LakehouseError(f"still to be loaded, and {VAIN_LOADS} loads brought on none of them: {names}")
            for table in wanted if self._anew else ():
                if self.positions()[table.name].state == "stale":
                    operate.read_anew(self.session.settings, table)

            def reach(lsn: int) -> dict[str, dict[str, int]]:
                self._catch(lsn)
                return {}

            load_tables(self.session, self._connection, self._states, wanted, reach)
            self._catch()

    @property
    def is_live(self) -> bool:
        """Whether the next look is of the live stream."""
        return self._live is not None and self._live.stream is not None

    def positions(self) -> dict[str, store.TablePosition]:
        """Where each table stands."""
        return store.read_positions(self._states, self.session.name)

    def stream(self) -> store.Stream:
        """How far the source was read."""
        stream = store.read_stream(self._states, self.session.name)
        assert stream is not None
        return stream

    def close(self) -> None:
        """Lets the source go."""
        if self._live:
            self._live.close()
        self._ends.close()
