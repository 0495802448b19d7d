"""An in-process executor whose steps wait properly for pool slots.

Dagster's in-process executor polls without sleeping, ignores signals while it waits, and relies on the daemon to free
the slots of killed runs. This one sleeps, reports who holds the pool, heeds signals, and needs no daemon.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.context.system import PlanExecutionContext, PlanOrchestrationContext
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.execute_plan import inner_plan_execution_iterator
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._utils.interrupts import pop_captured_interrupt

from lakehouse.settings import load_settings
from orchestration.runs import tags
from orchestration.runs.incremental import as_incremental_load
from orchestration.runs.processes.workers import FINISHED, TAG, fail_orphaned_runs, free_pools, is_alive
from orchestration.runs.step_processes import execute_in_processes

WAITING = "waiting for pool"
POLL_SECONDS = 0.5  # longest delay before a signal is noticed
HOLDER_CHECK_SECONDS = 5.0
RELEASE_DELAY = timedelta(seconds=30)  # a finished run's process may still be busy; as run_monitoring in dagster.yaml


class PoolQueue(InstanceConcurrencyContext):
    """The claims of one run on pool slots."""

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        super().__init__(instance, run)
        self._run = run
        self._reported: dict[str, str] = {}
        self._checked_at: dict[str, float] = {}

    def __exit__(self, *raised: Any) -> None:
        """Frees all claims: every step of the run was in this process."""
        super().__exit__(*raised)
        for step_key in sorted(self._claims):
            self.free_step(step_key)

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        """Whether the step now has a slot; raises DagsterExecutionInterruptedError after a signal."""
        if super().claim(concurrency_key, step_key, step_priority):
            return True
        if pop_captured_interrupt():
            raise dg.DagsterExecutionInterruptedError(f"interrupted while {WAITING} {concurrency_key}")
        if time.monotonic() - self._checked_at.get(step_key, -HOLDER_CHECK_SECONDS) >= HOLDER_CHECK_SECONDS:
            self._check_holders(concurrency_key, step_key)
            self._checked_at[step_key] = time.monotonic()
        return False

    def interval_to_next_pending_claim_check(self) -> float:
        """Seconds to sleep; Dagster's implementation never returns more than zero."""
        now = time.time()
        left = [self._pending_timeouts.get(step, now) - now for step in self._pending_claims]
        return min([POLL_SECONDS, *(max(seconds, 0.01) for seconds in left)]) if left else 0.0

    def _check_holders(self, pool: str, step_key: str) -> None:
        if free_abandoned_slots(self._instance, pool):
            self._pending_timeouts[step_key] = 0.0
        holders = describe_holders(self._instance, pool, self._run_id)
        if holders and self._reported.get(step_key) != holders:
            self._instance.report_engine_event(f"{WAITING} {pool}, held by {holders}", self._run)
            self._reported[step_key] = holders


def free_abandoned_slots(instance: dg.DagsterInstance, pool: str) -> bool:
    """Frees slots of runs that no longer work; a run whose process is or may be alive keeps its slot."""
    freed = bool(fail_orphaned_runs(instance))
    for run_id in _holders(instance, pool):
        record = instance.get_run_record_by_id(run_id)
        if record is not None and _is_abandoned(record):
            free_pools(instance, run_id)
            freed = True
    return freed


def describe_holders(instance: dg.DagsterInstance, pool: str, except_run: str) -> str:
    """`run 1a2b3c4d of load_retail (host:pid:start, STARTED)` for each other run that holds a slot."""
    runs = [instance.get_run_by_id(run_id) for run_id in _holders(instance, pool) if run_id != except_run]
    return ", ".join(
        f"run {run.run_id[:8]} of {run.job_name} ({tags.tag(run, TAG) or 'worker unknown'}, {run.status.value})"
        for run in runs
        if run is not None
    )


def _holders(instance: dg.DagsterInstance, pool: str) -> list[str]:
    if not instance.event_log_storage.supports_global_concurrency_limits:
        return []
    info = instance.event_log_storage.get_concurrency_info(pool)
    return sorted(info.active_run_ids | info.assigned_run_ids)


def _is_abandoned(record: dg.RunRecord) -> bool:
    run = record.dagster_run
    if run.status not in FINISHED or is_alive(run):
        return False
    ended = datetime.fromtimestamp(record.end_time, tz=UTC) if record.end_time else record.update_timestamp
    return datetime.now(UTC) - ended > RELEASE_DELAY


class PoolExecutor(dg.Executor):
    """Dagster's in-process executor with a PoolQueue; or a process per step, where the settings ask for that.

    `lakehouse run` has all steps in its own process: its jobs cannot be made again in another.
    """

    def __init__(self, retries: RetryMode) -> None:
        self._retries = retries

    @property
    def retries(self) -> RetryMode:
        """Whether failed steps are retried."""
        return self._retries

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Runs the plan and yields its events."""
        from orchestration.runs.pool_limits import follow_default_limit  # loading definitions needs no engine

        follow_default_limit()
        run = as_incremental_load(plan_context.instance, plan_context.dagster_run, plan_context.job)
        if load_settings().dagster.step_processes and isinstance(plan_context.job, ReconstructableJob):
            yield from execute_in_processes(plan_context, execution_plan, self._retries)
            return
        manager = PlanExecutionContextManager(
            job=plan_context.job,
            retry_mode=plan_context.retry_mode,
            execution_plan=execution_plan,
            run_config=plan_context.run_config,
            dagster_run=run,
            instance=plan_context.instance,
            raise_on_error=plan_context.raise_on_error,
            output_capture=plan_context.output_capture,
        )
        yield from ExecuteRunWithPlanIterable(execution_plan, _steps, manager)


def _steps(job_context: PlanExecutionContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
    with PoolQueue(job_context.instance, job_context.dagster_run) as queue:
        yield from inner_plan_execution_iterator(job_context, execution_plan, queue)


@dg.executor(name="in_process", config_schema={"retries": get_retries_config()})
def pool_executor(context: dg.InitExecutorContext) -> PoolExecutor:
    """Accepts only `retries` of the configuration of Dagster's `in_process` executor."""
    create = dg.in_process_executor.executor_creation_fn
    assert create is not None
    return PoolExecutor(create(context).retries)
