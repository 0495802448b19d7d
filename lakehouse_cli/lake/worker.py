"""`lakehouse worker`: the warm worker in the foreground."""

import logging
import signal
import sys
import threading

from lakehouse.settings import load_settings
from lakehouse.text.shown import LineFormatter


def worker() -> None:
    """Load what each cut brings into parsed, vault and marts within seconds, until stopped; Dagster shows it."""
    from lakehouse_stack.home.instance import ensure_instance
    from orchestration.worker.loop import work

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("orchestration").addHandler(handler)
    logging.getLogger("orchestration").setLevel(logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    settings = load_settings()
    ensure_instance(settings)
    work(settings, stop)
