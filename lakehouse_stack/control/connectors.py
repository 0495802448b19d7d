"""What the stack's Kafka Connect says of the connectors that it runs: their topics are still once they have failed."""

import json
import urllib.request
from typing import Any

from lakehouse.servers.connectors import failure_of
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.settings import DebeziumSettings, Settings
from lakehouse_stack.control.inspect import connect_address

SECONDS = 5.0


def connector_failure(settings: Settings, source: str) -> str | None:
    """Why the connector that fills a source's topics has failed, in one line.

    None where it has not, where it is none of the stack's, which are known by the prefix of their topics, and where
    Connect does not answer, which is told of the server.
    """
    of = settings.connection(source)
    if not isinstance(of, DebeziumSettings) or of.transactions is None or (url := connect_address(settings)) is None:
        return None
    for name, found in sorted(_asked(f"{url}/connectors?expand=info&expand=status").items()):
        if f"{found['info']['config'].get('topic.prefix')}.transaction" == of.transactions:
            says = failure_of(found["status"])
            return None if says is None else f"connector {name}: {says}"
    return None


def _asked(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.loads(answer.read())
    except (*BROKEN_OFF, ValueError):
        return {}
    return {name: one for name, one in found.items() if {"info", "status"} <= one.keys()}
