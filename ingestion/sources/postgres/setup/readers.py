"""Who else may read a publication: slots of other lakes and tools, which would miss changes without it."""

import re
from collections.abc import Collection

from ingestion.sources.postgres.standby import primary_of
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings

# A role sees what sessions of its own run, and of others that they run something.
_SLOTS = """
SELECT s.slot_name, a.query FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.database = current_database() AND s.plugin = 'pgoutput' ORDER BY 1
"""
_STREAMS = re.compile(r"""START_REPLICATION\b.*\bpublication_names"?\s+'((?:[^']|'')*)'""", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^\s,"]+))\s*(?:,|$)')


def possible_readers(
    settings: Settings, source: str, connection: SourceConnection, publication: str, own: Collection[str | None]
) -> list[str]:
    """The slots of the source's database by which others may read the publication; `own` are this lake's slots.

    A slot keeps nothing of what it is read for: only one that is streamed at this moment, of other publications, is
    known to have nothing to do with this one. Of a standby, slots of its primary count as well.
    """
    found = {slot for slot in _may_read(connection, publication) if slot not in own}
    with primary_of(settings, source, connection) as primary:
        if primary is not connection:
            found.update(_may_read(primary, publication))
    return sorted(found)


def streamed(command: str) -> set[str] | None:
    """The publications that a walsender streams, by its command; None where that does not tell. Pure."""
    if (given := _STREAMS.search(command)) is None:
        return None
    text, names, at = given[1].replace("''", "'"), set[str](), 0
    while at < len(text):
        if (name := _NAME.match(text, at)) is None:
            return None
        names.add(name[2] if name[1] is None else name[1].replace('""', '"'))
        at = name.end()
    return names


def _may_read(connection: SourceConnection, publication: str) -> list[str]:
    rows, named = connection.execute(_SLOTS).fetchall(), publication.casefold()  # without quotes, case is the server's
    return [
        slot
        for slot, command in rows
        if (names := streamed(command or "")) is None or named in {name.casefold() for name in names}
    ]
