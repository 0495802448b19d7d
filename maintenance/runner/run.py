"""Runs actions on tables, several at a time.

A failing table does not stop the others; the run fails at its end if more than a declared share failed. Outcomes are
appended to `meta.maintenance`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakehouse.declarations.dbt.manifest import load_manifest
from maintenance.actions import clean_dbt_temporary, registry
from maintenance.actions.need import Body
from maintenance.inventory.declared import MaintainedTable, maintained_tables, select
from maintenance.inventory.outcome import Outcome
from maintenance.inventory.session import Session
from maintenance.planning.history import record
from maintenance.runner.probes import probed
from maintenance.runner.result import Result, sorted_result

T = TypeVar("T")
ACTIONS: dict[str, Body] = {a.name: probed(a.body) if a.rewrites else a.body for a in registry.ACTIONS}
WORKERS = 4
Report = Callable[[Outcome], None]


def run(
    session: Session,
    actions: Iterable[str],
    names: Iterable[str] = (),
    group: str | None = None,
    report: Report = lambda outcome: None,
) -> Result:
    """Runs the named actions in turn on the declared tables of these names and this group.

    `report` is called with each outcome. Raises LakehouseError for a broken environment or unknown names.
    """
    names = tuple(names)
    declared = maintained_tables(load_manifest(session.settings), session.settings.dbt_project_dir)
    chosen = select(declared, names, group)
    session.check()
    outcomes: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    try:
        for name in actions:
            stray = strays_for(session, name, declared, names, group)
            for outcome in hindrances_for(session, name, names):
                keep(outcome)
            run_action(session, name, (*chosen, *stray), keep)
    finally:  # also records the finished actions of an interrupted run
        record(session, outcomes)
    return sorted_result(outcomes)


def run_action(
    session: Session, name: str, tables: Iterable[MaintainedTable], report: Report = lambda outcome: None
) -> list[Outcome]:
    """Runs one action on tables, a few at a time; `report` is called with each outcome."""
    if registry.BY_NAME[name].reads_lake:
        session.lake()
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def work(table: MaintainedTable, stopped: threading.Event) -> None:
        outcome = ACTIONS[name](session, table.name, table.policy)
        with lock:
            report(outcome)
            outcomes.append(outcome)

    a_few_at_a_time(work, tables)
    session.forget_lake()
    return outcomes


def a_few_at_a_time(work: Callable[[T, threading.Event], None], items: Iterable[T]) -> None:
    """Runs `work` on each item; raises its first error.

    After an error or an interrupt the event is set, current work finishes, and no other starts.
    """
    stopped = threading.Event()

    def unless_stopped(item: T) -> None:
        if not stopped.is_set():
            work(item, stopped)

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for _ in pool.map(unless_stopped, items):
                pass
        except BaseException:
            stopped.set()
            raise


def hindrances_for(session: Session, name: str, names: tuple[str, ...]) -> list[Outcome]:
    """What keeps an action from all tables, told once; nothing if the run is restricted to named tables."""
    return [] if name != clean_dbt_temporary.NAME or names else clean_dbt_temporary.hindrances(session)


def strays_for(
    session: Session, name: str, declared: tuple[MaintainedTable, ...], names: tuple[str, ...], group: str | None
) -> tuple[MaintainedTable, ...]:
    """Undeclared models with temporary relations or objects; none if the run is restricted to named tables."""
    if name != clean_dbt_temporary.NAME or names:
        return ()
    return clean_dbt_temporary.strays(session, declared, group)
