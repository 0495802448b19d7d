"""Writes endpoints.toml, the settings by which everything else finds the stack, and Dagster's instance file."""

import json
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lakehouse.files.private_files import write_private
from lakehouse.servers.connectors import source_of_connector
from lakehouse.settings import ENDPOINTS_FILE, Settings, load_settings
from lakehouse_stack.home.config import SAMPLE_CONNECTOR, SAMPLE_DATABASES, SAMPLE_TOPICS
from lakehouse_stack.home.instance import write_instance
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.servers.trino import trino_client

FIRST_DAY_MARGIN = timedelta(days=6)


def postgres_url(user: str, password: str, port: int, database: str) -> str:
    """A libpq URL on the loopback interface; generated passwords need no escaping."""
    return f"postgresql://{user}:{password}@{LOOPBACK}:{port}/{database}"


def endpoints(
    home: Path, access: Path, objects: Path, ports: Mapping[str, int], credentials: Mapping[str, str]
) -> dict[str, Any]:
    """The embedded stack's endpoints with the structure of `lakehouse.settings.Settings`."""
    return {
        "catalog_url": postgres_url("lakehouse", credentials["lakehouse"], ports["catalog"], "lake"),
        "catalog_name": "lake",
        "warehouse": "s3://warehouse/",
        "sources": {
            name: {
                "url": postgres_url("lakehouse_ingest", credentials["lakehouse_ingest"], ports["sources"], name),
                "owner_url": postgres_url("app", credentials["app"], ports["sources"], name),
            }
            for name in SAMPLE_DATABASES
        }
        | _topics(ports, credentials),
        "s3": {
            "endpoint": f"http://{LOOPBACK}:{ports['s3']}",
            "region": "us-east-1",
            "access_key": credentials["s3_access_key"],
            "secret_key": credentials["s3_secret_key"],
            "path_style": True,
            "folder": str(objects),
        },
        "trino": trino_client(home, access, ports["trino"], credentials),
        "metrics": {
            "host": LOOPBACK,
            "follower_port": ports["follower_metrics"],
            "watch_port": ports["watch_metrics"],
            "worker_port": ports["worker_metrics"],
        },
        "serve": {"host": LOOPBACK, "port": ports["serve"]},
        "dagster": {
            "host": LOOPBACK,
            "port": ports["dagster"],
            "storage_url": postgres_url("dagster", credentials["dagster"], ports["catalog"], "dagster"),
        },
    }


def _topics(ports: Mapping[str, int], credentials: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The samples in Kafka, where the stack has one."""
    if "kafka" not in ports:
        return {}
    servers = f"{LOOPBACK}:{ports['kafka']}"
    bank = postgres_url("lakehouse_ingest", credentials["lakehouse_ingest"], ports["sources"], "bank")
    return {
        SAMPLE_TOPICS: {"kind": "kafka", "bootstrap_servers": servers},
        SAMPLE_CONNECTOR: source_of_connector(servers, SAMPLE_CONNECTOR, bank),
    }


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested tables of strings, integers and booleans."""
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    text = "\n".join(lines) + "\n"
    for key, table in tables.items():
        text += f"\n[{prefix}{key}]\n" + to_toml(table, f"{prefix}{key}.")
    return text


def write_endpoints(
    settings: Settings, access: Path, objects: Path, ports: Mapping[str, int], credentials: Mapping[str, str]
) -> None:
    """Writes `endpoints.toml` and `dagster/dagster.yaml` to the home, both private.

    `access` has the logins, `objects` the files of the object store.
    """
    values = endpoints(settings.home, access, objects, ports, credentials)
    values["dagster"]["first_day"] = _first_day(settings.home / ENDPOINTS_FILE)
    header = "# Written by `lakehouse up`; environment variables and lakehouse.toml take precedence.\n"
    write_private(settings.home / ENDPOINTS_FILE, header + to_toml(values))
    write_instance(load_settings(home=settings.home))  # the user's settings take precedence


def _first_day(path: Path) -> str:
    """The first partition, chosen once: a few days before the lake's creation, to allow for clock skew."""
    if path.exists():
        with path.open("rb") as file:
            kept = tomllib.load(file).get("dagster", {}).get("first_day")
        if kept:
            return str(kept)
    return (datetime.now(UTC).date() - FIRST_DAY_MARGIN).isoformat()
