"""What has to be right where a standby is read in place of its primary."""

from collections.abc import Callable, Iterator

from ingestion.sources.findings import Finding, in_two
from ingestion.sources.postgres.standby import check_standby, is_in_recovery
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.sql import ident

OLDEST_DECODING_STANDBY = 160_000
_STANDBY = "SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name')"
_PRIMARY = """
SELECT current_setting('wal_level'), current_user,
  (SELECT has_function_privilege(oid, 'EXECUTE') FROM pg_proc WHERE proname = 'pg_log_standby_snapshot')
"""


def standby_findings(
    finding: Callable[..., Finding], connection: SourceConnection, primary: SourceConnection, settings: Settings,
    source: str,
) -> Iterator[Finding]:  # fmt: skip
    """What of the standby, or of its primary, is in the way."""
    version = connection.info.server_version
    if version < OLDEST_DECODING_STANDBY:
        says = f"it is a standby of Postgres {version // 10_000}, which cannot decode"
        yield finding("standby", "in the way", says, "upgrade both to 16 or newer, or read the primary")
        return
    try:
        check_standby(settings, source, connection, primary)
    except LakehouseError as error:
        yield finding("standby", "in the way", *in_two(str(error).removeprefix(f"source {source!r}: ")))
        return
    if is_in_recovery(connection):
        yield from _of_standby(finding, connection)
        yield from _of_primary(finding, primary)
    else:
        says = "it was promoted, and is a primary itself"
        yield finding("standby", "warning", says, "correct url to a standby of it, or leave primary_url out")


def _of_standby(finding: Callable[..., Finding], standby: SourceConnection) -> Iterator[Finding]:
    row = standby.execute(_STANDBY).fetchone()
    assert row is not None
    feedback, slot = row
    if feedback != "on":
        says = "hot_standby_feedback is off: its primary removes rows that the slot needs, which invalidates the slot"
        remedy = "run ALTER SYSTEM SET hot_standby_feedback = on on the standby, and reload it"
        yield finding("hot_standby_feedback", "in the way", says, remedy)
    if not slot:
        says = "it streams without a slot: while it is away its primary removes rows that the lake's slot needs"
        remedy = "make a physical slot on the primary, and name it in primary_slot_name of the standby"
        yield finding("primary_slot_name", "warning", says, remedy)


def _of_primary(finding: Callable[..., Finding], primary: SourceConnection) -> Iterator[Finding]:
    row = primary.execute(_PRIMARY).fetchone()
    assert row is not None
    level, role, may_ask = row  # the right is one of each database
    if level != "logical":
        says = f"wal_level of its primary is {level}, not logical"
        remedy = "run ALTER SYSTEM SET wal_level = logical on the primary, and restart it"
        yield finding("wal_level", "in the way", says, remedy)
    if not may_ask:
        says = f"role {ident(role)} may not call pg_log_standby_snapshot() on the primary: a load waits 15 s longer"
        grant = f"GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO {ident(role)}"
        remedy = f"run {grant} in this database of the primary as a superuser"
        yield finding("pg_log_standby_snapshot", "warning", says, remedy)
