"""Settings of the embedded stack; all others are in `lakehouse.settings`."""

import os
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from lakehouse.errors import LakehouseError
from lakehouse.settings import TABLE, Port, wrong_settings
from lakehouse.text.spelling import close

SERVERS = ("sources", "catalog", "s3", "trino", "serve")
TRINO_INTERNAL = "trino_internal"  # a second port of Trino, to which only Trino itself speaks
KAFKA_SERVERS = ("kafka", "connect")  # those of `lakehouse up --with kafka`
LISTENERS = (*SERVERS, *KAFKA_SERVERS)
EVERY_SERVER = (*LISTENERS, "reads")
SAMPLE_DATABASES = ("retail", "bank", "payroll")
SAMPLE_TOPICS = "clicks"  # the source whose topics are in the broker of the stack
SAMPLE_CONNECTOR = "bank_topics"  # the source of what a connector in the stack's Connect writes of the sample `bank`


class StackSettings(BaseSettings):
    """`LAKEHOUSE_STACK_*` environment variables; a port that is not set is chosen once and stored in the home."""

    model_config = SettingsConfigDict(env_prefix="LAKEHOUSE_STACK_", frozen=True, allow_inf_nan=False)

    sources_port: Port | None = Field(None, description="port of the Postgres cluster of the samples")
    catalog_port: Port | None = Field(None, description="port of the Postgres cluster of catalog and state")
    s3_port: Port | None = Field(None, description="port of the object store")
    trino_port: Port | None = Field(None, description="port of Trino")
    serve_port: Port | None = Field(None, description="port of the catalog service")
    dagster_port: Port | None = Field(None, description="port of Dagster's UI")
    kafka_port: Port | None = Field(None, description="port of the Kafka broker of `up --with kafka`")
    connect_port: Port | None = Field(None, description="port of the Kafka Connect of `up --with kafka`")
    kafka_heap_mb: int = Field(512, ge=256, description="heap of Kafka, and of Connect, in MiB")
    trino_heap_mb: int = Field(2048, ge=1024, description="heap of Trino, in MiB")
    s3_heap_mb: int = Field(512, ge=128, description="heap of S3Proxy, in MiB")
    start_seconds: float = Field(240.0, gt=0, description="how long a server may take to start")
    system_dir: Path = Field(
        Path("/var/lib/lakehouse"),
        description="as root: where the data and programs of servers are if their user cannot reach them elsewhere",
    )

    def fixed_ports(self) -> dict[str, int]:
        """The ports that are set."""
        ports = {name: getattr(self, f"{name}_port") for name in (*LISTENERS, "dagster")}
        return {name: port for name, port in ports.items() if port is not None}


def stack_settings() -> StackSettings:
    """Reads the environment; raises LakehouseError that names a wrong variable."""
    known = {f"LAKEHOUSE_STACK_{name}".upper() for name in StackSettings.model_fields}
    if unknown := sorted(name for name in os.environ if name.startswith("LAKEHOUSE_STACK_") and name not in known):
        meant = close(unknown[0], known, 0.6)
        raise LakehouseError(
            f"settings: {unknown[0]} is no setting{f': did you mean {meant}?' if meant else f'; {TABLE}'}"
        )
    try:
        return StackSettings()
    except ValidationError as error:
        raise LakehouseError(f"settings: {wrong_settings(error, StackSettings, 'LAKEHOUSE_STACK_')}; {TABLE}") from None
