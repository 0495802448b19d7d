"""What to do about a source that was never set up."""

from lakehouse.servers.database import SourceConnection
from lakehouse.servers.embedded import is_sample
from lakehouse.settings import Settings

_IS_EMPTY = (
    "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema'))"
)


def fill_sample(settings: Settings, connection: SourceConnection, source: str) -> str | None:
    """The commands that fill an empty sample database; None for any other database."""
    if is_sample(settings, source) and connection.execute(_IS_EMPTY).fetchone() == (True,):
        return f"`lakehouse samples {source}`, then `lakehouse prepare {source}`"
    return None
