"""`python -m orchestration.daemon`: runs Dagster's daemon with connections that it keeps.

`dagster-daemon run` connects for each of the questions that it asks all day, and an idle one spent a third of its time
on that.
"""

import argparse
import os
from contextlib import closing, suppress
from typing import Any

import dagster as dg
import psycopg2
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon.controller import daemon_controller_from_instance
from dagster._utils.interrupts import capture_interrupts
from sqlalchemy import Engine, Pool, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DisconnectionError

from lakehouse.settings import load_settings

NO_TIMEOUT, RECYCLE_SECONDS, OVERFLOW = 0, 3_600, 20  # a daemon's statement may take as long as it does
SILENT_MILLISECONDS = 10_000  # after which a server that acknowledges nothing is gone


def main() -> None:
    """Runs until interrupted."""
    settings = load_settings()
    parser = argparse.ArgumentParser(prog="python -m orchestration.daemon", description=__doc__)
    parser.add_argument("-w", "--workspace", default=str(settings.project_dir / "workspace.yaml"))
    target = WorkspaceFileTarget([parser.parse_args().workspace])
    os.environ.setdefault("DAGSTER_HOME", str(settings.dagster_home))
    event.listen(Engine, "do_connect", _notice_silence)
    event.listen(Pool, "checkout", _check)
    with suppress(KeyboardInterrupt), capture_interrupts(), dg.DagsterInstance.get() as instance:
        instance.optimize_for_webserver(NO_TIMEOUT, RECYCLE_SECONDS, OVERFLOW)
        with daemon_controller_from_instance(instance, target, code_server_log_level="warning") as controller:
            controller.check_daemon_loop()


def _notice_silence(dialect: Dialect, record: Any, arguments: Any, options: dict[str, Any]) -> None:
    """A kept connection to a server that has vanished would block its thread for a quarter of an hour."""
    if dialect.name == "postgresql":
        options.setdefault("tcp_user_timeout", SILENT_MILLISECONDS)


def _check(connection: Any, record: Any, proxy: Any) -> None:
    """Has the pool connect anew where the server was restarted: a run that is made by a connection and enqueued by
    another, which fails, would never be launched."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error


if __name__ == "__main__":
    main()
