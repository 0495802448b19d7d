"""What is told where the source's server fails at its own WAL."""

import pytest

from ingestion.sources.postgres.reading import what_helps


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ERROR:  unexpected duplicate for tablespace 0, relfilenode 27879", "newest minor release"),
        ('ERROR:  could not map filenode "base/16384/16390" to relation OID', "newest minor release"),
        ("ERROR:  requested WAL segment 000000010000000000000002 has already been removed", "nothing was written"),
    ],
)
def test_an_error_of_the_servers_decoder_is_told_with_the_way_on(reason: str, told: str) -> None:
    """The first was met with a server of Postgres 15.18."""
    assert told in what_helps(reason, "shop") and "`lakehouse ingest --recover shop`" in what_helps(reason, "shop")


def test_other_errors_get_no_advice() -> None:
    assert what_helps("ERROR:  canceling statement due to user request", "shop") == ""
