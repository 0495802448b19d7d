"""Which tables a load has left behind, as its runs and the worker have told."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id

from lakehouse.catalog.open import SnapshotFact
from orchestration.runs import tags
from orchestration.runs.processes.workers import signature
from orchestration.runs.state.behind import (
    FROM_THE_GRAPH,
    PAGE,
    find_behind,
    left_behind,
    runs_from_the_graph,
)
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state
from orchestration.worker.reports.events import report_tables

JOB = "load_shop"
RAW, GOOD, BAD = (dg.AssetKey(path) for path in (["raw_shop", "bad"], ["parsed", "good"], ["parsed", "bad"]))
TABLES = (RAW, GOOD, BAD)
NOW = datetime.now(UTC)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def ran(
    instance: dg.DagsterInstance,
    held: dict[str, int] | None = None,
    begun: bool = False,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.FAILURE,
    only: frozenset[dg.AssetKey] | None = None,
    signed: bool = False,
    job: str = JOB,
) -> str:
    """Adds a run of the load, and what it has told: the tables that failed, that it began to load, or nothing."""
    run_id, now = make_new_run_id(), datetime.now(UTC)
    given = {tags.BEGUN: tags.pack_begun(run_id, now)} if begun else {}
    if held is not None:
        tables = {name: HeldTable(tries, now, None) for name, tries in held.items()}
        given[tags.HELD] = pack_state(LoadState(run_id, None, tables))
    given |= signature(run_id) if signed else {}
    run = instance.add_run(dg.DagsterRun(job, run_id, status=status, tags=given, asset_selection=only))
    instance.report_engine_event("its process has ended", run)
    return run_id[:8]


def load(instance: dg.DagsterInstance, *tables: dg.AssetKey, whole: bool, behind: tuple[str, ...] = ()) -> None:
    """What the worker tells of a load."""
    facts = {(key.path[0], key.path[1]): SnapshotFact(1, datetime.now(UTC), 1, 1) for key in tables}
    report_tables(instance, JOB, facts, {}, {"raw_shop.bad": 1} if whole else {}, behind=behind)


def test_a_table_that_a_run_has_failed_is_behind_until_a_run_or_the_worker_has_loaded_it(
    instance: dg.DagsterInstance,
) -> None:
    held = {BAD: "parsed.bad has failed 2 times in load_shop"}
    assert left_behind(instance, JOB, TABLES) == {}
    ran(instance, {"parsed.bad": 2, "parsed.gone": 1})
    assert left_behind(instance, JOB, TABLES) == held
    for _ in range(PAGE):
        ran(instance, status=dg.DagsterRunStatus.NOT_STARTED)
        ran(instance, {}, only=frozenset([GOOD]))
    assert left_behind(instance, JOB, TABLES) == held, "no other run has loaded it"
    load(instance, GOOD, whole=False)
    assert left_behind(instance, JOB, TABLES) == held, "nor has the worker"
    load(instance, GOOD, whole=True)
    assert left_behind(instance, JOB, TABLES) == held, "nor has it in a load of what else has changed"
    ran(instance, {"parsed.bad": 3})
    assert left_behind(instance, JOB, TABLES).keys() == {BAD}
    load(instance, BAD, whole=False)
    assert left_behind(instance, JOB, TABLES) == {}
    ran(instance, {"parsed.bad": 3}, only=frozenset([GOOD]), status=dg.DagsterRunStatus.SUCCESS)
    assert left_behind(instance, JOB, TABLES) == {}, "the run has left it out, as it had failed before"
    ran(instance, {"parsed.bad": 4})
    ran(instance, {}, status=dg.DagsterRunStatus.SUCCESS)
    assert left_behind(instance, JOB, TABLES) == {}


def test_after_a_run_that_was_killed_while_it_loaded_what_it_did_not_tell_of_is_behind(
    instance: dg.DagsterInstance,
) -> None:
    """Marts were built of what it had loaded, and of older rows of the rest."""
    ran(instance)
    assert left_behind(instance, JOB, TABLES) == {}, "it did not come to the tables"
    killed = ran(instance, begun=True)
    why = f"run {killed} of {JOB} began to load it and has told no end"
    assert left_behind(instance, JOB, TABLES) == {GOOD: why, BAD: why}
    ran(instance, status=dg.DagsterRunStatus.NOT_STARTED)
    load(instance, GOOD, whole=True)
    assert left_behind(instance, JOB, TABLES) == {BAD: why}
    load(instance, BAD, whole=False)
    assert left_behind(instance, JOB, TABLES) == {}
    ran(instance, begun=True)
    ran(instance, {}, status=dg.DagsterRunStatus.SUCCESS)
    assert left_behind(instance, JOB, TABLES) == {}


def test_a_run_that_is_loading_leaves_nothing_behind_unless_nobody_else_writes(instance: dg.DagsterInstance) -> None:
    """Marts that wait for it could wait for ever; who has its lock knows that it writes no more."""
    ran(instance, begun=True, status=dg.DagsterRunStatus.STARTED, signed=True)
    assert left_behind(instance, JOB, TABLES) == {}
    assert left_behind(instance, JOB, TABLES, alone=True).keys() == {GOOD, BAD}


def test_what_the_worker_has_failed_to_load_is_behind_until_its_next_load(instance: dg.DagsterInstance) -> None:
    load(instance, RAW, GOOD, whole=True)
    load(instance, RAW, whole=False, behind=("parsed.bad",))
    assert left_behind(instance, JOB, TABLES) == {BAD: f"parsed.bad has failed in the worker's last load of {JOB}"}
    load(instance, RAW, whole=True)
    assert left_behind(instance, JOB, TABLES) == {}
    load(instance, RAW, BAD, whole=False, behind=("parsed.bad",))
    assert left_behind(instance, JOB, TABLES).keys() == {BAD}, "it has got rows, and lacks others"


def test_a_clock_that_was_ahead_has_not_the_last_word(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left behind within the next hour was not: marts were built of one half of a load."""
    now = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: now() + 3600)
        load(instance, GOOD, BAD, whole=True)
    load(instance, RAW, whole=False, behind=("parsed.bad",))
    assert left_behind(instance, JOB, TABLES).keys() == {BAD}
    load(instance, GOOD, BAD, whole=True)
    assert left_behind(instance, JOB, TABLES) == {}
    ran(instance, {"parsed.bad": 1})
    assert left_behind(instance, JOB, TABLES).keys() == {BAD}


