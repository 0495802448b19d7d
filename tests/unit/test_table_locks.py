"""The lock of one table, in a real catalog database."""

import psycopg
import pytest
from pgoutput_record import scratch_database
from pydantic import SecretStr

from lakehouse.servers.table_locks import Held, locked
from lakehouse.settings import Settings


@pytest.mark.stack
def test_who_asks_next_never_waits_for_one_that_has_ended(cluster: str) -> None:
    """The server may learn of a connection's end after the next has asked: an action was then skipped."""
    with scratch_database(cluster) as url:
        settings = Settings(catalog_url=SecretStr(url))
        for _ in range(500):
            with locked(settings, [("raw_shop", "orders")], "maintenance"):
                pass


@pytest.mark.stack
def test_a_thousand_tables_are_locked_on_one_connection(cluster: str) -> None:
    """Each lock had its own: a refresh of 150 mirrors took every connection that the catalog database has."""
    names = [("mirror_shop", f"t{n}") for n in range(1000)]
    with scratch_database(cluster) as url, psycopg.connect(url) as other:
        settings = Settings(catalog_url=SecretStr(url))
        with locked(settings, names, "mirrors"):
            count = "SELECT count(*), count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            assert other.execute(count).fetchone() == (1000, 1)
            with pytest.raises(Held, match="another mirrors run") as held, locked(settings, names[7:9], "maintenance"):
                pass
            assert held.value.table == names[7]
            with locked(settings, [("mirror_shop", "other")], "maintenance"):
                pass
        with locked(settings, names[7:9], "maintenance"):
            pass
