"""The server's side of a set-up: version, settings, free slots and senders, and who keeps a new slot waiting."""

from collections.abc import Iterator
from functools import partial

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.connection import MAY_REPLICATE, connect_source, standbys_away
from ingestion.sources.postgres.points.blockers import old_transactions
from ingestion.sources.postgres.setup.managed import provider_of, token_of
from ingestion.sources.postgres.setup.standby import standby_findings
from lakehouse.declarations import Source
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.sql import ident
from lakehouse.text.urls import parse_url

OLDEST = 150_000
NEWEST_TRIED = 18
SENDERS = 2  # the live stream, and the one that makes the points of loads and comparisons
OLD_SECONDS = 60

_SERVER = f"""
SELECT current_setting('wal_level'), pg_is_in_recovery(),
  current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
  current_setting('max_wal_senders')::int,
  (SELECT count(*) FROM pg_stat_replication r WHERE r.pid IS DISTINCT FROM
    (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %(slot)s)),
  ({MAY_REPLICATE}),
  EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)
"""


_UNSYNCHRONIZED = """
SELECT string_agg(slot_name, ', ') FROM pg_replication_slots
WHERE slot_type = 'physical' AND active AND current_setting('synchronized_standby_slots', true) = ''
HAVING count(*) > 0
"""
_SYNCHRONIZE = (
    "name the slot in synchronized_standby_slots, and on the standby set sync_replication_slots = on, "
    "hot_standby_feedback = on and a dbname in primary_conninfo"
)


def server_findings(
    connection: SourceConnection, primary: SourceConnection, settings: Settings, source: Source
) -> Iterator[Finding]:
    """What of the server, or of the run-time role, is in the way; `primary` is the server itself or a standby's."""
    finding = partial(Finding, source.name, None)
    configured = settings.source(source.name)
    role = ident(parse_url(configured.url.get_secret_value()).user)
    row = connection.execute(_SERVER, {"slot": configured.slot or f"lakehouse_{source.name}"}).fetchone()
    assert row is not None
    level, standby, max_slots, slots, max_senders, senders, replicates, has_slot = row
    yield from _tokens(finding, configured)
    version, provider = connection.info.server_version, provider_of(connection)
    if version < OLDEST:
        yield finding("version", "in the way", f"it is Postgres {version // 10_000}", "upgrade it to 15 or newer")
    elif version // 10_000 > NEWEST_TRIED:
        says = f"it is Postgres {version // 10_000}, which this release has not been tried with"
        yield finding("version", "warning", says, f"{NEWEST_TRIED} is the newest that has been")
    if primary is not connection:
        yield from standby_findings(finding, connection, primary, settings, source.name)
    elif standby:
        remedy = "correct the URL to the primary, or name that in primary_url as well (Postgres 16 and newer)"
        yield finding("standby", "in the way", "it is a standby in recovery", remedy)
    if level != "logical":
        yield finding("wal_level", "in the way", f"wal_level is {level}, not logical", provider.decoding)
    if not replicates:
        yield finding("rights", "in the way", f"role {role} may not replicate", provider.right.format(role=role))
    if level == "logical" and replicates:
        yield from _stream(finding, settings, source.name)
    if standby or primary is not connection:
        pass  # such a server holds nothing back, and synchronizes no slot of its own
    elif away := standbys_away(connection):
        says = f"it sends nothing until its standby is back: nobody reads slot {away}"
        yield finding("standby", "in the way", says, "start it, or take it out of synchronized_standby_slots")
    elif found := connection.execute(_UNSYNCHRONIZED).fetchone():
        says = f"after a failover to the standby of slot {found[0]}, the lake may have changes that it lacks"
        yield finding("failover", "warning", says, _SYNCHRONIZE)
    yield from _room(finding, "max_replication_slots", max_slots, slots, 1 if has_slot else 2, "slots")
    yield from _room(finding, "max_wal_senders", max_senders, senders, SENDERS, "senders")
    for blocker in old_transactions(primary, OLD_SECONDS):
        yield finding(
            "old transaction", "warning", "a new slot, and so the load of a table, has to wait for it", blocker
        )


def _tokens(finding: "partial[Finding]", configured: SourceSettings) -> Iterator[Finding]:
    """The follower connects again for as long as it runs."""
    for name, url in (("url", configured.url), ("primary_url", configured.primary_url)):
        if url is not None and (whose := token_of(parse_url(url.get_secret_value()).password)):
            remedy = f"give the role a password of its own, and keep it in a secret file; then set it in {name}"
            yield finding("password", "warning", f"the password in {name} is a token {whose}", remedy)


def _stream(finding: "partial[Finding]", settings: Settings, source: str) -> Iterator[Finding]:
    """A pooler passes queries on, but no replication connection."""
    try:
        connect_source(settings, source, replication=True).close()
    except Unreachable as error:
        says = f"it refuses replication connections ({str(error).partition(' (')[2].rpartition('): ')[0]})"
        yield finding("stream", "in the way", says, "give the address of the server itself, not that of a pooler")


def _room(
    finding: "partial[Finding]", setting: str, there: int, used: int, needed: int, what: str
) -> Iterator[Finding]:
    if there - used < needed:
        says = f"{max(0, there - used)} of {there} replication {what} are free, and {needed} are needed"
        remedy = f"raise {setting} to {used + needed} or more and restart Postgres, or drop what is not used any more"
        yield finding(setting, "in the way", says, remedy)
