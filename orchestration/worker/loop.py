"""Keeps a worker going: sleeps until the next cut, and starts over when a server went away."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.exporter import served
from lakehouse.servers.outage import expected
from lakehouse.servers.presence import serve
from lakehouse.servers.worker_sessions import enter, leave
from orchestration.runs.processes.queries import session_name
from orchestration.worker.bell import Bell
from orchestration.worker.worker import Worker

if TYPE_CHECKING:
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
PAUSE_SECONDS = 5.0


def work(settings: "Settings", stop: Event) -> None:
    """Loads what each cut brings until `stop` is set."""
    entered = Event()  # until this process has been at work, the one before it may have been killed
    while not stop.is_set():
        try:
            _work_connected(settings, stop, entered)
        except Exception as error:
            text = expected(error)
            if text is None:
                raise
            log.error("%s; goes on in %.0f s", text.splitlines()[0], PAUSE_SECONDS)
            stop.wait(PAUSE_SECONDS)


def _work_connected(settings: "Settings", stop: Event, entered: Event) -> None:
    with (
        open_worker(settings, stop) as (worker, bell, connection),
        served(settings.metrics.host, settings.metrics.worker_port, worker.ready),
    ):
        ensure_state(connection)
        worker.read_project()  # one that begins anew and again because it does not parse is not there
        worker.take_jobs()  # first: what a living worker does not serve, a sensor launches a run of
        enter(connection, settings.catalog_name, is_restart=not entered.is_set())  # not of each try in an outage
        entered.set()
        while not stop.is_set():
            worker.load_what_is_due()
            if not bell.wait(0):
                bell.wait(worker.run_tests())
        leave(connection, settings.catalog_name)


@contextmanager
def open_worker(settings: "Settings", stop: Event) -> Iterator[tuple[Worker, Bell, "CatalogConnection"]]:
    """A worker, the bell that it yields to, and the session of the catalog database that announces what it serves."""
    from lakehouse.catalog.open import open_catalog

    with (
        dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance,
        closing(open_catalog(settings)) as catalog,
        closing(connect_catalog(settings)) as connection,
    ):
        bell, session = Bell(connection, stop), session_name(settings)
        serve(connection, settings.catalog_name, session)
        yield Worker(settings, instance, catalog, connection, bell, session), bell, connection
