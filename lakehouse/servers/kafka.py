"""How clients of Kafka reach the brokers of a source."""

from typing import Any

from lakehouse.settings import BrokerSettings


def client_properties(of: BrokerSettings) -> dict[str, Any]:
    """What librdkafka needs to reach the brokers; holds the password."""
    protocol = ("SASL_" if of.sasl else "") + ("SSL" if of.tls else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap.servers": of.bootstrap_servers, "security.protocol": protocol.lower()}
    if of.ca is not None:
        found["ssl.ca.location"] = str(of.ca)
    if of.sasl is not None and of.user is not None and of.password is not None:
        found |= {"sasl.mechanism": of.sasl, "sasl.username": of.user}
        found["sasl.password"] = of.password.get_secret_value()
    return found | {"client.id": "lakehouse", "socket.connection.setup.timeout.ms": 5000}
