"""Which tables a load has left behind the others of its source: what is made of them waits, whoever makes it.

A run of the load says so at its end. One that was killed while it loaded says nothing, nor do runs from the asset graph
count as the load's: what such a run was to make, and has not told of, may be behind. Of the worker's loads the last one
counts. What came later is known by the number of its event: a clock may have been ahead.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from orchestration.runs import tags
from orchestration.runs.dependencies import name_of
from orchestration.runs.processes.workers import UNFINISHED, is_orphan
from orchestration.runs.state.history import FAILED, RECENT, end_state_of, newest_event
from orchestration.runs.state.loaded import load_among

PAGE = 5  # of runs: the newest one mostly speaks of all tables
FROM_THE_GRAPH = "__ASSET_JOB"  # Dagster's job of runs that were started from the asset graph


@dataclass(frozen=True)
class Behind:
    """Why a table is behind, the run that left it, if it was one, and whether the job tries the table again itself."""

    why: str
    run: dg.DagsterRun | None = None
    is_retried: bool = True


def left_behind(
    instance: dg.DagsterInstance, job: str, tables: Collection[dg.AssetKey], alone: bool = False
) -> dict[dg.AssetKey, str]:
    """Those of a load job's tables that are not as new as its others, each with the reason.

    Whoever writes them `alone` knows that no run is still at it.
    """
    return {
        key: behind.why
        for key, behind in find_behind(instance, job, tables, runs_from_the_graph(instance), alone).items()
    }


def find_behind(
    instance: dg.DagsterInstance,
    job: str,
    tables: Collection[dg.AssetKey],
    from_the_graph: Sequence[dg.DagsterRun],
    alone: bool = False,
    is_last: bool = False,
) -> dict[dg.AssetKey, Behind]:
    """The same, with the runs that left them, given those from the asset graph.

    Whoever asks has made the job's last load, and nothing of it has failed, if `is_last`.
    """
    found = [*_by_runs(instance, job, tables, alone).items(), *_by_graph(from_the_graph, tables, alone)]
    if is_last and not found:
        return {}
    records = instance.get_asset_records(list(tables))
    made = {record.asset_entry.asset_key: record.asset_entry.last_materialization_record for record in records}
    ends = {run_id: newest_event(instance, run_id) for run_id in {b.run.run_id for _, b in found if b.run}}
    left = {key: behind for key, behind in found if not _is_made(behind, made.get(key), ends)}
    load = load_among(made.values(), job)
    for key in tables if load else ():
        event = made.get(key)
        if load and name_of(key) in load.end_state.tables and not (event and event.storage_id > load.event):
            left[key] = Behind(f"{name_of(key)} has failed in the worker's last load of {job}")
    return left


def runs_from_the_graph(instance: dg.DagsterInstance) -> Sequence[dg.DagsterRun]:
    """The newest runs from the asset graph that have not succeeded."""
    statuses = [*UNFINISHED, *FAILED]
    return instance.get_runs(dg.RunsFilter(job_name=FROM_THE_GRAPH, statuses=statuses), limit=PAGE)


def _is_made(behind: Behind, made: dg.EventLogRecord | None, ends: dict[str, int]) -> bool:
    """Whether the table was made since; a run that has told no end may have made it itself."""
    if made is None or behind.run is None:
        return False
    is_own = made.run_id == behind.run.run_id and not behind.is_retried
    return is_own or made.storage_id > ends[behind.run.run_id]


def _by_runs(
    instance: dg.DagsterInstance, job: str, tables: Collection[dg.AssetKey], alone: bool
) -> dict[dg.AssetKey, Behind]:
    """What the newest run that has come to each table says, where it is not that the table was loaded."""
    untold, found = set(tables), dict[dg.AssetKey, Behind]()
    for run in _newest_runs(instance, job):
        if not untold:
            break
        state, selected = end_state_of(run), untold.intersection(run.asset_selection or untold)
        if state is not None:
            named = {key: state.tables[name_of(key)] for key in untold if name_of(key) in state.tables}
            failed = {key: table.tries for key, table in named.items() if table.tries}
            for key, tries in failed.items():  # or an older run has, and this one has left it out
                told = found.get(key, Behind(f"{name_of(key)} has failed {tries} times in {job}"))
                found[key] = replace(told, run=run)
            untold -= selected | (named.keys() - failed.keys())
        elif _has_told_no_end(run, alone):
            found |= dict(_untold(run, job, selected))
            untold -= selected
    return found


def _by_graph(
    runs: Sequence[dg.DagsterRun], tables: Collection[dg.AssetKey], alone: bool
) -> Iterator[tuple[dg.AssetKey, Behind]]:
    """What runs from the asset graph were to load: what they record at the end of one step, another one overwrites."""
    for run in reversed(runs):
        if _has_told_no_end(run, alone):
            yield from _untold(run, "the asset graph", set(tables).intersection(run.asset_selection or tables))


def _has_told_no_end(run: dg.DagsterRun, alone: bool) -> bool:
    return tags.unpack_begun(run) is not None and (alone or run.is_finished or is_orphan(run))


def _untold(run: dg.DagsterRun, job: str, tables: Collection[dg.AssetKey]) -> Iterator[tuple[dg.AssetKey, Behind]]:
    behind = Behind(f"run {run.run_id[:8]} of {job} began to load it and has told no end", run, is_retried=False)
    yield from ((key, behind) for key in tables if not key.path[0].startswith("raw_"))


def _newest_runs(instance: dg.DagsterInstance, job: str) -> Iterator[dg.DagsterRun]:
    cursor = None
    for _ in range(RECENT // PAGE):
        runs = instance.get_runs(dg.RunsFilter(job_name=job), cursor=cursor, limit=PAGE)
        yield from runs
        if len(runs) < PAGE:
            return
        cursor = runs[-1].run_id
