"""Builds the servers of a home from settings, ports and credentials."""

from collections.abc import Mapping
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.servers.java import private_java_home, spark_java_home
from lakehouse.settings import Settings
from lakehouse_stack.control.endpoints import postgres_url
from lakehouse_stack.downloads.artifacts import artifact
from lakehouse_stack.home.config import KAFKA_SERVERS, SAMPLE_DATABASES, TRINO_INTERNAL, StackSettings
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import find_placement, find_server_placement
from lakehouse_stack.servers.kafka import kafka_servers
from lakehouse_stack.servers.postgres import postgres_server
from lakehouse_stack.servers.reads import reads_server
from lakehouse_stack.servers.s3 import BUCKET, s3_server
from lakehouse_stack.servers.serve import serve_server
from lakehouse_stack.servers.server import Server
from lakehouse_stack.servers.trino import access_dir, trino_client, trino_server
from lakehouse_stack.templates.render import render


def build_servers(
    settings: Settings,
    stack: StackSettings,
    ports: Mapping[str, int],
    credentials: Mapping[str, str],
    make: bool = True,
) -> tuple[Server, ...]:
    """All servers. Nothing is started; only the folders of their data are made, and not even these without `make`."""
    home = settings.home
    placement = find_server_placement(home, stack.system_dir, make)
    access, jar = access_dir(placement.config), settings.artifacts / artifact("s3proxy").target
    s3 = s3_server(home, placement, jar, ports["s3"], stack.s3_heap_mb, credentials)
    trino = trino_server(
        home,
        placement,
        settings.artifacts,
        ports["trino"],
        ports.get(TRINO_INTERNAL),  # a home of an earlier release that is only looked at has none
        stack.trino_heap_mb,
        f"jdbc:postgresql://{LOOPBACK}:{ports['catalog']}/lake",
        f"http://{LOOPBACK}:{ports['s3']}",
        _warehouse(settings),
        credentials,
    )
    reads = reads_server(home, trino_client(home, access, ports["trino"], credentials))
    serve = serve_server(
        home,
        placement,
        ports["serve"],
        access,
        settings.serve,
        {
            "LAKEHOUSE_CATALOG_URL": postgres_url("lakehouse", credentials["lakehouse"], ports["catalog"], "lake"),
            "LAKEHOUSE_S3__ENDPOINT": f"http://{LOOPBACK}:{ports['s3']}",
            "LAKEHOUSE_S3__ACCESS_KEY": credentials["s3_access_key"],
            "LAKEHOUSE_S3__SECRET_KEY": credentials["s3_secret_key"],
        },
    )
    kafka: tuple[Server, ...] = ()
    if set(KAFKA_SERVERS) <= set(ports):
        java = java_home(settings)
        kafka = kafka_servers(home, placement, java, settings.artifacts, ports, stack.kafka_heap_mb)
    return (*_postgres_servers(settings, stack, ports, credentials, make), s3, trino, reads, serve, *kafka)


def _warehouse(settings: Settings) -> str:
    """Where Trino puts the tables that it makes: in the folder of the stack's own bucket that the settings name."""
    bucket = f"s3://{BUCKET}/"
    return settings.warehouse if settings.warehouse.startswith(bucket) else bucket


def java_home(settings: Settings) -> Path:
    """Kafka's Java is Spark's; to stop it, or to look at it, none need be there."""
    try:
        return spark_java_home(settings)
    except LakehouseError:
        return private_java_home(settings)


def _postgres_servers(
    settings: Settings, stack: StackSettings, ports: Mapping[str, int], credentials: Mapping[str, str], make: bool
) -> tuple[Server, Server]:
    """Two clusters, so that a restored source does not roll the catalog back."""
    home, placement = settings.home, find_placement(settings.home, stack.system_dir, make)
    sources = postgres_server(
        "sources",
        ports["sources"],
        placement,
        home / "logs" / "sources.log",
        credentials["sources_superuser"],
        render("sources.sql.j2", databases=SAMPLE_DATABASES),
        {
            "LAKEHOUSE_APP_PASSWORD": credentials["app"],
            "LAKEHOUSE_INGEST_PASSWORD": credentials["lakehouse_ingest"],
        },
    )
    catalog = postgres_server(
        "catalog",
        ports["catalog"],
        placement,
        home / "logs" / "catalog.log",
        credentials["catalog_superuser"],
        render("catalog.sql.j2", generated=True),
        {
            "LAKEHOUSE_CATALOG_PASSWORD": credentials["lakehouse"],
            "LAKEHOUSE_TRINO_CATALOG_PASSWORD": credentials["trino"],
            "LAKEHOUSE_DAGSTER_PASSWORD": credentials["dagster"],
        },
    )
    return sources, catalog
