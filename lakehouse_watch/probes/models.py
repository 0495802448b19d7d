"""Models that are declared wrongly and loaded all the same, only slower: nobody would look for the reason."""

from __future__ import annotations

from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_wrongly
from lakehouse_watch.probes.reading import Reading

EDITED_SECONDS = 30.0  # somebody may be at it


def read_models(settings: Settings) -> Reading:
    """An occasion for each mart whose `built_by` is wrong, by the project as it was parsed last."""
    return Reading(
        tuple(
            Occasion(
                f"declaration/{name}", line, f"correct it; {name} is built whole meanwhile, which takes longer",
                patience=EDITED_SECONDS,
            )
            for name, line in declared_wrongly(settings)
        )
    )  # fmt: skip
