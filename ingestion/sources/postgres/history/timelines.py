"""Whether a cluster on a newer timeline went on from the one that the lake was read from, as a promoted standby does.

A promotion begins a timeline, and writes down where each earlier one ended. What the lake has read below that LSN is
the past of both. What it has read beyond, the new primary never received: then going on would keep changes that no
longer exist. A primary with `synchronized_standby_slots` sends the lake nothing that its standby lacks.

The slot has to be one that Postgres synchronized (17 and newer): nothing kept catalog rows for one that lay still
meanwhile, such as that of a rewound primary, and it may misread what it shows. The lake's own slot on a standby that it
reads is another matter: Postgres invalidates it where rows of the catalog are gone.
"""

from ingestion.schema.positions import Lsn


def ended_at(history: str, timeline: int) -> Lsn | None:
    """Where a timeline ended, by the history file of a later one; None where it is no ancestor of that."""
    for line in history.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == str(timeline):
            return Lsn.parse(words[1])
    return None


def lost_by_promotion(history: str, timeline: int, reached: int) -> str | None:
    """Why the lake, read from `timeline` up to `reached`, cannot go on; None where it can."""
    end = ended_at(history, timeline)
    if end is None:
        return "it did not go on from that timeline"
    if end < reached:
        return f"it went on from {end.text}, without the changes up to {Lsn(reached).text} that the lake has"
    return None
