"""The history of a job, read from Dagster's run storage. Sensors keep no other state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import dagster as dg

from orchestration.runs import tags
from orchestration.runs.dependencies import downstream, name_of, named
from orchestration.runs.processes.workers import UNFINISHED, fail_orphaned_runs
from orchestration.runs.state.load_state import LoadState, unpack_state

FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
RESUMED = "dagster/is_resume_retry"  # a tag of Dagster's
RECENT = 50
COUNTED = 8  # of the failures in a row; with more the backoff is no longer


@dataclass(frozen=True)
class PastRun:
    """One run of a job, or a load by the worker, which has not `ingested`, with the number of its `event`."""

    run_id: str
    status: str
    trigger: str | None
    snapshots: dict[str, int]
    created_at: datetime
    ended_at: datetime | None
    end_state: LoadState = field(default_factory=LoadState)
    code: str | None = None
    failed_in_step: bool = True
    ingested: bool = True
    event: int = 0

    @property
    def short_id(self) -> str:
        """The id as the UI shows it."""
        return self.run_id[:8]


@dataclass(frozen=True)
class JobHistory:
    """The last load of a job, the failures since, and the unfinished runs (newest first).

    A run counts as a load if it recorded which tables it did not load.
    """

    last_load: PastRun | None = None
    failures: tuple[PastRun, ...] = ()
    unfinished: tuple[PastRun, ...] = ()

    @property
    def state(self) -> LoadState:
        """The load state for the next run."""
        return replace(self.last_load.end_state, loaded_at=self.last_load.created_at) if self.last_load else LoadState()


def read_history(instance: dg.DagsterInstance, job: str, whole: dg.JobDefinition | None) -> JobHistory:
    """Reads the history of a job. A run of a subset is a load if every table it left out was held back.

    Orphaned runs of any job are failed first.
    """
    fail_orphaned_runs(instance)
    load, failures = _last_load(instance, job, whole)
    return JobHistory(
        last_load=_past(load, whole) if load else None,
        failures=tuple(_failure(instance, record) for record in failures[:COUNTED]),
        unfinished=tuple(map(_past, _runs(instance, job, UNFINISHED))),
    )


def _failure(instance: dg.DagsterInstance, record: dg.RunRecord) -> PastRun:
    """The run, and whether its own work failed: else its process was killed, or it could not start."""
    steps = instance.get_run_stats(record.dagster_run.run_id).steps_failed
    return replace(_past(record), failed_in_step=bool(steps))


def _last_load(
    instance: dg.DagsterInstance, job: str, whole: dg.JobDefinition | None
) -> tuple[dg.RunRecord | None, Sequence[dg.RunRecord]]:
    """The last run that recorded which tables it loaded, and the failures after it."""
    succeeded = _runs(instance, job, [dg.DagsterRunStatus.SUCCESS])
    success = next((record for record in succeeded if is_load(record.dagster_run, whole)), None)
    failures = _runs(instance, job, FAILED, success)
    for number, record in enumerate(failures):
        if end_state_of(record.dagster_run) is not None and is_load(record.dagster_run, whole):
            return record, failures[:number]
    return success, failures


def newest_event(instance: dg.DagsterInstance, run_id: str) -> int:
    """The number that the database has given to the newest event of a run; 0 if it has none."""
    records = instance.get_records_for_run(run_id, limit=1, ascending=False).records
    return records[0].storage_id if records else 0


def whole_job(repository: dg.RepositoryDefinition | None, job: str) -> dg.JobDefinition | None:
    """The job with all its assets, from the repository."""
    return repository.get_job(job) if repository else None


def _runs(
    instance: dg.DagsterInstance, job: str, statuses: Iterable[dg.DagsterRunStatus], after: dg.RunRecord | None = None
) -> Sequence[dg.RunRecord]:
    filters = dg.RunsFilter(
        job_name=job, statuses=list(statuses), created_after=after.create_timestamp if after else None
    )
    return instance.get_run_records(filters=filters, limit=RECENT)


def is_load(run: dg.DagsterRun, whole: dg.JobDefinition | None) -> bool:
    """Whether the run selected all tables except those held back.

    A re-execution from failure counts. One of selected steps does not, although it names all assets too.
    """
    if whole is None:
        return True
    if run.op_selection or _left_out(run, whole):
        return False
    steps, resumed = run.step_keys_to_execute, run.tags.get(RESUMED) == "true"
    return steps is None or resumed or {node.name for node in whole.nodes} <= set(steps)


def _left_out(run: dg.DagsterRun, whole: dg.JobDefinition) -> frozenset[dg.AssetKey]:
    if not run.asset_selection:
        return frozenset()
    tables = set(whole.asset_layer.executable_asset_keys)
    state = end_state_of(run) or LoadState()
    held = downstream(whole.asset_layer.asset_graph, named(tables, state.tables))
    return frozenset(tables - run.asset_selection - held)


def end_state_of(run: dg.DagsterRun) -> LoadState | None:
    """The state that the run recorded at its end; None if its tag was copied or is the one from its launch."""
    state = unpack_state(tags.tag(run, tags.HELD))
    return state if state.by == run.run_id else None


def _past(record: dg.RunRecord, whole: dg.JobDefinition | None = None) -> PastRun:
    """The run; of its end state only the tables that the `whole` job still has."""
    run = record.dagster_run
    left = end_state_of(run) or LoadState()
    current = set(map(name_of, whole.asset_layer.executable_asset_keys)) if whole else set()
    return PastRun(
        run_id=run.run_id,
        status=run.status.value,
        trigger=tags.tag(run, tags.TRIGGER),
        snapshots=tags.unpack_snapshots(tags.tag(run, tags.SNAPSHOTS)),
        created_at=record.create_timestamp,
        ended_at=datetime.fromtimestamp(record.end_time, tz=UTC) if record.end_time else None,
        code=tags.tag(run, tags.CODE),
        end_state=replace(left, tables={name: held for name, held in left.tables.items() if name in current}),
    )
