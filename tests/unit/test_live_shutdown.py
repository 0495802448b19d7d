"""A source can be shut down while a stream of it is open."""

import threading
import time

import psycopg
import pytest

from ingestion.sources.base import LiveStreamLost
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.live import LiveStream
from tests.clusters import cluster

pytestmark = pytest.mark.stack


def test_a_source_shuts_down_while_it_is_followed() -> None:
    """A quiet source waited for ever: its walsender ends once all is confirmed, and of a signed position it never is.
    New sessions were refused meanwhile, the application's among them."""
    with cluster() as source:
        with psycopg.connect(source.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("CREATE PUBLICATION p FOR TABLE t")
            row = connection.execute("SELECT lsn - '0/0' FROM pg_create_logical_replication_slot('s', 'pgoutput')")
            [(begin,)] = row.fetchall()
            server = started_at(connection)  # type: ignore[arg-type]
        stream = LiveStream(f"{source.url()}?connect_timeout=10", "s", "p", int(begin), 1 << 20, server)
        try:
            stream.wait(1)
            stream.confirm(stream.position)
            ends = threading.Thread(target=source.stop, daemon=True)
            begun = time.monotonic()
            ends.start()
            ends.join(30)
            assert not ends.is_alive(), f"it has waited for {time.monotonic() - begun:.0f} s"
            with pytest.raises(LiveStreamLost, match="shutting down"):
                stream.wait(1)
        finally:
            stream.close()
        source.start()
