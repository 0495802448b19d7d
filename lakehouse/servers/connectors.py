"""How Debezium's connector for Postgres is set up for the lake, and the settings of the source that reads its topics.

Both belong together: without schemas in the messages, the source reads values by what the connector was told.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.text.shown import shortened
from lakehouse.text.urls import parse_url

CONNECTOR = "io.debezium.connector.postgresql.PostgresConnector"
JSON = "org.apache.kafka.connect.json.JsonConverter"
LONGEST = 300  # of what Connect says of a failure
CAUSED = "Caused by: "


def connector_config(url: str, prefix: str, relations: Iterable[str], publication: str) -> dict[str, str]:
    """The configuration of a connector that delivers each change of these relations once, with its transaction.

    `url` is that of a role with REPLICATION and SELECT; the slot is called as the topics begin, by `prefix`.
    """
    at = parse_url(url)
    return {
        "connector.class": CONNECTOR, "plugin.name": "pgoutput", "tasks.max": "1",
        "database.hostname": at.host, "database.port": str(at.port), "database.dbname": at.database,
        "database.user": at.user, "database.password": at.password,
        "topic.prefix": prefix, "slot.name": prefix, "table.include.list": ",".join(relations),
        "publication.name": publication, "publication.autocreate.mode": "disabled",
        "provide.transaction.metadata": "true", "skipped.operations": "none",
        "exactly.once.support": "required", "transaction.boundary": "poll",
        "decimal.handling.mode": "precise", "time.precision.mode": "adaptive", "binary.handling.mode": "bytes",
        "key.converter": JSON, "key.converter.schemas.enable": "false",
        "value.converter": JSON, "value.converter.schemas.enable": "false",
        "value.converter.replace.null.with.default": "false",
        "topic.creation.default.replication.factor": "-1", "topic.creation.default.partitions": "1",
    }  # fmt: skip


def source_of_connector(servers: str, prefix: str, url: str) -> dict[str, str]:
    """The settings of the source that reads what such a connector writes to the brokers `servers`."""
    return {
        "kind": "debezium", "bootstrap_servers": servers, "transactions": f"{prefix}.transaction",
        "delivery": "exactly_once", "decimals": "precise", "times": "adaptive", "binary": "bytes", "url": url,
    }  # fmt: skip


def failure_of(status: Mapping[str, Any]) -> str | None:
    """Why a connector or one of its tasks has failed, by the status that Connect's REST API tells; None where none has.

    One line: the first one of the trace, and its last cause.
    """
    told = [("it", status["connector"]), *((f"task {task['id']}", task) for task in status["tasks"])]
    for what, of in told:
        if of["state"] == "FAILED":
            lines = [" ".join(line.split()) for line in str(of.get("trace") or "").splitlines() if line.strip()]
            causes = [line.removeprefix(CAUSED) for line in lines if line.startswith(CAUSED)]
            return f"{what} has failed: {shortened('; '.join([*lines[:1], *causes[-1:]]) or 'no reason told', LONGEST)}"
    return None
