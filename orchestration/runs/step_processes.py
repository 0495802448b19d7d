"""Each step of a run as a process of its own, started by the run's process.

The run's process signs the run (`workers`) and loads nothing but the definitions. A step's process carries the run's
id, so that it is ended with the run if the run's process is killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

from orchestration.runs.processes.workers import RUN_VARIABLE, sign

POLL_SECONDS = 0.5
LOOK_SECONDS = 5
STOP_SECONDS = 30.0


class StepProcesses(StepHandler):
    """Starts, watches and ends the processes of one run's steps."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def name(self) -> str:
        """As the run's events tell."""
        return "StepProcesses"

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        """Starts a step's process, with the arguments where other users cannot read them."""
        arguments = step_handler_context.execute_step_args
        given = {item["name"]: item["value"] for item in arguments.get_command_env()}
        self._processes[_step_of(step_handler_context)] = subprocess.Popen(
            [sys.executable, "-m", "dagster", "api", "execute_step"],
            env={**os.environ, **given, RUN_VARIABLE: arguments.run_id},
            stdin=subprocess.DEVNULL,
        )
        yield from ()

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        """Whether the process still runs, or ended as it should."""
        code = self._processes[_step_of(step_handler_context)].poll()
        if code:
            return CheckStepHealthResult.unhealthy(f"its process ended with status {code}")
        return CheckStepHealthResult.healthy()

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        """Interrupts the process, as the run's own is interrupted, and waits for it."""
        process = self._processes[_step_of(step_handler_context)]
        process.send_signal(signal.SIGINT)
        _await_end(process)
        yield from ()

    def wait(self) -> None:
        """A step that has told its end takes a moment to go, and may be releasing locks."""
        for process in self._processes.values():
            _await_end(process)


def execute_in_processes(
    plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan, retries: RetryMode
) -> Iterator[dg.DagsterEvent]:
    """Runs the plan and yields its events."""
    sign(plan_context.instance, plan_context.run_id)
    steps = StepProcesses()
    executor = StepDelegatingExecutor(
        steps, retries, sleep_seconds=POLL_SECONDS, check_step_health_interval_seconds=LOOK_SECONDS
    )
    try:
        yield from executor.execute(plan_context, execution_plan)
    finally:
        steps.wait()


def is_step_of(run_id: str) -> bool:
    """Whether this process is a step of the run, which another process has signed."""
    return os.environ.get(RUN_VARIABLE) == run_id


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Kills one that does not end in time."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _step_of(context: StepHandlerContext) -> str:
    (step,) = context.execute_step_args.step_keys_to_execute or ()
    return step
