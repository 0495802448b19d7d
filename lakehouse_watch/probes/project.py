"""The project itself: while it cannot be read, nobody knows which rows are to be loaded, nor which runs still count."""

from __future__ import annotations

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import NotParsed, check_readable
from lakehouse_watch.probes.reading import Reading

EDITED_SECONDS = 20.0  # somebody may be at it
PARSED_SECONDS = 180.0  # in which dbt parses a large one


def read_project(settings: Settings) -> Reading:
    """Whether it can be read, for all looks that need it; they say nothing of it themselves."""
    try:
        check_readable(settings)
    except NotParsed as error:
        remedy = "see what the watch logs, and that it may write to its home"
        return Reading((_unreadable(error, remedy, PARSED_SECONDS),))
    except LakehouseError as error:
        return Reading((_unreadable(error, "correct it: what was declared before holds meanwhile", EDITED_SECONDS),))
    return Reading()


def _unreadable(error: LakehouseError, remedy: str, patience: float) -> Occasion:
    return Occasion("unreadable/project", f"the project cannot be read: {error}", remedy, patience=patience)
