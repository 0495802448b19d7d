"""Messages that a target does not take, such as a webhook that was revoked: the others tell of it, and the page."""

from __future__ import annotations

from typing import LiteralString

from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.reading import Reading

WAITS_SECONDS = 1800.0  # for which a target may be down
SENT_SECONDS = 120.0  # in which a watch that was down itself sends what has waited for it
_WAITING: LiteralString = """SELECT target, count(*),
 extract(epoch FROM clock_timestamp() - min((message ->> 'at')::timestamptz))::float8
 FROM lakehouse.messages GROUP BY target ORDER BY target"""


def read_messages(settings: Settings) -> Reading:
    """The targets for which a message has waited for too long."""
    with connect_catalog(settings) as connection:
        waiting = connection.execute(_WAITING).fetchall()
    return Reading(
        tuple(
            Occasion(
                f"undelivered/{target}/waiting",
                f"{target} has taken no message for {seconds / 60:,.0f} minutes: {count:,} wait",
                "see in the log of `lakehouse watch` why, and correct the target; they are sent then, in order",
                patience=SENT_SECONDS,
            )
            for target, count, seconds in waiting
            if seconds > WAITS_SECONDS
        )
    )
