"""What Dagster's run storage knows about a job: all the memory a sensor has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import RESUME_RETRY_TAG

from orchestration import tags
from orchestration.workers import bury_dead

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

    @property
    def short_id(self) -> str:
        """As the UI shows it."""
        return self.run_id[:8]


@dataclass(frozen=True)
class JobHistory:
    """The last success of a job, and what came after it (newest first)."""

    last_success: PastRun | None = None
    failures: tuple[PastRun, ...] = ()
    unfinished: tuple[PastRun, ...] = ()


def read_history(instance: dg.DagsterInstance, job: str, whole: dg.JobDefinition | None) -> JobHistory:
    """A few queries by job name. A run of part of the `whole` job is no success of it.

    Runs whose process is gone, of any job, are marked failed on the way.
    """
    bury_dead(instance)
    successes = _runs(instance, job, [dg.DagsterRunStatus.SUCCESS])
    success = next((_past(record) for record in successes if _is_whole(record.dagster_run, whole)), None)
    return JobHistory(
        last_success=success,
        failures=tuple(map(_past, _runs(instance, job, FAILED, success))),
        unfinished=tuple(map(_past, _runs(instance, job, UNFINISHED))),
    )


def whole_job(repository: dg.RepositoryDefinition | None, job: str) -> dg.JobDefinition | None:
    """The job with all its assets, as the repository has it."""
    return repository.get_job(job) if repository else None


def _runs(
    instance: dg.DagsterInstance, job: str, statuses: Iterable[dg.DagsterRunStatus], after: PastRun | None = None
) -> Sequence[dg.RunRecord]:
    filters = dg.RunsFilter(job_name=job, statuses=list(statuses), created_after=after.created_at if after else None)
    return instance.get_run_records(filters=filters, limit=RECENT)


def _is_whole(run: dg.DagsterRun, whole: dg.JobDefinition | None) -> bool:
    """A repetition from the failed step on counts; one of chosen steps names all assets too, and does not."""
    if whole is None:
        return True
    if run.op_selection or (run.asset_selection and set(whole.asset_layer.executable_asset_keys) - run.asset_selection):
        return False
    steps, resumed = run.step_keys_to_execute, run.tags.get(RESUME_RETRY_TAG) == "true"
    return steps is None or resumed or {node.name for node in whole.nodes} <= set(steps)


def _past(record: dg.RunRecord) -> PastRun:
    run = record.dagster_run
    return PastRun(
        run_id=run.run_id,
        status=run.status.value,
        trigger=run.tags.get(tags.TRIGGER),
        snapshots=tags.unpack_snapshots(run.tags.get(tags.SNAPSHOTS)),
        created_at=record.create_timestamp,
        ended_at=datetime.fromtimestamp(record.end_time, tz=UTC) if record.end_time else None,
    )
