"""What is kept of how a table is described, as JSON beside its position.

Every cycle reads it several times for all tables of a source, and it hardly ever changes: of a thousand tables, making
objects of it took 0.3 s each time.
"""

import json
from threading import Lock
from typing import NamedTuple

from cachetools import LRUCache, cached
from psycopg.types.json import Jsonb

from ingestion.schema.facts import TableFacts, facts_from_json

CACHED_COLUMNS = 50_000  # some 50 MB


class Known(NamedTuple):
    """The fields of a table's position that are kept as JSON."""

    versions: tuple[TableFacts, ...] = ()
    fingerprint: str = ""
    unfollowed: int = 0
    resync_reason: str | None = None
    former: TableFacts | None = None

    @property
    def size(self) -> int:
        """What it takes to keep it in memory, in columns."""
        return 1 + sum(len(facts.columns) for facts in self.versions)


@cached(LRUCache(CACHED_COLUMNS, getsizeof=lambda known: known.size), lock=Lock())
def read(text: str) -> Known:
    """What was kept, by this release or an earlier one."""
    kept = json.loads(text)
    return Known(
        tuple(map(facts_from_json, kept.get("versions", [kept] if kept else []))),
        kept.get("fingerprint", ""),
        kept.get("unfollowed", 0),
        kept.get("resync_reason", kept.get("doubt")),  # a process of release 0.1 writes `doubt` alone
        facts_from_json(kept["former"]) if kept.get("former") else None,
    )


def written(known: Known) -> Jsonb:
    """What `read` reads back."""
    return Jsonb(
        {
            "fingerprint": known.fingerprint,
            "versions": [facts.to_json() for facts in known.versions],
            "unfollowed": known.unfollowed,
            "resync_reason": known.resync_reason,
            "doubt": known.resync_reason,  # for a process of release 0.1
            "former": known.former.to_json() if known.former else None,
        }
    )
