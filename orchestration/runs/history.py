"""What Dagster's run storage knows about a job: all the memory a sensor has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import RESUME_RETRY_TAG

from orchestration.runs import tags
from orchestration.runs.dependencies import downstream, name_of, named
from orchestration.runs.load_state import State, unpack
from orchestration.runs.workers import fail_orphaned_runs

FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES)
RECENT = 50


@dataclass(frozen=True)
class PastRun:
    """One run of a job."""

    run_id: str
    status: str
    trigger: str | None
    snapshots: dict[str, int]
    created_at: datetime
    ended_at: datetime | None
    left: State = field(default_factory=State)

    @property
    def short_id(self) -> str:
        """As the UI shows it."""
        return self.run_id[:8]


@dataclass(frozen=True)
class JobHistory:
    """The last run of a job that loaded its tables, but for those it `left`, and what came after it (newest first)."""

    last_load: PastRun | None = None
    failures: tuple[PastRun, ...] = ()
    unfinished: tuple[PastRun, ...] = ()

    @property
    def state(self) -> State:
        """What the next run goes by."""
        return replace(self.last_load.left, loaded_at=self.last_load.created_at) if self.last_load else State()


def read_history(instance: dg.DagsterInstance, job: str, whole: dg.JobDefinition | None) -> JobHistory:
    """A few queries by job name. A run of part of the `whole` job is a load if it held back what it left out.

    Runs whose process is gone, of any job, are marked failed on the way.
    """
    fail_orphaned_runs(instance)
    load, failures = _last_load(instance, job, whole)
    return JobHistory(
        last_load=_past(load, whole) if load else None,
        failures=tuple(map(_past, failures)),
        unfinished=tuple(map(_past, _runs(instance, job, UNFINISHED))),
    )


def read_state(instance: dg.DagsterInstance, whole: dg.JobDefinition) -> State:
    """What a job holds back now."""
    load, _ = _last_load(instance, whole.name, whole)
    return _past(load, whole).left if load else State()


def _last_load(
    instance: dg.DagsterInstance, job: str, whole: dg.JobDefinition | None
) -> tuple[dg.RunRecord | None, Sequence[dg.RunRecord]]:
    """The last run that came so far that it is known which tables it loaded, and the failures after it."""
    succeeded = _runs(instance, job, [dg.DagsterRunStatus.SUCCESS])
    success = next((record for record in succeeded if is_load(record.dagster_run, whole)), None)
    failures = _runs(instance, job, FAILED, success)
    for number, record in enumerate(failures):
        if left_by(record.dagster_run) is not None and is_load(record.dagster_run, whole):
            return record, failures[:number]
    return success, failures


def whole_job(repository: dg.RepositoryDefinition | None, job: str) -> dg.JobDefinition | None:
    """The job with all its assets, as the repository has it."""
    return repository.get_job(job) if repository else None


def _runs(
    instance: dg.DagsterInstance, job: str, statuses: Iterable[dg.DagsterRunStatus], after: dg.RunRecord | None = None
) -> Sequence[dg.RunRecord]:
    filters = dg.RunsFilter(
        job_name=job, statuses=list(statuses), created_after=after.create_timestamp if after else None
    )
    return instance.get_run_records(filters=filters, limit=RECENT)


def is_load(run: dg.DagsterRun, whole: dg.JobDefinition | None) -> bool:
    """Whether it was of all tables but those it held back.

    A repetition from the failed step on counts; one of chosen steps names all assets too, and does not.
    """
    if whole is None:
        return True
    if run.op_selection or _left_out(run, whole):
        return False
    steps, resumed = run.step_keys_to_execute, run.tags.get(RESUME_RETRY_TAG) == "true"
    return steps is None or resumed or {node.name for node in whole.nodes} <= set(steps)


def _left_out(run: dg.DagsterRun, whole: dg.JobDefinition) -> frozenset[dg.AssetKey]:
    if not run.asset_selection:
        return frozenset()
    tables = set(whole.asset_layer.executable_asset_keys)
    state = left_by(run) or State()
    held = downstream(whole.asset_layer.asset_graph, named(tables, state.tables))
    return frozenset(tables - run.asset_selection - held)


def left_by(run: dg.DagsterRun) -> State | None:
    """What the run itself has written down at its end; a tag that was copied, or is from its launch, is another's."""
    state = unpack(run.tags.get(tags.HELD))
    return state if state.by == run.run_id else None


def _past(record: dg.RunRecord, whole: dg.JobDefinition | None = None) -> PastRun:
    """The run; what it left of the `whole` job as that is now, whose tables may have come and gone."""
    run = record.dagster_run
    left = left_by(run) or State()
    there = set(map(name_of, whole.asset_layer.executable_asset_keys)) if whole else set()
    return PastRun(
        run_id=run.run_id,
        status=run.status.value,
        trigger=run.tags.get(tags.TRIGGER),
        snapshots=tags.unpack_snapshots(run.tags.get(tags.SNAPSHOTS)),
        created_at=record.create_timestamp,
        ended_at=datetime.fromtimestamp(record.end_time, tz=UTC) if record.end_time else None,
        left=replace(left, tables={name: held for name, held in left.tables.items() if name in there}),
    )
