"""What a client of Kafka is told of each combination of settings; the brokers are in `tests/test_kafka_logins.py`."""

from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from lakehouse.errors import LakehouseError
from lakehouse.servers.kafka import client_properties
from lakehouse.settings import DebeziumSettings, KafkaSettings, load_settings

LOGIN = {"user": "lake", "password": "secret-1f"}
COMBINED = list(
    product((False, True), (None, "/etc/ca.pem"), (None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), (False, True))
)


@pytest.mark.parametrize("of", [KafkaSettings, DebeziumSettings])
@pytest.mark.parametrize(("tls", "ca", "sasl", "has_login"), COMBINED)
def test_every_combination_is_refused_or_told_to_the_client(
    of: Any, tls: bool, ca: str | None, sasl: str | None, has_login: bool
) -> None:
    kind = "kafka" if of is KafkaSettings else "debezium"
    given = {"kind": kind, "bootstrap_servers": "a:1,b:2", "tls": tls, "ca": ca, "sasl": sasl}
    given |= LOGIN if has_login else {}
    if (sasl is not None) != has_login or (sasl == "PLAIN" and not tls) or (ca and not tls):
        with pytest.raises(ValidationError):
            of.model_validate(given)
        return
    told = client_properties(of.model_validate(given))
    protocol = {(False, False): "plaintext", (True, False): "ssl", (False, True): "sasl_plaintext"}
    expected = {
        "bootstrap.servers": "a:1,b:2", "client.id": "lakehouse", "socket.connection.setup.timeout.ms": 5000,
        "security.protocol": protocol.get((tls, has_login), "sasl_ssl"),
    }  # fmt: skip
    if ca:
        expected["ssl.ca.location"] = ca
    if sasl:
        expected |= {"sasl.mechanism": sasl, "sasl.username": "lake", "sasl.password": "secret-1f"}
    assert told == expected, "names of hosts are verified by default"


@pytest.mark.parametrize("lacking", ["sasl", "user", "password"])
def test_half_a_login_is_refused(lacking: str) -> None:
    given = {"kind": "kafka", "bootstrap_servers": "a:1", "sasl": "SCRAM-SHA-256", **LOGIN}
    del given[lacking]
    with pytest.raises(ValidationError, match="sasl, user and password belong together"):
        KafkaSettings.model_validate(given)


def test_a_login_that_is_refused_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"KIND": "kafka", "BOOTSTRAP_SERVERS": "a:1", "SASL": "PLAIN", "USER": "lake", "PASSWORD": "secret-1f"}
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__WEB__{name}", value)
    with pytest.raises(LakehouseError, match="PLAIN sends the password as it is: set tls = true") as refused:
        load_settings()
    assert "secret-1f" not in str(refused.value)
