"""`python -m orchestration.web`: runs Dagster's web server, and the page of the lake, behind the gate."""

import argparse
import os
import signal
from contextlib import suppress

import dagster as dg
import uvicorn
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.log import configure_loggers
from dagster_webserver.app import create_app_from_workspace_process_context

from lakehouse.settings import Settings, load_settings
from lakehouse_page.page import WithPage
from orchestration.connections import keep_connections
from orchestration.web.gate import Gate
from orchestration.web.login import allowed_hosts, ui_secret

STATEMENT_MILLISECONDS = 15_000  # the default of `dagster-webserver`
POLL_MILLISECONDS = 2_000


def main() -> None:
    """Serves until interrupted."""
    settings = load_settings()
    parser = argparse.ArgumentParser(prog="python -m orchestration.web", description=__doc__)
    parser.add_argument("--workspace", default=str(settings.project_dir / "workspace.yaml"))
    parser.add_argument("--host", default=settings.dagster.host)
    parser.add_argument("--port", type=int, default=settings.dagster.port)
    arguments = parser.parse_args()
    serve(settings, arguments.workspace, arguments.host, arguments.port)


def serve(settings: Settings, workspace: str, host: str, port: int) -> None:
    """Serves the UI of a workspace at this address."""
    os.environ.setdefault("DAGSTER_HOME", str(settings.dagster_home))
    configure_loggers()
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # as `dagster-webserver` ends
    with suppress(KeyboardInterrupt), dg.DagsterInstance.get() as instance:
        keep_connections(instance, STATEMENT_MILLISECONDS)
        with WorkspaceProcessContext(instance, WorkspaceFileTarget([workspace]), version=dg.__version__) as context:
            app = create_app_from_workspace_process_context(context, live_data_poll_rate=POLL_MILLISECONDS)
            gate = Gate(WithPage(app, settings), ui_secret(settings), allowed_hosts(settings))
            uvicorn.run(gate, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
