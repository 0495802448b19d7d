"""One `lakehouse dev` for a home, and nothing that takes its servers or its storage away meanwhile."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir
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
