"""`lakehouse worker`: the warm worker in the foreground."""

import signal
import threading

from lakehouse.settings import load_settings
from lakehouse_cli.logs import log_to_stderr


def worker() -> None:
    """Load what each cut brings into parsed, vault and marts within seconds, until stopped; Dagster shows it."""
    from lakehouse_stack.home.instance import ensure_instance
    from orchestration.worker.loop import work

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    settings = load_settings()
    log_to_stderr(settings)
    ensure_instance(settings)
    work(settings, stop)
