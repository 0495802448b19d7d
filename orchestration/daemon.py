"""`python -m orchestration.daemon`: runs Dagster's daemon, with connections that it keeps, and pools that change."""

import argparse
import os
from contextlib import suppress

import dagster as dg
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon.controller import daemon_controller_from_instance
from dagster._utils.interrupts import capture_interrupts

from lakehouse.settings import load_settings
from orchestration.connections import keep_connections
from orchestration.runs.pool_limits import follow_default_limit

NO_TIMEOUT = 0


def main() -> None:
    """Runs until interrupted."""
    settings = load_settings()
    parser = argparse.ArgumentParser(prog="python -m orchestration.daemon", description=__doc__)
    parser.add_argument("-w", "--workspace", default=str(settings.project_dir / "workspace.yaml"))
    target = WorkspaceFileTarget([parser.parse_args().workspace])
    os.environ.setdefault("DAGSTER_HOME", str(settings.dagster_home))
    with suppress(KeyboardInterrupt), capture_interrupts(), dg.DagsterInstance.get() as instance:
        keep_connections(instance, NO_TIMEOUT)
        follow_default_limit()
        with daemon_controller_from_instance(instance, target, code_server_log_level="warning") as controller:
            controller.check_daemon_loop()


if __name__ == "__main__":
    main()
