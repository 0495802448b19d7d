"""Second catalogs that are kept up to date: one that stands still names files that maintenance deletes in the end."""

from __future__ import annotations

from lakehouse.metrics import sample
from lakehouse.servers.exports import Export, followed
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.reading import Reading

LEAST_PACE = 60.0  # seconds: on a shorter one an export may take some turns
TURNS = 2  # that may be missed; what lasts for one more is told


def read_exports(settings: Settings) -> Reading:
    """Which of them stand still; no word of one that was ended by itself."""
    found = followed(settings)
    return Reading(
        tuple(occasion for export in found if (occasion := judge(export)) is not None),
        tuple(
            sample("lakehouse_last_export_timestamp_seconds", export.done_at.timestamp(), target=export.target)
            for export in found
            if export.done_at is not None
        ),
    )


def judge(export: Export) -> Occasion | None:
    """What is to be told of one, if anything is."""
    pace = max(export.every_seconds, LEAST_PACE)
    if export.stale_seconds <= TURNS * pace:
        return None
    minutes = export.stale_seconds / 60
    since = f"is as of {minutes:,.0f} minutes ago" if export.done_at else "was never brought up to date"
    if export.tried_seconds > TURNS * pace:
        why = "`lakehouse export --follow` was killed, lost its machine or hangs"
        to_do = "see its log, end it if it hangs, and start it again; if it is not wanted, end it by Ctrl-C"
    else:
        why = export.error or "exports begin there and do not come to an end"
        to_do = "see the log of `lakehouse export --follow`; until then engines read old states there, whose files go"
    text = f"the second catalog {export.target} {since}: {why}"
    return Occasion(f"export/{export.target}", text, to_do, patience=pace)
