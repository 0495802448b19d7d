"""Set-up of a source: what its owner runs once, and what has to be right there before that.

Nothing here may make a statement of the source's application fail: a published table that has no replica identity
refuses its every UPDATE and DELETE, so such a table is not published.
"""

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.setup.check import check_source, unpublishable
from ingestion.sources.postgres.setup.physical import Server, advice, may_copy_cluster, once, server_of
from ingestion.sources.postgres.setup.prepare import Unfit, prepare
from ingestion.sources.postgres.setup.removal import (
    Kept,
    drop_slot,
    forget_slot,
    had_slot,
    kept,
    named_of,
    relations_met,
    run_as_owner,
    slot_of,
)
from ingestion.sources.postgres.setup.statements import Existing, existing, setup_statements

__all__ = [
    "Existing", "Finding", "Kept", "Server", "Unfit", "advice", "check_source", "drop_slot", "existing", "forget_slot",
    "had_slot", "kept", "may_copy_cluster", "named_of", "once", "prepare", "relations_met", "run_as_owner", "server_of",
    "setup_statements", "slot_of", "unpublishable",
]  # fmt: skip