def test_what_a_run_from_the_asset_graph_was_to_load_and_has_not_is_behind(instance: dg.DagsterInstance) -> None:
    """It is of no load's job: what it had left was behind for nobody, and nothing came to load it."""
    ran(instance, {}, status=dg.DagsterRunStatus.SUCCESS)
    only = frozenset([RAW, GOOD, BAD, dg.AssetKey(["parsed", "other"])])
    ran(instance, only=only, job=FROM_THE_GRAPH)
    assert left_behind(instance, JOB, TABLES) == {}, "it did not come to the tables"
    ran(instance, begun=True, only=only, job=FROM_THE_GRAPH, status=dg.DagsterRunStatus.STARTED, signed=True)
    assert left_behind(instance, JOB, TABLES) == {}
    assert left_behind(instance, JOB, TABLES, alone=True).keys() == {GOOD, BAD}
    ran(instance, begun=True, only=only, job=FROM_THE_GRAPH, status=dg.DagsterRunStatus.SUCCESS)
    failed = ran(instance, {}, begun=True, only=only, job=FROM_THE_GRAPH)
    why = f"run {failed} of the asset graph began to load it and has told no end"
    assert left_behind(instance, JOB, TABLES) == {GOOD: why, BAD: why}, "another step has told its end, if any"
    load(instance, GOOD, whole=False)
    assert left_behind(instance, JOB, TABLES) == {BAD: why}
    load(instance, BAD, whole=False)
    assert left_behind(instance, JOB, TABLES) == {}


def test_what_a_killed_run_has_told_to_be_loaded_is_not_behind(instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(specs=[dg.AssetSpec(GOOD), dg.AssetSpec(BAD)], can_subset=True)
    def tables(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        context.instance.add_run_tags(context.run.run_id, {tags.BEGUN: tags.pack_begun(context.run.run_id, NOW)})
        yield dg.MaterializeResult(GOOD)
        raise RuntimeError("killed")

    for job in (JOB, FROM_THE_GRAPH):
        made = dg.Definitions([tables], jobs=[dg.define_asset_job(JOB)]).get_repository_def().get_job(job)
        subset = made.get_subset(asset_selection={GOOD, BAD}) if job != JOB else made
        assert not subset.execute_in_process(instance=instance, raise_on_error=False).success
        found = find_behind(instance, JOB, TABLES, runs_from_the_graph(instance))
        assert found.keys() == {BAD} and not found[BAD].is_retried
        load(instance, BAD, whole=False)
