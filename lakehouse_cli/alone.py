"""One `lakehouse dev` for a home, and nothing that takes its servers or its storage away meanwhile."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.embedded import is_own_catalog
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.worker_sessions import refuse_worker
from lakehouse.settings import Settings


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Two daemons on one instance would launch everything twice."""
    path = settings.home / "run" / "dev.lock"
    private_dir(path.parent)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LakehouseError(f"`lakehouse dev` runs for {settings.home}: stop it, then run this again") from None
        yield


@contextmanager
def servers_unused(settings: Settings) -> Iterator[None]:
    """For what stops the servers: raises LakehouseError while `lakehouse dev`, a follower or a worker needs them."""
    if not (settings.home / "run").exists():  # a home that is gone is not made again
        yield
        return
    with alone(settings):
        if is_own_catalog(settings):
            _refuse_users(settings)
        yield


def _refuse_users(settings: Settings) -> None:
    """A catalog that does not answer, or is of an earlier release, knows of nobody."""
    from ingestion.state.lease import refuse_living_writers

    try:
        with connect_catalog(settings) as states:
            refuse_living_writers(states)
        refuse_worker(settings)
    except (Unreachable, psycopg.Error):
        return
