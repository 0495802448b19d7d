"""Has the project parsed where it has changed: in a home of its own, as in a pod, nobody else does it for the watch.

Where others have done it, nothing is left to do. Why it does not parse is kept beside the manifest, for everybody.
"""

from __future__ import annotations

import logging
import threading
import time

from lakehouse.declarations.dbt.changes import changes_of
from lakehouse.declarations.dbt.manifest import ensure_manifest, why_unparsed
from lakehouse.settings import Settings, connected_now

log = logging.getLogger("lakehouse.watch")
AGAIN_SECONDS = 300.0  # what failed for want of memory or space is tried again, without a change


def keep_parsed(settings: Settings, stop: threading.Event) -> None:
    """Parses the project now, and whenever it has changed, until `stop` is set."""
    changes = changes_of(settings)
    while not stop.is_set():
        is_parsed = _parse(connected_now(settings))
        begun = time.monotonic()
        while not (changes.settled() or (not is_parsed and time.monotonic() - begun >= AGAIN_SECONDS)):
            if stop.wait(1.0):
                return


def _parse(settings: Settings) -> bool:
    try:
        ensure_manifest(settings)
    except Exception as error:  # whatever it is: else nothing was parsed again until the watch is started anew
        if why_unparsed(settings) is None:  # else an alert says it
            log.warning("the project cannot be parsed: %s", str(error) or type(error).__name__)
        return False
    return True
