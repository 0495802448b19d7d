"""The lock of one table, in a real catalog database."""

import pytest
from pgoutput_record import scratch_database
from pydantic import SecretStr

from lakehouse.servers.table_locks import locked
from lakehouse.settings import Settings


@pytest.mark.stack
def test_who_asks_next_never_waits_for_one_that_has_ended(cluster: str) -> None:
    """The server may learn of a connection's end after the next has asked: an action was then skipped."""
    with scratch_database(cluster) as url:
        settings = Settings(catalog_url=SecretStr(url))
        for _ in range(500):
            with locked(settings, ("raw_shop", "orders"), "maintenance"):
                pass
