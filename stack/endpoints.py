"""Writes what the rest of the system needs to find the embedded stack: endpoints.toml and dagster.yaml."""

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.private_files import write_private
from lakehouse.settings import ENDPOINTS_FILE, Settings, load_settings
from stack.config import SAMPLE_DATABASES
from stack.ports import LOOPBACK
from stack.render import render

FIRST_DAY_MARGIN = timedelta(days=6)


def postgres_url(user: str, password: str, port: int, database: str) -> str:
    """libpq URL on the loopback interface; the generated passwords need no escaping."""
    return f"postgresql://{user}:{password}@{LOOPBACK}:{port}/{database}"


def endpoints(ports: Mapping[str, int], credentials: Mapping[str, str]) -> dict[str, Any]:
    """The embedded stack in the shape of `lakehouse.settings.Settings`."""
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
        },
        "s3": {
            "endpoint": f"http://{LOOPBACK}:{ports['s3']}",
            "region": "us-east-1",
            "access_key": credentials["s3_access_key"],
            "secret_key": credentials["s3_secret_key"],
            "path_style": True,
        },
        "trino": {"host": LOOPBACK, "port": ports["trino"], "catalog": "lake"},
        "dagster": {
            "host": LOOPBACK,
            "port": ports["dagster"],
            "storage_url": postgres_url("dagster", credentials["dagster"], ports["catalog"], "dagster"),
        },
    }


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested tables of strings, integers and booleans."""
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    text = "\n".join(lines) + "\n"
    for key, table in tables.items():
        text += f"\n[{prefix}{key}]\n" + to_toml(table, f"{prefix}{key}.")
    return text


def write_endpoints(settings: Settings, ports: Mapping[str, int], credentials: Mapping[str, str]) -> None:
    """Writes `endpoints.toml` and `dagster/dagster.yaml` to the home, both private: they hold passwords."""
    values = endpoints(ports, credentials)
    values["dagster"]["first_day"] = _first_day(settings.home / ENDPOINTS_FILE)
    header = "# Written by `lakehouse up`; environment variables and lakehouse.toml take precedence.\n"
    write_private(settings.home / ENDPOINTS_FILE, header + to_toml(values))
    write_instance(load_settings(home=settings.home))  # the user's own settings win over what was just written


def write_instance(settings: Settings) -> None:
    """Writes Dagster's instance file, private, for the database that the settings name; raises LakehouseError."""
    if settings.dagster.storage_url is None:
        raise LakehouseError("Dagster's database is not set: run `lakehouse up`, or set LAKEHOUSE_DAGSTER__STORAGE_URL")
    url = with_driver(settings.dagster.storage_url.get_secret_value())
    instance = dagster_yaml(json.dumps(url), settings.home / "logs" / "dagster")
    write_private(settings.dagster_home / "dagster.yaml", instance)


def ensure_instance(settings: Settings) -> None:
    """Writes it where there is none yet, as where no embedded stack has been started."""
    if not (settings.dagster_home / "dagster.yaml").exists():
        write_instance(settings)


def with_driver(url: str) -> str:
    """The URL for dagster-postgres, which is written for psycopg2; SQLAlchemy 2.1 takes psycopg 3 unless told.

    Raises LakehouseError, without the text: it may hold a password.
    """
    if (scheme := re.match("postgres(ql)?://", url)) is None:
        raise LakehouseError(
            "LAKEHOUSE_DAGSTER__STORAGE_URL is not of the form postgresql://user:password@host/database"
        )
    return "postgresql+psycopg2://" + url[scheme.end() :]


def _first_day(path: Path) -> str:
    """Kept once chosen: days before it cannot be backfilled. A week before the lake's birth, for clocks that differ."""
    if path.exists():
        with path.open("rb") as file:
            kept = tomllib.load(file).get("dagster", {}).get("first_day")
        if kept:
            return str(kept)
    return (datetime.now(UTC).date() - FIRST_DAY_MARGIN).isoformat()


def dagster_yaml(storage_url: str, compute_logs: Path) -> str:
    """Dagster's instance file; `storage_url` is YAML: a quoted literal, or {env: NAME}."""
    return render("dagster.yaml.j2", storage_url=storage_url, compute_logs=compute_logs, max_concurrent_runs=2)
