"""What a person is told when Trino is not there."""

import re
import socket

import pytest

from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import answering, query
from lakehouse.settings import Settings


def test_a_trino_that_is_not_there_is_one_line_with_its_address_the_systems_words_and_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's
        port = taken.getsockname()[1]
        settings = Settings.model_validate({"trino": {"port": port}})
        with pytest.raises(Unreachable) as refused, answering(settings):
            query(settings, "SELECT 1")
    said = str(refused.value)
    refused_there = rf"Trino at 127\.0\.0\.1:{port} does not answer \(Connection refused\): .*"
    assert re.fullmatch(refused_there + "`lakehouse up` where the embedded stack serves it", said)
